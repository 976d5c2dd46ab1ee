/* Traces: what a thread records between begin and end, run as one program.
 *
 * An outside handle becomes a state of the graph at its first use and is bound to that node; an assignment binds it to
 * another node.  At the end the outputs are the last version of each assigned state and each kept temporary.
 * Everything that can fail is done before the program's first write, so a failed trace changes nothing. */
#include "frontend/frontend.h"
#include <string.h>

/* ---- bindings ---- */

static uint32_t hash_index(uint32_t i) { return (i * UINT32_C(0x9E3779B1)) >> 7; }

struct binding *trace_binding(struct trace *tr, kl_tensor h)
{
    for (uint32_t i = hash_index((uint32_t)h.id), n = 0; n < tr->index_cap; i++, n++) {
        uint32_t at = tr->index[i & (tr->index_cap - 1)];
        if (!at)
            return NULL;
        if (tr->bound[at - 1].h.id == h.id)
            return &tr->bound[at - 1];
    }
    return NULL;
}

static void trace_place(struct trace *tr, uint32_t at)
{
    uint32_t i = hash_index((uint32_t)tr->bound[at].h.id);
    while (tr->index[i & (tr->index_cap - 1)])
        i++;
    tr->index[i & (tr->index_cap - 1)] = at + 1;
}

/* Makes room for one more binding; the index is at most half full. */
static bool trace_make_room(struct trace *tr)
{
    if (!mem_reserve(&tr->bound, &tr->bound_cap, tr->nbound + 1, sizeof *tr->bound))
        return false;
    if (tr->nbound < tr->index_cap / 2)
        return true;
    uint32_t cap = tr->index_cap ? 2 * tr->index_cap : 64;
    uint32_t *index = mem_alloc(cap * sizeof *index);
    if (!index)
        return false;
    mem_free(tr->index);
    tr->index = index;
    tr->index_cap = cap;
    for (uint32_t i = 0; i < tr->nbound; i++)
        trace_place(tr, i);
    return true;
}

/* Describes a handle that does not belong to this trace; false: it has ended. */
static bool describe_outside(struct entry *x, kl_tensor h, const char *what, struct view *v,
                             char name[sizeof x->name], struct err *e)
{
    if (x->kind == KIND_TEMP) { /* of a trace around a region, on this thread */
        const struct graph *g = x->trace->r.g;
        const struct node *n = node_at(g, x->node);
        *v = (struct view){n->dtype, g->shape[n->shape], entry_device(x)};
        name[0] = 0;
        return true;
    }
    front_lock();
    struct entry *again = entry_find(h, what, e); /* another thread may have released it since */
    *v = (struct view){x->dtype, x->shape, entry_device(x)};
    memcpy(name, x->name, sizeof x->name);
    front_unlock();
    return again;
}

/* The name, padded with zeros, is stored in the attributes. */
static struct node state_key(const struct view *v, const char *name)
{
    struct node key = {.op = OP_state, .dtype = (uint8_t)v->dtype, .device = (uint16_t)v->device.id};
    memcpy(&key.attr, name, strnlen(name, sizeof ((struct leaf *)0)->name - 1));
    return key;
}

static ref add_state(struct trace *tr, const struct view *v, char name[])
{
    struct graph *g = tr->r.g;
    g->cur_site = graph_site(g, tr->site);
    if (!tr->region && !name[0])
        snprintf(name, sizeof ((struct leaf *)0)->name, "s%u", g->state.n);
    ref r = (tr->region ? n_input : n_state)(g, v->dtype, &v->shape, name);
    if (r)
        g->node[r].device = (uint16_t)device_index(v->device);
    return r;
}

static ref trace_bind_input(struct trace *tr, struct entry *x, kl_tensor h, const char *what, struct err *e)
{
    if (!trace_make_room(tr)) {
        err_set(e, KL_ERR_MEMORY, "out of memory");
        return NIL;
    }
    struct view v;
    char name[sizeof x->name];
    if (!describe_outside(x, h, what, &v, name, e))
        return NIL;
    struct node key = state_key(&v, name);
    bool failed;
    const struct replay_call *made = replay_next(tr, &key, tr->site, &v.shape, NULL, &failed);
    ref r = made ? made->result : failed ? NIL : add_state(tr, &v, name);
    if (failed)
        err_set(e, KL_ERR_MEMORY, "out of memory");
    if (r == NIL)
        return NIL;
    if (!made)
        replay_add(tr, &key, &v.shape, NULL, r);
    tr->bound[tr->nbound] = (struct binding){.h = h, .entry = x, .node = r};
    trace_place(tr, tr->nbound++);
    return r;
}

