/* LAPACK's and BLAS's functions called directly: the library that kl_lapack_* open, and a call for each case of
 * bench/linear/linear.c. */
#ifndef BENCH_LINEAR_LAPACK_H
#define BENCH_LINEAR_LAPACK_H
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fortran: everything by address; the lengths of strings behind the other arguments. */
struct linear_lapack {
    void (*gemm)(const char *ta, const char *tb, const int *m, const int *n, const int *k, const void *alpha,
                 const void *a, const int *lda, const void *b, const int *ldb, const void *beta, void *c,
                 const int *ldc, size_t, size_t);
    void (*gesv)(const int *n, const int *nrhs, void *a, const int *lda, int *ipiv, void *b, const int *ldb, int *info);
    void (*getrf)(const int *m, const int *n, void *a, const int *lda, int *ipiv, int *info);
    void (*getri)(const int *n, void *a, const int *lda, const int *ipiv, void *work, const int *lwork, int *info);
    void (*potrf)(const char *uplo, const int *n, void *a, const int *lda, int *info, size_t);
    void (*geqrf)(const int *m, const int *n, void *a, const int *lda, void *tau, void *work, const int *lwork,
                  int *info);
    void (*orgqr)(const int *m, const int *n, const int *k, void *a, const int *lda, const void *tau, void *work,
                  const int *lwork, int *info);
    void (*syevd)(const char *jobz, const char *uplo, const int *n, void *a, const int *lda, void *w, void *work,
                  const int *lwork, int *iwork, const int *liwork, int *info, size_t, size_t);
    void (*gesdd)(const char *jobz, const int *m, const int *n, void *a, const int *lda, void *s, void *u,
                  const int *ldu, void *vt, const int *ldvt, void *work, const int *lwork, int *iwork, int *info,
                  size_t);
    void (*gels)(const char *trans, const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b,
                 const int *ldb, void *work, const int *lwork, int *info, size_t);
    void (*gbsv)(const int *n, const int *kl, const int *ku, const int *nrhs, void *ab, const int *ldab, int *ipiv,
                 void *b, const int *ldb, int *info);
    void (*gtsv)(const int *n, const int *nrhs, void *dl, void *d, void *du, void *b, const int *ldb, int *info);
};

static const struct { const char *name; size_t offset; } linear_functions[] = {
    {"gemm", offsetof(struct linear_lapack, gemm)},   {"gesv", offsetof(struct linear_lapack, gesv)},
    {"getrf", offsetof(struct linear_lapack, getrf)}, {"getri", offsetof(struct linear_lapack, getri)},
    {"potrf", offsetof(struct linear_lapack, potrf)}, {"geqrf", offsetof(struct linear_lapack, geqrf)},
    {"orgqr", offsetof(struct linear_lapack, orgqr)}, {"syevd", offsetof(struct linear_lapack, syevd)},
    {"gesdd", offsetof(struct linear_lapack, gesdd)}, {"gels", offsetof(struct linear_lapack, gels)},
    {"gbsv", offsetof(struct linear_lapack, gbsv)},   {"gtsv", offsetof(struct linear_lapack, gtsv)},
};

/* The library that Kiln has opened; NULL: none. */
static inline void *linear_library(void)
{
    static const char *const usual[] = {"libopenblas.so.0", "libmkl_rt.so.2", "liblapack.so.3"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof usual / sizeof *usual && !library; i++)
        library = dlopen(usual[i], RTLD_NOW | RTLD_NOLOAD);
    return library;
}

/* The functions of f32 or f64; false: one is missing. */
static inline bool linear_find(void *library, bool f64, struct linear_lapack *l)
{
    char name[16];
    bool all = library;
    for (size_t i = 0; i < sizeof linear_functions / sizeof *linear_functions && all; i++) {
        snprintf(name, sizeof name, "%c%s_", f64 ? 'd' : 's', linear_functions[i].name);
        void *f = dlsym(library, name);
        memcpy((char *)l + linear_functions[i].offset, &f, sizeof f);
        all = f;
    }
    return all;
}

/* Sets the library's number of threads, if it has a function for that. */
static inline void linear_threads(void *library, int threads)
{
    static const char *const names[] = {"openblas_set_num_threads", "MKL_Set_Num_Threads"};
    for (size_t i = 0; i < sizeof names / sizeof *names && library; i++) {
        void (*set)(int) = NULL;
        void *f = dlsym(library, names[i]);
        memcpy(&set, &f, sizeof f);
        if (set)
            set(threads);
    }
}

/* ---- the operands of a case as LAPACK has them, and a call for one matrix of a batch ---- */

