/* A trace compiled ahead of time. */
#include "frontend/frontend.h"
#include "runtime/aot/object.h"
#include <string.h>

/* Inputs and slots get the names of their temporaries; slots without one stay as they were recorded. */
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

/* Of the states that the trace only reads, their values; NULL: *e. */
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
        kl_trace_suspend();
        ok = (value[i] = mem_alloc(bytes + 1)) && kl_read(t, value[i], bytes) == KL_OK;
        kl_trace_resume();
    }
    if (ok)
        return value;
    free_values(value, value ? g->state.n : 0);
    err_set(e, KL_ERR_MEMORY, "no memory for the values of its states");
    return NULL;
}

static bool is_c(const kl_compile_options *o) { return o && o->emit && !strcmp(o->emit, "c"); }

static bool trace_compile_compile(struct trace *tr, const char *object, const char *header,
                                  const kl_compile_options *o, struct err *e)
{
    bool known;
    const struct graph *recorded = trace_graph(tr, &known, e);
    if (!recorded)
        return e->code || err_set(e, KL_ERR_ARGUMENT, "it keeps and assigns nothing");
    bool *fixed = mem_alloc(recorded->slot.n);
    struct object_options options = {.prefix = o ? o->prefix : NULL, .cpu = o ? o->cpu : NULL, .source = is_c(o),
                                     .fuse = option_fuse(), .fixed = fixed, .slot = tr->r.slot,
                                     .weights_apart = o && o->weights_path && !o->weights_inside};
    struct object_made made;
    struct graph *g = graph_clone(recorded);
    void **value = NULL;
    bool values = o && (o->weights_inside || o->weights_path), ok = g && fixed;
    if (ok) {
        name_leaves(g, tr, fixed);
        options.state = values ? (const void *const *)(value = state_values(g, tr, e)) : NULL;
        ok = (!values || value) && object_make(g, &options, &made, e);
    } else {
        err_set(e, KL_ERR_MEMORY, "out of memory");
    }
    free_values(value, value ? g->state.n : 0);
    graph_free(g);
    mem_free(fixed);
    if (ok) {
        ok = object_write(&made, object, header, o ? o->weights_path : NULL, e);
        object_made_free(&made);
    }
    return ok;
}

kl_status kl_trace_compile_at(const kl_site *site, const char *object_path, const char *header_path,
                              const kl_compile_options *options)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (region_refuses(t, site, "trace_compile"))
        return KL_ERR_TRACE;
    if (!t->tracing)
        return report(t, site, KL_ERR_TRACE, "trace_compile: no trace is open");
    struct trace *tr = t->trace;
    struct err e;
    e.code = KL_OK;
    kl_status status = tr->err.code;
    if (status)
        t->last = tr->err;
    else if (options && options->emit && !is_c(options) && strcmp(options->emit, "object"))
        status = report(t, site, KL_ERR_ARGUMENT, "trace_compile: emit is \"object\" or \"c\", not \"%.40s\"",
                        options->emit);
    else if (!object_path || (!header_path && !is_c(options)))
        status = report(t, site, KL_ERR_ARGUMENT, "trace_compile: the path of the %s is NULL",
                        object_path ? "header" : "object");
    else if (!trace_compile_compile(tr, object_path, header_path, options, &e))
        status = report(t, site, e.code, "trace_compile: trace \"%s\": %s", tr->r.g->name, e.msg);
    trace_drop(t);
    return status;
}
