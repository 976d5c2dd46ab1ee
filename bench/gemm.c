/* Matrix products through the public API, as frozen steps, against the arithmetic peak of one thread, measured in the
 * same run; those of floats in alternation with oneDNN's, where that is installed (Debian: libdnnl2), those of smaller
 * elements beside the same one of floats.  Small ones are also measured in batches, in chains, as steps of many ops
 * have them, and traced in each call, whose time on the host is then a large part.  Of small ones there is a second
 * row, `kernel`: less what a step takes whose kernel has nothing to do, measured beside it (case `call`).  The limit of
 * batches that no cache holds is that of their bytes, read and written as fast as a sum of two arrays, where that is
 * lower. */
#include "bench.h"
#include <dlfcn.h>
#include <math.h>

enum { ROUNDS = 40, LONG_ROUNDS = 10, CALLS = 1000, CHAINED = 100 };
enum { FAR_BYTES = 32 << 20, STREAM_FLOATS = 6 << 20 }; /* more than is near; of each array of the sum */
static const double SMOKE_FLOPS = 3e7, SMALL_FLOPS = 5e6;
static const double LONG_FLOPS = 1e9; /* products that take longer are measured in fewer rounds */

static const struct shape_case {
    int m, n, k;
    bool ta, tb; /* the operand is stored transposed, as in the gradients of a layer */
    enum { FLOATS, INT8, BF16 } of; /* INT8: unsigned by signed bytes, summed as i32 */
    int batch;                      /* 0: none */
    enum { FROZEN, TRACED, CHAIN } step; /* TRACED: recorded in each call; CHAIN: many products, each of the last one's
                                            result, in a step */
} cases[] = {
    /* squares; the layers of an MLP and their gradients; of a GPT of width 256, 1024 tokens */
    {16, 16, 16, false, false, FLOATS, 0, FROZEN},      {32, 32, 32, false, false, FLOATS, 0, FROZEN},
    {48, 48, 48, false, false, FLOATS, 0, FROZEN},      {64, 64, 64, false, false, FLOATS, 0, FROZEN},
    {96, 96, 96, false, false, FLOATS, 0, FROZEN},      {128, 128, 128, false, false, FLOATS, 0, FROZEN},
    {64, 64, 64, false, true, FLOATS, 0, FROZEN},
    {4, 4, 4, false, false, FLOATS, 1000, FROZEN},      {8, 8, 8, false, false, FLOATS, 1000, FROZEN},
    {16, 16, 16, false, false, FLOATS, 256, FROZEN},    {16, 16, 16, false, true, FLOATS, 256, FROZEN},
    {32, 32, 32, false, false, FLOATS, 64, FROZEN},     {32, 32, 32, false, true, FLOATS, 64, FROZEN},
    {48, 48, 48, false, false, FLOATS, 32, FROZEN},     {64, 64, 64, false, false, FLOATS, 16, FROZEN},
    {64, 64, 64, false, true, FLOATS, 16, FROZEN},      {96, 96, 96, false, false, FLOATS, 12, FROZEN},
    {128, 128, 128, false, false, FLOATS, 8, FROZEN},   {128, 128, 128, false, true, FLOATS, 8, FROZEN},
    {16, 16, 16, false, false, FLOATS, 16384, FROZEN},  {64, 64, 64, false, false, FLOATS, 1024, FROZEN},
    {16, 16, 16, false, false, FLOATS, 0, CHAIN},      {32, 32, 32, false, false, FLOATS, 0, CHAIN},
    {64, 64, 64, false, false, FLOATS, 0, TRACED},       {128, 128, 128, false, false, FLOATS, 0, TRACED},
    {256, 256, 256, false, false, FLOATS, 0, FROZEN},   {512, 512, 512, false, false, FLOATS, 0, FROZEN},
    {1024, 1024, 1024, false, false, FLOATS, 0, FROZEN}, {2048, 2048, 2048, false, false, FLOATS, 0, FROZEN},
    {128, 512, 784, false, false, FLOATS, 0, FROZEN},   {128, 512, 512, false, false, FLOATS, 0, FROZEN},
    {128, 10, 512, false, false, FLOATS, 0, FROZEN},    {128, 512, 512, false, true, FLOATS, 0, FROZEN},
    {784, 512, 128, true, false, FLOATS, 0, FROZEN},    {512, 512, 128, true, false, FLOATS, 0, FROZEN},
    {1024, 768, 256, false, false, FLOATS, 0, FROZEN},  {1024, 256, 256, false, false, FLOATS, 0, FROZEN},
    {1024, 1024, 256, false, false, FLOATS, 0, FROZEN}, {1024, 256, 1024, false, false, FLOATS, 0, FROZEN},
    {1024, 1024, 256, false, true, FLOATS, 0, FROZEN},  {256, 1024, 1024, true, false, FLOATS, 0, FROZEN},
    {128, 512, 784, false, false, INT8, 0, FROZEN},   {512, 512, 512, false, false, INT8, 0, FROZEN},
          {1024, 1024, 1024, false, false, INT8, 0, FROZEN},
    {128, 512, 784, false, true, INT8, 0, FROZEN},
    {128, 512, 784, false, false, BF16, 0, FROZEN}, {256, 256, 256, false, false, BF16, 0, FROZEN},
    {512, 512, 512, false, false, BF16, 0, FROZEN},   {1024, 1024, 1024, false, false, BF16, 0, FROZEN},
    {2048, 2048, 2048, false, false, BF16, 0, FROZEN}, {1024, 1024, 256, false, true, BF16, 0, FROZEN},
    {256, 1024, 1024, true, false, BF16, 0, FROZEN},
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

struct operands { kl_tensor a, b; kl_step *step; };

/* oneDNN's product of floats in C's order of rows, one thread; NULL: it is not installed. */
typedef int sgemm(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                  const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

static sgemm *onednn(void)
{
    static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"};
    setenv("OMP_NUM_THREADS", "1", 1);
    sgemm *f = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !f; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library)
            *(void **)&f = dlsym(library, "dnnl_sgemm");
    }
    if (!f)
        fprintf(stderr, "bench_gemm: no oneDNN to compare with (Debian: libdnnl2)\n");
    return f;
}

