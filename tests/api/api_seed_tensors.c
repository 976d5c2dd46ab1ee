/* Seeds that are tensors: the same numbers as of a number, other ones in each round, run and element of a batch, seeds
 * from seeds, and drawing indices. */
#include "tests/support/api_check.h"

static kl_device dev;

static kl_tensor seed_of(uint64_t s) { return kl_random_seed(dev, s); }

/* Both have the same bytes; releases them. */
static bool same(kl_tensor a, kl_tensor b)
{
    int64_t n = kl_numel(a);
    double *x = values_of(a), *y = values_of(b);
    bool ok = x && y && n == kl_numel(b) && !memcmp(x, y, (size_t)n * sizeof *x);
    free(x);
    free(y);
    kl_release(a);
    kl_release(b);
    return ok;
}

static void like_numbers(void)
{
    uint64_t seeds[] = {0, 1, 12345678901234567890u, UINT64_MAX};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        kl_scope_begin();
        uint64_t s = seeds[i], got = 0;
        OK(kl_read(seed_of(s), &got, sizeof got));
        CHECK(got == s);
        CHECK(same(kl_random_bits(dev, KL_U32, DIMS(3, 5), s), kl_random_bits_seeded(seed_of(s), KL_U32, DIMS(3, 5))));
        CHECK(same(kl_rand(dev, KL_F32, DIMS(7), s), kl_rand_seeded(seed_of(s), KL_F32, DIMS(7))));
        CHECK(same(kl_rand(dev, KL_F64, DIMS(7), s), kl_rand_seeded(seed_of(s), KL_F64, DIMS(7))));
        CHECK(same(kl_randn(dev, KL_F32, DIMS(2, 9), s), kl_randn_seeded(seed_of(s), KL_F32, DIMS(2, 9))));
        kl_tensor x = kl_ones(dev, KL_F32, DIMS(64));
        CHECK(same(kl_dropout(x, 0.5, s, true), kl_dropout_seeded(x, 0.5, seed_of(s), true)));
        OK(kl_scope_end());
    }
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Of 5,000 seeds from two seeds in both ways none is twice, and half of their bits are set. */
static void seeds_from_seeds(void)
{
    enum { N = 1250 };
    static uint64_t v[4 * N];
    kl_scope_begin();
    for (int i = 0; i < 2; i++) {
        kl_tensor s = seed_of((uint64_t)i);
        OK(kl_read(kl_random_split(s, N), v + 2 * i * N, N * sizeof *v));
        OK(kl_read(kl_random_fold_in(s, kl_arange(dev, KL_I32, N)), v + (2 * i + 1) * N, N * sizeof *v));
    }
    uint64_t base = mix(0 ^ UINT64_C(0x73706c6974));
    CHECK(v[0] == mix(base) && v[7] == mix(base + 7 * UINT64_C(0x9e3779b97f4a7c15)));
    double ones = 0, alike = 0;
    for (int i = 0; i < 4 * N; i++) {
        ones += __builtin_popcountll(v[i]);
        alike += i ? __builtin_popcountll(v[i] ^ v[i - 1]) : 32;
    }
    CHECK(fabs(ones / (4.0 * N) - 32) < 0.3 && fabs(alike / (4.0 * N) - 32) < 0.3);
    qsort(v, 4 * N, sizeof *v, by_value);
    bool twice = false;
    for (int i = 1; i < 4 * N; i++)
        twice |= v[i] == v[i - 1];
    CHECK(!twice);
    /* one alone is the one in the list, of any integer dtype, negative ones too */
    CHECK(same(kl_random_fold_in(seed_of(5), kl_full(dev, KL_I32, 0, NULL, -3)),
               kl_random_fold_in(seed_of(5), kl_full(dev, KL_I64, 0, NULL, -3))));
    OK(kl_scope_end());
}

