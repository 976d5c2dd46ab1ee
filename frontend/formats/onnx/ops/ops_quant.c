/* Operators of numbers stored as small integers and floats. */
#include "frontend/formats/onnx/onnx.h"
#include <math.h>

/* ---- casts to element types that Kiln holds in wider dtypes ---- */

static bool is_small_integer(int32_t element)
{
    return element == ONNX_INT4 || element == ONNX_UINT4 || element == ONNX_INT2 || element == ONNX_UINT2;
}

static kl_float8 float8_of(int32_t element)
{
    return element == ONNX_FLOAT8E4M3FN ? KL_FLOAT8_E4M3FN
           : element == ONNX_FLOAT8E4M3FNUZ ? KL_FLOAT8_E4M3FNUZ
           : element == ONNX_FLOAT8E5M2 ? KL_FLOAT8_E5M2 : KL_FLOAT8_E5M2FNUZ;
}

/* The low bits of integers, or of floats rounded toward zero, as ONNX's own functions do; ONNX leaves the results of
 * floats out of range open. */
static kl_tensor as_small_integer(struct node *n, kl_tensor a, int32_t element)
{
    kl_dtype to = onnx_dtype(element);
    if (onnx_is_float(kl_dtype_of(a)))
        a = kl_cast(a, KL_I32);
    kl_tensor upper = onnx_number(n, to, 8 - onnx_bits(element));
    return kl_shr(kl_shl(kl_cast(a, to), upper), upper); /* i8: copies the sign */
}

/* The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, of two the one with an even mantissa; what is beyond
 * is 6, NaN 0.  Halves, ones and twos are the steps below 2, 4 and 8 (OCP Microscaling Formats, FP4). */
static kl_tensor as_float4(struct node *n, kl_tensor a)
{
    a = kl_cast(a, KL_F32);
    kl_tensor six = onnx_number(n, KL_F32, 6), size = kl_minimum(kl_abs(a), six), two = onnx_number(n, KL_F32, 2);
    kl_tensor step = kl_where(kl_lt(size, onnx_number(n, KL_F32, 4)), onnx_number(n, KL_F32, 1), two);
    step = kl_where(kl_lt(size, two), onnx_number(n, KL_F32, 0.5), step);
    kl_tensor r = kl_copysign(kl_mul(kl_round(kl_div(size, step)), step), a);
    return kl_cast(kl_where(kl_is_nan(a), onnx_number(n, KL_F32, 0), r), KL_F16);
}

/* The bits of 2^(code - 127) as f32, of codes u32 below 255; 2^-127 is subnormal. */
static kl_tensor power_bits(struct node *n, kl_tensor code)
{
    kl_tensor bits = kl_shl(code, onnx_number(n, KL_U32, 23)), zero = onnx_number(n, KL_U32, 0);
    return kl_where(kl_eq(code, zero), onnx_number(n, KL_U32, 0x400000), bits);
}

/* Floats rounded to powers of two, 2^-127 to 2^127, as f32; the sign is dropped.  Attribute round_mode: up, down or
 * nearest.  What is too large, or 0, is the largest, or smallest, or without `saturate` NaN. */
