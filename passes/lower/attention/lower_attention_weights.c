/* Attention by matrix units: weights from scores, statistics of queries, and the gradient in the scores, as tiles whose
 * elements the threads hold in registers. */
#include "lower_attention_tiles.h"

#define LOG2_E 1.4426950408889634

val tiles_fold(struct kernel *k, enum fold f, val x, int64_t count)
{
    const struct linst *i = &k->inst[x];
    if (i->cols == count)
        return x;
    return k_append(k, (struct linst){.op = L_LANE_REDUCE, .dtype = i->dtype, .rows = i->rows, .cols = (uint16_t)count,
                                      .a = x, .imm = f});
}

bool tiles_scale_is_late(const struct tiles *s)
{
    double scale = dtype_value(KL_F64, s->a->n->attr.attention.scale);
    return scale > 0 && isfinite(scale);
}

/* Products of q and k as scores, scaled unless that is done late. */
static val as_scores(const struct tiles *s, val product)
{
    return tiles_scale_is_late(s) ? product : k_prim(s->a->w->k, P_MUL, product, attention_scale(s), 0);
}

/* e^(scale * score) = 2^(this * score) */
static val exponent_factor(const struct tiles *s)
{
    double scale = dtype_value(KL_F64, s->a->n->attr.attention.scale);
    return k_const(s->a->w->k, KL_F32, tiles_scale_is_late(s) ? scale * LOG2_E : LOG2_E);
}

val tiles_soften(const struct tiles *s, val score, val unmasked, val value[CARRIED], val *shrink)
{
    struct kernel *k = s->a->w->k;
    val none = k_const(k, KL_F32, -INFINITY), by = exponent_factor(s);
    score = as_scores(s, score);
    if (unmasked)
        score = k_prim(k, P_SELECT, unmasked, score, none);
    val largest = k_fold_step(k, FOLD_MAX, value[LARGEST], tiles_fold(k, FOLD_MAX, score, 1));
    /* rounded in the same way in each step, so that weights of different steps fit together */
    val before = k_prim(k, P_MUL, value[LARGEST], by, 0), now = k_prim(k, P_MUL, largest, by, 0);
    val base = k_prim(k, P_SELECT, k_prim(k, P_EQ, largest, none, 0), k_const(k, KL_F32, 0), now);
    *shrink = k_prim(k, P_EXP2, k_prim(k, P_SUB, before, base, 0), 0, 0);
    val weight = k_prim(k, P_EXP2, k_prim(k, P_FMA, score, by, k_prim(k, P_NEG, base, 0, 0)), 0, 0);
    value[LARGEST] = largest;
    value[SUM] = k_prim(k, P_FMA, value[SUM], *shrink, tiles_fold(k, FOLD_ADD, weight, s->s.attention_matrix.unit_n));
    return weight;
}

/* The bits of x, or of the elements of a tile, as another dtype. */
static val bits_as(struct kernel *k, val x, unsigned dtype)
{
    const struct linst i = k->inst[x];
    return k_append(k, (struct linst){.op = L_OP(P_BITS), .dtype = (uint8_t)dtype, .rows = i.rows, .cols = i.cols,
                                      .a = x});
}

/* log2 of a normal number x = 2^exponent m, where m is from sqrt(1/2) to sqrt(2): log2 m = 2 atanh(t) / ln 2 of
 * t = (m - 1) / (m + 1), up to t^9. */
static val emit_log2(struct kernel *k, val x)
{
    static const double factor[] = {1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1};
    val bits = bits_as(k, x, KL_I32), root_half = k_bits(k, KL_I32, 0x3f3504f3), digits = k_bits(k, KL_I32, 23);
    val exponent = k_prim(k, P_SHR, k_prim(k, P_SUB, bits, root_half, 0), digits, 0), one = k_const(k, KL_F32, 1);
    val m = bits_as(k, k_prim(k, P_SUB, bits, k_prim(k, P_SHL, exponent, digits, 0), 0), KL_F32);
    val t = k_prim(k, P_DIV, k_prim(k, P_SUB, m, one, 0), k_prim(k, P_ADD, m, one, 0), 0);
    val square = k_prim(k, P_MUL, t, t, 0), sum = k_const(k, KL_F32, factor[0]);
    for (unsigned i = 1; i < sizeof factor / sizeof *factor; i++)
        sum = k_prim(k, P_FMA, sum, square, k_const(k, KL_F32, factor[i]));
    return k_prim(k, P_FMA, k_prim(k, P_MUL, t, k_const(k, KL_F32, 2 * LOG2_E), 0), sum,
                  k_cast(k, exponent, KL_F32));
}

void tiles_fold_statistics(struct kernel *k, val stat[STAT_COUNT])
{
    val zero = k_const(k, KL_F32, 0), none = k_const(k, KL_F32, -INFINITY), inverse = stat[INVERSE];
    val base = k_prim(k, P_FMA, stat[STAT_MAX], k_const(k, KL_F32, -LOG2_E), emit_log2(k, inverse));
    stat[STAT_MAX] = k_prim(k, P_SELECT, k_prim(k, P_EQ, inverse, zero, 0), none, base);
    stat[INVERSE] = 0;
}

val tiles_probability(const struct tiles *s, val score, val unmasked, const val stat[STAT_COUNT])
{
    struct kernel *k = s->a->w->k;
    val base = stat[STAT_MAX];
    if (stat[INVERSE])
        base = k_prim(k, P_MUL, base, k_const(k, KL_F32, -LOG2_E), 0);
    val p = k_prim(k, P_EXP2, k_prim(k, P_FMA, as_scores(s, score), exponent_factor(s), base), 0, 0);
    p = stat[INVERSE] ? k_prim(k, P_MUL, p, stat[INVERSE], 0) : p;
    return unmasked ? k_prim(k, P_SELECT, unmasked, p, k_const(k, KL_F32, 0)) : p;
}

/* The weight of a masked pair is 0.  Its ds is then 0, too, or NaN, which makes a result NaN that is computed again. */
val tiles_ds(const struct tiles *s, val dp, val p, val unmasked, const val stat[STAT_COUNT])
{
    struct kernel *k = s->a->w->k;
    val ds = k_prim(k, P_MUL, k_prim(k, P_SUB, dp, stat[DELTA], 0), p, 0);
    return unmasked && !partial(s->a) ? k_prim(k, P_SELECT, unmasked, ds, k_const(k, KL_F32, 0)) : ds;
}

void tiles_statistics(const struct tiles *s, val iterated_there, val stat[STAT_COUNT])
{
    for (int c = 0; c < STAT_COUNT; c++)
        stat[c] = s->keys ? attention_of_queries(s, STATS, c, s->stat_step, s->k0, iterated_there) : s->stat[c];
}
