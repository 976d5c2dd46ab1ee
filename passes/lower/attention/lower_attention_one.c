/* Attention of a single query.  For scores and weights keys are the lanes, and rows of k are transposed
 * in registers; for values elements of v are the lanes. */
#include "lower_attention.h"

static val lower_attention_one_number(const struct attention *a, uint32_t buf)
{
    return k_load(a->w->k, buf, k_int(a->w->k, 0), 0);
}
static void set_number(const struct attention *a, uint32_t buf, val x)
{
    k_store(a->w->k, buf, k_int(a->w->k, 0), x, 0);
}

static void begin_keys(const struct attention *a)
{
    struct lowering *w = a->w;
    w->lane = k_loop(w->k, LOOP_VECTOR, k_int(w->k, 0), k_int(w->k, a->keys), 1);
}

/* Is key number j of the block, which is this lane's, unmasked for the query? */
static val sees_lane(const struct attention *a, val j)
{
    struct kernel *k = a->w->k;
    val key = ix_add(k, a->k0, j), at = k_cast(k, key, a->index), s = 0;
    if (ranges(a))
        s = k_prim(k, P_LT, at, lower_attention_one_number(a, a->hi), 0);
    if (a->bounds)
        s = k_prim(k, P_AND, s, k_prim(k, P_LE, lower_attention_one_number(a, a->lo), at, 0), 0);
    if (a->mask) {
        ix_bound(k, key, 0, a->m - 1);
        val m = attention_element(a, MASK, a->q0, key);
        s = s ? k_prim(k, P_AND, s, m, 0) : m;
    }
    return k_splat(k, s);
}

/* Computes the scores of R keys from number j0 of the block on, in squares. */
void attention_score_keys(const struct attention *a, val j0)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val key[ONE_SQUARES * MAX_SQUARE], lane[ONE_SQUARES], acc[ONE_SQUARES], carry[ONE_SQUARES], row[MAX_SQUARE];
    j0 = attention_keys(a, j0, key);
    begin_keys(a);
    for (int g = 0; g < ONE_SQUARES; g++) {
        lane[g] = ix_add(k, ix_add(k, j0, k_int(k, g * a->keys)), w->lane);
        if (!size_is_constant(a->iterated_size)) {
            /* with fewer than R keys, the keys before the first are replaced by the first */
            lane[g] = greater(k, lane[g], k_prim(k, P_SUB, k_int(k, 0), a->k0, 0));
            ix_bound(k, lane[g], -a->rows, a->block - 1);
        } else if (a->m < a->rows) {
            lane[g] = k_min(k, lane[g], k_int(k, a->m - 1));
        }
        acc[g] = k_splat(k, of(a, 0));
    }
    int64_t whole = a->d / a->keys * a->keys;
    if (whole) {
        val loop = attention_columns(a, K, whole, a->keys);
        for (int g = 0; g < ONE_SQUARES; g++)
            acc[g] = carry[g] = k_carry(k, acc[g]);
        val c = attention_column(a, K, loop, a->keys);
        for (int g = 0; g < ONE_SQUARES; g++) {
            for (int64_t r = 0; r < a->keys; r++)
                row[r] = k_splat(k, attention_in_block(a, K, key[g * a->keys + r], ix_add(k, c, w->lane)));
            k_transpose(k, row, (uint32_t)a->keys);
            for (int64_t r = 0; r < a->keys; r++)
                acc[g] = k_prim(k, P_FMA, k_load(k, a->q, ix_add(k, c, k_int(k, r)), 0), row[r], acc[g]);
        }
        for (int g = 0; g < ONE_SQUARES; g++)
            k_next(k, carry[g], acc[g]);
        k_end(k, loop);
        for (int g = 0; g < ONE_SQUARES; g++)
            acc[g] = k_out(k, carry[g]);
    }
    for (int64_t c = whole; c < a->d; c++)
        for (int g = 0; g < ONE_SQUARES; g++)
            acc[g] = k_prim(k, P_FMA, k_load(k, a->q, k_int(k, c), 0), attention_in_block(a, K, lane[g], k_int(k, c)),
                            acc[g]);
    val max = lower_attention_one_number(a, a->larger), scale = of(a, dtype_value(KL_F64, a->n->attr.attention.scale));
    for (int g = 0; g < ONE_SQUARES; g++) {
        val at = ix_add(k, block_row(a, ix_add(k, j0, k_int(k, g * a->keys))), w->lane);
        val s = k_prim(k, P_MUL, acc[g], scale, 0), x = s;
        if (partial(a)) {
            val unmasked = sees_lane(a, lane[g]);
            k_store(k, a->unmasked, at, unmasked, 0);
            x = k_prim(k, P_SELECT, unmasked, s, k_splat(k, of(a, -INFINITY)));
        }
        k_store(k, a->score, at, s, 0);
        max = k_fold_step(k, FOLD_MAX, max, k_lane_reduce(k, FOLD_MAX, x));
    }
    set_number(a, a->larger, max);
    end_lanes(a);
}

