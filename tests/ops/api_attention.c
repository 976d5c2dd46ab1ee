/* Attention through the public API: one kernel each, without an L x M in memory; windows; under vmap, autocast,
 * checkpoints, the tracer and dry runs; misuse.  api_nn.c has plain values and api_nn_grad.c gradients; attention.c the
 * numbers. */
#include "tests/support/api_numbers.h"

/* Kernels of one call, and its temporaries' bytes; what it reads is there before. */
static kl_run_info cost(kl_tensor q, kl_tensor k, kl_tensor v, kl_tensor mask, bool causal)
{
    kl_run_info info = {0};
    OK(kl_trace_begin("attention_cost"));
    kl_tensor y = kl_attention(q, k, v, mask, causal);
    kl_keep(y);
    OK(kl_trace_end());
    OK(kl_trace_info(&info));
    kl_release(y);
    return info;
}

static kl_tensor there(kl_tensor t)
{
    kl_keep(t);
    OK(kl_sync(dev));
    return t;
}

static void one_kernel(void)
{
    enum { L = 200, H = 2, DEPTH = 16 };
    if (!strcmp(kl_device_name(dev), "ref"))
        return;
    kl_tensor x = there(kl_randn(dev, KL_F32, D(L, H, DEPTH), 1)), heads = kl_transpose(x, 0, 1);
    kl_tensor z = there(kl_randn(dev, KL_F32, D(H, L, DEPTH), 4));
    kl_tensor mask = there(kl_gt(kl_randn(dev, KL_F32, D(H, L, L), 2), kl_zeros(dev, KL_F32, D(1))));
    kl_tensor keys = there(kl_gt(kl_randn(dev, KL_F32, D(L), 3), kl_zeros(dev, KL_F32, D(1))));
    kl_tensor from = kl_iota(dev, KL_I32, 2, (int64_t[]){L, 1}, 0),
        window = there(kl_concat(2, (kl_tensor[]){from, kl_add_scalar(from, 20)}, 1));
    const struct { kl_tensor mask; bool causal; } form[] = {{kl_none, false}, {kl_none, true}, {mask, false},
                                                            {mask, true}, {keys, false}, {window, false}};
    for (int i = 0; i < (int)(sizeof form / sizeof *form); i++)
        for (int views = 0; views < 2; views++) { /* heads apart in memory, and a head for all */
            kl_run_info info = cost(views ? heads : z, views ? kl_narrow(heads, 0, 1, 1) : z, views ? heads : z,
                                    form[i].mask, form[i].causal);
            CHECK(info.kernels == 1 && info.arena_bytes == 0);
        }
    OK(kl_trace_begin("attention_half"));
    kl_tensor h = kl_cast(x, KL_BF16), y = kl_attention(h, h, h, kl_none, false);
    kl_keep(y), kl_keep(h);
    OK(kl_trace_end());
    kl_tensor wide = kl_cast(h, KL_F32), want = kl_attention(wide, wide, wide, kl_none, false);
    CHECK(kl_item_f64(kl_max(kl_abs(kl_sub(kl_cast(y, KL_F32), want)), 0, NULL, false)) < 0x1p-6);
    kl_release(x), kl_release(z), kl_release(y), kl_release(h), kl_release(mask), kl_release(keys), kl_release(window);
}

/* What forward and gradient of a causal attention of so many queries and keys cost. */
static kl_run_info gradient_cost(int64_t length, bool causal)
{
    kl_tensor x[3], g[3], w = there(kl_randn(dev, KL_F32, D(2, length, 16), 4));
    for (int i = 0; i < 3; i++)
        x[i] = there(kl_randn(dev, KL_F32, D(2, length, 16), 1 + (uint64_t)i));
    kl_run_info info = {0};
    OK(kl_trace_begin("attention_gradient"));
    kl_tensor y = kl_keep(kl_attention(x[0], x[1], x[2], kl_none, causal)), loss = kl_sum(kl_mul(y, w), 0, NULL, false);
    for (int i = 0; i < 3; i++)
        g[i] = kl_keep(kl_grad(loss, x[i]));
    OK(kl_trace_end());
    OK(kl_trace_info(&info));
    kl_release(y), kl_release(w);
    for (int i = 0; i < 3; i++)
        kl_release(x[i]), kl_release(g[i]);
    return info;
}

/* Many queries: temporaries of forward and gradient grow with the length, not with its square, and no scores are among
 * them; few, whose scores are stored, cost fewer operations. */
