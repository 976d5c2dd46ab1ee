/* pad, concat, gather: each element of the result is an element of one operand, selected by its position or by an
 * index.  Kernels evaluate the operands at clamped coordinates, then select. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include <string.h>

struct split split_at(const struct shape *s, uint32_t axis)
{
    struct split p = {1, s->dim[axis], 1};
    for (uint32_t i = 0; i < axis; i++)
        p.outer *= s->dim[i];
    for (uint32_t i = axis + 1; i < s->rank; i++)
        p.inner *= s->dim[i];
    return p;
}

bool axis_in_range(const char *op, const struct shape *s, uint32_t axis, struct err *e)
{
    char text[SHAPE_TEXT];
    return axis < s->rank || err_set(e, KL_ERR_SHAPE, "%s: axis %u is out of range for shape %s", op, axis,
                                     shape_text(s, text, sizeof text));
}

bool index_is_integer(const char *op, const char *what, unsigned dtype, struct err *e)
{
    return (!dtype_is_float(dtype) && dtype != KL_BOOL) ||
           err_set(e, KL_ERR_TYPE, "%s: the %s must be integers, got %s", op, what, dtype_name(dtype));
}

bool indexes_empty_axis(const struct graph *g, int64_t len, int64_t indices)
{
    return len == 0 ? indices != 0 : len < 0 && indices != 0 && indices != len && !dim_at_most(g, 1, len);
}

int64_t index_at(unsigned dtype, const void *p, int64_t i, int64_t last)
{
    uint64_t bits = 0;
    size_t size = dtype_size(dtype);
    memcpy(&bits, (const char *)p + (size_t)i * size, size); /* little-endian */
    if (dtype_kind(dtype) == 'U')
        return bits > (uint64_t)last ? last : (int64_t)bits;
    unsigned shift = 64 - 8 * (unsigned)size;
    int64_t v = (int64_t)(bits << shift) >> shift;
    return v < 0 ? 0 : v > last ? last : v;
}

/* i clamped to 0..last; *inside says whether it was inside, 0 if it always is. */
static val clamp_index(struct kernel *k, val i, int64_t last, val *inside)
{
    int64_t lo, hi;
    val zero = k_int(k, 0), max = k_int(k, last), at = i;
    ix_range(k, i, &lo, &hi);
    *inside = 0;
    if (lo >= 0 && hi <= last)
        return i;
    if (lo < 0) {
        *inside = k_prim(k, P_LE, zero, i, 0);
        at = k_prim(k, P_SELECT, *inside, at, zero);
    }
    if (hi > last) {
        val below = k_prim(k, P_LE, i, max, 0);
        *inside = *inside ? k_prim(k, P_AND, *inside, below, 0) : below;
        at = k_prim(k, P_SELECT, below, at, max);
    }
    ix_bound(k, at, 0, last);
    return at;
}

/* If i advances by blocks that divide the length, a whole block is inside or outside.  All lanes then have the same
 * answer and stay adjacent in memory. */
val lower_inside(struct kernel *k, val i, int64_t last, val *inside)
{
    val block, rest;
    int64_t d = ix_split(k, i, last + 1, &block, &rest);
    return ix_add(k, ix_scale(k, clamp_index(k, block, (last + 1) / d - 1, inside), d), rest);
}

/* An index of any integer dtype as i64; what is above `last` is last, if it is above what i64 has. */
static val index_of(struct kernel *k, val i, int64_t last)
{
    if (i && dtype_kind(val_dtype(k, i)) == 'U') {
        i = k_cast(k, i, KL_U64);
        val max = k_bits(k, KL_U64, (uint64_t)last);
        i = k_prim(k, P_SELECT, k_prim(k, P_LT, i, max, 0), i, max);
    }
    return k_cast(k, i, KL_I64);
}

val lower_index(struct kernel *k, val i, int64_t last)
{
    val inside;
    return last ? clamp_index(k, index_of(k, i, last), last, &inside) : k_int(k, 0);
}

val lower_inside_to(struct kernel *k, val i, val last, val *inside)
{
    int64_t number, low, high;
    if (ix_const(k, last, &number))
        return lower_inside(k, i, number, inside);
    val zero = k_int(k, 0), min = k_prim(k, P_SELECT, k_prim(k, P_LT, i, zero, 0), zero, i);
    val in = k_prim(k, P_SELECT, k_prim(k, P_LT, last, min, 0), last, min);
    *inside = k_prim(k, P_EQ, in, i, 0);
    ix_range(k, last, &low, &high);
    ix_bound(k, in, low < 0 ? low : 0, high);
    return in;
}

