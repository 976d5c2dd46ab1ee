/* Convolution and pooling: products and reduces of windows, which are views, so that no window is ever copied. */
#include "frontend/frontend.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MAX_COUNT = 3 }; /* spatial axes */

/* How windows go over the last n axes of a tensor.  windows_fit finds the lengths of the padded axes, and how many
 * windows each of them has; either may be symbolic. */
struct window_lengths {
    uint32_t n;
    int64_t size[MAX_COUNT], stride[MAX_COUNT], low[MAX_COUNT], high[MAX_COUNT], dilation[MAX_COUNT];
    int64_t padded[MAX_COUNT], count[MAX_COUNT];
};

/* The caller's lists, of which any may be NULL but the sizes; windows side by side without strides.  false:
 * reported. */
static bool windows_of(struct thread *t, const char *op, uint32_t n, const int64_t *size,
                       const int64_t *stride, const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation,
                       struct window_lengths *w)
{
    *w = (struct window_lengths){.n = n};
    for (uint32_t i = 0; i < n; i++) {
        w->size[i] = size[i];
        w->stride[i] = stride ? stride[i] : size[i];
        w->low[i] = pad_low ? pad_low[i] : 0;
        w->high[i] = pad_high ? pad_high[i] : 0;
        w->dilation[i] = dilation ? dilation[i] : 1;
        if (w->size[i] < 1 || w->stride[i] < 1 || w->dilation[i] < 1) {
            fail(t, KL_ERR_ARGUMENT, "%s: window %" PRId64 ", stride %" PRId64 ", dilation %" PRId64
                 ": none may be below 1", op, w->size[i], w->stride[i], w->dilation[i]);
            return false;
        }
    }
    return true;
}

/* Does each axis of s, padded, hold a window?  Finds w->padded and w->count.  false: reported. */
static bool windows_fit(struct thread *t, const char *op, const struct shape *s, struct window_lengths *w)
{
    char text[SHAPE_TEXT];
    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t axis = s->rank - w->n + i;
        int64_t rest = 0, span, *padded = &w->padded[i];
        bool fits = length_add(t, s->dim[axis], 1, w->low[i], padded) &&
                    length_add(t, *padded, 1, w->high[i], padded) &&
                    !__builtin_mul_overflow(w->size[i] - 1, w->dilation[i], &span) && span < INT64_MAX &&
                    length_add(t, *padded, 1, -span - 1, &rest);
        if (!fits) {
            fail(t, KL_ERR_SHAPE, "%s: a window of %" PRId64 " with dilation %" PRId64 " does not fit in axis %u "
                 "of %s, padded by %" PRId64 " and %" PRId64, op, w->size[i], w->dilation[i], axis,
                 shape_text(s, text, sizeof text), w->low[i], w->high[i]);
            return false;
        }
        if (!length_divide(t, rest, w->stride[i], &rest) || !length_add(t, rest, 1, 1, &w->count[i])) {
            fail(t, KL_ERR_SHAPE, "%s: how many windows, one every %" PRId64 " elements, axis %u of %s has is no "
                 "affine expression", op, w->stride[i], axis, shape_text(s, text, sizeof text));
            return false;
        }
    }
    return true;
}

/* One axis with `interior` new elements between its own, and low and high at its ends: negative numbers cut off.  It
 * then has `length` elements. */
static kl_tensor pad_axis(const char *op, kl_tensor a, uint32_t axis, int64_t length, int64_t low,
                          int64_t high, int64_t interior, kl_tensor value)
{
    if (low > 0 || high > 0 || interior)
        a = pad_of(op, a, value, axis, low > 0 ? low : 0, high > 0 ? high : 0, interior);
    if (low >= 0 && high >= 0)
        return a;
    return slice_of(op, a, axis, low < 0 ? -low : 0, length, 1);
}

static kl_tensor permute_to(const char *op, kl_tensor a, uint32_t rank, const uint8_t *perm)
{
    struct call c = {.op = op, .proto.op = OP_permute, .in = {a}};
    memcpy(c.proto.attr.permute.perm, perm, rank);
    return record(&c);
}

/* ---- convolution ---- */

/* The sizes of a convolution in groups: w is [groups, filters, depth, window...]. */
struct conv { const char *op; int64_t batch, groups, depth, filters; };

/* x: [batch, groups * depth, L...], padded already; w: [groups, filters, depth * window].  Each window axis joins the
 * channels as soon as it is made, so that no tensor has more axes than it may. */
