/* Rematerialization: which values of the forward pass the backward one computes again. */
#ifndef KILN_REMAT_H
#define KILN_REMAT_H
#include "ir/ir.h"

/* What one reverse sweep has added: nodes first .. end - 1. */
struct swept {
    ref first, end;
    int64_t keep;   /* bytes that may be kept of what is cheap to compute again, + 1; 0: all */
};

/* ---- remat.c ---- */
/* g: without grad nodes; the sweeps in the order of their nodes, each behind the one before.  -1: g->err; 1; 0: nothing
 * is computed again. */
int remat(struct graph *g, const struct swept *s, uint32_t n);

#endif
