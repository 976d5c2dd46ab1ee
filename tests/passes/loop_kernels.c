/* Loops that are one kernel (passes/plan/plan_loop.c, plan_while.c): which are, and that all executors compute the same
 * bits, for carried values that swap, products, indices that are computed, loops in loops, and sizes around those of
 * vectors.
 *
 * Argument: instructions of a part of a loop, so that the loops here are cut into parts as long ones are. */
#include "passes/plan/plan.h"
#include "tests/support/harness.h"

enum { CARRIED = 2 };

static struct rng rng = {45};

static void yield(struct graph *b, ref r) { graph_output(b, OUT_RETURN, r, 0); }

/* in: a [n], b [n], x [n], w [n, n]; yields the next a and b, and what is stacked */
typedef void loop_body(struct graph *b, const ref *in, int64_t n);

static void swapped(struct graph *b, const ref *in, int64_t n)
{
    (void)n;
    yield(b, in[1]);
    yield(b, n_add(b, in[0], in[2]));
    yield(b, in[0]);
}

static void products(struct graph *b, const ref *in, int64_t n)
{
    struct shape row = shape_make(2, (int64_t[]){1, n}), s = shape_make(1, &n);
    union attr contract = {.dot = {.ncon = 1, .con_a = 1}};
    ref y = n_reshape(b, n_dot(b, n_reshape(b, in[0], &row), in[3], &contract), &s);
    yield(b, n_tanh(b, n_add(b, y, in[2])));
    yield(b, n_sub(b, in[1], n_broadcast(b, n_reduce(b, OP_reduce_max, in[0], 1), &s)));
    yield(b, n_reduce(b, OP_sum, n_mul(b, y, in[1]), 1));
}

/* The element whose index is b[0], rounded, of a. */
static void indexed(struct graph *b, const ref *in, int64_t n)
{
    if (!n) {
        swapped(b, in, n);
        return;
    }
    struct shape s = shape_make(1, &n), one = shape_make(1, (int64_t[]){1});
    ref index = n_reshape(b, n_cast(b, n_slice(b, in[1], 0, 0, 1, 1), KL_I32), &one);
    ref element = n_gather(b, in[0], index, 0);
    yield(b, n_add(b, n_broadcast(b, element, &s), in[2]));
    yield(b, n_add(b, in[1], n_k(b, in[1], 1)));
    yield(b, element);
}

/* A loop in the loop: b is added to a row by row of w. */
static void nested(struct graph *b, const ref *in, int64_t n)
{
    struct graph *inner = graph_new("inner");
    struct shape s = shape_make(1, &n);
    ref h = n_input(inner, KL_F32, &s, "h"), x = n_input(inner, KL_F32, &s, "x");
    yield(inner, n_add(inner, n_mul(inner, h, n_k(inner, h, 0.5)), x));
    union attr attr = {.region = {.carried = 1, .scanned = 1, .length = n, .flags = REGION_REVERSE}};
    ref loop = graph_add_region(b, &(struct node){.op = OP_scan, .attr = attr}, (ref[]){in[0], in[3]}, 2,
                                (struct graph *[]){inner, NULL});
    yield(b, n_proj(b, loop, 0));
    yield(b, n_mul(b, in[1], in[2]));
    yield(b, in[2]);
}

/* If a's sum is below x's: b, and a's sums with x; else a times x, and a. */
static void branching(struct graph *b, const ref *in, int64_t n)
{
    struct graph *yes = graph_new("then"), *no = graph_new("else");
    struct shape s = shape_make(1, &n), scalar = {0};
    ref y[] = {n_input(yes, KL_F32, &s, "a"), n_input(yes, KL_F32, &s, "b"), n_input(yes, KL_F32, &s, "x")};
    ref z[] = {n_input(no, KL_F32, &s, "a"), n_input(no, KL_F32, &s, "b"), n_input(no, KL_F32, &s, "x")};
    yield(yes, y[1]);
    yield(yes, n_add(yes, n_broadcast(yes, n_reduce(yes, OP_sum, y[0], 1), &s), y[2]));
    yield(no, n_mul(no, z[0], z[2]));
    yield(no, z[0]);
    ref sum[2] = {n_reduce(b, OP_sum, in[0], 1), n_reduce(b, OP_sum, in[2], 1)};
    ref less = n_reshape(b, n_lt(b, sum[0], sum[1]), &scalar);
    ref cond = graph_add_region(b, &(struct node){.op = OP_cond}, (ref[]){less, in[0], in[1], in[2]}, 4,
                                (struct graph *[]){yes, no});
    yield(b, n_proj(b, cond, 0));
    yield(b, n_add(b, n_proj(b, cond, 1), in[1]));
    yield(b, n_proj(b, cond, 1));
}

