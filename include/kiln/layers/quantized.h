/* Tensors stored as small integers.  Included by <kiln/kiln.h>; see storage.h.
 *
 *     kl_qscheme q = {.type = KL_Q_I8}, columns = {.type = KL_Q_I8, .per_axis = true, .axis = 1};
 *     kl_tensor w8 = kl_keep(kl_to_quantized(w, columns, kl_none, kl_none));
 *     // integers times integers, then one scale
 *     kl_tensor y = kl_matmul(kl_to_quantized(x, q, kl_none, kl_none), w8);
 *
 * A quantized tensor stands for (q - zero point) * scale, a float.  Its parts: the integers q (KL_Q_I4: two in a byte
 * of KL_U8 along the last axis, the first one in its low half), the scales, and the zero points or kl_none for 0.
 * Scales have the tensor's rank: length 1 where one is for all.  Ops on one:
 * - a product of two is one of integers, summed in KL_I32 and scaled once, a float: where scales are a tensor's, an
 *   axis's that is not contracted, or, for two matrices, blocks of the contracted axis.  It has the gradient of the
 *   product of floats;
 * - views leave the integers what they are, and their scales follow: where an axis with scales is not kept whole, or
 *   blocks are cut, shorter blocks have copies of them. KL_Q_I4 becomes KL_Q_I8, with the same integers, where it is
 *   transposed or its last axis becomes odd;
 * - rows taken by indices (kl_take, kl_embedding) are a plain tensor, of which only those rows are computed; where
 *   one scale is for all, they keep it;
 * - elementwise ops compute in floats and quantize the result in the way of the first quantized operand, its scale from
 *   the result's own range, so that it is off by at most half a step;
 * - anything else, also a product with a float, takes kl_dense of it and gives a plain tensor.
 * Gradients go straight through rounding to the float that was quantized, as in kl_quantize, and are 0 where it
 * saturated.  The tensor itself has no gradient. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_QUANTIZED_H
#define KILN_QUANTIZED_H

#ifdef __cplusplus
extern "C" {
#endif

/* -128..127 or -8..7, symmetric where the scale comes from the data: zero point 0; 0..255 with a zero point. */
typedef enum kl_qtype { KL_Q_I8, KL_Q_U8, KL_Q_I4 } kl_qtype;
/* Which elements share a scale: all; with per_axis those of each slice of `axis`; with block > 0 those of each run of
 * so many along `axis` (it divides the length), for each place in the other axes.  axis may be negative. */
typedef struct kl_qscheme {
    kl_qtype type;
    bool per_axis;
    int axis;
    int64_t block;
} kl_qscheme;

/* x, a float, in integers.  scale: [], [C] for an axis of length C, or for blocks the shape of x with that axis
 * counting blocks; kl_none: from the least and greatest elements of x that share it.  zero_point: the scale's shape,
 * KL_I8 or KL_U8 as the integers; kl_none: 0, or from the range beside a scale of kl_none.  KL_Q_I4 needs a last axis
 * of even length. [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_to_quantized(kl_tensor x, kl_qscheme scheme, kl_tensor scale, kl_tensor zero_point);
/* A quantized tensor of integers that are there: its parts, which stay the caller's.  integers: in the tensor's shape;
 * of KL_Q_I4 bytes, as above.  scale: a float, whose dtype is the tensor's; its shape, and that of zero_point (or
 * kl_none), is as in kl_to_quantized.  [new handle; SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_quantized(kl_tensor integers, kl_qscheme scheme, kl_tensor scale, kl_tensor zero_point);

/* What ranges a tensor has had, to choose its scale before it comes: two states, the least and greatest elements so
 * far, or, with a momentum above 0, their moving averages low = momentum * low + (1 - momentum) * new.  f32 for f16 and
 * bf16. */
typedef struct kl_observer {
    kl_qscheme scheme;
    kl_tensor low, high;
    double momentum;
} kl_observer;
/* Of float tensors of this rank and shape (only the length of a scheme's axis counts; no blocks).  [ARGUMENT, SHAPE,
 * TYPE, DEVICE, MEMORY] */
KL_API kl_status kl_observer_init(kl_observer *o, kl_device device, kl_qscheme scheme, kl_dtype dtype, int rank,
                                  const int64_t *dims);
/* Takes x in, by kl_assign to both states.  [SHAPE, TYPE] */
KL_API_AT kl_status kl_observer_update(kl_observer *o, kl_tensor x);
/* x in the observer's scheme, with the scale of what it has seen, numbers beyond that saturated.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_observer_quantize(const kl_observer *o, kl_tensor x);
KL_API void kl_observer_deinit(kl_observer *o);

#ifdef __cplusplus
}
#endif
#endif
