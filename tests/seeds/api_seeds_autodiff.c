/* Rows A and C of the dispatch system that are about gradients: autodiff as a property of devices, its strategies, and
 * the container of gradients.  api_seeds_devices.c has the others.  Arguments: ids of rows; none: all. */
#include "api_seeds.h"

/* ThreadSanitizer's suppressions name libLLVM, of which there is a second one where Mesa's Vulkan device is opened. */
#ifdef KILN_TSAN
#define EVERY KL_DEVICES_HOST
#else
#define EVERY KL_DEVICES_ALL
#endif

static kl_device ad, balanced, budget; /* over the default device */

static kl_tensor leaf(kl_device d, float a, float b)
{
    kl_tensor x = kl_input(d, KL_F32, 1, (int64_t[]){2}, (float[]){a, b});
    kl_requires_grad(x);
    return x;
}

/* One that nobody differentiates in. */
static kl_tensor data(kl_device d, float a, float b) { return kl_input(d, KL_F32, 1, (int64_t[]){2}, (float[]){a, b}); }

static kl_tensor copy_of(kl_tensor t) { return kl_keep(kl_reshape(t, DIMS(2))); }
static bool on(kl_tensor t, kl_device d) { return kl_device_of(t).id == d.id; }
/* A node more in the graph of this thread's trace, as its text says. */
static int nodes(void)
{
    char line[400], path[] = "build/seeds_autodiff.txt";
    int n = 0;
    FILE *f = kl_dump(NULL, "captured", path) == KL_OK ? fopen(path, "r") : NULL;
    while (f && fgets(line, sizeof line, f))
        n += strstr(line, " = ") != NULL;
    if (f)
        fclose(f);
    remove(path);
    return f ? n : -1;
}

static void a7(void)
{
    CHECK(kl_device_is_autodiff(ad) && kl_device_is_autodiff(balanced) && !kl_device_is_autodiff(cpu));
    CHECK(!kl_device_is_autodiff((kl_device){0}) && !kl_device_is_autodiff((kl_device){77 << 8 | 1}));
}

static double value(double a, double b) { return sin(a) * b + a * a * b * b; }

static void a11(void)
{
    kl_scope_begin();
    kl_tensor x = leaf(ad, 0.75f, -1.5f), a = kl_narrow(x, 0, 0, 1), b = kl_narrow(x, 0, 1, 1);
    kl_tensor y = kl_add(kl_mul(kl_sin(a), b), kl_mul(kl_square(a), kl_square(b)));
    kl_gradients *g = kl_backward(y);
    const double h = 1e-5;
    NEAR(copy_of(kl_gradients_get(g, x)), 2, ((double[]){(value(0.75 + h, -1.5) - value(0.75 - h, -1.5)) / (2 * h),
                                             (value(0.75, -1.5 + h) - value(0.75, -1.5 - h)) / (2 * h)}), 1e-5);
    kl_gradients_free(g);
    g = kl_backward(kl_mul_scalar(x, 3)); /* a root of two elements: that of its sum */
    NEAR_LIST(copy_of(kl_gradients_get(g, x)), 0, 3, 3);
    kl_gradients_free(g);
    CHECK(!kl_backward(kl_square(leaf(cpu, 1, 2))) && kl_last_error_code() == KL_ERR_GRAD &&
          says("backward: Requires autodiff tensor."));
    CHECK(kl_check(kl_from_inner(x)) == KL_ERR_GRAD && says("Autodiff should not wrap an autodiff tensor."));
    kl_trace_begin("a11");
    kl_gradients *inside = kl_backward(kl_sin(x));
    CHECK(inside && on(kl_gradients_get(inside, x), cpu));
    kl_gradients_free(inside);
    kl_trace_abandon();
    kl_scope_end();
}

