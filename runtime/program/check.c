/* Option check_nan: an output that is NaN, or infinite, is an error.  A program runs as usual, but into fresh memory,
 * and its outputs are checked.  If one has such an element, the interpreter runs the recorded graph node by node on the
 * same inputs, which are unchanged, and finds the node that made it. */
#include "ir/graph/custom.h"
#include "runtime/runtime.h"
#include <math.h>
#include <string.h>

/* The index of the first invalid element; -1: none. */
static int64_t find_bad(unsigned dtype, const void *data, int64_t n, bool infinities)
{
    if (!dtype_is_float(dtype))
        return -1;
    size_t size = dtype_size(dtype);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, (const char *)data + (size_t)i * size, size);
        double v = dtype_value(dtype, bits);
        if (v != v || (infinities && isinf(v)))
            return i;
    }
    return -1;
}

enum { WORDS = 640 };
struct made { ref r; char text[WORDS]; };

/* State of the interpreter's run, which a callback updates after each node. */
struct search {
    const struct graph *g;       /* the whole graph; other graphs are regions of it */
    bool infinities, failed;
    bool *bad;                   /* per node: has an invalid element */
    struct made *made;           /* nodes with an invalid element but no operand with one, in order */
    uint32_t nmade, cap;
    char inner[WORDS];           /* the first of these in the regions of the current region op; "": none */
};

static void put_value(char *text, size_t n, unsigned dtype, const void *data, int64_t i)
{
    uint64_t bits = 0;
    memcpy(&bits, (const char *)data + (size_t)i * dtype_size(dtype), dtype_size(dtype));
    double v = dtype_value(dtype, bits);
    size_t at = strlen(text);
    format_text(text + at, n - at, "%.9g", v != v ? NAN : v); /* prints NaN without a sign */
}

/* "file:line: log makes it: nan from -1, element 3 of %4 = log %3 : f32[8]"; in[]: operands of an elementwise op */
static void nan_check_describe(const struct graph *g, ref r, int64_t element, void *const *in, const void *out,
                               char *text, size_t n)
{
    const struct node *node = node_at(g, r);
    const kl_site *s = &g->site[node->site];
    char *line = node_text(g, r), value[64] = "";
    size_t at = 0;
    put_value(value, sizeof value, node->dtype, out, element);
    text[0] = 0;
    at = strlen(site_text(s, "", ": ", text, n < 220 ? n : 220));
    bool leaf = op_is_leaf(node->op);
    at += (size_t)snprintf(text + at, n - at, leaf ? "%s is there already: %s" : "%s makes it: %s",
                           opinfo[node->op].name, value);
    for (unsigned i = 0; in && op_is_elementwise(node->op) && i < node->nin && at < n; i++) {
        snprintf(text + at, n - at, i ? ", " : " from ");
        put_value(text, n, node_at(g, node->in[i])->dtype, in[i], element);
        at = strlen(text);
    }
    if (line)
        line[strcspn(line, "#")] = 0;
    for (size_t k = line ? strlen(line) : 0; k && line[k - 1] == ' ';)
        line[--k] = 0;
    if (at < n)
        snprintf(text + at, n - at, ", element %lld of %.200s", (long long)element, line ? line : "");
    mem_free(line);
}

/* The first invalid element of a value; of a region op, whose results are stored one after the other, 0 if there is
 * one. */
static int64_t nan_check_look(const struct search *s, const struct graph *g, ref r, const void *value)
{
    const struct node *n = node_at(g, r);
    const char *at = value;
    if (!op_is_region(n->op))
        return find_bad(n->dtype, value, node_numel(g, r), s->infinities);
    for (uint32_t i = 0; i < region_results(g, n); i++) {
        struct shape shape;
        unsigned dtype = region_result(g, n, i, &shape);
        if (find_bad(dtype, at, shape_count(&shape), s->infinities) >= 0)
            return 0;
        at += (region_result_bytes(g, n, i) + 63) / 64 * 64;
    }
    return -1;
}

