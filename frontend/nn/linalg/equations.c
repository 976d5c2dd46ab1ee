/* General equations, inverses, determinants: Gaussian elimination with partial pivoting, a scan over columns; of more
 * than LU_BLOCK rows an LU factorization by halves of the columns (Toledo 1997, "Locality of reference in LU
 * decomposition with partial pivoting").  Gradients are computed from the results (Giles 2008, "An extended collection
 * of matrix derivative results"). */
#include "linalg.h"

/* Row p [B] of each matrix of w: [B, 1, columns] */
static kl_tensor row_of_each(const struct matrices *x, kl_tensor w, kl_tensor p)
{
    int64_t dims[KL_MAX_RANK];
    kl_shape(w, dims);
    if (x->B == 1)
        return kl_take(w, 1, p);
    return kl_take_along_axis(w, 1, kl_expand(kl_reshape(p, 3, (int64_t[]){x->B, 1, 1}), 3,
                                              (int64_t[]){x->B, 1, dims[2]}));
}

/* Carried: [a | b], and the sign of the permutation so far, [B].  Scanned: j.  Stacked: the pivots. */
static kl_status eliminate_column(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor w = in[0], j = in[2], at = kl_reshape(j, 1, (int64_t[]){1});
    kl_tensor rows = kl_arange(x->device, KL_I32, linalg_rows(w));
    kl_tensor column = kl_squeeze(kl_take(w, 2, at), 2), zero = same_number(w, 0); /* [B, n] */
    kl_tensor size = kl_where(kl_ge(rows, j), kl_abs(column), same_number(w, -1));
    kl_tensor p = kl_argmax(size, 1), in_p = kl_unsqueeze(p, -1), is_p = kl_eq(rows, in_p); /* [B, n] */
    kl_tensor row_j = kl_take(w, 1, at), row_p = row_of_each(x, w, p); /* [B, 1, columns] */
    kl_tensor pivot = kl_take_along_axis(column, 1, in_p); /* [B, 1] */
    column = kl_where(is_p, kl_take(column, 1, at), column);
    kl_tensor divisor = kl_where(kl_eq(pivot, zero), same_number(w, 1), pivot); /* of zeros below, too */
    kl_tensor factor = kl_where(kl_gt(rows, j), kl_div(column, divisor), zero); /* [B, n] */
    w = kl_where(kl_unsqueeze(kl_eq(rows, j), -1), row_p, kl_where(kl_unsqueeze(is_p, -1), row_j, w));
    out[0] = linalg_minus_product(w, kl_unsqueeze(factor, -1), row_p);
    out[1] = kl_where(kl_eq(p, j), in[1], kl_neg(in[1]));
    out[2] = kl_reshape(pivot, 1, (int64_t[]){x->B});
    return KL_OK;
}

/* out: [U | L^-1 P b], the sign, the pivots [n, B] */
static kl_status eliminate_all(struct matrices *x, kl_tensor w, kl_tensor *out)
{
    kl_tensor carried[2] = {w, kl_ones(x->device, x->dtype, 1, &x->B)}, columns = kl_arange(x->device, KL_I32, x->n);
    return kl_scan(eliminate_column, x, x->n, 2, carried, 1, &columns, 1, false, out);
}

/* ---- LU factorizations by halves ---- */

/* The rows of a matrix in another order, [B, n, m]; order: [B, n]. */
static kl_tensor lu_permuted(const struct matrices *x, kl_tensor a, kl_tensor order)
{
    int64_t dims[KL_MAX_RANK];
    kl_shape(a, dims);
    return kl_take_along_axis(a, 1, kl_expand(kl_unsqueeze(order, -1), 3, (int64_t[]){x->B, dims[1], dims[2]}));
}

/* A step with column j of some columns.  Carried: L below the diagonal of the columns before j, U above, and the rest
 * of the matrix, [B, n, m]; the order of its rows, [B, n]; the sign of that, [B].  Scanned: j. */
