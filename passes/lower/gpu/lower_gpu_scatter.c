/* Scatters, in the order that node.h gives (Numeric order).  The rows of the update are sorted by their target index
 * with a stable sort.  A thread has one element of the result, or several adjacent ones, and combines their updates in
 * order. */
#include "lower_gpu.h"
#include <string.h>

enum { MAX_VECTOR_WIDTH = 8, MANY_THREADS = 1 << 15 };

/* As many rows are sorted as there are at most.  Those that do not exist for these values of the symbols have the
 * greatest key, which no index of the axis is, so they are behind all others. */
static val scatter_key(void *ctx, val row, val place)
{
    const struct scatter *s = ctx;
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    (void)row;
    struct size count = kernel_length(k, s->count);
    val there = size_is_constant(count) ? 0 : k_prim(k, P_LT, place, ix_size(k, count), 0);
    w->pred = there;
    w->pred_all = there != 0;
    lower_point(w);
    val key = k_cast(k, lower_index(k, lower_at(w, s->n->in[1], &place), s->at.len - 1), KL_I32);
    w->pred = 0;
    w->pred_all = false;
    return there ? k_prim(k, P_SELECT, there, key, k_bits(k, KL_I32, INT32_MAX)) : key;
}

static val is_before(void *ctx, val i)
{
    const struct scatter *s = ctx;
    return k_prim(s->w->k, P_LT, k_load(s->w->k, s->sorted, i, 0), s->wanted, 0);
}

/* Stores for each index of the axis, and for its length, how many rows of the update go to smaller indices. */
static uint32_t find_starts(struct scatter *s)
{
    struct kernel *k = s->w->k;
    struct gpu_phase p;
    uint32_t starts = k_buf(k, BUF_WORKSPACE, KL_I32, s->at.len + 1, 0);
    val e = gpu_phase_begin(s->w, &p, s->at.len + 1);
    s->wanted = k_cast(k, e, KL_I32);
    k_store(k, starts, e, k_cast(k, gpu_search(k, k_int(k, s->count), s->count, is_before, s), KL_I32), 0);
    gpu_phase_end(s->w, &p);
    return starts;
}

/* Coordinates, in the result or in the update, of the element at index `place` of the axis. */
static void element_coordinates(const struct scatter *s, val outer, val place, val inner, val *coord)
{
    struct kernel *k = s->w->k;
    lower_unflatten(k, &s->outer, outer, coord);
    coord[s->outer.rank] = place;
    lower_unflatten(k, &s->inner, inner, coord + s->outer.rank + 1);
}

/* A thread's elements: those from `inner` on, at index `place` of the axis. */
struct elements { val outer, place, inner; };

/* Combines the update's elements of row i with acc, as sum; here: only if this is true. */
static void combine_row(const struct scatter *s, const struct elements *e, val i, val here, const val *acc, val *sum)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    gpu_index(k, i, s->count);
    for (int64_t u = 0; u < s->each; u++) {
        val coord[KL_MAX_RANK] = {0};
        element_coordinates(s, e->outer, i, ix_add(k, e->inner, k_int(k, u)), coord);
        lower_point(w);
        val x = k_cast(k, lower_at(w, s->n->in[2], coord), s->dtype);
        sum[u] = s->op == OP_nil ? x : k_op(k, s->op, (const val[]){acc[u], x});
        if (here)
            sum[u] = k_prim(k, P_SELECT, here, sum[u], acc[u]);
    }
}

static void carry_all(const struct scatter *s, const val *acc, val *carry)
{
    for (int64_t u = 0; u < s->each; u++)
        carry[u] = k_carry(s->w->k, acc[u]);
}

/* Closes the loop, whose next iteration begins with `sum`, and sets acc to its results. */
static void end_combine(const struct scatter *s, val loop, const val *carry, const val *sum, val *acc)
{
    struct kernel *k = s->w->k;
    for (int64_t u = 0; u < s->each; u++)
        k_next(k, carry[u], sum[u]);
    k_end(k, loop);
    for (int64_t u = 0; u < s->each; u++)
        acc[u] = k_out(k, carry[u]);
}

