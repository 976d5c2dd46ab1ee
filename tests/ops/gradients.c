/* Every gradient rule, first and second order.  Elementwise rows come from ops.def, so a new row is tested without
 * an edit. */
#include "tests/support/gradient_test.h"

static ref make_elementwise(struct graph *g, const ref *x, const void *ctx)
{
    struct node n = {.op = *(const uint16_t *)ctx, .nin = opinfo[*(const uint16_t *)ctx].nin};
    for (unsigned i = 0; i < n.nin; i++)
        n.in[i] = x[i];
    if (n.op == OP_where) {
        n.in[0] = n_lt(g, x[0], x[1]);
        n.in[1] = x[1];
        n.in[2] = x[2];
    }
    return graph_add(g, &n, NULL);
}

/* Float in, float out: the rows that have a gradient to test. */
static bool differentiable(uint16_t op)
{
    struct graph *g = graph_new("try");
    struct shape s = shape_make(0, NULL);
    ref x[3];
    for (int i = 0; i < 3; i++)
        x[i] = n_input(g, KL_F64, &s, "x");
    ref y = make_elementwise(g, x, &op);
    bool yes = y && g->node[y].dtype == KL_F64;
    graph_free(g);
    return yes;
}

/* Rows that are not defined, or not smooth, on both sides of 0. */
static const struct { uint16_t op; double low, high; } domain[] = {
    {OP_log, 0.4, 1.7}, {OP_log2, 0.4, 1.7}, {OP_log1p, -0.6, 1.7}, {OP_sqrt, 0.4, 1.7}, {OP_rsqrt, 0.4, 1.7},
    {OP_pow, 0.4, 1.7}, {OP_asin, -0.8, 0.8}, {OP_acos, -0.8, 0.8}, {OP_atanh, -0.8, 0.8}, {OP_acosh, 1.3, 2.5},
    {OP_tan, -1, 1}};

static void elementwise_rows(void)
{
    for (uint16_t op = 1; op < OP_COUNT; op++) {
        if (!op_is_elementwise(op) || !differentiable(op))
            continue;
        struct problem p = {.name = opinfo[op].name, .make = make_elementwise, .ctx = &op, .nx = opinfo[op].nin};
        for (unsigned i = 0; i < sizeof domain / sizeof *domain; i++)
            if (domain[i].op == op)
                p.low = domain[i].low, p.high = domain[i].high;
        for (unsigned i = 0; i < p.nx; i++)
            p.x[i] = shape_make(2, (int64_t[]){2, 3});
        gradient(&p);
    }
}

static ref make_reduce(struct graph *g, const ref *x, const void *ctx)
{
    const uint32_t *a = ctx;
    ref y = n_reduce(g, (enum op)a[0], x[0], a[1]);
    return n_mul(g, y, y);
}

static ref make_scan(struct graph *g, const ref *x, const void *ctx)
{
    const uint32_t *s = ctx; /* op, axis */
    ref y = s[0] == OP_recurrence ? n_recurrence(g, n_tanh(g, x[0]), x[1], s[1])
        : n_cumulative(g, (enum op)s[0], x[0], s[1]);
    return n_mul(g, y, n_tanh(g, y));
}

static ref make_views(struct graph *g, const ref *x, const void *ctx)
{
    (void)ctx;
    struct shape r = shape_make(2, (int64_t[]){4, 6}), big = shape_make(4, (int64_t[]){4, 2, 3, 5});
    uint8_t perm[KL_MAX_RANK] = {1, 2, 0};
    ref t = n_permute(g, x[0], perm);                        /* [3,4,2] */
    ref f = n_reshape(g, t, &r);                             /* [4,6] */
    struct shape s = shape_make(4, (int64_t[]){4, 2, 3, 1});
    ref e = n_expand(g, n_reshape(g, f, &s), &big);
    return n_mul(g, e, n_exp(g, e));
}

