/* LAPACK's functions, from a shared library, as custom ops (lapack.h lists them).
 *
 * LAPACK's matrices are column-major: a row-major matrix is its transpose there.  A symmetric one is itself, its
 * eigenvectors are rows; a = u s v^T is v s u^T; of equations the transposed ones are solved; the inverse of the
 * transpose is that of the inverse.  Where the other order is faster, though it takes copies, it is what LAPACK gets:
 * OpenBLAS's QR takes 0.7 of the time of its LQ, its Cholesky of a lower triangle 0.6 to 0.9 of that of an upper. */
#include "lapack.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* Fortran: everything by address; the lengths of strings behind the other arguments. */
typedef void syevd_fn(const char *jobz, const char *uplo, const int *n, void *a, const int *lda, void *w, void *work,
                      const int *lwork, int *iwork, const int *liwork, int *info, size_t, size_t);
typedef void gesdd_fn(const char *jobz, const int *m, const int *n, void *a, const int *lda, void *s, void *u,
                      const int *ldu, void *vt, const int *ldvt, void *work, const int *lwork, int *iwork, int *info,
                      size_t);
typedef void getrf_fn(const int *m, const int *n, void *a, const int *lda, int *ipiv, int *info);
typedef void getrs_fn(const char *trans, const int *n, const int *nrhs, const void *a, const int *lda, const int *ipiv,
                      void *b, const int *ldb, int *info, size_t);
typedef void getri_fn(const int *n, void *a, const int *lda, const int *ipiv, void *work, const int *lwork, int *info);
typedef void geqrf_fn(const int *m, const int *n, void *a, const int *lda, void *tau, void *work, const int *lwork,
                      int *info);
typedef void orgqr_fn(const int *m, const int *n, const int *k, void *a, const int *lda, const void *tau, void *work,
                      const int *lwork, int *info);
typedef void gels_fn(const char *trans, const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b,
                     const int *ldb, void *work, const int *lwork, int *info, size_t);
typedef void potrf_fn(const char *uplo, const int *n, void *a, const int *lda, int *info, size_t);

static struct lapack {
    syevd_fn *syevd;
    gesdd_fn *gesdd;
    getrf_fn *getrf;
    getrs_fn *getrs;
    getri_fn *getri;
    geqrf_fn *geqrf;
    orgqr_fn *orgqr;
    gels_fn *gels;
    potrf_fn *potrf;
} lapack[2]; /* of f32, f64 */

static pthread_mutex_t lapack_lock = PTHREAD_MUTEX_INITIALIZER;
static bool lapack_loaded;

/* ---- the library ---- */

static const struct { const char *name; size_t offset; } lapack_functions[] = {
    {"syevd", offsetof(struct lapack, syevd)}, {"gesdd", offsetof(struct lapack, gesdd)},
    {"getrf", offsetof(struct lapack, getrf)}, {"getrs", offsetof(struct lapack, getrs)},
    {"getri", offsetof(struct lapack, getri)}, {"geqrf", offsetof(struct lapack, geqrf)},
    {"orgqr", offsetof(struct lapack, orgqr)}, {"gels", offsetof(struct lapack, gels)},
    {"potrf", offsetof(struct lapack, potrf)},
};

/* Finds all functions; the name of one that is missing, or NULL. */
static const char *lapack_find(void *library, char *name, size_t size)
{
    for (size_t i = 0; i < 2 * sizeof lapack_functions / sizeof *lapack_functions; i++) {
        snprintf(name, size, "%c%s_", i % 2 ? 'd' : 's', lapack_functions[i / 2].name);
        void *f = dlsym(library, name);
        if (!f)
            return name;
        memcpy((char *)&lapack[i % 2] + lapack_functions[i / 2].offset, &f, sizeof f);
    }
    return NULL;
}

