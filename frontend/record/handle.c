/* The table of handles.
 *
 * A handle consists of an entry's index and its generation.  Entries are in chunks that double in size and are never
 * moved or freed, so any thread can look up any 64 bits at any time.  The generation is odd while the handle is live
 * and is incremented when it is created and when it ends, so an old copy of the handle no longer matches.  A generation
 * above the entry's was never issued (except after 2^31 reuses, when the counter has wrapped). */
#include "frontend/frontend.h"
#include <inttypes.h>

enum { REFILL = 64 };

struct entry_table entries;
static uint32_t free_list = NO_ENTRY;

/* Adds an entry at the end of the table; needs the lock. */
static struct entry *handle_table_extend(void)
{
    uint32_t index = atomic_load_explicit(&entries.count, memory_order_relaxed), place, c;
    if (index >= UINT32_MAX - ENTRY_CHUNK)
        return NULL;
    c = entry_chunk(index, &place);
    struct entry *base = atomic_load_explicit(&entries.chunk[c], memory_order_relaxed);
    if (!base) {
        base = mem_alloc(((size_t)ENTRY_CHUNK << c) * sizeof *base);
        if (!base)
            return NULL;
        atomic_store_explicit(&entries.chunk[c], base, memory_order_release);
    }
    base[place].index = index;
    atomic_store_explicit(&entries.count, index + 1, memory_order_release);
    return &base[place];
}

static struct entry *handle_take(void)
{
    if (free_list == NO_ENTRY)
        return handle_table_extend();
    struct entry *x = entry_at(free_list);
    free_list = x->next;
    return x;
}

static void begin_life(struct entry *x)
{
    x->dtype = 0;
    x->requires_grad = x->busy = x->kept = x->failed = false;
    x->device = x->ad = 0;
    x->next = x->prev = NO_ENTRY;
    x->version = 0;
    x->layers = 0;
    x->made_by = NULL;
    x->node = NIL;
    x->trace = NULL;
    x->buffer = NULL;
    x->cause = NULL;
    x->name[0] = 0;
    entry_bump_generation(x);
}

/* Describes an ended temporary of a trace of this thread, whose entry was not reused; false: its log was dropped. */
static bool describe_temporary(const struct entry *x, const char *what, struct err *e)
{
    const struct thread *t = thread_self();
    const struct trace *tr = t ? t->trace : NULL;
    while (tr && tr->idle)
        tr = tr->idle;
    const struct replay_log *p = tr ? tr->logs : NULL;
    uint32_t id = atomic_load_explicit(&x->log, memory_order_relaxed);
    while (p && (!id || p->id != id))
        p = p->next;
    if (!p || !x->node || x->node >= p->g->nnode)
        return false;
    const struct node *n = node_at(p->g, x->node);
    const kl_site *s = &p->g->site[n->site];
    char at[330] = "";
    if (n->site && s->file)
        snprintf(at, sizeof at, " recorded at %.300s:%d", s->file, s->line);
    return !err_set(
        e, KL_ERR_HANDLE,
        "%s is stale: it was a temporary of trace \"%s\", which has ended: the %s%s was not kept by kl_keep", what,
        p->g->name, x->made_by ? x->made_by : opinfo[n->op].name, at);
}

struct entry *entry_find(kl_tensor h, const char *what, struct err *e)
{
    uint32_t index = (uint32_t)h.id, generation = (uint32_t)(h.id >> 32);
    if (h.id == 0) {
        err_set(e, KL_ERR_HANDLE, "%s is kl_none", what);
        return NULL;
    }
    struct entry *x = index < atomic_load_explicit(&entries.count, memory_order_acquire) ? entry_at(index) : NULL;
    uint32_t now = x ? atomic_load_explicit(&x->generation, memory_order_acquire) : 0;
    if (generation % 2 == 0 || generation > now) { /* an entry that was never issued has generation 0 */
        err_set(e, KL_ERR_HANDLE, "%s is foreign: 0x%" PRIx64 " was never a handle", what, h.id);
        return NULL;
    }
    if (now == generation)
        return x;
    static const char *const text[] = {[DEATH_RELEASED] = "it was released",
                                       [DEATH_TRACE] =
                                           "it was a temporary of an ended trace and was not kept by kl_keep",
                                       [DEATH_SCOPE] = "it was made in a scope that has ended"};
    uint8_t how = atomic_load_explicit(&x->death, memory_order_relaxed);
    if (now == generation + 1 && how == DEATH_TRACE && describe_temporary(x, what, e))
        return NULL;
    err_set(e, KL_ERR_HANDLE, "%s is stale: %s", what,
            now == generation + 1 ? text[how] : "it was released, or its trace or scope has ended");
    return NULL;
}

