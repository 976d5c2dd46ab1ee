/* Graph to graph and graph to kernels: one internal header for the folder.
 *
 *   captured -> bind -> autodiff -> inline -> simplify -> dce -> numerics -> split_reductions -> fuse   (passes.def, in
 * order)
 *            -> lower (one kernel a group) -> plan (storage, commands) = a program */
#ifndef KILN_PASSES_H
#define KILN_PASSES_H
#include "ir/ir.h"
#include "ir/loop/loop.h"

/* A pass: <0 error (in g->err), 0 unchanged, 1 changed.  Any pass runs on any valid graph. */
typedef int pass_fn(struct graph *g);
#define PASS(name, stage, doc) pass_fn pass_##name;
#include "passes.def"

struct pass_info { const char *name, *stage, *doc; pass_fn *run; };
extern const struct pass_info pass_list[];
extern const unsigned pass_count;
const struct pass_info *pass_find(const char *name, size_t len); /* NULL: no such pass */

struct pass_options {
    bool fuse;                 /* false: every op its own kernel; decides grouping and nothing else */
    bool verify;               /* verify before the first pass and after each */
    /* Called with the graph after each stage ("captured", "differentiated", ...); may be NULL. */
    void (*dump)(void *ctx, const char *stage, const struct graph *g);
    void *ctx;
    /* Of a graph with symbols: from pass numerics on primes stand in for them, which it says here; NULL: they stay. */
    struct stand_ins *stand_ins;
};
/* ---- run.c ---- */
bool passes_run(struct graph *g, const struct pass_options *o); /* the default pipeline; false: g->err */
/* One pass on a graph and, before it, on its regions; as pass_fn.  `unfused` means something to fuse only. */
int pass_run(const struct pass_info *p, struct graph *g, bool unfused);

/* ---- groups.c ---- What a graph with groups means.
 * A node with group GROUP_NONE is never stored: it is a leaf, a view, or a scalar cheap enough to be computed
 * again wherever it is used.  Views are indices: they have a group only where an output needs them stored. */
/* The node below the views of r; *linear: only reshapes in between, so element i is element i. */
/* nothing but an index into what it reads: a view, or a pad in place */
bool node_is_view(const struct graph *g, ref r);
ref node_source(const struct graph *g, ref r, bool *linear);
/* The same below operand i of r; linear: also, element i of r needs just element i of it. */
ref node_operand(const struct graph *g, ref r, unsigned i, bool *linear);
bool node_is_const(const struct graph *g, ref r, double v); /* a constant, or a view of it */
bool node_is_stored_leaf(const struct graph *g, ref r);     /* input or state: in memory already */
/* r, or what it is a reshape of, if that is a permute of a node through permutes and reshapes alone: each element of
 * *source once, in another order.  NIL: it is not. */
ref node_permute(const struct graph *g, ref r, ref *source);
/* The node that holds the elements of r where r is stored whole: r itself, or what is below its reshapes. */
ref node_stored(const struct graph *g, ref r);
/* All groups of a graph at once. */
struct groups {
    uint32_t *first;           /* per group, and one more: member[first[i]] .. member[first[i + 1] - 1] are group i's */
    ref *member;               /* in execution order */
    uint32_t *place;           /* per node with a group: its number among the members */
    bool *stored;              /* per node: its value outlives its kernel */
};
bool groups_make(const struct graph *g, struct groups *s); /* false: out of memory; groups_free in either case */
void groups_free(struct groups *s);

/* May a task of dot r walk all columns of its rows, so that a long epilogue can be computed during the products of the
 * next tile, or sweep over whole rows when all of their products are there? */
bool dot_sweeps(const struct graph *g, ref r);

/* ---- fuse_rows.c ---- */
struct row_space { int64_t rows, length; };
enum { MAX_ROW_REDUCES = 8 };     /* of one kernel */
/* Does r reduce whole rows, the last axes in one chunk of lanes?  Which, and how long. */
bool reduce_rows(const struct graph *g, ref r, struct row_space *s);

