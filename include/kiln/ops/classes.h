/* Classification losses with all their options, diagonals, indices of nonzero elements, distinct elements.  Included by
 * <kiln/kiln.h>. */
#ifndef KILN_OPS_CLASSES_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_OPS_CLASSES_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- losses ---- */

/* MEAN divides by the weights of the labels that count, of class probabilities by how many there are. */
typedef enum kl_loss_reduction { KL_LOSS_MEAN, KL_LOSS_SUM, KL_LOSS_EACH } kl_loss_reduction;
typedef struct kl_class_loss_options {
    kl_tensor weight;             /* [C], of the logits' dtype; kl_none: 1 */
    /* label smoothing: this fraction of the target, 0..1, is spread evenly over all classes; compiled in */
    double smoothing;
    /* `ignored` is the label that is not counted, in place of KL_IGNORED_LABEL; not with probabilities */
    bool ignores;
    int64_t ignored;
    kl_loss_reduction reduction;
} kl_class_loss_options;
/* logits: floats [N, C, ...], or [C]  target: integers [N, ...], or [], labels (<kiln/nn.h>); or floats like the
 * logits, probabilities of the classes  ->  the sum over the classes of -weight target log softmax(logits): [], or, for
 * EACH, [N, ...].  options NULL: all zero.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_cross_entropy_with(kl_tensor logits, kl_tensor target, const kl_class_loss_options *options);
/* The same of logarithms of probabilities. */
KL_API_AT kl_tensor kl_nll_loss_with(kl_tensor log_probs, kl_tensor target, const kl_class_loss_options *options);

/* ---- diagonals ---- */

/* Elements with index1 - index0 = offset of two axes, which go, as a new last axis.  A view.  [SHAPE] */
KL_API_AT kl_tensor kl_diagonal(kl_tensor a, int64_t offset, int axis0, int axis1);
/* a: [..., n]  ->  [..., m, m], m = n + |offset|: zeros but for a on this diagonal.  [SHAPE] */
KL_API_AT kl_tensor kl_diagonal_matrix(kl_tensor a, int64_t offset);

/* ---- results of a bounded size: elements beyond it are left out ---- */

/* The indices, [size, rank] KL_I64, of the elements that are not 0 (NaN is not), in row-major order, then rows of -1;
 * and, unless it is NULL, a new handle for how many there are, [] KL_I64, which may be above size.
 * [SHAPE: size below 0] */
KL_API_AT kl_tensor kl_nonzero(kl_tensor a, int64_t size, kl_tensor *count);
/* The distinct elements in ascending order, [size], then zeros; NaNs are equal to each other and last, 0 equals -0.
 * Unless they are NULL, new handles: their number, [] KL_I64, which may be above size; the position of each element of
 * a among them, of a's shape, KL_I64; and how often each occurs in a, [size] KL_I64.  The gradient of a distinct
 * element flows to the last of the elements equal to it.  [SHAPE: size below 0] */
KL_API_AT kl_tensor kl_unique(kl_tensor a, int64_t size, kl_tensor *count, kl_tensor *inverse, kl_tensor *counts);

#ifdef __cplusplus
}
#endif
#endif
#endif
