/* Matrices that are computed by halves (frontend/nn/linalg/): residuals at the sizes where they begin to be, of
 * dependent columns, with what is not read NaN; the same bits in a batch as alone; gradients along a direction. */
#include "tests/support/api_numbers.h"

enum { MAX_ROWS = 200 };

static kl_tensor numbers(int from, int batch, int n, int m)
{
    static double v[2 * MAX_ROWS * MAX_ROWS];
    for (int i = 0; i < batch * n * m; i++)
        v[i] = noise((from + i) * (from + 3 * i));
    return f64(D(batch, n, m), v);
}

static kl_tensor transposed(kl_tensor a) { return kl_transpose(a, 1, 2); }
static kl_tensor identity(int n) { return kl_eye(dev, KL_F64, n, n); }

/* [B, n, n] n on the diagonal, and x's numbers */
static kl_tensor dominant(kl_tensor x, int n) { return kl_add(x, kl_mul_scalar(identity(n), n)); }
static kl_tensor positive(kl_tensor x, int n) { return dominant(kl_matmul(x, transposed(x)), n); }

static bool below(kl_tensor a, double limit)
{
    double max = kl_item_f64(kl_max(kl_abs(a), 3, (int[]){0, 1, 2}, false));
    if (!(max < limit))
        printf("the largest element is %g, not below %g\n", max, limit);
    return max < limit;
}

/* Each matrix of out = f(in, ..) has the bits of that which is computed of it alone. */
static void same_alone(kl_tensor batch, kl_tensor one, int i, int line)
{
    double *x = values_of(kl_narrow(batch, 0, i, 1)), *y = values_of(one);
    check_at(x && y && !memcmp(x, y, (size_t)kl_numel(one) * sizeof *x), line, "the same bits as alone");
    free(x), free(y);
}

static void cholesky(int n)
{
    kl_scope_begin();
    kl_tensor a = positive(numbers(n, 2, n, n), n), l = kl_cholesky(a);
    CHECK(below(kl_sub(kl_matmul(l, transposed(l)), a), 1e-11));
    CHECK(n == 1 || below(kl_triu(l, 1), 1e-300));
    for (int i = 0; i < 2; i++)
        same_alone(l, kl_cholesky(kl_narrow(a, 0, i, 1)), i, __LINE__);
    a = kl_sub(a, kl_mul_scalar(kl_pad(kl_ones(dev, KL_F64, D(1, 1)), (int64_t[]){n - 1, n - 1}, NULL, 0), 1e6));
    double *v = values_of(kl_narrow(kl_narrow(kl_cholesky(a), 1, n - 1, 1), 2, n - 1, 1));
    CHECK(v && isnan(v[0]) && isnan(v[1])); /* the last pivot is negative */
    free(v);
    OK(kl_scope_end());
}

static void triangles(int n, int m)
{
    for (int k = 0; k < 4; k++) {
        bool upper = k & 1, transpose = k & 2;
        kl_scope_begin();
        kl_tensor a = dominant(numbers(n + k, 2, n, n), n), b = numbers(m + k, 2, n, m);
        kl_tensor read = upper ? kl_triu(a, 0) : kl_tril(a, 0);
        kl_tensor ones = kl_ones(dev, KL_BOOL, D(n, n)), is_read = upper ? kl_triu(ones, 0) : kl_tril(ones, 0);
        a = kl_where(is_read, a, kl_const(dev, KL_F64, NAN));
        kl_tensor x = kl_triangular_solve(a, b, upper, transpose);
        CHECK(below(kl_sub(kl_matmul(transpose ? transposed(read) : read, x), b), 1e-12));
        for (int i = 0; i < 2; i++)
            same_alone(x, kl_triangular_solve(kl_narrow(a, 0, i, 1), kl_narrow(b, 0, i, 1), upper, transpose), i,
                       __LINE__);
        OK(kl_scope_end());
    }
}

/* Some columns are 0, or others' multiples. */
static void qr(int n, int m)
{
    kl_scope_begin();
    kl_tensor a = numbers(n + m, 2, n, m), r;
    kl_tensor column = kl_arange(dev, KL_I32, m), one = kl_narrow(a, 2, 3, 1);
    a = kl_where(kl_eq(column, kl_const(dev, KL_I32, 5)), kl_mul_scalar(one, 0), a);
    a = kl_where(kl_eq(column, kl_const(dev, KL_I32, m - 2)), kl_mul_scalar(one, -2), a);
    kl_tensor q = kl_qr(a, &r);
    int k = n < m ? n : m;
    CHECK(below(kl_sub(kl_matmul(transposed(q), q), identity(k)), 1e-12));
    CHECK(below(kl_sub(kl_matmul(q, r), a), 1e-12 * m));
    CHECK(below(kl_tril(r, -1), 1e-300));
    for (int i = 0; i < 2; i++)
        same_alone(q, kl_qr(kl_narrow(a, 0, i, 1), &r), i, __LINE__);
    OK(kl_scope_end());
}

