/* Resize and Upsample, GridSample, RoiAlign. */
#include "frontend/formats/onnx/onnx.h"
#include <math.h>
#include <string.h>

struct resize_axes { int n, axis[KL_MAX_RANK]; double scale[KL_MAX_RANK]; int64_t out[KL_MAX_RANK]; };

/* An axis has floor(length * scale) elements, of the f32 product, as onnxruntime computes it: 5 times the f32 2.6 is 13
 * in f32, and 12.9999995 exactly. */
static bool scales_given(struct node *n, const struct type *t, uint32_t operand, struct resize_axes *x)
{
    const Onnx__AttributeProto *a = operand ? NULL : onnx_attr(n, "scales");
    const struct array *known = operand ? onnx_known(n, operand) : NULL;
    if (operand ? !known || known->count != x->n : !a || a->n_floats != (size_t)x->n)
        return operand && !known ? false : onnx_fails(n, KL_ERR_SHAPE, "%d scales are needed", x->n);
    for (int i = 0; i < x->n; i++) {
        x->scale[i] = known ? array_float(known, i) : (double)a->floats[i];
        double out = floor((double)((float)x->scale[i] * (float)t->dims[x->axis[i]]));
        if (!(x->scale[i] > 0) || !(out < 1 << 28))
            return onnx_fails(n, KL_ERR_SHAPE, "axis %u has a scale that is not positive, or too large", i);
        x->out[i] = (int64_t)out;
    }
    return true;
}

static bool sizes_given(struct node *n, const struct type *t, struct resize_axes *x)
{
    int count;
    if (!onnx_ints(n, 3, x->out, KL_MAX_RANK, &count))
        return false;
    if (count != x->n)
        return onnx_fails(n, KL_ERR_SHAPE, "%d sizes for %d axes", count, x->n);
    bool smaller = onnx_attr_is(n, "keep_aspect_ratio_policy", "not_larger", false);
    bool larger = onnx_attr_is(n, "keep_aspect_ratio_policy", "not_smaller", false);
    double all = 0;
    for (int i = 0; i < x->n; i++) {
        if (t->dims[x->axis[i]] < 1 || x->out[i] < 1 || x->out[i] > 1 << 28)
            return onnx_fails(n, KL_ERR_SHAPE, "a size of %lld", (long long)x->out[i]);
        x->scale[i] = (double)x->out[i] / (double)t->dims[x->axis[i]];
        all = i == 0 || (smaller ? x->scale[i] < all : x->scale[i] > all) ? x->scale[i] : all;
    }
    for (int i = 0; i < x->n && (smaller || larger); i++) {
        x->scale[i] = all;
        double out = floor(all * (double)t->dims[x->axis[i]] + 0.5);
        if (!(out < 1 << 28))
            return onnx_fails(n, KL_ERR_SHAPE, "a size of more than %d for axis %d", 1 << 28, x->axis[i]);
        x->out[i] = (int64_t)out;
    }
    return true;
}

static void resize_modes(const struct node *n, kl_resize_options *o)
{
    static const struct { const char *name; kl_resize_coordinates value; } mode[] = {
        {"asymmetric", KL_RESIZE_ASYMMETRIC}, {"align_corners", KL_RESIZE_CORNERS},
        {"pytorch_half_pixel", KL_RESIZE_HALF_PIXEL_PYTORCH}, {"tf_half_pixel_for_nn", KL_RESIZE_TF_NEAREST},
        {"tf_crop_and_resize", KL_RESIZE_CROP}, {"half_pixel_symmetric", KL_RESIZE_HALF_PIXEL_SYMMETRIC},
    };
    static const struct { const char *name; kl_resize_rounding rounding; } roundings[] = {
        {"floor", KL_RESIZE_FLOOR}, {"ceil", KL_RESIZE_CEIL}, {"round_prefer_ceil", KL_RESIZE_HALF_UP},
    };
    if (n->def->opset < 11) {
        o->coordinates = KL_RESIZE_ASYMMETRIC;
        o->rounding = KL_RESIZE_FLOOR;
        return;
    }
    for (size_t i = 0; i < sizeof mode / sizeof *mode; i++)
        if (onnx_attr_is(n, "coordinate_transformation_mode", mode[i].name, false))
            o->coordinates = mode[i].value;
    for (size_t i = 0; i < sizeof roundings / sizeof *roundings; i++)
        if (onnx_attr_is(n, "nearest_mode", roundings[i].name, false))
            o->rounding = roundings[i].rounding;
}

/* Nearest elements before opset 11: the one below i / scale, but where an axis gets shorter the one above, as the tests
 * of that opset and onnxruntime have it.  Axes are independent: first those that get shorter. */
