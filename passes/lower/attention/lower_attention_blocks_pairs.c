/* Attention by blocks of threads with register tiles: what is computed from the scores, which are in shared memory, and
 * which pairs are unmasked. */
#include "lower_attention_blocks.h"

/* ---- attention: the weights of a row ---- */

/* What the first `rows` threads do, one for each row: an `if` of them, or 0 if there are no others; and what is noted
 * of rows, which holds for those that exist. */
struct row_scope { val some; uint32_t facts; };

/* rows: at most as many as threads; own rows always are, those of a step are not.  *t: the row's number. */
static struct row_scope begin_rows(const struct blocks *b, int64_t rows, val *t)
{
    struct kernel *k = b->s.a->w->k;
    *t = ix_mod(k, b->s.t, rows);
    val some = b->s.s.width > rows ? k_if(k, k_prim(k, P_LT, b->s.t, k_int(k, rows), 0)) : 0;
    return (struct row_scope){some, ix_facts_begin(k)};
}

static void end_rows(const struct blocks *b, const struct row_scope *scope)
{
    ix_facts_end(b->s.a->w->k, scope->facts);
    if (scope->some)
        k_end(b->s.a->w->k, scope->some);
}

/* Row t of the block; *there: does it exist?  0: yes */
static val own_row(const struct blocks *b, val t, val *there)
{
    const struct attention *a = b->s.a;
    struct kernel *k = a->w->k;
    val i = ix_add(k, a->q0, t);
    *there = a->l % b->s.rows ? k_prim(k, P_LT, i, k_int(k, a->l), 0) : 0;
    ix_bound(k, i, 0, a->l - 1);
    return i;
}

void blocks_start_rows(const struct blocks *b)
{
    const struct attention *a = b->s.a;
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val t;
    struct row_scope scope = begin_rows(b, b->s.rows, &t);
    val there, i = own_row(b, t, &there);
    k_store(k, b->row[ROW_MAX], t, k_const(k, KL_F32, -INFINITY), 0);
    k_store(k, b->row[ROW_SUM], t, k_const(k, KL_F32, 0), 0);
    if (ranges(a)) {
        val low, high;
        w->pred = there;
        w->pred_all = there != 0;
        attention_range(a, i, &low, &high);
        w->pred = 0;
        w->pred_all = false;
        high = there ? k_prim(k, P_SELECT, there, high, k_int(k, 0)) : high;
        k_store(k, b->row[ROW_LOW], t, k_cast(k, low, KL_I32), 0);
        k_store(k, b->row[ROW_HIGH], t, k_cast(k, high, KL_I32), 0);
    }
    end_rows(b, &scope);
}

/* Is row `row` of the step unmasked for row t of the block, row i of the operand?  0: yes */
static val row_is_unmasked(const struct blocks *b, val t, val i, val there, val row)
{
    const struct attention *a = b->s.a;
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val key = ix_add(k, b->s.k0, row), number = k_cast(k, key, KL_I32), unmasked = 0;
    if (ranges(a))
        unmasked = both(k, k_prim(k, P_LE, k_load(k, b->row[ROW_LOW], t, 0), number, 0),
                    k_prim(k, P_LT, number, k_load(k, b->row[ROW_HIGH], t, 0), 0));
    else if (a->m % b->s.step)
        unmasked = k_prim(k, P_LT, number, k_const(k, KL_I32, (double)a->m), 0);
    if (a->mask) {
        uint32_t facts = ix_facts_begin(k);
        ix_bound(k, key, 0, a->m - 1);
        w->pred = both(k, unmasked, there);
        w->pred_all = w->pred != 0;
        val mask = attention_stored(a, MASK, i, key);
        ix_facts_end(k, facts);
        unmasked = both(k, unmasked, mask);
        w->pred = 0;
        w->pred_all = false;
    }
    return unmasked;
}

/* The elements of a row of weights that one iteration of a loop over it has. */
enum { ROW_EACH = 2 * EACH };

