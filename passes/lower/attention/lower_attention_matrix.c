/* Attention and its gradient by a GPU's matrix units, in one pass and without an array of queries by keys (Dao,
 * FlashAttention-2, 2023).
 *
 * A block of threads owns some rows of one side: queries, or keys for the gradient in k and v.  Each of its subgroups
 * owns as many of them as the unit has.  The rows of the other side are walked in steps.  Shared memory has the block's
 * own rows, and a ring of steps, of which the ones ahead are copied while one is multiplied.  In a step a subgroup
 * computes, as tiles that its threads hold in registers:
 *
 *   attention     scores [own x step] = q k^T; new maxima and sums of its rows; weights; totals of weights v
 *   gradient      scores and dp [own x step]; weights p and ds; totals of ds k for queries, or of ds^T q and p^T dy for
 *                 keys, whose scores are computed transposed
 *
 * Weights and ds are rounded to the dtype of the operands, because they are factors of the second product.
 *
 * Steps of which no row of the block sees a row are skipped for `causal` and for ranges of keys.  In the others a
 * select removes the pairs that do not see each other.  The second product multiplies the zeros of such pairs by
 * elements that may be infinite or NaN.  So a result that is not finite is computed again, element by element, as
 * node.h defines it.
 *
 * The tile of results goes through shared memory, from where threads store vectors of adjacent elements. */
#include "lower_attention.h"
#include <string.h>

enum { X, Y, STATS };                   /* operands of a gradient: q beside dy, k beside v, statistics */
enum { MOST, INVERSE, DELTA, STAT_COUNT };
enum { VECTOR = ATTENTION_VECTOR };
enum { MOST_HELD = 128 };               /* columns of own rows whose factors stay in registers */

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
    struct columns own[2], walked[2];   /* with D and with E columns */
    uint32_t out;                       /* lbuf of the results of attention */
    int64_t seen_step[2], stat_step;    /* of the fourth operand: elements from query to query, from key to key; of
                                           statistics, from query to query */
    val t, first;                       /* the thread; its subgroup's first row in the block */
    val own_row;                        /* [m x 1] numbers of own rows, i32 */
    val own_there;                      /* [m x 1]; 0: all of them exist */
    val low, high;                      /* [m x 1] for ranges of keys of own rows */
    val stat[STAT_COUNT];               /* [m x 1] for queries that are own rows */
    val held[MOST_HELD / ATTENTION_DEPTH];
    val k0;                             /* the step's first row */
};

/* ---- tiles ---- */

static val tile_splat(struct kernel *k, double x, int64_t rows, int64_t cols)
{
    return k_append(k, (struct linst){.op = L_SPLAT, .dtype = KL_F32, .rows = (uint16_t)rows, .cols = (uint16_t)cols,
                                      .a = k_const(k, KL_F32, x)});
}

static val tile_load(struct kernel *k, uint32_t buf, val index, enum tile_order order, int64_t stride, int64_t rows,
                     int64_t cols, val there)
{
    val by = k_int(k, stride);
    return k_append(k, (struct linst){.op = L_LOAD, .dtype = k->buf[buf].dtype, .kind = (uint8_t)order,
                                      .rows = (uint16_t)rows, .cols = (uint16_t)cols, .a = index, .b = there,
                                      .d = by, .imm = buf});
}

static void tile_store(struct kernel *k, uint32_t buf, val index, int64_t stride, val x, val there)
{
    val by = k_int(k, stride);
    k_append(k, (struct linst){.op = L_STORE, .dtype = k->inst[x].dtype, .a = index, .b = x, .c = there, .d = by,
                               .imm = buf});
}

static val tile_mma(struct kernel *k, val x, val y, val sum)
{
    const struct linst *c = &k->inst[sum];
    return k_append(k, (struct linst){.op = L_MMA, .dtype = c->dtype, .kind = MMA_ANY, .rows = c->rows, .cols = c->cols,
                                      .a = x, .b = y, .c = sum});
}

static val tile_columns(struct kernel *k, val x, int64_t first, int64_t count)
{
    const struct linst *i = &k->inst[x];
    return k_append(k, (struct linst){.op = L_COLUMNS, .dtype = i->dtype, .rows = i->rows, .cols = (uint16_t)count,
                                      .a = x, .imm = (uint64_t)first});
}

/* Folds the columns of each row until `count` are left. */
static val tile_fold(struct kernel *k, enum fold f, val x, int64_t count)
{
    const struct linst *i = &k->inst[x];
    if (i->cols == count)
        return x;
    return k_append(k, (struct linst){.op = L_LANE_REDUCE, .dtype = i->dtype, .rows = i->rows, .cols = (uint16_t)count,
                                      .a = x, .imm = f});
}

