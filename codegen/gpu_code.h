/* A kernel's code for a GPU: the binary and what a launch must know, in one block of bytes that can be stored on
 * disk. */
#ifndef KILN_GPU_CODE_H
#define KILN_GPU_CODE_H
#include "codegen.h"
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
    uint32_t table;                /* 1: the kernel has one parameter for all buffers, an array of their addresses */
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

/* What a launch must know of a kernel's source. */
struct source_info {
    uint32_t threads;             /* threads of a block */
    uint32_t shared_bytes;
    uint32_t dynamic_bytes;       /* the part of shared_bytes that the launch must give */
    bool *local;                 /* per buffer: declared in the function, so it is not an argument */
    uint32_t *narrow;            /* per buffer: accesses in the text of less than 16 bytes, without copies */
};
enum { GPU_FUNCTION_SIZE = 24 }; /* bytes of a function's name, with its zero */
/* Makes a kernel's code.  binary: of this kernel alone; NULL: it is in the module with this hash. */
bool gpu_code_join(const struct source_info *info, const struct kernel *k, const char *function,
                   const struct code *binary, struct hash128 module, struct code *out, struct err *e);

/* ---- plugin.c ---- */
/* For devices whose plug-in compiles by itself: the code is the kernel's text, with a terminating zero, and all buffers
 * are arguments. */
extern const struct backend backend_plugin;

#endif
