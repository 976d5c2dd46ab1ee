/* Operators that choose elements by index. */
#include "frontend/formats/onnx/onnx.h"

/* Indices below 0 count from the end. */
static kl_tensor from_start(struct node *n, kl_tensor index, int64_t length)
{
    kl_dtype d = kl_dtype_of(index);
    kl_tensor zero = onnx_number(n, d, 0);
    return kl_where(kl_lt(index, zero), kl_add(index, kl_length_scalar(onnx_device(n), d, length)), index);
}

/* The same for operand i, which may be known to have no negative index. */
static kl_tensor index_operand(struct node *n, uint32_t i, int64_t length)
{
    const struct array *known = onnx_numbers(n, i);
    struct type t;
    if (!onnx_type(n, i, &t))
        return kl_none;
    kl_tensor index = onnx_in(n, i);
    bool below = !known;
    for (int64_t k = 0; !below && k < known->count; k++)
        below = array_int(known, k) < 0;
    return below ? from_start(n, index, length) : index;
}

bool onnx_gather(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int axis;
    if (!onnx_type(n, 0, &t) || !onnx_axis(n, onnx_attr_int(n, "axis", 0), t.rank, &axis))
        return false;
    return onnx_give(n, 0, kl_take(a, axis, index_operand(n, 1, t.dims[axis])));
}

bool onnx_gather_elements(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), index = onnx_in(n, 1);
    return onnx_give(n, 0, kl_take_along_axis_with(a, onnx_attr_int32(n, "axis", 0), index, KL_INDEX_FROM_END));
}

bool onnx_gather_nd(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), index = onnx_in(n, 1);
    return onnx_give(n, 0, kl_gather_nd(a, index, onnx_attr_int32(n, "batch_dims", 0), KL_INDEX_FROM_END));
}

static bool scatter_kind(struct node *n, kl_scatter_kind *kind)
{
    static const struct { const char *name; kl_scatter_kind kind; } kinds[] = {
        {"add", KL_SCATTER_ADD}, {"mul", KL_SCATTER_MUL}, {"max", KL_SCATTER_MAX}, {"min", KL_SCATTER_MIN},
    };
    *kind = KL_SCATTER_SET;
    if (onnx_attr_is(n, "reduction", "none", true))
        return true;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (onnx_attr_is(n, "reduction", kinds[i].name, false))
            return *kind = kinds[i].kind, true;
    return onnx_fails(n, KL_ERR_ARGUMENT, "its reduction is none of none, add, mul, max and min");
}

bool onnx_scatter_nd(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), index = onnx_in(n, 1), update = onnx_in(n, 2);
    kl_scatter_kind kind;
    return scatter_kind(n, &kind) && onnx_give(n, 0, kl_scatter_nd(a, index, update, kind, KL_INDEX_FROM_END));
}

bool onnx_scatter_elements(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), index = onnx_in(n, 1), update = onnx_in(n, 2);
    int axis = onnx_attr_int32(n, "axis", 0);
    kl_scatter_kind kind;
    return scatter_kind(n, &kind) &&
           onnx_give(n, 0, kl_put_along_axis_with(a, axis, index, update, kind, KL_INDEX_FROM_END));
}

bool onnx_one_hot(struct node *n)
{
    struct type t;
    int64_t depth, dims[KL_MAX_RANK];
    int axis;
    if (!onnx_type(n, 0, &t) || !onnx_known_int(n, 1, &depth))
        return false;
    if (depth < 0)
        return onnx_fails(n, KL_ERR_ARGUMENT, "a depth of %lld", (long long)depth);
    if (t.rank == KL_MAX_RANK || !onnx_axis(n, onnx_attr_int(n, "axis", -1), t.rank + 1, &axis))
        return t.rank == KL_MAX_RANK ? onnx_fails(n, KL_ERR_SHAPE, "too many axes") : false;
    kl_tensor index = onnx_in(n, 0), value = onnx_in(n, 2);
    index = kl_unsqueeze(from_start(n, kl_cast(index, KL_I64), depth), axis == t.rank ? -1 : axis);
    for (int i = 0, k = 0; i <= t.rank; i++)
        dims[i] = i == axis ? depth : t.dims[k++];
    kl_tensor is = kl_eq(kl_iota(onnx_device(n), KL_I64, t.rank + 1, dims, axis), index);
    kl_tensor off = kl_squeeze(kl_narrow(value, 0, 0, 1), 0), on = kl_squeeze(kl_narrow(value, 0, 1, 1), 0);
    return onnx_give(n, 0, kl_where(is, on, off));
}

bool onnx_reverse_sequence(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), length = onnx_in(n, 1);
    struct type t;
    int time, batch;
    if (!onnx_type(n, 0, &t) || !onnx_axis(n, onnx_attr_int(n, "time_axis", 0), t.rank, &time) ||
        !onnx_axis(n, onnx_attr_int(n, "batch_axis", 1), t.rank, &batch))
        return false;
    int64_t dims[KL_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    dims[batch] = t.dims[batch];
    length = kl_reshape(kl_cast(length, KL_I64), t.rank, dims);
    kl_tensor i = kl_iota(onnx_device(n), KL_I64, t.rank, t.dims, time);
    kl_tensor back = kl_sub(kl_sub(length, onnx_number(n, KL_I64, 1)), i);
    return onnx_give(n, 0, kl_take_along_axis(a, time, kl_where(kl_lt(i, length), back, i)));
}

/* ---- results whose shape depends on values ---- */

static int64_t multiply_lengths(const int64_t *v, int n)
{
    int64_t p = 1;
    for (int i = 0; i < n; i++)
        p *= v[i];
    return p;
}

bool onnx_compress(struct node *n)
{
    struct type t;
    int axis = 0;
    const struct array *c = onnx_known(n, 1);
    if (!c || !onnx_type(n, 0, &t))
        return false;
    bool flat = !onnx_attr(n, "axis");
    if (!flat && !onnx_axis(n, onnx_attr_int(n, "axis", 0), t.rank, &axis))
        return false;
    int64_t length = flat ? multiply_lengths(t.dims, t.rank) : t.dims[axis], count = 0;
    for (int64_t i = 0; i < c->count && i < length; i++)
        count += array_int(c, i) != 0;
    struct array *index = array_new(KL_I64, 1, &count);
    for (int64_t i = 0, k = 0; index && i < c->count && i < length; i++)
        if (array_int(c, i))
            ((int64_t *)index->data)[k++] = i;
    kl_tensor a = onnx_in(n, 0);
    if (flat)
        a = kl_reshape(a, 1, &length);
    return onnx_give(n, 0, kl_take(a, axis, onnx_tensor(n, index)));
}

bool onnx_non_zero(struct node *n)
{
    const struct array *a = onnx_known(n, 0);
    if (!a)
        return false;
    int64_t count = 0, k = 0;
    for (int64_t i = 0; i < a->count; i++)
        count += array_float(a, i) != 0;
    struct array *r = array_new(KL_I64, 2, (int64_t[]){a->rank ? a->rank : 1, count});
    for (int64_t i = 0; r && i < a->count; i++) {
        if (array_float(a, i) == 0)
            continue;
        int64_t left = i;
        for (int axis = a->rank - 1; axis >= 0; axis--) {
            ((int64_t *)r->data)[axis * count + k] = left % a->dims[axis];
            left /= a->dims[axis];
        }
        k++;
    }
    return onnx_give_known(n, 0, r);
}
