/* Making a failing graph small. */
#ifndef RANDOM_SHRINK_H
#define RANDOM_SHRINK_H
#include "tests/support/harness.h"

/* What became of a check that ran in a process of its own. */
enum verdict { AGREES, DIFFERS, REFUSED, CRASHED, HANGS };
extern const char *const verdict_text[];

/* A check of one graph: AGREES, DIFFERS (outputs) or REFUSED (an error); the reason in *why. */
typedef enum verdict check_fn(const struct graph *g, struct err *why);
/* Runs the check in a child, without its output, that hangs if it takes more than so many seconds of the processor. */
enum verdict check_apart(check_fn *check, const struct graph *g, double seconds);

/* The smallest graph found that still gets this verdict, by dropping outputs, putting inputs or operands in the
 * place of nodes, and making dimensions and dtypes smaller.  A new graph; NULL when out of memory. */
struct graph *shrink(const struct graph *g, check_fn *check, enum verdict verdict, double seconds);

#endif
