/* Traced graphs as data: the one internal interface of this folder, whose files otherwise see public headers only.
 * The structures of a graph, and functions that read them, are those of ir/, which has no state of its own; what makes
 * graphs is in frontend/layers/tracer.c. */
#ifndef KILN_TRACED_GRAPH_H
#define KILN_TRACED_GRAPH_H
#define KL_NO_CALL_SITES
#include "ir/ir.h"
#include <kiln/extend.h>

/* The graph that a tracer has recorded; it is the tracer's. */
const struct graph *tracer_graph(const kl_tracer *tr);
/* The tensor that input number i of it is, which is behind the given ones; *own: it is a new handle. */
kl_tensor tracer_captured(const kl_tracer *tr, uint32_t i, bool *own);
/* A copy, for graph_free, with the same inputs and outputs, whose ops an exporter has: gradients are expanded, and
 * regions other than loops and branches are inlined.  NULL: *e. */
struct graph *graph_for_export(const struct graph *g, struct err *e);

#endif
