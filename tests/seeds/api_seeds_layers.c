/* Rows of the dispatch system about transforms other than vmap, and about device meta.  Arguments: ids of rows; none:
 * all. */
#include "api_seeds.h"

/* The open trace at a stage, as text that the caller frees. */
static char *dumped(const char *stage)
{
    char path[] = "/tmp/kiln-layers-XXXXXX";
    int fd = mkstemp(path);
    char *text = calloc(1, 1 << 20);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    if (!f || !text || kl_dump(NULL, stage, path) != KL_OK || !freopen(path, "r", f))
        return printf("dump: %s\n", kl_last_error()), text;
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    text[n] = 0;
    fclose(f);
    remove(path);
    return text;
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *s = text; (s = strstr(s, what)); s++)
        n++;
    return n;
}

/* ---- B7: what the policies do ---- */

static void b7(void)
{
    kl_tensor x = made(DIMS(4, 6)), w = made(DIMS(6, 3)), half = kl_cast(x, KL_BF16), y;
    OK(kl_autocast_begin(KL_BF16));
    CHECK(kl_autocast_dtype() == KL_BF16);
    OK(kl_trace_begin("policies"));
    y = kl_matmul(x, w);
    CHECK(kl_dtype_of(y) == KL_BF16);                                                      /* LOWER */
    CHECK(kl_dtype_of(kl_add(y, y)) == KL_BF16 && kl_dtype_of(kl_add(x, x)) == KL_F32);     /* ANY, or alike */
    CHECK(kl_dtype_of(kl_exp(y)) == KL_F32 && kl_dtype_of(kl_sum_all(y)) == KL_F32);        /* FP32 */
    CHECK(kl_dtype_of(kl_add(y, kl_narrow(x, 1, 0, 3))) == KL_F32);                         /* PROMOTE */
    CHECK(kl_dtype_of(kl_relu(y)) == KL_BF16 && kl_dtype_of(kl_softmax(y, 1)) == KL_F32);
    CHECK(kl_dtype_of(kl_lt(y, kl_narrow(x, 1, 0, 3))) == KL_BOOL);
    kl_tensor wide = kl_cast(x, KL_F64);
    CHECK(kl_dtype_of(kl_matmul(wide, kl_cast(w, KL_F64))) == KL_F64);
    OK(kl_autocast_begin(KL_F32)); /* not in here */
    CHECK(kl_dtype_of(kl_matmul(x, w)) == KL_F32 && kl_autocast_dtype() == KL_F32);
    OK(kl_autocast_end());
    OK(kl_autocast_begin(KL_F16));
    CHECK(kl_dtype_of(kl_matmul(x, w)) == KL_F16);
    OK(kl_autocast_end());
    kl_trace_abandon();
    /* The IR: a cast of each operand of the product, none in a softmax of f32. */
    OK(kl_trace_begin("dumped"));
    kl_keep(y = kl_matmul(x, w));
    char *text = dumped("captured");
    CHECK(count(text, "= cast ") == 2 && strstr(text, "bf16[4,3]"));
    free(text);
    kl_trace_abandon();
    OK(kl_trace_begin("dumped"));
    kl_keep(kl_softmax(x, 1));
    text = dumped("captured");
    CHECK(count(text, "= cast ") == 0);
    free(text);
    kl_trace_abandon();
    OK(kl_autocast_end());
    /* Off outside of the block; another thread's is its own; the log. */
    CHECK(kl_autocast_dtype() == KL_F32 && kl_dtype_of(kl_matmul(x, w)) == KL_F32);
    kl_dispatch_log_begin();
    kl_release(kl_add(x, x));
    CHECK(!strstr(kl_dispatch_log_end(), "Autocast"));
    OK(kl_autocast_begin(KL_BF16));
    kl_dispatch_log_begin();
    kl_release(kl_add(x, x));
    const char *log = kl_dispatch_log_end();
    CHECK(strstr(log, "[call] op=[add], key=[Autocast]") && strstr(log, "[redispatch] op=[add], key=["));
    OK(kl_autocast_end());
    CHECK(kl_autocast_end() == KL_ERR_ARGUMENT && says("no block is open"));
    CHECK(kl_autocast_begin(KL_I32) == KL_ERR_TYPE && says("not i32"));
    kl_clear_error();
    /* Its values are those of casts written by hand. */
    OK(kl_autocast_begin(KL_BF16));
    y = kl_softmax(kl_matmul(x, w), 1);
    OK(kl_autocast_end());
    double *want = values_of(kl_softmax(kl_cast(kl_matmul(half, kl_cast(w, KL_BF16)), KL_F32), 1));
    NEAR(y, 12, want, 0);
    free(want);
    kl_release(x), kl_release(w), kl_release(half);
}

static void *other_thread(void *ctx)
{
    *(bool *)ctx = kl_autocast_dtype() == KL_F32;
    return NULL;
}

