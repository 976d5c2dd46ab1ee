/* The gradient of attention (op_attention_grad.c), in q, in k and v, or in all three.  The rows of one side are lanes,
 * and the rows of the other side are iterated over, as in lower_attention.c, whose tiles of products are used here.
 *
 * An iteration of the parallel loop owns W neighbouring rows: queries for the gradient in q, keys for the gradients
 * in k and v.  For each block of the other side's rows it computes scores and dp (two tiles of products), then p and
 * ds of the whole block, then what these add to the totals.  Only the totals of its own rows are stored.
 *
 * A kernel of both nodes computes scores and dp once: five products of L x M instead of seven.  Its lanes are queries,
 * and an iteration of the parallel loop owns a whole matrix: tiles of queries, each as wide as a block of the numeric
 * order, in ascending order.  For each block of keys it computes p and ds, adds to the tile's totals, and adds what the
 * tile's queries give to the gradients in k and v to a table in scratch, [M][D + E], columns as lanes.  A row of the
 * table gets the sums of blocks of queries in ascending order, as in the kernel of keys: they are the same bits.
 * Blocks without a mask are computed by a second copy of the code, without selects.
 *
 * Rows that are masked for all rows of the tile are skipped.  With causality, a tile of queries ends at the last key
 * that its last query attends to, and a tile of keys begins at the first query that attends to its first key.  With
 * bounds, a tile of queries iterates from the first key that one of them attends to until the last one, and a tile of
 * keys skips blocks of queries that attend to none of its keys. */
#include "lower_attention.h"

enum { X, Y, STATS };                   /* operands: q and dy of queries, k and v of keys */
enum { STAT_MAX, INVERSE, DELTA, STAT_COUNT };

struct gradient {
    struct attention a;                 /* first: the families' functions get a pointer to it */
    bool keys;                          /* keys are lanes */
    unsigned other;                     /* the operand whose rows are iterated over */
    uint32_t p, ds;                     /* scratch lbufs with dimensions [block][W] */
    uint32_t stat[STAT_COUNT];          /* lbufs [W], if queries are lanes */
    ref both;                           /* the node of the gradient in k and v, if this kernel computes it beside that
                                           in q; NIL: it does not */
    uint32_t table;                     /* lbuf [M][D + E]: the totals of that node */
    int64_t lanes;                      /* of its columns */
    val count;                          /* queries of the tile */
};

/* The range of keys that the query of iterated row j of the block attends to. */
static void bounds_of(const struct attention *a, val j, val *lo, val *hi)
{
    struct kernel *k = a->w->k;
    val query = ix_add(k, a->k0, j);
    ix_bound(k, query, 0, a->m - 1);
    *lo = lower_index_to(k, attention_element(a, MASK, query, k_int(k, 0)), own_rows(a));
    *hi = lower_index_to(k, attention_element(a, MASK, query, k_int(k, 1)), own_rows(a));
}

/* Is this lane's key unmasked for the query of iterated row j of the block? */
static val key_is_unmasked(const struct attention *a, val j)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val key = attention_row(a), query = ix_add(k, a->k0, j), s = 0;
    w->pred = 0;
    ix_bound(k, query, 0, a->m - 1);
    if (a->causal) /* l keys, m queries */
        s = k_prim(k, P_LE, k_cast(k, key, a->index),
                   k_cast(k, ix_add(k, query, ix_sub(k, own_rows(a), iterated_rows(a))), a->index), 0);
    if (a->bounds) {
        val lo, hi;
        bounds_of(a, j, &lo, &hi);
        val inside = k_prim(k, P_AND, k_prim(k, P_LE, k_cast(k, lo, a->index), k_cast(k, key, a->index), 0),
                            k_prim(k, P_LT, k_cast(k, key, a->index), k_cast(k, hi, a->index), 0), 0);
        s = s ? k_prim(k, P_AND, s, inside, 0) : inside;
    }
    if (a->mask) {
        attention_row(a);
        val m = attention_element(a, MASK, query, key);
        s = s ? k_prim(k, P_AND, s, m, 0) : m;
        w->pred = 0;
    }
    return k_splat(k, s);
}

/* Column c of the statistics of a lane's query, or of the query of iterated row j of the block. */
static val load_statistic(const struct gradient *t, unsigned c, val j)
{
    const struct attention *a = &t->a;
    struct kernel *k = a->w->k;
    if (!t->keys)
        return attention_get(a, t->stat[c], first(a));
    val query = ix_add(k, a->k0, j);
    ix_bound(k, query, 0, a->m - 1);
    return k_splat(k, attention_element(a, STATS, query, k_int(k, (int64_t)c)));
}

