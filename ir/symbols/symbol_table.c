/* The table of a graph's symbols and of the expressions over them: shared with its regions and with what passes build
 * from it, all of one owner. */
#include "ir/text/text.h"
#include <inttypes.h>
#include <string.h>

void symbols_release(struct graph *g)
{
    struct symbols *s = g->symbols;
    g->symbols = NULL;
    if (!s || --s->users)
        return;
    mem_free(s->expr);
    mem_free(s->expr_index.slot);
    mem_free(s);
}

void symbols_use(struct graph *g, struct symbols *s)
{
    if (s)
        s->users++;
    symbols_release(g);
    g->symbols = s;
}

/* Regions that were made before they had a graph around them take its table. */
bool symbols_share(struct graph *g, const struct graph *from)
{
    if (g->symbols == from->symbols)
        return true;
    if (g->symbols)
        return err_set(&g->err, KL_ERR_INTERNAL, "graph @%s has other symbols than graph @%s", g->name, from->name);
    symbols_use(g, from->symbols);
    bool ok = true;
    for (uint32_t i = 0; ok && i < g->nregion; i++)
        ok = symbols_share(g->region[i], g) || err_set(&g->err, g->region[i]->err.code, "%s", g->region[i]->err.msg);
    return ok;
}

static bool symbol_table_no_memory(struct graph *g)
{
    return err_set(&g->err, KL_ERR_MEMORY, "graph @%s: out of memory", g->name);
}

/* Ids stay what they are: so do dims. */
bool symbols_copy(struct graph *g, const struct symbols *from)
{
    if (!from)
        return true;
    struct symbols *s = mem_alloc(sizeof *s);
    if (!s)
        return symbol_table_no_memory(g);
    s->n = from->n;
    memcpy(s->v, from->v, sizeof s->v);
    s->varies = from->varies;
    symbols_use(g, s);
    for (uint32_t i = 0; i < from->nexpr; i++) {
        int64_t d;
        if (!intern_expression(s, &from->expr[i], &d))
            return symbol_table_no_memory(g);
    }
    return true;
}

/* One more than the greatest symbol in it. */
static uint32_t symbols_of_affine(const struct affine *a)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t last = a->term[i].times ? a->term[i].times : a->term[i].symbol + 1; /* the greater of two */
        n = last > n ? last : n;
    }
    return n;
}

struct symbols *symbols_of_shapes(const struct graph *g, struct symbols *table)
{
    uint32_t n = 0;
    for (uint32_t i = 0; g->symbols && i < g->nshape; i++)
        for (uint32_t k = 0; k < g->shape[i].rank; k++) {
            struct affine a;
            uint32_t of_dim = dim_affine(g, g->shape[i].dim[k], &a) ? symbols_of_affine(&a) : 0;
            n = of_dim > n ? of_dim : n;
        }
    if (!n)
        return NULL;
    *table = *g->symbols;
    table->n = n;
    memset(table->v + n, 0, (MAX_SYMBOLS - n) * sizeof *table->v);
    while (symbols_of_affine(&table->expr[table->nexpr - 1]) > n)
        table->nexpr--;
    return table;
}

static bool refuse_symbol(struct graph *g, const char *name, const char *why)
{
    return err_set(&g->err, KL_ERR_ARGUMENT, "symbol %.64s: %s", name, why);
}

uint32_t graph_symbol(struct graph *g, const char *name, int64_t low, int64_t high)
{
    if (g->err.code == KL_OK && (g->nnode > 1 || g->input.n || g->state.n || g->slot.n))
        refuse_symbol(g, name, "symbols are declared before nodes and leaves");
    return graph_symbol_add(g, name, low, high);
}

