/* The driver of HIP.  Its library is libamdhip64.so, or $KILN_HIP_DRIVER.  In HIP each thread has a current device, and
 * no context. */
#include "driver.h"
#ifdef KILN_HIP
#include "stream.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { L2_BYTES = 19, MULTIPROCESSORS = 63 }; /* numbers of hipDeviceAttribute_t since HIP 4.5 */

/* Kiln reads only the name of the architecture from struct hipDeviceProp_t.  HIP 6 has another struct and a new
 * function beside the old one, so the offset of the name depends on the function that was found. */
enum { PROPERTIES_BYTES = 4096, ARCH_BYTES = 256, ARCH_AT = 396, ARCH_AT_SINCE_6 = 1160 };

static struct {
#define HIP(field, function, parameters) gpu_result (*field) parameters;
#include "stream.def"
    const char *(*error_name)(gpu_result r);
    gpu_result (*properties)(void *out, int device);
    size_t arch_at;
} hip;

static const char *hip_error_text(gpu_result r)
{
    const char *name = hip.error_name ? hip.error_name(r) : NULL;
    return name ? name : "an unknown error";
}

static gpu_result hip_enter(struct driver_device *d)
{
    gpu_result r = hip.get_device(&d->outer);
    return r ? r : hip.set_device(d->index);
}

static void hip_leave(struct driver_device *d) { hip.set_device(d->outer); }

static gpu_result reach_peer(struct driver_device *d, struct driver_device *peer)
{
    int can = 0;
    gpu_result r = d->l->can_reach(&can, d->index, peer->index);
    return r || !can ? r : hip.reach(peer->index, 0);
}

static gpu_result copy_from(struct driver_device *d, void *to, struct driver_device *peer, const void *from,
                            size_t bytes)
{
    return hip.copy_peer(to, d->index, from, peer->index, bytes, d->stream);
}

static struct hip_node hip_node(const struct graph_kernel *k)
{
    return (struct hip_node){.function = k->function, .grid = {k->blocks, 1, 1}, .block = {k->threads, 1, 1},
                             .shared = k->shared, .parameter = k->parameter};
}

static gpu_result hip_node_add(gpu_node *n, gpu_graph g, const gpu_node *before, const struct graph_kernel *k)
{
    struct hip_node p = hip_node(k);
    return hip.node_add(n, g, before, before != NULL, &p);
}

static gpu_result hip_node_set(gpu_exec x, gpu_node n, const struct graph_kernel *k)
{
    struct hip_node p = hip_node(k);
    return hip.node_set(x, n, &p);
}

static struct stream_library library = {.what = "HIP", .node_add = hip_node_add, .node_set = hip_node_set,
                                        .driver = &driver_hip, .error = hip_error_text, .enter = hip_enter,
                                        .leave = hip_leave,
                                        .reach_peer = reach_peer, .copy_from = copy_from};

/* ---- finding devices ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct err failure;
static int version, devices;

static bool hip_open_library(struct err *e)
{
    static const char *const name[] = {"hipGetErrorName",
#define BOTH(field, cuda, hip, parameters) #hip,
#define HIP(field, function, parameters) #function,
#include "stream.def"
    };
    void *const fn[] = {&hip.error_name,
#define BOTH(field, cuda, hip, parameters) &library.field,
#define HIP(field, function, parameters) &hip.field,
#include "stream.def"
    };
    static const char *const usual[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so",
                                        NULL};
    static const char *const since_6[] = {"hipGetDevicePropertiesR0600"}, *const before[] = {"hipGetDeviceProperties"};
    const char *path = getenv("KILN_HIP_DRIVER"), hint[] = "it comes with ROCm; Debian: libamdhip64-5";
    struct err ignored = {0};
    /* the kernel interface of HIP; if it is missing, the library, which is large, is not opened */
    if (!path && access("/dev/kfd", F_OK))
        return err_set(e, KL_ERR_DEVICE, "there is no AMD GPU that HIP can use: no /dev/kfd");
    if (!stream_library_open(path, usual, name, fn, sizeof fn / sizeof *fn, sizeof fn / sizeof *fn, hint, e))
        return false;
    hip.arch_at = ARCH_AT_SINCE_6;
    if (stream_library_open(path, usual, since_6, (void *const[]){&hip.properties}, 1, 1, hint, &ignored))
        return true;
    hip.arch_at = ARCH_AT;
    return stream_library_open(path, usual, before, (void *const[]){&hip.properties}, 1, 1, hint, e);
}

