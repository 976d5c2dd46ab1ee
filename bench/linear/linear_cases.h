/* The cases of bench/linear/linear.c: operands, Kiln's functions, LAPACK's, residuals. */
#ifndef BENCH_LINEAR_CASES_H
#define BENCH_LINEAR_CASES_H
#include "linear_lapack.h"
#include <kiln/solve/solve.h>
#include <math.h>

enum { LINEAR_RESULTS = 3 };

/* Matrices [B, rows, columns] or, of columns 0, vectors; LAPACK has `extra` rows of its own above. */
struct linear_operand { int64_t rows, columns, extra; double *v; char *column_major; };

struct linear {
    kl_device device;
    bool f64, failed; /* failed: out of memory */
    int64_t B, n;
    int count;        /* operands; Kiln's and the residual's */
    struct linear_operand in[LINEAR_ARRAYS];
    kl_tensor t[LINEAR_ARRAYS];
    struct linear_direct direct;
};

typedef void linear_record(const kl_tensor *in, kl_tensor *out);
typedef void linear_call(struct linear_direct *d);

struct linear_case {
    const char *name;
    void (*open)(struct linear *x);
    linear_record *own, *lapack; /* lapack NULL: Kiln has none */
    int64_t own_up_to;           /* n, with which a call takes seconds */
    linear_call *direct, *other; /* other: by the upper triangle; or NULL */
    int results;
    /* Result k of Kiln is array of the direct call, as a matrix, 'l'ower or 'u'pper triangle, 'c'olumn, 'v'ector or
     * 's'calar. */
    struct { int array; char form; } result[LINEAR_RESULTS];
    kl_tensor (*residual)(const kl_tensor *in, const kl_tensor *out); /* in, out in f64 */
};

/* ---- operands ---- */

static double linear_noise(uint64_t i)
{
    i = (i + 1) * 0x9e3779b97f4a7c15u;
    i = (i ^ i >> 29) * 0xbf58476d1ce4e5b9u;
    return (double)(i >> 32 & 0xffffff) / 0x800000 - 1; /* -1 to 1 */
}

static double *linear_zeros(struct linear *x, int64_t rows, int64_t columns)
{
    struct linear_operand *o = &x->in[x->count++];
    int64_t n = x->B * rows * (columns ? columns : 1);
    *o = (struct linear_operand){.rows = rows, .columns = columns, .v = calloc((size_t)n, sizeof(double))};
    x->failed |= !o->v;
    return o->v;
}

static double *linear_random(struct linear *x, int64_t rows, int64_t columns)
{
    double *v = linear_zeros(x, rows, columns);
    for (int64_t i = 0; v && i < x->B * rows * (columns ? columns : 1); i++)
        v[i] = linear_noise((uint64_t)i + (uint64_t)x->count * 0x1000000);
    return v;
}

static void open_two(struct linear *x) { linear_random(x, x->n, x->n), linear_random(x, x->n, x->n); }
static void open_equation(struct linear *x) { linear_random(x, x->n, x->n), linear_random(x, x->n, 1); }
static void open_tall(struct linear *x) { linear_random(x, 2 * x->n, x->n), linear_random(x, 2 * x->n, 1); }
static void open_one(struct linear *x) { linear_random(x, x->n, x->n); }

/* Determinants are neither huge nor tiny. */
static void open_scaled(struct linear *x)
{
    double *v = linear_random(x, x->n, x->n);
    for (int64_t i = 0; v && i < x->B * x->n * x->n; i++)
        v[i] *= sqrt(3 * M_E / (double)x->n);
}

static void open_small_norm(struct linear *x)
{
    double *v = linear_random(x, x->n, x->n);
    for (int64_t i = 0; v && i < x->B * x->n * x->n; i++)
        v[i] /= sqrt((double)x->n);
}

