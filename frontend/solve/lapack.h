/* LAPACK's functions, from a shared library, as custom ops. */
#ifndef KILN_SOLVE_LAPACK_CALLS_H
#define KILN_SOLVE_LAPACK_CALLS_H
#include "solve.h"

enum { LAPACK_MAX_SIZE = 32766 }; /* its workspace, 2 n^2 elements, is counted by 32-bit integers */

/* Opens the library and registers the ops once.  false: reported. */
bool lapack_ready(const char *op, const char *path);
/* false: reported that a matrix is too large. */
bool lapack_fits(const char *op, kl_tensor a);

/* The ops.  Matrices are row-major, [B, ...], f32 or f64:
 *   kiln.lapack_eigh      a symmetric  ->  eigenvalues [B, n], eigenvectors as rows [B, n, n]
 *   kiln.lapack_svd       a [B, m, n]  ->  u [B, m, k], s [B, k], v^T [B, k, n]
 *   kiln.lapack_solve     a, b^T [B, m, n]; attribute, a byte: solves a^T x = b  ->  x^T [B, m, n]
 *   kiln.lapack_inverse   a  ->  its inverse
 *   kiln.lapack_det       a  ->  the determinant [B], its sign, the logarithm of its size
 *   kiln.lapack_qr        a [B, m, n]  ->  q [B, m, k], r [B, k, n]
 *   kiln.lapack_lstsq     a [B, m, n], b [B, m, c]  ->  x [B, n, c]
 *   kiln.lapack_cholesky  a  ->  L of its symmetric part */

/* ---- lapack_layout.c: matrices in memory, row after row, of f32 or f64 ---- */

/* out [columns, rows] with rows `to` apart = the transpose of a [rows, columns] with rows `from` apart */
void lapack_transpose(void *out, int64_t to, const void *a, int64_t from, int64_t rows, int64_t columns, bool f64);
/* The upper triangle of out [n, n] = that of the symmetric part of a; are all numbers of a finite? */
bool lapack_upper(void *out, const void *a, int64_t n, bool f64);
/* Moves the upper triangle of a [n, n] into the lower; zeros above the diagonal. */
void lapack_flip(void *a, int64_t n, bool f64);
#endif
