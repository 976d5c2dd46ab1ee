/* Elementwise groups with a transposed operand: adjacent elements of the result are far apart in the operand, which
 * is contiguous along another dimension.  Both the loads and the stores of such a group are coalesced.
 *
 * A block computes a square tile of the two dimensions.  First it reads the operand along its contiguous dimension
 * and stores the elements to shared memory, whose rows have a padding of PAD elements to avoid bank conflicts in
 * both directions.  Then it computes the results and stores them along their contiguous dimension.  The members are
 * evaluated in the same order both times, so a load is identified by its number among all loads.  The first
 * evaluation keeps the transposed loads; everything else that it computes is dead code.
 *
 * There are two forms.  In the wide form each thread reads and stores several adjacent elements at once, 16 bytes of
 * the largest type.  Both lengths must be multiples of their number, and the tiles must fit into shared memory.  In
 * the narrow form the block's lanes process adjacent elements. */
#include "lower_gpu.h"
#include "passes/lower/elementwise/lower_transpose.h"
#include "passes/lower/lower_schedule.h"
#include <string.h>

enum { SIDE = GPU_TRANSPOSE_SIDE, WIDE = GPU_TRANSPOSE_WIDE, PAD = 1, SHORTEST = 32, AT_ONCE = 8 };
enum { ACCESS = 16, A_THREAD = SIDE * SIDE / WIDE }; /* ACCESS: bytes of an access.  A_THREAD: elements of a tile for
                                                        each thread */

/* The number of indices of a tile side, from `first` on, that are below n. */
static val tile_side(struct kernel *k, val first, struct size n)
{
    if (size_divides(n, SIDE))
        return k_int(k, SIDE);
    val x = k_min(k, ix_sub(k, ix_size(k, n), first), k_int(k, SIDE));
    ix_bound(k, x, 1, SIDE);
    return x;
}

static val transpose_is_within(struct kernel *k, val first, val by, struct size n)
{
    val v = ix_add(k, first, by);
    ix_bound(k, v, 0, n.bound - 1);
    return v;
}

static void open_lanes(struct transpose *t, val side, struct size n)
{
    struct lowering *w = t->w;
    struct kernel *k = w->k;
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, SIDE), 1);
    w->pred = size_divides(n, SIDE) ? 0 : k_prim(k, P_LT, w->lane, side, 0);
}

static void close_lanes(struct transpose *t)
{
    k_end(t->w->k, t->w->lane);
    t->w->lane = t->w->pred = 0;
}

/* Loads the tile's elements of the transposed operands and stores them to shared memory. */
static void stage_to_shared(struct transpose *t, struct element *element)
{
    struct kernel *k = t->w->k;
    const struct map_loops *m = t->m;
    struct size rows = m->size[t->across], columns = m->size[m->n - 1];
    int64_t step = size_divides(columns, AT_ONCE) ? AT_ONCE : 1;
    open_lanes(t, tile_side(k, t->first, rows), rows);
    val row = transpose_is_within(k, t->first, t->w->lane, rows);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), tile_side(k, t->last, columns), step), value[AT_ONCE][MAX_MAP_LOADS];
    t->loads.mode = LOADS_NOTED;
    for (int64_t u = 0; u < step; u++) {
        transpose_evaluate(t, row, transpose_is_within(k, t->last, ix_add(k, j, k_int(k, u)), columns), element);
        memcpy(value[u], t->loads.value, sizeof value[u]);
    }
    for (int64_t u = 0; u < step; u++)
        for (uint32_t l = 0; l < t->loads.n; l++)
            if (t->loads.transposed[l])
                k_store(k, t->loads.scratch[l],
                        ix_add(k, ix_scale(k, ix_add(k, j, k_int(k, u)), SIDE + PAD), t->w->lane), value[u][l],
                        t->w->pred);
    k_end(k, j);
    close_lanes(t);
}

static void transpose_store(struct transpose *t, struct element *element)
{
    struct kernel *k = t->w->k;
    const struct map_loops *m = t->m;
    struct size rows = m->size[t->across], columns = m->size[m->n - 1];
    open_lanes(t, tile_side(k, t->last, columns), columns);
    val column = transpose_is_within(k, t->last, t->w->lane, columns);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), tile_side(k, t->first, rows), 1);
    t->loads.mode = LOADS_FROM_SCRATCH;
    t->loads.at = ix_add(k, ix_scale(k, t->w->lane, SIDE + PAD), i);
    uint32_t n = transpose_evaluate(t, transpose_is_within(k, t->first, i, rows), column, element);
    for (uint32_t e = 0; e < n; e++)
        lower_put(t->w, &element[e]);
    k_end(k, i);
    close_lanes(t);
}

/* ---- wide ---- */

/* The elements of the tile that a thread accesses at once: along one dimension from `along` on, at index `other` of
 * the other dimension.  *there: a mask of whether the tile has them; 0: it always does. */