/* Is it one of this thread's traces, open or suspended? */
static bool trace_is_own(const struct thread *t, const struct trace *of)
{
    const struct trace *tr = t ? t->trace : NULL;
    while (tr && tr != of)
        tr = tr->idle;
    return tr != NULL;
}

void temp_refuse(const struct entry *x, const char *what, struct err *e)
{
    err_set(e, KL_ERR_TRACE, trace_is_own(thread_self(), x->trace)
            ? "%s is of a trace or function that is suspended, and has no value before that has ended"
            : "%s belongs to a trace that is open on another thread", what);
}

ref trace_node(struct trace *tr, struct entry *x, kl_tensor h, const char *what, struct err *e)
{
    if (x->kind == KIND_TEMP && x->trace == tr)
        return x->node;
    struct binding *b = trace_binding(tr, h);
    if (b && !b->released)
        return b->node;
    if (b)
        err_set(e, KL_ERR_HANDLE, "%s is stale: it was released earlier in this trace", what);
    else if (x->kind == KIND_VALUE || (x->kind == KIND_TEMP && trace_can_read(tr->outer, x->trace)))
        return trace_bind_input(tr, x, h, what, e);
    else if (x->kind == KIND_POISON)
        *e = x->cause->err;
    else if (x->kind == KIND_WRAPPER)
        wrapper_refuse(x, what, e);
    else
        temp_refuse(x, what, e);
    return NIL;
}

/* ---- begin, drop ---- */

static void trace_open(struct thread *t, struct trace *tr)
{
    tr->poison = tr->token = kl_none;
    tr->collectives = 0;
    tr->began = span_begin();
    t->tracing = true;
    tr->floor_no_grad = t->floor.no_grad;
    t->floor.no_grad = t->no_grad;
}

/* Opens the thread's other trace, which has failed before its first call: up to its end nothing takes effect. */
static kl_status trace_refuse(struct thread *t)
{
    static struct graph none; /* of no nodes; nothing is recorded in a trace that has failed */
    struct trace *tr = t->refused;
    if (t->trace == tr) { /* in a suspension of such a trace */
        tr->refusals++;
        t->tracing = true;
        return tr->err.code;
    }
    tr->r.g = &none;
    tr->idle = t->trace;
    tr->err = t->last;
    t->trace = tr;
    trace_open(t, tr);
    return tr->err.code;
}

bool trace_is_refused(const struct thread *t) { return t->tracing && t->trace == t->refused; }

void trace_begin_without_memory(struct thread *t)
{
    report(t, KL_ERR_MEMORY, "trace_begin: out of memory");
    trace_refuse(t);
}

kl_status kl_trace_begin(const char *name)
{
    struct thread *t = thread_self();
    if (!t) {
        thread_remember_begin();
        return KL_ERR_MEMORY;
    }
    if (trace_is_refused(t))
        trace_drop(t); /* the caller has seen that it failed */
    if (region_refuses(t, "trace_begin"))
        return KL_ERR_TRACE;
    if (t->tracing)
        return fail(t, KL_ERR_TRACE, "trace_begin: trace \"%s\" is already open", t->trace->r.g->name);
    struct trace *tr = t->trace;
    if (t->suspension)
        report(t, KL_ERR_TRACE, "trace_begin: not between trace_suspend and trace_resume");
    else if (!replay_begin(tr, name && *name ? name : "trace"))
        report(t, KL_ERR_MEMORY, "trace_begin: out of memory");
    else
        return trace_open(t, tr), tr->err.code = KL_OK;
    return trace_refuse(t);
}

bool kl_tracing(void)
{
    struct thread *t = thread_self();
    return t && t->tracing;
}

void trace_error(struct thread *t)
{
    if (!t->trace->err.code) {
        t->trace->err = t->last;
        poison(t);
    }
}

void trace_end_failed(struct thread *t)
{
    for (uint32_t i = t->failed, next; i != NO_ENTRY; i = next) {
        struct entry *x = entry_at(i);
        next = x->next;
        entry_free_temp(t, x);
    }
    t->failed = NO_ENTRY;
}

