/* The functions of <kiln/formats/model.h> for loading and calling models. */
#include "onnx.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMPILED_IN_MAX = 16 }; /* elements of an output that is known while recording */

static const char *text_or_empty(const char *s) { return s ? s : ""; }

/* ---- loading ---- */

static void release_array(void *a) { array_unref(a); }

/* Makes the tensors of the weights, which share the memory of their arrays. */
static bool make_weights(kl_model *m)
{
    bool ok = true;
    if (kl_trace_suspend() != KL_OK)
        return false;
    for (uint32_t i = 0; ok && i < m->nweight; i++) {
        struct weight *w = &m->weight[i];
        struct array *a = array_ref(w->array);
        w->t = kl_keep(kl_wrap(m->device, a->dtype, a->rank, a->dims, a->data, release_array, a));
        ok = kl_check(w->t) == KL_OK;
        if (ok && *w->name)
            kl_set_name(w->t, w->name);
    }
    kl_trace_resume();
    return ok;
}

kl_model *kl_model_open(kl_device device, const char *path)
{
    struct file_error why = {0};
    if (!path)
        return kl_fail(KL_ERR_ARGUMENT, "model_open: path is NULL"), NULL;
    kl_model *m = model_read(device, path, &why);
    if (!m)
        return file_error_report("model_open", &why), NULL;
    m->folding = kl_device_named("ref");
    if (!m->folding.id)
        m->folding = kl_device_default();
    m->once_left = once_budget(m);
    if (make_weights(m))
        return m;
    kl_fail(kl_last_error_code(), kl_last_error()); /* of the trace, too, if one is open */
    kl_model_close(m);
    return NULL;
}

void kl_model_close(kl_model *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->nweight; i++)
        kl_release(m->weight[i].t);
    for (uint32_t i = 0; i < m->npool; i++)
        kl_release(m->pool[i].t);
    model_free(m);
}

/* ---- looking at one ---- */

int64_t kl_model_inputs(const kl_model *m) { return m ? m->main->nin : 0; }
int64_t kl_model_outputs(const kl_model *m) { return m ? m->main->nout : 0; }
int64_t kl_model_weights(const kl_model *m) { return m ? m->nweight : 0; }

static void value_type(const Onnx__ValueInfoProto *p, kl_model_value *v)
{
    *v = (kl_model_value){.name = text_or_empty(p->name), .dtype = KL_DTYPE_COUNT, .rank = -1};
    if (!p->type || p->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE)
        return;
    const Onnx__TypeProto__Tensor *t = p->type->tensor_type;
    v->dtype = onnx_held_dtype(t->elem_type);
    v->strings = t->elem_type == ONNX_STRING;
    if (!t->shape || t->shape->n_dim > KL_MAX_RANK)
        return;
    v->rank = (int)t->shape->n_dim;
    for (int i = 0; i < v->rank; i++) {
        const Onnx__TensorShapeProto__Dimension *d = t->shape->dim[i];
        bool number = d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        v->dims[i] = number && d->dim_value >= 0 ? d->dim_value : -1;
        if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM && d->dim_param && *d->dim_param)
            v->symbol[i] = d->dim_param;
    }
}

static kl_status no_such(const char *what, int64_t i, int64_t n)
{
    char text[100];
    snprintf(text, sizeof text, "model_%s: there is no %s %lld of %lld", what, what, (long long)i,
             (long long)n);
    return kl_fail(KL_ERR_ARGUMENT, text);
}

kl_status kl_model_input(const kl_model *m, int64_t i, kl_model_value *v)
{
    if (!m || !v || i < 0 || i >= m->main->nin)
        return no_such("input", i, kl_model_inputs(m));
    const char *name = m->main->name[m->main->in[i]];
    const Onnx__GraphProto *g = m->main->proto;
    for (size_t k = 0; k < g->n_input; k++)
        if (!strcmp(text_or_empty(g->input[k]->name), name))
            return value_type(g->input[k], v), KL_OK;
    return no_such("input", i, m->main->nin);
}

kl_status kl_model_output(const kl_model *m, int64_t i, kl_model_value *v)
{
    if (!m || !v || i < 0 || i >= m->main->nout)
        return no_such("output", i, kl_model_outputs(m));
    value_type(m->main->proto->output[i], v);
    if (m->keys[i].n) {
        v->keys = m->keys[i].key;
        v->dtype = KL_F32;
        v->rank = 2;
        v->dims[0] = -1;
        v->dims[1] = m->keys[i].n;
    }
    return KL_OK;
}

const char *kl_model_weight_name(const kl_model *m, int64_t i)
{
    return m && i >= 0 && i < m->nweight ? m->weight[i].name : NULL;
}

/* From here on what depends on the weight is recorded.  In an open trace that may be too late. */
static kl_tensor model_take_weight(struct weight *w)
{
    if (!w->taken && w->folded && kl_tracing())
        return kl_failf(NULL, KL_ERR_TRACE, "model_weight: what depends on '%.100s' has been computed once for all "
                        "calls; ask for the weight before the trace", w->name), kl_none;
    w->taken = true;
    return w->t;
}

