/* Resizing, each axis by itself: an element of the result is a sum of weighted elements, which are chosen by a gather
 * for each of them.  Which they are, and their weights, is computed from the element's own index. */
#include "frontend/nn/compose.h"

enum { TAPS_MAX = 512 };

struct resize {
    const kl_resize_options *o;
    double scale, start, end;         /* of this axis */
    int64_t in, out;
};

/* [out] The coordinates in the tensor, in f64 where the device has it. */
static kl_tensor resize_places(const struct resize *r, kl_device device)
{
    kl_dtype d = kl_device_supports(device, KL_F64) ? KL_F64 : KL_F32;
    double in = (double)r->in, out = r->scale * in; /* before it is rounded down */
    kl_tensor i = kl_arange(device, d, r->out), half = number(i, d, 0.5), s = number(i, d, r->scale);
    kl_resize_coordinates coordinates = r->o->coordinates;
    if (coordinates == KL_RESIZE_ASYMMETRIC)
        return kl_div(i, s);
    if ((coordinates == KL_RESIZE_CORNERS && out <= 1) || (coordinates == KL_RESIZE_HALF_PIXEL_PYTORCH && r->out <= 1))
        return kl_mul(i, number(i, d, 0));
    if (coordinates == KL_RESIZE_CORNERS)
        return kl_div(kl_mul(i, number(i, d, in - 1)), number(i, d, out - 1));
    if (coordinates == KL_RESIZE_CROP) {
        double first = out > 1 ? r->start * (in - 1) : 0.5 * (r->start + r->end) * (in - 1);
        double step = out > 1 ? (r->end - r->start) * (in - 1) : 0;
        kl_tensor by = kl_div(kl_mul(i, number(i, d, step)), number(i, d, out > 1 ? out - 1 : 1));
        return kl_add(by, number(i, d, first));
    }
    kl_tensor x = kl_div(kl_add(i, half), s);
    if (coordinates == KL_RESIZE_TF_NEAREST)
        return x;
    if (coordinates == KL_RESIZE_HALF_PIXEL_SYMMETRIC)
        x = kl_add(x, number(i, d, in / 2 * (1 - (double)r->out / out)));
    return kl_sub(x, half);
}

static kl_tensor resize_nearest(const struct resize *r, kl_tensor x)
{
    kl_tensor half = same_number(x, 0.5);
    switch (r->o->rounding) {
    case KL_RESIZE_FLOOR: return kl_floor(x);
    case KL_RESIZE_CEIL: return kl_ceil(x);
    case KL_RESIZE_HALF_UP: return kl_floor(kl_add(x, half));
    default: return kl_ceil(kl_sub(x, half));
    }
}

/* The convolution kernel of Keys 1981, "Cubic convolution interpolation for digital image processing", at |d|. */
static kl_tensor keys_weight(kl_tensor d, double a)
{
    kl_tensor near = kl_sub(kl_mul(d, same_number(d, a + 2)), same_number(d, a + 3));
    near = kl_add(kl_mul(kl_mul(near, d), d), same_number(d, 1));
    kl_tensor far = kl_mul(kl_sub(kl_mul(d, same_number(d, a)), same_number(d, 5 * a)), d);
    far = kl_sub(kl_mul(kl_add(far, same_number(d, 8 * a)), d), same_number(d, 4 * a));
    far = kl_where(kl_lt(d, same_number(d, 2)), far, same_number(d, 0));
    return kl_where(kl_le(d, same_number(d, 1)), near, far);
}

/* The weight of an element that lies d (scaled) from the place. */
static kl_tensor resize_weight(const struct resize *r, kl_tensor d)
{
    d = kl_abs(d);
    if (r->o->sampling == KL_SAMPLING_CUBIC)
        return keys_weight(d, r->o->cubic != 0 ? r->o->cubic : -0.75);
    return kl_maximum(kl_sub(same_number(d, 1), d), same_number(d, 0));
}

/* Each element so many times, without a computed index: the common way to enlarge.  (i + 1/2) / times is never whole,
 * so both roundings of a half agree. */
static bool resize_repeats(const struct resize *r)
{
    bool half = r->o->coordinates == KL_RESIZE_HALF_PIXEL || r->o->coordinates == KL_RESIZE_HALF_PIXEL_SYMMETRIC ||
                r->o->coordinates == KL_RESIZE_HALF_PIXEL_PYTORCH;
    bool fits = half ? r->o->rounding == KL_RESIZE_HALF_DOWN || r->o->rounding == KL_RESIZE_HALF_UP
                     : r->o->coordinates == KL_RESIZE_ASYMMETRIC && r->o->rounding == KL_RESIZE_FLOOR;
    return fits && r->o->sampling == KL_SAMPLING_NEAREST && r->out > 1 && r->out % r->in == 0 &&
           r->scale == (double)(r->out / r->in);
}

