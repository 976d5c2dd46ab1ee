/* Rows of the dispatch system that are tensors stored in other ways: complex, quantized, sparse, blocked.  Arguments:
 * ids of rows; none: all. */
#include "api_wrappers.h"

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
    CHECK(!strcmp(kl_layer_name(a), "complex") && kl_layer_parts(a) == 2 && kl_rank(a) == 1 &&
          kl_dtype_of(a) == KL_F32);
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
    CHECK(refused(kl_maximum(a, b), KL_ERR_TYPE, "maximum: has no meaning for a complex tensor"));
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
    kl_tensor m = z_of(1, D(3, 4)), n = z_of(3, D(4, 5)), mr = kl_real(m), mi = kl_imag(m), nr = kl_real(n),
        ni = kl_imag(n);
    CHECK(close(kl_real(kl_matmul(m, n)), kl_sub(kl_matmul(mr, nr), kl_matmul(mi, ni)), 1e-6));
    CHECK(close(kl_imag(kl_matmul(m, n)), kl_add(kl_matmul(mr, ni), kl_matmul(mi, nr)), 1e-6));
    CHECK(close(kl_dense(kl_transpose(kl_conj(m), 0, 1)), kl_dense(kl_complex(kl_transpose(mr, 0, 1),
                                                                              kl_neg(kl_transpose(mi, 0, 1)))), 0));
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

/* Elements of the dense tensor are within half a step of what was quantized. */
static bool half_a_step(kl_tensor x, kl_qscheme scheme)
{
    kl_tensor q = kl_to_quantized(x, scheme, kl_none, kl_none), scale = kl_layer_part(q, 1);
    int64_t shape[KL_MAX_RANK];
    int rank = kl_shape(scale, shape);
    kl_tensor off = kl_abs(kl_sub(kl_dense(q), x));
    if (scheme.block) /* the greatest of each block */
        off = kl_max(kl_reshape(off, 3, (int64_t[]){shape[0], kl_numel(x) / shape[0] / shape[1], shape[1]}),
                     AXES(1), false);
    kl_tensor within = kl_le(off, kl_expand(kl_mul_scalar(scale, 0.50001), rank, (int64_t[]){-1, -1}));
    return !strcmp(kl_layer_name(q), "quantized") && kl_item_i64(kl_cast(kl_all(within, 0, NULL, false), KL_I32)) == 1;
}

static kl_tensor fours(kl_tensor x, kl_tensor scale) { return kl_to_quantized(x, Q(KL_Q_I4), scale, kl_none); }

/* Integers that are packed pass gradients as those of 8 bits do: straight through rounding, not beyond saturation; in
 * and outside of traces, through views and other ops, and none where only their value is left. */