enum { LINEAR_ARRAYS = 6, LINEAR_LOWER = 2, LINEAR_UPPER = 2 /* diagonals of banded matrices */ };

struct linear_direct {
    struct linear_lapack f;
    bool f64;
    int n;
    size_t size;                /* of an element */
    char *a[LINEAR_ARRAYS];     /* operands and results, column-major, of the matrix at hand */
    void *work;
    int lwork, *iwork;          /* iwork has room for pivots and for what syevd and gesdd want */
    int info;
};

static const double linear_f64[] = {0, 1};
static const float linear_f32[] = {0, 1};

static inline const void *linear_constant(const struct linear_direct *d, int which)
{
    return d->f64 ? (const void *)&linear_f64[which] : (const void *)&linear_f32[which];
}

/* c = a b */
static inline void linear_gemm(const struct linear_direct *d, const void *a, const void *b, void *c)
{
    d->f.gemm("N", "N", &d->n, &d->n, &d->n, linear_constant(d, 1), a, &d->n, b, &d->n, linear_constant(d, 0), c,
              &d->n, 1, 1);
}

static inline void direct_product(struct linear_direct *d) { linear_gemm(d, d->a[0], d->a[1], d->a[2]); }

static inline void direct_solve(struct linear_direct *d)
{
    int one = 1;
    d->f.gesv(&d->n, &one, d->a[0], &d->n, d->iwork, d->a[1], &d->n, &d->info);
}

static inline void direct_inverse(struct linear_direct *d)
{
    d->f.getrf(&d->n, &d->n, d->a[0], &d->n, d->iwork, &d->info);
    d->f.getri(&d->n, d->a[0], &d->n, d->iwork, d->work, &d->lwork, &d->info);
}

static inline void direct_det(struct linear_direct *d)
{
    double det = 1;
    d->f.getrf(&d->n, &d->n, d->a[0], &d->n, d->iwork, &d->info);
    for (int i = 0; i < d->n; i++) {
        size_t at = (size_t)i * (size_t)(d->n + 1);
        det *= d->f64 ? ((const double *)(void *)d->a[0])[at] : (double)((const float *)(void *)d->a[0])[at];
        det = d->iwork[i] == i + 1 ? det : -det;
    }
    if (d->f64)
        *(double *)(void *)d->a[1] = det;
    else
        *(float *)(void *)d->a[1] = (float)det;
}

static inline void direct_cholesky(struct linear_direct *d) { d->f.potrf("L", &d->n, d->a[0], &d->n, &d->info, 1); }
static inline void direct_cholesky_upper(struct linear_direct *d)
{
    d->f.potrf("U", &d->n, d->a[0], &d->n, &d->info, 1);
}

/* q in a[0]; r is copied to a[1], as nothing else keeps it, and has numbers below its diagonal */
static inline void direct_qr(struct linear_direct *d)
{
    d->f.geqrf(&d->n, &d->n, d->a[0], &d->n, d->a[2], d->work, &d->lwork, &d->info);
    memcpy(d->a[1], d->a[0], (size_t)d->n * (size_t)d->n * d->size);
    d->f.orgqr(&d->n, &d->n, &d->n, d->a[0], &d->n, d->a[2], d->work, &d->lwork, &d->info);
}

static inline void direct_eigh(struct linear_direct *d)
{
    int liwork = 3 + 5 * d->n;
    d->f.syevd("V", "L", &d->n, d->a[0], &d->n, d->a[1], d->work, &d->lwork, d->iwork, &liwork, &d->info, 1, 1);
}

static inline void direct_svd(struct linear_direct *d)
{
    d->f.gesdd("S", &d->n, &d->n, d->a[0], &d->n, d->a[2], d->a[1], &d->n, d->a[3], &d->n, d->work, &d->lwork,
               d->iwork, &d->info, 1);
}

static inline void direct_lstsq(struct linear_direct *d)
{
    int one = 1, m = 2 * d->n;
    d->f.gels("N", &m, &d->n, &one, d->a[0], &m, d->a[1], &m, d->work, &d->lwork, &d->info, 1);
}

static inline void direct_banded(struct linear_direct *d)
{
    int one = 1, l = LINEAR_LOWER, u = LINEAR_UPPER, rows = 2 * l + u + 1;
    d->f.gbsv(&d->n, &l, &u, &one, d->a[0], &rows, d->iwork, d->a[1], &d->n, &d->info);
}

static inline void direct_tridiagonal(struct linear_direct *d)
{
    int one = 1;
    d->f.gtsv(&d->n, &one, d->a[0] + d->size, d->a[1], d->a[2], d->a[3], &d->n, &d->info);
}