val lower_index_to(struct kernel *k, val i, val last)
{
    int64_t number, low, high;
    val inside;
    if (ix_const(k, last, &number))
        return lower_index(k, i, number);
    ix_range(k, last, &low, &high);
    return lower_inside_to(k, index_of(k, i, high), last, &inside);
}

/* ---- pad: one axis a node; the gradient is a slice ---- */

/* The length between the first and the last element, new elements in between included; false: too long. */
static bool pad_span(const struct graph *g, int64_t len, int64_t interior, int64_t *span)
{
    if (len < 0)
        return interior < MAX_DIM && dims_sum(g, 1, &(struct scaled){len, interior + 1}, -interior, span);
    *span = len;
    return len < 2 || (!__builtin_mul_overflow(len - 1, interior, span) && !__builtin_add_overflow(*span, len, span));
}

bool shape_pad(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct node *a = node_at(g, n->in[0]), *v = node_at(g, n->in[1]);
    uint32_t axis = n->attr.pad.axis;
    int64_t low = n->attr.pad.low, high = n->attr.pad.high, interior = n->attr.pad.interior, len;
    char text[SHAPE_TEXT], bounds[BOUNDS_TEXT];
    *out = g->shape[a->shape];
    if (a->dtype != v->dtype)
        return err_set(e, KL_ERR_TYPE, "pad: dtypes %s and %s differ", dtype_name(a->dtype), dtype_name(v->dtype));
    if (g->shape[v->shape].rank)
        return err_set(e, KL_ERR_SHAPE, "pad: the value must be a scalar, got %s",
                       shape_text_in(g, &g->shape[v->shape], text, sizeof text));
    if (!axis_in_range("pad", out, axis, e))
        return false;
    if (!dim_exists(g, low) || !dim_exists(g, high) || interior < 0)
        return err_set(e, KL_ERR_SHAPE, "pad: low %lld, high %lld, interior %lld: none may be negative", (long long)low,
                       (long long)high, (long long)interior);
    if (interior && out->dim[axis] < 0 && !dim_at_most(g, 1, out->dim[axis]))
        return err_set(e, KL_ERR_SHAPE, "pad: nothing goes between the elements of axis %u of %s, which may be empty%s",
                       axis, shape_text_in(g, out, text, sizeof text), bounds_text(g, out, bounds, sizeof bounds));
    if (!pad_span(g, out->dim[axis], interior, &len) ||
        !dims_sum(g, 3, (struct scaled[]){{len, 1}, {low, 1}, {high, 1}}, 0, &len))
        return err_set(e, KL_ERR_SHAPE, "pad: axis %u of %s becomes too long%s", axis,
                       shape_text_in(g, out, text, sizeof text), bounds_text(g, out, bounds, sizeof bounds));
    out->dim[axis] = len;
    n->dtype = a->dtype;
    if (n->attr.pad.zero)
        return err_set(e, KL_ERR_INTERNAL, "pad: an unused attribute is not 0");
    return attr_clear_rest(n, sizeof n->attr.pad);
}

bool eval_pad(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    size_t elem = dtype_size(n->dtype);
    int64_t count = shape_count(&g->shape[n->shape]), step = n->attr.pad.interior + 1;
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)out + (size_t)i * elem, in[1], elem);
    struct split from = split_at(node_shape(g, n->in[0]), n->attr.pad.axis);
    struct split to = split_at(&g->shape[n->shape], n->attr.pad.axis);
    size_t block = (size_t)from.inner * elem;
    for (int64_t o = 0; block && o < from.outer; o++)
        for (int64_t i = 0; i < from.len; i++) {
            int64_t at = i ? n->attr.pad.low + i * step : n->attr.pad.low;
            memcpy((char *)out + (size_t)(o * to.len + at) * block,
                   (const char *)in[0] + (size_t)(o * from.len + i) * block, block);
        }
    return true;
}

/* The gradient of the value is the sum over the new elements. */
void vjp_pad(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    struct shape from = *node_shape(g, n.in[0]), scalar = {0};
    uint32_t axis = n.attr.pad.axis, rank = from.rank;
    int64_t len = from.dim[axis], step = len == 0 || len == 1 ? 1 : n.attr.pad.interior + 1;
    din[0] = n_slice(g, dy, axis, n.attr.pad.low, len, step);
    ref old = n_broadcast(g, n_const(g, KL_BOOL, 0), &from);
    ref is_new = n_pad(g, old, n_const(g, KL_BOOL, 1), axis, n.attr.pad.low, n.attr.pad.high, n.attr.pad.interior);
    ref sum = n_reduce(g, OP_sum, n_where(g, is_new, dy, n_k(g, dy, 0)), (1u << rank) - 1);
    din[1] = n_reshape(g, sum, &scalar);
}

