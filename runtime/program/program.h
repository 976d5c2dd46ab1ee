/* Programs: from a graph to code, the caches in memory and on disk, and execution. */
#ifndef KILN_PROGRAM_H
#define KILN_PROGRAM_H
#include "runtime/buffer.h"
#include "runtime/pool.h"
#include "runtime/device/devices.h"

/* ---- cache.c: graph -> program -> code ---- */
/* The phases of a kernel for a device with a driver, or of one for all values of symbols. */
struct launch_phase {
    int64_t base, extent;                /* struct phase */
    val active;                          /* kernel_active; 0: all iterations do something */
    bool shares;                         /* kernel_shares */
};
struct launch_phases { uint32_t n; const struct launch_phase *v; };
struct exec {                            /* immutable once made, except the atomic fields; shared by threads */
    struct hash128 key;
    struct graph *captured;              /* compared on a look-up */
    struct program *program;             /* NULL: it has variants */
    struct variants *variants;           /* of a graph with symbols that has programs for values or ranges; else NULL */
    struct code_entry **code;            /* the loaded code of its kernels, one for each device that runs it */
    uint32_t ncode;
    struct launch_phases *phases;        /* per kernel of the program; NULL: no kernel needs it */
    kernel_fn **fn;                      /* per kernel of the program; NULL: not run on the CPU */
    /* the same for each device with a driver that runs kernels, else NULL */
    const struct device_kernel **on[DEVICE_END];
    int64_t work_bytes;                  /* workspace and scratch bytes that a launch on such a device needs */
    uint64_t interpreted;                /* devices without a code generator, one bit each */
    uint64_t accelerated;                /* devices with a driver */
    int device;
    bool fuse;
    bool graph_order;                    /* of a program with kernels for GPUs: option order when it was looked up */
    _Atomic(struct repeat *) repeat;     /* execute_device.c: its last run on a device with a driver, or NULL */
    bool variant;                        /* the tuner's: stores no code on disk */
    const bool *skip;                    /* the tuner's: per command of the program, is it left out?  NULL: none is */
    atomic_bool tuned;                   /* by option tune, or found to need no tuning */
    _Atomic(struct times *) times;       /* of its commands, allocated when it is first timed; NULL before */
    const struct sched_section *schedules; /* the user's schedules for its kernels, or NULL */
    char *miss;                          /* how its graph differed from all known ones; NULL: out of memory */
    _Atomic(uint64_t) ran;               /* the number of its last run, counted over the process; 0: none yet */
    /* the fused program that was compiled in the background and runs in place of this one; or NULL */
    _Atomic(const struct exec *) newer;
    /* of a fallback program that waits for `newer`: the unfused program whose parts it uses; else NULL */
    const struct exec *base;
    /* references of the cache and of others; 0: evicted, only the memory of this struct is left */
    atomic_uint refs;
    atomic_uint weak_refs;               /* weak references, plus one while refs is not 0 */
};
/* The program to run in place of x now. */
static inline const struct exec *exec_latest(const struct exec *x)
{
    const struct exec *newer = atomic_load_explicit(&((struct exec *)x)->newer, memory_order_acquire);
    return newer ? newer : x;
}
/* The compiled form of a recorded graph, from the cache or built now.  Nodes on the graph's first device (graph_device)
 * run on `device`, others on their own.  NULL: *e.  Takes a reference, for exec_unref: a program without one may be
 * evicted (evict.c). */
const struct exec *exec_get(const struct graph *captured, int device, bool fuse, struct err *e);
/* ---- variants.c: graphs with symbols ---- */
/* What runs x with these values of the symbols, which stand behind those of slots: x, or the program that it has for
 * them, which may have to be built.  With a reference.  NULL: *e. */
const struct exec *exec_pick(const struct exec *x, const uint64_t *slot, struct err *e);
/* Why the values have a program of their own, as a line; "": they have not. */
void exec_pick_why(const struct exec *x, const uint64_t *slot, char *text, size_t n);

/* The program of that graph name that ran last, with a reference; NULL: none. */
const struct exec *exec_named(const char *name);

