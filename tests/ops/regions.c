/* Region ops: gradients of first and second order against finite differences, every executor's bits, what a checkpoint
 * saves, keys and plans. */
#include "tests/support/gradient_test.h"

static const struct shape scalar_shape, mat = {.rank = 2, .dim = {2, 2}}, mats = {.rank = 3, .dim = {3, 2, 2}};

static ref input(struct graph *b, const struct shape *s) { return n_input(b, KL_F64, s, "x"); }

static ref matmul(struct graph *g, ref a, ref b)
{
    return n_dot(g, a, b, &(union attr){.dot = {.ncon = 1, .con_a = 1}});
}

static void yield(struct graph *b, ref r) { graph_output(b, OUT_RETURN, r, 0); }

static ref add_region(struct graph *g, unsigned op, union attr attr, const ref *in, uint32_t nin, struct graph *a,
                      struct graph *b)
{
    return graph_add_region(g, &(struct node){.op = (uint16_t)op, .attr = attr}, in, nin, (struct graph *[]){a, b});
}

/* ---- cond ---- */

/* If sum(x1) is above ctx: x0 * x1 and x0, else e^x0 + x1 and x1^2. */
static ref make_cond(struct graph *g, const ref *x, const void *ctx)
{
    struct graph *yes = graph_new("then"), *no = graph_new("else");
    ref a = input(yes, &mat), b = input(yes, &mat), c = input(no, &mat), d = input(no, &mat);
    yield(yes, n_mul(yes, a, b));
    yield(yes, a);
    yield(no, n_add(no, n_exp(no, c), d));
    yield(no, n_mul(no, d, d));
    ref sum = n_reshape(g, n_reduce(g, OP_sum, x[1], 3), &scalar_shape);
    ref p = n_lt(g, n_k(g, sum, *(const double *)ctx), sum);
    ref r = add_region(g, OP_cond, (union attr){0}, (ref[]){p, x[0], x[1]}, 3, yes, no);
    return n_mul(g, n_proj(g, r, 0), n_tanh(g, n_proj(g, r, 1)));
}

/* ---- scan ---- */

struct scan_form { bool reverse, checkpoint, whole; };

/* h' = tanh(h w + x) and y = h'^2 + x; one integer counts along. */
static struct graph *cell(const struct scan_form *form)
{
    struct graph *b = graph_new("cell");
    ref h = input(b, &mat), n = n_input(b, KL_I32, &scalar_shape, "n"), x = input(b, &mat), w = input(b, &mat), next;
    if (form->checkpoint) {
        struct graph *c = graph_new("recomputed");
        ref hc = input(c, &mat), xc = input(c, &mat), wc = input(c, &mat);
        yield(c, n_tanh(c, n_add(c, matmul(c, hc, wc), xc)));
        next = n_proj(b, add_region(b, OP_checkpoint, (union attr){0}, (ref[]){h, x, w}, 3, c, NULL), 0);
    } else {
        next = n_tanh(b, n_add(b, matmul(b, h, w), x));
    }
    ref count = n_add(b, n, n_const(b, KL_I32, 1));
    yield(b, next);
    yield(b, count);
    yield(b, n_add(b, n_mul(b, next, n_mul(b, next, n_broadcast(b, n_cast(b, count, KL_F64), &mat))), x));
    return b;
}

static ref scan(struct graph *g, const struct scan_form *form, ref h, ref xs, ref w)
{
    union attr a = {.region = {.carried = 2, .scanned = 1, .length = 3, .flags = form->reverse ? REGION_REVERSE : 0}};
    return add_region(g, OP_scan, a, (ref[]){h, n_const(g, KL_I32, 0), xs, w}, 4, cell(form), NULL);
}

