/* Gradients where values are NaN or infinite: of all that chooses the largest or smallest element a NaN is chosen and
 * gets the gradient; padding is never chosen; hidden keys and values of attention change no gradient of a row, in each
 * way in which it is computed, of second order where that does not store the scores. */
#include "tests/support/api_check.h"

static kl_device dev;

/* ---- what chooses an element ---- */

static kl_tensor whole(kl_tensor (*f)(const kl_site *, kl_tensor, int, const int *, bool), kl_tensor x)
{
    return f(KL_HERE, x, 0, NULL, false);
}

/* The gradient of y's sum in x. */
#define GRADIENT(y, x, ...) NEAR_LIST(kl_grad(kl_sum_all(y), x), 0, __VA_ARGS__)

static void choices(void)
{
    const int64_t four[] = {4}, two[] = {2};
    kl_scope_begin();
    kl_tensor x = kl_input(dev, KL_F32, 3, (int64_t[]){1, 1, 4}, (float[]){1, NAN, 3, 2}), places;
    kl_requires_grad(x);
    GRADIENT(whole(kl_max_at, x), x, 0, 1, 0, 0);
    GRADIENT(whole(kl_min_at, x), x, 0, 1, 0, 0);
    GRADIENT(kl_max_pool(x, 1, four, NULL, NULL, NULL, NULL), x, 0, 1, 0, 0);
    GRADIENT(kl_min_pool(x, 1, four, NULL, NULL, NULL, NULL), x, 0, 1, 0, 0);
    GRADIENT(kl_max_pool(x, 1, two, NULL, NULL, NULL, NULL), x, 0, 1, 1, 0);
    GRADIENT(kl_max_pool_indices(x, 1, four, NULL, NULL, NULL, NULL, &places), x, 0, 1, 0, 0);
    GRADIENT(kl_adaptive_max_pool(x, 1, (int64_t[]){1}), x, 0, 1, 0, 0);
    GRADIENT(kl_cummax(x, 2, false), x, 1, 3, 0, 0);
    GRADIENT(kl_cummax_indices(x, 2, false, &places), x, 1, 3, 0, 0);
    GRADIENT(kl_narrow(kl_sort(x, 2, false), 2, 3, 1), x, 0, 1, 0, 0);
    GRADIENT(kl_p_norm(x, INFINITY, 0, NULL, false), x, 0, 1, 0, 0);
    kl_tensor both = kl_input(dev, KL_F32, 1, four, (float[]){NAN, 5, NAN, 2});
    kl_requires_grad(both);
    GRADIENT(whole(kl_max_at, both), both, .5, 0, .5, 0);
    kl_tensor ties = kl_input(dev, KL_F32, 1, four, (float[]){3, 5, 5, INFINITY});
    kl_requires_grad(ties);
    GRADIENT(kl_max(kl_narrow(ties, 0, 0, 3), 0, NULL, false), ties, 0, .5, .5, 0);
    GRADIENT(whole(kl_max_at, ties), ties, 0, 0, 0, 1);
    kl_tensor a = kl_input(dev, KL_F32, 1, (int64_t[]){2}, (float[]){1, NAN}), rows[2];
    rows[0] = kl_input(dev, KL_I32, 1, (int64_t[]){3}, (int32_t[]){0, 0, 1});
    rows[1] = kl_input(dev, KL_F32, 1, (int64_t[]){3}, (float[]){NAN, 7, 4});
    kl_requires_grad(a);
    kl_requires_grad(rows[1]);
    GRADIENT(kl_index_max(a, 0, rows[0], rows[1]), a, 0, 1);
    GRADIENT(kl_index_max(a, 0, rows[0], rows[1]), rows[1], 1, 0, 0);
    GRADIENT(kl_index_min(a, 0, rows[0], rows[1]), rows[1], 1, 0, 0);
    kl_scope_end();
}

/* ---- places of pools ---- */

enum { MAX_WINDOWS = 64 };

static bool places_are(kl_tensor places, int n, const int64_t *want)
{
    int64_t v[MAX_WINDOWS];
    bool ok = n <= MAX_WINDOWS && kl_numel(places) == n && kl_read(places, v, (size_t)n * sizeof *v) == KL_OK;
    for (int i = 0; ok && i < n; i++)
        if (v[i] != want[i])
            ok = (printf("  place %d is %lld, not %lld\n", i, (long long)v[i], (long long)want[i]), false);
    return ok;
}

