/* A pool of values grows by random nodes of random pool values; outputs are drawn from it at the end. */
#include "random_make.h"

enum { MAX_POOL = 48, MAX_GRADS = 3, MAX_REGIONS = 3, MAX_DEPTH = 2 };
/* Bounds on one graph's work: elements of a value, of all values, products of all dots. */
enum { MAX_ELEMENTS = 150000, MAX_TOTAL = 1500000, MAX_PRODUCTS = 6000000 };

struct sizes { uint32_t n; int64_t v[24]; };

struct maker {
    struct graph *g;
    struct rng r;
    ref pool[MAX_POOL];
    unsigned n, grads, regions;
    unsigned depth;         /* regions around this graph */
    const struct sizes *dims;
    int64_t elements, products;
};

/* What a graph's dimensions are drawn from: one row a graph. */
static const struct sizes profile[] = {
    {7, {1, 1, 2, 3, 4, 5, 7}},
    {13, {0, 1, 1, 2, 3, 5, 7, 16, 17, 33, 64, 65, 100}},
    {12, {1, 1, 2, 3, 5, 7, 16, 17, 33, 64, 65, 100}},
    {22, {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 24, 25, 31, 32, 33, 48, 49}}, /* register tiles */
    {8, {1, 2, 63, 64, 65, 127, 128, 129}}, /* lanes of reduces */
    {9, {2, 3, 5, 17, 512, 513, 520, 1024, 1025}}, /* column chunks, dot blocks */
    {9, {1, 7, 33, 511, 512, 513, 600, 1030, 2100}},
    {9, {1, 2, 3, 16383, 16384, 16385, 20000, 32769, 49152}}, /* lane chunks */
};
static const unsigned dtypes[] = {KL_F32, KL_F32, KL_F32, KL_F32, KL_F64, KL_F64, KL_F16, KL_BF16, KL_I32,
                                  KL_I64, KL_U8, KL_BOOL, KL_I16, KL_U32, KL_I8, KL_U16, KL_U64};
static const unsigned index_dtypes[] = {KL_I32, KL_I64, KL_U8, KL_U32};
#define PICK(m, a) ((a)[rng_below(&(m)->r, (int64_t)(sizeof(a) / sizeof *(a)))])

static bool chance(struct maker *m, int64_t one_in) { return rng_below(&m->r, one_in) == 0; }
static int64_t random_dim(struct maker *m) { return m->dims->v[rng_below(&m->r, m->dims->n)]; }
static ref any(struct maker *m) { return m->pool[rng_below(&m->r, m->n)]; }
/* Late values need more of the graph. */
static ref late(struct maker *m) { return m->pool[m->n - 1 - rng_below(&m->r, m->n) % (1 + m->n / 4)]; }
/* Empty axes count as 1: a reduce over them leaves the others. */
static bool fits(const struct shape *s)
{
    int64_t n = 1;
    for (uint32_t i = 0; i < s->rank && n <= MAX_ELEMENTS; i++)
        n *= s->dim[i] ? s->dim[i] : 1;
    return n <= MAX_ELEMENTS;
}

static void add(struct maker *m, ref r)
{
    if (!r)
        return;
    m->elements += node_numel(m->g, r);
    if (m->n < MAX_POOL)
        m->pool[m->n++] = r;
    else
        m->pool[rng_below(&m->r, MAX_POOL)] = r;
}

static struct shape random_shape(struct maker *m)
{
    struct shape s = {.rank = (uint32_t)rng_below(&m->r, 4)};
    if (chance(m, 12))
        s.rank += 1 + (uint32_t)rng_below(&m->r, 3);
    for (uint32_t i = 0; i < s.rank; i++) {
        s.dim[i] = random_dim(m);
        while (!fits(&s))
            s.dim[i] /= 2;
    }
    return s;
}

static ref fresh(struct maker *m, unsigned dtype, const struct shape *s, bool state)
{
    state = state && !m->depth; /* a region has none */
    bool full = (state ? m->g->state.n : m->g->input.n) >= MAX_VALUES - 1;
    if (full)
        return n_broadcast(m->g, n_const(m->g, dtype, dtype_bits(dtype, 1)), s);
    m->elements += shape_count(s);
    return state ? n_state(m->g, dtype, s, "s") : n_input(m->g, dtype, s, "x");
}

/* A pool value of this dtype and shape, bent to fit if need be. */
static ref fitting(struct maker *m, unsigned dtype, const struct shape *s)
{
    for (int tries = 0; tries < 8; tries++) {
        ref r = any(m);
        const struct shape *t = node_shape(m->g, r);
        if (shape_equal(t, s))
            return m->g->node[r].dtype == dtype ? r : n_cast(m->g, r, dtype);
        if (shape_count(t) == shape_count(s))
            return n_cast(m->g, n_reshape(m->g, r, s), dtype);
        if (node_numel(m->g, r) == 1)
            return n_broadcast(m->g, n_cast(m->g, n_reshape(m->g, r, &(struct shape){0}), dtype), s);
        bool spreads = t->rank <= s->rank;
        for (uint32_t i = 0; spreads && i < t->rank; i++)
            spreads = t->dim[i] == 1 || t->dim[i] == s->dim[s->rank - t->rank + i];
        if (spreads)
            return n_cast(m->g, n_broadcast(m->g, r, s), dtype);
    }
    return fresh(m, dtype, s, chance(m, 2));
}

