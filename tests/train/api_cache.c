/* Caches of keys and values: rows at different positions against plain C in double, with windows, capped scores and
 * grouped heads, in each type; what a step does not store; rows in files, also damaged ones; errors. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/api_numbers.h"
#include <kiln/train.h>
#include <unistd.h>

enum { ROWS = 3, HEADS = 4, GROUPS = 2, LENGTH = 11, DEPTH = 32, ROOM = 16, KEYS = ROWS * GROUPS * ROOM * DEPTH };

struct setting { const char *name; kl_dtype dtype; bool q8_0; int64_t window; double cap; };

/* The keys and values that a cache has, as the numbers they stand for. */
static double stored[2][ROWS][GROUPS][ROOM][DEPTH];

static void read_stored(const kl_nn_cache *c)
{
    for (int v = 0; v < 2; v++) {
        double *x = values_of((v ? c->v : c->k)[0]);
        double *s = c->is.q8_0 ? values_of((v ? c->v_scale : c->k_scale)[0]) : NULL;
        for (int i = 0; x && i < KEYS; i++)
            (&stored[v][0][0][0][0])[i] = x[i] * (s ? s[i / 32] : 1);
        CHECK(x && (s || !c->is.q8_0));
        free(x), free(s);
    }
}

static double element(int what, int row, int head, int position, int d)
{
    return noise(what * 7919 + row * 1811 + head * 523 + position * 67 + d);
}

/* Head h of the token at a position of a row, of what is stored. */
static void attend(double *out, int row, int h, int at, const struct setting *s)
{
    int g = h / (HEADS / GROUPS), first = s->window && at + 1 > s->window ? at + 1 - (int)s->window : 0;
    double weight[LENGTH], max = -INFINITY, sum = 0;
    for (int j = first; j <= at; j++) {
        weight[j] = 0;
        for (int d = 0; d < DEPTH; d++)
            weight[j] += element(0, row, h, at, d) * stored[0][row][g][j][d] / sqrt(DEPTH);
        weight[j] = s->cap > 0 ? s->cap * tanh(weight[j] / s->cap) : weight[j];
        max = fmax(max, weight[j]);
    }
    for (int j = first; j <= at; j++)
        sum += weight[j] = exp(weight[j] - max);
    for (int d = 0; d < DEPTH; d++) {
        out[d] = 0;
        for (int j = first; j <= at; j++)
            out[d] += weight[j] / sum * stored[1][row][g][j][d];
    }
}

/* Queries, keys or values of n tokens of some rows, from their used positions on; what does not count is far off. */
static kl_tensor tokens_of(int what, const kl_nn_cache *c, int nrows, const int32_t *which, const int32_t *counts,
                           int n)
{
    int heads = what ? GROUPS : HEADS, i = 0;
    double *v = malloc((size_t)(nrows * heads * n * DEPTH) * sizeof *v);
    for (int r = 0; r < nrows; r++)
        for (int h = 0; h < heads; h++)
            for (int t = 0; t < n; t++)
                for (int d = 0; d < DEPTH; d++)
                    v[i++] = t < counts[r] ? element(what, which[r], h, (int)c->at[which[r]] + t, d) : 1e3 + d;
    kl_tensor x = kl_input(dev, KL_F64, DIMS(nrows, heads, n, DEPTH), v);
    free(v);
    return c->dtype == KL_F64 ? x : kl_cast(x, KL_F32);
}

