/* The interpreter and the gradient rules of the structural ops, against plain loops and finite differences. */
#include "tests/support/graph_test.h"

/* ---- interpreter ---- */

/* Runs a graph of up to four inputs and one output; the result is the caller's to free. */
static void *run_one(struct graph *g, const void *const *inputs)
{
    struct err e = {0};
    void *out = array(node_bytes(g, g->out[0].value), 1);
    if (!CHECK(g->err.code == KL_OK) || !CHECK(interp_run(g, &(struct bind){.input = inputs, .out = &out}, &e)))
        printf("    %s %s\n", g->err.msg, e.msg);
    return out;
}

static float *random_floats(int64_t n)
{
    float *x = array((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)unit();
    return x;
}

static void test_elementwise(void)
{
    static const int64_t sizes[] = {0, 1, 7, 16, 17, 1000};
    for (unsigned t = 0; t < sizeof sizes / sizeof *sizes; t++) {
        int64_t n = sizes[t];
        struct graph *g = new_graph();
        ref a = n_input(g, KL_F32, SHAPE(n), "a"), b = n_input(g, KL_F32, SHAPE(n), "b");
        ref y = n_where(g, n_lt(g, a, b), n_add(g, n_mul(g, a, b), n_k(g, a, 0.5)), n_max(g, n_sub(g, a, b), b));
        graph_output(g, OUT_RETURN, y, 0);
        float *x = random_floats(n), *w = random_floats(n);
        float *out = run_one(g, (const void *const[]){x, w});
        bool same = true;
        for (int64_t i = 0; i < n; i++) {
            float product = x[i] * w[i];
            same &= out[i] == (x[i] < w[i] ? product + 0.5f : x[i] - w[i] > w[i] ? x[i] - w[i] : w[i]);
        }
        CHECK(same);
        free(x), free(w), free(out);
        graph_free(g);
    }
}

/* Elements of a row-major array by coordinate, and the next coordinate; false behind the last. */
static int64_t offset(const struct shape *s, const int64_t *at)
{
    int64_t k = 0;
    for (uint32_t i = 0; i < s->rank; i++)
        k = k * s->dim[i] + at[i];
    return k;
}

static bool step(const struct shape *s, int64_t *at)
{
    for (uint32_t i = s->rank; i-- > 0;) {
        if (++at[i] < s->dim[i])
            return true;
        at[i] = 0;
    }
    return false;
}

static void test_views(void)
{
    for (int trial = 0; trial < 60; trial++) {
        struct shape s = {.rank = 1 + below(4)}, p = {0}, big = {0};
        uint8_t perm[8] = {0, 1, 2, 3};
        for (uint32_t i = 0; i < s.rank; i++)
            s.dim[i] = trial % 10 ? 1 + below(4) : below(2);
        for (uint32_t i = s.rank - 1; i > 0; i--) {
            unsigned j = below(i + 1);
            uint8_t t = perm[i];
            perm[i] = perm[j], perm[j] = t;
        }
        p.rank = big.rank = s.rank;
        for (uint32_t i = 0; i < s.rank; i++) {
            p.dim[i] = s.dim[perm[i]];
            big.dim[i] = p.dim[i] == 1 ? below(4) : p.dim[i];
        }
        struct graph *g = new_graph();
        ref x = n_input(g, KL_I32, &s, "x");
        ref flat = n_reshape(g, n_reshape(g, x, SHAPE(shape_count(&s), 1)), &s);
        graph_output(g, OUT_RETURN, n_expand(g, n_permute(g, flat, perm), &big), 0);
        int64_t n = shape_count(&s);
        int32_t *v = array((size_t)n, sizeof *v);
        for (int64_t i = 0; i < n; i++)
            v[i] = (int32_t)i;
        int32_t *out = run_one(g, (const void *const[]){v});
        bool same = true;
        int64_t at[8] = {0}, from[8] = {0};
        for (bool more = shape_count(&big) > 0; more; more = step(&big, at)) {
            for (uint32_t i = 0; i < s.rank; i++)
                from[perm[i]] = p.dim[i] == 1 ? 0 : at[i];
            same &= out[offset(&big, at)] == v[offset(&s, from)];
        }
        CHECK(same);
        free(v), free(out);
        graph_free(g);
    }
}

/* One reduced element, by the letter of the numeric order. */
static float reduce_by_hand(bool max, const float *x, int64_t n, unsigned lanes, int64_t chunk)
{
    float identity = max ? -INFINITY : 0, total = identity;
    for (int64_t start = 0; start < n; start += chunk) {
        float lane[64];
        for (int i = 0; i < 64; i++)
            lane[i] = identity;
        for (int64_t k = start; k < n && k < start + chunk; k++) {
            float *acc = &lane[(k - start) % lanes];
            *acc = max ? fmaxf(*acc, x[k]) : *acc + x[k];
        }
        for (unsigned half = lanes / 2; half; half /= 2)
            for (unsigned i = 0; i < half; i++)
                lane[i] = max ? fmaxf(lane[i], lane[i + half]) : lane[i] + lane[i + half];
        total = start == 0 ? lane[0] : max ? fmaxf(total, lane[0]) : total + lane[0];
    }
    return total;
}

static void one_reduce(const struct shape *s, uint32_t mask, bool max, unsigned lanes, int64_t chunk)
{
    struct graph *g = new_graph();
    ref y = n_reduce(g, max ? OP_reduce_max : OP_sum, n_input(g, KL_F32, s, "x"), mask);
    graph_output(g, OUT_RETURN, y, 0);
    g->node[y].attr.reduce.lanes = lanes;
    g->node[y].attr.reduce.chunk = (uint64_t)chunk;
    int64_t n = shape_count(s);
    float *x = random_floats(n), *row = array((size_t)n, sizeof *row);
    float *out = run_one(g, (const void *const[]){x});
    struct shape kept = *s, reduced = *s;
    for (uint32_t i = 0; i < s->rank; i++)
        *(mask >> i & 1 ? &kept.dim[i] : &reduced.dim[i]) = 1;
    CHECK(shape_equal(&kept, node_shape(g, y)));
    bool same = true, close = true;
    int64_t at[8] = {0};
    for (bool more = shape_count(&kept) > 0; more; more = step(&kept, at)) {
        int64_t sub[8] = {0}, k = 0;
        double exact = max ? (double)-INFINITY : 0;
        for (bool inside = shape_count(&reduced) > 0; inside; inside = step(&reduced, sub)) {
            int64_t full[8];
            for (uint32_t i = 0; i < s->rank; i++)
                full[i] = at[i] + sub[i];
            row[k] = x[offset(s, full)];
            exact = max ? fmax(exact, (double)row[k]) : exact + (double)row[k];
            k++;
        }
        float got = out[offset(&kept, at)], want = reduce_by_hand(max, row, k, lanes, chunk);
        same &= memcmp(&got, &want, sizeof got) == 0;
        close &= got == (float)exact || fabs((double)got - exact) < 1e-4;
    }
    CHECK(same);
    CHECK(close);
    free(x), free(row), free(out);
    graph_free(g);
}

static void test_reduce(void)
{
    const struct shape *shapes[] = {&scalar, SHAPE(0), SHAPE(1), SHAPE(7), SHAPE(1000), SHAPE(3, 0), SHAPE(17, 5),
                                    SHAPE(3, 70, 5), SHAPE(2, 3, 4, 5)};
    for (unsigned t = 0; t < sizeof shapes / sizeof *shapes; t++)
        for (uint32_t mask = 0; mask < 1u << shapes[t]->rank; mask++)
            for (int max = 0; max < 2; max++)
                for (int lanes = 1; lanes <= 64; lanes += 63) {
                    one_reduce(shapes[t], mask, max, (unsigned)lanes, 1 + below(100));
                    one_reduce(shapes[t], mask, max, (unsigned)lanes, INT64_MAX);
                }
    /* integers wrap; NaN and signed zeros of the maximum and sum */
    struct graph *g = new_graph();
    ref y = n_reduce(g, OP_sum, n_input(g, KL_I8, SHAPE(3), "x"), 1);
    g->node[y].attr.reduce.lanes = 1;
    g->node[y].attr.reduce.chunk = 2;
    graph_output(g, OUT_RETURN, y, 0);
    int8_t *sum = run_one(g, (const void *const[]){(int8_t[]){100, 100, 3}});
    CHECK(*sum == (int8_t)203);
    free(sum);
    graph_reset(g);
    y = n_reduce(g, OP_reduce_max, n_input(g, KL_F32, SHAPE(3), "x"), 1);
    g->node[y].attr.reduce.lanes = 64;
    g->node[y].attr.reduce.chunk = 3;
    graph_output(g, OUT_RETURN, y, 0);
    float *max = run_one(g, (const void *const[]){(float[]){1, NAN, 2}});
    CHECK(isnan(*max));
    free(max);
    graph_reset(g);
    y = n_reduce(g, OP_reduce_max, n_input(g, KL_I16, SHAPE(0), "x"), 1);
    g->node[y].attr.reduce.lanes = 64;
    g->node[y].attr.reduce.chunk = 1;
    graph_output(g, OUT_RETURN, y, 0);
    int16_t *lowest = run_one(g, (const void *const[]){NULL});
    CHECK(*lowest == INT16_MIN);
    free(lowest);
    graph_reset(g);
    y = n_reduce(g, OP_sum, n_input(g, KL_F32, SHAPE(3), "x"), 1);
    graph_output(g, OUT_RETURN, y, 0);
    struct err e = {0};
    float unused;
    void *out = &unused;
    CHECK(!interp_run(g, &(struct bind){.input = (const void *const[]){&unused}, .out = &out}, &e));
    CHECK(e.code == KL_ERR_INTERNAL && strstr(e.msg, "sum") && strstr(e.msg, "no numeric order"));
    graph_free(g);
}

/* A dot with random axes: every axis of a and b is a batch, contracted or free one, in random places. */
struct dot_case {
    struct shape a, b;
    union attr attr;
};

static void shuffle(uint8_t *v, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        v[i] = (uint8_t)i;
    for (unsigned i = n; i > 1; i--) {
        unsigned j = below(i);
        uint8_t t = v[i - 1];
        v[i - 1] = v[j], v[j] = t;
    }
}

static struct dot_case random_dot(bool zeros)
{
    struct dot_case c = {0};
    unsigned nbatch = below(3), ncon = below(3), fa = below(3), fb = below(3);
    uint8_t pa[8], pb[8];
    c.a.rank = nbatch + ncon + fa;
    c.b.rank = nbatch + ncon + fb;
    shuffle(pa, c.a.rank);
    shuffle(pb, c.b.rank);
    for (unsigned i = 0; i < c.a.rank; i++)
        c.a.dim[pa[i]] = zeros ? below(3) : 1 + below(6);
    for (unsigned i = 0; i < c.b.rank; i++)
        c.b.dim[pb[i]] = i < nbatch + ncon ? c.a.dim[pa[i]] : zeros ? below(3) : 1 + below(40);
    c.attr.dot.nbatch = (uint8_t)nbatch;
    c.attr.dot.ncon = (uint8_t)ncon;
    for (unsigned i = 0; i < nbatch; i++) {
        c.attr.dot.batch_a = axis_put(c.attr.dot.batch_a, i, pa[i]);
        c.attr.dot.batch_b = axis_put(c.attr.dot.batch_b, i, pb[i]);
    }
    for (unsigned i = 0; i < ncon; i++) {
        c.attr.dot.con_a = axis_put(c.attr.dot.con_a, i, pa[nbatch + i]);
        c.attr.dot.con_b = axis_put(c.attr.dot.con_b, i, pb[nbatch + i]);
    }
    return c;
}

static bool listed(uint32_t list, unsigned n, unsigned axis)
{
    for (unsigned i = 0; i < n; i++)
        if (axis_get(list, i) == axis)
            return true;
    return false;
}

/* The two operand elements that product k of the result element at `at` multiplies. */
static void dot_operands(const struct dot_case *c, const int64_t *at, int64_t k, int64_t *off_a, int64_t *off_b)
{
    int64_t ia[8] = {0}, ib[8] = {0};
    unsigned nbatch = c->attr.dot.nbatch, ncon = c->attr.dot.ncon, next = nbatch;
    for (unsigned i = 0; i < nbatch; i++)
        ia[axis_get(c->attr.dot.batch_a, i)] = ib[axis_get(c->attr.dot.batch_b, i)] = at[i];
    for (unsigned i = ncon; i-- > 0;) {
        int64_t len = c->a.dim[axis_get(c->attr.dot.con_a, i)];
        ia[axis_get(c->attr.dot.con_a, i)] = ib[axis_get(c->attr.dot.con_b, i)] = k % len;
        k /= len;
    }
    for (unsigned i = 0; i < c->a.rank; i++)
        if (!listed(c->attr.dot.batch_a, nbatch, i) && !listed(c->attr.dot.con_a, ncon, i))
            ia[i] = at[next++];
    for (unsigned i = 0; i < c->b.rank; i++)
        if (!listed(c->attr.dot.batch_b, nbatch, i) && !listed(c->attr.dot.con_b, ncon, i))
            ib[i] = at[next++];
    *off_a = offset(&c->a, ia);
    *off_b = offset(&c->b, ib);
}

static void set_order(struct graph *g, uint32_t kblock)
{
    for (ref r = 1; r < g->nnode; r++) {
        if (g->node[r].op == OP_dot) {
            g->node[r].attr.dot.lanes = 1;
            g->node[r].attr.dot.kblock = kblock;
        } else if (op_is_reduce(g->node[r].op)) {
            g->node[r].attr.reduce.lanes = 1;
            g->node[r].attr.reduce.chunk = 64;
        }
    }
}

static void one_dot(const struct dot_case *c, uint32_t kblock)
{
    struct graph *g = new_graph();
    ref a = n_input(g, KL_F32, &c->a, "a"), b = n_input(g, KL_F32, &c->b, "b"), y = n_dot(g, a, b, &c->attr);
    graph_output(g, OUT_RETURN, y, 0);
    set_order(g, kblock);
    float *x = random_floats(shape_count(&c->a)), *w = random_floats(shape_count(&c->b));
    float *out = run_one(g, (const void *const[]){x, w});
    struct shape s = *node_shape(g, y);
    struct dot_dims d = dot_sizes(g, node_at(g, y));
    CHECK(d.batch * d.m * d.n == shape_count(&s));
    int64_t at[8] = {0};
    bool same = true, close = true;
    for (bool more = shape_count(&s) > 0; more; more = step(&s, at)) {
        float total = 0, block = 0;
        double exact = 0;
        for (int64_t k = 0; k < d.k; k++) {
            int64_t i, j;
            dot_operands(c, at, k, &i, &j);
            block = fmaf(x[i], w[j], k % kblock ? block : 0);
            if (k % kblock == kblock - 1 || k == d.k - 1)
                total = k < kblock ? block : total + block;
            exact += (double)x[i] * (double)w[j];
        }
        float got = out[offset(&s, at)];
        same &= memcmp(&got, &total, sizeof got) == 0;
        close &= fabs((double)got - exact) < 1e-4;
    }
    CHECK(same);
    CHECK(close);
    free(x), free(w), free(out);
    graph_free(g);
}

static void test_dot(void)
{
    for (int trial = 0; trial < 150; trial++) {
        struct dot_case c = random_dot(trial % 5 == 0);
        one_dot(&c, 1 + below(9));
        one_dot(&c, 4096);
    }
    struct dot_case wide = {.a = *SHAPE(3, 50), .b = *SHAPE(50, 1100), .attr.dot = {.con_a = 1, .con_b = 0, .ncon = 1}};
    one_dot(&wide, 16);
    /* integers wrap in their own width, doubles use fma */
    struct graph *g = new_graph();
    union attr inner = {.dot = {.ncon = 1}};
    graph_output(g, OUT_RETURN, n_dot(g, n_input(g, KL_U16, SHAPE(2), "a"), n_input(g, KL_U16, SHAPE(2), "b"), &inner),
                 0);
    set_order(g, 8);
    uint16_t *u = run_one(g, (const void *const[]){(uint16_t[]){65535, 3}, (uint16_t[]){65535, 5}});
    CHECK(*u == 16);
    free(u);
    graph_reset(g);
    graph_output(g, OUT_RETURN, n_dot(g, n_input(g, KL_F64, SHAPE(2), "a"), n_input(g, KL_F64, SHAPE(2), "b"), &inner),
                 0);
    set_order(g, 8);
    double e = 1 + 0x1p-30, *fused = run_one(g, (const void *const[]){(double[]){-1, e}, (double[]){e * e, e}});
    CHECK(*fused == fma(e, e, -(e * e)) && *fused != 0);
    free(fused);
    graph_free(g);
}

static void test_leaves(void)
{
    struct graph *g = new_graph();
    graph_output(g, OUT_RETURN, n_iota(g, KL_U8, SHAPE(3, 300), 1), 0);
    uint8_t *u = run_one(g, NULL);
    bool same = true;
    for (int i = 0; i < 900; i++)
        same &= u[i] == (uint8_t)(i % 300);
    CHECK(same);
    free(u);
    graph_reset(g);
    graph_output(g, OUT_RETURN, n_random(g, KL_U64, SHAPE(5), n_const(g, KL_U64, 42)), 0);
    uint64_t *r = run_one(g, NULL);
    for (unsigned i = 0; i < 5; i++)
        CHECK(r[i] == scalar_threefry_u64(42, i));
    free(r);
    graph_reset(g);
    graph_output(g, OUT_RETURN, n_cast(g, n_input(g, KL_F32, SHAPE(3), "x"), KL_I8), 0);
    int8_t *c = run_one(g, (const void *const[]){(float[]){1.9f, -300, NAN}});
    CHECK(c[0] == 1 && c[1] == -128 && c[2] == 0);
    free(c);
    graph_reset(g);
    /* states and slots; a state given back as its own new value; a node nobody needs is not evaluated */
    ref w = n_state(g, KL_F32, SHAPE(2), "w"), lr = n_slot(g, KL_F32, "lr");
    n_grad(g, w, w);
    graph_output(g, OUT_ASSIGN, w, 0);
    graph_output(g, OUT_RETURN, n_mul(g, w, n_broadcast(g, lr, SHAPE(2))), 0);
    float state[2] = {3, 4}, half = 0.5f, next[2], out[2];
    uint64_t slot = 0;
    memcpy(&slot, &half, sizeof half);
    struct err e = {0};
    CHECK(interp_run(g, &(struct bind){.state = (const void *const[]){state}, .slot = &slot,
                                       .out = (void *const[]){next, out}}, &e));
    CHECK(next[0] == 3 && next[1] == 4 && out[0] == 1.5f && out[1] == 2);
    graph_free(g);
}

/* ---- gradient rules of the structural ops, against finite differences in double ---- */

/* y = one node of g on inputs of f64.  Compares the rule's gradient of sum(y * dy) in each input with a
 * central difference. */
static void gradient_at(int line, struct graph *g, ref y)
{
    uint32_t nin = g->input.n;
    ref dy = n_input(g, KL_F64, node_shape(g, y), "dy"), din[MAX_OPERANDS] = {0};
    opinfo[node_at(g, y)->op].vjp(g, y, dy, din);
    if (!check_at(__FILE__, line, g->err.code == KL_OK, "the rule builds"))
        printf("    %s\n", g->err.msg);
    graph_output(g, OUT_RETURN, y, 0);
    for (uint32_t i = 0; i < nin; i++)
        graph_output(g, OUT_RETURN, din[i], 0);
    set_order(g, 5);
    double *data[4] = {0}, *out[4] = {0};
    for (uint32_t i = 0; i <= nin; i++) {
        int64_t n = shape_count(&g->shape[g->input.v[i].shape]);
        data[i] = array((size_t)n, sizeof(double));
        for (int64_t k = 0; k < n; k++)
            data[i][k] = i == nin || n > 40 ? unit() : floor(unit() * 20) / 4; /* coarse: maxima tie now and then */
    }
    for (uint32_t i = 0; i <= nin; i++)
        out[i] = array(node_bytes(g, g->out[i].value), 1);
    struct bind b = {.input = (const void *const *)data, .out = (void *const *)out};
    struct err e = {0};
    bool ok = interp_run(g, &b, &e);
    check_at(__FILE__, line, ok, "the rule runs");
    int64_t ny = node_numel(g, y);
    double *grad[4] = {0};
    for (uint32_t i = 0; i < nin && ok; i++) {
        size_t bytes = node_bytes(g, din[i]);
        ok = node_numel(g, din[i]) == shape_count(&g->shape[g->input.v[i].shape]);
        check_at(__FILE__, line, ok, "the gradient has the operand's shape");
        grad[i] = array(bytes, 1);
        memcpy(grad[i], out[i + 1], bytes);
    }
    bool close = true;
    for (uint32_t i = 0; i < nin && ok; i++)
        for (int64_t k = 0; k < node_numel(g, din[i]); k++) {
            double was = data[i][k], h = 1e-4, difference = 0;
            for (int sign = -1; sign <= 1; sign += 2) {
                data[i][k] = was + sign * h;
                ok &= interp_run(g, &b, &e);
                for (int64_t j = 0; j < ny; j++)
                    difference += sign * out[0][j] * data[nin][j];
            }
            data[i][k] = was;
            close &= fabs(difference / (2 * h) - grad[i][k]) < 1e-6;
        }
    check_at(__FILE__, line, ok && close, "the gradient is the finite difference");
    for (uint32_t i = 0; i <= nin; i++)
        free(data[i]), free(out[i]), free(grad[i]);
    graph_free(g);
}
#define GRADIENT(g, y) gradient_at(__LINE__, g, y)

static void test_gradients(void)
{
    struct graph *g;
#define FRESH(s) (g = new_graph(), n_input(g, KL_F64, s, "x"))
    ref x = FRESH(SHAPE(2, 3, 4));
    GRADIENT(g, n_reshape(g, x, SHAPE(6, 4)));
    x = FRESH(SHAPE(2, 3, 4));
    GRADIENT(g, n_permute(g, x, (uint8_t[]){2, 0, 1}));
    x = FRESH(SHAPE(1, 3, 1));
    GRADIENT(g, n_expand(g, x, SHAPE(4, 3, 5)));
    x = FRESH(SHAPE(1, 3));
    GRADIENT(g, n_expand(g, x, SHAPE(1, 3)));
    x = FRESH(SHAPE(2, 3));
    GRADIENT(g, n_cast(g, x, KL_F64));
    for (uint32_t mask = 0; mask < 8; mask++) {
        x = FRESH(SHAPE(2, 3, 2));
        GRADIENT(g, n_reduce(g, OP_sum, x, mask));
    }
    x = FRESH(SHAPE(5, 9));
    GRADIENT(g, n_reduce(g, OP_reduce_max, x, 2));
    for (int trial = 0; trial < 40; trial++) {
        struct dot_case c = random_dot(false);
        for (unsigned i = 0; i < c.b.rank; i++) {
            unsigned nb = c.attr.dot.nbatch, nc = c.attr.dot.ncon;
            if (!listed(c.attr.dot.batch_b, nb, i) && !listed(c.attr.dot.con_b, nc, i))
                c.b.dim[i] = 1 + below(3);
        }
        if (shape_count(&c.a) * shape_count(&c.b) > 4000)
            continue;
        x = FRESH(&c.a);
        GRADIENT(g, n_dot(g, x, n_input(g, KL_F64, &c.b, "w"), &c.attr));
    }
    /* ties of the maximum share evenly; integers and grad nodes have no gradient */
    g = new_graph();
    x = n_input(g, KL_F64, SHAPE(4), "x");
    ref y = n_reduce(g, OP_reduce_max, x, 1), dy = n_input(g, KL_F64, SHAPE(1), "dy"), din[MAX_OPERANDS] = {0};
    opinfo[OP_reduce_max].vjp(g, y, dy, din);
    graph_output(g, OUT_RETURN, din[0], 0);
    set_order(g, 1);
    double *tied = run_one(g, (const void *const[]){(double[]){1, 3, 3, -2}, (double[]){8}});
    CHECK(tied[0] == 0 && tied[1] == 4 && tied[2] == 4 && tied[3] == 0);
    free(tied);
    graph_reset(g);
    y = n_cast(g, n_input(g, KL_I32, SHAPE(4), "x"), KL_F64);
    din[0] = y;
    opinfo[OP_cast].vjp(g, y, y, din);
    CHECK(din[0] == NIL && g->err.code == KL_OK);
    y = n_grad(g, y, y);
    opinfo[OP_grad].vjp(g, y, y, din);
    CHECK(din[0] == NIL && din[1] == NIL && g->err.code == KL_ERR_INTERNAL);
    graph_free(g);
}

int main(void)
{
    test_elementwise();
    test_views();
    test_reduce();
    test_dot();
    test_leaves();
    test_gradients();
    printf("%u passed, %u failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