static kl_tensor as_power(struct node *n, kl_tensor a, bool saturate)
{
    bool up = onnx_attr_is(n, "round_mode", "up", true), nearest = onnx_attr_is(n, "round_mode", "nearest", false);
    if (!up && !nearest && !onnx_attr_is(n, "round_mode", "down", false))
        return onnx_fails(n, KL_ERR_ARGUMENT, "its round_mode is neither up, down nor nearest"), kl_none;
    kl_tensor x = kl_abs(kl_cast(a, KL_F32)), u = kl_bitcast(x, KL_U32), zero = onnx_number(n, KL_U32, 0);
    kl_tensor exponent = kl_shr(u, onnx_number(n, KL_U32, 23));
    kl_tensor fraction = kl_and(u, onnx_number(n, KL_U32, 0x7fffff)), subnormal = kl_eq(exponent, zero);
    /* the fraction from which on the next power is taken; of subnormals 2^-127 has the fraction 0x400000 */
    kl_tensor limit = kl_where(subnormal, onnx_number(n, KL_U32, up ? 0x400001 : 0x600000),
                               onnx_number(n, KL_U32, up ? 1 : 0x400000));
    if (up || nearest)
        exponent = kl_add(exponent, kl_cast(kl_ge(fraction, limit), KL_U32));
    kl_tensor last = onnx_number(n, KL_U32, 254), r = kl_bitcast(power_bits(n, kl_minimum(exponent, last)), KL_F32);
    kl_tensor lost = saturate ? kl_is_nan(x) : kl_or(kl_gt(exponent, last), kl_eq(u, zero));
    return kl_where(lost, onnx_number(n, KL_F32, NAN), r);
}

/* Rounds a to the values of a widened element type, in the dtype that holds it. */
static kl_tensor as_element(struct node *n, kl_tensor a, int32_t element, bool saturate)
{
    if (is_small_integer(element))
        return as_small_integer(n, a, element);
    if (!onnx_is_float(kl_dtype_of(a)))
        a = kl_cast(a, KL_F32);
    if (element == ONNX_FLOAT4E2M1)
        return as_float4(n, a);
    if (element == ONNX_FLOAT8E8M0)
        return as_power(n, a, saturate);
    return kl_float8_decode(kl_float8_encode(a, float8_of(element), saturate), float8_of(element), KL_F16);
}

static bool give_cast(struct node *n, int32_t to)
{
    kl_tensor a = onnx_in(n, 0);
    kl_dtype d = onnx_dtype(to);
    if (onnx_element(n, 0) == ONNX_STRING)
        return to == ONNX_STRING ? onnx_give(n, 0, a)
               : onnx_fails(n, KL_ERR_TYPE, "there is no cast from string to %s", onnx_dtype_name(to));
    if (d == KL_DTYPE_COUNT)
        return onnx_fails(n, KL_ERR_TYPE, "there is no cast to %s", onnx_dtype_name(to));
    if (onnx_is_widened(to))
        return onnx_give_element(n, 0, as_element(n, a, to, onnx_attr_int(n, "saturate", 1)), to);
    return onnx_give(n, 0, kl_dtype_of(a) == d ? a : kl_cast(a, d));
}

bool onnx_cast(struct node *n) { return give_cast(n, onnx_attr_int32(n, "to", 0)); }

bool onnx_cast_like(struct node *n)
{
    struct type t;
    if (onnx_is_widened(onnx_element(n, 1)))
        return give_cast(n, onnx_element(n, 1));
    if (!onnx_type(n, 1, &t))
        return false;
    kl_tensor a = onnx_in(n, 0);
    return onnx_give(n, 0, kl_dtype_of(a) == t.dtype ? a : kl_cast(a, t.dtype));
}

/* ---- BitCast ---- */

/* The codes of a widened element type, u8. */
static kl_tensor codes_of(struct node *n, kl_tensor a, int32_t element)
{
    if (is_small_integer(element))
        return kl_and(kl_bitcast(a, KL_U8), onnx_number(n, KL_U8, (1 << onnx_bits(element)) - 1));
    if (element == ONNX_FLOAT8E8M0) { /* the exponent; NaN's is 255, that of 2^-127 0 */
        kl_tensor bits = kl_bitcast(kl_abs(a), KL_U32);
        return kl_cast(kl_shr(bits, onnx_number(n, KL_U32, 23)), KL_U8);
    }
    if (element != ONNX_FLOAT4E2M1)
        return kl_float8_encode(a, float8_of(element), false);
    kl_tensor bits = kl_bitcast(a, KL_U16); /* of f16: 0.5 is 0x3800, with the code 1; 6 is 0x4600, with 7 */
    kl_tensor size = kl_and(bits, onnx_number(n, KL_U16, 0x7fff)), zero = onnx_number(n, KL_U16, 0);
    kl_tensor half = onnx_number(n, KL_U16, 0x3800);
    kl_tensor code = kl_sub(kl_shr(size, onnx_number(n, KL_U16, 9)), onnx_number(n, KL_U16, 28));
    code = kl_where(kl_eq(size, half), onnx_number(n, KL_U16, 1), code);
    code = kl_where(kl_eq(size, zero), zero, code);
    kl_tensor sign = kl_shl(kl_shr(bits, onnx_number(n, KL_U16, 15)), onnx_number(n, KL_U16, 3));
    return kl_cast(kl_or(code, sign), KL_U8);
}

