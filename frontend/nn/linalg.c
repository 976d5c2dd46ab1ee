/* Cholesky, QR, triangular and general equations: a scan over columns computes the values (straight code those of small
 * matrices), and a custom gradient is computed from the results (Giles 2008, "An extended collection of matrix
 * derivative results"; Murray 2016, "Differentiation of the Cholesky decomposition"; Walter and Lehmann 2018 for QR).
 */
#include "frontend/nn/compose.h"

struct matrices {
    bool upper, transposed;
    int64_t B, n, m;               /* of flat operands: [B, n, n] and [B, n, m] */
    kl_device device;
    /* dtype to compute in; dtype of the operands, which compose_end cannot know after a region */
    kl_dtype dtype, given;
};

static kl_tensor matrix_t(kl_tensor a) { return kl_transpose(a, -1, -2); }

/* Checks a matrix, n by n if square, and, unless b is NULL, a right side with its batch; NULL: reported.  Sets the
 * flattened operands. */
static struct thread *matrices_begin(const char *op, kl_tensor *a, kl_tensor *b, bool square,
                                     struct view *v, struct view *w, struct matrices *x)
{
    struct thread *t = thread_self();
    char ta[SHAPE_TEXT], tb[SHAPE_TEXT];
    if (!t || !describe(t, op, "the matrix", *a, v) || (b && !describe(t, op, "the right side", *b, w)))
        return NULL;
    uint32_t rank = v->shape.rank;
    bool fits = rank >= 2 && (!square || v->shape.dim[rank - 1] == v->shape.dim[rank - 2]);
    if (fits && b)
        fits = w->shape.rank == rank && !memcmp(w->shape.dim, v->shape.dim, (rank - 1) * sizeof *w->shape.dim);
    if (!fits) {
        fail(t, KL_ERR_SHAPE, "%s: needs %s, got %s%s%s", op,
             b ? "[...,n,n] and [...,n,m]" : square ? "[...,n,n]" : "[...,m,n]", shape_text(&v->shape, ta, sizeof ta),
             b ? " and " : "", b ? shape_text(&w->shape, tb, sizeof tb) : "");
        return NULL;
    }
    if (!dtype_is_float(v->dtype) || (b && w->dtype != v->dtype)) {
        fail(t, KL_ERR_TYPE, "%s: needs one floating dtype, got %s%s%s", op, dtype_name(v->dtype),
             b ? " and " : "", b ? dtype_name(w->dtype) : "");
        return NULL;
    }
    if (!axes_are_numbers(t, op, &v->shape, rank - 2, 2) || !(t = checked_begin(op)))
        return NULL;
    *x = (struct matrices){.B = product_of_lengths(v->shape.dim, (int)rank - 2), .n = v->shape.dim[rank - 2],
                           .m = b ? w->shape.dim[rank - 1] : v->shape.dim[rank - 1], .device = v->device};
    x->given = autocast_is_on(t) ? (kl_dtype)dtype_compute(v->dtype) : (kl_dtype)v->dtype;
    if (x->B == INT64_MIN)
        return compose_end(t, kl_none), NULL;
    *a = widen_view(t, *a, v);
    x->dtype = (kl_dtype)v->dtype;
    *a = kl_reshape(*a, 3, (int64_t[]){x->B, x->n, square ? x->n : x->m});
    if (b)
        *b = kl_reshape(widen(t, *b), 3, (int64_t[]){x->B, x->n, x->m});
    return t;
}

/* A result in its shape and dtype. */
static kl_tensor matrices_result(const struct matrices *x, const char *op, kl_tensor a, const struct shape *s)
{
    a = reshape_to(op, a, s);
    return x->given != x->dtype ? kl_cast(a, x->given) : a;
}

/* of straight code: rows of a matrix, and of one without a batch of at least MIN_BATCH */
enum { MAX_SMALL = 8, MAX_SMALL_ALONE = 3, MIN_BATCH = 8 };

/* ---- matrices of a batch, one after the other ---- */