/* The numbers of a tile's rows, or of its columns, from `first` on, as i32. */
static val tile_numbers(struct kernel *k, enum tile_order order, int64_t count, val first)
{
    bool rows = order == TILE_ROWS;
    val i = k_append(k, (struct linst){.op = L_INDEX, .dtype = KL_I64, .kind = (uint8_t)order,
                                       .rows = (uint16_t)(rows ? count : 1), .cols = (uint16_t)(rows ? 1 : count)});
    return k_prim(k, P_ADD, k_cast(k, i, KL_I32), k_cast(k, first, KL_I32), 0);
}

static val both(struct kernel *k, val x, val y) { return x && y ? k_prim(k, P_AND, x, y, 0) : x ? x : y; }

static void meet(struct kernel *k) { k_inst(k, L_BARRIER, KL_BOOL, 0, 0, 0, 0); }

/* ---- which operands ---- */

/* Is operand `which`, of which rows x columns are read, an array?  step: elements from row to row and from column to
 * column.  *vectors: vectors of adjacent columns begin at multiples of a vector. */
static bool is_array(const struct attention *a, unsigned which, int64_t rows, int64_t columns, int64_t step[2],
                     bool *vectors)
{
    struct trial t;
    bool ok = false;
    if (trial_begin(&t, a->w)) {
        struct attention copy = *a;
        struct kernel *k = t.w.k;
        int64_t lead, low, high;
        val v[KL_MAX_RANK];
        copy.w = &t.w;
        for (unsigned i = 0; i < a->lead.rank; i++)
            v[i] = copy.coord[i] = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, a->lead.dim[i]), 1);
        val row = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, rows), 1),
            column = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, columns), 1);
        val element = attention_stored(&copy, which, row, column);
        const struct linst *x = &k->inst[element];
        ok = !k->err.code && x->op == L_LOAD && !x->b && k->buf[x->imm].role == BUF_IN &&
             ix_range(k, x->a, &low, &high) && ix_stride(k, x->a, row, &step[0]) &&
             ix_stride(k, x->a, column, &step[1]) && step[0] >= 0 && step[1] >= 0;
        *vectors = ok && step[1] == 1 && step[0] % VECTOR == 0 && low % VECTOR == 0 &&
                   k->buf[x->imm].count % VECTOR == 0;
        for (unsigned i = 0; i < a->lead.rank && ok; i++) {
            ok = ix_stride(k, x->a, v[i], &lead);
            *vectors &= ok && lead % VECTOR == 0;
        }
    }
    trial_end(&t, a->w);
    return ok;
}

/* Finds the strides of the operands that are not copied. */
static bool find_steps(struct tiles *s)
{
    const struct attention *a = s->a;
    int64_t step[2], queries = s->keys ? a->m : a->l, keys = s->keys ? a->l : a->m;
    bool vectors, ok = true;
    if (a->mask || a->bounds) {
        ok = is_array(a, SEEN, queries, a->mask ? keys : 2, s->seen_step, &vectors);
        ok = ok && (a->bounds || s->seen_step[1] == 1); /* of a tile's rows or columns one has adjacent elements */
    }
    if (ok && s->gradient) {
        ok = is_array(a, STATS, queries, STAT_COUNT, step, &vectors) && step[1] == 1;
        s->stat_step = step[0];
    }
    return ok;
}

bool attention_has_matrices(const struct attention *a, bool gradient, bool keys)
{
    const struct graph *g = a->w->g;
    const struct node *n = a->n;
    struct tiles s = {.a = (struct attention *)a, .gradient = gradient, .keys = keys};
    enum { FAR = 1 << 30 };
    unsigned dtype = g->node[n->in[K]].dtype, last = gradient || !a->e ? K : V;
    if (!a->w->chooser->caps->is_gpu || a->w->stand_ins || !dtype_is_half(dtype) || a->d < 1 || a->d % VECTOR ||
        a->e % VECTOR || a->l < 1 || a->m < 1 || a->l >= FAR || a->m >= FAR || shape_count(&a->lead) < 1 ||
        (!a->e && n->op != OP_attention_stats) || (n->op != OP_attention_stats && n->dtype != dtype) ||
        (gradient && dtype != KL_BF16)) /* f16 has too few exponents for ds */
        return false;
    for (unsigned i = Q; i <= last; i++) {
        int64_t step[2], rows = gradient ? (i == X) != keys ? a->l : a->m : i == Q ? a->l : a->m;
        bool vectors;
        if (g->node[n->in[i]].dtype != dtype || !is_array(a, i, rows, a->columns[i], step, &vectors) || !vectors)
            return false;
    }
    return find_steps(&s);
}

