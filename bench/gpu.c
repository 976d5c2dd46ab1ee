/* A GPU: elementwise kernels and rows against what a copy on the device moves in the same time, products against
 * cuBLASLt without TF32 where that is there, and the training step of a classifier, by captured steps.
 *
 * The device is $KILN_DEVICE, else the first of cuda, hip and vulkan that works.  Times are wall time from the call to
 * the end of the work, the host's part included. */
#include "bench.h"
#include "cublas.h"
#include "models.h"
#include "runtime/device/driver.h"
#include "runtime/runtime.h"

enum { ROUNDS = 20, COLUMNS = 4096, MAX_ARRAYS = 6, RUNS = 8 };

struct gpu {
    struct bench b;
    kl_device device;
    const struct driver *driver;
    struct driver_device *d;
    struct accelerator *a;
    int64_t n;                    /* elements of an array */
    kl_tensor t[MAX_ARRAYS];
    double bandwidth;             /* bytes a second of a copy, both ways counted; 0: not measured */
};

static bool open_device(struct gpu *g)
{
    static const char *const names[] = {"cuda", "hip", "vulkan"};
    const char *asked = getenv("KILN_DEVICE");
    for (unsigned i = 0; !g->device.id && i < (asked ? 1u : 3u); i++) {
        g->device = kl_device_named(asked ? asked : names[i]);
        if (!g->device.id)
            fprintf(stderr, "bench_gpu: %s\n", kl_last_error());
        kl_clear_error();
    }
    struct err e = {0};
    int number = g->device.id ? device_find(kl_device_name(g->device), &e) : -1;
    g->a = number < 0 ? NULL : accelerator_get(number);
    if (!g->a) {
        fprintf(stderr, "bench_gpu: there is no GPU%s%s\n", asked ? " called " : "", asked ? asked : "");
        return false;
    }
    g->driver = accelerator_driver(g->a);
    g->d = accelerator_device(g->a);
    g->n = !strcmp(g->driver->name, "vulkan") ? 1 << 22 : 1 << 28;
    const struct caps *caps = accelerator_caps(g->a);
    fprintf(stderr, "bench_gpu: device %s %s %s, %s tensor cores\n", kl_device_name(g->device), caps->name,
            caps->features,
            caps->mma[0].subgroup ? "with" : "without");
    return true;
}

/* ---- the limit: a copy on the device ---- */

static bool copy(struct gpu *g)
{
    static struct samples took;
    struct err e = {0};
    void *p[2] = {0};
    size_t bytes = (size_t)g->n * sizeof(float);
    accelerator_lock(g->a);
    bool ok = g->driver->alloc(g->d, bytes, &p[0], &e) && g->driver->alloc(g->d, bytes, &p[1], &e);
    for (int round = -1; ok && round < ROUNDS; round++) { /* round -1 captures */
        double start = measure_now();
        for (int i = 0; ok && i < RUNS; i++)
            ok = g->driver->copy(g->d, p[i & 1], p[~i & 1], bytes, &e);
        ok = ok && g->driver->finish(g->d, &e);
        if (round >= 0)
            samples_add(&took, (measure_now() - start) / RUNS);
    }
    for (int i = 0; i < 2; i++)
        if (p[i])
            g->driver->release(g->d, p[i]);
    accelerator_unlock(g->a);
    if (!ok) {
        fprintf(stderr, "bench_gpu: copy: %s\n", e.msg);
        return false;
    }
    g->bandwidth = 2 * (double)bytes / samples_median(&took);
    bench_add(&g->b, "copy", "device", 1, &took, "GB/s", 2 * (double)bytes, 0);
    return true;
}

/* ---- elementwise and rows ---- */

static kl_tensor rows_of(const struct gpu *g, int i)
{
    return kl_reshape(g->t[i], 2, (int64_t[]){g->n / COLUMNS, COLUMNS});
}
static kl_tensor gain_of(const struct gpu *g, int i) { return kl_narrow(g->t[i], 0, 0, COLUMNS); }

