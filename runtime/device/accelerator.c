/* Devices with a driver.  Each is opened once, tested with a small kernel, and has a lock for the threads that use it.
 * In a child of fork the devices that the parent has opened cannot be used: every operation on them fails. */
#define _GNU_SOURCE /* for recursive mutexes */
#include "codegen/gpu_codegen.h"
#include "plugin.h"
#include "runtime/runtime.h"
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

enum { FIRST = DEVICE_CUDA, MAX_BLOCKS = 4096, MIN_BLOCKS = 64 };
/* WAVES: blocks of a launch for each block that the device runs at once, but at most MAX_BLOCKS in all if a block has
 * fewer than LARGE threads: an H100 took 24 us instead of 12 to start 25,088 blocks of 16 threads, while softmax and
 * random numbers, in blocks of 64, took 0.91 of the time with 33,792 blocks instead of 4,096. */
enum { WAVES = 8, LARGE = 64 };
enum { MAX_WORK = 256 << 20 };   /* bytes of scratch of all blocks of a launch; MIN_BLOCKS blocks may use more */

struct accelerator {
    const struct driver *driver;
    struct driver_device *device;
    const struct gpu_codegen *codegen;
    const struct backend *backend;
    struct caps caps;
    uint32_t dtypes;
    int number;
    pthread_mutex_t lock;
    struct driver orphan;         /* replaces the driver in a child of fork */
};

static struct {
    _Atomic(struct accelerator *) opened; /* NULL: not opened yet, or opening failed */
    /* a device that was opened but does not work; it is never closed, because the process has used its driver */
    struct accelerator *failed;
    struct err err;
} slot[DEVICE_END - FIRST];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

_Static_assert(DEVICE_PLUGIN + PLUGINS_MAX * DEVICES_A_KIND == DEVICE_END, "each plug-in has a kind of devices");

const struct driver *driver_of(int device)
{
    return device >= DEVICE_PLUGIN ? plugin_driver((unsigned)(device - DEVICE_PLUGIN) / DEVICES_A_KIND)
           : device >= DEVICE_VULKAN ? &driver_vulkan
           : device >= DEVICE_HIP ? &driver_hip : device >= DEVICE_CUDA ? &driver_cuda : NULL;
}

unsigned accelerator_count(int device, struct err *e)
{
    const struct driver *d = driver_of(device);
    return !d->absent ? d->count(e) : (unsigned)err_set(e, KL_ERR_DEVICE, "%s", d->absent);
}

struct accelerator *accelerator_get(int device)
{
    return device < FIRST || device >= DEVICE_END ? NULL : atomic_load_explicit(&slot[device - FIRST].opened,
                                                                                memory_order_acquire);
}

const struct caps *accelerator_caps(const struct accelerator *a) { return &a->caps; }
uint32_t accelerator_dtypes(const struct accelerator *a) { return a->dtypes; }
const struct driver *accelerator_driver(const struct accelerator *a) { return a->driver; }
const struct backend *accelerator_backend(const struct accelerator *a) { return a->backend; }
struct driver_device *accelerator_device(const struct accelerator *a) { return a->device; }
void *accelerator_stream(const struct accelerator *a)
{
    return a->driver->stream ? a->driver->stream(a->device) : NULL;
}
bool accelerator_finish(struct accelerator *a, struct err *e)
{
    if (!accelerator_lock_cancellable(a, e)) return false;
    bool ok = a->driver->finish(a->device, e);
    accelerator_unlock(a);
    return ok;
}

void accelerator_lock(struct accelerator *a) { pthread_mutex_lock(&a->lock); }

bool accelerator_lock_cancellable(struct accelerator *a, struct err *e)
{
    enum { POLL_NS = 5000000 };   /* a signal handler can wake no waiting thread */
    const struct cancellation *cancel = cancellation_current();
    if (!cancel) {
        accelerator_lock(a);
        return true;
    }
    struct timespec until = {0};  /* in the past: the first time, only try */
    while (pthread_mutex_timedlock(&a->lock, &until)) {
        if (cancellation_requested(cancel, e)) return false;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += POLL_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
    }
    return true;
}
void accelerator_unlock(struct accelerator *a) { pthread_mutex_unlock(&a->lock); }

/* ---- kernels ---- */

