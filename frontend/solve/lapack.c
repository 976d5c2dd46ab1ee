/* Factors of large matrices by LAPACK: the custom ops of lapack_calls.c, with the gradients of Kiln's own functions. */
#include "lapack.h"

kl_status kl_lapack_load(const char *path)
{
    return lapack_ready("lapack_load", path) ? KL_OK : kl_last_error_code();
}

/* solve_begin, where there is a library, and it takes matrices of a's size.  false: reported. */
static bool lapack_begin(const char *op, kl_tensor *a, bool square, struct solve_matrices *x)
{
    return lapack_ready(op, NULL) && lapack_fits(op, *a) && solve_begin(op, a, square, x);
}

bool lapack_fits(const char *op, kl_tensor a)
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
    if (!lapack_ready("lapack_eigh", NULL) || !lapack_fits("lapack_eigh", a))
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
    if (!lapack_ready("lapack_svd", NULL) || !lapack_fits("lapack_svd", a))
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
    if (!lapack_begin("lapack_solve", &a, true, &x))
        return kl_poison();
    int64_t m = solve_operand(&x, "the right side", x.n, &b);
    kl_tensor in[2] = {a, b}, out = b;
    if (m < 0)
        return kl_poison();
    if (x.B && x.n && m)
        kl_custom_grad(lapack_solve_fn, lapack_solve_backward, &x, 2, in, 1, &out);
    return solve_end(solve_result(&x, out), 0, NULL);
}

/* a's inverse; a [B, n, n] */
static kl_tensor lapack_inverted(kl_tensor a)
{
    kl_tensor out = kl_none;
    kl_custom("kiln.lapack_inverse", NULL, 0, 1, &a, 1, &out);
    return out;
}

static kl_status lapack_inverse_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = lapack_inverted(in[0]);
    return KL_OK;
}

/* in: a, x, x' */
static kl_status lapack_inverse_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_tensor t = solve_transposed(in[1]);
    out[0] = kl_neg(kl_matmul(kl_matmul(t, in[2]), t));
    return KL_OK;
}

kl_tensor kl_lapack_inverse(kl_tensor a)
{
    struct solve_matrices x;
    if (!lapack_begin("lapack_inverse", &a, true, &x))
        return kl_poison();
    kl_tensor out = a, in = a;
    if (x.B && x.n)
        kl_custom_grad(lapack_inverse_fn, lapack_inverse_backward, &x, 1, &in, 1, &out);
    return solve_end(solve_result(&x, out), 0, NULL);
}

/* in: a [B, m, n], b [B, m, c] */
static kl_tensor lapack_least(kl_tensor a, kl_tensor b)
{
    kl_tensor in[2] = {a, b}, out = kl_none;
    kl_custom("kiln.lapack_lstsq", NULL, 0, 2, in, 1, &out);
    return out;
}

static kl_status lapack_lstsq_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = lapack_least(in[0], in[1]);
    return KL_OK;
}

/* in: a, b, x, x'.  With p the pseudoinverse of a and w = p^T x': w for b, and for a, whose rank does not change,
 * -w x^T + (b - a x) (p w)^T + (p^T x) (x' - a^T w)^T (Golub and Pereyra 1973). */
static kl_status lapack_lstsq_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_matrices *s = ctx;
    (void)nin, (void)nout;
    kl_tensor a = in[0], t = solve_transposed(a), w = lapack_least(t, in[3]);
    kl_tensor g = kl_neg(kl_matmul(w, solve_transposed(in[2])));
    if (s->m > s->n)
        g = kl_add(g, kl_matmul(kl_sub(in[1], kl_matmul(a, in[2])), solve_transposed(lapack_least(a, w))));
    if (s->m < s->n)
        g = kl_add(g, kl_matmul(lapack_least(t, in[2]), solve_transposed(kl_sub(in[3], kl_matmul(t, w)))));
    out[0] = g;
    out[1] = w;
    return KL_OK;
}

kl_tensor kl_lapack_lstsq(kl_tensor a, kl_tensor b)
{
    struct solve_matrices x;
    if (!lapack_begin("lapack_lstsq", &a, false, &x))
        return kl_poison();
    int64_t c = solve_operand(&x, "the right side", x.m, &b);
    kl_tensor in[2] = {a, b}, out = kl_none;
    if (c < 0)
        return kl_poison();
    if (x.B && x.m && x.n && c)
        kl_custom_grad(lapack_lstsq_fn, lapack_lstsq_backward, &x, 2, in, 1, &out);
    else
        out = kl_matmul(solve_zeros(a, 3, (int64_t[]){x.B, x.n, x.m}), b);
    return solve_end(solve_result(&x, out), 0, NULL);
}

