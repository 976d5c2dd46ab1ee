/* Puts in the value of each symbol whose bounds leave only one.
 *
 * In: any graph.  Out: the same nodes without these symbols; a graph that has none left is the very graph that numbers
 * in their place would have made.  The regions share the graph's symbols, so this pass does them itself. */
#include "passes/passes.h"

int pass_bind(struct graph *g) { return graph_bind(g); }
