/* The kernels of whole programs run by the kernel interpreter, which checks every access, must give the bits of
 * the compiled ones, and so must the same kernels with other schedules.  Graphs: the shapes that each schedule treats
 * differently. */
#include "tests/support/cases/schedule_vary.h"

static struct rng rng = {4242};
static uint64_t records, records_refused, records_own; /* made up, of these refused; kernels that kept their own */

struct memory { char *arena, *scratch; const struct values *input, *state; struct values *out; };

static void *address(const struct memory *m, const struct loc *l)
{
    switch (l->kind) {
    case LOC_ARENA: return m->arena + l->offset;
    case LOC_SCRATCH: return m->scratch + l->offset;
    case LOC_INPUT: return m->input->v[l->index];
    case LOC_STATE: return m->state->v[l->index];
    default: return m->out->v[l->index];
    }
}

/* Runs a program's commands one by one, kernels through kernel_interp. */
static bool run_program(const struct program *p, const struct memory *m, struct err *e)
{
    for (uint32_t c = 0; c < p->ncmd; c++) {
        const struct command *cmd = &p->cmd[c];
        if (cmd->kind == CMD_COPY) {
            memcpy(address(m, &cmd->arg[0]), address(m, &cmd->arg[1]), (size_t)cmd->bytes);
            continue;
        }
        void *buf[64];
        const struct kernel *k = p->kernel[cmd->kernel];
        if (!kernel_round_trip(k, e))
            return false;
        for (uint32_t b = 0; b < k->nbuf; b++)
            buf[b] = address(m, &cmd->arg[b]);
        if (!kernel_interp(k, buf, NULL, 0, k->extent, e))
            return false;
    }
    return true;
}

static void interpret(const struct graph *g, const struct exec *x, const struct values *in, const struct values *want,
                      const char *what)
{
    struct values none = {0}, out = {.n = g->nout};
    struct err e = {0};
    struct memory m = {.arena = calloc((size_t)x->program->arena_bytes[DEVICE_CPU] + 64, 1),
                       .scratch = calloc((size_t)x->program->scratch_bytes + 64, 1), .input = in, .state = &none,
                           .out = &out};
    for (uint32_t o = 0; o < g->nout; o++)
        out.v[o] = calloc(node_bytes(g, g->out[o].value) + 64, 1);
    if (check(run_program(x->program, &m, &e), "%s: %s", what, e.msg))
        for (uint32_t o = 0; o < g->nout; o++) {
            int64_t at, n = node_numel(g, g->out[o].value);
            check(same_values(g->node[g->out[o].value].dtype, want->v[o], out.v[o], n, &at),
                  "%s: output %u differs at %" PRId64,
                  what, o, at);
        }
    free(m.arena);
    free(m.scratch);
    values_free(&out);
}

/* Is it the one that was asked for, where that says something? */
static bool has_schedule(const struct schedule *s, const struct schedule *asked)
{
    const struct sched_family *family = &sched_families[s->kind];
    bool same = s->kind == asked->kind;
    for (uint32_t i = 0; same && i < family->n; i++) {
        const struct sched_field *f = &family->field[i];
        for (unsigned side = 0; side < (f->sides ? f->sides : 1u); side++) {
            uint64_t want = sched_get(&asked->record, f, side);
            same &= sched_get(&s->record, f, side) == want || (f->chosen && !want);
        }
    }
    return same;
}

/* A record made up for kernel i of the program: of its own family, rarely of another one of its group. */
static void make_up(struct kernel *k, const struct exec *own, uint32_t i)
{
    struct schedule s = *schedule_of(own->program->kernel[i]);
    if (!rng_below(&rng, 8)) {
        uint32_t kc = schedule_group(s.kind) == GROUP_dot ? s.dot.kc : 0;
        s = (struct schedule){.kind = (uint16_t)schedule_other_kind(&rng, s.kind)};
        if (kc)
            s.dot.kc = kc;
    } else {
        s = schedule_vary(&rng, &s);
        s.grain = rng_below(&rng, 3) ? 1 + rng_below(&rng, 9) : 0;
    }
    schedule_set(k, &s.record);
}

