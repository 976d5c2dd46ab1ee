/* kl_sample against plain C in double: each option and all of them, rows alone and in batches, seeds, slots of a frozen
 * step, what is drawn how often, and what is refused. */
#include "tests/support/api_check.h"

enum { MAX_V = 1000, MAX_ROWS = 6, RECENT = 4 };
static kl_device dev;

/* ---- the reference ---- */
struct draw { const double *logit; int v; const int32_t *recent; double u; kl_sample_options o; };

static double sorted_by[MAX_V];
static int by_logit(const void *a, const void *b)
{
    int i = *(const int *)a, j = *(const int *)b;
    double x = sorted_by[i], y = sorted_by[j];
    return x > y ? -1 : x < y ? 1 : i - j;
}

static void penalize(const struct draw *d, double *l)
{
    bool seen[MAX_V] = {false};
    for (int i = 0; i < RECENT && d->recent && d->o.penalty > 0; i++)
        if (d->recent[i] >= 0 && d->recent[i] < d->v)
            seen[d->recent[i]] = true;
    for (int i = 0; i < d->v; i++)
        if (seen[i])
            l[i] = l[i] > 0 ? l[i] / d->o.penalty : l[i] * d->o.penalty;
}

/* The token; *close: rounding may decide otherwise. */
static int reference(const struct draw *d, bool *close)
{
    double l[MAX_V], weight[MAX_V], sum = 0, before = 0, all = 0, at = 0;
    int order[MAX_V], n = d->v;
    const kl_sample_options *o = &d->o;
    bool sorts = (o->top_k > 0 && o->top_k < n) || (o->top_p > 0 && o->top_p < 1);
    memcpy(l, d->logit, (size_t)n * sizeof *l);
    penalize(d, l);
    memcpy(sorted_by, l, sizeof l);
    for (int i = 0; i < n; i++)
        order[i] = i;
    qsort(order, (size_t)n, sizeof *order, by_logit);
    double max = l[order[0]];
    *close = n > 1 && o->temperature == 0 && max - l[order[1]] < 1e-6 && max != l[order[1]];
    if (o->temperature == 0)
        return order[0];
    if (o->top_k > 0 && o->top_k < n)
        n = (int)o->top_k;
    for (int i = 0; i < n; i++)
        sum += exp(l[order[i]] - max);
    for (int i = 0; i < n; i++) {
        double p = exp(l[order[i]] - max), part = o->top_p > 0 && o->top_p < 1 ? o->top_p * sum : INFINITY;
        bool keep = before < part && (o->min_p == 0 || p >= o->min_p);
        *close |= i && (fabs(before - part) < 1e-5 * sum || (o->min_p > 0 && fabs(p - o->min_p) < 1e-5));
        weight[order[i]] = keep ? exp((l[order[i]] - max) / o->temperature) : 0;
        all += weight[order[i]];
        before += p;
    }
    for (int i = 0; i < n; i++) { /* without sorting all are there */
        int token = sorts ? order[i] : i;
        at += weight[token];
        *close |= fabs(at - d->u * all) < 1e-5 * all;
        if (at >= d->u * all && weight[token] > 0)
            return token;
    }
    *close = true;
    return -1;
}

/* ---- rows of logits ---- */
struct rows { int n, v; double logit[MAX_ROWS * MAX_V]; int32_t recent[MAX_ROWS * RECENT]; uint64_t seed; };

static double random_number(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / 0x1p24;
}

static void fill_rows(struct rows *r, int n, int v, uint64_t seed, kl_dtype dtype)
{
    uint64_t state = seed;
    *r = (struct rows){.n = n, .v = v, .seed = seed};
    for (int i = 0; i < n * v; i++) {
        double x = 12 * random_number(&state) - 6;
        r->logit[i] = dtype == KL_F16 ? round(64 * x) / 64 : (double)(float)x;
    }
    for (int i = 0; i < n * RECENT; i++)
        r->recent[i] = (int32_t)(random_number(&state) * (v + 2)) - 1; /* also -1 and v */
}