static ref make_slices(struct graph *g, const ref *x, const void *ctx)
{
    const int64_t *s = ctx; /* axis, start, count, step */
    ref y = n_slice(g, n_flip(g, n_exp(g, x[0]), 5), (uint32_t)s[0], s[1], s[2], s[3]);
    return n_mul(g, n_flip(g, y, 2), y);
}

static ref make_window(struct graph *g, const ref *x, const void *ctx)
{
    const int64_t *s = ctx; /* axis, size, stride, dilation */
    ref y = n_window(g, n_mul(g, x[0], x[0]), (uint32_t)s[0], s[1], s[2], s[3]);
    return n_mul(g, y, n_tanh(g, y));
}

static ref make_pad(struct graph *g, const ref *x, const void *ctx)
{
    const int64_t *s = ctx; /* axis, low, high, interior */
    ref y = n_pad(g, n_mul(g, x[0], x[0]), n_exp(g, x[1]), (uint32_t)s[0], s[1], s[2], s[3]);
    return n_mul(g, y, n_tanh(g, y));
}

static ref make_concat(struct graph *g, const ref *x, const void *ctx)
{
    ref parts[] = {x[0], n_exp(g, x[1]), x[2], x[0], n_mul(g, x[2], x[2]), x[1]};
    ref y = n_concat(g, parts, 6, *(const uint32_t *)ctx);
    return n_mul(g, y, n_tanh(g, y));
}

/* The start is a small integer: windows in the middle and, held, at both ends. */
static ref make_dynamic(struct graph *g, const ref *x, const void *ctx)
{
    const int64_t *c = ctx; /* axis, start */
    ref at = n_const(g, KL_I32, dtype_bits_i64(KL_I32, c[1]));
    ref y = n_dynamic_update(g, n_exp(g, x[0]), n_mul(g, x[1], x[1]), at, (uint32_t)c[0]);
    ref z = n_dynamic_slice(g, n_mul(g, y, n_tanh(g, y)), at, 1, 2);
    return n_mul(g, z, n_dynamic_slice(g, n_exp(g, x[0]), n_const(g, KL_U8, 1), 1, 2));
}

/* An index of known numbers. */
static ref index_of(struct graph *g, const int64_t *v, unsigned n)
{
    ref one[8];
    struct shape s = shape_make(1, (int64_t[]){1});
    for (unsigned i = 0; i < n; i++)
        one[i] = n_broadcast(g, n_const(g, KL_I32, dtype_bits_i64(KL_I32, v[i])), &s);
    return n_concat(g, one, n, 0);
}

static const int64_t picks[6] = {2, 0, 2, -3, 9, 2}; /* several to one place, some out of range */

static ref make_gather(struct graph *g, const ref *x, const void *ctx)
{
    ref y = n_gather(g, n_exp(g, x[0]), index_of(g, picks, 6), *(const uint32_t *)ctx);
    return n_mul(g, y, n_tanh(g, y));
}

static ref make_scatter(struct graph *g, const ref *x, const void *ctx)
{
    const uint32_t *c = ctx; /* axis, kind */
    ref y = n_scatter(g, n_exp(g, x[0]), index_of(g, picks, 6), n_mul(g, x[1], x[1]), c[0], (enum scatter_kind)c[1]);
    return n_mul(g, y, n_tanh(g, y));
}

static ref make_bitcast(struct graph *g, const ref *x, const void *ctx)
{
    (void)ctx; /* integers in between: no gradient */
    return n_add(g, n_mul(g, n_bitcast(g, n_bitcast(g, n_k(g, x[0], 3), KL_I64), KL_F64), x[0]),
                 n_bitcast(g, n_exp(g, x[0]), KL_F64));
}

/* In the scale; what the gradient of quantize is in what it rounds, no difference can say. */
static ref make_dequantize(struct graph *g, const ref *x, const void *ctx)
{
    (void)ctx;
    struct shape s = *node_shape(g, x[0]);
    ref q = n_iota(g, KL_I8, &s, 0);
    return n_exp(g, n_dequantize(g, q, x[0], n_not(g, q)));
}

