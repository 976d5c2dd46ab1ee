/* Factors by LAPACK: what Kiln's own functions give, their gradients, matrices without a result, symbolic batches; and
 * libraries that are missing or another. */
#include "tests/support/api_numbers.h"
#include "tests/support/api_refused.h"
#include <kiln/solve/solve.h>

static kl_tensor spread(kl_tensor x)
{
    int64_t d[KL_MAX_RANK];
    int r = kl_shape(x, d);
    kl_tensor big = kl_mul(kl_eye(dev, KL_F64, d[r - 2], d[r - 1]), kl_linspace(dev, KL_F64, 3, 9, d[r - 1]));
    return kl_add(x, big);
}

/* Both have the same values to a tolerance; of rows of signs that are arbitrary, the squares. */
static void alike(kl_tensor x, kl_tensor want, double tolerance, int line)
{
    double *v = values_of(want);
    CHECK(kl_dtype_of(x) == kl_dtype_of(want) && v);
    if (v)
        near_at(x, kl_numel(want), v, tolerance, line);
    free(v);
}

static void same_as_own(int m, int n, kl_dtype dtype)
{
    static double v[2 * 30 * 30];
    double tolerance = dtype == KL_F64 ? 1e-11 : 1e-3;
    kl_scope_begin();
    for (int i = 0; i < 2 * m * n; i++)
        v[i] = noise(i * i + 7 * i);
    kl_tensor a = kl_cast(spread(f64(D(2, m, n), v)), dtype), s[2], t[2], u[2];
    u[0] = kl_svd(a, &s[0], &t[0]), u[1] = kl_lapack_svd(a, &s[1], &t[1]);
    alike(kl_matmul(kl_mul(u[1], kl_unsqueeze(s[1], 1)), t[1]), a, tolerance, __LINE__);
    alike(s[1], s[0], tolerance, __LINE__);
    alike(kl_square(u[1]), kl_square(u[0]), tolerance, __LINE__);
    alike(kl_square(t[1]), kl_square(t[0]), tolerance, __LINE__);
    kl_tensor sq = kl_matmul(a, kl_transpose(a, 1, 2)), b = kl_narrow(sq, 2, 0, 1);
    sq = kl_add(sq, kl_cast(kl_mul_scalar(kl_eye(dev, KL_F32, m, m), 4), dtype));
    u[0] = kl_eigh(sq, &t[0]), u[1] = kl_lapack_eigh(sq, &t[1]);
    alike(u[1], u[0], tolerance, __LINE__);
    if (m <= n)
        alike(kl_square(t[1]), kl_square(t[0]), tolerance, __LINE__);
    alike(kl_lapack_cholesky(sq), kl_cholesky(sq), tolerance, __LINE__);
    kl_tensor skew = kl_add(sq, kl_triu(sq, 1)), right = kl_concat(2, (kl_tensor[]){b, sq}, 2);
    alike(kl_lapack_solve(skew, right), kl_solve(skew, right), tolerance, __LINE__);
    alike(kl_lapack_inverse(skew), kl_inverse(skew), tolerance, __LINE__);
    kl_tensor det = kl_mul(kl_mul_scalar(skew, 1.0 / 64), kl_ones(dev, dtype, 0, NULL)), log[2];
    alike(kl_lapack_det(det), kl_det(det), tolerance, __LINE__);
    alike(kl_lapack_slogdet(skew, &log[0]), kl_slogdet(skew, &log[1]), tolerance, __LINE__);
    alike(log[0], log[1], tolerance, __LINE__);
    u[0] = kl_qr(a, &t[0]), u[1] = kl_lapack_qr(a, &t[1]);
    alike(u[1], u[0], tolerance, __LINE__);
    alike(t[1], t[0], tolerance, __LINE__);
    kl_tensor side = kl_narrow(sq, 2, 0, m > 3 ? 3 : m);
    alike(kl_lapack_lstsq(a, side), kl_lstsq(a, side, 0), tolerance, __LINE__);
    kl_tensor few = kl_mul_scalar(kl_div(skew, kl_max(kl_abs(skew), 3, (int[]){0, 1, 2}, true)), 2);
    alike(kl_lapack_expm(few), kl_expm(few), tolerance, __LINE__);
    OK(kl_scope_end());
}

