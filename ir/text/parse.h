/* Internal header of the .kir parser.  Every bool function that fails has recorded the error with its position. */
#ifndef KILN_PARSE_H
#define KILN_PARSE_H
#include "lex.h"

struct parser {
    struct lexer l;
    struct graph *g;
    struct names nodes;           /* %name -> node */
    unsigned home_device;         /* of nodes without a device */
    uint32_t *group;              /* per node, once a node has one */
    uint32_t group_cap, ngroup;
    const char *group_at, *group_line_start; /* position of the largest group */
    uint32_t group_line;
    unsigned depth;               /* number of enclosing regions */
};

struct type { const char *at; unsigned dtype; struct shape shape; };

/* ---- parse.c ---- */
bool parse_failed(struct parser *p, const char *at);            /* the graph's own error with the position; false */
bool parse_operand(struct parser *p, ref *out);                 /* %name of a node above */
/* device_at: or NULL */
struct tail { const char *device_at, *group_at; unsigned device; uint64_t group; uint32_t site; };
/* "@device group N # site", each optional; a region op's line has '{' before the site.  The node that is made next is
 * put on the device. */
bool parse_tail(struct parser *p, bool regions, struct tail *t);
/* is r on the device that its line names? */
bool parse_device(struct parser *p, ref r, const struct tail *t, const char *at);
bool parse_group(struct parser *p, ref r, uint64_t group, const char *at);
bool parse_whole(struct parser *p);                             /* a graph up to the end of the line of its '}' */
bool parse_literal(struct parser *p, struct word *w);           /* a number, as text */
/* ---- parse_attr.c ---- */
/* Attributes of an op that may list several axes. */
enum { ATTR_LISTS = 6 };
struct attr_lists {
    unsigned naxes;
    uint8_t axis[KL_MAX_RANK];
    struct { unsigned n; uint64_t v[KL_MAX_RANK]; const char *at; } of[ATTR_LISTS]; /* by attribute */
};
/* Attributes and marks, up to the ':' of the type.  lists: or NULL, and one axis alone. */
bool parse_attrs(struct parser *p, struct node *n, struct attr_lists *lists);
/* ---- parse_axes.c ---- */
bool parse_axes_check(struct parser *p, const struct node *n, const struct attr_lists *l);
/* Makes the nodes for several axes; *out: the last. */
bool parse_axes(struct parser *p, const struct node *n, const struct attr_lists *l, const char *at, ref *out);
/* r with leading axes of length 1; NIL: g->err */
ref prepend_unit_axes(struct graph *g, ref r, unsigned rank);
enum { MAX_LITERALS = 64 };
struct literals { const char *at; unsigned n; bool list; struct word v[MAX_LITERALS]; };
bool parse_list(struct parser *p, struct literals *l);          /* NUMBER, or [NUMBER, ...] */
bool parse_const(struct parser *p, const struct node *n, const struct literals *l, const struct type *t, const char *at,
                 ref *out);
/* ---- parse_dim.c ---- */
bool parse_symbols(struct parser *p);                           /* lines "symbol n 1..512", if any */
bool parse_dim(struct parser *p, int64_t *d);                   /* "784", "2*n+1" */
bool parse_type(struct parser *p, struct type *t);              /* ": f32[2]" */
bool parse_more_type(struct parser *p, struct type *t);         /* "f32[2]" */
/* ---- parse_region.c ---- */
bool parse_region_op(struct parser *p, unsigned op, ref *out);  /* after the op's name */

#endif
