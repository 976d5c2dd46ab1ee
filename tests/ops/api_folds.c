/* Bitwise reductions, p-norms, places of extremes so far: against plain loops, of odd sizes and of nothing, at
 * infinities and NaN, their gradients, and misuse. */
#include "tests/support/api_numbers.h"
#include "tests/support/api_refused.h"

/* ---- bitwise reductions ---- */

/* The last axis of [3, n], then both. */
static void bits_of(int n)
{
    uint16_t v[64];
    double each[3][3], all[3] = {65535, 0, 0};
    for (int i = 0; i < 3 * n; i++)
        v[i] = (uint16_t)(0xa5c3u * (unsigned)(i + 1) | (unsigned)i << 9 | 0x10u);
    for (int r = 0; r < 3; r++) {
        unsigned a = 65535, o = 0, x = 0;
        for (int i = 0; i < n; i++)
            a &= v[r * n + i], o |= v[r * n + i], x ^= v[r * n + i];
        each[0][r] = a, each[1][r] = o, each[2][r] = x;
        all[0] = (unsigned)all[0] & a, all[1] = (unsigned)all[1] | o, all[2] = (unsigned)all[2] ^ x;
    }
    kl_tensor t = kl_input(dev, KL_U16, D(3, n), v), m = kl_transpose(t, 0, 1);
    NEAR(kl_reduce_and(t, AXES(1), false), 3, each[0], 0);
    NEAR(kl_reduce_or(t, AXES(-1), false), 3, each[1], 0);
    NEAR(kl_reduce_xor(m, AXES(0), true), 3, each[2], 0);
    NEAR(kl_reduce_and(t, 0, NULL, false), 1, all, 0);
    NEAR(kl_reduce_or(m, AXES(1, 0), false), 1, all + 1, 0);
    NEAR(kl_reduce_xor(t, 0, NULL, true), 1, all + 2, 0);
    kl_release(t), kl_release(m);
}

static void bits(void)
{
    for (int n = 0; n <= 21; n += n < 9 ? 1 : 4)
        bits_of(n);
    kl_tensor b = kl_input(dev, KL_BOOL, D(2, 3), (bool[]){1, 1, 0, 1, 1, 1}), y = kl_reduce_xor(b, AXES(1), true);
    SHAPE(y, 2, 1);
    NEAR_LIST(y, 0, 0, 1);
    NEAR_LIST(kl_reduce_and(b, AXES(1), false), 0, 0, 1);
    NEAR_LIST(kl_reduce_or(b, 0, (int[]){0}, false), 0, 1, 1, 0, 1, 1, 1); /* over no axes */
    kl_release(b);
    b = kl_full(dev, KL_I8, 0, NULL, -7);
    NEAR_LIST(kl_reduce_xor(b, 0, NULL, false), 0, -7);
    kl_release(b);
}

/* ---- norms ---- */

static double power_mean(const double *x, int n, double p)
{
    double s = 0;
    for (int i = 0; i < n; i++)
        s += p == 0 ? x[i] != 0 : pow(fabs(x[i]), p);
    return p == 0 ? s : pow(s, 1 / p);
}

static void norms(void)
{
    static const double p[] = {0, 0.5, 1, 1.5, 2, 3, 7, -1, -2.5};
    double x[35], want[5];
    kl_tensor a = noisy(3, D(5, 7), x), none = kl_zeros(dev, KL_F32, D(2, 0)), zero = kl_zeros(dev, KL_F64, D(3));
    for (int k = 0; k < (int)(sizeof p / sizeof *p); k++) {
        for (int i = 0; i < 5; i++)
            want[i] = power_mean(x + 7 * i, 7, p[k]);
        NEAR(kl_p_norm(a, p[k], AXES(1), false), 5, want, 1e-13 * (1 + fabs(want[0])));
        double empty = p[k] < 0 ? INFINITY : 0;
        NEAR_LIST(kl_p_norm(none, p[k], AXES(1), true), 0, empty, empty);
        NEAR_LIST(kl_p_norm(zero, p[k], 0, NULL, false), 0, 0);
    }
    kl_release(none), kl_release(a);
    kl_requires_grad(zero);
    kl_tensor y = kl_p_norm(zero, 3, 0, NULL, false), z = kl_p_norm(zero, 0.5, 0, NULL, false);
    NEAR_LIST(kl_grad(y, zero), 0, 0, 0, 0);
    NEAR_LIST(kl_grad(z, zero), 0, 0, 0, 0);
    kl_release(y), kl_release(z), kl_release(zero);
    a = f64(D(2, 3), (double[]){1, -5, 2, -0.5, 3, NAN});
    NEAR_LIST(kl_p_norm(a, INFINITY, AXES(1), false), 0, 5, NAN);
    NEAR_LIST(kl_p_norm(a, -INFINITY, AXES(1), false), 0, 1, NAN);
    NEAR_LIST(kl_p_norm(a, 3, AXES(1), false), 1e-14, cbrt(134), NAN);
    kl_release(a);
    a = f64(D(3), (double[]){1, -INFINITY, 2});
    NEAR_LIST(kl_p_norm(a, 3, 0, NULL, false), 0, INFINITY);
    kl_release(a);
}

