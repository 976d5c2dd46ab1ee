/* Grouping nodes into kernels: what fuse.c and fuse_*.c share. */
#ifndef KILN_FUSE_H
#define KILN_FUSE_H
#include "passes/passes.h"

enum { MAX_GROUP_NODES = 64, MAX_GROUP_READS = 24, MAX_FREE_SCALAR = 32, MAX_PATTERN = 4, MAX_SEARCH = 256 };

struct group {
    ref first, last;    /* members, linked by fuser.next */
    ref low, high;      /* the least and the greatest of them */
    ref anchor;         /* NIL: elementwise; the first of several in a row kernel */
    ref permute;        /* NIL: none; else some members (fuser.permuted) have the order of its elements */
    int64_t numel;      /* elements of the results: of the anchor if there is one */
    int64_t run;        /* of those, how many last ones every member's operands have at even distances */
    uint32_t nodes, reads;
    uint16_t device;
    bool merged;        /* into another: no longer a group */
    bool non_fusible;         /* a region op or a copy: no kernel */
    bool remat;         /* computes marked nodes, too: later, when they are needed */
    bool rows;          /* a row kernel (fuse_rows.c) */
    bool pads;          /* a map that computes what a pad of it pads: members of another size */
    uint32_t before, after; /* it in the order (fuse_order.c); GROUP_NONE: none */
    uint64_t rank;      /* the greater, the later in the order */
};

/* One of two searches between groups: back from the later, through what it needs, and ahead from the earlier, through
 * what needs it. */
enum side { SIDE_BACK, SIDE_AHEAD, SIDES };
struct side_search {
    uint32_t found[MAX_SEARCH], n; /* groups, in the order in which they were met */
    uint32_t next;                 /* how many have been gone through, the end itself included */
    uint64_t steps, cost;          /* so far; those to come for the next group */
    bool full;                     /* there are more than MAX_SEARCH */
};

struct fuser {
    struct graph *g;
    struct group *group; uint32_t ngroup;
    ref *next;          /* per node: next member of its group */
    /* reader[readers[r]] up to reader[readers[r + 1]]: who reads r, through views too */
    ref *reader; uint32_t *readers;
    bool *output;       /* per node: an output of the graph holds its elements, */
    bool *viewed;       /*   or some of them, in another order: a kernel of its own copies them */
    bool *prologue;     /* per node: computed per element of what its group's anchor reads */
    bool *permuted;     /* per node: one of those members */
    uint32_t *cost;     /* per node without a group: nodes that each kernel with it computes */
    uint32_t *marked;   /* per node: stamp of the last count that came here */
    uint32_t *seen;     /* per group: stamp of the last search that passed here */
    uint32_t *stack;
    uint32_t stamp;
    uint32_t front, back; /* the order of the groups */
    struct side_search search[SIDES];
    /* the groups, the earlier first, that the last search was between; GROUP_NONE: of no use now */
    uint32_t searched[2];
    enum side ended;      /* and which side has found all there is */
};

static inline uint32_t group_of(const struct fuser *f, ref r) { return f->g->group[r]; }
static inline bool op_is_map(unsigned op) { return op_is_elementwise(op) || op == OP_cast; }

/* ---- fuse.c ---- */
bool fuser_open(struct fuser *f, struct graph *g);  /* false: out of memory; fuser_close in either case */
void fuser_close(struct fuser *f);
uint32_t fuse_group(struct fuser *f, ref r);        /* a new group of r alone */
void fuse_member(struct fuser *f, uint32_t id, ref r); /* r, which has no group, joins id */
void fuse_absorb(struct fuser *f, uint32_t a, uint32_t b); /* b's members become a's */

