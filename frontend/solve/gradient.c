/* Symmetric linear systems by products alone (conjugate gradients: Hestenes and Stiefel 1952), and minima of functions
 * (L-BFGS: Nocedal 1980; the two loops and the backtracking line search of Nocedal and Wright, "Numerical
 * Optimization", 7.2 and 3.1).  Gradients are those of the solution: the implicit function theorem. */
#include "solve.h"

/* ---- conjugate gradients ---- */

struct conjugate { solve_map *map; void *map_ctx; kl_tensor limit; int64_t max_steps; };

/* in: x, the rest, the direction, |rest|^2, steps made */
static kl_status conjugate_continue(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct conjugate *c = ctx;
    (void)nin, (void)nout;
    out[0] = kl_and(kl_gt(in[3], c->limit), kl_lt(in[4], solve_number(in[4], (double)c->max_steps)));
    return KL_OK;
}

static kl_status conjugate_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct conjugate *c = ctx;
    (void)nin, (void)nout;
    kl_tensor p = in[2], ap = c->map(c->map_ctx, p), alpha = kl_div(in[3], solve_inner(p, ap));
    out[0] = kl_add(in[0], kl_mul(alpha, p));
    out[1] = kl_sub(in[1], kl_mul(alpha, ap));
    out[3] = solve_inner(out[1], out[1]);
    out[2] = kl_add(out[1], kl_mul(kl_div(out[3], in[3]), p));
    out[4] = kl_add(in[4], solve_number(in[4], 1));
    return kl_check(out[0]);
}

kl_tensor solve_conjugate(solve_map *map, void *ctx, kl_tensor b, double tolerance, int64_t max_steps)
{
    kl_tensor zero = kl_const(kl_device_of(b), KL_I32, 0), size = solve_inner(b, b), out[5];
    struct conjugate c = {map, ctx, kl_mul(size, solve_number(size, tolerance * tolerance)), max_steps};
    kl_tensor in[5] = {kl_mul(b, solve_number(b, 0)), b, b, size, zero};
    kl_while(conjugate_continue, conjugate_step, &c, 5, in, out);
    return out[0];
}

/* ---- the user's function as the map ---- */

struct solve_linear {
    struct solve_function f;
    kl_solve_options o;
    const kl_tensor *params;
};

static kl_tensor linear_map(void *ctx, kl_tensor x)
{
    struct solve_linear *l = ctx;
    return solve_call(&l->f, kl_none, x, l->params);
}

static kl_status linear_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct solve_linear *l = ctx;
    (void)nin, (void)nout;
    l->params = in + 1;
    out[0] = solve_conjugate(linear_map, l, in[0], l->o.tolerance, l->o.max_steps);
    return l->f.status;
}

/* in: b, parameters, x, x': u with A u = x' for b, and -u^T dA x for the parameters */
static kl_status linear_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct solve_linear *l = ctx;
    (void)nout;
    kl_tensor g[1 + SOLVE_MAX_PARAMS], u;
    l->params = in + 1;
    u = solve_conjugate(linear_map, l, in[nin - 1], l->o.tolerance, l->o.max_steps);
    if (l->f.n)
        solve_vjp(&l->f, kl_none, in[nin - 2], in + 1, kl_neg(u), g);
    out[0] = u;
    memcpy(out + 1, g + 1, (size_t)l->f.n * sizeof *g);
    return l->f.status;
}

kl_tensor kl_conjugate_gradient(kl_solve_fn *f, void *ctx, kl_tensor b, int64_t n, const kl_tensor *params,
                                const kl_solve_options *options)
{
    struct solve_linear l = {.f = {.op = "conjugate_gradient", .fn = f, .ctx = ctx}};
    kl_tensor list[1 + SOLVE_MAX_PARAMS], out;
    if (!solve_options(l.f.op, options, kl_dtype_of(b), &l.o) ||
        !solve_begin_function(&l.f, "b", b, n, params, list))
        return kl_poison();
    kl_custom_grad(linear_fn, linear_backward, &l, 1 + n, list, 1, &out);
    return solve_end(out, 0, NULL);
}

/* ---- L-BFGS ---- */

enum { MEMORY = 10 }; /* pairs of steps and changes of the gradient */

struct minimum {
    struct solve_function f;
    kl_solve_options o;
    kl_tensor params[SOLVE_MAX_PARAMS], at; /* at: the point of minimum_curvature */
    int rank;
    int64_t dims[KL_MAX_RANK], count; /* x0's shape, and number of elements */
};

/* f and its gradient at x [count]. */
static kl_tensor minimum_value(struct minimum *m, kl_tensor x, kl_tensor *gradient)
{
    kl_tensor own = kl_detach(x), y = solve_call(&m->f, kl_none, kl_reshape(own, m->rank, m->dims), m->params);
    *gradient = m->f.status == KL_OK ? kl_grad(kl_add(y, solve_inner(own, solve_number(own, 0))), own) : kl_poison();
    return y;
}