static kl_tensor record_add(const struct gpu *g) { return kl_add(g->t[1], g->t[2]); }
static kl_tensor record_chain(const struct gpu *g)
{
    kl_tensor x = kl_gelu(kl_add(kl_mul(g->t[1], g->t[2]), g->t[3]));
    return kl_add(kl_mul(x, g->t[4]), kl_tanh(g->t[5]));
}
static kl_tensor record_sum(const struct gpu *g) { return kl_sum_all(g->t[1]); }
static kl_tensor record_softmax(const struct gpu *g) { return kl_softmax(rows_of(g, 1), 1); }
static kl_tensor record_layernorm(const struct gpu *g)
{
    return kl_layer_norm(rows_of(g, 1), 1, gain_of(g, 2), gain_of(g, 3), 1e-5);
}

static const struct stream_case {
    const char *name;
    int streams;                  /* arrays that are read or stored */
    kl_tensor (*record)(const struct gpu *g);
} cases[] = {{"add", 3, record_add}, {"gelu chain", 6, record_chain}, {"sum", 1, record_sum},
             {"softmax rows", 2, record_softmax},
             {"layer norm rows", 2, record_layernorm}};

static bool run_case(struct gpu *g, const struct stream_case *c)
{
    static struct samples took;
    took.n = 0;
    for (int round = -3; round < ROUNDS; round++) { /* compiled, seen, captured */
        double start = measure_now();
        kl_trace_begin(c->name);
        kl_tensor y = kl_keep(c->record(g));
        if (kl_trace_end() != KL_OK || kl_sync(g->device) != KL_OK)
            return false;
        if (round >= 0)
            samples_add(&took, measure_now() - start);
        kl_release(y);
        measure_progress(c->name, round + 3, ROUNDS + 2);
    }
    bench_add(&g->b, c->name, "fused", 1, &took, "GB/s", (double)c->streams * (double)g->n * sizeof(float),
              1e-9 * g->bandwidth);
    return true;
}

static bool streams(struct gpu *g)
{
    bool ok = true;
    kl_trace_begin("arrays");
    for (int i = 1; i < MAX_ARRAYS; i++)
        g->t[i] = kl_keep(kl_rand(g->device, KL_F32, 1, &g->n, (uint64_t)i));
    ok = kl_trace_end() == KL_OK;
    for (unsigned i = 0; ok && i < sizeof cases / sizeof *cases; i++)
        if (bench_wants(&g->b, cases[i].name))
            ok = run_case(g, &cases[i]);
    for (int i = 1; i < MAX_ARRAYS; i++)
        kl_release(g->t[i]);
    kl_memory_trim();
    return ok;
}

/* ---- products ---- */

/* The same product by cuBLASLt, on memory of its own; false: it cannot. */
static bool peer(struct gpu *g, const struct cublas *c, int type, const int64_t *d, struct samples *took)
{
    struct err e = {0};
    size_t size = type == CUBLAS_F32 ? 4 : 2;
    size_t bytes[4] = {(size_t)(d[0] * d[2]) * size, (size_t)(d[2] * d[1]) * size, (size_t)(d[0] * d[1]) * size,
                       CUBLAS_WORKSPACE};
    void *p[4] = {0};
    bool ok = true;
    for (int i = 0; i < 4; i++)
        ok = ok && g->driver->alloc(g->d, bytes[i], &p[i], &e);
    for (int round = -3; ok && round < ROUNDS; round++) {
        double start = measure_now();
        ok = cublas_product(c, type, d[0], d[1], d[2], p[0], p[1], p[2], p[3]);
        if (round >= 0)
            samples_add(took, measure_now() - start);
    }
    for (int i = 0; i < 4; i++)
        if (p[i])
            g->driver->release(g->d, p[i]);
    return ok;
}

