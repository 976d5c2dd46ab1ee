/* Attention in one pass over the keys, for a tile of queries, each of which is a lane of the vector loops.
 *
 * An iteration of the parallel loop owns W neighbouring queries of one matrix.  It holds these in scratch, with a
 * row of W lanes for each element: q, transposed; a block of scores, which become weights; and the totals of the
 * values, transposed.  For each block of keys (node.h, "Numeric order") it has three loops: scores and their
 * maximum; weights and their sum; values.  Both products are computed in tiles of R rows (keys; elements of v) by W
 * lanes in registers.  Each step of them reads one vector of scratch and R elements of k or v in place, which are
 * broadcast to the lanes.  So only q is packed, once; the maxima, the sums and the masks are computed lane by lane,
 * without reductions across lanes; and k and v may be any views.
 *
 * Keys before the first and after the last one that a query of the tile attends to are skipped.  Between them, selects
 * exclude the keys that a query does not attend to.  They leave the query's sums bit for bit as if it had been computed
 * alone, for any tile.  For a single query, keys are the lanes of the first two loops, and elements of v
 * those of the third (lower_attention_one.c).
 *
 * q and the totals of the values are transposed in squares in registers: gathering and scattering them would take a
 * sixth of the time for 128 keys.  Half floats of k and v are widened, and k and v that are made of fewer bytes are
 * computed, one block at a time. */
#include "lower_attention.h"
#include <string.h>

enum { STEPS = 2 }; /* steps of D that are processed at a time */

/* ---- elements ---- */

static void coord_of(const struct attention *a, val row, val column, val coord[KL_MAX_RANK])
{
    memset(coord, 0, KL_MAX_RANK * sizeof *coord);
    memcpy(coord, a->coord, a->lead.rank * sizeof *coord);
    coord[a->lead.rank] = row;
    coord[a->lead.rank + 1] = column;
}

val attention_stored(const struct attention *a, unsigned which, val row, val column)
{
    struct lowering *w = a->w;
    val coord[KL_MAX_RANK];
    coord_of(a, row, column, coord);
    lower_point(w);
    return lower_at(w, a->n->in[which == MASK ? a->mask_in : which], coord);
}

val attention_element(const struct attention *a, unsigned which, val row, val column)
{
    val x = attention_stored(a, which, row, column);
    return which == MASK ? x : k_cast(a->w->k, x, a->dtype);
}

static val panel_index(const struct attention *a, unsigned which, val j, val column)
{
    return ix_add(a->w->k, ix_scale(a->w->k, block_row(a, j), a->columns[which]), column);
}

val attention_in_block(const struct attention *a, unsigned which, val j, val column)
{
    struct kernel *k = a->w->k;
    if (a->panel[which])
        return k_load(k, a->panel[which] - 1, panel_index(a, which, j, column), a->w->pred);
    val key = ix_add(k, a->k0, j);
    ix_bound(k, key, 0, a->m - 1);
    return attention_element(a, which, key, column);
}

val attention_row(const struct attention *a)
{
    struct lowering *w = a->w;
    val i = ix_add(w->k, a->q0, w->lane);
    if (!size_divides(a->own_size, a->width))
        w->pred = k_prim(w->k, P_LT, i, own_rows(a), 0);
    ix_bound(w->k, i, 0, a->l - 1); /* only for lanes that exist */
    return i;
}

bool attention_computes(const struct attention *a, unsigned which)
{
    ref x = a->n->in[which];
    while (node_is_view(a->w->g, x))
        x = a->w->g->node[x].in[0];
    return lower_is_member(a->w, x);
}

val attention_columns(const struct attention *a, unsigned which, int64_t end, int64_t step)
{
    struct kernel *k = a->w->k;
    bool computes = attention_computes(a, which);
    return k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, computes ? end / step : end), computes ? 1 : step);
}

val attention_column(const struct attention *a, unsigned which, val loop, int64_t step)
{
    return attention_computes(a, which) ? ix_scale(a->w->k, loop, step) : loop;
}

/* ---- which keys each query attends to ---- */

