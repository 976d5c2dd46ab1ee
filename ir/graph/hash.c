/* Hashing and comparing graphs by what determines the program: ops, dtypes, operands, shapes by value, attributes,
 * devices, marks, outputs, types of leaves and bounds of symbols.  Names, sites and the numbering of shapes are not
 * included, so a graph and its re-parsed text are equal. */
#include "ir/hash/content.h"
#include "ir/ir.h"
#include <string.h>

static struct hash128 hash128_of(struct xxh3_128 h) { return (struct hash128){h.low, h.high}; }

struct hash128 bytes_hash(const void *p, size_t n) { return hash128_of(content_hash128(p, n)); }

/* Collects records in a buffer, because one large update is much cheaper than many small ones. */
struct sink {
    content_state state;
    size_t n;
    unsigned char bytes[4096];
};

static void graph_hash_put(struct sink *s, const void *p, size_t n)
{
    if (s->n + n > sizeof s->bytes) {
        content_update(&s->state, s->bytes, s->n);
        s->n = 0;
    }
    memcpy(s->bytes + s->n, p, n);
    s->n += n;
}

/* Hashes a symbolic dim by its expression, because its id depends on the order in which expressions were interned. */
int64_t dim_digest(const struct graph *g, int64_t d)
{
    struct affine a;
    if (d >= 0)
        return d;
    dim_affine(g, d, &a);
    return (int64_t)(content_hash64(&a, sizeof a) | UINT64_C(1) << 63);
}

/* These two functions are not inlined, to keep graphs without symbols fast. */
static __attribute__((noinline)) struct shape stable_shape_of(const struct graph *g, const struct shape *shape)
{
    struct shape s = {.rank = shape->rank};
    for (uint32_t i = 0; i < s.rank; i++)
        s.dim[i] = dim_digest(g, shape->dim[i]);
    return s;
}

static void put_dims(struct sink *s, const struct graph *g, const struct shape *shape)
{
    struct shape stable_shape;
    if (g->symbols) {
        stable_shape = stable_shape_of(g, shape);
        shape = &stable_shape;
    }
    graph_hash_put(s, shape->dim, shape->rank * sizeof shape->dim[0]);
}

static __attribute__((noinline)) void digest_attributes(const struct graph *g, struct node *record)
{
    int64_t *dim[2];
    for (unsigned i = node_dims(record, dim); i-- > 0;)
        *dim[i] = dim_digest(g, *dim[i]);
}

static void put_symbols(struct sink *s, const struct graph *g)
{
    for (uint32_t i = 0; g->symbols && i < g->symbols->n; i++)
        graph_hash_put(s, (int64_t[]){g->symbols->v[i].low, g->symbols->v[i].high}, 2 * sizeof(int64_t));
}

static void put_region(struct sink *s, const struct graph *region)
{
    struct hash128 h = graph_hash(region);
    graph_hash_put(s, &h, sizeof h);
}

static void put_custom(struct sink *s, const struct graph *g, const struct custom *c)
{
    struct hash128 attr = bytes_hash(c->attr, c->nattr);
    uint32_t counts[] = {c->nresult, c->nattr};
    graph_hash_put(s, c->name, sizeof c->name);
    graph_hash_put(s, counts, sizeof counts);
    graph_hash_put(s, &attr, sizeof attr);
    for (uint32_t i = 0; i < c->nresult; i++) {
        const struct shape *shape = &g->shape[c->result[i].shape];
        uint32_t head[2] = {c->result[i].dtype, shape->rank};
        graph_hash_put(s, head, sizeof head);
        put_dims(s, g, shape);
    }
}

/* A node's record contains its rank, which determines the length of the data that follows. */
static void graph_hash_put_node(struct sink *s, const struct graph *g, const struct node *n)
{
    const struct shape *shape = &g->shape[n->shape];
    struct node record = *n;
    record.site = 0;
    record.shape = shape->rank;
    if (op_is_region(n->op))
        record.attr.region.first = record.attr.region.operands = 0;
    if (n->op == OP_custom)
        record.attr.region.length = 0;
    if (g->symbols)
        digest_attributes(g, &record);
    graph_hash_put(s, &record, sizeof record);
    put_dims(s, g, shape);
    for (uint32_t i = 0; op_is_region(n->op) && i < node_nin(n); i++)
        graph_hash_put(s, &(ref){node_in(g, n, i)}, sizeof(ref));
    for (uint32_t i = 0; i < op_regions(n->op); i++)
        put_region(s, node_region(g, n, i));
    if (n->op == OP_custom)
        put_custom(s, g, node_custom(g, n));
}

static void put_leaves(struct sink *s, const struct graph *g, const struct leaves *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        const struct shape *shape = &g->shape[l->v[i].shape];
        uint32_t head[2] = {l->v[i].dtype, shape->rank};
        graph_hash_put(s, head, sizeof head);
        put_dims(s, g, shape);
    }
}

