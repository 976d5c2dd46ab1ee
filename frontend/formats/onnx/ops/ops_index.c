/* Operators that choose elements by index. */
#include "frontend/formats/onnx/onnx.h"
#include <stdlib.h>
#include <string.h>

/* Indices below 0 count from the end. */
static kl_tensor from_start(struct node *n, kl_tensor index, int64_t length)
{
    kl_dtype d = kl_dtype_of(index);
    kl_tensor zero = onnx_number(n, d, 0);
    return kl_where(kl_lt(index, zero), kl_add(index, onnx_number(n, d, (double)length)), index);
}

/* The same of operand i, which may be known to have none. */
static kl_tensor index_operand(struct node *n, uint32_t i, int64_t length)
{
    const struct value *v = onnx_value(n, i);
    kl_tensor index = onnx_in(n, i);
    bool below = !v || !v->known;
    for (int64_t k = 0; !below && k < v->known->count; k++)
        below = array_int(v->known, k) < 0;
    return below ? from_start(n, index, length) : index;
}

bool onnx_gather(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int axis;
    if (!onnx_type(n, 0, &t) || !onnx_axis(n, onnx_attr_int(n, "axis", 0), t.rank, &axis))
        return false;
    return onnx_give(n, 0, kl_gather(a, axis, index_operand(n, 1, t.dims[axis])));
}

/* a without what the index's shape leaves out of all axes but one */
static kl_tensor cut_to(struct node *n, kl_tensor a, const struct type *t, const struct type *index, int axis)
{
    int64_t stop[KL_MAX_RANK];
    bool cuts = false;
    for (int i = 0; i < t->rank; i++) {
        stop[i] = i == axis ? t->dims[i] : index->dims[i];
        cuts |= stop[i] != t->dims[i];
    }
    return cuts ? kl_slice(a, NULL, stop, NULL) : a;
}

bool onnx_gather_elements(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t, index;
    int axis;
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &index) ||
        !onnx_axis(n, onnx_attr_int(n, "axis", 0), t.rank, &axis))
        return false;
    if (index.rank != t.rank)
        return onnx_fails(n, KL_ERR_SHAPE, "operand and indices have %d and %d axes", t.rank, index.rank);
    return onnx_give(n, 0, kl_take_along_axis(cut_to(n, a, &t, &index, axis), axis,
                                              index_operand(n, 1, t.dims[axis])));
}

/* ---- places in the elements in a row ---- */

static int64_t product(const int64_t *v, int n)
{
    int64_t p = 1;
    for (int i = 0; i < n; i++)
        p *= v[i];
    return p;
}

/* index: [..., K], places in axes first .. first + K - 1 of t; [...]: the same in these axes as one. */
static kl_tensor one_place(struct node *n, kl_tensor index, const struct type *t, int first, int64_t K)
{
    kl_tensor r = kl_none;
    index = kl_cast(index, KL_I64);
    for (int64_t k = 0; k < K; k++) {
        kl_tensor x = kl_squeeze(kl_narrow(index, -1, k, 1), -1);
        x = from_start(n, x, t->dims[first + k]);
        r = k ? kl_add(kl_mul(r, onnx_number(n, KL_I64, (double)t->dims[first + k])), x) : x;
    }
    return r;
}

bool onnx_gather_nd(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), index = onnx_in(n, 1);
    struct type t, x;
    int batch = (int)onnx_attr_int(n, "batch_dims", 0);
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &x))
        return false;
    int64_t K = x.rank ? x.dims[x.rank - 1] : 0;
    if (x.rank < 1 || batch < 0 || batch >= x.rank || K < 1 || batch + K > t.rank ||
        x.rank - 1 + t.rank - batch - K > KL_MAX_RANK)
        return onnx_fails(n, KL_ERR_SHAPE, "indices do not fit the operand");
    int rest = t.rank - batch - (int)K, rank = x.rank - 1;
    int64_t rows = product(t.dims + batch, (int)K), dims[KL_MAX_RANK];
    kl_tensor place = one_place(n, index, &t, batch, K);
    if (batch) { /* row i of the batch is behind those before it */
        int64_t shape[KL_MAX_RANK], count = product(t.dims, batch);
        for (int i = 0; i < rank; i++)
            shape[i] = i < batch ? x.dims[i] : 1;
        kl_tensor at = kl_reshape(kl_arange(onnx_device(n), KL_I64, count), rank, shape);
        place = kl_add(place, kl_mul(at, onnx_number(n, KL_I64, (double)rows)));
        rows *= count;
    }
    dims[0] = rows;
    memcpy(dims + 1, t.dims + batch + K, (size_t)rest * sizeof *dims);
    return onnx_give(n, 0, kl_gather(kl_reshape(a, rest + 1, dims), 0, place));
}

