/* The pseudoinverse, and least squares.
 *
 * A matrix of full rank takes a QR factorization, which costs a tenth of the singular values: a = q r gives r^-1 q^T.
 * Its norm tells the condition number, so that singular values are computed only if a matrix of the batch may have some
 * that count as 0; which of the two a matrix gets does not depend on the others. */
#include "eigen.h"

struct pinv { struct solve_matrices x; double tolerance; };

/* [B] Frobenius norms. */
static kl_tensor pinv_norm(kl_tensor a) { return kl_sqrt(kl_sum(kl_mul(a, a), 2, (int[]){1, 2}, false)); }

/* Of matrices whose rows or columns are independent: by QR.  *deficient: [B] others, and those of which it is not sure;
 * what they get has no meaning. */
static kl_tensor pinv_by_qr(const struct pinv *p, kl_tensor a, kl_tensor *deficient)
{
    enum { MARGIN = 8 }; /* the norm of a computed inverse is that of the inverse to less than this factor */
    bool wide = p->x.m < p->x.n;
    kl_tensor scale = solve_divisor(kl_max(kl_abs(a), 2, (int[]){1, 2}, true)), r; /* no square overflows */
    a = kl_div(wide ? solve_transposed(a) : a, scale);
    kl_tensor q = kl_qr(a, &r), inverse = kl_triangular_solve(r, solve_transposed(q), true, false);
    kl_tensor size = kl_mul(pinv_norm(r), pinv_norm(inverse)); /* at least the condition number */
    *deficient = kl_not(kl_lt(size, solve_number(size, 1 / (MARGIN * p->tolerance))));
    inverse = kl_div(inverse, scale);
    return wide ? solve_transposed(inverse) : inverse;
}

/* in: a, the pseudoinverses by QR, and [B] for which of them that by singular values is to be taken; out: the
 * pseudoinverses */
static kl_status pinv_by_svd(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct pinv *p = ctx;
    (void)nin, (void)nout;
    kl_tensor r[3];
    solve_svd(&p->x, in[0], r);
    kl_tensor limit = kl_mul(kl_max(r[1], 1, (int[]){1}, true), solve_number(in[0], p->tolerance));
    kl_tensor v = kl_mul(r[2], kl_unsqueeze(solve_reciprocal(r[1], limit), 1));
    out[0] = kl_where(kl_reshape(in[2], 3, (int64_t[]){p->x.B, 1, 1}), kl_matmul(v, solve_transposed(r[0])), in[1]);
    return KL_OK;
}

static kl_status pinv_keep(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = in[1];
    return KL_OK;
}

static kl_status pinv_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_tensor deficient, by_qr = pinv_by_qr(ctx, in[0], &deficient), all[3] = {in[0], by_qr, deficient};
    (void)nin;
    return kl_cond(kl_any(deficient, 0, NULL, false), pinv_by_svd, pinv_keep, ctx, 3, all, nout, out);
}

/* in: a, p, p': -p^T p' p^T + (1 - a p) p'^T p p^T + p^T p p'^T (1 - p a) (Golub and Pereyra 1973) */
static kl_status pinv_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_tensor a = in[0], p = in[1], pt = solve_transposed(p), gt = solve_transposed(in[2]);
    kl_tensor left = kl_matmul(gt, kl_matmul(p, pt)), right = kl_matmul(kl_matmul(pt, p), gt);
    left = kl_sub(left, kl_matmul(a, kl_matmul(p, left)));
    right = kl_sub(right, kl_matmul(kl_matmul(right, p), a));
    out[0] = kl_sub(kl_add(left, right), kl_matmul(kl_matmul(pt, in[2]), pt));
    return KL_OK;
}

/* The pseudoinverse of a [B, m, n] in an open composite. */
static kl_tensor pinv_record(const struct solve_matrices *x, kl_tensor a, double tolerance)
{
    struct pinv p = {*x, tolerance};
    kl_tensor out;
    if (!tolerance)
        p.tolerance = solve_epsilon(x->dtype) * (double)(x->m > x->n ? x->m : x->n);
    if (!x->B || !x->m || !x->n)
        return solve_zeros(a, 3, (int64_t[]){x->B, x->n, x->m});
    kl_custom_grad(pinv_fn, pinv_backward, &p, 1, &a, 1, &out);
    return out;
}

static bool pinv_tolerance_valid(const char *op, double tolerance)
{
    if (!(tolerance >= 0 && tolerance < 1))
        kl_failf(NULL, KL_ERR_ARGUMENT, "%s: the tolerance %g is outside of 0..1", op, tolerance);
    return tolerance >= 0 && tolerance < 1;
}

kl_tensor kl_pinv(kl_tensor a, double tolerance)
{
    struct solve_matrices x;
    if (!pinv_tolerance_valid("pinv", tolerance) || !solve_begin("pinv", &a, false, &x))
        return kl_poison();
    return solve_end(solve_result(&x, pinv_record(&x, a, tolerance)), 0, NULL);
}

kl_tensor kl_lstsq(kl_tensor a, kl_tensor b, double tolerance)
{
    struct solve_matrices x;
    if (!pinv_tolerance_valid("lstsq", tolerance) || !solve_begin("lstsq", &a, false, &x) ||
        solve_operand(&x, "the right side", x.m, &b) < 0)
        return kl_poison();
    return solve_end(solve_result(&x, kl_matmul(pinv_record(&x, a, tolerance), b)), 0, NULL);
}
