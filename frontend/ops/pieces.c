/* Ops that split and join tensors: slice, window, flip, pad, concat.  A node works on one axis; the functions here take
 * all axes and make chains of nodes. */
#include "frontend/frontend.h"
#include <inttypes.h>

/* Start, stop and step with numpy's meaning, positive steps only: computes the start and the number of elements. */
static int64_t slice_range(int64_t len, int64_t *start, int64_t stop, int64_t step)
{
    int64_t first = *start < 0 ? *start + len : *start, end = stop < 0 ? stop + len : stop;
    first = first < 0 ? 0 : first > len ? len : first;
    end = end < first ? first : end > len ? len : end;
    *start = first;
    return end == first ? 0 : (end - first - 1) / step + 1;
}

/* The tensor itself under a new handle: the result if no axis changes. */
static kl_tensor pieces_same(const char *op, kl_tensor a, const struct shape *s)
{
    return reshape_to(op, a, s);
}

kl_tensor slice_of(const char *op, kl_tensor a, uint32_t axis, int64_t start, int64_t count, int64_t step)
{
    struct call c = {.op = op, .in = {a}, .proto.op = OP_slice,
                     .proto.attr.slice = {.axis = axis, .start = start, .count = count, .step = step}};
    return record(&c);
}

kl_tensor pad_of(const char *op, kl_tensor a, kl_tensor value, uint32_t axis, int64_t low,
                 int64_t high, int64_t interior)
{
    struct call c = {.op = op, .in = {a, value}, .proto.op = OP_pad,
                     .proto.attr.pad = {.axis = axis, .low = low, .high = high, .interior = interior}};
    return record(&c);
}

kl_tensor window_of(const char *op, kl_tensor a, uint32_t axis, int64_t size, int64_t stride, int64_t dilation)
{
    struct call c = {.op = op, .in = {a}, .proto.op = OP_window,
                     .proto.attr.window = {.axis = axis, .size = size, .stride = stride, .dilation = dilation}};
    return record(&c);
}

/* Which part of an axis a slice takes. */
struct slice_range { int64_t start, count, step; };

/* A bound of a slice in numpy's meaning, as a length that is at most that of the axis.  false: which one it is depends
 * on the symbols. */
static bool slice_bound(struct graph *g, int64_t length, int64_t bound, int64_t *out)
{
    if (bound < 0 && !dim_exists(g, bound)) { /* from the end */
        *out = 0;
        return dims_sum(g, 1, &(struct scaled){length, 1}, bound, out) ||
               dims_never_negative(g, 1, &(struct scaled){length, -1}, -bound);
    }
    if (bound == INT64_MAX || dim_at_most(g, length, bound)) {
        *out = length;
        return true;
    }
    *out = bound;
    return dim_at_most(g, bound, length);
}

/* The part of an axis where it or a bound is symbolic; false: it depends on the symbols. */
static bool symbolic_part(struct graph *g, int64_t length, int64_t start, int64_t stop, int64_t step,
                          struct slice_range *p)
{
    struct shape bounds = {.rank = 2, .dim = {start, stop}};
    struct err e = {.code = KL_OK};
    *p = (struct slice_range){.step = step};
    if (start == INT64_MIN || stop == INT64_MIN || !symbolic_lengths(g, &bounds, false, &e) ||
        !slice_bound(g, length, bounds.dim[0], &p->start) || !slice_bound(g, length, bounds.dim[1], &stop))
        return false;
    if (dim_at_most(g, stop, p->start))
        return true;
    return dims_sum(g, 2, (struct scaled[]){{stop, 1}, {p->start, -1}}, step - 1, &p->count) &&
           dim_divide(g, p->count, step, &p->count);
}

/* Is the bound of an axis a symbolic length, not a number that counts from the end?  Such a number is at least
 * -length; what is below is the start. */
static bool is_symbolic_bound(const struct graph *g, int64_t length, int64_t bound)
{
    int64_t low, high;
    return g && g->symbols && bound < 0 && (length < 0 || bound < -length) && kl_length_range(bound, &low, &high);
}

/* What slice takes of axis i; false: reported. */
static bool slice_part(struct thread *t, const struct view *v, uint32_t i, const int64_t *start,
                       const int64_t *stop, const int64_t *step, struct slice_range *p)
{
    struct trace *tr = thread_trace(t);
    struct graph *g = tr ? tr->r.g : NULL;
    int64_t length = v->shape.dim[i], end = stop ? stop[i] : length < 0 ? INT64_MAX : length;
    *p = (struct slice_range){.start = start ? start[i] : 0, .step = step ? step[i] : 1};
    if (length >= 0 && !is_symbolic_bound(g, length, p->start) && !is_symbolic_bound(g, length, end)) {
        p->count = slice_range(length, &p->start, end, p->step);
        p->start = p->count ? p->start : 0;
        p->step = p->count > 1 ? p->step : 1;
        return true;
    }
    char text[SHAPE_TEXT], bounds[BOUNDS_TEXT];
    const struct shape all = {.rank = 3, .dim = {length, p->start, end}};
    if (g && symbolic_part(g, length, p->start, end, p->step, p))
        return true;
    fail(t, KL_ERR_SHAPE, "slice: which elements of axis %u of %s these are depends on the symbols%s", i,
         shape_text(&v->shape, text, sizeof text), g ? bounds_text(g, &all, bounds, sizeof bounds) : "");
    return false;
}

