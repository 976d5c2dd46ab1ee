/* Measures limits for kernels: streams over as many arrays of about the same size as a kernel has, and multiply-adds.
 *
 * Sizes are rounded up to powers of two, so that the kernels of a program need few loops; above 64 MiB the bandwidth is
 * that of memory for any size. */
#include "benchmark.h"
#include <string.h>

enum { MIN_LOG = 12, MAX_LOG = 26, MIN_MOVED = 1 << 20 };

/* The loop for a kernel.  Arrays with less than 1/32 of its bytes are ignored.  A kernel without memory traffic is
 * limited by multiply-adds alone. */
static bool anchor_of(const struct kernel *k, struct anchor *a)
{
    int inputs = 0, outputs = 0;
    *a = (struct anchor){.log_bytes = MIN_LOG};
    for (uint32_t i = 0; i < k->nbuf; i++) {
        const struct lbuf *b = &k->buf[i];
        bool counts = b->count * (int64_t)dtype_size(b->dtype) >= k->bytes / 32;
        inputs += counts && b->role == BUF_IN;
        outputs += counts && b->role == BUF_OUT;
    }
    while (a->log_bytes < MAX_LOG && (INT64_C(1) << a->log_bytes) < k->bytes)
        a->log_bytes++;
    inputs = inputs < 1 ? 1 : inputs;
    a->inputs = (uint8_t)(!outputs ? 0 : inputs < LIMIT_INPUTS ? inputs : LIMIT_INPUTS);
    return k->bytes > 0;
}

static struct anchor *benchmark_limits_find(const struct machine *m, const struct anchor *like)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (m->anchor[i].inputs == like->inputs && m->anchor[i].log_bytes == like->log_bytes)
            return &m->anchor[i];
    return NULL;
}

bool machine_want(struct machine *m, const struct kernel *k)
{
    struct anchor a;
    if (!anchor_of(k, &a) || benchmark_limits_find(m, &a))
        return true;
    if (!mem_reserve(&m->anchor, &m->cap, m->n + 1, sizeof *m->anchor))
        return false;
    m->anchor[m->n++] = a;
    return true;
}

/* Elements of each array of a loop. */
static size_t anchor_elements(const struct anchor *a)
{
    return ((size_t)1 << a->log_bytes) / 4 / (a->inputs + 1u) / 16 * 16;
}

static bool make_arrays(struct machine *m, const struct anchor *a)
{
    for (unsigned i = 0; i <= a->inputs; i++) {
        if (m->count[i] >= anchor_elements(a))
            continue;
        limit_array_free(m->array[i], m->count[i]);
        m->count[i] = anchor_elements(a);
        if (!(m->array[i] = limit_array(m->count[i]))) {
            m->count[i] = 0;
            return false;
        }
    }
    return true;
}

struct stream_job { struct machine *m; const struct anchor *a; };

static void stream_share(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    const struct stream_job *j = ctx;
    (void)worker;
    if (j->a->inputs) {
        limit_stream(j->m->array, j->a->inputs, (size_t)begin * 16, (size_t)end * 16);
    } else {
        volatile float sink = limit_sum(j->m->array[0], (size_t)begin * 16, (size_t)end * 16);
        (void)sink;
    }
}

/* Small loops are repeated until they take a few microseconds. */
static void measure_stream(struct machine *m, struct anchor *a)
{
    int64_t vectors = (int64_t)(anchor_elements(a) / 16);
    int times = a->log_bytes < 20 ? MIN_MOVED >> a->log_bytes : 1;
    struct stream_job j = {m, a};
    pool_run(stream_share, &j, vectors, 1024);
    double start = m->clock();
    for (int i = 0; i < times; i++)
        pool_run(stream_share, &j, vectors, 1024);
    samples_add(&a->took, (m->clock() - start) / times);
}

static void fma_share(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    double *flops = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        flops[i] = limit_fma();
}

bool machine_measure(struct machine *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        if (!make_arrays(m, &m->anchor[i]))
            return false;
        measure_stream(m, &m->anchor[i]);
    }
    double flops[POOL_MAX_THREADS], start = m->clock();
    pool_run(fma_share, flops, m->threads, 1);
    samples_add(&m->fma, m->clock() - start);
    m->fma_flops = 0;
    for (unsigned i = 0; i < m->threads; i++)
        m->fma_flops += flops[i];
    return true;
}

double machine_peak(const struct machine *m)
{
    return m->fma.n ? m->fma_flops / samples_median(&m->fma) : 0;
}

double machine_limit(const struct machine *m, const struct kernel *k)
{
    struct anchor a, *measured = anchor_of(k, &a) ? benchmark_limits_find(m, &a) : NULL;
    double peak = machine_peak(m), compute = peak > 0 ? (double)k->flops / peak : 0, move = 0;
    if (measured && measured->took.n)
        move = (double)k->bytes / (double)(anchor_elements(&a) * 4 * (a.inputs + 1u)) * samples_median(&measured->took);
    return move > compute ? move : compute;
}

void machine_free(struct machine *m)
{
    for (int i = 0; i <= LIMIT_INPUTS; i++)
        limit_array_free(m->array[i], m->count[i]);
    mem_free(m->anchor);
}
