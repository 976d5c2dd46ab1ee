/* The compilers of source text: from source to a binary, without a device.  Each is a library that is opened with
 * dlopen when it is first used. */
#ifndef KILN_GPU_COMPILE_H
#define KILN_GPU_COMPILE_H
#include "codegen/codegen.h"

enum gpu_output { GPU_BINARY, GPU_ASSEMBLY }; /* the binary that a driver loads; readable assembly text, if the compiler
                                                 has any */

struct gpu_compiler {
    const char *name;              /* name of the dialect */
    const char *const *arch;       /* architectures to test, the default one first; ends with NULL */
    bool (*version)(char *out, size_t size, struct err *e); /* writes the compiler's version; false: there is no
                                                               compiler */
    /* Compiles a file of kernels.  *out: free its bytes with mem_free.  Any thread may call it. */
    bool (*compile)(const char *source, const char *arch, enum gpu_output what, struct code *out, struct err *e);
};

/* ---- compile.c ---- */
/* NULL: there is no such compiler, or it was not built; *e has the reason */
const struct gpu_compiler *gpu_compiler_find(const char *name, struct err *e);
/* Opens the first library of a list that ends with NULL, and finds its functions: names[i] becomes *fn[i]. */
bool gpu_library(const char *what, const char *const *library, const char *const *name, void *const *fn, unsigned n,
                 struct err *e);
/* Sets an error from a compiler's messages, truncated to the length of an error. */
bool gpu_refused(const char *compiler, const char *log, struct err *e);

/* The CUDA version that NVIDIA's driver supports, which is set before the first compilation.  An NVRTC of another major
 * version may produce code that the driver rejects. */
void gpu_driver_version(int major);

#endif
