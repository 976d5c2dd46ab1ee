/* Eigenvalues and singular values: the properties that define them, of odd sizes, of nothing, of batches, singular,
 * with NaNs, of matrices with a structure; the same bits alone and in a batch. */
#include "tests/support/api_matrices.h"
#include <kiln/solve/solve.h>

/* ---- eigenvalues ---- */

static void eigenvalues(int n, kl_dtype dtype)
{
    enum { B = 3 };
    static double a[MAX_SIZE], left[MAX_SIZE], right[MAX_SIZE];
    double tolerance = (dtype == KL_F64 ? 2e-15 : 1e-6) * (n + 3);
    fill(n, B * n * n, a);
    for (int b = 0; b < B; b++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < i; j++)
                a[(b * n + i) * n + j] = a[(b * n + j) * n + i] = b == 1 ? 0 : a[(b * n + i) * n + j];
    kl_tensor x = input(dtype, D(B, n, n), a), v, l = kl_eigh(x, &v);
    SHAPE(l, B, n);
    SHAPE(v, B, n, n);
    double *values = values_of(l), *vectors = values_of(v);
    for (int b = 0; b < B && values && vectors; b++) {
        const double *V = vectors + b * n * n, *L = values + b * n;
        bool sorted = true;
        double size = 1;
        for (int j = 0; j < n; j++) {
            sorted &= !j || L[j] >= L[j - 1];
            size = fmax(size, fabs(L[j]));
            for (int i = 0; i < n; i++)
                left[i * n + j] = V[i * n + j] * L[j];
        }
        CHECK(sorted);
        CHECK(error_of(V, true, V, NULL, n, n, n) < tolerance);
        memcpy(right, a + b * n * n, sizeof(double) * (size_t)(n * n));
        CHECK(error_of(right, false, V, left, n, n, n) < tolerance * size);
    }
    CHECK(values && vectors);
    free(values), free(vectors);
    kl_release(x), kl_release(l), kl_release(v);
}

static void eigen_special(void)
{
    kl_tensor none = kl_zeros(dev, KL_F32, D(3, 0, 0)), empty = kl_zeros(dev, KL_F64, D(0, 2, 2)), v;
    kl_tensor l = kl_eigh(none, &v);
    SHAPE(l, 3, 0);
    SHAPE(v, 3, 0, 0);
    kl_release(l), kl_release(v), l = kl_eigh(empty, &v);
    SHAPE(l, 0, 2);
    SHAPE(v, 0, 2, 2);
    kl_release(l), kl_release(v), kl_release(none), kl_release(empty);
    NEAR_LIST(kl_eigh(f64(D(2, 2), (double[]){0, 0, 0, 0}), NULL), 0, 0, 0);
    NEAR_LIST(kl_eigh(f64(D(3, 3), (double[]){3, 0, 0, 0, -1, 0, 0, 0, 3}), NULL), 0, -1, 3, 3);
    NEAR_LIST(kl_eigh(f64(D(2, 2), (double[]){1e-200, 2e-200, 2e-200, 1e-200}), NULL), 1e-215, -1e-200, 3e-200);
    NEAR_LIST(kl_eigh(f64(D(1, 1), (double[]){-7}), NULL), 0, -7);
    /* only one of the matrices has no eigenvalues */
    double batch[] = {2, 1, 0, 1, 2, 0, 0, 0, 9, 1, NAN, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, INFINITY, 0, 0, 0, 1};
    kl_tensor x = f64(D(3, 3, 3), batch);
    l = kl_eigh(x, &v);
    NEAR_LIST(l, 1e-14, 1, 3, 9, NAN, NAN, NAN, NAN, NAN, NAN);
    kl_release(v), kl_release(x);
    kl_tensor h = input(KL_F16, D(2, 2), (double[]){2, 1, 1, 2});
    l = kl_eigh(h, NULL);
    CHECK(kl_dtype_of(l) == KL_F16);
    NEAR_LIST(l, 0, 1, 3);
    kl_release(h);
}