/* ---- copies ---- */

static struct columns columns_of(const struct tiles *s, unsigned which, int64_t from, int64_t count, int64_t rows,
                                 int64_t stages)
{
    struct columns c = {which, from, count, attention_padded(count), 0, 0, 0};
    c.row = c.padded + ATTENTION_PAD;
    c.elements = rows * c.row;
    if (count)
        c.buf = k_buf(s->a->w->k, BUF_SHARED, s->dtype, stages * c.elements, 0);
    return c;
}

/* Copies `rows` rows of an operand with `all` rows, from row `first` on, to index `to` on; rows and columns that do not
 * exist are zeros. */
static void copy_rows(const struct tiles *s, const struct columns *c, val first, int64_t rows, int64_t all, bool beyond,
                      val to)
{
    struct kernel *k = s->a->w->k;
    int64_t vectors = c->padded / VECTOR, n = c->count ? rows * vectors : 0;
    for (int64_t i = 0; i < n; i += s->s.width) {
        val e = ix_add(k, s->t, k_int(k, i)), there = 0;
        val some = n - i < s->s.width ? k_if(k, k_prim(k, P_LT, e, k_int(k, n), 0)) : 0;
        val row = ix_div(k, e, vectors), col = ix_scale(k, ix_mod(k, e, vectors), VECTOR);
        val place = ix_add(k, to, ix_add(k, ix_scale(k, row, c->row), col)), at = ix_add(k, first, row);
        if (beyond)
            there = k_prim(k, P_LT, at, k_int(k, all), 0);
        if (c->padded > c->count)
            there = both(k, there, k_prim(k, P_LT, col, k_int(k, c->count), 0));
        ix_bound(k, at, 0, all - 1); /* only for vectors that exist */
        val x = attention_stored(s->a, c->which, at, ix_add(k, col, k_int(k, c->from)));
        const struct linst load = k->inst[x]; /* only its address is used */
        k_append(k, (struct linst){.op = L_COPY, .dtype = KL_BOOL, .rows = VECTOR, .a = place, .b = load.a, .c = there,
                                   .imm = c->buf | load.imm << 32});
        if (some)
            k_end(k, some);
    }
}

static void copy_step(const struct tiles *s, val number)
{
    struct kernel *k = s->a->w->k;
    val stage = ix_mod(k, number, s->stages);
    for (int i = 0; i < 2; i++)
        copy_rows(s, &s->walked[i], ix_scale(k, number, s->step), s->step, s->a->m, true,
                  ix_scale(k, stage, s->walked[i].elements));
    k_inst(k, L_COMMIT, KL_BOOL, 0, 0, 0, 0);
}

/* ---- products ---- */

static val own_factor(const struct tiles *s, const struct columns *own, int64_t kk)
{
    struct kernel *k = s->a->w->k;
    val at = ix_add(k, ix_scale(k, s->first, own->row), k_int(k, kk));
    return tile_load(k, own->buf, at, TILE_ROWS, own->row, s->m, s->s.attention_matrix.unit_k, 0);
}

/* Own rows times walked rows, [m x step]. */
static val products(const struct tiles *s, int which, val stage)
{
    struct kernel *k = s->a->w->k;
    const struct columns *own = &s->own[which], *walked = &s->walked[which];
    int64_t unit = s->s.attention_matrix.unit_k;
    val sum = tile_splat(k, 0, s->m, s->step), at = ix_scale(k, stage, walked->elements);
    for (int64_t kk = 0; kk < own->padded; kk += unit) {
        val x = which == 0 && s->held[kk / unit] ? s->held[kk / unit] : own_factor(s, own, kk);
        val y = tile_load(k, walked->buf, ix_add(k, at, k_int(k, kk)), TILE_COLS, walked->row, unit, s->step, 0);
        sum = tile_mma(k, x, y, sum);
    }
    return sum;
}

/* total + weights [m x step] times walked rows. */
static val weighted(const struct tiles *s, val weights, int which, val stage, val total)
{
    struct kernel *k = s->a->w->k;
    const struct columns *walked = &s->walked[which];
    int64_t unit = s->s.attention_matrix.unit_k;
    val at = ix_scale(k, stage, walked->elements);
    for (int64_t kk = 0; kk < s->step; kk += unit) {
        val x = k_cast(k, s->step == unit ? weights : tile_columns(k, weights, kk, unit), s->dtype);
        val y = tile_load(k, walked->buf, ix_add(k, at, k_int(k, kk * walked->row)), TILE_ROWS, walked->row, unit,
                          walked->padded, 0);
        total = tile_mma(k, x, y, total);
    }
    return total;
}

