/* Operators of windows: convolution and pooling. */
#include "frontend/formats/onnx/onnx.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { AXES = WINDOW_AXES };
#define IMAGE_MAX (INT64_C(1) << 40) /* elements of an axis of Col2Im's image */
enum { WINDOW_MAX = 1 << 24 };   /* most elements of a window, stride, dilation or padding */

/* Reads an attribute of one number for each axis, all `without` if it is missing; false: reported. */
static bool window_list(struct node *n, const char *name, int axes, int64_t without, int64_t *v)
{
    int count = onnx_attr_ints(n, name, v, axes);
    if (count == -1)
        for (count = 0; count < axes; count++)
            v[count] = without;
    return count == axes || (count == -2 ? false : onnx_fails(n, KL_ERR_SHAPE, "%s has %d numbers, not %d", name, count,
                                                              axes));
}

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); }

/* Computes the padding of auto_pad. */
static void auto_pads(const struct node *n, struct onnx_windows *w)
{
    bool upper = onnx_attr_is(n, "auto_pad", "SAME_UPPER", false);
    bool lower = onnx_attr_is(n, "auto_pad", "SAME_LOWER", false);
    for (int i = 0; i < w->n && (upper || lower); i++) {
        int64_t reach = (w->size[i] - 1) * w->dilation[i] + 1;
        int64_t all = (ceil_div(w->in[i], w->stride[i]) - 1) * w->stride[i] + reach - w->in[i];
        all = all < 0 ? 0 : all;
        w->low[i] = upper ? all / 2 : all - all / 2;
        w->high[i] = all - w->low[i];
    }
}

/* t: the operand's type; size: of the windows where no attribute has it. */
static bool window_attributes(struct node *n, const struct type *t, const int64_t *size, struct onnx_windows *w)
{
    int64_t pads[2 * AXES];
    char text[LENGTH_TEXT];
    *w = (struct onnx_windows){.n = t->rank - 2};
    if (w->n < 1 || w->n > AXES)
        return onnx_fails(n, KL_ERR_SHAPE, "an operand of %d axes; 3 to %d are supported", t->rank, AXES + 2);
    memcpy(w->in, t->dims + 2, (size_t)w->n * sizeof *w->in);
    if (size)
        memcpy(w->size, size, (size_t)w->n * sizeof *size);
    if (!size && !onnx_attr(n, "kernel_shape"))
        return onnx_fails(n, KL_ERR_ARGUMENT, "it has no kernel_shape");
    if ((!size && !window_list(n, "kernel_shape", w->n, 1, w->size)) ||
        !window_list(n, "strides", w->n, 1, w->stride) || !window_list(n, "dilations", w->n, 1, w->dilation) ||
        !window_list(n, "pads", 2 * w->n, 0, pads))
        return false;
    bool explicit = onnx_attr_is(n, "auto_pad", "NOTSET", true);
    for (int i = 0; i < w->n; i++) {
        w->low[i] = explicit ? pads[i] : 0;
        w->high[i] = explicit ? pads[w->n + i] : 0;
        if (w->size[i] < 1 || w->stride[i] < 1 || w->dilation[i] < 1 || w->size[i] > WINDOW_MAX ||
            w->stride[i] > WINDOW_MAX || w->dilation[i] > WINDOW_MAX || w->low[i] < -WINDOW_MAX ||
            w->low[i] > WINDOW_MAX || w->high[i] < -WINDOW_MAX || w->high[i] > WINDOW_MAX)
            return onnx_fails(n, KL_ERR_ARGUMENT, "windows of length %s, stride %lld, dilation %lld, padding %lld and "
                              "%lld; %d is the most", onnx_length_text(w->size[i], text), (long long)w->stride[i],
                              (long long)w->dilation[i], (long long)w->low[i], (long long)w->high[i], WINDOW_MAX);
    }
    bool ceils = onnx_attr_int(n, "ceil_mode", 0) && explicit;
    for (int i = 0; i < w->n; i++)
        if (w->in[i] < 0 && (ceils || (!explicit && !onnx_attr_is(n, "auto_pad", "VALID", false))))
            return onnx_fails(n, KL_ERR_SHAPE, "axis %d has a symbolic length, with which ceil_mode or auto_pad would "
                              "compute", i + 2);
    auto_pads(n, w);
    for (int i = 0; i < w->n; i++) {
        int64_t room = w->in[i] + w->low[i] + w->high[i] - (w->size[i] - 1) * w->dilation[i] - 1;
        w->out[i] = room < 0 ? 0 : room / w->stride[i] + 1;
        if (ceils && room >= 0 && room % w->stride[i]) {
            w->extra[i] = w->stride[i] - room % w->stride[i];
            w->out[i]++;
            if ((w->out[i] - 1) * w->stride[i] >= w->in[i] + w->low[i]) { /* it begins beyond the operand */
                w->out[i]--;
                w->extra[i] = 0;
            }
        }
    }
    return true;
}

