/* Internal header of the planner: a program being planned. */
#ifndef KILN_PLAN_H
#define KILN_PLAN_H
#include "passes/passes.h"

struct value {            /* a stored node */
    ref node;
    int64_t bytes;        /* rounded up to 64 */
    uint32_t first, last; /* commands that write it and read it last */
    struct loc loc;
    bool placed;
};

struct reader { uint32_t state, position, group; }; /* a group that reads a state; position: in the order */

/* A kernel that one or more groups were lowered to. */
struct plan_kernel {
    struct kernel *k;
    struct hash128 hash;
    uint32_t number;          /* in the program, + 1; 0: no command has it yet, and the planner frees it */
    uint32_t own;             /* index + 1 in planner.own; 0: none */
    uint32_t named_by;        /* the group after which it is named, + 1; 0: that of the first command that has it */
};

/* What the steps of planning find out about a kernel of the program, when it is first needed. */
struct kernel_facts {
    int64_t *step;            /* those of kernel_partition; NULL: not known */
    val *access;              /* lists of loads and stores (plan_in_place.c); NULL: not known */
    bool phases_known, one_phase;
};

struct planner {
    struct mem_arena mem;   /* of the arrays below but those that grow */
    const struct graph *g;
    const struct target_set *targets;
    struct program *p;
    struct planner *root;     /* planner of the whole program: this one, or the one of the program with this region */
    struct lowerer *lowerer;
    struct lowered *low;      /* per group; no kernel for a region op or a copy; root->kernel has the others */
    uint32_t *shared;         /* per group with a kernel: its index in root->kernel */
    ref *non_fusible;               /* per group: its region op or copy, or NIL */
    uint16_t *device;         /* per group */
    struct program *(*sub)[2]; /* per group: its regions' programs, until a command owns them */
    uint32_t *order, norder;  /* position -> group; from step `join` on without groups that others' launches have */
    struct { uint32_t *v, n, cap; } *succ; /* per group */
    uint32_t *pending;        /* per group: number of unfinished dependences, then its position */
    uint32_t *signal, *wait;  /* per group: command.signal and command.wait */
    struct reader *reader; uint32_t nreader, reader_cap; /* sorted by state, then group */
    struct value *value;      /* per node; node NIL: not stored */
    uint32_t *seen, *stack, stamp; /* per group: searches */
    struct plan_kernel *kernel; uint32_t nkernel, kernel_cap; /* in root: different kernels of all groups */
    uint32_t *table, table_size;   /* in root: these by hash, index + 1 */
    struct kernel_facts *facts; uint32_t facts_cap; /* in root: per kernel of the program */
    uint32_t ngroup;               /* in root: number of groups so far, with those of regions, used for kernel names */
    const struct tuned *tuned;           /* in root: schedules found by measuring, or NULL */
    struct memo_pack *pack;              /* in root: records lowered kernels, or NULL */
    const struct sched_section *section; /* in root, like the fields below: the user's schedules, or NULL */
    struct own_kernel *own; uint32_t nown, own_cap; /* kernels as they are without these */
    const struct sched_line **line; /* the section's, sorted by the names of kernels; NULL: not needed yet */
    bool *used;                    /* per line: a kernel has its name */
    uint32_t cmd_cap;
    uint32_t first_kernel;    /* command number of the first kernel; copies come before it */
    struct err *e;
};

static inline bool plan_no_memory(struct planner *p)
{
    return err_set(p->e, KL_ERR_MEMORY, "out of memory planning @%s", p->g->name);
}

static inline int64_t plan_round64(int64_t n) { return (n + 63) / 64 * 64; }

/* ---- plan.c ---- */
/* The program of a region. */
struct program *plan_graph(const struct graph *g, const struct target_set *targets, struct planner *root,
                           struct err *e);
/* a new one; NULL: *p->e */
struct command *plan_command(struct planner *p, enum cmd_kind kind, unsigned device, uint32_t narg);
void plan_free_program(struct program *p);       /* of a region; NULL is fine */
bool plan_copy(struct planner *p, ref to_value, struct loc to, ref from_value, struct loc from);
struct loc plan_value_loc(const struct planner *p, ref r);
/* A binary heap of numbers, the lowest on top. */
void plan_heap_push(uint32_t *heap, uint32_t *n, uint32_t x);
uint32_t plan_heap_pop(uint32_t *heap, uint32_t *n);
bool plan_add_edge(struct planner *p, uint32_t from, uint32_t to); /* group `to` runs after group `from` */
int64_t plan_value_bytes(const struct planner *p, ref r); /* bytes in memory of a value that a kernel stores */

