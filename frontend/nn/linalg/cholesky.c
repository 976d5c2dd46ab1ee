/* Cholesky factorizations: a scan over columns; of more than BLOCK_ROWS rows by halves.  The gradient is that of Murray
 * 2016, "Differentiation of the Cholesky decomposition". */
#include "linalg.h"

/* Carried: the remainder of the matrix.  Scanned: j.  Stacked: column j of L. */
static kl_status cholesky_column(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor j = kl_reshape(in[1], 1, (int64_t[]){1}), column = kl_squeeze(kl_take(in[0], 2, j), 2); /* [B, n] */
    kl_tensor d = kl_sqrt(kl_take(column, 1, j)), rows = kl_arange(x->device, KL_I32, x->n);
    column = kl_where(kl_ge(rows, in[1]), kl_div(column, d), same_number(column, 0));
    out[0] = linalg_minus_product(in[0], kl_unsqueeze(column, 2), kl_unsqueeze(column, 1));
    out[1] = column;
    return KL_OK;
}

static kl_status cholesky_columns(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    kl_tensor columns = kl_arange(x->device, KL_I32, x->n), r[2];
    (void)nin, (void)nout;
    kl_status status = kl_scan(cholesky_column, x, x->n, 1, in, 1, &columns, 1, false, r);
    out[0] = kl_permute(r[1], (int[]){1, 2, 0});
    return status;
}

/* L of the upper half gives the rows below it; the rest less their product is factored in turn. */
static kl_status cholesky_halves(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices half = *(struct matrices *)ctx;
    if (half.n <= BLOCK_ROWS)
        return cholesky_columns(ctx, in, nin, out, nout);
    int64_t n = half.n, h = linalg_first_half(n), rest = n - h;
    kl_tensor a = linalg_block(in[0], 0, h, 0, h), top, bottom, left[2];
    half.n = h;
    kl_status status = cholesky_halves(&half, &a, 1, &top, 1);
    left[0] = top;
    left[1] = linalg_transposed(linalg_block(in[0], h, rest, 0, h));
    half.m = rest;
    half.upper = half.transposed = false;
    if (status == KL_OK)
        status = linalg_substitute_halves(&half, left, 2, &left[1], 1);
    if (status != KL_OK)
        return status;
    kl_tensor below = linalg_transposed(left[1]);
    a = kl_sub(linalg_block(in[0], h, rest, h, rest), kl_matmul(below, left[1]));
    half.n = half.m = rest;
    status = cholesky_halves(&half, &a, 1, &bottom, 1);
    kl_tensor zeros = kl_zeros(half.device, half.dtype, 3, (int64_t[]){half.B, h, rest});
    out[0] = kl_concat(2, (kl_tensor[]){kl_concat(2, (kl_tensor[]){top, zeros}, 2),
                                        kl_concat(2, (kl_tensor[]){below, bottom}, 2)}, 1);
    return status;
}

static kl_status cholesky_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    struct small_matrix w;
    if (linalg_is_small(x, 0)) {
        linalg_small_load(&w, x, in[0], 0, x->n);
        linalg_small_cholesky(&w, kl_zeros(x->device, x->dtype, 1, &x->B));
        out[0] = linalg_small_store(&w, x, 0, x->n);
        return KL_OK;
    }
    return linalg_for_each(cholesky_halves, x, in, nin, out, nout);
}

/* in: a, L, L's gradient: of S = L^-T P L^-1, P the lower triangle of L^T L' with half its diagonal, the symmetric
 * part. */
static kl_status cholesky_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices x = *(struct matrices *)ctx;
    (void)nin, (void)nout;
    kl_tensor P = kl_tril(kl_matmul(linalg_transposed(in[1]), in[2]), 0), half = same_number(P, 0.5);
    P = kl_sub(P, kl_mul(kl_diagonal_matrix(kl_diagonal(P, 0, 1, 2), 0), half));
    x.upper = false;
    x.transposed = true;
    P = linalg_substitute(&x, in[1], P); /* L^-T P */
    P = linalg_transposed(linalg_substitute(&x, in[1], linalg_transposed(P))); /* (L^-T (L^-T P)^T)^T = L^-T P L^-1 */
    out[0] = kl_mul(kl_add(P, linalg_transposed(P)), half);
    return KL_OK;
}

kl_tensor kl_cholesky(kl_tensor a)
{
    struct view v;
    struct matrices x;
    struct thread *t = linalg_begin("cholesky", &a, NULL, true, &v, NULL, &x);
    kl_tensor L;
    if (!t)
        return op_failed();
    a = kl_mul(kl_add(a, linalg_transposed(a)), same_number(a, 0.5));
    if (x.B * x.n == 0)
        return compose_end(t, linalg_result(&x, "cholesky", a, &v.shape));
    kl_custom_grad(cholesky_fn, cholesky_backward, &x, 1, &a, 1, &L);
    return compose_end(t, linalg_result(&x, "cholesky", L, &v.shape));
}
