/* QL and QR steps of tridiagonal and bidiagonal matrices, of all matrices of a batch at once, and what they do to rows
 * of vectors, for eigen_ql.c and svd_qr.c.
 *
 * A step rotates rows j - 1 and j of a block whose elements beside the diagonal are not negligible, the first there is,
 * for j from its last row on.  What a rotation waits for are numbers of one row, [B].  Vectors are rotated after SWEEPS
 * steps, in one pass over their rows: a row that is finished in the first step is next in the second.  When the first
 * half of the rows is diagonal, what is left is a matrix of half the size.
 *
 * The largest element of a matrix is about 1: elements are negligible beside their neighbors, or in absolute terms. */
#include "eigen.h"

enum { SWEEPS = 8, MAX_STEPS_A_ROW = 30, MAX_VECTORS = 2 };

/* Where e is not negligible, [n, B]. */
static kl_tensor chase_coupled(const struct solve_chase *x, kl_tensor d, kl_tensor e)
{
    double epsilon = solve_epsilon(x->dtype);
    kl_tensor size = kl_abs(d), below = kl_pad(kl_narrow(size, 0, 1, x->n - 1), NULL, (int64_t[]){1, 0}, 0);
    kl_tensor limit = kl_mul(kl_add(size, below), solve_number(d, epsilon / 2));
    return kl_gt(kl_abs(e), kl_maximum(limit, solve_number(d, epsilon / 16)));
}

kl_tensor solve_pick(const struct solve_block *b, kl_tensor a, kl_tensor i)
{
    return kl_sum(kl_where(kl_eq(b->rows, i), a, solve_number(a, 0)), 1, (int[]){0}, true);
}

kl_tensor solve_before(const struct solve_chase *x, kl_tensor a)
{
    return kl_pad(kl_narrow(a, 0, 0, x->n - 1), (int64_t[]){1, 0}, NULL, 0);
}

struct solve_block solve_block(const struct solve_chase *x, kl_tensor d, kl_tensor *e)
{
    kl_tensor rows = kl_unsqueeze(kl_arange(x->device, KL_I32, x->n), 1), none = solve_number(rows, (double)x->n);
    kl_tensor coupled = chase_coupled(x, d, *e), first = kl_min(kl_where(coupled, rows, none), 1, (int[]){0}, true);
    *e = kl_where(coupled, *e, solve_number(*e, 0)); /* for good */
    kl_tensor ends = kl_and(kl_not(coupled), kl_gt(rows, first));
    kl_tensor last = kl_min(kl_where(ends, rows, none), 1, (int[]){0}, true);
    return (struct solve_block){rows, first, last, kl_lt(first, none)};
}

/* Carried: for each step the row that its last rotation left, [N, B].  Scanned: the next row, rotations c and s
 * [SWEEPS, B].  Stacked: a row that is finished. */
