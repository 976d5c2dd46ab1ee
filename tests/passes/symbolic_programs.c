/* Programs of graphs with symbols: for several values of the symbols, the least and the greatest among them, the bits
 * that the interpreter gives for the graph with these numbers; fused and unfused, with one thread and with two.
 *
 *   symbolic_programs [COUNT [SEED]]
 *
 * The graphs are those of tests/text/agree_symbolic_*.kir, which have to have one program for all values, and random
 * ones: it says how many of these have one, and why others have not.  Run from the root of the tree. */
#include "tests/support/random/random_make.h"
#include <glob.h>

enum { VALUES = 5, FILE_VALUES = 40, PLANS = 8, REASONS = 64, MAX_ELEMENTS = 1 << 27 };

static struct { char text[200]; unsigned n; } reason[REASONS];
static unsigned nreason, whole, split;

static void count_reason(const char *text)
{
    unsigned i = 0;
    while (i < nreason && strcmp(reason[i].text, text))
        i++;
    if (i == REASONS)
        return;
    snprintf(reason[i].text, sizeof reason[i].text, "%.*s", (int)sizeof reason[i].text - 1, text);
    reason[i].n++;
    nreason += i == nreason;
}

/* Has the graph one program?  Notes why not, and checks its plan. */
static bool look(const struct graph *s, bool fuse, const uint64_t *slot, struct rng *r)
{
    struct err e = {0};
    const struct exec *x = exec_get(s, device_find("cpu", &e), fuse, &e);
    char text[512] = "";
    if (!check(x != NULL, "%s", e.msg))
        return false;
    bool one = !x->variants;
    if (!one) {
        exec_pick_why(x, slot, text, sizeof text);
        const char *why = strstr(text, "of its own: ");
        text[strcspn(text, "\n")] = 0;
        count_reason(why ? why + strlen("of its own: ") : text);
    }
    for (int k = 0; one && x->program->placeholders.n && k < PLANS; k++) { /* the plan, for random values */
        uint64_t some[MAX_VALUES + MAX_SYMBOLS] = {0};
        const struct placeholders *i = &x->program->placeholders;
        for (uint32_t v = 0; v < i->n && !placeholder_is_sum(&i->v[v]); v++)
            some[i->v[v].slot] = (uint64_t)(i->v[v].low + rng_below(r, i->v[v].high - i->v[v].low + 1));
        check(program_check_for(x->program, some, &e), "%s", e.msg);
        int64_t offset[MAX_LAYOUT_VALUES], bound = program_arenas(x->program);
        check(!x->program->layout || layout_offsets(x->program, some, offset) <= bound, "the arena outgrows its bound");
    }
    exec_unref(x);
    return one;
}

static struct graph *bound(const struct graph *s, const uint64_t *value)
{
    struct err e = {0};
    struct graph *g = graph_clone(s);
    bool ok = g != NULL;
    for (uint32_t i = 0; ok && i < s->symbols->n; i++)
        ok = graph_symbol_set(g, i, (int64_t)value[i], &e);
    if (ok && graph_bind(g) == 1)
        return g;
    check(false, "bind: %s", e.code ? e.msg : g ? g->err.msg : "no memory");
    graph_free(g);
    return NULL;
}

static bool same_outputs(const struct graph *g, const struct values *a, const struct values *b, const char *what)
{
    bool ok = a->n == b->n;
    for (uint32_t i = 0; ok && i < a->n; i++) {
        const struct node *n = node_at(g, g->out[i].value);
        int64_t at;
        if (!same_values(n->dtype, a->v[i], b->v[i], node_numel(g, g->out[i].value), &at)) {
            printf("%s: output %u, element %" PRId64 " is %.9g, not %.9g\n", what, i, at,
                   element_value(n->dtype, a->v[i], at), element_value(n->dtype, b->v[i], at));
            ok = false;
        }
    }
    return ok;
}

/* Would the interpreter need much memory for it, gradients included?  Several symbols may have their greatest values at
 * once. */
static bool is_large(const struct graph *captured)
{
    int64_t elements = 0;
    struct graph *g = graph_clone(captured);
    bool ok = check(g && pass_run(pass_find("autodiff", 8), g, NULL) >= 0, "gradients: %s",
                    g ? g->err.msg : "no memory");
    for (ref r = 1; ok && r < g->nnode; r++)
        elements += node_numel(g, r);
    graph_free(g);
    return elements > MAX_ELEMENTS;
}

