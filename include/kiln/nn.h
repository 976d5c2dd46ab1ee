/* Composites for training, made of the ops of <kiln/ops.h>: activations, normalisation, attention, convolution,
 * pooling, losses.  Included by <kiln/kiln.h>.
 *
 * Their tensors are floats unless stated otherwise, and their gradients are those of the ops.  Numbers marked "runtime
 * scalar" are arguments of the program: another value does not cause another compilation. eps, classes, axes and
 * windows are compiled in.  Errors beside HANDLE and MEMORY are named in brackets. */
#ifndef KILN_NN_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_NN_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- activations, element by element; NaN stays NaN [TYPE] ---- */
KL_API_AT kl_tensor kl_relu(kl_tensor a);     /* gradient 0 at 0 */
KL_API_AT kl_tensor kl_sigmoid(kl_tensor a);  /* 1 / (1 + e^-a) */
KL_API_AT kl_tensor kl_silu(kl_tensor a);     /* a sigmoid(a) */
KL_API_AT kl_tensor kl_gelu(kl_tensor a);     /* a (1 + tanh(sqrt(2/pi) (a + 0.044715 a^3))) / 2 */
KL_API_AT kl_tensor kl_softplus(kl_tensor a); /* log(1 + e^a), without overflow */
KL_API_AT kl_tensor kl_mish(kl_tensor a);     /* a tanh(softplus(a)) */
KL_API_AT kl_tensor kl_gelu_erf(kl_tensor a); /* a (1 + erf(a / sqrt(2))) / 2 */
KL_API_AT kl_tensor kl_log_sigmoid(kl_tensor a); /* log sigmoid(a), without overflow */
KL_API_AT kl_tensor kl_softsign(kl_tensor a); /* a / (1 + |a|) */
/* 1.0507009873554804934 elu(a, 1.6732632423543772848) */
KL_API_AT kl_tensor kl_selu(kl_tensor a);
/* a above 0, else alpha (e^(a / alpha) - 1); alpha: a runtime scalar.  [ARGUMENT: alpha 0 or NaN] */
KL_API_AT kl_tensor kl_celu(kl_tensor a, double alpha);
/* alpha a + beta, at least 0 and at most 1; PyTorch has 1/6 and 1/2, ONNX 1/5 and 1/2: compiled in. */
KL_API_AT kl_tensor kl_hard_sigmoid(kl_tensor a, double alpha, double beta);
KL_API_AT kl_tensor kl_hard_swish(kl_tensor a); /* a hard_sigmoid(a, 1/6, 1/2) */
/* a above 0, else slope a; slope: a runtime scalar. */
KL_API_AT kl_tensor kl_leaky_relu(kl_tensor a, double slope);
/* a above 0, else alpha (e^a - 1); alpha: a runtime scalar. */
KL_API_AT kl_tensor kl_elu(kl_tensor a, double alpha);
/* a, but at least min and at most max: runtime scalars.  Gradient 1 from min to max and at NaN,
 * which stays NaN, else 0.  hardtanh is
 * clamp(a, -1, 1).  [ARGUMENT: min above max, or NaN] */
KL_API_AT kl_tensor kl_clamp(kl_tensor a, double min, double max);

/* Training: each element is 0 with probability p, else a / (1 - p); element i depends on the seed and i alone.
 * Otherwise a itself. p in 0..1 and seed are runtime scalars; give each call of a step its own seed.  A seed given as a
 * number is the same in all iterations of kl_scan and kl_while and in all runs of a frozen step, so the mask is, too.
 * Use kl_dropout_seeded where the mask must change.  [ARGUMENT, TYPE] */
KL_API_AT kl_tensor kl_dropout(kl_tensor a, double p, uint64_t seed, bool training);
/* The same with a seed that is a tensor, as <kiln/ops.h> describes: kl_random_fold_in(seed, iteration) gives each
 * iteration of a scan another mask; an input or an assigned state gives each run of a frozen step another one.
 * [ARGUMENT, TYPE, SHAPE] */
KL_API_AT kl_tensor kl_dropout_seeded(kl_tensor a, double p, kl_tensor seed, bool training);

