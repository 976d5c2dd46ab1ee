/* Equations with banded matrices: elimination with partial pivoting in a window of rows, a scan over columns, and
 * substitution from the last row, another scan.
 *
 * A matrix with l diagonals below and u above the main one has l + u + 1 elements in a row, and a row of U has as many,
 * whatever the pivots.  Step i eliminates column i from the rows i .. i + l; their elements i .. i + l + u are the
 * window, of which the pivot's row is a row of U. */
#include "solve.h"

struct band {
    const struct solve_matrices *x;
    int64_t n, l, u, width; /* width: l + u + 1 */
    int64_t columns;        /* of the right side */
};

/* a[.., i + by, ..] along an axis, zeros where there is none. */
static kl_tensor band_shift(kl_tensor a, int axis, int64_t by)
{
    int64_t dims[KL_MAX_RANK], low[KL_MAX_RANK] = {0}, high[KL_MAX_RANK] = {0};
    kl_shape(a, dims);
    int64_t n = dims[axis], size = by < 0 ? -by : by;
    if (!by)
        return a;
    if (size > n)
        size = n;
    (by < 0 ? low : high)[axis] = size;
    return kl_pad(kl_narrow(a, axis, by < 0 ? 0 : size, n - size), low, high, 0);
}

/* Rows of the matrix from the left end of the band: [B, n, width], from diagonals [B, width, n] with element i, j in
 * row u + i - j, column j.  transposed: of the transposed matrix, whose l and u are exchanged. */
static kl_tensor band_rows(const struct band *b, kl_tensor ab, bool transposed)
{
    kl_tensor part[KL_MAX_BAND];
    for (int64_t k = 0; k < b->width; k++) { /* column i - l + k of row i; row i - u + k of column i */
        kl_tensor d = kl_squeeze(kl_narrow(ab, 1, transposed ? k : b->width - 1 - k, 1), 1);
        int64_t by = transposed ? k - b->u : k - b->l;
        part[k] = band_shift(transposed ? band_shift(d, 1, -by) : d, 1, by); /* there and back: zeros outside */
    }
    return kl_stack(b->width, part, -1);
}

/* Carried: l rows of the window [B, l, width] and of the right side [B, l, m].  Scanned: the next row of each.
 * Stacked: the row of the pivot. */
static kl_status band_eliminate(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct band *b = ctx;
    (void)nin, (void)nout;
    kl_tensor zero = solve_number(in[0], 0), rows = kl_arange(b->x->device, KL_I32, b->l + 1);
    kl_tensor w = kl_concat(2, (kl_tensor[]){in[0], kl_unsqueeze(in[2], 1)}, 1);
    kl_tensor y = kl_concat(2, (kl_tensor[]){in[1], kl_unsqueeze(in[3], 1)}, 1);
    kl_tensor p = kl_argmax(kl_abs(kl_squeeze(kl_narrow(w, 2, 0, 1), 2)), 1); /* [B] */
    kl_tensor there = kl_unsqueeze(kl_eq(rows, kl_unsqueeze(p, -1)), -1);     /* [B, l + 1, 1] */
    kl_tensor pivot = kl_sum(kl_where(there, w, zero), 1, (int[]){1}, true);
    kl_tensor right = kl_sum(kl_where(there, y, zero), 1, (int[]){1}, true);
    w = kl_narrow(kl_where(there, kl_narrow(w, 1, 0, 1), w), 1, 1, b->l);
    y = kl_narrow(kl_where(there, kl_narrow(y, 1, 0, 1), y), 1, 1, b->l);
    kl_tensor factor = kl_div(kl_narrow(w, 2, 0, 1), kl_narrow(pivot, 2, 0, 1)); /* [B, l, 1] */
    out[0] = band_shift(kl_sub(w, kl_mul(factor, pivot)), 2, 1);
    out[1] = kl_sub(y, kl_mul(factor, right));
    out[2] = kl_squeeze(pivot, 1);
    out[3] = kl_squeeze(right, 1);
    return KL_OK;
}

/* Carried: the rows of x behind this one, [B, width - 1, m].  Scanned: a row of U and of the right side. */
static kl_status band_substitute(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct band *b = ctx;
    (void)nin, (void)nout;
    kl_tensor row = in[1], y = in[2], behind = kl_unsqueeze(kl_narrow(row, 1, 1, b->width - 1), -1);
    y = kl_sub(y, kl_sum(kl_mul(behind, in[0]), 1, (int[]){1}, false));
    y = kl_div(y, kl_narrow(row, 1, 0, 1));
    kl_tensor parts[2] = {kl_unsqueeze(y, 1), kl_narrow(in[0], 1, 0, b->width - 2)};
    out[0] = b->width > 2 ? kl_concat(2, parts, 1) : parts[0];
    out[1] = y;
    return KL_OK;
}