/* A program of a graph after all passes, outside of the cache, for the tuner: with the schedules of `tuned`, which may
 * be NULL.  NULL: *e. */
struct exec *exec_variant(const struct graph *fused, int device, const struct tuned *tuned, struct err *e);
void exec_variant_free(struct exec *x);  /* and the code that nothing else uses.  NULL is allowed */
/* The targets of a program's devices that have a code generator. */
struct program_targets { struct caps *caps; struct target *v; struct target_set set; }; /* one array each, v's owned */
/* The targets of a graph on a device and others, in a chain.  false: *e, one of them does not work. */
bool exec_targets(const struct graph *g, int device, struct program_targets *t, struct err *e);
void program_targets_free(struct program_targets *t);
/* exec_get no longer returns x, but builds a new program for its graph. */
void exec_outdate(const struct exec *x);

/* ---- evict.c: references to programs, and eviction above the memory limit ---- */
#define PROGRAM_DEFAULT_BYTES (INT64_C(256) << 20) /* option program_bytes */
void exec_ref(const struct exec *x);
void exec_unref(const struct exec *x);   /* NULL is allowed, also below */
/* Adds a weak reference; the caller has a reference. */
void exec_weak_ref(const struct exec *x);
void exec_weak_unref(const struct exec *x);
/* makes a reference from a weak one, which stays; false: the program was evicted */
bool exec_try_ref(const struct exec *x);
void cache_limit_changed(void);          /* option program_bytes was set */
int64_t cache_total(void);               /* bytes of all programs and kernels in memory */

/* ---- schedules.c: schedules set by KILN_SCHEDULES (a file) or the API, for programs built later ---- */
/* Replaces all earlier schedules. false: *e, and those stay. */
bool schedules_set(const char *text, size_t len, const char *file, struct err *e);
uint64_t schedules_number(void);         /* changes with each schedules_set and schedules_changed */
void schedules_changed(void);            /* some programs are outdated (exec_outdate) */
/* Sets *s to the section for a graph's kernels, NULL if there is none: the same pointer as long as its text is the
 * same.  It is valid until the process ends. false: *e, KILN_SCHEDULES cannot be read. */
bool schedules_of(const char *graph, bool fuse, const struct sched_section **s, struct err *e);

/* ---- tuned.c: schedules found by measuring, kept on disk ---- */
/* Those for the groups of programs on these devices (by bit), to plan with; NULL: there are none.  The same as long as
 * the process lives. */
const struct tuned *tuned_for(uint64_t devices);

/* ---- tune.c ---- */
/* Option tune: x, which ran before and is to run again, is tuned unless it was.  Gives the program to run in its place,
 * which may be x, with its reference. */
const struct exec *tune_repeated(const struct exec *x);

/* ---- values.c: made-up values: floats from 0 to 1, integers from 0 to 15, bools both ---- */
struct buffer *values_buffer(int device, unsigned dtype, int64_t n, struct err *e); /* NULL: *e */
bool values_write(struct buffer *b, unsigned dtype, int64_t n, struct err *e);
uint64_t values_slot(unsigned dtype);    /* the bits of a small number */

/* ---- background.c: a thread for tasks that no caller waits for ---- */
bool background_run(void (*run)(void *ctx), void *ctx); /* false: no thread can be started */
/* Called by tasks between their steps: waits while a fork is running. false: the process ends, stop. */
bool background_pause(void);

/* ---- disk.c: kernel -> code, kept in a folder between processes ----
 *
 * The folder is KILN_CACHE_DIR, else $XDG_CACHE_HOME/kiln, else $HOME/.cache/kiln; "none": nothing is kept.  Any number
 * of threads and processes may use a folder concurrently.  A kernel that cannot be read or written is compiled: no
 * failure here is an error of the program. */
#define DISK_DEFAULT_BYTES (INT64_C(256) << 20) /* option cache_bytes: above it entries are pruned */
struct disk_key { struct hash128 hash; char *bytes; size_t size; char name[64]; };
/* The key: everything that determines the code of a kernel for a target. false: out of memory; disk_key_free in either
 * case. */
