/* Ops whose elements are selected by numbers known only at run time: rows by index, windows at a computed start,
 * sorting. */
#include "frontend/frontend.h"
#include <inttypes.h>

/* `count` elements of one axis from a computed start on; kl_none: from 0. */
static kl_tensor slice_from_start(const char *op, kl_tensor a, uint32_t axis, kl_tensor start, int64_t count)
{
    if (!start.id)
        return slice_of(op, a, axis, 0, count, 1);
    struct call c = {.op = op, .proto.op = OP_dynamic_slice, .in = {a, start}};
    c.proto.attr.slice.axis = axis;
    c.proto.attr.slice.count = count;
    return record(&c);
}

kl_tensor kl_dynamic_slice(kl_tensor a, const kl_tensor *start, const int64_t *count)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !describe(t, "dynamic_slice", "the tensor", a, &v))
        return t ? poison(t) : kl_none;
    if (v.shape.rank && (!start || !count))
        return refuse(t, KL_ERR_ARGUMENT, "dynamic_slice: no %s", start ? "counts" : "starts");
    if (!(t = compose_begin("dynamic_slice")))
        return kl_none;
    kl_tensor r = reshape_to("dynamic_slice", a, &v.shape);
    for (uint32_t i = 0; i < v.shape.rank; i++)
        if (count[i] != v.shape.dim[i])
            r = slice_from_start("dynamic_slice", r, i, start[i], count[i]);
    return compose_end(t, r);
}

/* a with `update` written along the axes from `axis` on: takes the window on the first axis in which the two differ,
 * updates it along the others, and writes it back. */
static kl_tensor update_from(uint32_t axis, kl_tensor a, const struct shape *s, kl_tensor update,
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
                           : update_from(axis + 1, slice_from_start("dynamic_update", a, axis, start[axis],
                                                                u->dim[axis]),
                                         &part, update, u, start, zero);
    struct call c = {.op = "dynamic_update", .proto = {.op = OP_dynamic_update, .attr.axis.axis = axis},
                     .in = {a, inner, start[axis].id ? start[axis] : zero}};
    return record(&c);
}

kl_tensor kl_dynamic_update(kl_tensor a, kl_tensor update, const kl_tensor *start)
{
    struct thread *t = thread_self();
    struct view v, u;
    char ta[SHAPE_TEXT], tu[SHAPE_TEXT];
    if (!t || !describe(t, "dynamic_update", "the tensor", a, &v) ||
        !describe(t, "dynamic_update", "the update", update, &u))
        return t ? poison(t) : kl_none;
    bool fits = v.shape.rank == u.shape.rank;
    for (uint32_t i = 0; fits && i < v.shape.rank; i++)
        fits = u.shape.dim[i] <= v.shape.dim[i];
    if (!fits)
        return refuse(t, KL_ERR_SHAPE, "dynamic_update: %s is no window of %s",
                      shape_text(&u.shape, tu, sizeof tu), shape_text(&v.shape, ta, sizeof ta));
    if (v.dtype != u.dtype)
        return refuse(t, KL_ERR_TYPE, "dynamic_update: dtypes %s and %s differ", dtype_name(v.dtype),
                      dtype_name(u.dtype));
    if (v.shape.rank && !start)
        return refuse(t, KL_ERR_ARGUMENT, "dynamic_update: no starts");
    if (!(t = compose_begin("dynamic_update")))
        return kl_none;
    kl_tensor zero = kl_const(v.device, KL_I32, 0);
    kl_tensor whole = reshape_to("dynamic_update", update, &u.shape);
    return compose_end(t, update_from(0, a, &v.shape, whole, &u.shape, start, zero));
}

/* ---- combining rows by index ---- */

/* The shape of a with one axis replaced by those of an index; false: too many axes. */
static bool indexed_shape(const struct shape *a, uint32_t axis, const struct shape *index, struct shape *out)
{
    *out = (struct shape){0};
    if (a->rank + index->rank - 1 > KL_MAX_RANK)
        return false;
    for (uint32_t i = 0; i < a->rank; i++) {
        if (i != axis)
            out->dim[out->rank++] = a->dim[i];
        for (uint32_t j = 0; i == axis && j < index->rank; j++)
            out->dim[out->rank++] = index->dim[j];
    }
    return true;
}