static kl_tensor conv_product(const struct conv *c, kl_tensor x, kl_tensor w, const struct window_lengths *win)
{
    struct shape s = {.rank = 3 + win->n, .dim = {c->batch, c->groups, c->depth}};
    for (uint32_t i = 0; i < win->n; i++)
        s.dim[3 + i] = win->padded[i];
    x = reshape_to(c->op, x, &s);
    for (uint32_t i = 0; i < win->n; i++) {
        uint8_t perm[KL_MAX_RANK] = {0, 1, 2, (uint8_t)s.rank};
        for (uint32_t d = 3; d < s.rank; d++)
            perm[d + 1] = (uint8_t)d;
        x = window_of(c->op, x, 3 + i, win->size[i], win->stride[i], win->dilation[i]);
        s.dim[2] *= win->size[i];
        s.dim[3 + i] = win->count[i];
        x = reshape_to(c->op, permute_to(c->op, x, s.rank + 1, perm), &s);
    }
    union attr dims = {0};
    dims.dot.nbatch = dims.dot.ncon = 1;
    dims.dot.batch_b = 1;
    dims.dot.con_a = dims.dot.con_b = 2;
    kl_tensor y = record_dot(c->op, w, x, &dims);
    uint8_t perm[KL_MAX_RANK] = {2, 0, 1}; /* of [groups, filters, batch, O...] */
    struct shape out = {.rank = 2 + win->n, .dim = {c->batch, c->groups * c->filters}};
    for (uint32_t i = 0; i < win->n; i++) {
        perm[3 + i] = (uint8_t)(3 + i);
        out.dim[2 + i] = s.dim[3 + i];
    }
    return reshape_to(c->op, permute_to(c->op, y, s.rank, perm), &out);
}

/* y + b, a number a channel. */
static kl_tensor add_bias(const char *op, kl_tensor y, kl_tensor b, int64_t channels, uint32_t n)
{
    struct shape column = {.rank = 1 + n, .dim = {channels, 1, 1, 1}};
    return b.id ? kl_add(y, reshape_to(op, b, &column)) : y;
}

/* The views of x, w and, if there is one, b; the first axis of w counts `outer` channels, the second `inner` a group.
 * false: reported. */
static bool check_conv(struct thread *t, const char *op, kl_tensor x, kl_tensor w, kl_tensor b,
                       int groups, bool transposed, struct view *vx, struct view *vw)
{
    struct view vb;
    char tx[SHAPE_TEXT], tw[SHAPE_TEXT];
    if (!describe(t, op, "x", x, vx) || !describe(t, op, "w", w, vw) ||
        (b.id && !describe(t, op, "the bias", b, &vb)))
        return false;
    const struct shape *sx = &vx->shape, *sw = &vw->shape;
    if (sx->rank < 3 || sx->rank > 2 + MAX_COUNT || sw->rank != sx->rank) {
        fail(t, KL_ERR_SHAPE, "%s: needs x [N, C, ...] and w with 1 to %d window axes each, got %s and %s", op,
             MAX_COUNT,
             shape_text(sx, tx, sizeof tx), shape_text(sw, tw, sizeof tw));
        return false;
    }
    int64_t channels = sx->dim[1], out = transposed ? sw->dim[1] : sw->dim[0];
    bool split = groups > 0 && channels % groups == 0 && (transposed || out % groups == 0);
    if (!split || channels != (transposed ? sw->dim[0] : sw->dim[1] * groups)) {
        fail(t, KL_ERR_SHAPE, "%s: the channels of x %s and w %s do not make %d equal groups", op,
             shape_text(sx, tx, sizeof tx), shape_text(sw, tw, sizeof tw), groups);
        return false;
    }
    int64_t filters = transposed ? out * groups : out;
    if (b.id && (vb.shape.rank != 1 || vb.shape.dim[0] != filters)) {
        fail(t, KL_ERR_SHAPE, "%s: the bias must be [%" PRId64 "], got %s", op, filters,
             shape_text(&vb.shape, tx, sizeof tx));
        return false;
    }
    if (vx->dtype != vw->dtype || (b.id && vb.dtype != vx->dtype) || vx->dtype == KL_BOOL) {
        fail(t, KL_ERR_TYPE, "%s: needs one number dtype, got %s, %s%s%s", op, dtype_name(vx->dtype),
             dtype_name(vw->dtype), b.id ? " and " : "", b.id ? dtype_name(vb.dtype) : "");
        return false;
    }
    return true;
}

static const int64_t ones[MAX_COUNT] = {1, 1, 1};