/* ---- views ---- */

static ref permuted(struct maker *m, ref x)
{
    const uint32_t rank = node_shape(m->g, x)->rank;
    uint8_t perm[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < rank; i++)
        perm[i] = (uint8_t)i;
    for (uint32_t i = rank; i-- > 1;) {
        uint32_t j = (uint32_t)rng_below(&m->r, i + 1);
        uint8_t t = perm[i];
        perm[i] = perm[j];
        perm[j] = t;
    }
    return n_permute(m->g, x, perm);
}

/* Merges two adjacent axes, splits an axis, puts in an axis of 1, takes one out, or flattens. */
static ref reshaped(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x), t = {0};
    uint32_t at = (uint32_t)rng_below(&m->r, s.rank);
    int64_t how = rng_below(&m->r, 5), by = s.rank ? s.dim[at] : 1, low = 1;
    if (how == 0)
        return n_reshape(m->g, x, &(struct shape){.rank = 1, .dim = {shape_count(&s)}});
    if (how == 1 && by > 1) {
        low = 2 + rng_below(&m->r, 8);
        while (low > 1 && by % low)
            low--;
    }
    for (uint32_t i = 0; i < s.rank; i++) {
        if (how == 2 && i == at && s.dim[i] == 1)
            continue;
        if (how == 3 && i == at && i) {
            t.dim[t.rank - 1] *= s.dim[i];
            continue;
        }
        bool split = (how == 1 || how == 4) && i == at && s.rank < 6;
        t.dim[t.rank++] = split ? s.dim[i] / low : s.dim[i];
        if (split)
            t.dim[t.rank++] = low;
    }
    return n_reshape(m->g, x, &t);
}

/* Axes of length 1 repeated, and perhaps a new one in front. */
static ref expanded(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x), t = s;
    if (s.rank < 5 && chance(m, 2)) {
        t.rank++;
        memmove(t.dim + 1, s.dim, s.rank * sizeof *s.dim);
        t.dim[0] = 1 + rng_below(&m->r, 3);
    }
    for (uint32_t i = t.rank - s.rank; i < t.rank; i++)
        if (t.dim[i] == 1 && chance(m, 2)) {
            t.dim[i] = random_dim(m);
            if (!fits(&t))
                t.dim[i] = 1;
        }
    return fits(&t) ? n_broadcast(m->g, x, &t) : x;
}

static ref random_view(struct maker *m, ref x)
{
    for (int64_t n = 1 + rng_below(&m->r, 3); n > 0; n--) {
        int64_t how = rng_below(&m->r, 3);
        x = how == 0 ? permuted(m, x) : how == 1 ? reshaped(m, x) : expanded(m, x);
    }
    return x;
}

/* Windows along an axis; NIL: too many elements. */
static ref random_window(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x);
    uint32_t axis = s.rank ? (uint32_t)rng_below(&m->r, s.rank) : 0;
    if (!s.rank || s.rank > 6 || !s.dim[axis])
        return NIL;
    int64_t length = s.dim[axis], size = 1 + rng_below(&m->r, length < 5 ? length : 5);
    int64_t max = size > 1 ? (length - 1) / (size - 1) : 3, dilation = 1 + rng_below(&m->r, max < 3 ? max : 3);
    int64_t stride = 1 + rng_below(&m->r, 4);
    s.dim[axis] = (length - (size - 1) * dilation - 1) / stride + 1;
    s.dim[s.rank++] = size;
    return fits(&s) ? n_window(m->g, x, axis, size, stride, dilation) : NIL;
}

static ref random_slice(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x);
    if (!s.rank)
        return x;
    uint32_t axis = (uint32_t)rng_below(&m->r, s.rank);
    int64_t start = rng_below(&m->r, s.dim[axis] + 1), step = 1 + rng_below(&m->r, 3), rest = s.dim[axis] - start;
    int64_t max = rest ? (rest - 1) / step + 1 : 0;
    if (chance(m, 3))
        return n_flip(m->g, x, (uint32_t)rng_below(&m->r, 1 << s.rank));
    return n_slice(m->g, x, axis, start, chance(m, 2) ? max : rng_below(&m->r, max + 1), step);
}

