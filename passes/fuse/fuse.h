/* Internal header of fusion: fuse.c and fuse_*.c. */
#ifndef KILN_FUSE_H
#define KILN_FUSE_H
#include "passes/passes.h"

/* MAX_MAP_NODES: of a group without an anchor; random normal numbers have 80. */
enum { MAX_GROUP_NODES = 64, MAX_MAP_NODES = 96, MAX_GROUP_READS = 24, MAX_FREE_SCALAR = 32, MAX_PATTERN = 4,
       MAX_SEARCH = 256 };

struct group {
    ref first, last;    /* members, linked by fuser.next */
    ref low, high;      /* lowest and highest node number of the members */
    ref anchor;         /* NIL: elementwise; in a row kernel the first of several */
    ref permute;        /* NIL: none; else some members (fuser.permuted) have the order of its elements */
    int64_t numel;      /* number of elements of the results; of the anchor's if there is one */
    int64_t run;        /* number of last elements over which the operands of every member have constant strides */
    uint32_t nodes, reads;
    uint16_t device;
    bool merged;        /* it was fused into another group */
    bool non_fusible;         /* a region op or a copy */
    bool remat;         /* contains marked nodes: it is computed late */
    bool rows;          /* a row kernel (fuse_rows.c) */
    bool block_dot;     /* the sum over blocks of a product of integers (fuse_block_dot.c); its anchor is the sum */
    bool pads;          /* a map that also computes the operand of one of its pads: members of another size */
    uint32_t before, after; /* the groups next to it in the order (fuse_order.c); GROUP_NONE: none */
    uint64_t rank;      /* ascending in the order */
};

/* The two searches between groups: backwards from the later one through operands, and forwards from the earlier one
 * through readers. */
enum side { SIDE_BACK, SIDE_AHEAD, SIDES };
struct side_search {
    uint32_t found[MAX_SEARCH], n; /* groups found, in that order */
    uint32_t next;                 /* number of groups processed, the start included */
    uint64_t steps, cost;          /* steps so far; steps of the next group */
    bool full;                     /* more than MAX_SEARCH groups were found */
};

struct fuser {
    struct mem_arena mem;   /* of the arrays */
    struct graph *g;
    struct processor processor;
    uint64_t gpus;          /* devices, by bit */
    struct group *group; uint32_t ngroup;
    ref *next;          /* per node: next member of its group */
    /* reader[readers[r]] up to reader[readers[r + 1]]: the readers of r, also through views */
    ref *reader; uint32_t *readers;
    bool *output;       /* per node: an output of the graph has its elements */
    bool *viewed;       /* or some of them, in another order: a kernel of its own copies them */
    bool *prologue;     /* per node: computed for each element that its group's anchor reads */
    bool *permuted;     /* per node: a member with the permuted order */
    uint32_t *cost;     /* per node without a group: number of nodes that each kernel using it computes */
    uint32_t *marked;   /* per node: number of the last count that visited it */
    uint32_t *seen;     /* per group: number of the last search that visited it */
    uint32_t *stack;
    uint32_t stamp;
    uint32_t front, back; /* the first and the last group in the order */
    struct side_search search[SIDES];
    /* the groups between which the last search was, the earlier first; GROUP_NONE: its result is outdated */
    uint32_t searched[2];
    enum side ended;      /* the side that was complete */
};

static inline uint32_t group_of(const struct fuser *f, ref r) { return f->g->group[r]; }
static inline bool op_is_map(unsigned op) { return op_is_elementwise(op) || op == OP_cast; }

/* ---- fuse.c ---- */
bool fuser_open(struct fuser *f, struct graph *g);  /* false: out of memory; fuser_close in either case */
void fuser_close(struct fuser *f);
uint32_t fuse_group(struct fuser *f, ref r);        /* makes a new group of r alone */
void fuse_member(struct fuser *f, uint32_t id, ref r); /* r, which has no group, becomes a member of id */
void fuse_absorb(struct fuser *f, uint32_t a, uint32_t b); /* b's members become members of a */