struct transpose_source { val along, other, there; };

static struct transpose_source thread_place(const struct transpose *t, int64_t pass, int64_t each, val along_left,
                                            val other_left)
{
    struct kernel *k = t->w->k;
    int64_t threads_along = SIDE / each;
    struct transpose_source p = {.along = ix_scale(k, ix_mod(k, t->thread, threads_along), each),
                      .other = ix_add(k, ix_div(k, t->thread, threads_along),
                                      k_int(k, pass * (WIDE / threads_along)))};
    int64_t whole;
    if (!ix_const(k, along_left, &whole))
        p.there = k_prim(k, P_LT, p.along, along_left, 0);
    if (!ix_const(k, other_left, &whole)) {
        val other = k_prim(k, P_LT, p.other, other_left, 0);
        p.there = p.there ? k_prim(k, P_AND, p.there, other, 0) : other;
    }
    return p;
}

/* All loads of a thread are emitted before its stores. */
static void bring_wide(struct transpose *t, struct element *element)
{
    struct kernel *k = t->w->k;
    const struct map_loops *m = t->m;
    struct size rows = m->size[t->across], columns = m->size[m->n - 1];
    int64_t each = t->read;
    val rows_left = tile_side(k, t->first, rows), columns_left = tile_side(k, t->last, columns);
    val value[A_THREAD][MAX_MAP_LOADS], at[A_THREAD];
    t->loads.mode = LOADS_NOTED;
    for (int64_t i = 0; i < A_THREAD; i++) {
        struct transpose_source p = thread_place(t, i / each, each, rows_left, columns_left);
        val row = ix_add(k, p.along, k_int(k, i % each));
        t->w->pred = p.there;
        t->w->pred_all = true;
        transpose_evaluate(t, transpose_is_within(k, t->first, row, rows), transpose_is_within(k, t->last, p.other,
                                                                                               columns), element);
        memcpy(value[i], t->loads.value, sizeof value[i]);
        at[i] = ix_add(k, ix_scale(k, p.other, SIDE + PAD), row);
    }
    t->w->pred = 0;
    t->w->pred_all = false;
    for (int64_t i = 0; i < A_THREAD; i++)
        for (uint32_t l = 0; l < t->loads.n; l++)
            if (t->loads.transposed[l])
                k_store(k, t->loads.scratch[l], at[i], value[i][l], 0);
}

/* All adjacent elements are computed before the first of them is stored. */
static void store_wide(struct transpose *t, struct element *element)
{
    struct kernel *k = t->w->k;
    const struct map_loops *m = t->m;
    struct size rows = m->size[t->across], columns = m->size[m->n - 1];
    int64_t each = t->stored;
    val rows_left = tile_side(k, t->first, rows), columns_left = tile_side(k, t->last, columns);
    t->loads.mode = LOADS_FROM_SCRATCH;
    for (int64_t i = 0; i < A_THREAD; i += each) {
        struct transpose_source p = thread_place(t, i / each, each, columns_left, rows_left);
        uint32_t n = 0;
        t->w->pred = p.there;
        t->w->pred_all = true;
        for (int64_t u = 0; u < each; u++) {
            val column = ix_add(k, p.along, k_int(k, u));
            t->loads.at = ix_add(k, ix_scale(k, column, SIDE + PAD), p.other);
            n += transpose_evaluate(t, transpose_is_within(k, t->first, p.other, rows), transpose_is_within(k, t->last,
                column, columns), element + n);
        }
        for (uint32_t e = 0; e < n; e++)
            lower_put(t->w, &element[e]);
    }
    t->w->pred = 0;
    t->w->pred_all = false;
}

/* Chooses how many adjacent elements a thread reads and stores at once.  Returns none if the wide form is not
 * possible. */
static void find_wide(struct transpose *t)
{
    const struct lowering *w = t->w;
    const struct map_loops *m = t->m;
    size_t largest = 1, stored = 1;
    for (uint32_t l = 0; l < t->loads.n; l++) {
        size_t size = t->loads.transposed[l] ? dtype_size(t->loads.dtype[l]) : 0;
        largest = size > largest ? size : largest;
        t->shared += (int64_t)((SIDE * (SIDE + PAD) * size + 63) / 64 * 64);
    }
    for (uint32_t i = 0; i < w->nmember; i++) {
        size_t size = w->stored[w->member[i]] ? dtype_size(w->g->node[w->member[i]].dtype) : 0;
        stored = size > stored ? size : stored;
    }
    int64_t read = ACCESS / (int64_t)largest, put = ACCESS / (int64_t)stored;
    if (!size_divides(m->size[t->across], read) || !size_divides(m->size[m->n - 1], put))
        return;
    t->read = read;
    t->stored = put;
}

/* ---- the kernel ---- */

/* The number of tiles along each outer dimension.  A tile covers one index of each, except of its own two
 * dimensions. */
