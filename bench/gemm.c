/* Matrix products through the public API against the arithmetic peak of one thread, measured in the same run. */
#include "bench.h"

enum { ROUNDS = 40 };

static const struct shape_case {
    int m, n, k;
    bool ta, tb; /* the operand is stored transposed, as in the gradients of a layer */
} cases[] = {
    {128, 512, 784, false, false}, {512, 512, 512, false, false}, {128, 512, 512, false, false},
    {128, 10, 512, false, false},  {128, 512, 512, false, true},  {784, 512, 128, true, false},
    {512, 512, 128, true, false},  {64, 64, 64, false, false},    {1024, 1024, 1024, false, false},
};
enum { CASES = sizeof cases / sizeof cases[0] };

struct operands { kl_tensor a, b; };

static const char *case_name(const struct shape_case *c)
{
    static char name[64];
    snprintf(name, sizeof name, "%dx%dx%d%s", c->m, c->n, c->k, c->ta ? " A^T" : c->tb ? " B^T" : "");
    return name;
}

static kl_tensor matrix(kl_device dev, int rows, int cols, uint64_t seed)
{
    kl_tensor t = kl_randn(dev, KL_F32, 2, (int64_t[]){rows, cols}, seed);
    kl_keep(t);
    return t;
}

/* One product, recorded, run and waited for; false: see kl_last_error. */
static bool product(kl_device dev, const struct shape_case *c, const struct operands *o)
{
    kl_trace_begin("gemm");
    kl_tensor out = kl_matmul(c->ta ? kl_transpose(o->a, 0, 1) : o->a, c->tb ? kl_transpose(o->b, 0, 1) : o->b);
    kl_keep(out);
    return kl_trace_end() == KL_OK && kl_sync(dev) == KL_OK && kl_release(out) == KL_OK;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct samples took[CASES], peak;
    struct operands o[CASES];
    if (!bench_open(&b, "gemm", argc, argv))
        return b.status;
    kl_device dev = bench_device(&b);
    kl_set_option("threads", 1);

    kl_trace_begin("operands");
    for (int i = 0; i < CASES; i++) {
        const struct shape_case *c = &cases[i];
        o[i].a = matrix(dev, c->ta ? c->k : c->m, c->ta ? c->m : c->k, 1);
        o[i].b = matrix(dev, c->tb ? c->n : c->k, c->tb ? c->k : c->n, 2);
    }
    if (kl_trace_end() != KL_OK)
        return bench_fail(&b, "gemm");

    double flops = 0;
    for (int round = -1; round < ROUNDS; round++) /* round -1 compiles */
        for (int i = 0; i < CASES; i++) {
            if (!bench_wants(&b, case_name(&cases[i])))
                continue;
            double start = measure_cpu_now();
            if (!product(dev, &cases[i], &o[i]))
                return bench_fail(&b, "gemm");
            if (round < 0)
                continue;
            samples_add(&took[i], measure_cpu_now() - start);
            flops = bench_peak(&peak);
        }

    double limit = flops / samples_median(&peak) * 1e-9;
    for (int i = 0; i < CASES; i++) {
        const struct shape_case *c = &cases[i];
        if (took[i].n)
            bench_add(&b, case_name(c), "fused", 1, &took[i], "GFLOP/s", 2.0 * c->m * c->n * c->k, limit);
        kl_release(o[i].a);
        kl_release(o[i].b);
    }
    return bench_close(&b);
}