/* ---- convolution ---- */

/* The shape of weights without their first two axes; false: reported. */
static bool filter_type(struct node *n, const struct type *x, uint32_t i, struct type *w)
{
    if (!onnx_type(n, i, w))
        return false;
    return w->rank == x->rank ||
           onnx_fails(n, KL_ERR_SHAPE, "operand and weights have %d and %d axes", x->rank, w->rank);
}

/* The windows of a convolution with weights, operand i, of type *f; false: reported. */
static bool conv_windows(struct node *n, uint32_t i, struct type *f, struct onnx_windows *s)
{
    struct type t;
    if (!onnx_type(n, 0, &t) || !filter_type(n, &t, i, f) || !window_attributes(n, &t, f->dims + 2, s))
        return false;
    s->groups = onnx_attr_int32(n, "group", 1);
    return true;
}

/* y plus operand i, a number for each channel. */
static kl_tensor add_channels(struct node *n, kl_tensor y, uint32_t i, const struct type *f)
{
    int64_t dims[KL_MAX_RANK] = {1, f->dims[0], 1, 1, 1, 1, 1, 1};
    return onnx_has(n, i) ? kl_add(y, kl_reshape(onnx_in(n, i), f->rank, dims)) : y;
}

kl_tensor onnx_conv_of(struct node *n)
{
    struct type f;
    struct onnx_windows s;
    kl_tensor y;
    if (!conv_windows(n, 1, &f, &s))
        return kl_none;
    if (onnx_qdq_conv(n, &f, &s, &y))
        return add_channels(n, y, 2, &f);
    return kl_conv(onnx_in(n, 0), onnx_in(n, 1), onnx_in(n, 2), s.stride, s.low, s.high, s.dilation, s.groups);
}

bool onnx_conv(struct node *n)
{
    kl_tensor y = onnx_conv_of(n);
    return y.id && onnx_give(n, 0, y);
}

/* com.microsoft: x [N, .., C] and weights [F, .., C / groups]. */
bool onnx_nhwc_conv(struct node *n)
{
    struct type t, f, x, w;
    struct onnx_windows s;
    int front[KL_MAX_RANK], back[KL_MAX_RANK];
    if (!onnx_type(n, 0, &t) || !filter_type(n, &t, 1, &f))
        return false;
    if (t.rank < 3)
        return onnx_fails(n, KL_ERR_SHAPE, "an operand of %d axes; 3 to %d are supported", t.rank, AXES + 2);
    x = t, w = f;
    for (int k = 0; k < t.rank; k++) {
        front[k] = k == 1 ? t.rank - 1 : k > 1 ? k - 1 : 0;
        back[k] = k == t.rank - 1 ? 1 : k ? k + 1 : 0;
        x.dims[k] = t.dims[front[k]];
        w.dims[k] = f.dims[front[k]];
    }
    if (!window_attributes(n, &x, w.dims + 2, &s))
        return false;
    kl_tensor y = kl_conv(kl_permute(onnx_in(n, 0), front), kl_permute(onnx_in(n, 1), front), onnx_in(n, 2), s.stride,
                          s.low, s.high, s.dilation, onnx_attr_int32(n, "group", 1));
    return onnx_give(n, 0, kl_permute(y, back));
}

