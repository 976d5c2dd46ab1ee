/* Internal header of attention by matrix units: the state of one block, and what its files share. */
#ifndef KILN_LOWER_ATTENTION_TILES_H
#define KILN_LOWER_ATTENTION_TILES_H
#include "lower_attention.h"
#include "passes/lower/gpu/lower_pipeline.h"

enum { X, Y, STATS };                   /* operands of a gradient: q beside dy, k beside v, statistics */
enum { STAT_MAX, INVERSE, DELTA, STAT_COUNT };
enum { VECTOR = ATTENTION_VECTOR };
enum { MAX_RESIDENT = 128 };               /* columns of own rows whose factors stay in registers */
enum { MAX_FACTORS = MAX_TILE_SIDE / ATTENTION_DEPTH }; /* of a step */
enum { TOTAL, LARGEST, SUM, CARRIED };  /* what attention carries from step to step; a gradient carries two totals */

/* Columns of an operand, in shared memory. */
struct columns {
    unsigned which;                     /* the operand; 0 columns: there is none */
    int64_t from, count, padded, row;   /* row: elements from row to row */
    uint32_t buf;
    int64_t elements;                   /* of a step */
};

struct tiles {
    struct attention *a;
    struct schedule s;
    bool gradient, keys;
    unsigned dtype;                     /* of the operands */
    int64_t m, rows, step, stages;      /* m: rows of a subgroup */
    struct columns own[2], iterated[2];   /* with D and with E columns */
    uint32_t out[2];                    /* lbufs of results, with `out_row` elements from row to row */
    int64_t out_row[2];
    bool async;                         /* the unit reads panels in shared memory */
    int64_t mask_step[2], stat_step;    /* of the fourth operand: elements from query to query, from key to key; of
                                           statistics, from query to query */
    val t, first;                       /* the thread; its subgroup's first row in the block */
    val own_row;                        /* [m x 1] numbers of own rows, i32 */
    val own_there;                      /* [m x 1]; 0: all of them exist */
    val low, high;                      /* [m x 1] for ranges of keys of own rows */
    val stat[STAT_COUNT];               /* [m x 1] for queries that are own rows, folded */
    val resident[MAX_RESIDENT / ATTENTION_DEPTH];
    int64_t vector;                     /* columns of a result that a thread stores at once */
    int64_t out_first[2];               /* the first element of results in their lbufs */
    val k0;                             /* the step's first row */
    struct pipeline pipeline;           /* if warps are specialized (lower_attention_warp_specialized.c): */
    struct pipeline_ring ring[2];       /* of the iterated operands; those of a gradient share the first one */
    uint32_t own_full, pingpong;        /* lbufs of barriers */
    uint32_t staged, staged_full;       /* of a gradient in k and v, lbufs: statistics of the queries of each stage, and
                                           barriers that say that they are there */
    val group;                          /* the number of the thread's subgroup */
};

/* An operand as a view: its coordinates are the column plus `column` times those of the matrix, the row, and `matrix`
 * times those of the matrix. */
struct attention_view {
    struct lbuf view;
    int64_t column[KL_MAX_RANK], matrix[KL_MAX_RANK];
};

static inline val both(struct kernel *k, val x, val y) { return x && y ? k_prim(k, P_AND, x, y, 0) : x ? x : y; }
static inline val attention_scale(const struct tiles *s)
{
    return k_const(s->a->w->k, KL_F32, dtype_value(KL_F64, s->a->n->attr.attention.scale));
}

/* ---- lower_attention_operands.c ---- */
/* Finds the strides of the operands that are not copied. */
bool attention_find_steps(struct tiles *s);
/* Is operand `which` an array of which accesses of `each` adjacent columns can be copied? */
bool attention_has_accesses(const struct attention *a, unsigned which, bool gradient, bool keys, int64_t each);
/* The same of a gradient's statistics: those of a matrix's queries are adjacent, whole accesses of `each`. */
bool attention_has_adjacent_statistics(const struct attention *a, bool keys, int64_t each);
/* The view of operand `which`; false: TMA loads cannot take it. */
bool attention_view(const struct attention *a, unsigned which, bool gradient, bool keys, struct attention_view *v);

