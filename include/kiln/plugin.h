/* Plug-ins: devices that a shared object brings to a Kiln that was built without them.
 *
 * The user of one calls kl_plugin_load("/path/libnpu.so"), or sets KILN_PLUGINS to such paths with colons between them;
 * kl_device_named("npu:1") is a device like any other then, and `kiln devices` lists it.  Its tensors have the key
 * PrivateUse1, 2 or 3, in the order of loading; kernels of one's own for single ops are registered there
 * (<kiln/dispatch.h>).
 *
 * Who writes one includes this header, links with nothing of Kiln's, and defines one function:
 *
 *     KL_PLUGIN_ENTRY(host)
 *     {
 *         kiln = host;
 *         return &npu; // a struct kl_plugin
 *     }
 *
 * Kiln plans, fuses and lowers as for its own devices, and hands over kernels in loop IR: as text, for the plug-in's
 * compiler (the grammar stands in ir/README.md), and with kl_plugin_host.run, which computes one on the host's memory,
 * for those that it does not compile.  examples/plugin_device.c is a whole plug-in.
 *
 * A device has memory of its own: Kiln does not follow its addresses, but sums with offsets are addresses, too.  One
 * thread at a time works with a device, any thread.  What is given to a device it may work through as late as `finish`
 * and `download`, in order.  A function that fails returns false (or NULL, or 0) and says why in *e; a graph that fails
 * leaves all values as they were.  The shared object stays in the process until that ends, even if the host
 * closes it, for tensors and kernels on its devices live as long. */
#ifndef KILN_PLUGIN_H
#define KILN_PLUGIN_H
#include <kiln/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KL_PLUGIN_VERSION 1u /* of all that follows */

/* Loads a plug-in; one that is loaded already stays as it is.  At most three, besides each other.  [errors ARGUMENT:
 * path is NULL; DEVICE: there is no such file or it is no plug-in, of another version, without a function that it
 * needs, its devices' name is no name or taken, or three are loaded.  Nothing is changed then] */
KL_API kl_status kl_plugin_load(const char *path);

/* ---- for plug-ins ---- */

typedef struct kl_plugin_error {
    kl_status code;              /* as it comes KL_OK, which then means KL_ERR_DEVICE */
    char message[256];
} kl_plugin_error;

typedef struct kl_plugin_device kl_plugin_device; /* the plug-in's own */
typedef struct kl_plugin_kernel kl_plugin_kernel; /* Kiln's, from load to unload */

/* What Kiln does for plug-ins. */
typedef struct kl_plugin_host {
    uint32_t version;            /* KL_PLUGIN_VERSION of this Kiln */
    /* A kernel as text, which lives as long as the kernel. */
    const char *(*text)(const kl_plugin_kernel *kernel);
    /* Computes iterations of a kernel here, by the interpreter of loop IR, which checks every access.  buffer: where
     * its arguments lie in the host's memory. */
    bool (*run)(const kl_plugin_kernel *kernel, void *const *buffer, const uint64_t *slots, int64_t begin, int64_t end,
                kl_plugin_error *e);
} kl_plugin_host;

/* A device, as `open` describes it. */
typedef struct kl_plugin_about {
    char name[64];               /* for people */
    uint32_t dtypes;             /* it computes with these, 1 << KL_F32 and so on; KL_F32 is one of them */
} kl_plugin_about;

typedef struct kl_plugin_launch {
    const kl_plugin_kernel *kernel;
    void *loaded;                /* what `load` made of it */
    /* addresses on the device, one a buffer of the kernel; scratch is there for one worker */
    void *const *buffer;
    uint32_t count;
    const void *slots;           /* address on the device: 8 bytes a slot; NULL: the program has none */
    int64_t begin, end;          /* iterations */
} kl_plugin_launch;

typedef struct kl_plugin {
    uint32_t version;            /* KL_PLUGIN_VERSION it was built with */
    /* its devices are NAME:0 (also NAME) to NAME:7; lower-case letters and digits, at most 15 */
    const char *name;
    unsigned (*count)(kl_plugin_error *e); /* devices there are; 0: *e says why */
    kl_plugin_device *(*open)(unsigned index, kl_plugin_about *about, kl_plugin_error *e); /* once each */
    bool (*alloc)(kl_plugin_device *d, size_t bytes, void **address, kl_plugin_error *e); /* aligned to 64 bytes */
    void (*release)(kl_plugin_device *d, void *address); /* when all that uses it is done */
    /* Kernels are tried when a device is opened, and loaded when a program needs them.  Both NULL: nothing to do. */
    bool (*load)(kl_plugin_device *d, const kl_plugin_kernel *kernel, void **loaded, kl_plugin_error *e);
    void (*unload)(kl_plugin_device *d, void *loaded);
    bool (*launch)(kl_plugin_device *d, const kl_plugin_launch *l, kl_plugin_error *e);
    bool (*copy)(kl_plugin_device *d, void *to, const void *from, size_t bytes, kl_plugin_error *e);
    /* data may change then */
    bool (*upload)(kl_plugin_device *d, void *to, const void *data, size_t bytes, kl_plugin_error *e);
    bool (*download)(kl_plugin_device *d, void *data, const void *from, size_t bytes, kl_plugin_error *e); /* waits */
    /* From another device of this plug-in, whose work it waits for.  NULL: such copies go through the host. */
    bool (*peer)(kl_plugin_device *d, void *to, kl_plugin_device *source, const void *from, size_t bytes,
                 kl_plugin_error *e);
    bool (*finish)(kl_plugin_device *d, kl_plugin_error *e); /* waits for all that was given */
    void (*drop)(kl_plugin_device *d); /* forgets what was given and has not begun.  NULL: nothing waits */
} kl_plugin;

/* The entry's head: Kiln calls it once, when the plug-in is loaded. */
#define KL_PLUGIN_ENTRY(host)                                                                                        \
    __attribute__((visibility("default"))) const kl_plugin *kl_plugin_entry(const kl_plugin_host *host);             \
    const kl_plugin *kl_plugin_entry(const kl_plugin_host *host)

#ifdef __cplusplus
}
#endif
#endif
