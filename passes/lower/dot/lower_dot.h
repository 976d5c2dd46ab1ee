/* Lowering of dot: what the kinds of products on processors and on GPUs share. */
#ifndef KILN_LOWER_DOT_H
#define KILN_LOWER_DOT_H
#include "passes/lower/lower_schedule.h"

/* MAX_ROWS: the largest number of rows of a register tile.  UNROLL_K: steps of k in one iteration of the loop over
 * k. */
enum { MAX_ROWS = 32, UNROLL_K = 4 };
enum { MANY_REGISTERS = 32 }; /* of vectors, as AVX-512 has */
enum { FEW_ROWS = 6 }; /* tiles of fewer rows reuse each vector of B too little */
/* Products of few rows: the largest number of rows of the first operand, and of it where the matrix's columns are
 * adjacent in memory; of streams of the matrix then. */
enum { THIN_ROWS = 16, THIN_STRIP_ROWS = 8, THIN_STREAMS = 8 };
/* Elements of k that an instruction for bytes multiplies at once. */
enum { DOT_GROUP = 4 };
/* DOT_MAX_PARTS: blocks of threads: the largest number of elements of an operand that a thread loads in a step.  The
 * others are about matrix units.  DOT_MAX_SLABS: the largest number of slabs of a tile.  DOT_PAD: padding of a slab's
 * row, in elements.  DOT_VECTOR: halves of a vector that is copied at once. */
enum { DOT_MAX_PARTS = 32, DOT_MAX_SLABS = 8, DOT_PAD = 8, DOT_VECTOR = 8 };
/* Elements of such a vector, and padding of a factor's row in shared memory, in elements: 16 bytes. */
static inline int64_t dot_vector(unsigned dtype) { return 2 * DOT_VECTOR / (int64_t)dtype_size(dtype); }
enum { DOT_TOGETHER = 8 }; /* adjacent results whose parts' sums a thread adds */
enum { DOT_BLOCK_PAD = 4 }; /* blocks of threads: padding of a row in shared memory, in elements */

/* Products of a few rows: how the matrix lies in memory, or the array from which its elements are computed. */
struct skinny_order {
    bool along_k;            /* the matrix is contiguous along the contraction */
    ref source;              /* the array whose elements are the matrix's, or from which each of them is computed,
                                each element being used for exactly `packed` elements of the matrix; NIL: there is no
                                such array */
    int64_t element;         /* size of an element of the source in bytes */
    int64_t side;            /* of along_k: elements of the source from one column to the next */
    int64_t packed;          /* 1, or 2 if each byte of the source has two elements of the matrix, which are adjacent
                                in the direction in which the matrix is contiguous: integers of 4 bits */
};

/* Direct convolutions: `outer` images of `rows` by `columns` windows.  Columns are lanes, free axes of the second
 * operand; or, of a gradient in weights, in_batch: the last axis of the batch, and images and rows are contracted.
 * Along an axis with zeros between the images' elements, only each `step`-th window begins at one. */
struct dot_direct {
    bool in_batch;
    int64_t step_rows, step_columns;
    int64_t outer, rows, columns;
    int64_t window;                              /* elements of a window in one channel; they divide the contraction */
    int64_t kernel_columns;                      /* of a row, if adjacent columns have adjacent windows; else 1 */
};