static void four_bits(void)
{
    static const float at[8] = {0.3f, -1.1f, 3.7f, 4, -4, -4.2f, -5, 3.5f};
    kl_tensor x = f32(D(2, 4), at), s = f32(0, NULL, (float[]){0.5f}), y, dx, ds, ddx;
    double want[8] = {1, -2, 7, 0, -8, -8, 0, 7}, through[8], stay[8];
    OK(kl_trace_begin("four bits"));
    y = kl_dense(fours(x, s));
    dx = kl_keep(kl_grad(kl_sum_all(kl_square(y)), x)), ds = kl_keep(kl_grad(kl_sum_all(y), s)),
        ddx = kl_keep(kl_grad(kl_sum_all(dx), x));
    OK(kl_trace_end());
    NEAR(dx, 8, want, 1e-6);
    for (int i = 0; i < 8; i++)
        through[i] = want[i] ? 2 : 0;
    NEAR(ddx, 8, through, 1e-6);
    NEAR_LIST(ds, 1e-5, (1 - 0.6) + (-2 + 2.2) + (7 - 7.4) + 7 + 0 + (-8 + 8.4) - 8 + 0); /* as of 8 bits */
    OK(kl_requires_grad(x));
    NEAR(kl_grad(kl_sum_all(kl_square(kl_dense(fours(x, s)))), x), 8, want, 1e-6);
    for (int i = 0; i < 8; i++)
        stay[i] = i == 1 || i == 5 || i == 7 ? through[i] / 2 : 0;
    kl_tensor permuted = kl_transpose(kl_reshape(fours(x, s), D(4, 2)), 0, 1),
        part = kl_narrow(kl_reshape(fours(x, s), D(2, 2, 2)), 2, 1, 1);
    NEAR(kl_grad(kl_sum_all(kl_narrow(permuted, 0, 1, 1)), x), 8, stay, 1e-6);
    NEAR(kl_grad(kl_sum_all(part), x), 8, stay, 1e-6);
    CHECK(!strcmp(kl_layer_name(permuted), "quantized") && close(kl_dense(kl_reshape(fours(x, s), D(4, 2))),
                                                               kl_reshape(kl_dense(fours(x, s)), D(4, 2)), 0));
    CHECK(close(kl_grad(kl_sum_all(kl_exp(fours(x, s))), x),
                kl_mul_scalar(kl_mul(kl_exp(kl_dense(fours(x, s))), f32(D(2, 4), (float[]){1, 1, 1, 0, 1, 1, 0, 1})),
                              1), 1e-5));
    kl_tensor kept = kl_keep(fours(x, s)); /* 4 bytes of integers */
    OK(kl_read(kl_layer_part(kept, 0), (unsigned char[4]){0}, 4));
    OK(kl_read(kept, (float[8]){0}, 32));
    CHECK(kl_numel(kl_layer_part(kept, 0)) == 4 && close(kl_dense(kept), kl_dense(fours(x, s)), 0));
    kl_no_grad_begin();
    kl_tensor stopped = fours(x, s);
    kl_no_grad_end();
    CHECK(refused(kl_grad(kl_sum_all(kl_dense(stopped)), x), KL_ERR_GRAD, ""));
    kl_release(kept);
}

