/* Optimizers, clipping, accumulation, averages and quantized tensors of f16 and bf16: computed in f32 and rounded
 * once, also under autocast. */
#include "tests/support/api_check.h"
#include <kiln/train.h>

enum { N = 24, STEPS = 12 };

static kl_device dev;

static double value(int i, double size) { return size * sin(2.3 * i + 0.7); }

/* N numbers that the dtype has. */
static kl_tensor numbers(kl_dtype d, double size, int first)
{
    double x[N];
    for (int i = 0; i < N; i++)
        x[i] = value(i + first, size);
    return kl_cast(kl_input(dev, KL_F64, DIMS(4, 6), x), d);
}

static bool same(kl_tensor a, kl_tensor b)
{
    double x[N], y[N];
    bool ok = kl_read(kl_cast(a, KL_F64), x, sizeof x) == KL_OK && kl_read(kl_cast(b, KL_F64), y, sizeof y) == KL_OK;
    for (int i = 0; i < N; i++)
        ok &= isfinite(x[i]) && x[i] == y[i];
    return ok;
}

/* ---- optimizers ---- */

static kl_optimizer *make_sgd(kl_tensor p)
{
    return kl_sgd(1, &p, &(kl_sgd_options){.momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
}
static kl_optimizer *make_adam(kl_tensor p) { return kl_adam(1, &p, NULL); }
static kl_optimizer *make_adamw(kl_tensor p)
{
    return kl_adam(1, &p, &(kl_adam_options){.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1});
}
static kl_optimizer *make_lion(kl_tensor p) { return kl_lion(1, &p, NULL); }
static kl_optimizer *make_rmsprop(kl_tensor p)
{
    return kl_rmsprop(1, &p, &(kl_rmsprop_options){.alpha = 0.99, .eps = 1e-8, .momentum = 0.9, .centered = true});
}
static kl_optimizer *make_adafactor(kl_tensor p) { return kl_adafactor(1, &p, NULL); }

static const struct { const char *name; kl_optimizer *(*make)(kl_tensor p); } rules[] = {
    {"sgd", make_sgd}, {"adam", make_adam}, {"adamw", make_adamw}, {"lion", make_lion}, {"rmsprop", make_rmsprop},
    {"adafactor", make_adafactor},
};

/* A half parameter beside one of f32 that is put back to the half's value before each step: what the steps give is the
 * same, rounded.  size: of gradients; squares of 1e-4 are 0 in f16, those of 300 infinite. */
static void test_rule(unsigned rule, kl_dtype d, double size, bool autocast)
{
    kl_scope_begin();
    kl_tensor half = kl_keep(numbers(d, 1, 0)), wide = kl_keep(kl_cast(half, KL_F32));
    kl_optimizer *a = rules[rule].make(half), *b = rules[rule].make(wide);
    bool ok = CHECK(a && b);
    for (int t = 0; ok && t < STEPS; t++) {
        OK(kl_assign(wide, kl_cast(half, KL_F32)));
        OK(kl_trace_begin("step"));
        if (autocast)
            OK(kl_autocast_begin(d));
        kl_tensor g = numbers(d, size, t);
        kl_tensor gw = kl_cast(g, KL_F32);
        OK(kl_optimizer_step_gradients(a, &g, 0.05));
        OK(kl_optimizer_step_gradients(b, &gw, 0.05));
        if (autocast)
            OK(kl_autocast_end());
        OK(kl_trace_end());
        ok = CHECK(same(half, kl_cast(wide, d)));
    }
    if (!ok)
        printf("    %s of %s, gradients of %g%s\n", rules[rule].name, kl_dtype_name(d), size,
               autocast ? ", under autocast" : "");
    for (int i = 0; i < kl_optimizer_states(a); i++) {
        const char *name;
        kl_tensor state;
        OK(kl_optimizer_state(a, i, &name, &state));
        CHECK(kl_dtype_of(state) == KL_F32);
    }
    kl_optimizer_free(a);
    kl_optimizer_free(b);
    kl_release(half), kl_release(wide);
    kl_scope_end();
}

/* ---- between gradients and steps ---- */

/* A norm whose squares overflow f16; a mean and an average of numbers that f16 and bf16 cannot add. */
static void test_gradients(kl_dtype d, bool autocast)
{
    kl_tensor p = kl_keep(numbers(d, 1, 0));
    kl_accumulator *acc = kl_accumulator_new(1, &p);
    kl_ema *ema = kl_ema_new(1, &p, 0.999);
    CHECK(acc && ema);
    OK(kl_trace_begin("clip"));
    if (autocast)
        OK(kl_autocast_begin(d));
    kl_tensor g[2] = {numbers(d, 300, 3), numbers(d, 200, 5)}, wide[2] = {kl_cast(g[0], KL_F32), kl_cast(g[1], KL_F32)};
    kl_tensor norm = kl_keep(kl_clip_norm(2, g, 2)), norm_wide = kl_keep(kl_clip_norm(2, wide, 2));
    if (autocast)
        OK(kl_autocast_end());
    for (int i = 0; i < 2; i++)
        kl_keep(g[i]), wide[i] = kl_keep(kl_cast(wide[i], d));
    OK(kl_trace_end());
    CHECK(kl_dtype_of(g[0]) == d && same(g[0], wide[0]) && same(g[1], wide[1]));
    CHECK(kl_dtype_of(norm) == d && kl_item_f64(kl_cast(norm, KL_F64)) ==
              kl_item_f64(kl_cast(kl_cast(norm_wide, d), KL_F64)) && kl_item_f32(norm_wide) > 1000);
    enum { BATCHES = 300 };
    double sum[N] = {0}, got[N], average[N];
    OK(kl_read(kl_cast(p, KL_F64), average, sizeof average));
    for (int i = 0; i < BATCHES; i++) {
        OK(kl_trace_begin(i + 1 < BATCHES ? "add" : "take"));
        kl_tensor one = kl_add_scalar(numbers(d, 1, i % 5), 300);
        kl_tensor seen = kl_keep(kl_cast(one, KL_F64));
        if (i + 1 < BATCHES)
            OK(kl_accumulator_add(acc, &one));
        else
            OK(kl_accumulator_take(acc, &one));
        kl_keep(one);
        OK(kl_trace_end());
        OK(kl_read(seen, got, sizeof got));
        for (int k = 0; k < N; k++)
            sum[k] += got[k];
        if (i + 1 == BATCHES) {
            OK(kl_read(kl_cast(one, KL_F64), got, sizeof got));
            for (int k = 0; k < N; k++)
                CHECK(fabs(got[k] - sum[k] / BATCHES) <= (d == KL_F16 ? 0.126 : 1.01));
        }
        kl_release(one), kl_release(seen);
    }
    OK(kl_assign(p, kl_add_scalar(kl_mul_scalar(p, 0), 2)));
    for (int i = 0; i < 400; i++) {
        OK(kl_trace_begin("average"));
        OK(kl_ema_update(ema));
        OK(kl_trace_end());
        for (int k = 0; k < N; k++)
            average[k] += 0.001 * (2 - average[k]);
    }
    OK(kl_read(kl_cast(kl_ema_average(ema, 0), KL_F64), got, sizeof got));
    for (int k = 0; k < N; k++)
        CHECK(fabs(got[k] - average[k]) < 1e-4);
    OK(kl_trace_begin("swap"));
    OK(kl_ema_swap(ema));
    OK(kl_trace_end());
    CHECK(kl_dtype_of(p) == d && kl_item_f64(kl_cast(kl_mean(kl_ema_average(ema, 0), 0, NULL, false), KL_F64)) == 2);
    kl_accumulator_free(acc);
    kl_ema_free(ema);
    kl_release(p), kl_release(g[0]), kl_release(g[1]), kl_release(wide[0]), kl_release(wide[1]);
    kl_release(norm), kl_release(norm_wide);
}

/* A gradient of f32 goes with a half; one of another dtype is refused with its number. */
static void test_dtypes(kl_dtype d)
{
    kl_tensor p = kl_keep(numbers(d, 1, 0)), g[1] = {numbers(KL_F32, 1, 0)}, bad[1] = {numbers(KL_F64, 1, 0)};
    kl_optimizer *o = kl_adam(1, &p, NULL);
    OK(kl_trace_begin("f32"));
    OK(kl_optimizer_step_gradients(o, g, 0.1));
    OK(kl_trace_end());
    OK(kl_trace_begin("f64"));
    CHECK(kl_optimizer_step_gradients(o, bad, 0.1) == KL_ERR_TYPE);
    CHECK(strstr(kl_last_error(), "optimizer_step: gradient 0 is f64, its parameter "));
    kl_trace_abandon();
    kl_optimizer_free(o);
    kl_release(p), kl_release(g[0]), kl_release(bad[0]);
}

/* ---- quantized tensors ---- */

/* The product of two quantized tensors is that of the numbers they stand for, rounded once; the sums of integers are
 * beyond what f16 has. */
static void test_product(kl_dtype d, kl_qscheme a, kl_qscheme b, double size, bool autocast)
{
    enum { M = 3, K = 64, COLUMNS = 5 };
    double x[M * K], w[K * COLUMNS], got[M * COLUMNS];
    for (int i = 0; i < M * K; i++)
        x[i] = size * (0.6 + 0.4 * sin(1.3 * i));
    for (int i = 0; i < K * COLUMNS; i++)
        w[i] = 0.5 + 0.4 * cos(0.7 * i);
    kl_scope_begin();
    if (autocast)
        OK(kl_autocast_begin(d));
    kl_tensor qa = kl_to_quantized(kl_cast(kl_input(dev, KL_F64, DIMS(M, K), x), d), a, kl_none, kl_none);
    kl_tensor qb = kl_to_quantized(kl_cast(kl_input(dev, KL_F64, DIMS(K, COLUMNS), w), d), b, kl_none, kl_none);
    kl_tensor y = kl_matmul(qa, qb);
    if (autocast)
        OK(kl_autocast_end());
    /* what the integers and scales stand for, exactly */
    double da[M * K], db[K * COLUMNS];
    OK(kl_read(kl_cast(kl_dense(qa), KL_F64), da, sizeof da));
    OK(kl_read(kl_cast(kl_dense(qb), KL_F64), db, sizeof db));
    CHECK(kl_dtype_of(y) == d);
    OK(kl_read(kl_cast(y, KL_F64), got, sizeof got));
    double digits = d == KL_F16 ? 0x1p-11 : 0x1p-8, worst = 0;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < COLUMNS; j++) {
            double want = 0;
            for (int k = 0; k < K; k++)
                want += da[i * K + k] * db[k * COLUMNS + j];
            /* each number of da and db is rounded, the product's integers are not */
            double off = fabs(got[i * COLUMNS + j] - want) / (fabs(want) * 1.5 * digits);
            worst = off <= worst ? worst : off;
        }
    if (!CHECK(worst <= 1))
        printf("    product of %s, types %d and %d, block %d: %g times the bound\n", kl_dtype_name(d), (int)a.type,
               (int)b.type, (int)b.block, worst);
    kl_scope_end();
}

static void test_quantized(kl_dtype d, bool autocast)
{
    test_product(d, (kl_qscheme){.type = KL_Q_I8}, (kl_qscheme){.type = KL_Q_I8}, 900, autocast);
    test_product(d, (kl_qscheme){.type = KL_Q_U8}, (kl_qscheme){.type = KL_Q_I8, .per_axis = true, .axis = 1}, 900,
                 autocast);
    test_product(d, (kl_qscheme){.type = KL_Q_I8}, (kl_qscheme){.type = KL_Q_I8, .axis = 0, .block = 16}, 900,
                 autocast);
    /* a range that is wider than f16's largest number */
    float x[2] = {-60000, 60000}, got[2];
    kl_tensor q = kl_to_quantized(kl_cast(kl_input(dev, KL_F32, DIMS(2), x), d), (kl_qscheme){.type = KL_Q_U8}, kl_none,
                                  kl_none);
    OK(kl_read(kl_cast(kl_dense(q), KL_F32), got, sizeof got));
    CHECK(fabs(got[0] + 60000) < 600 && fabs(got[1] - 60000) < 600);
    /* a moving average of ranges */
    kl_observer o;
    OK(kl_observer_init(&o, dev, (kl_qscheme){.type = KL_Q_I8}, d, 1, (int64_t[]){2}));
    o.momentum = 0.999;
    double high = 1;
    for (int i = 0; i < 300; i++) {
        float range[2] = {-1, i ? 2 : 1};
        high += i ? 0.001 * (2 - high) : 0;
        OK(kl_trace_begin("observer_update"));
        OK(kl_observer_update(&o, kl_cast(kl_input(dev, KL_F32, DIMS(2), range), d)));
        OK(kl_trace_end());
    }
    CHECK(fabs(kl_item_f64(kl_cast(kl_sum_all(o.high), KL_F64)) - high) < 1e-4);
    CHECK(kl_check(kl_observer_quantize(&o, kl_cast(kl_input(dev, KL_F32, DIMS(2), x), d))) == KL_OK);
    kl_observer_deinit(&o);
}

static void test_all(kl_device device)
{
    static const kl_dtype half[] = {KL_F16, KL_BF16};
    dev = device;
    for (int h = 0; h < 2; h++)
        for (int autocast = 0; autocast < 2; autocast++) {
            for (unsigned i = 0; i < sizeof rules / sizeof *rules; i++) {
                test_rule(i, half[h], 1e-4, autocast);
                test_rule(i, half[h], 300, autocast);
            }
            test_gradients(half[h], autocast);
            test_quantized(half[h], autocast);
            test_dtypes(half[h]);
        }
}

int main(void)
{
    return on_devices(test_all);
}
