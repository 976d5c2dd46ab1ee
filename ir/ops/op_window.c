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
    return attr_rest_zero(n, sizeof n->attr.window, e);
}

/* Stride and dilation, 1 where only one window or element exists. */
struct steps { int64_t stride, dilation; };

static struct steps steps_of(const struct graph *g, const struct node *n)
{
    bool one = g->shape[n->shape].dim[n->attr.window.axis] == 1;
    return (struct steps){one ? 1 : n->attr.window.stride, n->attr.window.size == 1 ? 1 : n->attr.window.dilation};
}

bool eval_window(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    const struct shape *a = node_shape(g, n->in[0]), *s = &g->shape[n->shape];
    uint32_t axis = n->attr.window.axis;
    struct shape from = coord_strides(a), step = from;
    struct steps by = steps_of(g, n);
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
static ref vjp_disjoint(struct graph *g, const struct node *n, ref dy, const struct steps *by)
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

/* The gradient of windows that overlap: each element gets the sum over the windows that contain it. dy as [.., j, i,
 * ..] gets `reach` zeros before its windows, zeros between them, and zeros after them, so that its rows have length +
 * reach elements.  Read from `reach` on in rows shorter by the dilation, element x of row j is element x + reach - j *
 * dilation: the window whose element j is x.  No row reads another's.  The rows are summed. */
static ref vjp_overlapping(struct graph *g, const struct node *n, ref dy, const struct steps *by)
{
    const struct shape from = *node_shape(g, n->in[0]);
    uint32_t axis = n->attr.window.axis;
    int64_t size = n->attr.window.size, length = from.dim[axis];
    int64_t reach = (size - 1) * by->dilation, row, all, read;
    struct scaled behind[] = {{length, 1}, {node_shape(g, dy)->dim[axis], -by->stride}};
    int64_t high = dims_build(g, "window", 2, behind, by->stride - 1);
    ref zero = n_const(g, n->dtype, dtype_bits(n->dtype, 0));
    ref rows = n_pad(g, elements_at(g, dy, axis), zero, axis + 1, reach, high, by->stride - 1);
    struct shape flat = from, split;
    if (!dims_sum(g, 1, &(struct scaled){length, 1}, reach, &row) ||
        !dims_sum(g, 1, &(struct scaled){row, size}, 0, &flat.dim[axis]) ||
        !dims_sum(g, 1, &(struct scaled){row, 1}, -by->dilation, &read) ||
        !dims_sum(g, 1, &(struct scaled){read, size}, 0, &all)) {
        err_set(&g->err, KL_ERR_SHAPE, "window: the gradient of windows of %lld elements becomes too large",
                (long long)size);
        return NIL;
    }
    split = split_rows(&from, axis, size, read);
    ref sheared = n_reshape(g, n_slice(g, n_reshape(g, rows, &flat), axis, reach, all, 1), &split);
    if (size > 2)
        sheared = n_slice(g, sheared, axis + 1, 0, length, 1);
    return n_reshape(g, n_reduce(g, OP_sum, sheared, 1u << axis), &from);
}

void vjp_window(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    struct steps by = steps_of(g, &n);
    bool apart = node_shape(g, y)->dim[n.attr.window.axis] == 1 || by.stride > (n.attr.window.size - 1) * by.dilation;
    din[0] = apart ? vjp_disjoint(g, &n, dy, &by) : vjp_overlapping(g, &n, dy, &by);
}

uint32_t lower_window(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    uint32_t axis = n->attr.window.axis, last = node_shape(l->g, r)->rank - 1;
    struct steps by = steps_of(l->g, n);
    val at[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < last; i++)
        at[i] = coord[i];
    at[axis] = ix_add(l->k, ix_scale(l->k, coord[axis], by.stride), ix_scale(l->k, coord[last], by.dilation));
    return l->at(l, n->in[0], at);
}
