/* Checks a planned program from its commands alone.  It follows the writes and reads of each range of memory in order,
 * and does not use the planner's data or functions.
 *
 *   every argument is inside its memory, aligned to its elements
 *   within one command nothing written overlaps anything else, except a state updated in place
 *   every read of the arena or an output finds what was written there before and not overwritten since; if
 *     the commands name their values (command.value), the value that it names
 *   inputs and states are only read, except the states of outputs in place
 *   such a state is read by no command after the one that writes it, and that one reads each old element only
 *     at the index where it then stores the new one
 *   a command that another thread runs shares no memory with those behind it before one that waits for it
 *   every output is written exactly once, whole; one without elements need not be
 *   a kernel's memory is on its device; only a copy reads another device's memory, and its value is then a copy node
 *     of what it reads
 *   a kernel without a barrier before it shares memory with the kernels before it only if the same thread runs both
 *   a region op reads its operands, writes its results, and overwrites its workspace; the programs of its regions,
 *     which run in the workspace, are checked separately */
#include "plan.h"
#include <stdarg.h>
#include <string.h>

struct checked_argument { /* an argument of the command being checked */
    struct loc loc;
    int64_t bytes;
    uint32_t align;
    ref value;
    uint32_t lbuf;
    bool write;
};

struct arena_content { /* the content of a range of the arena */
    uint32_t device;
    int64_t begin, end;
    ref value;
};

struct checked_launch { struct checked_argument a; uint32_t signal; };

struct check {
    const struct program *p;
    struct err *e;
    uint32_t cmd; /* the command being checked */
    struct checked_argument *acc; uint32_t nacc, acc_cap;
    struct arena_content *held; uint32_t nheld, held_cap; /* disjoint and sorted */
    /* what commands that another thread runs may still access */
    struct checked_launch *flight; uint32_t nflight, flight_cap;
    uint32_t signals, waited; /* such commands so far; those that have ended */
    const uint64_t *slot; /* symbols' values for which all sizes are checked; NULL: those that the graph has */
    int64_t offset[MAX_LAYOUT_VALUES], arena; /* offsets, and the bytes in all, of program.layout */
    bool *written; /* per output */
    bool *gone;    /* per state: overwritten by an earlier command */
};

static const char *const loc_name[] = {[LOC_ARENA] = "arena", [LOC_INPUT] = "input", [LOC_STATE] = "state",
                                       [LOC_OUT] = "output", [LOC_SCRATCH] = "scratch",
                                       [LOC_WORKSPACE] = "workspace",
                                       [LOC_KERNEL_LOCAL] = "kernel"};