static kl_tensor resize_nearest_10(kl_tensor x, const struct resize_axes *all, kl_resize_options *o)
{
    for (int shorter = 1; shorter >= 0; shorter--) {
        struct resize_axes part = {0};
        for (int i = 0; i < all->n; i++)
            if ((all->scale[i] < 1) == shorter) {
                part.axis[part.n] = all->axis[i];
                part.scale[part.n] = all->scale[i];
                part.out[part.n++] = all->out[i];
            }
        o->rounding = shorter ? KL_RESIZE_CEIL : KL_RESIZE_FLOOR;
        o->scale = part.scale;
        if (part.n)
            x = kl_resize(x, part.n, part.axis, part.out, o);
    }
    return x;
}

bool onnx_resize(struct node *n)
{
    kl_tensor x = onnx_in(n, 0);
    struct type t;
    struct resize_axes axes = {0};
    int opset = n->def->opset;
    bool upsample = n->def->op->arg;
    if (!onnx_type(n, 0, &t))
        return false;
    axes.n = onnx_axes(n, "axes", UINT32_MAX, t.rank, axes.axis);
    if (axes.n == -2)
        return false;
    if (axes.n == -1)
        for (axes.n = 0; axes.n < t.rank; axes.n++)
            axes.axis[axes.n] = axes.n;
    bool sizes = opset >= 11 && onnx_has(n, 3);
    if (sizes) { /* an empty list counts as missing */
        struct type s;
        if (!onnx_type(n, 3, &s))
            return false;
        sizes = s.rank != 1 || s.dims[0] != 0;
    }
    uint32_t scales = upsample ? (opset < 9 ? 0 : 1) : opset < 11 ? 1 : 2;
    if (sizes ? !sizes_given(n, &t, &axes) : !scales_given(n, &t, scales, &axes))
        return false;
    bool crop = opset >= 11 && onnx_attr_is(n, "coordinate_transformation_mode", "tf_crop_and_resize", false);
    const struct array *roi = crop ? onnx_known(n, 1) : NULL;
    if (crop && (!roi || roi->count != 2 * axes.n))
        return roi ? onnx_fails(n, KL_ERR_SHAPE, "its region has %lld numbers", (long long)roi->count) : false;
    double start[KL_MAX_RANK] = {0}, end[KL_MAX_RANK];
    for (int i = 0; i < axes.n; i++) {
        start[i] = crop ? array_float(roi, i) : 0;
        end[i] = crop ? array_float(roi, axes.n + i) : 1;
    }
    kl_resize_options o = {.scale = axes.scale, .start = start, .end = end, .fill = crop,
                           .cubic = onnx_attr_float(n, "cubic_coeff_a", -0.75),
                           .antialias = onnx_attr_int(n, "antialias", 0),
                           .exclude_outside = onnx_attr_int(n, "exclude_outside", 0),
                           .value = onnx_attr_float(n, "extrapolation_value", 0)};
    o.sampling = onnx_attr_is(n, "mode", "nearest", true) ? KL_SAMPLING_NEAREST
                 : onnx_attr_is(n, "mode", "cubic", false) ? KL_SAMPLING_CUBIC : KL_SAMPLING_LINEAR;
    resize_modes(n, &o);
    bool wide = !onnx_is_float(t.dtype) && o.sampling != KL_SAMPLING_NEAREST;
    if (opset < 11 && o.sampling == KL_SAMPLING_NEAREST)
        return onnx_give(n, 0, resize_nearest_10(x, &axes, &o));
    kl_tensor y = kl_resize(wide ? kl_cast(x, KL_F32) : x, axes.n, axes.axis, axes.out, &o);
    return onnx_give(n, 0, wide ? kl_cast(y, t.dtype) : y);
}

/* x [N, C, L...], grid [N, L'..., n] */
bool onnx_grid_sample(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), grid = onnx_in(n, 1);
    bool cubic = onnx_attr_is(n, "mode", "bicubic", false) || onnx_attr_is(n, "mode", "cubic", false);
    kl_sampling sampling = cubic ? KL_SAMPLING_CUBIC
                           : onnx_attr_is(n, "mode", "nearest", false) ? KL_SAMPLING_NEAREST : KL_SAMPLING_LINEAR;
    kl_sample_border border = onnx_attr_is(n, "padding_mode", "border", false) ? KL_SAMPLE_BORDER
                              : onnx_attr_is(n, "padding_mode", "reflection", false) ? KL_SAMPLE_REFLECTION
                                                                                    : KL_SAMPLE_ZEROS;
    return onnx_give(n, 0, kl_grid_sample(a, grid, sampling, border, onnx_attr_int(n, "align_corners", 0)));
}

