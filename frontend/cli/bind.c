/* Values of a graph's symbols: --bind NAME=NUMBER, --bind NAME=LOW..HIGH for narrower bounds, the shapes of arrays. */
#include "job.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void cli_bind_option(struct cli_args *a, void *values)
{
    struct cli_values *v = values;
    const char *s = cli_value(a), *eq = s ? strchr(s, '=') : NULL;
    if (!s)
        return;
    a->failed = true; /* until it is understood */
    char *end = NULL;
    errno = 0;
    long long low = eq ? strtoll(eq + 1, &end, 10) : 0, high = low;
    bool number = eq && eq != s && end != eq + 1;
    if (number && !strncmp(end, "..", 2)) {
        const char *second = end + 2;
        high = strtoll(second, &end, 10);
        number = end != second;
    }
    if (!number || *end || errno || low < 0 || high < low) {
        cli_error("--bind needs NAME=NUMBER or NAME=LOW..HIGH, not '%s'", s);
        return;
    }
    if (v->n == MAX_SYMBOLS) {
        cli_error("more than %d values for symbols", MAX_SYMBOLS);
        return;
    }
    v->name[v->n] = s;
    v->len[v->n] = (size_t)(eq - s);
    v->high[v->n] = high;
    v->value[v->n++] = low;
    a->failed = false;
}

static bool set_symbol(struct graph *g, uint32_t symbol, int64_t low, int64_t high, struct err *e)
{
    struct symbol *s = &g->symbols->v[symbol];
    if (low == high)
        return graph_symbol_set(g, symbol, low, e);
    if (low < s->low || high > s->high)
        return err_set(e, KL_ERR_SHAPE, "graph @%s: symbol %s cannot be %" PRId64 "..%" PRId64 ": its bounds are "
                       "%" PRId64 "..%" PRId64, g->name, s->name, low, high, s->low, s->high);
    s->low = low;
    s->high = high;
    return true;
}

bool cli_set_symbols(struct graph *g, const struct cli_values *v)
{
    struct err e = {0};
    for (unsigned i = 0; i < v->n; i++) {
        uint32_t symbol = graph_symbol_find(g, v->name[i], v->len[i]);
        if (symbol == NO_SYMBOL && v->some)
            continue;
        if (symbol == NO_SYMBOL) {
            cli_error("--bind: the graph has no symbol '%.*s'", (int)v->len[i], v->name[i]);
            return false;
        }
        if (!set_symbol(g, symbol, v->value[i], v->high[i], &e)) {
            cli_error("%s", e.msg);
            return false;
        }
    }
    return true;
}

bool cli_bind(struct graph *g)
{
    if (graph_bind(g) >= 0)
        return true;
    cli_error("%s", g->err.msg);
    return false;
}

/* ---- the shapes of the arrays that a graph runs on ---- */

enum { WHAT = 160 };

static void add_extents(const struct graph *g, const struct leaves *l, const struct job_array *a, struct extents *x,
                        uint32_t *n, char (*what)[WHAT])
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (!a[i].bytes || !shape_is_symbolic(&g->shape[l->v[i].shape]))
            continue;
        snprintf(what[*n], WHAT, "%s: %s '%.*s'", a[i].from->value, a[i].from->option + 2, (int)a[i].from->name_len,
                 a[i].from->name);
        x[*n] = (struct extents){what[*n], g->shape[l->v[i].shape], a[i].array.shape};
        ++*n;
    }
}

static bool find_values(struct job *j, int64_t *value)
{
    struct graph *g = j->g;
    struct err e = {0};
    uint32_t n = 0, max = g->input.n + g->state.n;
    struct extents *x = mem_alloc(max * sizeof *x);
    char (*what)[WHAT] = mem_alloc(max * sizeof *what);
    bool ok = x && what;
    if (ok) {
        add_extents(g, &g->input, j->read_input, x, &n, what);
        add_extents(g, &g->state, j->read_state, x, &n, what);
        ok = symbols_match(g, x, n, value, &e);
    }
    if (!ok)
        cli_error("%s", e.code ? e.msg : "out of memory");
    mem_free(x);
    mem_free(what);
    return ok;
}

bool job_bind_symbols(struct job *j)
{
    struct graph *g = j->g;
    struct err e = {0};
    int64_t value[MAX_SYMBOLS];
    if (!cli_set_symbols(g, &j->values))
        return false;
    if (!g->symbols)
        return true;
    for (uint32_t i = 0; i < g->symbols->n; i++) {
        const struct symbol *s = &g->symbols->v[i];
        value[i] = s->low == s->high ? s->low : NO_VALUE;
    }
    if (!find_values(j, value))
        return false;
    for (uint32_t i = 0; i < g->symbols->n; i++) {
        if (value[i] == NO_VALUE) {
            cli_error("no array's shape says what symbol %s is: give --bind %s=NUMBER", g->symbols->v[i].name,
                      g->symbols->v[i].name);
            return false;
        }
        if (!graph_symbol_set(g, i, value[i], &e)) {
            cli_error("%s", e.msg);
            return false;
        }
    }
    return cli_bind(g);
}
