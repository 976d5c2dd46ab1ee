/* kl_model_save: records a function's calls as a graph with the tracer, and writes the graph as ONNX. */
#include "export.h"
#include "frontend/formats/tensor_file.h"
#include "frontend/layers/transform.h"
#include "passes/passes.h"
#include <string.h>

/* Simplifies the graph to ops that the exporter has: gradients are expanded, and regions other than loops and branches
 * are inlined. */
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

/* Gets the values of all inputs of the graph after the first nin.  Returns false; the error was reported or is in
 * *e. */
static bool read_captured(struct thread *t, const kl_site *site, const kl_tracer *tr, uint32_t nin, void **data,
                          struct err *e)
{
    const struct graph *g = tracer_graph(tr);
    for (uint32_t i = nin; i < g->input.n; i++) {
        const struct leaf *l = &g->input.v[i];
        size_t bytes = (size_t)shape_count(&g->shape[l->shape]) * dtype_size(l->dtype);
        bool own;
        kl_tensor h = tracer_captured(tr, i, &own);
        data[i] = mem_alloc(bytes + 1);
        kl_status s = data[i] ? kl_read_at(site, h, data[i], bytes) : KL_ERR_MEMORY;
        if (s != KL_OK)
            err_set(e, s, "%s", data[i] ? t->last.msg : "out of memory");
        if (own)
            kl_release(h);
        if (s != KL_OK)
            return false;
    }
    return true;
}

static bool write_model(const struct proto *model, const char *path, struct err *e)
{
    struct file_out o;
    bool opened = out_open(&o, path);
    if (opened)
        out_append(&o, model->v, model->n);
    return out_close(&o, opened) || err_set(e, o.why.code, "%s", o.why.text);
}

bool export_file(const struct graph *graph, const char *path, struct err *e)
{
    struct graph *g = simplify_for_export(graph, e);
    uint32_t nin = g ? g->input.n : 0, nout = g ? g->nout : 0;
    const char **name = mem_alloc(((size_t)nin + nout + 1) * sizeof *name);
    struct value_name *assigned = mem_alloc(((size_t)nout + 1) * sizeof *assigned);
    struct proto model = {0};
    bool ok = g && graph_is_bound(g, e) && ((name && assigned) || err_set(e, KL_ERR_MEMORY, "out of memory"));
    for (uint32_t i = 0; ok && i < nin; i++)
        name[i] = g->input.v[i].name;
    for (uint32_t i = 0; ok && i < nout; i++) {
        bool written;
        name[nin + i] = graph_output_name(g, i, &written);
        if (g->out[i].kind == OUT_ASSIGN) {
            const char *state = g->state.v[g->out[i].state].name;
            if (*state)
                snprintf(assigned[i].s, EXPORT_NAME, "%s.new", state);
            else
                snprintf(assigned[i].s, EXPORT_NAME, "state%u.new", g->out[i].state);
            name[nin + i] = assigned[i].s;
        }
    }
    ok = ok && export_model(g, nin, name, NULL, name + nin, &model, e) && write_model(&model, path, e);
    mem_free(name);
    mem_free(assigned);
    proto_free(&model);
    graph_free(g);
    return ok;
}

/* Makes the names valid for a file: none is empty, and no two are equal. */
static const char *names_wrong(uint32_t nin, const char *const *in, uint32_t nout, const char *const *out)
{
    for (uint32_t i = 0; i < nin + nout; i++) {
        const char *a = i < nin ? in ? in[i] : NULL : out ? out[i - nin] : NULL;
        if (a && (!*a || strlen(a) >= EXPORT_NAME))
            return "a name is empty, or too long";
        for (uint32_t k = 0; a && k < i; k++) {
            const char *b = k < nin ? in ? in[k] : NULL : out ? out[k - nin] : NULL;
            if (b && !strcmp(a, b))
                return "two inputs or outputs have one name";
        }
    }
    return NULL;
}

struct save { const char *path; uint32_t nin, nout; const char *const *in_names, *const *out_names; };

static bool save_traced(struct thread *t, const kl_site *site, const kl_tracer *tr, const struct save *s,
                        struct err *e)
{
    struct graph *g = simplify_for_export(tracer_graph(tr), e);
    void **data = mem_alloc((tracer_graph(tr)->input.n + 1) * sizeof *data);
    struct proto model = {0};
    bool ok = g && (data || err_set(e, KL_ERR_MEMORY, "out of memory")) &&
              read_captured(t, site, tr, s->nin, data, e) &&
              export_model(g, s->nin, s->in_names, (const void *const *)data, s->out_names, &model, e) &&
              write_model(&model, s->path, e);
    for (uint32_t i = 0; data && i < tracer_graph(tr)->input.n; i++)
        mem_free(data[i]);
    mem_free(data);
    proto_free(&model);
    graph_free(g);
    return ok;
}

kl_status kl_model_save_at(const kl_site *site, const char *path, kl_region_fn *fn, void *ctx, int64_t number_in,
                           const kl_tensor *in, const char *const *in_names, int64_t number_out,
                           const char *const *out_names)
{
    struct thread *t = thread_self();
    struct save s = {path, count_or_none(number_in), count_or_none(number_out), in_names, out_names};
    struct err e;
    e.code = KL_OK;
    if (!t)
        return KL_ERR_MEMORY;
    if (!counts_valid(t, site, "model_save", COUNTS({"nin", number_in}, {"nout", number_out})))
        return KL_ERR_ARGUMENT;
    uint32_t nin = s.nin, nout = s.nout;
    const char *why = !path || !fn || (nin && !in) || !nout ? "a path, a function, its inputs and an output are needed"
                                                            : names_wrong(nin, in_names, nout, out_names);
    if (why)
        return fail(t, site, KL_ERR_ARGUMENT, "model_save: %s", why);
    if (t->tracing)
        return fail(t, site, KL_ERR_TRACE, "model_save: a trace is open");
    kl_tensor *out = mem_alloc(nout * sizeof *out);
    kl_tracer *tr = out ? kl_tracer_begin(KL_TAP_RECORDED, nin, in) : NULL;
    if (!tr) {
        mem_free(out);
        return out ? t->last.code : fail(t, site, KL_ERR_MEMORY, "model_save: out of memory");
    }
    kl_status status = kl_scope_begin();
    bool scope = status == KL_OK;
    if (scope && (status = fn(ctx, in, nin, out, nout)) == KL_OK)
        for (uint32_t i = 0; i < nout && status == KL_OK; i++)
            status = kl_check(out[i]);
    kl_status ended = kl_tracer_end(tr, nout, out);
    status = status != KL_OK ? status : ended;
    if (status == KL_OK && !save_traced(t, site, tr, &s, &e))
        status = fail(t, site, e.code, "model_save: %s", e.msg);
    if (scope)
        kl_scope_end_at(site);
    kl_tracer_free(tr);
    mem_free(out);
    return status;
}
