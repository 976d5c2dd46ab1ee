/* Quotients rounded to integers and their remainders; counts of bits. */
#include "frontend/frontend.h"

/* Two operands of one number dtype; NULL: reported. */
static struct thread *division_begin(const kl_site *site, const char *op, kl_tensor a, kl_tensor b, struct view *v)
{
    struct thread *t = thread_self();
    struct view w;
    if (!t || !describe(t, site, op, "operand 1", a, v) || !describe(t, site, op, "operand 2", b, &w))
        return NULL;
    if (v->dtype == KL_BOOL || v->dtype != w.dtype) {
        fail(t, site, KL_ERR_TYPE, "%s: needs two operands of one number dtype, got %s and %s", op,
             dtype_name(v->dtype), dtype_name(w.dtype));
        return NULL;
    }
    return checked_begin(site, op);
}

/* The remainder of |a| / |b| with the sign of a, digit by digit of a quotient in base 2^52: each digit's product is
 * subtracted by one fma, exactly, and a digit that was rounded up is corrected. f32 and halfs are computed in f64,
 * where six digits suffice. */
static kl_tensor float_remainder(const kl_site *site, kl_tensor a, kl_tensor b, const struct view *v)
{
    struct view wide = *v;
    kl_tensor x = a, y = b;
    wide.dtype = KL_F64;
    if (v->dtype != KL_F64) {
        x = kl_cast_at(site, a, KL_F64);
        y = kl_cast_at(site, b, KL_F64);
    }
    kl_tensor zero = const_like(site, &wide, 0);
    kl_tensor below = kl_lt_at(site, x, zero), flip = kl_lt_at(site, y, zero);
    kl_tensor r = kl_where_at(site, below, kl_neg_at(site, x), x), d = kl_where_at(site, flip, kl_neg_at(site, y), y);
    kl_tensor shorter = kl_lt_at(site, r, d); /* then the remainder is a, whatever its sign, also for infinite b */
    for (int digit = 5; digit >= 0; digit--) {
        kl_tensor s = d;
        if (digit) { /* a product that overflows is larger than r: its digit is 0 */
            kl_tensor scaled = kl_mul_at(site, d, const_like(site, &wide, __builtin_ldexp(1, 52 * digit)));
            s = kl_where_at(site, kl_is_finite_at(site, scaled), scaled, d);
            kl_tensor q = kl_detach_at(site, kl_trunc_at(site, kl_div_at(site, r, s)));
            q = kl_where_at(site, kl_is_finite_at(site, scaled), q, zero);
            r = kl_fma_at(site, kl_neg_at(site, q), s, r);
        } else {
            kl_tensor q = kl_detach_at(site, kl_trunc_at(site, kl_div_at(site, r, s)));
            r = kl_fma_at(site, kl_neg_at(site, q), s, r);
        }
        r = kl_where_at(site, kl_lt_at(site, r, zero), kl_add_at(site, r, s), r);
    }
    r = kl_where_at(site, below, kl_neg_at(site, r), r);
    r = kl_where_at(site, kl_eq_at(site, r, zero), kl_copysign_at(site, r, x), r);
    r = kl_where_at(site, shorter, x, r);
    return v->dtype == KL_F64 ? r : kl_cast_at(site, r, (kl_dtype)v->dtype);
}

kl_tensor kl_fmod_at(const kl_site *site, kl_tensor a, kl_tensor b)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !(t = division_begin(site, "fmod", a, b, &v)))
        return op_failed();
    if (!dtype_is_float(v.dtype))
        return compose_end(t, kl_rem_at(site, a, b));
    return compose_end(t, float_remainder(site, a, b, &v));
}

/* The remainder towards zero, and whether it must be corrected to one towards minus infinity. */
static kl_tensor remainder_and_sign(const kl_site *site, const struct view *v, kl_tensor a, kl_tensor b,
                                    kl_tensor *other)
{
    kl_tensor zero = const_like(site, v, 0), r = kl_fmod_at(site, a, b);
    kl_tensor signs = kl_ne_at(site, kl_lt_at(site, r, zero), kl_lt_at(site, b, zero));
    *other = kl_and_at(site, kl_ne_at(site, r, zero), signs);
    return r;
}

kl_tensor kl_mod_at(const kl_site *site, kl_tensor a, kl_tensor b)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !(t = division_begin(site, "mod", a, b, &v)))
        return op_failed();
    kl_tensor other, r = remainder_and_sign(site, &v, a, b, &other);
    return compose_end(t, kl_where_at(site, other, kl_add_at(site, r, b), r));
}

kl_tensor kl_div_trunc_at(const kl_site *site, kl_tensor a, kl_tensor b)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !(t = division_begin(site, "div_trunc", a, b, &v)))
        return op_failed();
    kl_tensor q = kl_div_at(site, a, b);
    return compose_end(t, dtype_is_float(v.dtype) ? kl_trunc_at(site, q) : q);
}