static bool hip_initialize(struct err *e)
{
    gpu_result r = library.init(0);
    if (r == GPU_NO_DEVICE || r == GPU_INVALID_DEVICE)
        return err_set(e, KL_ERR_DEVICE, "there is no AMD GPU that HIP can use");
    if (r)
        return err_set(e, KL_ERR_DEVICE, "hipInit gives %s", hip_error_text(r));
    r = library.version(&version);
    r = r ? r : library.count(&devices);
    if (r == GPU_NO_DEVICE || (!r && !devices))
        return err_set(e, KL_ERR_DEVICE, "there is no AMD GPU that HIP can use");
    return !r || err_set(e, KL_ERR_DEVICE, "hipGetDeviceCount gives %s", hip_error_text(r));
}

static void hip_find_devices(void)
{
    if (!hip_open_library(&failure) || !hip_initialize(&failure))
        devices = 0;
}

static unsigned hip_count(struct err *e)
{
    pthread_once(&once, hip_find_devices);
    if (!devices)
        err_set(e, failure.code, "%s", failure.msg);
    return (unsigned)devices;
}

/* ---- one device ---- */

static void hip_do_nothing(struct driver_device *d) { (void)d; }

/* for example "gfx90a:sramecc+:xnack-" */
static bool hip_architecture(struct driver_device *d, char arch[ARCH_BYTES], struct err *e)
{
    char *p = mem_alloc(PROPERTIES_BYTES);
    if (!p)
        return err_set(e, KL_ERR_MEMORY, "device %s: no memory for its properties", d->name);
    bool ok = stream_ok(d, hip.properties(p, d->index), "asking what it is", e);
    if (ok)
        memcpy(arch, p + hip.arch_at, ARCH_BYTES);
    arch[ok ? ARCH_BYTES - 1 : 0] = 0;
    mem_free(p);
    return ok && (!strncmp(arch, "gfx", 3) || err_set(e, KL_ERR_DEVICE, "device %s does not say its architecture",
                                                      d->name));
}

/* The features begin with the architecture, because codegen/gpu/build.c compiles for it. */
static bool hip_describe(struct driver_device *d, struct caps *caps, struct err *e)
{
    int l2 = 0, processors = 0;
    size_t memory = 0;
    char arch[ARCH_BYTES];
    gpu_result r = library.attribute(&l2, L2_BYTES, d->index);
    r = r ? r : library.attribute(&processors, MULTIPROCESSORS, d->index);
    r = r ? r : library.total_memory(&memory, d->index);
    r = r ? r : library.device_name(caps->name, sizeof caps->name, d->index);
    if (!stream_ok(d, r, "asking what it is", e) || !hip_architecture(d, arch, e))
        return false;
    caps->threads = processors > 0 ? (uint32_t)processors : caps->threads;
    caps->l2_bytes = l2 ? l2 : caps->l2_bytes;
    snprintf(caps->features, sizeof caps->features,
             "%s +bool+i8+u8+i16+u16+i32+u32+i64+u64+f16+bf16+f32+f64 %d processors, %zu MiB, HIP %d.%d", arch,
                 processors, memory >> 20,
             version / 10000000, version / 100000 % 100);
    return true;
}

static struct driver_device *hip_open_device(unsigned index, struct caps *caps, struct err *e)
{
    return stream_open(&library, index, caps, hip_describe, hip_do_nothing, e);
}

const struct driver driver_hip = {.name = "hip", .dialect = "hip", .count = hip_count, .open = hip_open_device,
                                  STREAM_DRIVER};
#else
const struct driver driver_hip = {.name = "hip", .dialect = "hip", .absent = "HIP is not built into this Kiln"};
#endif
