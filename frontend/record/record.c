/* The path of every op into a graph: operands, dispatch, views, node, handle. */
#include "frontend/frontend.h"
#include <string.h>

/* ---- recordings ---- */

bool recording_open(struct recording *r, const char *name)
{
    if (!r->g)
        return (r->g = graph_new(name)) != NULL;
    graph_reset(r->g);
    snprintf(r->g->name, sizeof r->g->name, "%s", name);
    return r->g->err.code == KL_OK;
}

void recording_close(struct recording *r)
{
    for (uint32_t i = 0; r->g && i < r->g->input.n && i < r->input_cap; i++) {
        front_drop(r->input[i]);
        r->input[i] = NULL;
    }
}

void recording_free(struct recording *r)
{
    graph_free(r->g);
    mem_free(r->input);
    mem_free(r->slot);
    mem_free(r->actual);
    mem_free(r->length);
}

bool recording_input(struct recording *r, uint32_t ordinal, struct buffer *b)
{
    if (!mem_reserve(&r->input, &r->input_cap, ordinal + 1, sizeof *r->input))
        return false;
    r->input[ordinal] = b;
    return true;
}

bool recording_slot(struct recording *r, uint32_t ordinal, uint64_t bits)
{
    if (!mem_reserve(&r->slot, &r->slot_cap, ordinal + 1, sizeof *r->slot))
        return false;
    r->slot[ordinal] = bits;
    return true;
}

/* ---- one op ---- */

/* State of an op being recorded. */
struct record_step {
    struct call *c;
    struct thread *t;
    struct trace *tr;        /* NULL: recorded in the deferred graph, under the lock */
    struct recording *r;
    struct entry *const *found; /* the operands' entries; NULL: not looked up yet */
    ref in[MAX_OPERANDS];
    kl_device device;
    uint16_t ad;             /* ad of the result, as in struct entry */
    struct node key;         /* the key that the replay log compares */
    struct err e;            /* the error; only the code is set at first */
};

static const char *const operand_name[MAX_OPERANDS] = {"operand 1", "operand 2", "operand 3", "operand 4"};

/* Most ops have a fixed number of operands; for others the call has it. */
unsigned call_operands(const struct call *c) { return c->proto.nin ? c->proto.nin : opinfo[c->proto.op].nin; }

void take_graph_error(struct graph *g, const char *op, struct err *e)
{
    size_t n = strlen(op);
    const char *msg = g->err.msg;
    if (!strncmp(msg, op, n) && !strncmp(msg + n, ": ", 2))
        msg += n + 2; /* the message gets the name of the function that the user called instead */
    err_set(e, g->err.code, "%s", msg);
    g->err.code = KL_OK;
}

/* A failed builder sets the graph's error; it is moved to the step, because the graph is used further. */
static bool take_error(struct record_step *s)
{
    take_graph_error(s->r->g, opinfo[s->c->proto.op].name, &s->e);
    return false;
}

ref node_of_handle(struct trace *tr, kl_tensor h, const char *what, struct err *e)
{
    struct entry *x = entry_find(h, what, e);
    if (!x)
        return NIL;
    if (tr)
        return trace_node(tr, x, h, what, e);
    if (x->kind == KIND_VALUE)
        return deferred_node(x, e);
    if (x->kind == KIND_POISON)
        *e = x->cause->err;
    else if (x->kind == KIND_WRAPPER)
        wrapper_refuse(x, what, e);
    else
        temp_refuse(x, what, e);
    return NIL;
}

static bool record_resolve(struct record_step *s, unsigned i)
{
    if (s->tr && s->found && s->found[i]) /* outside of traces handles are looked up under the lock */
        s->in[i] = trace_node(s->tr, s->found[i], s->c->in[i], operand_name[i], &s->e);
    else
        s->in[i] = node_of_handle(s->tr, s->c->in[i], operand_name[i], &s->e);
    if (s->in[i] == NIL && !s->e.code)
        return take_error(s);
    return s->in[i] != NIL;
}

/* Sets the autodiff flags of the op: operands on one device must all be on an autodiff device, or none, with one
 * strategy. */
