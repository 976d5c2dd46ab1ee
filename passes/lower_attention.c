/* Attention: one pass over the keys for a tile of queries, each a lane of the vector loops.
 *
 * An iteration of the parallel loop owns W neighbouring queries of one matrix.  It holds in scratch, a row of W lanes for
 * each: q's elements, transposed; a block of scores, then of weights; and the values' totals, transposed too.  For each
 * block of keys (ir.h, "Numeric order") it walks three times: scores and the largest of them; weights and their sum; the
 * values.  Both products are tiles of R rows (keys; elements of v) by W lanes in registers, each step one vector of
 * scratch and R elements of k or v as they lie in memory, spread over the lanes.  So nothing is packed but q, once; the
 * largest, the sums and the masks are lane by lane, with no folds; and k and v may be any views.
 *
 * Blocks that none of the tile's queries sees are not touched.  In the others a query keeps out what it does not see by
 * selects, which leave its sums bit for bit as if it had walked alone, whatever the tile. */
#include "lower.h"
#include <math.h>
#include <string.h>

enum { Q, K, V, SEEN };
enum { STEPS = 4, NATIVE_VECTORS = 2, MAX_ROWS = 8 }; /* of D at a time; registers of a row of lanes; R */

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
    uint32_t lo, hi, seen;                /* [W] i64, [W] i64, [block][W] bool */
    val k0, count;                        /* the block's first key, and how many there are */
};

/* ---- elements ---- */

/* The element of operand `which` at (row, column) of the matrix, as it is computed with. */
static val element(const struct attention *a, unsigned which, val row, val column)
{
    struct lowering *w = a->w;
    val coord[KL_MAX_RANK] = {0};
    memcpy(coord, a->coord, a->lead.rank * sizeof *coord);
    coord[a->lead.rank] = row;
    coord[a->lead.rank + 1] = column;
    lower_point(w);
    val x = lower_at(w, a->n->in[which], coord);
    return which == SEEN ? x : k_cast(w->k, x, a->dtype);
}

/* Element `row` of this lane in scratch. */
static val place(const struct attention *a, val row) { return ix_add(a->w->k, ix_scale(a->w->k, row, a->width), a->w->lane); }
static val get(const struct attention *a, uint32_t buf, val row) { return k_load(a->w->k, buf, place(a, row), 0); }
static void put(const struct attention *a, uint32_t buf, val row, val x) { k_store(a->w->k, buf, place(a, row), k_splat(a->w->k, x), 0); }

static val first(const struct attention *a) { return k_int(a->w->k, 0); }
static val of(const struct attention *a, double v) { return k_const(a->w->k, a->dtype, v); }

static val smaller(struct kernel *k, val a, val b) { return k_prim(k, P_SELECT, k_prim(k, P_LT, a, b, 0), a, b); }
static val greater(struct kernel *k, val a, val b) { return k_prim(k, P_SELECT, k_prim(k, P_LT, b, a, 0), a, b); }

static void begin_lanes(const struct attention *a)
{
    struct lowering *w = a->w;
    w->lane = k_loop(w->k, LOOP_VECTOR, k_int(w->k, 0), k_int(w->k, a->width), 1);
}

static void end_lanes(const struct attention *a)
{
    k_end(a->w->k, a->w->lane);
    a->w->lane = a->w->pred = 0;
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

static bool partial(const struct attention *a) { return a->causal || a->mask || a->bounds; }

/* The keys that query i sees but for a mask: from *lo on, before *hi. */
static void range(const struct attention *a, val i, val *lo, val *hi)
{
    struct kernel *k = a->w->k;
    *lo = k_int(k, 0);
    *hi = k_int(k, a->m);
    if (a->causal) {
        val end = ix_add(k, i, k_int(k, a->m - a->l + 1));
        *hi = a->m < a->l ? greater(k, end, k_int(k, 0)) : end;
    }
    if (!a->bounds)
        return;
    val begin = lower_index(k, element(a, SEEN, i, k_int(k, 0)), a->m), end = lower_index(k, element(a, SEEN, i, k_int(k, 1)), a->m);
    *lo = begin;
    *hi = a->causal ? smaller(k, *hi, end) : end;
}

/* Writes each lane's range into scratch; lanes without a query see nothing. */
static void store_ranges(const struct attention *a)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val lo, hi;
    begin_lanes(a);
    range(a, query(a), &lo, &hi);
    if (w->pred)
        hi = k_prim(k, P_SELECT, w->pred, hi, k_int(k, 0));
    put(a, a->lo, first(a), lo);
    put(a, a->hi, first(a), hi);
    end_lanes(a);
}

