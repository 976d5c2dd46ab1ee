/* Tables without duplicates: shapes, call sites, owned strings, expressions over symbols.  Each has a hash index with
 * linear probing, at most half full; ids are positions in the table, so they never change. */
#include "ir/hash/content.h"
#include "ir/ir.h"
#include <string.h>

static uint64_t hash_shape(const struct shape *s)
{
    return content_hash64(s, sizeof *s);
}

static uint64_t hash_string(const char *s, size_t len)
{
    return content_hash64(s, len);
}

static const char *or_empty(const char *s)
{
    return s ? s : "";
}

char *site_text(const kl_site *s, const char *before, const char *after, char *text, size_t n)
{
    size_t room = strlen(before) + strlen(after) + sizeof ":-2147483648";
    text[0] = 0;
    if (s->file && *s->file && s->line && n > room)
        snprintf(text, n, "%s%.*s:%d%s", before, (int)(n - room), s->file, s->line, after);
    return text;
}

static uint64_t hash_site(const kl_site *s)
{
    const char *file = or_empty(s->file);
    return hash_string(file, strlen(file)) + (uint64_t)(uint32_t)s->line * UINT64_C(0x9E3779B97F4A7C15);
}

static bool same_string(const char *a, const char *b)
{
    return a == b || strcmp(or_empty(a), or_empty(b)) == 0;
}

static bool same_site(const kl_site *a, const kl_site *b)
{
    return a->line == b->line && same_string(a->file, b->file) && same_string(a->func, b->func);
}

/* Inserts id at the position for its hash; there is room. */
static void intern_place(struct intern *t, uint64_t hash, uint32_t id)
{
    uint32_t mask = t->cap - 1, i = (uint32_t)hash & mask;
    while (t->slot[i])
        i = (i + 1) & mask;
    t->slot[i] = id + 1;
    t->n++;
}

/* Makes room for one more entry. *rehash true: the index is new and empty, and the caller must insert all entries. */
static bool intern_make_room(struct intern *t, bool *rehash)
{
    *rehash = false;
    if (t->cap && t->n < t->cap / 2)
        return true;
    if (t->cap > UINT32_MAX / 4)
        return false;
    uint32_t cap = t->cap ? t->cap * 2 : 32;
    uint32_t *slot = mem_alloc(cap * sizeof *slot);
    if (!slot)
        return false;
    mem_free(t->slot);
    *t = (struct intern){.slot = slot, .cap = cap};
    *rehash = true;
    return true;
}

/* Visits the ids that may equal an entry of this hash: `found` compares `id` and breaks. */
#define PROBE(t, hash, count, id, found)                                                              \
    for (uint32_t probe_i = (uint32_t)(hash), probe_n = 0; probe_n < (t)->cap; probe_i++, probe_n++) { \
        uint32_t id = (t)->slot[probe_i & ((t)->cap - 1)];                                            \
        if (id == 0)                                                                                  \
            break;                                                                                    \
        if (--id >= (count))                                                                          \
            continue;                                                                                 \
        found                                                                                         \
    }

uint32_t intern_shape_find(const struct graph *g, const struct shape *s)
{
    PROBE(&g->shape_index, hash_shape(s), g->nshape, id, if (memcmp(&g->shape[id], s, sizeof *s) == 0) return id;)
    return UINT32_MAX;
}

static bool intern_no_memory(struct graph *g)
{
    return err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
}

/* Makes room for one more shape.  Outgrown arrays are kept as long as the graph, so a pointer to a shape, such as
 * n_expand takes, stays valid while other nodes are added.  Together they are no larger than the current array. */
static bool grow_shapes(struct graph *g)
{
    if (g->nshape < g->shape_cap)
        return true;
    uint32_t cap = 0;
    struct shape *more = NULL;
    if (!mem_reserve(&g->outgrown, &g->outgrown_cap, g->noutgrown + 1, sizeof *g->outgrown) ||
        !mem_reserve(&more, &cap, g->nshape < UINT32_MAX / 2 ? 2 * g->nshape + 1 : UINT32_MAX, sizeof *more))
        return false;
    if (g->nshape)
        memcpy(more, g->shape, g->nshape * sizeof *more);
    if (g->shape)
        g->outgrown[g->noutgrown++] = g->shape;
    g->shape = more;
    g->shape_cap = cap;
    return true;
}

