/* From a graph with groups to a program: order of kernels, storage of values, commands.
 *
 * Order: dependences, and, unless that makes a cycle, every reader of a state before the kernel that writes its new
 * value, so that the write can be in place.  Among ready kernels the lowest group number is first, which keeps the
 * order of recording and so short lifetimes; plan_async.c changes that for what another thread runs and what depends on
 * it.  Storage: liveness says over which commands each value is needed (plan_lifetimes).  Outputs have their own
 * buffers, other values are in one arena for each device (place.c). */
#include "ir/graph/custom.h"
#include "place.h"
#include "plan.h"
#include <stdlib.h>
#include <string.h>

/* Keeps the pitches for the checker. */
static bool keep_pitches(struct planner *p)
{
    const int64_t *pitch = lowerer_pitch(p->lowerer);
    size_t bytes = p->g->nnode * sizeof *pitch;
    if (pitch && (p->p->pitch = mem_alloc(bytes)))
        memcpy(p->p->pitch, pitch, bytes);
    return !pitch || p->p->pitch || plan_no_memory(p);
}

int64_t plan_value_bytes(const struct planner *p, ref r)
{
    return pitched_numel(p->g, p->p->pitch, r) * (int64_t)dtype_size(p->g->node[r].dtype);
}

static bool plan_lower(struct planner *p)
{
    p->lowerer = lowerer_new(p->g, p->targets, p->root->ngroup, p->root->pack, &p->root->p->placeholders);
    p->root->ngroup += p->g->ngroup;
    if (!p->lowerer)
        return plan_no_memory(p);
    if (!keep_pitches(p))
        return false;
    for (ref r = 1; r < p->g->nnode; r++) {
        if (p->g->group[r] == GROUP_NONE)
            continue;
        p->device[p->g->group[r]] = p->g->node[r].device;
        if (op_is_non_fusible(p->g->node[r].op))
            p->non_fusible[p->g->group[r]] = r;
    }
    for (uint32_t i = 0; i < p->g->ngroup; i++) {
        if (p->non_fusible[i] ? !plan_non_fusible(p, i) : !lower_group(p->lowerer, i, NULL, &p->low[i], p->e))
            return false;
        if (!p->non_fusible[i] && !plan_share_kernel(p, i)) /* a loop may have become a kernel */
            return false;
    }
    return true;
}

bool plan_add_edge(struct planner *p, uint32_t from, uint32_t to)
{
    uint32_t n = p->succ[from].n;
    if (n && p->succ[from].v[n - 1] == to)
        return true;
    if (!mem_reserve(&p->succ[from].v, &p->succ[from].cap, p->succ[from].n + 1, sizeof(uint32_t)))
        return plan_no_memory(p);
    p->succ[from].v[p->succ[from].n++] = to;
    p->pending[to]++;
    return true;
}

static bool plan_dependences(struct planner *p)
{
    const struct graph *g = p->g;
    for (uint32_t i = 0; i < g->ngroup; i++)
        for (uint32_t a = 0; a < p->low[i].narg; a++) {
            ref r = p->low[i].arg[a].node;
            if (p->low[i].arg[a].role == BUF_IN && !node_is_stored_leaf(g, r) && !plan_add_edge(p, g->group[r], i))
                return false;
        }
    return true;
}