/* From the first key that one of the queries sees to behind the last. */
static void tile_range(const struct attention *a, val *lo, val *hi)
{
    struct kernel *k = a->w->k;
    *lo = k_int(k, 0);
    *hi = k_int(k, a->m);
    if (!a->causal && !a->bounds)
        return;
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, a->width), 1);
    val least = k_carry(k, k_int(k, a->m)), most = k_carry(k, k_int(k, 0));
    val from = k_load(k, a->lo, i, 0), end = k_load(k, a->hi, i, 0), some = k_prim(k, P_LT, from, end, 0);
    val less = k_prim(k, P_SELECT, some, smaller(k, from, least), least);
    val more = k_prim(k, P_SELECT, some, greater(k, end, most), most);
    k_next(k, least, less);
    k_next(k, most, more);
    k_end(k, i);
    *lo = k_out(k, least);
    *hi = k_out(k, most);
}

/* Does this lane's query see the key?  j: its number in the block. */
static val sees(const struct attention *a, val j)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val key = ix_add(k, a->k0, j), s = 0;
    if (a->causal || a->bounds)
        s = k_prim(k, P_LT, key, get(a, a->hi, first(a)), 0);
    if (a->bounds)
        s = k_prim(k, P_AND, s, k_prim(k, P_LE, get(a, a->lo, first(a)), key, 0), 0);
    if (a->mask) {
        val i = query(a), m = element(a, SEEN, i, key);
        s = s ? k_prim(k, P_AND, s, m, 0) : m;
        w->pred = 0;
    }
    return k_splat(k, s);
}

/* ---- one block of keys ---- */

/* The products of `steps` elements from `first` on of these R keys. */
static void multiply(const struct attention *a, const val *key, val from, int64_t steps, val *acc)
{
    struct kernel *k = a->w->k;
    for (int64_t u = 0; u < steps; u++) {
        val column = ix_add(k, from, k_int(k, u)), q = get(a, a->q, column);
        for (int64_t r = 0; r < a->rows; r++)
            acc[r] = k_prim(k, P_FMA, q, element(a, K, key[r], column), acc[r]);
    }
}

/* Scores of R keys from number j0 of the block on.  Behind the last key stands the last one again, which takes no part
 * but among the largest, where it is already. */
static void score_tile(const struct attention *a, val j0)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val acc[MAX_ROWS], key[MAX_ROWS], carry[MAX_ROWS];
    for (int64_t r = 0; r < a->rows; r++) {
        key[r] = ix_add(k, a->k0, ix_add(k, j0, k_int(k, r)));
        if (a->m % a->rows) {
            key[r] = smaller(k, key[r], k_int(k, a->m - 1));
            ix_bound(k, key[r], 0, a->m - 1);
        }
    }
    begin_lanes(a);
    for (int64_t r = 0; r < a->rows; r++)
        acc[r] = k_splat(k, of(a, 0));
    int64_t whole = a->d / STEPS * STEPS;
    if (whole) {
        val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, whole), STEPS);
        for (int64_t r = 0; r < a->rows; r++)
            acc[r] = carry[r] = k_carry(k, acc[r]);
        multiply(a, key, c, STEPS, acc);
        for (int64_t r = 0; r < a->rows; r++)
            k_next(k, carry[r], acc[r]);
        k_end(k, c);
        for (int64_t r = 0; r < a->rows; r++)
            acc[r] = k_out(k, carry[r]);
    }
    multiply(a, key, k_int(k, whole), a->d - whole, acc);
    val most = get(a, a->larger, first(a)), scale = of(a, dtype_value(KL_F64, a->n->attr.attention.scale));
    for (int64_t r = 0; r < a->rows; r++) {
        val j = ix_add(k, j0, k_int(k, r)), s = k_prim(k, P_MUL, acc[r], scale, 0), x = s;
        if (partial(a)) {
            val seen = sees(a, ix_sub(k, key[r], a->k0));
            put(a, a->seen, j, seen);
            x = k_prim(k, P_SELECT, seen, s, k_splat(k, of(a, -INFINITY)));
        }
        put(a, a->score, j, s);
        most = k_fold_step(k, FOLD_MAX, most, x);
    }
    put(a, a->larger, first(a), most);
    end_lanes(a);
}

