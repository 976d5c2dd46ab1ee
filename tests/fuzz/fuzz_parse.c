/* libFuzzer target: any bytes as .kir text, and whatever can be done with a graph that parses (tests/fuzz.sh).
 *
 * A text gives a graph or "line:column: reason".  A graph verifies, prints to text that parses to the same graph and
 * prints the same again, clones, survives every pass, becomes kernels that verify and a plan that the checker
 * accepts, and, where it is small, runs on the interpreter, one with symbols also with
 * their least values.  Text that is no graph is tried as kernels, which verify and
 * print to text that parses to the same kernels. */
#include "ir/graph/custom.h"
#include "ir/loop/loop.h"
#include "ir/text/text.h"
#include "passes/passes.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);

/* Passes and kernels are for graphs that differentiate and lower in no time. */
enum { MAX_NODES = 200, MAX_GRADS = 2, MAX_WORK = 1 << 14, MAX_LEAVES = 64 };

#define MUST(ok, ...) ((ok) ? (void)0 : (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), abort()))

static void must_be_positioned(const struct err *e)
{
    unsigned line, column;
    int n = 0;
    MUST(e->code == KL_ERR_PARSE, "status %s: %s", status_name(e->code), e->msg);
    MUST(sscanf(e->msg, "%u:%u: %n", &line, &column, &n) == 2 && n && e->msg[n], "no position: %s", e->msg);
}

static void must_verify(const struct graph *g, const char *when)
{
    struct err e = {0};
    MUST(graph_verify(g, &e), "%s: %s", when, e.msg);
}

static void must_print_back(const struct graph *g)
{
    struct err e = {0};
    char *text = graph_text(g);
    MUST(text, "printing failed");
    struct graph *back = graph_parse(text, strlen(text), NULL, &e);
    MUST(back, "%s\nis what the graph prints to: %s", text, e.msg);
    char *again = graph_text(back);
    MUST(again && !strcmp(text, again), "%s\nprints again as\n%s", text, again);
    struct hash128 a = graph_hash(g), b = graph_hash(back);
    MUST(a.lo == b.lo && a.hi == b.hi && graph_same(g, back), "%s\nis another graph", text);
    graph_free(back);
    mem_free(text);
    mem_free(again);
}

/* ---- what follows parsing ---- */

static void count(const struct graph *g, unsigned *nodes, unsigned *grads)
{
    *nodes += g->nnode;
    for (ref r = 1; r < g->nnode; r++)
        *grads += g->node[r].op == OP_grad;
    for (uint32_t i = 0; i < g->nregion; i++)
        count(g->region[i], nodes, grads);
}

static bool is_small(const struct graph *g)
{
    unsigned nodes = 0, grads = 0;
    count(g, &nodes, &grads);
    return nodes <= MAX_NODES && grads <= MAX_GRADS;
}

static void run_pass(struct graph *g, const struct pass_info *p)
{
    int changed = pass_run(p, g, NULL);
    MUST((changed < 0) == (g->err.code != KL_OK), "pass %s: result %d, error '%s'", p->name, changed, g->err.msg);
    if (changed >= 0)
        must_verify(g, p->name);
}

static void check_program(const struct graph *g)
{
    static const struct caps caps = {.vector_bytes = 64, .vector_regs = 32, .threads = 4, .l1_bytes = 32 << 10,
                                     .l2_bytes = 1 << 20, .l3_bytes = 8 << 20};
    struct err e = {0};
    struct program *p = program_plan(g, &caps, false, &e);
    MUST(p || e.code, "no program and no error");
    for (uint32_t i = 0; p && i < p->nkernel; i++)
        MUST(kernel_verify(p->kernel[i], &e), "kernel %u: %s", i, e.msg);
    MUST(!p || program_check(p, &e), "plan: %s", e.msg);
    program_free(p);
}

/* A loop may run forever: graphs with regions are not run. */
static bool is_quick(const struct graph *g)
{
    int64_t work = g->nregion ? MAX_WORK + 1 : 0;
    for (ref r = 1; r < g->nnode && work <= MAX_WORK; r++) {
        int64_t n = node_numel(g, r);
        work += n > MAX_WORK ? MAX_WORK + 1 : n;
        if (g->node[r].op == OP_dot) {
            struct dot_dims d = dot_sizes(g, node_at(g, r));
            work += d.k > MAX_WORK || n > MAX_WORK ? MAX_WORK + 1 : n * d.k;
        }
    }
    return work <= MAX_WORK && g->input.n <= MAX_LEAVES && g->state.n <= MAX_LEAVES && g->slot.n <= MAX_LEAVES;
}

/* Runs on zeros: a leaf that no node reads may be huge, so it has no data. */
static void interpret(const struct graph *g)
{
    static const uint64_t zeros[MAX_WORK + 1];
    const void *in[MAX_LEAVES];
    void **out = mem_alloc(g->nout * sizeof *out);
    bool ok = out;
    for (unsigned i = 0; i < MAX_LEAVES; i++)
        in[i] = zeros;
    for (uint32_t i = 0; ok && i < g->nout; i++)
        ok = (out[i] = mem_alloc(node_bytes(g, g->out[i].value)));
    struct err e = {0};
    if (ok)
        MUST(interp_run(g, &(struct bind){.input = in, .state = in, .slot = zeros, .out = out}, &e),
             "the interpreter: %s", e.msg);
    for (uint32_t i = 0; out && i < g->nout; i++)
        mem_free(out[i]);
    mem_free(out);
}

