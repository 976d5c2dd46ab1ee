/* The tracer: records a thread's calls as a graph, while they have their usual effect.  The outer tap sees each call as
 * it was made, the inner one after autocast and vmap; neither sees autodiff, which runs when a trace is built.  A
 * tensor that is neither an input nor the result of a recorded call is captured, as in the functions of
 * <kiln/control.h>.
 *
 * The graph is repeated by recording its nodes as calls (batch.h, without batched inputs). */
#include "transform.h"
#include "batch.h"
#include "frontend/export/traced_graph.h"
#include "passes/passes.h"
#include <string.h>

/* Input number nin + k of the graph: a tensor, or data that a call gave. */
struct tracer_input { kl_tensor h; struct buffer *data; kl_device device; };

struct known { uint64_t handle; ref r; };   /* 0: free */
struct kl_tracer {
    struct thread *t;         /* the thread while it is open, else NULL */
    unsigned tap;
    struct graph *g;
    struct tracer_input *captured; uint32_t ncaptured, captured_cap;
    struct known *known; uint32_t nknown, known_cap; /* a hash table, a power of two, at most half full */
    ref *wide; uint32_t nwide, wide_cap; /* nodes of tracer_promote() */
    uint32_t nin, nout;
    bool elements;            /* it recorded calls of single elements in kl_vmap */
    struct err err;           /* why the graph is incomplete */
    char *text;
};

static const unsigned layer_of[] = {LAYER_TracerOuter, LAYER_Tracer};

/* ---- handles and their nodes ---- */

static struct known *tracer_place(const struct kl_tracer *tr, uint64_t handle)
{
    uint64_t i = handle * UINT64_C(0x9E3779B97F4A7C15) >> 32;
    while (tr->known[i & (tr->known_cap - 1)].handle && tr->known[i & (tr->known_cap - 1)].handle != handle)
        i++;
    return &tr->known[i & (tr->known_cap - 1)];
}

static ref node_known(const struct kl_tracer *tr, kl_tensor h)
{
    return tr->known_cap ? tracer_place(tr, h.id)->r : NIL;
}

static void tracer_map_insert(struct kl_tracer *tr, kl_tensor h, ref r)
{
    if (2 * (tr->nknown + 1) > tr->known_cap) {
        struct kl_tracer old = *tr;
        uint32_t cap = old.known_cap ? 2 * old.known_cap : 64;
        struct known *table = mem_alloc(cap * sizeof *table);
        if (!table) {
            err_set(&tr->err, KL_ERR_MEMORY, "out of memory");
            return;
        }
        tr->known = table;
        tr->known_cap = cap;
        for (uint32_t i = 0; i < old.known_cap; i++)
            if (old.known[i].handle)
                *tracer_place(tr, old.known[i].handle) = old.known[i];
        mem_free(old.known);
    }
    struct known *k = tracer_place(tr, h.id);
    tr->nknown += !k->handle;
    *k = (struct known){h.id, r};
}

/* An input of the graph for a tensor or, without one, for data. */
static ref tracer_capture(struct kl_tracer *tr, kl_tensor h, struct buffer *data, const struct view *v)
{
    if (!mem_reserve(&tr->captured, &tr->captured_cap, tr->ncaptured + 1, sizeof *tr->captured)) {
        err_set(&tr->err, KL_ERR_MEMORY, "out of memory");
        return NIL;
    }
    ref r = n_input(tr->g, v->dtype, &v->shape, "");
    if (!r)
        return NIL;
    tr->g->node[r].device = (uint16_t)device_index(v->device);
    tr->captured[tr->ncaptured++] = (struct tracer_input){h, data ? buffer_ref(data) : NULL, v->device};
    return r;
}

static ref node_of(struct kl_tracer *tr, kl_tensor h)
{
    ref r = node_known(tr, h);
    struct view v;
    if (r || tr->err.code || !describe(tr->t, "tracer", "a tensor", h, &v))
        return r;
    r = tracer_capture(tr, h, NULL, &v);
    if (r)
        tracer_map_insert(tr, h, r);
    return r;
}

/* ---- calls ---- */

