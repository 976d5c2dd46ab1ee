/* Operators of numbers stored as small integers and 8-bit floats. */
#include "frontend/formats/onnx/onnx.h"

/* ---- casts to element types that Kiln holds in wider dtypes ---- */

static bool is_four_bits(int32_t element)
{
    return element == ONNX_INT4 || element == ONNX_UINT4;
}

static kl_float8 float8_of(int32_t element)
{
    return element == ONNX_FLOAT8E4M3FN ? KL_FLOAT8_E4M3FN
           : element == ONNX_FLOAT8E4M3FNUZ ? KL_FLOAT8_E4M3FNUZ
           : element == ONNX_FLOAT8E5M2 ? KL_FLOAT8_E5M2 : KL_FLOAT8_E5M2FNUZ;
}

/* a in -8..7 or 0..15: floats rounded to even and clipped, of integers the low 4 bits. */
static kl_tensor as_four_bits(struct node *n, kl_tensor a, bool with_sign)
{
    kl_dtype from = kl_dtype_of(a), to = with_sign ? KL_I8 : KL_U8;
    if (onnx_is_float(from)) {
        kl_tensor low = onnx_number(n, from, with_sign ? -8 : 0), high = onnx_number(n, from, with_sign ? 7 : 15);
        return kl_cast(kl_round(kl_minimum(kl_maximum(a, low), high)), to);
    }
    kl_tensor four = onnx_number(n, to, 4);
    return kl_shr(kl_shl(kl_cast(a, to), four), four); /* i8: copies the sign */
}

/* Rounds a to the values of a widened element type, in the dtype that holds it. */
static kl_tensor as_element(struct node *n, kl_tensor a, int32_t element, bool saturate)
{
    if (is_four_bits(element))
        return as_four_bits(n, a, onnx_dtype(element) == KL_I8);
    if (!onnx_is_float(kl_dtype_of(a)))
        a = kl_cast(a, KL_F32);
    return kl_float8_decode(kl_float8_encode(a, float8_of(element), saturate), float8_of(element), KL_F16);
}

static bool give_cast(struct node *n, int32_t to)
{
    kl_tensor a = onnx_in(n, 0);
    kl_dtype d = onnx_dtype(to);
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
    kl_tensor q = onnx_in(n, 0);
    if ((t.dtype == KL_U8 || t.dtype == KL_I8) && !block)
        return onnx_give(n, 0, kl_dequantize(q, quant_operand(n, 1), quant_operand(n, 2),
                                             onnx_attr_int32(n, "axis", 1)));
    kl_tensor scale = quant_spread(n, 1, &t, block), zero = quant_spread(n, 2, &t, block);
    if (!scale.id || (onnx_has(n, 2) && !zero.id))
        return false;
    if (onnx_is_float(t.dtype)) /* 8-bit floats, whose zero point is 0 */
        return onnx_give(n, 0, kl_cast(kl_mul(kl_cast(q, KL_F32), kl_cast(scale, KL_F32)), s.dtype));
    if (zero.id)
        q = kl_sub(kl_cast(q, KL_I32), kl_cast(zero, KL_I32));
    kl_dtype wide = onnx_compute_dtype(s.dtype);
    return onnx_give_as(n, 0, kl_mul(kl_cast(q, wide), kl_cast(scale, wide)), s.dtype);
}

bool onnx_dynamic_quantize_linear(struct node *n)
{
    kl_tensor x = onnx_in(n, 0), zero = onnx_number(n, KL_F32, 0), max = onnx_number(n, KL_F32, 255);
    kl_tensor high = kl_maximum(kl_max(x, 0, NULL, false), zero);
    kl_tensor low = kl_minimum(kl_min(x, 0, NULL, false), zero);
    kl_tensor scale = kl_div(kl_sub(high, low), max);
    kl_tensor point = kl_round(kl_minimum(kl_maximum(kl_div(kl_sub(zero, low), scale), zero), max));
    kl_tensor byte = kl_cast(point, KL_U8);
    return onnx_give(n, 0, kl_quantize(x, scale, byte, KL_U8, 0)) && onnx_give(n, 1, scale) && onnx_give(n, 2, byte);
}
