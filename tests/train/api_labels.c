/* Labels outside of the classes mean one thing in all losses: KL_IGNORED_LABEL, or the label that an option names, is
 * left out, and any other gives NaN.  Values against loops, gradients against central differences, in all dtypes. */
#include "tests/support/api_numbers.h"
#include "tests/support/api_refused.h"

enum { N = 6, C = 4 };

/* ---- values: logits [6, 4] ---- */

/* Labels as they are in a dtype: the bits that it has of v. */
static int64_t label_in(kl_dtype d, int64_t v)
{
    return d == KL_I8 ? (int8_t)v : d == KL_U8 ? (uint8_t)v : d == KL_I16 ? (int16_t)v : d == KL_U16 ? (uint16_t)v
           : d == KL_I32 ? (int32_t)v : d == KL_U32 ? (uint32_t)v : v;
}

static kl_tensor labels_of(kl_dtype d, const int64_t *v)
{
    kl_tensor y = kl_input(dev, KL_I64, D(N), v), z = kl_cast(y, d);
    kl_release(y);
    return z;
}

/* each: the loss of each row, as the header says it; *sum, *count: of all.  `ignored`: the label that is left out. */
static void expect(kl_dtype d, bool softmax, const double *x, const int64_t *v, int64_t ignored, double *each,
                   double *sum, double *count)
{
    *sum = *count = 0;
    for (int i = 0; i < N; i++) {
        double total = 0;
        int64_t label = label_in(d, v[i]);
        bool is_big = d == KL_U64 && v[i] < 0, out = !is_big && label == ignored;
        for (int c = 0; c < C; c++)
            total += exp(x[C * i + c]);
        each[i] = out ? 0 : is_big || label < 0 || label >= C ? NAN
                  : -x[C * i + label] + (softmax ? log(total) : 0);
        *sum += each[i];
        *count += !out;
    }
}

static const int64_t rows[][N] = {
    {0, 1, 2, 3, 3, 0},                       {0, -100, 2, 3, -100, 1},       {-100, -100, -100, -100, -100, -100},
    {0, 1, -1, 3, 3, 0},                      {C, 1, 2, 3, 3, 0},             {0, 1, 2, -101, 3, -100},
    {0, INT64_MAX, 2, 3, 3, 0},               {INT64_MIN, 1, 2, 3, 3, -100},  {0, INT64_C(1) << 32, 2, 3, 1, 0},
    {(INT64_C(1) << 32) - 100, 1, 2, 3, 3, 0}, {156, 1, 2, 3, 3, 0},           {0, 1, 2, 65436, 3, 0},
    {0, 1, 2, INT64_C(1) << 31, 3, 0},        {0, 1, 2, -(INT64_C(1) << 40), 3, 0}, {2, 2, 2, 2, 2, 2},
};
enum { ROWS = sizeof rows / sizeof *rows };

static void values(kl_dtype d, const int64_t *v)
{
    double x[N * C], each[N], sum, count;
    kl_tensor a = noisy(7, D(N, C), x), y = labels_of(d, v);
    for (int softmax = 0; softmax < 2; softmax++) {
        expect(d, softmax, x, v, KL_IGNORED_LABEL, each, &sum, &count);
        NEAR_LIST(softmax ? kl_cross_entropy(a, y) : kl_nll_loss(a, y), 1e-13, sum / count);
        for (int k = 0; k < 6; k++) {
            kl_class_loss_options o = {.ignores = k > 2, .ignored = 2, .reduction = (kl_loss_reduction)(k % 3)};
            expect(d, softmax, x, v, k > 2 ? 2 : KL_IGNORED_LABEL, each, &sum, &count);
            double one = k % 3 == KL_LOSS_MEAN ? sum / count : sum;
            kl_tensor l = softmax ? kl_cross_entropy_with(a, y, &o) : kl_nll_loss_with(a, y, &o);
            NEAR(l, k % 3 == KL_LOSS_EACH ? N : 1, k % 3 == KL_LOSS_EACH ? each : &one, 1e-13);
        }
    }
    kl_release(a), kl_release(y);
}

/* Numbers that doubles do not have, as the ignored label: the next one is not it. */
static void ignored_exactly(kl_dtype d, int64_t ignored)
{
    double x[N * C], each[N], sum, count;
    int64_t v[N] = {0, ignored, 1, ignored == INT64_MAX ? ignored - 1 : ignored + 1, 2, 3};
    kl_tensor a = noisy(9, D(N, C), x), y = labels_of(d, v);
    kl_class_loss_options o = {.ignores = true, .ignored = ignored, .reduction = KL_LOSS_EACH};
    expect(d, true, x, v, ignored, each, &sum, &count);
    NEAR(kl_cross_entropy_with(a, y, &o), N, each, 1e-13);
    kl_release(a), kl_release(y);
}

