/* Operators that move elements: constants, shapes, views, concatenation, padding. */
#include "frontend/formats/onnx/onnx.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- constants ---- */

static const struct { const char *attribute; kl_dtype dtype; int rank; } constant_kinds[] = {
    {"value_float", KL_F32, 0}, {"value_floats", KL_F32, 1}, {"value_int", KL_I64, 0}, {"value_ints", KL_I64, 1},
};

/* One number, or a list, of an attribute that may be another node's. */
static bool constant_numbers(struct node *n, const Onnx__AttributeProto *a, kl_dtype dtype, int rank)
{
    bool floats = dtype == KL_F32;
    const void *from = floats ? (rank ? (const void *)a->floats : &a->f) : rank ? (const void *)a->ints : &a->i;
    int64_t count = (int64_t)(floats ? a->n_floats : a->n_ints);
    if (a->type != (floats ? rank ? ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS
                                  : ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT
                    : rank ? ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS : ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT))
        return onnx_fails(n, KL_ERR_TYPE, "attribute %.100s is of another type than the constant's", a->name);
    struct array *x = array_new(dtype, rank, &count);
    if (x && x->count)
        memcpy(x->data, from, (size_t)x->count * kl_dtype_size(dtype));
    return onnx_give_known(n, 0, x);
}

static bool constant_strings(struct node *n, size_t count, const ProtobufCBinaryData *text, int rank)
{
    struct array *a = strings_array(&n->run->m->strings, count, text);
    if (a)
        a->rank = rank;
    return onnx_give_known(n, 0, a);
}

bool onnx_constant(struct node *n)
{
    struct file_error why = {0};
    const Onnx__AttributeProto *a = onnx_attr(n, "value");
    if (a && a->t) {
        struct array *x = array_read(a->t, n->run->m->path, false, &n->run->m->strings, &why);
        return x ? onnx_give_known(n, 0, x) : onnx_fails(n, why.code, "%s", why.text);
    }
    if ((a = onnx_attr(n, "value_string")))
        return constant_strings(n, 1, &a->s, 0);
    if ((a = onnx_attr(n, "value_strings")))
        return constant_strings(n, a->n_strings, a->strings, 1);
    for (size_t i = 0; i < sizeof constant_kinds / sizeof *constant_kinds; i++)
        if ((a = onnx_attr(n, constant_kinds[i].attribute)))
            return constant_numbers(n, a, constant_kinds[i].dtype, constant_kinds[i].rank);
    return onnx_fails(n, KL_ERR_TYPE, "a constant that is no dense tensor");
}

