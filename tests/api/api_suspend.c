/* kl_trace_suspend: ops outside of the open trace and region; kl_fail: errors of functions made of Kiln's. */
#include "tests/support/api_check.h"

static kl_device dev;

static bool says(const char *text) { return strstr(kl_last_error(), text) != NULL; }
static kl_tensor vec(int64_t n, const float *v) { return kl_input(dev, KL_F32, 1, &n, v); }

/* A number is computed in the middle of a trace, which goes on as if nothing had been. */
static void in_a_trace(void)
{
    kl_tensor before = vec(2, (float[]){3, 4}), out;
    OK(kl_trace_begin("suspended"));
    kl_tensor x = kl_mul(vec(2, (float[]){1, 2}), before);
    OK(kl_trace_suspend());
    CHECK(!kl_tracing() && !kl_grad_enabled());
    kl_tensor n = kl_sum_all(kl_mul(before, before));
    CHECK(kl_item_f32(n) == 25);
    float v[2];
    CHECK(kl_read(x, v, sizeof v) == KL_ERR_TRACE && says("is of the trace that is suspended"));
    CHECK(kl_trace_begin("another") == KL_ERR_TRACE && kl_trace_suspend() == KL_ERR_TRACE);
    CHECK(kl_trace_end() == KL_ERR_TRACE);
    OK(kl_trace_resume());
    CHECK(kl_tracing() && kl_grad_enabled());
    out = kl_keep(kl_add(x, n)); /* n is outside of the trace: a state of it */
    OK(kl_trace_end());
    NEAR_LIST(out, 0, 28, 33);
    kl_release(n);
    kl_release(before);
    CHECK(kl_trace_resume() == KL_ERR_TRACE);
}

/* What the trace has assigned has its new value at its end. */
static void assigned(void)
{
    kl_tensor state = vec(1, (float[]){1});
    OK(kl_trace_begin("assigned"));
    OK(kl_assign(state, kl_add_scalar(state, 1)));
    OK(kl_trace_suspend());
    float v;
    CHECK(kl_read(state, &v, sizeof v) == KL_ERR_TRACE && says("was assigned in trace"));
    OK(kl_trace_resume());
    OK(kl_trace_end());
    NEAR_LIST(state, 0, 2);
}

static kl_status round_of(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
{
    kl_tensor outside = *(kl_tensor *)ctx;
    (void)nin;
    (void)nout;
    if (kl_trace_suspend() != KL_OK)
        return KL_ERR_TRACE;
    float by = kl_item_f32(kl_sum_all(outside));
    if (kl_trace_resume() != KL_OK)
        return KL_ERR_TRACE;
    out[0] = kl_mul_scalar(in[0], (double)by);
    return KL_OK;
}

static void in_a_region(void)
{
    kl_tensor two = vec(2, (float[]){0.5, 1.5}), one = vec(1, (float[]){1}), out;
    for (int traced = 0; traced < 2; traced++) {
        if (traced)
            OK(kl_trace_begin("region"));
        OK(kl_scan(round_of, &two, 5, 1, &one, 0, NULL, 0, false, &out));
        kl_keep(out);
        if (traced)
            OK(kl_trace_end());
        NEAR_LIST(out, 0, 32);
    }
    kl_release(two);
    kl_release(one);
}

static void failing(void)
{
    kl_clear_error();
    CHECK(kl_fail(KL_ERR_SHAPE, "pyramid: no such shape") == KL_ERR_SHAPE);
    CHECK(kl_last_error_code() == KL_ERR_SHAPE && says("api_suspend.c") && says("pyramid: no such shape"));
    CHECK(kl_fail(KL_OK, NULL) == KL_ERR_ARGUMENT);
    /* in a trace it is the trace's */
    OK(kl_trace_begin("failing"));
    kl_fail(KL_ERR_TYPE, "pyramid: first");
    kl_fail(KL_ERR_SHAPE, "pyramid: first, said better"); /* about the last error */
    CHECK(kl_trace_end() == KL_ERR_SHAPE && says("said better"));
    /* which keeps its first, when another one was the last */
    OK(kl_trace_begin("failing"));
    kl_tensor bad = kl_add(vec(2, (float[]){1, 2}), vec(3, (float[]){1, 2, 3}));
    CHECK(kl_check(bad));
    kl_clear_error();
    kl_fail(KL_ERR_TYPE, "pyramid: later");
    CHECK(kl_trace_end() == KL_ERR_SHAPE && says("do not broadcast"));
    OK(kl_trace_begin("fine"));
    kl_tensor fine = kl_keep(kl_neg(vec(1, (float[]){1})));
    OK(kl_trace_end());
    NEAR_LIST(fine, 0, -1);
}

static void all(kl_device d)
{
    dev = d;
    in_a_trace();
    assigned();
    in_a_region();
    failing();
}

int main(void) { return on_devices(all); }