/* The scratch of all blocks is contiguous.  Its size is that for MAX_BLOCKS, also if a launch has fewer, but for
 * drivers whose launches take the scratch of one block. */
static void set_uses(struct device_kernel *d, const struct kernel *k)
{
    const size_t blocks = d->serial ? 1 : MAX_BLOCKS;
    struct buffer_use *next = d->use;
    for (uint32_t b = 0; b < k->nbuf; b++) {
        int64_t elements = k->buf[b].count > 0 ? k->buf[b].count : 0;
        size_t bytes = (size_t)elements * dtype_size(k->buf[b].dtype);
        bool scratch = k->buf[b].role == BUF_SCRATCH;
        if (!d->local[b])
            *next++ = (struct buffer_use){scratch ? blocks * bytes : bytes, k->buf[b].role != BUF_IN};
    }
}

struct device_kernel *accelerator_load(struct accelerator *a, const struct kernel *k, const struct code *code,
                                       const struct code *module, struct err *e)
{
    struct gpu_code g;
    int64_t limit = a->caps.loop_limit, steps = limit ? a->codegen->loop_iterations(k) + 1 : 0;
    if (limit && steps > limit) {
        err_set(e, KL_ERR_DEVICE,
                "%s: kernel %s has up to %lld loop iterations a thread, and this device's driver ends loops after %lld "
                "in all, whatever they do; another device has no such limit", a->caps.name, k->name, (long long)steps,
                (long long)limit);
        return NULL;
    }
    struct device_kernel *d = mem_alloc(sizeof *d + k->nbuf * sizeof *d->use + k->nbuf + 1);
    if (!d) {
        err_set(e, KL_ERR_MEMORY, "no memory to load kernel %s", k->name);
        return NULL;
    }
    if (gpu_code_open(code, module, &g, e) &&
        (g.nbuf == k->nbuf || err_set(e, KL_ERR_COMPILE, "the code is that of another kernel"))) {
        d->nbuf = g.nbuf;
        d->local = (uint8_t *)(d->use + k->nbuf);
        memcpy(d->local, g.local, g.nbuf);
        d->max_each = limit ? limit / steps : 0;
        d->serial = a->driver->serial;
        d->large = g.threads >= LARGE;
        for (uint32_t b = 0; b < k->nbuf; b++)
            if (k->buf[b].role == BUF_SCRATCH && !g.local[b])
                d->work += k->buf[b].count * (int64_t)dtype_size(k->buf[b].dtype);
        set_uses(d, k);
        if (accelerator_lock_cancellable(a, e)) {
            d->kernel = a->driver->load(a->device, &g, e);
            d->resident = d->kernel && a->driver->resident ? a->driver->resident(a->device, d->kernel) : 0;
            accelerator_unlock(a);
        }
    }
    if (d->kernel)
        return d;
    mem_free(d);
    return NULL;
}

void accelerator_unload(struct accelerator *a, struct device_kernel *k)
{
    accelerator_lock(a);
    a->driver->unload(a->device, k->kernel);
    accelerator_unlock(a);
    mem_free(k);
}

/* If the number of blocks that the device runs at once is known, a launch has a multiple of it, so that the last of
 * these waves is not almost empty.  A kernel with scratch has one wave, because more blocks only need more memory. */
uint32_t accelerator_blocks(const struct device_kernel *k, int64_t extent)
{
    int64_t max = MAX_BLOCKS, wave = k->resident;
    if (k->serial)
        return extent > 0;
    if (k->work > MAX_WORK / MAX_BLOCKS)
        max = k->work < MAX_WORK / MIN_BLOCKS ? MAX_WORK / k->work : MIN_BLOCKS;
    if (wave && k->work && wave < max)
        max = wave > MIN_BLOCKS ? wave : MIN_BLOCKS;
    else if (wave && !k->work && k->large)
        max = wave * WAVES;
    else if (wave && wave < max)
        max = wave * WAVES <= max ? wave * WAVES : max / wave * wave;
    if (k->max_each && extent / k->max_each >= max)
        max = extent / k->max_each + 1;
    return (uint32_t)(extent < max ? extent : max);
}

/* ---- opening ---- */

