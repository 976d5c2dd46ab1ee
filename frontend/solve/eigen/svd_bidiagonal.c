/* Square matrices to bidiagonal ones: reflections from both sides, of all matrices of a batch at once (LAPACK's gebrd).
 * As in eigen_tridiagonal.c the update of a step is delayed to the products of the next, and after half of the columns
 * the trailing matrix is reduced by itself.  A single matrix, whose products sum along the other axis there, too, has
 * its transpose updated beside it. */
#include "eigen.h"

struct bidiagonal {
    kl_device device;
    kl_dtype dtype;
    int64_t n, B;
    int axis; /* that products with zu and zv sum along; 0: there is the transpose of a */
};

/* Carried; AT if axis is 0. */
enum { A, ZU, ZV, U, Y, X, V, TU, TV, AT, CARRIED };

static kl_tensor bidiagonal_product(kl_tensor a, kl_tensor v, int axis)
{
    return kl_sum(kl_mul(a, kl_unsqueeze(v, 1 - axis)), 1, &axis, false);
}

/* a - u y^T - x v^T */
static kl_tensor bidiagonal_rest(kl_tensor a, kl_tensor u, kl_tensor y, kl_tensor x, kl_tensor v)
{
    return kl_sub(kl_sub(a, solve_outer(u, y)), solve_outer(x, v));
}

/* z - t u^T, or z - u t^T */
static kl_tensor bidiagonal_vectors(const struct bidiagonal *b, kl_tensor z, kl_tensor u, kl_tensor t)
{
    return kl_sub(z, b->axis ? solve_outer(t, u) : solve_outer(u, t));
}

/* Carried: the matrix a [n, n, B], columns zu and zv [N, n, B] or, if axis is 0, rows, and the delayed updates: u
 * y^T + x v^T from a, tu u^T from zu, tv v^T from zv.  Scanned: k.  Stacked: elements k of the diagonal and of the
 * superdiagonal, [B]. */
static kl_status bidiagonal_column(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct bidiagonal *b = ctx;
    (void)nout;
    kl_tensor u = in[U], y = in[Y], x = in[X], v = in[V], k = in[nin - 1], at = kl_reshape(k, 1, (int64_t[]){1});
    kl_tensor rows = kl_unsqueeze(kl_arange(b->device, KL_I32, b->n), 1), is_k = kl_eq(rows, k);
    kl_tensor behind = kl_gt(rows, k), zero = solve_number(u, 0);
    kl_tensor column = kl_squeeze(kl_take(in[A], 1, at), 1), row = kl_squeeze(kl_take(in[A], 0, at), 0); /* [n, B] */
    column = kl_sub(kl_sub(column, kl_mul(u, solve_column_pick(is_k, y))), kl_mul(x, solve_column_pick(is_k, v)));
    row = kl_sub(kl_sub(row, kl_mul(solve_column_pick(is_k, u), y)), kl_mul(solve_column_pick(is_k, x), v));
    struct solve_reflector left = solve_reflector(column, rows, k);
    out[A] = bidiagonal_rest(in[A], u, y, x, v);
    if (!b->axis)
        out[AT] = bidiagonal_rest(in[AT], y, u, v, x);
    out[ZU] = bidiagonal_vectors(b, in[ZU], u, in[TU]);
    out[ZV] = bidiagonal_vectors(b, in[ZV], v, in[TV]);
    out[U] = u = left.v;
    out[Y] = y = kl_where(behind, kl_mul(bidiagonal_product(out[A], u, 0), left.tau), zero);
    row = kl_where(behind, kl_sub(row, y), zero);
    struct solve_reflector right = solve_reflector(row, rows, kl_add(k, solve_number(k, 1)));
    out[V] = v = right.v;
    x = bidiagonal_product(out[b->axis ? A : AT], v, b->axis);
    x = kl_sub(x, kl_mul(u, solve_column_sum(kl_mul(y, v))));
    out[X] = kl_where(behind, kl_mul(x, right.tau), zero);
    out[TU] = kl_mul(bidiagonal_product(out[ZU], u, b->axis), left.tau);
    out[TV] = kl_mul(bidiagonal_product(out[ZV], v, b->axis), right.tau);
    out[nin - 1] = kl_squeeze(left.left, 0);
    out[nin] = kl_squeeze(right.left, 0);
    return KL_OK;
}

/* arrays: a, zu, zv, and, set, the diagonal and the superdiagonal */
static void bidiagonal_part(struct bidiagonal b, kl_tensor *arrays)
{
    enum { MIN_HALF = 8 };
    int64_t n = b.n, steps = n < 2 * MIN_HALF ? n : n / 2, rest = n - steps, count = b.axis ? AT : CARRIED, dims[3];
    kl_tensor carried[CARRIED] = {arrays[0], arrays[1], arrays[2]}, out[CARRIED + 2], part[5];
    kl_tensor k = kl_arange(b.device, KL_I32, steps);
    kl_shape(arrays[1], dims);
    for (int i = U; i < AT; i++)
        carried[i] = kl_zeros(b.device, b.dtype, 2, (int64_t[]){i < TU ? n : dims[1 - b.axis], b.B});
    carried[AT] = kl_transpose(arrays[0], 0, 1);
    kl_scan(bidiagonal_column, &b, steps, count, carried, 1, &k, 2, false, out);
    arrays[1] = bidiagonal_vectors(&b, out[ZU], out[U], out[TU]);
    arrays[2] = bidiagonal_vectors(&b, out[ZV], out[V], out[TV]);
    arrays[3] = out[count];
    arrays[4] = out[count + 1];
    if (!rest)
        return;
    for (int i = U; i <= V; i++)
        out[i] = kl_narrow(out[i], 0, steps, rest);
    part[0] = kl_narrow(kl_narrow(out[A], 0, steps, rest), 1, steps, rest);
    part[0] = bidiagonal_rest(part[0], out[U], out[Y], out[X], out[V]);
    for (int i = 1; i < 3; i++)
        part[i] = kl_narrow(arrays[i], b.axis, steps, rest);
    b.n = rest;
    bidiagonal_part(b, part);
    for (int i = 1; i < 5; i++) {
        int axis = i < 3 ? b.axis : 0;
        kl_tensor done = i < 3 ? kl_narrow(arrays[i], axis, 0, steps) : arrays[i];
        arrays[i] = kl_concat(2, (kl_tensor[]){done, part[i]}, axis);
    }
}

void solve_bidiagonal(const struct solve_matrices *x, kl_tensor a, kl_tensor *out)
{
    int64_t dims[3] = {0};
    kl_shape(a, dims);
    struct bidiagonal b = {x->device, x->dtype, dims[0], x->B, x->B > 1};
    kl_tensor one = kl_expand(kl_unsqueeze(kl_eye(x->device, x->dtype, b.n, b.n), -1), 3, (int64_t[]){b.n, b.n, b.B});
    kl_tensor arrays[5] = {a, one, one};
    bidiagonal_part(b, arrays);
    for (int i = 0; i < 4; i++) { /* from the last column on */
        kl_tensor t = arrays[i < 2 ? 3 + i : i - 1];
        out[i] = kl_flip(i > 1 && b.axis ? kl_transpose(t, 0, 1) : t, 1, (int[]){0});
    }
    out[1] = kl_pad(kl_narrow(out[1], 0, 1, b.n - 1), NULL, (int64_t[]){1, 0}, 0);
}
