/* Rows of the dispatch system that are layers with wrappers: complex, quantized, sparse, named, nested.  Arguments: ids of
 * rows; none: all. */
#include "api_seeds.h"
#include <time.h>

#define D(...) DIMS(__VA_ARGS__)

static kl_tensor f32(int rank, const int64_t *dims, const float *v) { return kl_input(cpu, KL_F32, rank, dims, v); }
static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
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
            if ((i + k) % 3) /* each kind of scale meets each other */
                continue;
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

/* ---- sparse ---- */

/* [5, 4] in coordinates, unordered, one place twice, one element that is not needed. */
static const int32_t at_row[7] = {4, 0, 2, 0, 2, 3, 0}, at_column[7] = {3, 1, 0, 3, 2, 3, 0};
static kl_tensor coo(kl_tensor values)
{
    return kl_sparse_coo(values, kl_input(cpu, KL_I32, D(7), at_row), kl_input(cpu, KL_I32, D(7), at_column), 5, 4);
}
/* The same shape in rows, room for two more. */
static kl_tensor csr(kl_tensor values)
{
    static const int32_t starts[6] = {0, 2, 2, 4, 5, 5}, columns[7] = {1, 3, 0, 2, 3, 1, 2};
    return kl_sparse_csr(values, kl_input(cpu, KL_I32, D(6), starts), kl_input(cpu, KL_I32, D(7), columns), 4);
}

static kl_tensor sparse_loss(kl_tensor values, void *ctx)
{
    kl_tensor x = *(kl_tensor *)ctx, s = coo(values), r = csr(values);
    kl_tensor y = kl_matmul(kl_transpose(r, 0, 1), kl_add(kl_matmul(s, x), kl_matmul(kl_mul(r, s), x)));
    kl_tensor sampled = kl_sampled_matmul(kl_matmul(s, x), kl_transpose(x, 0, 1), r);
    return kl_add(kl_sum_all(kl_square(y)), kl_sum_all(kl_mul(sampled, kl_exp(kl_dense(s)))));
}

