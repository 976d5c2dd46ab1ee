/* What gradients flow through: detach, no_grad blocks, marked tensors; first and second order, in and outside of
 * traces. */
#include "tests/support/api_check.h"
#include <math.h>

static kl_device dev;

static kl_tensor vec(int64_t n, const double *v) { return kl_input(dev, KL_F64, 1, (int64_t[]){n}, v); }
static const double at[3] = {-1.5, 0.5, 2};

/* x^3 made of a factor that gradients flow through and one that they do not. */
static void detached(void)
{
    kl_tensor x = vec(3, at);
    CHECK(kl_trace_begin("detached") == KL_OK);
    kl_tensor y = kl_mul(kl_square(x), kl_detach(x));
    kl_tensor d1 = kl_keep(kl_grad(y, x)), d2 = kl_keep(kl_grad(d1, x)), d3 = kl_keep(kl_grad(d2, x));
    kl_tensor own = kl_detach(x), self = kl_keep(kl_grad(kl_square(own), own));
    kl_tensor value = kl_keep(kl_detach(y)), whole = kl_keep(kl_detach(kl_grad(y, x)));
    kl_tensor of_whole = kl_keep(kl_grad(kl_mul(whole, x), x));
    CHECK(kl_trace_end() == KL_OK);
    double w1[3], w2[3], w3[3], ws[3], wv[3];
    for (int i = 0; i < 3; i++) {
        w1[i] = 2 * at[i] * at[i]; /* 2 x times the constant x */
        w2[i] = 2 * at[i];         /* in the 2 x only */
        w3[i] = 0;
        ws[i] = 2 * at[i];
        wv[i] = at[i] * at[i] * at[i];
    }
    NEAR(d1, 3, w1, 1e-15);
    NEAR(d2, 3, w2, 1e-15);
    NEAR(d3, 3, w3, 0);
    NEAR(self, 3, ws, 1e-15);
    NEAR(value, 3, wv, 1e-15);
    NEAR(whole, 3, w1, 1e-15);
    NEAR(of_whole, 3, w1, 1e-15);
    kl_release(x);
}

/* Blocks nest; what they record has values and no gradient, a composite or a broadcast as much as a plain op. */
static void blocks(void)
{
    kl_tensor x = vec(3, at), b = vec(1, (double[]){2});
    CHECK(kl_grad_enabled());
    CHECK(kl_trace_begin("blocks") == KL_OK);
    CHECK(kl_no_grad_begin() == KL_OK);
    kl_tensor k = kl_softmax(x, 0);
    CHECK(kl_no_grad_begin() == KL_OK);
    kl_tensor m = kl_mul(x, b);
    CHECK(kl_no_grad_end() == KL_OK);
    CHECK(!kl_grad_enabled());
    kl_tensor square = kl_square(x), two[2]; /* of an op without history: 0 */
    CHECK(kl_grads(square, 2, (kl_tensor[]){x, square}, two) == KL_OK);
    kl_tensor first = two[0];
    CHECK(kl_no_grad_end() == KL_OK);
    CHECK(kl_grad_enabled());
    kl_tensor of_k = kl_keep(kl_grad(kl_mul(k, x), x)), of_m = kl_keep(kl_grad(kl_mul(m, x), x));
    CHECK(kl_grads(kl_mul(m, x), 2, (kl_tensor[]){b, x}, two) == KL_OK);
    kl_tensor of_b = kl_keep(two[0]), value = kl_keep(k);
    kl_keep(first);
    CHECK(kl_trace_end() == KL_OK);
    double w[3], e[3], sum = 0;
    for (int i = 0; i < 3; i++)
        sum += e[i] = exp(at[i]);
    for (int i = 0; i < 3; i++)
        w[i] = e[i] / sum;
    NEAR(value, 3, w, 1e-14);
    NEAR(of_k, 3, w, 1e-14);
    NEAR_LIST(of_m, 0, -3, 1, 4);
    NEAR_LIST(of_b, 0, 0);
    NEAR_LIST(first, 0, 0, 0, 0);
    kl_release(x);
    kl_release(b);
}

