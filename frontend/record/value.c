/* Operations on handles other than computing: keep, assign, release, name, mark. */
#include "frontend/frontend.h"
#include <string.h>

/* A live handle that this thread may use: of its own open trace, or outside of traces.  NULL: failed. */
static struct entry *value_usable(struct thread *t, const char *op, const char *what, kl_tensor h)
{
    struct err e;
    e.code = KL_OK;
    struct entry *x = entry_find(h, what, &e);
    if (x && x->kind == KIND_TEMP && !trace_can_read(thread_trace(t), x->trace)) {
        temp_refuse(x, what, &e);
        x = NULL;
    }
    if (x && x->kind == KIND_POISON) {
        t->last = x->cause->err;
        if (t->tracing)
            trace_error(t);
        return NULL;
    }
    if (!x)
        fail(t, e.code, "%s: %s", op, e.msg);
    return x;
}

static bool failed_trace(const struct thread *t)
{
    return t->tracing && t->trace->err.code;
}

/* ---- keep ---- */

static bool keep_temp(struct trace *tr, struct entry *x, kl_tensor h)
{
    if (x->kept)
        return true;
    if (!mem_reserve(&tr->keep, &tr->keep_cap, tr->nkeep + 1, sizeof *tr->keep))
        return false;
    tr->keep[tr->nkeep++] = h;
    return x->kept = true;
}

kl_tensor kl_keep(kl_tensor h)
{
    struct thread *t = thread_self();
    if (!t)
        return kl_none;
    if (failed_trace(t))
        return h;
    if (region_refuses(t, "keep"))
        return h;
    struct entry *x = value_usable(t, "keep", "the tensor", h);
    if (!x)
        return h;
    if (x->kind == KIND_WRAPPER && x->trace) {
        kl_tensor part[WRAPPER_PARTS];
        uint32_t n;
        wrapper_parts(h, part, &n);
        for (uint32_t i = 0; i < n; i++)
            if (part[i].id)
                kl_keep(part[i]);
        x->kept = true;
        return h;
    }
    if (x->kind == KIND_TEMP) {
        if (!keep_temp(t->trace, x, h))
            return refuse(t, KL_ERR_MEMORY, "keep: out of memory");
        return h;
    }
    for (uint32_t i = 0; i < t->nmade; i++)
        if (t->made[i] == h.id)
            t->made[i] = 0; /* it belongs to no scope any more */
    return h;
}

/* ---- assign ---- */

static bool value_fits(struct thread *t, const struct view *s, const struct view *v)
{
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    if (s->dtype != v->dtype)
        return fail(t, KL_ERR_TYPE, "assign: the state is %s, the value %s", dtype_name(s->dtype),
                    dtype_name(v->dtype)) == KL_OK;
    if (!shape_equal(&s->shape, &v->shape))
        return fail(t, KL_ERR_SHAPE, "assign: the state is %s, the value %s",
                    shape_text(&s->shape, a, sizeof a), shape_text(&v->shape, b, sizeof b)) == KL_OK;
    if (s->device.id != v->device.id)
        return fail(t, KL_ERR_DEVICE, "assign: the state is on device %s, the value on %s",
                    kl_device_name(s->device), kl_device_name(v->device)) == KL_OK;
    return true;
}

static kl_status assign_in_trace(struct thread *t, kl_tensor state, kl_tensor value)
{
    struct trace *tr = t->trace;
    struct err e;
    e.code = KL_OK;
    struct entry *s = entry_find(state, "the state", &e), *v = entry_find(value, "the value", &e);
    ref r = NIL;
    if (s && v) {
        tr->site = t->site;
        if (trace_node(tr, s, state, "the state", &e))
            r = trace_node(tr, v, value, "the value", &e);
    }
    if (r == NIL) {
        if (!e.code)
            err_set(&e, tr->r.g->err.code ? tr->r.g->err.code : KL_ERR_MEMORY, "%s", tr->r.g->err.msg);
        return fail(t, e.code, "assign: %s", e.msg);
    }
    if (s->kind == KIND_TEMP) {
        s->node = r;
    } else {
        struct binding *b = trace_binding(tr, state);
        b->node = r;
        b->assigned = true;
    }
    return KL_OK;
}

