/* On this machine's processor a product of half floats whose operands are multiplied many times becomes one of f32, of
 * operands that are widened once.  A half float's product is a sum of f32 that is rounded once (node.h, "Numeric
 * order"), so it has the same bits; and the widened product is as fast as one of f32: no element of a tile is widened
 * where it is multiplied, and windows of convolutions are read in place.  Operands are widened among their views and
 * pads where they have fewest elements: mostly below them.  What a later product needs again, as a gradient does, is
 * widened again: so half floats are kept until then, not f32.
 *
 * A direct convolution widens what it loads (fuse_rules.c), so its operands have casts of their own, below their views.
 *
 * In: a graph with numeric orders.  Out: the same bits.  Products in the orders of processors' instructions for bf16
 * stay: these multiply bf16 at a higher rate. */
#include "passes/passes.h"
#include "ir/math/half.h"
#include "rewrite.h"

/* Multiplications for each element of the first operand, and of the second one: it is widened where it is packed, and
 * windows are read in place. */
enum { MANY = 128, MANY_PACKED = 32, MANY_WINDOWS = 8 };
enum { LATER = 4 }; /* products from one that widens an operand to one that widens it again */

/* Per node of the old graph: it in f32, or NIL, and the number of the product that it was made for.  own: what is made
 * is for one product only, and not noted. */
struct widened { ref *wide; uint32_t *made, products; bool own; };

static bool is_view_or_pad(const struct node *n) { return op_is_view(n->op) || op_is_masked(n->op); }

/* Of r and the nodes below its views and pads, the one with the fewest elements: the one to widen. */
static ref widened_source(const struct graph *g, ref r)
{
    ref least = r;
    while (is_view_or_pad(&g->node[r])) {
        r = g->node[r].in[0];
        least = node_numel(g, r) <= node_numel(g, least) ? r : least;
    }
    return least;
}

static bool has_windows(const struct graph *g, ref r)
{
    while (is_view_or_pad(&g->node[r]) && g->node[r].op != OP_window)
        r = g->node[r].in[0];
    return g->node[r].op == OP_window;
}

static bool product_is_widened(const struct graph *g, ref r, const struct pass_options *o)
{
    const struct node *n = &g->node[r];
    if (!op_is_product(n->op) || !dtype_is_half(n->dtype) || !n->attr.dot.kblock || n->attr.dot.order & DOT_ORDERS ||
        !(o->processor.devices >> n->device & 1))
        return false;
    if (dot_widens_in_place(g, r, &o->processor))
        return true;
    struct dot_dims z = dot_sizes(g, n);
    double products = (double)z.batch * (double)z.m * (double)z.n * (double)z.k;
    int64_t first = node_numel(g, widened_source(g, n->in[0])), second = node_numel(g, widened_source(g, n->in[1]));
    int64_t each = has_windows(g, n->in[1]) ? MANY_WINDOWS : MANY_PACKED;
    return products >= MANY * (double)first && products >= (double)each * (double)second;
}

/* Is r, below views and pads, a cast of half floats that has views or pads below it, too? */
static bool is_widened_above(const struct graph *g, ref r)
{
    while (is_view_or_pad(&g->node[r]))
        r = g->node[r].in[0];
    const struct node *n = &g->node[r];
    return n->op == OP_cast && dtype_is_half(g->node[n->in[0]].dtype) && is_view_or_pad(&g->node[n->in[0]]);
}

/* Is r a direct convolution of f32 with such an operand?  Below all pads the cast is no array. */
static bool sinks_casts(const struct graph *g, ref r, const struct pass_options *o)
{
    const struct node *n = &g->node[r];
    return op_is_product(n->op) && (is_widened_above(g, n->in[0]) || is_widened_above(g, n->in[1])) &&
           dot_is_direct(g, r) && dot_widens_in_place(g, r, &o->processor);
}

/* The value that a pad writes stays a number, which kernels that read the pad's operand in place need to know. */
static ref widen_const(struct graph *g, const struct node *n)
{
    uint16_t bits = (uint16_t)n->attr.konst.bits;
    float x = n->dtype == KL_BF16 ? bf16_value((struct bf16){bits}) : f16_value((struct f16){bits});
    return n_const(g, KL_F32, half_float_bits(x));
}

static bool is_zero_pad(const struct graph *g, ref r)
{
    const struct node *n = &g->node[r];
    return op_is_masked(n->op) && n->dtype == KL_F32 && g->node[n->in[1]].op == OP_const &&
           !g->node[n->in[1]].attr.konst.bits;
}

/* What r of f32, rounded to half floats, is in f32: rounded below its pads with zeros, which then stay pads of an array
 * in memory, and products read windows of that in place. */
