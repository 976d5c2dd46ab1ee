/* Products of a few rows with a matrix that is read once, which memory limits: weights stored [in, out] and [out, in],
 * in floats, half floats and bytes, the latter with rows of floats and of bytes, on one thread and on two.  The limit
 * is reading as many bytes as the weights have, in the same rounds; the baseline is copying: the bytes that it reads
 * and writes. */
#include "streams.h"

enum { ROUNDS = 15, SIDE = 4096, SMOKE_SIDE = 256 };
static int side; /* of the matrix */

static const struct skinny_case {
    int rows;
    kl_dtype weights; /* KL_I8: bytes times a scale, in f32; KL_I32: bytes, as are the rows, with sums of integers */
    bool out_in;      /* how they are stored */
    int threads;
    bool floats;      /* the rows are f32, whatever the weights are */
} cases[] = {
    {1, KL_F32, false, 1, false}, {1, KL_F32, true, 1, false}, {1, KL_BF16, false, 1, false},
    {1, KL_BF16, true, 1, false}, {1, KL_F16, false, 1, false}, {1, KL_F16, true, 1, false},
    {1, KL_I8, false, 1, false}, {1, KL_I8, true, 1, false}, {2, KL_F32, false, 1, false},
    {2, KL_F32, true, 1, false}, {7, KL_F32, false, 1, false}, {7, KL_F32, true, 1, false},
    {7, KL_BF16, false, 1, false}, {7, KL_BF16, true, 1, false}, {1, KL_F32, false, 2, false},
    {1, KL_F32, true, 2, false}, {1, KL_BF16, false, 2, false}, {1, KL_BF16, true, 2, false},
    {1, KL_I32, false, 1, false}, {1, KL_I32, true, 1, false}, {4, KL_I32, false, 1, false},
    {4, KL_I32, true, 1, false}, {1, KL_I32, false, 2, false}, {1, KL_I32, true, 2, false},
    {1, KL_F16, true, 1, true}, {4, KL_F16, true, 1, true}, {1, KL_F16, true, 2, true},
    {1, KL_BF16, true, 1, true},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static bool of_bytes(const struct skinny_case *c) { return c->weights == KL_I8 || c->weights == KL_I32; }

/* Bytes of the weights. */
static size_t size_of(const struct skinny_case *c)
{
    return (size_t)side * (size_t)side * (c->weights == KL_F32 ? 4u : of_bytes(c) ? 1u : 2u);
}

static const char *case_name(const struct skinny_case *c)
{
    static char name[64];
    const char *dtype = c->weights == KL_F32 ? "f32" : c->weights == KL_BF16 ? "bf16" : c->weights == KL_F16 ? "f16"
                        : c->weights == KL_I32 ? "int8 by int8" : "int8";
    snprintf(name, sizeof name, "%dx%dx%d %s%s %s%s", c->rows, side, side, c->floats ? "f32 by " : "", dtype,
             c->out_in ? "[out,in]" : "[in,out]", c->threads > 1 ? " 2 threads" : "");
    return name;
}

struct operands { kl_tensor x, w, scale; };

static void make_operands(kl_device dev, const struct skinny_case *c, struct operands *o)
{
    kl_tensor x = kl_randn(dev, KL_F32, 2, (int64_t[]){c->rows, side}, 2);
    kl_tensor w = kl_randn(dev, KL_F32, 2, (int64_t[]){side, side}, 1);
    if (c->weights == KL_I32)
        o->x = kl_cast(kl_mul_scalar(x, 30), KL_I8);
    else
        o->x = kl_cast(x, c->weights == KL_I8 || c->floats ? KL_F32 : c->weights);
    o->w = of_bytes(c) ? kl_cast(kl_mul_scalar(w, 30), KL_I8) : kl_cast(w, c->weights);
    o->scale = kl_full(dev, KL_F32, 0, NULL, 1.0 / 30);
    kl_keep(o->x);
    kl_keep(o->w);
    kl_keep(o->scale);
}

/* One product, recorded, run and waited for; false: see kl_last_error. */
static bool product(kl_device dev, const struct skinny_case *c, const struct operands *o)
{
    kl_trace_begin("skinny");
    kl_tensor x = c->weights == KL_I32 ? kl_cast(o->x, KL_I32) : o->x;
    kl_tensor w = c->weights == KL_I32  ? kl_cast(o->w, KL_I32)
                  : c->weights == KL_I8 ? kl_mul(kl_cast(o->w, KL_F32), o->scale)
                  : c->floats           ? kl_cast(o->w, KL_F32) : o->w;
    kl_tensor out = kl_dot_general(x, w, 0, NULL, NULL, 1, (int[]){1}, (int[]){c->out_in});
    kl_keep(out);
    return kl_trace_end() == KL_OK && kl_sync(dev) == KL_OK && kl_release(out) == KL_OK;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct samples took[CASES], reads[CASES], copies[CASES];
    static struct operands o[CASES];
    if (!bench_open(&b, "skinny", argc, argv))
        return b.status;
    side = bench_size(&b, SIDE, SMOKE_SIDE);
    kl_device dev = bench_device(&b);
    size_t elements = (size_t)side * (size_t)side;
    float *array[2] = {limit_array(elements), limit_array(elements)};
    if (!array[0] || !array[1]) {
        fprintf(stderr, "bench_skinny: out of memory\n");
        return 1;
    }
    kl_trace_begin("operands");
    for (int i = 0; i < CASES; i++)
        if (bench_wants(&b, case_name(&cases[i])))
            make_operands(dev, &cases[i], &o[i]);
    if (kl_trace_end() != KL_OK)
        return bench_fail(&b, "skinny");

    for (int round = -1; round < bench_rounds(&b, ROUNDS); round++) /* round -1 compiles */
        for (int i = 0; i < CASES; i++) {
            const struct skinny_case *c = &cases[i];
            size_t bytes = size_of(c);
            if (!bench_wants(&b, case_name(c)))
                continue;
            kl_set_option("threads", c->threads);
            double start = c->threads > 1 ? measure_now() : measure_cpu_now();
            if (!product(dev, c, &o[i]))
                return bench_fail(&b, "skinny");
            if (round < 0)
                continue;
            samples_add(&took[i], (c->threads > 1 ? measure_now() : measure_cpu_now()) - start);
            samples_add(&reads[i], stream_seconds(array, bytes, false, c->threads));
            samples_add(&copies[i], stream_seconds(array, bytes, true, c->threads));
        }

    for (int i = 0; i < CASES; i++) {
        const struct skinny_case *c = &cases[i];
        if (!took[i].n)
            continue;
        double bytes = (double)size_of(c);
        struct result *r = bench_add(&b, case_name(c), "fused", c->threads, &took[i], "GB/s", bytes,
                                     bytes / samples_median(&reads[i]) * 1e-9);
        bench_baseline(r, "copy", samples_median(&copies[i]) / samples_median(&took[i]));
        kl_release(o[i].x);
        kl_release(o[i].w);
        kl_release(o[i].scale);
    }
    limit_array_free(array[0], elements);
    limit_array_free(array[1], elements);
    return bench_close(&b);
}
