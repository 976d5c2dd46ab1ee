/* Pools over windows of different sizes, pools that say where their elements are, and the way back. */
#include "frontend/nn/compose.h"

enum { POOL_AXES = 3 };

/* Checks a tensor whose last n axes get sizes; NULL: reported. */
static struct thread *sizes_begin(const char *op, kl_tensor a, int n, const int64_t *sizes, bool floats, struct view *v)
{
    struct thread *t = thread_self();
    char text[SHAPE_TEXT];
    if (!t || !describe(t, op, "the tensor", a, v))
        return NULL;
    bool positive = sizes != NULL;
    for (int i = 0; positive && i < n && i < POOL_AXES; i++)
        positive = sizes[i] >= 1;
    if (n < 1 || n > POOL_AXES || !positive) {
        fail(t, KL_ERR_ARGUMENT, "%s: needs 1..%d sizes of at least 1, got %d", op, POOL_AXES, n);
    } else if ((int)v->shape.rank < n) {
        fail(t, KL_ERR_SHAPE, "%s: no last %d axes in shape %s", op, n, shape_text(&v->shape, text, sizeof text));
    } else if (v->dtype == KL_BOOL || (floats && !dtype_is_float(v->dtype))) {
        fail(t, KL_ERR_TYPE, "%s: needs a %s dtype, got %s", op, floats ? "floating" : "number", dtype_name(v->dtype));
    } else {
        return checked_begin(op);
    }
    return NULL;
}

/* One axis in `size` parts, which overlap where its length is no multiple: as windows of the longest, of which a mask
 * leaves out what a shorter one has not. */
static kl_tensor adaptive_axis(kl_tensor a, int axis, int rank, int64_t length, int64_t size, bool mean)
{
    int64_t longest = (length + size - 1) / size + 1, dims[KL_MAX_RANK + 1] = {0};
    kl_tensor i = kl_unsqueeze(kl_arange(kl_device_of(a), KL_I64, size), -1);
    kl_tensor L = number(a, KL_I64, (double)length), S = number(a, KL_I64, (double)size);
    kl_tensor first = kl_div(kl_mul(i, L), S), one = number(a, KL_I64, 1);
    kl_tensor end = kl_div(kl_add(kl_mul(kl_add(i, one), L), number(a, KL_I64, (double)(size - 1))), S);
    kl_tensor at = kl_add(first, kl_arange(kl_device_of(a), KL_I64, longest)); /* [size, longest] */
    int64_t each = size * longest;
    kl_shape(a, dims);
    dims[axis] = size;
    for (int k = rank; k > axis + 1; k--)
        dims[k] = dims[k - 1];
    dims[axis + 1] = longest;
    if (rank == KL_MAX_RANK) { /* the axes behind it as one, or those before it */
        int64_t before = product_of(dims, axis), behind = product_of(dims + axis + 2, rank - axis - 1);
        int64_t out[KL_MAX_RANK];
        kl_tensor flat = kl_reshape(a, 3, (int64_t[]){before, length, behind});
        kl_shape(a, out);
        out[axis] = size;
        return kl_reshape(adaptive_axis(flat, 1, 3, length, size, mean), rank, out);
    }
    kl_tensor w = kl_reshape(kl_take(a, axis, kl_reshape(at, 1, &each)), rank + 1, dims);
    int64_t mask[KL_MAX_RANK] = {size, longest, 1, 1, 1, 1, 1, 1};
    kl_tensor in = kl_reshape(kl_lt(at, end), rank + 1 - axis, mask);
    int reduced = axis + 1;
    w = kl_where(in, w, same_number(w, mean ? 0 : -INFINITY));
    if (!mean)
        return kl_max(w, 1, &reduced, false);
    int64_t count[KL_MAX_RANK] = {size, 1, 1, 1, 1, 1, 1, 1};
    kl_tensor lengths = kl_reshape(kl_cast(kl_sub(end, first), kl_dtype_of(w)), rank - axis, count);
    return kl_div(kl_sum(w, 1, &reduced, false), lengths);
}

static kl_tensor adaptive_pool(const char *op, kl_tensor a, int n, const int64_t *sizes, bool mean)
{
    struct view v;
    char text[SHAPE_TEXT];
    struct thread *t = sizes_begin(op, a, n, sizes, mean, &v);
    if (!t)
        return op_failed();
    int lead = (int)v.shape.rank - n;
    struct shape out = v.shape;
    bool whole = true;
    for (int i = 0; i < n; i++) {
        int64_t length = v.shape.dim[lead + i], all;
        if (length < 1 || sizes[i] > INT64_C(1) << 40 ||
            __builtin_mul_overflow(length + 1, sizes[i] + 1, &all) || all > INT64_C(1) << 40)
            return compose_end(t, refuse(t, KL_ERR_SHAPE, "%s: axis %d of %s to %" PRId64 " elements", op,
                                         lead + i, shape_text(&v.shape, text, sizeof text), sizes[i]));
        whole &= length % sizes[i] == 0;
        out.dim[lead + i] = sizes[i];
    }
    int64_t window[POOL_AXES];
    for (int i = 0; i < n; i++)
        window[i] = v.shape.dim[lead + i] / sizes[i];
    if (whole)
        return compose_end(t, mean ? kl_avg_pool(a, n, window, NULL, NULL, NULL, NULL)
                                   : kl_max_pool(a, n, window, NULL, NULL, NULL, NULL));
    a = mean ? widen(t, a) : a;
    for (int i = 0; i < n; i++)
        a = adaptive_axis(a, lead + i, (int)v.shape.rank, v.shape.dim[lead + i], sizes[i], mean);
    return compose_end(t, reshape_to(op, a, &out));
}

