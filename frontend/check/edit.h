/* Edits that make a graph smaller, for the search for a small graph that fails (shrink.h). */
#ifndef KILN_CHECK_EDIT_H
#define KILN_CHECK_EDIT_H
#include "ir/ir.h"

enum edit_kind {
    EDIT_KEEP_VALUE,    /* return `node` alone, and keep only what it needs */
    EDIT_DROP_OUTPUT,   /* without output number `node` */
    EDIT_TAKE_OPERAND,  /* operand `operand` in place of `node` */
    EDIT_TAKE_INPUT,    /* a new input in place of `node` */
    EDIT_TAKE_REGION,   /* the nodes of region `operand` in place of the region op `node` */
    EDIT_CUT,           /* as EDIT_KEEP_VALUE, with new inputs in place of all nodes that `cut` marks */
    EDIT_SET_DIM,       /* length `to` in place of length `from`, everywhere */
    EDIT_SET_DTYPE      /* dtype `to` in place of dtype `from`, everywhere */
};
struct edit {
    enum edit_kind kind;
    const struct graph *of; /* the graph that has the node: the whole one or a region */
    ref node;
    uint32_t operand;
    int64_t from, to;
    const bool *cut;        /* one per node */
};

/* Where the leaves of an edited graph come from: per leaf its ordinal in the graph before, or EDIT_NEW_LEAF with the
 * node in whose place it is (inputs only). */
enum { EDIT_NEW_LEAF = 1 << 30 };
struct edit_leaves { uint32_t *input, *state, *slot; };
void edit_leaves_free(struct edit_leaves *l);

/* The whole graph g after the edit, a new graph; leaves may be NULL, else it is filled in (edit_leaves_free).  NULL:
 * the edit makes no valid graph, or there is no memory. */
struct graph *edit_apply(const struct graph *g, const struct edit *e, struct edit_leaves *leaves);

#endif
