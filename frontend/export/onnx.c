/* A graph as an ONNX model of opset 18: names, constants, nodes, inputs and outputs.  The numbers of fields are those
 * of onnx.proto. */
#include "export.h"
#include <string.h>

enum { OPSET = 18, IR_VERSION = 8 };
enum { MODEL_IR = 1, MODEL_PRODUCER = 2, MODEL_GRAPH = 7, MODEL_OPSET = 8 };
enum { GRAPH_NODE = EXPORT_GRAPH_NODE, GRAPH_NAME = EXPORT_GRAPH_NAME, GRAPH_INITIALIZER = 5,
       GRAPH_INPUT = EXPORT_GRAPH_INPUT, GRAPH_OUTPUT = EXPORT_GRAPH_OUTPUT };
enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_NAME = 3, NODE_OP = 4, NODE_ATTRIBUTE = 5 };
enum { ATTRIBUTE_NAME = 1, ATTRIBUTE_I = 3, ATTRIBUTE_S = 4, ATTRIBUTE_G = 6, ATTRIBUTE_INTS = 8, ATTRIBUTE_TYPE = 20 };
enum { TYPE_INT = 2, TYPE_STRING = 3, TYPE_GRAPH = 5, TYPE_INTS = 7 };
enum { TENSOR_DIMS = 1, TENSOR_TYPE = 2, TENSOR_NAME = 8, TENSOR_RAW = 9 };

unsigned export_type(unsigned dtype)
{
    static const uint8_t number[KL_DTYPE_COUNT] = {
        [KL_BOOL] = 9, [KL_U8] = 2, [KL_U16] = 4, [KL_U32] = 12, [KL_U64] = 13, [KL_I8] = 3, [KL_I16] = 5, [KL_I32] = 6,
        [KL_I64] = 7, [KL_F16] = 10, [KL_BF16] = 16, [KL_F32] = 1, [KL_F64] = 11};
    return number[dtype];
}

struct value_name export_fresh(struct exporter *x)
{
    struct value_name n;
    snprintf(n.s, sizeof n.s, "t%u", x->made++);
    return n;
}

const char *export_value(struct exporter *x, ref r)
{
    if (!*x->name[r].s) {
        snprintf(x->name[r].s, EXPORT_NAME, x->region ? "v%u.%u" : "v%u", r, x->region);
        export_set_type(x, x->name[r].s, node_at(x->g, r)->dtype);
    }
    return x->name[r].s;
}

static void put_initializer(struct exporter *x, const char *name, unsigned dtype, const struct shape *s,
                            const void *data)
{
    struct proto t = {0};
    for (uint32_t i = 0; i < s->rank; i++)
        proto_int(&t, TENSOR_DIMS, s->dim[i]);
    proto_int(&t, TENSOR_TYPE, export_type(dtype));
    proto_text(&t, TENSOR_NAME, name);
    proto_bytes(&t, TENSOR_RAW, data, (size_t)shape_count(s) * dtype_size(dtype));
    proto_message(&x->initializers, GRAPH_INITIALIZER, &t);
    proto_free(&t);
}

struct value_name export_tensor(struct exporter *x, unsigned dtype, const struct shape *s, const void *data)
{
    struct value_name n = export_fresh(x);
    put_initializer(x, n.s, dtype, s, data);
    export_set_type(x, n.s, dtype);
    return n;
}

struct value_name export_ints(struct exporter *x, uint32_t n, const int64_t *v)
{
    int64_t length = n;
    struct shape s = shape_make(1, &length);
    return export_tensor(x, KL_I64, &s, v);
}

struct value_name export_number(struct exporter *x, unsigned dtype, double v)
{
    uint64_t bits = dtype_bits(dtype, v);
    struct shape s = shape_make(0, NULL);
    return export_tensor(x, dtype, &s, &bits);
}

void export_node(struct exporter *x, const char *op, uint32_t nin, const char *const *in, const char *out,
                 const struct attribute *attributes)
{
    export_node_of(x, op, nin, in, 1, &out, attributes);
}

static void put_attribute_value(struct proto *a, const struct attribute *from)
{
    const int64_t *ints = from->value;
    if (from->n == ATTRIBUTE_STRING) {
        proto_text(a, ATTRIBUTE_S, from->value);
        proto_int(a, ATTRIBUTE_TYPE, TYPE_STRING);
    } else if (from->n == ATTRIBUTE_GRAPH) {
        proto_message(a, ATTRIBUTE_G, (struct proto *)(uintptr_t)from->value);
        proto_int(a, ATTRIBUTE_TYPE, TYPE_GRAPH);
    } else {
        for (uint32_t i = 0; i < from->n; i++)
            proto_int(a, ATTRIBUTE_INTS, ints[i]);
        if (!from->n)
            proto_int(a, ATTRIBUTE_I, ints[0]);
        proto_int(a, ATTRIBUTE_TYPE, from->n ? TYPE_INTS : TYPE_INT);
    }
}

