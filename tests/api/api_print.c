/* kl_print and kl_assert: what they say, in which order, also in regions, and what a failed assertion leaves as it
 * was. */
#include "tests/support/api_check.h"

static kl_device dev;
static char lines[16][256];
static int nlines;

static void take(void *ctx, const char *line)
{
    (void)ctx;
    if (nlines < 16)
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
            CHECK(step(w, bad, &line) == KL_ERR_CHECK &&
                  says("y is small: 2 of 4 elements are false, the first is element 1", line));
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
    kl_step *s = kl_trace_end_step(1, &in);
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

/* ---- in regions ---- */

static bool gradient_too;

static kl_status prints(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_print(in[0], "inside");
    return KL_OK;
}

static kl_status silent(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_neg(in[0]);
    return KL_OK;
}

/* carried, x -> carried + x, printed twice a round; stacked */
static kl_status sums(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    kl_print(in[1], "x");
    out[0] = kl_print(kl_add(in[0], kl_mul(in[1], in[1])), "sum");
    if (ctx)
        kl_assert(kl_lt(out[0], kl_full(dev, KL_F32, 0, NULL, 20)), "below 20");
    out[1] = kl_mul_scalar(out[0], 2);
    return KL_OK;
}

static bool scalar_line(int i, const char *label, double v)
{
    char want[64];
    snprintf(want, sizeof want, "%s f32[] = %.1f", label, v);
    return printed(i, want);
}

static void in_a_scan(void)
{
    static const float data[3] = {1, 2, 3};
    kl_tensor x = kl_keep(kl_input(dev, KL_F32, DIMS(3), data));
    kl_requires_grad(x);
    for (int again = 0; again < 3; again++)
        for (int reverse = 0; reverse < 2; reverse++) {
            nlines = 0;
            kl_trace_begin("scan");
            kl_tensor zero = kl_zeros(dev, KL_F32, 0, NULL), out[2], g = kl_none;
            kl_print(zero, "before");
            kl_scan(sums, NULL, 3, 1, &zero, 1, &x, 1, reverse, out);
            kl_print(out[0], "after");
            kl_keep(out[1]);
            if (gradient_too)
                g = kl_keep(kl_grad(out[0], x));
            OK(kl_trace_end());
            CHECK(nlines == 8 && scalar_line(0, "before", 0) && scalar_line(7, "after", 14));
            double sum = 0;
            for (int i = 0; i < 3; i++) {
                double v = data[reverse ? 2 - i : i];
                sum += v * v;
                CHECK(scalar_line(1 + 2 * i, "x", v) && scalar_line(2 + 2 * i, "sum", sum));
            }
            if (reverse)
                NEAR_LIST(out[1], 0, 28, 26, 18);
            else
                NEAR_LIST(out[1], 0, 2, 10, 28);
            if (gradient_too)
                NEAR_LIST(g, 0, 2, 4, 6);
            kl_release(out[1]);
            kl_release(g);
        }
    kl_tensor w = kl_keep(kl_zeros(dev, KL_F32, 0, NULL)), wide = kl_keep(kl_full(dev, KL_F32, DIMS(9), 2)), out[2];
    nlines = 0;
    kl_trace_begin("assert");
    kl_scan(sums, &w, 9, 1, &w, 1, &wide, 1, false, out);
    kl_assign(w, out[0]);
    CHECK(kl_trace_end() == KL_ERR_CHECK && strstr(kl_last_error(), "assert: below 20") &&
          strstr(kl_last_error(), "api_print.c:") && !strstr(kl_last_error(), "kl."));
    CHECK(nlines == 10 && scalar_line(7, "sum", 16)); /* the fifth round's sum is 20 */
    NEAR_LIST(w, 0, 0);
    kl_release(w);
    kl_release(wide);
    kl_release(x);
}

static kl_status below(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_lt(in[0], in[1]);
    return KL_OK;
}

static kl_status doubles(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    const kl_tensor *from_outside = ctx;
    kl_tensor odd, even = kl_eq(kl_sub(in[0], *from_outside), kl_zeros(dev, KL_F32, 0, NULL));
    kl_cond(even, prints, silent, NULL, 1, in, 1, &odd); /* only the first round prints here */
    kl_print(in[0], "round");
    out[0] = kl_mul_scalar(in[0], 2);
    out[1] = in[1];
    return KL_OK;
}

static void in_loops_and_branches(void)
{
    for (int again = 0; again < 2; again++) {
        nlines = 0;
        kl_trace_begin("while");
        kl_tensor in[2] = {kl_full(dev, KL_F32, 0, NULL, 1.5), kl_full(dev, KL_F32, 0, NULL, 10)}, out[2], not[2];
        kl_while(below, doubles, in, 2, in, out);
        kl_cond(kl_gt(out[0], in[1]), silent, prints, NULL, 1, out, 1, not);
        kl_cond(kl_gt(out[0], in[1]), prints, prints, NULL, 1, out, 1, not + 1);
        kl_print(kl_add(out[0], not[0]), "zero");
        kl_keep(out[0]);
        OK(kl_trace_end());
        CHECK(nlines == 6 && scalar_line(0, "inside", 1.5) && scalar_line(1, "round", 1.5) &&
              scalar_line(2, "round", 3) &&
              scalar_line(3, "round", 6) && scalar_line(4, "inside", 12) && scalar_line(5, "zero", 0));
        NEAR_LIST(out[0], 0, 12);
        kl_release(out[0]);
    }
}

static kl_status below_ten(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_lt(in[0], kl_const(dev, KL_F32, 10));
    return KL_OK;
}

static kl_status tripled(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin;
    out[0] = kl_mul_scalar(kl_print(in[0], "round"), 3);
    if (nout > 1)
        out[1] = kl_neg(in[0]);
    return KL_OK;
}

/* Loops whose functions use nothing from outside: the token is the last operand, and carried nevertheless. */
static void in_closed_loops(void)
{
    kl_tensor one = kl_keep(kl_ones(dev, KL_F32, 0, NULL)), out[2];
    for (int scans = 0; scans < 2; scans++) {
        nlines = 0;
        kl_trace_begin("closed");
        if (scans)
            kl_scan(tripled, NULL, 3, 1, &one, 0, NULL, 1, false, out);
        else
            kl_while(below_ten, tripled, NULL, 1, &one, out);
        kl_keep(out[0]);
        if (scans)
            kl_keep(out[1]);
        OK(kl_trace_end());
        CHECK(nlines == 3 && scalar_line(0, "round", 1) && scalar_line(1, "round", 3) && scalar_line(2, "round", 9));
        NEAR_LIST(out[0], 0, 27);
        if (scans)
            NEAR_LIST(out[1], 0, -1, -3, -9);
    }
    kl_release(one);
}

static kl_status squares(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_mul(kl_print(kl_exp(in[0]), "value"), in[0]);
    return KL_OK;
}

static kl_status minus_one(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nout;
    CHECK(nin == 3); /* in, its result, the result's gradient, and nothing that is the library's own */
    out[0] = kl_neg(in[2]);
    return KL_OK;
}

/* A checkpoint prints once, not again when the backward pass computes it again. */
static void in_checkpoints(void)
{
    kl_tensor x = kl_keep(kl_zeros(dev, KL_F32, DIMS(2))), y;
    kl_requires_grad(x);
    for (int own = 0; own < 2; own++) {
        nlines = 0;
        kl_trace_begin("checkpoint");
        kl_tensor shifted = kl_add_scalar(kl_print(x, "x"), 0);
        if (own)
            kl_custom_grad(squares, minus_one, NULL, 1, &shifted, 1, &y);
        else
            kl_checkpoint(squares, NULL, 1, &shifted, 1, &y);
        kl_tensor g = kl_keep(kl_grad(y, x));
        kl_print(g, "gradient");
        OK(kl_trace_end());
        CHECK(nlines == 3 && printed(0, "x f32[2] = 0.0 0.0; min 0, max 0, mean 0") &&
              printed(1, "value f32[2] = 1.0 1.0; min 1, max 1, mean 1") &&
              printed(2, own ? "gradient f32[2] = -1.0 -1.0; min -1, max -1, mean -1"
                             : "gradient f32[2] = 1.0 1.0; min 1, max 1, mean 1"));
        kl_release(g);
    }
    kl_release(x);
}

static void in_regions(void)
{
    for (int fuse = 0; fuse < 2; fuse++) {
        OK(kl_set_option("fuse", fuse));
        for (int g = 0; g < 2; g++) {
            gradient_too = g;
            in_a_scan();
        }
        in_loops_and_branches();
        in_closed_loops();
        in_checkpoints();
    }
}

static kl_status checks(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_status status = below(ctx, in, nin, out, nout);
    kl_assert(out[0], "below");
    return status;
}

static void refused(void)
{
    kl_tensor x = kl_keep(kl_full(dev, KL_F32, DIMS(2), 1)), y;
    CHECK(kl_scan(prints, NULL, 2, 1, &x, 0, NULL, 0, false, &y) == KL_ERR_TRACE &&
          strstr(kl_last_error(), "print: not inside of a function that scan records outside of a trace"));
    kl_trace_begin("condition");
    kl_tensor two[2] = {x, x}, out[2];
    kl_while(checks, doubles, two, 2, two, out);
    CHECK(kl_trace_end() == KL_ERR_TRACE && strstr(kl_last_error(), "assert: not inside of the condition of while"));
    kl_trace_begin("gradient");
    kl_custom_grad(silent, prints, NULL, 1, &x, 1, &y);
    CHECK(kl_trace_end() == KL_ERR_TRACE && strstr(kl_last_error(),
                                                   "print: not inside of the gradient of custom_grad"));
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
    in_regions();
    refused();
    kl_set_print(NULL, NULL);
}

int main(void)
{
    return on_devices(test);
}