kl_tensor kl_model_weight(const kl_model *m, const char *name)
{
    for (uint32_t i = 0; m && name && i < m->nweight; i++)
        if (!strcmp(m->weight[i].name, name))
            return model_take_weight(&m->weight[i]);
    return kl_none;
}

/* ---- calling ---- */

static char *dims_of(const kl_model_value *v, char *to, size_t size)
{
    size_t used = (size_t)snprintf(to, size, "%s[", v->dtype < KL_DTYPE_COUNT ? kl_dtype_name(v->dtype) : "?");
    for (int i = 0; i < v->rank && used < size; i++)
        if (v->dims[i] >= 0)
            used += (size_t)snprintf(to + used, size - used, "%s%lld", i ? "," : "", (long long)v->dims[i]);
        else
            used += (size_t)snprintf(to + used, size - used, "%s%.20s", i ? "," : "",
                                     v->symbol[i] ? v->symbol[i] : "?");
    if (used < size)
        snprintf(to + used, size - used, "%s]", v->rank < 0 ? "?" : "");
    return to;
}

static bool fits_input(const kl_model_value *v, kl_tensor t)
{
    kl_model_value have = {.dtype = kl_dtype_of(t), .symbol = {NULL}};
    have.rank = kl_shape(t, have.dims);
    bool ok = have.rank >= 0 && (v->dtype == KL_DTYPE_COUNT || v->dtype == have.dtype) &&
              (v->rank < 0 || v->rank == have.rank);
    for (int i = 0; ok && v->rank > 0 && i < have.rank; i++)
        ok = v->dims[i] < 0 || v->dims[i] == have.dims[i];
    if (ok)
        return true;
    char text[500], a[120], b[120];
    snprintf(text, sizeof text, "model_call: input '%.100s' is %s, not %s", v->name, dims_of(v, a, sizeof a),
             have.rank < 0 ? "what was given, which is no tensor" : dims_of(&have, b, sizeof b));
    kl_status code = have.rank < 0 ? KL_ERR_HANDLE : v->dtype == have.dtype ? KL_ERR_SHAPE : KL_ERR_TYPE;
    return kl_fail(code, text) == KL_OK;
}

static bool model_check_inputs(kl_model *m, int64_t nin, const kl_tensor *in, int64_t nout, kl_tensor *out)
{
    char text[300];
    if (nin < 0 || nout < 0)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "model_call: %s is %" PRId64 "; a count is not negative",
                        nin < 0 ? "nin" : "nout", nin < 0 ? nin : nout) == KL_OK;
    if (!m || (nin && !in) || (nout && !out) || nin != m->main->nin || nout > m->main->nout) {
        snprintf(text, sizeof text, "model_call: %s; it has %" PRId64 " inputs and %" PRId64 " outputs, the call %"
                 PRId64 " and %" PRId64,
                 !m ? "model is NULL" : (nin && !in) || (nout && !out) ? "in or out is NULL"
                 : "other numbers of values",
                 kl_model_inputs(m), kl_model_outputs(m), nin, nout);
        return kl_fail(KL_ERR_ARGUMENT, text) == KL_OK;
    }
    for (uint32_t i = 0; i < nin; i++) {
        kl_model_value v;
        if (kl_model_input(m, i, &v) != KL_OK || !fits_input(&v, in[i]))
            return false;
    }
    return true;
}

/* A few numbers, such as a shape, compiled in. */
static kl_tensor compiled_in(const struct run *r, const struct array *a)
{
    kl_tensor each[COMPILED_IN_MAX];
    for (int64_t i = 0; i < a->count; i++)
        each[i] = kl_const(r->m->device, a->dtype, array_float(a, i));
    return kl_reshape(kl_stack((int)a->count, each, 0), a->rank, a->dims);
}

/* An output that is known while recording.  In a trace it is a constant, not an input of it, so that a program that is
 * compiled ahead of time has it inside, as it has weights. */
static kl_tensor known_output(const struct run *r, struct array *a)
{
    bool few = a->count > 1 && a->count <= COMPILED_IN_MAX;
    for (int64_t i = 0; few && i < a->count; i++) /* exact as doubles */
        few = fabs(array_float(a, i)) < 0x1p53;
    if (r->tracing)
        return few ? compiled_in(r, a) : onnx_constant_of(r->m, a);
    return kl_input(r->m->device, a->dtype, a->rank, a->dims, a->data);
}