/* ---- along an axis [SHAPE, TYPE] ---- */
KL_API_AT kl_tensor kl_softmax(kl_tensor a, int axis);
KL_API_AT kl_tensor kl_log_softmax(kl_tensor a, int axis);

/* ---- reductions over `axes`, as in sum [SHAPE, TYPE] ---- */

/* log of the sum of e^a, without overflow. */
KL_API_AT kl_tensor kl_logsumexp(kl_tensor a, int naxes, const int *axes, bool keepdims);
/* Sum of squared distances from the mean / (n - correction): 0 for the variance of these n numbers, 1 for an
 * estimate from a sample; NaN where n is not above the correction.  [ARGUMENT: correction below 0] */
KL_API_AT kl_tensor kl_var(kl_tensor a, int naxes, const int *axes, bool keepdims, int correction);
/* Square root of var; gradient 0 where that is 0. */
KL_API_AT kl_tensor kl_std(kl_tensor a, int naxes, const int *axes, bool keepdims, int correction);
/* Square root of the sum of squares; gradient 0 where that is 0. */
KL_API_AT kl_tensor kl_norm(kl_tensor a, int naxes, const int *axes, bool keepdims);

/* ---- normalisation; weight and bias may be kl_none, eps is at least 0 [ARGUMENT, SHAPE, TYPE] ---- */

/* (x - mean) / sqrt(variance + eps) over the last naxes axes, then times weight plus bias, both of those axes. */
KL_API_AT kl_tensor kl_layer_norm(kl_tensor x, int naxes, kl_tensor weight, kl_tensor bias, double eps);
/* x / sqrt(mean of squares + eps) over the last naxes axes, then times weight. */
KL_API_AT kl_tensor kl_rms_norm(kl_tensor x, int naxes, kl_tensor weight, double eps);
/* x: [N, C, ...]  the same over each of `groups` groups of neighbouring channels of one example; weight, bias: [C]. */
KL_API_AT kl_tensor kl_group_norm(kl_tensor x, int groups, kl_tensor weight, kl_tensor bias, double eps);
/* x: [N, C, ...]  weight, bias, mean, var: [C].  Training: over all but the channels, and mean and var, unless both are
 * kl_none, are assigned (1 - momentum) old + momentum new, the variance by n - 1; momentum: a runtime scalar.  Else
 * normalised by mean and var. */
KL_API_AT kl_tensor kl_batch_norm(kl_tensor x, kl_tensor weight, kl_tensor bias, kl_tensor mean, kl_tensor var,
                                  bool training, double momentum, double eps);

/* ---- products ---- */

/* table: [V, D]  ids: integers of any shape  ->  [ids..., D]: row ids[i] of the table; an id out of range is the
 * nearest one in range.  The gradient adds the rows up in the order of the ids.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_embedding(kl_tensor table, kl_tensor ids);
/* x: [..., K]  w: [K, N]  b: [N] or kl_none  ->  x w + b: of f16 and bf16 the product is rounded, and its sum with b,
 * as processors and GPUs multiply halves.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_linear(kl_tensor x, kl_tensor w, kl_tensor b);
/* Sum of products of n operands (1..16, any number dtype) by subscripts, a letter an axis: "bij,bjk->bik".  A letter
 * that is not in the result is summed over; one twice in an operand is its diagonal.  "..." stands for any number of
 * axes, which broadcast with those of other operands: "...ij,jk->...ik".  Without "->" the result has "..." and the
 * letters that occur once, in alphabetical order.  Products go from left to right.
 * [ARGUMENT: the subscripts, SHAPE, TYPE] */
KL_API_AT kl_tensor kl_einsum(const char *subscripts, int64_t n, const kl_tensor *operand);
/* q: [..., L, D]  k: [..., M, D]  v: [..., M, E]  ->  softmax(q k^T / sqrt(D)) v: [..., L, E]; leading axes (batch,
 * heads) broadcast.  mask: bool, broadcast to [..., L, M], false where q may not see k; or KL_I32 or KL_I64, broadcast
 * to [..., L, 2], of which a row attends to the keys from the first one on and before the second; or kl_none.  causal:
 * row i attends to columns up to i + M - L.  A row without visible keys is all zeros; hidden keys and values do not
 * affect a row, nor its gradients in q of any order, even if they are infinite or NaN.  It is one kernel that does not
 * store the L x M scores; gradients store them only where there are few queries and keys, and those of gradients do.
 * bf16 rounds operands and stored values between its products, so its gradients in q and k lose accuracy as scores
 * grow: measured against f32 with random values, 0.4 % of their norm where
 * scores reach 3, 2 % at 40, 12 % at 370; f32 is for such scores.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_attention(kl_tensor q, kl_tensor k, kl_tensor v, kl_tensor mask, bool causal);

/* ---- convolution over 1 to 3 axes; the lists have a number an axis ---- */

