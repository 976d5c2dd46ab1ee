/* Linear algebra and Fourier transforms.  Included by <kiln/kiln.h>.
 *
 * Matrices are the last two axes, the axes before them a batch.  Floats; halfs are computed in f32 and rounded once.
 * Gradients are computed from the results, not by differentiating the loops that computed them. */
#ifndef KILN_OPS_LINALG_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_OPS_LINALG_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- factors and equations ---- */

/* a: [..., n, n]  ->  lower L with L L^T = (a + a^T) / 2; NaN from the column on in which that is not positive
 * definite. [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_cholesky(kl_tensor a);
/* a: [..., n, n]  b: [..., n, m], the same batch  ->  x with a x = b, or a^T x = b, where only the lower or upper
 * triangle of a is read.  With a zero on the diagonal, elements are infinite or NaN.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_triangular_solve(kl_tensor a, kl_tensor b, bool upper, bool transposed);
/* a: [..., m, n], k = min(m, n)  ->  q: [..., m, k] with orthonormal columns, and a new handle in *r: [..., k, n],
 * upper triangular, with q r = a (Householder; signs as in LAPACK).  No gradient where the first k columns are
 * dependent. [SHAPE, TYPE, ARGUMENT: r is NULL] */
KL_API_AT kl_tensor kl_qr(kl_tensor a, kl_tensor *r);
/* a: [..., n, n]  b: [..., n, m], the same batch  ->  x with a x = b, by Gaussian elimination with partial pivoting;
 * with infinite or NaN elements for a singular matrix.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_solve(kl_tensor a, kl_tensor b);
/* a: [..., n, n]  ->  the matrix that solves a x = identity.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_inverse(kl_tensor a);
/* a: [..., n, n]  ->  [...], the determinant, as the product of the pivots of elimination; 1 for an empty matrix.  Its
 * gradient has NaNs where it is 0.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_det(kl_tensor a);

/* ---- Fourier transforms, f32 or f64 ----
 * Factors of the length up to 32 are products with small matrices of cosines and sines; the rest, with larger prime
 * factors, is Bluestein's convolution: n log n for any length. */

/* a: real or complex, complex results of a's shape: sum over j of a_j e^(-2 pi i j k / n) along an axis; inverse: with
 * +i, divided by n.  [SHAPE: the axis is empty; TYPE] */
KL_API_AT kl_tensor kl_fft(kl_tensor a, int axis, bool inverse);
/* The first n / 2 + 1 elements of kl_fft of a real tensor; the others are conjugates of these.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_rfft(kl_tensor a, int axis);
/* The inverse of kl_rfft: n real elements along the axis, which has n / 2 + 1.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_irfft(kl_tensor a, int axis, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
#endif
