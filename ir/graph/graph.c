/* Creating and copying graphs; appending nodes, leaves and outputs. */
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

static void free_regions(struct graph *g, uint32_t from)
{
    for (uint32_t i = from; i < g->nregion; i++)
        graph_free(g->region[i]);
    g->nregion = from;
}

static void free_customs(struct graph *g, uint32_t from)
{
    for (uint32_t i = from; i < g->ncustom; i++) {
        mem_free(g->custom[i].result);
        mem_free(g->custom[i].attr);
    }
    g->ncustom = from;
}

void graph_free(struct graph *g)
{
    if (!g)
        return;
    free_text(g);
    free_customs(g, 0);
    mem_free(g->custom);
    free_regions(g, 0);
    symbols_release(g);
    mem_free(g->region);
    mem_free(g->operand);
    mem_free(g->text);
    mem_free(g->node);
    for (uint32_t i = 0; i < g->noutgrown; i++)
        mem_free(g->outgrown[i]);
    mem_free(g->outgrown);
    mem_free(g->shape);
    mem_free(g->out);
    mem_free(g->out_name);
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

static size_t symbols_bytes(const struct symbols *s)
{
    return s ? sizeof *s + s->expr_cap * sizeof *s->expr + s->expr_index.cap * sizeof *s->expr_index.slot : 0;
}

size_t graph_bytes(const struct graph *g)
{
    size_t bytes = sizeof *g + g->node_cap * sizeof *g->node + g->shape_cap * sizeof *g->shape + g->out_cap *
        sizeof *g->out +
                   g->operand_cap * sizeof *g->operand + g->region_cap * sizeof *g->region + g->custom_cap *
                       sizeof *g->custom +
                   (size_t)(g->input.cap + g->state.cap + g->slot.cap) * sizeof *g->input.v + g->site_cap *
                       sizeof *g->site +
                   g->text_cap * sizeof *g->text + (g->group ? g->node_cap * sizeof *g->group : 0) +
                       symbols_bytes(g->symbols) +
                   g->shape_index.cap * sizeof *g->shape_index.slot + g->site_index.cap * sizeof *g->site_index.slot +
                   g->text_index.cap * sizeof *g->text_index.slot;
    for (uint32_t i = 0; i < g->nregion; i++)
        bytes += graph_bytes(g->region[i]);
    for (uint32_t i = 0; i < g->ntext; i++)
        bytes += strlen(g->text[i]) + 1;
    return bytes;
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
    free_regions(g, 0);
    free_customs(g, 0);
    symbols_release(g);
    drop_groups(g);
    g->noperand = g->depth = 0;
    empty_index(&g->shape_index);
    empty_index(&g->site_index);
    empty_index(&g->text_index);
    g->nshape = g->nout = g->nsite = 0;
    mem_free(g->out_name);
    g->out_name = NULL;
    g->out_name_cap = 0;
    g->input.n = g->state.n = g->slot.n = 0;
    g->cur_site = 0;
    g->cur_device = g->cur_flags = 0;
    g->err = (struct err){0};
    init_tables(g);
}

/* The id in g of a site of `from`; strings owned by `from` are copied, because they are freed with it. */
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

static bool copy_output_names(struct graph *g, const struct graph *from)
{
    if (!from->out_name)
        return true;
    if (!mem_reserve(&g->out_name, &g->out_name_cap, from->out_name_cap, sizeof *g->out_name))
        return false;
    for (uint32_t i = 0; i < from->nout && i < from->out_name_cap; i++) {
        const struct output_name *o = &from->out_name[i];
        if (o->s && !((g->out_name[i] = (struct output_name){graph_string(g, o->s, strlen(o->s)), o->written}).s))
            return false;
    }
    return true;
}

static bool copy_leaves(struct graph *g, const struct graph *from)
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

/* Appends a copy of c, whose shapes are those of `from`, to g's list. */
static bool add_custom(struct graph *g, const struct graph *from, const struct custom *c)
{
    struct custom copy = *c;
    copy.result = mem_alloc(c->nresult * sizeof *c->result);
    copy.attr = c->nattr ? mem_alloc(c->nattr) : NULL;
    bool ok = copy.result && (copy.attr || !c->nattr) &&
              mem_reserve(&g->custom, &g->custom_cap, g->ncustom + 1, sizeof *g->custom);
    for (uint32_t i = 0; ok && i < c->nresult; i++)
        copy.result[i] = (struct custom_result){c->result[i].dtype, graph_shape(g, &from->shape[c->result[i].shape])};
    if (!ok || g->err.code) {
        mem_free(copy.result);
        mem_free(copy.attr);
        return err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
    }
    if (c->nattr)
        memcpy(copy.attr, c->attr, c->nattr);
    g->custom[g->ncustom++] = copy;
    return true;
}

bool graph_copy_leaves(struct graph *g, const struct graph *from)
{
    return symbols_share(g, from) && copy_leaves(g, from);
}

static struct graph *graph_clone_with(const struct graph *from, struct symbols *table, bool share);

static bool clone_regions(struct graph *g, const struct graph *from)
{
    if (!mem_reserve(&g->operand, &g->operand_cap, from->noperand, sizeof *g->operand) ||
        !mem_reserve(&g->region, &g->region_cap, from->nregion, sizeof *g->region))
        return false;
    if (from->noperand)
        memcpy(g->operand, from->operand, from->noperand * sizeof *g->operand);
    g->noperand = from->noperand;
    for (; g->nregion < from->nregion; g->nregion++)
        if (!(g->region[g->nregion] = graph_clone_with(from->region[g->nregion], g->symbols, true)))
            return false;
    for (uint32_t i = 0; i < from->ncustom; i++)
        if (!add_custom(g, from, &from->custom[i]))
            return false;
    g->depth = from->depth;
    return true;
}

/* Interns shapes and sites in their old order, so ids stay the same. table: has the expressions of from's shapes, NULL
 * where there are none; the clone shares or copies it. */
static struct graph *graph_clone_with(const struct graph *from, struct symbols *table, bool share)
{
    struct graph *g = graph_new(from->name);
    if (!g)
        return NULL;
    if (share)
        symbols_use(g, table);
    else
        symbols_copy(g, table);
    for (uint32_t i = 0; i < from->nshape; i++)
        graph_shape(g, &from->shape[i]);
    for (uint32_t i = 0; i < from->nsite; i++)
        copy_site(g, from, i);
    copy_leaves(g, from);
    bool ok = g->err.code == KL_OK && mem_reserve(&g->node, &g->node_cap, from->nnode, sizeof *g->node) &&
              mem_reserve(&g->out, &g->out_cap, from->nout, sizeof *g->out) && clone_regions(g, from) &&
              copy_output_names(g, from);
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
    g->cur_flags = from->cur_flags;
    g->err = from->err;
    return g;
}

struct graph *graph_clone(const struct graph *from) { return graph_clone_with(from, from->symbols, false); }
struct graph *graph_clone_part(const struct graph *from) { return graph_clone_with(from, from->symbols, true); }

static uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* One more than the largest id of a shape of a leaf or a custom op. */
static uint32_t shapes_beside_nodes(const struct graph *g)
{
    const struct leaves *of[] = {&g->input, &g->state, &g->slot};
    uint32_t n = 0;
    for (int t = 0; t < 3; t++)
        for (uint32_t i = 0; i < of[t]->n; i++)
            n = max_u32(n, of[t]->v[i].shape + 1);
    for (uint32_t i = 0; i < g->ncustom; i++)
        for (uint32_t k = 0; k < g->custom[i].nresult; k++)
            n = max_u32(n, g->custom[i].result[k].shape + 1);
    return n;
}

/* Clones a copy of *from whose counts are cut to the beginning.  Shapes, sites and symbols that only later nodes use
 * are left out.  Otherwise a trace that is copied from recording to recording, with one shape different each time,
 * would collect the shapes of all recordings, and a symbol could not have other bounds than in an earlier one. */
struct graph *graph_clone_beginning(const struct graph *from, uint32_t nnode, uint32_t nshape)
{
    struct graph cut = *from;
    uint32_t leaves[OP_COUNT] = {0};
    cut.nnode = nnode;
    cut.nout = cut.noperand = cut.nregion = cut.depth = cut.cur_site = 0;
    cut.nshape = nshape;
    cut.nsite = from->nsite ? 1 : 0;
    cut.group = NULL;
    cut.ngroup = 0;
    cut.out_name = NULL;
    for (ref r = 1; r < nnode; r++) {
        const struct node *n = node_at(from, r);
        leaves[n->op]++;
        cut.nregion += op_regions(n->op);
        if (op_is_region(n->op))
            cut.noperand += n->attr.region.count;
        cut.nshape = max_u32(cut.nshape, n->shape + 1);
        cut.nsite = max_u32(cut.nsite, n->site + 1);
    }
    for (uint32_t i = 0; i < cut.nregion; i++)
        cut.depth = max_u32(cut.depth, from->region[i]->depth + 1);
    cut.input.n = leaves[OP_input];
    cut.state.n = leaves[OP_state];
    cut.slot.n = leaves[OP_slot];
    cut.ncustom = leaves[OP_custom];
    cut.nshape = max_u32(cut.nshape, shapes_beside_nodes(&cut));
    struct symbols table;
    cut.symbols = symbols_of_shapes(&cut, &table);
    struct graph *g = graph_clone(&cut);
    for (uint32_t i = 0; g && i < g->state.n; i++)
        g->state.v[i].assigned = false;
    return g;
}

static ref graph_append(struct graph *g, const struct node *n)
{
    if (g->nnode == UINT32_MAX || !mem_reserve(&g->node, &g->node_cap, g->nnode + 1, sizeof *g->node)) {
        err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
        return NIL;
    }
    drop_groups(g);
    g->node[g->nnode] = *n;
    return g->nnode++;
}

/* Only proj may have a region op's node as an operand. */
static bool is_operand(const struct graph *g, unsigned op, ref r)
{
    return r != NIL && r < g->nnode && op_is_region(g->node[r].op) == (op == OP_proj);
}

/* Sets the device of a node: that of its operands; for copy the target, for a gradient the device of its variable. */
static bool resolve_device(struct graph *g, struct node *n)
{
    n->device = g->cur_device;
    if (n->op == OP_copy || !node_nin(n))
        return true;
    n->device = g->node[n->op == OP_grad ? n->in[1] : node_in(g, n, 0)].device;
    for (unsigned i = 1; n->op != OP_grad && i < node_nin(n); i++) {
        unsigned device = g->node[node_in(g, n, i)].device;
        char a[DEVICE_TEXT], b[DEVICE_TEXT];
        if (device != n->device)
            return err_set(&g->err, KL_ERR_DEVICE, "%s: operands are on devices %s and %s", opinfo[n->op].name,
                           device_label(n->device, a), device_label(device, b));
    }
    return true;
}

static ref graph_add_node(struct graph *g, const struct node *proto, const struct shape *target)
{
    struct node n = *proto;
    const struct opinfo *o = &opinfo[n.op];
    if (n.nin < op_min_operands(n.op) || n.nin > o->nin) {
        err_set(&g->err, KL_ERR_INTERNAL, "%s: takes %u operands, got %u", o->name, o->nin, n.nin);
        return NIL;
    }
    for (unsigned i = 0; i < MAX_OPERANDS; i++) {
        bool valid = i < n.nin ? is_operand(g, n.op, n.in[i]) : n.in[i] == NIL;
        if (!valid) {
            err_set(&g->err, KL_ERR_INTERNAL, "%s: operand %u is no %s of graph @%s", o->name, i,
                    n.op == OP_proj ? "region op" : "value", g->name);
            return NIL;
        }
    }
    struct shape out = {0};
    if (target)
        out = *target;
    if (!resolve_device(g, &n) || !o->shape(g, &n, &out, &g->err))
        return NIL;
    if (!shape_is_legal(g, &out)) {
        char text[SHAPE_TEXT], bounds[BOUNDS_TEXT];
        if (out.rank > KL_MAX_RANK)
            err_set(&g->err, KL_ERR_SHAPE, "%s: a result of rank %u is above the maximum of %d", o->name, out.rank,
                    KL_MAX_RANK);
        else
            err_set(&g->err, KL_ERR_SHAPE, "%s: result shape %s has %s%s", o->name,
                    shape_text_in(g, &out, text, sizeof text), shape_fault(g, &out),
                    bounds_text(g, &out, bounds, sizeof bounds));
        return NIL;
    }
    n.shape = graph_shape(g, &out);
    n.site = g->cur_site;
    n.flags |= g->cur_flags;
    return g->err.code == KL_OK ? graph_append(g, &n) : NIL;
}

ref graph_add(struct graph *g, const struct node *proto, const struct shape *target)
{
    if (g->err.code != KL_OK)
        return NIL;
    if (proto->op == OP_nil || proto->op >= OP_COUNT || op_is_region(proto->op)) {
        err_set(&g->err, KL_ERR_INTERNAL, "op %u %s", proto->op,
                op_is_region(proto->op) ? "has a builder of its own: graph_add_region, graph_add_custom"
                    : "does not exist");
        return NIL;
    }
    return graph_add_node(g, proto, target);
}

/* Appends a region op's operands and regions to the graph's pools. */
static bool graph_attach_regions(struct graph *g, struct node *n, const ref *in, uint32_t nin,
                                 struct graph *const *region)
{
    uint32_t regions = op_regions(n->op);
    if (!mem_reserve(&g->operand, &g->operand_cap, g->noperand + nin, sizeof *g->operand) ||
        !mem_reserve(&g->region, &g->region_cap, g->nregion + regions, sizeof *g->region)) {
        for (uint32_t i = 0; i < regions; i++)
            graph_free(region[i]);
        return err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
    }
    n->attr.region.first = g->nregion;
    n->attr.region.operands = g->noperand;
    n->attr.region.count = nin;
    for (uint32_t i = 0; i < regions; i++) {
        g->region[g->nregion++] = region[i];
        if (!symbols_share(region[i], g))
            err_set(&g->err, region[i]->err.code, "%s", region[i]->err.msg);
    }
    if (g->err.code)
        return false;
    for (uint32_t i = 0; i < nin; i++)
        g->operand[g->noperand++] = in[i];
    for (uint32_t i = 0; i < nin; i++)
        if (!is_operand(g, n->op, in[i]))
            return err_set(&g->err, KL_ERR_INTERNAL, "%s: operand %u is no value of graph @%s", opinfo[n->op].name, i,
                           g->name);
    uint32_t depth = g->depth;
    for (uint32_t i = 0; i < regions; i++)
        depth = region[i]->depth + 1 > depth ? region[i]->depth + 1 : depth;
    if (depth > MAX_REGION_DEPTH)
        return err_set(&g->err, KL_ERR_ARGUMENT, "%s: regions in regions are more than %d deep", opinfo[n->op].name,
                       MAX_REGION_DEPTH);
    g->depth = depth;
    return true;
}

ref graph_add_region(struct graph *g, const struct node *proto, const ref *in, uint32_t nin,
                     struct graph *const *region)
{
    uint32_t operands = g->noperand, regions = g->nregion;
    bool whole = true;
    struct node n = *proto;
    for (uint32_t i = 0; i < op_regions(n.op); i++) {
        whole &= region[i] != NULL;
        if (region[i] && region[i]->err.code)
            err_set(&g->err, region[i]->err.code, "%s", region[i]->err.msg);
    }
    if (!whole)
        err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
    if (g->err.code) {
        for (uint32_t i = 0; i < op_regions(n.op); i++)
            graph_free(region[i]);
        return NIL;
    }
    ref r = graph_attach_regions(g, &n, in, nin, region) ? graph_add_node(g, &n, NULL) : NIL;
    if (r == NIL) {
        free_regions(g, regions);
        g->noperand = operands;
    }
    return r;
}

ref graph_add_custom(struct graph *g, const struct node *proto, const ref *in, uint32_t nin, const struct custom *c)
{
    uint32_t operands = g->noperand, customs = g->ncustom;
    struct node n = *proto;
    if (g->err.code || !add_custom(g, g, c))
        return NIL;
    n.attr.region.length = customs;
    ref r = graph_attach_regions(g, &n, in, nin, NULL) ? graph_add_node(g, &n, NULL) : NIL;
    if (r == NIL) {
        free_customs(g, customs);
        g->noperand = operands;
    }
    return r;
}

ref graph_copy_node(struct graph *g, const struct graph *from, const struct node *n, const ref *in)
{
    struct node c = *n;
    for (unsigned i = 0; i < node_nin(n); i++)
        if (in[i] == NIL) {
            err_set(&g->err, KL_ERR_INTERNAL, "%s: operand %u of a copied node is missing", opinfo[n->op].name, i);
            return NIL;
        }
    for (unsigned i = 0; i < MAX_OPERANDS; i++)
        c.in[i] = i < n->nin ? in[i] : NIL;
    if (from->symbols && !symbols_share(g, from))
        return NIL;
    if (op_is_region(n->op) && !g->err.code) {
        struct graph *region[2] = {NULL};
        for (uint32_t i = 0; i < op_regions(n->op); i++)
            if (!(region[i] = graph_clone_part(node_region(from, n, i))))
                err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
        if (n->op == OP_custom && add_custom(g, from, node_custom(from, n)))
            c.attr.region.length = g->ncustom - 1;
        if (g->err.code || !graph_attach_regions(g, &c, in, node_nin(n), region))
            return NIL;
    }
    c.shape = graph_shape(g, &from->shape[n->shape]);
    c.site = copy_site(g, from, n->site);
    return g->err.code == KL_OK ? graph_append(g, &c) : NIL;
}

ref graph_copy_mapped(struct graph *g, const struct graph *from, ref r, const ref *map)
{
    const struct node *n = node_at(from, r);
    unsigned nin = node_nin(n);
    ref few[MAX_OPERANDS] = {0}, *in = nin > MAX_OPERANDS ? mem_alloc(nin * sizeof *in) : few;
    if (!in) {
        err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
        return NIL;
    }
    for (unsigned i = 0; i < nin; i++)
        in[i] = map[node_in(from, n, i)];
    ref copy = graph_copy_node(g, from, n, in);
    if (in != few)
        mem_free(in);
    return copy;
}

bool graph_splice(struct graph *g, const struct graph *region, const ref *in, uint16_t flags, ref *out)
{
    ref *map = mem_alloc(region->nnode * sizeof *map);
    if (!map)
        return err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
    for (ref r = 1; r < region->nnode && !g->err.code; r++) {
        const struct node *n = node_at(region, r);
        map[r] = n->op == OP_input ? in[n->attr.leaf.index] : graph_copy_mapped(g, region, r, map);
        if (n->op != OP_input && map[r])
            g->node[map[r]].flags |= flags;
    }
    for (uint32_t i = 0; i < region->nout; i++)
        out[i] = map[region->out[i].value];
    mem_free(map);
    return !g->err.code;
}

void graph_move(struct graph *g, unsigned from, unsigned to)
{
    for (ref r = 1; r < g->nnode; r++)
        if (g->node[r].device == from)
            g->node[r].device = (uint16_t)to;
    for (uint32_t i = 0; i < g->nregion; i++)
        graph_move(g->region[i], from, to);
}

unsigned graph_device(const struct graph *g)
{
    return g->nnode > 1 ? g->node[1].device : 0;
}

uint64_t graph_devices(const struct graph *g)
{
    uint64_t all = 0;
    for (ref r = 1; r < g->nnode; r++)
        all |= UINT64_C(1) << g->node[r].device;
    for (uint32_t i = 0; i < g->nregion; i++)
        all |= graph_devices(g->region[i]);
    return all;
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
                           shape_text_in(g, &g->shape[v->shape], a, sizeof a), s->name, dtype_name(s->dtype),
                           shape_text_in(g, &g->shape[s->shape], b, sizeof b));
        }
        if (s->assigned)
            return err_set(&g->err, KL_ERR_INTERNAL, "assign: state \"%s\" is assigned twice", s->name);
    }
    if (!mem_reserve(&g->out, &g->out_cap, g->nout + 1, sizeof *g->out))
        return err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
    if (kind == OUT_ASSIGN)
        g->state.v[state].assigned = true;
    if (g->nout < g->out_name_cap)
        g->out_name[g->nout] = (struct output_name){0};
    g->out[g->nout++] = (struct output){.kind = kind, .value = value, .state = kind == OUT_ASSIGN ? state : 0};
    return true;
}

bool graph_name_output(struct graph *g, const char *name, size_t len, bool written)
{
    const char *s = graph_string(g, name, len);
    if (!s || !mem_reserve(&g->out_name, &g->out_name_cap, g->nout, sizeof *g->out_name))
        return err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
    g->out_name[g->nout - 1] = (struct output_name){s, written};
    return true;
}

const char *graph_output_name(const struct graph *g, uint32_t i, bool *written)
{
    struct output_name o = i < g->out_name_cap ? g->out_name[i] : (struct output_name){0};
    *written = o.written;
    return o.s ? o.s : "";
}

int64_t node_numel(const struct graph *g, ref r)
{
    return shape_count(node_shape(g, r));
}

size_t node_bytes(const struct graph *g, ref r)
{
    return (size_t)node_numel(g, r) * dtype_size(node_at(g, r)->dtype);
}
