/* Programs: from a graph to code, in memory and on disk, and running them. */
#ifndef KILN_PROGRAM_H
#define KILN_PROGRAM_H
#include "runtime/buffer.h"
#include "runtime/pool.h"
#include "runtime/device/devices.h"

/* ---- cache.c: graph -> program -> code ---- */
struct exec {                            /* but for the atomic fields immutable once made; shared by threads */
    struct hash128 key;
    struct graph *captured;              /* compared on a hit */
    struct program *program;             /* NULL: it has variants */
    struct variants *variants;           /* of a graph with symbols that has a program for each value; else NULL */
    struct code_entry **code;            /* what is loaded of its kernels, once for each device that runs one */
    uint32_t ncode;
    val *active;                         /* per program kernel: kernel_active; NULL: the program has no symbols */
    kernel_fn **fn;                      /* per program kernel; NULL: only other devices than the CPU run it */
    /* the same for each device that has a driver and runs kernels, else NULL */
    const struct device_kernel **on[DEVICE_END];
    int64_t work_bytes;                  /* scratch that a launch on such a device needs */
    uint64_t interpreted;                /* devices without a code generator, by bit */
    uint64_t accelerated;                /* those with a driver */
    int device;
    bool fuse;
    _Atomic(struct times *) times;       /* of its commands, once something was timed; NULL before */
    const struct sched_section *schedules; /* handed in for its kernels, or NULL */
    char *miss;                          /* how its graph differed from all that were known; NULL: out of memory */
    _Atomic(uint64_t) ran;               /* number of the last run, of all in this process; 0: none yet */
    /* compiled in the background, this one being unfused: runs in its place; or NULL */
    _Atomic(const struct exec *) newer;
    /* of one that waits for `newer`: the unfused program whose parts it has; else NULL */
    const struct exec *base;
    /* the cache's own and others'; 0: evicted, only the memory of this struct is left */
    atomic_uint refs;
    atomic_uint weak_refs;               /* pointers that do not keep the program, and one while refs is not 0 */
};
/* What runs now where x was got. */
static inline const struct exec *exec_latest(const struct exec *x)
{
    const struct exec *newer = atomic_load_explicit(&((struct exec *)x)->newer, memory_order_acquire);
    return newer ? newer : x;
}
/* The compiled form of a recorded graph, from the cache or made now.  Nodes on the graph's first device (graph_device)
 * run on `device`, the others where they are.  NULL: *e.  With a reference, for exec_unref: a program without one may
 * be evicted (evict.c). */
const struct exec *exec_get(const struct graph *captured, int device, bool fuse, struct err *e);
/* ---- variants.c: graphs with symbols ---- */
/* What runs x with these values of the symbols, which stand behind those of slots: x, or the program that it has for
 * them, which may have to be built.  With a reference.  NULL: *e. */
const struct exec *exec_pick(const struct exec *x, const uint64_t *slot, struct err *e);
/* Why the values have a program of their own, as a line; "": they have not. */
void exec_pick_why(const struct exec *x, const uint64_t *slot, char *text, size_t n);

/* Of a graph of this name, the last that ran, with a reference; NULL: none. */
const struct exec *exec_named(const char *name);

/* ---- evict.c: who keeps a program, and which go if they take too much memory ---- */
#define PROGRAM_DEFAULT_BYTES (INT64_C(256) << 20) /* option program_bytes */
void exec_ref(const struct exec *x);
void exec_unref(const struct exec *x);   /* NULL is fine, also below */
/* A pointer that outlives the program: taken by one who has a reference. */
void exec_weak_ref(const struct exec *x);
void exec_weak_unref(const struct exec *x);
bool exec_try_ref(const struct exec *x); /* makes a weak reference a real one too; false: it was evicted */
void cache_limit_changed(void);          /* option program_bytes was set */
int64_t cache_total(void);               /* what programs and kernels take now, in bytes */