/* NULL, or what is wrong, in `text`. */
static const char *lapack_open(const char *path, char *text, size_t size)
{
    static const char *const usual[] = {"libopenblas.so.0", "libmkl_rt.so.2", "liblapack.so.3"};
    const char *missing = NULL;
    char name[16];
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (size_t i = 0; i < sizeof usual / sizeof *usual && !path && !library; i++)
        library = dlopen(usual[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        kl_format(text, size, "%s: %.200s", path ? path : "no LAPACK (Debian: libopenblas0)", dlerror());
    else if ((missing = lapack_find(library, name, sizeof name)))
        kl_format(text, size, "%s has no function %s", path ? path : "the LAPACK that was found", missing);
    if (missing)
        dlclose(library);
    return library && !missing ? NULL : text;
}

/* ---- the ops ---- */

struct lapack_matrices { int64_t B, m, n; size_t size; const struct lapack *f; };

static struct lapack_matrices lapack_matrices(const kl_custom_call *call)
{
    const kl_type *t = &call->in_type[0];
    bool f64 = t->dtype == KL_F64;
    return (struct lapack_matrices){t->dims[0], t->dims[1], t->dims[2], f64 ? sizeof(double) : sizeof(float),
                                    &lapack[f64]};
}

/* Are all n elements finite?  Several sums, which do not wait for each other. */
static bool lapack_finite(const void *v, int64_t n, size_t size)
{
    enum { SUMS = 8 };
    const double *d = v;
    const float *f = v;
    double sum[SUMS] = {0}, all = 0;
    int64_t whole = n / SUMS * SUMS;
    for (int64_t i = 0; i < whole && size == sizeof *d; i += SUMS)
        for (int k = 0; k < SUMS; k++)
            sum[k] += d[i + k] * 0;
    for (int64_t i = 0; i < whole && size == sizeof *f; i += SUMS)
        for (int k = 0; k < SUMS; k++)
            sum[k] += (double)f[i + k] * 0;
    for (int64_t i = whole; i < n; i++)
        all += size == sizeof *d ? d[i] * 0 : (double)f[i] * 0;
    for (int k = 0; k < SUMS; k++)
        all += sum[k];
    return all == 0;
}

static void lapack_fill_nan(void *v, int64_t n, size_t size)
{
    for (int64_t i = 0; i < n; i++)
        if (size == sizeof(double))
            ((double *)v)[i] = (double)NAN;
        else
            ((float *)v)[i] = NAN;
}

/* The answer to a query for the size of a workspace; f32 rounds it. */
static int lapack_size(const double *work, size_t size)
{
    double n = size == sizeof(double) ? *work : (double)*(const float *)work * (1 + 0x1p-22) + 1;
    return n < INT32_MAX ? (int)n : INT32_MAX;
}

static kl_status lapack_no_memory(const kl_custom_call *call)
{
    snprintf(call->message, call->message_bytes, "out of memory");
    return KL_ERR_MEMORY;
}

static kl_type lapack_type(kl_dtype dtype, int rank, int64_t a, int64_t b, int64_t c)
{
    return (kl_type){dtype, rank, {a, b, c}};
}

static kl_status lapack_eigh_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    const kl_type *a = &call->in_type[0];
    (void)ctx;
    out[0] = lapack_type(a->dtype, 2, a->dims[0], a->dims[1], 0);
    out[1] = *a;
    return KL_OK;
}

static kl_status lapack_eigh_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    int n = (int)x.n, info = 0, lwork = -1, liwork = -1, isize = 0;
    double size = 0;
    (void)ctx;
    x.f->syevd("V", "U", &n, NULL, &n, NULL, &size, &lwork, &isize, &liwork, &info, 1, 1);
    lwork = lapack_size(&size, x.size);
    liwork = isize;
    void *work = malloc((size_t)lwork * x.size), *iwork = malloc((size_t)liwork * sizeof(int));
    for (int64_t b = 0; b < x.B && work && iwork; b++) {
        size_t at = (size_t)(b * x.n * x.n) * x.size;
        char *w = (char *)call->out[0] + (size_t)(b * x.n) * x.size, *v = (char *)call->out[1] + at;
        memcpy(v, (const char *)call->in[0] + at, (size_t)(x.n * x.n) * x.size);
        info = !lapack_finite(v, x.n * x.n, x.size);
        if (!info)
            x.f->syevd("V", "U", &n, v, &n, w, work, &lwork, iwork, &liwork, &info, 1, 1);
        if (info) {
            lapack_fill_nan(w, x.n, x.size);
            lapack_fill_nan(v, x.n * x.n, x.size);
        }
    }
    kl_status status = work && iwork ? KL_OK : lapack_no_memory(call);
    free(work);
    free(iwork);
    return status;
}

static kl_status lapack_svd_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    const kl_type *a = &call->in_type[0];
    int64_t B = a->dims[0], m = a->dims[1], n = a->dims[2], k = m < n ? m : n;
    (void)ctx;
    out[0] = lapack_type(a->dtype, 3, B, m, k);
    out[1] = lapack_type(a->dtype, 2, B, k, 0);
    out[2] = lapack_type(a->dtype, 3, B, k, n);
    return KL_OK;
}

