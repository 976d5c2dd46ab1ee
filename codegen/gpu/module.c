/* libkiln-gpu.so's entry: what the library gives to the one that opens it. */
#include "codegen/gpu/compilers/compile.h"
#include "codegen/gpu_codegen.h"
#include "source.h"
#include <string.h>

static const struct backend *backend_of_language(const char *language, struct err *e)
{
    const struct dialect *d = dialect_find(language, e);
    return !d ? NULL : !strcmp(language, "cuda") ? &backend_cuda : !strcmp(language, "hip") ? &backend_hip
                                                                                           : &backend_vulkan;
}

static bool any_device(const char *language, struct caps *out, struct err *e)
{
    const struct dialect *d = dialect_find(language, e);
    if (d)
        dialect_caps(d, out);
    return d != NULL;
}

static void device_features(const char *language, struct caps *out)
{
    struct err ignored = {0};
    const struct dialect *d = dialect_find(language, &ignored);
    dialect_limits(d, out->features, out);
    dialect_architecture(d, out->features, out);
}

static int64_t loop_iterations(const struct kernel *k) { return source_steps(k, NULL); }

__attribute__((visibility("default"))) const struct gpu_codegen *kiln_gpu_codegen(void);
const struct gpu_codegen *kiln_gpu_codegen(void)
{
    static const struct gpu_codegen g = {
        .abi = GPU_CODEGEN_ABI, .memory = mem_use, .backend = backend_of_language, .any_device = any_device,
        .device_features = device_features, .loop_iterations = loop_iterations, .driver_version = gpu_driver_version,
        .target_caps = target_caps, .target_print = target_print, .device_print = device_print};
    return &g;
}
