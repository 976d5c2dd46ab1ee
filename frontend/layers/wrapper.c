/* Wrappers: handles that stand for several, and the calls that reach their layer. */
#include "wrapper.h"
#include <stdarg.h>
#include <string.h>

const struct wrapper *wrapper_of(kl_tensor h, const struct layer *layer)
{
    const struct entry *x = entry_peek(h);
    const struct wrapper *w = x && x->kind == KIND_WRAPPER ? x->wrapper : NULL;
    return w && (!layer || w->layer == layer) ? w : NULL;
}

struct view view_of(kl_tensor h)
{
    struct view v = {.dtype = KL_F32};
    describe(thread_self(), "layer", "the tensor", h, &v);
    return v;
}

/* ---- making ---- */

/* Another handle for what h means outside of traces; needs the lock. */
static kl_tensor duplicate_value(kl_tensor h, struct err *e)
{
    struct entry *x = deferred_recording() ? entry_find(h, "a part", e) : NULL;
    while (x && x->busy) {
        front_wait();
        x = entry_find(h, "a part", e);
    }
    if (x && x->requires_grad && x->node == NIL && deferred_node(x, e) == NIL)
        return kl_none;
    struct entry *y = x ? entry_new() : NULL;
    if (!y)
        return e->code ? kl_none : (err_set(e, KL_ERR_MEMORY, "out of memory"), kl_none);
    y->kind = KIND_VALUE;
    y->dtype = x->dtype;
    y->shape = x->shape;
    y->device = x->device;
    y->ad = x->ad;
    y->buffer = x->buffer ? buffer_ref(x->buffer) : NULL;
    if (x->node != NIL)
        deferred_bind(y, x->node);
    return entry_handle(y);
}

static kl_tensor duplicate_part(struct thread *t, kl_tensor h)
{
    struct trace *tr = thread_trace(t);
    const struct wrapper *w = wrapper_of(h, NULL);
    struct err e;
    e.code = KL_OK;
    if (w) {
        struct view v = view_of(h);
        kl_tensor copy = wrap(t, w->layer, &v, w->n, w->part, w->number);
        if (!wrapper_of(copy, NULL))
            return kl_none; /* poison, which says why */
        return tr ? copy : kl_keep(copy); /* no scope's, but the wrapper's */
    }
    kl_tensor again = kl_none;
    if (tr) {
        tr->site = t->site;
        ref r = node_of_handle(tr, h, "a part", &e);
        if (r == NIL && !e.code)
            take_graph_error(tr->r.g, "", &e);
        if (r != NIL)
            again = handle_of_node(t, tr, r, entry_peek(h)->ad, &e);
    } else {
        front_lock();
        again = duplicate_value(h, &e);
        front_unlock();
    }
    if (!again.id)
        fail(t, e.code ? e.code : KL_ERR_MEMORY, "%s", e.code ? e.msg : "out of memory");
    return again;
}

kl_tensor wrapper_duplicate(struct thread *t, kl_tensor h)
{
    kl_tensor again = duplicate_part(t, h);
    return again.id && (t->tracing || scope_note(t, again)) ? again : poison(t);
}

/* The parts of a wrapper that came to nothing. */
static void drop_parts(struct thread *t, uint32_t n, const kl_tensor *part)
{
    if (t->tracing)
        return; /* temporaries */
    front_lock();
    for (uint32_t i = 0; i < n; i++)
        if (part[i].id)
            handle_end(part[i], DEATH_RELEASED);
    front_unlock();
}

/* A live entry with room for a wrapper, which later handles of the entry use again; NULL: out of memory. */
static struct entry *new_entry(struct thread *t, struct trace *tr)
{
    if (!tr)
        front_lock();
    struct entry *x = tr ? entry_new_temp(t, tr) : entry_new();
    if (x && !x->wrapper && !(x->wrapper = mem_alloc(sizeof *x->wrapper))) {
        if (!tr) /* in one it is a temporary without a node, which goes with it */
            entry_free(x, DEATH_RELEASED);
        x = NULL;
    }
    if (!tr)
        front_unlock();
    return x;
}

