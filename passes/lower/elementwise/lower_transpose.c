/* Elementwise groups with a transposed operand: adjacent elements of the result are far apart in the operand, which is
 * contiguous along another dimension.
 *
 * On a processor an iteration of the parallel loop computes a tile of the two dimensions, so that each cache line of
 * the operand and of the result is used whole while it is in the first-level cache, however far apart rows are.  First
 * the operand is read in squares: vectors along its contiguous dimension, which are transposed in registers and stored
 * to scratch in the order of the result.  Then the results are computed row by row, as those of any elementwise group,
 * with the transposed loads from scratch.  The members are evaluated in the same order both times, so a load is
 * identified by its number among all loads.
 *
 * Where a dimension is no multiple of a square, its last square begins so early that it ends with the dimension: no
 * element is read that does not exist, and no load is masked.  Only what is read overlaps, each result is stored
 * once. */
#include "lower_transpose.h"
#include <string.h>

/* ---- transposed loads ---- */

uint32_t transpose_evaluate(struct transpose *t, val across, val inner, struct element *out)
{
    struct lowering *w = t->w;
    val index[KL_MAX_RANK], coord[KL_MAX_RANK] = {0};
    uint32_t n = 0;
    memcpy(index, t->index, sizeof index);
    index[t->across] = across;
    index[t->m->n - 1] = inner;
    t->loads.number = 0;
    lower_map_coords(w->k, t->m, index, coord);
    lower_point(w);
    for (uint32_t m = 0; m < w->nmember; m++)
        if (w->stored[w->member[m]])
            out[n++] = lower_element(w, w->member[m], t->m->s, coord);
    return n;
}

bool transpose_find(struct transpose *t, int64_t shortest, struct element *element)
{
    struct trial trial;
    bool found = false;
    const struct map_loops *m = t->m;
    if (trial_begin(&trial, t->w)) {
        struct transpose look = *t;
        struct kernel *k = trial.w.k;
        look.w = &trial.w;
        trial.w.loads = &look.loads;
        look.loads.mode = LOADS_NOTED;
        lower_scalars(&trial.w);
        for (uint32_t d = 0; d < m->n; d++)
            look.index[d] = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, m->size[d].bound), 1);
        val inner = look.index[m->n - 1];
        transpose_evaluate(&look, look.index[t->across], inner, element);
        t->loads.n = look.loads.number;
        for (uint32_t d = 0; d + 1 < m->n && !found; d++)
            for (uint32_t l = 0; l < look.loads.number && l < MAX_MAP_LOADS; l++) {
                struct size along;
                int64_t other = 0;
                bool linear = ix_stride_size(k, look.loads.index[l], inner, &along) &&
                              ix_stride(k, look.loads.index[l], look.index[d], &other);
                t->loads.transposed[l] = linear && other == 1 && !size_equal(along, size_constant(0)) &&
                                         !size_equal(along, size_constant(1)) &&
                                         m->size[d].bound >= shortest;
                if (t->loads.transposed[l]) {
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

/* ---- tiles on a processor ---- */

/* One of the tile's two dimensions.  What is read of it begins at `base`, the tile's first element or, where fewer
 * elements than a square has follow it, as much earlier as a square takes; elements up to `end` are read. */
struct tile_side { int64_t size, step, tiles; val first, base, end; };

static struct tile_side tile_side(struct kernel *k, int64_t size, int64_t step, int64_t square, val number)
{
    struct tile_side s = {size, step, (size + step - 1) / step, ix_scale(k, number, step), 0, 0};
    int64_t rest = size % step;
    s.base = (rest ? rest : step) < square ? ix_min(k, s.first, size - square) : s.first;
    if (s.base != s.first)
        ix_assume_range(k, s.base, 0, size - square);
    s.end = ix_add(k, s.first, k_int(k, step));
    if (rest) {
        s.end = ix_min(k, s.end, size);
        ix_assume_range(k, s.end, 1, size);
    }
    return s;
}

/* Elements of scratch that a side has: whole squares. */
static int64_t side_room(int64_t step, int64_t square) { return (step + square - 1) / square * square; }

/* Opens a loop over the squares of a side.  Returns the first index of a square; *loop is closed by the caller. */
static val begin_squares(struct kernel *k, const struct tile_side *s, int64_t square, val *loop)
{
    val count = ix_div(k, ix_add(k, ix_sub(k, s->end, s->base), k_int(k, square - 1)), square);
    val j = *loop = k_loop(k, LOOP_SERIAL, k_int(k, 0), count, 1), at = ix_add(k, s->base, ix_scale(k, j, square));
    ix_bound(k, j, 0, side_room(s->step, square) / square - 1);
    if (s->size % square || s->step % square)
        at = ix_min(k, at, s->size - square);
    ix_assume_range(k, at, 0, s->size - square);
    return at;
}

/* Reads squares of the transposed loads, rows of which are along dimension `across`, and stores them to scratch. */
static void read_squares(struct transpose *t, const struct tile_side *across, const struct tile_side *inner,
                         struct element *element)
{
    struct lowering *w = t->w;
    struct kernel *k = w->k;
    uint32_t n = schedule_of(k)->transpose.square;
    int64_t pitch = side_room(inner->step, n);
    val row[MAX_MAP_LOADS][MAX_VECTOR], inner_loop, across_loop;
    val i0 = begin_squares(k, inner, n, &inner_loop), a0 = begin_squares(k, across, n, &across_loop);
    val to = ix_add(k, ix_scale(k, ix_sub(k, a0, across->base), pitch), ix_sub(k, i0, inner->base));
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, n), 1);
    t->loads.mode = LOADS_NOTED;
    for (uint32_t i = 0; i < n; i++) {
        transpose_evaluate(t, ix_add(k, a0, w->lane), ix_add(k, i0, k_int(k, i)), element);
        for (uint32_t l = 0; l < t->loads.n; l++)
            row[l][i] = t->loads.value[l];
    }
    for (uint32_t l = 0; l < t->loads.n; l++) {
        if (!t->loads.transposed[l])
            continue;
        k_transpose(k, row[l], n);
        for (uint32_t i = 0; i < n; i++)
            k_store(k, t->loads.scratch[l], ix_add(k, ix_add(k, to, k_int(k, i * pitch)), w->lane), row[l][i], 0);
    }
    k_end(k, w->lane);
    w->lane = 0;
    k_end(k, across_loop);
    k_end(k, inner_loop);
}