static void b4(void)
{
    OK(kl_scope_begin());
    kl_tensor v = f32(D(7), (float[]){1, 2, 3, 4, 5, 6, 0}), s = coo(v), r = csr(v), x = noise(D(4, 3), 5);
    double dense_s[20] = {0, 2, 0, 4, 0, 0, 0, 0, 3, 0, 5, 0, 0, 0, 0, 6, 0, 0, 0, 1};
    double dense_r[20] = {0, 1, 0, 2, 0, 0, 0, 0, 3, 0, 4, 0, 0, 0, 0, 5};
    CHECK(!strcmp(kl_layer_name(s), "sparse") && kl_numel(s) == 20 && kl_numel(kl_layer_part(r, 1)) == 6);
    NEAR(kl_dense(s), 20, dense_s, 0);
    NEAR(kl_dense(r), 20, dense_r, 0);
    NEAR_LIST(kl_layer_part(r, 0), 0, 1, 2, 3, 4, 5, 0, 0); /* beyond the last start nothing counts */
    float read[20];
    OK(kl_read(s, read, sizeof read));
    CHECK(read[1] == 2 && read[19] == 1);

    /* products, on either side, with a vector, a batch of columns, and another sparse one */
    kl_tensor both[] = {s, r}, dense[] = {kl_dense(s), kl_dense(r)}, y = noise(D(3, 5), 6), vec = noise(D(4), 7), wide = noise(D(2, 3, 5), 8);
    for (int i = 0; i < 2; i++) {
        CHECK(close(kl_matmul(both[i], x), kl_matmul(dense[i], x), 1e-6) && close(kl_matmul(y, both[i]), kl_matmul(y, dense[i]), 1e-6));
        CHECK(close(kl_matmul(both[i], vec), kl_matmul(dense[i], vec), 1e-6));
        CHECK(close(kl_dot_general(wide, both[i], 0, NULL, NULL, 1, (int[]){2}, (int[]){0}),
                    kl_dot_general(wide, dense[i], 0, NULL, NULL, 1, (int[]){2}, (int[]){0}), 1e-6));
        CHECK(close(kl_matmul(both[i], kl_transpose(both[!i], 0, 1)), kl_matmul(dense[i], kl_transpose(dense[!i], 0, 1)), 1e-6));
        CHECK(close(kl_sum(both[i], AXES(0), false), kl_sum(dense[i], AXES(0), false), 1e-6) &&
              close(kl_sum(both[i], AXES(1), true), kl_sum(dense[i], AXES(1), true), 1e-6) &&
              close(kl_sum_all(both[i]), kl_sum_all(dense[i]), 1e-6) && close(kl_mean(both[i], 0, NULL, false), kl_mean(dense[i], 0, NULL, false), 1e-6));
        kl_tensor stays[] = {kl_neg(both[i]), kl_mul_scalar(both[i], 3), kl_mul(both[i], dense[!i]), kl_mul(vec, both[i]), kl_div_scalar(both[i], 2),
                             kl_add(both[i], both[!i]), kl_sub(both[i], both[!i]), kl_detach(both[i]), kl_cast(both[i], KL_F64)};
        kl_tensor want[] = {kl_neg(dense[i]), kl_mul_scalar(dense[i], 3), kl_mul(dense[i], dense[!i]), kl_mul(vec, dense[i]), kl_div_scalar(dense[i], 2),
                            kl_add(dense[i], dense[!i]), kl_sub(dense[i], dense[!i]), kl_detach(dense[i]), kl_cast(dense[i], KL_F64)};
        for (int k = 0; k < 9; k++)
            CHECK(!strcmp(kl_layer_name(stays[k]), "sparse") && close(kl_dense(stays[k]), want[k], 1e-6));
        CHECK(close(kl_exp(both[i]), kl_exp(dense[i]), 0) && close(kl_max(both[i], dense[!i]), kl_max(dense[i], dense[!i]), 0));
    }
    CHECK(close(kl_dense(kl_sampled_matmul(kl_transpose(y, 0, 1), kl_transpose(x, 0, 1), r)),
                kl_mul(kl_matmul(kl_transpose(y, 0, 1), kl_transpose(x, 0, 1)), kl_cast(kl_ne(dense[1], kl_zeros(cpu, KL_F32, 0, NULL)), KL_F32)), 1e-6));
    CHECK(close(kl_dense(kl_to_sparse(dense[0], 9)), kl_dense(s), 0) && kl_numel(kl_layer_part(kl_to_sparse(dense[0], 9), 0)) == 9);
    CHECK(isnan(kl_item_f64(kl_sum_all(kl_to_sparse(dense[0], 3))))); /* too many: not silently less */

    /* what is recorded: a native product has its own kernel, an op without one densifies */
    bool on_cpu = strcmp(kl_device_name(cpu), "ref");
    kl_dispatch_log_begin();
    kl_matmul(s, x);
    const char *log = kl_dispatch_log_end();
    CHECK(strstr(log, "op=[dot]") && !strstr(log, "densify") && strstr(log, "op=[scatter], key=[") && !strstr(log, "op=[dot], key=[CPU]"));
    kl_dispatch_log_begin();
    kl_exp(s);
    log = kl_dispatch_log_end();
    CHECK(!on_cpu || (strstr(log, "[call] op=[exp], key=[SparseCPU]\n [densify] op=[exp], key=[SparseCPU]\n") && strstr(log, "[call] op=[exp], key=[CPU]")));

    /* gradients: of values, by differences, and sparse ones */
    kl_tensor p = noise(D(7), 9);
    OK(kl_requires_grad(p));
    CHECK(slopes_are(sparse_loss, &x, p, kl_grad(sparse_loss(p, &x), p), 3e-2));
    kl_tensor sp = csr(noise(D(7), 10));
    OK(kl_requires_grad(sp));
    kl_tensor g = kl_grad(kl_sum_all(kl_square(kl_matmul(sp, x))), sp), d = kl_keep(kl_dense(sp));
    OK(kl_trace_begin("dense"));
    kl_tensor gd = kl_keep(kl_grad(kl_sum_all(kl_square(kl_matmul(d, x))), d));
    OK(kl_trace_end());
    kl_tensor mask = kl_cast(kl_ne(kl_dense(sp), kl_zeros(cpu, KL_F32, 0, NULL)), KL_F32);
    CHECK(!strcmp(kl_layer_name(g), "sparse") && close(kl_dense(g), kl_mul(gd, mask), 1e-5));

    /* 1 % of the elements: less work, and less time */
    enum { N = 1024, COLUMNS = 16, STORED = N * N / 100 };
    static int32_t row[STORED], column[STORED];
    for (int i = 0; i < STORED; i++) {
        row[i] = (int32_t)((int64_t)i * N / STORED);
        column[i] = (int32_t)((uint32_t)i * 2654435761u >> 22);
    }
    kl_tensor big = kl_sparse_coo(noise(D(STORED), 21), kl_input(cpu, KL_I32, D(STORED), row), kl_input(cpu, KL_I32, D(STORED), column), N, N);
    kl_tensor full = kl_dense(big), other = noise(D(N, COLUMNS), 22);
    CHECK(kl_item_f64(kl_sum_all(full)) == kl_item_f64(kl_sum_all(full)));
    double fastest[2] = {1e9, 1e9};
    for (int i = 0; i < 8 && on_cpu; i++) {
        double began = seconds();
        OK(kl_trace_begin(i % 2 ? "sparse_product" : "dense_product"));
        kl_tensor z = kl_keep(kl_matmul(i % 2 ? big : full, other));
        OK(kl_trace_end());
        double took = seconds() - began;
        fastest[i % 2] = took < fastest[i % 2] ? took : fastest[i % 2];
        kl_release(z);
    }
    printf("sparse x dense at 1 %%: %.0f times as fast as dense\n", fastest[0] / fastest[1]);
    CHECK(fastest[1] < fastest[0] || !on_cpu);
    CHECK(close(kl_matmul(big, other), kl_matmul(full, other), 1e-5));

    CHECK(refused(kl_sparse_coo(v, kl_cast(v, KL_I32), kl_arange(cpu, KL_I32, 3), 2, 2), KL_ERR_SHAPE, "the columns has shape [3], not [as many"));
    CHECK(refused(kl_sparse_csr(v, v, v, 3), KL_ERR_TYPE, "the starts is f32, not i32 or i64"));
    CHECK(refused(kl_matmul(s, y), KL_ERR_SHAPE, "matmul: shapes [5,4] and [3,5] do not fit"));
    kl_release(d);
    OK(kl_scope_end());
}