/* Each element needs only elements of its own number. */
static void elementwise(struct graph *b, const ref *in, int64_t n)
{
    (void)n;
    ref half = n_k(b, in[0], 0.5), next = n_add(b, n_mul(b, in[0], half), n_mul(b, in[1], in[2]));
    yield(b, next);
    yield(b, n_sub(b, in[0], n_mul(b, in[1], half)));
    yield(b, next);
}

/* The first gradient is a sum over all iterations, of a product with what no iteration changes. */
static void summed(struct graph *b, const ref *in, int64_t n)
{
    struct shape row = shape_make(2, (int64_t[]){1, n}), s = shape_make(1, &n);
    union attr contract = {.dot = {.ncon = 1, .con_a = 1, .con_b = 1}};
    ref y = n_reshape(b, n_dot(b, n_reshape(b, in[2], &row), in[3], &contract), &s);
    yield(b, n_add(b, in[0], y));
    yield(b, n_add(b, n_mul(b, in[1], in[2]), n_broadcast(b, n_reduce(b, OP_sum, y, 1), &s)));
    yield(b, in[1]);
}

static const struct { const char *name; loop_body *body; } bodies[] = {
    {"swapped", swapped},   {"elementwise", elementwise}, {"summed", summed}, {"products", products},
    {"indexed", indexed},   {"nested", nested},           {"branching", branching}};

/* carried: CARRIED, or 0: a and b are scanned, as x is, and all results are stacked. */
static struct graph *make_loop(loop_body *make, uint32_t carried, int64_t n, int64_t length, bool reverse)
{
    struct graph *g = graph_new("loop"), *b = graph_new("body");
    struct shape s = shape_make(1, &n), all = shape_make(2, (int64_t[]){length, n}),
                 square = shape_make(2, (int64_t[]){n, n}), *first = carried ? &s : &all;
    ref in[] = {n_input(b, KL_F32, &s, "a"), n_input(b, KL_F32, &s, "b"), n_input(b, KL_F32, &s, "x"),
                n_input(b, KL_F32, &square, "w")};
    make(b, in, n);
    ref out[] = {n_input(g, KL_F32, first, "a"), n_input(g, KL_F32, first, "b"), n_input(g, KL_F32, &all, "x"),
                 n_input(g, KL_F32, &square, "w")};
    union attr attr = {.region = {.carried = carried, .scanned = CARRIED + 1 - carried, .length = length,
                                  .flags = reverse ? REGION_REVERSE : 0}};
    ref loop = graph_add_region(g, &(struct node){.op = OP_scan, .attr = attr}, out, 4,
                                (struct graph *[]){b, NULL});
    for (uint32_t i = 0; i <= CARRIED; i++)
        yield(g, n_proj(g, loop, i));
    return g;
}

/* The program of a graph, of which *h becomes a copy; NULL: it cannot be planned. */
static struct program *planned(const struct graph *g, const char *what, struct graph **h)
{
    struct caps caps = {.vector_bytes = 32, .vector_regs = 16, .threads = 2, .l1_bytes = 32 << 10};
    struct err e = {0};
    *h = graph_clone(g);
    bool ok = passes_run(*h, &(struct pass_options){.fuse = true, .verify = true});
    struct program *p = ok ? program_plan(*h, &caps, false, &e) : NULL;
    check(p && program_check(p, &e), "%s: %s%s", what, (*h)->err.msg, e.msg);
    return p;
}

/* Commands of the program that are loops, not kernels; below 0: it cannot be planned. */
static int loops_of(const struct graph *g, const char *what)
{
    struct graph *h;
    struct program *p = planned(g, what, &h);
    int loops = 0;
    for (uint32_t i = 0; p && i < p->ncmd; i++)
        loops += p->cmd[i].kind == CMD_REGION;
    program_free(p);
    graph_free(h);
    return p ? loops : -1;
}