/* The first l rows of rows [B, n, width], each from column 0 on. */
static kl_tensor band_first_rows(const struct band *b, kl_tensor rows)
{
    kl_tensor part[KL_MAX_BAND];
    for (int64_t i = 0; i < b->l; i++)
        part[i] = i < b->n ? band_shift(kl_squeeze(kl_narrow(rows, 1, i, 1), 1), 1, b->l - i)
                           : kl_zeros(b->x->device, b->x->dtype, 2, (int64_t[]){b->x->B, b->width});
    return kl_stack(b->l, part, 1);
}

/* rows [B, n, width], right [B, n, m] */
static kl_tensor band_solve(struct band *b, kl_tensor rows, kl_tensor right)
{
    const struct solve_matrices *x = b->x;
    int64_t m = b->columns, l = b->l < b->n ? b->l : b->n;
    kl_tensor out[4] = {kl_none, kl_none, kl_transpose(rows, 0, 1), kl_transpose(right, 0, 1)};
    if (b->l) {
        kl_tensor first = kl_pad(kl_narrow(right, 1, 0, l), NULL, (int64_t[]){0, b->l - l, 0}, 0);
        kl_tensor carried[2] = {band_first_rows(b, rows), first};
        kl_tensor scanned[2] = {kl_transpose(band_shift(rows, 1, b->l), 0, 1),
                                kl_transpose(band_shift(right, 1, b->l), 0, 1)};
        kl_scan(band_eliminate, b, b->n, 2, carried, 2, scanned, 2, false, out);
    }
    if (b->width == 1)
        return kl_div(right, rows);
    kl_tensor zero = kl_zeros(x->device, x->dtype, 3, (int64_t[]){x->B, b->width - 1, m});
    kl_scan(band_substitute, b, b->n, 1, &zero, 2, out + 2, 1, true, out);
    return kl_transpose(out[1], 0, 1);
}

/* in: the diagonals, the right side */
static kl_status band_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct band *b = ctx;
    (void)nin, (void)nout;
    out[0] = band_solve(b, band_rows(b, in[0], false), in[1]);
    return KL_OK;
}

/* in: the diagonals, the right side, x, its gradient: y with a^T y = x' for the right side, -y_i x_j for element i, j
 */
static kl_status band_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct band *b = ctx;
    struct band t = *b;
    kl_tensor part[KL_MAX_BAND];
    (void)nin, (void)nout;
    t.l = b->u;
    t.u = b->l;
    kl_tensor y = out[1] = band_solve(&t, band_rows(b, in[0], true), in[3]);
    for (int64_t k = 0; k < b->width; k++) /* i = j + k - u */
        part[k] = kl_neg(kl_sum(kl_mul(band_shift(y, 1, k - b->u), in[2]), 1, (int[]){2}, false));
    out[0] = kl_stack(b->width, part, 1);
    return KL_OK;
}

static kl_tensor band_record(struct band *b, kl_tensor ab, kl_tensor right)
{
    kl_tensor in[2] = {ab, right}, out;
    if (!b->x->B || !b->n || !b->columns)
        return right;
    kl_custom_grad(band_fn, band_backward, b, 2, in, 1, &out);
    return out;
}

kl_tensor kl_banded_solve(kl_tensor ab, int64_t lower, int64_t upper, kl_tensor b)
{
    struct solve_matrices x;
    if (lower < 0 || upper < 0 || lower >= KL_MAX_BAND || upper >= KL_MAX_BAND - lower)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "banded_solve: %" PRId64 " diagonals below and %" PRId64 " above; "
                        "there may be %d in all", lower, upper, KL_MAX_BAND), kl_poison();
    if (!solve_begin("banded_solve", &ab, false, &x))
        return kl_poison();
    if (x.m != lower + upper + 1) {
        kl_failf(NULL, KL_ERR_SHAPE, "banded_solve: %" PRId64 " diagonals below and %" PRId64 " above have %" PRId64
                 " rows, not %" PRId64, lower, upper, lower + upper + 1, x.m);
        return solve_end(kl_none, 0, NULL);
    }
    struct band band = {&x, x.n, lower, upper, x.m, solve_operand(&x, "the right side", x.n, &b)};
    if (band.columns < 0)
        return kl_poison();
    return solve_end(solve_result(&x, band_record(&band, ab, b)), 0, NULL);
}
