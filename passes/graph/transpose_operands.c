/* On this machine's processor, the first operand of a large product is stored in the order in which it is multiplied
 * where steps of the contraction read lines of the same few cache sets.  A product reads its first operand in place,
 * the rows of a tile for each step; if rows are adjacent in memory, as in A^T B, and steps lie a large power of two
 * apart, the lines of a tile have no room in these sets and are loaded again for the next tile.  The transpose
 * (lower_transpose.c) is computed once, for all columns and threads, in the time of a few columns.
 *
 * Likewise stored is an operand that views take from every second or third element of an array.
 *
 * A^T B of 1024x512x1568 takes 0.75 of the time, of 2048x2048x512 0.47, of 4096x256x512 0.30; of 1000x512x1568, whose
 * lines lie in different sets, it would take 0.94, of 2000x2000x512 1.01.
 *
 * In: a graph with numeric orders.  Out: the same bits: products are added in the same order. */
#include "passes/passes.h"
#include "rewrite.h"

enum { MANY_COLUMNS = 128 }; /* by which each element is multiplied, at least */
/* Bytes of a way of the first-level cache: lines this far apart are in the same set.  Ways that it has at least. */
enum { WAY_BYTES = 4096, MIN_WAYS = 8 };
enum { LINE = 64 }; /* bytes of a cache line */
enum { TIMES = 4 }; /* as many steps as fit the cache that a block of the contraction has, at least */

/* The node below the permutes of r, and where each axis of r is in it. */
struct stored_axes { ref source; uint32_t axis[KL_MAX_RANK]; };

static struct stored_axes stored_axes(const struct graph *g, ref r)
{
    struct stored_axes s = {.source = r};
    for (uint32_t d = 0; d < KL_MAX_RANK; d++)
        s.axis[d] = d;
    for (; g->node[s.source].op == OP_permute; s.source = g->node[s.source].in[0])
        for (uint32_t d = 0; d < node_shape(g, r)->rank; d++)
            s.axis[d] = g->node[s.source].attr.permute.perm[s.axis[d]];
    return s;
}

/* The distance in memory of elements whose index in this axis differs by one. */
static int64_t distance_along(const struct shape *s, uint32_t axis)
{
    int64_t n = 1;
    while (++axis < s->rank)
        n *= s->dim[axis];
    return n;
}

/* Steps of `bytes` whose lines the first-level cache has room for at once. */
static int64_t steps_in_cache(int64_t bytes, int64_t l1_bytes)
{
    int64_t ways = l1_bytes / WAY_BYTES, apart = WAY_BYTES;
    while (apart > LINE && bytes % apart)
        apart /= 2;
    return WAY_BYTES / apart * (ways > MIN_WAYS ? ways : MIN_WAYS);
}

/* Is r every so-manieth element of what its views read, as the weights of a convolution's phase are?  Then a tile's
 * lines hold few of its elements, whatever their distance. */
static bool skips_elements(const struct graph *g, ref r)
{
    bool skips = false;
    ref source = r;
    for (; op_is_view(g->node[source].op); source = g->node[source].in[0])
        skips |= slice_step(&g->node[source]) > 1;
    return skips && node_numel(g, r) > 0 && node_numel(g, source) >= 2 * node_numel(g, r);
}

