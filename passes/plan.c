/* Graph with groups to program: order of kernels, storage of values, commands.
 *
 * Order: dependences, and, where no cycle forbids it, every reader of a state before the kernel that
 * writes its new value, so that the write can go in place.  Among ready kernels the lowest group number
 * goes first, which keeps the order of recording and so short lifetimes.
 * Storage: outputs in their own buffers, the rest in one arena.  Offsets by decreasing size, each at the
 * lowest place free over its lifetime (greedy by size: Pisarchyk and Lee, "Efficient memory management
 * for deep neural net inference", 2020). */
#include "passes.h"
#include <string.h>

struct value {            /* a stored node */
    ref node;
    int64_t bytes;        /* rounded up to 64 */
    uint32_t first, last; /* commands that write and last read it */
    struct loc loc;
    bool placed;
};

struct planner {
    const struct graph *g;
    const struct caps *caps;
    struct program *p;
    struct program *root;     /* the whole program: this one, or the one that this one is a region of */
    struct lowered *low;      /* per group; no kernel: a region op */
    ref *region;              /* per group: its region op, or NIL */
    struct program *(*sub)[2]; /* per group: its regions' programs, until a command has them */
    uint32_t *order;          /* position -> group */
    struct { uint32_t *v, n, cap; } *succ; /* per group */
    uint32_t *pending;        /* per group: unmet dependences */
    struct value *value;      /* per node; node NIL: not stored */
    ref *by_size;
    uint32_t cmd_cap;
    uint32_t first_kernel;    /* command number of the first kernel: copies come before */
    struct err *e;
};

static bool oom(struct planner *p) { return err_set(p->e, KL_ERR_MEMORY, "out of memory planning @%s", p->g->name); }

static int64_t round64(int64_t n) { return (n + 63) / 64 * 64; }

/* ---- region ops: a command with the programs of its regions ---- */

static struct program *plan_graph(const struct graph *g, const struct caps *caps, struct program *root, struct err *e);

struct workspace command_workspace(const struct program *p, const struct command *c)
{
    const struct node *n = node_at(p->g, c->region);
    struct workspace w = {0};
    uint32_t nin = node_nin(n), nout = region_results(p->g, n);
    for (uint32_t i = 0; i < nout; i++)
        if (!c->value[nin + i])
            w.work += round64((int64_t)region_result_bytes(p->g, n, i));
    w.pointers = w.work + round64((int64_t)region_work_bytes(p->g, n));
    w.arena = w.pointers + round64((int64_t)((nin + nout) * sizeof(void *)));
    int64_t arena = 0;
    for (uint32_t i = 0; i < op_regions(n->op); i++)
        arena = c->sub[i]->arena_bytes > arena ? c->sub[i]->arena_bytes : arena;
    w.bytes = w.arena + round64(arena);
    return w;
}

/* The arguments of a region op's group: operands as they are stored, then the results that something reads. */
static bool lower_region(struct planner *p, uint32_t group)
{
    struct lowered *l = &p->low[group];
    ref r = p->region[group];
    const struct node *n = &p->g->node[r];
    if (!op_is_control(n->op))
        return err_set(p->e, KL_ERR_INTERNAL, "%s: node %u is still there; pass inline takes it apart first",
                       opinfo[n->op].name, r);
    uint32_t nin = node_nin(n), nout = region_results(p->g, n);
    l->arg = mem_alloc((nin + nout) * sizeof *l->arg);
    if (!l->arg)
        return oom(p);
    for (uint32_t i = 0; i < nin; i++)
        l->arg[l->narg++] = (struct arg){node_stored(p->g, node_in(p->g, n, i)), BUF_IN};
    for (ref y = r + 1; y < p->g->nnode; y++)
        if (p->g->node[y].op == OP_proj && p->g->node[y].in[0] == r)
            l->arg[l->narg++] = (struct arg){y, BUF_OUT};
    for (uint32_t i = 0; i < op_regions(n->op); i++) {
        struct program *sub = plan_graph(node_region(p->p->g, n, i), p->caps, p->root, p->e);
        p->sub[group][i] = sub;
        if (!sub)
            return false;
        p->p->scratch_bytes = sub->scratch_bytes > p->p->scratch_bytes ? sub->scratch_bytes : p->p->scratch_bytes;
        p->p->max_args = sub->max_args > p->p->max_args ? sub->max_args : p->p->max_args;
    }
    return true;
}