/* The float quotient is that of (a - remainder), a multiple of b, so that nothing is rounded up to it. */
kl_tensor kl_div_floor_at(const kl_site *site, kl_tensor a, kl_tensor b)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !(t = division_begin(site, "div_floor", a, b, &v)))
        return op_failed();
    bool floats = dtype_is_float(v.dtype);
    kl_tensor other, r = remainder_and_sign(site, &v, a, b, &other);
    kl_tensor q = floats ? kl_round_at(site, kl_div_at(site, kl_sub_at(site, a, r), b)) : kl_div_at(site, a, b);
    q = kl_where_at(site, other, kl_sub_at(site, q, const_like(site, &v, 1)), q);
    if (floats) {
        kl_tensor none = kl_eq_at(site, b, const_like(site, &v, 0));
        q = kl_where_at(site, none, kl_detach_at(site, kl_div_at(site, a, b)), q);
    }
    return compose_end(t, q);
}

/* ---- bits ---- */

static struct thread *bits_begin(const kl_site *site, const char *op, kl_tensor a, struct view *v)
{
    struct thread *t = thread_self();
    if (!t || !describe(t, site, op, "the tensor", a, v))
        return NULL;
    if (v->dtype == KL_BOOL || dtype_is_float(v->dtype)) {
        fail(t, site, KL_ERR_TYPE, "%s: needs integers, got %s", op, dtype_name(v->dtype));
        return NULL;
    }
    return checked_begin(site, op);
}

static kl_dtype unsigned_of(kl_dtype dtype)
{
    return dtype_size(dtype) == 1 ? KL_U8 : dtype_size(dtype) == 2 ? KL_U16 : dtype_size(dtype) == 4 ? KL_U32 : KL_U64;
}

static kl_tensor shifted_right(const kl_site *site, const struct view *v, kl_tensor a, int by)
{
    return kl_shr_at(site, a, const_like(site, v, by));
}

/* Of u32: pairs of bits, then fours, then bytes, which a product adds up in the highest. */
static kl_tensor ones_of_word(const kl_site *site, const struct view *v, kl_tensor a)
{
    kl_tensor odd = const_like(site, v, 0x55555555), two = const_like(site, v, 0x33333333);
    kl_tensor four = const_like(site, v, 0x0f0f0f0f);
    a = kl_sub_at(site, a, kl_and_at(site, shifted_right(site, v, a, 1), odd));
    a = kl_add_at(site, kl_and_at(site, a, two), kl_and_at(site, shifted_right(site, v, a, 2), two));
    a = kl_and_at(site, kl_add_at(site, a, shifted_right(site, v, a, 4)), four);
    return shifted_right(site, v, kl_mul_at(site, a, const_like(site, v, 0x01010101)), 24);
}

/* Of any unsigned dtype, as u32. */
static kl_tensor count_ones(const kl_site *site, const struct view *v, kl_tensor a)
{
    struct view word = {.dtype = KL_U32, .device = v->device};
    kl_tensor low = ones_of_word(site, &word, v->dtype == KL_U32 ? a : kl_cast_at(site, a, KL_U32));
    if (v->dtype != KL_U64)
        return low;
    kl_tensor high = kl_cast_at(site, shifted_right(site, v, a, 32), KL_U32);
    return kl_add_at(site, low, ones_of_word(site, &word, high));
}

kl_tensor kl_popcount_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = bits_begin(site, "popcount", a, &v);
    if (!t)
        return op_failed();
    kl_dtype own = (kl_dtype)v.dtype;
    v.dtype = unsigned_of(own);
    return compose_end(t, kl_cast_at(site, count_ones(site, &v, kl_cast_at(site, a, (kl_dtype)v.dtype)), own));
}

/* All bits below the highest one set, then counted. */
kl_tensor kl_clz_at(const kl_site *site, kl_tensor a)
{
    struct view v;
    struct thread *t = bits_begin(site, "clz", a, &v);
    if (!t)
        return op_failed();
    kl_dtype own = (kl_dtype)v.dtype;
    v.dtype = unsigned_of(own);
    kl_tensor x = kl_cast_at(site, a, (kl_dtype)v.dtype);
    int width = 8 * (int)dtype_size(v.dtype);
    for (int by = 1; by < width; by *= 2)
        x = kl_or_at(site, x, shifted_right(site, &v, x, by));
    struct view word = {.dtype = KL_U32, .device = v.device};
    kl_tensor rest = kl_sub_at(site, const_like(site, &word, width), count_ones(site, &v, x));
    return compose_end(t, kl_cast_at(site, rest, own));
}

kl_tensor kl_shr_logical_at(const kl_site *site, kl_tensor a, kl_tensor b)
{
    struct view v;
    struct thread *t = bits_begin(site, "shr_logical", a, &v);
    if (!t)
        return op_failed();
    struct view w;
    if (!describe(t, site, "shr_logical", "operand 2", b, &w))
        return compose_end(t, poison(t));
    if (v.dtype != w.dtype)
        return compose_end(t, refuse(t, site, KL_ERR_TYPE, "shr_logical: dtypes %s and %s differ",
                                     dtype_name(v.dtype), dtype_name(w.dtype)));
    kl_dtype bits = unsigned_of((kl_dtype)v.dtype);
    kl_tensor r = kl_shr_at(site, kl_cast_at(site, a, bits), kl_cast_at(site, b, bits));
    return compose_end(t, kl_cast_at(site, r, (kl_dtype)v.dtype));
}