/* Elements chosen by place or by index; NIL: too many. */
static ref random_select(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x), max = s;
    unsigned dt = m->g->node[x].dtype, n = 1 + (unsigned)rng_below(&m->r, 6);
    if (!s.rank)
        return x;
    uint32_t axis = (uint32_t)rng_below(&m->r, s.rank);
    int64_t how = rng_below(&m->r, 5), low = rng_below(&m->r, 4), high = rng_below(&m->r, 4);
    int64_t interior = chance(m, 2) ? rng_below(&m->r, 3) : 0, length = s.dim[axis] ? random_dim(m) : 0;
    ref part[6];
    max.dim[axis] = how == 0 ? low + high + s.dim[axis] * (1 + interior) : how == 1 ? s.dim[axis] * n : length;
    if (!fits(&max))
        return NIL;
    if (how == 0)
        return n_pad(m->g, x, fitting(m, dt, &(struct shape){0}), axis, low, high, interior);
    if (how >= 3) {
        ref start = fitting(m, PICK(m, index_dtypes), &(struct shape){0});
        int64_t count = rng_below(&m->r, s.dim[axis] + 1);
        if (how == 3)
            return n_dynamic_slice(m->g, x, start, axis, count);
        s.dim[axis] = count;
        return n_dynamic_update(m->g, x, fitting(m, dt, &s), start, axis);
    }
    if (how == 2) {
        struct shape is = {.rank = 1, .dim = {length}};
        return n_gather(m->g, x, fitting(m, PICK(m, index_dtypes), &is), axis);
    }
    for (unsigned i = 0; i < n; i++) {
        s.dim[axis] = chance(m, 2) ? s.dim[axis] : rng_below(&m->r, s.dim[axis] + 1);
        part[i] = i ? fitting(m, dt, &s) : x;
    }
    return n_concat(m->g, part, n, axis);
}

static ref random_scatter(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x), us = s;
    unsigned dt = m->g->node[x].dtype;
    if (!s.rank)
        return NIL;
    uint32_t axis = (uint32_t)rng_below(&m->r, s.rank);
    struct shape is = {.rank = 1, .dim = {s.dim[axis] ? random_dim(m) : 0}};
    us.dim[axis] = is.dim[0];
    if (!fits(&us))
        return NIL;
    enum scatter_kind kind = dt == KL_BOOL ? SCATTER_SET : (enum scatter_kind)rng_below(&m->r, 4);
    ref index = fitting(m, PICK(m, index_dtypes), &is);
    return n_scatter(m->g, x, index, fitting(m, dt, &us), axis, kind);
}

static ref random_argsort(struct maker *m, ref x)
{
    uint32_t rank = node_shape(m->g, x)->rank;
    uint32_t axis = (uint32_t)rng_below(&m->r, rank);
    return rank ? n_argsort(m->g, x, axis, chance(m, 2), chance(m, 2) ? KL_I32 : KL_I64) : NIL;
}

/* Only of integers: which bits a NaN has depends on who computed it. */
static ref random_bitcast(struct maker *m, ref x)
{
    unsigned from = m->g->node[x].dtype, to = PICK(m, dtypes);
    bool same = dtype_size(from) == dtype_size(to) && (from == KL_BOOL) == (to == KL_BOOL);
    return same && !dtype_is_float(from) ? n_bitcast(m->g, x, to) : NIL;
}

/* The last two axes of x are queries. */
static ref random_attention(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x), k = s, v = s, seen = s, weights = s, out = s;
    unsigned dt = m->g->node[x].dtype, last = s.rank - 1;
    if (s.rank < 2 || !dtype_is_float(dt))
        return NIL;
    k.dim[last - 1] = v.dim[last - 1] = weights.dim[last] = random_dim(m);
    out.dim[last] = v.dim[last] = random_dim(m);
    int masking = (int)rng_below(&m->r, 3);
    seen.dim[last] = masking == 1 ? weights.dim[last] : 2;
    if (!fits(&k) || !fits(&v) || !fits(&seen) || !fits(&weights) || !fits(&out))
        return NIL;
    ref by = masking ? fitting(m, masking == 1 ? KL_BOOL : chance(m, 2) ? KL_I32 : KL_I64, &seen) : NIL, din[3] = {NIL};
    ref y = n_attention(m->g, x, fitting(m, dt, &k), fitting(m, dt, &v), by, 0.5, chance(m, 3));
    if (y && node_numel(m->g, x) <= 1 << 12 && chance(m, 3)) /* of more the interpreter takes its time */
        n_attention_gradient(m->g, y, fitting(m, dt, node_shape(m->g, y)), din), y = din[rng_below(&m->r, 3)];
    return y && y == din[0] && chance(m, 2) ? n_concat(m->g, din, 2, last - 1) : y; /* of both nodes of it */
}

/* To a small integer, from one, or both. */
static ref random_quant(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x);
    unsigned dt = m->g->node[x].dtype, small = chance(m, 2) ? KL_I8 : KL_U8;
    if (dt == KL_I8 || dt == KL_U8)
        return n_dequantize(m->g, x, fitting(m, chance(m, 2) ? KL_F32 : KL_F16, &s), fitting(m, dt, &s));
    if (!dtype_is_float(dt))
        x = n_cast(m->g, x, dt = KL_F32);
    ref scale = fitting(m, chance(m, 3) ? KL_F64 : dt, &s), zero = fitting(m, small, &s),
        q = n_quantize(m->g, x, scale, zero);
    return chance(m, 2) ? n_dequantize(m->g, q, scale, zero) : q;
}

