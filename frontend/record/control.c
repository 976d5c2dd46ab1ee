/* Control flow, checkpoints and custom gradients: region ops from the user's functions; and custom ops, which are
 * recorded in the same way.
 *
 * The functions are recorded first, each into a graph.  Tensors from outside that they use become operands of the op
 * after the explicit ones, in the same order for all its regions.  Then the op's node and a node for each result are
 * recorded. */
#include "frontend/frontend.h"
#include <inttypes.h>
#include <string.h>

/* State of an op being recorded. */
struct control {
    struct region_recorder call;
    struct node proto;
    const kl_tensor *in[2];         /* explicit operands, in one or two lists */
    uint32_t nin[2];
    const struct named_count *counts; /* the call's, to be checked; NULL: they were */
    struct view *view;              /* one for each explicit operand */
    struct region region[2];
    /* number of parameters of the second region; number of captured tensors that it may share with the first */
    uint32_t second, shared;
    const struct custom_use *custom; /* for op custom */
    kl_tensor *changed;             /* all operands, if a kernel may have changed them; or NULL */
    kl_tensor *out; uint32_t nout;
};

static uint32_t control_inputs(const struct control *c) { return c->nin[0] + c->nin[1]; }
static kl_tensor control_operand(const struct control *c, uint32_t i)
{
    return c->changed ? c->changed[i] : i < c->nin[0] ? c->in[0][i] : i < control_inputs(c) ? c->in[1][i - c->nin[0]]
        : c->call.captured.h[i - control_inputs(c)];
}

static bool look_at_operands(struct control *c)
{
    struct thread *t = c->call.t;
    uint32_t n = control_inputs(c);
    if ((c->nout && !c->out) || (c->nin[0] && !c->in[0]) || (c->nin[1] && !c->in[1]))
        return fail(t, KL_ERR_ARGUMENT, "%s: a list of tensors is NULL", c->call.op) == KL_OK;
    c->call.views = c->view = mem_alloc((n + 2 * (size_t)c->nout) * sizeof *c->view);
    if (!c->view)
        return fail(t, KL_ERR_MEMORY, "%s: out of memory", c->call.op) == KL_OK;
    for (uint32_t i = 0; i < n; i++) {
        char what[32];
        snprintf(what, sizeof what, "operand %u", i + 1);
        if (!describe(t, c->call.op, what, control_operand(c, i), &c->view[i]))
            return false;
        struct err e;
        e.code = KL_OK;
        const struct entry *first = entry_peek(control_operand(c, 0));
        uint16_t ad = first->ad;
        if (c->view[i].device.id != c->view[0].device.id && !ad_join(&ad, first, entry_peek(control_operand(c, i)), &e))
            return fail(t, e.code, "%s: %s", c->call.op, e.msg) == KL_OK;
    }
    c->call.device = n ? c->view[0].device : (kl_device){0};
    return true;
}

/* false: *c has failed, and its results are poison. */
static bool control_begin(struct control *c, const char *op, enum op node, void *ctx)
{
    struct thread *t = thread_self();
    c->call = (struct region_recorder){.t = t, .site = t ? name_scope_site(t, t->site) : NULL, .op = op, .ctx = ctx};
    c->proto.op = (uint16_t)node;
    for (uint32_t i = 0; c->out && i < c->nout; i++)
        c->out[i] = kl_none;
    return t && !(t->tracing && t->trace->err.code) && (!c->counts || counts_valid(t, op, c->counts)) &&
           look_at_operands(c);
}

static bool control_has_function(struct control *c, kl_region_fn *fn)
{
    return fn || fail(c->call.t, KL_ERR_ARGUMENT, "%s: a function is NULL", c->call.op) == KL_OK;
}

/* Records region i from fn, whose parameters have the types of the views. */
static bool control_record_region(struct control *c, uint32_t i, const char *name, kl_region_fn *fn,
                                  const struct view *v, uint32_t n,
                   uint32_t nout)
{
    c->second = n;
    c->shared = c->call.captured.n;
    c->call.first = i ? &c->region[0] : NULL;
    return region_record(&c->call, i, name, fn, v, n, nout, &c->region[i]);
}

