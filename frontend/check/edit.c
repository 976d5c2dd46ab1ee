/* Applies an edit: builds a new graph from the nodes that something still needs, in order. */
#include "edit.h"
#include <string.h>

struct rebuild {
    const struct graph *from;
    struct graph *to;
    const struct edit *edit;  /* what the edit is to this graph */
    const struct edit *whole; /* and to its regions */
    ref *map;                 /* from's node -> to's */
    uint32_t *leaf[3];        /* inputs, states, slots of `from`: ordinal + 1 in `to`, 0: none yet */
    uint32_t *origin[3];      /* of `to`: as struct edit_leaves */
    ref *result;              /* EDIT_TAKE_REGION: what the region yields */
};

static struct shape edited_shape(const struct rebuild *b, const struct shape *s)
{
    struct shape t = *s;
    for (uint32_t i = 0; b->edit->kind == EDIT_SET_DIM && i < t.rank; i++)
        if (t.dim[i] == b->edit->from)
            t.dim[i] = b->edit->to;
    return t;
}

static unsigned edited_dtype(const struct rebuild *b, unsigned dtype)
{
    return b->edit->kind == EDIT_SET_DTYPE && dtype == (unsigned)b->edit->from ? (unsigned)b->edit->to : dtype;
}

static const struct leaves *leaf_table(const struct graph *g, unsigned which)
{
    return which == 0 ? &g->input : which == 1 ? &g->state : &g->slot;
}

/* The ordinal in the new graph of a leaf of the old one. */
static uint32_t leaf_ordinal(struct rebuild *b, unsigned which, uint32_t old)
{
    uint32_t *known = &b->leaf[which][old];
    if (!*known) {
        const struct leaf *l = &leaf_table(b->from, which)->v[old];
        struct shape s = edited_shape(b, &b->from->shape[l->shape]);
        struct leaves *to = which == 0 ? &b->to->input : which == 1 ? &b->to->state : &b->to->slot;
        uint32_t now = graph_leaf(b->to, to, edited_dtype(b, l->dtype), &s, l->name);
        if (now == LEAF_NONE)
            return 0; /* to->err says why */
        b->origin[which][now] = old;
        *known = now + 1;
    }
    return *known - 1;
}

static ref new_input(struct rebuild *b, ref r)
{
    uint32_t now = b->to->input.n;
    ref x = n_input(b->to, b->from->node[r].dtype, node_shape(b->from, r), "x");
    if (x)
        b->origin[0][now] = EDIT_NEW_LEAF | r;
    return x;
}

/* A reshape whose operand has another size now: groups of axes with equal products change together. */
static struct shape edit_refit(const struct shape *old_in, const struct shape *new_in, const struct shape *old_out,
                          const struct shape *wanted)
{
    struct shape t = *wanted;
    uint32_t i = 0, o = 0;
    while (i < old_in->rank && o < old_out->rank) {
        uint32_t first = o;
        int64_t pi = old_in->dim[i], po = old_out->dim[o], now_in = new_in->dim[i++], now_out = t.dim[o++];
        while (pi != po) {
            if (pi < po && i < old_in->rank)
                pi *= old_in->dim[i], now_in *= new_in->dim[i++];
            else if (po < pi && o < old_out->rank)
                po *= old_out->dim[o], now_out *= t.dim[o++];
            else
                return t;
        }
        if (now_in == now_out)
            continue;
        for (uint32_t k = first; k < o; k++)
            t.dim[k] = k == first ? now_in : 1;
    }
    return t;
}

static struct graph *edit_rebuild(const struct graph *g, const struct edit *e, bool region, struct edit_leaves *leaves);

static ref rebuild_custom(struct rebuild *b, const struct node *copy, const struct node *n, const ref *in)
{
    struct custom c = *node_custom(b->from, n);
    struct custom_result *result = mem_alloc(c.nresult * sizeof *result + 1);
    if (!result)
        return NIL;
    for (uint32_t i = 0; i < c.nresult; i++) {
        struct shape s = edited_shape(b, &b->from->shape[c.result[i].shape]);
        result[i] = (struct custom_result){edited_dtype(b, c.result[i].dtype), graph_shape(b->to, &s)};
    }
    c.result = result;
    ref r = graph_add_custom(b->to, copy, in, node_nin(n), &c);
    mem_free(result);
    return r;
}