/* The temporaries of a failed trace become poison with its error until another trace of the thread fails, so that
 * neither a read nor a release of them replaces that error. */
static void trace_poison_temps(struct thread *t, struct trace *tr)
{
    struct cause *c = mem_alloc(sizeof *c);
    trace_end_failed(t);
    if (!c)
        return;
    atomic_init(&c->refs, 1);
    c->err = tr->err;
    for (uint32_t *link = &tr->temps; *link != NO_ENTRY;) {
        struct entry *x = entry_at(*link);
        if (x->kind == KIND_DEAD) {
            link = &x->next;
            continue;
        }
        *link = x->next;
        entry_make_failed(x, c);
        x->next = t->failed;
        t->failed = x->index;
    }
    cause_drop(c);
}

void trace_end_temps(struct thread *t, struct trace *tr)
{
    if (tr->err.code && !tr->region)
        trace_poison_temps(t, tr);
    for (uint32_t i = tr->temps, next; i != NO_ENTRY; i = next) {
        struct entry *x = entry_at(i);
        next = x->next;
        entry_free_temp(t, x);
    }
    tr->temps = NO_ENTRY;
}

/* Ends the temporaries, and the handles that were released in the trace. */
void trace_drop(struct thread *t)
{
    struct trace *tr = t->trace;
    t->tracing = false;
    if (tr->refusals) {
        tr->refusals--;
        return;
    }
    t->no_grad = t->floor.no_grad;
    t->floor.no_grad = tr->floor_no_grad;
    trace_end_temps(t, tr);
    bool any_data = tr->r.g->input.n > 0;
    for (uint32_t i = 0; i < tr->nbound; i++)
        any_data |= tr->bound[i].released;
    if (any_data) {
        front_lock();
        recording_close(&tr->r);
        for (uint32_t i = 0; i < tr->nbound; i++)
            if (tr->bound[i].released)
                handle_end(tr->bound[i].h, DEATH_RELEASED);
        front_unlock();
    }
    if (tr->nbound)
        memset(tr->index, 0, tr->index_cap * sizeof *tr->index);
    tr->nbound = tr->nkeep = 0;
    if (tr == t->refused) {
        t->trace = tr->idle;
        tr->r.g = NULL;
    }
}

void kl_trace_abandon(void)
{
    struct thread *t = thread_self();
    if (!t)
        return;
    regions_leave(t, __builtin_frame_address(0));
    if (trace_is_refused(t))
        trace_drop(t);
    if (t->trace->region) {
        fail(t, KL_ERR_TRACE, "trace_abandon: not inside of a function that %s records", t->trace->region);
        return;
    }
    blocks_resume(t);
    if (t->tracing)
        trace_drop(t);
    t->site = NULL; /* longjmp may have left the call that had set it */
}

void trace_free(struct trace *tr)
{
    if (!tr)
        return;
    if (tr->logs || tr->log)
        tr->r.g = NULL;
    if (tr->region)
        replay_body_drop(tr->log);
    replay_free_all(tr);
    recording_free(&tr->r);
    mem_free(tr->bound);
    mem_free(tr->index);
    mem_free(tr->keep);
    mem_free(tr->launch.out);
    mem_free(tr->launch.exclusive);
    mem_free(tr->launch.state);
    mem_free(tr->kept);
    mem_free(tr->output);
    mem_free(tr->extra);
    mem_free(tr);
}

/* ---- end ---- */

/* First the kept temporaries, in the order of kl_keep, then the assigned states by ordinal, then the last token. */
static bool list_outputs(struct trace *tr, uint32_t *nout)
{
    if (!mem_reserve(&tr->output, &tr->output_cap, tr->nkeep + tr->nbound + 1, sizeof *tr->output))
        return false;
    uint32_t n = 0;
    for (uint32_t i = 0; i < tr->nkeep; i++) {
        struct err e;
        e.code = KL_OK;
        struct entry *x = entry_find(tr->keep[i], "", &e);
        if (!x)
            continue; /* released after it was kept */
        tr->keep[n] = tr->keep[i];
        tr->output[n++] = (struct output){.kind = OUT_RETURN, .value = x->node};
    }
    tr->nkeep = n;
    for (uint32_t i = 0; i < tr->nbound; i++)
        if (tr->bound[i].assigned)
            tr->output[n++] = (struct output){.kind = OUT_ASSIGN, .value = tr->bound[i].node, .state = i};
    if (tr->token.id)
        tr->output[n++] = (struct output){.kind = OUT_RETURN, .value = entry_at((uint32_t)tr->token.id)->node};
    *nout = n;
    return true;
}

