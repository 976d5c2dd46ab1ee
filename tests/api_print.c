/* kl_print and kl_assert: what they say, in which order, and what a failed assertion leaves as it was. */
#include "api_check.h"

static kl_device dev;
static char lines[8][256];
static int nlines;

static void take(void *ctx, const char *line)
{
    (void)ctx;
    if (nlines < 8)
        snprintf(lines[nlines], sizeof lines[0], "%s", line);
    nlines++;
}

static bool printed(int i, const char *want)
{
    bool ok = i < nlines && !strcmp(lines[i], want);
    if (!ok)
        printf("line %d is '%s', not '%s'\n", i, i < nlines ? lines[i] : "", want);
    return ok;
}

static bool says(const char *what, int line)
{
    char at[64];
    snprintf(at, sizeof at, "api_print.c:%d", line);
    return strstr(kl_last_error(), what) && strstr(kl_last_error(), at);
}

static kl_status step(kl_tensor w, const float *x, int *line)
{
    kl_trace_begin("printed");
    kl_tensor in = kl_input(dev, KL_F32, DIMS(2, 2), x);
    kl_print(in, "in");
    kl_tensor y = kl_mul_scalar(in, 2);
    kl_print(kl_neg(y), "unused by anything");
    kl_assert(kl_lt(y, kl_full(dev, KL_F32, DIMS(1), 100)), "y is small"); *line = __LINE__;
    kl_assign(w, kl_add(w, kl_print(y, NULL)));
    return kl_trace_end();
}

static void in_a_trace(void)
{
    static const float good[4] = {1, 2, 3, 4}, bad[4] = {1, 200, 3, 400};
    int line;
    kl_tensor w = kl_keep(kl_zeros(dev, KL_F32, DIMS(2, 2)));
    for (int fuse = 0; fuse < 2; fuse++)
        for (int again = 0; again < 3; again++) {
            OK(kl_set_option("fuse", fuse));
            OK(kl_assign(w, kl_zeros(dev, KL_F32, DIMS(2, 2))));
            nlines = 0;
            OK(step(w, good, &line));
            CHECK(nlines == 3 && printed(0, "in f32[2,2] = 1.0 2.0 3.0 4.0; min 1, max 4, mean 2.5"));
            CHECK(printed(1, "unused by anything f32[2,2] = -2.0 -4.0 -6.0 -8.0; min -8, max -2, mean -5"));
            CHECK(printed(2, "f32[2,2] = 2.0 4.0 6.0 8.0; min 2, max 8, mean 5"));
            nlines = 0;
            CHECK(step(w, bad, &line) == KL_ERR_CHECK && says("y is small: 2 of 4 elements are false, the first is element 1", line));
            CHECK(nlines == 2); /* those before */
            double *v = values_of(w);
            CHECK(v && v[0] == 2 && v[1] == 4 && v[3] == 8);
            free(v);
            OK(step(w, good, &line));
            v = values_of(w);
            CHECK(v && v[0] == 4);
            free(v);
        }
    kl_release(w);
}