/* ---- D21: below Autograd's view of it: casts have gradients; copies of weights; what is banned ---- */

static void d21(void)
{
    kl_tensor x = made(DIMS(8, 16)), w = made(DIMS(16, 4)), v = made(DIMS(4, 4));
    pthread_t thread;
    bool apart = false;
    OK(kl_autocast_begin(KL_BF16));
    pthread_create(&thread, NULL, other_thread, &apart);
    pthread_join(thread, NULL);
    CHECK(apart);
    /* One copy of w for its three uses, one of v for its two; after an assignment another. */
    OK(kl_trace_begin("copies"));
    kl_tensor h = kl_add(kl_matmul(x, w), kl_matmul(kl_neg(x), w));
    h = kl_add(kl_matmul(h, v), kl_matmul(kl_relu(h), v));
    h = kl_add(h, kl_matmul(x, w));
    kl_tensor loss = kl_sum_all(kl_mul(h, h)), g = kl_grad(loss, w);
    CHECK(kl_dtype_of(g) == KL_F32 && kl_dtype_of(h) == KL_BF16);
    kl_keep(g);
    char *text = dumped("captured");
    CHECK(count(text, "bf16[16,4]") == 1 && count(text, "bf16[4,4]") == 1);
    free(text);
    text = dumped("differentiated");
    CHECK(count(text, ": f32[16,4]") >= 2 && count(text, "dot ") >= 8); /* the gradient comes back through the cast */
    free(text);
    OK(kl_assign(v, kl_mul_scalar(v, 2)));
    kl_keep(h = kl_matmul(kl_cast(h, KL_F32), v));
    text = dumped("captured");
    CHECK(count(text, "bf16[4,4]") == 2);
    free(text);
    OK(kl_trace_end());
    /* The gradient is that of casts written by hand. */
    OK(kl_autocast_end());
    double *got = values_of(g);
    OK(kl_trace_begin("by hand"));
    kl_tensor wb = kl_cast(w, KL_BF16), xb = kl_cast(x, KL_BF16), vb = kl_cast(kl_div_scalar(v, 2), KL_BF16);
    kl_tensor q = kl_add(kl_matmul(xb, wb), kl_matmul(kl_cast(kl_neg(x), KL_BF16), wb));
    q = kl_add(kl_matmul(q, vb), kl_matmul(kl_relu(q), vb));
    q = kl_add(q, kl_matmul(kl_cast(x, KL_BF16), kl_narrow(wb, 0, 0, 16)));
    kl_tensor by_hand = kl_keep(kl_grad(kl_sum_all(kl_cast(kl_mul(q, q), KL_F32)), w));
    OK(kl_trace_end());
    if (got)
        NEAR(by_hand, 64, got, 1e-2);
    free(got);
    kl_release(g), kl_release(h);
    /* Outside of traces, too; a copy goes when its tensor changes. */
    OK(kl_autocast_begin(KL_BF16));
    double *first = values_of(kl_matmul(x, w));
    kl_tensor twice = kl_mul_scalar(w, 2);
    OK(kl_assign(w, twice));
    double *second = values_of(kl_matmul(x, w));
    bool doubled = first && second;
    for (int i = 0; doubled && i < 32; i++)
        doubled = second[i] == 2 * first[i];
    CHECK(doubled);
    free(first), free(second);
    /* Banned: what is unsafe says what to use instead. */
    kl_tensor p = kl_sigmoid(x), yes = kl_ones(cpu, KL_F32, DIMS(8, 16));
    kl_tensor bad = kl_binary_cross_entropy(p, yes);
    CHECK(kl_check(bad) == KL_ERR_TYPE && says("binary_cross_entropy: unsafe to autocast") &&
          says("kl_binary_cross_entropy_with_logits"));
    OK(kl_check(kl_binary_cross_entropy_with_logits(x, yes)));
    OK(kl_autocast_end());
    kl_clear_error();
    double *a = values_of(kl_binary_cross_entropy_with_logits(x, yes));
    if (a)
        NEAR(kl_binary_cross_entropy(p, yes), 1, a, 1e-5);
    free(a);
    kl_release(x), kl_release(w), kl_release(v);
}

/* A training step in bf16 has the kernels of that in f32 and, for the products' operands that come from outside, which
 * nothing was computed for, at most one narrow copy each: the input's and two weights'.  All other casts are in kernels
 * that were there. */