static void every_body(void)
{
    static const struct { int64_t n, length; bool reverse; } size[] = {
        {1, 5, false}, {3, 1, true}, {3, 4, false}, {4, 0, false}, {0, 3, true}, {8, 3, true}, {15, 2, false},
        {16, 3, true}, {17, 3, false}, {64, 2, true}, {96, 3, false}};
    for (unsigned k = 0; k < sizeof bodies / sizeof *bodies; k++)
        for (unsigned i = 0; i < sizeof size / sizeof *size; i++) {
            struct graph *g = make_loop(bodies[k].body, CARRIED, size[i].n, size[i].length, size[i].reverse);
            struct values in = {0};
            char what[64];
            snprintf(what, sizeof what, "%s of %" PRId64 ", %" PRId64 " times", bodies[k].name, size[i].n,
                     size[i].length);
            if (check(!g->err.code, "%s: %s", what, g->err.msg)) {
                check(loops_of(g, what) == 0, "%s is no kernel", what);
                values_random(&rng, g, &g->input, true, &in);
                agree_everywhere(g, &in, &(struct values){0}, NULL, what);
                values_free(&in);
            }
            graph_free(g);
        }
}

/* ---- while ---- */

/* Two values of [n] that are exchanged and added so often. */
static struct graph *make_while(int64_t n, int64_t iterations)
{
    struct graph *g = graph_new("while"), *c = graph_new("condition"), *b = graph_new("body");
    struct shape s = shape_make(1, &n), scalar = {0};
    ref limit = n_const(g, KL_I32, (uint64_t)iterations);
    ref out[] = {n_const(g, KL_I32, 0), n_input(g, KL_F32, &s, "a"), n_input(g, KL_F32, &s, "b"), limit};
    ref at = n_input(c, KL_I32, &scalar, "i");
    n_input(c, KL_F32, &s, "a"), n_input(c, KL_F32, &s, "b");
    yield(c, n_lt(c, at, n_input(c, KL_I32, &scalar, "n")));
    ref i = n_input(b, KL_I32, &scalar, "i"), x = n_input(b, KL_F32, &s, "a"), y = n_input(b, KL_F32, &s, "b");
    n_input(b, KL_I32, &scalar, "n");
    yield(b, n_add(b, i, n_const(b, KL_I32, 1)));
    yield(b, y);
    yield(b, n_add(b, n_mul(b, x, n_k(b, x, 0.5)), y));
    ref loop = graph_add_region(g, &(struct node){.op = OP_while, .attr.region.carried = 3}, out, 4,
                                (struct graph *[]){c, b});
    for (uint32_t k = 0; k < 3; k++)
        yield(g, n_proj(g, loop, k));
    return g;
}

/* Does the body of the one while run several iterations in a kernel? */
static bool body_is_kernel(const struct graph *g, const char *what)
{
    struct graph *h;
    struct program *p = planned(g, what, &h);
    bool whole = false;
    for (uint32_t i = 0; p && i < p->ncmd; i++)
        if (p->cmd[i].kind == CMD_REGION)
            whole = p->cmd[i].sub[1]->ncmd == 1 && !p->kernel[p->cmd[i].sub[1]->cmd[0].kernel]->family;
    program_free(p);
    graph_free(h);
    return whole;
}

/* A kernel runs up to 256 iterations. */
static void whiles(void)
{
    static const struct { int64_t n, iterations; } size[] = {{3, 0}, {3, 1}, {1, 255}, {4, 256}, {17, 257}, {2, 513}};
    for (unsigned i = 0; i < sizeof size / sizeof *size; i++) {
        struct graph *g = make_while(size[i].n, size[i].iterations);
        struct values in = {0};
        char what[64];
        snprintf(what, sizeof what, "while of %" PRId64 ", %" PRId64 " times", size[i].n, size[i].iterations);
        if (check(!g->err.code, "%s: %s", what, g->err.msg)) {
            check(body_is_kernel(g, what), "%s is no kernel", what);
            values_random(&rng, g, &g->input, true, &in);
            agree_everywhere(g, &in, &(struct values){0}, NULL, what);
            values_free(&in);
        }
        graph_free(g);
    }
}

/* The kernel of a loop whose elements are lanes is shared out over threads. */
static void lanes(void)
{
    struct graph *g = make_loop(elementwise, CARRIED, 256, 5000, false);
    struct caps caps = {.vector_bytes = 32, .vector_regs = 16, .threads = 2, .l1_bytes = 32 << 10};
    struct err e = {0};
    bool ok = passes_run(g, &(struct pass_options){.fuse = true, .verify = true}), shared = false;
    struct program *p = ok ? program_plan(g, &caps, false, &e) : NULL;
    for (uint32_t i = 0; p && i < p->nkernel; i++)
        shared |= p->kernel[i]->extent == 8 && p->kernel[i]->sched.grain == 1;
    check(shared, "256 loops are not shared out: %s%s", g->err.msg, e.msg);
    program_free(p);
    graph_free(g);
}