void attention_range(const struct attention *a, val i, val *low, val *high)
{
    struct kernel *k = a->w->k;
    *low = k_int(k, 0);
    *high = iterated_rows(a);
    if (a->causal) {
        *high = ix_add(k, i, ix_add(k, ix_sub(k, iterated_rows(a), own_rows(a)), k_int(k, 1)));
        *high = may_be_fewer(a->iterated_size, a->own_size) ? greater(k, *high, k_int(k, 0)) : *high;
    }
    if (a->bounds) {
        val end = lower_index_to(k, attention_element(a, MASK, i, k_int(k, 1)), iterated_rows(a));
        *low = lower_index_to(k, attention_element(a, MASK, i, k_int(k, 0)), iterated_rows(a));
        *high = a->causal ? k_min(k, *high, end) : end;
    }
}

/* Stores in scratch the range of keys that each lane attends to (from `lo` to before `hi`), without regard to a
 * mask.  Lanes without a query attend to no keys. */
void attention_store_ranges(const struct attention *a)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val lo, hi;
    begin_lanes(a);
    attention_range(a, attention_row(a), &lo, &hi);
    if (w->pred)
        hi = k_prim(k, P_SELECT, w->pred, hi, k_int(k, 0));
    attention_put(a, a->lo, first(a), k_cast(k, lo, a->index));
    attention_put(a, a->hi, first(a), k_cast(k, hi, a->index));
    end_lanes(a);
}

/* Finds the range of keys from the first to the last that a query of the tile attends to. */
void attention_tile_range(struct attention *a)
{
    struct kernel *k = a->w->k;
    a->first = k_int(k, 0);
    a->end = iterated_rows(a);
    if (!ranges(a))
        return;
    val all = k_cast(k, a->end, a->index), i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, a->width), 1);
    val min = k_carry(k, all), max = k_carry(k, k_bits(k, a->index, 0));
    val lo = k_load(k, a->lo, i, 0), hi = k_load(k, a->hi, i, 0), some = k_prim(k, P_LT, lo, hi, 0);
    val less = k_prim(k, P_SELECT, some, k_min(k, lo, min), min);
    val more = k_prim(k, P_SELECT, some, greater(k, hi, max), max);
    k_next(k, min, less);
    k_next(k, max, more);
    k_end(k, i);
    a->first = k_cast(k, k_out(k, min), KL_I64);
    a->end = k_cast(k, k_out(k, max), KL_I64);
    if (a->w->gpu) { /* gives the loop over blocks of keys a bound that is known */
        a->first = greater(k, k_min(k, a->first, iterated_rows(a)), k_int(k, 0));
        a->end = greater(k, k_min(k, a->end, iterated_rows(a)), k_int(k, 0));
    }
}

val attention_unmasked(const struct attention *a, val j)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val key = ix_add(k, a->k0, j), number = k_cast(k, key, a->index), s = 0;
    if (ranges(a))
        s = k_prim(k, P_LT, number, attention_get(a, a->hi, first(a)), 0);
    if (a->bounds)
        s = k_prim(k, P_AND, s, k_prim(k, P_LE, attention_get(a, a->lo, first(a)), number, 0), 0);
    if (a->mask) {
        ix_bound(k, key, 0, a->m - 1);
        val m = attention_element(a, MASK, attention_row(a), key);
        s = s ? k_prim(k, P_AND, s, m, 0) : m;
        w->pred = 0;
    }
    return k_splat(k, s);
}

/* ---- one block of keys, a tile of queries ---- */