/* One axis of x, of `rank` axes. */
static kl_tensor resize_axis(struct thread *t, kl_tensor x, int rank, int axis, const struct resize *r)
{
    bool cubic = r->o->sampling == KL_SAMPLING_CUBIC, filters = r->o->antialias && r->scale < 1;
    double scale = filters ? r->scale : 1, reach = cubic ? 2 : 1;
    int64_t dims[KL_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    dims[axis] = r->out;
    if (!(reach / scale < TAPS_MAX / 2 - 1))
        return refuse(t, KL_ERR_ARGUMENT, "resize: a scale of %g needs more than %d elements for one", r->scale,
                      TAPS_MAX);
    if (resize_repeats(r))
        return kl_repeat(x, axis, r->out / r->in);
    kl_tensor place = resize_places(r, kl_device_of(x)), last = same_number(place, (double)(r->in - 1)), y;
    kl_tensor zero = same_number(place, 0);
    if (r->o->sampling == KL_SAMPLING_NEAREST) {
        y = kl_take(x, axis, kl_cast(resize_nearest(r, place), KL_I64)); /* which clamps it */
    } else {
        int64_t first = (int64_t)floor(-reach / scale) + 1, taps = 2 - 2 * first;
        kl_tensor whole = kl_floor(place), ratio = kl_sub(place, whole), sum = kl_none;
        bool divides = filters || r->o->exclude_outside; /* else they make 1 */
        y = kl_none;
        for (int64_t k = first; k < first + taps; k++) {
            kl_tensor at = kl_add(whole, same_number(whole, (double)k));
            kl_tensor d = kl_sub(same_number(ratio, (double)k), ratio);
            kl_tensor w = resize_weight(r, filters ? kl_mul(d, same_number(d, scale)) : d);
            if (r->o->exclude_outside)
                w = kl_where(kl_or(kl_lt(at, zero), kl_gt(at, last)), zero, w);
            sum = divides && sum.id ? kl_add(sum, w) : w;
            kl_tensor part = kl_take(x, axis, kl_cast(at, KL_I64));
            part = kl_mul(part, kl_reshape(kl_cast(w, kl_dtype_of(x)), rank, dims));
            y = y.id ? kl_add(y, part) : part;
        }
        if (divides)
            y = kl_div(y, kl_reshape(kl_cast(sum, kl_dtype_of(x)), rank, dims));
    }
    if (r->o->coordinates != KL_RESIZE_CROP || !r->o->fill)
        return y;
    kl_tensor outside = kl_reshape(kl_or(kl_lt(place, zero), kl_gt(place, last)), rank, dims);
    return kl_where(outside, same_number(y, r->o->value), y);
}

kl_tensor kl_resize(kl_tensor a, int naxes, const int *axes, const int64_t *sizes, const kl_resize_options *options)
{
    static const char op[] = "resize";
    struct thread *t = thread_self();
    struct view v;
    struct shape out;
    uint32_t mask = 0, at[KL_MAX_RANK];
    char text[SHAPE_TEXT];
    kl_resize_options o = options ? *options : (kl_resize_options){.cubic = 0};
    if (!t || !describe(t, op, "the tensor", a, &v))
        return op_failed();
    if (naxes < 0 || naxes > (int)v.shape.rank || (naxes && (!axes || !sizes)))
        return refuse(t, KL_ERR_ARGUMENT, "%s: %d axes of %s", op, naxes, shape_text(&v.shape, text, sizeof text));
    if ((unsigned)o.sampling > KL_SAMPLING_CUBIC || (unsigned)o.coordinates > KL_RESIZE_CROP ||
        (unsigned)o.rounding > KL_RESIZE_CEIL)
        return refuse(t, KL_ERR_ARGUMENT, "%s: there are no such options", op);
    if (v.dtype == KL_BOOL || (o.sampling != KL_SAMPLING_NEAREST && !dtype_is_float(v.dtype)))
        return refuse(t, KL_ERR_TYPE, "%s: needs a %s dtype, got %s", op,
                      o.sampling == KL_SAMPLING_NEAREST ? "number" : "floating", dtype_name(v.dtype));
    out = v.shape;
    for (int i = 0; i < naxes; i++) {
        if (!axis_of(t, op, &v.shape, axes[i], &at[i]))
            return op_failed();
        if (mask >> at[i] & 1)
            return refuse(t, KL_ERR_ARGUMENT, "%s: axis %d is named twice", op, axes[i]);
        if (sizes[i] < 1 || v.shape.dim[at[i]] < 1 || sizes[i] > INT32_MAX)
            return refuse(t, KL_ERR_SHAPE, "%s: axis %d of %s to %" PRId64 " elements", op, axes[i],
                          shape_text(&v.shape, text, sizeof text), sizes[i]);
        if (o.scale && !(o.scale[i] > 0 && o.scale[i] <= 1e9))
            return refuse(t, KL_ERR_ARGUMENT, "%s: a scale of %g", op, o.scale[i]);
        mask |= 1u << at[i];
        out.dim[at[i]] = sizes[i];
    }
    if (!shape_of(t, op, (int)out.rank, out.dim, &out) || !(t = checked_begin(op)))
        return op_failed();
    kl_tensor y = reshape_to(op, a, &v.shape);
    y = o.sampling == KL_SAMPLING_NEAREST ? y : widen(t, y);
    for (int i = 0; i < naxes; i++) {
        struct resize r = {&o, 0, o.start ? o.start[i] : 0, o.end ? o.end[i] : 1, v.shape.dim[at[i]], sizes[i]};
        r.scale = o.scale ? o.scale[i] : (double)r.out / (double)r.in;
        bool stays = o.coordinates == KL_RESIZE_CROP ? r.start == 0 && r.end == 1
                                                     : o.coordinates != KL_RESIZE_TF_NEAREST;
        if (r.in != r.out || r.scale != 1 || !stays)
            y = resize_axis(t, y, (int)v.shape.rank, (int)at[i], &r);
    }
    return compose_end(t, y);
}
