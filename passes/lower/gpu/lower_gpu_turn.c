/* Elementwise groups that read an operand across the grain: neighbours of the result are far apart in it, and its own
 * neighbours lie along another dimension.  A block takes a square tile of the two dimensions.  First its lanes are the
 * operand's neighbours, which go to shared memory by columns PAD further apart than there are lanes, so that neither
 * way two lanes meet in a bank; then they are the result's.
 *
 * Both times the members are evaluated, in the same order: a load is known by its number among all.  The first time
 * those across the grain are kept, and what else was computed is dead code. */
#include "lower_gpu.h"
#include <string.h>

enum { SIDE = GPU_TURN_SIDE, PAD = 1, SHORTEST = 32, AT_ONCE = 8 };

/* Where the tile is: the numbers of the outer dimensions, of which `across` is one of the tile's two. */
struct turn {
    struct lowering *w;
    const struct map_loops *m;
    uint32_t across;
    val index[KL_MAX_RANK];
    val first, last;            /* of the tile, in dimension `across` and in the innermost */
    struct map_loads loads;
};

static void point(struct turn *t, val across, val inner, val *coord)
{
    val index[KL_MAX_RANK];
    memcpy(index, t->index, sizeof index);
    index[t->across] = across;
    index[t->m->n - 1] = inner;
    t->loads.number = 0;
    lower_map_coords(t->w->k, t->m, index, coord);
    lower_point(t->w);
}

static uint32_t evaluate(struct turn *t, val across, val inner, struct element *out)
{
    struct lowering *w = t->w;
    val coord[KL_MAX_RANK] = {0};
    uint32_t n = 0;
    point(t, across, inner, coord);
    for (uint32_t m = 0; m < w->nmember; m++)
        if (w->stored[w->member[m]])
            out[n++] = lower_element(w, w->member[m], t->m->s, coord);
    return n;
}

/* Which loads go across the grain, and along which dimension are their neighbours?  One for all; false: none do. */
static bool find_turned(struct turn *t, struct element *element)
{
    struct trial trial;
    bool found = false;
    const struct map_loops *m = t->m;
    if (trial_begin(&trial, t->w)) {
        struct turn look = *t;
        struct kernel *k = trial.w.k;
        look.w = &trial.w;
        trial.w.loads = &look.loads;
        look.loads.mode = LOADS_NOTED;
        lower_scalars(&trial.w);
        for (uint32_t d = 0; d < m->n; d++)
            look.index[d] = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, m->size[d]), 1);
        val inner = look.index[m->n - 1];
        evaluate(&look, look.index[t->across], inner, element);
        t->loads.n = look.loads.number;
        for (uint32_t d = 0; d + 1 < m->n && !found; d++)
            for (uint32_t l = 0; l < look.loads.number && l < MAX_MAP_LOADS; l++) {
                int64_t along = 0, other = 0;
                bool linear = ix_stride(k, look.loads.index[l], inner, &along) &&
                              ix_stride(k, look.loads.index[l], look.index[d], &other);
                t->loads.turned[l] = linear && other == 1 && along != 0 && along != 1 && m->size[d] >= SHORTEST;
                if (t->loads.turned[l]) {
                    found = true;
                    t->across = d;
                }
            }
        found &= look.loads.number <= MAX_MAP_LOADS;
        memcpy(t->loads.dtype, look.loads.dtype, sizeof t->loads.dtype);
    }
    trial_end(&trial, t->w);
    return found;
}

/* How many of SIDE from `first` on there are, of n. */
static val tile_side(struct kernel *k, val first, int64_t n)
{
    if (n % SIDE == 0)
        return k_int(k, SIDE);
    val left = ix_sub(k, k_int(k, n), first), side = k_int(k, SIDE);
    val x = k_prim(k, P_SELECT, k_prim(k, P_LT, left, side, 0), left, side);
    ix_bound(k, x, 1, SIDE);
    return x;
}

static val within(struct kernel *k, val first, val by, int64_t n)
{
    val v = ix_add(k, first, by);
    ix_bound(k, v, 0, n - 1);
    return v;
}

static void open_lanes(struct turn *t, val side, int64_t n)
{
    struct lowering *w = t->w;
    struct kernel *k = w->k;
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, SIDE), 1);
    w->pred = n % SIDE ? k_prim(k, P_LT, w->lane, side, 0) : 0;
}

static void close_lanes(struct turn *t)
{
    k_end(t->w->k, t->w->lane);
    t->w->lane = t->w->pred = 0;
}