/* ---- fuse_rules.c ---- What may be one kernel, and what that is worth. */
enum join {
    JOIN_NONE,
    JOIN_MAP,           /* elementwise groups of one size */
    JOIN_EPILOGUE,      /* what is computed from the anchor's results, one by one */
    JOIN_PROLOGUE,      /* what a reduce reduces */
    JOIN_OPERAND,       /* what another anchor reads just once */
    JOIN_PADDED,        /* what a pad pads */
    JOIN_ROWS,
    JOIN_SIBLINGS,      /* maps that read the same array */
};
struct verdict { enum join join; const char *why; }; /* JOIN_NONE: why not */
/* May a and b, which reads a, be one kernel?  `paths`: look for a cycle too, which takes long. */
struct verdict fuse_judge(struct fuser *f, uint32_t a, uint32_t b, bool paths);
/* The same for two that read array x, and not each other. */
struct verdict fuse_judge_siblings(struct fuser *f, uint32_t a, uint32_t b, ref x, bool paths);
/* Can r's kernel compute x, an elementwise value of another one's, where r reads it? */
bool fuse_takes(const struct fuser *f, ref r, ref x);
/* The permute of a's dot, or of what is computed from it, that node r is alone to read: r may be stored by the dot's
 * kernel.  NIL: there is none. */
ref fuse_stored_permute(const struct fuser *f, ref r);
double fuse_score(struct fuser *f, uint32_t a, uint32_t b, ref shared, enum join join); /* what that saves */
void fuse_join(struct fuser *f, uint32_t a, uint32_t b, enum join join);

/* ---- fuse_attention.c ---- Gives attention_stats to the kernels of their attentions; groups are of one node each. */
void fuse_attention(struct fuser *f);

/* ---- fuse_rows.c ---- May a and b, which reads a, be one row kernel?  NULL: yes; else why not. */
bool fuse_has_rows(const struct fuser *f, uint32_t id, struct row_space *s); /* does it reduce rows?  Which? */
const char *fuse_rows_conflict(struct fuser *f, uint32_t a, uint32_t b);

/* ---- fuse_order.c ---- An order of the groups in which each stands behind all that it reads. */
bool fuse_order(struct fuser *f); /* makes it; false: out of memory */
/* Does a third group need one of the two and is needed by the other?  After a long search: yes. */
bool fuse_indirect_path(struct fuser *f, uint32_t a, uint32_t b);
/* before a and b, with no indirect path, become `stays` */
void fuse_order_joined(struct fuser *f, uint32_t a, uint32_t b, uint32_t stays);

/* ---- fuse_pads.c ---- */
/* Chooses the pads that are computed, and GROUP_NONE for those that their readers evaluate; false: out of memory. */
bool fuse_pads_choose(struct graph *g);
/* Does a stored pad read x, at the end of its operand's views, evenly enough to compute it there? */
bool fuse_pads_evenly(const struct graph *g, ref pad, ref x);

/* ---- fuse_remat.c ---- Gives kernels copies of nodes whose values they would read.  1: the graph is a new one, with
 * nodes that nothing uses and no groups; 0: there is no such value; -1: out of memory. */
int fuse_remat(struct fuser *f);

/* ---- fuse_cost.c ---- Arithmetic, in bytes that memory moves in that time. */
double fuse_work(unsigned op);                              /* of an element, where no lane of a vector is empty */
int64_t fuse_run(const struct graph *g, ref r);             /* struct group's run, for node r */
double fuse_factor(const struct fuser *f, uint32_t id, ref x); /* how much more it is for x in the kernel of group id */
/* Will r, of group a or b, be stored once they are one? */
bool fuse_is_wanted(const struct fuser *f, ref r, uint32_t a, uint32_t b);
/* Does one kernel of a and b, for which memory moves so many bytes less, cost more than the two? */
bool fuse_costs_more(struct fuser *f, uint32_t a, uint32_t b, enum join join, double saved);

/* ---- fuse_parts.c ---- Puts maps that do not need each other into one kernel. */
bool fuse_parts(struct fuser *f); /* false: out of memory */

#endif
