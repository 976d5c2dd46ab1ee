/* Fused against unfused kernels of random graphs, of 1 to 4 million elements and of the kinds that users write, by
 * turns on one thread.  A graph that is slower fused is measured again, longer; it is printed, with its seed, if fused
 * it still has less than 0.9 of the unfused speed.  --case FIRST-LAST: the graphs of these seeds, or of one. */
#include "bench.h"

enum { MILLION = 1 << 20, MAX_COUNT = 4 * MILLION, FLOATS = MAX_COUNT + MAX_COUNT / 4, MAX_KEPT = 4, MAX_RANK = 4 };

struct maker {
    kl_device device;
    kl_tensor floats[3], whole;     /* what the graphs read: FLOATS uniform numbers each; integers from 0 to 63 */
    uint64_t seed, random;          /* of the graph, and where its numbers have come to */
    kl_tensor kept[MAX_KEPT];
    int nkept;
    int inputs;
    bool smooth;                    /* all ops so far have a gradient worth asking for */
};

static uint64_t next(struct maker *m)
{
    uint64_t x = m->random += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int64_t below(struct maker *m, int64_t n) { return (int64_t)(next(m) % (uint64_t)n); }
static bool chance(struct maker *m, int one_in) { return below(m, one_in) == 0; }

static int64_t count(int rank, const int64_t *dims)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    return n;
}

/* An array of these lengths. */
static kl_tensor fresh(struct maker *m, int rank, const int64_t *dims)
{
    kl_tensor all = m->floats[m->inputs++ % 3];
    int64_t n = count(rank, dims), first = below(m, 2) ? 0 : 64 * below(m, 100);
    return kl_reshape(kl_narrow(all, 0, n + first <= FLOATS ? first : 0, n), rank, dims);
}

static kl_tensor indices(struct maker *m, int64_t n, int64_t end)
{
    kl_tensor i = kl_narrow(m->whole, 0, 0, n);
    return end < 64 ? kl_rem(i, kl_full(m->device, KL_I32, 1, &n, (double)end)) : i;
}

/* ---- shapes ---- */

static int64_t pick_short(struct maker *m) { return 2 + below(m, below(m, 2) ? 6 : 31); }
static int64_t pick_middle(struct maker *m) { return 33 + below(m, 480); }

/* 1 to 4 million elements, in shapes of rows, columns, batches and images. */
static int first_shape(struct maker *m, int64_t *dims)
{
    int64_t n = MILLION + below(m, 3 * MILLION);
    switch (below(m, 8)) {
    case 0: dims[0] = n; return 1;
    case 1: dims[1] = pick_short(m), dims[0] = n / dims[1]; return 2;
    case 2: dims[1] = pick_middle(m), dims[0] = n / dims[1]; return 2;
    case 3: dims[0] = pick_short(m), dims[1] = n / dims[0]; return 2;
    case 4: dims[0] = pick_middle(m), dims[1] = n / dims[0]; return 2;
    case 5: dims[0] = pick_short(m), dims[2] = pick_short(m), dims[1] = n / (dims[0] * dims[2]); return 3;
    case 6: dims[1] = pick_short(m), dims[2] = pick_middle(m), dims[0] = n / (dims[1] * dims[2]); return 3;
    default: dims[0] = 1 + below(m, 8), dims[2] = 32 + below(m, 100), dims[3] = 32 + below(m, 100);
        dims[1] = n / (dims[0] * dims[2] * dims[3]) + 1;
        return 4;
    }
}

/* ---- one more op; the value, of 1 million elements or fewer, has the shape that kl_shape says ---- */

static kl_tensor cheap(struct maker *m, kl_tensor x)
{
    switch (below(m, 8)) {
    case 0: return kl_neg(x);
    case 1: return kl_abs(x);
    case 2: return kl_relu(x);
    case 3: return kl_square(x);
    case 4: return kl_add_scalar(x, 0.25);
    case 5: return kl_mul_scalar(x, 0.75);
    case 6: return kl_clamp(x, -2, 2);
    default: return kl_sqrt(kl_abs(x));
    }
}