/* Gives output i a handle of its own, even if it is the same value as another output or an input. */
static bool take_output(struct frame *f, struct run *r, uint32_t i, kl_tensor *all)
{
    kl_tensor *out = &all[i];
    struct value *v = frame_value(f, f->g->out[i]);
    kl_tensor t = v->t;
    struct array *a = v->known ? v->known : v->weight ? v->weight->array : NULL;
    if (v->list || (!a && !t.id)) {
        char text[300];
        snprintf(text, sizeof text, "model_call: output '%.200s' is %s", f->g->proto->output[i]->name,
                 v->list ? "a sequence, which has no tensor" : "not computed");
        return kl_fail(v->list ? KL_ERR_TYPE : KL_ERR_ARGUMENT, text) == KL_OK;
    }
    if (!t.id)
        t = a->symbolic ? onnx_lengths_tensor(r->m->device, a) : known_output(r, a);
    bool own = r->tracing && !v->weight && !v->known && !v->held;
    for (uint32_t k = 0; k < i; k++)
        own &= all[k].id != t.id;
    for (uint32_t k = 0; k < f->g->nin; k++)
        own &= f->v[f->g->in[k]].t.id != t.id;
    int64_t dims[KL_MAX_RANK];
    int rank = kl_shape(t, dims);
    *out = rank < 0 ? kl_none : own ? t : kl_reshape(t, rank, dims);
    if (rank >= 0 && !r->tracing)
        kl_keep(*out);
    return kl_check(*out) == KL_OK;
}

static bool call_model(struct run *r, const kl_tensor *in, uint32_t nout, kl_tensor *out)
{
    const struct graph_def *g = r->m->main;
    struct frame f;
    if (!frame_open(&f, g, NULL, r))
        return kl_fail(KL_ERR_MEMORY, "model_call: out of memory") == KL_OK;
    for (uint32_t i = 0; i < g->nin; i++) {
        struct value *v = &f.v[g->in[i]];
        v->t = in[i];
        v->set = v->given = true;
    }
    bool ok = frame_run(&f, r);
    if (!ok) {
        char text[1000];
        snprintf(text, sizeof text, "model_call: %.980s", kl_last_error());
        kl_fail(kl_last_error_code(), text);
    }
    for (uint32_t i = 0; ok && i < nout; i++)
        ok = take_output(&f, r, i, out);
    frame_close(&f);
    return ok;
}

/* Outside of a trace, a call of a model with operator Gradient: in a trace of its own. */
static kl_status call_in_trace(kl_model *m, uint32_t nin, const kl_tensor *in, uint32_t nout, kl_tensor *out)
{
    kl_trace_begin(m->label);
    kl_status status = kl_model_call(m, nin, in, nout, out);
    for (uint32_t i = 0; status == KL_OK && i < nout; i++)
        kl_keep(out[i]);
    kl_status end = kl_trace_end();
    for (uint32_t i = 0; end != KL_OK && i < nout; i++) {
        if (out[i].id)
            kl_release(out[i]);
        out[i] = kl_none;
    }
    return status ? status : end;
}

kl_status kl_model_call(kl_model *m, int64_t nin, const kl_tensor *in, int64_t nout, kl_tensor *out)
{
    for (int64_t i = 0; out && i < nout; i++)
        out[i] = kl_none;
    if (!model_check_inputs(m, nin, in, nout, out))
        return kl_last_error_code();
    if (m->differentiates && !kl_tracing())
        return call_in_trace(m, (uint32_t)nin, in, (uint32_t)nout, out);
    struct run r = {.m = m, .tracing = kl_tracing()};
    m->calls++;
    if (!r.tracing)
        kl_scope_begin();
    bool ok = call_model(&r, in, (uint32_t)nout, out);
    kl_status code = ok ? KL_OK : kl_last_error_code();
    for (int64_t i = 0; !ok && i < nout; i++) {
        if (out[i].id && !r.tracing)
            kl_release(out[i]);
        out[i] = kl_none;
    }
    if (!r.tracing)
        kl_scope_end();
    for (int64_t i = 0; ok && !r.tracing && i < nout; i++) { /* in the caller's scope, if one is open */
        int64_t dims[KL_MAX_RANK];
        kl_tensor kept = out[i];
        int rank = kl_shape(kept, dims);
        out[i] = kl_reshape(kept, rank, dims);
        kl_release(kept);
    }
    return code;
}

/* ---- tensors in files ---- */

kl_tensor kl_model_read_tensor(kl_device device, const char *path)
{
    struct file_error why = {0};
    struct bytes b;
    struct array *a = NULL;
    Onnx__TensorProto *t = NULL;
    if (!path) {
        file_fails(&why, KL_ERR_ARGUMENT, "path is NULL");
    } else if (bytes_map(&b, path, NULL, &why)) {
        t = (Onnx__TensorProto *)message_parse(&b, &onnx__tensor_proto__descriptor, path, &why);
        bytes_unmap(&b);
    }
    if (t)
        a = array_read(t, path, true, NULL, &why);
    if (t)
        onnx__tensor_proto__free_unpacked(t, NULL);
    if (!a)
        return file_error_report("model_read_tensor", &why), kl_none;
    kl_tensor h = kl_input(device, a->dtype, a->rank, a->dims, a->data);
    array_unref(a);
    return h;
}