static void splice_region(struct rebuild *b, const struct node *n, const ref *in)
{
    const struct graph *g = node_region(b->from, n, b->edit->operand);
    b->result = mem_alloc((g->nout + 1) * sizeof *b->result);
    if (b->result)
        graph_splice(b->to, g, in, 0, b->result);
    else
        err_set(&b->to->err, KL_ERR_MEMORY, "out of memory");
}

static ref rebuild_region_op(struct rebuild *b, ref r)
{
    const struct node *n = node_at(b->from, r);
    const struct edit *e = b->edit;
    struct node copy = {.op = n->op, .flags = n->flags, .attr = n->attr};
    struct graph *region[2] = {NULL};
    bool taken = e->kind == EDIT_TAKE_REGION && e->node == r;
    uint32_t nin = node_nin(n), skip = n->op == OP_cond;
    ref *in = mem_alloc((nin + 1) * sizeof *in), out = NIL;
    if (!in)
        return NIL;
    for (uint32_t i = 0; i < nin; i++)
        in[i] = b->map[node_in(b->from, n, i)];
    for (uint32_t i = 0; i < op_regions(n->op) && !b->to->err.code && !taken; i++)
        if (!(region[i] = edit_rebuild(node_region(b->from, n, i), b->whole, true, NULL)))
            err_set(&b->to->err, KL_ERR_INTERNAL, "a region is broken");
    if (e->kind == EDIT_SET_DIM && n->op == OP_scan && n->attr.region.length == e->from)
        copy.attr.region.length = e->to;
    if (taken) {
        splice_region(b, n, in + skip);
    } else {
        b->to->cur_device = n->device;
        out = n->op == OP_custom ? rebuild_custom(b, &copy, n, in) : graph_add_region(b->to, &copy, in, nin, region);
    }
    mem_free(in);
    return out;
}

static const struct attr_info *edit_attribute(const struct node *n, enum attr_kind kind, const char *word)
{
    const struct attr_info *a = opinfo[n->op].attr;
    while (a && a->word && (a->kind != kind || strcmp(a->word, word)))
        a++;
    return a && a->word ? a : NULL;
}

/* The count of a slice is a length of its result, too. */
static void set_count(struct node *n, const struct shape *s)
{
    const struct attr_info *count = edit_attribute(n, ATTR_DIM, "count"), *axis = edit_attribute(n, ATTR_AXIS, "axis");
    if (count && axis)
        attr_set(&n->attr, count->at, count->size, (uint64_t)s->dim[attr_get(&n->attr, axis->at, axis->size)]);
}

static ref rebuild_node(struct rebuild *b, ref r)
{
    const struct node *n = node_at(b->from, r);
    const struct edit *e = b->edit;
    const struct shape *old = node_shape(b->from, r);
    if ((e->kind == EDIT_TAKE_INPUT && e->node == r) || (e->kind == EDIT_CUT && e->cut[r]))
        return new_input(b, r);
    if (op_is_region(n->op))
        return rebuild_region_op(b, r);
    if (n->op == OP_proj && e->kind == EDIT_TAKE_REGION && n->in[0] == e->node)
        return b->result[n->attr.proj.index];
    if (e->kind == EDIT_TAKE_OPERAND && e->node == r)
        return b->map[n->in[e->operand]];
    struct node copy = {.op = n->op, .dtype = (uint8_t)edited_dtype(b, n->dtype), .nin = n->nin, .flags = n->flags,
                        .attr = n->attr};
    copy.site = graph_site(b->to, &b->from->site[n->site]);
    struct shape s = edited_shape(b, old);
    for (unsigned i = 0; i < n->nin; i++)
        copy.in[i] = b->map[n->in[i]];
    if (n->op >= OP_input && n->op <= OP_slot && n->op != OP_const)
        copy.attr.leaf.index = leaf_ordinal(b, n->op == OP_input ? 0 : n->op == OP_state ? 1 : 2, n->attr.leaf.index);
    if (n->op == OP_const && copy.dtype != n->dtype)
        copy.attr.konst.bits = dtype_bits(copy.dtype, dtype_value(n->dtype, n->attr.konst.bits));
    set_count(&copy, &s);
    if (n->op == OP_reshape)
        s = edit_refit(node_shape(b->from, n->in[0]), node_shape(b->to, copy.in[0]), old, &s);
    b->to->cur_device = n->device;
    b->to->cur_site = copy.site;
    return graph_add(b->to, &copy, &s);
}

