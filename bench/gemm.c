/* Matrix products through the public API against the arithmetic peak of one thread, measured in the same run; those of
 * smaller elements beside the same one of floats. */
#include "bench.h"

enum { ROUNDS = 40 };

static const struct shape_case {
    int m, n, k;
    bool ta, tb; /* the operand is stored transposed, as in the gradients of a layer */
    enum { FLOATS, INT8, BF16 } of; /* INT8: unsigned by signed bytes, summed as i32 */
} cases[] = {
    {128, 512, 784, false, false, FLOATS}, {512, 512, 512, false, false, FLOATS}, {128, 512, 512, false, false, FLOATS},
    {128, 10, 512, false, false, FLOATS},  {128, 512, 512, false, true, FLOATS},  {784, 512, 128, true, false, FLOATS},
    {512, 512, 128, true, false, FLOATS},  {64, 64, 64, false, false, FLOATS},
           {1024, 1024, 1024, false, false, FLOATS},
    {128, 512, 784, false, false, INT8},   {512, 512, 512, false, false, INT8},
          {1024, 1024, 1024, false, false, INT8},
    {128, 512, 784, false, true, INT8},    {128, 512, 784, false, false, BF16},   {512, 512, 512, false, false, BF16},
    {1024, 1024, 1024, false, false, BF16},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* Number of the case of floats of the same shape: its own, if it is one. */
static int of_floats(int i)
{
    int f = 0;
    while (cases[f].m != cases[i].m || cases[f].n != cases[i].n || cases[f].k != cases[i].k || cases[f].of != FLOATS)
        f++;
    return f;
}

struct operands { kl_tensor a, b; };

static const char *case_name(const struct shape_case *c)
{
    static char name[64];
    static const char *const of[] = {"", "int8 ", "bf16 "};
    snprintf(name, sizeof name, "%s%dx%dx%d%s", of[c->of], c->m, c->n, c->k, c->ta ? " A^T" : c->tb ? " B^T" : "");
    return name;
}

static kl_tensor matrix(kl_device dev, int rows, int cols, kl_dtype dtype, uint64_t seed)
{
    kl_tensor t = kl_randn(dev, KL_F32, 2, (int64_t[]){rows, cols}, seed);
    if (dtype == KL_U8)
        t = kl_abs(t);
    t = dtype == KL_F32 ? t : kl_cast(dtype == KL_BF16 ? t : kl_mul_scalar(t, 30), dtype);
    kl_keep(t);
    return t;
}

/* One product, recorded, run and waited for; false: see kl_last_error. */
static bool product(kl_device dev, const struct shape_case *c, const struct operands *o)
{
    kl_trace_begin("gemm");
    kl_tensor a = c->ta ? kl_transpose(o->a, 0, 1) : o->a, b = c->tb ? kl_transpose(o->b, 0, 1) : o->b;
    kl_tensor out = c->of == INT8 ? kl_matmul(kl_cast(a, KL_I32), kl_cast(b, KL_I32)) : kl_matmul(a, b);
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
        kl_dtype a = c->of == INT8 ? KL_U8 : c->of == BF16 ? KL_BF16 : KL_F32;
        o[i].a = matrix(dev, c->ta ? c->k : c->m, c->ta ? c->m : c->k, a, 1);
        o[i].b = matrix(dev, c->tb ? c->n : c->k, c->tb ? c->k : c->n, c->of == INT8 ? KL_I8 : a, 2);
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
        if (took[i].n) { /* of bytes there are more to a second than multiply-adds of floats */
            double work = 2.0 * c->m * c->n * c->k;
            struct result *r = bench_add(&b, case_name(c), "fused", 1, &took[i], "GFLOP/s", work,
                                         c->of == INT8 ? 0 : limit);
            if (c->of && took[of_floats(i)].n)
                bench_baseline(r, "floats", samples_median(&took[of_floats(i)]) / samples_median(&took[i]));
        }
        kl_release(o[i].a);
        kl_release(o[i].b);
    }
    return bench_close(&b);
}
