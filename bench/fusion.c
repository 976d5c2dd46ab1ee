/* Fused against unfused kernels, one thread, in alternation, each beside its limit: the same streams of memory moved by
 * a plain C loop, the arithmetic peak for whole training steps, and for rows a kernel written by hand. */
#include "bench.h"
#include "hand.h"
#include "models.h"

enum { ROWS = 4096, COLUMNS = 1024, MILLION = 1 << 20, MAX_ARRAYS = 6, SMOKE_ELEMENTS = ROWS * COLUMNS };

struct data {
    const struct fusion_case *c;
    kl_device device;
    kl_tensor t[MAX_ARRAYS];    /* t[0]: the last result, where a case has one */
    float *host[MAX_ARRAYS];    /* what the anchors and hand-written kernels work on; [0] the result */
    int64_t n;
    kl_optimizer *adam;
};

struct fusion_case {
    const char *name;
    int64_t n;                  /* elements of an array */
    int arrays, streams, rounds; /* arrays there are; those that an anchor of streams reads */
    kl_tensor (*record)(struct data *d);
    void (*anchor)(void *d);
    void (*hand)(void *d); /* or NULL */
};

static volatile float sink;

/* ---- elementwise and sums ---- */

static kl_tensor record_add(struct data *d) { return kl_add(d->t[1], d->t[2]); }

static kl_tensor record_chain(struct data *d)
{
    kl_tensor x = kl_gelu(kl_add(kl_mul(d->t[1], d->t[2]), d->t[3]));
    return kl_add(kl_mul(x, d->t[4]), kl_tanh(d->t[5]));
}

static kl_tensor record_sum(struct data *d) { return kl_sum_all(d->t[1]); }

static void anchor_streams(void *ctx)
{
    const struct data *d = ctx;
    limit_stream(d->host, d->c->streams, 0, (size_t)d->n);
}

static void anchor_sum(void *ctx)
{
    const struct data *d = ctx;
    sink = limit_sum(d->host[1], 0, (size_t)d->n);
}

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

static void softmax_by_hand(void *ctx)
{
    const struct data *d = ctx;
    hand_softmax(d->host[0], d->host[1], ROWS, COLUMNS);
}

static void softmax_bwd_by_hand(void *ctx)
{
    const struct data *d = ctx;
    hand_softmax_bwd(d->host[0], d->host[1], d->host[2], ROWS, COLUMNS);
}

static void layernorm_by_hand(void *ctx)
{
    const struct data *d = ctx;
    hand_layernorm(d->host[0], d->host[1], d->host[2], d->host[3], ROWS, COLUMNS);
}

static void layernorm_bwd_by_hand(void *ctx)
{
    const struct data *d = ctx;
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

static void anchor_adam(void *ctx)
{
    const struct data *d = ctx;
    limit_update(d->host, 0, (size_t)d->n);
}

static const struct fusion_case cases[] = {
    {"add-16M", 16 * MILLION, 2, 2, 12, record_add, anchor_streams, NULL},
    {"chain-1M", MILLION, 5, 5, 60, record_chain, anchor_streams, NULL},
    {"chain-16M", 16 * MILLION, 5, 5, 8, record_chain, anchor_streams, NULL},
    {"softmax-4096x1024", ROWS * COLUMNS, 1, 1, 25, record_softmax, anchor_streams, softmax_by_hand},
    {"softmax-4096x1024-bwd", ROWS * COLUMNS, 2, 2, 25, record_softmax_bwd, anchor_streams, softmax_bwd_by_hand},
    {"layernorm-4096x1024", ROWS * COLUMNS, 3, 1, 25, record_layernorm, anchor_streams, layernorm_by_hand},
    {"layernorm-4096x1024-bwd", ROWS * COLUMNS, 3, 2, 25, record_layernorm_bwd, anchor_streams, layernorm_bwd_by_hand},
    {"sum-16M", 16 * MILLION, 1, 1, 15, record_sum, anchor_sum, NULL},
    {"adam-1M", MILLION, 2, 0, 60, record_adam, anchor_adam, NULL},
};

static bool open_data(struct data *d, const struct fusion_case *c)
{
    d->n = c->n;
    kl_trace_begin("data");
    for (int i = 1; i <= c->arrays; i++)
        d->t[i] = kl_keep(kl_rand(d->device, KL_F32, 1, &c->n, (uint64_t)i));
    if (kl_trace_end() != KL_OK)
        return false;
    if (c->record == record_adam && !(d->adam = kl_adam(1, &d->t[1], NULL)))
        return false;
    for (int i = 0; i < MAX_ARRAYS; i++) {
        d->host[i] = limit_array((size_t)c->n);
        if (!d->host[i])
            return false;
    }
    return true;
}

static void close_data(struct data *d)
{
    kl_optimizer_free(d->adam);
    for (int i = 0; i < MAX_ARRAYS; i++) {
        limit_array_free(d->host[i], (size_t)d->n);
        if (d->t[i].id)
            kl_release(d->t[i]);
    }
}

static bool step(void *ctx)
{
    struct data *d = ctx;
    kl_trace_begin(d->c->name);
    kl_tensor y = d->c->record(d);
    if (y.id)
        kl_keep(y);
    bool ok = kl_trace_end() == KL_OK && kl_sync(d->device) == KL_OK;
    if (y.id)
        kl_release(y);
    return ok;
}

static bool measure(struct bench *b, kl_device device, const struct fusion_case *c)
{
    struct data d = {.c = c, .device = device};
    struct bench_case t = {.name = c->name, .rounds = c->rounds, .step = step, .anchor = c->anchor, .hand = c->hand,
                      .ctx = &d};
    bool ok = open_data(&d, c) && bench_alternate(b, &t);
    close_data(&d);
    return ok;
}

/* ---- a whole training step: the same products on both sides ---- */

static bool step_mlp(void *m) { return mlp_step(m); }

/* The late case is the same after so many steps on one batch: most gradients are 0 by then, and their averages would be
 * subnormal numbers, with which some instructions are slow, if the optimizer did not set these to 0. */
static const struct mlp_case { const char *name; int steps; } mlp_cases[] =
    {{"mlp-128-adam", 0}, {"mlp-128-adam-late", 1000}};

static bool measure_mlp(struct bench *b, kl_device device, const struct mlp_case *c)
{
    struct mlp m;
    bool ok = mlp_open(&m, device, 128);
    struct bench_case t = {.name = c->name, .rounds = 60, .step = step_mlp, .flops = mlp_flops(&m), .ctx = &m};
    for (int i = 0; ok && i < c->steps; i++)
        ok = mlp_step(&m);
    ok = ok && bench_alternate(b, &t);
    mlp_close(&m);
    return ok;
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (!bench_open(&b, "fusion", argc, argv))
        return b.status;
    kl_device device = bench_device(&b);
    kl_set_option("threads", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (bench_wants_work(&b, cases[i].name, (double)cases[i].n, SMOKE_ELEMENTS) && !measure(&b, device, &cases[i]))
            return bench_fail(&b, cases[i].name);
    for (size_t i = 0; i < sizeof mlp_cases / sizeof mlp_cases[0]; i++)
        if (bench_wants_work(&b, mlp_cases[i].name, mlp_cases[i].steps, 0) && !measure_mlp(&b, device, &mlp_cases[i]))
            return bench_fail(&b, mlp_cases[i].name);
    return bench_close(&b);
}
