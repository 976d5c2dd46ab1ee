/* Frozen steps: they do what the recorded trace does, with the inputs and numbers given; errors; threads. */
#include "tests/support/api_check.h"
#include <kiln/train.h>
#include <pthread.h>

enum { N = 6, M = 4 };

static const float images[2][N * M] = {{0.5f, -1, 2, 0.25f, 1, 1, -3, 0.5f, 2},
                                       {-0.5f, 1, 1, 1, 0, 3, 2, 1, 0.125f, -1}};

static void record(kl_tensor x, kl_tensor w, kl_tensor lr, double decay, kl_tensor *loss)
{
    *loss = kl_keep(kl_sum_all(kl_square(kl_tanh(kl_matmul(x, w)))));
    kl_tensor g = kl_grad(*loss, w);
    kl_assign(w, kl_sub(kl_mul_scalar(w, decay), kl_mul(g, kl_expand(lr, DIMS(M, 2)))));
}

static kl_tensor input(kl_device dev, int which) { return kl_input(dev, KL_F32, DIMS(N, M), images[which]); }

static kl_tensor number(kl_device dev, const char *name, double v)
{
    kl_tensor t = kl_scalar(dev, KL_F32, v);
    kl_set_name(t, name);
    return t;
}

static kl_step *freeze(kl_device dev, kl_tensor w)
{
    kl_tensor loss;
    kl_trace_begin("frozen");
    kl_tensor x = input(dev, 0);
    record(x, w, number(dev, "lr", 0.25), 0.5, &loss);
    return kl_trace_end_step(1, &x);
}

/* Step by step the same bits as recorded; the learning rate is once not given and stays as it was recorded. */
static void test_same(kl_device dev)
{
    kl_tensor w = kl_randn(dev, KL_F32, DIMS(M, 2), 3), v = kl_add_scalar(w, 0);
    float before[M * 2], now[M * 2], want[M * 2], loss[2];
    OK(kl_read(w, before, sizeof before));
    OK(kl_read(v, now, sizeof now));
    kl_step *step = freeze(dev, w);
    if (!CHECK(step && kl_step_outputs(step) == 1))
        return;
    OK(kl_read(w, now, sizeof now));
    CHECK(!memcmp(now, before, sizeof now)); /* it was not run */
    int64_t built = -1;
    for (int i = 0; i < 10; i++) {
        kl_tensor x = input(dev, i % 2), out, recorded;
        double lr = i == 5 ? 0.25 : 0.125 / (1 + i);
        OK(kl_step_run(step, 1, &x, i != 5, &(kl_slot){"lr", lr}, 1, &out));
        kl_trace_begin("recorded");
        record(x, v, kl_scalar(dev, KL_F32, lr), 0.5, &recorded);
        OK(kl_trace_end());
        loss[0] = kl_item_f32(out), loss[1] = kl_item_f32(recorded);
        OK(kl_read(w, now, sizeof now));
        OK(kl_read(v, want, sizeof want));
        CHECK(!memcmp(now, want, sizeof now) && !memcmp(&loss[0], &loss[1], sizeof loss[0]));
        if (i == 1)
            built = kl_counter("graphs_built");
        kl_release(x), kl_release(out), kl_release(recorded);
    }
    CHECK(kl_counter("graphs_built") == built);

    /* the state is what the handle means now, lazy or assigned; what is held of it stays */
    kl_tensor held = kl_keep(kl_add_scalar(w, 0)), x = input(dev, 1), out;
    OK(kl_read(held, before, sizeof before));
    kl_assign(w, kl_mul_scalar(v, 0));
    OK(kl_step_run(step, 1, &x, 0, NULL, 1, &out));
    NEAR_LIST(out, 0, 0);
    NEAR_LIST(kl_sum_all(kl_abs(w)), 0, 0);
    OK(kl_read(held, now, sizeof now));
    CHECK(!memcmp(now, before, sizeof now));
    kl_release(held), kl_release(x), kl_release(w), kl_release(v);
    kl_step_free(step);
}

/* ---- equal numbers without names are one ---- */

