/* A program while it is planned: what plan.c and plan_non_fusible.c share. */
#ifndef KILN_PLAN_H
#define KILN_PLAN_H
#include "passes/passes.h"

struct value {            /* a stored node */
    ref node;
    int64_t bytes;        /* rounded up to 64 */
    uint32_t first, last; /* commands that write and last read it */
    struct loc loc;
    bool placed;
};

struct reader { uint32_t state, position, group; }; /* a group that reads a state; position: its place in the order */

struct planner {
    const struct graph *g;
    const struct caps *caps;
    struct program *p;
    struct planner *root;     /* of the whole program: this one, or the one that this one is a region of */
    struct lowerer *lowerer;
    struct lowered *low;      /* per group; no kernel: a region op or a copy */
    ref *non_fusible;               /* per group: its region op or copy, or NIL */
    uint16_t *device;         /* per group */
    struct program *(*sub)[2]; /* per group: its regions' programs, until a command has them */
    uint32_t *order;          /* position -> group */
    struct { uint32_t *v, n, cap; } *succ; /* per group */
    uint32_t *pending;        /* per group: unmet dependences */
    struct reader *reader; uint32_t nreader, reader_cap; /* sorted by state, then group */
    struct value *value;      /* per node; node NIL: not stored */
    uint32_t *seen, *stack, stamp; /* per group: searches */
    uint32_t *table, table_size;   /* the root's: kernels by hash, number + 1 */
    uint32_t ngroup;               /* the root's: groups so far, those of regions included: what kernels are named by */
    const struct tuned *tuned;           /* the root's: schedules found by measuring, or NULL */
    struct memo_pack *pack;              /* the root's: notes what groups are lowered to, or NULL */
    const struct sched_section *section; /* the root's, with what follows: schedules handed in, or NULL */
    struct own_kernel *own; uint32_t nown, own_cap; /* kernels as they are without them */
    bool *used;                    /* per line: some kernel has its name */
    uint32_t cmd_cap;
    uint32_t first_kernel;    /* command number of the first kernel: copies come before */
    struct err *e;
};

static inline bool plan_no_memory(struct planner *p)
{
    return err_set(p->e, KL_ERR_MEMORY, "out of memory planning @%s", p->g->name);
}

static inline int64_t plan_round64(int64_t n) { return (n + 63) / 64 * 64; }

/* ---- plan.c ---- */
/* The program of a region. */
struct program *plan_graph(const struct graph *g, const struct caps *caps, struct planner *root, struct err *e);
/* a new one; NULL: *p->e */
struct command *plan_command(struct planner *p, enum cmd_kind kind, unsigned device, uint32_t narg);
bool plan_copy(struct planner *p, ref to_value, struct loc to, ref from_value, struct loc from);
struct loc plan_value_loc(const struct planner *p, ref r);

/* ---- plan_schedule.c: schedules handed in ---- */
/* A kernel by the name that it has in a program of its own choice, where equal kernels are one. */
struct own_kernel { struct hash128 hash; const struct sched_line *line; char name[64]; };
/* Lowers again what was tuned, and then what the root's section has a line for. */
bool plan_schedules(struct planner *p);
bool plan_schedules_used(const struct planner *root); /* has every line found its kernel? */

/* ---- partition.c ---- */
enum { PARTITION_NONE = -1 };
/* Per lbuf: iteration p touches nothing of it but elements p * step .. (p + 1) * step - 1; 0: it is not touched at all,
 * PARTITION_NONE: it may be touched anywhere.  false: out of memory. */
bool kernel_partition(const struct kernel *k, int64_t *step);
/* ---- plan_join.c ---- */
bool plan_joins(struct planner *p);              /* drops the barriers that nothing needs */
/* ---- plan_check_join.c: part of plan_check.c ---- */
/* Is command c, joined to kernels before it, apart from them as it must be?  NULL: it is; else what is wrong. */
const char *check_joined(const struct program *p, uint32_t c);

/* ---- plan_non_fusible.c: groups that are no kernel ---- */
/* finds what it reads and writes, as lower_group does */
bool plan_non_fusible(struct planner *p, uint32_t group);
bool plan_has_workspace(const struct planner *p, uint32_t group);
bool plan_workspace(struct planner *p, uint32_t group, int64_t *bytes); /* of a group that has one */
bool plan_non_fusible_command(struct planner *p, uint32_t group);             /* once all values have their places */

#endif
