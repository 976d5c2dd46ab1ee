/* Gradients that are all zeros, which are probably a mistake: an error if that is certain, else a warning in the
 * log. */
#include "frontend/frontend.h"
#include <inttypes.h>

/* A search from a loss to the nodes it depends on. */
struct reach {
    const struct graph *g;
    uint32_t *seen, stamp;    /* per node: number of the last search that visited it */
    ref *stack; uint32_t n, cap;
};

static bool reach_begin(struct reach *s, const struct graph *g)
{
    *s = (struct reach){.g = g, .seen = mem_alloc(g->nnode * sizeof *s->seen)};
    return s->seen != NULL;
}

static void reach_end(struct reach *s)
{
    mem_free(s->seen);
    mem_free(s->stack);
}

/* Visits the nodes to which gradients flow from node `from`, down to node `low`. false: out of memory. */
static bool reach_from(struct reach *s, ref from, ref low)
{
    s->stamp++;
    s->n = 0;
    if (!mem_reserve(&s->stack, &s->cap, 1, sizeof *s->stack))
        return false;
    s->stack[s->n++] = from;
    s->seen[from] = s->stamp;
    while (s->n) {
        const struct node *n = node_at(s->g, s->stack[--s->n]);
        if (n->flags & MARK_STOP || !node_carries_gradient(n))
            continue;
        for (unsigned i = 0; i < node_nin(n); i++) {
            ref x = node_in(s->g, n, i);
            if (x < low || s->seen[x] == s->stamp)
                continue;
            if (!mem_reserve(&s->stack, &s->cap, s->n + 1, sizeof *s->stack))
                return false;
            s->seen[x] = s->stamp;
            s->stack[s->n++] = x;
        }
    }
    return true;
}

bool gradient_reaches_each(const struct graph *g, ref from, const ref *to, uint32_t n, bool *reached)
{
    struct reach s;
    ref low = from;
    for (uint32_t i = 0; i < n; i++)
        low = to[i] && to[i] < low ? to[i] : low;
    bool ok = reach_begin(&s, g) && reach_from(&s, from, low);
    for (uint32_t i = 0; i < n && ok; i++)
        reached[i] = to[i] && s.seen[to[i]] == s.stamp;
    reach_end(&s);
    return ok;
}

bool gradient_reaches(const struct graph *g, ref from, ref to)
{
    bool reached;
    return !gradient_reaches_each(g, from, &to, 1, &reached) || reached;
}

/* The node of state number i; NIL: there is none. */
static ref state_node(const struct graph *g, uint32_t i)
{
    for (ref r = 1; r < g->nnode; r++)
        if (node_at(g, r)->op == OP_state && node_at(g, r)->attr.leaf.index == i)
            return r;
    return NIL;
}

bool gradient_is_too_late(struct trace *tr, ref loss, kl_tensor h, ref wrt, struct err *e)
{
    const struct binding *b = trace_binding(tr, h);
    const struct graph *g = tr->r.g;
    if (!b || !b->assigned || gradient_reaches(g, loss, wrt))
        return false;
    ref before = state_node(g, (uint32_t)(b - tr->bound));
    if (!before || !gradient_reaches(g, loss, before))
        return false;
    err_set(e, KL_ERR_GRAD,
            "the variable was assigned in this trace after the loss had used it: the loss does not depend on "
                            "its new value; ask for the gradient before kl_assign");
    return true;
}

/* ---- warnings ---- */

static const char *place_of(const struct graph *g, ref r, char *text, size_t size)
{
    return site_text(&g->site[node_at(g, r)->site], "", ": ", text, size);
}

/* The gradients of the loss of grad node `first`, which `next` links. */
static bool warn_of_loss(struct reach *s, ref first, const ref *next)
{
    const struct graph *g = s->g;
    ref loss = node_at(g, first)->in[0], low = loss;
    char at[450], shape[SHAPE_TEXT];
    for (ref r = first; r; r = next[r])
        low = node_at(g, r)->in[1] < low ? node_at(g, r)->in[1] : low;
    if (!reach_from(s, loss, low))
        return false;
    if (node_numel(g, loss) != 1)
        log_put(KL_LOG_WARN, "%sgrad: the loss has shape %s: the gradient is that of the sum of its elements",
                place_of(g, first, at, sizeof at), shape_text(node_shape(g, loss), shape, sizeof shape));
    for (ref r = first; r; r = next[r])
        if (s->seen[node_at(g, r)->in[1]] != s->stamp)
            log_put(KL_LOG_WARN, "%sgrad: the loss does not depend on the variable: the gradient is zeros",
                    place_of(g, r, at, sizeof at));
    return true;
}

void gradients_warn(const struct graph *g)
{
    if (!log_wants(KL_LOG_WARN))
        return;
    struct reach s;
    ref *first = mem_alloc(g->nnode * sizeof *first); /* per loss: its first grad node */
    ref *next = mem_alloc(g->nnode * sizeof *next);   /* per grad node: the next one of its loss */
    bool ok = reach_begin(&s, g) && first && next;
    for (ref r = g->nnode; ok && r-- > 1;)
        if (node_at(g, r)->op == OP_grad) {
            next[r] = first[node_at(g, r)->in[0]];
            first[node_at(g, r)->in[0]] = r;
        }
    for (ref r = 1; ok && r < g->nnode; r++)
        ok = !first[r] || warn_of_loss(&s, first[r], next);
    for (uint32_t i = 0; i < g->nregion; i++)
        gradients_warn(g->region[i]);
    reach_end(&s);
    mem_free(first);
    mem_free(next);
}
