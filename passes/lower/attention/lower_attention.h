/* Lowering of attention: what the kernels of a tile of queries (lower_attention.c, which describes the method), of
 * a single query (lower_attention_one.c) and of the gradient (lower_attention_grad.c) share.
 *
 * The rows of one side are lanes, a tile of them at a time; a loop iterates over the rows of the other side.  For
 * attention and attention_stats, queries are lanes and keys are iterated over; for the gradient in k and v, keys are
 * lanes and queries are iterated over. */
#ifndef KILN_LOWER_ATTENTION_H
#define KILN_LOWER_ATTENTION_H
#include "passes/lower/lower_schedule.h"
#include <math.h>

enum { Q, K, V, MASK };
/* MAX_ROWS: the largest R.  MAX_SQUARE: lanes of the largest square that is transposed in registers.  ONE_SQUARES:
 * for one query, squares of keys at a time; their independent chains of sums hide the latency of each other */
enum { MAX_ROWS = 8, MAX_SQUARE = 8, ONE_SQUARES = 2 };

struct attention {
    struct lowering *w;
    const struct node *n;
    struct shape lead, out;
    ref stats;                            /* the attention_stats node, which is a result beside attention or the only
                                             one; NIL: none */
    int64_t matrices;                     /* that have results */
    int64_t l, m, d, e, block;            /* l: number of rows that are lanes; m: number of rows that are iterated over;
                                             both may have symbols */
    struct size own_size, iterated_size;    /* l and m as sizes: what symbols are in them */
    int64_t columns[3];                   /* number of columns of each operand */
    unsigned mask_in;                     /* the operand that says which keys a query attends to */
    unsigned own;                         /* the operand whose rows are lanes: Q; K for a gradient in k and v */
    int64_t width, rows;                  /* W, R */
    unsigned dtype;                       /* dtype of scores, weights and sums */
    bool causal, mask, bounds;
    val coord[KL_MAX_RANK];               /* coordinates of the matrix */
    val q0;                               /* the tile's first query */
    uint32_t q, score, total;             /* scratch lbufs with dimensions [D][W], [block][W], [E][W] */
    uint32_t max, larger, sum, shrink;   /* [W] */
    uint32_t lo, hi, unmasked;                /* [W], [W], [block][W] bool */
    uint32_t panel[3];                    /* for k and v: number + 1 of a scratch lbuf for a block of them, widened;
                                             0: none */
    unsigned index;                       /* dtype of key numbers in lanes */
    int64_t one_lanes;                    /* for one query: number of lanes for elements of v; 0: queries are lanes
                                             there, too */
    int64_t keys;                         /* for one query: number of keys that are lanes */
    int64_t square;                       /* lanes of a native vector, if squares of them are transposed in
                                             registers; 0: they are not */
    bool widen;                           /* half floats of the iterated side are widened, and elements that are
                                             computed here are, into a panel */
    val first, end;                       /* the range of keys that a query of the tile attends to */
    /* the block's first key, and the range within the block of keys that a query attends to, counted from k0 */
    val k0, from, until;
};

static inline bool ranges(const struct attention *a) { return a->causal || a->bounds; }
static inline bool partial(const struct attention *a) { return a->mask || ranges(a); }

/* The number of rows that are lanes, and of those that are iterated over. */
static inline val own_rows(const struct attention *a) { return ix_size(a->w->k, a->own_size); }
static inline val iterated_rows(const struct attention *a) { return ix_size(a->w->k, a->iterated_size); }
/* May the first size be less than the second? */
static inline bool may_be_fewer(struct size rows, struct size others)
{
    return !size_equal(rows, others) &&
           (rows.bound < others.bound || !size_is_constant(rows) || !size_is_constant(others));
}

static inline val of(const struct attention *a, double v) { return k_const(a->w->k, a->dtype, v); }
static inline val greater(struct kernel *k, val a, val b)
{
    return k_prim(k, P_SELECT, k_prim(k, P_LT, b, a, 0), a, b);
}

/* Element `row` of this lane in scratch. */
static inline val attention_place(const struct attention *a, val row)
{
    return ix_add(a->w->k, ix_scale(a->w->k, row, a->width), a->w->lane);
}
static inline val attention_get(const struct attention *a, uint32_t buf, val row)
{
    return k_load(a->w->k, buf, attention_place(a, row), 0);
}
static inline void attention_put(const struct attention *a, uint32_t buf, val row, val x)
{
    k_store(a->w->k, buf, attention_place(a, row), k_splat(a->w->k, x), 0);
}
static inline val first(const struct attention *a) { return k_int(a->w->k, 0); } /* the same for scratch with one row */

/* Index in scratch of the scores, the keys and the values of the block's key number j.  They come after those of the
 * R keys before the block; attention_keys says why these are needed. */
static inline val block_row(const struct attention *a, val j) { return ix_add(a->w->k, j, k_int(a->w->k, a->rows)); }

static inline void begin_lanes(const struct attention *a)
{
    struct lowering *w = a->w;
    w->lane = k_loop(w->k, LOOP_VECTOR, k_int(w->k, 0), k_int(w->k, a->width), 1);
}
static inline void end_lanes(const struct attention *a)
{
    k_end(a->w->k, a->w->lane);
    a->w->lane = a->w->pred = 0;
}

/* ---- lower_attention.c ---- */
/* Element (row, column) of operand `which` of the matrix, in the dtype in which it is stored. */
val attention_stored(const struct attention *a, unsigned which, val row, val column);
/* The same, in the dtype of the computation. */
val attention_element(const struct attention *a, unsigned which, val row, val column);
/* Element `column` of key or value number j of the block. */
val attention_in_block(const struct attention *a, unsigned which, val j, val column);
/* Returns j0, the number within the block of the first of R keys.  Some of these keys may be unseen.  If fewer than
 * R keys are left before the last key of all, the last R keys are taken instead: their scores are computed and
 * stored a second time, and begin at most R keys before the block. */
