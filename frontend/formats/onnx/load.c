/* Loads the graphs of a model: names are resolved to places in frames, operators to rows of ops.def.  All faults of a
 * file are found here, so that in a call each operand is computed before it is used. */
#include "onnx.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loader {
    struct kl_model *m;
    const char *path;
    struct file_error *why;
    unsigned missing, listed;         /* operators */
    struct names reported;                /*   those in `list` */
    char list[700];
};
struct load_scope {
    struct load_scope *outer;
    struct graph_def *g;
    struct names names;
    uint32_t value_cap;
    int opset, training;              /* of the domains; 0: the file does not import them */
    const Onnx__FunctionProto *function; /* whose body it is, or NULL */
};

static const char *text_or_none(const char *s) { return s ? s : ""; }

static bool load_no_memory(struct loader *l)
{
    return file_fails(l->why, KL_ERR_MEMORY, "%.300s: out of memory", l->path);
}

/* ---- values ---- */

static uint32_t load_value(struct loader *l, struct load_scope *s, const char *name)
{
    struct graph_def *g = s->g;
    if (g->nvalue == s->value_cap) {
        uint32_t cap = s->value_cap ? 2 * s->value_cap : 16;
        const char **more = realloc(g->name, cap * sizeof *more);
        if (!more)
            return load_no_memory(l), NO_PLACE;
        g->name = more;
        s->value_cap = cap;
    }
    if (onnx_names_find(&s->names, name) != NO_PLACE)
        return file_fails(l->why, KL_ERR_IO, "%.300s: value '%.200s' is computed twice", l->path, name), NO_PLACE;
    if (!onnx_names_put(&s->names, name, g->nvalue))
        return load_no_memory(l), NO_PLACE;
    g->name[g->nvalue] = name;
    return g->nvalue++;
}

static bool load_find(const struct load_scope *s, const char *name, struct place *p)
{
    for (p->up = 0; s; s = s->outer, p->up++)
        if ((p->at = onnx_names_find(&s->names, name)) != NO_PLACE)
            return true;
    return false;
}

static bool load_weight(struct loader *l, struct array *a, const char *name, int *weight)
{
    struct kl_model *m = l->m;
    if (m->nweight == m->weight_cap) {
        uint32_t cap = m->weight_cap ? 2 * m->weight_cap : 16;
        struct weight *more = realloc(m->weight, cap * sizeof *more);
        if (!more)
            return load_no_memory(l);
        m->weight = more;
        m->weight_cap = cap;
    }
    *weight = (int)m->nweight;
    m->weight[m->nweight++] = (struct weight){.name = name, .array = array_ref(a)};
    return true;
}

static bool load_initials(struct loader *l, struct load_scope *s, const Onnx__GraphProto *p)
{
    struct graph_def *g = s->g;
    if (p->n_sparse_initializer)
        return file_fails(l->why, KL_ERR_TYPE, "%.300s has sparse initializers, which are not supported", l->path);
    if (!(g->initial = calloc(p->n_initializer + 1, sizeof *g->initial)))
        return load_no_memory(l);
    for (size_t i = 0; i < p->n_initializer; i++) {
        Onnx__TensorProto *t = p->initializer[i];
        struct file_error why;
        struct array *a = array_read(t, l->path, true, &l->m->strings, &why);
        if (!a)
            return file_fails(l->why, why.code, "%.300s: %.500s", l->path, why.text);
        struct initial *x = &g->initial[g->ninitial++];
        *x = (struct initial){NO_PLACE, a, -1};
        if ((x->at = load_value(l, s, text_or_none(t->name))) == NO_PLACE)
            return false;
        if (p != l->m->proto->graph || a->rank == 0 || !onnx_is_float(a->dtype))
            continue;
        if (!array_flush_subnormals(a))
            return load_no_memory(l);
        if (!load_weight(l, a, text_or_none(t->name), &x->weight))
            return false;
    }
    return true;
}

