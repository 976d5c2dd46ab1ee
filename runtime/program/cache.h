/* What the parts of the program cache share: its entries and their lock. */
#ifndef KILN_CACHE_H
#define KILN_CACHE_H
#include "codegen/codegen.h"
#include "runtime/runtime.h"
#include <pthread.h>

enum { CACHE_BUCKETS = 1024 };

enum entry_state { UNFINISHED, READY, IN_BACKGROUND, FAILED };

/* A program.  exec stands first: a pointer to it is one to the entry. */
struct entry {
    struct exec exec;
    const struct graph *graph;     /* compared: the builder's own while unfinished, `own`, then exec.captured */
    enum entry_state state;        /* the last two: there is a stand-in */
    /* borrows the unfused program's parts; the entry has a reference to it until READY */
    struct exec *stand_in;
    struct graph *own;             /* what the task compiles */
    struct dump *dump;             /* what the task writes; or NULL */
    uint64_t made;                 /* exec_runs() when it was READY */
    int64_t bytes;                 /* what it takes without its kernels' code, once READY */
    struct entry *next;            /* of its bucket */
    struct entry *older, **older_at;       /* once READY: in cache_newest; *older_at is this entry */
    struct entry *namesake, **namesake_at; /* likewise in cache_named */
};

struct code_entry {
    struct hash128 key;
    const struct kernel *kernel;   /* compared: the builder's own while unfinished, then `copy` */
    struct kernel *copy;
    int device;                    /* one with a driver, or DEVICE_CPU */
    struct loaded loaded;          /* on the CPU */
    struct device_kernel *on;      /* elsewhere */
    struct jit_code_entry *symbols;/* what debuggers know of it; or NULL */
    int64_t bytes;                 /* what it takes */
    uint32_t users;                /* programs that run it, and who is about to make one */
    bool ready;
    struct code_entry *next;
};

extern pthread_mutex_t cache_lock;     /* guards all tables, counts of users and all entries not READY */
extern pthread_cond_t cache_changed;
extern struct entry *cache_programs[CACHE_BUCKETS];
/* programs that are READY, the newest first: all, by graph's name */
extern struct entry *cache_newest, *cache_named[CACHE_BUCKETS];
extern struct code_entry *cache_codes[CACHE_BUCKETS];
extern int64_t cache_bytes;            /* what all entries take; needs the lock */

static inline bool same_key(struct hash128 a, struct hash128 b) { return a.lo == b.lo && a.hi == b.hi; }
static inline void count_one(atomic_uint_fast64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* ---- cache.c ---- */
/* its program's parts, but not the memory of the entry: exec_weak_unref does that */
void program_entry_free(struct entry *t);

void program_entry_unlink(struct entry *t);    /* takes one that is READY out of all tables; needs the lock */

/* ---- variants.c ---- */
struct variants *variants_new(const char *why); /* NULL: no memory */
void variants_free(struct variants *s);         /* NULL is fine */

/* ---- code.c ---- */
/* The code of k on a device, with a user more; NULL: *e. */
struct code_entry *code_get(const struct kernel *k, int device, struct err *e);
/* Takes an entry out of the table, or all without users, into a list.  Needs the lock. */
void code_take(struct code_entry *c, struct code_entry **list);
void code_take_unused(struct code_entry **list);
void code_free(struct code_entry *list);

/* ---- evict.c ---- */
void cache_trim(void);                 /* evicts programs if all take too much */
/* Was a program of this key evicted?  Needs the lock. */
bool cache_was_evicted(const struct exec *x);
void cache_rebuilt(const struct exec *x);          /* needs the lock */

#endif