/* The same product by oneDNN; its seconds, or 0: failed. */
static double onednn_product(sgemm *f, const struct shape_case *c, const float *a, const float *b, float *out)
{
    double start = measure_cpu_now();
    int status = f(c->ta ? 'T' : 'N', c->tb ? 'T' : 'N', c->m, c->n, c->k, 1, a, c->ta ? c->m : c->k, b,
                   c->tb ? c->k : c->n, 0, out, c->n);
    return status ? 0 : measure_cpu_now() - start;
}

static float *floats_of(kl_tensor t)
{
    float *v = malloc((size_t)kl_numel(t) * sizeof *v);
    if (v && kl_read(t, v, (size_t)kl_numel(t) * sizeof *v) != KL_OK) {
        free(v);
        return NULL;
    }
    return v;
}

static const char *case_name(const struct shape_case *c)
{
    static char name[64];
    static const char *const of[] = {"", "int8 ", "bf16 "}, *const step[] = {"", " traced", " chained"};
    char batch[16] = "";
    if (c->batch)
        snprintf(batch, sizeof batch, " x%d", c->batch);
    snprintf(name, sizeof name, "%s%dx%dx%d%s%s%s", of[c->of], c->m, c->n, c->k, batch,
             c->ta ? " A^T" : c->tb ? " B^T" : "", step[c->step]);
    return name;
}

static double flops_of(const struct shape_case *c)
{
    return 2.0 * c->m * c->n * c->k * (c->batch ? c->batch : 1) * (c->step == CHAIN ? CHAINED : 1);
}

static bool wants(struct bench *b, const struct shape_case *c)
{
    return bench_wants_work(b, case_name(c), flops_of(c), SMOKE_FLOPS);
}

/* batch: 0: of one matrix */
static kl_tensor matrix(kl_device dev, int batch, int rows, int cols, kl_dtype dtype, uint64_t seed)
{
    const int64_t dims[] = {batch, rows, cols};
    kl_tensor t = kl_randn(dev, KL_F32, batch ? 3 : 2, batch ? dims : dims + 1, seed);
    if (dtype == KL_U8)
        t = kl_abs(t);
    t = dtype == KL_F32 ? t : kl_cast(dtype == KL_BF16 ? t : kl_mul_scalar(t, 30), dtype);
    kl_keep(t);
    return t;
}

