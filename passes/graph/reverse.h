/* Reverse-mode differentiation of part of a graph: what pass autodiff and the gradients of region ops share. */
#ifndef KILN_REVERSE_H
#define KILN_REVERSE_H
#include "ir/ir.h"

/* One sweep.  The arrays have an entry for each of the n nodes that the graph had at the start. */
struct reverse {
    struct graph *t;
    uint32_t n;
    bool *wanted; /* a gradient in this node is asked for */
    bool *needed; /* depends on a wanted one */
    ref *adjoint; /* sum of what flowed back so far */
};

/* ---- reverse.c ---- */
bool reverse_begin(struct reverse *v, struct graph *t);      /* false: out of memory; end it all the same */
void reverse_end(struct reverse *v);
void reverse_mark(struct reverse *v, ref last);              /* fills needed up to node `last`, from wanted */
void reverse_add(struct reverse *v, ref r, ref d);           /* d flows back to r; nothing where r is not needed */
void reverse_sweep(struct reverse *v, ref last);             /* from node `last` back; failures are in t->err */
/* ---- reverse_region.c ---- */
/* The gradient of region op r, whose results' gradients are dy[]: adds what flows to its operands. */
void reverse_region(struct reverse *v, ref r, const ref *dy);

#endif
