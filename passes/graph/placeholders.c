/* Replaces symbols, and sums of them, by placeholder sizes, so that one program is made for all values of the symbols
 * (ir/symbols/README.md, "One program for all values").
 *
 * In: any graph.  Out: one without symbols; o->placeholders says what stands for which symbol.  Error COMPILE: it needs
 * a program for each value.  Without o->placeholders the graph stays as it is. */
#include "passes/passes.h"

int pass_placeholders(struct graph *g, const struct pass_options *o)
{
    if (!o->placeholders || !o->recorded || !o->recorded->symbols)
        return 0;
    const struct graph *recorded = o->recorded;
    return graph_use_placeholders(g, recorded->symbols, recorded->slot.n, o->placeholders, &g->err) ? 1 : -1;
}