void plan_heap_push(uint32_t *heap, uint32_t *n, uint32_t x)
{
    uint32_t i = (*n)++;
    for (; i && heap[(i - 1) / 2] > x; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
}

uint32_t plan_heap_pop(uint32_t *heap, uint32_t *n)
{
    uint32_t top = heap[0], x = heap[--*n], i = 0;
    for (uint32_t c; (c = 2 * i + 1) < *n; i = c) {
        c += c + 1 < *n && heap[c + 1] < heap[c];
        if (heap[c] >= x)
            break;
        heap[i] = heap[c];
    }
    heap[i] = x;
    return top;
}

static bool plan_order(struct planner *p)
{
    uint32_t n = p->g->ngroup, ready = 0, done = 0, *heap = p->stack, *priority = p->seen;
    plan_async_priorities(p, priority);
    for (uint32_t i = 0; i < n; i++)
        if (!p->pending[i])
            plan_heap_push(heap, &ready, priority[i] * n + i);
    while (ready) {
        uint32_t next = plan_heap_pop(heap, &ready) % n;
        p->order[done++] = next;
        for (uint32_t i = 0; i < p->succ[next].n; i++)
            if (!--p->pending[p->succ[next].v[i]])
                plan_heap_push(heap, &ready, priority[p->succ[next].v[i]] * n + p->succ[next].v[i]);
    }
    if (done < n)
        return err_set(p->e, KL_ERR_INTERNAL, "the kernels of @%s depend on each other in a cycle", p->g->name);
    for (uint32_t pos = 0; pos < n; pos++)
        p->pending[p->order[pos]] = pos; /* from here on: the group's position */
    for (uint32_t r = 0; r < p->nreader; r++)
        p->reader[r].position = p->pending[p->reader[r].group];
    return true;
}

struct command *plan_command(struct planner *p, enum cmd_kind kind, unsigned device, uint32_t narg)
{
    if (!mem_reserve(&p->p->cmd, &p->cmd_cap, p->p->ncmd + 1, sizeof *p->p->cmd))
        return plan_no_memory(p), NULL;
    struct command *c = &p->p->cmd[p->p->ncmd++];
    *c = (struct command){.kind = (uint16_t)kind, .device = (uint16_t)device, .narg = narg};
    c->arg = mem_alloc((narg + !narg) * sizeof *c->arg);
    c->value = mem_alloc((narg + !narg) * sizeof *c->value);
    if (!c->arg || !c->value)
        return plan_no_memory(p), NULL;
    return c;
}

static struct loc leaf_loc(const struct node *n)
{
    return (struct loc){.kind = n->op == OP_input ? LOC_INPUT : LOC_STATE, .index = n->attr.leaf.index};
}

bool plan_copy(struct planner *p, ref to_value, struct loc to, ref from_value, struct loc from)
{
    struct command *c = plan_command(p, CMD_COPY, p->g->node[to_value].device, 2);
    if (!c)
        return false;
    c->arg[0] = to;
    c->arg[1] = from;
    c->bytes = (int64_t)node_bytes(p->g, to_value);
    c->from = p->g->node[from_value].device;
    c->value[0] = to_value;
    c->value[1] = from_value;
    return true;
}

/* Outputs that are a leaf's value: copied first, before a kernel can overwrite a state. */
static bool plan_copies(struct planner *p)
{
    for (uint32_t i = 0; i < p->g->nout; i++) {
        ref r = node_stored(p->g, p->g->out[i].value);
        if (node_is_stored_leaf(p->g, r) &&
            !plan_copy(p, r, (struct loc){.kind = LOC_OUT, .index = i}, r, leaf_loc(&p->g->node[r])))
            return false;
    }
    p->first_kernel = p->p->ncmd;
    return true;
}

/* Outputs whose value another output already has: copied last. */
static bool plan_duplicates(struct planner *p)
{
    uint32_t before = p->p->ncmd;
    for (uint32_t i = 0; i < p->g->nout; i++) {
        ref r = node_stored(p->g, p->g->out[i].value);
        const struct value *v = &p->value[r];
        if (v->node && !(v->loc.kind == LOC_OUT && v->loc.index == i) &&
            !plan_copy(p, r, (struct loc){.kind = LOC_OUT, .index = i}, r, v->loc))
            return false;
    }
    if (p->p->ncmd > before)
        p->p->cmd[before].wait = p->p->signals;
    return true;
}

/* First and last command of every stored value; outputs use their own buffers.  A region op's own value is its
 * workspace. */
static bool plan_lifetimes(struct planner *p)
{
    for (uint32_t pos = 0; pos < p->norder; pos++) {
        const struct lowered *l = &p->low[p->order[pos]];
        ref region = plan_has_workspace(p, p->order[pos]) ? p->non_fusible[p->order[pos]] : NIL;
        if (region) {
            uint32_t now = p->first_kernel + pos;
            p->value[region] = (struct value){.node = region, .first = now, .last = now};
            if (!plan_workspace(p, p->order[pos], &p->value[region].bytes))
                return false;
        }
        for (uint32_t a = 0; a < l->narg; a++) {
            struct value *v = &p->value[l->arg[a].node];
            if (l->arg[a].role == BUF_OUT)
                *v = (struct value){.node = l->arg[a].node, .first = p->first_kernel + pos,
                                    .bytes = plan_round64(plan_value_bytes(p, l->arg[a].node))};
            v->last = p->first_kernel + pos;
        }
    }
    for (uint32_t i = p->g->nout; i-- > 0;) { /* backwards: the first output with a value stores it */
        struct value *v = &p->value[node_stored(p->g, p->g->out[i].value)];
        if (v->node) {
            v->loc = (struct loc){.kind = LOC_OUT, .index = i};
            v->placed = true;
        }
    }
    plan_async_lifetimes(p);
    return true;
}

/* Places the values of one device in its arena. */
static bool place_device(struct planner *p, unsigned device, struct placement *v)
{
    int64_t *bytes = &p->p->arena_bytes[device];
    uint32_t n = 0;
    for (ref r = 1; r < p->g->nnode; r++)
        if (p->value[r].node && !p->value[r].placed && p->g->node[r].device == device)
            v[n++] = (struct placement){r, p->value[r].first, p->value[r].last, p->value[r].bytes, 0};
    bool ok = place_values(v, n, p->first_kernel + p->norder);
    for (uint32_t i = 0; ok && i < n; i++) {
        struct value *x = &p->value[v[i].node];
        x->loc = (struct loc){.kind = LOC_ARENA, .index = device, .offset = v[i].offset};
        x->placed = true;
        *bytes = v[i].offset + x->bytes > *bytes ? v[i].offset + x->bytes : *bytes;
    }
    *bytes += p->p->region_bytes[device];
    return ok;
}

static bool plan_arenas(struct planner *p)
{
    struct placement *v = mem_alloc(p->g->nnode * sizeof *v);
    bool ok = v;
    for (unsigned d = 0; ok && d < MAX_DEVICES; d++)
        if (p->p->devices >> d & 1)
            ok = place_device(p, d, v);
    mem_free(v);
    return ok || plan_no_memory(p);
}

/* A value without elements is never written and has no address of its own. */
struct loc plan_value_loc(const struct planner *p, ref r)
{
    const struct node *n = &p->g->node[r];
    if (node_is_stored_leaf(p->g, r))
        return leaf_loc(n);
    return p->value[r].node ? p->value[r].loc : (struct loc){.kind = LOC_ARENA, .index = n->device};
}

static bool plan_commands(struct planner *p)
{
    for (uint32_t pos = 0; pos < p->norder; pos++) {
        struct lowered *l = &p->low[p->order[pos]];
        if (p->non_fusible[p->order[pos]]) {
            if (!plan_non_fusible_command(p, p->order[pos]))
                return false;
            continue;
        }
        const struct kernel *k = l->k;
        struct command *c = plan_command(p, CMD_KERNEL, p->device[p->order[pos]], k->nbuf);
        if (!c || !plan_number_kernel(p, p->order[pos], &c->kernel))
            return false;
        c->group = p->order[pos];
        p->p->max_args = k->nbuf > p->p->max_args ? k->nbuf : p->p->max_args;
        int64_t scratch = 0, workspace = 0;
        for (uint32_t b = 0; b < k->nbuf; b++) {
            if (k->buf[b].role == BUF_SCRATCH) {
                c->arg[b] = (struct loc){.kind = LOC_SCRATCH, .offset = scratch};
                scratch += plan_round64(k->buf[b].count * (int64_t)dtype_size(k->buf[b].dtype));
                continue;
            }
            if (k->buf[b].role == BUF_WORKSPACE) {
                c->arg[b] = (struct loc){.kind = LOC_WORKSPACE, .offset = workspace};
                workspace += plan_round64(k->buf[b].count * (int64_t)dtype_size(k->buf[b].dtype));
                continue;
            }
            if (buf_is_local(k->buf[b].role)) {
                c->arg[b] = (struct loc){.kind = LOC_KERNEL_LOCAL};
                continue;
            }
            ref r = l->arg[k->buf[b].id].node;
            c->arg[b] = plan_value_loc(p, r);
            c->value[b] = r;
        }
        if (scratch > p->p->scratch_bytes)
            p->p->scratch_bytes = scratch;
        if (workspace > p->p->workspace_bytes)
            p->p->workspace_bytes = workspace;
    }
    plan_async_commands(p);
    return true;
}

/* Bytes of all memory of the caller: inputs, states and outputs that are not in place. */
static int64_t caller_bytes(const struct program *p)
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

int64_t program_arenas(const struct program *p)
{
    int64_t n = 0;
    for (uint64_t left = p->devices; left; left &= left - 1)
        n += p->arena_bytes[__builtin_ctzll(left)];
    return n;
}

/* Bytes that the regions of a command need in arenas of devices other than that of their op. */
static int64_t remote_region_bytes(const struct command *c)
{
    int64_t bytes = 0;
    for (unsigned d = 0; c->kind == CMD_REGION && d < MAX_DEVICES; d++) {
        int64_t a = c->sub[0]->arena_bytes[d], b = c->sub[1] ? c->sub[1]->arena_bytes[d] : 0;
        if (d != c->device)
            bytes += a > b ? a : b;
    }
    return bytes;
}

/* The maximum of bytes alive at the same time, from the lifetimes. */
static bool plan_bytes(struct planner *p)
{
    uint32_t n = p->first_kernel + p->norder + 1;
    int64_t *change = mem_alloc(n * sizeof *change), alive = 0, max = 0;
    if (!change)
        return plan_no_memory(p);
    for (ref r = 1; r < p->g->nnode; r++) {
        const struct value *v = &p->value[r];
        if (!v->node || v->loc.kind != LOC_ARENA)
            continue;
        int64_t bytes = op_is_region(p->g->node[r].op) ? v->bytes : plan_value_bytes(p, r);
        change[v->first] += bytes;
        change[v->last + 1] -= bytes;
    }
    for (uint32_t c = 0; c < n; c++) {
        alive += change[c];
        int64_t now = alive + (c < p->p->ncmd ? remote_region_bytes(&p->p->cmd[c]) : 0);
        max = now > max ? now : max;
        max = alive > max ? alive : max;
    }
    mem_free(change);
    int64_t held = caller_bytes(p->p);
    p->p->peak_bytes = held + program_arenas(p->p);
    p->p->lower_bound_bytes = held + max;
    return true;
}

static bool plan_kernels(struct planner *p)
{
    static bool (*const step[])(struct planner *) = {
#define STEP(name, doc) plan_##name,
#include "passes/passes.def"
    };
    for (size_t i = 0; i < sizeof step / sizeof *step; i++)
        if (!step[i](p))
            return false;
    return plan_layout(p);
}

/* Frees everything except the kernels and, for a region's program, the graph. */
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
    mem_free(p->pitch);
    layout_free(p->layout);
    if (graph)
        graph_free(p->g);
    mem_free(p);
}