static kl_tensor costly(struct maker *m, kl_tensor x)
{
    kl_tensor positive = kl_add_scalar(kl_abs(x), 0.5);
    switch (below(m, 18)) {
    case 0: return kl_exp(kl_neg(kl_abs(x)));
    case 1: return kl_log(positive);
    case 2: return kl_tanh(x);
    case 3: return kl_sin(x);
    case 4: return kl_cos(x);
    case 5: return kl_erf(x);
    case 6: return kl_sigmoid(x);
    case 7: return kl_gelu(x);
    case 8: return kl_silu(x);
    case 9: return kl_softplus(x);
    case 10: return kl_pow_scalar(positive, -1.5);
    case 11: return kl_rsqrt(positive);
    case 12: return kl_log1p(kl_abs(x));
    case 13: return kl_expm1(kl_neg(kl_abs(x)));
    case 14: return kl_mish(x);
    case 15: return kl_atan(x);
    case 16: return kl_recip(positive);
    default: return kl_elu(x, 1);
    }
}

static kl_tensor binary(struct maker *m, kl_tensor x, kl_tensor y)
{
    switch (below(m, 8)) {
    case 0: return kl_add(x, y);
    case 1: return kl_sub(x, y);
    case 2: return kl_div(x, kl_add_scalar(kl_abs(y), 0.5));
    case 3: return kl_maximum(x, y);
    case 4: return kl_where(kl_gt(x, y), x, kl_mul_scalar(y, 0.5));
    case 5: return kl_atan2(y, x);
    default: return kl_mul(x, y);
    }
}

/* y's axes, some of them of length 1. */
static kl_tensor spread(struct maker *m, kl_tensor x, int rank, const int64_t *dims)
{
    int64_t own[MAX_RANK] = {0};
    int only = below(m, 3) ? (int)below(m, rank) : -1; /* the one axis that is not repeated */
    for (int i = 0; i < rank; i++)
        own[i] = (only < 0 ? chance(m, 2) : i != only) ? 1 : dims[i];
    return binary(m, x, fresh(m, rank, own));
}

static kl_tensor reduced(struct maker *m, kl_tensor x, int rank, bool keep)
{
    int axes[MAX_RANK], n = 0, must = below(m, 2) ? rank - 1 : (int)below(m, rank);
    for (int i = 0; i < rank; i++)
        if (i == must || chance(m, 5))
            axes[n++] = i;
    switch (below(m, 8)) {
    case 0: return kl_max(x, n, axes, keep);
    case 1: return kl_min(x, n, axes, keep);
    case 2: return kl_mean(x, n, axes, keep);
    case 3: return kl_var(x, n, axes, keep, 0);
    case 4: return kl_norm(x, n, axes, keep);
    case 5: return kl_logsumexp(x, n, axes, keep);
    default: return kl_sum(x, n, axes, keep);
    }
}

static kl_tensor normed(struct maker *m, kl_tensor x, int rank, const int64_t *dims)
{
    const int64_t *last = dims + rank - 1;
    switch (below(m, 4)) {
    case 0: return kl_layer_norm(x, 1, fresh(m, 1, last), fresh(m, 1, last), 1e-5);
    case 1: return kl_rms_norm(x, 1, fresh(m, 1, last), 1e-5);
    case 2: return kl_log_softmax(x, (int)below(m, rank));
    default: return kl_softmax(x, below(m, 2) ? rank - 1 : (int)below(m, rank));
    }
}

static kl_tensor scanned(struct maker *m, kl_tensor x, int rank)
{
    int axis = (int)below(m, rank);
    switch (below(m, 4)) {
    case 0: return kl_cummax(x, axis, chance(m, 3));
    case 1: return kl_recurrence(kl_mul_scalar(kl_sigmoid(x), 0.9), x, axis, false);
    default: return kl_cumsum(kl_mul_scalar(x, 1e-3), axis, false, chance(m, 3));
    }
}

static kl_tensor moved(struct maker *m, kl_tensor x, int rank, const int64_t *dims)
{
    int64_t start[MAX_RANK] = {0}, stop[MAX_RANK], step[MAX_RANK], low[MAX_RANK] = {0}, high[MAX_RANK] = {0};
    int axis = (int)below(m, rank), axes[MAX_RANK];
    for (int i = 0; i < rank; i++)
        stop[i] = dims[i], step[i] = 1, axes[i] = (i + 1 + axis) % rank;
    switch (below(m, 7)) {
    case 0: return kl_permute(x, axes);
    case 1: return kl_transpose(x, axis, (int)below(m, rank));
    case 2: return kl_flip(x, 1, &axis);
    case 3:
        start[axis] = below(m, dims[axis] > 4 ? 3 : 1), step[axis] = 1 + below(m, dims[axis] > 8 ? 2 : 1);
        return kl_slice(x, start, stop, step);
    case 4: return kl_concat(2, (kl_tensor[]){x, kl_mul_scalar(kl_flip(x, 1, &axis), 0.5)}, axis);
    case 5:
        low[axis] = below(m, 3), high[axis] = 1 + below(m, 2);
        return kl_pad(x, low, high, 0);
    default: {
        int64_t n = dims[axis] < 1000 ? dims[axis] : 1000;
        return kl_take(x, axis, indices(m, n, dims[axis]));
    }
    }
}