/* Computes the scores and dp of R iterated rows from number j0 of the block on, and a mask of the pairs. */
static void gradient_products(const struct gradient *t, val j0)
{
    const struct attention *a = &t->a;
    struct kernel *k = a->w->k;
    val acc[MAX_ROWS], row[MAX_ROWS];
    attention_keys(a, j0, row);
    begin_lanes(a);
    for (int dp = 0; dp < 2; dp++) {
        for (int64_t r = 0; r < a->rows; r++)
            acc[r] = k_splat(k, of(a, 0));
        attention_products(a, t->other, row, dp ? a->d : 0, dp ? a->d + a->e : a->d, acc);
        val scale = of(a, dtype_value(KL_F64, a->n->attr.attention.scale));
        for (int64_t r = 0; r < a->rows; r++)
            attention_put(a, dp ? t->ds : t->p, block_row(a, row[r]),
                          dp ? acc[r] : k_prim(k, P_MUL, acc[r], scale, 0));
    }
    for (int64_t r = 0; r < a->rows && partial(a); r++)
        attention_put(a, a->unmasked, block_row(a, row[r]),
                      t->keys ? key_is_unmasked(a, row[r]) : attention_unmasked(a, row[r]));
    end_lanes(a);
}

/* Computes p and ds of the block.  The score of an unseen pair may be above the maximum; its result is not used. */
static void gradient_weights(const struct gradient *t)
{
    const struct attention *a = &t->a;
    struct kernel *k = a->w->k;
    begin_lanes(a);
    val j = k_loop(k, LOOP_SERIAL, a->from, a->until, 1), at = block_row(a, j);
    val x = k_prim(k, P_SUB, attention_get(a, t->p, at), load_statistic(t, STAT_MAX, j), 0);
    val p = k_prim(k, P_MUL, k_exp_nonpositive(k, x), load_statistic(t, INVERSE, j), 0);
    val less = k_prim(k, P_SUB, attention_get(a, t->ds, at), load_statistic(t, DELTA, j), 0);
    attention_put(a, t->p, at, p);
    attention_put(a, t->ds, at, k_prim(k, P_MUL, less, p, 0));
    k_end(k, j);
    end_lanes(a);
}

/* Adds the block's part to columns c0 .. c0 + rows - 1 of the totals. */
static void gradient_sum(const struct gradient *t, uint32_t weight, val c0, int64_t rows)
{
    const struct attention *a = &t->a;
    struct kernel *k = a->w->k;
    val sum[MAX_ROWS];
    begin_lanes(a);
    attention_weighed(a, t->other, weight, c0, rows, sum);
    for (int64_t r = 0; r < rows; r++) {
        val c = ix_add(k, c0, k_int(k, r));
        attention_put(a, a->total, c, k_prim(k, P_ADD, attention_get(a, a->total, c), sum[r], 0));
    }
    end_lanes(a);
}

static void gradient_sums(const struct gradient *t, uint32_t weight, int64_t from, int64_t columns)
{
    const struct attention *a = &t->a;
    struct kernel *k = a->w->k;
    int64_t max = columns / a->rows * a->rows;
    if (max) {
        val c = k_loop(k, LOOP_SERIAL, k_int(k, from), k_int(k, from + max), a->rows);
        gradient_sum(t, weight, c, a->rows);
        k_end(k, c);
    }
    if (columns > max)
        gradient_sum(t, weight, k_int(k, from + max), columns - max);
}

/* ---- both gradients in one kernel ---- */

/* The queries of the tile as a block of rows that are iterated over. */
static struct attention tile_of_queries(const struct attention *a)
{
    struct attention x = *a;
    x.m = a->l;
    x.iterated_size = a->own_size;
    x.k0 = a->q0;
    return x;
}

static int64_t table_width(const struct gradient *t) { return t->a.d + t->a.e; }

static val table_index(const struct gradient *t, val key, val column)
{
    struct kernel *k = t->a.w->k;
    ix_bound(k, key, 0, t->a.m - 1);
    return ix_add(k, ix_scale(k, key, table_width(t)), column);
}

