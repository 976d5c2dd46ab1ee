/* LU with partial pivoting, and the logarithm of the determinant: a scan over columns; the gradients are computed from
 * the results (for LU of any shape: Seeger et al. 2017, "Auto-differentiating linear algebra"). */
#include "solve.h"

/* Carried: the matrix [B, m, n], which becomes L below the diagonal and U; the permutation [B, m]; its sign [B].
 * Scanned: j. */
static kl_status lu_column(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor w = in[0], j = in[3], at = kl_reshape(j, 1, (int64_t[]){1}), zero = solve_number(w, 0);
    kl_tensor rows = kl_arange(x->device, KL_I32, x->m), columns = kl_arange(x->device, KL_I32, x->n);
    kl_tensor size = kl_where(kl_ge(rows, j), kl_abs(kl_squeeze(kl_take(w, 2, at), 2)), solve_number(w, -1));
    kl_tensor p = kl_argmax(size, 1), is_p = kl_eq(rows, kl_unsqueeze(p, -1)), is_j = kl_eq(rows, j); /* [B, m], [m] */
    kl_tensor there = kl_unsqueeze(is_p, -1), here = kl_unsqueeze(is_j, -1);
    kl_tensor pivot_row = kl_sum(kl_where(there, w, zero), 1, (int[]){1}, true); /* [B, 1, n] */
    w = kl_where(here, pivot_row, kl_where(there, kl_take(w, 1, at), w));
    kl_tensor position = kl_sum(kl_where(is_p, in[1], solve_number(in[1], 0)), 1, (int[]){1}, true);
    out[1] = kl_where(is_j, position, kl_where(is_p, kl_take(in[1], 1, at), in[1]));
    kl_tensor pivot = kl_take(pivot_row, 2, at), singular = kl_eq(pivot, zero); /* then the column is 0 below, too */
    kl_tensor below = kl_unsqueeze(kl_gt(rows, j), -1), behind = kl_gt(columns, j);
    kl_tensor factor = kl_div(kl_take(w, 2, at), kl_where(singular, solve_number(w, 1), pivot));
    factor = kl_where(below, factor, zero); /* [B, m, 1] */
    kl_tensor rest = kl_sub(w, kl_mul(factor, kl_where(behind, pivot_row, zero)));
    out[0] = kl_where(kl_and(below, kl_eq(columns, j)), factor, rest);
    out[2] = kl_where(kl_eq(p, j), in[2], kl_neg(in[2]));
    return KL_OK;
}

/* out: L and U in one matrix, the permutation, its sign */
static void lu_all(const struct solve_matrices *x, kl_tensor a, kl_tensor *out)
{
    int64_t k = x->m < x->n ? x->m : x->n;
    kl_tensor rows = kl_expand(kl_arange(x->device, KL_I32, x->m), 2, (int64_t[]){x->B, x->m});
    kl_tensor carried[3] = {a, rows, kl_ones(x->device, x->dtype, 1, &x->B)}, j = kl_arange(x->device, KL_I32, k);
    kl_scan(lu_column, (void *)(uintptr_t)x, k, 3, carried, 1, &j, 0, false, out);
}

/* in: a; out: the permutation, L [B, m, k], U [B, k, n] */
static kl_status lu_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_matrices *x = ctx;
    (void)nin, (void)nout;
    int64_t k = x->m < x->n ? x->m : x->n;
    kl_tensor r[3];
    lu_all(x, in[0], r);
    out[0] = r[1];
    out[1] = kl_add(kl_tril(kl_narrow(r[0], 2, 0, k), -1), kl_eye(x->device, x->dtype, x->m, k));
    out[2] = kl_triu(kl_narrow(r[0], 1, 0, k), 0);
    return KL_OK;
}

/* b U^-T */
static kl_tensor lu_divide(kl_tensor b, kl_tensor U)
{
    return solve_transposed(kl_triangular_solve(U, solve_transposed(b), true, false));
}

/* in: a, the permutation, L, U, the gradients of L and U.  For a square matrix L^-T (tril(L^T L') + triu(U' U^T)) U^-T,
 * without the diagonal of the first; what is below or behind the square adds to the gradients of its L and U. */
