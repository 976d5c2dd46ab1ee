/* Grouping nodes into kernels: what fuse.c and fuse_rows.c share. */
#ifndef KILN_FUSE_H
#define KILN_FUSE_H
#include "passes.h"

enum { MAX_GROUP_NODES = 64, MAX_GROUP_READS = 24, MAX_FREE_SCALAR = 32, MAX_SEARCH = 256 };

struct group {
    ref first, last;    /* members, linked by fuser.next */
    ref low, high;      /* the least and the greatest of them */
    ref anchor;         /* NIL: elementwise */
    int64_t numel;      /* elements of the results: of the anchor if there is one */
    uint32_t nodes, reads;
    uint16_t device;
    bool merged;        /* into another: no longer a group */
    bool apart;         /* a region op or a copy: no kernel */
    bool again;         /* computes marked nodes: later, when they are needed */
};

struct fuser {
    struct graph *g;
    struct group *group; uint32_t ngroup;
    ref *next;          /* per node: next member of its group */
    ref *reader; uint32_t *readers; /* reader[readers[r]] up to reader[readers[r + 1]]: who reads r, through views too */
    bool *prologue;     /* per node: computed per reduced element */
    uint32_t *cost;     /* per node without a group: nodes that each kernel with it computes */
    uint32_t *seen;     /* per group: stamp of the last search that passed here */
    uint32_t *stack;
    uint32_t stamp;
};

static inline uint32_t group_of(const struct fuser *f, ref r) { return f->g->group[r]; }

/* ---- fuse.c ---- */
/* Is there a path of dependences from group `from` to group `to` through a third group?  After a long search: yes. */
bool fuse_path_around(struct fuser *f, uint32_t from, uint32_t to);
bool fuse_fits(const struct group *a, const struct group *b);   /* kernels, on one device, and within the caps together? */
void fuse_absorb(struct fuser *f, uint32_t a, uint32_t b);      /* b's members become a's */

/* ---- fuse_parts.c ---- Puts maps that do not need each other into one kernel. */
bool fuse_parts(struct fuser *f); /* false: out of memory */

/* ---- fuse_rows.c ---- Joins groups that reduce, and use what was reduced of, the same rows. */
void fuse_rows(struct fuser *f);

#endif
