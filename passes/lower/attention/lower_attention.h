/* Lowering attention: what the part of a tile of queries (lower_attention.c, where the schedule is described), that of
 * one query without neighbours (lower_attention_one.c) and the gradient (lower_attention_grad.c) share.
 *
 * Rows of one side are lanes, a tile of them at a time; those of the other are walked.  Of attention and
 * attention_stats queries are the lanes and keys are walked; of a gradient in k and v it is the other way about. */
#ifndef KILN_LOWER_ATTENTION_H
#define KILN_LOWER_ATTENTION_H
#include "passes/lower/lower_schedule.h"
#include <math.h>

enum { Q, K, V, SEEN };
/* MAX_ROWS: R; MAX_SQUARE: lanes of a square that registers transpose; ONE_SQUARES: of keys of one query at a time,
 * whose chains of sums hide each other's latency */
enum { MAX_ROWS = 8, MAX_SQUARE = 8, ONE_SQUARES = 2 };

struct attention {
    struct lowering *w;
    const struct node *n;
    struct shape lead, out;
    ref stats;                            /* attention_stats, a result beside attention or the only one; NIL: none */
    int64_t l, m, d, e, block;            /* l, m: rows that are lanes, and that are walked; may have symbols */
    int64_t columns[3];                   /* of operands */
    unsigned seen_in;                     /* the operand that says what queries see */
    unsigned own;                         /* the operand whose rows are lanes: Q, but of a gradient in k and v K */
    int64_t width, rows;                  /* W, R */
    unsigned dtype;                       /* of scores, weights and sums */
    bool causal, mask, bounds;
    val coord[KL_MAX_RANK];               /* of the matrix */
    val q0;                               /* the tile's first query */
    uint32_t q, score, total;             /* scratch lbufs: [D][W], [block][W], [E][W] */
    uint32_t most, larger, sum, shrink;   /* [W] */
    uint32_t lo, hi, seen;                /* [W], [W], [block][W] bool */
    uint32_t panel[3];                    /* of k and v: lbuf + 1 of scratch for a block of them, widened; 0: none */
    unsigned index;                       /* dtype of numbers of keys, lane by lane */
    int64_t one_lanes;                    /* of one query: lanes for elements of v; 0: queries are lanes there, too */
    int64_t keys;                         /* of one query: keys that are lanes */
    int64_t square;                       /* lanes of a native vector: what registers transpose; 0: not worth it */
    bool widen;                           /* half floats that are walked are widened into a panel */
    val first, end;                       /* the keys that one of the tile's queries sees */
    /* the block's first key, and those of the block that one sees, by number in it */
    val k0, from, until;
};

static inline bool ranges(const struct attention *a) { return a->causal || a->bounds; }
static inline bool partial(const struct attention *a) { return a->mask || ranges(a); }

/* The number of rows that are lanes, and of those that are walked. */
static inline val own_rows(const struct attention *a) { return ix_size(a->w->k, a->l); }
static inline val walked_rows(const struct attention *a) { return ix_size(a->w->k, a->m); }
/* Is the number a multiple of `by`, whatever the symbols' values are? */
static inline bool rows_divide(const struct attention *a, int64_t rows, int64_t by)
{
    return ix_symbolic(a->w->k, rows) ? size_divides(a->w->k, rows, by) : rows % by == 0;
}
/* May there be fewer rows of the first number than of the second? */
static inline bool may_be_fewer(const struct attention *a, int64_t rows, int64_t others)
{
    return rows != others && (rows < others || ix_symbolic(a->w->k, rows) || ix_symbolic(a->w->k, others));
}

static inline val of(const struct attention *a, double v) { return k_const(a->w->k, a->dtype, v); }
static inline val smaller(struct kernel *k, val a, val b)
{
    return k_prim(k, P_SELECT, k_prim(k, P_LT, a, b, 0), a, b);
}
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
static inline val first(const struct attention *a) { return k_int(a->w->k, 0); } /* of scratch with one row */

/* Where scratch holds the scores, the keys and the values of the block's key number j: behind those of the R keys
 * before it, which attention_keys says the need of. */
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
/* The element of operand `which` at (row, column) of the matrix, as it is computed with; */
val attention_element(const struct attention *a, unsigned which, val row, val column);
/* of the block's key or value number j, element `column`. */
val attention_in_block(const struct attention *a, unsigned which, val j, val column);
/* R keys from number j0 of the block on, which may be more than any query sees.  There are none behind the last of all:
 * the last R are taken instead, again, whose scores are then stored again, at most R before the block's first.  Returns
 * j0. */
val attention_keys(const struct attention *a, val j0, val *key);
bool attention_steps_back(const struct attention *a);            /* does it take the last R in that case? */
val attention_widen_from(const struct attention *a, val whole);  /* the first row that it takes of those from `whole` */

/* This lane's row; the last tile's lanes may have none, which w->pred says. */
val attention_row(const struct attention *a);
/* What the record says, and a->index. */
void attention_follow(struct attention *a, const struct schedule *s);
struct attention_facts attention_facts_of(const struct attention *a, bool gradient, bool results);
uint32_t attention_scratch(const struct attention *a, unsigned dtype, int64_t rows); /* [rows][W] */
/* Panels for what is walked of operand `which`, if its elements are half floats. */
void attention_make_panel(struct attention *a, unsigned which);
void attention_bring_rows(const struct attention *a);           /* operand `own`, transposed, into a->q */
void attention_widen(const struct attention *a, unsigned which, val lo, val hi); /* rows of the block, into the panel */
/* acc[r] += the products of columns c0 .. c1 of operand `which`, R rows walked, with those of the lanes; within a
 * vector loop. */
void attention_products(const struct attention *a, unsigned which, const val *row, int64_t c0, int64_t c1, val *acc);
/* Within a vector loop: sums over the block of weight * column c0 + r of operand `which`, for r < rows. */
void attention_weighed(const struct attention *a, unsigned which, uint32_t weight, val c0, int64_t rows, val *sum);
/* What queries that are lanes see: their ranges into scratch, then a->first and a->end, what one of them sees. */
void attention_store_ranges(const struct attention *a);
void attention_tile_range(struct attention *a);
/* Does this lane's query see key number j of the block? */
val attention_sees(const struct attention *a, val j);
/* Stores `columns` columns of a->total from `from` on as those of the result: over a->sum where `divides`, else times
 * `factor`. */
void attention_store_tile(const struct attention *a, int64_t from, int64_t columns, bool divides, double factor);
/* An element of result r, of shape s. */
void attention_store(const struct attention *a, ref r, const struct shape *s, val i, val c, val x);

/* The iterations of `matrices` matrices, each with its tiles of rows that are lanes, and what an iteration has. */
int64_t attention_extent(const struct attention *a, int64_t matrices);
void attention_begin(struct attention *a, int64_t extent, struct tasks *t); /* a->coord and a->q0 */

/* ---- lower_attention_grad.c ---- */
void lower_attention_grad_group(struct lowering *w);

/* ---- lower_attention_one.c ---- of a query without neighbours */
/* R keys from number j0 of the block on */
void attention_score_keys(const struct attention *a, val j0);
void attention_weigh_keys(const struct attention *a);                          /* the block's scores */
/* elements c0 .. of the values, weighed */
void attention_value_lanes(const struct attention *a, val c0, int64_t columns);

#endif
