/* Resize and Upsample: each axis by itself, an element of the result as a sum of weighted elements, which are chosen
 * by a gather for each tap; and GridSample, whose taps are computed while running. */
#include "frontend/formats/onnx/onnx.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum kind { NEAREST, LINEAR, CUBIC };
enum { TAPS_MOST = 512 };

struct resize {
    enum kind kind;
    double scale, a, start, end;      /* of this axis; the cubic's coefficient; its region of tf_crop_and_resize */
    int64_t in, out;
    bool antialias, exclude_outside;
};

static double coordinate(const struct node *n, const struct resize *r, int64_t i)
{
    double x = (double)i, in = (double)r->in, out = r->scale * in; /* before it is rounded down */
    const char *mode = "coordinate_transformation_mode";
    bool old = n->def->opset < 11;
    if (old || onnx_attr_is(n, mode, "asymmetric", false))
        return x / r->scale;
    if (onnx_attr_is(n, mode, "align_corners", false))
        return out > 1 ? x * (in - 1) / (out - 1) : 0;
    if (onnx_attr_is(n, mode, "pytorch_half_pixel", false) && r->out <= 1)
        return 0;
    if (onnx_attr_is(n, mode, "tf_half_pixel_for_nn", false))
        return (x + 0.5) / r->scale;
    if (onnx_attr_is(n, mode, "tf_crop_and_resize", false))
        return out > 1 ? r->start * (in - 1) + x * (r->end - r->start) * (in - 1) / (out - 1)
                       : 0.5 * (r->start + r->end) * (in - 1);
    if (onnx_attr_is(n, mode, "half_pixel_symmetric", false))
        return in / 2 * (1 - (double)r->out / out) + (x + 0.5) / r->scale - 0.5;
    return (x + 0.5) / r->scale - 0.5;
}

static int64_t nearest(const struct node *n, double x)
{
    if (n->def->opset < 11 || onnx_attr_is(n, "nearest_mode", "floor", false))
        return (int64_t)floor(x);
    if (onnx_attr_is(n, "nearest_mode", "ceil", false))
        return (int64_t)ceil(x);
    if (onnx_attr_is(n, "nearest_mode", "round_prefer_ceil", false))
        return (int64_t)floor(x + 0.5);
    return (int64_t)ceil(x - 0.5);
}

