/* Banded and tridiagonal equations: residuals of odd sizes, batches and right sides, with elements that are not read,
 * zeros in the place of pivots, NaNs; gradients against differences; misuse. */
#include "tests/support/api_matrices.h"
#include "tests/support/api_refused.h"
#include <kiln/solve/solve.h>

/* ---- banded equations ---- */

static void banded(int n, int l, int u, int m)
{
    enum { B = 2 };
    static double ab[MAX_SIZE], a[MAX_SIZE], b[MAX_SIZE];
    int w = l + u + 1;
    fill(n + l + 3 * u, B * w * n, ab);
    fill(n, B * n * m, b);
    memset(a, 0, sizeof a);
    for (int k = 0; k < B; k++)
        for (int r = 0; r < w; r++)
            for (int j = 0; j < n; j++) {
                int i = j + r - u;
                double *v = &ab[(k * w + r) * n + j];
                if (i == 0 && j == 0 && l > 0 && u > 0 && n > 1)
                    *v = 0; /* wants a pivot */
                else if (i < 0 || i >= n)
                    *v = NAN; /* is not read */
                if (i >= 0 && i < n)
                    a[(k * n + i) * n + j] = *v;
            }
    kl_tensor x = f64(D(B, w, n), ab), right = f64(D(B, n, m), b), y = kl_banded_solve(x, l, u, right);
    double *v = values_of(y);
    for (int k = 0; k < B && v; k++)
        if (!CHECK(error_of(a + k * n * n, false, v + k * n * m, b + k * n * m, n, n, m) < 1e-9))
            printf("n %d, %d below, %d above, matrix %d\n", n, l, u, k);
    CHECK(v);
    free(v);
    kl_release(x), kl_release(right), kl_release(y);
}

static void tridiagonal(int B, int n, int m, kl_dtype dtype)
{
    static double d[3][MAX_SIZE], a[MAX_SIZE], b[MAX_SIZE];
    kl_tensor in[4], x;
    fill(n + m, B * n * m, b);
    memset(a, 0, sizeof a);
    for (int k = 0; k < 3; k++) {
        fill(n + k, B * n, d[k]);
        for (int i = 0; i < B * n; i++) {
            int row = i % n, column = row + k - 1;
            d[k][i] = (float)(k == 1 ? row % 3 ? d[k][i] : 0 : d[k][i]); /* zeros in the place of pivots */
            if (row == n - 1 && k == 1)
                d[k][i] = 5; /* not singular */
            if (column < 0 || column >= n)
                d[k][i] = NAN; /* is not read */
            else
                a[i * n + column] = d[k][i];
        }
        in[k] = input(dtype, D(B, n), d[k]);
    }
    in[3] = input(dtype, D(B, n, m), b);
    x = kl_tridiagonal_solve(in[0], in[1], in[2], in[3]);
    SHAPE(x, B, n, m);
    double *v = values_of(x), tolerance = dtype == KL_F64 ? 1e-10 : 2e-2;
    for (int k = 0; k < B && v; k++)
        if (!CHECK(error_of(a + k * n * n, false, v + k * n * m, b + k * n * m, n, n, m) < tolerance))
            printf("%d matrices of %d rows, %d right sides, matrix %d\n", B, n, m, k);
    CHECK(v);
    free(v);
    for (int k = 0; k < 4; k++)
        kl_release(in[k]);
    kl_release(x);
}

static void tridiagonal_special(void)
{
    double one[] = {4};
    NEAR_LIST(kl_tridiagonal_solve(f64(D(1), one), f64(D(1), one), f64(D(1), one), f64(D(1, 1), one)), 0, 1);
    kl_tensor empty = kl_zeros(dev, KL_F64, D(2, 0)), none = kl_tridiagonal_solve(empty, empty, empty,
                                                                                 kl_zeros(dev, KL_F64, D(2, 0, 3)));
    SHAPE(none, 2, 0, 3);
    kl_release(empty), kl_release(none);
    /* only one of the matrices is singular, has a NaN */
    double main[] = {2, 2, 0, 0, 1, NAN}, beside[6] = {0}, b[] = {2, 4, 1, 1, 1, 1};
    kl_tensor d = f64(D(3, 2), main), o = f64(D(3, 2), beside), right = f64(D(3, 2, 1), b);
    NEAR_LIST(kl_tridiagonal_solve(o, d, o, right), 0, 1, 2, NAN, NAN, NAN, NAN);
    kl_release(d), kl_release(o), kl_release(right);
    kl_tensor h = input(KL_F16, D(2), (double[]){2, 4});
    o = kl_zeros(dev, KL_F16, D(2));
    kl_tensor x = kl_tridiagonal_solve(o, h, o, kl_unsqueeze(h, -1));
    CHECK(kl_dtype_of(x) == KL_F16);
    NEAR_LIST(kl_cast(x, KL_F64), 0, 1, 1);
    kl_release(h), kl_release(o), kl_release(x);
}