bool onnx_conv_transpose(struct node *n)
{
    kl_tensor x = onnx_in(n, 0), w = onnx_in(n, 1), b = onnx_in(n, 2);
    struct type t, f;
    struct onnx_windows s;
    int64_t more[AXES], shape[AXES + 2];
    if (!onnx_type(n, 0, &t) || !filter_type(n, &t, 1, &f) || !window_attributes(n, &t, f.dims + 2, &s) ||
        !window_list(n, "output_padding", s.n, 0, more))
        return false;
    bool explicit = onnx_attr_is(n, "auto_pad", "NOTSET", true);
    bool upper = onnx_attr_is(n, "auto_pad", "SAME_UPPER", false);
    bool valid = onnx_attr_is(n, "auto_pad", "VALID", false);
    int count = onnx_attr_ints(n, "output_shape", shape, AXES + 2);
    if (count == -2 || (count >= 0 && count != s.n && count != s.n + 2))
        return count == -2 ? false : onnx_fails(n, KL_ERR_SHAPE, "output_shape has %d numbers", count);
    for (int i = 0; i < s.n; i++) {
        int64_t reach = (s.size[i] - 1) * s.dilation[i] + 1;
        int64_t full = sat_add(sat_add(sat_mul(s.in[i] - 1, s.stride[i]), reach), more[i]);
        int64_t out = count >= 0 ? shape[count - s.n + i] : sat_mul(s.in[i], s.stride[i]);
        if (s.in[i] < 0 && count >= 0)
            return onnx_fails(n, KL_ERR_SHAPE, "axis %d has a symbolic length, and output_shape a number", i + 2);
        if (count >= 0 || (!explicit && !valid)) {
            int64_t all = sat_sub(full, out);
            int64_t half = all / 2 - (all % 2 < 0); /* rounded down */
            s.low[i] = upper ? half : all - half;
            s.high[i] = all - s.low[i];
        }
        s.high[i] = sat_sub(s.high[i], more[i]);
    }
    int groups = onnx_attr_int32(n, "group", 1);
    return onnx_give(n, 0, kl_conv_transpose(x, w, b, s.stride, s.low, s.high, s.dilation, groups));
}

/* ---- integers ---- */

bool onnx_conv_integer(struct node *n)
{
    struct type f;
    struct onnx_windows s;
    return conv_windows(n, 1, &f, &s) && onnx_give(n, 0, onnx_integer_conv(n, &f, &s));
}

bool onnx_matmul_integer(struct node *n) { return onnx_give(n, 0, onnx_integer_matmul(n)); }

/* Reshapes a scale, of one number or one for each element of an axis, to broadcast to the result. */
static kl_tensor scale_along(struct node *n, uint32_t i, int rank, int axis)
{
    struct type t;
    if (!onnx_type(n, i, &t))
        return kl_none;
    int64_t dims[KL_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1}, count = t.rank == 1 ? t.dims[0] : 1;
    kl_tensor scale = kl_cast(onnx_in(n, i), KL_F32);
    axis = axis < 0 ? axis + rank : axis;
    if (t.rank > 1)
        return scale;
    if (axis >= 0 && axis < rank)
        dims[axis] = count;
    return kl_reshape(scale, count == 1 ? 0 : rank, dims);
}

/* acc: integers; operands a_scale, b_scale, y_scale and y_zero_point by number */
static bool give_quantized(struct node *n, kl_tensor acc, uint32_t a, uint32_t b, uint32_t y, uint32_t zero, int axis)
{
    struct type t = onnx_type_of(acc), z;
    if (t.rank < 0 || !onnx_type(n, zero, &z))
        return false;
    kl_tensor scale = kl_mul(scale_along(n, a, t.rank, t.rank > 1 ? -2 : -1), scale_along(n, b, t.rank, axis));
    kl_tensor v = kl_mul(kl_cast(acc, KL_F32), scale);
    kl_tensor to = kl_reshape(kl_cast(onnx_in(n, y), KL_F32), 0, NULL), point = kl_reshape(onnx_in(n, zero), 0, NULL);
    return onnx_give(n, 0, kl_quantize(v, to, point, z.dtype, 0));
}