void cause_drop(struct cause *c)
{
    if (c && atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1)
        mem_free(c);
}

struct entry *entry_new(void)
{
    struct entry *x = handle_take();
    if (x)
        begin_life(x);
    return x;
}

void entry_free(struct entry *x, enum death how)
{
    entry_end_life(x, how);
    deferred_unbind(x);
    front_drop(x->buffer);
    wrapper_end(x, how);
    cause_drop(x->cause);
    x->next = free_list;
    free_list = x->index;
}

void handle_end(kl_tensor h, enum death how)
{
    struct entry *x = entry_peek(h);
    while (x && x->busy) {
        front_wait();
        x = entry_peek(h);
    }
    if (!x)
        return;
    bool borrowed = x->kind == KIND_VALUE && x->buffer && x->buffer->release;
    entry_free(x, how);
    if (borrowed)
        deferred_collect(); /* so that the user's memory is released */
}

/* Threads keep free entries for temporaries, which therefore need no lock. */
struct entry *entry_new_temp(struct thread *t, struct trace *tr)
{
    if (t->free == NO_ENTRY) {
        front_lock();
        for (unsigned i = 0; i < REFILL; i++) {
            struct entry *x = handle_take();
            if (!x)
                break;
            x->next = t->free;
            t->free = x->index;
        }
        front_unlock();
        if (t->free == NO_ENTRY)
            return NULL;
    }
    struct entry *x = entry_at(t->free);
    t->free = x->next;
    x->kind = KIND_TEMP;
    begin_life(x);
    x->trace = tr;
    x->next = tr->temps;
    tr->temps = x->index;
    return x;
}

void entry_free_temp(struct thread *t, struct entry *x)
{
    if (x->kind != KIND_DEAD)
        entry_end_life(x, DEATH_TRACE);
    wrapper_end(x, DEATH_TRACE);
    const struct replay_log *log = x->trace ? x->trace->log : NULL; /* none: of a failed trace */
    atomic_store_explicit(&x->log, log ? log->id : 0, memory_order_relaxed);
    cause_drop(x->cause);
    x->next = t->free;
    t->free = x->index;
}

void entry_make_failed(struct entry *x, struct cause *c)
{
    wrapper_end(x, DEATH_TRACE);
    cause_drop(x->cause);
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    x->cause = c;
    x->kind = KIND_POISON;
    x->dtype = KL_DTYPE_COUNT;
    x->layers = 0;
    x->node = NIL;
    x->trace = NULL;
    x->failed = true;
}

void entries_return(struct thread *t)
{
    while (t->free != NO_ENTRY) {
        struct entry *x = entry_at(t->free);
        t->free = x->next;
        x->next = free_list;
        free_list = x->index;
    }
}

void entries_after_fork(void)
{
    static struct cause lost = {.err = {.code = KL_ERR_HANDLE,
                                        .msg = "the tensor was being assigned by another thread when this "
                                                                      "process was forked: its value is lost"}};
    uint32_t n = atomic_load(&entries.count);
    for (uint32_t i = 0; i < n; i++) {
        struct entry *x = entry_at(i);
        if (atomic_load(&x->generation) % 2 == 0 || x->kind != KIND_VALUE || !x->busy)
            continue;
        deferred_unbind(x);
        front_drop(x->buffer);
        x->buffer = NULL;
        x->busy = false;
        x->kind = KIND_POISON;
        x->dtype = KL_DTYPE_COUNT;
        x->cause = &lost;
        atomic_fetch_add(&lost.refs, 2); /* one more than its users, so that it is never freed */
    }
}

/* KL_DTYPE_COUNT: not a tensor that this thread may use; the op reports the error. */
unsigned entry_dtype(const struct entry *x)
{
    return x ? x->dtype : (unsigned)KL_DTYPE_COUNT;
}
