/* Gradients that would be zeros in silence: errors where that is certain, one warning in the log where it may be
 * meant. */
#include "tests/support/api_check.h"
#include <kiln/train.h>

static kl_device dev;
static char logged[4096];
static int warnings;

static void note(void *ctx, kl_log_level level, const char *message)
{
    (void)ctx;
    if (level != KL_LOG_WARN)
        return;
    warnings++;
    snprintf(logged, sizeof logged, "%s", message);
}

static bool warned(int n, const char *text)
{
    bool ok = warnings == n && (!n || strstr(logged, text));
    if (!ok)
        printf("%d warnings, the last \"%s\"\n", warnings, logged);
    warnings = 0;
    logged[0] = 0;
    return ok;
}

static kl_tensor parameter(double v) { return kl_keep(kl_full(dev, KL_F32, DIMS(2), v)); }
static bool is(kl_tensor w, float v)
{
    float x[2];
    return kl_read(w, x, sizeof x) == KL_OK && x[0] == v && x[1] == v;
}

static void after_assign(void)
{
    kl_tensor w = parameter(1), u = parameter(3);
    kl_optimizer *a = kl_sgd(1, &w, NULL), *b = kl_sgd(1, &w, NULL);
    for (int i = 0; i < 2; i++) { /* the second is compared with the first */
        OK(kl_trace_begin("late"));
        kl_tensor l = kl_sum_all(kl_square(w));
        OK(kl_optimizer_step(a, l, 0.1));
        CHECK(kl_optimizer_step(b, l, 0.1) == KL_ERR_GRAD);
        CHECK(kl_trace_end() == KL_ERR_GRAD && strstr(kl_last_error(),
                                                      "grad: the variable was assigned in this trace after the loss"));
        CHECK(is(w, 1) && warned(0, ""));
    }
    OK(kl_trace_begin("new value")); /* a loss made of the new value is fine, so is another variable */
    OK(kl_assign(w, kl_mul_scalar(w, 2)));
    kl_tensor l = kl_sum_all(kl_mul(kl_square(w), u)), g = kl_grad(l, w), h = kl_grad(l, u);
    OK(kl_assign(u, h));
    OK(kl_assign(w, g));
    OK(kl_trace_end());
    CHECK(is(w, 12) && is(u, 4) && warned(0, ""));
    kl_optimizer_free(a);
    kl_optimizer_free(b);
    kl_release(w), kl_release(u);
}

static void optimizers(void)
{
    kl_tensor w = parameter(1), u = parameter(2), x = parameter(3);
    CHECK(!kl_sgd(3, (kl_tensor[]){w, u, w}, NULL) && kl_last_error_code() == KL_ERR_ARGUMENT);
    CHECK(strstr(kl_last_error(), "sgd: parameters 0 and 2 are the same tensor"));
    CHECK(!kl_adam(2, (kl_tensor[]){u, u}, NULL) && strstr(kl_last_error(),
                                                           "adam: parameters 0 and 1 are the same tensor"));
    kl_optimizer *o = kl_sgd(2, (kl_tensor[]){w, u}, NULL);
    OK(kl_trace_begin("no parameter"));
    CHECK(kl_optimizer_step(o, kl_sum_all(x), 0.1) == KL_ERR_GRAD);
    CHECK(kl_trace_end() == KL_ERR_GRAD &&
          strstr(kl_last_error(), "optimizer_step: grads: the loss depends on none of the 2 tensors"));
    OK(kl_trace_begin("detached"));
    CHECK(kl_optimizer_step(o, kl_sum_all(kl_detach(kl_mul(w, u))), 0.1) == KL_ERR_GRAD);
    kl_trace_abandon();
    CHECK(is(w, 1) && is(u, 2) && warned(0, ""));
    for (int i = 0; i < 4; i++) { /* one of two: may be meant.  Said when a program is recorded, not in every step. */
        OK(kl_trace_begin("one parameter"));
        OK(kl_optimizer_step(o, kl_sum_all(w), 0.25));
        OK(kl_trace_end());
        CHECK(i ? warnings <= 1 : warned(1, "grad: the loss does not depend on the variable: the gradient is zeros"));
    }
    CHECK(is(w, 0) && is(u, 2));
    warnings = 0;
    kl_optimizer_free(o);
    kl_release(w), kl_release(u), kl_release(x);
}

/* kl_grad and kl_grads of one or of several tensors mean the same, inside and outside of traces: a loss that depends on
 * none of them is an error; zeros, and a warning, where it depends on others. */