bool onnx_qlinear_matmul(struct node *n)
{
    return give_quantized(n, onnx_integer_matmul(n), 1, 4, 6, 7, -1);
}

/* alpha a b + c, c integers of the product's scale; without the scale of the result in floats. */
bool onnx_qgemm(struct node *n)
{
    kl_tensor y = onnx_integer_matmul(n);
    struct type t = onnx_type_of(y);
    if (t.rank != 2)
        return onnx_fails(n, KL_ERR_SHAPE, "a product of %d axes", t.rank);
    if (onnx_has(n, 6))
        y = kl_add(y, kl_cast(onnx_in(n, 6), KL_I32));
    kl_tensor scale = kl_mul(scale_along(n, 1, 2, 0), scale_along(n, 4, 2, 1));
    kl_tensor v = kl_mul(kl_cast(y, KL_F32), scale);
    v = kl_mul(v, onnx_number(n, KL_F32, onnx_attr_float(n, "alpha", 1)));
    if (!onnx_has(n, 7))
        return onnx_give(n, 0, v);
    struct type z = {.dtype = KL_U8};
    if (!onnx_has(n, 8) || !onnx_type(n, 8, &z) || (z.dtype != KL_U8 && z.dtype != KL_I8))
        return onnx_fails(n, KL_ERR_ARGUMENT, "its result has a scale, and no zero point of u8 or i8");
    kl_tensor to = kl_reshape(kl_cast(onnx_in(n, 7), KL_F32), 0, NULL);
    return onnx_give(n, 0, kl_quantize(v, to, kl_reshape(onnx_in(n, 8), 0, NULL), z.dtype, 0));
}

bool onnx_qlinear_conv(struct node *n)
{
    struct type f;
    struct onnx_windows s;
    if (!conv_windows(n, 3, &f, &s))
        return false;
    return give_quantized(n, add_channels(n, onnx_integer_conv(n, &f, &s), 8, &f), 1, 4, 6, 7, 1);
}

/* ---- pooling ---- */

static void add_extra(struct onnx_windows *s)
{
    for (int i = 0; i < s->n; i++)
        s->high[i] += s->extra[i];
}

/* Converts positions in a plane of the operand to ONNX's: counted through all planes and, with storage_order, by
 * columns. */
static kl_tensor onnx_places(struct node *n, kl_tensor place, const struct type *t, const struct onnx_windows *s)
{
    int64_t plane = 1, stride = 1, dims[KL_MAX_RANK] = {t->dims[0], t->dims[1], 1, 1, 1, 1, 1, 1};
    for (int i = 0; i < s->n; i++)
        plane *= s->in[i];
    if (onnx_attr_int(n, "storage_order", 0)) {
        kl_tensor sum = kl_none;
        int64_t left = plane;
        for (int i = 0; i < s->n; i++) {
            left /= s->in[i] ? s->in[i] : 1; /* of an empty plane the pool is an error */
            kl_tensor x = kl_rem(kl_div(place, onnx_number(n, KL_I64, (double)left)),
                                 onnx_number(n, KL_I64, (double)s->in[i]));
            x = kl_mul(x, onnx_number(n, KL_I64, (double)stride));
            sum = i ? kl_add(sum, x) : x;
            stride *= s->in[i];
        }
        place = sum;
    }
    kl_tensor planes = kl_reshape(kl_arange(onnx_device(n), KL_I64, t->dims[0] * t->dims[1]), t->rank, dims);
    return kl_add(place, kl_mul(planes, onnx_number(n, KL_I64, (double)plane)));
}

/* The largest elements of windows.  Those of large windows are found along one axis after the other. */
static kl_tensor max_pool(kl_tensor a, const struct onnx_windows *s)
{
    enum { LARGE = 16 }; /* elements of a window for which reading the operand several times pays */
    int64_t elements = 1;
    for (int i = 0; i < s->n; i++)
        elements = sat_mul(elements, s->size[i]);
    if (s->n == 1 || elements < LARGE)
        return kl_max_pool(a, s->n, s->size, s->stride, s->low, s->high, s->dilation);
    for (int i = s->n; i-- > 0;) {
        int64_t ones[5][WINDOW_AXES] = {{1, 1, 1}, {1, 1, 1}, {0}, {0}, {1, 1, 1}};
        ones[0][i] = s->size[i];
        ones[1][i] = s->stride[i];
        ones[2][i] = s->low[i];
        ones[3][i] = s->high[i];
        ones[4][i] = s->dilation[i];
        if (s->size[i] > 1 || s->stride[i] > 1 || s->low[i] || s->high[i])
            a = kl_max_pool(a, s->n, ones[0], ones[1], ones[2], ones[3], ones[4]);
    }
    return a;
}