static void a12(void)
{
    kl_scope_begin();
    kl_tensor x = leaf(balanced, 1, 2), still = data(balanced, 5, 6);
    kl_gradients *g = kl_backward(kl_mul(kl_square(x), still));
    CHECK(kl_gradients_count(g) == 1);
    NEAR_LIST(copy_of(kl_gradients_get(g, x)), 0, 10, 24);
    NEAR_LIST(copy_of(kl_gradients_get(g, x)), 0, 10, 24);
    CHECK(!kl_gradients_get(g, still).id && !kl_gradients_get(NULL, x).id && !kl_gradients_get(g, kl_none).id);
    CHECK(on(kl_gradients_get(g, x), cpu) && kl_checkpointing_of(kl_gradients_get(g, x)) == KL_CHECKPOINT_BALANCED);
    kl_gradients_free(g);
    kl_scope_end();
}

static void a13(void)
{
    kl_scope_begin();
    kl_tensor x = leaf(ad, 1, 2), y = leaf(ad, 3, 4);
    kl_gradients *g = kl_backward(kl_mul(x, y));
    kl_tensor mine = kl_gradients_remove(g, x);
    CHECK(kl_gradients_count(g) == 1 && !kl_gradients_remove(g, x).id && !kl_gradients_get(g, x).id);
    kl_gradients_free(g);
    NEAR_LIST(mine, 0, 3, 4); /* outlives the container */
    kl_scope_end();
}

static void a14_on(kl_device plain)
{
    kl_scope_begin();
    kl_device a = kl_device_autodiff(plain), b = kl_device_gradient_checkpointing(a, KL_CHECKPOINT_BALANCED);
    kl_device far = kl_device_named(!strcmp(kl_device_name(plain), "ref") ? "cpu" : "ref");
    kl_tensor x = leaf(a, 1, 2), y = leaf(a, 3, 4);
    kl_gradients *g = kl_backward(kl_square(x));
    OK(kl_gradients_replace(g, x, data(plain, 7, 8))); /* made by hand: without a strategy */
    NEAR_LIST(copy_of(kl_gradients_get(g, x)), 0, 7, 8);
    OK(kl_gradients_replace(g, x, kl_inner(data(a, 9, 9)))); /* with the same one */
    NEAR_LIST(copy_of(kl_gradients_get(g, x)), 0, 9, 9);
    CHECK(kl_gradients_replace(g, x, kl_inner(data(b, 1, 1))) == KL_ERR_GRAD &&
          says("Autodiff strategy mismatch: None vs Balanced."));
    CHECK(kl_gradients_replace(g, x, data(a, 1, 1)) == KL_ERR_GRAD &&
          says("Autodiff should not wrap an autodiff tensor."));
    if (far.id) {
        char want[160];
        snprintf(want, sizeof want, "The provided tensors are not on the same backend. Got backends %s and %s.",
                 kl_device_name(plain),
                 kl_device_name(far));
        CHECK(kl_gradients_replace(g, x, data(far, 1, 1)) == KL_ERR_DEVICE && says(want));
    }
    CHECK(kl_gradients_replace(g, x, kl_ones(plain, KL_F32, DIMS(3))) == KL_ERR_SHAPE &&
          says("the tensor is [2], the gradient [3]"));
    CHECK(kl_gradients_replace(g, x, kl_ones(plain, KL_F64, DIMS(2))) == KL_ERR_TYPE);
    OK(kl_gradients_replace(g, y, data(plain, 1, 1))); /* there was none */
    CHECK(kl_gradients_count(g) == 2);
    NEAR_LIST(copy_of(kl_gradients_get(g, x)), 0, 9, 9); /* after errors as before */
    kl_gradients_free(g);
    kl_scope_end();
}
static void a14(void)
{
    kl_device d[32];
    uint32_t n = kl_device_enumerate(EVERY, 32, d);
    for (uint32_t i = 0; i < n; i++)
        a14_on(d[i]);
}

