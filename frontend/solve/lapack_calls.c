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

/* What a call computes with; the sizes of workspaces are LAPACK's own. */
struct lapack_matrices {
    int64_t B, m, n;
    size_t size;  /* of an element */
    bool f64;
    const struct lapack *f;
    int columns;  /* of the second operand */
    int lwork, liwork;
    bool transposed;
};

/* The operands and results of one matrix of a batch, and memory. */
struct lapack_one { const char *in[2]; char *out[3], *work[3]; };

static struct lapack_matrices lapack_matrices(const kl_custom_call *call)
{
    const kl_type *t = &call->in_type[0];
    bool f64 = t->dtype == KL_F64;
    return (struct lapack_matrices){t->dims[0], t->dims[1], t->dims[2], f64 ? sizeof(double) : sizeof(float), f64,
                                    &lapack[f64], .columns = call->nin > 1 ? (int)call->in_type[1].dims[2] : 0};
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

static int64_t lapack_count(const kl_type *t)
{
    int64_t n = 1;
    for (int i = 1; i < t->rank; i++)
        n *= t->dims[i];
    return n;
}

/* false: the results are NaN */
typedef bool lapack_fn(const struct lapack_matrices *x, const struct lapack_one *m);

/* Calls f for each matrix, with so many bytes of memory.  finite: only for those whose operands are. */
static kl_status lapack_each(const kl_custom_call *call, const struct lapack_matrices *x, bool finite, size_t a,
                             size_t b, size_t c, lapack_fn *f)
{
    size_t second = (a + 63) & ~(size_t)63, third = second + ((b + 63) & ~(size_t)63);
    char *all = malloc(third + c + 1);
    if (!all)
        return snprintf(call->message, call->message_bytes, "out of memory"), KL_ERR_MEMORY;
    for (int64_t k = 0; k < x->B; k++) {
        struct lapack_one m = {.work = {all, all + second, all + third}};
        bool ok = true;
        for (int64_t i = 0; i < call->nin; i++) {
            int64_t n = lapack_count(&call->in_type[i]);
            m.in[i] = (const char *)call->in[i] + (size_t)(k * n) * x->size;
            ok = ok && (!finite || lapack_finite(m.in[i], n, x->size));
        }
        for (int64_t i = 0; i < call->nout; i++)
            m.out[i] = (char *)call->out[i] + (size_t)(k * lapack_count(&call->out_type[i])) * x->size;
        ok = ok && f(x, &m);
        for (int64_t i = 0; i < call->nout && !ok; i++)
            lapack_fill_nan(m.out[i], lapack_count(&call->out_type[i]), x->size);
    }
    free(all);
    return KL_OK;
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

static bool lapack_eigh_one(const struct lapack_matrices *x, const struct lapack_one *m)
{
    int n = (int)x->n, info;
    memcpy(m->out[1], m->in[0], (size_t)(x->n * x->n) * x->size);
    x->f->syevd("V", "U", &n, m->out[1], &n, m->out[0], m->work[0], &x->lwork, (int *)(void *)m->work[1], &x->liwork,
                &info, 1, 1);
    return !info;
}

static kl_status lapack_eigh_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    int n = (int)x.n, info, query = -1;
    double size = 0;
    (void)ctx;
    x.f->syevd("V", "U", &n, NULL, &n, NULL, &size, &query, &x.liwork, &query, &info, 1, 1);
    x.lwork = lapack_size(&size, x.size);
    return lapack_each(call, &x, true, (size_t)x.lwork * x.size, (size_t)x.liwork * sizeof(int), 0, lapack_eigh_one);
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

static bool lapack_svd_one(const struct lapack_matrices *x, const struct lapack_one *m)
{
    int rows = (int)x->n, columns = (int)x->m, k = rows < columns ? rows : columns, info;
    memcpy(m->work[1], m->in[0], (size_t)(x->m * x->n) * x->size);
    x->f->gesdd("S", &rows, &columns, m->work[1], &rows, m->out[1], m->out[2], &rows, m->out[0], &k, m->work[0],
                &x->lwork, (int *)(void *)m->work[2], &info, 1);
    return !info;
}

static kl_status lapack_svd_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    int rows = (int)x.n, columns = (int)x.m, k = rows < columns ? rows : columns, info, query = -1;
    double size = 0;
    (void)ctx;
    x.f->gesdd("S", &rows, &columns, NULL, &rows, NULL, NULL, &rows, NULL, &k, &size, &query, NULL, &info, 1);
    x.lwork = lapack_size(&size, x.size);
    return lapack_each(call, &x, true, (size_t)x.lwork * x.size, (size_t)(x.m * x.n) * x.size,
                       8 * (size_t)k * sizeof(int), lapack_svd_one);
}

static kl_status lapack_solve_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    out[0] = call->in_type[1];
    return KL_OK;
}

