/* Rows of the dispatch system that are layers with wrappers: complex, quantized, sparse, named, nested.  Arguments: ids of
 * rows; none: all. */
#include "api_seeds.h"

#define D(...) DIMS(__VA_ARGS__)

static kl_tensor f32(int rank, const int64_t *dims, const float *v) { return kl_input(cpu, KL_F32, rank, dims, v); }
static kl_tensor noise(int rank, const int64_t *dims, uint64_t seed) { return kl_randn(cpu, KL_F32, rank, dims, seed); }

/* All elements are within the tolerance; both are released. */
static bool close(kl_tensor got, kl_tensor want, double tolerance)
{
    int64_t n = kl_numel(got);
    double *a = values_of(got), *b = kl_numel(want) == n ? values_of(want) : NULL;
    bool ok = a && b;
    for (int64_t i = 0; ok && i < n; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance * (1 + fabs(b[i])))) {
            printf("element %lld is %g, not %g\n", (long long)i, a[i], b[i]);
            ok = false;
        }
    free(a);
    free(b);
    kl_release(got);
    kl_release(want);
    return ok;
}

/* The keys that calls of one op hit, outermost first. */
static inline bool op_keys_are(const char *log, const char *op, const char *want)
{
    char got[400] = "", tag[64];
    snprintf(tag, sizeof tag, "op=[%s], key=[", op);
    for (const char *s = log; (s = strstr(s, tag)); s++) {
        const char *key = s + strlen(tag);
        size_t n = strcspn(key, "]"), at = strlen(got);
        snprintf(got + at, sizeof got - at, "%s%.*s", at ? "," : "", (int)n, key);
    }
    if (strcmp(got, want))
        printf("%s: log says %s, not %s\n%s", op, got, want, log);
    return !strcmp(got, want);
}

static bool refused(kl_tensor t, kl_status code, const char *why)
{
    bool ok = kl_check(t) == code && says(why);
    kl_release(t);
    kl_clear_error();
    return ok;
}

/* A stage of the open trace. */
static const char *stage(const char *name)
{
    static char text[1 << 16];
    const char *path = "stage_of_wrappers.kir";
    OK(kl_dump(NULL, name, path));
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    remove(path);
    text[n] = 0;
    return text;
}

/* d sum(f(x) * seed) / d x[i] by differences, for the float variable x. */
typedef kl_tensor function(kl_tensor x, void *ctx);
static bool slopes_are(function *f, void *ctx, kl_tensor x, kl_tensor gradient, double tolerance)
{
    int64_t n = kl_numel(x), dims[KL_MAX_RANK];
    int rank = kl_shape(x, dims);
    double *g = values_of(gradient), *v = values_of(x);
    float *moved = malloc((size_t)n * sizeof *moved);
    bool ok = g && v && moved && kl_numel(gradient) == n;
    for (int64_t i = 0; ok && i < n; i++) {
        double at[2];
        for (int side = 0; side < 2; side++) {
            OK(kl_scope_begin());
            for (int64_t k = 0; k < n; k++)
                moved[k] = (float)v[k] + (k == i ? (side ? 1 : -1) * 0x1p-7f : 0);
            at[side] = (double)kl_item_f32(f(f32(rank, dims, moved), ctx));
            OK(kl_scope_end());
        }
        double slope = (at[1] - at[0]) / 0x1p-6;
        ok = fabs(slope - g[i]) <= tolerance * (1 + fabs(slope));
        if (!ok)
            printf("element %lld: gradient %g, by differences %g\n", (long long)i, g[i], slope);
    }
    free(g);
    free(v);
    free(moved);
    return ok;
}

/* ---- complex ---- */

static kl_tensor z_of(uint64_t seed, int rank, const int64_t *dims)
{
    return kl_complex(noise(rank, dims, seed), noise(rank, dims, seed + 1));
}

/* |a b + e^a / b|^2 of complex a = x + i y with y = x / 2 - 1 */
static kl_tensor complex_loss(kl_tensor x, void *ctx)
{
    kl_tensor b = *(kl_tensor *)ctx;
    kl_tensor a = kl_complex(x, kl_sub_scalar(kl_mul_scalar(x, 0.5), 1));
    kl_tensor y = kl_add(kl_mul(a, b), kl_div(kl_exp(a), b));
    return kl_sum_all(kl_square(kl_abs(y)));
}

