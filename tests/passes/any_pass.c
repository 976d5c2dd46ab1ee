/* Any pass runs on any valid graph, in any order, as often as one likes, and no result changes by a bit.
 *
 *   any_pass [COUNT [SEED]]    (without arguments: 300 random graphs)
 *
 * The graphs are those of tests/text and random ones.  Each goes through every pass alone and twice, every pair of
 * passes, and random longer lists.  After each pass the graph must verify and its text must mean the same graph; a
 * pass that says it changed nothing must have changed nothing.  Then bind, autodiff and numerics complete the graph,
 * and the interpreter must give what it gives without the list, bit for bit.  Graphs with symbols, some of them random
 * ones, do all this with symbols that get their values at the end, and with some that have them from the start, for
 * pass bind to put in anywhere. */
#include "tests/support/random/random_make.h"
#include <dirent.h>

enum { MAX_LIST = 12, RANDOM_LISTS = 12, MAX_DISTINCT = 64 };
/* Graphs of tests/text that ask for more than this are verified and not run. */
enum { MAX_ELEMENTS = 1 << 20 };
enum { SOME_SIZE = 3 };   /* that a symbol has, above its least */

struct list { unsigned n; uint8_t pass[MAX_LIST]; };

struct subject {
    const char *name;
    const struct graph *g;
    bool differentiable, runs;    /* autodiff takes it; the interpreter has run it */
    struct values in, st, out;    /* what it ran on, and what came out */
    uint64_t slot[MAX_VALUES];
    struct hash128 seen[MAX_DISTINCT]; /* completed graphs whose results are known to be the same */
    unsigned nseen;
};

static const char *list_text(const struct list *l)
{
    static char buf[MAX_LIST * 24];
    size_t n = 0;
    for (unsigned i = 0; i < l->n; i++)
        n += (size_t)snprintf(buf + n, sizeof buf - n, "%s%s", i ? "," : "", pass_list[l->pass[i]].name);
    return buf;
}

/* ---- running ---- */

static bool small_enough(const struct graph *g)
{
    int64_t sum = 0;
    for (ref r = 1; r < g->nnode; r++) {
        int64_t work = node_numel(g, r);
        if (g->node[r].op == OP_dot) {
            struct dot_dims d = dot_sizes(g, node_at(g, r));
            work += work > MAX_ELEMENTS || d.k > MAX_ELEMENTS ? MAX_ELEMENTS : work * d.k;
        }
        sum += work > MAX_ELEMENTS ? MAX_ELEMENTS : work;
        if (sum >= MAX_ELEMENTS)
            return false;
    }
    return g->input.n <= MAX_VALUES && g->state.n <= MAX_VALUES && g->slot.n <= MAX_VALUES && g->nout <= MAX_VALUES;
}

/* Symbols get the value that is so far above their least one. */
static void set_symbols(struct graph *g, int64_t above)
{
    struct err e = {0};
    for (uint32_t i = 0; g->symbols && i < g->symbols->n; i++) {
        const struct symbol *s = &g->symbols->v[i];
        graph_symbol_set(g, i, s->high - s->low < above ? s->high : s->low + above, &e);
    }
}

/* What is left to do before the interpreter can run g. */
static bool complete(struct graph *g)
{
    set_symbols(g, SOME_SIZE);
    return pass_run(pass_find("bind", 4), g, NULL) >= 0 && pass_run(pass_find("autodiff", 8), g, NULL) >= 0 &&
           pass_run(pass_find("numerics", 8), g, NULL) >= 0;
}

static bool interpret(const struct subject *s, const struct graph *g, struct values *out, struct err *e)
{
    out->n = g->nout;
    for (uint32_t i = 0; i < g->nout; i++)
        out->v[i] = calloc(node_bytes(g, g->out[i].value) + 1, 1);
    const struct bind b = {.input = (const void *const *)s->in.v, .state = (const void *const *)s->st.v,
                           .slot = s->slot, .out = out->v};
    return interp_run(g, &b, e);
}