enum { TRIES = 40 }; /* of which the later ones make up less */

/* The program of g with schedules made up for its kernels; NULL: failed.  A record that is refused, by its line in the
 * text, is made up again, and at last is the kernel's own. */
static const struct exec *other_schedules(const struct graph *g, const struct exec *own, const char *what)
{
    uint32_t n = own->program->nkernel;
    struct kernel *k = calloc(n + 1, sizeof *k), **at = calloc(n + 1, sizeof *at);
    struct err e = {0};
    for (uint32_t i = 0; i < n; i++) {
        at[i] = &k[i];
        memcpy(k[i].name, own->program->kernel[i]->name, sizeof k[i].name);
        make_up(&k[i], own, i);
    }
    char *text = NULL;
    const struct exec *x = NULL;
    for (unsigned tries = 0, line; !x && tries < TRIES + n; tries++) {
        mem_free(text);
        text = schedules_text(g->name, false, at, n);
        e = (struct err){0};
        if (schedules_set(text, strlen(text), "made up", &e))
            x = exec_get(g, device_find("cpu", &e), true, &e);
        if (x || !check(sscanf(e.msg, "made up:%u:", &line) == 1 && line > 1 && line <= n + 1 &&
                        e.code == KL_ERR_ARGUMENT, "%s: %s in\n%s", what, e.msg, text))
            break;
        records_refused++;
        if (tries < TRIES) {
            make_up(&k[line - 2], own, line - 2);
        } else {
            schedule_set(&k[line - 2], &own->program->kernel[line - 2]->sched);
            records_own++;
        }
    }
    records += n;
    check(x != NULL, "%s: %s in\n%s", what, e.msg, text ? text : "");
    for (uint32_t i = 0; x && i < x->program->nkernel; i++) {
        bool found = false;
        for (uint32_t j = 0; j < n; j++)
            found |= has_schedule(schedule_of(x->program->kernel[i]), schedule_of(&k[j]));
        check(found, "%s: kernel @%s has none of the schedules of\n%s", what, x->program->kernel[i]->name, text);
    }
    mem_free(text);
    free(k);
    free(at);
    return x;
}

#if defined(KILN_ASAN)
enum { AS_OFTEN = 4 }; /* every such graph is scheduled otherwise, too */
#else
enum { AS_OFTEN = 1 };
#endif
static int rescheduled;

static void compare(const struct graph *g, const char *what)
{
    struct values in = {0}, none = {0}, compiled = {0};
    struct err e = {0};
    values_random(&rng, g, &g->input, false, &in);
    const struct exec *x = exec_get(g, device_find("cpu", &e), true, &e), *y;
    if (check(x && run_on(g, "cpu", true, &in, &none, NULL, &compiled, &e), "%s: %s", what, e.msg)) {
        interpret(g, x, &in, &compiled, what);
        char other[128];
        snprintf(other, sizeof other, "%s, scheduled otherwise", what);
        struct values again = {0};
        if (rescheduled++ % AS_OFTEN == 0 && (y = other_schedules(g, x, other)) &&
            check(run_on(g, "cpu", true, &in, &none, NULL, &again, &e), "%s: %s", other, e.msg)) {
            interpret(g, y, &in, &compiled, other);
            for (uint32_t o = 0; o < g->nout; o++) {
                int64_t at, n = node_numel(g, g->out[o].value);
                check(same_values(g->node[g->out[o].value].dtype, compiled.v[o], again.v[o], n, &at),
                      "%s: compiled, output %u differs at %" PRId64, other, o, at);
            }
        }
        values_free(&again);
        check(schedules_set("", 0, "", &e) && exec_get(g, device_find("cpu", &e), true, &e) == x,
              "%s: without schedules it is the program that it was", what);
    }
    values_free(&in);
    values_free(&compiled);
}