/* ---- fuse.c ---- Fills g->group; `unfused` gives every op its own group. */
int pass_fuse_groups(struct graph *g, bool unfused);
/* ---- fuse_explain.c ---- For each group of a fused graph and each that it reads, a comment line that says why they
 * are two kernels.  mem_free it; NULL: out of memory. */
char *fuse_explain(const struct graph *g);

/* ---- lower.c, lower_*.c: one group to one kernel ---- */
struct arg { ref node; uint32_t role; };       /* lbuf i with role in or out holds this node's value */
struct lowered {                               /* arg[id] belongs to lbufs with that id */
    struct kernel *k;
    struct arg *arg;
    uint32_t narg;
    bool taken;                                /* the kernel is the program's by now */
};
struct lowerer;                                /* what lowering the groups of one graph shares */
/* Kernels are named by group number, from `first` on.  NULL: out of memory. */
struct memo_pack;
/* pack: which notes what the groups are lowered to, or NULL. */
/* stand_ins: what is in g's sizes in place of symbols, or NULL. */
struct lowerer *lowerer_new(const struct graph *g, const struct caps *caps, uint32_t first, struct memo_pack *pack,
                            const struct stand_ins *stand_ins);
void lowerer_free(struct lowerer *s);          /* NULL is fine */
/* given: the schedule to follow, of the kind that the group has; NULL: it is chosen here.  Where the kernel's own
 * schedule is then another, the one given cannot be had. */
bool lower_group(struct lowerer *s, uint32_t group, const struct schedule *given, struct lowered *out, struct err *e);
const struct groups *lowerer_groups(const struct lowerer *s);
/* Does a reduce have rows of so few elements that on processors they are the lanes of vectors? */
bool lower_short_rows(const struct graph *g, ref reduce);

/* ---- lower_memo.c: kernels of groups lowered before, kept by the process up to a number of bytes ---- */
void lower_memo_clear(void);
size_t lower_memo_bytes(void);
extern const struct fork_part lower_memo_fork;
/* A pack notes the groups of the programs that are planned with it.  End frees it and gives bytes, for mem_free, from
 * which another process of this build has those groups by memo_unpack; NULL: all were found, or there is no memory. */
struct memo_pack *memo_pack_new(void); /* NULL: no memory, which program_plan_with and memo_pack_end take */
void *memo_pack_end(struct memo_pack *p, size_t *size);
bool memo_unpack(const void *pack, size_t size); /* false: they are damaged */
/* Groups lowered that were not found there: what tests of the cost of planning count. */
extern _Atomic(uint64_t) lower_misses __attribute__((visibility("hidden")));

/* ---- plan.c, plan_non_fusible.c: storage and commands ---- */
enum loc_kind { LOC_ARENA, LOC_INPUT, LOC_STATE, LOC_OUT, LOC_SCRATCH, LOC_INSIDE }; /* the last two hold no value */
/* arena: of device `index`; scratch: offset in a thread's scratch; inside: the kernel's own, shared memory or
 * registers */
struct loc { uint32_t kind, index; int64_t offset; };

