/* Linear algebra and Fourier transforms.  Included by <kiln/kiln.h>.
 *
 * Matrices are the last two axes, the axes before them a batch.  Floats; halfs are computed in f32 and rounded once.
 * Gradients are computed from the results, not through the loops that made them. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_OPS_LINALG_H
#define KILN_OPS_LINALG_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- factors and equations ---- */

/* a: [..., n, n]  ->  lower L with L L^T = (a + a^T) / 2; NaN from the column on in which that is not positive
 * definite. [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_cholesky(kl_tensor a);
/* a: [..., n, n]  b: [..., n, m], the same batch  ->  x with a x = b, or a^T x = b, of which a's lower or upper
 * triangle is all that is read.  A zero on the diagonal divides.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_triangular_solve(kl_tensor a, kl_tensor b, bool upper, bool transposed);
/* a: [..., m, n], k = min(m, n)  ->  q: [..., m, k] with orthonormal columns, and a new handle in *r: [..., k, n],
 * upper triangular, with q r = a (Householder; signs as in LAPACK).  No gradient where the first k columns are
 * dependent. [SHAPE, TYPE, ARGUMENT: r is NULL] */
KL_API_AT kl_tensor kl_qr(kl_tensor a, kl_tensor *r);
/* a: [..., n, n]  b: [..., n, m], the same batch  ->  x with a x = b, by elimination with pivots from a column; of a
 * singular matrix infinite or NaN.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_solve(kl_tensor a, kl_tensor b);
/* a: [..., n, n]  ->  the matrix that solves a x = identity.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_inverse(kl_tensor a);
/* a: [..., n, n]  ->  [...], the product of elimination's pivots; 1 of no elements.  No gradient where it is 0: NaN.
 * [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_det(kl_tensor a);

/* ---- Fourier transforms, f32 or f64 ----
 * By products with small matrices of cosines and sines for factors of the length up to 32, by Bluestein's convolution
 * for what larger primes leave: n log n for any length. */

/* a: real or complex, complex results of a's shape: sum over j of a_j e^(-2 pi i j k / n) along an axis; inverse: with
 * +i, divided by n.  [SHAPE: the axis is empty; TYPE] */
KL_API_AT kl_tensor kl_fft(kl_tensor a, int axis, bool inverse);
/* The first n / 2 + 1 of these of a real tensor: the others are their conjugates.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_rfft(kl_tensor a, int axis);
/* The way back: n real elements along the axis, which has n / 2 + 1.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_irfft(kl_tensor a, int axis, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
