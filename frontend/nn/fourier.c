/* Fourier transforms of [B, n] as pairs of real tensors.  A length with a factor r up to 32 becomes a product with a
 * matrix [r, r], twiddle factors, and transforms of n / r (Cooley and Tukey 1965).  Other lengths become a convolution
 * with a chirp, padded to a power of two (Bluestein 1970).  Angles are multiples of 2 pi / n with exact integers. */
#include "frontend/nn/compose.h"

enum { MATRIX_MAX = 32, DIRECT_MAX = 128 };

struct fourier { kl_device device; kl_dtype dtype; };
struct fourier_pair { kl_tensor re, im; }; /* im may be kl_none: zeros */

/* cos and sin of -2 pi k / n, k integers reduced to 0..n-1. */
static struct fourier_pair unit_circle(const struct fourier *f, kl_tensor k, int64_t n)
{
    kl_dtype d = kl_device_supports(f->device, KL_F64) ? KL_F64 : KL_F32;
    kl_tensor angle = kl_mul(kl_cast(k, d), number(k, d, -6.28318530717958647693 / (double)n));
    return (struct fourier_pair){kl_cast(kl_cos(angle), f->dtype), kl_cast(kl_sin(angle), f->dtype)};
}

/* [rows, columns]: the powers i j of the n-th root of one. */
static struct fourier_pair root_powers(const struct fourier *f, int64_t rows, int64_t columns, int64_t n)
{
    int64_t dims[2] = {rows, columns};
    kl_tensor k = kl_mul(kl_iota(f->device, KL_I64, 2, dims, 0), kl_iota(f->device, KL_I64, 2, dims, 1));
    return unit_circle(f, kl_rem(k, number(k, KL_I64, (double)n)), n);
}

typedef kl_tensor multiply_fn(kl_tensor a, kl_tensor b);
static kl_tensor of_elements(kl_tensor a, kl_tensor b) { return kl_mul(a, b); }
static kl_tensor of_matrices(kl_tensor a, kl_tensor b) { return kl_matmul(a, b); }

static struct fourier_pair complex_product(multiply_fn *product, struct fourier_pair a, struct fourier_pair b)
{
    struct fourier_pair r = {product(a.re, b.re), product(a.re, b.im)};
    if (a.im.id) {
        r.re = kl_sub(r.re, product(a.im, b.im));
        r.im = kl_add(r.im, product(a.im, b.re));
    }
    return r;
}

/* A symmetric matrix [r, r] times x [..., r, m]. */
static struct fourier_pair matrix_times(struct fourier_pair w, struct fourier_pair x)
{
    struct fourier_pair r = {kl_matmul(w.re, x.re), kl_matmul(w.im, x.re)};
    if (x.im.id) {
        r.re = kl_sub(r.re, kl_matmul(w.im, x.im));
        r.im = kl_add(r.im, kl_matmul(w.re, x.im));
    }
    return r;
}

static struct fourier_pair each_part(struct fourier_pair x, int rank, const int64_t *dims)
{
    x.re = kl_reshape(x.re, rank, dims);
    x.im = x.im.id ? kl_reshape(x.im, rank, dims) : x.im;
    return x;
}

static struct fourier_pair fourier_transform(const struct fourier *f, struct fourier_pair x, int64_t B, int64_t n);

/* The inverse is the transform with real and imaginary parts exchanged, before and after, except for the division by
 * n. */
static struct fourier_pair transform_back(const struct fourier *f, struct fourier_pair x, int64_t B, int64_t n)
{
    kl_tensor zero = x.im.id ? x.im : kl_mul(x.re, same_number(x.re, 0));
    kl_tensor scale = same_number(x.re, (double)n);
    struct fourier_pair y = fourier_transform(f, (struct fourier_pair){zero, x.re}, B, n);
    return (struct fourier_pair){kl_div(y.im, scale), kl_div(y.re, scale)};
}

