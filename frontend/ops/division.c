/* Quotients rounded to integers and their remainders; counts of bits. */
#include "frontend/frontend.h"

/* Two operands of one number dtype; NULL: reported. */
static struct thread *division_begin(const char *op, kl_tensor a, kl_tensor b, struct view *v)
{
    struct thread *t = thread_self();
    struct view w;
    if (!t || !describe(t, op, "operand 1", a, v) || !describe(t, op, "operand 2", b, &w))
        return NULL;
    if (v->dtype == KL_BOOL || v->dtype != w.dtype) {
        fail(t, KL_ERR_TYPE, "%s: needs two operands of one number dtype, got %s and %s", op,
             dtype_name(v->dtype), dtype_name(w.dtype));
        return NULL;
    }
    return checked_begin(op);
}

/* The remainder of |a| / |b| with the sign of a, digit by digit of a quotient in base 2^52: each digit's product is
 * subtracted by one fma, exactly, and a digit that was rounded up is corrected. f32 and halfs are computed in f64,
 * where six digits suffice. */
static kl_tensor float_remainder(kl_tensor a, kl_tensor b, const struct view *v)
{
    struct view wide = *v;
    kl_tensor x = a, y = b;
    wide.dtype = KL_F64;
    if (v->dtype != KL_F64) {
        x = kl_cast(a, KL_F64);
        y = kl_cast(b, KL_F64);
    }
    kl_tensor zero = const_like(&wide, 0);
    kl_tensor below = kl_lt(x, zero), flip = kl_lt(y, zero);
    kl_tensor r = kl_where(below, kl_neg(x), x), d = kl_where(flip, kl_neg(y), y);
    kl_tensor shorter = kl_lt(r, d); /* then the remainder is a, whatever its sign, also for infinite b */
    for (int digit = 5; digit >= 0; digit--) {
        kl_tensor s = d;
        if (digit) { /* a product that overflows is larger than r: its digit is 0 */
            kl_tensor scaled = kl_mul(d, const_like(&wide, __builtin_ldexp(1, 52 * digit)));
            s = kl_where(kl_is_finite(scaled), scaled, d);
            kl_tensor q = kl_detach(kl_trunc(kl_div(r, s)));
            q = kl_where(kl_is_finite(scaled), q, zero);
            r = kl_fma(kl_neg(q), s, r);
        } else {
            kl_tensor q = kl_detach(kl_trunc(kl_div(r, s)));
            r = kl_fma(kl_neg(q), s, r);
        }
        r = kl_where(kl_lt(r, zero), kl_add(r, s), r);
    }
    r = kl_where(below, kl_neg(r), r);
    r = kl_where(kl_eq(r, zero), kl_copysign(r, x), r);
    r = kl_where(shorter, x, r);
    return v->dtype == KL_F64 ? r : kl_cast(r, (kl_dtype)v->dtype);
}

kl_tensor kl_fmod(kl_tensor a, kl_tensor b)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !(t = division_begin("fmod", a, b, &v)))
        return op_failed();
    if (!dtype_is_float(v.dtype))
        return compose_end(t, kl_rem(a, b));
    return compose_end(t, float_remainder(a, b, &v));
}

/* The remainder towards zero, and whether it must be corrected to one towards minus infinity. */
static kl_tensor remainder_and_sign(const struct view *v, kl_tensor a, kl_tensor b, kl_tensor *other)
{
    kl_tensor zero = const_like(v, 0), r = kl_fmod(a, b);
    kl_tensor signs = kl_ne(kl_lt(r, zero), kl_lt(b, zero));
    *other = kl_and(kl_ne(r, zero), signs);
    return r;
}

kl_tensor kl_mod(kl_tensor a, kl_tensor b)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !(t = division_begin("mod", a, b, &v)))
        return op_failed();
    kl_tensor other, r = remainder_and_sign(&v, a, b, &other);
    return compose_end(t, kl_where(other, kl_add(r, b), r));
}

kl_tensor kl_div_trunc(kl_tensor a, kl_tensor b)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !(t = division_begin("div_trunc", a, b, &v)))
        return op_failed();
    kl_tensor q = kl_div(a, b);
    return compose_end(t, dtype_is_float(v.dtype) ? kl_trunc(q) : q);
}