/* A kernel with one fma: the product of the first two numbers, plus the third. */
static struct kernel *trial_kernel(void)
{
    struct kernel *k = kernel_new("trial");
    if (!k)
        return NULL;
    uint32_t in = k_buf(k, BUF_IN, KL_F32, 3, 0), out = k_buf(k, BUF_OUT, KL_F32, 1, 1);
    val x[3];
    for (int i = 0; i < 3; i++)
        x[i] = k_load(k, in, k_int(k, i), 0);
    k_store(k, out, k_int(k, 0), k_prim(k, P_FMA, x[0], x[1], x[2]), 0);
    k->extent = 1;
    if (kernel_clean(k))
        return k;
    kernel_free(k);
    return NULL;
}

static bool trial_code(const struct accelerator *a, const struct kernel *k, struct code *code, struct err *e)
{
    struct caps whole = a->caps; /* compiled with the device's fma, which the test measures */
    size_t n = strlen(whole.features);
    snprintf(whole.features + n, sizeof whole.features - n, "+fma");
    return a->backend->compile_for(k, &whole, EMIT_OBJECT, code, e);
}

static bool trial_run(struct accelerator *a, const struct device_kernel *k, const float *in, float *out, struct err *e)
{
    void *buf[2] = {0};
    const struct driver *d = a->driver;
    bool ok = d->alloc(a->device, 256, &buf[0], e) && d->alloc(a->device, 256, &buf[1], e) &&
              d->upload(a->device, buf[0], in, 3 * sizeof *in, e) &&
              d->launch(a->device, &(struct launch){.kernel = k->kernel, .buffer = buf, .n = 2, .end = 1, .blocks = 1},
                        e) &&
              d->download(a->device, out, buf[1], sizeof *out, e);
    for (int i = 0; i < 2; i++)
        if (buf[i])
            d->release(a->device, buf[i]);
    return ok;
}

/* Runs a kernel to check that the device works, and whether its fma rounds once. */
static bool try_out(struct accelerator *a, struct err *e)
{
    const float in[3] = {1 + 0x1p-12f, 1 + 0x1p-12f, -1 - 0x1p-11f};
    float out = NAN;
    struct code code = {0};
    struct kernel *k = trial_kernel();
    struct device_kernel *d = NULL;
    bool ok = k && trial_code(a, k, &code, e) && (d = accelerator_load(a, k, &code, NULL, e)) &&
              trial_run(a, d, in, &out, e);
    if (!k)
        err_set(e, KL_ERR_MEMORY, "no memory to try out a device");
    if (d)
        accelerator_unload(a, d);
    mem_free(code.bytes);
    kernel_free(k);
    if (ok && out != 0x1p-24f && out != 0)
        return err_set(e, KL_ERR_DEVICE, "it computes %g where %g is right", (double)out, 0x1p-24);
    size_t n = strlen(a->caps.features);
    if (ok && out != 0)
        snprintf(a->caps.features + n, sizeof a->caps.features - n, " +fma");
    return ok;
}

/* Removes the matrix units that do not work from the features. */
static void try_matrices(struct accelerator *a)
{
    static const struct { const char *word; unsigned dtype; } unit[] = {{VULKAN_MATRIX_F16, KL_F16},
                                                                        {VULKAN_MATRIX_BF16, KL_BF16}};
    uint32_t works = strstr(a->caps.features, "+matrix_") ? accelerator_try_matrices(a) : 0;
    for (unsigned i = 0; i < sizeof unit / sizeof *unit; i++) {
        char *at = strstr(a->caps.features, unit[i].word);
        if (at && !(works >> unit[i].dtype & 1))
            *at = '-';
    }
    a->codegen->device_features(a->driver->dialect, &a->caps);
}

static void make_lock(struct accelerator *a)
{
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&a->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
}

/* Its code generator, and what is known of a device of its language. */
static bool accelerator_find_codegen(struct accelerator *a, struct err *e)
{
    const struct driver *d = a->driver;
    a->codegen = gpu_codegen(e);
    a->backend = !a->codegen ? NULL : d->backend ? d->backend : a->codegen->backend(d->dialect, e);
    return a->backend && a->codegen->any_device(d->dialect, &a->caps, e);
}