/* Is i within 0..last? 0: always.  Blocks as in lower_inside. */
static val is_within(struct kernel *k, val i, int64_t last)
{
    val block, rest;
    int64_t d = ix_split(k, i, last + 1, &block, &rest), lo, hi, max = (last + 1) / d - 1;
    ix_range(k, block, &lo, &hi);
    val above = lo < 0 ? k_prim(k, P_LE, k_int(k, 0), block, 0) : 0;
    val below = hi > max ? k_prim(k, P_LE, block, k_int(k, max), 0) : 0;
    return above && below ? k_prim(k, P_AND, above, below, 0) : above ? above : below;
}

/* The same for a last index that may have symbols. */
static val is_within_to(struct kernel *k, val i, val last)
{
    int64_t number, low, high, min, max;
    if (ix_const(k, last, &number))
        return is_within(k, i, number);
    ix_range(k, i, &low, &high);
    ix_range(k, last, &min, &max);
    val above = low < 0 ? k_prim(k, P_LE, k_int(k, 0), i, 0) : 0;
    val below = high > min ? k_prim(k, P_LE, i, last, 0) : 0;
    return above && below ? k_prim(k, P_AND, above, below, 0) : above ? above : below;
}

/* The last index of `length` elements, each `step` after the one before it; negative: there are none. */
static val last_index(struct kernel *k, struct size length, int64_t step)
{
    if (size_is_constant(length))
        return k_int(k, (length.number - 1) * step);
    return ix_scale(k, ix_sub(k, ix_size(k, length), k_int(k, 1)), step);
}

/* Must an operand of this length be read under a mask at index i, which may be outside of it?  Where it has no elements
 * for some values of the symbols, there is none to clamp to. */
static bool reads_masked(const struct kernel *k, val i, struct size length)
{
    return k->inst[i].varying || size_min(k->placeholders, length) == 0;
}

/* Where some lanes are inside and some outside, the operand is loaded under a mask.  Its index then stays linear, so
 * lanes that are adjacent in memory are loaded as a vector.  Where all lanes have the same answer, the index is clamped
 * to the operand, if it has elements. */
uint32_t lower_pad(struct lower *l, ref r, const uint32_t *coord)
{
    struct kernel *k = l->k;
    const struct node *n = node_at(l->g, r);
    const struct shape *from = node_shape(l->g, n->in[0]);
    uint32_t axis = n->attr.pad.axis;
    struct size len = kernel_length(k, from->dim[axis]);
    int64_t step = len.bound > 1 ? n->attr.pad.interior + 1 : 1;
    val zero[KL_MAX_RANK] = {0}, at[KL_MAX_RANK] = {0}, inside, before = l->where;
    val value = l->at(l, n->in[1], zero);
    if (len.bound == 0)
        return value;
    for (uint32_t i = 0; i < from->rank; i++)
        at[i] = coord[i];
    val place = ix_sub(k, coord[axis], ix_size(k, kernel_length(k, n->attr.pad.low)));
    bool masked = reads_masked(k, place, len);
    if (masked)
        inside = is_within_to(k, place, last_index(k, len, step));
    else
        place = lower_inside_to(k, place, last_index(k, len, step), &inside);
    at[axis] = ix_div(k, place, step);
    if (step > 1) {
        val rest = ix_mod(k, place, step), on;
        int64_t number;
        bool known = ix_const(k, rest, &number);
        if (known && number) /* between elements */
            return value;
        on = known ? 0 : k_prim(k, P_EQ, rest, k_int(k, 0), 0);
        inside = inside && on ? k_prim(k, P_AND, inside, on, 0) : inside ? inside : on;
    }
    if (masked && inside)
        l->where = before ? k_prim(k, P_AND, before, inside, 0) : inside;
    val x = l->at(l, n->in[0], at);
    l->where = before;
    return inside ? k_prim(k, P_SELECT, inside, x, value) : x;
}

/* ---- concat ---- */

