/* Devices: those of the host's memory, those with separate memory, and plug-ins; and kernels printed for GPUs. */
#ifndef KILN_DEVICES_H
#define KILN_DEVICES_H
#include "codegen/codegen.h"
#include "ir/ir.h"
#include "passes/passes.h"
#include <stdatomic.h>

/* ---- device.c ---- */
/* Numbers of devices.  First come the devices that use the host's memory and meta, which has no memory and computes
 * nothing; then each kind that has drivers has DEVICES_A_KIND numbers. */
enum device_number { DEVICE_REF, DEVICE_CPU, DEVICE_HOSTS, DEVICE_META = 7, DEVICE_CUDA = 8, DEVICE_HIP = 16,
                     DEVICE_VULKAN = 24,
                     DEVICE_PLUGIN = 32, DEVICE_END = 56 }; /* plug-ins: three kinds (plugin.h) */
enum { DEVICES_A_KIND = 8 };
_Static_assert(DEVICE_END <= MAX_DEVICES, "a graph's nodes name every device");
/* Returns the number of a device by its name ("ref", "cpu", "vulkan", "vulkan:1").  -1: the device is unknown, not
 * built or does not work; *e has the reason. */
int device_find(const char *name, struct err *e);
/* Returns the device in KILN_DEVICE if it is set, else the first of cuda, hip, cpu and ref that works.  *why (never
 * NULL): why the devices before it do not work. */
int device_default(const char **why, struct err *e);
const char *device_name(int device);
/* Kinds are numbers of enum kl_device_kind. */
const char *device_kind_name(unsigned kind); /* "unknown" if there is no such kind */
unsigned device_kind(int device);
int device_number(unsigned kind, unsigned index, struct err *e); /* like device_find, by the kind and the number in
                                                                    it */
unsigned device_kind_count(unsigned kind, struct err *e); /* the number of devices of a kind; 0: *e says why there are
                                                             none */
bool device_works(unsigned device, struct err *e); /* false: *e has the reason */
/* Returns the code generator of a device that device_find has accepted; NULL for ref.  *caps (may be NULL): its
 * target. */
const struct backend *device_backend(int device, struct caps *caps);
/* Compiles a kernel as such a device, which is not ref, runs it. */
bool device_compile(int device, const struct kernel *k, enum emit_kind kind, struct code *out, struct err *e);
/* The devices, by bit, that add products of bf16 two at a time (caps.dot2), if the graph has products of bf16:
 * cpu, and ref, which computes the same sums. */
uint64_t device_bf16_dot2(const struct graph *g);
/* Likewise those that have an instruction for tiles of bf16 (caps.bf16_tiles); with option order = graph it is not
 * used. */
uint64_t device_bf16_tiles(const struct graph *g);
/* What pass fuse needs to know of cpu, if the graph has nodes on it, or on ref; else {0}.  threads: only if there is
 * attention; reads_windows: if there is that or a window. */
struct processor device_processor(const struct graph *g);
/* Of the devices of its nodes, those that are GPUs, as a set of bits. */
uint64_t device_gpus(const struct graph *g);
/* The dtypes that a device supports, as a set of bits.  The device must work. */
uint32_t device_dtypes(int device);
/* Calls `line` for each device of each kind: with its description, or with the reason why it does not work. */
void device_list(void (*line)(void *ctx, const char *name, bool works, const char *text), void *ctx);

/* ---- cpu.c ---- */
/* Returns the code generator of cpu, with caps, version and compile; only compile opens its library.  NULL: it does not
 * work; *e has the reason.  It is called once. */
const struct backend *cpu_generator(struct err *e);

/* ---- plugin.c: devices that a shared object brings ---- */
bool plugin_load(const char *path, struct err *e);   /* see kl_plugin_load */

/* ---- accelerator.c: devices that have memory of their own, through their drivers (driver.h) ---- */
struct accelerator;                      /* a device that was opened */
/* does the device use the host's memory? */
static inline bool device_is_host(int device) { return device < DEVICE_CUDA; }
struct accelerator *accelerator_get(int device); /* NULL: the device uses the host's memory, or is not opened */
bool accelerator_open(int device, struct err *e); /* opens the device the first time; later calls return the same
                                                     result */
