/* Other schedules for a kernel: what a family's function proposes (the last column of families.def). */
#ifndef KILN_PROPOSE_H
#define KILN_PROPOSE_H
#include "passes/passes.h"

enum { MAX_PROPOSALS = 96, MAX_LANES = 64 };

struct proposals {
    const struct caps *caps;
    const struct graph *g;
    ref anchor;                     /* the group's dot; NIL: it has none */
    uint32_t members;
    unsigned threads;
    const struct kernel *k;
    struct schedule own, v[MAX_PROPOSALS];
    uint32_t n;
};

/* Adds a record, unless there is the same already, or no room.  What is no legal record of the group is dropped later,
 * when it is lowered.  Sizes of a task are proposed for all families, by candidates.c. */
void propose_schedule(struct proposals *p, struct schedule s);

#define FAMILY(KIND, word, group, fits, legal, propose) void propose_##propose(struct proposals *p);
#include "passes/lower/families.def"

#endif
