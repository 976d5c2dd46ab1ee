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

/* Marks the nodes whose values outlive their kernel. */
static void mark_stored(const struct graph *g, bool *stored)
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
            ref s = op_is_apart(g->node[r].op) ? node_stored(g, node_in(g, &g->node[r], i))
                                                : node_operand(g, r, i, &linear);
            if (g->group[s] != GROUP_NONE && g->group[s] != g->group[r])
                stored[s] = true;
        }
}

static void list_members(const struct graph *g, struct groups *s)
{
    for (ref r = 1; r < g->nnode; r++)
        if (g->group[r] != GROUP_NONE)
            s->place[r] = s->first[g->group[r] + 1]++;
    for (uint32_t i = 0; i < g->ngroup; i++)
        s->first[i + 1] += s->first[i];
    for (ref r = 1; r < g->nnode; r++)
        if (g->group[r] != GROUP_NONE)
            s->member[s->first[g->group[r]] + s->place[r]] = r;
}

bool groups_make(const struct graph *g, struct groups *s)
{
    s->first = mem_alloc((g->ngroup + 1) * sizeof *s->first);
    s->member = mem_alloc(g->nnode * sizeof *s->member);
    s->place = mem_alloc(g->nnode * sizeof *s->place);
    s->stored = mem_alloc(g->nnode * sizeof *s->stored);
    if (!s->first || !s->member || !s->place || !s->stored)
        return false;
    list_members(g, s);
    mark_stored(g, s->stored);
    return true;
}

void groups_free(struct groups *s)
{
    mem_free(s->first);
    mem_free(s->member);
    mem_free(s->place);
    mem_free(s->stored);
}