struct dot {
    struct lowering *w;
    const struct node *n;
    unsigned dtype;                              /* of products, sums and panels; in bf16 dot2 order, the
                                                    panel's dtype is u32 */
    int64_t unit;                                /* elements of k that are multiplied at once: 2 for pairs and in
                                                    even_odd order (attr.dot.order), else 1 */
    bool even_odd;                               /* the sums are in that order */
    struct shape a, b, out;
    struct shape batch, free_a, free_b, con;     /* lengths of the four kinds of dimensions */
    struct dot_dims size;
    struct { struct size batch, m, n, k; } len;  /* the same as sizes: what symbols are in them */
    int64_t kblock, blocks;
    int64_t element;                             /* bytes of an operand's element */
    /* how the operands lie in memory: see dot_find_steps */
    bool has_steps;                              /* they have been found */
    struct skinny_order order;                   /* of the second operand; set by dot_skinny_fits */
    struct image_windows windows;                /* set by windows_facts, which found them if has_windows */
    bool sought_windows, has_windows;
    struct dot_direct direct;                    /* set by dot_direct_fits */
    int64_t b_step_n, b_step_k, a_step_m, a_step_k;
    int64_t run_m, whole_run, columns_run, steps_run, panels;
    int64_t period_k;                            /* the number of steps of k that are copied in one iteration,
                                                    because their addresses are fixed distances from the first step's
                                                    address, as in a window of a convolution; 0: steps are copied one
                                                    by one */
    /* the fields of the schedule record that several kinds of kernels have */
    int64_t mr, nr, mblock;                      /* rows of a tile, columns of a tile, rows of a task */
    int64_t run;                                 /* columns of a run, a number without symbols; no tile crosses the end
                                                    of a run; n: there are no runs */
    uint32_t panel, partial, tile;               /* numbers of scratch lbufs + 1; 0: none */
    int64_t lanes;                               /* lanes of a vector: see dot_begin_columns */
    enum sched_epilogue when;
    uint32_t square;                             /* of a panel: lanes of vectors that are copied, if not whole rows */
    enum sched_pack pack_by;
    int64_t tile_step;                           /* elements from one row of the tile's copy to the next */
    val batch_index;
    bool symbolic_m, symbolic_n, symbolic_k;     /* whether the number of rows, of columns, or of steps of k has a
                                                    symbol */
    bool symbolic;                               /* any of these or the batch has a symbol */
    val rows_here, columns_here;                 /* with symbolic_m, symbolic_n: the rows and the columns of the
                                                    current task */
    ref permute;                                 /* NIL, or a permute node in whose order the elements of members
                                                    in the set `permuted` are */
    uint64_t permuted;
    bool whole_rows;                             /* a task has all columns of its rows, one tile after the other */
    int64_t columns;                             /* size.n, or up to a vector's end, if all arrays of the epilogue have
                                                    memory for these (lower_pitch.c) */
};

/* The sum over blocks of a product of integers (lower_dot_scaled.c). */
enum { MAX_SOURCES = 3 };
struct block_dot {
    struct dot d;                       /* the inner product, whose batch are the blocks */
    ref sum;                            /* the reduce that adds the blocks */
    struct skinny_order order;          /* of the second operand; set by dot_scaled_fits */
    bool has_order;                     /* instructions for bytes can read the second operand */
    bool words;                         /* words of four bytes of adjacent columns are adjacent in memory, not those
                                           of a column */
    ref source[MAX_SOURCES];            /* of words: the arrays in that order, each with bits of the elements */
    unsigned sources;
    bool apart;                         /* a byte's elements are DOT_GROUP elements apart, not adjacent */
    bool flip;                          /* both operands are signed, or unsigned; the second's bytes are changed by
                                           `offset` to the other kind */
    int64_t offset;                     /* 128, by inverting upper bits; or what is subtracted from unsigned bytes */
    unsigned ta, tb;                    /* the operands' dtypes */
    /* the record, and how the reduce adds blocks */
    bool bytes;
    int64_t strip, chunk, chunks;       /* blocks of a chunk of the reduce's order */
    int64_t together;                   /* blocks whose sums of integers are scaled together */
    uint32_t rows, sums, totals, parts; /* lbufs: rows of the first operand; sums of integers; of scaled sums those of
                                           all chunks before, and of this chunk (with one chunk: totals) */
    uint32_t excess;                    /* lbuf: minus what `flip` adds to a row's sum of each block, four times each */
};
/* The unsigned bytes from which v, signed bytes, is computed by subtracting *offset; 0: it is computed otherwise. */
val dot_scaled_unsigned(const struct kernel *k, val v, int64_t *offset);

/* ---- lower_dot.c ---- */
/* Sets what is known of product r, a member of the group.  false: a symbol makes it impossible, w->k->err */
bool dot_begin(struct dot *d, struct lowering *w, ref r);
/* Returns the element of an operand at (batch_index, free index i, contracted index k), in the dtype in which it is
 * stored. */
val dot_stored_element(const struct dot *d, bool second, val i, val kk);
/* The same, in the dtype in which it is multiplied. */
val dot_element(const struct dot *d, bool second, val i, val kk);
/* Prefetches what the epilogue of a result reads and writes, a cache line of each. */
void dot_prefetch_result(const struct dot *d, val m, val n);
/* Like dot_element; for pairs it is elements kk and kk + 1 in one value, as DOT2 takes them.  alone: element kk + 1
 * does not exist. */