/* The same for a function that must not print or check values, because it runs repeatedly or in a backward pass. */
static bool silent_region(struct control *c, uint32_t i, const char *name, kl_region_fn *fn, const struct view *v,
                          uint32_t n,
                          uint32_t nout)
{
    c->call.silent = true;
    bool ok = control_record_region(c, i, name, fn, v, n, nout);
    c->call.silent = false;
    return ok;
}

static const struct graph *region_graph(const struct control *c, int i)
{
    return c->region[i].body ? c->region[i].body->g : c->region[i].g;
}

/* Moves the regions' graphs into g[], with the symbols of `around`; the first one gets the inputs that only the second
 * uses. false: out of memory, or the error of a graph. */
static bool make_graphs(struct control *c, struct graph *around, struct graph *g[2])
{
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        g[i] = c->region[i].body ? graph_clone(c->region[i].body->g) : c->region[i].g;
        c->region[i].g = NULL;
        ok &= g[i] || !c->region[i].body;
        if (g[i] && !graph_move_symbols(g[i], around))
            ok = err_set(&around->err, g[i]->err.code, "%s", g[i]->err.msg);
    }
    for (uint32_t k = c->shared; ok && g[1] && k < c->call.captured.n; k++) {
        const struct leaf *l = &g[1]->input.v[c->second + k];
        ok = graph_leaf(g[0], &g[0]->input, l->dtype, &g[1]->shape[l->shape], l->name) != LEAF_NONE;
    }
    for (int i = 0; i < 2 && !ok; i++) {
        graph_free(g[i]);
        g[i] = NULL;
    }
    return ok;
}

/* Loops carry the token from iteration to iteration. */
static bool is_loop(const struct control *c) { return c->proto.op == OP_scan || c->proto.op == OP_while; }

/* Finds the position of the token of kl_print and kl_assert among operands and results; false: the op has none. */
static bool token_place(const struct control *c, struct effects *f)
{
    if (!c->call.entry.id)
        return false;
    for (f->from = control_inputs(c); control_operand(c, f->from).id != c->call.entry.id;)
        f->from++;
    f->to = is_loop(c) ? c->proto.attr.region.carried : f->from;
    return true;
}
static uint32_t token_result(const struct control *c, const struct effects *f)
{
    return is_loop(c) ? f->to : c->nout;
}

/* Threads the token through the op's regions. */
static bool add_tokens(const struct control *c, const struct effects *f, struct graph *g[2])
{
    uint32_t before = c->proto.op == OP_cond, from = f->from - before, to = f->to - before, at = token_result(c, f);
    switch (c->proto.op) {
    case OP_cond:
        return effects_thread(&g[0], c->region[0].token, from, to, at) &&
            effects_thread(&g[1], c->region[1].token, from, to, at);
    case OP_while:
        return effects_thread(&g[0], NIL, from, to, LEAF_NONE) &&
            effects_thread(&g[1], c->region[1].token, from, to, at);
    case OP_custom_grad: /* the gradient takes all results */
        return effects_thread(&g[0], c->region[0].token, from, to, at) &&
               effects_thread(&g[1], NIL, g[1]->input.n, control_inputs(c) + at, LEAF_NONE);
    default:
        return effects_thread(&g[0], c->region[0].token, from, to, at);
    }
}

/* Looks up the operands' nodes in the recording, whose graph may be replaced meanwhile; checks that they have one
 * device. */
static bool control_resolve(struct control *c, struct trace *tr, ref *in, uint32_t n, struct err *e)
{
    if (tr)
        tr->site = c->call.site; /* call site of the states that these operands become */
    for (uint32_t i = 0; i < n; i++) {
        char what[32];
        snprintf(what, sizeof what, i < control_inputs(c) ? "operand %u" : "a tensor that it uses", i + 1);
        in[i] = node_of_handle(tr, control_operand(c, i), what, e);
        if (!in[i])
            return false;
        kl_device d = entry_device(entry_peek(control_operand(c, i)));
        if (d.id != c->call.device.id)
            return err_set(e, KL_ERR_DEVICE, "%s is on device %s, the op on %s", what, kl_device_name(d),
                           kl_device_name(c->call.device));
    }
    if (!device_valid(c->call.device))
        return err_set(e, KL_ERR_DEVICE, "needs an operand, or a tensor on some device that it makes");
    return true;
}

/* ---- the op's key in the trace's replay log ---- */

struct control_key { unsigned char *v; uint32_t n, cap; bool failed; };

