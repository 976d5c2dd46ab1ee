/* Roots of functions: Newton's method with halved steps, and bisection.  Gradients are those of the root: the implicit
 * function theorem. */
#include "solve.h"

struct root {
    struct solve_function f;
    kl_solve_options o;
    int64_t k; /* equations */
    const kl_tensor *params;
    /* while the step is halved */
    kl_tensor x, step, size;
};

/* in: x, parameters, row of the identity; out: row of the Jacobian */
static kl_status root_jacobian_row(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct root *r = ctx;
    kl_tensor g[1 + SOLVE_MAX_PARAMS];
    (void)nout;
    solve_vjp(&r->f, kl_none, in[0], in + 1, in[nin - 1], g);
    out[0] = g[0];
    return r->f.status;
}

/* [k, k] */
static kl_tensor root_jacobian(struct root *r, kl_tensor x, const kl_tensor *params)
{
    kl_tensor in[2 + SOLVE_MAX_PARAMS] = {x}, out = kl_none;
    int axes[2 + SOLVE_MAX_PARAMS];
    for (int64_t i = 0; i <= r->f.n; i++)
        axes[i] = KL_NO_AXIS;
    memcpy(in + 1, params, (size_t)r->f.n * sizeof *in);
    in[1 + r->f.n] = kl_eye(kl_device_of(x), kl_dtype_of(x), r->k, r->k);
    axes[1 + r->f.n] = 0;
    kl_vmap(root_jacobian_row, r, 2 + r->f.n, in, axes, 1, NULL, KL_RANDOM_ERROR, &out);
    return out;
}

/* a x = b of vectors */
static kl_tensor root_solve(kl_tensor a, kl_tensor b) { return kl_squeeze(kl_solve(a, kl_unsqueeze(b, 1)), 1); }

/* The largest |f|; NaN counts as infinite. */
static kl_tensor root_size(kl_tensor y)
{
    kl_tensor size = kl_max(kl_abs(y), 1, (int[]){0}, false);
    return kl_where(kl_is_nan(size), solve_number(size, INFINITY), size);
}

/* in: the factor of the step, x, f(x), tries */
static kl_status root_halve_continue(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    enum { MAX_TRIES = 20 };
    const struct root *r = ctx;
    (void)nin, (void)nout;
    out[0] = kl_and(kl_not(kl_lt(root_size(in[2]), r->size)), kl_lt(in[3], solve_number(in[3], MAX_TRIES)));
    return KL_OK;
}

static kl_status root_halve(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct root *r = ctx;
    (void)nin, (void)nout;
    out[0] = kl_mul(in[0], solve_number(in[0], 0.5));
    out[1] = kl_sub(r->x, kl_mul(out[0], r->step));
    out[2] = solve_call(&r->f, kl_none, out[1], r->params);
    out[3] = kl_add(in[3], solve_number(in[3], 1));
    return r->f.status;
}

/* in: x, f(x), steps made, did the last step help? */
static kl_status root_continue(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct root *r = ctx;
    (void)nin, (void)nout;
    kl_tensor size = root_size(in[1]);
    out[0] = kl_and(kl_and(kl_gt(size, solve_number(size, r->o.tolerance)), in[3]),
                    kl_lt(in[2], solve_number(in[2], (double)r->o.max_steps)));
    return KL_OK;
}

static kl_status root_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct root *r = ctx;
    (void)nin, (void)nout;
    kl_tensor from[4], to[4];
    r->x = in[0];
    r->step = root_solve(root_jacobian(r, in[0], r->params), in[1]);
    r->size = root_size(in[1]);
    from[0] = solve_number(in[0], 1);
    from[1] = kl_sub(r->x, r->step);
    from[2] = solve_call(&r->f, kl_none, from[1], r->params);
    from[3] = kl_const(kl_device_of(in[0]), KL_I32, 0);
    if (r->f.status != KL_OK)
        return r->f.status;
    kl_while(root_halve_continue, root_halve, r, 4, from, to);
    kl_tensor helped = kl_lt(root_size(to[2]), r->size);
    out[0] = kl_where(helped, to[1], in[0]);
    out[1] = kl_where(helped, to[2], in[1]);
    out[2] = kl_add(in[2], solve_number(in[2], 1));
    out[3] = helped;
    return r->f.status;
}

/* in: x0, parameters; out: x */
static kl_status root_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct root *r = ctx;
    (void)nin, (void)nout;
    kl_tensor v[4], w[4] = {kl_none};
    r->params = in + 1;
    v[0] = in[0];
    v[1] = solve_call(&r->f, kl_none, in[0], in + 1);
    v[2] = kl_const(kl_device_of(in[0]), KL_I32, 0);
    v[3] = kl_eq(v[2], v[2]);
    if (r->f.status == KL_OK)
        kl_while(root_continue, root_step, r, 4, v, w);
    out[0] = r->f.status == KL_OK ? w[0] : kl_poison();
    return r->f.status;
}

/* in: x0, parameters, x, x': -w^T df/dp, w with (df/dx)^T w = x' */
static kl_status root_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct root *r = ctx;
    (void)nout;
    kl_tensor g[1 + SOLVE_MAX_PARAMS], x = in[nin - 2], w;
    w = root_solve(kl_transpose(root_jacobian(r, x, in + 1), 0, 1), in[nin - 1]);
    solve_vjp(&r->f, kl_none, x, in + 1, kl_neg(w), g);
    out[0] = kl_mul(in[0], solve_number(in[0], 0));
    memcpy(out + 1, g + 1, (size_t)r->f.n * sizeof *g);
    return r->f.status;
}

