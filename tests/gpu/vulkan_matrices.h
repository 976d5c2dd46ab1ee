/* A device with cooperative matrices that gpu_matrices.c puts in front of Vulkan's driver and of the compiler of GLSL:
 * what its loader (vulkan_matrices.c) and its compiler (matrix_compiler.c) are told, and what they saw. */
#ifndef VULKAN_MATRICES_H
#define VULKAN_MATRICES_H
#include <stdbool.h>

struct vulkan_matrices_loader {
    unsigned m, n, k;              /* the matrices' sizes */
    bool bf16;                     /* factors of bf16, too */
    bool asked;                    /* the device was made with the extensions and features that kernels need */
};

struct matrix_compiler {
    bool wrong;                    /* products are wrong */
    unsigned kernels;              /* with cooperative matrices */
    unsigned refused;              /* of these: not compiled, or their SPIR-V is not as its specification says */
    char why[256];
};

#endif