struct each_matrix { kl_region_fn *fn; const struct matrices *x; };

static kl_status compute_one(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct each_matrix *each = ctx;
    struct matrices one = *each->x;
    kl_tensor matrix[2];
    one.B = 1;
    for (int64_t i = 0; i < nin; i++)
        matrix[i] = kl_unsqueeze(in[i], 0);
    kl_status status = each->fn(&one, matrix, nin, out, nout);
    for (int64_t i = 0; i < nout; i++)
        out[i] = kl_squeeze(out[i], 0);
    return status;
}

/* fn of [B, ...], whose first argument is a struct matrices.  On processors of one matrix at a time, which stays in the
 * cache through all steps; a scan that carries nothing is shared out over threads.  GPUs compute all at once. */
static kl_status for_each_matrix(kl_region_fn *fn, struct matrices *x, const kl_tensor *in, int64_t nin,
                                 kl_tensor *out, int64_t nout)
{
    struct each_matrix each = {fn, x};
    if (x->B == 1 || kl_device_kind_of(x->device) > KL_DEVICE_CPU)
        return fn(x, in, nin, out, nout);
    return kl_scan(compute_one, &each, x->B, 0, NULL, nin, in, nout, false, out);
}

/* Zeros behind the rows and columns of matrices of which each step computes whole rows: what a processor has stored by
 * a part of a vector it is slow to load again. */
static kl_tensor pad_to_vectors(const struct matrices *x, kl_tensor a)
{
    enum { VECTOR_BYTES = 64 };
    int64_t dims[KL_MAX_RANK], high[3] = {0}, lanes = VECTOR_BYTES / (int64_t)kl_dtype_size(x->dtype);
    kl_shape(a, dims);
    for (int i = 1; i < 3 && x->n > MAX_SMALL && kl_device_kind_of(x->device) <= KL_DEVICE_CPU; i++)
        high[i] = dims[i] > 0 ? (lanes - dims[i] % lanes) % lanes : 0;
    return high[1] + high[2] ? kl_pad(a, NULL, high, 0) : a;
}

/* The first n of the axis, of which pad_to_vectors has added others. */
static kl_tensor without_pad(kl_tensor a, int axis, int64_t n)
{
    int64_t dims[KL_MAX_RANK];
    kl_shape(a, dims);
    return n >= 0 && dims[axis] != n ? kl_narrow(a, axis, 0, n) : a;
}

static int64_t rows_of(kl_tensor a)
{
    int64_t dims[KL_MAX_RANK] = {0};
    kl_shape(a, dims);
    return dims[1];
}

/* ---- matrices of few rows: each element is a tensor [B], and no loop is left ----
 *
 * The values are the same bits as those of the scans below, so that a matrix has the same results in any batch.  A scan
 * has fewer nodes, which counts where there is one matrix of more than a few rows. */

/* max_alone: rows of a matrix without a batch */
static bool is_small(const struct matrices *x, int64_t max_alone)
{
    bool few = x->n <= (x->B < 0 || x->B >= MIN_BATCH ? MAX_SMALL : max_alone);
    return few && x->m >= 0 && x->m <= MAX_SMALL; /* a right side may have a symbolic number of columns */
}

struct small_matrix {
    int64_t n, columns; /* n rows; of the n columns of a matrix, and of those of a right side behind it */
    kl_tensor of[MAX_SMALL][2 * MAX_SMALL];
};

/* Columns from `at` on, from a [B, n, columns]. */
static void small_load(struct small_matrix *w, const struct matrices *x, kl_tensor a, int64_t at, int64_t columns)
{
    w->n = x->n;
    w->columns = at + columns;
    a = kl_reshape(a, 2, (int64_t[]){x->B, x->n * columns});
    for (int64_t i = 0; i < x->n; i++)
        for (int64_t j = 0; j < columns; j++)
            w->of[i][at + j] = kl_squeeze(kl_narrow(a, 1, i * columns + j, 1), 1);
}

