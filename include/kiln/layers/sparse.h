/* Sparse matrices.  Included by <kiln/kiln.h>; see storage.h.
 *
 *     kl_tensor a = kl_sparse_csr(values, starts, columns, n), y = kl_matmul(a, x);
 *
 * A sparse tensor is a matrix [R, C] of which some elements are stored and the others are 0.  Its parts, with room for
 * `bound` stored elements, are values [bound] of any number dtype and, as KL_I32 or KL_I64, in coordinates (COO) the
 * rows [bound] and columns [bound] of each, in rows (CSR) where each row's elements start, [R + 1], and their columns
 * [bound].  How many of them count is data: those of CSR beyond the last start do not, and in COO one that is not
 * needed has the value 0.  Elements of one place add up.
 *
 * Ops that keep the sparse form: matmul and dot_general with a plain tensor on either side (gathered rows, times the
 * values, summed by row), kl_sampled_matmul, + and - with a plain tensor of the same shape (plain) and with a sparse
 * one (sparse), * by a plain tensor that broadcasts to the matrix, / by a number, neg, cast, transpose, sum over any
 * axes.  Elements that are not stored stay 0, also multiplied by an infinity or a NaN.  Any other op computes on
 * kl_dense of the tensor (a line "[densify]" in a dispatch log) and returns a plain tensor.  kl_grad in a sparse tensor
 * is sparse: the gradient of each stored element. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_SPARSE_H
#define KILN_SPARSE_H

#ifdef __cplusplus
extern "C" {
#endif

/* In coordinates; indices out of range count as the nearest in range.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_sparse_coo(kl_tensor values, kl_tensor rows, kl_tensor columns, int64_t nrows, int64_t ncolumns);
/* In rows, of which starts has one more than there are, ascending from 0.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_sparse_csr(kl_tensor values, kl_tensor starts, kl_tensor columns, int64_t ncolumns);
/* The elements of a plain matrix that are not 0, in rows, at most `bound`: with more every value is NaN.  Gradients
 * flow to them.  It sorts, so it is for making one, not for every step; floats.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_to_sparse(kl_tensor a, int64_t bound);
/* a: [R, K]  b: [K, C]: the product where pattern [R, C] stores what is not 0, as sparse as that.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_sampled_matmul(kl_tensor a, kl_tensor b, kl_tensor pattern);

#ifdef __cplusplus
}
#endif
#endif
