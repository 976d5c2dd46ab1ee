/* A graph made symbolic: lengths of some values become symbols, or a symbol and a number, wherever they occur, and what
 * the ops make of them follows by the ops' rules.  Where a rule refuses, as where a slice is not known to fit, another
 * choice of lengths and bounds is tried. */
#include "random_make.h"

enum { TRIES = 12, MAX_CHOSEN = 3 };

struct choice {
    struct rng r;
    unsigned n;
    int64_t value[MAX_CHOSEN], low[MAX_CHOSEN], high[MAX_CHOSEN], dim[MAX_CHOSEN]; /* of lengths */
    int64_t more[MAX_CHOSEN];       /* a length is its symbol and this number */
};

/* The symbol that stands for a number, or the number. */
static int64_t symbolic(const struct choice *c, int64_t d)
{
    for (unsigned i = 0; i < c->n; i++)
        if (c->value[i] == d)
            return c->dim[i];
    return d;
}

static struct shape symbolic_shape(const struct choice *c, const struct shape *s)
{
    struct shape t = *s;
    for (uint32_t i = 0; i < s->rank; i++)
        t.dim[i] = symbolic(c, s->dim[i]);
    return t;
}

/* Lengths above 1 of the graph's leaves. */
static void choose(struct choice *c, const struct graph *g)
{
    const struct leaves *leaves[] = {&g->input, &g->state};
    unsigned max = 1 + (unsigned)rng_below(&c->r, MAX_CHOSEN);
    c->n = 0;
    for (int tries = 0; tries < 24 && c->n < max; tries++) {
        const struct leaves *l = leaves[rng_below(&c->r, 2)];
        const struct shape *s = l->n ? &g->shape[l->v[rng_below(&c->r, l->n)].shape] : &g->shape[0];
        int64_t v = s->rank ? s->dim[rng_below(&c->r, s->rank)] : 0, below = rng_below(&c->r, 4);
        if (v < 2 || symbolic(c, v) != v)
            continue;
        c->value[c->n] = v;
        c->low[c->n] = below == 0 ? 0 : below == 1 ? 1 : v;
        c->high[c->n] = v + rng_below(&c->r, 40);
        c->more[c->n] = c->low[c->n] && !rng_below(&c->r, 3) ? 1 : 0;
        c->dim[c->n++] = -1;
    }
}

/* ---- nodes ---- */

/* What an attribute v may become: the symbol that stands for it, v, or any symbol with a number added. */
static int64_t variant(struct graph *g, const struct choice *c, int64_t v, unsigned which)
{
    int64_t d = v;
    if (which == 0)
        return symbolic(c, v);
    if (which > 1)
        dims_sum(g, 1, &(struct scaled){c->dim[which - 2], 1}, v - c->value[which - 2], &d);
    return d;
}

static ref try_node(struct graph *g, const struct node *n, const struct shape *target)
{
    g->err = (struct err){0};
    return graph_add(g, n, target);
}

/* Multiples of symbols where the shape of numbers has products. */
static ref try_reshape(struct graph *g, const struct choice *c, const struct node *n, const struct shape *s)
{
    ref r = NIL;
    uint32_t ways = 1;
    for (uint32_t i = 0; i < s->rank && i < 4; i++)
        ways *= 1 + c->n;
    for (uint32_t way = 0; way < ways && !r; way++) {
        struct shape t = symbolic_shape(c, s);
        for (uint32_t i = 0, w = way; i < s->rank; i++, w /= 1 + c->n) {
            uint32_t k = w % (1 + c->n);
            if (k && s->dim[i] % c->value[k - 1] == 0)
                dims_sum(g, 1, &(struct scaled){c->dim[k - 1], s->dim[i] / c->value[k - 1]}, 0, &t.dim[i]);
        }
        r = try_node(g, n, &t);
    }
    return r;
}

static ref try_expand(struct graph *g, const struct choice *c, const struct graph *from, const struct node *n)
{
    const struct shape *s = &from->shape[n->shape], *a = node_shape(from, n->in[0]);
    struct shape t = symbolic_shape(c, s), now = *node_shape(g, n->in[0]);
    for (uint32_t i = 0; i < s->rank; i++)
        if (a->dim[i] == s->dim[i])
            t.dim[i] = now.dim[i];
    return try_node(g, n, &t);
}

static struct graph *make(const struct graph *from, struct choice *c, struct graph *around);

static ref try_region(struct graph *g, struct choice *c, const struct graph *from, const struct node *n)
{
    struct graph *region[2] = {NULL};
    struct node proto = *n;
    if (n->op == OP_scan)
        proto.attr.region.length = symbolic(c, n->attr.region.length);
    for (uint32_t i = 0; i < op_regions(n->op); i++)
        region[i] = make(node_region(from, n, i), c, g);
    return graph_add_region(g, &proto, from->operand + n->attr.region.operands, n->attr.region.count, region);
}