/* Is the type of an input or output, as far as it is declared, one that Kiln has? */
static bool load_type(struct loader *l, const char *what, const char *name, const Onnx__TypeProto *type)
{
    const char *kind = NULL;
    int32_t element;
    if (!type)
        return true;
    switch (type->value_case) {
    case ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE:
        element = type->tensor_type->elem_type;
        kind = element && onnx_held_dtype(element) == KL_DTYPE_COUNT ? onnx_dtype_name(element) : NULL;
        break;
    case ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE: return load_type(l, what, name, type->sequence_type->elem_type);
    case ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE: return load_type(l, what, name, type->optional_type->elem_type);
    default: /* a type that was not declared has no fields */
        if (type->value_case != ONNX__TYPE_PROTO__VALUE__NOT_SET || type->base.n_unknown_fields)
            kind = "no tensors";
    }
    return !kind || file_fails(l->why, KL_ERR_TYPE, "%.300s: %s '%.200s' has elements of %s, which Kiln does not have",
                                l->path, what, name, kind);
}

/* Lists the inputs, without those that are also initializers. */
static bool load_inputs(struct loader *l, struct load_scope *s, const Onnx__GraphProto *p)
{
    struct graph_def *g = s->g;
    g->in = calloc(p->n_input + 1, sizeof *g->in);
    g->in_element = calloc(p->n_input + 1, sizeof *g->in_element);
    if (!g->in || !g->in_element)
        return load_no_memory(l);
    for (size_t i = 0; i < p->n_input; i++) {
        const Onnx__TypeProto *type = p->input[i]->type;
        const char *name = text_or_none(p->input[i]->name);
        if (onnx_names_find(&s->names, name) != NO_PLACE) {
            if (onnx_names_find(&s->names, name) < g->ninitial)
                continue;
            return file_fails(l->why, KL_ERR_IO, "%.300s: two inputs are called '%.200s'", l->path, name);
        }
        if (!load_type(l, "input", name, type))
            return false;
        if (type && type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE)
            g->in_element[g->nin] = type->tensor_type->elem_type;
        if ((g->in[g->nin++] = load_value(l, s, name)) == NO_PLACE)
            return false;
    }
    return true;
}

/* ---- nodes ---- */

static struct graph_def *load_graph(struct loader *l, const Onnx__GraphProto *p, struct load_scope *outer, int opset,
                                    int training);
static struct graph_def *load_function(struct loader *l, size_t at);

static bool same_name(const char *a, const char *b) { return !strcmp(text_or_none(a), text_or_none(b)); }

static bool same_overload(struct bytes a, struct bytes b)
{
    return a.size == b.size && (!a.size || !memcmp(a.data, b.data, a.size));
}

/* The number of the function of this domain, name and overload; n_functions: there is none. */
static size_t find_function(const Onnx__ModelProto *m, const char *domain, const char *name, struct bytes overload)
{
    size_t i = 0;
    while (i < m->n_functions &&
           !(same_name(m->functions[i]->name, name) && same_name(m->functions[i]->domain, domain) &&
             same_overload(message_text(&m->functions[i]->base, FUNCTION_OVERLOAD), overload)))
        i++;
    return i;
}

static void load_missing(struct loader *l, const Onnx__NodeProto *p, int opset)
{
    char name[200];
    snprintf(name, sizeof name, "%.60s%s%.100s", text_or_none(p->domain), *text_or_none(p->domain) ? "." : "",
             text_or_none(p->op_type));
    if (onnx_names_find(&l->reported, name) != NO_PLACE)
        return;
    l->missing++;
    char *copy = strdup(name);
    if (!copy || !onnx_names_put(&l->reported, copy, l->missing)) {
        free(copy);
        return;
    }
    size_t used = strlen(l->list);
    if (l->listed >= LISTED || used + 200 > sizeof l->list)
        return;
    l->listed++;
    snprintf(l->list + used, sizeof l->list - used, "%s%.100s (opset %d, node '%.40s')", used ? ", " : "", name, opset,
             text_or_none(p->name));
}

static bool load_node_op(struct loader *l, struct load_scope *s, struct node_def *d)
{
    const Onnx__NodeProto *p = d->proto;
    const Onnx__ModelProto *m = l->m->proto;
    const char *domain = text_or_none(p->domain);
    size_t at = find_function(m, domain, p->op_type, message_text(&p->base, NODE_OVERLOAD));
    d->opset = !strcmp(domain, "ai.onnx.preview.training") ? s->training : s->opset;
    if (at < m->n_functions && (p->n_input > m->functions[at]->n_input || p->n_output > m->functions[at]->n_output))
        return file_fails(l->why, KL_ERR_IO, "%.300s: node '%.100s' calls function '%.100s' with %zu operands for %zu "
                           "results; it has %zu and %zu", l->path, text_or_none(p->name), p->op_type, p->n_input,
                           p->n_output, m->functions[at]->n_input, m->functions[at]->n_output);
    if (at < m->n_functions)
        return (d->function = load_function(l, at)) != NULL;
    d->op = onnx_op_find(domain, text_or_none(p->op_type), d->opset);
    if (!d->op)
        load_missing(l, p, d->opset);
    else
        l->m->differentiates |= d->op->fn == onnx_gradient;
    return true;
}