static kl_tensor small_store(const struct small_matrix *w, const struct matrices *x, int64_t at, int64_t columns)
{
    kl_tensor all[MAX_SMALL * MAX_SMALL];
    for (int64_t i = 0; i < w->n; i++)
        memcpy(all + i * columns, &w->of[i][at], (size_t)columns * sizeof *all);
    return kl_reshape(kl_stack(w->n * columns, all, 1), 3, (int64_t[]){x->B, w->n, columns});
}

/* c - a b, rounded once */
static kl_tensor minus_product(kl_tensor c, kl_tensor a, kl_tensor b) { return kl_fma(kl_neg(a), b, c); }

/* w[i][k] - factor w[j][k], for columns from `first` on */
static void small_subtract(struct small_matrix *w, int64_t i, kl_tensor factor, int64_t j, int64_t first)
{
    for (int64_t k = first; k < w->columns; k++)
        w->of[i][k] = minus_product(w->of[i][k], factor, w->of[j][k]);
}

/* Exchanges row j and the row behind it in which column j is largest, if it is larger.  Whether that happened. */
static kl_tensor small_pivot(struct small_matrix *w, int64_t j)
{
    kl_tensor larger[MAX_SMALL], largest = kl_abs(w->of[j][j]), later = kl_none;
    for (int64_t i = j + 1; i < w->n; i++) {
        kl_tensor size = kl_abs(w->of[i][j]);
        larger[i] = kl_gt(size, largest);
        largest = kl_where(larger[i], size, largest);
    }
    kl_tensor before[2 * MAX_SMALL];
    memcpy(before, w->of[j], sizeof before);
    for (int64_t k = j; k < w->columns; k++)
        for (int64_t i = j + 1; i < w->n; i++)
            w->of[j][k] = kl_where(larger[i], w->of[i][k], w->of[j][k]);
    for (int64_t i = w->n - 1; i > j; i--) {
        kl_tensor is_pivot = later.id ? kl_and(larger[i], kl_not(later)) : larger[i];
        later = later.id ? kl_or(larger[i], later) : larger[i];
        for (int64_t k = j; k < w->columns; k++)
            w->of[i][k] = kl_where(is_pivot, before[k], w->of[i][k]);
    }
    return later;
}

/* Gaussian elimination; *sign, unless it is NULL, gets that of the permutation, [B]. */
static void small_eliminate(struct small_matrix *w, kl_tensor *sign)
{
    for (int64_t j = 0; j + 1 < w->n; j++) {
        kl_tensor moved = small_pivot(w, j), pivot = w->of[j][j];
        if (sign)
            *sign = kl_where(moved, kl_neg(*sign), *sign);
        kl_tensor none = kl_eq(pivot, same_number(pivot, 0)); /* zeros below, too */
        for (int64_t i = j + 1; i < w->n; i++)
            small_subtract(w, i, kl_where(none, w->of[i][j], kl_div(w->of[i][j], pivot)), j, j + 1);
    }
}

/* Replaces the right side by the solution of the triangular equations. */
static void small_substitute(struct small_matrix *w, bool upper, bool transposed)
{
    bool backward = upper != transposed;
    for (int64_t s = 0; s < w->n; s++) {
        int64_t j = backward ? w->n - 1 - s : s;
        for (int64_t k = w->n; k < w->columns; k++)
            w->of[j][k] = kl_div(w->of[j][k], w->of[j][j]);
        for (int64_t i = backward ? 0 : j + 1; i < (backward ? j : w->n); i++)
            small_subtract(w, i, transposed ? w->of[j][i] : w->of[i][j], j, w->n);
    }
}

/* L of a Cholesky factorization, with zeros above. */
static void small_cholesky(struct small_matrix *w, kl_tensor zero)
{
    for (int64_t j = 0; j < w->n; j++) {
        kl_tensor d = kl_sqrt(w->of[j][j]);
        for (int64_t i = 0; i < w->n; i++)
            w->of[i][j] = i < j ? zero : kl_div(w->of[i][j], d);
        for (int64_t i = j + 1; i < w->n; i++)
            for (int64_t k = j + 1; k <= i; k++)
                w->of[i][k] = minus_product(w->of[i][k], w->of[i][j], w->of[k][j]);
    }
}

