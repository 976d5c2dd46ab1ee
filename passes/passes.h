/* Graph to graph and graph to kernels: one internal header for the folder.
 *
 * passes.def is the pipeline: passes from a recorded graph to one with groups, then steps from groups to a program. */
#ifndef KILN_PASSES_H
#define KILN_PASSES_H
#include "ir/ir.h"
#include "passes/lower/schedule.h"

/* A pass: <0 error (in g->err), 0 unchanged, 1 changed.  Every pass accepts every valid graph.  Passes that read no
 * options may be called with NULL. */
struct pass_options;
typedef int pass_fn(struct graph *g, const struct pass_options *o);
#define PASS(name, flags, stage, doc) pass_fn pass_##name;
#include "passes.def"

enum pass_flag {
    WHOLE_GRAPH = 1,           /* does the regions itself; other passes are called for each region, innermost first */
    NO_GRADS = 2,              /* leaves a graph with grad nodes as it is: it would remove what gradients need */
    NO_PLACEHOLDERS = 4,       /* likewise a graph with placeholder sizes: it decides by numbers */
    FOR_INTERP = 8,            /* the interpreter needs it */
    FOR_EXPORT = 16,           /* so does an exported model */
};
struct pass_info { const char *name; unsigned flags; const char *stage, *doc; pass_fn *run; };
extern const struct pass_info pass_list[];
extern const unsigned pass_count;
const struct pass_info *pass_find(const char *name, size_t len); /* NULL: no such pass */

/* Devices, by bit, that are this machine's processor, its threads, whether products of windows of images read these
 * in place (lower_reads_windows), and bytes of its first-level cache; {0}: not known. */
struct processor { uint64_t devices; uint32_t threads; bool reads_windows; int64_t l1_bytes; };
struct pass_options {
    bool fuse;                 /* false: each op is its own kernel; affects only the grouping */
    bool verify;               /* verify before the first pass and after each */
    uint64_t bf16_dot2;         /* devices, by bit, whose products of bf16 are summed in pairs: see caps.dot2 */
    uint64_t bf16_tiles;        /* those whose products of bf16 may be in even_odd order: see caps.bf16_tiles */
    struct processor processor;
    uint64_t gpus;              /* devices, by bit, that are GPUs */
    bool graph_order;           /* these add floats in the graph's order: gradients have the form of processors' */
    /* Called with the graph after each stage ("captured", "differentiated", ...); may be NULL. */
    void (*dump)(void *ctx, const char *stage, const struct graph *g);
    void *ctx;
    /* Of a graph with symbols: what pass placeholders replaces them by; NULL: they stay. */
    struct placeholders *placeholders;
    const struct graph *recorded; /* with placeholders: the graph as it was recorded, with all symbols */
    const struct cancellation *cancel; /* asked before each pass; NULL: none */
};
/* ---- run.c ---- */
bool passes_run(struct graph *g, const struct pass_options *o); /* the default pipeline; false: g->err */
/* Runs one pass as its flags say; result as pass_fn.  Options may be NULL: none, fused. */
int pass_run(const struct pass_info *p, struct graph *g, const struct pass_options *o);
/* Runs the first n passes and, of those behind them, the ones that have the flag.  false: g->err. */
bool passes_run_first(struct graph *g, unsigned n, enum pass_flag flag, const struct pass_options *o);

/* ---- groups.c: the meaning of groups ----
 *
 * A node with group GROUP_NONE is never stored: it is a leaf, a view, or a scalar that is cheap enough to be recomputed
 * wherever it is used.  Views are index computations: they have a group only where an output needs them stored. */
/* Is r only an index computation: a view, or a pad evaluated by its readers? */
bool node_is_view(const struct graph *g, ref r);
/* The node below the views of r; *linear: there are only reshapes in between, so element i is element i. */
ref node_source(const struct graph *g, ref r, bool *linear);
/* The same below operand i of r; linear: also, element i of r needs only element i of it. */
ref node_operand(const struct graph *g, ref r, unsigned i, bool *linear);
bool node_is_const(const struct graph *g, ref r, double v); /* a constant, or a view of it */
bool node_is_stored_leaf(const struct graph *g, ref r);     /* input or state: in memory already */
/* If r, or the node that it is a reshape of, is a permute of a node through permutes and reshapes only: that permute;
 * *source: the node, each of whose elements occurs once, in another order.  NIL: it is not. */
