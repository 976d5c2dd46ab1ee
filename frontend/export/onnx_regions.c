/* Writes scans, loops and branches: ONNX's Scan, Loop and If, whose bodies are graphs.  A body may use the values of
 * the graph around it, so operands that do not change from one iteration to the next are used by their names. */
#include "export.h"
#include <string.h>

/* A body on its way. */
struct body_graph {
    struct exporter x;
    struct proto graph;
};

static bool body_open(struct body_graph *b, struct exporter *outer, const struct graph *g)
{
    *b = (struct body_graph){.x = {.g = g, .name = kl_memory_alloc(g->nnode * sizeof *b->x.name), .e = outer->e,
                                   .made = outer->made, .outer = outer, .regions = outer->regions,
                                   .types = outer->types,
                                   .region = ++*outer->regions}};
    return b->x.name || err_set(outer->e, KL_ERR_MEMORY, "out of memory");
}

static void body_close(struct body_graph *b, struct exporter *outer)
{
    outer->made = b->x.made;
    outer->nodes.failed |= b->graph.failed | b->x.nodes.failed | b->x.initializers.failed;
    kl_memory_free(b->x.name);
    proto_free(&b->x.nodes);
    proto_free(&b->x.initializers);
    proto_free(&b->graph);
}

/* The node of parameter i; NIL: nothing uses it. */
static ref region_parameter_node(const struct graph *g, uint32_t i)
{
    for (ref r = 1; r < g->nnode; r++)
        if (node_at(g, r)->op == OP_input && node_at(g, r)->attr.leaf.index == i)
            return r;
    return NIL;
}

static void name_parameter(struct body_graph *b, uint32_t i, const char *name)
{
    ref r = region_parameter_node(b->x.g, i);
    if (r != NIL)
        snprintf(b->x.name[r].s, EXPORT_NAME, "%s", name);
}

/* An input of the body with the type of parameter i. */
static void body_input(struct body_graph *b, uint32_t i)
{
    const struct leaf *l = &b->x.g->input.v[i];
    struct value_name name = export_fresh(&b->x);
    name_parameter(b, i, name.s);
    export_set_type(&b->x, name.s, l->dtype);
    export_value_info(&b->graph, EXPORT_GRAPH_INPUT, name.s, l->dtype, &b->x.g->shape[l->shape]);
}

static void body_output(struct body_graph *b, const char *value, unsigned dtype, const struct shape *s)
{
    struct value_name name = export_fresh(&b->x);
    export_node(&b->x, "Identity", 1, &value, name.s, NULL);
    export_value_info(&b->graph, EXPORT_GRAPH_OUTPUT, name.s, dtype, s);
}

static void body_results(struct body_graph *b)
{
    const struct graph *g = b->x.g;
    for (uint32_t i = 0; i < g->nout; i++) {
        ref r = g->out[i].value;
        body_output(b, export_value(&b->x, r), node_at(g, r)->dtype, node_shape(g, r));
    }
}

static struct proto *body_end(struct body_graph *b)
{
    proto_text(&b->graph, EXPORT_GRAPH_NAME, *b->x.g->name ? b->x.g->name : "body");
    export_append(&b->graph, &b->x.nodes);
    export_append(&b->graph, &b->x.initializers);
    return &b->graph;
}

/* Adds the node of the region op; its results get the names of the ops that read them. */
static void region_node(struct exporter *x, ref r, const char *op, uint32_t nin, const char *const *in,
                        const struct attribute *attributes)
{
    const struct node *n = node_at(x->g, r);
    uint32_t nout = region_results(x->g, n);
    struct value_name *name = kl_memory_alloc((nout + 1) * sizeof *name);
    const char **out = kl_memory_alloc((nout + 1) * sizeof *out);
    if (name && out) {
        for (uint32_t i = 0; i < nout; i++)
            name[i] = export_fresh(x);
        for (ref p = 1; p < x->g->nnode; p++)
            if (node_at(x->g, p)->op == OP_proj && node_at(x->g, p)->in[0] == r)
                export_set_type(x, (x->name[p] = name[node_at(x->g, p)->attr.proj.index]).s, node_at(x->g, p)->dtype);
        for (uint32_t i = 0; i < nout; i++)
            out[i] = name[i].s;
        export_node_of(x, op, nin, in, nout, out, attributes);
    } else {
        err_set(x->e, KL_ERR_MEMORY, "out of memory");
    }
    kl_memory_free(name);
    kl_memory_free(out);
}