/* Opens a vector loop over columns c, c + 1, ..; some: only so many of its lanes have one, 0: all. */
static val begin_columns(const struct gradient *t, val c, int64_t some)
{
    struct lowering *w = t->a.w;
    w->lane = k_loop(w->k, LOOP_VECTOR, k_int(w->k, 0), k_int(w->k, t->lanes), 1);
    w->pred = some ? k_prim(w->k, P_LT, w->lane, k_int(w->k, some), 0) : 0;
    val column = ix_add(w->k, c, w->lane);
    ix_bound(w->k, column, 0, table_width(t) - 1);
    return column;
}

/* Adds to columns c, c + 1, .. of the table, for `rows` keys from number j of the block on, the sum over the tile's
 * queries of weight * an element of q or dy. */
static void table_tile(const struct gradient *t, uint32_t weight, val c, int64_t some, val j, int64_t rows)
{
    const struct attention *a = &t->a, queries = tile_of_queries(a);
    struct kernel *k = a->w->k;
    val carry[MAX_ROWS], sum[MAX_ROWS], column = begin_columns(t, c, some);
    val start = k_splat(k, of(a, -0.0)), i = k_loop(k, LOOP_SERIAL, k_int(k, 0), t->count, 1);
    for (int64_t r = 0; r < rows; r++)
        carry[r] = k_carry(k, start);
    val x = attention_in_block(&queries, X, i, column);
    for (int64_t r = 0; r < rows; r++) {
        val at = ix_add(k, ix_scale(k, block_row(a, ix_add(k, j, k_int(k, r))), a->width), i);
        sum[r] = k_prim(k, P_FMA, k_splat(k, k_load(k, weight, at, 0)), x, carry[r]);
        if (partial(a))
            sum[r] = k_prim(k, P_SELECT, k_splat(k, k_load(k, a->unmasked, at, 0)), sum[r], carry[r]);
    }
    for (int64_t r = 0; r < rows; r++)
        k_next(k, carry[r], sum[r]);
    k_end(k, i);
    for (int64_t r = 0; r < rows; r++) {
        val at = table_index(t, ix_add(k, a->k0, ix_add(k, j, k_int(k, r))), column);
        val total = k_prim(k, P_ADD, k_load(k, t->table, at, a->w->pred), k_out(k, carry[r]), 0);
        k_store(k, t->table, at, total, a->w->pred);
    }
    end_lanes(a);
}

/* The same for all keys of the block. */
static void table_rows(const struct gradient *t, uint32_t weight, val c, int64_t some)
{
    const struct attention *a = &t->a;
    struct kernel *k = a->w->k;
    int64_t rows = a->rows * a->width / t->lanes;
    rows = rows < 1 ? 1 : rows > MAX_ROWS ? MAX_ROWS : rows;
    val keys = ix_sub(k, a->until, a->from), whole = a->until;
    if (rows > 1)
        whole = ix_add(k, a->from, ix_scale(k, ix_div(k, keys, rows), rows));
    val j = k_loop(k, LOOP_SERIAL, a->from, whole, rows);
    table_tile(t, weight, c, some, j, rows);
    k_end(k, j);
    int64_t number;
    if (rows == 1 || (ix_const(k, keys, &number) && number % rows == 0))
        return;
    j = k_loop(k, LOOP_SERIAL, whole, a->until, 1);
    table_tile(t, weight, c, some, j, 1);
    k_end(k, j);
}

static void table_sums(const struct gradient *t, uint32_t weight, int64_t from, int64_t columns)
{
    struct kernel *k = t->a.w->k;
    int64_t whole = columns / t->lanes * t->lanes;
    if (whole) {
        val c = k_loop(k, LOOP_SERIAL, k_int(k, from), k_int(k, from + whole), t->lanes);
        table_rows(t, weight, c, 0);
        k_end(k, c);
    }
    if (columns > whole)
        table_rows(t, weight, k_int(k, from + whole), columns - whole);
}

