/* Attention on one thread: the op, the same of products and a softmax, and, of the forward pass alone, a kernel written
 * by hand, in alternation, beside the arithmetic peak of the same run.  GFLOP/s count what queries see: half of all,
 * where they are causal, and of nested sequences each by itself; of a gradient two products forward and five backward.
 * "nested" is beside "padded", the same sequences as one batch with a mask. */
#include "bench.h"
#include "hand.h"
#include <math.h>

enum { ROUNDS = 20, HEADS = 8, DEPTH = 64, SEQUENCES = 16, SMOKE_LENGTH = 512 };
/* 2,048 rows in all: what a batch of sentences looks like. */
static const int32_t lengths[SEQUENCES] = {31, 256, 97, 160, 64, 201, 45, 128, 77, 190, 250, 112, 60, 144, 83, 150};

enum variant { OP, COMPOSITE, BY_HAND, VARIANTS };
static const char *const variant_name[] = {"fused", "composite", "hand"};

static const struct attention_case {
    const char *name;
    int length;
    bool causal, nested, one; /* one: a single query, as where a model writes word by word */
    bool gradient;            /* in q, k and v, and the forward pass */
} cases[] = {{"8x1024x64", .length = 1024}, {"8x1024x64-causal", .length = 1024, .causal = true},
             {"8x128x64", .length = 128},
             {"8x128x64-causal", .length = 128, .causal = true}, {"8x1x1024x64", .length = 1024, .one = true},
             {"8x2048x64-causal-gradient", .length = 2048, .causal = true, .gradient = true},
             {"8x512x64-gradient", .length = 512, .gradient = true}, {"nested-16x8x64", .nested = true}};
enum { CASES = sizeof cases / sizeof *cases };

struct data {
    kl_device device;
    /* [HEADS, length, DEPTH]; of nested cases those padded, and [T, HEADS, DEPTH] */
    kl_tensor q, k, v, mask, nested;
    float *host[4];                       /* q, k, v and the result */
};

static kl_tensor composite(const struct attention_case *c, const struct data *d)
{
    kl_tensor s = kl_matmul(kl_mul_scalar(d->q, 1 / sqrt((double)DEPTH)), kl_transpose(d->k, -1, -2));
    if (c->causal)
        s = kl_where(d->mask, s, kl_const(d->device, KL_F32, -INFINITY));
    return kl_matmul(kl_softmax(s, -1), d->v);
}

static bool by_hand(const struct attention_case *c) { return !c->nested && !c->one && !c->gradient; }

/* One variant, recorded, run and waited for. */
static bool step(const struct attention_case *c, const struct data *d, enum variant v)
{
    for (int h = 0; v == BY_HAND && h < HEADS; h++) {
        size_t at = (size_t)h * (size_t)c->length * DEPTH;
        hand_attention(d->host[3] + at, d->host[0] + at, d->host[1] + at, d->host[2] + at, c->length, c->length, DEPTH,
                       c->causal);
    }
    if (v == BY_HAND)
        return true;
    kl_trace_begin(v == OP ? "attention" : "composite");
    kl_tensor y = c->nested ? (v == OP ? kl_nested_attention(d->nested, d->nested, d->nested, c->causal)
                                       : kl_attention(d->q, d->k, d->v, d->mask, false))
                  : v == OP ? kl_attention(d->q, d->k, d->v, kl_none, c->causal)
                            : composite(c, d);
    kl_keep(y);
    kl_tensor x[] = {d->q, d->k, d->v}, g[3];
    kl_tensor loss = c->gradient ? kl_sum(kl_mul(y, d->k), 0, NULL, false) : kl_none;
    for (int i = 0; i < 3 && c->gradient; i++)
        g[i] = kl_keep(kl_grad(loss, x[i]));
    bool ok = kl_trace_end() == KL_OK && kl_sync(d->device) == KL_OK && kl_release(y) == KL_OK;
    for (int i = 0; i < 3 && c->gradient; i++)
        ok &= kl_release(g[i]) == KL_OK;
    return ok;
}

static kl_tensor kept(kl_tensor t) { return kl_keep(t); }

static kl_tensor noise(kl_device dev, int rank, const int64_t *dims, uint64_t seed, float **host)
{
    kl_tensor t = kept(kl_randn(dev, KL_F32, rank, dims, seed));
    size_t n = (size_t)kl_numel(t);
    if (host && (*host = malloc(n * sizeof **host)))
        kl_read(t, *host, n * sizeof **host);
    return t;
}