static bool plan_check_fail(const struct check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool plan_check_fail(const struct check *c, const char *fmt, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    format_text_v(what, sizeof what, fmt, ap);
    va_end(ap);
    return err_set(c->e, KL_ERR_INTERNAL, "plan of graph %s, command %u: %s", c->p->g->name, c->cmd, what);
}

/* Bytes of a value, for the symbols' values. */
static int64_t bytes_now(const struct check *c, int64_t bytes)
{
    return c->slot ? size_at(&c->p->placeholders, bytes, c->slot) : bytes;
}

static int64_t leaf_bytes(const struct check *c, const struct leaf *l)
{
    return bytes_now(c, shape_count(&c->p->g->shape[l->shape]) * (int64_t)dtype_size(l->dtype));
}

static int64_t output_bytes(const struct check *c, uint32_t i)
{
    return bytes_now(c, (int64_t)node_bytes(c->p->g, c->p->g->out[i].value));
}

/* A value of the layout is a part of the arena. */
static struct loc check_location(const struct check *c, struct loc l)
{
    const struct layout *y = c->p->layout;
    if (l.kind != LOC_LAYOUT || !y || l.index >= y->n)
        return l;
    return (struct loc){LOC_ARENA, y->device, c->offset[l.index] + l.offset};
}

/* The state that an output overwrites; false if it has its own memory. */
static bool overwritten_state(const struct program *p, uint32_t out, uint32_t *state)
{
    *state = p->g->out[out].state;
    return p->in_place[out];
}

/* A reshape has its operand's bytes. */
static ref same_bytes(const struct graph *g, ref r)
{
    while (g->node[r].op == OP_reshape) r = g->node[r].in[0];
    return r;
}

static bool out_of_memory(const struct check *c)
{
    return err_set(c->e, KL_ERR_MEMORY, "no memory to check the plan of graph %s", c->p->g->name);
}

/* ---- kernels that update a state in place ---- */

static bool inst_is_pure(const struct linst *i)
{
    return i->op == L_CONST || i->op == L_SLOT || i->op == L_ALIAS || i->op == L_SPLAT || i->op >= L_PRIM;
}

static bool same_inst(const struct linst *x, const struct linst *y, const uint32_t *of)
{
    return x->op == y->op && x->dtype == y->dtype && x->imm == y->imm && of[x->a] == of[y->a] && of[x->b] == of[y->b] &&
           of[x->c] == of[y->c];
}

/* Value numbers of a kernel's instructions, by hashing; NULL when out of memory. */
static uint32_t *value_numbers(const struct kernel *k)
{
    uint32_t slots = 16;
    while (slots < 2 * k->ninst) slots *= 2;
    uint32_t *of = mem_alloc(k->ninst * sizeof *of), *table = mem_alloc(slots * sizeof *table);
    for (uint32_t i = 1; of && table && i < k->ninst; i++) {
        const struct linst *n = &k->inst[i];
        of[i] = i;
        if (!inst_is_pure(n)) continue;
        uint64_t h = n->op + 31 * (n->dtype + 31 * n->imm);
        h = ((h * 31 + of[n->a]) * 31 + of[n->b]) * 31 + of[n->c];
        uint32_t s = (uint32_t)((h * 0x9e3779b97f4a7c15u) >> 32) & (slots - 1);
        while (table[s] && !same_inst(&k->inst[table[s]], n, of)) s = (s + 1) & (slots - 1);
        if (table[s]) of[i] = of[table[s]];
        else table[s] = i;
    }
    mem_free(table);
    if (!table) {
        mem_free(of);
        return NULL;
    }
    return of;
}

/* Each load of lbuf `old` is followed, not preceded, by a store to lbuf `now` of the same index.  In a scatter, which
 * stores an element more than once, that store must not change the element. */
static bool check_update_in_place(const struct check *c, const struct kernel *k, uint32_t old, uint32_t now)
{
    uint32_t reader, writer;
    old = kernel_first_buffer(k, old, &reader);
    now = kernel_first_buffer(k, now, &writer);
    if (reader != writer) return plan_check_fail(c, "kernel %s updates a state that another member reads", k->name);
    uint32_t *of = value_numbers(k);
    uint32_t *stored = mem_alloc(k->ninst * sizeof *stored); /* stored[v]: the first store at index number v, or 0 */
    uint32_t bad = 0;
    for (uint32_t i = k->ninst; of && stored && --i > 0;)
        if (k->inst[i].op == L_STORE && k->inst[i].imm == now) stored[of[k->inst[i].a]] = i;
    for (uint32_t i = 1; of && stored && i < k->ninst && !bad; i++)
        if (k->inst[i].op == L_LOAD && k->inst[i].imm == old) {
            uint32_t s = stored[of[k->inst[i].a]];
            if (s < i || (sched_is_scatter(k->sched.kind) && k->inst[s].b != i) || load_elements(k, &k->inst[i]) > 1)
                bad = i;
        }
    bool ok = of && stored;
    mem_free(of);
    mem_free(stored);
    if (!ok) return out_of_memory(c);
    return !bad ||
           plan_check_fail(c,
                           "kernel %s updates a state in place, but its load %u of the old value is not followed by a "
                           "store to the same index",
                           k->name, bad);
}

/* ---- one command ---- */
static bool add_access(struct check *c, struct checked_argument a)
{
    if (!mem_reserve(&c->acc, &c->acc_cap, c->nacc + 1, sizeof *c->acc))
        return out_of_memory(c);
    a.loc = check_location(c, a.loc);
    c->acc[c->nacc++] = a;
    return true;
}

/* A result that nothing reads is at the beginning of the workspace. */
static bool check_unread(const struct check *c, const struct loc *l, int64_t bytes, const struct loc *space,
                         int64_t end)
{
    bool inside = l->kind == LOC_ARENA && l->offset >= space->offset && l->offset + bytes <= space->offset + end;
    return inside || plan_check_fail(c, "a result that nothing reads lies outside of the workspace");
}

static bool collect_region(struct check *c)
{
    const struct graph *g = c->p->g;
    const struct command *m = &c->p->cmd[c->cmd];
    if (m->region >= g->nnode || !(m->kind == CMD_REGION ? op_is_control(g->node[m->region].op)
                                   : g->node[m->region].op == OP_custom))
        return plan_check_fail(c, "there is no region op and no custom op");
    const struct node *n = node_at(g, m->region);
    uint32_t nin = node_nin(n), nout = region_results(g, n);
    if (m->narg != nin + nout + 1 || !m->value) return plan_check_fail(c, "%u arguments for %u values", m->narg,
                                                                       nin + nout);
    for (uint32_t i = 0; i < op_regions(n->op); i++) {
        const struct program *sub = m->sub[i];
        if (!sub || !graph_same(sub->g, node_region(g, n, i)))
            return plan_check_fail(c, "region %u has no program of its own", i);
        if (!program_check(sub, c->e)) return false;
        if (sub->scratch_bytes > c->p->scratch_bytes || sub->workspace_bytes > c->p->workspace_bytes ||
            sub->max_args > c->p->max_args)
            return plan_check_fail(c, "region %u needs more scratch than the program has", i);
        for (unsigned d = 0; d < MAX_DEVICES; d++)
            if (d != n->device && sub->arena_bytes[d] > c->p->region_bytes[d])
                return plan_check_fail(c, "region %u has no room for its arena on device %u", i, d);
    }
    struct workspace w = command_workspace(c->p, m);
    struct loc space = check_location(c, m->arg[nin + nout]);
    int64_t unread = 0;
    for (uint32_t i = 0; i < nin + nout; i++) {
        bool out = i >= nin;
        ref r = out ? m->value[i] : node_in(g, n, i);
        int64_t bytes = bytes_now(c, (int64_t)(out ? region_result_bytes(g, n, i - nin) : node_bytes(g, r)));
        struct checked_argument a = {check_location(c, m->arg[i]), bytes, 1, r, i, out};
        const struct node *proj = out && r ? node_at(g, r) : NULL;
        if (proj && (proj->op != OP_proj || proj->in[0] != m->region || proj->attr.proj.index != i - nin))
            return plan_check_fail(c, "argument %u is not result %u", i, i - nin);
        if (out && !r) {
            if (!check_unread(c, &a.loc, bytes, &space, w.work) || a.loc.offset < space.offset + unread)
                return plan_check_fail(c, "results that nothing reads overlap");
            unread = a.loc.offset + bytes - space.offset;
        } else if (!add_access(c, a)) {
            return false;
        }
    }
    struct checked_argument work = {space, w.bytes, 64, NIL, nin + nout, true};
    return (space.kind == LOC_ARENA || plan_check_fail(c, "the workspace is not in the arena")) && add_access(c, work);
}

static bool check_collect(struct check *c)
{
    const struct program *p = c->p;
    const struct graph *g = p->g;
    const struct command *m = &p->cmd[c->cmd];
    c->nacc = 0;
    if (m->kind == CMD_INTERP) {
        if (p->ncmd != 1) return plan_check_fail(c, "the interpreter runs whole programs only");
        for (uint32_t i = 0; i < g->nout; i++) {
            struct checked_argument a = {{LOC_OUT, i, 0}, output_bytes(c, i), 1, g->out[i].value, i, true};
            if (!add_access(c, a)) return false;
        }
        return true;
    }
    if (m->kind == CMD_REGION || m->kind == CMD_CUSTOM) return collect_region(c);
    const struct kernel *k = NULL;
    if (m->kind == CMD_KERNEL) {
        if (m->kernel >= p->nkernel) return plan_check_fail(c, "there is no kernel %u", m->kernel);
        k = p->kernel[m->kernel];
    }
    uint32_t expected = k ? k->nbuf : 2;
    if (m->narg != expected) return plan_check_fail(c, "%u arguments where %u are due", m->narg, expected);
    for (uint32_t i = 0; i < m->narg; i++) {
        struct checked_argument a = {m->arg[i], bytes_now(c, m->bytes), 1, m->value ? m->value[i] : NIL, i, i == 0};
        if (k) {
            bool scratch = k->buf[i].role == BUF_SCRATCH, inside = buf_is_local(k->buf[i].role);
            if (scratch != (a.loc.kind == LOC_SCRATCH))
                return plan_check_fail(c, "argument %u interleaves up scratch and values", i);
            bool workspace = k->buf[i].role == BUF_WORKSPACE;
            if (workspace != (a.loc.kind == LOC_WORKSPACE))
                return plan_check_fail(c, "argument %u interleaves up workspace and values", i);
            if (inside != (a.loc.kind == LOC_KERNEL_LOCAL))
                return plan_check_fail(c, "argument %u interleaves up memory of the kernel and values", i);
            if (inside) continue;
            a.write = k->buf[i].role != BUF_IN;
            a.align = scratch || workspace ? 64 : (uint32_t)dtype_size(k->buf[i].dtype);
            a.bytes = k->buf[i].count * (int64_t)dtype_size(k->buf[i].dtype);
            if (a.value && k->buf[i].count != pitched_numel(g, p->pitch, a.value))
                return plan_check_fail(c, "argument %u has %lld elements in kernel %s, and %lld in memory", i,
                                       (long long)k->buf[i].count, k->name,
                                       (long long)pitched_numel(g, p->pitch, a.value));
            a.bytes = scratch || workspace ? a.bytes : bytes_now(c, a.bytes);
        }
        if (!add_access(c, a)) return false;
    }
    return true;
}

/* Bytes of a device's arena.  Only the layout's device has one whose size depends on the symbols' values. */
static int64_t arena_bytes_now(const struct check *c, uint32_t device)
{
    const struct layout *y = c->p->layout;
    return y && y->n && y->device == device ? c->arena : c->p->arena_bytes[device];
}

static bool check_bounds(const struct check *c, const struct checked_argument *a)
{
    const struct program *p = c->p;
    const struct graph *g = p->g;
    int64_t size = -1; /* an invalid location */
    switch (a->loc.kind) {
    case LOC_ARENA:
        if (a->loc.index < MAX_DEVICES)
            size = arena_bytes_now(c, a->loc.index) - p->region_bytes[a->loc.index];
        break;
    case LOC_SCRATCH: size = p->scratch_bytes; break;
    case LOC_WORKSPACE: size = p->workspace_bytes; break;
    case LOC_INPUT:   if (a->loc.index < g->input.n) size = leaf_bytes(c, &g->input.v[a->loc.index]); break;
    case LOC_STATE:   if (a->loc.index < g->state.n) size = leaf_bytes(c, &g->state.v[a->loc.index]); break;
    case LOC_OUT:     if (a->loc.index < g->nout) size = output_bytes(c, a->loc.index); break;
    default:          return plan_check_fail(c, "argument %u has no place", a->lbuf);
    }
    if (a->loc.offset < 0 || a->bytes < 0 || a->bytes > size || a->loc.offset > size - a->bytes)
        return plan_check_fail(c, "argument %u: bytes %lld to %lld of %s %u, which has %lld", a->lbuf,
                               (long long)a->loc.offset,
                    (long long)(a->loc.offset + a->bytes), loc_name[a->loc.kind], a->loc.index, (long long)size);
    if (a->loc.offset % a->align) return plan_check_fail(c, "argument %u is not aligned to %u bytes", a->lbuf,
                                                         a->align);
    return true;
}

/* The memory of an access: the state's for an output that overwrites it. */
static struct loc memory_of(const struct program *p, const struct checked_argument *a)
{
    struct loc l = a->loc;
    uint32_t state;
    if (l.kind == LOC_OUT && overwritten_state(p, l.index, &state)) l = (struct loc){LOC_STATE, state, l.offset};
    if (l.kind == LOC_SCRATCH || l.kind == LOC_WORKSPACE) l.index = 0;
    return l;
}

static bool accesses_overlap(const struct program *p, const struct checked_argument *a,
                             const struct checked_argument *b)
{
    struct loc x = memory_of(p, a), y = memory_of(p, b);
    return x.kind == y.kind && x.index == y.index && x.offset < y.offset + b->bytes && y.offset < x.offset + a->bytes;
}

static bool check_overlaps(const struct check *c)
{
    const struct command *m = &c->p->cmd[c->cmd];
    for (uint32_t i = 0; i < c->nacc; i++)
        for (uint32_t j = 0; j < c->nacc; j++) {
            const struct checked_argument *w = &c->acc[i], *o = &c->acc[j];
            if (i == j || !w->write || !accesses_overlap(c->p, w, o)) continue;
            /* in place */
            bool update = w->loc.kind == LOC_OUT && o->loc.kind == LOC_STATE && m->kind != CMD_REGION &&
                m->kind != CMD_CUSTOM;
            if (!update) return plan_check_fail(c, "argument %u is written and overlaps argument %u", w->lbuf, o->lbuf);
            if (m->kind == CMD_KERNEL && !check_update_in_place(c, c->p->kernel[m->kernel], o->lbuf, w->lbuf))
                return false;
        }
    return true;
}

/* The first range of the arena that ends after `at`. */
static uint32_t first_content(const struct check *c, uint32_t device, int64_t at)
{
    uint32_t lo = 0, hi = c->nheld;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (c->held[mid].device < device || (c->held[mid].device == device && c->held[mid].end <= at)) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static bool check_read(const struct check *c, const struct checked_argument *a)
{
    const struct graph *g = c->p->g;
    ref want = same_bytes(g, a->value), have = NIL;
    uint32_t index = a->loc.index;
    if (!a->bytes) return true;
    if (a->loc.kind == LOC_ARENA) {
        uint32_t i = first_content(c, index, a->loc.offset);
        const struct arena_content *h = i == c->nheld ? NULL : &c->held[i];
        if (!h || h->device != index || h->begin > a->loc.offset || h->end < a->loc.offset + a->bytes)
            return plan_check_fail(c, "argument %u reads bytes %lld to %lld of the arena, which hold no whole value",
                                   a->lbuf,
                        (long long)a->loc.offset, (long long)(a->loc.offset + a->bytes));
        have = h->value;
    } else if (a->loc.kind == LOC_OUT) {
        if (!c->written[index]) return plan_check_fail(c, "argument %u reads output %u before it is written", a->lbuf,
                                                       index);
        have = same_bytes(g, g->out[index].value);
    } else {
        bool state = a->loc.kind == LOC_STATE;
        if (state && c->gone[index])
            return plan_check_fail(c, "argument %u reads state %u after it is overwritten in place", a->lbuf, index);
        const struct node *n = &g->node[want];
        if (want && (n->op != (state ? OP_state : OP_input) || n->attr.leaf.index != index))
            return plan_check_fail(c, "argument %u is named %%%u but is %s %u", a->lbuf, want, loc_name[a->loc.kind],
                                   index);
    }
    if (want && have && want != have)
        return plan_check_fail(c, "argument %u reads %%%u where %%%u is", a->lbuf, want, have);
    return true;
}

static bool check_write(struct check *c, const struct checked_argument *a)
{
    const struct graph *g = c->p->g;
    ref value = same_bytes(g, a->value);
    int64_t begin = a->loc.offset, end = begin + a->bytes;
    if (a->loc.kind == LOC_ARENA) {
        if (!a->bytes) return true;
        uint32_t from = first_content(c, a->loc.index, begin), to = from;
        while (to < c->nheld && c->held[to].device == a->loc.index && c->held[to].begin < end)
            to++; /* the overwritten value ends */
        if (!mem_reserve(&c->held, &c->held_cap, c->nheld + 1, sizeof *c->held))
            return out_of_memory(c);
        memmove(c->held + from + 1, c->held + to, (c->nheld - to) * sizeof *c->held);
        c->nheld += from + 1 - to;
        c->held[from] = (struct arena_content){a->loc.index, begin, end, value};
        return true;
    }
    uint32_t i = a->loc.index, state;
    if (a->loc.kind != LOC_OUT) return plan_check_fail(c, "argument %u writes %s %u", a->lbuf, loc_name[a->loc.kind],
                                                       i);
    if (c->written[i]) return plan_check_fail(c, "output %u is written a second time", i);
    if (a->bytes != output_bytes(c, i)) return plan_check_fail(c, "writes %lld bytes of output %u", (long long)a->bytes,
                                                               i);
    if (value && value != same_bytes(g, g->out[i].value)) return plan_check_fail(c, "output %u receives %%%u", i,
                                                                                 value);
    c->written[i] = true;
    if (overwritten_state(c->p, i, &state)) c->gone[state] = true;
    return true;
}

/* The device of an access. */
static unsigned device_of(const struct check *c, const struct checked_argument *a)
{
    const struct graph *g = c->p->g;
    if (a->loc.kind == LOC_ARENA) return a->loc.index;
    if (a->loc.kind == LOC_OUT) return node_at(g, g->out[a->loc.index].value)->device;
    return a->value ? node_at(g, a->value)->device : c->p->cmd[c->cmd].device;
}

/* All arguments are on the command's device, except the source of a copy. */
static bool check_devices(const struct check *c)
{
    const struct command *m = &c->p->cmd[c->cmd];
    for (uint32_t i = 0; i < c->nacc && m->kind != CMD_INTERP; i++)
        if (device_of(c, &c->acc[i]) != m->device && !(m->kind == CMD_COPY && i == 1))
            return plan_check_fail(c, "argument %u is on device %u, the command on %u", c->acc[i].lbuf,
                                   device_of(c, &c->acc[i]),
                        m->device);
    return true;
}

/* A copy to another value is that of a copy node. */
static bool check_copy(const struct check *c)
{
    const struct graph *g = c->p->g;
    const struct command *m = &c->p->cmd[c->cmd];
    if (m->kind != CMD_COPY || !m->value || same_bytes(g, m->value[0]) == same_bytes(g, m->value[1])) return true;
    const struct node *n = node_at(g, m->value[0]);
    return (n->op == OP_copy && same_bytes(g, n->in[0]) == same_bytes(g, m->value[1])) ||
           plan_check_fail(c, "%%%u is no copy of %%%u", m->value[0], m->value[1]);
}

/* What another thread may still run shares no memory with this command, but what both only read. */
static bool check_flights(struct check *c)
{
    const struct command *m = &c->p->cmd[c->cmd];
    if (m->wait > c->signals || (m->signal && (m->signal != c->signals + 1 || m->kind != CMD_CUSTOM || m->wait)))
        return plan_check_fail(c, "wait %u and signal %u, with %u commands of the other thread so far", m->wait,
                               m->signal, c->signals);
    c->waited = m->wait > c->waited ? m->wait : c->waited;
    uint32_t left = 0;
    for (uint32_t i = 0; i < c->nflight; i++)
        if (c->flight[i].signal > c->waited) c->flight[left++] = c->flight[i];
    c->nflight = left;
    if (m->signal) { /* it runs behind the others of its thread */
        if (!mem_reserve(&c->flight, &c->flight_cap, c->nflight + c->nacc, sizeof *c->flight)) return out_of_memory(c);
        for (uint32_t i = 0; i < c->nacc; i++) c->flight[c->nflight++] = (struct checked_launch){c->acc[i], m->signal};
        c->signals++;
        return true;
    }
    for (uint32_t i = 0; i < c->nacc; i++)
        for (uint32_t k = 0; k < c->nflight; k++)
            if ((c->acc[i].write || c->flight[k].a.write) && accesses_overlap(c->p, &c->acc[i], &c->flight[k].a))
                return plan_check_fail(c, "argument %u is memory of the command with signal %u, which may still run",
                                       c->acc[i].lbuf, c->flight[k].signal);
    return true;
}

static bool check_command(struct check *c)
{
    if (!check_collect(c)) return false;
    for (uint32_t i = 0; i < c->nacc; i++)
        if (!check_bounds(c, &c->acc[i])) return false;
    if (!check_flights(c)) return false;
    if (!check_devices(c) || !check_overlaps(c)) return false;
    const char *wrong = c->p->cmd[c->cmd].no_barrier ? check_no_barrier(c->p, c->cmd) : NULL;
    if (wrong) return plan_check_fail(c, "%s", wrong);
    for (uint32_t i = 0; i < c->nacc; i++)
        if (!c->acc[i].write && !check_read(c, &c->acc[i])) return false;
    for (uint32_t i = 0; i < c->nacc; i++)
        if (c->acc[i].write && c->acc[i].loc.kind < LOC_SCRATCH && !check_write(c, &c->acc[i])) return false;
    return check_copy(c);
}

/* Outputs in place are assigns, of the state's size, one per state. */
static bool check_in_place(const struct check *c)
{
    const struct graph *g = c->p->g;
    uint32_t *over = mem_alloc((g->state.n + 1) * sizeof *over); /* per state: number of the output in place + 1 */
    bool ok = over || out_of_memory(c);
    for (uint32_t i = 0; ok && i < g->nout; i++) {
        uint32_t state = g->out[i].state;
        if (!c->p->in_place[i]) continue;
        if (g->out[i].kind != OUT_ASSIGN || state >= g->state.n) ok =
            plan_check_fail(c, "output %u in place is no assign", i);
        else if (output_bytes(c, i) != leaf_bytes(c, &g->state.v[state]))
            ok = plan_check_fail(c, "output %u in place has not its state's size", i);
        else if (over[state])
            ok = plan_check_fail(c, "outputs %u and %u are both in place of state %u", over[state] - 1, i, state);
        else over[state] = i + 1;
    }
    mem_free(over);
    return ok;
}

bool program_check(const struct program *p, struct err *e) { return program_check_for(p, NULL, e); }

bool program_check_for(const struct program *p, const uint64_t *slot, struct err *e)
{
    struct check c = {.p = p, .e = e, .slot = slot};
    c.arena = p->layout && p->layout->n ? layout_offsets(p, slot, c.offset) : 0;
    c.written = mem_alloc(p->g->nout + 1);
    c.gone = mem_alloc(p->g->state.n + 1);
    bool ok = c.written && c.gone;
    if (!ok) err_set(e, KL_ERR_MEMORY, "no memory to check the plan of graph %s", p->g->name);
    ok = ok && check_in_place(&c);
    for (; ok && c.cmd < p->ncmd; c.cmd++) ok = check_command(&c);
    for (uint32_t i = 0; ok && i < p->g->nout; i++)
        if (!c.written[i] && output_bytes(&c, i)) ok = plan_check_fail(&c, "the end, and output %u was never written",
                                                                         i);
    mem_free(c.acc);
    mem_free(c.flight);
    mem_free(c.held);
    mem_free(c.written);
    mem_free(c.gone);
    return ok;
}