static void b5(void)
{
    OK(kl_scope_begin());
    kl_tensor x = noise(D(6, 8), 1), q8 = kl_to_quantized(x, Q(KL_Q_I8), kl_none, kl_none);
    CHECK(kl_dtype_of(q8) == KL_F32 && kl_dtype_of(kl_layer_part(q8, 0)) == KL_I8 &&
          kl_numel(kl_layer_part(q8, 1)) == 1);
    kl_dispatch_log_begin();
    kl_tensor y = kl_exp(q8);
    const char *log = kl_dispatch_log_end();
    CHECK(!strcmp(kl_device_name(cpu), "ref") || op_keys_are(log, "exp", "QuantizedCPU,CPU"));
    CHECK(!strcmp(kl_layer_name(y), "quantized"));
    kl_tensor step = kl_layer_part(y, 1), off = kl_abs(kl_sub(kl_dense(y), kl_exp(kl_dense(q8))));
    CHECK(kl_item_f64(kl_max(off, 0, NULL, false)) <= 0.50001 * kl_item_f64(step));

    kl_qscheme all[] = {Q(KL_Q_I8), Q(KL_Q_U8), Q(KL_Q_I4), Q(KL_Q_I8, .per_axis = true),
                        Q(KL_Q_U8, .per_axis = true, .axis = 1),
                        Q(KL_Q_I4, .per_axis = true, .axis = -1), Q(KL_Q_I8, .block = 3), Q(KL_Q_U8, .block = 2),
                            Q(KL_Q_I4, .block = 6)};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        CHECK(half_a_step(x, all[i]));
    CHECK(kl_numel(kl_layer_part(kl_to_quantized(x, Q(KL_Q_I4), kl_none, kl_none), 0)) == 24); /* bytes */

    /* products: integers, equal to the product of what they stand for, whatever the scales are of */
    kl_tensor w = noise(D(8, 4), 2), b = noise(D(8, 4), 3);
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        for (unsigned k = 0; k < 4; k++) {
            kl_qscheme right[] = {Q(KL_Q_I8), Q(KL_Q_U8, .per_axis = true, .axis = 1), Q(KL_Q_I4, .block = 4),
                                  Q(KL_Q_I8, .per_axis = true, .axis = 0)};
            if ((i + k) % 3) /* each kind of scale meets each other */
                continue;
            kl_qscheme left = all[i];
            left.axis = left.block ? 1 : left.axis;
            left.block = left.block ? 4 : 0;
            kl_tensor a = kl_to_quantized(x, left, kl_none, kl_none), c = kl_to_quantized(w, right[k], kl_none,
                                                                                          kl_none);
            kl_tensor got = kl_matmul(a, c);
            CHECK(!strcmp(kl_layer_name(got), "") && close(got, kl_matmul(kl_dense(a), kl_dense(c)), 2e-6));
        }
    kl_tensor w8 = kl_to_quantized(w, Q(KL_Q_I8, .per_axis = true, .axis = 1), kl_none, kl_none),
        b8 = kl_to_quantized(b, Q(KL_Q_U8), kl_none, kl_none);
    int both[] = {1, 0};
    CHECK(close(kl_dense(kl_permute(w8, both)), kl_permute(kl_dense(w8), both), 0) &&
          close(kl_layer_part(kl_permute(w8, both), 0), kl_permute(kl_layer_part(w8, 0), both), 0));
    CHECK(close(kl_matmul(q8, kl_add(w8, b8)), kl_matmul(kl_dense(q8), kl_add(kl_dense(w8), kl_dense(b8))), 0.06));
    CHECK(close(kl_matmul(x, w8), kl_matmul(x, kl_dense(w8)), 1e-6)); /* weights alone */
    kl_tensor batch = kl_to_quantized(noise(D(3, 5, 8), 4), Q(KL_Q_I8, .per_axis = true, .axis = 0), kl_none, kl_none);
    kl_tensor batch_w = kl_to_quantized(noise(D(3, 8, 2), 5), Q(KL_Q_I8, .per_axis = true, .axis = 2), kl_none,
                                        kl_none);
    CHECK(close(kl_matmul(batch, batch_w), kl_matmul(kl_dense(batch), kl_dense(batch_w)), 2e-6));

    /* what a product records: a dot of 32-bit integers and no dequantize, and after simplifying none either where a
     * gradient could have been asked for */
    OK(kl_read(kl_dense(w8), (float[32]){0}, 128));
    kl_no_grad_begin();
    OK(kl_trace_begin("integer_product"));
    kl_keep(kl_matmul(kl_to_quantized(x, Q(KL_Q_I8), kl_none, kl_none), w8));
    const char *text = stage("captured");
    CHECK(strstr(text, " dot ") && strstr(text, "i32[6,4]") && strstr(text, "quantize") && !strstr(text, "dequantize"));
    kl_trace_abandon();
    kl_no_grad_end();
    OK(kl_trace_begin("integer_product_2"));
    kl_keep(kl_matmul(kl_to_quantized(x, Q(KL_Q_I8), kl_none, kl_none), w8));
    text = stage("simplified");
    CHECK(strstr(text, "i32[6,4]") && !strstr(text, "dequantize") && !strstr(text, "custom_grad"));
    kl_trace_abandon();

    /* gradients are those of the floats */
    for (int i = 0; i < 6; i++) {
        kl_qscheme left = i == 1 ? Q(KL_Q_U8, .per_axis = true) : i == 2 ? Q(KL_Q_I8, .axis = 1, .block = 4) : i == 3
            ? Q(KL_Q_I4)
                          : i == 4 ? Q(KL_Q_I4, .axis = 1, .block = 4) : i == 5 ? Q(KL_Q_I4, .per_axis = true)
                              : Q(KL_Q_I8);
        OK(kl_trace_begin("gradient"));
        kl_tensor qa = kl_to_quantized(x, left, kl_none, kl_none),
            qw = kl_to_quantized(w, Q(i == 3 ? KL_Q_I4 : KL_Q_I8, .per_axis = true, .axis = 1), kl_none, kl_none);
        kl_tensor l = kl_sum_all(kl_square(kl_matmul(qa, qw))),
            same = kl_sum_all(kl_square(kl_matmul(kl_dense(qa), kl_dense(qw))));
        kl_tensor g[4] = {kl_keep(kl_grad(l, x)), kl_keep(kl_grad(same, x)), kl_keep(kl_grad(l, w)),
                          kl_keep(kl_grad(same, w))};
        kl_tensor permuted = kl_keep(kl_grad(kl_sum_all(kl_square(kl_matmul(kl_transpose(qw, 0, 1),
                                                                          kl_transpose(qa, 0, 1)))), w));
        OK(kl_trace_end());
        CHECK(kl_item_f64(kl_sum_all(kl_abs(g[1]))) > 1 && (i ||
                                                            close(permuted,
                                                                  kl_keep(kl_reshape(g[3], 2, (int64_t[]){8, 4})),
            1e-4)));
        CHECK(close(g[0], g[1], 1e-4) && close(g[2], g[3], 1e-4));
    }
    OK(kl_requires_grad(x));
    CHECK(close(kl_grad(kl_sum_all(kl_matmul(kl_to_quantized(x, Q(KL_Q_I8), kl_none, kl_none), w8)), x),
                kl_expand(kl_reshape(kl_sum(kl_dense(w8), AXES(1), false), 2, (int64_t[]){1, 8}), 2, (int64_t[]){6, 8}),
                    1e-5));
    CHECK(close(kl_grad(kl_sum_all(kl_exp(kl_to_quantized(x, Q(KL_Q_I8), kl_none, kl_none))), x), kl_exp(x), 0.1));

    four_bits();

    /* observers */
    kl_observer o;
    OK(kl_observer_init(&o, cpu, Q(KL_Q_U8), KL_F32, 1, (int64_t[]){3}));
    OK(kl_observer_update(&o, f32(D(3), (float[]){1, 2, 3})));
    OK(kl_observer_update(&o, f32(D(3), (float[]){-2, 1, 2})));
    NEAR_LIST(kl_dense(kl_observer_quantize(&o, f32(D(3), (float[]){9, -9, 1.01f}))), 1e-6, 153 / 51.0, -102 / 51.0,
              52 / 51.0);
    CHECK(refused(kl_to_quantized(kl_cast(x, KL_I32), Q(KL_Q_I8), kl_none, kl_none), KL_ERR_TYPE,
                  "quantized: needs a floating dtype, got i32"));
    CHECK(refused(kl_to_quantized(x, Q(KL_Q_I8, .block = 5), kl_none, kl_none), KL_ERR_SHAPE,
                  "axis 0 of [6,8] is not cut into blocks of 5"));
    CHECK(refused(kl_to_quantized(x, Q(KL_Q_I8), w, kl_none), KL_ERR_SHAPE, "the scale has shape [8,4], not [1,1]"));
    CHECK(refused(kl_grad(kl_sum_all(kl_dense(q8)), q8), KL_ERR_GRAD, "a quantized tensor has no gradient"));
    kl_observer_deinit(&o);
    OK(kl_observer_init(&o, cpu, Q(KL_Q_I8, .per_axis = true, .axis = -1), KL_F32, 2, (int64_t[]){1, 2}));
    o.momentum = 0.5;
    OK(kl_observer_update(&o, f32(D(2, 2), (float[]){1, -5, 3, 5})));
    OK(kl_trace_begin("observer_update")); /* where states are assigned when it has run */
    OK(kl_observer_update(&o, f32(D(1, 2), (float[]){-2, 1})));
    OK(kl_trace_end());
    CHECK(kl_item_f64(kl_narrow(o.low, 1, 0, 1)) == -0.5 && kl_item_f64(kl_narrow(o.high, 1, 1, 1)) == 3);
    CHECK(refused(kl_observer_quantize(&o, x), KL_ERR_SHAPE,
                  "the observer's ranges are [1,2], those of this tensor [1,8]"));
    kl_observer_deinit(&o);
    OK(kl_scope_end());
}