void export_node_of(struct exporter *x, const char *op, uint32_t nin, const char *const *in, uint32_t nout,
                    const char *const *out, const struct attribute *attributes)
{
    struct proto n = {0}, a = {0};
    if (export_typed_node(x, op, nin, in, nout, out, attributes))
        return;
    for (uint32_t i = 0; i < nin; i++)
        proto_text(&n, NODE_INPUT, in[i]);
    for (uint32_t i = 0; i < nout; i++)
        proto_text(&n, NODE_OUTPUT, out[i]);
    proto_text(&n, NODE_NAME, out[nout - 1]);
    proto_text(&n, NODE_OP, op);
    for (; attributes && attributes->name; attributes++) {
        proto_text(&a, ATTRIBUTE_NAME, attributes->name);
        put_attribute_value(&a, attributes);
        proto_message(&n, NODE_ATTRIBUTE, &a);
    }
    proto_message(&x->nodes, GRAPH_NODE, &n);
    proto_free(&n);
    proto_free(&a);
}

bool export_refuse(struct exporter *x, ref r, const char *why)
{
    const struct node *n = node_at(x->g, r);
    char at[300], shape[SHAPE_TEXT], of[SHAPE_TEXT] = "";
    site_text(&x->g->site[n->site], " (recorded at ", ")", at, sizeof at);
    if (n->nin && !op_is_region(n->op)) {
        const struct node *a = node_at(x->g, n->in[0]);
        snprintf(of, sizeof of, " of %s%.150s", dtype_name(a->dtype),
                 shape_text(node_shape(x->g, n->in[0]), shape, sizeof shape));
    }
    if (op_is_region(n->op))
        return err_set(x->e, KL_ERR_TYPE, "%s cannot be written as ONNX: %s%s", opinfo[n->op].name, why, at);
    return err_set(x->e, KL_ERR_TYPE, "%s%s to %s%.150s cannot be written as ONNX: %s%s", opinfo[n->op].name, of,
                   dtype_name(n->dtype), shape_text(node_shape(x->g, r), shape, sizeof shape), why, at);
}

/* A ValueInfoProto: a name with a type. */
void export_value_info(struct proto *graph, unsigned field, const char *name, unsigned dtype, const struct shape *s)
{
    struct proto value = {0}, type = {0}, tensor = {0}, shape = {0}, dim = {0};
    for (uint32_t i = 0; i < s->rank; i++) {
        proto_int(&dim, 1, s->dim[i]);
        proto_message(&shape, 1, &dim);
    }
    proto_int(&tensor, 1, export_type(dtype));
    proto_message(&tensor, 2, &shape);
    proto_message(&type, 1, &tensor);
    proto_text(&value, 1, name);
    proto_message(&value, 2, &type);
    proto_message(graph, field, &value);
    struct proto *all[] = {&value, &type, &tensor, &shape, &dim};
    for (int i = 0; i < 5; i++)
        proto_free(all[i]);
}

static void name_of(char *to, const char *given, const char *word, uint32_t i)
{
    if (given && *given)
        snprintf(to, EXPORT_NAME, "%s", given);
    else
        snprintf(to, EXPORT_NAME, "%s%u", word, i);
}

/* Names leaves.  Inputs with data become initializers; states and slots become inputs. */
static void name_leaves(struct exporter *x, uint32_t nin, const char *const *in_name, const void *const *data)
{
    const struct graph *g = x->g;
    for (ref r = 1; r < g->nnode; r++) {
        const struct node *n = node_at(g, r);
        uint32_t i = n->attr.leaf.index;
        if (n->op == OP_state)
            name_of(x->name[r].s, g->state.v[i].name, "state", i);
        if (n->op == OP_slot)
            name_of(x->name[r].s, g->slot.v[i].name, "slot", i);
        if (n->op != OP_input)
            continue;
        name_of(x->name[r].s, i < nin && in_name ? in_name[i] : NULL, i < nin ? "input" : "weight",
                i < nin ? i : i - nin);
        if (i >= nin)
            put_initializer(x, x->name[r].s, n->dtype, node_shape(g, r), data[i]);
    }
    for (ref r = 1; r < g->nnode; r++)
        export_set_type(x, x->name[r].s, node_at(g, r)->dtype);
}