bool onnx_constant_of_shape(struct node *n)
{
    struct file_error why = {0};
    const Onnx__AttributeProto *a = onnx_attr(n, "value");
    int64_t dims[KL_MAX_RANK], ones[KL_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    int rank;
    if (!onnx_lengths(n, 0, 0, dims, &rank))
        return false;
    struct array *x = a && a->t ? array_read(a->t, n->run->m->path, false, NULL, &why) : array_new(KL_F32, 0, NULL);
    if (!x || x->count != 1) {
        array_unref(x);
        return onnx_fails(n, x ? KL_ERR_SHAPE : why.code, "its value: %s", x ? "not one number" : why.text);
    }
    kl_tensor t = onnx_tensor(n, x);
    return onnx_give(n, 0, kl_expand(kl_reshape(t, rank, ones), rank, dims));
}

/* From one symbolic length or number to another, by steps of 1. */
static bool range_of_lengths(struct node *n, const struct array *a, const struct array *b, const struct array *d)
{
    if (onnx_is_length(d, 0) || array_int(d, 0) != 1)
        return onnx_fails(n, KL_ERR_SHAPE, "a range between symbolic lengths has a step of 1");
    int64_t count = kl_length_sub(array_int(b, 0), array_int(a, 0));
    if (count == INT64_MIN)
        return false;
    kl_tensor first = kl_length_scalar(onnx_device(n), KL_I64, array_int(a, 0));
    return onnx_give(n, 0, kl_add(first, kl_arange(onnx_device(n), KL_I64, count)));
}

/* The number of elements from a to below b by d; of integers exactly. */
static double range_length(const struct array *a, const struct array *b, const struct array *d)
{
    if (onnx_is_float(a->dtype))
        return ceil((array_float(b, 0) - array_float(a, 0)) / array_float(d, 0));
    __extension__ typedef __int128 wide;
    wide by = array_int(d, 0), way = (wide)array_int(b, 0) - array_int(a, 0);
    return by == 0 ? -1 : (double)(way / by + (way % by != 0 && (way > 0) == (by > 0)));
}

bool onnx_range(struct node *n)
{
    const struct array *a = onnx_known(n, 0), *b = a ? onnx_known(n, 1) : NULL, *d = b ? onnx_known(n, 2) : NULL;
    if (!d)
        return false;
    if (a->count != 1 || b->count != 1 || d->count != 1)
        return onnx_fails(n, KL_ERR_SHAPE, "start, limit and delta have one number each");
    if (onnx_is_length(a, 0) || onnx_is_length(b, 0) || onnx_is_length(d, 0))
        return range_of_lengths(n, a, b, d);
    double step = array_float(d, 0), length = range_length(a, b, d);
    if (!(length < 1 << 28) || step == 0)
        return onnx_fails(n, KL_ERR_SHAPE, step == 0 ? "a range with a step of 0" : "a range of over 2^28 numbers");
    int64_t count = length > 0 ? (int64_t)length : 0;
    kl_dtype wide = onnx_compute_dtype(a->dtype);
    kl_tensor first = kl_reshape(onnx_widened(n, 0), 0, NULL), by = kl_reshape(onnx_widened(n, 2), 0, NULL);
    kl_tensor i = kl_arange(onnx_device(n), wide, count);
    return onnx_give_as(n, 0, kl_add(first, kl_mul(i, by)), a->dtype);
}

bool onnx_shape(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    int64_t start = onnx_attr_int32(n, "start", 0), end = onnx_attr_int32(n, "end", t.rank);
    start = start < 0 ? start + t.rank : start;
    end = end < 0 ? end + t.rank : end;
    start = start < 0 ? 0 : start > t.rank ? t.rank : start;
    end = end < start ? start : end > t.rank ? t.rank : end;
    return onnx_give_known(n, 0, array_of_lengths(end - start, t.dims + start));
}

bool onnx_size(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    int64_t count = 1;
    for (int i = 0; i < t.rank; i++)
        if ((count = kl_length_mul(count, t.dims[i])) == INT64_MIN)
            return false;
    struct array *a = array_new(KL_I64, 0, NULL);
    if (a) {
        *(int64_t *)a->data = count;
        a->symbolic = count < 0;
    }
    return onnx_give_known(n, 0, a);
}

bool onnx_eye_like(struct node *n)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    int64_t k = onnx_attr_int(n, "k", 0);
    int to = onnx_attr_int32(n, "dtype", 0);
    kl_dtype d = to ? onnx_dtype(to) : t.dtype;
    if (t.rank != 2 || d == KL_DTYPE_COUNT)
        return onnx_fails(n, KL_ERR_SHAPE, "a matrix of numbers is needed");
    kl_tensor row = kl_iota(onnx_device(n), KL_I64, 2, t.dims, 0);
    kl_tensor column = kl_iota(onnx_device(n), KL_I64, 2, t.dims, 1);
    return onnx_give(n, 0, kl_cast(kl_eq(kl_add(row, onnx_number(n, KL_I64, (double)k)), column), d));
}

/* ---- shapes ---- */

