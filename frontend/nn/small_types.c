/* 8-bit floats and 4-bit integers as codes in bytes, by integer arithmetic on the bits of f32. */
#include "frontend/nn/compose.h"

enum { F32_MANTISSA = 23, F32_BIAS = 127 };
struct float8_format {
    int mantissa, bias;
    unsigned largest, infinity, nan; /* codes without sign; infinity 0: there is none */
    bool one_nan;                    /* the code of negative zero is the only NaN: FNUZ */
};
static const struct float8_format float8_formats[KL_FLOAT8_FORMATS] = {
    [KL_FLOAT8_E4M3FN] = {3, 7, 0x7e, 0, 0x7f, false},
    [KL_FLOAT8_E4M3FNUZ] = {3, 8, 0x7f, 0, 0x80, true},
    [KL_FLOAT8_E5M2] = {2, 15, 0x7b, 0x7c, 0x7f, false},
    [KL_FLOAT8_E5M2FNUZ] = {2, 16, 0x7f, 0, 0x80, true},
};

/* The format's properties; NULL: reported. */
static const struct float8_format *float8_format(struct thread *t, const char *op, kl_float8 format)
{
    if ((unsigned)format < KL_FLOAT8_FORMATS)
        return &float8_formats[format];
    fail(t, KL_ERR_ARGUMENT, "%s: there is no format %d", op, (int)format);
    return NULL;
}

static kl_tensor shift_right(kl_tensor bits, int count)
{
    return kl_shr_logical(bits, same_number(bits, count));
}

static kl_tensor shift_left(kl_tensor bits, int count)
{
    return kl_shl(bits, same_number(bits, count));
}

/* magnitude: f32 bits without sign -> the code's bits without sign, beyond `largest` where there is no such value. */
static kl_tensor rounded_code(kl_tensor magnitude, const struct float8_format *f)
{
    int dropped = F32_MANTISSA - f->mantissa;
    /* Normal values: add just below half of the last bit kept, and that bit itself, so that ties go to even. */
    kl_tensor last = kl_and(shift_right(magnitude, dropped), same_number(magnitude, 1));
    kl_tensor half = same_number(magnitude, (double)((1u << (dropped - 1)) - 1));
    kl_tensor normal = shift_right(kl_add(magnitude, kl_add(half, last)), dropped);
    normal = kl_sub(normal, same_number(normal, (double)((F32_BIAS - f->bias) << f->mantissa)));
    /* Subnormal values are multiples of the least one, 2^(1 - bias - mantissa). */
    kl_tensor value = kl_bitcast(magnitude, KL_F32);
    kl_tensor multiple = kl_round(kl_mul(value, same_number(value, ldexp(1, f->bias + f->mantissa - 1))));
    kl_tensor min_normal = same_number(value, ldexp(1, 1 - f->bias));
    return kl_where(kl_lt(value, min_normal), kl_cast(multiple, KL_U32), normal);
}

kl_tensor kl_float8_encode(kl_tensor a, kl_float8 format, bool saturate)
{
    static const char op[] = "float8_encode";
    struct thread *t = thread_self();
    struct view v;
    if (!t || !describe(t, op, "the tensor", a, &v))
        return op_failed();
    if (!dtype_is_float(v.dtype))
        return refuse(t, KL_ERR_TYPE, "%s: the tensor is %s, not floats", op, dtype_name(v.dtype));
    const struct float8_format *f = float8_format(t, op, format);
    if (!f || !(t = checked_begin(op)))
        return op_failed();
    kl_tensor bits = kl_bitcast(v.dtype == KL_F32 ? a : kl_cast(a, KL_F32), KL_U32);
    kl_tensor sign = kl_and(shift_right(bits, 24), same_number(bits, 0x80));
    kl_tensor magnitude = kl_and(bits, same_number(bits, 0x7fffffff));
    kl_tensor infinite = same_number(bits, 0x7f800000);
    kl_tensor code = rounded_code(magnitude, f);
    kl_tensor beyond = kl_gt(code, same_number(code, f->largest));
    unsigned other = saturate ? f->largest : f->infinity ? f->infinity : f->nan;
    code = kl_where(beyond, same_number(code, other), code);
    code = kl_where(kl_gt(magnitude, infinite), same_number(code, f->nan), code);
    kl_tensor signed_code = kl_or(code, sign);
    if (f->one_nan) /* zero has no sign, and the code of negative zero is NaN */
        signed_code = kl_where(kl_eq(code, same_number(code, 0)), code, signed_code);
    return compose_end(t, kl_cast(signed_code, KL_U8));
}

