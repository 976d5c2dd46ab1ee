/* Numbers of list elements that are none: negative, or above 2^31 - 1.  Each function that takes one refuses it by the
 * argument's name, gives poison for the results that it can, and the next call works.  tests/convention.sh checks that
 * no function with such an argument is missing here. */
#include "tests/support/api_check.h"
#include <kiln/extend.h>
#include <kiln/dispatch.h>
#include <kiln/onnx.h>
#include <kiln/solve/solve.h>
#include <kiln/storage.h>
#include <kiln/train.h>

static kl_device dev;
static const int64_t wrong[] = {-1, INT64_MIN, (int64_t)INT32_MAX + 1, INT64_MAX};

static kl_status identity(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx;
    for (uint32_t i = 0; i < nin && i < nout; i++)
        out[i] = in[i];
    return KL_OK;
}

/* Whether the last error names the function, the argument and its value. */
static bool names(kl_status status, const char *function, const char *argument, int64_t n)
{
    char want[120];
    snprintf(want, sizeof want, "%s: %s is %lld; ", function, argument, (long long)n);
    bool ok = status == KL_ERR_ARGUMENT && strstr(kl_last_error(), want);
    if (!ok)
        printf("%d '%s' does not contain '%s'\n", status, kl_last_error(), want);
    kl_clear_error();
    return ok;
}

/* A result that was given is poison; it is released. */
static bool is_poison(kl_tensor *out)
{
    bool ok = kl_check(*out) == KL_ERR_ARGUMENT;
    kl_clear_error();
    kl_release(*out);
    *out = kl_none;
    return ok;
}

static void regions(int64_t n, kl_tensor x)
{
    kl_tensor out = kl_none, yes = kl_ones(dev, KL_BOOL, 0, NULL);
    CHECK(names(kl_cond(yes, identity, identity, NULL, n, &x, 1, &out), "cond", "nin", n) && is_poison(&out));
    CHECK(names(kl_cond(yes, identity, identity, NULL, 1, &x, n, &out), "cond", "nout", n));
    CHECK(names(kl_while(identity, identity, NULL, n, &x, &out), "while", "n", n));
    CHECK(names(kl_scan(identity, NULL, 2, n, &x, 0, NULL, 1, false, &out), "scan", "ncarried", n) && is_poison(&out));
    CHECK(names(kl_scan(identity, NULL, 2, 1, &x, n, NULL, 0, false, &out), "scan", "nscanned", n) && is_poison(&out));
    CHECK(names(kl_scan(identity, NULL, 2, 1, &x, 0, NULL, n, false, &out), "scan", "nstacked", n) && is_poison(&out));
    CHECK(names(kl_checkpoint(identity, NULL, n, &x, 1, &out), "checkpoint", "nin", n) && is_poison(&out));
    CHECK(names(kl_checkpoint(identity, NULL, 1, &x, n, &out), "checkpoint", "nout", n));
    CHECK(names(kl_custom_grad(identity, identity, NULL, n, &x, 1, &out), "custom_grad", "nin", n) && is_poison(&out));
    CHECK(names(kl_custom_grad(identity, identity, NULL, 1, &x, n, &out), "custom_grad", "nout", n));
    CHECK(names(kl_vmap(identity, NULL, n, &x, NULL, 1, NULL, KL_RANDOM_ERROR, &out), "vmap", "nin", n) &&
          is_poison(&out));
    CHECK(names(kl_vmap(identity, NULL, 1, &x, NULL, n, NULL, KL_RANDOM_ERROR, &out), "vmap", "nout", n));
    CHECK(names(kl_custom("any", NULL, 0, n, &x, 1, &out), "custom \"any\"", "nin", n) && is_poison(&out));
    CHECK(names(kl_custom("any", NULL, 0, 1, &x, n, &out), "custom \"any\"", "nout", n));
    kl_release(yes);
}

static kl_status itself(void *ctx, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)ctx, (void)n, (void)params;
    *y = x;
    return KL_OK;
}

static kl_status itself_in_time(void *ctx, kl_tensor t, kl_tensor x, int64_t n, const kl_tensor *params, kl_tensor *y)
{
    (void)t;
    return itself(ctx, x, n, params, y);
}

static bool refused(kl_tensor out, const char *function, int64_t n)
{
    return names(kl_check(out), function, "n", n) && (is_poison(&out), true);
}

static void solvers(int64_t n, kl_tensor x)
{
    CHECK(refused(kl_odeint(itself_in_time, NULL, x, x, n, &x, NULL), "odeint", n));
    CHECK(refused(kl_root(itself, NULL, x, n, &x, NULL), "root", n));
    CHECK(refused(kl_bisect(itself, NULL, x, x, n, &x), "bisect", n));
    CHECK(refused(kl_conjugate_gradient(itself, NULL, x, n, &x, NULL), "conjugate_gradient", n));
    CHECK(refused(kl_minimize(itself, NULL, x, n, &x, NULL), "minimize", n));
}

