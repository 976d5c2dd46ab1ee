/* From a call to its kernel: key sets of arguments, users' kernels, calls by name. */
#include "frontend/frontend.h"
#include <string.h>

/* ---- keys ---- */

uint64_t device_bits[MAX_DEVICES]; /* by device number; filled once, before the first call */

void device_keys_start(void)
{
    for (int i = 0; i < DEVICE_END; i++) {
        unsigned dev = i < DEVICE_PLUGIN ? device_component(device_name(i))
                                         : DEV_PrivateUse1 + (unsigned)(i - DEVICE_PLUGIN) / DEVICES_A_KIND;
        device_bits[i] = dev ? DEV_BIT(dev) : i == DEVICE_META ? LAYER_BIT(LAYER_Meta) : 0;
    }
}

uint64_t device_keys(kl_device d) { return device_valid(d) ? device_bits[device_index(d)] : 0; }

kl_keyset kl_dispatch_keys(int64_t nin, const kl_tensor *in)
{
    struct thread *t = thread_self();
    uint64_t bits = 0;
    for (int64_t i = 0; t && in && i < nin; i++)
        bits |= handle_keys(in[i]);
    return (kl_keyset){t ? thread_keys(t, bits) : 0};
}

kl_key kl_dispatch_resolve(const char *name, kl_keyset keys)
{
    kl_key key = KL_KEY_Undefined;
    const struct dispatch_op *op = thread_self() ? dispatch_find(name) : NULL;
    return op && dispatch_resolve(op, keys.bits & SET_BITS, &key) ? key : KL_KEY_Undefined;
}

/* ---- guards ---- */

kl_guard kl_dispatch_guarded(void)
{
    const struct thread *t = thread_self();
    return t ? (kl_guard){{t->included}, {t->excluded}} : (kl_guard){{0}, {0}};
}

kl_guard kl_dispatch_guard(kl_keyset include, kl_keyset exclude)
{
    struct thread *t = thread_self();
    kl_guard before = {{0}, {0}};
    if (t) {
        before = (kl_guard){{t->included}, {t->excluded}};
        t->included |= include.bits & SET_BITS;
        t->excluded |= exclude.bits & SET_BITS & (exclude.bits & ~DEV_MASK ? ~DEV_MASK : DEV_MASK);
    }
    return before;
}

void kl_dispatch_restore(kl_guard before)
{
    struct thread *t = thread_self();
    if (t) {
        t->included = before.included.bits & SET_BITS;
        t->excluded = before.excluded.bits & SET_BITS;
    }
}

kl_status kl_dispatch_mark(kl_tensor h, kl_keyset layers)
{
    struct thread *t = thread_self();
    struct err e;
    e.code = KL_OK;
    struct entry *x = t ? entry_find(h, "the tensor", &e) : NULL;
    if (!x)
        return t ? fail(t, e.code, "dispatch_mark: %s", e.msg) : KL_ERR_MEMORY;
    x->layers |= layers.bits & COMPONENTS & ~DEV_MASK;
    return KL_OK;
}

/* ---- kernels ---- */

static kl_status call_failed(const struct kl_call *c)
{
    return c->t->tracing && c->t->trace->err.code ? c->t->trace->err.code : c->t->last.code;
}

static kl_status refuse_call(struct kl_call *c, kl_status code, const char *text)
{
    fail(c->t, code, "%s: %s", call_label(c), text);
    for (uint32_t i = 0; i < c->nout; i++)
        c->out[i] = poison(c->t);
    return call_failed(c);
}

static bool is_poison(kl_tensor h)
{
    const struct entry *x = entry_peek(h);
    return x && x->kind == KIND_POISON;
}

/* A kernel's results must be new and complete; NULL: they are. */
static const char *bad_result(const struct kl_call *c)
{
    for (uint32_t i = 0; i < c->nout; i++) {
        if (!c->out[i].id)
            return "has set no result";
        for (uint32_t k = 0; k < c->nin; k++)
            if (c->out[i].id == c->in[k].id && !is_poison(c->out[i]))
                return "gives an operand as a result: it has to be a new handle, such as a kl_reshape";
    }
    return NULL;
}

