/* Arithmetic composites: powers with a number, interpolation, comparison within a tolerance. */
#include "frontend/frontend.h"
#include <math.h>

/* ---- powers ---- */

/* a^n by squaring: the bits of n from the lowest; each is a square of the one before. */
static kl_tensor by_squaring(kl_tensor a, uint32_t n)
{
    kl_tensor r = kl_none;
    for (kl_tensor square = a;; square = kl_mul(square, square)) {
        if (n & 1)
            r = r.id ? kl_mul(r, square) : square;
        if (!(n >>= 1))
            return r;
    }
}

kl_tensor kl_powi(kl_tensor a, int n)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !describe(t, "powi", "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    if (v.dtype == KL_BOOL)
        return refuse(t, KL_ERR_TYPE, "powi: needs numbers, got bool");
    if (n < 0 && !dtype_is_float(v.dtype))
        return refuse(t, KL_ERR_ARGUMENT, "powi: %s to the %d is no integer", dtype_name(v.dtype), n);
    if (!(t = checked_begin("powi")))
        return op_failed();
    if (n == 0) { /* 1 for every a, also NaN; a stays an operand, so that its gradient is 0 and not an error */
        kl_tensor never = kl_scalar(v.device, KL_BOOL, 0), one = const_like(&v, 1);
        return compose_end(t, kl_where(never, a, one));
    }
    a = widen_by_policy(t, a, &v);
    kl_tensor r = by_squaring(reshape_to("powi", a, &v.shape), n < 0 ? 0u - (uint32_t)n : (uint32_t)n);
    return compose_end(t, n < 0 ? kl_recip(r) : r);
}

kl_tensor kl_pow_scalar(kl_tensor a, double exponent)
{
    struct view v;
    struct thread *t = half_floats_begin("pow_scalar", &a, &v);
    if (!t)
        return op_failed();
    if (exponent == 2 || exponent == 1 || exponent == -1)
        return compose_end(t, kl_powi(a, (int)exponent));
    return compose_end(t, kl_pow(a, const_like(&v, exponent)));
}

/* ---- between ---- */

/* Computed from the nearer end, so that both ends are exact. */
kl_tensor kl_lerp(kl_tensor a, kl_tensor b, kl_tensor weight)
{
    struct view v;
    struct thread *t = half_floats_begin("lerp", &a, &v);
    if (!t)
        return op_failed();
    if (!autocast_is_on(t)) {
        b = widen(t, b);
        weight = widen(t, weight);
    }
    kl_tensor way = kl_sub(b, a), half = const_like(&v, 0.5), one = const_like(&v, 1);
    kl_tensor up = kl_add(a, kl_mul(weight, way));
    kl_tensor down = kl_sub(b, kl_mul(kl_sub(one, weight), way));
    return compose_end(t, kl_where(kl_lt(weight, half), up, down));
}

kl_tensor kl_masked_fill(kl_tensor a, kl_tensor mask, double value)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !describe(t, "masked_fill", "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    if (!(t = checked_begin("masked_fill")))
        return op_failed();
    kl_tensor number = kl_scalar(v.device, (kl_dtype)v.dtype, value);
    return compose_end(t, kl_where(mask, number, a));
}

/* ---- nearly equal ---- */

kl_tensor kl_is_close(kl_tensor a, kl_tensor b, double relative, double absolute, bool equal_nan)
{
    struct view v;
    struct thread *t = floats_begin("is_close", a, &v);
    if (!t)
        return op_failed();
    if (!(relative >= 0) || !(absolute >= 0))
        return compose_end(t, refuse(t, KL_ERR_ARGUMENT, "is_close: tolerances %g and %g are not both 0 or more",
                                     relative, absolute));
    kl_tensor apart = kl_abs(kl_sub(a, b));
    kl_tensor bound = kl_add(kl_scalar(v.device, (kl_dtype)v.dtype, absolute),
                             kl_mul(kl_scalar(v.device, (kl_dtype)v.dtype, relative), kl_abs(b)));
    /* infinities are close to themselves only */
    kl_tensor near = kl_and(kl_le(apart, bound), kl_is_finite(apart));
    kl_tensor r = kl_or(near, kl_eq(a, b));
    if (equal_nan)
        r = kl_or(r, kl_and(kl_is_nan(a), kl_is_nan(b)));
    return compose_end(t, r);
}

kl_tensor kl_all_close(kl_tensor a, kl_tensor b, double relative, double absolute, bool equal_nan)
{
    struct thread *t = checked_begin("all_close");
    if (!t)
        return op_failed();
    kl_tensor each = kl_is_close(a, b, relative, absolute, equal_nan);
    return compose_end(t, kl_all(each, 0, NULL, false));
}