/* Sparse beats dense, in whichever order the arguments come. */
static kl_status power_round(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
{
    (void)nin, (void)nout;
    out[0] = kl_matmul(*(kl_tensor *)ctx, kl_div(in[0], kl_norm(in[0], 0, NULL, false)));
    return KL_OK;
}

static void d9(void)
{
    OK(kl_scope_begin());
    kl_tensor s = csr(f32(D(7), (float[]){1, 2, 3, 4, 5, 6, 7})), d = kl_ones(cpu, KL_F32, D(5, 4));
    bool on_cpu = strcmp(kl_device_name(cpu), "ref");
    for (int i = 0; i < 2; i++) {
        kl_dispatch_log_begin();
        kl_tensor y = i ? kl_add(d, s) : kl_add(s, d);
        const char *log = kl_dispatch_log_end();
        CHECK(!on_cpu || op_keys_are(log, "add", "SparseCPU,CPU")); /* that of CPU is in an index */
        CHECK(!strstr(log, "densify"));
        NEAR(y, 20, ((double[]){1, 2, 1, 3, 1, 1, 1, 1, 4, 1, 5, 1, 1, 1, 1, 6, 1, 1, 1, 1}), 0);
    }
    /* from outside of a loop's function like any tensor, and to another device */
    kl_tensor square[] = {kl_add(kl_matmul(s, kl_transpose(s, 0, 1)), kl_eye(cpu, KL_F32, 5, 5)), kl_none}, from = kl_ones(cpu, KL_F32, D(5)), y[2];
    square[1] = kl_to_sparse(square[0], 25);
    for (int i = 0; i < 2; i++)
        OK(kl_scan(power_round, &square[i], 4, 1, &from, 0, NULL, 0, false, &y[i]));
    CHECK(close(y[1], y[0], 1e-5));
    CHECK(kl_checkpoint(power_round, &square[0], 1, &square[1], 1, y) == KL_ERR_TYPE && says("is a sparse tensor, which this is not for"));
    kl_release(y[0]);
    kl_clear_error();
    kl_device ref = kl_device_named("ref");
    if (ref.id) {
        kl_tensor there = kl_to(s, ref);
        CHECK(!strcmp(kl_layer_name(there), "sparse") && kl_device_of(there).id == ref.id && close(kl_to(kl_dense(there), cpu), kl_dense(s), 0));
    }
    kl_keyset keys = kl_dispatch_keys(2, (kl_tensor[]){d, s});
    CHECK(kl_keyset_has(keys, KL_KEY_Sparse) && kl_dispatch_resolve("add", SET(KL_KEY_SparseCPU)) == KL_KEY_SparseCPU);
    OK(kl_scope_end());
}

/* ---- blocked ---- */

static void d8(void)
{
    OK(kl_scope_begin());
    kl_tensor a = noise(D(6, 4), 1), b = noise(D(4, 8), 2), p = kl_blocked(a, 2), q = kl_blocked(b, 2);
    char text[100];
    CHECK(!strcmp(kl_layer_text(p, text, sizeof text), "blocked f32[6,4]: f32[3,2,2,2]") && !strcmp(kl_layer_text(a, text, sizeof text), ""));
    CHECK(close(kl_dense(p), a, 0));
    a = noise(D(6, 4), 1);
    bool on_cpu = strcmp(kl_device_name(cpu), "ref");
    kl_dispatch_log_begin();
    kl_tensor y = kl_matmul(p, q);
    const char *log = kl_dispatch_log_end();
    CHECK(!on_cpu || op_keys_are(log, "dot", "MkldnnCPU,CPU"));
    CHECK(!strcmp(kl_layer_text(y, text, sizeof text), "blocked f32[6,8]: f32[3,4,2,2]") && close(kl_dense(y), kl_matmul(a, b), 1e-6));
    kl_tensor stays[] = {kl_relu(p), kl_mul_scalar(p, 3), kl_add(p, kl_exp(p)), kl_transpose(p, 0, 1), kl_cast(p, KL_F64)};
    kl_tensor want[] = {kl_relu(a), kl_mul_scalar(a, 3), kl_add(a, kl_exp(a)), kl_transpose(a, 0, 1), kl_cast(a, KL_F64)};
    for (int i = 0; i < 5; i++)
        CHECK(!strcmp(kl_layer_name(stays[i]), "blocked") && close(kl_dense(stays[i]), want[i], 0));
    kl_tensor other[] = {kl_add(p, a), kl_matmul(p, b), kl_sum_all(p), kl_softmax(p, -1), kl_add(p, kl_blocked(a, 1))}; /* converted */
    kl_tensor plain[] = {kl_add(a, a), kl_matmul(a, b), kl_sum_all(a), kl_softmax(a, -1), kl_add(a, a)};
    for (int i = 0; i < 5; i++)
        CHECK(!strcmp(kl_layer_name(other[i]), "") && close(other[i], plain[i], 1e-6));
    OK(kl_requires_grad(p));
    kl_tensor g = kl_grad(kl_sum_all(kl_square(kl_matmul(p, q))), p);
    CHECK(!strcmp(kl_layer_name(g), "blocked") && close(kl_dense(g), kl_mul_scalar(kl_matmul(kl_matmul(a, b), kl_transpose(b, 0, 1)), 2), 1e-5));
    OK(kl_trace_begin("tiles"));
    kl_keep(kl_relu(kl_blocked(kl_input(cpu, KL_F32, D(6, 4), (float[24]){0}), 2)));
    CHECK(strstr(stage("captured"), "f32[3,2,2,2]"));
    kl_trace_abandon();
    CHECK(refused(kl_blocked(a, 4), KL_ERR_SHAPE, "blocked: [6,4] is not cut into tiles of 4"));
    OK(kl_scope_end());
}

/* ---- named ---- */

#define NAMES(...) ((const char *const[]){__VA_ARGS__})

static bool names_are(kl_tensor t, const char *want)
{
    const char *names[KL_MAX_RANK];
    char got[100] = "";
    int rank = kl_names(t, names);
    for (int i = 0; i < rank; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i ? "," : "", names[i] ? names[i] : "-");
    if (strcmp(got, want))
        printf("names are %s, not %s (%s)\n", got, want, kl_last_error());
    return !strcmp(got, want);
}

static void d15(void)
{
    OK(kl_scope_begin());
    kl_tensor p = noise(D(2, 3), 1), x = kl_named(p, NAMES("N", "C")), c = kl_named(noise(D(3), 2), NAMES("C"));
    CHECK(!strcmp(kl_layer_name(x), "named") && names_are(x, "N,C") && names_are(p, "-,-") && kl_axis(x, "C") == 1);
    CHECK(kl_axis(x, "W") == -1 && says("axis: no axis of [N, C] is called 'W'"));
    kl_clear_error();
    CHECK(names_are(kl_add(x, c), "N,C") && names_are(kl_add(c, x), "N,C") && names_are(kl_mul(x, p), "N,C"));
    CHECK(close(kl_add(x, c), kl_add(p, kl_dense(c)), 0));
    CHECK(names_are(kl_where(kl_gt(x, c), x, p), "N,C") && names_are(kl_mul_scalar(kl_exp(x), 2), "N,C") && names_are(kl_cast(x, KL_F64), "N,C"));
    kl_tensor y = kl_named(p, NAMES("N", "D"));
    CHECK(refused(kl_add(x, y), KL_ERR_ARGUMENT, "add: names [N, C] and [N, D] do not match: axis -1 is 'C' in one, 'D' in the other"));
    CHECK(names_are(kl_named(x, NULL), "-,-") && !strcmp(kl_layer_name(kl_named(x, NULL)), "") && names_are(kl_named(x, NAMES(NULL, "C")), "-,C"));
    CHECK(refused(kl_index_add(x, 0, kl_zeros(cpu, KL_I32, D(2)), p), KL_ERR_ARGUMENT,
                  "scatter is not yet supported with named tensors. Please drop names via `tensor = kl_named(tensor, NULL)`"));
    CHECK(refused(kl_reshape(x, 1, (int64_t[]){6}), KL_ERR_ARGUMENT, "reshape is not yet supported with named tensors"));
    CHECK(refused(kl_named(p, NAMES("N", "N")), KL_ERR_ARGUMENT, "two axes of the result would be called 'N'"));

    CHECK(names_are(kl_transpose(x, 0, 1), "C,N") && names_are(kl_sum(x, AXES(0), false), "C") && names_are(kl_sum(x, AXES(0), true), "N,C"));
    CHECK(names_are(kl_mean(x, 1, (int[]){kl_axis(x, "C")}, false), "N") && names_are(kl_argmax(x, 1), "N") && names_are(kl_sum_all(x), ""));
    CHECK(names_are(kl_softmax(x, -1), "N,C") && names_are(kl_layer_norm(x, 1, c, kl_none, 1e-5), "N,C") && close(kl_softmax(x, -1), kl_softmax(p, -1), 0));
    kl_tensor ones = kl_named(kl_ones(cpu, KL_F32, D(1, 1, 3)), NAMES("A", "B", "C"));
    CHECK(names_are(kl_sum(ones, AXES(1), false), "A,C") && names_are(kl_squeeze(ones, 0), "-,C") && names_are(kl_unsqueeze(c, 0), "-,C"));
    kl_tensor w = kl_named(noise(D(3, 4), 3), NAMES("C", "E"));
    CHECK(names_are(kl_matmul(x, w), "N,E") && close(kl_matmul(x, w), kl_matmul(p, kl_dense(w)), 0));
    CHECK(refused(kl_matmul(x, kl_transpose(x, 0, 1)), KL_ERR_ARGUMENT, "two axes of the result would be called 'N'"));
    kl_tensor batch = kl_named(noise(D(5, 2, 3), 4), NAMES("B", NULL, "C"));
    CHECK(names_are(kl_matmul(batch, w), "B,-,E") && names_are(kl_concat(2, (kl_tensor[]){x, p}, 0), "N,C") && names_are(kl_narrow(x, 1, 0, 2), "N,C"));
    kl_tensor s = kl_named(kl_to_sparse(p, 6), NAMES("N", "C"));
    CHECK(names_are(kl_neg(s), "N,C") && !strcmp(kl_layer_name(kl_layer_part(kl_neg(s), 0)), "sparse") && close(kl_dense(kl_neg(s)), kl_neg(p), 0));
    OK(kl_requires_grad(x));
    kl_tensor g = kl_grad(kl_sum_all(kl_square(x)), x);
    CHECK(names_are(g, "N,C") && close(g, kl_mul_scalar(p, 2), 1e-6));

    /* names record nothing */
    int64_t nodes[2];
    for (int i = 0; i < 2; i++) {
        OK(kl_trace_begin("named"));
        kl_tensor a = kl_input(cpu, KL_F32, D(2, 3), (float[6]){1, 2, 3, 4, 5, 6});
        kl_keep(kl_softmax(kl_add(i ? kl_named(a, NAMES("N", "C")) : a, i ? kl_named(a, NAMES("N", "C")) : a), 1));
        OK(kl_trace_end());
        kl_run_info info;
        OK(kl_trace_info(&info));
        nodes[i] = info.nodes;
    }
    CHECK(nodes[0] == nodes[1]);
    OK(kl_scope_end());
}

/* ---- nested ---- */

/* 3, 5, 0 and 2 rows, and one more than is needed. */
enum { ROWS = 11, PARTS = 4 };
static const int32_t starts[PARTS + 1] = {0, 3, 8, 8, 10};

static kl_tensor offsets(void) { return kl_input(cpu, KL_I32, D(PARTS + 1), starts); }
static kl_tensor component(kl_tensor values, int i) { return kl_narrow(values, 0, starts[i], starts[i + 1] - starts[i]); }

static kl_tensor nested_loss(kl_tensor values, void *ctx)
{
    kl_tensor w = *(kl_tensor *)ctx, x = kl_nested(values, offsets());
    kl_tensor h = kl_nested_attention(kl_matmul(x, w), x, kl_tanh(x), true);
    kl_tensor s = kl_mul(kl_nested_softmax(h), x);
    kl_tensor mean = kl_narrow(kl_nested_mean(kl_narrow(s, 1, 0, 2)), 0, 0, 2); /* of the empty one it is NaN */
    return kl_add(kl_sum_all(kl_square(mean)), kl_sum_all(kl_square(kl_nested_sum(s))));
}

static void b6(void)
{
    OK(kl_scope_begin());
    kl_tensor v = noise(D(ROWS, 4), 1), x = kl_nested(v, offsets()), w = noise(D(4, 6), 2), b = noise(D(6), 3);
    CHECK(!strcmp(kl_layer_name(x), "nested") && kl_numel(x) == ROWS * 4);
    NEAR_LIST(kl_layer_part(x, 2), 0, 0, 0, 0, 1, 1, 1, 1, 1, 3, 3, 4);
    kl_tensor y = kl_softmax(kl_relu(kl_linear(x, w, b)), -1), sum = kl_nested_sum(x), most = kl_nested_max(x), soft = kl_nested_softmax(x);
    NEAR_LIST(kl_layer_part(y, 1), 0, 0, 3, 8, 8, 10);
    for (int i = 0; i < PARTS; i++) { /* each component as if alone */
        kl_tensor one = component(v, i);
        CHECK(close(component(kl_dense(y), i), kl_softmax(kl_relu(kl_linear(one, w, b)), -1), 1e-6));
        CHECK(close(kl_narrow(sum, 0, i, 1), kl_sum(one, AXES(0), true), 1e-6) && close(component(kl_dense(soft), i), kl_softmax(one, 0), 1e-6));
        CHECK(i == 2 || (close(kl_narrow(most, 0, i, 1), kl_reduce_max(one, AXES(0), true), 0) &&
                         close(kl_narrow(kl_nested_mean(x), 0, i, 1), kl_mean(one, AXES(0), true), 1e-6)));
        for (int causal = 0; causal < 2 && i != 2; causal++) {
            kl_tensor got = kl_nested_attention(x, kl_mul_scalar(x, 2), kl_matmul(x, w), causal);
            CHECK(close(component(kl_dense(got), i), kl_attention(one, kl_mul_scalar(one, 2), kl_matmul(one, w), kl_none, causal), 1e-5));
        }
    }
    kl_tensor heads = kl_nested_like(noise(D(ROWS, 2, 3), 4), x), many = kl_dense(kl_nested_attention(heads, heads, heads, true));
    kl_tensor second = kl_transpose(component(kl_dense(heads), 1), 0, 1);
    CHECK(close(component(many, 1), kl_transpose(kl_attention(second, second, second, kl_none, true), 0, 1), 1e-5));
    kl_tensor padded = kl_nested_pad(x, 5, -1), lengths = kl_input(cpu, KL_I32, D(PARTS), (int32_t[]){3, 5, 0, 2}), back = kl_to_nested(padded, lengths, 10);
    CHECK(close(kl_dense(back), kl_narrow(v, 0, 0, 10), 0) && kl_item_f64(kl_sum_all(kl_narrow(padded, 0, 2, 1))) == -20);
    CHECK(close(kl_layer_part(back, 1), offsets(), 0));
    kl_tensor ids = kl_nested(kl_input(cpu, KL_I32, D(ROWS), (int32_t[ROWS]){3, 1, 2}), offsets());
    CHECK(!strcmp(kl_layer_name(kl_embedding(w, ids)), "nested"));
    CHECK(close(kl_sum_all(x), kl_sum_all(v), 1e-5) && close(kl_dense(kl_layer_norm(x, 1, kl_none, kl_none, 1e-5)), kl_layer_norm(v, 1, kl_none, kl_none, 1e-5), 0));

    CHECK(refused(kl_add(x, kl_nested(v, offsets())), KL_ERR_TYPE, "add: its operands have offsets of their own"));
    CHECK(refused(kl_add(x, v), KL_ERR_TYPE, "a plain operand is one row for all"));
    CHECK(refused(kl_sum(x, AXES(0), false), KL_ERR_TYPE, "components are not to be mixed"));
    CHECK(refused(kl_transpose(x, 0, 1), KL_ERR_TYPE, "components are not to be mixed"));
    CHECK(refused(kl_nested(v, kl_cast(v, KL_I32)), KL_ERR_SHAPE, "the offsets have shape [11,4], not one axis"));
    CHECK(refused(kl_nested_sum(v), KL_ERR_TYPE, "nested_sum: needs a nested tensor"));

    /* one kernel whatever the lengths; attention as many as that of one long sequence with a mask */
    OK(kl_read(kl_layer_part(x, 2), (int32_t[ROWS]){0}, ROWS * 4));
    CHECK(kl_item_f64(kl_sum_all(v)) == kl_item_f64(kl_sum_all(v)));
    kl_tensor mask = kl_eye(cpu, KL_BOOL, ROWS, ROWS);
    OK(kl_read(mask, (char[ROWS * ROWS]){0}, ROWS * ROWS));
    int64_t plain = 1;
    for (int i = 0; i < 4; i++) {
        OK(kl_trace_begin("nested_kernel"));
        kl_tensor z = i == 0 ? kl_relu(kl_linear(x, w, b)) : i == 1 ? kl_softmax(kl_mul_scalar(x, 3), -1)
                      : i == 2 ? kl_attention(v, v, v, mask, true) : kl_nested_attention(x, x, x, true);
        kl_keep(z);
        OK(kl_trace_end());
        kl_run_info info;
        OK(kl_trace_info(&info));
        if (i == 2)
            plain = info.kernels;
        else if (strcmp(kl_device_name(cpu), "ref"))
            CHECK(info.kernels == plain && !strcmp(kl_layer_name(z), "nested"));
    }
    OK(kl_scope_end());
}

static int nested_grads;
static kl_status nested_autograd(void *ctx, kl_call *call, kl_keyset keys)
{
    nested_grads++;
    return pass_on(ctx, call, keys);
}

static void d10(void)
{
    OK(kl_scope_begin());
    kl_tensor v = noise(D(ROWS, 4), 5), w = noise(D(4, 4), 6), x = kl_nested(v, offsets());
    OK(kl_requires_grad(x));
    kl_tensor g = kl_grad(kl_sum_all(kl_square(kl_matmul(x, w))), x);
    kl_tensor want = kl_mul_scalar(kl_matmul(kl_matmul(v, w), kl_transpose(w, 0, 1)), 2);
    CHECK(!strcmp(kl_layer_name(g), "nested") && close(kl_dense(g), want, 1e-5));
    NEAR_LIST(kl_layer_part(g, 1), 0, 0, 3, 8, 8, 10);
    CHECK(refused(kl_nested_attention(x, kl_nested(v, offsets()), x, true), KL_ERR_TYPE, "q, k and v are nested and have the same offsets"));
    kl_tensor p = noise(D(ROWS, 4), 7);
    OK(kl_requires_grad(p));
    CHECK(slopes_are(nested_loss, &w, p, kl_grad(nested_loss(p, &w), p), 3e-2));

    CHECK(kl_key_autograd(KL_KEY_NestedTensor) == KL_KEY_AutogradNestedTensor);
    kl_registration r = reg("tanh", KL_KEY_AutogradNestedTensor, (kl_kernel){.name = "count", .call = nested_autograd});
    kl_tanh(x);
    kl_tanh(v);
    CHECK(nested_grads == 1);
    drop(r);
    OK(kl_scope_end());
}

/* ---- allocations that fail while all of these are recorded: an error each, nothing lost, and the next time it works ---- */

static int64_t taken, fail_at;
static bool fails(void) { return __atomic_add_fetch(&taken, 1, __ATOMIC_RELAXED) == __atomic_load_n(&fail_at, __ATOMIC_RELAXED); }
static void *take(void *ctx, size_t bytes)
{
    (void)ctx;
    void *p = fails() ? NULL : malloc(bytes);
    return p ? memset(p, 0xa5, bytes) : NULL;
}
static void *grow(void *ctx, void *p, size_t bytes) { (void)ctx; return fails() ? NULL : realloc(p, bytes); }
static void release(void *ctx, void *p) { (void)ctx; free(p); }

static kl_status record_everything(void)
{
    kl_tensor v = f32(D(11, 4), (float[44]){0}), w = f32(D(4, 4), (float[16]){0}), row = f32(D(7), (float[7]){0});
    kl_tensor x = kl_nested(v, offsets()), z = kl_complex(w, w), s = csr(row), q = kl_quantized(w, Q(KL_Q_U8), kl_none, kl_none);
    kl_tensor made[] = {kl_nested_attention(x, x, x, true), kl_nested_pad(kl_nested_softmax(x), 5, 0), kl_matmul(kl_exp(z), kl_conj(z)),
                        kl_matmul(s, w), kl_add(s, coo(row)), kl_exp(s), kl_matmul(q, kl_transpose(q, 0, 1)), kl_exp(q), kl_to_sparse(w, 5),
                        kl_quantized(w, Q(KL_Q_I4, .block = 2), kl_none, kl_none), kl_named(w, NAMES("A", NULL)), kl_relu(kl_blocked(w, 2)),
                        kl_layer_part(z, 1), kl_dense(q), kl_sum_all(kl_named(x, NAMES("T", "D")))};
    kl_status status = KL_OK;
    for (unsigned i = 0; i < sizeof made / sizeof *made; i++)
        status = kl_check(made[i]) ? kl_check(made[i]) : status;
    return status;
}

static void memory(void)
{
    int wrong = 0, errors = 0;
    for (int traced = 0; traced < 2; traced++)
        for (int64_t n = 0, all = 1; n <= all; n++) {
            OK(traced ? kl_trace_begin("memory") : kl_scope_begin());
            __atomic_store_n(&taken, 0, __ATOMIC_RELAXED);
            __atomic_store_n(&fail_at, n, __ATOMIC_RELAXED);
            kl_clear_error();
            kl_status status = record_everything();
            __atomic_store_n(&fail_at, 0, __ATOMIC_RELAXED);
            if (status ? !n || status != KL_ERR_MEMORY : false) {
                printf("allocation %d: %s\n", (int)n, kl_last_error());
                wrong++;
            }
            errors += status != KL_OK;
            all = n ? all : __atomic_load_n(&taken, __ATOMIC_RELAXED);
            if (traced)
                kl_trace_abandon();
            else
                OK(kl_scope_end());
        }
    printf("%d allocations that failed were errors\n", errors);
    CHECK(!wrong && errors > 30);
    kl_clear_error();
}

static const struct row rows[] = {{"D6", d6}, {"B5", b5}, {"D5", d5}, {"B4", b4}, {"D9", d9}, {"D8", d8}, {"D15", d15}, {"B6", b6}, {"D10", d10}, {"memory", memory}};

int main(int argc, char **argv)
{
    kl_set_memory(&(kl_memory){take, grow, release, NULL});
    return RUN_ROWS(rows);
}