static kl_tensor logits_of(const struct rows *r, int first, int n, kl_dtype dtype)
{
    kl_tensor x = kl_input(dev, KL_F64, DIMS(n, r->v), r->logit + first * r->v);
    return kl_cast(x, dtype);
}

/* The numbers that the rows draw, from [n] seeds. */
static void uniform_of(kl_tensor seeds, int n, double *u)
{
    uint64_t bits[MAX_ROWS];
    OK(kl_read(seeds, bits, (size_t)n * sizeof *bits));
    for (int i = 0; i < n; i++)
        u[i] = ((double)(bits[i] >> 40) + 1) * 0x1p-24;
}

static int differs, close_calls, compared;

static void compare_rows(const struct rows *r, const int32_t *token, const double *u, const kl_sample_options *o)
{
    for (int i = 0; i < r->n; i++) {
        bool close;
        struct draw d = {r->logit + i * r->v, r->v, o->recent.id ? r->recent + i * RECENT : NULL, u[i], *o};
        int want = reference(&d, &close);
        compared++;
        close_calls += close;
        differs += !close && token[i] != want;
    }
}

static const kl_sample_options grid[] = {
    {.temperature = 0},
    {.temperature = 0, .penalty = 3},
    {.temperature = 1},
    {.temperature = 0.6},
    {.temperature = 2.5, .penalty = 1.4},
    {.temperature = 1, .top_k = 1},
    {.temperature = 1.5, .top_k = 5},
    {.temperature = 1, .top_k = 100000},
    {.temperature = 1, .top_p = 0.9},
    {.temperature = 2, .top_p = 0.3},
    {.temperature = 1, .top_p = 1e-6},
    {.temperature = 3, .min_p = 0.05},
    {.temperature = 2, .min_p = 1},
    {.temperature = 0.8, .top_k = 40, .top_p = 0.95, .min_p = 0.05, .penalty = 1.1},
};
enum { GRID = sizeof grid / sizeof *grid };

static void against_reference(void)
{
    static const int sizes[] = {1, 7, 50, MAX_V};
    static const kl_dtype dtypes[] = {KL_F32, KL_F16, KL_F64};
    static struct rows r;
    int32_t token[MAX_ROWS], own[MAX_ROWS];
    double u[MAX_ROWS];
    for (int k = 0; k < 4 * 3; k++)
        for (int g = 0; g < GRID; g++) {
            kl_dtype dtype = dtypes[k % 3];
            if (dtype == KL_F64 && device_now[0] == 'v') /* not there */
                dtype = KL_F32;
            fill_rows(&r, MAX_ROWS, sizes[k / 3], (uint64_t)(100 * k + g + 1), dtype);
            kl_sample_options o = grid[g];
            if (o.penalty > 0)
                o.recent = kl_input(dev, KL_I32, DIMS(r.n, RECENT), r.recent);
            kl_tensor x = logits_of(&r, 0, r.n, dtype), seed = kl_random_seed(dev, r.seed);
            kl_tensor seeds = kl_random_fold_in(seed, kl_arange(dev, KL_I64, r.n));
            OK(kl_read(kl_sample(x, seed, &o), token, sizeof token));
            uniform_of(seeds, r.n, u);
            compare_rows(&r, token, u, &o);
            /* rows' own seeds: [n], of which number 0 is folded in, as of a row alone */
            uniform_of(kl_random_fold_in(seeds, kl_zeros(dev, KL_I64, 0, NULL)), r.n, u);
            OK(kl_read(kl_sample(x, seeds, &o), own, sizeof own));
            compare_rows(&r, own, u, &o);
            int alone = g % MAX_ROWS;
            if (o.recent.id)
                o.recent = kl_input(dev, KL_I32, DIMS(RECENT), r.recent + alone * RECENT);
            kl_tensor row = kl_squeeze(logits_of(&r, alone, 1, dtype), 0);
            kl_tensor one = kl_squeeze(kl_narrow(seeds, 0, alone, 1), 0);
            CHECK(kl_item_i64(kl_sample(row, one, &o)) == own[alone]);
        }
    if (!CHECK(differs == 0 && close_calls < compared / 20))
        printf("%d of %d tokens differ, %d are too close to tell\n", differs, compared, close_calls);
}