static bool set_autodiff(struct record_step *s)
{
    struct call *c = s->c;
    unsigned nin = call_operands(c);
    const struct entry *first = NULL;
    s->ad = nin ? 0 : device_ad(c->device);
    for (unsigned i = 0; i < nin; i++) {
        const struct entry *x = s->found && s->found[i] ? s->found[i] : entry_peek(c->in[i]);
        if (!first)
            s->ad = (first = x)->ad;
        else if (x->ad != s->ad && !ad_join(&s->ad, first, x, &s->e))
            return false;
    }
    if (c->proto.op == OP_copy && !ad_to(s->ad, first, c->device, &s->e))
        return false;
    if (c->proto.op == OP_grad && s->ad & AD_ON)
        c->proto.attr.grad.keep = strategy_bytes(s->ad >> 1) + 1;
    return true;
}

/* Checks that all operands are on one device, except for copy, whose target is the call's, and grad, which runs on the
 * variable's. */
static bool find_device(struct record_step *s)
{
    const struct graph *g = s->r->g;
    unsigned nin = call_operands(s->c), op = s->c->proto.op;
    s->device = nin && op != OP_copy ? device_of(node_at(g, s->in[op == OP_grad])->device) : s->c->device;
    for (unsigned i = 1; i < nin && op != OP_grad; i++) {
        kl_device d = device_of(node_at(g, s->in[i])->device);
        if (d.id != s->device.id)
            return err_set(&s->e, KL_ERR_DEVICE, "operands are on devices %s and %s", kl_device_name(s->device),
                           kl_device_name(d));
    }
    if (op == OP_copy && node_at(g, s->in[0])->device == DEVICE_META && device_index(s->device) != DEVICE_META)
        return err_set(&s->e, KL_ERR_DEVICE, META_HAS_NO_DATA);
    if (!device_valid(s->device))
        return err_set(&s->e, KL_ERR_DEVICE, "%u is no device", s->device.id);
    return true;
}

/* A device that cannot compute with a dtype cannot store it. */
static bool dtype_there(struct record_step *s, unsigned dtype)
{
    return (device_dtypes(device_index(s->device)) >> dtype & 1) ||
           err_set(&s->e, KL_ERR_DEVICE, "device %s does not have %s", kl_device_name(s->device), dtype_name(dtype));
}

bool broadcast_shape(struct shape *all, const struct shape *s)
{
    uint32_t rank = all->rank > s->rank ? all->rank : s->rank;
    struct shape out = {.rank = rank};
    for (uint32_t i = 1; i <= rank; i++) { /* from the right */
        int64_t a = i <= all->rank ? all->dim[all->rank - i] : 1;
        int64_t b = i <= s->rank ? s->dim[s->rank - i] : 1;
        if (a != b && a != 1 && b != 1)
            return false;
        out.dim[rank - i] = a == 1 ? b : a;
    }
    *all = out;
    return true;
}

/* Expands operands of an elementwise op to their common shape, by views where the shapes differ. */
static bool record_broadcast(struct record_step *s, unsigned nin)
{
    struct graph *g = s->r->g;
    bool same = true;
    for (unsigned i = 1; i < nin; i++)
        same &= node_at(g, s->in[i])->shape == node_at(g, s->in[0])->shape;
    if (same)
        return true;
    struct shape all = *node_shape(g, s->in[0]);
    for (unsigned i = 1; i < nin; i++)
        if (!broadcast_shape(&all, node_shape(g, s->in[i]))) {
            char text[MAX_OPERANDS][SHAPE_TEXT];
            for (unsigned j = 0; j < nin; j++)
                shape_text(node_shape(g, s->in[j]), text[j], sizeof text[j]);
            return nin == 2 ? err_set(&s->e, KL_ERR_SHAPE, "shapes %s and %s do not broadcast", text[0], text[1])
                            : err_set(&s->e, KL_ERR_SHAPE, "shapes %s, %s and %s do not broadcast", text[0], text[1],
                                      text[2]);
        }
    for (unsigned i = 0; i < nin; i++) {
        uint32_t before = g->nnode;
        s->in[i] = n_broadcast(g, s->in[i], &all);
        for (ref r = before; !s->tr && r < g->nnode; r++)
            deferred_added(r);
        if (s->in[i] == NIL)
            return take_error(s);
    }
    return true;
}

