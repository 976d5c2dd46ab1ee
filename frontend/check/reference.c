/* What a graph gives when it is interpreted, as arrays in the host's memory. */
#include "check.h"

bool check_interpret(const struct graph *g, const struct check_values *v, const struct interp_watch *watch,
                     struct check_outputs *out, struct err *e)
{
    *out = (struct check_outputs){g->nout, mem_alloc((g->nout + 1) * sizeof *out->data)};
    bool ok = out->data != NULL;
    for (uint32_t i = 0; ok && i < g->nout; i++)
        ok = (out->data[i] = mem_alloc(node_bytes(g, g->out[i].value) + 1)) != NULL;
    if (!ok)
        return err_set(e, KL_ERR_MEMORY, "out of memory: outputs of @%s", g->name);
    struct bind bind = {(const void *const *)v->input, (const void *const *)v->state, v->slot, out->data, watch, NULL};
    return reference_run(g, &bind, true, e);
}

bool check_reference(const struct graph *g, int device, const struct check_values *v, struct check_outputs *out,
                     struct err *e)
{
    *out = (struct check_outputs){0};
    struct graph *plain = reference_graph(g, (unsigned)device, false, 0, e);
    bool ok = plain && check_interpret(plain, v, NULL, out, e);
    graph_free(plain);
    return ok;
}