static void casts_fuse(void)
{
    kl_tensor w[] = {made(DIMS(16, 24)), made(DIMS(24, 5)), made(DIMS(24)), made(DIMS(5))};
    int64_t kernels[2] = {0};
    for (int half = 0; half < 2; half++) {
        OK(kl_trace_begin(half ? "casts" : "none"));
        OK(kl_autocast_begin(half ? KL_BF16 : KL_F32));
        kl_tensor h = kl_relu(kl_linear(made(DIMS(8, 16)), w[0], w[2])), loss, g[4];
        loss = kl_cross_entropy(kl_linear(h, w[1], w[3]), kl_minimum_scalar(kl_arange(cpu, KL_I32, 8), 4));
        for (int i = 0; i < 4; i++)
            g[i] = kl_grad(loss, w[i]);
        OK(kl_autocast_end());
        for (int i = 0; i < 4; i++)
            OK(kl_assign(w[i], kl_sub(w[i], kl_mul_scalar(g[i], 0.1))));
        char *text = dumped("captured");
        CHECK(count(text, "= cast ") >= (half ? 6 : 1)); /* of the labels */
        free(text);
        OK(kl_trace_end());
        kl_run_info info;
        OK(kl_trace_info(&info));
        kernels[half] = info.kernels;
    }
    if (strcmp(kl_device_name(cpu), "ref")) {
        if (kernels[1] > kernels[0] + 3)
            printf("%d kernels in f32, %d in bf16\n", (int)kernels[0], (int)kernels[1]);
        CHECK(kernels[1] <= kernels[0] + 3);
    }
}

/* Losses and norms of narrow tensors compute in f32, their parameters f32 as well. */
static void wide(void)
{
    kl_tensor x = made(DIMS(6, 8)), w = made(DIMS(8, 8)), scale = made(DIMS(8)), labels = kl_arange(cpu, KL_I32, 6);
    OK(kl_autocast_begin(KL_F16));
    kl_tensor h = kl_matmul(x, w);
    kl_tensor r[] = {kl_layer_norm(h, 1, scale, scale, 1e-5), kl_rms_norm(h, 1, scale, 1e-5),
                     kl_group_norm(h, 2, scale, scale, 1e-5),
                     kl_cross_entropy(h, labels), kl_mse_loss(h, x), kl_var(h, 0, NULL, false, 1), kl_log_softmax(h, 1),
                     kl_logsumexp(h, 0, NULL, false), kl_std(h, 0, NULL, false, 1), kl_norm(h, 0, NULL, false),
                     kl_batch_norm(h, scale, scale, kl_none, kl_none, true, 0.1, 1e-5), kl_huber_loss(x, h, 1)};
    for (size_t i = 0; i < sizeof r / sizeof *r; i++)
        check_at(kl_check(r[i]) == KL_OK && kl_dtype_of(r[i]) == KL_F32, __LINE__, "f32");
    kl_tensor act[] = {kl_gelu(h), kl_silu(h), kl_sigmoid(h), kl_softplus(h), kl_mish(h), kl_elu(h, 1),
                       kl_leaky_relu(h, 0.1), kl_clamp(h, -1, 1)};
    for (size_t i = 0; i < sizeof act / sizeof *act; i++)
        check_at(kl_check(act[i]) == KL_OK && kl_sync(cpu) == KL_OK, __LINE__, "an activation of f16");
    kl_tensor q = kl_reshape(h, DIMS(1, 1, 6, 8));
    OK(kl_check(kl_attention(q, q, q, kl_none, true)));
    OK(kl_check(kl_conv(kl_reshape(x, DIMS(1, 1, 6, 8)), kl_reshape(kl_narrow(w, 0, 0, 1), DIMS(1, 1, 2, 4)), kl_none,
                        NULL, NULL, NULL, NULL, 1)));
    OK(kl_autocast_end());
}

/* ---- autocast in vmap, and around it ---- */

static kl_status product(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = kl_grad(kl_sum_all(kl_tanh(kl_matmul(in[0], *(kl_tensor *)ctx))), *(kl_tensor *)ctx);
    out[1] = kl_matmul(in[0], *(kl_tensor *)ctx);
    return KL_OK;
}
static kl_status product_in_block(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_autocast_begin(KL_BF16);
    kl_status status = product(ctx, in, nin, out, nout);
    kl_autocast_end();
    return status;
}