void plan_free_program(struct program *p) { free_commands(p, false); }

static void planner_free(struct planner *p)
{
    for (uint32_t i = 0; i < p->g->ngroup; i++) {
        if (p->low)
            mem_free(p->low[i].arg);
        for (int k = 0; p->sub && k < 2; k++)
            free_commands(p->sub[i][k], false);
        if (p->succ)
            mem_free(p->succ[i].v);
    }
    mem_free(p->reader);
    plan_free_kernels(p); /* a region's planner has none */
    mem_free(p->own);
    mem_free(p->line);
    mem_arena_free(&p->mem);
    lowerer_free(p->lowerer);
}

/* The interpreter keeps every value from its node to its last use. */
static bool plan_interpreter(struct planner *p)
{
    const struct graph *g = p->g;
    if (!plan_command(p, CMD_INTERP, graph_device(g), 0))
        return false;
    uint32_t *last = p->order;
    for (ref r = 1; r < g->nnode; r++)
        for (unsigned i = 0; i < node_nin(&g->node[r]); i++)
            last[node_in(g, &g->node[r], i)] = r;
    int64_t *gone = mem_alloc(g->nnode * sizeof *gone), alive = 0, max = 0; /* bytes last used by each node */
    if (!gone)
        return plan_no_memory(p);
    for (ref now = 1; now < g->nnode; now++) {
        if (!node_is_stored_leaf(g, now) && last[now] >= now) {
            alive += (int64_t)node_bytes(g, now);
            gone[last[now]] += (int64_t)node_bytes(g, now);
        }
        max = alive > max ? alive : max;
        alive -= gone[now];
    }
    mem_free(gone);
    p->p->interp_bytes = max;
    p->p->peak_bytes = p->p->lower_bound_bytes = caller_bytes(p->p) + max;
    return true;
}

