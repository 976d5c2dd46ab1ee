/* Option check_nan: which node and line a NaN is blamed on, fused and unfused, and that nothing has changed by then. */
#include "tests/support/api_check.h"
#include <stdarg.h>

static kl_device dev;

static bool says(const char *fmt, ...)
{
    char want[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(want, sizeof want, fmt, ap);
    va_end(ap);
    return strstr(kl_last_error(), want) != NULL;
}

static double first(kl_tensor t)
{
    double *v = values_of(t), x = v ? v[0] : -99;
    free(v);
    return x;
}

/* A training-like step: the state is updated in place where nothing is checked. */
static kl_status step(kl_tensor w, float x, int *line)
{
    kl_trace_begin("checked");
    kl_tensor in = kl_input(dev, KL_F32, DIMS(4), (float[]){1, 2, x, 4});
    kl_tensor hidden = kl_add_scalar(kl_mul_scalar(in, 2), 1);
    kl_tensor y = kl_log(hidden); *line = __LINE__;
    kl_assign(w, kl_add(w, kl_tanh(kl_neg(y))));
    return kl_trace_end();
}

static void blames_the_first_node(void)
{
    int line;
    for (int fuse = 0; fuse < 2; fuse++) {
        OK(kl_set_option("fuse", fuse));
        kl_tensor w = kl_keep(kl_zeros(dev, KL_F32, DIMS(4)));
        OK(step(w, 3, &line));
        double before = first(w);
        for (int again = 0; again < 3; again++) { /* recorded, replayed */
            CHECK(step(w, -5, &line) == KL_ERR_CHECK);
            CHECK(says("api_check_nan.c:%d: log makes it: nan from -9, element 2 of ", line));
        }
        CHECK(first(w) == before);
        OK(step(w, 3, &line));
        CHECK(first(w) == 2 * before);
        OK(kl_set_option("check_nan", 0));
        OK(step(w, -5, &line));
        double *v = values_of(w);
        CHECK(v && isnan(v[2]));
        free(v);
        OK(kl_set_option("check_nan", 1));
        /* in w by now */
        CHECK(step(w, 3, &line) == KL_ERR_CHECK && says("state is there already: nan, element 2 of "));
        kl_release(w);
    }
    OK(kl_set_option("fuse", 1));
}

static void infinities_are_asked_for(void)
{
    for (int check = 1; check <= 2; check++) {
        OK(kl_set_option("check_nan", check));
        kl_trace_begin("infinite");
        kl_tensor x = kl_input(dev, KL_F32, DIMS(2), (float[]){1, 0});
        int line = __LINE__ + 1;
        kl_tensor y = kl_keep(kl_div(kl_add_scalar(x, 1), x));
        kl_status status = kl_trace_end();
        CHECK(status == (check == 1 ? KL_OK : KL_ERR_CHECK));
        CHECK(check == 1 || says("api_check_nan.c:%d: div makes it: inf from 1, 0, element 1 of ", line));
        if (check == 1)
            kl_release(y);
    }
    OK(kl_set_option("check_nan", 1));
}

/* What does not reach a result is nobody's business: the other branch of a where. */
static void masked_is_fine(void)
{
    kl_trace_begin("masked");
    kl_tensor x = kl_input(dev, KL_F32, DIMS(3), (float[]){-1, 0, 1});
    kl_tensor positive = kl_gt(x, kl_zeros(dev, KL_F32, DIMS(1)));
    kl_tensor y = kl_keep(kl_where(positive, kl_log(x), x));
    OK(kl_trace_end());
    NEAR_LIST(y, 0, -1, 0, 0);
    kl_trace_begin("masked, and one that is not");
    x = kl_input(dev, KL_F32, DIMS(3), (float[]){-1, 0, 1});
    positive = kl_gt(x, kl_zeros(dev, KL_F32, DIMS(1)));
    y = kl_where(positive, kl_log(x), x);
    int line = __LINE__ + 1;
    kl_keep(kl_sqrt(y));
    CHECK(kl_trace_end() == KL_ERR_CHECK && says("api_check_nan.c:%d: sqrt makes it: nan from -1, ", line));
}

static int region_line;
static kl_status halve_and_root(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    region_line = __LINE__ + 1;
    out[0] = kl_sqrt(kl_add_scalar(in[0], -1));
    return KL_OK;
}

static void in_regions_gradients_and_reads(void)
{
    kl_tensor x = kl_input(dev, KL_F32, DIMS(2), (float[]){100, 3}), y;
    kl_trace_begin("region");
    OK(kl_scan(halve_and_root, NULL, 4, 1, &x, 0, NULL, 0, false, &y));
    kl_keep(y);
    CHECK(kl_trace_end() == KL_ERR_CHECK && says("api_check_nan.c:%d: sqrt makes it: ", region_line));

    kl_requires_grad(x);
    kl_trace_begin("gradient");
    int line = __LINE__ + 1;
    kl_tensor loss = kl_sqrt(kl_sub(x, x));
    kl_tensor g[2];
    OK(kl_grads(loss, 2, (kl_tensor[]){kl_mul_scalar(x, 1), x}, g));
    kl_keep(g[0]);
    kl_keep(kl_mul(g[1], kl_zeros(dev, KL_F32, DIMS(2))));
    CHECK(kl_trace_end() == KL_ERR_CHECK && says("api_check_nan.c:%d:", line)); /* inf - inf there */

    kl_tensor lazy = kl_log(kl_neg(x));
    line = __LINE__ - 1;
    float v[2];
    CHECK(kl_read(lazy, v, sizeof v) == KL_ERR_CHECK && says("api_check_nan.c:%d: log makes it: nan from -100", line));
    OK(kl_set_option("check_nan", 0));
    OK(kl_read(lazy, v, sizeof v));
    CHECK(isnan(v[0]));
    OK(kl_set_option("check_nan", 1));
    kl_release(lazy);
    kl_release(x);
}

static void frozen_steps(void)
{
    kl_tensor w = kl_keep(kl_zeros(dev, KL_F32, DIMS(2))), good = kl_keep(kl_full(dev, KL_F32, DIMS(2), 4)),
              bad = kl_keep(kl_full(dev, KL_F32, DIMS(2), -4));
    kl_trace_begin("frozen");
    kl_tensor in = kl_input(dev, KL_F32, DIMS(2), (float[]){1, 1});
    int line = __LINE__ + 1;
    kl_assign(w, kl_sqrt(in));
    kl_step *s = kl_trace_end_step(1, &in);
    if (CHECK(s != NULL)) {
        OK(kl_step_run(s, 1, &good, 0, NULL, 0, NULL));
        CHECK(kl_step_run(s, 1, &bad, 0, NULL, 0, NULL) == KL_ERR_CHECK &&
              says("api_check_nan.c:%d: sqrt makes it: nan from -4", line));
        CHECK(first(w) == 2);
        kl_step_free(s);
    }
    kl_release(w);
    kl_release(good);
    kl_release(bad);
}

static void test(kl_device d)
{
    dev = d;
    OK(kl_set_option("check_nan", 1));
    blames_the_first_node();
    infinities_are_asked_for();
    masked_is_fine();
    in_regions_gradients_and_reads();
    frozen_steps();
    OK(kl_set_option("check_nan", 0));
    CHECK(kl_set_option("check_nan", 3) == KL_ERR_ARGUMENT);
}

int main(void)
{
    return on_devices(test);
}
