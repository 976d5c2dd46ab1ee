/* Builders of nodes. */
#ifndef KILN_IR_BUILD_H
#define KILN_IR_BUILD_H
#include "ir/graph/node.h"

/* ---- build.c: builders for gradient rules, passes and tests; if an operand is NIL the result is NIL ---- */
#define ST(name, ...)
#define EW1(name, ...) ref n_##name(struct graph *g, ref a);
#define EW2(name, ...) ref n_##name(struct graph *g, ref a, ref b);
#define EW3(name, ...) ref n_##name(struct graph *g, ref a, ref b, ref c);
#include "ir/ops/ops.def"
ref n_input(struct graph *g, unsigned dtype, const struct shape *s, const char *name);
ref n_state(struct graph *g, unsigned dtype, const struct shape *s, const char *name);
ref n_slot(struct graph *g, unsigned dtype, const char *name);
ref n_const(struct graph *g, unsigned dtype, uint64_t bits);
ref n_k(struct graph *g, ref like, double v);     /* constant of like's dtype and device, expanded to its shape */
ref n_iota(struct graph *g, unsigned dtype, const struct shape *s, uint32_t axis);
ref n_random(struct graph *g, unsigned dtype, const struct shape *s, ref seed); /* dtype u32 or u64 */
ref n_reshape(struct graph *g, ref a, const struct shape *s);
ref n_permute(struct graph *g, ref a, const uint8_t *perm);
ref n_expand(struct graph *g, ref a, const struct shape *s);
ref n_broadcast(struct graph *g, ref a, const struct shape *s); /* right-aligned: reshape, then expand */
ref n_slice(struct graph *g, ref a, uint32_t axis, int64_t start, int64_t count, int64_t step);
ref n_window(struct graph *g, ref a, uint32_t axis, int64_t size, int64_t stride, int64_t dilation);
ref n_flip(struct graph *g, ref a, uint32_t axes);
ref n_pad(struct graph *g, ref a, ref value, uint32_t axis, int64_t low, int64_t high, int64_t interior);
ref n_concat(struct graph *g, const ref *a, unsigned n, uint32_t axis); /* n at least 1: a tree of concat nodes */
ref n_dynamic_slice(struct graph *g, ref a, ref start, uint32_t axis, int64_t count);
ref n_dynamic_update(struct graph *g, ref a, ref update, ref start, uint32_t axis);
ref n_gather(struct graph *g, ref a, ref index, uint32_t axis); /* index: integers, rank 1 */
/* index: integers, rank 1; update: of a's shape except along the axis, where its length is the index's */
ref n_scatter(struct graph *g, ref a, ref index, ref update, uint32_t axis, enum scatter_kind kind);
ref n_argsort(struct graph *g, ref a, uint32_t axis, bool descending, unsigned dtype); /* dtype i32 or i64 */
ref n_bitcast(struct graph *g, ref a, unsigned dtype);
ref n_cast(struct graph *g, ref a, unsigned dtype);
ref n_quantize(struct graph *g, ref x, ref scale, ref zero);
ref n_dequantize(struct graph *g, ref q, ref scale, ref zero);
ref n_reduce(struct graph *g, enum op op, ref a, uint32_t axes); /* reduced axes keep length 1 */
ref n_cumulative(struct graph *g, enum op op, ref a, uint32_t axis); /* op: cumsum, cumprod, cummax, cummin */
ref n_recurrence(struct graph *g, ref a, ref b, uint32_t axis);
/* elements shifted by one along the axis: the scalar comes first, the last element is dropped */
ref n_shift(struct graph *g, ref a, ref value, uint32_t axis);
ref n_dot(struct graph *g, ref a, ref b, const union attr *dims); /* result: batch, free of a, free of b */
ref n_finite_or_zero(struct graph *g, ref a);                     /* 0 in place of infinities and NaNs */
ref n_attention(struct graph *g, ref q, ref k, ref v, ref seen, double scale, bool causal); /* seen: NIL for none */
/* The attention weights of attention node y, [.., L, M], computed by other ops in the dtype that y computes in. n_dot
 * of them, in y's dtype, and v is a decomposition of y.  The products inside are in y's dtype. */
ref n_attention_weights(struct graph *g, ref y);
/* The gradients of q, k and v of attention node y, given dy: made of attention_stats and attention_grad, which store
 * nothing of size L x M for any length.  The lengths D and E must be known. */
void n_attention_gradient(struct graph *g, ref y, ref dy, ref din[3]);
ref n_copy(struct graph *g, ref a, unsigned device);
ref n_grad(struct graph *g, ref loss, ref wrt);
ref n_proj(struct graph *g, ref region, uint32_t index); /* the existing node of that index, or a new one */
/* Shared by gradient rules. */
ref n_pick(struct graph *g, ref a, ref b);        /* 1 where a > b, 0.5 where equal, else 0, in a's dtype */
ref n_cos_of_asin(struct graph *g, ref a);           /* sqrt(1 - a^2) */
ref n_hypot_or_one(struct graph *g, ref a, ref b); /* hypot(a, b), but 1 at the origin, where the numerator is 0 */
ref n_pow_slope(struct graph *g, ref a, ref b);   /* b a^(b-1), with 0 for a 0 times infinity where b is 0 */
ref n_pow_log(struct graph *g, ref a, ref b);     /* log a, with 0 where 0^b is 0 or 1 for all b nearby */

#endif