uint32_t graph_symbol_add(struct graph *g, const char *name, int64_t low, int64_t high)
{
    if (g->err.code != KL_OK)
        return NO_SYMBOL;
    const char *why = NULL;
    if (!is_name(name) || strlen(name) >= sizeof g->symbols->v[0].name)
        why = "a symbol's name starts with a letter and has at most 23 letters, digits, '_' and '.'";
    else if (graph_symbol_find(g, name, strlen(name)) != NO_SYMBOL)
        why = "the symbol is declared already";
    else if (low < 0 || low > high || high > MAX_DIM)
        why = "a symbol's bounds are two numbers, the smaller first, and below 2^59";
    else if (g->symbols && g->symbols->n == MAX_SYMBOLS)
        why = "a graph has at most 64 symbols";
    if (why) {
        refuse_symbol(g, name, why);
        return NO_SYMBOL;
    }
    if (!g->symbols) {
        struct symbols *s = mem_alloc(sizeof *s);
        if (!s) {
            symbol_table_no_memory(g);
            return NO_SYMBOL;
        }
        symbols_use(g, s);
    }
    struct symbol *s = &g->symbols->v[g->symbols->n];
    *s = (struct symbol){.low = low, .high = high};
    memcpy(s->name, name, strlen(name));
    return g->symbols->n++;
}

uint32_t graph_symbol_find(const struct graph *g, const char *name, size_t len)
{
    for (uint32_t i = 0; g->symbols && i < g->symbols->n; i++)
        if (strlen(g->symbols->v[i].name) == len && !memcmp(g->symbols->v[i].name, name, len))
            return i;
    return NO_SYMBOL;
}

bool graph_symbol_set(struct graph *g, uint32_t symbol, int64_t value, struct err *e)
{
    struct symbol *s = &g->symbols->v[symbol];
    if (value < s->low || value > s->high)
        return err_set(e, KL_ERR_SHAPE, "graph @%s: symbol %s cannot be %" PRId64 ": its bounds are %" PRId64
                       "..%" PRId64, g->name, s->name, value, s->low, s->high);
    s->low = s->high = value;
    return true;
}

bool graph_is_bound(const struct graph *g, struct err *e)
{
    return !g->symbols || err_set(e, KL_ERR_SHAPE, "graph @%s: symbol %s has no value yet: pass bind puts in the value "
                                  "of a symbol that can have only one", g->name, g->symbols->v[0].name);
}

/* ---- verifying ---- */

bool symbols_verify(const struct graph *g, struct err *e)
{
    const struct symbols *s = g->symbols;
    const char *why = NULL;
    if (!s)
        return true;
    if (!s->n || s->n > MAX_SYMBOLS)
        why = "has no symbols, or too many";
    for (uint32_t i = 0; !why && i < s->n; i++) {
        const struct symbol *v = &s->v[i];
        if (!memchr(v->name, 0, sizeof v->name) || !is_name(v->name) ||
            graph_symbol_find(g, v->name, strlen(v->name)) != i)
            why = "has a symbol without a name of its own";
        else if (v->low < 0 || v->low > v->high || v->high > MAX_DIM)
            why = "has a symbol with bad bounds";
    }
    return !why || err_set(e, KL_ERR_INTERNAL, "graph @%.63s: the table of symbols %s", g->name, why);
}

/* Has term k its symbols in order, and stands it behind the one before it? */
static bool term_is_behind(const struct affine *a, uint32_t k, uint32_t symbols)
{
    const struct symbol_term *t = &a->term[k], *before = k ? t - 1 : NULL;
    bool legal = !t->times || (t->times <= symbols && t->times > t->symbol);
    return legal && (!before || before->symbol < t->symbol ||
                     (before->symbol == t->symbol && before->times < t->times));
}

const char *dim_verify(const struct graph *g, int64_t d)
{
    struct affine a;
    int64_t low, high, again;
    if (!dim_affine(g, d, &a))
        return "has a dimension that is neither a number nor an expression";
    for (uint32_t k = 0; k < a.n && k < MAX_SYMBOL_TERMS; k++)
        if (a.term[k].symbol >= g->symbols->n || !a.term[k].by || !term_is_behind(&a, k, g->symbols->n))
            return "has a dimension whose terms are not in order";
    if (a.n > MAX_SYMBOL_TERMS || !affine_range(g, &a, &low, &high) || low < 0)
        return "has a dimension that may be negative or too large";
    bool once = d >= 0 || (intern_expression(g->symbols, &a, &again) && again == d);
    return once ? NULL : "has a dimension interned twice";
}