static kl_tensor windowed(struct maker *m, kl_tensor x, int rank, const int64_t *dims)
{
    int64_t size = 2 + below(m, 3);
    int axis = (int)below(m, rank);
    if (dims[axis] < 2 * size || rank == MAX_RANK)
        return cheap(m, x);
    kl_tensor w = kl_window(x, axis, size, 1 + below(m, 2), 1);
    return below(m, 2) ? kl_sum(w, 1, (int[]){rank}, false) : kl_max(w, 1, (int[]){rank}, false);
}

static kl_tensor multiplied(struct maker *m, kl_tensor x, int rank, const int64_t *dims)
{
    int64_t w[2] = {dims[rank - 1], 1 + below(m, 64)};
    return rank < 2 || w[0] > 256 ? costly(m, x) : kl_matmul(x, fresh(m, 2, w));
}

static kl_tensor another(struct maker *m, kl_tensor x)
{
    int64_t dims[KL_MAX_RANK];
    int rank = kl_rank(x);
    kl_shape(x, dims);
    int kind = (int)below(m, 30);
    if (!rank)
        return costly(m, x);
    m->smooth &= kind < 21;
    if (kind < 4)
        return cheap(m, x);
    if (kind < 11)
        return costly(m, x);
    if (kind < 13)
        return binary(m, x, fresh(m, rank, dims));
    if (kind < 16)
        return spread(m, x, rank, dims);
    if (kind < 18)
        return binary(m, x, reduced(m, chance(m, 2) ? costly(m, x) : x, rank, true));
    if (kind < 20)
        return normed(m, x, rank, dims);
    if (kind < 21)
        return multiplied(m, x, rank, dims);
    if (kind < 22)
        return kl_cast(costly(m, kl_cast(x, below(m, 2) ? KL_F16 : KL_BF16)), KL_F32);
    if (kind < 24)
        return scanned(m, x, rank);
    if (kind < 25)
        return windowed(m, x, rank, dims);
    if (kind < 28 || kl_numel(x) < MILLION / 2)
        return moved(m, x, rank, dims);
    return costly(m, reduced(m, x, rank, chance(m, 2)));
}

static kl_tensor keep(struct maker *m, kl_tensor x)
{
    return m->nkept < MAX_KEPT ? m->kept[m->nkept++] = kl_keep(x) : x;
}

static void record(struct maker *m)
{
    int64_t dims[KL_MAX_RANK];
    m->random = m->seed * 0x2545f4914f6cdd1du;
    m->nkept = 0;
    m->smooth = true;
    m->inputs = (int)below(m, 3);
    int rank = first_shape(m, dims), n = 1 + (int)below(m, 6);
    kl_tensor x = fresh(m, rank, dims), from = x;
    for (int i = 0; i < n; i++) {
        kl_tensor y = another(m, x);
        if (kl_numel(y) > 2 * (int64_t)MAX_COUNT)
            break;
        x = y;
        if (chance(m, 10))
            keep(m, x);
        else if (chance(m, 12) && kl_rank(x))
            keep(m, reduced(m, x, kl_rank(x), false));
    }
    if (m->smooth && chance(m, 3))
        keep(m, kl_grad(kl_sum_all(kl_mul(x, x)), from));
    else
        keep(m, x);
}

static bool step(void *ctx)
{
    struct maker *m = ctx;
    char name[32];
    snprintf(name, sizeof name, "graph_%llu", (unsigned long long)m->seed);
    kl_trace_begin(name);
    record(m);
    bool ok = kl_trace_end() == KL_OK && kl_sync(m->device) == KL_OK;
    for (int i = 0; i < m->nkept; i++)
        kl_release(m->kept[i]);
    return ok;
}

/* Adds so many runs of either kind, in alternation. */
static bool measure(struct maker *m, int rounds, struct samples *took)
{
    for (int round = 0; round < rounds; round++)
        for (int fuse = 0; fuse < 2; fuse++) {
            kl_set_option("fuse", fuse);
            double start = measure_cpu_now();
            if (!step(m))
                return false;
            samples_add(&took[fuse], measure_cpu_now() - start);
        }
    return true;
}

