/* Products on a GPU by blocks of threads: what lower_dot_gpu.c and lower_dot_gpu_steps.c share. */
#ifndef KILN_LOWER_DOT_GPU_H
#define KILN_LOWER_DOT_GPU_H
#include "lower_dot.h"

/* Parts of a thread's tile: along a side, and the sums of all of them. */
enum { MAX_SIDE_PARTS = 2, MAX_SUMS = MAX_SIDE_PARTS * MAX_SIDE_PARTS };

struct product_blocks {
    struct dot *d;
    struct schedule s;
    int64_t mr, nr, block_m, block_n, step; /* as in the record */
    int64_t threads, col_threads;   /* threads of the block; threads in a row of tiles */
    int64_t stages;                 /* steps that are in shared memory or on their way to it */
    uint32_t buf[2], own;           /* lbufs: the steps of each operand as they are multiplied; the thread's results */
    /* Of each operand: is it copied?  Is it contiguous in memory along the contraction, or along runs of it?  Adjacent
     * elements of an access; elements of shared memory from one index of the contraction to the next; elements of a
     * step, and how many steps the buffer has */
    bool copied[2], along_k[2];
    int64_t each[2], pitch[2], elements[2], ring[2];
    uint32_t rows[2];               /* lbufs: `stages` steps of an operand that is_transposed, vectors as they were
                                       copied, those of each thread */
    int64_t parts_m, parts_n;       /* number of parts of a thread's tile along rows and columns */
    val t, i0, j0;                  /* number of the thread; the block's first row and column */
    val row_thread, col_thread;     /* number of the thread's tile in its column and row of tiles */
    int64_t splits;                 /* number of parts of the contraction */
    val split, k0, steps;           /* the block's part, its first index of the contraction, and its steps */
    uint32_t sums;                  /* lbuf: the sums of all parts, if there are several */
};

static inline bool has_copies(const struct product_blocks *s) { return s->copied[0] || s->copied[1]; }
static inline int64_t sum_tiles(const struct product_blocks *s) { return s->parts_m * s->parts_n; }

/* ---- lower_dot_gpu_steps.c ---- */
/* Finds out how an operand lies in memory, and how its steps lie in shared memory, and makes the buffers. */
void find_accesses(struct product_blocks *s, bool second);
/* The first row or column of a part of the thread's tile, counted from the block's first. */
val first_of(const struct product_blocks *s, bool second, int64_t part);
/* Steps of a part of the contraction, where it is known; the first index of the contraction of a step. */
int64_t steps_of_part(const struct product_blocks *s);
val step_start(const struct product_blocks *s, val step);
/* Brings the first steps to shared memory, the first of them completely.  whole: no step reaches beyond the
 * contraction. */
void begin_steps(const struct product_blocks *s, bool whole);
/* Adds the products of a step to the sums of the tile's parts, while later steps are on their way.  The part of row p
 * and column q has sum p * parts_n + q. */
void multiply_step(const struct product_blocks *s, val step, bool whole, val *sum);
/* Adds the products of the first `count` indices of a step that is in shared memory. */
void multiply_first(const struct product_blocks *s, int64_t step, int64_t count, val *sum);

#endif
