/* Graphs with symbols that have no one program for all values: a program for each, of which the last few used are known
 * here.  An entry of the cache without a program of its own holds them. */
#include "cache.h"
#include <inttypes.h>
#include <string.h>

enum { MAX_VARIANTS = 16 };            /* of a graph; the one used longest ago gives way */

struct variant {
    int64_t value[MAX_SYMBOLS];
    const struct exec *x;              /* a weak reference: it may be evicted meanwhile */
    uint64_t used;
};
struct variants {
    pthread_mutex_t lock;
    struct variant v[MAX_VARIANTS];
    uint32_t n;
    uint64_t clock;
    char why[200];
};

struct variants *variants_new(const char *why)
{
    struct variants *s = mem_alloc(sizeof *s);
    if (!s) return NULL;
    pthread_mutex_init(&s->lock, NULL);
    snprintf(s->why, sizeof s->why, "%s", why);
    return s;
}

void variants_free(struct variants *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->n; i++) exec_weak_unref(s->v[i].x);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

/* Needs its lock; with a reference. */
static const struct exec *variant_known(struct variants *s, const int64_t *value, uint32_t n)
{
    for (uint32_t i = 0; i < s->n; i++) {
        struct variant *v = &s->v[i];
        if (memcmp(v->value, value, n * sizeof *value) || !exec_try_ref(v->x)) continue;
        v->used = ++s->clock;
        return v->x;
    }
    return NULL;
}

/* Takes the place of one with these values, which was evicted, or of the one used longest ago. */
static void variant_keep(struct variants *s, const int64_t *value, uint32_t n, const struct exec *x)
{
    struct variant *to = s->n < MAX_VARIANTS ? &s->v[s->n] : &s->v[0];
    for (uint32_t i = 0; i < s->n && s->n == MAX_VARIANTS; i++)
        if (s->v[i].used < to->used) to = &s->v[i];
    for (uint32_t i = 0; i < s->n; i++)
        if (!memcmp(s->v[i].value, value, n * sizeof *value)) to = &s->v[i];
    if (to == &s->v[s->n]) s->n++;
    exec_weak_ref(x);
    exec_weak_unref(to->x);
    to->x = x;
    to->used = ++s->clock;
    memcpy(to->value, value, n * sizeof *value);
}

/* The graph that numbers in place of the symbols make. */
static struct graph *graph_of_values(const struct graph *captured, const int64_t *value, struct err *e)
{
    struct graph *g = graph_clone(captured);
    bool ok = g || err_set(e, KL_ERR_MEMORY, "no memory for a program of graph %s", captured->name);
    for (uint32_t i = 0; ok && i < captured->symbols->n; i++) ok = graph_symbol_set(g, i, value[i], e);
    if (ok && graph_bind(g) >= 0) return g;
    if (ok) err_set(e, g->err.code, "%s", g->err.msg);
    graph_free(g);
    return NULL;
}

const struct exec *exec_pick(const struct exec *x, const uint64_t *slot, struct err *e)
{
    struct variants *s = x->variants;
    if (!s) {
        exec_ref(x);
        return x;
    }
    const struct graph *g = x->captured;
    int64_t value[MAX_SYMBOLS];
    for (uint32_t i = 0; i < g->symbols->n; i++) value[i] = (int64_t)slot[g->slot.n + i];
    atomic_store_explicit(&((struct exec *)x)->ran, exec_runs(), memory_order_relaxed);
    pthread_mutex_lock(&s->lock);
    const struct exec *found = variant_known(s, value, g->symbols->n);
    pthread_mutex_unlock(&s->lock);
    if (found) return found;
    struct graph *own = graph_of_values(g, value, e);
    if (own && (found = exec_get(own, x->device, x->fuse, e))) {
        count_one(&counters.variants);
        pthread_mutex_lock(&s->lock);
        variant_keep(s, value, g->symbols->n, found);
        pthread_mutex_unlock(&s->lock);
    }
    graph_free(own);
    return found;
}

void exec_pick_why(const struct exec *x, const uint64_t *slot, char *text, size_t n)
{
    const struct graph *g = x->captured;
    size_t at = 0;
    text[0] = 0;
    for (uint32_t i = 0; x->variants && i < g->symbols->n && at < n; i++)
        at += (size_t)snprintf(text + at, n - at, "%s%s = %" PRIu64, i ? ", " : "", g->symbols->v[i].name,
                               slot[g->slot.n + i]);
    if (x->variants && at < n)
        snprintf(text + at, n - at, " has a program of its own: %s\n", x->variants->why);
}