void attention_widen(const struct attention *a, unsigned which, val lo, val hi)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    int64_t columns = a->columns[which];
    if (!columns)
        return;
    val j = k_loop(k, LOOP_SERIAL, lo, hi, 1), key = ix_add(k, a->k0, j);
    ix_bound(k, key, 0, a->m - 1);
    for (int tail = 0; tail < 2; tail++) {
        int64_t whole = columns / a->width * a->width, rest = columns % a->width;
        if (tail ? !rest : !whole)
            continue;
        val c = tail ? 0 : attention_columns(a, which, whole, a->width);
        val from = tail ? k_int(k, whole) : attention_column(a, which, c, a->width);
        begin_lanes(a);
        val column = ix_add(k, from, w->lane);
        w->pred = tail ? k_prim(k, P_LT, w->lane, k_int(k, rest), 0) : 0;
        ix_bound(k, column, 0, columns - 1);
        k_store(k, a->panel[which] - 1, panel_index(a, which, j, column),
                k_splat(k, attention_element(a, which, key, column)), w->pred);
        end_lanes(a);
        if (c)
            k_end(k, c);
    }
    k_end(k, j);
}

/* Adds the products of `steps` elements, from element `from` on, for these R rows. */
static void lower_attention_multiply(const struct attention *a, unsigned which, const val *key, val from, int64_t steps,
                                     val *acc)
{
    struct kernel *k = a->w->k;
    for (int64_t u = 0; u < steps; u++) {
        val column = ix_add(k, from, k_int(k, u)), q = attention_get(a, a->q, column);
        for (int64_t r = 0; r < a->rows; r++)
            acc[r] = k_prim(k, P_FMA, q, attention_in_block(a, which, key[r], column), acc[r]);
    }
}

void attention_products(const struct attention *a, unsigned which, const val *row, int64_t c0, int64_t c1, val *acc)
{
    struct kernel *k = a->w->k;
    int64_t whole = (c1 - c0) / STEPS * STEPS;
    val carry[MAX_ROWS];
    if (whole) {
        val c = k_loop(k, LOOP_SERIAL, k_int(k, c0), k_int(k, c0 + whole), STEPS);
        for (int64_t r = 0; r < a->rows; r++)
            acc[r] = carry[r] = k_carry(k, acc[r]);
        lower_attention_multiply(a, which, row, c, STEPS, acc);
        for (int64_t r = 0; r < a->rows; r++)
            k_next(k, carry[r], acc[r]);
        k_end(k, c);
        for (int64_t r = 0; r < a->rows; r++)
            acc[r] = k_out(k, carry[r]);
    }
    lower_attention_multiply(a, which, row, k_int(k, c0 + whole), c1 - c0 - whole, acc);
}

/* If the number of iterated rows has a symbol: may there be fewer rows than a tile has? */
static bool rows_may_be_few(const struct attention *a)
{
    int64_t low, high;
    return !size_is_constant(a->iterated_size) && (!ix_range(a->w->k, iterated_rows(a), &low, &high) || low < a->rows);
}

/* May it take the last R keys? */
static bool attention_steps_back(const struct attention *a)
{
    return !size_divides(a->iterated_size, a->rows) && a->m >= a->rows;
}

val attention_keys(const struct attention *a, val j0, val *key)
{
    struct kernel *k = a->w->k;
    bool few = rows_may_be_few(a);
    if (attention_steps_back(a)) {
        j0 = k_min(k, j0, k_prim(k, P_SUB, ix_sub(k, iterated_rows(a), k_int(k, a->rows)), a->k0, 0));
        ix_bound(k, j0, -a->rows, a->block - a->rows);
    }
    val none = few ? k_prim(k, P_SUB, k_int(k, 0), a->k0, 0) : 0; /* the first row of all, counted from the block's
                                                                     first */
    for (int64_t r = 0; r < a->rows; r++) {
        key[r] = ix_add(k, j0, k_int(k, r));
        if (few) {
            key[r] = greater(k, key[r], none);
            ix_bound(k, key[r], r - a->rows, a->block - 1);
        }
        if (r && a->m < a->rows && !few) /* there are so few rows that some are computed several times */
            key[r] = k_int(k, r < a->m ? r : a->m - 1);
    }
    return j0;
}