static void run_first(struct subject *s)
{
    struct rng r = {UINT64_C(0x9e3779b97f4a7c15)};
    struct values slots;
    struct err e = {0};
    struct graph *g = graph_clone(s->g), *as_it_is = graph_clone(s->g);
    s->differentiable = pass_run(pass_find("autodiff", 8), as_it_is, NULL) >= 0;
    graph_free(as_it_is);
    s->runs = complete(g) && small_enough(g) && custom_check(g, &e); /* and no op is one that nobody has registered */
    e = (struct err){0};
    if (s->runs) {
        values_random(&r, g, &g->input, true, &s->in);
        values_random(&r, g, &g->state, true, &s->st);
        values_random(&r, g, &g->slot, true, &slots);
        for (uint32_t i = 0; i < slots.n; i++)
            memcpy(&s->slot[i], slots.v[i], dtype_size(g->slot.v[i].dtype));
        values_free(&slots);
        s->seen[s->nseen++] = graph_hash(g);
        s->runs = check(interpret(s, g, &s->out, &e), "%s: the interpreter: %s", s->name, e.msg);
    }
    graph_free(g);
}

static bool known(struct subject *s, const struct graph *g)
{
    struct hash128 h = graph_hash(g);
    for (unsigned i = 0; i < s->nseen; i++)
        if (s->seen[i].lo == h.lo && s->seen[i].hi == h.hi)
            return true;
    if (s->nseen < MAX_DISTINCT)
        s->seen[s->nseen++] = h;
    return false;
}

/* g, s->g after passes, gives what s->g gives. */
static bool same_results(struct subject *s, struct graph *g, struct err *why)
{
    struct values out = {0};
    if (!complete(g))
        return err_set(why, g->err.code, "the rest of the pipeline: %s", g->err.msg);
    if (known(s, g))
        return true;
    bool ok = interpret(s, g, &out, why) && (g->nout == s->out.n || err_set(why, KL_ERR_INTERNAL, "other outputs"));
    for (uint32_t i = 0; ok && i < g->nout; i++) {
        unsigned dtype = g->node[g->out[i].value].dtype;
        int64_t at;
        ok = same_values(dtype, s->out.v[i], out.v[i], node_numel(g, g->out[i].value), &at) ||
             err_set(why, KL_ERR_INTERNAL, "output %u element %" PRId64 " is %.17g, %.17g without the passes", i, at,
                     element_value(dtype, out.v[i], at), element_value(dtype, s->out.v[i], at));
    }
    values_free(&out);
    return ok;
}

/* ---- passes ---- */

static bool means_the_same(const struct graph *g, struct err *why)
{
    char *text = graph_text(g), *again = NULL;
    struct graph *back = text ? graph_parse(text, strlen(text), "printed", why) : NULL;
    bool ok = back && (graph_same(g, back) || err_set(why, KL_ERR_INTERNAL, "its text is another graph"));
    ok = ok && (((again = graph_text(back)) && !strcmp(text, again)) ||
                err_set(why, KL_ERR_INTERNAL, "printing it again changes the text"));
    graph_free(back);
    mem_free(text);
    mem_free(again);
    return ok;
}

static bool run_pass(const struct subject *s, struct graph *g, const struct pass_info *p, struct err *why)
{
    struct graph *before = graph_clone(g);
    bool had_groups = g->group;
    int changed = pass_run(p, g, NULL);
    bool ok = true;
    if (changed < 0)
        ok = (p->run == pass_autodiff && !s->differentiable) || err_set(why, g->err.code, "%s", g->err.msg);
    else if (g->err.code)
        ok = err_set(why, g->err.code, "left an error: %s", g->err.msg);
    else if (!changed && (!graph_same(before, g) || had_groups != (g->group != NULL)))
        ok = err_set(why, KL_ERR_INTERNAL, "says it changed nothing, but did");
    ok = ok && (changed < 0 || (graph_verify(g, why) && means_the_same(g, why)));
    graph_free(before);
    return ok;
}

static void run_list(struct subject *s, const struct list *l)
{
    struct graph *g = graph_clone(s->g);
    struct err why = {0};
    bool ok = true;
    unsigned n = 0;
    while (ok && n < l->n && !g->err.code)
        ok = run_pass(s, g, &pass_list[l->pass[n++]], &why);
    if (ok && s->runs && !g->err.code)
        ok = same_results(s, g, &why);
    if (!check(ok, "%s, passes %s, after number %u: %s", s->name, list_text(l), n, why.msg))
        graph_print(s->g, stdout);
    graph_free(g);
}