/* Combines rows first..end - 1 of the sorted rows; if updates replace, only the last one. */
static void combine_sorted(const struct scatter *s, uint32_t starts, const struct elements *e, val *acc)
{
    struct kernel *k = s->w->k;
    val carry[MAX_VECTOR_WIDTH], sum[MAX_VECTOR_WIDTH], first = k_cast(k, k_load(k, starts, e->place, 0), KL_I64);
    val end = k_cast(k, k_load(k, starts, ix_add(k, e->place, k_int(k, 1)), 0), KL_I64);
    if (s->op == OP_nil) {
        val last = k_prim(k, P_SUB, end, k_int(k, 1), 0);
        first = k_prim(k, P_SELECT, k_prim(k, P_LT, first, last, 0), last, first);
    }
    val n = k_prim(k, P_SUB, end, first, 0), max = k_int(k, s->count);
    n = k_prim(k, P_SELECT, k_prim(k, P_LT, n, max, 0), n, max); /* gives the loop a bound that is known */
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), n, 1);
    carry_all(s, acc, carry);
    val at = gpu_index(k, k_prim(k, P_ADD, first, j, 0), s->count);
    combine_row(s, e, k_cast(k, k_load(k, s->indices, at, 0), KL_I64), 0, carry, sum);
    end_combine(s, j, carry, sum, acc);
}

static void combine_all(const struct scatter *s, const struct elements *e, val *acc)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    val carry[MAX_VECTOR_WIDTH], sum[MAX_VECTOR_WIDTH];
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->count), 1);
    carry_all(s, acc, carry);
    lower_point(w);
    val to = lower_index(k, lower_at(w, s->n->in[1], &i), s->at.len - 1);
    combine_row(s, e, i, k_prim(k, P_EQ, to, e->place, 0), carry, sum);
    end_combine(s, i, carry, sum, acc);
}

static void store_scatter_results(struct scatter *s, uint32_t starts)
{
    struct lowering *w = s->w;
    struct kernel *k = w->k;
    struct gpu_phase p;
    int64_t across = s->at.inner / s->each; /* threads of a row */
    val acc[MAX_VECTOR_WIDTH], to[MAX_VECTOR_WIDTH];
    val e = gpu_phase_begin(w, &p, shape_count(s->s) / s->each), row = ix_div(k, e, across);
    struct elements own = {ix_div(k, row, s->at.len), ix_mod(k, row, s->at.len),
                           ix_scale(k, ix_mod(k, e, across), s->each)};
    for (int64_t u = 0; u < s->each; u++) {
        val coord[KL_MAX_RANK] = {0};
        element_coordinates(s, own.outer, own.place, ix_add(k, own.inner, k_int(k, u)), coord);
        lower_point(w);
        acc[u] = k_cast(k, lower_at(w, s->n->in[0], coord), s->dtype);
        to[u] = lower_flatten(k, s->s, coord);
    }
    if (s->count > GPU_SCATTER_FEW)
        combine_sorted(s, starts, &own, acc);
    else if (s->count)
        combine_all(s, &own, acc);
    uint32_t out = lower_buffer(w, w->anchor, BUF_OUT);
    for (int64_t u = 0; u < s->each; u++)
        k_store(k, out, to[u], k_cast(k, acc[u], s->n->dtype), 0);
    gpu_phase_end(w, &p);
}

/* Number of adjacent elements of a thread: as many as one access has, if there are threads enough. */
static int64_t scatter_vector_width(const struct scatter *s)
{
    int64_t each = lower_access(s->w), max = shape_count(s->s);
    while (each > 1 && (s->at.inner % each || max / each < MANY_THREADS))
        each /= 2;
    return each;
}

void gpu_scatter(struct scatter *s)
{
    s->each = scatter_vector_width(s);
    uint32_t starts = 0;
    if (s->count > GPU_SCATTER_FEW) {
        struct gpu_sort sort = {.w = s->w, .rows = 1, .length = s->count, .key_type = KL_I32, .place_type = KL_I32,
                                .key = scatter_key, .ctx = s};
        gpu_sort(&sort);
        s->sorted = sort.sorted;
        s->indices = sort.indices;
        starts = find_starts(s);
    }
    store_scatter_results(s, starts);
}
