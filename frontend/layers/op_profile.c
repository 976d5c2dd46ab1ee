/* The profiler of calls: a record for each op that is called, with the host time of the call, including everything that
 * it calls.  Calls made by kernels have no record of their own, nor do those that vmap records for the batch. */
#include "transform.h"
#include <pthread.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

struct op_profile {
    kl_op_record *of;         /* until the end ns counts ticks */
    uint32_t n, cap;
    bool on, lost;            /* lost: there was no memory for a record */
};

/* ---- time ---- */

struct moment { int64_t tick, ns; };

/* The processor's time-stamp counter, if it is invariant: reading it takes less than half the time of clock_gettime,
 * and a call takes little more than two of those. */
static struct {
    pthread_once_t once;
    bool counter;
    struct moment at;         /* of the first profile */
} start = {.once = PTHREAD_ONCE_INIT};

static inline int64_t op_profile_ticks(void)
{
#if defined(__x86_64__)
    if (__builtin_expect(start.counter, 1))
        return (int64_t)__rdtsc();
#endif
    return timeline_now();
}

/* Reads both clocks: of a few readings the one with the shortest interval, because a thread may be interrupted in
 * between. */
static struct moment both_clocks(void)
{
    enum { TRIES = 4 };
    struct moment m = {0};
    int64_t min = INT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        int64_t before = op_profile_ticks(), ns = timeline_now(), between = op_profile_ticks() - before;
        if (between < min) {
            min = between;
            m = (struct moment){before + between / 2, ns};
        }
    }
    return m;
}

static void start_clock(void)
{
#if defined(__x86_64__)
    const unsigned power = 0x80000007u, invariant = 1u << 8;
    unsigned a, b, c, d = 0;
    start.counter = __get_cpuid(power, &a, &b, &c, &d) && d & invariant;
#endif
    start.at = both_clocks();
}

/* Nanoseconds per tick, to a part in ten thousand: a first profile shorter than a millisecond waits until that has
 * passed. */
static double tick_length(void)
{
    enum { LONG_ENOUGH = 1000000 };
    struct moment m = start.at;
    while (start.counter && m.ns - start.at.ns < LONG_ENOUGH)
        m = both_clocks();
    return start.counter ? (double)(m.ns - start.at.ns) / (double)(m.tick - start.at.tick) : 1;
}

/* ---- records ---- */

/* Records the call's site and operands before these are changed. */
static void op_profile_note(struct kl_call *c, kl_op_record *r)
{
    static const struct shape unknown;
    struct entry *const *found = c->graph ? call_found(c) : NULL;
    r->op = c->op->name;
    r->site = c->site ? *c->site : (kl_site){0};
    r->nin = c->nin;
    for (uint32_t i = 0; i < c->nin && i < KL_OP_RECORD_INPUTS; i++) {
        const struct entry *x = found ? found[i] : entry_peek(c->in[i]);
        bool temp = x && x->kind == KIND_TEMP, known = temp || (x && x->kind != KIND_POISON && x->kind != KIND_DEAD);
        const struct shape *s = !known ? &unknown : temp ? node_shape(x->trace->r.g, x->node) : &x->shape;
        r->in[i].dtype = (kl_dtype)(x ? x->dtype : KL_DTYPE_COUNT);
        r->in[i].rank = (int)s->rank;
        for (uint32_t k = 0; k < s->rank; k++)
            r->in[i].dims[k] = s->dim[k];
    }
}

static kl_status op_profile_call(void *ctx, kl_call *c, kl_keyset keys)
{
    (void)ctx, (void)keys;
    struct op_profile *p = c->t->op_profile;
    if (!p || !p->on)
        return kl_redispatch_below(c);
    if (p->n == p->cap && !mem_reserve(&p->of, &p->cap, p->n + 1, sizeof *p->of)) {
        p->lost = true;
        return kl_redispatch_below(c);
    }
    uint32_t at = p->n++;
    op_profile_note(c, &p->of[at]);
    struct thread_layers outer = layers_save(c->t);
    c->t->excluded |= LAYER_BIT(LAYER_Profiler);
    int64_t before = op_profile_ticks();
    kl_status status = kl_redispatch_below(c);
    p->of[at].ns = op_profile_ticks() - before;
    layers_restore(c->t, outer);
    return status;
}

void op_profile_free(struct op_profile *p)
{
    if (p)
        mem_free(p->of);
    mem_free(p);
}

kl_status kl_op_profile_begin(void)
{
    static const struct transform layer = {.kernel = {.name = "profiler of calls", .call = op_profile_call}};
    struct thread *t = thread_self();
    struct err e;
    e.code = KL_OK;
    if (!t)
        return KL_ERR_MEMORY;
    if (!t->op_profile && !(t->op_profile = mem_alloc(sizeof *t->op_profile)))
        return report(t, KL_ERR_MEMORY, "op_profile_begin: out of memory");
    if (t->op_profile->on)
        return report(t, KL_ERR_ARGUMENT, "op_profile_begin: it has begun");
    if (!dispatch_layer(NULL, KL_KEY_Profiler, &layer, &e))
        return report(t, e.code, "op_profile_begin: %s", e.msg);
    pthread_once(&start.once, start_clock);
    t->op_profile->n = 0;
    t->op_profile->on = true;
    t->op_profile->lost = false;
    t->included |= LAYER_BIT(LAYER_Profiler);
    return KL_OK;
}

kl_status kl_op_profile_end(int64_t *n, const kl_op_record **records)
{
    struct thread *t = thread_self();
    struct op_profile *p = t ? t->op_profile : NULL;
    if (records)
        *records = NULL;
    if (n)
        *n = 0;
    if (!p || !p->on)
        return t ? report(t, KL_ERR_ARGUMENT, "op_profile_end: it has not begun") : KL_ERR_MEMORY;
    double length = tick_length();
    for (uint32_t i = 0; i < p->n; i++)
        p->of[i].ns = (int64_t)((double)p->of[i].ns * length + 0.5);
    p->on = false;
    t->included &= ~LAYER_BIT(LAYER_Profiler);
    if (records)
        *records = p->of;
    if (n)
        *n = p->n;
    return p->lost ? report(t, KL_ERR_MEMORY, "op_profile_end: out of memory for all records") : KL_OK;
}
