/* quantize and dequantize: expands the scale and the zero point to the tensor's shape, then records one node. */
#include "frontend/frontend.h"

/* A number for all of s or for each slice of an axis of s, as a view of that shape; kl_none on error. */
static kl_tensor ops_quant_spread(struct thread *t, const char *op, const char *what, kl_tensor p,
                        const struct shape *s, int axis)
{
    struct view v;
    uint32_t at = 0;
    char text[SHAPE_TEXT], whole[SHAPE_TEXT];
    if (!describe(t, op, what, p, &v) || (v.shape.rank && !axis_of(t, op, s, axis, &at)))
        return kl_none;
    if (v.shape.rank > 1 || (v.shape.rank && v.shape.dim[0] != s->dim[at])) {
        fail(t, KL_ERR_SHAPE, "%s: %s has shape %s, not [] or that of axis %d of %s", op, what,
             shape_text(&v.shape, text, sizeof text), axis, shape_text(s, whole, sizeof whole));
        return kl_none;
    }
    struct shape aligned = {.rank = s->rank};
    for (uint32_t i = 0; i < s->rank; i++)
        aligned.dim[i] = v.shape.rank && i == at ? s->dim[i] : 1;
    kl_tensor r = shape_equal(&aligned, &v.shape) ? p : reshape_to(op, p, &aligned);
    return shape_equal(&aligned, s) ? r : broadcast_to(op, r, &aligned, s);
}

static kl_tensor quant_op(const char *op, enum op kind, kl_tensor a, kl_tensor scale, kl_tensor zero,
                       kl_dtype dtype, int axis)
{
    struct thread *t = checked_begin(op);
    struct view v;
    if (!t)
        return op_failed();
    if (!describe(t, op, "the tensor", a, &v))
        return compose_end(t, poison(t));
    if (kind == OP_quantize && dtype == KL_QUANT)
        dtype = kl_device_quant_scheme(v.device).value;
    struct view number = {.dtype = kind == OP_quantize ? (unsigned)dtype : v.dtype, .device = v.device};
    if (number.dtype != KL_I8 && number.dtype != KL_U8)
        return compose_end(t, refuse(t, KL_ERR_TYPE, "%s: the integers are i8 or u8, not %s", op,
                                     number.dtype < KL_DTYPE_COUNT ? dtype_name(number.dtype)
                                         : "a dtype that does not exist"));
    struct call c = {.op = op, .proto.op = (uint16_t)kind, .in[0] = a};
    c.in[1] = ops_quant_spread(t, op, "the scale", scale, &v.shape, axis);
    if (c.in[1].id)
        c.in[2] = ops_quant_spread(t, op, "the zero point", zero.id ? zero : const_like(&number, 0), &v.shape, axis);
    struct view z;
    if (!c.in[1].id || !c.in[2].id || !describe(t, op, "the zero point", c.in[2], &z))
        return compose_end(t, poison(t));
    if (z.dtype != number.dtype)
        return compose_end(t, refuse(t, KL_ERR_TYPE, "%s: the zero point is %s, the integers are %s", op,
                                     dtype_name(z.dtype), dtype_name(number.dtype)));
    return compose_end(t, record(&c));
}

kl_tensor kl_quantize(kl_tensor a, kl_tensor scale, kl_tensor zero_point, kl_dtype dtype, int axis)
{
    return quant_op("quantize", OP_quantize, a, scale, zero_point, dtype, axis);
}

kl_tensor kl_dequantize(kl_tensor q, kl_tensor scale, kl_tensor zero_point, int axis)
{
    return quant_op("dequantize", OP_dequantize, q, scale, zero_point, KL_DTYPE_COUNT, axis);
}
