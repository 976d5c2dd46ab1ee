/* Random graphs: interpreter, fused and unfused kernels must give the same bits.
 *
 *   random_graphs [COUNT [SEED]]
 *
 * Each graph mixes all ops, dtypes, shapes with 0, 1 and odd sizes, views, several outputs, gradients,
 * slots and assigns.  A difference prints the seed and the graph. */
#include "harness.h"

enum { MAX_POOL = 48 };
struct maker {
    struct graph *g;
    struct rng r;
    ref pool[MAX_POOL];
    unsigned n;
    uint64_t slot[16];
};

static const int64_t dims[] = {0, 1, 1, 2, 3, 5, 7, 16, 17, 33, 64, 65, 100};
static const unsigned dtypes[] = {KL_F32, KL_F32, KL_F32, KL_F32, KL_F64, KL_F16, KL_BF16, KL_I32, KL_I64, KL_U8, KL_BOOL, KL_I16, KL_U32};
#define PICK(m, a) ((a)[rng_below(&(m)->r, (int64_t)(sizeof(a) / sizeof *(a)))])

static void add(struct maker *m, ref r)
{
    if (!r)
        return;
    if (m->n < MAX_POOL)
        m->pool[m->n++] = r;
    else
        m->pool[rng_below(&m->r, MAX_POOL)] = r;
}

static struct shape random_shape(struct maker *m)
{
    struct shape s = {.rank = (uint32_t)rng_below(&m->r, 4)};
    for (uint32_t i = 0; i < s.rank; i++)
        s.dim[i] = PICK(m, dims);
    return s;
}

static ref any(struct maker *m) { return m->pool[rng_below(&m->r, m->n)]; }

/* A pool value of this dtype and shape, bent to fit if need be. */
static ref fitting(struct maker *m, unsigned dtype, const struct shape *s)
{
    for (int tries = 0; tries < 8; tries++) {
        ref r = any(m);
        if (shape_equal(node_shape(m->g, r), s))
            return n_cast(m->g, r, dtype);
        if (shape_count(node_shape(m->g, r)) == shape_count(s))
            return n_cast(m->g, n_reshape(m->g, r, s), dtype);
        if (node_numel(m->g, r) == 1)
            return n_broadcast(m->g, n_cast(m->g, n_reshape(m->g, r, &(struct shape){0}), dtype), s);
    }
    return rng_below(&m->r, 2) ? n_input(m->g, dtype, s, "x") : n_state(m->g, dtype, s, "s");
}

static ref random_view(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x);
    if (rng_below(&m->r, 2) && s.rank) {
        uint8_t perm[KL_MAX_RANK] = {0};
        for (uint32_t i = 0; i < s.rank; i++)
            perm[i] = (uint8_t)i;
        for (uint32_t i = s.rank; i-- > 1;) {
            uint32_t j = (uint32_t)rng_below(&m->r, i + 1);
            uint8_t t = perm[i];
            perm[i] = perm[j];
            perm[j] = t;
        }
        return n_permute(m->g, x, perm);
    }
    if (rng_below(&m->r, 2) && s.rank >= 2) { /* merge two axes, or split one off */
        s.dim[s.rank - 2] *= s.dim[s.rank - 1];
        s.rank--;
        s.dim[s.rank] = 0;
        return n_reshape(m->g, x, &s);
    }
    if (s.rank < 4) {
        struct shape t = {.rank = s.rank + 1};
        for (uint32_t i = 0; i < s.rank; i++)
            t.dim[i + 1] = s.dim[i];
        t.dim[0] = 1 + rng_below(&m->r, 3);
        return n_broadcast(m->g, x, &t);
    }
    return x;
}

static ref random_slice(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x);
    if (!s.rank)
        return x;
    uint32_t axis = (uint32_t)rng_below(&m->r, s.rank);
    int64_t start = rng_below(&m->r, s.dim[axis] + 1), step = 1 + rng_below(&m->r, 3), rest = s.dim[axis] - start;
    int64_t most = rest ? (rest - 1) / step + 1 : 0;
    if (rng_below(&m->r, 3) == 0)
        return n_flip(m->g, x, (uint32_t)rng_below(&m->r, 1 << s.rank));
    return n_slice(m->g, x, axis, start, rng_below(&m->r, 2) ? most : rng_below(&m->r, most + 1), step);
}