static void compare(const struct graph *s, struct rng *r, const char *name, const uint64_t *value, bool fuse)
{
    struct graph *g = bound(s, value);
    if (!g || g->input.n > MAX_VALUES || g->state.n > MAX_VALUES || g->slot.n + s->symbols->n > MAX_VALUES ||
        g->nout > MAX_VALUES || is_large(g)) {
        graph_free(g);
        return;
    }
    struct values in, st, sl, want = {0}, got = {0};
    uint64_t slot[MAX_VALUES] = {0};
    struct err e = {0};
    bool wild = rng_below(r, 2);
    values_random(r, g, &g->input, wild, &in);
    values_random(r, g, &g->state, wild, &st);
    values_random(r, g, &g->slot, wild, &sl);
    for (uint32_t i = 0; i < sl.n; i++)
        memcpy(&slot[i], sl.v[i], dtype_size(g->slot.v[i].dtype));
    for (uint32_t i = 0; i < s->symbols->n; i++)
        slot[g->slot.n + i] = value[i];
    pool_set_threads(1 + (unsigned)rng_below(r, 2));
    bool ok = run_on(g, "ref", true, &in, &st, slot, &want, &e) &&
              run_for_values(s, g, "cpu", fuse, &in, &st, slot, &got, &e);
    if (!check(ok && same_outputs(g, &got, &want, fuse ? "fused" : "unfused"), "%s, %s = %" PRIu64
               "%s: %s", name, s->symbols->v[0].name, value[0], s->symbols->n > 1 ? ", .." : "",
               e.msg)) {
        graph_print(s, stdout);
        fflush(stdout);
    }
    values_free(&in);
    values_free(&st);
    values_free(&sl);
    values_free(&want);
    values_free(&got);
    graph_free(g);
}

/* Returns in how many of the two ways the graph has one program. */
static unsigned run_graph(const struct graph *s, const char *name, uint64_t seed, int values)
{
    uint64_t value[MAX_SYMBOLS] = {0}, zero[MAX_VALUES + MAX_SYMBOLS] = {0};
    struct rng r = {seed * UINT64_C(0x9e3779b97f4a7c15) | 1};
    unsigned ones = 0;
    for (int fuse = 0; fuse < 2; fuse++) {
        bool one = s->slot.n < MAX_VALUES && look(s, fuse, zero, &r);
        ones += one;
        for (int k = 0; one && k < values; k++) {
            for (uint32_t i = 0; i < s->symbols->n; i++) {
                const struct symbol *v = &s->symbols->v[i];
                int64_t some = v->low + rng_below(&r, v->high - v->low + 1);
                value[i] = (uint64_t)(k == 0 ? v->low : k == 1 ? v->high : some);
            }
            compare(s, &r, name, value, fuse);
        }
    }
    return ones;
}

static void run_seed(uint64_t seed)
{
    int64_t found[MAX_SYMBOLS];
    char name[64];
    struct graph *g = random_graph(seed), *s = g->err.code ? NULL : random_symbolic(g, seed, found);
    snprintf(name, sizeof name, "graph of seed %" PRIu64, seed);
    unsigned ones = s ? run_graph(s, name, seed, VALUES) : 0;
    whole += ones;
    split += s ? 2 - ones : 0;
    graph_free(s);
    graph_free(g);
}

static void run_file(const char *path)
{
    static char text[1 << 16];
    struct err e = {0};
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f)
        fclose(f);
    struct graph *s = graph_parse(text, n, path, &e);
    if (check(s != NULL, "%s: %s", path, e.msg))
        check(run_graph(s, path, 1, FILE_VALUES) == 2, "%s: it has no program for all values", path);
    for (unsigned i = 0; s && i < nreason; i++)
        printf("%s: %s\n", path, reason[i].text);
    nreason = 0;
    graph_free(s);
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 0) : 200, seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    struct err e = {0};
    test_ops();
    int cpu = device_find("cpu", &e);
    if (cpu < 0 || !device_backend(cpu, NULL)) {
        skipped++;
        printf("skipped: no code generator for cpu\n");
        return finish();
    }
    glob_t files;
    check(!glob("tests/text/agree_symbolic_*.kir", 0, NULL, &files), "no files in tests/text");
    for (size_t i = 0; i < files.gl_pathc; i++)
        run_file(files.gl_pathv[i]);
    globfree(&files);
    for (uint64_t i = 0; i < count; i++)
        run_seed(seed + i);
    printf("%u programs for all values, %u with one for each value:\n", whole, split);
    for (unsigned i = 0; i < nreason; i++)
        printf("  %4u  %s\n", reason[i].n, reason[i].text);
    check(count < 100 || whole > count / 20, "few graphs have one program for all values");
    return finish();
}
