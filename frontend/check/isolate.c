/* The nodes of a kernel that differs, alone in a graph, with inputs for what they read. */
#include "locate.h"

bool check_isolate(struct locating *l, struct err *e)
{
    const struct graph *g = l->p->g;
    bool *cut = mem_alloc(g->nnode * sizeof *cut);
    if (!cut)
        return err_set(e, KL_ERR_MEMORY, "out of memory: @%s", g->name);
    for (ref r = 1; r < g->nnode; r++)
        cut[r] = g->group && g->group[r] != GROUP_NONE && g->group[r] != l->group && l->value[r] &&
                 !op_is_leaf(node_at(g, r)->op);
    struct edit edit = {.kind = EDIT_CUT, .of = g, .node = l->node, .cut = cut};
    struct edit_leaves leaves = {0};
    struct graph *alone = cut[l->node] ? NULL : edit_apply(g, &edit, &leaves);
    mem_free(cut);
    if (!alone)
        return true;
    bool ok = check_values_edited(&l->place->values, alone, &leaves, l->v, g, l->value, 0, e);
    edit_leaves_free(&leaves);
    if (alone && graph_devices(alone) == UINT64_C(1) << l->device) /* as the graph of the user was */
        graph_move(alone, (unsigned)l->device, graph_device(l->g));
    l->place->graph = alone;
    return ok;
}