static bool add_outputs(struct graph *g, const struct output *out, uint32_t nout)
{
    for (uint32_t i = 0; i < nout; i++)
        if (!graph_output(g, out[i].kind, out[i].value, out[i].state))
            return false;
    return true;
}

/* Makes the values that nothing reads outputs. */
static bool add_unread(struct graph *g)
{
    bool *read = mem_alloc(g->nnode * sizeof *read);
    for (ref r = 1; read && r < g->nnode; r++)
        for (unsigned i = 0; i < node_nin(node_at(g, r)); i++)
            read[node_in(g, node_at(g, r), i)] = true;
    for (ref r = 1; read && r < g->nnode; r++)
        if (!read[r] && !op_is_leaf(g->node[r].op) && !op_is_region(g->node[r].op))
            graph_output(g, OUT_RETURN, r, 0);
    bool ok = read && !g->err.code;
    mem_free(read);
    return ok;
}

struct graph *trace_so_far(struct trace *tr, struct err *e)
{
    const struct graph *from = tr->r.g;
    ref last = from->nnode - 1;
    if (tr->replaying)
        last = tr->at ? tr->log->call[tr->at - 1].result : NIL;
    uint32_t nout;
    struct graph *g = list_outputs(tr, &nout) ? graph_clone_beginning(from, last + 1, 0) : NULL;
    if (g && (nout ? add_outputs(g, tr->output, nout) : add_unread(g)))
        return g;
    graph_free(g);
    err_set(e, KL_ERR_MEMORY, "out of memory");
    return NULL;
}

const struct graph *trace_graph(struct trace *tr, bool *known, struct err *e)
{
    bool failed = false;
    uint32_t nout;
    *known = false;
    if (!list_outputs(tr, &nout)) {
        err_set(e, KL_ERR_MEMORY, "out of memory");
        return NULL;
    }
    *known = replay_complete(tr, tr->output, nout, &failed);
    struct graph *g = tr->r.g;
    if (failed)
        err_set(e, KL_ERR_MEMORY, "out of memory");
    else if (!*known && (!add_outputs(g, tr->output, nout) || g->err.code))
        err_set(e, g->err.code, "%s", g->err.msg);
    return e->code || !nout ? NULL : g;
}

/* The program of its log, unless something new was recorded. */
const struct exec *trace_program(struct trace *tr, bool frozen, struct err *e)
{
    bool known, fuse = option_fuse();
    uint64_t schedules = schedules_number();
    const struct graph *g = trace_graph(tr, &known, e);
    if (!g)
        return NULL;
    for (uint32_t i = 0; i < g->nout; i++)
        if (node_at(g, g->out[i].value)->device == DEVICE_META) {
            err_set(e, KL_ERR_DEVICE, "what is on device meta cannot run");
            return NULL;
        }
    if (known)
        atomic_fetch_add_explicit(&counters.replays, 1, memory_order_relaxed);
    struct graph *merged = frozen ? step_merge_numbers(tr) : NULL;
    if (merged) {
        const struct exec *x = exec_get(merged, (int)graph_device(g), fuse, e);
        if (x && !known) {
            gradients_warn(g);
            replay_end(tr, NULL, fuse, schedules);
        }
        graph_free(merged);
        return x;
    }
    if (known && tr->log->fuse == fuse && tr->log->schedules == schedules && exec_try_ref(tr->log->exec)) {
        atomic_fetch_add_explicit(&counters.program_hits, 1, memory_order_relaxed);
        return option_tune() ? tune_repeated(tr->log->exec) : tr->log->exec;
    }
    const struct exec *x = exec_get(g, (int)graph_device(g), fuse, e);
    if (x && !known)
        gradients_warn(g);
    if (x)
        replay_end(tr, x, fuse, schedules);
    return x;
}

