/* Traces: what a thread records between begin and end, run as one program.
 *
 * An outside handle becomes a state of the graph at its first use and is bound there to the node it means;
 * assigning binds it to another.  At the end the last version of each assigned state is an output, as is each
 * kept temporary.  Everything that can fail comes before the program's first write, so a failed trace changes
 * nothing. */
#include "frontend.h"
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

static void place(struct trace *tr, uint32_t at)
{
    uint32_t i = hash_index((uint32_t)tr->bound[at].h.id);
    while (tr->index[i & (tr->index_cap - 1)])
        i++;
    tr->index[i & (tr->index_cap - 1)] = at + 1;
}

/* Room for one more binding; the index is kept at most half full. */
static bool make_room(struct trace *tr)
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
        place(tr, i);
    return true;
}

/* What a handle that is not of this trace is; false: it is no more. */
static bool look_from_outside(struct entry *x, kl_tensor h, const char *what, struct view *v,
                              char name[sizeof x->name], struct err *e)
{
    if (x->kind == KIND_TEMP) { /* of a trace around a region: this thread's own */
        const struct graph *g = x->trace->r.g;
        const struct node *n = node_at(g, x->node);
        *v = (struct view){n->dtype, g->shape[n->shape], device_of(n->device)};
        name[0] = 0;
        return true;
    }
    front_lock();
    struct entry *again = entry_find(h, what, e); /* another thread may have released it just now */
    *v = (struct view){x->dtype, x->shape, device_of(x->device)};
    memcpy(name, x->name, sizeof x->name);
    front_unlock();
    return again;
}

/* The name, padded with zeros, is where a node has its attributes. */
static struct node state_key(const struct view *v, const char *name)
{
    struct node key = {.op = OP_state, .dtype = (uint8_t)v->dtype, .device = (uint16_t)v->device.id};
    memcpy(&key.attr, name, strlen(name));
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

static ref bind(struct trace *tr, struct entry *x, kl_tensor h, const char *what, struct err *e)
{
    if (!make_room(tr)) {
        err_set(e, KL_ERR_MEMORY, "out of memory");
        return NIL;
    }
    struct view v;
    char name[sizeof x->name];
    if (!look_from_outside(x, h, what, &v, name, e))
        return NIL;
    struct node key = state_key(&v, name);
    bool failed;
    const struct tape_call *made = tape_next(tr, &key, tr->site, &v.shape, &failed);
    ref r = made ? made->result : failed ? NIL : add_state(tr, &v, name);
    if (failed)
        err_set(e, KL_ERR_MEMORY, "out of memory");
    if (r == NIL)
        return NIL;
    if (!made)
        tape_add(tr, &key, &v.shape, r);
    tr->bound[tr->nbound] = (struct binding){.h = h, .node = r};
    place(tr, tr->nbound++);
    return r;
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
    else if (x->kind == KIND_VALUE || (x->kind == KIND_TEMP && trace_sees(tr->outer, x->trace)))
        return bind(tr, x, h, what, e);
    else if (x->kind == KIND_POISON)
        *e = x->cause->err;
    else
        err_set(e, KL_ERR_TRACE, "%s belongs to a trace that is open on another thread", what);
    return NIL;
}

/* ---- begin, drop ---- */

static struct trace *trace_of(struct thread *t)
{
    if (!t->trace && (t->trace = mem_alloc(sizeof *t->trace)))
        t->trace->temps = NO_ENTRY;
    return t->trace;
}

kl_status kl_trace_begin_at(const kl_site *site, const char *name)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (region_refuses(t, site, "trace_begin"))
        return KL_ERR_TRACE;
    if (t->tracing)
        return fail(t, site, KL_ERR_TRACE, "trace_begin: trace \"%s\" is already open", t->trace->r.g->name);
    struct trace *tr = trace_of(t);
    if (!tr || !tape_begin(tr, name && *name ? name : "trace"))
        return report(t, site, KL_ERR_MEMORY, "trace_begin: out of memory");
    tr->err.code = KL_OK;
    tr->poison = kl_none;
    t->tracing = true;
    t->outer_no_grad = t->no_grad;
    return KL_OK;
}

