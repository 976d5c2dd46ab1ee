/* The search for a small graph that fails: one edit at a time, kept if it makes the graph lighter and it still fails
 * the same way, until none is. */
#include "check.h"

static const unsigned simple[] = {KL_F32, KL_I32, KL_I64, KL_U32, KL_U8, KL_BOOL}; /* dtypes, simplest first */
enum { SIMPLE = sizeof simple / sizeof *simple };

struct shrink_search {
    const struct shrink *s;
    struct graph *g;
    struct check_values *values; /* or NULL */
};

struct graph_weight { uint64_t nodes, dims, types; };

static void add_weight(const struct graph *g, struct graph_weight *w)
{
    w->nodes += g->nnode;
    for (ref r = 1; r < g->nnode; r++) {
        const struct shape *s = node_shape(g, r);
        unsigned rank = 0;
        w->nodes += g->node[r].op != OP_input;
        for (uint32_t i = 0; i < s->rank; i++)
            w->dims += (uint64_t)s->dim[i];
        while (rank < SIMPLE && simple[rank] != g->node[r].dtype)
            rank++;
        w->types += rank;
    }
    for (uint32_t i = 0; i < g->nregion; i++)
        add_weight(g->region[i], w);
}

/* Outputs count most, then nodes (twice those that are no inputs), dimensions and dtypes. */
static uint64_t shrink_weight(const struct graph *g)
{
    struct graph_weight w = {0};
    add_weight(g, &w);
    for (uint32_t i = 0; i < g->nout; i++)
        w.nodes += g->out[i].kind == OUT_ASSIGN;
    return ((uint64_t)g->nout << 56) + (w.nodes << 40) + (w.dims << 12) + w.types;
}

static bool still_fails(struct shrink_search *x, const struct graph *g, const struct edit_leaves *leaves,
                        struct check_values *now)
{
    struct err e = {0};
    if (!x->values)
        return x->s->fails(x->s->ctx, g, NULL);
    return check_values_edited(now, g, leaves, x->values, x->g, NULL, x->s->seed, &e) && x->s->fails(x->s->ctx, g, now);
}

static bool try_edit(struct shrink_search *x, struct edit e)
{
    if (x->s->stop && x->s->stop(x->s->ctx))
        return false;
    if (!e.of)
        e.of = x->g;
    struct edit_leaves leaves = {0};
    struct check_values now = {0};
    struct graph *g = edit_apply(x->g, &e, &leaves);
    bool keep = g && shrink_weight(g) < shrink_weight(x->g) && still_fails(x, g, &leaves, &now);
    if (keep) {
        graph_free(x->g);
        x->g = g;
        if (x->values) {
            check_values_free(x->values);
            *x->values = now;
        }
    } else {
        graph_free(g);
        check_values_free(&now);
    }
    edit_leaves_free(&leaves);
    return keep;
}

/* After an edit that is kept, node numbers mean something else, so each loop starts at the node below. */
static bool shrink_outputs(struct shrink_search *x)
{
    bool any = false;
    for (ref r = 1; r < x->g->nnode && !any; r++) /* also what no output needs: passes before dce look at it */
        any = try_edit(x, (struct edit){.kind = EDIT_KEEP_VALUE, .node = r});
    for (uint32_t i = x->g->nout; !any && i-- > 0;)
        any |= x->g->nout > 1 && i < x->g->nout && try_edit(x, (struct edit){.kind = EDIT_DROP_OUTPUT, .node = i});
    return any;
}

static bool shrink_nodes(struct shrink_search *x)
{
    bool any = false;
    for (ref r = x->g->nnode; r-- > 1;) {
        if (r >= x->g->nnode)
            continue;
        bool done = false;
        for (uint32_t i = 0; !done && i < x->g->node[r].nin; i++)
            done = try_edit(x, (struct edit){.kind = EDIT_TAKE_OPERAND, .node = r, .operand = i});
        any |= done;
    }
    for (ref r = x->g->nnode; r-- > 1;)
        if (r < x->g->nnode && x->g->node[r].op != OP_input)
            any |= try_edit(x, (struct edit){.kind = EDIT_TAKE_INPUT, .node = r});
    return any;
}

/* A region in place of its op, and nodes of regions.  true: x->g is another now. */
static bool shrink_region(struct shrink_search *x, const struct graph *g)
{
    for (ref r = g->nnode; r-- > 1;) {
        const struct node *n = &g->node[r];
        for (uint32_t i = 0; op_is_region(n->op) && n->op != OP_while && n->op != OP_scan &&
             i < 1u + (n->op == OP_cond); i++)
            if (try_edit(x, (struct edit){.kind = EDIT_TAKE_REGION, .of = g, .node = r, .operand = i}))
                return true;
        for (uint32_t i = 0; g != x->g && i < n->nin; i++)
            if (try_edit(x, (struct edit){.kind = EDIT_TAKE_OPERAND, .of = g, .node = r, .operand = i}))
                return true;
    }
    for (uint32_t i = 0; i < g->nregion; i++)
        if (shrink_region(x, g->region[i]))
            return true;
    return false;
}

static bool shrink_dims(struct shrink_search *x)
{
    bool any = false;
    for (uint32_t id = 0; id < x->g->nshape; id++)
        for (uint32_t i = 0; id < x->g->nshape && i < x->g->shape[id].rank; i++) {
            int64_t d = x->g->shape[id].dim[i], to[] = {1, 2, 3, d / 4, d / 2, d - d / 8, d - 1};
            for (unsigned k = 0; k < sizeof to / sizeof *to; k++)
                if (to[k] > 0 && to[k] < d &&
                    try_edit(x, (struct edit){.kind = EDIT_SET_DIM, .from = d, .to = to[k]})) {
                    any = true;
                    break;
                }
        }
    return any;
}

static bool shrink_dtypes(struct shrink_search *x)
{
    bool any = false;
    for (unsigned from = 0; from < KL_DTYPE_COUNT; from++)
        for (unsigned i = 0; i < SIMPLE && simple[i] != from; i++)
            if (try_edit(x, (struct edit){.kind = EDIT_SET_DTYPE, .from = from, .to = simple[i]})) {
                any = true;
                break;
            }
    return any;
}

void shrink_graph(const struct shrink *s, struct graph **g, struct check_values *values)
{
    struct shrink_search x = {s, *g, values};
    for (bool more = true; more;) {
        more = false;
        while (shrink_outputs(&x))
            more = true;
        more |= shrink_dims(&x); /* before nodes: the checks become quick */
        more |= shrink_nodes(&x);
        while (shrink_region(&x, x.g))
            more = true;
        more |= shrink_dtypes(&x);
    }
    *g = x.g;
}
