/* Builds a new graph beside the old one and replaces it. */
#include "rewrite.h"

/* Moves the strings that call sites point to, so that they outlive the old graph. */
static void move_texts(struct graph *to, struct graph *from)
{
    to->text = from->text;
    to->ntext = from->ntext;
    to->text_cap = from->text_cap;
    to->text_index = from->text_index;
    from->text = NULL;
    from->ntext = from->text_cap = 0;
    from->text_index = (struct intern){0};
}

bool rewrite_begin(struct rewrite *w, struct graph *g)
{
    *w = (struct rewrite){.from = g};
    w->map = mem_alloc(g->nnode * sizeof *w->map);
    w->to = graph_new(g->name);
    if (!w->map || !w->to)
        return err_set(&g->err, KL_ERR_MEMORY, "out of memory rewriting graph @%s", g->name);
    if (!mem_reserve(&w->to->node, &w->to->node_cap, g->nnode, sizeof *w->to->node))
        return err_set(&g->err, KL_ERR_MEMORY, "out of memory rewriting graph @%s", g->name);
    move_texts(w->to, g);
    for (uint32_t i = 1; i < g->nsite; i++)
        graph_site(w->to, &g->site[i]);
    return graph_copy_leaves(w->to, g);
}

void rewrite_site(struct rewrite *w, ref r)
{
    w->to->cur_site = w->from->node[r].site;
    w->to->cur_device = w->from->node[r].device;
    w->to->cur_flags = w->from->node[r].flags & MARK_REMAT;
}

ref rewrite_copy(struct rewrite *w, ref r)
{
    return w->map[r] = graph_copy_mapped(w->to, w->from, r, w->map);
}

int rewrite_end(struct rewrite *w)
{
    struct graph *g = w->from, *to = w->to;
    int changed = 0;
    if (to && w->map) {
        for (uint32_t i = 0; i < g->nout && !g->err.code; i++)
            graph_output(to, g->out[i].kind, w->map[g->out[i].value], g->out[i].state);
        if (!g->err.code && to->err.code)
            g->err = to->err;
        if (g->err.code || graph_same(g, to)) {
            move_texts(g, to);
        } else {
            to->cur_flags = 0;
            to->out_name = g->out_name; /* the outputs are the same */
            to->out_name_cap = g->out_name_cap;
            g->out_name = NULL;
            g->out_name_cap = 0;
            struct graph old = *g;
            *g = *to;
            *to = old;
            changed = 1;
        }
    }
    mem_free(w->map);
    graph_free(to);
    return g->err.code ? -1 : changed;
}
