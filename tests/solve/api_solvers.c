/* Differential equations, roots, conjugate gradients and minima: known solutions, gradients against differences, both
 * directions of time, starts that fail, misuse. */
#include "tests/support/api_numbers.h"
#include "tests/support/api_refused.h"
#include <kiln/solve/solve.h>

/* ---- differential equations ---- */

/* y0' = a y1, y1' = -b y0 + t, params [a, b] */
static kl_status spring(void *ctx, kl_tensor t, kl_tensor y, int64_t n, const kl_tensor *params, kl_tensor *dy)
{
    (void)ctx, (void)n;
    kl_tensor a = kl_narrow(params[0], 0, 0, 1), b = kl_narrow(params[0], 0, 1, 1);
    kl_tensor parts[2] = {kl_mul(a, kl_narrow(y, 0, 1, 1)), kl_sub(t, kl_mul(b, kl_narrow(y, 0, 0, 1)))};
    *dy = kl_concat(2, parts, 0);
    return KL_OK;
}

static kl_status decay(void *ctx, kl_tensor t, kl_tensor y, int64_t n, const kl_tensor *params, kl_tensor *dy)
{
    (void)ctx, (void)t, (void)n, (void)params;
    *dy = kl_neg(y);
    return KL_OK;
}

static kl_status blow_up(void *ctx, kl_tensor t, kl_tensor y, int64_t n, const kl_tensor *params, kl_tensor *dy)
{
    (void)ctx, (void)t, (void)n, (void)params;
    *dy = kl_square(y);
    return KL_OK;
}

static kl_tensor g_spring(kl_tensor x) /* y0 [2], params [2], times [4] */
{
    kl_tensor y0 = kl_narrow(x, 0, 0, 2), p = kl_add_scalar(kl_square(kl_narrow(x, 0, 2, 2)), 0.5);
    kl_tensor times = kl_add(kl_mul_scalar(kl_narrow(x, 0, 4, 4), 0.1), kl_linspace(dev, KL_F64, 0, 3, 4));
    return kl_odeint(spring, NULL, y0, times, 1, &p, &(kl_ode_options){1e-11, 1e-11, 0});
}

static kl_tensor g_spring_back(kl_tensor x)
{
    kl_tensor p = kl_add_scalar(kl_square(kl_narrow(x, 0, 2, 2)), 0.5), times = kl_linspace(dev, KL_F64, 1, -1, 3);
    return kl_odeint(spring, NULL, kl_narrow(x, 0, 0, 2), times, 1, &p, &(kl_ode_options){1e-11, 1e-11, 0});
}

static kl_status one_spring(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = kl_odeint(spring, NULL, in[0], *(kl_tensor *)ctx, 1, &in[1], NULL);
    return KL_OK;
}

/* Each of a batch has steps of its own: the bits that it has alone. */
static void batch(void)
{
    double y[3 * 2], p[3 * 2], *all, *one;
    kl_tensor in[2] = {noisy(1, D(3, 2), y), kl_square(noisy(4, D(3, 2), p))}, out;
    kl_tensor t = kl_linspace(dev, KL_F64, 0, 2, 3);
    OK(kl_vmap(one_spring, &t, 2, in, NULL, 1, NULL, KL_RANDOM_ERROR, &out));
    SHAPE(out, 3, 3, 2);
    all = values_of(out);
    for (int i = 0; i < 3; i++) {
        kl_tensor y0 = kl_squeeze(kl_narrow(in[0], 0, i, 1), 0), rates = kl_squeeze(kl_narrow(in[1], 0, i, 1), 0);
        one = values_of(kl_odeint(spring, NULL, y0, t, 1, &rates, NULL));
        CHECK(all && one && !memcmp(all + 6 * i, one, 6 * sizeof *one));
        free(one);
    }
    free(all);
}

/* y' = p y */
static kl_status growth(void *ctx, kl_tensor t, kl_tensor y, int64_t n, const kl_tensor *params, kl_tensor *dy)
{
    (void)ctx, (void)t, (void)n;
    *dy = kl_mul(params[0], y);
    return KL_OK;
}

/* Gradients are linear in those of the result, of any size. */
static void loss_scaled(kl_dtype dtype, double scale)
{
    double both[2], want = 3 * 2 * exp(-2.) * scale, tolerance = (dtype == KL_F64 ? 1e-6 : 1e-3) * scale;
    kl_tensor in[2] = {kl_full(dev, dtype, D(1), -1), kl_full(dev, dtype, D(1), 3)}, g[2];
    for (int i = 0; i < 2; i++)
        kl_requires_grad(in[i]);
    kl_tensor y = kl_odeint(growth, NULL, in[1], kl_linspace(dev, dtype, 0, 2, 2), 1, in, NULL);
    OK(kl_grads(kl_mul_scalar(kl_narrow(y, 0, 1, 1), scale), 2, in, g));
    for (int i = 0; i < 2; i++) {
        double *value = values_of(g[i]);
        both[i] = value ? *value : NAN;
        free(value);
    }
    CHECK(fabs(both[0] - want) < tolerance && fabs(both[1] - want / 6) < tolerance);
}