/* An attribute that refers to one of the function in which the node is: the function has to have it. */
static bool load_reference(struct loader *l, const struct load_scope *s, const Onnx__NodeProto *p,
                           const Onnx__AttributeProto *a)
{
    const char *name = text_or_none(a->ref_attr_name);
    while (s->outer)
        s = s->outer;
    bool found = !*name;
    for (size_t i = 0; !found && s->function && i < s->function->n_attribute; i++)
        found = same_name(s->function->attribute[i], name);
    for (size_t i = 0; !found && i < s->g->defaults.n; i++)
        found = same_name(s->g->defaults.v[i]->name, name);
    return found || file_fails(l->why, KL_ERR_IO, "%.300s: attribute '%.60s' of node '%.100s' (%.60s) refers to "
                                "'%.60s', which is no attribute of a function around it", l->path,
                                text_or_none(a->name), text_or_none(p->name), p->op_type, name);
}

static bool load_node(struct loader *l, struct load_scope *s, struct node_def *d, const Onnx__NodeProto *p)
{
    *d = (struct node_def){.proto = p};
    d->in = calloc(p->n_input + 1, sizeof *d->in);
    d->out = calloc(p->n_output + 1, sizeof *d->out);
    d->sub = calloc(p->n_attribute + 1, sizeof *d->sub);
    if (!d->in || !d->out || !d->sub)
        return load_no_memory(l);
    if (!p->op_type || !load_node_op(l, s, d))
        return p->op_type ? false : file_fails(l->why, KL_ERR_IO, "%.300s: a node has no operator", l->path);
    for (size_t i = 0; i < p->n_input; i++) {
        d->in[i] = (struct place){0, NO_PLACE};
        if (*p->input[i] && !load_find(s, p->input[i], &d->in[i]))
            return file_fails(l->why, KL_ERR_IO, "%.300s: node '%.100s' (%.60s) uses '%.200s', which no node before "
                               "it computes: it is missing, or the graph has a cycle", l->path, text_or_none(p->name),
                               p->op_type, p->input[i]);
    }
    for (size_t i = 0; i < p->n_attribute; i++)
        if (!load_reference(l, s, p, p->attribute[i]))
            return false;
    if (!strings_of_node(&l->m->strings, p))
        return file_fails(l->why, KL_ERR_TYPE, "%.300s: node '%.100s' (%.60s): a string has a zero byte, or memory is "
                          "out", l->path, text_or_none(p->name), p->op_type);
    for (size_t i = 0; i < p->n_attribute; i++)
        if (p->attribute[i]->g &&
            !(d->sub[i] = load_graph(l, p->attribute[i]->g, s, s->opset, s->training)))
            return false;
    for (size_t i = 0; i < p->n_output; i++) {
        d->out[i] = NO_PLACE;
        if (*p->output[i] && (d->out[i] = load_value(l, s, p->output[i])) == NO_PLACE)
            return false;
    }
    return true;
}

static bool load_nodes(struct loader *l, struct load_scope *s, Onnx__NodeProto **p, size_t n)
{
    struct graph_def *g = s->g;
    if (n > UINT32_MAX / 2 || !(g->node = calloc(n + 1, sizeof *g->node)))
        return load_no_memory(l);
    for (size_t i = 0; i < n; i++)
        if (!load_node(l, s, &g->node[g->nnode++], p[i]))
            return false;
    return true;
}

static bool load_output(struct loader *l, struct load_scope *s, const char *name)
{
    if (load_find(s, name, &s->g->out[s->g->nout++]))
        return true;
    return file_fails(l->why, KL_ERR_IO, "%.300s: nothing computes output '%.200s'", l->path, name);
}