/* Allocates for the run, with the kept tensors in the order of the outputs; false: out of memory. */
static bool make_launch(struct trace *tr)
{
    struct launch *l = &tr->launch;
    const struct graph *g = tr->r.g;
    if (!mem_reserve(&l->exclusive, &tr->exclusive_cap, tr->nbound, sizeof *l->exclusive) ||
        !mem_reserve(&l->state, &tr->state_cap, tr->nbound, sizeof *l->state) ||
        !mem_reserve(&l->out, &tr->out_cap, g->nout, sizeof *l->out) ||
        !mem_reserve(&tr->kept, &tr->kept_cap, tr->nkeep, sizeof *tr->kept))
        return false;
    l->g = g;
    l->bound = tr->bound;
    l->nbound = tr->nbound;
    l->nkept = tr->nkeep;
    for (uint32_t i = 0; i < tr->nkeep; i++)
        tr->kept[i] = entry_at((uint32_t)tr->keep[i].id);
    return true;
}

/* Removes temporaries that became values from the list. */
static void unlink_values(struct trace *tr)
{
    uint32_t *link = &tr->temps;
    while (*link != NO_ENTRY) {
        struct entry *x = entry_at(*link);
        if (x->kind == KIND_VALUE || (x->kind == KIND_WRAPPER && x->kept)) {
            *link = x->next;
            x->node = NIL;
            x->trace = NULL;
            x->kept = false;
            x->next = x->prev = NO_ENTRY;
        } else {
            link = &x->next;
        }
    }
}

static void forget_miss(struct thread *t)
{
    mem_free(t->miss);
    t->miss = NULL;
}

/* Why a program had to be built. */
static char *miss_of(const struct exec *of, const struct exec *x, const uint64_t *slot)
{
    char why[512];
    exec_pick_why(of, slot, why, sizeof why);
    size_t n = strlen(why), size = n + strlen(x->miss ? x->miss : "") + 1;
    char *text = x->miss || n ? mem_alloc(size) : NULL;
    if (text) snprintf(text, size, "%s%s", why, x->miss ? x->miss : "");
    return text;
}

/* x ran, the program of `of` for the values of its symbols. */
static void note_run(struct thread *t, const struct exec *of, const struct exec *x, uint64_t graphs, uint64_t compiles)
{
    const struct program *p = exec_latest(x)->program;
    t->info = (kl_run_info){.nodes = t->trace->r.g->nnode - 1, .arena_bytes = program_arenas(p),
                            .peak_bytes = p->peak_bytes,
                            .lower_bound_bytes = p->lower_bound_bytes,
                            .graphs_built = (int64_t)(atomic_load(&counters.graphs_built) - graphs),
                            .compiles = (int64_t)(atomic_load(&counters.compiles) - compiles),
                            .graph_order = !x->accelerated || x->graph_order};
    for (uint32_t i = 0; i < p->ncmd; i++)
        t->info.kernels += p->cmd[i].kind == CMD_KERNEL;
    t->has_info = true;
    forget_miss(t);
    if (t->info.graphs_built)
        t->miss = miss_of(of, x, t->trace->r.slot);
}

/* The number of outputs that are on device meta, or are not. */
static uint32_t outputs_on(const struct trace *tr, bool meta)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < tr->nkeep; i++)
        n += (entry_peek(tr->keep[i]) ? entry_peek(tr->keep[i])->device == DEVICE_META : !meta) == meta;
    for (uint32_t i = 0; i < tr->nbound; i++)
        n += tr->bound[i].assigned && (tr->bound[i].entry->device == DEVICE_META) == meta;
    return n;
}

/* Room for the run, and the values of its symbols. */
static bool trace_prepare_run(struct trace *tr, struct err *e)
{
    const struct graph *g = tr->r.g;
    uint32_t numbers = g->slot.n + (g->symbols ? g->symbols->n : 0);
    bool room = make_launch(tr) && mem_reserve(&tr->r.slot, &tr->r.slot_cap, numbers, sizeof *tr->r.slot) &&
                (!g->symbols || mem_reserve(&tr->r.length, &tr->r.length_cap, g->slot.n, sizeof *tr->r.length));
    if (!room)
        return err_set(e, KL_ERR_MEMORY, "out of memory");
    tr->launch.slot = tr->r.slot;
    return !g->symbols || symbolic_values(g, tr->r.actual, tr->r.length, tr->r.slot, e);
}