/* Plans the program of into->g, which is a region of root's program or (root NULL) the whole, with the schedules of a
 * section or without. */
static bool plan_into(struct program *into, const struct target_set *targets, struct planner *root,
                      const struct sched_section *section, const struct tuned *tuned, struct memo_pack *pack,
                      bool interpret, struct err *e)
{
    const struct graph *g = into->g;
    uint32_t ng = g->ngroup + 1;
    struct planner p = {.g = g, .targets = targets, .e = e, .p = into, .section = section, .tuned = tuned,
                        .pack = pack};
    into->devices = graph_devices(g);
    p.root = root ? root : &p;
    p.low = mem_arena_alloc(&p.mem, ng * sizeof *p.low);
    p.shared = mem_arena_alloc(&p.mem, ng * sizeof *p.shared);
    p.non_fusible = mem_arena_alloc(&p.mem, ng * sizeof *p.non_fusible);
    p.device = mem_arena_alloc(&p.mem, ng * sizeof *p.device);
    p.sub = mem_arena_alloc(&p.mem, ng * sizeof *p.sub);
    p.order = mem_arena_alloc(&p.mem, (g->nnode + ng) * sizeof *p.order);
    p.succ = mem_arena_alloc(&p.mem, ng * sizeof *p.succ);
    p.pending = mem_arena_alloc(&p.mem, ng * sizeof *p.pending);
    p.signal = mem_arena_alloc(&p.mem, ng * sizeof *p.signal);
    p.wait = mem_arena_alloc(&p.mem, ng * sizeof *p.wait);
    p.value = mem_arena_alloc(&p.mem, g->nnode * sizeof *p.value);
    p.seen = mem_arena_alloc(&p.mem, ng * sizeof *p.seen);
    p.stack = mem_arena_alloc(&p.mem, ng * sizeof *p.stack);
    into->in_place = mem_alloc((g->nout + 1) * sizeof *into->in_place);
    p.used = section ? mem_arena_alloc(&p.mem, (section->n + 1) * sizeof *p.used) : NULL;
    bool ok = !p.mem.failed && into->in_place;
    if (!ok)
        plan_no_memory(&p);
    else
        ok = interpret ? plan_interpreter(&p) : plan_kernels(&p) && (root || plan_schedules_used(&p));
    if (ok)
        plan_async_overwrites(into);
    planner_free(&p);
    return ok;
}