static void with_vmap(void)
{
    kl_tensor x = made(DIMS(3, 5, 4)), w = made(DIMS(4, 2)), out[2], inside[2], row, each[2];
    OK(kl_trace_begin("autocast and vmap"));
    kl_autocast_begin(KL_BF16);
    kl_vmap(product, &w, 1, &x, NULL, 2, NULL, KL_RANDOM_ERROR, out);
    kl_autocast_end();
    kl_vmap(product_in_block, &w, 1, &x, NULL, 2, NULL, KL_RANDOM_ERROR, inside);
    row = kl_squeeze(kl_narrow(x, 0, 1, 1), 0);
    product_in_block(&w, &row, 1, each, 2);
    CHECK(kl_dtype_of(out[1]) == KL_BF16 && kl_dtype_of(inside[1]) == KL_BF16 && kl_dtype_of(out[0]) == KL_F32);
    kl_keep(out[0]), kl_keep(out[1]), kl_keep(inside[0]), kl_keep(inside[1]), kl_keep(each[0]), kl_keep(each[1]);
    OK(kl_trace_end());
    double *g = values_of(out[0]), *p = values_of(out[1]), *one = values_of(each[0]), *one_p = values_of(each[1]);
    if (g && p && one && one_p) {
        NEAR(inside[0], 24, g, 0);
        NEAR(inside[1], 30, p, 0);
        bool same = true;
        for (int i = 0; i < 8; i++)
            same &= fabs(g[8 + i] - one[i]) <= 2e-2 * (1 + fabs(one[i]));
        for (int i = 0; i < 10; i++)
            same &= fabs(p[10 + i] - one_p[i]) <= 1e-2 * (1 + fabs(one_p[i]));
        CHECK(same);
    }
    free(g), free(p), free(one), free(one_p);
    kl_release(out[0]), kl_release(out[1]), kl_release(each[0]), kl_release(each[1]), kl_release(x), kl_release(w);
}

/* f16 with a loss scale: a step that overflows is left out and the scale halved; two good ones make it grow. */
static void loss_scale(void)
{
    kl_loss_scale s;
    OK(kl_loss_scale_init(&s, cpu, 1024));
    s.interval = 2;
    kl_tensor w = kl_input(cpu, KL_F16, DIMS(2), (uint16_t[]){0x3c00, 0x4000}); /* 1, 2 */
    static const double factor[] = {1e-3, 100, 1e-3, 1e-3, 1e-3}, scale[] = {1024, 512, 512, 1024, 1024};
    for (int i = 0; i < 5; i++) {
        double *before = values_of(w);
        OK(kl_trace_begin("scaled"));
        kl_tensor loss = kl_sum_all(kl_mul(kl_mul_scalar(w, factor[i]), w));
        kl_tensor g = kl_grad(kl_loss_scale_up(&s, loss), w), ok;
        kl_tensor finite[1] = {g};
        ok = kl_loss_scale_finite(1, finite);
        g = kl_cast(kl_loss_scale_down(&s, g), KL_F16);
        kl_assign(w, kl_where(ok, kl_sub(w, g), w));
        OK(kl_loss_scale_update(&s, ok));
        OK(kl_trace_end());
        double *after = values_of(w);
        CHECK(before && after && (after[0] == before[0]) == (i == 1));
        CHECK((double)kl_item_f32(s.scale) == scale[i]);
        free(before), free(after);
    }
    CHECK(kl_loss_scale_init(&s, cpu, -1) == KL_ERR_ARGUMENT);
    kl_clear_error();
    kl_loss_scale_deinit(&s);
    kl_release(w);
}

/* ---- B10: one record a call ---- */

static kl_status twice(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_mul(in[0], in[0]);
    return KL_OK;
}
static kl_status by_exp(void *ctx, kl_call *call, kl_keyset keys) /* a kernel that calls others */
{
    (void)ctx, (void)keys;
    kl_tensor a = kl_call_input(call, 0);
    kl_call_set_result(call, 0, kl_log(kl_exp(kl_neg(a))));
    return KL_OK;
}

enum { NAP = 3000000 }; /* ns */
static kl_status by_nap(void *ctx, kl_call *call, kl_keyset keys)
{
    (void)ctx, (void)keys;
    const double until = now() + NAP * 1e-9;
    while (now() < until)
        nanosleep(&(struct timespec){.tv_nsec = NAP}, NULL);
    return kl_redispatch_below(call);
}

/* The processor's counter tells the time that the clock tells. */
static void b10_time(kl_tensor x)
{
    const kl_op_record *r;
    int64_t n;
    kl_registration k = reg("neg", kl_keyset_highest(kl_keyset_minus(kl_dispatch_keys(1, &x),
                                                                     SET(KL_KEY_BackendSelect))),
                            (kl_kernel){.name = "by nap", .call = by_nap});
    OK(kl_op_profile_begin());
    double start = now();
    kl_tensor y = kl_neg(x);
    double took = 1e9 * (now() - start);
    OK(kl_op_profile_end(&n, &r));
    CHECK(n == 1 && (double)r[0].ns > 0.999 * NAP && (double)r[0].ns < 1.001 * took);
    kl_dispatch_deregister(k);
    kl_release(y);
}

