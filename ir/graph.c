/* A graph's life: making, copying, appending nodes, leaves and outputs. */
#include "ir/ir.h"
#include <string.h>

static void init_tables(struct graph *g)
{
    static const struct shape scalar;
    static const kl_site unknown = {"unknown", 0, "unknown"};
    static const struct node nil;
    g->node[0] = nil;
    g->nnode = 1;
    graph_shape(g, &scalar);
    graph_site(g, &unknown);
}

struct graph *graph_new(const char *name)
{
    struct graph *g = mem_alloc(sizeof *g);
    if (!g)
        return NULL;
    snprintf(g->name, sizeof g->name, "%s", name ? name : "graph");
    if (!mem_reserve(&g->node, &g->node_cap, 1, sizeof *g->node)) {
        graph_free(g);
        return NULL;
    }
    init_tables(g);
    if (g->err.code != KL_OK) {
        graph_free(g);
        return NULL;
    }
    return g;
}

static void free_text(struct graph *g)
{
    for (uint32_t i = 0; i < g->ntext; i++)
        mem_free(g->text[i]);
    g->ntext = 0;
}

void graph_free(struct graph *g)
{
    if (!g)
        return;
    free_text(g);
    mem_free(g->text);
    mem_free(g->node);
    mem_free(g->shape);
    mem_free(g->out);
    mem_free(g->input.v);
    mem_free(g->state.v);
    mem_free(g->slot.v);
    mem_free(g->site);
    mem_free(g->shape_index.slot);
    mem_free(g->site_index.slot);
    mem_free(g->text_index.slot);
    mem_free(g->group);
    mem_free(g);
}

static void empty_index(struct intern *t)
{
    if (t->n)
        memset(t->slot, 0, t->cap * sizeof *t->slot);
    t->n = 0;
}

static void drop_groups(struct graph *g)
{
    mem_free(g->group);
    g->group = NULL;
    g->ngroup = 0;
}

void graph_reset(struct graph *g)
{
    free_text(g);
    drop_groups(g);
    empty_index(&g->shape_index);
    empty_index(&g->site_index);
    empty_index(&g->text_index);
    g->nshape = g->nout = g->nsite = 0;
    g->input.n = g->state.n = g->slot.n = 0;
    g->cur_site = 0;
    g->cur_device = 0;
    g->err = (struct err){0};
    init_tables(g);
}

/* The id in g of a site of `from`; strings that `from` owns are copied, since they die with it. */
static uint32_t copy_site(struct graph *g, const struct graph *from, uint32_t id)
{
    if (id == 0)
        return 0;
    kl_site s = from->site[id];
    if (graph_owns(from, s.file))
        s.file = graph_string(g, s.file, strlen(s.file));
    if (graph_owns(from, s.func))
        s.func = graph_string(g, s.func, strlen(s.func));
    return graph_site(g, &s);
}

bool graph_copy_leaves(struct graph *g, const struct graph *from)
{
    struct leaves *to[] = {&g->input, &g->state, &g->slot};
    const struct leaves *of[] = {&from->input, &from->state, &from->slot};
    for (int t = 0; t < 3; t++)
        for (uint32_t i = 0; i < of[t]->n; i++) {
            const struct leaf *l = &of[t]->v[i];
            if (graph_leaf(g, to[t], l->dtype, &from->shape[l->shape], l->name) == LEAF_NONE)
                return false;
        }
    return true;
}

/* Shapes and sites are interned again in their old order, so ids stay the same. */
struct graph *graph_clone(const struct graph *from)
{
    struct graph *g = graph_new(from->name);
    if (!g)
        return NULL;
    for (uint32_t i = 0; i < from->nshape; i++)
        graph_shape(g, &from->shape[i]);
    for (uint32_t i = 0; i < from->nsite; i++)
        copy_site(g, from, i);
    graph_copy_leaves(g, from);
    bool ok = g->err.code == KL_OK && mem_reserve(&g->node, &g->node_cap, from->nnode, sizeof *g->node) &&
              mem_reserve(&g->out, &g->out_cap, from->nout, sizeof *g->out);
    if (ok && from->group) {
        g->group = mem_alloc(from->nnode * sizeof *g->group);
        ok = g->group != NULL;
    }
    if (!ok) {
        graph_free(g);
        return NULL;
    }
    memcpy(g->node, from->node, from->nnode * sizeof *g->node);
    if (from->nout)
        memcpy(g->out, from->out, from->nout * sizeof *g->out);
    if (from->group)
        memcpy(g->group, from->group, from->nnode * sizeof *g->group);
    for (uint32_t i = 0; i < from->state.n; i++)
        g->state.v[i].assigned = from->state.v[i].assigned;
    g->nnode = from->nnode;
    g->nout = from->nout;
    g->ngroup = from->ngroup;
    g->cur_site = from->cur_site;
    g->cur_device = from->cur_device;
    g->err = from->err;
    return g;
}

static ref append(struct graph *g, const struct node *n)
{
    if (g->nnode == UINT32_MAX || !mem_reserve(&g->node, &g->node_cap, g->nnode + 1, sizeof *g->node)) {
        err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
        return NIL;
    }
    drop_groups(g);
    g->node[g->nnode] = *n;
    return g->nnode++;
}