static ref make_scan(struct graph *g, const ref *x, const void *ctx)
{
    const struct scan_form *form = ctx;
    ref h, ys;
    if (form->whole) { /* the scan itself in a checkpoint */
        struct graph *c = graph_new("whole");
        ref in[] = {input(c, &mat), input(c, &mats), input(c, &mat)};
        ref r = scan(c, form, in[0], in[1], in[2]);
        yield(c, n_proj(c, r, 2));
        yield(c, n_proj(c, r, 0));
        ref k = add_region(g, OP_checkpoint, (union attr){0}, x, 3, c, NULL);
        ys = n_proj(g, k, 0);
        h = n_proj(g, k, 1);
    } else {
        ref r = scan(g, form, x[0], x[1], x[2]);
        h = n_proj(g, r, 0);
        ys = n_proj(g, r, 2);
    }
    return n_mul(g, n_broadcast(g, h, &mats), ys);
}

/* Only the last carried value counts, no slice and no other operand has a gradient: s' = s^2 / 2 + s. */
static ref make_carried(struct graph *g, const ref *x, const void *ctx)
{
    (void)ctx;
    struct graph *b = graph_new("carried");
    ref s = input(b, &mat);
    yield(b, n_add(b, n_mul(b, n_mul(b, s, s), n_k(b, s, 0.5)), s));
    union attr a = {.region = {.carried = 1, .length = 4}};
    return n_proj(g, add_region(g, OP_scan, a, x, 1, b, NULL), 0);
}

/* A cond in a scan: x is added where it is positive, else its square. */
static ref make_nested(struct graph *g, const ref *x, const void *ctx)
{
    (void)ctx;
    struct graph *b = graph_new("body"), *yes = graph_new("then"), *no = graph_new("else");
    ref s = input(b, &scalar_shape), e = input(b, &scalar_shape), a = input(yes, &scalar_shape),
        c = input(no, &scalar_shape);
    yield(yes, a);
    yield(no, n_mul(no, c, n_mul(no, c, c)));
    ref p = n_lt(b, n_k(b, e, 0), e), r = add_region(b, OP_cond, (union attr){0}, (ref[]){p, e}, 2, yes, no);
    ref next = n_add(b, n_mul(b, s, n_k(b, s, 0.5)), n_proj(b, r, 0));
    yield(b, next);
    yield(b, n_mul(b, next, s));
    union attr attr = {.region = {.carried = 1, .scanned = 1, .length = 5}};
    ref k = add_region(g, OP_scan, attr, (ref[]){x[1], x[0]}, 2, b, NULL);
    return n_mul(g, n_proj(g, k, 1), n_broadcast(g, n_proj(g, k, 0), node_shape(g, x[0])));
}

/* ---- checkpoint, custom gradient ---- */

static ref make_checkpoint(struct graph *g, const ref *x, const void *ctx)
{
    (void)ctx;
    struct graph *b = graph_new("recomputed");
    ref a = input(b, &mat), c = input(b, &mat), t = n_tanh(b, matmul(b, a, c));
    yield(b, n_exp(b, n_mul(b, t, a)));
    yield(b, t);
    ref r = add_region(g, OP_checkpoint, (union attr){0}, x, 2, b, NULL);
    return n_mul(g, n_proj(g, r, 0), n_proj(g, r, 1));
}

/* a^3 + b k with its own gradient, which is the true one times *ctx in a. */
static ref make_custom(struct graph *g, const ref *x, const void *ctx)
{
    struct graph *f = graph_new("value"), *b = graph_new("gradient");
    ref a = input(f, &mat), c = input(f, &mat), k = input(f, &mat);
    yield(f, n_add(f, n_mul(f, a, n_mul(f, a, a)), n_mul(f, c, k)));
    ref ab = input(b, &mat), cb = input(b, &mat), y = input(b, &mat), dy = input(b, &mat), kb = input(b, &mat);
    (void)cb, (void)y;
    yield(b, n_mul(b, dy, n_mul(b, n_mul(b, ab, ab), n_k(b, ab, 3 * *(const double *)ctx))));
    yield(b, n_mul(b, dy, kb));
    union attr attr = {.region.carried = 2};
    return n_proj(g, add_region(g, OP_custom_grad, attr, (ref[]){x[0], x[1], n_k(g, x[0], 1.25)}, 3, f, b), 0);
}

