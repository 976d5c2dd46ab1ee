/* Least squares, LU, determinants and exponentials: the properties that define them, of odd sizes, of nothing, of
 * batches, singular, with NaNs; gradients of these and of eigenvalues and singular values against differences; misuse.
 */
#include "tests/support/api_matrices.h"
#include "tests/support/api_refused.h"
#include <kiln/solve/solve.h>

/* ---- least squares ---- */

static void least_squares(void)
{
    double a[2 * 5 * 3], b[2 * 5 * 2], *v;
    fill(1, 30, a), fill(2, 20, b);
    kl_tensor A = f64(D(2, 5, 3), a), right = f64(D(2, 5, 2), b), y = kl_lstsq(A, right, 0);
    SHAPE(y, 2, 3, 2);
    v = values_of(y);
    for (int i = 0; i < 2 && v; i++) { /* the rest is orthogonal to the columns */
        double rest[10] = {0};
        for (int r = 0; r < 10; r++)
            for (int p = 0; p < 3; p++)
                rest[r] += a[(i * 5 + r / 2) * 3 + p] * v[(i * 3 + p) * 2 + r % 2];
        for (int r = 0; r < 10; r++)
            rest[r] -= b[i * 10 + r];
        CHECK(error_of(a + i * 15, true, rest, (double[6]){0}, 3, 5, 2) < 1e-13);
    }
    free(v);
    kl_release(A), kl_release(right), kl_release(y);
    /* more unknowns than equations, and dependent equations: the shortest solution */
    NEAR_LIST(kl_lstsq(f64(D(1, 2), (double[]){3, 4}), f64(D(1, 1), (double[]){50}), 0), 1e-14, 6, 8);
    y = kl_lstsq(f64(D(3, 2), (double[]){1, 1, 1, 1, 2, 2}), f64(D(3, 1), (double[]){1, 1, 2}), 0);
    NEAR_LIST(y, 1e-14, 0.5, 0.5);
    NEAR_LIST(kl_pinv(f64(D(2, 2), (double[]){2, 0, 0, 1e-3}), 1e-2), 1e-14, 0.5, 0, 0, 0);
}

/* A batch of matrices of full rank and of less, of any magnitude, which are computed in different ways: Penrose's
 * conditions, and the same bits as alone. */
static void pseudoinverses(kl_dtype dtype, int m, int n)
{
    enum { B = 6, DEPENDENT = 1, ZERO = 2, TINY = 3, HUGE_ONE = 4, INVALID = 5 };
    static double a[B * MAX_SIZE / 3];
    const double big = dtype == KL_F64 ? 1e200 : 1e30, tolerance = dtype == KL_F64 ? 1e-12 : 1e-3;
    int each = m * n;
    fill(5 * m + n, B * each, a);
    for (int i = 0; i < each; i++) {
        a[DEPENDENT * each + i] = (1 + i / n) * (double)(i % n - 1) / 8; /* rank 1, or 0 */
        a[ZERO * each + i] = 0;
        a[TINY * each + i] *= 1 / big;
        a[HUGE_ONE * each + i] *= big;
    }
    a[INVALID * each + each / 2] = NAN;
    kl_tensor x = input(dtype, D(B, m, n), a), y = kl_pinv(x, 0);
    double *A = values_of(x), *P = values_of(y);
    for (int k = 0; k < B && A && P; k++) {
        kl_tensor one = input(dtype, D(m, n), a + k * each), alone = kl_pinv(one, 0);
        double *Q = values_of(alone), *p = P + k * each, *v = A + k * each;
        double c = k == TINY ? big : k == HUGE_ONE ? 1 / big : 1;
        CHECK(Q && !memcmp(Q, p, (size_t)each * sizeof *Q));
        for (int i = 0; i < each && k != INVALID; i++)
            v[i] *= c, p[i] /= c;
        static double vp[40 * 40], pv[40 * 40];
        double zero[40 * 40] = {0};
        for (int i = 0; i < m * m; i++) {
            vp[i] = 0;
            for (int j = 0; j < n; j++)
                vp[i] += v[i / m * n + j] * p[j * m + i % m];
        }
        for (int i = 0; i < n * n; i++) {
            pv[i] = 0;
            for (int j = 0; j < m; j++)
                pv[i] += p[i / n * m + j] * v[j * n + i % n];
        }
        double scale = 1e-300;
        for (int i = 0; i < each; i++)
            scale = fmax(scale, fabs(p[i]));
        if (k == INVALID) {
            for (int i = 0; i < each; i++)
                CHECK(isnan(p[i]));
        } else {
            CHECK(error_of(vp, false, v, v, m, m, n) < tolerance * fmax(1, scale));
            CHECK(error_of(pv, false, p, p, n, n, m) < tolerance * fmax(1, scale) * scale);
            for (int i = 0; i < m * m; i++)
                CHECK(fabs(vp[i] - vp[i % m * m + i / m]) < tolerance * fmax(1, scale));
            for (int i = 0; i < n * n; i++)
                CHECK(fabs(pv[i] - pv[i % n * n + i / n]) < tolerance * fmax(1, scale));
        }
        if (k == ZERO)
            CHECK(!memcmp(p, zero, (size_t)each * sizeof *p));
        free(Q);
        kl_release(one), kl_release(alone);
    }
    CHECK(A && P);
    free(A), free(P);
    kl_release(x), kl_release(y);
}