static void a15(void)
{
    kl_scope_begin();
    kl_tensor x = leaf(ad, 1, 2), y = kl_square(x), inside = kl_inner(y);
    CHECK(on(inside, cpu) && on(y, ad) && kl_is_tracked(y) && !kl_is_tracked(inside));
    kl_tensor two = kl_mul(inside, inside);
    CHECK(!kl_is_tracked(two) && kl_check(kl_grad(two, x)) != KL_OK);
    NEAR_LIST(copy_of(inside), 0, 1, 4);
    CHECK(kl_check(kl_inner(inside)) == KL_ERR_GRAD && says("inner: Requires autodiff tensor."));
    kl_trace_begin("a15");
    kl_tensor t = kl_square(x), in = kl_inner(t);
    CHECK(kl_is_tracked(t) && !kl_is_tracked(in) && on(in, cpu));
    kl_keep(in);
    OK(kl_trace_end());
    NEAR_LIST(in, 0, 1, 4);
    kl_scope_end();
}

/* Integers and bools: the same node on either side, and the device says where it is. */
static void a16(void)
{
    kl_scope_begin();
    kl_tensor i = kl_arange(ad, KL_I32, 3), q = kl_input(ad, KL_I8, DIMS(2), (int8_t[]){4, -5});
    kl_tensor outer[] = {i, kl_gt(i, kl_const(ad, KL_I32, 1)), q};
    kl_trace_begin("a16");
    for (int k = 0; k < 3; k++) {
        kl_tensor here = kl_add(outer[0], outer[0]);
        if (k == 1)
            here = kl_eq(here, here);
        if (k == 2)
            here = kl_add(outer[2], outer[2]);
        int before = nodes();
        kl_tensor in = kl_inner(here);
        CHECK(nodes() == before && before > 0 && on(in, cpu) && on(here, ad) && in.id != here.id);
    }
    kl_trace_abandon();
    for (int k = 0; k < 3; k++) {
        kl_tensor in = kl_inner(outer[k]);
        CHECK(on(in, cpu) && kl_dtype_of(in) == kl_dtype_of(outer[k]));
        double *a = values_of(in), *b = values_of(outer[k]);
        CHECK(a && b && a[1] == b[1]);
        free(a), free(b);
    }
    /* a quantized tensor's parts cross with it: the integers are the same, no gradient flows to the floats */
    kl_tensor x = leaf(ad, 1, 3), stored = kl_to_quantized(kl_mul_scalar(x, 2), (kl_qscheme){.type = KL_Q_I8}, kl_none,
                                                           kl_none);
    kl_tensor in = kl_inner(stored), back = kl_from_inner(in);
    CHECK(on(stored, ad) && on(in, cpu) && on(back, ad) && !strcmp(kl_layer_name(in), "quantized"));
    CHECK(on(kl_layer_part(in, 0), cpu) && on(kl_dense(in), cpu) && on(kl_dense(back), ad) &&
          !kl_is_tracked(kl_dense(back)));
    NEAR(kl_keep(kl_dense(in)), 2, ((double[]){2, 6}), 0.02);
    kl_scope_end();
}

static void a17(void)
{
    kl_scope_begin();
    kl_tensor p = data(cpu, 3, 4), w = kl_from_inner(p);
    CHECK(on(w, ad) && !kl_is_tracked(w) && on(p, cpu));
    CHECK(!kl_backward(kl_square(w)) && says("Operation not marked for autodiff."));
    OK(kl_requires_grad(w));
    CHECK(kl_is_tracked(w));
    kl_gradients *g = kl_backward(kl_square(w));
    NEAR_LIST(copy_of(kl_gradients_get(g, w)), 0, 6, 8);
    kl_gradients_free(g);
    CHECK(kl_check(kl_from_inner(w)) == KL_ERR_GRAD &&
          says("from_inner: Autodiff should not wrap an autodiff tensor."));
    kl_scope_end();
}