/* The error of a kernel that failed, or did not set valid results. */
static __attribute__((noinline, cold)) kl_status user_failed(struct kl_call *c, const struct op_kernel *k,
                                                             kl_status status,
                                                             const char *bad, kl_status before)
{
    struct thread *t = c->t;
    char text[160];
    if (bad)
        snprintf(text, sizeof text, "kernel %s for %s %s", k->name, kl_key_name(c->key), bad);
    else
        snprintf(text, sizeof text, "kernel %s for %s failed: %s", k->name, kl_key_name(c->key), status_name(status));
    bool said = status && ((t->tracing && t->trace->err.code) || (t->last.code == status && before != status));
    if (!said)
        return refuse_call(c, bad ? KL_ERR_ARGUMENT : status, text);
    for (uint32_t i = 0; i < c->nout; i++)
        c->out[i] = poison(t);
    return status;
}

static __attribute__((noinline, cold)) kl_status too_deep(struct kl_call *c)
{
    c->t->kernels++;
    return refuse_call(c, KL_ERR_ARGUMENT, "kernels call one another without end");
}

/* The end of a kernel that needs more than counting. scope: temporaries are released, except the results. */
static __attribute__((noinline)) kl_status user_end(struct kl_call *c, const struct op_kernel *k, kl_status status,
                                                    kl_status before, const char *bad, bool scope)
{
    if (!bad && !status)
        bad = bad_result(c);
    bool failed = bad || status;
    c->check_results = c->nout != 1;
    if (scope)
        compose_end_all(c->t, failed ? NULL : c->out, failed ? 0 : c->nout);
    return failed ? user_failed(c, k, status, bad, before) : KL_OK;
}

/* What is to be reported of a kernel that returned without an error: it left `open` without its end, or the thread is
 * in a trace that was not open before, or no longer in the one that was.  NULL: nothing. */
static const char *left_open(struct thread *t, bool tracing, const char *open, char text[], size_t size)
{
    if (!tracing && t->tracing) {
        trace_drop(t);
        open = "kl_trace_end";
    }
    if (tracing && !t->tracing)
        return "has ended the trace around it";
    if (open)
        snprintf(text, size, "returned without %s", open);
    return open ? text : NULL;
}

/* Outside of traces a kernel's temporaries need a scope. */
static __attribute__((noinline)) kl_status call_scoped(struct kl_call *c, const struct op_kernel *k)
{
    struct thread *t = c->t;
    struct blocks outer;
    char text[64];
    kl_status before = t->last.code;
    if (!compose_begin_on(t, NULL))
        return refuse_call(c, KL_ERR_MEMORY, "out of memory");
    if (--t->kernels <= 0) {
        compose_end_all(t, NULL, 0);
        return too_deep(c);
    }
    blocks_enter(t, &outer);
    kl_status status = k->fn.call(k->fn.ctx, c, (kl_keyset){c->keys});
    const char *open = blocks_end_open(t);
    blocks_leave(t, &outer);
    t->kernels++;
    return user_end(c, k, status, before, left_open(t, false, open, text, sizeof text), true);
}

/* The end of a kernel that was called in a trace and returned outside of it. */
static __attribute__((noinline, cold)) kl_status user_stopped(struct kl_call *c, const struct op_kernel *k,
                                                              kl_status before)
{
    char text[64];
    const char *open = blocks_resume(c->t) ? "kl_trace_resume" : NULL;
    return user_end(c, k, KL_OK, before, left_open(c->t, true, open, text, sizeof text), false);
}

/* Layers that pass calls on must be cheap: this code runs once for each of them. */
static inline __attribute__((always_inline)) kl_status call_user(struct kl_call *c, const struct op_kernel *k)
{
    struct thread *t = c->t;
    if (__builtin_expect(!t->tracing, 0))
        return call_scoped(c, k);
    if (__builtin_expect(--t->kernels <= 0, 0))
        return too_deep(c);
    kl_status before = t->last.code, status = k->fn.call(k->fn.ctx, c, (kl_keyset){c->keys});
    t->kernels++;
    if (__builtin_expect(!t->tracing, 0))
        return user_stopped(c, k, before);
    return __builtin_expect(status || c->check_results || !c->out[0].id, 0)
               ? user_end(c, k, status, before, NULL, false) : KL_OK;
}