bool onnx_reshape(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int64_t dims[KL_MAX_RANK];
    int rank = 0;
    if (!onnx_type(n, 0, &t))
        return false;
    if (n->def->opset < 5 ? (rank = onnx_attr_ints(n, "shape", dims, KL_MAX_RANK)) < 0
                          : !onnx_lengths(n, 1, -1, dims, &rank))
        return rank != -1 ? false : onnx_fails(n, KL_ERR_ARGUMENT, "it has no shape");
    for (int i = 0; i < rank; i++) {
        if (n->def->opset < 5 && dims[i] < -1)
            return onnx_fails(n, KL_ERR_SHAPE, "a length of %lld", (long long)dims[i]);
        if (dims[i] == 0 && !onnx_attr_int(n, "allowzero", 0)) {
            if (i >= t.rank)
                return onnx_fails(n, KL_ERR_SHAPE, "the operand has no axis %d to copy the length of", i);
            dims[i] = t.dims[i];
        }
    }
    return onnx_give(n, 0, kl_reshape(a, rank, dims));
}

bool onnx_flatten(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    if (!onnx_type(n, 0, &t))
        return false;
    int64_t axis = onnx_attr_int32(n, "axis", 1);
    axis = axis < 0 ? axis + t.rank : axis;
    if (axis < 0 || axis > t.rank)
        return onnx_fails(n, KL_ERR_SHAPE, "there is no axis %lld", (long long)axis);
    int at = (int)axis;
    int64_t dims[2] = {onnx_lengths_product(t.dims, at), onnx_lengths_product(t.dims + at, t.rank - at)};
    return dims[0] != INT64_MIN && dims[1] != INT64_MIN && onnx_give(n, 0, kl_reshape(a, 2, dims));
}

bool onnx_transpose(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int64_t perm[KL_MAX_RANK];
    int axes[KL_MAX_RANK];
    if (!onnx_type(n, 0, &t))
        return false;
    int count = onnx_attr_ints(n, "perm", perm, KL_MAX_RANK);
    if (count == -2 || (count >= 0 && count != t.rank))
        return count == -2 ? false : onnx_fails(n, KL_ERR_SHAPE, "perm has %d axes, the operand %d", count, t.rank);
    for (int i = 0; i < t.rank; i++)
        if (count < 0)
            axes[i] = t.rank - 1 - i;
        else if (!onnx_axis(n, perm[i], t.rank, &axes[i]))
            return false;
    return onnx_give(n, 0, kl_permute(a, axes));
}

bool onnx_squeeze(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int axes[KL_MAX_RANK], rank = 0;
    int64_t dims[KL_MAX_RANK];
    bool goes[KL_MAX_RANK] = {false};
    char text[LENGTH_TEXT];
    if (!onnx_type(n, 0, &t))
        return false;
    int count = onnx_axes(n, "axes", 1, t.rank, axes);
    if (count == -2)
        return false;
    for (int i = 0; i < t.rank; i++) {
        int64_t low, high;
        if (count < 0 && t.dims[i] < 0 && kl_length_range(t.dims[i], &low, &high) && low <= 1 && high >= 1)
            return onnx_fails(n, KL_ERR_SHAPE, "without axes, and axis %d has a length of %s, which may be 1", i,
                              onnx_length_text(t.dims[i], text));
        goes[i] = count < 0 && t.dims[i] == 1;
    }
    for (int i = 0; i < count; i++) {
        if (t.dims[axes[i]] != 1)
            return onnx_fails(n, KL_ERR_SHAPE, "axis %d has a length of %s, not 1", axes[i],
                              onnx_length_text(t.dims[axes[i]], text));
        goes[axes[i]] = true;
    }
    for (int i = 0; i < t.rank; i++)
        if (!goes[i])
            dims[rank++] = t.dims[i];
    return onnx_give(n, 0, kl_reshape(a, rank, dims));
}