kl_tensor wrap(struct thread *t, const struct layer *layer, const struct view *v, uint32_t n,
               const kl_tensor *part, const int64_t *number)
{
    static const int64_t none[WRAPPER_NUMBERS];
    struct trace *tr = thread_trace(t);
    struct view ignored;
    if (tr && tr->err.code)
        return tr->poison;
    for (uint32_t i = 0; i < n; i++) { /* poison is reported as what it is */
        const struct entry *x = entry_peek(part[i]);
        if (part[i].id && (!x || x->kind == KIND_POISON) && !describe(t, layer->name, "a part", part[i], &ignored))
            return poison(t);
    }
    kl_tensor own[MAX_PARTS] = {kl_none};
    bool ok = true;
    for (uint32_t i = 0; i < n && ok; i++) {
        own[i] = part[i].id ? duplicate_part(t, part[i]) : kl_none;
        ok = !part[i].id || own[i].id;
    }
    struct entry *x = ok ? new_entry(t, tr) : NULL;
    if (!x) {
        drop_parts(t, n, own);
        return ok ? refuse(t, KL_ERR_MEMORY, "%s: out of memory", layer->name) : poison(t);
    }
    struct wrapper *w = x->wrapper;
    w->layer = layer;
    w->n = n;
    memcpy(w->part, own, sizeof own);
    memcpy(w->number, number ? number : none, sizeof w->number);
    x->dtype = (uint8_t)v->dtype;
    x->shape = v->shape;
    x->device = (uint16_t)device_index(v->device);
    x->ad = device_ad(v->device);
    x->layers = LAYER_BIT(layer->key);
    x->kind = KIND_WRAPPER;
    kl_tensor h = entry_handle(x);
    if (tr || scope_note(t, h))
        return h;
    kl_release(h);
    return refuse(t, KL_ERR_MEMORY, "%s: out of memory", layer->name);
}

/* ---- calls ---- */

kl_tensor call_with(const struct call *c, kl_tensor a, kl_tensor b, kl_tensor d)
{
    struct call again = *c;
    again.in[0] = a;
    again.in[1] = b;
    again.in[2] = d;
    return record(&again);
}

kl_tensor call_dense(struct thread *t, const struct call *c, const struct layer *layer)
{
    struct call again = *c;
    for (unsigned i = 0; i < call_operands(c); i++)
        if (wrapper_of(c->in[i], layer))
            again.in[i] = layer->dense(t, c->in[i]);
    return record(&again);
}

kl_tensor call_refused(struct thread *t, const struct call *c, kl_status code, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    format_text_v(text, sizeof text, fmt, ap);
    va_end(ap);
    return refuse(t, code, "%s: %s", c->op, text);
}

/* The gradient of the parts that have one, wrapped like the variable. */
static kl_tensor call_grad(struct thread *t, const struct call *c)
{
    const struct wrapper *loss = wrapper_of(c->in[0], NULL), *w = wrapper_of(c->in[1], NULL);
    kl_tensor plain = loss ? loss->layer->dense(t, c->in[0]) : c->in[0];
    if (!w)
        return call_with(c, plain, c->in[1], kl_none);
    if (!w->layer->grad_parts)
        return call_refused(t, c, KL_ERR_GRAD, "a %s tensor has no gradient: ask for that of what it was made from",
                            w->layer->name);
    kl_tensor part[MAX_PARTS], variable[MAX_PARTS];
    struct call each = *c;
    int n = 0;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->layer->grad_parts >> i & 1 && w->part[i].id)
            variable[n++] = w->part[i];
    if (c->must_depend && !grads_check_dependence(t, "grad", plain, n, variable))
        return poison(t);
    each.must_depend = n == 1; /* zeros for the others */
    for (uint32_t i = 0; i < w->n; i++)
        part[i] = w->layer->grad_parts >> i & 1 && w->part[i].id ? call_with(&each, plain, w->part[i], kl_none)
            : w->part[i];
    struct view v = view_of(c->in[1]);
    return wrap(t, w->layer, &v, w->n, part, w->number);
}

static kl_tensor call_copy(struct thread *t, const struct call *c)
{
    const struct wrapper *w = wrapper_of(c->in[0], NULL);
    kl_tensor part[MAX_PARTS];
    for (uint32_t i = 0; i < w->n; i++)
        part[i] = w->part[i].id ? call_with(c, w->part[i], kl_none, kl_none) : kl_none;
    struct view v = view_of(c->in[0]);
    v.device = c->device;
    return wrap(t, w->layer, &v, w->n, part, w->number);
}

kl_status layer_call(struct kl_call *c, const struct op_kernel *k)
{
    struct thread *t = c->t;
    bool mine = false;
    for (uint32_t i = 0; i < c->nin && c->graph; i++)
        mine |= wrapper_of(c->in[i], k->layer) != NULL;
    if (!mine) /* the key alone: included by the thread, or marked */
        return kl_redispatch(c, (kl_keyset){c->keys & ~LAYER_BIT(k->layer->key)});
    if (!compose_begin_on(t, NULL)) {
        fail(t, KL_ERR_MEMORY, "%s: out of memory", call_label(c));
        c->out[0] = poison(t);
        return KL_ERR_MEMORY;
    }
    t->kernels--;
    unsigned op = c->graph->proto.op;
    c->out[0] = op == OP_grad ? call_grad(t, c->graph) : op == OP_copy ? call_copy(t, c->graph)
        : k->layer->call(t, c->graph);
    t->kernels++;
    compose_end(t, c->out[0]);
    const struct entry *x = entry_peek(c->out[0]);
    if (x && x->kind != KIND_POISON)
        return KL_OK;
    return t->tracing && t->trace->err.code ? t->trace->err.code : t->last.code;
}