static void control_put(struct control_key *b, const void *p, size_t n)
{
    b->failed |= n > INT32_MAX || b->n > INT32_MAX || !mem_reserve(&b->v, &b->cap, b->n + (uint32_t)n, 1);
    if (b->failed || !n)
        return;
    memcpy(b->v + b->n, p, n);
    b->n += (uint32_t)n;
}

/* false: out of memory. */
static bool control_make_key(const struct control *c, struct trace *tr, const ref *in, uint32_t n, struct node *key,
                     struct replay_extra *extra)
{
    struct control_key b = {.v = tr->extra, .cap = tr->extra_cap};
    *key = c->proto;
    key->device = (uint16_t)c->call.device.id;
    key->flags = c->call.t->no_grad ? MARK_STOP : 0;
    key->attr.region.first = c->nout;
    key->attr.region.count = n;
    control_put(&b, in, n * sizeof *in);
    if (c->custom) {
        const struct custom_use *u = c->custom;
        control_put(&b, u->op->name, sizeof u->op->name);
        control_put(&b, u->attr, u->nattr);
        for (uint32_t i = 0; i < c->nout; i++) {
            control_put(&b, &(int64_t[]){u->type[i].dtype, u->type[i].rank}, 2 * sizeof(int64_t));
            control_put(&b, u->type[i].dims, (size_t)u->type[i].rank * sizeof *u->type[i].dims);
        }
    }
    tr->extra = b.v;
    tr->extra_cap = b.cap;
    *extra = (struct replay_extra){b.v, b.n, {c->region[0].body, c->region[1].body}};
    return !b.failed;
}

/* A custom op's node. */
static ref append_custom(struct control *c, struct graph *g, const ref *in, uint32_t n)
{
    const struct custom_use *u = c->custom;
    struct custom d = {.nresult = c->nout, .nattr = (uint32_t)u->nattr, .attr = (void *)(uintptr_t)u->attr};
    snprintf(d.name, sizeof d.name, "%s", u->op->name);
    d.result = mem_alloc(c->nout * sizeof *d.result);
    for (uint32_t i = 0; d.result && i < c->nout; i++) {
        struct shape s = shape_make((uint32_t)u->type[i].rank, u->type[i].dims);
        d.result[i] = (struct custom_result){u->type[i].dtype, graph_shape(g, &s)};
    }
    ref r = d.result && !g->err.code ? graph_add_custom(g, &c->proto, in, n, &d) : NIL;
    mem_free(d.result);
    return r;
}

/* Appends the op's node, then its results; NIL: the graph's error, or (if it has none) out of memory. */
static ref append_op(struct control *c, struct graph *g, ref *in, uint32_t n)
{
    struct graph *region[2];
    struct effects f;
    struct node proto;
    bool looks = token_place(c, &f);
    g->cur_device = (uint16_t)device_index(c->call.device);
    g->cur_site = graph_site(g, c->call.site);
    c->proto.flags = c->call.t->no_grad ? MARK_STOP : 0;
    if (!make_graphs(c, g, region))
        return NIL;
    proto = c->proto;
    if (looks && !add_tokens(c, &f, region)) {
        graph_free(region[0]);
        graph_free(region[1]);
        return NIL;
    }
    if (looks && is_loop(c)) {
        effects_move_operand(&f, in);
        proto.attr.region.carried++;
    }
    ref node = c->custom ? append_custom(c, g, in, n) : graph_add_region(g, &proto, in, n, region);
    for (uint32_t i = 0; i < c->nout + looks && node; i++)
        if (!n_proj(g, node, i))
            return NIL;
    return node;
}

ref control_copy(const struct control *c, struct graph *g, ref *in, uint32_t n)
{
    struct control copy = *c;
    bool ok = !c->call.entry.id;
    for (int i = 0; i < 2 && ok; i++) {
        copy.region[i].g = c->region[i].g ? graph_clone(c->region[i].g) : NULL;
        ok = !c->region[i].g == !copy.region[i].g;
    }
    if (ok)
        return append_op(&copy, g, in, n);
    for (int i = 0; i < 2; i++)
        if (copy.region[i].g != c->region[i].g)
            graph_free(copy.region[i].g);
    return NIL;
}