/* Numbers of neighbouring seeds, folded in or split, are not correlated, and uniform. */
static void independent(void)
{
    enum { S = 64, N = 2000 };
    static float v[S][N];
    kl_scope_begin();
    for (int i = 0; i < S; i++) {
        kl_tensor s = kl_random_fold_in(seed_of(9), kl_full(dev, KL_I32, 0, NULL, i));
        OK(kl_read(kl_rand_seeded(s, KL_F32, DIMS(N)), v[i], sizeof v[i]));
    }
    double worst = 0, mean = 0;
    for (int i = 0; i + 1 < S; i++) {
        double c = 0;
        for (int k = 0; k < N; k++) {
            c += ((double)v[i][k] - 0.5) * ((double)v[i + 1][k] - 0.5) * 12;
            mean += (double)v[i][k];
        }
        worst = fmax(worst, fabs(c) / sqrt(N));
    }
    mean /= (S - 1.0) * N;
    CHECK(worst < 4.5 && fabs(mean - 0.5) < 0.004);
    OK(kl_scope_end());
}

/* ---- steps, scans, batches ---- */

static void frozen_step(void)
{
    enum { N = 64 };
    float ones[N], y[4][N];
    for (int i = 0; i < N; i++)
        ones[i] = 1;
    OK(kl_trace_begin("frozen"));
    kl_tensor in[2] = {kl_input(dev, KL_F32, DIMS(N), ones), kl_input(dev, KL_U64, 0, NULL, &(uint64_t){0})};
    kl_keep(kl_dropout_seeded(in[0], 0.5, in[1], true));
    kl_step *s = kl_trace_end_step(2, in);
    if (!CHECK(s != NULL))
        return;
    int64_t built = kl_counter("graphs_built");
    for (int i = 0; i < 4; i++) {
        uint64_t seed = UINT64_C(0x8000000000000000) + (uint64_t)(i % 3);
        kl_tensor a[2] = {kl_input(dev, KL_F32, DIMS(N), ones), kl_input(dev, KL_U64, 0, NULL, &seed)}, out;
        OK(kl_step_run(s, 2, a, 0, NULL, 1, &out));
        OK(kl_read(out, y[i], sizeof y[i]));
        kl_release(a[0]), kl_release(a[1]), kl_release(out);
    }
    CHECK(memcmp(y[0], y[1], sizeof y[0]) && memcmp(y[1], y[2], sizeof y[0]) && !memcmp(y[0], y[3], sizeof y[0]));
    CHECK(kl_counter("graphs_built") == built);
    kl_step_free(s);
}

/* A state that each run of the step moves on: the caller passes no seed. */
static void seed_state(void)
{
    uint32_t y[3][4];
    kl_tensor state = kl_keep(seed_of(11));
    for (int i = 0; i < 3; i++) {
        OK(kl_trace_begin("state"));
        kl_tensor two = kl_random_split(state, 2);
        kl_tensor own = kl_reshape(kl_narrow(two, 0, 1, 1), 0, NULL);
        kl_tensor x = kl_keep(kl_random_bits_seeded(own, KL_U32, DIMS(4)));
        OK(kl_assign(state, kl_reshape(kl_narrow(two, 0, 0, 1), 0, NULL)));
        OK(kl_trace_end());
        OK(kl_read(x, y[i], sizeof y[i]));
        kl_release(x);
    }
    CHECK(memcmp(y[0], y[1], sizeof y[0]) && memcmp(y[1], y[2], sizeof y[0]));
    kl_release(state);
}

static kl_status round_of(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    kl_tensor seed = kl_random_fold_in(*(kl_tensor *)ctx, in[1]);
    out[0] = kl_add(in[0], kl_full(dev, KL_F32, 0, NULL, 0));
    out[1] = kl_dropout_seeded(in[0], 0.5, seed, true);
    return KL_OK;
}