/* Clears the table, or stores columns from .. from + columns - 1 of it, multiplied by `factor`. */
static void table_columns(const struct gradient *t, bool clears, int64_t from, int64_t columns, double factor)
{
    const struct attention *a = &t->a;
    struct kernel *k = a->w->k;
    const struct shape *s = node_shape(a->w->g, t->both);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), iterated_rows(a), 1);
    for (int tail = 0; tail < 2; tail++) {
        int64_t whole = columns / t->lanes * t->lanes, some = tail ? columns - whole : 0;
        if (tail ? !some : !whole)
            continue;
        val c = tail ? 0 : k_loop(k, LOOP_SERIAL, k_int(k, from), k_int(k, from + whole), t->lanes);
        val column = begin_columns(t, tail ? k_int(k, from + whole) : c, some), at = table_index(t, j, column);
        if (clears) {
            k_store(k, t->table, at, k_splat(k, of(a, 0)), a->w->pred);
        } else {
            val total = k_load(k, t->table, at, a->w->pred);
            attention_store(a, t->both, s, j, column,
                            factor == 1 ? total : k_prim(k, P_MUL, total, k_splat(k, of(a, factor)), 0));
        }
        end_lanes(a);
        if (c)
            k_end(k, c);
    }
    k_end(k, j);
}

/* Finds the range of keys that all queries of the tile attend to. */
static void common_range(const struct gradient *t, val *lo, val *hi)
{
    const struct attention *a = &t->a;
    struct kernel *k = a->w->k;
    val none = k_bits(k, a->index, 0), all = k_cast(k, iterated_rows(a), a->index);
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), t->count, 1), max = k_carry(k, none), min = k_carry(k, all);
    val more = greater(k, k_load(k, a->lo, i, 0), max), less = k_min(k, k_load(k, a->hi, i, 0), min);
    k_next(k, max, more);
    k_next(k, min, less);
    k_end(k, i);
    *lo = k_cast(k, k_out(k, max), KL_I64);
    *hi = k_cast(k, k_out(k, min), KL_I64);
}

/* ---- one block ---- */

/* Opens an `if`, for bounds: a query of the block attends to one of the tile's keys. */
static val begin_unmasked_block(const struct attention *a)
{
    struct kernel *k = a->w->k;
    val j = k_loop(k, LOOP_SERIAL, a->from, a->until, 1), some = k_carry(k, k_int(k, 0)), lo, hi;
    bounds_of(a, j, &lo, &hi);
    lo = greater(k, lo, a->q0);
    hi = k_min(k, hi, ix_add(k, a->q0, k_int(k, a->width)));
    k_next(k, some, k_prim(k, P_SELECT, k_prim(k, P_LT, lo, hi, 0), k_int(k, 1), some));
    k_end(k, j);
    return k_if(k, k_prim(k, P_EQ, k_out(k, some), k_int(k, 1), 0));
}

static void gradient_block(struct gradient *t)
{
    struct attention *a = &t->a;
    struct kernel *k = a->w->k;
    val left = ix_sub(k, iterated_rows(a), a->k0), end = k_int(k, a->block);
    bool skips = ranges(a); /* rows before a->first or after a->end are skipped */
    end = size_divides(a->iterated_size, a->block) ? end : k_min(k, left, end);
    a->from = skips ? greater(k, ix_sub(k, a->first, a->k0), k_int(k, 0)) : k_int(k, 0);
    a->until = skips ? k_min(k, ix_sub(k, a->end, a->k0), end) : end;
    val whole = skips ? ix_scale(k, k_prim(k, P_DIV, a->from, k_int(k, a->rows), 0), a->rows) : a->from;
    val unmasked = t->keys && a->bounds ? begin_unmasked_block(a) : 0;
    if (a->panel[t->other])
        attention_widen(a, t->other, attention_widen_from(a, whole), end);
    val j = k_loop(k, LOOP_SERIAL, whole, a->until, a->rows);
    ix_bound(k, j, 0, a->block - a->rows);
    gradient_products(t, j);
    k_end(k, j);
    gradient_weights(t);
    gradient_sums(t, t->ds, 0, a->d);
    if (t->keys)
        gradient_sums(t, t->p, a->d, a->e);
    if (t->both) {
        table_sums(t, t->ds, 0, a->d);
        table_sums(t, t->p, a->d, a->e);
    }
    if (unmasked)
        k_end(k, unmasked);
}

/* As gradient_block, with a copy of the code for blocks without a mask, which are from `lo` to
 * before `hi`. */
