/* CUDA C through NVRTC. */
#include "rtc.h"
#include <stdlib.h>

static void nvrtc_open_library(void);
/* One rounding each: nothing contracted, flushed or approximated. */
static const char *const option[] = {"--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
                                     "--std=c++17", NULL};
static struct rtc nvrtc = {.name = "NVRTC", .file = "kiln.cu", .option = option, .open = nvrtc_open_library,
                           .once = PTHREAD_ONCE_INIT};

/* $KILN_CUDA_COMPILER, on the library path, or where $CUDA_PATH or the toolkit's usual folder is. */
static void nvrtc_open_library(void)
{
    static const char *const name[] = {"nvrtcVersion", "nvrtcCreateProgram", "nvrtcCompileProgram",
                                       "nvrtcGetProgramLogSize",
                                       "nvrtcGetProgramLog", "nvrtcGetCUBINSize", "nvrtcGetCUBIN", "nvrtcGetPTXSize",
                                       "nvrtcGetPTX", "nvrtcDestroyProgram"};
    void *const fn[] = {&nvrtc.version, &nvrtc.create, &nvrtc.compile, &nvrtc.log_size, &nvrtc.log,
                        &nvrtc.binary_size, &nvrtc.binary, &nvrtc.assembly_size, &nvrtc.assembly, &nvrtc.destroy};
    char path[1024] = "libnvrtc.so";
    const char *folder = getenv("CUDA_PATH");
    if (folder)
        snprintf(path, sizeof path, "%s/lib64/libnvrtc.so", folder);
    const char *const given[] = {getenv("KILN_CUDA_COMPILER"), NULL};
    const char *const usual[] = {path, "libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12",
                                 "/usr/local/cuda/lib64/libnvrtc.so", NULL};
    gpu_library(nvrtc.name, given[0] ? given : usual, name, fn, sizeof fn / sizeof *fn, &nvrtc.failure);
}

static bool nvrtc_version(char *out, size_t size, struct err *e) { return rtc_version(&nvrtc, out, size, e); }

static bool nvrtc_compile(const char *source, const char *arch, enum gpu_output what, struct code *out, struct err *e)
{
    return rtc_compile(&nvrtc, source, arch, what, out, e);
}

static const char *const architectures[] = {"sm_80", "sm_90", NULL};
extern const struct gpu_compiler compiler_cuda;
const struct gpu_compiler compiler_cuda = {"cuda", architectures, nvrtc_version, nvrtc_compile};