static void b10(void)
{
    const kl_op_record *r;
    int64_t n = 7;
    kl_tensor x = made(DIMS(8, 3)), y, w = made(DIMS(3, 2));
    CHECK(kl_op_profile_end(&n, &r) == KL_ERR_ARGUMENT && !r && !n);
    kl_clear_error();
    OK(kl_op_profile_begin());
    CHECK(kl_op_profile_begin() == KL_ERR_ARGUMENT);
    OK(kl_vmap(twice, NULL, 1, &x, NULL, 1, NULL, KL_RANDOM_ERROR, &y)); /* of 8 */
    OK(kl_op_profile_end(&n, &r));
    CHECK(n == 1 && !strcmp(r[0].op, "mul") && r[0].nin == 2 && r[0].in[0].rank == 1 && r[0].in[0].dims[0] == 3 &&
          r[0].in[1].dtype == KL_F32 && r[0].ns > 0 && strstr(r[0].site.file, "api_seeds_layers.c") &&
              r[0].site.line > 0);
    kl_release(y);
    /* What layers and kernels do for a call is the call's. */
    kl_registration k = reg("neg", kl_keyset_highest(kl_keyset_minus(kl_dispatch_keys(1, &x),
                                                                     SET(KL_KEY_Autograd, KL_KEY_BackendSelect))),
                            (kl_kernel){.name = "by exp", .call = by_exp});
    OK(kl_autocast_begin(KL_BF16));
    OK(kl_op_profile_begin());
    y = kl_neg(kl_matmul(x, w));
    OK(kl_op_profile_end(&n, &r));
    OK(kl_autocast_end());
    CHECK(n == 2 && !strcmp(r[0].op, "dot") && r[0].in[0].dtype == KL_F32 && !strcmp(r[1].op, "neg") &&
          r[1].in[0].dtype == KL_BF16);
    kl_dispatch_deregister(k);
    kl_release(y);
    b10_time(x);
    /* Off: no record, and the log is as before it ever was on. */
    kl_dispatch_log_begin();
    kl_release(kl_add(x, x));
    CHECK(!strstr(kl_dispatch_log_end(), "Profiler"));
    OK(kl_op_profile_begin());
    kl_dispatch_log_begin();
    kl_release(kl_add(x, x));
    CHECK(strstr(kl_dispatch_log_end(), "[call] op=[add], key=[Profiler]") != NULL);
    OK(kl_op_profile_end(&n, NULL));
    CHECK(n == 1);
}

/* ---- B3, D12, D13: device meta ---- */

static void b3(void)
{
    kl_device meta = kl_device_named("meta");
    kl_memory_use before, after;
    CHECK(meta.id && !strcmp(kl_device_name(meta), "meta"));
    OK(kl_memory_used(cpu, &before));
    int64_t compiles = kl_counter("compiles"), graphs = kl_counter("graphs_built");
    kl_tensor a = kl_zeros(meta, KL_F32, DIMS(1000000, 50)), b = kl_input(meta, KL_F32, DIMS(50, 1000000), NULL), y,
        real = made(DIMS(3));
    kl_dispatch_log_begin();
    y = kl_matmul(a, b); /* 10^12 elements */
    CHECK(strstr(kl_dispatch_log_end(), "key=[Meta]") != NULL);
    SHAPE(y, 1000000, 1000000);
    CHECK(kl_device_of(y).id == meta.id);
    kl_memory_use there;
    OK(kl_memory_used(meta, &there));
    OK(kl_memory_used(cpu, &after));
    CHECK(kl_counter("compiles") == compiles && kl_counter("graphs_built") == graphs);
    CHECK(after.live <= before.live + 4096 && there.live == 0);
    float v[3];
    CHECK(kl_read(kl_narrow(kl_narrow(y, 0, 0, 1), 1, 0, 3), v, sizeof v) == KL_ERR_DEVICE &&
          says("Cannot copy out of meta tensor; no data!"));
    kl_tensor bad = kl_to(b, cpu);
    CHECK(kl_check(bad) == KL_ERR_DEVICE && says("Cannot copy out of meta tensor; no data!"));
    bad = kl_add(kl_zeros(meta, KL_F32, DIMS(3)), real);
    CHECK(kl_check(bad) == KL_ERR_DEVICE && says("operands are on devices meta and"));
    CHECK(kl_print(b, "b").id != b.id && says("no data"));
    kl_clear_error();
    kl_tensor there_too = kl_relu(kl_to(real, meta));
    SHAPE(there_too, 3);
    bad = kl_add(kl_zeros(meta, KL_F32, DIMS(3)), kl_zeros(meta, KL_F32, DIMS(4)));
    CHECK(kl_check(bad) == KL_ERR_SHAPE && says("shapes [3] and [4] do not broadcast"));
    kl_clear_error();
    for (int i = 0; i < 5000; i++) { /* the graph of what is lazy stays small without computing */
        kl_tensor next = kl_add_scalar(there_too, 1);
        kl_release(there_too);
        there_too = next;
    }
    SHAPE(there_too, 3);
    CHECK(kl_counter("compiles") == compiles);
}

