/* Explains why the kernels of a fused graph are separate: applies fusion's rules to the final groups. */
#include "fuse.h"
#include "ir/text/text.h"

struct explainer {
    struct fuser f;
    /* a copy of the graph with separate groups: the parts of a kernel (fuse_parts.c) are one each */
    struct graph g;
    uint32_t *number;   /* per such group: its number in the graph */
    uint32_t *other;    /* per such group: the next part of the same kernel, 0: none */
};

static uint32_t part_of(struct explainer *x, ref r, uint32_t id, bool anchored)
{
    while (!anchored && x->f.group[id].first && node_numel(&x->g, r) != x->f.group[id].numel) {
        if (!x->other[id]) {
            x->other[id] = x->f.ngroup;
            x->number[x->f.ngroup++] = x->number[id];
        }
        id = x->other[id];
    }
    return id;
}

static void add_member(struct explainer *x, ref r, uint32_t id)
{
    struct fuser *f = &x->f;
    const struct node *n = &x->g.node[r];
    bool first = !f->group[id].first, remat = n->flags & MARK_REMAT;
    if (first)
        f->group[id] = (struct group){.first = r, .last = r, .low = r, .high = r, .numel = node_numel(&x->g, r),
                                      .run = fuse_run(&x->g, r), .nodes = 1, .reads = n->nin, .device = n->device,
                                      .non_fusible = op_is_non_fusible(n->op), .remat = remat};
    else
        fuse_member(f, id, r);
    struct group *b = &f->group[id];
    f->g->group[r] = id;
    b->remat |= remat;
    if (!op_is_anchor(n->op) && !op_is_non_fusible(n->op))
        return;
    b->block_dot = b->anchor && op_is_reduce(n->op) && op_is_product(x->g.node[b->anchor].op);
    b->rows |= b->anchor && op_is_reduce(n->op) && !b->block_dot;
    if (!b->anchor || b->block_dot)
        b->numel = node_numel(&x->g, b->anchor = r);
}

/* Marks the nodes that the anchors read, from the end to the start. */
static void find_prologues(struct fuser *f)
{
    for (ref r = f->g->nnode; r-- > 1;) {
        uint32_t id = group_of(f, r);
        bool inside = id != GROUP_NONE && (f->prologue[r] || f->group[id].anchor == r);
        for (unsigned i = 0; inside && i < f->g->node[r].nin; i++) {
            bool linear;
            ref s = node_operand(f->g, r, i, &linear);
            f->prologue[s] |= group_of(f, s) == id;
        }
    }
}

static void explain_rebuild_groups(struct explainer *x, const struct graph *g, bool *anchored)
{
    struct fuser *f = &x->f;
    f->ngroup = g->ngroup;
    for (uint32_t i = 0; i < g->ngroup; i++)
        x->number[i] = i;
    for (ref r = 1; r < g->nnode; r++)
        if (g->group[r] != GROUP_NONE)
            anchored[g->group[r]] |= op_is_anchor(g->node[r].op) || op_is_non_fusible(g->node[r].op);
    for (ref r = 1; r < g->nnode; r++)
        if (g->group[r] != GROUP_NONE)
            add_member(x, r, part_of(x, r, g->group[r], anchored[g->group[r]]));
    find_prologues(f);
    for (ref r = 1; r < g->nnode; r++) { /* rows repeated after their reduction */
        uint32_t id = group_of(f, r);
        struct group *b = id == GROUP_NONE ? NULL : &f->group[id];
        if (b && b->anchor && r != b->anchor && !f->prologue[r] && node_numel(g, r) != b->numel)
            b->rows |= op_is_reduce(g->node[b->anchor].op);
    }
}

/* One line for each group that group b reads. */
static void put_reasons(struct explainer *x, uint32_t b, uint32_t *reported, struct text *t)
{
    struct fuser *f = &x->f;
    char buf[SHAPE_TEXT];
    for (ref r = f->group[b].first; r; r = f->next[r])
        for (unsigned i = 0; i < node_nin(&f->g->node[r]); i++) {
            bool linear;
            ref s = node_operand(f->g, r, i, &linear);
            uint32_t a = group_of(f, s);
            if (a == GROUP_NONE || x->number[a] == x->number[b] || reported[a] == b + 1)
                continue;
            reported[a] = b + 1;
            struct verdict v = fuse_score_group(f, a, b, true);
            text_put(t, "# group %u reads %%%u %s%s of group %u: %s\n", x->number[b], s,
                     dtype_name(f->g->node[s].dtype),
                     shape_text(node_shape(f->g, s), buf, sizeof buf), x->number[a],
                     v.join == JOIN_NONE ? v.why : "the kernel between them was fused too late");
        }
}

char *fuse_explain(const struct graph *g)
{
    if (!g->group)
        return mem_alloc(1);
    struct explainer x = {.g = *g};
    struct text t = {0};
    struct mem_arena mem = {0};
    bool *anchored = mem_arena_alloc(&mem, (g->ngroup + 1) * sizeof *anchored);
    uint32_t *reported = mem_arena_alloc(&mem, g->nnode * sizeof *reported);
    x.number = mem_arena_alloc(&mem, g->nnode * sizeof *x.number);
    x.other = mem_arena_alloc(&mem, g->nnode * sizeof *x.other);
    x.g.group = mem_arena_alloc(&mem, g->nnode * sizeof *x.g.group);
    for (ref r = 0; x.g.group && r < g->nnode; r++) /* temporarily for any node with a group: other pads are views */
        x.g.group[r] = g->group[r] == GROUP_NONE ? GROUP_NONE : 0;
    bool ok = !mem.failed && fuser_open(&x.f, &x.g);
    if (ok) {
        explain_rebuild_groups(&x, g, anchored);
        ok = fuse_order(&x.f);
        for (uint32_t b = 0; ok && b < x.f.ngroup; b++)
            put_reasons(&x, b, reported, &t);
    }
    fuser_close(&x.f);
    mem_arena_free(&mem);
    text_put(&t, "%s", "");
    t.failed |= !ok;
    return text_take(&t);
}