static ref make_cast(struct graph *g, const ref *x, const void *ctx)
{
    (void)ctx;
    return n_exp(g, n_cast(g, n_mul(g, x[0], x[0]), KL_F64));
}

/* One value on its own device and, twice, on another. */
static ref make_copy(struct graph *g, const ref *x, const void *ctx)
{
    (void)ctx;
    ref there = n_copy(g, n_mul(g, x[0], x[0]), DEVICE_CPU), back = n_copy(g, n_exp(g, there), DEVICE_REF);
    return n_mul(g, n_tanh(g, x[0]), n_add(g, back, n_copy(g, n_copy(g, n_sin(g, x[0]), DEVICE_CPU), DEVICE_REF)));
}

static ref make_dot(struct graph *g, const ref *x, const void *ctx)
{
    ref y = n_dot(g, x[0], x[1], ctx);
    return n_mul(g, y, n_tanh(g, y));
}

/* Row i attends to the keys (i + step) mod 3 .. 4 of 5 by bounds, all but some by a mask, or all; some rows nothing. */
struct masking { bool mask, bounds, causal; };

static ref make_attention(struct graph *g, const ref *x, const void *ctx)
{
    const struct masking *how = ctx;
    struct shape s = *node_shape(g, x[0]), t = s;
    ref seen = NIL;
    t.dim[2] = node_shape(g, x[1])->dim[1];
    if (how->mask) {
        ref i = n_iota(g, KL_I64, &t, 1), j = n_iota(g, KL_I64, &t, 2), two = n_k(g, i, 2);
        seen = n_and(g, n_ne(g, n_add(g, n_rem(g, j, two), n_iota(g, KL_I64, &t, 0)), i), n_ne(g, i, two));
    } else if (how->bounds) {
        t.dim[2] = 1;
        ref i = n_iota(g, KL_I32, &t, 1);
        seen = n_concat(g, (ref[]){n_rem(g, i, n_k(g, i, 3)), n_mul(g, i, n_k(g, i, 2))}, 2, 2);
    }
    return n_attention(g, x[0], x[1], x[2], seen, 0.7, how->causal);
}

struct masking_of { struct masking masking; int din; };

/* One of the gradients that store no scores, itself differentiated. */
static ref make_attention_gradient(struct graph *g, const ref *x, const void *ctx)
{
    const struct masking_of *how = ctx;
    ref din[3] = {NIL};
    n_attention_gradient(g, make_attention(g, x, &how->masking), x[3], din);
    return din[how->din];
}

static void attention(void)
{
    for (int how = 0; how < 18; how++)
        for (int turn = 0; turn < 2; turn++) {
            int64_t l = turn ? 5 : 3, m = turn ? 3 : 5;
            struct masking_of of = {{how / 2 % 3 == 1, how / 2 % 3 == 2, how & 1}, how / 6};
            gradient(&(struct problem){.name = "attention's gradient", .make = make_attention_gradient, .nx = 4,
                                       .ctx = &of,
                                       .x = {shape_make(3, (int64_t[]){2, l, 2}), shape_make(3, (int64_t[]){2, m, 2}),
                                             shape_make(3, (int64_t[]){2, m, 3}),
                                             shape_make(3, (int64_t[]){2, l, 3})}});
        }
    for (int how = 0; how < 6; how++)
        for (int turn = 0; turn < 2; turn++) { /* more keys than queries, then fewer */
            int64_t l = turn ? 5 : 3, m = turn ? 3 : 5;
            gradient(&(struct problem){.name = "attention", .make = make_attention, .nx = 3,
                                       .ctx = &(struct masking){how / 2 == 1, how / 2 == 2, how & 1},
                                       .x = {shape_make(3, (int64_t[]){2, l, 2}), shape_make(3, (int64_t[]){2, m, 2}),
                                             shape_make(3, (int64_t[]){2, m, 3})}});
        }
}

