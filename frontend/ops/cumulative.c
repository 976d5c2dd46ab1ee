/* Scans along an axis.  The nodes scan forwards and include their own element; a reverse scan is a scan between two
 * flips, and an exclusive one is a scan shifted by one position. */
#include "frontend/frontend.h"
#include <math.h>

static kl_tensor cumulative_flip(const char *op, kl_tensor a, uint32_t axis)
{
    struct call c = {.op = op, .proto = {.op = OP_flip, .attr.flip.axes = 1u << axis}, .in = {a}};
    return record(&c);
}

/* Elements shifted by one position along the axis, the scalar first. */
static kl_tensor cumulative_shift(const char *op, kl_tensor a, const struct view *v, uint32_t axis, kl_tensor first)
{
    int64_t length = v->shape.dim[axis];
    if (length < 0) /* symbolic, and may be 0 */
        return slice_of(op, pad_of(op, a, first, axis, 1, 0, 0), axis, 0, length, 1);
    return length ? pad_of(op, slice_of(op, a, axis, 0, length - 1, 1), first, axis, 1, 0, 0) : a;
}

static kl_tensor cumulative_scan(const char *name, enum op op, kl_tensor a, kl_tensor b, uint32_t axis)
{
    struct call c = {.op = name, .proto = {.op = (uint16_t)op, .attr.axis.axis = axis}, .in = {a, b}};
    return record(&c);
}

/* A scan of one tensor; `neutral` is the first element of an exclusive scan. */
static kl_tensor cumulative_axis(const char *name, enum op op, kl_tensor a, int axis, bool exclusive,
                            bool reverse, double neutral)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    if (!t || !describe(t, name, "the tensor", a, &v) || !axis_of(t, name, &v.shape, axis, &at))
        return op_failed();
    if (!(t = compose_begin(name)))
        return kl_none;
    kl_tensor y = cumulative_scan(name, op, reverse ? cumulative_flip(name, a, at) : a, kl_none, at);
    if (exclusive)
        y = cumulative_shift(name, y, &v, at, const_like(&v, neutral));
    return compose_end(t, reverse ? cumulative_flip(name, y, at) : y);
}

kl_tensor kl_cumsum(kl_tensor a, int axis, bool exclusive, bool reverse)
{
    return cumulative_axis("cumsum", OP_cumsum, a, axis, exclusive, reverse, 0);
}

kl_tensor kl_cumprod(kl_tensor a, int axis, bool exclusive, bool reverse)
{
    return cumulative_axis("cumprod", OP_cumprod, a, axis, exclusive, reverse, 1);
}

kl_tensor kl_cummax(kl_tensor a, int axis, bool reverse)
{
    return cumulative_axis("cummax", OP_cummax, a, axis, false, reverse, 0);
}

kl_tensor kl_cummin(kl_tensor a, int axis, bool reverse)
{
    return cumulative_axis("cummin", OP_cummin, a, axis, false, reverse, 0);
}

kl_tensor kl_recurrence(kl_tensor a, kl_tensor b, int axis, bool reverse)
{
    struct thread *t = thread_self();
    struct view va, vb;
    uint32_t at;
    char x[SHAPE_TEXT], y[SHAPE_TEXT];
    if (!t || !describe(t, "recurrence", "operand 1", a, &va) ||
        !describe(t, "recurrence", "operand 2", b, &vb) || !axis_of(t, "recurrence", &vb.shape, axis, &at))
        return op_failed();
    if (va.dtype != vb.dtype)
        return refuse(t, KL_ERR_TYPE, "recurrence: dtypes %s and %s differ", dtype_name(va.dtype),
                      dtype_name(vb.dtype));
    if (!shape_equal(&va.shape, &vb.shape))
        return refuse(t, KL_ERR_SHAPE, "recurrence: shapes %s and %s differ", shape_text(&va.shape, x, sizeof x),
                      shape_text(&vb.shape, y, sizeof y));
    if (!(t = compose_begin("recurrence")))
        return kl_none;
    if (reverse) {
        a = cumulative_flip("recurrence", a, at);
        b = cumulative_flip("recurrence", b, at);
    }
    kl_tensor h = cumulative_scan("recurrence", OP_recurrence, a, b, at);
    return compose_end(t, reverse ? cumulative_flip("recurrence", h, at) : h);
}

/* With m the running maximum, the sum of e^(x - m) is a recurrence: a new m scales the previous sum by e^(old m - m),
 * so nothing overflows.  An infinite m counts as 0 and has no gradient. */
kl_tensor kl_logcumsumexp(kl_tensor a, int axis)
{
    static const char op[] = "logcumsumexp";
    struct view v;
    struct thread *t = wide_floats_begin(op, &a, &v);
    uint32_t at;
    if (!t)
        return op_failed();
    if (!axis_of(t, op, &v.shape, axis, &at)) {
        compose_end(t, kl_none);
        return op_failed();
    }
    kl_tensor zero = const_like(&v, 0), one = const_like(&v, 1), below = const_like(&v, -INFINITY);
    kl_tensor max = kl_detach(cumulative_scan(op, OP_cummax, a, kl_none, at));
    kl_tensor level = kl_where(kl_is_finite(max), max, zero);
    kl_tensor before = cumulative_shift(op, level, &v, at, zero), none = cumulative_shift(op, max, &v, at, below);
    kl_tensor scale = kl_where(kl_eq(none, below), zero, kl_exp(kl_sub(before, level)));
    kl_tensor sum = cumulative_scan(op, OP_recurrence, scale, kl_exp(kl_sub(a, level)), at);
    kl_tensor empty = kl_eq(sum, zero);
    kl_tensor y = kl_add(level, kl_log(kl_where(empty, one, sum)));
    return compose_end(t, kl_where(empty, below, y));
}
