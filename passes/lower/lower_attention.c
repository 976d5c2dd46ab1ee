/* Attention: one pass over the keys for a tile of queries, each a lane of the vector loops.
 *
 * An iteration of the parallel loop owns W neighbouring queries of one matrix.  It holds in scratch, a row of W lanes
 * for each: q's elements, transposed; a block of scores, then of weights; and the values' totals, transposed too.  For
 * each block of keys (node.h, "Numeric order") it walks three times: scores and the largest of them; weights and their
 * sum; the values.  Both products are tiles of R rows (keys; elements of v) by W lanes in registers, each step one
 * vector of scratch and R elements of k or v as they lie in memory, spread over the lanes.  So nothing is packed but q,
 * once; the largest, the sums and the masks are lane by lane, with no folds; and k and v may be any views.
 *
 * Keys before the first and behind the last that one of the tile's queries sees are not touched.  Between them a query
 * keeps out what it does not see by selects, which leave its sums bit for bit as if it had walked alone, whatever the
 * tile.
 *
 * Of a query without neighbours keys are the lanes in the first two walks, elements of v in the last
 * (lower_attention_one.c).
 *
 * q comes into its transposed form, and the values' totals out of it, in squares that registers transpose: gathering
 * and scattering takes a sixth of the time where there are 128 keys.  Half floats of k and v are widened a block at a
 * time. */
#include "lower_attention.h"
#include <string.h>

/* STEPS: of D at a time; NATIVE_VECTORS: registers of a row of lanes; MAX_ONE_LANES: elements of v, of one query */
enum { STEPS = 2, NATIVE_VECTORS = 2, MAX_ONE_LANES = 64 };

/* ---- elements ---- */

static void coord_of(const struct attention *a, val row, val column, val coord[KL_MAX_RANK])
{
    memset(coord, 0, KL_MAX_RANK * sizeof *coord);
    memcpy(coord, a->coord, a->lead.rank * sizeof *coord);
    coord[a->lead.rank] = row;
    coord[a->lead.rank + 1] = column;
}

val attention_element(const struct attention *a, unsigned which, val row, val column)
{
    struct lowering *w = a->w;
    val coord[KL_MAX_RANK];
    coord_of(a, row, column, coord);
    lower_point(w);
    val x = lower_at(w, a->n->in[which], coord);
    return which == SEEN ? x : k_cast(w->k, x, a->dtype);
}

static val panel_index(const struct attention *a, unsigned which, val j, val column)
{
    return ix_add(a->w->k, ix_scale(a->w->k, block_row(a, j), which == K ? a->d : a->e), column);
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

/* Element `row` of this lane in scratch. */
static val lower_attention_place(const struct attention *a, val row)
{
    return ix_add(a->w->k, ix_scale(a->w->k, row, a->width), a->w->lane);
}
static val get(const struct attention *a, uint32_t buf, val row)
{
    return k_load(a->w->k, buf, lower_attention_place(a, row), 0);
}
static void lower_attention_put(const struct attention *a, uint32_t buf, val row, val x)
{
    k_store(a->w->k, buf, lower_attention_place(a, row), k_splat(a->w->k, x), 0);
}

static val first(const struct attention *a) { return k_int(a->w->k, 0); } /* of scratch with one row */

static void begin_lanes(const struct attention *a)
{
    struct lowering *w = a->w;
    w->lane = k_loop(w->k, LOOP_VECTOR, k_int(w->k, 0), k_int(w->k, a->width), 1);
}

/* This lane's query; the last tile's lanes may have none, which w->pred says. */
static val query(const struct attention *a)
{
    struct lowering *w = a->w;
    val i = ix_add(w->k, a->q0, w->lane);
    if (a->l % a->width)
        w->pred = k_prim(w->k, P_LT, i, k_int(w->k, a->l), 0);
    ix_bound(w->k, i, 0, a->l - 1); /* of the lanes that exist */
    return i;
}

/* ---- what each query sees ---- */

/* Writes into scratch from which key on and before which one each lane sees them, masks non_fusible; lanes without a
 * query see none. */
static void store_ranges(const struct attention *a)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val lo = k_int(k, 0), hi = k_int(k, a->m);
    begin_lanes(a);
    val i = query(a);
    if (a->causal) {
        hi = ix_add(k, i, k_int(k, a->m - a->l + 1));
        hi = a->m < a->l ? greater(k, hi, k_int(k, 0)) : hi;
    }
    if (a->bounds) {
        val end = lower_index(k, attention_element(a, SEEN, i, k_int(k, 1)), a->m);
        lo = lower_index(k, attention_element(a, SEEN, i, k_int(k, 0)), a->m);
        hi = a->causal ? smaller(k, hi, end) : end;
    }
    if (w->pred)
        hi = k_prim(k, P_SELECT, w->pred, hi, k_int(k, 0));
    lower_attention_put(a, a->lo, first(a), k_cast(k, lo, a->index));
    lower_attention_put(a, a->hi, first(a), k_cast(k, hi, a->index));
    end_lanes(a);
}