struct hash128 graph_hash(const struct graph *g)
{
    struct sink s;
    s.n = 0;
    content_begin(&s.state);
    uint32_t counts[] = {g->nnode, g->nout, g->input.n, g->state.n, g->slot.n, g->symbols ? g->symbols->n : 0};
    graph_hash_put(&s, counts, sizeof counts);
    put_symbols(&s, g);
    for (uint32_t i = 0; i < g->nnode; i++)
        graph_hash_put_node(&s, g, &g->node[i]);
    for (uint32_t i = 0; i < g->nout; i++)
        graph_hash_put(&s, &g->out[i], sizeof g->out[i]);
    put_leaves(&s, g, &g->input);
    put_leaves(&s, g, &g->state);
    put_leaves(&s, g, &g->slot);
    content_update(&s.state, s.bytes, s.n);
    return hash128_of(content_end(&s.state));
}

bool dim_same(const struct graph *a, int64_t x, const struct graph *b, int64_t y)
{
    struct affine p, q;
    if (x >= 0 && y >= 0)
        return x == y;
    return dim_affine(a, x, &p) && dim_affine(b, y, &q) && !memcmp(&p, &q, sizeof p);
}

static bool same_shape(const struct graph *a, uint32_t sa, const struct graph *b, uint32_t sb)
{
    const struct shape *s = &a->shape[sa], *t = &b->shape[sb];
    bool same = s->rank == t->rank;
    for (uint32_t i = 0; same && i < s->rank; i++)
        same = dim_same(a, s->dim[i], b, t->dim[i]);
    return same;
}

static bool same_symbols(const struct symbols *a, const struct symbols *b)
{
    if (!a || !b)
        return a == b;
    bool same = a->n == b->n;
    for (uint32_t i = 0; same && i < a->n; i++)
        same = a->v[i].low == b->v[i].low && a->v[i].high == b->v[i].high;
    return same;
}

static bool same_custom(const struct graph *a, const struct custom *x, const struct graph *b, const struct custom *y)
{
    bool same = !strcmp(x->name, y->name) && x->nattr == y->nattr && x->nresult == y->nresult &&
                (!x->nattr || !memcmp(x->attr, y->attr, x->nattr));
    for (uint32_t i = 0; same && i < x->nresult; i++)
        same = x->result[i].dtype == y->result[i].dtype && same_shape(a, x->result[i].shape, b, y->result[i].shape);
    return same;
}

static bool same_node(const struct graph *a, const struct node *x, const struct graph *b, const struct node *y)
{
    struct node p = *x, q = *y;
    p.site = q.site = 0;
    p.shape = q.shape = 0;
    int64_t *dp[2], *dq[2];
    unsigned dims = a->symbols ? node_dims(&p, dp) : 0;
    if (dims && node_dims(&q, dq) != dims)
        return false;
    for (unsigned i = 0; i < dims; i++) {
        if (!dim_same(a, *dp[i], b, *dq[i]))
            return false;
        *dp[i] = *dq[i] = 0;
    }
    if (memcmp(&p, &q, sizeof p) != 0 || !same_shape(a, x->shape, b, y->shape))
        return false;
    for (uint32_t i = 0; op_is_region(x->op) && i < node_nin(x); i++)
        if (node_in(a, x, i) != node_in(b, y, i))
            return false;
    for (uint32_t i = 0; i < op_regions(x->op); i++)
        if (!graph_same(node_region(a, x, i), node_region(b, y, i)))
            return false;
    return x->op != OP_custom || same_custom(a, node_custom(a, x), b, node_custom(b, y));
}

static bool same_leaves(const struct graph *a, const struct leaves *x, const struct graph *b, const struct leaves *y)
{
    if (x->n != y->n)
        return false;
    for (uint32_t i = 0; i < x->n; i++)
        if (x->v[i].dtype != y->v[i].dtype || !same_shape(a, x->v[i].shape, b, y->v[i].shape))
            return false;
    return true;
}

uint32_t graph_common(const struct graph *a, const struct graph *b)
{
    uint32_t n = a->nnode < b->nnode ? a->nnode : b->nnode, r = 1;
    while (r < n && same_node(a, &a->node[r], b, &b->node[r]))
        r++;
    return r;
}

bool graph_same(const struct graph *a, const struct graph *b)
{
    if (a->nnode != b->nnode || a->nout != b->nout || !same_symbols(a->symbols, b->symbols) ||
        !same_leaves(a, &a->input, b, &b->input) ||
        !same_leaves(a, &a->state, b, &b->state) || !same_leaves(a, &a->slot, b, &b->slot))
        return false;
    for (uint32_t i = 0; i < a->nnode; i++)
        if (!same_node(a, &a->node[i], b, &b->node[i]))
            return false;
    return a->nout == 0 || memcmp(a->out, b->out, a->nout * sizeof *a->out) == 0;
}