static struct shape matrix(int64_t a, int64_t b) { return shape_make(2, (int64_t[]){a, b}); }

/* A product with bias and maximum: tiles, tails, several k-blocks, packed columns (ta, tb: transposed operands). */
static void product(unsigned dtype, int64_t m, int64_t n, int64_t k, bool ta, bool tb)
{
    struct graph *g = graph_new("product");
    struct shape sa = ta ? matrix(k, m) : matrix(m, k), sb = tb ? matrix(n, k) : matrix(k, n), sy = matrix(m, n),
        sc = shape_make(1, (int64_t[]){n});
    union attr d = {0};
    d.dot.ncon = 1;
    d.dot.con_a = !ta;
    d.dot.con_b = tb;
    ref y = n_dot(g, n_input(g, dtype, &sa, "a"), n_input(g, dtype, &sb, "b"), &d);
    graph_output(g, OUT_RETURN, n_max(g, n_add(g, y, n_broadcast(g, n_input(g, dtype, &sc, "bias"), &sy)),
                                      n_k(g, y, 0)), 0);
    char what[96];
    snprintf(what, sizeof what, "product %s %" PRId64 "x%" PRId64 "x%" PRId64 "%s%s", dtype_name(dtype), m, n, k,
             ta ? " A^T" : "", tb ? " B^T" : "");
    compare(g, what);
    graph_free(g);
}

/* One of bytes, summed as i32. */
static void byte_product(unsigned da, unsigned db, int64_t m, int64_t n, int64_t k, bool tb)
{
    struct graph *g = graph_new("bytes");
    struct shape sa = matrix(m, k), sb = tb ? matrix(n, k) : matrix(k, n);
    union attr d = {.dot = {.ncon = 1, .con_a = 1, .con_b = tb, .sum = KL_I32}};
    ref y = n_dot(g, n_input(g, da, &sa, "a"), n_input(g, db, &sb, "b"), &d);
    graph_output(g, OUT_RETURN, n_cast(g, n_mul(g, y, y), KL_F32), 0);
    char what[96];
    snprintf(what, sizeof what, "bytes %s %s %" PRId64 "x%" PRId64 "x%" PRId64 "%s", dtype_name(da), dtype_name(db), m,
             n, k, tb ? " B^T" : "");
    compare(g, what);
    graph_free(g);
}

/* Softmax and column means over the same values: row and column reduces with prologues and epilogues, views between. */
static void rows_and_columns(int64_t rows, int64_t cols)
{
    struct graph *g = graph_new("rows");
    struct shape s = matrix(rows, cols), st = matrix(cols, rows);
    ref x = n_input(g, KL_F32, &s, "x");
    ref e = n_exp(g, n_sub(g, x, n_expand(g, n_reduce(g, OP_reduce_max, x, 2), &s)));
    ref p = n_div(g, e, n_expand(g, n_reduce(g, OP_sum, e, 2), &s));
    graph_output(g, OUT_RETURN, p, 0);
    graph_output(g, OUT_RETURN, n_tanh(g, n_reduce(g, OP_sum, n_mul(g, p, p), 1)), 0);
    graph_output(g, OUT_RETURN, n_permute(g, p, (uint8_t[KL_MAX_RANK]){1, 0}), 0);
    graph_output(g, OUT_RETURN, n_add(g, n_reshape(g, p, &st), n_permute(g, p, (uint8_t[KL_MAX_RANK]){1, 0})), 0);
    char what[64];
    snprintf(what, sizeof what, "rows %" PRId64 "x%" PRId64, rows, cols);
    compare(g, what);
    graph_free(g);
}

static bool packs(const struct graph *g)
{
    struct err e = {0};
    const struct exec *x = exec_get(g, device_find("cpu", &e), true, &e);
    for (uint32_t i = 0; x && i < x->program->nkernel; i++)
        if (x->program->kernel[i]->sched.kind == SCHED_DOT)
            return schedule_of(x->program->kernel[i])->dot.pack_b;
    return false;
}