/* ---- which pairs see each other ---- */

/* The load of the fourth operand at (query, key), or of statistics: its buffer and its index. */
static struct linst address(const struct tiles *s, unsigned which, val row, val column)
{
    val x = attention_stored(s->a, which, row, column);
    return s->a->w->k->inst[x];
}

/* Column c of an operand with a row for each query: [m x 1] for own rows, else [1 x step] for walked ones. */
static val of_queries(const struct tiles *s, unsigned which, int64_t c, int64_t step, val first, val there)
{
    struct kernel *k = s->a->w->k;
    struct linst x = address(s, which, first, k_int(k, c));
    return tile_load(k, (uint32_t)x.imm, x.a, s->keys ? TILE_COLS : TILE_ROWS, step, s->keys ? 1 : s->m,
                     s->keys ? s->step : 1, there);
}

/* The first row of the subgroup's own ones; its index is used only where rows exist. */
static val own_first(const struct tiles *s)
{
    struct kernel *k = s->a->w->k;
    val first = ix_add(k, s->a->q0, s->first);
    ix_bound(k, first, 0, s->a->l - 1);
    return first;
}

/* [m x step] or less; 0: all pairs do. */
static val pairs_see(const struct tiles *s, val walked_row, val walked_there)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    int64_t more = s->keys ? a->l - a->m : a->m - a->l; /* keys than queries */
    val key = s->keys ? s->own_row : walked_row, query = s->keys ? walked_row : s->own_row, seen = walked_there;
    if (a->causal)
        seen = both(k, seen, k_prim(k, P_LE, key, k_prim(k, P_ADD, query, k_const(k, KL_I32, (double)more), 0), 0));
    if (a->bounds) {
        val low = s->low, high = s->high;
        if (s->keys) {
            low = of_queries(s, SEEN, 0, s->seen_step[0], s->k0, walked_there);
            high = of_queries(s, SEEN, 1, s->seen_step[0], s->k0, walked_there);
        }
        key = k_cast(k, key, val_dtype(k, low));
        seen = both(k, seen, both(k, k_prim(k, P_LE, low, key, 0), k_prim(k, P_LT, key, high, 0)));
    }
    if (a->mask) {
        val own = own_first(s), there = both(k, s->own_there, walked_there);
        struct linst x = address(s, SEEN, s->keys ? s->k0 : own, s->keys ? own : s->k0);
        seen = both(k, seen, tile_load(k, (uint32_t)x.imm, x.a, s->keys ? TILE_COLS : TILE_ROWS, s->seen_step[0],
                                       s->m, s->step, there));
    }
    return seen;
}

/* The same of one pair, or 0. */
static val pair_sees(const struct tiles *s, val own, val walked)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    int64_t more = s->keys ? a->l - a->m : a->m - a->l;
    val key = s->keys ? own : walked, query = s->keys ? walked : own, seen = 0;
    if (a->causal)
        seen = k_prim(k, P_LE, key, ix_add(k, query, k_int(k, more)), 0);
    if (a->bounds) {
        val low = k_cast(k, attention_stored(a, SEEN, query, k_int(k, 0)), KL_I64),
            high = k_cast(k, attention_stored(a, SEEN, query, k_int(k, 1)), KL_I64);
        seen = both(k, seen, both(k, k_prim(k, P_LE, low, key, 0), k_prim(k, P_LT, key, high, 0)));
    }
    return a->mask ? both(k, seen, attention_stored(a, SEEN, query, key)) : seen;
}

/* The steps that have a row which one of the block's rows sees: from *first to before *end. */
static void steps_seen(const struct tiles *s, val *first, val *end)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    int64_t steps = (a->m + s->step - 1) / s->step;
    *first = k_int(k, 0);
    *end = k_int(k, steps);
    if (!a->causal)
        return;
    if (s->keys) { /* the first query that sees the first key */
        val row = greater(k, ix_add(k, a->q0, k_int(k, a->m - a->l)), k_int(k, 0));
        *first = k_prim(k, P_DIV, smaller(k, row, k_int(k, a->m)), k_int(k, s->step), 0);
    } else {       /* before the key after the last one that the last query sees */
        val row = ix_add(k, a->q0, k_int(k, s->rows + a->m - a->l));
        row = greater(k, smaller(k, row, k_int(k, a->m)), k_int(k, 0));
        *end = k_prim(k, P_DIV, k_prim(k, P_ADD, row, k_int(k, s->step - 1), 0), k_int(k, s->step), 0);
    }
}

/* ---- one step ---- */