/* The mask of each round is that of the round's seed, in the gradient too. */
static void in_a_scan(void)
{
    enum { N = 16, ROUNDS = 3 };
    kl_tensor seed = kl_keep(seed_of(21)), x = kl_keep(kl_ones(dev, KL_F32, DIMS(N))), out[2];
    kl_requires_grad(x);
    OK(kl_trace_begin("scan"));
    kl_tensor rounds = kl_arange(dev, KL_I32, ROUNDS);
    OK(kl_scan(round_of, &seed, ROUNDS, 1, &x, 1, &rounds, 1, false, out));
    kl_keep(out[1]);
    kl_tensor g = kl_keep(kl_grad(kl_sum_all(out[1]), x));
    OK(kl_trace_end());
    float y[ROUNDS][N], own[N], sum[N] = {0}, gradient[N];
    OK(kl_read(out[1], y, sizeof y));
    OK(kl_read(g, gradient, sizeof gradient));
    for (int r = 0; r < ROUNDS; r++) {
        kl_tensor s = kl_random_fold_in(seed, kl_full(dev, KL_I32, 0, NULL, r)), d = kl_dropout_seeded(x, 0.5, s, true);
        OK(kl_read(d, own, sizeof own));
        CHECK(!memcmp(own, y[r], sizeof own));
        for (int i = 0; i < N; i++)
            sum[i] += own[i];
        CHECK(!r || memcmp(y[r], y[r - 1], sizeof own));
        kl_release(s), kl_release(d);
    }
    CHECK(!memcmp(sum, gradient, sizeof sum));
    kl_release(seed), kl_release(x), kl_release(out[1]), kl_release(g);
}

/* A seed given as a number is the same in each run of a frozen step and in each round (nn.h, step.h, control.h). */
static void number_in_a_step(void)
{
    enum { N = 64 };
    float ones[N], y[3][N], r[3][N];
    for (int i = 0; i < N; i++)
        ones[i] = 1;
    OK(kl_trace_begin("frozen_number"));
    kl_tensor in = kl_input(dev, KL_F32, DIMS(N), ones);
    kl_keep(kl_dropout(in, 0.5, 7, true));
    kl_keep(kl_rand(dev, KL_F32, DIMS(N), 8));
    kl_step *s = kl_trace_end_step(1, &in);
    if (!CHECK(s != NULL))
        return;
    for (int i = 0; i < 3; i++) {
        kl_tensor a = kl_input(dev, KL_F32, DIMS(N), ones), out[2];
        OK(kl_step_run(s, 1, &a, 0, NULL, 2, out));
        OK(kl_read(out[0], y[i], sizeof y[i]));
        OK(kl_read(out[1], r[i], sizeof r[i]));
        kl_release(a), kl_release(out[0]), kl_release(out[1]);
    }
    CHECK(!memcmp(y[0], y[1], sizeof y[0]) && !memcmp(y[0], y[2], sizeof y[0]) && memcmp(y[0], ones, sizeof ones));
    CHECK(!memcmp(r[0], r[1], sizeof r[0]) && !memcmp(r[0], r[2], sizeof r[0]));
    kl_step_free(s);
}

static kl_status round_with_number(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_add_scalar(in[0], 0);
    out[1] = kl_dropout(in[0], 0.5, 3, true);
    return KL_OK;
}

static kl_status not_yet_zero(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_gt(in[1], kl_const(dev, KL_I32, 0));
    return KL_OK;
}

static kl_status drop_once_more(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_dropout(in[0], 0.5, 3, true);
    out[1] = kl_sub(in[1], kl_const(dev, KL_I32, 1));
    return KL_OK;
}