/* The node that a state gets with the value: NIL for a known value without a history that a gradient may need. */
static ref assigned_node(struct entry *v, struct err *e)
{
    if (v->node != NIL ? v->buffer && !deferred_tracked(v->node) : !v->requires_grad)
        return NIL;
    if (v->node == NIL && !deferred_recording()) {
        err_set(e, KL_ERR_MEMORY, "out of memory");
        return NIL;
    }
    return deferred_node(v, e);
}

/* The handle takes the meaning of the other, computed or not: gradients flow through it as through the other. */
static kl_status assign_outside(struct thread *t, kl_tensor state, kl_tensor value)
{
    struct err e;
    e.code = KL_OK;
    front_lock();
    struct entry *s = entry_find(state, "the state", &e), *v = entry_find(value, "the value", &e);
    while (s && v && (s->busy || v->busy)) {
        front_wait();
        s = entry_find(state, "the state", &e);
        v = entry_find(value, "the value", &e);
    }
    ref r = s && v && s != v ? assigned_node(v, &e) : NIL;
    if (s && v && s != v && !e.code) {
        struct buffer *old = s->buffer;
        s->buffer = v->buffer ? buffer_ref(v->buffer) : NULL;
        s->version++;
        if (r == NIL)
            deferred_unbind(s);
        else
            deferred_bind(s, r);
        front_drop(old);
    }
    front_unlock();
    return s && v && !e.code ? KL_OK : fail(t, e.code, "assign: %s", e.msg);
}

/* Assigns part by part, after all were checked. */
static kl_status assign_parts(struct thread *t, kl_tensor state, kl_tensor value, uint32_t n,
                              const kl_tensor *part, const kl_tensor *given)
{
    bool same = wrapper_same_kind(state, value);
    for (uint32_t i = 0; i < n && same; i++) {
        struct view s, v;
        same = !part[i].id == !given[i].id;
        if (same && part[i].id &&
            (!describe(t, "assign", "the state", part[i], &s) ||
             !describe(t, "assign", "the value", given[i], &v) ||
             !value_fits(t, &s, &v)))
            return t->last.code;
    }
    if (!same)
        return fail(t, KL_ERR_TYPE, "assign: the state and the value are not stored in the same way");
    kl_status status = KL_OK;
    for (uint32_t i = 0; i < n && !status; i++)
        if (part[i].id)
            status = kl_assign(part[i], given[i]);
    return status;
}

kl_status kl_assign(kl_tensor state, kl_tensor value)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (failed_trace(t))
        return t->trace->err.code;
    if (region_refuses(t, "assign"))
        return KL_ERR_TRACE;
    struct view s, v;
    if (!describe(t, "assign", "the state", state, &s) || !describe(t, "assign", "the value", value, &v) ||
        !value_fits(t, &s, &v))
        return t->last.code;
    kl_tensor part[WRAPPER_PARTS], given[WRAPPER_PARTS];
    uint32_t n, m;
    bool wrapped = wrapper_parts(state, part, &n);
    if (wrapper_parts(value, given, &m) || wrapped)
        return assign_parts(t, state, value, n, part, given);
    tracer_assigned(t, state, value);
    return t->tracing ? assign_in_trace(t, state, value) : assign_outside(t, state, value);
}

/* ---- release ---- */

/* A handle whose state the open trace uses stays valid until the trace has ended. */
static void release_outside(struct thread *t, kl_tensor h)
{
    struct binding *b = t->tracing ? trace_binding(t->trace, h) : NULL;
    if (b) {
        b->released = true;
        return;
    }
    front_lock();
    handle_end(h, DEATH_RELEASED);
    front_unlock();
}

kl_status kl_release(kl_tensor h)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (h.id == 0 || (t->tracing && h.id == t->trace->poison.id))
        return KL_OK;
    struct err e;
    e.code = KL_OK;
    struct entry *x = entry_find(h, "the tensor", &e);
    if (x && x->failed)
        return KL_OK;
    struct binding *b = x && t->tracing ? trace_binding(t->trace, h) : NULL;
    if (b && b->released)
        err_set(&e, KL_ERR_HANDLE, "the tensor is stale: it was released earlier in this trace");
    else if (x && x->kind == KIND_TEMP && !trace_can_read(thread_trace(t), x->trace))
        temp_refuse(x, "the tensor", &e);
    else if (x && t->tracing && t->trace->region && x->trace != t->trace)
        err_set(&e, KL_ERR_TRACE, "the tensor is from outside of the region that %s records", t->trace->region);
    if (e.code)
        return fail(t, e.code, "release: %s", e.msg);
    if (x->kind == KIND_WRAPPER)
        wrapper_release(x);
    if (x->kind == KIND_TEMP || (x->kind == KIND_WRAPPER && x->trace)) {
        x->kind = KIND_DEAD;
        x->dtype = KL_DTYPE_COUNT;
        entry_end_life(x, DEATH_RELEASED);
    } else {
        release_outside(t, h);
    }
    return KL_OK;
}