static struct accelerator *open_one(int device, struct err *e)
{
    const struct driver *driver = driver_of(device);
    if (driver->absent) {
        err_set(e, KL_ERR_DEVICE, "%s", driver->absent);
        return NULL;
    }
    if (!driver->count(e)) /* before the code generator's library is opened for nothing */
        return NULL;
    struct accelerator *a = mem_alloc(sizeof *a);
    if (!a) {
        err_set(e, KL_ERR_MEMORY, "no memory to open it");
        return NULL;
    }
    make_lock(a);
    a->number = device;
    a->driver = driver;
    if (accelerator_find_codegen(a, e))
        a->device = driver->open((unsigned)(device % DEVICES_A_KIND), &a->caps, e);
    if (!a->device) {
        mem_free(a);
        return NULL;
    }
    a->codegen->device_features(driver->dialect, &a->caps);
    for (unsigned t = 0; t < KL_DTYPE_COUNT; t++) {
        char feature[16];
        snprintf(feature, sizeof feature, "+%s", dtype_name(t));
        a->dtypes |= (uint32_t)(strstr(a->caps.features, feature) != NULL) << t;
    }
    if (try_out(a, e)) {
        try_matrices(a);
        return a;
    }
    slot[device - FIRST].failed = a;
    return NULL;
}

bool accelerator_open(int device, struct err *e)
{
    if (accelerator_get(device))
        return true;
    fork_watch();
    pthread_mutex_lock(&opening);
    struct err *why = &slot[device - FIRST].err;
    if (!accelerator_get(device) && !why->code)
        atomic_store_explicit(&slot[device - FIRST].opened, open_one(device, why), memory_order_release);
    pthread_mutex_unlock(&opening);
    return accelerator_get(device) || err_set(e, why->code, "%s", why->msg);
}

/* ---- fork ---- */

/* After fork, `device` points to the accelerator itself. */
static bool not_ours(struct driver_device *d, struct err *e)
{
    const struct accelerator *a = (const struct accelerator *)d;
    return err_set(e, KL_ERR_DEVICE, "device %s is the parent's: what was opened before fork cannot be used in a child",
                   device_name(a->number));
}

static bool no_alloc(struct driver_device *d, size_t bytes, void **address, struct err *e)
{
    (void)bytes, (void)address;
    return not_ours(d, e);
}

static void no_release(struct driver_device *d, void *address) { (void)d, (void)address; }

static struct driver_kernel *no_load(struct driver_device *d, const struct gpu_code *code, struct err *e)
{
    (void)code;
    not_ours(d, e);
    return NULL;
}

static void no_unload(struct driver_device *d, struct driver_kernel *k) { (void)d, (void)k; }

static bool no_launch(struct driver_device *d, const struct launch *l, struct err *e)
{
    (void)l;
    return not_ours(d, e);
}

static bool no_copy(struct driver_device *d, void *to, const void *from, size_t bytes, struct err *e)
{
    (void)to, (void)from, (void)bytes;
    return not_ours(d, e);
}

static void no_drop(struct driver_device *d) { (void)d; }

static void make_orphan(struct accelerator *a)
{
    a->orphan = (struct driver){.name = a->driver->name, .dialect = a->driver->dialect,
                                .count = a->driver->count, .open = a->driver->open, .alloc = no_alloc,
                                    .release = no_release,
                                .load = no_load, .unload = no_unload, .launch = no_launch, .copy = no_copy,
                                .upload = no_copy, .download = no_copy, .submit = not_ours, .finish = not_ours,
                                    .drop = no_drop};
    a->driver = &a->orphan;
    a->device = (struct driver_device *)a;
}

static void accelerators_before_fork(void)
{
    pthread_mutex_lock(&opening);
    for (int d = FIRST; d < DEVICE_END; d++)
        if (accelerator_get(d))
            accelerator_lock(accelerator_get(d));
}

static void accelerators_after_fork(bool child)
{
    for (int d = FIRST; d < DEVICE_END; d++) {
        struct accelerator *a = accelerator_get(d);
        if (a && child) {
            make_lock(a); /* the lock's owner is the parent's thread, whose id this thread does not have */
            make_orphan(a);
        } else if (a) {
            accelerator_unlock(a);
        }
    }
    pthread_mutex_unlock(&opening);
}
const struct fork_part accelerators_fork = {accelerators_before_fork, accelerators_after_fork};
