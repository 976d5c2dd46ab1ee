/* window: a view of every sliding window along one axis, whose elements become a new last axis.  Convolution and
 * pooling are products and reductions of it. */
#include "ir/ir.h"
#include "ir/loop/loop.h"

/* The number of elements from the first to the last of a window, skipped ones included; false: too many. */
static bool window_span(int64_t size, int64_t dilation, int64_t *span)
{
    return !__builtin_mul_overflow(size - 1, dilation, span) && !__builtin_add_overflow(*span, 1, span);
}

bool shape_window(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct shape *a = node_shape(g, n->in[0]);
    uint32_t axis = n->attr.window.axis;
    int64_t size = n->attr.window.size, stride = n->attr.window.stride, dilation = n->attr.window.dilation, span, rest;
    char text[SHAPE_TEXT], bounds[BOUNDS_TEXT];
    if (axis >= a->rank)
        return err_set(e, KL_ERR_SHAPE, "window: axis %u is out of range for shape %s", axis,
                       shape_text_in(g, a, text, sizeof text));
    if (a->rank == KL_MAX_RANK)
        return err_set(e, KL_ERR_SHAPE, "window: %s has as many axes as a tensor can have",
                       shape_text_in(g, a, text, sizeof text));
    if (size < 1 || stride < 1 || dilation < 1)
        return err_set(e, KL_ERR_SHAPE, "window: size %lld, stride %lld, dilation %lld: none may be below 1",
                       (long long)size, (long long)stride, (long long)dilation);
    if (!window_span(size, dilation, &span) || !dims_sum(g, 1, &(struct scaled){a->dim[axis], 1}, -span, &rest))
        return err_set(e, KL_ERR_SHAPE, "window: size %lld with dilation %lld does not fit in axis %u of %s%s",
                       (long long)size, (long long)dilation, axis, shape_text_in(g, a, text, sizeof text),
                       bounds_text(g, &(struct shape){.rank = 1, .dim = {a->dim[axis]}}, bounds, sizeof bounds));
    *out = *a;
    if (!dim_divide(g, rest, stride, &rest) || !dims_sum(g, 1, &(struct scaled){rest, 1}, 1, &out->dim[axis]))
        return err_set(e, KL_ERR_SHAPE, "window: how many windows axis %u of %s has, one every %lld elements, is no "
                       "affine expression", axis, shape_text_in(g, a, text, sizeof text), (long long)stride);
    out->dim[out->rank++] = size;
    n->dtype = node_at(g, n->in[0])->dtype;
    if (n->attr.window.zero)
        return err_set(e, KL_ERR_INTERNAL, "window: an unused attribute is not 0");
    return attr_clear_rest(n, sizeof n->attr.window);
}

/* Stride and dilation, 1 where only one window or element exists. */
struct window_steps { int64_t stride, dilation; };

static struct window_steps steps_of(const struct graph *g, const struct node *n)
{
    bool one = g->shape[n->shape].dim[n->attr.window.axis] == 1;
    return (struct window_steps){one ? 1 : n->attr.window.stride, n->attr.window.size == 1 ? 1
        : n->attr.window.dilation};
}

bool eval_window(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    const struct shape *a = node_shape(g, n->in[0]), *s = &g->shape[n->shape];
    uint32_t axis = n->attr.window.axis;
    struct shape from = coord_strides(a), step = from;
    struct window_steps by = steps_of(g, n);
    step.dim[step.rank++] = from.dim[axis] * by.dilation;
    step.dim[axis] = from.dim[axis] * by.stride;
    gather(out, in[0], dtype_size(n->dtype), s, &step);
    return true;
}

/* dy with the windows' elements as axis `at`, all other axes in order. */
static ref elements_at(struct graph *g, ref dy, uint32_t at)
{
    uint32_t last = node_shape(g, dy)->rank - 1;
    uint8_t perm[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i <= last; i++)
        perm[i] = (uint8_t)(i < at ? i : i == at ? last : i - 1);
    return n_permute(g, dy, perm);
}

