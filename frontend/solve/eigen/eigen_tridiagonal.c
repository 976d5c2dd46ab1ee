/* Symmetric matrices to tridiagonal ones: Householder's method (LAPACK's sytrd), of all matrices of a batch at once.
 *
 * A step reads the matrix once: the rank-2 update of the step before is delayed, and is applied while the product with
 * the next vector is computed.  After half of the columns the trailing matrix, of half the size, is reduced by itself.
 *
 * Products sum along the axis that is contiguous in memory, but of a single matrix along the other one, so that a
 * matrix has the same bits in any batch: adjacent elements are added in another order than elements with others between
 * them (passes/graph/numerics.c).  The matrix stays symmetric to the last bit for that. */
#include "eigen.h"

struct reflect {
    const struct solve_matrices *x;
    int64_t n; /* of the matrix at hand */
    int axis;  /* that products sum along */
};

/* a v, or v^T a, [n, B] */
static kl_tensor reflect_product(const struct reflect *r, kl_tensor a, kl_tensor v)
{
    return kl_sum(kl_mul(a, kl_unsqueeze(v, 1 - r->axis)), 1, &r->axis, false);
}

/* a - v w^T - w v^T */
static kl_tensor reflect_symmetric(kl_tensor a, kl_tensor v, kl_tensor w)
{
    return kl_sub(a, kl_add(solve_outer(v, w), solve_outer(w, v)));
}

/* z - t v^T, or z - v t^T */
static kl_tensor reflect_vectors(const struct reflect *r, kl_tensor z, kl_tensor v, kl_tensor t)
{
    return kl_sub(z, r->axis ? solve_outer(t, v) : solve_outer(v, t));
}

/* Reduces column k.  Carried: the matrix a [n, n, B], rows z [n, N, B], or their transposes, and the delayed updates:
 * v w^T + w v^T is to be subtracted from a, v t^T from z.  Scanned: k.  Stacked: elements k of the diagonal and of the
 * subdiagonal, [B]. */
static kl_status reflect_column(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct reflect *r = ctx;
    (void)nin, (void)nout;
    kl_tensor v = in[2], w = in[3], t = in[4], k = in[5], rows = kl_unsqueeze(kl_arange(r->x->device, KL_I32, r->n), 1);
    kl_tensor next = kl_add(k, solve_number(k, 1)), is_k = kl_eq(rows, k);
    kl_tensor column = kl_squeeze(kl_take(in[0], 0, kl_reshape(k, 1, (int64_t[]){1})), 0); /* [n, B] */
    column = kl_sub(kl_sub(column, kl_mul(solve_column_pick(is_k, v), w)), kl_mul(solve_column_pick(is_k, w), v));
    struct solve_reflector h = solve_reflector(column, rows, next);
    out[0] = reflect_symmetric(in[0], v, w);
    out[1] = reflect_vectors(r, in[1], v, t);
    out[2] = v = h.v;
    kl_tensor p = kl_where(kl_gt(rows, k), kl_mul(reflect_product(r, out[0], v), h.tau), solve_number(v, 0));
    kl_tensor half = kl_mul(kl_mul(h.tau, solve_number(v, 0.5)), solve_column_sum(kl_mul(p, v)));
    out[3] = kl_sub(p, kl_mul(half, v));
    out[4] = kl_mul(reflect_product(r, out[1], v), h.tau);
    out[5] = kl_squeeze(solve_column_pick(is_k, column), 0);
    out[6] = kl_squeeze(h.left, 0);
    return KL_OK;
}

/* arrays: a, z, and, set, the diagonal and the subdiagonal */
static void reflect_part(const struct solve_matrices *x, int64_t n, kl_tensor *arrays)
{
    enum { MIN_HALF = 8 };
    int64_t steps = n < 2 * MIN_HALF ? n : n / 2, dims[3] = {0};
    struct reflect r = {x, n, x->B > 1};
    kl_tensor a = arrays[0], k = kl_arange(x->device, KL_I32, steps), out[7];
    kl_shape(arrays[1], dims);
    kl_tensor none = kl_zeros(x->device, x->dtype, 2, (int64_t[]){n, x->B});
    kl_tensor carried[5] = {a, arrays[1], none, none};
    carried[4] = kl_zeros(x->device, x->dtype, 2, (int64_t[]){dims[1 - r.axis], x->B});
    kl_scan(reflect_column, &r, steps, 5, carried, 1, &k, 2, false, out);
    arrays[1] = reflect_vectors(&r, out[1], out[2], out[4]);
    arrays[2] = out[5];
    arrays[3] = out[6];
    if (steps == n)
        return;
    int64_t left = n - steps;
    a = kl_narrow(kl_narrow(out[0], 0, steps, left), 1, steps, left);
    a = reflect_symmetric(a, kl_narrow(out[2], 0, steps, left), kl_narrow(out[3], 0, steps, left));
    kl_tensor rest[4] = {a, kl_narrow(arrays[1], r.axis, steps, left)};
    reflect_part(x, left, rest);
    arrays[1] = kl_concat(2, (kl_tensor[]){kl_narrow(arrays[1], r.axis, 0, steps), rest[1]}, r.axis);
    for (int i = 2; i < 4; i++)
        arrays[i] = kl_concat(2, (kl_tensor[]){arrays[i], rest[i]}, 0);
}

void solve_tridiagonal(const struct solve_matrices *x, kl_tensor *arrays)
{
    arrays[1] = kl_permute(solve_identity(x, x->n), (int[]){1, 2, 0});
    reflect_part(x, x->n, arrays);
    if (x->B > 1)
        arrays[1] = kl_transpose(arrays[1], 0, 1);
}
