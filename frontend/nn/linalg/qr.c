/* QR by Householder's reflections: a scan over columns; of more than QR_BLOCK columns by halves, of which the second is
 * multiplied by the product of the first one's reflections.  The gradient is that of Walter and Lehmann 2018,
 * "Algorithmic differentiation of linear algebra functions". */
#include "linalg.h"

/* Carried: the matrix that becomes R, [B, n, m].  Scanned: j.  Stacked: the reflections I - v v^T, v [B, n]. */
static kl_status reflect_column(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor w = in[0], j = in[1], at = kl_reshape(j, 1, (int64_t[]){1});
    kl_tensor rows = kl_arange(x->device, KL_I32, linalg_rows(w)), zero = same_number(w, 0), one = same_number(w, 1);
    kl_tensor column = kl_where(kl_ge(rows, j), kl_squeeze(kl_take(w, 2, at), 2), zero);
    kl_tensor max = kl_max(kl_abs(column), 1, (int[]){1}, true); /* so that no square overflows */
    kl_tensor safe = kl_where(kl_eq(max, zero), one, max), u = kl_div(column, safe);
    kl_tensor length = kl_sqrt(kl_sum(kl_square(u), 1, (int[]){1}, true)), first = kl_take(u, 1, at);
    kl_tensor sign = kl_where(kl_lt(first, zero), same_number(w, -1), one);
    u = kl_where(kl_eq(rows, j), kl_add(first, kl_mul(sign, length)), u);
    kl_tensor norm = kl_sum(kl_square(u), 1, (int[]){1}, true), nothing = kl_eq(norm, zero);
    kl_tensor below = kl_sum(kl_where(kl_gt(rows, j), kl_abs(column), zero), 1, (int[]){1}, true);
    nothing = kl_or(nothing, kl_eq(below, zero)); /* it is triangular already */
    kl_tensor scale = kl_sqrt(kl_div(same_number(w, 2), kl_where(nothing, one, norm)));
    u = kl_where(nothing, zero, kl_mul(u, scale));
    kl_tensor row = kl_matmul(kl_unsqueeze(u, 1), w); /* [B, 1, m] */
    out[0] = kl_sub(w, kl_mul(kl_unsqueeze(u, 2), row));
    out[1] = u;
    return KL_OK;
}

static kl_status reflect_back(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_sub(in[0], kl_mul(kl_unsqueeze(in[1], 2), kl_matmul(kl_unsqueeze(in[1], 1), in[0])));
    return KL_OK;
}

/* a [B, n, m]; out: the vectors v of the reflections as columns [B, n, m], r [B, m, m] */
static kl_status qr_columns(struct matrices *x, kl_tensor a, kl_tensor *out)
{
    kl_tensor columns = kl_arange(x->device, KL_I32, x->m), r[2];
    a = linalg_pad(x, a);
    kl_status status = kl_scan(reflect_column, x, x->m, 1, &a, 1, &columns, 1, false, r);
    out[0] = r[1];
    out[1] = kl_triu(linalg_without_pad(kl_narrow(r[0], 1, 0, x->m), 2, x->m), 0);
    return status;
}

/* T w or T^T w, where the product of the reflections of v is I - v T v^T: the inverse of T + T^T is v^T v (Walker
 * 1988), in whose diagonal is 2, or 0 where nothing is reflected. */
static kl_tensor reflect_factor(const struct matrices *x, kl_tensor v, kl_tensor w, bool transposed)
{
    int64_t dims[KL_MAX_RANK];
    kl_shape(w, dims);
    struct matrices t = {true, transposed, x->B, dims[1], dims[2], x->device, x->dtype, x->given};
    kl_tensor one = linalg_identity(x, t.n, t.n), y = kl_none;
    kl_tensor in[2] = {kl_add(kl_triu(kl_matmul(linalg_transposed(v), v), 1), one), w};
    linalg_substitute_halves(&t, in, 2, &y, 1);
    return y;
}