/* Fills in c: operands, results and, but for the places, the workspace. */
static void region_arguments(const struct planner *p, uint32_t group, struct command *c)
{
    const struct lowered *l = &p->low[group];
    const struct node *n = &p->g->node[p->region[group]];
    uint32_t nin = node_nin(n);
    c->region = p->region[group];
    for (uint32_t i = 0; i < op_regions(n->op); i++)
        c->sub[i] = p->sub[group][i];
    for (uint32_t i = 0; i < l->narg; i++) {
        ref r = l->arg[i].node;
        c->value[i < nin ? i : nin + p->g->node[r].attr.proj.index] = r;
    }
}

/* Bytes of the workspace of a region op's group. */
static bool workspace_bytes(struct planner *p, uint32_t group, int64_t *bytes)
{
    const struct node *n = &p->g->node[p->region[group]];
    struct command c = {.value = mem_alloc((node_nin(n) + region_results(p->g, n)) * sizeof *c.value)};
    if (!c.value)
        return oom(p);
    region_arguments(p, group, &c);
    *bytes = command_workspace(p->p, &c).bytes;
    mem_free(c.value);
    return true;
}

static bool lower_all(struct planner *p)
{
    for (ref r = 1; r < p->g->nnode; r++)
        if (op_is_region(p->g->node[r].op) && p->g->group[r] != GROUP_NONE)
            p->region[p->g->group[r]] = r;
    for (uint32_t i = 0; i < p->g->ngroup; i++)
        if (p->region[i] ? !lower_region(p, i) : !lower_group(p->g, i, p->caps, &p->low[i], p->e))
            return false;
    return true;
}

static bool add_edge(struct planner *p, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < p->succ[from].n; i++)
        if (p->succ[from].v[i] == to)
            return true;
    if (!mem_reserve(&p->succ[from].v, &p->succ[from].cap, p->succ[from].n + 1, sizeof(uint32_t)))
        return oom(p);
    p->succ[from].v[p->succ[from].n++] = to;
    p->pending[to]++;
    return true;
}

static bool reaches(const struct planner *p, uint32_t from, uint32_t to, bool *seen)
{
    if (from == to)
        return true;
    if (seen[from])
        return false;
    seen[from] = true;
    for (uint32_t i = 0; i < p->succ[from].n; i++)
        if (reaches(p, p->succ[from].v[i], to, seen))
            return true;
    return false;
}

static bool dependences(struct planner *p)
{
    const struct graph *g = p->g;
    for (uint32_t i = 0; i < g->ngroup; i++)
        for (uint32_t a = 0; a < p->low[i].narg; a++) {
            ref r = p->low[i].arg[a].node;
            if (p->low[i].arg[a].role == BUF_IN && !node_is_stored_leaf(g, r) && !add_edge(p, g->group[r], i))
                return false;
        }
    return true;
}

static bool reads_state(const struct planner *p, uint32_t group, uint32_t state)
{
    for (uint32_t a = 0; a < p->low[group].narg; a++) {
        const struct node *n = &p->g->node[p->low[group].arg[a].node];
        if (n->op == OP_state && n->attr.leaf.index == state)
            return true;
    }
    return false;
}

/* The group that computes output i's value straight into its buffer, GROUP_NONE if it is copied there. */
static uint32_t writer_of(const struct planner *p, uint32_t i)
{
    bool linear;
    ref r = node_source(p->g, p->g->out[i].value, &linear);
    return linear ? p->g->group[r] : p->g->group[p->g->out[i].value];
}