/* Stores the results of a vector of a row, of which `rest` elements exist; 0: all do. */
static void store_row_vector(struct transpose *t, const struct tile_side *across, const struct tile_side *inner, val i,
                             val base, val rest, struct element *element)
{
    struct lowering *w = t->w;
    struct kernel *k = w->k;
    int64_t pitch = side_room(inner->step, schedule_of(k)->transpose.square);
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, k->sched.width), 1);
    w->pred = rest ? k_prim(k, P_LT, w->lane, rest, 0) : 0;
    val column = ix_add(k, base, w->lane);
    if (rest)
        ix_assume_range(k, column, 0, inner->size - 1);
    t->loads.mode = LOADS_FROM_SCRATCH;
    t->loads.at = ix_add(k, ix_scale(k, ix_sub(k, i, across->base), pitch), ix_sub(k, column, inner->base));
    uint32_t n = transpose_evaluate(t, i, column, element);
    for (uint32_t e = 0; e < n; e++)
        lower_put(w, &element[e]);
    k_end(k, w->lane);
    w->lane = w->pred = 0;
}

/* Prefetches lines of the operands that the next tile reads, while row i of this one is stored: processors do not, as
 * each row of the operand is on another page. */
static void prefetch_next(struct transpose *t, const struct tile_side *across, const struct tile_side *inner, val i,
                          struct element *element)
{
    struct kernel *k = t->w->k;
    val row = ix_sub(k, i, across->first);
    t->loads.mode = LOADS_NOTED;
    for (uint32_t l = 0; l < t->loads.n; l++) {
        int64_t line = LINE_BYTES / (int64_t)dtype_size(t->loads.dtype[l]), lines = (across->step + line - 1) / line;
        int64_t each = (lines * inner->step + across->step - 1) / across->step;
        for (int64_t u = 0; u < each && t->loads.transposed[l]; u++) {
            val number = ix_add(k, ix_scale(k, row, each), k_int(k, u));
            val from = ix_add(k, across->first, ix_scale(k, ix_mod(k, number, lines), line));
            transpose_evaluate(t, from, ix_add(k, ix_add(k, inner->first, k_int(k, inner->step)),
                                               ix_div(k, number, lines)), element);
            k_prefetch(k, PREFETCH_READ, (uint32_t)k->inst[t->loads.value[l]].imm, t->loads.index[l]);
        }
    }
    for (uint32_t m = 0; m < t->w->nmember; m++) {
        ref r = t->w->member[m];
        int64_t line = LINE_BYTES / (int64_t)dtype_size(t->w->g->node[r].dtype);
        for (int64_t u = 0; t->w->stored[r] && u < inner->step; u += line) {
            uint32_t n = transpose_evaluate(t, i, ix_add(k, inner->first, k_int(k, inner->step + u)), element);
            for (uint32_t e = 0; e < n; e++)
                if (element[e].r == r)
                    k_prefetch(k, PREFETCH_WRITE, lower_buffer(t->w, r, BUF_OUT), element[e].index);
        }
    }
}