static void linear_symmetric(struct linear *x, double diagonal)
{
    int64_t n = x->n;
    double *v = linear_random(x, n, n);
    for (int64_t i = 0; v && i < x->B * n; i++) {
        double *a = v + i / n * n * n;
        for (int64_t j = 0; j < i % n; j++)
            a[i % n * n + j] = a[j * n + i % n];
        a[i % n * (n + 1)] += diagonal;
    }
}

static void open_symmetric(struct linear *x) { linear_symmetric(x, 0); }
static void open_definite(struct linear *x) { linear_symmetric(x, 2 * sqrt((double)x->n)); }

/* Diagonals, a right side, and the matrix for the residual. */
static void open_banded(struct linear *x)
{
    enum { WIDTH = LINEAR_LOWER + LINEAR_UPPER + 1 };
    int64_t n = x->n;
    double *d = linear_random(x, WIDTH, n), *b = linear_random(x, n, 1), *a = linear_zeros(x, n, n);
    x->in[0].extra = LINEAR_LOWER;
    for (int64_t i = 0; d && b && a && i < x->B * n * n; i++) {
        int64_t row = i / n % n, column = i % n, from = LINEAR_UPPER + row - column;
        if (from >= 0 && from < WIDTH)
            a[i] = d[(i / (n * n) * WIDTH + from) * n + column];
    }
}

static void open_tridiagonal(struct linear *x)
{
    int64_t n = x->n;
    double *d[3], *b, *a;
    for (int k = 0; k < 3; k++)
        d[k] = linear_random(x, n, 0);
    b = linear_random(x, n, 1);
    a = linear_zeros(x, n, n);
    for (int64_t i = 0; d[0] && d[1] && d[2] && b && a && i < x->B * n; i++)
        for (int k = 0; k < 3; k++)
            if (i % n + k - 1 >= 0 && i % n + k - 1 < n)
                a[i * n + i % n + k - 1] = d[k][i];
}

/* ---- Kiln's functions ---- */

static kl_tensor linear_t(kl_tensor a) { return kl_transpose(a, -1, -2); }

static kl_tensor linear_eye(kl_tensor a)
{
    int64_t dims[KL_MAX_RANK];
    int rank = kl_shape(a, dims);
    kl_tensor eye = kl_eye(kl_device_of(a), kl_dtype_of(a), dims[rank - 1], dims[rank - 1]);
    return kl_expand(eye, rank, dims);
}

static void own_product(const kl_tensor *in, kl_tensor *out) { out[0] = kl_matmul(in[0], in[1]); }
static void own_solve(const kl_tensor *in, kl_tensor *out) { out[0] = kl_solve(in[0], in[1]); }
static void own_inverse(const kl_tensor *in, kl_tensor *out) { out[0] = kl_inverse(in[0]); }
static void own_det(const kl_tensor *in, kl_tensor *out) { out[0] = kl_det(in[0]); }
static void own_cholesky(const kl_tensor *in, kl_tensor *out) { out[0] = kl_cholesky(in[0]); }
static void own_qr(const kl_tensor *in, kl_tensor *out) { out[0] = kl_qr(in[0], &out[1]); }
static void own_eigh(const kl_tensor *in, kl_tensor *out) { out[0] = kl_eigh(in[0], &out[1]); }
static void own_svd(const kl_tensor *in, kl_tensor *out) { out[0] = kl_svd(in[0], &out[1], &out[2]); }
static void own_lstsq(const kl_tensor *in, kl_tensor *out) { out[0] = kl_lstsq(in[0], in[1], 0); }
static void own_banded(const kl_tensor *in, kl_tensor *out)
{
    out[0] = kl_banded_solve(in[0], LINEAR_LOWER, LINEAR_UPPER, in[1]);
}
static void own_tridiagonal(const kl_tensor *in, kl_tensor *out)
{
    out[0] = kl_tridiagonal_solve(in[0], in[1], in[2], in[3]);
}
static void own_expm(const kl_tensor *in, kl_tensor *out) { out[0] = kl_expm(in[0]); }