const char *shape_fault(const struct graph *g, const struct shape *s)
{
    int64_t low, high;
    for (uint32_t i = 0; i < s->rank; i++)
        if (s->dim[i] < 0 && (!dim_range(g, s->dim[i], &low, &high) || low < 0))
            return "a negative dimension";
    return "too many elements";
}

uint32_t graph_shape(struct graph *g, const struct shape *s)
{
    if (!shape_is_legal(g, s)) {
        char text[SHAPE_TEXT], bounds[BOUNDS_TEXT];
        if (s->rank > KL_MAX_RANK)
            err_set(&g->err, KL_ERR_SHAPE, "rank %u is above the maximum of %d", s->rank, KL_MAX_RANK);
        else
            err_set(&g->err, KL_ERR_SHAPE, "shape %s has %s%s",
                    shape_text_in(g, s, text, sizeof text), shape_fault(g, s),
                        bounds_text(g, s, bounds, sizeof bounds));
        return 0;
    }
    struct shape clean = shape_make(s->rank, s->dim);
    uint32_t id = intern_shape_find(g, &clean);
    if (id != UINT32_MAX)
        return id;
    bool rehash;
    if (!grow_shapes(g) || !intern_make_room(&g->shape_index, &rehash)) {
        intern_no_memory(g);
        return 0;
    }
    id = g->nshape++;
    g->shape[id] = clean;
    for (uint32_t i = rehash ? 0 : id; i <= id; i++)
        intern_place(&g->shape_index, hash_shape(&g->shape[i]), i);
    return id;
}

uint32_t graph_site(struct graph *g, const kl_site *s)
{
    if (!s)
        return 0;
    PROBE(&g->site_index, hash_site(s), g->nsite, id, if (same_site(&g->site[id], s)) return id;)
    bool rehash;
    if (!mem_reserve(&g->site, &g->site_cap, g->nsite + 1, sizeof *g->site) ||
        !intern_make_room(&g->site_index, &rehash)) {
        intern_no_memory(g);
        return 0;
    }
    uint32_t id = g->nsite++;
    g->site[id] = *s;
    for (uint32_t i = rehash ? 0 : id; i <= id; i++)
        intern_place(&g->site_index, hash_site(&g->site[i]), i);
    return id;
}

static const char *find_string(const struct graph *g, const char *s, size_t len)
{
    PROBE(&g->text_index, hash_string(s, len), g->ntext, id,
          if (strlen(g->text[id]) == len && memcmp(g->text[id], s, len) == 0) return g->text[id];)
    return NULL;
}

bool graph_owns(const struct graph *g, const char *s)
{
    return s && g->ntext && find_string(g, s, strlen(s)) == s;
}

const char *graph_string(struct graph *g, const char *s, size_t len)
{
    const char *known = find_string(g, s, len);
    if (known)
        return known;
    bool rehash;
    char *copy = len < SIZE_MAX ? mem_alloc(len + 1) : NULL;
    if (!copy || !mem_reserve(&g->text, &g->text_cap, g->ntext + 1, sizeof *g->text) ||
        !intern_make_room(&g->text_index, &rehash)) {
        mem_free(copy);
        intern_no_memory(g);
        return NULL;
    }
    memcpy(copy, s, len);
    uint32_t id = g->ntext++;
    g->text[id] = copy;
    for (uint32_t i = rehash ? 0 : id; i <= id; i++)
        intern_place(&g->text_index, hash_string(g->text[i], strlen(g->text[i])), i);
    return copy;
}

bool intern_expression(struct symbols *s, const struct affine *a, int64_t *d)
{
    uint64_t hash = content_hash64(a, sizeof *a);
    PROBE(&s->expr_index, hash, s->nexpr, id,
          if (memcmp(&s->expr[id], a, sizeof *a) == 0) { *d = dim_of_expression(id); return true; })
    bool rehash;
    if (!mem_reserve(&s->expr, &s->expr_cap, s->nexpr + 1, sizeof *s->expr) ||
        !intern_make_room(&s->expr_index, &rehash))
        return false;
    uint32_t new = s->nexpr++;
    s->expr[new] = *a;
    for (uint32_t i = rehash ? 0 : new; i <= new; i++)
        intern_place(&s->expr_index, content_hash64(&s->expr[i], sizeof *s->expr), i);
    *d = dim_of_expression(new);
    return true;
}
