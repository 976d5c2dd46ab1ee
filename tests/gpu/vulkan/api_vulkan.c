/* The driver of Vulkan in front of a loader that counts and fails (vulkan_faults.c): one allocation serves many
 * buffers, a step that comes again is played again, only who reads waits for it; a barrier stands where a command needs
 * what another has written; pipelines are kept on disk; a device that is full, that takes no kernel or no work gives an
 * error, every value is as before and the next step works; one that was lost leaves the others as they are. */
#define _GNU_SOURCE
#include "tests/support/api_check.h"
#include "vulkan_faults.h"
#include <dlfcn.h>
#include <libgen.h>
#include <unistd.h>

static kl_device dev, host;
static struct vulkan_faults *faults;

static bool says(kl_status status, kl_status want, const char *phrase)
{
    bool ok = status == want && strstr(kl_last_error(), phrase);
    if (!ok)
        printf("status %d, not %d; no \"%s\" in \"%s\"\n", (int)status, (int)want, phrase, kl_last_error());
    kl_clear_error();
    return ok;
}

/* w += by * ones. */
static kl_status step(kl_tensor w, double by)
{
    float one[64];
    for (int i = 0; i < 64; i++)
        one[i] = 1;
    kl_trace_begin("step");
    kl_assign(w, kl_add(w, kl_mul_scalar(kl_input(dev, KL_F32, DIMS(64), one), by)));
    return kl_trace_end();
}

static bool holds(kl_tensor w, double x)
{
    double *v = values_of(w);
    bool ok = v != NULL;
    for (int64_t i = 0; ok && i < kl_numel(w); i++)
        ok = v[i] == x;
    free(v);
    return ok;
}

static void pool(void)
{
    kl_tensor t[64];
    static float data[4096];
    unsigned before = faults->allocations;
    for (int i = 0; i < 64; i++) {
        data[0] = (float)i;
        t[i] = kl_input(dev, KL_F32, DIMS(1 + 61 * i), data);
    }
    CHECK(faults->allocations <= before + 4);
    for (int i = 0; i < 64; i++) {
        double *v = values_of(t[i]);
        CHECK(v && v[0] == i && (i == 0 || v[61 * i] == 0));
        free(v);
        kl_release(t[i]);
    }
}

static void played_again(kl_tensor w)
{
    for (int i = 0; i < 12; i++)
        OK(step(w, i));
    CHECK(holds(w, 66));
    unsigned recordings = faults->recordings, submits = faults->submits, waits = faults->waits;
    OK(step(w, 0.5));
    OK(step(w, 0.25));
    CHECK(faults->waits == waits && faults->submits >= submits + 2);
    for (int i = 0; i < 20; i++)
        OK(step(w, i));
    CHECK(faults->recordings <= recordings + 2); /* a list that is new, after the read */
    CHECK(holds(w, 66.75 + 190));
    CHECK(faults->waits > waits);
    OK(step(w, -190.75));
}

/* Barriers of one recording of so many reductions, each of an input of its own or of what the one before gave. */
static unsigned barriers_of(int n, bool chain)
{
    enum { MAX_COUNT = 8, SIDE = 64 };
    static float x[SIDE * SIDE];
    kl_tensor in[MAX_COUNT], out[MAX_COUNT];
    for (int i = 0; i < n; i++)
        in[i] = kl_input(dev, KL_F32, DIMS(SIDE, SIDE), x);
    OK(kl_flush(dev));
    unsigned dispatches = faults->dispatches, barriers = faults->barriers, recordings = faults->recordings;
    kl_trace_begin("reductions");
    for (int i = 0; i < n; i++) {
        kl_tensor from = chain && i ? kl_matmul(in[i], out[i - 1]) : kl_matmul(in[i], in[i]);
        out[i] = kl_keep(from);
    }
    OK(kl_trace_end());
    OK(kl_flush(dev));
    for (int i = 0; i < n; i++) {
        kl_release(in[i]);
        kl_release(out[i]);
    }
    CHECK(faults->dispatches - dispatches == (unsigned)n);
    return faults->barriers - barriers - 2 * (faults->recordings - recordings); /* its first and its last */
}

static void barriers(void)
{
    CHECK(barriers_of(4, false) == 0);
    CHECK(barriers_of(4, true) == 3);
}

/* Memory of the host for copies is as large as they are. */
static void staged(void)
{
    enum { N = 3 << 18 };
    static float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    faults->largest = 0;
    for (int i = 0; i < 3; i++) {
        kl_tensor t = kl_input(dev, KL_F32, DIMS(N), x);
        OK(kl_read(t, y, sizeof y));
        CHECK(!memcmp(x, y, sizeof x));
        kl_release(t);
    }
    CHECK(faults->largest == 4 << 20); /* of 3 MiB */
}

static void full(kl_tensor w)
{
    kl_tensor x = kl_zeros(dev, KL_F32, DIMS(16 << 20)), y;
    CHECK(kl_numel(x) == 16 << 20);
    faults->full = 1;
    kl_trace_begin("large");
    y = kl_keep(kl_add_scalar(x, 1));
    CHECK(says(kl_trace_end(), KL_ERR_MEMORY, "vulkan:0"));
    faults->full = 1 << 26; /* no blocks for many buffers, but what is needed */
    kl_trace_begin("less");
    y = kl_keep(kl_add_scalar(kl_zeros(dev, KL_F32, DIMS(1 << 20)), 1));
    OK(kl_trace_end());
    faults->full = 0;
    CHECK(holds(y, 1));
    kl_release(y);
    kl_trace_begin("large");
    y = kl_keep(kl_add_scalar(x, 1));
    OK(kl_trace_end());
    CHECK(holds(y, 1));
    kl_release(y);
    kl_release(x);
    OK(step(w, 0));
    CHECK(holds(w, 66));
}

