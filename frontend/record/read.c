/* Reads: the value of a handle, computed first if it is lazy. */
#include "frontend/frontend.h"
#include <math.h>
#include <string.h>

/* In a trace only values from before it can be read: others are computed at its end.  This holds while it is suspended,
 * and in the functions that it records. */
static bool read_is_allowed(struct thread *t, const char *op, kl_tensor h)
{
    struct trace *tr = t->trace;
    if (region_refuses(t, op))
        return false;
    struct err e;
    e.code = KL_OK;
    struct entry *x = entry_find(h, "the tensor", &e);
    struct binding *b = NULL;
    while (tr && x && x->trace != tr && !((b = trace_binding(tr, h)) && (b->assigned || b->released)))
        tr = tr->idle;
    if (x && x->kind == KIND_TEMP && tr && x->trace == tr) {
        const struct node *n = node_at(tr->r.g, x->node);
        const kl_site *made = &tr->r.g->site[n->site];
        err_set(&e, KL_ERR_TRACE, "the %s recorded at %.300s:%d has no value before trace \"%s\" has ended",
                x->made_by ? x->made_by : opinfo[n->op].name, made->file, made->line, tr->r.g->name);
    } else if (x && x->kind == KIND_TEMP) {
        temp_refuse(x, "the tensor", &e);
    } else if (b && b->assigned) {
        err_set(&e, KL_ERR_TRACE, "the tensor was assigned in trace \"%s\" and has its new value when that has ended",
                tr->r.g->name);
    } else if (b && b->released) {
        err_set(&e, KL_ERR_HANDLE, "the tensor is stale: it was released earlier in this trace");
    }
    if (e.code)
        fail(t, e.code, "%s: %s", op, e.msg);
    return e.code == KL_OK;
}

/* The value, with a reference; NULL: failed. */
static struct buffer *value_of(struct thread *t, const char *op, kl_tensor h)
{
    if (!read_is_allowed(t, op, h))
        return NULL;
    struct buffer *b = NULL;
    struct err e;
    e.code = KL_OK;
    front_lock();
    while (!b && !e.code) {
        struct entry *x = entry_find(h, "the tensor", &e);
        if (!x)
            break;
        if (x->busy)
            front_wait_cancellable(&e);
        else if (x->buffer)
            b = buffer_ref(x->buffer);
        else
            deferred_compute(&h, 1, &e);
    }
    front_unlock();
    if (!b)
        fail(t, e.code, "%s: %s", op, e.msg);
    return b;
}

static kl_status read_value(const char *op, kl_tensor h, void *data, size_t bytes)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t)
        return KL_ERR_MEMORY;
    if (!describe(t, op, "the tensor", h, &v))
        return t->tracing ? t->trace->err.code : t->last.code;
    kl_tensor part[WRAPPER_PARTS];
    uint32_t n;
    if (wrapper_parts(h, part, &n)) {
        if (!compose_begin_on(t, NULL))
            return report(t, KL_ERR_MEMORY, "%s: out of memory", op);
        kl_status status = read_value(op, kl_dense(h), data, bytes);
        compose_end_all(t, NULL, 0);
        return status;
    }
    size_t size = (size_t)shape_count(&v.shape) * dtype_size(v.dtype);
    char text[SHAPE_TEXT];
    if (device_index(v.device) == DEVICE_META)
        return fail(t, KL_ERR_DEVICE, "%s: " META_HAS_NO_DATA, op);
    if (bytes != size)
        return fail(t, KL_ERR_ARGUMENT, "%s: %s%s has %zu bytes, not %zu", op, dtype_name(v.dtype),
                    shape_text(&v.shape, text, sizeof text), size, bytes);
    if (!data && bytes)
        return fail(t, KL_ERR_ARGUMENT, "%s: data is NULL", op);
    int64_t began = span_begin();
    struct buffer *b = value_of(t, op, h);
    struct err e;
    e.code = KL_OK;
    bool ok = b && (buffer_read(b, data, bytes, &e) || fail(t, e.code, "%s: %s", op, e.msg) == KL_OK);
    buffer_unref(b);
    span_end(SPAN_READ, op, began);
    return ok ? KL_OK : t->last.code;
}

kl_status kl_read(kl_tensor h, void *data, size_t bytes)
{
    return read_value("read", h, data, bytes);
}

kl_memory_hold *kl_memory_of(kl_tensor h, void **address)
{
    struct thread *t = thread_self();
    struct view v;
    kl_tensor part[WRAPPER_PARTS];
    uint32_t n;
    struct err e;
    e.code = KL_OK;
    if (!t || !describe(t, "memory_of", "the tensor", h, &v))
        return NULL;
    if (wrapper_parts(h, part, &n) || device_index(v.device) == DEVICE_META)
        return fail(t, KL_ERR_TYPE, "memory_of: the tensor has no memory of its own, or is not dense"), NULL;
    struct buffer *b = value_of(t, "memory_of", h);
    struct accelerator *a = b ? accelerator_get((int)b->device) : NULL;
    if (a && !accelerator_finish(a, &e)) {
        fail(t, e.code, "memory_of: %s", e.msg);
        buffer_unref(b);
        return NULL;
    }
    if (b)
        *address = b->data;
    return (kl_memory_hold *)b;
}

void kl_memory_release(kl_memory_hold *hold) { buffer_unref((struct buffer *)hold); }

/* The bits of the only element; *dtype: its dtype. */
static bool read_item(const char *op, kl_tensor h, uint64_t *bits, unsigned *dtype)
{
    struct thread *t = thread_self();
    struct view v;
    if (!t || !describe(t, op, "the tensor", h, &v))
        return false;
    if (shape_count(&v.shape) != 1) {
        char text[SHAPE_TEXT];
        fail(t, KL_ERR_SHAPE, "%s: %s%s does not have one element", op, dtype_name(v.dtype),
             shape_text(&v.shape, text, sizeof text));
        return false;
    }
    *dtype = v.dtype;
    *bits = 0;
    return read_value(op, h, bits, dtype_size(v.dtype)) == KL_OK;
}

double kl_item_f64(kl_tensor h)
{
    uint64_t bits;
    unsigned dtype;
    return read_item("item_f64", h, &bits, &dtype) ? dtype_value(dtype, bits) : (double)NAN;
}

float kl_item_f32(kl_tensor h)
{
    uint64_t bits;
    unsigned dtype;
    return read_item("item_f32", h, &bits, &dtype) ? (float)dtype_value(dtype, bits) : NAN;
}

int64_t kl_item_i64(kl_tensor h)
{
    uint64_t bits;
    unsigned dtype;
    int64_t v = 0;
    if (read_item("item_i64", h, &bits, &dtype))
        scalar_cast(&v, KL_I64, &bits, dtype, 1);
    return v;
}
