/* Resize and Upsample, GridSample, RoiAlign. */
#include "frontend/formats/onnx/onnx.h"
#include <math.h>
#include <string.h>

struct resize_axes { int n, axis[KL_MAX_RANK]; double scale[KL_MAX_RANK]; int64_t out[KL_MAX_RANK]; };

static bool scales_given(struct node *n, const struct type *t, uint32_t operand, struct resize_axes *x)
{
    const Onnx__AttributeProto *a = operand ? NULL : onnx_attr(n, "scales");
    const struct array *known = operand ? onnx_known(n, operand) : NULL;
    if (operand ? !known || known->count != x->n : !a || a->n_floats != (size_t)x->n)
        return operand && !known ? false : onnx_fails(n, KL_ERR_SHAPE, "%d scales are needed", x->n);
    for (int i = 0; i < x->n; i++) {
        x->scale[i] = known ? array_float(known, i) : (double)a->floats[i];
        double out = floor(x->scale[i] * (double)t->dims[x->axis[i]]);
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
        x->out[i] = (int64_t)floor(all * (double)t->dims[x->axis[i]] + 0.5);
    }
    return true;
}

static void resize_modes(const struct node *n, kl_resize_options *o)
{
    static const struct { const char *name; kl_resize_places places; } places[] = {
        {"asymmetric", KL_RESIZE_ASYMMETRIC}, {"align_corners", KL_RESIZE_CORNERS},
        {"pytorch_half_pixel", KL_RESIZE_HALF_PIXEL_PYTORCH}, {"tf_half_pixel_for_nn", KL_RESIZE_TF_NEAREST},
        {"tf_crop_and_resize", KL_RESIZE_CROP}, {"half_pixel_symmetric", KL_RESIZE_HALF_PIXEL_SYMMETRIC},
    };
    static const struct { const char *name; kl_resize_rounding rounding; } roundings[] = {
        {"floor", KL_RESIZE_FLOOR}, {"ceil", KL_RESIZE_CEIL}, {"round_prefer_ceil", KL_RESIZE_HALF_UP},
    };
    if (n->def->opset < 11) {
        o->places = KL_RESIZE_ASYMMETRIC;
        o->rounding = KL_RESIZE_FLOOR;
        return;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (onnx_attr_is(n, "coordinate_transformation_mode", places[i].name, false))
            o->places = places[i].places;
    for (size_t i = 0; i < sizeof roundings / sizeof *roundings; i++)
        if (onnx_attr_is(n, "nearest_mode", roundings[i].name, false))
            o->rounding = roundings[i].rounding;
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
    if (sizes) { /* an empty list is none */
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
    bool whole = t.dtype != KL_F16 && t.dtype != KL_BF16 && t.dtype != KL_F32 && t.dtype != KL_F64;
    bool wide = whole && o.sampling != KL_SAMPLING_NEAREST;
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