/* ---- triangular equations ---- */

/* Carried: the remainder of b.  Scanned: column j of the matrix, its diagonal element, j.  Stacked: row j of x. */
static kl_status substitute_column(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor rest = in[0], column = in[1], diagonal = in[2], j = in[3];
    kl_tensor row = kl_div(kl_squeeze(kl_take(rest, 1, kl_reshape(j, 1, (int64_t[]){1})), 1),
                           kl_unsqueeze(diagonal, -1));
    kl_tensor rows = kl_arange(x->device, KL_I32, rows_of(rest)), zero = same_number(column, 0);
    kl_tensor to_go = x->upper != x->transposed ? kl_lt(rows, j) : kl_gt(rows, j);
    column = kl_unsqueeze(kl_where(to_go, column, zero), -1); /* [B, n, 1] */
    out[0] = minus_product(rest, column, kl_unsqueeze(row, 1));
    out[1] = row;
    return KL_OK;
}

static kl_status substitute_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    kl_tensor a = pad_to_vectors(x, in[0]), b = pad_to_vectors(x, in[1]), r[2];
    kl_tensor columns = kl_permute(a, x->transposed ? (int[]){1, 0, 2} : (int[]){2, 0, 1});
    kl_tensor scanned[3] = {without_pad(columns, 0, x->n), kl_transpose(kl_diagonal(in[0], 0, 1, 2), 0, 1),
                            kl_arange(x->device, KL_I32, x->n)};
    (void)nin, (void)nout;
    kl_status status = kl_scan(substitute_column, x, x->n, 1, &b, 3, scanned, 1, x->upper != x->transposed, r);
    out[0] = without_pad(kl_permute(r[1], (int[]){1, 0, 2}), 2, x->m);
    return status;
}

/* a [B, n, n], b [B, n, m]; differentiable through the loop, for gradients of gradients. */
static kl_tensor substitute_all(struct matrices *x, kl_tensor a, kl_tensor b)
{
    kl_tensor in[2] = {a, b}, out;
    struct small_matrix w;
    if (x->B * x->n * x->m == 0)
        return kl_reshape(b, 3, (int64_t[]){x->B, x->n, x->m});
    if (is_small(x, MAX_SMALL_ALONE)) {
        small_load(&w, x, a, 0, x->n);
        small_load(&w, x, b, x->n, x->m);
        small_substitute(&w, x->upper, x->transposed);
        return small_store(&w, x, x->n, x->m);
    }
    for_each_matrix(substitute_fn, x, in, 2, &out, 1);
    return out;
}

static kl_status triangular_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = substitute_all(ctx, in[0], in[1]);
    return KL_OK;
}

/* in: a, b, x, x's gradient */
static kl_status triangular_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices x = *(struct matrices *)ctx;
    (void)nin, (void)nout;
    x.transposed = !x.transposed;
    out[1] = substitute_all(&x, in[0], in[3]);
    kl_tensor left = x.transposed ? out[1] : in[2], right = x.transposed ? in[2] : out[1];
    kl_tensor outer = kl_neg(kl_matmul(left, matrix_t(right)));
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
    struct thread *t = matrices_begin("triangular_solve", &a, &b, true, &v, &w, &x);
    if (!t)
        return op_failed();
    return compose_end(t, matrices_result(&x, "triangular_solve", solve_triangular(&x, a, b, upper, transposed),
                                          &w.shape));
}

/* ---- Cholesky ---- */

/* Carried: the remainder of the matrix.  Scanned: j.  Stacked: column j of L. */
static kl_status cholesky_column(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor j = kl_reshape(in[1], 1, (int64_t[]){1}), column = kl_squeeze(kl_take(in[0], 2, j), 2); /* [B, n] */
    kl_tensor d = kl_sqrt(kl_take(column, 1, j)), rows = kl_arange(x->device, KL_I32, x->n);
    column = kl_where(kl_ge(rows, in[1]), kl_div(column, d), same_number(column, 0));
    out[0] = minus_product(in[0], kl_unsqueeze(column, 2), kl_unsqueeze(column, 1));
    out[1] = column;
    return KL_OK;
}

