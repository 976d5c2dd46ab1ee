/* The functions of calls.def: each records one call, or a few that belong together, and returns its result, kl_none
 * where its operands do not fit; a second result is in c->second. */
#ifndef RANDOM_API_CALLS_H
#define RANDOM_API_CALLS_H
#include "tests/random_api/program.h"

#define CALL(name, weight, need, low, high) kl_tensor make_##name(struct recording *c, int a);
#include "tests/random_api/calls.def"
#undef CALL

#endif
