/* The meaning of groups in a fused graph: which nodes are computed, which are stored, which are only index
 * computations. */
#include "passes/passes.h"

/* A pad without a group is evaluated in the kernels that read it. */
bool node_is_view(const struct graph *g, ref r)
{
    return op_is_view(g->node[r].op) || (op_is_masked(g->node[r].op) && g->group && g->group[r] == GROUP_NONE);
}

ref node_source(const struct graph *g, ref r, bool *linear)
{
    *linear = true;
    while (node_is_view(g, r)) {
        *linear &= g->node[r].op == OP_reshape;
        r = g->node[r].in[0];
    }
    return r;
}

ref node_operand(const struct graph *g, ref r, unsigned i, bool *linear)
{
    ref s = node_source(g, node_in(g, &g->node[r], i), linear);
    *linear &= !op_is_select(g->node[r].op);
    return s;
}

ref node_permute(const struct graph *g, ref r, ref *source)
{
    while (g->node[r].op == OP_reshape)
        r = g->node[r].in[0];
    ref first = r;
    while (g->node[r].op == OP_reshape || g->node[r].op == OP_permute)
        r = g->node[r].in[0];
    *source = r;
    return g->node[first].op == OP_permute && !node_is_view(g, r) ? first : NIL;
}

bool node_is_const(const struct graph *g, ref r, double v)
{
    const struct node *n = &g->node[r];
    while (op_is_view(n->op))
        n = &g->node[n->in[0]];
    return n->op == OP_const && n->attr.konst.bits == dtype_bits(n->dtype, v);
}

bool node_is_stored_leaf(const struct graph *g, ref r)
{
    return g->node[r].op == OP_input || g->node[r].op == OP_state;
}

ref node_stored(const struct graph *g, ref r)
{
    bool linear;
    ref s = node_source(g, r, &linear);
    return linear && (g->group[s] != GROUP_NONE || node_is_stored_leaf(g, s)) ? s : r;
}

/* Every block of rows reads all of B, so B must stay in the second-level cache together with the block's products, and
 * its rows must be contiguous.  Decided by shape alone, like all of fusion, for a cache of 1 MB. */
bool dot_sweeps(const struct graph *g, ref r)
{
    enum { MAX_B_BYTES = 512 << 10, MAX_COLUMNS_BYTES = 6 << 10, FEW_COLUMNS = 64, FEW_ROWS = 128 };
    const struct node *n = &g->node[r];
    struct dot_dims d = dot_sizes(g, n);
    int64_t size = (int64_t)dtype_size(n->dtype);
    uint32_t last = node_shape(g, n->in[1])->rank - 1;
    bool linear, rows = true;
    node_source(g, n->in[1], &linear);
    for (unsigned i = 0; i < n->attr.dot.ncon; i++)
        rows &= axis_get(n->attr.dot.con_b, i) != last;
    for (unsigned i = 0; i < n->attr.dot.nbatch; i++)
        rows &= axis_get(n->attr.dot.batch_b, i) != last;
    return linear && rows && d.m >= FEW_ROWS && d.n >= FEW_COLUMNS && d.n <= MAX_COLUMNS_BYTES / size &&
           d.k <= MAX_B_BYTES / size / d.n;
}

/* Marks the nodes whose values are needed after their kernel. */
static void mark_stored(const struct graph *g, bool *stored)
{
    for (uint32_t i = 0; i < g->nout; i++) {
        bool linear;
        ref s = node_source(g, g->out[i].value, &linear);
        ref r = linear ? s : g->out[i].value;
        if (g->group[r] != GROUP_NONE)
            stored[r] = true;
        else if (!node_is_stored_leaf(g, r))
            stored[g->out[i].value] = true;
    }
    for (ref r = 1; r < g->nnode; r++)
        for (unsigned i = 0; g->group[r] != GROUP_NONE && i < node_nin(&g->node[r]); i++) {
            bool linear;
            ref s = op_is_non_fusible(g->node[r].op) ? node_stored(g, node_in(g, &g->node[r], i))
                                                : node_operand(g, r, i, &linear);
            if (g->group[s] != GROUP_NONE && g->group[s] != g->group[r])
                stored[s] = true;
        }
}

static void list_members(const struct graph *g, struct groups *s)
{
    for (ref r = 1; r < g->nnode; r++)
        if (g->group[r] != GROUP_NONE)
            s->place[r] = s->first[g->group[r] + 1]++;
    for (uint32_t i = 0; i < g->ngroup; i++)
        s->first[i + 1] += s->first[i];
    for (ref r = 1; r < g->nnode; r++)
        if (g->group[r] != GROUP_NONE)
            s->member[s->first[g->group[r]] + s->place[r]] = r;
}

bool groups_make(const struct graph *g, struct groups *s)
{
    s->first = mem_alloc((g->ngroup + 1) * sizeof *s->first);
    s->member = mem_alloc(g->nnode * sizeof *s->member);
    s->place = mem_alloc(g->nnode * sizeof *s->place);
    s->stored = mem_alloc(g->nnode * sizeof *s->stored);
    if (!s->first || !s->member || !s->place || !s->stored)
        return false;
    list_members(g, s);
    mark_stored(g, s->stored);
    return true;
}

void groups_free(struct groups *s)
{
    mem_free(s->first);
    mem_free(s->member);
    mem_free(s->place);
    mem_free(s->stored);
}