/* One rule for shapes: on meta they are those of the real device. */
static void same_shapes(void)
{
    kl_device dev[2] = {cpu, kl_device_named("meta")};
    kl_tensor y[2][16];
    int n = 0;
    for (int d = 0; d < 2; d++) {
        kl_tensor x = kl_zeros(dev[d], KL_F32, DIMS(2, 3, 8, 8)), i = kl_arange(dev[d], KL_I32, 2),
            m = kl_reshape(x, DIMS(6, 64));
        kl_tensor w = kl_zeros(dev[d], KL_F32, DIMS(4, 3, 3, 3));
        n = 0;
        y[d][n++] = kl_conv(x, w, kl_none, (int64_t[]){2, 2}, (int64_t[]){1, 1}, (int64_t[]){1, 1}, NULL, 1);
        y[d][n++] = kl_max_pool(x, 2, (int64_t[]){2, 2}, (int64_t[]){2, 2}, NULL, NULL, NULL);
        y[d][n++] = kl_sum(x, AXES(1, 2), true);
        y[d][n++] = kl_take(m, 1, i);
        y[d][n++] = kl_argmax(m, 1);
        y[d][n++] = kl_einsum("bchw,kchw->bk", 2, (kl_tensor[]){x, kl_zeros(dev[d], KL_F32, DIMS(5, 3, 8, 8))});
        y[d][n++] = kl_concat(2, (kl_tensor[]){m, m}, 0);
        y[d][n++] = kl_pad(m, (int64_t[]){1, 2}, (int64_t[]){0, 3}, 0);
        y[d][n++] = kl_cumsum(m, 1, false, false);
        y[d][n++] = kl_softmax(m, 0);
        y[d][n++] = kl_cast(kl_lt(m, m), KL_U8);
        y[d][n++] = kl_batch_norm(x, kl_none, kl_none, kl_none, kl_none, true, 0.1, 1e-5);
        y[d][n] = kl_topk(m, 5, 1, true, &y[d][n + 1]);
        n += 2;
    }
    for (int k = 0; k < n; k++) {
        int64_t a[KL_MAX_RANK], b[KL_MAX_RANK];
        int rank = kl_shape(y[0][k], a);
        CHECK(rank >= 0 && kl_shape(y[1][k], b) == rank && !memcmp(a, b, (size_t)rank * sizeof *a));
        CHECK(kl_dtype_of(y[0][k]) == kl_dtype_of(y[1][k]));
    }
}

/* A step of a large model, dry: shapes, and the error of a wrong one, without a byte for its weights. */
static void d12(void)
{
    kl_device meta = kl_device_named("meta");
    int64_t compiles = kl_counter("compiles");
    enum { WIDE = 1 << 17 };
    kl_tensor w[2];
    OK(kl_trace_begin("dry init"));
    for (int i = 0; i < 2; i++)
        w[i] = kl_keep(kl_mul_scalar(kl_randn(meta, KL_F32, DIMS(WIDE, WIDE), (uint64_t)i), 0.01));
    OK(kl_trace_end());
    for (int step = 0; step < 2; step++) {
        OK(kl_trace_begin("dry step"));
        kl_tensor x = kl_input(meta, KL_F32, DIMS(64, WIDE), NULL);
        kl_tensor h = kl_gelu(kl_matmul(kl_layer_norm(x, 1, kl_none, kl_none, 1e-5), w[0]));
        kl_tensor loss = kl_cross_entropy(kl_matmul(h, w[1]), kl_arange(meta, KL_I32, 64)), g[2];
        for (int i = 0; i < 2; i++)
            g[i] = kl_grad(loss, w[i]);
        for (int i = 0; i < 2; i++)
            OK(kl_assign(w[i], kl_sub(w[i], kl_mul_scalar(g[i], 0.1))));
        kl_keep(loss);
        OK(kl_trace_end());
        kl_run_info info;
        OK(kl_trace_info(&info));
        CHECK(info.nodes > 20 && info.kernels == 0 && info.peak_bytes == 0);
        CHECK(kl_rank(loss) == 0);
        kl_release(loss);
    }
    SHAPE(w[0], WIDE, WIDE);
    OK(kl_trace_begin("dry, wrong"));
    kl_tensor y = kl_matmul(kl_input(meta, KL_F32, DIMS(64, 12), NULL), w[0]);
    CHECK(kl_trace_end() == KL_ERR_SHAPE && says("matmul: shapes [64,12] and [131072,131072] do not fit"));
    OK(kl_trace_begin("mixed"));
    kl_keep(y = kl_add(w[0], w[1]));
    kl_keep(kl_zeros(cpu, KL_F32, DIMS(3)));
    CHECK(kl_trace_end() == KL_ERR_DEVICE && says("some values on device meta and some that are not"));
    kl_clear_error();
    CHECK(kl_counter("compiles") == compiles);
    kl_release(w[0]), kl_release(w[1]);
    same_shapes();
}

/* ---- B8: Autograd as a key ---- */

