/* Internal header of the quantized layer. */
#ifndef KILN_FRONTEND_QUANTIZED_H
#define KILN_FRONTEND_QUANTIZED_H
#include "wrapper.h"

enum quant_grain { QUANT_TENSOR, QUANT_AXIS, QUANT_BLOCK };
/* A quantized tensor in parts: integers, scales, zero points or kl_none; v describes the tensor. */
struct quant {
    kl_qtype type;
    enum quant_grain grain;
    uint32_t axis;               /* of grains axis and block */
    int64_t block;
    struct view v;
    kl_tensor part[3];
    /* for KL_Q_I4: the integers before packing, if a gradient may flow through them; or kl_none */
    kl_tensor made;
};
struct quant quant_of(struct thread *t, kl_tensor h);
kl_tensor quant_ints(const struct quant *q);  /* KL_I8 or KL_U8 in its shape */
kl_tensor quant_spread(const struct quant *q, kl_tensor scale); /* broadcast to each element */
kl_tensor quant_dense(const struct quant *q);
/* h in a dtype */
static inline kl_tensor quant_cast(kl_tensor h, unsigned dtype)
{
    return view_of(h).dtype == dtype ? h : kl_cast(h, (kl_dtype)dtype);
}
/* The float from which these integers were quantized, to which gradients flow; kl_none if there is none. */
kl_tensor quant_source(struct thread *t, kl_tensor ints);
/* s with the axis split into blocks: [.., blocks, block, ..] */
struct shape quant_cut_shape(const struct shape *s, uint32_t axis, int64_t block);
struct shape quant_scale_shape(const struct quant *q);
/* quant_view.c: sets the scales and zero points of *to, a view of q by this call, whose shape is set, and which
 * elements share them. false: reported */
bool quant_view_scales(struct thread *t, const struct call *c, const struct quant *q, struct quant *to);
/* quant_product.c */
kl_tensor quant_dot(struct thread *t, const struct call *c);
#endif