static kl_tensor product_loss(kl_tensor x, void *ctx)
{
    kl_tensor b = *(kl_tensor *)ctx;
    return kl_sum_all(kl_square(kl_abs(kl_matmul(kl_complex(x, kl_square(x)), b))));
}

static void d6(void)
{
    OK(kl_scope_begin());
    kl_tensor a = kl_complex(f32(D(2), (float[]){1, -2}), f32(D(2), (float[]){3, 0.5f}));
    kl_tensor b = kl_complex(f32(D(2), (float[]){2, 4}), f32(D(2), (float[]){-1, 1}));
    CHECK(!strcmp(kl_layer_name(a), "complex") && kl_layer_parts(a) == 2 && kl_rank(a) == 1 && kl_dtype_of(a) == KL_F32);
    NEAR_LIST(kl_dense(a), 0, 1, 3, -2, 0.5);
    NEAR_LIST(kl_dense(kl_add(a, b)), 0, 3, 2, 2, 1.5);
    NEAR_LIST(kl_dense(kl_mul(a, b)), 0, 5, 5, -8.5, 0);
    NEAR_LIST(kl_dense(kl_div(a, b)), 1e-6, -0.2, 1.4, -7.5 / 17, 4.0 / 17);
    NEAR_LIST(kl_dense(kl_mul(kl_conj(a), a)), 0, 10, 0, 4.25, 0);
    NEAR_LIST(kl_abs(a), 1e-6, sqrt(10), sqrt(4.25));
    NEAR_LIST(kl_dense(kl_mul_scalar(a, 2)), 0, 2, 6, -4, 1);
    NEAR_LIST(kl_dense(kl_add(kl_real(b), a)), 0, 3, 3, 2, 0.5);
    NEAR_LIST(kl_dense(kl_exp(kl_log(a))), 1e-5, 1, 3, -2, 0.5);
    NEAR_LIST(kl_dense(kl_mean(a, 0, NULL, false)), 0, -0.5, 1.75);
    NEAR_LIST(kl_dense(kl_concat(2, (kl_tensor[]){a, kl_real(b)}, 0)), 0, 1, 3, -2, 0.5, 2, 0, 4, 0);
    CHECK(refused(kl_max(a, b), KL_ERR_TYPE, "max: has no meaning for a complex tensor"));
    CHECK(refused(kl_complex(a, b), KL_ERR_TYPE, "complex: the parts are plain tensors, not complex ones"));
    kl_dispatch_log_begin();
    kl_mul(a, b);
    const char *log = kl_dispatch_log_end();
    CHECK(strstr(log, "[call] op=[mul], key=[ComplexCPU]\n [call] op=[mul], key=[CPU]\n") ||
          strstr(log, "[call] op=[mul], key=[Complex]\n"));
    float got[4];
    OK(kl_read(a, got, sizeof got));
    CHECK(got[0] == 1 && got[1] == 3 && got[2] == -2 && got[3] == 0.5f);

    /* a product against the four real ones, and its gradient dy conj(b)^T against their gradients */
    kl_tensor m = z_of(1, D(3, 4)), n = z_of(3, D(4, 5)), mr = kl_real(m), mi = kl_imag(m), nr = kl_real(n), ni = kl_imag(n);
    CHECK(close(kl_real(kl_matmul(m, n)), kl_sub(kl_matmul(mr, nr), kl_matmul(mi, ni)), 1e-6));
    CHECK(close(kl_imag(kl_matmul(m, n)), kl_add(kl_matmul(mr, ni), kl_matmul(mi, nr)), 1e-6));
    CHECK(close(kl_dense(kl_transpose(kl_conj(m), 0, 1)), kl_dense(kl_complex(kl_transpose(mr, 0, 1), kl_neg(kl_transpose(mi, 0, 1)))), 0));
    OK(kl_requires_grad(m));
    kl_tensor g = kl_grad(kl_sum_all(kl_square(kl_abs(kl_matmul(m, n)))), m);
    CHECK(!strcmp(kl_layer_name(g), "complex"));
    kl_tensor dy = kl_mul_scalar(kl_matmul(m, n), 2);
    CHECK(close(kl_dense(g), kl_dense(kl_matmul(dy, kl_transpose(kl_conj(n), 0, 1))), 1e-5));
    kl_tensor sq = kl_grad(kl_sum_all(kl_square(kl_abs(m))), m);
    CHECK(close(kl_dense(sq), kl_dense(kl_mul_scalar(m, 2)), 1e-6));
    kl_tensor x = noise(D(4), 11), w = kl_add_scalar(kl_complex(noise(D(4), 12), noise(D(4), 13)), 3);
    OK(kl_requires_grad(x));
    CHECK(slopes_are(complex_loss, &w, x, kl_grad(complex_loss(x, &w), x), 2e-2));
    x = noise(D(2, 4), 14);
    OK(kl_requires_grad(x));
    CHECK(slopes_are(product_loss, &n, x, kl_grad(product_loss(x, &n), x), 2e-2));
    OK(kl_scope_end());

    /* in traces: one that is trained, replayed, kept */
    kl_tensor p = z_of(20, D(3, 3)), kept = kl_none;
    kl_keep(p);
    double loss0 = 0, loss = 0;
    for (int step = 0; step < 20; step++) {
        kl_release(kept);
        OK(kl_trace_begin("complex_step"));
        kl_tensor e = kl_sub(kl_matmul(p, p), kl_complex(kl_eye(cpu, KL_F32, 3, 3), kl_zeros(cpu, KL_F32, D(3, 3))));
        kl_tensor l = kl_keep(kl_sum_all(kl_square(kl_abs(e))));
        OK(kl_assign(p, kl_sub(p, kl_mul_scalar(kl_grad(l, p), 0.01))));
        kept = kl_keep(e);
        OK(kl_trace_end());
        loss = kl_item_f64(l);
        loss0 = step ? loss0 : loss;
        kl_release(l);
    }
    CHECK(loss < 0.5 * loss0 && kl_check(kept) == KL_OK);
    kl_tensor plain = kl_dense(kept);
    CHECK(kl_numel(plain) == 18 && kl_item_f64(kl_sum_all(plain)) == kl_item_f64(kl_sum_all(plain)));
    kl_release(plain);
    kl_release(kept);
    kl_release(p);
}

