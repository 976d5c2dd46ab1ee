/* Devices, buffers, threads, the program cache and the executor: one internal header for the folder. */
#ifndef KILN_RUNTIME_H
#define KILN_RUNTIME_H
#include "codegen/codegen.h"
#include "ir/ir.h"
#include "passes/passes.h"
#include <stdatomic.h>

/* ---- device.c ---- */
/* Numbers of devices: those of the host's memory, meta, which has none and computes nothing, then DEVICES_A_KIND for
 * each kind that has drivers. */
enum device_number { DEVICE_REF, DEVICE_CPU, DEVICE_HOSTS, DEVICE_META = 7, DEVICE_CUDA = 8, DEVICE_HIP = 16,
                     DEVICE_VULKAN = 24,
                     DEVICE_PLUGIN = 32, DEVICE_END = 56 }; /* plug-ins: three kinds (plugin.h) */
enum { DEVICES_A_KIND = 8 };
_Static_assert(DEVICE_END <= MAX_DEVICES, "a graph's nodes name every device");
/* Number of a device by name ("ref", "cpu", "vulkan", "vulkan:1"), -1 with the reason in *e if unknown, not built or
 * not working. */
int device_find(const char *name, struct err *e);
/* KILN_DEVICE if set, else the first of cuda, hip, cpu and ref that works; *why (never NULL): why those before it do
 * not. */
int device_default(const char **why, struct err *e);
const char *device_name(int device);
/* Kinds are enum kl_device_kind. */
const char *device_kind_name(unsigned kind); /* "unknown" for what is none */
unsigned device_kind(int device);
int device_number(unsigned kind, unsigned index, struct err *e); /* as device_find, by kind and number in it */
unsigned device_kind_count(unsigned kind, struct err *e); /* how many there are; 0: *e says why */
bool device_works(unsigned device, struct err *e); /* false: *e says why not */
/* The code generator of a device that device_find accepted; NULL for ref.  *caps (may be NULL): its target. */
const struct backend *device_backend(int device, struct caps *caps);
/* The dtypes a device has, by bit; of one that works. */
uint32_t device_dtypes(int device);
/* A line for each device of each kind: what it is, or why there is none. */
void device_list(void (*line)(void *ctx, const char *name, bool works, const char *text), void *ctx);

/* ---- cpu.c ---- */
/* The code generator of cpu: caps, version and compile, where the last alone needs it opened.  NULL: it does not work,
 * *e.  Once. */
const struct backend *cpu_generator(struct err *e);

/* ---- plugin.c: devices that a shared object brings ---- */
bool plugin_load(const char *path, struct err *e);   /* kl_plugin_load */

/* ---- accelerator.c: devices that have memory of their own, through their drivers (driver.h) ---- */
struct accelerator;                      /* one that was opened */
bool device_is_host(int device);         /* its memory is the host's */
struct accelerator *accelerator_get(int device); /* NULL: the device's memory is the host's */
bool accelerator_open(int device, struct err *e); /* once; then what came of it */
unsigned accelerator_count(int device, struct err *e); /* of its kind; 0: *e says why */
bool accelerator_finish(struct accelerator *a, struct err *e); /* waits for all that it was given */
const struct caps *accelerator_caps(const struct accelerator *a);
uint32_t accelerator_dtypes(const struct accelerator *a); /* by bit */
const struct driver *accelerator_driver(const struct accelerator *a);
struct driver_device *accelerator_device(const struct accelerator *a);
/* One thread at a time works with a device; the same may lock it again.  Several are locked in the order of their
 * numbers. */
void accelerator_lock(struct accelerator *a);
void accelerator_unlock(struct accelerator *a);
/* A kernel's code on a device. */
struct device_kernel {
    struct driver_kernel *kernel;
    bool has_work;                       /* scratch that is an argument */
    uint32_t nbuf;
    uint8_t local[];                    /* per lbuf: no argument */
};
struct device_kernel *accelerator_load(struct accelerator *a, const struct kernel *k, const struct code *code,
                                       struct err *e);
void accelerator_unload(struct accelerator *a, struct device_kernel *k);
/* Blocks of a launch over so many iterations. */
uint32_t accelerator_blocks(const struct device_kernel *k, int64_t extent);