static kl_status lu_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_matrices *x = ctx;
    (void)nin, (void)nout;
    int64_t m = x->m, n = x->n, k = m < n ? m : n;
    kl_tensor L = kl_narrow(in[2], 1, 0, k), U = kl_narrow(in[3], 2, 0, k), rest = kl_none;
    kl_tensor gL = kl_narrow(in[4], 1, 0, k), gU = kl_narrow(in[5], 2, 0, k);
    if (n > k) {
        rest = kl_triangular_solve(L, kl_narrow(in[5], 2, k, n - k), false, true);
        gL = kl_sub(gL, kl_matmul(rest, solve_transposed(kl_narrow(in[3], 2, k, n - k))));
    } else if (m > k) {
        rest = lu_divide(kl_narrow(in[4], 1, k, m - k), U);
        gU = kl_sub(gU, kl_matmul(solve_transposed(kl_narrow(in[2], 1, k, m - k)), rest));
    }
    kl_tensor lower = kl_tril(kl_matmul(solve_transposed(L), gL), -1);
    kl_tensor upper = kl_triu(kl_matmul(gU, solve_transposed(U)), 0);
    kl_tensor g = lu_divide(kl_triangular_solve(L, kl_add(lower, upper), false, true), U);
    if (rest.id)
        g = kl_concat(2, (kl_tensor[]){g, rest}, n > k ? 2 : 1);
    kl_tensor back = kl_unsqueeze(kl_argsort(in[1], 1, false), -1);
    out[0] = kl_take_along_axis(g, 1, kl_expand(back, 3, (int64_t[]){x->B, m, n}));
    return KL_OK;
}

kl_tensor kl_lu(kl_tensor a, kl_tensor *l, kl_tensor *u)
{
    struct solve_matrices x;
    kl_tensor out[3];
    if (l)
        *l = kl_none;
    if (u)
        *u = kl_none;
    if (!l || !u)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "lu: %s is NULL", l ? "u" : "l"), kl_poison();
    if (!solve_begin("lu", &a, false, &x))
        return kl_poison();
    int64_t k = x.m < x.n ? x.m : x.n;
    if (!x.B || !k) {
        out[0] = kl_expand(kl_arange(x.device, KL_I32, x.m), 2, (int64_t[]){x.B, x.m});
        out[1] = solve_zeros(a, 3, (int64_t[]){x.B, x.m, k});
        out[2] = solve_zeros(a, 3, (int64_t[]){x.B, k, x.n});
    } else {
        kl_custom_grad(lu_fn, lu_backward, &x, 1, &a, 3, out);
    }
    out[0] = solve_result(&x, out[0]);
    *l = solve_result(&x, out[1]);
    *u = solve_result(&x, out[2]);
    return solve_end(out[0], 2, (kl_tensor *[]){l, u});
}

/* ---- determinant ---- */

/* in: a; out: the sign [B], the logarithm [B] */
static kl_status slogdet_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    kl_tensor r[3];
    lu_all(ctx, in[0], r);
    kl_tensor d = kl_diagonal(r[0], 0, 1, 2);
    out[0] = kl_mul(r[2], kl_prod(kl_sign(d), 1, (int[]){1}, false));
    out[1] = kl_sum(kl_log(kl_abs(d)), 1, (int[]){1}, false);
    return KL_OK;
}

/* in: a, the sign, the logarithm, their gradients: that of the logarithm times a^-T */
static kl_status slogdet_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_tensor scale = kl_unsqueeze(kl_unsqueeze(in[4], -1), -1);
    out[0] = kl_mul(solve_transposed(kl_inverse(in[0])), scale);
    return KL_OK;
}

kl_tensor kl_slogdet(kl_tensor a, kl_tensor *logarithm)
{
    struct solve_matrices x;
    kl_tensor out[2];
    if (!logarithm)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "slogdet: logarithm is NULL"), kl_poison();
    *logarithm = kl_none;
    if (!solve_begin("slogdet", &a, true, &x))
        return kl_poison();
    if (!x.B || !x.n) {
        out[1] = solve_zeros(a, 1, &x.B);
        out[0] = kl_add(out[1], solve_number(a, 1));
    } else {
        kl_custom_grad(slogdet_fn, slogdet_backward, &x, 1, &a, 2, out);
    }
    out[0] = solve_result(&x, out[0]);
    *logarithm = solve_result(&x, out[1]);
    return solve_end(out[0], 1, &logarithm);
}