static bool product(struct gpu *g, const struct cublas *c, kl_dtype dtype, const int64_t *d)
{
    static struct samples took, theirs;
    char name[64];
    took.n = theirs.n = 0;
    snprintf(name, sizeof name, "%s %lldx%lldx%lld", kl_dtype_name(dtype), (long long)d[0], (long long)d[1],
             (long long)d[2]);
    if (!bench_wants(&g->b, name))
        return true;
    kl_trace_begin("operands");
    kl_tensor a = kl_keep(kl_cast(kl_rand(g->device, KL_F32, 2, (int64_t[]){d[0], d[2]}, 1), dtype));
    kl_tensor b = kl_keep(kl_cast(kl_rand(g->device, KL_F32, 2, (int64_t[]){d[2], d[1]}, 2), dtype));
    bool ok = kl_trace_end() == KL_OK;
    for (int round = -3; ok && round < ROUNDS; round++) {
        double start = measure_now();
        kl_trace_begin("product");
        kl_tensor y = kl_keep(kl_matmul(a, b));
        ok = kl_trace_end() == KL_OK && kl_sync(g->device) == KL_OK;
        if (round >= 0)
            samples_add(&took, measure_now() - start);
        kl_release(y);
        measure_progress(name, round + 3, ROUNDS + 2);
    }
    kl_release(a);
    kl_release(b);
    if (!ok)
        return false;
    double flops = 2.0 * (double)d[0] * (double)d[1] * (double)d[2], limit = 0;
    bool compared = c->handle && peer(g, c, dtype == KL_F32 ? CUBLAS_F32 : CUBLAS_BF16, d, &theirs);
    if (compared) {
        limit = 1e-9 * flops / samples_median(&theirs);
        bench_add(&g->b, name, "cublaslt", 1, &theirs, "GFLOP/s", flops, 0);
    }
    struct result *r = bench_add(&g->b, name, "fused", 1, &took, "GFLOP/s", flops, limit);
    if (compared && r)
        bench_baseline(r, "cublaslt", samples_median(&theirs) / samples_median(&took));
    return true;
}

static bool products(struct gpu *g)
{
    static const int64_t size[][3] = {{128, 512, 784}, {512, 512, 512}, {2048, 2048, 2048}, {4096, 4096, 4096}};
    struct cublas c = {0};
    bool small = !strcmp(g->driver->name, "vulkan"), ok = true;
    if (!strcmp(kl_device_name(g->device), "cuda:0") && !cublas_open(&c))
        fprintf(stderr, "bench_gpu: products are compared with nothing: %s\n", c.why);
    for (unsigned i = 0; ok && i < (small ? 2u : 4u); i++)
        ok = product(g, &c, KL_F32, size[i]) && product(g, &c, KL_BF16, size[i]);
    return ok;
}

/* ---- a training step ---- */

static bool training(struct gpu *g)
{
    static struct samples took;
    static struct mlp m;
    bool ok = mlp_open(&m, g->device, 128);
    for (int round = -5; ok && round < 5 * ROUNDS; round++) {
        double start = measure_now();
        ok = mlp_step(&m);
        if (round >= 0)
            samples_add(&took, measure_now() - start);
        measure_progress("mlp-128-adam", round + 5, 5 * ROUNDS + 4);
    }
    mlp_close(&m);
    if (ok)
        bench_add(&g->b, "mlp-128-adam", "fused", 1, &took, "us", 0, 0);
    return ok;
}

/* Is there one of the cases that a copy is the limit of? */
static bool wants_streams(const struct gpu *g)
{
    bool some = bench_wants(&g->b, "copy");
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        some |= bench_wants(&g->b, cases[i].name);
    return some;
}

int main(int argc, char **argv)
{
    static struct gpu g;
    if (!bench_open(&g.b, "gpu", argc, argv))
        return g.b.status;
    if (!open_device(&g) || (wants_streams(&g) && !copy(&g)))
        return 1;
    bool ok = (!wants_streams(&g) || streams(&g)) && products(&g) &&
        (!bench_wants(&g.b, "mlp-128-adam") || training(&g));
    return ok ? bench_close(&g.b) : bench_fail(&g.b, "gpu");
}