/* Computes the scores of R keys. */
static void score_tile(const struct attention *a, val j0)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val acc[MAX_ROWS], key[MAX_ROWS];
    attention_keys(a, j0, key);
    begin_lanes(a);
    for (int64_t r = 0; r < a->rows; r++)
        acc[r] = k_splat(k, of(a, 0));
    attention_products(a, K, key, 0, a->d, acc);
    val max = attention_get(a, a->larger, first(a)), scale = of(a, dtype_value(KL_F64, a->n->attr.attention.scale));
    for (int64_t r = 0; r < a->rows; r++) {
        val s = k_prim(k, P_MUL, acc[r], scale, 0), x = s;
        if (partial(a)) {
            val unmasked = attention_unmasked(a, key[r]);
            attention_put(a, a->unmasked, block_row(a, key[r]), unmasked);
            x = k_prim(k, P_SELECT, unmasked, s, k_splat(k, of(a, -INFINITY)));
        }
        attention_put(a, a->score, block_row(a, key[r]), s);
        max = k_fold_step(k, FOLD_MAX, max, x);
    }
    attention_put(a, a->larger, first(a), max);
    end_lanes(a);
}

/* Turns scores into weights and adds their sum to the total.  A key that the query does not attend to may have a score
 * above the maximum; its weight is not used. */
static void emit_weights(const struct attention *a)
{
    struct kernel *k = a->w->k;
    begin_lanes(a);
    val larger = attention_get(a, a->larger, first(a)), none = k_splat(k, of(a, -INFINITY));
    val base = k_prim(k, P_SELECT, k_prim(k, P_EQ, larger, none, 0), k_splat(k, of(a, 0)), larger);
    val shrink = k_prim(k, P_SUB, attention_get(a, a->max, first(a)), base, 0);
    shrink = k_exp_nonpositive(k, shrink);
    val start = k_splat(k, of(a, -0.0)), j = k_loop(k, LOOP_SERIAL, a->from, a->until, 1), sum = k_carry(k, start);
    val x = k_prim(k, P_SUB, attention_get(a, a->score, block_row(a, j)), base, 0), weight = k_exp_nonpositive(k, x);
    attention_put(a, a->score, block_row(a, j), weight);
    val more = k_prim(k, P_ADD, sum, weight, 0);
    k_next(k, sum, partial(a) ? k_prim(k, P_SELECT, attention_get(a, a->unmasked, block_row(a, j)), more, sum) : more);
    k_end(k, j);
    attention_put(a, a->sum, first(a), k_prim(k, P_FMA, attention_get(a, a->sum, first(a)), shrink, k_out(k, sum)));
    attention_put(a, a->shrink, first(a), shrink);
    attention_put(a, a->max, first(a), larger);
    end_lanes(a);
}

void attention_weighed(const struct attention *a, unsigned which, uint32_t weight, val c0, int64_t rows, val *sum)
{
    struct kernel *k = a->w->k;
    val carry[MAX_ROWS], start = k_splat(k, of(a, -0.0)), j = k_loop(k, LOOP_SERIAL, a->from, a->until, 1);
    for (int64_t r = 0; r < rows; r++)
        carry[r] = k_carry(k, start);
    val by = attention_get(a, weight, block_row(a, j));
    val unmasked = partial(a) ? attention_get(a, a->unmasked, block_row(a, j)) : 0;
    for (int64_t r = 0; r < rows; r++) {
        sum[r] = k_prim(k, P_FMA, by, attention_in_block(a, which, j, ix_add(k, c0, k_int(k, r))), carry[r]);
        sum[r] = unmasked ? k_prim(k, P_SELECT, unmasked, sum[r], carry[r]) : sum[r];
    }
    for (int64_t r = 0; r < rows; r++)
        k_next(k, carry[r], sum[r]);
    k_end(k, j);
    for (int64_t r = 0; r < rows; r++)
        sum[r] = k_out(k, carry[r]);
}

/* Adds the weighted elements c0 .. c0 + rows - 1 of the values to the totals. */
static void value_tile(const struct attention *a, val c0, int64_t rows)
{
    struct kernel *k = a->w->k;
    val sum[MAX_ROWS];
    begin_lanes(a);
    val shrink = attention_get(a, a->shrink, first(a));
    attention_weighed(a, V, a->score, c0, rows, sum);
    for (int64_t r = 0; r < rows; r++) {
        val c = ix_add(k, c0, k_int(k, r));
        attention_put(a, a->total, c, k_prim(k, P_FMA, attention_get(a, a->total, c), shrink, sum[r]));
    }
    end_lanes(a);
}

