/* Implicit QL and QR iteration of tridiagonal and bidiagonal matrices, of all matrices of a batch at once, for
 * eigen_ql.c and svd_qr.c, and what its rotations do to arrays of vectors.
 *
 * An unreduced block is a run of rows between which no off-diagonal element is negligible.  A step chases a bulge
 * through the first unreduced block of a matrix: it rotates rows j - 1 and j, for j from the block's last row up to its
 * second.  Each rotation depends on the one before, but only by numbers of one row, [B].  The vectors, which are n
 * times as large, are rotated after SWEEPS steps, in one pass over their rows (a wavefront): a row that is finished in
 * the first step is next in the second.  When the first half of the rows is diagonal, the rest is a matrix of half the
 * size.
 *
 * Matrices are scaled so that their largest element is about 1: an off-diagonal element is negligible beside its two
 * diagonal elements, or in absolute terms. */
#include "eigen.h"

enum { SWEEPS = 8, MAX_STEPS_A_ROW = 30, MAX_VECTORS = 2 };

/* [n, B] Where e is not negligible. */
static kl_tensor iteration_unreduced(const struct solve_qr_iteration *x, kl_tensor d, kl_tensor e)
{
    double epsilon = solve_epsilon(x->dtype);
    kl_tensor size = kl_abs(d), below = kl_pad(kl_narrow(size, 0, 1, x->n - 1), NULL, (int64_t[]){1, 0}, 0);
    kl_tensor limit = kl_mul(kl_add(size, below), solve_number(d, epsilon / 2));
    return kl_gt(kl_abs(e), kl_maximum(limit, solve_number(d, epsilon / 16)));
}

kl_tensor solve_element(const struct solve_unreduced *b, kl_tensor a, kl_tensor i)
{
    return kl_sum(kl_where(kl_eq(b->rows, i), a, solve_number(a, 0)), 1, (int[]){0}, true);
}

/* [n, B] Element i - 1 of a in row i, 0 in the first. */
static kl_tensor iteration_above(const struct solve_qr_iteration *x, kl_tensor a)
{
    return kl_pad(kl_narrow(a, 0, 0, x->n - 1), (int64_t[]){1, 0}, NULL, 0);
}

struct solve_unreduced solve_unreduced(const struct solve_qr_iteration *x, kl_tensor d, kl_tensor *e)
{
    kl_tensor rows = kl_unsqueeze(kl_arange(x->device, KL_I32, x->n), 1), none = solve_number(rows, (double)x->n);
    kl_tensor unreduced = iteration_unreduced(x, d, *e);
    kl_tensor first = kl_min(kl_where(unreduced, rows, none), 1, (int[]){0}, true);
    *e = kl_where(unreduced, *e, solve_number(*e, 0)); /* deflation */
    kl_tensor ends = kl_and(kl_not(unreduced), kl_gt(rows, first));
    kl_tensor last = kl_min(kl_where(ends, rows, none), 1, (int[]){0}, true);
    return (struct solve_unreduced){rows, first, last, kl_lt(first, none)};
}

kl_status solve_rotations(const struct solve_qr_iteration *x, struct solve_unreduced b, kl_region_fn *rotation,
                          kl_tensor d, kl_tensor e, const kl_tensor *carried, kl_tensor *out)
{
    enum { CARRIED = 4, MAX_STACKED = 2 + 2 * MAX_VECTORS };
    kl_tensor results[CARRIED + MAX_STACKED];
    int64_t stacked = 2 + 2 * x->vectors;
    b.first = kl_squeeze(b.first, 0);
    b.last = kl_squeeze(b.last, 0);
    kl_tensor scanned[5] = {kl_arange(x->device, KL_I32, x->n), iteration_above(x, d), d, iteration_above(x, e), e};
    kl_status status = kl_scan(rotation, &b, x->n, CARRIED, carried, 5, scanned, stacked, true, results);
    for (int64_t i = 0; i < stacked; i++)
        out[i] = results[CARRIED + i];
    return status;
}

/* Applies one rotation of each of SWEEPS steps, each to another pair of rows.  Carried: for each step the row that its
 * last rotation left unfinished, [N, B].  Scanned: the next row [N, B], rotations c and s [SWEEPS, B].  Stacked: the
 * row that all steps have finished. */