/* Finds the op in the trace's replay log or appends it; NIL: *e. */
static ref record_op(struct control *c, struct trace *tr, struct recording *r, ref *in, uint32_t n, struct err *e)
{
    struct node key;
    struct replay_extra extra;
    bool logged = tr && tr->log, failed = logged && !control_make_key(c, tr, in, n, &key, &extra);
    const struct replay_call *made = logged && !failed ? replay_next(tr, &key, c->call.site, NULL, &extra, &failed)
        : NULL;
    if (made)
        return made->result;
    ref before = r->g->nnode, node = failed ? NIL : append_op(c, r->g, in, n);
    if (node && logged)
        replay_add(tr, &key, NULL, &extra, node);
    for (ref i = before; i < r->g->nnode && !tr; i++)
        deferred_added(i);
    if (r->g->err.code)
        take_graph_error(r->g, opinfo[c->proto.op].name, e);
    return node;
}

/* Takes the lock outside of traces. */
static bool control_append(struct control *c, struct trace *tr, struct err *e)
{
    uint32_t n = control_inputs(c) + c->call.captured.n;
    struct recording *r = tr ? &tr->r : deferred_recording();
    ref *in = mem_alloc(n * sizeof *in), node = NIL;
    if (!r || !in || (!tr && !deferred_room(n + c->nout + 1)))
        err_set(e, KL_ERR_MEMORY, "out of memory");
    else if (control_resolve(c, tr, in, n, e))
        node = record_op(c, tr, r, in, n, e);
    mem_free(in);
    struct effects f;
    uint32_t token = token_place(c, &f) ? token_result(c, &f) : UINT32_MAX;
    for (uint32_t i = 0; i < c->nout && node && !e->code; i++)
        c->out[i] = handle_of_node(c->call.t, tr, node + 1 + i + (i >= token), device_ad(c->call.device), e);
    if (token != UINT32_MAX && node && !e->code)
        tr->token = handle_of_node(c->call.t, tr, node + 1 + token, device_ad(c->call.device), e);
    return node && !e->code;
}

kl_status record_region(struct control *c)
{
    struct thread *t = c->call.t;
    struct trace *tr = thread_trace(t);
    struct err e;
    e.code = KL_OK;
    if (!tr) {
        front_lock();
        deferred_limit();
    }
    bool ok = control_append(c, tr, &e);
    if (!tr)
        front_unlock();
    for (uint32_t i = 0; i < c->nout && ok && !tr; i++)
        ok = scope_note(t, c->out[i]) || err_set(&e, KL_ERR_MEMORY, "out of memory");
    if (ok)
        return KL_OK;
    fail(t, e.code ? e.code : KL_ERR_MEMORY, "%s: %s", c->call.op, e.code ? e.msg : "out of memory");
    for (uint32_t i = 0; i < c->nout; i++)
        c->out[i] = poison(t);
    return t->tracing ? t->trace->err.code : t->last.code;
}

kl_status record_with(struct control *c, const struct custom_op *op)
{
    struct custom_use use = *c->custom;
    const struct custom_use *before = c->custom;
    use.op = op;
    c->custom = &use;
    kl_status status = record_region(c);
    c->custom = before;
    return status;
}

/* Runs the op's kernel, chosen by the keys of all tensors it uses. */
static kl_status control_dispatch(struct control *c, const struct dispatch_op *op)
{
    struct thread *t = c->call.t;
    uint32_t n = control_inputs(c) + c->call.captured.n;
    uint64_t keys = n ? 0 : device_keys(c->call.device);
    for (uint32_t i = 0; i < n; i++)
        keys |= handle_keys(control_operand(c, i));
    kl_key key;
    keys = thread_keys(t, keys);
    const struct op_kernel *k = dispatch_resolve(op, keys, &key);
    if (t->watch)
        dispatch_note(t, op, key, "call");
    if (k == &kernel_builtin)
        return record_region(c);
    kl_tensor *in = mem_alloc((n + 1) * sizeof *in);
    if (!in)
        return fail(t, KL_ERR_MEMORY, "%s: out of memory", c->call.op);
    for (uint32_t i = 0; i < n; i++)
        in[i] = control_operand(c, i);
    c->changed = in;
    struct kl_call call = {.t = t, .op = op, .keys = keys, .key = key, .site = c->call.site, .label = c->call.op,
                           .nin = n, .nout = c->nout, .check_results = c->nout != 1, .in = in, .out = c->out,
                           .region = c};
    kl_status status = call_kernel(&call, k);
    c->changed = NULL;
    mem_free(in);
    return status;
}

