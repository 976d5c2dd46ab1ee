/* Functions that the files of this folder share. */
#ifndef KILN_NN_LINALG_H
#define KILN_NN_LINALG_H
#include "frontend/nn/compose.h"

struct matrices {
    bool upper, transposed;
    int64_t B, n, m;               /* of flat operands: [B, n, n] and [B, n, m] */
    kl_device device;
    /* dtype to compute in; dtype of the operands, which compose_end cannot know after a region */
    kl_dtype dtype, given;
};

/* Rows of matrices of straight code, rows of those without a batch of at least MIN_BATCH; rows up to which a scan
 * computes triangular equations and Cholesky factorizations, columns up to which it computes QR, rows up to which
 * general equations: of larger matrices the halves are computed, and what is between them is a product. */
enum { MAX_SMALL = 8, MAX_SMALL_ALONE = 3, MIN_BATCH = 8, BLOCK_ROWS = 64, QR_BLOCK = 128, LU_BLOCK = 128 };

/* ---- matrices.c ---- */

/* Checks a matrix, n by n if square, and, unless b is NULL, a right side with its batch; NULL: reported.  Sets the
 * flattened operands. */
struct thread *linalg_begin(const char *op, kl_tensor *a, kl_tensor *b, bool square, struct view *v, struct view *w,
                            struct matrices *x);
/* A result in its shape and dtype. */
kl_tensor linalg_result(const struct matrices *x, const char *op, kl_tensor a, const struct shape *s);
/* fn of [B, ...], whose first argument is a struct matrices.  On processors of one matrix at a time, which stays in the
 * cache through all steps; a scan that carries nothing is shared out over threads.  GPUs compute all at once. */
kl_status linalg_for_each(kl_region_fn *fn, struct matrices *x, const kl_tensor *in, int64_t nin, kl_tensor *out,
                          int64_t nout);
/* Zeros behind the rows and columns of matrices of which each step computes whole rows: what a processor has stored by
 * a part of a vector it is slow to load again. */
kl_tensor linalg_pad(const struct matrices *x, kl_tensor a);
/* The first n of the axis, of which linalg_pad has added others. */
kl_tensor linalg_without_pad(kl_tensor a, int axis, int64_t n);
int64_t linalg_rows(kl_tensor a);
static inline kl_tensor linalg_transposed(kl_tensor a) { return kl_transpose(a, -1, -2); }
/* c - a b, rounded once */
static inline kl_tensor linalg_minus_product(kl_tensor c, kl_tensor a, kl_tensor b) { return kl_fma(kl_neg(a), b, c); }
/* Rows or columns of the first half; a multiple of whole vectors. */
static inline int64_t linalg_first_half(int64_t n) { return (n / 2 + 31) / 32 * 32; }
/* [B, n, m] */
static inline kl_tensor linalg_identity(const struct matrices *x, int64_t n, int64_t m)
{
    return kl_expand(kl_eye(x->device, x->dtype, n, m), 3, (int64_t[]){x->B, n, m});
}
/* Some rows and columns of a [B, n, m]. */
static inline kl_tensor linalg_block(kl_tensor a, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    return kl_narrow(kl_narrow(a, 1, row, rows), 2, column, columns);
}

/* ---- small.c: matrices of few rows, whose elements are tensors [B] each ---- */

struct small_matrix {
    int64_t n, columns; /* n rows; of the n columns of a matrix, and of those of a right side behind it */
    kl_tensor of[MAX_SMALL][2 * MAX_SMALL];
};

/* max_alone: rows of a matrix without a batch */
bool linalg_is_small(const struct matrices *x, int64_t max_alone);
/* Columns from `at` on, from a [B, n, columns]. */
void linalg_small_load(struct small_matrix *w, const struct matrices *x, kl_tensor a, int64_t at, int64_t columns);
/* [B, n, columns] */
kl_tensor linalg_small_store(const struct small_matrix *w, const struct matrices *x, int64_t at, int64_t columns);
/* Gaussian elimination; *sign, unless it is NULL, gets that of the permutation, [B]. */
void linalg_small_eliminate(struct small_matrix *w, kl_tensor *sign);
/* Replaces the right side by the solution of the triangular equations. */
void linalg_small_substitute(struct small_matrix *w, bool upper, bool transposed);
/* L of a Cholesky factorization, with zeros above. */
void linalg_small_cholesky(struct small_matrix *w, kl_tensor zero);

/* ---- triangular.c ---- */

/* [B, n, m] x of a x = b, a [B, n, n] triangular, or transposed, as *x says; differentiable through the loop, for
 * gradients of gradients. */
kl_tensor linalg_substitute(struct matrices *x, kl_tensor a, kl_tensor b);
/* The same for use within linalg_for_each.  in: a, b */
kl_status linalg_substitute_halves(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout);
#endif
