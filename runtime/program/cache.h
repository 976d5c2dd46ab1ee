/* Internal header of the program cache: its entries and their lock. */
#ifndef KILN_CACHE_H
#define KILN_CACHE_H
#include "codegen/codegen.h"
#include "runtime/runtime.h"
#include <pthread.h>

enum { CACHE_BUCKETS = 1024 };

enum entry_state { UNFINISHED, READY, IN_BACKGROUND, FAILED };

/* A program. exec is first, so a pointer to it is a pointer to the entry. */
struct entry {
    struct exec exec;
    /* compared on a look-up: the builder's graph while unfinished, then `own`, then exec.captured */
    const struct graph *graph;
    enum entry_state state;        /* the last two: it has a fallback program */
    /* uses parts of the unfused program; the entry has a reference to that until READY */
    struct exec *placeholder;
    struct graph *task_graph;      /* the graph that the task compiles */
    struct dump *dump;             /* the dump that the task writes; or NULL */
    bool outdated;                 /* its kernels have other schedules by now (exec_outdate) */
    uint64_t made;                 /* exec_runs() when it was READY */
    int64_t bytes;                 /* bytes that it uses without its kernels' code, set when READY */
    struct entry *next;            /* of its bucket */
    struct entry *older, **older_at;       /* in cache_newest, once READY; *older_at points to this entry */
    struct entry *same_name_next, **same_name_link; /* likewise in cache_named */
};

struct code_entry {
    struct hash128 key;
    const struct kernel *kernel;   /* compared on a look-up: the builder's kernel while unfinished, then `copy` */
    struct kernel *copy;
    int device;                    /* one with a driver, or DEVICE_CPU */
    struct loaded loaded;          /* on the CPU */
    struct device_kernel *on;      /* on a device with a driver */
    struct jit_code_entry *symbols;/* its entry for debuggers; or NULL */
    int64_t bytes;                 /* bytes that it uses */
    uint32_t users;                /* programs that run it, and threads that are about to make one */
    bool ready;
    struct code_entry *next;
};

extern pthread_mutex_t cache_lock;     /* guards all tables, user counts and all entries that are not READY */
extern pthread_cond_t cache_changed;
extern struct entry *cache_programs[CACHE_BUCKETS];
/* READY programs, newest first: all, and by graph name */
extern struct entry *cache_newest, *cache_named[CACHE_BUCKETS];
extern struct code_entry *cache_codes[CACHE_BUCKETS];
extern int64_t cache_bytes;            /* bytes of all entries; needs the lock */

static inline bool same_key(struct hash128 a, struct hash128 b) { return a.lo == b.lo && a.hi == b.hi; }
static inline void count_one(atomic_uint_fast64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* ---- cache.c ---- */
/* frees its program's parts; exec_weak_unref frees the entry itself */
void program_entry_free(struct entry *t);

void program_entry_unlink(struct entry *t);    /* removes a READY entry from all tables; needs the lock */

/* ---- variants.c ---- */
/* limit: of a graph that has a program for each side of it, number 0: for each value.  NULL: no memory */
struct variants *variants_new(const char *why, const struct size_limit *limit);
void variants_free(struct variants *s);         /* NULL is fine */

/* ---- code.c ---- */
enum { MODULE_KERNELS = 8 };           /* the most that are compiled at once */
/* The code of n kernels, at most MODULE_KERNELS, on a device: out[i], with a new user counted.  Kernels that are found
 * nowhere are compiled together, if the device's code generator can do this.  keep: new code is also stored on disk.
 * Returns n, or the number of a kernel that failed with *e; others may then be NULL, too. */
uint32_t code_get(const struct kernel *const *k, uint32_t n, int device, bool keep, struct code_entry **out,
                  struct err *e);
/* Moves an entry, or all without users, from the table to a list.  Needs the lock. */
void code_take(struct code_entry *c, struct code_entry **list);
void code_take_unused(struct code_entry **list);
void code_free(struct code_entry *list);

/* ---- evict.c ---- */
void cache_trim(void);                 /* evicts programs if they exceed the limit */
/* Was a program of this key evicted?  Needs the lock. */
bool cache_was_evicted(const struct exec *x);
void cache_rebuilt(const struct exec *x);          /* needs the lock */

#endif