kl_status kl_trace_begin(const char *name)
{
    return kl_trace_begin_at(NULL, name);
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

void trace_end_temps(struct thread *t, struct trace *tr)
{
    for (uint32_t i = tr->temps, next; i != NO_ENTRY; i = next) {
        struct entry *x = entry_at(i);
        next = x->next;
        entry_free_temp(t, x);
    }
    tr->temps = NO_ENTRY;
}

/* The end of every trace, run or not: temporaries go, what was released in it goes too. */
static void close_trace(struct thread *t)
{
    struct trace *tr = t->trace;
    t->tracing = false;
    t->no_grad = t->outer_no_grad;
    t->outer_no_grad = 0;
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
}

void trace_drop(struct thread *t)
{
    close_trace(t);
}

void kl_trace_abandon(void)
{
    struct thread *t = thread_self();
    if (t && t->tracing && !region_refuses(t, NULL, "trace_abandon"))
        close_trace(t);
}

void trace_free(struct trace *tr)
{
    if (!tr)
        return;
    if (tr->tapes)
        tr->r.g = NULL;
    tape_free_all(tr);
    recording_free(&tr->r);
    mem_free(tr->bound);
    mem_free(tr->index);
    mem_free(tr->keep);
    mem_free(tr->out);
    mem_free(tr->exclusive);
    mem_free(tr->state);
    mem_free(tr->output);
    mem_free(tr);
}

/* ---- end ---- */

/* Temporaries that are kept come first, in the order of kl_keep, then the assigned states by ordinal. */
static bool list_outputs(struct trace *tr, uint32_t *nout)
{
    if (!mem_reserve(&tr->output, &tr->output_cap, tr->nkeep + tr->nbound, sizeof *tr->output))
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
    *nout = n;
    return true;
}

static bool add_outputs(struct trace *tr, uint32_t nout)
{
    for (uint32_t i = 0; i < nout; i++)
        if (!graph_output(tr->r.g, tr->output[i].kind, tr->output[i].value, tr->output[i].state))
            return false;
    return true;
}

/* What runs the trace: that of its tape, unless something is new.  NULL: *e, or there is nothing to run. */
static const struct exec *find_exec(struct trace *tr, struct err *e)
{
    bool failed = false, fuse = option_fuse();
    uint32_t nout;
    if (!list_outputs(tr, &nout)) {
        err_set(e, KL_ERR_MEMORY, "out of memory");
        return NULL;
    }
    if (tape_complete(tr, tr->output, nout, &failed) && tr->tape->fuse == fuse)
        return tr->tape->exec;
    struct graph *g = tr->r.g;
    if (failed) {
        err_set(e, KL_ERR_MEMORY, "out of memory");
    } else if (!tr->replaying && (!add_outputs(tr, nout) || g->err.code)) {
        err_set(e, g->err.code, "%s", g->err.msg);
    } else if (nout) {
        const struct exec *x = exec_get(g, (int)graph_device(g), fuse, e);
        if (x)
            tape_end(tr, x, fuse);
        return x;
    }
    return NULL;
}

/* Looks up a state at the end of its trace; needs the lock. */
static struct entry *state_entry(struct trace *tr, uint32_t i, struct err *e)
{
    struct entry *x = entry_find(tr->bound[i].h, "", e);
    if (!x) {
        e->code = KL_OK;
        err_set(e, KL_ERR_HANDLE, "state \"%s\" was released by another thread", tr->r.g->state.v[i].name);
    }
    return x;
}

/* Every state has a value, and none is being written to; needs the lock, which it may let go of meanwhile. */
static bool settle_states(struct trace *tr, struct err *e)
{
    for (uint32_t i = 0; i < tr->nbound;) {
        struct entry *x = state_entry(tr, i, e);
        if (!x)
            return false;
        if (!x->buffer) {
            /* One program computes all that are lazy; the rest of h is skipped. */
            kl_tensor *h = mem_alloc(tr->nbound * sizeof *h);
            for (uint32_t j = 0; h && j < tr->nbound; j++)
                h[j] = tr->bound[j].h;
            bool ok = h ? ambient_compute(h, tr->nbound, e) : err_set(e, KL_ERR_MEMORY, "out of memory");
            mem_free(h);
            if (!ok)
                return false;
            i = 0;
        } else if (x->busy) {
            front_wait();
            i = 0;
        } else {
            i++;
        }
    }
    return true;
}

static bool may_overwrite(const struct buffer *b)
{
    return buffer_exclusive(b) && !b->release; /* never the user's own memory */
}

/* Takes hold of the states' buffers; those to be assigned are closed to others until release_states.  Needs the
 * lock.  Old versions that only unreachable lazy nodes hold are let go of first, so that updates stay in place. */
static bool take_states(struct trace *tr, struct err *e)
{
    if (!mem_reserve(&tr->exclusive, &tr->exclusive_cap, tr->nbound, sizeof *tr->exclusive) ||
        !mem_reserve(&tr->state, &tr->state_cap, tr->nbound, sizeof *tr->state) ||
        !mem_reserve(&tr->out, &tr->out_cap, tr->r.g->nout, sizeof *tr->out))
        return err_set(e, KL_ERR_MEMORY, "out of memory");
    if (!settle_states(tr, e))
        return false;
    bool shared = false;
    for (uint32_t i = 0; i < tr->nbound; i++)
        shared |= tr->bound[i].assigned && !buffer_exclusive(entry_at((uint32_t)tr->bound[i].h.id)->buffer);
    if (shared)
        ambient_collect();
    for (uint32_t i = 0; i < tr->nbound; i++) {
        struct binding *b = &tr->bound[i];
        struct entry *x = entry_at((uint32_t)b->h.id);
        tr->exclusive[i] = b->assigned && may_overwrite(x->buffer);
        tr->state[i] = b->buffer = buffer_ref(x->buffer);
        x->busy = b->assigned;
    }
    return true;
}

static void release_states(struct trace *tr)
{
    bool any = false;
    for (uint32_t i = 0; i < tr->nbound; i++) {
        struct binding *b = &tr->bound[i];
        front_drop(b->buffer);
        b->buffer = NULL;
        if (b->assigned)
            entry_at((uint32_t)b->h.id)->busy = false, any = true;
    }
    if (any)
        front_wake();
}

/* Kept temporaries become values, states get theirs; needs the lock. */
static void commit(struct trace *tr)
{
    const struct graph *g = tr->r.g;
    for (uint32_t i = 0; i < g->nout; i++) {
        const struct output *o = &g->out[i];
        struct entry *x;
        if (o->kind == OUT_ASSIGN) {
            x = entry_at((uint32_t)tr->bound[o->state].h.id);
            ambient_unbind(x); /* what is recorded lazily keeps the old version */
            front_drop(x->buffer);
            x->version++;
        } else {
            const struct node *n = node_at(g, o->value);
            x = entry_at((uint32_t)tr->keep[i].id);
            x->dtype = n->dtype;
            x->shape = g->shape[n->shape];
            x->node = NIL;
            x->trace = NULL;
            x->kept = false;
            x->prev = NO_ENTRY;
            x->kind = KIND_VALUE;
        }
        x->buffer = tr->out[i];
    }
}

/* Takes what has become a value off the list of temporaries. */
static void unlink_values(struct trace *tr)
{
    uint32_t *link = &tr->temps;
    while (*link != NO_ENTRY) {
        struct entry *x = entry_at(*link);
        if (x->kind == KIND_VALUE) {
            *link = x->next;
            x->next = NO_ENTRY;
        } else {
            link = &x->next;
        }
    }
}

static void note_run(struct thread *t, const struct exec *x, uint64_t graphs, uint64_t compiles)
{
    const struct program *p = x->program;
    t->info = (kl_run_info){.nodes = t->trace->r.g->nnode - 1, .arena_bytes = program_arenas(p), .peak_bytes = p->peak_bytes,
                            .lower_bound_bytes = p->lower_bound_bytes,
                            .graphs_built = (int64_t)(atomic_load(&counters.graphs_built) - graphs),
                            .compiles = (int64_t)(atomic_load(&counters.compiles) - compiles)};
    for (uint32_t i = 0; i < p->ncmd; i++)
        t->info.kernels += p->cmd[i].kind == CMD_KERNEL;
    t->has_info = true;
}

static bool run(struct thread *t, struct err *e)
{
    struct trace *tr = t->trace;
    uint64_t graphs = atomic_load(&counters.graphs_built), compiles = atomic_load(&counters.compiles);
    const struct exec *x = find_exec(tr, e);
    if (!x)
        return !e->code;
    front_lock();
    bool ok = take_states(tr, e);
    front_unlock();
    if (!ok)
        return false;
    ok = exec_run(x, tr->r.input, tr->state, tr->exclusive, tr->r.slot, tr->out, e);
    front_lock();
    if (ok)
        commit(tr);
    release_states(tr);
    front_unlock();
    if (ok) {
        unlink_values(tr);
        note_run(t, x, graphs, compiles);
    }
    return ok;
}

kl_status kl_trace_end_at(const kl_site *site)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (region_refuses(t, site, "trace_end"))
        return KL_ERR_TRACE;
    if (!t->tracing)
        return report(t, site, KL_ERR_TRACE, "trace_end: no trace is open");
    struct trace *tr = t->trace;
    struct err e;
    e.code = KL_OK;
    kl_status status = tr->err.code;
    if (status)
        t->last = tr->err;
    else if (!run(t, &e))
        status = report(t, site, e.code, "trace_end: trace \"%s\": %s", tr->r.g->name, e.msg);
    close_trace(t);
    return status;
}

kl_status kl_trace_end(void)
{
    return kl_trace_end_at(NULL);
}

kl_status kl_trace_info(kl_run_info *info)
{
    struct thread *t = thread_self();
    if (!t || !info)
        return KL_ERR_ARGUMENT;
    if (!t->has_info)
        return report(t, NULL, KL_ERR_TRACE, "trace_info: no trace has run on this thread");
    *info = t->info;
    return KL_OK;
}