static kl_status lu_column(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor w = in[0], order = in[1], j = in[3], at = kl_reshape(j, 1, (int64_t[]){1}), zero = same_number(w, 0);
    kl_tensor rows = kl_arange(x->device, KL_I32, x->n), columns = kl_arange(x->device, KL_I32, x->m);
    kl_tensor column = kl_squeeze(kl_take(w, 2, at), 2); /* [B, n] */
    kl_tensor size = kl_where(kl_ge(rows, j), kl_abs(column), same_number(w, -1));
    kl_tensor p = kl_argmax(size, 1), in_p = kl_unsqueeze(p, -1), is_p = kl_eq(rows, in_p), is_j = kl_eq(rows, j);
    kl_tensor row_j = kl_take(w, 1, at), row_p = row_of_each(x, w, p); /* [B, 1, m] */
    kl_tensor pivot = kl_take_along_axis(column, 1, in_p); /* [B, 1] */
    column = kl_where(is_p, kl_take(column, 1, at), column);
    kl_tensor divisor = kl_where(kl_eq(pivot, zero), same_number(w, 1), pivot); /* of zeros below, too */
    kl_tensor below = kl_gt(rows, j), factor = kl_where(below, kl_div(column, divisor), zero); /* [B, n] */
    w = kl_where(kl_unsqueeze(is_j, -1), row_p, kl_where(kl_unsqueeze(is_p, -1), row_j, w));
    factor = kl_unsqueeze(factor, -1);
    below = kl_unsqueeze(below, -1);
    kl_tensor rest = kl_where(kl_gt(columns, j), linalg_minus_product(w, factor, row_p), w);
    out[0] = kl_where(kl_and(below, kl_eq(columns, j)), factor, rest);
    kl_tensor order_j = kl_take(order, 1, at), order_p = kl_take_along_axis(order, 1, in_p); /* [B, 1] */
    out[1] = kl_where(is_j, order_p, kl_where(is_p, order_j, order));
    out[2] = kl_where(kl_eq(p, j), in[2], kl_neg(in[2]));
    return KL_OK;
}

/* L with its diagonal of ones, of the first rows and columns of what lu_halves returns. */
static kl_tensor lu_lower(const struct matrices *x, kl_tensor packed, int64_t n)
{
    return kl_add(kl_tril(linalg_block(packed, 0, n, 0, n), -1), linalg_identity(x, n, n));
}

/* a [B, n, m], n >= m; out: L below the diagonal and U [B, n, m], the order of a's rows [B, n], its sign [B] */
static kl_status lu_halves(const struct matrices *x, kl_tensor a, kl_tensor *out)
{
    int64_t n = x->n, m = x->m, h = linalg_first_half(m);
    struct matrices half = *x;
    if (m <= BLOCK_ROWS) {
        kl_tensor order = kl_expand(kl_arange(x->device, KL_I32, n), 2, (int64_t[]){x->B, n});
        kl_tensor carried[3] = {a, order, kl_ones(x->device, x->dtype, 1, &x->B)};
        kl_tensor columns = kl_arange(x->device, KL_I32, m);
        return kl_scan(lu_column, &half, m, 3, carried, 1, &columns, 0, false, out);
    }
    kl_tensor left[3], right[3], top[2], in[2];
    half.m = h;
    kl_status status = lu_halves(&half, kl_narrow(a, 2, 0, h), left);
    if (status != KL_OK)
        return status;
    a = lu_permuted(x, kl_narrow(a, 2, h, m - h), left[1]);
    in[0] = lu_lower(x, left[0], h);
    in[1] = kl_narrow(a, 1, 0, h);
    struct matrices lower = {false, false, x->B, h, m - h, x->device, x->dtype, x->given};
    top[0] = kl_narrow(left[0], 1, 0, h);
    status = linalg_substitute_halves(&lower, in, 2, &top[1], 1);
    if (status != KL_OK)
        return status;
    kl_tensor bottom[2] = {kl_narrow(left[0], 1, h, n - h)};
    a = kl_sub(kl_narrow(a, 1, h, n - h), kl_matmul(bottom[0], top[1]));
    half.n = n - h;
    half.m = m - h;
    status = lu_halves(&half, a, right);
    bottom[0] = lu_permuted(x, bottom[0], right[1]);
    bottom[1] = right[0];
    kl_tensor order[2] = {kl_narrow(left[1], 1, 0, h),
                          kl_take_along_axis(kl_narrow(left[1], 1, h, n - h), 1, right[1])};
    out[0] = kl_concat(2, (kl_tensor[]){kl_concat(2, top, 2), kl_concat(2, bottom, 2)}, 1);
    out[1] = kl_concat(2, order, 1);
    out[2] = kl_mul(left[2], right[2]);
    return status;
}

/* in: a, b; out: x with a x = b */
static kl_status lu_solve(struct matrices *x, const kl_tensor *in, kl_tensor *out)
{
    struct matrices square = *x, triangle = *x;
    kl_tensor lu[3], part[2];
    square.m = x->n;
    kl_status status = lu_halves(&square, in[0], lu);
    if (status != KL_OK)
        return status;
    triangle.upper = triangle.transposed = false;
    part[0] = lu_lower(x, lu[0], x->n);
    part[1] = lu_permuted(x, in[1], lu[1]);
    status = linalg_substitute_halves(&triangle, part, 2, &part[1], 1);
    triangle.upper = true;
    part[0] = lu[0];
    return status == KL_OK ? linalg_substitute_halves(&triangle, part, 2, out, 1) : status;
}

/* ---- equations ---- */

/* in: a, b; out: x with a x = b */
static kl_status eliminate_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx, u = *x;
    kl_tensor r[3];
    (void)nin, (void)nout;
    if (x->n > LU_BLOCK)
        return lu_solve(x, in, out);
    kl_status status = eliminate_all(x, linalg_pad(x, kl_concat(2, in, 2)), r);
    kl_tensor rows = linalg_without_pad(r[0], 1, x->n);
    u.upper = true;
    u.transposed = false;
    out[0] = linalg_substitute(&u, kl_narrow(rows, 2, 0, x->n), kl_narrow(rows, 2, x->n, x->m));
    return status;
}