static void not_connected(void)
{
    kl_tensor w = parameter(1), u = parameter(4), x = parameter(2), g[2];
    char at[100];
    for (int i = 0; i < 3; i++) { /* each recorded anew: a trace that failed is not repeated */
        OK(kl_trace_begin("not connected"));
        kl_tensor loss = kl_sum_all(kl_square(x));
        int line = __LINE__ + 1;
        kl_status s = i < 2 ? kl_grads(loss, 1 + i, (kl_tensor[]){w, u}, g) : kl_check(kl_grad(loss, w));
        CHECK(s == KL_ERR_GRAD);
        CHECK(kl_trace_end() == KL_ERR_GRAD);
        snprintf(at, sizeof at, "api_grad_mistakes.c:%d: %s", line,
                 i == 2 ? "grad: the loss does not depend on the variable"
                 : i ? "grads: the loss depends on none of the 2 tensors"
                     : "grads: the loss depends on none of the 1 tensors");
        CHECK(strstr(kl_last_error(), at) && warned(0, ""));
    }
    OK(kl_trace_begin("one of two"));
    OK(kl_grads(kl_sum_all(kl_square(x)), 2, (kl_tensor[]){w, x}, g));
    kl_keep(g[0]), kl_keep(g[1]);
    OK(kl_trace_end());
    CHECK(is(g[0], 0) && is(g[1], 4) && warned(1, "grad: the loss does not depend on the variable"));
    kl_release(g[0]), kl_release(g[1]);
    kl_release(w), kl_release(u), kl_release(x);
}

static void not_connected_outside(void)
{
    kl_tensor w = parameter(1), u = parameter(4), x = parameter(2), g[2];
    OK(kl_requires_grad(x));
    OK(kl_requires_grad(w));
    OK(kl_requires_grad(u));
    OK(kl_scope_begin());
    kl_tensor loss = kl_sum_all(kl_square(x)), other = kl_exp(kl_add(w, u));
    CHECK(kl_check(kl_grad(loss, w)) == KL_ERR_GRAD &&
          strstr(kl_last_error(), "grad: the loss does not depend on the variable"));
    kl_clear_error();
    CHECK(kl_grads(loss, 2, (kl_tensor[]){w, u}, g) == KL_ERR_GRAD && !g[0].id &&
          strstr(kl_last_error(), "grads: the loss depends on none of the 2 tensors"));
    kl_clear_error();
    OK(kl_grads(loss, 2, (kl_tensor[]){w, x}, g));
    CHECK(is(g[0], 0) && is(g[1], 4) && warned(1, "grad: the loss does not depend on the variable"));
    CHECK(kl_check(other) == KL_OK);
    OK(kl_scope_end());
    kl_release(w), kl_release(u), kl_release(x);
}

/* A complex variable is two tensors: its gradient is an error where the loss depends on neither. */
static void parts(void)
{
    kl_tensor re = parameter(1), im = parameter(2), x = parameter(3);
    OK(kl_trace_begin("the real part"));
    kl_tensor z = kl_complex(re, im), g = kl_grad(kl_sum_all(kl_square(kl_real(z))), z);
    kl_tensor g_re = kl_keep(kl_real(g)), g_im = kl_keep(kl_imag(g));
    OK(kl_trace_end());
    CHECK(is(g_re, 2) && is(g_im, 0) && warned(1, "grad: the loss does not depend on the variable"));
    kl_release(g_re), kl_release(g_im);
    OK(kl_trace_begin("neither"));
    kl_grad(kl_sum_all(kl_square(x)), kl_complex(re, im));
    CHECK(kl_trace_end() == KL_ERR_GRAD && strstr(kl_last_error(), "grad: the loss depends on none of the 2 tensors"));
    kl_release(re), kl_release(im), kl_release(x);
}

static void not_scalar(void)
{
    kl_tensor x = parameter(2);
    OK(kl_trace_begin("not scalar"));
    kl_tensor g = kl_keep(kl_grad(kl_square(x), x));
    OK(kl_trace_end());
    CHECK(is(g, 4) && warned(1, "grad: the loss has shape [2]: the gradient is that of the sum of its elements"));
    kl_release(g);
    OK(kl_trace_begin("as it should be"));
    g = kl_keep(kl_grad(kl_sum_all(kl_square(x)), x));
    OK(kl_trace_end());
    CHECK(is(g, 4) && warned(0, ""));
    kl_release(g), kl_release(x);
}

static void empty(void)
{
    kl_tensor x = parameter(2);
    for (int i = 0; i < 3; i++) {
        OK(kl_trace_begin("forgotten"));
        kl_exp(x);
        OK(kl_trace_end());
        CHECK(warned(!i, "trace_end: trace \"forgotten\" keeps and assigns nothing, so nothing was run"));
    }
    OK(kl_trace_begin("empty"));
    OK(kl_trace_end());
    CHECK(warned(1, "trace \"empty\" keeps and assigns nothing"));
    kl_release(x);
}

int main(void)
{
    dev = kl_device_named("ref");
    OK(kl_set_log(note, NULL, KL_LOG_WARN));
    after_assign();
    optimizers();
    not_connected();
    not_connected_outside();
    parts();
    not_scalar();
    empty();
    OK(kl_set_log(NULL, NULL, KL_LOG_NONE));
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