ref node_permute(const struct graph *g, ref r, ref *source);
/* The node in whose memory r is when r is stored whole: r itself, or the node below its reshapes. */
ref node_stored(const struct graph *g, ref r);
/* All groups of a graph. */
struct groups {
    /* per group, plus one: member[first[i]] .. member[first[i + 1] - 1] are those of group i */
    uint32_t *first;
    ref *member;               /* in execution order */
    uint32_t *place;           /* per node with a group: its index among the members */
    bool *stored;              /* per node: its value is needed after its kernel */
};
bool groups_make(const struct graph *g, struct groups *s); /* false: out of memory; groups_free in either case */
void groups_free(struct groups *s);

/* May a task of dot r process all columns of its rows? Then a long epilogue can be computed during the products of the
 * next tile, or over whole rows when all their products are computed. */
bool dot_sweeps(const struct graph *g, ref r);
/* fuse_rules.c: does r, on a processor, multiply few rows with windows, so that its kernel reads these in place
 * (lower_direct.c), and evaluates the pads around them?  Its order of sums is known. */
bool dot_is_direct(const struct graph *g, ref r);
bool dot_may_be_direct(const struct graph *g, ref r); /* would it be one if it were of f32? */
/* ... and on this processor widen half floats where it loads them? */
bool dot_widens_in_place(const struct graph *g, ref r, const struct processor *p);

/* ---- windows.c ----
 *
 * Windows of images [image, channel, z, y, x] or [image, channel, y, x], which may have a border of zeros around them,
 * as the second operand of a product.  Some of these zeros are in the array in memory; those of pads without a group
 * are not. */
struct window_axis {
    int64_t out;                                 /* windows */
    int64_t kernel, stride, dilation;            /* elements of a window */
    int64_t all, first, end;                     /* length with all zeros; outside of first to end - 1 are zeros */
    int64_t before, length;                      /* where the array begins, and its length */
    int64_t gap;                                 /* 1; or with zeros between the array's elements, each gap-th is one;
                                                    then stride and dilation are 1 */
};
struct image_windows {
    int64_t images, groups, channels;            /* groups: the batch of the product; channels: of a group */
    int64_t filters;                             /* of a tile: WINDOWS_CHANNELS, or half of them */
    union {
        struct window_axis axis[3];
        struct { struct window_axis z, y, x; };  /* z of [image, channel, y, x]: of length 1 */
    };
    bool contracted;                             /* images and positions are contracted and elements of windows are
                                                    free, as of a gradient in weights; else the other way round */
    bool outside;                                /* some zeros are outside of the array */
    ref array;
};
bool windows_find(const struct graph *g, ref dot, struct image_windows *w);
/* On a processor that reads them in place (struct processor): is that faster than a product of packed windows? */
bool windows_read_pays(const struct graph *g, ref dot, const struct image_windows *w);
bool windows_would_pay(const struct graph *g, ref dot, const struct image_windows *w); /* if it were of f32 */
/* Results of a tile; 0: no number of them is good. */
int64_t windows_tile_results(const struct image_windows *w);
/* How far apart these are: adjacent, or as far as elements of the images, if they are so many. */
static inline int64_t windows_apart(const struct window_axis *x, int64_t results)
{
    return results > 0 && x->out % (results * x->gap) == 0 ? x->gap : 1;
}
static inline int64_t windows_channel(const struct image_windows *w) /* elements of a channel of an image */
{
    return w->z.length * w->y.length * w->x.length;
}
/* Adjacent windows along an axis that have the same elements in the image, those of the set `in`. */
struct window_segment { int64_t first, end; uint32_t in; };
enum { WINDOW_SEGMENTS = 8 };
unsigned windows_segments(const struct window_axis *a, struct window_segment *s); /* their number; 0: too many */
/* A gradient in weights: rows of the kernel whose results a tile has, one or all.  0: the kernel is too large. */
int64_t windows_tile_rows(const struct image_windows *w);
enum { MAX_WINDOW = 16, WINDOWS_CHANNELS = 32 }; /* columns of a kernel; channels that a tile computes */