static void number_in_rounds(void)
{
    enum { N = 16, ROUNDS = 3 };
    kl_tensor x = kl_keep(kl_ones(dev, KL_F32, DIMS(N))), out[2], last[2];
    kl_tensor carried[2] = {x, kl_full(dev, KL_I32, 0, NULL, ROUNDS)};
    OK(kl_trace_begin("number_in_rounds"));
    OK(kl_scan(round_with_number, NULL, ROUNDS, 1, &x, 0, NULL, 1, false, out));
    OK(kl_while(not_yet_zero, drop_once_more, NULL, 2, carried, last));
    kl_keep(out[1]), kl_keep(last[0]);
    OK(kl_trace_end());
    float y[ROUNDS][N], all[N], once[N];
    OK(kl_read(out[1], y, sizeof y));
    OK(kl_read(last[0], all, sizeof all));
    kl_tensor d = kl_dropout(x, 0.5, 3, true);
    OK(kl_read(d, once, sizeof once));
    for (int r = 0; r < ROUNDS; r++)
        CHECK(!memcmp(y[r], once, sizeof once));
    for (int i = 0; i < N; i++)
        CHECK(all[i] == (once[i] ? 8 : 0)); /* one mask: what it leaves is doubled three times */
    kl_release(x), kl_release(carried[1]), kl_release(out[1]), kl_release(last[0]), kl_release(d);
}

static kl_status one_element(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_randn_seeded(in[0], KL_F32, DIMS(3, 4));
    return KL_OK;
}

static kl_status pairs(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_tensor two = kl_random_split(in[0], 2);
    (void)nin;
    return kl_vmap(one_element, ctx, 1, &two, NULL, nout, NULL, KL_RANDOM_ERROR, out);
}

static void in_a_vmap(void)
{
    enum { B = 5, N = 12 };
    float y[B][N], nested[B][2][N], own[N];
    static const kl_randomness all[] = {KL_RANDOM_ERROR, KL_RANDOM_SAME, KL_RANDOM_DIFFERENT};
    kl_tensor s = kl_keep(seed_of(31)), seeds = kl_keep(kl_random_split(s, B)), out, deep;
    OK(kl_vmap(pairs, NULL, 1, &seeds, NULL, 1, NULL, KL_RANDOM_ERROR, &deep));
    OK(kl_read(deep, nested, sizeof nested));
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        OK(kl_vmap(one_element, NULL, 1, &seeds, NULL, 1, NULL, all[k], &out));
        OK(kl_read(out, y, sizeof y));
        kl_release(out);
        for (int i = 0; i < B; i++) {
            kl_scope_begin();
            kl_tensor one = kl_reshape(kl_narrow(seeds, 0, i, 1), 0, NULL), two = kl_random_split(one, 2);
            OK(kl_read(kl_randn_seeded(one, KL_F32, DIMS(N)), own, sizeof own));
            CHECK(!memcmp(own, y[i], sizeof own));
            for (int j = 0; j < 2 && !k; j++) {
                kl_tensor inner = kl_reshape(kl_narrow(two, 0, j, 1), 0, NULL);
                OK(kl_read(kl_randn_seeded(inner, KL_F32, DIMS(N)), own, sizeof own));
                CHECK(!memcmp(own, nested[i][j], sizeof own));
            }
            OK(kl_scope_end());
        }
    }
    kl_release(deep), kl_release(seeds), kl_release(s);
}

/* ---- indices ---- */