/* One axis of all elements; what is no length stays for the op to refuse. */
static struct shape flattened_shape(struct thread *t, const struct shape *s)
{
    const struct trace *tr = thread_trace(t);
    struct shape flat = shape_make(1, (int64_t[]){shape_is_symbolic(s) ? INT64_MIN : shape_count(s)});
    if (tr && shape_is_symbolic(s))
        shape_rest(tr->r.g, s, &(struct shape){.rank = 0}, &flat.dim[0]);
    return flat;
}

kl_tensor kl_take(kl_tensor a, int axis, kl_tensor index)
{
    struct thread *t = thread_self();
    struct view v, x;
    uint32_t at;
    if (!t || !describe(t, "take", "the tensor", a, &v) ||
        !describe(t, "take", "the index", index, &x) || !axis_of(t, "take", &v.shape, axis, &at))
        return t ? poison(t) : kl_none;
    struct shape out, flat = flattened_shape(t, &x.shape);
    if (!indexed_shape(&v.shape, at, &x.shape, &out))
        return refuse(t, KL_ERR_SHAPE, "gather: the result has more than %d axes", KL_MAX_RANK);
    if (!(t = compose_begin("take")))
        return kl_none;
    struct call c = {.op = "take", .proto = {.op = OP_gather, .attr.axis.axis = at},
                     .in = {a, reshape_to("take", index, &flat)}};
    return compose_end(t, reshape_to("take", record(&c), &out));
}

static kl_tensor scatter_axis(const char *op, kl_tensor a, uint32_t axis, kl_tensor index,
                         kl_tensor update, enum scatter_kind kind)
{
    struct call c = {.op = op, .in = {a, index, update}, .proto.op = OP_scatter,
                     .proto.attr.scatter = {.axis = axis, .kind = kind}};
    return record(&c);
}

static kl_tensor index_into(const char *op, kl_tensor a, int axis, kl_tensor index,
                            kl_tensor update, enum scatter_kind kind)
{
    struct thread *t = thread_self();
    struct view v, x, u;
    uint32_t at;
    char text[SHAPE_TEXT], want[SHAPE_TEXT];
    if (!t || !describe(t, op, "the tensor", a, &v) || !describe(t, op, "the index", index, &x) ||
        !describe(t, op, "the update", update, &u) || !axis_of(t, op, &v.shape, axis, &at))
        return t ? poison(t) : kl_none;
    struct shape rows, flat = flattened_shape(t, &x.shape), brought = v.shape;
    brought.dim[at] = flat.dim[0];
    if (!indexed_shape(&v.shape, at, &x.shape, &rows))
        return refuse(t, KL_ERR_SHAPE, "%s: the update would have more than %d axes", op, KL_MAX_RANK);
    if (!shape_equal(&rows, &u.shape))
        return refuse(t, KL_ERR_SHAPE, "%s: the update must be %s, got %s", op,
                      shape_text(&rows, want, sizeof want), shape_text(&u.shape, text, sizeof text));
    if (!(t = compose_begin(op)))
        return kl_none;
    return compose_end(t, scatter_axis(op, a, at, reshape_to(op, index, &flat),
                                  reshape_to(op, update, &brought), kind));
}

kl_tensor kl_index_add(kl_tensor a, int axis, kl_tensor index, kl_tensor update)
{
    return index_into("index_add", a, axis, index, update, SCATTER_ADD);
}

kl_tensor kl_index_max(kl_tensor a, int axis, kl_tensor index, kl_tensor update)
{
    return index_into("index_max", a, axis, index, update, SCATTER_MAX);
}

kl_tensor kl_index_min(kl_tensor a, int axis, kl_tensor index, kl_tensor update)
{
    return index_into("index_min", a, axis, index, update, SCATTER_MIN);
}

kl_tensor kl_index_copy(kl_tensor a, int axis, kl_tensor index, kl_tensor update)
{
    return index_into("index_copy", a, axis, index, update, SCATTER_SET);
}

/* ---- elements by an index for each element ---- */

