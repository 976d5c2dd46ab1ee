/* References to programs, and eviction: memory of programs and kernels is kept below option program_bytes.
 *
 * The cache has one reference to each program in its tables; each runner or owner of a program has another.  A program
 * with only the cache's reference may be evicted: the count changes from 1 to 0 atomically, so no thread can take a
 * reference meanwhile, and the program's parts are freed.  The memory of its entry is kept until the last weak
 * reference is dropped. exec_try_ref makes a reference from a weak one; it fails when the count is 0. */
#include "cache.h"
#include <stdlib.h>
#include <string.h>

enum { KEYS = 4096 };

int64_t cache_bytes;                  /* guarded by cache_lock, as are the two below */
static int64_t tried;                 /* bytes above the limit that the last pass could not free; else 0 */
static uint64_t evicted_keys[KEYS];   /* the low bits of evicted programs' keys; 0: none */

/* ---- references ---- */

void exec_ref(const struct exec *x)
{
    atomic_fetch_add_explicit(&((struct exec *)x)->refs, 1, memory_order_relaxed);
}

bool exec_try_ref(const struct exec *x)
{
    atomic_uint *refs = &((struct exec *)x)->refs;
    unsigned n = atomic_load_explicit(refs, memory_order_relaxed);
    while (n && !atomic_compare_exchange_weak_explicit(refs, &n, n + 1, memory_order_acquire,
                                                       memory_order_relaxed)) continue;
    return n;
}

void exec_unref(const struct exec *shared)
{
    struct exec *x = (struct exec *)shared;
    if (!x || atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) > 1) return;
    /* of a fallback program: the cache keeps its reference to other programs until it evicts them */
    exec_unref(atomic_load(&x->newer));
    exec_unref(x->base);
    mem_free(x->miss);
    exec_weak_unref(x);
}

void exec_weak_ref(const struct exec *x)
{
    atomic_fetch_add_explicit(&((struct exec *)x)->weak_refs, 1, memory_order_relaxed);
}

void exec_weak_unref(const struct exec *shared)
{
    struct exec *x = (struct exec *)shared;
    if (x && atomic_fetch_sub_explicit(&x->weak_refs, 1, memory_order_acq_rel) == 1) mem_free(x);
}

/* ---- keys of evicted programs, for the message about a miss ---- */

static uint64_t key_of(const struct exec *x)
{
    return (x->key.lo ^ ((uint64_t)x->device << 1 | x->fuse) << 12) | 1;
}

bool cache_was_evicted(const struct exec *x) { return evicted_keys[key_of(x) % KEYS] == key_of(x); }

void cache_rebuilt(const struct exec *x)
{
    if (cache_was_evicted(x)) evicted_keys[key_of(x) % KEYS] = 0;
}

/* ---- eviction ---- */

static uint64_t last_use(const struct entry *t)
{
    uint64_t ran = atomic_load_explicit(&((struct entry *)t)->exec.ran, memory_order_relaxed);
    return ran > t->made ? ran : t->made;
}

struct evict_candidate { struct entry *entry; uint64_t used; };

static int by_use(const void *a, const void *b)
{
    uint64_t x = ((const struct evict_candidate *)a)->used, y = ((const struct evict_candidate *)b)->used;
    return x < y ? -1 : x > y;
}

/* A program that a profile has timed is kept, because the profile uses its names. */
static bool is_evictable(struct entry *t)
{
    return atomic_load(&t->exec.refs) == 1 && !atomic_load(&t->exec.times);
}

/* Removes a program from the cache; false: it is in use. */
static bool take_entry(struct entry *t)
{
    unsigned one = 1;
    if (!atomic_compare_exchange_strong(&t->exec.refs, &one, 0)) return false;
    if (atomic_load(&t->exec.times)) { /* it ran since it was checked */
        atomic_store(&t->exec.refs, 1);
        return false;
    }
    program_entry_unlink(t);
    evicted_keys[key_of(&t->exec) % KEYS] = key_of(&t->exec);
    cache_bytes -= t->bytes;
    return true;
}

/* Removes the code that only this program used. */
static void take_codes(struct exec *x, struct code_entry **code)
{
    for (uint32_t i = 0; i < x->ncode; i++)
        if (!--x->code[i]->users) code_take(x->code[i], code);
    x->ncode = 0;
}

/* The programs that may be evicted, least recently used first; NULL: none, or out of memory.  Needs the lock. */
static struct evict_candidate *evictable_programs(uint32_t *n)
{
    uint32_t cap = 0;
    struct evict_candidate *v = NULL;
    *n = 0;
    for (struct entry *t = cache_newest; t; t = t->older) {
        if (!is_evictable(t)) continue;
        if (!mem_reserve(&v, &cap, *n + 1, sizeof *v)) break;
        v[(*n)++] = (struct evict_candidate){t, last_use(t)};
    }
    if (*n) qsort(v, *n, sizeof *v, by_use);
    return v;
}

/* Evicts until at most `most` bytes are left.  Programs are added to *gone, linked by `next`, unused code to *code. */
static void evict_until(int64_t max, struct entry **gone, struct code_entry **code)
{
    uint32_t n = 0;
    code_take_unused(code); /* code left by failed builds */
    struct evict_candidate *v = cache_bytes > max ? evictable_programs(&n) : NULL;
    for (uint32_t i = 0; i < n && cache_bytes > max; i++) {
        struct entry *t = v[i].entry;
        if (!take_entry(t)) continue;
        take_codes(&t->exec, code);
        t->next = *gone;
        *gone = t;
    }
    tried = cache_bytes > max ? cache_bytes : 0;
    mem_free(v);
}

void cache_trim(void)
{
    int64_t limit = option_program_bytes();
    struct entry *gone = NULL;
    struct code_entry *code = NULL;
    pthread_mutex_lock(&cache_lock);
    /* Evicts an eighth more than necessary, because each pass scans all programs; where little can be evicted, a pass
     * is not repeated at each build. */
    if (cache_bytes > limit && cache_bytes > tried + tried / 8) evict_until(limit - limit / 8, &gone, &code);
    pthread_mutex_unlock(&cache_lock);
    for (struct entry *next; gone; gone = next) {
        next = gone->next;
        program_entry_free(gone);
        count_one(&counters.programs_evicted);
    }
    code_free(code);
}

void cache_limit_changed(void)
{
    enum { LOWERED_SHARE = 16 }; /* a sixteenth as much for lowered kernels */
    lower_memo_limit((size_t)option_program_bytes() / LOWERED_SHARE);
    pthread_mutex_lock(&cache_lock);
    tried = 0;
    pthread_mutex_unlock(&cache_lock);
    cache_trim();
}

int64_t cache_total(void)
{
    pthread_mutex_lock(&cache_lock);
    int64_t bytes = cache_bytes;
    pthread_mutex_unlock(&cache_lock);
    return bytes;
}