static void structural(void)
{
    attention();
    for (uint32_t op = OP_sum; op <= OP_reduce_prod; op++)
        for (uint32_t axes = 0; axes < 8; axes++)
            gradient(&(struct problem){.name = opinfo[op].name, .make = make_reduce, .ctx = (uint32_t[]){op, axes},
                                       .nx = 1,
                                       .x = {shape_make(3, (int64_t[]){2, 3, 2})}});
    for (uint32_t op = OP_cumsum; op <= OP_recurrence; op++)
        for (uint32_t axis = 0; axis < 3; axis++)
            gradient(&(struct problem){.name = opinfo[op].name, .make = make_scan, .ctx = (uint32_t[]){op, axis},
                                       .nx = op == OP_recurrence ? 2 : 1,
                                       .x = {shape_make(3, (int64_t[]){3, 1, 4}),
                                             shape_make(3, (int64_t[]){3, 1, 4})}});
    gradient(&(struct problem){.name = "views", .make = make_views, .nx = 1,
                               .x = {shape_make(3, (int64_t[]){2, 3, 4})}});
    static const int64_t slices[][4] = {{0, 0, 2, 1}, {1, 1, 3, 1}, {2, 0, 2, 3}, {2, 1, 2, 2}, {1, 4, 0, 1},
                                        {2, 3, 1, 1}};
    for (unsigned i = 0; i < sizeof slices / sizeof *slices; i++)
        gradient(&(struct problem){.name = "slice", .make = make_slices, .ctx = slices[i], .nx = 1,
                                   .x = {shape_make(3, (int64_t[]){2, 4, 5})}});
    static const int64_t windows[][4] = {{1, 2, 1, 1}, {1, 3, 1, 2}, {1, 3, 2, 1}, {1, 2, 3, 2}, {1, 2, 2, 1},
                                         {1, 2, 3, 1},
                                         {1, 1, 2, 3}, {1, 7, 1, 1}, {1, 2, 4, 3}, {0, 2, 1, 1}, {2, 1, 1, 1},
                                             {1, 4, 3, 2}};
    for (unsigned i = 0; i < sizeof windows / sizeof *windows; i++)
        gradient(&(struct problem){.name = "window", .make = make_window, .ctx = windows[i], .nx = 1,
                                   .x = {shape_make(3, (int64_t[]){2, 7, 2})}});
    static const int64_t pads[][4] = {{0, 0, 2, 0}, {1, 1, 0, 0}, {1, 2, 1, 2}, {0, 0, 0, 1}, {2, 1, 1, 3},
                                      {0, 0, 0, 0}};
    for (unsigned i = 0; i < sizeof pads / sizeof *pads; i++)
        gradient(&(struct problem){.name = "pad", .make = make_pad, .ctx = pads[i], .nx = 2,
                                   .x = {shape_make(3, (int64_t[]){2, 3, 1}), shape_make(0, NULL)}});
    gradient(&(struct problem){.name = "concat", .make = make_concat, .ctx = &(uint32_t){0}, .nx = 3, .x = {
        shape_make(2, (int64_t[]){2, 3}), shape_make(2, (int64_t[]){1, 3}), shape_make(2, (int64_t[]){3, 3})}});
    gradient(&(struct problem){.name = "concat", .make = make_concat, .ctx = &(uint32_t){1}, .nx = 3, .x = {
        shape_make(2, (int64_t[]){2, 3}), shape_make(2, (int64_t[]){2, 1}), shape_make(2, (int64_t[]){2, 0})}});
    gradient(&(struct problem){.name = "gather", .make = make_gather, .ctx = &(uint32_t){0}, .nx = 1,
                               .x = {shape_make(2, (int64_t[]){4, 2})}});
    gradient(&(struct problem){.name = "gather", .make = make_gather, .ctx = &(uint32_t){1}, .nx = 1,
                               .x = {shape_make(3, (int64_t[]){2, 3, 2})}});
    for (uint32_t kind = SCATTER_ADD; kind <= SCATTER_SET; kind++) {
        gradient(&(struct problem){.name = "scatter", .make = make_scatter, .ctx = (uint32_t[]){0, kind}, .nx = 2,
                                   .x = {
            shape_make(2, (int64_t[]){4, 2}), shape_make(2, (int64_t[]){6, 2})}});
        gradient(&(struct problem){.name = "scatter", .make = make_scatter, .ctx = (uint32_t[]){1, kind}, .nx = 2,
                                   .x = {
            shape_make(3, (int64_t[]){2, 3, 1}), shape_make(3, (int64_t[]){2, 6, 1})}});
    }
    for (int64_t start = -1; start < 4; start++) {
        gradient(&(struct problem){.name = "dynamic", .make = make_dynamic, .ctx = (int64_t[]){0, start}, .nx = 2,
                                   .x = {
            shape_make(2, (int64_t[]){4, 3}), shape_make(2, (int64_t[]){2, 3})}});
        gradient(&(struct problem){.name = "dynamic", .make = make_dynamic, .ctx = (int64_t[]){1, start}, .nx = 2,
                                   .x = {
            shape_make(2, (int64_t[]){2, 3}), shape_make(2, (int64_t[]){2, 1})}});
    }
    gradient(&(struct problem){.name = "bitcast", .make = make_bitcast, .nx = 1, .x = {shape_make(1, (int64_t[]){5})}});
    gradient(&(struct problem){.name = "dequantize", .make = make_dequantize, .nx = 1,
                               .x = {shape_make(1, (int64_t[]){4})}});
    gradient(&(struct problem){.name = "cast", .make = make_cast, .nx = 1, .x = {shape_make(1, (int64_t[]){5})}});
    gradient(&(struct problem){.name = "copy", .make = make_copy, .nx = 1, .x = {shape_make(1, (int64_t[]){5})}});
    union attr mm = {0}, tt = {0}, batched = {0}, two = {0}, outer = {0};
    mm.dot.ncon = 1, mm.dot.con_a = 1;
    tt.dot.ncon = 1, tt.dot.con_b = 1;
    batched.dot.nbatch = 1, batched.dot.batch_a = 1, batched.dot.batch_b = 0, batched.dot.ncon = 1,
        batched.dot.con_a = 2, batched.dot.con_b = 2;
    two.dot.ncon = 2, two.dot.con_a = axis_put(axis_put(0, 0, 2), 1, 0),
        two.dot.con_b = axis_put(axis_put(0, 0, 0), 1, 2);
    const struct { const char *name; union attr *d; struct shape a, b; } dots[] = {
        {"dot", &mm, shape_make(2, (int64_t[]){2, 3}), shape_make(2, (int64_t[]){3, 4})},
        {"dot transposed", &tt, shape_make(2, (int64_t[]){3, 2}), shape_make(2, (int64_t[]){4, 3})},
        {"dot batched", &batched, shape_make(3, (int64_t[]){2, 3, 4}), shape_make(3, (int64_t[]){3, 2, 4})},
        {"dot two axes", &two, shape_make(3, (int64_t[]){2, 2, 3}), shape_make(3, (int64_t[]){3, 2, 2})},
        {"outer product", &outer, shape_make(1, (int64_t[]){3}), shape_make(2, (int64_t[]){2, 2})}};
    for (unsigned i = 0; i < sizeof dots / sizeof *dots; i++)
        gradient(&(struct problem){.name = dots[i].name, .make = make_dot, .ctx = dots[i].d, .nx = 2,
                                   .x = {dots[i].a, dots[i].b}});
}