/* ---- fuse_rows.c ---- */
struct row_space { int64_t rows, length; };
enum { MAX_ROW_REDUCES = 8, MAX_ROW_COLUMNS = 3 };     /* in one kernel */
/* Does r reduce whole rows, the last axes, in one chunk of lanes or in several of whole vectors?  Sets their number and
 * length. */
bool reduce_rows(const struct graph *g, ref r, struct row_space *s);
/* Does r reduce columns of these rows: of all of them, or of parts of equally many adjacent ones?  Its results are then
 * a row for each part.  Sets the number of rows of a part. */
bool reduce_columns(const struct graph *g, ref r, const struct row_space *s, int64_t *rows);

/* ---- fuse_explain.c ----
 *
 * For each group of a fused graph and each group that it reads, a comment line with the reason why they are two
 * kernels. mem_free it; NULL: out of memory. */
char *fuse_explain(const struct graph *g);

/* ---- lower.c, lower_*.c: one group to one kernel ---- */
bool lower_reads_windows(const struct caps *caps);
struct arg { ref node; uint32_t role; };       /* lbuf i with role in or out is this node's value */
struct lowered {                               /* arg[id] belongs to lbufs with that id */
    struct kernel *k;
    struct arg *arg;
    uint32_t narg;
    struct hash128 group;                      /* hash of the group's key (lower_memo.c): of all that determines the
                                                  kernel except its schedule; 0: there was no memory for the key */
};
/* The targets of a program on one or several devices: `caps` for the devices of a set, by bit; 0: for all. */
struct target { const struct caps *caps; uint64_t devices; };
struct target_set { const struct target *v; uint32_t n; };
/* Schedules found by measuring (runtime/program/tuned.c).  find: that for a group with this key; false: none. */
struct tuned { bool (*find)(const struct tuned *t, struct hash128 group, struct schedule *out); };
struct lowerer;                                /* state shared by the lowering of a graph's groups */
struct memo_pack;
/* Kernel names contain group numbers, which start at `first`.  pack: records the lowered kernels of the groups, or
 * NULL.  placeholders: what is in g's sizes in place of symbols, or NULL.
 * NULL: out of memory. */
struct lowerer *lowerer_new(const struct graph *g, const struct target_set *targets, uint32_t first,
                            struct memo_pack *pack, const struct placeholders *placeholders);
void lowerer_free(struct lowerer *s);          /* NULL is fine */
/* want: the record to follow; NULL: one is chosen.  [errors ARGUMENT: it is refused, with its field] */
bool lower_group(struct lowerer *s, uint32_t group, const struct schedule *want, struct lowered *out, struct err *e);
/* Elementwise groups that do not read each other as the parts of one kernel.  From then on their nodes have the first
 * one's group in g, the lowerer's graph. */
bool lower_groups(struct lowerer *s, struct graph *g, const uint32_t *group, uint32_t n, const struct schedule *want,
                  struct lowered *out, struct err *e);
/* Names a kernel by the number and the ops of a group that has it, and by the user's line. */
void lower_name(const struct lowerer *s, uint32_t group, struct kernel *k);
const struct groups *lowerer_groups(const struct lowerer *s);
const int64_t *lowerer_pitch(const struct lowerer *s); /* NULL: no node has one */
/* ---- lower_pitch.c ----
 *
 * Per node: elements from one row to the next of an intermediate that a kernel stores and kernels read; 0: as many as
 * the last axis has.  Does any have one? */
bool lower_pitches(const struct graph *g, const struct target_set *t, const struct groups *s, int64_t *pitch);
/* Elements in memory of node r; pitch NULL: none has one. */
int64_t pitched_numel(const struct graph *g, const int64_t *pitch, ref r);
/* The graph, the target and, of the group, the dot (or NIL) and the number of its members. */
void lowerer_look(const struct lowerer *s, uint32_t group, const struct graph **g, const struct caps **caps, ref *dot,
                  uint32_t *members);
/* ---- tune/candidates.c ---- */
enum { MAX_CANDIDATES = 24 };
/* Other schedules for a group that was lowered to k: the group can have each, and each gives another kernel.  The most
 * promising is first.  At most MAX_CANDIDATES; threads: of the pool that runs the kernel.  false: out of memory, *e. */
