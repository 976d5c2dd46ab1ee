/* Factors, equations, determinants and Fourier transforms: against plain loops in double, of odd sizes and of nothing,
 * their gradients against differences, and misuse. */
#include "tests/support/api_numbers.h"
#include "tests/support/api_refused.h"

/* A tensor of numbers that do not depend on one another, unlike noise, whose matrices have rank 2. */
static kl_tensor mixed(int from, int rank, const int64_t *dims, double *v)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    for (int i = 0; i < n; i++)
        v[i] = noise((from + i) * (from + 3 * i));
    return f64(rank, dims, v);
}

/* max |x y - want| of [n, k] [k, m] */
static double product_error(const double *x, const double *y, const double *want, int n, int k, int m)
{
    double worst = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            double s = 0;
            for (int p = 0; p < k; p++)
                s += x[i * k + p] * y[p * m + j];
            worst = fmax(worst, fabs(s - want[i * m + j]));
        }
    return worst;
}

static void transpose(const double *x, double *y, int n, int m)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++)
            y[j * n + i] = x[i * m + j];
}

static void factors(int n)
{
    double x[2 * 100], spd[2 * 100], t[100];
    kl_release(mixed(n, D(2, n, n), x));
    for (int b = 0; b < 2; b++) { /* x x^T + identity */
        transpose(x + b * n * n, t, n, n);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                spd[(b * n + i) * n + j] = i == j;
                for (int k = 0; k < n; k++)
                    spd[(b * n + i) * n + j] += x[(b * n + i) * n + k] * t[k * n + j];
            }
    }
    kl_tensor a = f64(D(2, n, n), spd), l = kl_cholesky(a);
    double *v = values_of(l);
    bool lower = v != NULL;
    for (int b = 0; v && b < 2; b++) {
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                lower &= j > i ? v[(b * n + i) * n + j] == 0 : i != j || v[(b * n + i) * n + j] > 0;
        transpose(v + b * n * n, t, n, n);
        CHECK(product_error(v + b * n * n, t, spd + b * n * n, n, n, n) < 1e-12);
    }
    CHECK(lower);
    free(v);
    kl_release(a), kl_release(l);
}

/* Which of the four, checked by its product. */
static void triangles(int n, int m, bool upper, bool transposed)
{
    double x[100], b[100], read[100], t[100];
    kl_release(mixed(3 * n, D(n, n), x));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            x[i * n + j] += i == j ? 3 : 0;
            bool in = upper ? j >= i : j <= i;
            read[i * n + j] = in ? x[i * n + j] : 0;
            x[i * n + j] = in ? x[i * n + j] : NAN; /* is not read */
        }
    kl_tensor a = f64(D(n, n), x), right = noisy(m, D(n, m), b), y = kl_triangular_solve(a, right, upper, transposed);
    double *v = values_of(y);
    transpose(read, t, n, n);
    CHECK(v && product_error(transposed ? t : read, v, b, n, n, m) < 1e-12);
    free(v);
    kl_release(a), kl_release(right), kl_release(y);
}

static void orthogonal(int n, int m)
{
    double x[2 * 100], t[100], one[100];
    int k = n < m ? n : m;
    kl_tensor a = mixed(n + 7 * m, D(2, n, m), x), r, q = kl_qr(a, &r);
    SHAPE(q, 2, n, k);
    SHAPE(r, 2, k, m);
    double *vq = values_of(q), *vr = values_of(r);
    for (int b = 0; vq && vr && b < 2; b++) {
        bool upper = true;
        for (int i = 0; i < k; i++)
            for (int j = 0; j < m; j++)
                upper &= j >= i || vr[(b * k + i) * m + j] == 0;
        for (int i = 0; i < k * k; i++)
            one[i] = i / k == i % k;
        transpose(vq + b * n * k, t, n, k);
        CHECK(upper);
        CHECK(product_error(t, vq + b * n * k, one, k, n, k) < 1e-13);
        CHECK(product_error(vq + b * n * k, vr + b * k * m, x + b * n * m, n, k, m) < 1e-12);
    }
    CHECK(vq && vr);
    free(vq), free(vr);
    kl_release(a), kl_release(q), kl_release(r);
}