static void gradients(void)
{
    for (int i = 0; i < 2; i++)
        gradient(&(struct problem){.name = "cond", .make = make_cond, .ctx = &(double){i ? 1000 : -1000}, .nx = 2,
                                   .x = {mat, mat}});
    for (int i = 0; i < 8; i++)
        gradient(&(struct problem){.name = "scan", .make = make_scan, .ctx = &(struct scan_form){i & 1, i & 2, i & 4},
                                   .nx = 3,
                                   .x = {mat, mats, mat}});
    gradient(&(struct problem){.name = "carried", .make = make_carried, .nx = 1, .x = {mat}});
    gradient(&(struct problem){.name = "nested", .make = make_nested, .nx = 2,
                               .x = {{.rank = 1, .dim = {5}}, scalar_shape}});
    gradient(&(struct problem){.name = "checkpoint", .make = make_checkpoint, .nx = 2, .x = {mat, mat}});
    gradient(&(struct problem){.name = "custom_grad", .make = make_custom, .ctx = &(double){1}, .nx = 2,
                               .x = {mat, mat}});
}

/* The second region decides, not the truth. */
static void own_gradient(void)
{
    struct graph *g = graph_new("own");
    ref x[] = {input(g, &mat), input(g, &mat)}, y = make_custom(g, x, &(double){2});
    graph_output(g, OUT_RETURN, n_grad(g, y, x[0]), 0);
    double xs[4] = {1, 2, 3, 4};
    struct values in = {.n = 2, .v = {xs, xs}}, out = {0};
    struct err e = {0};
    if (check(run_on(g, "ref", true, &in, &(struct values){0}, NULL, &out, &e), "own gradient: %s", e.msg)) {
        const double *d = out.v[0];
        check(d[0] == 6 && d[1] == 24 && d[2] == 54 && d[3] == 96, "a custom gradient is taken as it is");
        values_free(&out);
    }
    graph_free(g);
}

/* ---- bits ---- */

static void same_bits(make_fn *make, const struct problem *p)
{
    for (int order = 1; order <= 2; order++) {
        struct graph *g = build(&(struct problem){.name = p->name, .make = make, .ctx = p->ctx, .nx = p->nx,
                                                  .x = {p->x[0], p->x[1], p->x[2]}}, order, NULL);
        struct values in = {0};
        if (check(!g->err.code, "%s: %s", p->name, g->err.msg)) {
            values_random(&rng, g, &g->input, false, &in);
            agree_everywhere(g, &in, &(struct values){0}, NULL, p->name);
            values_free(&in);
        }
        graph_free(g);
    }
}

static void bits(void)
{
    for (int i = 0; i < 8; i++)
        same_bits(make_scan, &(struct problem){.name = "scan", .ctx = &(struct scan_form){i & 1, i & 2, i & 4}, .nx = 3,
                                                  .x = {mat, mats, mat}});
    same_bits(make_cond, &(struct problem){.name = "cond", .ctx = &(double){0}, .nx = 2, .x = {mat, mat}});
    same_bits(make_nested, &(struct problem){.name = "nested", .nx = 2, .x = {{.rank = 1, .dim = {5}}, scalar_shape}});
    same_bits(make_checkpoint, &(struct problem){.name = "checkpoint", .nx = 2, .x = {mat, mat}});
    same_bits(make_custom, &(struct problem){.name = "custom_grad", .ctx = &(double){1}, .nx = 2, .x = {mat, mat}});
}

static ref typed(struct graph *b, unsigned dtype, const struct shape *s) { return n_input(b, dtype, s, "x"); }

/* x changed a little, in any dtype. */
static ref change(struct graph *b, ref x)
{
    return b->node[x].dtype == KL_BOOL ? n_not(b, x) : n_add(b, x, n_k(b, x, 1));
}