/* The recording gets the data of leaves. */
static bool add_leaf(struct record_step *s, struct node *n)
{
    struct graph *g = s->r->g;
    struct call *c = s->c;
    struct leaves *l = n->op == OP_input ? &g->input : &g->slot;
    if (n->op == OP_input && c->symbolic) {
        c->target = c->symbolic->lengths;
        if (!symbolic_lengths(g, &c->target, true, &s->e))
            return false;
    }
    uint32_t ordinal = graph_leaf(g, l, n->dtype, &c->target, "");
    if (ordinal == LEAF_NONE)
        return take_error(s);
    bool ok = n->op == OP_input ? recording_input(s->r, ordinal, c->data) : recording_slot(s->r, ordinal, c->bits);
    if (!ok || !recording_symbolic(s->r, n->op, ordinal, c->symbolic)) {
        l->n--;
        return err_set(&s->e, KL_ERR_MEMORY, "out of memory");
    }
    if (n->op == OP_input)
        c->data = NULL;
    n->attr.leaf.index = ordinal;
    return true;
}

static ref record_append(struct record_step *s)
{
    struct graph *g = s->r->g;
    const struct call *c = s->c;
    struct node n = c->proto;
    n.nin = (uint8_t)call_operands(c);
    g->cur_device = (uint16_t)device_index(s->device);
    g->cur_site = graph_site(g, c->site);
    if (op_is_elementwise(n.op) && !record_broadcast(s, n.nin))
        return NIL;
    memcpy(n.in, s->in, sizeof n.in);
    if ((n.op == OP_input || n.op == OP_slot) && !add_leaf(s, &n))
        return NIL;
    ref r = graph_add(g, &n, c->has_target ? &c->target : NULL);
    if (r == NIL) {
        take_error(s);
        return NIL;
    }
    if (s->t->no_grad && n.nin && node_carries_gradient(node_at(g, r)))
        g->node[r].flags |= MARK_STOP;
    if (!s->tr)
        deferred_added(r);
    return r;
}

/* A gradient needs the path from the loss to the variable in this graph. */
static bool check_grad(struct record_step *s)
{
    const struct graph *g = s->r->g;
    ref loss = s->in[0], wrt = s->in[1];
    const struct node *n = node_at(g, loss);
    if (loss == wrt || !dtype_is_float(n->dtype) || !dtype_is_float(node_at(g, wrt)->dtype))
        return true; /* the op's shape rule checks dtypes */
    if (s->tr && op_is_leaf(n->op))
        return err_set(&s->e, KL_ERR_GRAD, "the loss is a value from outside of the trace: it has no history here");
    if (s->tr && gradient_is_too_late(s->tr, loss, s->c->in[1], wrt, &s->e))
        return false;
    if (!s->tr && !deferred_tracked(wrt))
        return err_set(&s->e, KL_ERR_GRAD, "the variable is not marked: outside a trace kl_requires_grad comes first");
    if (!s->tr && !deferred_tracked(loss))
        return err_set(&s->e, KL_ERR_GRAD, "the loss depends on nothing marked by kl_requires_grad, or was computed "
                                           "and has no history any more");
    if (s->c->must_depend && !gradient_reaches(g, loss, wrt))
        return err_set(&s->e, KL_ERR_GRAD, "the loss does not depend on the variable");
    return true;
}

static inline kl_tensor marked_handle(struct thread *t, struct trace *tr, ref r, uint16_t ad, uint64_t marks,
                                      const char *made_by, struct err *e)
{
    const struct graph *g = tr ? tr->r.g : deferred_graph();
    const struct node *n = node_at(g, r);
    struct entry *x = tr ? entry_new_temp(t, tr) : entry_new();
    if (!x) {
        err_set(e, KL_ERR_MEMORY, "out of memory");
        return kl_none;
    }
    x->device = n->device;
    x->ad = ad;
    x->layers = marks;
    x->made_by = made_by;
    x->dtype = n->dtype;
    if (tr) {
        x->node = r;
    } else {
        x->kind = KIND_VALUE;
        x->shape = *node_shape(g, r);
        deferred_bind(x, r);
    }
    return entry_handle(x);
}

kl_tensor handle_of_node(struct thread *t, struct trace *tr, ref r, uint16_t ad, struct err *e)
{
    return marked_handle(t, tr, r, ad, 0, NULL, e);
}

/* The name in messages of the function that the user called. */
static const char *made_by(const struct record_step *s) { return s->t->composite ? s->t->composite : s->c->op; }

