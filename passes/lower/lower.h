/* Lowering one group to one kernel: what the families (lower_map, lower_reduce, lower_dot, ...) share. */
#ifndef KILN_LOWER_H
#define KILN_LOWER_H
#include "passes/passes.h"

enum { LINE_BYTES = 64 }; /* of the caches of processors */

/* What a kernel knows of a node; all 0 where its stamp is not the lowering's. */
struct node_state {
    uint32_t stamp;
    uint32_t read_buf, write_buf; /* lbuf + 1 */
    uint32_t reader;              /* a member that reads it, its number + 1 */
    struct { uint32_t point; val coord[KL_MAX_RANK], where, value; } memo; /* its value at the current point */
};

/* What lowering reads of one group (lower_memo.c); the arrays are used again for the next. */
struct lower_key {
    struct hash128 hash;
    uint64_t *word; uint32_t n, cap;
    ref *node; uint32_t nnode, node_cap;            /* by number in the key */
    struct { uint32_t stamp, number; } *mark;       /* per node of the graph */
    uint32_t stamp;
    struct memo_pack *pack;        /* notes what is found and added, or NULL */
};

/* An element of a row that a thread keeps in registers: values of members, by their number, and what was loaded.  Also
 * of a tile of a product that is scaled by blocks: what was loaded. */
struct held_load { uint32_t buf; val index, value; };
struct held_element {
    val *member;
    struct held_load *load; uint32_t n, cap;
};

struct chooser;
/* The loads of a point of an elementwise kernel, by their number in the order of evaluation
 * (elementwise/lower_transpose.c). */
enum { MAX_MAP_LOADS = 24 };
enum loads_mode { LOADS_NOTED, LOADS_FROM_SCRATCH };
struct map_loads {
    enum loads_mode mode;
    uint32_t number, n;          /* of the next; of all, once they are known */
    val index[MAX_MAP_LOADS], value[MAX_MAP_LOADS];
    unsigned dtype[MAX_MAP_LOADS];
    bool transposed[MAX_MAP_LOADS];  /* with LOADS_FROM_SCRATCH: it is in lbuf scratch[..], at `at` */
    uint32_t scratch[MAX_MAP_LOADS];
    val at;
};
/* The loops of an elementwise kernel: dimensions of shape s, merged; dimension d ends before axis axis_end[d]. */
struct map_loops {
    const struct shape *s;
    uint32_t n;
    struct size size[KL_MAX_RANK];
    uint8_t axis_end[KL_MAX_RANK];
};

struct lowering {
    struct lower l;          /* first: op rules get a pointer to it */
    struct kernel *k;
    const struct graph *g;
    uint32_t group;
    const struct chooser *chooser; /* of schedules: lower_schedule.h */
    bool gpu;                /* the kernel is for a GPU: all that emitting knows of the target beside the record */
    const struct placeholders *placeholders; /* in sizes in place of symbols; NULL: none are */
    const ref *member;       /* of the group, in execution order */
    uint32_t nmember;
    const uint32_t *place;   /* per node of the group: its number among the members */
    const bool *stored;      /* per node */
    const int64_t *pitch;    /* per node: elements from row to row in memory; 0: rows lie one behind the other */
    bool assigned;           /* a member is the next value of a state */
    struct lowered *out;
    uint32_t arg_cap;
    struct node_state *state, *trial_state; /* per node, of this kernel and for one that is only tried out */
    uint32_t *stamp;         /* of the last lowering */
    uint32_t mine;           /* of this one */
    uint32_t point;          /* number of the current point of evaluation; memos of others are stale */
    uint32_t epoch;            /* number of the lower_scalars whose scalars are in force */
    uint32_t phases;         /* that were begun, of a kernel for a GPU */
    bool evaluating;         /* lower_at is at work on an element */
    ref anchor;              /* NIL: none; else its value is anchor_value, whatever the coordinates */
    val anchor_value;
    uint32_t *row_copy;      /* row kernels, per member: lbuf + 1 of scratch that holds its row, 0: none; else NULL */
    struct held_element *held; /* on a GPU: what the thread has of the current element of its row; of a block's scales:
                                  what was loaded; NULL: nothing */
    struct map_loads *loads; /* NULL: loads are not counted */
    val column;              /*   element of the row */
    struct { ref node; uint32_t buf; val first; } copied; /* a member that a task has in scratch, from element `first`
                                                             on; node NIL: there is none */
    val pred;                /* lanes that exist, 0: all; loads that depend on lane are predicated */
    bool pred_all;           /*   and all others: it is a thread that may not exist */
    val pred_padded;         /* row kernels: pred of elements that may be in the padding of a row's pitch; 0: as pred */
    val lane;                /* the open vector loop's variable, 0: none */
};

static inline bool lower_is_member(const struct lowering *w, ref r) { return w->g->group[r] == w->group; }

/* ---- lower.c ---- */
void lower_point(struct lowering *w);                                     /* forget memos: coordinates change */
val lower_at(struct lowering *w, ref r, const val *coord);
/* An element of member r: its number and its value. */
struct element { ref r; val index, value, padded; }; /* padded: w->pred_padded, if it is stored with that; else 0 */
/* Evaluates r, a member that shares element numbers with a node of shape s, at s's coordinates. */
struct element lower_element(struct lowering *w, ref r, const struct shape *s, const val *coord);
void lower_put(struct lowering *w, const struct element *e); /* stores it */
/* The same in one. */
void lower_store(struct lowering *w, ref r, const struct shape *s, const val *coord);
/* Fetches the lines of memory that the group's stored members, and those it reads element by element, have at s's
 * coordinates, which are `elements` behind others that were fetched: of arrays of smaller elements the line may be the
 * same, and is left out.  A result is taken to replace an array that is read, as a state's next value does in place:
 * the same lines, and asking for them twice costs as much again. */