kl_tensor kl_root(kl_solve_fn *f, void *ctx, kl_tensor x0, int64_t n, const kl_tensor *params,
                  const kl_solve_options *options)
{
    struct root r = {.f = {.op = "root", .fn = f, .ctx = ctx}};
    kl_tensor list[1 + SOLVE_MAX_PARAMS], out;
    int64_t dims[KL_MAX_RANK];
    char text[SOLVE_SHAPE_TEXT];
    if (!solve_options(r.f.op, options, kl_dtype_of(x0), &r.o) ||
        !solve_begin_function(&r.f, "x0", x0, n, params, list))
        return kl_poison();
    if (kl_shape(x0, dims) != 1 || dims[0] < 1) {
        kl_operand(r.f.op, "x0", x0, text, sizeof text);
        kl_failf(NULL, KL_ERR_SHAPE, "root: x0 must be [k], k a number and at least 1, got %s", text);
        return solve_end(kl_none, 0, NULL);
    }
    r.k = dims[0];
    kl_custom_grad(root_fn, root_backward, &r, 1 + n, list, 1, &out);
    return solve_end(out, 0, NULL);
}

/* ---- bisection ---- */

/* in: the end whose sign is f(low)'s, the other, that sign */
static kl_status bisect_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct root *r = ctx;
    (void)nin, (void)nout;
    kl_tensor middle = kl_add(in[0], kl_mul(kl_sub(in[1], in[0]), solve_number(in[0], 0.5)));
    kl_tensor y = solve_call(&r->f, kl_none, middle, r->params);
    kl_tensor same = kl_eq(kl_sign(y), in[2]);
    out[0] = kl_where(same, middle, in[0]);
    out[1] = kl_where(same, in[1], middle);
    out[2] = in[2];
    return r->f.status;
}

/* in: low, high, parameters */
static kl_status bisect_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct root *r = ctx;
    (void)nin, (void)nout;
    r->params = in + 2;
    kl_tensor low = solve_call(&r->f, kl_none, in[0], r->params), high = solve_call(&r->f, kl_none, in[1], r->params);
    kl_tensor v[3] = {in[0], in[1], kl_sign(low)}, w[3], zero = solve_number(low, 0);
    if (r->f.status != KL_OK) {
        out[0] = kl_poison();
        return r->f.status;
    }
    kl_scan(bisect_step, r, r->o.max_steps, 3, v, 0, NULL, 0, false, w);
    kl_tensor apart = kl_le(kl_mul(kl_sign(low), kl_sign(high)), zero); /* false for a NaN */
    kl_tensor x = kl_where(kl_eq(low, zero), in[0], w[1]);
    out[0] = kl_where(apart, x, solve_number(x, NAN));
    return r->f.status;
}

/* in: low, high, parameters, x, x': of the parameters -df/dp x' / (df/dx) */
static kl_status bisect_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct root *r = ctx;
    (void)nout;
    kl_tensor g[1 + SOLVE_MAX_PARAMS], x = in[nin - 2];
    kl_tensor ones = kl_add(kl_mul(x, solve_number(x, 0)), solve_number(x, 1));
    solve_vjp(&r->f, kl_none, x, in + 2, ones, g);
    solve_vjp(&r->f, kl_none, x, in + 2, kl_neg(kl_div(in[nin - 1], g[0])), g);
    out[0] = kl_mul(in[0], solve_number(x, 0));
    out[1] = kl_mul(in[1], solve_number(x, 0));
    memcpy(out + 2, g + 1, (size_t)r->f.n * sizeof *g);
    return r->f.status;
}

kl_tensor kl_bisect(kl_solve_fn *f, void *ctx, kl_tensor low, kl_tensor high, int64_t n, const kl_tensor *params)
{
    struct root r = {.f = {.op = "bisect", .fn = f, .ctx = ctx}};
    kl_tensor list[1 + SOLVE_MAX_PARAMS], in[2 + SOLVE_MAX_PARAMS], out;
    int64_t dims[2][KL_MAX_RANK];
    char text[2][SOLVE_SHAPE_TEXT];
    if (kl_operand(r.f.op, "low", low, text[0], sizeof text[0]) != KL_OK ||
        kl_operand(r.f.op, "high", high, text[1], sizeof text[1]) != KL_OK)
        return kl_poison();
    int rank = kl_shape(low, dims[0]);
    if (kl_shape(high, dims[1]) != rank || memcmp(dims[0], dims[1], (size_t)rank * sizeof *dims[0]) ||
        kl_dtype_of(low) != kl_dtype_of(high))
        return kl_failf(NULL, KL_ERR_SHAPE, "bisect: low and high must be of one shape and dtype, got %s and %s",
                        text[0], text[1]), kl_poison();
    if (!solve_begin_function(&r.f, "low", low, n, params, list))
        return kl_poison();
    r.o.max_steps = kl_dtype_of(low) == KL_F64 ? 64 : 32;
    in[0] = low;
    in[1] = high;
    memcpy(in + 2, list + 1, (size_t)n * sizeof *in);
    kl_custom_grad(bisect_fn, bisect_backward, &r, 2 + n, in, 1, &out);
    return solve_end(out, 0, NULL);
}