/* Singular values beside the tolerance: up to it they count as 0, however the matrix is computed. */
static void pseudoinverse_limits(void)
{
    for (int i = 0; i < 12; i++) {
        double limit = i % 2 ? 1e-3 : 0x1p-10, s = limit * (i < 2 ? 0.5 : i < 4 ? 1 - 0x1p-40 : i < 6 ? 1 + 0x1p-40
                                                            : i < 8 ? 4 : i < 10 ? 7.99 : 64);
        kl_tensor a = f64(D(2, 2), (double[]){0, s, -1, 0}), p = kl_pinv(a, limit);
        double *v = values_of(p);
        CHECK(v && fabs(v[1] + 1) < 1e-14 && fabs(v[2] * s - (i > 3)) < 1e-12 && v[0] == 0 && v[3] == 0);
        free(v);
        kl_release(a), kl_release(p);
    }
}

/* ---- LU ---- */

static void lu(int m, int n)
{
    enum { B = 3 };
    static double a[MAX_SIZE], rows[MAX_SIZE];
    int k = m < n ? m : n;
    fill(3 * m + n, B * m * n, a);
    for (int i = 0; i < m * n; i++)
        a[m * n + i] = i / n == 1 ? a[m * n + i] : 0; /* one row is not 0 */
    kl_tensor x = f64(D(B, m, n), a), l, u, p = kl_lu(x, &l, &u);
    SHAPE(p, B, m);
    SHAPE(l, B, m, k);
    SHAPE(u, B, k, n);
    double *P = values_of(p), *L = values_of(l), *U = values_of(u);
    for (int b = 0; b < B && P && L && U; b++) {
        bool triangular = true;
        for (int i = 0; i < m; i++)
            for (int j = 0; j < k; j++) {
                double v = L[(b * m + i) * k + j];
                triangular &= j > i ? v == 0 : j == i ? v == 1 : fabs(v) <= 1;
            }
        for (int i = 0; i < k; i++)
            for (int j = 0; j < i; j++)
                triangular &= U[(b * k + i) * n + j] == 0;
        CHECK(triangular);
        for (int i = 0; i < m; i++)
            memcpy(rows + i * n, a + (b * m + (int)P[b * m + i]) * n, (size_t)n * sizeof *rows);
        CHECK(error_of(L + b * m * k, false, U + b * k * n, rows, m, k, n) < 1e-13);
    }
    CHECK(P && L && U);
    free(P), free(L), free(U);
    kl_release(x), kl_release(p), kl_release(l), kl_release(u);
}

