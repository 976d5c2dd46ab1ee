/* Factors and functions of large matrices by LAPACK.  Included by <kiln/solve/solve.h>.
 *
 * kl_eigh, kl_svd, kl_solve, kl_qr and their like are loops that Kiln compiles: the same bits on every processor, with
 * any number of threads and on the interpreter, and fast for small matrices and batches of them.  For matrices of more
 * than about fifty rows a LAPACK (OpenBLAS, MKL) is several times faster, but kl_eigh and kl_svd of batches are as fast
 * up to 64 rows.  Its bits depend on the library, the processor and the number of its threads, so it is never chosen by
 * itself: a program calls these functions, and the graph has a custom op for each.  They have the shapes, errors and
 * gradients of the functions without lapack_; a batch is computed one matrix after the other.  On a device that has no
 * custom ops they fail [DEVICE].
 *
 * The library is opened when it is first wanted, with Fortran's 32-bit integers (LP64): matrices have at most 32,766
 * rows and columns.  Where it cannot factor a matrix, or the matrix has a NaN or an infinity, its results are NaN. */
#ifndef KILN_SOLVE_LAPACK_H
#define KILN_SOLVE_LAPACK_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a library that has LAPACK's functions, before the first call of those below.  NULL: the first that there is of
 * libopenblas.so.0, libmkl_rt.so.2 and liblapack.so.3 (Debian: libopenblas0), as those below do.  After the first that
 * succeeds, calls with any path change nothing.  [errors IO: there is none, or it lacks a function] */
KL_API kl_status kl_lapack_load(const char *path);

KL_API_AT kl_tensor kl_lapack_eigh(kl_tensor a, kl_tensor *vectors);              /* [errors as kl_eigh; IO] */
KL_API_AT kl_tensor kl_lapack_svd(kl_tensor a, kl_tensor *s, kl_tensor *vt);     /* [errors as kl_svd; IO] */
KL_API_AT kl_tensor kl_lapack_solve(kl_tensor a, kl_tensor b);                    /* [errors as kl_solve; IO] */
KL_API_AT kl_tensor kl_lapack_inverse(kl_tensor a);                               /* [errors as kl_inverse; IO] */
KL_API_AT kl_tensor kl_lapack_det(kl_tensor a);                                   /* [errors as kl_det; IO] */
KL_API_AT kl_tensor kl_lapack_slogdet(kl_tensor a, kl_tensor *logarithm);         /* [errors as kl_slogdet; IO] */
KL_API_AT kl_tensor kl_lapack_qr(kl_tensor a, kl_tensor *r);                      /* [errors as kl_qr; IO] */
/* As kl_lstsq, for an a whose rows or columns are independent; else all of the result is NaN, or as inexact as the
 * solution of a singular matrix.  [errors as kl_lstsq; IO] */
KL_API_AT kl_tensor kl_lapack_lstsq(kl_tensor a, kl_tensor b);
/* As kl_expm, which spends its time in products, with the equations behind them by kl_lapack_solve.  [errors as
 * kl_expm; IO] */
KL_API_AT kl_tensor kl_lapack_expm(kl_tensor a);
/* As kl_cholesky, but all of the result is NaN if the matrix is not positive definite.  [errors as kl_cholesky; IO] */
KL_API_AT kl_tensor kl_lapack_cholesky(kl_tensor a);

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/solve/lapack.h>
#endif