/* The keys from the first that one of the queries sees to the last. */
static void tile_range(struct attention *a)
{
    struct kernel *k = a->w->k;
    a->first = k_int(k, 0);
    a->end = k_int(k, a->m);
    if (!ranges(a))
        return;
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, a->width), 1);
    val least = k_carry(k, k_bits(k, a->index, (uint64_t)a->m)), most = k_carry(k, k_bits(k, a->index, 0));
    val lo = k_load(k, a->lo, i, 0), hi = k_load(k, a->hi, i, 0), some = k_prim(k, P_LT, lo, hi, 0);
    val less = k_prim(k, P_SELECT, some, smaller(k, lo, least), least);
    val more = k_prim(k, P_SELECT, some, greater(k, hi, most), most);
    k_next(k, least, less);
    k_next(k, most, more);
    k_end(k, i);
    a->first = k_cast(k, k_out(k, least), KL_I64);
    a->end = k_cast(k, k_out(k, most), KL_I64);
}

/* Does this lane's query see the block's key number j? */
static val sees(const struct attention *a, val j)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val key = ix_add(k, a->k0, j), number = k_cast(k, key, a->index), s = 0;
    if (ranges(a))
        s = k_prim(k, P_LT, number, get(a, a->hi, first(a)), 0);
    if (a->bounds)
        s = k_prim(k, P_AND, s, k_prim(k, P_LE, get(a, a->lo, first(a)), number, 0), 0);
    if (a->mask) {
        ix_bound(k, key, 0, a->m - 1);
        val m = attention_element(a, SEEN, query(a), key);
        s = s ? k_prim(k, P_AND, s, m, 0) : m;
        w->pred = 0;
    }
    return k_splat(k, s);
}

/* ---- one block of keys, a tile of queries ---- */

/* The block's rows from number lo on and before hi, widened, into the panel. */
static void lower_attention_widen(const struct attention *a, unsigned which, val lo, val hi)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    int64_t columns = which == K ? a->d : a->e;
    if (!columns)
        return;
    val j = k_loop(k, LOOP_SERIAL, lo, hi, 1), key = ix_add(k, a->k0, j);
    ix_bound(k, key, 0, a->m - 1);
    for (int tail = 0; tail < 2; tail++) {
        int64_t whole = columns / a->width * a->width, rest = columns % a->width;
        if (tail ? !rest : !whole)
            continue;
        val c = tail ? 0 : k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), a->width);
        begin_lanes(a);
        val column = ix_add(k, tail ? k_int(k, whole) : c, w->lane);
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

/* The products of `steps` elements from `from` on of these R keys. */
static void lower_attention_multiply(const struct attention *a, const val *key, val from, int64_t steps, val *acc)
{
    struct kernel *k = a->w->k;
    for (int64_t u = 0; u < steps; u++) {
        val column = ix_add(k, from, k_int(k, u)), q = get(a, a->q, column);
        for (int64_t r = 0; r < a->rows; r++)
            acc[r] = k_prim(k, P_FMA, q, attention_in_block(a, K, key[r], column), acc[r]);
    }
}