val dot_factor(const struct dot *d, bool second, val i, val kk, bool alone);
/* Like dot_factor for the second operand, at column `at` of run number `run`; each run has columns_run columns. */
val dot_column_of_run(const struct dot *d, val run, val at, val kk, bool alone);
/* Like dot_element, at row or column i and step `at` of run number `run` of k; each run has `length` steps, those of
 * the last axes. */
val dot_step_of_run(const struct dot *d, bool second, val i, int64_t length, val run, val at);
/* The k-blocks of a contraction that has a symbol, if it may have several: their number, at least 1, and the length of
 * all but the last.  They are those that pass numerics chooses for the symbol's value: equal blocks of at most
 * DOT_BLOCK products, whose length is rounded up to a multiple of DOT_BLOCK_MULTIPLE. */
void dot_symbolic_blocks(const struct dot *d, val *blocks, val *length);
/* Begins the vector loop over a tile's columns, of which `cols` exist.  The loop has as many vectors of d->lanes
 * lanes as contain an existing column. */
void dot_begin_columns(const struct dot *d, int64_t cols);
void dot_end_columns(const struct dot *d);
/* Returns acc + a * b; floats are rounded once.  For u32, which holds pairs of bf16, it is DOT2. */
val dot_multiply_add(struct kernel *k, val a, val b, val acc);
/* dot_epilogue for the rows and columns of a tile, whose products are in scratch lbuf d->tile - 1, with d->tile_step
 * elements from row to row. */
void dot_epilogue_rows(const struct dot *d, val m0, int64_t rows, val n0, int64_t cols);
/* Emits the work of one task: `rows` rows from first_row on and `cols` columns from n0 on. */
typedef void dot_task(const struct dot *d, const void *ctx, val first_row, int64_t rows, val n0, int64_t cols);
/* Emits the loop over tasks.  A task is a block of mblock rows and one of `columns` tiles or runs of columns, or all
 * columns of its rows. */
void dot_tasks(struct dot *d, int64_t columns, dot_task *task, const void *ctx);
/* ---- lower_dot_epilogue.c ---- */
/* The coordinates of the product at (batch_index, row m, column n). */
void dot_result_coord(const struct dot *d, val m, val n, val *coord);
/* Finds the permute through which one member reads another, and the members whose elements are in the order of its
 * result: those that read through it, and those that read these members.  The members from which the product's operand
 * is computed have no such order: each of their elements is computed where it is multiplied. */
void dot_find_permute(struct dot *d);
int64_t dot_epilogue_instructions(const struct dot *d); /* primitives for a result, without those of indices */
void dot_find_columns(struct dot *d); /* sets d->columns; after dot_find_permute */
/* The coordinates in the result of permute r of the product's element at coord. */
void dot_permuted_coord(const struct dot *d, ref r, const val *coord, val *to);
/* Stores all results of the group that are computed from the product at (batch_index, row m, column n). */
void dot_epilogue(const struct dot *d, val m, val n, val result);
/* The same for `count` results.  All are computed before the first is stored: then adjacent elements of the arrays that
 * the group reads and stores are accessed at once, also if a result may replace an array that is read. */
struct dot_at { val m, n, sum; };
void dot_epilogue_together(const struct dot *d, const struct dot_at *at, int64_t count);
/* ---- lower_dot_operands.c ---- */
/* Unless it was called before, finds the distance in memory, in elements, between adjacent elements along an operand's
 * rows or columns (a_step_m,
 * b_step_n) and along k (a_step_k, b_step_k).  It is -1 if there is no fixed distance, and 0 if the operand is
 * computed rather than loaded.  If there is no fixed distance:
 *   run_m        the number of rows of A within which the distance is fixed: a divisor of all rows; else all rows
 *   whole_run    the longest run of columns of B that are adjacent in memory; 0: there is none
 *   columns_run  the length of runs of columns that are at most MAX_STEP elements apart, steps_run that of steps of k;
 *                0: there are none
 *   panels       the number of columns of B in each of its panels, in which columns are adjacent in memory and the last
 *                of which may have fewer, as weights are kept that are packed once; 0: there are no panels */