static kl_tensor record_product(const struct shape_case *c, const struct operands *o)
{
    kl_trace_begin("gemm");
    kl_tensor a = c->ta ? kl_transpose(o->a, -1, -2) : o->a, b = c->tb ? kl_transpose(o->b, -1, -2) : o->b;
    if (c->step == CHAIN) /* so that its numbers stay of one size */
        b = kl_mul_scalar(b, 1 / sqrt(c->k));
    kl_tensor out = c->of == INT8 ? kl_matmul(kl_cast(a, KL_I32), kl_cast(b, KL_I32)) : kl_matmul(a, b);
    for (int i = 1; c->step == CHAIN && i < CHAINED; i++)
        out = kl_matmul(out, b);
    return kl_keep(out);
}

static void product_release(struct operands *o)
{
    kl_step_free(o->step);
    kl_release(o->a);
    kl_release(o->b);
}

/* Products of a sample: small ones and batches are repeated, for what the cases before them have left in the caches is
 * not of interest. */
static int repeats(const struct shape_case *c)
{
    static const double min_flops = 3e8;
    return flops_of(c) < min_flops ? (int)(min_flops / flops_of(c)) + 1 : 1;
}

/* One product, run and waited for; false: see kl_last_error. */
static bool product(kl_device dev, const struct shape_case *c, struct operands *o)
{
    kl_tensor y;
    if (c->step != TRACED)
        return kl_step_run(o->step, 0, NULL, 0, NULL, 1, &y) == KL_OK && kl_sync(dev) == KL_OK &&
               kl_release(y) == KL_OK;
    y = record_product(c, o);
    return kl_trace_end() == KL_OK && kl_sync(dev) == KL_OK && kl_release(y) == KL_OK;
}

/* Seconds of one of `calls` products; below 0: see kl_last_error. */
static double run_products(kl_device dev, const struct shape_case *c, struct operands *o, int calls)
{
    double start = measure_cpu_now();
    for (int n = 0; n < calls; n++)
        if (!product(dev, c, o))
            return -1;
    return (measure_cpu_now() - start) / calls;
}

static double bytes_of(const struct shape_case *c)
{
    double elements = (double)c->m * c->k + (double)c->k * c->n + (double)c->m * c->n;
    return sizeof(float) * elements * (c->batch ? c->batch : 1);
}

static bool is_far(const struct shape_case *c) { return c->batch && c->of == FLOATS && bytes_of(c) > FAR_BYTES; }

/* Is a call's time worth a row of its own? */
static bool is_call(const struct shape_case *c)
{
    return !c->batch && c->step == FROZEN && c->of == FLOATS && flops_of(c) < SMALL_FLOPS;
}

/* A step whose kernel has one element to do: what a call takes. */
static bool open_call(kl_device dev, struct operands *o)
{
    kl_trace_begin("element");
    o->a = kl_keep(kl_rand(dev, KL_F32, 1, (int64_t[]){1}, 1));
    if (kl_trace_end() != KL_OK)
        return false;
    kl_trace_begin("call");
    kl_keep(kl_abs(o->a));
    return (o->step = kl_trace_end_step(0, NULL)) != NULL;
}

static double far_seconds(float *const *array)
{
    double start = measure_cpu_now();
    limit_stream(array, 2, 0, STREAM_FLOATS);
    return measure_cpu_now() - start;
}