static void equations(void)
{
    double times[] = {0, 0.5, 2, 2.25}, want[8];
    for (int i = 0; i < 4; i++) {
        want[2 * i] = sin(times[i]);
        want[2 * i + 1] = cos(times[i]);
    }
    kl_tensor y0 = f64(D(2), (double[]){0, 1}), t = f64(D(4), times), p = f64(D(2), (double[]){1, 1});
    kl_tensor moving = kl_odeint(decay, NULL, y0, t, 0, NULL, NULL);
    NEAR_LIST(moving, 1e-7, 0, 1, 0, exp(-0.5), 0, exp(-2.), 0, exp(-2.25));
    /* with the force t: sin(x) + x, cos(x) + 1 solves it from [0, 2] */
    kl_tensor forced = kl_odeint(spring, NULL, f64(D(2), (double[]){0, 2}), t, 1, &p, NULL);
    for (int i = 0; i < 4; i++)
        want[2 * i] += times[i], want[2 * i + 1] += 1;
    NEAR(forced, 8, want, 1e-6);
    NEAR_LIST(kl_odeint(decay, NULL, y0, f64(D(1), times), 0, NULL, NULL), 0, 0, 1);
    kl_tensor back = kl_odeint(decay, NULL, kl_cast(y0, KL_F32), kl_cast(f64(D(2), (double[]){1, 0}), KL_F32), 0, NULL,
                               NULL);
    NEAR_LIST(back, 1e-4, 0, 1, 0, exp(1.));
    /* y = 1 / (1 - t) does not reach 2: NaN from there on */
    kl_tensor high = kl_odeint(blow_up, NULL, f64(D(1), (double[]){1}), f64(D(3), (double[]){0, 0.5, 2}), 0, NULL,
                               &(kl_ode_options){.max_steps = 200});
    NEAR_LIST(high, 1e-6, 1, 2, NAN);
    batch();
    GRADIENT(g_spring, 8);
    GRADIENT(g_spring_back, 4);
    loss_scaled(KL_F64, 1e-8), loss_scaled(KL_F64, 1e12), loss_scaled(KL_F32, 1e-8), loss_scaled(KL_F32, 1e13);
}

/* ---- roots ---- */

/* x0^2 + x1 = p0, x0 - x1^3 = p1 */
static kl_status curves(void *ctx, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)ctx, (void)n;
    kl_tensor a = kl_narrow(x, 0, 0, 1), b = kl_narrow(x, 0, 1, 1);
    kl_tensor parts[2] = {kl_add(kl_square(a), b), kl_sub(a, kl_powi(b, 3))};
    *y = kl_sub(kl_concat(2, parts, 0), params[0]);
    return KL_OK;
}

static kl_status cubic(void *ctx, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)ctx, (void)n;
    *y = kl_sub(kl_add(kl_powi(x, 3), x), params[0]);
    return KL_OK;
}

static kl_status arctangent(void *ctx, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)ctx, (void)n, (void)params;
    *y = kl_atan(x);
    return KL_OK;
}

static kl_tensor g_root(kl_tensor x)
{
    kl_tensor start = f64(D(2), (double[]){1, 1}), p = kl_add(f64(D(2), (double[]){6, -6}), kl_mul_scalar(x, 0.1));
    return kl_root(curves, NULL, start, 1, &p, &(kl_solve_options){1e-13, 0});
}

static kl_tensor g_bisect(kl_tensor x)
{
    kl_tensor low = kl_full(dev, KL_F64, D(5), -3), high = kl_full(dev, KL_F64, D(5), 4);
    return kl_bisect(cubic, NULL, low, high, 1, &x);
}

static void roots(void)
{
    kl_tensor p = f64(D(2), (double[]){6, -6}), start = f64(D(2), (double[]){1, 1});
    kl_tensor x = kl_root(curves, NULL, start, 1, &p, NULL);
    NEAR_LIST(x, 1e-9, 2, 2);
    /* Newton's full step would go away from the root of the arctangent */
    NEAR_LIST(kl_root(arctangent, NULL, f64(D(1), (double[]){5}), 0, NULL, NULL), 1e-9, 0);
    kl_tensor q = f64(D(3), (double[]){10, -2, 0}), low = kl_full(dev, KL_F64, D(3), -3);
    NEAR_LIST(kl_bisect(cubic, NULL, low, kl_full(dev, KL_F64, D(3), 4), 1, &q), 1e-15, 2, -1, 0);
    NEAR_LIST(kl_bisect(cubic, NULL, low, kl_full(dev, KL_F64, D(3), -2), 1, &q), 1e-15, NAN, NAN, NAN);
    GRADIENT(g_root, 2);
    GRADIENT(g_bisect, 5);
}