/* ---- buffer.c: memory of a device, shared by reference count ---- */
struct buffer {
    atomic_uint refs;
    uint32_t device;
    size_t bytes;
    void *data;              /* 64-byte aligned, 64 readable bytes past the end; wrapped memory: as it came; of a device
                                that is not the host: its address there */
    void (*release)(void *); /* borrowed memory (kl_wrap): called when the last reference goes; else NULL */
    void *release_ctx;
};
struct buffer *buffer_new(int device, size_t bytes, struct err *e);    /* not zeroed; kept in a pool between uses */
/* On a device that is not the host: copied, and released at once. */
struct buffer *buffer_wrap(int device, void *data, size_t bytes, void (*release)(void *), void *ctx, struct err *e);
struct buffer *buffer_ref(struct buffer *b);
void buffer_unref(struct buffer *b);     /* NULL is fine */
/* Bytes between the host and a buffer of any device, in order with what the device does. */
bool buffer_write(struct buffer *b, const void *data, size_t bytes, struct err *e);
bool buffer_read(const struct buffer *b, void *data, size_t bytes, struct err *e);
bool buffer_exclusive(const struct buffer *b);
void buffer_trim(void);                  /* gives pooled memory back to the system */
struct buffer_stats { size_t live, peak, pooled, limit; }; /* bytes; limit 0: none */
struct buffer_stats buffer_stats(int device);
void buffer_limit(int device, size_t bytes);
bool buffer_limited(void);               /* has a device ever had a limit? */
size_t buffer_charge(size_t bytes);      /* what a buffer of so many bytes counts for */
/* Is there room for buffers of that charge in all?  false: *e, `what` needs it. */
bool buffer_room(int device, size_t charge, const char *what, struct err *e);

/* ---- pool.c: the thread pool; the caller is worker 0 ----
 * Calls fn on contiguous shares of 0..extent, each worth at least `grain` iterations (0: one share, in the
 * caller).  Any thread may call, also from inside a job; only one job at a time is shared out, the others run
 * whole in their callers.  fn runs in the default floating-point environment, restored afterwards. */
#define POOL_MAX_THREADS 1024
typedef void pool_fn(void *ctx, int64_t begin, int64_t end, unsigned worker);
void pool_run(pool_fn *fn, void *ctx, int64_t extent, int64_t grain); /* returns when all of 0..extent is done */
/* The same with at most max_workers workers, for callers with a fixed number of per-worker places. */
void pool_run_max(pool_fn *fn, void *ctx, int64_t extent, int64_t grain, unsigned max_workers);
/* Several ranges, without a barrier between them: a worker goes from its share of one to its share of the next.  Ranges
 * of equal extent and grain are shared out alike, and one of grain 0 is all worker 0's. */
struct pool_part { int64_t extent, grain; };
typedef void pool_part_fn(void *ctx, uint32_t part, int64_t begin, int64_t end, unsigned worker);
void pool_run_parts(pool_part_fn *fn, void *ctx, const struct pool_part *part, uint32_t n, unsigned max_workers);
unsigned pool_threads_parse(const char *text); /* 1 to POOL_MAX_THREADS; 0: NULL, or no such number */
unsigned pool_threads(void);             /* KILN_THREADS or the option, else the processors this process may use */
void pool_set_threads(unsigned n);       /* 0: the default again */
void pool_use(const kl_pool *host);      /* jobs run on the host's threads; NULL: on the pool's own again */