kl_tensor kl_slice(kl_tensor a, const int64_t *start, const int64_t *stop, const int64_t *step)
{
    struct thread *t = thread_self();
    struct view v;
    struct slice_range part[KL_MAX_RANK];
    if (!t || !describe(t, "slice", "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    for (uint32_t i = 0; i < v.shape.rank; i++) {
        if (step && step[i] < 1)
            return refuse(t, KL_ERR_ARGUMENT,
                          "slice: step %" PRId64 " of axis %u is not positive; kl_flip reverses", step[i], i);
        if (!slice_part(t, &v, i, start, stop, step, &part[i]))
            return poison(t);
    }
    if (!(t = compose_begin("slice")))
        return kl_none;
    kl_tensor r = pieces_same("slice", a, &v.shape);
    for (uint32_t i = 0; i < v.shape.rank; i++)
        if (part[i].count != v.shape.dim[i])
            r = slice_of("slice", r, i, part[i].start, part[i].count, part[i].step);
    return compose_end(t, r);
}

kl_tensor kl_narrow(kl_tensor a, int axis, int64_t start, int64_t count)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    if (!t || !describe(t, "narrow", "the tensor", a, &v) || !axis_of(t, "narrow", &v.shape, axis, &at))
        return t ? poison(t) : kl_none;
    struct shape part = {.rank = 2, .dim = {start, count}};
    struct trace *tr = thread_trace(t);
    struct err e = {.code = KL_OK};
    if (tr && (start < 0 || count < 0) && !symbolic_lengths(tr->r.g, &part, false, &e))
        return refuse(t, e.code, "narrow: %s", e.msg);
    return slice_of("narrow", a, at, part.dim[0], part.dim[1], 1);
}

kl_tensor kl_window(kl_tensor a, int axis, int64_t size, int64_t stride, int64_t dilation)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    if (!t || !describe(t, "window", "the tensor", a, &v) || !axis_of(t, "window", &v.shape, axis, &at))
        return t ? poison(t) : kl_none;
    return window_of("window", a, at, size, stride, dilation);
}

kl_tensor kl_flip(kl_tensor a, int naxes, const int *axes)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t mask = 0;
    if (!t || !describe(t, "flip", "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    if (!axes)
        mask = (1u << v.shape.rank) - 1;
    for (int i = 0; axes && i < naxes; i++) {
        uint32_t at;
        if (!axis_of(t, "flip", &v.shape, axes[i], &at))
            return poison(t);
        if (mask >> at & 1)
            return refuse(t, KL_ERR_ARGUMENT, "flip: axis %d is named twice", axes[i]);
        mask |= 1u << at;
    }
    struct call c = {.op = "flip", .proto = {.op = OP_flip, .attr.flip.axes = mask}, .in = {a}};
    return record(&c);
}

kl_tensor kl_pad(kl_tensor a, const int64_t *low, const int64_t *high, double value)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !describe(t, "pad", "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    if (!(t = compose_begin("pad")))
        return kl_none;
    kl_tensor r = pieces_same("pad", a, &v.shape), number =
        kl_scalar(v.device, (kl_dtype)v.dtype, value);
    for (uint32_t i = 0; i < v.shape.rank; i++) {
        int64_t before = low ? low[i] : 0, behind = high ? high[i] : 0;
        if (before || behind)
            r = pad_of("pad", r, number, i, before, behind, 0);
    }
    return compose_end(t, r);
}

/* As n_concat: each level of the tree uses as many operands as a node can have. */
static kl_tensor concat_tree(int64_t n, const kl_tensor *parts, uint32_t axis)
{
    if (n == 1)
        return parts[0];
    int64_t part = 1;
    while (part * MAX_OPERANDS < n)
        part *= MAX_OPERANDS;
    struct call c = {.op = "concat", .proto = {.op = OP_concat, .attr.axis.axis = axis}};
    for (int64_t i = 0; i < n; i += part)
        c.in[c.proto.nin++] = concat_tree(n - i < part ? n - i : part, parts + i, axis);
    return record(&c);
}

kl_tensor kl_concat(int64_t n, const kl_tensor *parts, int axis)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    if (t && !counts_valid(t, "concat", COUNTS({"n", n})))
        return op_failed();
    if (t && (n < 1 || !parts))
        return refuse(t, KL_ERR_ARGUMENT, "concat: no tensors");
    if (!t || !describe(t, "concat", "the first tensor", parts[0], &v) ||
        !axis_of(t, "concat", &v.shape, axis, &at))
        return t ? poison(t) : kl_none;
    if (n == 1)
        return pieces_same("concat", parts[0], &v.shape);
    if (!(t = compose_begin("concat")))
        return kl_none;
    return compose_end(t, concat_tree(n, parts, at));
}

kl_tensor kl_bitcast(kl_tensor a, kl_dtype dtype)
{
    struct thread *t = thread_self();
    if (t && (unsigned)dtype >= KL_DTYPE_COUNT)
        return refuse(t, KL_ERR_TYPE, "bitcast: dtype %u does not exist", (unsigned)dtype);
    struct call c = {.op = "bitcast", .in = {a}, .proto = {.op = OP_bitcast, .dtype = (uint8_t)dtype}};
    return record(&c);
}