bool onnx_unsqueeze(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int64_t v[KL_MAX_RANK], dims[KL_MAX_RANK];
    bool is[KL_MAX_RANK] = {false};
    int count = 0, at;
    if (!onnx_type(n, 0, &t))
        return false;
    if (onnx_has(n, 1) ? !onnx_ints(n, 1, v, KL_MAX_RANK, &count)
                       : (count = onnx_attr_ints(n, "axes", v, KL_MAX_RANK)) < 0)
        return count != -1 ? false : onnx_fails(n, KL_ERR_ARGUMENT, "it has no axes");
    int rank = t.rank + count;
    if (rank > KL_MAX_RANK)
        return onnx_fails(n, KL_ERR_SHAPE, "%d axes; %d are the most", rank, KL_MAX_RANK);
    for (int i = 0; i < count; i++) {
        if (!onnx_axis(n, v[i], rank, &at))
            return false;
        is[at] = true;
    }
    for (int i = 0, k = 0; i < rank; i++)
        dims[i] = is[i] || k >= t.rank ? 1 : t.dims[k++];
    return onnx_give(n, 0, kl_reshape(a, rank, dims));
}

bool onnx_expand(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int64_t shape[KL_MAX_RANK], dims[KL_MAX_RANK];
    int rank;
    if (!onnx_type(n, 0, &t) || !onnx_lengths(n, 1, 0, shape, &rank))
        return false;
    int max = rank > t.rank ? rank : t.rank;
    for (int i = 0; i < max; i++) {
        int64_t x = i >= max - t.rank ? t.dims[i - (max - t.rank)] : 1;
        int64_t y = i >= max - rank ? shape[i - (max - rank)] : 1;
        dims[i] = y == 1 ? x : y;
    }
    return onnx_give(n, 0, kl_expand(a, max, dims));
}

bool onnx_tile(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int64_t times[KL_MAX_RANK];
    int count;
    if (!onnx_type(n, 0, &t) || !onnx_ints(n, 1, times, KL_MAX_RANK, &count))
        return false;
    if (count != t.rank)
        return onnx_fails(n, KL_ERR_SHAPE, "%d repeats for %d axes", count, t.rank);
    return onnx_give(n, 0, kl_tile(a, times));
}

/* ---- concatenation and splitting ---- */

bool onnx_concat(struct node *n)
{
    uint32_t count = onnx_nin(n), used = 0;
    kl_tensor *part = malloc((count + 1) * sizeof *part);
    struct type t;
    if (!part)
        return onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    bool ok = true;
    for (uint32_t i = 0; ok && i < count; i++) {
        ok = onnx_type(n, i, &t);
        part[used++] = ok ? onnx_in(n, i) : kl_none;
    }
    ok = ok && onnx_give(n, 0, kl_concat((int)used, part, onnx_attr_int32(n, "axis", 1)));
    free(part);
    return ok;
}

/* The lengths that an axis is split into. */
static bool split_lengths(struct node *n, int64_t length, uint32_t parts, int64_t *v)
{
    const Onnx__AttributeProto *a = onnx_attr(n, "split");
    const struct array *known = NULL;
    if (onnx_has(n, 1) && !(known = onnx_known(n, 1)))
        return false;
    if (known ? known->count != parts : a && a->n_ints != parts)
        return onnx_fails(n, KL_ERR_SHAPE, "%u results, and as many lengths are not given", parts);
    int64_t each = (length + parts - 1) / parts;
    for (uint32_t i = 0; i < parts; i++) {
        int64_t left = length - each * i;
        v[i] = known ? array_int(known, i) : a ? a->ints[i] : left < 0 ? 0 : left < each ? left : each;
    }
    return true;
}

bool onnx_split(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int axis;
    uint32_t parts = onnx_nout(n);
    if (!onnx_type(n, 0, &t) || !onnx_axis(n, onnx_attr_int(n, "axis", 0), t.rank, &axis))
        return false;
    kl_tensor *part = calloc(parts + 1, sizeof *part);
    int64_t *length = calloc(parts + 1, sizeof *length);
    bool ok = (part && length) || onnx_fails(n, KL_ERR_MEMORY, "out of memory");
    if (ok && !parts)
        ok = onnx_fails(n, KL_ERR_ARGUMENT, "it has no results");
    if (ok && t.dims[axis] < 0)
        ok = onnx_fails(n, KL_ERR_SHAPE, "axis %d has a symbolic length, which does not fall into known parts", axis);
    ok = ok && split_lengths(n, t.dims[axis], parts, length) &&
         kl_split(a, axis, (int)parts, length, part) == KL_OK;
    for (uint32_t i = 0; ok && i < parts; i++)
        ok = onnx_give(n, i, part[i]);
    free(part);
    free(length);
    return ok;
}