kl_tensor kl_adaptive_avg_pool(kl_tensor a, int n, const int64_t *sizes)
{
    return adaptive_pool("adaptive_avg_pool", a, n, sizes, true);
}

kl_tensor kl_adaptive_max_pool(kl_tensor a, int n, const int64_t *sizes)
{
    return adaptive_pool("adaptive_max_pool", a, n, sizes, false);
}

/* ---- indices of the maxima ---- */

/* Windows along n axes: how many, where, and of what size; `padded`: some have elements of the padding. */
struct pool_windows {
    int n;
    int64_t length[POOL_AXES], count[POOL_AXES], size[POOL_AXES], stride[POOL_AXES], low[POOL_AXES],
        dilation[POOL_AXES];
    bool padded;
};

/* Numbers that depend on the window's number along axis i of `like` [.., O..]: o stride. */
static kl_tensor window_start(kl_tensor like, const struct pool_windows *w, int i)
{
    int64_t own[KL_MAX_RANK] = {1, 1, 1, 1};
    own[1 + i] = w->count[i];
    kl_tensor o = kl_iota(kl_device_of(like), KL_I64, kl_rank(like), own, 1 + i);
    return kl_mul(o, number(like, KL_I64, (double)w->stride[i]));
}

/* Element k of the window along axis i as its position in the tensor, which is outside of it in the padding. */
static kl_tensor window_position(kl_tensor k, const struct pool_windows *w, int i)
{
    kl_tensor x = kl_add(window_start(k, w, i), kl_mul(k, number(k, KL_I64, (double)w->dilation[i])));
    return kl_sub(x, number(k, KL_I64, (double)w->low[i]));
}

static kl_tensor pools_clamp(kl_tensor x, int64_t low, int64_t high)
{
    return kl_maximum(kl_minimum(x, number(x, KL_I64, (double)high)), number(x, KL_I64, (double)low));
}

/* Where elements k[] are of the padding, the first element of the window that is not: as the padding has the lowest
 * number of the dtype, all others are equal to it. */
static void skip_padding(const struct pool_windows *w, kl_tensor *k)
{
    kl_tensor inside = kl_none;
    for (int i = 0; i < w->n; i++) {
        kl_tensor x = window_position(k[i], w, i);
        kl_tensor in = kl_and(kl_ge(x, number(x, KL_I64, 0)), kl_lt(x, number(x, KL_I64, (double)w->length[i])));
        inside = inside.id ? kl_and(inside, in) : in;
    }
    for (int i = 0; i < w->n; i++) {
        kl_tensor up = number(k[i], KL_I64, (double)(w->low[i] + w->dilation[i] - 1));
        kl_tensor first = kl_div(kl_sub(up, window_start(k[i], w, i)),
                                 number(k[i], KL_I64, (double)w->dilation[i])); /* rounded up, or below 1 */
        k[i] = kl_where(inside, k[i], pools_clamp(first, 0, w->size[i] - 1));
    }
}

/* Element *at of each window, its number there: the element itself if that is of the padding and another is as large.
 * The result: its position in the tensor's last n axes in a row. */
static kl_tensor window_places(kl_tensor *at, const struct pool_windows *w)
{
    kl_tensor place = kl_none, k[POOL_AXES];
    int64_t rest = product_of(w->size, w->n);
    for (int i = 0; i < w->n; i++) {
        rest /= w->size[i];
        k[i] = kl_rem(kl_div(*at, number(*at, KL_I64, (double)rest)), number(*at, KL_I64, (double)w->size[i]));
    }
    if (w->padded) {
        skip_padding(w, k);
        *at = k[0];
        for (int i = 1; i < w->n; i++)
            *at = kl_add(kl_mul(*at, number(*at, KL_I64, (double)w->size[i])), k[i]);
    }
    for (int i = 0; i < w->n; i++) {
        kl_tensor x = pools_clamp(window_position(k[i], w, i), 0, w->length[i] - 1);
        place = place.id ? kl_add(kl_mul(place, number(place, KL_I64, (double)w->length[i])), x) : x;
    }
    return place;
}

