/* What the benchmarks of a GPU share: the device, and times of its work.
 *
 * The device is $KILN_DEVICE, else the first of cuda, hip and vulkan that works.  With --smoke, and on Vulkan devices
 * that are processors, arrays are small: to see that a benchmark works, not to compare figures. */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H
#include "bench/bench.h"
#include "runtime/device/driver.h"
#include "runtime/runtime.h"

struct gpu {
    struct bench b;
    kl_device device;
    const struct driver *driver;
    struct driver_device *d;
    struct accelerator *a;
    bool small;
    int rounds;
};

static inline bool gpu_device(struct gpu *g)
{
    static const char *const names[] = {"cuda", "hip", "vulkan"};
    const char *asked = getenv("KILN_DEVICE");
    for (unsigned i = 0; !g->device.id && i < (asked ? 1u : 3u); i++) {
        g->device = kl_device_named(asked ? asked : names[i]);
        if (!g->device.id)
            fprintf(stderr, "bench_%s: %s\n", g->b.name, kl_last_error());
        kl_clear_error();
    }
    struct err e = {0};
    int number = g->device.id ? device_find(kl_device_name(g->device), &e) : -1;
    g->a = number < 0 ? NULL : accelerator_get(number);
    if (!g->a) {
        fprintf(stderr, "bench_%s: there is no GPU%s%s\n", g->b.name, asked ? " called " : "", asked ? asked : "");
        return false;
    }
    g->driver = accelerator_driver(g->a);
    g->d = accelerator_device(g->a);
    const struct caps *caps = accelerator_caps(g->a);
    fprintf(stderr, "device %s: %s, %s, %s matrix units\n", kl_device_name(g->device), caps->name, caps->features,
            caps->mma[0].subgroup ? "with" : "without");
    bool processor = !strcmp(g->driver->name, "vulkan") && caps->threads == 1;
    g->small = g->b.smoke || processor;
    g->rounds = bench_rounds(&g->b, g->small ? 3 : 20);
    return true;
}

/* Reads the options and opens the device; false: end the program with g->b.status. */
static inline bool gpu_open(struct gpu *g, const char *name, int argc, char **argv)
{
    if (!bench_open(&g->b, name, argc, argv))
        return false;
    g->b.status = !gpu_device(g);
    return !g->b.status;
}

/* The program's exit status. */
static inline int gpu_close(struct gpu *g, bool ok) { return ok ? bench_close(&g->b) : bench_fail(&g->b, "failed"); }

/* ---- the time of work ---- */

static inline bool gpu_failed(const struct gpu *g, const char *name, const struct err *e)
{
    fprintf(stderr, "bench_%s: %s: %s\n", g->b.name, name, e->msg);
    return false;
}

/* Seconds that `work` takes on the device, by its own events where it has them, else by the host's clock.  false: the
 * work or the driver fails. */
static inline bool gpu_seconds(struct gpu *g, const char *name, bool (*work)(void *ctx), void *ctx, double *seconds)
{
    struct err e = {0};
    double start = measure_now();
    accelerator_lock(g->a);
    bool ok = !g->driver->time_begin || g->driver->time_begin(g->d, &e);
    accelerator_unlock(g->a);
    ok = ok && work(ctx);
    accelerator_lock(g->a);
    if (ok)
        ok = g->driver->time_end ? g->driver->time_end(g->d, seconds, &e) : g->driver->finish(g->d, &e);
    accelerator_unlock(g->a);
    if (!g->driver->time_end)
        *seconds = measure_now() - start;
    return ok || !e.code || gpu_failed(g, name, &e) ? ok : false;
}

/* A trace that is recorded again and again: what it keeps is put into out, which has room for MAX_KEPT. */
enum { MAX_KEPT = 16 };
struct gpu_trace {
    const char *name;
    int (*record)(void *ctx, kl_tensor *out); /* the number of results */
    void *ctx;
    int runs;            /* of the trace, one behind the other, for each time that is taken */
    int parts;           /* computations of which a trace has so many: the time is that of one */
};

static inline bool gpu_run_trace(void *ctx)
{
    const struct gpu_trace *t = ctx;
    for (int run = 0; run < t->runs; run++) {
        kl_tensor out[MAX_KEPT];
        kl_trace_begin(t->name);
        int n = t->record(t->ctx, out);
        for (int i = 0; i < n; i++)
            kl_keep(out[i]);
        if (kl_trace_end() != KL_OK)
            return false;
        for (int i = 0; i < n; i++)
            kl_release(out[i]);
    }
    return true;
}

/* The first rounds compile the trace's kernels, and capture them. */
static inline bool gpu_measure(struct gpu *g, const struct gpu_trace *t, struct samples *took)
{
    struct gpu_trace once = *t;
    double seconds = 0;
    once.runs = 1;
    took->n = 0;
    for (int round = -3; round < g->rounds; round++) {
        struct gpu_trace *now = round < 0 ? &once : (struct gpu_trace *)(uintptr_t)t;
        if (!gpu_seconds(g, t->name, gpu_run_trace, now, &seconds))
            return false;
        if (round >= 0)
            samples_add(took, seconds / (t->runs * t->parts));
        measure_progress(t->name, round + 3, g->rounds + 2);
    }
    return kl_sync(g->device) == KL_OK;
}

#endif