void dot_find_steps(struct dot *d);
/* Is the operand contiguous along the contraction, and not along its other dimension? */
bool dot_along_k(const struct dot *d, bool second);
/* The same of pairs of elements that share one in memory, as integers of 4 bits do. */
bool dot_pairs_along_k(const struct dot *d, bool second);
/* Are the operand's elements adjacent in memory for runs of `run` steps of the contraction, and not for runs of as many
 * rows or columns? */
bool dot_along_k_in_runs(const struct dot *d, bool second, int64_t run);
/* Does index `at` move by one with j, from a multiple of `vector` on? */
bool dot_is_vector(struct kernel *k, val at, val j, int64_t vector);
/* Is the operand an array of the dtype in which it is multiplied, of vectors of dot_vector adjacent elements, for which
 * memory exists as a whole?  The second: are they along the contraction? */
bool dot_has_vectors(const struct dot *d, bool second);
bool dot_vectors_along_k(const struct dot *d, bool second);
/* ---- lower_dot_schedule.c, lower_dot_gpu_schedule.c ---- */
bool dot_kblock_legal(const struct dot *d, const struct schedule *s);
bool dot_tile_legal(const struct dot *d, const struct schedule *s); /* tile, width and kblock of products by tiles */
/* The number of tiles or runs of columns, if a task has one of them; 1: a task has all columns of its rows. */
int64_t dot_task_columns(const struct dot *d, const struct schedule *s);
/* ---- lower_dot_pack.c ---- */
int64_t dot_panel_rows(const struct dot *d); /* number of rows of the panel, each for `unit` steps of k; it includes
                                                rows that are written but not read */
/* Copies columns n0 to n0 + cols - 1 of `length` rows of B, from k0 on, into the panel.  kc: their number, or the
 * greatest one if the kernel computes it (PACK_STEP_RUNS only). */
void dot_pack(const struct dot *d, val n0, int64_t cols, val k0, val length, int64_t kc);
/* ---- lower_dot_skinny.c ---- products of a few rows with a matrix that is read once */
bool dot_skinny_order(const struct dot *d, struct skinny_order *o);     /* false: the matrix's elements are not at fixed
                                                                       distances */
/* ---- lower_dot_tile.c ---- */
val dot_splat(struct kernel *k, val x, unsigned rows, unsigned cols);
/* Loads a tile that begins at index; its rows or columns are `stride` elements apart.  mask: the elements that
 * exist; 0: all. */
val dot_load(struct kernel *k, uint32_t buf, val index, enum tile_order order, val stride, int64_t rows, int64_t cols,
             val mask);
void dot_store(struct kernel *k, uint32_t buf, val index, enum tile_order order, val stride, val value);
val dot_mma(struct kernel *k, enum mma kind, val a, val b, val sum);
val dot_carry(struct kernel *k, val init);
val dot_out(struct kernel *k, val carry);
void dot_barrier(struct kernel *k);
int64_t dot_parts(int64_t length, int64_t part);   /* length / part, rounded up */
val dot_parts_now(const struct dot *d, struct size length, int64_t part); /* the same for the symbols' values */
/* A contraction in parts of `split` elements (0: it is whole), each of which has blocks of its own: their number. */
int64_t dot_splits(const struct dot *d, uint32_t split);
/* The index of a part's sum of result (m, n) in the workspace of the sums, which has dimensions part, batch, row,
 * column. */
val dot_part_index(const struct dot *d, val part, val m, val n);
/* What sums of parts start from: in the graph's order, which starts with the first part, -0, which added to any number
 * gives that number, 0 and -0 included. */
val dot_sum_start(struct kernel *k, unsigned dtype);
/* Emits the second phase of such a product: each thread adds the parts' sums of a few adjacent results, in order, and
 * stores the group's results computed from them by `results`; of many parts of few results, several threads add some
 * and exchange their sums in lbuf `shared`, which has their dtype.  subgroup: of the threads, 0: any. */
typedef void dot_results(const struct dot *d, const void *ctx, struct dot_at *at, int64_t count);
void dot_add_parts(struct dot *d, uint32_t sums, uint32_t shared, int64_t splits, int64_t threads,
                   uint16_t subgroup, dot_results *results, const void *ctx);
/* Opens a GPU's grid of blocks: sets d->batch_index, the first row and column of the block, and which of `splits` parts
 * of the contraction it has. */