static bool returns_node(const struct edit *e) { return e->kind == EDIT_KEEP_VALUE || e->kind == EDIT_CUT; }

static bool is_dropped(const struct edit *e, uint32_t out)
{
    return returns_node(e) || (e->kind == EDIT_DROP_OUTPUT && e->node == out);
}

/* Are the operands of node r needed, if r is? */
static bool needs_operand(const struct edit *e, ref r, uint32_t i)
{
    if (e->kind == EDIT_CUT)
        return !e->cut[r];
    if (e->node != r || (e->kind != EDIT_TAKE_INPUT && e->kind != EDIT_TAKE_OPERAND))
        return true;
    return e->kind == EDIT_TAKE_OPERAND && e->operand == i;
}

static void mark_live(const struct rebuild *b, bool *live)
{
    const struct edit *e = b->edit;
    const struct graph *g = b->from;
    for (uint32_t i = 0; i < g->nout; i++)
        live[g->out[i].value] |= !is_dropped(e, i);
    if (returns_node(e))
        live[e->node] = true;
    for (ref r = g->nnode - 1; r > 0; r--)
        for (unsigned i = 0; live[r] && i < node_nin(&g->node[r]); i++)
            if (needs_operand(e, r, i))
                live[node_in(g, &g->node[r], i)] = true;
}

static void rebuild_outputs(struct rebuild *b)
{
    const struct graph *g = b->from;
    for (uint32_t i = 0; i < g->nout && !b->to->err.code; i++)
        if (!is_dropped(b->edit, i))
            graph_output(b->to, g->out[i].kind, b->map[g->out[i].value],
                         g->out[i].kind == OUT_ASSIGN ? leaf_ordinal(b, 1, g->out[i].state) : 0);
    if (returns_node(b->edit) && !b->to->err.code)
        graph_output(b->to, OUT_RETURN, b->map[b->edit->node], 0);
}

static bool rebuild_room(struct rebuild *b, bool **live)
{
    const struct graph *g = b->from;
    b->to = graph_new(g->name);
    b->map = mem_alloc(g->nnode * sizeof *b->map);
    *live = mem_alloc(g->nnode * sizeof **live);
    bool ok = b->to && b->map && *live;
    for (unsigned i = 0; i < 3; i++) {
        uint32_t n = leaf_table(g, i)->n + 1, more = i ? 0 : g->nnode; /* a node may become an input */
        b->leaf[i] = mem_alloc(n * sizeof *b->leaf[i]);
        b->origin[i] = mem_alloc((n + more) * sizeof *b->origin[i]);
        ok = ok && b->leaf[i] && b->origin[i];
    }
    return ok;
}

/* A region keeps its parameters. */
static struct graph *edit_rebuild(const struct graph *g, const struct edit *e, bool region, struct edit_leaves *leaves)
{
    static const struct edit none = {.kind = EDIT_SET_DIM, .from = -1}; /* no length is -1 */
    struct rebuild b = {.from = g, .edit = e->kind >= EDIT_SET_DIM || e->of == g ? e : &none, .whole = e};
    bool *live = NULL, ok = rebuild_room(&b, &live);
    if (ok)
        mark_live(&b, live);
    for (uint32_t i = 0; ok && region && i < g->input.n && !b.to->err.code; i++)
        leaf_ordinal(&b, 0, i);
    for (ref r = 1; ok && r < g->nnode && !b.to->err.code; r++)
        if (live[r])
            b.map[r] = rebuild_node(&b, r);
    if (ok)
        rebuild_outputs(&b);
    struct err bad = {0};
    ok = ok && !b.to->err.code && b.to->nout && graph_verify(b.to, &bad);
    for (unsigned i = 0; i < 3; i++)
        mem_free(b.leaf[i]);
    struct edit_leaves origin = {b.origin[0], b.origin[1], b.origin[2]};
    if (ok && leaves)
        *leaves = origin;
    else
        edit_leaves_free(&origin);
    mem_free(b.map);
    mem_free(b.result);
    mem_free(live);
    if (ok)
        return b.to;
    graph_free(b.to);
    return NULL;
}

struct graph *edit_apply(const struct graph *g, const struct edit *e, struct edit_leaves *leaves)
{
    return edit_rebuild(g, e, false, leaves);
}

void edit_leaves_free(struct edit_leaves *l)
{
    mem_free(l->input);
    mem_free(l->state);
    mem_free(l->slot);
    *l = (struct edit_leaves){NULL, NULL, NULL};
}