static bool tracer_broadcast(struct graph *g, struct node *n)
{
    struct shape all = *node_shape(g, n->in[0]);
    for (unsigned i = 1; i < n->nin; i++)
        if (!broadcast_shape(&all, node_shape(g, n->in[i])))
            return false; /* the call itself reports the error */
    for (unsigned i = 0; i < n->nin; i++)
        if (!shape_equal(&all, node_shape(g, n->in[i])))
            n->in[i] = n_broadcast(g, n->in[i], &all);
    return true;
}

/* Under autocast calls may mix dtypes: numbers have the dtype that an operand had before it was cast.  The widest dtype
 * is used and noted, because under autocast the repeated graph casts the operand, and these numbers, again. */
static void tracer_promote(struct kl_tracer *tr, struct node *n)
{
    struct graph *g = tr->g;
    bool wide = false, narrow = false;
    if (n->op == OP_grad || op_is_quant(n->op))
        return;
    for (unsigned i = 0; i < n->nin; i++) {
        wide |= node_at(g, n->in[i])->dtype == KL_F32;
        narrow |= dtype_is_half(node_at(g, n->in[i])->dtype);
    }
    for (unsigned i = 0; i < n->nin && wide && narrow; i++) {
        const struct node *a = node_at(g, n->in[i]);
        if (!dtype_is_half(a->dtype))
            continue;
        if (!mem_reserve(&tr->wide, &tr->wide_cap, tr->nwide + 1, sizeof *tr->wide)) {
            err_set(&tr->err, KL_ERR_MEMORY, "out of memory");
            return;
        }
        n->in[i] = a->op == OP_const ? n_const(g, KL_F32, dtype_bits(KL_F32, dtype_value(a->dtype, a->attr.konst.bits)))
                                     : n_cast(g, n->in[i], KL_F32);
        tr->wide[tr->nwide++] = n->in[i];
    }
}

/* The node of a call to an op of ops.def. */
static ref add_call(struct kl_tracer *tr, const struct call *c)
{
    struct graph *g = tr->g;
    struct node n = c->proto;
    n.nin = (uint8_t)call_operands(c);
    for (unsigned i = 0; i < n.nin; i++)
        if (!(n.in[i] = node_of(tr, c->in[i])))
            return NIL;
    kl_device device = n.nin && n.op != OP_copy ? device_of(node_at(g, n.in[n.op == OP_grad])->device) : c->device;
    struct view v = {n.dtype, c->target, device};
    if (n.op == OP_input)
        return c->data ? tracer_capture(tr, kl_none, c->data, &v) : NIL;
    g->cur_device = (uint16_t)device_index(device);
    g->cur_site = graph_site(g, c->site);
    if (n.op == OP_slot)
        return n_const(g, n.dtype, c->bits);
    tracer_promote(tr, &n);
    if (op_is_elementwise(n.op) && !tracer_broadcast(g, &n))
        return NIL;
    ref r = graph_add(g, &n, c->has_target ? &c->target : NULL);
    if (r && tr->t->no_grad && n.nin && node_carries_gradient(node_at(g, r)))
        g->node[r].flags |= MARK_STOP;
    return r;
}

static ref add_region(struct kl_tracer *tr, const struct kl_call *c)
{
    ref *in = mem_alloc((c->nin + 1) * sizeof *in), r = NIL;
    bool ok = in != NULL;
    for (uint32_t i = 0; i < c->nin && ok; i++)
        ok = (in[i] = node_of(tr, c->in[i])) != NIL;
    if (ok && !(r = control_copy(c->region, tr->g, in, c->nin)))
        err_set(&tr->err, KL_ERR_ARGUMENT, "%s cannot be traced: it looks at values (kl_print), or there was no memory",
                call_label(c));
    mem_free(in);
    return r;
}

/* In recorded functions only the op counts; but the outer tap sees the calls of one element in kl_vmap. */
static bool tracer_is_active(struct kl_tracer *tr)
{
    const struct trace *now = thread_trace(tr->t);
    const struct vmap *v = tr->t->vmap;
    if (!now || !now->region)
        return true;
    if (tr->tap != KL_TAP_CALLS || !v || now != v->trace)
        return false;
    return tr->elements = true;
}