static const char *operand_value(struct exporter *x, const struct node *n, uint32_t i)
{
    return export_value(x, node_in(x->g, n, i));
}

/* ONNX's Scan needs a scanned tensor: where there is none it gets the numbers of the iterations. */
static bool export_scan(struct exporter *x, ref r, const char **in)
{
    const struct node *n = node_at(x->g, r);
    uint32_t carried = n->attr.region.carried, scanned = n->attr.region.scanned, nin = carried + scanned;
    struct body_graph b;
    if (!body_open(&b, x, x->g->region[n->attr.region.first]))
        return false;
    for (uint32_t i = 0; i < nin; i++) {
        body_input(&b, i);
        in[i] = operand_value(x, n, i);
    }
    struct value_name count;
    if (!scanned) {
        struct shape all = shape_make(1, &n->attr.region.length), none = shape_make(0, NULL);
        uint8_t *zeros = kl_memory_alloc((size_t)n->attr.region.length + 1);
        if (!zeros)
            err_set(x->e, KL_ERR_MEMORY, "out of memory");
        else
            count = export_tensor(&b.x, KL_U8, &all, zeros);
        /* the tensor belongs to the graph around the body */
        export_append(&x->initializers, &b.x.initializers);
        proto_free(&b.x.initializers);
        b.x.initializers = (struct proto){0};
        kl_memory_free(zeros);
        struct value_name each = export_fresh(&b.x);
        export_value_info(&b.graph, EXPORT_GRAPH_INPUT, each.s, KL_U8, &none);
        in[nin++] = count.s;
    }
    for (uint32_t i = carried + scanned; i < node_nin(n); i++)
        name_parameter(&b, i, operand_value(x, n, i));
    bool ok = !x->e->code && export_nodes(&b.x);
    if (ok) {
        int64_t inputs = nin - carried, stacked = region_results(x->g, n) - carried, backward[64];
        for (size_t i = 0; i < 64; i++)
            backward[i] = 1;
        body_results(&b);
        bool reverse = n->attr.region.flags & REGION_REVERSE;
        if (reverse && (inputs > 64 || stacked > 64))
            ok = export_refuse(x, r, "more than 64 scanned or stacked tensors in reverse order");
        struct attribute list[] = {{"body", ATTRIBUTE_GRAPH, body_end(&b)}, {"num_scan_inputs", 0, &inputs},
                                   {reverse ? "scan_input_directions" : NULL, (uint32_t)inputs, backward},
                                   {stacked ? "scan_output_directions" : NULL, (uint32_t)stacked, backward},
                                   {NULL, 0, NULL}};
        x->made = b.x.made;
        if (ok)
            region_node(x, r, "Scan", nin, in, list);
        b.x.made = x->made;
    }
    body_close(&b, x);
    return ok && !x->e->code;
}

/* Writes the nodes of a condition's region into the nodes of `x`, for values of these names.  Returns the name of its
 * result; "": *x->e. */
static struct value_name inline_condition(struct exporter *x, const struct graph *g, uint32_t n,
                                          const char *const *value)
{
    struct body_graph b;
    struct value_name out = {""};
    if (!body_open(&b, x, g))
        return out;
    for (uint32_t i = 0; i < n; i++)
        name_parameter(&b, i, value[i]);
    if (export_nodes(&b.x))
        snprintf(out.s, sizeof out.s, "%s", export_value(&b.x, g->out[0].value));
    export_append(&x->nodes, &b.x.nodes);
    export_append(&x->initializers, &b.x.initializers);
    body_close(&b, x);
    return out;
}