/* Scores become weights, and their sum comes to the total. */
static void weigh(const struct attention *a)
{
    struct kernel *k = a->w->k;
    begin_lanes(a);
    val larger = get(a, a->larger, first(a)), none = k_splat(k, of(a, -INFINITY));
    val base = k_prim(k, P_SELECT, k_prim(k, P_EQ, larger, none, 0), k_splat(k, of(a, 0)), larger);
    val shrink = k_prim(k, P_SUB, get(a, a->most, first(a)), base, 0);
    shrink = k_op(k, OP_exp, &shrink);
    val start = k_splat(k, of(a, -0.0)), j = k_loop(k, LOOP_SERIAL, k_int(k, 0), a->count, 1), sum = k_carry(k, start);
    val x = k_prim(k, P_SUB, get(a, a->score, j), base, 0), weight = k_op(k, OP_exp, &x);
    put(a, a->score, j, weight);
    val more = k_prim(k, P_ADD, sum, weight, 0);
    k_next(k, sum, partial(a) ? k_prim(k, P_SELECT, get(a, a->seen, j), more, sum) : more);
    k_end(k, j);
    put(a, a->sum, first(a), k_prim(k, P_FMA, get(a, a->sum, first(a)), shrink, k_out(k, sum)));
    put(a, a->shrink, first(a), shrink);
    put(a, a->most, first(a), larger);
    end_lanes(a);
}

/* Elements c0 .. c0 + rows - 1 of the values, weighed, come to the totals. */
static void value_tile(const struct attention *a, val c0, int64_t rows)
{
    struct kernel *k = a->w->k;
    val acc[MAX_ROWS], carry[MAX_ROWS];
    begin_lanes(a);
    val start = k_splat(k, of(a, -0.0)), shrink = get(a, a->shrink, first(a));
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), a->count, 1);
    for (int64_t r = 0; r < rows; r++)
        carry[r] = k_carry(k, start);
    val weight = get(a, a->score, j), seen = partial(a) ? get(a, a->seen, j) : 0, key = ix_add(k, a->k0, j);
    ix_bound(k, key, 0, a->m - 1);
    for (int64_t r = 0; r < rows; r++) {
        acc[r] = k_prim(k, P_FMA, weight, element(a, V, key, ix_add(k, c0, k_int(k, r))), carry[r]);
        acc[r] = seen ? k_prim(k, P_SELECT, seen, acc[r], carry[r]) : acc[r];
    }
    for (int64_t r = 0; r < rows; r++)
        k_next(k, carry[r], acc[r]);
    k_end(k, j);
    for (int64_t r = 0; r < rows; r++) {
        val c = ix_add(k, c0, k_int(k, r));
        put(a, a->total, c, k_prim(k, P_FMA, get(a, a->total, c), shrink, k_out(k, carry[r])));
    }
    end_lanes(a);
}

