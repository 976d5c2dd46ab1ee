/* Removes nodes that no output uses.  Leaves keep their ordinals, because these are the program's interface. */
#include "passes/passes.h"
#include "rewrite.h"

int pass_dce(struct graph *g, const struct pass_options *o)
{
    (void)o;
    bool *live = mem_alloc(g->nnode * sizeof *live);
    if (!live)
        return err_set(&g->err, KL_ERR_MEMORY, "out of memory in dce of @%s", g->name), -1;
    for (uint32_t i = 0; i < g->nout; i++)
        live[g->out[i].value] = true;
    uint32_t dead = 0;
    for (ref r = g->nnode - 1; r > 0; r--) {
        dead += !live[r];
        for (unsigned i = 0; live[r] && i < node_nin(&g->node[r]); i++)
            live[node_in(g, &g->node[r], i)] = true;
    }
    int changed = 0;
    if (dead) {
        struct rewrite w;
        if (rewrite_begin(&w, g))
            for (ref r = 1; r < g->nnode; r++)
                if (live[r])
                    rewrite_copy(&w, r);
        changed = rewrite_end(&w);
    }
    mem_free(live);
    return changed;
}