/* A gradient taken in a block of what was recorded before it: a value, with no gradient of its own. */
static void gradient_in_block(void)
{
    kl_tensor x = vec(3, at);
    CHECK(kl_trace_begin("in block") == KL_OK);
    kl_tensor cube = kl_mul(kl_square(x), x);
    kl_no_grad_begin();
    kl_tensor inside = kl_keep(kl_grad(cube, x));
    kl_no_grad_end();
    kl_tensor outside = kl_grad(cube, x), second = kl_keep(kl_grad(outside, x)), two[2];
    CHECK(kl_grads(inside, 2, (kl_tensor[]){x, inside}, two) == KL_OK);
    kl_tensor none = kl_keep(two[0]);
    kl_tensor both = kl_keep(kl_grad(kl_mul(inside, x), x));
    CHECK(kl_trace_end() == KL_OK);
    double w1[3], w2[3];
    for (int i = 0; i < 3; i++) {
        w1[i] = 3 * at[i] * at[i];
        w2[i] = 6 * at[i];
    }
    NEAR(inside, 3, w1, 1e-15);
    NEAR(second, 3, w2, 1e-15);
    NEAR_LIST(none, 0, 0, 0, 0);
    NEAR(both, 3, w1, 1e-15);
    kl_release(x);
}

/* Outside a trace a block's results are not tracked; marking one starts anew. */
static void outside(void)
{
    kl_tensor x = vec(3, at);
    CHECK(kl_requires_grad(x) == KL_OK);
    kl_scope_begin();
    kl_no_grad_begin();
    kl_tensor y = kl_mul_scalar(x, 3);
    kl_no_grad_end();
    kl_tensor refused = kl_grad(kl_square(y), x);
    CHECK(kl_check(refused) == KL_ERR_GRAD && strstr(kl_last_error(), "depends on nothing marked"));
    kl_clear_error();
    NEAR_LIST(kl_grad(kl_mul(y, x), x), 0, -4.5, 1.5, 6);
    CHECK(kl_requires_grad(y) == KL_OK);
    NEAR_LIST(kl_grad(kl_square(y), y), 0, -9, 3, 12);
    NEAR_LIST(kl_grad(kl_mul(kl_square(y), x), x), 0, 20.25, 2.25, 36);
    kl_tensor cut = kl_grad(kl_detach(kl_square(x)), x);
    CHECK(kl_check(cut) == KL_ERR_GRAD);
    kl_clear_error();
    kl_scope_end();
    kl_release(x);
}

/* The end of a trace, good, failed or abandoned, closes its blocks; blocks around it stay. */
static void closing(void)
{
    kl_tensor x = vec(3, at);
    CHECK(kl_no_grad_end() == KL_ERR_ARGUMENT && strstr(kl_last_error(), "no block is open"));
    kl_clear_error();
    CHECK(kl_trace_begin("left open") == KL_OK);
    kl_no_grad_begin();
    kl_no_grad_begin();
    CHECK(kl_trace_end() == KL_OK);
    CHECK(kl_grad_enabled());
    CHECK(kl_trace_begin("fails") == KL_OK);
    kl_no_grad_begin();
    kl_add(x, kl_none);
    CHECK(kl_trace_end() != KL_OK);
    CHECK(kl_grad_enabled());
    kl_clear_error();
    CHECK(kl_trace_begin("abandoned") == KL_OK);
    kl_no_grad_begin();
    kl_trace_abandon();
    CHECK(kl_grad_enabled());

    kl_no_grad_begin();
    CHECK(kl_trace_begin("inside") == KL_OK);
    CHECK(!kl_grad_enabled());
    kl_tensor loss = kl_square(x), two[2];
    CHECK(kl_grads(loss, 2, (kl_tensor[]){x, loss}, two) == KL_OK);
    kl_tensor none = kl_keep(two[0]);
    kl_no_grad_begin();
    CHECK(kl_trace_end() == KL_OK);
    CHECK(!kl_grad_enabled());
    CHECK(kl_trace_begin("not its own") == KL_OK);
    CHECK(kl_no_grad_end() == KL_ERR_ARGUMENT && strstr(kl_last_error(), "begun before this trace"));
    CHECK(kl_trace_end() == KL_ERR_ARGUMENT);
    kl_clear_error();
    CHECK(kl_no_grad_end() == KL_OK);
    CHECK(kl_grad_enabled());
    NEAR_LIST(none, 0, 0, 0, 0);
    kl_release(x);
}