static void d5(void)
{
    kl_key on_device = kl_dispatch_resolve("exp", SET(KL_KEY_QuantizedCPU)),
        general = kl_dispatch_resolve("exp", SET(KL_KEY_Quantized));
    CHECK(on_device == KL_KEY_QuantizedCPU && general == KL_KEY_Quantized &&
          table_has("exp", "QuantizedCUDA: quantized [layer kernel]"));
    kl_tensor x = f32(D(2), (float[]){1, 2}), q = kl_to_quantized(x, Q(KL_Q_I8), kl_none, kl_none);
    kl_registration r = reg("exp", KL_KEY_QuantizedCPU, giving(7, "fn_q8_cpu"));
    CHECK(table_has("exp", "QuantizedCPU: fn_q8_cpu [kernel]") &&
          table_has("exp", "QuantizedXPU: quantized [layer kernel]"));
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

static kl_tensor sparse_loss(kl_tensor values, void *ctx)
{
    kl_tensor x = *(kl_tensor *)ctx, s = coo(values), r = csr(values);
    kl_tensor y = kl_matmul(kl_transpose(r, 0, 1), kl_add(kl_matmul(s, x), kl_matmul(kl_mul(r, s), x)));
    kl_tensor sampled = kl_sampled_matmul(kl_matmul(s, x), kl_transpose(x, 0, 1), r);
    return kl_add(kl_sum_all(kl_square(y)), kl_sum_all(kl_mul(sampled, kl_exp(kl_dense(s)))));
}

static char printed[200];
static void keep_line(void *ctx, const char *line)
{
    (void)ctx;
    snprintf(printed, sizeof printed, "%s", line);
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
    kl_tensor both[] = {s, r}, dense[] = {kl_dense(s), kl_dense(r)}, y = noise(D(3, 5), 6), vec = noise(D(4), 7),
        wide = noise(D(2, 3, 5), 8);
    for (int i = 0; i < 2; i++) {
        CHECK(close(kl_matmul(both[i], x), kl_matmul(dense[i], x), 1e-6) &&
              close(kl_matmul(y, both[i]), kl_matmul(y, dense[i]), 1e-6));
        CHECK(close(kl_matmul(both[i], vec), kl_matmul(dense[i], vec), 1e-6));
        CHECK(close(kl_dot_general(wide, both[i], 0, NULL, NULL, 1, (int[]){2}, (int[]){0}),
                    kl_dot_general(wide, dense[i], 0, NULL, NULL, 1, (int[]){2}, (int[]){0}), 1e-6));
        CHECK(close(kl_matmul(both[i], kl_transpose(both[!i], 0, 1)),
                    kl_matmul(dense[i], kl_transpose(dense[!i], 0, 1)), 1e-6));
        CHECK(close(kl_sum(both[i], AXES(0), false), kl_sum(dense[i], AXES(0), false), 1e-6) &&
              close(kl_sum(both[i], AXES(1), true), kl_sum(dense[i], AXES(1), true), 1e-6) &&
              close(kl_sum_all(both[i]), kl_sum_all(dense[i]), 1e-6) &&
                  close(kl_mean(both[i], 0, NULL, false), kl_mean(dense[i], 0, NULL, false), 1e-6));
        kl_tensor stays[] = {kl_neg(both[i]), kl_mul_scalar(both[i], 3), kl_mul(both[i], dense[!i]),
                             kl_mul(vec, both[i]), kl_div_scalar(both[i], 2),
                             kl_add(both[i], both[!i]), kl_sub(both[i], both[!i]), kl_detach(both[i]),
                                 kl_cast(both[i], KL_F64)};
        kl_tensor want[] = {kl_neg(dense[i]), kl_mul_scalar(dense[i], 3), kl_mul(dense[i], dense[!i]),
                            kl_mul(vec, dense[i]), kl_div_scalar(dense[i], 2),
                            kl_add(dense[i], dense[!i]), kl_sub(dense[i], dense[!i]), kl_detach(dense[i]),
                                kl_cast(dense[i], KL_F64)};
        for (int k = 0; k < 9; k++)
            CHECK(!strcmp(kl_layer_name(stays[k]), "sparse") && close(kl_dense(stays[k]), want[k], 1e-6));
        CHECK(close(kl_exp(both[i]), kl_exp(dense[i]), 0) &&
              close(kl_maximum(both[i], dense[!i]), kl_maximum(dense[i], dense[!i]), 0));
    }
    CHECK(close(kl_dense(kl_sampled_matmul(kl_transpose(y, 0, 1), kl_transpose(x, 0, 1), r)),
                kl_mul(kl_matmul(kl_transpose(y, 0, 1), kl_transpose(x, 0, 1)),
                       kl_cast(kl_ne(dense[1], kl_zeros(cpu, KL_F32, 0, NULL)), KL_F32)), 1e-6));
    CHECK(close(kl_dense(kl_to_sparse(dense[0], 9)), kl_dense(s), 0) &&
          kl_numel(kl_layer_part(kl_to_sparse(dense[0], 9), 0)) == 9);
    CHECK(isnan(kl_item_f64(kl_sum_all(kl_to_sparse(dense[0], 3))))); /* too many: not silently less */

    kl_set_print(keep_line, NULL);
    kl_print(s, "sparse");
    kl_set_print(NULL, NULL);
    CHECK(!strncmp(printed, "sparse", 6) && strstr(printed, "f32[5,4]"));

    /* what is recorded: a native product has its own kernel, an op without one densifies */
    bool on_cpu = strcmp(kl_device_name(cpu), "ref");
    kl_dispatch_log_begin();
    kl_matmul(s, x);
    const char *log = kl_dispatch_log_end();
    CHECK(strstr(log, "op=[dot]") && !strstr(log, "densify") && strstr(log, "op=[scatter], key=[") &&
          !strstr(log, "op=[dot], key=[CPU]"));
    kl_dispatch_log_begin();
    kl_exp(s);
    log = kl_dispatch_log_end();
    CHECK(!on_cpu || (strstr(log, "[call] op=[exp], key=[SparseCPU]\n [densify] op=[exp], key=[SparseCPU]\n") &&
                      strstr(log, "[call] op=[exp], key=[CPU]")));

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
    kl_tensor big = kl_sparse_coo(noise(D(STORED), 21), kl_input(cpu, KL_I32, D(STORED), row),
                                  kl_input(cpu, KL_I32, D(STORED), column), N, N);
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

    CHECK(refused(kl_sparse_coo(v, kl_cast(v, KL_I32), kl_arange(cpu, KL_I32, 3), 2, 2), KL_ERR_SHAPE,
                  "the columns has shape [3], not [as many"));
    CHECK(refused(kl_sparse_csr(v, v, v, 3), KL_ERR_TYPE, "the starts is f32, not i32 or i64"));
    CHECK(refused(kl_matmul(s, y), KL_ERR_SHAPE, "matmul: shapes [5,4] and [3,5] do not fit"));
    kl_release(d);
    OK(kl_scope_end());
}

/* Sparse beats dense, in whichever order the arguments come. */
static kl_status power_round(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
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
    kl_tensor square[] = {kl_add(kl_matmul(s, kl_transpose(s, 0, 1)), kl_eye(cpu, KL_F32, 5, 5)), kl_none},
        from = kl_ones(cpu, KL_F32, D(5)), y[2];
    square[1] = kl_to_sparse(square[0], 25);
    for (int i = 0; i < 2; i++)
        OK(kl_scan(power_round, &square[i], 4, 1, &from, 0, NULL, 0, false, &y[i]));
    CHECK(close(y[1], y[0], 1e-5));
    CHECK(kl_checkpoint(power_round, &square[0], 1, &square[1], 1, y) == KL_ERR_TYPE &&
          says("is a sparse tensor, which this is not for"));
    kl_release(y[0]);
    kl_clear_error();
    kl_device ref = kl_device_named("ref");
    if (ref.id) {
        kl_tensor there = kl_to(s, ref);
        CHECK(!strcmp(kl_layer_name(there), "sparse") && kl_device_of(there).id == ref.id &&
              close(kl_to(kl_dense(there), cpu), kl_dense(s), 0));
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
    CHECK(!strcmp(kl_layer_text(p, text, sizeof text), "blocked f32[6,4]: f32[3,2,2,2]") &&
          !strcmp(kl_layer_text(a, text, sizeof text), ""));
    CHECK(close(kl_dense(p), a, 0));
    a = noise(D(6, 4), 1);
    bool on_cpu = strcmp(kl_device_name(cpu), "ref");
    kl_dispatch_log_begin();
    kl_tensor y = kl_matmul(p, q);
    const char *log = kl_dispatch_log_end();
    CHECK(!on_cpu || op_keys_are(log, "dot", "MkldnnCPU,CPU"));
    CHECK(!strcmp(kl_layer_text(y, text, sizeof text), "blocked f32[6,8]: f32[3,4,2,2]") &&
          close(kl_dense(y), kl_matmul(a, b), 1e-6));
    kl_tensor stays[] = {kl_relu(p), kl_mul_scalar(p, 3), kl_add(p, kl_exp(p)), kl_transpose(p, 0, 1),
                         kl_cast(p, KL_F64)};
    kl_tensor want[] = {kl_relu(a), kl_mul_scalar(a, 3), kl_add(a, kl_exp(a)), kl_transpose(a, 0, 1),
                        kl_cast(a, KL_F64)};
    for (int i = 0; i < 5; i++)
        CHECK(!strcmp(kl_layer_name(stays[i]), "blocked") && close(kl_dense(stays[i]), want[i], 0));
    /* converted */
    kl_tensor other[] = {kl_add(p, a), kl_matmul(p, b), kl_sum_all(p), kl_softmax(p, -1), kl_add(p, kl_blocked(a, 1))};
    kl_tensor plain[] = {kl_add(a, a), kl_matmul(a, b), kl_sum_all(a), kl_softmax(a, -1), kl_add(a, a)};
    for (int i = 0; i < 5; i++)
        CHECK(!strcmp(kl_layer_name(other[i]), "") && close(other[i], plain[i], 1e-6));
    OK(kl_requires_grad(p));
    kl_tensor g = kl_grad(kl_sum_all(kl_square(kl_matmul(p, q))), p);
    CHECK(!strcmp(kl_layer_name(g), "blocked") && close(kl_dense(g),
                                                        kl_mul_scalar(kl_matmul(kl_matmul(a, b), kl_transpose(b, 0, 1)),
                                                                      2), 1e-5));
    OK(kl_trace_begin("tiles"));
    kl_keep(kl_relu(kl_blocked(kl_input(cpu, KL_F32, D(6, 4), (float[24]){0}), 2)));
    CHECK(strstr(stage("captured"), "f32[3,2,2,2]"));
    kl_trace_abandon();
    CHECK(refused(kl_blocked(a, 4), KL_ERR_SHAPE, "blocked: [6,4] is not cut into tiles of 4"));
    OK(kl_scope_end());
}

static const struct row rows[] = {{"D6", d6}, {"B5", b5}, {"D5", d5}, {"B4", b4}, {"D9", d9}, {"D8", d8}};

int main(int argc, char **argv) { return RUN_ROWS(rows); }