/* Outside traces data becomes a node only when it is used. */
static kl_tensor new_value(struct record_step *s)
{
    struct call *c = s->c;
    struct entry *x = entry_new();
    if (!x) {
        err_set(&s->e, KL_ERR_MEMORY, "out of memory");
        return kl_none;
    }
    x->kind = KIND_VALUE;
    x->dtype = c->proto.dtype;
    x->shape = c->target;
    x->device = (uint16_t)device_index(c->device);
    x->ad = s->ad;
    x->layers = c->marks;
    x->buffer = c->data;
    c->data = NULL;
    return entry_handle(x);
}

/* Fills in the key: everything that determines what the call adds to the recording; the device is 0 where the operands
 * determine it. */
static void record_make_key(struct record_step *s)
{
    const struct call *c = s->c;
    s->key = c->proto;
    s->key.nin = (uint8_t)call_operands(c);
    s->key.device = (uint16_t)c->device.id;
    if (c->symbolic)
        symbolic_key(s->r->g, c->symbolic, c->proto.op == OP_slot, &s->key.attr);
    s->key.flags |= s->t->no_grad ? MARK_STOP : 0;
    memcpy(s->key.in, s->in, sizeof s->key.in);
}

/* The key has an input's symbolic lengths. */
static const struct shape *target_of(const struct call *c)
{
    return c->has_target && !c->symbolic ? &c->target : NULL;
}

/* An earlier trace made the same call: returns its result. */
static kl_tensor record_replay(struct record_step *s, const struct replay_call *made)
{
    struct call *c = s->c;
    uint32_t ordinal = node_at(s->r->g, made->result)->attr.leaf.index;
    bool ok = true;
    if (c->proto.op == OP_input && (ok = recording_input(s->r, ordinal, c->data)))
        c->data = NULL;
    if (c->proto.op == OP_slot)
        ok = recording_slot(s->r, ordinal, c->bits);
    if (c->proto.op == OP_slot || c->proto.op == OP_input)
        ok &= recording_symbolic(s->r, c->proto.op, ordinal, c->symbolic);
    if (!ok) {
        err_set(&s->e, KL_ERR_MEMORY, "out of memory");
        return kl_none;
    }
    return marked_handle(s->t, s->tr, made->result, s->ad, c->marks, made_by(s), &s->e);
}

static kl_tensor run_path(struct record_step *s)
{
    const struct call *c = s->c;
    unsigned nin = call_operands(c);
    if (c->proto.op == OP_input && !c->data)
        return err_set(&s->e, KL_ERR_ARGUMENT, "a kernel has passed its data on before"), kl_none;
    if (s->tr)
        s->tr->site = c->site;
    for (unsigned i = 0; i < nin; i++)
        if (!record_resolve(s, i))
            return kl_none;
    if (!set_autodiff(s))
        return kl_none;
    if (s->tr && s->tr->log) {
        bool failed;
        record_make_key(s);
        const struct replay_call *made = replay_next(s->tr, &s->key, c->site, target_of(c), NULL, &failed);
        if (made)
            return record_replay(s, made);
        if (failed) {
            err_set(&s->e, KL_ERR_MEMORY, "out of memory");
            return kl_none;
        }
    }
    if (!find_device(s))
        return kl_none;
    if (!s->tr && c->proto.op == OP_input)
        return dtype_there(s, c->proto.dtype) ? new_value(s) : kl_none;
    if (c->proto.op == OP_grad && !check_grad(s))
        return kl_none;
    ref r = record_append(s);
    if (r && !op_is_region(node_at(s->r->g, r)->op) && !dtype_there(s, node_at(s->r->g, r)->dtype))
        return kl_none;
    if (r && s->tr)
        replay_add(s->tr, &s->key, target_of(c), NULL, r);
    return r ? marked_handle(s->t, s->tr, r, s->ad, c->marks, made_by(s), &s->e) : kl_none;
}

static bool is_poison(kl_tensor h)
{
    struct err e;
    e.code = KL_OK;
    struct entry *x = entry_find(h, "", &e);
    return x && x->kind == KIND_POISON;
}

/* An operand's own error is reported unchanged; any other with this call's site and name. */
static void fail_call(struct record_step *s)
{
    struct call *c = s->c;
    bool passed_on = false;
    for (unsigned i = 0; i < call_operands(c) && !passed_on; i++)
        passed_on = is_poison(c->in[i]);
    if (passed_on) {
        s->t->last = s->e;
        if (s->tr)
            trace_error(s->t);
    } else {
        s->t->seen.n = 0;
        for (unsigned i = 0; i < call_operands(c); i++)
            operand_seen(s->t, c->op, c->in[i]);
        fail(s->t, s->e.code, "%s: %s", c->op, s->e.msg);
    }
}