/* ---- name, mark ---- */

kl_status kl_set_name(kl_tensor h, const char *name)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (failed_trace(t))
        return t->trace->err.code;
    struct entry *x = value_usable(t, "set_name", "the tensor", h);
    if (!x)
        return t->last.code;
    front_lock();
    snprintf(x->name, sizeof x->name, "%s", name ? name : "");
    front_unlock();
    return KL_OK;
}

kl_status kl_requires_grad(kl_tensor h)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (failed_trace(t))
        return t->trace->err.code;
    struct entry *x = value_usable(t, "requires_grad", "the tensor", h);
    struct view v;
    kl_tensor part[WRAPPER_PARTS];
    uint32_t n;
    if (!x || !describe(t, "requires_grad", "the tensor", h, &v))
        return t->last.code;
    if (wrapper_parts(h, part, &n)) {
        unsigned which = wrapper_grad_parts(h);
        kl_status status = which ? KL_OK : fail(t, KL_ERR_TYPE,
                                                "requires_grad: a %s tensor has no gradient: mark what it "
                                                "is made from", kl_layer_name(h));
        for (uint32_t i = 0; i < n && !status; i++)
            if (which >> i & 1)
                status = kl_requires_grad(part[i]);
        return status;
    }
    if (!dtype_is_float(v.dtype))
        return fail(t, KL_ERR_TYPE, "requires_grad: needs a floating dtype, got %s", dtype_name(v.dtype));
    if (x->kind == KIND_TEMP) {
        x->requires_grad = true;
    } else {
        front_lock();
        deferred_mark(x);
        front_unlock();
    }
    return KL_OK;
}

/* ---- properties, without computing ---- */

/* Never an error of the trace: a query has no effect. */
static bool value_look(kl_tensor h, struct view *v)
{
    struct thread *t = thread_self();
    struct err e;
    e.code = KL_OK;
    struct entry *x = t ? entry_find(h, "the tensor", &e) : NULL;
    if (!x || x->kind == KIND_POISON || (x->kind == KIND_TEMP && !trace_can_read(thread_trace(t), x->trace)))
        return false;
    if (x->kind == KIND_TEMP) {
        const struct graph *g = x->trace->r.g;
        const struct node *n = node_at(g, x->node);
        *v = (struct view){n->dtype, g->shape[n->shape], entry_device(x)};
    } else {
        *v = (struct view){x->dtype, x->shape, entry_device(x)};
    }
    return true;
}

int kl_rank(kl_tensor h)
{
    struct view v;
    return value_look(h, &v) ? (int)v.shape.rank : -1;
}

int kl_shape(kl_tensor h, int64_t *dims)
{
    struct view v;
    if (!value_look(h, &v))
        return -1;
    if (v.shape.rank && dims)
        memcpy(dims, v.shape.dim, v.shape.rank * sizeof *dims);
    return (int)v.shape.rank;
}

int64_t kl_numel(kl_tensor h)
{
    struct view v;
    return value_look(h, &v) && !shape_is_symbolic(&v.shape) ? shape_count(&v.shape) : -1;
}

kl_dtype kl_dtype_of(kl_tensor h)
{
    struct view v;
    return value_look(h, &v) ? (kl_dtype)v.dtype : KL_DTYPE_COUNT;
}

kl_device kl_device_of(kl_tensor h)
{
    struct view v;
    return value_look(h, &v) ? v.device : (kl_device){0};
}

kl_status kl_check(kl_tensor h)
{
    struct thread *t = thread_self();
    struct err e;
    e.code = KL_OK;
    struct entry *x = t ? entry_find(h, "the tensor", &e) : NULL;
    if (!x)
        return t ? e.code : KL_ERR_MEMORY;
    if (x->kind == KIND_POISON)
        return x->cause->err.code;
    const struct binding *b = t->tracing ? trace_binding(t->trace, h) : NULL;
    if (b && b->released)
        return KL_ERR_HANDLE;
    return x->kind == KIND_TEMP && !trace_can_read(thread_trace(t), x->trace) ? KL_ERR_TRACE : KL_OK;
}
