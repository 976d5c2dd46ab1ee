/* Eigenvalues and eigenvectors of symmetric tridiagonal matrices: QL steps with Wilkinson's shift (EISPACK's tql2:
 * Bowdler et al. 1968, "The QR and QL algorithms for symmetric matrices"), of all matrices of a batch at once.
 *
 * A step rotates rows j - 1 and j of a block whose elements beside the diagonal are not negligible, the first there is,
 * for j from its last row on.  What a rotation waits for are numbers of one row, [B].  The eigenvectors are rotated
 * after SWEEPS steps, in one pass over their rows: a row that is finished in the first step is next in the second.
 * When the first half of the rows is diagonal, what is left is a matrix of half the size.
 *
 * Matrices whose largest element is about 1: elements are negligible beside their neighbors, or in absolute terms. */
#include "solve.h"

enum { SWEEPS = 8, MAX_SWEEPS_A_ROW = 30 };

struct ql {
    int64_t n, N, B; /* rows; of a vector; matrices */
    int64_t part;    /* rows from the first on that are to become diagonal */
    int64_t max;     /* passes of SWEEPS steps */
    kl_device device;
    kl_dtype dtype;
};

/* [1, B] The element of a [n, B] in row i [1, B]; 0 where there is none. */
static kl_tensor ql_pick(kl_tensor a, kl_tensor rows, kl_tensor i)
{
    return kl_sum(kl_where(kl_eq(rows, i), a, solve_number(a, 0)), 1, (int[]){0}, true);
}

/* What a rotation of rows j - 1 and j works with: the block's first and last row, [B]. */
struct ql_block { kl_tensor first, last; };

/* Carried: g, c, s, p, [B] each.  Scanned: j, the diagonals' elements j - 1 and j.  Stacked: their elements j, and the
 * rotation. */
static kl_status ql_rotation(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct ql_block *b = ctx;
    (void)nin, (void)nout;
    kl_tensor g = in[0], c = in[1], s = in[2], p = in[3], j = in[4], d0 = in[5], d1 = in[6], e0 = in[7], e1 = in[8];
    kl_tensor zero = solve_number(g, 0), one = solve_number(g, 1);
    kl_tensor inside = kl_and(kl_lt(b->first, j), kl_le(j, b->last)), is_last = kl_eq(j, b->last);
    kl_tensor is_first = kl_eq(j, b->first);
    kl_tensor f = kl_mul(s, e0), h = kl_mul(c, e0), r = kl_sqrt(kl_fma(f, f, kl_mul(g, g)));
    kl_tensor some = kl_and(inside, kl_gt(r, zero));
    kl_tensor next_c = kl_where(some, kl_div(g, r), one), next_s = kl_where(some, kl_div(f, r), zero);
    kl_tensor left = kl_sub(d1, p);
    kl_tensor q = kl_fma(kl_sub(d0, left), next_s, kl_mul(kl_add(next_c, next_c), h));
    kl_tensor next_p = kl_mul(next_s, q);
    out[0] = kl_where(inside, kl_fma(next_c, q, kl_neg(h)), g);
    out[1] = kl_where(inside, next_c, c);
    out[2] = kl_where(inside, next_s, s);
    out[3] = kl_where(inside, next_p, p);
    out[4] = kl_where(inside, kl_add(left, next_p), kl_where(is_first, left, d1));
    out[5] = kl_where(inside, kl_where(is_last, zero, r), kl_where(is_first, g, e1));
    out[6] = next_c;
    out[7] = next_s;
    return KL_OK;
}

/* Where the elements beside the diagonal are not negligible, [n, B]. */
static kl_tensor ql_coupled(kl_tensor d, kl_tensor e, const struct ql *x)
{
    double epsilon = solve_epsilon(x->dtype);
    kl_tensor size = kl_abs(d), below = kl_pad(kl_narrow(size, 0, 1, x->n - 1), NULL, (int64_t[]){1, 0}, 0);
    kl_tensor limit = kl_mul(kl_add(size, below), solve_number(d, epsilon / 2));
    return kl_gt(kl_abs(e), kl_maximum(limit, solve_number(d, epsilon / 16)));
}