static void by_lapack_solve(const kl_tensor *in, kl_tensor *out) { out[0] = kl_lapack_solve(in[0], in[1]); }
static void by_lapack_inverse(const kl_tensor *in, kl_tensor *out) { out[0] = kl_lapack_inverse(in[0]); }
static void by_lapack_det(const kl_tensor *in, kl_tensor *out) { out[0] = kl_lapack_det(in[0]); }
static void by_lapack_qr(const kl_tensor *in, kl_tensor *out) { out[0] = kl_lapack_qr(in[0], &out[1]); }
static void by_lapack_lstsq(const kl_tensor *in, kl_tensor *out) { out[0] = kl_lapack_lstsq(in[0], in[1]); }
static void by_lapack_expm(const kl_tensor *in, kl_tensor *out) { out[0] = kl_lapack_expm(in[0]); }
static void by_lapack_cholesky(const kl_tensor *in, kl_tensor *out) { out[0] = kl_lapack_cholesky(in[0]); }
static void by_lapack_eigh(const kl_tensor *in, kl_tensor *out) { out[0] = kl_lapack_eigh(in[0], &out[1]); }
static void by_lapack_svd(const kl_tensor *in, kl_tensor *out) { out[0] = kl_lapack_svd(in[0], &out[1], &out[2]); }

/* ---- residuals ---- */

static kl_tensor linear_largest(kl_tensor a)
{
    return kl_max(kl_abs(kl_reshape(a, 1, (int64_t[]){-1})), 1, (int[]){0}, false);
}

/* The largest difference relative to the largest reference. */
static kl_tensor linear_relative(kl_tensor difference, kl_tensor reference)
{
    return kl_div(linear_largest(difference), linear_largest(reference));
}

/* Do the columns have length 1 and right angles? */
static kl_tensor linear_orthonormal(kl_tensor a)
{
    kl_tensor product = kl_matmul(linear_t(a), a);
    return linear_largest(kl_sub(product, linear_eye(product)));
}

static kl_tensor linear_rest(kl_tensor a, kl_tensor x, kl_tensor b)
{
    return linear_relative(kl_sub(kl_matmul(a, x), b), kl_matmul(kl_abs(a), kl_abs(x)));
}

