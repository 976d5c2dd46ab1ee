/* Inputs that are the same in each run, and gradients against central differences in double: for tests of
 * composites. */
#ifndef KILN_API_NUMBERS_H
#define KILN_API_NUMBERS_H
#include "api_check.h"

static kl_device dev;
#define D(...) DIMS(__VA_ARGS__)

/* Reproducible numbers, none a round one. */
static inline double noise(int i) { return sin(1.7 * i + 0.3) * 1.9; }

static inline kl_tensor f64(int rank, const int64_t *dims, const double *v)
{
    return kl_input(dev, KL_F64, rank, dims, v);
}

static inline kl_tensor noisy(int from, int rank, const int64_t *dims, double *v)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    for (int i = 0; i < n; i++)
        v[i] = noise(from + i);
    return f64(rank, dims, v);
}

static inline kl_tensor i32(int rank, const int64_t *dims, const int32_t *v)
{
    return kl_input(dev, KL_I32, rank, dims, v);
}

/* ---- the sum of f(x) times numbers, differentiated ---- */

enum { MAX_COUNT = 64 }; /* elements */
static inline kl_tensor weighted(kl_tensor y)
{
    double w[MAX_COUNT];
    int64_t dims[KL_MAX_RANK], n = kl_numel(y);
    int rank = kl_shape(y, dims);
    if (n < 0 || n > MAX_COUNT)
        return y;
    for (int i = 0; i < n; i++)
        w[i] = noise(100 + 3 * i);
    kl_tensor k = f64(rank, dims, w);
    return kl_sum_all(kl_mul(y, k));
}

#define GRADIENT(f, ...) gradient_at(f, #f, __LINE__, DIMS(__VA_ARGS__))
static inline void gradient_at(kl_tensor (*f)(kl_tensor), const char *name, int line, int rank, const int64_t *dims)
{
    double x[MAX_COUNT];
    const double h = 1e-5;
    kl_scope_begin();
    kl_tensor a = noisy(line, rank, dims, x);
    int n = (int)kl_numel(a);
    kl_requires_grad(a);
    double *got = values_of(kl_grad(weighted(f(a)), a));
    bool ok = got != NULL;
    for (int i = 0; ok && i < n; i++) {
        double at = x[i];
        x[i] = at + h;
        double up = kl_item_f64(weighted(f(f64(rank, dims, x))));
        x[i] = at - h;
        double down = kl_item_f64(weighted(f(f64(rank, dims, x)))), want = (up - down) / (2 * h);
        x[i] = at;
        ok = fabs(got[i] - want) <= 1e-7 * (1 + fabs(want));
        if (!ok)
            printf("line %d: gradient of %s, element %d: %.12g, not %.12g\n", line, name, i, got[i], want);
    }
    check_at(ok, line, name);
    free(got);
    OK(kl_scope_end());
}
#endif
