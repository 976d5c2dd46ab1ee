/* --bind NAME=NUMBER: values for the symbols of a graph. */
#include "frontend/cli.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void cli_bind_option(struct cli_values *v, struct cli_args *a)
{
    const char *s = cli_value(a), *eq = s ? strchr(s, '=') : NULL;
    if (!s)
        return;
    a->failed = true; /* until it is understood */
    char *end = NULL;
    errno = 0;
    long long value = eq ? strtoll(eq + 1, &end, 10) : 0;
    if (!eq || eq == s || end == eq + 1 || *end || errno || value < 0) {
        cli_error("--bind needs NAME=NUMBER, not '%s'", s);
        return;
    }
    if (v->n == MAX_SYMBOLS) {
        cli_error("more than %d values for symbols", MAX_SYMBOLS);
        return;
    }
    v->name[v->n] = s;
    v->len[v->n] = (size_t)(eq - s);
    v->value[v->n++] = value;
    a->failed = false;
}

bool cli_set_symbols(struct graph *g, const struct cli_values *v)
{
    struct err e = {0};
    for (unsigned i = 0; i < v->n; i++) {
        uint32_t symbol = graph_symbol_find(g, v->name[i], v->len[i]);
        if (symbol == NO_SYMBOL) {
            cli_error("--bind: the graph has no symbol '%.*s'", (int)v->len[i], v->name[i]);
            return false;
        }
        if (!graph_symbol_set(g, symbol, v->value[i], &e)) {
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