/* Like `weigh` in lower_attention.c: scores become weights, lane by lane; then their sum is added to the total, key
 * by key. */
void attention_weigh_keys(const struct attention *a)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    begin_keys(a);
    val larger = lower_attention_one_number(a, a->larger), base =
        k_prim(k, P_SELECT, k_prim(k, P_EQ, larger, of(a, -INFINITY), 0), of(a, 0), larger);
    val shrink = k_prim(k, P_SUB, lower_attention_one_number(a, a->max), base, 0);
    shrink = k_exp_nonpositive(k, shrink);
    val j = k_loop(k, LOOP_SERIAL, a->from, a->until, a->keys), at = ix_add(k, block_row(a, j), w->lane);
    val inside = k_prim(k, P_LT, ix_add(k, j, w->lane), a->until, 0);
    val x = k_prim(k, P_SUB, k_load(k, a->score, at, inside), base, 0);
    k_store(k, a->score, at, k_exp_nonpositive(k, x), inside);
    k_end(k, j);
    j = k_loop(k, LOOP_SERIAL, a->from, a->until, 1);
    val sum = k_carry(k, of(a, -0.0)), more = k_prim(k, P_ADD, sum, k_load(k, a->score, block_row(a, j), 0), 0);
    k_next(k, sum, partial(a) ? k_prim(k, P_SELECT, k_load(k, a->unmasked, block_row(a, j), 0), more, sum) : more);
    k_end(k, j);
    set_number(a, a->sum, k_prim(k, P_FMA, lower_attention_one_number(a, a->sum), shrink, k_out(k, sum)));
    set_number(a, a->shrink, shrink);
    set_number(a, a->max, larger);
    end_lanes(a);
}

/* Weighted elements c0 .. c0 + columns - 1 of the values, which are the lanes. */
void attention_value_lanes(const struct attention *a, val c0, int64_t columns)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, a->one_lanes), 1);
    w->pred = columns < a->one_lanes ? k_prim(k, P_LT, w->lane, k_int(k, columns), 0) : 0;
    val c = ix_add(k, c0, w->lane), shrink = k_load(k, a->shrink, k_int(k, 0), 0);
    ix_bound(k, c, 0, a->e - 1); /* only for lanes that exist */
    val start = k_splat(k, of(a, -0.0)), j = k_loop(k, LOOP_SERIAL, a->from, a->until, 1), acc = k_carry(k, start);
    val weight = k_splat(k, k_load(k, a->score, block_row(a, j), 0)),
        sum = k_prim(k, P_FMA, weight, attention_in_block(a, V, j, c), acc);
    if (partial(a))
        sum = k_prim(k, P_SELECT, k_splat(k, k_load(k, a->unmasked, block_row(a, j), 0)), sum, acc);
    k_next(k, acc, sum);
    k_end(k, j);
    k_store(k, a->total, c, k_prim(k, P_FMA, k_load(k, a->total, c, w->pred), k_splat(k, shrink), k_out(k, acc)),
            w->pred);
    end_lanes(a);
}