static void gradient_memory(void)
{
    if (!strcmp(kl_device_name(dev), "ref"))
        return;
    int64_t half = gradient_cost(512, true).arena_bytes, whole = gradient_cost(1024, true).arena_bytes;
    CHECK(half > 0 && whole <= 2 * half + 4096 && half < 2 * 512 * 512 * 4);
    CHECK(gradient_cost(512, true).kernels <= 9);
    CHECK(gradient_cost(128, false).arena_bytes >= 2 * 128 * 128 * 4);
}

/* Attention of products and a softmax, of keys at most as far on as the query. */
static kl_tensor by_products(const kl_tensor *x, int64_t length, double depth)
{
    kl_tensor i = kl_iota(dev, KL_I32, D(length, length), 0), j = kl_iota(dev, KL_I32, D(length, length), 1);
    kl_tensor score = kl_mul_scalar(kl_matmul(x[0], kl_transpose(x[1], -1, -2)), 1 / sqrt(depth));
    score = kl_where(kl_le(j, i), score, kl_const(dev, KL_F32, -INFINITY));
    return kl_matmul(kl_softmax(score, -1), x[2]);
}

static kl_status attend(void *ctx, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)ctx, (void)n, (void)m;
    *out = kl_attention(in[0], in[1], in[2], kl_none, true);
    return KL_OK;
}

/* The gradient of many queries, and the same in a checkpoint. */
static void long_gradients(void)
{
    enum { L = 260, DEPTH = 8 };
    kl_tensor x[3], w = there(kl_randn(dev, KL_F32, D(1, L, DEPTH), 4)), y[3], g[3][3];
    for (int i = 0; i < 3; i++)
        x[i] = there(kl_randn(dev, KL_F32, D(1, L, DEPTH), 1 + (uint64_t)i));
    OK(kl_trace_begin("long_gradients"));
    y[0] = by_products(x, L, DEPTH);
    y[1] = kl_attention(x[0], x[1], x[2], kl_none, true);
    OK(kl_checkpoint(attend, NULL, 3, x, 1, &y[2]));
    for (int way = 0; way < 3; way++)
        for (int i = 0; i < 3; i++)
            g[way][i] = kl_keep(kl_grad(kl_sum(kl_mul(y[way], w), 0, NULL, false), x[i]));
    OK(kl_trace_end());
    for (int i = 0; i < 3; i++) {
        CHECK(kl_item_f64(kl_max(kl_abs(kl_sub(g[0][i], g[1][i])), 0, NULL, false)) < 1e-4);
        CHECK(kl_item_f64(kl_max(kl_abs(kl_sub(g[1][i], g[2][i])), 0, NULL, false)) == 0);
        kl_release(g[0][i]), kl_release(g[1][i]), kl_release(g[2][i]);
    }
    kl_release(w);
    for (int i = 0; i < 3; i++)
        kl_release(x[i]);
}

/* A window is the mask of its keys, in either integer type and for all heads at once. */
static void windows(void)
{
    double q[2 * 6 * 3], k[2 * 7 * 3], v[2 * 7 * 4];
    int32_t bounds[12];
    uint8_t mask[42];
    for (int i = 0; i < 6; i++) {
        bounds[2 * i] = i - 1;
        bounds[2 * i + 1] = i == 4 ? 0 : i + 3;
        for (int j = 0; j < 7; j++)
            mask[7 * i + j] = j >= bounds[2 * i] && j < bounds[2 * i + 1];
    }
    kl_tensor qt = noisy(3, D(2, 6, 3), q), kt = noisy(50, D(2, 7, 3), k), vt = noisy(80, D(2, 7, 4), v);
    kl_tensor b = i32(2, (int64_t[]){6, 2}, bounds), m = kl_input(dev, KL_BOOL, D(6, 7), mask);
    for (int causal = 0; causal < 2; causal++) {
        double *want = values_of(kl_attention(qt, kt, vt, m, causal));
        NEAR(kl_attention(qt, kt, vt, b, causal), 48, want, 0);
        NEAR(kl_attention(qt, kt, vt, kl_cast(b, KL_I64), causal), 48, want, 0);
        CHECK(want[16] == 0 && want[19] == 0 && want[47] != 0);
        free(want);
    }
}

/* ---- layers ---- */

static kl_status function(void *ctx, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)n, (void)m;
    out[0] = kl_attention(in[0], in[1], in[1], *(kl_tensor *)ctx, true);
    return KL_OK;
}

static kl_tensor gradient_of(kl_tensor y, kl_tensor x) { return kl_grad(kl_sum_all(kl_square(y)), x); }