static kl_status tracer_record_call(void *ctx, kl_call *c, kl_keyset keys)
{
    (void)keys;
    unsigned which = *(const unsigned *)ctx;
    struct kl_tracer *tr = c->t->tracer[which];
    /* a user's op is recorded as the ops of its kernel */
    if (!tr || (!c->graph && !c->region) || !tracer_is_active(tr))
        return kl_redispatch_below(c);
    ref r = tr->err.code ? NIL : c->graph ? add_call(tr, c->graph) : add_region(tr, c);
    if (tr->g->err.code)
        tr->err = tr->g->err;
    struct thread_layers before = layers_save(c->t);
    c->t->excluded |= LAYER_BIT(layer_of[which]);
    kl_status status = kl_redispatch_below(c);
    layers_restore(c->t, before);
    for (uint32_t i = 0; i < c->nout && r && !status; i++)
        tracer_map_insert(tr, c->out[i], c->graph ? r : r + 1 + i);
    return status;
}

void tracer_assigned(struct thread *t, kl_tensor state, kl_tensor value)
{
    for (unsigned which = 0; which < 2; which++) {
        struct kl_tracer *tr = t->tracer[which];
        if (tr && (node_known(tr, value) || node_known(tr, state)))
            tracer_map_insert(tr, state, node_of(tr, value));
    }
}

/* ---- the tracer ---- */

void kl_tracer_free(kl_tracer *tr)
{
    if (!tr)
        return;
    if (tr->t && tr->t->tracer[tr->tap] == tr) {
        tr->t->tracer[tr->tap] = NULL;
        tr->t->included &= ~LAYER_BIT(layer_of[tr->tap]);
    }
    for (uint32_t i = 0; i < tr->ncaptured; i++)
        buffer_unref(tr->captured[i].data);
    graph_free(tr->g);
    mem_free(tr->captured);
    mem_free(tr->known);
    mem_free(tr->wide);
    mem_free(tr->text);
    mem_free(tr);
}

static bool tracer_start(struct kl_tracer *tr, uint32_t nin, const kl_tensor *in)
{
    static const unsigned number[] = {KL_TAP_CALLS, KL_TAP_RECORDED};
    static const struct transform layer[] = {
        {.kernel = {.name = "tracer of calls", .call = tracer_record_call, .ctx = (void *)(uintptr_t)&number[0]}},
        {.kernel = {.name = "tracer of what is recorded", .call = tracer_record_call, .ctx =
            (void *)(uintptr_t)&number[1]}}};
    struct thread *t = tr->t;
    struct err e;
    e.code = KL_OK;
    kl_key key = tr->tap == KL_TAP_CALLS ? KL_KEY_TracerOuter : KL_KEY_Tracer;
    if (!dispatch_layer(NULL, key, &layer[tr->tap], &e))
        return fail(t, e.code, "tracer_begin: %s", e.msg) == KL_OK;
    if (!(tr->g = graph_new("traced")))
        return fail(t, KL_ERR_MEMORY, "tracer_begin: out of memory") == KL_OK;
    for (uint32_t i = 0; i < nin; i++) {
        struct view v;
        char what[32];
        snprintf(what, sizeof what, "in[%u]", i);
        if (!describe(t, "tracer_begin", what, in[i], &v))
            return false;
        ref r = n_input(tr->g, v.dtype, &v.shape, "");
        if (!r)
            return fail(t, KL_ERR_MEMORY, "tracer_begin: out of memory") == KL_OK;
        tr->g->node[r].device = (uint16_t)device_index(v.device);
        tracer_map_insert(tr, in[i], r);
    }
    tr->nin = nin;
    return true;
}