/* Records the op and ends *c. */
static kl_status control_finish(struct control *c, bool ok)
{
    struct thread *t = c->call.t;
    if (!t)
        return KL_ERR_MEMORY;
    if (ok)
        ok = (t->plain || (c->custom && !c->custom->table) ? record_region(c)
              : control_dispatch(c, c->custom ? c->custom->table : &graph_ops[c->proto.op])) == KL_OK;
    for (uint32_t i = 0; c->out && i < c->nout && !ok; i++)
        if (!c->out[i].id)
            c->out[i] = poison(t);
    for (int i = 0; i < 2; i++) {
        graph_free(c->region[i].g);
        replay_body_drop(c->region[i].body);
    }
    mem_free(c->view);
    kl_status status = ok ? KL_OK : t->tracing ? t->trace->err.code : t->last.code;
    struct err last = t->last; /* releasing reports no errors of its own */
    region_recorder_free(&c->call);
    t->last = last;
    return status;
}

kl_status kl_cond(kl_tensor condition, kl_region_fn *yes, kl_region_fn *no, void *ctx,
                  int64_t nin, const kl_tensor *in, int64_t nout, kl_tensor *out)
{
    struct control c = {.in = {&condition, in}, .nin = {1, count_or_none(nin)}, .nout = count_or_none(nout), .out = out,
                        .counts = COUNTS({"nin", nin}, {"nout", nout})};
    bool ok = control_begin(&c, "cond", OP_cond, ctx) && control_has_function(&c, yes) &&
        control_has_function(&c, no) &&
              control_record_region(&c, 0, "yes", yes, c.view + 1, c.nin[1], c.nout) &&
              control_record_region(&c, 1, "no", no, c.view + 1, c.nin[1], c.nout);
    return control_finish(&c, ok);
}

kl_status kl_while(kl_region_fn *condition, kl_region_fn *body, void *ctx, int64_t n,
                   const kl_tensor *in, kl_tensor *out)
{
    uint32_t k = count_or_none(n);
    struct control c = {.in = {in}, .nin = {k}, .nout = k, .out = out, .proto.attr.region.carried = k,
                        .counts = COUNTS({"n", n})};
    bool ok = control_begin(&c, "while", OP_while, ctx) && control_has_function(&c, condition) &&
        control_has_function(&c, body) &&
              silent_region(&c, 0, "condition", condition, c.view, k, 1) &&
              control_record_region(&c, 1, "body", body, c.view, k, k);
    return control_finish(&c, ok);
}

/* A number, or a symbolic length of the trace. */
static bool scan_length(const struct control *c, int64_t *length)
{
    struct trace *tr = thread_trace(c->call.t);
    struct shape s = {.rank = 1, .dim = {*length}};
    struct err e = {.code = KL_OK};
    if (*length >= 0)
        return true;
    if (tr && symbolic_lengths(tr->r.g, &s, false, &e) && dim_exists(tr->r.g, s.dim[0]))
        return *length = s.dim[0], true;
    if (e.code)
        return fail(c->call.t, e.code, "scan: %s", e.msg) == KL_OK;
    return fail(c->call.t, KL_ERR_ARGUMENT, "scan: length %" PRId64 " is negative", *length) == KL_OK;
}

/* The body's parameter for a scanned tensor: its type without axis 0. */
static bool control_slice_type(struct control *c, uint32_t i, int64_t length)
{
    struct shape *s = &c->view[i].shape;
    if (s->rank && s->dim[0] == length) {
        *s = shape_make(s->rank - 1, s->dim + 1);
        return true;
    }
    char text[SHAPE_TEXT], number[DIM_TEXT];
    const struct trace *tr = thread_trace(c->call.t);
    if (length < 0)
        dim_text(tr->r.g, length, number, sizeof number);
    else
        snprintf(number, sizeof number, "%" PRId64, length);
    return fail(c->call.t, KL_ERR_SHAPE, "scan: of length %s, but scanned tensor %u is %s%s",
                number, i - c->nin[0], dtype_name(c->view[i].dtype), shape_text(s, text, sizeof text)) == KL_OK;
}