kl_tensor kl_float8_decode(kl_tensor codes, kl_float8 format, kl_dtype dtype)
{
    static const char op[] = "float8_decode";
    struct thread *t = thread_self();
    struct view v;
    if (!t || !describe(t, op, "the tensor of codes", codes, &v))
        return op_failed();
    if (v.dtype != KL_U8 || dtype >= KL_DTYPE_COUNT || !dtype_is_float((unsigned)dtype))
        return refuse(t, KL_ERR_TYPE, "%s: codes are u8 and the result floats, not %s and %s", op,
                      dtype_name(v.dtype), dtype < KL_DTYPE_COUNT ? dtype_name((unsigned)dtype) : "no dtype");
    const struct float8_format *f = float8_format(t, op, format);
    if (!f || !(t = checked_begin(op)))
        return op_failed();
    kl_tensor code = kl_cast(codes, KL_U32), magnitude = kl_and(code, same_number(code, 0x7f));
    kl_tensor sign = shift_left(kl_and(code, same_number(code, 0x80)), 24);
    kl_tensor moved = shift_left(magnitude, F32_MANTISSA - f->mantissa);
    kl_tensor normal = kl_add(moved, same_number(code, (double)(F32_BIAS - f->bias) * (1 << F32_MANTISSA)));
    kl_tensor multiple = kl_cast(magnitude, KL_F32);
    kl_tensor small = kl_mul(multiple, same_number(multiple, ldexp(1, 1 - f->bias - f->mantissa)));
    kl_tensor is_small = kl_lt(magnitude, same_number(magnitude, 1 << f->mantissa));
    kl_tensor bits = kl_where(is_small, kl_bitcast(small, KL_U32), normal);
    kl_tensor nan = same_number(code, 0x7fc00000);
    if (f->infinity)
        bits = kl_where(kl_eq(magnitude, same_number(code, f->infinity)), same_number(code, 0x7f800000), bits);
    if (!f->one_nan)
        bits = kl_where(kl_gt(magnitude, same_number(code, f->infinity ? f->infinity : f->largest)), nan, bits);
    bits = kl_or(bits, sign);
    if (f->one_nan)
        bits = kl_where(kl_eq(code, same_number(code, f->nan)), nan, bits);
    kl_tensor r = kl_bitcast(bits, KL_F32);
    return compose_end(t, dtype == KL_F32 ? r : kl_cast(r, dtype));
}

/* ---- 4-bit integers ---- */

kl_tensor kl_int4_pack(kl_tensor a)
{
    static const char op[] = "int4_pack";
    struct thread *t = thread_self();
    struct view v;
    char text[SHAPE_TEXT];
    if (!t || !describe(t, op, "the tensor", a, &v))
        return op_failed();
    if (v.dtype != KL_U8 && v.dtype != KL_I8)
        return refuse(t, KL_ERR_TYPE, "%s: the tensor is %s, not i8 or u8", op, dtype_name(v.dtype));
    if (!v.shape.rank || v.shape.dim[v.shape.rank - 1] % 2)
        return refuse(t, KL_ERR_SHAPE, "%s: the last axis of %s is not even", op,
                      shape_text(&v.shape, text, sizeof text));
    if (!(t = checked_begin(op)))
        return op_failed();
    int64_t start[KL_MAX_RANK] = {0}, step[KL_MAX_RANK];
    for (uint32_t i = 0; i < v.shape.rank; i++)
        step[i] = i + 1 == v.shape.rank ? 2 : 1;
    kl_tensor byte = v.dtype == KL_U8 ? a : kl_bitcast(a, KL_U8);
    kl_tensor low = kl_and(kl_slice(byte, start, v.shape.dim, step), same_number(byte, 15));
    start[v.shape.rank - 1] = v.shape.dim[v.shape.rank - 1] ? 1 : 0;
    kl_tensor high = shift_left(kl_slice(byte, start, v.shape.dim, step), 4);
    return compose_end(t, kl_or(low, high));
}

kl_tensor kl_int4_unpack(kl_tensor codes, kl_dtype dtype)
{
    static const char op[] = "int4_unpack";
    struct thread *t = thread_self();
    struct view v;
    if (!t || !describe(t, op, "the tensor of codes", codes, &v))
        return op_failed();
    if (v.dtype != KL_U8 || (dtype != KL_U8 && dtype != KL_I8))
        return refuse(t, KL_ERR_TYPE, "%s: codes are u8 and the result i8 or u8, not %s and %s", op,
                      dtype_name(v.dtype), dtype < KL_DTYPE_COUNT ? dtype_name((unsigned)dtype) : "no dtype");
    struct shape s = v.shape;
    if (!s.rank || s.rank == KL_MAX_RANK)
        return refuse(t, KL_ERR_SHAPE, "%s: %u axes; 1 to %d are supported", op, s.rank, KL_MAX_RANK - 1);
    if (__builtin_mul_overflow(s.dim[s.rank - 1], 2, &s.dim[s.rank - 1]))
        return refuse(t, KL_ERR_SHAPE, "%s: the result is too large", op);
    if (!shape_of(t, op, (int)s.rank, s.dim, &s) || !(t = checked_begin(op)))
        return op_failed();
    kl_tensor low = shift_left(codes, 4), high = kl_and(codes, same_number(codes, 0xf0));
    kl_tensor both = reshape_to(op, kl_stack(2, (kl_tensor[]){low, high}, -1), &s);
    if (dtype == KL_U8)
        return compose_end(t, shift_right(both, 4));
    kl_tensor value = kl_bitcast(both, KL_I8); /* the arithmetic shift copies the sign */
    return compose_end(t, kl_shr(value, same_number(value, 4)));
}
