/* Elementwise composites, which the compiler fuses. loss.c, norm.c, attention.c, window.c and einsum.c have the
 * others. */
#include "frontend/frontend.h"

kl_tensor op_failed(void)
{
    struct thread *t = thread_self();
    return t ? poison(t) : kl_none;
}

struct thread *checked_begin(const kl_site *site, const char *op)
{
    struct thread *t = compose_begin(op);
    if (!t)
        fail(thread_self(), site, KL_ERR_MEMORY, "%s: out of memory", op);
    return t;
}

struct thread *floats_begin(const kl_site *site, const char *op, kl_tensor a, struct view *v)
{
    struct thread *t = thread_self();
    if (!t || !describe(t, site, op, "the tensor", a, v))
        return NULL;
    if (!dtype_is_float(v->dtype)) {
        fail(t, site, KL_ERR_TYPE, "%s: needs a floating dtype, got %s", op, dtype_name(v->dtype));
        return NULL;
    }
    return checked_begin(site, op);
}

struct thread *wide_floats_begin(const kl_site *site, const char *op, kl_tensor *a, struct view *v)
{
    struct thread *t = floats_begin(site, op, *a, v);
    if (t)
        *a = widen_view(t, site, *a, v);
    return t;
}

struct thread *half_floats_begin(const kl_site *site, const char *op, kl_tensor *a, struct view *v)
{
    struct thread *t = floats_begin(site, op, *a, v);
    if (t)
        *a = widen_by_policy(t, site, *a, v);
    return t;
}

kl_tensor kl_square_at(const kl_site *site, kl_tensor a)
{
    return kl_mul_at(site, a, a);
}

/* ---- made of comparisons ---- */

/* NaN is not <= 0, so it is kept. */
kl_tensor kl_relu_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = floats_begin(site, "relu", a, &v);
    if (!t)
        return op_failed();
    kl_tensor zero = const_like(site, &v, 0);
    return compose_end(t, kl_where_at(site, kl_le_at(site, a, zero), zero, a));
}

kl_tensor kl_leaky_relu_at(const kl_site *site, kl_tensor a, double slope)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "leaky_relu", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor small = kl_le_at(site, a, const_like(site, &v, 0));
    return compose_end(t, kl_where_at(site, small, kl_mul_scalar_at(site, a, slope), a));
}

/* By comparisons and not by max and min, whose gradient is a half where the two are equal. */
static kl_tensor activation_between(const kl_site *site, kl_tensor a, kl_tensor low, kl_tensor high)
{
    kl_tensor at_most = kl_where_at(site, kl_gt_at(site, a, high), high, a);
    /* a minimum and a maximum, one instruction each */
    return kl_where_at(site, kl_lt_at(site, at_most, low), low, at_most);
}

kl_tensor kl_clamp_at(const kl_site *site, kl_tensor a, double low, double high)
{
    struct view v;
    struct thread *t = floats_begin(site, "clamp", a, &v);
    if (!t)
        return op_failed();
    if (!(low <= high)) {
        fail(t, site, KL_ERR_ARGUMENT, "no number is from %g to %g", low, high);
        compose_end(t, kl_none);
        return op_failed();
    }
    kl_tensor min = kl_scalar_at(site, v.device, (kl_dtype)v.dtype, low);
    kl_tensor max = kl_scalar_at(site, v.device, (kl_dtype)v.dtype, high);
    return compose_end(t, activation_between(site, a, min, max));
}

/* ---- made of exponentials of numbers at most 0, so that none overflows ---- */

/* e^-|a|, and whether a is below 0. */
static kl_tensor exp_nonpositive(const kl_site *site, const struct view *v, kl_tensor a, kl_tensor *below)
{
    *below = kl_lt_at(site, a, const_like(site, v, 0));
    return kl_exp_at(site, kl_where_at(site, *below, a, kl_neg_at(site, a)));
}

/* 1 / (1 + e), times e where a is below 0. */
kl_tensor kl_sigmoid_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "sigmoid", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor below, e = exp_nonpositive(site, &v, a, &below);
    kl_tensor p = kl_recip_at(site, kl_add_at(site, const_like(site, &v, 1), e));
    return compose_end(t, kl_where_at(site, below, kl_mul_at(site, e, p), p));
}