static ref make_node(struct graph *g, struct choice *c, const struct graph *from, ref r)
{
    const struct node *n = node_at(from, r);
    struct shape target = symbolic_shape(c, &from->shape[n->shape]);
    struct node proto = *n;
    int64_t *dim[2];
    unsigned dims = node_dims(&proto, dim), choices = 2 + c->n;
    unsigned ways = dims == 0 ? 1 : dims == 1 ? choices : choices * choices;
    g->cur_device = n->device;
    if (op_is_region(n->op))
        return try_region(g, c, from, n);
    if (n->op == OP_reshape)
        return try_reshape(g, c, n, &from->shape[n->shape]);
    if (n->op == OP_expand)
        return try_expand(g, c, from, n);
    ref made = NIL;
    unsigned first = rng_below(&c->r, 4) ? 0 : (unsigned)rng_below(&c->r, ways);
    for (unsigned i = 0; i < ways && !made; i++) {
        unsigned way = (first + i) % ways;
        proto = *n;
        node_dims(&proto, dim);
        for (unsigned k = 0; k < dims; k++, way /= choices)
            *dim[k] = variant(g, c, *dim[k], way % choices);
        made = try_node(g, &proto, &target);
    }
    return made;
}

/* ---- graphs ---- */

static bool make_leaves(struct graph *g, const struct choice *c, const struct graph *from)
{
    struct leaves *to[] = {&g->input, &g->state, &g->slot};
    const struct leaves *of[] = {&from->input, &from->state, &from->slot};
    for (int t = 0; t < 3; t++)
        for (uint32_t i = 0; i < of[t]->n; i++) {
            const struct leaf *l = &of[t]->v[i];
            struct shape s = symbolic_shape(c, &from->shape[l->shape]);
            if (graph_leaf(g, to[t], l->dtype, &s, l->name) == LEAF_NONE)
                return false;
        }
    return true;
}

/* around: the graph whose region this becomes, or NULL.  A refusal is in the graph's err. */
static struct graph *make(const struct graph *from, struct choice *c, struct graph *around)
{
    static const char *const names[MAX_CHOSEN] = {"n", "m", "batch.size"};
    struct graph *g = graph_new(from->name);
    if (around)
        symbols_share(g, around);
    for (unsigned i = 0; i < c->n && !around; i++) {
        uint32_t symbol = graph_symbol(g, names[i], c->low[i] - c->more[i], c->high[i] - c->more[i]);
        const struct affine a = {.n = 1, .constant = c->more[i], .term = {{.symbol = symbol, .by = 1}}};
        affine_dim(g, &a, &c->dim[i]);
    }
    bool ok = make_leaves(g, c, from);
    for (ref r = 1; ok && r < from->nnode; r++)
        ok = make_node(g, c, from, r) == r;
    for (uint32_t i = 0; ok && i < from->nout; i++)
        ok = graph_output(g, from->out[i].kind, from->out[i].value, from->out[i].state);
    return g;
}

struct graph *random_symbolic(const struct graph *g, uint64_t seed, int64_t value[MAX_SYMBOLS])
{
    struct choice c = {.r = {seed * UINT64_C(0x9e3779b97f4a7c15) | 1}};
    for (int tries = 0; tries < TRIES; tries++) {
        choose(&c, g);
        struct graph *s = c.n ? make(g, &c, NULL) : NULL;
        for (unsigned i = 0; i < c.n; i++)
            value[i] = c.value[i] - c.more[i];
        if (s && !s->err.code)
            return s;
        graph_free(s);
    }
    return NULL;
}

/* Products that symbols gave their size are marked; those of a graph that had none are not. */
static void unmark_any_size(struct graph *g)
{
    for (ref r = 1; r < g->nnode; r++)
        if (op_is_product(g->node[r].op) && g->node[r].dtype == KL_BF16)
            g->node[r].attr.dot.order &= ~(uint32_t)DOT_ANY_SIZE;
    for (uint32_t i = 0; i < g->nregion; i++)
        unmark_any_size(g->region[i]);
}

bool symbolic_agrees(const struct graph *g, const struct graph *symbolic, const int64_t *value, struct err *why)
{
    char *text = graph_text(symbolic);
    struct graph *back = text ? graph_parse(text, strlen(text), "printed", why) : NULL;
    bool ok = back && (graph_same(symbolic, back) || err_set(why, KL_ERR_INTERNAL, "its text is another graph"));
    for (uint32_t i = 0; ok && i < back->symbols->n; i++)
        ok = graph_symbol_set(back, i, value[i], why);
    struct hash128 before = {0}, after = {0};
    if (ok) {
        ok = graph_bind(back) == 1 || err_set(why, KL_ERR_INTERNAL, "bind: %s", back->err.msg);
        unmark_any_size(back);
        before = graph_hash(g);
        after = graph_hash(back);
    }
    ok = ok && graph_verify(back, why) &&
         ((graph_same(g, back) && before.lo == after.lo && before.hi == after.hi) ||
          err_set(why, KL_ERR_INTERNAL, "with its symbols' values it is another graph"));
    graph_free(back);
    mem_free(text);
    return ok;
}
