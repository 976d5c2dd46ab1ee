/* Records regions from the user's functions.
 *
 * While such a function runs, the thread records into a separate trace.  Everything from outside becomes an input of
 * the region's graph: tensors by a binding, like the states of a trace; data and runtime scalars, which a region cannot
 * contain, are recorded in the enclosing trace first. */
#include "frontend/frontend.h"
#include <string.h>

static bool list_add(struct handle_list *l, kl_tensor h)
{
    if (!mem_reserve(&l->h, &l->cap, l->n + 1, sizeof *l->h))
        return false;
    l->h[l->n++] = h;
    return true;
}

void region_recorder_free(struct region_recorder *c)
{
    if (c->made.n) {
        front_lock();
        for (uint32_t i = 0; i < c->made.n; i++)
            handle_end(c->made.h[i], DEATH_RELEASED);
        front_unlock();
    }
    mem_free(c->captured.h);
    mem_free(c->made.h);
    graph_free(c->empty); /* set if there was no memory for a region */
}

bool region_refuses(struct thread *t, const char *op)
{
    if (!t->tracing || !t->trace->region)
        return false;
    fail(t, KL_ERR_TRACE, "%s: not inside of a function that %s records", op, t->trace->region);
    return true;
}

/* ---- entering and leaving the region's trace ---- */

/* Lengths of a region are those of the trace around it: both graphs have one table of symbols.  Recording a leaf there
 * may have exchanged its graph.  Memory that runs out is an error of the region's graph. */
static void share_symbols(struct trace *tr)
{
    const struct graph *around = tr->outer ? tr->outer->r.g : NULL;
    if (!around || tr->r.g->symbols == around->symbols)
        return;
    if (tr->replaying && !replay_leave(tr)) {
        err_set(&tr->r.g->err, KL_ERR_MEMORY, "out of memory");
        return;
    }
    if (tr->log && tr->r.g->symbols)
        tr->log->partial = true; /* its calls have lengths of the other table */
    graph_move_symbols(tr->r.g, around);
}

static void record_region_enter(struct thread *t, struct trace *tr)
{
    tr->outer = thread_trace(t);
    tr->idle = t->trace;
    t->trace = tr;
    t->tracing = true;
    share_symbols(tr);
}

static void record_region_leave(struct thread *t, const struct trace *tr)
{
    t->trace = tr->idle;
    t->tracing = tr->outer != NULL;
}

kl_tensor region_leaf(struct thread *t, struct call *c)
{
    struct trace *tr = t->trace;
    struct err e;
    e.code = KL_OK;
    record_region_leave(t, tr);
    kl_tensor h = record(c);
    record_region_enter(t, tr);
    c->data = NULL;
    struct entry *x = entry_find(h, "the data", &e);
    if (x && x->kind != KIND_POISON) {
        bool noted = tr->outer || list_add(&tr->frame.made, h);
        ref r = noted ? trace_node(tr, x, h, "the data", &e) : NIL;
        kl_tensor inside = r ? handle_of_node(t, tr, r, x->ad, &e) : kl_none;
        if (inside.id)
            return inside;
        return refuse(t, e.code ? e.code : KL_ERR_MEMORY, "%s: %s", c->op, e.code ? e.msg : "out of memory");
    }
    trace_error(t); /* sets the thread's last error */
    if (x && !tr->outer)
        kl_release(h);
    return tr->poison;
}

/* ---- tokens ---- */

static bool record_region_no_memory(struct region_recorder *c)
{
    return fail(c->t, KL_ERR_MEMORY, "%s: out of memory", c->op) == KL_OK;
}

static kl_tensor token_on(struct thread *t, kl_tensor token, kl_device d)
{
    struct view v;
    if (!describe(t, "token", "the token", token, &v))
        return kl_none;
    entry_peek(token)->ad = device_ad(d); /* it has the same autodiff device as x */
    v.device = entry_device(entry_peek(token));
    token = v.device.id == d.id ? token : kl_to(token, d);
    return t->trace->err.code ? kl_none : token;
}

/* The open trace's token on d; it is made if there is none. */
static kl_tensor token_here(struct thread *t, kl_device d)
{
    struct trace *tr = t->trace;
    if (!tr->token.id && tr->outer) {
        record_region_leave(t, tr);
        tr->entry = token_here(t, d);
        record_region_enter(t, tr);
        tr->token = tr->entry;
        if (!tr->entry.id)
            trace_error(t);
    } else if (!tr->token.id) {
        tr->token = kl_zeros(d, KL_U8, 0, NULL);
    }
    if (!tr->err.code)
        tr->token = token_on(t, tr->token, d);
    return tr->err.code ? kl_none : tr->token;
}

kl_tensor region_token(struct thread *t, kl_device d)
{
    return t->trace->token.id || t->trace->outer ? token_here(t, d) : kl_none;
}