/* x, [N, width], through layers that are alike but for their weight; the third one's number is called "scale". */
static kl_tensor layers_of(kl_device dev, const float *v, int layers, int width, double scale, kl_tensor *in)
{
    kl_tensor x = *in = kl_input(dev, KL_F32, DIMS(N, width), v);
    float weight[16 * 16];
    for (int i = 0; i < layers; i++) {
        for (int k = 0; k < width * width; k++)
            weight[k] = (float)cos(k + i) / 4;
        kl_tensor w = kl_input(dev, KL_F32, DIMS(width, width), weight);
        kl_tensor angles = kl_exp(kl_mul_scalar(kl_arange(dev, KL_F32, width), -0.25));
        kl_tensor y = kl_add_scalar(kl_mul_scalar(kl_tanh(kl_matmul(x, w)), 0.75), 0.5);
        kl_tensor by = i == 2 ? number(dev, "scale", scale) : kl_scalar(dev, KL_F32, 0.0625);
        x = kl_add(kl_mul(y, angles), kl_mul(x, by));
    }
    return kl_keep(x);
}

/* The kernels of a step of so many layers that no program before it had; its results are those of a trace. */
static int64_t kernels_of(kl_device dev, int layers, int width)
{
    float v[N * 16], got[N * 16], want[N * 16];
    size_t bytes = (size_t)(N * width) * sizeof *v;
    kl_tensor x, y;
    for (int i = 0; i < N * width; i++)
        v[i] = (float)sin(i) / 4;
    int64_t missed = kl_counter("kernel_misses");
    kl_trace_begin("layers");
    layers_of(dev, v, layers, width, 0.0625, &x);
    kl_step *step = kl_trace_end_step(1, &x);
    missed = kl_counter("kernel_misses") - missed;
    x = kl_input(dev, KL_F32, DIMS(N, width), v);
    for (int given = 0; given < 2; given++) {
        double scale = given ? 0.5 : 0.0625; /* at first equal to that of the other layers */
        kl_tensor in;
        OK(kl_step_run(step, 1, &x, given, &(kl_slot){"scale", scale}, 1, &y));
        OK(kl_read(y, got, bytes));
        kl_release(y);
        kl_trace_begin("layers recorded");
        y = layers_of(dev, v, layers, width, scale, &in);
        OK(kl_trace_end());
        OK(kl_read(y, want, bytes));
        kl_release(y);
        CHECK(!memcmp(got, want, bytes));
    }
    kl_release(x);
    kl_step_free(step);
    return missed;
}

/* More layers that are alike have no more kernels. */
static void test_layers(kl_device dev)
{
    int64_t few = kernels_of(dev, 4, 11), many = kernels_of(dev, 9, 13);
    if (few != many)
        printf("  %lld kernels of 4 layers, %lld of 9\n", (long long)few, (long long)many);
    CHECK(few == many);
}

/* Outputs that are held, inputs that stay as recorded, borrowed ones, a state as an input, names shared by two
 * numbers. */
static void test_parts(kl_device dev)
{
    static float borrowed[4] = {1, 2, 3, 4};
    kl_tensor s = kl_input(dev, KL_F32, DIMS(4), borrowed), out[8][3];
    kl_trace_begin("parts");
    kl_tensor a = kl_input(dev, KL_F32, DIMS(4), borrowed);
    kl_tensor b = kl_wrap(dev, KL_F32, DIMS(4), borrowed, NULL, NULL);
    kl_tensor fixed = kl_input(dev, KL_F32, DIMS(4), (float[]){10, 20, 30, 40});
    kl_tensor p = number(dev, "p", 2), q = number(dev, "p", 3);
    kl_tensor i8 = kl_scalar(dev, KL_I32, 7);
    kl_set_name(i8, "whole");
    kl_keep(kl_mul(a, kl_expand(p, DIMS(4))));
    kl_keep(kl_add(kl_mul(b, kl_expand(q, DIMS(4))), fixed));
    kl_keep(i8);
    kl_assign(s, kl_add(s, a));
    kl_step *step = kl_trace_end_step(2, (kl_tensor[]){b, a}); /* in another order */
    if (!CHECK(step && kl_step_outputs(step) == 3))
        return;
    for (int i = 0; i < 8; i++) {
        kl_tensor x = kl_input(dev, KL_F32, DIMS(4), (float[]){1, 1, 1, (float)i});
        OK(kl_step_run(step, 2, (kl_tensor[]){x, s}, 2, (kl_slot[]){{"whole", i}, {"p", i}}, 3, out[i]));
        kl_release(x);
    }
    double twice[4] = {1, 2, 3, 4};
    for (int i = 0; i < 8; i++) {
        NEAR_LIST(out[i][0], 0, i * twice[0], i * twice[1], i * twice[2], i * twice[3]);
        NEAR_LIST(out[i][1], 0, 10 + i, 20 + i, 30 + i, 40 + i * i);
        CHECK(kl_dtype_of(out[i][2]) == KL_I32);
        NEAR_LIST(out[i][2], 0, i);
        for (int k = 0; k < 4; k++)
            twice[k] *= 2; /* the state was its own input */
    }
    NEAR(s, 4, twice, 0);
    kl_step_free(step);
}

