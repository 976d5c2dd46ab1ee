/* The driver of CUDA.  Its library is libcuda.so.1, which is part of NVIDIA's driver, or $KILN_CUDA_DRIVER.  Devices
 * use the process's primary context, so that memory can be shared with other CUDA code of the process. */
#include "driver.h"
#ifdef KILN_CUDA
#include "codegen/gpu_codegen.h"
#include "devices.h"
#include "stream.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_VERSION = 11040 };   /* CUDA 11.4, the first version that has all these functions */
enum { SPECIFIC = 9 };            /* from this compute capability on, architecture-specific code (such as sm_90a) has
                                     more instructions */
enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, L2_BYTES = 38, MULTIPROCESSORS = 16 }; /* numbers of
                                                                                               CUdevice_attribute */
enum { DYNAMIC_SHARED_BYTES = 8 };                       /* number of CUfunction_attribute */

static struct {
#define CUDA(field, function, parameters) gpu_result (*field) parameters;
#define CUDA_LATER(field, function, parameters) gpu_result (*field) parameters;
#include "stream.def"
} cuda;

static const char *cuda_error_text(gpu_result r)
{
    const char *name = NULL;
    return cuda.error_name && !cuda.error_name(r, &name) && name ? name : "an unknown error";
}

static gpu_result cuda_enter(struct driver_device *d) { return cuda.context_push(d->context); }

static void cuda_leave(struct driver_device *d)
{
    gpu_context c;
    (void)d;
    cuda.context_pop(&c);
}

static gpu_result reach_peer(struct driver_device *d, struct driver_device *peer)
{
    int can = 0;
    gpu_result r = d->l->can_reach(&can, d->index, peer->index);
    return r || !can ? r : cuda.reach(peer->context, 0);
}

static gpu_result allow_shared(gpu_function f, uint32_t bytes)
{
    return cuda.function_set(f, DYNAMIC_SHARED_BYTES, (int)bytes);
}

static gpu_result copy_from(struct driver_device *d, void *to, struct driver_device *peer, const void *from,
                            size_t bytes)
{
    return cuda.copy_peer(to, d->context, (void *)(uintptr_t)from, peer->context, bytes, d->stream);
}

static struct cuda_node cuda_node(const struct graph_kernel *k)
{
    return (struct cuda_node){.function = k->function, .grid = {k->blocks, 1, 1}, .block = {k->threads, 1, 1},
                              .shared = k->shared,
                              .parameter = k->parameter};
}

static gpu_result cuda_node_add(gpu_node *n, gpu_graph g, const gpu_node *before, const struct graph_kernel *k)
{
    struct cuda_node p = cuda_node(k);
    return cuda.node_add(n, g, before, before != NULL, &p);
}

static gpu_result cuda_node_set(gpu_exec x, gpu_node n, const struct graph_kernel *k)
{
    struct cuda_node p = cuda_node(k);
    return cuda.node_set(x, n, &p);
}

/* A tensor map of 16-bit elements with 128-byte swizzle; elements beyond the array read as zeros.  The numbers are of
 * CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion and
 * CUtensorMapFloatOOBfill. */
static gpu_result cuda_map(gpu_map *map, const struct gpu_view *view, void *address)
{
    enum { FLOAT16 = 6, BFLOAT16 = 9, NO_INTERLEAVE = 0, SWIZZLE_128 = 3, PROMOTE_128 = 2, ZEROS = 0, ELEMENT = 2 };
    uint64_t size[VIEW_DIMS], step[VIEW_DIMS - 1];
    const unsigned box[VIEW_DIMS] = {view->cols, view->rows, 1}, ones[VIEW_DIMS] = {1, 1, 1};
    for (unsigned i = 0; i < VIEW_DIMS; i++)
        size[i] = (uint64_t)view->size[i];
    for (unsigned i = 1; i < VIEW_DIMS; i++)
        step[i - 1] = (uint64_t)view->step[i] * ELEMENT;
    return cuda.encode_map(map, view->dtype == KL_F16 ? FLOAT16 : BFLOAT16, VIEW_DIMS,
                           (char *)address + view->first * ELEMENT, size, step, box, ones, NO_INTERLEAVE, SWIZZLE_128,
                           PROMOTE_128, ZEROS);
}

static struct stream_library library = {.what = "CUDA", .node_add = cuda_node_add, .node_set = cuda_node_set,
                                        .driver = &driver_cuda, .error = cuda_error_text, .enter = cuda_enter,
                                        .leave = cuda_leave,
                                        .allow_shared = allow_shared, .map = cuda_map, .reach_peer = reach_peer,
                                        .copy_from = copy_from};