/* A cond, a while and a scan of operands of this dtype and shape [rows, n], views and computed values among them. */
static void loops(unsigned dt, int64_t rows, int64_t n)
{
    struct graph *g = graph_new("loops"), *yes = graph_new("then"), *no = graph_new("else"),
        *c = graph_new("condition"),
                 *body = graph_new("body"), *cell = graph_new("cell");
    struct shape s = shape_make(2, (int64_t[]){rows, n}), t = shape_make(2, (int64_t[]){n, rows}),
        row = shape_make(1, &n);
    ref p = n_input(g, KL_BOOL, &scalar_shape, "p"), x = typed(g, dt, &s);
    ref y = change(g, n_permute(g, typed(g, dt, &t), (uint8_t[KL_MAX_RANK]){1, 0}));

    ref a = typed(yes, dt, &s), b = typed(yes, dt, &s), d = typed(no, dt, &s), e = typed(no, dt, &s);
    yield(yes, change(yes, b));
    yield(yes, a);
    yield(no, d);
    yield(no, change(no, e));
    ref choice = add_region(g, OP_cond, (union attr){0}, (ref[]){p, n_flip(g, x, 2), y}, 3, yes, no);

    ref k = n_input(c, KL_U8, &scalar_shape, "k"), count = n_input(body, KL_U8, &scalar_shape, "k");
    typed(c, dt, &s);
    yield(c, n_lt(c, k, n_const(c, KL_U8, 3)));
    yield(body, n_add(body, count, n_const(body, KL_U8, 1)));
    yield(body, change(body, typed(body, dt, &s)));
    ref loop = add_region(g, OP_while, (union attr){.region.carried = 2},
                          (ref[]){n_const(g, KL_U8, 0), n_proj(g, choice, 0)},
                          2, c, body);

    ref h = typed(cell, dt, &row), v = typed(cell, dt, &row);
    yield(cell, n_where(cell, n_lt(cell, h, v), change(cell, h), v));
    yield(cell, n_where(cell, n_eq(cell, h, v), v, h));
    union attr attr = {.region = {.carried = 1, .scanned = 1, .length = rows}};
    ref scanned = add_region(g, OP_scan, attr, (ref[]){n_broadcast(g, n_const(g, dt, 1), &row), n_proj(g, loop, 1)}, 2,
                             cell, NULL);
    yield(g, n_proj(g, scanned, 0));
    yield(g, change(g, n_proj(g, scanned, 1)));
    yield(g, n_proj(g, choice, 1));

    struct values in = {0};
    char what[64];
    snprintf(what, sizeof what, "loops %s[%" PRId64 ",%" PRId64 "]", dtype_name(dt), rows, n);
    if (check(!g->err.code, "%s: %s", what, g->err.msg)) {
        values_random(&rng, g, &g->input, true, &in);
        agree_everywhere(g, &in, &(struct values){0}, NULL, what);
        values_free(&in);
    }
    graph_free(g);
}

static void every_dtype(void)
{
    static const int64_t size[] = {0, 1, 7, 16, 17, 1000};
    for (unsigned dt = 0; dt < KL_DTYPE_COUNT; dt++)
        for (unsigned i = 0; i < sizeof size / sizeof *size; i++) {
            loops(dt, 3, size[i]);
            loops(dt, i, 5);
        }
}

/* ---- a loop without a gradient ---- */

static ref halve(struct graph *g, ref x)
{
    struct graph *c = graph_new("condition"), *b = graph_new("body");
    ref a = input(c, &scalar_shape), s = input(b, &scalar_shape);
    yield(c, n_lt(c, n_k(c, a, 1), a));
    yield(b, n_mul(b, s, n_k(b, s, 0.5)));
    return n_proj(g, add_region(g, OP_while, (union attr){.region.carried = 1}, &x, 1, c, b), 0);
}

