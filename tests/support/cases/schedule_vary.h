/* Other records of a group's kernel, for tests.  Whether a kernel can have one is for lowering to say. */
#ifndef SCHEDULE_VARY_H
#define SCHEDULE_VARY_H
#include "tests/support/harness.h"
#include "passes/lower/lower_schedule.h"

/* Other values for one field, or for several; what is chosen may then be chosen anew. */
struct schedule schedule_vary(struct rng *r, const struct schedule *own);
enum group_kind schedule_group(unsigned kind);                 /* whose kernels a family computes */
unsigned schedule_other_kind(struct rng *r, unsigned kind);    /* another family of that group, if there is one */

#endif
