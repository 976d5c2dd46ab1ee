/* Horizontal fusion: independent maps become the parts of one kernel, each with a share of its iterations
 * (lower_map.c).  In this way all parameter updates of an optimizer are one kernel.
 *
 * The maps have the same expression, on different arrays of any length.  Only outputs of the graph are computed from
 * what they store, so no kernel depends on them and fusing them makes no cycle.  No other kernel writes the states that
 * they read, so these stay in place.
 *
 * The first part must wait until the last one can run, and its inputs stay in the arena until then.  That costs no
 * memory if the kernels that run meanwhile store nothing in the arena.  So a map is fused with an earlier one only if
 * no kernel between them stores there.  In a training step there is none if the updates follow the gradients. */
#include "fuse.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS_NODES = 256, MAX_PARTS_ARGS = 128, MAX_OPEN = 16 };

struct map {
    uint32_t id;            /* of the group */
    ref time;               /* when it can run: its first node, or that of the last group that it reads */
    bool update;            /* may be fused with others */
    bool quiet;             /* stores only outputs of the graph */
    uint32_t nodes, args;
    struct hash128 expression;
};

struct horizontal_fuser {
    struct fuser *f;
    uint32_t *writer;       /* per state: the group that computes its new value, GROUP_NONE: none */
    uint32_t *number;       /* per node of the current group: its index among the members */
    struct map *open[MAX_OPEN]; /* maps with which others may be fused, each with another expression */
    uint32_t nopen, oldest;
};

static void find_writers(struct horizontal_fuser *p)
{
    const struct graph *g = p->f->g;
    for (uint32_t i = 0; i < g->state.n; i++)
        p->writer[i] = GROUP_NONE;
    for (uint32_t i = 0; i < g->nout; i++) {
        bool linear;
        ref s = node_source(g, g->out[i].value, &linear);
        s = linear ? s : g->out[i].value;
        if (g->out[i].kind == OUT_ASSIGN)
            p->writer[g->out[i].state] = group_of(p->f, s);
    }
}

/* Does another group read r? */
static bool is_read_elsewhere(const struct fuser *f, ref r)
{
    for (uint32_t i = f->readers[r]; i < f->readers[r + 1]; i++)
        if (group_of(f, f->reader[i]) != group_of(f, r))
            return true;
    return false;
}

/* Does another group write a state that r is computed from? r is a leaf, or a scalar made of leaves. */
static bool other_writer(const struct horizontal_fuser *p, ref r, uint32_t id)
{
    const struct node *n = &p->f->g->node[r];
    if (n->op == OP_state)
        return p->writer[n->attr.leaf.index] != id && p->writer[n->attr.leaf.index] != GROUP_NONE;
    for (unsigned i = 0; i < n->nin; i++) {
        bool linear;
        if (other_writer(p, node_operand(p->f->g, r, i, &linear), id))
            return true;
    }
    return false;
}

/* The op of a member, without the arrays it uses. */
struct member_step { uint32_t op, dtype, device, in[MAX_OPERANDS]; union attr attr; };

static struct member_step step_of(const struct horizontal_fuser *p, ref r, uint32_t id)
{
    const struct graph *g = p->f->g;
    const struct node *n = &g->node[r];
    struct member_step s;
    memset(&s, 0, sizeof s);
    s.op = n->op;
    s.dtype = n->dtype;
    s.device = n->device;
    s.attr = n->attr;
    for (unsigned i = 0; i < n->nin; i++) {
        bool linear;
        ref x = node_operand(g, r, i, &linear);
        s.in[i] = group_of(p->f, x) == id ? 1 + p->number[x] : 0;
    }
    return s;
}

/* Examines a group: its expression, and whether it may be a part. */
static void parts_examine_group(struct horizontal_fuser *p, struct map *m)
{
    struct fuser *f = p->f;
    const struct group *b = &f->group[m->id];
    ref last = b->low;
    uint32_t number = 0;
    m->update = !b->anchor && !b->remat && node_numel(f->g, b->first) > 0;
    m->quiet = !b->non_fusible;
    for (ref r = b->first; r; r = f->next[r]) {
        const struct node *n = &f->g->node[r];
        bool awaited = is_read_elsewhere(f, r) || f->viewed[r];
        p->number[r] = number++;
        m->quiet &= !awaited || (f->output[r] && !f->viewed[r]);
        m->update &= !awaited;
        m->update &= n->dtype == f->g->node[b->first].dtype && op_is_elementwise(n->op);
        for (unsigned i = 0; m->update && i < n->nin; i++) {
            bool linear;
            ref x = node_operand(f->g, r, i, &linear);
            uint32_t from = group_of(f, x);
            if (from != GROUP_NONE && from != m->id && f->group[from].low > last)
                last = f->group[from].low;
            m->update &= from != GROUP_NONE || !other_writer(p, x, m->id);
            m->args += from != m->id && node_numel(f->g, x) > 1;
        }
        if (!m->update)
            continue;
        struct member_step s = step_of(p, r, m->id);
        struct hash128 part[2] = {m->expression, bytes_hash(&s, sizeof s)};
        m->expression = bytes_hash(part, sizeof part);
    }
    m->time = last;
    m->nodes = number;
}

static bool same_expression(const struct map *a, const struct map *b)
{
    return a->expression.lo == b->expression.lo && a->expression.hi == b->expression.hi;
}

/* Fuses m with an open map of its expression, or adds it to the open ones. */
static void fuse_parts_join(struct horizontal_fuser *p, struct map *m)
{
    uint32_t i = 0;
    while (i < p->nopen && !same_expression(p->open[i], m))
        i++;
    if (i < p->nopen && p->open[i]->nodes + m->nodes <= MAX_PARTS_NODES &&
        p->open[i]->args + m->args <= MAX_PARTS_ARGS) {
        p->open[i]->nodes += m->nodes;
        p->open[i]->args += m->args;
        fuse_absorb(p->f, p->open[i]->id, m->id);
        return;
    }
    if (i == MAX_OPEN)
        i = p->oldest++ % MAX_OPEN;
    p->open[i] = m;
    p->nopen += i == p->nopen;
}

static int by_time(const void *a, const void *b)
{
    const struct map *x = a, *y = b;
    return x->time != y->time ? (x->time > y->time) - (x->time < y->time) : (x->id > y->id) - (x->id < y->id);
}

bool fuse_parts(struct fuser *f)
{
    struct horizontal_fuser p = {.f = f};
    uint32_t n = 0;
    p.writer = mem_alloc((f->g->state.n + 1) * sizeof *p.writer);
    p.number = mem_alloc(f->g->nnode * sizeof *p.number);
    struct map *map = mem_alloc((f->ngroup + 1) * sizeof *map);
    bool ok = p.writer && p.number && map;
    if (ok)
        find_writers(&p);
    for (uint32_t i = 0; ok && i < f->ngroup; i++) {
        if (f->group[i].merged)
            continue;
        map[n] = (struct map){.id = i};
        parts_examine_group(&p, &map[n++]);
    }
    if (ok && n)
        qsort(map, n, sizeof *map, by_time);
    for (uint32_t i = 0; ok && i < n; i++)
        if (map[i].update)
            fuse_parts_join(&p, &map[i]);
        else if (!map[i].quiet)
            p.nopen = 0;
    mem_free(p.writer);
    mem_free(p.number);
    mem_free(map);
    return ok;
}