/* A few rows and a matrix beyond the first-level cache: it is read once, as it lies in memory. */
static void few_rows(unsigned dtype, int64_t rows, bool out_in, int64_t columns)
{
    struct graph *g = graph_new("few_rows");
    enum { LENGTH = 1003 };
    struct shape sx = matrix(rows, LENGTH), sw = out_in ? matrix(columns, LENGTH) : matrix(LENGTH, columns);
    union attr d = {.dot = {.ncon = 1, .con_a = 1, .con_b = out_in}};
    struct err e = {0};
    graph_output(g, OUT_RETURN, n_dot(g, n_input(g, dtype, &sx, "x"), n_input(g, dtype, &sw, "w"), &d), 0);
    char what[64];
    snprintf(what, sizeof what, "%s, %" PRId64 " rows, %" PRId64 " columns%s", dtype_name(dtype), rows, columns,
             out_in ? ", [out, in]" : "");
    compare(g, what);
    const struct exec *x = exec_get(g, device_find("cpu", &e), true, &e);
    const struct kernel *k = x && x->program->nkernel ? x->program->kernel[0] : NULL;
    check(k && k->sched.kind == SCHED_DOT_SKINNY, "%s: read as it lies", what);
    bool fetches = false;
    for (val v = 1; k && v < k->ninst; v++)
        fetches |= k->inst[v].op == L_PREFETCH;
    check(fetches, "%s: its lines are fetched ahead", what);
    graph_free(g);
}

/* Filters over the windows of an image, merged with the channels: read in place where adjacent elements in a row of the
 * image are adjacent in memory. */
static void convolution(int64_t filters, int64_t width, int64_t stride)
{
    enum { FEW_FILTERS = 16 }; /* direct convolutions (passes/lower/direct) */
    struct graph *g = graph_new("convolution");
    struct shape sx = shape_make(4, (int64_t[]){2, 3, 6, width}), sw = matrix(filters, 27),
        s = shape_make(4, (int64_t[]){2, 27, 0, 0});
    ref x = n_window(g, n_window(g, n_input(g, KL_F32, &sx, "x"), 2, 3, stride, 1), 3, 3, stride, 1);
    s.dim[2] = node_shape(g, x)->dim[2], s.dim[3] = node_shape(g, x)->dim[3];
    x = n_reshape(g, n_permute(g, x, (uint8_t[KL_MAX_RANK]){0, 1, 4, 5, 2, 3}), &s);
    union attr d = {.dot = {.ncon = 1, .con_a = 1, .con_b = 1}};
    ref y = n_dot(g, n_input(g, KL_F32, &sw, "w"), x, &d);
    graph_output(g, OUT_RETURN, n_max(g, y, n_k(g, y, 0)), 0);
    char what[64];
    snprintf(what, sizeof what, "convolution %" PRId64 " of %" PRId64 " step %" PRId64, filters, width, stride);
    compare(g, what);
    check(packs(g) == (stride > 1 && filters > FEW_FILTERS), "%s: in place where the stride is 1 or filters are few",
          what);
    graph_free(g);
}

/* Scans along each axis of a tensor. */
static void scans(int64_t a, int64_t b, int64_t c)
{
    struct graph *g = graph_new("scans");
    struct shape s = shape_make(3, (int64_t[]){a, b, c});
    ref x = n_input(g, KL_F32, &s, "x");
    for (uint32_t axis = 0; axis < 3; axis++) {
        graph_output(g, OUT_RETURN, n_cumulative(g, (enum op)(OP_cumsum + axis), n_flip(g, x, 1u << axis), axis), 0);
        graph_output(g, OUT_RETURN, n_recurrence(g, x, n_tanh(g, x), axis), 0);
    }
    char what[64];
    snprintf(what, sizeof what, "scans %" PRId64 "x%" PRId64 "x%" PRId64, a, b, c);
    compare(g, what);
    graph_free(g);
}

