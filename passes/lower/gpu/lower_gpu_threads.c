/* Phases of one thread for each element. */
#include "lower_gpu.h"

int64_t gpu_parts(int64_t n, int64_t of) { return (n + of - 1) / of; }

val gpu_index(struct kernel *k, val v, int64_t n)
{
    ix_bound(k, v, 0, n - 1);
    return v;
}

val gpu_fold_adjacent(struct kernel *k, enum fold fold, val *sum, int64_t n)
{
    for (int64_t half = n / 2; half; half /= 2)
        for (int64_t i = 0; i < half; i++)
            sum[i] = k_fold_step(k, fold, sum[i], sum[i + half]);
    return sum[0];
}

val gpu_fold_lanes(struct kernel *k, enum fold fold, val *sum, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] = k_lane_reduce(k, fold, sum[i]);
    return gpu_fold_adjacent(k, fold, sum, n);
}

static val open_blocks(struct lowering *w, struct gpu_phase *p, int64_t blocks, bool in_order)
{
    struct kernel *k = w->k;
    *p = (struct gpu_phase){0};
    if (w->phases++) {
        lower_next_phase(w);
    } else {
        k->extent = 0;
        lower_scalars(w);
    }
    p->grid = in_order ? k_loop_in_order(k, LOOP_GRID, blocks)
                       : k_loop(k, LOOP_GRID, k_int(k, 0), k_int(k, blocks), 1);
    p->block = k_loop(k, LOOP_BLOCK, k_int(k, 0), k_int(k, k->sched.width), 1);
    k->extent += blocks;
    return p->block;
}

val gpu_blocks_begin(struct lowering *w, struct gpu_phase *p, int64_t blocks)
{
    return open_blocks(w, p, blocks, false);
}

val gpu_blocks_begin_in_order(struct lowering *w, struct gpu_phase *p, int64_t blocks)
{
    return open_blocks(w, p, blocks, true);
}

val gpu_phase_begin(struct lowering *w, struct gpu_phase *p, int64_t n)
{
    struct kernel *k = w->k;
    int64_t max = k->sched.width;
    val t = gpu_blocks_begin(w, p, gpu_parts(n, max)), e = ix_add(k, ix_scale(k, p->grid, max), t);
    if (n % max) {
        p->there = k_if(k, k_prim(k, P_LT, e, k_int(k, n), 0));
        ix_bound(k, e, 0, n - 1);
    }
    return e;
}

void gpu_phase_end(struct lowering *w, const struct gpu_phase *p)
{
    if (p->there)
        k_end(w->k, p->there);
    k_end(w->k, p->block);
    k_end(w->k, p->grid);
}

/* A binary search in `max` elements ends after as many halvings as the number `max` has bits. */
val gpu_search(struct kernel *k, val n, int64_t max, val (*before)(void *ctx, val i), void *ctx)
{
    int64_t steps = 0;
    for (int64_t left = max; left > 0; left /= 2)
        steps++;
    val step = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, steps), 1);
    val lo = k_carry(k, k_int(k, 0)), hi = k_carry(k, n);
    val open = k_prim(k, P_LT, lo, hi, 0);
    val mid = k_prim(k, P_DIV, k_prim(k, P_ADD, lo, hi, 0), k_int(k, 2), 0);
    val at = k_prim(k, P_SELECT, open, mid, k_int(k, 0));
    ix_bound(k, at, 0, max > 0 ? max - 1 : 0);
    val less = k_prim(k, P_AND, open, before(ctx, at), 0);
    val up = k_prim(k, P_SELECT, less, k_prim(k, P_ADD, mid, k_int(k, 1), 0), lo);
    val down = k_prim(k, P_SELECT, k_prim(k, P_AND, open, k_prim(k, P_NOT, less, 0, 0), 0), mid, hi);
    k_next(k, lo, up);
    k_next(k, hi, down);
    k_end(k, step);
    val found = k_out(k, lo);
    ix_bound(k, found, 0, max);
    return found;
}
