/* Internal header of the quantized layer. */
#ifndef KILN_FRONTEND_QUANTIZED_H
#define KILN_FRONTEND_QUANTIZED_H
#include "frontend/layers/wrapper.h"

enum quant_grain { QUANT_TENSOR, QUANT_AXIS, QUANT_BLOCK };
enum { QUANT_PARTS = 4 };
/* A quantized tensor in parts: integers; scales; zero points and minimums, each kl_none where there are none.  v
 * describes the tensor. */
struct quant {
    kl_qtype type;
    enum quant_grain grain;
    uint32_t axis;               /* of grains axis and block */
    int64_t block;
    struct view v;
    kl_tensor part[QUANT_PARTS];
    /* for KL_Q_I4: the integers before packing, if a gradient may flow through them; or kl_none */
    kl_tensor made;
};
struct quant quant_of(struct thread *t, kl_tensor h);
static inline bool quant_is_nibbles(kl_qtype type) { return type == KL_Q_I4 || type == KL_Q_U4; }
enum { QUANT_SIX = 3 }; /* arrays of KL_Q_I6, which have 16 integers in four bytes of each */
/* Completes a scheme for a tensor; false: reported. */
bool quant_scheme(struct thread *t, const char *op, kl_qscheme scheme, const struct view *v, struct quant *q);
kl_tensor quant_make(struct thread *t, const struct quant *q);
kl_tensor quant_made_ints(struct thread *t, kl_tensor packed); /* those that were packed, if they were quantized */
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
/* With blocks of `block` elements, a divisor of its own: copies of its scales, zero points and minimums. */
void quant_cut_blocks(struct quant *q, int64_t block);
/* Of h, which is stored as KL_Q_I6, the arrays of bytes, with the tensor's axes; false: it is not. */
bool quant_stored_six(kl_tensor h, kl_tensor to[QUANT_SIX]);
/* The integers of such arrays, or of rows of them, KL_I8. */
kl_tensor quant_join_six(const kl_tensor bytes[QUANT_SIX]);
/* Part 1 to 3 of h as it is stored, and that of super-blocks or kl_none, with the tensor's axes. */
void quant_stored_part(kl_tensor h, unsigned part, kl_tensor to[2]);
/* The scale or minimum of the shape `to` that these are stored for. */
kl_tensor quant_scale_of(const kl_tensor stored[2], const struct shape *to, uint32_t axis, unsigned dtype);
enum { QUANT_INTERLEAVED = 16 }; /* rows that alternate in interleaved parts */
/* A scale or zero point of the user, in the shape of the scales; kl_none: reported. */
kl_tensor quant_align_scale(struct thread *t, const char *what, const struct quant *q, kl_tensor p, unsigned dtype);
/* quant_view.c: sets the scales, zero points and minimums of *to, a view of q by this call, whose shape is set, and
 * which elements share them. false: reported */
bool quant_view_scales(struct thread *t, const struct call *c, const struct quant *q, struct quant *to);
/* quant_product.c */
kl_tensor quant_dot(struct thread *t, const struct call *c);
#endif
