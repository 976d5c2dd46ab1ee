/* Complex: numbers as pairs of floats.  Linear ops are applied to each part; this file has the others. */
#include "wrapper.h"
#include <string.h>

struct complex_pair { kl_tensor re, im; };

static kl_tensor complex_make(struct thread *t, kl_tensor re, kl_tensor im)
{
    struct view v = view_of(re);
    return wrap(t, &layer_complex, &v, 2, (kl_tensor[]){re, im}, NULL);
}

static kl_tensor zeros_like(const struct view *v)
{
    static const struct shape scalar;
    return broadcast_to("complex", const_like(v, 0), &scalar, &v->shape);
}

/* The parts of an operand that may be real. */
static struct complex_pair pair_of(kl_tensor h)
{
    const struct wrapper *w = wrapper_of(h, &layer_complex);
    struct view v = view_of(h);
    return w ? (struct complex_pair){w->part[0], w->part[1]} : (struct complex_pair){h, zeros_like(&v)};
}

static kl_tensor complex_dense(struct thread *t, kl_tensor h)
{
    const struct wrapper *w = wrapper_of(h, &layer_complex);
    (void)t;
    return kl_stack(2, w->part, -1);
}

/* For an op that is linear in its operands: the ones that are numbers, one bit each; 0: another op. */
static unsigned numbers_of(const struct call *c)
{
    if (op_is_view(c->proto.op))
        return 1;
    if (op_is_masked(c->proto.op))
        return 3;
    switch (c->proto.op) {
    case OP_dynamic_slice: case OP_gather: case OP_sum: case OP_cumsum: case OP_neg: return 1;
    case OP_add: case OP_sub: case OP_dynamic_update: return 3;
    case OP_scatter: return c->proto.attr.scatter.kind == SCATTER_ADD ||
        c->proto.attr.scatter.kind == SCATTER_SET ? 5 : 0;
    case OP_where: return 6;
    case OP_concat: return 15;
    case OP_cast: return dtype_is_float(c->proto.dtype);
    default: return 0;
    }
}

static kl_tensor complex_linear(struct thread *t, const struct call *c, unsigned numbers)
{
    struct call re = *c, im = *c;
    for (unsigned i = 0; i < call_operands(c); i++) {
        if (!(numbers >> i & 1))
            continue;
        struct complex_pair p = pair_of(c->in[i]);
        re.in[i] = p.re;
        im.in[i] = p.im;
    }
    kl_tensor r = record(&re);
    return complex_make(t, r, record(&im));
}

/* Products by the op of the call: mul or dot.  A real operand has one part. */
static kl_tensor complex_product(struct thread *t, const struct call *c)
{
    const struct wrapper *a = wrapper_of(c->in[0], &layer_complex), *b = wrapper_of(c->in[1], &layer_complex);
    if (!a)
        return complex_make(t, call_with(c, c->in[0], b->part[0], kl_none),
                            call_with(c, c->in[0], b->part[1], kl_none));
    if (!b)
        return complex_make(t, call_with(c, a->part[0], c->in[1], kl_none),
                            call_with(c, a->part[1], c->in[1], kl_none));
    kl_tensor rr = call_with(c, a->part[0], b->part[0], kl_none), ii = call_with(c, a->part[1], b->part[1], kl_none);
    kl_tensor ri = call_with(c, a->part[0], b->part[1], kl_none), ir = call_with(c, a->part[1], b->part[0], kl_none);
    kl_tensor re = kl_sub(rr, ii);
    return complex_make(t, re, kl_add(ri, ir));
}

/* a / b = a conj(b) / |b|^2 */
static kl_tensor complex_quotient(struct thread *t, kl_tensor num, kl_tensor den)
{
    struct complex_pair a = pair_of(num);
    const struct wrapper *w = wrapper_of(den, &layer_complex);
    if (!w) {
        kl_tensor re = kl_div(a.re, den);
        return complex_make(t, re, kl_div(a.im, den));
    }
    kl_tensor br = w->part[0], bi = w->part[1];
    kl_tensor size = kl_add(kl_mul(br, br), kl_mul(bi, bi));
    kl_tensor re = kl_add(kl_mul(a.re, br), kl_mul(a.im, bi));
    kl_tensor im = kl_sub(kl_mul(a.im, br), kl_mul(a.re, bi));
    re = kl_div(re, size);
    return complex_make(t, re, kl_div(im, size));
}

/* e^re (cos im + i sin im) */
static kl_tensor complex_exp(struct thread *t, struct complex_pair z)
{
    kl_tensor size = kl_exp(z.re), re = kl_mul(size, kl_cos(z.im));
    return complex_make(t, re, kl_mul(size, kl_sin(z.im)));
}