static kl_status chase_row(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
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

/* Rotations [SWEEPS, n, B] as chase_row takes them: those of row j of step k in row j - 1 + SWEEPS - k, [n + SWEEPS,
 * SWEEPS, B]. */
static kl_tensor chase_skewed(kl_tensor a, double fill)
{
    kl_tensor part[SWEEPS];
    for (int64_t k = 0; k < SWEEPS; k++) {
        kl_tensor own = kl_squeeze(kl_narrow(a, 0, k, 1), 0);
        part[k] = kl_pad(own, (int64_t[]){SWEEPS - 1 - k, 0}, (int64_t[]){k + 1, 0}, fill);
    }
    return kl_stack(SWEEPS, part, 1);
}

/* The first n rows behind SWEEPS others, [SWEEPS + n, N, B]. */
static kl_tensor chase_rows(const struct solve_chase *x, kl_tensor rows)
{
    return kl_pad(kl_narrow(rows, 0, 0, x->n), (int64_t[]){SWEEPS, 0, 0}, NULL, 0);
}

/* Vectors as of chase_rows after the rotations of SWEEPS steps, [SWEEPS, n, B]. */
static kl_tensor chase_vectors(const struct solve_chase *x, kl_tensor vectors, kl_tensor c, kl_tensor s)
{
    kl_tensor carried[SWEEPS], out[SWEEPS + 1];
    kl_tensor scanned[3] = {vectors, chase_skewed(c, 1), chase_skewed(s, 0)};
    for (int k = 0; k < SWEEPS; k++)
        carried[k] = kl_zeros(x->device, x->dtype, 2, (int64_t[]){x->N, x->B});
    kl_scan(chase_row, NULL, x->n + SWEEPS, SWEEPS, carried, 3, scanned, 1, true, out);
    return chase_rows(x, out[SWEEPS]);
}

/* Carried: the diagonal, what is beside it, [n, B], vectors as rows behind SWEEPS others, and whether anything is left
 * to do. */
static kl_status chase_steps(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_chase *x = ctx;
    kl_tensor stacked[2 + 2 * MAX_VECTORS];
    (void)nin, (void)nout;
    kl_status status = kl_scan(x->step, ctx, SWEEPS, 2, in, 0, NULL, 2 * x->vectors, false, stacked);
    for (int i = 0; i < 2; i++)
        out[i] = stacked[i];
    for (int i = 2; i < 2 + x->vectors; i++)
        out[i] = chase_vectors(x, in[i], stacked[2 * i - 2], stacked[2 * i - 1]);
    kl_tensor coupled = kl_narrow(chase_coupled(x, out[0], out[1]), 0, 0, x->part);
    out[2 + x->vectors] = kl_any(coupled, 0, NULL, false);
    return status;
}

static kl_status chase_nothing(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nout;
    for (int64_t i = 0; i < nin; i++)
        out[i] = in[i];
    out[nin] = kl_const(kl_device_of(in[0]), KL_BOOL, 0);
    return KL_OK;
}

/* Carried: as of chase_steps. */
static kl_status chase_again(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    return kl_cond(in[nin - 1], chase_steps, chase_nothing, ctx, nin - 1, in, nout, out);
}

/* Carried: as of chase_steps, and how often. */
static kl_status chase_unfinished(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_chase *x = ctx;
    (void)nout;
    out[0] = kl_and(in[nin - 2], kl_lt(in[nin - 1], solve_number(in[nin - 1], (double)x->max)));
    return KL_OK;
}

static kl_status chase_more(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nout;
    out[nin - 1] = kl_add(in[nin - 1], solve_number(in[nin - 1], 1));
    return chase_steps(ctx, in, nin - 2, out, nin - 1);
}

/* loop: a scan, of which the part behind the last step does nothing: with small matrices it is one kernel; a while is
 * not. */
static void chase_part(struct solve_chase x, bool loop, kl_tensor *arrays)
{
    enum { MIN_HALF = 8, MAX_ARRAYS = 2 + MAX_VECTORS };
    int64_t n = x.n, half = n > 2 * MIN_HALF ? n / 2 : n, count = 2 + x.vectors;
    x.part = half;
    x.max = (half * MAX_STEPS_A_ROW + SWEEPS - 1) / SWEEPS;
    kl_tensor in[MAX_ARRAYS + 2] = {arrays[0], arrays[1]}, out[MAX_ARRAYS + 2], rest[MAX_ARRAYS];
    for (int64_t i = 2; i < count; i++)
        in[i] = chase_rows(&x, arrays[i]);
    in[count] = kl_const(x.device, KL_BOOL, 1);
    in[count + 1] = kl_const(x.device, KL_I32, 0);
    if (loop)
        kl_scan(chase_again, &x, x.max, count + 1, in, 0, NULL, 0, false, out);
    else
        kl_while(chase_unfinished, chase_more, &x, count + 2, in, out);
    for (int64_t i = 0; i < count; i++)
        arrays[i] = i < 2 ? out[i] : kl_narrow(out[i], 0, SWEEPS, n);
    if (half == n)
        return;
    for (int64_t i = 0; i < count; i++)
        rest[i] = kl_narrow(arrays[i], 0, half, n - half);
    x.n = n - half;
    chase_part(x, loop, rest);
    for (int64_t i = 0; i < count; i++)
        arrays[i] = kl_concat(2, (kl_tensor[]){kl_narrow(arrays[i], 0, 0, half), rest[i]}, 0);
}

void solve_chase(const struct solve_matrices *m, kl_region_fn *step, int vectors, kl_tensor *arrays)
{
    enum { MAX_LOOP = 16 };
    int64_t dims[3] = {0};
    kl_shape(arrays[2], dims);
    struct solve_chase x = {.n = dims[0], .N = dims[1], .B = m->B, .device = m->device, .dtype = m->dtype, .step = step,
                            .vectors = vectors};
    chase_part(x, m->B > 1 && x.n <= MAX_LOOP, arrays);
}