/* Places of all windows by a search, for every dtype, with the lowest number in the operand. */
static void places_by_search(int64_t H, int64_t W, const int64_t *size, const int64_t *stride, const int64_t *low,
                             const int64_t *high, const int64_t *dilation, kl_dtype d, int seed)
{
    double v[64], lowest = d == KL_U8 ? 0 : d == KL_I8 ? -128 : d == KL_I32 ? INT32_MIN : -INFINITY;
    int64_t in[2] = {H, W}, out[2], want[MAX_WINDOWS], n = 0;
    for (int i = 0; i < H * W; i++)
        v[i] = (i * 7 + seed) % 3 ? lowest : (i * 5 + seed) % 4;
    for (int i = 0; i < 2; i++)
        out[i] = (in[i] + low[i] + high[i] - (size[i] - 1) * dilation[i] - 1) / stride[i] + 1;
    for (int64_t o = 0; o < out[0] * out[1]; o++) {
        int64_t at = -1;
        for (int64_t k = 0; k < size[0] * size[1]; k++) {
            int64_t y = o / out[1] * stride[0] + k / size[1] * dilation[0] - low[0];
            int64_t x = o % out[1] * stride[1] + k % size[1] * dilation[1] - low[1];
            if (y >= 0 && y < H && x >= 0 && x < W && (at < 0 || v[y * W + x] > v[at]))
                at = y * W + x;
        }
        if (at < 0) /* a window of padding alone: any place */
            return;
        want[n++] = at;
    }
    kl_scope_begin();
    kl_tensor a = kl_cast(kl_input(dev, KL_F64, 2, in, v), d), places;
    kl_max_pool_indices(a, 2, size, stride, low, high, dilation, &places);
    if (!CHECK(places_are(places, (int)n, want)))
        printf("  %s, size %d,%d stride %d,%d low %d,%d high %d,%d dilation %d,%d\n", kl_dtype_name(d), (int)size[0],
               (int)size[1], (int)stride[0], (int)stride[1], (int)low[0], (int)low[1], (int)high[0], (int)high[1],
               (int)dilation[0], (int)dilation[1]);
    kl_scope_end();
}

static void places(void)
{
    static const kl_dtype dtypes[] = {KL_U8, KL_I8, KL_I32, KL_F32};
    for (int64_t s = 0; s < 96; s++) {
        int64_t size[2] = {1 + s % 3, 1 + s / 3 % 2}, stride[2] = {1 + s % 2, 1 + s / 2 % 3},
                low[2] = {s / 4 % 2, s / 3 % 2}, high[2] = {s / 5 % 3, s / 7 % 2},
                dilation[2] = {1 + s / 6 % 2, 1 + s / 8 % 2};
        places_by_search(5, 6, size, stride, low, high, dilation, dtypes[s % 4], (int)s);
    }
    /* the value is of an element too, so that its gradient is not lost in the padding */
    kl_scope_begin();
    kl_tensor x = kl_input(dev, KL_F32, 1, (int64_t[]){2}, (float[]){-INFINITY, 4}), at;
    kl_requires_grad(x);
    kl_tensor y = kl_max_pool_indices(x, 1, (int64_t[]){2}, NULL, (int64_t[]){1}, (int64_t[]){1}, NULL, &at);
    NEAR_LIST(kl_grad(kl_sum_all(y), x), 0, 1, 1);
    kl_scope_end();
}

/* ---- attention ---- */

enum { D = 4, MAX_COUNT = 300 };
struct attention { int64_t L, M; int mask; bool causal; }; /* mask 0: none, 1: bool, 2: bounds */

static kl_tensor mask_of(const struct attention *p, int64_t hidden)
{
    bool unmasked[MAX_COUNT];
    int32_t bounds[2] = {0, (int32_t)hidden};
    for (int64_t j = 0; j < p->M; j++)
        unmasked[j] = j < hidden;
    return p->mask == 1 ? kl_input(dev, KL_BOOL, 2, (int64_t[]){1, p->M}, unmasked)
           : p->mask ? kl_input(dev, KL_I32, 2, (int64_t[]){1, 2}, bounds) : kl_none;
}

