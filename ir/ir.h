/* All of the graph IR; graph/node.h says what a graph is. */
#ifndef KILN_IR_H
#define KILN_IR_H
#include "ir/graph/build.h"
#include "ir/graph/graph.h"
#include "ir/graph/interp.h"

/* ---- print.c, parse.c ---- */
bool graph_print(const struct graph *g, FILE *f);
char *graph_text(const struct graph *g);          /* free with mem_free */
char *node_text(const struct graph *g, ref r);    /* its line; NULL: out of memory */
/* Parses one graph; NULL: *e has line:column and the reason. Refuses hostile text without large allocations. */
struct graph *graph_parse(const char *text, size_t len, const char *file, struct err *e);

#endif
