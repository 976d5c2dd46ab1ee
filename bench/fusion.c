/* Fused against unfused kernels, one thread, by turns, each beside its limit: the same streams of memory moved by a
 * plain C loop, and for rows a kernel written by hand.  All of a case run within the same seconds. */
#include "bench.h"
#include "hand.h"

enum { ROWS = 4096, COLUMNS = 1024, MILLION = 1 << 20, MAX_ARRAYS = 6 };

struct data {
    kl_device device;
    kl_tensor t[MAX_ARRAYS];    /* t[0]: the last result, where a case has one */
    float *host[MAX_ARRAYS];    /* what the anchors and hand-written kernels work on; [0] the result */
    int64_t n;
    kl_optimizer *adam;
};

struct fusion_case {
    const char *name;
    int64_t n;                  /* elements of an array */
    int arrays, rounds;         /* arrays read */
    kl_tensor (*record)(struct data *d);
    void (*anchor)(const struct data *d);
    void (*hand)(const struct data *d); /* or NULL */
};

static float sink;

/* ---- elementwise and sums ---- */

static kl_tensor record_add(struct data *d) { return kl_add(d->t[1], d->t[2]); }

static kl_tensor record_chain(struct data *d)
{
    kl_tensor x = kl_gelu(kl_add(kl_mul(d->t[1], d->t[2]), d->t[3]));
    return kl_add(kl_mul(x, d->t[4]), kl_tanh(d->t[5]));
}

static kl_tensor record_sum(struct data *d) { return kl_sum_all(d->t[1]); }

static void anchor_2(const struct data *d) { stream_2(d->host[0], d->host[1], d->host[2], (size_t)d->n); }
static void anchor_5(const struct data *d)
{
    stream_5(d->host[0], d->host[1], d->host[2], d->host[3], d->host[4], d->host[5], (size_t)d->n);
}
static void anchor_1(const struct data *d) { stream_1(d->host[0], d->host[1], (size_t)d->n); }
static void anchor_sum(const struct data *d) { sink += stream_sum(d->host[1], (size_t)d->n); }

/* ---- rows ---- */

static kl_tensor rows_of(const struct data *d, int i) { return kl_reshape(d->t[i], 2, (int64_t[]){ROWS, COLUMNS}); }
static kl_tensor gain_of(const struct data *d, int i)
{
    return kl_narrow(d->t[i], 0, 0, COLUMNS);
}

static kl_tensor record_softmax(struct data *d) { return kl_softmax(rows_of(d, 1), 1); }
static kl_tensor record_softmax_bwd(struct data *d)
{
    kl_tensor x = rows_of(d, 1);
    return kl_grad(kl_sum_all(kl_mul(kl_softmax(x, 1), rows_of(d, 2))), x);
}

static kl_tensor record_layernorm(struct data *d)
{
    return kl_layer_norm(rows_of(d, 1), 1, gain_of(d, 2), gain_of(d, 3), 1e-5);
}

static kl_tensor record_layernorm_bwd(struct data *d)
{
    kl_tensor x = rows_of(d, 1), y = kl_layer_norm(x, 1, gain_of(d, 3), gain_of(d, 3), 1e-5);
    return kl_grad(kl_sum_all(kl_mul(y, rows_of(d, 2))), x);
}

static void softmax_by_hand(const struct data *d) { hand_softmax(d->host[0], d->host[1], ROWS, COLUMNS); }
static void softmax_bwd_by_hand(const struct data *d) { hand_softmax_bwd(d->host[0], d->host[1], d->host[2], ROWS, COLUMNS); }
static void layernorm_by_hand(const struct data *d)
{
    hand_layernorm(d->host[0], d->host[1], d->host[2], d->host[3], ROWS, COLUMNS);
}
static void layernorm_bwd_by_hand(const struct data *d)
{
    hand_layernorm_bwd(d->host[0], d->host[1], d->host[2], d->host[3], ROWS, COLUMNS);
}

/* ---- Adam ---- */

/* The loss is linear in the parameters, so that the gradient is an array in memory and costs nothing to make. */
static kl_tensor record_adam(struct data *d)
{
    kl_tensor loss = kl_sum_all(kl_mul(d->t[2], d->t[1]));
    kl_optimizer_step(d->adam, loss, 1e-3);
    return (kl_tensor){0};
}

static void anchor_adam(const struct data *d) { stream_adam(d->host[0], d->host[1], d->host[2], d->host[3], (size_t)d->n); }