static double determinant(const double *x, int n)
{
    double m[100], d = 1;
    memcpy(m, x, sizeof(double) * (size_t)(n * n));
    for (int j = 0; j < n; j++) {
        int p = j;
        for (int i = j; i < n; i++)
            p = fabs(m[i * n + j]) > fabs(m[p * n + j]) ? i : p;
        for (int k = 0; k < n; k++) {
            double s = m[j * n + k];
            m[j * n + k] = m[p * n + k], m[p * n + k] = s;
        }
        d *= p == j ? m[j * n + j] : -m[j * n + j];
        for (int i = j + 1; i < n; i++)
            for (int k = n - 1; k >= j; k--)
                m[i * n + k] -= m[i * n + j] / m[j * n + j] * m[j * n + k];
    }
    return d;
}

static void equations(int n, int m)
{
    double x[2 * 100], b[2 * 100], one[100], d[2];
    kl_tensor a = mixed(5 * n, D(2, n, n), x), right = noisy(11, D(2, n, m), b);
    x[0] = 0; /* wants a pivot */
    kl_release(a), a = f64(D(2, n, n), x);
    if (n == 1)
        x[0] = 0.5, kl_release(a), a = f64(D(2, n, n), x);
    double *y = values_of(kl_solve(a, right)), *v = values_of(kl_inverse(a));
    for (int i = 0; i < n * n; i++)
        one[i] = i / n == i % n;
    for (int k = 0; k < 2; k++) {
        CHECK(y && product_error(x + k * n * n, y + k * n * m, b + k * n * m, n, n, m) < 1e-10);
        CHECK(v && product_error(x + k * n * n, v + k * n * n, one, n, n, n) < 1e-10);
        d[k] = determinant(x + k * n * n, n);
    }
    NEAR(kl_det(a), 2, d, 1e-12);
    free(y), free(v);
    kl_release(a), kl_release(right);
}

static void special(void)
{
    kl_tensor none = kl_zeros(dev, KL_F32, D(3, 0, 0)), wide = kl_zeros(dev, KL_F32, D(3, 0, 2)), r, q;
    NEAR_LIST(kl_det(none), 0, 1, 1, 1);
    q = kl_cholesky(none);
    SHAPE(q, 3, 0, 0);
    kl_release(q), q = kl_inverse(none);
    SHAPE(q, 3, 0, 0);
    kl_release(q), q = kl_solve(none, wide);
    SHAPE(q, 3, 0, 2);
    kl_release(q), q = kl_qr(wide, &r);
    SHAPE(q, 3, 0, 0);
    SHAPE(r, 3, 0, 2);
    kl_release(q), kl_release(r), kl_release(none), kl_release(wide);
    kl_tensor a = f64(D(2, 2), (double[]){1, 2, 2, 4}), zero = kl_zeros(dev, KL_F64, D(2, 2)), h;
    NEAR_LIST(kl_det(a), 0, 0);
    NEAR_LIST(kl_cholesky(zero), 0, NAN, 0, NAN, NAN);
    q = kl_qr(zero, &r);
    NEAR_LIST(q, 0, 1, 0, 0, 1);
    NEAR_LIST(r, 0, 0, 0, 0, 0);
    kl_release(zero), h = kl_cast(a, KL_F16), q = kl_qr(h, &r);
    CHECK(kl_dtype_of(q) == KL_F16 && kl_dtype_of(r) == KL_F16);
    kl_tensor c = kl_cholesky(h), i = kl_inverse(h);
    CHECK(kl_dtype_of(c) == KL_F16 && kl_dtype_of(i) == KL_F16);
    kl_release(c), kl_release(i);
    kl_release(a), kl_release(h), kl_release(q), kl_release(r);
}

/* ---- small matrices in a batch are straight code, alone they may be loops: the same bits ---- */

static kl_tensor one_of(kl_tensor a, int i) { return kl_squeeze(kl_narrow(a, 0, i, 1), 0); }

static void same_bits(kl_tensor batch, int i, kl_tensor alone, int line)
{
    double *x = values_of(one_of(batch, i)), *y = values_of(alone);
    bool ok = x && y;
    for (int64_t k = 0; ok && k < kl_numel(alone); k++)
        ok = (isnan(x[k]) && isnan(y[k])) || !memcmp(&x[k], &y[k], sizeof *x);
    check_at(ok, line, "a matrix in a batch has the bits that it has alone");
    free(x), free(y);
}