/* Are the n elements of matrix 3 in a batch those of the matrix alone? */
static void same_bits(kl_tensor all, kl_tensor alone, int n)
{
    double *a = values_of(all), *b = values_of(alone);
    CHECK(a && b && !memcmp(a + 3 * n, b, (size_t)n * sizeof(double)));
    free(a), free(b);
    kl_release(all), kl_release(alone);
}

/* A matrix has the same bits alone and among others, which may be computed in blocks. */
static void same_alone(int B, int N)
{
    static double a[MAX_SIZE];
    fill(3, B * N * N, a);
    kl_tensor x = f64(D(B, N, N), a), r[3], y = f64(D(N, N), a + 3 * N * N), q[3];
    r[0] = kl_eigh(x, &r[1]);
    q[0] = kl_eigh(y, &q[1]);
    same_bits(r[0], q[0], N), same_bits(r[1], q[1], N * N);
    r[0] = kl_svd(x, &r[1], &r[2]);
    q[0] = kl_svd(y, &q[1], &q[2]);
    same_bits(r[0], q[0], N * N), same_bits(r[1], q[1], N), same_bits(r[2], q[2], N * N);
    kl_release(x), kl_release(y);
}

/* ---- singular values ---- */

static void singular_values(int m, int n, kl_dtype dtype, int rank)
{
    enum { B = 2 };
    static double a[MAX_SIZE], us[MAX_SIZE];
    int k = m < n ? m : n;
    double tolerance = (dtype == KL_F64 ? 4e-15 : 2e-6) * (m + n);
    fill(m + 7 * n, B * m * n, a);
    for (int b = 0; b < B; b++) /* later columns are multiples of earlier ones */
        for (int i = 0; i < m; i++)
            for (int j = rank; j < n; j++)
                a[(b * m + i) * n + j] = rank ? a[(b * m + i) * n + j % rank] * (j + 1) : 0;
    kl_tensor x = input(dtype, D(B, m, n), a), s, t, u = kl_svd(x, &s, &t);
    SHAPE(u, B, m, k);
    SHAPE(s, B, k);
    SHAPE(t, B, k, n);
    double *U = values_of(u), *S = values_of(s), *T = values_of(t);
    for (int b = 0; b < B && U && S && T; b++) {
        bool sorted = true;
        for (int j = 0; j < k; j++) {
            sorted &= S[b * k + j] >= 0 && (!j || S[b * k + j] <= S[b * k + j - 1]);
            for (int i = 0; i < m; i++)
                us[i * k + j] = U[(b * m + i) * k + j] * S[b * k + j];
        }
        double size = 1 + S[b * k];
        CHECK(sorted);
        CHECK(error_of(U + b * m * k, true, U + b * m * k, NULL, k, m, k) < tolerance);
        for (int i = 0; i < k; i++) /* rows of T */
            for (int j = 0; j < k; j++) {
                double p = -(i == j);
                for (int c = 0; c < n; c++)
                    p += T[(b * k + i) * n + c] * T[(b * k + j) * n + c];
                if (!(fabs(p) < tolerance))
                    CHECK(!"the rows of vt are orthonormal");
            }
        CHECK(error_of(us, false, T + b * k * n, a + b * m * n, m, k, n) < tolerance * size);
        CHECK(rank >= k || S[b * k + rank] < tolerance * size);
    }
    CHECK(U && S && T);
    free(U), free(S), free(T);
    kl_release(x), kl_release(u), kl_release(s), kl_release(t);
}

static void singular_special(void)
{
    kl_tensor none = kl_zeros(dev, KL_F32, D(3, 0, 2)), s, t, u = kl_svd(none, &s, &t);
    SHAPE(u, 3, 0, 0);
    SHAPE(s, 3, 0);
    SHAPE(t, 3, 0, 2);
    kl_release(u), kl_release(s), kl_release(t);
    u = kl_pinv(none, 0);
    SHAPE(u, 3, 2, 0);
    kl_release(u), kl_release(none);
    u = kl_svd(f64(D(2, 2, 2), (double[]){1, 2, 3, NAN, 3e200, 0, 0, -4e200}), &s, &t);
    NEAR_LIST(s, 1e-15, NAN, NAN, 4e200, 3e200);
    kl_release(u), kl_release(t);
}

