/* Composite special functions: cube root, gamma function, inverse error function, logarithms, the next number. */
#include "frontend/frontend.h"
#include <math.h>

static kl_tensor where_selected(kl_tensor condition, kl_tensor yes, kl_tensor no)
{
    return kl_where(condition, yes, no);
}

kl_tensor kl_is_inf(kl_tensor a)
{
    struct view v;
    struct thread *t = floats_begin("is_inf", a, &v);
    if (!t)
        return op_failed();
    return compose_end(t, kl_eq(kl_abs(a), const_like(&v, INFINITY)));
}

/* A Newton step after pow gives cubes their exact root. 0, infinities and NaN are unchanged. */
kl_tensor kl_cbrt(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("cbrt", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor zero = const_like(&v, 0), third = const_like(&v, 1.0 / 3);
    kl_tensor finite = kl_and(kl_is_finite(a), kl_ne(a, zero));
    kl_tensor x = kl_abs(where_selected(finite, a, const_like(&v, 1)));
    kl_tensor y = kl_pow(x, third);
    kl_tensor miss = kl_sub(y, kl_div(x, kl_square(y)));
    y = kl_sub(y, kl_mul(miss, third));
    return compose_end(t, where_selected(finite, kl_copysign(y, a), kl_detach(a)));
}

kl_tensor kl_log10(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("log10", &a, &v);
    if (!t)
        return op_failed();
    return compose_end(t, kl_mul(kl_log(a), const_like(&v, 0.43429448190325182765)));
}

/* high + log(1 + e^(low - high)).  Equal infinities have no difference. */
kl_tensor kl_logaddexp(kl_tensor a, kl_tensor b)
{
    struct view v, vb;
    struct thread *t = thread_self();
    if (!t || !describe(t, "logaddexp", "operand 2", b, &vb) ||
        !(t = half_floats_begin("logaddexp", &a, &v)))
        return op_failed();
    b = widen_by_policy(t, b, &vb);
    kl_tensor swap = kl_lt(b, a), high = where_selected(swap, a, b), low = where_selected(swap, b, a);
    kl_tensor same = kl_and(kl_eq(a, b), kl_is_inf(a));
    kl_tensor apart = where_selected(same, const_like(&v, 0), kl_sub(low, high));
    kl_tensor more = where_selected(same, const_like(&v, 0), kl_log1p(kl_exp(apart)));
    return compose_end(t, kl_add(high, more));
}

/* ---- the gamma function: Lanczos' approximation with g = 7 and nine terms ---- */

static const double lanczos[] = {0.99999999999980993227684700473478, 676.520368121885098567009190444019,
                                 -1259.13921672240287047156078755283, 771.3234287776530788486528258894,
                                 -176.61502916214059906584551354, 12.507343278686904814458936853,
                                 -0.13857109526572011689554707, 9.984369578019570859563e-6,
                                 1.50563273514931155834e-7};
enum { LANCZOS_TERMS = sizeof lanczos / sizeof lanczos[0] };

/* Values used by lgamma and digamma, at x with gamma(z + 1): the reflection of a below 1/2. */
struct gamma_parts {
    kl_tensor reflect; /* bool: a below 1/2 */
    kl_tensor z;
    kl_tensor log_t;   /* log(z + 7.5) */
    kl_tensor t;
    kl_tensor sum;     /* Lanczos' series */
    kl_tensor slope;   /* its derivative */
};

static struct gamma_parts gamma_begin(const struct view *v, kl_tensor a, bool slope)
{
    struct gamma_parts p = {.reflect = kl_lt(a, const_like(v, 0.5))};
    kl_tensor one = const_like(v, 1);
    p.z = where_selected(p.reflect, kl_neg(a), kl_sub(a, one));
    p.t = kl_add(p.z, const_like(v, 7.5));
    kl_tensor part = kl_div(p.z, const_like(v, 7.5));
    p.log_t = kl_add(kl_log1p(part), const_like(v, 2.01490302054226464879));
    p.sum = const_like(v, lanczos[0]);
    p.slope = slope ? const_like(v, 0) : kl_none;
    for (int i = 1; i < LANCZOS_TERMS; i++) {
        kl_tensor below = kl_add(p.z, const_like(v, i));
        kl_tensor term = kl_div(const_like(v, lanczos[i]), below);
        p.sum = kl_add(p.sum, term);
        if (slope)
            p.slope = kl_sub(p.slope, kl_div(term, below));
    }
    return p;
}

/* a minus its nearest integer, with which sin and tan of pi a are accurate. */
static kl_tensor off_integer(kl_tensor a)
{
    return kl_sub(a, kl_round(a));
}

/* Whether a is 0 or a negative integer, where the gamma function has its poles. */
static kl_tensor is_pole(const struct view *v, kl_tensor a)
{
    kl_tensor whole = kl_eq(a, kl_round(a));
    return kl_and(kl_le(a, const_like(v, 0)), whole);
}

kl_tensor kl_lgamma(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("lgamma", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor max = const_like(&v, INFINITY), one = const_like(&v, 1);
    kl_tensor infinite = kl_or(kl_is_inf(a), is_pole(&v, a));
    kl_tensor x = where_selected(infinite, one, a);
    struct gamma_parts p = gamma_begin(&v, x, false);
    kl_tensor factor = kl_sub(kl_add(p.z, const_like(&v, 0.5)), kl_div(p.t, p.log_t));
    kl_tensor y = kl_add(kl_mul(factor, p.log_t), kl_add(kl_log(p.sum), const_like(&v, 0.91893853320467274178)));
    /* gamma(x) gamma(1 - x) = pi / sin(pi x) */
    kl_tensor turn = kl_mul(off_integer(x), const_like(&v, 3.14159265358979323846));
    kl_tensor wave = kl_abs(kl_sin(where_selected(p.reflect, turn, one)));
    kl_tensor mirror = kl_sub(const_like(&v, 1.14472988584940017414), kl_log(wave));
    y = where_selected(p.reflect, kl_sub(mirror, y), y);
    return compose_end(t, where_selected(infinite, max, y));
}

kl_tensor kl_digamma(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("digamma", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor one = const_like(&v, 1), max = const_like(&v, INFINITY), zero = const_like(&v, 0);
    kl_tensor pole = is_pole(&v, a), infinite = kl_is_inf(a), nan = const_like(&v, NAN);
    kl_tensor x = where_selected(kl_or(pole, infinite), one, a);
    struct gamma_parts p = gamma_begin(&v, x, true);
    kl_tensor y = kl_add(p.log_t, kl_sub(kl_div(p.slope, p.sum), kl_div(const_like(&v, 7), p.t)));
    /* digamma(1 - x) - digamma(x) = pi / tan(pi x) */
    kl_tensor pi = const_like(&v, 3.14159265358979323846);
    kl_tensor slope = kl_tan(where_selected(p.reflect, kl_mul(off_integer(x), pi), one));
    y = where_selected(p.reflect, kl_sub(y, kl_div(pi, slope)), y);
    kl_tensor at_zero = kl_neg(kl_copysign(max, a));
    y = where_selected(pole, where_selected(kl_eq(a, zero), at_zero, nan), y);
    return compose_end(t, where_selected(infinite, where_selected(kl_lt(a, zero), nan, max), y));
}

/* ---- the inverse of erf ---- */

/* A first guess, off by less than 0.3% (Winitzki), then Halley's steps, each of which triples the digits.  The distance
 * to 1 is exact where erf itself is near it. */
kl_tensor kl_erfinv(kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin("erfinv", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor zero = const_like(&v, 0), one = const_like(&v, 1), half = const_like(&v, 0.5);
    kl_tensor size = kl_abs(a), inside = kl_lt(size, one);
    /* up to this bound the series below is accurate, and the guess is not */
    kl_tensor small = kl_lt(size, const_like(&v, v.dtype == KL_F64 ? 1e-2 : 0.1));
    kl_tensor within = kl_and(inside, kl_not(small));
    kl_tensor x = where_selected(within, size, half), rest = kl_sub(one, x);
    kl_tensor l = kl_log(kl_mul(rest, kl_add(one, x)));
    kl_tensor h = kl_add(kl_mul(l, half), const_like(&v, 4.3307467508));
    kl_tensor inner = kl_sub(kl_square(h), kl_mul(l, const_like(&v, 6.8027210884)));
    kl_tensor y = kl_sqrt(kl_sub(kl_sqrt(inner), h));
    kl_tensor near = kl_lt(x, half);
    for (int i = v.dtype == KL_F64 ? 3 : 2; i > 0; i--) {
        kl_tensor miss = where_selected(near, kl_sub(kl_erf(y), x), kl_sub(rest, kl_erfc(y)));
        kl_tensor slope = kl_mul(kl_exp(kl_square(y)), const_like(&v, 0.88622692545275801365));
        kl_tensor step = kl_mul(miss, slope);
        y = kl_sub(y, kl_div(step, kl_add(one, kl_mul(y, step))));
    }
    y = where_selected(kl_lt(a, zero), kl_neg(y), y);
    /* near 0 the series a sqrt(pi)/2 (1 + pi/12 a^2 + 7 pi^2/480 a^4 + 127 pi^3/40320 a^6) */
    kl_tensor s = where_selected(small, a, zero), q = kl_square(s);
    kl_tensor series = kl_mul(q, const_like(&v, 0.097663620639936));
    series = kl_mul(q, kl_add(series, const_like(&v, 0.14393173084921979)));
    series = kl_mul(q, kl_add(series, const_like(&v, 0.26179938779914943654)));
    series = kl_mul(kl_mul(s, const_like(&v, 0.88622692545275801365)), kl_add(series, one));
    kl_tensor ends = where_selected(kl_eq(size, one), kl_copysign(const_like(&v, INFINITY), a), const_like(&v, NAN));
    return compose_end(t, where_selected(inside, where_selected(small, series, y), ends));
}

/* ---- the next number ---- */

kl_tensor kl_nextafter(kl_tensor a, kl_tensor b)
{
    struct view v;
    struct thread *t = floats_begin("nextafter", a, &v);
    if (!t)
        return op_failed();
    kl_dtype bits = dtype_size(v.dtype) == 2 ? KL_I16 : dtype_size(v.dtype) == 4 ? KL_I32 : KL_I64;
    struct view word = {.dtype = bits, .device = v.device};
    kl_tensor zero = const_like(&v, 0), one = const_like(&word, 1);
    /* as integers, numbers of one sign are in the order of their sizes */
    kl_tensor away = kl_eq(kl_gt(b, a), kl_gt(a, zero));
    kl_tensor step = where_selected(away, one, const_like(&word, -1));
    kl_tensor moved = kl_bitcast(kl_add(kl_bitcast(a, bits), step), (kl_dtype)v.dtype);
    kl_tensor min = kl_copysign(kl_bitcast(one, (kl_dtype)v.dtype), b);
    kl_tensor r = where_selected(kl_eq(a, zero), min, moved);
    r = where_selected(kl_eq(a, b), b, r);
    kl_tensor nan = kl_or(kl_is_nan(a), kl_is_nan(b));
    return compose_end(t, where_selected(nan, const_like(&v, NAN), r));
}