static kl_status lapack_svd_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    int rows = (int)x.n, columns = (int)x.m, k = rows < columns ? rows : columns, info = 0, lwork = -1;
    double size = 0;
    (void)ctx;
    x.f->gesdd("S", &rows, &columns, NULL, &rows, NULL, NULL, &rows, NULL, &k, &size, &lwork, NULL, &info, 1);
    lwork = lapack_size(&size, x.size);
    void *work = malloc((size_t)lwork * x.size), *copy = malloc((size_t)(x.m * x.n) * x.size);
    int *iwork = malloc(8 * (size_t)k * sizeof(int));
    bool room = work && copy && iwork;
    for (int64_t b = 0; b < x.B && room; b++) {
        char *u = (char *)call->out[0] + (size_t)(b * x.m * k) * x.size;
        char *s = (char *)call->out[1] + (size_t)(b * k) * x.size;
        char *vt = (char *)call->out[2] + (size_t)(b * k * x.n) * x.size;
        memcpy(copy, (const char *)call->in[0] + (size_t)(b * x.m * x.n) * x.size, (size_t)(x.m * x.n) * x.size);
        info = !lapack_finite(copy, x.m * x.n, x.size);
        if (!info)
            x.f->gesdd("S", &rows, &columns, copy, &rows, s, vt, &rows, u, &k, work, &lwork, iwork, &info, 1);
        if (info) {
            lapack_fill_nan(u, x.m * k, x.size);
            lapack_fill_nan(s, k, x.size);
            lapack_fill_nan(vt, x.n * k, x.size);
        }
    }
    free(work);
    free(copy);
    free(iwork);
    return room ? KL_OK : lapack_no_memory(call);
}

static kl_status lapack_solve_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    out[0] = call->in_type[1];
    return KL_OK;
}

static kl_status lapack_solve_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    int n = (int)x.n, m = (int)call->in_type[1].dims[1], info;
    const char *as_given = *(const char *)call->attr ? "N" : "T"; /* column-major it is the transpose */
    void *copy = malloc((size_t)(x.n * x.n) * x.size);
    int *pivots = malloc((size_t)n * sizeof *pivots);
    (void)ctx;
    for (int64_t b = 0; b < x.B && copy && pivots; b++) {
        size_t right = (size_t)(b * m * x.n) * x.size;
        char *y = (char *)call->out[0] + right;
        memcpy(copy, (const char *)call->in[0] + (size_t)(b * x.n * x.n) * x.size, (size_t)(x.n * x.n) * x.size);
        memcpy(y, (const char *)call->in[1] + right, (size_t)(m * x.n) * x.size);
        x.f->getrf(&n, &n, copy, &n, pivots, &info);
        if (info >= 0) /* above 0: a pivot of 0, by which is divided */
            x.f->getrs(as_given, &n, &m, copy, &n, pivots, y, &n, &info, 1);
    }
    kl_status status = copy && pivots ? KL_OK : lapack_no_memory(call);
    free(copy);
    free(pivots);
    return status;
}

static kl_status lapack_inverse_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    int n = (int)x.n, info, lwork = -1;
    double size = 0;
    (void)ctx;
    x.f->getri(&n, NULL, &n, NULL, &size, &lwork, &info);
    lwork = lapack_size(&size, x.size);
    void *work = malloc((size_t)lwork * x.size);
    int *pivots = malloc((size_t)n * sizeof *pivots);
    for (int64_t b = 0; b < x.B && work && pivots; b++) {
        char *a = (char *)call->out[0] + (size_t)(b * x.n * x.n) * x.size;
        memcpy(a, (const char *)call->in[0] + (size_t)(b * x.n * x.n) * x.size, (size_t)(x.n * x.n) * x.size);
        info = !lapack_finite(a, x.n * x.n, x.size);
        if (!info)
            x.f->getrf(&n, &n, a, &n, pivots, &info);
        if (!info)
            x.f->getri(&n, a, &n, pivots, work, &lwork, &info);
        if (info)
            lapack_fill_nan(a, x.n * x.n, x.size);
    }
    kl_status status = work && pivots ? KL_OK : lapack_no_memory(call);
    free(work);
    free(pivots);
    return status;
}

static kl_status lapack_det_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    const kl_type *a = &call->in_type[0];
    (void)ctx;
    for (int i = 0; i < 3; i++)
        out[i] = lapack_type(a->dtype, 1, a->dims[0], 0, 0);
    return KL_OK;
}