/* x: [N, C, L...]  w: [M, C / groups, K...]  b: [M] or kl_none  ->  [N, M, O...]: for each group of channels the sum of
 * products with the windows of its filters.  O = (L + pad_low + pad_high - (K - 1) dilation - 1) / stride + 1; pad_low
 * and pad_high zeros are added at the ends of each axis, a negative number removes elements.  NULL: strides and
 * dilations of 1, no padding.  Any number dtype; f16 and bf16 are rounded as in kl_linear.  [ARGUMENT, SHAPE, TYPE] */
KL_API_AT kl_tensor kl_conv(kl_tensor x, kl_tensor w, kl_tensor b, const int64_t *stride, const int64_t *pad_low,
                            const int64_t *pad_high, const int64_t *dilation, int groups);
/* x: [N, C, L...]  w: [C, M / groups, K...]  b: [M] or kl_none  ->  [N, M, O...]: the gradient of conv with respect to
 * its input, applied to x, with the same numbers.  O = (L - 1) stride + (K - 1) dilation + 1 - pad_low - pad_high:
 * pad_low and pad_high are cut off the ends, a negative number adds elements.  [ARGUMENT, SHAPE, TYPE] */
KL_API_AT kl_tensor kl_conv_transpose(kl_tensor x, kl_tensor w, kl_tensor b, const int64_t *stride,
                                      const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation,
                                      int groups);

/* ---- pooling: a reduction over each window of the last n axes (1..3), of which `window` and the lists have a number
 * each.  Windows as in conv, but the stride is the window without strides, and no element of the padding counts: a
 * window of padding alone gives what a reduction of nothing does.  Over whole axes: the reductions of ops.h.
 * [ARGUMENT, SHAPE, TYPE] ---- */
/* any number dtype, like max_pool and min_pool */
KL_API_AT kl_tensor kl_sum_pool(kl_tensor a, int naxes, const int64_t *window, const int64_t *stride,
                                const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation);
KL_API_AT kl_tensor kl_avg_pool(kl_tensor a, int naxes, const int64_t *window, const int64_t *stride,
                                const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation);
/* NaN if any is; equal largest, or all NaNs, share the gradient */
KL_API_AT kl_tensor kl_max_pool(kl_tensor a, int naxes, const int64_t *window, const int64_t *stride,
                                const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation);
/* NaN if any is; equal smallest, or all NaNs, share the gradient */
KL_API_AT kl_tensor kl_min_pool(kl_tensor a, int naxes, const int64_t *window, const int64_t *stride,
                                const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation);

/* ---- labels ----
 *
 * Labels are classes, 0..classes-1, and mean the same in all losses and metrics.  They are values, which no call
 * checks:
 *
 *   KL_IGNORED_LABEL       is left out: its loss is 0 without a gradient, and neither a mean nor a metric counts it.
 *                          (A gradient of logits that hold NaN is NaN in their row even so.)
 *   another outside        is a mistake: its loss is NaN, and so is a sum or mean with it.  Its row has no gradient but
 *                          through what is made of that NaN.  No metric takes it for a right guess.
 *
 * Either has no 1 in a one-hot row.  Labels of unsigned dtypes hold no -100: there none is ignored.  The option
 * `ignored` of kl_cross_entropy_with (<kiln/ops/classes.h>) ignores another label instead. */
enum { KL_IGNORED_LABEL = -100 };

/* labels: integers [...]  ->  [..., classes] of dtype: 1 at the label, 0 elsewhere; a label outside 0..classes-1
 * has no 1.  [ARGUMENT, SHAPE, TYPE] */
KL_API_AT kl_tensor kl_one_hot(kl_tensor labels, int64_t classes, kl_dtype dtype);

