/* GPU kernels of several phases, each of which is a launch, with one thread for each element or for each chunk. */
#ifndef KILN_LOWER_GPU_H
#define KILN_LOWER_GPU_H
#include "passes/lower/lower.h"

/* ---- lower_gpu_threads.c ---- */
/* The open loops of one phase. */
struct gpu_phase { val grid, block, there; };
/* Opens a phase of so many blocks of the schedule's threads and returns the number of the thread in its block; the
 * phase before it ends. */
val gpu_blocks_begin(struct lowering *w, struct gpu_phase *p, int64_t blocks);
/* The same of blocks that begin in order and may wait for words of earlier ones. */
val gpu_blocks_begin_in_order(struct lowering *w, struct gpu_phase *p, int64_t blocks);
/* Opens a phase of n > 0 threads and returns the number of the thread; the phase before it ends. */
val gpu_phase_begin(struct lowering *w, struct gpu_phase *p, int64_t n);
void gpu_phase_end(struct lowering *w, const struct gpu_phase *p);
int64_t gpu_parts(int64_t n, int64_t of);
/* Returns v with the bounds 0..n-1, which the caller guarantees. */
val gpu_index(struct kernel *k, val v, int64_t n);
/* Folds the n sums of each lane of the open vector loop, a power of two, in the graph's order: numeric lane
 * n * lane + i has sum[i].  With one sum, the lanes' sums. */
val gpu_fold_lanes(struct kernel *k, enum fold fold, val *sum, int64_t n);
/* The second step of that: folds the n sums that a lane has. */
val gpu_fold_adjacent(struct kernel *k, enum fold fold, val *sum, int64_t n);
/* Binary search in n ordered elements: returns how many elements, from the first on, are before the one that is
 * searched for, 0..n.  before(ctx, i): is element i one of them? */
val gpu_search(struct kernel *k, val n, int64_t max, val (*before)(void *ctx, val i), void *ctx);

/* ---- lower_gpu_sort.c ---- */
enum { GPU_SORT_OWN = 8 };      /* elements of a thread, all of which a block has in shared memory */
/* Sorts the keys of `rows` rows of `length` elements, fewer than 2^31: stable, ascending. */
struct gpu_sort {
    struct lowering *w;
    int64_t rows, length;
    unsigned key_type, place_type;
    val (*key)(void *ctx, val row, val place);                  /* the key of an element */
    void (*result)(void *ctx, val row, val rank, val place);    /* called in the last phase; NULL: the results stay
                                                                   in memory */
    void *ctx;
    uint32_t sorted, indices;    /* lbufs, set if there is no `result`: the keys in order, and their indices before
                                   sorting */
};
void gpu_sort(struct gpu_sort *s);

/* ---- lower_gpu_scan.c ---- */
enum { GPU_SCAN_LINES = 4 };                     /* a block has twice as many results of each thread in shared memory */
bool gpu_scan_is_long(const struct lowering *w); /* is the scan long, and may its steps be combined in any order? */
/* one_pass: blocks wait for the results of those before them, along the last axis. */
void gpu_scan(struct lowering *w, bool one_pass);
/* lower_gpu_scan_tiles.c: tiles of each of so many rows of a length, if a block has so many threads. */
int64_t gpu_scan_parts(const struct lowering *w, int64_t rows, int64_t length, int64_t threads);

/* ---- lower_gpu_transpose.c ---- */
/* The side of a tile; the threads of a block of the wide form.  In the narrow form a block has a thread for each
 * element of one side. */
enum { GPU_TRANSPOSE_SIDE = 64, GPU_TRANSPOSE_WIDE = 256 };
/* The operands that an elementwise group reads in another order than it stores: they are contiguous along dimension
 * `across` of the loops. */
struct gpu_transpose {
    const struct map_loops *m;
    uint32_t across;
    struct map_loads loads;
    int64_t read, stored;         /* adjacent elements that a thread may read and store at once; 0: this is not
                                     possible */
    int64_t shared;               /* bytes that a block of the wide form has in shared memory */
};
/* Finds these operands.  Returns the number of tiles; 0: there are no such operands. */
int64_t gpu_transpose_find(struct lowering *w, const struct map_loops *m, struct gpu_transpose *found);
void gpu_transpose(struct lowering *w, const struct gpu_transpose *found);

/* ---- lower_gpu_scatter.c ---- */
enum { GPU_SCATTER_FEW = 16 };  /* with at most so many rows of the update, each thread checks all of them and nothing
                                   is sorted */
struct scatter {
    struct lowering *w;
    const struct node *n;
    const struct shape *s;      /* shape of the result */
    struct split at;
    struct shape outer, inner;  /* the axes before and after the scatter axis */
    int64_t count;              /* rows of the update */
    enum op op;                 /* combines an element with its update; OP_nil: the update replaces it */
    unsigned dtype;             /* of the computation */
    /* processors */
    val outer_coord[KL_MAX_RANK];
    uint32_t acc;               /* lbuf of the accumulator: the output, or scratch */
    bool scratch;
    ref state;                  /* the first operand, if it may be updated in place; else NIL */
    bool whole;                 /* the panel has whole rows: it is contiguous along the axis */
    int64_t pitch;              /* scratch: distance of adjacent elements along the axis, in elements */
    /* GPUs */
    int64_t each;               /* adjacent elements of a thread */
    uint32_t sorted, indices;   /* lbufs */
    val wanted;                 /* the index that is searched for */
};
void gpu_scatter(struct scatter *s);
void gpu_argsort(struct lowering *w);            /* lower_gpu_sort.c */

#endif