static kl_tensor ql_before(kl_tensor a, int64_t n)
{
    return kl_pad(kl_narrow(a, 0, 0, n - 1), (int64_t[]){1, 0}, NULL, 0);
}

/* A QL step.  Carried: the diagonal and what is beside it, [n, B].  Stacked: the rotations, c and s, [n, B]. */
static kl_status ql_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct ql *x = ctx;
    (void)nin, (void)nout;
    kl_tensor d = in[0], e = in[1], zero = solve_number(d, 0), one = solve_number(d, 1);
    kl_tensor rows = kl_unsqueeze(kl_arange(x->device, KL_I32, x->n), 1), none = solve_number(rows, (double)x->n);
    kl_tensor coupled = ql_coupled(d, e, x);
    kl_tensor first = kl_min(kl_where(coupled, rows, none), 1, (int[]){0}, true); /* [1, B] */
    kl_tensor ends = kl_and(kl_not(coupled), kl_gt(rows, first));
    kl_tensor last = kl_min(kl_where(ends, rows, none), 1, (int[]){0}, true);
    kl_tensor second = kl_add(first, solve_number(first, 1)), any = kl_lt(first, none);
    kl_tensor d0 = ql_pick(d, rows, first), d1 = ql_pick(d, rows, second), e0 = ql_pick(e, rows, first);
    e0 = kl_where(any, e0, one);
    kl_tensor g = kl_div(kl_sub(d1, d0), kl_mul(e0, solve_number(d, 2)));
    kl_tensor r = kl_sqrt(kl_fma(g, g, one));
    g = kl_add(g, kl_where(kl_lt(g, zero), kl_neg(r), r));
    g = kl_add(kl_sub(ql_pick(d, rows, last), d0), kl_div(e0, g));
    struct ql_block b = {kl_squeeze(first, 0), kl_squeeze(last, 0)};
    kl_tensor ones = kl_ones(x->device, x->dtype, 1, &x->B), zeros = kl_zeros(x->device, x->dtype, 1, &x->B);
    kl_tensor carried[4] = {kl_squeeze(g, 0), ones, ones, zeros}, stacked[8];
    kl_tensor scanned[5] = {kl_arange(x->device, KL_I32, x->n), ql_before(d, x->n), d, ql_before(e, x->n), e};
    kl_status status = kl_scan(ql_rotation, &b, x->n, 4, carried, 5, scanned, 4, true, stacked);
    for (int i = 0; i < 4; i++)
        out[i] = stacked[4 + i];
    return status;
}

/* Carried: for each step the row that its last rotation left, [n, B].  Scanned: the next row, rotations c and s
 * [SWEEPS, B].  Stacked: a row that is finished. */
static kl_status ql_row(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    kl_tensor row = in[SWEEPS];
    (void)ctx, (void)nin, (void)nout;
    for (int k = 0; k < SWEEPS; k++) {
        kl_tensor c = kl_narrow(in[SWEEPS + 1], 0, k, 1), s = kl_narrow(in[SWEEPS + 2], 0, k, 1); /* [1, B] */
        kl_tensor before = row;
        row = kl_fma(s, before, kl_mul(c, in[k]));
        out[k] = kl_fma(c, before, kl_mul(kl_neg(s), in[k]));
    }
    out[SWEEPS] = row;
    return KL_OK;
}

/* Rotations [SWEEPS, n, B] as ql_row takes them: those of row j of step k in row j - 1 + SWEEPS - k, [n + SWEEPS,
 * SWEEPS, B]. */
static kl_tensor ql_skewed(kl_tensor a, double fill)
{
    kl_tensor part[SWEEPS];
    for (int64_t k = 0; k < SWEEPS; k++) {
        kl_tensor own = kl_squeeze(kl_narrow(a, 0, k, 1), 0);
        part[k] = kl_pad(own, (int64_t[]){SWEEPS - 1 - k, 0}, (int64_t[]){k + 1, 0}, fill);
    }
    return kl_stack(SWEEPS, part, 1);
}