/* ---- one block of keys ---- */

val attention_widen_from(const struct attention *a, val whole)
{
    struct kernel *k = a->w->k;
    if (!attention_steps_back(a))
        return whole;
    val back = ix_sub(k, ix_sub(k, iterated_rows(a), a->k0), k_int(k, a->rows));
    whole = k_min(k, whole, back);
    return rows_may_be_few(a) ? greater(k, whole, k_prim(k, P_SUB, k_int(k, 0), a->k0, 0)) : whole;
}

static void emit_value_sums(const struct attention *a, val c0, int64_t columns)
{
    if (a->one_lanes)
        attention_value_lanes(a, c0, columns);
    else
        value_tile(a, c0, columns);
}

static void lower_attention_emit_block(struct attention *a)
{
    struct kernel *k = a->w->k;
    val left = ix_sub(k, iterated_rows(a), a->k0), end = k_int(k, a->block);
    end = size_divides(a->iterated_size, a->block) ? end : k_min(k, left, end);
    a->from = a->bounds ? greater(k, ix_sub(k, a->first, a->k0), k_int(k, 0)) : k_int(k, 0);
    a->until = ranges(a) ? k_min(k, ix_sub(k, a->end, a->k0), end) : end;
    val whole = a->bounds ? ix_scale(k, k_prim(k, P_DIV, a->from, k_int(k, a->rows), 0), a->rows) : a->from;
    if (a->panel[K])
        attention_widen(a, K, attention_widen_from(a, whole), end);
    if (a->panel[V])
        attention_widen(a, V, a->from, a->until);
    val j = k_loop(k, LOOP_SERIAL, whole, a->until, a->rows);
    ix_bound(k, j, 0, a->block - a->rows);
    if (a->one_lanes)
        attention_score_keys(a, j);
    else
        score_tile(a, j);
    k_end(k, j);
    if (a->one_lanes)
        attention_weigh_keys(a);
    else
        emit_weights(a);
    int64_t step = a->one_lanes ? a->one_lanes : a->rows, max = a->e / step * step;
    if (max) {
        val c = attention_columns(a, V, max, step);
        emit_value_sums(a, attention_column(a, V, c, step), step);
        k_end(k, c);
    }
    if (a->e > max)
        emit_value_sums(a, k_int(k, max), a->e - max);
}

/* ---- one tile of queries ---- */

/* Opens loops over whole squares of `columns` by queries; *c, *i: the first column and query of a square.  Returns
 * false if there are no squares. */
static bool begin_squares(const struct attention *a, int64_t columns, val *c, val *i)
{
    struct kernel *k = a->w->k;
    if (!a->square || columns < a->square)
        return false;
    *c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, columns / a->square * a->square), a->square);
    *i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, a->width), a->square);
    a->w->lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, a->square), 1);
    return true;
}

static void end_squares(const struct attention *a, val c, val i)
{
    end_lanes(a);
    k_end(a->w->k, i);
    k_end(a->w->k, c);
}

/* The number of columns outside of whole squares. */
static int64_t behind_squares(const struct attention *a, int64_t columns)
{
    return a->square ? columns % a->square : columns;
}