static void determinants(void)
{
    double a[3 * 4 * 4];
    fill(5, 48, a);
    kl_tensor x = f64(D(3, 4, 4), a), size, sign = kl_slogdet(x, &size), d = kl_det(x);
    double *want = values_of(d);
    NEAR(kl_mul(sign, kl_exp(size)), 3, want, 1e-13);
    free(want);
    kl_release(sign), kl_release(size), kl_release(d), kl_release(x);
    sign = kl_slogdet(f64(D(2, 2), (double[]){1, 2, 2, 4}), &size);
    NEAR_LIST(sign, 0, 0);
    NEAR_LIST(size, 0, -INFINITY);
    sign = kl_slogdet(kl_zeros(dev, KL_F32, D(2, 0, 0)), &size);
    NEAR_LIST(sign, 0, 1, 1);
    NEAR_LIST(size, 0, 0, 0);
    x = kl_mul_scalar(kl_eye(dev, KL_F64, 40, 40), -1e-30);
    sign = kl_slogdet(x, &size);
    NEAR_LIST(sign, 0, 1);
    NEAR_LIST(size, 1e-14, 40 * log(1e-30));
    kl_release(x);
}

/* ---- exponentials ---- */

static void exponentials(void)
{
    double c = cos(20.), s = sin(20.);
    double a[] = {0, 1, 0, 0, 0, 20, -20, 0, -700, 0, 0, 3};
    NEAR_LIST(kl_expm(f64(D(3, 2, 2), a)), 1e-12, 1, 1, 0, 1, c, s, -s, c, exp(-700.), 0, 0, exp(3.));
    NEAR_LIST(kl_expm(input(KL_F32, D(3, 2, 2), a)), 1e-4, 1, 1, 0, 1, c, s, -s, c, 0, 0, 0, exp(3.));
    NEAR_LIST(kl_expm(f64(D(2, 1, 1), (double[]){NAN, -INFINITY})), 0, NAN, NAN);
    kl_tensor none = kl_expm(kl_zeros(dev, KL_F64, D(2, 0, 0)));
    SHAPE(none, 2, 0, 0);
    kl_release(none);
}

/* ---- gradients ---- */

static kl_tensor flat(kl_tensor a) { return kl_reshape(a, 1, (int64_t[]){-1}); }
static kl_tensor joined(kl_tensor a, kl_tensor b) { return kl_concat(2, (kl_tensor[]){flat(a), flat(b)}, 0); }
static kl_tensor spread(kl_tensor x) /* with singular values that differ */
{
    int64_t d[KL_MAX_RANK];
    int r = kl_shape(x, d);
    kl_tensor big = kl_mul(kl_eye(dev, KL_F64, d[r - 2], d[r - 1]), kl_linspace(dev, KL_F64, 3, 9, d[r - 1]));
    return kl_add(x, big);
}
static kl_tensor g_eigh(kl_tensor x)
{
    kl_tensor v, l = kl_eigh(spread(x), &v);
    return joined(l, kl_square(v));
}
static kl_tensor g_svd(kl_tensor x)
{
    kl_tensor s, t, u = kl_svd(spread(x), &s, &t);
    return joined(joined(s, kl_square(u)), kl_square(t));
}
static kl_tensor g_pinv(kl_tensor x) { return kl_pinv(spread(x), 0); }
static kl_tensor g_lstsq(kl_tensor x) { return kl_lstsq(spread(kl_narrow(x, 1, 0, 3)), kl_narrow(x, 1, 3, 2), 0); }
static kl_tensor g_lu(kl_tensor x)
{
    kl_tensor l, u;
    kl_lu(kl_sub(kl_flip(spread(x), 1, (int[]){-2}), x), &l, &u);
    return joined(l, u);
}
static kl_tensor g_slogdet(kl_tensor x)
{
    kl_tensor size;
    kl_slogdet(spread(x), &size);
    return size;
}
static kl_tensor g_expm(kl_tensor x) { return kl_expm(x); }
static kl_tensor g_expm_large(kl_tensor x) { return kl_expm(kl_mul_scalar(x, 3)); }
static kl_tensor g_second(kl_tensor x)
{
    kl_requires_grad(x);
    kl_tensor l = kl_eigh(spread(x), NULL);
    return kl_grad(kl_sum_all(kl_exp(kl_mul_scalar(l, 0.1))), x);
}