/* Each element needs all others. */
static void coupled(struct graph *b, const ref *in, int64_t n)
{
    struct shape s = shape_make(1, &n);
    yield(b, in[1]);
    yield(b, n_sub(b, in[0], n_broadcast(b, n_reduce(b, OP_reduce_max, in[2], 1), &s)));
    yield(b, in[0]);
}

/* Has the program a kernel of several parts, that is not shared out? */
static bool is_in_parts(const struct graph *g, const char *what)
{
    struct graph *h;
    struct program *p = planned(g, what, &h);
    bool parts = false;
    for (uint32_t i = 0; p && i < p->nkernel; i++)
        parts |= p->kernel[i]->extent > 1 && kernel_is_in_order(p->kernel[i]) && !p->kernel[i]->sched.grain;
    program_free(p);
    graph_free(h);
    return parts;
}

/* Every number of parts of 1 to 8 iterations, forwards and backwards: with a short last part, or with none. */
static void parts(int64_t most)
{
    unsigned n = 0;
    for (unsigned k = 0; k < sizeof bodies / sizeof *bodies; k++)
        for (int64_t length = 1; length <= 8; length++) {
            struct graph *g = make_loop(bodies[k].body, CARRIED, 3 + length % 2, length, length & 2);
            struct values in = {0};
            char what[64];
            snprintf(what, sizeof what, "%s, %" PRId64 " times, parts of %" PRId64, bodies[k].name, length, most);
            if (check(!g->err.code, "%s: %s", what, g->err.msg)) {
                n += is_in_parts(g, what);
                values_random(&rng, g, &g->input, true, &in);
                agree_everywhere(g, &in, &(struct values){0}, NULL, what);
                values_free(&in);
            }
            graph_free(g);
        }
    check(n >= 10, "%u loops are in parts", n);
}

/* Iterations that carry nothing are shared out over threads, in parts of every number of iterations: all in one, a
 * short last one, one in each. */
static void independent(void)
{
    static const int64_t works[] = {1, 100, 200, 400, 1000, 4000, 1 << 14};
    unsigned kernels = 0, tasks = 0;
    for (unsigned k = 0; k < sizeof bodies / sizeof *bodies; k++)
        for (int64_t length = 0; length <= 9; length += 1 + (length > 4) * 2)
            for (unsigned i = 0; i < sizeof works / sizeof *works; i++) {
                int64_t n = (int64_t[]){1, 3, 16, 17}[(k + i) % 4];
                struct graph *g = make_loop(bodies[k].body, 0, n, length, i & 1), *h;
                struct values in = {0};
                char what[64];
                plan_loop_task_work = works[i];
                snprintf(what, sizeof what, "%s, %" PRId64 " alone, %" PRId64, bodies[k].name, length, works[i]);
                if (check(!g->err.code, "%s: %s", what, g->err.msg)) {
                    check(loops_of(g, what) == 0, "%s is no kernel", what);
                    struct program *p = planned(g, what, &h);
                    kernels += p && p->nkernel == 1;
                    tasks += p && p->nkernel == 1 && p->kernel[0]->extent > 1 && p->kernel[0]->sched.grain == 1;
                    program_free(p);
                    graph_free(h);
                    values_random(&rng, g, &g->input, true, &in);
                    agree_everywhere(g, &in, &(struct values){0}, NULL, what);
                    values_free(&in);
                }
                graph_free(g);
            }
    check(tasks >= 100 && tasks < kernels, "%u of %u kernels are shared out", tasks, kernels);
    plan_loop_task_work = 1 << 14;
}

/* Values up to a number of bytes are in scratch memory; a loop that takes long is still one kernel. */
static void limits(void)
{
    static const struct { int64_t n, length; int loops; } size[] = {
        {1000, 10, 0}, {32000, 10, 0}, {48000, 10, 1}, {100000, 10, 1}, {16, 1 << 16, 0}, {16, 1 << 26, 0}};
    for (unsigned i = 0; i < sizeof size / sizeof *size; i++) {
        struct graph *g = make_loop(coupled, CARRIED, size[i].n, size[i].length, false);
        int loops = loops_of(g, "limits");
        check(loops == size[i].loops, "%" PRId64 " numbers, %" PRId64 " times: %d loops", size[i].n, size[i].length,
              loops);
        graph_free(g);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        plan_loop_part_work = atoll(argv[1]);
        parts(plan_loop_part_work);
        return finish();
    }
    every_body();
    whiles();
    lanes();
    independent();
    limits();
    return finish();
}
