/* LAPACK's functions, from a shared library, as custom ops. */
#ifndef KILN_SOLVE_LAPACK_CALLS_H
#define KILN_SOLVE_LAPACK_CALLS_H
#include "solve.h"

enum { LAPACK_MAX_SIZE = 32766 }; /* its workspace, 2 n^2 elements, is counted by 32-bit integers */

/* Opens the library and registers the ops once.  false: reported. */
bool lapack_ready(const char *op, const char *path);

/* The ops.  Matrices are row-major, [B, ...], f32 or f64:
 *   kiln.lapack_eigh      a symmetric  ->  eigenvalues [B, n], eigenvectors as rows [B, n, n]
 *   kiln.lapack_svd       a [B, m, n]  ->  u [B, m, k], s [B, k], v^T [B, k, n]
 *   kiln.lapack_solve     a, b^T [B, m, n]; attribute, a byte: solves a^T x = b  ->  x^T [B, m, n]
 *   kiln.lapack_cholesky  a symmetric  ->  L */
#endif
