/* Attention by matrix units: which pairs of a query and a key are unmasked, by position (causal), by ranges of keys
 * or by a mask, and over which steps a block iterates because of that. */
#include "lower_attention_tiles.h"

/* The load of the fourth operand at (query, key), or of statistics: its buffer and its index. */
static struct linst mask_load(const struct tiles *s, unsigned which, val row, val column)
{
    val x = attention_stored(s->a, which, row, column);
    return s->a->w->k->inst[x];
}

val attention_of_queries(const struct tiles *s, unsigned which, int64_t c, int64_t step, val first, val there)
{
    struct kernel *k = s->a->w->k;
    struct linst x = mask_load(s, which, first, k_int(k, c));
    return attention_tile_load(k, (uint32_t)x.imm, x.a, s->keys ? TILE_COLS : TILE_ROWS, step, s->keys ? 1 : s->m,
                     s->keys ? s->step : 1, there);
}

val attention_own_first(const struct tiles *s)
{
    struct kernel *k = s->a->w->k;
    val first = ix_add(k, s->a->q0, s->first);
    ix_bound(k, first, 0, s->a->l - 1);
    return first;
}

val attention_pairs_unmasked(const struct tiles *s, val iterated_row, val iterated_there)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    int64_t more = s->keys ? a->l - a->m : a->m - a->l; /* keys than queries */
    val key = s->keys ? s->own_row : iterated_row, query = s->keys ? iterated_row : s->own_row;
    val unmasked = iterated_there;
    if (a->causal)
        unmasked = both(k, unmasked,
                        k_prim(k, P_LE, key, k_prim(k, P_ADD, query, k_const(k, KL_I32, (double)more), 0), 0));
    if (a->bounds) {
        val low = s->low, high = s->high;
        if (s->keys) {
            low = attention_of_queries(s, MASK, 0, s->mask_step[0], s->k0, iterated_there);
            high = attention_of_queries(s, MASK, 1, s->mask_step[0], s->k0, iterated_there);
        }
        key = k_cast(k, key, val_dtype(k, low));
        unmasked = both(k, unmasked, both(k, k_prim(k, P_LE, low, key, 0), k_prim(k, P_LT, key, high, 0)));
    }
    if (a->mask) {
        val own = attention_own_first(s), there = both(k, s->own_there, iterated_there);
        struct linst x = mask_load(s, MASK, s->keys ? s->k0 : own, s->keys ? own : s->k0);
        val mask = attention_tile_load(k, (uint32_t)x.imm, x.a, s->keys ? TILE_COLS : TILE_ROWS, s->mask_step[0], s->m,
                                       s->step, there);
        unmasked = both(k, unmasked, mask);
    }
    return unmasked;
}

val attention_pair_is_unmasked(const struct tiles *s, val own, val iterated)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    int64_t more = s->keys ? a->l - a->m : a->m - a->l;
    val key = s->keys ? own : iterated, query = s->keys ? iterated : own, unmasked = 0;
    if (a->causal)
        unmasked = k_prim(k, P_LE, key, ix_add(k, query, k_int(k, more)), 0);
    if (a->bounds) {
        val low = k_cast(k, attention_stored(a, MASK, query, k_int(k, 0)), KL_I64),
            high = k_cast(k, attention_stored(a, MASK, query, k_int(k, 1)), KL_I64);
        unmasked = both(k, unmasked, both(k, k_prim(k, P_LE, low, key, 0), k_prim(k, P_LT, key, high, 0)));
    }
    return a->mask ? both(k, unmasked, attention_stored(a, MASK, query, key)) : unmasked;
}

static val clamp_to_range(struct kernel *k, val x, int64_t max)
{
    return greater(k, k_min(k, x, k_int(k, max)), k_int(k, 0));
}

/* The keys from the first to the last one that a query of the block attends to by its range; every thread finds them.
 * */
static void keys_in_ranges(const struct tiles *s, val *first, val *end)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, s->rows), 1);
    val min = k_carry(k, k_int(k, a->m)), max = k_carry(k, k_int(k, 0));
    val row = k_min(k, ix_add(k, a->q0, i), k_int(k, a->l - 1));
    ix_bound(k, row, 0, a->l - 1);
    val low = clamp_to_range(k, k_cast(k, attention_stored(a, MASK, row, k_int(k, 0)), KL_I64), a->m);
    val high = clamp_to_range(k, k_cast(k, attention_stored(a, MASK, row, k_int(k, 1)), KL_I64), a->m);
    val some = k_prim(k, P_LT, low, high, 0);
    val less = k_prim(k, P_SELECT, some, k_min(k, low, min), min);
    val more = k_prim(k, P_SELECT, some, greater(k, high, max), max);
    k_next(k, min, less);
    k_next(k, max, more);
    k_end(k, i);
    *first = k_out(k, min);
    *end = k_out(k, max);
}

void attention_unmasked_steps(const struct tiles *s, val *first, val *end)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    val from = k_int(k, 0), until = k_int(k, a->m), causal;
    if (a->bounds && !s->keys)
        keys_in_ranges(s, &from, &until);
    if (a->causal && s->keys) { /* the first query that attends to the first key */
        from = clamp_to_range(k, ix_add(k, a->q0, k_int(k, a->m - a->l)), a->m);
    } else if (a->causal) {     /* before the key after the last one that the last query attends to */
        causal = clamp_to_range(k, ix_add(k, a->q0, k_int(k, s->rows + a->m - a->l)), a->m);
        until = a->bounds ? k_min(k, causal, until) : causal;
    }
    ix_bound(k, from, 0, a->m);
    ix_bound(k, until, 0, a->m);
    *first = ix_div(k, from, s->step);
    *end = ix_div(k, ix_add(k, until, k_int(k, s->step - 1)), s->step);
}
