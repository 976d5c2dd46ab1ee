/* More views: slice, flip.  They only compute the operand's coordinates. */
#include "ir/ir.h"
#include "ir/loop/loop.h"

/* ---- slice: one axis a node; the gradient is a pad ---- */

static bool slice_fits(const struct graph *g, int64_t len, int64_t start, int64_t count, int64_t step)
{
    int64_t last;
    if (g->symbols && step > 0 && (len < 0 || start < 0 || count < 0)) /* start and the last element must be in range */
        return dim_at_most(g, start, len) &&
               dims_never_negative(g, 3, (struct scaled[]){{len, 1}, {start, -1}, {count, -step}}, step - 1);
    if (start < 0 || count < 0 || step < 1 || start > len)
        return false;
    if (count == 0)
        return true;
    return !__builtin_mul_overflow(count - 1, step, &last) && !__builtin_add_overflow(last, start, &last) && last < len;
}

bool shape_slice(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct shape *a = node_shape(g, n->in[0]);
    uint32_t axis = n->attr.slice.axis;
    int64_t start = n->attr.slice.start, count = n->attr.slice.count, step = n->attr.slice.step;
    char text[SHAPE_TEXT], from[DIM_TEXT], many[DIM_TEXT], bounds[BOUNDS_TEXT];
    if (axis >= a->rank)
        return err_set(e, KL_ERR_SHAPE, "slice: axis %u is out of range for shape %s", axis,
                       shape_text_in(g, a, text, sizeof text));
    if (!slice_fits(g, a->dim[axis], start, count, step)) {
        struct shape all = {.rank = 3, .dim = {a->dim[axis], start, count}};
        return err_set(e, KL_ERR_SHAPE, "slice: %s elements from %s in steps of %lld do not lie in axis %u of %s%s",
                       dim_text(g, count, many, sizeof many), dim_text(g, start, from, sizeof from), (long long)step,
                       axis, shape_text_in(g, a, text, sizeof text), bounds_text(g, &all, bounds, sizeof bounds));
    }
    *out = *a;
    out->dim[axis] = count;
    n->dtype = node_at(g, n->in[0])->dtype;
    if (n->attr.slice.zero)
        return err_set(e, KL_ERR_INTERNAL, "slice: an unused attribute is not 0");
    return attr_clear_rest(n, sizeof n->attr.slice);
}

bool eval_slice(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    const struct shape *a = node_shape(g, n->in[0]), *s = &g->shape[n->shape];
    size_t elem = dtype_size(n->dtype);
    uint32_t axis = n->attr.slice.axis;
    struct shape stride = coord_strides(a);
    if (shape_count(s) == 0)
        return true;
    const char *first = (const char *)in[0] + (size_t)(n->attr.slice.start * stride.dim[axis]) * elem;
    stride.dim[axis] *= n->attr.slice.step;
    gather(out, first, elem, s, &stride);
    return true;
}

void vjp_slice(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    int64_t len = node_shape(g, n.in[0])->dim[n.attr.slice.axis], count = n.attr.slice.count;
    int64_t start = count ? n.attr.slice.start : 0, step = count == 0 || count == 1 ? 1 : n.attr.slice.step;
    int64_t high = count ? dims_build(g, "slice", 3, (struct scaled[]){{len, 1}, {start, -1}, {count, -step}}, step - 1)
                         : len;
    ref zero = n_const(g, n.dtype, dtype_bits(n.dtype, 0));
    din[0] = n_pad(g, dy, zero, n.attr.slice.axis, start, high, step - 1);
}

uint32_t lower_slice(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    uint32_t axis = n->attr.slice.axis;
    int64_t step = n->attr.slice.count > 1 ? n->attr.slice.step : 1;
    val at[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < node_shape(l->g, r)->rank; i++)
        at[i] = coord[i];
    val start = ix_size(l->k, kernel_length(l->k, n->attr.slice.start));
    at[axis] = ix_add(l->k, ix_scale(l->k, coord[axis], step), start);
    return l->at(l, n->in[0], at);
}

int64_t slice_step(const struct node *n) { return n->op == OP_slice ? n->attr.slice.step : 0; }

/* ---- flip ---- */

bool shape_flip(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    *out = *node_shape(g, n->in[0]);
    char text[SHAPE_TEXT];
    if (n->attr.flip.axes >> out->rank)
        return err_set(e, KL_ERR_SHAPE, "flip: axes are out of range for shape %s",
                       shape_text_in(g, out, text, sizeof text));
    n->dtype = node_at(g, n->in[0])->dtype;
    return attr_clear_rest(n, sizeof n->attr.flip);
}

bool eval_flip(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    const struct shape *s = &g->shape[n->shape];
    size_t elem = dtype_size(n->dtype);
    struct shape stride = coord_strides(s);
    const char *first = in[0];
    if (shape_count(s) == 0)
        return true;
    for (uint32_t i = 0; i < s->rank; i++)
        if (n->attr.flip.axes >> i & 1) {
            first += (size_t)((s->dim[i] - 1) * stride.dim[i]) * elem;
            stride.dim[i] = -stride.dim[i];
        }
    gather(out, first, elem, s, &stride);
    return true;
}

void vjp_flip(struct graph *g, ref y, ref dy, ref *din)
{
    din[0] = n_flip(g, dy, node_at(g, y)->attr.flip.axes);
}

uint32_t lower_flip(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    const struct shape *s = node_shape(l->g, r);
    val at[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < s->rank; i++) {
        at[i] = coord[i];
        if (!(n->attr.flip.axes >> i & 1))
            continue;
        struct size length = kernel_length(l->k, s->dim[i]);
        at[i] = ix_sub(l->k, ix_sub(l->k, ix_size(l->k, length), k_int(l->k, 1)), coord[i]);
        if (!size_is_constant(length)) /* of elements that exist */
            ix_bound(l->k, at[i], 0, ix_max(l->k, length) - 1);
    }
    return l->at(l, n->in[0], at);
}
