/* Eigenvalues and eigenvectors of symmetric tridiagonal matrices: QL steps with Wilkinson's shift (EISPACK's tql2:
 * Bowdler et al. 1968, "The QR and QL algorithms for symmetric matrices").  qr_iteration.c repeats them. */
#include "eigen.h"

/* The rotation of rows j - 1 and j, in tql2's variables.  Carried: g, c, s, p, [B] each.  Scanned: j, elements j - 1
 * and j of the diagonal and of the subdiagonal.  Stacked: elements j of both, and the rotation's c and s. */
static kl_status ql_rotation(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_unreduced *b = ctx;
    (void)nin, (void)nout;
    kl_tensor g = in[0], c = in[1], s = in[2], p = in[3], j = in[4], d0 = in[5], d1 = in[6], e0 = in[7], e1 = in[8];
    kl_tensor zero = solve_number(g, 0), one = solve_number(g, 1);
    kl_tensor inside = kl_and(kl_lt(b->first, j), kl_le(j, b->last)), is_last = kl_eq(j, b->last);
    kl_tensor is_first = kl_eq(j, b->first);
    kl_tensor f = kl_mul(s, e0), h = kl_mul(c, e0), r = kl_sqrt(kl_fma(f, f, kl_mul(g, g)));
    kl_tensor some = kl_and(inside, kl_gt(r, solve_number(r, solve_tiny(kl_dtype_of(r)))));
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

/* A QL step.  Carried: the diagonal and the subdiagonal, [n, B].  Stacked: the rotations, c and s, [n, B]. */
static kl_status ql_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct solve_qr_iteration *x = ctx;
    (void)nin, (void)nout;
    kl_tensor d = in[0], e = in[1], zero = solve_number(d, 0), one = solve_number(d, 1);
    struct solve_unreduced b = solve_unreduced(x, d, &e);
    kl_tensor second = kl_add(b.first, solve_number(b.first, 1)), d0 = solve_element(&b, d, b.first);
    kl_tensor e0 = kl_where(b.any, solve_element(&b, e, b.first), one);
    kl_tensor g = kl_div(kl_sub(solve_element(&b, d, second), d0), kl_mul(e0, solve_number(d, 2)));
    kl_tensor r = kl_sqrt(kl_fma(g, g, one));
    g = kl_add(g, kl_where(kl_lt(g, zero), kl_neg(r), r));
    g = kl_add(kl_sub(solve_element(&b, d, b.last), d0), kl_div(e0, g));
    kl_tensor ones = kl_ones(x->device, x->dtype, 1, &x->B), zeros = kl_zeros(x->device, x->dtype, 1, &x->B);
    return solve_rotations(x, b, ql_rotation, d, e, (kl_tensor[]){kl_squeeze(g, 0), ones, ones, zeros}, out);
}

void solve_ql(const struct solve_matrices *m, kl_tensor *arrays) { solve_iterate(m, ql_step, 1, arrays); }
