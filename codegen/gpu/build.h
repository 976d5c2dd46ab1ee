/* A kernel as code for a GPU: source, its compiler, and what a launch must know, in one piece that can be kept on
 * disk. */
#ifndef KILN_GPU_BUILD_H
#define KILN_GPU_BUILD_H
#include "codegen/codegen.h"

/* Looks into a struct code; nothing of its own. */
struct gpu_code {
    uint32_t threads;              /* of a block */
    uint32_t nbuf;                 /* lbufs of the kernel */
    uint32_t dynamic_bytes;        /* of shared memory that a launch must give each block */
    const uint8_t *local;         /* per lbuf: no argument */
    const void *binary;            /* 8-byte aligned where the code is */
    size_t size;
};
bool gpu_code_open(const struct code *c, struct gpu_code *out, struct err *e); /* false: it is none, or not whole */

/* compile_for: caps of a device; for cuda and hip the architecture is the first word of its features.  compile: of a
 * device that has everything, of the usual architecture. */
extern const struct backend backend_cuda, backend_hip, backend_vulkan;
/* Of devices with compilers of their own: the code is the kernel's text, with its end, and no buffer is inside. */
extern const struct backend backend_plugin;

#endif