/* ---- finding devices ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct err failure;
static int version, devices;

static bool cuda_open_library(struct err *e)
{
    static const char *const name[] = {
#define BOTH(field, cuda, hip, parameters) #cuda,
#define CUDA(field, function, parameters) #function,
#include "stream.def"
#define CUDA_LATER(field, function, parameters) #function,
#include "stream.def"
    };
    void *const fn[] = {
#define BOTH(field, cuda, hip, parameters) &library.field,
#define CUDA(field, function, parameters) &cuda.field,
#include "stream.def"
#define CUDA_LATER(field, function, parameters) &cuda.field,
#include "stream.def"
    };
    static const char *const later[] = {
#define CUDA_LATER(field, function, parameters) #function,
#include "stream.def"
    };
    static const char *const usual[] = {"libcuda.so.1", NULL};
    return stream_library_open(getenv("KILN_CUDA_DRIVER"), usual, name, fn,
                               (sizeof fn - sizeof later) / sizeof *fn, sizeof fn / sizeof *fn,
                               "it comes with NVIDIA's driver", e);
}

static bool cuda_initialize(struct err *e)
{
    gpu_result r = library.init(0);
    if (r == GPU_NO_DEVICE)
        return err_set(e, KL_ERR_DEVICE, "there is no NVIDIA GPU");
    if (r == GPU_STUB)
        return err_set(e, KL_ERR_DEVICE, "this libcuda is the toolkit's stub for linking, not NVIDIA's driver");
    if (r)
        return err_set(e, KL_ERR_DEVICE, "cuInit gives %s", cuda_error_text(r));
    if (library.version(&version) || version < MIN_VERSION)
        return err_set(e, KL_ERR_DEVICE, "the driver is too old: it is for CUDA %d.%d, 11.4 is the least",
                       version / 1000, version % 1000 / 10);
    const struct gpu_codegen *codegen = gpu_codegen(e);
    if (!codegen)
        return false;
    codegen->driver_version(version / 1000);
    r = library.count(&devices);
    return (!r && devices) || err_set(e, KL_ERR_DEVICE, r ? "cuDeviceGetCount gives %s" : "there is no NVIDIA GPU",
                                      cuda_error_text(r));
}

static void cuda_find_devices(void)
{
    if (!cuda_open_library(&failure) || !cuda_initialize(&failure))
        devices = 0;
}

static unsigned cuda_count(struct err *e)
{
    pthread_once(&once, cuda_find_devices);
    if (!devices)
        err_set(e, failure.code, "%s", failure.msg);
    return (unsigned)devices;
}

/* ---- one device ---- */

static void release_context(struct driver_device *d) { cuda.context_release(d->index); }

/* The features begin with the architecture, because codegen/gpu/build.c compiles for it. */
static bool cuda_describe(struct driver_device *d, struct caps *caps, struct err *e)
{
    int major = 0, minor = 0, l2 = 0, processors = 0;
    size_t memory = 0;
    gpu_result r = library.attribute(&major, CAPABILITY_MAJOR, d->index);
    r = r ? r : library.attribute(&minor, CAPABILITY_MINOR, d->index);
    r = r ? r : library.attribute(&l2, L2_BYTES, d->index);
    r = r ? r : library.attribute(&processors, MULTIPROCESSORS, d->index);
    r = r ? r : library.total_memory(&memory, d->index);
    r = r ? r : library.device_name(caps->name, sizeof caps->name, d->index);
    if (r)
        return stream_ok(d, r, "asking what it is", e);
    caps->threads = processors > 0 ? (uint32_t)processors : caps->threads;
    caps->l2_bytes = l2 ? l2 : caps->l2_bytes;
    snprintf(
        caps->features, sizeof caps->features,
        "sm_%d%d%s +bool+i8+u8+i16+u16+i32+u32+i64+u64+f16+bf16+f32+f64%s %d processors, %zu MiB, driver for CUDA "
        "%d.%d",
        major, minor, major >= SPECIFIC ? "a" : "", cuda.encode_map ? "" : " " NO_TENSOR_MAPS, processors,
        memory >> 20, version / 1000, version % 1000 / 10);
    r = cuda.context_retain(&d->context, d->index);
    return stream_ok(d, r, "making a context", e);
}

static struct driver_device *cuda_open_device(unsigned index, struct caps *caps, struct err *e)
{
    return stream_open(&library, index, caps, cuda_describe, release_context, e);
}

const struct driver driver_cuda = {.name = "cuda", .dialect = "cuda", .count = cuda_count, .open = cuda_open_device,
                                   STREAM_DRIVER};
#else
const struct driver driver_cuda = {.name = "cuda", .dialect = "cuda", .absent = "CUDA is not built into this Kiln"};
#endif