static void gradient_blocks(struct gradient *t, val lo, val hi)
{
    struct attention *a = &t->a;
    struct kernel *k = a->w->k;
    struct gradient whole = *t, part = *t;
    whole.a.causal = whole.a.bounds = false;
    val end = k_min(k, ix_add(k, a->k0, k_int(k, a->block)), iterated_rows(a));
    val inside = k_prim(k, P_AND, k_prim(k, P_LE, lo, a->k0, 0), k_prim(k, P_LE, end, hi, 0), 0);
    inside = k_prim(k, P_SELECT, inside, k_int(k, 1), k_int(k, 0));
    val yes = k_if(k, k_prim(k, P_EQ, inside, k_int(k, 1), 0));
    gradient_block(&whole);
    k_end(k, yes);
    val no = k_if(k, k_prim(k, P_EQ, inside, k_int(k, 0), 0));
    gradient_block(&part);
    k_end(k, no);
}

/* The range of queries that attend to one of the tile's keys; with causality it starts at the first query that attends
 * to the first key. */
static void queries_range(struct attention *a)
{
    struct kernel *k = a->w->k;
    a->first = k_int(k, 0);
    a->end = iterated_rows(a);
    if (!a->causal)
        return;
    val from = ix_add(k, a->q0, ix_sub(k, a->end, own_rows(a))), zero = k_int(k, 0);
    from = may_be_fewer(a->iterated_size, a->own_size) ? greater(k, from, zero) : from;
    a->first = k_min(k, from, a->end);
}

static void gradient_start(const struct gradient *t)
{
    const struct attention *a = &t->a;
    struct kernel *k = a->w->k;
    int64_t columns = t->keys ? a->d + a->e : a->d;
    begin_lanes(a);
    val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, columns), 1);
    attention_put(a, a->total, c, of(a, 0));
    k_end(k, c);
    if (!t->keys) {
        val i = attention_row(a);
        for (unsigned s = 0; s < STAT_COUNT; s++)
            attention_put(a, t->stat[s], first(a), attention_element(a, STATS, i, k_int(k, (int64_t)s)));
    }
    end_lanes(a);
}

static void gradient_tile(struct gradient *t)
{
    struct attention *a = &t->a;
    struct kernel *k = a->w->k;
    double scale = dtype_value(KL_F64, a->n->attr.attention.scale);
    bool copies = t->both && ranges(a) && !a->mask;
    val lo = 0, hi = 0;
    attention_bring_rows(a);
    gradient_start(t);
    if (t->both) {
        struct attention queries = tile_of_queries(a);
        val left = ix_sub(k, own_rows(a), a->q0), max = k_int(k, a->width);
        t->count = size_divides(a->own_size, a->width) ? max : k_min(k, left, max);
        if (a->panel[X])
            attention_widen(&queries, X, k_int(k, 0), t->count);
    }
    if (a->m && t->keys) {
        queries_range(a);
    } else if (a->m) {
        if (ranges(a))
            attention_store_ranges(a);
        attention_tile_range(a);
    }
    if (copies)
        common_range(t, &lo, &hi);
    if (a->m) {
        val from = ranges(a) ? ix_scale(k, k_prim(k, P_DIV, a->first, k_int(k, a->block), 0), a->block) : k_int(k, 0);
        a->k0 = k_loop(k, LOOP_SERIAL, from, a->end, a->block);
        ix_bound(k, a->k0, 0, a->m - 1);
        if (copies)
            gradient_blocks(t, lo, hi);
        else
            gradient_block(t);
        k_end(k, a->k0);
    }
    if (a->d)
        attention_store_tile(a, 0, a->d, false, scale);
    if (t->keys && a->e)
        attention_store_tile(a, a->d, a->e, false, 1);
}

/* The tiles of queries of a matrix, in ascending order. */
static void gradient_matrix(struct gradient *t)
{
    struct attention *a = &t->a;
    struct kernel *k = a->w->k;
    double scale = dtype_value(KL_F64, a->n->attr.attention.scale);
    table_columns(t, true, 0, table_width(t), 1);
    a->q0 = k_loop(k, LOOP_SERIAL, k_int(k, 0), own_rows(a), a->width);
    ix_bound(k, a->q0, 0, a->l - 1);
    gradient_tile(t);
    k_end(k, a->q0);
    table_columns(t, false, 0, a->d, scale);
    table_columns(t, false, a->d, a->e, 1);
}

