/* Comparing what a graph gives on a device with what the interpreter gives, finding where they part, and making the
 * graph small.  Graphs have numbers for their symbols. */
#ifndef KILN_CHECK_H
#define KILN_CHECK_H
#include "edit.h"
#include "runtime/runtime.h"

/* ---- values.c: what a graph's leaves hold, and what it gives ---- */
/* Row-major arrays in the host's memory, by ordinal, owned; slot: bits. */
struct check_values { uint32_t ninput, nstate; void **input, **state; uint64_t *slot; };
size_t check_leaf_bytes(const struct graph *g, const struct leaf *l);
/* Room for a graph's leaves, all NULL.  false: out of memory, as below; check_values_free in either case. */
bool check_values_room(struct check_values *v, const struct graph *g, struct err *e);
/* Made-up values for the leaves that have none: random numbers from the seed and the leaf's ordinal. */
bool check_values_fill(struct check_values *v, const struct graph *g, uint64_t seed, struct err *e);
/* Room, and made-up values for all leaves. */
bool check_values_made_up(struct check_values *v, const struct graph *g, uint64_t seed, struct err *e);
/* values_edited.c: the values for a graph that an edit made of g: as before where a leaf has the type it had, what the
 * interpreter gives for a node that became an input, else made up.  known: per node of g that value, NULL where it is
 * not at hand; or NULL. */
bool check_values_edited(struct check_values *now, const struct graph *edited, const struct edit_leaves *leaves,
                         const struct check_values *v, const struct graph *g, void *const *known, uint64_t seed,
                         struct err *e);
void check_values_free(struct check_values *v);

struct check_outputs { uint32_t n; void **data; };
void check_outputs_free(struct check_outputs *o);

/* ---- reference.c ---- */
/* The interpreter on a graph with numerics; watch may be NULL.  false: *e; check_outputs_free in either case, also
 * below. */
bool check_interpret(const struct graph *g, const struct check_values *v, const struct interp_watch *watch,
                     struct check_outputs *out, struct err *e);
/* What recorded graph g means on the device. */
bool check_reference(const struct graph *g, int device, const struct check_values *v, struct check_outputs *out,
                     struct err *e);

/* ---- run.c ---- */
/* Runs g, on a device fused or not.  false: *e; check_outputs_free in either case. */
bool check_run(const struct graph *g, int device, bool fuse, const struct check_values *v, struct check_outputs *out,
               struct err *e);
/* The same with the program of g on the device; watch may be NULL. */
bool check_run_program(const struct exec *x, const struct graph *g, int device, const struct check_values *v,
                       const struct exec_watch *watch, struct check_outputs *out, struct err *e);

/* ---- compare.c ---- */
/* tolerance: the largest difference of floats, as a share of the largest finite magnitude among the expected values;
 * 0: all bits have to be equal, but any NaN equals any other.  Below 0: the usual one of the dtype. */
struct difference { int64_t count, first, numel; uint64_t want_bits, have_bits; };
/* Compares the n elements of two arrays; false: *d says how they differ. */
bool check_same(unsigned dtype, const void *want, const void *have, int64_t n, double tolerance, struct difference *d);
/* "element 5 is 0.25, interpreted 0.5 (12 of 64 elements differ)"; mem_free it, NULL: out of memory. */
char *check_difference_text(unsigned dtype, const struct difference *d);

/* ---- locate.c ---- */
struct check_place {
    char *pass;              /* the pass after which the interpreter gives other values; or NULL */
    char *kernel, *node;     /* the first kernel that gives other values than its nodes; the text of the first such
                                node; both or none of them */
    char *difference;        /* as check_difference_text: of that kernel */
    struct graph *graph;     /* the kernel's nodes alone, with inputs for what they read; or NULL */
    struct check_values values; /* for `graph` */
};
/* Finds where a graph begins to differ on a device.  isolate: check_isolate, for p->graph; NULL: without it, and a
 * library that passes NULL is linked without the edits of graphs.  false: *e; check_place_free in either case. */
struct locating;
typedef bool check_isolate_fn(struct locating *l, struct err *e);
check_isolate_fn check_isolate;
bool check_locate(const struct graph *g, int device, bool fuse, double tolerance, const struct check_values *v,
                  check_isolate_fn *isolate, struct check_place *p, struct err *e);
void check_place_free(struct check_place *p);

/* ---- shrink.c ---- */
struct shrink {
    /* Does the graph with these values fail as the first one did?  `values` is NULL if the search has none. */
    bool (*fails)(void *ctx, const struct graph *g, const struct check_values *values);
    void *ctx;
    bool (*stop)(void *ctx); /* is the time over?  NULL: never */
    uint64_t seed;           /* of values that are made up */
};
/* Makes *g, which fails, as small as it gets, one edit after another, and *values (NULL: none) with it. */
void shrink_graph(const struct shrink *s, struct graph **g, struct check_values *values);

#endif
