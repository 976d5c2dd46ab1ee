/* A driver: what the runtime asks of devices with memory of their own.  One struct a kind of device; its library is
 * opened when such a device is first asked for, so that a program starts without it.
 *
 * Addresses are the device's and are never dereferenced here, but sums with offsets are addresses too.  A device works
 * through what it is given in order, as late as `finish`; the caller holds its lock (accelerator_lock) around each
 * call, but for count and open.  What fails fails as a value; a device that was lost stays so. */
#ifndef KILN_DRIVER_H
#define KILN_DRIVER_H
#include "codegen/gpu/build.h"
#include <stdint.h>

struct driver_device;             /* a driver's own */
struct driver_kernel;

struct launch {
    const struct driver_kernel *kernel;
    void *const *buffer;          /* addresses, in the order of the kernel's arguments */
    uint32_t n;
    const struct buffer_use *use;      /* per buffer (devices.h); NULL: the launch may touch all memory */
    void *slots;                  /* address of the slots' bits */
    int64_t begin, end;           /* iterations */
    uint32_t blocks;
};

struct driver {
    const char *name;             /* its devices are NAME:0, NAME:1, ..; NAME is the first */
    const char *dialect;          /* the language of its kernels (source.h) */
    const struct backend *backend; /* its code generator */
    /* why there is no such driver in this build, and none of what follows; NULL: there is */
    const char *absent;
    unsigned (*count)(struct err *e); /* devices there are; 0: *e says why */
    /* caps->name and caps->features: the device, its driver, and +DTYPE for what it computes with.  NULL: *e. */
    struct driver_device *(*open)(unsigned index, struct caps *caps, struct err *e);
    bool (*alloc)(struct driver_device *d, size_t bytes, void **address, struct err *e);
    void (*release)(struct driver_device *d, void *address); /* waits for what uses it */
    struct driver_kernel *(*load)(struct driver_device *d, const struct gpu_code *code, struct err *e); /* NULL: *e */
    void (*unload)(struct driver_device *d, struct driver_kernel *k);
    /* How many blocks of the kernel the device runs at once; 0: that is not known.  NULL: of no kernel. */
    uint32_t (*resident)(struct driver_device *d, const struct driver_kernel *k);
    bool (*launch)(struct driver_device *d, const struct launch *l, struct err *e);
    bool (*copy)(struct driver_device *d, void *to, const void *from, size_t bytes, struct err *e);
    /* From another device of the driver, after what that was given.  NULL: such copies go through the host. */
    bool (*peer)(struct driver_device *d, void *to, struct driver_device *source, const void *from, size_t bytes,
                 struct err *e);
    /* data may change then */
    bool (*upload)(struct driver_device *d, void *to, const void *data, size_t bytes, struct err *e);
    bool (*download)(struct driver_device *d, void *data, const void *from, size_t bytes, struct err *e); /* waits */
    /* Begins what was given and does not wait.  What fails later, the next call says.  NULL: finish is called
     * instead. */
    bool (*submit)(struct driver_device *d, struct err *e);
    bool (*finish)(struct driver_device *d, struct err *e); /* waits for all that was given */
    /* The device's time for what is given between two calls: the first marks the beginning, the second waits.  NULL:
     * there is only the host's clock. */
    bool (*time_begin)(struct driver_device *d, struct err *e);
    bool (*time_end)(struct driver_device *d, double *seconds, struct err *e);
    /* May work that was given and has not ended touch this memory?  NULL: it is not known. */
    bool (*in_use)(struct driver_device *d, const void *address, size_t bytes);
    void *(*stream)(struct driver_device *d);       /* what orders its work: CUstream, hipStream_t.  NULL: none */
    void (*drop)(struct driver_device *d);          /* forgets what was given and has not begun */
};

extern const struct driver driver_cuda, driver_hip, driver_vulkan; /* cuda.c, hip.c, vulkan.c */
const struct driver *driver_of(int device); /* accelerator.c; NULL: the number has none */

#endif
