/* Symbols get values: what values the shapes of given arrays mean, and putting them into a graph. */
#include "ir/ir.h"
#include <inttypes.h>
#include <string.h>

/* ---- matching shapes with expressions ---- */

/* The symbol that alone is unknown in a; NO_SYMBOL: none, or several are.  *rest: the value of all else. */
static uint32_t only_unknown(const struct affine *a, const int64_t *value, int64_t *rest, int64_t *by)
{
    uint32_t unknown = NO_SYMBOL, count = 0;
    *rest = a->constant;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct symbol_term *t = &a->term[i];
        int64_t part, v = value[t->symbol], other = t->times ? value[t->times - 1] : 1;
        if (v == NO_VALUE && other == NO_VALUE)
            return NO_SYMBOL;
        if (v == NO_VALUE || other == NO_VALUE) {
            unknown = v == NO_VALUE ? t->symbol : t->times - 1;
            if (__builtin_mul_overflow(t->by, v == NO_VALUE ? other : v, by) || !*by)
                return NO_SYMBOL;
            count++;
        } else if (!term_value(t, value, &part) || __builtin_add_overflow(*rest, part, rest)) {
            return NO_SYMBOL;
        }
    }
    return count == 1 ? unknown : NO_SYMBOL;
}

static bool extent_disagrees(const struct graph *g, const struct extents *x, uint32_t axis, const int64_t *value,
                      struct err *e)
{
    char dim[DIM_TEXT], known[BOUNDS_TEXT] = "";
    struct affine a;
    dim_affine(g, x->want.dim[axis], &a);
    size_t at = 0;
    for (uint32_t i = 0; i < 2 * a.n && at < sizeof known; i++) {
        const struct symbol_term *t = &a.term[i / 2];
        uint32_t symbol = i % 2 ? t->times - 1 : t->symbol;
        if ((i % 2 == 0 || t->times) && value[symbol] != NO_VALUE)
            at += (size_t)snprintf(known + at, sizeof known - at, "%s%s = %" PRId64, at ? ", " : " with ",
                                   g->symbols->v[symbol].name, value[symbol]);
    }
    char bounds[BOUNDS_TEXT];
    return err_set(e, KL_ERR_SHAPE, "%s: axis %u has %" PRId64 " elements, but is to have %s%s%s", x->what, axis,
                   x->got.dim[axis], affine_text(g, &a, dim, sizeof dim), known,
                   *known ? "" : affine_bounds(g, &a, 1, bounds, sizeof bounds));
}

/* What one axis says. *changed: a symbol's value became known. */
static bool look_at(const struct graph *g, const struct extents *x, uint32_t axis, int64_t *value, bool *changed,
                    struct err *e)
{
    struct affine a;
    int64_t rest, by = 1, v;
    if (!dim_affine(g, x->want.dim[axis], &a))
        return err_set(e, KL_ERR_INTERNAL, "%s: axis %u has no valid length", x->what, axis);
    uint32_t symbol = only_unknown(&a, value, &rest, &by);
    if (symbol == NO_SYMBOL)
        return true;
    const struct symbol *s = &g->symbols->v[symbol];
    if (__builtin_sub_overflow(x->got.dim[axis], rest, &v) || v % by || v / by < s->low || v / by > s->high)
        return extent_disagrees(g, x, axis, value, e);
    value[symbol] = v / by;
    return *changed = true;
}

bool symbols_match(const struct graph *g, const struct extents *x, uint32_t n, int64_t *value, struct err *e)
{
    for (uint32_t i = 0; i < n; i++)
        if (x[i].want.rank != x[i].got.rank) {
            char want[SHAPE_TEXT], got[SHAPE_TEXT];
            return err_set(e, KL_ERR_SHAPE, "%s: has shape %s, but is to have %s", x[i].what,
                           shape_text(&x[i].got, got, sizeof got), shape_text_in(g, &x[i].want, want, sizeof want));
        }
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t axis = 0; axis < x[i].want.rank; axis++)
                if (!look_at(g, &x[i], axis, value, &changed, e))
                    return false;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t axis = 0; axis < x[i].want.rank; axis++) {
            struct affine a;
            dim_affine(g, x[i].want.dim[axis], &a);
            int64_t total = a.constant;
            bool known = true;
            for (uint32_t k = 0; k < a.n; k++)
                known &= value[a.term[k].symbol] != NO_VALUE &&
                         (!a.term[k].times || value[a.term[k].times - 1] != NO_VALUE);
            for (uint32_t k = 0; known && k < a.n; k++) { /* within bounds, so nothing overflows */
                int64_t part = 0;
                term_value(&a.term[k], value, &part);
                total += part;
            }
            if (known && total != x[i].got.dim[axis])
                return extent_disagrees(g, &x[i], axis, value, e);
        }
    return true;
}

/* ---- putting values in ---- */

/* From a graph's table of symbols to that of those without a value. */
struct symbol_binding {
    const struct graph *from;
    uint32_t map[MAX_SYMBOLS];
    number_of_affine *number; const void *ctx;  /* or, if not NULL, the number of an expression */
};

/* A term with the values of its symbols that have one put in. */
static struct affine bound_term(const struct symbol_binding *b, const struct symbol_term *t)
{
    uint32_t left[2], n = 0;
    int64_t by = t->by;
    for (int i = 0; i < (t->times ? 2 : 1); i++) {
        uint32_t s = i ? t->times - 1 : t->symbol;
        if (b->map[s] == NO_SYMBOL)
            by *= b->from->symbols->v[s].low; /* within the same bounds as before */
        else
            left[n++] = b->map[s];
    }
    if (!n || !by)
        return (struct affine){.constant = by};
    return (struct affine){.n = 1, .term = {{.symbol = left[0], .times = n == 2 ? 1 + left[1] : 0, .by = by}}};
}