static bool operand_bad(const struct search *s, const struct graph *g, const struct node *n, void *const *value)
{
    bool bad = false;
    for (unsigned i = 0; i < node_nin(n) && !bad; i++) {
        ref x = node_in(g, n, i);
        bad = g == s->g ? s->bad[x] : nan_check_look(s, g, x, value[x]) >= 0;
    }
    return bad;
}

static void describe_difference(const struct graph *g, ref r, int64_t element, void *const *value, char *text)
{
    const struct node *n = node_at(g, r);
    void *in[MAX_OPERANDS] = {0};
    if (op_is_region(n->op)) {
        char at[220];
        snprintf(text, WORDS, "%s%s makes it", site_text(&g->site[n->site], "", ": ", at, sizeof at),
                 opinfo[n->op].name);
        return;
    }
    for (unsigned i = 0; i < n->nin; i++)
        in[i] = value[n->in[i]];
    nan_check_describe(g, r, element, in, value[r], text, WORDS);
}

static void see_node(void *ctx, const struct graph *g, ref r, void *const *value)
{
    struct search *s = ctx;
    const struct node *n = node_at(g, r);
    int64_t element = nan_check_look(s, g, r, value[r]);
    if (g != s->g) {
        if (element >= 0 && !*s->inner && !op_is_leaf(n->op) && !operand_bad(s, g, n, value))
            describe_difference(g, r, element, value, s->inner);
        return;
    }
    s->bad[r] = element >= 0;
    if (s->bad[r] && !operand_bad(s, g, n, value)) {
        if (mem_reserve(&s->made, &s->cap, s->nmade + 1, sizeof *s->made)) {
            struct made *m = &s->made[s->nmade++];
            m->r = r;
            if (op_is_region(n->op) && *s->inner)
                memcpy(m->text, s->inner, WORDS);
            else
                describe_difference(g, r, element, value, m->text);
        } else {
            s->failed = true;
        }
    }
    if (op_is_region(n->op))
        s->inner[0] = 0;
}

/* The first node that made an invalid element from which one of an output follows.  NULL: none was found. */
static const char *first_made(struct search *s)
{
    bool *reached = mem_alloc(s->g->nnode * sizeof *reached);
    const char *text = NULL;
    for (uint32_t i = 0; reached && i < s->g->nout; i++)
        reached[s->g->out[i].value] |= s->bad[s->g->out[i].value];
    for (ref r = s->g->nnode; reached && r-- > 1;)
        for (unsigned i = 0; reached[r] && i < node_nin(node_at(s->g, r)); i++)
            reached[node_in(s->g, node_at(s->g, r), i)] |= s->bad[node_in(s->g, node_at(s->g, r), i)];
    for (uint32_t i = 0; reached && i < s->nmade && !text; i++)
        text = reached[s->made[i].r] ? s->made[i].text : NULL;
    mem_free(reached);
    return text;
}

/* ---- the run ---- */

struct values { const void **input, **state; void **out; };

static bool read_values(const struct graph *g, struct buffer *const *input, struct buffer *const *state,
                        struct buffer *const *out,
                        struct values *v)
{
    v->input = mem_alloc(g->input.n * sizeof *v->input);
    v->state = mem_alloc(g->state.n * sizeof *v->state);
    v->out = mem_alloc(g->nout * sizeof *v->out);
    if (!v->input || !v->state || !v->out)
        return false;
    for (uint32_t i = 0; i < g->input.n; i++)
        v->input[i] = input[i]->data;
    for (uint32_t i = 0; i < g->state.n; i++)
        v->state[i] = state[i]->data;
    for (uint32_t i = 0; i < g->nout; i++)
        v->out[i] = out[i]->data; /* the outputs are discarded, so the interpreter may write there */
    return true;
}