/* Calls a transform, which records nothing besides the results that outlives the call. */
static inline kl_status transform_call(struct kl_call *c, const struct op_kernel *k)
{
    kl_status status = k->fn.call(k->fn.ctx, c, (kl_keyset){c->keys});
    for (uint32_t i = 0; i < c->nout && status; i++)
        if (!c->out[i].id)
            c->out[i] = poison(c->t);
    return status;
}

/* Kernels that are not Kiln's get operands on one device, like Kiln's own. */
static bool one_device(const struct kl_call *c)
{
    bool free = c->graph && (c->graph->proto.op == OP_copy || c->graph->proto.op == OP_grad);
    uint64_t all = 0;
    for (uint32_t i = 0; i < c->nin && !free; i++)
        all |= handle_keys(c->in[i]);
    if (free || !(all & (all - 1) & DEV_MASK))
        return true;
    struct entry *a = NULL, *b = NULL;
    struct err e;
    e.code = KL_OK;
    for (uint32_t i = 0; i < c->nin; i++) {
        struct entry *x = entry_find(c->in[i], "operand", &e);
        if (x && !a)
            a = x;
        else if (x && x->device != a->device)
            b = x;
    }
    fail(c->t, KL_ERR_DEVICE, "%s: operands are on devices %s and %s", call_label(c),
         kl_device_name(device_of(a->device)), kl_device_name(device_of(b ? b->device : a->device)));
    for (uint32_t i = 0; i < c->nout; i++)
        c->out[i] = poison(c->t);
    return false;
}

struct entry *const *call_found(struct kl_call *c)
{
    if (c->reads != c->t->reads)
        for (uint32_t i = 0; i < c->nin; i++)
            c->found[i] = entry_peek(c->in[i]);
    c->reads = c->t->reads;
    return c->found;
}

static inline kl_status record_own(struct kl_call *c, struct entry *const *found)
{
    c->out[0] = record_node(c->t, c->graph, found);
    return __builtin_expect(c->graph->failed, 0) ? call_failed(c) : KL_OK;
}

/* Kiln's own kernel. */
static kl_status call_builtin_kernel(struct kl_call *c)
{
    return c->graph ? record_own(c, call_found(c)) : record_region(c->region);
}

static __attribute__((noinline, cold)) kl_status no_kernel(struct kl_call *c, const struct op_kernel *k)
{
    struct err e;
    e.code = KL_OK;
    if (!k)
        dispatch_missing(c->op, c->key, &e);
    else
        err_set(
            &e, KL_ERR_ARGUMENT,
            "%s has kernels registered to both Math and a backend mapped to AutogradOther. This "
            "makes the backend kernel unreachable (see Note [Ambiguity in AutogradOther kernel]). If it's intended to "
            "override Math kernel behavior, please open an issue to request a dedicated Autograd dispatch key for the "
            "backend.",
            c->op->name);
    return refuse_call(c, e.code, e.msg);
}

static kl_status call_other(struct kl_call *c, const struct op_kernel *k);

static inline __attribute__((always_inline)) kl_status call_any(struct kl_call *c, const struct op_kernel *k)
{
    if (__builtin_expect(k && k->kind == KERNEL_CALL && c->one_device, 1))
        return call_user(c, k);
    if (k && k->kind == KERNEL_TRANSFORM)
        return transform_call(c, k);
    return k && k->kind == KERNEL_BUILTIN ? call_builtin_kernel(c) : call_other(c, k);
}

/* Resolves with c->keys; how: for the log. */
static inline __attribute__((always_inline)) kl_status resolve_call(struct kl_call *c, const char *how)
{
    c->device = (uint8_t)top_device(c->keys);
    const struct op_kernel *k = dispatch_resolve(c->op, c->keys, &c->key);
    if (__builtin_expect(c->t->watch, 0))
        dispatch_note(c->t, c->op, c->key, how);
    return call_any(c, k);
}