/* Gradients in q of the first `rows` rows, of first to third order, with `bad` in keys and values from `hidden` on.
 * through: of higher order, the gradients before it are those in 0: q, 1: k, 2: v. */
static double *query_gradient(const struct attention *p, int64_t rows, int64_t hidden, double bad, bool values,
                              int order, int through)
{
    static float q[MAX_COUNT * D], k[MAX_COUNT * D], v[MAX_COUNT * D];
    for (int64_t i = 0; i < MAX_COUNT * D; i++) {
        q[i] = sinf((float)i * 0.7f);
        k[i] = i / D >= hidden ? (float)bad : cosf((float)i * 1.3f);
        v[i] = i / D >= hidden && values ? (float)bad : sinf((float)i * 2.1f);
    }
    kl_tensor Q = kl_input(dev, KL_F32, DIMS(p->L, D), q), K = kl_input(dev, KL_F32, DIMS(p->M, D), k),
              V = kl_input(dev, KL_F32, DIMS(p->M, D), v);
    kl_requires_grad(Q), kl_requires_grad(K), kl_requires_grad(V);
    kl_tensor y = kl_attention(Q, K, V, mask_of(p, hidden), p->causal);
    kl_tensor g = kl_grad(kl_sum_all(kl_square(kl_narrow(y, 0, 0, rows))), Q);
    for (int i = 1; i < order; i++) {
        int64_t finite = through ? hidden : rows;
        if (i == 1 && through)
            g = kl_grad(kl_sum_all(kl_square(kl_narrow(y, 0, 0, rows))), through == 1 ? K : V);
        g = kl_grad(kl_sum_all(kl_square(kl_narrow(g, 0, 0, i == 1 ? finite : rows))), Q);
    }
    return values_of(kl_narrow(g, 0, 0, rows));
}

static void hidden_keys_case(const struct attention *p, double bad, bool values, int order, int through)
{
    /* a causal row attends to no later key: the last keys are hidden from all rows but the last ones */
    int64_t hidden = p->M - 2, rows = p->causal && !p->mask ? p->L - 2 : p->L;
    if (through && rows < p->L)
        return; /* the last rows attend to such a key: gradients in the other keys are NaN */
    kl_scope_begin();
    double *want = query_gradient(p, rows, hidden, 0, true, order, through);
    double *got = query_gradient(p, rows, hidden, bad, values, order, through);
    bool same = want && got;
    for (int64_t i = 0; same && i < rows * D; i++)
        same = isfinite(got[i]) && fabs(got[i] - want[i]) <= 1e-4 * (1 + fabs(want[i]));
    if (!CHECK(same))
        printf("  L %d, mask %d, causal %d, %g in hidden keys%s, order %d through %c\n", (int)p->L, p->mask, p->causal,
               bad, values ? " and values" : "", order, "qkv"[through]);
    free(want);
    free(got);
    kl_scope_end();
}

static void hidden_keys(void)
{
    static const struct attention cases[] = {{5, 7, 1, false}, {5, 7, 2, false}, {5, 7, 0, true}, {5, 7, 1, true},
                                             {300, 300, 1, false}, {300, 300, 2, false}, {300, 300, 0, true}};
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int b = 0; b < 6; b++)
            for (int n = 0; n < (cases[c].L > 100 ? 4 : 7); n++)
                hidden_keys_case(&cases[c], bad[b % 3], b >= 3, n ? 2 + (n - 1) / 3 : 1, n ? (n - 1) % 3 : 0);
}

/* A key that is unmasked counts: its NaN is in the gradient of each row that attends to it. */
static void seen_keys(void)
{
    struct attention p = {5, 7, 0, true};
    kl_scope_begin();
    double *got = query_gradient(&p, 5, 5, NAN, false, 1, 0); /* rows 3 and 4 see keys 5 and 6 */
    bool ok = got != NULL;
    for (int i = 0; ok && i < 5 * D; i++)
        ok = isnan(got[i]) == (i / D >= 3);
    CHECK(ok);
    free(got);
    kl_scope_end();
}

static void on_device(kl_device d)
{
    dev = d;
    for (int fuse = 0; fuse < 2; fuse++) {
        OK(kl_set_option("fuse", fuse));
        choices();
        places();
        hidden_keys();
        seen_keys();
    }
}

int main(void) { return on_devices(on_device); }