/* s without axis `at`. */
static struct shape without_axis(const struct shape *s, uint32_t at)
{
    struct shape t = *s;
    t.rank--;
    for (uint32_t i = at; i < t.rank; i++)
        t.dim[i] = s->dim[i + 1];
    t.dim[t.rank] = 0;
    return t;
}

/* s with axis `at` split into rows of `length`. */
static struct shape split_rows(const struct shape *s, uint32_t at, int64_t rows, int64_t length)
{
    struct shape t = *s;
    t.rank++;
    for (uint32_t i = s->rank; i > at + 1; i--)
        t.dim[i] = s->dim[i - 1];
    t.dim[at] = rows;
    t.dim[at + 1] = length;
    return t;
}

/* The gradient of windows that do not overlap: their elements, with zeros for elements in no window. */
static ref vjp_disjoint(struct graph *g, const struct node *n, ref dy, const struct window_steps *by)
{
    struct shape s = *node_shape(g, n->in[0]);
    uint32_t axis = n->attr.window.axis;
    int64_t length = s.dim[axis], count = node_shape(g, dy)->dim[axis], size = n->attr.window.size;
    int64_t span = (size - 1) * by->dilation + 1, stride = count == 1 ? length : by->stride;
    ref zero = n_const(g, n->dtype, dtype_bits(n->dtype, 0));
    ref rows = n_pad(g, elements_at(g, dy, axis + 1), zero, axis + 1, 0, stride - span, by->dilation - 1);
    /* elements after the last window, or negative: too many elements */
    struct scaled rest[] = {{length, 1}, {count, -stride}};
    s.dim[axis] = dims_build(g, "window", 1, &(struct scaled){count, stride}, 0);
    ref all = n_reshape(g, rows, &s);
    if (!dims_never_negative(g, 2, rest, 0))
        return n_slice(g, all, axis, 0, length, 1);
    return n_pad(g, all, zero, axis, 0, dims_build(g, "window", 2, rest, 0), 0);
}

/* dy as [.., j, i, ..], element j of window i, from axis `axis` on, becomes [.., j, x, ..], x below `length`: the
 * element j of the window whose element j is x, or 0 if there is none.  dy gets `reach` zeros before its windows, zeros
 * between them, and zeros after them, so that its rows have length + reach elements.  Read from `reach` on in rows
 * shorter by the dilation, element x of row j is element x + reach - j * dilation.  No row reads another's. */
static ref elements_in_place(struct graph *g, ref dy, uint32_t axis, int64_t length, const struct window_steps *by)
{
    if (g->err.code != KL_OK)
        return NIL;
    const struct shape s = *node_shape(g, dy);
    int64_t size = s.dim[axis], reach = (size - 1) * by->dilation, row, all, read;
    struct scaled behind[] = {{length, 1}, {s.dim[axis + 1], -by->stride}};
    int64_t high = dims_build(g, "window", 2, behind, by->stride - 1);
    ref zero = n_const(g, node_at(g, dy)->dtype, dtype_bits(node_at(g, dy)->dtype, 0));
    ref rows = n_pad(g, dy, zero, axis + 1, reach, high, by->stride - 1);
    struct shape flat = without_axis(&s, axis), split = s;
    if (!dims_sum(g, 1, &(struct scaled){length, 1}, reach, &row) ||
        !dims_sum(g, 1, &(struct scaled){row, size}, 0, &flat.dim[axis]) ||
        !dims_sum(g, 1, &(struct scaled){row, 1}, -by->dilation, &read) ||
        !dims_sum(g, 1, &(struct scaled){read, size}, 0, &all)) {
        err_set(&g->err, KL_ERR_SHAPE, "window: the gradient of windows of %lld elements becomes too large",
                (long long)size);
        return NIL;
    }
    split.dim[axis + 1] = read;
    ref sheared = n_reshape(g, n_slice(g, n_reshape(g, rows, &flat), axis, reach, all, 1), &split);
    return size > 2 ? n_slice(g, sheared, axis + 1, 0, length, 1) : sheared;
}