void lower_prefetch(struct lowering *w, const struct shape *s, const val *coord, int64_t elements);
/* Fetches the line of an element, which may be beyond the end, by its load, if that is one: not where its address is
 * computed from another load, as a gather's index is, since that element does not exist either.  first: the first
 * instruction of the element. */
void lower_prefetch_load(struct lowering *w, val load, val first);
/* From here on r has this value, whatever the coordinates. */
void lower_fix(struct lowering *w, ref r, val value);
void lower_unfix(struct lowering *w, ref r); /* it has no longer */
/* Scalars made of leaves are computed here, before the loops that use them; those of an earlier call are forgotten. */
void lower_scalars(struct lowering *w);
/* Of a kernel for a GPU: ends its phase, and begins the next one with its own scalars and values of symbols. */
void lower_next_phase(struct lowering *w);
/* A member that reads r, by number: member m, if it is the first that asks. */
uint32_t lower_reader(struct lowering *w, ref r, uint32_t m);
/* The lbuf through which node r is read (role in) or written (role out). */
uint32_t lower_buffer(struct lowering *w, ref r, enum buf_role role);
/* Opens the parallel loop over `extent` iterations, of which, if `active` is not 0, only so many do anything.  Its
 * variable. */
struct tasks { val loop, block, active, guard; };
val lower_tasks(struct lowering *w, int64_t extent, val active, struct tasks *t);
/* The same for a GPU's grid of blocks of threads: the grid's loop, whose variable is the block's number, and in it the
 * loop over the threads of a block, whose variable is the thread's. */
val lower_blocks(struct lowering *w, int64_t extent, val active, struct tasks *t);
val lower_threads(struct lowering *w, int64_t threads, struct tasks *t);
void lower_tasks_end(struct lowering *w, const struct tasks *t);
/* So many adjacent elements, of the largest elements that members have in memory, are one access of a GPU; and of the
 * smallest, of 2 bytes or more, of arrays of that many elements or more. */
int64_t lower_access(const struct lowering *w);
int64_t lower_access_smallest(const struct lowering *w, int64_t elements);
/* The same of rows of `row` elements, for all values of its symbols, and of the arrays that have an element for each of
 * `elements` in all rows (lower_pitch.c). */
int64_t lower_row_access(const struct lowering *w, struct size row, int64_t elements);
/* Is member r computed per reduced element (prologue) of the group's reduce? */
bool lower_in_prologue(const struct lowering *w, ref r);

/* A kernel built only to look at its indices: begin copies w with an empty kernel, end frees it and passes on its
 * error. */
struct trial { struct lowering w; struct lowered out; };
bool trial_begin(struct trial *t, const struct lowering *w);
void trial_end(struct trial *t, struct lowering *w);

/* Is node r of another kernel, or a leaf, and read from memory? */
bool lower_in_memory(const struct lowering *w, ref r);
/* Can node n, an exp, have no operand above 0, but for NaN? */
bool lower_exp_nonpositive(const struct graph *g, const struct node *n);

/* ---- lower_coord.c ---- */
/* Coordinates of element i (row-major) of a shape of lengths of the graph, and back; and of any sizes. */
void lower_unflatten(struct kernel *k, const struct shape *s, val i, val *coord);
val lower_flatten(struct kernel *k, const struct shape *s, const val *coord);
void lower_unflatten_sizes(struct kernel *k, const struct size *dim, uint32_t rank, val i, val *coord);

/* The part of node r's array outside of which all elements are zeros that pads wrote: of each axis first to end - 1.
 * Lowering reads it of nodes in memory, so it is in the key of lower_memo.c.  false: it is all of the array. */
struct zero_border { int64_t first[KL_MAX_RANK], end[KL_MAX_RANK]; };
bool lower_zero_border(const struct graph *g, ref r, struct zero_border *b);

/* ---- lower_memo.c ---- */
bool lower_key_make(struct lower_key *k, const struct lowering *w, struct hash128 target); /* false: out of memory */
/* From here on it is the key of the group lowered with this schedule, which is user-supplied.  false: out of memory. */
bool lower_key_schedule(struct lower_key *k, const struct schedule *s);
void lower_key_free(struct lower_key *k);
/* Fills *k and out's arguments from a group of the same key lowered before.  false: there is none. */
bool lower_memo_find(const struct lower_key *key, struct kernel *k, struct lowered *out);
void lower_memo_add(const struct lower_key *key, const struct lowered *l);

/* lower_map.c: the coordinates at an index for each merged dimension. */
void lower_map_coords(struct kernel *k, const struct map_loops *m, const val *index, val *coord);
/* lower_map.c: may the loops of two neighbouring dimensions be one, as far as the accesses made so far go? */
bool lower_can_merge(struct kernel *k, val outer, val inner, struct size inner_size);
/* ---- lower_map.c, lower_reduce.c, lower_rows.c, lower_dot.c, lower_scatter.c, lower_sort.c, lower_cumulative.c,
 * lower_attention.c ---- */
void lower_map(struct lowering *w);
void lower_reduce(struct lowering *w);
bool lower_has_rows(const struct lowering *w);  /* is the group more than one reduce with prologue and epilogue? */
void lower_rows(struct lowering *w);
void lower_dot_group(struct lowering *w);
bool lower_has_block_dot(const struct lowering *w); /* is it the sum over blocks of a product of integers? */
void lower_block_dot_group(struct lowering *w);
void lower_cumulative_group(struct lowering *w);
void lower_scatter_group(struct lowering *w);
void lower_argsort_group(struct lowering *w);
void lower_attention_group(struct lowering *w);

#endif