enum { TOTAL, LARGEST, SUM, CARRIED = 3 }; /* carried by attention; a gradient carries two totals */

static val factor_of_scale(const struct tiles *s)
{
    return k_const(s->a->w->k, KL_F32, dtype_value(KL_F64, s->a->n->attr.attention.scale));
}

/* value[] are the carried values; they become the next ones. */
static void attend(const struct tiles *s, val stage, val seen, val value[CARRIED])
{
    struct kernel *k = s->a->w->k;
    val none = k_const(k, KL_F32, -INFINITY), score = k_prim(k, P_MUL, products(s, 0, stage), factor_of_scale(s), 0);
    if (seen)
        score = k_prim(k, P_SELECT, seen, score, none);
    val largest = k_fold_step(k, FOLD_MAX, value[LARGEST], tile_fold(k, FOLD_MAX, score, 1));
    val base = k_prim(k, P_SELECT, k_prim(k, P_EQ, largest, none, 0), k_const(k, KL_F32, 0), largest);
    val shrink = k_exp_down(k, k_prim(k, P_SUB, value[LARGEST], base, 0));
    val weight = k_exp_down(k, k_prim(k, P_SUB, score, base, 0));
    value[LARGEST] = largest;
    value[SUM] = k_prim(k, P_FMA, value[SUM], shrink, tile_fold(k, FOLD_ADD, weight, s->s.attention_matrix.unit_n));
    if (s->walked[1].count)
        value[TOTAL] = weighted(s, weight, 1, stage, k_prim(k, P_MUL, value[TOTAL], shrink, 0));
}

static void add_gradients(const struct tiles *s, val stage, val seen, val walked_there, val total[2])
{
    struct kernel *k = s->a->w->k;
    val stat[STAT_COUNT], zero = k_const(k, KL_F32, 0);
    for (int c = 0; c < STAT_COUNT; c++)
        stat[c] = s->keys ? of_queries(s, STATS, c, s->stat_step, s->k0, walked_there) : s->stat[c];
    val score = k_prim(k, P_MUL, products(s, 0, stage), factor_of_scale(s), 0);
    val p = k_prim(k, P_MUL, k_exp_down(k, k_prim(k, P_SUB, score, stat[MOST], 0)), stat[INVERSE], 0);
    val ds = k_prim(k, P_MUL, k_prim(k, P_SUB, products(s, 1, stage), stat[DELTA], 0), p, 0);
    if (seen)
        ds = k_prim(k, P_SELECT, seen, ds, zero);
    total[0] = weighted(s, ds, 0, stage, total[0]);
    if (s->keys)
        total[1] = weighted(s, seen ? k_prim(k, P_SELECT, seen, p, zero) : p, 1, stage, total[1]);
}

/* ---- results that are not finite ---- */

/* The product of own row i and walked row j: a chain over the columns. */
static val one_product(const struct tiles *s, int which, val i, val j)
{
    struct kernel *k = s->a->w->k;
    const struct columns *own = &s->own[which], *walked = &s->walked[which];
    val zero = k_const(k, KL_F32, 0), c = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, own->count), 1);
    val acc = k_carry(k, zero), x = attention_element(s->a, own->which, i, ix_add(k, c, k_int(k, own->from))),
        y = attention_element(s->a, walked->which, j, ix_add(k, c, k_int(k, walked->from)));
    k_next(k, acc, k_prim(k, P_FMA, x, y, acc));
    k_end(k, c);
    return k_out(k, acc);
}

static val one_score(const struct tiles *s, val i, val j)
{
    return k_prim(s->a->w->k, P_MUL, one_product(s, 0, i, j), factor_of_scale(s), 0);
}

static val if_seen(const struct tiles *s, val seen, val x, val y)
{
    return seen ? k_prim(s->a->w->k, P_SELECT, seen, x, y) : x;
}

/* Column c of attention's row i. */
static val attention_again(const struct tiles *s, val i, val c)
{
    struct kernel *k = s->a->w->k;
    val none = k_const(k, KL_F32, -INFINITY), zero = k_const(k, KL_F32, 0), all = k_int(k, s->a->m);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), all, 1), most = k_carry(k, none);
    k_next(k, most, k_fold_step(k, FOLD_MAX, most, if_seen(s, pair_sees(s, i, j), one_score(s, i, j), none)));
    k_end(k, j);
    val largest = k_out(k, most), base = k_prim(k, P_SELECT, k_prim(k, P_EQ, largest, none, 0), zero, largest);
    j = k_loop(k, LOOP_SERIAL, k_int(k, 0), all, 1);
    val sum = k_carry(k, zero), total = k_carry(k, zero), seen = pair_sees(s, i, j);
    val score = if_seen(s, seen, one_score(s, i, j), none), weight = k_exp_down(k, k_prim(k, P_SUB, score, base, 0));
    val v = attention_element(s->a, V, j, c), more = if_seen(s, seen, k_prim(k, P_FMA, weight, v, total), total);
    val weights = k_prim(k, P_ADD, sum, weight, 0);
    k_next(k, sum, weights);
    k_next(k, total, more);
    k_end(k, j);
    val divisor = k_out(k, sum);
    return k_prim(k, P_SELECT, k_prim(k, P_EQ, divisor, zero, 0), zero,
                  k_prim(k, P_DIV, k_out(k, total), divisor, 0));
}