static kl_status cholesky_scan(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    kl_tensor columns = kl_arange(x->device, KL_I32, x->n), r[2];
    (void)nin, (void)nout;
    kl_status status = kl_scan(cholesky_column, x, x->n, 1, in, 1, &columns, 1, false, r);
    out[0] = kl_permute(r[1], (int[]){1, 2, 0});
    return status;
}

static kl_status cholesky_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    struct small_matrix w;
    if (is_small(x, 0)) {
        small_load(&w, x, in[0], 0, x->n);
        small_cholesky(&w, kl_zeros(x->device, x->dtype, 1, &x->B));
        out[0] = small_store(&w, x, 0, x->n);
        return KL_OK;
    }
    return for_each_matrix(cholesky_scan, x, in, nin, out, nout);
}

/* in: a, L, L's gradient: of S = L^-T P L^-1, P the lower triangle of L^T L' with half its diagonal, the symmetric
 * part. */
static kl_status cholesky_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices x = *(struct matrices *)ctx;
    (void)nin, (void)nout;
    kl_tensor P = kl_tril(kl_matmul(matrix_t(in[1]), in[2]), 0), half = same_number(P, 0.5);
    P = kl_sub(P, kl_mul(kl_diagonal_matrix(kl_diagonal(P, 0, 1, 2), 0), half));
    x.upper = false;
    x.transposed = true;
    P = substitute_all(&x, in[1], P);                                        /* L^-T P */
    P = matrix_t(substitute_all(&x, in[1], matrix_t(P)));        /* (L^-T (L^-T P)^T)^T = L^-T P L^-1 */
    out[0] = kl_mul(kl_add(P, matrix_t(P)), half);
    return KL_OK;
}

kl_tensor kl_cholesky(kl_tensor a)
{
    struct view v;
    struct matrices x;
    struct thread *t = matrices_begin("cholesky", &a, NULL, true, &v, NULL, &x);
    kl_tensor L;
    if (!t)
        return op_failed();
    a = kl_mul(kl_add(a, matrix_t(a)), same_number(a, 0.5));
    if (x.B * x.n == 0)
        return compose_end(t, matrices_result(&x, "cholesky", a, &v.shape));
    kl_custom_grad(cholesky_fn, cholesky_backward, &x, 1, &a, 1, &L);
    return compose_end(t, matrices_result(&x, "cholesky", L, &v.shape));
}

/* ---- general equations ---- */

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
    kl_tensor rows = kl_arange(x->device, KL_I32, rows_of(w));
    kl_tensor column = kl_squeeze(kl_take(w, 2, at), 2), zero = same_number(w, 0); /* [B, n] */
    kl_tensor size = kl_where(kl_ge(rows, j), kl_abs(column), same_number(w, -1));
    kl_tensor p = kl_argmax(size, 1), in_p = kl_unsqueeze(p, -1), is_p = kl_eq(rows, in_p); /* [B, n] */
    kl_tensor row_j = kl_take(w, 1, at), row_p = row_of_each(x, w, p); /* [B, 1, columns] */
    kl_tensor pivot = kl_take_along_axis(column, 1, in_p); /* [B, 1] */
    column = kl_where(is_p, kl_take(column, 1, at), column);
    kl_tensor divisor = kl_where(kl_eq(pivot, zero), same_number(w, 1), pivot); /* of zeros below, too */
    kl_tensor factor = kl_where(kl_gt(rows, j), kl_div(column, divisor), zero); /* [B, n] */
    w = kl_where(kl_unsqueeze(kl_eq(rows, j), -1), row_p, kl_where(kl_unsqueeze(is_p, -1), row_j, w));
    out[0] = minus_product(w, kl_unsqueeze(factor, -1), row_p);
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