/* Small integers: pivots are equal, or 0. */
static void batched(int n, int m)
{
    enum { B = 9 };
    double a[B * 64], b[B * 64], s[B * 64];
    kl_scope_begin();
    for (int i = 0; i < B * n * n; i++)
        a[i] = (double)((i * 7 + i / 5 * 3 + i % 11) % 5 - 2), s[i] = noise(i);
    for (int i = 0; i < B * n * m; i++)
        b[i] = (double)(i % 7 - 3);
    for (int i = 0; i < n * n; i++) /* matrix 1: a column of zeros; 2: zeros; 3: a NaN */
        a[n * n + i] = i % n ? a[n * n + i] : 0, a[2 * n * n + i] = 0, a[3 * n * n + i] = i == n ? NAN : i;
    kl_tensor A = f64(D(B, n, n), a), R = f64(D(B, n, m), b), S = f64(D(B, n, n), s);
    S = kl_add(kl_matmul(S, kl_transpose(S, 1, 2)), kl_eye(dev, KL_F64, n, n));
    kl_tensor solved = kl_solve(A, R), det = kl_det(A), L = kl_cholesky(S), up = kl_triangular_solve(S, R, true, false);
    kl_tensor down = kl_triangular_solve(S, R, false, false), across = kl_triangular_solve(S, R, true, true);
    for (int i = 0; i < B; i++) {
        kl_tensor x = one_of(A, i), r = one_of(R, i), y = one_of(S, i);
        same_bits(solved, i, kl_solve(x, r), __LINE__);
        same_bits(det, i, kl_det(x), __LINE__);
        same_bits(L, i, kl_cholesky(y), __LINE__);
        same_bits(up, i, kl_triangular_solve(y, r, true, false), __LINE__);
        same_bits(down, i, kl_triangular_solve(y, r, false, false), __LINE__);
        same_bits(across, i, kl_triangular_solve(y, r, true, true), __LINE__);
    }
    NEAR_LIST(kl_narrow(det, 0, 1, 3), 0, 0, 0, NAN);
    OK(kl_scope_end());
}

/* Batches and columns of a right side may have symbolic lengths. */
static void symbolic(void)
{
    double a[4 * 9], b[4 * 9];
    int64_t n = kl_symbol("n", 1, 16), m = kl_symbol("m", 1, 16);
    kl_release(mixed(3, D(4, 3, 3), a)), kl_release(noisy(5, D(4, 3, 3), b));
    for (int columns = 1; columns <= 3; columns++) {
        OK(kl_trace_begin("symbolic"));
        kl_tensor x = kl_input_symbolic(dev, KL_F64, 4, (int64_t[]){1, n, 3, 3}, (int64_t[]){1, 4, 3, 3}, a);
        kl_tensor y = kl_input_symbolic(dev, KL_F64, 4, (int64_t[]){1, n, 3, m}, (int64_t[]){1, 4, 3, columns}, b);
        kl_tensor solved = kl_keep(kl_solve(x, y)), low = kl_keep(kl_triangular_solve(x, y, false, false));
        kl_tensor inverse = kl_keep(kl_inverse(x));
        OK(kl_trace_end());
        x = f64(D(1, 4, 3, 3), a), y = f64(D(1, 4, 3, columns), b);
        double *want = values_of(kl_solve(x, y));
        if (CHECK(want))
            NEAR(solved, 12 * columns, want, 0);
        free(want), want = values_of(kl_triangular_solve(x, y, false, false));
        if (CHECK(want))
            NEAR(low, 12 * columns, want, 0);
        free(want), want = values_of(kl_inverse(x));
        if (CHECK(want))
            NEAR(inverse, 36, want, 0);
        free(want);
    }
}

/* ---- Fourier transforms ---- */

