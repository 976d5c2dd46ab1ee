/* Placement of values in one arena. */
#ifndef KILN_PLACE_H
#define KILN_PLACE_H
#include "passes/passes.h"

struct placement {
    ref node;
    uint32_t first, last; /* alive from command first to command last */
    int64_t bytes;        /* a multiple of the alignment */
    int64_t offset;       /* set by place_values */
};

/* Values alive at the same time never overlap. `commands`: above every `last`. false: out of memory. */
bool place_values(struct placement *v, uint32_t n, uint32_t commands);

#endif
