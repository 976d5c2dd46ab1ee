/* The arena of a program with placeholders for the symbols' values of a run.
 *
 * The planner places values with the sizes of the bounds (place.c).  Of two values that are alive at the same time one
 * lies below the other; it stays below for all values of the symbols: a value begins where the highest of those below
 * it ends.  So no two that are alive at the same time overlap.  Of those below a value only those are listed that no
 * other one of them lies above. */
#include "plan.h"

struct layout_build {
    struct layout *l;
    const struct planner *p;
    ref node[MAX_LAYOUT_VALUES];  /* by index: from the lowest offset to the highest */
    uint32_t *index_of;           /* per node: its index + 1; 0: none */
    uint64_t (*under)[MAX_LAYOUT_VALUES / 64]; /* per value: all that lie below it, also below others */
    uint32_t nbelow, below_cap;
};

static bool in_set(const uint64_t *set, uint32_t i) { return set[i / 64] >> (i % 64) & 1; }

/* The values in the arena of the device, sorted by offset; false: too many. */
static bool list_values(struct layout_build *b, unsigned device)
{
    const struct planner *p = b->p;
    for (ref r = 1; r < p->g->nnode; r++) {
        const struct value *v = &p->value[r];
        if (!v->node || v->loc.kind != LOC_ARENA || v->loc.index != device)
            continue;
        if (b->l->n == MAX_LAYOUT_VALUES)
            return false;
        uint32_t at = b->l->n++;
        for (; at && p->value[b->node[at - 1]].loc.offset > v->loc.offset; at--)
            b->node[at] = b->node[at - 1];
        b->node[at] = r;
    }
    return true;
}

/* Finds what lies directly below value i. */
static bool find_below(struct layout_build *b, uint32_t i)
{
    struct layout *l = b->l;
    const struct value *v = &b->p->value[b->node[i]];
    l->value[i].below = b->nbelow;
    for (uint32_t j = i; j-- > 0;) {
        const struct value *u = &b->p->value[b->node[j]];
        bool together = u->first <= v->last && v->first <= u->last && u->bytes && v->bytes;
        if (!together || in_set(b->under[i], j))
            continue;
        if (!mem_reserve(&l->below, &b->below_cap, b->nbelow + 1, sizeof *l->below))
            return false;
        l->below[b->nbelow++] = j;
        for (uint32_t w = 0; w < MAX_LAYOUT_VALUES / 64; w++)
            b->under[i][w] |= b->under[j][w];
        b->under[i][j / 64] |= UINT64_C(1) << (j % 64);
    }
    l->value[i].end = b->nbelow;
    return true;
}

/* A workspace has the bytes of the bounds: those of the programs in it. */
static struct layout_value arena_request(const struct planner *p, ref r)
{
    bool workspace = op_is_region(p->g->node[r].op);
    int64_t bytes = workspace ? p->value[r].bytes : (int64_t)node_bytes(p->g, r);
    return (struct layout_value){.bytes = bytes, .fixed = workspace};
}

/* Arguments in the arena point to their values in the layout. */
static void point_arguments(struct layout_build *b)
{
    struct program *p = b->p->p;
    for (uint32_t c = 0; c < p->ncmd; c++)
        for (uint32_t i = 0; i < p->cmd[c].narg; i++) {
            struct command *m = &p->cmd[c];
            bool region = m->kind == CMD_REGION || m->kind == CMD_CUSTOM;
            ref r = m->value[i] ? m->value[i] : region ? m->region : NIL;
            const struct value *v = r ? &b->p->value[node_stored(p->g, r)] : NULL;
            uint32_t index = v ? b->index_of[v->node] : 0;
            if (m->arg[i].kind == LOC_ARENA && index)
                m->arg[i] = (struct loc){LOC_LAYOUT, index - 1, m->arg[i].offset - v->loc.offset};
        }
}

/* Does one processor run the whole program?  A driver's captured launches have addresses. */
static bool on_one_processor(const struct planner *p)
{
    bool processor = !(p->p->devices & (p->p->devices - 1));
    for (uint32_t i = 0; i < p->targets->n; i++)
        processor &= !(p->targets->v[i].devices & p->p->devices) || !p->targets->v[i].caps->is_gpu;
    return processor;
}

bool plan_layout(struct planner *p)
{
    if (p != p->root || !p->p->placeholders.n || !on_one_processor(p))
        return true;
    struct layout_build *b = mem_alloc(sizeof *b);
    struct layout *l = p->p->layout = mem_alloc(sizeof *l);
    bool ok = b && l;
    if (ok) {
        *b = (struct layout_build){.l = l, .p = p};
        l->device = graph_device(p->g);
        bool few = list_values(b, l->device);
        l->n = few ? l->n : 0;
        l->value = mem_alloc((l->n + 1) * sizeof *l->value);
        b->under = mem_alloc((l->n + 1) * sizeof *b->under);
        b->index_of = mem_alloc(p->g->nnode * sizeof *b->index_of);
        ok = l->value && b->under && b->index_of;
        for (uint32_t i = 0; ok && i < l->n; i++) {
            b->index_of[b->node[i]] = i + 1;
            l->value[i] = arena_request(p, b->node[i]);
            ok = find_below(b, i);
        }
        if (ok)
            point_arguments(b);
        mem_free(b->under);
        mem_free(b->index_of);
    }
    mem_free(b);
    return ok || plan_no_memory(p);
}

void layout_free(struct layout *l)
{
    if (!l)
        return;
    mem_free(l->value);
    mem_free(l->below);
    mem_free(l);
}

int64_t layout_offsets(const struct program *p, const uint64_t *slot, int64_t *offset)
{
    const struct layout *l = p->layout;
    int64_t end[MAX_LAYOUT_VALUES], all = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct layout_value *x = &l->value[i];
        int64_t bytes = x->fixed || !slot ? x->bytes : size_at(&p->placeholders, x->bytes, slot);
        offset[i] = 0;
        for (uint32_t k = x->below; k < x->end; k++)
            offset[i] = end[l->below[k]] > offset[i] ? end[l->below[k]] : offset[i];
        end[i] = offset[i] + plan_round64(bytes);
        all = end[i] > all ? end[i] : all;
    }
    return all;
}