/* The rare kinds of kernels. */
static __attribute__((noinline)) kl_status call_other(struct kl_call *c, const struct op_kernel *k)
{
    if (!k || k->kind == KERNEL_AMBIGUOUS)
        return no_kernel(c, k);
    if (k->kind == KERNEL_SELECT) { /* for ops without operands, which have a device argument */
        c->keys = (c->keys & ~DEV_MASK & ~LAYER_BIT(LAYER_BackendSelect)) | device_keys(c->graph->device);
        return resolve_call(c, "call");
    }
    if (k->kind == KERNEL_LAYER)
        return layer_call(c, k);
    if (!c->one_device && !one_device(c))
        return call_failed(c);
    return k->kind == KERNEL_RUN ? backend_record(c, k) : call_user(c, k);
}

kl_status call_kernel(struct kl_call *c, const struct op_kernel *k)
{
    c->device = (uint8_t)top_device(c->keys);
    return call_any(c, k);
}

/* Fills in the fields that kernels see once for all kernels of the call, as pointers to the caller's data. */
static inline __attribute__((always_inline)) void fill_frame(struct kl_call *c, struct thread *t, struct call *g,
                                                             bool one_device,
                                                             uint64_t keys, kl_tensor *out)
{
    c->t = t;
    c->keys = keys;
    c->one_device = one_device;
    c->check_results = false;
    c->site = g->site;
    c->nout = 1;
    c->in = g->in;
    c->out = out;
    c->graph = g;
    c->reads = t->reads;
}

static __attribute__((noinline)) kl_tensor call_at_once(struct kl_call *c, struct thread *t, struct call *g,
                                                        uint64_t keys,
                                                        const struct op_kernel *k)
{
    kl_tensor out = kl_none;
    fill_frame(c, t, g, true, keys, &out);
    if (__builtin_expect(k->kind == KERNEL_CALL, 1))
        call_user(c, k);
    else
        transform_call(c, k);
    return out;
}

/* Kept out of the path of users' kernels. */
static __attribute__((noinline)) kl_tensor call_rest(struct kl_call *c, struct thread *t, struct call *g, uint64_t own,
                                                     uint64_t keys,
                                                     const struct op_kernel *k)
{
    if (t->watch) {
        dispatch_note(t, c->op, c->key, "call");
        k = t->plain ? &kernel_builtin : k;
    }
    kl_tensor out = kl_none;
    fill_frame(c, t, g, !(own & (own - 1) & DEV_MASK), keys, &out);
    call_any(c, k);
    return out;
}

/* Starts with k, dispatch_top's result, if that cannot be called directly. */
static __attribute__((noinline)) kl_tensor call_first(struct kl_call *c, struct thread *t, struct call *g, uint64_t own,
                                                      uint64_t keys,
                                                      const struct op_kernel *k)
{
    k = dispatch_from_top(c->op, keys, k, &c->key);
    if (!k || t->watch)
        return call_rest(c, t, g, own, keys, k);
    if (k->marks && dispatch_is_node(c->op, keys_below(keys, c->key))) {
        g->marks = k->marks;
        return record_node(t, g, c->found);
    }
    if (k->idle && k->idle(t, g, c->nin, c->found)) {
        keys = keys_below(keys, c->key);
        return dispatch_is_node(c->op, keys) ? record_node(t, g, c->found)
            : call_for_node(c, t, g, own, keys, top_device(keys));
    }
    return call_rest(c, t, g, own, keys, k);
}

kl_tensor call_for_node(struct kl_call *c, struct thread *t, struct call *g, uint64_t own, uint64_t keys, unsigned dev)
{
    c->device = (uint8_t)dev;
    const struct op_kernel *k = dispatch_top(c->op, keys, dev, &c->key);
    bool at_once = k && k->at_once && !t->watch && !(own & (own - 1) & DEV_MASK);
    return __builtin_expect(at_once, 1) ? call_at_once(c, t, g, keys, k) : call_first(c, t, g, own, keys, k);
}