/* Elements chosen by place or by index. */
static ref random_select(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x);
    unsigned dt = m->g->node[x].dtype;
    static const unsigned index_dtypes[] = {KL_I32, KL_I64, KL_U8, KL_U32};
    if (!s.rank)
        return x;
    uint32_t axis = (uint32_t)rng_below(&m->r, s.rank);
    switch (rng_below(&m->r, 3)) {
    case 0: {
        int64_t low = rng_below(&m->r, 4), high = rng_below(&m->r, 4), interior = rng_below(&m->r, 3) ? 0 : rng_below(&m->r, 3);
        return n_pad(m->g, x, fitting(m, dt, &(struct shape){0}), axis, low, high, interior);
    }
    case 1: {
        ref part[6];
        unsigned n = 1 + (unsigned)rng_below(&m->r, 6);
        for (unsigned i = 0; i < n; i++) {
            s.dim[axis] = rng_below(&m->r, 2) ? s.dim[axis] : PICK(m, dims);
            part[i] = i ? fitting(m, dt, &s) : x;
        }
        return n_concat(m->g, part, n, axis);
    }
    default: {
        struct shape is = shape_make(1, (int64_t[]){s.dim[axis] ? PICK(m, dims) : 0});
        return n_gather(m->g, x, fitting(m, PICK(m, index_dtypes), &is), axis);
    }
    }
}

/* Only of integers: which bits a NaN has depends on who computed it. */
static ref random_bitcast(struct maker *m, ref x)
{
    unsigned from = m->g->node[x].dtype, to = PICK(m, dtypes);
    bool fits = dtype_size(from) == dtype_size(to) && (from == KL_BOOL) == (to == KL_BOOL);
    return fits && !dtype_is_float(from) ? n_bitcast(m->g, x, to) : NIL;
}

static ref random_reduce(struct maker *m, ref x)
{
    struct shape s = *node_shape(m->g, x);
    enum op op = rng_below(&m->r, 2) ? OP_sum : OP_reduce_max;
    if (m->g->node[x].dtype == KL_BOOL)
        x = n_cast(m->g, x, KL_I32);
    return n_reduce(m->g, op, x, (uint32_t)rng_below(&m->r, 1 << s.rank));
}

static ref random_dot(struct maker *m, ref a)
{
    struct shape s = *node_shape(m->g, a);
    if (!s.rank || m->g->node[a].dtype == KL_BOOL || shape_count(&s) > 20000)
        return NIL;
    uint32_t axis = (uint32_t)rng_below(&m->r, s.rank);
    struct shape t = shape_make(2, (int64_t[]){s.dim[axis], PICK(m, dims)});
    bool turn = rng_below(&m->r, 2);
    if (turn) {
        int64_t d = t.dim[0];
        t.dim[0] = t.dim[1];
        t.dim[1] = d;
    }
    union attr d = {0};
    d.dot.ncon = 1;
    d.dot.con_a = axis;
    d.dot.con_b = turn;
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
    if ((opinfo[op].cls == CLASS_FLOAT || opinfo[op].cls == CLASS_PREDICATE) && !dtype_is_float(dt))
        x = n_cast(m->g, x, dt = KL_F32);
    if (opinfo[op].cls == CLASS_ANY && dt == KL_BOOL)
        x = n_cast(m->g, x, dt = KL_I32);
    if (opinfo[op].cls == CLASS_INT && dt == KL_BOOL)
        x = n_cast(m->g, x, dt = KL_I32);
    if ((opinfo[op].cls == CLASS_LOGIC || opinfo[op].cls == CLASS_INT) && dtype_is_float(dt))
        x = n_cast(m->g, x, dt = KL_I32);
    struct node n = {.op = op, .nin = opinfo[op].nin};
    for (unsigned i = 0; i < n.nin; i++)
        n.in[i] = i == 0 ? x : fitting(m, dt, &s);
    if (op == OP_where)
        n.in[0] = n_cast(m->g, x, KL_BOOL), n.in[1] = fitting(m, dt, &s);
    return graph_add(m->g, &n, NULL);
}

