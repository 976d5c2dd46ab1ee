/* Triangular equations: a scan over rows; of more than BLOCK_ROWS rows by halves. */
#include "linalg.h"

/* Carried: the remainder of b.  Scanned: column j of the matrix, its diagonal element, j.  Stacked: row j of x. */
static kl_status substitute_column(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor rest = in[0], column = in[1], diagonal = in[2], j = in[3];
    kl_tensor row = kl_div(kl_squeeze(kl_take(rest, 1, kl_reshape(j, 1, (int64_t[]){1})), 1),
                           kl_unsqueeze(diagonal, -1));
    kl_tensor rows = kl_arange(x->device, KL_I32, linalg_rows(rest)), zero = same_number(column, 0);
    kl_tensor to_go = x->upper != x->transposed ? kl_lt(rows, j) : kl_gt(rows, j);
    column = kl_unsqueeze(kl_where(to_go, column, zero), -1); /* [B, n, 1] */
    out[0] = linalg_minus_product(rest, column, kl_unsqueeze(row, 1));
    out[1] = row;
    return KL_OK;
}

static kl_status substitute_scan(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    kl_tensor a = linalg_pad(x, in[0]), b = linalg_pad(x, in[1]), r[2];
    kl_tensor columns = kl_permute(a, x->transposed ? (int[]){1, 0, 2} : (int[]){2, 0, 1});
    kl_tensor scanned[3] = {linalg_without_pad(columns, 0, x->n), kl_transpose(kl_diagonal(in[0], 0, 1, 2), 0, 1),
                            kl_arange(x->device, KL_I32, x->n)};
    (void)nin, (void)nout;
    kl_status status = kl_scan(substitute_column, x, x->n, 1, &b, 3, scanned, 1, x->upper != x->transposed, r);
    out[0] = linalg_without_pad(kl_permute(r[1], (int[]){1, 0, 2}), 2, x->m);
    return status;
}

/* The halves of the rows, the one that is known first with those above or below it. */
kl_status linalg_substitute_halves(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices half = *(struct matrices *)ctx;
    if (half.n <= BLOCK_ROWS)
        return substitute_scan(ctx, in, nin, out, nout);
    bool backward = half.upper != half.transposed;
    int64_t n = half.n, h = linalg_first_half(n), at[2] = {backward ? h : 0, backward ? 0 : h}, rows[2];
    kl_tensor b, x[2];
    for (int i = 0; i < 2; i++) {
        half.n = rows[i] = at[i] ? n - h : h;
        b = kl_narrow(in[1], 1, at[i], rows[i]);
        if (i) {
            kl_tensor between = half.transposed ? linalg_transposed(linalg_block(in[0], at[0], rows[0], at[1], rows[1]))
                                                : linalg_block(in[0], at[1], rows[1], at[0], rows[0]);
            b = kl_sub(b, kl_matmul(between, x[0]));
        }
        kl_tensor part[2] = {linalg_block(in[0], at[i], rows[i], at[i], rows[i]), b};
        kl_status status = linalg_substitute_halves(&half, part, 2, &x[i], 1);
        if (status != KL_OK)
            return status;
    }
    out[0] = kl_concat(2, (kl_tensor[]){x[backward], x[!backward]}, 1);
    return KL_OK;
}

kl_tensor linalg_substitute(struct matrices *x, kl_tensor a, kl_tensor b)
{
    kl_tensor in[2] = {a, b}, out;
    struct small_matrix w;
    if (x->B * x->n * x->m == 0)
        return kl_reshape(b, 3, (int64_t[]){x->B, x->n, x->m});
    if (linalg_is_small(x, MAX_SMALL_ALONE)) {
        linalg_small_load(&w, x, a, 0, x->n);
        linalg_small_load(&w, x, b, x->n, x->m);
        linalg_small_substitute(&w, x->upper, x->transposed);
        return linalg_small_store(&w, x, x->n, x->m);
    }
    linalg_for_each(linalg_substitute_halves, x, in, 2, &out, 1);
    return out;
}

static kl_status triangular_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = linalg_substitute(ctx, in[0], in[1]);
    return KL_OK;
}

/* in: a, b, x, x's gradient */
static kl_status triangular_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices x = *(struct matrices *)ctx;
    (void)nin, (void)nout;
    x.transposed = !x.transposed;
    out[1] = linalg_substitute(&x, in[0], in[3]);
    kl_tensor left = x.transposed ? out[1] : in[2], right = x.transposed ? in[2] : out[1];
    kl_tensor outer = kl_neg(kl_matmul(left, linalg_transposed(right)));
    out[0] = x.upper ? kl_triu(outer, 0) : kl_tril(outer, 0);
    return KL_OK;
}

static kl_tensor solve_triangular(struct matrices *x, kl_tensor a, kl_tensor b, bool upper, bool transposed)
{
    kl_tensor in[2] = {a, b}, y;
    x->upper = upper;
    x->transposed = transposed;
    kl_custom_grad(triangular_fn, triangular_backward, x, 2, in, 1, &y);
    return y;
}

kl_tensor kl_triangular_solve(kl_tensor a, kl_tensor b, bool upper, bool transposed)
{
    struct view v, w;
    struct matrices x;
    struct thread *t = linalg_begin("triangular_solve", &a, &b, true, &v, &w, &x);
    if (!t)
        return op_failed();
    return compose_end(t, linalg_result(&x, "triangular_solve", solve_triangular(&x, a, b, upper, transposed),
                                          &w.shape));
}