static const struct op_kernel layer_kernels[LAYER_COUNT] = {
    [LAYER_Sparse] = {.kind = KERNEL_LAYER, .name = "sparse", .layer = &layer_sparse},
    [LAYER_Quantized] = {.kind = KERNEL_LAYER, .name = "quantized", .layer = &layer_quantized},
    [LAYER_Nested] = {.kind = KERNEL_LAYER, .name = "nested", .layer = &layer_nested},
    [LAYER_Complex] = {.kind = KERNEL_LAYER, .name = "complex", .layer = &layer_complex},
    [LAYER_Mkldnn] = {.kind = KERNEL_LAYER, .name = "blocked", .layer = &layer_blocked},
    [LAYER_Named] = {.kind = KERNEL_LAYER, .name = "named", .layer = &layer_named},
};

const struct op_kernel *layer_kernel(unsigned layer)
{
    return layer_kernels[layer].layer ? &layer_kernels[layer] : NULL;
}

/* ---- what one does with handles ---- */

bool wrapper_refuse(const struct entry *x, const char *what, struct err *e)
{
    return err_set(e, KL_ERR_TYPE, "%s is a %s tensor, which this is not for: kl_dense(x) is a plain one", what,
                   x->wrapper->layer->name);
}

void wrapper_end(struct entry *x, enum death how)
{
    struct wrapper *w = x->wrapper;
    uint32_t n = w ? w->n : 0;
    if (w)
        w->n = 0;
    for (uint32_t i = 0; i < n && !x->trace; i++) /* in a trace they are temporaries of it, too */
        if (w->part[i].id)
            handle_end(w->part[i], how);
}

void wrapper_release(struct entry *x)
{
    struct wrapper *w = x->wrapper;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->part[i].id)
            kl_release(w->part[i]);
    w->n = 0;
}

bool wrapper_parts(kl_tensor h, kl_tensor part[MAX_PARTS], uint32_t *n)
{
    const struct wrapper *w = wrapper_of(h, NULL);
    *n = w ? w->n : 0;
    if (w)
        memcpy(part, w->part, sizeof w->part);
    return w != NULL;
}

unsigned wrapper_grad_parts(kl_tensor h) { return wrapper_of(h, NULL)->layer->grad_parts; }

bool wrapper_same_kind(kl_tensor a, kl_tensor b)
{
    const struct wrapper *x = wrapper_of(a, NULL), *y = wrapper_of(b, NULL);
    return x && y && x->layer == y->layer && x->n == y->n && !memcmp(x->number, y->number, sizeof x->number);
}

kl_tensor kl_dense(kl_tensor h)
{
    struct thread *t = checked_begin("dense");
    if (!t)
        return op_failed();
    struct view v;
    if (!describe(t, "dense", "the tensor", h, &v))
        return compose_end(t, poison(t));
    const struct wrapper *w = wrapper_of(h, NULL);
    return compose_end(t, w ? w->layer->dense(t, h) : reshape_to("dense", h, &v.shape));
}

const char *kl_layer_name(kl_tensor h)
{
    const struct wrapper *w = thread_self() ? wrapper_of(h, NULL) : NULL;
    return w ? w->layer->name : "";
}

char *kl_layer_text(kl_tensor h, char *buf, size_t size)
{
    const struct wrapper *w = thread_self() ? wrapper_of(h, NULL) : NULL;
    char text[SHAPE_TEXT];
    struct view v = {0};
    if (size)
        *buf = 0;
    if (!w)
        return buf;
    v = view_of(h);
    size_t n = (size_t)snprintf(buf, size, "%s %s%s:", w->layer->name, dtype_name(v.dtype),
                                shape_text(&v.shape, text, sizeof text));
    for (uint32_t i = 0; i < w->n && n < size; i++) {
        v = w->part[i].id ? view_of(w->part[i]) : v;
        n += (size_t)(w->part[i].id ? snprintf(buf + n, size - n, " %s%s", dtype_name(v.dtype),
                                               shape_text(&v.shape, text, sizeof text))
                                    : snprintf(buf + n, size - n, " none"));
    }
    return buf;
}

int64_t kl_layer_parts(kl_tensor h)
{
    const struct wrapper *w = thread_self() ? wrapper_of(h, NULL) : NULL;
    return w ? w->n : 0;
}

kl_tensor kl_layer_part(kl_tensor h, int64_t i)
{
    struct thread *t = checked_begin("layer_part");
    const struct wrapper *w = t ? wrapper_of(h, NULL) : NULL;
    if (!t)
        return op_failed();
    struct view v;
    if (!describe(t, "layer_part", "the tensor", h, &v))
        return compose_end(t, poison(t));
    if (!w || i < 0 || i >= w->n || !w->part[i].id)
        return compose_end(t, refuse(t, KL_ERR_ARGUMENT, "layer_part: the tensor has no part %lld", (long long)i));
    return compose_end(t, wrapper_duplicate(t, w->part[i]));
}