static bool lapack_solve_one(const struct lapack_matrices *x, const struct lapack_one *m)
{
    int n = (int)x->n, rows = x->columns, info; /* of the right side, which is transposed */
    size_t bytes = (size_t)(x->n * x->n) * x->size;
    memcpy(m->work[0], m->in[0], bytes);
    memcpy(m->out[0], m->in[1], (size_t)(rows * x->n) * x->size);
    x->f->getrf(&n, &n, m->work[0], &n, (int *)(void *)m->work[1], &info);
    if (info >= 0) /* above 0: a pivot of 0, by which is divided; column-major it is the transpose */
        x->f->getrs(x->transposed ? "N" : "T", &n, &rows, m->work[0], &n, (const int *)(const void *)m->work[1],
                    m->out[0], &n, &info, 1);
    return true;
}

static kl_status lapack_solve_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    (void)ctx;
    x.columns = (int)call->in_type[1].dims[1];
    x.transposed = *(const char *)call->attr;
    return lapack_each(call, &x, false, (size_t)(x.n * x.n) * x.size, (size_t)x.n * sizeof(int), 0, lapack_solve_one);
}

static bool lapack_inverse_one(const struct lapack_matrices *x, const struct lapack_one *m)
{
    int n = (int)x->n, *pivots = (int *)(void *)m->work[1], info;
    memcpy(m->out[0], m->in[0], (size_t)(x->n * x->n) * x->size);
    x->f->getrf(&n, &n, m->out[0], &n, pivots, &info);
    if (!info)
        x->f->getri(&n, m->out[0], &n, pivots, m->work[0], &x->lwork, &info);
    return !info;
}

static kl_status lapack_inverse_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    int n = (int)x.n, info, query = -1;
    double size = 0;
    (void)ctx;
    x.f->getri(&n, NULL, &n, NULL, &size, &query, &info);
    x.lwork = lapack_size(&size, x.size);
    return lapack_each(call, &x, true, (size_t)x.lwork * x.size, (size_t)n * sizeof(int), 0, lapack_inverse_one);
}

static kl_status lapack_det_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    const kl_type *a = &call->in_type[0];
    (void)ctx;
    for (int i = 0; i < 3; i++)
        out[i] = lapack_type(a->dtype, 1, a->dims[0], 0, 0);
    return KL_OK;
}

static void lapack_put(void *v, double x, bool f64)
{
    if (f64)
        *(double *)v = x;
    else
        *(float *)v = (float)x;
}

static bool lapack_det_one(const struct lapack_matrices *x, const struct lapack_one *m)
{
    int n = (int)x->n, *pivots = (int *)(void *)m->work[1], info;
    double det = 1, sign = 1, logarithm = 0;
    memcpy(m->work[0], m->in[0], (size_t)(x->n * x->n) * x->size);
    x->f->getrf(&n, &n, m->work[0], &n, pivots, &info);
    for (int64_t i = 0; i < x->n; i++) {
        const void *at = m->work[0] + (size_t)(i * (x->n + 1)) * x->size;
        double p = x->f64 ? *(const double *)at : (double)*(const float *)at;
        p = pivots[i] == i + 1 ? p : -p;
        det *= p;
        sign = p > 0 ? sign : p < 0 ? -sign : 0;
        logarithm += log(fabs(p));
    }
    lapack_put(m->out[0], det, x->f64);
    lapack_put(m->out[1], sign, x->f64);
    lapack_put(m->out[2], logarithm, x->f64);
    return true;
}