static bool readers_before_writers(struct planner *p)
{
    bool *seen = mem_alloc(p->g->ngroup + 1);
    bool ok = seen || oom(p);
    for (uint32_t i = 0; ok && i < p->g->nout; i++) {
        uint32_t w = p->g->out[i].kind == OUT_ASSIGN ? writer_of(p, i) : GROUP_NONE;
        for (uint32_t r = 0; ok && w != GROUP_NONE && r < p->g->ngroup; r++) {
            if (r == w || !reads_state(p, r, p->g->out[i].state))
                continue;
            memset(seen, 0, p->g->ngroup);
            if (!reaches(p, w, r, seen))
                ok = add_edge(p, r, w);
        }
    }
    mem_free(seen);
    return ok;
}

static bool sort_groups(struct planner *p)
{
    uint32_t n = p->g->ngroup;
    for (uint32_t done = 0; done < n; done++) {
        uint32_t next = 0;
        while (next < n && p->pending[next])
            next++;
        if (next == n)
            return err_set(p->e, KL_ERR_INTERNAL, "the kernels of @%s depend on each other in a circle", p->g->name);
        p->pending[next] = UINT32_MAX;
        p->order[done] = next;
        for (uint32_t i = 0; i < p->succ[next].n; i++)
            p->pending[p->succ[next].v[i]]--;
    }
    return true;
}

static struct command *add_command(struct planner *p, enum cmd_kind kind, uint32_t narg)
{
    if (!mem_reserve(&p->p->cmd, &p->cmd_cap, p->p->ncmd + 1, sizeof *p->p->cmd))
        return oom(p), NULL;
    struct command *c = &p->p->cmd[p->p->ncmd++];
    *c = (struct command){.kind = (uint16_t)kind, .narg = narg};
    c->arg = mem_alloc((narg + !narg) * sizeof *c->arg);
    c->value = mem_alloc((narg + !narg) * sizeof *c->value);
    if (!c->arg || !c->value)
        return oom(p), NULL;
    return c;
}

static struct loc leaf_loc(const struct node *n)
{
    return (struct loc){.kind = n->op == OP_input ? LOC_INPUT : LOC_STATE, .index = n->attr.leaf.index};
}

/* Outputs that are a leaf's value: copied first, before any kernel can write over a state. */
static bool copy_leaves(struct planner *p)
{
    for (uint32_t i = 0; i < p->g->nout; i++) {
        ref r = node_stored(p->g, p->g->out[i].value);
        if (!node_is_stored_leaf(p->g, r))
            continue;
        struct command *c = add_command(p, CMD_COPY, 2);
        if (!c)
            return false;
        c->arg[0] = (struct loc){.kind = LOC_OUT, .index = i};
        c->arg[1] = leaf_loc(&p->g->node[r]);
        c->bytes = (int64_t)node_bytes(p->g, r);
        c->value[0] = c->value[1] = r;
    }
    return true;
}

/* Outputs whose value another output holds already: copied last. */
static bool copy_duplicates(struct planner *p)
{
    for (uint32_t i = 0; i < p->g->nout; i++) {
        ref r = node_stored(p->g, p->g->out[i].value);
        const struct value *v = &p->value[r];
        if (!v->node || (v->loc.kind == LOC_OUT && v->loc.index == i))
            continue;
        struct command *c = add_command(p, CMD_COPY, 2);
        if (!c)
            return false;
        c->arg[0] = (struct loc){.kind = LOC_OUT, .index = i};
        c->arg[1] = v->loc;
        c->bytes = (int64_t)node_bytes(p->g, r);
        c->value[0] = c->value[1] = r;
    }
    return true;
}

/* First and last command of every stored value; outputs take their own buffers.  A region op's own value is its
 * workspace. */
