/* CUDA C through NVRTC. */
#include "compile.h"
#include <pthread.h>
#include <stdlib.h>

typedef struct program *program;
typedef int result; /* 0: success */

static struct {
    result (*version)(int *major, int *minor);
    result (*create)(program *p, const char *source, const char *name, int headers, const char *const *header, const char *const *include);
    result (*compile)(program p, int n, const char *const *option);
    result (*log_size)(program p, size_t *size), (*log)(program p, char *out);
    result (*cubin_size)(program p, size_t *size), (*cubin)(program p, char *out);
    result (*ptx_size)(program p, size_t *size), (*ptx)(program p, char *out);
    result (*destroy)(program *p);
} nvrtc;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct err failure;

/* $KILN_CUDA_COMPILER, on the library path, or where $CUDA_PATH or the toolkit's usual folder is. */
static void open_library(void)
{
    static const char *const name[] = {"nvrtcVersion", "nvrtcCreateProgram", "nvrtcCompileProgram", "nvrtcGetProgramLogSize",
                                       "nvrtcGetProgramLog", "nvrtcGetCUBINSize", "nvrtcGetCUBIN", "nvrtcGetPTXSize",
                                       "nvrtcGetPTX", "nvrtcDestroyProgram"};
    void *const fn[] = {&nvrtc.version, &nvrtc.create, &nvrtc.compile, &nvrtc.log_size, &nvrtc.log,
                        &nvrtc.cubin_size, &nvrtc.cubin, &nvrtc.ptx_size, &nvrtc.ptx, &nvrtc.destroy};
    char path[1024] = "libnvrtc.so";
    const char *folder = getenv("CUDA_PATH");
    if (folder)
        snprintf(path, sizeof path, "%s/lib64/libnvrtc.so", folder);
    const char *const given[] = {getenv("KILN_CUDA_COMPILER"), NULL};
    const char *const usual[] = {path, "libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so", NULL};
    gpu_library("NVRTC", given[0] ? given : usual, name, fn, sizeof fn / sizeof *fn, &failure);
}

static bool is_open(struct err *e)
{
    pthread_once(&once, open_library);
    return !failure.code || err_set(e, failure.code, "%s", failure.msg);
}

static bool version(char *out, size_t size, struct err *e)
{
    int major = 0, minor = 0;
    if (!is_open(e))
        return false;
    if (nvrtc.version(&major, &minor))
        return err_set(e, KL_ERR_DEVICE, "NVRTC does not say its version");
    snprintf(out, size, "NVRTC %d.%d", major, minor);
    return true;
}

static bool get(program p, result (*get_size)(program, size_t *), result (*get_bytes)(program, char *), struct code *out, struct err *e)
{
    if (get_size(p, &out->size) || !out->size)
        return err_set(e, KL_ERR_COMPILE, "NVRTC gives no code");
    if (!(out->bytes = mem_alloc(out->size)))
        return err_set(e, KL_ERR_MEMORY, "out of memory compiling with NVRTC");
    return !get_bytes(p, out->bytes) || err_set(e, KL_ERR_COMPILE, "NVRTC gives no code");
}

static bool refused(program p, struct err *e)
{
    size_t size = 0;
    char *log = nvrtc.log_size(p, &size) ? NULL : mem_alloc(size + 1);
    bool ok = gpu_refused("NVRTC", log && !nvrtc.log(p, log) ? log : "it does not say why", e);
    mem_free(log);
    return ok;
}

/* One rounding each: nothing contracted, flushed or approximated. */
static bool compile(const char *source, const char *arch, enum gpu_output what, struct code *out, struct err *e)
{
    char target[64];
    const char *const option[] = {target, "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--std=c++17"};
    program p = NULL;
    *out = (struct code){0};
    if (!is_open(e))
        return false;
    snprintf(target, sizeof target, "--gpu-architecture=%s", arch);
    bool ok = !nvrtc.create(&p, source, "kiln.cu", 0, NULL, NULL) || err_set(e, KL_ERR_MEMORY, "NVRTC makes no program");
    if (ok && nvrtc.compile(p, sizeof option / sizeof *option, option))
        ok = refused(p, e);
    else if (ok)
        ok = what == GPU_BINARY ? get(p, nvrtc.cubin_size, nvrtc.cubin, out, e) : get(p, nvrtc.ptx_size, nvrtc.ptx, out, e);
    if (p)
        nvrtc.destroy(&p);
    if (!ok) {
        mem_free(out->bytes);
        *out = (struct code){0};
    }
    return ok;
}

static const char *const architectures[] = {"sm_80", "sm_90", NULL};
extern const struct gpu_compiler compiler_cuda;
const struct gpu_compiler compiler_cuda = {"cuda", architectures, version, compile};