/* in: t, x at t, f at t, its gradient, tries */
struct line_search { struct minimum *m; kl_tensor x, value, direction, slope; };

static kl_tensor search_is_lower(const struct line_search *s, kl_tensor t, kl_tensor value)
{
    kl_tensor enough = kl_add(s->value, kl_mul(kl_mul(t, s->slope), solve_number(t, 1e-4)));
    return kl_le(value, enough);
}

static kl_status search_continue(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    enum { MAX_TRIES = 30 };
    (void)nin, (void)nout;
    out[0] = kl_and(kl_not(search_is_lower(ctx, in[0], in[2])), kl_lt(in[4], solve_number(in[4], MAX_TRIES)));
    return KL_OK;
}

static kl_status search_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct line_search *s = ctx;
    (void)nin, (void)nout;
    out[0] = kl_mul(in[0], solve_number(in[0], 0.5));
    out[1] = kl_add(s->x, kl_mul(out[0], s->direction));
    out[2] = minimum_value(s->m, out[1], &out[3]);
    out[4] = kl_add(in[4], solve_number(in[4], 1));
    return s->m->f.status;
}

/* -H g by the two loops over the pairs s, y [MEMORY, count], the newest first, and 1 / (s y) [MEMORY], 0: no pair. */
static kl_tensor minimum_direction(kl_tensor g, kl_tensor s, kl_tensor y, kl_tensor r)
{
    kl_tensor alpha[MEMORY], si[MEMORY], yi[MEMORY], ri[MEMORY], q = g, zero = solve_number(g, 0);
    for (int i = 0; i < MEMORY; i++) {
        si[i] = kl_squeeze(kl_narrow(s, 0, i, 1), 0);
        yi[i] = kl_squeeze(kl_narrow(y, 0, i, 1), 0);
        ri[i] = kl_squeeze(kl_narrow(r, 0, i, 1), 0);
        alpha[i] = kl_mul(ri[i], solve_inner(si[i], q));
        q = kl_sub(q, kl_mul(alpha[i], yi[i]));
    }
    kl_tensor known = kl_gt(ri[0], zero), one = solve_number(g, 1);
    kl_tensor scale = kl_mul(kl_where(known, ri[0], one), kl_where(known, solve_inner(yi[0], yi[0]), kl_sqrt(
                                                                   solve_inner(g, g))));
    q = kl_div(q, scale);
    for (int i = MEMORY - 1; i >= 0; i--)
        q = kl_add(q, kl_mul(si[i], kl_sub(alpha[i], kl_mul(ri[i], solve_inner(yi[i], q)))));
    return kl_neg(q);
}

/* in: x, f, the gradient, s, y, r, steps made, is the search successful? */
static kl_status minimum_continue(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct minimum *m = ctx;
    (void)nin, (void)nout;
    kl_tensor largest = kl_max(kl_abs(in[2]), 1, (int[]){0}, false);
    out[0] = kl_and(kl_and(kl_gt(largest, solve_number(largest, m->o.tolerance)), in[7]),
                    kl_lt(in[6], solve_number(in[6], (double)m->o.max_steps)));
    return KL_OK;
}

/* A row in front of the others, the last of which is dropped, where the pair counts. */
static kl_tensor minimum_remember(kl_tensor counts, kl_tensor rows, kl_tensor row)
{
    kl_tensor parts[2] = {kl_unsqueeze(row, 0), kl_narrow(rows, 0, 0, MEMORY - 1)};
    return kl_where(counts, kl_concat(2, parts, 0), rows);
}

static kl_status minimum_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct minimum *m = ctx;
    (void)nin, (void)nout;
    kl_tensor one = solve_number(in[1], 1), none = kl_const(kl_device_of(in[0]), KL_I32, 0), from[5], to[5];
    struct line_search s = {m, in[0], in[1], minimum_direction(in[2], in[3], in[4], in[5]), kl_none};
    s.slope = solve_inner(s.direction, in[2]);
    from[0] = one;
    from[1] = kl_add(s.x, s.direction);
    from[2] = minimum_value(m, from[1], &from[3]);
    from[4] = none;
    kl_while(search_continue, search_step, &s, 5, from, to);
    kl_tensor found = search_is_lower(&s, to[0], to[2]);
    kl_tensor step = kl_sub(to[1], in[0]), change = kl_sub(to[3], in[2]), sy = solve_inner(step, change);
    kl_tensor limit = kl_mul(solve_inner(change, change), solve_number(sy, solve_epsilon(kl_dtype_of(sy))));
    kl_tensor counts = kl_and(found, kl_gt(sy, limit));
    out[0] = kl_where(found, to[1], in[0]);
    out[1] = kl_where(found, to[2], in[1]);
    out[2] = kl_where(found, to[3], in[2]);
    out[3] = minimum_remember(counts, in[3], step);
    out[4] = minimum_remember(counts, in[4], change);
    out[5] = minimum_remember(counts, in[5], kl_div(one, kl_where(counts, sy, one)));
    out[6] = kl_add(in[6], solve_number(in[6], 1));
    out[7] = found;
    return m->f.status;
}