/* The windows themselves, whose checks and sizes are kl_max_pool's. */
kl_tensor kl_max_pool_indices(kl_tensor a, int n, const int64_t *window, const int64_t *stride,
                              const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation,
                              kl_tensor *indices)
{
    static const char op[] = "max_pool_indices";
    struct view v;
    if (!indices) {
        struct thread *self = thread_self();
        return self ? refuse(self, KL_ERR_ARGUMENT, "%s: indices is NULL", op) : kl_none;
    }
    *indices = kl_none;
    struct thread *t = sizes_begin(op, a, n, window, false, &v);
    if (!t)
        return op_failed();
    int lead = (int)v.shape.rank - n;
    if (!axes_are_numbers(t, op, &v.shape, (uint32_t)lead, (uint32_t)n))
        return compose_end(t, poison(t));
    struct pool_windows all = {.n = n};
    int64_t dims[KL_MAX_RANK], pad[2][KL_MAX_RANK] = {{0}}, rest = product_of(v.shape.dim, lead);
    kl_tensor like = kl_max_pool(a, n, window, stride, pad_low, pad_high, dilation);
    if (kl_check(like) != KL_OK || kl_shape(like, dims) < 0)
        return compose_end(t, poison(t));
    struct shape result = v.shape, flat = {.rank = 1 + (uint32_t)n, .dim = {rest}};
    for (int i = 0; i < n; i++) {
        all.length[i] = flat.dim[1 + i] = v.shape.dim[lead + i];
        all.count[i] = result.dim[lead + i] = dims[lead + i];
        all.size[i] = window[i];
        all.stride[i] = stride ? stride[i] : window[i];
        all.dilation[i] = dilation ? dilation[i] : 1;
        all.low[i] = pad[0][1 + i] = pad_low ? pad_low[i] : 0;
        pad[1][1 + i] = pad_high ? pad_high[i] : 0;
        all.padded |= pad[0][1 + i] > 0 || pad[1][1 + i] > 0;
    }
    int64_t start[KL_MAX_RANK] = {0}, stop[KL_MAX_RANK] = {rest};
    for (int i = 1; i <= n; i++) { /* below 0: cut off */
        start[i] = pad[0][i] < 0 ? -pad[0][i] : 0;
        stop[i] = flat.dim[i] + (pad[1][i] < 0 ? pad[1][i] : 0);
        pad[0][i] = pad[0][i] < 0 ? 0 : pad[0][i];
        pad[1][i] = pad[1][i] < 0 ? 0 : pad[1][i];
    }
    kl_tensor w = kl_pad(kl_slice(reshape_to(op, a, &flat), start, stop, NULL), pad[0], pad[1], -INFINITY);
    for (int i = 0; i < n; i++) /* the windows' own axes come last, in order */
        w = kl_window(w, 1 + i, window[i], all.stride[i], all.dilation[i]);
    int64_t rows[KL_MAX_RANK] = {rest};
    memcpy(rows + 1, all.count, (size_t)n * sizeof *all.count);
    rows[1 + n] = product_of(window, n);
    w = kl_reshape(w, n + 2, rows);
    kl_tensor at = kl_cast(kl_argmax(w, -1), KL_I64), place = window_places(&at, &all);
    kl_tensor value = kl_squeeze(kl_take_along_axis(w, n + 1, kl_unsqueeze(at, -1)), -1);
    kl_tensor results[2] = {reshape_to(op, value, &result), reshape_to(op, place, &result)};
    compose_end_all(t, results, 2);
    *indices = results[1];
    return results[0];
}

kl_tensor kl_max_unpool(kl_tensor a, kl_tensor indices, int n, const int64_t *sizes)
{
    static const char op[] = "max_unpool";
    struct view v, p;
    char ta[SHAPE_TEXT], tp[SHAPE_TEXT];
    struct thread *t = sizes_begin(op, a, n, sizes, false, &v);
    if (!t)
        return op_failed();
    struct shape out = v.shape;
    int lead = (int)v.shape.rank - n;
    memcpy(out.dim + lead, sizes, (size_t)n * sizeof *sizes);
    if (!describe(t, op, "the indices", indices, &p) || !shape_of(t, op, (int)out.rank, out.dim, &out))
        return compose_end(t, poison(t));
    if (!shape_equal(&v.shape, &p.shape))
        return compose_end(t, refuse(t, KL_ERR_SHAPE, "%s: shapes %s and %s of indices differ", op,
                                     shape_text(&v.shape, ta, sizeof ta), shape_text(&p.shape, tp, sizeof tp)));
    int64_t rest = product_of(v.shape.dim, lead), plane = product_of(sizes, n),
            own = product_of(v.shape.dim + lead, n);
    kl_tensor zeros = kl_zeros(v.device, (kl_dtype)v.dtype, 2, (int64_t[]){rest, plane});
    int64_t rows[2] = {rest, own};
    kl_tensor r = kl_put_along_axis_with(zeros, 1, kl_reshape(indices, 2, rows), kl_reshape(a, 2, rows), KL_SCATTER_SET,
                                         KL_INDEX_DROP);
    return compose_end(t, reshape_to(op, r, &out));
}