val attention_keys(const struct attention *a, val j0, val *key)
{
    struct kernel *k = a->w->k;
    if (a->m % a->rows && a->m >= a->rows) {
        j0 = smaller(k, j0, k_prim(k, P_SUB, k_int(k, a->m - a->rows), a->k0, 0));
        ix_bound(k, j0, -a->rows, a->block - a->rows);
    }
    for (int64_t r = 0; r < a->rows; r++) {
        key[r] = ix_add(k, j0, k_int(k, r));
        if (r && a->m < a->rows) /* so few that they are computed several times */
            key[r] = k_int(k, r < a->m ? r : a->m - 1);
    }
    return j0;
}

/* Scores of R keys. */
static void score_tile(const struct attention *a, val j0)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val acc[MAX_ROWS], key[MAX_ROWS], carry[MAX_ROWS];
    attention_keys(a, j0, key);
    begin_lanes(a);
    for (int64_t r = 0; r < a->rows; r++)
        acc[r] = k_splat(k, of(a, 0));
    int64_t whole = a->d / STEPS * STEPS;
    if (whole) {
        val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), STEPS);
        for (int64_t r = 0; r < a->rows; r++)
            acc[r] = carry[r] = k_carry(k, acc[r]);
        lower_attention_multiply(a, key, c, STEPS, acc);
        for (int64_t r = 0; r < a->rows; r++)
            k_next(k, carry[r], acc[r]);
        k_end(k, c);
        for (int64_t r = 0; r < a->rows; r++)
            acc[r] = k_out(k, carry[r]);
    }
    lower_attention_multiply(a, key, k_int(k, whole), a->d - whole, acc);
    val most = get(a, a->larger, first(a)), scale = of(a, dtype_value(KL_F64, a->n->attr.attention.scale));
    for (int64_t r = 0; r < a->rows; r++) {
        val s = k_prim(k, P_MUL, acc[r], scale, 0), x = s;
        if (partial(a)) {
            val seen = sees(a, key[r]);
            lower_attention_put(a, a->seen, block_row(a, key[r]), seen);
            x = k_prim(k, P_SELECT, seen, s, k_splat(k, of(a, -INFINITY)));
        }
        lower_attention_put(a, a->score, block_row(a, key[r]), s);
        most = k_fold_step(k, FOLD_MAX, most, x);
    }
    lower_attention_put(a, a->larger, first(a), most);
    end_lanes(a);
}

/* Scores become weights, and their sum comes to the total.  A key that the query does not see may have a score above
 * the largest: its weight is then not used. */
static void weigh(const struct attention *a)
{
    struct kernel *k = a->w->k;
    begin_lanes(a);
    val larger = get(a, a->larger, first(a)), none = k_splat(k, of(a, -INFINITY));
    val base = k_prim(k, P_SELECT, k_prim(k, P_EQ, larger, none, 0), k_splat(k, of(a, 0)), larger);
    val shrink = k_prim(k, P_SUB, get(a, a->most, first(a)), base, 0);
    shrink = k_exp_down(k, shrink);
    val start = k_splat(k, of(a, -0.0)), j = k_loop(k, LOOP_SERIAL, a->from, a->until, 1), sum = k_carry(k, start);
    val x = k_prim(k, P_SUB, get(a, a->score, block_row(a, j)), base, 0), weight = k_exp_down(k, x);
    lower_attention_put(a, a->score, block_row(a, j), weight);
    val more = k_prim(k, P_ADD, sum, weight, 0);
    k_next(k, sum, partial(a) ? k_prim(k, P_SELECT, get(a, a->seen, block_row(a, j)), more, sum) : more);
    k_end(k, j);
    lower_attention_put(a, a->sum, first(a), k_prim(k, P_FMA, get(a, a->sum, first(a)), shrink, k_out(k, sum)));
    lower_attention_put(a, a->shrink, first(a), shrink);
    lower_attention_put(a, a->most, first(a), larger);
    end_lanes(a);
}