static void load_weights(const struct blocks *b, val t, val row, val *x)
{
    struct kernel *k = b->s.a->w->k;
    val at = ix_add(k, ix_scale(k, t, b->weight_pitch), row);
    for (int u = 0; u < ROW_EACH; u++)
        x[u] = k_load(k, b->weight, ix_add(k, at, k_int(k, u)), 0);
}

static void store_weights(const struct blocks *b, val t, val row, const val *x)
{
    struct kernel *k = b->s.a->w->k;
    val at = ix_add(k, ix_scale(k, t, b->weight_pitch), row);
    for (int u = 0; u < ROW_EACH; u++)
        k_store(k, b->weight, ix_add(k, at, k_int(k, u)), x[u], 0);
}

/* The largest score of the row so far; scores of unseen keys become -infinity. */
static val largest_of_row(const struct blocks *b, val t, val i, val there, val before)
{
    const struct attention *a = b->s.a;
    struct kernel *k = a->w->k;
    val x[ROW_EACH], row = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, b->s.step), ROW_EACH);
    val carry = k_carry(k, before), max = carry, none = k_const(k, KL_F32, -INFINITY);
    bool hides = partial(a) || a->m % b->s.step;
    load_weights(b, t, row, x);
    for (int u = 0; u < ROW_EACH && hides; u++)
        x[u] = k_prim(k, P_SELECT, row_is_unmasked(b, t, i, there, ix_add(k, row, k_int(k, u))), x[u], none);
    for (int u = 0; u < ROW_EACH; u++)
        max = k_fold_step(k, FOLD_MAX, max, x[u]);
    if (hides)
        store_weights(b, t, row, x);
    k_next(k, carry, max);
    k_end(k, row);
    return k_out(k, carry);
}

void blocks_soften_rows(const struct blocks *b)
{
    struct kernel *k = b->s.a->w->k;
    val t;
    struct row_scope scope = begin_rows(b, b->s.rows, &t);
    val there, i = own_row(b, t, &there), none = k_const(k, KL_F32, -INFINITY);
    val max = k_load(k, b->row[ROW_MAX], t, 0), larger = largest_of_row(b, t, i, there, max);
    val base = k_prim(k, P_SELECT, k_prim(k, P_EQ, larger, none, 0), k_const(k, KL_F32, 0), larger);
    val shrink = k_exp_nonpositive(k, k_prim(k, P_SUB, max, base, 0)), x[ROW_EACH];
    val row = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, b->s.step), ROW_EACH);
    val carry = k_carry(k, k_const(k, KL_F32, -0.0)), sum = carry;
    load_weights(b, t, row, x);
    for (int u = 0; u < ROW_EACH; u++)
        x[u] = k_exp_nonpositive(k, k_prim(k, P_SUB, x[u], base, 0));
    for (int u = 0; u < ROW_EACH; u++)
        sum = k_prim(k, P_ADD, sum, x[u], 0);
    store_weights(b, t, row, x);
    k_next(k, carry, sum);
    k_end(k, row);
    sum = k_prim(k, P_FMA, k_load(k, b->row[ROW_SUM], t, 0), shrink, k_out(k, carry));
    k_store(k, b->row[ROW_SUM], t, sum, 0);
    k_store(k, b->row[ROW_SHRINK], t, shrink, 0);
    k_store(k, b->row[ROW_MAX], t, larger, 0);
    end_rows(b, &scope);
}

