/* Initial value problems: the pair of Dormand and Prince 1980 of orders 5 and 4, with steps that follow the error
 * (Hairer, Norsett, Wanner, "Solving Ordinary Differential Equations I", II.4).  A scan over the times, with a while
 * over the steps to the next.
 *
 * The gradient is that of the continuous problem (adjoint method: Pontryagin 1962; Chen et al. 2018, "Neural ordinary
 * differential equations"): y, a = dloss/dy and the parameters' gradients go back in time from each result, by the same
 * integrator:  y' = f,  a' = -a df/dy,  p' = -a df/dp. */
#include "solve.h"

enum { ODE_STATES = 2 + SOLVE_MAX_PARAMS, STAGES = 7 };

static const double nodes[STAGES] = {0, 1. / 5, 3. / 10, 4. / 5, 8. / 9, 1, 1};
static const double stages[STAGES][6] = {
    {0},
    {1. / 5},
    {3. / 40, 9. / 40},
    {44. / 45, -56. / 15, 32. / 9},
    {19372. / 6561, -25360. / 2187, 64448. / 6561, -212. / 729},
    {9017. / 3168, -355. / 33, 46732. / 5247, 49. / 176, -5103. / 18656},
    {35. / 384, 0, 500. / 1113, 125. / 192, -2187. / 6784, 11. / 84}, /* the result of order 5 */
};
/* the result of order 5, less that of order 4 */
static const double errors[STAGES] = {71. / 57600, 0, -71. / 16695, 71. / 1920, -17253. / 339200, 22. / 525, -1. / 40};

struct ode {
    struct solve_function f;
    kl_ode_options o;
    bool back;        /* the adjoint: states y, a, the parameters' gradients; otherwise y */
    int64_t n;        /* states */
    kl_tensor params[SOLVE_MAX_PARAMS];
    kl_tensor end;    /* [] the time to reach */
};

/* The states' derivatives. */
static void ode_derivative(struct ode *e, kl_tensor t, const kl_tensor *y, kl_tensor *dy)
{
    dy[0] = solve_call(&e->f, t, y[0], e->params);
    if (e->back)
        solve_vjp(&e->f, t, y[0], e->params, kl_neg(y[1]), dy + 1);
}

/* y + h (sum of c[i] k[i]) */
static kl_tensor ode_combine(kl_tensor y, kl_tensor h, const double *c, int n, kl_tensor k[][ODE_STATES], int64_t at)
{
    kl_tensor sum = kl_none;
    for (int i = 0; i < n; i++)
        if (c[i] != 0) {
            kl_tensor part = kl_mul(k[i][at], solve_number(h, c[i]));
            sum = sum.id ? kl_add(sum, part) : part;
        }
    sum = kl_mul(sum, h);
    return y.id ? kl_add(y, sum) : sum;
}

/* The root of the mean square of all states' elements over what is tolerated at size |y|. */
static kl_tensor ode_norm(const struct ode *e, const kl_tensor *x, const kl_tensor *y, const kl_tensor *z)
{
    kl_tensor sum = kl_none;
    double count = 0;
    for (int64_t i = 0; i < e->n; i++) {
        kl_tensor size = z ? kl_maximum(kl_abs(y[i]), kl_abs(z[i])) : kl_abs(y[i]);
        size = kl_add(kl_mul(size, solve_number(size, e->o.relative)), solve_number(size, e->o.absolute));
        kl_tensor r = kl_div(x[i], size), part = solve_inner(r, r);
        sum = sum.id ? kl_add(sum, part) : part;
        count += (double)kl_numel(x[i]);
    }
    return kl_sqrt(kl_div(sum, solve_number(sum, count > 0 ? count : 1)));
}

/* in: t, the step, steps made, the states, their derivatives */
static kl_status ode_continue(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct ode *e = ctx;
    (void)nin, (void)nout;
    out[0] = kl_and(kl_ne(in[0], e->end), kl_lt(in[2], solve_number(in[2], (double)e->o.max_steps)));
    return KL_OK;
}

