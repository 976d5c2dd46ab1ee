/* Shape arithmetic on symbolic lengths: what exporters write between a Shape and the Reshape, Expand, Slice, Range or
 * ConstantOfShape that it is for.  The operators compute on the host with expressions of the open trace (kl_length_add
 * and the like), so that a model with named lengths is one graph for all of them.
 *
 * A result is an array of i64 with `symbolic` set.  An operator that is not here gets such an array as a tensor, whose
 * elements each run fills in. */
#include "onnx.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct array *array_of_lengths(int64_t n, const int64_t *v)
{
    struct array *a = array_of_ints(n, v);
    for (int64_t i = 0; a && i < n; i++)
        a->symbolic |= v[i] < 0;
    return a;
}

static bool length_is_symbolic(int64_t v)
{
    int64_t low, high;
    return v < 0 && kl_length_range(v, &low, &high);
}

bool onnx_is_length(const struct array *a, int64_t i) { return a->symbolic && length_is_symbolic(array_int(a, i)); }

const char *onnx_length_text(int64_t length, char to[LENGTH_TEXT])
{
    int64_t low, high;
    if (length < 0 && kl_length_range(length, &low, &high))
        snprintf(to, LENGTH_TEXT, "%lld to %lld (it is symbolic)", (long long)low, (long long)high);
    else
        snprintf(to, LENGTH_TEXT, "%lld", (long long)length);
    return to;
}

bool onnx_lengths(struct node *n, uint32_t i, int64_t min, int64_t *v, int *count)
{
    if (!onnx_ints(n, i, v, KL_MAX_RANK, count))
        return false;
    for (int k = 0; k < *count; k++)
        if (v[k] < min && !onnx_is_length(onnx_value(n, i)->known, k))
            return onnx_fails(n, KL_ERR_SHAPE, "number %d of operand %u is %lld, which is no length", k, i,
                              (long long)v[k]);
    return true;
}

int64_t onnx_lengths_product(const int64_t *v, int count)
{
    int64_t product = 1;
    for (int i = 0; i < count && product != INT64_MIN; i++)
        product = kl_length_mul(product, v[i]);
    return product;
}

kl_tensor onnx_lengths_tensor(kl_device device, const struct array *a)
{
    kl_tensor *element = malloc((size_t)(a->count + 1) * sizeof *element);
    if (!element)
        return kl_fail(KL_ERR_MEMORY, "out of memory"), kl_poison();
    for (int64_t i = 0; i < a->count; i++)
        element[i] = onnx_is_length(a, i) ? kl_length_scalar(device, KL_I64, array_int(a, i))
                                          : kl_const(device, KL_I64, (double)array_int(a, i));
    kl_tensor t = a->rank ? kl_stack((int)a->count, element, 0) : element[0];
    free(element);
    return a->rank > 1 ? kl_reshape(t, a->rank, a->dims) : t;
}

/* ---- results ---- */

/* An empty result; of i64, or bool where `dtype` is that. */
static struct array *result_array(kl_dtype dtype, int rank, int64_t count)
{
    return array_new(dtype, rank, &count);
}

static int64_t *integers_of(struct array *a) { return a->data; }

/* Gives the result with its elements set. */
static bool give_lengths(struct node *n, struct array *a)
{
    for (int64_t i = 0; a && a->dtype == KL_I64 && i < a->count; i++)
        a->symbolic |= length_is_symbolic(integers_of(a)[i]);
    return onnx_give_known(n, 0, a);
}

/* The operand, if it is known and has at most one axis. */
static const struct array *list_operand(const struct node *n, uint32_t i)
{
    const struct value *v = onnx_value(n, i);
    return v && v->set && v->known && v->known->rank <= 1 && !v->list ? v->known : NULL;
}

static int64_t spread_element(const struct array *a, int64_t i) { return array_int(a, a->count == 1 ? 0 : i); }

/* The operands' common length and rank; false: they are no lists that go together. */
static bool lengths_broadcast(const struct array *const *a, int count, int64_t *length, int *rank)
{
    *length = 1;
    *rank = 0;
    for (int i = 0; i < count; i++) {
        if (!a[i])
            return false;
        *rank = a[i]->rank > *rank ? a[i]->rank : *rank;
        *length = a[i]->count != 1 ? a[i]->count : *length;
    }
    for (int i = 0; i < count; i++)
        if (a[i]->count != 1 && a[i]->count != *length)
            return false;
    return true;
}

/* ---- operators ----
 * Each sets *done if it has given a result; else the operator gets the operands as tensors.  false: reported. */
typedef bool lengths_fn(struct node *n, bool *done);