/* Lanes without a row use another row. */
void attention_bring_rows(const struct attention *a)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    int64_t columns = a->columns[a->own];
    val c, i, row[MAX_SQUARE];
    if (begin_squares(a, columns, &c, &i)) {
        for (int64_t r = 0; r < a->square; r++) {
            val at = ix_add(k, ix_add(k, a->q0, i), k_int(k, r)), inside;
            at = lower_inside_to(k, at, ix_sub(k, own_rows(a), k_int(k, 1)), &inside);
            row[r] = k_splat(k, attention_element(a, a->own, at, ix_add(k, c, w->lane)));
        }
        k_transpose(k, row, (uint32_t)a->square);
        for (int64_t r = 0; r < a->square; r++) {
            val at = ix_add(k, ix_scale(k, ix_add(k, c, k_int(k, r)), a->width), i);
            k_store(k, a->q, ix_add(k, at, w->lane), row[r], 0);
        }
        end_squares(a, c, i);
    }
    int64_t rest = behind_squares(a, columns);
    if (!rest)
        return;
    begin_lanes(a);
    i = attention_row(a);
    c = k_loop(k, LOOP_SERIAL, k_int(k, columns - rest), k_int(k, columns), 1);
    val x = attention_element(a, a->own, i, c);
    attention_put(a, a->q, c, x);
    k_end(k, c);
    end_lanes(a);
}

static void lower_attention_start(const struct attention *a)
{
    struct kernel *k = a->w->k;
    begin_lanes(a);
    attention_put(a, a->max, first(a), of(a, -INFINITY));
    attention_put(a, a->larger, first(a), of(a, -INFINITY));
    attention_put(a, a->sum, first(a), of(a, 0));
    val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, a->e), 1);
    attention_put(a, a->total, c, of(a, 0));
    k_end(k, c);
    end_lanes(a);
}

void attention_store(const struct attention *a, ref r, const struct shape *s, val i, val c, val x)
{
    struct lowering *w = a->w;
    val coord[KL_MAX_RANK];
    coord_of(a, i, c, coord);
    k_store(w->k, lower_buffer(w, r, BUF_OUT), lower_flatten(w->k, s, coord), k_cast(w->k, x, w->g->node[r].dtype),
            w->pred);
}

/* A total divided by the sum of the weights. */
static val weighted_mean(const struct attention *a, val total, val sum)
{
    struct kernel *k = a->w->k;
    val zero = k_splat(k, of(a, 0));
    return k_prim(k, P_SELECT, k_prim(k, P_EQ, sum, zero, 0), zero, k_prim(k, P_DIV, total, sum, 0));
}

static val finish_result(const struct attention *a, val total, val sum, double factor)
{
    if (sum)
        return weighted_mean(a, total, sum);
    return factor == 1 ? total : k_prim(a->w->k, P_MUL, total, k_splat(a->w->k, of(a, factor)), 0);
}

void attention_store_tile(const struct attention *a, int64_t from, int64_t columns, bool divides, double factor)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val c, i, row[MAX_SQUARE], base = k_int(k, from);
    if (begin_squares(a, columns, &c, &i)) {
        val sum = divides ? k_load(k, a->sum, ix_add(k, i, w->lane), 0) : 0;
        base = ix_add(k, base, c);
        for (int64_t r = 0; r < a->square; r++) {
            val at = ix_add(k, ix_scale(k, ix_add(k, base, k_int(k, r)), a->width), i);
            row[r] = finish_result(a, k_load(k, a->total, ix_add(k, at, w->lane), 0), sum, factor);
        }
        k_transpose(k, row, (uint32_t)a->square);
        for (int64_t r = 0; r < a->square; r++) {
            val at = ix_add(k, ix_add(k, a->q0, i), k_int(k, r));
            w->pred = size_divides(a->own_size, a->width) ? 0 : k_splat(k, k_prim(k, P_LT, at, own_rows(a), 0));
            attention_store(a, w->anchor, &a->out, at, ix_add(k, base, w->lane), row[r]);
        }
        end_squares(a, c, i);
    }
    int64_t rest = behind_squares(a, columns);
    if (!rest)
        return;
    begin_lanes(a);
    val sum = divides ? attention_get(a, a->sum, first(a)) : 0;
    i = attention_row(a);
    c = k_loop(k, LOOP_SERIAL, k_int(k, from + columns - rest), k_int(k, from + columns), 1);
    attention_store(a, w->anchor, &a->out, i, c, finish_result(a, attention_get(a, a->total, c), sum, factor));
    k_end(k, c);
    end_lanes(a);
}