/* Ties share the gradient evenly; an operand that the loss does not depend on has gradient 0. */
static void corners(void)
{
    struct graph *g = graph_new("corners");
    struct shape s = shape_make(1, (int64_t[]){4}), none = shape_make(1, (int64_t[]){0});
    ref x = n_input(g, KL_F64, &s, "x"), z = n_input(g, KL_F64, &s, "z"), e = n_input(g, KL_F64, &none, "e");
    ref loss = n_reduce(g, OP_reduce_max, x, 1);
    graph_output(g, OUT_RETURN, n_grad(g, loss, x), 0);
    graph_output(g, OUT_RETURN, n_grad(g, loss, z), 0);
    graph_output(g, OUT_RETURN, n_grad(g, n_reduce(g, OP_sum, n_exp(g, e), 1), e), 0);
    double xs[4] = {1, 3, 3, 2}, zs[4] = {1, 1, 1, 1};
    struct values in = {.n = 3, .v = {xs, zs, NULL}}, out = {0};
    struct err err = {0};
    if (check(run_on(g, "ref", true, &in, &(struct values){0}, NULL, &out, &err), "corners: %s", err.msg)) {
        const double *dx = out.v[0], *dz = out.v[1];
        check(dx[0] == 0 && dx[1] == 0.5 && dx[2] == 0.5 && dx[3] == 0, "ties of a maximum share its gradient");
        check(dz[0] == 0 && dz[3] == 0, "no path, no gradient");
        values_free(&out);
    }
    graph_free(g);
}

