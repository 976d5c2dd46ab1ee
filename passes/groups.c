/* What a fused graph's groups mean: who computes, who stores, what is only an index. */
#include "passes.h"

ref node_source(const struct graph *g, ref r, bool *linear)
{
    *linear = true;
    while (op_is_view(g->node[r].op)) {
        *linear &= g->node[r].op == OP_reshape;
        r = g->node[r].in[0];
    }
    return r;
}

ref node_operand(const struct graph *g, ref r, unsigned i, bool *linear)
{
    ref s = node_source(g, node_in(g, &g->node[r], i), linear);
    *linear &= !op_is_select(g->node[r].op);
    return s;
}

bool node_is_stored_leaf(const struct graph *g, ref r)
{
    return g->node[r].op == OP_input || g->node[r].op == OP_state;
}

ref node_stored(const struct graph *g, ref r)
{
    bool linear;
    ref s = node_source(g, r, &linear);
    return linear && (g->group[s] != GROUP_NONE || node_is_stored_leaf(g, s)) ? s : r;
}

void groups_stored(const struct graph *g, bool *stored)
{
    for (uint32_t i = 0; i < g->nout; i++) {
        bool linear;
        ref s = node_source(g, g->out[i].value, &linear);
        ref r = linear ? s : g->out[i].value;
        if (g->group[r] != GROUP_NONE)
            stored[r] = true;
        else if (!node_is_stored_leaf(g, r))
            stored[g->out[i].value] = true;
    }
    for (ref r = 1; r < g->nnode; r++)
        for (unsigned i = 0; g->group[r] != GROUP_NONE && i < node_nin(&g->node[r]); i++) {
            bool linear;
            ref s = op_is_region(g->node[r].op) ? node_stored(g, node_in(g, &g->node[r], i))
                                                : node_operand(g, r, i, &linear);
            if (g->group[s] != GROUP_NONE && g->group[s] != g->group[r])
                stored[s] = true;
        }
}
