/* The compilers of source text, each opened with dlopen where it is first used: source to a binary, no device
 * needed. */
#ifndef KILN_GPU_COMPILE_H
#define KILN_GPU_COMPILE_H
#include "codegen/codegen.h"

enum gpu_output { GPU_BINARY, GPU_ASSEMBLY }; /* what a driver loads; text for people, where the compiler gives any */

struct gpu_compiler {
    const char *name;              /* the dialect's */
    const char *const *arch;       /* architectures to test, the usual one first; NULL ends them */
    bool (*version)(char *out, size_t size, struct err *e); /* also: is it there? */
    /* A whole file of kernels.  *out: mem_free its bytes.  Safe in any thread. */
    bool (*compile)(const char *source, const char *arch, enum gpu_output what, struct code *out, struct err *e);
};

/* ---- compile.c ---- */
/* NULL: none, or not built; *e says which */
const struct gpu_compiler *gpu_compiler_find(const char *name, struct err *e);
/* The first of the libraries (NULL ends them) that can be opened, with its functions: names[i] to *fn[i]. */
bool gpu_library(const char *what, const char *const *library, const char *const *name, void *const *fn, unsigned n,
                 struct err *e);
/* A compiler's complaint, cut to what an error holds. */
bool gpu_refused(const char *compiler, const char *log, struct err *e);

/* The CUDA version that NVIDIA's driver supports, set before the first compilation: an NVRTC of another major number
 * may make code that the driver rejects. */
void gpu_driver_version(int major);

#endif