static void emit_block(struct attention *a)
{
    struct kernel *k = a->w->k;
    val left = ix_sub(k, k_int(k, a->m), a->k0);
    a->count = a->m % a->block ? smaller(k, left, k_int(k, a->block)) : k_int(k, a->block);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), a->count, a->rows);
    score_tile(a, j);
    k_end(k, j);
    weigh(a);
    int64_t tiles = a->e / a->rows, rest = a->e % a->rows;
    if (tiles) {
        val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, tiles * a->rows), a->rows);
        value_tile(a, c, a->rows);
        k_end(k, c);
    }
    if (rest)
        value_tile(a, k_int(k, tiles * a->rows), rest);
}

/* ---- one tile of queries ---- */

static void start(const struct attention *a)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    begin_lanes(a);
    put(a, a->most, first(a), of(a, -INFINITY));
    put(a, a->larger, first(a), of(a, -INFINITY));
    put(a, a->sum, first(a), of(a, 0));
    val i = query(a);
    if (a->d) {
        val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, a->d), 1);
        put(a, a->q, c, element(a, Q, i, c));
        k_end(k, c);
    }
    val c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, a->e), 1);
    put(a, a->total, c, of(a, 0));
    k_end(k, c);
    end_lanes(a);
}

static void finish(const struct attention *a)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val coord[KL_MAX_RANK] = {0};
    begin_lanes(a);
    val sum = get(a, a->sum, first(a)), zero = k_splat(k, of(a, 0)), nothing = k_prim(k, P_EQ, sum, zero, 0);
    memcpy(coord, a->coord, a->lead.rank * sizeof *coord);
    coord[a->lead.rank] = query(a);
    val c = coord[a->lead.rank + 1] = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, a->e), 1);
    val x = k_prim(k, P_SELECT, nothing, zero, k_prim(k, P_DIV, get(a, a->total, c), sum, 0));
    k_store(k, lower_buffer(w, w->anchor, BUF_OUT), lower_flatten(k, &a->out, coord), k_cast(k, x, a->n->dtype), w->pred);
    k_end(k, c);
    end_lanes(a);
}

static void emit_tile(struct attention *a)
{
    struct kernel *k = a->w->k;
    val lo, hi;
    start(a);
    if (a->causal || a->bounds)
        store_ranges(a);
    if (a->m) {
        tile_range(a, &lo, &hi);
        val from = a->bounds ? ix_scale(k, k_prim(k, P_DIV, lo, k_int(k, a->block), 0), a->block) : k_int(k, 0);
        a->k0 = k_loop(k, LOOP_SERIAL, from, hi, a->block);
        ix_bound(k, a->k0, 0, a->m - 1);
        emit_block(a);
        k_end(k, a->k0);
    }
    finish(a);
}

static uint32_t lanes_of_scratch(const struct attention *a, unsigned dtype, int64_t rows)
{
    return k_buf(a->w->k, BUF_SCRATCH, dtype, rows * a->width, 0);
}

static void make_scratch(struct attention *a)
{
    if (a->d)
        a->q = lanes_of_scratch(a, a->dtype, a->d);
    a->score = lanes_of_scratch(a, a->dtype, a->block);
    a->total = lanes_of_scratch(a, a->dtype, a->e);
    a->most = lanes_of_scratch(a, a->dtype, 1);
    a->larger = lanes_of_scratch(a, a->dtype, 1);
    a->sum = lanes_of_scratch(a, a->dtype, 1);
    a->shrink = lanes_of_scratch(a, a->dtype, 1);
    if (a->causal || a->bounds) {
        a->lo = lanes_of_scratch(a, KL_I64, 1);
        a->hi = lanes_of_scratch(a, KL_I64, 1);
    }
    if (partial(a))
        a->seen = lanes_of_scratch(a, KL_BOOL, a->block);
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
    if (w->given)
        a.width = w->given->width;
    a.rows = caps->vector_regs >= 32 ? MAX_ROWS : MAX_ROWS / 2;
    while (a.block % a.rows)
        a.rows--;
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
        emit_tile(&a);
    }
    k_end(k, p);
    lower_grain(w, a.width * (a.m * (a.d + a.e) + a.d + a.e) / 16);
}
