/* Slices whose start or count has symbols: the first n rows of a table of positions, all elements of a sequence but
 * the first, the last one; and pads and concats of symbolic axes, as the gradients of such slices.  They become
 * gathers, selections from gathers, and scatters of a symbolic number of rows, which have kernels for all values of the
 * symbols (ir/symbols/README.md); a slice itself says in numbers which part of the axis it has.  A slice counted from
 * the end is one counted from the beginning of the axis in reverse.
 *
 * In: any graph; only one with symbols changes.  Out: the same elements, bit for bit: a scatter of kind set copies. */
#include "passes/passes.h"
#include "rewrite.h"

int pass_positions(struct graph *g, const struct pass_options *o)
{
    (void)o;
    struct rewrite w;
    bool any = false;
    for (ref r = 1; r < g->nnode && g->symbols && !any; r++)
        any = node_is_symbolic_part(g, r);
    if (!any)
        return 0;
    if (rewrite_begin(&w, g))
        for (ref r = 1; r < g->nnode && !w.to->err.code; r++) {
            rewrite_site(&w, r);
            if (node_is_symbolic_part(g, r))
                w.map[r] = n_symbolic_part(w.to, g, r, w.map);
            else
                rewrite_copy(&w, r);
        }
    return rewrite_end(&w);
}