static kl_tensor residual_product(const kl_tensor *in, const kl_tensor *out)
{
    kl_tensor ones = kl_abs(kl_narrow(in[0], -1, 0, 1));
    kl_tensor want = kl_matmul(in[0], kl_matmul(in[1], ones));
    return linear_relative(kl_sub(kl_matmul(out[0], ones), want), want);
}
static kl_tensor residual_solve(const kl_tensor *in, const kl_tensor *out) { return linear_rest(in[0], out[0], in[1]); }
static kl_tensor residual_inverse(const kl_tensor *in, const kl_tensor *out)
{
    return linear_rest(in[0], out[0], linear_eye(in[0]));
}
/* The size by singular values. */
static kl_tensor residual_det(const kl_tensor *in, const kl_tensor *out)
{
    kl_tensor s, vt;
    int64_t dims[KL_MAX_RANK];
    kl_shape(in[0], dims);
    if (dims[1] > 64) /* then there is a LAPACK */
        kl_lapack_svd(in[0], &s, &vt);
    else
        kl_svd(in[0], &s, &vt);
    kl_tensor want = kl_prod(s, 1, (int[]){-1}, false);
    return linear_relative(kl_sub(kl_abs(out[0]), want), want);
}
static kl_tensor residual_cholesky(const kl_tensor *in, const kl_tensor *out)
{
    return linear_relative(kl_sub(kl_matmul(out[0], linear_t(out[0])), in[0]), in[0]);
}
static kl_tensor residual_qr(const kl_tensor *in, const kl_tensor *out)
{
    kl_tensor product = linear_relative(kl_sub(kl_matmul(out[0], out[1]), in[0]), in[0]);
    return kl_maximum(product, linear_orthonormal(out[0]));
}
static kl_tensor residual_eigh(const kl_tensor *in, const kl_tensor *out)
{
    kl_tensor product = kl_sub(kl_matmul(in[0], out[1]), kl_mul(out[1], kl_unsqueeze(out[0], -2)));
    return kl_maximum(linear_relative(product, out[0]), linear_orthonormal(out[1]));
}
static kl_tensor residual_svd(const kl_tensor *in, const kl_tensor *out)
{
    kl_tensor product = kl_sub(kl_matmul(kl_mul(out[0], kl_unsqueeze(out[1], -2)), out[2]), in[0]);
    return kl_maximum(linear_relative(product, out[1]), linear_orthonormal(linear_t(out[2])));
}
static kl_tensor residual_lstsq(const kl_tensor *in, const kl_tensor *out)
{
    kl_tensor rest = kl_sub(kl_matmul(in[0], out[0]), in[1]), t = linear_t(in[0]);
    return linear_relative(kl_matmul(t, rest), kl_matmul(kl_abs(t), kl_abs(in[1])));
}
static kl_tensor residual_banded(const kl_tensor *in, const kl_tensor *out)
{
    return linear_rest(in[2], out[0], in[1]);
}
static kl_tensor residual_tridiagonal(const kl_tensor *in, const kl_tensor *out)
{
    return linear_rest(in[4], out[0], in[3]);
}
/* By Taylor's series of a / 64, squared 6 times. */
static kl_tensor residual_expm(const kl_tensor *in, const kl_tensor *out)
{
    kl_tensor a = kl_mul_scalar(in[0], 1.0 / 64), sum = linear_eye(a);
    for (int i = 14; i > 0; i--)
        sum = kl_add(linear_eye(a), kl_mul_scalar(kl_matmul(a, sum), 1.0 / i));
    for (int i = 0; i < 6; i++)
        sum = kl_matmul(sum, sum);
    return linear_relative(kl_sub(out[0], sum), sum);
}

/* ---- the cases ---- */

static const struct linear_case linear_cases[] = {
    {"product", open_two, own_product, NULL, 1024, direct_product, NULL, 1, {{2, 'm'}}, residual_product},
    {"solve", open_equation, own_solve, by_lapack_solve, 1024, direct_solve, NULL, 1, {{1, 'c'}}, residual_solve},
    {"inverse", open_one, own_inverse, by_lapack_inverse, 1024, direct_inverse, NULL, 1, {{0, 'm'}}, residual_inverse},
    {"det", open_scaled, own_det, by_lapack_det, 1024, direct_det, NULL, 1, {{1, 's'}}, residual_det},
    {"cholesky", open_definite, own_cholesky, by_lapack_cholesky, 1024, direct_cholesky, direct_cholesky_upper, 1,
     {{0, 'l'}}, residual_cholesky},
    {"qr", open_one, own_qr, by_lapack_qr, 1024, direct_qr, NULL, 2, {{0, 'm'}, {1, 'u'}}, residual_qr},
    {"eigh", open_symmetric, own_eigh, by_lapack_eigh, 256, direct_eigh, NULL, 2, {{1, 'v'}, {0, 'm'}}, residual_eigh},
    {"svd", open_one, own_svd, by_lapack_svd, 256, direct_svd, NULL, 3, {{1, 'm'}, {2, 'v'}, {3, 'm'}}, residual_svd},
    {"lstsq", open_tall, own_lstsq, by_lapack_lstsq, 256, direct_lstsq, NULL, 1, {{1, 'c'}}, residual_lstsq},
    {"banded", open_banded, own_banded, NULL, 1024, direct_banded, NULL, 1, {{1, 'c'}}, residual_banded},
    {"tridiagonal", open_tridiagonal, own_tridiagonal, NULL, 1024, direct_tridiagonal, NULL, 1, {{3, 'c'}},
     residual_tridiagonal},
    {"expm", open_small_norm, own_expm, by_lapack_expm, 1024, direct_expm, NULL, 1, {{0, 'm'}}, residual_expm},
};

#endif