/* As qr_columns, by halves of the columns. */
static kl_status qr_halves(struct matrices *x, kl_tensor a, kl_tensor *out)
{
    if (x->m <= QR_BLOCK) {
        kl_status status = qr_columns(x, a, out);
        out[0] = linalg_without_pad(kl_permute(out[0], (int[]){1, 2, 0}), 1, x->n);
        return status;
    }
    int64_t n = x->n, m = x->m, h = linalg_first_half(m);
    struct matrices half = *x;
    kl_tensor left[2], right[2];
    half.m = h;
    kl_status status = qr_halves(&half, kl_narrow(a, 2, 0, h), left);
    if (status != KL_OK)
        return status;
    a = kl_narrow(a, 2, h, m - h);
    a = kl_sub(a, kl_matmul(left[0], reflect_factor(x, left[0], kl_matmul(linalg_transposed(left[0]), a), true)));
    half.n = n - h;
    half.m = m - h;
    status = qr_halves(&half, kl_narrow(a, 1, h, n - h), right);
    kl_tensor top[2] = {left[1], kl_narrow(a, 1, 0, h)};
    kl_tensor bottom[2] = {kl_zeros(x->device, x->dtype, 3, (int64_t[]){x->B, m - h, h}), right[1]};
    right[0] = kl_pad(right[0], (int64_t[]){0, h, 0}, NULL, 0);
    out[0] = kl_concat(2, (kl_tensor[]){left[0], right[0]}, 2);
    out[1] = kl_concat(2, (kl_tensor[]){kl_concat(2, top, 2), kl_concat(2, bottom, 2)}, 1);
    return status;
}

static kl_status qr_scan(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor r[2], q = linalg_identity(x, x->n, x->m);
    kl_status status = x->m > QR_BLOCK ? qr_halves(x, in[0], r) : qr_columns(x, in[0], r);
    if (status != KL_OK)
        return status;
    if (x->m > QR_BLOCK) {
        kl_tensor w = linalg_transposed(kl_narrow(r[0], 1, 0, x->m));
        out[0] = kl_sub(q, kl_matmul(r[0], reflect_factor(x, r[0], w, false)));
    } else {
        q = linalg_pad(x, q);
        status = kl_scan(reflect_back, x, x->m, 1, &q, 1, r, 0, true, out);
        out[0] = linalg_without_pad(linalg_without_pad(out[0], 1, x->n), 2, x->m);
    }
    out[1] = r[1];
    return status;
}

/* in [B, n, m], n >= m; out: q, r */
static kl_status qr_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    bool together = linalg_is_small(ctx, MAX_SMALL_ALONE);
    return together ? qr_scan(ctx, in, nin, out, nout) : linalg_for_each(qr_scan, ctx, in, nin, out, nout);
}

/* in: a, q, r, their gradients: (q' + q copyltu(r r'^T - q'^T q)) r^-T, copyltu: the lower triangle, mirrored */
static kl_status qr_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices x = *(struct matrices *)ctx;
    (void)nin, (void)nout;
    kl_tensor q = in[1], r = in[2], dq = in[3], dr = in[4];
    kl_tensor M = kl_sub(kl_matmul(r, linalg_transposed(dr)), kl_matmul(linalg_transposed(dq), q));
    M = kl_add(kl_tril(M, 0), linalg_transposed(kl_tril(M, -1)));
    kl_tensor b = kl_add(dq, kl_matmul(q, M)); /* x r^T = b, so r x^T = b^T */
    x.upper = true;
    x.transposed = false;
    int64_t k = x.m;
    x.m = x.n;
    x.n = k;
    out[0] = linalg_transposed(linalg_substitute(&x, r, linalg_transposed(b)));
    return KL_OK;
}

kl_tensor kl_qr(kl_tensor a, kl_tensor *r)
{
    static const char op[] = "qr";
    struct view v;
    struct matrices x;
    struct thread *t = thread_self();
    if (t && !r)
        return refuse(t, KL_ERR_ARGUMENT, "%s: r is NULL", op);
    if (r)
        *r = kl_none;
    if (!t || !(t = linalg_begin(op, &a, NULL, false, &v, NULL, &x)))
        return op_failed();
    struct shape sq = v.shape, sr = v.shape;
    uint32_t rank = v.shape.rank;
    int64_t m = x.m, k = x.n < m ? x.n : m;
    sq.dim[rank - 1] = sr.dim[rank - 2] = k;
    kl_tensor out[2], rest = kl_none;
    if (x.B * x.n * m == 0) {
        kl_tensor zero = kl_sum(a, 2, (int[]){1, 2}, true); /* a gradient flows to a, an empty one */
        out[0] = kl_expand(zero, 3, (int64_t[]){x.B, x.n, k});
        out[1] = kl_expand(zero, 3, (int64_t[]){x.B, k, m});
    } else {
        if (k < m) {
            rest = kl_narrow(a, 2, k, m - k);
            a = kl_narrow(a, 2, 0, k);
        }
        x.m = k;
        kl_custom_grad(qr_fn, qr_backward, &x, 1, &a, 2, out);
        if (rest.id) {
            kl_tensor parts[2] = {out[1], kl_matmul(linalg_transposed(out[0]), rest)};
            out[1] = kl_concat(2, parts, 2);
        }
    }
    out[0] = linalg_result(&x, op, out[0], &sq);
    out[1] = linalg_result(&x, op, out[1], &sr);
    compose_end_all(t, out, 2);
    *r = out[1];
    return out[0];
}