/* ---- cache.c: graph -> program -> code ---- */
struct exec {                            /* but for the atomic fields immutable once made; shared by threads */
    struct hash128 key;
    struct graph *captured;              /* compared on a hit */
    struct program *program;
    struct code_entry **code;            /* what is loaded of its kernels, once for each device that runs one */
    uint32_t ncode;
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

/* ---- fork.c: locks in order ---- */
extern const struct fork_part accelerators_fork, background_fork, buffer_fork, cache_fork, log_fork, schedules_fork,
    timeline_fork;                       /* each beside the lock that it is about */
void fork_watch(void);                   /* before a lock of Kiln's is first taken */
void fork_hold(void);                    /* no fork until the code generator is done */
void fork_release(void);

/* ---- log.c: messages to the embedder's function ---- */
void log_use(kl_log_fn *fn, void *ctx, kl_log_level least);
bool log_wants(kl_log_level level);
void log_message(kl_log_level level, const char *message);
void log_put(kl_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

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

/* ---- profile.c: where the time of executions goes ---- */
struct profile_row {                     /* a kernel of a program, all its copies, its custom ops, or the interpreter */
    const struct exec *x;
    uint32_t kernel;                     /* its number; then enum profile_other */
    uint64_t calls;
    double seconds;
    int64_t bytes;                       /* PROFILE_COPY: read and written by all calls */
};
#define PROFILE_OTHERS 3
enum profile_other { PROFILE_COPY = INT32_MAX - PROFILE_OTHERS, PROFILE_CUSTOM, PROFILE_INTERP };
struct profile {
    double (*clock)(void);               /* seconds; read on the thread that executes */
    struct profile_row *row;
    uint32_t n, cap;
};
/* Adds up what this thread executes from here on in *p; NULL: no more. */
void profile_here(struct profile *p);
/* This thread's profile, NULL if none. */
struct profile *profile_current(void);
/* Where x's rows begin: one a kernel, then the others'.  The profile keeps x.  NULL: out of memory. */
struct profile_row *profile_rows(struct profile *p, const struct exec *x);
void profile_free(struct profile *p);    /* its rows, and the programs that it keeps */

/* ---- timeline.c: what happens when, on every thread of the process, while it is on ----
 * A span is something with a beginning and an end.  Of each kind the count and the time are added up, of each command
 * of a program too; and the first EVENTS_MAX spans are kept one by one. */
/* commands; SHARE: a worker's of a kernel */
enum span { SPAN_KERNEL, SPAN_SHARE, SPAN_COPY, SPAN_CUSTOM, SPAN_INTERP, SPAN_REGION,
            SPAN_RECORD, SPAN_STEP, SPAN_READ, SPAN_PASSES, SPAN_PLAN, SPAN_COMPILE, SPAN_LOAD, SPANS };
enum { EVENTS_MAX = 1 << 20 };
struct event {
    int64_t start, ns;                   /* of measure's clock, CLOCK_MONOTONIC */
    const char *name;                    /* lives as long as the process: a program that was timed is not evicted */
    int64_t bytes, flops;                /* 0: not known */
    enum span kind;
};
struct times {                           /* of a program, added up */
    const struct exec *x;
    struct times *next;
    struct command_time { atomic_uint_fast64_t calls, ns; } row[]; /* by command.row */
};
struct thread_events { struct event *v; uint32_t n, cap; long tid; char name[16]; };
struct timeline {
    int64_t start, end;
    struct thread_events *thread;
    uint32_t n, cap;
    uint64_t dropped;                    /* spans that were not kept one by one */
    struct { uint64_t calls, ns; } total[SPANS];
};
extern atomic_bool timeline_is_on;
int64_t timeline_now(void);              /* ns, never 0 */
/* When a span begins, 0 while nothing is recorded. */
static inline int64_t span_begin(void)
{
    return atomic_load_explicit(&timeline_is_on, memory_order_relaxed) ? timeline_now() : 0;
}
/* Ends it; nothing if it began at 0.  The name of a command's lives as long as the process, others are copied. */
void span_end(enum span kind, const char *name, int64_t began);
void span_end_work(enum span kind, const char *name, int64_t began, int64_t bytes, int64_t flops);
/* Where the times of x's commands are added up; NULL: out of memory. */
struct times *exec_times(const struct exec *x);
/* By the API or, for_file, by KILN_PROFILE.  false: *e, it is on already. */
bool timeline_start(bool for_file, struct err *e);
/* Who started it hands over what was recorded; the times of programs stay until the next start.  false: *e. */
bool timeline_stop(bool for_file, struct timeline *out, struct err *e);
void timeline_free(struct timeline *t);
/* All programs that have times: *at is NULL at first, NULL is the end. */
const struct times *times_next(const struct times *at);
/* Starts it if KILN_PROFILE names a file, which is written when the process exits. */
void timeline_from_environment(void);
/* ---- timeline_json.c: as trace events, which Perfetto and chrome://tracing show ---- */
bool timeline_json(const struct timeline *t, const char *path, struct err *e);
const char *span_name(enum span kind);

/* ---- environment.c ---- */
/* Says what is wrong with the KILN_ variables of the environment, a message each. */
void environment_check(void (*say)(void *ctx, const char *text), void *ctx);
void environment_log(void);              /* the same to the log, once, if it takes warnings */
bool environment_switch(const char *name, bool otherwise); /* a variable that may be 0 or 1; otherwise: for all else */
/* is it one of the words with commas between? list may be NULL */
bool word_listed(const char *list, const char *word);

/* ---- counters.c: the rows of counters.def ---- */
struct counters {
#define COUNTER(name, text) atomic_uint_fast64_t name;
#include "counters.def"
};
extern struct counters counters;

/* ---- dump/: what a graph becomes on its way to machine code, for people ---- */
enum dump_form { DUMP_TEXT, DUMP_DOT, DUMP_HTML };
struct dump_request {
    const char *stage;      /* a row of stages.def; a page has all of them */
    enum dump_form form;
    int device;             /* where nodes on the graph's first device go; -1: they stay */
    bool fuse;
    const char *target;     /* kernels for a GPU in this language; NULL: for the devices */
    const struct times *times; /* measured times of the program's commands, for a page; NULL: none */
};
bool dump_is_stage(const char *stage);        /* a row of stages.def */
const char *dump_stage_names(void);           /* all of them, with spaces between */
bool dump_form_of(const char *path, enum dump_form *form); /* what its ending asks for; false: text */
/* Takes a graph, which stays as it is, through the passes and writes a stage.  Of pictures (Graphviz) there are those
 * of graphs and of stage scheduled. */
bool dump_write(const struct graph *captured, const struct dump_request *r, FILE *f, struct err *e);
bool dump_to_file(const struct graph *captured, const struct dump_request *r, const char *path, struct err *e);
/* KILN_DUMP=stage,... KILN_DUMP_DIR=dir, and one request from the API. */
struct dump;
/* What is to be written for a program of this trace name; NULL: nothing.  Takes the request of dump_next_to. */
struct dump *dump_begin(const char *trace);
void dump_graph(void *dump, const char *stage, const struct graph *g); /* pass_options.dump */
/* b may be NULL: no code stages. */
void dump_program(struct dump *d, const struct program *p, const struct backend *b, bool fuse);
void dump_end(struct dump *d);
/* Directory for every stage of the next program built on this thread, as <trace>.<stage>.<ext>; NULL: none. */
void dump_next_to(const char *dir);

/* ---- gpu.c: kernels in the languages of GPUs: "cuda" (also NULL), "hip" or "glsl" ---- */
bool gpu_caps(const char *target, struct caps *out, struct err *e); /* to plan programs for such a GPU */
/* Prints a stage of the kernels: scheduled, source or asm. */
bool gpu_print(const struct kernel *const *k, uint32_t n, const char *target, const char *stage, FILE *f,
               struct err *e);

/* ---- options.c ---- */
bool option_fuse(void);                  /* KILN_FUSE or the option, default true */
int64_t option_cache_bytes(void);        /* 0: nothing is kept on disk */
int64_t option_program_bytes(void);      /* what programs and kernels in memory may take */
void option_fuse_here(int fuse);         /* for this thread 0 or 1 whatever the option; -1: no longer */
enum { CHECK_NAN = 1, CHECK_INFINITIES };
int option_check_nan(void);              /* 0, or what no output may have: KILN_CHECK or the option */
bool option_verify(void);                /* KILN_CHECK: graphs and plans are verified in release builds, too */
bool option_perf_map(void);              /* KILN_PERF or the option */
bool option_background(void);            /* fused kernels are compiled in the background; not where fuse is given */
bool option_join(void);                  /* kernels that need no barrier between them have none */
/* By their names in options.def. */
bool option_set(const char *name, int64_t value, struct err *e);
bool option_get(const char *name, int64_t *value, struct err *e);

#endif