static void no_gradient(void)
{
    struct graph *g = graph_new("loop");
    g->cur_site = graph_site(g, &(kl_site){"user.c", 17, "f"});
    ref x = input(g, &scalar_shape), y = halve(g, x);
    graph_output(g, OUT_RETURN, n_grad(g, y, input(g, &scalar_shape)), 0);
    struct graph *bad = graph_clone(g);
    check(pass_autodiff(g, NULL) > 0, "no gradient flows through the loop: %s", g->err.msg);
    graph_output(bad, OUT_RETURN, n_grad(bad, y, x), 0);
    check(pass_autodiff(bad, NULL) < 0 && bad->err.code == KL_ERR_GRAD && strstr(bad->err.msg, "while: no gradient") &&
              strstr(bad->err.msg, "user.c:17"), "gradient of while: %s", bad->err.msg);
    graph_free(bad);
    graph_free(g);
}

/* ---- memory ---- */

enum { LAYERS = 12, WIDTH = 20000 };

/* The memory that the gradient of many layers needs; each layer keeps five values for its backward pass. */
static int64_t peak(bool checkpoint)
{
    struct graph *g = graph_new("layers");
    struct shape s = shape_make(1, (int64_t[]){WIDTH});
    ref x = n_input(g, KL_F32, &s, "x"), y = x;
    for (int i = 0; i < LAYERS; i++) {
        struct graph *b = graph_new("layer");
        ref a = n_input(b, KL_F32, &s, "a");
        for (int k = 0; k < 5; k++)
            a = n_add(b, n_tanh(b, a), n_broadcast(b, n_reduce(b, OP_reduce_max, n_mul(b, a, a), 1), &s));
        yield(b, a);
        if (checkpoint) {
            y = n_proj(g, add_region(g, OP_checkpoint, (union attr){0}, &y, 1, b, NULL), 0);
        } else {
            graph_splice(g, b, &y, 0, &y);
            graph_free(b);
        }
    }
    graph_output(g, OUT_RETURN, n_grad(g, y, x), 0);
    struct err e = {0};
    struct caps caps = {.vector_bytes = 32, .vector_regs = 16, .threads = 1, .l1_bytes = 32 << 10};
    struct program *p = passes_run(g, &(struct pass_options){.fuse = true, .verify = true})
        ? program_plan(g, &caps, false, &e)
                                                                                            : NULL;
    int64_t bytes = p && program_check(p, &e) ? p->peak_bytes : -1;
    check(bytes > 0, "layers: %s%s", g->err.msg, e.msg);
    program_free(p);
    graph_free(g);
    return bytes;
}

static void memory(void)
{
    int64_t kept = peak(false), again = peak(true);
    check(again > 0 && 2 * again < kept, "checkpoints save memory: %" PRId64 " bytes with, %" PRId64 " without", again,
          kept);
}

/* ---- plans: the checker finds what is wrong with a region op's command ---- */

static struct program *planned(void)
{
    struct graph *g = graph_new("plan"), *b = graph_new("body");
    enum { LARGE = 80000 }; /* a loop whose values have fewer elements is a kernel */
    struct shape s = shape_make(1, (int64_t[]){LARGE}), all = shape_make(2, (int64_t[]){4, LARGE});
    ref x = n_input(g, KL_F32, &s, "x"), xs = n_exp(g, n_input(g, KL_F32, &all, "xs"));
    ref h = n_input(b, KL_F32, &s, "h"), e = n_input(b, KL_F32, &s, "e"),
        y = n_mul(b, n_reduce(b, OP_sum, h, 1), n_slice(b, e, 0, 0, 1, 1));
    yield(b, n_add(b, n_broadcast(b, y, &s), e));
    yield(b, h);
    yield(b, e);
    union attr attr = {.region = {.carried = 1, .scanned = 1, .length = 4}};
    ref r = add_region(g, OP_scan, attr, (ref[]){x, xs}, 2, b, NULL);
    yield(g, n_exp(g, n_proj(g, r, 0)));
    yield(g, n_exp(g, n_proj(g, r, 1))); /* nothing reads result 2 */
    struct err e2 = {0};
    struct caps caps = {.vector_bytes = 32, .vector_regs = 16, .threads = 1, .l1_bytes = 32 << 10};
    bool ok = passes_run(g, &(struct pass_options){.fuse = true, .verify = true});
    struct program *p = ok ? program_plan(g, &caps, false, &e2) : NULL;
    check(p != NULL, "plan: %s%s", g->err.msg, e2.msg);
    graph_free(g);
    return p;
}

