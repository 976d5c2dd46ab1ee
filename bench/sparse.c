/* A sparse matrix times a plain one, in rows (csr) and in coordinates (coo), against the same product with every
 * element stored: one thread, in alternation.  Results further apart than sums of that many terms may round are an
 * error. */
#include "bench.h"
#include <float.h>

enum { N = 2048, COLUMNS = 64, ROUNDS = 20, VARIANTS = 3 };

static const struct { const char *name; uint32_t every; } cases[] = {{"0.1 %", 1000}, {"1 %", 100}, {"10 %", 10}};
static const char *const variant[VARIANTS] = {"dense", "csr", "coo"};

struct matrix {
    float *plain, *value;
    int32_t *start, *row, *column;
    int64_t stored;
};

static void matrix_free(struct matrix *m)
{
    free(m->plain);
    free(m->value);
    free(m->start);
    free(m->row);
    free(m->column);
}

/* An element in `every` is stored, at places and with values -1 .. 1 from a generator of 32 bits (Marsaglia's
 * xorshift). */
static bool matrix_make(struct matrix *m, uint32_t every)
{
    uint32_t x = 2463534242u;
    *m = (struct matrix){.plain = calloc((size_t)N * N, sizeof(float)), .value = malloc((size_t)N * N * sizeof(float)),
                         .start = malloc((N + 1) * sizeof(int32_t)), .row = malloc((size_t)N * N * sizeof(int32_t)),
                         .column = malloc((size_t)N * N * sizeof(int32_t))};
    if (!m->plain || !m->value || !m->start || !m->row || !m->column)
        return false;
    for (int32_t i = 0; i < N * N; i++) {
        if (i % N == 0)
            m->start[i / N] = (int32_t)m->stored;
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        if (x % every)
            continue;
        m->plain[i] = m->value[m->stored] = (float)(int32_t)x * 0x1p-31f;
        m->row[m->stored] = i / N;
        m->column[m->stored++] = i % N;
    }
    m->start[N] = (int32_t)m->stored;
    return true;
}

static bool multiply(kl_device dev, kl_tensor a, kl_tensor b, kl_tensor *out)
{
    kl_trace_begin("sparse");
    kl_tensor y = kl_matmul(a, b);
    kl_keep(y);
    bool ok = kl_trace_end() == KL_OK && kl_sync(dev) == KL_OK;
    if (out)
        *out = y;
    else
        kl_release(y);
    return ok;
}

/* Sums of N terms in any two orders: 2 N u |a| |b| apart at most (Higham, Accuracy and Stability, 3.5). */
static bool agree(kl_tensor plain, kl_tensor b, kl_tensor y, kl_tensor want)
{
    kl_tensor max = kl_mul_scalar(kl_matmul(kl_abs(plain), kl_abs(b)), (double)N * (double)FLT_EPSILON);
    kl_tensor over = kl_sub(kl_abs(kl_sub(y, want)), max);
    return kl_item_f64(kl_max(over, 0, NULL, false)) <= 0;
}

/* All rounds of one density; false: see kl_last_error, or the results are too far apart. */
static bool measure(struct bench *b, kl_device dev, const char *name, const struct matrix *m)
{
    static struct samples took[VARIANTS];
    const int64_t n[1] = {m->stored};
    kl_scope_begin();
    kl_tensor value = kl_input(dev, KL_F32, 1, n, m->value), column = kl_input(dev, KL_I32, 1, n, m->column);
    kl_tensor start = kl_input(dev, KL_I32, 1, (int64_t[]){N + 1}, m->start), row = kl_input(dev, KL_I32, 1, n, m->row);
    kl_tensor a[VARIANTS] = {kl_input(dev, KL_F32, 2, (int64_t[]){N, N}, m->plain),
                             kl_sparse_csr(value, start, column, N),
                             kl_sparse_coo(value, row, column, N, N)};
    kl_tensor x = kl_randn(dev, KL_F32, 2, (int64_t[]){N, COLUMNS}, 1), y[VARIANTS];
    bool ok = kl_sync(dev) == KL_OK;
    for (int v = 0; v < VARIANTS; v++) {
        took[v].n = 0;
        ok = ok && multiply(dev, a[v], x, &y[v]) && agree(a[0], x, y[v], y[0]); /* compiles */
    }
    for (int round = 0; ok && round < bench_rounds(b, ROUNDS); round++)
        for (int v = 0; ok && v < VARIANTS; v++) {
            double begin = measure_cpu_now();
            ok = multiply(dev, a[v], x, NULL);
            samples_add(&took[v], measure_cpu_now() - begin);
        }
    kl_scope_end();
    for (int v = 0; ok && v < VARIANTS; v++) {
        struct result *r = bench_add(b, name, variant[v], 1, &took[v], "us", 0, 0);
        if (v)
            bench_baseline(r, variant[0], samples_median(&took[0]) / samples_median(&took[v]));
    }
    return ok;
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (!bench_open(&b, "sparse", argc, argv))
        return b.status;
    kl_device dev = bench_device(&b);
    kl_set_option("threads", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!bench_wants(&b, cases[i].name))
            continue;
        struct matrix m;
        bool ok = matrix_make(&m, cases[i].every) && measure(&b, dev, cases[i].name, &m);
        matrix_free(&m);
        if (!ok)
            return bench_fail(&b, cases[i].name);
    }
    return bench_close(&b);
}