/* Frequencies are the probabilities: chi-square of 5 tokens, 4 degrees of freedom, 23.5 at p = 1e-4. */
static void frequencies(void)
{
    enum { DRAWS = 20000, V = 5 };
    static const float logits[V] = {0.5f, -1, 2, -INFINITY, 1};
    static int32_t token[DRAWS];
    double want[V], sum = 0, chi = 0;
    int count[V] = {0};
    kl_tensor x = kl_expand(kl_input(dev, KL_F32, DIMS(1, V), logits), DIMS(DRAWS, V));
    OK(kl_read(kl_sample(x, kl_random_seed(dev, 9), &(kl_sample_options){.temperature = 1.3}), token, sizeof token));
    int outside = 0;
    for (int i = 0; i < DRAWS; i++)
        token[i] >= 0 && token[i] < V ? count[token[i]]++ : outside++;
    CHECK(outside == 0);
    for (int i = 0; i < V; i++)
        sum += want[i] = exp((double)logits[i] / 1.3);
    for (int i = 0; i < V; i++)
        if (want[i] > 0)
            chi += pow(count[i] - DRAWS * want[i] / sum, 2) / (DRAWS * want[i] / sum);
    CHECK(count[3] == 0 && chi < 23.5);
}

/* Options and seeds change from run to run without another program. */
static void frozen(void)
{
    static struct rows r;
    fill_rows(&r, 3, 40, 5, KL_F32);
    kl_sample_options o = {.temperature = 1, .top_k = 20, .top_p = 0.9, .min_p = 0.01, .penalty = 1.2};
    kl_trace_begin("sampled");
    float logits[3 * 40];
    for (int i = 0; i < 3 * 40; i++)
        logits[i] = (float)r.logit[i];
    kl_tensor x = kl_input(dev, KL_F32, DIMS(3, 40), logits), seed = kl_input(dev, KL_U64, 0, NULL, &r.seed);
    o.recent = kl_input(dev, KL_I32, DIMS(3, RECENT), r.recent);
    kl_tensor recent = o.recent;
    kl_keep(kl_sample(x, seed, &o));
    kl_step *step = kl_trace_end_step(3, (kl_tensor[]){x, seed, recent});
    int64_t built = -1;
    for (int i = 0; CHECK(step) && i < 8; i++) {
        uint64_t number = (uint64_t)i + 1000;
        double u[MAX_ROWS];
        kl_sample_options n = {0.2 + i * 0.3, 20, 0.99 - i * 0.1, 0.02 * i, 1 + i * 0.2, kl_none};
        kl_slot slot[] = {{"sample.temperature", n.temperature}, {"sample.top_p", n.top_p},
                          {"sample.penalty", n.penalty}, {"sample.min_p", i ? n.min_p : 1e-6}};
        kl_tensor in[3] = {kl_input(dev, KL_F32, DIMS(3, 40), logits), kl_input(dev, KL_U64, 0, NULL, &number),
                           kl_input(dev, KL_I32, DIMS(3, RECENT), r.recent)}, out;
        OK(kl_step_run(step, 3, in, 4, slot, 1, &out));
        CHECK(built < 0 || kl_counter("graphs_built") == built);
        built = kl_counter("graphs_built");
        int32_t token[3];
        OK(kl_read(out, token, sizeof token));
        n.recent = in[2];
        uniform_of(kl_random_fold_in(in[1], kl_arange(dev, KL_I64, 3)), 3, u);
        built = kl_counter("graphs_built");
        compare_rows(&r, token, u, &n);
        kl_release(out);
    }
    CHECK(differs == 0);
    kl_step_free(step);
}