static void free_graph(struct graph_def *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->nnode; i++) {
        struct node_def *d = &g->node[i];
        for (size_t k = 0; d->sub && k < d->proto->n_attribute; k++)
            free_graph(d->sub[k]);
        once_free(d->once);
        once_free(d->part);
        free(d->in);
        free(d->out);
        free(d->sub);
    }
    for (uint32_t i = 0; i < g->ninitial; i++)
        array_unref(g->initial[i].array);
    attributes_free(&g->defaults);
    free(g->name);
    free(g->node);
    free(g->initial);
    free(g->in);
    free(g->in_element);
    free(g->out);
    free(g);
}

static struct graph_def *load_graph(struct loader *l, const Onnx__GraphProto *p, struct load_scope *outer, int opset,
                                    int training)
{
    struct load_scope s = {.outer = outer, .opset = opset, .training = training};
    s.g = calloc(1, sizeof *s.g);
    bool ok = s.g && (s.g->out = calloc(p->n_output + 1, sizeof *s.g->out));
    if (!ok)
        load_no_memory(l);
    else
        s.g->proto = p;
    ok = ok && load_initials(l, &s, p) && load_inputs(l, &s, p) && load_nodes(l, &s, p->node, p->n_node);
    for (size_t i = 0; ok && i < p->n_output; i++)
        ok = load_output(l, &s, text_or_none(p->output[i]->name)) &&
             (strings_is_map(s.g, (uint32_t)i) ||
              load_type(l, "output", text_or_none(p->output[i]->name), p->output[i]->type));
    onnx_names_free(&s.names);
    if (ok)
        return s.g;
    free_graph(s.g);
    return NULL;
}

/* Most operators do not change from one opset to the next: a model of a newer one is read as of the last known. */
static void warn_of_opset(const struct loader *l, int64_t version)
{
    char text[500];
    snprintf(text, sizeof text, "%.300s is of ONNX opset %lld; its operators are taken as those of %d, the last that "
             "is known", l->path, (long long)version, ONNX_LAST_OPSET);
    kl_log_write(KL_LOG_WARN, text);
}

/* Reads the opsets of the domains; false: reported. */
static bool load_opsets(struct loader *l, Onnx__OperatorSetIdProto **v, size_t n, int *opset, int *training)
{
    *opset = *training = 0;
    for (size_t i = 0; i < n; i++) {
        const char *domain = text_or_none(v[i]->domain);
        int64_t version = v[i]->version;
        if (!*domain || !strcmp(domain, "ai.onnx")) {
            if (version < ONNX_FIRST_OPSET)
                return file_fails(l->why, KL_ERR_TYPE, "%.300s is of opset %lld", l->path, (long long)version);
            if (version > ONNX_LAST_OPSET)
                warn_of_opset(l, version);
            *opset = version > ONNX_LAST_OPSET ? ONNX_LAST_OPSET : (int)version;
        } else if (!strcmp(domain, "ai.onnx.preview.training")) {
            *training = version == 1;
        }
    }
    return true;
}

static bool load_function_graph(struct loader *l, const Onnx__FunctionProto *p, struct load_scope *s)
{
    struct graph_def *g = s->g;
    g->in = calloc(p->n_input + 1, sizeof *g->in);
    g->out = calloc(p->n_output + 1, sizeof *g->out);
    if (!g->in || !g->out)
        return load_no_memory(l);
    if (!attributes_read(&p->base, FUNCTION_DEFAULTS, l->path, &g->defaults, l->why))
        return false;
    for (size_t i = 0; i < g->defaults.n; i++)
        if (g->defaults.v[i]->g)
            return file_fails(l->why, KL_ERR_TYPE, "%.300s: function '%.100s' has an attribute whose default is a "
                               "graph, which is not supported", l->path, text_or_none(p->name));
    for (size_t i = 0; i < p->n_input; i++)
        if ((g->in[g->nin++] = load_value(l, s, p->input[i])) == NO_PLACE)
            return false;
    if (!load_nodes(l, s, p->node, p->n_node))
        return false;
    for (size_t i = 0; i < p->n_output; i++)
        if (!load_output(l, s, p->output[i]))
            return false;
    return true;
}

