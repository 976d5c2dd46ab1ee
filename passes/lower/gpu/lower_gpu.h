/* Kernels for GPUs of several phases, each a launch of its own: one thread for each element, or for each chunk. */
#ifndef KILN_LOWER_GPU_H
#define KILN_LOWER_GPU_H
#include "passes/lower/lower.h"

/* ---- lower_gpu_threads.c ---- */
/* The loops of one phase, while they are open. */
struct gpu_phase { val grid, block, there; };
/* Opens a phase of n threads and returns the number of this one; a phase before it ends.  n > 0. */
val gpu_phase_begin(struct lowering *w, struct gpu_phase *p, int64_t n);
void gpu_phase_end(struct lowering *w, const struct gpu_phase *p);
int64_t gpu_parts(int64_t n, int64_t of);
/* v, and a promise that it is 0..n-1. */
val gpu_index(struct kernel *k, val v, int64_t n);
/* In 0..n, of n elements with an order: how many from the first on are before the one that is looked for.
 * before(ctx, i): is element i of these? */
val gpu_search(struct kernel *k, val n, int64_t most, val (*before)(void *ctx, val i), void *ctx);

/* ---- lower_gpu_sort.c ---- */
/* Keys of `rows` rows of `length`, and where each was before: stable, ascending. */
struct gpu_sort {
    struct lowering *w;
    int64_t rows, length;
    unsigned key_type, place_type;
    val (*key)(void *ctx, val row, val place);                  /* an element's */
    void (*result)(void *ctx, val row, val rank, val place);    /* in the last phase; NULL: they stay in memory */
    void *ctx;
    uint32_t sorted, places;    /* lbufs: the keys in order and where they were; if there is no `result` */
};
void gpu_sort(struct gpu_sort *s);

/* ---- lower_gpu_scan.c ---- */
bool gpu_scan_fits(const struct lowering *w);    /* is it long, and one whose steps may be taken in any order? */
void gpu_scan(struct lowering *w);

/* ---- lower_gpu_turn.c ---- */
enum { GPU_TURN_SIDE = 64, GPU_TURN_WIDE = 256 }; /* of a tile; threads of a block, which are otherwise one side */
/* The operands that an elementwise group reads across the grain, along dimension `across` of the loops. */
struct gpu_turn {
    const struct map_loops *m;
    uint32_t across;
    struct map_loads loads;
    int64_t read, stored;         /* neighbours that a thread may read and store at once; 0: that is not possible */
};
/* Finds them.  How many tiles there are; 0: no operand is read across the grain. */
int64_t gpu_turn_find(struct lowering *w, const struct map_loops *m, struct gpu_turn *found);
void gpu_turn(struct lowering *w, const struct gpu_turn *found);

/* ---- lower_gpu_scatter.c ---- */
void gpu_scatter(struct lowering *w);
void gpu_argsort(struct lowering *w);            /* lower_gpu_sort.c */

#endif