/* ---- determinants ---- */

/* in: a; out: the determinant, its sign, the logarithm of its size; [B] */
static kl_status lapack_det_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx;
    return kl_custom("kiln.lapack_det", NULL, 0, nin, in, nout, out);
}

/* in: a, the three results, their gradients: (det det' + log') a^-T */
static kl_status lapack_det_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_tensor scale = kl_add(kl_mul(in[1], in[4]), in[6]);
    out[0] = kl_mul(solve_transposed(lapack_inverted(in[0])), kl_unsqueeze(kl_unsqueeze(scale, -1), -1));
    return KL_OK;
}

/* false: reported; out: as of lapack_det_fn */
static bool lapack_det_record(const char *op, kl_tensor a, struct solve_matrices *x, kl_tensor *out)
{
    if (!lapack_begin(op, &a, true, x))
        return false;
    if (x->B && x->n) {
        kl_custom_grad(lapack_det_fn, lapack_det_backward, x, 1, &a, 3, out);
    } else {
        out[2] = solve_zeros(a, 1, &x->B);
        out[0] = out[1] = kl_add(out[2], solve_number(a, 1));
    }
    for (int i = 0; i < 3; i++)
        out[i] = solve_result(x, out[i]);
    return true;
}

kl_tensor kl_lapack_det(kl_tensor a)
{
    struct solve_matrices x;
    kl_tensor out[3];
    return lapack_det_record("lapack_det", a, &x, out) ? solve_end(out[0], 0, NULL) : kl_poison();
}

kl_tensor kl_lapack_slogdet(kl_tensor a, kl_tensor *logarithm)
{
    struct solve_matrices x;
    kl_tensor out[3];
    if (!logarithm)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "lapack_slogdet: logarithm is NULL"), kl_poison();
    *logarithm = kl_none;
    if (!lapack_det_record("lapack_slogdet", a, &x, out))
        return kl_poison();
    *logarithm = out[2];
    return solve_end(out[1], 1, &logarithm);
}

/* ---- QR ---- */

static kl_status lapack_qr_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx;
    return kl_custom("kiln.lapack_qr", NULL, 0, nin, in, nout, out);
}

/* in: a, q, r, their gradients: (q' + q copyltu(r r'^T - q'^T q)) r^-T, copyltu: the lower triangle, mirrored */
static kl_status lapack_qr_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    kl_tensor M = kl_sub(kl_matmul(in[2], solve_transposed(in[4])), kl_matmul(solve_transposed(in[3]), in[1]));
    M = kl_add(kl_tril(M, 0), solve_transposed(kl_tril(M, -1)));
    kl_tensor b = kl_add(in[3], kl_matmul(in[1], M)); /* g r^T = b, so r g^T = b^T */
    out[0] = solve_transposed(lapack_divide(in[2], solve_transposed(b), false));
    return KL_OK;
}

kl_tensor kl_lapack_qr(kl_tensor a, kl_tensor *r)
{
    struct solve_matrices x;
    kl_tensor out[2];
    if (!r)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "lapack_qr: r is NULL"), kl_poison();
    *r = kl_none;
    if (!lapack_begin("lapack_qr", &a, false, &x))
        return kl_poison();
    int64_t k = x.m < x.n ? x.m : x.n;
    if (x.B && k) { /* of the first k columns; the others are those of q^T a */
        kl_tensor left = kl_narrow(a, 2, 0, k);
        kl_custom_grad(lapack_qr_fn, lapack_qr_backward, &x, 1, &left, 2, out);
        if (x.n > k) {
            kl_tensor rest = kl_matmul(solve_transposed(out[0]), kl_narrow(a, 2, k, x.n - k));
            out[1] = kl_concat(2, (kl_tensor[]){out[1], rest}, 2);
        }
    } else {
        out[0] = solve_zeros(a, 3, (int64_t[]){x.B, x.m, k});
        out[1] = solve_zeros(a, 3, (int64_t[]){x.B, k, x.n});
    }
    *r = solve_result(&x, out[1]);
    return solve_end(solve_result(&x, out[0]), 1, &r);
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
    if (!lapack_begin("lapack_cholesky", &a, true, &x))
        return kl_poison();
    kl_tensor out = a, in = a; /* its symmetric part is what the call factors */
    if (x.B && x.n)
        kl_custom_grad(lapack_cholesky_fn, lapack_cholesky_backward, &x, 1, &in, 1, &out);
    return solve_end(solve_result(&x, out), 0, NULL);
}