static struct graph_def *load_function(struct loader *l, size_t at)
{
    static struct graph_def open; /* marks a function that is being read */
    const Onnx__FunctionProto *p = l->m->proto->functions[at];
    struct graph_def **to = &l->m->function[at];
    struct load_scope s = {.function = p};
    if (*to == &open) {
        file_fails(l->why, KL_ERR_IO, "%.300s: function '%.200s' calls itself", l->path, text_or_none(p->name));
        return NULL;
    }
    if (*to)
        return *to;
    if (!load_opsets(l, p->opset_import, p->n_opset_import, &s.opset, &s.training))
        return NULL;
    if (!(s.g = calloc(1, sizeof *s.g)))
        return load_no_memory(l), NULL;
    *to = &open;
    bool ok = load_function_graph(l, p, &s);
    onnx_names_free(&s.names);
    *to = ok ? s.g : NULL;
    if (!ok)
        free_graph(s.g);
    return *to;
}

/* ---- models ---- */

void model_free(struct kl_model *m)
{
    if (!m)
        return;
    strings_keys_free(m);
    strings_free(&m->strings);
    free_graph(m->main);
    for (size_t i = 0; m->function && i < m->proto->n_functions; i++)
        free_graph(m->function[i]);
    for (uint32_t i = 0; i < m->nweight; i++)
        array_unref(m->weight[i].array);
    for (uint32_t i = 0; i < m->npool; i++)
        array_unref(m->pool[i].array);
    if (m->proto)
        onnx__model_proto__free_unpacked(m->proto, NULL);
    free(m->path);
    free(m->function);
    free(m->weight);
    free(m->pool);
    free(m);
}

static bool load_all(struct loader *l, const struct bytes *b)
{
    struct kl_model *m = l->m;
    int opset, training;
    m->proto = (Onnx__ModelProto *)message_parse(b, &onnx__model_proto__descriptor, l->path, l->why);
    if (!m->proto)
        return false;
    if (!m->proto->graph)
        return file_fails(l->why, KL_ERR_IO, "%.300s has no graph", l->path);
    if (m->proto->ir_version > ONNX_LAST_IR)
        return file_fails(l->why, KL_ERR_TYPE, "%.300s is of IR version %lld; %d is the last that Kiln knows", l->path,
                           (long long)m->proto->ir_version, ONNX_LAST_IR);
    for (size_t i = 0; i < m->proto->n_functions; i++) {
        const Onnx__FunctionProto *f = m->proto->functions[i];
        if (find_function(m->proto, f->domain, f->name, message_text(&f->base, FUNCTION_OVERLOAD)) != i)
            return file_fails(l->why, KL_ERR_IO, "%.300s: two functions are called '%.200s'", l->path,
                               text_or_none(f->name));
    }
    m->function = calloc(m->proto->n_functions + 1, sizeof *m->function);
    if (!m->function)
        return load_no_memory(l);
    if (!load_opsets(l, m->proto->opset_import, m->proto->n_opset_import, &opset, &training))
        return false;
    m->main = load_graph(l, m->proto->graph, NULL, opset ? opset : 1, training);
    if (!m->main)
        return false;
    if (!strings_keys(m))
        return load_no_memory(l);
    if (l->missing)
        return file_fails(l->why, KL_ERR_TYPE, "%.150s: %u operator%s missing: %.600s%s", l->path, l->missing,
                           l->missing == 1 ? " is" : "s are", l->list, l->missing > l->listed ? ", .." : "");
    return true;
}

struct kl_model *model_read(kl_device device, const char *path, struct file_error *why)
{
    struct loader l = {.path = path, .why = why};
    struct bytes b;
    const char *slash = strrchr(path, '/');
    size_t folder = slash ? (size_t)(slash + 1 - path) : 0;
    if (!bytes_map(&b, path, NULL, why))
        return NULL;
    bool ok = ((l.m = calloc(1, sizeof *l.m)) && (l.m->path = strdup(path))) || load_no_memory(&l);
    if (ok) {
        l.m->device = device;
        l.m->label = string_forever(path + folder);
        ok = load_all(&l, &b);
    }
    bytes_unmap(&b);
    for (uint32_t i = 0; i < l.reported.cap; i++)
        free((void *)(uintptr_t)l.reported.key[i]);
    onnx_names_free(&l.reported);
    if (ok)
        return l.m;
    model_free(l.m);
    return NULL;
}