static void categorical(kl_dtype dtype)
{
    enum { ROWS = 20000, N = 5 };
    static int32_t y[ROWS], again[ROWS];
    static const double p[N] = {0.1, 0, 0.25, 0.05, 0.6};
    double logits[N];
    int counts[N] = {0};
    for (int i = 0; i < N; i++)
        logits[i] = p[i] > 0 ? log(p[i]) + 3 : -INFINITY;
    kl_scope_begin();
    kl_tensor x = kl_cast(kl_input(dev, KL_F64, DIMS(N), logits), dtype), rows = kl_expand(x, DIMS(ROWS, N));
    kl_tensor a = kl_categorical(rows, -1, seed_of(41));
    CHECK(kl_rank(a) == 1 && kl_dtype_of(a) == KL_I32 && kl_numel(a) == ROWS);
    OK(kl_read(a, y, sizeof y));
    for (int i = 0; i < ROWS; i++)
        counts[y[i] >= 0 && y[i] < N ? y[i] : 1]++;
    double chi = 0;
    for (int i = 0; i < N; i++)
        chi += p[i] > 0 ? pow(counts[i] - p[i] * ROWS, 2) / (p[i] * ROWS) : 0;
    CHECK(counts[1] == 0 && chi < 16.3); /* 3 degrees of freedom: 1 in 1,000 */
    OK(kl_read(kl_categorical(rows, 1, seed_of(41)), again, sizeof again));
    CHECK(!memcmp(y, again, sizeof y));
    OK(kl_read(kl_categorical(rows, 1, seed_of(42)), again, sizeof again));
    CHECK(memcmp(y, again, sizeof y));
    kl_tensor columns = kl_categorical(kl_transpose(rows, 0, 1), 0, seed_of(43));
    CHECK(kl_rank(columns) == 1 && kl_numel(columns) == ROWS);
    OK(kl_scope_end());
}

static bool fails(kl_tensor h, kl_status code, const char *text)
{
    bool ok = kl_check(h) == code && strstr(kl_last_error(), text);
    if (!ok)
        printf("%s\n", kl_last_error());
    kl_clear_error();
    return ok;
}

static void mistakes(void)
{
    kl_scope_begin();
    kl_tensor x = kl_ones(dev, KL_F32, DIMS(3)), i = kl_arange(dev, KL_I32, 3), s = seed_of(1),
        v = kl_random_split(s, 3);
    CHECK(fails(kl_rand_seeded(i, KL_F32, DIMS(2)), KL_ERR_TYPE,
                "rand_seeded: random_bits: the seed must be u64, got i32"));
    CHECK(fails(kl_randn_seeded(v, KL_F32, DIMS(2)), KL_ERR_SHAPE, "the seed must be a scalar, got shape [3]"));
    CHECK(fails(kl_randn_seeded(s, KL_I32, DIMS(2)), KL_ERR_TYPE, "randn_seeded: makes f32 and f64, not i32"));
    CHECK(fails(kl_random_split(x, 2), KL_ERR_TYPE, "random_split: the seed must be u64, got f32"));
    CHECK(fails(kl_random_split(v, 2), KL_ERR_SHAPE, "random_split: the seed must be a scalar"));
    CHECK(fails(kl_random_split(s, 0), KL_ERR_SHAPE, "random_split: 0 seeds"));
    CHECK(fails(kl_random_fold_in(s, x), KL_ERR_TYPE, "random_fold_in: the data must be integers, got f32"));
    CHECK(fails(kl_categorical(i, 0, s), KL_ERR_TYPE, "categorical: "));
    CHECK(fails(kl_categorical(x, 1, s), KL_ERR_SHAPE, "axis 1 is out of range for shape [3]"));
    CHECK(fails(kl_categorical(x, 0, x), KL_ERR_TYPE, "categorical: "));
    CHECK(fails(kl_dropout_seeded(x, 2, s, true), KL_ERR_ARGUMENT, "dropout_seeded: probability 2"));
    CHECK(fails(kl_dropout_seeded(x, 0.5, kl_none, true), KL_ERR_HANDLE, "dropout_seeded: the seed is kl_none"));
    OK(kl_scope_end());
}

static void on_device(const char *name)
{
    dev = kl_device_named(name);
    device_now = name;
    if (!dev.id)
        return;
    like_numbers();
    seeds_from_seeds();
    independent();
    frozen_step();
    seed_state();
    in_a_scan();
    number_in_a_step();
    number_in_rounds();
    in_a_vmap();
    categorical(KL_F32);
    categorical(KL_F64);
    categorical(KL_F16);
    categorical(KL_BF16);
    mistakes();
}

int main(void)
{
    on_device("ref");
    on_device("cpu");
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