/* ---- pieces ---- */

struct onnx_slices { int64_t start[KL_MAX_RANK], end[KL_MAX_RANK], axis[KL_MAX_RANK], step[KL_MAX_RANK]; int n; };

static bool slice_operands(struct node *n, struct onnx_slices *s)
{
    int ends, axes = -1, steps = -1;
    if (n->def->opset < 10) {
        s->n = onnx_attr_ints(n, "starts", s->start, KL_MAX_RANK);
        ends = onnx_attr_ints(n, "ends", s->end, KL_MAX_RANK);
        axes = onnx_attr_ints(n, "axes", s->axis, KL_MAX_RANK);
    } else if (!onnx_ints(n, 1, s->start, KL_MAX_RANK, &s->n) || !onnx_ints(n, 2, s->end, KL_MAX_RANK, &ends) ||
               (onnx_has(n, 3) && !onnx_ints(n, 3, s->axis, KL_MAX_RANK, &axes)) ||
               (onnx_has(n, 4) && !onnx_ints(n, 4, s->step, KL_MAX_RANK, &steps))) {
        return false;
    }
    if (s->n < 0 || ends != s->n || (axes >= 0 && axes != s->n) || (steps >= 0 && steps != s->n))
        return onnx_fails(n, KL_ERR_SHAPE, "starts, ends, axes and steps are not as many");
    for (int i = 0; i < s->n; i++) {
        s->axis[i] = axes < 0 ? i : s->axis[i];
        s->step[i] = steps < 0 ? 1 : s->step[i];
    }
    return true;
}

static int64_t slice_bound(int64_t v, int64_t length, int64_t low, int64_t high)
{
    v = v < 0 ? v + length : v;
    return v < low ? low : v > high ? high : v;
}

/* Is start or end number i, in operand k, a symbolic length? */
static bool slice_has_length(const struct node *n, uint32_t k, int i)
{
    const struct value *v = onnx_value(n, k);
    return n->def->opset >= 10 && v && v->known && onnx_is_length(v->known, i);
}

/* A start or end that is a number, of an axis whose length d may be symbolic: it counts from the end if it is below 0,
 * and is no lower than that of the longest axis.  INT64_MIN: reported. */
static int64_t slice_number(struct node *n, int64_t v, int64_t d)
{
    int64_t low, high = d;
    if (d < 0)
        kl_length_range(d, &low, &high);
    v = v < -high ? -high : v;
    if (v < 0 && kl_length_range(v, &low, &high))
        return onnx_fails(n, KL_ERR_SHAPE, "%lld elements from the end of a symbolic length", (long long)-v), INT64_MIN;
    return v;
}