static kl_status new_kernel(kl_tensor w)
{
    kl_trace_begin("new kernel");
    kl_assign(w, kl_sqrt(kl_mul(w, w)));
    return kl_trace_end();
}

static void refused(kl_tensor w)
{
    faults->no_pipelines = true;
    CHECK(says(new_kernel(w), KL_ERR_DEVICE, "vkCreateComputePipelines"));
    OK(step(w, 0)); /* what is there works */
    faults->no_pipelines = false;
    OK(new_kernel(w));
    CHECK(holds(w, 66));
    faults->no_submits = true;
    CHECK(says(step(w, 1), KL_ERR_MEMORY, "vkQueueSubmit"));
    faults->no_submits = false;
    CHECK(holds(w, 66));
    OK(step(w, 1));
    CHECK(holds(w, 67));
}

static void lost(kl_tensor w)
{
    float x[64];
    faults->lost = true;
    OK(step(w, 1)); /* nobody has looked yet */
    CHECK(says(kl_read(w, x, sizeof x), KL_ERR_DEVICE, "was lost"));
    faults->lost = false;
    CHECK(says(step(w, 1), KL_ERR_DEVICE, "device vulkan:0 was lost"));
    kl_tensor y = kl_ones(host, KL_F32, DIMS(5));
    kl_trace_begin("elsewhere");
    kl_keep(y = kl_add_scalar(y, 1));
    OK(kl_trace_end());
    CHECK(holds(y, 2));
    kl_release(y);
    kl_release(w);
}

/* Mesa's driver for processors ends a shader's loops after 65,535 iterations together: what would have more is
 * refused, and the next program runs. */
static void long_loops(void)
{
    enum { SHORT = 4096, LONG = 100000 };
    static float x[LONG];
    static int32_t got[SHORT];
    for (int i = 0; i < LONG; i++)
        x[i] = (float)((i * 7919) % LONG);
    kl_tensor all = kl_input(dev, KL_F32, DIMS(LONG), x), few = kl_input(dev, KL_F32, DIMS(SHORT), x);
    kl_tensor product = kl_cumprod(all, 0, false, false);
    kl_status status = kl_flush(dev);
    CHECK(status == KL_OK || strstr(kl_last_error(), "this device's driver ends loops after 65535 in all"));
    kl_tensor order = kl_argsort(few, 0, false);
    CHECK(kl_read(order, got, sizeof got) == KL_OK);
    bool sorted = true;
    for (int i = 1; i < SHORT; i++)
        sorted &= x[got[i - 1]] < x[got[i]];
    CHECK(sorted);
    kl_release(product);
    kl_release(order);
    kl_release(few);
    kl_release(all);
}

/* Another process, with a folder for kernels: pipeline caches that it made, and those with data. */
static void run_other(const char *self, const char *folder, unsigned *caches, unsigned *filled)
{
    char command[9000];
    snprintf(command, sizeof command, "KILN_CACHE_DIR='%s' '%s' pipelines", folder, self);
    FILE *f = popen(command, "r");
    CHECK(f && fscanf(f, "%u %u", caches, filled) == 2);
    CHECK(f && pclose(f) == 0);
}

static void pipelines_kept(const char *self)
{
    char folder[] = "/tmp/kiln-pipelines-XXXXXX", command[64];
    unsigned caches = 0, filled = 0;
    CHECK(mkdtemp(folder) != NULL);
    run_other(self, folder, &caches, &filled);
    CHECK(caches > 0 && filled == 0);
    run_other(self, folder, &caches, &filled);
    CHECK(caches > 0 && filled == caches);
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0);
}

int main(int argc, char **argv)
{
    static char self[4000], path[4096];
    device_now = "vulkan";
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    static char program[4000];
    memcpy(program, self, sizeof program);
    snprintf(path, sizeof path, "%s/vulkan_faults.so", n > 0 ? dirname(self) : ".");
    void *so = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* its name is the loader's: the driver finds it */
    faults = so ? dlsym(so, "vulkan_faults") : NULL;
    dev = faults ? kl_device_named("vulkan") : (kl_device){0};
    host = kl_device_named("ref");
    if (!faults || !dev.id) {
        printf("SKIP no-device vulkan: %s\n", faults ? kl_last_error() : "no loader was found when this was built");
        printf("%d passed, %d failed, 1 skipped\n", passed, failed);
        return failed != 0;
    }
    CHECK(faults->allocations > 0 && faults->waits > 0); /* it is the one that counts */
    kl_tensor w = kl_zeros(dev, KL_F32, DIMS(64));
    if (argc > 1 && !strcmp(argv[1], "pipelines")) {
        OK(step(w, 1));
        CHECK(holds(w, 1));
        printf("%u %u\n", faults->caches, faults->filled);
        return failed != 0;
    }
    pool();
    played_again(w);
    barriers();
    staged();
    pipelines_kept(program);
    full(w);
    refused(w);
    long_loops();
    lost(w);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