/* ---- lower_attention_warp_specialized.c ---- */
void attention_pipeline_make(struct tiles *s);   /* makes the pipeline and its barriers */
/* What the block's thread s->t does. */
void attention_emit_warp_specialized(struct tiles *s);

/* ---- lower_attention_matrix.c ---- */
val tiles_splat(struct kernel *k, double x, int64_t rows, int64_t cols);
/* A batch of asynchronous products ends; waits for all of them but the last `left`. */
void tiles_commit(const struct tiles *s);
void tiles_wait(const struct tiles *s, uint64_t left);
void tiles_prepare(struct tiles *s);            /* what a subgroup needs of its own rows */
void tiles_start(const struct tiles *s, val start[CARRIED]);
/* Sets s->k0.  Which pairs of the step are unmasked (0: all do), and which of its rows exist (0: all do).  masked:
 * may there be others? */
val tiles_enter_step(struct tiles *s, val number, bool masked, val *iterated_there);
/* sum + own rows times iterated rows `which` of a stage, [m x step]. */
val tiles_products(const struct tiles *s, int which, val stage, val sum);
/* Weights [m x step] as factors, a unit's columns each. */
void tiles_factors(const struct tiles *s, val weights, val factor[]);
/* total + weights, as factors, times iterated rows. */
val tiles_weighted(const struct tiles *s, const val factor[], int which, val stage, val total);
void tiles_finish(const struct tiles *s, const val value[CARRIED]); /* stores the results */
/* Stores the block's rows of results `which`, which are in shared memory, as columns from `from` on of the result. */
void tiles_store_rows(const struct tiles *s, int which, int64_t columns, int64_t from);
/* Loads a tile; there: on which condition, or 0. */
val attention_tile_load(struct kernel *k, uint32_t buf, val index, enum tile_order order, int64_t stride, int64_t rows,
                        int64_t cols, val there);

/* ---- lower_attention_weights.c ---- */
/* Folds the columns of each row until `count` are left. */
val tiles_fold(struct kernel *k, enum fold f, val x, int64_t count);
/* Are scores not scaled, so that the scale is a part of the exponent's factor?  Their order is the same. */
bool tiles_scale_is_late(const struct tiles *s);
/* Weights from products of q and k: relative to the largest one so far, value[LARGEST]; also value[SUM].  *shrink: by
 * what totals of earlier steps are multiplied. */
val tiles_soften(const struct tiles *s, val score, val unmasked, val value[CARRIED], val *shrink);
/* Folds the sum of the weights into the largest score: a weight is 2^(its score's exponent + stat[STAT_MAX]), and
 * stat[INVERSE] is 0. */
void tiles_fold_statistics(struct kernel *k, val stat[STAT_COUNT]);
/* The statistics of the step's pairs, folded or not, their weights, and the gradient in their scores. */
void tiles_statistics(const struct tiles *s, val iterated_there, val stat[STAT_COUNT]);
val tiles_probability(const struct tiles *s, val score, val unmasked, const val stat[STAT_COUNT]);
val tiles_ds(const struct tiles *s, val dp, val p, val unmasked, const val stat[STAT_COUNT]);

/* ---- lower_attention_mask.c ---- */
/* Column c of an operand with a row for each query: [m x 1] for own rows, else [1 x step] for iterated ones. */
val attention_of_queries(const struct tiles *s, unsigned which, int64_t c, int64_t step, val first, val there);
/* The first row of the subgroup's own ones; its index is used only where rows exist. */
val attention_own_first(const struct tiles *s);
/* Which pairs of own and iterated rows are unmasked, [m x step] or less; 0: all pairs do. */
val attention_pairs_unmasked(const struct tiles *s, val iterated_row, val iterated_there);
/* The same of one pair, or 0. */
val attention_pair_is_unmasked(const struct tiles *s, val own, val iterated);
/* The steps that have a row which one of the block's rows attends to: from *first to before *end. */
void attention_unmasked_steps(const struct tiles *s, val *first, val *end);

/* ---- lower_attention_nonfinite.c ---- */
/* If an element of x, a vector of results `which` from column c of own row i on, is not finite, stores the vector
 * again, as columns from `from` on of the result. */
void attention_mend_vector(const struct tiles *s, int which, const val *x, val i, val c, int64_t from);

#endif