/* ---- linear systems and minima ---- */

/* (m m^T + identity) x */
static kl_status normal_matrix(void *ctx, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)ctx, (void)n;
    *y = kl_add(kl_matmul(params[0], kl_matmul(kl_transpose(params[0], 0, 1), x)), x);
    return KL_OK;
}

static kl_tensor g_conjugate(kl_tensor x) /* m [4, 4], b [4] */
{
    kl_tensor m = kl_narrow(x, 0, 0, 4), b = kl_squeeze(kl_narrow(x, 0, 4, 1), 0);
    return kl_conjugate_gradient(normal_matrix, NULL, b, 1, &m, &(kl_solve_options){1e-13, 0});
}

/* Rosenbrock's valley: (a - x)^2 + b (y - x^2)^2 */
static kl_status valley(void *ctx, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)ctx, (void)n;
    kl_tensor u = kl_narrow(x, 0, 0, 1), v = kl_narrow(x, 0, 1, 1);
    kl_tensor a = kl_narrow(params[0], 0, 0, 1), b = kl_narrow(params[0], 0, 1, 1);
    kl_tensor low = kl_square(kl_sub(a, u)), curve = kl_square(kl_sub(v, kl_square(u)));
    *y = kl_sum_all(kl_add(low, kl_mul(b, curve)));
    return KL_OK;
}

/* sum (x - p)^4 / 4 + x^2 / 2 */
static kl_status quartic(void *ctx, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)ctx, (void)n;
    *y = kl_sum_all(kl_add(kl_mul_scalar(kl_powi(kl_sub(x, params[0]), 4), 0.25), kl_mul_scalar(kl_square(x), 0.5)));
    return KL_OK;
}

/* y' = -rate y */
static kl_status fading(void *ctx, kl_tensor t, kl_tensor y, int64_t n, const kl_tensor *params, kl_tensor *dy)
{
    (void)ctx, (void)t, (void)n;
    *dy = kl_neg(kl_mul(params[0], y));
    return KL_OK;
}

/* How far what fades from 1 at a rate x [1] is from a half at time 2; it has no second derivatives. */
static kl_status half_life(void *ctx, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)ctx, (void)n, (void)params;
    kl_tensor one = f64(D(1), (double[]){1}), times = f64(D(2), (double[]){0, 2});
    kl_tensor end = kl_narrow(kl_odeint(fading, NULL, one, times, 1, &x, NULL), 0, 1, 1);
    *y = kl_sum_all(kl_square(kl_sub_scalar(end, 0.5)));
    return KL_OK;
}

static kl_tensor g_minimize(kl_tensor x)
{
    kl_tensor start = kl_zeros(dev, KL_F64, D(2, 3));
    return kl_minimize(quartic, NULL, start, 1, &x, &(kl_solve_options){1e-13, 0});
}

static void minima(void)
{
    double m[16], b[4];
    kl_tensor M = noisy(3, D(4, 4), m), right = noisy(9, D(4), b), one = kl_eye(dev, KL_F64, 4, 4);
    kl_tensor A = kl_add(kl_matmul(M, kl_transpose(M, 0, 1)), one);
    double *want = values_of(kl_squeeze(kl_solve(A, kl_unsqueeze(right, 1)), 1));
    NEAR(kl_conjugate_gradient(normal_matrix, NULL, right, 1, &M, NULL), 4, want, 1e-8);
    free(want);
    kl_tensor p = f64(D(2), (double[]){1, 100}), start = f64(D(2), (double[]){-1.2, 1});
    NEAR_LIST(kl_minimize(valley, NULL, start, 1, &p, NULL), 1e-8, 1, 1);
    NEAR_LIST(kl_minimize(valley, NULL, f64(D(2), (double[]){1, 1}), 1, &p, NULL), 0, 1, 1); /* it is there */
    NEAR_LIST(kl_conjugate_gradient(normal_matrix, NULL, kl_zeros(dev, KL_F64, D(4)), 1, &M, NULL), 0, 0, 0, 0, 0);
    NEAR_LIST(kl_minimize(half_life, NULL, f64(D(1), (double[]){1}), 0, NULL, NULL), 1e-7, log(2.) / 2);
    GRADIENT(g_conjugate, 5, 4);
    GRADIENT(g_minimize, 2, 3);
}

