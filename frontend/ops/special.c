/* Composite special functions: cube root, gamma function, inverse error function, logarithms, the next number. */
#include "frontend/frontend.h"
#include <math.h>

static kl_tensor where_selected(const kl_site *site, kl_tensor condition, kl_tensor yes, kl_tensor no)
{
    return kl_where_at(site, condition, yes, no);
}

kl_tensor kl_is_inf_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = floats_begin(site, "is_inf", a, &v);
    if (!t)
        return op_failed();
    return compose_end(t, kl_eq_at(site, kl_abs_at(site, a), const_like(site, &v, INFINITY)));
}

/* A Newton step after pow gives cubes their exact root. 0, infinities and NaN are unchanged. */
kl_tensor kl_cbrt_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "cbrt", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor zero = const_like(site, &v, 0), third = const_like(site, &v, 1.0 / 3);
    kl_tensor finite = kl_and_at(site, kl_is_finite_at(site, a), kl_ne_at(site, a, zero));
    kl_tensor x = kl_abs_at(site, where_selected(site, finite, a, const_like(site, &v, 1)));
    kl_tensor y = kl_pow_at(site, x, third);
    kl_tensor miss = kl_sub_at(site, y, kl_div_at(site, x, kl_square_at(site, y)));
    y = kl_sub_at(site, y, kl_mul_at(site, miss, third));
    return compose_end(t, where_selected(site, finite, kl_copysign_at(site, y, a), kl_detach_at(site, a)));
}

kl_tensor kl_log10_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "log10", &a, &v);
    if (!t)
        return op_failed();
    return compose_end(t, kl_mul_at(site, kl_log_at(site, a), const_like(site, &v, 0.43429448190325182765)));
}

/* high + log(1 + e^(low - high)).  Equal infinities have no difference. */
kl_tensor kl_logaddexp_at(const kl_site *site, kl_tensor a, kl_tensor b)
{
    struct view v, vb;
    struct thread *t = thread_self();
    if (!t || !describe(t, site, "logaddexp", "operand 2", b, &vb) ||
        !(t = half_floats_begin(site, "logaddexp", &a, &v)))
        return op_failed();
    b = widen_by_policy(t, site, b, &vb);
    kl_tensor swap = kl_lt_at(site, b, a), high = where_selected(site, swap, a, b), low = where_selected(site, swap, b,
                                                                                                         a);
    kl_tensor same = kl_and_at(site, kl_eq_at(site, a, b), kl_is_inf_at(site, a));
    kl_tensor apart = where_selected(site, same, const_like(site, &v, 0), kl_sub_at(site, low, high));
    kl_tensor more = where_selected(site, same, const_like(site, &v, 0), kl_log1p_at(site, kl_exp_at(site, apart)));
    return compose_end(t, kl_add_at(site, high, more));
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

static struct gamma_parts gamma_begin(const kl_site *site, const struct view *v, kl_tensor a, bool slope)
{
    struct gamma_parts p = {.reflect = kl_lt_at(site, a, const_like(site, v, 0.5))};
    kl_tensor one = const_like(site, v, 1);
    p.z = where_selected(site, p.reflect, kl_neg_at(site, a), kl_sub_at(site, a, one));
    p.t = kl_add_at(site, p.z, const_like(site, v, 7.5));
    kl_tensor part = kl_div_at(site, p.z, const_like(site, v, 7.5));
    p.log_t = kl_add_at(site, kl_log1p_at(site, part), const_like(site, v, 2.01490302054226464879));
    p.sum = const_like(site, v, lanczos[0]);
    p.slope = slope ? const_like(site, v, 0) : kl_none;
    for (int i = 1; i < LANCZOS_TERMS; i++) {
        kl_tensor below = kl_add_at(site, p.z, const_like(site, v, i));
        kl_tensor term = kl_div_at(site, const_like(site, v, lanczos[i]), below);
        p.sum = kl_add_at(site, p.sum, term);
        if (slope)
            p.slope = kl_sub_at(site, p.slope, kl_div_at(site, term, below));
    }
    return p;
}

/* a minus its nearest integer, with which sin and tan of pi a are accurate. */
static kl_tensor off_integer(const kl_site *site, kl_tensor a)
{
    return kl_sub_at(site, a, kl_round_at(site, a));
}

/* Whether a is 0 or a negative integer, where the gamma function has its poles. */
static kl_tensor is_pole(const kl_site *site, const struct view *v, kl_tensor a)
{
    kl_tensor whole = kl_eq_at(site, a, kl_round_at(site, a));
    return kl_and_at(site, kl_le_at(site, a, const_like(site, v, 0)), whole);
}

kl_tensor kl_lgamma_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "lgamma", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor max = const_like(site, &v, INFINITY), one = const_like(site, &v, 1);
    kl_tensor infinite = kl_or_at(site, kl_is_inf_at(site, a), is_pole(site, &v, a));
    kl_tensor x = where_selected(site, infinite, one, a);
    struct gamma_parts p = gamma_begin(site, &v, x, false);
    kl_tensor factor = kl_sub_at(site, kl_add_at(site, p.z, const_like(site, &v, 0.5)), kl_div_at(site, p.t, p.log_t));
    kl_tensor y = kl_add_at(site, kl_mul_at(site, factor, p.log_t),
                            kl_add_at(site, kl_log_at(site, p.sum), const_like(site, &v, 0.91893853320467274178)));
    /* gamma(x) gamma(1 - x) = pi / sin(pi x) */
    kl_tensor turn = kl_mul_at(site, off_integer(site, x), const_like(site, &v, 3.14159265358979323846));
    kl_tensor wave = kl_abs_at(site, kl_sin_at(site, where_selected(site, p.reflect, turn, one)));
    kl_tensor mirror = kl_sub_at(site, const_like(site, &v, 1.14472988584940017414), kl_log_at(site, wave));
    y = where_selected(site, p.reflect, kl_sub_at(site, mirror, y), y);
    return compose_end(t, where_selected(site, infinite, max, y));
}