bool onnx_slice(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    struct onnx_slices s;
    int64_t start[KL_MAX_RANK], stop[KL_MAX_RANK], step[KL_MAX_RANK];
    int back[KL_MAX_RANK], nback = 0;
    if (!onnx_type(n, 0, &t) || !slice_operands(n, &s))
        return false;
    for (int i = 0; i < t.rank; i++) {
        start[i] = 0;
        stop[i] = t.dims[i];
        step[i] = 1;
    }
    for (int i = 0; i < s.n; i++) {
        int x;
        if (!onnx_axis(n, s.axis[i], t.rank, &x))
            return false;
        int64_t d = t.dims[x], by = s.step[i];
        if (d < 0 || slice_has_length(n, 1, i) || slice_has_length(n, 2, i)) { /* kl_slice finds which elements */
            if (by < 1)
                return onnx_fails(n, KL_ERR_SHAPE, "a step of %lld and a symbolic length", (long long)by);
            start[x] = slice_has_length(n, 1, i) ? s.start[i] : slice_number(n, s.start[i], d);
            stop[x] = slice_has_length(n, 2, i) ? s.end[i] : slice_number(n, s.end[i], d);
            step[x] = by;
            if (start[x] == INT64_MIN || stop[x] == INT64_MIN)
                return false;
            continue;
        }
        if (by == 0 || by == INT64_MIN)
            return onnx_fails(n, KL_ERR_ARGUMENT, "a step of %lld", (long long)by);
        if (by > 0) {
            start[x] = slice_bound(s.start[i], d, 0, d);
            stop[x] = slice_bound(s.end[i], d, start[x], d);
            step[x] = by > d && d ? d : by;
            continue;
        }
        /* from the last of them on, the other way round */
        int64_t first = slice_bound(s.start[i], d, d ? 0 : -1, d - 1), last = slice_bound(s.end[i], d, -1, d - 1);
        by = by < -d ? d : -by;
        int64_t count = first > last && d ? (first - last + by - 1) / by : 0;
        start[x] = count ? first - by * (count - 1) : 0;
        stop[x] = count ? first + 1 : 0;
        step[x] = by ? by : 1;
        back[nback++] = x;
    }
    a = kl_slice(a, start, stop, step);
    return onnx_give(n, 0, nback ? kl_flip(a, nback, back) : a);
}

/* ---- padding ---- */

enum { PAD_CONSTANT = -1, PAD_NO_MODE = -2 };

static int pad_mode(const struct node *n)
{
    return onnx_attr_is(n, "mode", "constant", true) ? PAD_CONSTANT
           : onnx_attr_is(n, "mode", "reflect", false) ? KL_BORDER_REFLECT
           : onnx_attr_is(n, "mode", "edge", false) ? KL_BORDER_EDGE
           : onnx_attr_is(n, "mode", "wrap", false) ? KL_BORDER_WRAP : PAD_NO_MODE;
}

static bool pad_amounts(struct node *n, const struct type *t, int64_t *low, int64_t *high)
{
    int64_t v[2 * KL_MAX_RANK];
    int count = 0, axes[KL_MAX_RANK], naxes = t->rank;
    for (int i = 0; i < t->rank; i++) {
        low[i] = high[i] = 0;
        axes[i] = i;
    }
    if (n->def->opset < 11 ? (count = onnx_attr_ints(n, onnx_attr(n, "pads") ? "pads" : "paddings", v,
                                                     2 * KL_MAX_RANK)) < 0
                           : !onnx_ints(n, 1, v, 2 * KL_MAX_RANK, &count))
        return count != -1 ? false : onnx_fails(n, KL_ERR_ARGUMENT, "it has no pads");
    if (onnx_has(n, 3) && (naxes = onnx_axes(n, "axes", 3, t->rank, axes)) < 0)
        return false;
    if (count != 2 * naxes)
        return onnx_fails(n, KL_ERR_SHAPE, "%d pads for %d axes", count, naxes);
    for (int i = 0; i < naxes; i++) {
        low[axes[i]] = v[i];
        high[axes[i]] = v[naxes + i];
    }
    return true;
}