/* With u = 1 + e as rounded, log(u) e / (u - 1) loses no digits of a small e (Kahan), but its gradient would: that is
 * taken of log(u), from which the value differs by less than a rounding of u makes. */
kl_tensor log_one_plus_exp(const kl_site *site, const struct view *v, kl_tensor a, kl_tensor *below)
{
    kl_tensor one = const_like(site, v, 1), e = exp_nonpositive(site, v, a, below);
    kl_tensor u = kl_add_at(site, one, e), plain = kl_log_at(site, u), off = kl_sub_at(site, u, one);
    kl_tensor lost = kl_eq_at(site, off, const_like(site, v, 0));
    kl_tensor ratio = kl_div_at(site, e, kl_where_at(site, lost, one, off));
    kl_tensor exact = kl_where_at(site, lost, e, kl_mul_at(site, plain, ratio));
    return kl_add_at(site, plain, kl_detach_at(site, kl_sub_at(site, exact, plain)));
}

kl_tensor kl_softplus_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "softplus", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor below, rest = log_one_plus_exp(site, &v, a, &below);
    return compose_end(t, kl_where_at(site, below, rest, kl_add_at(site, a, rest)));
}

kl_tensor kl_mish_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "mish", &a, &v);
    if (!t)
        return op_failed();
    return compose_end(t, kl_mul_at(site, a, kl_tanh_at(site, kl_softplus_at(site, a))));
}

kl_tensor kl_silu_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "silu", &a, &v);
    if (!t)
        return op_failed();
    return compose_end(t, kl_mul_at(site, a, kl_sigmoid_at(site, a)));
}

/* (1 + tanh(u)) / 2 is sigmoid(2u), which keeps its digits for negative u.  At +-30 it has reached 0 and 1 in every
 * dtype; beyond, the cube would overflow, and the gradient be 0 times infinity. */
kl_tensor kl_gelu_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "gelu", &a, &v);
    if (!t)
        return op_failed();
    const double twice_root = 1.5957691216057307117597842397375; /* 2 sqrt(2 / pi) */
    kl_tensor c = activation_between(site, a, const_like(site, &v, -30), const_like(site, &v, 30));
    kl_tensor cubic = kl_mul_at(site, kl_square_at(site, c), const_like(site, &v, twice_root * 0.044715));
    kl_tensor u = kl_mul_at(site, c, kl_add_at(site, cubic, const_like(site, &v, twice_root)));
    return compose_end(t, kl_mul_at(site, a, kl_sigmoid_at(site, u)));
}

/* With h = tanh(a / 2), e^a - 1 is 2h / (1 - h), which keeps its digits near 0. */
kl_tensor kl_elu_at(const kl_site *site, kl_tensor a, double alpha)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "elu", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor zero = const_like(site, &v, 0), above = kl_gt_at(site, a, zero);
    kl_tensor half = kl_mul_at(site, kl_where_at(site, above, zero, a), const_like(site, &v, 0.5));
    kl_tensor h = kl_tanh_at(site, half);
    kl_tensor grown = kl_div_at(site, kl_add_at(site, h, h), kl_sub_at(site, const_like(site, &v, 1), h));
    return compose_end(t, kl_where_at(site, above, a, kl_mul_scalar_at(site, grown, alpha)));
}

/* erfc keeps its digits for negative a. */
kl_tensor kl_gelu_erf_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "gelu_erf", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor u = kl_mul_at(site, a, const_like(site, &v, -0.70710678118654752440));
    kl_tensor half = kl_mul_at(site, a, const_like(site, &v, 0.5));
    return compose_end(t, kl_mul_at(site, half, kl_erfc_at(site, u)));
}

kl_tensor kl_log_sigmoid_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "log_sigmoid", &a, &v);
    if (!t)
        return op_failed();
    return compose_end(t, kl_neg_at(site, kl_softplus_at(site, kl_neg_at(site, a))));
}

kl_tensor kl_selu_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "selu", &a, &v);
    if (!t)
        return op_failed();
    const double scale = 1.0507009873554804934, alpha = 1.6732632423543772848;
    kl_tensor zero = const_like(site, &v, 0), above = kl_gt_at(site, a, zero);
    kl_tensor low = kl_expm1_at(site, kl_where_at(site, above, zero, a));
    kl_tensor high = kl_mul_at(site, a, const_like(site, &v, scale));
    return compose_end(t, kl_where_at(site, above, high, kl_mul_at(site, low, const_like(site, &v, scale * alpha))));
}

