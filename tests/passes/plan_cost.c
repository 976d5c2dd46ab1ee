/* What planning costs, counted: steps of its searches a node, and memory beside that of the program that it makes, grow
 * no faster than the graph.  Times would depend on the machine. */
#include "bench/growing.h"
#include "passes/passes.h"
#include "tests/support/graph_test.h"
#include <malloc.h>
#include <stdatomic.h>

/* From one size to the next, 4 to 6 times as large.  The logarithms of search trees and of the ranges at their nodes
 * are below this; what visits all other values or groups for each one is 4 to 6. */
static const double MAX_GROWTH = 2.5;

/* ---- memory of the library, counted ---- */

static atomic_size_t now, peak;

static void *counted(void *p, size_t before)
{
    size_t all = atomic_fetch_add(&now, (p ? malloc_usable_size(p) : 0) - before) - before +
                 (p ? malloc_usable_size(p) : 0);
    if (all > atomic_load(&peak))
        atomic_store(&peak, all);
    return p;
}

static void *count_alloc(void *ctx, size_t bytes) { return (void)ctx, counted(malloc(bytes), 0); }

static void *count_grow(void *ctx, void *p, size_t bytes)
{
    size_t before = p ? malloc_usable_size(p) : 0;
    void *q = realloc(p, bytes);
    (void)ctx;
    return q ? counted(q, before) : NULL;
}

static void count_release(void *ctx, void *p)
{
    (void)ctx;
    atomic_fetch_sub(&now, malloc_usable_size(p));
    free(p);
}

/* ---- graphs ---- */

/* Each layer writes a state, which all that follows depends on, and returns what it makes of the old one: is that
 * before the write?  In every second layer it is recorded behind the write. */
static struct graph *make_states(int nodes)
{
    struct graph *g = graph_new("states");
    struct shape s = shape_make(2, (int64_t[]){WIDTH, WIDTH});
    ref x = n_input(g, KL_F32, &s, "x");
    for (uint32_t i = 0; (int)g->nnode < nodes; i++) {
        ref state = n_state(g, KL_F32, &s, "s"), old = NIL, next;
        if (i % 2)
            old = n_exp(g, n_permute(g, state, (const uint8_t[]){1, 0}));
        next = n_tanh(g, n_permute(g, n_add(g, state, x), (const uint8_t[]){1, 0}));
        if (!old)
            old = n_exp(g, n_permute(g, state, (const uint8_t[]){1, 0}));
        x = n_permute(g, n_sin(g, n_mul(g, x, next)), (const uint8_t[]){1, 0});
        graph_output(g, OUT_ASSIGN, next, i);
        graph_output(g, OUT_RETURN, old, 0);
    }
    graph_output(g, OUT_RETURN, x, 0);
    return g;
}

struct cost { double steps, memory, arena; };

/* Plans a graph; steps a node, memory as a multiple of the program's, arena as one of the least that there can be. */
static struct cost plan_cost(struct graph *make(int), int nodes, const struct caps *caps)
{
    struct cost c = {0};
    struct err e = {0};
    struct graph *g = make(nodes);
    if (!CHECK(!g->err.code && passes_run(g, &(struct pass_options){.fuse = true})))
        return graph_free(g), c;
    size_t start = atomic_load(&now);
    uint64_t steps = atomic_load(&pass_steps);
    atomic_store(&peak, start);
    struct program *p = program_plan(g, caps, false, &e);
    if (CHECK(p != NULL)) {
        CHECK(program_check(p, &e));
        c.steps = (double)(atomic_load(&pass_steps) - steps) / g->nnode;
        c.memory = (double)(atomic_load(&peak) - start) / (double)program_bytes(p);
        int64_t least = p->lower_bound_bytes - p->peak_bytes + program_arenas(p);
        c.arena = least ? (double)program_arenas(p) / (double)least : 1;
    }
    if (e.code)
        printf("%s\n", e.msg);
    program_free(p);
    graph_free(g);
    return c;
}

static void test_growth(const char *name, struct graph *make(int), const struct caps *caps)
{
    enum { SIZES = 4 };
    static const int nodes[SIZES] = {1000, 4000, 16000, 100000};
    struct cost c[SIZES];
    for (int i = 0; i < SIZES; i++) {
        c[i] = plan_cost(make, nodes[i], caps);
        printf("%s: %d nodes: %.1f steps a node, %.2f times the program's memory, %.3f times the least arena\n", name,
               nodes[i], c[i].steps, c[i].memory, c[i].arena);
        CHECK(!i || c[i].steps < MAX_GROWTH * c[i - 1].steps);
        CHECK(c[i].memory < 5);
        CHECK(c[i].arena < 1.15);
    }
}

int main(void)
{
    kl_memory memory = {.alloc = count_alloc, .grow = count_grow, .release = count_release};
    struct caps caps = {.name = "test", .vector_bytes = 32, .vector_regs = 16};
    if (!mem_use(&memory))
        return 1;
    test_growth("chain", make_chain, &caps);
    test_growth("step", make_step, &caps);
    test_growth("states", make_states, &caps);
    printf("%u passed, %u failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