kl_tensor kl_digamma_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "digamma", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor one = const_like(site, &v, 1), max = const_like(site, &v, INFINITY), zero = const_like(site, &v, 0);
    kl_tensor pole = is_pole(site, &v, a), infinite = kl_is_inf_at(site, a), nan = const_like(site, &v, NAN);
    kl_tensor x = where_selected(site, kl_or_at(site, pole, infinite), one, a);
    struct gamma_parts p = gamma_begin(site, &v, x, true);
    kl_tensor y = kl_add_at(site, p.log_t, kl_sub_at(site, kl_div_at(site, p.slope, p.sum),
                                                     kl_div_at(site, const_like(site, &v, 7), p.t)));
    /* digamma(1 - x) - digamma(x) = pi / tan(pi x) */
    kl_tensor pi = const_like(site, &v, 3.14159265358979323846);
    kl_tensor slope = kl_tan_at(site, where_selected(site, p.reflect, kl_mul_at(site, off_integer(site, x), pi), one));
    y = where_selected(site, p.reflect, kl_sub_at(site, y, kl_div_at(site, pi, slope)), y);
    kl_tensor at_zero = kl_neg_at(site, kl_copysign_at(site, max, a));
    y = where_selected(site, pole, where_selected(site, kl_eq_at(site, a, zero), at_zero, nan), y);
    return compose_end(t, where_selected(site, infinite, where_selected(site, kl_lt_at(site, a, zero), nan, max), y));
}

/* ---- the inverse of erf ---- */

/* A first guess, off by less than 0.3% (Winitzki), then Halley's steps, each of which triples the digits.  The distance
 * to 1 is exact where erf itself is near it. */
