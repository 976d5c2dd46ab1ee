/* Traces compiled ahead of time. */
#include "frontend/frontend.h"
#include "runtime/aot/object.h"
#include <string.h>

/* Inputs and slots get the names of their temporaries; slots without a name keep their recorded values. */
static void name_leaves(struct graph *g, const struct trace *tr, bool *fixed)
{
    for (uint32_t i = 0; i < g->slot.n; i++)
        fixed[i] = true;
    for (uint32_t i = tr->temps; i != NO_ENTRY; i = entry_at(i)->next) {
        const struct entry *x = entry_at(i);
        const struct node *n = x->kind == KIND_TEMP || x->kind == KIND_DEAD ? node_at(g, x->node) : NULL;
        if (!n || !x->name[0] || (n->op != OP_input && n->op != OP_slot))
            continue;
        struct leaf *l = &(n->op == OP_input ? &g->input : &g->slot)->v[n->attr.leaf.index];
        memcpy(l->name, x->name, sizeof l->name);
        if (n->op == OP_slot)
            fixed[n->attr.leaf.index] = false;
    }
}

static void free_values(void **value, uint32_t n)
{
    for (uint32_t i = 0; value && i < n; i++)
        mem_free(value[i]);
    mem_free(value);
}

/* The values of the states that the trace only reads; NULL: *e. */
static void **state_values(const struct graph *g, const struct trace *tr, struct err *e)
{
    void **value = mem_alloc((g->state.n + 1) * sizeof *value);
    bool ok = value != NULL;
    for (uint32_t i = 0; ok && i < g->state.n; i++) {
        bool assigned = false;
        for (uint32_t k = 0; k < g->nout; k++)
            assigned |= g->out[k].kind == OUT_ASSIGN && g->out[k].state == i;
        if (assigned)
            continue;
        kl_tensor t = tr->bound[i].h;
        size_t bytes = (size_t)kl_numel(t) * kl_dtype_size(kl_dtype_of(t));
        if (!(ok = kl_trace_suspend() == KL_OK))
            break;
        ok = (value[i] = mem_alloc(bytes + 1)) && kl_read(t, value[i], bytes) == KL_OK;
        kl_trace_resume();
    }
    if (ok)
        return value;
    free_values(value, value ? g->state.n : 0);
    err_set(e, KL_ERR_MEMORY, "no memory for the values of its states");
    return NULL;
}

/* Per slot: the length that it is, or 0.  mem_free it; NULL: no memory. */
static int64_t *slot_lengths(const struct graph *g, const struct recording *r)
{
    int64_t *length = mem_alloc((g->slot.n + 1) * sizeof *length);
    for (uint32_t i = 0; length && i < g->slot.n; i++)
        length[i] = i < r->length_cap ? r->length[i] : 0;
    return length;
}

struct kl_object {
    struct object_file *file;
    bool c, inside; /* C; values in the file */
    char *weights;  /* the path of the values' file, or NULL */
};

struct object_file *object_file_of(kl_object *object) { return object->file; }

static bool is_c(const kl_compile_options *o) { return o && o->emit && !strcmp(o->emit, "c"); }

static kl_object *object_open(const kl_compile_options *o, struct err *e)
{
    if (o && o->emit && !is_c(o) && strcmp(o->emit, "object"))
        return err_set(e, KL_ERR_ARGUMENT, "emit is \"object\" or \"c\", not \"%.40s\"", o->emit), NULL;
    kl_object *object = mem_alloc(sizeof *object);
    if (!object)
        return err_set(e, KL_ERR_MEMORY, "out of memory"), NULL;
    *object = (kl_object){.c = is_c(o), .inside = o && o->weights_inside};
    if (o && o->weights_path && !o->weights_inside) {
        size_t n = strlen(o->weights_path) + 1;
        object->weights = mem_alloc(n);
        if (object->weights)
            memcpy(object->weights, o->weights_path, n);
        else
            err_set(e, KL_ERR_MEMORY, "out of memory");
    }
    if (!e->code && (object->file = object_file_new(o ? o->cpu : NULL, is_c(o), e)))
        return object;
    kl_object_free(object);
    return NULL;
}

void kl_object_free(kl_object *object)
{
    if (object) {
        object_file_free(object->file);
        mem_free(object->weights);
    }
    mem_free(object);
}