struct program *plan_graph(const struct graph *g, const struct target_set *targets, struct planner *root, struct err *e)
{
    struct program *p = mem_alloc(sizeof *p);
    if (!p) {
        err_set(e, KL_ERR_MEMORY, "out of memory planning @%s", g->name);
        return NULL;
    }
    p->g = (struct graph *)g;
    if (plan_into(p, targets, root, NULL, NULL, NULL, false, e))
        return p;
    free_commands(p, false);
    return NULL;
}

/* The programs of regions use the kernels of the whole, and their commands are numbered together. */
static void share_kernels(struct program *p, struct program *root)
{
    p->kernel = root->kernel;
    p->nkernel = root->nkernel;
    for (uint32_t i = 0; i < p->ncmd; i++) {
        p->cmd[i].row = root->rows++;
        for (int k = 0; k < 2; k++)
            if (p->cmd[i].sub[k])
                share_kernels(p->cmd[i].sub[k], root);
    }
}

/* Bytes of all values, those of regions included; a double, because the sum may exceed 64 bits. */
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

static struct program *plan_whole(const struct graph *g, const struct target_set *targets,
                                  const struct sched_section *section, const struct tuned *tuned,
                                  struct memo_pack *pack, bool interpret, const struct placeholders *placeholders,
                                  struct err *e)
{
    if (!graph_is_bound(g, e))
        return NULL;
    double bytes = value_bytes(g);
    if (bytes >= 0x1p62) { /* the sums below are 64-bit integers */
        err_set(e, KL_ERR_MEMORY, "graph @%s: its values have %.3g bytes in all", g->name, bytes);
        return NULL;
    }
    struct program *p = mem_alloc(sizeof *p);
    if (p)
        p->g = graph_clone(g);
    if (p && placeholders)
        p->placeholders = *placeholders;
    if (!p || !p->g)
        err_set(e, KL_ERR_MEMORY, "out of memory planning @%s", g->name);
    if (!p || !p->g || !plan_into(p, targets, NULL, section, tuned, pack, interpret, e)) {
        program_free(p);
        return NULL;
    }
    share_kernels(p, p);
    return p;
}

