/* The first test to run: a value, a gradient, a training loop and an error through the public headers alone.
 *
 *   api_smoke DEVICE    DEVICE is what kl_device_default() must be in this build */
#include <kiln/kiln.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static int passed, failed;

static void check(bool ok, const char *what)
{
    if (ok) {
        passed++;
    } else {
        failed++;
        printf("FAIL %s (last error: %s)\n", what, kl_last_error());
    }
}

static void devices(kl_device dev, const char *expected)
{
    check(!strcmp(kl_device_name(dev), expected), "the default device");
    if (!strcmp(expected, "ref")) {
        check(kl_device_fallback_reason()[0] != 0, "a fallback has a reason");
        check(kl_device_named("cpu").id == 0, "no cpu without a code generator");
        check(kl_last_error_code() == KL_ERR_DEVICE && strstr(kl_last_error(), "ref"), "the error names ref");
    } else {
        const char *why = kl_device_fallback_reason();
        check(!strcmp(expected, "cpu") && strstr(why, "cuda") && strstr(why, "hip"),
              "what comes before cpu has a reason");
        check(kl_device_named("ref").id != 0, "ref is always there");
    }
    kl_clear_error();
}

static void values(kl_device dev)
{
    float out[6];
    static const float expected[6] = {11, 22, 33, 14, 25, 36};
    kl_scope_begin();
    kl_tensor a = kl_input(dev, KL_F32, 2, (int64_t[]){2, 3}, (float[]){1, 2, 3, 4, 5, 6});
    kl_tensor b = kl_input(dev, KL_F32, 1, (int64_t[]){3}, (float[]){10, 20, 30});
    check(kl_read(kl_add(a, b), out, sizeof out) == KL_OK && !memcmp(out, expected, sizeof out), "a broadcast sum");
    check(kl_item_f32(kl_sum_all(kl_matmul(a, kl_reshape(b, 2, (int64_t[]){3, 1})))) == 460, "a product and a sum");
    kl_scope_end();
}

/* The gradient of sum(tanh(x)^2) is 2 tanh(x) (1 - tanh(x)^2). */
static void gradient(kl_device dev)
{
    static const double x[4] = {-2, -0.5, 0, 1};
    double g[4];
    bool close = true;
    kl_scope_begin();
    kl_tensor t = kl_input(dev, KL_F64, 1, (int64_t[]){4}, x);
    kl_requires_grad(t);
    check(kl_read(kl_grad(kl_sum_all(kl_square(kl_tanh(t))), t), g, sizeof g) == KL_OK, "a gradient");
    for (int i = 0; i < 4; i++)
        close &= fabs(g[i] - 2 * tanh(x[i]) * (1 - tanh(x[i]) * tanh(x[i]))) < 1e-14;
    check(close, "the gradient's values");
    kl_scope_end();
}

/* Least squares by gradient descent finds y = 3 x - 1; the steps after the first compile nothing. */
static void training(kl_device dev)
{
    static const float x[4] = {-1, 0, 1, 2}, y[4] = {-4, -1, 2, 5};
    int64_t n = 4, built = 0;
    kl_tensor w = kl_keep(kl_zeros(dev, KL_F32, 0, NULL)), b = kl_keep(kl_zeros(dev, KL_F32, 0, NULL));
    kl_requires_grad(w);
    kl_requires_grad(b);
    for (int step = 0; step < 300; step++) {
        kl_trace_begin("fit");
        kl_tensor error = kl_sub(kl_add(kl_mul(kl_input(dev, KL_F32, 1, &n, x), w), b),
                                 kl_input(dev, KL_F32, 1, &n, y));
        kl_tensor loss = kl_mean(kl_square(error), 0, NULL, false);
        double lr = 0.1 + 0.0001 * step;
        kl_tensor gw = kl_grad(loss, w), gb = kl_grad(loss, b);
        kl_assign(w, kl_sub(w, kl_mul_scalar(gw, lr)));
        kl_assign(b, kl_sub(b, kl_mul_scalar(gb, lr)));
        if (kl_trace_end() != KL_OK)
            break;
        if (step == 0)
            built = kl_counter("graphs_built");
    }
    check(kl_counter("graphs_built") == built && built > 0, "one program for all steps");
    check(fabsf(kl_item_f32(w) - 3) < 1e-4f && fabsf(kl_item_f32(b) + 1) < 1e-4f, "the line is found");
    kl_release(w);
    kl_release(b);
}

static void errors(kl_device dev)
{
    kl_trace_begin("bad");
    kl_tensor a = kl_zeros(dev, KL_F32, 1, (int64_t[]){2}), b = kl_zeros(dev, KL_F32, 1, (int64_t[]){3});
    kl_keep(kl_add(a, b));
    check(kl_trace_end() == KL_ERR_SHAPE, "a bad shape");
    check(strstr(kl_last_error(), "api_smoke.c:") && strstr(kl_last_error(), "add") && strstr(kl_last_error(), "[2]") &&
              strstr(kl_last_error(), "[3]"),
          "the message names file, op and shapes");
    kl_clear_error();
    values(dev);
}

int main(int argc, char **argv)
{
    kl_device dev = kl_device_default();
    devices(dev, argc > 1 ? argv[1] : "cpu");
    values(dev);
    gradient(dev);
    training(dev);
    errors(dev);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
