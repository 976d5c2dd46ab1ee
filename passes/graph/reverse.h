/* Reverse-mode differentiation of part of a graph: used by pass autodiff and for the gradients of region ops. */
#ifndef KILN_REVERSE_H
#define KILN_REVERSE_H
#include "ir/ir.h"

/* State of successive sweeps over a growing graph.  A sweep visits only the nodes between the variables and the loss,
 * so many small gradients of one large graph cost as much as the nodes they produce. */
struct reverse {
    struct graph *t;
    uint64_t gpus;    /* devices, by bit, that are GPUs and add floats in the order of their schedules */
    uint32_t n;       /* nodes when the sweep began; the arrays have entries for these */
    bool *wanted;     /* its gradient is requested */
    bool *needed;     /* it depends on a wanted node, and a root depends on it */
    ref *adjoint;     /* the sum of the gradients so far */
    ref *proj;        /* for a region op: the last of its results with an adjoint; for a result: the one before it */
    ref low;          /* the first wanted node */
    ref *path;        /* the needed nodes, ascending */
    ref *visited;     /* all nodes whose entries may be set */
    uint32_t npath, nvisited, path_cap, visited_cap, wanted_cap, needed_cap, adjoint_cap, proj_cap;
};

/* ---- reverse.c ---- */
/* Begins a sweep with empty entries; *v is zeros before the first. false: out of memory; reverse_end is needed all the
 * same. */
bool reverse_begin(struct reverse *v, struct graph *t);
void reverse_end(struct reverse *v);                         /* called after the last sweep */
/* The steps of a sweep, in this order.  Failures are in t->err. */
void reverse_want(struct reverse *v, ref r);
/* called after all reverse_want: r has an adjoint, or may get one */
void reverse_root(struct reverse *v, ref r);
void reverse_mark(struct reverse *v);                        /* fills needed and path */
void reverse_add(struct reverse *v, ref r, ref d);           /* adds gradient d to r; does nothing if r is not needed */
void reverse_sweep(struct reverse *v);
/* ---- reverse_windows.c ---- */
/* If y is a product whose second operand is the windows of some x: adds the gradient of x. false: it is not. */
bool reverse_windows(struct reverse *v, ref y, ref dy);
/* Likewise, if few rows of its first operand share a window: adds the gradient of these. */
bool reverse_window_weights(struct reverse *v, ref y, ref dy);
/* ---- reverse_region.c ---- */
/* Adds the gradients of the operands of region op r, whose results' gradients are dy[]. */
void reverse_region(struct reverse *v, ref r, const ref *dy);

#endif