static kl_status lapack_det_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    (void)ctx;
    return lapack_each(call, &x, true, (size_t)(x.n * x.n) * x.size, (size_t)x.n * sizeof(int), 0, lapack_det_one);
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

static bool lapack_qr_one(const struct lapack_matrices *x, const struct lapack_one *w)
{
    int m = (int)x->m, n = (int)x->n, k = m < n ? m : n, info;
    char *copy = w->work[1], *tau = w->work[2];
    lapack_transpose(copy, x->m, w->in[0], x->n, x->m, x->n, x->f64);
    x->f->geqrf(&m, &n, copy, &m, tau, w->work[0], &x->lwork, &info);
    lapack_transpose(w->out[1], x->n, copy, x->m, x->n, k, x->f64);
    for (int64_t i = 1; i < k; i++)
        memset(w->out[1] + (size_t)(i * x->n) * x->size, 0, (size_t)i * x->size);
    if (!info)
        x->f->orgqr(&m, &k, &k, copy, &m, tau, w->work[0], &x->lwork, &info);
    lapack_transpose(w->out[0], k, copy, x->m, k, x->m, x->f64);
    return !info;
}

static kl_status lapack_qr_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    int m = (int)x.m, n = (int)x.n, k = m < n ? m : n, info, query = -1, lwork_q;
    double size = 0;
    (void)ctx;
    x.f->geqrf(&m, &n, NULL, &m, NULL, &size, &query, &info);
    x.lwork = lapack_size(&size, x.size);
    x.f->orgqr(&m, &k, &k, NULL, &m, NULL, &size, &query, &info);
    lwork_q = lapack_size(&size, x.size);
    x.lwork = x.lwork > lwork_q ? x.lwork : lwork_q;
    return lapack_each(call, &x, true, (size_t)x.lwork * x.size, (size_t)(x.m * x.n) * x.size, (size_t)k * x.size,
                       lapack_qr_one);
}

static kl_status lapack_lstsq_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    const kl_type *a = &call->in_type[0], *b = &call->in_type[1];
    (void)ctx;
    out[0] = lapack_type(a->dtype, 3, a->dims[0], a->dims[2], b->dims[2]);
    return KL_OK;
}

static bool lapack_lstsq_one(const struct lapack_matrices *x, const struct lapack_one *w)
{
    int m = (int)x->m, n = (int)x->n, height = m > n ? m : n, info;
    char *both = w->work[2]; /* b, of which x becomes the first rows */
    lapack_transpose(w->work[1], x->m, w->in[0], x->n, x->m, x->n, x->f64);
    lapack_transpose(both, height, w->in[1], x->columns, x->m, x->columns, x->f64);
    x->f->gels("N", &m, &n, &x->columns, w->work[1], &m, both, &height, w->work[0], &x->lwork, &info, 1);
    lapack_transpose(w->out[0], x->columns, both, height, x->columns, x->n, x->f64);
    return !info;
}

static kl_status lapack_lstsq_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    int m = (int)x.m, n = (int)x.n, height = m > n ? m : n, info, query = -1;
    double size = 0;
    (void)ctx;
    x.f->gels("N", &m, &n, &x.columns, NULL, &m, NULL, &height, &size, &query, &info, 1);
    x.lwork = lapack_size(&size, x.size);
    return lapack_each(call, &x, true, (size_t)x.lwork * x.size, (size_t)(x.m * x.n) * x.size,
                       (size_t)height * (size_t)x.columns * x.size, lapack_lstsq_one);
}

static kl_status lapack_same_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    out[0] = call->in_type[0];
    return KL_OK;
}

static bool lapack_cholesky_one(const struct lapack_matrices *x, const struct lapack_one *m)
{
    int n = (int)x->n, info = !lapack_upper(m->out[0], m->in[0], x->n, x->f64);
    if (!info)
        x->f->potrf("L", &n, m->out[0], &n, &info, 1);
    if (!info)
        lapack_flip(m->out[0], x->n, x->f64);
    return !info;
}

static kl_status lapack_cholesky_run(void *ctx, const kl_custom_call *call)
{
    struct lapack_matrices x = lapack_matrices(call);
    (void)ctx;
    return lapack_each(call, &x, false, 0, 0, 0, lapack_cholesky_one);
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