/* x [N, C, H, W], boxes [R, 4], images [R] */
bool onnx_roi_align(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), boxes = onnx_in(n, 1), image = onnx_in(n, 2);
    bool old = n->def->opset < 16;
    kl_roi_options o = {onnx_attr_int(n, "output_height", 1), onnx_attr_int(n, "output_width", 1),
                        onnx_attr_int(n, "sampling_ratio", 0), onnx_attr_float(n, "spatial_scale", 1),
                        !old && onnx_attr_is(n, "coordinate_transformation_mode", "half_pixel", true), false};
    if (o.samples < 1 || !onnx_attr_is(n, "mode", "avg", true))
        return onnx_fails(n, KL_ERR_ARGUMENT, "mode 'max', or a sampling_ratio that depends on the boxes, is not "
                          "supported");
    return onnx_give(n, 0, kl_roi_align(a, boxes, image, &o));
}

/* theta [N, n, n + 1] -> grid [N, L..., n]: the places of an image of size [N, C, L...], -1 to 1 along each axis, moved
 * by the affine map. */
bool onnx_affine_grid(struct node *n)
{
    struct type t;
    int64_t size[KL_MAX_RANK], points = 1;
    int rank;
    if (!onnx_type(n, 0, &t) || !onnx_ints(n, 1, size, KL_MAX_RANK, &rank))
        return false;
    int axes = rank - 2;
    if (axes < 2 || axes > 3 || t.rank != 3 || t.dims[1] != axes || t.dims[2] != axes + 1 || t.dims[0] != size[0])
        return onnx_fails(n, KL_ERR_SHAPE, "a map of %d axes for a size of %d numbers", t.rank, rank);
    for (int i = 0; i < axes; i++)
        if (size[i + 2] < 1 || size[i + 2] > 1 << 24 || (points *= size[i + 2]) > 1 << 28)
            return onnx_fails(n, KL_ERR_SHAPE, "a size of %lld", (long long)size[i + 2]);
    bool corners = onnx_attr_int(n, "align_corners", 0);
    struct array *a = array_new(KL_F64, 2, (int64_t[]){points, axes + 1});
    double *place = a ? a->data : NULL;
    for (int64_t p = 0; a && p < points; p++) {
        int64_t rest = p;
        for (int i = axes; i-- > 0;) { /* the last axis of the image is the first coordinate */
            double at = (double)(rest % size[i + 2]), length = (double)size[i + 2];
            rest /= size[i + 2];
            place[p * (axes + 1) + axes - 1 - i] = !corners ? (2 * at + 1) / length - 1
                                                   : length > 1 ? 2 * at / (length - 1) - 1 : -1;
        }
        place[p * (axes + 1) + axes] = 1;
    }
    kl_tensor base = kl_cast(onnx_tensor(n, a), onnx_compute_dtype(t.dtype));
    kl_tensor grid = kl_matmul(base, kl_transpose(onnx_widened(n, 0), 1, 2));
    int64_t dims[KL_MAX_RANK] = {size[0]};
    for (int i = 0; i < axes; i++)
        dims[i + 1] = size[i + 2];
    dims[axes + 1] = axes;
    return onnx_give_as(n, 0, kl_reshape(grid, axes + 2, dims), t.dtype);
}

/* The middle of each axis, or zeros on both of its sides; an odd element is left out, or added, at the end. */
bool onnx_center_crop_pad(struct node *n)
{
    kl_tensor x = onnx_in(n, 0);
    struct type t;
    int64_t size[KL_MAX_RANK], low[KL_MAX_RANK] = {0}, high[KL_MAX_RANK] = {0};
    int axis[KL_MAX_RANK], count;
    if (!onnx_type(n, 0, &t) || !onnx_ints(n, 1, size, KL_MAX_RANK, &count))
        return false;
    int axes = onnx_axes(n, "axes", UINT32_MAX, t.rank, axis);
    if (axes == -2)
        return false;
    for (int i = 0; axes == -1 && i < t.rank; i++)
        axis[i] = i;
    if (count != (axes == -1 ? t.rank : axes))
        return onnx_fails(n, KL_ERR_SHAPE, "%d lengths for %d axes", count, axes == -1 ? t.rank : axes);
    for (int i = 0; i < count; i++) {
        int64_t have = t.dims[axis[i]], want = size[i];
        if (want < 0 || want > INT64_C(1) << 40)
            return onnx_fails(n, KL_ERR_SHAPE, "a length of %lld", (long long)want);
        if (want < have)
            x = kl_narrow(x, axis[i], (have - want) / 2, want);
        low[axis[i]] = want > have ? (want - have) / 2 : 0;
        high[axis[i]] = want > have ? want - have - low[axis[i]] : 0;
    }
    return onnx_give(n, 0, kl_pad(x, low, high, 0));
}

/* x [N, C, H, W], w [M, C / groups, h, w], offset [N, groups of offsets * h * w * 2, H', W'], b [M], mask
 * [N, groups of offsets * h * w, H', W']: a convolution whose windows' elements are read at places moved by offsets. */