/* Column c, counted from columns `which` on, of row i of a gradient. */
static val gradient_again(const struct tiles *s, int which, val i, val c)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    val zero = k_const(k, KL_F32, 0), j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, a->m), 1);
    val total = k_carry(k, zero), query = s->keys ? j : i, stat[STAT_COUNT];
    for (int n = 0; n < STAT_COUNT; n++)
        stat[n] = attention_element(a, STATS, query, k_int(k, n));
    val p = k_prim(k, P_MUL, k_exp_down(k, k_prim(k, P_SUB, one_score(s, i, j), stat[MOST], 0)), stat[INVERSE], 0);
    val weight = which ? p : k_prim(k, P_MUL, k_prim(k, P_SUB, one_product(s, 1, i, j), stat[DELTA], 0), p, 0);
    val y = attention_element(a, s->walked[which].which, j, ix_add(k, c, k_int(k, s->walked[which].from)));
    k_next(k, total, if_seen(s, pair_sees(s, i, j), k_prim(k, P_FMA, weight, y, total), total));
    k_end(k, j);
    return which ? k_out(k, total) : k_prim(k, P_MUL, k_out(k, total), factor_of_scale(s), 0);
}

/* A number that is NaN if one of the vector's elements is not finite, else 0. */
static val not_finite(struct kernel *k, const val *x)
{
    val zero = k_const(k, KL_F32, 0), sum = zero;
    for (int j = 0; j < VECTOR; j++)
        sum = k_prim(k, P_FMA, k_cast(k, x[j], KL_F32), zero, sum);
    return sum;
}

/* ---- results ---- */

/* Stores the block's rows, which are in shared memory, as columns from `from` on of the result. */
static void store_rows(const struct tiles *s, uint32_t buf, int64_t stride, int64_t columns, int which, int64_t from)
{
    struct attention *a = s->a;
    struct kernel *k = a->w->k;
    int64_t vectors = columns / VECTOR, all = s->rows * vectors, threads = s->s.width;
    val turn = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, (all + threads - 1) / threads), 1), guard = 0, x[VECTOR];
    val e = ix_add(k, ix_scale(k, turn, threads), s->t), outer = 0;
    if (all % threads) {
        outer = k_if(k, k_prim(k, P_LT, e, k_int(k, all), 0));
        ix_bound(k, e, 0, all - 1);
    }
    val row = ix_div(k, e, vectors), col = ix_scale(k, ix_mod(k, e, vectors), VECTOR), i = ix_add(k, a->q0, row);
    if (a->l % s->rows)
        guard = k_if(k, k_prim(k, P_LT, i, k_int(k, a->l), 0));
    ix_bound(k, i, 0, a->l - 1);
    for (int j = 0; j < VECTOR; j++)
        x[j] = k_load(k, buf, ix_add(k, ix_scale(k, row, stride), ix_add(k, col, k_int(k, j))), 0);
    for (int j = 0; j < VECTOR; j++)
        attention_store(a, a->w->anchor, &a->out, i, ix_add(k, col, k_int(k, from + j)), x[j]);
    if (partial(a)) {
        val bad = not_finite(k, x), again = k_if(k, k_prim(k, P_NE, bad, bad, 0));
        val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, VECTOR), 1), c = ix_add(k, col, j);
        val y = s->gradient ? gradient_again(s, which, i, c) : attention_again(s, i, c);
        attention_store(a, a->w->anchor, &a->out, i, ix_add(k, c, k_int(k, from)), k_cast(k, y, a->n->dtype));
        k_end(k, j);
        k_end(k, again);
    }
    if (guard)
        k_end(k, guard);
    if (outer)
        k_end(k, outer);
    k_end(k, turn);
}

/* Stores a subgroup's tile in shared memory. */
static void put_tile(const struct tiles *s, uint32_t buf, int64_t stride, val x)
{
    struct kernel *k = s->a->w->k;
    tile_store(k, buf, ix_scale(k, s->first, stride), stride, k_cast(k, x, s->a->n->dtype), 0);
}

