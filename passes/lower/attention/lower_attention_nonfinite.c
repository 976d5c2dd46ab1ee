/* Attention by matrix units: results that are not finite.
 *
 * The second product multiplies the weights of masked pairs, zeros, by elements that may be
 * infinite or NaN.  A vector of results that has an element which is not finite is computed again from the operands, as
 * node.h defines it: only the unmasked pairs count.  A thread computes all elements of the vector at once.
 */
#include "lower_attention_tiles.h"

/* The product of own row i and iterated row j: a chain over the columns. */
static val one_product(const struct tiles *s, int which, val i, val j)
{
    struct kernel *k = s->a->w->k;
    const struct columns *own = &s->own[which], *iterated = &s->iterated[which];
    val zero = k_const(k, KL_F32, 0), number = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, own->count / s->vector), 1);
    val acc = k_carry(k, zero), sum = acc, c = ix_scale(k, number, s->vector), x[VECTOR], y[VECTOR];
    for (int n = 0; n < s->vector; n++)
        x[n] = attention_element(s->a, own->which, i, ix_add(k, c, k_int(k, own->from + n)));
    for (int n = 0; n < s->vector; n++)
        y[n] = attention_element(s->a, iterated->which, j, ix_add(k, c, k_int(k, iterated->from + n)));
    for (int n = 0; n < s->vector; n++)
        sum = k_prim(k, P_FMA, x[n], y[n], sum);
    k_next(k, acc, sum);
    k_end(k, number);
    return k_out(k, acc);
}

static val one_score(const struct tiles *s, val i, val j)
{
    return k_prim(s->a->w->k, P_MUL, one_product(s, 0, i, j), attention_scale(s), 0);
}

static val if_unmasked(const struct tiles *s, val unmasked, val x, val y)
{
    return unmasked ? k_prim(s->a->w->k, P_SELECT, unmasked, x, y) : x;
}

/* Adds weight times the vector from column c of iterated row j on, if the pair is unmasked. */
static void add_vector(const struct tiles *s, unsigned which, val j, val c, val weight, val unmasked, val *total)
{
    struct kernel *k = s->a->w->k;
    val y[VECTOR];
    for (int n = 0; n < s->vector; n++)
        y[n] = attention_element(s->a, which, j, ix_add(k, c, k_int(k, n)));
    for (int n = 0; n < s->vector; n++)
        total[n] = if_unmasked(s, unmasked, k_prim(k, P_FMA, weight, y[n], total[n]), total[n]);
}

/* Columns from c on of attention's row i. */
static void attention_again(const struct tiles *s, val i, val c, val *result)
{
    struct kernel *k = s->a->w->k;
    val none = k_const(k, KL_F32, -INFINITY), zero = k_const(k, KL_F32, 0), all = k_int(k, s->a->m);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), all, 1), max = k_carry(k, none), carry[VECTOR], total[VECTOR];
    val shown = if_unmasked(s, attention_pair_is_unmasked(s, i, j), one_score(s, i, j), none);
    k_next(k, max, k_fold_step(k, FOLD_MAX, max, shown));
    k_end(k, j);
    val largest = k_out(k, max), base = k_prim(k, P_SELECT, k_prim(k, P_EQ, largest, none, 0), zero, largest);
    j = k_loop(k, LOOP_SERIAL, k_int(k, 0), all, 1);
    val sum = k_carry(k, zero);
    for (int n = 0; n < s->vector; n++)
        total[n] = carry[n] = k_carry(k, zero);
    val unmasked = attention_pair_is_unmasked(s, i, j), score = if_unmasked(s, unmasked, one_score(s, i, j), none);
    val weight = k_exp_nonpositive(k, k_prim(k, P_SUB, score, base, 0)), weights = k_prim(k, P_ADD, sum, weight, 0);
    add_vector(s, V, j, c, weight, unmasked, total);
    k_next(k, sum, weights);
    for (int n = 0; n < s->vector; n++)
        k_next(k, carry[n], total[n]);
    k_end(k, j);
    val divisor = k_out(k, sum), nothing = k_prim(k, P_EQ, divisor, zero, 0);
    for (int n = 0; n < s->vector; n++)
        result[n] = k_prim(k, P_SELECT, nothing, zero, k_prim(k, P_DIV, k_out(k, carry[n]), divisor, 0));
}

/* Columns from c on, counted from columns `which` on, of row i of a gradient. */
static void gradient_again(const struct tiles *s, int which, val i, val c, val *result)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    val zero = k_const(k, KL_F32, 0), j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, a->m), 1);
    val query = s->keys ? j : i, stat[STAT_COUNT], carry[VECTOR], total[VECTOR];
    for (int n = 0; n < s->vector; n++)
        total[n] = carry[n] = k_carry(k, zero);
    for (int n = 0; n < STAT_COUNT; n++)
        stat[n] = attention_element(a, STATS, query, k_int(k, n));
    val p = k_prim(k, P_MUL, k_exp_nonpositive(k, k_prim(k, P_SUB, one_score(s, i, j), stat[STAT_MAX], 0)),
                   stat[INVERSE], 0);
    val weight = which ? p : k_prim(k, P_MUL, k_prim(k, P_SUB, one_product(s, 1, i, j), stat[DELTA], 0), p, 0);
    const struct columns *iterated = &s->iterated[which];
    val unmasked = attention_pair_is_unmasked(s, i, j);
    add_vector(s, iterated->which, j, ix_add(k, c, k_int(k, iterated->from)), weight, unmasked, total);
    for (int n = 0; n < s->vector; n++)
        k_next(k, carry[n], total[n]);
    k_end(k, j);
    for (int n = 0; n < s->vector; n++) {
        val x = k_out(k, carry[n]);
        result[n] = which ? x : k_prim(k, P_MUL, x, attention_scale(s), 0);
    }
}

/* A number that is NaN if one of the vector's elements is not finite, else 0. */
static val not_finite(const struct tiles *s, const val *x)
{
    struct kernel *k = s->a->w->k;
    val zero = k_const(k, KL_F32, 0), sum = zero;
    for (int j = 0; j < s->vector; j++)
        sum = k_prim(k, P_FMA, k_cast(k, x[j], KL_F32), zero, sum);
    return sum;
}

void attention_mend_vector(const struct tiles *s, int which, const val *x, val i, val c, int64_t from)
{
    struct attention *a = s->a;
    struct kernel *k = a->w->k;
    val bad = not_finite(s, x), some = k_if(k, k_prim(k, P_NE, bad, bad, 0)), y[VECTOR];
    if (s->gradient)
        gradient_again(s, which, i, c, y);
    else
        attention_again(s, i, c, y);
    for (int n = 0; n < s->vector; n++)
        y[n] = k_cast(k, y[n], a->n->dtype);
    for (int n = 0; n < s->vector; n++)
        attention_store(a, a->w->anchor, &a->out, i, ix_add(k, c, k_int(k, from + n)), y[n]);
    k_end(k, some);
}
