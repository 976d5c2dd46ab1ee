/* A sum of pads with zeros that fill an axis without overlap is a concatenation of their operands: the gradient of a
 * tensor that was split into slices.  It reads each element once, and a concatenation of casts is then a cast of the
 * narrower concatenation (simplify.c).
 *
 * Each element of a sum of floats is x + 0, which is x but for -0, so +0 is added to the concatenation.
 *
 * Pads whose operands are elementwise stay: their kernel computes these (passes/fuse/fuse_pads.c), and that of a
 * concatenation does not.
 *
 * In: any graph; one with grad nodes is not changed.  Out: an equal graph. */
#include "passes/passes.h"
#include "rewrite.h"

enum { MAX_PADS = 16 };

struct pads { ref pad[MAX_PADS]; unsigned n; };

/* Does a kernel that reads r have to load it from memory? */
static bool pad_operand_is_stored(const struct graph *g, ref r)
{
    while (op_is_view(g->node[r].op) || g->node[r].op == OP_cast)
        r = g->node[r].in[0];
    return !op_is_elementwise(g->node[r].op);
}

static bool pads_with_zeros(const struct graph *g, ref r)
{
    const struct node *n = &g->node[r], *value = &g->node[n->in[1]];
    return op_is_masked(n->op) && !n->attr.pad.interior && n->attr.pad.low >= 0 && n->attr.pad.high >= 0 &&
           value->op == OP_const && !value->attr.konst.bits && !shape_is_symbolic(node_shape(g, r)) &&
           n->dtype != KL_BOOL && pad_operand_is_stored(g, n->in[0]);
}

static int64_t operand_length(const struct graph *g, ref pad)
{
    return node_shape(g, g->node[pad].in[0])->dim[g->node[pad].attr.pad.axis];
}

/* Does pad a's operand lie before b's?  One without elements lies before what begins at the same place. */
static bool lies_before(const struct graph *g, ref a, ref b)
{
    int64_t x = g->node[a].attr.pad.low, y = g->node[b].attr.pad.low;
    return x != y ? x < y : operand_length(g, a) < operand_length(g, b);
}

/* Lists the pads that r is a sum of, in the order in which they lie along their axis. false: r is something else. */
static bool list_pads(const struct graph *g, ref r, struct pads *p)
{
    const struct node *n = &g->node[r];
    if (n->op == OP_add)
        return list_pads(g, n->in[0], p) && list_pads(g, n->in[1], p);
    if (p->n == MAX_PADS || !pads_with_zeros(g, r) ||
        (p->n && n->attr.pad.axis != g->node[p->pad[0]].attr.pad.axis))
        return false;
    unsigned at = p->n++;
    for (; at && lies_before(g, r, p->pad[at - 1]); at--)
        p->pad[at] = p->pad[at - 1];
    p->pad[at] = r;
    return true;
}

/* Do they fill the axis, and no two of them the same place? */
static bool pads_fill_axis(const struct graph *g, const struct pads *p)
{
    int64_t end = 0;
    for (unsigned i = 0; i < p->n; i++) {
        if (g->node[p->pad[i]].attr.pad.low != end)
            return false;
        end += operand_length(g, p->pad[i]);
    }
    return end == node_shape(g, p->pad[0])->dim[g->node[p->pad[0]].attr.pad.axis];
}

static bool is_sum_of_pads(const struct graph *g, ref r, struct pads *p)
{
    p->n = 0;
    return g->node[r].op == OP_add && list_pads(g, r, p) && pads_fill_axis(g, p);
}

static ref concat_operands(const struct rewrite *w, const struct pads *p)
{
    ref part[MAX_PADS];
    const struct node *first = &w->from->node[p->pad[0]];
    for (unsigned i = 0; i < p->n; i++)
        part[i] = w->map[w->from->node[p->pad[i]].in[0]];
    ref all = n_concat(w->to, part, p->n, first->attr.pad.axis);
    return all && dtype_is_float(first->dtype) ? n_add(w->to, all, n_k(w->to, all, 0)) : all;
}

int pass_join_pads(struct graph *g, const struct pass_options *o)
{
    struct rewrite w;
    struct pads p;
    bool any = false;
    for (ref r = 1; r < g->nnode && !any; r++)
        any = is_sum_of_pads(g, r, &p);
    if (!any)
        return 0;
    if (rewrite_begin(&w, g))
        for (ref r = 1; r < g->nnode && !w.to->err.code; r++) {
            rewrite_site(&w, r);
            if (is_sum_of_pads(g, r, &p))
                w.map[r] = concat_operands(&w, &p);
            else
                rewrite_copy(&w, r);
        }
    int changed = rewrite_end(&w);
    return changed > 0 && pass_dce(g, o) < 0 ? -1 : changed; /* the pads that were replaced */
}
