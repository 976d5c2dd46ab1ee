/* The processors that threads are pinned to. */
#ifndef KILN_PROCESSORS_H
#define KILN_PROCESSORS_H
#include <stdint.h>

enum { MAX_PROCESSORS = 1024 };  /* CPU_SETSIZE */

struct processors {
    unsigned n, cores;              /* cores: of which there is a processor here */
    uint16_t at[MAX_PROCESSORS];    /* first one of each core, then the second one of each, and so on */
    uint16_t core[MAX_PROCESSORS];  /* by processor: the first processor of its core */
};

/* The n usable processors, in ascending order, with their cores as `folder` says (Linux's /sys/devices/system/cpu).
 * Where it says nothing each processor is a core. */
void processors_find(const char *folder, const uint16_t *usable, unsigned n, struct processors *out);

#endif