/* One step, which is kept if its error is tolerated; the next one's length follows the error. */
static kl_status ode_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct ode *e = ctx;
    const kl_tensor *y = in + 3;
    (void)nin, (void)nout;
    kl_tensor k[STAGES][ODE_STATES], next[ODE_STATES], error[ODE_STATES];
    kl_tensor t = in[0], rest = kl_sub(e->end, t), last = kl_ge(kl_abs(in[1]), kl_abs(rest));
    kl_tensor h = kl_where(last, rest, in[1]);
    memcpy(k[0], in + 3 + e->n, (size_t)e->n * sizeof *in);
    for (int s = 1; s < STAGES; s++) {
        for (int64_t i = 0; i < e->n; i++)
            next[i] = ode_combine(y[i], h, stages[s], s, k, i);
        ode_derivative(e, kl_add(t, kl_mul(h, solve_number(h, nodes[s]))), next, k[s]);
    }
    for (int64_t i = 0; i < e->n; i++)
        error[i] = ode_combine(kl_none, h, errors, STAGES, k, i);
    kl_tensor ratio = ode_norm(e, error, y, next), kept = kl_le(ratio, solve_number(ratio, 1));
    kl_tensor factor = kl_mul(kl_pow_scalar(ratio, -0.2), solve_number(ratio, 0.9));
    factor = kl_where(kl_gt(factor, solve_number(factor, 0.2)), factor, solve_number(factor, 0.2)); /* NaN: 0.2 */
    h = kl_mul(h, kl_minimum(factor, solve_number(factor, 10)));
    kl_tensor longer = kl_and(kl_and(last, kept), kl_lt(kl_abs(h), kl_abs(in[1]))); /* cut short by the end */
    out[0] = kl_where(kept, kl_where(last, e->end, kl_add(t, kl_where(last, rest, in[1]))), t);
    out[1] = kl_where(longer, in[1], h);
    out[2] = kl_add(in[2], solve_number(in[2], 1));
    for (int64_t i = 0; i < e->n; i++) {
        out[3 + i] = kl_where(kept, next[i], y[i]);
        out[3 + e->n + i] = kl_where(kept, k[STAGES - 1][i], k[0][i]);
    }
    return e->f.status;
}

/* A first step, whose Euler step would change the states by a hundredth. */
static kl_tensor ode_first_step(const struct ode *e, kl_tensor span, const kl_tensor *y, const kl_tensor *dy)
{
    kl_tensor size = ode_norm(e, y, y, NULL), speed = ode_norm(e, dy, y, NULL), tiny = solve_number(span, 1e-5);
    kl_tensor known = kl_and(kl_and(kl_gt(size, tiny), kl_gt(speed, tiny)), kl_is_finite(speed));
    kl_tensor h = kl_div(kl_mul(size, solve_number(size, 0.01)), kl_where(known, speed, solve_number(speed, 1)));
    h = kl_minimum(kl_where(known, h, solve_number(h, 1e-6)), kl_abs(span));
    return kl_where(kl_lt(span, solve_number(span, 0)), kl_neg(h), h);
}

/* From time t to `end`; NaN where that takes too many steps.  h: the step, 0: not known yet; becomes the next one. */
static void ode_integrate(struct ode *e, kl_tensor t, kl_tensor end, kl_tensor *h, kl_tensor *y)
{
    kl_tensor in[3 + 2 * ODE_STATES], out[3 + 2 * ODE_STATES], zero = solve_number(t, 0);
    e->end = end;
    memcpy(in + 3, y, (size_t)e->n * sizeof *y);
    ode_derivative(e, t, y, in + 3 + e->n);
    in[0] = t;
    in[1] = kl_where(kl_eq(*h, zero), ode_first_step(e, kl_sub(end, t), y, in + 3 + e->n), *h);
    in[2] = kl_const(kl_device_of(t), KL_I32, 0);
    kl_while(ode_continue, ode_step, e, 3 + 2 * e->n, in, out);
    kl_tensor missed = kl_where(kl_eq(out[0], end), zero, solve_number(zero, NAN));
    *h = out[1];
    for (int64_t i = 0; i < e->n; i++)
        y[i] = kl_add(out[3 + i], missed);
}

/* in: the step, y; two times; out: the same, and y again */
static kl_status ode_forward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct ode *e = ctx;
    (void)nin, (void)nout;
    out[0] = in[0];
    out[1] = in[1];
    ode_integrate(e, in[2], in[3], &out[0], &out[1]);
    out[2] = out[1];
    return e->f.status;
}

/* All but the last, and all but the first. */
static void ode_intervals(kl_tensor a, kl_tensor *from, kl_tensor *to)
{
    int64_t dims[KL_MAX_RANK];
    kl_shape(a, dims);
    int64_t n = kl_length_sub(dims[0], 1);
    *from = kl_narrow(a, 0, 0, n);
    *to = kl_narrow(a, 0, 1, n);
}

static int64_t ode_interval_count(kl_tensor times)
{
    int64_t dims[KL_MAX_RANK];
    kl_shape(times, dims);
    return kl_length_sub(dims[0], 1);
}

/* in: y0, times, parameters; out: y at the times */
static kl_status ode_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct ode *e = ctx;
    (void)nin, (void)nout;
    e->back = false;
    e->n = 1;
    memcpy(e->params, in + 2, (size_t)e->f.n * sizeof *in);
    kl_tensor carried[2] = {kl_const(kl_device_of(in[1]), kl_dtype_of(in[1]), 0), in[0]}, scanned[2], r[3];
    ode_intervals(in[1], &scanned[0], &scanned[1]);
    kl_scan(ode_forward, e, ode_interval_count(in[1]), 2, carried, 2, scanned, 1, false, r);
    out[0] = kl_concat(2, (kl_tensor[]){kl_unsqueeze(in[0], 0), r[2]}, 0);
    return e->f.status;
}

/* in: the step, a, the parameters' gradients; y, its gradient, the time of both, the time before.  Stacked: the time's
 * gradient. */