bool lower_candidates(struct lowerer *s, uint32_t group, const struct kernel *k, unsigned threads, struct schedule *out,
                      uint32_t *n, struct err *e);
/* Are a reduction's rows so short that on CPUs they are the lanes of vectors? */
bool lower_short_rows(const struct graph *g, ref reduce);

/* ---- lower_memo.c: lowered kernels, kept by the process up to a number of bytes ---- */
void lower_memo_clear(void);
size_t lower_memo_bytes(void);
void lower_memo_limit(size_t bytes); /* keeps at most so many from now on; at first 16 MiB */
extern const struct fork_part lower_memo_fork;
/* A pack records the groups of the programs that are planned with it. memo_pack_end frees it and returns bytes, for
 * mem_free, with which memo_unpack gives these kernels to another process of this build; NULL: all were found, or there
 * is no memory. */
struct memo_pack *memo_pack_new(void); /* NULL: no memory; program_plan_with and memo_pack_end accept NULL */
void *memo_pack_end(struct memo_pack *p, size_t *size);
bool memo_unpack(const void *pack, size_t size); /* false: the bytes are damaged */
/* Groups that were lowered because they were not found; for tests of the cost of planning. */
extern _Atomic(uint64_t) lower_misses __attribute__((visibility("hidden")));

/* ---- plan.c, plan_non_fusible.c: storage and commands ---- */
enum loc_kind { LOC_ARENA, LOC_INPUT, LOC_STATE, LOC_OUT, LOC_SCRATCH, LOC_WORKSPACE, LOC_KERNEL_LOCAL, LOC_LAYOUT };
/* Scratch, workspace and kernel-local contain no value.  arena: of device `index`; scratch: offset in a thread's
 * scratch; workspace: offset in the memory that the phases of a kernel share; kernel-local: shared memory or registers;
 * layout: offset from that of value `index` of program.layout, in the arena */
struct loc { uint32_t kind, index; int64_t offset; };

enum cmd_kind { CMD_KERNEL, CMD_COPY, CMD_INTERP, CMD_REGION, CMD_CUSTOM };
struct program;
struct command {
    uint16_t kind, device;        /* CMD_COPY: device is the target */
    uint32_t kernel, group;       /* CMD_KERNEL: index in program.kernel; the group that it computes */
    /* its number among all commands of the program; those of regions come after the op's own */
    uint32_t row;
    bool no_barrier;              /* CMD_KERNEL: there is no barrier between it and the kernel before it */
    /* signal: for a CMD_CUSTOM that another thread runs while the following commands run: its number among those of
     * the program, from 1 on, in which order they run; 0: it is not one.  wait: this command starts when those up to
     * this number have ended; 0: it needs none for which no earlier command has waited. */
    uint32_t wait, signal;
    /* CMD_KERNEL: one per lbuf; CMD_COPY: destination, source, on any devices; CMD_REGION, CMD_CUSTOM: operands,
     * results, workspace */
    struct loc *arg; uint32_t narg;
    ref region;                   /* CMD_REGION, CMD_CUSTOM: the op's node */
    struct program *sub[2];       /* CMD_REGION: the programs of its regions, whose inputs are the parameters */
    /* the node of each arg, NIL for scratch and kernel-local; used by the checker; may be NULL */
    ref *value;
    int64_t bytes;                /* CMD_COPY: size */
    uint16_t from;                /* CMD_COPY: the source device */
};
struct program {
    struct graph *g;              /* after all passes; owned */
    struct placeholders placeholders;   /* what is in sizes in place of symbols: all bytes below are for these */
    struct layout *layout;        /* with placeholders, on one device: its arena for the symbols' values; else NULL */
    /* without duplicates: commands share equal kernels; a region's program uses those of the whole */
    struct kernel **kernel; uint32_t nkernel, kernel_cap;
    struct command *cmd; uint32_t ncmd;
    uint32_t rows;                /* of the whole program: number of commands, regions' included */
    uint32_t max_args;            /* maximum number of arguments of a kernel, regions included */
    uint64_t devices;             /* devices used, one bit each */
    /* Has a custom op, which may fail, in a region, or at or behind the first command that may overwrite a state.  No
     * state can then be updated in place. */
    bool calls;
    /* Has a region op, which may be a loop that takes long, at or behind that command. */
    bool loops;
    uint32_t overwrites;          /* the first command that may overwrite a state; before it all signals are awaited */
    uint32_t signals;             /* commands that another thread runs */
    int64_t arena_bytes[MAX_DEVICES];
    /* bytes at the end of each arena for the programs of regions, on devices other than that of their op, where they
     * run in the command's workspace */
    int64_t region_bytes[MAX_DEVICES];
    int64_t interp_bytes;         /* maximum memory of the interpreter, which it allocates itself */
    int64_t scratch_bytes;        /* per thread, regions included */
    int64_t workspace_bytes;      /* of the kernel that has most, regions included */
    int64_t peak_bytes;           /* arenas + outputs not in place + inputs + states */
    /* largest total size of values alive at the same time: a lower bound for any placement */
    int64_t lower_bound_bytes;
    bool *in_place;               /* per output: OUT_ASSIGN may overwrite its state */
    int64_t *pitch;               /* per node: as lower_pitches says; NULL: none has one */
};
int64_t program_arenas(const struct program *p); /* bytes of all arenas */
/* ---- layout.c ----
 * Where the values of a program with placeholders lie in its arena, for any values of the symbols. */