static void calls_by_name(int64_t n, kl_tensor x)
{
    kl_tensor out = kl_none;
    CHECK(names(kl_dispatch("neg", n, &x, 1, &out), "neg", "nin", n) && is_poison(&out));
    CHECK(names(kl_dispatch("neg", 1, &x, n, &out), "neg", "nout", n));
    CHECK(names(kl_dispatch_with("neg", (kl_keyset){0}, n, &x, 1, &out), "neg", "nin", n) && is_poison(&out));
    CHECK(names(kl_dispatch_direct("neg", KL_KEY_CPU, 1, &x, n, &out), "neg", "nout", n));
    CHECK(n > 0 || kl_dispatch_keys(n, &x).bits == kl_dispatch_keys(0, NULL).bits);
    kl_tracer *tr = kl_tracer_begin(KL_TAP_CALLS, n, &x);
    CHECK(!tr && names(kl_last_error_code(), "tracer_begin", "nin", n));
    if (!CHECK((tr = kl_tracer_begin(KL_TAP_CALLS, 1, &x))))
        return;
    kl_tensor y = kl_neg(x);
    CHECK(names(kl_tracer_end(tr, n, &y), "tracer_end", "nout", n));
    OK(kl_tracer_end(tr, 1, &y));
    CHECK(names(kl_tracer_run(tr, n, &x, 1, &out), "tracer_run", "nin", n) && is_poison(&out));
    CHECK(names(kl_tracer_run(tr, 1, &x, n, &out), "tracer_run", "nout", n));
    kl_tracer_free(tr);
    kl_release(y);
}

static void steps(int64_t n, kl_tensor given)
{
    kl_tensor x, out = kl_none;
    kl_trace_begin("counted");
    x = kl_input(dev, KL_F32, DIMS(2), (float[]){1, 1});
    kl_keep(kl_neg(x));
    CHECK(!kl_trace_end_step(n, &x) && names(kl_last_error_code(), "trace_end_step", "ninputs", n) && !kl_tracing());
    kl_trace_begin("counted");
    x = kl_input(dev, KL_F32, DIMS(2), (float[]){1, 1});
    kl_keep(kl_neg(x));
    kl_step *step = kl_trace_end_step(1, &x);
    if (!CHECK(step))
        return;
    CHECK(names(kl_step_run(step, n, &given, 0, NULL, 1, &out), "step \"counted\"", "ninputs", n) && !out.id);
    CHECK(names(kl_step_run(step, 1, &given, n, NULL, 1, &out), "step \"counted\"", "nslots", n) && !out.id);
    CHECK(names(kl_step_run(step, 1, &given, 0, NULL, n, &out), "step \"counted\"", "noutputs", n));
    OK(kl_step_run(step, 1, &given, 0, NULL, 1, &out));
    kl_release(out);
    kl_step_free(step);
}

static void lists(int64_t n, kl_tensor x)
{
    kl_tensor out = kl_none;
    kl_device device = dev;
    out = kl_concat(n, &x, 0);
    CHECK(names(kl_last_error_code(), "concat", "n", n) && is_poison(&out));
    out = kl_stack(n, &x, 0);
    CHECK(names(kl_last_error_code(), "stack", "n", n) && is_poison(&out));
    out = kl_einsum("i->i", n, &x);
    CHECK(names(kl_last_error_code(), "einsum", "n", n) && is_poison(&out));
    out = kl_loss_scale_finite(n, &x);
    CHECK(names(kl_last_error_code(), "loss_scale_finite", "n", n) && is_poison(&out));
    CHECK(names(kl_split(x, 0, n, NULL, &out), "split", "n", n) && !out.id);
    CHECK(names(kl_grads(x, n, &x, &out), "grads", "n", n) && !out.id);
    CHECK(names(kl_all_reduce(KL_REDUCE_SUM, n, &x, &out), "all_reduce", "n", n) && !out.id);
    CHECK(names(kl_all_gather(0, n, &x, &out), "all_gather", "n", n) && !out.id);
    CHECK(names(kl_reduce_scatter(KL_REDUCE_SUM, 0, n, &x, &out), "reduce_scatter", "n", n) && !out.id);
    CHECK(names(kl_broadcast(x, n, &device, &out), "broadcast", "n", n) && !out.id);
}

