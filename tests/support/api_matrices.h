/* Matrices for tests of linear algebra: numbers, and the difference of a product from what it should be. */
#ifndef KILN_API_MATRICES_H
#define KILN_API_MATRICES_H
#include "api_numbers.h"

enum { MAX_SIZE = 3 * 40 * 40 };

static inline void fill(int from, int64_t n, double *v)
{
    for (int i = 0; i < n; i++)
        v[i] = noise((from + i) * (from + 3 * i) + i);
}

/* max |x y - want|, x [n, k] or its transpose, y [k, m]; want NULL: the identity */
static inline double error_of(const double *x, bool transposed, const double *y, const double *want, int n, int k,
                              int m)
{
    double worst = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            double s = want ? -want[i * m + j] : -(double)(i == j);
            for (int p = 0; p < k; p++)
                s += (transposed ? x[p * n + i] : x[i * k + p]) * y[p * m + j];
            worst = s == s ? fmax(worst, fabs(s)) : INFINITY;
        }
    return worst;
}

static inline kl_tensor input(kl_dtype dtype, int rank, const int64_t *dims, const double *v)
{
    kl_tensor a = f64(rank, dims, v), b = dtype == KL_F64 ? a : kl_cast(a, dtype);
    if (b.id != a.id)
        kl_release(a);
    return b;
}
#endif