static int64_t bound_dim(struct graph *g, const struct symbol_binding *b, int64_t d)
{
    struct affine a, sum;
    if (d >= 0)
        return d;
    dim_affine(b->from, d, &a);
    if (b->number)
        return b->number(b->ctx, &a);
    sum = (struct affine){.constant = a.constant};
    bool fits = true;
    for (uint32_t i = 0; i < a.n; i++) {
        struct affine part = bound_term(b, &a.term[i]);
        fits &= affine_add(&sum, &part, 1);
    }
    if (!fits || !affine_dim(g, &sum, &d)) /* within the same bounds as before */
        err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
    return d;
}

/* All shapes interned again, since some may have become equal. */
static uint32_t *bound_shapes(struct graph *g, const struct symbol_binding *b)
{
    struct shape *old = g->shape;
    uint32_t n = g->nshape, *map = mem_alloc(n * sizeof *map);
    mem_free(g->shape_index.slot);
    g->shape = NULL;
    g->nshape = g->shape_cap = 0;
    g->shape_index = (struct intern){0};
    if (!map)
        err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
    for (uint32_t i = 0; map && i < n; i++) {
        struct shape s = old[i];
        for (uint32_t k = 0; k < s.rank; k++)
            s.dim[k] = bound_dim(g, b, s.dim[k]);
        map[i] = graph_shape(g, &s);
    }
    mem_free(old);
    return map;
}

static void bind_graph(struct graph *g, const struct symbol_binding *b, struct symbols *to)
{
    symbols_use(g, to);
    uint32_t *map = bound_shapes(g, b);
    struct leaves *leaves[] = {&g->input, &g->state, &g->slot};
    for (uint32_t t = 0; map && t < 3; t++)
        for (uint32_t i = 0; i < leaves[t]->n; i++)
            leaves[t]->v[i].shape = map[leaves[t]->v[i].shape];
    for (ref r = 1; map && r < g->nnode; r++) {
        struct node *n = &g->node[r];
        int64_t *dim[2];
        n->shape = map[n->shape];
        for (unsigned i = node_dims(n, dim); i-- > 0;)
            *dim[i] = bound_dim(g, b, *dim[i]);
    }
    for (uint32_t i = 0; map && i < g->ncustom; i++)
        for (uint32_t k = 0; k < g->custom[i].nresult; k++)
            g->custom[i].result[k].shape = map[g->custom[i].result[k].shape];
    mem_free(map);
    for (uint32_t i = 0; i < g->nregion; i++) {
        bind_graph(g->region[i], b, to);
        if (g->region[i]->err.code)
            err_set(&g->err, g->region[i]->err.code, "%s", g->region[i]->err.msg);
    }
}

/* No order of a sum may depend on sizes that symbols said. */
static void mark_any_size(struct graph *g)
{
    for (ref r = 1; r < g->nnode; r++)
        if (op_is_product(g->node[r].op) && g->node[r].dtype == KL_BF16)
            g->node[r].attr.dot.order |= DOT_ANY_SIZE;
    for (uint32_t i = 0; i < g->nregion; i++)
        mark_any_size(g->region[i]);
}

bool graph_move_symbols(struct graph *g, const struct graph *to)
{
    struct graph keep[2] = {0};
    struct symbol_binding b = {.from = &keep[0]};
    if (!g->symbols || g->symbols == to->symbols)
        return symbols_share(g, to);
    for (uint32_t i = 0; i < g->symbols->n; i++) {
        const struct symbol *v = &g->symbols->v[i];
        b.map[i] = to->symbols ? graph_symbol_find(to, v->name, strlen(v->name)) : NO_SYMBOL;
        if (b.map[i] == NO_SYMBOL)
            return err_set(&g->err, KL_ERR_INTERNAL, "graph @%s has no symbol %s", to->name, v->name);
    }
    symbols_use(&keep[0], g->symbols);
    symbols_use(&keep[1], to->symbols);
    bind_graph(g, &b, to->symbols);
    symbols_release(&keep[0]);
    symbols_release(&keep[1]);
    return g->err.code == KL_OK;
}

bool graph_bind_numbers(struct graph *g, number_of_affine *number, const void *ctx)
{
    struct graph keep = {0}; /* the table, until all regions have changed over */
    struct symbol_binding b = {.from = &keep, .number = number, .ctx = ctx};
    symbols_use(&keep, g->symbols);
    mark_any_size(g);
    bind_graph(g, &b, NULL);
    symbols_release(&keep);
    return g->err.code == KL_OK;
}

int graph_bind(struct graph *g)
{
    struct symbols *from = g->symbols, *to = NULL;
    struct graph keep[2] = {0}; /* both tables, until all regions have changed over */
    struct symbol_binding b = {.from = &keep[0]};
    uint32_t left = 0;
    for (uint32_t i = 0; from && i < from->n; i++)
        b.map[i] = from->v[i].low == from->v[i].high ? NO_SYMBOL : left++;
    if (!from || left == from->n)
        return 0;
    if (left && !(to = mem_alloc(sizeof *to)))
        return err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name), -1;
    for (uint32_t i = 0; i < from->n; i++)
        if (b.map[i] != NO_SYMBOL)
            to->v[to->n++] = from->v[i];
    symbols_use(&keep[0], from);
    mark_any_size(g);
    symbols_use(&keep[1], to);
    bind_graph(g, &b, to);
    symbols_release(&keep[0]);
    symbols_release(&keep[1]);
    return g->err.code ? -1 : 1;
}