/* ---- what computes ---- */

static ref random_reduce(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x);
    enum op op = (enum op)(OP_sum + rng_below(&m->r, OP_reduce_prod - OP_sum + 1));
    if (m->g->node[x].dtype == KL_BOOL)
        x = n_cast(m->g, x, KL_I32);
    uint32_t axes = (uint32_t)rng_below(&m->r, 1 << s.rank);
    if (s.rank && chance(m, 3))
        axes = (1u << s.rank) - 1;
    return n_reduce(m->g, op, x, axes);
}

/* Rows reduced over their last axes, made something of, and brought back to the row: what row kernels are made of. */
static ref random_rows(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x);
    if (!s.rank || m->g->node[x].dtype == KL_BOOL)
        return NIL;
    uint32_t from = (uint32_t)rng_below(&m->r, s.rank), axes = ((1u << s.rank) - 1) & ~((1u << from) - 1);
    for (int64_t i = 1 + rng_below(&m->r, 3); i > 0; i--) {
        ref one = n_reduce(m->g, chance(m, 2) ? OP_sum : OP_reduce_max, x, axes);
        if (chance(m, 3))
            one = n_sub(m->g, one, fitting(m, m->g->node[one].dtype, node_shape(m->g, one)));
        if (chance(m, 3))
            add(m, one);
        ref row = n_expand(m->g, one, &s), other = chance(m, 3) ? fitting(m, m->g->node[x].dtype, &s) : x;
        ref y = chance(m, 2) ? n_sub(m->g, other, row) : n_max(m->g, row, other);
        if (dtype_is_float(m->g->node[y].dtype) && chance(m, 3))
            y = chance(m, 2) ? n_exp(m->g, y) : n_tanh(m->g, y);
        add(m, y);
        x = y;
    }
    return x;
}

static ref random_scan(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x);
    uint32_t axis = s.rank ? (uint32_t)rng_below(&m->r, s.rank) : 0;
    if (!s.rank)
        return NIL;
    if (m->g->node[x].dtype == KL_BOOL)
        x = n_cast(m->g, x, KL_I32);
    enum op op = (enum op)(OP_cumsum + rng_below(&m->r, OP_recurrence - OP_cumsum + 1));
    if (op == OP_recurrence)
        return n_recurrence(m->g, x, fitting(m, m->g->node[x].dtype, &s), axis);
    return n_cumulative(m->g, op, x, axis);
}

/* Each axis of a becomes a batch, contracted or free one; b has the first two kinds and free ones, in any order. */
static ref random_dot(struct maker *m, ref a)
{
    struct shape s = *node_shape(m->g, a), t = {0};
    if (m->g->node[a].dtype == KL_BOOL || s.rank > 5)
        return NIL;
    union attr d = {0};
    uint8_t role[KL_MAX_RANK], from[KL_MAX_RANK]; /* of b's axes: the role, and a's axis it goes with */
    uint32_t contracted = s.rank ? (uint32_t)rng_below(&m->r, s.rank) : 0;
    for (uint32_t i = 0; i < s.rank; i++) {
        /* 0 contracted, 1 batch, else free */
        int64_t kind = i == contracted && !chance(m, 20) ? 0 : rng_below(&m->r, 6);
        if (kind > 1 || t.rank == KL_MAX_RANK)
            continue;
        role[t.rank] = (uint8_t)kind;
        from[t.rank] = (uint8_t)i;
        t.dim[t.rank++] = s.dim[i];
    }
    for (int64_t n = rng_below(&m->r, 3); n > 0 && t.rank < 5; n--) {
        role[t.rank] = 2;
        t.dim[t.rank++] = random_dim(m);
    }
    for (uint32_t i = t.rank; i-- > 1;) {
        uint32_t j = (uint32_t)rng_below(&m->r, i + 1);
        uint8_t r = role[i], f = from[i];
        int64_t n = t.dim[i];
        role[i] = role[j], from[i] = from[j], t.dim[i] = t.dim[j];
        role[j] = r, from[j] = f, t.dim[j] = n;
    }
    int64_t products = node_numel(m->g, a);
    for (uint32_t i = 0; i < t.rank; i++) {
        if (role[i] == 0) {
            d.dot.con_a = axis_put(d.dot.con_a, d.dot.ncon, from[i]);
            d.dot.con_b = axis_put(d.dot.con_b, d.dot.ncon++, i);
        } else if (role[i] == 1) {
            d.dot.batch_a = axis_put(d.dot.batch_a, d.dot.nbatch, from[i]);
            d.dot.batch_b = axis_put(d.dot.batch_b, d.dot.nbatch++, i);
        } else {
            products *= t.dim[i];
        }
    }
    if (!fits(&t) || products > MAX_PRODUCTS - m->products || s.rank + t.rank > KL_MAX_RANK)
        return NIL;
    struct shape result = s; /* larger than the dot's: its contracted axes are still there */
    for (uint32_t i = 0; i < t.rank; i++)
        if (role[i] == 2)
            result.dim[result.rank++] = t.dim[i];
    for (uint32_t i = 0; i < t.rank; i++)
        if (role[i] == 0)
            result.dim[from[i]] = 1;
    if (!fits(&result))
        return NIL;
    m->products += products;
    return n_dot(m->g, a, fitting(m, m->g->node[a].dtype, &t), &d);
}

