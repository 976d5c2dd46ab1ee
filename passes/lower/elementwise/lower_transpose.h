/* Elementwise groups with a transposed operand, in tiles of two dimensions: what those on processors and on GPUs
 * share. */
#ifndef KILN_LOWER_TRANSPOSE_H
#define KILN_LOWER_TRANSPOSE_H
#include "passes/lower/lower_schedule.h"

/* The position of the tile: its index in the outer dimensions.  Dimension `across` is one of the tile's two. */
struct transpose {
    struct lowering *w;
    const struct map_loops *m;
    uint32_t across;
    val index[KL_MAX_RANK];
    val first, last;            /* the tile's first index in dimension `across` and in the innermost dimension */
    struct map_loads loads;
    /* of a GPU's block (../gpu/lower_gpu_transpose.c) */
    int64_t shared;             /* bytes of a tile of each of these loads */
    int64_t read, stored;       /* wide form: adjacent elements that a thread reads and stores at once; 0: narrow
                                   form */
    val thread;
};

/* Evaluates the group at these indices of dimension `across` and of the innermost one.  Returns how many results there
 * are. */
uint32_t transpose_evaluate(struct transpose *t, val across, val inner, struct element *out);
/* Finds the transposed loads and the dimension along which they are contiguous, which must be the same for all of
 * them and have at least `shortest` elements.  false: there are none. */
bool transpose_find(struct transpose *t, int64_t shortest, struct element *element);

/* On a processor: the group's kernel, of found loads. */
void transpose_tiles(struct transpose *t, struct element *element);

#endif