/* The float quotient is that of (a - remainder), a multiple of b, so that nothing is rounded up to it. */
kl_tensor kl_div_floor(kl_tensor a, kl_tensor b)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !(t = division_begin("div_floor", a, b, &v)))
        return op_failed();
    bool floats = dtype_is_float(v.dtype);
    kl_tensor other, r = remainder_and_sign(&v, a, b, &other);
    kl_tensor q = floats ? kl_round(kl_div(kl_sub(a, r), b)) : kl_div(a, b);
    q = kl_where(other, kl_sub(q, const_like(&v, 1)), q);
    if (floats) {
        kl_tensor none = kl_eq(b, const_like(&v, 0));
        q = kl_where(none, kl_detach(kl_div(a, b)), q);
    }
    return compose_end(t, q);
}

/* ---- bits ---- */

static struct thread *bits_begin(const char *op, kl_tensor a, struct view *v)
{
    struct thread *t = thread_self();
    if (!t || !describe(t, op, "the tensor", a, v))
        return NULL;
    if (v->dtype == KL_BOOL || dtype_is_float(v->dtype)) {
        fail(t, KL_ERR_TYPE, "%s: needs integers, got %s", op, dtype_name(v->dtype));
        return NULL;
    }
    return checked_begin(op);
}

static kl_dtype unsigned_of(kl_dtype dtype)
{
    return dtype_size(dtype) == 1 ? KL_U8 : dtype_size(dtype) == 2 ? KL_U16 : dtype_size(dtype) == 4 ? KL_U32 : KL_U64;
}

static kl_tensor shifted_right(const struct view *v, kl_tensor a, int by)
{
    return kl_shr(a, const_like(v, by));
}

/* Of u32: pairs of bits, then fours, then bytes, which a product adds up in the highest. */
static kl_tensor ones_of_word(const struct view *v, kl_tensor a)
{
    kl_tensor odd = const_like(v, 0x55555555), two = const_like(v, 0x33333333);
    kl_tensor four = const_like(v, 0x0f0f0f0f);
    a = kl_sub(a, kl_and(shifted_right(v, a, 1), odd));
    a = kl_add(kl_and(a, two), kl_and(shifted_right(v, a, 2), two));
    a = kl_and(kl_add(a, shifted_right(v, a, 4)), four);
    return shifted_right(v, kl_mul(a, const_like(v, 0x01010101)), 24);
}

/* Of any unsigned dtype, as u32. */
static kl_tensor count_ones(const struct view *v, kl_tensor a)
{
    struct view word = {.dtype = KL_U32, .device = v->device};
    kl_tensor low = ones_of_word(&word, v->dtype == KL_U32 ? a : kl_cast(a, KL_U32));
    if (v->dtype != KL_U64)
        return low;
    kl_tensor high = kl_cast(shifted_right(v, a, 32), KL_U32);
    return kl_add(low, ones_of_word(&word, high));
}

kl_tensor kl_popcount(kl_tensor a)
{
    struct view v;
    struct thread *t = bits_begin("popcount", a, &v);
    if (!t)
        return op_failed();
    kl_dtype own = (kl_dtype)v.dtype;
    v.dtype = unsigned_of(own);
    return compose_end(t, kl_cast(count_ones(&v, kl_cast(a, (kl_dtype)v.dtype)), own));
}

/* All bits below the highest one set, then counted. */
kl_tensor kl_clz(kl_tensor a)
{
    struct view v;
    struct thread *t = bits_begin("clz", a, &v);
    if (!t)
        return op_failed();
    kl_dtype own = (kl_dtype)v.dtype;
    v.dtype = unsigned_of(own);
    kl_tensor x = kl_cast(a, (kl_dtype)v.dtype);
    int width = 8 * (int)dtype_size(v.dtype);
    for (int by = 1; by < width; by *= 2)
        x = kl_or(x, shifted_right(&v, x, by));
    struct view word = {.dtype = KL_U32, .device = v.device};
    kl_tensor rest = kl_sub(const_like(&word, width), count_ones(&v, x));
    return compose_end(t, kl_cast(rest, own));
}

kl_tensor kl_shr_logical(kl_tensor a, kl_tensor b)
{
    struct view v;
    struct thread *t = bits_begin("shr_logical", a, &v);
    if (!t)
        return op_failed();
    struct view w;
    if (!describe(t, "shr_logical", "operand 2", b, &w))
        return compose_end(t, poison(t));
    if (v.dtype != w.dtype)
        return compose_end(t, refuse(t, KL_ERR_TYPE, "shr_logical: dtypes %s and %s differ",
                                     dtype_name(v.dtype), dtype_name(w.dtype)));
    kl_dtype bits = unsigned_of((kl_dtype)v.dtype);
    kl_tensor r = kl_shr(kl_cast(a, bits), kl_cast(b, bits));
    return compose_end(t, kl_cast(r, (kl_dtype)v.dtype));
}
