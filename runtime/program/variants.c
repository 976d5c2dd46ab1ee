/* Graphs with symbols that have no one program for all values: a program for each value, or, where the graph depends on
 * which side of a limit a size is (ir/symbols/size_limit.c), for ranges of values, on one side each.  The last few used
 * are known here.  An entry of the cache without a program of its own holds them; the program of a range may be such an
 * entry again. */
#include "cache.h"
#include <inttypes.h>
#include <string.h>

enum { MAX_VARIANTS = 16 };            /* of a graph; the one used longest ago gives way */

struct symbol_variant {
    int64_t low[MAX_SYMBOLS], high[MAX_SYMBOLS];
    const struct exec *x;              /* a weak reference: it may be evicted meanwhile */
    uint64_t used;
};
struct variants {
    pthread_mutex_t lock;
    struct symbol_variant v[MAX_VARIANTS];
    uint32_t n;
    uint64_t clock;
    struct size_limit limit;           /* number 0: a program for each value */
    char why[200];
};

struct variants *variants_new(const char *why, const struct size_limit *limit)
{
    struct variants *s = mem_alloc(sizeof *s);
    if (!s) return NULL;
    pthread_mutex_init(&s->lock, NULL);
    snprintf(s->why, sizeof s->why, "%s", why);
    s->limit = *limit;
    return s;
}

void variants_free(struct variants *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->n; i++) exec_weak_unref(s->v[i].x);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

static bool variant_has(const struct symbol_variant *v, const int64_t *value, uint32_t n)
{
    bool has = true;
    for (uint32_t i = 0; i < n; i++) has &= v->low[i] <= value[i] && value[i] <= v->high[i];
    return has;
}

/* Needs its lock; with a reference. */
static const struct exec *variant_known(struct variants *s, const int64_t *value, uint32_t n)
{
    for (uint32_t i = 0; i < s->n; i++) {
        struct symbol_variant *v = &s->v[i];
        if (!variant_has(v, value, n) || !exec_try_ref(v->x)) continue;
        v->used = ++s->clock;
        return v->x;
    }
    return NULL;
}

/* Takes the place of one with these values, which was evicted, or of the one used longest ago. */
static void variant_keep(struct variants *s, const struct symbols *bounds, const struct exec *x)
{
    struct symbol_variant new = {.x = x, .used = ++s->clock};
    for (uint32_t i = 0; i < bounds->n; i++) {
        new.low[i] = bounds->v[i].low;
        new.high[i] = bounds->v[i].high;
    }
    struct symbol_variant *to = s->n < MAX_VARIANTS ? &s->v[s->n] : &s->v[0];
    for (uint32_t i = 0; i < s->n && s->n == MAX_VARIANTS; i++)
        if (s->v[i].used < to->used) to = &s->v[i];
    for (uint32_t i = 0; i < s->n; i++)
        if (!memcmp(s->v[i].low, new.low, sizeof new.low) && !memcmp(s->v[i].high, new.high, sizeof new.high))
            to = &s->v[i];
    if (to == &s->v[s->n]) s->n++;
    exec_weak_ref(x);
    exec_weak_unref(to->x);
    *to = new;
}

/* The graph with the symbols' bounds around these values: those of the side of the limit, or the values. */
static struct graph *graph_around(const struct graph *captured, const struct size_limit *limit, const int64_t *value,
                                  struct err *e)
{
    struct graph *g = graph_clone(captured);
    bool ok = g || err_set(e, KL_ERR_MEMORY, "no memory for a program of graph %s", captured->name);
    if (ok && limit->number) {
        size_limit_narrow(g->symbols, limit, value);
        return g;
    }
    for (uint32_t i = 0; ok && i < captured->symbols->n; i++) ok = graph_symbol_set(g, i, value[i], e);
    if (ok) return g;
    graph_free(g);
    return NULL;
}

/* Builds the program of a graph whose bounds graph_around has set; with a reference. */
static const struct exec *variant_build(const struct exec *x, struct graph *own, struct err *e)
{
    struct symbols bounds = *own->symbols;
    if (!x->variants->limit.number && graph_bind(own) < 0) {
        err_set(e, own->err.code, "%s", own->err.msg);
        return NULL;
    }
    const struct exec *built = exec_get(own, x->device, x->fuse, e);
    if (!built) return NULL;
    count_one(&counters.variants);
    pthread_mutex_lock(&x->variants->lock);
    variant_keep(x->variants, &bounds, built);
    pthread_mutex_unlock(&x->variants->lock);
    return built;
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
    if (!found) {
        struct graph *own = graph_around(g, &s->limit, value, e);
        found = own ? variant_build(x, own, e) : NULL;
        graph_free(own);
    }
    if (!found || !found->variants) return found;
    const struct exec *inner = exec_pick(found, slot, e); /* of a range, which is divided again */
    exec_unref(found);
    return inner;
}

void exec_pick_why(const struct exec *x, const uint64_t *slot, char *text, size_t n)
{
    struct variants *s = x->variants;
    const struct graph *g = x->captured;
    size_t at = 0;
    text[0] = 0;
    if (!s) return;
    struct symbols bounds = *g->symbols;
    for (uint32_t i = 0; i < bounds.n && !s->limit.number; i++)
        bounds.v[i].low = bounds.v[i].high = (int64_t)slot[g->slot.n + i];
    if (s->limit.number) size_limit_narrow(&bounds, &s->limit, (const int64_t *)slot + g->slot.n);
    for (uint32_t i = 0; i < bounds.n && at < n; i++) {
        const struct symbol *v = &bounds.v[i];
        at += (size_t)snprintf(text + at, n - at, "%s%s", i ? ", " : "", v->name);
        if (at < n && v->low == v->high) at += (size_t)snprintf(text + at, n - at, " = %" PRId64, v->low);
        else if (at < n) at += (size_t)snprintf(text + at, n - at, " in %" PRId64 "..%" PRId64, v->low, v->high);
    }
    if (at < n)
        snprintf(text + at, n - at, " has a program of its own: %s\n", s->why);
}