/* Tensors on device meta have only a shape: nothing is built or run. */
static bool dry_run(struct thread *t, struct err *e)
{
    struct trace *tr = t->trace;
    struct launch *l = &tr->launch;
    bool known, ok = !outputs_on(tr, false);
    if (!ok)
        return err_set(e, KL_ERR_DEVICE, "it keeps or assigns some values on device meta and some that are not");
    const struct graph *g = trace_graph(tr, &known, e);
    if (!g)
        return err_set(e, KL_ERR_MEMORY, "out of memory");
    if (!trace_prepare_run(tr, e))
        return false;
    front_lock();
    ok = launch_take(l, e);
    if (!ok) {
        front_unlock();
        return false;
    }
    uint32_t n = 0;
    while (ok && n < g->nout)
        ok = (l->out[n++] = meta_value(e)) != NULL;
    for (uint32_t i = 0; i < n && !ok; i++)
        front_drop(l->out[i]);
    if (ok) {
        launch_commit(l, tr->kept);
        unlink_values(tr);
    }
    launch_unmark(l);
    front_unlock();
    launch_drop(l);
    t->info = (kl_run_info){.nodes = g->nnode - 1};
    t->has_info = true;
    forget_miss(t);
    return ok;
}

static bool run_with(struct thread *t, const struct exec *x, struct err *e)
{
    struct trace *tr = t->trace;
    struct launch *l = &tr->launch;
    front_lock();
    bool ok = launch_take(l, e);
    front_unlock();
    if (!ok)
        return false;
    ok = exec_run_checked(x, tr->r.g, tr->r.input, l->state, l->exclusive, tr->r.slot, l->out, e);
    if (!ok)
        custom_locate(tr->r.g, e);
    front_lock();
    if (ok) {
        launch_commit(l, tr->kept);
        unlink_values(tr);
    }
    launch_unmark(l);
    front_unlock();
    launch_drop(l);
    return ok;
}

static bool trace_run(struct thread *t, struct err *e)
{
    struct trace *tr = t->trace;
    if (outputs_on(tr, true))
        return dry_run(t, e);
    uint64_t graphs = atomic_load(&counters.graphs_built), compiles = atomic_load(&counters.compiles);
    const struct exec *x = trace_program(tr, false, e);
    if (!x && e->code)
        custom_locate(tr->r.g, e);
    if (!x && !e->code && strcmp(t->empty, tr->r.g->name)) {
        snprintf(t->empty, sizeof t->empty, "%s", tr->r.g->name); /* once, not in every step */
        log_put(KL_LOG_WARN,
                "trace_end: trace \"%s\" keeps and assigns nothing, so nothing was run: kl_keep keeps a value",
                    tr->r.g->name);
    }
    if (!x)
        return !e->code;
    bool ok = trace_prepare_run(tr, e);
    const struct exec *now = ok ? exec_pick(x, tr->r.slot, e) : NULL;
    ok = now && run_with(t, now, e);
    if (ok)
        note_run(t, x, now, graphs, compiles);
    exec_unref(now);
    exec_unref(x);
    return ok;
}

kl_status kl_trace_end(void)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (region_refuses(t, "trace_end"))
        return KL_ERR_TRACE;
    if (!t->tracing)
        return report(t, KL_ERR_TRACE, "trace_end: no trace is open");
    struct trace *tr = t->trace;
    struct err e;
    e.code = KL_OK;
    kl_status status = tr->err.code;
    span_end(SPAN_RECORD, tr->r.g->name, tr->began);
    int64_t began = span_begin();
    if (status)
        t->last = tr->err;
    else if (!trace_run(t, &e))
        status = report(t, e.code, "trace_end: trace \"%s\": %s", tr->r.g->name, e.msg);
    if (status)
        tr->err = t->last;
    span_end(SPAN_STEP, tr->r.g->name, began);
    trace_drop(t);
    return status;
}

const char *kl_trace_miss(void)
{
    struct thread *t = thread_self();
    return t && t->miss ? t->miss : "";
}

kl_status kl_trace_info(kl_run_info *info)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (!info)
        return report(t, KL_ERR_ARGUMENT, "trace_info: info is NULL");
    if (!t->has_info)
        return report(t, KL_ERR_TRACE, "trace_info: no trace has run on this thread");
    *info = t->info;
    return KL_OK;
}
