/* Lowering a dot: what the schedules of processors and of GPUs share. */
#ifndef KILN_LOWER_DOT_H
#define KILN_LOWER_DOT_H
#include "lower.h"

/* rows of a register tile, steps of k in a visit of the loop over it */
enum { MAX_ROWS = 32, UNROLL_K = 4, LINE_BYTES = 64 };

struct dot {
    struct lowering *w;
    const struct node *n;
    unsigned dtype;                              /* of products, sums and panels; in pairs a panel's is u32 */
    int64_t unit;                                /* elements of k multiplied at once: 2 in pairs (attr.dot.pairs) */
    struct shape a, b, out;
    struct shape batch, free_a, free_b, con;     /* lengths of the four kinds of dimension */
    struct dot_dims size;
    int64_t kblock, blocks;
    int64_t mr, nr, mblock;                      /* rows of a tile, columns of a tile, rows of a task */
    int64_t b_step_n, b_step_k, a_step_m, a_step_k; /* see dot_find_steps */
    int64_t element;                             /* bytes of an operand's element */
    /* columns, rows from one multiple of this to the next: b_step_n, a_step_m apart */
    int64_t run, run_m;
    bool rows, squares;                          /* B has neighbours in memory along n, along k: see pack_columns */
    uint32_t square;                             /* lanes of a native vector: what pack_square handles */
    uint32_t panel, partial, tile;               /* scratch lbufs + 1, 0: none */
    bool packs;                                  /* B is copied into the panel, */
    int64_t pack_run, pack_run_k;                /*   in runs of so many columns, steps of k; 0: whole */
    int64_t period_k;                            /* steps of k copied in one go, for which the places of all follow
                                                    from that of the first, as those of a window; 0: each alone */
    enum sched_epilogue when;
    int64_t tile_step;                           /* from one row of the tile's copy to the next */
    val batch_index;
    bool symbolic_m, symbolic_k;                 /* the rows, or the contraction, have a symbol */
    val rows_here;                               /* symbolic_m: rows of the task at hand */
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
/* As dot_factor, of the second operand: column `at` of run `run`, of pack_run columns each. */
val dot_column_of_run(const struct dot *d, val run, val at, val kk, bool alone);
/* As dot_element, of the second operand: column n, step `at` of run `run` of k. */
val dot_step_of_run(const struct dot *d, val n, val run, val at);
/* The vector loop over a tile's columns, of which `cols` exist. */
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
/* The loop over tasks, each a block of mblock rows and one of `columns` tiles or runs, or all tiles of its rows;
 * and the kernel's schedule. */
void dot_tasks(struct dot *d, int64_t columns, dot_task *task, const void *ctx);
/* ---- lower_dot_schedule.c, for processors ---- */
/* How far an operand's neighbours lie apart in memory along the rows or columns and along k: -1 where that is no
 * fixed distance, 0 where the operand is computed rather than loaded.  Where all rows or columns have none, runs of
 * them that have one will do: of columns the longest, if they are neighbours, of rows as many as a tile may have. */
void dot_find_steps(struct dot *d);
void dot_choose_tiles(struct dot *d); /* mr, nr, mblock and square, for d->packs and d->when */
/* Chooses packs and when, with them the tiles, and says squares and rows; after dot_find_steps. */
void dot_choose(struct dot *d);
/* ---- lower_dot_pack.c ---- */
int64_t dot_panel_rows(const struct dot *d); /* rows of the panel, one a unit, those only written included */
/* Copies columns n0 .. n0 + cols of rows k0 .. k0 + kc of B into the panel. */
void dot_pack(const struct dot *d, val n0, int64_t cols, val k0, int64_t kc);
/* ---- lower_dot_bytes.c ---- */
/* Is it a product of bytes for this target's mma?  After dot_find_steps. */
bool dot_bytes(const struct dot *d);
void dot_emit_bytes(struct dot *d); /* after dot_choose_tiles */
/* ---- lower_dot_thin.c ---- */
/* Emits a product of a few rows with a matrix that is read once; false: it is none, for a processor. */
bool dot_emit_thin(struct dot *d);
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
/* Are an operand's neighbours in memory those along the contraction, and not those along the other side? */
bool dot_along_k(const struct dot *d, bool second);
int64_t dot_parts(int64_t length, int64_t part);   /* how many cover it */
bool dot_fits_grid(const struct dot *d, const struct schedule *s); /* are the blocks few enough to be numbered? */
bool dot_occupies(const struct dot *d, const struct schedule *s);  /* and a block for every one the GPU runs at once? */
/* A block of ROWS x COLS tiles of MR x NR results each, that goes by STEP elements of the contraction; a tile is
 * `subgroup` threads'. */
struct dot_shape { uint16_t mr, nr, rows, cols, step; };
struct schedule dot_schedule(const struct dot *d, const struct dot_shape *x, unsigned subgroup);
bool dot_fills(const struct dot *d, const struct schedule *s);     /* has most of a block something to do? */
/* Are the operand's elements *free of its own dimension, one of `side` in a row, and *at of the contraction there?  0:
 * all are.  beyond: the contraction's may not be.  Bounds both. */
val dot_there(const struct dot *d, bool second, int64_t side, bool beyond, val free, val at);
/* An if around what stores result (m, n), where a block may reach beyond the last; 0: it does not.  Bounds both. */
val dot_if_there(const struct dot *d, const struct schedule *s, val m, val n);

/* ---- gpu/lower_gpu_thin.c ---- */
/* Emits a product of a few rows on a GPU; false: it is none. */
bool gpu_thin(struct dot *d);
/* ---- lower_dot_matrix.c ---- */
/* Is the product one for the target's matrix units?  *s: its schedule. */
bool dot_matrix(const struct dot *d, struct schedule *s);
void dot_emit_matrix(struct dot *d, const struct schedule *s);

/* ---- lower_dot_gpu.c ---- */
/* Is the product one for blocks of threads on this target?  *s: their schedule. */
bool dot_blocks(const struct dot *d, struct schedule *s);
void dot_emit_blocks(struct dot *d, const struct schedule *s);

#endif
