/* Products on a GPU's matrix units: what lower_dot_matrix.c and lower_dot_warp_specialized.c share. */
#ifndef KILN_LOWER_DOT_MATRIX_H
#define KILN_LOWER_DOT_MATRIX_H
#include "lower_dot.h"
#include "passes/lower/gpu/lower_pipeline.h"

/* One of the two operands. */
struct factor {
    uint32_t buf;                   /* lbuf: `stages` steps of it, in shared memory */
    bool along_k;                   /* is it contiguous in memory along the contraction? */
    bool copied;                    /* copied in vectors, asynchronously */
    /* its rows in shared memory are along the contraction; else along the block's side */
    bool by_k;
    int64_t side;                   /* rows or columns of the block */
    int64_t row, elements;          /* elements of shared memory from row to row; elements of a step */
    val first;                      /* first row or column of the block */
};

struct subgroups {
    struct dot *d;
    struct schedule s;
    struct { unsigned m, n, k; } unit;
    unsigned dtype;                 /* dtype of the factors */
    int64_t threads, col_subgroups;     /* threads of the block; subgroups in a row of tiles */
    struct factor factor[2];
    const struct dot_order *order;  /* NULL: rows, columns and contraction have the order of the graph */
    uint32_t packed[2];             /* lbufs: workspaces of operands that are packed */
    uint32_t out;                   /* lbuf in shared memory: a slab of each tile */
    int64_t out_cols, out_row;      /* columns of this slab; elements from row to row */
    int64_t part;                   /* columns of a slab that belong to one tile */
    unsigned slabs, parts;          /* slabs of a tile; parts of a slab's columns */
    /* The contraction is divided into so many parts of equal length, each with its own blocks; steps of a part; the
     * block's part and its first index of the contraction; lbuf: the sums of all parts, if there are several. */
    int64_t splits, steps;
    val split, k0;
    uint32_t sums;
    val t;                          /* number of the thread */
    val tile_i, tile_j;             /* row and column of its subgroup's tile, among the block's tiles */
    struct pipeline pipeline;       /* if warps are specialized */
    struct pipeline_ring ring;
};

/* An array in memory: its first element, and the distances between adjacent elements in batch, side and contraction. */
struct dot_array { int64_t first, step[3]; };

enum { MAX_PARTS = DOT_MAX_PARTS, MAX_SLABS = DOT_MAX_SLABS, PAD = DOT_PAD, VECTOR = DOT_VECTOR };

/* ---- lower_dot_matrix.c ---- */
/* next[] = sum[] + the products of one step. */
void dot_matrix_multiply(const struct subgroups *s, val stage, const val *sum, val *next);
void dot_matrix_place(struct subgroups *s, val number); /* the tile of the subgroup of this number, among the block's */
/* A batch of asynchronous products ends; waits for all of them but the last `left`. */
void dot_matrix_commit(const struct subgroups *s);
void dot_matrix_wait(const struct subgroups *s, uint64_t left);
void dot_matrix_results(const struct subgroups *s, const val *sum);
/* ---- lower_dot_warp_specialized.c ---- */
void dot_pipeline_make(struct subgroups *s);         /* makes the pipeline and its barriers */
/* The whole block: s->t is its thread. */
void dot_emit_warp_specialized(struct subgroups *s);

#endif