static bool lifetimes(struct planner *p)
{
    for (uint32_t pos = 0; pos < p->g->ngroup; pos++) {
        const struct lowered *l = &p->low[p->order[pos]];
        ref region = p->region[p->order[pos]];
        if (region) {
            uint32_t now = p->first_kernel + pos;
            p->value[region] = (struct value){.node = region, .first = now, .last = now};
            if (!workspace_bytes(p, p->order[pos], &p->value[region].bytes))
                return false;
        }
        for (uint32_t a = 0; a < l->narg; a++) {
            struct value *v = &p->value[l->arg[a].node];
            if (l->arg[a].role == BUF_OUT)
                *v = (struct value){.node = l->arg[a].node, .first = p->first_kernel + pos,
                                    .bytes = round64((int64_t)node_bytes(p->g, l->arg[a].node))};
            v->last = p->first_kernel + pos;
        }
    }
    for (uint32_t i = p->g->nout; i-- > 0;) { /* backward: the first output with a value holds it */
        struct value *v = &p->value[node_stored(p->g, p->g->out[i].value)];
        if (v->node) {
            v->loc = (struct loc){.kind = LOC_OUT, .index = i};
            v->placed = true;
        }
    }
    return true;
}

static bool overlaps(const struct value *a, const struct value *b) { return a->first <= b->last && b->first <= a->last; }

/* Lowest offset where v fits beside the placed values alive with it. */
static int64_t lowest_place(const struct planner *p, const struct value *v, const ref *placed, uint32_t n)
{
    int64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < n; i++) {
            const struct value *o = &p->value[placed[i]];
            if (overlaps(v, o) && at < o->loc.offset + o->bytes && o->loc.offset < at + v->bytes) {
                at = o->loc.offset + o->bytes;
                moved = true;
            }
        }
    }
    return at;
}

static void place_arena(struct planner *p)
{
    uint32_t n = 0, done = 0;
    for (ref r = 1; r < p->g->nnode; r++) {
        if (!p->value[r].node || p->value[r].placed)
            continue;
        uint32_t i = n++;
        for (; i > 0 && p->value[p->by_size[i - 1]].bytes < p->value[r].bytes; i--)
            p->by_size[i] = p->by_size[i - 1];
        p->by_size[i] = r;
    }
    for (; done < n; done++) {
        struct value *v = &p->value[p->by_size[done]];
        v->loc = (struct loc){.kind = LOC_ARENA, .offset = lowest_place(p, v, p->by_size, done)};
        v->placed = true;
        if (v->loc.offset + v->bytes > p->p->arena_bytes)
            p->p->arena_bytes = v->loc.offset + v->bytes;
    }
}

/* The number of the program's kernel equal to k, which the program takes over if it is the first such. */
static bool program_kernel(struct planner *p, struct kernel *k, uint32_t *i)
{
    struct program *all = p->root;
    for (*i = 0; *i < all->nkernel && !kernel_same(all->kernel[*i], k);)
        ++*i;
    if (*i < all->nkernel)
        return true;
    if (!mem_reserve(&all->kernel, &all->kernel_cap, all->nkernel + 1, sizeof(struct kernel *)))
        return oom(p);
    all->kernel[all->nkernel++] = k;
    return true;
}

static struct loc value_loc(const struct planner *p, ref r)
{
    return node_is_stored_leaf(p->g, r) ? leaf_loc(&p->g->node[r]) : p->value[r].loc;
}

static bool region_command(struct planner *p, uint32_t group)
{
    const struct node *n = &p->g->node[p->region[group]];
    uint32_t nin = node_nin(n), nout = region_results(p->g, n);
    struct command *c = add_command(p, CMD_REGION, nin + nout + 1);
    if (!c)
        return false;
    region_arguments(p, group, c);
    p->sub[group][0] = p->sub[group][1] = NULL; /* the command's from here on */
    struct loc at = p->value[c->region].loc;
    c->arg[nin + nout] = at;
    for (uint32_t i = 0; i < nin + nout; i++) {
        c->arg[i] = c->value[i] ? value_loc(p, c->value[i]) : at;
        if (!c->value[i])
            at.offset += round64((int64_t)region_result_bytes(p->g, n, i - nin));
    }
    return true;
}