/* One step; its results against attend. */
static void step(kl_nn_cache *c, const struct setting *s, int nrows, const int32_t *which, const int32_t *counts, int n)
{
    kl_nn_causal_options options = {.window = s->window, .cap = s->cap};
    int64_t rows[ROWS], more[ROWS];
    double want[DEPTH], worst = 0;
    kl_trace_begin("rows");
    kl_tensor in = nrows < ROWS ? kl_input(dev, KL_I32, DIMS(nrows), which) : kl_none;
    OK(kl_nn_cache_select(c, in, kl_input(dev, KL_I32, DIMS(nrows), counts)));
    kl_tensor q = tokens_of(0, c, nrows, which, counts, n), k = tokens_of(1, c, nrows, which, counts, n);
    kl_tensor y = kl_keep(kl_nn_causal_attention(q, k, tokens_of(2, c, nrows, which, counts, n), c, 0, &options));
    OK(kl_nn_cache_advance(c, n));
    OK(kl_trace_end());
    double *got = values_of(y);
    read_stored(c);
    for (int r = 0; got && r < nrows; r++)
        for (int h = 0; h < HEADS; h++)
            for (int t = 0; t < counts[r]; t++) {
                attend(want, which[r], h, (int)c->at[which[r]] + t, s);
                for (int d = 0; d < DEPTH; d++)
                    worst = fmax(worst, fabs(got[((r * HEADS + h) * n + t) * DEPTH + d] - want[d]));
            }
    CHECK(got && worst < (c->dtype == KL_F64 ? 1e-12 : 2e-5));
    free(got);
    kl_release(y);
    for (int r = 0; r < nrows; r++)
        rows[r] = which[r], more[r] = counts[r];
    OK(kl_nn_cache_count(c, nrows, rows, more));
}

/* What is stored is what came in, rounded as the type does; used says how many. */
static void check_stored(const kl_nn_cache *c)
{
    double worst = 0, *used = values_of(c->used);
    for (int v = 0; v < 2; v++)
        for (int r = 0; r < ROWS; r++)
            for (int g = 0; g < GROUPS; g++)
                for (int p = 0; p < c->at[r]; p++)
                    for (int d = 0; d < DEPTH; d++)
                        worst = fmax(worst, fabs(stored[v][r][g][p][d] - element(1 + v, r, g, p, d)));
    CHECK(worst <= (c->is.q8_0 ? 1.9 / 127 * 0.51 : c->dtype == KL_F16 ? 5e-4 : c->dtype == KL_F32 ? 2e-7 : 0));
    for (int r = 0; r < ROWS && used; r++)
        CHECK(used[r] == (double)c->at[r]);
    CHECK(used);
    free(used);
}

static bool make(kl_nn_cache *c, const struct setting *s)
{
    kl_nn_cache_options options = {.q8_0 = s->q8_0};
    return OK(kl_nn_cache_init_with(c, dev, s->dtype, 1, ROWS, GROUPS, LENGTH, DEPTH, &options));
}

/* Rows that go on by different numbers of tokens, one by itself, one shortened, until all are full. */
static void rows_of(const struct setting *s, int n)
{
    static const int32_t all[ROWS] = {0, 1, 2};
    kl_nn_cache c;
    if (!make(&c, s))
        return;
    int64_t built = -1;
    for (int i = 0; i < 40 && c.at[0] + c.at[1] + c.at[2] < ROWS * LENGTH; i++) {
        int32_t counts[ROWS], alone = i % ROWS;
        for (int r = 0; r < ROWS; r++) {
            int left = (int)(LENGTH - c.at[r]), k = (i * 7 + r * 3) % (n + 1);
            counts[r] = k < left ? k : left;
        }
        built = i == 8 ? kl_counter("graphs_built") : built; /* that of all rows, and that of one */
        if (i % 4 == 3)
            step(&c, s, 1, &alone, &counts[alone], n);
        else
            step(&c, s, ROWS, all, counts, n);
        if (i == 5)
            OK(kl_nn_cache_truncate(&c, 1, c.at[1] / 2));
    }
    CHECK(n > 1 || built > 0);
    CHECK(built < 0 || kl_counter("graphs_built") == built);
    check_stored(&c);
    CHECK(c.at[0] == LENGTH && c.at[1] == LENGTH && c.at[2] == LENGTH);
    kl_nn_cache_deinit(&c);
}

/* ---- what a step leaves as it is ---- */

