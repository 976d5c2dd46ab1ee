/* Singular values.
 *
 * A matrix with more rows than columns is made square by QR, then bidiagonal, then diagonal (svd_bidiagonal.c,
 * svd_qr.c); on GPUs rotations make its columns orthogonal (svd_jacobi.c).  The gradient is that of Townsend 2016,
 * "Differentiating the singular value decomposition". */
#include "eigen.h"

/* in: a [B, n, n], of which no square overflows; out: u, s, v */
static kl_status svd_block(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_matrices *x = ctx;
    int64_t dims[3] = {0};
    (void)nin, (void)nout;
    kl_shape(in[0], dims);
    int64_t n = dims[1];
    kl_tensor arrays[4]; /* diagonal, superdiagonal, [n, B], left and right vectors as rows, [n, n, B] */
    solve_bidiagonal(x, kl_permute(in[0], (int[]){1, 2, 0}), arrays);
    kl_tensor left = arrays[2];
    arrays[2] = arrays[3];
    arrays[3] = left;
    solve_qr_steps(x, arrays);
    kl_tensor size = kl_abs(arrays[0]), one = solve_number(size, 1);
    kl_tensor sign = kl_where(kl_lt(arrays[0], solve_number(size, 0)), solve_number(size, -1), one);
    kl_tensor order = kl_argsort(size, 0, true), rows = kl_expand(kl_unsqueeze(order, 1), 3, (int64_t[]){n, n, x->B});
    arrays[2] = kl_mul(arrays[2], kl_unsqueeze(sign, 1));
    out[0] = kl_permute(kl_take_along_axis(arrays[3], 0, rows), (int[]){2, 1, 0});
    out[1] = kl_transpose(kl_take_along_axis(size, 0, order), 0, 1);
    out[2] = kl_permute(kl_take_along_axis(arrays[2], 0, rows), (int[]){2, 1, 0});
    return KL_OK;
}

/* a [B, m, n]; out: u [B, m, k], s [B, k], v [B, n, k] */
void solve_svd(const struct solve_matrices *x, kl_tensor a, kl_tensor *out)
{
    int64_t dims[KL_MAX_RANK];
    kl_shape(a, dims);
    bool wide = dims[1] < dims[2];
    int64_t m = wide ? dims[2] : dims[1], n = wide ? dims[1] : dims[2];
    kl_tensor poison = solve_poison(a), q = kl_none;
    kl_tensor scale = kl_max(kl_abs(a), 2, (int[]){1, 2}, true); /* so that no square overflows */
    scale = solve_divisor(scale);
    a = kl_div(wide ? solve_transposed(a) : a, scale);
    if (m > n)
        q = kl_qr(a, &a);
    if (kl_device_kind_of(x->device) > KL_DEVICE_CPU)
        solve_svd_jacobi(x, n, a, out);
    else
        solve_in_blocks(svd_block, x, a, out, 3);
    if (q.id)
        out[0] = kl_matmul(q, out[0]);
    kl_tensor u = kl_add(out[wide ? 2 : 0], kl_unsqueeze(poison, -1));
    kl_tensor v = kl_add(out[wide ? 0 : 2], kl_unsqueeze(poison, -1));
    out[0] = u;
    out[1] = kl_add(kl_mul(out[1], kl_squeeze(scale, -1)), poison);
    out[2] = v;
}

static kl_status svd_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    solve_svd(ctx, in[0], out);
    return KL_OK;
}

kl_tensor solve_reciprocal(kl_tensor x, kl_tensor limit)
{
    kl_tensor small = kl_le(kl_abs(x), limit), one = solve_number(x, 1);
    return kl_where(small, solve_number(x, 0), kl_div(one, kl_where(small, one, x)));
}

/* (x' - q q^T x') / s: what of the gradient of vectors q is outside of their space. */
static kl_tensor svd_outside(kl_tensor q, kl_tensor gradient, kl_tensor inverse)
{
    kl_tensor inside = kl_matmul(q, kl_matmul(solve_transposed(q), gradient));
    return kl_mul(kl_sub(gradient, inside), kl_unsqueeze(inverse, 1));
}

/* in: a, u, s, v, the gradients of u, s, v */
static kl_status svd_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor u = in[1], s = in[2], v = in[3], ut = solve_transposed(u), vt = solve_transposed(v);
    kl_tensor row = kl_unsqueeze(s, 1), column = kl_unsqueeze(s, 2); /* s_j, s_i */
    kl_tensor limit = kl_mul(kl_max(s, 1, (int[]){1}, true), solve_number(s, solve_epsilon(x->dtype) * (double)x->n));
    kl_tensor apart = solve_reciprocal(kl_sub(row, column), kl_unsqueeze(limit, 1));
    kl_tensor F = kl_mul(apart, solve_reciprocal(kl_add(row, column), kl_unsqueeze(limit, 1)));
    kl_tensor U = kl_matmul(ut, in[4]), V = kl_matmul(vt, in[6]);
    U = kl_mul(kl_mul(F, kl_sub(U, solve_transposed(U))), row);
    V = kl_mul(kl_mul(F, kl_sub(V, solve_transposed(V))), column);
    kl_tensor inner = kl_add(kl_add(U, V), kl_diagonal_matrix(in[5], 0)), inverse = solve_reciprocal(s, limit);
    kl_tensor g = kl_matmul(kl_matmul(u, inner), vt);
    if (x->m > x->n)
        g = kl_add(g, kl_matmul(svd_outside(u, in[4], inverse), vt));
    if (x->n > x->m)
        g = kl_add(g, kl_matmul(u, solve_transposed(svd_outside(v, in[6], inverse))));
    out[0] = g;
    return KL_OK;
}

kl_tensor solve_svd_by(const char *op, kl_region_fn *fn, kl_tensor a, kl_tensor *s, kl_tensor *vt)
{
    struct solve_matrices x;
    kl_tensor out[3];
    if (s)
        *s = kl_none;
    if (vt)
        *vt = kl_none;
    if (!s || !vt)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: %s is NULL", op, s ? "vt" : "s"), kl_poison();
    if (!solve_begin(op, &a, false, &x))
        return kl_poison();
    int64_t k = x.m < x.n ? x.m : x.n;
    if (!x.B || !k) {
        out[0] = solve_zeros(a, 3, (int64_t[]){x.B, x.m, k});
        out[1] = solve_zeros(a, 2, (int64_t[]){x.B, k});
        out[2] = solve_zeros(a, 3, (int64_t[]){x.B, x.n, k});
    } else {
        kl_custom_grad(fn, svd_backward, &x, 1, &a, 3, out);
    }
    out[0] = solve_result(&x, out[0]);
    *s = solve_result(&x, out[1]);
    *vt = solve_result(&x, solve_transposed(out[2]));
    return solve_end(out[0], 2, (kl_tensor *[]){s, vt});
}

kl_tensor kl_svd(kl_tensor a, kl_tensor *s, kl_tensor *vt)
{
    return solve_svd_by("svd", svd_fn, a, s, vt);
}