static void put_inputs(struct proto *graph, const struct graph *g, const struct leaves *leaves, uint32_t n,
                       const char *const *name, const char *word)
{
    for (uint32_t i = 0; i < n; i++) {
        char text[EXPORT_NAME];
        name_of(text, name ? name[i] : leaves == &g->input ? NULL : leaves->v[i].name, word, i);
        export_value_info(graph, GRAPH_INPUT, text, leaves->v[i].dtype, &g->shape[leaves->v[i].shape]);
    }
}

static void put_model(struct proto *graph, struct proto *model)
{
    struct proto opset = {0};
    proto_int(model, MODEL_IR, IR_VERSION);
    proto_text(model, MODEL_PRODUCER, "kiln");
    proto_text(&opset, 1, "");
    proto_int(&opset, 2, OPSET);
    proto_message(model, MODEL_OPSET, &opset);
    proto_message(model, MODEL_GRAPH, graph);
    proto_free(&opset);
}

void export_append(struct proto *to, const struct proto *fields)
{
    to->failed |= fields->failed;
    uint8_t *v = kl_memory_alloc(to->n + fields->n + 1);
    if (!v) {
        to->failed = true;
        return;
    }
    if (to->n)
        memcpy(v, to->v, to->n);
    if (fields->n)
        memcpy(v + to->n, fields->v, fields->n);
    kl_memory_free(to->v);
    *to = (struct proto){v, to->n + fields->n, to->n + fields->n + 1, to->failed};
}

static void put_onnx_graph(struct exporter *x, uint32_t nin, const char *const *in_name, const char *const *out_name,
                      struct proto *graph)
{
    const struct graph *g = x->g;
    put_inputs(graph, g, &g->input, nin, in_name, "input");
    put_inputs(graph, g, &g->state, g->state.n, NULL, "state");
    put_inputs(graph, g, &g->slot, g->slot.n, NULL, "slot");
    for (uint32_t i = 0; i < g->nout; i++) {
        ref r = g->out[i].value;
        char name[EXPORT_NAME];
        name_of(name, out_name ? out_name[i] : NULL, "output", i);
        export_node(x, "Identity", 1, (const char *const[]){export_value(x, r)}, name, NULL);
        export_value_info(graph, GRAPH_OUTPUT, name, node_at(g, r)->dtype, node_shape(g, r));
    }
    proto_text(graph, GRAPH_NAME, g->name);
    export_append(graph, &x->nodes);
    export_append(graph, &x->initializers);
}

bool export_nodes(struct exporter *x)
{
    const struct graph *g = x->g;
    bool *needed = kl_memory_alloc(g->nnode), ok = needed || err_set(x->e, KL_ERR_MEMORY, "out of memory");
    for (uint32_t i = 0; i < g->nout && ok; i++)
        needed[g->out[i].value] = true;
    for (ref r = g->nnode; ok && r-- > 1;)
        for (uint32_t i = 0; needed[r] && i < node_nin(node_at(g, r)); i++)
            needed[node_in(g, node_at(g, r), i)] = true;
    for (ref r = 1; r < g->nnode && ok; r++) {
        x->now = r;
        ok = !needed[r] || (export_op(x, r) && !x->e->code);
    }
    kl_memory_free(needed);
    return ok;
}

bool export_model(const struct graph *g, uint32_t nin, const char *const *in_name, const void *const *data,
                  const char *const *out_name, struct proto *model, struct err *e)
{
    uint32_t regions = 0;
    struct value_types types = {0};
    struct exporter x = {.g = g, .name = kl_memory_alloc(g->nnode * sizeof *x.name), .e = e, .regions = &regions,
                         .types = &types};
    struct proto graph = {0};
    if (x.name)
        name_leaves(&x, nin, in_name, data);
    if (x.name && export_nodes(&x)) {
        put_onnx_graph(&x, nin, in_name, out_name, &graph);
        put_model(&graph, model);
    }
    bool room = x.name && !model->failed && !graph.failed;
    kl_memory_free(x.name);
    export_types_free(&types);
    proto_free(&x.nodes);
    proto_free(&x.initializers);
    proto_free(&graph);
    if (!e->code && !room)
        return err_set(e, KL_ERR_MEMORY, "out of memory");
    if (!e->code && model->n > INT32_MAX)
        return err_set(e, KL_ERR_ARGUMENT, "the model has %zu bytes; a file of ONNX's has less than 2 GiB", model->n);
    return !e->code;
}