static void a18(void)
{
    kl_scope_begin();
    kl_tensor plain[] = {kl_arange(cpu, KL_I64, 3), kl_gt(data(cpu, 1, -1), kl_const(cpu, KL_F32, 0)),
                         kl_input(cpu, KL_U8, DIMS(2), (uint8_t[]){4, 5})};
    kl_trace_begin("a18");
    for (int k = 0; k < 3; k++) {
        kl_tensor here = kl_where(kl_eq(plain[k], plain[k]), plain[k], plain[k]);
        int before = nodes();
        kl_tensor out = kl_from_inner(here);
        CHECK(nodes() == before && on(out, ad));
        CHECK(on(kl_eq(out, out), ad)); /* and what is made of it */
    }
    kl_trace_abandon();
    for (int k = 0; k < 3; k++) {
        kl_tensor out = kl_from_inner(plain[k]);
        CHECK(on(out, ad) && kl_check(kl_eq(out, out)) == KL_OK && kl_check(kl_eq(out, plain[k])) == KL_ERR_DEVICE);
    }
    CHECK(says("eq: operands are on devices autodiff<"));
    kl_scope_end();
}

static void a19(void)
{
    kl_device d[32], each[3];
    uint32_t n = kl_device_enumerate(EVERY, 32, d);
    kl_scope_begin();
    for (uint32_t i = 0; i < n; i++) {
        each[0] = d[i];
        each[1] = kl_device_autodiff(d[i]);
        each[2] = kl_device_gradient_checkpointing(each[1], 12345);
        for (int k = 0; k < 3; k++) {
            kl_tensor x = data(each[k], 1, 2), y = kl_sum_all(kl_mul(x, kl_add_scalar(x, 1)));
            CHECK(on(x, each[k]) && on(y, each[k]) && kl_device_inner(kl_device_of(y)).id == d[i].id);
            kl_trace_begin("a19");
            kl_tensor z = kl_softmax(x, 0);
            CHECK(on(z, each[k]));
            kl_keep(z);
            OK(kl_trace_end());
            CHECK(on(z, each[k])); /* as a value, too */
            kl_trace_begin("a19 step");
            kl_tensor in = kl_input(each[k], KL_F32, DIMS(2), (float[]){1, 2}), given = data(each[k], 5, 6),
                out = kl_none;
            kl_keep(kl_mul(in, in));
            kl_step *step = kl_trace_end_step(1, &in);
            kl_tensor later = data(each[k], 5, 6);
            CHECK(step && kl_check(given) != KL_OK && kl_step_run(step, 1, &later, 0, NULL, 1, &out) == KL_OK &&
                  on(out, each[k]));
            kl_release(out);
            kl_step_free(step);
        }
    }
    kl_scope_end();
}

static void a20(void)
{
    kl_scope_begin();
    kl_tensor x = kl_ones(balanced, KL_F32, DIMS(2)), y = kl_exp(x);
    CHECK(kl_device_checkpointing(kl_device_of(y)) == KL_CHECKPOINT_BALANCED &&
          kl_checkpointing_of(y) == KL_CHECKPOINT_BALANCED);
    CHECK(kl_device_checkpointing(ad) == KL_CHECKPOINT_NONE && kl_device_checkpointing(budget) == 1 << 20);
    CHECK(kl_device_checkpointing(cpu) == KL_CHECKPOINT_UNSET &&
          kl_checkpointing_of(data(cpu, 1, 1)) == KL_CHECKPOINT_UNSET);
    CHECK(!kl_device_gradient_checkpointing(cpu, 0).id && says("is plain: kl_device_autodiff comes first"));
    CHECK(!kl_device_gradient_checkpointing(ad, -2).id && kl_last_error_code() == KL_ERR_ARGUMENT);
    CHECK(kl_device_gradient_checkpointing(balanced, KL_CHECKPOINT_NONE).id == ad.id);
    kl_scope_end();
}