static const struct fusion_case cases[] = {
    {"add-16M", 16 * MILLION, 2, 12, record_add, anchor_2, NULL},
    {"chain-1M", MILLION, 5, 60, record_chain, anchor_5, NULL},
    {"chain-16M", 16 * MILLION, 5, 8, record_chain, anchor_5, NULL},
    {"softmax-4096x1024", ROWS * COLUMNS, 1, 25, record_softmax, anchor_1, softmax_by_hand},
    {"softmax-4096x1024-bwd", ROWS * COLUMNS, 2, 25, record_softmax_bwd, anchor_2, softmax_bwd_by_hand},
    {"layernorm-4096x1024", ROWS * COLUMNS, 3, 25, record_layernorm, anchor_1, layernorm_by_hand},
    {"layernorm-4096x1024-bwd", ROWS * COLUMNS, 3, 25, record_layernorm_bwd, anchor_2, layernorm_bwd_by_hand},
    {"sum-16M", 16 * MILLION, 1, 15, record_sum, anchor_sum, NULL},
    {"adam-1M", MILLION, 2, 60, record_adam, anchor_adam, NULL},
};

static bool open_data(struct data *d, const struct fusion_case *c)
{
    d->n = c->n;
    kl_trace_begin("data");
    for (int i = 1; i <= c->arrays; i++)
        d->t[i] = kl_keep(kl_rand(d->device, KL_F32, 1, &c->n, (uint64_t)i));
    if (kl_trace_end() != KL_OK)
        return false;
    if (c->record == record_adam && !(d->adam = kl_adam(&d->t[1], 1, NULL)))
        return false;
    for (int i = 0; i < MAX_ARRAYS; i++) {
        d->host[i] = malloc((size_t)c->n * sizeof(float));
        if (!d->host[i])
            return false;
        for (int64_t j = 0; j < c->n; j++)
            d->host[i][j] = (float)(j * 7919 % 1024) / 1024;
    }
    return true;
}

static void close_data(struct data *d)
{
    kl_optimizer_free(d->adam);
    d->adam = NULL;
    for (int i = 0; i < MAX_ARRAYS; i++) {
        free(d->host[i]);
        d->host[i] = NULL;
    }
    for (int i = 1; i < MAX_ARRAYS; i++)
        if (d->t[i].id)
            kl_release(d->t[i]);
    memset(d->t, 0, sizeof d->t);
}

static bool run(struct data *d, const struct fusion_case *c)
{
    kl_trace_begin(c->name);
    kl_tensor y = c->record(d);
    if (y.id)
        kl_keep(y);
    bool ok = kl_trace_end() == KL_OK && kl_sync(d->device) == KL_OK;
    if (y.id)
        kl_release(y);
    return ok;
}

static bool measure(struct bench *b, struct data *d, const struct fusion_case *c)
{
    static const char *const variant[2] = {"unfused", "fused"};
    static struct samples took[2], anchor, hand;
    took[0].n = took[1].n = anchor.n = hand.n = 0;
    for (int round = -1; round < c->rounds; round++) { /* round -1 compiles */
        double start = bench_cpu_now();
        c->anchor(d);
        if (round >= 0)
            samples_add(&anchor, bench_cpu_now() - start);
        for (int fuse = 0; fuse < 2; fuse++) {
            kl_set_option("fuse", fuse);
            start = bench_cpu_now();
            if (!run(d, c))
                return false;
            if (round >= 0)
                samples_add(&took[fuse], bench_cpu_now() - start);
        }
        start = bench_cpu_now();
        if (c->hand)
            c->hand(d);
        if (round >= 0 && c->hand)
            samples_add(&hand, bench_cpu_now() - start);
    }
    double limit = 1e6 * samples_median(&anchor);
    for (int fuse = 0; fuse < 2; fuse++) {
        struct bench_row *r = bench_add(b, c->name, variant[fuse], 1, &took[fuse], "us", 0, limit);
        if (fuse) {
            r->baseline = c->hand ? "hand" : variant[0];
            r->ratio = samples_median(c->hand ? &hand : &took[0]) / samples_median(&took[1]);
        }
    }
    if (c->hand)
        bench_add(b, c->name, "hand", 1, &hand, "us", 0, limit);
    return true;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct data d;
    if (!bench_open(&b, "fusion", argc, argv))
        return b.status;
    d.device = bench_device(&b);
    kl_set_option("threads", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool ok = open_data(&d, &cases[i]) && measure(&b, &d, &cases[i]);
        if (!ok)
            fprintf(stderr, "bench_fusion: %s: %s\n", cases[i].name, kl_last_error());
        close_data(&d);
        if (!ok)
            return 1;
    }
    if (sink == 1)
        fprintf(stderr, "\n");
    return bench_close(&b);
}
