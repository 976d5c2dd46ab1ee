/* Internal header of profiles: rows of kernels and lines. */
#ifndef KILN_FRONTEND_PROFILE_H
#define KILN_FRONTEND_PROFILE_H
#include "benchmark.h"
#include "runtime/runtime.h"

struct row_name { char name[128], where[64]; };
struct profile_rows {
    kl_profile_row *v;
    struct row_name *name;
    uint32_t n, cap, name_cap;
};
struct own_profile {
    kl_profile seen;         /* first: the public part */
    struct timeline timeline;
    struct profile_rows kernel, line;
    char *table;
};
/* A new row; NULL: out of memory.  Its strings are set when all rows exist. */
kl_profile_row *rows_add(struct profile_rows *t, const char *name, const char *where);

/* ---- profile_lines.c ---- */
/* Divides the time of a command among the lines of the ops that it computes. */
struct line_sites { const struct graph *g; uint32_t *row, *stamp, stamp_cap, now; };
/* for one graph; false: out of memory; lines_close in either case */
bool lines_open(struct line_sites *s, const struct graph *g);
bool lines_add(struct line_sites *s, struct profile_rows *line, const struct command *c, const struct groups *groups,
               const kl_profile_row *took);
void lines_close(struct line_sites *s);

#endif