static void training(int64_t n, kl_tensor x)
{
    kl_tensor gradient = x, norm = kl_clip_norm(n, &gradient, 1);
    CHECK(names(kl_last_error_code(), "clip_norm", "n", n) && is_poison(&norm));
    CHECK(names(kl_clip_value(n, &gradient, 1), "clip_value", "n", n) && gradient.id == x.id);
    CHECK(!kl_sgd(n, &x, NULL) && names(kl_last_error_code(), "sgd", "n", n));
    CHECK(!kl_adam(n, &x, NULL) && names(kl_last_error_code(), "adam", "n", n));
    CHECK(!kl_lion(n, &x, NULL) && names(kl_last_error_code(), "lion", "n", n));
    CHECK(!kl_rmsprop(n, &x, NULL) && names(kl_last_error_code(), "rmsprop", "n", n));
    CHECK(!kl_adafactor(n, &x, NULL) && names(kl_last_error_code(), "adafactor", "n", n));
    CHECK(!kl_accumulator_new(n, &x) && names(kl_last_error_code(), "accumulator", "n", n));
    CHECK(!kl_ema_new(n, &x, 0.5) && names(kl_last_error_code(), "average", "n", n));
    CHECK(names(kl_comm_sync(NULL, n, &x), "comm_sync", "n", n));
    CHECK(names(kl_comm_gradients(NULL, n, &gradient, 0), "comm_gradients", "n", n));
    CHECK(!kl_comm_shards_new(NULL, n, &x, 0) && names(kl_last_error_code(), "comm_shards_new", "n", n));
}

static void files_and_models(int64_t n, kl_tensor x)
{
    const kl_file_item item = {.name = "x", .tensor = x};
    CHECK(names(kl_file_write("unwritten.npy", KL_FILE_NPY, n, &item, 0, NULL), "file_write", "n", n));
    CHECK(names(kl_file_write("unwritten.npy", KL_FILE_NPY, 1, &item, n, NULL), "file_write", "nmeta", n));
    CHECK(names(kl_model_save("unwritten.onnx", identity, NULL, n, &x, NULL, 1, NULL), "model_save", "nin", n));
    CHECK(names(kl_model_save("unwritten.onnx", identity, NULL, 1, &x, NULL, n, NULL), "model_save", "nout", n));
    if (n < 0 && kl_model_call(NULL, 0, NULL, 0, NULL) == KL_ERR_ARGUMENT && !strstr(kl_last_error(), "without")) {
        CHECK(names(kl_model_call(NULL, n, &x, 0, NULL), "model_call", "nin", n));
        CHECK(names(kl_model_call(NULL, 0, NULL, n, NULL), "model_call", "nout", n));
    }
    kl_clear_error();
    OK(kl_composite_begin("composed"));
    kl_composite_end(n, NULL);
    CHECK(names(kl_last_error_code(), "composite_end", "nresults", n));
}

/* A number of an element that there is not: 64 bits of it count, and so does the sign. */
static void elements(int64_t i, kl_tensor x)
{
    static const char npy[] = "\x93NUMPY\1\0\x38\0{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}\n\0\0\0\0";
    int64_t beyond = i == INT64_MAX ? (int64_t)1 << 32 : i; /* 0 as 32 bits */
    kl_params *p = kl_params_new(dev, KL_F32, 1);
    kl_tensor w = kl_params_make(p, "w", 1, (int64_t[]){2}, NULL);
    kl_optimizer *adam = kl_adam(1, &w, NULL);
    kl_file *f = kl_file_open_bytes("one.npy", npy, sizeof npy - 1);
    CHECK(f && kl_file_count(f) == 1);
    kl_param param;
    kl_file_entry entry;
    kl_file_meta meta;
    kl_model_value value;
    const char *name;
    kl_tensor state;
    CHECK(kl_params_get(p, beyond, &param) == KL_ERR_ARGUMENT);
    CHECK(kl_optimizer_state(adam, beyond, &name, &state) == KL_ERR_ARGUMENT);
    CHECK(kl_file_get(f, beyond, &entry) == KL_ERR_ARGUMENT && kl_file_meta_get(f, beyond, &meta) == KL_ERR_ARGUMENT);
    CHECK(!kl_file_meta_text(f, beyond, 0) && !kl_file_meta_i64(f, beyond, 0));
    CHECK(kl_model_input(NULL, beyond, &value) == KL_ERR_ARGUMENT && !kl_model_weight_name(NULL, beyond));
    kl_clear_error();
    kl_tensor z = kl_complex(x, x), part = kl_layer_part(z, beyond);
    CHECK(is_poison(&part));
    kl_release(z);
    kl_file_close(f);
    kl_optimizer_free(adam);
    kl_params_free(p);
}

static void test(kl_device device)
{
    dev = device;
    kl_tensor x = kl_ones(dev, KL_F32, DIMS(2));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        regions(wrong[i], x);
        calls_by_name(wrong[i], x);
        solvers(wrong[i], x);
        steps(wrong[i], x);
        files_and_models(wrong[i], x);
        lists(wrong[i], x);
        training(wrong[i], x);
        elements(wrong[i], x);
    }
    kl_tensor y = kl_neg(x);
    double *v = values_of(y);
    CHECK(v && v[0] == -1);
    free(v);
    kl_release(y);
    kl_release(x);
}

int main(void)
{
    return on_devices(test);
}