static bool check_report(const struct graph *recorded, struct buffer *const *input, struct buffer *const *state,
                         const uint64_t *slot, struct buffer *const *out, bool infinities, struct err *e)
{
    struct err why = {0};
    struct graph *g = reference_graph(recorded, graph_device(recorded), true, 0, &why);
    struct search s = {.g = g, .infinities = infinities, .bad = g ? mem_alloc(g->nnode * sizeof *s.bad) : NULL};
    struct values v = {0};
    struct interp_watch watch = {see_node, &s};
    const char *text = NULL, *what = infinities ? "a value is NaN or infinite" : "a value is NaN";
    if (s.bad && read_values(g, input, state, out, &v)) {
        struct bind bind = {(const void *const *)v.input, (const void *const *)v.state, slot, v.out, &watch, NULL};
        bool ok = reference_run(g, &bind, true, &why); /* kl_print has printed already */
        text = ok && !s.failed ? first_made(&s) : NULL;
    }
    if (text)
        err_set(e, KL_ERR_CHECK, "%s: %s", what, text);
    else if (why.code)
        err_set(e, KL_ERR_CHECK, "%s; where it comes from was not found: %.150s", what, why.msg);
    else
        err_set(e, KL_ERR_CHECK, "%s, and no memory to find out where it comes from", what);
    mem_free(s.bad);
    mem_free(s.made);
    mem_free(v.input);
    mem_free(v.state);
    mem_free(v.out);
    graph_free(g);
    return false;
}

static bool outputs_good(const struct graph *g, struct buffer *const *out, bool infinities)
{
    bool good = true;
    for (uint32_t i = 0; i < g->nout && good; i++) {
        ref r = g->out[i].value;
        good = find_bad(node_at(g, r)->dtype, out[i]->data, node_numel(g, r), infinities) < 0;
    }
    return good;
}

/* No state is overwritten in place. */
static bool run_checked(const struct exec *x, const struct graph *recorded, struct buffer *const *input,
                        struct buffer *const *state, const uint64_t *slot, struct buffer **out, struct err *e)
{
    bool infinities = option_check_nan() == CHECK_INFINITIES;
    if (exec_latest(x)->accelerated)
        return err_set(e, KL_ERR_DEVICE,
                       "option check_nan looks at values on ref and cpu, not on a device with memory of its own");
    bool *exclusive = mem_alloc((recorded->state.n + 1) * sizeof *exclusive); /* none is */
    if (!exclusive)
        return err_set(e, KL_ERR_MEMORY, "out of memory checking @%s", recorded->name);
    bool ok = exec_run(x, input, state, exclusive, slot, out, e);
    mem_free(exclusive);
    if (ok && !outputs_good(recorded, out, infinities)) {
        ok = check_report(recorded, input, state, slot, out, infinities, e);
        for (uint32_t i = 0; i < recorded->nout; i++) {
            buffer_unref(out[i]);
            out[i] = NULL;
        }
    }
    return ok;
}

/* What is looked at has numbers for its symbols. */
bool exec_run_checked(const struct exec *x, const struct graph *recorded, struct buffer *const *input,
                      struct buffer *const *state,
                      const bool *state_exclusive, const uint64_t *slot, struct buffer **out, struct err *e)
{
    if (!option_check_nan()) return exec_run(x, input, state, state_exclusive, slot, out, e);
    if (!recorded->symbols) return run_checked(x, recorded, input, state, slot, out, e);
    struct graph *g = graph_clone(recorded);
    bool ok = g || err_set(e, KL_ERR_MEMORY, "out of memory checking @%s", recorded->name);
    for (uint32_t i = 0; ok && i < recorded->symbols->n; i++)
        ok = graph_symbol_set(g, i, (int64_t)slot[g->slot.n + i], e);
    if (ok && graph_bind(g) < 0)
        ok = err_set(e, g->err.code, "%s", g->err.msg);
    ok = ok && run_checked(x, g, input, state, slot, out, e);
    graph_free(g);
    return ok;
}
