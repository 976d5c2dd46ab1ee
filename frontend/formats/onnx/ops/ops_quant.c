/* Operators of numbers stored as small integers. */
#include "frontend/formats/onnx/onnx.h"

/* A scale or zero point of one number, or one an element of an axis, as kl_quantize takes it. */
static kl_tensor quant_operand(struct node *n, uint32_t i)
{
    struct type t;
    if (!onnx_has(n, i) || !onnx_type(n, i, &t))
        return kl_none;
    kl_tensor a = onnx_in(n, i);
    return t.rank == 1 && t.dims[0] == 1 ? kl_reshape(a, 0, NULL) : a;
}

bool onnx_quantize_linear(struct node *n)
{
    kl_tensor x = onnx_in(n, 0), scale = quant_operand(n, 1), zero = quant_operand(n, 2);
    struct type t;
    int axis = (int)onnx_attr_int(n, "axis", 1);
    kl_dtype d = zero.id ? kl_dtype_of(zero) : KL_U8;
    if (!onnx_type(n, 0, &t))
        return false;
    if (onnx_attr(n, "output_dtype") && onnx_attr_int(n, "output_dtype", 0))
        d = onnx_dtype((int32_t)onnx_attr_int(n, "output_dtype", 0));
    if ((d != KL_U8 && d != KL_I8) || onnx_attr_int(n, "block_size", 0))
        return onnx_fails(n, KL_ERR_TYPE, "only int8 and uint8, without blocks, are supported");
    if (t.dtype == KL_I32)
        x = kl_cast(x, KL_F32);
    return onnx_give(n, 0, kl_quantize(x, scale, zero, d, axis));
}

bool onnx_dequantize_linear(struct node *n)
{
    kl_tensor q = onnx_in(n, 0), scale = quant_operand(n, 1), zero = quant_operand(n, 2);
    struct type t, s = onnx_type_of(scale);
    int axis;
    if (!onnx_type(n, 0, &t) || s.rank < 0)
        return false;
    if (onnx_attr_int(n, "block_size", 0))
        return onnx_fails(n, KL_ERR_TYPE, "blocks are not supported");
    if (t.dtype == KL_U8 || t.dtype == KL_I8)
        return onnx_give(n, 0, kl_dequantize(q, scale, zero, (int)onnx_attr_int(n, "axis", 1)));
    if (s.rank == 1) {
        int64_t dims[KL_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
        if (!onnx_axis(n, onnx_attr_int(n, "axis", 1), t.rank, &axis))
            return false;
        dims[axis] = s.dims[0];
        scale = kl_reshape(scale, t.rank, dims);
        zero = zero.id ? kl_reshape(zero, t.rank, dims) : zero;
    }
    if (zero.id)
        q = kl_sub(kl_cast(q, KL_I32), kl_cast(zero, KL_I32));
    return onnx_give(n, 0, kl_mul(kl_cast(q, s.dtype), scale));
}

bool onnx_dynamic_quantize_linear(struct node *n)
{
    kl_tensor x = onnx_in(n, 0), zero = onnx_number(n, KL_F32, 0), most = onnx_number(n, KL_F32, 255);
    kl_tensor high = kl_max(kl_reduce_max(x, 0, NULL, false), zero);
    kl_tensor low = kl_min(kl_reduce_min(x, 0, NULL, false), zero);
    kl_tensor scale = kl_div(kl_sub(high, low), most);
    kl_tensor point = kl_round(kl_min(kl_max(kl_div(kl_sub(zero, low), scale), zero), most));
    kl_tensor byte = kl_cast(point, KL_U8);
    return onnx_give(n, 0, kl_quantize(x, scale, byte, KL_U8, 0)) && onnx_give(n, 1, scale) && onnx_give(n, 2, byte);
}
