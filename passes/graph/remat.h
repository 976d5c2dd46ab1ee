/* Rematerialization: which values of the forward pass the backward pass recomputes. */
#ifndef KILN_REMAT_H
#define KILN_REMAT_H
#include "ir/ir.h"

/* The nodes that one reverse sweep has added: first .. end - 1. */
struct swept {
    ref first, end;
    int64_t keep;   /* + 1: bytes of cheap values that may be kept; 0: all */
};

/* ---- remat.c ---- */
/* g has no grad nodes; the sweeps are in the order of their nodes and do not overlap. -1: g->err; 1; 0: nothing is
 * recomputed. */
int remat(struct graph *g, const struct swept *s, uint32_t n);

#endif