/* ---- quantized ---- */

#define Q(...) ((kl_qscheme){.type = __VA_ARGS__})

/* Elements of the dense tensor are within half a step of what was quantized. */
static bool half_a_step(kl_tensor x, kl_qscheme scheme)
{
    kl_tensor q = kl_quantized(x, scheme, kl_none, kl_none), scale = kl_layer_part(q, 1);
    int64_t shape[KL_MAX_RANK];
    int rank = kl_shape(scale, shape);
    kl_tensor off = kl_abs(kl_sub(kl_dense(q), x));
    if (scheme.block) /* the greatest of each block */
        off = kl_reduce_max(kl_reshape(off, 3, (int64_t[]){shape[0], kl_numel(x) / shape[0] / shape[1], shape[1]}), AXES(1), false);
    kl_tensor within = kl_le(off, kl_expand(kl_mul_scalar(scale, 0.50001), rank, (int64_t[]){-1, -1}));
    return !strcmp(kl_layer_name(q), "quantized") && kl_item_i64(kl_cast(kl_all(within, 0, NULL, false), KL_I32)) == 1;
}

static void b5(void)
{
    OK(kl_scope_begin());
    kl_tensor x = noise(D(6, 8), 1), q8 = kl_quantized(x, Q(KL_Q_I8), kl_none, kl_none);
    CHECK(kl_dtype_of(q8) == KL_F32 && kl_dtype_of(kl_layer_part(q8, 0)) == KL_I8 && kl_numel(kl_layer_part(q8, 1)) == 1);
    kl_dispatch_log_begin();
    kl_tensor y = kl_exp(q8);
    const char *log = kl_dispatch_log_end();
    CHECK(!strcmp(kl_device_name(cpu), "ref") || op_keys_are(log, "exp", "QuantizedCPU,CPU"));
    CHECK(!strcmp(kl_layer_name(y), "quantized"));
    kl_tensor step = kl_layer_part(y, 1), off = kl_abs(kl_sub(kl_dense(y), kl_exp(kl_dense(q8))));
    CHECK(kl_item_f64(kl_reduce_max(off, 0, NULL, false)) <= 0.50001 * kl_item_f64(step));

    kl_qscheme all[] = {Q(KL_Q_I8), Q(KL_Q_U8), Q(KL_Q_I4), Q(KL_Q_I8, .per_axis = true), Q(KL_Q_U8, .per_axis = true, .axis = 1),
                        Q(KL_Q_I4, .per_axis = true, .axis = -1), Q(KL_Q_I8, .block = 3), Q(KL_Q_U8, .block = 2), Q(KL_Q_I4, .block = 6)};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        CHECK(half_a_step(x, all[i]));
    CHECK(kl_numel(kl_layer_part(kl_quantized(x, Q(KL_Q_I4), kl_none, kl_none), 0)) == 24); /* bytes */

    /* products: integers, equal to the product of what they stand for, whatever the scales are of */
    kl_tensor w = noise(D(8, 4), 2), b = noise(D(8, 4), 3);
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        for (unsigned k = 0; k < 4; k++) {
            kl_qscheme right[] = {Q(KL_Q_I8), Q(KL_Q_U8, .per_axis = true, .axis = 1), Q(KL_Q_I4, .block = 4), Q(KL_Q_I8, .per_axis = true, .axis = 0)};
            kl_qscheme left = all[i];
            left.axis = left.block ? 1 : left.axis;
            left.block = left.block ? 4 : 0;
            kl_tensor a = kl_quantized(x, left, kl_none, kl_none), c = kl_quantized(w, right[k], kl_none, kl_none);
            kl_tensor got = kl_matmul(a, c);
            CHECK(!strcmp(kl_layer_name(got), "") && close(got, kl_matmul(kl_dense(a), kl_dense(c)), 2e-6));
        }
    kl_tensor w8 = kl_quantized(w, Q(KL_Q_I8, .per_axis = true, .axis = 1), kl_none, kl_none), b8 = kl_quantized(b, Q(KL_Q_U8), kl_none, kl_none);
    int both[] = {1, 0};
    CHECK(close(kl_dense(kl_permute(w8, both)), kl_permute(kl_dense(w8), both), 0) &&
          close(kl_layer_part(kl_permute(w8, both), 0), kl_permute(kl_layer_part(w8, 0), both), 0));
    CHECK(close(kl_matmul(q8, kl_add(w8, b8)), kl_matmul(kl_dense(q8), kl_add(kl_dense(w8), kl_dense(b8))), 0.06));
    CHECK(close(kl_matmul(x, w8), kl_matmul(x, kl_dense(w8)), 1e-6)); /* weights alone */
    kl_tensor batch = kl_quantized(noise(D(3, 5, 8), 4), Q(KL_Q_I8, .per_axis = true, .axis = 0), kl_none, kl_none);
    kl_tensor batch_w = kl_quantized(noise(D(3, 8, 2), 5), Q(KL_Q_I8, .per_axis = true, .axis = 2), kl_none, kl_none);
    CHECK(close(kl_matmul(batch, batch_w), kl_matmul(kl_dense(batch), kl_dense(batch_w)), 2e-6));

    /* what a product records: a dot of 32-bit integers and no dequantize, and after simplifying none either where a gradient
     * could have been asked for */
    OK(kl_read(kl_dense(w8), (float[32]){0}, 128));
    kl_no_grad_begin();
    OK(kl_trace_begin("integer_product"));
    kl_keep(kl_matmul(kl_quantized(x, Q(KL_Q_I8), kl_none, kl_none), w8));
    const char *text = stage("captured");
    CHECK(strstr(text, " dot ") && strstr(text, "i32[6,4]") && strstr(text, "quantize") && !strstr(text, "dequantize"));
    kl_trace_abandon();
    kl_no_grad_end();
    OK(kl_trace_begin("integer_product_2"));
    kl_keep(kl_matmul(kl_quantized(x, Q(KL_Q_I8), kl_none, kl_none), w8));
    text = stage("simplified");
    CHECK(strstr(text, "i32[6,4]") && !strstr(text, "dequantize") && !strstr(text, "custom_grad"));
    kl_trace_abandon();

    /* gradients are those of the floats */
    for (int i = 0; i < 3; i++) {
        kl_qscheme left = i == 1 ? Q(KL_Q_U8, .per_axis = true) : i == 2 ? Q(KL_Q_I8, .axis = 1, .block = 4) : Q(KL_Q_I8);
        OK(kl_trace_begin("gradient"));
        kl_tensor qa = kl_quantized(x, left, kl_none, kl_none), qw = kl_quantized(w, Q(KL_Q_I8, .per_axis = true, .axis = 1), kl_none, kl_none);
        kl_tensor l = kl_sum_all(kl_square(kl_matmul(qa, qw))), same = kl_sum_all(kl_square(kl_matmul(kl_dense(qa), kl_dense(qw))));
        kl_tensor g[4] = {kl_keep(kl_grad(l, x)), kl_keep(kl_grad(same, x)), kl_keep(kl_grad(l, w)), kl_keep(kl_grad(same, w))};
        kl_tensor turned = kl_keep(kl_grad(kl_sum_all(kl_square(kl_matmul(kl_transpose(qw, 0, 1), kl_transpose(qa, 0, 1)))), w));
        OK(kl_trace_end());
        CHECK(kl_item_f64(kl_sum_all(kl_abs(g[1]))) > 1 && (i || close(turned, kl_keep(kl_reshape(g[3], 2, (int64_t[]){8, 4})), 1e-4)));
        CHECK(close(g[0], g[1], 1e-4) && close(g[2], g[3], 1e-4));
    }
    OK(kl_requires_grad(x));
    CHECK(close(kl_grad(kl_sum_all(kl_matmul(kl_quantized(x, Q(KL_Q_I8), kl_none, kl_none), w8)), x),
                kl_expand(kl_reshape(kl_sum(kl_dense(w8), AXES(1), false), 2, (int64_t[]){1, 8}), 2, (int64_t[]){6, 8}), 1e-5));
    CHECK(close(kl_grad(kl_sum_all(kl_exp(kl_quantized(x, Q(KL_Q_I8), kl_none, kl_none))), x), kl_exp(x), 0.1));

    /* observers */
    kl_observer o;
    OK(kl_observer_init(&o, cpu, Q(KL_Q_U8), KL_F32, 1, (int64_t[]){3}));
    OK(kl_observe(&o, f32(D(3), (float[]){1, 2, 3})));
    OK(kl_observe(&o, f32(D(3), (float[]){-2, 1, 2})));
    NEAR_LIST(kl_dense(kl_quantized_by(&o, f32(D(3), (float[]){9, -9, 1.01f}))), 1e-6, 153 / 51.0, -102 / 51.0, 52 / 51.0);
    CHECK(refused(kl_quantized(kl_cast(x, KL_I32), Q(KL_Q_I8), kl_none, kl_none), KL_ERR_TYPE, "quantized: needs a floating dtype, got i32"));
    CHECK(refused(kl_quantized(x, Q(KL_Q_I8, .block = 5), kl_none, kl_none), KL_ERR_SHAPE, "axis 0 of [6,8] is not cut into blocks of 5"));
    CHECK(refused(kl_quantized(x, Q(KL_Q_I8), w, kl_none), KL_ERR_SHAPE, "the scale has shape [8,4], not [1,1]"));
    CHECK(refused(kl_grad(kl_sum_all(kl_dense(q8)), q8), KL_ERR_GRAD, "a quantized tensor has no gradient"));
    kl_observer_free(&o);
    OK(kl_scope_end());
}