/* Optimizers, whose numbers change from step to step. */
static void test_optimizers(kl_device dev)
{
    static const kl_adam_options decay = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.125};
    static const kl_sgd_options momentum = {.momentum = 0.5};
    for (int kind = 0; kind < 3; kind++) {
        float now[M * 2], want[M * 2];
        kl_tensor w[2] = {kl_randn(dev, KL_F32, DIMS(M, 2), 9), kl_none}, x = input(dev, 0), given = x;
        w[1] = kl_add_scalar(w[0], 0);
        OK(kl_read(w[1], want, sizeof want));
        kl_optimizer *o[2];
        for (int i = 0; i < 2; i++)
            o[i] = kind == 2 ? kl_sgd(1, &w[i], &momentum) : kl_adam(1, &w[i], kind ? &decay : NULL);
        kl_trace_begin("frozen optimizer");
        x = input(dev, 1);
        kl_optimizer_step(o[0], kl_sum_all(kl_square(kl_matmul(x, w[0]))), 1);
        kl_step *step = kl_trace_end_step(1, &x);
        OK(kl_optimizer_set_steps(o[0], 0));
        for (int i = 0; step && i < 6; i++) {
            kl_slot slots[KL_OPTIMIZER_SLOTS];
            int n = kl_optimizer_slots(o[0], 0.25 / (1 + i), slots);
            OK(kl_step_run(step, 1, &given, n, slots, 0, NULL));
            kl_trace_begin("recorded optimizer");
            kl_optimizer_step(o[1], kl_sum_all(kl_square(kl_matmul(given, w[1]))), 0.25 / (1 + i));
            OK(kl_trace_end());
            OK(kl_read(w[0], now, sizeof now));
            OK(kl_read(w[1], want, sizeof want));
            CHECK(!memcmp(now, want, sizeof now));
        }
        CHECK(step && kl_optimizer_steps(o[0]) == 6);
        kl_step_free(step);
        for (int i = 0; i < 2; i++)
            kl_optimizer_free(o[i]), kl_release(w[i]);
        kl_release(given);
    }
    CHECK(kl_optimizer_slots(NULL, 1, NULL) == 0 && kl_last_error_code() == KL_ERR_ARGUMENT);
}

#define REFUSED(call, status, text) check_at((call) == (status) && strstr(kl_last_error(), text), __LINE__, #call)