/* The maximum score and 1 / the sum of the weights, for attention_stats. */
static void store_stats(const struct attention *a)
{
    struct kernel *k = a->w->k;
    const struct shape s = *node_shape(a->w->g, a->stats);
    begin_lanes(a);
    val zero = k_splat(k, of(a, 0)), none = k_splat(k, of(a, -INFINITY)), one = k_splat(k, of(a, 1));
    val max = attention_get(a, a->max, first(a)), sum = attention_get(a, a->sum, first(a)), i = attention_row(a);
    max = k_prim(k, P_SELECT, k_prim(k, P_EQ, max, none, 0), zero, max);
    sum = k_prim(k, P_SELECT, k_prim(k, P_EQ, sum, zero, 0), zero, k_prim(k, P_DIV, one, sum, 0));
    attention_store(a, a->stats, &s, i, k_int(k, 0), max);
    attention_store(a, a->stats, &s, i, k_int(k, 1), sum);
    end_lanes(a);
}

static void lower_attention_emit_tile(struct attention *a)
{
    struct kernel *k = a->w->k;
    attention_bring_rows(a);
    lower_attention_start(a);
    if (ranges(a))
        attention_store_ranges(a);
    if (a->m) {
        attention_tile_range(a);
        val from = a->bounds ? ix_scale(k, k_prim(k, P_DIV, a->first, k_int(k, a->block), 0), a->block) : k_int(k, 0);
        a->k0 = k_loop(k, LOOP_SERIAL, from, a->end, a->block);
        ix_bound(k, a->k0, 0, a->m - 1);
        lower_attention_emit_block(a);
        k_end(k, a->k0);
    }
    if (a->n->op == OP_attention)
        attention_store_tile(a, 0, a->e, true, 1);
    if (a->stats)
        store_stats(a);
}

uint32_t attention_scratch(const struct attention *a, unsigned dtype, int64_t rows)
{
    return k_buf(a->w->k, BUF_SCRATCH, dtype, rows * a->width, 0);
}

static void make_scratch(struct attention *a)
{
    if (a->d)
        a->q = attention_scratch(a, a->dtype, a->d);
    a->score = attention_scratch(a, a->dtype, a->rows + a->block);
    if (a->e)
        a->total = attention_scratch(a, a->dtype, a->e);
    a->max = attention_scratch(a, a->dtype, 1);
    a->larger = attention_scratch(a, a->dtype, 1);
    a->sum = attention_scratch(a, a->dtype, 1);
    a->shrink = attention_scratch(a, a->dtype, 1);
    if (ranges(a)) {
        a->lo = attention_scratch(a, a->index, 1);
        a->hi = attention_scratch(a, a->index, 1);
    }
    if (partial(a))
        a->unmasked = attention_scratch(a, KL_BOOL, a->rows + a->block);
    attention_make_panel(a, K);
    if (a->e)
        attention_make_panel(a, V);
}

void attention_make_panel(struct attention *a, unsigned which)
{
    int64_t columns = a->columns[which] ? a->columns[which] : 1;
    if (a->widen && (a->w->g->node[a->n->in[which]].dtype != a->dtype || attention_computes(a, which)))
        a->panel[which] = 1 + k_buf(a->w->k, BUF_SCRATCH, a->dtype, (a->rows + a->block) * columns, 0);
}

struct attention_facts attention_facts_of(const struct attention *a, enum gradient_kind gradient, bool results)
{
    return (struct attention_facts){.w = a->w, .gradient = gradient, .l = a->l, .m = a->m, .d = a->d, .e = a->e,
                                    .block = a->block, .element = (int64_t)dtype_size(a->dtype),
                                    .matrices = results ? shape_count(&a->lead) : 0,
                                    .computes = attention_computes(a, K) || attention_computes(a, V),
                                    .half = a->w->g->node[a->n->in[K]].dtype != a->dtype};
}