static ref random_elementwise(struct maker *m, ref x)
{
    uint16_t op;
    do
        op = (uint16_t)(1 + rng_below(&m->r, OP_COUNT - 1));
    while (!op_is_elementwise(op));
    struct shape s = *node_shape(m->g, x);
    unsigned dt = m->g->node[x].dtype;
    unsigned cls = opinfo[op].cls;
    if ((cls == CLASS_FLOAT || cls == CLASS_PREDICATE) && !dtype_is_float(dt))
        x = n_cast(m->g, x, dt = KL_F32);
    if ((cls == CLASS_ANY || cls == CLASS_INT) && dt == KL_BOOL)
        x = n_cast(m->g, x, dt = KL_I32);
    if ((cls == CLASS_LOGIC || cls == CLASS_INT) && dtype_is_float(dt))
        x = n_cast(m->g, x, dt = KL_I32);
    struct node n = {.op = op, .nin = opinfo[op].nin};
    for (unsigned i = 0; i < n.nin; i++)
        n.in[i] = i == 0 || chance(m, 12) ? x : fitting(m, dt, &s);
    if (op == OP_where)
        n.in[0] = n_cast(m->g, x, KL_BOOL), n.in[1] = fitting(m, dt, &s);
    n.flags = chance(m, 30) ? MARK_STOP : 0;
    return graph_add(m->g, &n, NULL);
}

static ref random_const(struct maker *m, unsigned dt)
{
    static const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1e-310, 1e-40, 3e38, 1e300, 0.1};
    double v = dtype_is_float(dt) && chance(m, 2) ? PICK(m, special) : (double)rng_below(&m->r, 7) - 3;
    return n_const(m->g, dt, dtype_bits(dt, v));
}

static ref random_leaf(struct maker *m)
{
    struct shape s = random_shape(m);
    unsigned dt = PICK(m, dtypes);
    switch (rng_below(&m->r, 8)) {
    case 0: case 1: return fresh(m, dt, &s, true);
    case 2: return m->g->slot.n < MAX_VALUES && !m->depth ? n_slot(m->g, dt, "slot") : NIL;
    case 3: return random_const(m, dt);
    case 4: return dt == KL_BOOL || !s.rank ? NIL : n_iota(m->g, dt, &s, (uint32_t)rng_below(&m->r, s.rank));
    case 5: return n_random(m->g, chance(m, 2) ? KL_U32 : KL_U64, &s, n_const(m->g, KL_U64, rng_next(&m->r)));
    default: return fresh(m, dt, &s, false);
    }
}

/* The gradient of one pool value in another; then perhaps the gradient of that one, squared. */
static ref random_grad(struct maker *m, ref x)
{
    ref w = any(m);
    if (m->grads >= MAX_GRADS || !dtype_is_float(m->g->node[x].dtype) || !dtype_is_float(m->g->node[w].dtype))
        return NIL;
    m->grads++;
    ref y = chance(m, 2) ? x : n_reduce(m->g, OP_sum, x, (1u << node_shape(m->g, x)->rank) - 1);
    ref first = n_grad(m->g, y, w);
    if (first && chance(m, 8))
        m->g->node[first].flags |= MARK_STOP;
    if (m->grads >= MAX_GRADS || !chance(m, 3))
        return first;
    m->grads++;
    add(m, first);
    return n_grad(m->g, n_mul(m->g, first, first), chance(m, 2) ? w : first);
}

/* ---- region ops ---- */

struct type { unsigned dtype; struct shape s; };
enum { MAX_OWN = 3, MAX_YIELDS = 3, MAX_PARAMETERS = MAX_VALUES + 2 * MAX_OWN + 2 * MAX_YIELDS };
static ref random_node(struct maker *m);

/* A region on its way: what it takes, which grows while it is made, and what it yields. */
struct region { struct maker m; unsigned own; };

static struct type type_of(const struct graph *g, ref r) { return (struct type){g->node[r].dtype, *node_shape(g, r)}; }

static struct type input_type(const struct graph *g, uint32_t i)
{
    return (struct type){g->input.v[i].dtype, g->shape[g->input.v[i].shape]};
}