/* ---- the exponential, as frontend/solve/expm.c computes it, by gemm and gesv ---- */

/* out = a sum of the terms at and 2, 4, 6 behind it, of the powers p[1], p[2], p[3]; with p[0] = 1 if `one`. */
static inline void linear_terms(const struct linear_direct *d, const double *c, bool one, char *const *p, char *out)
{
    size_t n = (size_t)d->n, all = n * n;
    for (size_t i = 0; i < all; i++) {
        if (d->f64) {
            const double *x = (void *)p[1], *y = (void *)p[2], *z = (void *)p[3];
            ((double *)(void *)out)[i] = c[2] * x[i] + c[4] * y[i] + c[6] * z[i];
        } else {
            const float *x = (void *)p[1], *y = (void *)p[2], *z = (void *)p[3];
            ((float *)(void *)out)[i] = (float)c[2] * x[i] + (float)c[4] * y[i] + (float)c[6] * z[i];
        }
    }
    for (size_t i = 0; i < n && one; i++)
        if (d->f64)
            ((double *)(void *)out)[i * (n + 1)] += c[0];
        else
            ((float *)(void *)out)[i * (n + 1)] += (float)c[0];
}

/* x = x + y, y = x - y */
static inline void linear_both(const struct linear_direct *d, char *x, char *y, bool keep)
{
    size_t all = (size_t)d->n * (size_t)d->n;
    for (size_t i = 0; i < all; i++)
        if (d->f64) {
            double s = ((double *)(void *)x)[i], t = ((double *)(void *)y)[i];
            ((double *)(void *)x)[i] = s + t;
            ((double *)(void *)y)[i] = keep ? t : s - t;
        } else {
            float s = ((float *)(void *)x)[i], t = ((float *)(void *)y)[i];
            ((float *)(void *)x)[i] = s + t;
            ((float *)(void *)y)[i] = keep ? t : s - t;
        }
}

/* Divides a[0] by a power of two so that its norm is small; the power. */
static inline int linear_scale(const struct linear_direct *d)
{
    size_t n = (size_t)d->n;
    double norm = 0, theta = d->f64 ? 5.371920351148152 : 3.925724783138660, by = 1;
    int s = 0;
    for (size_t j = 0; j < n; j++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++) {
            double x = d->f64 ? ((double *)(void *)d->a[0])[j * n + i] : (double)((float *)(void *)d->a[0])[j * n + i];
            sum += x < 0 ? -x : x;
        }
        norm = sum > norm ? sum : norm;
    }
    for (; norm * by > theta; s++)
        by /= 2;
    for (size_t i = 0; i < n * n; i++)
        if (d->f64)
            ((double *)(void *)d->a[0])[i] *= by;
        else
            ((float *)(void *)d->a[0])[i] *= (float)by;
    return s;
}

/* The result is in a[0]. */
static inline void direct_expm(struct linear_direct *d)
{
    static const double c13[] = {
        64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600,
        670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
    }, c7[] = {17297280, 8648640, 1995840, 277200, 25200, 1512, 56, 1};
    const double *c = d->f64 ? c13 : c7;
    size_t bytes = (size_t)d->n * (size_t)d->n * d->size;
    int s = linear_scale(d);
    char *p[4] = {NULL, d->a[1], d->a[2], d->a[3]}, *even = d->a[4], *odd = d->a[5], *t = d->work;
    linear_gemm(d, d->a[0], d->a[0], p[1]);
    linear_gemm(d, p[1], p[1], p[2]);
    linear_gemm(d, p[2], p[1], p[3]);
    if (d->f64) {
        linear_terms(d, c + 6, false, p, odd);
        linear_gemm(d, p[3], odd, even);
        linear_terms(d, c, true, p, odd);
        linear_both(d, even, odd, true);
        linear_terms(d, c + 7, false, p, t);
        linear_gemm(d, p[3], t, odd);
        linear_terms(d, c + 1, true, p, t);
        linear_both(d, t, odd, true);
    } else {
        linear_terms(d, c, true, p, even);
        linear_terms(d, c + 1, true, p, t);
    }
    linear_gemm(d, d->a[0], t, odd);
    linear_both(d, even, odd, false); /* even + odd; even - odd */
    d->f.gesv(&d->n, &d->n, odd, &d->n, d->iwork, even, &d->n, &d->info);
    for (; s > 0; s--) {
        linear_gemm(d, even, even, odd);
        char *swap = even;
        even = odd;
        odd = swap;
    }
    memcpy(d->a[0], even, bytes);
}

#endif