kl_tensor held_index(kl_tensor index, const struct view *x, int64_t length, int64_t less)
{
    struct view wide = {.dtype = x->dtype == KL_U64 ? KL_U64 : KL_I64, .device = x->device,
                        .shape = {.rank = 1, .dim = {length}}};
    kl_tensor last = length < 0 ? count_like(thread_self(), "index", &wide, 1, less)
                                : const_like(&wide, (double)(length - less));
    kl_tensor i = x->dtype == wide.dtype ? index : kl_cast(index, (kl_dtype)wide.dtype);
    i = kl_minimum(i, last);
    if (wide.dtype == KL_U64)
        return kl_cast(i, KL_I64);
    return kl_maximum(i, const_like(&wide, 0));
}

/* Each element's number in a row-major tensor of shape s: its own coordinates, with the index in place of the one along
 * the axis.  In i32 if that suffices.  [n] */
static kl_tensor flat_indices(const char *op, kl_tensor index, const struct view *x,
                         const struct shape *s, uint32_t axis)
{
    kl_dtype dtype = shape_is_symbolic(s) || shape_count(s) > INT32_MAX ? KL_I64 : KL_I32;
    struct shape flat = flattened_shape(thread_self(), &x->shape);
    int64_t stride[KL_MAX_RANK], rest = 1;
    for (uint32_t d = s->rank; d-- > 0; rest = kl_length_mul(rest, s->dim[d]))
        stride[d] = rest;
    kl_tensor sum = held_index(index, x, s->dim[axis], 1);
    if (dtype == KL_I32)
        sum = kl_cast(sum, KL_I32);
    sum = kl_mul(sum, kl_length_scalar(x->device, dtype, stride[axis]));
    for (uint32_t d = 0; d < s->rank; d++)
        if (d != axis && s->dim[d] != 1) {
            kl_tensor own = kl_iota(x->device, dtype, (int)x->shape.rank, x->shape.dim, (int)d);
            sum = kl_add(sum, kl_mul(own, kl_length_scalar(x->device, dtype, stride[d])));
        }
    return reshape_to(op, sum, &flat);
}

/* Checks an index of as many axes as a, equal to it in all but one; false: reported. */
static bool along_axis(struct thread *t, const char *op, const struct view *v, const struct view *x,
                       int axis, uint32_t *at)
{
    char ta[SHAPE_TEXT], tx[SHAPE_TEXT];
    if (!axis_of(t, op, &v->shape, axis, at))
        return false;
    shape_text(&v->shape, ta, sizeof ta);
    if (dtype_is_float(x->dtype) || x->dtype == KL_BOOL) {
        fail(t, KL_ERR_TYPE, "%s: the index must be integers, got %s", op, dtype_name(x->dtype));
        return false;
    }
    struct shape like = x->shape;
    if (like.rank == v->shape.rank)
        like.dim[*at] = v->shape.dim[*at];
    if (!shape_equal(&like, &v->shape)) {
        fail(t, KL_ERR_SHAPE, "%s: index %s differs from %s in more than axis %u", op,
             shape_text(&x->shape, tx, sizeof tx), ta, *at);
        return false;
    }
    if (v->shape.dim[*at] == 0 && shape_count(&x->shape)) {
        fail(t, KL_ERR_SHAPE, "%s: axis %u of %s has no elements", op, *at, ta);
        return false;
    }
    return true;
}

kl_tensor kl_take_along_axis(kl_tensor a, int axis, kl_tensor index)
{
    const char *op = "take_along_axis";
    struct thread *t = thread_self();
    struct view v, x;
    uint32_t at;
    if (!t || !describe(t, op, "the tensor", a, &v) || !describe(t, op, "the index", index, &x) ||
        !along_axis(t, op, &v, &x, axis, &at))
        return t ? poison(t) : kl_none;
    struct shape flat = flattened_shape(t, &v.shape);
    if (!(t = compose_begin(op)))
        return kl_none;
    kl_tensor n = flat_indices(op, index, &x, &v.shape, at);
    return compose_end(t, reshape_to(op, kl_take(reshape_to(op, a, &flat), 0, n), &x.shape));
}