/* in: a, b; out: x with a x = b */
static kl_status eliminate_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx, u = *x;
    kl_tensor r[3];
    (void)nin, (void)nout;
    kl_status status = eliminate_all(x, pad_to_vectors(x, kl_concat(2, in, 2)), r);
    kl_tensor rows = without_pad(r[0], 1, x->n);
    u.upper = true;
    u.transposed = false;
    out[0] = substitute_all(&u, kl_narrow(rows, 2, 0, x->n), kl_narrow(rows, 2, x->n, x->m));
    return status;
}

static kl_tensor solve_by_elimination(struct matrices *x, kl_tensor a, kl_tensor b)
{
    kl_tensor in[2] = {a, b}, out;
    if (x->B * x->n * x->m == 0)
        return kl_reshape(b, 3, (int64_t[]){x->B, x->n, x->m});
    struct small_matrix w;
    if (is_small(x, MAX_SMALL_ALONE)) {
        small_load(&w, x, a, 0, x->n);
        small_load(&w, x, b, x->n, x->m);
        small_eliminate(&w, NULL);
        small_substitute(&w, true, false);
        return small_store(&w, x, x->n, x->m);
    }
    for_each_matrix(eliminate_fn, x, in, 2, &out, 1);
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
    out[1] = solve_by_elimination(x, matrix_t(in[0]), in[3]);
    out[0] = kl_neg(kl_matmul(out[1], matrix_t(in[2])));
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
    struct thread *t = matrices_begin("solve", &a, &b, true, &v, &w, &x);
    if (!t)
        return op_failed();
    return compose_end(t, matrices_result(&x, "solve", solve_system(&x, a, b), &w.shape));
}

kl_tensor kl_inverse(kl_tensor a)
{
    struct view v;
    struct matrices x;
    struct thread *t = matrices_begin("inverse", &a, NULL, true, &v, NULL, &x);
    if (!t)
        return op_failed();
    kl_tensor one = kl_expand(kl_eye(x.device, x.dtype, x.n, x.n), 3, (int64_t[]){x.B, x.n, x.n});
    return compose_end(t, matrices_result(&x, "inverse", solve_system(&x, a, one), &v.shape));
}

static kl_tensor det_of(kl_tensor sign, kl_tensor pivots)
{
    return kl_mul(sign, kl_prod(pivots, 1, (int[]){0}, false));
}

static kl_status det_scan(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_tensor r[3];
    (void)nin, (void)nout;
    kl_status status = eliminate_all(ctx, pad_to_vectors(ctx, in[0]), r);
    out[0] = det_of(r[1], r[2]);
    return status;
}

static kl_status det_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    kl_tensor sign = kl_none, pivots[MAX_SMALL];
    struct small_matrix w;
    if (!is_small(x, MAX_SMALL_ALONE))
        return for_each_matrix(det_scan, x, in, nin, out, nout);
    small_load(&w, x, in[0], 0, x->n);
    sign = kl_ones(x->device, x->dtype, 1, &x->B);
    small_eliminate(&w, &sign);
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
    kl_tensor one = kl_expand(kl_eye(x->device, x->dtype, x->n, x->n), 3, (int64_t[]){x->B, x->n, x->n});
    kl_tensor scale = kl_reshape(kl_mul(in[1], in[2]), 3, (int64_t[]){x->B, 1, 1});
    out[0] = kl_mul(solve_by_elimination(x, matrix_t(in[0]), one), scale);
    return KL_OK;
}

kl_tensor kl_det(kl_tensor a)
{
    struct view v;
    struct matrices x;
    struct thread *t = matrices_begin("det", &a, NULL, true, &v, NULL, &x);
    kl_tensor y;
    if (!t)
        return op_failed();
    struct shape batch = v.shape;
    batch.rank -= 2;
    if (x.B * x.n == 0)
        return compose_end(t, kl_ones(x.device, x.given, (int)batch.rank, batch.dim));
    kl_custom_grad(det_fn, det_backward, &x, 1, &a, 1, &y);
    return compose_end(t, matrices_result(&x, "det", y, &batch));
}

