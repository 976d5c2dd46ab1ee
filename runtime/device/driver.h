/* A driver: the functions that the runtime calls for devices with memory of their own.  There is one struct for each
 * kind of device.  Its library is opened when such a device is first used, so that a program starts without it.
 *
 * Addresses are the device's; the host does not dereference them, but may add offsets to them.  Commands are executed
 * in order, at the latest in `finish`.  The caller holds the device's lock (accelerator_lock) during each call except
 * count and open.  A function that fails returns false or NULL with the reason in *e.  A lost device stays lost. */
#ifndef KILN_DRIVER_H
#define KILN_DRIVER_H
#include "codegen/gpu_code.h"
#include <stdint.h>

struct driver_device;             /* defined by each driver */
struct driver_kernel;

struct launch {
    const struct driver_kernel *kernel;
    void *const *buffer;          /* addresses, in the order of the kernel's arguments */
    uint32_t n;
    const struct buffer_use *use;      /* per buffer (devices.h); NULL: the launch may touch all memory */
    void *slots;                  /* address of the slots' bits */
    int64_t begin, end;           /* iterations */
    uint32_t blocks;
    bool shares;                  /* the iterations access shared memory; else a block needs none of its own */
};

struct memory_range { const void *address; size_t bytes; };

struct driver {
    const char *name;             /* its devices are called NAME:0, NAME:1, ..; NAME alone is the first */
    const char *dialect;          /* the language of its kernels (codegen/gpu_codegen.h) */
    const struct backend *backend; /* its code generator; NULL: libkiln-gpu.so's for the language */
    bool serial;                  /* a launch runs its iterations with the scratch of one block, whatever `blocks` is */
    const char *absent;           /* why this build has no such driver (no function is set then); NULL: it has one */
    unsigned (*count)(struct err *e); /* the number of devices; 0: *e has the reason */
    /* Opens a device and describes it in *caps: its name, and in the features its driver and +DTYPE for each dtype that
     * it supports.  NULL: *e. */
    struct driver_device *(*open)(unsigned index, struct caps *caps, struct err *e);
    bool (*alloc)(struct driver_device *d, size_t bytes, void **address, struct err *e);
    void (*release)(struct driver_device *d, void *address); /* waits for commands that use the memory */
    struct driver_kernel *(*load)(struct driver_device *d, const struct gpu_code *code, struct err *e); /* NULL: *e */
    void (*unload)(struct driver_device *d, struct driver_kernel *k);
    /* The number of blocks of the kernel that the device runs concurrently; 0, or no function: not known. */
    uint32_t (*resident)(struct driver_device *d, const struct driver_kernel *k);
    bool (*launch)(struct driver_device *d, const struct launch *l, struct err *e);
    bool (*copy)(struct driver_device *d, void *to, const void *from, size_t bytes, struct err *e);
    /* Copies from another device of the driver, after that device's commands.  NULL: the host copies. */
    bool (*peer)(struct driver_device *d, void *to, struct driver_device *source, const void *from, size_t bytes,
                 struct err *e);
    /* The caller may change the data when upload returns. */
    bool (*upload)(struct driver_device *d, void *to, const void *data, size_t bytes, struct err *e);
    bool (*download)(struct driver_device *d, void *data, const void *from, size_t bytes, struct err *e); /* waits */
    /* Starts the commands and does not wait.  An error that occurs later is reported by the next call.  NULL: finish is
     * called instead. */
    bool (*submit)(struct driver_device *d, struct err *e);
    bool (*finish)(struct driver_device *d, struct err *e); /* waits for all commands */
    /* The number of the list of commands that was issued since the last call of this function, if it was one list,
     * which can be repeated; else 0. */
    uint64_t (*list)(struct driver_device *d);
    /* Adds the launches of a list that was submitted before, with the same arguments, behind the collected uploads.
     * v: the memory that they may access.  *done: false if the list is not known any more, because other arguments were
     * set or other lists took its place; then nothing was added.  NULL (both functions): lists cannot be repeated. */
    bool (*repeat)(struct driver_device *d, uint64_t list, const struct memory_range *v, uint32_t n, bool *done,
                   struct err *e);
    /* Measures the device's time for the commands between the two calls; the second waits for them.  NULL: the host's
     * clock is used. */
    bool (*time_begin)(struct driver_device *d, struct err *e);
    bool (*time_end)(struct driver_device *d, double *seconds, struct err *e);
    /* May a command that has not ended access this memory?  NULL: not known. */
    bool (*in_use)(struct driver_device *d, const void *address, size_t bytes);
    void *(*stream)(struct driver_device *d);       /* the CUstream or hipStream_t of its commands; NULL: none */
    /* Issues the commands, then calls `work`, which may add commands of another library to the stream, while the
     * device's context is current.  NULL: the device has no stream. */
    bool (*enqueue)(struct driver_device *d, void (*work)(void *ctx, void *stream), void *ctx, struct err *e);
    /* *ended: all commands up to the last call of enqueue have ended. */
    bool (*ended)(struct driver_device *d, bool *ended, struct err *e);
    void (*drop)(struct driver_device *d);          /* removes the commands that have not started */
};

extern const struct driver driver_cuda, driver_hip, driver_vulkan; /* cuda.c, hip.c, vulkan.c */
const struct driver *driver_of(int device); /* accelerator.c; NULL: the number has none */

#endif
