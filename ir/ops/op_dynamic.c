/* dynamic_slice, dynamic_update: a window of one axis whose start is a scalar operand.  The start is clamped so that
 * the whole window fits.  Each is the gradient of the other. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include <string.h>

static bool start_is_index(const struct graph *g, const struct node *n, ref start, struct err *e)
{
    const char *op = opinfo[n->op].name;
    char text[SHAPE_TEXT];
    if (!index_is_integer(op, "start", node_at(g, start)->dtype, e))
        return false;
    return node_shape(g, start)->rank == 0 || err_set(e, KL_ERR_SHAPE, "%s: the start must be a scalar, got %s", op,
                                                      shape_text_in(g, node_shape(g, start), text, sizeof text));
}

/* Where `count` elements of an axis of `length` start: within it. */
static val lower_start(struct lower *l, ref start, int64_t length, int64_t count)
{
    struct kernel *k = l->k;
    const val none[KL_MAX_RANK] = {0};
    struct size whole = kernel_length(k, length), part = kernel_length(k, count);
    val i = l->at(l, start, none);
    if (size_is_constant(whole) && size_is_constant(part))
        return lower_index(k, i, whole.number - part.number);
    val last = ix_sub(k, ix_size(k, whole), ix_size(k, part));
    ix_assume_range(k, last, 0, ix_max(k, whole));
    return lower_index_to(k, i, last);
}

/* ---- dynamic_slice ---- */

bool shape_dynamic_slice(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    uint32_t axis = n->attr.slice.axis;
    int64_t count = n->attr.slice.count;
    char text[SHAPE_TEXT], many[DIM_TEXT], bounds[BOUNDS_TEXT];
    *out = *node_shape(g, n->in[0]);
    if (!axis_in_range("dynamic_slice", out, axis, e) || !start_is_index(g, n, n->in[1], e))
        return false;
    if (!dim_exists(g, count) || !dim_at_most(g, count, out->dim[axis])) {
        struct shape both = {.rank = 2, .dim = {out->dim[axis], count}};
        return err_set(e, KL_ERR_SHAPE, "dynamic_slice: %s elements do not lie in axis %u of %s%s",
                       dim_text(g, count, many, sizeof many), axis, shape_text_in(g, out, text, sizeof text),
                       bounds_text(g, &both, bounds, sizeof bounds));
    }
    out->dim[axis] = count;
    n->dtype = node_at(g, n->in[0])->dtype;
    if (n->attr.slice.zero || n->attr.slice.start || n->attr.slice.step)
        return err_set(e, KL_ERR_INTERNAL, "dynamic_slice: an unused attribute is not 0");
    return attr_clear_rest(n, sizeof n->attr.slice);
}

bool eval_dynamic_slice(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    struct split from = split_at(node_shape(g, n->in[0]), n->attr.slice.axis);
    int64_t count = n->attr.slice.count, start = index_at(node_at(g, n->in[1])->dtype, in[1], 0, from.len - count);
    size_t block = (size_t)from.inner * dtype_size(n->dtype), part = (size_t)count * block;
    for (int64_t o = 0; part && o < from.outer; o++)
        memcpy((char *)out + (size_t)o * part, (const char *)in[0] + (size_t)(o * from.len + start) * block, part);
    return true;
}

void vjp_dynamic_slice(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    din[0] = n_dynamic_update(g, n_k(g, n.in[0], 0), dy, n.in[1], n.attr.slice.axis);
}

uint32_t lower_dynamic_slice(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    const struct shape *from = node_shape(l->g, n->in[0]);
    uint32_t axis = n->attr.slice.axis;
    val at[KL_MAX_RANK] = {0};
    for (uint32_t d = 0; d < from->rank; d++)
        at[d] = coord[d];
    at[axis] = ix_add(l->k, coord[axis], lower_start(l, n->in[1], from->dim[axis], n->attr.slice.count));
    return l->at(l, n->in[0], at);
}

/* ---- dynamic_update ---- */

bool shape_dynamic_update(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct node *a = node_at(g, n->in[0]), *u = node_at(g, n->in[1]);
    struct shape like = g->shape[u->shape];
    uint32_t axis = n->attr.axis.axis;
    char ta[SHAPE_TEXT], tu[SHAPE_TEXT];
    *out = g->shape[a->shape];
    if (a->dtype != u->dtype)
        return err_set(e, KL_ERR_TYPE, "dynamic_update: dtypes %s and %s differ", dtype_name(a->dtype),
                       dtype_name(u->dtype));
    if (!axis_in_range("dynamic_update", out, axis, e) || !start_is_index(g, n, n->in[2], e))
        return false;
    int64_t count = axis < like.rank ? like.dim[axis] : 0;
    if (axis < like.rank)
        like.dim[axis] = out->dim[axis];
    if (!shape_equal(&like, out) || !dim_at_most(g, count, out->dim[axis])) {
        struct shape both = {.rank = 2, .dim = {out->dim[axis], count}};
        char bounds[BOUNDS_TEXT];
        return err_set(e, KL_ERR_SHAPE, "dynamic_update: %s is no window of %s along axis %u%s",
                       shape_text_in(g, &g->shape[u->shape], tu, sizeof tu), shape_text_in(g, out, ta, sizeof ta), axis,
                       bounds_text(g, axis < like.rank ? &both : out, bounds, sizeof bounds));
    }
    n->dtype = a->dtype;
    return attr_clear_rest(n, sizeof n->attr.axis);
}

bool eval_dynamic_update(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    struct split to = split_at(&g->shape[n->shape], n->attr.axis.axis);
    int64_t count = node_shape(g, n->in[1])->dim[n->attr.axis.axis];
    int64_t start = index_at(node_at(g, n->in[2])->dtype, in[2], 0, to.len - count);
    size_t block = (size_t)to.inner * dtype_size(n->dtype), part = (size_t)count * block;
    if (node_bytes(g, n->in[0]))
        memcpy(out, in[0], node_bytes(g, n->in[0]));
    for (int64_t o = 0; part && o < to.outer; o++)
        memcpy((char *)out + (size_t)(o * to.len + start) * block, (const char *)in[1] + (size_t)o * part, part);
    return true;
}

void vjp_dynamic_update(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    uint32_t axis = n.attr.axis.axis;
    din[0] = n_dynamic_update(g, dy, n_k(g, n.in[1], 0), n.in[2], axis);
    din[1] = n_dynamic_slice(g, dy, n.in[2], axis, node_shape(g, n.in[1])->dim[axis]);
}

uint32_t lower_dynamic_update(struct lower *l, ref r, const uint32_t *coord)
{
    const struct node *n = node_at(l->g, r);
    const struct shape *to = node_shape(l->g, r);
    uint32_t axis = n->attr.axis.axis;
    int64_t count = node_shape(l->g, n->in[1])->dim[axis];
    val at[KL_MAX_RANK] = {0}, inside;
    val old = l->at(l, n->in[0], coord);
    if (count == 0)
        return old;
    for (uint32_t d = 0; d < to->rank; d++)
        at[d] = coord[d];
    val start = lower_start(l, n->in[2], to->dim[axis], count), place = ix_sub(l->k, coord[axis], start);
    struct size part = kernel_length(l->k, count);
    val last = size_is_constant(part) ? k_int(l->k, count - 1)
                                      : ix_sub(l->k, ix_size(l->k, part), k_int(l->k, 1));
    at[axis] = lower_inside_to(l->k, place, last, &inside);
    val new = l->at(l, n->in[1], at);
    return inside ? k_prim(l->k, P_SELECT, inside, new, old) : new;
}