bool onnx_max_pool(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), indices;
    struct type t;
    struct onnx_windows s;
    if (!onnx_type(n, 0, &t) || !window_attributes(n, &t, NULL, &s))
        return false;
    add_extra(&s);
    if (!onnx_wants(n, 1))
        return onnx_give(n, 0, max_pool(a, &s));
    for (int i = 0; i < t.rank; i++)
        if (t.dims[i] < 0)
            return onnx_fails(n, KL_ERR_SHAPE, "axis %d has a symbolic length: there are no places in the operand", i);
    a = kl_max_pool_indices(a, s.n, s.size, s.stride, s.low, s.high, s.dilation, &indices);
    return onnx_give(n, 0, a) && onnx_give(n, 1, onnx_places(n, indices, &t, &s));
}

kl_tensor onnx_average_pool_of(struct node *n, kl_tensor a)
{
    struct type t;
    struct onnx_windows s;
    if (!onnx_type(n, 0, &t) || !window_attributes(n, &t, NULL, &s))
        return kl_none;
    if (onnx_attr_int(n, "count_include_pad", 0)) {
        int64_t low[KL_MAX_RANK] = {0}, high[KL_MAX_RANK] = {0};
        for (int i = 0; i < s.n; i++) {
            low[i + 2] = s.low[i];
            high[i + 2] = s.high[i];
            s.low[i] = s.high[i] = 0;
        }
        a = kl_pad(a, low, high, 0);
    }
    add_extra(&s); /* ceil_mode: what the last window reaches beyond the padded operand is not counted */
    return kl_avg_pool(a, s.n, s.size, s.stride, s.low, s.high, s.dilation);
}

bool onnx_average_pool(struct node *n)
{
    kl_tensor y = onnx_average_pool_of(n, onnx_in(n, 0));
    return y.id && onnx_give(n, 0, y);
}

bool onnx_lp_pool(struct node *n)
{
    kl_tensor a = onnx_widened(n, 0);
    struct type t;
    struct onnx_windows s;
    double p = (double)onnx_attr_int(n, "p", 2);
    if (!onnx_type(n, 0, &t) || !window_attributes(n, &t, NULL, &s))
        return false;
    add_extra(&s);
    a = kl_sum_pool(kl_pow_scalar(kl_abs(a), p), s.n, s.size, s.stride, s.low, s.high, s.dilation);
    return onnx_give_as(n, 0, kl_pow_scalar(a, 1 / p), t.dtype);
}

/* arg 0 GlobalAveragePool, 1 GlobalMaxPool, 2 GlobalLpPool */
bool onnx_global_pool(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int axes[KL_MAX_RANK], count = 0;
    if (!onnx_type(n, 0, &t))
        return false;
    for (int i = 2; i < t.rank; i++)
        axes[count++] = i;
    if (n->def->op->arg == 1)
        return onnx_give(n, 0, kl_max(a, count, axes, true));
    if (n->def->op->arg == 0)
        return onnx_give(n, 0, kl_mean(a, count, axes, true));
    double p = (double)onnx_attr_int(n, "p", 2);
    a = kl_sum(kl_pow_scalar(kl_abs(onnx_widened(n, 0)), p), count, axes, true);
    return onnx_give_as(n, 0, kl_pow_scalar(a, 1 / p), t.dtype);
}

/* x [N, C * block, windows]: the sum, at each element of an image, of the windows that have it.  That is a transposed
 * convolution whose filter number k is 1 at element k of the window. */