/* A thread has two rows: an access of four numbers. */
void blocks_store_stats(const struct blocks *b)
{
    enum { PAIR = 2 };
    const struct attention *a = b->s.a;
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    const struct shape shape = *node_shape(w->g, a->stats);
    val t, there[PAIR], i[PAIR], value[PAIR][2], zero = k_const(k, KL_F32, 0);
    struct row_scope scope = begin_rows(b, b->s.rows / PAIR, &t);
    for (int u = 0; u < PAIR; u++) {
        val row = ix_add(k, ix_scale(k, t, PAIR), k_int(k, u));
        i[u] = own_row(b, row, &there[u]);
        val max = k_load(k, b->row[ROW_MAX], row, 0), sum = k_load(k, b->row[ROW_SUM], row, 0);
        value[u][0] = k_prim(k, P_SELECT, k_prim(k, P_EQ, max, k_const(k, KL_F32, -INFINITY), 0), zero, max);
        value[u][1] = k_prim(k, P_SELECT, k_prim(k, P_EQ, sum, zero, 0), zero,
                             k_prim(k, P_DIV, k_const(k, KL_F32, 1), sum, 0));
    }
    for (int u = 0; u < PAIR; u++) {
        w->pred = a->l % PAIR ? there[u] : there[0]; /* both exist or neither */
        for (int c = 0; c < 2; c++)
            attention_store(a, a->stats, &shape, i[u], k_int(k, c), value[u][c]);
    }
    w->pred = 0;
    end_rows(b, &scope);
}

/* ---- gradient: p and ds ---- */

static val stat_index(const struct blocks *b, val row, int c)
{
    struct kernel *k = b->s.a->w->k;
    return ix_add(k, ix_scale(k, row, STAT_COUNT), k_int(k, c));
}

/* Copies the statistics of `rows` queries from row `first` on, of `all`; zeros for those that do not exist. */
static void copy_statistics(const struct blocks *b, int64_t rows, int64_t all, val first)
{
    const struct attention *a = b->s.a;
    struct kernel *k = a->w->k;
    int64_t n = rows * STAT_COUNT / EACH, threads = b->s.s.width;
    uint32_t facts = ix_facts_begin(k);
    ix_bound(k, first, 0, all - 1); /* only for those that exist */
    val element = attention_stored(a, STATS, first, k_int(k, 0));
    const struct linst load = k->inst[element]; /* only its address is used */
    ix_facts_end(k, facts);
    for (int64_t i = 0; i < n; i += threads) {
        val e = ix_add(k, b->s.t, k_int(k, i)), at = ix_scale(k, e, EACH), there = 0;
        val some = n - i < threads ? k_if(k, k_prim(k, P_LT, e, k_int(k, n), 0)) : 0;
        if (b->s.keys || all % rows)
            there = k_prim(k, P_LT, ix_add(k, ix_scale(k, first, STAT_COUNT), at), k_int(k, all * STAT_COUNT), 0);
        val x[EACH], from = ix_add(k, load.a, at);
        if (b->s.keys)
            k_append(k, (struct linst){.op = L_COPY, .dtype = KL_BOOL, .rows = EACH, .a = at, .b = from, .c = there,
                                       .imm = b->stats | load.imm << 32});
        for (int u = 0; u < EACH && !b->s.keys; u++) /* once: a copy beside those of rows was seen to spill */
            x[u] = k_load(k, (uint32_t)load.imm, ix_add(k, from, k_int(k, u)), there);
        for (int u = 0; u < EACH && !b->s.keys; u++)
            k_store(k, b->stats, ix_add(k, at, k_int(k, u)), x[u], 0);
        if (some)
            k_end(k, some);
    }
}

/* The statistics of rows `from` to from + count - 1 of those that blocks_load_statistics describes. */
static void load_statistics(const struct blocks *b, int64_t from, int64_t count, int64_t rows, int64_t all, val first)
{
    const struct attention *a = b->s.a;
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val t;
    struct row_scope scope = begin_rows(b, count, &t);
    t = ix_add(k, t, k_int(k, from));
    val query = ix_add(k, first, t);
    val there = b->s.keys || all % rows ? k_prim(k, P_LT, query, k_int(k, all), 0) : 0;
    ix_bound(k, query, 0, all - 1);
    w->pred = there;
    w->pred_all = there != 0;
    for (int c = 0; c < STAT_COUNT; c++)
        k_store(k, b->stats, stat_index(b, t, c), attention_element(a, STATS, query, k_int(k, c)), 0);
    w->pred = 0;
    w->pred_all = false;
    end_rows(b, &scope);
}