static void open_region(struct region *b, struct maker *m, const char *name, const struct type *own, unsigned n)
{
    *b = (struct region){.m = {.g = graph_new(name), .r = {rng_next(&m->r) | 1}, .dims = m->dims, .depth = m->depth + 1,
                               .grads = MAX_GRADS - 1, .regions = MAX_REGIONS - 1}, .own = n};
    if (!b->m.g)
        abort();
    b->m.elements = m->elements;
    b->m.products = MAX_PRODUCTS - (MAX_PRODUCTS - m->products) / 16; /* loops repeat them */
    for (unsigned i = 0; i < n; i++)
        add(&b->m, n_input(b->m.g, own[i].dtype, &own[i].s, "p"));
}

static void fill(struct region *b)
{
    for (int64_t n = 1 + rng_below(&b->m.r, 6); n > 0 && !b->m.g->err.code && b->m.elements < MAX_TOTAL; n--)
        add(&b->m, random_node(&b->m));
}

static void yield(struct region *b, ref r)
{
    if (r)
        graph_output(b->m.g, OUT_RETURN, r, 0);
}

/* Also inputs of region a: what b takes from `from` on. */
static void take_too(struct graph *a, const struct graph *b, uint32_t from)
{
    for (uint32_t i = from; i < b->input.n; i++) {
        struct type t = input_type(b, i);
        graph_leaf(a, &a->input, t.dtype, &t.s, "");
    }
}

/* The node with operands behind `in` for what its first region takes besides; its results go to the pool. */
static ref close_region(struct maker *m, struct node *n, ref *in, unsigned nin, unsigned first, struct graph *a,
                        struct graph *b)
{
    for (uint32_t i = nin - first; i < a->input.n; i++) {
        struct type t = input_type(a, i);
        in[nin++] = fitting(m, t.dtype, &t.s);
    }
    ref r = graph_add_region(m->g, n, in, nin, (struct graph *[]){a, b});
    uint32_t results = r ? region_results(m->g, &m->g->node[r]) : 0;
    for (uint32_t i = 0; i < results; i++)
        if (!chance(m, 4))
            add(m, n_proj(m->g, r, i));
    return NIL;
}

static ref random_cond(struct maker *m, ref *in, const struct type *own, unsigned n)
{
    struct region a, b;
    struct type all[MAX_PARAMETERS], out[MAX_YIELDS];
    struct node node = {.op = OP_cond};
    ref operand[MAX_PARAMETERS] = {fitting(m, KL_BOOL, &(struct shape){0})};
    memcpy(operand + 1, in, n * sizeof *in);
    open_region(&a, m, "then", own, n);
    fill(&a);
    for (unsigned i = 0; i < MAX_YIELDS && (i == 0 || chance(m, 2)); i++)
        yield(&a, late(&a.m));
    unsigned takes = a.m.g->input.n;
    for (unsigned i = 0; i < takes; i++)
        all[i] = input_type(a.m.g, i);
    open_region(&b, m, "else", all, takes);
    fill(&b);
    for (uint32_t i = 0; i < a.m.g->nout; i++) {
        out[i] = type_of(a.m.g, a.m.g->out[i].value);
        yield(&b, fitting(&b.m, out[i].dtype, &out[i].s));
    }
    take_too(a.m.g, b.m.g, takes);
    return close_region(m, &node, operand, n + 1, 1, a.m.g, b.m.g);
}

static ref random_while(struct maker *m, ref *in, const struct type *own, unsigned n)
{
    struct region body;
    struct type all[MAX_OWN + 1] = {{KL_I32, {0}}};
    ref operand[MAX_PARAMETERS] = {n_const(m->g, KL_I32, 0)};
    struct node node = {.op = OP_while, .flags = MARK_STOP, .attr.region.carried = n + 1};
    memcpy(all + 1, own, n * sizeof *own);
    memcpy(operand + 1, in, n * sizeof *in);
    open_region(&body, m, "body", all, n + 1);
    ref i = body.m.pool[0];
    fill(&body);
    yield(&body, n_add(body.m.g, i, n_const(body.m.g, KL_I32, 1)));
    for (unsigned k = 0; k < n; k++)
        yield(&body, fitting(&body.m, own[k].dtype, &own[k].s));
    struct graph *c = graph_new("condition");
    ref count = n_input(c, KL_I32, &(struct shape){0}, "i");
    take_too(c, body.m.g, 1);
    graph_output(c, OUT_RETURN, n_lt(c, count, n_const(c, KL_I32, (uint64_t)rng_below(&m->r, 4))), 0);
    return close_region(m, &node, operand, n + 1, 0, c, body.m.g);
}