kl_tensor kl_celu_at(const kl_site *site, kl_tensor a, double alpha)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "celu", &a, &v);
    if (!t)
        return op_failed();
    if (alpha == 0 || alpha != alpha) {
        fail(t, site, KL_ERR_ARGUMENT, "alpha is %s", alpha == 0 ? "0" : "NaN");
        compose_end(t, kl_none);
        return op_failed();
    }
    kl_tensor zero = const_like(site, &v, 0), above = kl_gt_at(site, a, zero);
    kl_tensor low = kl_expm1_at(site, kl_div_scalar_at(site, kl_where_at(site, above, zero, a), alpha));
    return compose_end(t, kl_where_at(site, above, a, kl_mul_scalar_at(site, low, alpha)));
}

/* ---- made of quotients and pieces of lines ---- */

/* Clamped where the quotient has reached 1, so that an infinity is not divided by one. */
kl_tensor kl_softsign_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "softsign", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor c = activation_between(site, a, const_like(site, &v, -1e30), const_like(site, &v, 1e30));
    return compose_end(t, kl_div_at(site, c, kl_add_at(site, kl_abs_at(site, c), const_like(site, &v, 1))));
}

kl_tensor kl_hard_sigmoid_at(const kl_site *site, kl_tensor a, double alpha, double beta)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "hard_sigmoid", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor line = kl_add_at(site, kl_mul_at(site, a, const_like(site, &v, alpha)), const_like(site, &v, beta));
    return compose_end(t, activation_between(site, line, const_like(site, &v, 0), const_like(site, &v, 1)));
}

/* Uses the clamped value, so that no square overflows and an infinity is not multiplied by 0. */
kl_tensor kl_hard_swish_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "hard_swish", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor max = const_like(site, &v, 3), c = activation_between(site, a, const_like(site, &v, -3), max);
    kl_tensor line = kl_add_at(site, kl_mul_at(site, c, const_like(site, &v, 1.0 / 6)), const_like(site, &v, 0.5));
    return compose_end(t, kl_where_at(site, kl_gt_at(site, a, max), a, kl_mul_at(site, c, line)));
}

/* ---- dropout ---- */

/* kl_none: the seed is a number. */
struct seed { kl_tensor tensor; uint64_t number; };

/* The scale is computed here, so that p = 1 gives zeros and not 0 times infinity, in the gradient too. */
static kl_tensor dropout_masked(const kl_site *site, const char *op, kl_tensor a, double p, const struct seed *seed,
                         bool training)
{
    struct view v;
    struct thread *t = floats_begin(site, op, a, &v);
    if (!t)
        return op_failed();
    if (!(p >= 0 && p <= 1)) {
        fail(t, site, KL_ERR_ARGUMENT, "probability %g is not in 0..1", p);
        compose_end(t, kl_none);
        return op_failed();
    }
    if (!training) /* a new handle, to be released like any other */
        return compose_end(t, reshape_to(site, op, a, &v.shape));
    int rank = (int)v.shape.rank;
    kl_tensor u = seed->tensor.id ? kl_rand_seeded_at(site, seed->tensor, KL_F32, rank, v.shape.dim)
                                  : kl_rand_at(site, v.device, KL_F32, rank, v.shape.dim, seed->number);
    kl_tensor dropped = kl_lt_at(site, u, kl_scalar_at(site, v.device, KL_F32, p));
    kl_tensor scaled = kl_mul_scalar_at(site, a, p < 1 ? 1 / (1 - p) : 0);
    return compose_end(t, kl_where_at(site, dropped, const_like(site, &v, 0), scaled));
}

kl_tensor kl_dropout_at(const kl_site *site, kl_tensor a, double p, uint64_t seed, bool training)
{
    return dropout_masked(site, "dropout", a, p, &(struct seed){.number = seed}, training);
}

kl_tensor kl_dropout_seeded_at(const kl_site *site, kl_tensor a, double p, kl_tensor seed, bool training)
{
    struct thread *t = thread_self();
    if (t && !seed.id)
        return refuse(t, site, KL_ERR_HANDLE, "dropout_seeded: the seed is kl_none");
    return dropout_masked(site, "dropout_seeded", a, p, &(struct seed){.tensor = seed}, training);
}
