/* Factors of large matrices by LAPACK: the custom ops of lapack_calls.c, with the gradients of Kiln's own functions. */
#include "lapack.h"

kl_status kl_lapack_load(const char *path)
{
    return lapack_ready("lapack_load", path) ? KL_OK : kl_last_error_code();
}

/* false: reported that a matrix is too large. */
static bool lapack_shape_fits(const char *op, kl_tensor a)
{
    int64_t dims[KL_MAX_RANK] = {0};
    int rank = kl_shape(a, dims);
    bool fits = rank < 2 || (dims[rank - 1] <= LAPACK_MAX_SIZE && dims[rank - 2] <= LAPACK_MAX_SIZE);
    if (!fits)
        kl_failf(NULL, KL_ERR_SHAPE, "%s: matrices of %" PRId64 " by %" PRId64 "; LAPACK takes up to %d", op,
                 dims[rank - 2], dims[rank - 1], LAPACK_MAX_SIZE);
    return fits;
}

static kl_status lapack_eigh_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx;
    kl_status status = kl_custom("kiln.lapack_eigh", NULL, 0, nin, in, nout, out);
    out[1] = solve_transposed(out[1]);
    return status;
}

kl_tensor kl_lapack_eigh(kl_tensor a, kl_tensor *vectors)
{
    if (vectors)
        *vectors = kl_none;
    if (!lapack_ready("lapack_eigh", NULL) || !lapack_shape_fits("lapack_eigh", a))
        return kl_poison();
    return solve_eigh("lapack_eigh", lapack_eigh_fn, a, vectors);
}

static kl_status lapack_svd_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx;
    kl_status status = kl_custom("kiln.lapack_svd", NULL, 0, nin, in, nout, out);
    out[2] = solve_transposed(out[2]);
    return status;
}

kl_tensor kl_lapack_svd(kl_tensor a, kl_tensor *s, kl_tensor *vt)
{
    if (s)
        *s = kl_none;
    if (vt)
        *vt = kl_none;
    if (!lapack_ready("lapack_svd", NULL) || !lapack_shape_fits("lapack_svd", a))
        return kl_poison();
    return solve_svd_by("lapack_svd", lapack_svd_fn, a, s, vt);
}

/* ---- equations ---- */

/* x with a x = b, or a^T x = b; a [B, n, n], b [B, n, m] */
static kl_tensor lapack_divide(kl_tensor a, kl_tensor b, bool transposed)
{
    char attribute = transposed;
    kl_tensor in[2] = {a, solve_transposed(b)}, out = kl_none;
    kl_custom("kiln.lapack_solve", &attribute, 1, 2, in, 1, &out);
    return solve_transposed(out);
}

static kl_status lapack_solve_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = lapack_divide(in[0], in[1], false);
    return KL_OK;
}

/* in: a, b, x, x' */
static kl_status lapack_solve_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[1] = lapack_divide(in[0], in[3], true);
    out[0] = kl_neg(kl_matmul(out[1], solve_transposed(in[2])));
    return KL_OK;
}

kl_tensor kl_lapack_solve(kl_tensor a, kl_tensor b)
{
    struct solve_matrices x;
    if (!lapack_ready("lapack_solve", NULL) || !lapack_shape_fits("lapack_solve", a) ||
        !solve_begin("lapack_solve", &a, true, &x))
        return kl_poison();
    int64_t m = solve_operand(&x, "the right side", x.n, &b);
    kl_tensor in[2] = {a, b}, out = b;
    if (m < 0)
        return kl_poison();
    if (x.B && x.n && m)
        kl_custom_grad(lapack_solve_fn, lapack_solve_backward, &x, 2, in, 1, &out);
    return solve_end(solve_result(&x, out), 0, NULL);
}

/* ---- Cholesky ---- */

static kl_status lapack_cholesky_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx;
    return kl_custom("kiln.lapack_cholesky", NULL, 0, nin, in, nout, out);
}

/* in: a, L, L': the symmetric part of L^-T P L^-1, P the lower triangle of L^T L' with half its diagonal */
static kl_status lapack_cholesky_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_tensor P = kl_tril(kl_matmul(solve_transposed(in[1]), in[2]), 0), half = solve_number(P, 0.5);
    P = kl_sub(P, kl_mul(kl_diagonal_matrix(kl_diagonal(P, 0, 1, 2), 0), half));
    P = lapack_divide(in[1], P, true);
    P = solve_transposed(lapack_divide(in[1], solve_transposed(P), true));
    out[0] = kl_mul(kl_add(P, solve_transposed(P)), half);
    return KL_OK;
}

kl_tensor kl_lapack_cholesky(kl_tensor a)
{
    struct solve_matrices x;
    if (!lapack_ready("lapack_cholesky", NULL) || !lapack_shape_fits("lapack_cholesky", a) ||
        !solve_begin("lapack_cholesky", &a, true, &x))
        return kl_poison();
    kl_tensor out = a, in = a; /* its symmetric part is what the call factors */
    if (x.B && x.n)
        kl_custom_grad(lapack_cholesky_fn, lapack_cholesky_backward, &x, 1, &in, 1, &out);
    return solve_end(solve_result(&x, out), 0, NULL);
}