/* Gradients where there is none, or more than one could be meant, are those that ops.h and nn.h state. */
static void check_edge(kl_tensor (*f)(kl_tensor, kl_tensor), double x, double z, double gx, double gz)
{
    kl_scope_begin();
    kl_tensor a = kl_scalar(dev, KL_F64, x), b = kl_scalar(dev, KL_F64, z);
    kl_requires_grad(a);
    kl_requires_grad(b);
    kl_tensor y = f(a, b), ga = kl_grad(y, a);
    double got = kl_item_f64(ga), other = isnan(gz) ? gz : kl_item_f64(kl_grad(y, b));
    if (!CHECK((got == gx || (isnan(got) && isnan(gx))) && (other == gz || isnan(gz))))
        printf("    at %g, %g: gradients %g and %g, not %g and %g\n", x, z, got, other, gx, gz);
    kl_scope_end();
}
static kl_tensor edge_acosh(kl_tensor a, kl_tensor b) { return (void)b, kl_acosh(a); }
static kl_tensor edge_abs(kl_tensor a, kl_tensor b) { return (void)b, kl_abs(a); }
static kl_tensor edge_clamp(kl_tensor a, kl_tensor b) { return (void)b, kl_clamp(a, 0, 6); }
static kl_tensor edge_max(kl_tensor a, kl_tensor b) { return kl_maximum(a, b); }
static kl_tensor edge_min(kl_tensor a, kl_tensor b) { return kl_minimum(a, b); }
static kl_tensor edge_atan2(kl_tensor a, kl_tensor b) { return kl_atan2(a, b); }
static kl_tensor edge_copysign(kl_tensor a, kl_tensor b) { return kl_copysign(a, b); }

static void edges(void)
{
    const double none = NAN; /* of one operand */
    check_edge(edge_acosh, -2, 0, NAN, none);
    check_edge(edge_acosh, 0.5, 0, NAN, none);
    check_edge(edge_abs, 0, 0, 0, none);
    check_edge(edge_abs, NAN, 0, 1, none);
    check_edge(edge_clamp, 0, 0, 1, none);
    check_edge(edge_clamp, 6, 0, 1, none);
    check_edge(edge_clamp, 6.5, 0, 0, none);
    check_edge(edge_clamp, NAN, 0, 1, none);
    check_edge(edge_max, 2, 2, 0.5, 0.5);
    check_edge(edge_max, NAN, 1, 0, 0);
    check_edge(edge_max, 1, NAN, 0, 0);
    check_edge(edge_min, 1, NAN, 0, 0);
    check_edge(edge_atan2, 0, 0, 0, 0);
    check_edge(edge_copysign, 0, 1, 1, 0);
    check_edge(edge_copysign, 0, -1, -1, 0);
    check_edge(edge_copysign, -3, 0, -1, 0);
    check_edge(edge_copysign, -3, -0.0, 1, 0);
}

/* Outside a trace a gradient flows through a state to what it was assigned, whether that was read before or not. */
static void assigned(void)
{
    for (int i = 0; i < 4; i++) {
        float y[2], g[2];
        kl_tensor state = kl_zeros(dev, KL_F32, DIMS(2)), a = kl_full(dev, KL_F32, DIMS(2), 3);
        kl_requires_grad(a);
        kl_tensor value = i & 1 ? kl_square(a) : a; /* computed, or the marked tensor itself */
        if (i & 2)
            OK(kl_read(value, y, sizeof y));
        OK(kl_assign(state, value));
        OK(kl_read(kl_grad(kl_add(kl_sum_all(kl_neg(state)), kl_sum_all(a)), a), g, sizeof g));
        CHECK(g[0] == (i & 1 ? -5 : 0) && g[1] == g[0]);
        OK(kl_assign(state, kl_detach(value)));
        OK(kl_read(kl_grad(kl_add(kl_sum_all(kl_neg(state)), kl_sum_all(a)), a), g, sizeof g));
        CHECK(g[0] == 1 && g[1] == 1);
    }
}

static void all(kl_device device)
{
    dev = device;
    assigned();
    detached();
    blocks();
    gradient_in_block();
    outside();
    closing();
    edges();
}

int main(void) { return on_devices(all); }