/* ---- plan_join.c ---- */
bool plan_join(struct planner *p);               /* joins equal kernels into launches with members */

/* ---- plan_readers.c ---- */
bool plan_readers(struct planner *p);            /* a state's readers run before the group that overwrites it */
uint32_t plan_readers_of(const struct planner *p, uint32_t state); /* the first reader of a state; the others follow */

/* ---- plan_kernels.c ---- */
/* The root takes over the group's kernel, which becomes the one that is equal, if there is one. */
bool plan_share_kernel(struct planner *p, uint32_t group);
bool plan_number_kernel(struct planner *p, uint32_t group, uint32_t *number); /* its number in the program */
/* What is known of a kernel of the program; NULL: out of memory. */
struct kernel_facts *plan_kernel_facts(struct planner *p, uint32_t number);
/* Takes back the numbers from `first` on, and the names by which schedules are found: no command has these kernels. */
void plan_drop_kernels(struct planner *root, uint32_t first);
void plan_free_kernels(struct planner *root);

/* ---- plan_in_place.c ---- */
bool plan_in_place(struct planner *p);           /* finds the states that their next value may overwrite */
/* May lbufs `in` and `out` of a kernel of the program be one array: is each element read before it is overwritten? */
bool plan_kernel_overwrites(struct planner *p, uint32_t kernel, uint32_t in, uint32_t out);

/* ---- plan_async.c: custom ops that another thread runs ---- */
bool plan_is_async(const struct planner *p, uint32_t group);
/* Per group: its priority among groups that are ready; the least is first. */
void plan_async_priorities(struct planner *p, uint32_t *priority);
void plan_async_lifetimes(struct planner *p);    /* after the groups have an order and the values lifetimes */
void plan_async_commands(struct planner *p);     /* after the groups have commands */
void plan_async_overwrites(struct program *p);   /* sets calls and overwrites of a program that is planned */

/* ---- plan_schedule.c: the user's schedules ---- */
/* A kernel's name in a program with Kiln's own schedules, where equal kernels are one. */
struct own_kernel { const struct sched_line *line; char name[64]; };
/* Lowers a second time the kernels that were tuned, then those for which the root's section has a line. */
bool plan_schedules(struct planner *p);
bool plan_schedules_used(const struct planner *root); /* was every line used? */

/* ---- partition.c ---- */
enum { PARTITION_NONE = -1 };
/* Per lbuf: iteration p accesses only elements p * step .. (p + 1) * step - 1; 0: it is not accessed, PARTITION_NONE:
 * any element may be accessed. false: out of memory. */
bool kernel_partition(const struct kernel *k, int64_t *step);
/* ---- layout.c ---- */
bool plan_layout(struct planner *p);             /* the last step: arguments in the arena are places from here on */
/* ---- plan_barriers.c ---- */
bool plan_elide_barriers(struct planner *p);     /* removes barriers that no kernel needs */
/* ---- plan_check_barriers.c: part of plan_check.c ---- */
/* May command c run without a barrier after the kernels before it? NULL: yes; else the reason why not. */
const char *check_no_barrier(const struct program *p, uint32_t c);

/* ---- plan_loop.c: loops that are one kernel ---- */
/* Instructions of the iterations between two questions whether a run is cancelled.  Tests make it small. */
extern int64_t plan_loop_part_work;
/* Instructions that are worth a thread: of iterations that carry nothing, or of all of a vector of lanes. */
extern int64_t plan_loop_task_work;
/* Gives the group of a region op a kernel in place of the program of its body, if it may have one. */
bool plan_loop(struct planner *p, uint32_t group, const struct program *sub);

/* ---- plan_while.c ---- */
/* Lets the body of a group's while run several iterations, if it may be one kernel with the condition; first: kernels
 * of the whole before those of the body. */
bool plan_while(struct planner *p, uint32_t group, uint32_t first);

/* ---- plan_non_fusible.c: groups that are not kernels ---- */
/* finds its arguments, as lower_group does; a loop may become a kernel, and is then not in non_fusible any more */
bool plan_non_fusible(struct planner *p, uint32_t group);
bool plan_has_workspace(const struct planner *p, uint32_t group);
bool plan_workspace(struct planner *p, uint32_t group, int64_t *bytes); /* for a group that has one */
/* called when all values have their offsets */
bool plan_non_fusible_command(struct planner *p, uint32_t group);

#endif
