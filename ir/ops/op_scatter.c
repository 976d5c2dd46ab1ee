/* scatter: a with the slices of `update` combined into it along one axis, at the positions of an index.  The index is
 * clamped to its range as in gather, so each is the other's gradient. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include <string.h>

enum op scatter_op(enum scatter_kind kind)
{
    return kind == SCATTER_ADD ? OP_add : kind == SCATTER_MAX ? OP_max : kind == SCATTER_MIN ? OP_min : OP_nil;
}

bool shape_scatter(const struct graph *g, struct node *n, struct shape *out, struct err *e)
{
    const struct node *a = node_at(g, n->in[0]), *index = node_at(g, n->in[1]), *u = node_at(g, n->in[2]);
    const struct shape *is = &g->shape[index->shape], *us = &g->shape[u->shape];
    uint32_t axis = n->attr.scatter.axis, kind = n->attr.scatter.kind;
    char ta[SHAPE_TEXT], tu[SHAPE_TEXT];
    *out = g->shape[a->shape];
    if (kind > SCATTER_SET)
        return err_set(e, KL_ERR_INTERNAL, "scatter: unknown kind %u", kind);
    if (a->dtype != u->dtype)
        return err_set(e, KL_ERR_TYPE, "scatter: dtypes %s and %s differ", dtype_name(a->dtype), dtype_name(u->dtype));
    if (a->dtype == KL_BOOL && kind != SCATTER_SET)
        return err_set(e, KL_ERR_TYPE, "scatter: needs a number dtype, got bool");
    if (!index_is_integer("scatter", "index", index->dtype, e))
        return false;
    if (is->rank != 1)
        return err_set(e, KL_ERR_SHAPE, "scatter: the index must have rank 1, got %s",
                       shape_text_in(g, is, ta, sizeof ta));
    if (!axis_in_range("scatter", out, axis, e))
        return false;
    struct shape want = *out;
    want.dim[axis] = is->dim[0];
    if (!shape_equal(us, &want))
        return err_set(e, KL_ERR_SHAPE, "scatter: the update must be %s, got %s",
                       shape_text_in(g, &want, ta, sizeof ta), shape_text_in(g, us, tu, sizeof tu));
    if (indexes_empty_axis(g, out->dim[axis], is->dim[0]))
        return err_set(e, KL_ERR_SHAPE, "scatter: axis %u of %s %s no elements%s", axis,
                       shape_text_in(g, out, ta, sizeof ta), out->dim[axis] ? "may have" : "has",
                       bounds_text(g, out, tu, BOUNDS_TEXT));
    n->dtype = a->dtype;
    return attr_clear_rest(n, sizeof n->attr.scatter);
}

/* For each row of the index, one call on the contiguous inner elements. */
static bool scatter_array(const struct graph *g, const struct node *n, unsigned dtype, char *out, const void *index,
                          const char *update)
{
    struct split to = split_at(&g->shape[n->shape], n->attr.scatter.axis);
    unsigned index_dtype = node_at(g, n->in[1])->dtype;
    int64_t count = node_shape(g, n->in[1])->dim[0];
    enum op op = scatter_op((enum scatter_kind)n->attr.scatter.kind);
    size_t block = (size_t)to.inner * dtype_size(dtype);
    bool ok = true;
    for (int64_t o = 0; block && o < to.outer; o++)
        for (int64_t i = 0; ok && i < count; i++) {
            char *y = out + (size_t)(o * to.len + index_at(index_dtype, index, i, to.len - 1)) * block;
            const char *x = update + (size_t)(o * count + i) * block;
            if (op == OP_nil)
                memcpy(y, x, block);
            else
                ok = scalar_apply(op, dtype, y, (const void *const[]){y, x}, to.inner);
        }
    return ok;
}

static bool scatter_into_copy(const struct graph *g, const struct node *n, unsigned dtype, void *out,
                              const void *const *in)
{
    int64_t total = shape_count(&g->shape[n->shape]);
    if (total)
        memcpy(out, in[0], (size_t)total * dtype_size(dtype));
    return scatter_array(g, n, dtype, out, in[1], in[2]);
}

