/* Convolutions of ResNet's shapes and their gradients through the public API against the arithmetic peak of one thread,
 * measured in the same run.  Batch of 8, f32, [N, C, H, W]. */
#include "bench.h"

enum { ROUNDS = 12, BATCH = 8 };
static const double SMOKE_FLOPS = 2e9;

static const struct conv_case {
    int in, side, out, size, stride, pad, groups;
} cases[] = {
    {3, 224, 64, 7, 2, 3, 1},   {64, 56, 256, 1, 1, 0, 1},   {64, 56, 64, 3, 1, 1, 1},  {128, 28, 128, 3, 1, 1, 1},
    {256, 28, 256, 3, 2, 1, 1}, {1024, 14, 512, 1, 1, 0, 1}, {512, 7, 512, 3, 1, 1, 1}, {96, 28, 96, 3, 1, 1, 96},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* What is measured: the product, and its gradients by the input and by the weights. */
static const char *const variants[] = {"forward", "input", "weights"};
enum { FORWARD, INPUT, WEIGHTS, VARIANTS };

struct operands { kl_tensor x, w, dy; };

static const char *case_name(const struct conv_case *c)
{
    static char name[64];
    snprintf(name, sizeof name, "%dx%d s%d, %d->%d, %d%s", c->size, c->size, c->stride, c->in, c->out, c->side,
             c->groups > 1 ? " depthwise" : "");
    return name;
}

static int out_side(const struct conv_case *c) { return (c->side + 2 * c->pad - c->size) / c->stride + 1; }

static double flops_of(const struct conv_case *c)
{
    return 2.0 * BATCH * c->out * out_side(c) * out_side(c) * (c->in / c->groups) * c->size * c->size;
}

static bool wants(struct bench *b, const struct conv_case *c)
{
    return bench_wants_work(b, case_name(c), flops_of(c), SMOKE_FLOPS);
}

static kl_tensor image(kl_device dev, int n, int channels, int side, uint64_t seed)
{
    kl_tensor t = kl_randn(dev, KL_F32, 4, (int64_t[]){n, channels, side, side}, seed);
    kl_keep(t);
    return t;
}

static kl_tensor conv(const struct conv_case *c, const struct operands *o)
{
    int64_t stride[] = {c->stride, c->stride}, pad[] = {c->pad, c->pad};
    return kl_conv(o->x, o->w, kl_none, stride, pad, pad, NULL, c->groups);
}

/* One variant, recorded, run and waited for; false: see kl_last_error. */
static bool run(kl_device dev, const struct conv_case *c, int variant, const struct operands *o)
{
    kl_trace_begin("conv");
    kl_tensor out = conv(c, o);
    if (variant != FORWARD) {
        kl_tensor wrt = variant == INPUT ? o->x : o->w;
        out = kl_grad(kl_sum_all(kl_mul(out, o->dy)), wrt);
    }
    kl_keep(out);
    return kl_trace_end() == KL_OK && kl_sync(dev) == KL_OK && kl_release(out) == KL_OK;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct samples took[CASES][VARIANTS], peak;
    static struct operands o[CASES];
    if (!bench_open(&b, "conv", argc, argv))
        return b.status;
    kl_device dev = bench_device(&b);
    kl_set_option("threads", 1);

    kl_trace_begin("operands");
    for (int i = 0; i < CASES; i++) {
        const struct conv_case *c = &cases[i];
        if (!wants(&b, c))
            continue;
        o[i].x = image(dev, BATCH, c->in, c->side, 1);
        o[i].w = image(dev, c->out, c->in / c->groups, c->size, 2);
        o[i].dy = image(dev, BATCH, c->out, out_side(c), 3);
    }
    if (kl_trace_end() != KL_OK)
        return bench_fail(&b, "conv");

    double flops = 0;
    for (int round = -1; round < bench_rounds(&b, ROUNDS); round++) /* round -1 compiles */
        for (int i = 0; i < CASES; i++) {
            if (!wants(&b, &cases[i]))
                continue;
            for (int v = 0; v < VARIANTS; v++) {
                double start = measure_cpu_now();
                if (!run(dev, &cases[i], v, &o[i]))
                    return bench_fail(&b, "conv");
                if (round >= 0)
                    samples_add(&took[i][v], measure_cpu_now() - start);
            }
            flops = bench_peak(&peak);
        }

    double limit = flops / samples_median(&peak) * 1e-9;
    for (int i = 0; i < CASES; i++) {
        const struct conv_case *c = &cases[i];
        if (!o[i].x.id)
            continue;
        for (int v = 0; v < VARIANTS; v++)
            if (took[i][v].n)
                bench_add(&b, case_name(c), variants[v], 1, &took[i][v], "GFLOP/s", flops_of(c), limit);
        kl_release(o[i].x);
        kl_release(o[i].w);
        kl_release(o[i].dy);
    }
    return bench_close(&b);
}