kl_tensor kl_erfinv_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = half_floats_begin(site, "erfinv", &a, &v);
    if (!t)
        return op_failed();
    kl_tensor zero = const_like(site, &v, 0), one = const_like(site, &v, 1), half = const_like(site, &v, 0.5);
    kl_tensor size = kl_abs_at(site, a), inside = kl_lt_at(site, size, one);
    /* up to this bound the series below is accurate, and the guess is not */
    kl_tensor small = kl_lt_at(site, size, const_like(site, &v, v.dtype == KL_F64 ? 1e-2 : 0.1));
    kl_tensor within = kl_and_at(site, inside, kl_not_at(site, small));
    kl_tensor x = where_selected(site, within, size, half), rest = kl_sub_at(site, one, x);
    kl_tensor l = kl_log_at(site, kl_mul_at(site, rest, kl_add_at(site, one, x)));
    kl_tensor h = kl_add_at(site, kl_mul_at(site, l, half), const_like(site, &v, 4.3307467508));
    kl_tensor inner = kl_sub_at(site, kl_square_at(site, h), kl_mul_at(site, l, const_like(site, &v, 6.8027210884)));
    kl_tensor y = kl_sqrt_at(site, kl_sub_at(site, kl_sqrt_at(site, inner), h));
    kl_tensor near = kl_lt_at(site, x, half);
    for (int i = v.dtype == KL_F64 ? 3 : 2; i > 0; i--) {
        kl_tensor miss = where_selected(site, near, kl_sub_at(site, kl_erf_at(site, y), x),
                                kl_sub_at(site, rest, kl_erfc_at(site, y)));
        kl_tensor slope = kl_mul_at(site, kl_exp_at(site, kl_square_at(site, y)),
                                    const_like(site, &v, 0.88622692545275801365));
        kl_tensor step = kl_mul_at(site, miss, slope);
        y = kl_sub_at(site, y, kl_div_at(site, step, kl_add_at(site, one, kl_mul_at(site, y, step))));
    }
    y = where_selected(site, kl_lt_at(site, a, zero), kl_neg_at(site, y), y);
    /* near 0 the series a sqrt(pi)/2 (1 + pi/12 a^2 + 7 pi^2/480 a^4 + 127 pi^3/40320 a^6) */
    kl_tensor s = where_selected(site, small, a, zero), q = kl_square_at(site, s);
    kl_tensor series = kl_mul_at(site, q, const_like(site, &v, 0.097663620639936));
    series = kl_mul_at(site, q, kl_add_at(site, series, const_like(site, &v, 0.14393173084921979)));
    series = kl_mul_at(site, q, kl_add_at(site, series, const_like(site, &v, 0.26179938779914943654)));
    series = kl_mul_at(site, kl_mul_at(site, s, const_like(site, &v, 0.88622692545275801365)),
                       kl_add_at(site, series, one));
    kl_tensor ends = where_selected(site, kl_eq_at(site, size, one), kl_copysign_at(site, const_like(site, &v,
                                                                                                     INFINITY), a),
                            const_like(site, &v, NAN));
    return compose_end(t, where_selected(site, inside, where_selected(site, small, series, y), ends));
}

/* ---- the next number ---- */

kl_tensor kl_nextafter_at(const kl_site *site, kl_tensor a, kl_tensor b)
{
    struct view v;
    struct thread *t = floats_begin(site, "nextafter", a, &v);
    if (!t)
        return op_failed();
    kl_dtype bits = dtype_size(v.dtype) == 2 ? KL_I16 : dtype_size(v.dtype) == 4 ? KL_I32 : KL_I64;
    struct view word = {.dtype = bits, .device = v.device};
    kl_tensor zero = const_like(site, &v, 0), one = const_like(site, &word, 1);
    /* as integers, numbers of one sign are in the order of their sizes */
    kl_tensor away = kl_eq_at(site, kl_gt_at(site, b, a), kl_gt_at(site, a, zero));
    kl_tensor step = where_selected(site, away, one, const_like(site, &word, -1));
    kl_tensor moved = kl_bitcast_at(site, kl_add_at(site, kl_bitcast_at(site, a, bits), step), (kl_dtype)v.dtype);
    kl_tensor min = kl_copysign_at(site, kl_bitcast_at(site, one, (kl_dtype)v.dtype), b);
    kl_tensor r = where_selected(site, kl_eq_at(site, a, zero), min, moved);
    r = where_selected(site, kl_eq_at(site, a, b), b, r);
    kl_tensor nan = kl_or_at(site, kl_is_nan_at(site, a), kl_is_nan_at(site, b));
    return compose_end(t, where_selected(site, nan, const_like(site, &v, NAN), r));
}
