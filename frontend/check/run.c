/* Runs of a graph on a device, with values from arrays in the host's memory. */
#include "check.h"

void check_outputs_free(struct check_outputs *o)
{
    for (uint32_t i = 0; o->data && i < o->n; i++)
        mem_free(o->data[i]);
    mem_free(o->data);
    *o = (struct check_outputs){0};
}

static bool to_device(struct buffer **to, const struct graph *g, const struct leaves *l, int device, unsigned op,
                      void *const *from, struct err *e)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (!(to[i] = buffer_copy_of(exec_leaf_device(g, device, op, i), from[i], check_leaf_bytes(g, &l->v[i]), e)))
            return false;
    return true;
}

static bool read_outputs(const struct graph *g, struct buffer *const *from, struct check_outputs *out, struct err *e)
{
    for (uint32_t i = 0; i < g->nout; i++) {
        size_t bytes = node_bytes(g, g->out[i].value);
        if (!(out->data[i] = mem_alloc(bytes + 1)))
            return err_set(e, KL_ERR_MEMORY, "out of memory: outputs of @%s", g->name);
        if (!buffer_read(from[i], out->data[i], bytes, e))
            return false;
    }
    return true;
}

bool check_run_program(const struct exec *x, const struct graph *g, int device, const struct check_values *v,
                       const struct exec_watch *watch, struct check_outputs *out, struct err *e)
{
    uint32_t n = g->input.n + g->state.n + g->nout;
    struct buffer **all = mem_alloc((n + 1) * sizeof *all), **state = all + g->input.n, **to = state + g->state.n;
    *out = (struct check_outputs){g->nout, mem_alloc((g->nout + 1) * sizeof *out->data)};
    bool ok = (all && out->data) || err_set(e, KL_ERR_MEMORY, "out of memory: @%s", g->name);
    ok = ok && to_device(all, g, &g->input, device, OP_input, v->input, e) &&
         to_device(state, g, &g->state, device, OP_state, v->state, e) &&
         exec_run_watched(x, all, state, v->slot, watch, to, e) && read_outputs(g, to, out, e);
    for (uint32_t i = 0; all && i < n; i++)
        buffer_unref(all[i]);
    mem_free(all);
    return ok;
}

bool check_run(const struct graph *g, int device, bool fuse, const struct check_values *v, struct check_outputs *out,
               struct err *e)
{
    const struct exec *x = exec_get(g, device, fuse, e);
    bool ok = x && check_run_program(x, g, device, v, NULL, out, e);
    exec_unref(x);
    return ok;
}