/* d/dx of each f(x) has these numbers. */
static void derivative(const char *name, ref (*f)(struct graph *, ref), unsigned n, const double *x, const double *want)
{
    struct graph *g = graph_new(name);
    struct shape s = shape_make(1, (int64_t[]){n});
    ref a = n_input(g, KL_F64, &s, "x");
    graph_output(g, OUT_RETURN, n_grad(g, f(g, a), a), 0);
    struct values in = {.n = 1, .v = {(void *)(uintptr_t)x}}, out = {0};
    struct err err = {0};
    if (check(run_on(g, "ref", true, &in, &(struct values){0}, NULL, &out, &err), "%s: %s", name, err.msg)) {
        for (unsigned i = 0; i < n; i++)
            check(((double *)out.v[0])[i] == want[i], "%s: element %u of the gradient is %g, not %g", name, i,
                  ((double *)out.v[0])[i], want[i]);
        values_free(&out);
    }
    graph_free(g);
}

static ref f_prod(struct graph *g, ref x) { return n_reduce(g, OP_reduce_prod, x, 1); }
static ref f_cumprod(struct graph *g, ref x) { return n_cumulative(g, OP_cumprod, x, 0); }
static ref f_cummax(struct graph *g, ref x) { return n_cumulative(g, OP_cummax, x, 0); }
static ref f_cummin(struct graph *g, ref x) { return n_cumulative(g, OP_cummin, x, 0); }
/* The sum of a gradient's elements, differentiated again. */
static ref f_twice(struct graph *g, ref x) { return n_reduce(g, OP_sum, n_grad(g, f_prod(g, x), x), 1); }

/* Products with zeros, and which of equals wins. */
static void zeros_and_ties(void)
{
    derivative("product with a zero", f_prod, 4, (double[]){2, 0, 3, 5}, (double[]){0, 30, 0, 0});
    derivative("product with two zeros", f_prod, 4, (double[]){2, 0, 0, 5}, (double[]){0, 0, 0, 0});
    derivative("product with a zero, twice", f_twice, 3, (double[]){2, 0, 3}, (double[]){3, 5, 2});
    derivative("products up to a zero", f_cumprod, 4, (double[]){2, 0, 3, 5}, (double[]){1, 2 + 6 + 30, 0, 0});
    derivative("products up to two zeros", f_cumprod, 4, (double[]){0, 4, 0, 5}, (double[]){1 + 4, 0, 0, 0});
    derivative("largest so far", f_cummax, 6, (double[]){1, 3, 3, 2, 4, 4}, (double[]){1, 3, 0, 0, 2, 0});
    derivative("smallest so far", f_cummin, 6, (double[]){1, 3, 1, 0, 4, -1}, (double[]){3, 0, 0, 2, 0, 1});
    derivative("largest up to a NaN", f_cummax, 4, (double[]){1, NAN, 3, NAN}, (double[]){1, 3, 0, 0});
}

int main(void)
{
    elementwise_rows();
    structural();
    corners();
    zeros_and_ties();
    return finish();
}