void attention_follow(struct attention *a, const struct schedule *s)
{
    bool one = s->kind == SCHED_ATTENTION_ONE;
    a->width = s->width;
    a->rows = one ? s->attention_one.rows : s->attention.rows;
    a->keys = one ? s->attention_one.keys : 0;
    a->one_lanes = one ? s->attention_one.lanes : 0;
    a->square = one ? 0 : s->attention.square;
    a->widen = !one && s->attention.widen;
    a->index = a->m < INT32_MAX - a->block ? KL_I32 : KL_I64;
}

int64_t attention_extent(const struct attention *a, int64_t matrices)
{
    return matrices * ((a->l + a->width - 1) / a->width);
}

void attention_begin(struct attention *a, int64_t extent, struct tasks *t)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    int64_t max = (a->l + a->width - 1) / a->width;
    val tiles = ix_div(k, ix_add(k, own_rows(a), k_int(k, a->width - 1)), a->width), matrix, tile;
    val p = lower_tasks(w, extent, extent ? ix_mul(k, ix_size(k, kernel_count(k, &a->lead)), tiles) : 0, t);
    if (!extent)
        return;
    if (size_is_constant(a->own_size)) {
        matrix = ix_div(k, p, max);
        tile = ix_mod(k, p, max);
    } else {
        matrix = ix_quotient(k, p, tiles, max, &tile);
    }
    lower_unflatten(k, &a->lead, matrix, a->coord);
    a->q0 = ix_scale(k, tile, a->width);
}

void lower_attention_group(struct lowering *w)
{
    struct kernel *k = w->k;
    ref stats = NIL;
    for (uint32_t m = 0; m < w->nmember; m++)
        if (w->g->node[w->member[m]].op == OP_attention_stats)
            stats = w->member[m];
        else if (op_is_attention(w->g->node[w->member[m]].op))
            w->anchor = w->member[m];
    const struct node *n = &w->g->node[w->anchor];
    const struct shape *key = node_shape(w->g, n->in[K]);
    struct attention a = {.w = w, .n = n, .out = *node_shape(w->g, w->anchor), .lead = *node_shape(w->g, n->in[Q]),
                          .stats = stats};
    bool given = n->nin == opinfo[n->op].nin;
    if (n->op == OP_attention_grad) {
        lower_attention_grad_group(w);
        return;
    }
    a.lead.rank -= 2;
    a.l = a.lead.dim[a.lead.rank];
    a.d = a.lead.dim[a.lead.rank + 1];
    a.m = key->dim[a.lead.rank];
    a.own_size = kernel_length(k, a.l);
    a.iterated_size = kernel_length(k, a.m);
    a.e = n->op == OP_attention ? a.out.dim[a.lead.rank + 1] : 0;
    a.columns[Q] = a.columns[K] = a.d;
    a.columns[V] = a.e;
    a.mask_in = n->nin - 1u;
    a.block = n->attr.attention.block;
    a.dtype = dtype_compute(n->dtype);
    a.causal = n->attr.attention.causal;
    a.mask = given && w->g->node[n->in[a.mask_in]].dtype == KL_BOOL;
    a.bounds = given && !a.mask;
    if (!a.block) {
        err_set(&k->err, KL_ERR_INTERNAL, "attention: node %u has no numeric order", w->anchor);
        return;
    }
    struct attention_facts facts = attention_facts_of(&a, GRADIENT_NONE, a.e || stats);
    facts.factors = attention_has_matrices(&a, false, false) ? w->g->node[n->in[K]].dtype + 1 : 0;
    facts.views = facts.factors && attention_has_views(&a, false, false);
    facts.blocks = attention_has_blocks(&a);
    a.matrices = facts.matrices;
    select_family(w, GROUP_attention, &facts, &a);
}

void attention_emit(struct attention *a, const struct schedule *s)
{
    struct tasks t;
    attention_follow(a, s);
    int64_t extent = attention_extent(a, a->matrices);
    if (extent)
        make_scratch(a);
    lower_scalars(a->w);
    attention_begin(a, extent, &t);
    if (extent)
        lower_attention_emit_tile(a);
    lower_tasks_end(a->w, &t);
}

void attention_one_emit(struct attention *a, const struct schedule *s) { attention_emit(a, s); }