bool shape_concat(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct node *a = node_at(g, n->in[0]);
    uint32_t axis = n->attr.axis.axis;
    *out = g->shape[a->shape];
    if (!axis_in_range("concat", out, axis, e))
        return false;
    int64_t total = out->dim[axis];
    for (unsigned i = 1; i < n->nin; i++) {
        const struct node *b = node_at(g, n->in[i]);
        struct shape like = g->shape[b->shape];
        char ta[SHAPE_TEXT], tb[SHAPE_TEXT];
        if (a->dtype != b->dtype)
            return err_set(e, KL_ERR_TYPE, "concat: dtypes %s and %s differ", dtype_name(a->dtype),
                           dtype_name(b->dtype));
        int64_t len = axis < like.rank ? like.dim[axis] : 0;
        if (axis < like.rank)
            like.dim[axis] = out->dim[axis];
        if (!shape_equal(&like, out))
            return err_set(e, KL_ERR_SHAPE, "concat: shapes %s and %s differ in more than axis %u",
                           shape_text_in(g, out, ta, sizeof ta), shape_text_in(g, &g->shape[b->shape], tb, sizeof tb),
                           axis);
        if (!dims_sum(g, 2, (struct scaled[]){{total, 1}, {len, 1}}, 0, &total))
            return err_set(e, KL_ERR_SHAPE, "concat: axis %u becomes too long", axis);
    }
    out->dim[axis] = total;
    n->dtype = a->dtype;
    return attr_clear_rest(n, sizeof n->attr.axis);
}

bool eval_concat(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    struct split to = split_at(&g->shape[n->shape], n->attr.axis.axis);
    size_t block = (size_t)to.inner * dtype_size(n->dtype);
    int64_t start = 0;
    for (unsigned i = 0; i < n->nin; i++) {
        int64_t len = node_shape(g, n->in[i])->dim[n->attr.axis.axis];
        for (int64_t o = 0; block && len && o < to.outer; o++)
            memcpy((char *)out + (size_t)(o * to.len + start) * block, (const char *)in[i] + (size_t)(o * len) * block,
                   (size_t)len * block);
        start += len;
    }
    return true;
}

void vjp_concat(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    int64_t start = 0;
    for (unsigned i = 0; i < n.nin; i++) {
        int64_t len = node_shape(g, n.in[i])->dim[n.attr.axis.axis];
        din[i] = n_slice(g, dy, n.attr.axis.axis, start, len, 1);
        start = dims_build(g, "concat", 2, (struct scaled[]){{start, 1}, {len, 1}}, 0);
    }
}

/* A sum of lengths: a number, and the others' value; 0: all are numbers. */
struct offset { int64_t number; val symbolic; };

/* Where operand i of a concat begins. */
static struct offset concat_offset(struct lower *l, const struct node *n, unsigned i)
{
    struct offset o = {0};
    for (unsigned before = 0; before < i; before++) {
        struct size len = kernel_length(l->k, node_shape(l->g, n->in[before])->dim[n->attr.axis.axis]);
        if (size_is_constant(len))
            o.number += len.number;
        else
            o.symbolic = o.symbolic ? ix_add(l->k, o.symbolic, ix_size(l->k, len)) : ix_size(l->k, len);
    }
    return o;
}

static val offset_value(struct kernel *k, const struct offset *o)
{
    return o->symbolic ? ix_add(k, o->symbolic, k_int(k, o->number)) : k_int(k, o->number);
}

/* Is index i before `end`?  Blocks as in lower_inside. */
static val is_before(struct kernel *k, val i, const struct offset *end)
{
    val block, rest;
    if (end->symbolic)
        return k_prim(k, P_LT, i, offset_value(k, end), 0);
    int64_t d = ix_split(k, i, end->number, &block, &rest);
    return k_prim(k, P_LT, block, k_int(k, end->number / d), 0);
}

/* Are many elements stacked along the axis?  Clamped to the only index there, an element of each operand would be
 * loaded for each of the result: four arrays of 3 MB in all take 2.4 times as long as under masks.  Of what a cache
 * has, masks cost more than loads. */
static bool stacks_arrays(const struct graph *g, ref r)
{
    enum { FEW = 2, MANY_ELEMENTS = 1 << 18 };
    const struct node *n = node_at(g, r);
    bool stacks = n->nin > FEW && !shape_is_symbolic(node_shape(g, r)) && node_numel(g, r) >= MANY_ELEMENTS;
    for (unsigned i = 0; i < n->nin; i++)
        stacks &= node_shape(g, n->in[i])->dim[n->attr.axis.axis] == 1;
    return stacks;
}