/* Scatter, gather, sort and sums along either axis. */
static void movers(int64_t rows, int64_t cols)
{
    struct graph *g = graph_new("movers");
    struct shape s = matrix(rows, cols), index = shape_make(1, (int64_t[]){rows});
    ref x = n_input(g, KL_F32, &s, "x"), i = n_input(g, KL_I32, &index, "i");
    graph_output(g, OUT_RETURN, n_scatter(g, x, i, n_mul(g, x, x), 0, SCATTER_ADD), 0);
    graph_output(g, OUT_RETURN, n_argsort(g, x, 1, false, KL_I32), 0);
    graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, n_exp(g, x), 1), 0);
    graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, n_abs(g, x), 2), 0);
    char what[64];
    snprintf(what, sizeof what, "movers %" PRId64 "x%" PRId64, rows, cols);
    compare(g, what);
    graph_free(g);
}

static void attention(int64_t queries, int64_t keys, int masking)
{
    struct graph *g = graph_new("attention");
    struct shape q = shape_make(3, (int64_t[]){2, queries, 19}), k = shape_make(3, (int64_t[]){2, keys, 19}),
        v = shape_make(3, (int64_t[]){2, keys, 33});
    struct shape seen = shape_make(3, (int64_t[]){2, queries, masking == 1 ? keys : 2});
    ref in[3] = {n_input(g, KL_F32, &q, "q"), n_input(g, KL_F32, &k, "k"), n_input(g, KL_F32, &v, "v")};
    ref s = masking ? n_input(g, masking == 1 ? KL_BOOL : KL_I32, &seen, "seen") : NIL;
    ref y = n_attention(g, in[0], in[1], in[2], s, 0.25, masking == 0), din[3] = {NIL};
    n_attention_gradient(g, y, n_input(g, KL_F32, node_shape(g, y), "dy"), din);
    graph_output(g, OUT_RETURN, y, 0);
    for (int i = 0; i < 3; i++)
        graph_output(g, OUT_RETURN, din[i], 0);
    char what[64];
    snprintf(what, sizeof what, "attention %" PRId64 "x%" PRId64 " %d", queries, keys, masking);
    compare(g, what);
    graph_free(g);
}

/* Elements in the order of memory are visited in that order, whatever their coordinates: nothing is divided. */
static void flat(void)
{
    static const struct shape shapes[] = {{.rank = 1, .dim = {1050}}, {.rank = 3, .dim = {3, 5, 70}},
                                          {.rank = 3, .dim = {3, 1, 350}},
                                          {.rank = 4, .dim = {2, 3, 7, 29}}, {.rank = 5, .dim = {3, 2, 5, 3, 13}}};
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct graph *g = graph_new("flat");
        struct err e = {0};
        graph_output(g, OUT_RETURN, n_cast(g, n_neg(g, n_input(g, KL_F32, &shapes[i], "x")), KL_U8), 0);
        const struct exec *x = exec_get(g, device_find("cpu", &e), true, &e);
        check(x && x->program->nkernel == 1, "flat %u: %s", i, e.msg);
        const struct kernel *k = x ? x->program->kernel[0] : NULL;
        for (val v = 1; k && v < k->ninst; v++)
            check(k->inst[v].op != L_OP(P_DIV), "flat %u: value %u of kernel %s divides", i, v, k->name);
        graph_free(g);
    }
}

/* tanh of the sums of short rows, with a bias along the last axis that is kept: what is computed from the results is
 * computed in lanes, several rows at a time.  Only a row's own fold is uniform. */
