/* A GPU: elementwise kernels, rows and transposes against what a copy on the device moves in the same time, by the
 * driver or by a kernel, whichever moves more: NVIDIA's Vulkan copies buffers at 0.3 of what kernels do. */
#include "gpu.h"

enum { COLUMNS = 4096, MAX_ARRAYS = 6, COPIES = 8 };

struct streams {
    struct gpu g;
    int64_t n;                    /* elements of an array */
    kl_tensor t[MAX_ARRAYS];
    double bandwidth;             /* bytes a second of a copy, both ways counted */
};

/* ---- the limit: a copy on the device ---- */

struct copies { struct gpu *g; void *p[2]; size_t bytes; struct err e; };

static bool copy_often(void *ctx)
{
    struct copies *c = ctx;
    bool ok = true;
    accelerator_lock(c->g->a);
    for (int i = 0; ok && i < COPIES; i++)
        ok = c->g->driver->copy(c->g->d, c->p[i & 1], c->p[~i & 1], c->bytes, &c->e);
    accelerator_unlock(c->g->a);
    return ok;
}

static bool copy(struct streams *s)
{
    static struct samples took;
    struct copies c = {.g = &s->g, .bytes = (size_t)s->n * sizeof(float)};
    bool ok = true;
    double seconds = 0;
    for (int i = 0; ok && i < 2; i++) {
        accelerator_lock(s->g.a);
        ok = s->g.driver->alloc(s->g.d, c.bytes, &c.p[i], &c.e);
        accelerator_unlock(s->g.a);
    }
    for (int round = -1; ok && round < s->g.rounds; round++) {
        ok = gpu_seconds(&s->g, "copy", copy_often, &c, &seconds);
        if (round >= 0)
            samples_add(&took, seconds / COPIES);
    }
    accelerator_lock(s->g.a);
    for (int i = 0; i < 2; i++)
        if (c.p[i])
            s->g.driver->release(s->g.d, c.p[i]);
    accelerator_unlock(s->g.a);
    if (!ok)
        return gpu_failed(&s->g, "copy", &c.e);
    s->bandwidth = 2 * (double)c.bytes / samples_median(&took);
    if (bench_wants(&s->g.b, "copy"))
        bench_add(&s->g.b, "copy", "device", 1, &took, "GB/s", 2 * (double)c.bytes, 0);
    return true;
}

/* ---- elementwise and rows ---- */

static kl_tensor rows_of(const struct streams *s, int i)
{
    return kl_reshape(s->t[i], 2, (int64_t[]){s->n / COLUMNS, COLUMNS});
}
static kl_tensor gain_of(const struct streams *s, int i) { return kl_narrow(s->t[i], 0, 0, COLUMNS); }

static kl_tensor record_negated(const struct streams *s) { return kl_neg(s->t[1]); }
static kl_tensor record_add(const struct streams *s) { return kl_add(s->t[1], s->t[2]); }
static kl_tensor record_chain(const struct streams *s)
{
    kl_tensor x = kl_gelu(kl_add(kl_mul(s->t[1], s->t[2]), s->t[3]));
    return kl_add(kl_mul(x, s->t[4]), kl_tanh(s->t[5]));
}
static kl_tensor record_sum(const struct streams *s) { return kl_sum_all(s->t[1]); }
static kl_tensor record_softmax(const struct streams *s) { return kl_softmax(rows_of(s, 1), 1); }
static kl_tensor record_layernorm(const struct streams *s)
{
    return kl_layer_norm(rows_of(s, 1), 1, gain_of(s, 2), gain_of(s, 3), 1e-5);
}
static kl_tensor record_transpose(const struct streams *s) { return kl_neg(kl_transpose(rows_of(s, 1), 0, 1)); }
static kl_tensor record_columns(const struct streams *s)
{
    return kl_sum(rows_of(s, 1), 1, (int[]){0}, false);
}
static kl_tensor record_normal(const struct streams *s) { return kl_randn(s->g.device, KL_F32, 1, &s->n, 1); }
static kl_tensor record_cumsum(const struct streams *s) { return kl_cumsum(s->t[1], 0, false, false); }

static const struct stream_case {
    const char *name;
    int streams;                  /* arrays that are read or stored */
    kl_tensor (*record)(const struct streams *s);
} cases[] = {{"add", 3, record_add}, {"gelu chain", 6, record_chain}, {"sum", 1, record_sum},
             {"sum columns", 1, record_columns}, {"softmax rows", 2, record_softmax},
             {"layer norm rows", 2, record_layernorm}, {"transpose", 2, record_transpose},
             {"cumsum", 2, record_cumsum}, {"random normal", 1, record_normal}};

struct recorded { const struct stream_case *c; const struct streams *s; };

static int record(void *ctx, kl_tensor *out)
{
    const struct recorded *r = ctx;
    out[0] = r->c->record(r->s);
    return 1;
}

static bool measure_case(struct streams *s, const struct stream_case *c, struct samples *took)
{
    struct recorded r = {c, s};
    struct gpu_trace t = {.name = c->name, .record = record, .ctx = &r, .runs = 4, .parts = 1};
    return gpu_measure(&s->g, &t, took);
}

/* The limit is that of a kernel if the driver's copy moves less. */
static bool copy_by_kernel(struct streams *s)
{
    static struct samples took;
    static const struct stream_case c = {"copy by kernel", 2, record_negated};
    double bytes = 2 * (double)s->n * sizeof(float);
    if (!measure_case(s, &c, &took))
        return false;
    double bandwidth = bytes / samples_median(&took);
    s->bandwidth = bandwidth > s->bandwidth ? bandwidth : s->bandwidth;
    if (bench_wants(&s->g.b, c.name))
        bench_add(&s->g.b, c.name, "fused", 1, &took, "GB/s", bytes, 0);
    return true;
}

static bool run_case(struct streams *s, const struct stream_case *c)
{
    static struct samples took;
    if (!measure_case(s, c, &took))
        return false;
    bench_add(&s->g.b, c->name, "fused", 1, &took, "GB/s", (double)c->streams * (double)s->n * sizeof(float),
              1e-9 * s->bandwidth);
    return true;
}

static bool run_cases(struct streams *s)
{
    kl_trace_begin("arrays");
    for (int i = 1; i < MAX_ARRAYS; i++)
        s->t[i] = kl_keep(kl_rand(s->g.device, KL_F32, 1, &s->n, (uint64_t)i));
    bool ok = kl_trace_end() == KL_OK && copy_by_kernel(s);
    for (unsigned i = 0; ok && i < sizeof cases / sizeof *cases; i++)
        if (bench_wants(&s->g.b, cases[i].name))
            ok = run_case(s, &cases[i]);
    for (int i = 1; i < MAX_ARRAYS; i++)
        kl_release(s->t[i]);
    return ok;
}

int main(int argc, char **argv)
{
    static struct streams s;
    if (!gpu_open(&s.g, "gpu_streams", argc, argv))
        return s.g.b.status;
    s.n = s.g.small ? 1 << 16 : 1 << 28;
    return gpu_close(&s.g, copy(&s) && run_cases(&s));
}