static kl_tensor into_along_axis(const char *op, kl_tensor a, int axis, kl_tensor index,
                                 kl_tensor update, enum scatter_kind kind)
{
    struct thread *t = thread_self();
    struct view v, x, u;
    uint32_t at;
    char ti[SHAPE_TEXT], tu[SHAPE_TEXT];
    if (!t || !describe(t, op, "the tensor", a, &v) || !describe(t, op, "the index", index, &x) ||
        !describe(t, op, "the update", update, &u) || !along_axis(t, op, &v, &x, axis, &at))
        return t ? poison(t) : kl_none;
    if (!shape_equal(&x.shape, &u.shape))
        return refuse(t, KL_ERR_SHAPE, "%s: index %s and update %s differ", op,
                      shape_text(&x.shape, ti, sizeof ti), shape_text(&u.shape, tu, sizeof tu));
    struct shape flat = flattened_shape(t, &v.shape), flat_update = flattened_shape(t, &u.shape);
    if (!(t = compose_begin(op)))
        return kl_none;
    kl_tensor r = scatter_axis(op, reshape_to(op, a, &flat), 0, flat_indices(op, index, &x, &v.shape, at),
                          reshape_to(op, update, &flat_update), kind);
    return compose_end(t, reshape_to(op, r, &v.shape));
}

kl_tensor kl_add_along_axis(kl_tensor a, int axis, kl_tensor index, kl_tensor update)
{
    return into_along_axis("add_along_axis", a, axis, index, update, SCATTER_ADD);
}

kl_tensor kl_put_along_axis(kl_tensor a, int axis, kl_tensor index, kl_tensor update)
{
    return into_along_axis("put_along_axis", a, axis, index, update, SCATTER_SET);
}

/* ---- embedding ---- */

kl_tensor kl_embedding(kl_tensor table, kl_tensor ids)
{
    struct thread *t = thread_self();
    struct view v;
    char text[SHAPE_TEXT];
    if (!t || !describe(t, "embedding", "the table", table, &v))
        return t ? poison(t) : kl_none;
    if (v.shape.rank != 2)
        return refuse(t, KL_ERR_SHAPE, "embedding: the table must be [V,D], got %s",
                      shape_text(&v.shape, text, sizeof text));
    if (!(t = checked_begin("embedding")))
        return op_failed();
    return compose_end(t, kl_take(table, 0, ids));
}

/* ---- sorting ---- */

static kl_tensor argsort_one_axis(const char *op, kl_tensor a, const struct view *v, uint32_t axis, bool descending)
{
    struct call c = {.op = op, .in = {a}};
    c.proto.op = OP_argsort;
    c.proto.dtype = v->shape.dim[axis] > INT32_MAX ? KL_I64 : KL_I32;
    c.proto.attr.sort.axis = axis;
    c.proto.attr.sort.descending = descending;
    return record(&c);
}

kl_tensor kl_argsort(kl_tensor a, int axis, bool descending)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    if (!t || !describe(t, "argsort", "the tensor", a, &v) || !axis_of(t, "argsort", &v.shape, axis, &at))
        return t ? poison(t) : kl_none;
    return argsort_one_axis("argsort", a, &v, at, descending);
}

kl_tensor kl_sort(kl_tensor a, int axis, bool descending)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    if (!t || !describe(t, "sort", "the tensor", a, &v) || !axis_of(t, "sort", &v.shape, axis, &at))
        return t ? poison(t) : kl_none;
    if (!(t = checked_begin("sort")))
        return op_failed();
    return compose_end(t, kl_take_along_axis(a, (int)at, argsort_one_axis("sort", a, &v, at, descending)));
}

/* Two results, so two composites: one for the positions, which outlive it, and one that reads them. */
kl_tensor kl_topk(kl_tensor a, int64_t k, int axis, bool largest, kl_tensor *indices)
{
    struct thread *t = thread_self();
    struct view v;
    uint32_t at;
    char text[SHAPE_TEXT];
    if (indices)
        *indices = kl_none;
    if (!t || !describe(t, "topk", "the tensor", a, &v) || !axis_of(t, "topk", &v.shape, axis, &at))
        return t ? poison(t) : kl_none;
    if (k < 0 || k > v.shape.dim[at])
        return refuse(t, KL_ERR_ARGUMENT, "topk: axis %u of %s has no %" PRId64 " elements", at,
                      shape_text(&v.shape, text, sizeof text), k);
    if (!(t = checked_begin("topk")))
        return op_failed();
    kl_tensor order = argsort_one_axis("topk", a, &v, at, largest);
    kl_tensor first = compose_end(t, kl_narrow(order, (int)at, 0, k));
    kl_tensor values = kl_take_along_axis(a, (int)at, first);
    if (indices)
        *indices = first;
    else
        kl_release(first);
    return values;
}
