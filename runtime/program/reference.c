/* What a graph means: what the interpreter gives for it after the passes without which it cannot be interpreted. */
#include "ir/graph/custom.h"
#include "program.h"
#include "runtime/runtime.h"

struct graph *reference_graph(const struct graph *recorded, unsigned device, bool fuse, unsigned n, struct err *e)
{
    struct graph *g = graph_clone(recorded);
    if (!g)
        return err_set(e, KL_ERR_MEMORY, "out of memory: @%s", recorded->name), NULL;
    graph_move(g, graph_device(g), device);
    struct pass_options o = {.fuse = fuse, .bf16_dot2 = device_bf16_dot2(g),
                             .bf16_tiles = option_graph_order() ? 0 : device_bf16_tiles(g),
                             .processor = device_processor(g), .gpus = device_gpus(g),
                             .graph_order = option_graph_order()};
    if (passes_run_first(g, n, FOR_INTERP, &o))
        return g;
    err_set(e, g->err.code, "%s", g->err.msg);
    graph_free(g);
    return NULL;
}

struct reference_call { const struct graph *g; const struct bind *bind; bool quiet; struct err *e; bool ok; };

static void reference_call_interp(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)begin, (void)end, (void)worker;
    struct reference_call *c = ctx;
    inspect_quiet(c->quiet);
    c->ok = interp_run(c->g, c->bind, c->e);
    inspect_quiet(false);
}

bool reference_run(const struct graph *g, const struct bind *b, bool quiet, struct err *e)
{
    struct reference_call c = {g, b, quiet, e, false};
    pool_run(reference_call_interp, &c, 1, 0);
    return c.ok;
}