static kl_tensor call_complex(struct thread *t, const struct call *c)
{
    unsigned numbers = numbers_of(c);
    if (numbers)
        return complex_linear(t, c, numbers);
    if (c->proto.op == OP_mul || op_is_product(c->proto.op))
        return complex_product(t, c);
    struct complex_pair a = pair_of(c->in[0]), b = {a.re, a.im};
    struct view one = view_of(a.re);
    switch (c->proto.op) {
    case OP_div: return complex_quotient(t, c->in[0], c->in[1]);
    case OP_recip: return complex_quotient(t, const_like(&one, 1), c->in[0]);
    case OP_exp: return complex_exp(t, a);
    case OP_log: {
        kl_tensor re = kl_log(kl_hypot(a.re, a.im));
        return complex_make(t, re, kl_atan2(a.im, a.re));
    }
    case OP_abs: return kl_hypot(a.re, a.im);
    case OP_is_nan: return kl_or(kl_is_nan(a.re), kl_is_nan(a.im));
    case OP_is_finite: return kl_and(kl_is_finite(a.re), kl_is_finite(a.im));
    case OP_eq: case OP_ne: {
        b = pair_of(c->in[1]);
        kl_tensor re = call_with(c, a.re, b.re, kl_none), im = call_with(c, a.im, b.im, kl_none);
        return c->proto.op == OP_eq ? kl_and(re, im) : kl_or(re, im);
    }
    default: return call_refused(t, c, KL_ERR_TYPE,
                                 "has no meaning for a complex tensor; kl_real, kl_imag and kl_abs are plain ones");
    }
}

const struct layer layer_complex = {.name = "complex", .key = LAYER_Complex, .grad_parts = 3, .call = call_complex,
                                    .dense = complex_dense};

/* ---- making them, and their parts ---- */

kl_tensor kl_complex(kl_tensor re, kl_tensor im)
{
    struct thread *t = checked_begin("complex");
    struct view a, b;
    if (!t)
        return op_failed();
    if (!describe(t, "complex", "the real part", re, &a) ||
        !describe(t, "complex", "the imaginary part", im, &b))
        return compose_end(t, poison(t));
    struct shape all = a.shape;
    char x[SHAPE_TEXT], y[SHAPE_TEXT];
    if (wrapper_of(re, NULL) || wrapper_of(im, NULL))
        return compose_end(t, refuse(t, KL_ERR_TYPE, "complex: the parts are plain tensors, not %s ones",
                                     kl_layer_name(wrapper_of(re, NULL) ? re : im)));
    if (!dtype_is_float(a.dtype) || a.dtype != b.dtype)
        return compose_end(t, refuse(t, KL_ERR_TYPE, "complex: needs two of one floating dtype, got %s and %s",
                                     dtype_name(a.dtype), dtype_name(b.dtype)));
    if (!broadcast_shape(&all, &b.shape))
        return compose_end(t, refuse(t, KL_ERR_SHAPE, "complex: shapes %s and %s do not broadcast",
                                     shape_text(&a.shape, x, sizeof x), shape_text(&b.shape, y, sizeof y)));
    if (!shape_equal(&a.shape, &all))
        re = broadcast_to("complex", re, &a.shape, &all);
    if (!shape_equal(&b.shape, &all))
        im = broadcast_to("complex", im, &b.shape, &all);
    return compose_end(t, complex_make(t, re, im));
}

/* A view of a plain tensor: a new handle for it. */
static kl_tensor complex_same(const char *op, kl_tensor h)
{
    struct view v = view_of(h);
    return reshape_to(op, h, &v.shape);
}

static kl_tensor of_parts(const char *op, kl_tensor z, kl_tensor (*fn)(struct thread *, struct complex_pair))
{
    struct view v;
    struct thread *t = floats_begin(op, z, &v);
    return t ? compose_end(t, fn(t, pair_of(z))) : op_failed();
}

static kl_tensor complex_real(struct thread *t, struct complex_pair z)
{
    (void)t; return complex_same("real", z.re);
}
static kl_tensor complex_imag(struct thread *t, struct complex_pair z)
{
    (void)t; return complex_same("imag", z.im);
}
static kl_tensor complex_conj(struct thread *t, struct complex_pair z)
{
    return complex_make(t, z.re, kl_neg(z.im));
}
static kl_tensor complex_angle(struct thread *t, struct complex_pair z)
{
    (void)t; return kl_atan2(z.im, z.re);
}

kl_tensor kl_real(kl_tensor z) { return of_parts("real", z, complex_real); }
kl_tensor kl_imag(kl_tensor z) { return of_parts("imag", z, complex_imag); }
kl_tensor kl_angle(kl_tensor z) { return of_parts("angle", z, complex_angle); }

kl_tensor kl_conj(kl_tensor z)
{
    if (wrapper_of(z, &layer_complex))
        return of_parts("conj", z, complex_conj);
    return of_parts("conj", z, complex_real);
}
