/* Functions that the files of this folder share. */
#ifndef KILN_SOLVE_EIGEN_H
#define KILN_SOLVE_EIGEN_H
#include "frontend/solve/solve.h"

/* ---- rotations.c ---- */

/* Elements [n] for kl_take: those that come to each position after a step, and what they are paired with in it.  After
 * n - 1 steps each element has been paired with each other one. */
struct solve_pairs { kl_tensor next, other; };
struct solve_pairs solve_pairs(kl_device device, int64_t n);
/* Both halves of axis 0, each element where it is after a step. */
kl_tensor solve_moved(kl_tensor first, kl_tensor second, const struct solve_pairs *pairs);
/* The rotations that make r zero between p and q, where `rotate` is true: the factors of each element and of its pair,
 * [n, B], and the tangents [n / 2, B]; 1, 0 and 0 elsewhere. */
struct solve_rotation { kl_tensor c, s, t; };
struct solve_rotation solve_rotation(kl_tensor rotate, kl_tensor p, kl_tensor q, kl_tensor r,
                                     const struct solve_pairs *pairs);
/* Rotates the pairs of an axis, and moves them. */
kl_tensor solve_rotate(kl_tensor a, int axis, const struct solve_rotation *x, const struct solve_pairs *pairs);
/* Rotates until n - 1 steps in a row had nothing to rotate.  step: in[0..3) are two arrays and a number for it. */
void solve_sweeps(kl_region_fn *step, void *ctx, int64_t n, kl_tensor *arrays);

/* ---- reflector.c ---- */

/* [1, B] The sum of a [n, B], in one order for any B. */
kl_tensor solve_column_sum(kl_tensor a);
/* [1, B] The element of a [n, B] where `is` [n, 1] is true. */
kl_tensor solve_column_pick(kl_tensor is, kl_tensor a);
/* b c^T, [m, n, B]; b [m, B], c [n, B] */
kl_tensor solve_outer(kl_tensor b, kl_tensor c);
/* 1 - tau v v^T makes the elements of a [n, B] behind row `first` zero, and that one `left`; v [n, B] is 1 there and 0
 * before; tau and left: [1, B].  rows: [n, 1].  tau is 0 where these elements are too small to be squared: beside a
 * matrix's largest element, of about 1, they are negligible. */
struct solve_reflector { kl_tensor v, tau, left; };
struct solve_reflector solve_reflector(kl_tensor a, kl_tensor rows, kl_tensor first);

/* ---- eigen_jacobi.c ---- */

/* ctx: a struct solve_matrices; in: a [B, n, n]; out: eigenvalues [B, n], eigenvectors [B, n, n]. */
kl_status solve_jacobi(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout);

/* ---- eigen_tridiagonal.c ---- */

/* arrays: [0] symmetric matrices a [n, n, B]; set: [1] q^T [n, n, B], [2] and [3] the diagonal and the subdiagonal,
 * [n, B], of q^T a q, which is tridiagonal. */
void solve_tridiagonal(const struct solve_matrices *x, kl_tensor *arrays);

/* ---- qr_iteration.c ---- */

/* Implicit QL or QR iteration of matrices with a diagonal d [n, B] and off-diagonal elements e [n, B]: e[i] is between
 * d[i] and d[i + 1], the last is 0. */
struct solve_qr_iteration {
    int64_t n, N, B;    /* rows; elements of a vector; matrices */
    int64_t part;       /* rows from the first on that are to become diagonal */
    int64_t max;        /* passes of several steps each */
    kl_device device;
    kl_dtype dtype;
    kl_region_fn *step; /* ctx: this; in: d, e; out: the next; for each array of vectors rotations c and s [n, B]: c[j]
                         * and s[j] make x[j - 1], x[j] of its rows c x[j - 1] - s x[j], s x[j - 1] + c x[j], for j from
                         * n - 1 on; 1 and 0 where nothing is rotated */
    int vectors;        /* arrays of them */
};
/* Iterates until e is negligible.  arrays: d, e, and `vectors` arrays of vectors as rows [n, N, B]; replaced by those
 * of the diagonal matrix. */
void solve_iterate(const struct solve_matrices *m, kl_region_fn *step, int vectors, kl_tensor *arrays);
/* The first unreduced block of each matrix, on which a step works, [1, B]: rows first to last; n and n where there is
 * none and `any` is false.  rows: [n, 1], their numbers.  Negligible elements of e become 0. */
struct solve_unreduced { kl_tensor rows, first, last, any; };
struct solve_unreduced solve_unreduced(const struct solve_qr_iteration *x, kl_tensor d, kl_tensor *e);
/* A step's rotations, from the last row to the first.  rotation: ctx: the block, first and last [B]; carried: 4 values
 * [B]; scanned: j, d[j - 1], d[j], e[j - 1], e[j]; stacked: d[j], e[j], and c and s for each array of vectors.  out:
 * what is stacked. */
kl_status solve_rotations(const struct solve_qr_iteration *x, struct solve_unreduced b, kl_region_fn *rotation,
                          kl_tensor d, kl_tensor e, const kl_tensor *carried, kl_tensor *out);
/* [1, B] The element of a [n, B] in row i [1, B]; 0 where there is none. */
kl_tensor solve_element(const struct solve_unreduced *b, kl_tensor a, kl_tensor i);

/* ---- eigen_ql.c ---- */

/* Symmetric tridiagonal matrices: arrays: d, e, and rows z [n, N, B]; replaced: [0] the eigenvalues, [2] v^T z, v the
 * eigenvectors. */
void solve_ql(const struct solve_matrices *m, kl_tensor *arrays);

/* ---- svd.c, svd_bidiagonal.c, svd_qr.c, svd_jacobi.c ---- */

/* 1 / x, but 0 where x is at most a limit. */
kl_tensor solve_reciprocal(kl_tensor x, kl_tensor limit);
/* a [n, n, B]; out: d, e [n, B] as of solve_qr_iteration, and u and v as rows [n, n, B], each from the last on: u^T a v
 * is upper bidiagonal, with the diagonal d and the superdiagonal e. */
void solve_bidiagonal(const struct solve_matrices *x, kl_tensor a, kl_tensor *out);
/* arrays: d, e, rows of right and of left vectors [n, N, B]; replaced: [0] the singular values, with signs, [2] and [3]
 * their vectors. */
void solve_qr_steps(const struct solve_matrices *m, kl_tensor *arrays);
/* a [B, n, n], of which no square overflows; out: u, s, v */
void solve_svd_jacobi(const struct solve_matrices *x, int64_t n, kl_tensor a, kl_tensor *out);
#endif