static void a21(void)
{
    const kl_device each[] = {ad, balanced, budget};
    kl_scope_begin();
    for (int k = 0; k < 3; k++) {
        kl_checkpointing want = kl_device_checkpointing(each[k]);
        kl_tensor x = leaf(each[k], 1, 2), in = kl_inner(x);
        CHECK(kl_checkpointing_of(in) == want && on(in, cpu));
        kl_tensor mixed = kl_add(data(cpu, 1, 1), in); /* one that carries none takes on the other's */
        CHECK(kl_checkpointing_of(mixed) == want && on(kl_from_inner(mixed), each[k]) &&
              on(kl_from_inner(in), each[k]));
        kl_gradients *g = kl_backward(kl_square(x));
        kl_tensor dx = kl_gradients_get(g, x);
        CHECK(kl_checkpointing_of(dx) == want && on(dx, cpu) && on(kl_from_inner(dx), each[k]));
        CHECK(on(kl_grad(kl_square(x), x), each[k]));
        kl_gradients_free(g);
        kl_trace_begin("a21");
        CHECK(on(kl_from_inner(kl_inner(kl_square(x))), each[k]));
        kl_trace_abandon();
    }
    kl_scope_end();
}

static void a23(void)
{
    CHECK(!kl_device_autodiff(ad).id && says("Autodiff should not wrap an autodiff device.") &&
          kl_last_error_code() == KL_ERR_GRAD);
    CHECK(!kl_device_autodiff(balanced).id && !kl_device_named("autodiff<autodiff<ref>>").id);
    kl_scope_begin();
    /* higher orders on one device */
    kl_tensor x = leaf(ad, 2, 3), dy = kl_grad(kl_powi(x, 3), x), ddy = kl_grad(dy, x);
    CHECK(on(dy, ad) && on(ddy, ad));
    NEAR_LIST(kl_keep(ddy), 1e-6, 12, 18);
    kl_scope_end();
}

static void a24(void)
{
    kl_scope_begin();
    kl_tensor a = data(balanced, 1, 2), b = data(ad, 3, 4), c = data(budget, 5, 6);
    int64_t launches = kl_counter("launches");
    CHECK(kl_check(kl_add(a, b)) == KL_ERR_GRAD && says("add: Autodiff strategy mismatch: Balanced vs None."));
    CHECK(kl_check(kl_mul(b, c)) == KL_ERR_GRAD && says("mul: Autodiff strategy mismatch: None vs 1048576 bytes."));
    CHECK(kl_check(kl_add(kl_inner(a), kl_inner(b))) == KL_ERR_GRAD && says("strategy mismatch")); /* carried */
    CHECK(kl_check(kl_to(a, ad)) == KL_ERR_GRAD && says("to: Autodiff strategy mismatch"));
    kl_trace_begin("a24");
    kl_tensor y = kl_add(kl_exp(a), kl_exp(b));
    CHECK(kl_check(y) != KL_OK);
    CHECK(kl_trace_end() == KL_ERR_GRAD && says("Balanced vs None"));
    CHECK(kl_counter("launches") == launches); /* before anything runs */
    kl_scope_end();
}

static void a27(void)
{
    kl_scope_begin();
    CHECK(!kl_backward(kl_arange(ad, KL_I32, 3)) && kl_last_error_code() == KL_ERR_TYPE &&
          says("backward: Should be float, got i32"));
    kl_trace_begin("a27");
    CHECK(kl_check(kl_exp(kl_arange(ad, KL_I32, 3))) == KL_ERR_TYPE);
    CHECK(kl_trace_end() == KL_ERR_TYPE && says("exp: ") && says("i32"));
    CHECK(kl_requires_grad(kl_arange(ad, KL_I32, 3)) == KL_ERR_TYPE && says("needs a floating dtype, got i32"));
    kl_tensor both = kl_add(data(ad, 1, 2), kl_arange(ad, KL_I32, 2));
    CHECK(kl_check(both) == KL_ERR_TYPE && says("f32") && says("i32"));
    kl_scope_end();
}