/* The values of codes u8, in the dtype that holds the element type. */
static kl_tensor values_of_codes(struct node *n, kl_tensor codes, int32_t element)
{
    if (is_small_integer(element))
        return as_small_integer(n, codes, element);
    if (element == ONNX_FLOAT8E8M0) {
        kl_tensor code = kl_cast(codes, KL_U32), nan = kl_eq(code, onnx_number(n, KL_U32, 255));
        return kl_bitcast(kl_where(nan, onnx_number(n, KL_U32, 0x7fc00000), power_bits(n, code)), KL_F32);
    }
    if (element != ONNX_FLOAT4E2M1)
        return kl_float8_decode(codes, float8_of(element), KL_F16);
    kl_tensor code = kl_cast(kl_and(codes, onnx_number(n, KL_U8, 7)), KL_U16), zero = onnx_number(n, KL_U16, 0);
    kl_tensor bits = kl_shl(kl_add(code, onnx_number(n, KL_U16, 28)), onnx_number(n, KL_U16, 9));
    bits = kl_where(kl_eq(code, onnx_number(n, KL_U16, 1)), onnx_number(n, KL_U16, 0x3800), bits);
    bits = kl_where(kl_eq(code, zero), zero, bits);
    kl_tensor sign = kl_shr(kl_and(codes, onnx_number(n, KL_U8, 8)), onnx_number(n, KL_U8, 3));
    return kl_bitcast(kl_or(bits, kl_shl(kl_cast(sign, KL_U16), onnx_number(n, KL_U16, 15))), KL_F16);
}

bool onnx_bit_cast(struct node *n)
{
    int32_t from = onnx_element(n, 0), to = onnx_attr_int32(n, "to", 0);
    kl_tensor a = onnx_in(n, 0);
    kl_dtype held = kl_dtype_of(a), d = onnx_dtype(to);
    if (d == KL_DTYPE_COUNT)
        return onnx_fails(n, KL_ERR_TYPE, "there is no bitcast to %s", onnx_dtype_name(to));
    int have = onnx_is_widened(from) ? onnx_bits(from) : (int)kl_dtype_size(held) * 8;
    int want = onnx_is_widened(to) ? onnx_bits(to) : (int)kl_dtype_size(d) * 8;
    if (have != want)
        return onnx_fails(n, KL_ERR_TYPE, "elements of %d bits as %s, which has %d", have, onnx_dtype_name(to), want);
    if (onnx_is_widened(from) && from != to)
        a = codes_of(n, a, from);
    if (!onnx_is_widened(to))
        return onnx_give(n, 0, d == KL_BOOL ? kl_ne(kl_cast(a, KL_U8), onnx_number(n, KL_U8, 0))
                               : kl_dtype_of(a) == KL_BOOL ? kl_cast(a, d) : kl_bitcast(a, d));
    if (from != to)
        a = values_of_codes(n, kl_dtype_of(a) == KL_U8 ? a : kl_bitcast(a, KL_U8), to);
    return onnx_give_element(n, 0, a, to);
}

/* ---- quantization ---- */

/* A scale or zero point for kl_quantize: one number, or one for each element of an axis. */
static kl_tensor quant_operand(struct node *n, uint32_t i)
{
    struct type t;
    if (!onnx_has(n, i) || !onnx_type(n, i, &t))
        return kl_none;
    kl_tensor a = onnx_in(n, i);
    return t.rank == 1 && t.dims[0] == 1 ? kl_reshape(a, 0, NULL) : a;
}