kl_tensor kl_conv(kl_tensor x, kl_tensor w, kl_tensor b, const int64_t *stride,
                  const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation, int groups)
{
    struct thread *t = thread_self();
    struct view vx, vw;
    struct window_lengths win;
    if (!t || !check_conv(t, "conv", x, w, b, groups, false, &vx, &vw))
        return op_failed();
    uint32_t n = vx.shape.rank - 2;
    if (!windows_of(t, "conv", n, &vw.shape.dim[2], stride ? stride : ones, pad_low, pad_high, dilation, &win) ||
        !windows_fit(t, "conv", &vx.shape, &win) || !(t = checked_begin("conv")))
        return op_failed();
    struct conv c = {"conv", vx.shape.dim[0], groups, vw.shape.dim[1], vw.shape.dim[0] / groups};
    struct shape flat = {.rank = 3, .dim = {groups, c.filters, c.depth}};
    kl_tensor zero = const_like(&vx, 0);
    for (uint32_t i = 0; i < n; i++) {
        x = pad_axis(c.op, x, 2 + i, win.padded[i], win.low[i], win.high[i], 0, zero);
        flat.dim[2] *= win.size[i];
    }
    kl_tensor y = conv_product(&c, x, reshape_to(c.op, w, &flat), &win);
    return compose_end(t, add_bias(c.op, y, b, vw.shape.dim[0], n));
}

/* w [C, M / groups, K...] as [groups, M / groups, C / groups * K]: windows in reverse order. */
static kl_tensor transposed_filters(const struct conv *c, kl_tensor w, const struct window_lengths *win)
{
    struct shape s = {.rank = 3 + win->n, .dim = {c->groups, c->depth, c->filters}};
    struct shape flat = {.rank = 3, .dim = {c->groups, c->filters, c->depth}};
    struct call flip = {.op = c->op, .proto.op = OP_flip};
    uint8_t perm[KL_MAX_RANK] = {0, 2, 1};
    for (uint32_t i = 0; i < win->n; i++) {
        s.dim[3 + i] = win->size[i];
        flat.dim[2] *= win->size[i];
        flip.proto.attr.flip.axes |= 1u << (3 + i);
        perm[3 + i] = (uint8_t)(3 + i);
    }
    flip.in[0] = permute_to(c->op, reshape_to(c->op, w, &s), s.rank, perm);
    return reshape_to(c->op, record(&flip), &flat);
}

/* Where windows do not overlap, size and stride being equal and no padding cut off, an element of x is a block of the
 * result by itself: a product for each of its elements, and no zeros to multiply. */
static bool are_blocks(const struct window_lengths *win)
{
    bool blocks = true;
    for (uint32_t i = 0; i < win->n; i++)
        blocks &= win->size[i] == win->stride[i] && (win->dilation[i] == 1 || win->size[i] == 1) && !win->low[i] &&
                  !win->high[i];
    return blocks;
}

/* sx: of x; count: lengths of the result */
static kl_tensor conv_blocks(const struct conv *c, kl_tensor x, kl_tensor w, const struct shape *sx,
                             struct window_lengths win, const int64_t *count)
{
    struct conv each = *c;
    uint8_t perm[KL_MAX_RANK] = {0, 2, 1};
    struct shape s = {.rank = 2 + 2 * win.n, .dim = {c->batch, c->groups * c->filters}};
    struct shape out = {.rank = 2 + win.n, .dim = {c->batch, c->groups * c->filters}};
    for (uint32_t i = 0; i < win.n; i++) {
        each.filters *= win.size[i];
        s.dim[2 + i] = win.size[i];
        s.dim[2 + win.n + i] = sx->dim[2 + i];
        out.dim[2 + i] = count[i];
        win.size[i] = win.stride[i] = win.dilation[i] = 1;
        win.padded[i] = win.count[i] = sx->dim[2 + i];
    }
    struct shape flat = {.rank = 3, .dim = {c->groups, c->depth, each.filters}};
    w = permute_to(c->op, reshape_to(c->op, w, &flat), 3, perm);
    kl_tensor y = reshape_to(c->op, conv_product(&each, x, w, &win), &s);
    perm[1] = 1;
    for (uint32_t i = 0; i < win.n; i++) { /* [batch, filters, K..., L...] as [batch, filters, L, K, ..] */
        perm[2 + 2 * i] = (uint8_t)(2 + win.n + i);
        perm[3 + 2 * i] = (uint8_t)(2 + i);
    }
    return reshape_to(c->op, permute_to(c->op, y, s.rank, perm), &out);
}