/* ---- schedules.c: schedules handed in, by KILN_SCHEDULES (a file) or the API, for programs built from then on ---- */
/* Takes the place of all that were handed in before.  false: *e, and those stay. */
bool schedules_set(const char *text, size_t len, const char *file, struct err *e);
uint64_t schedules_number(void);         /* another after each schedules_set */
/* The section of a graph's kernels in *s, NULL if there is none: the same pointer as long as its text is the same.  It
 * lives as long as the process.  false: *e, KILN_SCHEDULES cannot be read. */
bool schedules_of(const char *graph, bool fuse, const struct sched_section **s, struct err *e);

/* ---- background.c: a thread for tasks that no caller waits for ---- */
bool background_run(void (*run)(void *ctx), void *ctx); /* false: it cannot be run */
/* For tasks, between their steps: lets forks go first.  false: the process ends, give up. */
bool background_pause(void);

/* ---- disk.c: kernel -> code, kept in a folder between processes ----
 * KILN_CACHE_DIR, else $XDG_CACHE_HOME/kiln, else $HOME/.cache/kiln; "none": nothing is kept.  Any number of threads
 * and processes may use a folder at once.  What cannot be kept or read is compiled: no failure here is an error of
 * the program. */
#define DISK_DEFAULT_BYTES (INT64_C(256) << 20) /* option cache_bytes: more than that is pruned */
struct disk_key { struct hash128 hash; char *bytes; size_t size; char name[64]; };
/* Everything that decides the code of a kernel.  false: out of memory; disk_key_free in either case. */
bool disk_key_make(struct disk_key *key, const struct kernel *k, const struct backend *b);
/* another target's */
bool disk_key_make_for(struct disk_key *key, const struct kernel *k, const struct backend *b, const struct caps *caps);
/* Of an entry that is no kernel but something that was found out, and `text` decides. */
bool disk_key_text(struct disk_key *key, const char *text, const char *name);
void disk_key_free(struct disk_key *key);
struct disk_code { struct code code; void *file; }; /* code.bytes lies in the file; mem_free the file */
bool disk_load(const struct disk_key *key, struct disk_code *out); /* false: not there, or not whole */
void disk_store(const struct disk_key *key, const struct code *code);
/* The folder's path; false: nothing is kept, for the reason in *e. */
bool disk_folder(char *path, size_t size, struct err *e);
bool disk_accepts(struct err *e);        /* can an entry be written there?  Tries it; false: *e says why not */

/* used: when last, in ns since 1970 */
struct disk_entry { char file[48], name[64]; int64_t bytes, used; bool temporary; };
struct disk_entries { struct disk_entry *v; uint32_t n, cap; int64_t bytes; };       /* bytes: of all entries */
/* least recently used first; mem_free(out->v) in either case */
bool disk_list(struct disk_entries *out, struct err *e);
/* Whether an entry is whole, its bytes as they were written; false: *e.  Fills in its kernel's name. */
bool disk_verify(struct disk_entry *entry, struct err *e);
/* Removes the least recently used entries until at most max bytes are left; *gone: what it removed. */
bool disk_prune(int64_t max, struct disk_entries *gone, struct err *e);

/* ---- executor.c ---- */
/* Runs a program.  input[i], state[i]: one buffer each; slot[i]: bits.  out[i] receives a new reference per
 * output: a fresh buffer, or, for an assign that may be in place and whose state buffer is exclusive to the
 * caller (state_exclusive[i]), the state's own buffer.  Everything that can fail fails before the first write. */
bool exec_run(const struct exec *x, struct buffer *const *input, struct buffer *const *state,
              const bool *state_exclusive, const uint64_t *slot, struct buffer **out, struct err *e);

uint64_t exec_runs(void);                /* runs so far in this process */

/* The device of a leaf's buffer (op: OP_input or OP_state) where g's own device is `device`, as for exec_get. */
int exec_leaf_device(const struct graph *g, int device, unsigned op, uint32_t ordinal);

/* ---- check.c ---- */
/* exec_run of what was recorded.  With option check_nan an output with a NaN is an error, which names the node and the
 * line that made it; no state has been written then. */
bool exec_run_checked(const struct exec *x, const struct graph *recorded, struct buffer *const *input,
                      struct buffer *const *state,
                      const bool *state_exclusive, const uint64_t *slot, struct buffer **out, struct err *e);

#endif