kl_status kl_scan(kl_region_fn *body, void *ctx, int64_t length, int64_t ncarried,
                  const kl_tensor *carried, int64_t nscanned, const kl_tensor *scanned, int64_t nstacked,
                  bool reverse, kl_tensor *out)
{
    struct control c = {.in = {carried, scanned}, .nin = {count_or_none(ncarried), count_or_none(nscanned)},
                        .out = out,
                        .counts = COUNTS({"ncarried", ncarried}, {"nscanned", nscanned}, {"nstacked", nstacked})};
    c.nout = c.nin[0] + count_or_none(nstacked);
    c.proto.attr.region.carried = c.nin[0];
    c.proto.attr.region.scanned = c.nin[1];
    c.proto.attr.region.flags = reverse ? REGION_REVERSE : 0;
    bool ok = control_begin(&c, "scan", OP_scan, ctx) && control_has_function(&c, body) && scan_length(&c, &length);
    c.proto.attr.region.length = length;
    for (uint32_t i = 0; ok && i < c.nin[1]; i++)
        ok = control_slice_type(&c, c.nin[0] + i, length);
    ok = ok && control_record_region(&c, 0, "body", body, c.view, control_inputs(&c), c.nout);
    return control_finish(&c, ok);
}

kl_status kl_checkpoint(kl_region_fn *fn, void *ctx, int64_t nin, const kl_tensor *in, int64_t nout, kl_tensor *out)
{
    struct control c = {.in = {in}, .nin = {count_or_none(nin)}, .nout = count_or_none(nout), .out = out,
                        .counts = COUNTS({"nin", nin}, {"nout", nout})};
    bool ok = control_begin(&c, "checkpoint", OP_checkpoint, ctx) && control_has_function(&c, fn) &&
              control_record_region(&c, 0, "checkpoint", fn, c.view, c.nin[0], c.nout);
    return control_finish(&c, ok);
}

/* Appends to the operands' views those of the results, then those of the floating results' gradients. *floats: the
 * number of operands that have a gradient. */
static uint32_t backward_views(struct control *c, uint32_t *floats)
{
    const struct graph *g = region_graph(c, 0);
    uint32_t n = control_inputs(c);
    *floats = 0;
    for (uint32_t i = 0; i < n; i++)
        *floats += dtype_is_float(c->view[i].dtype);
    for (int gradients = 0; gradients < 2; gradients++)
        for (uint32_t i = 0; i < g->nout; i++) {
            const struct node *y = node_at(g, g->out[i].value);
            if (!gradients || dtype_is_float(y->dtype))
                c->view[n++] = (struct view){y->dtype, g->shape[y->shape], c->call.device};
        }
    return n;
}

static kl_status control_custom_grad(struct control *c, const char *op, kl_region_fn *fn,
                                     kl_region_fn *backward, void *ctx)
{
    uint32_t floats;
    c->proto.attr.region.carried = c->nin[0];
    bool ok = control_begin(c, op, OP_custom_grad, ctx) && control_has_function(c, fn) &&
              control_has_function(c, backward) &&
              control_record_region(c, 0, "value", fn, c->view, c->nin[0], c->nout);
    if (ok) {
        uint32_t n = backward_views(c, &floats);
        ok = silent_region(c, 1, "gradient", backward, c->view, n, floats);
    }
    return control_finish(c, ok);
}

kl_status record_custom_grad(const char *op, kl_region_fn *fn, kl_region_fn *backward, void *ctx,
                             uint32_t nin, const kl_tensor *in, uint32_t nout, kl_tensor *out)
{
    struct control c = {.in = {in}, .nin = {nin}, .nout = nout, .out = out};
    return control_custom_grad(&c, op, fn, backward, ctx);
}

kl_status kl_custom_grad(kl_region_fn *fn, kl_region_fn *backward, void *ctx, int64_t nin,
                         const kl_tensor *in, int64_t nout, kl_tensor *out)
{
    struct control c = {.in = {in}, .nin = {count_or_none(nin)}, .nout = count_or_none(nout), .out = out,
                        .counts = COUNTS({"nin", nin}, {"nout", nout})};
    return control_custom_grad(&c, "custom_grad", fn, backward, ctx);
}

kl_status record_custom(const char *op, const struct custom_use *use, uint32_t nin,
                        const kl_tensor *in, uint32_t nout, kl_tensor *out)
{
    struct control c = {.in = {in}, .nin = {nin}, .custom = use, .nout = nout, .out = out};
    return control_finish(&c, control_begin(&c, op, OP_custom, NULL));
}
