/* What libkiln-gpu.so, the code generators of GPUs, gives to the library that opens it (runtime/device/gpu.c).  A
 * language is "cuda", "hip" or "glsl". */
#ifndef KILN_GPU_CODEGEN_H
#define KILN_GPU_CODEGEN_H
#include "codegen.h"
#include "ir/loop/loop.h"
#include <stdio.h>

/* A word of the features of a device whose driver makes no tensor maps, so that kernels cannot copy panels. */
#define NO_TENSOR_MAPS "-tensor_maps"

/* Words of the features of a Vulkan device with VK_KHR_cooperative_matrix, for factors of f16 and of bf16: they are
 * followed by MxNxK.  If both are there, they have the same lengths. */
#define VULKAN_MATRIX_F16 "+matrix_f16_"
#define VULKAN_MATRIX_BF16 "+matrix_bf16_"

/* What the values in a kernel's arrays are called, by lbuf: parts separated by '.', "" where nothing is known. */
enum { ARRAY_NAME = 96 };
struct array_name { char text[ARRAY_NAME]; bool known; };
struct array_names { struct array_name *array; };

struct gpu_codegen {
    uint32_t abi;                                     /* the GPU_CODEGEN_ABI that it was built with */
    bool (*memory)(const kl_memory *m);               /* as in struct backend */
    const struct backend *(*backend)(const char *language, struct err *e);
    /* The capabilities of a device of this language that is not known yet; false: there is no such language. */
    bool (*any_device)(const char *language, struct caps *out, struct err *e);
    /* Sets what the device's features (out->features) decide: limits, matrix units, shared memory. */
    void (*device_features)(const char *language, struct caps *out);
    /* An upper bound for the number of loop iterations that a thread executes in one iteration of the parallel loop. */
    int64_t (*loop_iterations)(const struct kernel *k);
    /* The CUDA version that NVIDIA's driver supports, which is set before the first compilation. */
    void (*driver_version)(int major);
    /* As gpu_caps, gpu_print and gpu_print_for (runtime/device/devices.h); features: those of the device. */
    bool (*target_caps)(const char *target, struct caps *out, struct err *e);
    bool (*target_print)(const struct kernel *const *k, const struct array_names *names, uint32_t n,
                         const char *target, const char *stage, FILE *f, struct err *e);
    bool (*device_print)(const struct kernel *const *k, const struct array_names *names, uint32_t n,
                         const char *language, const char *features, const char *stage, FILE *f, struct err *e);
};
#define GPU_CODEGEN_ABI (2u << 16 | KERNEL_ABI) /* the first number: of this struct */

#endif