static kl_tensor e_svd(kl_tensor x)
{
    kl_tensor s, t;
    kl_svd(x, &s, &t);
    return s;
}
static kl_tensor e_lu(kl_tensor x)
{
    kl_tensor l, u;
    kl_lu(x, &l, &u);
    return u;
}
static kl_tensor e_qr(kl_tensor x)
{
    kl_tensor r;
    kl_qr(x, &r);
    return r;
}
static kl_tensor e_slogdet(kl_tensor x)
{
    kl_tensor size;
    kl_slogdet(x, &size);
    return size;
}
static kl_tensor e_pinv(kl_tensor x) { return kl_pinv(x, 0); }

/* The gradient of nothing is empty, not an error. */
static void empty_gradients(void)
{
    static kl_tensor (*const functions[])(kl_tensor) = {e_svd, e_lu, e_qr, e_slogdet, e_pinv, kl_det, kl_expm};
    for (size_t i = 0; i < 2 * sizeof functions / sizeof *functions; i++) {
        kl_tensor x = kl_zeros(dev, KL_F64, 3, i % 2 ? (int64_t[]){0, 3, 3} : (int64_t[]){2, 0, 0});
        kl_requires_grad(x);
        kl_tensor g = kl_grad(kl_sum_all(functions[i / 2](x)), x);
        SHAPE(g, i % 2 ? 0 : 2, i % 2 ? 3 : 0, i % 2 ? 3 : 0);
        kl_release(g), kl_release(x);
    }
}

static void gradients(void)
{
    empty_gradients();
    GRADIENT(g_eigh, 4, 4);
    GRADIENT(g_eigh, 2, 3, 3);
    GRADIENT(g_second, 3, 3);
    GRADIENT(g_svd, 3, 3);
    GRADIENT(g_svd, 2, 4, 2);
    GRADIENT(g_svd, 3, 4);
    GRADIENT(g_pinv, 3, 3);
    GRADIENT(g_pinv, 4, 2);
    GRADIENT(g_pinv, 2, 2, 3);
    GRADIENT(g_lstsq, 5, 5);
    GRADIENT(g_lstsq, 2, 5);
    GRADIENT(g_lu, 2, 3, 3);
    GRADIENT(g_lu, 5, 3);
    GRADIENT(g_lu, 3, 5);
    GRADIENT(g_slogdet, 2, 3, 3);
    GRADIENT(g_expm, 2, 3, 3);
    GRADIENT(g_expm_large, 3, 3);
    kl_tensor one = kl_ones(dev, KL_F64, D(1, 1));
    kl_requires_grad(one);
    NEAR_LIST(kl_grad(kl_mul_scalar(kl_expm(one), 1e12), one), 0.1, 1e12 * exp(1.));
    /* the sum of squares of equal eigenvalues, of equal singular values */
    kl_tensor x = kl_eye(dev, KL_F64, 3, 3), s, t;
    kl_requires_grad(x);
    NEAR_LIST(kl_grad(kl_sum_all(kl_square(kl_eigh(x, NULL))), x), 1e-14, 2, 0, 0, 0, 2, 0, 0, 0, 2);
    kl_svd(x, &s, &t);
    NEAR_LIST(kl_grad(kl_sum_all(kl_square(s)), x), 1e-14, 2, 0, 0, 0, 2, 0, 0, 0, 2);
}

/* ---- batches ---- */

static kl_status values_of_one(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_eigh(in[0], NULL);
    return KL_OK;
}