static void lapack_put(void *v, int64_t i, double x, size_t size)
{
    if (size == sizeof(double))
        ((double *)v)[i] = x;
    else
        ((float *)v)[i] = (float)x;
}

static kl_status lapack_det_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    int n = (int)x.n, info = 0;
    char *copy = malloc((size_t)(x.n * x.n) * x.size);
    int *pivots = malloc((size_t)n * sizeof *pivots);
    (void)ctx;
    for (int64_t b = 0; b < x.B && copy && pivots; b++) {
        double det = 1, sign = 1, logarithm = 0;
        bool finite = lapack_finite((const char *)call->in[0] + (size_t)(b * x.n * x.n) * x.size, x.n * x.n, x.size);
        memcpy(copy, (const char *)call->in[0] + (size_t)(b * x.n * x.n) * x.size, (size_t)(x.n * x.n) * x.size);
        if (finite)
            x.f->getrf(&n, &n, copy, &n, pivots, &info);
        else
            det = sign = logarithm = (double)NAN;
        for (int64_t i = 0; i < x.n && finite; i++) {
            const char *at = copy + (size_t)(i * (x.n + 1)) * x.size;
            double p = x.size == sizeof(double) ? *(const double *)at : (double)*(const float *)at;
            p = pivots[i] == i + 1 ? p : -p;
            det *= p;
            sign = p > 0 ? sign : p < 0 ? -sign : 0;
            logarithm += log(fabs(p));
        }
        lapack_put(call->out[0], b, det, x.size);
        lapack_put(call->out[1], b, sign, x.size);
        lapack_put(call->out[2], b, logarithm, x.size);
    }
    kl_status status = copy && pivots ? KL_OK : lapack_no_memory(call);
    free(copy);
    free(pivots);
    return status;
}

static kl_status lapack_qr_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    const kl_type *a = &call->in_type[0];
    int64_t B = a->dims[0], m = a->dims[1], n = a->dims[2], k = m < n ? m : n;
    (void)ctx;
    out[0] = lapack_type(a->dtype, 3, B, m, k);
    out[1] = lapack_type(a->dtype, 3, B, k, n);
    return KL_OK;
}

static kl_status lapack_qr_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    int m = (int)x.m, n = (int)x.n, k = m < n ? m : n, info = 0, lwork = -1, lwork_q = -1;
    bool f64 = x.size == sizeof(double);
    double size = 0;
    (void)ctx;
    x.f->geqrf(&m, &n, NULL, &m, NULL, &size, &lwork, &info);
    lwork = lapack_size(&size, x.size);
    x.f->orgqr(&m, &k, &k, NULL, &m, NULL, &size, &lwork_q, &info);
    lwork_q = lapack_size(&size, x.size);
    lwork = lwork > lwork_q ? lwork : lwork_q;
    char *work = malloc((size_t)lwork * x.size), *copy = malloc((size_t)(x.m * x.n + k) * x.size);
    for (int64_t b = 0; b < x.B && work && copy; b++) {
        char *q = (char *)call->out[0] + (size_t)(b * x.m * k) * x.size, *tau = copy + (size_t)(x.m * x.n) * x.size;
        char *r = (char *)call->out[1] + (size_t)(b * k * x.n) * x.size;
        const char *a = (const char *)call->in[0] + (size_t)(b * x.m * x.n) * x.size;
        info = !lapack_finite(a, x.m * x.n, x.size);
        lapack_transpose(copy, x.m, a, x.n, x.m, x.n, f64);
        if (!info)
            x.f->geqrf(&m, &n, copy, &m, tau, work, &lwork, &info);
        lapack_transpose(r, x.n, copy, x.m, x.n, k, f64);
        for (int64_t i = 1; i < k; i++)
            memset(r + (size_t)(i * x.n) * x.size, 0, (size_t)i * x.size);
        if (!info)
            x.f->orgqr(&m, &k, &k, copy, &m, tau, work, &lwork, &info);
        lapack_transpose(q, k, copy, x.m, k, x.m, f64);
        if (info) {
            lapack_fill_nan(q, x.m * k, x.size);
            lapack_fill_nan(r, k * x.n, x.size);
        }
    }
    kl_status status = work && copy ? KL_OK : lapack_no_memory(call);
    free(work);
    free(copy);
    return status;
}