/* Redispatches to any kernel: the call has these keys while it runs. */
static __attribute__((noinline)) kl_status redispatch_any(kl_call *c, uint64_t keys)
{
    uint64_t before = c->keys;
    kl_key key = c->key;
    uint8_t device = c->device;
    c->keys = keys;
    kl_status status = resolve_call(c, "redispatch");
    c->keys = before;
    c->key = key;
    c->device = device;
    return status;
}

/* Most redispatches end in the op's own node, which uses no keys, so the call is not changed. */
static inline bool redispatch_is_node(const kl_call *c, uint64_t keys, unsigned dev)
{
    return dispatch_is_node_on(c->op, keys, dev) && !c->t->watch && c->reads == c->t->reads;
}

kl_status kl_redispatch(kl_call *c, kl_keyset keys)
{
    uint64_t bits = keys.bits & SET_BITS;
    return redispatch_is_node(c, bits, top_device(bits)) ? record_own(c, c->found) : redispatch_any(c, bits);
}

kl_status kl_redispatch_below(kl_call *c)
{
    uint64_t bits = c->keys & key_below[c->key]; /* with ORDER_16 it is never the node */
    bool node = redispatch_is_node(c, bits, (unsigned)c->key < DEV_SLOTS ? top_device(bits) : c->device);
    return __builtin_expect(node, 1) ? record_own(c, c->found)
        : redispatch_any(c, keys_below(c->keys, c->key));
}

/* ---- functions for kernels ---- */

const char *kl_call_op(const kl_call *c) { return c->op->name; }
const char *kl_call_schema(const kl_call *c) { return c->op->schema ? c->op->schema : c->op->name; }
kl_key kl_call_key(const kl_call *c) { return c->key; }
int64_t kl_call_inputs(const kl_call *c) { return c->nin; }
kl_tensor kl_call_input(const kl_call *c, int64_t i) { return i >= 0 && i < c->nin ? c->in[i] : kl_none; }
int64_t kl_call_results(const kl_call *c) { return c->nout; }
kl_tensor kl_call_result(const kl_call *c, int64_t i) { return i >= 0 && i < c->nout ? c->out[i] : kl_none; }

void kl_call_set_input(kl_call *c, int64_t i, kl_tensor t)
{
    if (i >= 0 && i < c->nin) {
        c->in[i] = t;
        c->one_device = false;
        c->reads = 0;
    }
}

void kl_call_set_result(kl_call *c, int64_t i, kl_tensor t)
{
    if (i >= 0 && i < c->nout) {
        c->out[i] = t;
        c->check_results = true;
    }
}

/* ---- calls by name ---- */

enum how { BY_ARGUMENTS, BY_KEYS, BY_KEY };

/* Why the op cannot be called in this way, NULL if it can. */
static const char *check_call(const struct dispatch_op *op, uint32_t nin, const kl_tensor *in, uint32_t nout,
                          const kl_tensor *out)
{
    if (!op)
        return "no op is called that";
    if ((nin && !in) || (nout && !out))
        return "a list of tensors is NULL";
    if (op->graph_op && !op_is_elementwise(op->graph_op))
        return "by name only elementwise ops and those of the user's own are called: this one has attributes";
    dispatch_lock();
    bool fits = (op->nin == nin || op->nin == VARIES) && (op->nout == nout || op->nout == VARIES),
        defined = op->defined;
    dispatch_unlock();
    return !defined ? "it has kernels, but it is not defined (kl_dispatch_define)"
           : !fits ? "its schema has other numbers of tensors" : NULL;
}

/* Reports the missing kernel for a set of keys, or one key, with the message of the 16-bit dispatcher. */
static void missing_for(const struct kl_call *c, enum how how, struct err *e)
{
    char set[400];
    if (how == BY_ARGUMENTS)
        dispatch_missing(c->op, c->key, e);
    else if (how == BY_KEY)
        err_set(e, KL_ERR_ARGUMENT, "Dispatcher::call_direct(%s, %s): no kernel registered", c->op->name,
                kl_key_name(c->key));
    else if (!c->keys)
        err_set(e, KL_ERR_ARGUMENT, "Dispatcher::call(%s): empty keyset — no backend to run on", c->op->name);
    else
        err_set(e, KL_ERR_ARGUMENT, "Dispatcher::call(%s): no kernel registered for any key in DispatchKeySet %s",
                c->op->name,
                kl_keyset_text((kl_keyset){c->keys}, set, sizeof set));
}