bool onnx_col2im(struct node *n)
{
    struct type t, w;
    struct onnx_windows s;
    int64_t image[AXES], size[AXES], shape[AXES + 2], windows = 1, block = 1;
    int axes, count;
    if (!onnx_type(n, 0, &t) || !onnx_ints(n, 1, image, AXES, &axes) || !onnx_ints(n, 2, size, AXES, &count))
        return false;
    if (t.rank != 3 || axes != count || axes < 1)
        return onnx_fails(n, KL_ERR_SHAPE, "%d axes, an image of %d and a block of %d", t.rank, axes, count);
    w = (struct type){.rank = axes + 2};
    for (int i = 0; i < axes; i++) {
        if (image[i] < 0 || image[i] > IMAGE_MAX)
            return onnx_fails(n, KL_ERR_SHAPE, "axis %d of the image has a length of %lld", i, (long long)image[i]);
        w.dims[i + 2] = image[i];
    }
    if (!window_attributes(n, &w, size, &s))
        return false;
    for (int i = 0; i < axes; i++) {
        shape[i + 2] = s.out[i];
        windows = sat_mul(windows, s.out[i]);
        block = sat_mul(block, size[i]);
        s.high[i] = (s.out[i] - 1) * s.stride[i] + (size[i] - 1) * s.dilation[i] + 1 - s.low[i] - image[i];
    }
    if (t.dims[2] != windows || t.dims[1] % block)
        return onnx_fails(n, KL_ERR_SHAPE, "%lld channels of %lld windows, not a multiple of %lld of %lld",
                          (long long)t.dims[1], (long long)t.dims[2], (long long)block, (long long)windows);
    shape[0] = t.dims[0] * (t.dims[1] / block);
    shape[1] = block;
    kl_tensor x = kl_reshape(onnx_in(n, 0), axes + 2, shape);
    int64_t filter[AXES + 2] = {block, 1};
    memcpy(filter + 2, size, (size_t)axes * sizeof *size);
    kl_tensor row = kl_reshape(kl_arange(onnx_device(n), KL_I64, block), 2, (int64_t[]){block, 1});
    kl_tensor one = kl_cast(kl_eq(row, kl_arange(onnx_device(n), KL_I64, block)), t.dtype);
    one = kl_reshape(one, axes + 2, filter);
    x = kl_conv_transpose(x, one, kl_none, s.stride, s.low, s.high, s.dilation, 1);
    int64_t result[AXES + 2] = {t.dims[0], t.dims[1] / block};
    memcpy(result + 2, image, (size_t)axes * sizeof *image);
    return onnx_give(n, 0, kl_reshape(x, axes + 2, result));
}

bool onnx_max_unpool(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), index = onnx_in(n, 1);
    struct type t;
    struct onnx_windows s;
    int64_t dims[KL_MAX_RANK], all = 1, count = 1;
    int rank;
    if (!onnx_type(n, 0, &t) || !window_attributes(n, &t, NULL, &s))
        return false;
    memcpy(dims, t.dims, sizeof dims);
    for (int i = 0; i < s.n; i++)
        dims[i + 2] = sat_add(sat_mul(s.in[i] - 1, s.stride[i]), s.size[i] - s.low[i] - s.high[i]);
    int64_t own[KL_MAX_RANK]; /* the shape that the indices refer to */
    memcpy(own, dims, sizeof own);
    if (onnx_has(n, 2) && (!onnx_ints(n, 2, dims, KL_MAX_RANK, &rank) || rank != t.rank))
        return onnx_fails(n, KL_ERR_SHAPE, "output_shape does not fit");
    for (int i = 0; i < t.rank; i++) {
        all = sat_mul(all, own[i]);
        count *= t.dims[i];
    }
    /* the indices count in all planes, which are one plane here */
    kl_tensor r = kl_max_unpool(kl_reshape(a, 1, &count), kl_reshape(index, 1, &count), 1, &all);
    int64_t high[KL_MAX_RANK];
    for (int i = 0; i < t.rank; i++)
        high[i] = sat_sub(dims[i], own[i]);
    r = kl_reshape(r, t.rank, own);
    return onnx_give(n, 0, memcmp(own, dims, (size_t)t.rank * sizeof *own) ? kl_pad(r, NULL, high, 0) : r);
}