/* A step that stores one position of row 2 changes no other element, even of full rows and beside infinities. */
static void untouched(void)
{
    static const struct setting plain = {"f64", KL_F64, false, 0, 0};
    static const int32_t all[ROWS] = {0, 1, 2}, fill[ROWS] = {LENGTH, 4, 0}, one[ROWS] = {0, 0, 1};
    static double before[2][ROWS][GROUPS][ROOM][DEPTH];
    kl_nn_cache c;
    if (!make(&c, &plain))
        return;
    step(&c, &plain, ROWS, all, fill, LENGTH);
    memcpy(before, stored, sizeof before);
    step(&c, &plain, ROWS, all, one, 4);
    for (int v = 0; v < 2; v++)
        for (int r = 0; r < ROWS; r++)
            for (int g = 0; g < GROUPS; g++) {
                int used = r == 2;
                CHECK(!memcmp(before[v][r][g][used], stored[v][r][g][used],
                              (size_t)(LENGTH - used) * sizeof *stored[v][r][g]));
            }
    check_stored(&c);
    /* a frozen step beyond the length stores nothing, and the count stays */
    kl_trace_begin("frozen");
    kl_tensor x[3];
    for (int i = 0; i < 3; i++)
        x[i] = kl_full(dev, KL_F64, DIMS(ROWS, i ? GROUPS : HEADS, 1, DEPTH), 5);
    OK(kl_nn_cache_select(&c, kl_none, kl_full(dev, KL_I32, DIMS(ROWS), 1)));
    kl_keep(kl_nn_causal_attention(x[0], x[1], x[2], &c, 0, NULL));
    OK(kl_nn_cache_advance(&c, 1));
    kl_step *frozen = kl_trace_end_step(0, NULL);
    for (int i = 0; frozen && i < LENGTH + 2; i++) {
        kl_tensor y;
        OK(kl_step_run(frozen, 0, NULL, 0, NULL, 1, &y));
        kl_release(y);
    }
    read_stored(&c);
    double *used = values_of(c.used);
    CHECK(used && used[0] == LENGTH && used[1] == LENGTH && used[2] == LENGTH);
    CHECK(!memcmp(before[0][0], stored[0][0], LENGTH * sizeof *stored[0][0][0]) && stored[0][2][1][LENGTH - 1][3] == 5);
    free(used);
    kl_step_free(frozen);
    kl_nn_cache_deinit(&c);
}

/* ---- files ---- */

static char path[] = "/tmp/kiln-cache-XXXXXX";

static size_t read_file(uint8_t *to, size_t room)
{
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(to, 1, room, f) : 0;
    if (f)
        fclose(f);
    return n;
}
static void write_file(const uint8_t *from, size_t n)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(from, 1, n, f) == n);
    if (f)
        fclose(f);
}

static const int32_t words[] = {5, 3, 9, 2, 7, 1, 8};
enum { WORDS = sizeof words / sizeof *words };

/* The file with each of its bytes changed, and cut off at some lengths: refused, and the cache is as it was. */
static void damaged(kl_nn_cache *c)
{
    static uint8_t good[1 << 16], bad[1 << 16];
    static double before[2][ROWS][GROUPS][ROOM][DEPTH];
    size_t n = read_file(good, sizeof good), step_by = n / 997 + 1;
    int64_t at = c->at[1];
    read_stored(c);
    memcpy(before, stored, sizeof before);
    CHECK(n > 1000 && n < sizeof good);
    int taken = 0;
    for (size_t i = 0; i < n; i += i < 1200 ? 1 : step_by) {
        memcpy(bad, good, n);
        bad[i] ^= 1;
        write_file(bad, n);
        bool refused = kl_nn_cache_load(c, 1, path, 77, 0, NULL, NULL) == KL_ERR_IO && strstr(kl_last_error(), path);
        taken += !refused;
        if (!refused)
            printf("  byte %zu of %zu: %s\n", i, n, kl_last_error());
    }
    for (size_t i = 0; i < n; i += step_by * 7) {
        write_file(good, i);
        taken += kl_nn_cache_load(c, 1, path, 77, 0, NULL, NULL) != KL_ERR_IO;
    }
    CHECK(!taken);
    read_stored(c);
    CHECK(!memcmp(before, stored, sizeof before) && c->at[1] == at);
    write_file(good, n);
}

