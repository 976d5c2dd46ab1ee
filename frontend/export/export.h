/* Writing graphs as ONNX models: functions that the files of this folder share. */
#ifndef KILN_EXPORT_H
#define KILN_EXPORT_H
#include "traced_graph.h"

/* ---- protobuf.c: messages as bytes ---- */
struct proto { uint8_t *v; size_t n, cap; bool failed; }; /* failed: out of memory */
void proto_int(struct proto *p, unsigned field, int64_t value);
void proto_bytes(struct proto *p, unsigned field, const void *bytes, size_t n);
void proto_text(struct proto *p, unsigned field, const char *text);
/* Writes the message as a field of another message and empties it, so that it can be filled again. */
void proto_message(struct proto *p, unsigned field, struct proto *message);
void proto_free(struct proto *p);

/* ---- onnx.c: a model on its way ---- */
enum { EXPORT_NAME = 72 };
struct value_name { char s[EXPORT_NAME]; };

/* The dtypes of values by name: a table by hash, of a size that is a power of two. */
struct value_type { struct value_name name; uint8_t dtype; };
struct value_types { struct value_type *v; uint32_t n, cap; };

struct exporter {
    const struct graph *g;
    struct value_name *name;             /* per node; "": it has no name yet */
    struct proto nodes, initializers; /* fields of a GraphProto */
    uint32_t made;                 /* number of names made so far, in the whole model */
    const struct exporter *outer;  /* of a region: that of the graph around it */
    uint32_t region;               /* its number in the model, which is a part of names; 0: the whole graph */
    uint32_t *regions;             /* number of regions so far */
    struct value_types *types;     /* of the whole model */
    ref now;                       /* the node that is written, for messages */
    struct err *e;
};

unsigned export_type(unsigned dtype);          /* ONNX's number of an element type */
struct value_name export_fresh(struct exporter *x);  /* a new name for a value that is not a node's */
const char *export_value(struct exporter *x, ref r); /* the name of a node's value */
/* Constants: a tensor of these bytes; whole numbers [n]; one number of a dtype []. */
struct value_name export_tensor(struct exporter *x, unsigned dtype, const struct shape *s, const void *data);
struct value_name export_ints(struct exporter *x, uint32_t n, const int64_t *v);
struct value_name export_number(struct exporter *x, unsigned dtype, double v);

/* value: n int64_t, or one if n is 0; for n ATTRIBUTE_STRING text, for n ATTRIBUTE_GRAPH a GraphProto. */
struct attribute { const char *name; uint32_t n; const void *value; };
#define ATTRIBUTE_STRING UINT32_MAX
#define ATTRIBUTE_GRAPH (UINT32_MAX - 1)
/* Adds a node with n operands ("": omitted) and one result.  attributes: NULL, or an array that ends with an attribute
 * without a name. */
void export_node(struct exporter *x, const char *op, uint32_t nin, const char *const *in, const char *out,
                 const struct attribute *attributes);
void export_node_of(struct exporter *x, const char *op, uint32_t nin, const char *const *in, uint32_t nout,
                    const char *const *out, const struct attribute *attributes); /* the same with nout results */
void export_value_info(struct proto *graph, unsigned field, const char *name, unsigned dtype, const struct shape *s);
/* Writes the nodes that the outputs of x->g need, whose leaves have names.  false: *x->e. */
bool export_nodes(struct exporter *x);
void export_append(struct proto *to, const struct proto *fields); /* the fields at the end of another message */
enum { EXPORT_GRAPH_NODE = 1, EXPORT_GRAPH_NAME = 2, EXPORT_GRAPH_INPUT = 11, EXPORT_GRAPH_OUTPUT = 12 };
bool export_refuse(struct exporter *x, ref r, const char *why); /* returns false; the error names the node and its
                                                                   line */

/* Writes the whole model.  Inputs [0, nin) are the model's inputs, the others have data.  false: *e has the reason. */
bool export_model(const struct graph *g, uint32_t nin, const char *const *in_name, const void *const *data,
                  const char *const *out_name, struct proto *model, struct err *e);

/* ---- onnx_types.c ---- */
void export_set_type(struct exporter *x, const char *name, unsigned dtype);
void export_types_free(struct value_types *t);
/* Notes the types of a node's results.  If the operator does not take its operands' type, it is written between casts,
 * or refused (*x->e), and the result is true. */
bool export_typed_node(struct exporter *x, const char *op, uint32_t nin, const char *const *in, uint32_t nout,
                       const char *const *out, const struct attribute *attributes);

/* ---- save.c ---- */
/* Writes a graph without symbols to a file.  Its inputs, states and slots become inputs with their names, and its
 * outputs become outputs; the output of an assigned state is named NAME.new. */
bool export_file(const struct graph *g, const char *path, struct err *e);

/* ---- onnx_ops.c, onnx_products.c: one node of the graph; false: *x->e ---- */
bool export_op(struct exporter *x, ref r);
bool export_dot(struct exporter *x, ref r, const char *out);
bool export_attention(struct exporter *x, ref r, const char *out);

/* ---- onnx_index.c ---- */
struct value_name export_cast(struct exporter *x, const char *value, unsigned dtype); /* wraps and rounds as ONNX's */
bool export_gather(struct exporter *x, ref r, const char *out);
bool export_scatter(struct exporter *x, ref r, const char *out);
bool export_dynamic(struct exporter *x, ref r, const char *out); /* dynamic_slice, dynamic_update */
bool export_quantized(struct exporter *x, ref r, const char *out); /* quantize, dequantize */

/* ---- onnx_regions.c: scan, while, cond ---- */
bool export_region(struct exporter *x, ref r);

#endif