kl_tracer *kl_tracer_begin(kl_tap which, int64_t nin, const kl_tensor *in)
{
    struct thread *t = thread_self();
    if (!t)
        return NULL;
    const char *why = which != KL_TAP_CALLS && which != KL_TAP_RECORDED ? "there is no such tap"
                      : nin && !in                                    ? "in is NULL"
                      : t->tracer[which]                              ? "this thread has one open at this tap" : NULL;
    if (why)
        return fail(t, KL_ERR_ARGUMENT, "tracer_begin: %s", why), NULL;
    if (!counts_valid(t, "tracer_begin", COUNTS({"nin", nin})))
        return NULL;
    if (region_refuses(t, "tracer_begin"))
        return NULL;
    struct kl_tracer *tr = mem_alloc(sizeof *tr);
    if (!tr)
        return fail(t, KL_ERR_MEMORY, "tracer_begin: out of memory"), NULL;
    tr->t = t;
    tr->tap = which;
    if (!tracer_start(tr, (uint32_t)nin, in)) {
        kl_tracer_free(tr);
        return NULL;
    }
    t->tracer[which] = tr;
    t->included |= LAYER_BIT(layer_of[which]);
    return tr;
}

kl_status kl_tracer_end(kl_tracer *tr, int64_t nout, const kl_tensor *out)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (!tr || tr->t != t || (nout && !out))
        return fail(t, KL_ERR_ARGUMENT, "tracer_end: %s", tr &&
                    tr->t == t ? "out is NULL" : "this thread has not begun it");
    if (!counts_valid(t, "tracer_end", COUNTS({"nout", nout})))
        return KL_ERR_ARGUMENT;
    t->tracer[tr->tap] = NULL;
    t->included &= ~LAYER_BIT(layer_of[tr->tap]);
    for (uint32_t i = 0; i < nout && !tr->err.code; i++) {
        ref r = node_known(tr, out[i]);
        if (!r)
            err_set(&tr->err, KL_ERR_ARGUMENT, "out[%u] was made by none of the calls", i);
        else if (!graph_output(tr->g, OUT_RETURN, r, 0))
            tr->err = tr->g->err;
    }
    tr->nout = (uint32_t)nout;
    tr->t = NULL;
    return tr->err.code ? fail(t, tr->err.code, "tracer_end: %s", tr->err.msg) : KL_OK;
}

const char *kl_tracer_text(kl_tracer *tr)
{
    if (!tr)
        return NULL;
    mem_free(tr->text);
    return tr->text = graph_text(tr->g);
}

/* A new handle for input number i, which is data that a call was given. */
static kl_tensor captured_data(const char *op, const kl_tracer *tr, uint32_t i)
{
    const struct leaf *l = &tr->g->input.v[i];
    const struct tracer_input *c = &tr->captured[i - tr->nin];
    return record(&(struct call){.op = op, .proto = {.op = OP_input, .dtype = l->dtype},
                                 .has_target = true, .target = tr->g->shape[l->shape], .device = c->device,
                                 .data = buffer_ref(c->data)});
}

static const struct graph *recorded_graph(const kl_tracer *tr) { return tr->g; }

/* A graph of ops that an exporter has, for graph_free. */
static struct graph *simplify_for_export(const struct graph *traced, struct err *e)
{
    struct graph *g = graph_clone(traced);
    if (g && passes_run_first(g, 0, FOR_EXPORT, NULL))
        return g;
    if (g && g->err.code)
        *e = g->err;
    else
        err_set(e, KL_ERR_MEMORY, "out of memory");
    graph_free(g);
    return NULL;
}

static kl_tensor captured_input(const kl_tracer *tr, uint32_t i, bool *own)
{
    const struct tracer_input *c = &tr->captured[i - tr->nin];
    *own = c->data != NULL;
    return *own ? captured_data("model_save", tr, i) : c->h;
}

const struct traced_graph_functions *kl_traced_graph_functions(void)
{
    static const struct traced_graph_functions functions = {KILN_VERSION, recorded_graph, captured_input,
                                                            simplify_for_export, graph_free};
    return &functions;
}