static void row_epilogue(int64_t outer, int64_t rows, int64_t length)
{
    struct graph *g = graph_new("epilogue");
    struct shape s = shape_make(3, (int64_t[]){outer, rows, length}), kept = shape_make(3, (int64_t[]){outer, rows, 1});
    struct shape sb = shape_make(2, (int64_t[]){rows, 1});
    ref bias = n_broadcast(g, n_input(g, KL_F32, &sb, "bias"), &kept);
    graph_output(g, OUT_RETURN, n_tanh(g, n_add(g, n_reduce(g, OP_sum, n_input(g, KL_F32, &s, "x"), 4), bias)), 0);
    char what[64];
    snprintf(what, sizeof what, "epilogue of %" PRId64 "x%" PRId64 " rows of %" PRId64, outer, rows, length);
    compare(g, what);
    struct err e = {0};
    const struct exec *x = exec_get(g, device_find("cpu", &e), true, &e);
    uint32_t uniform = 0;
    for (uint32_t i = 0; x && i < x->program->nkernel; i++)
        for (val v = 1; v < x->program->kernel[i]->ninst; v++) {
            const struct linst *n = &x->program->kernel[i]->inst[v];
            uniform += n->op >= L_PRIM && n->dtype == KL_F32 && !n->varying;
        }
    check(x && x->program->nkernel == 1, "%s: %u kernels, not 1", what, x ? x->program->nkernel : 0);
    check(uniform == 0, "%s: %u uniform instructions of f32, not 0", what, uniform);
    graph_free(g);
}

int main(void)
{
    struct err e = {0};
    if (device_find("cpu", &e) < 0) {
        printf("SKIP not-built cpu: %s\n", e.msg);
        skipped++;
        return finish();
    }
    static const int64_t mnk[][3] = {{1, 1, 1}, {13, 32, 8}, {30, 70, 40}, {27, 33, 600}, {16, 64, 1100}, {5, 10, 17}};
    for (unsigned i = 0; i < sizeof mnk / sizeof *mnk; i++)
        for (int t = 0; t < 4; t++) {
            product(KL_F32, mnk[i][0], mnk[i][1], mnk[i][2], t & 1, t & 2);
            product(i & 1 ? KL_F64 : KL_I16, mnk[i][0], mnk[i][1], mnk[i][2], t & 1, t & 2);
        }
    for (unsigned i = 0; i < 6; i++)
        byte_product(i % 3 ? KL_I8 : KL_U8, i % 2 ? KL_I8 : KL_U8, 7 + 8 * i, 70 - 11 * i, 9 + 5 * i, i & 1);
    static const int64_t rc[][2] = {{1, 1}, {3, 5}, {7, 64}, {70, 130}, {600, 3}, {2, 20000}, {0, 4}, {4, 0}};
    for (unsigned i = 0; i < sizeof rc / sizeof *rc; i++)
        rows_and_columns(rc[i][0], rc[i][1]);
    static const int64_t widths[] = {18, 21, 34, 50, 71};
    for (unsigned i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int64_t stride = 1; stride <= 2; stride++)
            convolution(i & 1 ? 5 : 40, widths[i], stride);
    few_rows(KL_F32, 1, false, 203);
    few_rows(KL_BF16, 2, false, 411);
    few_rows(KL_F32, 1, true, 67);
    few_rows(KL_F32, 7, true, 48);
    few_rows(KL_BF16, 1, true, 99);
    few_rows(KL_F16, 2, true, 96);
    few_rows(KL_I16, 3, true, 96);
    scans(3, 5, 1);
    scans(2, 9, 70);
    scans(0, 3, 4);
    scans(1, 1, 33);
    movers(9, 5);
    movers(70, 33);
    movers(3, 300);
    attention(70, 131, 0);
    attention(9, 70, 2);
    flat();
    row_epilogue(1, 4099, 3);
    row_epilogue(3, 700, 5);
    row_epilogue(2, 1030, 70);
    row_epilogue(70, 9, 4);
    printf("%" PRIu64 " records, %" PRIu64 " refused before\n", records, records_refused);
    check(records > 100 / AS_OFTEN && 8 * records_own < records,
          "%" PRIu64 " of %" PRIu64 " kernels kept their schedules", records_own, records);
    return finish();
}