/* Elements c0 .. c0 + rows - 1 of the values, weighed, come to the totals. */
static void value_tile(const struct attention *a, val c0, int64_t rows)
{
    struct kernel *k = a->w->k;
    val acc[MAX_ROWS], carry[MAX_ROWS];
    begin_lanes(a);
    val start = k_splat(k, of(a, -0.0)), shrink = get(a, a->shrink, first(a));
    val j = k_loop(k, LOOP_SERIAL, a->from, a->until, 1);
    for (int64_t r = 0; r < rows; r++)
        carry[r] = k_carry(k, start);
    val weight = get(a, a->score, block_row(a, j)), seen = partial(a) ? get(a, a->seen, block_row(a, j)) : 0;
    for (int64_t r = 0; r < rows; r++) {
        acc[r] = k_prim(k, P_FMA, weight, attention_in_block(a, V, j, ix_add(k, c0, k_int(k, r))), carry[r]);
        acc[r] = seen ? k_prim(k, P_SELECT, seen, acc[r], carry[r]) : acc[r];
    }
    for (int64_t r = 0; r < rows; r++)
        k_next(k, carry[r], acc[r]);
    k_end(k, j);
    for (int64_t r = 0; r < rows; r++) {
        val c = ix_add(k, c0, k_int(k, r));
        lower_attention_put(a, a->total, c, k_prim(k, P_FMA, get(a, a->total, c), shrink, k_out(k, carry[r])));
    }
    end_lanes(a);
}

/* ---- one block of keys ---- */

static void values(const struct attention *a, val c0, int64_t columns)
{
    if (a->one_lanes)
        attention_value_lanes(a, c0, columns);
    else
        value_tile(a, c0, columns);
}

static void lower_attention_emit_block(struct attention *a)
{
    struct kernel *k = a->w->k;
    val left = ix_sub(k, k_int(k, a->m), a->k0), end = k_int(k, a->block);
    end = a->m % a->block ? smaller(k, left, end) : end;
    a->from = a->bounds ? greater(k, ix_sub(k, a->first, a->k0), k_int(k, 0)) : k_int(k, 0);
    a->until = ranges(a) ? smaller(k, ix_sub(k, a->end, a->k0), end) : end;
    val whole = a->bounds ? ix_scale(k, k_prim(k, P_DIV, a->from, k_int(k, a->rows), 0), a->rows) : a->from;
    if (a->panel[K])
        lower_attention_widen(a, K, a->m % a->rows && a->m >= a->rows
                              ? smaller(k, whole, ix_sub(k, left, k_int(k, a->rows))) : whole, end);
    if (a->panel[V])
        lower_attention_widen(a, V, a->from, a->until);
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
        weigh(a);
    int64_t step = a->one_lanes ? a->one_lanes : a->rows, most = a->e / step * step;
    if (most) {
        val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, most), step);
        values(a, c, step);
        k_end(k, c);
    }
    if (a->e > most)
        values(a, k_int(k, most), a->e - most);
}

/* ---- one tile of queries ---- */

/* Loops over whole squares of `columns` by queries; *c, *i: the first column and query of one.  false: there are
 * none. */
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

/* How many columns squares do not reach. */
static int64_t behind_squares(const struct attention *a, int64_t columns)
{
    return a->square ? columns % a->square : columns;
}

/* The queries, transposed; lanes without one have another. */
static void bring_queries(const struct attention *a)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val c, i, row[MAX_SQUARE];
    if (begin_squares(a, a->d, &c, &i)) {
        for (int64_t r = 0; r < a->square; r++) {
            val at = ix_add(k, ix_add(k, a->q0, i), k_int(k, r)), inside;
            at = lower_inside(k, at, a->l - 1, &inside);
            row[r] = k_splat(k, attention_element(a, Q, at, ix_add(k, c, w->lane)));
        }
        k_transpose(k, row, (uint32_t)a->square);
        for (int64_t r = 0; r < a->square; r++) {
            val at = ix_add(k, ix_scale(k, ix_add(k, c, k_int(k, r)), a->width), i);
            k_store(k, a->q, ix_add(k, at, w->lane), row[r], 0);
        }
        end_squares(a, c, i);
    }
    int64_t rest = behind_squares(a, a->d);
    if (!rest)
        return;
    begin_lanes(a);
    i = query(a);
    c = k_loop(k, LOOP_SERIAL, k_int(k, a->d - rest), k_int(k, a->d), 1);
    val x = attention_element(a, Q, i, c);
    lower_attention_put(a, a->q, c, x);
    k_end(k, c);
    end_lanes(a);
}