ref graph_add(struct graph *g, const struct node *proto, const struct shape *target)
{
    if (g->err.code != KL_OK)
        return NIL;
    if (proto->op == OP_nil || proto->op >= OP_COUNT) {
        err_set(&g->err, KL_ERR_INTERNAL, "op %u does not exist", proto->op);
        return NIL;
    }
    struct node n = *proto;
    const struct opinfo *o = &opinfo[n.op];
    if (n.nin < op_min_operands(n.op) || n.nin > o->nin) {
        err_set(&g->err, KL_ERR_INTERNAL, "%s: takes %u operands, got %u", o->name, o->nin, n.nin);
        return NIL;
    }
    for (unsigned i = 0; i < MAX_OPERANDS; i++) {
        bool valid = i < n.nin ? n.in[i] != NIL && n.in[i] < g->nnode : n.in[i] == NIL;
        if (!valid) {
            err_set(&g->err, KL_ERR_INTERNAL, "%s: operand %u is no node of graph @%s", o->name, i, g->name);
            return NIL;
        }
    }
    struct shape out = {0};
    if (target)
        out = *target;
    if (!o->shape(g, &n, &out, &g->err))
        return NIL;
    int64_t count;
    if (!shape_numel(&out, &count)) {
        char text[SHAPE_TEXT];
        if (out.rank > KL_MAX_RANK)
            err_set(&g->err, KL_ERR_SHAPE, "%s: a result of rank %u is above the maximum of %d", o->name, out.rank,
                    KL_MAX_RANK);
        else
            err_set(&g->err, KL_ERR_SHAPE, "%s: result shape %s has a negative dimension or too many elements",
                    o->name, shape_text(&out, text, sizeof text));
        return NIL;
    }
    n.shape = graph_shape(g, &out);
    n.site = g->cur_site;
    n.device = g->cur_device;
    return g->err.code == KL_OK ? append(g, &n) : NIL;
}

ref graph_copy_node(struct graph *g, const struct graph *from, const struct node *n, const ref *in)
{
    struct node c = *n;
    for (unsigned i = 0; i < MAX_OPERANDS; i++)
        c.in[i] = i < n->nin ? in[i] : NIL;
    for (unsigned i = 0; i < n->nin; i++)
        if (in[i] == NIL) {
            err_set(&g->err, KL_ERR_INTERNAL, "%s: operand %u of a copied node is missing", opinfo[n->op].name, i);
            return NIL;
        }
    c.shape = graph_shape(g, &from->shape[n->shape]);
    c.site = copy_site(g, from, n->site);
    return g->err.code == KL_OK ? append(g, &c) : NIL;
}

uint32_t graph_leaf(struct graph *g, struct leaves *l, unsigned dtype, const struct shape *s, const char *name)
{
    if (g->err.code != KL_OK)
        return LEAF_NONE;
    if (dtype >= KL_DTYPE_COUNT) {
        err_set(&g->err, KL_ERR_TYPE, "leaf \"%s\": dtype %u does not exist", name ? name : "", dtype);
        return LEAF_NONE;
    }
    struct leaf leaf = {.dtype = (uint8_t)dtype, .shape = graph_shape(g, s)};
    if (g->err.code != KL_OK)
        return LEAF_NONE;
    if (l->n == LEAF_NONE || !mem_reserve(&l->v, &l->cap, l->n + 1, sizeof *l->v)) {
        err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
        return LEAF_NONE;
    }
    snprintf(leaf.name, sizeof leaf.name, "%s", name ? name : "");
    l->v[l->n] = leaf;
    return l->n++;
}

bool graph_output(struct graph *g, enum out_kind kind, ref value, uint32_t state)
{
    if (g->err.code != KL_OK)
        return false;
    if (value == NIL || value >= g->nnode)
        return err_set(&g->err, KL_ERR_INTERNAL, "output %u is no node of graph @%s", g->nout, g->name);
    if (kind == OUT_ASSIGN) {
        if (state >= g->state.n)
            return err_set(&g->err, KL_ERR_INTERNAL, "assign: graph @%s has no state %u", g->name, state);
        const struct leaf *s = &g->state.v[state];
        const struct node *v = node_at(g, value);
        if (v->dtype != s->dtype || v->shape != s->shape) {
            char a[SHAPE_TEXT], b[SHAPE_TEXT];
            return err_set(&g->err, v->dtype != s->dtype ? KL_ERR_TYPE : KL_ERR_SHAPE,
                           "assign: value %s%s does not fit state \"%s\" of %s%s", dtype_name(v->dtype),
                           shape_text(&g->shape[v->shape], a, sizeof a), s->name, dtype_name(s->dtype),
                           shape_text(&g->shape[s->shape], b, sizeof b));
        }
        if (s->assigned)
            return err_set(&g->err, KL_ERR_INTERNAL, "assign: state \"%s\" is assigned twice", s->name);
    }
    if (!mem_reserve(&g->out, &g->out_cap, g->nout + 1, sizeof *g->out))
        return err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
    if (kind == OUT_ASSIGN)
        g->state.v[state].assigned = true;
    g->out[g->nout++] = (struct output){.kind = kind, .value = value, .state = kind == OUT_ASSIGN ? state : 0};
    return true;
}

int64_t node_numel(const struct graph *g, ref r)
{
    return shape_count(node_shape(g, r));
}

size_t node_bytes(const struct graph *g, ref r)
{
    return (size_t)node_numel(g, r) * dtype_size(node_at(g, r)->dtype);
}
