/* Internal header of loops that are one kernel: a kernel that is made of those of a region's programs. */
#ifndef KILN_PLAN_LOOP_H
#define KILN_PLAN_LOOP_H
#include "ir/loop/inline.h"
#include "plan.h"

enum {
    MAX_CODE = 1 << 12,           /* instructions of an iteration without loops */
    MAX_BYTES = 512 << 10,        /* of arrays that only the kernel accesses, in scratch memory */
    MAX_ARENA_ARRAYS = 64,
    KERNEL_WORK = 16,             /* what a loop that stays takes beside its instructions */
};

struct loop_kernel {
    struct planner *p;
    const struct node *n;
    const struct graph *body;     /* the region that is being inlined */
    const struct program *sub;    /* its program */
    struct kernel *k;             /* being built */
    bool scalars;                 /* all loops are written out */
    int64_t parts;                /* the loop is cut into so many parts of `each` iterations, which run in order
                                   * where something is carried */
    int64_t each;
    struct mem_arena mem;
    uint32_t nin, nout, *result;  /* per result: its lbuf + 1; 0: nothing reads it */
    struct inline_array *input, *yield, *value; /* per operand, per yield, per node of the region */
    struct inline_array *first;   /* per carried operand: as the caller has it, or the part before left it */
    struct inline_array *kept;    /* per carried operand that is scalars: where a part leaves it for the next */
    int64_t bytes;                /* of arrays that only the kernel accesses */
    struct arena_array { int64_t offset; const struct inline_array *a; } arena[MAX_ARENA_ARRAYS]; /* by offset */
    uint32_t narena;
};

/* Can all commands of the region's program be inlined? */
bool loop_region_fits(const struct loop_kernel *b);
/* Begins the kernel in one of the two forms, with l's arguments, if l is not NULL, as its first lbufs.  false:
 * *p->e. */
bool loop_begin(struct loop_kernel *b, const struct lowered *l, bool scalars);
/* Gives an array that only this kernel accesses its memory, or scalars.  false: it is too large, or no memory. */
bool loop_array(struct loop_kernel *b, struct inline_array *a, unsigned dtype, int64_t count);
/* The same in memory in both forms. */
bool loop_array_in_memory(struct loop_kernel *b, struct inline_array *a, unsigned dtype, int64_t count);
/* An array of the caller: lbuf, from element `first` on, which may change with the iteration. */
bool loop_array_outside(struct loop_kernel *b, struct inline_array *a, uint32_t lbuf, val first, int64_t count);
/* The memory of argument i of a command of the region; NULL: it is the kernel's own. */
struct inline_array *loop_argument(struct loop_kernel *b, const struct command *c, uint32_t i);
/* Makes what the region's commands store, and inlines them.  false: they cannot be. */
bool loop_inline_region(struct loop_kernel *b);
/* The kernel, if `emitted`; NULL: it has none, or *p->e.  flops: of all iterations. */
struct kernel *loop_finish(struct loop_kernel *b, bool emitted, int64_t flops);
double loop_region_flops(const struct loop_kernel *b);
int64_t loop_work(const struct loop_kernel *b, const struct kernel *k); /* what the kernel takes */

int64_t loop_times_length(const struct loop_kernel *b, double each); /* of all iterations, of the longest length */

/* ---- plan_loop_lanes.c ---- */
bool loop_lanes_emit(struct loop_kernel *b); /* after loop_begin.  false: it cannot be this form, or no memory */

/* ---- plan_loop_cond.c ---- */
bool loop_cond_fits(const struct loop_kernel *b, const struct command *c); /* of a region op's command: may it? */
bool loop_inline_cond(struct loop_kernel *b, const struct command *c);

#endif