static ref random_scan_op(struct maker *m, ref *in, struct type *own, unsigned n)
{
    struct region body;
    struct node node = {.op = OP_scan, .attr.region = {.carried = n, .flags = chance(m, 2) ? REGION_REVERSE : 0}};
    ref operand[MAX_PARAMETERS];
    int64_t length = rng_below(&m->r, 5);
    for (int tries = 0; tries < 8 && !node.attr.region.scanned; tries++) {
        struct type t = type_of(m->g, operand[n] = any(m));
        if (!t.s.rank || t.s.dim[0] > 6)
            continue;
        length = t.s.dim[0];
        own[n] = (struct type){t.dtype, shape_make(t.s.rank - 1, t.s.dim + 1)};
        node.attr.region.scanned = 1;
    }
    node.attr.region.length = length;
    memcpy(operand, in, n * sizeof *in);
    open_region(&body, m, "body", own, n + node.attr.region.scanned);
    fill(&body);
    for (unsigned k = 0; k < n; k++)
        yield(&body, fitting(&body.m, own[k].dtype, &own[k].s));
    for (unsigned k = 0; k < MAX_YIELDS && chance(m, 2); k++) {
        ref y = late(&body.m);
        if (node_shape(body.m.g, y)->rank < 5)
            yield(&body, y);
    }
    return close_region(m, &node, operand, n + node.attr.region.scanned, 0, body.m.g, NULL);
}

static ref random_checkpoint(struct maker *m, ref *in, const struct type *own, unsigned n)
{
    struct region a;
    struct node node = {.op = OP_checkpoint};
    ref operand[MAX_PARAMETERS];
    memcpy(operand, in, n * sizeof *in);
    open_region(&a, m, "checkpoint", own, n);
    fill(&a);
    for (unsigned i = 0; i < MAX_YIELDS && (i == 0 || chance(m, 2)); i++)
        yield(&a, late(&a.m));
    return close_region(m, &node, operand, n, 0, a.m.g, NULL);
}

/* The gradient is anything of the right shape. */
static ref random_custom_grad(struct maker *m, ref *in, const struct type *own, unsigned n)
{
    struct region a, b;
    struct type all[MAX_PARAMETERS];
    struct node node = {.op = OP_custom_grad, .attr.region.carried = n};
    ref operand[MAX_PARAMETERS];
    unsigned takes = n;
    bool any_float = false;
    memcpy(operand, in, n * sizeof *in);
    memcpy(all, own, n * sizeof *own);
    for (unsigned i = 0; i < n; i++)
        any_float |= dtype_is_float(own[i].dtype);
    if (!any_float)
        return NIL;
    open_region(&a, m, "value", own, n);
    fill(&a);
    for (unsigned i = 0; i < MAX_YIELDS && (i == 0 || chance(m, 2)); i++)
        yield(&a, late(&a.m));
    for (int floats = 0; floats < 2; floats++)
        for (uint32_t i = 0; i < a.m.g->nout; i++) {
            all[takes] = type_of(a.m.g, a.m.g->out[i].value);
            takes += !floats || dtype_is_float(all[takes].dtype);
        }
    for (uint32_t i = n; i < a.m.g->input.n; i++)
        all[takes++] = input_type(a.m.g, i);
    open_region(&b, m, "gradient", all, takes);
    fill(&b);
    for (unsigned i = 0; i < n; i++)
        if (dtype_is_float(own[i].dtype))
            yield(&b, fitting(&b.m, own[i].dtype, &own[i].s));
    take_too(a.m.g, b.m.g, takes);
    return close_region(m, &node, operand, n, 0, a.m.g, b.m.g);
}

static ref random_region(struct maker *m, ref x)
{
    ref in[MAX_OWN] = {x};
    struct type own[MAX_OWN + 1] = {type_of(m->g, x)};
    unsigned n = 1 + (unsigned)rng_below(&m->r, MAX_OWN);
    if (m->regions >= MAX_REGIONS || m->depth >= MAX_DEPTH || m->g->input.n > MAX_VALUES / 2)
        return NIL;
    m->regions++;
    for (unsigned i = 1; i < n; i++)
        own[i] = type_of(m->g, in[i] = any(m));
    switch (rng_below(&m->r, 5)) {
    case 0: return random_cond(m, in, own, n);
    case 1: return random_while(m, in, own, n);
    case 2: return random_checkpoint(m, in, own, n);
    case 3: return random_custom_grad(m, in, own, n);
    default: return random_scan_op(m, in, own, n);
    }
}

/* One to three values through an op of the user's; all results but one go to the pool at once. */
static ref random_custom(struct maker *m, ref x)
{
    ref in[3] = {x};
    uint32_t n = 1 + (uint32_t)rng_below(&m->r, 3);
    for (uint32_t i = 1; i < n; i++)
        in[i] = any(m);
    ref r = n_custom(m->g, in, n, (unsigned)rng_below(&m->r, 4));
    if (r)
        m->g->node[r].flags |= MARK_STOP; /* it has no gradient */
    for (uint32_t i = 1; i < n && r; i++)
        if (chance(m, 2))
            add(m, n_proj(m->g, r, i));
    return n_proj(m->g, r, 0);
}

