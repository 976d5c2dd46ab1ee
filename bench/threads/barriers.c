/* Steps on all threads with a barrier behind every kernel, and without those that nothing needs, in alternation; wall
 * time. */
#include "bench/bench.h"
#include "bench/models.h"

enum { OPS = 24, SUMS = 12, CHAIN_ROUNDS = 200, STEP_ROUNDS = 60 };

struct work {
    const char *name;
    kl_device device;
    int64_t n;          /* elements of x */
    int rounds;
    bool fuse;
    bool (*step)(struct work *w);
    kl_tensor x;
    struct mlp *mlp;
};

static bool run(const struct work *w, kl_tensor y)
{
    kl_keep(y);
    bool ok = kl_trace_end() == KL_OK && kl_sync(w->device) == KL_OK;
    kl_release(y);
    return ok;
}

/* A kernel an op, each reading what the one before has stored. */
static bool step_chain(struct work *w)
{
    kl_trace_begin(w->name);
    kl_tensor y = w->x;
    for (int i = 0; i < OPS; i++)
        y = i % 2 ? kl_abs(y) : kl_neg(y);
    return run(w, y);
}

/* Sums of one array that have nothing to do with each other. */
static bool step_sums(struct work *w)
{
    kl_trace_begin(w->name);
    kl_tensor y = kl_none;
    for (int i = 0; i < SUMS; i++) {
        int64_t columns = 16 << i % 4;
        kl_tensor s = kl_sum(kl_reshape(w->x, 2, (int64_t[]){w->n / columns, columns}), 1, (int[]){i / 4 % 2}, false);
        kl_tensor one = kl_sum_all(kl_mul_scalar(s, 1.0 / (i + 1)));
        y = i ? kl_add(y, one) : one;
    }
    return run(w, y);
}

static bool step_mlp(struct work *w) { return mlp_step(w->mlp); }

static bool timed(struct work *w, struct samples *took)
{
    double start = measure_now();
    bool ok = w->step(w);
    if (took)
        samples_add(took, measure_now() - start);
    return ok;
}

static bool measure(struct bench *b, struct work *w)
{
    static const char *const variant[2] = {"barriers", "elided"};
    static struct samples took[2];
    int64_t threads, count[2] = {0};
    bool ok = true;
    took[0].n = took[1].n = 0;
    kl_set_option("fuse", w->fuse);
    int rounds = bench_rounds(b, w->rounds);
    for (int round = 0; ok && round < rounds; round++) {
        for (int elide = 0; ok && elide < 2; elide++) {
            kl_set_option("elide_barriers", elide);
            ok = timed(w, NULL);
            int64_t before = kl_counter("barriers");
            ok = ok && timed(w, &took[elide]);
            count[elide] = kl_counter("barriers") - before;
        }
        measure_progress(w->name, round + 1, rounds);
    }
    kl_get_option("threads", &threads);
    for (int elide = 0; ok && elide < 2; elide++) {
        struct result *r = bench_add(b, w->name, variant[elide], (int)threads, &took[elide], "us", 0, 0);
        if (elide)
            bench_baseline(r, variant[0], samples_median(&took[0]) / samples_median(&took[1]));
        printf("%s: %lld barriers a step %s\n", w->name, (long long)count[elide], variant[elide]);
    }
    return ok;
}

static bool measure_mlp(struct bench *b, struct work *w, int64_t batch)
{
    struct mlp m;
    w->mlp = &m;
    bool ok = mlp_open(&m, w->device, batch) && measure(b, w);
    mlp_close(&m);
    return ok;
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (!bench_open(&b, "barriers", argc, argv))
        return b.status;
    struct work w[] = {{.name = "chain-64K", .n = 1 << 16, .rounds = CHAIN_ROUNDS, .step = step_chain},
                       {.name = "chain-1M", .n = 1 << 20, .rounds = STEP_ROUNDS, .step = step_chain},
                       {.name = "sums-256K", .n = 1 << 18, .rounds = CHAIN_ROUNDS, .fuse = true, .step = step_sums},
                       {.name = "mlp-8-adam", .n = 8, .rounds = STEP_ROUNDS, .fuse = true, .step = step_mlp},
                       {.name = "mlp-128-adam", .n = 128, .rounds = STEP_ROUNDS, .fuse = true, .step = step_mlp}};
    kl_device device = bench_device(&b);
    for (size_t i = 0; i < sizeof w / sizeof *w; i++) {
        if (!bench_wants(&b, w[i].name))
            continue;
        w[i].device = device;
        if (w[i].step != step_mlp)
            w[i].x = kl_rand(device, KL_F32, 1, &w[i].n, 1);
        bool ok = w[i].step == step_mlp ? measure_mlp(&b, &w[i], w[i].n) : measure(&b, &w[i]);
        if (w[i].x.id)
            kl_release(w[i].x);
        if (!ok)
            return bench_fail(&b, w[i].name);
    }
    return bench_close(&b);
}
