/* Products by cuBLASLt, opened where it is: what benchmarks compare with. */
#ifndef BENCH_CUBLAS_H
#define BENCH_CUBLAS_H
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CUBLAS_F32 = 0, CUBLAS_BF16 = 14 };      /* cudaDataType_t */
enum { CUBLAS_COMPUTE_F32 = 68 };               /* cublasComputeType_t: no TF32, which another one allows */
enum { CUBLAS_MAX_WORKSPACE = 1 };             /* cublasLtMatmulPreferenceAttributes_t */
enum { CUBLAS_WORKSPACE = 32 << 20 };

struct cublas {
    void *handle, *context;
    char why[256];               /* there is none: why */
    int (*device)(int *device, int ordinal), (*retain)(void **context, int device), (*current)(void *context);
    int (*create)(void **handle);
    int (*desc_new)(void **desc, int compute, int scale), (*desc_free)(void *desc);
    int (*layout_new)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading),
        (*layout_free)(void *layout);
    int (*preference_new)(void **preference), (*preference_free)(void *preference);
    int (*preference_set)(void *preference, int attribute, const void *value, size_t bytes);
    int (*heuristic)(void *handle, void *desc, void *a_layout, void *b_layout, void *c_layout, void *d_layout,
                     void *preference, int asked, void *results, int *found);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,
                  void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                  const void *algorithm, void *work, size_t work_bytes, void *stream);
};

static inline bool cublas_find(struct cublas *c, void *so, const char *name, void *fn)
{
    void *f = so ? dlsym(so, name) : NULL;
    memcpy(fn, &f, sizeof f);
    if (!f && !*c->why)
        snprintf(c->why, sizeof c->why, "no %s", name);
    return f;
}

/* For device cuda:0.  false: c->why. */
static inline bool cublas_open(struct cublas *c)
{
    static const char *const library[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                          "/usr/local/cuda/lib64/libcublasLt.so"};
    const char *path = getenv("KILN_CUDA_DRIVER");
    int device;
    *c = (struct cublas){0};
    void *driver = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_NODELETE), *so = NULL;
    for (unsigned i = 0; i < 3 && !so; i++)
        so = dlopen(library[i], RTLD_NOW | RTLD_NODELETE);
    if (!so)
        snprintf(c->why, sizeof c->why, "%s", dlerror());
    const struct { void *so; const char *name; void *fn; } wanted[] = {
        {driver, "cuDeviceGet", &c->device},
        {driver, "cuDevicePrimaryCtxRetain", &c->retain},
        {driver, "cuCtxSetCurrent", &c->current},
        {so, "cublasLtCreate", &c->create},
        {so, "cublasLtMatmulDescCreate", &c->desc_new},
        {so, "cublasLtMatmulDescDestroy", &c->desc_free},
        {so, "cublasLtMatrixLayoutCreate", &c->layout_new},
        {so, "cublasLtMatrixLayoutDestroy", &c->layout_free},
        {so, "cublasLtMatmulPreferenceCreate", &c->preference_new},
        {so, "cublasLtMatmulPreferenceDestroy", &c->preference_free},
        {so, "cublasLtMatmulPreferenceSetAttribute", &c->preference_set},
        {so, "cublasLtMatmulAlgoGetHeuristic", &c->heuristic},
        {so, "cublasLtMatmul", &c->matmul}};
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!cublas_find(c, wanted[i].so, wanted[i].name, wanted[i].fn))
            return false;
    if (c->device(&device, 0) || c->retain(&c->context, device) || c->current(c->context) || c->create(&c->handle))
        snprintf(c->why, sizeof c->why, "cublasLtCreate fails");
    if (*c->why)
        c->handle = NULL;
    return c->handle != NULL;
}

/* A product out [m x n] = a [m x k] b [k x n], row by row; cuBLAS counts by columns, so it multiplies the
 * transposes. */
struct cublas_product {
    void *desc, *a, *b, *out;    /* how the matrices lie */
    struct { uint64_t algorithm[8]; size_t work_bytes; int state; float waves; int reserved[4]; } found;
};

static inline void cublas_product_free(const struct cublas *c, struct cublas_product *p)
{
    void *const layout[] = {p->a, p->b, p->out};
    for (unsigned i = 0; i < 3; i++)
        if (layout[i])
            c->layout_free(layout[i]);
    if (p->desc)
        c->desc_free(p->desc);
    *p = (struct cublas_product){0};
}

/* Asks the library for its fastest algorithm.  false: it has none; nothing is to be freed. */
static inline bool cublas_product_new(const struct cublas *c, int type, int64_t m, int64_t n, int64_t k,
                                      struct cublas_product *p)
{
    const size_t max = CUBLAS_WORKSPACE;
    void *preference = NULL;
    int found = 0;
    *p = (struct cublas_product){0};
    bool ok = !c->desc_new(&p->desc, CUBLAS_COMPUTE_F32, CUBLAS_F32) &&
              !c->layout_new(&p->b, type, (uint64_t)n, (uint64_t)k, n) &&
              !c->layout_new(&p->a, type, (uint64_t)k, (uint64_t)m, k) &&
              !c->layout_new(&p->out, type, (uint64_t)n, (uint64_t)m, n) &&
              !c->preference_new(&preference) &&
              !c->preference_set(preference, CUBLAS_MAX_WORKSPACE, &max, sizeof max) &&
              !c->heuristic(c->handle, p->desc, p->b, p->a, p->out, p->out, preference, 1, &p->found, &found) &&
              found > 0;
    if (preference)
        c->preference_free(preference);
    if (!ok)
        cublas_product_free(c, p);
    return ok;
}

static inline bool cublas_product_run(const struct cublas *c, const struct cublas_product *p, const void *a,
                                      const void *b, void *out, void *work, void *stream)
{
    static const float one = 1, zero = 0;
    return !c->matmul(c->handle, p->desc, &one, b, p->b, a, p->a, &zero, out, p->out, out, p->out, p->found.algorithm,
                      work, CUBLAS_WORKSPACE, stream);
}

#endif