static bool kernel_commands(struct planner *p)
{
    for (uint32_t pos = 0; pos < p->g->ngroup; pos++) {
        if (p->region[p->order[pos]]) {
            if (!region_command(p, p->order[pos]))
                return false;
            continue;
        }
        struct lowered *l = &p->low[p->order[pos]];
        const struct kernel *k = l->k;
        struct command *c = add_command(p, CMD_KERNEL, k->nbuf);
        if (!c || !program_kernel(p, l->k, &c->kernel))
            return false;
        p->p->max_args = k->nbuf > p->p->max_args ? k->nbuf : p->p->max_args;
        int64_t scratch = 0;
        for (uint32_t b = 0; b < k->nbuf; b++) {
            if (k->buf[b].role == BUF_SCRATCH) {
                c->arg[b] = (struct loc){.kind = LOC_SCRATCH, .offset = scratch};
                scratch += round64(k->buf[b].count * (int64_t)dtype_size(k->buf[b].dtype));
                continue;
            }
            ref r = l->arg[k->buf[b].id].node;
            c->arg[b] = value_loc(p, r);
            c->value[b] = r;
        }
        if (scratch > p->p->scratch_bytes)
            p->p->scratch_bytes = scratch;
    }
    return true;
}

/* Does the kernel read lbuf `in` only at elements that it then, and not before, overwrites through lbuf `out` in the
 * same iteration?  A scatter stores an element again and again: there it must first store the very value it read. */
static bool reads_what_it_writes(const struct kernel *k, uint32_t in, uint32_t out)
{
    for (val v = 1; v < k->ninst; v++) {
        if (k->inst[v].op != L_LOAD || k->inst[v].imm != in)
            continue;
        val s = 1;
        while (s < k->ninst && !(k->inst[s].op == L_STORE && k->inst[s].imm == out && k->inst[s].a == k->inst[v].a))
            s++;
        if (s == k->ninst || s < v || (k->sched.kind == SCHED_SCATTER && k->inst[s].b != v))
            return false;
    }
    return true;
}

/* Does kernel l, reading the state as argument `in`, allow node `value` to be written over it? */
static bool allows_overwrite(const struct planner *p, uint32_t pos, uint32_t in, ref value)
{
    const struct lowered *l = &p->low[p->order[pos]];
    if (p->region[p->order[pos]])
        return false; /* its rounds read what they like */
    const struct kernel *k = p->root->kernel[p->p->cmd[p->first_kernel + pos].kernel];
    for (uint32_t b = 0; b < k->nbuf; b++)
        for (uint32_t w = 0; w < k->nbuf; w++)
            if (k->buf[b].role == BUF_IN && k->buf[b].id == in && k->buf[w].role == BUF_OUT &&
                l->arg[k->buf[w].id].node == value && !reads_what_it_writes(k, b, w))
                return false;
    return true;
}

/* May output i, an assign, be written over the state's old value?  Nothing may read the state later. */
static bool may_be_in_place(const struct planner *p, uint32_t i)
{
    const struct output *o = &p->g->out[i];
    const struct value *v = &p->value[node_stored(p->g, o->value)];
    if (o->kind != OUT_ASSIGN || !v->node || v->loc.kind != LOC_OUT || v->loc.index != i)
        return false;
    for (uint32_t pos = 0; pos < p->g->ngroup; pos++) {
        const struct lowered *l = &p->low[p->order[pos]];
        for (uint32_t a = 0; a < l->narg; a++) {
            const struct node *n = &p->g->node[l->arg[a].node];
            if (n->op != OP_state || n->attr.leaf.index != o->state)
                continue;
            if (p->first_kernel + pos > v->first)
                return false;
            if (p->first_kernel + pos == v->first && !allows_overwrite(p, pos, a, v->node))
                return false;
        }
    }
    return true;
}

