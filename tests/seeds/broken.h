/* What tests/breaks.sh includes before every source of its scratch copy: BROKEN(ROW), in the mutations of
 * tests/breaks.def, is true while the environment says KILN_BREAK=ROW.  It includes nothing: a source may define
 * feature macros first. */
#ifndef KILN_BROKEN_H
#define KILN_BROKEN_H

extern char *getenv(const char *name);

static inline _Bool kiln_row_is_broken(const char *row)
{
    const char *now = getenv("KILN_BREAK");
    return now && !__builtin_strcmp(now, row);
}
#define BROKEN(row) kiln_row_is_broken(#row)

#endif
