/* Elementwise composites, which the compiler fuses. loss.c, norm.c, attention.c, window.c and einsum.c have the
 * others. */
#include "frontend/frontend.h"

kl_tensor op_failed(void)
{
    struct thread *t = thread_self();
    return t ? poison(t) : kl_none;
}

struct thread *checked_begin(const char *op)
{
    struct thread *t = compose_begin(op);
    if (!t)
        fail(thread_self(), KL_ERR_MEMORY, "%s: out of memory", op);
    return t;
}

struct thread *floats_begin(const char *op, kl_tensor a, struct view *v)
{
    struct thread *t = thread_self();
    if (!t || !describe(t, op, "the tensor", a, v))
        return NULL;
    if (!dtype_is_float(v->dtype)) {
        fail(t, KL_ERR_TYPE, "%s: needs a floating dtype, got %s", op, dtype_name(v->dtype));
        return NULL;
    }
    return checked_begin(op);
}

struct thread *wide_floats_begin(const char *op, kl_tensor *a, struct view *v)
{
    struct thread *t = floats_begin(op, *a, v);
    if (t)
        *a = widen_view(t, *a, v);
    return t;
}

struct thread *half_floats_begin(const char *op, kl_tensor *a, struct view *v)
{
    struct thread *t = floats_begin(op, *a, v);
    if (t)
        *a = widen_by_policy(t, *a, v);
    return t;
}

kl_tensor kl_square(kl_tensor a)
{
    return kl_mul(a, a);
}

/* ---- made of comparisons ---- */

/* NaN is not <= 0, so it is kept. */
kl_tensor kl_relu(kl_tensor a)
{
    struct view v;
    struct thread *t = floats_begin("relu", a, &v);
    if (!t)
        return op_failed();
    kl_tensor zero = const_like(&v, 0);
    return compose_end(t, kl_where(kl_le(a, zero), zero, a));
}