/* A row goes to a file and from there to another row of a longer cache, which goes on as the first would. */
static void files(const struct setting *s)
{
    static const int32_t all[ROWS] = {0, 1, 2}, some[ROWS] = {6, 2, 0}, more[ROWS] = {0, 1, 2};
    kl_nn_cache c, other, short_one;
    int32_t got[WORDS] = {0};
    int64_t n = -1;
    kl_nn_cache_options options = {.q8_0 = s->q8_0};
    if (!make(&c, s))
        return;
    step(&c, s, ROWS, all, some, 6);
    OK(kl_nn_cache_save(&c, 0, path, 77, WORDS, words));
    damaged(&c);
    OK(kl_nn_cache_load(&c, 0, path, 77, WORDS, got, &n));
    CHECK(n == WORDS && !memcmp(got, words, sizeof got) && c.at[0] == 6 && c.at[1] == 2);
    step(&c, s, ROWS, all, more, 2);
    check_stored(&c);
    OK(kl_nn_cache_truncate(&c, 0, 0));
    OK(kl_nn_cache_load(&c, 0, path, 77, 3, got, &n));
    step(&c, s, ROWS, all, (int32_t[]){2, 0, 1}, 2);
    check_stored(&c);
    FAILS(kl_nn_cache_load(&c, 0, path, 78, 0, NULL, NULL), KL_ERR_IO, "field \"model\": 000000000000004d, not");
    if (OK(kl_nn_cache_init_with(&other, dev, s->dtype, 1, 1, GROUPS + 1, LENGTH, DEPTH, &options)))
        FAILS(kl_nn_cache_load(&other, 0, path, 77, 0, NULL, NULL), KL_ERR_IO, "field \"kv_heads\": 2, not 3");
    kl_nn_cache_deinit(&other);
    if (OK(kl_nn_cache_init(&other, dev, KL_BF16, 1, 1, GROUPS, LENGTH, DEPTH)))
        FAILS(kl_nn_cache_load(&other, 0, path, 77, 0, NULL, NULL), KL_ERR_IO, "field \"type\": ");
    kl_nn_cache_deinit(&other);
    if (OK(kl_nn_cache_init_with(&short_one, dev, s->dtype, 1, 1, GROUPS, 5, DEPTH, &options)))
        FAILS(kl_nn_cache_load(&short_one, 0, path, 77, 0, NULL, NULL), KL_ERR_ARGUMENT, "6 positions, the cache's");
    kl_nn_cache_deinit(&short_one);
    OK(kl_nn_cache_truncate(&c, 2, 0)); /* an empty row, without tokens */
    OK(kl_nn_cache_save(&c, 2, path, 77, 0, NULL));
    OK(kl_nn_cache_load(&c, 1, path, 77, 0, NULL, &n));
    CHECK(!n && !c.at[1]);
    kl_nn_cache_deinit(&c);
}

/* ---- errors ---- */

