/* The processors of a core share its arithmetic units (simultaneous multithreading), so two threads that multiply are
 * hardly faster there than one.  Threads therefore get processors of different cores as long as there are any.  Which
 * processors are of one core is in Linux's topology/thread_siblings_list: a list as "0-1" or "0,8". */
#include "processors.h"
#include <stdio.h>

/* The first processor of the list; the processor itself if there is no list. */
static unsigned first_sibling(const char *folder, unsigned processor)
{
    char path[256];
    unsigned first = processor;
    snprintf(path, sizeof path, "%s/cpu%u/topology/thread_siblings_list", folder, processor);
    FILE *f = fopen(path, "r");
    if (!f)
        return processor;
    if (fscanf(f, "%u", &first) != 1 || first >= MAX_PROCESSORS)
        first = processor;
    fclose(f);
    return first;
}

void processors_find(const char *folder, const uint16_t *usable, unsigned n, struct processors *out)
{
    uint16_t of_core[MAX_PROCESSORS] = {0}, number[MAX_PROCESSORS]; /* number: of a processor within its core */
    unsigned max = 0;
    *out = (struct processors){0};
    for (unsigned i = 0; i < n; i++) {
        unsigned core = first_sibling(folder, usable[i]);
        out->core[usable[i]] = (uint16_t)core;
        out->cores += !of_core[core];
        number[i] = of_core[core]++;
        max = of_core[core] > max ? of_core[core] : max;
    }
    for (unsigned k = 0; k < max; k++)
        for (unsigned i = 0; i < n; i++)
            if (number[i] == k)
                out->at[out->n++] = usable[i];
}