static void test_errors(kl_device dev)
{
    kl_tensor w = kl_ones(dev, KL_F32, DIMS(M, 2)), loss, out;
    kl_step *step = freeze(dev, w);
    if (!CHECK(step))
        return;
    kl_tensor x = input(dev, 0), stale = input(dev, 0);
    kl_tensor narrow = kl_ones(dev, KL_F32, DIMS(N, M - 1)), whole = kl_ones(dev, KL_I32, DIMS(N, M));
    kl_release(stale);
    REFUSED(kl_step_run(step, 0, NULL, 0, NULL, 1, &out), KL_ERR_ARGUMENT, "step \"frozen\": takes 1 inputs, got 0");
    REFUSED(kl_step_run(step, 1, NULL, 0, NULL, 1, &out), KL_ERR_ARGUMENT, "at NULL");
    REFUSED(kl_step_run(step, 1, &x, 0, NULL, 0, NULL), KL_ERR_ARGUMENT, "has 1 outputs, not 0");
    REFUSED(kl_step_run(step, 1, &x, 1, NULL, 1, &out), KL_ERR_ARGUMENT, "1 numbers at NULL");
    REFUSED(kl_step_run(step, 1, &narrow, 0, NULL, 1, &out), KL_ERR_SHAPE, "input 1 has shape [6,3], not [6,4]");
    REFUSED(kl_step_run(step, 1, &whole, 0, NULL, 1, &out), KL_ERR_TYPE, "input 1 is i32, not f32");
    REFUSED(kl_step_run(step, 1, &stale, 0, NULL, 1, &out), KL_ERR_HANDLE, "input 1 is stale");
    REFUSED(kl_step_run(step, 1, &x, 1, &(kl_slot){"rate", 1}, 1, &out), KL_ERR_ARGUMENT,
            "there is no number named \"rate\": the names are lr");
    REFUSED(kl_step_run(step, 1, &x, 1, &(kl_slot){NULL, 1}, 1, &out), KL_ERR_ARGUMENT, "no number named \"\"");
    REFUSED(kl_step_run(NULL, 0, NULL, 0, NULL, 0, NULL), KL_ERR_ARGUMENT, "no step");
    CHECK(out.id == 0 && strstr(kl_last_error(), "api_step.c:"));
    kl_trace_begin("open");
    REFUSED(kl_step_run(step, 1, &x, 0, NULL, 1, &out), KL_ERR_TRACE, "trace \"open\" is open");
    kl_trace_abandon();
    NEAR_LIST(kl_sum_all(w), 0, 2 * M); /* none of them ran */
    OK(kl_step_run(step, 1, &x, 0, NULL, 1, &out));
    kl_release(out);
    kl_release(w);
    REFUSED(kl_step_run(step, 1, &x, 0, NULL, 1, &out), KL_ERR_HANDLE, "state \"s0\" was released");
    kl_step_free(step);
    kl_step_free(NULL);
    CHECK(kl_step_outputs(NULL) == -1);

    CHECK(!kl_trace_end_step(0, NULL) && kl_last_error_code() == KL_ERR_TRACE);
    w = kl_ones(dev, KL_F32, DIMS(M, 2));
    const char *want[] = {"input 1 was not made by kl_input", "input 1 is kl_none", "given twice",
                          "keeps and assigns nothing",
                          "api_step.c"};
    for (int i = 0; i < 5; i++) {
        kl_trace_begin("refused");
        kl_tensor in = input(dev, 0);
        kl_tensor list[2] = {i == 0 ? w : i == 1 ? kl_none : in, in};
        if (i < 3)
            record(in, w, kl_scalar(dev, KL_F32, 1), 1, &loss);
        if (i == 4)
            kl_keep(kl_add(in, kl_const(dev, KL_I32, 1)));
        CHECK(!kl_trace_end_step(i == 2 ? 2 : 1, list) && strstr(kl_last_error(), want[i]));
        CHECK(!kl_tracing());
    }
    NEAR_LIST(kl_sum_all(w), 0, 2 * M);
    kl_release(w), kl_release(x), kl_release(narrow), kl_release(whole);
}

/* ---- threads ---- */

enum { THREADS = 4, RUNS = 200 };
struct worker { kl_step *step; kl_device dev; int id; bool ok; };

static void *run_many(void *arg)
{
    struct worker *w = arg;
    w->ok = true;
    kl_tensor x = kl_full(w->dev, KL_F32, DIMS(8), w->id);
    for (int i = 0; i < RUNS; i++) {
        kl_tensor out = kl_none;
        float v[8];
        w->ok = w->ok && kl_step_run(w->step, 1, &x, 1, &(kl_slot){"by", i}, 1, &out) == KL_OK &&
                kl_read(out, v, sizeof v) == KL_OK && v[0] == (float)(i * w->id) && v[7] == v[0];
        kl_release(out);
    }
    kl_release(x);
    return NULL;
}

static void test_threads(kl_device dev)
{
    kl_tensor sum = kl_zeros(dev, KL_F32, DIMS(8));
    kl_trace_begin("shared");
    kl_tensor x = kl_input(dev, KL_F32, DIMS(8), (float[8]){0}), by = number(dev, "by", 0);
    kl_keep(kl_mul(x, kl_expand(by, DIMS(8))));
    kl_assign(sum, kl_add(sum, x));
    kl_step *step = kl_trace_end_step(1, &x);
    pthread_t t[THREADS];
    struct worker w[THREADS];
    double want = 0;
    for (int i = 0; i < THREADS; i++) {
        w[i] = (struct worker){.step = step, .dev = dev, .id = i + 1};
        want += RUNS * (i + 1);
        if (!CHECK(step && pthread_create(&t[i], NULL, run_many, &w[i]) == 0))
            return;
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(t[i], NULL) == 0 && w[i].ok);
    NEAR_LIST(sum, 0, want, want, want, want, want, want, want, want);
    kl_step_free(step);
}

static void test(kl_device dev)
{
    test_same(dev);
    test_layers(dev);
    test_parts(dev);
    test_optimizers(dev);
    test_errors(dev);
    test_threads(dev);
}

int main(void) { return on_devices(test); }
