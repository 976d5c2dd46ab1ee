/* Finds the compilers and opens their libraries. */
#include "compile.h"
#include <dlfcn.h>
#include <string.h>

extern const struct gpu_compiler compiler_cuda, compiler_hip, compiler_glsl; /* nvrtc.c, hiprtc.c, shaderc.c */

static const struct { const char *name; const struct gpu_compiler *c; } compilers[] = {
#ifdef KILN_CUDA
    {"cuda", &compiler_cuda},
#else
    {"cuda", NULL},
#endif
#ifdef KILN_HIP
    {"hip", &compiler_hip},
#else
    {"hip", NULL},
#endif
#ifdef KILN_VULKAN
    {"glsl", &compiler_glsl},
#else
    {"glsl", NULL},
#endif
};

const struct gpu_compiler *gpu_compiler_find(const char *name, struct err *e)
{
    for (size_t i = 0; i < sizeof compilers / sizeof *compilers; i++) {
        if (strcmp(compilers[i].name, name))
            continue;
        if (!compilers[i].c)
            err_set(e, KL_ERR_DEVICE, "the compiler for %s is not built into this Kiln", name);
        return compilers[i].c;
    }
    err_set(e, KL_ERR_ARGUMENT, "there is no compiler for '%s'", name);
    return NULL;
}

/* Libraries are never closed, because compilers leave exit handlers behind. */
bool gpu_library(const char *what, const char *const *library, const char *const *name, void *const *fn, unsigned n,
                 struct err *e)
{
    void *so = NULL;
    for (const char *const *l = library; *l && !so; l++)
        so = dlopen(*l, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!so)
        return err_set(e, KL_ERR_DEVICE, "%s: no library %s", what, library[0]);
    for (unsigned i = 0; i < n; i++) {
        void *f = dlsym(so, name[i]);
        if (!f)
            return err_set(e, KL_ERR_DEVICE, "%s: %s has no function %s", what, library[0], name[i]);
        memcpy(fn[i], &f, sizeof f);
    }
    return true;
}

bool gpu_refused(const char *compiler, const char *log, struct err *e)
{
    const char *error = strstr(log, "error");
    while (error && error > log && error[-1] != '\n')
        error--;
    return err_set(e, KL_ERR_COMPILE, "%s refuses the source: %.300s", compiler, error ? error : log);
}