static void fourier(int n, bool inverse)
{
    double *re = malloc(sizeof(double) * 2 * (size_t)n), *im = malloc(sizeof(double) * 2 * (size_t)n);
    double *want[2] = {calloc(2 * (size_t)n, sizeof(double)), calloc(2 * (size_t)n, sizeof(double))};
    for (int i = 0; i < 2 * n; i++)
        re[i] = noise(n + i), im[i] = noise(3 * n + 5 * i);
    for (int b = 0; b < 2; b++) /* a [n, 2], transformed along axis 0 */
        for (int k = 0; k < n; k++)
            for (int j = 0; j < n; j++) {
                double x = (inverse ? 1 : -1) * 2 * 3.14159265358979323846 * (double)((int64_t)j * k % n) / n;
                want[0][2 * k + b] += (re[2 * j + b] * cos(x) - im[2 * j + b] * sin(x)) / (inverse ? n : 1);
                want[1][2 * k + b] += (re[2 * j + b] * sin(x) + im[2 * j + b] * cos(x)) / (inverse ? n : 1);
            }
    kl_tensor r = f64(D(n, 2), re), i = f64(D(n, 2), im), z = kl_complex(r, i), y = kl_fft(z, 0, inverse);
    NEAR(kl_real(y), 2 * n, want[0], 1e-11);
    NEAR(kl_imag(y), 2 * n, want[1], 1e-11);
    kl_release(i), kl_release(z), kl_release(y);
    z = kl_rfft(r, -2), y = kl_irfft(z, 0, n);
    NEAR(y, 2 * n, re, 1e-12);
    kl_release(z), z = kl_fft(r, 0, false), y = kl_fft(z, 0, true);
    NEAR(kl_real(y), 2 * n, re, 1e-12);
    kl_release(r), kl_release(z), kl_release(y);
    free(re), free(im), free(want[0]), free(want[1]);
}

static void fourier_f32(void)
{
    enum { N = 3 * 1024 };
    static float x[N], back[N];
    double worst = 0;
    for (int i = 0; i < N; i++)
        x[i] = (float)noise(i);
    kl_tensor a = kl_input(dev, KL_F32, D(N), x), z = kl_fft(a, 0, false), y = kl_fft(z, 0, true), r = kl_real(y);
    OK(kl_read(r, back, sizeof back));
    for (int i = 0; i < N; i++)
        worst = fmax(worst, (double)fabsf(back[i] - x[i]));
    CHECK(worst < 2e-6);
    kl_release(a), kl_release(z), kl_release(y), kl_release(r);
}

/* ---- gradients ---- */

static kl_tensor positive(kl_tensor x)
{
    kl_tensor one = kl_eye(dev, KL_F64, 4, 4);
    return kl_add(kl_matmul(x, kl_transpose(x, -1, -2)), one);
}
static kl_tensor g_cholesky(kl_tensor x) { return kl_cholesky(positive(x)); }
static kl_tensor dominant(kl_tensor x) { return kl_add(x, kl_mul_scalar(kl_eye(dev, KL_F64, 4, 4), 3)); }
#define G_TRIANGLE(name, upper, transposed)                                                                            \
    static kl_tensor name(kl_tensor x)                                                                                 \
    {                                                                                                                  \
        return kl_triangular_solve(dominant(kl_narrow(x, 1, 0, 4)), kl_narrow(x, 1, 4, 2), upper, transposed);         \
    }
G_TRIANGLE(g_lower, false, false)
G_TRIANGLE(g_upper, true, false)
G_TRIANGLE(g_lower_t, false, true)
G_TRIANGLE(g_upper_t, true, true)
static kl_tensor g_solve(kl_tensor x) { return kl_solve(dominant(kl_narrow(x, 1, 0, 4)), kl_narrow(x, 1, 4, 2)); }
static kl_tensor g_inverse(kl_tensor x) { return kl_inverse(dominant(x)); }
static kl_tensor g_det(kl_tensor x) { return kl_det(dominant(x)); }
static kl_tensor g_qr(kl_tensor x)
{
    double v[64];
    int64_t dims[KL_MAX_RANK];
    kl_tensor r, q, far = mixed(4, kl_shape(x, dims), dims, v);
    q = kl_qr(kl_add(x, kl_mul_scalar(far, 2)), &r);
    return kl_concat(2, (kl_tensor[]){kl_reshape(q, 1, (int64_t[]){-1}), kl_reshape(r, 1, (int64_t[]){-1})}, 0);
}
static kl_tensor g_second(kl_tensor x) /* a gradient's gradient */
{
    kl_requires_grad(x);
    kl_tensor y = kl_sum_all(kl_square(kl_inverse(dominant(x))));
    return kl_grad(y, x);
}
static kl_tensor g_fft(kl_tensor x)
{
    kl_tensor z = kl_fft(kl_complex(kl_narrow(x, 0, 0, 1), kl_narrow(x, 0, 1, 1)), 1, false);
    return kl_concat(2, (kl_tensor[]){kl_real(z), kl_imag(z)}, 0);
}
static kl_tensor g_rfft(kl_tensor x) { return kl_imag(kl_rfft(x, 1)); }