static double ratio(const struct samples *took) { return samples_median(&took[0]) / samples_median(&took[1]); }

/* Prints the graph of a trace, without the lines of this file. */
static bool print_graph(const char *trace)
{
    char path[] = "/tmp/kiln_graphs_XXXXXX", line[1024];
    int fd = mkstemp(path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    bool ok = f && kl_dump(trace, "simplified", path) == KL_OK;
    while (ok && fgets(line, sizeof line, f)) {
        size_t n = strcspn(line, "#\n");
        while (n && line[n - 1] == ' ')
            n--;
        printf("%.*s\n", (int)n, line);
    }
    if (f)
        fclose(f);
    if (fd >= 0)
        remove(path);
    fflush(stdout);
    return ok;
}

enum { FEW = 3, MANY = 15, SMOKE_GRAPHS = 3 };

static bool measure_graph(struct bench *b, struct maker *m, struct samples *total)
{
    static struct samples took[2], warm[2];
    char name[32];
    warm[0].n = warm[1].n = took[0].n = took[1].n = 0;
    if (!measure(m, 1, warm) || !measure(m, bench_rounds(b, FEW), took))
        return false;
    if (ratio(took) < 0.95 && !b->smoke) {
        took[0].n = took[1].n = 0;
        if (!measure(m, MANY, took))
            return false;
    }
    for (int fuse = 0; fuse < 2; fuse++)
        total[fuse].s[0] += samples_median(&took[fuse]);
    if (ratio(took) >= 0.9 || b->smoke)
        return true;
    snprintf(name, sizeof name, "graph-%llu", (unsigned long long)m->seed);
    for (int fuse = 0; fuse < 2; fuse++) {
        struct result *r = bench_add(b, name, fuse ? "fused" : "unfused", 1, &took[fuse], "us", 0, 0);
        if (fuse)
            bench_baseline(r, "unfused", ratio(took));
    }
    printf("# seed %llu: %.0f us unfused, %.0f us fused, %.2f\n", (unsigned long long)m->seed,
           1e6 * samples_median(&took[0]),
           1e6 * samples_median(&took[1]), ratio(took));
    snprintf(name, sizeof name, "graph_%llu", (unsigned long long)m->seed);
    return print_graph(name);
}

static bool open_maker(struct maker *m, kl_device device)
{
    int64_t n = FLOATS, few = 4096;
    m->device = device;
    kl_trace_begin("arrays");
    for (int i = 0; i < 3; i++)
        m->floats[i] = kl_keep(kl_rand(device, KL_F32, 1, &n, (uint64_t)i));
    m->whole = kl_keep(kl_cast(kl_mul_scalar(kl_rand(device, KL_F32, 1, &few, 3), 64), KL_I32));
    return kl_trace_end() == KL_OK;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct samples total[2] = {{.n = 1}, {.n = 1}};
    if (!bench_open(&b, "graphs", argc, argv))
        return b.status;
    unsigned long long first = 1, last = (unsigned long long)bench_size(&b, 60, SMOKE_GRAPHS);
    int seeds = b.only ? sscanf(b.only, "%llu-%llu", &first, &last) : 2;
    if (seeds == 1)
        last = first;
    if (seeds < 1) {
        fprintf(stderr, "bench_graphs: there is no case %s: --case is a seed, or FIRST-LAST\n", b.only);
        return 2;
    }
    struct maker m = {0};
    kl_set_option("threads", 1);
    if (!open_maker(&m, bench_device(&b)))
        return bench_fail(&b, "arrays");
    for (m.seed = first; m.seed <= last; m.seed++) {
        if (!measure_graph(&b, &m, total)) {
            char what[32];
            snprintf(what, sizeof what, "seed %llu", (unsigned long long)m.seed);
            return bench_fail(&b, what);
        }
        measure_progress("graphs", (int)(m.seed - first + 1), (int)(last - first + 1));
    }
    for (int fuse = 0; fuse < 2; fuse++) {
        struct result *r = bench_add(&b, "all", fuse ? "fused" : "unfused", 1, &total[fuse], "us", 0, 0);
        if (fuse)
            bench_baseline(r, "unfused", ratio(total));
    }
    kl_release(m.whole);
    for (int i = 0; i < 3; i++)
        kl_release(m.floats[i]);
    return bench_close(&b);
}
