/* Which nodes of the deferred graph are needed: for values, and for gradients.
 *
 * A node's value needs the values of its operands.  A gradient needs a path: its history.  There are two kinds: that of
 * handles, from which a gradient may be requested later, down to the nodes of marked handles; and that of grad nodes
 * whose value is needed, down to their own variables.  Operands have lower numbers than what depends on them, so the
 * path to a variable ends at its number, and the history of one step's gradient does not include the steps before. */
#include "frontend/frontend.h"

#define NO_VARIABLE UINT32_MAX

/* The highest variable that the node depends on, itself excluded; 0: none. */
static uint32_t newest_below(const struct need *need, ref r)
{
    const struct node *n = node_at(need->g, r);
    uint32_t newest = 0;
    if (!node_carries_gradient(n) || n->flags & MARK_STOP)
        return 0;
    for (unsigned i = 0; i < node_nin(n); i++)
        if (newest < need->newest[node_in(need->g, n, i)])
            newest = need->newest[node_in(need->g, n, i)];
    return newest;
}

bool need_init(struct need *need, const struct graph *g, struct buffer *const *known, const uint8_t *track)
{
    *need = (struct need){g, known, track, mem_alloc(g->nnode), mem_alloc(g->nnode * sizeof *need->until),
                          mem_alloc(g->nnode * sizeof *need->newest)};
    if (!need->kind || !need->until || !need->newest)
        return false;
    for (ref r = 1; r < g->nnode; r++) {
        const struct node *n = node_at(g, r);
        need->until[r] = NO_VARIABLE;
        if (n->op == OP_grad)
            need->newest[n->in[1]] = n->in[1];
    }
    for (ref r = 1; r < g->nnode; r++)
        if (!need->newest[r])
            need->newest[r] = newest_below(need, r);
    return true;
}

void need_free(struct need *need)
{
    mem_free(need->kind);
    mem_free(need->until);
    mem_free(need->newest);
}

/* Does a gradient that is needed flow through the node to its operands? */
static bool needs_history(const struct need *need, ref r)
{
    return ((need->kind[r] & NEED_HISTORY) && (need->track[r] & DERIVED)) ||
           (need->until[r] < r && need->until[r] <= newest_below(need, r));
}

bool need_ends_at(const struct need *need, ref r)
{
    return need->known[r] && !needs_history(need, r);
}

void need_spread(struct need *need)
{
    const struct graph *g = need->g;
    for (ref r = g->nnode - 1; r > 0; r--) {
        const struct node *n = node_at(g, r);
        if (!need->kind[r] || need_ends_at(need, r))
            continue;
        bool flows = needs_history(need, r);
        for (unsigned i = 0; i < node_nin(n); i++) {
            ref in = node_in(g, n, i);
            need->kind[in] |= need->kind[r];
            if (flows && need->until[in] > need->until[r])
                need->until[in] = need->until[r];
        }
        if (n->op == OP_grad && need->until[n->in[0]] > n->in[1])
            need->until[n->in[0]] = n->in[1];
    }
}