static kl_status autograd_seen(void *ctx, kl_call *call, kl_keyset keys)
{
    ++*(int *)ctx;
    return kl_redispatch(call, kl_keyset_below(keys, kl_call_key(call)));
}

static void b8(void)
{
    int seen = 0;
    kl_tensor x = made(DIMS(3)), w = made(DIMS(3)), y;
    const char *backend = kl_key_name(kl_keyset_highest(kl_keyset_minus(kl_dispatch_keys(1, &x),
                                                                        SET(KL_KEY_Autograd, KL_KEY_BackendSelect))));
    char both[80];
    snprintf(both, sizeof both, "%s,%s", kl_key_name(kl_key_autograd(kl_key_find(backend))), backend);
    kl_registration r = reg("mul", KL_KEY_Autograd, (kl_kernel){.name = "seen", .call = autograd_seen, .ctx = &seen});
    OK(kl_trace_begin("autograd"));
    kl_dispatch_log_begin();
    y = kl_mul(x, w);
    CHECK(keys_are(kl_dispatch_log_end(), both) && seen == 1);
    kl_keep(kl_grad(kl_sum_all(kl_mul(y, y)), w));
    char *text = dumped("differentiated");
    CHECK(count(text, "mul ") >= 4 && !strstr(text, "grad %")); /* what the gradient is made of */
    free(text);
    kl_trace_abandon();
    /* In a no_grad block the key is masked, and what is recorded stops gradients. */
    seen = 0;
    OK(kl_trace_begin("masked"));
    OK(kl_no_grad_begin());
    kl_dispatch_log_begin();
    y = kl_mul(x, w);
    CHECK(keys_are(kl_dispatch_log_end(), backend) && seen == 0);
    OK(kl_no_grad_end());
    kl_tensor g = kl_keep(kl_grad(kl_sum_all(kl_mul(y, w)), w));
    CHECK(seen == 1);
    y = kl_keep(kl_mul(x, w));
    OK(kl_trace_end());
    double *want = values_of(y);
    if (want)
        NEAR(g, 3, want, 1e-6); /* through the second factor alone */
    free(want);
    drop(r);
    kl_release(y);
}

/* ---- B11, D20: the two taps ---- */

static kl_tensor model(kl_tensor x, kl_tensor w) { return kl_softmax(kl_mul_scalar(kl_matmul(kl_relu(x), w), 0.5), 1); }

static kl_status keep_or(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = ctx ? kl_mul(in[0], *(kl_tensor *)ctx) : in[0];
    return KL_OK;
}

static void b11(void)
{
    kl_tensor x = made(DIMS(4, 6)), w = made(DIMS(6, 3)), x2 = made(DIMS(4, 6)), y, again;
    kl_tracer *tr = kl_tracer_begin(KL_TAP_CALLS, 1, &x);
    CHECK(tr != NULL && kl_tracer_begin(KL_TAP_CALLS, 0, NULL) == NULL && says("has one open at this tap"));
    kl_clear_error();
    OK(kl_autocast_begin(KL_BF16));
    kl_dispatch_log_begin();
    y = kl_relu(x);
    CHECK(strstr(kl_dispatch_log_end(), "[call] op=[le], key=[TracerOuter]") != NULL); /* first, above Autocast */
    y = model(y, w);
    OK(kl_tracer_end(tr, 1, &y));
    CHECK(strstr(kl_tracer_text(tr), "= dot ") && !strstr(kl_tracer_text(tr), "bf16[4")); /* raw */
    double *first = values_of(y);
    OK(kl_tracer_run(tr, 1, &x, 1, &again)); /* under autocast as before */
    if (first)
        NEAR(again, 12, first, 0);
    free(first);
    OK(kl_autocast_end());
    double *want = values_of(model(kl_relu(x2), w)); /* other inputs: as if called */
    OK(kl_tracer_run(tr, 1, &x2, 1, &again));
    if (want)
        NEAR(again, 12, want, 0);
    free(want);
    CHECK(kl_tracer_run(tr, 1, &w, 1, &again) == KL_ERR_SHAPE &&
          says("tracer_run: in[0] is f32[6,3], not the f32[4,6] that was traced"));
    kl_clear_error();
    /* Gradients flow through a run; in a trace, too. */
    OK(kl_trace_begin("run"));
    kl_tracer_run(tr, 1, &x2, 1, &again);
    kl_tensor g = kl_keep(kl_grad(kl_sum_all(kl_mul(again, again)), w));
    kl_tensor direct = model(kl_relu(x2), w), h = kl_keep(kl_grad(kl_sum_all(kl_mul(direct, direct)), w));
    OK(kl_trace_end());
    want = values_of(h);
    if (want)
        NEAR(g, 18, want, 0);
    free(want);
    kl_tracer_free(tr);
    /* Functions that are recorded are regions; an assignment changes what a tensor means; given data is the graph's
     * own. */
    float numbers[] = {1, 2, 3, 4, 5, 6};
    OK(kl_trace_begin("regions"));
    tr = kl_tracer_begin(KL_TAP_CALLS, 1, &x);
    kl_tensor p = kl_gt(kl_sum_all(x), kl_const(cpu, KL_F32, -1e6)), r, scale = kl_input(cpu, KL_F32, DIMS(6), numbers);
    OK(kl_cond(p, keep_or, keep_or, &scale, 1, &x, 1, &r));
    OK(kl_tracer_end(tr, 1, &r));
    kl_keep(r);
    OK(kl_trace_end());
    CHECK(strstr(kl_tracer_text(tr), "= cond ") != NULL);
    OK(kl_tracer_run(tr, 1, &x2, 1, &again));
    double *a = values_of(x2), *b = values_of(again);
    bool same = a && b;
    for (int i = 0; i < 24 && same; i++)
        same = fabs(b[i] - a[i] * numbers[i % 6]) < 1e-6;
    CHECK(same);
    free(a), free(b);
    kl_tracer_free(tr);
    tr = kl_tracer_begin(KL_TAP_CALLS, 1, &x);
    kl_tensor state = kl_zeros(cpu, KL_F32, DIMS(4, 6));
    OK(kl_assign(state, kl_exp(x)));
    y = kl_neg(state);
    OK(kl_tracer_end(tr, 1, &y));
    want = values_of(kl_neg(kl_exp(x2)));
    OK(kl_tracer_run(tr, 1, &x2, 1, &again));
    if (want)
        NEAR(again, 24, want, 0);
    free(want);
    kl_tracer_free(tr);
    tr = kl_tracer_begin(KL_TAP_CALLS, 1, &x);
    CHECK(kl_tracer_end(tr, 1, &w) == KL_ERR_ARGUMENT && says("out[0] was made by none of the calls"));
    kl_clear_error();
    kl_tracer_free(tr);
}