unsigned accelerator_count(int device, struct err *e); /* the number of devices of its kind; 0: *e says why there are
                                                          none */
/* Waits for all commands of the device; before that for its lock, as accelerator_lock_cancellable does. */
bool accelerator_finish(struct accelerator *a, struct err *e);
void *accelerator_stream(const struct accelerator *a); /* the CUstream or hipStream_t; NULL: it has none */
const struct caps *accelerator_caps(const struct accelerator *a);
uint32_t accelerator_dtypes(const struct accelerator *a); /* as a set of bits */
const struct driver *accelerator_driver(const struct accelerator *a);
const struct backend *accelerator_backend(const struct accelerator *a); /* its code generator */
struct driver_device *accelerator_device(const struct accelerator *a);
/* One thread at a time uses a device; the same thread may lock it several times.  A thread that needs several devices
 * locks them in the order of their numbers. */
void accelerator_lock(struct accelerator *a);
/* The same for this thread's call, which ends when it is cancelled (cancellation_current) while another thread's run
 * has the device: that run may never end.  false: the device is not locked, *e says why. */
bool accelerator_lock_cancellable(struct accelerator *a, struct err *e);
void accelerator_unlock(struct accelerator *a);
/* The part of a buffer that a launch may access: `bytes` bytes from its address. */
struct buffer_use { size_t bytes; bool written; };
/* A kernel loaded on a device. */
struct device_kernel {
    struct driver_kernel *kernel;
    int64_t work;                        /* bytes of a block's scratch that is passed as an argument */
    uint32_t resident;                   /* blocks that the device runs at once; 0: not known */
    bool large;                          /* a block has so many threads that starting it is not what takes time */
    bool serial;                         /* a launch takes the scratch of one block (struct driver) */
    int64_t max_each;                   /* largest number of iterations of the parallel loop that a block may execute;
                                            0: no limit */
    uint32_t nbuf;
    uint8_t *local;                     /* per lbuf: it is not an argument */
    struct buffer_use use[];            /* per argument */
};
/* module: the binary of a kernel that was compiled with others (gpu_code_module); else NULL.  NULL: *e. */
struct device_kernel *accelerator_load(struct accelerator *a, const struct kernel *k, const struct code *code,
                                       const struct code *module, struct err *e);
void accelerator_unload(struct accelerator *a, struct device_kernel *k);
/* The dtypes of factors that the device's matrix unit multiplies rightly, as a set of bits.  (trial.c) */
uint32_t accelerator_try_matrices(struct accelerator *a);
/* The number of blocks of a launch of `extent` iterations. */
uint32_t accelerator_blocks(const struct device_kernel *k, int64_t extent);

/* ---- gpu.c ---- */
/* The code generators of GPUs (codegen/gpu_codegen.h), their library opened on the first call; NULL: *e says why. */
struct gpu_codegen;
const struct gpu_codegen *gpu_codegen(struct err *e);

/* ---- gpu.c: kernels in the languages of GPUs: "cuda" (also NULL), "hip" or "glsl" (also "vulkan"), and with features
 * behind a colon those for a GPU that has them: "cuda:sm_90a", "hip:gfx90a", "vulkan:+subgroup32+fma" ---- */
bool gpu_caps(const char *target, struct caps *out, struct err *e); /* the capabilities of such a GPU, for planning
                                                                       programs without it */
/* Prints a stage of the kernels: scheduled, source or asm. */
struct array_names;
/* names: one for each kernel (codegen/gpu_codegen.h), or NULL */
bool gpu_print(const struct kernel *const *k, const struct array_names *names, uint32_t n, const char *target,
               const char *stage, FILE *f, struct err *e);
/* The same for kernels that were planned for this device, as it runs them. */
bool gpu_print_for(const struct kernel *const *k, const struct array_names *names, uint32_t n,
                   const struct accelerator *a, const char *stage, FILE *f, struct err *e);

#endif
