/* Eigenvalues and eigenvectors of symmetric matrices, by tridiagonal ones (eigen_tridiagonal.c, eigen_ql.c), on GPUs by
 * rotations (eigen_jacobi.c).  The gradient is that of Giles 2008, "An extended collection of matrix derivative
 * results". */
#include "eigen.h"

static kl_status eigen_block(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_matrices *x = ctx;
    (void)nin, (void)nout;
    int64_t n = x->n;
    kl_tensor poison = solve_poison(in[0]);
    kl_tensor scale = kl_max(kl_abs(in[0]), 2, (int[]){1, 2}, true); /* [B, 1, 1] so that no square overflows */
    scale = solve_divisor(scale);
    kl_tensor t[4] = {kl_permute(kl_div(in[0], scale), (int[]){1, 2, 0})};
    solve_tridiagonal(x, t);
    kl_tensor arrays[3] = {t[2], t[3], t[1]};
    solve_ql(x, arrays);
    kl_tensor order = kl_argsort(arrays[0], 0, false); /* [n, B] */
    out[0] = kl_transpose(kl_take_along_axis(arrays[0], 0, order), 0, 1);
    order = kl_expand(kl_unsqueeze(order, 1), 3, (int64_t[]){n, n, x->B});
    out[1] = kl_permute(kl_take_along_axis(arrays[2], 0, order), (int[]){2, 1, 0});
    out[0] = kl_add(kl_mul(out[0], kl_squeeze(scale, -1)), poison);
    out[1] = kl_add(out[1], kl_unsqueeze(poison, -1));
    return KL_OK;
}

/* in: a; out: eigenvalues [B, n], eigenvectors [B, n, n] */
static kl_status eigen_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_matrices *x = ctx;
    if (kl_device_kind_of(x->device) > KL_DEVICE_CPU)
        return solve_jacobi(ctx, in, nin, out, nout);
    return solve_in_blocks(eigen_block, x, in[0], out, nout);
}

/* in: a, values l, vectors v, their gradients: v (diag l' + F (v^T v')) v^T, symmetric, F_ij = 1 / (l_j - l_i), but 0
 * where the two are equal to rounding */
static kl_status eigen_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor l = in[1], v = in[2], difference = kl_sub(kl_unsqueeze(l, 1), kl_unsqueeze(l, 2));
    kl_tensor largest = kl_max(kl_abs(l), 1, (int[]){1}, true); /* [B, 1] */
    kl_tensor limit = kl_mul(largest, solve_number(l, solve_epsilon(x->dtype) * (double)x->n));
    kl_tensor equal = kl_le(kl_abs(difference), kl_unsqueeze(limit, 1)), one = solve_number(l, 1);
    kl_tensor inner = kl_div(kl_matmul(solve_transposed(v), in[4]), kl_where(equal, one, difference));
    inner = kl_add(kl_where(equal, solve_number(l, 0), inner), kl_diagonal_matrix(in[3], 0));
    kl_tensor g = kl_matmul(kl_matmul(v, inner), solve_transposed(v));
    out[0] = kl_mul(kl_add(g, solve_transposed(g)), solve_number(g, 0.5));
    return KL_OK;
}

kl_tensor solve_eigh(const char *op, kl_region_fn *fn, kl_tensor a, kl_tensor *vectors)
{
    struct solve_matrices x;
    kl_tensor out[2];
    if (vectors)
        *vectors = kl_none;
    if (!solve_begin(op, &a, true, &x))
        return kl_poison();
    if (!x.B || x.n < 2) {
        out[0] = kl_reshape(a, 2, (int64_t[]){x.B, x.n});
        out[1] = kl_add(kl_mul(a, solve_number(a, 0)), solve_identity(&x, x.n));
    } else {
        a = kl_mul(kl_add(a, solve_transposed(a)), solve_number(a, 0.5));
        kl_custom_grad(fn, eigen_backward, &x, 1, &a, 2, out);
    }
    out[0] = solve_result(&x, out[0]);
    if (vectors)
        *vectors = solve_result(&x, out[1]);
    return solve_end(out[0], 1, &vectors);
}

kl_tensor kl_eigh(kl_tensor a, kl_tensor *vectors)
{
    return solve_eigh("eigh", eigen_fn, a, vectors);
}