/* The region's last token, on the op's device. */
static bool end_tokens(struct region_recorder *c, struct trace *tr, struct region *out)
{
    struct view v;
    struct err e;
    e.code = KL_OK;
    out->token = NIL;
    if (tr->entry.id)
        c->entry = tr->entry;
    if (!tr->token.id || tr->token.id == c->entry.id)
        return true;
    if (!describe(c->t, c->op, "the token", c->entry, &v))
        return false;
    kl_tensor last = token_on(c->t, tr->token, v.device);
    out->token = last.id ? node_of_handle(tr, last, "the token", &e) : NIL;
    return out->token || (tr->err.code ? false : record_region_no_memory(c));
}

/* ---- one function ---- */

/* The node of a parameter; NIL: out of memory. */
static ref add_parameter(struct region_recorder *c, struct trace *tr, const struct view *v)
{
    struct node key = {.op = OP_input, .dtype = (uint8_t)v->dtype, .device = (uint16_t)c->device.id};
    bool failed;
    const struct replay_call *made = replay_next(tr, &key, NULL, &v->shape, NULL, &failed);
    if (made || failed)
        return made ? made->result : NIL;
    ref r = n_input(tr->r.g, v->dtype, &v->shape, "");
    if (r) {
        tr->r.g->node[r].device = (uint16_t)device_index(c->device);
        replay_add(tr, &key, &v->shape, NULL, r);
    }
    return r;
}

static bool add_parameters(struct region_recorder *c, struct trace *tr, const struct view *parameter, uint32_t n,
                           kl_tensor *in)
{
    struct err e;
    e.code = KL_OK;
    for (uint32_t i = 0; i < n; i++) {
        ref r = add_parameter(c, tr, &parameter[i]);
        in[i] = r ? handle_of_node(c->t, tr, r, device_ad(c->device), &e) : kl_none;
        if (!in[i].id)
            return false;
    }
    /* tensors that an earlier region of the op captured: at the same positions */
    for (uint32_t i = 0; i < c->captured.n; i++) {
        struct entry *x = entry_find(c->captured.h[i], "a tensor", &e);
        if (!x || !trace_node(tr, x, c->captured.h[i], "a tensor", &e))
            return false;
    }
    return true;
}

/* Makes the results the region's outputs, unless they equal those of its log. */
static bool end_graph(struct region_recorder *c, struct trace *tr, uint32_t n)
{
    bool failed;
    if (replay_complete(tr, tr->output, n, &failed))
        return true;
    for (uint32_t i = 0; i < n && !failed; i++)
        failed = !graph_output(tr->r.g, OUT_RETURN, tr->output[i].value, 0);
    return !failed || record_region_no_memory(c);
}

static bool add_results(struct region_recorder *c, struct trace *tr, const char *name, const kl_tensor *out, uint32_t n)
{
    if (!mem_reserve(&tr->output, &tr->output_cap, n, sizeof *tr->output))
        return record_region_no_memory(c);
    for (uint32_t i = 0; i < n; i++) {
        struct err e;
        char what[32];
        e.code = KL_OK;
        snprintf(what, sizeof what, "result %u", i);
        if (!out[i].id)
            return fail(c->t, KL_ERR_ARGUMENT, "%s: %s of %s was not set", c->op, what, name) == KL_OK;
        ref r = node_of_handle(tr, out[i], what, &e);
        kl_device device = r ? entry_device(entry_peek(out[i])) : c->device;
        if (!c->device.id)
            c->device = device;
        if (r && device.id != c->device.id)
            return fail(c->t, KL_ERR_DEVICE, "%s: %s of %s is on device %s, the op on %s", c->op, what, name,
                        kl_device_name(device), kl_device_name(c->device)) == KL_OK;
        if (!r && !e.code)
            take_graph_error(tr->r.g, "", &e);
        if (!r)
            return fail(c->t, e.code ? e.code : KL_ERR_MEMORY, "%s: %s: %s", c->op, name,
                        e.code ? e.msg : "out of memory") == KL_OK;
        tr->output[i] = (struct output){.kind = OUT_RETURN, .value = r};
    }
    return end_graph(c, tr, n);
}

static bool record_region_body(struct region_recorder *c, struct trace *tr, const char *name, kl_region_fn *fn,
                               const kl_tensor *in,
                 uint32_t nin, kl_tensor *out, uint32_t nout, struct region *region)
{
    kl_status status = fn(c->ctx, in, nin, out, nout);
    const char *open = blocks_end_open(c->t);
    if (status && !tr->err.code)
        fail(c->t, status, "%s: %s failed: %s", c->op, name, status_name(status));
    if (open && !status)
        fail(c->t, KL_ERR_TRACE, "%s: %s returned without %s", c->op, name, open);
    if (tr->err.code || !end_tokens(c, tr, region) || !add_results(c, tr, name, out, nout))
        return false;
    for (uint32_t i = c->captured.n; i < tr->nbound; i++)
        if (!list_add(&c->captured, tr->bound[i].h))
            return record_region_no_memory(c);
    return true;
}