/* A convolution of stride 1 over x with stride - 1 zeros between its elements and (K - 1) dilation around them, less
 * what is cut off (Dumoulin and Visin 2016, "A guide to convolution arithmetic", 4.6). */
kl_tensor kl_conv_transpose(kl_tensor x, kl_tensor w, kl_tensor b, const int64_t *stride,
                            const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation, int groups)
{
    static const char op[] = "conv_transpose";
    struct thread *t = thread_self();
    struct view vx, vw;
    struct window_lengths win;
    char text[SHAPE_TEXT];
    if (!t || !check_conv(t, op, x, w, b, groups, true, &vx, &vw))
        return op_failed();
    uint32_t n = vx.shape.rank - 2;
    if (!windows_of(t, op, n, &vw.shape.dim[2], stride ? stride : ones, pad_low, pad_high, dilation, &win))
        return op_failed();
    bool blocks = are_blocks(&win);
    for (uint32_t i = 0; i < n; i++) {
        int64_t span, *to = &win.padded[i];
        bool fits = length_add(t, vx.shape.dim[2 + i], 1, -1, to) &&
                    !__builtin_mul_overflow(win.size[i] - 1, win.dilation[i], &span) &&
                    !__builtin_sub_overflow(span, win.low[i], &win.low[i]) &&
                    !__builtin_sub_overflow(span, win.high[i], &win.high[i]) &&
                    length_add(t, *to, win.stride[i], 1, to) && length_add(t, *to, 1, win.low[i], to) &&
                    length_add(t, *to, 1, win.high[i], to) && length_add(t, *to, 1, -span, &win.count[i]) &&
                    win.count[i];
        if (!fits)
            return refuse(t, KL_ERR_SHAPE, "%s: axis %u of %s gives no elements with the window %" PRId64, op, 2 + i,
                          shape_text(&vx.shape, text, sizeof text), win.size[i]);
    }
    if (!(t = checked_begin(op)))
        return op_failed();
    struct conv c = {op, vx.shape.dim[0], groups, vx.shape.dim[1] / groups, vw.shape.dim[1]};
    if (blocks)
        return compose_end(t, add_bias(op, conv_blocks(&c, x, w, &vx.shape, win, win.count), b, c.filters * groups, n));
    kl_tensor zero = const_like(&vx, 0);
    for (uint32_t i = 0; i < n; i++) {
        x = pad_axis(op, x, 2 + i, win.padded[i], win.low[i], win.high[i], win.stride[i] - 1, zero);
        win.stride[i] = 1;
    }
    kl_tensor y = conv_product(&c, x, transposed_filters(&c, w, &win), &win);
    return compose_end(t, add_bias(op, y, b, c.filters * groups, n));
}

/* ---- pooling ---- */

typedef kl_tensor reduce_fn(kl_tensor a, int naxes, const int *axes, bool keepdims);

/* How many elements of a itself, not of its padding, each window holds, as [O...]. */
static kl_tensor window_counts(const char *op, const struct view *v, const struct window_lengths *w)
{
    kl_tensor count = const_like(v, 1), one = const_like(v, 1), zero = const_like(v, 0);
    const int last = -1;
    for (uint32_t i = 0; i < w->n; i++) {
        const struct shape scalar = {0};
        struct shape line = {.rank = 1, .dim = {v->shape.dim[v->shape.rank - w->n + i]}};
        kl_tensor inside = pad_axis(op, broadcast_to(op, one, &scalar, &line), 0, w->padded[i], w->low[i],
                                    w->high[i], 0, zero);
        inside = window_of(op, inside, 0, w->size[i], w->stride[i], w->dilation[i]);
        kl_tensor along = kl_sum(inside, 1, &last, false);
        for (uint32_t k = i + 1; k < w->n; k++)
            along = kl_unsqueeze(along, -1);
        count = kl_mul(count, along);
    }
    return count;
}