static void lower_attention_start(const struct attention *a)
{
    struct kernel *k = a->w->k;
    begin_lanes(a);
    lower_attention_put(a, a->most, first(a), of(a, -INFINITY));
    lower_attention_put(a, a->larger, first(a), of(a, -INFINITY));
    lower_attention_put(a, a->sum, first(a), of(a, 0));
    val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, a->e), 1);
    lower_attention_put(a, a->total, c, of(a, 0));
    k_end(k, c);
    end_lanes(a);
}

static void store_result(const struct attention *a, val i, val c, val x)
{
    struct lowering *w = a->w;
    val coord[KL_MAX_RANK];
    coord_of(a, i, c, coord);
    k_store(w->k, lower_buffer(w, w->anchor, BUF_OUT), lower_flatten(w->k, &a->out, coord),
            k_cast(w->k, x, a->n->dtype), w->pred);
}

/* A total over the sum of the weights. */
static val mean(const struct attention *a, val total, val sum)
{
    struct kernel *k = a->w->k;
    val zero = k_splat(k, of(a, 0));
    return k_prim(k, P_SELECT, k_prim(k, P_EQ, sum, zero, 0), zero, k_prim(k, P_DIV, total, sum, 0));
}

static void lower_attention_finish(const struct attention *a)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val c, i, row[MAX_SQUARE];
    if (begin_squares(a, a->e, &c, &i)) {
        val sum = k_load(k, a->sum, ix_add(k, i, w->lane), 0);
        for (int64_t r = 0; r < a->square; r++) {
            val at = ix_add(k, ix_scale(k, ix_add(k, c, k_int(k, r)), a->width), i);
            row[r] = mean(a, k_load(k, a->total, ix_add(k, at, w->lane), 0), sum);
        }
        k_transpose(k, row, (uint32_t)a->square);
        for (int64_t r = 0; r < a->square; r++) {
            val at = ix_add(k, ix_add(k, a->q0, i), k_int(k, r));
            w->pred = a->l % a->width ? k_splat(k, k_prim(k, P_LT, at, k_int(k, a->l), 0)) : 0;
            store_result(a, at, ix_add(k, c, w->lane), row[r]);
        }
        end_squares(a, c, i);
    }
    int64_t rest = behind_squares(a, a->e);
    if (!rest)
        return;
    begin_lanes(a);
    val sum = get(a, a->sum, first(a));
    i = query(a);
    c = k_loop(k, LOOP_SERIAL, k_int(k, a->e - rest), k_int(k, a->e), 1);
    store_result(a, i, c, mean(a, get(a, a->total, c), sum));
    k_end(k, c);
    end_lanes(a);
}

static void lower_attention_emit_tile(struct attention *a)
{
    struct kernel *k = a->w->k;
    bring_queries(a);
    lower_attention_start(a);
    if (ranges(a))
        store_ranges(a);
    if (a->m) {
        tile_range(a);
        val from = a->bounds ? ix_scale(k, k_prim(k, P_DIV, a->first, k_int(k, a->block), 0), a->block) : k_int(k, 0);
        a->k0 = k_loop(k, LOOP_SERIAL, from, a->end, a->block);
        ix_bound(k, a->k0, 0, a->m - 1);
        lower_attention_emit_block(a);
        k_end(k, a->k0);
    }
    lower_attention_finish(a);
}

static uint32_t lanes_of_scratch(const struct attention *a, unsigned dtype, int64_t rows)
{
    return k_buf(a->w->k, BUF_SCRATCH, dtype, rows * a->width, 0);
}