/* zero: a column is 0, so that the matrix is singular */
static void equations(int n, int m, bool zero)
{
    kl_scope_begin();
    kl_tensor a = numbers(7 * n, 2, n, n), b = numbers(m, 2, n, m), column = kl_arange(dev, KL_I32, n);
    if (zero)
        a = kl_where(kl_eq(column, kl_const(dev, KL_I32, n - 3)), kl_mul_scalar(a, 0), a);
    kl_tensor x = kl_solve(a, b), y = kl_inverse(a), d = kl_det(a);
    CHECK(zero || below(kl_sub(kl_matmul(a, x), b), 1e-9));
    CHECK(zero || below(kl_sub(kl_matmul(y, a), identity(n)), 1e-9));
    kl_tensor root = kl_cholesky(kl_matmul(a, transposed(a))); /* |det a|, where it is not 0 */
    kl_tensor ratio = kl_div(d, kl_prod(kl_diagonal(root, 0, 1, 2), 1, (int[]){1}, false));
    double *v = values_of(ratio), *own = values_of(d);
    for (int i = 0; i < 2; i++) {
        CHECK(v && own && (zero ? own[i] == 0 : fabs(fabs(v[i]) - 1) < 1e-6));
        same_alone(x, kl_solve(kl_narrow(a, 0, i, 1), kl_narrow(b, 0, i, 1)), i, __LINE__);
    }
    free(v), free(own);
    kl_tensor rows = kl_arange(dev, KL_I32, n); /* a permutation with a known sign: a rotation by one row */
    kl_tensor next = kl_mod(kl_add(rows, kl_const(dev, KL_I32, 1)), kl_const(dev, KL_I32, n));
    kl_tensor p = kl_cast(kl_eq(kl_unsqueeze(rows, 1), next), KL_F64);
    CHECK(kl_item_f64(kl_det(p)) == (n % 2 ? 1 : -1));
    OK(kl_scope_end());
}

/* ---- gradients along a direction, against central differences ---- */

enum { ROWS = 70, COLUMNS = 130 };
static kl_tensor d_cholesky(kl_tensor x) { return kl_cholesky(positive(kl_narrow(x, 2, 0, ROWS), ROWS)); }
static kl_tensor d_triangle(kl_tensor x)
{
    return kl_triangular_solve(dominant(kl_narrow(x, 2, 0, ROWS), ROWS), kl_narrow(x, 2, ROWS, 3), true, true);
}
static kl_tensor d_qr(kl_tensor x)
{
    kl_tensor r, q = kl_qr(dominant(kl_matmul(transposed(x), x), COLUMNS), &r);
    return kl_add(q, r);
}

static kl_tensor d_solve(kl_tensor x)
{
    kl_tensor a = dominant(kl_matmul(transposed(x), x), COLUMNS); /* COLUMNS is more than LU_BLOCK */
    kl_tensor logarithm = kl_log(kl_det(kl_mul_scalar(a, 1.0 / COLUMNS)));
    return kl_add(kl_solve(a, transposed(x)), logarithm);
}

static void gradient_along(kl_tensor (*f)(kl_tensor), int line)
{
    const double h = 1e-5;
    kl_scope_begin();
    kl_tensor x = numbers(line, 1, ROWS, COLUMNS), d = numbers(line + 1, 1, ROWS, COLUMNS), y = f(x);
    int64_t dims[KL_MAX_RANK];
    int rank = kl_shape(y, dims);
    kl_tensor w = kl_sin(kl_reshape(kl_arange(dev, KL_F64, kl_numel(y)), rank, dims));
    kl_requires_grad(x);
    kl_tensor gradient = kl_grad(kl_sum_all(kl_mul(f(x), w)), x);
    double got = kl_item_f64(kl_sum_all(kl_mul(gradient, d)));
    kl_tensor step = kl_mul_scalar(d, h);
    double up = kl_item_f64(kl_sum_all(kl_mul(f(kl_add(x, step)), w)));
    double down = kl_item_f64(kl_sum_all(kl_mul(f(kl_sub(x, step)), w))), want = (up - down) / (2 * h);
    check_at(fabs(got - want) <= 1e-6 * (1 + fabs(want)), line, "the gradient is that of differences");
    if (!(fabs(got - want) <= 1e-6 * (1 + fabs(want))))
        printf("%.12g, not %.12g\n", got, want);
    OK(kl_scope_end());
}

static void test(kl_device device)
{
    static const int rows[] = {65, 161};
    dev = device;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cholesky(rows[i]);
        triangles(rows[i], i ? 9 : 70);
    }
    qr(140, 161);
    gradient_along(d_cholesky, __LINE__);
    gradient_along(d_triangle, __LINE__);
    gradient_along(d_qr, __LINE__);
    equations(129, 3, false), equations(161, 130, true);
    gradient_along(d_solve, __LINE__);
}

int main(void) { return on_devices(test); }