static void batches(void)
{
    double a[6 * 9];
    fill(8, 54, a);
    kl_tensor x = f64(D(6, 3, 3), a), l = kl_eigh(x, NULL), y;
    double *want = values_of(l);
    OK(kl_vmap(values_of_one, NULL, 1, &x, NULL, 1, NULL, KL_RANDOM_ERROR, &y));
    NEAR(y, 18, want, 0);
    int64_t n = kl_symbol("n", 1, 16);
    for (int count = 2; count <= 6 && want; count += 2) {
        OK(kl_trace_begin("symbolic"));
        kl_tensor in = kl_input_symbolic(dev, KL_F64, 3, (int64_t[]){n, 3, 3}, (int64_t[]){count, 3, 3}, a), v, s, t, u;
        kl_tensor values = kl_keep(kl_eigh(in, &v));
        kl_svd(in, &s, &t);
        kl_lu(in, &t, &u);
        s = kl_keep(s), u = kl_keep(kl_slogdet(in, &t)), v = kl_keep(kl_expm(in));
        OK(kl_trace_end());
        NEAR(values, count * 3, want, 0);
        SHAPE(s, count, 3);
        SHAPE(u, count);
        SHAPE(v, count, 3, 3);
        kl_release(s), kl_release(u), kl_release(v);
    }
    free(want);
    kl_release(x), kl_release(l);
}

/* ---- misuse ---- */

static void refused(void)
{
    kl_tensor a = kl_zeros(dev, KL_F32, D(2, 3)), i = kl_zeros(dev, KL_I32, D(2, 2)), l, u;
    kl_tensor sq = kl_zeros(dev, KL_F32, D(2, 2)), v = kl_zeros(dev, KL_F32, D(3)), d = kl_zeros(dev, KL_F64, D(2, 2));
    kl_set_name(a, "weights");
    REFUSED(kl_eigh(a, NULL), KL_ERR_SHAPE, "eigh: needs [...,n,n], got \"weights\" [2,3]");
    REFUSED(kl_eigh(i, NULL), KL_ERR_TYPE, "eigh: needs a floating dtype, got i32");
    REFUSED(kl_svd(v, &l, &u), KL_ERR_SHAPE, "svd: needs [...,m,n], got [3]");
    REFUSED(kl_svd(a, NULL, &u), KL_ERR_ARGUMENT, "svd: s is NULL");
    REFUSED(kl_lu(a, &l, NULL), KL_ERR_ARGUMENT, "lu: u is NULL");
    REFUSED(kl_slogdet(sq, NULL), KL_ERR_ARGUMENT, "slogdet: logarithm is NULL");
    REFUSED(kl_slogdet(a, &l), KL_ERR_SHAPE, "slogdet: needs [...,n,n], got \"weights\" [2,3]");
    REFUSED(kl_expm(a), KL_ERR_SHAPE, "expm: needs [...,n,n], got \"weights\" [2,3]");
    REFUSED(kl_pinv(a, 1), KL_ERR_ARGUMENT, "pinv: the tolerance 1 is outside of 0..1");
    REFUSED(kl_lstsq(sq, v, 0), KL_ERR_SHAPE, "lstsq: the right side must be [...,2,k]", "got [3]");
    REFUSED(kl_lstsq(sq, d, 0), KL_ERR_TYPE, "lstsq: the right side is f64, the matrix f32");
    REFUSED(kl_eigh(kl_none, NULL), KL_ERR_HANDLE, "eigh: the matrix");
    kl_release(a), kl_release(i), kl_release(sq), kl_release(v), kl_release(d);
    NEAR_LIST(kl_expm(kl_zeros(dev, KL_F64, D(1, 1))), 0, 1); /* the next call works */
}

static void test(kl_device device)
{
    dev = device;
    OK(kl_scope_begin());
    least_squares();
    static const int sizes[][2] = {{1, 4}, {3, 2}, {5, 9}, {17, 16}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        pseudoinverses(i % 2 ? KL_F32 : KL_F64, sizes[i][0], sizes[i][1]);
    pseudoinverse_limits();
    for (int i = 1; i < 8; i++)
        lu(i, 8 - i), lu(i, i);
    determinants();
    exponentials();
    gradients();
    batches();
    refused();
    OK(kl_scope_end());
}

int main(void) { return on_devices(test); }