static ref round_below_pads(struct rewrite *w, ref r, unsigned half)
{
    const struct node *n = &w->from->node[r];
    if (!is_zero_pad(w->from, r))
        return n_cast(w->to, n_cast(w->to, w->map[r], half), KL_F32);
    ref in[MAX_OPERANDS] = {round_below_pads(w, n->in[0], half), w->map[n->in[1]]};
    return graph_copy_node(w->to, w->from, n, in);
}

/* r in f32; of its views and pads those above `at` too, which is what is widened. */
static ref widen_operand(struct rewrite *w, struct widened *x, ref r, ref at)
{
    const struct graph *g = w->from;
    const struct node *n = &g->node[r];
    if (!x->own && x->wide[r] && x->products - x->made[r] < LATER)
        return x->wide[r];
    struct node view = *n;
    ref in[MAX_OPERANDS] = {NIL}, wide;
    view.dtype = KL_F32;
    for (unsigned i = 0; r != at && i < n->nin; i++) {
        ref below = n->in[i];
        in[i] = !dtype_is_half(g->node[below].dtype) ? w->map[below]
                : widen_operand(w, x, below, i ? widened_source(g, below) : at);
    }
    if (!x->own && x->wide[r])
        w->to->cur_flags |= MARK_REMAT;
    if (r != at)
        wide = graph_copy_node(w->to, g, &view, in);
    else if (n->op == OP_const)
        wide = widen_const(w->to, n);
    else if (n->op == OP_cast && is_zero_pad(g, n->in[0]))
        wide = round_below_pads(w, n->in[0], n->dtype);
    else
        wide = n_cast(w->to, w->map[r], KL_F32);
    if (x->own)
        return wide;
    x->made[r] = x->products;
    return x->wide[r] = wide;
}

static ref widened_product(struct rewrite *w, struct widened *x, ref r, const struct pass_options *o)
{
    struct node n = w->from->node[r];
    n.attr.dot.order = 0; /* that of bf16 */
    x->products++;
    x->own = dot_widens_in_place(w->from, r, &o->processor);
    for (unsigned i = 0; i < 2; i++) {
        n.in[i] = widen_operand(w, x, n.in[i], widened_source(w->from, n.in[i]));
        rewrite_site(w, r);
    }
    return n.in[0] && n.in[1] ? n_cast(w->to, graph_add(w->to, &n, NULL), n.dtype) : NIL;
}

/* Operand r of f32 with the cast below all of its views and pads. */
static ref sunk_operand(struct rewrite *w, struct widened *x, ref r)
{
    const struct graph *g = w->from;
    const struct node *n = &g->node[r];
    if (!is_view_or_pad(n))
        return widen_operand(w, x, n->in[0], widened_source(g, n->in[0]));
    ref in[MAX_OPERANDS] = {sunk_operand(w, x, n->in[0])};
    for (unsigned i = 1; i < n->nin; i++)
        in[i] = w->map[n->in[i]];
    return graph_copy_node(w->to, g, n, in);
}

static ref sunk_product(struct rewrite *w, struct widened *x, ref r)
{
    struct node n = w->from->node[r];
    x->own = true;
    for (unsigned i = 0; i < 2; i++) {
        n.in[i] = is_widened_above(w->from, n.in[i]) ? sunk_operand(w, x, n.in[i]) : w->map[n.in[i]];
        rewrite_site(w, r);
    }
    return n.in[0] && n.in[1] ? graph_add(w->to, &n, NULL) : NIL;
}

int pass_widen_products(struct graph *g, const struct pass_options *o)
{
    struct rewrite w;
    bool any = false;
    if (!o || g->symbols)
        return 0;
    for (ref r = 1; r < g->nnode && !any; r++)
        any = product_is_widened(g, r, o) || sinks_casts(g, r, o);
    if (!any)
        return 0;
    struct widened x = {mem_alloc(g->nnode * sizeof *x.wide), mem_alloc(g->nnode * sizeof *x.made), 0, false};
    if (!x.wide || !x.made) {
        mem_free(x.wide);
        mem_free(x.made);
        return err_set(&g->err, KL_ERR_MEMORY, "out of memory widening products of @%s", g->name), -1;
    }
    if (rewrite_begin(&w, g))
        for (ref r = 1; r < g->nnode && !w.to->err.code; r++) {
            rewrite_site(&w, r);
            if (product_is_widened(g, r, o))
                w.map[r] = widened_product(&w, &x, r, o);
            else if (sinks_casts(g, r, o))
                w.map[r] = sunk_product(&w, &x, r);
            else
                rewrite_copy(&w, r);
        }
    mem_free(x.wide);
    mem_free(x.made);
    int changed = rewrite_end(&w);
    return changed > 0 && pass_dce(g, o) < 0 ? -1 : changed; /* the views of half floats */
}