/* With w_k = e^(-pi i k^2 / n), X_k = w_k times the convolution of w_j x_j with conj(w_j). */
static struct fourier_pair fourier_bluestein(const struct fourier *f, struct fourier_pair x, int64_t B, int64_t n)
{
    int64_t m = 1;
    while (m < 2 * n - 1)
        m *= 2;
    kl_tensor k = kl_arange(f->device, KL_I64, n);
    struct fourier_pair w = unit_circle(f, kl_rem(kl_mul(k, k), number(k, KL_I64, (double)(2 * n))), 2 * n), a, b;
    int64_t behind[2] = {0, m - n}, gap = m - 2 * n + 1;
    int last = 0;
    a = complex_product(of_elements, x, w);
    a = (struct fourier_pair){kl_pad(a.re, NULL, behind, 0), kl_pad(a.im, NULL, behind, 0)};
    for (int i = 0; i < 2; i++) { /* conj(w_0 .. w_(n-1)), zeros, conj(w_(n-1) .. w_1) */
        kl_tensor half = i ? kl_neg(w.im) : w.re;
        kl_tensor pieces[2] = {kl_pad(half, NULL, &gap, 0), kl_flip(kl_narrow(half, 0, 1, n - 1), 1, &last)};
        *(i ? &b.im : &b.re) = kl_reshape(kl_concat(2, pieces, 0), 2, (int64_t[]){1, m});
    }
    a = complex_product(of_elements, fourier_transform(f, a, B, m), fourier_transform(f, b, 1, m));
    a = transform_back(f, a, B, m);
    a = (struct fourier_pair){kl_narrow(a.re, 1, 0, n), kl_narrow(a.im, 1, 0, n)};
    return complex_product(of_elements, a, w);
}

/* x [B, n], [B, n] its transform. */
static struct fourier_pair fourier_transform(const struct fourier *f, struct fourier_pair x, int64_t B, int64_t n)
{
    int64_t r = n <= MATRIX_MAX ? n : MATRIX_MAX;
    while (n % r)
        r--;
    if (r == 1 && n > DIRECT_MAX)
        return fourier_bluestein(f, x, B, n);
    if (r == 1 || r == n) /* all rows of x by one symmetric matrix */
        return complex_product(of_matrices, x, root_powers(f, n, n, n));
    /* element j1 m + j2 of x, k1 + r k2 of the result */
    int64_t m = n / r;
    x = matrix_times(root_powers(f, r, r, r), each_part(x, 3, (int64_t[]){B, r, m}));
    x = complex_product(of_elements, x, root_powers(f, r, m, n));
    x = fourier_transform(f, each_part(x, 2, (int64_t[]){B * r, m}), B * r, m);
    x = each_part(x, 3, (int64_t[]){B, r, m});
    x = (struct fourier_pair){kl_transpose(x.re, 1, 2), kl_transpose(x.im, 1, 2)};
    return each_part(x, 2, (int64_t[]){B, n});
}

/* ---- arguments ---- */

struct along {
    struct fourier f;
    struct view v;
    uint32_t axis;
    int64_t B, n;
    struct shape moved;           /* with the axis last */
    int order[KL_MAX_RANK];
};