static void store_rows(struct transpose *t, const struct tile_side *across, const struct tile_side *inner,
                       struct element *element)
{
    struct kernel *k = t->w->k;
    int64_t width = k->sched.width;
    val i = k_loop(k, LOOP_SERIAL, across->first, across->end, 1);
    ix_bound(k, i, 0, across->size - 1);
    if (schedule_of(k)->transpose.prefetch)
        prefetch_next(t, across, inner, i, element);
    val length = ix_sub(k, inner->end, inner->first), count = ix_div(k, length, width);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), count, 1);
    ix_bound(k, j, 0, inner->step / width);
    store_row_vector(t, across, inner, i, ix_add(k, inner->first, ix_scale(k, j, width)), 0, element);
    k_end(k, j);
    if (inner->size % width || inner->step % width) {
        val done = ix_scale(k, count, width), rest = ix_sub(k, length, done);
        val some = k_if(k, k_prim(k, P_LT, k_int(k, 0), rest, 0));
        ix_assume_range(k, rest, 0, width - 1);
        store_row_vector(t, across, inner, i, ix_add(k, inner->first, done), rest, element);
        k_end(k, some);
    }
    k_end(k, i);
}

void transpose_tiles(struct transpose *t, struct element *element)
{
    struct lowering *w = t->w;
    struct kernel *k = w->k;
    const struct schedule *s = schedule_of(k);
    const struct map_loops *m = t->m;
    int64_t rows = m->size[t->across].bound, columns = m->size[m->n - 1].bound, square = s->transpose.square;
    int64_t tiles = transpose_parts(columns, s->transpose.columns), extent = tiles;
    struct size outer[KL_MAX_RANK];
    struct tasks tasks;
    for (uint32_t d = 0; d + 1 < m->n; d++) {
        outer[d] = d == t->across ? size_constant(transpose_parts(rows, s->transpose.rows)) : m->size[d];
        extent *= outer[d].bound;
    }
    for (uint32_t l = 0; l < t->loads.n; l++)
        if (t->loads.transposed[l])
            t->loads.scratch[l] = k_buf(k, BUF_SCRATCH, t->loads.dtype[l], side_room(s->transpose.rows, square) *
                                        side_room(s->transpose.columns, square), 0);
    w->loads = &t->loads;
    lower_scalars(w);
    val p = lower_tasks(w, extent, 0, &tasks);
    lower_unflatten_sizes(k, outer, m->n - 1, ix_div(k, p, tiles), t->index);
    struct tile_side across = tile_side(k, rows, s->transpose.rows, square, t->index[t->across]);
    struct tile_side inner = tile_side(k, columns, s->transpose.columns, square, ix_mod(k, p, tiles));
    read_squares(t, &across, &inner, element);
    store_rows(t, &across, &inner, element);
    lower_tasks_end(w, &tasks);
    w->loads = NULL;
}