/* A few passes in an order that the text decides, then all of them. */
static void check_passes(const struct graph *parsed)
{
    struct graph *g = graph_clone(parsed);
    MUST(g && graph_same(parsed, g), "the clone is another graph");
    uint64_t order = graph_hash(g).lo;
    for (unsigned i = 0; i < 4 && !g->err.code; i++, order /= pass_count)
        run_pass(g, &pass_list[order % pass_count]);
    if (!g->err.code)
        must_print_back(g);
    for (unsigned i = 0; i < pass_count && !g->err.code; i++)
        run_pass(g, &pass_list[i]);
    if (!g->err.code) {
        check_program(g);
        struct err e = {0}; /* an op that is not registered cannot run */
        if (!g->symbols && is_quick(g) && custom_check(g, &e))
            interpret(g);
    }
    graph_free(g);
}

static void bind_min(struct graph *g)
{
    struct err e = {0};
    for (uint32_t i = 0; i < g->symbols->n; i++)
        MUST(graph_symbol_set(g, i, g->symbols->v[i].low, &e), "%s", e.msg);
    MUST(graph_bind(g) == 1 && !g->symbols, "symbols are left");
    must_verify(g, "bound");
    must_print_back(g);
}

static void check_kernels(const char *text, size_t size)
{
    struct err e = {0};
    struct kernels k = {0}, back = {0};
    if (!kernel_parse(text, size, NULL, &lower_families, &k, &e))
        must_be_positioned(&e);
    for (uint32_t i = 0; i < k.n; i++) {
        char *s = kernel_text(k.v[i]), *again;
        MUST(s && kernel_parse(s, strlen(s), NULL, &lower_families, &back, &e),
             "%s\nis what the kernel prints to: %s", s, e.msg);
        MUST(kernel_same(k.v[i], back.v[i]), "%s\nis another kernel", s);
        again = kernel_text(back.v[i]);
        MUST(again && !strcmp(s, again), "%s\nprints again as\n%s", s, again);
        mem_free(s);
        mem_free(again);
    }
    kernels_free(&k);
    kernels_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct graph *g = graph_parse((const char *)data, size, NULL, &e);
    if (!g) {
        must_be_positioned(&e);
        check_kernels((const char *)data, size);
        return 0;
    }
    must_verify(g, "parsed");
    must_print_back(g);
    bool small = is_small(g);
    if (small)
        check_passes(g);
    if (g->symbols) {
        bind_min(g);
        if (small)
            check_passes(g);
    }
    graph_free(g);
    return 0;
}

/* ---- mutations that know lines and tokens ---- */

struct span { size_t at, len; };

static bool in_token(uint8_t c) { return is_name_char((char)c) || c == '%'; }

/* A random line, its line break included, or a random token; len 0: there is none. */
static struct span pick(const uint8_t *s, size_t size, bool line)
{
    size_t at = size ? (size_t)rand() % size : 0, end;
    while (at && (line ? s[at - 1] != '\n' : in_token(s[at - 1])))
        at--;
    for (end = at; end < size && (line ? s[end] != '\n' : in_token(s[end]));)
        end++;
    return (struct span){at, end - at + (line && end < size)};
}

/* Puts n bytes where `old` stands; the size stays as it is if they do not fit. */
static size_t replace(uint8_t *s, size_t size, size_t max, struct span old, const void *with, size_t n)
{
    if (size - old.len + n > max)
        return size;
    memmove(s + old.at + n, s + old.at + old.len, size - old.at - old.len);
    memcpy(s + old.at, with, n);
    return size - old.len + n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    static const char *const numbers[] = {"0", "1", "2", "3", "7", "8", "64", "65", "512", "4294967295", "4294967296",
                                          "2305843009213693952", "4611686018427387904", "9223372036854775807",
                                          "18446744073709551615"};
    srand(seed);
    bool line = rand() % 2;
    struct span from = pick(data, size, line), to = pick(data, size, line);
    uint8_t part[256];
    size_t n = from.len < sizeof part ? from.len : sizeof part;
    memcpy(part, data + from.at, n);
    switch (rand() % 6) {
    case 0: /* a copy: a second line, or a token in place of another */
        to.len = line ? 0 : to.len;
        return replace(data, size, max, to, part, n);
    case 1: /* gone */
        return replace(data, size, max, from, "", 0);
    case 2: { /* a number in place of a token */
        const char *s = numbers[(size_t)rand() % (sizeof numbers / sizeof *numbers)];
        return replace(data, size, max, pick(data, size, false), s, strlen(s));
    }
    default:
        return LLVMFuzzerMutate(data, size, max);
    }
}