/* The tile's elements of the operands across the grain, to shared memory. */
static void bring(struct turn *t, struct element *element)
{
    struct kernel *k = t->w->k;
    const struct map_loops *m = t->m;
    int64_t rows = m->size[t->across], columns = m->size[m->n - 1], step = columns % AT_ONCE ? 1 : AT_ONCE;
    open_lanes(t, tile_side(k, t->first, rows), rows);
    val row = within(k, t->first, t->w->lane, rows);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), tile_side(k, t->last, columns), step), value[AT_ONCE][MAX_MAP_LOADS];
    t->loads.mode = LOADS_NOTED;
    for (int64_t u = 0; u < step; u++) {
        evaluate(t, row, within(k, t->last, ix_add(k, j, k_int(k, u)), columns), element);
        memcpy(value[u], t->loads.value, sizeof value[u]);
    }
    for (int64_t u = 0; u < step; u++)
        for (uint32_t l = 0; l < t->loads.n; l++)
            if (t->loads.turned[l])
                k_store(k, t->loads.scratch[l],
                        ix_add(k, ix_scale(k, ix_add(k, j, k_int(k, u)), SIDE + PAD), t->w->lane), value[u][l],
                        t->w->pred);
    k_end(k, j);
    close_lanes(t);
}

static void store(struct turn *t, struct element *element)
{
    struct kernel *k = t->w->k;
    const struct map_loops *m = t->m;
    int64_t rows = m->size[t->across], columns = m->size[m->n - 1];
    open_lanes(t, tile_side(k, t->last, columns), columns);
    val column = within(k, t->last, t->w->lane, columns);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), tile_side(k, t->first, rows), 1);
    t->loads.mode = LOADS_FROM_SCRATCH;
    t->loads.at = ix_add(k, ix_scale(k, t->w->lane, SIDE + PAD), i);
    uint32_t n = evaluate(t, within(k, t->first, i, rows), column, element);
    for (uint32_t e = 0; e < n; e++)
        lower_put(t->w, &element[e]);
    k_end(k, i);
    close_lanes(t);
}

/* The number of tiles in each of the outer dimensions, of which a tile has one but for its own two. */
static struct shape outer_tiles(const struct map_loops *m, uint32_t across)
{
    struct shape outer = {.rank = m->n - 1};
    for (uint32_t d = 0; d + 1 < m->n; d++)
        outer.dim[d] = d == across ? gpu_parts(m->size[d], SIDE) : m->size[d];
    return outer;
}

static int64_t tile_columns(const struct map_loops *m) { return gpu_parts(m->size[m->n - 1], SIDE); }

static void emit_tiles(struct turn *t, struct element *element)
{
    struct lowering *w = t->w;
    struct kernel *k = w->k;
    struct shape outer = outer_tiles(t->m, t->across);
    int64_t columns = tile_columns(t->m);
    k->extent = shape_count(&outer) * columns;
    w->loads = &t->loads;
    lower_scalars(w);
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1);
    lower_unflatten(k, &outer, ix_div(k, p, columns), t->index);
    t->first = ix_scale(k, t->index[t->across], SIDE);
    t->last = ix_scale(k, ix_mod(k, p, columns), SIDE);
    bring(t, element);
    store(t, element);
    k_end(k, p);
    w->loads = NULL;
}

static struct element *new_elements(struct lowering *w)
{
    struct element *element = mem_alloc((w->nmember + 1) * sizeof *element);
    if (!element)
        err_set(&w->k->err, KL_ERR_MEMORY, "out of memory lowering @%s", w->g->name);
    return element;
}

int64_t gpu_turn_find(struct lowering *w, const struct map_loops *m, struct gpu_turn *found)
{
    struct turn t = {.w = w, .m = m};
    if (m->n < 2 || m->size[m->n - 1] < SHORTEST)
        return 0;
    struct element *element = new_elements(w);
    bool turns = element && find_turned(&t, element);
    mem_free(element);
    *found = (struct gpu_turn){m, t.across, t.loads};
    struct shape outer = outer_tiles(m, t.across);
    return turns ? shape_count(&outer) * tile_columns(m) : 0;
}

void gpu_turn(struct lowering *w, const struct gpu_turn *found)
{
    struct turn t = {.w = w, .m = found->m, .across = found->across, .loads = found->loads};
    struct element *element = new_elements(w);
    for (uint32_t l = 0; l < t.loads.n; l++)
        if (t.loads.turned[l])
            t.loads.scratch[l] = k_buf(w->k, BUF_SCRATCH, t.loads.dtype[l], SIDE * (SIDE + PAD), 0);
    if (element)
        emit_tiles(&t, element);
    mem_free(element);
}