/* The maximum score and 1 / the sum of the weights, for attention_stats. */
static void matrix_store_stats(const struct tiles *s, val most, val inverse)
{
    struct attention *a = s->a;
    struct kernel *k = a->w->k;
    const struct shape shape = *node_shape(a->w->g, a->stats);
    uint32_t buf = lower_buffer(a->w, a->stats, BUF_OUT);
    val coord[KL_MAX_RANK] = {0}, none = k_const(k, KL_F32, -INFINITY);
    memcpy(coord, a->coord, a->lead.rank * sizeof *coord);
    coord[a->lead.rank] = own_first(s);
    for (int64_t c = 0; c < 2; c++) {
        coord[a->lead.rank + 1] = k_int(k, c);
        val x = c ? inverse : k_prim(k, P_SELECT, k_prim(k, P_EQ, most, none, 0), k_const(k, KL_F32, 0), most);
        tile_store(k, buf, lower_flatten(k, &shape, coord), 2, x, s->own_there);
    }
}

static void finish_attention(const struct tiles *s, const val value[CARRIED])
{
    struct attention *a = s->a;
    struct kernel *k = a->w->k;
    val zero = k_const(k, KL_F32, 0), sum = tile_fold(k, FOLD_ADD, value[SUM], 1);
    val inverse = k_prim(k, P_SELECT, k_prim(k, P_EQ, sum, zero, 0), zero,
                         k_prim(k, P_DIV, k_const(k, KL_F32, 1), sum, 0));
    if (a->stats)
        matrix_store_stats(s, value[LARGEST], inverse);
    if (!a->e)
        return;
    if (s->out == s->own[0].buf && !s->held[0])
        meet(k); /* the last factors have been loaded */
    put_tile(s, s->out, s->walked[1].row, k_prim(k, P_MUL, value[TOTAL], inverse, 0));
    meet(k);
    store_rows(s, s->out, s->walked[1].row, a->e, 0, 0);
}

static void finish_gradient(const struct tiles *s, const val total[2])
{
    struct attention *a = s->a;
    struct kernel *k = a->w->k;
    meet(k); /* the last factors have been loaded */
    put_tile(s, s->own[0].buf, s->own[0].row, k_prim(k, P_MUL, total[0], factor_of_scale(s), 0));
    if (s->keys)
        put_tile(s, s->own[1].buf, s->own[1].row, total[1]);
    meet(k);
    store_rows(s, s->own[0].buf, s->own[0].row, a->d, 0, 0);
    if (s->keys)
        store_rows(s, s->own[1].buf, s->own[1].row, a->e, 1, a->d);
}

/* ---- the kernel ---- */

static void make_buffers(struct tiles *s)
{
    const struct attention *a = s->a;
    bool grad = s->gradient;
    unsigned own = !grad ? Q : s->keys ? Y : X, walked = !grad ? K : s->keys ? X : Y;
    s->own[0] = columns_of(s, own, 0, a->d, s->rows, 1);
    s->own[1] = columns_of(s, own, a->d, grad ? a->e : 0, s->rows, 1);
    s->walked[0] = columns_of(s, walked, 0, a->d, s->step, s->stages);
    s->walked[1] = columns_of(s, grad ? walked : V, grad ? a->d : 0, a->e, s->step, s->stages);
    if (!grad && a->e && s->own[0].row == s->walked[1].row)
        s->out = s->own[0].buf;
    else if (!grad && a->e)
        s->out = k_buf(a->w->k, BUF_SHARED, s->dtype, s->rows * s->walked[1].row, 0);
}

/* What a subgroup needs of its own rows. */
static void prepare_own(struct tiles *s)
{
    const struct attention *a = s->a;
    struct kernel *k = a->w->k;
    int64_t unit = s->s.attention_matrix.unit_k;
    val first = ix_add(k, a->q0, s->first);
    s->own_row = tile_numbers(k, TILE_ROWS, s->m, first);
    s->own_there = a->l % s->rows ? k_prim(k, P_LT, s->own_row, k_const(k, KL_I32, (double)a->l), 0) : 0;
    first = own_first(s);
    if (a->bounds && !s->keys) {
        s->low = of_queries(s, SEEN, 0, s->seen_step[0], first, s->own_there);
        s->high = of_queries(s, SEEN, 1, s->seen_step[0], first, s->own_there);
    }
    for (int c = 0; c < STAT_COUNT && s->gradient && !s->keys; c++)
        s->stat[c] = of_queries(s, STATS, c, s->stat_step, first, s->own_there);
    for (int64_t kk = 0; !s->gradient && s->own[0].padded <= MOST_HELD && kk < s->own[0].padded; kk += unit)
        s->held[kk / unit] = own_factor(s, &s->own[0], kk);
}