bool onnx_pad(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int64_t low[KL_MAX_RANK], high[KL_MAX_RANK], start[KL_MAX_RANK], stop[KL_MAX_RANK];
    int mode = pad_mode(n);
    double value = onnx_attr_float(n, "value", 0);
    kl_tensor exact = kl_none; /* an integer that is no double: its difference from the elements is padded with 0 */
    if (!onnx_type(n, 0, &t) || !pad_amounts(n, &t, low, high))
        return false;
    if (onnx_has(n, 2) && !onnx_known_float(n, 2, &value))
        return false;
    if (onnx_has(n, 2) && !onnx_is_float(t.dtype) && (value > 0x1p53 || value < -0x1p53))
        exact = kl_reshape(onnx_in(n, 2), 0, NULL);
    if (mode == PAD_NO_MODE)
        return onnx_fails(n, KL_ERR_ARGUMENT, "its mode is none of constant, reflect, edge and wrap");
    if (mode != PAD_CONSTANT)
        return onnx_give(n, 0, kl_pad_border(a, low, high, (kl_border)mode));
    bool cuts = false;
    for (int i = 0; i < t.rank; i++) { /* negative padding removes elements */
        start[i] = low[i] < 0 ? sat_sub(0, low[i]) : 0;
        stop[i] = high[i] < 0 ? kl_length_sub(t.dims[i], sat_sub(0, high[i])) : t.dims[i];
        cuts |= low[i] < 0 || high[i] < 0;
        low[i] = low[i] < 0 ? 0 : low[i];
        high[i] = high[i] < 0 ? 0 : high[i];
        if (stop[i] == INT64_MIN) /* reported: more than there are, or may be */
            return false;
        if (t.dims[i] >= 0 && stop[i] < start[i])
            return onnx_fails(n, KL_ERR_SHAPE, "axis %d has %lld elements: too few", i, (long long)t.dims[i]);
    }
    if (cuts)
        a = kl_slice(a, start, stop, NULL);
    if (exact.id)
        return onnx_give(n, 0, kl_add(kl_pad(kl_sub(a, exact), low, high, 0), exact));
    return onnx_give(n, 0, kl_pad(a, low, high, value));
}

/* ---- blocks ---- */

/* Is the length a number, and a multiple of `by`? */
static bool is_multiple(int64_t length, int64_t by) { return length >= 0 && length % by == 0; }

/* arg 0 DepthToSpace, 1 SpaceToDepth */
bool onnx_depth_space(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int64_t b = onnx_attr_int(n, "blocksize", 0);
    if (!onnx_type(n, 0, &t))
        return false;
    if (t.rank != 4 || b < 1 || b > 1 << 15)
        return onnx_fails(n, KL_ERR_SHAPE, "blocks of %lld do not fit the operand", (long long)b);
    int64_t N = t.dims[0], C = t.dims[1], H = t.dims[2], W = t.dims[3];
    if (!(n->def->op->arg ? is_multiple(H, b) && is_multiple(W, b) : is_multiple(C, b * b)))
        return onnx_fails(n, KL_ERR_SHAPE, "blocks of %lld do not fit the operand", (long long)b);
    if (n->def->op->arg) {
        a = kl_reshape(a, 6, (int64_t[]){N, C, H / b, b, W / b, b});
        bool crd = onnx_attr_is(n, "mode", "CRD", false); /* channels before positions in a block */
        a = kl_permute(a, crd ? (int[]){0, 1, 3, 5, 2, 4} : (int[]){0, 3, 5, 1, 2, 4});
        return onnx_give(n, 0, kl_reshape(a, 4, (int64_t[]){N, kl_length_mul(C, b * b), H / b, W / b}));
    }
    if (onnx_attr_is(n, "mode", "CRD", false)) {
        a = kl_reshape(a, 6, (int64_t[]){N, C / (b * b), b, b, H, W});
        a = kl_permute(a, (int[]){0, 1, 4, 2, 5, 3});
    } else {
        a = kl_reshape(a, 6, (int64_t[]){N, b, b, C / (b * b), H, W});
        a = kl_permute(a, (int[]){0, 3, 4, 1, 5, 2});
    }
    return onnx_give(n, 0, kl_reshape(a, 4, (int64_t[]){N, C / (b * b), kl_length_mul(H, b), kl_length_mul(W, b)}));
}

bool onnx_trilu(struct node *n)
{
    kl_tensor a = onnx_in(n, 0);
    struct type t;
    int64_t k = 0;
    if (!onnx_type(n, 0, &t) || (onnx_has(n, 1) && !onnx_known_int(n, 1, &k)))
        return false;
    if (t.rank < 2)
        return onnx_fails(n, KL_ERR_SHAPE, "an operand of %d axes", t.rank);
    if (onnx_attr_int(n, "upper", 1))
        return onnx_give(n, 0, kl_triu(a, k));
    return onnx_give(n, 0, kl_tril(a, k));
}