/* ---- misuse ---- */

static kl_status wrong_shape(void *ctx, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)ctx, (void)n, (void)params;
    *y = kl_unsqueeze(x, 0);
    return KL_OK;
}
static kl_status nothing(void *ctx, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)ctx, (void)x, (void)n, (void)params, (void)y;
    return KL_OK;
}
static kl_status own_error(void *ctx, kl_tensor t, kl_tensor y, int64_t n, const kl_tensor *params, kl_tensor *dy)
{
    (void)ctx, (void)n, (void)params, (void)t, (void)y, (void)dy;
    return KL_ERR_IO;
}

static void refused(void)
{
    kl_tensor x = kl_zeros(dev, KL_F64, D(2)), f = kl_zeros(dev, KL_F32, D(2)), sq = kl_zeros(dev, KL_F64, D(2, 2));
    kl_tensor i = kl_zeros(dev, KL_I32, D(2)), t = kl_linspace(dev, KL_F64, 0, 1, 2);
    kl_set_name(sq, "start");
    REFUSED(kl_odeint(NULL, NULL, x, t, 0, NULL, NULL), KL_ERR_ARGUMENT, "odeint: the function is NULL");
    REFUSED(kl_odeint(decay, NULL, kl_none, t, 0, NULL, NULL), KL_ERR_HANDLE, "odeint: y0 is kl_none");
    REFUSED(kl_odeint(decay, NULL, x, sq, 0, NULL, NULL), KL_ERR_SHAPE, "odeint: times must be [T]", "\"start\" [2,2]");
    REFUSED(kl_odeint(decay, NULL, f, t, 0, NULL, NULL), KL_ERR_SHAPE, "of y0's dtype", "got f64 [2]");
    REFUSED(kl_odeint(decay, NULL, x, t, 1, NULL, NULL), KL_ERR_ARGUMENT, "n is 1; it must be 0 to 60, of params NULL");
    REFUSED(kl_odeint(decay, NULL, x, t, 1, &f, NULL), KL_ERR_TYPE, "odeint: parameter 0 [2] is f32, y0 f64");
    REFUSED(kl_odeint(decay, NULL, x, t, 0, NULL, &(kl_ode_options){-1, 0, 0}), KL_ERR_ARGUMENT, "relative -1");
    REFUSED(kl_odeint(own_error, NULL, x, t, 0, NULL, NULL), KL_ERR_IO, "odeint: the function returned input");
    REFUSED(kl_root(wrong_shape, NULL, x, 0, NULL, NULL), KL_ERR_SHAPE, "root: the function returned f64 [1,2]", "[2]");
    REFUSED(kl_root(nothing, NULL, x, 0, NULL, NULL), KL_ERR_ARGUMENT, "root: the function set no result");
    REFUSED(kl_root(cubic, NULL, sq, 1, &x, NULL), KL_ERR_SHAPE, "root: x0 must be [k]", "\"start\" [2,2]");
    REFUSED(kl_root(cubic, NULL, i, 0, NULL, NULL), KL_ERR_TYPE, "root: x0 [2] is i32; it must be f32 or f64");
    REFUSED(kl_minimize(wrong_shape, NULL, x, 0, NULL, NULL), KL_ERR_SHAPE, "minimize: the function returned", "[1,2]");
    REFUSED(kl_bisect(cubic, NULL, x, sq, 0, NULL), KL_ERR_SHAPE, "bisect: low and high", "[2] and \"start\" [2,2]");
    kl_solve_options bad = {-1, 0};
    REFUSED(kl_conjugate_gradient(nothing, NULL, x, 0, NULL, &bad), KL_ERR_ARGUMENT, "conjugate_gradient: tolerance");
    REFUSED(kl_minimize(valley, NULL, x, 61, &t, NULL), KL_ERR_ARGUMENT, "minimize: n is 61");
    OK(kl_trace_begin("any_length"));
    int64_t any = kl_symbol("any", 1, 8);
    kl_tensor start = kl_input_symbolic(dev, KL_F64, 1, &any, (int64_t[]){2}, (double[]){1, 2});
    REFUSED(kl_minimize(valley, NULL, start, 0, NULL, NULL), KL_ERR_SHAPE, "minimize: x0 must have a number", "[any]");
    kl_trace_abandon();
    NEAR_LIST(kl_odeint(decay, NULL, x, t, 0, NULL, NULL), 0, 0, 0, 0, 0); /* the next call works */
}

static void test(kl_device device)
{
    dev = device;
    OK(kl_scope_begin());
    equations();
    roots();
    minima();
    refused();
    OK(kl_scope_end());
}

int main(void) { return on_devices(test); }