struct outer_tiles { struct size dim[KL_MAX_RANK]; uint32_t n; int64_t count; };

static struct outer_tiles outer_tiles(const struct map_loops *m, uint32_t across)
{
    struct outer_tiles outer = {.n = m->n - 1, .count = 1};
    for (uint32_t d = 0; d < outer.n; d++) {
        outer.dim[d] = d == across ? size_constant(gpu_parts(m->size[d].bound, SIDE)) : m->size[d];
        outer.count *= outer.dim[d].bound;
    }
    return outer;
}

static int64_t tile_columns(const struct map_loops *m) { return gpu_parts(m->size[m->n - 1].bound, SIDE); }

/* The number of tiles along a dimension for these values of the symbols. */
static val tiles_now(const struct transpose *t, uint32_t d)
{
    struct kernel *k = t->w->k;
    struct size n = t->m->size[d];
    bool tiled = d == t->across || d + 1 == t->m->n;
    return tiled ? ix_div(k, ix_add(k, ix_size(k, n), k_int(k, SIDE - 1)), SIDE) : ix_size(k, n);
}

static bool turn_is_symbolic(const struct transpose *t)
{
    bool any = false;
    for (uint32_t d = 0; d < t->m->n; d++)
        any |= !size_is_constant(t->m->size[d]);
    return any;
}

/* Sets the indices of tile p in the outer dimensions, and returns the number of the tile along the last one. */
static val place_tile(struct transpose *t, const struct outer_tiles *outer, int64_t columns, val p)
{
    struct kernel *k = t->w->k;
    if (!turn_is_symbolic(t)) {
        lower_unflatten_sizes(k, outer->dim, outer->n, ix_div(k, p, columns), t->index);
        return ix_mod(k, p, columns);
    }
    val column;
    p = ix_quotient(k, p, tiles_now(t, outer->n), columns, &column);
    for (uint32_t d = outer->n; d-- > 0;)
        p = ix_quotient(k, p, tiles_now(t, d), outer->dim[d].bound, &t->index[d]);
    return column;
}

static void emit_tiles(struct transpose *t, struct element *element)
{
    struct lowering *w = t->w;
    struct kernel *k = w->k;
    struct outer_tiles outer = outer_tiles(t->m, t->across);
    int64_t columns = tile_columns(t->m), extent = outer.count * columns;
    bool wide = k->sched.width == WIDE;
    struct tasks tasks;
    val active = 0;
    w->loads = &t->loads;
    lower_scalars(w);
    for (uint32_t d = 0; d < t->m->n && turn_is_symbolic(t); d++)
        active = active ? ix_mul(k, active, tiles_now(t, d)) : tiles_now(t, d);
    val p = (wide ? lower_blocks : lower_tasks)(w, extent, active, &tasks), column;
    column = place_tile(t, &outer, columns, p);
    t->first = ix_scale(k, t->index[t->across], SIDE);
    t->last = ix_scale(k, column, SIDE);
    if (wide) {
        t->thread = lower_threads(w, WIDE, &tasks);
        bring_wide(t, element);
        k_inst(k, L_BARRIER, KL_BOOL, 0, 0, 0, 0);
        store_wide(t, element);
    } else {
        stage_to_shared(t, element);
        transpose_store(t, element);
    }
    lower_tasks_end(w, &tasks);
    w->loads = NULL;
}

static struct element *new_elements(struct lowering *w)
{
    struct element *element = mem_alloc((ACCESS * w->nmember + 1) * sizeof *element);
    if (!element)
        err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering @%s", w->g->name);
    return element;
}

int64_t gpu_transpose_find(struct lowering *w, const struct map_loops *m, struct gpu_transpose *found)
{
    struct transpose t = {.w = w, .m = m};
    if (m->n < 2 || m->size[m->n - 1].bound < SHORTEST)
        return 0;
    struct element *element = new_elements(w);
    bool turns = element && transpose_find(&t, SHORTEST, element);
    mem_free(element);
    if (turns)
        find_wide(&t);
    *found = (struct gpu_transpose){m, t.across, t.loads, t.read, t.stored, t.shared};
    return turns ? outer_tiles(m, t.across).count * tile_columns(m) : 0;
}

void gpu_transpose(struct lowering *w, const struct gpu_transpose *found)
{
    struct transpose t = {.w = w, .m = found->m, .across = found->across, .loads = found->loads, .read = found->read,
                     .stored = found->stored};
    struct element *element = new_elements(w);
    enum buf_role role = w->k->sched.width == WIDE ? BUF_SHARED : BUF_SCRATCH;
    for (uint32_t l = 0; l < t.loads.n; l++)
        if (t.loads.transposed[l])
            t.loads.scratch[l] = k_buf(w->k, role, t.loads.dtype[l], SIDE * (SIDE + PAD), 0);
    if (element)
        emit_tiles(&t, element);
    mem_free(element);
}