static void walk(struct tiles *s)
{
    struct attention *a = s->a;
    struct kernel *k = a->w->k;
    int64_t ahead = s->stages - 1;
    val first, end, start[CARRIED] = {0}, carry[CARRIED], value[CARRIED];
    steps_seen(s, &first, &end);
    for (int i = 0; i < 2; i++)
        copy_rows(s, &s->own[i], a->q0, s->rows, a->l, a->l % s->rows, k_int(k, 0));
    k_inst(k, L_COMMIT, KL_BOOL, 0, 0, 0, 0);
    for (int64_t i = 0; i < ahead; i++)
        copy_step(s, ix_add(k, first, k_int(k, i)));
    k_inst(k, L_WAIT, KL_BOOL, 0, 0, 0, (uint64_t)ahead);
    meet(k);
    prepare_own(s);
    if (s->gradient) {
        start[0] = tile_splat(k, 0, s->m, s->own[0].padded);
        start[1] = s->keys ? tile_splat(k, 0, s->m, s->own[1].padded) : 0;
    } else {
        start[TOTAL] = a->e ? tile_splat(k, 0, s->m, s->walked[1].padded) : 0;
        start[LARGEST] = tile_splat(k, -INFINITY, s->m, 1);
        start[SUM] = tile_splat(k, 0, s->m, s->s.attention_matrix.unit_n);
    }
    val number = k_loop(k, LOOP_SERIAL, first, end, 1);
    ix_bound(k, number, 0, (a->m + s->step - 1) / s->step - 1);
    for (int i = 0; i < CARRIED; i++)
        value[i] = carry[i] = start[i] ? k_carry(k, start[i]) : 0;
    k_inst(k, L_WAIT, KL_BOOL, 0, 0, 0, (uint64_t)(ahead - 1));
    meet(k);
    copy_step(s, ix_add(k, number, k_int(k, ahead)));
    val stage = ix_mod(k, number, s->stages), row, there;
    s->k0 = ix_scale(k, number, s->step);
    row = tile_numbers(k, TILE_COLS, s->step, s->k0);
    there = a->m % s->step ? k_prim(k, P_LT, row, k_const(k, KL_I32, (double)a->m), 0) : 0;
    val seen = pairs_see(s, row, there);
    if (s->gradient)
        add_gradients(s, stage, seen, there, value);
    else
        attend(s, stage, seen, value);
    for (int i = 0; i < CARRIED; i++)
        if (carry[i])
            k_next(k, carry[i], value[i]);
    k_end(k, number);
    for (int i = 0; i < CARRIED; i++)
        value[i] = carry[i] ? k_out(k, carry[i]) : 0;
    k_inst(k, L_WAIT, KL_BOOL, 0, 0, 0, 0); /* for copies of rows behind the last step */
    if (s->gradient)
        finish_gradient(s, value);
    else
        finish_attention(s, value);
}

void attention_emit_matrix(struct attention *a, const struct schedule *schedule, bool keys)
{
    struct lowering *w = a->w;
    struct kernel *k = w->k;
    struct tiles s = {.a = a, .s = *schedule, .gradient = a->n->op == OP_attention_grad, .keys = keys,
                      .dtype = w->g->node[a->n->in[K]].dtype, .m = schedule->attention_matrix.unit_m,
                      .rows = schedule->attention_matrix.rows, .step = schedule->attention_matrix.step,
                      .stages = schedule->attention_matrix.stages};
    int64_t blocks = (a->l + s.rows - 1) / s.rows;
    find_steps(&s);
    lower_scalars(w);
    make_buffers(&s);
    k->extent = shape_count(&a->lead) * blocks;
    val p = k_loop(k, LOOP_GRID, k_int(k, 0), k_int(k, k->extent), 1), block = ix_mod(k, p, blocks);
    lower_unflatten(k, &a->lead, ix_div(k, p, blocks), a->coord);
    if (a->causal && !keys) /* the longest rows first */
        block = ix_sub(k, k_int(k, blocks - 1), block);
    a->q0 = ix_scale(k, block, s.rows);
    s.t = k_loop(k, LOOP_BLOCK, k_int(k, 0), k_int(k, s.s.width), 1);
    k->inst[s.t].rows = schedule->attention_matrix.subgroup;
    s.first = ix_scale(k, ix_div(k, s.t, schedule->attention_matrix.subgroup), s.m);
    walk(&s);
    k_end(k, s.t);
    k_end(k, p);
}