static void special(void)
{
    kl_tensor s, t, none = kl_zeros(dev, KL_F64, D(2, 0, 0)), v, l = kl_lapack_eigh(none, &v);
    SHAPE(l, 2, 0);
    SHAPE(kl_lapack_solve(none, kl_zeros(dev, KL_F64, D(2, 0, 3))), 2, 0, 3);
    SHAPE(kl_lapack_svd(kl_zeros(dev, KL_F64, D(2, 0, 3)), &s, &t), 2, 0, 0);
    SHAPE(kl_lapack_qr(kl_zeros(dev, KL_F64, D(2, 0, 3)), &t), 2, 0, 0);
    SHAPE(kl_lapack_lstsq(kl_zeros(dev, KL_F64, D(2, 0, 3)), kl_zeros(dev, KL_F64, D(2, 0, 1))), 2, 3, 1);
    NEAR_LIST(kl_lapack_det(none), 0, 1, 1);
    kl_tensor a = f64(D(2, 2, 2), (double[]){2, 1, 1, 2, 1, NAN, NAN, 1});
    NEAR_LIST(kl_lapack_eigh(a, &v), 1e-14, 1, 3, NAN, NAN);
    kl_lapack_svd(a, &s, &t);
    NEAR_LIST(s, 1e-14, 3, 1, NAN, NAN);
    NEAR_LIST(kl_lapack_cholesky(f64(D(2, 2, 2), (double[]){4, 2, 2, 2, 1, 2, 2, 1})), 1e-14, 2, 0, 1, 1, NAN, NAN, NAN,
              NAN);
    NEAR_LIST(kl_lapack_inverse(a), 1e-14, 2.0 / 3, -1.0 / 3, -1.0 / 3, 2.0 / 3, NAN, NAN, NAN, NAN);
    NEAR_LIST(kl_lapack_inverse(f64(D(2, 2), (double[]){1, 1, 1, 1})), 0, NAN, NAN, NAN, NAN);
    NEAR_LIST(kl_lapack_slogdet(a, &v), 1e-14, 1, NAN);
    NEAR_LIST(v, 1e-14, log(3), NAN);
    NEAR_LIST(kl_lapack_slogdet(f64(D(2, 2), (double[]){1, 1, 1, 1}), &v), 0, 0);
    NEAR_LIST(v, 0, -INFINITY);
    NEAR_LIST(kl_lapack_det(a), 1e-14, 3, NAN);
    NEAR_LIST(kl_lapack_qr(a, &t), 1e-14, -2 / sqrt(5), -1 / sqrt(5), -1 / sqrt(5), 2 / sqrt(5), NAN, NAN, NAN, NAN);
    NEAR_LIST(kl_lapack_lstsq(f64(D(2, 1), (double[]){NAN, 0}), f64(D(2, 1), (double[]){1, 2})), 0, NAN);
    NEAR_LIST(kl_lapack_solve(f64(D(1, 1), (double[]){0}), f64(D(1, 1), (double[]){3})), 0, INFINITY);
    kl_tensor tall = kl_zeros(dev, KL_F32, D(3, 2));
    REFUSED(kl_lapack_eigh(tall, NULL), KL_ERR_SHAPE, "lapack_eigh: needs [...,n,n], got [3,2]");
    REFUSED(kl_lapack_solve(a, none), KL_ERR_SHAPE, "lapack_solve: the right side must be [...,2,k]");
    REFUSED(kl_lapack_inverse(tall), KL_ERR_SHAPE, "lapack_inverse: needs [...,n,n], got [3,2]");
    REFUSED(kl_lapack_det(tall), KL_ERR_SHAPE, "lapack_det: needs [...,n,n], got [3,2]");
    REFUSED(kl_lapack_expm(tall), KL_ERR_SHAPE, "lapack_expm: needs [...,n,n], got [3,2]");
    REFUSED(kl_lapack_slogdet(a, NULL), KL_ERR_ARGUMENT, "lapack_slogdet: logarithm is NULL");
    REFUSED(kl_lapack_qr(a, NULL), KL_ERR_ARGUMENT, "lapack_qr: r is NULL");
    REFUSED(kl_lapack_lstsq(a, none), KL_ERR_SHAPE, "lapack_lstsq: the right side must be [...,2,k]");
    REFUSED(kl_lapack_svd(a, &s, NULL), KL_ERR_ARGUMENT, "lapack_svd: vt is NULL");
    kl_tensor huge = kl_zeros(dev, KL_F32, D(1, 40000));
    REFUSED(kl_lapack_svd(huge, &s, &t), KL_ERR_SHAPE, "matrices of 1 by 40000; LAPACK takes up to 32766");
}