/* Operand i, a scale or zero point, in a shape that broadcasts to x: one number, one for each element of `axis`, or one
 * for each `block` of elements of it.  kl_none: it has none, or that is reported. */
static kl_tensor quant_spread(struct node *n, uint32_t i, const struct type *x, int64_t block)
{
    struct type t;
    int axis;
    if (!onnx_has(n, i) || !onnx_type(n, i, &t))
        return kl_none;
    if (!block && t.rank <= 1 && (t.rank == 0 || t.dims[0] == 1))
        return kl_reshape(onnx_in(n, i), 0, NULL);
    if (!onnx_axis(n, onnx_attr_int(n, "axis", 1), x->rank, &axis))
        return kl_none;
    int64_t dims[KL_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1}, blocks = x->rank == t.rank ? t.dims[axis] : -1;
    if (!block && t.rank == 1) {
        dims[axis] = t.dims[0];
        return kl_reshape(onnx_in(n, i), x->rank, dims);
    }
    if (block < 1 || blocks < 0 || x->dims[axis] > sat_mul(blocks, block) ||
        x->dims[axis] <= sat_mul(blocks - 1, block))
        return onnx_fails(n, KL_ERR_SHAPE, "operand %u does not fit blocks of %lld elements of axis %d", i,
                          (long long)block, axis), kl_none;
    return kl_narrow(kl_repeat(onnx_in(n, i), axis, block), axis, 0, x->dims[axis]);
}

/* The element type of QuantizeLinear's result, as ONNX numbers them. */
static int32_t quantized_element(const struct node *n)
{
    static const int32_t of_dtype[KL_DTYPE_COUNT] = {
        [KL_U8] = ONNX_UINT8, [KL_I8] = ONNX_INT8, [KL_U16] = ONNX_UINT16, [KL_I16] = ONNX_INT16};
    int32_t element = onnx_attr_int32(n, "output_dtype", 0);
    if (element || !onnx_has(n, 2))
        return element ? element : ONNX_UINT8;
    const struct value *zero = onnx_value(n, 2);
    if (onnx_is_widened(onnx_element(n, 2)))
        return onnx_element(n, 2);
    kl_dtype d = zero->t.id && !n->run->folding ? kl_dtype_of(zero->t) : zero->known ? zero->known->dtype : KL_U8;
    return d < KL_DTYPE_COUNT ? of_dtype[d] : 0;
}

/* v, floats divided by the scale, as integers of `low` to `high`. */
static kl_tensor rounded_to(struct node *n, kl_tensor v, kl_tensor zero, kl_dtype d, double low, double high)
{
    v = kl_round(v);
    if (zero.id)
        v = kl_add(v, kl_cast(zero, KL_F32));
    return kl_cast(kl_minimum(kl_maximum(v, onnx_number(n, KL_F32, low)), onnx_number(n, KL_F32, high)), d);
}