static bool operand_conflicts(const struct graph *g, ref r, const struct pass_options *o)
{
    const struct node *n = &g->node[r];
    if (!op_is_product(n->op) || (n->dtype != KL_F32 && n->dtype != KL_F64) || !n->attr.dot.kblock ||
        !n->attr.dot.ncon || !o->processor.l1_bytes || !(o->processor.devices >> n->device & 1) ||
        g->node[n->in[0]].dtype != n->dtype)
        return false;
    struct dot_dims z = dot_sizes(g, n);
    struct stored_axes at = stored_axes(g, n->in[0]);
    const struct shape *s = node_shape(g, at.source);
    bool linear; /* below the permutes, elements lie in memory as they are numbered */
    node_source(g, at.source, &linear);
    if (z.n < MANY_COLUMNS || shape_is_symbolic(s) || shape_is_symbolic(node_shape(g, n->in[0])))
        return false;
    if (skips_elements(g, n->in[0]))
        return true;
    if (!linear)
        return false;
    /* the last axis in memory is one of rows */
    uint32_t last = s->rank;
    while (last > 0 && s->dim[last - 1] == 1)
        last--;
    for (unsigned i = 0; i < n->attr.dot.ncon; i++)
        if (!last || at.axis[axis_get(n->attr.dot.con_a, i)] == last - 1)
            return false;
    for (unsigned i = 0; i < n->attr.dot.nbatch; i++)
        if (at.axis[axis_get(n->attr.dot.batch_a, i)] == last - 1)
            return false;
    uint32_t step = at.axis[axis_get(n->attr.dot.con_a, n->attr.dot.ncon - 1u)];
    int64_t bytes = distance_along(s, step) * (int64_t)dtype_size(n->dtype);
    int64_t steps = s->dim[step] < n->attr.dot.kblock ? s->dim[step] : n->attr.dot.kblock;
    return steps >= TIMES * steps_in_cache(bytes, o->processor.l1_bytes);
}

/* Are these views of half floats that are widened below them? */
static bool is_of_halves(const struct graph *g, ref r)
{
    while (op_is_view(g->node[r].op))
        r = g->node[r].in[0];
    return g->node[r].op == OP_cast && g->node[r].dtype == KL_F32 && dtype_is_half(g->node[g->node[r].in[0]].dtype);
}

/* The same views of the half floats. */
static ref views_of_halves(struct rewrite *w, ref r)
{
    const struct node *n = &w->from->node[r];
    if (!op_is_view(n->op))
        return w->map[n->in[0]];
    ref in[MAX_OPERANDS] = {views_of_halves(w, n->in[0])};
    struct node view = *n;
    view.dtype = node_at(w->to, in[0])->dtype;
    return graph_copy_node(w->to, w->from, &view, in);
}

/* The product with its first operand stored as [batch, rows, contraction]. */
static ref product_of_stored(struct rewrite *w, ref r)
{
    struct node n = w->from->node[r];
    unsigned batch = n.attr.dot.nbatch, con = n.attr.dot.ncon;
    uint32_t rank = node_shape(w->from, n.in[0])->rank, batch_a = 0, con_a = 0;
    uint8_t perm[KL_MAX_RANK] = {0};
    uint32_t rows = dot_free_axes(rank, n.attr.dot.batch_a, batch, n.attr.dot.con_a, con, perm + batch);
    for (unsigned i = 0; i < batch; i++) {
        perm[i] = (uint8_t)axis_get(n.attr.dot.batch_a, i);
        batch_a = axis_put(batch_a, i, i);
    }
    for (unsigned i = 0; i < con; i++) {
        perm[batch + rows + i] = (uint8_t)axis_get(n.attr.dot.con_a, i);
        con_a = axis_put(con_a, i, batch + rows + i);
    }
    n.attr.dot.batch_a = batch_a;
    n.attr.dot.con_a = con_a;
    bool same = true;
    for (uint32_t d = 0; d < rank; d++)
        same &= perm[d] == d;
    /* a value of its own, of the same bits, which is stored because products do not compute their first operand */
    bool halves = is_of_halves(w->from, n.in[0]);
    ref first = halves ? views_of_halves(w, n.in[0]) : w->map[n.in[0]];
    first = same ? first : n_permute(w->to, first, perm);
    n.in[0] = halves ? n_cast(w->to, first, KL_F32) : n_bitcast(w->to, first, n.dtype);
    n.in[1] = w->map[n.in[1]];
    return n.in[0] ? graph_add(w->to, &n, NULL) : NIL;
}

int pass_transpose_operands(struct graph *g, const struct pass_options *o)
{
    struct rewrite w;
    bool any = false;
    for (ref r = 1; o && r < g->nnode && !any; r++)
        any = operand_conflicts(g, r, o);
    if (!any)
        return 0;
    if (rewrite_begin(&w, g))
        for (ref r = 1; r < g->nnode && !w.to->err.code; r++) {
            rewrite_site(&w, r);
            if (operand_conflicts(g, r, o))
                w.map[r] = product_of_stored(&w, r);
            else
                rewrite_copy(&w, r);
        }
    return rewrite_end(&w);
}