static void special(void)
{
    static const float ties[6] = {1, 3, 3, 0, 3, 2}, none[3] = {-INFINITY, -INFINITY, -INFINITY};
    static const float nans[3] = {1, NAN, 2}, low[4] = {-INFINITY, -5, -INFINITY, -INFINITY};
    kl_tensor seed = kl_random_seed(dev, 3), x = kl_input(dev, KL_F32, DIMS(6), ties);
    CHECK(kl_item_i64(kl_sample(x, kl_none, NULL)) == 1);
    for (uint64_t i = 0; i < 12; i++) {
        kl_sample_options two = {.temperature = 1, .top_k = 2};
        int64_t token = kl_item_i64(kl_sample(x, kl_random_seed(dev, i), &two));
        CHECK(token == 1 || token == 2);
        kl_sample_options one = {.temperature = 5, .top_p = 0.5, .min_p = 0.1};
        CHECK(kl_item_i64(kl_sample(kl_input(dev, KL_F32, DIMS(4), low), kl_random_seed(dev, i), &one)) == 1);
        CHECK(kl_item_i64(kl_sample(kl_input(dev, KL_F32, DIMS(4), low), kl_random_seed(dev, i),
                                    &(kl_sample_options){.temperature = 1e30})) == 1);
    }
    for (int g = 0; g < GRID; g++) {
        int64_t a = kl_item_i64(kl_sample(kl_input(dev, KL_F32, DIMS(3), none), seed, &grid[g]));
        int64_t b = kl_item_i64(kl_sample(kl_input(dev, KL_F32, DIMS(3), nans), seed, &grid[g]));
        CHECK(a >= 0 && a < 3 && b >= 0 && b < 3);
    }
}

static void refused(void)
{
    static const kl_sample_options bad[] = {
        {.temperature = -1}, {.temperature = NAN}, {.temperature = INFINITY}, {.temperature = 1, .top_k = -1},
        {.temperature = 1, .top_p = 1.5}, {.temperature = 1, .top_p = -0.1}, {.temperature = 1, .min_p = 2},
        {.temperature = 1, .penalty = -2}, {.temperature = 1, .penalty = NAN}};
    const kl_sample_options warm = {.temperature = 1};
    kl_tensor x = kl_ones(dev, KL_F32, DIMS(2, 3)), seed = kl_random_seed(dev, 1);
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        FAILS(kl_check(kl_sample(x, seed, &bad[i])), KL_ERR_ARGUMENT, "sample: temperature");
    FAILS(kl_check(kl_sample(kl_ones(dev, KL_I32, DIMS(2, 3)), seed, &warm)), KL_ERR_TYPE, "sample");
    FAILS(kl_check(kl_sample(x, kl_ones(dev, KL_I32, 0, NULL), &warm)), KL_ERR_TYPE,
          "sample: the seed is i32, not u64");
    FAILS(kl_check(kl_sample(x, kl_random_split(seed, 3), &warm)), KL_ERR_SHAPE, "sample: the seed [3] has other rows");
    FAILS(kl_check(kl_sample(kl_ones(dev, KL_F32, 0, NULL), seed, &warm)), KL_ERR_SHAPE, "sample: logits []");
    FAILS(kl_check(kl_sample(kl_ones(dev, KL_F32, DIMS(2, 0)), seed, &warm)), KL_ERR_SHAPE, "sample: logits [2,0]");
    CHECK(kl_check(kl_sample(x, kl_none, &warm)) == KL_ERR_HANDLE);
    kl_sample_options o = {.penalty = 2, .recent = kl_zeros(dev, KL_I32, DIMS(3, 2))};
    FAILS(kl_check(kl_sample(x, seed, &o)), KL_ERR_SHAPE, "sample: recent [3,2] has other rows than the logits [2,3]");
    o.recent = kl_zeros(dev, KL_F32, DIMS(2, 2));
    CHECK(kl_check(kl_sample(x, seed, &o)) == KL_ERR_TYPE);
    CHECK(kl_item_i64(kl_sum_all(kl_sample(x, seed, NULL))) == 0);
}

static void all(kl_device d)
{
    dev = d;
    for (int fuse = 0; fuse < 2; fuse++) {
        OK(kl_set_option("fuse", fuse));
        OK(kl_scope_begin());
        differs = compared = close_calls = 0;
        against_reference();
        frequencies();
        frozen();
        special();
        refused();
        OK(kl_scope_end());
    }
}

int main(void) { return on_devices(all); }