static void a28(void)
{
    kl_scope_begin();
    kl_tensor x = leaf(ad, 1, 5), top = kl_argmax(x, 0), i = kl_arange(ad, KL_I32, 2);
    CHECK(!kl_is_tracked(top) && on(top, ad));
    kl_tensor picked = kl_take(kl_square(x), 0, top), loss = kl_add(kl_sum_all(picked), kl_sum_all(kl_square(x)));
    kl_gradients *g = kl_backward(loss);
    NEAR_LIST(copy_of(kl_gradients_get(g, x)), 0, 2, 20); /* the surrounding recording continues */
    CHECK(!kl_gradients_get(g, top).id && !kl_gradients_get(g, i).id);
    kl_gradients_free(g);
    CHECK(!kl_backward(kl_cast(top, KL_F32)) && kl_last_error_code() == KL_ERR_GRAD &&
          says("backward: Operation not marked for autodiff."));
    kl_scope_end();
}

enum { LAYERS = 10, WIDTH = 64, ROWS = 256 };
struct cost { kl_run_info info; int64_t peak; float gradient[LAYERS][WIDTH]; };

/* One backward pass through a chain of products and activations, and what it took. */
static bool deep(kl_device d, struct cost *c)
{
    kl_tensor w[LAYERS];
    kl_memory_use before, after;
    kl_scope_begin();
    for (int i = 0; i < LAYERS; i++) {
        w[i] = kl_mul_scalar(kl_randn(d, KL_F32, DIMS(WIDTH, WIDTH), (uint64_t)i), 0.125);
        kl_requires_grad(w[i]);
    }
    kl_tensor x = kl_randn(d, KL_F32, DIMS(ROWS, WIDTH), 99);
    kl_sync(d);
    kl_memory_used(d, &before);
    kl_trace_begin("deep");
    kl_tensor h = x;
    for (int i = 0; i < LAYERS; i++)
        h = kl_tanh(kl_sin(kl_matmul(h, w[i])));
    kl_gradients *g = kl_backward(kl_sum_all(kl_square(h)));
    kl_tensor first[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        first[i] = kl_keep(kl_sum(kl_gradients_get(g, w[i]), AXES(0), false));
    bool ok = g && kl_trace_end() == KL_OK && kl_trace_info(&c->info) == KL_OK;
    kl_gradients_free(g);
    kl_memory_used(d, &after);
    c->peak = after.peak;
    for (int i = 0; i < LAYERS && ok; i++)
        ok = kl_read(first[i], c->gradient[i], sizeof c->gradient[i]) == KL_OK;
    kl_scope_end();
    kl_memory_trim();
    return ok;
}

static void a29(void)
{
    struct cost none, all, some;
    const int64_t activation = ROWS * WIDTH * 4;
    kl_device part = kl_device_gradient_checkpointing(ad, 4 * activation),
        much = kl_device_gradient_checkpointing(ad, 1 << 30);
    CHECK(deep(balanced, &all)); /* least memory first: the allocator's peak only rises */
    CHECK(deep(part, &some) && deep(ad, &none));
    CHECK(!memcmp(all.gradient, none.gradient, sizeof all.gradient) &&
          !memcmp(some.gradient, none.gradient, sizeof all.gradient));
    printf("A29 balanced %lld bytes in %lld kernels, 4 activations kept %lld in %lld, without %lld in %lld\n",
           (long long)all.info.arena_bytes, (long long)all.info.kernels, (long long)some.info.arena_bytes,
           (long long)some.info.kernels, (long long)none.info.arena_bytes, (long long)none.info.kernels);
    bool kernels = strcmp(kl_device_name(cpu), "ref"); /* the interpreter has none, and no arena */
    CHECK(!kernels || all.info.arena_bytes + 3 * activation <= some.info.arena_bytes);
    CHECK(!kernels || some.info.arena_bytes + 3 * activation <= none.info.arena_bytes);
    CHECK(!kernels || (all.info.kernels > none.info.kernels && some.info.kernels > none.info.kernels));
    CHECK(all.peak < some.peak && some.peak < none.peak);
    CHECK(deep(much, &all) && all.info.arena_bytes == none.info.arena_bytes && all.info.kernels == none.info.kernels);
}

static void a30(void)
{
    kl_scope_begin();
    kl_tensor x = leaf(ad, 1, 2), loss = kl_exp(kl_square(x));
    kl_gradients *g = kl_backward(loss), *again = kl_backward(loss);
    double *a = values_of(kl_gradients_get(g, x)), *b = values_of(kl_gradients_get(again, x));
    CHECK(a && b && a[0] == b[0] && a[1] == b[1] && a[0] > 5);
    free(a), free(b);
    kl_gradients_free(again);
    again = kl_backward(loss); /* after the values are known, too */
    NEAR_LIST(copy_of(kl_gradients_get(again, x)), 1e-5, 2 * exp(1), 4 * exp(4));
    kl_gradients_free(again);
    kl_gradients_free(g);
    kl_scope_end();
}

/* A step of training that does not know whether its device records for gradients. */
static kl_tensor model(kl_device d, kl_tensor w)
{
    return kl_sum_all(kl_square(kl_sub(kl_tanh(w), data(d, 0.5f, -0.5f))));
}

static kl_status of_one(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    kl_tensor w = *(kl_tensor *)ctx;
    out[0] = kl_sum_all(kl_mul(kl_add_scalar(kl_exp(w), 1), in[0]));
    return KL_OK;
}

/* What vmap records again is on the autodiff device, too. */
static void mapped(void)
{
    kl_tensor w = leaf(balanced, 0, 1), rows = kl_input(balanced, KL_F32, DIMS(3, 2), (float[]){1, 2, 3, 4, 5, 6}), y;
    OK(kl_vmap(of_one, &w, 1, &rows, NULL, 1, NULL, KL_RANDOM_ERROR, &y));
    CHECK(on(y, balanced));
    kl_gradients *g = kl_backward(y);
    NEAR_LIST(copy_of(kl_gradients_get(g, w)), 1e-6, 9, 12 * exp(1));
    kl_gradients_free(g);
}

static void c4(void)
{
    kl_scope_begin();
    mapped();
    kl_scope_end();
    double loss[2];
    for (int k = 0; k < 2; k++) {
        kl_scope_begin();
        kl_device d = k ? ad : cpu;
        kl_tensor w = leaf(d, 1, 1), y = model(d, w);
        kl_gradients *g = kl_backward(y);
        CHECK(!g == !k);
        loss[k] = kl_item_f64(y);
        for (int step = 0; k && step < 100; step++) {
            kl_tensor next = kl_from_inner(kl_sub(kl_inner(w), kl_mul_scalar(kl_gradients_get(g, w), 0.5)));
            OK(kl_assign(w, next));
            kl_gradients_free(g);
            g = kl_backward(y = model(d, w));
        }
        if (k)
            CHECK(kl_item_f64(y) < 1e-3);
        kl_gradients_free(g);
        kl_scope_end();
    }
    CHECK(loss[0] == loss[1]);
}

static void c6(void)
{
    kl_device d = kl_device_autodiff(kl_device_default());
    CHECK(d.id == ad.id && kl_device_inner(d).id == kl_device_default().id);
    a23();
}

static const struct row rows[] = {
    {"A7", a7}, {"A11", a11}, {"A12", a12}, {"A13", a13}, {"A14", a14}, {"A15", a15}, {"A16", a16}, {"A17", a17},
        {"A18", a18},
    {"A19", a19}, {"A20", a20}, {"A21", a21}, {"A23", a23}, {"A24", a24}, {"A27", a27}, {"A28", a28}, {"A29", a29},
        {"A30", a30},
    {"C4", c4}, {"C6", c6}};

int main(int argc, char **argv)
{
    ad = kl_device_autodiff(kl_device_default());
    balanced = kl_device_gradient_checkpointing(ad, KL_CHECKPOINT_BALANCED);
    budget = kl_device_gradient_checkpointing(ad, 1 << 20);
    return RUN_ROWS(rows);
}