/* A trace that only looks; gradients; long, odd and empty values. */
static void what_is_shown(void)
{
    nlines = 0;
    kl_trace_begin("looks");
    kl_print(kl_iota(dev, KL_I32, DIMS(20), 0), "count");
    kl_print(kl_input(dev, KL_F32, DIMS(3), (float[]){NAN, 1, NAN}), "odd");
    kl_print(kl_zeros(dev, KL_F64, DIMS(0, 3)), "empty");
    kl_print(kl_full(dev, KL_F32, 0, NULL, 0.5), "scalar");
    OK(kl_trace_end());
    CHECK(nlines == 4 && printed(0, "count i32[20] = 0 1 2 3 4 5 6 7 ...; min 0, max 19, mean 9.5"));
    CHECK(printed(1, "odd f32[3] = nan 1.0 nan; min 1, max 1, mean 1, 2 NaN") && printed(2, "empty f64[0,3] =") &&
          printed(3, "scalar f32[] = 0.5"));
    kl_tensor x = kl_keep(kl_full(dev, KL_F32, DIMS(2), 3));
    kl_requires_grad(x);
    nlines = 0;
    kl_trace_begin("gradient");
    kl_tensor g = kl_keep(kl_grad(kl_mul(kl_print(x, "x"), x), x));
    OK(kl_trace_end());
    CHECK(nlines == 1);
    NEAR_LIST(g, 0, 6, 6);
    nlines = 0;
    kl_tensor lazy = kl_print(kl_mul_scalar(x, 2), "now"); /* outside of a trace */
    CHECK(nlines == 1 && printed(0, "now f32[2] = 6.0 6.0; min 6, max 6, mean 6"));
    OK(kl_assert(kl_gt(lazy, x), "larger"));
    int line = __LINE__ + 1;
    CHECK(kl_assert(kl_gt(x, lazy), "larger") == KL_ERR_CHECK && says("assert: larger: 2 of 2", line));
    kl_release(lazy);
    kl_release(x);
}

static void steps_and_devices(void)
{
    kl_tensor four = kl_keep(kl_full(dev, KL_F32, DIMS(2), 4)), none = kl_keep(kl_full(dev, KL_F32, DIMS(2), -4));
    kl_device ref = kl_device_named("ref");
    kl_trace_begin("frozen_print");
    kl_tensor in = kl_input(dev, KL_F32, DIMS(2), (float[]){1, 1});
    kl_tensor y = kl_keep(kl_add_scalar(kl_print(in, "in"), 1));
    kl_print(kl_to(y, ref), "there");
    int line = __LINE__ + 1;
    kl_assert(kl_gt(in, kl_zeros(dev, KL_F32, DIMS(1))), "positive");
    kl_step *s = kl_step_end(1, &in);
    kl_tensor out;
    if (CHECK(s && kl_step_outputs(s) == 1)) {
        nlines = 0;
        OK(kl_step_run(s, 1, &four, 0, NULL, 1, &out));
        CHECK(nlines == 2 && printed(0, "in f32[2] = 4.0 4.0; min 4, max 4, mean 4") &&
              printed(1, "there f32[2] = 5.0 5.0; min 5, max 5, mean 5"));
        NEAR_LIST(out, 0, 5, 5);
        CHECK(kl_step_run(s, 1, &none, 0, NULL, 1, &out) == KL_ERR_CHECK && says("positive: 2 of 2", line));
        kl_step_free(s);
    }
    kl_release(four);
    kl_release(none);
}

static kl_status prints(void *ctx, const kl_tensor *in, uint32_t nin, kl_tensor *out, uint32_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_print(in[0], "inside");
    return KL_OK;
}

static void refused(void)
{
    kl_tensor x = kl_keep(kl_full(dev, KL_F32, DIMS(2), 1)), y;
    kl_trace_begin("region");
    kl_scan(prints, NULL, 2, 1, &x, 0, NULL, 0, false, &y);
    CHECK(kl_trace_end() == KL_ERR_TRACE && strstr(kl_last_error(), "print: not inside of a function that scan records"));
    kl_trace_begin("types");
    CHECK(kl_assert(x, "x") == KL_ERR_TYPE);
    CHECK(kl_trace_end() == KL_ERR_TYPE && strstr(kl_last_error(), "assert: the condition is f32, not bool"));
    char longer[300];
    memset(longer, 'x', sizeof longer);
    longer[299] = 0;
    kl_print(x, longer);
    CHECK(kl_last_error_code() == KL_ERR_ARGUMENT && strstr(kl_last_error(), "at most 255 bytes"));
    CHECK(kl_assert(kl_none, "") == KL_ERR_HANDLE);
    kl_release(x);
}

static void test(kl_device d)
{
    dev = d;
    kl_set_print(take, NULL);
    in_a_trace();
    what_is_shown();
    steps_and_devices();
    refused();
    kl_set_print(NULL, NULL);
}

int main(void)
{
    return on_devices(test);
}