bool eval_scatter(const struct graph *g, const struct node *n, void *out, const void *const *in)
{
    return n->attr.scatter.kind == SCATTER_ADD ? eval_widened(g, n, out, in, scatter_into_copy)
                                               : scatter_into_copy(g, n, n->dtype, out, in);
}

/* Which positions of the index wrote their element last: only these affect a result of kind set. */
static ref wrote_last(struct graph *g, const struct node *n)
{
    struct shape positions = {.rank = 1, .dim = {node_shape(g, n->in[0])->dim[n->attr.scatter.axis]}};
    struct shape count = *node_shape(g, n->in[1]), along = {.rank = node_shape(g, n->in[2])->rank};
    ref position = n_iota(g, KL_I64, &count, 0);
    ref owner = n_scatter(g, n_broadcast(g, n_const(g, KL_I64, 0), &positions), n->in[1], position, 0, SCATTER_SET);
    ref last = n_eq(g, n_gather(g, owner, n->in[1], 0), position);
    for (uint32_t i = 0; i < along.rank; i++)
        along.dim[i] = i == n->attr.scatter.axis ? count.dim[0] : 1;
    return n_broadcast(g, n_reshape(g, last, &along), node_shape(g, n->in[2]));
}

/* max and min: all elements equal to the result, or NaN, share its gradient equally, as in reduce_max. */
void vjp_scatter(struct graph *g, ref y, ref dy, ref *din)
{
    const struct node n = *node_at(g, y);
    ref a = n.in[0], index = n.in[1], update = n.in[2];
    uint32_t axis = n.attr.scatter.axis;
    ref flows = n_gather(g, dy, index, axis);
    if (n.attr.scatter.kind == SCATTER_ADD) {
        din[0] = dy;
        din[2] = flows;
    } else if (n.attr.scatter.kind == SCATTER_SET) {
        din[0] = n_scatter(g, dy, index, n_k(g, update, 0), axis, SCATTER_SET);
        ref zero = n_k(g, update, 0);
        din[2] = n_where(g, wrote_last(g, &n), flows, zero);
    } else {
        ref kept = vjp_is_chosen(g, a, y), won = vjp_is_chosen(g, update, n_gather(g, y, index, axis));
        ref won_count = n_cast(g, won, n.dtype), kept_count = n_cast(g, kept, n.dtype);
        ref ties = n_scatter(g, kept_count, index, won_count, axis, SCATTER_ADD);
        ref share = n_div(g, dy, ties);
        din[0] = n_where(g, kept, share, n_k(g, a, 0));
        ref zero = n_k(g, update, 0);
        din[2] = n_where(g, won, n_gather(g, share, index, axis), zero);
    }
}

/* Emits one element: searches the whole index for it. */
uint32_t lower_scatter(struct lower *l, ref r, const uint32_t *coord)
{
    struct kernel *k = l->k;
    const struct node *n = node_at(l->g, r);
    enum op op = scatter_op((enum scatter_kind)n->attr.scatter.kind);
    uint32_t axis = n->attr.scatter.axis, rank = node_shape(l->g, r)->rank;
    int64_t last = node_shape(l->g, r)->dim[axis] - 1;
    unsigned dtype = op == OP_add ? dtype_compute(n->dtype) : n->dtype;
    val at[KL_MAX_RANK] = {0}, init = lower_lanes(l, k_cast(k, l->at(l, n->in[0], coord), dtype));
    for (uint32_t d = 0; d < rank; d++)
        at[d] = coord[d];
    val i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, node_shape(l->g, n->in[1])->dim[0]), 1);
    val acc = k_carry(k, init);
    at[axis] = i;
    val place = last < 0 ? k_int(k, 0) : lower_index(k, l->at(l, n->in[1], &i), last);
    val x = k_cast(k, l->at(l, n->in[2], at), dtype);
    val y = op == OP_nil ? x : k_op(k, op, (const val[]){acc, x});
    k_next(k, acc, k_prim(k, P_SELECT, k_prim(k, P_EQ, place, coord[axis], 0), y, acc));
    k_end(k, i);
    return k_cast(k, k_out(k, acc), n->dtype);
}