/* ---- fuse_rules.c: which groups may be one kernel, and the bytes that this saves ---- */
enum join {
    JOIN_NONE,
    JOIN_MAP,           /* elementwise groups of one size */
    JOIN_EPILOGUE,      /* computed from the anchor's results, element by element */
    JOIN_PROLOGUE,      /* the operand of a reduction */
    JOIN_OPERAND,       /* an operand that another anchor reads exactly once */
    JOIN_PADDED,        /* the operand of a pad */
    JOIN_ROWS,
    JOIN_SIBLINGS,      /* maps that read the same array */
};
struct verdict { enum join join; const char *why; }; /* JOIN_NONE: the reason why not */
/* May a and b, which reads a, be one kernel? `paths`: also search for a cycle, which is expensive. */
struct verdict fuse_score_group(struct fuser *f, uint32_t a, uint32_t b, bool paths);
/* The same for two groups that read array x, and not each other. */
struct verdict fuse_score_siblings(struct fuser *f, uint32_t a, uint32_t b, ref x, bool paths);
/* Can r's kernel compute x, an elementwise value of another kernel, where r reads it? */
bool fuse_can_compute(const struct fuser *f, ref r, ref x);
/* The permute of a's dot, or of a value computed from it, whose only reader is node r: r may be stored by the dot's
 * kernel.  NIL: there is none. */
ref fuse_stored_permute(const struct fuser *f, ref r);
double fuse_score(struct fuser *f, uint32_t a, uint32_t b, ref shared, enum join join); /* the bytes that this saves */
void fuse_join(struct fuser *f, uint32_t a, uint32_t b, enum join join);

/* ---- fuse_attention.c ----
 *
 * Adds attention_stats to the kernels of their attentions; groups have one node each at that time. */
void fuse_attention(struct fuser *f);
/* Makes one kernel of the gradients in q, and in k and v, of an attention, on a processor that has enough matrices for
 * its threads. */
void fuse_attention_gradients(struct fuser *f);

/* ---- fuse_block_dot.c ---- sums over blocks of products of integers; groups have one node each at that time */
void fuse_block_dots(struct fuser *f);

/* ---- fuse_rows.c ---- */

bool fuse_has_rows(const struct fuser *f, uint32_t id, struct row_space *s); /* does it reduce rows? sets their shape */
/* May a and b, which reads a, be one row kernel?  NULL: yes; else the reason why not. */
const char *fuse_rows_conflict(struct fuser *f, uint32_t a, uint32_t b);
/* May all n groups, in their order, be one row kernel? */
bool fuse_rows_all(struct fuser *f, const uint32_t *id, uint32_t n);

/* ---- fuse_order.c: a topological order of the groups ---- */
bool fuse_order(struct fuser *f); /* makes it; false: out of memory */
/* Is there a path between the two through a third group? yes if a search is too long. */
bool fuse_indirect_path(struct fuser *f, uint32_t a, uint32_t b);
/* Sets the groups on all paths from one group to a later one, in their order, and returns how many there are; 0: none,
 * or more than `max`, or the search is too long. */
uint32_t fuse_order_between(struct fuser *f, uint32_t from, uint32_t to, uint32_t *between, uint32_t max);
/* a and b, without an indirect path, are fused into `stays` */
void fuse_order_joined(struct fuser *f, uint32_t a, uint32_t b, uint32_t stays);

/* ---- fuse_pads.c ---- */
/* Chooses the pads that are computed, and sets GROUP_NONE for those that their readers evaluate; false: out of
 * memory. */
bool fuse_pads_choose(struct graph *g, const struct pass_options *o);
/* Does a stored pad read x, at the end of its operand's views, with constant strides, so that it can compute x? */
bool fuse_pads_evenly(const struct graph *g, ref pad, ref x);

/* ---- fuse_remat.c ----
 *
 * Gives kernels copies of nodes whose values they would read. 1: the graph was replaced; it has unused nodes and no
 * groups; 0: there is no such value; -1: out of memory. */
int fuse_remat(struct fuser *f);

/* ---- fuse_cost.c: the cost of arithmetic, as the bytes that memory moves in the same time ---- */
double fuse_work(unsigned op);                              /* of an element, with full vectors */
int64_t fuse_run(const struct graph *g, ref r);             /* struct group's run, for node r */
/* the factor by which it is higher for x in the kernel of group id */
double fuse_factor(const struct fuser *f, uint32_t id, ref x);
/* Will r, of group a or b, be stored after they are fused? */
bool fuse_is_stored_after(const struct fuser *f, ref r, uint32_t a, uint32_t b);
/* Is one kernel of a and b, which saves so many bytes, more expensive than the two? */
bool fuse_costs_more(struct fuser *f, uint32_t a, uint32_t b, enum join join, double saved);

/* ---- fuse_parts.c: independent maps as parts of one kernel ---- */
bool fuse_parts(struct fuser *f); /* false: out of memory */

#endif