/* Selects the last operand, unless the element is before it, and so on down to the first.  Where the lanes need more
 * than one operand, each is loaded under a mask, as in pad. */
uint32_t lower_concat(struct lower *l, ref r, const uint32_t *coord)
{
    struct kernel *k = l->k;
    const struct node *n = node_at(l->g, r);
    uint32_t axis = n->attr.axis.axis;
    const bool stacks = stacks_arrays(l->g, r);
    val at[KL_MAX_RANK] = {0}, result = 0, before = l->where;
    for (uint32_t i = 0; i < node_shape(l->g, r)->rank; i++)
        at[i] = coord[i];
    for (unsigned i = n->nin; i-- > 0;) {
        struct size len = kernel_length(k, node_shape(l->g, n->in[i])->dim[axis]);
        struct offset start = concat_offset(l, n, i), end = concat_offset(l, n, i + 1);
        if (len.bound == 0)
            continue;
        val place = ix_sub(k, coord[axis], offset_value(k, &start)), inside;
        bool masked = stacks || reads_masked(k, place, len);
        at[axis] = masked ? place : lower_inside_to(k, place, last_index(k, len, 1), &inside);
        inside = masked ? is_within_to(k, place, last_index(k, len, 1)) : 0;
        if (inside)
            l->where = before ? k_prim(k, P_AND, before, inside, 0) : inside;
        val x = l->at(l, n->in[i], at);
        l->where = before;
        result = result ? k_prim(k, P_SELECT, is_before(k, coord[axis], &end), x, result) : x;
    }
    return result ? result : k_bits(k, n->dtype, 0); /* no elements, so never stored */
}

/* ---- gather ---- */

bool shape_gather(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct node *a = node_at(g, n->in[0]), *index = node_at(g, n->in[1]);
    const struct shape *is = &g->shape[index->shape];
    uint32_t axis = n->attr.axis.axis;
    char text[SHAPE_TEXT], bounds[BOUNDS_TEXT];
    *out = g->shape[a->shape];
    if (!index_is_integer("gather", "index", index->dtype, e))
        return false;
    if (is->rank != 1)
        return err_set(e, KL_ERR_SHAPE, "gather: the index must have rank 1, got %s",
                       shape_text_in(g, is, text, sizeof text));
    if (!axis_in_range("gather", out, axis, e))
        return false;
    if (indexes_empty_axis(g, out->dim[axis], is->dim[0]))
        return err_set(e, KL_ERR_SHAPE, "gather: axis %u of %s %s no elements%s", axis,
                       shape_text_in(g, out, text, sizeof text), out->dim[axis] ? "may have" : "has",
                       bounds_text(g, out, bounds, sizeof bounds));
    out->dim[axis] = is->dim[0];
    n->dtype = a->dtype;
    return attr_clear_rest(n, sizeof n->attr.axis);
}

bool eval_gather(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    struct split from = split_at(node_shape(g, n->in[0]), n->attr.axis.axis);
    int64_t count = node_shape(g, n->in[1])->dim[0];
    size_t block = (size_t)from.inner * dtype_size(n->dtype);
    for (int64_t o = 0; block && o < from.outer; o++)
        for (int64_t i = 0; i < count; i++) {
            int64_t at = index_at(node_at(g, n->in[1])->dtype, in[1], i, from.len - 1);
            memcpy((char *)out + (size_t)(o * count + i) * block,
                   (const char *)in[0] + (size_t)(o * from.len + at) * block, block);
        }
    return true;
}

void vjp_gather(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    din[0] = n_scatter(g, n_k(g, n.in[0], 0), n.in[1], dy, n.attr.axis.axis, SCATTER_ADD);
}

uint32_t lower_gather(struct lower *l, ref r, const uint32_t *coord)
{
    struct kernel *k = l->k;
    const struct node *n = node_at(l->g, r);
    const struct shape *from = node_shape(l->g, n->in[0]);
    uint32_t axis = n->attr.axis.axis;
    if (!from->dim[axis])
        return k_bits(k, n->dtype, 0); /* no elements, so never stored */
    val at[KL_MAX_RANK] = {0}, i = l->at(l, n->in[1], &coord[axis]);
    for (uint32_t d = 0; d < from->rank; d++)
        at[d] = coord[d];
    at[axis] = lower_index_to(k, i, ix_sub(k, ix_size(k, kernel_length(k, from->dim[axis])), k_int(k, 1)));
    return l->at(l, n->in[0], at);
}
