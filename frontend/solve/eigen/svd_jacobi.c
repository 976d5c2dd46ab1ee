/* Singular values on GPUs: rotations make the columns of the matrix orthogonal (one-sided Jacobi: Hestenes 1958), n / 2
 * pairs at once.  A last QR of the sorted columns gives orthonormal vectors also where singular values are zero. */
#include "eigen.h"

struct svd {
    int64_t n; /* even */
    double limit;
    struct solve_pairs pairs;
};

static kl_tensor svd_dot(kl_tensor a, kl_tensor b) { return kl_sum(kl_mul(a, b), 1, (int[]){0}, false); }

/* in: columns [m, n, B], and the right vectors [n, n, B]; out: the same, and which pairs were rotated */
static kl_status svd_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct svd *s = ctx;
    (void)nin, (void)nout;
    int64_t h = s->n / 2;
    kl_tensor left = kl_narrow(in[0], 1, 0, h), right = kl_narrow(in[0], 1, h, h);
    kl_tensor p = svd_dot(left, left), q = svd_dot(right, right), r = svd_dot(left, right); /* [h, B] */
    kl_tensor limit = kl_mul(kl_mul(kl_sqrt(p), kl_sqrt(q)), solve_number(p, s->limit));
    kl_tensor rotate = kl_gt(kl_abs(r), limit);
    struct solve_rotation x = solve_rotation(rotate, p, q, r, &s->pairs);
    out[0] = solve_rotate(in[0], 1, &x, &s->pairs);
    out[1] = solve_rotate(in[1], 1, &x, &s->pairs);
    out[2] = rotate;
    return KL_OK;
}

/* Element order[b, j] of the columns of a [B, m, n]. */
static kl_tensor svd_columns(kl_tensor a, kl_tensor order)
{
    int64_t dims[KL_MAX_RANK], n[KL_MAX_RANK];
    kl_shape(a, dims);
    kl_shape(order, n);
    return kl_take_along_axis(a, 2, kl_expand(kl_unsqueeze(order, 1), 3, (int64_t[]){dims[0], dims[1], n[1]}));
}

/* in: a [B, n, n]; out: its columns, rotated until they are orthogonal, and the rotations, [B, N, N]; N: n, or the next
 * even number, with a column of zeros */
static kl_status svd_rotate(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_matrices *x = ctx;
    int64_t dims[KL_MAX_RANK] = {0};
    kl_tensor a = in[0];
    (void)nin, (void)nout;
    kl_shape(a, dims);
    int64_t n = dims[2], N = n + n % 2;
    struct svd s = {.n = N, .pairs = solve_pairs(x->device, N),
                    .limit = 4 * solve_epsilon(x->dtype) * sqrt((double)n)};
    if (N > n)
        a = kl_pad(a, NULL, (int64_t[]){0, 0, 1}, 0);
    kl_tensor arrays[2] = {kl_permute(a, (int[]){1, 2, 0}), kl_permute(solve_identity(x, N), (int[]){1, 2, 0})};
    solve_sweeps(svd_step, &s, N, arrays);
    for (int i = 0; i < 2; i++)
        out[i] = kl_permute(arrays[i], (int[]){2, 0, 1});
    return KL_OK;
}

void solve_svd_jacobi(const struct solve_matrices *x, int64_t n, kl_tensor a, kl_tensor *out)
{
    kl_tensor rotated[2], zero = solve_number(a, 0), one = solve_number(a, 1);
    solve_in_blocks(svd_rotate, x, a, rotated, 2);
    kl_tensor columns = rotated[0], v = rotated[1];
    kl_tensor size = kl_sqrt(kl_sum(kl_mul(columns, columns), 1, (int[]){1}, false)), key = size; /* [B, N] */
    if (n % 2) { /* the column that was added is last */
        kl_tensor own = kl_squeeze(kl_narrow(v, 1, n, 1), 1);
        key = kl_where(kl_eq(own, one), solve_number(own, -1), key);
    }
    kl_tensor order = kl_narrow(kl_argsort(key, 1, true), 1, 0, n), r;
    kl_tensor u = kl_qr(svd_columns(columns, order), &r);
    kl_tensor sign = kl_where(kl_lt(kl_diagonal(r, 0, 1, 2), zero), solve_number(a, -1), one);
    out[0] = kl_mul(u, kl_unsqueeze(sign, 1));
    out[1] = kl_take_along_axis(size, 1, order);
    out[2] = svd_columns(kl_narrow(v, 1, 0, n), order);
}