static void d20(void)
{
    kl_tensor x = made(DIMS(5, 4, 6)), w = made(DIMS(6, 3)), y[2], x2 = made(DIMS(5, 4, 6)), again;
    kl_tracer *outer = kl_tracer_begin(KL_TAP_CALLS, 1, &x), *inner = kl_tracer_begin(KL_TAP_RECORDED, 1, &x);
    CHECK(outer && inner);
    OK(kl_trace_begin("taps"));
    OK(kl_autocast_begin(KL_BF16));
    kl_vmap(product, &w, 1, &x, NULL, 2, NULL, KL_RANDOM_ERROR, y);
    OK(kl_autocast_end());
    OK(kl_tracer_end(outer, 0, NULL));
    kl_tensor g = kl_grad(kl_sum_all(y[1]), x);
    OK(kl_tracer_end(inner, 1, &y[1]));
    kl_keep(y[1]), kl_keep(g);
    OK(kl_trace_end());
    /* Inside: casts and the whole batch, no gradient expanded.  Outside: one element's calls. */
    const char *in = kl_tracer_text(inner), *out = kl_tracer_text(outer);
    CHECK(strstr(in, "bf16[5,4,3]") && strstr(in, "= cast ") && !strstr(in, "f32[4,6]"));
    CHECK(strstr(out, "f32[4,3]") && !strstr(out, "bf16") && !strstr(out, "[5,4,3]"));
    CHECK(kl_tracer_run(outer, 1, &x, 0, NULL) == KL_ERR_ARGUMENT && says("KL_TAP_RECORDED"));
    kl_clear_error();
    OK(kl_tracer_run(inner, 1, &x2, 1, &again));
    kl_vmap(product_in_block, &w, 1, &x2, NULL, 2, NULL, KL_RANDOM_ERROR, y);
    double *want = values_of(y[1]);
    if (want)
        NEAR(again, 60, want, 0);
    free(want);
    kl_tracer_free(inner), kl_tracer_free(outer);
}

#define SCOPED(name) \
    static void name##_all(void) { kl_scope_begin(), name(), kl_scope_end(); }
SCOPED(b3)
SCOPED(b8)
SCOPED(b11)
SCOPED(d20)
SCOPED(b10)
SCOPED(d12)
static void d21_all(void) { kl_scope_begin(), d21(), wide(), casts_fuse(), with_vmap(), loss_scale(), kl_scope_end(); }
static void b7_all(void) { kl_scope_begin(), b7(), kl_scope_end(); }

int main(int argc, char **argv)
{
    const struct row rows[] = {{"B3", b3_all}, {"B7", b7_all}, {"B8", b8_all}, {"B10", b10_all}, {"B11", b11_all},
                               {"D12", d12_all}, {"D20", d20_all}, {"D21", d21_all}};
    return RUN_ROWS(rows);
}
