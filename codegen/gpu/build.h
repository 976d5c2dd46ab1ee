/* A kernel's code for a GPU: the binary and what a launch must know, in one block of bytes that can be stored on
 * disk. */
#ifndef KILN_GPU_BUILD_H
#define KILN_GPU_BUILD_H
#include "codegen/codegen.h"
#include "ir/loop/loop.h"

/* A view of an argument (BUF_VIEW), of which a kernel copies boxes of `cols` x `rows` elements to shared memory.  The
 * launch gives the kernel a tensor map of it, before the other arguments. */
struct gpu_view {
    uint32_t argument;            /* number of the buffer, among the kernel's arguments */
    uint32_t dtype, cols, rows;
    int64_t first, size[VIEW_DIMS], step[VIEW_DIMS]; /* as in struct lbuf */
};

/* The contents of a struct code: all pointers point into it. */
struct gpu_code {
    uint32_t threads;              /* threads of a block */
    uint32_t nbuf;                 /* number of the kernel's lbufs */
    uint32_t dynamic_bytes;        /* bytes of dynamic shared memory that a launch must give each block */
    const uint8_t *local;         /* per lbuf: it is not an argument */
    const struct gpu_view *view; uint32_t nview;
    const char *function;          /* name of the kernel's function in the binary */
    struct hash128 module;         /* of the binary if it is the module of several kernels; else 0 */
    const void *binary;            /* 8-byte aligned if the struct code is */
    size_t size;
};
/* module: the binary, if gpu_code_module; else NULL.  false: these bytes are not such code, or are truncated. */
bool gpu_code_open(const struct code *c, const struct code *module, struct gpu_code *out, struct err *e);
/* Was the kernel compiled together with others?  Then its code is small, and *module is the hash of the binary. */
bool gpu_code_module(const struct code *c, struct hash128 *module);

/* compile_for: compiles for a device with these caps; for cuda and hip the architecture is the first word of its
 * features.  compile: compiles for a device with all features and the default architecture. */
extern const struct backend backend_cuda, backend_hip, backend_vulkan;
/* For devices whose plug-in compiles by itself: the code is the kernel's text, with a terminating zero, and all buffers
 * are arguments. */
extern const struct backend backend_plugin;

#endif
