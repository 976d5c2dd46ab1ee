/* Traced graphs as data: the one internal interface of this folder, whose files otherwise see public headers only.
 * libkiln-onnx.so, a library of its own, has copies of the functions of ir/ that read graphs (ir/ has no state but the
 * functions of memory); functions that make, free or know graphs are libkiln.so's, in this table. */
#ifndef KILN_TRACED_GRAPH_H
#define KILN_TRACED_GRAPH_H
#define KL_NO_CALL_SITES
#include "ir/ir.h"
#include <kiln/extend.h>

struct traced_graph_functions {
    const char *version; /* kl_version(): structures are those of one version */
    /* The graph that a tracer has recorded; it is the tracer's. */
    const struct graph *(*recorded)(const kl_tracer *tr);
    /* The tensor that input number i of it is, which is behind the given ones; *own: it is a new handle. */
    kl_tensor (*captured)(const kl_tracer *tr, uint32_t i, bool *own);
    /* A copy with the same inputs and outputs, whose ops an exporter has: gradients are expanded, and regions other
     * than loops and branches are inlined.  NULL: *e. */
    struct graph *(*simplify)(const struct graph *g, struct err *e);
    void (*release)(struct graph *g); /* NULL is fine */
};
/* Exported by libkiln.so, though no public header declares it. */
KL_API const struct traced_graph_functions *kl_traced_graph_functions(void);

#endif
