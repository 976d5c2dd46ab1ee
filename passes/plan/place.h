/* Where in one arena values lie that are alive from one command to another. */
#ifndef KILN_PLACE_H
#define KILN_PLACE_H
#include "passes/passes.h"

struct placement {
    ref node;
    uint32_t first, last; /* commands: alive from the one to the other */
    int64_t bytes;        /* a multiple of the alignment */
    int64_t offset;       /* what place_values finds */
};

/* Two values alive at once never overlap.  `commands`: more than any last.  false: out of memory. */
bool place_values(struct placement *v, uint32_t n, uint32_t commands);

#endif
