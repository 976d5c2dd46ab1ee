/* Equations with tridiagonal matrices: elimination with partial pivoting, a scan over rows, and substitution from the
 * last row, another scan.
 *
 * What a step waits for of the step before it decides how long a step takes.  In the elimination that is one division,
 * for both quotients are computed before it is known which of two rows has the pivot, then a multiplication with an
 * addition (kl_fma); in the substitution one of these, for a row of U is divided by its pivot before. */
#include "solve.h"

struct tridiagonal { const struct solve_matrices *x; int64_t n, columns; };

/* Carried: what is left of the row before, from its diagonal on, d and u, and its right side r.  Scanned: a row, from
 * the element below the diagonal on, and its right side.  Stacked: the row of U before this one, and its right side. */
static kl_status tridiagonal_eliminate(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_tensor d = in[0], u = in[1], r = in[2], row_c = in[3], row_d = in[4], row_u = in[5], row_r = in[6];
    (void)ctx, (void)nin, (void)nout;
    kl_tensor swap = kl_gt(kl_abs(row_c), kl_abs(d));
    kl_tensor factor = kl_neg(kl_where(swap, kl_div(d, row_c), kl_div(row_c, d)));
    out[3] = kl_where(swap, row_c, d);
    out[4] = kl_where(swap, row_d, u);
    out[5] = kl_where(swap, row_u, solve_number(d, 0));
    out[6] = kl_where(swap, row_r, r);
    out[0] = kl_fma(factor, out[4], kl_where(swap, u, row_d));
    out[1] = kl_where(swap, kl_mul(factor, row_u), row_u);
    out[2] = kl_fma(factor, out[6], kl_where(swap, r, row_r));
    return KL_OK;
}

/* Carried: two rows of x.  Scanned: the row of U before them, and its right side.  Stacked: the first of the two. */
static kl_status tridiagonal_substitute(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_tensor next = in[0], after = in[1], d = in[2], u = kl_neg(kl_div(in[3], d)), v = kl_neg(kl_div(in[4], d));
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_fma(u, next, kl_fma(v, after, kl_div(in[5], d)));
    out[1] = out[2] = next;
    return KL_OK;
}

/* x [B, n, m] for the three diagonals [B, n], of which element i belongs to row i, and a right side [B, n, m].  The
 * row before the first is that of an identity. */
static kl_tensor tridiagonal_solved(const struct tridiagonal *t, const kl_tensor *diagonals, kl_tensor right)
{
    const struct solve_matrices *x = t->x;
    int64_t n = t->n, each[2] = {x->B, 1}, rows[2] = {x->B, t->columns};
    kl_tensor i = kl_arange(x->device, KL_I32, n), zero = solve_number(right, 0);
    kl_tensor below = kl_where(kl_eq(i, solve_number(i, 0)), zero, diagonals[0]);
    kl_tensor above = kl_where(kl_eq(i, solve_number(i, (double)(n - 1))), zero, diagonals[2]);
    kl_tensor scanned[4] = {below, diagonals[1], above, kl_transpose(right, 0, 1)}, out[7];
    kl_tensor carried[3] = {kl_ones(x->device, x->dtype, 2, each), kl_zeros(x->device, x->dtype, 2, each),
                            kl_zeros(x->device, x->dtype, 2, rows)};
    for (int k = 0; k < 3; k++)
        scanned[k] = kl_unsqueeze(kl_transpose(scanned[k], 0, 1), -1);
    kl_scan(tridiagonal_eliminate, NULL, n, 3, carried, 4, scanned, 4, false, out);
    carried[0] = kl_div(out[2], out[0]);
    carried[1] = carried[2];
    kl_scan(tridiagonal_substitute, NULL, n, 2, carried, 4, out + 3, 1, true, out);
    return kl_transpose(out[2], 0, 1);
}

/* in: the diagonals below, on and above the main one, the right side */
static kl_status tridiagonal_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = tridiagonal_solved(ctx, in, in[3]);
    return KL_OK;
}

/* [B, n, ...] with element i + by in i, zeros where there is none; by: -1 or 1. */
static kl_tensor tridiagonal_shift(kl_tensor a, int64_t n, int64_t by)
{
    return kl_pad(kl_narrow(a, 1, by > 0, n - 1), (int64_t[]){0, by < 0, 0}, (int64_t[]){0, by > 0, 0}, 0);
}

/* in: the diagonals, the right side, x, its gradient: y with a^T y = x' for the right side, -y_i x_j for element i, j
 */
static kl_status tridiagonal_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct tridiagonal *t = ctx;
    kl_tensor transposed[3] = {tridiagonal_shift(in[2], t->n, -1), in[1], tridiagonal_shift(in[0], t->n, 1)};
    (void)nin, (void)nout;
    kl_tensor x = in[4], y = out[3] = tridiagonal_solved(t, transposed, in[5]);
    kl_tensor other[3] = {tridiagonal_shift(x, t->n, -1), x, tridiagonal_shift(x, t->n, 1)};
    for (int k = 0; k < 3; k++)
        out[k] = kl_neg(kl_sum(kl_mul(y, other[k]), 1, (int[]){2}, false));
    return KL_OK;
}

/* false: reported. */
static bool tridiagonal_operands(const char *op, const kl_tensor *d)
{
    static const char *const what[] = {"the diagonal below", "the diagonal", "the diagonal above"};
    char text[3][SOLVE_SHAPE_TEXT];
    int64_t dims[3][KL_MAX_RANK];
    int rank[3];
    for (int i = 0; i < 3; i++) {
        if (kl_operand(op, what[i], d[i], text[i], sizeof text[i]) != KL_OK)
            return false;
        rank[i] = kl_shape(d[i], dims[i]);
    }
    bool fits = rank[0] == rank[1] && rank[2] == rank[1] && rank[1] > 0;
    for (int i = 0; i < 3 && fits; i += 2)
        fits = !memcmp(dims[i], dims[1], (size_t)rank[1] * sizeof *dims[1]) && kl_dtype_of(d[i]) == kl_dtype_of(d[1]);
    if (!fits)
        kl_failf(NULL, KL_ERR_SHAPE, "%s: the three diagonals must be of one shape [...,n] and dtype, got %s, %s and "
                 "%s", op, text[0], text[1], text[2]);
    return fits;
}

kl_tensor kl_tridiagonal_solve(kl_tensor below, kl_tensor diagonal, kl_tensor above, kl_tensor b)
{
    static const char op[] = "tridiagonal_solve";
    kl_tensor in[4] = {below, diagonal, above, b}, out = b, main;
    struct solve_matrices x;
    if (!tridiagonal_operands(op, in) || !solve_begin_block(op))
        return kl_poison();
    main = kl_unsqueeze(diagonal, -2); /* a matrix of one row */
    if (!solve_begin(op, &main, false, &x))
        return solve_end(kl_none, 0, NULL);
    struct tridiagonal t = {&x, x.n, solve_operand(&x, "the right side", x.n, &in[3])};
    for (int k = 0; k < 3 && t.columns >= 0; k++)
        in[k] = kl_reshape(x.given == x.dtype ? in[k] : kl_cast(in[k], x.dtype), 2, (int64_t[]){x.B, x.n});
    if (t.columns > 0 && x.B && x.n)
        kl_custom_grad(tridiagonal_fn, tridiagonal_backward, &t, 4, in, 1, &out);
    else
        out = in[3];
    if (t.columns >= 0)
        out = solve_end(solve_result(&x, out), 0, NULL);
    return solve_end(t.columns < 0 ? kl_none : out, 0, NULL);
}