/* in: x0, parameters; out: x */
static kl_status minimum_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct minimum *m = ctx;
    (void)nin, (void)nout;
    kl_tensor r[8], v[8], zero = solve_number(in[0], 0);
    memcpy(m->params, in + 1, (size_t)m->f.n * sizeof *in);
    v[0] = kl_reshape(in[0], 1, &m->count);
    v[1] = minimum_value(m, v[0], &v[2]);
    v[3] = v[4] = kl_expand(zero, 2, (int64_t[]){MEMORY, m->count});
    v[5] = kl_expand(zero, 1, (int64_t[]){MEMORY});
    v[6] = kl_const(kl_device_of(in[0]), KL_I32, 0);
    v[7] = kl_eq(v[6], v[6]);
    if (m->f.status == KL_OK)
        kl_while(minimum_continue, minimum_step, m, 8, v, r);
    out[0] = m->f.status == KL_OK ? kl_reshape(r[0], m->rank, m->dims) : kl_poison();
    return m->f.status;
}

/* The second derivative of f at m->at, times u. */
static kl_tensor minimum_curvature(void *ctx, kl_tensor u)
{
    struct minimum *m = ctx;
    kl_tensor own = kl_detach(m->at), y = solve_call(&m->f, kl_none, kl_reshape(own, m->rank, m->dims), m->params), g;
    if (m->f.status != KL_OK)
        return kl_poison();
    g = kl_grad(y, own);
    return kl_grad(kl_add(solve_inner(g, u), solve_inner(own, solve_number(own, 0))), own);
}

/* in: x0, parameters, x, x': -u^T of the second derivatives by x and the parameters, u with (d2f/dx2) u = x' */
static kl_status minimum_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct minimum *m = ctx;
    (void)nout;
    kl_tensor own[1 + SOLVE_MAX_PARAMS], u, loss;
    memcpy(m->params, in + 1, (size_t)m->f.n * sizeof *in);
    m->at = kl_reshape(in[nin - 2], 1, &m->count);
    u = solve_conjugate(minimum_curvature, m, kl_reshape(in[nin - 1], 1, &m->count), m->o.tolerance,
                        2 * m->count + 20);
    own[0] = kl_detach(m->at);
    for (int64_t i = 0; i < m->f.n; i++)
        m->params[i] = own[1 + i] = kl_detach(m->params[i]);
    kl_tensor y = solve_call(&m->f, kl_none, kl_reshape(own[0], m->rank, m->dims), m->params);
    if (m->f.status == KL_OK) {
        loss = kl_neg(solve_inner(kl_grad(y, own[0]), u));
        for (int64_t i = 0; i < m->f.n; i++)
            loss = kl_add(loss, kl_sum_all(kl_mul(own[1 + i], solve_number(loss, 0))));
        if (m->f.n)
            m->f.status = kl_grads(loss, m->f.n, own + 1, out + 1);
    }
    out[0] = kl_mul(in[0], solve_number(in[0], 0));
    return m->f.status;
}

kl_tensor kl_minimize(kl_solve_fn *f, void *ctx, kl_tensor x0, int64_t n, const kl_tensor *params,
                      const kl_solve_options *options)
{
    struct minimum m = {.f = {.op = "minimize", .fn = f, .ctx = ctx, .scalar = true}};
    kl_tensor list[1 + SOLVE_MAX_PARAMS], out;
    if (!solve_options(m.f.op, options, kl_dtype_of(x0), &m.o) ||
        !solve_begin_function(&m.f, "x0", x0, n, params, list))
        return kl_poison();
    m.rank = kl_shape(x0, m.dims);
    m.count = kl_numel(x0);
    if (m.count < 0) {
        char text[SOLVE_SHAPE_TEXT];
        kl_operand(m.f.op, "x0", x0, text, sizeof text);
        kl_failf(NULL, KL_ERR_SHAPE, "minimize: x0 must have a number of elements, got %s", text);
        return solve_end(kl_none, 0, NULL);
    }
    if (!m.count) {
        out = kl_add(x0, solve_number(x0, 0));
    } else if (!n) { /* no second derivatives are wanted, which f may not have */
        list[0] = kl_detach(x0);
        kl_checkpoint(minimum_fn, &m, 1, list, 1, &out);
    } else {
        kl_custom_grad(minimum_fn, minimum_backward, &m, 1 + n, list, 1, &out);
    }
    return solve_end(out, 0, NULL);
}