/* Weights of classes and smoothing do not reach what is left out, nor an infinite logit there. */
static void left_out(void)
{
    double x[N * C], w[C] = {0.5, 2, 0.1, 1.25};
    for (int i = 0; i < N * C; i++)
        x[i] = i / C == 1 ? -INFINITY : noise(i);
    const int64_t v[N] = {3, -100, 0, 1, -100, 2};
    kl_tensor a = f64(D(N, C), x), y = labels_of(KL_I16, v), tw = f64(D(C), w), some[4];
    int counted[] = {0, 2, 3, 5};
    double rest[4 * C];
    for (int i = 0; i < 4 * C; i++)
        rest[i] = x[counted[i / C] * C + i % C];
    some[0] = f64(D(4, C), rest);
    some[1] = i32(D(4), (int32_t[]){3, 0, 1, 2});
    for (int k = 0; k < 4; k++) {
        kl_class_loss_options o = {.weight = k & 1 ? tw : kl_none, .smoothing = k & 2 ? 0.2 : 0};
        double *want = values_of(kl_cross_entropy_with(some[0], some[1], &o));
        CHECK(want && isfinite(*want));
        if (want)
            NEAR(kl_cross_entropy_with(a, y, &o), 1, want, 1e-13);
        free(want);
    }
    kl_release(a), kl_release(y), kl_release(tw), kl_release(some[0]), kl_release(some[1]);
}

/* ---- gradients ---- */

static kl_tensor l_mixed(void)
{
    return kl_cast(i32(D(N), (int32_t[]){1, KL_IGNORED_LABEL, 3, 0, KL_IGNORED_LABEL, 2}), KL_I8);
}
static kl_tensor g_entropy(kl_tensor x) { return kl_cross_entropy(x, l_mixed()); }
static kl_tensor g_likelihood(kl_tensor x) { return kl_nll_loss(kl_mul(x, x), l_mixed()); }
static kl_tensor g_each(kl_tensor x)
{
    return kl_cross_entropy_with(x, l_mixed(), &(kl_class_loss_options){.reduction = KL_LOSS_EACH, .smoothing = 0.1});
}
static kl_tensor g_weighted(kl_tensor x)
{
    double w[C] = {0.5, 2, 0.1, 1.25};
    return kl_nll_loss_with(x, l_mixed(), &(kl_class_loss_options){.weight = f64(D(C), w), .ignores = true,
                                                                   .ignored = KL_IGNORED_LABEL});
}
/* the gradient of a gradient */
static kl_tensor g_twice(kl_tensor x)
{
    kl_requires_grad(x);
    return kl_grad(kl_cross_entropy(x, l_mixed()), x);
}

/* Rows without a class have a gradient of 0, one with a mistake too, whatever the loss is. */
static void no_gradient(void)
{
    double x[N * C];
    kl_scope_begin();
    kl_tensor a = noisy(3, D(N, C), x), y = i32(D(N), (int32_t[]){1, -100, 7, 0, -1, INT32_MAX});
    kl_requires_grad(a);
    for (int softmax = 0; softmax < 2; softmax++) {
        kl_tensor loss = softmax ? kl_cross_entropy(a, y) : kl_nll_loss(a, y);
        double *g = values_of(kl_grad(loss, a));
        bool right = g != NULL;
        for (int i = 0; right && i < N * C; i++) {
            bool has = i / C == 0 || i / C == 3;
            right = has ? isfinite(g[i]) && (!softmax || g[i] != 0) : g[i] == 0;
        }
        CHECK(right);
        free(g);
    }
    OK(kl_scope_end());
}

static void test(kl_device d)
{
    static const kl_dtype dtypes[] = {KL_I8, KL_U8, KL_I16, KL_U16, KL_I32, KL_U32, KL_I64, KL_U64};
    dev = d;
    for (unsigned k = 0; k < sizeof dtypes / sizeof *dtypes; k++)
        for (int r = 0; r < ROWS; r++)
            values(dtypes[k], rows[r]);
    static const int64_t exactly[] = {INT64_MAX, INT64_MIN, (INT64_C(1) << 53) + 1, -(INT64_C(1) << 53) - 1,
                                      (INT64_C(1) << 62) + 1, 0, -1, 3, 4};
    for (unsigned k = 0; k < sizeof exactly / sizeof *exactly; k++)
        ignored_exactly(KL_I64, exactly[k]), ignored_exactly(KL_U64, exactly[k]);
    kl_scope_begin();
    left_out();
    no_gradient();
    GRADIENT(g_entropy, N, C);
    GRADIENT(g_likelihood, N, C);
    GRADIENT(g_each, N, C);
    GRADIENT(g_weighted, N, C);
    GRADIENT(g_twice, N, C);
    kl_tensor f = kl_zeros(dev, KL_F32, D(N, C)), y = kl_zeros(dev, KL_BOOL, D(N));
    REFUSED(kl_cross_entropy(f, y), KL_ERR_TYPE, "cross_entropy: ", "bool");
    REFUSED(kl_nll_loss_with(f, y, NULL), KL_ERR_TYPE, "nll_loss_with: ", "bool");
    kl_release(f), kl_release(y);
    OK(kl_scope_end());
}

int main(void)
{
    return on_devices(test);
}