/* Without copies a thread has several rows in a small block. */
void blocks_load_statistics(const struct blocks *b, val first)
{
    const struct attention *a = b->s.a;
    int64_t threads = b->s.s.width, rows = b->s.keys ? b->s.step : b->s.rows, all = b->s.keys ? a->m : a->l;
    if (b->stat_vectors)
        copy_statistics(b, rows, all, first);
    for (int64_t from = 0; !b->stat_vectors && from < rows; from += threads)
        load_statistics(b, from, rows - from < threads ? rows - from : threads, rows, all, first);
}

/* Is a pair unmasked?  0: all are */
static val pair_counts(const struct blocks *b, val own, val iterated)
{
    const struct attention *a = b->s.a;
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    val there = a->m % b->s.step ? k_prim(k, P_LT, iterated, k_int(k, a->m), 0) : 0;
    if (a->l % b->s.rows)
        there = both(k, there, k_prim(k, P_LT, own, k_int(k, a->l), 0));
    uint32_t facts = ix_facts_begin(k); /* of pairs that exist */
    ix_bound(k, own, 0, a->l - 1);
    ix_bound(k, iterated, 0, a->m - 1);
    w->pred = there;
    w->pred_all = there != 0;
    val unmasked = attention_pair_is_unmasked(&b->s, own, iterated);
    ix_facts_end(k, facts);
    w->pred = 0;
    w->pred_all = false;
    return both(k, there, unmasked);
}

/* From scores and dp of EACH pairs, p and ds in their place. */
static void gradient_of_accesses(const struct blocks *b, val e)
{
    const struct tiles *s = &b->s;
    struct kernel *k = s->a->w->k;
    int64_t packs = s->step / EACH;
    val row = ix_div(k, e, packs), col = ix_scale(k, ix_mod(k, e, packs), EACH), zero = k_const(k, KL_F32, 0);
    val at = ix_add(k, ix_scale(k, row, b->weight_pitch), col), score[EACH], dp[EACH], stat[STAT_COUNT][EACH];
    val dp_at = ix_add(k, at, k_int(k, b->weight_elements));
    for (int u = 0; u < EACH; u++)
        score[u] = k_load(k, b->weight, ix_add(k, at, k_int(k, u)), 0);
    for (int u = 0; u < EACH; u++)
        dp[u] = k_load(k, b->weight, ix_add(k, dp_at, k_int(k, u)), 0);
    for (int u = 0; u < EACH; u++)
        for (int c = 0; c < STAT_COUNT; c++)
            stat[c][u] = !s->keys && u ? stat[c][0]
                : k_load(k, b->stats, stat_index(b, s->keys ? ix_add(k, col, k_int(k, u)) : row, c), 0);
    for (int u = 0; u < EACH; u++) {
        val x = k_prim(k, P_MUL, score[u], attention_scale(s), 0);
        val p = k_prim(k, P_MUL, k_exp_nonpositive(k, k_prim(k, P_SUB, x, stat[STAT_MAX][u], 0)), stat[INVERSE][u], 0);
        val ds = k_prim(k, P_MUL, k_prim(k, P_SUB, dp[u], stat[DELTA][u], 0), p, 0);
        val unmasked = pair_counts(b, ix_add(k, s->a->q0, row), ix_add(k, s->k0, ix_add(k, col, k_int(k, u))));
        score[u] = unmasked ? k_prim(k, P_SELECT, unmasked, p, zero) : p;
        dp[u] = unmasked ? k_prim(k, P_SELECT, unmasked, ds, zero) : ds;
    }
    for (int u = 0; u < EACH && s->keys; u++)
        k_store(k, b->weight, ix_add(k, at, k_int(k, u)), score[u], 0);
    for (int u = 0; u < EACH; u++)
        k_store(k, b->weight, ix_add(k, dp_at, k_int(k, u)), dp[u], 0);
}

void blocks_gradient_of_pairs(const struct blocks *b)
{
    struct kernel *k = b->s.a->w->k;
    int64_t threads = b->s.s.width, accesses = b->s.rows * b->s.step / EACH;
    val n = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, accesses / threads), 1);
    gradient_of_accesses(b, ix_add(k, b->s.t, ix_scale(k, n, threads)));
    k_end(k, n);
}