bool disk_key_make(struct disk_key *key, const struct kernel *k, const struct backend *b, const struct caps *caps);
/* The key of an entry that is not a kernel but another result, which `text` determines. */
bool disk_key_text(struct disk_key *key, const char *text, const char *name);
void disk_key_free(struct disk_key *key);
struct disk_code { struct code code; void *file; }; /* code.bytes points into the file; mem_free the file */
bool disk_load(const struct disk_key *key, struct disk_code *out); /* false: missing or damaged */
void disk_store(const struct disk_key *key, const struct code *code);
/* The folder's path; false: the cache is off, *e has the reason. */
bool disk_folder(char *path, size_t size, struct err *e);
bool disk_accepts(struct err *e);        /* tries whether an entry can be written there; false: *e has the reason */

/* used: time of the last use, in ns since 1970 */
struct disk_entry { char file[48], name[64]; int64_t bytes, used; bool temporary; };
struct disk_entries { struct disk_entry *v; uint32_t n, cap; int64_t bytes; };       /* bytes: of all entries */
/* least recently used first; mem_free(out->v) in either case */
bool disk_list(struct disk_entries *out, struct err *e);
/* Checks that an entry is complete and unchanged; false: *e.  Sets its kernel's name. */
bool disk_verify(struct disk_entry *entry, struct err *e);
/* Removes the least recently used entries until at most max bytes are left; *gone: the removed ones. */
bool disk_prune(int64_t max, struct disk_entries *gone, struct err *e);

/* ---- executor.c ---- */
/* Operations and bytes of a kernel between two questions whether its run is cancelled.  Tests make it small. */
extern int64_t executor_piece_work;
/* Runs a program. input[i], state[i]: one buffer each; slot[i]: bits of the runtime scalars. out[i] receives a new
 * reference for each output: to a fresh buffer, or, for an assign that may be in place and whose state buffer is used
 * only by the caller (state_exclusive[i]), to the state's own buffer.  Everything that can fail fails before the first
 * write. */
bool exec_run(const struct exec *x, struct buffer *const *input, struct buffer *const *state,
              const bool *state_exclusive, const uint64_t *slot, struct buffer **out, struct err *e);

/* exec_run command by command; no state is overwritten.  `command` is called when a command of the program (not of a
 * region) has ended; false: *e, the run fails. */
struct frame;
struct exec_watch { bool (*command)(void *ctx, const struct frame *f, struct err *e); void *ctx; };
bool exec_run_watched(const struct exec *x, struct buffer *const *input, struct buffer *const *state,
                      const uint64_t *slot, const struct exec_watch *watch, struct buffer **out, struct err *e);
/* For `command`: what has just run, and bytes of its argument number i copied to the host. */
const struct command *exec_watched_command(const struct frame *f);
bool exec_read_argument(const struct frame *f, uint32_t i, void *to, size_t bytes, struct err *e);

uint64_t exec_runs(void);                /* runs so far in this process */

/* The device of a leaf's buffer (op: OP_input or OP_state) if g's own device is `device`, as for exec_get. */
int exec_leaf_device(const struct graph *g, int device, unsigned op, uint32_t ordinal);

/* ---- reference.c ---- */
/* A copy of a graph on a device, after the first n passes and then those without which the interpreter does not take
 * it.  NULL: *e. */
struct graph *reference_graph(const struct graph *recorded, unsigned device, bool fuse, unsigned n, struct err *e);
/* Interprets a graph on a thread of the pool, in the floating-point environment that kernels have; quiet: kl_print
 * prints nothing.  false: *e. */
bool reference_run(const struct graph *g, const struct bind *b, bool quiet, struct err *e);

/* ---- check.c ---- */
/* exec_run for a recorded graph.  With option check_nan an output with a NaN is an error that names the node and the
 * line that made it; no state has been written then. */
bool exec_run_checked(const struct exec *x, const struct graph *recorded, struct buffer *const *input,
                      struct buffer *const *state,
                      const bool *state_exclusive, const uint64_t *slot, struct buffer **out, struct err *e);

#endif