/* ONNX's Loop takes the condition's value before the first iteration, and its body gives that for the next one. */
static bool export_while(struct exporter *x, ref r, const char **in)
{
    const struct node *n = node_at(x->g, r);
    const struct graph *condition = x->g->region[n->attr.region.first];
    const struct graph *g = x->g->region[n->attr.region.first + 1];
    uint32_t count = node_nin(n), carried = n->attr.region.carried; /* those behind the carried ones do not change */
    struct shape scalar = shape_make(0, NULL);
    struct body_graph b;
    for (uint32_t i = 0; i < count; i++)
        in[2 + i] = operand_value(x, n, i);
    struct value_name first = inline_condition(x, condition, count, in + 2);
    if (!*first.s || !body_open(&b, x, g))
        return false;
    in[0] = "";
    in[1] = first.s;
    export_value_info(&b.graph, EXPORT_GRAPH_INPUT, export_fresh(&b.x).s, KL_I64, &scalar);
    export_value_info(&b.graph, EXPORT_GRAPH_INPUT, export_fresh(&b.x).s, KL_BOOL, &scalar);
    for (uint32_t i = 0; i < carried; i++)
        body_input(&b, i);
    for (uint32_t i = carried; i < count; i++)
        name_parameter(&b, i, in[2 + i]);
    const char **next = kl_memory_alloc((count + 1) * sizeof *next);
    bool ok = (next || err_set(x->e, KL_ERR_MEMORY, "out of memory")) && export_nodes(&b.x);
    for (uint32_t i = 0; ok && i < count; i++)
        next[i] = i < carried ? export_value(&b.x, g->out[i].value) : in[2 + i];
    struct value_name again = ok ? inline_condition(&b.x, condition, count, next) : (struct value_name){""};
    ok = ok && *again.s;
    if (ok) {
        body_output(&b, again.s, KL_BOOL, &scalar);
        body_results(&b);
        struct attribute list[] = {{"body", ATTRIBUTE_GRAPH, body_end(&b)}, {NULL, 0, NULL}};
        x->made = b.x.made;
        region_node(x, r, "Loop", carried + 2, in, list);
        b.x.made = x->made;
    }
    kl_memory_free(next);
    body_close(&b, x);
    return ok && !x->e->code;
}

static bool export_cond(struct exporter *x, ref r)
{
    const struct node *n = node_at(x->g, r);
    struct body_graph b[2];
    bool ok = true;
    for (int k = 0; k < 2; k++) {
        bool open = body_open(&b[k], x, x->g->region[n->attr.region.first + (uint32_t)k]);
        for (uint32_t i = 1; open && i < node_nin(n); i++)
            name_parameter(&b[k], i - 1, operand_value(x, n, i));
        ok = ok && open && export_nodes(&b[k].x);
        if (ok)
            body_results(&b[k]);
        x->made = b[k].x.made > x->made ? b[k].x.made : x->made;
    }
    if (ok) {
        struct attribute list[] = {{"then_branch", ATTRIBUTE_GRAPH, body_end(&b[0])},
                                   {"else_branch", ATTRIBUTE_GRAPH, body_end(&b[1])}, {NULL, 0, NULL}};
        const char *condition = operand_value(x, n, 0);
        region_node(x, r, "If", 1, &condition, list);
    }
    uint32_t made = x->made;
    for (int k = 0; k < 2; k++)
        body_close(&b[k], x);
    x->made = made;
    return ok && !x->e->code;
}

bool export_region(struct exporter *x, ref r)
{
    const struct node *n = node_at(x->g, r);
    if (!op_is_control(n->op))
        return export_refuse(x, r, "an op of the user's own");
    if (n->op == OP_cond)
        return export_cond(x, r);
    const char **in = kl_memory_alloc((node_nin(n) + 3) * sizeof *in);
    bool ok = in ? n->op == OP_scan ? export_scan(x, r, in) : export_while(x, r, in)
                 : err_set(x->e, KL_ERR_MEMORY, "out of memory");
    kl_memory_free(in);
    return ok;
}