static bool object_add(kl_object *object, struct trace *tr, const char *prefix, struct err *e)
{
    bool known;
    const struct graph *recorded = trace_graph(tr, &known, e);
    if (!recorded)
        return e->code || err_set(e, KL_ERR_ARGUMENT, "it keeps and assigns nothing");
    bool *fixed = mem_alloc(recorded->slot.n);
    int64_t *length = slot_lengths(recorded, &tr->r);
    struct object_options options = {.prefix = prefix, .fuse = option_fuse(), .fixed = fixed, .slot = tr->r.slot,
                                     .length = length, .weights_separate = object->weights};
    struct graph *g = graph_clone(recorded);
    void **value = NULL;
    bool values = object->inside || object->weights, ok = g && fixed && length;
    if (ok) {
        name_leaves(g, tr, fixed);
        options.state = values ? (const void *const *)(value = state_values(g, tr, e)) : NULL;
        ok = (!values || value) && object_file_add(object->file, g, &options, e);
    } else {
        err_set(e, KL_ERR_MEMORY, "out of memory");
    }
    free_values(value, value ? g->state.n : 0);
    graph_free(g);
    mem_free(fixed);
    mem_free(length);
    return ok;
}

static bool object_end(kl_object *object, const char *path, const char *header, struct err *e)
{
    struct object_made made;
    if (!path || (!header && !object->c))
        return err_set(e, KL_ERR_ARGUMENT, "the path of the %s is NULL", path ? "header" : "object");
    if (!object_file_finish(object->file, &made, e))
        return false;
    bool ok = object_write(&made, path, header, object->weights, e);
    object_made_free(&made);
    return ok;
}

/* The thread if it has an open trace; NULL: *status, which is reported. */
static struct thread *thread_with_trace(const char *op, kl_status *status)
{
    struct thread *t = thread_self();
    *status = KL_ERR_MEMORY;
    if (!t)
        return NULL;
    *status = KL_ERR_TRACE;
    if (region_refuses(t, op))
        return NULL;
    if (!t->tracing)
        return report(t, KL_ERR_TRACE, "%s: no trace is open", op), NULL;
    *status = t->trace->err.code;
    if (*status)
        t->last = t->trace->err;
    return t;
}

kl_status kl_trace_compile(const char *object_path, const char *header_path, const kl_compile_options *options)
{
    kl_status status;
    struct thread *t = thread_with_trace("trace_compile", &status);
    if (!t)
        return status;
    if (!status) {
        struct err e = {0};
        kl_object *object = object_open(options, &e);
        bool paths = object_path && (header_path || is_c(options)); /* missing paths are reported before compiling */
        if (!object || (paths && !object_add(object, t->trace, options ? options->prefix : NULL, &e)) ||
            !object_end(object, object_path, header_path, &e))
            status = report(t, e.code, "trace_compile: trace \"%s\": %s", t->trace->r.g->name, e.msg);
        kl_object_free(object);
    }
    if (status)
        t->trace->err = t->last;
    trace_drop(t);
    return status;
}

kl_object *kl_object_new(const kl_compile_options *options)
{
    struct thread *t = thread_self();
    struct err e = {0};
    kl_object *object = t ? object_open(options, &e) : NULL;
    if (t && !object)
        report(t, e.code, "object_new: %s", e.msg);
    return object;
}

kl_status kl_object_add(kl_object *object, const char *prefix)
{
    kl_status status;
    struct err e = {0};
    struct thread *t = thread_with_trace("object_add", &status);
    if (!t)
        return status;
    if (!status && !object)
        status = report(t, KL_ERR_ARGUMENT, "object_add: the object is NULL");
    else if (!status && !object_add(object, t->trace, prefix, &e))
        status = report(t, e.code, "object_add: trace \"%s\": %s", t->trace->r.g->name, e.msg);
    if (status)
        t->trace->err = t->last;
    trace_drop(t);
    return status;
}

kl_status kl_object_write(kl_object *object, const char *object_path, const char *header_path)
{
    struct thread *t = thread_self();
    struct err e = {0};
    if (!t)
        return KL_ERR_MEMORY;
    if (!object)
        return report(t, KL_ERR_ARGUMENT, "object_write: the object is NULL");
    return object_end(object, object_path, header_path, &e) ? KL_OK
                                                             : report(t, e.code, "object_write: %s", e.msg);
}
