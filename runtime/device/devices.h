/* Devices: the host's, those with memory of their own, plug-ins; and kernels printed for GPUs. */
#ifndef KILN_DEVICES_H
#define KILN_DEVICES_H
#include "codegen/codegen.h"
#include "ir/ir.h"
#include "passes/passes.h"
#include <stdatomic.h>

/* ---- device.c ---- */
/* Numbers of devices: those of the host's memory, meta, which has none and computes nothing, then DEVICES_A_KIND for
 * each kind that has drivers. */
enum device_number { DEVICE_REF, DEVICE_CPU, DEVICE_HOSTS, DEVICE_META = 7, DEVICE_CUDA = 8, DEVICE_HIP = 16,
                     DEVICE_VULKAN = 24,
                     DEVICE_PLUGIN = 32, DEVICE_END = 56 }; /* plug-ins: three kinds (plugin.h) */
enum { DEVICES_A_KIND = 8 };
_Static_assert(DEVICE_END <= MAX_DEVICES, "a graph's nodes name every device");
/* Number of a device by name ("ref", "cpu", "vulkan", "vulkan:1"), -1 with the reason in *e if unknown, not built or
 * not working. */
int device_find(const char *name, struct err *e);
/* KILN_DEVICE if set, else the first of cuda, hip, cpu and ref that works; *why (never NULL): why those before it do
 * not. */
int device_default(const char **why, struct err *e);
const char *device_name(int device);
/* Kinds are enum kl_device_kind. */
const char *device_kind_name(unsigned kind); /* "unknown" for what is none */
unsigned device_kind(int device);
int device_number(unsigned kind, unsigned index, struct err *e); /* as device_find, by kind and number in it */
unsigned device_kind_count(unsigned kind, struct err *e); /* how many there are; 0: *e says why */
bool device_works(unsigned device, struct err *e); /* false: *e says why not */
/* The code generator of a device that device_find accepted; NULL for ref.  *caps (may be NULL): its target. */
const struct backend *device_backend(int device, struct caps *caps);
/* The devices, by bit, that sum products of bf16 in pairs (caps.dot2), if the graph has such products: cpu, and ref,
 * which computes the same sums. */
uint64_t device_in_pairs(const struct graph *g);
/* The dtypes a device has, by bit; of one that works. */
uint32_t device_dtypes(int device);
/* A line for each device of each kind: what it is, or why there is none. */
void device_list(void (*line)(void *ctx, const char *name, bool works, const char *text), void *ctx);

/* ---- cpu.c ---- */
/* The code generator of cpu: caps, version and compile, where the last alone needs it opened.  NULL: it does not work,
 * *e.  Once. */
const struct backend *cpu_generator(struct err *e);

/* ---- plugin.c: devices that a shared object brings ---- */
bool plugin_load(const char *path, struct err *e);   /* kl_plugin_load */

/* ---- accelerator.c: devices that have memory of their own, through their drivers (driver.h) ---- */
struct accelerator;                      /* one that was opened */
bool device_is_host(int device);         /* its memory is the host's */
struct accelerator *accelerator_get(int device); /* NULL: the device's memory is the host's */
bool accelerator_open(int device, struct err *e); /* once; then what came of it */
unsigned accelerator_count(int device, struct err *e); /* of its kind; 0: *e says why */
bool accelerator_finish(struct accelerator *a, struct err *e); /* waits for all that it was given */
void *accelerator_stream(const struct accelerator *a); /* CUstream, hipStream_t; NULL: it has none */
const struct caps *accelerator_caps(const struct accelerator *a);
uint32_t accelerator_dtypes(const struct accelerator *a); /* by bit */
const struct driver *accelerator_driver(const struct accelerator *a);
struct driver_device *accelerator_device(const struct accelerator *a);
/* One thread at a time works with a device; the same may lock it again.  Several are locked in the order of their
 * numbers. */
void accelerator_lock(struct accelerator *a);
void accelerator_unlock(struct accelerator *a);
/* What a launch may touch of a buffer: so many bytes from its address. */
struct buffer_use { size_t bytes; bool written; };
/* A kernel's code on a device. */
struct device_kernel {
    struct driver_kernel *kernel;
    int64_t work;                        /* bytes of a block's scratch that is an argument */
    uint32_t resident;                   /* blocks that the device runs at once; 0: not known */
    int64_t most_each;                   /* iterations of the parallel loop that a block may run; 0: any number */
    uint32_t nbuf;
    uint8_t *local;                     /* per lbuf: no argument */
    struct buffer_use use[];            /* per argument */
};
struct device_kernel *accelerator_load(struct accelerator *a, const struct kernel *k, const struct code *code,
                                       struct err *e);
void accelerator_unload(struct accelerator *a, struct device_kernel *k);
/* Blocks of a launch over so many iterations. */
uint32_t accelerator_blocks(const struct device_kernel *k, int64_t extent);

/* ---- gpu.c: kernels in the languages of GPUs: "cuda" (also NULL), "hip" or "glsl" ---- */
bool gpu_caps(const char *target, struct caps *out, struct err *e); /* to plan programs for such a GPU */
/* Prints a stage of the kernels: scheduled, source or asm. */
bool gpu_print(const struct kernel *const *k, uint32_t n, const char *target, const char *stage, FILE *f,
               struct err *e);

#endif
