/* Singular values and vectors of bidiagonal matrices: implicit QR steps (Golub and Reinsch 1970, "Singular value
 * decomposition and least squares solutions"), with a shift of 0 where a block is singular (Demmel and Kahan 1990,
 * "Accurate singular values of bidiagonal matrices").  qr_iteration.c repeats them. */
#include "eigen.h"

/* The rotations of rows j - 1 and j, from the right and from the left.  Carried: f, x, c, s, [B] each.  Scanned: j,
 * elements j - 1 and j of the diagonal and of the superdiagonal.  Stacked: elements j of both, and c and s of the
 * rotations of right and of left vectors. */
static kl_status qr_rotation(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_unreduced *b = ctx;
    (void)nin, (void)nout;
    kl_tensor f = in[0], x = in[1], c = in[2], s = in[3], j = in[4], d0 = in[5], d1 = in[6], e0 = in[7], e1 = in[8];
    kl_tensor zero = solve_number(f, 0), one = solve_number(f, 1), is_first = kl_eq(j, b->first);
    kl_tensor inside = kl_and(kl_lt(b->first, j), kl_le(j, b->last)), is_last = kl_eq(j, b->last);
    kl_tensor h = kl_mul(s, e0), g = kl_mul(c, e0), z = kl_sqrt(kl_fma(f, f, kl_mul(h, h)));
    kl_tensor tiny = solve_number(f, solve_tiny(kl_dtype_of(f))), some = kl_and(inside, kl_gt(z, tiny));
    kl_tensor cv = kl_where(some, kl_div(f, z), one), sv = kl_where(some, kl_div(h, z), zero);
    kl_tensor f1 = kl_fma(x, cv, kl_mul(g, sv)), g1 = kl_fma(g, cv, kl_neg(kl_mul(x, sv)));
    kl_tensor h1 = kl_mul(d0, sv), y1 = kl_mul(d0, cv), z1 = kl_sqrt(kl_fma(f1, f1, kl_mul(h1, h1)));
    some = kl_and(inside, kl_gt(z1, tiny));
    kl_tensor cu = kl_where(some, kl_div(f1, z1), one), su = kl_where(some, kl_div(h1, z1), zero);
    out[0] = kl_where(inside, kl_fma(cu, g1, kl_mul(su, y1)), f);
    out[1] = kl_where(inside, kl_fma(cu, y1, kl_neg(kl_mul(su, g1))), x);
    out[2] = kl_where(inside, cu, c);
    out[3] = kl_where(inside, su, s);
    out[4] = kl_where(inside, z1, kl_where(is_first, x, d1));
    out[5] = kl_where(inside, kl_where(is_last, zero, z), kl_where(is_first, f, e1));
    out[6] = cv;
    out[7] = sv;
    out[8] = cu;
    out[9] = su;
    return KL_OK;
}

/* The shift of a block, [1, B]: the eigenvalue of the first two rows of b b^T that is nearer to its first element. */
static kl_tensor qr_shift(const struct solve_unreduced *b, kl_tensor d, kl_tensor e)
{
    kl_tensor i = solve_number(b->first, 1), second = kl_add(b->first, i), zero = solve_number(d, 0);
    kl_tensor one = solve_number(d, 1), z = solve_element(b, d, b->first), y = solve_element(b, d, second);
    kl_tensor h = solve_element(b, e, b->first), hy = kl_mul(h, y);
    kl_tensor g = kl_where(kl_lt(second, b->last), solve_element(b, e, second), zero);
    kl_tensor sum = kl_add(kl_mul(kl_sub(y, z), kl_add(y, z)), kl_mul(kl_sub(g, h), kl_add(g, h)));
    kl_tensor f = kl_div(sum, kl_where(kl_eq(hy, zero), one, kl_mul(hy, solve_number(d, 2))));
    kl_tensor r = kl_sqrt(kl_fma(f, f, one));
    f = kl_add(f, kl_where(kl_lt(f, zero), kl_neg(r), r));
    return kl_sub(kl_fma(z, z, kl_mul(h, h)), kl_div(hy, f));
}

/* A QR step.  Carried: the diagonal and the superdiagonal, [n, B].  Stacked: rotations of right and of left vectors. */
static kl_status qr_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_qr_iteration *x = ctx;
    (void)nin, (void)nout;
    double epsilon = solve_epsilon(x->dtype);
    kl_tensor e = in[1], zero = solve_number(e, 0), one = solve_number(e, 1);
    struct solve_unreduced b = solve_unreduced(x, in[0], &e);
    kl_tensor inside = kl_and(kl_ge(b.rows, b.first), kl_le(b.rows, b.last));
    kl_tensor none = kl_and(inside, kl_le(kl_abs(in[0]), solve_number(e, epsilon * epsilon / 4)));
    kl_tensor d = kl_where(none, zero, in[0]), top = solve_element(&b, d, b.last);
    kl_tensor regular = kl_not(kl_any(none, 1, (int[]){0}, true));
    kl_tensor shift = kl_where(regular, qr_shift(&b, d, e), zero);
    kl_tensor f = kl_sub(top, kl_where(regular, kl_div(shift, kl_where(kl_eq(top, zero), one, top)), zero));
    kl_tensor ones = kl_ones(x->device, x->dtype, 1, &x->B);
    kl_tensor carried[4] = {kl_squeeze(f, 0), kl_squeeze(top, 0), ones, ones};
    return solve_rotations(x, b, qr_rotation, d, e, carried, out);
}

void solve_qr_steps(const struct solve_matrices *m, kl_tensor *arrays) { solve_iterate(m, qr_step, 2, arrays); }