static kl_status call_by_name(const char *name, enum how how, uint64_t keys, kl_key key,
                              int64_t number_in, const kl_tensor *in, int64_t number_out, kl_tensor *out)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    const struct dispatch_op *op = dispatch_find(name);
    char bad_count[80] = "";
    const struct named_count *bad = first_bad_count(COUNTS({"nin", number_in}, {"nout", number_out}));
    uint32_t nin = count_or_none(number_in), nout = count_or_none(number_out);
    const char *why = bad ? bad_count_text(bad, bad_count, sizeof bad_count) : check_call(op, nin, in, nout, out);
    kl_tensor few[16], *copy = nin <= 16 || why ? few : mem_alloc(nin * sizeof *copy);
    struct call graph = {.site = t->site, .op = op ? op->name : "", .proto.op = op ? op->graph_op : 0};
    struct kl_call c = {.t = t, .op = op, .keys = keys, .key = key, .site = t->site, .label = name ? name : "",
                        .nin = nin, .nout = nout,
                        .check_results = nout != 1, .in = op && op->graph_op ? graph.in : copy, .out = out,
                        .graph = op && op->graph_op ? &graph : NULL};
    for (uint32_t i = 0; out && i < nout; i++)
        out[i] = kl_none;
    if (t->tracing && t->trace->err.code)
        why = "the trace has failed"; /* the trace keeps its first error */
    if (why || !copy) {
        c.nout = out ? nout : 0;
        return refuse_call(&c, why ? KL_ERR_ARGUMENT : KL_ERR_MEMORY, why ? why : "out of memory");
    }
    if (nin)
        memcpy(c.in, in, nin * sizeof *in);
    for (uint32_t i = 0; i < nin && how == BY_ARGUMENTS; i++)
        keys |= handle_keys(in[i]);
    c.keys = how == BY_ARGUMENTS ? thread_keys(t, keys) : keys & SET_BITS;
    if (t->vmap && how == BY_ARGUMENTS && !op->graph_op)
        c.keys |= keys & DEV_MASK; /* it becomes graph ops here, not when the batch is recorded */
    const struct op_kernel *k = how != BY_KEY ? dispatch_resolve(op, c.keys, &c.key)
                             : (unsigned)key < KL_KEY_COUNT ? atomic_load_explicit(&op->entry[key],
                                                                                   memory_order_acquire) : NULL;
    if (how == BY_KEYS && c.key == KL_KEY_Undefined && !c.keys)
        k = NULL;
    if (t->watch && k)
        dispatch_note(t, op, c.key, "call");
    struct err e;
    e.code = KL_OK;
    if (!k || k->kind == KERNEL_FALLTHROUGH)
        missing_for(&c, how, &e);
    kl_status status = e.code ? refuse_call(&c, e.code, e.msg) : call_kernel(&c, k);
    if (copy != few)
        mem_free(copy);
    return status;
}

kl_status kl_dispatch(const char *op, int64_t nin, const kl_tensor *in, int64_t nout, kl_tensor *out)
{
    return call_by_name(op, BY_ARGUMENTS, 0, KL_KEY_Undefined, nin, in, nout, out);
}

kl_status kl_dispatch_with(const char *op, kl_keyset keys, int64_t nin, const kl_tensor *in,
                           int64_t nout, kl_tensor *out)
{
    return call_by_name(op, BY_KEYS, keys.bits, KL_KEY_Undefined, nin, in, nout, out);
}

kl_status kl_dispatch_direct(const char *op, kl_key key, int64_t nin, const kl_tensor *in, int64_t nout, kl_tensor *out)
{
    return call_by_name(op, BY_KEY, kl_keyset_of(key).bits, key, nin, in, nout, out);
}
