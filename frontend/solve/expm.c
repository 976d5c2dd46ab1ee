/* The exponential of a matrix: Pade approximants of a^(2^-s), squared s times (Higham 2005, "The scaling and squaring
 * method for the matrix exponential revisited"), degree 13 in f64, 7 in f32.  The gradient is the upper right block of
 * the exponential of [[a^T, g], [0, a^T]] (Najfeld and Havel 1995), which is linear in g. */
#include "lapack.h"

static const double coefficients_13[] = {
    64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600,
    670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
}, coefficients_7[] = {17297280, 8648640, 1995840, 277200, 25200, 1512, 56, 1};

/* sum of c[i] p[i / 2] over even or odd i below n, p: 1, a^2, a^4, ... */
static kl_tensor expm_sum(const double *c, int first, int n, const kl_tensor *p)
{
    kl_tensor sum = kl_none;
    for (int i = first; i < n; i += 2) {
        kl_tensor part = kl_mul(p[i / 2], solve_number(p[0], c[i]));
        sum = sum.id ? kl_add(sum, part) : part;
    }
    return sum;
}

/* x with a x = b */
typedef kl_tensor expm_divide(kl_tensor a, kl_tensor b);
struct expm { const struct solve_matrices *x; expm_divide *divide; };

/* The approximant of a matrix whose norm is small enough. */
static kl_tensor expm_pade(kl_tensor a, kl_tensor one, expm_divide *divide)
{
    bool f64 = kl_dtype_of(a) == KL_F64;
    const double *c = f64 ? coefficients_13 : coefficients_7;
    int n = f64 ? 8 : 8; /* terms up to a^7 */
    kl_tensor square = kl_matmul(a, a), fourth = kl_matmul(square, square), sixth = kl_matmul(fourth, square);
    kl_tensor p[4] = {one, square, fourth, sixth}, even = expm_sum(c, 0, n, p), odd = expm_sum(c, 1, n, p);
    if (f64) { /* a^8 to a^13, by one product with a^6 */
        kl_tensor q[4] = {kl_mul(one, solve_number(one, 0)), square, fourth, sixth};
        even = kl_add(even, kl_matmul(sixth, expm_sum(c + 6, 2, 8, q)));
        odd = kl_add(odd, kl_matmul(sixth, expm_sum(c + 6, 3, 8, q)));
    }
    odd = kl_matmul(a, odd);
    return divide(kl_sub(even, odd), kl_add(even, odd));
}

static kl_status squaring_continue(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    kl_tensor *s = ctx;
    out[0] = kl_lt(in[1], kl_max(*s, 1, (int[]){0}, false));
    return KL_OK;
}

static kl_status squaring_step(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    kl_tensor *s = ctx, more = kl_unsqueeze(kl_unsqueeze(kl_lt(in[1], *s), -1), -1);
    out[0] = kl_where(more, kl_matmul(in[0], in[0]), in[0]);
    out[1] = kl_add(in[1], solve_number(in[1], 1));
    return KL_OK;
}

static kl_tensor expm_record(kl_tensor a, expm_divide *divide)
{
    bool f64 = kl_dtype_of(a) == KL_F64;
    int64_t dims[KL_MAX_RANK];
    kl_shape(a, dims);
    kl_tensor one = kl_expand(kl_eye(kl_device_of(a), kl_dtype_of(a), dims[1], dims[1]), 3, dims), out[2];
    kl_tensor norm = kl_max(kl_sum(kl_abs(a), 1, (int[]){1}, false), 1, (int[]){1}, false); /* [B] */
    kl_tensor s = kl_ceil(kl_log2(kl_div(norm, solve_number(a, f64 ? 5.371920351148152 : 3.925724783138660))));
    s = kl_where(kl_and(kl_gt(s, solve_number(s, 0)), kl_is_finite(s)), s, solve_number(s, 0));
    kl_tensor scaled = kl_mul(a, kl_unsqueeze(kl_unsqueeze(kl_exp2(kl_neg(s)), -1), -1));
    kl_tensor times = kl_cast(s, KL_I32);
    kl_tensor first = expm_pade(scaled, one, divide), in[2] = {first, solve_number(times, 0)};
    kl_while(squaring_continue, squaring_step, &times, 2, in, out);
    return out[0];
}

static kl_status expm_fn(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = expm_record(in[0], ((const struct expm *)ctx)->divide);
    return KL_OK;
}

/* [B, 1, 1] The largest sum of a column of sizes; 1 where that is 0 or not finite. */
static kl_tensor expm_size(kl_tensor a)
{
    kl_tensor size = kl_max(kl_sum(kl_abs(a), 1, (int[]){1}, true), 1, (int[]){2}, true);
    return solve_divisor(size);
}

/* in: a, its exponential, the gradient, which is divided by its size: squarings that a alone does not need lose digits
 */
static kl_status expm_backward(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct expm *e = ctx;
    const struct solve_matrices *x = e->x;
    (void)nin, (void)nout;
    kl_tensor t = solve_transposed(in[0]), zero = kl_zeros(x->device, x->dtype, 3, (int64_t[]){x->B, x->n, x->n});
    kl_tensor size = expm_size(in[2]), above = kl_concat(2, (kl_tensor[]){t, kl_div(in[2], size)}, 2);
    kl_tensor below = kl_concat(2, (kl_tensor[]){zero, t}, 2);
    kl_tensor both = expm_record(kl_concat(2, (kl_tensor[]){above, below}, 1), e->divide);
    out[0] = kl_mul(kl_narrow(kl_narrow(both, 1, 0, x->n), 2, x->n, x->n), size);
    return KL_OK;
}

static kl_tensor expm_by(const char *op, expm_divide *divide, kl_tensor a)
{
    struct solve_matrices x;
    struct expm e = {&x, divide};
    kl_tensor out = kl_none;
    if (!solve_begin(op, &a, true, &x))
        return kl_poison();
    if (x.B && x.n)
        kl_custom_grad(expm_fn, expm_backward, &e, 1, &a, 1, &out);
    return solve_end(solve_result(&x, out.id ? out : a), 0, NULL);
}

kl_tensor kl_expm(kl_tensor a) { return expm_by("expm", kl_solve, a); }

kl_tensor kl_lapack_expm(kl_tensor a)
{
    if (!lapack_ready("lapack_expm", NULL) || !lapack_fits("lapack_expm", a))
        return kl_poison();
    return expm_by("lapack_expm", kl_lapack_solve, a);
}
