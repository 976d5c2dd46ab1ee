/* The data of a program compiled ahead of time, as read by runtime/aot/run.c for objects and by codegen/c/runner.h,
 * into which this text is copied.  It uses fixed-width integers only, and no member needs an alignment above its size,
 * so the layout is the same on all targets.  Offsets are bytes from the image's start. */
#ifndef KILN_IMAGE_FORMAT_H
#define KILN_IMAGE_FORMAT_H
#include <stdint.h>
#ifndef IMAGE_STRUCT
#define IMAGE_STRUCT struct /* with attributes, for a field of another type */
#endif

enum { IMAGE_MAGIC = 0x6b6c6e31, IMAGE_VERSION = 5 }; /* the version of everything in this file */

IMAGE_STRUCT image {
    uint32_t magic, version;
    uint32_t nkernel, ninput, nstate, nreturn, nslot, nout;
    uint32_t kernel;          /* struct image_kernel[nkernel] */
    uint32_t pointer;         /* int64_t[ninput + nstate + nreturn]: size in bytes of each array of the args */
    uint32_t slot;            /* struct image_slot[nslot] */
    uint32_t out;             /* struct image_out[nout] */
    uint32_t program;
    uint32_t max_args;        /* maximum number of arguments of a kernel */
    /* uint32_t[nstate], or 0: offset of the state's value, used where its pointer is NULL; 0: it has none */
    uint32_t weight, pad;
    uint64_t features;        /* of the processor: bit i is number i of IMAGE_FEATURES */
    int64_t arena_bytes, scratch_bytes; /* scratch: of each thread */
    int64_t later_bytes;      /* bytes of new values of states that must not be overwritten before the end */
};
IMAGE_STRUCT image_kernel { int64_t extent, grain; };
/* at: offset in the args; bytes 0: the value is `fixed` */
IMAGE_STRUCT image_slot { uint32_t at, bytes; uint64_t fixed; };
/* The destination of an output: pointer `pointer` of the args; if later >= 0 it is first written to that offset. */
IMAGE_STRUCT image_out { uint32_t pointer, pad; int64_t later, bytes; };

/* The base of an address, as in struct loc. */
enum image_place { IMAGE_ARENA, IMAGE_INPUT, IMAGE_STATE, IMAGE_OUT, IMAGE_SCRATCH };
IMAGE_STRUCT image_loc { uint32_t kind, index; int64_t offset; };

IMAGE_STRUCT image_program { uint32_t ncmd, cmd; }; /* struct image_command[ncmd] */
enum image_command_kind { IMAGE_KERNEL, IMAGE_COPY, IMAGE_REGION };
IMAGE_STRUCT image_command {
    uint32_t kind;            /* enum image_command_kind */
    uint32_t kernel, region;  /* the kernel's number; struct image_region */
    uint32_t narg, arg;       /* struct image_loc[narg], as in struct command */
    uint32_t no_barrier;      /* CMD_KERNEL: no barrier between it and the kernel before it */
    int64_t bytes;            /* of a copy */
};
enum image_region_kind { IMAGE_COND, IMAGE_WHILE, IMAGE_SCAN };
IMAGE_STRUCT image_region {
    uint32_t kind, nin, nout, carried, scanned, reverse;
    int64_t length;
    uint32_t bytes;           /* int64_t[nin + nout]: of the operands and results */
    uint32_t program[2];      /* struct image_program; 0: none */
    uint32_t pad;
    int64_t work, pointers, arena; /* as in struct workspace */
};

#endif