/* Symmetric matrices with which steps converge otherwise than with random ones. */
enum { GRADED_DOWN, GRADED_UP, WILKINSON, ZERO_DIAGONAL, EQUAL, ONES, DIAGONAL, STRUCTURES, STRUCTURED = 13 };
static double structured(int kind, int i, int j)
{
    int apart = abs(i - j);
    double x = noise(i * j + i + j);
    switch (kind) {
    case GRADED_DOWN: return x * pow(1e-3, i + j);
    case GRADED_UP:   return x * pow(1e-3, 2 * STRUCTURED - 2 - i - j);
    case WILKINSON:   return apart ? apart == 1 : abs(i - STRUCTURED / 2);
    case ZERO_DIAGONAL: return apart == 1;
    case EQUAL:       return !apart + 1e-14 * x;
    case ONES:        return 1;
    default:          return apart ? 0 : i % 3;
    }
}

/* |q diag(d) p - a|, q [n, n], p [n, n] or its transpose */
static double factors_error(const double *q, const double *d, const double *p, bool transposed, const double *a)
{
    enum { N = STRUCTURED };
    static double scaled[N * N], r[N * N];
    for (int i = 0; i < N * N; i++) {
        scaled[i] = q[i] * d[i % N];
        r[i] = p[transposed ? i % N * N + i / N : i];
    }
    return error_of(scaled, false, r, a, N, N, N);
}

static void structures(kl_dtype dtype)
{
    enum { N = STRUCTURED };
    double tolerance = dtype == KL_F64 ? 1e-13 : 1e-5;
    static double a[STRUCTURES * N * N];
    for (int i = 0; i < STRUCTURES * N * N; i++)
        a[i] = structured(i / (N * N), i / N % N, i % N);
    kl_tensor x = input(dtype, D(STRUCTURES, N, N), a), t[5];
    t[0] = kl_eigh(x, &t[1]);
    t[2] = kl_svd(x, &t[3], &t[4]);
    double *v[5];
    for (int i = 0; i < 5; i++)
        v[i] = values_of(t[i]);
    for (int k = 0; k < STRUCTURES; k++) {
        const double *vectors = v[1] + k * N * N, *u = v[2] + k * N * N, *vt = v[4] + k * N * N;
        bool ok = CHECK(factors_error(vectors, v[0] + k * N, vectors, true, a + k * N * N) < tolerance);
        ok &= CHECK(factors_error(u, v[3] + k * N, vt, false, a + k * N * N) < tolerance);
        ok &= CHECK(error_of(vectors, true, vectors, NULL, N, N, N) < tolerance);
        ok &= CHECK(error_of(u, true, u, NULL, N, N, N) < tolerance);
        ok &= CHECK(error_of(vt, true, vt, NULL, N, N, N) < tolerance);
        if (!ok)
            printf("structure %d of %s\n", k, kl_dtype_name(dtype));
    }
    for (int i = 0; i < 5; i++)
        free(v[i]), kl_release(t[i]);
    kl_release(x);
}

static void test(kl_device device)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 8, 9, 17}, shapes[][3] = {
        {1, 1, 1}, {3, 3, 3}, {5, 2, 2}, {2, 5, 5}, {8, 8, 8}, {9, 7, 7}, {17, 4, 4}, {4, 17, 17}, {1, 6, 6}, {6, 1, 1},
        {5, 4, 2}, {4, 4, 0}, {6, 6, 3}, {3, 7, 1},
    };
    dev = device;
    OK(kl_scope_begin());
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        eigenvalues(sizes[i], KL_F64);
        eigenvalues(sizes[i], KL_F32);
    }
    eigen_special();
    same_alone(5, 19), same_alone(12, 6);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        singular_values(shapes[i][0], shapes[i][1], i % 3 == 1 ? KL_F32 : KL_F64, shapes[i][2]);
    singular_special();
    structures(KL_F64), structures(KL_F32);
    OK(kl_scope_end());
}

int main(void) { return on_devices(test); }