/* a as [rest, L...], with windows as [rest, K..., O...], so that adjacent elements stay adjacent. */
static kl_tensor window_pool(const char *op, kl_tensor a, const struct view *v, const struct window_lengths *w,
                      reduce_fn *reduce, kl_tensor value)
{
    struct thread *t = thread_self();
    char text[SHAPE_TEXT];
    struct shape s = {.rank = 1 + w->n, .dim = {1}}, out = v->shape;
    uint32_t lead = v->shape.rank - w->n;
    uint8_t perm[KL_MAX_RANK] = {0};
    int axes[MAX_COUNT];
    for (uint32_t i = 0; i < lead; i++)
        if (!length_times(t, s.dim[0], v->shape.dim[i], &s.dim[0]))
            return refuse(t, KL_ERR_SHAPE, "%s: the axes before the windows of %s are a product of more than two "
                          "symbols", op, shape_text(&v->shape, text, sizeof text));
    for (uint32_t i = 0; i < w->n; i++)
        s.dim[1 + i] = v->shape.dim[lead + i];
    a = reshape_to(op, a, &s);
    for (uint32_t i = 0; i < w->n; i++) /* all before the windows, so that no element is padded twice */
        a = pad_axis(op, a, 1 + i, w->padded[i], w->low[i], w->high[i], 0, value);
    for (uint32_t i = 0; i < w->n; i++) {
        a = window_of(op, a, 1 + i, w->size[i], w->stride[i], w->dilation[i]);
        out.dim[lead + i] = w->count[i];
        perm[1 + i] = (uint8_t)(1 + w->n + i);
        perm[1 + w->n + i] = (uint8_t)(1 + i);
        axes[i] = (int)(1 + i);
    }
    a = permute_to(op, a, 1 + 2 * w->n, perm);
    return reshape_to(op, reduce(a, (int)w->n, axes, false), &out);
}

/* Checks the arguments of a pooling over the last n axes and starts it; NULL: reported. */
static struct thread *pool_begin(const char *op, kl_tensor a, int n, const int64_t *window,
                                 const int64_t *stride, const int64_t *pad_low, const int64_t *pad_high,
                                 const int64_t *dilation, bool floats, struct view *v, struct window_lengths *w)
{
    struct thread *t = thread_self();
    char text[SHAPE_TEXT];
    if (!t || !describe(t, op, "the tensor", a, v))
        return NULL;
    if (n < 1 || n > MAX_COUNT || !window) {
        fail(t, KL_ERR_ARGUMENT, "%s: windows of %d axes; needs 1..%d", op, window ? n : 0, MAX_COUNT);
        return NULL;
    }
    if (n > (int)v->shape.rank) {
        fail(t, KL_ERR_SHAPE, "%s: no last %d axes in shape %s", op, n, shape_text(&v->shape, text, sizeof text));
        return NULL;
    }
    if (v->dtype == KL_BOOL || (floats && !dtype_is_float(v->dtype))) {
        fail(t, KL_ERR_TYPE, "%s: needs a %s dtype, got %s", op, floats ? "floating" : "number", dtype_name(v->dtype));
        return NULL;
    }
    if (!windows_of(t, op, (uint32_t)n, window, stride, pad_low, pad_high, dilation, w) ||
        !windows_fit(t, op, &v->shape, w))
        return NULL;
    return checked_begin(op);
}

#define POOL(name, reduce, neutral)                                                                        \
    kl_tensor kl_##name(kl_tensor a, int n, const int64_t *window, const int64_t *stride,                  \
                          const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation)        \
    {                                                                                                      \
        struct view v;                                                                                     \
        struct window_lengths w;                                                                           \
        struct thread *t = pool_begin(#name, a, n, window, stride, pad_low, pad_high, dilation, false, &v, \
                                      &w);                                                                 \
        if (!t) return op_failed();                                                                        \
        return compose_end(t, window_pool(#name, a, &v, &w, reduce, const_like(&v, neutral)));             \
    }

POOL(sum_pool, kl_sum, 0)
POOL(max_pool, kl_max, -INFINITY)
POOL(min_pool, kl_min, INFINITY)

kl_tensor kl_avg_pool(kl_tensor a, int n, const int64_t *window, const int64_t *stride,
                      const int64_t *pad_low, const int64_t *pad_high, const int64_t *dilation)
{
    static const char op[] = "avg_pool";
    struct view v;
    struct window_lengths w;
    struct thread *t = pool_begin(op, a, n, window, stride, pad_low, pad_high, dilation, true, &v, &w);
    if (!t)
        return op_failed();
    a = widen_by_policy(t, a, &v);
    kl_tensor sum = window_pool(op, a, &v, &w, kl_sum, const_like(&v, 0));
    double all = 1;
    bool padded = false;
    for (uint32_t i = 0; i < w.n; i++) {
        padded |= w.low[i] || w.high[i];
        all *= (double)w.size[i];
    }
    return compose_end(t, kl_div(sum, padded ? window_counts(op, &v, &w) : const_like(&v, all)));
}