enum { MAX_LAYOUT_VALUES = 512 }; /* a program with more has the arena of the bounds, without a layout */
/* below, end: of layout.below, those directly below it; fixed: no symbol is in bytes */
struct layout_value { int64_t bytes; bool fixed; uint32_t below, end; };
struct layout { unsigned device; uint32_t n; struct layout_value *value; uint32_t *below; };
/* Writes the offset of each value for the symbols' values (slot NULL: the bounds); returns the bytes of the arena. */
int64_t layout_offsets(const struct program *p, const uint64_t *slot, int64_t *offset);
void layout_free(struct layout *l);
/* g stays the caller's; caps: those of all devices. interpret: one CMD_INTERP command and no kernel. */
struct program *program_plan(const struct graph *g, const struct caps *caps, bool interpret, struct err *e);
/* The same with the schedules of a section, for the kernels of the names that a plan without them gives. s may be NULL,
 * and so may pack, which records the lowered kernels.  [errors ARGUMENT: no such kernel, or not a possible schedule,
 * with the position in the text] */
struct program *program_plan_with(const struct graph *g, const struct caps *caps, const struct sched_section *s,
                                  const struct tuned *tuned, struct memo_pack *pack, struct err *e);
/* The same for the devices of several targets. */
struct program *program_plan_for(const struct graph *g, const struct target_set *targets, const struct sched_section *s,
                                 const struct tuned *tuned, struct memo_pack *pack, struct err *e);
/* The same of a graph with placeholders.  [errors COMPILE: a kernel cannot be one for all values of the symbols] */
struct program *program_plan_symbolic(const struct graph *g, const struct placeholders *placeholders,
                                      const struct target_set *targets, struct err *e);
void program_free(struct program *p);
size_t program_bytes(const struct program *p);  /* bytes of memory that it uses */
/* Workspace of a CMD_REGION or CMD_CUSTOM, in this order, each part aligned to 64: results that nothing reads,
 * region_work_bytes, pointers to operands and results, the arena of the running region. */
struct workspace { int64_t unread, work, pointers, arena, bytes; };
struct workspace command_workspace(const struct program *p, const struct command *c);
/* ---- plan_barriers.c ----
 *
 * Removes barriers between kernels where no thread accesses what another one stores; at most so many kernels in a
 * row. */
enum { MAX_KERNEL_RUN = 16 };
/* Comment lines with the program's kernels in order; kernels without a barrier between them are on one line. mem_free
 * it; NULL: out of memory. */
char *program_order(const struct program *p);
/* ---- plan_check.c: an independent checker: values alive at the same time never overlap, every read follows its write
 * ---- */
bool program_check(const struct program *p, struct err *e);
/* The same with the places and sizes for values of the symbols; slot NULL: for the bounds. */
bool program_check_for(const struct program *p, const uint64_t *slot, struct err *e);

/* Numbers of nodes visited by gradient sweeps and rematerialization, and of operands and readers visited by searches
 * between groups.  A test of their cost compares these counts, because times depend on the machine. */
extern _Atomic(uint64_t) pass_steps __attribute__((visibility("hidden")));

#endif
