/* Lowering a dot: what the schedules of processors and of GPUs share. */
#ifndef KILN_LOWER_DOT_H
#define KILN_LOWER_DOT_H
#include "passes/lower/lower.h"

/* rows of a register tile, steps of k in a visit of the loop over it */
enum { MAX_ROWS = 32, UNROLL_K = 4 };
enum { FEW_ROWS = 6 }; /* of a tile that shares B's vectors too little */
/* Of products of few rows: rows of the first operand, streams of the matrix. */
enum { THIN_ROWS = 8, THIN_STREAMS = 8 };
/* Elements of k that an instruction for bytes multiplies at once. */
enum { DOT_GROUP = 4 };
/* Of blocks of threads: elements of an operand that a thread brings in a step.  Of matrix units: slabs of a tile;
 * elements of a row in shared memory beyond those of the operand, and of a vector that is copied. */
enum { DOT_MAX_PARTS = 32, DOT_MAX_SLABS = 8, DOT_PAD = 8, DOT_VECTOR = 8 };
enum { DOT_BLOCK_PAD = 4 }; /* of blocks of threads: elements of a row in shared memory beyond those of the block */

struct dot {
    struct lowering *w;
    const struct node *n;
    unsigned dtype;                              /* of products, sums and panels; in pairs a panel's is u32 */
    int64_t unit;                                /* elements of k multiplied at once: 2 in pairs (attr.dot.pairs) */
    struct shape a, b, out;
    struct shape batch, free_a, free_b, con;     /* lengths of the four kinds of dimension */
    struct dot_dims size;
    int64_t kblock, blocks;
    int64_t element;                             /* bytes of an operand's element */
    /* how the operands lie in memory: see dot_find_steps */
    int64_t b_step_n, b_step_k, a_step_m, a_step_k;
    int64_t run_m, whole_run, columns_run, steps_run;
    int64_t period_k;                            /* steps of k copied in one go, for which the places of all follow
                                                    from that of the first, as those of a window; 0: each alone */
    /* what the record says, as far as kinds of kernels share it */
    int64_t mr, nr, mblock;                      /* rows of a tile, columns of a tile, rows of a task */
    int64_t run;                                 /* columns of a run that no tile crosses; n: there are no runs */
    uint32_t panel, partial, tile;               /* scratch lbufs + 1, 0: none */
    int64_t lanes;                               /* of a vector: see dot_begin_columns */
    enum sched_epilogue when;
    int64_t tile_step;                           /* from one row of the tile's copy to the next */
    val batch_index;
    bool symbolic_m, symbolic_n, symbolic_k;     /* the rows, the columns, the contraction have a symbol */
    bool symbolic;                               /* any of these or the batch */
    val rows_here, columns_here;                 /* symbolic_m, symbolic_n: those of the task at hand */
    ref permute;                                 /* NIL, or what has the order of the members with a bit here */
    uint64_t permuted;
};

/* ---- lower_dot.c ---- */
/* The element of an operand at (batch_index, free index i, contracted index k), as it is stored; */
val dot_stored_element(const struct dot *d, bool second, val i, val kk);
/* as it is multiplied. */
val dot_element(const struct dot *d, bool second, val i, val kk);
/* The same, or in pairs those of kk and kk + 1 as DOT2 takes them; alone: there is no kk + 1. */
val dot_factor(const struct dot *d, bool second, val i, val kk, bool alone);
/* As dot_factor, of the second operand: column `at` of run `run`, of columns_run columns each. */
val dot_column_of_run(const struct dot *d, val run, val at, val kk, bool alone);
/* As dot_element, of the second operand: column n, step `at` of run `run` of k, of steps_run steps each. */
val dot_step_of_run(const struct dot *d, val n, val run, val at);
/* The vector loop over a tile's columns, of which `cols` exist: of vectors of d->lanes as many as have one. */
void dot_begin_columns(const struct dot *d, int64_t cols);
void dot_end_columns(const struct dot *d);
/* acc + a b, floats rounded once; of u32, which are pairs of bf16, by DOT2 */
val dot_multiply_add(struct kernel *k, val a, val b, val acc);
/* Stores everything made of the result at (batch_index, row m, column n). */
void dot_epilogue(const struct dot *d, val m, val n, val result);
/* The same for rows and columns of a tile, whose results are in scratch lbuf d->tile - 1, rows d->tile_step apart. */
void dot_epilogue_rows(const struct dot *d, val m0, int64_t rows, val n0, int64_t cols);
/* Emits what one task does: rows first_row .., columns n0 .., the numbers of both being known here. */
typedef void dot_task(const struct dot *d, const void *ctx, val first_row, int64_t rows, val n0, int64_t cols);
/* The loop over tasks, each a block of mblock rows and one of `columns` tiles or runs, or all tiles of its rows. */
void dot_tasks(struct dot *d, int64_t columns, dot_task *task, const void *ctx);
/* ---- lower_dot_operands.c ---- */
/* How far an operand's neighbours lie apart in memory along the rows or columns (b_step_n, a_step_m) and along k: -1
 * where that is no fixed distance, 0 where the operand is computed rather than loaded.  Where it is none:
 *   run_m        rows of A for which there is one after all: a number that divides all rows; else all rows
 *   whole_run    the longest run of columns of B that are neighbours; 0: there are none
 *   columns_run  a run of columns that are near each other, steps_run one of steps of k; 0: there are none */