/* ---- QR ---- */

/* Carried: the matrix that becomes R, [B, n, m].  Scanned: j.  Stacked: the reflections I - v v^T, v [B, n]. */
static kl_status reflect_column(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor w = in[0], j = in[1], at = kl_reshape(j, 1, (int64_t[]){1});
    kl_tensor rows = kl_arange(x->device, KL_I32, rows_of(w)), zero = same_number(w, 0), one = same_number(w, 1);
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

static kl_status qr_scan(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices *x = ctx;
    (void)nin, (void)nout;
    kl_tensor columns = kl_arange(x->device, KL_I32, x->m), a = pad_to_vectors(x, in[0]), r[2];
    kl_status status = kl_scan(reflect_column, x, x->m, 1, &a, 1, &columns, 1, false, r);
    kl_tensor q = kl_expand(kl_eye(x->device, x->dtype, x->n, x->m), 3, (int64_t[]){x->B, x->n, x->m});
    q = pad_to_vectors(x, q);
    if (status == KL_OK)
        status = kl_scan(reflect_back, x, x->m, 1, &q, 1, &r[1], 0, true, out);
    out[0] = without_pad(without_pad(out[0], 1, x->n), 2, x->m);
    out[1] = kl_triu(without_pad(kl_narrow(r[0], 1, 0, x->m), 2, x->m), 0);
    return status;
}

/* in [B, n, m], n >= m; out: q, r */
static kl_status qr_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    bool together = is_small(ctx, MAX_SMALL_ALONE);
    return together ? qr_scan(ctx, in, nin, out, nout) : for_each_matrix(qr_scan, ctx, in, nin, out, nout);
}

/* in: a, q, r, their gradients: (q' + q copyltu(r r'^T - q'^T q)) r^-T, copyltu: the lower triangle, mirrored */
static kl_status qr_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct matrices x = *(struct matrices *)ctx;
    (void)nin, (void)nout;
    kl_tensor q = in[1], r = in[2], dq = in[3], dr = in[4];
    kl_tensor M = kl_sub(kl_matmul(r, matrix_t(dr)), kl_matmul(matrix_t(dq), q));
    M = kl_add(kl_tril(M, 0), matrix_t(kl_tril(M, -1)));
    kl_tensor b = kl_add(dq, kl_matmul(q, M)); /* x r^T = b, so r x^T = b^T */
    x.upper = true;
    x.transposed = false;
    int64_t k = x.m;
    x.m = x.n;
    x.n = k;
    out[0] = matrix_t(substitute_all(&x, r, matrix_t(b)));
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
    if (!t || !(t = matrices_begin(op, &a, NULL, false, &v, NULL, &x)))
        return op_failed();
    struct shape sq = v.shape, sr = v.shape;
    uint32_t rank = v.shape.rank;
    int64_t m = x.m, k = x.n < m ? x.n : m;
    sq.dim[rank - 1] = sr.dim[rank - 2] = k;
    kl_tensor out[2], rest = kl_none;
    if (x.B * x.n * m == 0) {
        out[0] = kl_zeros(x.device, x.dtype, 3, (int64_t[]){x.B, x.n, k});
        out[1] = kl_zeros(x.device, x.dtype, 3, (int64_t[]){x.B, k, m});
    } else {
        if (k < m) {
            rest = kl_narrow(a, 2, k, m - k);
            a = kl_narrow(a, 2, 0, k);
        }
        x.m = k;
        kl_custom_grad(qr_fn, qr_backward, &x, 1, &a, 2, out);
        if (rest.id) {
            kl_tensor parts[2] = {out[1], kl_matmul(matrix_t(out[0]), rest)};
            out[1] = kl_concat(2, parts, 2);
        }
    }
    out[0] = matrices_result(&x, op, out[0], &sq);
    out[1] = matrices_result(&x, op, out[1], &sr);
    compose_end_all(t, out, 2);
    *r = out[1];
    return out[0];
}
