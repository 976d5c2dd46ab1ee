/* What a graph means: what the interpreter gives for it after the passes without which it cannot be interpreted. */
#include "check.h"

struct graph *check_after_passes(const struct graph *recorded, int device, bool fuse, unsigned n, struct err *e)
{
    static pass_fn *const needed[] = {pass_bind, pass_autodiff, pass_numerics};
    struct graph *g = graph_clone(recorded);
    if (!g)
        return err_set(e, KL_ERR_MEMORY, "out of memory: @%s", recorded->name), NULL;
    graph_move(g, graph_device(g), (unsigned)device);
    struct pass_options o = {.fuse = fuse, .bf16_dot2 = device_bf16_dot2(g), .processor = device_processor(g)};
    bool ok = true;
    for (unsigned i = 0; ok && i < n; i++)
        ok = pass_run(&pass_list[i], g, &o) >= 0;
    for (unsigned k = 0; k < sizeof needed / sizeof *needed; k++)
        for (unsigned i = n; ok && i < pass_count; i++)
            if (pass_list[i].run == needed[k])
                ok = pass_run(&pass_list[i], g, &o) >= 0;
    if (ok)
        return g;
    err_set(e, g->err.code, "%s", g->err.msg);
    graph_free(g);
    return NULL;
}

struct interp_call { const struct graph *g; struct bind bind; struct err *e; bool ok; };

static void call_interp(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)begin, (void)end, (void)worker;
    struct interp_call *c = ctx;
    c->ok = interp_run(c->g, &c->bind, c->e);
}

bool check_interpret(const struct graph *g, const struct check_values *v, const struct interp_watch *watch,
                     struct check_outputs *out, struct err *e)
{
    *out = (struct check_outputs){g->nout, mem_alloc((g->nout + 1) * sizeof *out->data)};
    bool ok = out->data != NULL;
    for (uint32_t i = 0; ok && i < g->nout; i++)
        ok = (out->data[i] = mem_alloc(node_bytes(g, g->out[i].value) + 1)) != NULL;
    if (!ok)
        return err_set(e, KL_ERR_MEMORY, "out of memory: outputs of @%s", g->name);
    struct interp_call c = {.g = g, .e = e, .bind = {(const void *const *)v->input, (const void *const *)v->state,
                                                     v->slot, out->data, watch}};
    pool_run(call_interp, &c, 1, 0); /* in the floating-point environment that kernels have */
    return c.ok;
}

bool check_reference(const struct graph *g, int device, const struct check_values *v, struct check_outputs *out,
                     struct err *e)
{
    *out = (struct check_outputs){0};
    struct graph *plain = check_after_passes(g, device, false, 0, e);
    bool ok = plain && check_interpret(plain, v, NULL, out, e);
    graph_free(plain);
    return ok;
}