enum cmd_kind { CMD_KERNEL, CMD_COPY, CMD_INTERP, CMD_REGION, CMD_CUSTOM };
struct program;
struct command {
    uint16_t kind, device;        /* CMD_COPY: the device copied to */
    uint32_t kernel, group;       /* CMD_KERNEL: index in program.kernel; the group of g's nodes that it computes */
    uint32_t row;                 /* its number among all commands of the whole, those of regions behind their op's */
    bool joined;                  /* CMD_KERNEL: no barrier between it and the kernel before it, each thread goes on */
    uint32_t wait, signal;        /* event numbers, 0 for none: all devices so far work in the order of the list */
    /* CMD_KERNEL: one per lbuf; CMD_COPY: destination, source, on any devices; CMD_REGION, CMD_CUSTOM: the operands,
     * the results, and the workspace */
    struct loc *arg; uint32_t narg;
    ref region;                   /* CMD_REGION, CMD_CUSTOM: the op's node */
    struct program *sub[2];       /* CMD_REGION: its regions, run with the parameters as inputs */
    /* the node each arg holds, NIL for scratch and inside: for the checker; may be NULL */
    ref *value;
    int64_t bytes;                /* CMD_COPY: size */
    uint16_t from;                /* CMD_COPY: the device copied from */
};
struct program {
    struct graph *g;              /* after all passes; owned */
    struct stand_ins stand_ins;   /* what is in sizes in place of symbols: all bytes below are for these */
    struct kernel **kernel; uint32_t nkernel, kernel_cap; /* different kernels only: equal ones are shared; a
                                                             region's program has those of the whole */
    struct command *cmd; uint32_t ncmd;
    uint32_t rows;                /* of the whole program: commands, regions' included */
    uint32_t max_args;            /* most arguments of a kernel, regions included */
    uint64_t devices;             /* those used, by bit */
    /* has a CMD_CUSTOM, maybe in a region: it calls the user's functions, which may fail */
    bool calls;
    int64_t arena_bytes[MAX_DEVICES];
    int64_t region_bytes[MAX_DEVICES]; /* so much at the end of an arena is the regions' programs', where it is not that
                                          of their op's device: there they run in the command's workspace */
    int64_t interp_bytes;         /* what the interpreter holds at most, in memory of its own */
    int64_t scratch_bytes;        /* per thread, regions included */
    int64_t peak_bytes;           /* arenas + outputs not in place + inputs + states */
    int64_t lower_bound_bytes;    /* largest set of values alive at once, whatever the placement */
    bool *in_place;               /* per output: OUT_ASSIGN may write over its state */
};
int64_t program_arenas(const struct program *p); /* bytes of all arenas */
/* Consumes nothing: g stays the caller's; caps: those of the devices, in a chain where they are several.  interpret:
 * one CMD_INTERP command and no kernel. */
struct program *program_plan(const struct graph *g, const struct caps *caps, bool interpret, struct err *e);
/* The same with the schedules of a section for its kernels, found by the names that a plan without them gives.  s may
 * be NULL; so may pack, which notes what the groups are lowered to.  [errors ARGUMENT: no such kernel, or not such a
 * schedule, with the place in the text] */
struct program *program_plan_with(const struct graph *g, const struct caps *caps, const struct sched_section *s,
                                  struct memo_pack *pack, struct err *e);
/* The same of a graph with stand-ins.  [errors COMPILE: a kernel cannot be one for all values of the symbols] */
struct program *program_plan_symbolic(const struct graph *g, const struct stand_ins *stand_ins,
                                      const struct caps *caps, struct err *e);
void program_free(struct program *p);
size_t program_bytes(const struct program *p);  /* the memory that it takes */
/* Workspace of a CMD_REGION or CMD_CUSTOM, in this order, each part aligned to 64: results that nothing reads,
 * region_work_bytes, pointers to operands and results, the arena of the region that runs. */
struct workspace { int64_t unread, work, pointers, arena, bytes; };
struct workspace command_workspace(const struct program *p, const struct command *c);
/* ---- plan_join.c ---- Kernels that may run one behind the other without a barrier: none touches what another thread
 * stores in one before it.  At most so many. */
enum { MAX_JOINED = 16 };
/* Comment lines: the program's kernels in order, with what is between their barriers on one line.  mem_free it; NULL:
 * out of memory. */
char *program_order(const struct program *p);
/* ---- plan_check.c: an independent checker: no two values alive at once overlap, every read follows its write ---- */
bool program_check(const struct program *p, struct err *e);

/* Nodes that gradient sweeps and rematerialization have met, and operands and readers that searches between groups
 * have: a test of their cost compares these counts, as times depend on the machine. */
extern _Atomic(uint64_t) pass_steps __attribute__((visibility("hidden")));

#endif