struct program *program_plan(const struct graph *g, const struct caps *caps, bool interpret, struct err *e)
{
    struct target_set one = {&(struct target){.caps = caps}, 1};
    return plan_whole(g, &one, NULL, NULL, NULL, interpret, NULL, e);
}

struct program *program_plan_with(const struct graph *g, const struct caps *caps, const struct sched_section *s,
                                  const struct tuned *tuned, struct memo_pack *pack, struct err *e)
{
    struct target_set one = {&(struct target){.caps = caps}, 1};
    return program_plan_for(g, &one, s, tuned, pack, e);
}

struct program *program_plan_for(const struct graph *g, const struct target_set *targets, const struct sched_section *s,
                                 const struct tuned *tuned, struct memo_pack *pack, struct err *e)
{
    return plan_whole(g, targets, s, tuned, pack, false, NULL, e);
}

struct program *program_plan_symbolic(const struct graph *g, const struct placeholders *placeholders,
                                      const struct target_set *targets, struct err *e)
{
    return plan_whole(g, targets, NULL, NULL, NULL, false, placeholders, e);
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

/* Without graphs and kernels, which belong to the whole program. */
static size_t commands_bytes(const struct program *p)
{
    size_t bytes = sizeof *p + p->ncmd * sizeof *p->cmd + p->g->nout * sizeof *p->in_place;
    for (uint32_t i = 0; i < p->ncmd; i++) {
        const struct command *c = &p->cmd[i];
        bytes += c->narg * (sizeof *c->arg + (c->value ? sizeof *c->value : 0));
        for (int k = 0; k < 2; k++)
            bytes += c->sub[k] ? commands_bytes(c->sub[k]) : 0;
    }
    return bytes;
}

size_t program_bytes(const struct program *p)
{
    size_t bytes = graph_bytes(p->g) + commands_bytes(p) + p->kernel_cap * sizeof *p->kernel;
    for (uint32_t i = 0; i < p->nkernel; i++)
        bytes += kernel_bytes(p->kernel[i]);
    return bytes;
}