kl_tensor kl_leaky_relu(kl_tensor a, double slope)
{
    struct view v;
    struct thread *t = half_floats_begin("leaky_relu", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor small = kl_le(a, const_like(&v, 0));
    return compose_end(t, kl_where(small, kl_mul_scalar(a, slope), a));
}

/* By comparisons and not by max and min, whose gradient is a half where the two are equal. */
static kl_tensor activation_between(kl_tensor a, kl_tensor low, kl_tensor high)
{
    kl_tensor at_most = kl_where(kl_gt(a, high), high, a);
    /* a minimum and a maximum, one instruction each */
    return kl_where(kl_lt(at_most, low), low, at_most);
}

kl_tensor kl_clamp(kl_tensor a, double low, double high)
{
    struct view v;
    struct thread *t = floats_begin("clamp", a, &v);
    if (!t)
        return op_failed();
    if (!(low <= high)) {
        fail(t, KL_ERR_ARGUMENT, "no number is from %g to %g", low, high);
        compose_end(t, kl_none);
        return op_failed();
    }
    kl_tensor min = kl_scalar(v.device, (kl_dtype)v.dtype, low);
    kl_tensor max = kl_scalar(v.device, (kl_dtype)v.dtype, high);
    return compose_end(t, activation_between(a, min, max));
}

/* ---- made of exponentials of numbers at most 0, so that none overflows ---- */

/* e^-|a|, and whether a is below 0. */
static kl_tensor exp_nonpositive(const struct view *v, kl_tensor a, kl_tensor *below)
{
    *below = kl_lt(a, const_like(v, 0));
    return kl_exp(kl_where(*below, a, kl_neg(a)));
}

/* 1 / (1 + e), times e where a is below 0. */
kl_tensor kl_sigmoid(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("sigmoid", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor below, e = exp_nonpositive(&v, a, &below);
    kl_tensor p = kl_recip(kl_add(const_like(&v, 1), e));
    return compose_end(t, kl_where(below, kl_mul(e, p), p));
}

/* With u = 1 + e as rounded, log(u) e / (u - 1) loses no digits of a small e (Kahan), but its gradient would: that is
 * taken of log(u), from which the value differs by less than a rounding of u makes. */
kl_tensor log_one_plus_exp(const struct view *v, kl_tensor a, kl_tensor *below)
{
    kl_tensor one = const_like(v, 1), e = exp_nonpositive(v, a, below);
    kl_tensor u = kl_add(one, e), plain = kl_log(u), off = kl_sub(u, one);
    kl_tensor lost = kl_eq(off, const_like(v, 0));
    kl_tensor ratio = kl_div(e, kl_where(lost, one, off));
    kl_tensor exact = kl_where(lost, e, kl_mul(plain, ratio));
    return kl_add(plain, kl_detach(kl_sub(exact, plain)));
}

kl_tensor kl_softplus(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("softplus", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor below, rest = log_one_plus_exp(&v, a, &below);
    return compose_end(t, kl_where(below, rest, kl_add(a, rest)));
}

kl_tensor kl_mish(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("mish", &a, &v);
    if (!t)
        return op_failed();
    return compose_end(t, kl_mul(a, kl_tanh(kl_softplus(a))));
}

kl_tensor kl_silu(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("silu", &a, &v);
    if (!t)
        return op_failed();
    return compose_end(t, kl_mul(a, kl_sigmoid(a)));
}

/* (1 + tanh(u)) / 2 is sigmoid(2u), which keeps its digits for negative u.  At +-30 it has reached 0 and 1 in every
 * dtype; beyond, the cube would overflow, and the gradient be 0 times infinity. */
kl_tensor kl_gelu(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("gelu", &a, &v);
    if (!t)
        return op_failed();
    const double twice_root = 1.5957691216057307117597842397375; /* 2 sqrt(2 / pi) */
    kl_tensor c = activation_between(a, const_like(&v, -30), const_like(&v, 30));
    kl_tensor cubic = kl_mul(kl_square(c), const_like(&v, twice_root * 0.044715));
    kl_tensor u = kl_mul(c, kl_add(cubic, const_like(&v, twice_root)));
    return compose_end(t, kl_mul(a, kl_sigmoid(u)));
}

/* With h = tanh(a / 2), e^a - 1 is 2h / (1 - h), which keeps its digits near 0. */
kl_tensor kl_elu(kl_tensor a, double alpha)
{
    struct view v;
    struct thread *t = half_floats_begin("elu", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor zero = const_like(&v, 0), above = kl_gt(a, zero);
    kl_tensor half = kl_mul(kl_where(above, zero, a), const_like(&v, 0.5));
    kl_tensor h = kl_tanh(half);
    kl_tensor grown = kl_div(kl_add(h, h), kl_sub(const_like(&v, 1), h));
    return compose_end(t, kl_where(above, a, kl_mul_scalar(grown, alpha)));
}

/* erfc keeps its digits for negative a. */
kl_tensor kl_gelu_erf(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("gelu_erf", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor u = kl_mul(a, const_like(&v, -0.70710678118654752440));
    kl_tensor half = kl_mul(a, const_like(&v, 0.5));
    return compose_end(t, kl_mul(half, kl_erfc(u)));
}

kl_tensor kl_log_sigmoid(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("log_sigmoid", &a, &v);
    if (!t)
        return op_failed();
    return compose_end(t, kl_neg(kl_softplus(kl_neg(a))));
}

kl_tensor kl_selu(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("selu", &a, &v);
    if (!t)
        return op_failed();
    const double scale = 1.0507009873554804934, alpha = 1.6732632423543772848;
    kl_tensor zero = const_like(&v, 0), above = kl_gt(a, zero);
    kl_tensor low = kl_expm1(kl_where(above, zero, a));
    kl_tensor high = kl_mul(a, const_like(&v, scale));
    return compose_end(t, kl_where(above, high, kl_mul(low, const_like(&v, scale * alpha))));
}

kl_tensor kl_celu(kl_tensor a, double alpha)
{
    struct view v;
    struct thread *t = half_floats_begin("celu", &a, &v);
    if (!t)
        return op_failed();
    if (alpha == 0 || alpha != alpha) {
        fail(t, KL_ERR_ARGUMENT, "alpha is %s", alpha == 0 ? "0" : "NaN");
        compose_end(t, kl_none);
        return op_failed();
    }
    kl_tensor zero = const_like(&v, 0), above = kl_gt(a, zero);
    kl_tensor low = kl_expm1(kl_div_scalar(kl_where(above, zero, a), alpha));
    return compose_end(t, kl_where(above, a, kl_mul_scalar(low, alpha)));
}

/* ---- made of quotients and pieces of lines ---- */

/* Clamped where the quotient has reached 1, so that an infinity is not divided by one. */
kl_tensor kl_softsign(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("softsign", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor c = activation_between(a, const_like(&v, -1e30), const_like(&v, 1e30));
    return compose_end(t, kl_div(c, kl_add(kl_abs(c), const_like(&v, 1))));
}

kl_tensor kl_hard_sigmoid(kl_tensor a, double alpha, double beta)
{
    struct view v;
    struct thread *t = half_floats_begin("hard_sigmoid", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor line = kl_add(kl_mul(a, const_like(&v, alpha)), const_like(&v, beta));
    return compose_end(t, activation_between(line, const_like(&v, 0), const_like(&v, 1)));
}

/* Uses the clamped value, so that no square overflows and an infinity is not multiplied by 0. */
kl_tensor kl_hard_swish(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("hard_swish", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor max = const_like(&v, 3), c = activation_between(a, const_like(&v, -3), max);
    kl_tensor line = kl_add(kl_mul(c, const_like(&v, 1.0 / 6)), const_like(&v, 0.5));
    return compose_end(t, kl_where(kl_gt(a, max), a, kl_mul(c, line)));
}

/* ---- dropout ---- */

/* kl_none: the seed is a number. */
struct seed { kl_tensor tensor; uint64_t number; };

/* The scale is computed here, so that p = 1 gives zeros and not 0 times infinity, in the gradient too. */
static kl_tensor dropout_masked(const char *op, kl_tensor a, double p, const struct seed *seed, bool training)
{
    struct view v;
    struct thread *t = floats_begin(op, a, &v);
    if (!t)
        return op_failed();
    if (!(p >= 0 && p <= 1)) {
        fail(t, KL_ERR_ARGUMENT, "probability %g is not in 0..1", p);
        compose_end(t, kl_none);
        return op_failed();
    }
    if (!training) /* a new handle, to be released like any other */
        return compose_end(t, reshape_to(op, a, &v.shape));
    int rank = (int)v.shape.rank;
    kl_tensor u = seed->tensor.id ? kl_rand_seeded(seed->tensor, KL_F32, rank, v.shape.dim)
                                  : kl_rand(v.device, KL_F32, rank, v.shape.dim, seed->number);
    kl_tensor dropped = kl_lt(u, kl_scalar(v.device, KL_F32, p));
    kl_tensor scaled = kl_mul_scalar(a, p < 1 ? 1 / (1 - p) : 0);
    return compose_end(t, kl_where(dropped, const_like(&v, 0), scaled));
}

kl_tensor kl_dropout(kl_tensor a, double p, uint64_t seed, bool training)
{
    return dropout_masked("dropout", a, p, &(struct seed){.number = seed}, training);
}

kl_tensor kl_dropout_seeded(kl_tensor a, double p, kl_tensor seed, bool training)
{
    struct thread *t = thread_self();
    if (t && !seed.id)
        return refuse(t, KL_ERR_HANDLE, "dropout_seeded: the seed is kl_none");
    return dropout_masked("dropout_seeded", a, p, &(struct seed){.tensor = seed}, training);
}
