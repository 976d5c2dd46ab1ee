/* Plug-ins: devices in shared objects that are loaded at run time.
 *
 * A user calls kl_plugin_load("/path/libnpu.so"), or sets KILN_PLUGINS to such paths separated by colons.
 * kl_device_named("npu:1") is then a device like any other, and `kiln devices` lists it.  Its tensors have the key
 * PrivateUse1, 2 or 3, in the order of loading; kernels for single ops can be registered under that key
 * (<kiln/dispatch.h>).
 *
 * A plug-in includes this header, links with no library of Kiln's, and defines one function:
 *
 *     KL_PLUGIN_ENTRY(host)
 *     {
 *         kiln = host;
 *         return &npu; // a struct kl_plugin
 *     }
 *
 * Kiln plans, fuses and lowers for the plug-in as for its own devices, and passes it kernels in loop IR: as text, for
 * the plug-in's compiler (grammar: ir/README.md).  Kernels that the plug-in does not compile can be run on the host by
 * kl_plugin_host.run. examples/features/plugin_device.c is a whole plug-in.
 *
 * A device has its own address space: Kiln does not dereference its addresses, but adds offsets to them.  At most one
 * thread at a time calls a device's functions; it may be any thread.  The device may run its work asynchronously, in
 * order, until `finish` or `download`. A function that fails returns false (or NULL, or 0) and describes the error in
 * *e; a graph that fails leaves all values as they were.  The shared object stays loaded until the process ends, even
 * if the host closes it, because tensors and kernels of its devices may still exist. */
#ifndef KILN_PLUGIN_H
#define KILN_PLUGIN_H
#include <kiln/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KL_PLUGIN_VERSION 1u /* the version of this interface */

/* Loads a plug-in; nothing happens if it is loaded already.  A process can load at most three.  [errors ARGUMENT: path
 * is NULL; DEVICE: the file does not exist or is no plug-in, has another version, lacks a required function, its
 * devices' name is invalid or taken, or three are loaded.  Nothing is changed then] */
KL_API kl_status kl_plugin_load(const char *path);

/* ---- for plug-ins ---- */

typedef struct kl_plugin_error {
    kl_status code;              /* initially KL_OK, which is reported as KL_ERR_DEVICE */
    char message[256];
} kl_plugin_error;

typedef struct kl_plugin_device kl_plugin_device; /* defined by the plug-in */
typedef struct kl_plugin_kernel kl_plugin_kernel; /* defined by Kiln; valid from load to unload */

/* Kiln's functions for plug-ins. */
typedef struct kl_plugin_host {
    uint32_t version;            /* KL_PLUGIN_VERSION of this Kiln */
    /* The kernel's text, valid as long as the kernel. */
    const char *(*text)(const kl_plugin_kernel *kernel);
    /* Runs iterations of a kernel on the host, with the interpreter of loop IR, which checks every access. buffer: host
     * addresses of the kernel's arguments. */
    bool (*run)(const kl_plugin_kernel *kernel, void *const *buffer, const uint64_t *slots, int64_t begin, int64_t end,
                kl_plugin_error *e);
} kl_plugin_host;

/* The properties of a device, filled in by `open`. */
typedef struct kl_plugin_about {
    char name[64];               /* a description for the user */
    uint32_t dtypes;             /* dtypes that it computes with, 1 << KL_F32 and so on; must include KL_F32 */
} kl_plugin_about;

typedef struct kl_plugin_launch {
    const kl_plugin_kernel *kernel;
    void *loaded;                /* the result of `load` */
    /* device addresses, one for each buffer of the kernel; the scratch buffer has room for one worker */
    void *const *buffer;
    uint32_t count;
    const void *slots;           /* device address of the runtime scalars, 8 bytes each; NULL: the program has none */
    int64_t begin, end;          /* iterations */
} kl_plugin_launch;

typedef struct kl_plugin {
    uint32_t version;            /* the KL_PLUGIN_VERSION it was built with */
    /* the device name: devices are NAME:0 (also NAME) to NAME:7; lower-case letters and digits, at most 15 */
    const char *name;
    unsigned (*count)(kl_plugin_error *e); /* the number of devices; 0: none, *e has the reason */
    /* called once for each device */
    kl_plugin_device *(*open)(unsigned index, kl_plugin_about *about, kl_plugin_error *e);
    /* the address is aligned to 64 bytes */
    bool (*alloc)(kl_plugin_device *d, size_t bytes, void **address, kl_plugin_error *e);
    void (*release)(kl_plugin_device *d, void *address); /* called when all work that uses the memory is done */
    /* Compiles a kernel.  Called for test kernels when the device is opened, and for a program's kernels when they are
     * needed. load and unload may both be NULL. */
    bool (*load)(kl_plugin_device *d, const kl_plugin_kernel *kernel, void **loaded, kl_plugin_error *e);
    void (*unload)(kl_plugin_device *d, void *loaded);
    bool (*launch)(kl_plugin_device *d, const kl_plugin_launch *l, kl_plugin_error *e);
    bool (*copy)(kl_plugin_device *d, void *to, const void *from, size_t bytes, kl_plugin_error *e);
    /* the caller may change data when this returns */
    bool (*upload)(kl_plugin_device *d, void *to, const void *data, size_t bytes, kl_plugin_error *e);
    /* waits until the data has arrived */
    bool (*download)(kl_plugin_device *d, void *data, const void *from, size_t bytes, kl_plugin_error *e);
    /* Copies from another device of this plug-in, after that device's pending work.  NULL: such copies go through the
     * host. */
    bool (*peer)(kl_plugin_device *d, void *to, kl_plugin_device *source, const void *from, size_t bytes,
                 kl_plugin_error *e);
    bool (*finish)(kl_plugin_device *d, kl_plugin_error *e); /* waits for all submitted work */
    /* cancels submitted work that has not begun.  NULL: the device never defers work */
    void (*drop)(kl_plugin_device *d);
} kl_plugin;

/* The head of the entry function, which Kiln calls once, when the plug-in is loaded. */
#define KL_PLUGIN_ENTRY(host)                                                                                        \
    __attribute__((visibility("default"))) const kl_plugin *kl_plugin_entry(const kl_plugin_host *host);             \
    const kl_plugin *kl_plugin_entry(const kl_plugin_host *host)

#ifdef __cplusplus
}
#endif
#endif