/* The parts of a as [B, n], the axis last; NULL: reported. */
static struct thread *fourier_begin(const char *op, kl_tensor a, int axis, struct along *x, struct fourier_pair *p)
{
    struct thread *t = thread_self();
    char text[SHAPE_TEXT];
    if (!t || !describe(t, op, "the tensor", a, &x->v) || !axis_of(t, op, &x->v.shape, axis, &x->axis))
        return NULL;
    x->n = x->v.shape.dim[x->axis];
    if (x->n < 1 || x->n > INT64_C(1) << 30) {
        fail(t, KL_ERR_SHAPE, "%s: axis %u of %s", op, x->axis, shape_text(&x->v.shape, text, sizeof text));
        return NULL;
    }
    if (x->v.dtype != KL_F32 && x->v.dtype != KL_F64) {
        fail(t, KL_ERR_TYPE, "%s: needs f32 or f64, got %s", op, dtype_name(x->v.dtype));
        return NULL;
    }
    if (!(t = checked_begin(op)))
        return NULL;
    x->f = (struct fourier){x->v.device, (kl_dtype)x->v.dtype};
    x->B = shape_count(&x->v.shape) / x->n;
    x->moved = x->v.shape;
    uint32_t last = x->v.shape.rank - 1;
    for (uint32_t i = 0; i <= last; i++) {
        x->order[i] = (int)(i < x->axis ? i : i == last ? x->axis : i + 1);
        x->moved.dim[i] = x->v.shape.dim[x->order[i]];
    }
    int64_t flat[2] = {x->B, x->n};
    bool complex = !strcmp(kl_layer_name(a), "complex");
    p->re = kl_reshape(kl_permute(complex ? kl_real(a) : a, x->order), 2, flat);
    p->im = complex ? kl_reshape(kl_permute(kl_imag(a), x->order), 2, flat) : kl_none;
    return t;
}

/* [B, n] with the axis moved back. */
static kl_tensor moved_back(const struct along *x, kl_tensor a, int64_t n)
{
    struct shape s = x->moved;
    uint32_t last = s.rank - 1;
    int back[KL_MAX_RANK];
    s.dim[last] = n;
    for (uint32_t i = 0; i <= last; i++)
        back[i] = (int)(i < x->axis ? i : i == x->axis ? last : i - 1);
    return kl_permute(reshape_to("fft", a, &s), back);
}

kl_tensor kl_fft(kl_tensor a, int axis, bool inverse)
{
    struct along x;
    struct fourier_pair p;
    struct thread *t = fourier_begin("fft", a, axis, &x, &p);
    if (!t)
        return op_failed();
    p = inverse ? transform_back(&x.f, p, x.B, x.n) : fourier_transform(&x.f, p, x.B, x.n);
    return compose_end(t, kl_complex(moved_back(&x, p.re, x.n), moved_back(&x, p.im, x.n)));
}

kl_tensor kl_rfft(kl_tensor a, int axis)
{
    struct along x;
    struct fourier_pair p;
    struct thread *t = fourier_begin("rfft", a, axis, &x, &p);
    if (!t)
        return op_failed();
    int64_t bins = x.n / 2 + 1;
    if (p.im.id)
        return compose_end(t, refuse(t, KL_ERR_TYPE, "rfft: the tensor is complex, kl_fft takes it"));
    p = fourier_transform(&x.f, p, x.B, x.n);
    return compose_end(t, kl_complex(moved_back(&x, kl_narrow(p.re, 1, 0, bins), bins),
                                     moved_back(&x, kl_narrow(p.im, 1, 0, bins), bins)));
}

/* The bins after the middle are those before it, reversed and conjugated. */
kl_tensor kl_irfft(kl_tensor a, int axis, int64_t n)
{
    struct along x;
    struct fourier_pair p;
    struct thread *t = fourier_begin("irfft", a, axis, &x, &p);
    int last = 1;
    if (!t)
        return op_failed();
    if (n < 1 || n / 2 + 1 != x.n)
        return compose_end(t, refuse(t, KL_ERR_SHAPE, "irfft: %" PRId64 " elements have %" PRId64
                                     " bins, the axis has %" PRId64, n, n < 1 ? 0 : n / 2 + 1, x.n));
    if (!p.im.id)
        p.im = kl_mul(p.re, same_number(p.re, 0));
    kl_tensor re[2] = {p.re, kl_flip(kl_narrow(p.re, 1, 1, n - x.n), 1, &last)};
    kl_tensor im[2] = {p.im, kl_neg(kl_flip(kl_narrow(p.im, 1, 1, n - x.n), 1, &last))};
    p = (struct fourier_pair){kl_concat(2, re, 1), kl_concat(2, im, 1)};
    p = transform_back(&x.f, p, x.B, n);
    return compose_end(t, moved_back(&x, p.re, n));
}
