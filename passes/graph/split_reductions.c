/* Splits a long reduction to few results into two, so that every thread has work: the first computes one result for
 * each chunk, the second combines them in order.
 *
 * The order is the one that pass numerics set (node.h, "Numeric order"): the first reduction's results are those of the
 * chunks, the second is the chain that combines them, and a shorter last chunk is added at its end.  The chain starts
 * from the identity, which does not change the first chunk's result: that is never -0, because its own chain started
 * from +0.  For half floats both reductions are in f32, and one rounding follows.
 *
 * In: any graph.  Out: the same bits.  Depends on shapes only. */
#include "ir/loop/loop.h"
#include "passes/passes.h"
#include "rewrite.h"

enum { FEW_TASKS = 16, MANY_ELEMENTS = 1 << 16, LANES = 64 };

/* A reduction of adjacent axes: [outer, length, inner]. */
struct reduced { int64_t outer, length, inner, chunk; };

static bool is_long(const struct graph *g, const struct node *n, struct reduced *r)
{
    if (!op_is_reduce(n->op) || !n->attr.reduce.lanes || !node_numel(g, n->in[0]))
        return false;
    const struct shape *s = node_shape(g, n->in[0]);
    *r = (struct reduced){1, 1, 1, (int64_t)n->attr.reduce.chunk};
    for (uint32_t d = 0; d < s->rank; d++) {
        bool reduced = n->attr.reduce.axes >> d & 1;
        if (reduced && r->inner > 1 && s->dim[d] != 1)
            return false;
        *(reduced ? &r->length : r->length > 1 ? &r->inner : &r->outer) *= s->dim[d];
    }
    int64_t tasks = r->outer * (n->attr.reduce.lanes == 1 ? (r->inner + LANES - 1) / LANES : r->inner);
    return tasks > 0 && tasks <= FEW_TASKS && r->length / 2 >= r->chunk &&
        r->outer * r->inner * r->length >= MANY_ELEMENTS;
}

/* Reduces the axis of x in chains of `chunk`. */
static ref reduce_axis(struct graph *g, const struct node *n, ref x, uint32_t axis, unsigned lanes, int64_t chunk)
{
    struct node proto = {.op = n->op, .nin = 1, .in = {x}, .flags = n->flags & MARK_STOP};
    proto.attr.reduce.axes = 1u << axis;
    proto.attr.reduce.lanes = lanes;
    proto.attr.reduce.chunk = (uint64_t)chunk;
    return x ? graph_add(g, &proto, NULL) : NIL;
}

static ref add_reshape(struct graph *g, ref x, uint32_t rank, const int64_t *dim)
{
    struct shape s = shape_make(rank, dim);
    return n_reshape(g, x, &s);
}

/* x is the reduction's operand in g; returns the replacement for the reduction n, of shape `out`. */
static ref two_stages(struct graph *g, const struct node *n, ref x, const struct reduced *r, const struct shape *out)
{
    unsigned dtype = dtype_compute(n->dtype), lanes = n->attr.reduce.lanes; /* f32 for half floats */
    int64_t full = r->length / r->chunk, rest = r->length % r->chunk;
    x = add_reshape(g, dtype == n->dtype ? x : n_cast(g, x, dtype), 3, (int64_t[]){r->outer, r->length, r->inner});
    ref head = rest ? n_slice(g, x, 1, 0, full * r->chunk, 1) : x;
    head = add_reshape(g, head, 4, (int64_t[]){r->outer, full, r->chunk, r->inner});
    head = reduce_axis(g, n, head, 2, lanes, r->chunk);
    head = add_reshape(g, head, 3, (int64_t[]){r->outer, full, r->inner});
    ref y = reduce_axis(g, n, head, 1, 1, full);
    if (rest) {
        ref tail = reduce_axis(g, n, n_slice(g, x, 1, full * r->chunk, rest, 1), 1, lanes, rest);
        struct node fold = {.op = (uint16_t)fold_op(reduce_fold(n->op)), .nin = 2, .in = {y, tail}};
        y = y && tail ? graph_add(g, &fold, NULL) : NIL;
    }
    y = n_reshape(g, y, out);
    return dtype == n->dtype ? y : n_cast(g, y, n->dtype);
}

int pass_split_reductions(struct graph *g, const struct pass_options *o)
{
    (void)o;
    struct rewrite w;
    struct reduced r;
    bool any = false;
    if (g->symbols)
        return 0;
    for (ref i = 1; i < g->nnode && !any; i++)
        any = is_long(g, &g->node[i], &r);
    if (!any)
        return 0;
    if (rewrite_begin(&w, g))
        for (ref i = 1; i < g->nnode && !w.to->err.code; i++) {
            const struct node *n = &g->node[i];
            rewrite_site(&w, i);
            if (is_long(g, n, &r))
                w.map[i] = two_stages(w.to, n, w.map[n->in[0]], &r, node_shape(g, i));
            else
                rewrite_copy(&w, i);
        }
    return rewrite_end(&w);
}
