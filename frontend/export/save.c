/* kl_model_save: records a function's calls as a graph with the tracer, and writes the graph as ONNX. */
#include "export.h"
#include "frontend/formats/file_open.h"
#include <inttypes.h>
#include <kiln/onnx.h>
#include <string.h>

/* Gets the values of all inputs of the graph after the first nin.  Returns false; *e has the error. */
static bool read_captured(const kl_tracer *tr, const struct graph *g, uint32_t nin, void **data, struct err *e)
{
    for (uint32_t i = nin; i < g->input.n; i++) {
        const struct leaf *l = &g->input.v[i];
        size_t bytes = (size_t)shape_count(&g->shape[l->shape]) * dtype_size(l->dtype);
        bool own;
        kl_tensor h = kl_traced_graph_functions()->captured(tr, i, &own);
        data[i] = kl_memory_alloc(bytes + 1);
        kl_status s = data[i] ? kl_read_at(NULL, h, data[i], bytes) : KL_ERR_MEMORY;
        if (s != KL_OK)
            err_set(e, s, "%s", data[i] ? kl_last_error() : "out of memory");
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
    struct graph *g = kl_traced_graph_functions()->simplify(graph, e);
    uint32_t nin = g ? g->input.n : 0, nout = g ? g->nout : 0;
    const char **name = kl_memory_alloc(((size_t)nin + nout + 1) * sizeof *name);
    struct value_name *assigned = kl_memory_alloc(((size_t)nout + 1) * sizeof *assigned);
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
    kl_memory_free(name);
    kl_memory_free(assigned);
    proto_free(&model);
    kl_traced_graph_functions()->release(g);
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

static bool save_traced(const kl_tracer *tr, const struct save *s, struct err *e)
{
    const struct traced_graph_functions *graphs = kl_traced_graph_functions();
    if (strcmp(graphs->version, KILN_VERSION) != 0)
        return err_set(e, KL_ERR_INTERNAL, "libkiln-onnx is of version %s, libkiln of %s", KILN_VERSION,
                       graphs->version);
    const struct graph *recorded = graphs->recorded(tr);
    struct graph *g = graphs->simplify(recorded, e);
    uint32_t ninput = recorded->input.n;
    void **data = kl_memory_alloc((ninput + 1) * sizeof *data);
    struct proto model = {0};
    bool ok = g && (data || err_set(e, KL_ERR_MEMORY, "out of memory")) &&
              read_captured(tr, recorded, s->nin, data, e) &&
              export_model(g, s->nin, s->in_names, (const void *const *)data, s->out_names, &model, e) &&
              write_model(&model, s->path, e);
    for (uint32_t i = 0; data && i < ninput; i++)
        kl_memory_free(data[i]);
    kl_memory_free(data);
    proto_free(&model);
    graphs->release(g);
    return ok;
}

/* The calls of fn, which the tracer records, and then the file. */
static kl_status trace_and_save(kl_tracer *tr, const struct save *s, kl_region_fn *fn, void *ctx, const kl_tensor *in,
                                kl_tensor *out)
{
    struct err e = {.code = KL_OK};
    kl_status status = kl_scope_begin();
    bool scope = status == KL_OK;
    if (scope && (status = fn(ctx, in, s->nin, out, s->nout)) == KL_OK)
        for (uint32_t i = 0; i < s->nout && status == KL_OK; i++)
            status = kl_check(out[i]);
    kl_status ended = kl_tracer_end(tr, s->nout, out);
    status = status != KL_OK ? status : ended;
    if (status == KL_OK && !save_traced(tr, s, &e))
        status = kl_failf(NULL, e.code, "model_save: %s", e.msg);
    if (scope)
        kl_scope_end();
    return status;
}

kl_status kl_model_save(const char *path, kl_region_fn *fn, void *ctx, int64_t nin, const kl_tensor *in,
                        const char *const *in_names, int64_t nout, const char *const *out_names)
{
    if (nin < 0 || nin > INT32_MAX || nout < 0 || nout > INT32_MAX)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "model_save: %s is %" PRId64 "; it must be 0 to %d",
                        nin < 0 || nin > INT32_MAX ? "nin" : "nout", nin < 0 || nin > INT32_MAX ? nin : nout,
                        INT32_MAX);
    struct save s = {path, (uint32_t)nin, (uint32_t)nout, in_names, out_names};
    const char *why = !path || !fn || (nin && !in) || !nout ? "a path, a function, its inputs and an output are needed"
                                                            : names_wrong(s.nin, in_names, s.nout, out_names);
    if (why)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "model_save: %s", why);
    if (kl_tracing())
        return kl_failf(NULL, KL_ERR_TRACE, "model_save: a trace is open");
    kl_tensor *out = kl_memory_alloc((size_t)nout * sizeof *out);
    if (!out)
        return kl_failf(NULL, KL_ERR_MEMORY, "model_save: out of memory");
    kl_tracer *tr = kl_tracer_begin(KL_TAP_RECORDED, nin, in);
    kl_status status = tr ? trace_and_save(tr, &s, fn, ctx, in, out) : kl_last_error_code();
    kl_tracer_free(tr);
    kl_memory_free(out);
    return status;
}
