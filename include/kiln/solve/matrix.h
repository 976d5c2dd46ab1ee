/* Factors and functions of matrices.  Included by <kiln/solve/solve.h>.
 *
 * Matrices are the last two axes, the axes before them a batch, whose lengths may be symbolic.  Floats; halfs are
 * computed in f32 and rounded once.  A batch is computed at once, so one call for many small matrices is faster than
 * kl_vmap of a call for one.  The results for a matrix are the same bits in any batch.
 *
 * Gradients are computed from the results, not by differentiating the loops that computed them.  They are those of a
 * function that does not depend on what is arbitrary in a factorization: signs of vectors, and bases of the spaces of
 * equal eigenvalues or singular values.  Where two of these are equal to rounding, what they would add to the gradient
 * through one another is 0, not infinite. */
#ifndef KILN_SOLVE_MATRIX_H
#define KILN_SOLVE_MATRIX_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

/* a: [..., n, n]  ->  eigenvalues of (a + a^T) / 2, [..., n], ascending, and, unless `vectors` is NULL, a new handle in
 * it: [..., n, n], whose column j is the eigenvector of value j, of length 1 (by QL steps; on GPUs by Jacobi's method).
 * All are NaN where a has a NaN or an infinity; so are the results of the next three functions.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_eigh(kl_tensor a, kl_tensor *vectors);
/* a: [..., m, n], k = min(m, n)  ->  u: [..., m, k] with orthonormal columns, and new handles in *s: [..., k], the
 * singular values, descending, and *vt: [..., k, n] with orthonormal rows; u diag(s) vt = a (by QR steps; on GPUs
 * by one-sided Jacobi rotations).  [SHAPE, TYPE, ARGUMENT: s or vt is NULL] */
KL_API_AT kl_tensor kl_svd(kl_tensor a, kl_tensor *s, kl_tensor *vt);
/* a: [..., m, n]  ->  its pseudoinverse, [..., n, m]; singular values of at most tolerance times the largest count as
 * 0. A tolerance of 0 means max(m, n) times the distance of 1 to the next number.  By QR, in a tenth of the time, where
 * the condition number is less than 1 / (8 tolerance); else by singular values.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_pinv(kl_tensor a, double tolerance);
/* a: [..., m, n]  b: [..., m, k], the same batch  ->  x: [..., n, k] with the least |a x - b|, of these the shortest,
 * by kl_pinv.  [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_lstsq(kl_tensor a, kl_tensor b, double tolerance);
/* a: [..., m, n], k = min(m, n)  ->  p: [..., m] KL_I32, and new handles in *l: [..., m, k], lower triangular with a
 * diagonal of ones, and *u: [..., k, n], upper triangular: row i of l u is row p[i] of a (partial pivoting).  A zero on
 * the diagonal of u: the first k columns are dependent, which is no error; the gradient is then infinite or NaN.
 * [SHAPE, TYPE, ARGUMENT: l or u is NULL] */
KL_API_AT kl_tensor kl_lu(kl_tensor a, kl_tensor *l, kl_tensor *u);
/* a: [..., n, n]  ->  the sign of the determinant, [...], and a new handle in *logarithm: that of its size, [...]; 0
 * and minus infinity for a singular matrix, where the gradient is infinite or NaN.  [SHAPE, TYPE, ARGUMENT: logarithm
 * is NULL] */
KL_API_AT kl_tensor kl_slogdet(kl_tensor a, kl_tensor *logarithm);
/* a: [..., n, n]  ->  e to the a, by scaling and squaring.  It has first gradients only [GRAD].  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_expm(kl_tensor a);

/* Equations a x = b of banded matrices, by elimination with partial pivoting; b: [..., n, k] with the batch of the
 * matrices.  Infinite or NaN for a singular matrix. */
#define KL_MAX_BAND 64
/* ab: [..., lower + upper + 1, n], the diagonals from the uppermost to the lowest, element i, j of a in row upper + i -
 * j, column j (LAPACK's and SciPy's layout); the other elements of ab are not read.  At most KL_MAX_BAND diagonals.
 * [SHAPE, TYPE, ARGUMENT] */
KL_API_AT kl_tensor kl_banded_solve(kl_tensor ab, int64_t lower, int64_t upper, kl_tensor b);
/* below, diagonal, above: [..., n]; below[i] is element i, i - 1 of a, above[i] is i, i + 1; below[0] and above[n - 1]
 * are not read.  [SHAPE, TYPE] */
KL_API_AT kl_tensor kl_tridiagonal_solve(kl_tensor below, kl_tensor diagonal, kl_tensor above, kl_tensor b);

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/solve/matrix.h>
#endif