static kl_status ode_backward_interval(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct ode *e = ctx;
    (void)nin, (void)nout;
    const kl_tensor *scanned = in + e->n;
    kl_tensor y[ODE_STATES] = {scanned[0], kl_add(in[1], scanned[1])};
    memcpy(y + 2, in + 2, (size_t)e->f.n * sizeof *in);
    out[0] = in[0];
    out[e->n] = solve_inner(scanned[1], solve_call(&e->f, scanned[2], scanned[0], e->params));
    ode_integrate(e, scanned[2], scanned[3], &out[0], y);
    memcpy(out + 1, y + 1, (size_t)(e->n - 1) * sizeof *y);
    return e->f.status;
}

/* [] The largest size of an element; 1 where that is 0 or not finite. */
static kl_tensor ode_size(kl_tensor a)
{
    return solve_divisor(kl_max(kl_abs(a), 0, NULL, false));
}

/* in: y0, times, parameters, the result, its gradient, which is divided by its size: the gradients are linear in it,
 * what is tolerated of their errors is not */
static kl_status ode_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct ode *e = ctx;
    kl_tensor carried[ODE_STATES], r[1 + ODE_STATES], scanned[4], ignored, result = in[nin - 2];
    kl_tensor size = ode_size(in[nin - 1]), g = kl_div(in[nin - 1], size);
    e->back = true;
    e->n = 2 + e->f.n;
    memcpy(e->params, in + 2, (size_t)e->f.n * sizeof *in);
    carried[0] = kl_const(kl_device_of(in[1]), kl_dtype_of(in[1]), 0);
    carried[1] = kl_mul(in[0], solve_number(in[0], 0));
    for (int64_t i = 0; i < e->f.n; i++)
        carried[2 + i] = kl_mul(e->params[i], solve_number(in[0], 0));
    ode_intervals(result, &ignored, &scanned[0]);
    ode_intervals(g, &ignored, &scanned[1]);
    ode_intervals(in[1], &scanned[3], &scanned[2]);
    kl_scan(ode_backward_interval, e, ode_interval_count(in[1]), e->n, carried, 4, scanned, 1, true, r);
    kl_tensor t0 = kl_squeeze(kl_narrow(in[1], 0, 0, 1), 0);
    kl_tensor start = kl_neg(solve_inner(r[1], solve_call(&e->f, t0, in[0], e->params)));
    out[0] = kl_add(r[1], kl_squeeze(kl_narrow(g, 0, 0, 1), 0));
    out[1] = kl_concat(2, (kl_tensor[]){kl_unsqueeze(start, 0), r[e->n]}, 0);
    memcpy(out + 2, r + 2, (size_t)e->f.n * sizeof *r);
    for (int64_t i = 0; i < nout; i++)
        out[i] = kl_mul(out[i], size);
    return e->f.status;
}

/* false: reported. */
static bool ode_options_valid(struct ode *e, kl_dtype dtype)
{
    kl_ode_options *o = &e->o;
    if (!(o->relative >= 0 && o->absolute >= 0) || o->max_steps < 0 || o->max_steps > INT32_MAX)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "odeint: relative %g, absolute %g, max_steps %" PRId64, o->relative,
                        o->absolute, o->max_steps), false;
    o->relative = o->relative > 0 ? o->relative : dtype == KL_F64 ? 1e-8 : 1e-5;
    o->absolute = o->absolute > 0 ? o->absolute : dtype == KL_F64 ? 1e-10 : 1e-7;
    o->max_steps = o->max_steps ? o->max_steps : 10000;
    return true;
}

kl_tensor kl_odeint(kl_ode_fn *f, void *ctx, kl_tensor y0, kl_tensor times, int64_t n, const kl_tensor *params,
                    const kl_ode_options *options)
{
    struct ode e = {.f = {.op = "odeint", .ode = f, .ctx = ctx}, .o = options ? *options : (kl_ode_options){0}};
    kl_tensor list[1 + SOLVE_MAX_PARAMS], in[2 + SOLVE_MAX_PARAMS], out;
    int64_t dims[KL_MAX_RANK];
    char text[SOLVE_SHAPE_TEXT];
    if (kl_operand("odeint", "y0", y0, text, sizeof text) != KL_OK || !ode_options_valid(&e, kl_dtype_of(y0)) ||
        kl_operand("odeint", "times", times, text, sizeof text) != KL_OK)
        return kl_poison();
    if (kl_shape(times, dims) != 1 || dims[0] == 0 || kl_dtype_of(times) != kl_dtype_of(y0))
        return kl_failf(NULL, KL_ERR_SHAPE, "odeint: times must be [T] of y0's dtype, with one at least, got %s %s",
                        kl_dtype_name(kl_dtype_of(times)), text), kl_poison();
    if (!solve_begin_function(&e.f, "y0", y0, n, params, list))
        return kl_poison();
    in[0] = y0;
    in[1] = times;
    memcpy(in + 2, list + 1, (size_t)n * sizeof *in);
    if (dims[0] == 1)
        out = kl_unsqueeze(y0, 0);
    else
        kl_custom_grad(ode_fn, ode_backward, &e, 2 + n, in, 1, &out);
    return solve_end(out, 0, NULL);
}