static double cubic_weight(double x, double a)
{
    x = fabs(x);
    if (x <= 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

/* The taps of element i: indices (held inside) and weights; returns how many. */
static int taps_of(const struct node *n, const struct resize *r, int64_t i, int64_t *index, double *weight)
{
    double x = coordinate(n, r, i), floor_x = floor(x), ratio = x - floor_x, sum = 0;
    if (r->kind == NEAREST) {
        int64_t at = nearest(n, x);
        index[0] = at < 0 ? 0 : at >= r->in ? r->in - 1 : at;
        weight[0] = 1;
        return 1;
    }
    double scale = r->antialias && r->scale < 1 ? r->scale : 1, reach = r->kind == CUBIC ? 2 : 1;
    int64_t first = (int64_t)floor(-reach / scale) + 1;
    int count = (int)(2 - 2 * first);
    if (count > TAPS_MOST)
        return 0;
    for (int k = 0; k < count; k++) {
        int64_t at = (int64_t)floor_x + first + k;
        double d = ((double)(first + k) - ratio) * scale;
        bool outside = at < 0 || at >= r->in;
        weight[k] = r->kind == CUBIC ? cubic_weight(d, r->a) : fabs(d) < 1 ? 1 - fabs(d) : 0;
        if (outside && r->exclude_outside)
            weight[k] = 0;
        index[k] = at < 0 ? 0 : at >= r->in ? r->in - 1 : at;
        sum += weight[k];
    }
    for (int k = 0; k < count && sum != 0; k++)
        weight[k] /= sum;
    return count;
}

/* One axis of x, of `rank` axes. */
static kl_tensor resized(struct node *n, kl_tensor x, int rank, int axis, const struct resize *r)
{
    int64_t index[TAPS_MOST], dims[KL_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    double weight[TAPS_MOST];
    int count = r->in > 0 && r->out > 0 ? taps_of(n, r, 0, index, weight) : 0;
    kl_dtype dtype = kl_dtype_of(x);
    struct array *at[TAPS_MOST], *by[TAPS_MOST];
    if (!count)
        return onnx_fails(n, KL_ERR_SHAPE, "from %lld to %lld elements", (long long)r->in, (long long)r->out), kl_none;
    for (int k = 0; k < count; k++) {
        at[k] = array_new(KL_I64, 1, &r->out);
        by[k] = array_new(KL_F32, 1, &r->out);
    }
    for (int64_t i = 0; i < r->out; i++) {
        taps_of(n, r, i, index, weight);
        for (int k = 0; k < count && at[k] && by[k]; k++) {
            ((int64_t *)at[k]->data)[i] = index[k];
            ((float *)by[k]->data)[i] = (float)weight[k];
        }
    }
    kl_tensor sum = kl_none;
    dims[axis] = r->out;
    for (int k = 0; k < count; k++) {
        kl_tensor y = kl_gather(x, axis, onnx_tensor(n, at[k]));
        if (r->kind == NEAREST) {
            array_unref(by[k]);
            return y;
        }
        kl_tensor w = kl_reshape(onnx_tensor(n, by[k]), rank, dims);
        y = kl_mul(y, dtype == KL_F32 ? w : kl_cast(w, dtype));
        sum = k ? kl_add(sum, y) : y;
    }
    return sum;
}

/* Elements whose coordinate is outside of the operand are extrapolation_value. */
static kl_tensor extrapolated(struct node *n, kl_tensor y, int rank, int axis, const struct resize *r)
{
    int64_t dims[KL_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct array *a = array_new(KL_BOOL, 1, &r->out);
    for (int64_t i = 0; a && i < r->out; i++) {
        double x = coordinate(n, r, i);
        ((uint8_t *)a->data)[i] = x < 0 || x > (double)(r->in - 1);
    }
    dims[axis] = r->out;
    kl_tensor value = onnx_number(n, kl_dtype_of(y), onnx_attr_float(n, "extrapolation_value", 0));
    return kl_where(kl_reshape(onnx_tensor(n, a), rank, dims), value, y);
}

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
    struct resize r = {.kind = onnx_attr_is(n, "mode", "nearest", true) ? NEAREST
                               : onnx_attr_is(n, "mode", "cubic", false) ? CUBIC : LINEAR,
                       .a = onnx_attr_float(n, "cubic_coeff_a", -0.75), .antialias = onnx_attr_int(n, "antialias", 0),
                       .exclude_outside = onnx_attr_int(n, "exclude_outside", 0)};
    bool wide = r.kind != NEAREST && t.dtype != KL_F32 && t.dtype != KL_F64;
    kl_tensor y = wide ? kl_cast(x, KL_F32) : x;
    for (int i = 0; i < axes.n; i++) {
        r.in = t.dims[axes.axis[i]];
        r.out = axes.out[i];
        r.scale = axes.scale[i];
        r.start = crop ? array_float(roi, i) : 0;
        r.end = crop ? array_float(roi, axes.n + i) : 1;
        if (r.in == r.out && r.scale == 1 && (!crop || (r.start == 0 && r.end == 1)))
            continue;
        y = resized(n, y, t.rank, axes.axis[i], &r);
        if (crop)
            y = extrapolated(n, y, t.rank, axes.axis[i], &r);
    }
    return onnx_give(n, 0, wide ? kl_cast(y, t.dtype) : y);
}

/* ---- GridSample: x [N, C, H, W], grid [N, H', W', 2] of places (x, y) in -1 .. 1 ---- */

struct grid { struct node *n; kl_tensor rows; int64_t N, C, H, W, h, w; bool corners; int padding; };
enum { PAD_ZEROS, PAD_BORDER, PAD_REFLECTION };

static kl_tensor grid_number(struct grid *g, double v) { return onnx_number(g->n, KL_F32, v); }

/* From -1 .. 1 to 0 .. length - 1, or half an element further. */
static kl_tensor grid_place(struct grid *g, kl_tensor x, int64_t length)
{
    struct node *n = g->n;
    double scale = g->corners ? (double)(length - 1) / 2 : (double)length / 2;
    return kl_add(kl_mul(x, grid_number(g, scale)), grid_number(g, (double)(length - 1) / 2));
}

/* Places outside come back in by their distance from the border. */
static kl_tensor grid_reflected(struct grid *g, kl_tensor x, int64_t length)
{
    struct node *n = g->n;
    double low = g->corners ? 0 : -0.5, span = g->corners ? (double)(length - 1) : (double)length;
    if (span == 0)
        return kl_mul(x, grid_number(g, 0));
    kl_tensor d = kl_abs(kl_sub(x, grid_number(g, low))), s = grid_number(g, span);
    kl_tensor flips = kl_floor(kl_div(d, s)), rest = kl_sub(d, kl_mul(flips, s));
    kl_tensor odd = kl_sub(flips, kl_mul(grid_number(g, 2), kl_floor(kl_mul(flips, grid_number(g, 0.5)))));
    return kl_add(kl_where(kl_gt(odd, grid_number(g, 0.5)), kl_sub(s, rest), rest), grid_number(g, low));
}

static kl_tensor grid_held(struct grid *g, kl_tensor x, int64_t length)
{
    struct node *n = g->n;
    return kl_min(kl_max(x, grid_number(g, 0)), grid_number(g, (double)(length - 1)));
}

static kl_tensor grid_border(struct grid *g, kl_tensor x, int64_t length)
{
    if (g->padding == PAD_REFLECTION)
        x = grid_reflected(g, x, length);
    return g->padding == PAD_ZEROS ? x : grid_held(g, x, length);
}

/* [N, h, w, C]: the elements at whole places x and y [N, h, w]. */
static kl_tensor grid_elements(struct grid *g, kl_tensor x, kl_tensor y)
{
    struct node *n = g->n;
    if (g->padding != PAD_ZEROS) {
        x = grid_border(g, x, g->W);
        y = grid_border(g, y, g->H);
    }
    kl_tensor cx = grid_held(g, x, g->W), cy = grid_held(g, y, g->H);
    kl_tensor batch = kl_reshape(kl_arange(onnx_device(n), KL_I64, g->N), 3, (int64_t[]){g->N, 1, 1});
    kl_tensor at = kl_add(kl_mul(batch, onnx_number(n, KL_I64, (double)g->H)), kl_cast(cy, KL_I64));
    at = kl_add(kl_mul(at, onnx_number(n, KL_I64, (double)g->W)), kl_cast(cx, KL_I64));
    kl_tensor v = kl_gather(g->rows, 0, at);
    if (g->padding != PAD_ZEROS)
        return v;
    kl_tensor inside = kl_and(kl_eq(cx, x), kl_eq(cy, y));
    return kl_where(kl_unsqueeze(inside, -1), v, onnx_number(n, kl_dtype_of(v), 0));
}

/* Weights of the taps at floor(x) + k, k from -1 (cubic) or 0. */
static kl_tensor grid_weight(struct grid *g, kl_tensor ratio, int k, bool cubic)
{
    struct node *n = g->n;
    kl_tensor d = kl_abs(kl_sub(ratio, grid_number(g, k))), one = grid_number(g, 1);
    if (!cubic)
        return kl_sub(one, d);
    double a = -0.75;
    kl_tensor near = kl_add(kl_mul(kl_mul(kl_sub(kl_mul(d, grid_number(g, a + 2)), grid_number(g, a + 3)), d), d), one);
    kl_tensor far = kl_mul(kl_sub(kl_mul(d, grid_number(g, a)), grid_number(g, 5 * a)), d);
    far = kl_sub(kl_mul(kl_add(far, grid_number(g, 8 * a)), d), grid_number(g, 4 * a));
    return k == 0 || k == 1 ? near : far;
}

bool onnx_grid_sample(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), grid = onnx_in(n, 1);
    struct type t, s;
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &s))
        return false;
    if (t.rank != 4 || s.rank != 4 || s.dims[3] != 2 || s.dims[0] != t.dims[0])
        return onnx_fails(n, KL_ERR_SHAPE, "only grids [N, H, W, 2] for [N, C, H, W] are supported");
    struct grid g = {n, kl_none, t.dims[0], t.dims[1], t.dims[2], t.dims[3], s.dims[1], s.dims[2],
                     onnx_attr_int(n, "align_corners", 0),
                     onnx_attr_is(n, "padding_mode", "border", false) ? PAD_BORDER
                     : onnx_attr_is(n, "padding_mode", "reflection", false) ? PAD_REFLECTION : PAD_ZEROS};
    g.rows = kl_reshape(kl_permute(a, (int[]){0, 2, 3, 1}), 2, (int64_t[]){g.N * g.H * g.W, g.C});
    grid = kl_cast(grid, KL_F32);
    kl_tensor x = grid_place(&g, kl_squeeze(kl_narrow(grid, 3, 0, 1), 3), g.W);
    kl_tensor y = grid_place(&g, kl_squeeze(kl_narrow(grid, 3, 1, 1), 3), g.H);
    bool is_nearest = onnx_attr_is(n, "mode", "nearest", false);
    bool cubic = onnx_attr_is(n, "mode", "bicubic", false) || onnx_attr_is(n, "mode", "cubic", false);
    if (!cubic) {
        x = grid_border(&g, x, g.W);
        y = grid_border(&g, y, g.H);
    }
    kl_tensor r = kl_none;
    if (is_nearest) {
        r = grid_elements(&g, kl_round(x), kl_round(y));
    } else {
        kl_tensor fx = kl_floor(x), fy = kl_floor(y), rx = kl_sub(x, fx), ry = kl_sub(y, fy);
        for (int i = cubic ? -1 : 0; i <= (cubic ? 2 : 1); i++)
            for (int j = cubic ? -1 : 0; j <= (cubic ? 2 : 1); j++) {
                kl_tensor v = grid_elements(&g, kl_add(fx, grid_number(&g, j)), kl_add(fy, grid_number(&g, i)));
                kl_tensor w = kl_mul(grid_weight(&g, rx, j, cubic), grid_weight(&g, ry, i, cubic));
                v = kl_mul(v, kl_cast(kl_unsqueeze(w, -1), t.dtype));
                r = r.id ? kl_add(r, v) : v;
            }
    }
    return onnx_give(n, 0, kl_permute(r, (int[]){0, 3, 1, 2}));
}
