/* A graph spread over devices: what random_make.c does to some of its graphs. */
#include "random_make.h"

enum { DEVICES = 2 }; /* ref and cpu */

/* An operand of a node on a device: its value there. */
static ref brought(struct graph *to, ref r, unsigned device)
{
    return r && to->node[r].device != device ? n_copy(to, r, device) : r;
}

/* The same graph with its nodes on random devices, in runs, and copies between them.  A region, whose parameters and
 * yields are on `home`, where its op is. */
static struct graph *spread(struct rng *rng, const struct graph *g, bool region, unsigned home)
{
    struct graph *to = graph_new(g->name);
    ref *map = mem_alloc(g->nnode * sizeof *map), *in = mem_alloc((g->noperand + MAX_OPERANDS) * sizeof *in);
    unsigned device = home;
    if (!to || !map || !in || !graph_copy_leaves(to, g))
        abort();
    for (ref r = 1; r < g->nnode; r++) {
        struct node n = g->node[r];
        if (rng_below(rng, 4) == 0)
            device = (unsigned)rng_below(rng, DEVICES);
        n.device = (uint16_t)(region && n.op == OP_input ? home : device);
        if (n.op == OP_proj || n.op == OP_grad)
            n.device = to->node[map[n.in[n.op == OP_grad]]].device;
        for (unsigned i = 0; i < node_nin(&n); i++) {
            ref x = map[node_in(g, &n, i)];
            in[i] = n.op == OP_proj || n.op == OP_grad ? x : brought(to, x, n.device);
        }
        map[r] = graph_copy_node(to, g, &n, in);
        for (uint32_t i = 0; map[r] && i < op_regions(n.op); i++) {
            struct graph **own = &to->region[to->node[map[r]].attr.region.first + i];
            struct graph *moved = spread(rng, *own, true, n.device);
            graph_free(*own);
            *own = moved;
        }
    }
    for (uint32_t i = 0; i < g->nout; i++)
        graph_output(to, g->out[i].kind, region ? brought(to, map[g->out[i].value], home) : map[g->out[i].value],
                     g->out[i].state);
    mem_free(map);
    mem_free(in);
    return to;
}

struct graph *random_spread(struct rng *r, const struct graph *g)
{
    return spread(r, g, false, (unsigned)rng_below(r, DEVICES));
}
