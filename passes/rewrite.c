#include "rewrite.h"
#include <string.h>

static bool copy_leaves(struct graph *to, struct leaves *dst, const struct graph *from, const struct leaves *src)
{
    for (uint32_t i = 0; i < src->n; i++)
        if (graph_leaf(to, dst, src->v[i].dtype, &from->shape[src->v[i].shape], src->v[i].name) == UINT32_MAX)
            return false;
    return true;
}

bool rewrite_begin(struct rewrite *w, struct graph *g)
{
    *w = (struct rewrite){.from = g};
    w->map = mem_alloc(g->nnode * sizeof *w->map);
    w->to = graph_new(g->name);
    if (!w->map || !w->to)
        return err_set(&g->err, KL_ERR_MEMORY, "out of memory rewriting graph @%s", g->name);
    for (uint32_t i = 1; i < g->nsite; i++)
        graph_site(w->to, &g->site[i]);
    return copy_leaves(w->to, &w->to->input, g, &g->input) && copy_leaves(w->to, &w->to->state, g, &g->state) &&
           copy_leaves(w->to, &w->to->slot, g, &g->slot);
}

void rewrite_site(struct rewrite *w, ref r)
{
    w->to->cur_site = w->from->node[r].site;
    w->to->cur_device = w->from->node[r].device;
}

ref rewrite_copy(struct rewrite *w, ref r)
{
    const struct node *n = &w->from->node[r];
    ref in[MAX_OPERANDS] = {0};
    for (unsigned i = 0; i < n->nin; i++)
        in[i] = w->map[n->in[i]];
    return w->map[r] = graph_copy_node(w->to, w->from, n, in);
}

int rewrite_end(struct rewrite *w)
{
    struct graph *g = w->from, *to = w->to;
    if (!g->err.code && to && w->map) {
        for (uint32_t i = 0; i < g->nout; i++)
            graph_output(to, g->out[i].kind, w->map[g->out[i].value], g->out[i].state);
        if (to->err.code) {
            g->err = to->err;
        } else { /* g keeps its identity and the texts its sites point to */
            struct graph old = *g;
            *g = *to;
            *to = old;
            g->text = old.text;
            g->ntext = old.ntext;
            to->text = NULL;
            to->ntext = 0;
        }
    } else if (to && to->err.code && !g->err.code) {
        g->err = to->err;
    }
    mem_free(w->map);
    graph_free(to);
    return g->err.code ? -1 : 1;
}
