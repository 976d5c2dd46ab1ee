/* Loads the library of fake_gpu.c in place of CUDA's and HIP's, for a test's own process. */
#ifndef FAKE_LOAD_H
#define FAKE_LOAD_H
#include "fake_gpu.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* program: argv[0], beside which the library is.  NULL: printed why. */
static inline struct fake_gpu *fake_gpu_load(const char *program)
{
    static char path[1024];
    static const char *const name[] = {"KILN_CUDA_DRIVER", "KILN_CUDA_COMPILER", "KILN_HIP_DRIVER",
                                       "KILN_HIP_COMPILER"};
    const char *slash = strrchr(program, '/');
    snprintf(path, sizeof path, "%.*s/libfake-gpu.so", slash ? (int)(slash - program) : 1, slash ? program : ".");
    for (unsigned i = 0; i < 4; i++)
        setenv(name[i], path, 1);
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    struct fake_gpu *(*get)(void);
    *(void **)&get = so ? dlsym(so, "fake_gpu") : NULL;
    if (!get)
        printf("%s: %s\n", path, dlerror());
    return get ? get() : NULL;
}

#endif