static kl_status lapack_lstsq_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    const kl_type *a = &call->in_type[0], *b = &call->in_type[1];
    (void)ctx;
    out[0] = lapack_type(a->dtype, 3, a->dims[0], a->dims[2], b->dims[2]);
    return KL_OK;
}

static kl_status lapack_lstsq_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    int64_t columns = call->in_type[1].dims[2], high = x.m > x.n ? x.m : x.n;
    int m = (int)x.m, n = (int)x.n, right = (int)columns, height = (int)high, info = 0, lwork = -1;
    bool f64 = x.size == sizeof(double);
    double size = 0;
    (void)ctx;
    x.f->gels("N", &m, &n, &right, NULL, &m, NULL, &height, &size, &lwork, &info, 1);
    lwork = lapack_size(&size, x.size);
    void *work = malloc((size_t)lwork * x.size), *copy = malloc((size_t)(x.m * x.n) * x.size);
    void *both = malloc((size_t)(high * columns) * x.size); /* b, of which x becomes the first rows */
    bool room = work && copy && both;
    for (int64_t b = 0; b < x.B && room; b++) {
        const char *a = (const char *)call->in[0] + (size_t)(b * x.m * x.n) * x.size;
        const char *given = (const char *)call->in[1] + (size_t)(b * x.m * columns) * x.size;
        char *out = (char *)call->out[0] + (size_t)(b * x.n * columns) * x.size;
        info = !lapack_finite(a, x.m * x.n, x.size) || !lapack_finite(given, x.m * columns, x.size);
        lapack_transpose(copy, x.m, a, x.n, x.m, x.n, f64);
        lapack_transpose(both, high, given, columns, x.m, columns, f64);
        if (!info)
            x.f->gels("N", &m, &n, &right, copy, &m, both, &height, work, &lwork, &info, 1);
        lapack_transpose(out, columns, both, high, columns, x.n, f64);
        if (info)
            lapack_fill_nan(out, x.n * columns, x.size);
    }
    free(work);
    free(copy);
    free(both);
    return room ? KL_OK : lapack_no_memory(call);
}

static kl_status lapack_same_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    out[0] = call->in_type[0];
    return KL_OK;
}

static kl_status lapack_cholesky_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    int n = (int)x.n, info;
    (void)ctx;
    for (int64_t b = 0; b < x.B; b++) {
        void *a = (char *)call->out[0] + (size_t)(b * x.n * x.n) * x.size;
        const void *in = (const char *)call->in[0] + (size_t)(b * x.n * x.n) * x.size;
        info = !lapack_upper(a, in, x.n, x.size == sizeof(double));
        if (!info)
            x.f->potrf("L", &n, a, &n, &info, 1);
        if (info)
            lapack_fill_nan(a, x.n * x.n, x.size);
        else
            lapack_flip(a, x.n, x.size == sizeof(double));
    }
    return KL_OK;
}

static const struct { const char *name; kl_custom_op op; } lapack_ops[] = {
    {"kiln.lapack_eigh", {.types = lapack_eigh_types, .run = lapack_eigh_run}},
    {"kiln.lapack_svd", {.types = lapack_svd_types, .run = lapack_svd_run}},
    {"kiln.lapack_solve", {.types = lapack_solve_types, .run = lapack_solve_run}},
    {"kiln.lapack_inverse", {.types = lapack_same_types, .run = lapack_inverse_run}},
    {"kiln.lapack_det", {.types = lapack_det_types, .run = lapack_det_run}},
    {"kiln.lapack_qr", {.types = lapack_qr_types, .run = lapack_qr_run}},
    {"kiln.lapack_lstsq", {.types = lapack_lstsq_types, .run = lapack_lstsq_run}},
    {"kiln.lapack_cholesky", {.types = lapack_same_types, .run = lapack_cholesky_run}},
};

bool lapack_ready(const char *op, const char *path)
{
    char text[400];
    const char *wrong = NULL;
    kl_status status = KL_OK;
    pthread_mutex_lock(&lapack_lock);
    if (!lapack_loaded && !(wrong = lapack_open(path, text, sizeof text)))
        for (size_t i = 0; i < sizeof lapack_ops / sizeof *lapack_ops && status == KL_OK; i++)
            status = kl_custom_register(lapack_ops[i].name, &lapack_ops[i].op, NULL);
    lapack_loaded |= !wrong && status == KL_OK;
    pthread_mutex_unlock(&lapack_lock);
    if (wrong)
        kl_failf(NULL, KL_ERR_IO, "%s: %s", op, wrong);
    return !wrong && status == KL_OK;
}