/* The gradient of windows that overlap: each element gets the sum over the windows that contain it. */
static ref vjp_overlapping(struct graph *g, const struct node *n, ref dy, const struct window_steps *by)
{
    const struct shape from = *node_shape(g, n->in[0]);
    uint32_t axis = n->attr.window.axis;
    ref rows = elements_in_place(g, elements_at(g, dy, axis), axis, from.dim[axis], by);
    return n_reshape(g, n_reduce(g, OP_sum, rows, 1u << axis), &from);
}

/* The same for windows of adjacent elements and a stride above 1.  Element x = m * stride + p, with p below the stride,
 * only lies at positions q * stride + p of windows: in window m - q.  So for each p the gradient is that of windows
 * with stride 1, whose sums read adjacent elements and have no terms that are always 0.  dy as [.., j, i, ..] becomes
 * [.., p, q, i, ..], the sums over q [.., p, 1, m, ..], and these [.., m * stride + p, ..]. */
static ref vjp_strided(struct graph *g, const struct node *n, ref dy, int64_t stride)
{
    const struct shape from = *node_shape(g, n->in[0]);
    uint32_t axis = n->attr.window.axis;
    int64_t size = n->attr.window.size, rows = (size - 1) / stride + 1, count = node_shape(g, dy)->dim[axis];
    uint8_t swap[KL_MAX_RANK], back[KL_MAX_RANK];
    ref r = elements_at(g, dy, axis);
    if (g->err.code != KL_OK)
        return NIL;
    struct shape split = split_rows(node_shape(g, r), axis, rows, stride), joined = from;
    for (uint32_t d = 0; d < KL_MAX_RANK; d++)
        swap[d] = back[d] = (uint8_t)(d < split.rank ? d : 0);
    swap[axis] = back[axis + 2] = (uint8_t)(axis + 1);
    swap[axis + 1] = (uint8_t)axis;
    back[axis] = (uint8_t)(axis + 2);
    back[axis + 1] = (uint8_t)axis;
    if (rows * stride > size)
        r = n_pad(g, r, n_const(g, n->dtype, dtype_bits(n->dtype, 0)), axis, 0, rows * stride - size, 0);
    r = n_permute(g, n_reshape(g, r, &split), swap);
    /* windows of stride 1 span count + rows - 1 elements; less than one more lies behind the last window */
    int64_t span = dims_build(g, "window", 1, &(struct scaled){count, 1}, rows);
    joined.dim[axis] = dims_build(g, "window", 1, &(struct scaled){span, stride}, 0);
    r = n_reduce(g, OP_sum, elements_in_place(g, r, axis + 1, span, &(struct window_steps){1, 1}), 1u << (axis + 1));
    return n_slice(g, n_reshape(g, n_permute(g, r, back), &joined), axis, 0, from.dim[axis], 1);
}

void vjp_window(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    struct window_steps by = steps_of(g, &n);
    bool apart = node_shape(g, y)->dim[n.attr.window.axis] == 1 || by.stride > (n.attr.window.size - 1) * by.dilation;
    bool phases = by.stride > 1 && by.dilation == 1 && node_shape(g, y)->rank < KL_MAX_RANK;
    din[0] = apart    ? vjp_disjoint(g, &n, dy, &by)
             : phases ? vjp_strided(g, &n, dy, by.stride)
                      : vjp_overlapping(g, &n, dy, &by);
}

uint32_t lower_window(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    uint32_t axis = n->attr.window.axis, last = node_shape(l->g, r)->rank - 1;
    struct window_steps by = steps_of(l->g, n);
    val at[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < last; i++)
        at[i] = coord[i];
    at[axis] = ix_add(l->k, ix_scale(l->k, coord[axis], by.stride), ix_scale(l->k, coord[last], by.dilation));
    return l->at(l, n->in[0], at);
}