/* Bytes of everything the caller holds: inputs, states and outputs that are not in place. */
static int64_t held_bytes(const struct program *p)
{
    int64_t n = 0;
    for (ref r = 1; r < p->g->nnode; r++)
        if (node_is_stored_leaf(p->g, r))
            n += (int64_t)node_bytes(p->g, r);
    for (uint32_t i = 0; i < p->g->nout; i++)
        if (!p->in_place[i])
            n += (int64_t)node_bytes(p->g, p->g->out[i].value);
    return n;
}

static void account(struct planner *p)
{
    int64_t most = 0;
    for (uint32_t c = 0; c < p->p->ncmd; c++) {
        int64_t alive = 0;
        for (ref r = 1; r < p->g->nnode; r++)
            if (p->value[r].node && p->value[r].loc.kind == LOC_ARENA && p->value[r].first <= c && c <= p->value[r].last)
                alive += op_is_region(p->g->node[r].op) ? p->value[r].bytes : (int64_t)node_bytes(p->g, r);
        most = alive > most ? alive : most;
    }
    int64_t held = held_bytes(p->p);
    p->p->peak_bytes = held + p->p->arena_bytes;
    p->p->lower_bound_bytes = held + most;
}

static bool plan_kernels(struct planner *p)
{
    if (!lower_all(p) || !dependences(p) || !readers_before_writers(p) || !sort_groups(p) || !copy_leaves(p))
        return false;
    p->first_kernel = p->p->ncmd;
    if (!lifetimes(p))
        return false;
    place_arena(p);
    if (!kernel_commands(p))
        return false;
    for (uint32_t i = 0; i < p->g->nout; i++)
        p->p->in_place[i] = may_be_in_place(p, i);
    account(p);
    return copy_duplicates(p);
}

static bool owned_by_program(const struct program *p, const struct kernel *k)
{
    for (uint32_t i = 0; i < p->nkernel; i++)
        if (p->kernel[i] == k)
            return true;
    return false;
}

/* Everything but the kernels and, of a region's program, the graph. */
static void free_commands(struct program *p, bool graph)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->ncmd; i++) {
        mem_free(p->cmd[i].arg);
        mem_free(p->cmd[i].value);
        free_commands(p->cmd[i].sub[0], false);
        free_commands(p->cmd[i].sub[1], false);
    }
    mem_free(p->cmd);
    mem_free(p->in_place);
    if (graph)
        graph_free(p->g);
    mem_free(p);
}

static void planner_free(struct planner *p)
{
    for (uint32_t i = 0; i < p->g->ngroup; i++) {
        if (p->low) {
            if (p->low[i].k && !(p->root && owned_by_program(p->root, p->low[i].k)))
                kernel_free(p->low[i].k);
            mem_free(p->low[i].arg);
        }
        for (int k = 0; p->sub && k < 2; k++)
            free_commands(p->sub[i][k], false);
        if (p->succ)
            mem_free(p->succ[i].v);
    }
    mem_free(p->low);
    mem_free(p->region);
    mem_free(p->sub);
    mem_free(p->succ);
    mem_free(p->order);
    mem_free(p->pending);
    mem_free(p->value);
    mem_free(p->by_size);
}

/* The interpreter holds every value from its node to its last use. */
static bool plan_interpreter(struct planner *p)
{
    const struct graph *g = p->g;
    if (!add_command(p, CMD_INTERP, 0))
        return false;
    uint32_t *last = p->order;
    for (ref r = 1; r < g->nnode; r++)
        for (unsigned i = 0; i < node_nin(&g->node[r]); i++)
            last[node_in(g, &g->node[r], i)] = r;
    int64_t most = 0;
    for (ref now = 1; now < g->nnode; now++) {
        int64_t alive = 0;
        for (ref r = 1; r <= now; r++)
            if (!node_is_stored_leaf(g, r) && last[r] >= now)
                alive += (int64_t)node_bytes(g, r);
        most = alive > most ? alive : most;
    }
    p->p->peak_bytes = p->p->lower_bound_bytes = held_bytes(p->p) + most;
    return true;
}

