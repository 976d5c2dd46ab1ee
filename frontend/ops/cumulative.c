/* Scans along an axis.  The nodes scan forwards and include their own element; a reverse scan is a scan between two
 * flips, and an exclusive one is a scan shifted by one position. */
#include "frontend/frontend.h"
#include <math.h>

static kl_tensor cumulative_flip(const kl_site *site, const char *op, kl_tensor a, uint32_t axis)
{
    struct call c = {.site = site, .op = op, .proto = {.op = OP_flip, .attr.flip.axes = 1u << axis}, .in = {a}};
    return record(&c);
}

/* Elements shifted by one position along the axis, the scalar first. */
static kl_tensor cumulative_shift(const kl_site *site, const char *op, kl_tensor a, const struct view *v, uint32_t axis,
                         kl_tensor first)
{
    int64_t length = v->shape.dim[axis];
    if (length < 0) /* symbolic, and may be 0 */
        return slice_of(site, op, pad_of(site, op, a, first, axis, 1, 0, 0), axis, 0, length, 1);
    return length ? pad_of(site, op, slice_of(site, op, a, axis, 0, length - 1, 1), first, axis, 1, 0, 0) : a;
}

static kl_tensor cumulative_scan(const kl_site *site, const char *name, enum op op, kl_tensor a, kl_tensor b,
                                 uint32_t axis)
{
    struct call c = {.site = site, .op = name, .proto = {.op = (uint16_t)op, .attr.axis.axis = axis}, .in = {a, b}};
    return record(&c);
}

/* A scan of one tensor; `neutral` is the first element of an exclusive scan. */
static kl_tensor cumulative_axis(const kl_site *site, const char *name, enum op op, kl_tensor a, int axis,
                                 bool exclusive,
                            bool reverse, double neutral)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    if (!t || !describe(t, site, name, "the tensor", a, &v) || !axis_of(t, site, name, &v.shape, axis, &at))
        return op_failed();
    if (!(t = compose_begin(name)))
        return kl_none;
    kl_tensor y = cumulative_scan(site, name, op, reverse ? cumulative_flip(site, name, a, at) : a, kl_none, at);
    if (exclusive)
        y = cumulative_shift(site, name, y, &v, at, const_like(site, &v, neutral));
    return compose_end(t, reverse ? cumulative_flip(site, name, y, at) : y);
}

kl_tensor kl_cumsum_at(const kl_site *site, kl_tensor a, int axis, bool exclusive, bool reverse)
{
    return cumulative_axis(site, "cumsum", OP_cumsum, a, axis, exclusive, reverse, 0);
}

kl_tensor kl_cumprod_at(const kl_site *site, kl_tensor a, int axis, bool exclusive, bool reverse)
{
    return cumulative_axis(site, "cumprod", OP_cumprod, a, axis, exclusive, reverse, 1);
}

kl_tensor kl_cummax_at(const kl_site *site, kl_tensor a, int axis, bool reverse)
{
    return cumulative_axis(site, "cummax", OP_cummax, a, axis, false, reverse, 0);
}

kl_tensor kl_cummin_at(const kl_site *site, kl_tensor a, int axis, bool reverse)
{
    return cumulative_axis(site, "cummin", OP_cummin, a, axis, false, reverse, 0);
}

kl_tensor kl_recurrence_at(const kl_site *site, kl_tensor a, kl_tensor b, int axis, bool reverse)
{
    struct thread *t = thread_self();
    struct view va, vb;
    uint32_t at;
    char x[SHAPE_TEXT], y[SHAPE_TEXT];
    if (!t || !describe(t, site, "recurrence", "operand 1", a, &va) ||
        !describe(t, site, "recurrence", "operand 2", b, &vb) || !axis_of(t, site, "recurrence", &vb.shape, axis, &at))
        return op_failed();
    if (va.dtype != vb.dtype)
        return refuse(t, site, KL_ERR_TYPE, "recurrence: dtypes %s and %s differ", dtype_name(va.dtype),
                      dtype_name(vb.dtype));
    if (!shape_equal(&va.shape, &vb.shape))
        return refuse(t, site, KL_ERR_SHAPE, "recurrence: shapes %s and %s differ", shape_text(&va.shape, x, sizeof x),
                      shape_text(&vb.shape, y, sizeof y));
    if (!(t = compose_begin("recurrence")))
        return kl_none;
    if (reverse) {
        a = cumulative_flip(site, "recurrence", a, at);
        b = cumulative_flip(site, "recurrence", b, at);
    }
    kl_tensor h = cumulative_scan(site, "recurrence", OP_recurrence, a, b, at);
    return compose_end(t, reverse ? cumulative_flip(site, "recurrence", h, at) : h);
}

/* With m the running maximum, the sum of e^(x - m) is a recurrence: a new m scales the previous sum by e^(old m - m),
 * so nothing overflows.  An infinite m counts as 0 and has no gradient. */
kl_tensor kl_logcumsumexp_at(const kl_site *site, kl_tensor a, int axis)
{
    static const char op[] = "logcumsumexp";
    struct view v;
    struct thread *t = wide_floats_begin(site, op, &a, &v);
    uint32_t at;
    if (!t)
        return op_failed();
    if (!axis_of(t, site, op, &v.shape, axis, &at)) {
        compose_end(t, kl_none);
        return op_failed();
    }
    kl_tensor zero = const_like(site, &v, 0), one = const_like(site, &v, 1), below = const_like(site, &v, -INFINITY);
    kl_tensor max = kl_detach_at(site, cumulative_scan(site, op, OP_cummax, a, kl_none, at));
    kl_tensor level = kl_where_at(site, kl_is_finite_at(site, max), max, zero);
    kl_tensor before = cumulative_shift(site, op, level, &v, at, zero), none = cumulative_shift(site, op, max, &v, at,
                                                                                                below);
    kl_tensor scale = kl_where_at(site, kl_eq_at(site, none, below), zero,
                                  kl_exp_at(site, kl_sub_at(site, before, level)));
    kl_tensor sum = cumulative_scan(site, op, OP_recurrence, scale, kl_exp_at(site, kl_sub_at(site, a, level)), at);
    kl_tensor empty = kl_eq_at(site, sum, zero);
    kl_tensor y = kl_add_at(site, level, kl_log_at(site, kl_where_at(site, empty, one, sum)));
    return compose_end(t, kl_where_at(site, empty, below, y));
}