static kl_status iteration_rotate_row(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
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

/* Rotations [SWEEPS, n, B] in the order in which iteration_rotate_row takes them, [n + SWEEPS, SWEEPS, B]: the one of
 * row j of step k is in row j - 1 + SWEEPS - k.  Where there is none: `fill`. */
static kl_tensor iteration_skewed(kl_tensor a, double fill)
{
    kl_tensor part[SWEEPS];
    for (int64_t k = 0; k < SWEEPS; k++) {
        kl_tensor own = kl_squeeze(kl_narrow(a, 0, k, 1), 0);
        part[k] = kl_pad(own, (int64_t[]){SWEEPS - 1 - k, 0}, (int64_t[]){k + 1, 0}, fill);
    }
    return kl_stack(SWEEPS, part, 1);
}

/* [SWEEPS + n, N, B] The first n rows, behind SWEEPS rows of zeros, with which the scan of iteration_rotate_vectors
 * fills its pipeline. */
static kl_tensor iteration_padded(const struct solve_qr_iteration *x, kl_tensor rows)
{
    return kl_pad(kl_narrow(rows, 0, 0, x->n), (int64_t[]){SWEEPS, 0, 0}, NULL, 0);
}

/* Vectors, padded by iteration_padded, after the rotations c and s [SWEEPS, n, B] of SWEEPS steps. */
static kl_tensor iteration_rotate_vectors(const struct solve_qr_iteration *x, kl_tensor vectors, kl_tensor c,
                                          kl_tensor s)
{
    kl_tensor carried[SWEEPS], out[SWEEPS + 1];
    kl_tensor scanned[3] = {vectors, iteration_skewed(c, 1), iteration_skewed(s, 0)};
    for (int k = 0; k < SWEEPS; k++)
        carried[k] = kl_zeros(x->device, x->dtype, 2, (int64_t[]){x->N, x->B});
    kl_scan(iteration_rotate_row, NULL, x->n + SWEEPS, SWEEPS, carried, 3, scanned, 1, true, out);
    return iteration_padded(x, out[SWEEPS]);
}

/* SWEEPS steps.  Carried: the diagonal and the off-diagonal elements, [n, B], padded vectors, and whether an element of
 * the first half is not negligible yet. */
static kl_status iteration_steps(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_qr_iteration *x = ctx;
    kl_tensor stacked[2 + 2 * MAX_VECTORS];
    (void)nin, (void)nout;
    kl_status status = kl_scan(x->step, ctx, SWEEPS, 2, in, 0, NULL, 2 * x->vectors, false, stacked);
    for (int i = 0; i < 2; i++)
        out[i] = stacked[i];
    for (int i = 2; i < 2 + x->vectors; i++)
        out[i] = iteration_rotate_vectors(x, in[i], stacked[2 * i - 2], stacked[2 * i - 1]);
    kl_tensor unreduced = kl_narrow(iteration_unreduced(x, out[0], out[1]), 0, 0, x->part);
    out[2 + x->vectors] = kl_any(unreduced, 0, NULL, false);
    return status;
}

static kl_status iteration_converged(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nout;
    for (int64_t i = 0; i < nin; i++)
        out[i] = in[i];
    out[nin] = kl_const(kl_device_of(in[0]), KL_BOOL, 0);
    return KL_OK;
}

/* Carried: as of iteration_steps. */
static kl_status iteration_steps_if_needed(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    return kl_cond(in[nin - 1], iteration_steps, iteration_converged, ctx, nin - 1, in, nout, out);
}

/* Carried: as of iteration_steps, and how many times they ran. */
static kl_status iteration_needed(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_qr_iteration *x = ctx;
    (void)nout;
    out[0] = kl_and(in[nin - 2], kl_lt(in[nin - 1], solve_number(in[nin - 1], (double)x->max)));
    return KL_OK;
}

static kl_status iteration_counted_steps(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nout;
    out[nin - 1] = kl_add(in[nin - 1], solve_number(in[nin - 1], 1));
    return iteration_steps(ctx, in, nin - 2, out, nin - 1);
}

/* Iterates until the first half of the rows is diagonal, then calls itself for the rest.  as_scan: by a scan over the
 * largest number of steps, which does nothing after convergence: with small matrices it is one kernel, as a while is
 * not. */
static void iteration_halve(struct solve_qr_iteration x, bool as_scan, kl_tensor *arrays)
{
    enum { MIN_HALF = 8, MAX_ARRAYS = 2 + MAX_VECTORS };
    int64_t n = x.n, half = n > 2 * MIN_HALF ? n / 2 : n, count = 2 + x.vectors;
    x.part = half;
    x.max = (half * MAX_STEPS_A_ROW + SWEEPS - 1) / SWEEPS;
    kl_tensor in[MAX_ARRAYS + 2] = {arrays[0], arrays[1]}, out[MAX_ARRAYS + 2], rest[MAX_ARRAYS];
    for (int64_t i = 2; i < count; i++)
        in[i] = iteration_padded(&x, arrays[i]);
    in[count] = kl_const(x.device, KL_BOOL, 1);
    in[count + 1] = kl_const(x.device, KL_I32, 0);
    if (as_scan)
        kl_scan(iteration_steps_if_needed, &x, x.max, count + 1, in, 0, NULL, 0, false, out);
    else
        kl_while(iteration_needed, iteration_counted_steps, &x, count + 2, in, out);
    for (int64_t i = 0; i < count; i++)
        arrays[i] = i < 2 ? out[i] : kl_narrow(out[i], 0, SWEEPS, n);
    if (half == n)
        return;
    for (int64_t i = 0; i < count; i++)
        rest[i] = kl_narrow(arrays[i], 0, half, n - half);
    x.n = n - half;
    iteration_halve(x, as_scan, rest);
    for (int64_t i = 0; i < count; i++)
        arrays[i] = kl_concat(2, (kl_tensor[]){kl_narrow(arrays[i], 0, 0, half), rest[i]}, 0);
}

void solve_iterate(const struct solve_matrices *m, kl_region_fn *step, int vectors, kl_tensor *arrays)
{
    enum { MAX_SCAN = 16 }; /* rows of matrices whose iteration is one kernel */
    int64_t dims[3] = {0};
    kl_shape(arrays[2], dims);
    struct solve_qr_iteration x = {.n = dims[0], .N = dims[1], .B = m->B, .device = m->device, .dtype = m->dtype,
                                   .step = step, .vectors = vectors};
    iteration_halve(x, m->B > 1 && x.n <= MAX_SCAN, arrays);
}
