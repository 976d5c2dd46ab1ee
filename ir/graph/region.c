/* Operands, results and work memory of region ops. */
#include "custom.h"
#include <string.h>

uint32_t op_regions(unsigned op)
{
    return op == OP_scan || op == OP_checkpoint ? 1 : op_is_region(op) && op != OP_custom ? 2 : 0;
}

/* The region whose yields are the node's results. */
static const struct graph *body_of(const struct graph *g, const struct node *n)
{
    return node_region(g, n, n->op == OP_while);
}

uint32_t region_results(const struct graph *g, const struct node *n)
{
    return n->op == OP_custom ? node_custom(g, n)->nresult : body_of(g, n)->nout;
}

unsigned region_result(const struct graph *g, const struct node *n, uint32_t i, struct shape *s)
{
    if (n->op == OP_custom) {
        *s = g->shape[node_custom(g, n)->result[i].shape];
        return node_custom(g, n)->result[i].dtype;
    }
    const struct graph *body = body_of(g, n);
    const struct node *yield = node_at(body, body->out[i].value);
    *s = body->shape[yield->shape];
    if (n->op == OP_scan && i >= n->attr.region.carried) {
        if (s->rank < KL_MAX_RANK)
            memmove(s->dim + 1, s->dim, s->rank * sizeof *s->dim);
        s->dim[0] = n->attr.region.length;
        s->rank++;
    }
    return yield->dtype;
}

size_t region_result_bytes(const struct graph *g, const struct node *n, uint32_t i)
{
    struct shape s;
    unsigned dtype = region_result(g, n, i, &s);
    return (size_t)shape_count(&s) * dtype_size(dtype);
}

static size_t graph_region_round64(size_t n) { return (n + 63) / 64 * 64; }

/* Work memory: pointers to a region's parameters and yields, their bytes, the condition's result, and a second buffer
 * for carried values. */
size_t region_work_bytes(const struct graph *g, const struct node *n)
{
    if (n->op == OP_custom)
        return custom_work_bytes(g, n);
    if (!op_is_control(n->op) || n->op == OP_cond)
        return 0;
    size_t each = sizeof(void *) + sizeof(size_t);
    size_t bytes = graph_region_round64((node_nin(n) + region_results(g, n)) * each) + 64;
    for (uint32_t i = 0; i < n->attr.region.carried; i++)
        bytes += graph_region_round64(region_result_bytes(g, n, i));
    return bytes;
}

static size_t call_bytes(const struct region_call *c, bool result, uint32_t i)
{
    return result ? region_result_bytes(c->g, c->n, i) : node_bytes(c->g, node_in(c->g, c->n, i));
}

struct region_call region_call(const struct graph *g, const struct node *n)
{
    bool control = op_is_control(n->op);
    return (struct region_call){.op = n->op, .nin = node_nin(n), .nout = region_results(g, n),
                                .carried = control ? n->attr.region.carried : 0, .scanned = n->attr.region.scanned,
                                .length = n->attr.region.length, .reverse = n->attr.region.flags & REGION_REVERSE,
                                .bytes = call_bytes, .g = g, .n = n};
}