/* The first n rows behind SWEEPS others, [SWEEPS + n, N, B]. */
static kl_tensor ql_rows(const struct ql *x, kl_tensor rows)
{
    return kl_pad(kl_narrow(rows, 0, 0, x->n), (int64_t[]){SWEEPS, 0, 0}, NULL, 0);
}

/* in: the diagonal, what is beside it, [n, B], the eigenvectors as rows behind SWEEPS others [SWEEPS + n, N, B]; out:
 * the same after SWEEPS steps, and whether anything is left to do */
static kl_status ql_steps(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct ql *x = ctx;
    kl_tensor stacked[4], rows[SWEEPS + 1], carried[SWEEPS], scanned[3] = {in[2]};
    (void)nin, (void)nout;
    kl_scan(ql_step, ctx, SWEEPS, 2, in, 0, NULL, 2, false, stacked);
    for (int k = 0; k < SWEEPS; k++)
        carried[k] = kl_zeros(x->device, x->dtype, 2, (int64_t[]){x->N, x->B});
    scanned[1] = ql_skewed(stacked[2], 1);
    scanned[2] = ql_skewed(stacked[3], 0);
    kl_status status = kl_scan(ql_row, NULL, x->n + SWEEPS, SWEEPS, carried, 3, scanned, 1, true, rows);
    out[0] = stacked[0];
    out[1] = stacked[1];
    out[2] = ql_rows(x, rows[SWEEPS]);
    out[3] = kl_any(kl_narrow(ql_coupled(out[0], out[1], x), 0, 0, x->part), 0, NULL, false);
    return status;
}

/* Carried: as of ql_steps, and how often. */
static kl_status ql_unfinished(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct ql *x = ctx;
    (void)nin, (void)nout;
    out[0] = kl_and(in[3], kl_lt(in[4], solve_number(in[4], (double)x->max)));
    return KL_OK;
}

static kl_status ql_more(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[4] = kl_add(in[4], solve_number(in[4], 1));
    return ql_steps(ctx, in, 3, out, 4);
}

static kl_status ql_nothing(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    for (int i = 0; i < 3; i++)
        out[i] = in[i];
    out[3] = kl_const(kl_device_of(in[0]), KL_BOOL, 0);
    return KL_OK;
}

/* Carried: as of ql_steps. */
static kl_status ql_again(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin;
    return kl_cond(in[3], ql_steps, ql_nothing, ctx, 3, in, nout, out);
}

/* loop: a scan, of which the part behind the last step does nothing: with small matrices it is one kernel; a while is
 * not. */
static void ql_part(const struct solve_matrices *m, int64_t n, bool loop, kl_tensor *arrays)
{
    enum { MIN_HALF = 8 };
    int64_t dims[3] = {0}, half = n > 2 * MIN_HALF ? n / 2 : n;
    kl_shape(arrays[2], dims);
    struct ql x = {n, dims[1], m->B, half, (half * MAX_SWEEPS_A_ROW + SWEEPS - 1) / SWEEPS, m->device, m->dtype};
    kl_tensor in[5] = {arrays[0], arrays[1], ql_rows(&x, arrays[2]), kl_const(x.device, KL_BOOL, 1),
                       kl_const(x.device, KL_I32, 0)}, out[5];
    if (loop)
        kl_scan(ql_again, &x, x.max, 4, in, 0, NULL, 0, false, out);
    else
        kl_while(ql_unfinished, ql_more, &x, 5, in, out);
    arrays[0] = out[0];
    arrays[1] = out[1];
    arrays[2] = kl_narrow(out[2], 0, SWEEPS, n);
    if (half == n)
        return;
    kl_tensor rest[3];
    for (int i = 0; i < 3; i++)
        rest[i] = kl_narrow(arrays[i], 0, half, n - half);
    ql_part(m, n - half, loop, rest);
    for (int i = 0; i < 3; i++)
        arrays[i] = kl_concat(2, (kl_tensor[]){kl_narrow(arrays[i], 0, 0, half), rest[i]}, 0);
}

void solve_ql(const struct solve_matrices *m, int64_t n, kl_tensor *arrays)
{
    enum { MAX_LOOP = 16 };
    ql_part(m, n, m->B > 1 && n <= MAX_LOOP, arrays);
}
