/* Switches for the tests of the dispatch system's rows: BROKEN(B14) is where the mechanism of row B14 is left out, in a
 * build with KILN_BREAKABLE (preset `broken`) whose environment says KILN_BREAK=B14.  Then that row's test must fail,
 * and no other but those that tests/breaks.def lists beside it.  A row has one switch; two rows about the public
 * headers have none, tests/breaks.sh spoils a copy of these.  In every other build a switch is false, and nothing of it
 * is compiled. */
#ifndef KILN_BROKEN_H
#define KILN_BROKEN_H

#ifdef KILN_BREAKABLE
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
static inline bool broken(const char *row)
{
    const char *now = getenv("KILN_BREAK");
    return now && !strcmp(now, row);
}
#define BROKEN(row) broken(#row)
#else
#define BROKEN(row) false
#endif

#endif
