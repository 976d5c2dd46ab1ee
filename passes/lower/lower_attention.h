/* Lowering attention: what the part of a tile of queries (lower_attention.c, where the schedule is described) and that
 * of one query without neighbours (lower_attention_one.c) share. */
#ifndef KILN_LOWER_ATTENTION_H
#define KILN_LOWER_ATTENTION_H
#include "lower.h"
#include <math.h>

enum { Q, K, V, SEEN };
/* MAX_ROWS: R; MAX_SQUARE: lanes of a square that registers transpose; ONE_SQUARES: of keys of one query at a time,
 * whose chains of sums hide each other's latency */
enum { MAX_ROWS = 8, MAX_SQUARE = 8, ONE_SQUARES = 2 };

struct attention {
    struct lowering *w;
    const struct node *n;
    struct shape lead, out;
    int64_t l, m, d, e, block;
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
    val first, end;                       /* the keys that one of the tile's queries sees */
    /* the block's first key, and those of the block that one sees, by number in it */
    val k0, from, until;
};

static inline bool ranges(const struct attention *a) { return a->causal || a->bounds; }
static inline bool partial(const struct attention *a) { return a->mask || ranges(a); }

static inline val of(const struct attention *a, double v) { return k_const(a->w->k, a->dtype, v); }
static inline val smaller(struct kernel *k, val a, val b)
{
    return k_prim(k, P_SELECT, k_prim(k, P_LT, a, b, 0), a, b);
}
static inline val greater(struct kernel *k, val a, val b)
{
    return k_prim(k, P_SELECT, k_prim(k, P_LT, b, a, 0), a, b);
}

/* Where scratch holds the scores, the keys and the values of the block's key number j: behind those of the R keys
 * before it, which attention_keys says the need of. */
static inline val block_row(const struct attention *a, val j) { return ix_add(a->w->k, j, k_int(a->w->k, a->rows)); }

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

/* ---- lower_attention_one.c ---- of a query without neighbours */
/* R keys from number j0 of the block on */
void attention_score_keys(const struct attention *a, val j0);
void attention_weigh_keys(const struct attention *a);                          /* the block's scores */
/* elements c0 .. of the values, weighed */
void attention_value_lanes(const struct attention *a, val c0, int64_t columns);

#endif
