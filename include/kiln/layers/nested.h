/* Ragged lists of tensors.  Included by <kiln/kiln.h>; see storage.h.
 *
 *     kl_tensor x = kl_nested(values, offsets), y = kl_softmax(kl_linear(x, w, b), -1);     // [3 + 5 + 2, D], offsets
 * 0 3 8 10
 *
 * A nested tensor is B tensors that differ in the length of their first axis, one behind the other: its parts are the
 * values [T, ...], the offsets [B + 1] at which each component starts, KL_I32 or KL_I64, ascending from 0, and for each
 * row of the values the component that it belongs to, [T] (B for rows beyond the last offset: T may be more than is
 * needed), and that component's first row and the one behind its last, [T, 2].  kl_shape and kl_dtype_of are those of
 * the values; the lengths are data.  T may be a symbol (ops/symbol.h): one program then runs batches of any lengths.
 *
 * Elementwise ops, products with the ragged axis first, reductions and softmax along other axes, views and norms that
 * leave that axis alone, kl_embedding by nested indices: each works on all rows at once, one kernel whatever the
 * lengths, and keeps the offsets.  Two nested operands have the same offsets: one is made from the other, or by
 * kl_nested_like; a plain one is one row for all, or has as many.  A sum of all elements is plain.  Along the ragged
 * axis go the functions below; other ops are TYPE errors.  kl_grad in a nested tensor is nested. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_NESTED_H
#define KILN_NESTED_H

#ifdef __cplusplus
extern "C" {
#endif

/* [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_nested(kl_tensor values, kl_tensor offsets);
/* Values [T, ...] with the offsets of another nested tensor, whose T they have.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_nested_like(kl_tensor values, kl_tensor like);
/* The first lengths[b] rows of each padded[b], [B, L, ...]; lengths [B]: KL_I32 or KL_I64.  `rows` is T, at least the
 * sum of the lengths: what is beyond it is left out.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_to_nested(kl_tensor padded, kl_tensor lengths, int64_t rows);
/* [B, length, ...]: each component's rows, as many as fit, then rows of `value`, a runtime scalar.  [SHAPE,
 * TYPE] */
KL_API_AT kl_tensor kl_nested_pad(kl_tensor a, int64_t length, double value);
/* [B, ...]: over each component's rows; of an empty component 0, NaN and -infinity.  Floats.  [TYPE] */
KL_API_AT kl_tensor kl_nested_sum(kl_tensor a);
KL_API_AT kl_tensor kl_nested_mean(kl_tensor a);
KL_API_AT kl_tensor kl_nested_max(kl_tensor a);
/* Nested: softmax over each component's rows, for each place in the other axes.  Floats.  [TYPE] */
KL_API_AT kl_tensor kl_nested_softmax(kl_tensor a);
/* Attention within each component: q, k, v [T, D] or [T, heads, D], one offsets; v may have another last length.
 * causal: rows see those up to themselves.  Nested, like q.  One kernel, whose cost is the sum of the components'
 * costs: blocks of 64 rows and columns of different components are skipped.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_nested_attention(kl_tensor q, kl_tensor k, kl_tensor v, bool causal);

#ifdef __cplusplus
}
#endif
#endif