void dot_open_blocks(struct dot *d, const struct schedule *s, int64_t splits, struct tasks *t, val *split, val *i,
                     val *j);
/* Notes that v is below size where its element exists.  Not of a variable that other indices are made of, such as a
 * thread's number: it would be taken to be below size in these, too, where no mask says so. */
void dot_bound_index(struct kernel *k, val v, int64_t size);
/* Returns a mask: is index `free` of the operand's own dimension, which is divided into blocks of `side`, below its
 * length, and index `at` of the contraction below k?  Returns 0 if all elements exist.  beyond: `at` may be k or
 * more.  Sets the bounds of both indices to those of existing elements. */
val dot_there(const struct dot *d, bool second, int64_t side, bool beyond, val free, val at);
/* Opens an `if` around the store of result (m, n) if a block may reach beyond the last row or column, and returns
 * it; 0: there is no `if`.  Sets the bounds of m and n. */
val dot_if_there(const struct dot *d, const struct schedule *s, val m, val n);

/* ---- lower_dot_order.c ---- */
/* How an operand is read in vectors: along the contraction or along its rows or columns; from a workspace if channels
 * is not 0, into which the array of `count` elements, [.., channels, inner], is packed as [.., inner, channels]. */
struct dot_packing { bool along_k; int64_t channels, inner, count; };
/* Indices of rows, columns and contraction in which both operands consist of vectors of adjacent elements: each counts
 * window positions first, then channels.  positions: their number; 1: the order of the graph. */
struct dot_order { int64_t positions[3]; struct dot_packing packing[2]; };
bool dot_order_find(const struct dot *d, struct dot_order *o); /* false: there is no such order */
val dot_order_row(const struct dot *d, const struct dot_order *o, val m);    /* in the graph's order */
val dot_order_column(const struct dot *d, const struct dot_order *o, val n);
/* The index of an operand's element in its array or, if it is packed, in its workspace.  Sets *buf to the array; of a
 * packed operand *buf stays as it is. */
val dot_order_element(const struct dot *d, const struct dot_order *o, bool second, val free, val at, uint32_t *buf);
/* The phase that packs an operand, of blocks of `threads` threads; `to` is its workspace. */
void dot_order_pack(struct dot *d, const struct dot_packing *p, bool second, uint32_t to, int64_t threads,
                    uint16_t subgroup);

/* ---- lower_dot_matrix.c ---- */
/* Columns of a slab that belong to one tile.  They are limited because a slab must fit into shared memory. */
int64_t dot_matrix_part(const struct schedule *s);
/* The blocks that a processor is to run at once if warps are specialized: while one computes results, the other one
 * multiplies. */
int64_t dot_matrix_blocks(const struct schedule *s);
/* Has the slab the memory of the stages? */
bool dot_matrix_slab_is_over(const struct schedule *s);
int64_t dot_matrix_producer(const struct schedule *s); /* threads; 0: warps are not specialized */
/* Is the operand an array from which each thread of the record's block can copy whole vectors?  o: the order of a
 * record that is `reordered`, else NULL. */
bool dot_matrix_copies(const struct dot *d, const struct schedule *s, const struct dot_order *o, bool second);

/* ---- lower_dot_view.c ---- */
/* An operand as a view for copies of panels: matrices of `inner` columns, which are adjacent in memory, and rows.  An
 * index of more columns or rows goes on in another matrix. */
struct dot_view {
    struct lbuf b;          /* BUF_VIEW, without its buffer */
    bool along_k;           /* are its columns along the contraction? */
    int64_t inner[2];       /* columns and rows of a matrix */
    int64_t matrices[3];    /* that lie between what is adjacent: in quotients of columns, of rows, and in batch */
};
/* Finds the view from which a record copies panels of an operand; false: there is none. */
bool dot_view_find(const struct dot *d, const struct schedule *s, bool second, struct dot_view *v);

/* ---- gpu/lower_gpu_skinny.c ---- a product of a few rows on a GPU */
/* GPU_SKINNY_TOGETHER: elements of the contraction whose loads a lane issues together, at most. */
enum { GPU_FEW_ROWS = 16, GPU_SKINNY_TOGETHER = 8 };
int64_t gpu_skinny_vector_width(const struct dot *d, bool along_k); /* number of adjacent elements that a lane loads at
                                                                   once */

#endif