val attention_keys(const struct attention *a, val j0, val *key);
val attention_widen_from(const struct attention *a, val whole);  /* the first row that it takes, at or before row
                                                                    `whole` */

/* Is the operand computed in this kernel, as keys of a quantized cache are? */
bool attention_computes(const struct attention *a, unsigned which);
/* Opens a loop over the columns of the operand, `step` at a time, of which `end` is a multiple. */
val attention_columns(const struct attention *a, unsigned which, int64_t end, int64_t step);
/* Its first column of a step.  Of an operand that is computed it is a multiple of the loop's number, from which
 * quotients by blocks of columns are found (ix_div). */
val attention_column(const struct attention *a, unsigned which, val loop, int64_t step);

/* This lane's row.  The last tile's lanes may have none, which w->pred then masks. */
val attention_row(const struct attention *a);
/* Sets the fields that the schedule record determines, and a->index. */
void attention_follow(struct attention *a, const struct schedule *s);
struct attention_facts attention_facts_of(const struct attention *a, enum gradient_kind gradient, bool results);
uint32_t attention_scratch(const struct attention *a, unsigned dtype, int64_t rows); /* [rows][W] */
/* Makes panels for the iterated rows of operand `which`, if its elements are half floats or computed in the kernel. */
void attention_make_panel(struct attention *a, unsigned which);
void attention_bring_rows(const struct attention *a);           /* loads operand `own`, transposed, into a->q */
void attention_widen(const struct attention *a, unsigned which, val lo, val hi); /* widens rows of the block into the
                                                                                    panel */
/* Within a vector loop: acc[r] += the products of columns c0 .. c1 of R iterated rows of operand `which` with those of
 * the lanes. */
void attention_products(const struct attention *a, unsigned which, const val *row, int64_t c0, int64_t c1, val *acc);
/* Within a vector loop: computes sums over the block of weight * column c0 + r of operand `which`, for r < rows. */
void attention_weighed(const struct attention *a, unsigned which, uint32_t weight, val c0, int64_t rows, val *sum);
/* For queries that are lanes: stores the range of keys that each of them attends to in scratch, and sets a->first and
 * a->end to the range that includes all of these. */
void attention_store_ranges(const struct attention *a);
/* The range of keys that query i attends to, without regard to a mask: keys *low .. *high - 1. */
void attention_range(const struct attention *a, val i, val *low, val *high);
void attention_tile_range(struct attention *a);
/* Is key number j of the block unmasked for this lane's query? */
val attention_unmasked(const struct attention *a, val j);
/* Stores `columns` columns of a->total, from column `from` on, as those of the result: divided by a->sum if
 * `divides`, else multiplied by `factor`. */
void attention_store_tile(const struct attention *a, int64_t from, int64_t columns, bool divides, double factor);
/* An element of result r, whose shape is s. */
void attention_store(const struct attention *a, ref r, const struct shape *s, val i, val c, val x);

/* Emits the loop over tiles of rows that are lanes, for each of `matrices` matrices. */
int64_t attention_extent(const struct attention *a, int64_t matrices);
void attention_begin(struct attention *a, int64_t extent, struct tasks *t); /* sets a->coord and a->q0 */

/* ---- lower_attention_grad.c ---- */
void lower_attention_grad_group(struct lowering *w);

/* ---- lower_attention_matrix.c ---- by a GPU's matrix units */
/* ATTENTION_PAD: padding of a row in shared memory, in elements.  ATTENTION_VECTOR: elements that are copied at once.
 * ATTENTION_DEPTH: a unit multiplies so many elements of the contraction, or a divisor of it; columns of operands are
 * padded to multiples. */
enum { ATTENTION_PAD = 8, ATTENTION_VECTOR = 8, ATTENTION_DEPTH = 16 };
static inline int64_t attention_padded(int64_t columns)
{
    return (columns + ATTENTION_DEPTH - 1) / ATTENTION_DEPTH * ATTENTION_DEPTH;
}
/* Are the operands such arrays of half floats that the matrix units can multiply them?  keys: of a gradient in k and
 * v. */
bool attention_has_matrices(const struct attention *a, bool gradient, bool keys);
/* Can TMA loads take all of these operands? */
bool attention_has_views(const struct attention *a, bool gradient, bool keys);
static inline bool attention_is_of_keys(const struct attention *a) { return a->own != Q; }   /* see `own` */

/* ---- lower_attention_blocks.c ---- by blocks of threads of a GPU, each with a tile of f32 in registers.
 * ATTENTION_BLOCK_TILE: own rows of a thread.  ATTENTION_BLOCK_STEP: rows of a step, a block of the numeric order.
 * ATTENTION_BLOCK_ROWS: arrays with an element for each row in shared memory. */
enum { ATTENTION_BLOCK_TILE = 8, ATTENTION_BLOCK_STEP = 64, ATTENTION_BLOCK_ROWS = 5 };
/* Elements from row to row of an operand of d or e columns in shared memory, for so many threads side by side. */
static inline int64_t attention_block_pitch(int64_t d, int64_t e, int64_t across)
{
    int64_t columns = d > e ? d : e;
    return (columns + 4 * across - 1) / (4 * across) * (4 * across) + 4;
}
bool attention_has_blocks(const struct attention *a);

/* ---- lower_attention_one.c ---- of a single query */
/* for R keys from number j0 of the block on */
void attention_score_keys(const struct attention *a, val j0);
void attention_weigh_keys(const struct attention *a);                          /* for the block's scores */
/* for the weighted elements from c0 on */
void attention_value_lanes(const struct attention *a, val c0, int64_t columns);

#endif