/* Plans the program of into->g, which is root or a part of it. */
static bool plan_into(struct program *into, const struct caps *caps, struct program *root, bool interpret, struct err *e)
{
    const struct graph *g = into->g;
    uint32_t ng = g->ngroup + 1;
    struct planner p = {.g = g, .caps = caps, .e = e, .p = into, .root = root};
    p.low = mem_alloc(ng * sizeof *p.low);
    p.region = mem_alloc(ng * sizeof *p.region);
    p.sub = mem_alloc(ng * sizeof *p.sub);
    p.order = mem_alloc((g->nnode + ng) * sizeof *p.order);
    p.succ = mem_alloc(ng * sizeof *p.succ);
    p.pending = mem_alloc(ng * sizeof *p.pending);
    p.value = mem_alloc(g->nnode * sizeof *p.value);
    p.by_size = mem_alloc(g->nnode * sizeof *p.by_size);
    into->in_place = mem_alloc((g->nout + 1) * sizeof *into->in_place);
    bool ok = p.low && p.region && p.sub && p.order && p.succ && p.pending && p.value && p.by_size && into->in_place;
    if (!ok)
        oom(&p);
    else
        ok = interpret ? plan_interpreter(&p) : plan_kernels(&p);
    planner_free(&p);
    return ok;
}

static struct program *plan_graph(const struct graph *g, const struct caps *caps, struct program *root, struct err *e)
{
    struct program *p = mem_alloc(sizeof *p);
    if (!p) {
        err_set(e, KL_ERR_MEMORY, "out of memory planning @%s", g->name);
        return NULL;
    }
    p->g = (struct graph *)g;
    if (plan_into(p, caps, root, false, e))
        return p;
    free_commands(p, false);
    return NULL;
}

/* The regions' programs use the kernels of the whole. */
static void share_kernels(struct program *p, const struct program *root)
{
    p->kernel = root->kernel;
    p->nkernel = root->nkernel;
    for (uint32_t i = 0; i < p->ncmd; i++)
        for (int k = 0; k < 2; k++)
            if (p->cmd[i].sub[k])
                share_kernels(p->cmd[i].sub[k], root);
}

/* Bytes of all values, those of regions included; as a double, which no sum overflows. */
static double value_bytes(const struct graph *g)
{
    double bytes = 0;
    for (ref r = 1; r < g->nnode; r++)
        bytes += (double)node_bytes(g, r);
    for (uint32_t i = 0; i < g->nout; i++)
        bytes += (double)node_bytes(g, g->out[i].value);
    for (uint32_t i = 0; i < g->nregion; i++)
        bytes += value_bytes(g->region[i]);
    return bytes;
}

struct program *program_plan(const struct graph *g, const struct caps *caps, bool interpret, struct err *e)
{
    if (!graph_is_bound(g, e))
        return NULL;
    double bytes = value_bytes(g);
    if (bytes >= 0x1p62) { /* the sums below are 64-bit numbers */
        err_set(e, KL_ERR_MEMORY, "graph @%s: its values have %.3g bytes in all", g->name, bytes);
        return NULL;
    }
    struct program *p = mem_alloc(sizeof *p);
    if (p)
        p->g = graph_clone(g);
    if (!p || !p->g)
        err_set(e, KL_ERR_MEMORY, "out of memory planning @%s", g->name);
    if (!p || !p->g || !plan_into(p, caps, p, interpret, e)) {
        program_free(p);
        return NULL;
    }
    share_kernels(p, p);
    return p;
}

void program_free(struct program *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->nkernel; i++)
        kernel_free(p->kernel[i]);
    mem_free(p->kernel);
    free_commands(p, true);
}