/* ---- all the lists of a graph ---- */

static void run_lists(const char *name, const struct graph *g, struct rng *r)
{
    struct subject s = {.name = name, .g = g};
    unsigned before = failed;
    run_first(&s);
    for (unsigned i = 0; i < pass_count; i++)
        run_list(&s, &(struct list){1, {(uint8_t)i}});
    for (unsigned i = 0; i < pass_count && failed == before; i++)
        for (unsigned j = 0; j < pass_count; j++)
            run_list(&s, &(struct list){2, {(uint8_t)i, (uint8_t)j}});
    for (unsigned k = 0; k < RANDOM_LISTS && failed == before; k++) {
        struct list l = {.n = 3 + (unsigned)rng_below(r, MAX_LIST - 2)};
        for (unsigned i = 0; i < l.n; i++)
            l.pass[i] = (uint8_t)rng_below(r, pass_count);
        run_list(&s, &l);
    }
    values_free(&s.in);
    values_free(&s.st);
    values_free(&s.out);
}

/* above >= 0: with values from the start. */
static void run_symbols(const char *name, const struct graph *g, int64_t above, struct rng *r)
{
    struct graph *c = graph_clone(g);
    if (above >= 0)
        set_symbols(c, above);
    run_lists(name, c, r);
    graph_free(c);
}

static char *read_text(const char *path, size_t *len)
{
    static char buf[1 << 16];
    FILE *f = fopen(path, "rb");
    *len = f ? fread(buf, 1, sizeof buf - 1, f) : 0;
    if (f)
        fclose(f);
    buf[*len] = 0;
    char *expect = strstr(buf, "\n# expect:\n");
    if (expect)
        *len = (size_t)(expect - buf) + 1;
    return buf;
}

static int is_kir(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return n > 4 && !strcmp(d->d_name + n - 4, ".kir") && strncmp(d->d_name, "error_", 6) != 0;
}

/* Every file that is a graph: all but those that must be refused. */
static void run_folder(const char *folder, struct rng *r)
{
    struct dirent **entry;
    int n = scandir(folder, &entry, is_kir, alphasort);
    check(n > 0, "%s: no graphs", folder);
    for (int i = 0; i < n; i++) {
        char path[1024];
        size_t len;
        struct err e = {0};
        snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
        const char *text = read_text(path, &len);
        struct graph *g = graph_parse(text, len, NULL, &e);
        if (check(g, "%s: %s", path, e.msg))
            run_lists(path, g, r);
        for (int above = 0; g && g->symbols && above <= SOME_SIZE; above += SOME_SIZE)
            run_symbols(path, g, above, r);
        graph_free(g);
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
}

static unsigned symbolic; /* random graphs with symbols */

static void run_symbolic(const char *name, const struct graph *g, uint64_t seed, struct rng *r)
{
    int64_t value[MAX_SYMBOLS];
    struct err why = {0};
    struct graph *s = random_symbolic(g, seed, value);
    if (!s)
        return;
    symbolic++;
    if (!check(symbolic_agrees(g, s, value, &why), "%s with symbols: %s", name, why.msg))
        graph_print(s, stdout);
    run_symbols(name, s, rng_below(r, SOME_SIZE + 2) - 1, r);
    graph_free(s);
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 300, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    struct rng r = {seed * UINT64_C(0x9e3779b97f4a7c15) | 1};
    test_ops();
    run_folder("tests/text", &r);
    for (uint64_t i = 0; i < count && failed < 10; i++) {
        char name[64];
        struct graph *g = random_graph(seed + i);
        snprintf(name, sizeof name, "random graph %" PRIu64, seed + i);
        run_lists(name, g, &r);
        run_symbolic(name, g, seed + i, &r);
        graph_free(g);
    }
    check(count < 30 || symbolic > count / 3, "%u of %" PRIu64 " graphs have a length that may be a symbol", symbolic,
          count);
    return finish();
}
