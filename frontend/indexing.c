/* Ops whose elements are chosen by numbers that a run computes: windows at a computed start. */
#include "frontend.h"

/* `count` elements of one axis from a computed start on; kl_none: from 0. */
static kl_tensor window(const kl_site *site, const char *op, kl_tensor a, uint32_t axis, kl_tensor start, int64_t count)
{
    struct call c = {.site = site, .op = op, .in = {a, start}};
    c.proto.op = start.id ? OP_dynamic_slice : OP_slice;
    c.proto.attr.slice.axis = axis;
    c.proto.attr.slice.count = count;
    c.proto.attr.slice.step = !start.id;
    return record(&c);
}

kl_tensor kl_dynamic_slice_at(const kl_site *site, kl_tensor a, const kl_tensor *start, const int64_t *count)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !describe(t, site, "dynamic_slice", "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    if (v.shape.rank && (!start || !count))
        return refuse(t, site, KL_ERR_ARGUMENT, "dynamic_slice: no %s", start ? "counts" : "starts");
    if (!(t = compose_begin(NULL)))
        return kl_none;
    kl_tensor r = reshape_to(site, "dynamic_slice", a, &v.shape);
    for (uint32_t i = 0; i < v.shape.rank; i++)
        if (count[i] != v.shape.dim[i])
            r = window(site, "dynamic_slice", r, i, start[i], count[i]);
    return compose_end(t, r);
}

/* a with `update` in its place along the axes from `axis` on: the window of the first axis in which the two differ,
 * updated along the others, put back. */
static kl_tensor update_from(const kl_site *site, uint32_t axis, kl_tensor a, const struct shape *s, kl_tensor update,
                             const struct shape *u, const kl_tensor *start, kl_tensor zero)
{
    while (axis < s->rank && s->dim[axis] == u->dim[axis])
        axis++;
    if (axis == s->rank)
        return update;
    struct shape part = *s;
    part.dim[axis] = u->dim[axis];
    bool last = shape_equal(&part, u);
    kl_tensor inner = last ? update
                           : update_from(site, axis + 1, window(site, "dynamic_update", a, axis, start[axis], u->dim[axis]),
                                         &part, update, u, start, zero);
    struct call c = {.site = site, .op = "dynamic_update", .proto = {.op = OP_dynamic_update, .attr.axis.axis = axis},
                     .in = {a, inner, start[axis].id ? start[axis] : zero}};
    return record(&c);
}

kl_tensor kl_dynamic_update_at(const kl_site *site, kl_tensor a, kl_tensor update, const kl_tensor *start)
{
    struct thread *t = thread_self();
    struct view v, u;
    char ta[SHAPE_TEXT], tu[SHAPE_TEXT];
    if (!t || !describe(t, site, "dynamic_update", "the tensor", a, &v) ||
        !describe(t, site, "dynamic_update", "the update", update, &u))
        return t ? poison(t) : kl_none;
    bool fits = v.shape.rank == u.shape.rank;
    for (uint32_t i = 0; fits && i < v.shape.rank; i++)
        fits = u.shape.dim[i] <= v.shape.dim[i];
    if (!fits)
        return refuse(t, site, KL_ERR_SHAPE, "dynamic_update: %s is no window of %s",
                      shape_text(&u.shape, tu, sizeof tu), shape_text(&v.shape, ta, sizeof ta));
    if (v.dtype != u.dtype)
        return refuse(t, site, KL_ERR_TYPE, "dynamic_update: dtypes %s and %s differ", dtype_name(v.dtype),
                      dtype_name(u.dtype));
    if (v.shape.rank && !start)
        return refuse(t, site, KL_ERR_ARGUMENT, "dynamic_update: no starts");
    if (!(t = compose_begin(NULL)))
        return kl_none;
    kl_tensor zero = kl_const_at(site, v.device, KL_I32, 0);
    kl_tensor whole = reshape_to(site, "dynamic_update", update, &u.shape);
    return compose_end(t, update_from(site, 0, a, &v.shape, whole, &u.shape, start, zero));
}