kl_tensor record_node(struct thread *t, struct call *c, struct entry *const *found)
{
    struct record_step s;
    c->failed = false;
    kl_tensor h = kl_none;
    s.t = t;
    s.found = found;
    s.c = c;
    s.tr = thread_trace(t);
    s.e.code = KL_OK;
    memset(s.in, 0, sizeof s.in);
    if (!s.tr) {
        front_lock();
        deferred_limit();
    }
    s.r = s.tr ? &s.tr->r : deferred_recording();
    if (s.r)
        h = run_path(&s);
    else
        err_set(&s.e, KL_ERR_MEMORY, "out of memory");
    if (!s.tr)
        front_unlock();
    if (h.id && !s.tr && !scope_note(t, h))
        h = kl_none; /* leaked until the process ends; the error is reported */
    if (!h.id) {
        if (!s.e.code)
            err_set(&s.e, KL_ERR_MEMORY, "out of memory");
        fail_call(&s);
        h = poison(t);
        c->failed = true;
    }
    return h;
}

/* ---- dispatch ---- */

static kl_tensor record_dispatch(struct thread *t, struct call *c)
{
    const struct dispatch_op *op = &graph_ops[c->proto.op];
    struct kl_call call; /* without a layer only found[] of it is used */
    struct entry **found = call.found;
    uint64_t own = c->keys | (c->proto.op == OP_copy ? device_keys(c->device) : 0);
    unsigned n = call_operands(c);
    for (unsigned i = 0; i < n; i++) {
        found[i] = entry_peek(c->in[i]);
        if (found[i])
            own |= device_bits[found[i]->device] | found[i]->layers;
    }
    uint64_t keys = thread_keys(t, own);
    unsigned dev = top_device(keys);
    if (__builtin_expect((dispatch_is_node_on(op, keys, dev) || t->plain) && !t->watch, 1))
        return record_node(t, c, found);
    call.op = op;
    call.nin = n;
    return call_for_node(&call, t, c, own, keys, dev);
}

static inline kl_tensor record_on(struct thread *t, struct call *c)
{
    kl_tensor h;
    c->site = t->names ? name_scope_site(t, t->site) : t->site;
    if (t->tracing && t->trace->err.code)
        h = t->trace->poison; /* silent: the first failure is kept */
    else if (t->tracing && t->trace->region && (c->proto.op == OP_input || c->proto.op == OP_slot))
        return region_leaf(t, c);
    else
        h = record_dispatch(t, c);
    buffer_unref(c->data);
    return h;
}

kl_tensor record(struct call *c)
{
    struct thread *t = thread_self();
    if (t)
        return record_on(t, c);
    buffer_unref(c->data);
    return kl_none;
}

kl_tensor record_at(const kl_site *site, struct call *c)
{
    const kl_site *outer;
    struct thread *t = call_begin(site, &outer);
    kl_tensor h = t ? record_on(t, c) : kl_none;
    call_end(t, outer);
    return h;
}

bool describe(struct thread *t, const char *op, const char *what, kl_tensor h, struct view *v)
{
    struct trace *tr = thread_trace(t);
    if (tr && tr->err.code && !trace_is_refused(t)) /* values can be read in one that could not begin */
        return false;
    struct err e;
    e.code = KL_OK;
    struct entry *x = entry_find(h, what, &e);
    if (x && x->kind == KIND_TEMP && trace_can_read(tr, x->trace)) {
        const struct graph *g = x->trace->r.g;
        const struct node *n = node_at(g, x->node);
        *v = (struct view){n->dtype, g->shape[n->shape], entry_device(x)};
        operand_seen(t, op, h);
        return true;
    }
    if (x && x->kind == KIND_TEMP) {
        temp_refuse(x, what, &e);
    } else if (x && x->kind == KIND_POISON) {
        t->last = x->cause->err;
        if (tr)
            trace_error(t);
        return false;
    } else if (x) {
        *v = (struct view){x->dtype, x->shape, entry_device(x)};
        operand_seen(t, op, h);
        return true;
    }
    fail(t, e.code, "%s: %s", op, e.msg);
    return false;
}
