/* Replaces each symbol whose bounds allow only one value by that value.
 *
 * In: any graph.  Out: the same nodes without these symbols.  A graph without any symbols left equals the graph
 * recorded with numbers in their place.  The regions share the graph's symbols, so this pass handles them itself. */
#include "passes/passes.h"

int pass_bind(struct graph *g, const struct pass_options *o)
{
    (void)o;
    return graph_bind(g);
}