static void errors(void)
{
    kl_nn_cache c;
    kl_tensor x = kl_zeros(dev, KL_F32, DIMS(2, 2, 1, 8)), y = kl_zeros(dev, KL_F32, DIMS(2, 3, 1, 8));
    FAILS(kl_nn_cache_init_with(&c, dev, KL_F32, 1, 1, 1, 4, 48, &(kl_nn_cache_options){.q8_0 = true}), KL_ERR_ARGUMENT,
          "blocks of 32, heads have 48");
    FAILS(kl_nn_cache_init(&c, dev, KL_F32, 1, 1 << 20, 1 << 10, 4, 8), KL_ERR_ARGUMENT, "more than 2^31");
    if (!OK(kl_nn_cache_init(&c, dev, KL_F32, 2, 2, 2, 4, 8)))
        return;
    FAILS(kl_nn_cache_select(&c, kl_none, kl_none), KL_ERR_TRACE, "no trace");
    FAILS(kl_nn_cache_truncate(&c, 2, 0), KL_ERR_ARGUMENT, "row 2: the cache has rows 0 to 1");
    FAILS(kl_nn_cache_count(&c, 2, NULL, (int64_t[]){2, 5}), KL_ERR_ARGUMENT, "row 1 of the cache: 5 tokens at 0 of 4");
    FAILS(kl_nn_cache_count(&c, 2, (int64_t[]){1, 1}, (int64_t[]){2, 1}), KL_ERR_ARGUMENT, "row 1 is there twice");
    CHECK(!c.at[0] && !c.at[1]);
    OK(kl_nn_cache_count(&c, 1, (int64_t[]){1}, (int64_t[]){3}));
    FAILS(kl_nn_cache_truncate(&c, 1, 4), KL_ERR_ARGUMENT, "row 1 has 3 positions, not 4");
    kl_tensor z = kl_nn_causal_attention(x, x, x, &c, 0, NULL);
    FAILS(kl_check(z), KL_ERR_TRACE, "a cache outside of a trace");
    kl_release(z);
    const struct { kl_tensor q, k; int layer; kl_status code; const char *says; } calls[] = {
        {x, x, 2, KL_ERR_ARGUMENT, "layer 2 of a cache of 2"}, {x, y, 0, KL_ERR_SHAPE, "q [2,2,1,8] beside k [2,3,1"},
        {y, y, 0, KL_ERR_SHAPE, "the cache has other heads"}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        kl_trace_begin("refused");
        kl_nn_causal_attention(calls[i].q, calls[i].k, calls[i].k, &c, calls[i].layer, NULL);
        CHECK(kl_trace_end() == calls[i].code && strstr(kl_last_error(), calls[i].says));
    }
    kl_trace_begin("full");
    FAILS(kl_nn_cache_advance(&c, 2), KL_ERR_ARGUMENT, "row 1 of the cache: 2 tokens at 3 of 4");
    CHECK(kl_trace_end() == KL_ERR_ARGUMENT);
    kl_trace_begin("shapes");
    FAILS(kl_nn_cache_select(&c, kl_none, kl_zeros(dev, KL_I32, DIMS(3))), KL_ERR_SHAPE, "of which the cache has 2");
    CHECK(kl_trace_end() == KL_ERR_SHAPE);
    OK(kl_nn_cache_reset(&c));
    CHECK(!c.at[1]);
    kl_nn_cache_deinit(&c);
    kl_release(x), kl_release(y);
}

/* The window of a module: with a cache, without one, and by a mask of the user's. */
static void windows(void)
{
    kl_params *p = kl_params_new(dev, KL_F64, 3);
    kl_nn_attention m;
    kl_nn_attention_options o = {.width = 16, .heads = 4, .kv_heads = 2, .causal = true, .rotary_base = 50,
                                 .window = 3};
    double v[2 * 7 * 16];
    int32_t mask[7][2];
    kl_nn_cache c;
    FAILS(kl_nn_attention_init(&m, p, "b", &(kl_nn_attention_options){.width = 8, .heads = 2, .window = 2}),
          KL_ERR_ARGUMENT, "of causal attention");
    OK(kl_nn_attention_init(&m, p, "a", &o));
    for (int i = 0; i < 7; i++)
        mask[i][0] = i > 2 ? i - 2 : 0, mask[i][1] = i + 1;
    kl_tensor x = noisy(3, DIMS(2, 7, 16), v), y = kl_nn_attention_forward(&m, x, kl_none, NULL, 0);
    double *want = values_of(y);
    m.is.window = 0, m.is.causal = false;
    kl_tensor bounds = i32(DIMS(7, 2), &mask[0][0]), z = kl_nn_attention_forward(&m, x, bounds, NULL, 0);
    NEAR(z, 2 * 7 * 16, want, 1e-13);
    m.is = o;
    OK(kl_nn_cache_init(&c, dev, KL_F64, 1, 2, 2, 7, 4));
    for (int at = 0; at < 7; at++) {
        kl_trace_begin("window");
        kl_tensor out = kl_keep(kl_nn_attention_forward(&m, kl_narrow(x, 1, at, 1), kl_none, &c, 0));
        OK(kl_nn_cache_advance(&c, 1));
        OK(kl_trace_end());
        double *got = values_of(out);
        for (int r = 0; got && r < 2; r++)
            for (int i = 0; i < 16; i++)
                CHECK(fabs(got[r * 16 + i] - want[(r * 7 + at) * 16 + i]) < 1e-12);
        free(got);
        kl_release(out);
    }
    free(want);
    kl_release(x), kl_release(y), kl_release(bounds);
    kl_nn_cache_deinit(&c);
    kl_params_free(p);
}

