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
enum { CUBLAS_WORKSPACE = 32 << 20 };

struct cublas {
    void *handle, *context;
    char why[256];               /* there is none: why */
    int (*device)(int *device, int ordinal), (*retain)(void **context, int device), (*current)(void *context),
        (*wait)(void);
    int (*create)(void **handle);
    int (*desc_new)(void **desc, int compute, int scale), (*desc_free)(void *desc);
    int (*layout_new)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading),
        (*layout_free)(void *layout);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,
                  void *b_layout,
                  const void *beta, const void *c, void *c_layout, void *d, void *d_layout, const void *algorithm,
                      void *work,
                  size_t work_bytes, void *stream);
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
    if (!cublas_find(c, driver, "cuDeviceGet", &c->device) ||
        !cublas_find(c, driver, "cuDevicePrimaryCtxRetain", &c->retain) ||
        !cublas_find(c, driver, "cuCtxSetCurrent", &c->current) ||
            !cublas_find(c, driver, "cuCtxSynchronize", &c->wait) ||
        !cublas_find(c, so, "cublasLtCreate", &c->create) ||
            !cublas_find(c, so, "cublasLtMatmulDescCreate", &c->desc_new) ||
        !cublas_find(c, so, "cublasLtMatmulDescDestroy", &c->desc_free) ||
        !cublas_find(c, so, "cublasLtMatrixLayoutCreate", &c->layout_new) ||
        !cublas_find(c, so, "cublasLtMatrixLayoutDestroy", &c->layout_free) ||
            !cublas_find(c, so, "cublasLtMatmul", &c->matmul))
        return false;
    if (c->device(&device, 0) || c->retain(&c->context, device) || c->current(c->context) || c->create(&c->handle))
        snprintf(c->why, sizeof c->why, "cublasLtCreate fails");
    return !*c->why;
}

/* out [m x n] = a [m x k] b [k x n], row by row; cuBLAS counts by columns, so it multiplies the transposes. */
static inline bool cublas_product(const struct cublas *c, int type, int64_t m, int64_t n, int64_t k, const void *a,
                                  const void *b, void *out,
                                  void *work)
{
    static const float one = 1, zero = 0;
    void *desc = NULL, *la = NULL, *lb = NULL, *lo = NULL;
    bool ok = !c->desc_new(&desc, CUBLAS_COMPUTE_F32, CUBLAS_F32) &&
        !c->layout_new(&lb, type, (uint64_t)n, (uint64_t)k, n) &&
              !c->layout_new(&la, type, (uint64_t)k, (uint64_t)m, k) &&
                  !c->layout_new(&lo, type, (uint64_t)n, (uint64_t)m, n) &&
              !c->matmul(c->handle, desc, &one, b, lb, a, la, &zero, out, lo, out, lo, NULL, work, CUBLAS_WORKSPACE,
                         NULL) && !c->wait();
    if (desc)
        c->desc_free(desc);
    if (la)
        c->layout_free(la);
    if (lb)
        c->layout_free(lb);
    if (lo)
        c->layout_free(lo);
    return ok;
}

#endif
