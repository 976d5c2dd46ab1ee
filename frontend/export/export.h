/* Writing graphs as ONNX models: what the files of this folder share. */
#ifndef KILN_EXPORT_H
#define KILN_EXPORT_H
#include "ir/ir.h"

/* ---- protobuf.c: messages as bytes ---- */
struct proto { uint8_t *v; size_t n, cap; bool failed; }; /* failed: out of memory */
void proto_int(struct proto *p, unsigned field, int64_t value);
void proto_float(struct proto *p, unsigned field, float value);
void proto_bytes(struct proto *p, unsigned field, const void *bytes, size_t n);
void proto_text(struct proto *p, unsigned field, const char *text);
/* The message as a field of another one; it is emptied and can be filled again. */
void proto_message(struct proto *p, unsigned field, struct proto *message);
void proto_free(struct proto *p);

/* ---- onnx.c: a model on its way ---- */
enum { EXPORT_NAME = 72 };
struct value_name { char s[EXPORT_NAME]; };

struct exporter {
    const struct graph *g;
    struct value_name *name;             /* per node; "": it has none yet */
    struct proto nodes, initializers; /* fields of a GraphProto */
    uint32_t made;                 /* names so far */
    struct err *e;
};

unsigned export_type(unsigned dtype);          /* ONNX's number of an element type */
struct value_name export_fresh(struct exporter *x);  /* a name for a value between two nodes */
const char *export_value(struct exporter *x, ref r); /* the name of a node's value */
/* Constants: bytes of a tensor, whole numbers [n], one number of a dtype []. */
struct value_name export_tensor(struct exporter *x, unsigned dtype, const struct shape *s, const void *data);
struct value_name export_ints(struct exporter *x, uint32_t n, const int64_t *v);
struct value_name export_number(struct exporter *x, unsigned dtype, double v);

struct attribute { const char *name; uint32_t n; const int64_t *ints; }; /* n 0: one number, ints[0] */
/* A node of so many operands ("": left out) and one result, with attributes up to one without a name, or NULL. */
void export_node(struct exporter *x, const char *op, uint32_t nin, const char *const *in, const char *out,
                 const struct attribute *attributes);
void export_node_of(struct exporter *x, const char *op, uint32_t nin, const char *const *in, uint32_t nout,
                    const char *const *out, const struct attribute *attributes); /* the same with nout results */
bool export_refuse(struct exporter *x, ref r, const char *why); /* false; the error names the node and its line */

/* The whole model; inputs [0, nin) are the model's, the others have data.  false: *e */
bool export_model(const struct graph *g, uint32_t nin, const char *const *in_name, const void *const *data,
                  const char *const *out_name, struct proto *model, struct err *e);

/* ---- save.c ---- */
/* A graph without symbols to a file: its inputs, states and slots become inputs, under their names, its outputs
 * outputs; that of an assigned state is called NAME.new. */
bool export_file(const struct graph *g, const char *path, struct err *e);

/* ---- onnx_ops.c, onnx_products.c: one node of the graph; false: *x->e ---- */
bool export_op(struct exporter *x, ref r);
bool export_dot(struct exporter *x, ref r, const char *out);
bool export_attention(struct exporter *x, ref r, const char *out);

#endif