bool onnx_quantize_linear(struct node *n)
{
    struct type t;
    int64_t block = onnx_attr_int(n, "block_size", 0);
    int32_t element = quantized_element(n);
    kl_dtype d = onnx_dtype(element);
    if (!onnx_type(n, 0, &t))
        return false;
    kl_tensor x = onnx_in(n, 0);
    if (!onnx_is_float(t.dtype))
        x = kl_cast(x, KL_F32);
    if ((d == KL_U8 || d == KL_I8) && !onnx_is_widened(element) && !block)
        return onnx_give(n, 0, kl_quantize(x, quant_operand(n, 1), quant_operand(n, 2), d,
                                           onnx_attr_int32(n, "axis", 1)));
    kl_tensor scale = quant_spread(n, 1, &t, block), zero = quant_spread(n, 2, &t, block);
    if (!scale.id || (onnx_has(n, 2) && !zero.id))
        return false;
    kl_tensor v = kl_div(kl_cast(x, KL_F32), kl_cast(scale, KL_F32));
    if (d == KL_F16)
        return onnx_give_element(n, 0, as_element(n, v, element, onnx_attr_int(n, "saturate", 1)), element);
    switch (element) {
    case ONNX_INT2: v = rounded_to(n, v, zero, d, -2, 1); break;
    case ONNX_UINT2: v = rounded_to(n, v, zero, d, 0, 3); break;
    case ONNX_INT4: v = rounded_to(n, v, zero, d, -8, 7); break;
    case ONNX_UINT4: v = rounded_to(n, v, zero, d, 0, 15); break;
    case ONNX_INT8: v = rounded_to(n, v, zero, d, -128, 127); break;
    case ONNX_UINT8: v = rounded_to(n, v, zero, d, 0, 255); break;
    case ONNX_INT16: v = rounded_to(n, v, zero, d, -32768, 32767); break;
    case ONNX_UINT16: v = rounded_to(n, v, zero, d, 0, 65535); break;
    default: return onnx_fails(n, KL_ERR_TYPE, "there is no quantization to %s", onnx_dtype_name(element));
    }
    return onnx_give_element(n, 0, v, element);
}

bool onnx_dequantize_linear(struct node *n)
{
    struct type t, s;
    int64_t block = onnx_attr_int(n, "block_size", 0);
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &s))
        return false;
    kl_dtype to = onnx_attr(n, "output_dtype") ? onnx_dtype(onnx_attr_int32(n, "output_dtype", 0)) : s.dtype;
    if (!onnx_is_float(to))
        return onnx_fails(n, KL_ERR_TYPE, "its output_dtype is not a float");
    kl_tensor q = onnx_in(n, 0);
    if ((t.dtype == KL_U8 || t.dtype == KL_I8) && !block && to == s.dtype)
        return onnx_give(n, 0, kl_dequantize(q, quant_operand(n, 1), quant_operand(n, 2),
                                             onnx_attr_int32(n, "axis", 1)));
    kl_tensor scale = quant_spread(n, 1, &t, block), zero = quant_spread(n, 2, &t, block);
    if (!scale.id || (onnx_has(n, 2) && !zero.id))
        return false;
    kl_dtype wide = onnx_compute_dtype(to == KL_F64 ? KL_F64 : s.dtype);
    if (zero.id && !onnx_is_float(t.dtype)) /* the zero point of floats is 0 */
        q = kl_sub(kl_cast(q, KL_I32), kl_cast(zero, KL_I32));
    return onnx_give_as(n, 0, kl_mul(kl_cast(q, wide), kl_cast(scale, wide)), to);
}

kl_tensor onnx_range_scale(struct node *n, kl_tensor x, kl_tensor *low)
{
    kl_tensor zero = onnx_number(n, KL_F32, 0), high = kl_maximum(kl_max(x, 0, NULL, false), zero);
    *low = kl_minimum(kl_min(x, 0, NULL, false), zero);
    return kl_div(kl_sub(high, *low), onnx_number(n, KL_F32, 255));
}

kl_tensor onnx_range_quantize(struct node *n, kl_tensor x, kl_tensor low, kl_tensor scale, kl_tensor *point)
{
    kl_tensor zero = onnx_number(n, KL_F32, 0), max = onnx_number(n, KL_F32, 255);
    *point = kl_cast(kl_round(kl_minimum(kl_maximum(kl_div(kl_sub(zero, low), scale), zero), max)), KL_U8);
    return kl_quantize(x, scale, *point, KL_U8, 0);
}

bool onnx_dynamic_quantize_linear(struct node *n)
{
    kl_tensor x = onnx_in(n, 0), low, point, scale = onnx_range_scale(n, x, &low);
    kl_tensor q = onnx_range_quantize(n, x, low, scale, &point);
    return onnx_give(n, 0, q) && onnx_give(n, 1, scale) && onnx_give(n, 2, point);
}