/* ---- gradients ---- */

static kl_tensor g_banded(kl_tensor x)
{
    kl_tensor ab = kl_reshape(kl_narrow(x, 0, 0, 20), 2, (int64_t[]){4, 5});
    kl_tensor more = kl_pad(kl_full(dev, KL_F64, D(1, 5), 4), (int64_t[]){1, 0}, (int64_t[]){2, 0}, 0);
    return kl_banded_solve(kl_add(ab, more), 2, 1, kl_reshape(kl_narrow(x, 0, 20, 10), 2, (int64_t[]){5, 2}));
}
static kl_tensor g_tridiagonal(kl_tensor x)
{
    kl_tensor p[4];
    for (int i = 0; i < 4; i++)
        p[i] = kl_squeeze(kl_narrow(x, 0, i, 1), 0);
    return kl_tridiagonal_solve(p[0], kl_add_scalar(p[1], 4), p[2], kl_unsqueeze(p[3], -1));
}
static kl_tensor g_batch(kl_tensor x)
{
    kl_tensor p[3];
    for (int i = 0; i < 3; i++)
        p[i] = kl_squeeze(kl_narrow(x, 0, i, 1), 0);
    kl_tensor right = kl_reshape(kl_narrow(x, 0, 3, 2), 3, (int64_t[]){2, 3, 2});
    return kl_tridiagonal_solve(p[0], p[1], p[2], right);
}
static kl_tensor g_second(kl_tensor x)
{
    kl_requires_grad(x);
    return kl_grad(kl_sum_all(kl_square(g_tridiagonal(x))), x);
}

static void gradients(void)
{
    GRADIENT(g_banded, 30);
    GRADIENT(g_tridiagonal, 4, 5);
    GRADIENT(g_tridiagonal, 4, 1);
    GRADIENT(g_batch, 5, 2, 3);
    GRADIENT(g_second, 4, 3);
}

/* ---- misuse ---- */

static void refused(void)
{
    kl_tensor a = kl_zeros(dev, KL_F32, D(2, 3)), sq = kl_zeros(dev, KL_F32, D(2, 2)), v = kl_zeros(dev, KL_F32, D(3));
    kl_tensor w = kl_zeros(dev, KL_F64, D(3));
    REFUSED(kl_banded_solve(a, 1, 1, sq), KL_ERR_SHAPE, "1 diagonals below and 1 above have 3 rows, not 2");
    REFUSED(kl_banded_solve(a, -1, 1, sq), KL_ERR_ARGUMENT, "banded_solve: -1 diagonals below");
    REFUSED(kl_banded_solve(a, 0, 1, sq), KL_ERR_SHAPE, "banded_solve: the right side must be [...,3,k]", "[2,2]");
    REFUSED(kl_tridiagonal_solve(v, v, sq, sq), KL_ERR_SHAPE, "the three diagonals", "[3], [3] and [2,2]");
    REFUSED(kl_tridiagonal_solve(v, v, v, sq), KL_ERR_SHAPE, "tridiagonal_solve: the right side must be [...,3,k]");
    REFUSED(kl_tridiagonal_solve(v, v, w, sq), KL_ERR_SHAPE, "the three diagonals must be of one shape");
    REFUSED(kl_tridiagonal_solve(w, w, w, kl_none), KL_ERR_HANDLE, "the right side");
    kl_release(a), kl_release(sq), kl_release(v), kl_release(w);
}

static void test(kl_device device)
{
    dev = device;
    OK(kl_scope_begin());
    for (int n = 1; n < 8; n += 2)
        for (int l = 0; l < 4; l++)
            banded(n, l, 3 - l, 1 + n % 2);
    banded(6, 0, 0, 2), banded(40, 1, 1, 1);
    for (int n = 1; n < 8; n++)
        tridiagonal(n, n, 1 + n % 3, n % 2 ? KL_F64 : KL_F32);
    tridiagonal(1, 40, 1, KL_F64), tridiagonal(1, 39, 1, KL_F32), tridiagonal(32, 7, 1, KL_F64);
    tridiagonal(2, 33, 3, KL_F64);
    tridiagonal_special();
    gradients();
    refused();
    OK(kl_scope_end());
}

int main(void) { return on_devices(test); }