static void layers(void)
{
    double q[2 * 5 * 3], k[5 * 3];
    int32_t bounds[10] = {0, 5, 1, 3, 2, 2, 0, 4, 3, 5};
    kl_tensor qt = noisy(7, D(2, 5, 3), q), kt = noisy(60, D(5, 3), k), b = i32(2, (int64_t[]){5, 2}, bounds), y, again;
    kl_requires_grad(qt), kl_requires_grad(kt);
    OK(kl_vmap(function, &b, 2, (kl_tensor[]){qt, kt}, (int[]){0, KL_NO_AXIS}, 1, NULL, KL_RANDOM_ERROR, &y));
    kl_tensor want = kl_attention(qt, kt, kt, b, true);
    double *one = values_of(want), *two;
    two = values_of(gradient_of(want, kt));
    NEAR(gradient_of(y, kt), 15, two, 1e-12);
    NEAR(y, 30, one, 1e-14);
    OK(kl_checkpoint(function, &b, 2, (kl_tensor[]){qt, kt}, 1, &again));
    NEAR(gradient_of(again, kt), 15, two, 0);
    NEAR(again, 30, one, 0);
    free(two);
    kl_tracer *tr = kl_tracer_begin(KL_TAP_CALLS, 1, &qt);
    kl_tensor traced = kl_attention(qt, kt, kt, b, true), out;
    OK(kl_tracer_end(tr, 1, &traced));
    CHECK(strstr(kl_tracer_text(tr), " = attention ") != NULL);
    OK(kl_tracer_run(tr, 1, &qt, 1, &out));
    NEAR(out, 30, one, 0);
    kl_tracer_free(tr);
    free(one);
    kl_tensor f = kl_cast(qt, KL_F32), low = kl_cast(f, KL_BF16);
    OK(kl_autocast_begin(KL_BF16));
    kl_tensor cast = kl_attention(f, f, f, kl_none, true);
    OK(kl_autocast_end());
    double *narrow = values_of(kl_attention(low, low, low, kl_none, true));
    CHECK(kl_dtype_of(cast) == KL_BF16);
    NEAR(cast, 30, narrow, 0);
    free(narrow);
    kl_tensor far = kl_zeros(kl_device_named("meta"), KL_F16, D(3, 8, 4)),
        dry = kl_attention(far, far, kl_narrow(far, 2, 0, 2), kl_none, true);
    SHAPE(dry, 3, 8, 2);
    CHECK(kl_dtype_of(dry) == KL_F16);
}

static void misuse(void)
{
    kl_tensor a = kl_zeros(dev, KL_F32, D(2, 3)), i = kl_zeros(dev, KL_I32, D(2, 3));
    const struct { kl_tensor mask; kl_status code; const char *text; } bad[] = {
        {kl_zeros(dev, KL_I64, D(2, 3)), KL_ERR_SHAPE, "a mask of shape [2,3] does not broadcast to [2,2]"},
        {kl_zeros(dev, KL_BOOL, D(4, 2, 2)), KL_ERR_SHAPE, "a mask of shape [4,2,2] does not broadcast to [2,2]"},
        {kl_zeros(dev, KL_U8, D(2, 2)), KL_ERR_TYPE, "the mask must be bool, or i32 or i64 bounds, got u8"}};
    for (int n = 0; n < 3; n++)
        CHECK(kl_check(kl_attention(a, a, a, bad[n].mask, false)) == bad[n].code &&
              strstr(kl_last_error(), bad[n].text) &&
              strstr(kl_last_error(), "api_attention.c"));
    CHECK(kl_check(kl_attention(i, i, i, kl_none, false)) == KL_ERR_TYPE &&
          strstr(kl_last_error(), "one floating dtype, got i32, i32 and i32"));
    CHECK(kl_check(kl_attention(a, kl_zeros(dev, KL_F32, D(2, 4)), a, kl_none, false)) == KL_ERR_SHAPE);
    CHECK(kl_check(kl_attention(kl_zeros(dev, KL_F32, D(3, 2, 3)), kl_zeros(dev, KL_F32, D(2, 2, 3)), a, kl_none,
                                false)) == KL_ERR_SHAPE);
}

static void test(kl_device d)
{
    dev = d;
    kl_scope_begin();
    one_kernel();
    gradient_memory();
    long_gradients();
    windows();
    layers();
    misuse();
    OK(kl_scope_end());
}

int main(void) { return on_devices(test); }