static void last_result_read(struct command *c) { c->value[c->narg - 2] = c->value[c->narg - 3]; }
static void workspace_on_result(struct command *c) { c->arg[c->narg - 1] = c->arg[2]; }
static void workspace_elsewhere(struct command *c) { c->arg[c->narg - 1].kind = LOC_SCRATCH; }
static void unread_outside(struct command *c) { c->arg[c->narg - 2].offset += (int64_t)1 << 24; }
static void operand_of_another(struct command *c) { c->arg[0] = c->arg[1]; }
static void result_on_operand(struct command *c) { c->arg[2] = c->arg[1]; }
static void too_few(struct command *c) { c->narg--; }
static void no_node(struct command *c) { c->region = 1; }
static void inside_out_of_bounds(struct command *c) { c->sub[0]->cmd[0].arg[0].offset = 1 << 24; }

static void broken_plans(void)
{
    static const struct { void (*spoil)(struct command *); const char *says; } wrong[] = {
        {last_result_read, "is not result"}, {workspace_on_result, "outside of the workspace"},
            {workspace_elsewhere, "workspace is not in the arena"},
        {unread_outside, "outside of the workspace"}, {operand_of_another, ""}, {result_on_operand, "overlaps"},
            {too_few, "arguments for"},
        {no_node, "no region op"}, {inside_out_of_bounds, "bytes"}};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct program *p = planned();
        struct err e = {0};
        if (!p)
            return;
        uint32_t at = 0;
        while (at < p->ncmd && p->cmd[at].kind != CMD_REGION)
            at++;
        if (check(at < p->ncmd && program_check(p, &e), "a good plan: %s", e.msg)) {
            bool frees_less = wrong[i].spoil == too_few;
            wrong[i].spoil(&p->cmd[at]);
            check(!program_check(p, &e) && strstr(e.msg, wrong[i].says), "plan %u: '%s', not '%s'", i, e.msg,
                  wrong[i].says);
            p->cmd[at].narg += frees_less;
        }
        program_free(p);
    }
}

/* ---- keys: what is inside counts ---- */

static struct graph *keyed(double k, bool reverse, const char *name)
{
    struct graph *g = graph_new(name), *b = graph_new(name);
    ref x = n_input(g, KL_F32, &mat, "x"), a = n_input(b, KL_F32, &mat, "a");
    yield(b, n_mul(b, a, n_k(b, a, k)));
    union attr attr = {.region = {.carried = 1, .length = 2, .flags = reverse ? REGION_REVERSE : 0}};
    yield(g, n_proj(g, add_region(g, OP_scan, attr, &x, 1, b, NULL), 0));
    return g;
}

static void keys(void)
{
    struct graph *g[] = {keyed(2, false, "a"), keyed(2, false, "b"), keyed(3, false, "a"), keyed(2, true, "a")};
    for (int i = 1; i < 4; i++) {
        struct hash128 x = graph_hash(g[0]), y = graph_hash(g[i]);
        bool same = x.lo == y.lo && x.hi == y.hi;
        check(same == (i == 1) && graph_same(g[0], g[i]) == (i == 1), "graph %d is %s", i,
              same ? "the same" : "another");
    }
    for (int i = 0; i < 4; i++)
        graph_free(g[i]);
}

int main(void)
{
    gradients();
    own_gradient();
    bits();
    every_dtype();
    no_gradient();
    memory();
    broken_plans();
    keys();
    return finish();
}