static kl_tensor joined(kl_tensor a, kl_tensor b)
{
    kl_tensor parts[2] = {kl_reshape(a, 1, (int64_t[]){-1}), kl_reshape(b, 1, (int64_t[]){-1})};
    return kl_concat(2, parts, 0);
}
static kl_tensor g_eigh(kl_tensor x)
{
    kl_tensor v, l = kl_lapack_eigh(spread(x), &v);
    return joined(l, kl_square(v));
}
static kl_tensor g_svd(kl_tensor x)
{
    kl_tensor s, t, u = kl_lapack_svd(spread(x), &s, &t);
    return joined(joined(s, kl_square(u)), kl_square(t));
}
static kl_tensor g_solve(kl_tensor x) { return kl_lapack_solve(spread(kl_narrow(x, 1, 0, 4)), kl_narrow(x, 1, 4, 2)); }
static kl_tensor g_cholesky(kl_tensor x)
{
    return kl_lapack_cholesky(kl_add(kl_matmul(x, kl_transpose(x, 1, 2)), kl_eye(dev, KL_F64, 3, 3)));
}

static kl_tensor g_inverse(kl_tensor x) { return kl_lapack_inverse(spread(x)); }
static kl_tensor g_det(kl_tensor x)
{
    kl_tensor log, sign = kl_lapack_slogdet(spread(x), &log);
    return joined(kl_lapack_det(kl_mul_scalar(spread(x), 0.25)), kl_mul(sign, log));
}
static kl_tensor g_qr(kl_tensor x)
{
    kl_tensor r, q = kl_lapack_qr(spread(x), &r);
    return joined(q, r);
}
static kl_tensor g_lstsq(kl_tensor x)
{
    int64_t d[KL_MAX_RANK];
    kl_shape(x, d);
    return kl_lapack_lstsq(spread(kl_narrow(x, 1, 0, d[1] - 2)), kl_narrow(x, 1, d[1] - 2, 2));
}
static kl_tensor g_expm(kl_tensor x) { return kl_lapack_expm(x); }

static void symbolic(void)
{
    double v[4 * 9];
    int64_t n = kl_symbol("n", 1, 16);
    for (int i = 0; i < 36; i++)
        v[i] = noise(i * i);
    for (int count = 2; count <= 4; count += 2) {
        OK(kl_trace_begin("symbolic"));
        kl_tensor a = kl_input_symbolic(dev, KL_F64, 3, (int64_t[]){n, 3, 3}, (int64_t[]){count, 3, 3}, v);
        kl_tensor l = kl_keep(kl_lapack_eigh(a, NULL)), own = kl_keep(kl_eigh(a, NULL));
        OK(kl_trace_end());
        alike(l, own, 1e-13, __LINE__);
        kl_release(own);
    }
}

static void test(kl_device device)
{
    dev = device;
    kl_scope_begin();
    same_as_own(1, 1, KL_F64), same_as_own(4, 4, KL_F32), same_as_own(5, 9, KL_F64), same_as_own(9, 5, KL_F64);
    same_as_own(30, 30, KL_F64), same_as_own(12, 13, KL_F32);
    special();
    GRADIENT(g_eigh, 2, 3, 3);
    GRADIENT(g_svd, 2, 4, 2);
    GRADIENT(g_solve, 4, 6);
    GRADIENT(g_cholesky, 2, 3, 3);
    GRADIENT(g_inverse, 2, 3, 3);
    GRADIENT(g_det, 2, 3, 3);
    GRADIENT(g_qr, 2, 4, 2);
    GRADIENT(g_qr, 2, 2, 3);
    GRADIENT(g_lstsq, 4, 4);
    GRADIENT(g_lstsq, 3, 5);
    GRADIENT(g_lstsq, 2, 6);
    GRADIENT(g_expm, 2, 3, 3);
    symbolic();
    OK(kl_scope_end());
}

int main(void)
{
    FAILS(kl_lapack_load("no_such_lapack.so"), KL_ERR_IO, "lapack_load: no_such_lapack.so: ");
    FAILS(kl_lapack_load("libm.so.6"), KL_ERR_IO, "lapack_load: libm.so.6 has no function ssyevd_");
    if (kl_lapack_load(NULL) == KL_OK)
        return on_devices(test);
    bool said = CHECK(strstr(kl_last_error(), "lapack_load: no LAPACK (Debian: libopenblas0)"));
    printf("SKIP no-library lapack: %s\n%d passed, %d failed, 1 skipped\n", kl_last_error(), passed, failed);
    return !said;
}
