/* A GPU: products beside cuBLASLt's, where that is there: large ones in f32, without TF32, and in bf16, and a few rows
 * with a matrix that is read once.  Both multiply several pairs of matrices in alternation, as a model does. */
#include "gpu.h"
#include "cublas.h"

enum { PAIRS = 4 };
struct product {
    struct gpu *g;
    const struct cublas *c;
    int64_t m, n, k;
    kl_dtype dtype;
    kl_tensor a[PAIRS], b[PAIRS];
};

static int record(void *ctx, kl_tensor *out)
{
    const struct product *p = ctx;
    for (int i = 0; i < PAIRS; i++)
        out[i] = kl_matmul(p->a[i], p->b[i]);
    return PAIRS;
}

/* ---- the peer ---- */

struct peer_product {
    const struct product *p;
    struct cublas_product plan;
    void *a[PAIRS], *b[PAIRS], *out[PAIRS], *work;
    int runs;
    bool ok;
};

static void multiply_theirs(void *ctx, void *stream)
{
    struct peer_product *q = ctx;
    const struct product *p = q->p;
    for (int run = 0; run < q->runs; run++)
        for (int i = 0; i < PAIRS; i++)
            q->ok &= cublas_product_run(p->c, &q->plan, q->a[i], q->b[i], q->out[i], q->work, stream);
}

static bool run_theirs(void *ctx)
{
    struct peer_product *q = ctx;
    struct gpu *g = q->p->g;
    struct err e = {0};
    accelerator_lock(g->a);
    bool ok = g->driver->enqueue(g->d, multiply_theirs, q, &e);
    accelerator_unlock(g->a);
    return ok && q->ok;
}

static bool take_memory(struct gpu *g, void **p, size_t bytes)
{
    struct err e = {0};
    accelerator_lock(g->a);
    bool ok = g->driver->alloc(g->d, bytes, p, &e);
    accelerator_unlock(g->a);
    return ok;
}

/* The same products by cuBLASLt, on memory of its own.  false: it cannot. */
static bool measure_theirs(const struct product *p, int runs, struct samples *took)
{
    struct peer_product q = {.p = p, .runs = runs, .ok = true};
    size_t size = p->dtype == KL_F32 ? 4 : 2;
    void **all[] = {q.a, q.b, q.out};
    size_t bytes[] = {(size_t)(p->m * p->k) * size, (size_t)(p->k * p->n) * size, (size_t)(p->m * p->n) * size};
    bool ok = cublas_product_new(p->c, p->dtype == KL_F32 ? CUBLAS_F32 : CUBLAS_BF16, p->m, p->n, p->k, &q.plan) &&
              take_memory(p->g, &q.work, CUBLAS_WORKSPACE);
    double seconds = 0;
    took->n = 0;
    for (int i = 0; i < 3 * PAIRS; i++)
        ok = ok && take_memory(p->g, &all[i / PAIRS][i % PAIRS], bytes[i / PAIRS]);
    for (int round = -3; ok && round < p->g->rounds; round++) {
        ok = gpu_seconds(p->g, "cublaslt", run_theirs, &q, &seconds);
        if (round >= 0)
            samples_add(took, seconds / (runs * PAIRS));
    }
    accelerator_lock(p->g->a);
    for (int i = 0; i < 3 * PAIRS; i++)
        if (all[i / PAIRS][i % PAIRS])
            p->g->driver->release(p->g->d, all[i / PAIRS][i % PAIRS]);
    if (q.work)
        p->g->driver->release(p->g->d, q.work);
    accelerator_unlock(p->g->a);
    cublas_product_free(p->c, &q.plan);
    return ok;
}

/* ---- both ---- */

static bool make_operands(struct product *p)
{
    kl_trace_begin("operands");
    for (int i = 0; i < PAIRS; i++) {
        p->a[i] = kl_keep(kl_cast(kl_randn(p->g->device, KL_F32, 2, (int64_t[]){p->m, p->k}, 2 * (uint64_t)i),
                                  p->dtype));
        p->b[i] = kl_keep(kl_cast(kl_randn(p->g->device, KL_F32, 2, (int64_t[]){p->k, p->n}, 2 * (uint64_t)i + 1),
                                  p->dtype));
    }
    return kl_trace_end() == KL_OK;
}

static bool measure(struct product *p)
{
    static struct samples took, theirs;
    char name[64];
    double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k, limit = 0;
    int runs = p->g->small ? 1 : flops < 1e10 ? 64 : flops < 1e12 ? 4 : 1;
    struct gpu_trace t = {.name = name, .record = record, .ctx = p, .runs = runs, .parts = PAIRS};
    snprintf(name, sizeof name, "%s %lldx%lldx%lld", kl_dtype_name(p->dtype), (long long)p->m, (long long)p->n,
             (long long)p->k);
    if (!bench_wants(&p->g->b, name))
        return true;
    bool ok = make_operands(p) && gpu_measure(p->g, &t, &took);
    for (int i = 0; i < PAIRS; i++) {
        kl_release(p->a[i]);
        kl_release(p->b[i]);
    }
    kl_memory_trim();
    if (!ok)
        return false;
    bool compared = p->c->handle && measure_theirs(p, runs, &theirs);
    if (compared) {
        limit = 1e-9 * flops / samples_median(&theirs);
        bench_add(&p->g->b, name, "cublaslt", 1, &theirs, "GFLOP/s", flops, 0);
    }
    struct result *r = bench_add(&p->g->b, name, "fused", 1, &took, "GFLOP/s", flops, limit);
    if (compared && r)
        bench_baseline(r, "cublaslt", samples_median(&theirs) / samples_median(&took));
    return true;
}

int main(int argc, char **argv)
{
    static const int64_t size[][3] = {{1024, 1024, 1024}, {2048, 2048, 2048}, {4096, 4096, 4096}, {8192, 8192, 8192},
                                      {1, 4096, 4096}, {8, 4096, 4096}, {16, 4096, 4096}, {128, 512, 784}},
                         small[][3] = {{64, 64, 64}, {8, 128, 128}};
    static const kl_dtype dtype[] = {KL_F32, KL_BF16};
    static struct gpu g;
    struct cublas c = {0};
    if (!gpu_open(&g, "gpu_products", argc, argv))
        return g.b.status;
    bool ok = true;
    if (!strcmp(kl_device_name(g.device), "cuda:0") && !cublas_open(&c))
        fprintf(stderr, "bench_gpu_products: products are compared with nothing: %s\n", c.why);
    size_t n = g.small ? sizeof small / sizeof *small : sizeof size / sizeof *size;
    for (unsigned i = 0; i < 2 * n && ok; i++) {
        const int64_t *s = g.small ? small[i / 2] : size[i / 2];
        ok = measure(&(struct product){.g = &g, .c = &c, .m = s[0], .n = s[1], .k = s[2], .dtype = dtype[i % 2]});
    }
    return gpu_close(&g, ok);
}