static ref random_node(struct maker *m)
{
    ref x = chance(m, 2) ? late(m) : any(m);
    switch (rng_below(&m->r, 22)) {
    case 0: return random_leaf(m);
    case 1: case 2: case 3: return random_view(m, x);
    case 4: return random_reduce(m, x);
    case 5: return chance(m, 2) ? random_reduce(m, x) : random_scan(m, x);
    case 6: case 7: return random_dot(m, x);
    case 8: return n_cast(m->g, x, PICK(m, dtypes));
    case 9: return random_grad(m, x);
    case 10: return chance(m, 2) ? random_slice(m, x) : random_window(m, x);
    case 11: case 12: return random_select(m, x);
    case 13: return chance(m, 2) ? random_bitcast(m, x) : random_quant(m, x);
    case 14: return chance(m, 2) ? random_scatter(m, x) : random_argsort(m, x);
    case 15: return chance(m, 3) ? random_attention(m, x) : random_rows(m, x);
    case 16: return chance(m, 5) ? random_custom(m, x) : random_region(m, x);
    default: return random_elementwise(m, x);
    }
}

/* ---- outputs ---- */

/* A state's new value: anything that fits, a view of the state itself, or another state (they swap). */
static void random_assign(struct maker *m, uint32_t state)
{
    const struct shape s = m->g->shape[m->g->state.v[state].shape];
    unsigned dtype = m->g->state.v[state].dtype;
    ref v = NIL;
    bool own = chance(m, 3);
    for (unsigned i = 0; i < m->n && !v; i++) {
        const struct node *n = &m->g->node[m->pool[i]];
        if (n->op == OP_state && n->dtype == dtype && shape_equal(node_shape(m->g, m->pool[i]), &s) &&
            (n->attr.leaf.index == state) == own && chance(m, 2))
            v = m->pool[i];
    }
    if (v && own && s.rank) {
        v = permuted(m, v);
        v = n_reshape(m->g, v, &s);
    }
    if (!v)
        v = fitting(m, dtype, &s);
    graph_output(m->g, OUT_ASSIGN, v, state);
    if (chance(m, 3))
        graph_output(m->g, OUT_RETURN, v, 0);
}

/* States of any size with one expression for their new values, as an optimizer makes them; some read another's. */
static void random_updates(struct maker *m)
{
    unsigned dtype = PICK(m, dtypes), n = 2 + (unsigned)rng_below(&m->r, 3);
    bool momentum = chance(m, 2), shared = chance(m, 6);
    ref rate = m->g->slot.n < MAX_VALUES ? n_slot(m->g, dtype, "rate") : n_const(m->g, dtype, dtype_bits(dtype, 2)),
        before = NIL;
    for (unsigned i = 0; i < n && dtype != KL_BOOL; i++) {
        if (m->g->state.n + 2 > MAX_VALUES - 1 || m->g->nout + 2 > MAX_VALUES - 6)
            return;
        struct shape s = shared && before ? *node_shape(m->g, before) : random_shape(m);
        ref w = fresh(m, dtype, &s, true), by = n_broadcast(m->g, rate, &s), d = fitting(m, dtype, &s);
        uint32_t state = m->g->node[w].attr.leaf.index;
        if (momentum) {
            ref v = fresh(m, dtype, &s, true);
            d = n_add(m->g, n_mul(m->g, v, by), d);
            graph_output(m->g, OUT_ASSIGN, d, m->g->node[v].attr.leaf.index);
        }
        graph_output(m->g, OUT_ASSIGN, n_sub(m->g, shared && before ? before : w, n_mul(m->g, d, by)), state);
        before = w;
    }
}

static void random_outputs(struct maker *m)
{
    uint32_t states = m->g->state.n;
    if (chance(m, 4))
        random_updates(m);
    int64_t before = rng_below(&m->r, 4), behind = rng_below(&m->r, 3) + !before;
    while (before-- > 0)
        graph_output(m->g, OUT_RETURN, chance(m, 3) ? any(m) : late(m), 0);
    for (uint32_t s = 0; s < states; s++)
        if (chance(m, 2) && m->g->nout < MAX_VALUES - 6)
            random_assign(m, s);
    while (behind-- > 0)
        graph_output(m->g, OUT_RETURN, chance(m, 3) ? any(m) : late(m), 0);
}

struct graph *random_graph(uint64_t seed)
{
    struct maker m = {.g = graph_new("random"), .r = {seed * UINT64_C(0x9e3779b97f4a7c15) | 1}};
    if (!m.g)
        abort();
    test_ops();
    rng_next(&m.r);
    m.dims = &PICK(&m, profile);
    while (!m.n)
        add(&m, random_leaf(&m));
    int64_t nodes = 3 + rng_below(&m.r, 25);
    for (int64_t i = 0; i < nodes && !m.g->err.code && m.elements < MAX_TOTAL; i++)
        add(&m, random_node(&m));
    random_outputs(&m);
    if (m.g->err.code || !chance(&m, 5))
        return m.g;
    struct graph *all = random_spread(&m.r, m.g);
    graph_free(m.g);
    return all;
}
