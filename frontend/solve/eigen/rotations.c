/* Jacobi's method: rotations of n / 2 pairs of rows or columns at once, which meet as in a tournament (Brent and Luk
 * 1985, "The solution of singular-value and symmetric eigenvalue problems on multiprocessor arrays").
 *
 * Pair i are the elements i and n / 2 + i; after a step all but the first element move.  A rotation writes each element
 * to where it moves, so that a step passes over an array once.  Matrices have their batch last, [rows, columns, B], so
 * that processors compute several matrices at once. */
#include "eigen.h"

struct solve_pairs solve_pairs(kl_device device, int64_t n)
{
    int64_t half = n / 2;
    kl_tensor k = kl_arange(device, KL_I32, n), one = solve_number(k, 1), h = solve_number(k, (double)half);
    kl_tensor second = kl_where(kl_lt(k, solve_number(k, (double)n - 1)), kl_add(k, one), kl_sub(h, one));
    kl_tensor from = kl_where(kl_lt(k, h), kl_sub(k, one), second);
    from = kl_where(kl_eq(k, one), h, from);
    from = kl_where(kl_eq(k, solve_number(k, 0)), k, from);
    return (struct solve_pairs){from, kl_where(kl_lt(from, h), kl_add(from, h), kl_sub(from, h))};
}

kl_tensor solve_moved(kl_tensor first, kl_tensor second, const struct solve_pairs *pairs)
{
    return kl_take(kl_concat(2, (kl_tensor[]){first, second}, 0), 0, pairs->next);
}

struct solve_rotation solve_rotation(kl_tensor rotate, kl_tensor p, kl_tensor q, kl_tensor r,
                                     const struct solve_pairs *pairs)
{
    kl_tensor one = solve_number(p, 1), zero = solve_number(p, 0);
    kl_tensor twice = kl_mul(kl_where(rotate, r, one), solve_number(p, 2)), theta = kl_div(kl_sub(q, p), twice);
    kl_tensor size = kl_add(kl_abs(theta), kl_sqrt(kl_add(kl_mul(theta, theta), one)));
    kl_tensor t = kl_div(kl_where(kl_lt(theta, zero), solve_number(p, -1), one), size), c, s;
    t = kl_where(rotate, t, zero);
    c = kl_div(one, kl_sqrt(kl_add(kl_mul(t, t), one)));
    s = kl_mul(t, c);
    return (struct solve_rotation){solve_moved(c, c, pairs), solve_moved(kl_neg(s), s, pairs), t};
}

kl_tensor solve_rotate(kl_tensor a, int axis, const struct solve_rotation *x, const struct solve_pairs *pairs)
{
    kl_tensor c = kl_unsqueeze(x->c, 1 - axis), s = kl_unsqueeze(x->s, 1 - axis); /* [n, 1, B] or [1, n, B] */
    return kl_add(kl_mul(c, kl_take(a, axis, pairs->next)), kl_mul(s, kl_take(a, axis, pairs->other)));
}

struct sweeps { kl_region_fn *step; void *ctx; int64_t n; };

/* Carried: two arrays, and whether a step of the sweep has rotated a pair. */
static kl_status sweep_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct sweeps *x = ctx;
    (void)nin, (void)nout;
    kl_tensor rotated[3];
    kl_status status = x->step(x->ctx, in, 2, rotated, 3);
    out[0] = rotated[0];
    out[1] = rotated[1];
    out[2] = kl_or(in[2], kl_any(rotated[2], 0, NULL, false));
    return status;
}

/* in: two arrays; out: the same after n - 1 steps, and whether one of these has rotated a pair */
static kl_status sweep_rotate(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct sweeps *x = ctx;
    kl_tensor carried[3] = {in[0], in[1], kl_const(kl_device_of(in[0]), KL_BOOL, 0)};
    (void)nin, (void)nout;
    return kl_scan(sweep_step, ctx, x->n - 1, 3, carried, 0, NULL, 0, false, out);
}

static kl_status sweep_nothing(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = in[0];
    out[1] = in[1];
    out[2] = kl_const(kl_device_of(in[0]), KL_BOOL, 0);
    return KL_OK;
}

/* Carried: two arrays, and whether the last sweep has rotated a pair. */
static kl_status sweep_again(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin;
    return kl_cond(in[2], sweep_rotate, sweep_nothing, ctx, 2, in, nout, out);
}

void solve_sweeps(kl_region_fn *step, void *ctx, int64_t n, kl_tensor *arrays)
{
    enum { MAX_SWEEPS = 40 };
    struct sweeps x = {step, ctx, n};
    kl_tensor in[3] = {arrays[0], arrays[1], kl_const(kl_device_of(arrays[0]), KL_BOOL, 1)}, out[3];
    kl_scan(sweep_again, &x, MAX_SWEEPS, 3, in, 0, NULL, 0, false, out);
    arrays[0] = out[0];
    arrays[1] = out[1];
}