/* The graph's inputs: the given ones, whose types must be equal, and captured ones. false: reported. */
static bool gather_inputs(struct thread *t, const kl_tracer *tr, const kl_tensor *in, kl_tensor *all)
{
    for (uint32_t i = 0; i < tr->g->input.n; i++) {
        const struct leaf *l = &tr->g->input.v[i];
        const struct shape *s = &tr->g->shape[l->shape];
        struct view v;
        char what[32], a[SHAPE_TEXT], b[SHAPE_TEXT];
        if (i >= tr->nin && tr->captured[i - tr->nin].data) {
            all[i] = captured_data("tracer_run", tr, i);
            continue;
        }
        all[i] = i < tr->nin ? in[i] : tr->captured[i - tr->nin].h;
        snprintf(what, sizeof what, i < tr->nin ? "in[%u]" : "a tensor that it uses", i);
        if (!describe(t, "tracer_run", what, all[i], &v))
            return false;
        if (v.dtype != l->dtype || !shape_equal(&v.shape, s))
            return fail(t, KL_ERR_SHAPE, "tracer_run: %s is %s%s, not the %s%s that was traced", what,
                        dtype_name(v.dtype),
                        shape_text(&v.shape, a, sizeof a), dtype_name(l->dtype), shape_text(s, b, sizeof b)) == KL_OK;
    }
    return true;
}

/* By node: is it one of tr->wide, or a view of one?  NULL: out of memory. */
static bool *wide_nodes(const kl_tracer *tr)
{
    bool *wide = mem_alloc(tr->g->nnode);
    for (uint32_t i = 0; wide && i < tr->nwide; i++)
        wide[tr->wide[i]] = true;
    for (ref r = 1; wide && r < tr->g->nnode; r++) {
        const struct node *n = node_at(tr->g, r);
        wide[r] |= (n->op == OP_reshape || n->op == OP_expand) && wide[n->in[0]];
    }
    return wide;
}

static bool tracer_replay(struct thread *t, const kl_tracer *tr, const kl_tensor *in, kl_tensor *out)
{
    uint32_t n = tr->g->input.n;
    struct batch b = {.t = t};
    kl_tensor *all = mem_alloc((n + 1) * sizeof *all);
    bool *batched = mem_alloc(n + tr->nout + 1);
    b.wide = tr->nwide ? wide_nodes(tr) : NULL;
    bool room = all && batched && (b.wide || !tr->nwide), ok = room && gather_inputs(t, tr, in, all);
    if (!room || (ok && !batch_graph(&b, tr->g, all, batched, out, batched + n)))
        ok = fail(t, KL_ERR_MEMORY, "tracer_run: out of memory") == KL_OK;
    mem_free(all);
    mem_free(batched);
    mem_free(b.wide);
    return ok;
}

kl_status kl_tracer_run(const kl_tracer *tr, int64_t nin, const kl_tensor *in, int64_t nout, kl_tensor *out)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    const char *why =
        !tr || tr->t                         ? "the tracer is NULL, or has not ended"
        : (nin && !in) || (nout && !out)     ? "a list of tensors is NULL"
        : nin != tr->nin || nout != tr->nout ? "other numbers of tensors than were traced"
        : tr->elements
            ? "calls in kl_vmap were traced as those of one element: KL_TAP_RECORDED traces what can run again"
        : tr->err.code ? tr->err.msg
                       : NULL;
    uint32_t results = count_or_none(nout);
    for (uint32_t i = 0; out && i < results; i++)
        out[i] = kl_none;
    bool ok = !(t->tracing && t->trace->err.code);
    ok = ok && counts_valid(t, "tracer_run", COUNTS({"nin", nin}, {"nout", nout}));
    if (ok && why)
        ok = fail(t, KL_ERR_ARGUMENT, "tracer_run: %s", why) == KL_OK;
    if (ok && !compose_begin_on(t, NULL))
        ok = fail(t, KL_ERR_MEMORY, "tracer_run: out of memory") == KL_OK;
    else if (ok) {
        ok = tracer_replay(t, tr, in, out);
        compose_end_all(t, out, ok ? results : 0);
    }
    kl_status status = ok ? KL_OK : t->tracing ? t->trace->err.code : t->last.code;
    for (uint32_t i = 0; out && i < results; i++) {
        if (!ok)
            out[i] = poison(t);
        else if (!status)
            status = kl_check(out[i]);
    }
    return status;
}