static void misuse(void)
{
    kl_tensor a = kl_zeros(dev, KL_F32, D(2, 3)), s = kl_zeros(dev, KL_F32, D(3, 3));
    kl_tensor i = kl_zeros(dev, KL_I32, D(3, 3)), none = kl_zeros(dev, KL_F32, D(3, 0));
    kl_tensor h = kl_zeros(dev, KL_F16, D(3)), r;
    REFUSED(kl_cholesky(a), KL_ERR_SHAPE, "cholesky: ", "[...,n,n]", "[2,3]");
    REFUSED(kl_cholesky(i), KL_ERR_TYPE, "cholesky: ", "i32");
    REFUSED(kl_solve(s, a), KL_ERR_SHAPE, "solve: ", "[3,3] and [2,3]");
    REFUSED(kl_solve(s, i), KL_ERR_TYPE, "solve: ", "f32 and i32");
    REFUSED(kl_triangular_solve(s, a, true, true), KL_ERR_SHAPE, "triangular_solve: ");
    REFUSED(kl_inverse(a), KL_ERR_SHAPE, "inverse: ");
    REFUSED(kl_det(h), KL_ERR_SHAPE, "det: ", "[3]");
    REFUSED(kl_qr(a, NULL), KL_ERR_ARGUMENT, "qr: ", "NULL");
    REFUSED(kl_qr(h, &r), KL_ERR_SHAPE, "qr: ", "[3]");
    REFUSED(kl_fft(none, 1, false), KL_ERR_SHAPE, "fft: ", "[3,0]");
    REFUSED(kl_fft(h, 0, false), KL_ERR_TYPE, "fft: ", "f16");
    REFUSED(kl_fft(a, 2, false), KL_ERR_SHAPE, "fft: ", "axis 2");
    REFUSED(kl_irfft(a, 1, 7), KL_ERR_SHAPE, "irfft: ", "7", "4 bins");
    kl_release(a), kl_release(s), kl_release(i), kl_release(none), kl_release(h);
}

static void test(kl_device d)
{
    static const int sizes[] = {1, 2, 3, 7, 10};
    static const int lengths[] = {1, 2, 3, 8, 31, 37, 64, 96, 100, 131, 200, 262, 331, 1024};
    dev = d;
    kl_scope_begin();
    for (int k = 0; k < 5; k++) {
        int n = sizes[k];
        factors(n);
        for (int c = 0; c < 4; c++)
            triangles(n, 1 + k, c & 1, c & 2);
        orthogonal(n, n), orthogonal(n, 1 + k), orthogonal(1 + k, n);
        equations(n, 1 + k);
    }
    special();
    for (int k = 0; k < 14; k++)
        fourier(lengths[k], k & 1);
    fourier_f32();
    GRADIENT(g_cholesky, 4, 4);
    GRADIENT(g_cholesky, 2, 4, 4);
    GRADIENT(g_lower, 4, 6);
    GRADIENT(g_upper, 4, 6);
    GRADIENT(g_lower_t, 4, 6);
    GRADIENT(g_upper_t, 4, 6);
    GRADIENT(g_solve, 4, 6);
    GRADIENT(g_inverse, 2, 4, 4);
    GRADIENT(g_det, 3, 4, 4);
    GRADIENT(g_qr, 5, 3);
    GRADIENT(g_qr, 3, 5);
    GRADIENT(g_second, 4, 4);
    GRADIENT(g_fft, 2, 12);
    GRADIENT(g_rfft, 2, 9);
    symbolic();
    batched(2, 1), batched(3, 2), batched(5, 3), batched(8, 8);
    misuse();
    OK(kl_scope_end());
}

int main(void)
{
    return on_devices(test);
}