static bool open_case(const struct attention_case *c, struct data *d)
{
    kl_device dev = d->device;
    if (!c->nested) {
        const int64_t dims[] = {HEADS, c->length, DEPTH};
        d->q = noise(dev, 3, dims, 1, &d->host[0]);
        d->k = noise(dev, 3, dims, 2, &d->host[1]);
        d->v = noise(dev, 3, dims, 3, &d->host[2]);
        d->host[3] = malloc((size_t)kl_numel(d->k) * sizeof *d->host[3]);
        d->q = c->one ? kept(kl_narrow(d->q, 1, 0, 1)) : d->q;
        kl_tensor i = kl_iota(dev, KL_I32, 2, (int64_t[]){c->length, c->length}, 0),
            j = kl_iota(dev, KL_I32, 2, (int64_t[]){c->length, c->length}, 1);
        d->mask = kept(kl_le(j, i));
        return d->host[0] && d->host[1] && d->host[2] && d->host[3] && kl_sync(dev) == KL_OK;
    }
    int32_t offsets[SEQUENCES + 1] = {0}, longest = 0;
    for (int i = 0; i < SEQUENCES; i++) {
        offsets[i + 1] = offsets[i] + lengths[i];
        longest = lengths[i] > longest ? lengths[i] : longest;
    }
    const int64_t dims[] = {SEQUENCES, HEADS, longest, DEPTH};
    d->q = noise(dev, 4, dims, 1, NULL);
    d->k = noise(dev, 4, dims, 2, NULL);
    d->v = noise(dev, 4, dims, 3, NULL);
    kl_tensor n = kl_input(dev, KL_I32, 4, (int64_t[]){SEQUENCES, 1, 1, 1}, lengths);
    d->mask = kept(kl_lt(kl_iota(dev, KL_I32, 4, (int64_t[]){SEQUENCES, 1, 1, longest}, 3), n));
    kl_tensor rows = noise(dev, 3, (int64_t[]){offsets[SEQUENCES], HEADS, DEPTH}, 4, NULL);
    d->nested = kept(kl_nested(rows, kl_input(dev, KL_I32, 1, (int64_t[]){SEQUENCES + 1}, offsets)));
    return kl_sync(dev) == KL_OK;
}

/* Does the kernel by hand give what the op gives? */
static bool same_by_hand(const struct attention_case *c, struct data *d)
{
    size_t n = (size_t)kl_numel(d->q);
    kl_tensor y = kl_attention(d->q, d->k, d->v, kl_none, c->causal);
    float *got = malloc(n * sizeof *got), max = 0;
    bool ok = got && step(c, d, BY_HAND) && kl_read(y, got, n * sizeof *got) == KL_OK && kl_release(y) == KL_OK;
    for (size_t i = 0; ok && i < n; i++)
        max = fmaxf(max, fabsf(got[i] - d->host[3][i]));
    free(got);
    if (ok && !(max < 1e-5f))
        fprintf(stderr, "bench_attention: %s: the kernel by hand differs by %g\n", c->name, (double)max);
    return ok && max < 1e-5f;
}

static void close_case(struct data *d)
{
    kl_tensor *t[] = {&d->q, &d->k, &d->v, &d->mask, &d->nested};
    for (unsigned i = 0; i < sizeof t / sizeof *t; i++)
        if (t[i]->id)
            kl_release(*t[i]);
    for (int i = 0; i < 4; i++)
        free(d->host[i]);
}

/* Pairs of a query and a key that it attends to, in all heads. */
static double pairs(const struct attention_case *c)
{
    double n = 0;
    for (int i = 0; c->nested && i < SEQUENCES; i++)
        n += (double)lengths[i] * lengths[i];
    if (!c->nested)
        n = c->one ? c->length : c->causal ? 0.5 * c->length * (c->length + 1.0) : (double)c->length * c->length;
    return HEADS * n * (c->gradient ? 3.5 : 1);
}

static bool run(struct bench *b, const struct attention_case *c, kl_device dev)
{
    static struct samples took[VARIANTS], peak;
    struct data d = {.device = dev};
    double flops = 0;
    bool ok = open_case(c, &d) && (!by_hand(c) || same_by_hand(c, &d));
    for (int v = 0; v < VARIANTS; v++)
        took[v].n = 0;
    peak.n = 0;
    for (int round = -1; ok && round < bench_rounds(b, ROUNDS); round++) /* round -1 compiles */
        for (int v = 0; ok && v < VARIANTS; v++) {
            if (v == BY_HAND && !by_hand(c))
                continue;
            double start = measure_cpu_now();
            ok = step(c, &d, (enum variant)v);
            if (round >= 0)
                samples_add(&took[v], measure_cpu_now() - start);
            flops = v ? flops : bench_peak(&peak);
        }
    double limit = ok ? flops / samples_median(&peak) * 1e-9 : 0;
    for (int v = 0; ok && v < VARIANTS; v++) {
        if (!took[v].n)
            continue;
        const char *name = c->nested ? (v ? "padded" : "nested") : variant_name[v];
        struct result *r = bench_add(b, c->name, name, 1, &took[v], "GFLOP/s", 4.0 * DEPTH * pairs(c), limit);
        if (!v)
            bench_baseline(r, c->nested ? "padded" : variant_name[by_hand(c) ? BY_HAND : COMPOSITE],
                           samples_median(&took[by_hand(c) ? BY_HAND : COMPOSITE]) / samples_median(&took[OP]));
    }
    close_case(&d);
    return ok;
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (!bench_open(&b, "attention", argc, argv))
        return b.status;
    kl_device dev = bench_device(&b);
    kl_set_option("threads", 1);
    for (int i = 0; i < CASES; i++)
        if (bench_wants_work(&b, cases[i].name, cases[i].length, SMOKE_LENGTH) && !run(&b, &cases[i], dev))
            return bench_fail(&b, cases[i].name);
    return bench_close(&b);
}