/* Opens the sum of two arrays if there is a case for it; NULL: out of memory. */
static bool open_far(struct bench *b, float **array)
{
    bool any = false;
    for (int i = 0; i < CASES; i++)
        any |= is_far(&cases[i]) && wants(b, &cases[i]);
    for (int j = 0; any && j < 3; j++)
        if (!(array[j] = limit_array(STREAM_FLOATS)))
            return false;
    return true;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct samples took[CASES], alone[CASES], theirs[CASES], peak, call, far;
    struct operands element = {.step = NULL};
    float *array[3] = {NULL};
    static struct operands o[CASES];
    float *host[CASES][3] = {{NULL}};
    if (!bench_open(&b, "gemm", argc, argv))
        return b.status;
    kl_device dev = bench_device(&b);
    kl_set_option("threads", 1);

    kl_trace_begin("operands");
    for (int i = 0; i < CASES; i++) {
        const struct shape_case *c = &cases[i];
        if (!wants(&b, c))
            continue;
        kl_dtype a = c->of == INT8 ? KL_U8 : c->of == BF16 ? KL_BF16 : KL_F32;
        o[i].a = matrix(dev, c->batch, c->ta ? c->k : c->m, c->ta ? c->m : c->k, a, 1);
        o[i].b = matrix(dev, c->batch, c->tb ? c->n : c->k, c->tb ? c->k : c->n, c->of == INT8 ? KL_I8 : a, 2);
    }
    if (kl_trace_end() != KL_OK || !open_call(dev, &element) || !open_far(&b, array))
        return bench_fail(&b, "gemm");

    for (int i = 0; i < CASES; i++)
        if (wants(&b, &cases[i]) && cases[i].step != TRACED) {
            record_product(&cases[i], &o[i]);
            if (!(o[i].step = kl_trace_end_step(0, NULL)))
                return bench_fail(&b, "gemm");
        }
    sgemm *other = onednn();
    for (int i = 0; i < CASES && other; i++)
        if (cases[i].of == FLOATS && !cases[i].batch && cases[i].step != CHAIN && wants(&b, &cases[i])) {
            host[i][0] = floats_of(o[i].a);
            host[i][1] = floats_of(o[i].b);
            host[i][2] = malloc((size_t)cases[i].m * (size_t)cases[i].n * sizeof(float));
        }

    double flops = 0;
    for (int round = -1; round < bench_rounds(&b, ROUNDS); round++) /* round -1 compiles */
        for (int i = 0; i < CASES; i++) {
            if (!wants(&b, &cases[i]) || (round >= LONG_ROUNDS && flops_of(&cases[i]) > LONG_FLOPS))
                continue;
            int calls = round < 0 || b.smoke ? 1 : repeats(&cases[i]);
            double seconds = run_products(dev, &cases[i], &o[i], calls), took_other = 0;
            if (seconds < 0)
                return bench_fail(&b, "gemm");
            if (round < 0)
                continue;
            samples_add(&took[i], seconds);
            if (is_call(&cases[i])) {
                double host_seconds = run_products(dev, &cases[i], &element, CALLS);
                samples_add(&call, host_seconds);
                if (seconds > host_seconds) /* it may not be, beside other work */
                    samples_add(&alone[i], seconds - host_seconds);
            }
            if (is_far(&cases[i]))
                samples_add(&far, far_seconds(array));
            for (int n = 0; n < calls && host[i][2]; n++)
                took_other += onednn_product(other, &cases[i], host[i][0], host[i][1], host[i][2]);
            if (took_other > 0)
                samples_add(&theirs[i], took_other / calls);
            flops = bench_peak(&peak);
        }

    double limit = flops / samples_median(&peak) * 1e-9, logs = 0;
    int compared = 0;
    for (int i = 0; i < CASES; i++) {
        const struct shape_case *c = &cases[i];
        if (took[i].n) { /* there are more products of smaller elements to a second than the limit of floats */
            double work = flops_of(c);
            double bytes_limit = is_far(c) ? work / bytes_of(c) * 3 * sizeof(float) * STREAM_FLOATS /
                                             samples_median(&far) * 1e-9 : limit;
            if (alone[i].n)
                bench_add(&b, case_name(c), "kernel", 1, &alone[i], "GFLOP/s", work, limit);
            struct result *r = bench_add(&b, case_name(c), "fused", 1, &took[i], "GFLOP/s", work,
                                         c->of != FLOATS ? 0 : bytes_limit < limit ? bytes_limit : limit);
            if (c->of && took[of_floats(i)].n)
                bench_baseline(r, "floats", samples_median(&took[of_floats(i)]) / samples_median(&took[i]));
            if (theirs[i].n) {
                double ratio = samples_median(&theirs[i]) / samples_median(&took[i]);
                bench_baseline(r, "oneDNN", ratio);
                logs += log(ratio);
                compared++;
            }
        }
        if (o[i].a.id)
            product_release(&o[i]);
        for (int j = 0; j < 3; j++)
            free(host[i][j]);
    }
    if (call.n)
        bench_add(&b, "call", "fused", 1, &call, "us", 0, 0);
    product_release(&element);
    for (int j = 0; j < 3; j++)
        limit_array_free(array[j], STREAM_FLOATS);
    if (compared)
        fprintf(stderr, "bench_gemm: geometric mean of oneDNN's time to Kiln's over %d products of floats: %.3f\n",
                compared, exp(logs / compared));
    return bench_close(&b);
}