/* Ends the region's trace; returns its recording, or passes its error to the enclosing one. */
static bool record_region_finish(struct region_recorder *c, struct trace *tr, bool ok, struct region *out)
{
    struct thread *t = c->t;
    trace_end_temps(t, tr);
    record_region_leave(t, tr);
    if (ok) {
        if (!tr->replaying)
            tr->r.g->cur_site = 0;
        out->g = tr->log ? NULL : tr->r.g;
        out->body = tr->log;
        tr->log = NULL;
        tr->r.g = NULL;
    } else {
        t->last = tr->err;
        if (t->tracing)
            trace_error(t);
    }
    trace_free(tr);
    return ok;
}

/* Number of open nested regions; regions of ops and those of kl_vmap are counted separately. */
static unsigned regions_open(const struct thread *t, bool batched)
{
    unsigned n = 0;
    for (const struct trace *tr = thread_trace(t); tr && tr->region; tr = tr->outer)
        n += tr->batched == batched;
    return n;
}

/* Is the nesting too deep, as in a function that records itself? Checked before it is called. */
static bool too_deep(struct region_recorder *c)
{
    return regions_open(c->t, c->unlogged) >= MAX_REGION_DEPTH &&
           fail(c->t, KL_ERR_ARGUMENT, "%s: regions in regions are more than %d deep", c->op, MAX_REGION_DEPTH);
}

static void save_frame(struct region_recorder *c, struct trace *tr, kl_tensor *in, const void *stack)
{
    const struct thread *t = c->t;
    tr->frame = (struct region_frame){
        .stack = stack, .plain = t->plain, .kernels = t->kernels, .generator = t->generator, .in = in,
        .captured = c->captured.h, .views = c->views, .g = c->first ? c->first->g : NULL,
        .body = c->first ? c->first->body : NULL, .empty = c->empty, .made = c->made};
    c->made = (struct handle_list){0};
}

/* Cleans up the innermost region after its function was left by longjmp, as region_record and its callers would
 * have. */
static void leave_region(struct thread *t)
{
    struct trace *tr = t->trace;
    struct region_frame *f = &tr->frame;
    blocks_end_open(t);
    trace_end_temps(t, tr);
    record_region_leave(t, tr);
    blocks_leave(t, &f->blocks);
    t->plain = f->plain;
    t->kernels = f->kernels;
    t->generator = f->generator;
    struct region_recorder c = {.captured.h = f->captured, .made = f->made, .empty = f->empty};
    region_recorder_free(&c);
    graph_free(f->g);
    replay_body_drop(f->body);
    mem_free(f->views);
    mem_free(f->in);
    if (tr->batched)
        compose_end_all(t, NULL, 0); /* kl_vmap is a composite */
    trace_free(tr);
}

void regions_leave(struct thread *t, const void *stack)
{
    for (;;) {
        const struct trace *tr = trace_is_refused(t) ? t->trace->idle : t->trace;
        if (!tr->region || (uintptr_t)tr->frame.stack >= (uintptr_t)stack)
            return;
        if (trace_is_refused(t))
            trace_drop(t);
        leave_region(t);
    }
}

static bool record_region_begin(struct region_recorder *c, struct trace *tr, uint32_t which, const char *name)
{
    const struct trace *outer = thread_trace(c->t);
    if (outer && outer->log && !c->unlogged)
        return replay_begin_body(tr, outer, which, name);
    tr->r.g = c->empty;
    c->empty = NULL;
    return recording_open(&tr->r, name);
}

bool region_record(struct region_recorder *c, uint32_t which, const char *name, kl_region_fn *fn,
                   const struct view *parameter, uint32_t nin, uint32_t nout, struct region *out)
{
    struct thread *t = c->t;
    if (too_deep(c))
        return false;
    struct trace *tr = mem_alloc(sizeof *tr);
    kl_tensor *in = mem_alloc((nin + nout) * sizeof *in);
    if (tr) {
        tr->region = c->op;
        tr->silent = c->silent ? name : NULL;
        tr->token = c->entry;
    }
    if (!tr || !in || !record_region_begin(c, tr, which, name)) {
        mem_free(in);
        trace_free(tr);
        return record_region_no_memory(c);
    }
    tr->temps = NO_ENTRY;
    tr->batched = c->unlogged;
    save_frame(c, tr, in, __builtin_frame_address(0));
    blocks_enter(t, &tr->frame.blocks);
    record_region_enter(t, tr);
    bool ok = add_parameters(c, tr, parameter, nin, in) || record_region_no_memory(c);
    ok = ok && record_region_body(c, tr, name, fn, in, nin, in + nin, nout, out);
    blocks_leave(t, &tr->frame.blocks);
    c->made = tr->frame.made;
    mem_free(in);
    return record_region_finish(c, tr, ok, out);
}
