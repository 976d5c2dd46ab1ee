/* A program compiled ahead of time: constant data, the image, beside its kernels in an object file.
 *
 * The object defines, for a prefix P,
 *
 *     int P_run(const P_args *args)            one run; KL_OK or what kiln_aot_error says in words
 *     size_t P_workspace_bytes(void)           memory that a run works in, with the threads that there are now
 *
 * which hand its image and its kernels over to the functions below, those of the library that such programs are linked
 * with.  The header beside the object declares them, and the struct P_args, whose members are
 *
 *     a pointer for each input, state and returned value, in this order
 *     void *workspace; size_t workspace_bytes
 *     each slot that is not fixed, in its own type; those of one name and type are one member
 *
 * What the image says of places are offsets from its start, so that it needs no relocations. */
#ifndef KILN_IMAGE_H
#define KILN_IMAGE_H
#include "passes/passes.h"

enum { IMAGE_MAGIC = 0x6b6c6e31, IMAGE_VERSION = 3 }; /* the version: of all that stands in this file */

struct image {
    uint32_t magic, version;
    uint32_t nkernel, ninput, nstate, nreturn, nslot, nout;
    uint32_t kernel;          /* struct image_kernel[nkernel] */
    uint32_t pointer;         /* int64_t[ninput + nstate + nreturn]: bytes behind each pointer of the args */
    uint32_t slot;            /* struct image_slot[nslot] */
    uint32_t out;             /* struct image_out[nout] */
    uint32_t program;
    uint32_t max_args;        /* most arguments of a kernel */
    uint32_t weight, pad;     /* uint32_t[nstate], or 0: a state's value, where its pointer is NULL; 0: it has none */
    uint64_t features;        /* of the processor: bit i is number i of IMAGE_FEATURES */
    int64_t arena_bytes, scratch_bytes; /* scratch: of each thread */
    int64_t later_bytes;      /* new values of states that must not be overwritten before the end */
};
struct image_kernel { int64_t extent, grain; };
struct image_slot { uint32_t at, bytes; uint64_t fixed; }; /* in the args; bytes 0: the value is `fixed` */
/* Where an output of the program goes: to pointer `pointer` of the args, or, if it is later >= 0, there at first. */
struct image_out { uint32_t pointer, pad; int64_t later, bytes; };

struct image_program { uint32_t ncmd, cmd; }; /* struct image_command[ncmd] */
struct image_command {
    uint32_t kind;            /* CMD_KERNEL, CMD_COPY or CMD_REGION */
    uint32_t kernel, region;  /* the kernel's number; struct image_region */
    uint32_t narg, arg;       /* struct loc[narg], as in struct command */
    uint32_t joined;          /* CMD_KERNEL: no barrier between it and the kernel before it */
    int64_t bytes;            /* of a copy */
};
enum image_region_kind { IMAGE_COND, IMAGE_WHILE, IMAGE_SCAN };
struct image_region {
    uint32_t kind, nin, nout, carried, scanned, reverse;
    int64_t length;
    uint32_t bytes;           /* int64_t[nin + nout]: of the operands and results */
    uint32_t program[2];      /* struct image_program; 0: none */
    uint32_t pad;
    int64_t work, pointers, arena; /* as in struct workspace */
};

/* What a processor must have, in names that both the code generator and the compiler know. */
#if defined(__x86_64__)
#define IMAGE_FEATURES(X)                                                                                       \
    X(avx2) X(fma) X(bmi) X(bmi2) X(avx512f) X(avx512bw) X(avx512vl) X(avx512dq) X(avx512cd) X(avx512vbmi)       \
    X(avx512ifma) X(avx512vnni) X(avx512vbmi2) X(avx512bitalg) X(avx512vpopcntdq) X(avx512bf16) X(gfni)
#else
#define IMAGE_FEATURES(X)
#endif

/* ---- run.c: the library ---- */
int kiln_aot_run(const struct image *m, kernel_fn *const *kernel, const void *args);
size_t kiln_aot_workspace_bytes(const struct image *m);
void kiln_aot_threads(unsigned n);      /* as pool_set_threads */
const char *kiln_aot_error(int status); /* of kiln_aot_run, in words */

#endif