bool onnx_deform_conv(struct node *n)
{
    struct type x, w, offset;
    if (!onnx_type(n, 0, &x) || !onnx_type(n, 1, &w) || !onnx_type(n, 2, &offset))
        return false;
    int64_t groups = onnx_attr_int(n, "group", 1), parts = onnx_attr_int(n, "offset_group", 1);
    int64_t stride[2] = {1, 1}, dilation[2] = {1, 1}, pads[4] = {0};
    if (onnx_attr_ints(n, "strides", stride, 2) == -2 || onnx_attr_ints(n, "dilations", dilation, 2) == -2 ||
        onnx_attr_ints(n, "pads", pads, 4) == -2)
        return false;
    if (x.rank != 4 || w.rank != 4 || offset.rank != 4 || groups < 1 || parts < 1 || x.dims[1] % parts ||
        x.dims[1] != sat_mul(w.dims[1], groups) || w.dims[0] % groups ||
        offset.dims[1] != sat_mul(sat_mul(parts, w.dims[2]), sat_mul(w.dims[3], 2)) || offset.dims[0] != x.dims[0])
        return onnx_fails(n, KL_ERR_SHAPE, "operands of %d, %d and %d axes, or whose channels do not fit", x.rank,
                          w.rank, offset.rank);
    const int64_t number[] = {stride[0], stride[1], dilation[0], dilation[1], pads[0], pads[1]};
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        if (number[i] < -(1 << 24) || number[i] > 1 << 24)
            return onnx_fails(n, KL_ERR_ARGUMENT, "strides, dilations or pads of %lld", (long long)number[i]);
    int64_t N = x.dims[0], C = x.dims[1], window = w.dims[2] * w.dims[3], H = offset.dims[2], W = offset.dims[3];
    /* Per axis: places of windows' elements without offsets [window, H, W]; offsets [N * parts, window, H, W]. */
    kl_dtype exact = kl_device_supports(onnx_device(n), KL_F64) ? KL_F64 : KL_F32; /* they are scaled twice */
    kl_tensor moved = kl_reshape(kl_cast(onnx_in(n, 2), exact), 5, (int64_t[]){N * parts, window, 2, H, W}), place[2];
    for (int i = 0; i < 2; i++) {
        struct array *a = array_new(KL_F64, 3, (int64_t[]){window, H, W});
        for (int64_t k = 0; a && k < a->count; k++) {
            int64_t element = k / (H * W), out = i ? k % W : k / W % H;
            element = i ? element % w.dims[3] : element / w.dims[3];
            ((double *)a->data)[k] = (double)(out * stride[i] + element * dilation[i] - pads[i]);
        }
        kl_tensor fixed = kl_cast(onnx_tensor(n, a), exact);
        kl_tensor at = kl_add(kl_squeeze(kl_narrow(moved, 2, i, 1), 2), fixed);
        /* in elements -> -1 to 1 between the first and the last half element */
        double length = (double)x.dims[2 + i];
        kl_tensor twice = kl_add(kl_mul(at, onnx_number(n, exact, 2)), onnx_number(n, exact, 1));
        place[i] = kl_sub(kl_div(twice, onnx_number(n, exact, length)), onnx_number(n, exact, 1));
    }
    kl_tensor grid = kl_stack(2, (kl_tensor[]){place[1], place[0]}, -1);
    grid = kl_reshape(grid, 4, (int64_t[]){N * parts, window * H, W, 2});
    kl_tensor image = kl_reshape(onnx_widened(n, 0), 4, (int64_t[]){N * parts, C / parts, x.dims[2], x.dims[3]});
    kl_tensor v = kl_grid_sample(image, grid, KL_SAMPLING_LINEAR, KL_SAMPLE_ZEROS, false);
    v = kl_reshape(v, 5, (int64_t[]){N, parts, C / parts, window, H * W});
    if (onnx_has(n, 4))
        v = kl_mul(v, kl_reshape(onnx_widened(n, 4), 5, (int64_t[]){N, parts, 1, window, H * W}));
    v = kl_reshape(v, 4, (int64_t[]){N, groups, C / groups * window, H * W});
    kl_tensor filter = kl_reshape(onnx_widened(n, 1), 3, (int64_t[]){groups, w.dims[0] / groups, C / groups * window});
    kl_tensor y = kl_reshape(kl_matmul(filter, v), 4, (int64_t[]){N, w.dims[0], H, W});
    if (onnx_has(n, 3))
        y = kl_add(y, kl_reshape(onnx_widened(n, 3), 3, (int64_t[]){w.dims[0], 1, 1}));
    return onnx_give_as(n, 0, y, x.dtype);
}