/* ---- losses: [], the mean over all elements (NaN of none) unless said otherwise ---- */

/* logits: [N, C] floats  labels: [N] integers, see above  ->  [] mean of -log softmax(logits)[i, labels[i]] over the
 * labels that are not ignored.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_cross_entropy(kl_tensor logits, kl_tensor labels);
/* log_probs: [N, C] floats  labels: [N] integers  ->  the same of -log_probs[i, labels[i]].  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_nll_loss(kl_tensor log_probs, kl_tensor labels);

/* Those below take two operands of one shape.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_mse_loss(kl_tensor a, kl_tensor b); /* (a - b)^2 */
KL_API_AT kl_tensor kl_l1_loss(kl_tensor a, kl_tensor b);  /* |a - b| */
/* d^2 / 2 up to |d| = delta, then delta (|d| - delta / 2), d = a - b; delta above 0: a runtime scalar.
 * [ARGUMENT] */
KL_API_AT kl_tensor kl_huber_loss(kl_tensor a, kl_tensor b, double delta);
/* huber_loss / beta, with delta = beta.  [ARGUMENT] */
KL_API_AT kl_tensor kl_smooth_l1_loss(kl_tensor a, kl_tensor b, double beta);
/* -(y log sigmoid(x) + (1 - y) log(1 - sigmoid(x))) for targets y in 0..1, without overflow. */
KL_API_AT kl_tensor kl_binary_cross_entropy_with_logits(kl_tensor x, kl_tensor y);
/* mean(-y log p - (1 - y) log(1 - p)) of probabilities p, each logarithm at least -100; of logits
 * kl_binary_cross_entropy_with_logits is
 * exact, and under autocast this one is refused.  [TYPE, SHAPE] */
KL_API_AT kl_tensor kl_binary_cross_entropy(kl_tensor p, kl_tensor y);
/* max(0, 1 - x y) for scores x and targets y, 1 or -1. */
KL_API_AT kl_tensor kl_hinge_loss(kl_tensor x, kl_tensor y);
/* How far the distributions q are from p along the last axis: sum of p (log p - log_q), 0 where p is 0; the mean
 * over the other axes. */
KL_API_AT kl_tensor kl_divergence(kl_tensor log_q, kl_tensor p);

/* ---- drawing tokens ---- */

/* Zeros draw the token with the largest logit (greedy decoding).  All but top_k can be given anew in a run of a frozen
 * step, as slots "sample.temperature", "sample.top_p", "sample.min_p" and "sample.penalty" (kl_step_run), where the
 * recorded options have them. */
typedef struct kl_sample_options {
    double temperature;   /* logits are divided by it; 0: greedy, after the penalty; near 0 it is almost so */
    int64_t top_k;        /* only the k largest logits, of equal ones the first; 0: all */
    double top_p;         /* only the largest that together have this probability, at least one; 0 or 1: all */
    double min_p;         /* only those with at least this part of the largest one's probability; 0: all */
    double penalty;       /* of recent tokens positive logits are divided by it, others multiplied; 0 or 1: none */
    kl_tensor recent;     /* integers [..., N], rows as of the logits; those outside of 0..V-1 are none; or kl_none */
} kl_sample_options;
/* logits: [..., V] floats  ->  i32 [...]: of each row a token, drawn from softmax(logits / temperature) of those that
 * the filters leave.  They are applied in this order, each to what the one before has left: penalty, top_k, top_p,
 * min_p, temperature.  seed: KL_U64; [...], the row's own, with which a row has the same token in a batch of any size;
 * or [], into which the row's number is folded (kl_random_fold_in).  The same seed gives the same draw; the next token
 * needs another one.  Greedy, it is not used and may be kl_none.  A logit of -infinity is never drawn if another one is
 * larger.  Halfs are computed in f32; no gradient flows.  options NULL: all zero.  [SHAPE; TYPE: logits no floats, the
 * seed no u64, recent no integers; ARGUMENT: an option is negative or not finite, top_p or min_p above 1] */
KL_API_AT kl_tensor kl_sample(kl_tensor logits, kl_tensor seed, const kl_sample_options *options);

#ifdef __cplusplus
}
#endif
#endif
#endif