void dot_find_steps(struct dot *d);
/* Are an operand's neighbours in memory those along the contraction, and not those along the other side? */
bool dot_along_k(const struct dot *d, bool second);
/* ---- lower_dot_schedule.c, lower_dot_gpu_schedule.c ---- */
bool choose_dot(struct dot *d, struct schedule *s);
/* Is it for a GPU's blocks of threads?  *done: what choose_dot returns. */
bool choose_dot_gpu(struct dot *d, struct schedule *s, bool *done);
bool dot_kblock_legal(const struct dot *d, const struct schedule *s);
/* Tiles or runs of columns, of which a task has one; 1: a task has all of its rows. */
int64_t dot_task_columns(const struct dot *d, const struct schedule *s);
/* ---- lower_dot_pack.c ---- */
int64_t dot_panel_rows(const struct dot *d); /* rows of the panel, one a unit, those only written included */
/* Copies columns n0 .. n0 + cols of rows k0 .. k0 + kc of B into the panel. */
void dot_pack(const struct dot *d, val n0, int64_t cols, val k0, int64_t kc);
/* ---- lower_dot_bytes.c ---- */
void dot_emit_bytes(struct dot *d, const struct schedule *s);
/* ---- lower_dot_thin.c ---- products of a few rows with a matrix that is read once */
/* How the matrix lies in memory, or what it is computed from element by element. */
struct thin_order {
    bool along_k;            /* its neighbours are those along the contraction */
    ref source;              /* whose elements it is, or is computed from, one each and that one once; NIL: none is */
    int64_t element;         /* bytes of one of them */
};
bool dot_thin_order(const struct dot *d, struct thin_order *o);     /* false: not at fixed distances */
void dot_emit_thin(struct dot *d, const struct schedule *s);
/* ---- lower_dot_tile.c ---- */
val dot_splat(struct kernel *k, val x, unsigned rows, unsigned cols);
/* A tile from index on, its rows or columns `stride` apart.  mask: which of the elements exist; 0: all. */
val dot_load(struct kernel *k, uint32_t buf, val index, enum tile_order order, val stride, int64_t rows, int64_t cols,
             val mask);
void dot_store(struct kernel *k, uint32_t buf, val index, enum tile_order order, val stride, val value);
val dot_mma(struct kernel *k, enum mma kind, val a, val b, val sum);
val dot_shaped(struct kernel *k, val v, val like); /* v, made of tiles of this shape */
val dot_carry(struct kernel *k, val init);
val dot_out(struct kernel *k, val carry);
void dot_meet(struct kernel *k);                   /* a barrier */
int64_t dot_parts(int64_t length, int64_t part);   /* how many cover it */
/* Are the operand's elements *free of its own dimension, one of `side` in a row, and *at of the contraction there?  0:
 * all are.  beyond: the contraction's may not be.  Bounds both. */
val dot_there(const struct dot *d, bool second, int64_t side, bool beyond, val free, val at);
/* An if around what stores result (m, n), where a block may reach beyond the last; 0: it does not.  Bounds both. */
val dot_if_there(const struct dot *d, const struct schedule *s, val m, val n);

/* ---- lower_dot_matrix.c ---- */
/* Columns of a slab that are of one tile: a slab is as large as shared memory has room for. */
int64_t dot_matrix_part(const struct schedule *s);
/* Is the operand an array of which each thread of the record's block can copy whole vectors? */
bool dot_matrix_copies(const struct dot *d, const struct schedule *s, bool second);
void dot_emit_matrix(struct dot *d, const struct schedule *s);

/* ---- gpu/lower_gpu_thin.c ---- a product of a few rows on a GPU */
enum { GPU_FEW_ROWS = 16 };
int64_t gpu_thin_neighbours(const struct dot *d, bool along_k); /* that a lane has in one access */
void gpu_thin(struct dot *d, const struct schedule *s);

/* ---- lower_dot_gpu.c ---- */
void dot_emit_blocks(struct dot *d, const struct schedule *s);

#endif
