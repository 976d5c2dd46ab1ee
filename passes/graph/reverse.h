/* Reverse-mode differentiation of part of a graph: what pass autodiff and the gradients of region ops share. */
#ifndef KILN_REVERSE_H
#define KILN_REVERSE_H
#include "ir/ir.h"

/* One sweep after another over a growing graph.  A sweep touches only the nodes between the variables and the loss, so
 * that many small gradients of one large graph cost what they produce. */
struct reverse {
    struct graph *t;
    uint32_t n;       /* nodes when the sweep began; the arrays per node are for these */
    bool *wanted;     /* a gradient in this node is asked for */
    bool *needed;     /* depends on a wanted one, and is needed by a root */
    ref *adjoint;     /* sum of what flowed back so far */
    ref *proj;        /* of a region op: the last of its results with an adjoint; of a result: the one before it */
    ref low;          /* the first wanted node */
    ref *path;        /* the needed nodes, ascending */
    ref *met;         /* all nodes whose entries may be set */
    uint32_t npath, nmet, path_cap, met_cap, wanted_cap, needed_cap, adjoint_cap, proj_cap;
};

/* ---- reverse.c ---- */
/* Begins a sweep with empty entries; *v is zeros before the first.  false: out of memory; end it all the same. */
bool reverse_begin(struct reverse *v, struct graph *t);
void reverse_end(struct reverse *v);                         /* after the last */
/* The steps of a sweep, in this order.  Failures are in t->err. */
void reverse_want(struct reverse *v, ref r);
/* after all reverse_want: r has an adjoint, or may get one */
void reverse_root(struct reverse *v, ref r);
void reverse_mark(struct reverse *v);                        /* fills needed and path */
void reverse_add(struct reverse *v, ref r, ref d);           /* d flows back to r; nothing where r is not needed */
void reverse_sweep(struct reverse *v);
/* ---- reverse_windows.c ---- */
/* If y is a product whose second operand is windows of some x: adds to x what flows there.  false: it is none. */
bool reverse_windows(struct reverse *v, ref y, ref dy);
/* ---- reverse_region.c ---- */
/* The gradient of region op r, whose results' gradients are dy[]: adds what flows to its operands. */
void reverse_region(struct reverse *v, ref r, const ref *dy);

#endif