static void make_scratch(struct attention *a)
{
    if (a->d)
        a->q = lanes_of_scratch(a, a->dtype, a->d);
    a->score = lanes_of_scratch(a, a->dtype, a->rows + a->block);
    a->total = lanes_of_scratch(a, a->dtype, a->e);
    a->most = lanes_of_scratch(a, a->dtype, 1);
    a->larger = lanes_of_scratch(a, a->dtype, 1);
    a->sum = lanes_of_scratch(a, a->dtype, 1);
    a->shrink = lanes_of_scratch(a, a->dtype, 1);
    if (ranges(a)) {
        a->lo = lanes_of_scratch(a, a->index, 1);
        a->hi = lanes_of_scratch(a, a->index, 1);
    }
    if (partial(a))
        a->seen = lanes_of_scratch(a, KL_BOOL, a->rows + a->block);
    if (a->dtype != a->n->dtype && !a->w->caps->block_threads && !a->one_lanes) {
        a->panel[K] = 1 + k_buf(a->w->k, BUF_SCRATCH, a->dtype, (a->rows + a->block) * (a->d ? a->d : 1), 0);
        a->panel[V] = 1 + k_buf(a->w->k, BUF_SCRATCH, a->dtype, (a->rows + a->block) * a->e, 0);
    }
}

void lower_attention_group(struct lowering *w)
{
    struct kernel *k = w->k;
    const struct node *n = &w->g->node[w->anchor];
    const struct caps *caps = w->caps;
    const struct shape *key = node_shape(w->g, n->in[K]);
    struct attention a = {.w = w, .n = n, .out = *node_shape(w->g, w->anchor), .lead = *node_shape(w->g, n->in[Q])};
    bool given = n->nin == 4;
    a.lead.rank -= 2;
    a.l = a.lead.dim[a.lead.rank];
    a.d = a.lead.dim[a.lead.rank + 1];
    a.m = key->dim[a.lead.rank];
    a.e = a.out.dim[a.lead.rank + 1];
    a.block = n->attr.attention.block;
    a.dtype = dtype_compute(n->dtype);
    a.causal = n->attr.attention.causal;
    a.mask = given && w->g->node[n->in[SEEN]].dtype == KL_BOOL;
    a.bounds = given && !a.mask;
    if (!a.block) {
        err_set(&k->err, KL_ERR_INTERNAL, "attention: node %u has no numeric order", w->anchor);
        return;
    }
    a.width = NATIVE_VECTORS * caps->vector_bytes / (int64_t)dtype_size(a.dtype);
    while (a.width > 1 && a.width / 2 >= a.l)
        a.width /= 2;
    if (w->override)
        a.width = w->override->width;
    a.rows = caps->vector_regs >= 32 ? MAX_ROWS : MAX_ROWS / 2;
    while (a.block % a.rows)
        a.rows--;
    a.keys = caps->block_threads ? 0 : caps->vector_bytes / (int64_t)dtype_size(a.dtype);
    a.keys = a.keys > MAX_SQUARE ? MAX_SQUARE : a.keys;
    a.square = a.keys >= 2 && a.width % a.keys == 0 ? a.keys : 0;
    if (a.width == 1 && a.keys >= 2 && a.block % (ONE_SQUARES * a.keys) == 0) {
        a.rows = ONE_SQUARES * a.keys;
        a.one_lanes = MAX_ONE_LANES;
        while (a.one_lanes > 1 && a.one_lanes / 2 >= a.e)
            a.one_lanes /= 2;
    }
    a.index = a.m < INT32_MAX - a.block ? KL_I32 : KL_I64;
    int64_t tiles = (a.l + a.width - 1) / a.width;
    k->sched.kind = SCHED_ATTENTION;
    k->sched.width = (uint16_t)a.width;
    k->extent = a.e ? shape_count(&a.lead) * tiles : 0;
    if (k->extent)
        make_scratch(&a);
    lower_scalars(w);
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1);
    if (k->extent) {
        lower_unflatten(k, &a.lead, ix_div(k, p, tiles), a.coord);
        a.q0 = ix_scale(k, ix_mod(k, p, tiles), a.width);
        lower_attention_emit_tile(&a);
    }
    k_end(k, p);
    lower_grain(w, a.width * (a.m * (a.d + a.e) + a.d + a.e) / 16);
}