static void d5(void)
{
    kl_key on_device = kl_dispatch_resolve("exp", SET(KL_KEY_QuantizedCPU)), general = kl_dispatch_resolve("exp", SET(KL_KEY_Quantized));
    CHECK(on_device == KL_KEY_QuantizedCPU && general == KL_KEY_Quantized && table_has("exp", "QuantizedCUDA: quantized [layer kernel]"));
    kl_tensor x = f32(D(2), (float[]){1, 2}), q = kl_quantized(x, Q(KL_Q_I8), kl_none, kl_none);
    kl_registration r = reg("exp", KL_KEY_QuantizedCPU, giving(7, "fn_q8_cpu"));
    CHECK(table_has("exp", "QuantizedCPU: fn_q8_cpu [kernel]") && table_has("exp", "QuantizedXPU: quantized [layer kernel]"));
    kl_tensor y = kl_exp(q);
    bool cpu_device = strcmp(kl_device_name(cpu), "ref");
    CHECK(cpu_device ? kl_item_f64(y) == 7 : !strcmp(kl_layer_name(y), "quantized"));
    kl_release(y);
    drop(r);
    r = reg("exp", KL_KEY_Quantized, giving(8, "fn_q8"));
    y = kl_exp(q);
    CHECK(kl_item_f64(y) == 8 && table_has("exp", "QuantizedCPU: fn_q8 [layer kernel]"));
    kl_release(y);
    drop(r);
    y = kl_exp(q);
    CHECK(!strcmp(kl_layer_name(y), "quantized"));
    kl_release(y);
    kl_release(q);
    kl_release(x);
}

static const struct row rows[] = {{"D6", d6}, {"B5", b5}, {"D5", d5}};

int main(int argc, char **argv) { return RUN_ROWS(rows); }
