/* The training step of examples/fashion_mnist.c on random images: fused against unfused, one thread, by turns. */
#include "bench.h"

enum { ROUNDS = 60, LAYERS = 3, BATCH = 128 };
static const int64_t width[LAYERS + 1] = {784, 512, 512, 10};
static const char *const variant[2] = {"unfused", "fused"};

struct model {
    kl_device device;
    kl_tensor weight[LAYERS], bias[LAYERS], images, labels;
    kl_optimizer *optimizer;
};

static bool model_init(struct model *m, kl_device device)
{
    kl_tensor parameter[2 * LAYERS];
    m->device = device;
    kl_trace_begin("init");
    for (int i = 0; i < LAYERS; i++) {
        kl_tensor normal = kl_randn(m->device, KL_F32, 2, &width[i], (uint64_t)i);
        m->weight[i] = parameter[2 * i] = kl_keep(kl_mul_scalar(normal, 0.05));
        m->bias[i] = parameter[2 * i + 1] = kl_keep(kl_zeros(m->device, KL_F32, 1, &width[i + 1]));
    }
    m->images = kl_keep(kl_rand(m->device, KL_F32, 2, (int64_t[]){BATCH, width[0]}, LAYERS));
    m->labels = kl_keep(kl_zeros(m->device, KL_I32, 1, (int64_t[]){BATCH}));
    m->optimizer = kl_adam(parameter, 2 * LAYERS, NULL);
    return kl_trace_end() == KL_OK;
}

static void model_free(struct model *m)
{
    kl_optimizer_free(m->optimizer);
    for (int i = 0; i < LAYERS; i++) {
        kl_release(m->weight[i]);
        kl_release(m->bias[i]);
    }
    kl_release(m->images);
    kl_release(m->labels);
}

static bool step(const struct model *m)
{
    kl_trace_begin("step");
    kl_tensor x = m->images;
    for (int i = 0; i < LAYERS; i++) {
        x = kl_linear(x, m->weight[i], m->bias[i]);
        if (i + 1 < LAYERS)
            x = kl_relu(x);
    }
    kl_optimizer_step(m->optimizer, kl_cross_entropy(x, m->labels), 1e-3);
    return kl_trace_end() == KL_OK && kl_sync(m->device) == KL_OK;
}

/* Operations of the products of one step: forward, gradient of weights, gradient of activations but the images'. */
static double step_flops(void)
{
    double flops = 0;
    for (int i = 0; i < LAYERS; i++)
        flops += 2.0 * BATCH * (double)(width[i] * width[i + 1]) * (i ? 3 : 2);
    return flops;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct samples took[2], peak;
    static struct model m;
    if (!bench_open(&b, "mlp", argc, argv))
        return b.status;
    bool ok = model_init(&m, bench_device(&b));
    kl_set_option("threads", 1);
    for (int round = -1; ok && round < ROUNDS; round++) /* round -1 compiles */
        for (int fuse = 0; ok && fuse < 2; fuse++) {
            kl_set_option("fuse", fuse);
            double start = bench_cpu_now();
            ok = step(&m);
            if (round < 0)
                continue;
            samples_add(&took[fuse], bench_cpu_now() - start);
            samples_add(&peak, bench_peak_seconds());
        }
    model_free(&m);
    if (!ok) {
        fprintf(stderr, "bench_mlp: %s\n", kl_last_error());
        return 1;
    }
    double limit_us = 1e6 * step_flops() / bench_peak_flops() * samples_median(&peak); /* of its products alone */
    for (int fuse = 0; fuse < 2; fuse++) {
        struct bench_row *r = bench_add(&b, "784-512-512-10 batch 128", variant[fuse], 1, &took[fuse], "us", 0, limit_us);
        if (fuse) {
            r->baseline = variant[0];
            r->ratio = samples_median(&took[0]) / samples_median(&took[1]);
        }
    }
    return bench_close(&b);
}
