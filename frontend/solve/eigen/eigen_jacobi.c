/* Eigenvalues and eigenvectors of symmetric matrices on GPUs: Jacobi's method (rotations.c), which rotates n / 2 pairs
 * of rows at once, where QL steps wait for one rotation after the other. */
#include "eigen.h"

struct jacobi {
    const struct solve_matrices *x;
    int64_t n;       /* even */
    kl_tensor limit; /* [B]: elements up to it are zero */
    struct solve_pairs pairs;
};

/* The diagonals of the four halves of a [n, n, B], [n / 2, B] each. */
static kl_tensor jacobi_diagonal(kl_tensor a, int64_t row, int64_t column, int64_t half)
{
    a = kl_narrow(kl_narrow(a, 0, row, half), 1, column, half);
    return kl_transpose(kl_diagonal(a, 0, 0, 1), 0, 1);
}

/* a after a step: with the diagonal d [n, B], and zeros between the elements of a pair that was rotated. */
static kl_tensor jacobi_replace(const struct jacobi *e, kl_tensor a, kl_tensor d, kl_tensor rotated)
{
    kl_tensor next = kl_reshape(e->pairs.next, 3, (int64_t[]){1, e->n, 1});
    kl_tensor own = kl_reshape(e->pairs.next, 3, (int64_t[]){e->n, 1, 1});
    kl_tensor other = kl_reshape(e->pairs.other, 3, (int64_t[]){e->n, 1, 1});
    a = kl_where(kl_and(kl_eq(other, next), kl_unsqueeze(rotated, 1)), solve_number(a, 0), a);
    return kl_where(kl_eq(own, next), kl_unsqueeze(d, 1), a);
}

/* in: the matrix, and the eigenvectors as columns, [n, n, B]; out: the same, and which pairs were rotated */
static kl_status jacobi_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct jacobi *e = ctx;
    (void)nin, (void)nout;
    int64_t h = e->n / 2;
    kl_tensor a = in[0], p = jacobi_diagonal(a, 0, 0, h), q = jacobi_diagonal(a, h, h, h);
    kl_tensor r = jacobi_diagonal(a, 0, h, h), rotate = kl_gt(kl_abs(r), e->limit);
    struct solve_rotation x = solve_rotation(rotate, p, q, r, &e->pairs);
    kl_tensor move = kl_mul(x.t, kl_where(rotate, r, solve_number(r, 0)));
    kl_tensor d = solve_moved(kl_sub(p, move), kl_add(q, move), &e->pairs);
    a = solve_rotate(solve_rotate(a, 0, &x, &e->pairs), 1, &x, &e->pairs);
    out[0] = jacobi_replace(e, a, d, solve_moved(rotate, rotate, &e->pairs));
    out[1] = solve_rotate(in[1], 1, &x, &e->pairs);
    out[2] = rotate;
    return KL_OK;
}

/* values [B, N] and vectors [B, N, N], of which those that belong to the row added to an odd matrix are dropped */
static void jacobi_sort(int64_t n, int64_t N, kl_tensor values, kl_tensor vectors, kl_tensor *out)
{
    kl_tensor key = values;
    if (N > n) {
        kl_tensor own = kl_squeeze(kl_narrow(vectors, 1, n, 1), 1);
        key = kl_where(kl_eq(own, solve_number(own, 1)), solve_number(own, INFINITY), key);
    }
    kl_tensor order = kl_narrow(kl_argsort(key, 1, false), 1, 0, n);
    int64_t dims[KL_MAX_RANK];
    kl_shape(vectors, dims);
    out[0] = kl_take_along_axis(values, 1, order);
    order = kl_expand(kl_unsqueeze(order, 1), 3, (int64_t[]){dims[0], n, n});
    out[1] = kl_take_along_axis(kl_narrow(vectors, 1, 0, n), 2, order);
}

kl_status solve_jacobi(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_matrices *x = ctx;
    (void)nin, (void)nout;
    int64_t n = x->n, N = n + n % 2;
    kl_tensor a = in[0], poison = solve_poison(a);
    kl_tensor largest = kl_max(kl_abs(a), 2, (int[]){1, 2}, false); /* [B] */
    struct jacobi e = {.x = x, .n = N, .pairs = solve_pairs(x->device, N),
                      .limit = kl_mul(largest, solve_number(a, solve_epsilon(x->dtype) / 16))};
    if (N > n)
        a = kl_pad(a, NULL, (int64_t[]){0, 1, 1}, 0);
    kl_tensor arrays[2] = {kl_permute(a, (int[]){1, 2, 0}), kl_permute(solve_identity(x, N), (int[]){1, 2, 0})};
    solve_sweeps(jacobi_step, &e, N, arrays);
    jacobi_sort(n, N, kl_diagonal(arrays[0], 0, 0, 1), kl_permute(arrays[1], (int[]){2, 0, 1}), out);
    out[0] = kl_add(out[0], poison);
    out[1] = kl_add(out[1], kl_unsqueeze(poison, -1));
    return KL_OK;
}