static ref random_leaf(struct maker *m)
{
    struct shape s = random_shape(m);
    unsigned dt = PICK(m, dtypes);
    switch (rng_below(&m->r, 6)) {
    case 0: return n_state(m->g, dt, &s, "s");
    case 1: return m->g->slot.n < 16 ? n_slot(m->g, dt, "slot") : NIL;
    case 2: return n_const(m->g, dt, dtype_bits(dt, (double)rng_below(&m->r, 7) - 3));
    case 3: return dt == KL_BOOL || !s.rank ? NIL : n_iota(m->g, dt, &s, (uint32_t)rng_below(&m->r, s.rank));
    case 4: return n_random(m->g, KL_U32, &s, n_const(m->g, KL_U64, rng_next(&m->r)));
    default: return n_input(m->g, dt, &s, "x");
    }
}

/* The gradient of a scalar made of one pool value in another. */
static ref random_grad(struct maker *m, ref x)
{
    if (!dtype_is_float(m->g->node[x].dtype))
        return NIL;
    ref y = n_reduce(m->g, OP_sum, x, (1u << node_shape(m->g, x)->rank) - 1);
    ref w = any(m);
    return dtype_is_float(m->g->node[w].dtype) ? n_grad(m->g, y, w) : NIL;
}

static ref random_node(struct maker *m)
{
    ref x = any(m);
    switch (rng_below(&m->r, 16)) {
    case 0: return random_leaf(m);
    case 1: case 2: return random_view(m, x);
    case 3: case 4: return random_reduce(m, x);
    case 5: return random_dot(m, x);
    case 6: return n_cast(m->g, x, PICK(m, dtypes));
    case 7: return random_grad(m, x);
    case 8: return random_slice(m, x);
    case 9: case 10: return random_select(m, x);
    case 11: return random_bitcast(m, x);
    default: return random_elementwise(m, x);
    }
}

static void make(struct maker *m)
{
    while (!m->n)
        add(m, random_leaf(m));
    int64_t nodes = 3 + rng_below(&m->r, 25);
    for (int64_t i = 0; i < nodes && !m->g->err.code; i++) {
        ref r = random_node(m);
        if (r && node_numel(m->g, r) <= 100000)
            add(m, r);
    }
    int64_t outs = 1 + rng_below(&m->r, 4);
    for (int64_t i = 0; i < outs; i++)
        graph_output(m->g, OUT_RETURN, any(m), 0);
    for (uint32_t s = 0; s < m->g->state.n; s++) {
        const struct shape shape = m->g->shape[m->g->state.v[s].shape];
        uint32_t before = m->g->state.n;
        if (rng_below(&m->r, 2)) {
            ref v = fitting(m, m->g->state.v[s].dtype, &shape);
            graph_output(m->g, OUT_ASSIGN, v, s);
        }
        if (m->g->state.n != before)
            break;
    }
    for (int i = 0; i < 16; i++)
        fill_random(&m->r, i < (int)m->g->slot.n ? m->g->slot.v[i].dtype : KL_I64, &m->slot[i], 1, false);
}

static bool one(uint64_t seed)
{
    struct maker m = {.g = graph_new("random"), .r = {seed * UINT64_C(0x9e3779b97f4a7c15) | 1}};
    struct values in = {0}, st = {0};
    char what[64];
    snprintf(what, sizeof what, "graph of seed %" PRIu64, seed);
    make(&m);
    bool ok = check(!m.g->err.code, "%s: %s", what, m.g->err.msg);
    if (ok) {
        values_random(&m.r, m.g, &m.g->input, false, &in);
        values_random(&m.r, m.g, &m.g->state, false, &st);
        ok = agree_everywhere(m.g, &in, &st, m.slot, what);
    }
    values_free(&in);
    values_free(&st);
    graph_free(m.g);
    return ok;
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 300, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (uint64_t i = 0; i < count && failed < 5; i++)
        one(seed + i);
    return finish();
}