/* Rows of `a` and of update by place; reduction by attribute. */
static kl_tensor scattered(struct node *n, kl_tensor a, kl_tensor place, kl_tensor update)
{
    if (onnx_attr_is(n, "reduction", "add", false))
        return kl_index_add(a, 0, place, update);
    if (onnx_attr_is(n, "reduction", "max", false))
        return kl_index_max(a, 0, place, update);
    if (onnx_attr_is(n, "reduction", "min", false))
        return kl_index_min(a, 0, place, update);
    if (onnx_attr_is(n, "reduction", "none", true))
        return kl_index_put(a, 0, place, update);
    onnx_fails(n, KL_ERR_ARGUMENT, "reduction 'mul' is not supported");
    return kl_none;
}

bool onnx_scatter_nd(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), index = onnx_in(n, 1), update = onnx_in(n, 2);
    struct type t, x;
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &x))
        return false;
    int64_t K = x.rank ? x.dims[x.rank - 1] : 0;
    if (x.rank < 1 || K < 1 || K > t.rank)
        return onnx_fails(n, KL_ERR_SHAPE, "indices do not fit the operand");
    int64_t dims[KL_MAX_RANK + 1], count = product(x.dims, x.rank - 1);
    int rest = t.rank - (int)K;
    memcpy(dims + 1, t.dims + K, (size_t)rest * sizeof *dims);
    dims[0] = product(t.dims, (int)K);
    kl_tensor rows = kl_reshape(a, rest + 1, dims);
    dims[0] = count;
    update = kl_reshape(update, rest + 1, dims);
    kl_tensor place = kl_reshape(one_place(n, index, &t, 0, K), 1, &count);
    return onnx_give(n, 0, kl_reshape(scattered(n, rows, place, update), t.rank, t.dims));
}

bool onnx_scatter_elements(struct node *n)
{
    kl_tensor a = onnx_in(n, 0), update = onnx_in(n, 2);
    struct type t, x;
    int axis;
    if (!onnx_type(n, 0, &t) || !onnx_type(n, 1, &x) || !onnx_axis(n, onnx_attr_int(n, "axis", 0), t.rank, &axis))
        return false;
    if (x.rank != t.rank)
        return onnx_fails(n, KL_ERR_SHAPE, "operand and indices have %d and %d axes", t.rank, x.rank);
    kl_tensor place = kl_none, index = kl_cast(index_operand(n, 1, t.dims[axis]), KL_I64);
    for (int i = 0; i < t.rank; i++) {
        kl_tensor at = i == axis ? index : kl_iota(onnx_device(n), KL_I64, x.rank, x.dims, i);
        place = i ? kl_add(kl_mul(place, onnx_number(n, KL_I64, (double)t.dims[i])), at) : at;
    }
    int64_t all = product(t.dims, t.rank), count = product(x.dims, x.rank);
    kl_tensor r = scattered(n, kl_reshape(a, 1, &all), kl_reshape(place, 1, &count), kl_reshape(update, 1, &count));
    return onnx_give(n, 0, kl_reshape(r, t.rank, t.dims));
}

bool onnx_one_hot(struct node *n)
{
    struct type t;
    int64_t depth, dims[KL_MAX_RANK];
    int count, axis;
    if (!onnx_type(n, 0, &t) || !onnx_ints(n, 1, &depth, 1, &count))
        return false;
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
    int64_t length = flat ? product(t.dims, t.rank) : t.dims[axis], count = 0;
    for (int64_t i = 0; i < c->count && i < length; i++)
        count += array_int(c, i) != 0;
    struct array *index = array_new(KL_I64, 1, &count);
    for (int64_t i = 0, k = 0; index && i < c->count && i < length; i++)
        if (array_int(c, i))
            ((int64_t *)index->data)[k++] = i;
    kl_tensor a = onnx_in(n, 0);
    if (flat)
        a = kl_reshape(a, 1, &length);
    return onnx_give(n, 0, kl_gather(a, axis, onnx_tensor(n, index)));
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