/* Number by number; integers wrap, kl_length_sub and the like report what is no length. */
static int64_t lengths_compute(const char *op, int64_t a, int64_t b)
{
    bool lengths = length_is_symbolic(a) || length_is_symbolic(b);
    uint64_t x = (uint64_t)a, y = (uint64_t)b;
    switch (*op) {
    case 'A': return lengths ? kl_length_add(a, b) : (int64_t)(x + y);
    case 'S': return lengths ? kl_length_sub(a, b) : (int64_t)(x - y);
    case 'M': return lengths ? kl_length_mul(a, b) : (int64_t)(x * y);
    default: return lengths ? kl_length_div(a, b) : b && !(b == -1 && a == INT64_MIN) ? a / b : 0;
    }
}

static bool lengths_arithmetic(struct node *n, bool *done)
{
    const struct array *a[2] = {list_operand(n, 0), list_operand(n, 1)};
    int64_t length;
    int rank;
    if (!lengths_broadcast(a, 2, &length, &rank) || a[0]->dtype != KL_I64 || a[1]->dtype != KL_I64)
        return true;
    /* Mul by -1 makes what Equal compares with; it is no length, and the exporters' pattern has numbers there */
    struct array *r = result_array(KL_I64, rank, length);
    for (int64_t i = 0; r && i < length; i++)
        if ((integers_of(r)[i] = lengths_compute(n->def->op->name, spread_element(a[0], i), spread_element(a[1],
                                                                                                              i))) ==
            INT64_MIN)
            return array_unref(r), false;
    *done = true;
    return give_lengths(n, r);
}

/* Are they equal whatever the symbols' values are, or different?  -1: that depends on them. */
static int lengths_equal(int64_t a, int64_t b)
{
    int64_t low[2] = {a, b}, high[2] = {a, b};
    if (a == b)
        return 1;
    if (a < 0)
        kl_length_range(a, &low[0], &high[0]);
    if (b < 0)
        kl_length_range(b, &low[1], &high[1]);
    return high[0] < low[1] || high[1] < low[0] ? 0 : -1;
}

static bool lengths_compared(struct node *n, bool *done)
{
    const struct array *a[2] = {list_operand(n, 0), list_operand(n, 1)};
    int64_t length;
    int rank;
    if (!lengths_broadcast(a, 2, &length, &rank))
        return true;
    struct array *r = result_array(KL_BOOL, rank, length);
    for (int64_t i = 0; r && i < length; i++) {
        int equal = lengths_equal(spread_element(a[0], i), spread_element(a[1], i));
        if (equal < 0)
            return array_unref(r), true; /* each run compares */
        ((uint8_t *)r->data)[i] = (uint8_t)equal;
    }
    *done = true;
    return give_lengths(n, r);
}

static bool lengths_where(struct node *n, bool *done)
{
    const struct array *a[3] = {list_operand(n, 0), list_operand(n, 1), list_operand(n, 2)};
    int64_t length;
    int rank;
    if (!lengths_broadcast(a, 3, &length, &rank) || a[1]->dtype != KL_I64 || a[2]->dtype != KL_I64)
        return true;
    struct array *r = result_array(KL_I64, rank, length);
    for (int64_t i = 0; r && i < length; i++)
        integers_of(r)[i] = spread_element(a[spread_element(a[0], i) ? 1 : 2], i);
    *done = true;
    return give_lengths(n, r);
}

static bool lengths_gathered(struct node *n, bool *done)
{
    const struct array *a = list_operand(n, 0), *index = list_operand(n, 1);
    if (!a || !index || a->rank != 1 || index->symbolic)
        return true;
    struct array *r = result_array(KL_I64, index->rank, index->count);
    for (int64_t i = 0; r && i < index->count; i++) {
        int64_t at = array_int(index, i);
        at = at < 0 ? at + a->count : at;
        if (at < 0 || at >= a->count) {
            array_unref(r);
            return onnx_fails(n, KL_ERR_ARGUMENT, "index %lld of %lld numbers", (long long)array_int(index, i),
                              (long long)a->count);
        }
        integers_of(r)[i] = array_int(a, at);
    }
    *done = true;
    return give_lengths(n, r);
}

static bool lengths_concatenated(struct node *n, bool *done)
{
    int64_t count = 0, at = 0;
    for (uint32_t i = 0; i < onnx_nin(n); i++) {
        const struct array *a = list_operand(n, i);
        if (!a || a->rank != 1 || a->dtype != KL_I64)
            return true;
        count += a->count;
    }
    struct array *r = result_array(KL_I64, 1, count);
    for (uint32_t i = 0; r && i < onnx_nin(n); i++)
        for (int64_t k = 0; k < list_operand(n, i)->count; k++)
            integers_of(r)[at++] = array_int(list_operand(n, i), k);
    *done = true;
    return give_lengths(n, r);
}