/* ---- divisors of rotary angles ---- */

static void divisors(void)
{
    enum { WIDTH = 16 };
    float d[WIDTH / 2];
    double factor = 0;
    kl_nn_rotary_scaling s = {.factor = 4};
    OK(kl_nn_rotary_divisors(WIDTH, &s, d, &factor));
    for (int i = 0; i < WIDTH / 2; i++)
        CHECK(d[i] == 4 && factor == 1);
    s = (kl_nn_rotary_scaling){.kind = KL_NN_ROTARY_LLAMA3, .base = 500, .factor = 8, .original = 1000};
    OK(kl_nn_rotary_divisors(WIDTH, &s, d, NULL));
    for (int i = 0; i < WIDTH / 2; i++) { /* by wavelengths, as the model's authors write it */
        double wave = 6.283185307179586 * pow(500, 2.0 * i / WIDTH), smooth = (1000 / wave - 1) / 3;
        double want = wave < 250 ? 1 : wave > 1000 ? 8 : 1 / ((1 - smooth) / 8 + smooth);
        CHECK(fabs((double)d[i] - want) < 1e-6 * want);
    }
    /* 16 ln(512 / (32 2 pi)) / (2 ln 10000) is 0.8 and 16 ln(512 / (1 2 pi)) / (2 ln 10000) is 3.8: the ramp goes from
     * pair 0 to pair 4. */
    static const double want[WIDTH / 2] = {1, 1.28, 1.7777777777777777, 2.9090909090909092, 8, 8, 8, 8};
    s = (kl_nn_rotary_scaling){.kind = KL_NN_ROTARY_YARN, .factor = 8, .original = 512};
    OK(kl_nn_rotary_divisors(WIDTH, &s, d, &factor));
    for (int i = 0; i < WIDTH / 2; i++)
        CHECK(fabs((double)d[i] - want[i]) < 1e-6 * want[i]);
    CHECK(fabs(factor - 1.2079441541679836) < 1e-15);
    /* rotated elements are multiplied by the factor */
    double v[WIDTH];
    kl_tensor x = noisy(1, DIMS(1, WIDTH), v), at = i32(DIMS(1), (int32_t[]){0});
    kl_tensor y = kl_nn_rotary_with(x, at, &(kl_nn_rotary_options){.attention_factor = factor});
    for (int i = 0; i < WIDTH; i++)
        v[i] *= factor;
    NEAR(y, WIDTH, v, 1e-12);
    kl_release(x), kl_release(at);
    s.original = 0;
    FAILS(kl_nn_rotary_divisors(WIDTH, &s, d, NULL), KL_ERR_ARGUMENT, "original is 0");
    FAILS(kl_nn_rotary_divisors(7, &s, d, NULL), KL_ERR_ARGUMENT, "7 elements");
}

static void all(kl_device device)
{
    static const struct setting settings[] = {
        {"f64", KL_F64, false, 0, 0}, {"f64", KL_F64, false, 4, 0}, {"f64", KL_F64, false, 4, 3},
        {"f32", KL_F32, false, 0, 0}, {"f16", KL_F16, false, 0, 0}, {"f16", KL_F16, false, 3, 2},
        {"q8_0", KL_F32, true, 0, 0}, {"q8_0", KL_F32, true, 5, 4}};
    dev = device;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        for (int n = 1; n <= 5; n += 4)
            rows_of(&settings[i], n);
    untouched();
    files(&settings[3]);
    files(&settings[6]);
    windows();
    divisors();
    errors();
}

int main(void)
{
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    int status = on_devices(all);
    unlink(path);
    return status;
}