static kl_tensor solve_by_elimination(struct matrices *x, kl_tensor a, kl_tensor b)
{
    kl_tensor in[2] = {a, b}, out;
    if (x->B * x->n * x->m == 0)
        return kl_reshape(b, 3, (int64_t[]){x->B, x->n, x->m});
    struct small_matrix w;
    if (linalg_is_small(x, MAX_SMALL_ALONE)) {
        linalg_small_load(&w, x, a, 0, x->n);
        linalg_small_load(&w, x, b, x->n, x->m);
        linalg_small_eliminate(&w, NULL);
        linalg_small_substitute(&w, true, false);
        return linalg_small_store(&w, x, x->n, x->m);
    }
    linalg_for_each(eliminate_fn, x, in, 2, &out, 1);
    return out;
}

static kl_status solve_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = solve_by_elimination(ctx, in[0], in[1]);
    return KL_OK;
}

/* in: a, b, x, x's gradient */
static kl_status solve_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    (void)nin, (void)nout;
    out[1] = solve_by_elimination(x, linalg_transposed(in[0]), in[3]);
    out[0] = kl_neg(kl_matmul(out[1], linalg_transposed(in[2])));
    return KL_OK;
}

static kl_tensor solve_system(struct matrices *x, kl_tensor a, kl_tensor b)
{
    kl_tensor in[2] = {a, b}, y;
    kl_custom_grad(solve_fn, solve_backward, x, 2, in, 1, &y);
    return y;
}

kl_tensor kl_solve(kl_tensor a, kl_tensor b)
{
    struct view v, w;
    struct matrices x;
    struct thread *t = linalg_begin("solve", &a, &b, true, &v, &w, &x);
    if (!t)
        return op_failed();
    return compose_end(t, linalg_result(&x, "solve", solve_system(&x, a, b), &w.shape));
}

kl_tensor kl_inverse(kl_tensor a)
{
    struct view v;
    struct matrices x;
    struct thread *t = linalg_begin("inverse", &a, NULL, true, &v, NULL, &x);
    if (!t)
        return op_failed();
    kl_tensor one = linalg_identity(&x, x.n, x.n);
    return compose_end(t, linalg_result(&x, "inverse", solve_system(&x, a, one), &v.shape));
}

static kl_tensor det_of(kl_tensor sign, kl_tensor pivots)
{
    return kl_mul(sign, kl_prod(pivots, 1, (int[]){0}, false));
}

static kl_status det_scan(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct matrices *x = ctx;
    kl_tensor r[3];
    (void)nin, (void)nout;
    if (x->n > LU_BLOCK) {
        kl_status status = lu_halves(x, in[0], r);
        out[0] = det_of(r[2], kl_transpose(kl_diagonal(r[0], 0, 1, 2), 0, 1));
        return status;
    }
    kl_status status = eliminate_all(ctx, linalg_pad(ctx, in[0]), r);
    out[0] = det_of(r[1], r[2]);
    return status;
}

static kl_status det_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    kl_tensor sign = kl_none, pivots[MAX_SMALL];
    struct small_matrix w;
    if (!linalg_is_small(x, MAX_SMALL_ALONE))
        return linalg_for_each(det_scan, x, in, nin, out, nout);
    linalg_small_load(&w, x, in[0], 0, x->n);
    sign = kl_ones(x->device, x->dtype, 1, &x->B);
    linalg_small_eliminate(&w, &sign);
    for (int64_t i = 0; i < x->n; i++)
        pivots[i] = w.of[i][i];
    out[0] = det_of(sign, kl_stack(x->n, pivots, 0));
    return KL_OK;
}

/* in: a, det, its gradient; det a^-T */
static kl_status det_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor one = linalg_identity(x, x->n, x->n);
    kl_tensor scale = kl_reshape(kl_mul(in[1], in[2]), 3, (int64_t[]){x->B, 1, 1});
    out[0] = kl_mul(solve_by_elimination(x, linalg_transposed(in[0]), one), scale);
    return KL_OK;
}

kl_tensor kl_det(kl_tensor a)
{
    struct view v;
    struct matrices x;
    struct thread *t = linalg_begin("det", &a, NULL, true, &v, NULL, &x);
    kl_tensor y;
    if (!t)
        return op_failed();
    struct shape batch = v.shape;
    batch.rank -= 2;
    if (x.B * x.n == 0) {
        y = kl_add(kl_sum(a, 2, (int[]){1, 2}, false), same_number(a, 1)); /* a gradient flows to a, an empty one */
        return compose_end(t, linalg_result(&x, "det", y, &batch));
    }
    kl_custom_grad(det_fn, det_backward, &x, 1, &a, 1, &y);
    return compose_end(t, linalg_result(&x, "det", y, &batch));
}
