/* CUDA C through NVRTC. */
#include "rtc.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void nvrtc_open_library(void);
/* Each operation is rounded once: no contraction, no flushing of subnormal numbers, no approximations. */
static const char *const option[] = {"--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
                                     "--std=c++17", NULL};
static struct rtc nvrtc = {.name = "NVRTC", .file = "kiln.cu", .option = option, .open = nvrtc_open_library,
                           .once = PTHREAD_ONCE_INIT};

static atomic_int driver_major;
void gpu_driver_version(int major) { atomic_store(&driver_major, major); }

/* The architectures that NVRTC supports, which it reports since CUDA 11.2. */
static rtc_result (*count_architectures)(int *n), (*get_architectures)(int *number);

/* The library is $KILN_CUDA_COMPILER, or the one of the driver's major version, on the library path, in $CUDA_PATH, or
 * in the toolkit's default folder. */
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
    char own[32] = "libnvrtc.so";
    if (atomic_load(&driver_major))
        snprintf(own, sizeof own, "libnvrtc.so.%d", atomic_load(&driver_major));
    const char *const usual[] = {own, path, "libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12",
                                 "/usr/local/cuda/lib64/libnvrtc.so", NULL};
    gpu_library(nvrtc.name, given[0] ? given : usual, name, fn, sizeof fn / sizeof *fn, &nvrtc.failure);
    struct err ignored = {0};
    static const char *const newer[] = {"nvrtcGetNumSupportedArchs", "nvrtcGetSupportedArchs"};
    if (!nvrtc.failure.code)
        gpu_library(nvrtc.name, given[0] ? given : usual, newer,
                    (void *const[]){&count_architectures, &get_architectures}, 2, &ignored);
}

/* The newest architecture that NVRTC supports, if it does not support this one, which is of a later GPU; else 0. */
static int fallback_arch(const char *arch)
{
    enum { MAX_COUNT = 64 };
    int number[MAX_COUNT], n = 0, newest = 0, wanted = strncmp(arch, "sm_", 3) ? 0 : atoi(arch + 3);
    if (!wanted || !count_architectures || count_architectures(&n) || n < 1 || n > MAX_COUNT ||
        get_architectures(number))
        return 0;
    for (int i = 0; i < n; i++) {
        newest = number[i] > newest ? number[i] : newest;
        if (number[i] == wanted)
            return 0;
    }
    return newest < wanted ? newest : 0;
}

static bool nvrtc_version(char *out, size_t size, struct err *e) { return rtc_version(&nvrtc, out, size, e); }

static bool nvrtc_compile(const char *source, const char *arch, enum gpu_output what, struct code *out, struct err *e)
{
    char version[64], older[32];
    int newest = what == GPU_BINARY && rtc_version(&nvrtc, version, sizeof version, e) ? fallback_arch(arch) : 0;
    if (!newest)
        return rtc_compile(&nvrtc, source, arch, what, out, e);
    snprintf(older, sizeof older, "compute_%d", newest); /* PTX, which the driver compiles */
    return rtc_compile(&nvrtc, source, older, GPU_ASSEMBLY, out, e);
}

static const char *const architectures[] = {"sm_80", "sm_90a", NULL};
extern const struct gpu_compiler compiler_cuda;
const struct gpu_compiler compiler_cuda = {"cuda", architectures, nvrtc_version, nvrtc_compile};