static bool lengths_sliced(struct node *n, bool *done)
{
    const struct array *a = list_operand(n, 0);
    int64_t start, stop, step = 1, axis;
    int one;
    if (!a || a->rank != 1 || n->def->opset < 10)
        return true;
    for (uint32_t i = 1; i < onnx_nin(n); i++) {
        const struct array *x = list_operand(n, i);
        if (onnx_has(n, i) && (!x || x->symbolic || x->count != 1))
            return true;
    }
    if (!onnx_ints(n, 1, &start, 1, &one) || !onnx_ints(n, 2, &stop, 1, &one) ||
        (onnx_has(n, 3) && !onnx_ints(n, 3, &axis, 1, &one)) || (onnx_has(n, 4) && !onnx_ints(n, 4, &step, 1, &one)))
        return false;
    if (step != 1)
        return true;
    start = start < -a->count ? 0 : start < 0 ? start + a->count : start > a->count ? a->count : start;
    stop = stop < -a->count ? 0 : stop < 0 ? stop + a->count : stop > a->count ? a->count : stop;
    stop = stop < start ? start : stop;
    struct array *r = result_array(KL_I64, 1, stop - start);
    for (int64_t i = start; r && i < stop; i++)
        integers_of(r)[i - start] = array_int(a, i);
    *done = true;
    return give_lengths(n, r);
}

/* One number as a list of one, a list of one as a number, a list as itself. */
static bool lengths_reshaped(struct node *n, bool *done)
{
    const struct array *a = list_operand(n, 0), *shape = list_operand(n, 1);
    const char *op = n->def->op->name;
    if (!a)
        return true;
    int rank = *op == 'U' ? a->rank + 1 : *op == 'S' ? 0 : shape ? (int)shape->count : 2;
    if (rank > 1 || (rank == 0 && a->count != 1) || (shape && shape->symbolic) ||
        (*op == 'R' && rank == 1 && array_int(shape, 0) != -1 && array_int(shape, 0) != a->count))
        return true;
    struct array *r = result_array(KL_I64, rank, a->count);
    for (int64_t i = 0; r && i < a->count; i++)
        integers_of(r)[i] = array_int(a, i);
    *done = true;
    return give_lengths(n, r);
}

static bool lengths_cast(struct node *n, bool *done)
{
    const struct array *a = list_operand(n, 0);
    if (!a || onnx_dtype(onnx_attr_int32(n, "to", 0)) != KL_I64)
        return true;
    *done = true;
    return onnx_give_known(n, 0, array_ref(onnx_value(n, 0)->known));
}

static bool lengths_product(struct node *n, bool *done)
{
    const struct array *a = list_operand(n, 0);
    if (!a || a->rank != 1 || a->dtype != KL_I64 || a->count > INT32_MAX || onnx_nin(n) > 1 || onnx_attr(n, "axes"))
        return true;
    int64_t product = onnx_lengths_product(a->data, (int)a->count);
    if (product == INT64_MIN)
        return false;
    struct array *r = result_array(KL_I64, onnx_attr_int(n, "keepdims", 1) ? 1 : 0, 1);
    if (r)
        integers_of(r)[0] = product;
    *done = true;
    return give_lengths(n, r);
}

bool onnx_lengths_node(struct node *n, bool *done)
{
    static const struct { const char *op; lengths_fn *fn; } table[] = {
        {"Add", lengths_arithmetic}, {"Sub", lengths_arithmetic}, {"Mul", lengths_arithmetic},
        {"Div", lengths_arithmetic}, {"Equal", lengths_compared}, {"Where", lengths_where},
        {"Gather", lengths_gathered}, {"Concat", lengths_concatenated}, {"Slice", lengths_sliced},
        {"Unsqueeze", lengths_reshaped}, {"Squeeze", lengths_reshaped}, {"Reshape", lengths_reshaped},
        {"Cast", lengths_cast}, {"ReduceProd", lengths_product},
    };
    bool any = false;
    *done = false;
    for (uint32_t i = 0; i < onnx_nin(n); i++) {
        const struct value *v = onnx_value(n, i);
        any |= v && v->set && v->known && v->known->symbolic;
    }
    for (size_t i = 0; any && !n->run->folding && i < sizeof table / sizeof *table; i++)
        if (!strcmp(n->def->op->name, table[i].op))
            return table[i].fn(n, done);
    return true;
}