static kl_tensor g_three(kl_tensor x) { return kl_p_norm(x, 3, AXES(1), false); }
static kl_tensor g_some(kl_tensor x) { return kl_p_norm(x, 1.5, AXES(0), true); }
static kl_tensor g_minus(kl_tensor x) { return kl_p_norm(kl_add_scalar(kl_square(x), 1), -1, AXES(0), true); }

/* ---- places of extremes ---- */

static void places_of(bool largest, bool reverse)
{
    double x[2][9] = {{1, 3, 3, 2, 5, 4, 5, -1, INFINITY}, {-0.0, 0, -2, NAN, 7, NAN, 8, -9, 1}}, want[18], at[18];
    for (int r = 0; r < 2; r++) {
        int best = -1;
        for (int k = 0; k < 9; k++) {
            int i = reverse ? 8 - k : k;
            double v = x[r][i];
            bool newer = best < 0 || isnan(v) || (!isnan(x[r][best]) && (largest ? v >= x[r][best] : v <= x[r][best]));
            best = newer ? i : best;
            want[9 * r + i] = x[r][best], at[9 * r + i] = best;
        }
    }
    kl_tensor a = f64(D(2, 9), x[0]), p = kl_none;
    kl_tensor y = largest ? kl_cummax_indices(a, 1, reverse, &p) : kl_cummin_indices(a, -1, reverse, &p);
    CHECK(kl_dtype_of(p) == KL_I32);
    NEAR(y, 18, want, 0);
    NEAR(p, 18, at, 0);
    kl_release(a);
    a = kl_zeros(dev, KL_I16, D(2, 0));
    y = kl_cummax_indices(a, 1, reverse, &p);
    SHAPE(y, 2, 0);
    SHAPE(p, 2, 0);
    kl_release(a), kl_release(y), kl_release(p);
}

static kl_tensor g_cummax(kl_tensor x)
{
    kl_tensor p, y = kl_cummax_indices(x, 1, false, &p);
    kl_release(p);
    return y;
}

static void misuse(void)
{
    kl_tensor a = kl_zeros(dev, KL_F32, D(2, 3)), i = kl_zeros(dev, KL_I32, D(2, 3)), p;
    REFUSED(kl_reduce_and(a, 0, NULL, false), KL_ERR_TYPE, "reduce_and: ", "f32");
    REFUSED(kl_reduce_xor(i, AXES(2), false), KL_ERR_SHAPE, "reduce_xor: ", "axis 2", "[2,3]");
    REFUSED(kl_p_norm(i, 3, AXES(1), false), KL_ERR_TYPE, "p_norm: ", "i32");
    REFUSED(kl_p_norm(a, NAN, AXES(1), false), KL_ERR_ARGUMENT, "p_norm: ", "NaN");
    REFUSED(kl_p_norm(a, 3, AXES(4), false), KL_ERR_SHAPE, "norm: ", "axis 4", "[2,3]");
    REFUSED(kl_cummax_indices(a, 2, false, &p), KL_ERR_SHAPE, "cummax_indices: ", "axis 2", "[2,3]");
    REFUSED(kl_cummin_indices(a, 1, false, NULL), KL_ERR_ARGUMENT, "cummin_indices: ", "NULL");
    kl_release(a), kl_release(i);
}

static void test(kl_device d)
{
    dev = d;
    kl_scope_begin();
    bits();
    norms();
    for (int k = 0; k < 4; k++)
        places_of(k & 1, k & 2);
    GRADIENT(g_three, 4, 5);
    GRADIENT(g_some, 4, 5);
    GRADIENT(g_minus, 4, 5);
    GRADIENT(g_cummax, 3, 5);
    misuse();
    OK(kl_scope_end());
}

int main(void)
{
    return on_devices(test);
}