static void gradient_scratch(struct gradient *t)
{
    struct attention *a = &t->a;
    a->q = attention_scratch(a, a->dtype, a->d + a->e);
    a->total = attention_scratch(a, a->dtype, a->d + a->e);
    t->p = attention_scratch(a, a->dtype, a->rows + a->block);
    t->ds = attention_scratch(a, a->dtype, a->rows + a->block);
    if (!t->keys) {
        for (unsigned s = 0; s < STAT_COUNT; s++)
            t->stat[s] = attention_scratch(a, a->dtype, 1);
        if (ranges(a)) {
            a->lo = attention_scratch(a, a->index, 1);
            a->hi = attention_scratch(a, a->index, 1);
        }
    }
    if (partial(a))
        a->unmasked = attention_scratch(a, KL_BOOL, a->rows + a->block);
    attention_make_panel(a, t->other);
    if (t->both) {
        attention_make_panel(a, X);
        t->table = k_buf(a->w->k, BUF_SCRATCH, a->dtype, a->m * table_width(t), 0);
    }
}

/* The two nodes of a group: *queries, else *keys, is NIL if there is one. */
static void gradient_nodes(const struct lowering *w, ref *queries, ref *keys)
{
    *queries = *keys = NIL;
    for (uint32_t m = 0; m < w->nmember; m++) {
        const struct node *n = &w->g->node[w->member[m]];
        if (n->op == OP_attention_grad)
            *(n->attr.attention.of == ATTENTION_KEYS ? keys : queries) = w->member[m];
    }
}

void lower_attention_grad_group(struct lowering *w)
{
    struct kernel *k = w->k;
    ref of_queries, of_keys;
    gradient_nodes(w, &of_queries, &of_keys);
    bool keys = !of_queries;
    w->anchor = keys ? of_keys : of_queries;
    const struct node *n = &w->g->node[w->anchor];
    const struct shape *own = node_shape(w->g, n->in[keys ? Y : X]), *other = node_shape(w->g, n->in[keys ? X : Y]);
    struct gradient t = {.keys = keys, .other = keys ? X : Y, .both = keys ? NIL : of_keys};
    struct attention *a = &t.a;
    *a = (struct attention){.w = w, .n = n, .out = *node_shape(w->g, w->anchor), .lead = *own,
                            .own = keys ? Y : X, .mask_in = MASK, .block = n->attr.attention.block,
                            .dtype = dtype_compute(n->dtype), .causal = n->attr.attention.causal};
    a->lead.rank -= 2;
    a->l = own->dim[a->lead.rank];
    a->m = other->dim[a->lead.rank];
    a->own_size = kernel_length(k, a->l);
    a->iterated_size = kernel_length(k, a->m);
    a->d = n->attr.attention.depth;
    a->e = own->dim[a->lead.rank + 1] - a->d;
    a->columns[X] = a->columns[Y] = a->d + a->e;
    a->columns[STATS] = STAT_COUNT;
    a->mask = n->nin > MASK && w->g->node[n->in[MASK]].dtype == KL_BOOL;
    a->bounds = n->nin > MASK && !a->mask;
    if (!a->block) {
        err_set(&k->err, KL_ERR_INTERNAL, "attention_grad: node %u has no numeric order", w->anchor);
        return;
    }
    int64_t columns = a->out.dim[a->lead.rank + 1];
    struct attention_facts facts = attention_facts_of(a, t.both ? GRADIENT_BOTH : GRADIENT_ONE, columns > 0);
    facts.keys = keys;
    facts.factors = attention_has_matrices(a, true, keys) ? w->g->node[n->in[X]].dtype + 1 : 0;
    facts.views = facts.factors && attention_has_views(a, true, keys);
    facts.blocks = !t.both && attention_has_blocks(a);
    a->matrices = facts.matrices;
    select_family(w, GROUP_attention, &facts, a);
}

void attention_grad_emit(struct attention *a, const struct schedule *s)
{
    struct gradient *t = (struct gradient *)a;
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    attention_follow(a, s);
    t->lanes = s->attention.lanes;
    a->index = a->l < INT32_MAX - a->block ? a->index : KL_I64;
    int64_t extent = t->both ? a->matrices : attention_extent(a, a->matrices);
    struct tasks tasks;
    if (extent)
        gradient_scratch(t);
    lower_scalars(w);
    if (t->both) {
        val matrix = lower_tasks(w, extent, extent ? ix_size(k, kernel_count(k, &a->lead)) : 0, &tasks);
        lower_unflatten(k, &a->lead, matrix, a->coord);
        if (extent)
            gradient_matrix(t);
    } else {
        attention_begin(a, extent, &tasks);
        if (extent)
            gradient_tile(t);
    }
    lower_tasks_end(w, &tasks);
}

void attention_both_emit(struct attention *a, const struct schedule *s) { attention_grad_emit(a, s); }
