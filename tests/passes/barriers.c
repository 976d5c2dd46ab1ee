/* Kernels without a barrier between them: where the plan drops one and where it must not, by counting; random graphs
 * with all of their kernels shared out among threads give the bits that they give with every barrier, and the checker,
 * which has its own way to see what iterations touch, agrees with every one that is dropped. */
#include "tests/support/random/random_make.h"

static struct rng rng = {77};
static uint32_t same_part_elides;

enum { N = 1 << 16, ROWS = 256 };

/* ---- by counting ---- */

/* g runs unfused, or fused, in `kernels` kernels with so many barriers; with option elide_barriers 0 there are as many
 * barriers as kernels. */
static void counts(struct graph *g, bool fuse, uint64_t kernels, uint64_t barriers)
{
    struct values in = {0}, state = {0}, out[2] = {{0}, {0}};
    struct err e = {0};
    values_random(&rng, g, &g->input, false, &in);
    values_random(&rng, g, &g->state, false, &state);
    for (int elide = 0; elide < 2; elide++) {
        option_set("elide_barriers", elide, &e);
        uint64_t before = counters.barriers, launched = counters.launches;
        if (!check(run_on(g, "cpu", fuse, &in, &state, NULL, &out[elide], &e), "%s: %s", g->name, e.msg))
            continue;
        uint64_t now = counters.barriers - before, ran = counters.launches - launched;
        check(ran == kernels && now == (elide ? barriers : kernels), "%s: %llu kernels, %llu barriers", g->name,
              (unsigned long long)ran, (unsigned long long)now);
    }
    for (uint32_t o = 0; o < g->nout; o++) {
        int64_t at, n = node_numel(g, g->out[o].value);
        check(same_values(g->node[g->out[o].value].dtype, out[0].v[o], out[1].v[o], n, &at),
              "%s: output %u differs at %" PRId64,
              g->name, o, at);
    }
    const struct exec *x = exec_get(g, device_find("cpu", &e), fuse, &e);
    char *order = x ? program_order(x->program) : NULL;
    uint64_t lines = 0, elided = 0;
    for (const char *p = order; p && *p; p++) {
        lines += *p == '\n';
        elided += !strncmp(p, ", no barrier, ", 14);
    }
    check(lines == barriers && elided == kernels - barriers, "%s: the order says\n%s", g->name, order);
    mem_free(order);
    values_free(&in);
    values_free(&state);
    values_free(&out[0]);
    values_free(&out[1]);
    graph_free(g);
}

static ref vector_input(struct graph *g, const char *name)
{
    struct shape s = shape_make(1, (int64_t[]){N});
    return n_input(g, KL_F32, &s, name);
}

static void counting(void)
{
    struct graph *g = graph_new("same_parts"); /* all read where the same thread has stored */
    ref x = vector_input(g, "x"), y = n_neg(g, x), z = n_abs(g, y);
    graph_output(g, OUT_RETURN, n_add(g, z, y), 0);
    counts(g, false, 3, 1);

    g = graph_new("flipped"); /* another thread's elements */
    x = vector_input(g, "x"), y = n_neg(g, x);
    graph_output(g, OUT_RETURN, n_add(g, n_flip(g, y, 1), x), 0);
    counts(g, false, 2, 2);

    g = graph_new("rotated"); /* by one element, which is another thread's only at the borders */
    x = vector_input(g, "x"), y = n_neg(g, x);
    ref turned = n_concat(g, (ref[]){n_slice(g, y, 0, 1, N - 1, 1), n_slice(g, y, 0, 0, 1, 1)}, 2, 0);
    graph_output(g, OUT_RETURN, n_mul(g, turned, x), 0);
    counts(g, true, 2, 2);

    g = graph_new("apart"); /* nothing in common but what both read */
    struct shape m = shape_make(2, (int64_t[]){ROWS, N / ROWS});
    x = n_input(g, KL_F32, &m, "x");
    graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, x, 1), 0);
    graph_output(g, OUT_RETURN, n_reduce(g, OP_reduce_max, x, 2), 0);
    graph_output(g, OUT_RETURN, n_neg(g, x), 0);
    counts(g, false, 3, 1);

    g = graph_new("columns"); /* of what was made row by row */
    x = n_input(g, KL_F32, &m, "x"), y = n_neg(g, x);
    graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, y, 1), 0);
    counts(g, false, 2, 2);

    g = graph_new("rows"); /* a row's largest, then the row: two kernels of rows */
    x = n_input(g, KL_F32, &m, "x");
    y = n_sub(g, x, n_expand(g, n_reduce(g, OP_reduce_max, x, 2), &m));
    graph_output(g, OUT_RETURN, y, 0);
    counts(g, false, 2, 1);

    g = graph_new("small"); /* one thread's */
    struct shape few = shape_make(1, (int64_t[]){100});
    x = n_input(g, KL_F32, &few, "x");
    graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, n_flip(g, n_neg(g, n_abs(g, x)), 1), 1), 0);
    counts(g, false, 3, 1);

    g = graph_new("in_place"); /* the old value is read where its thread then stores the new one */
    struct shape v = shape_make(1, (int64_t[]){N});
    ref s = n_state(g, KL_F32, &v, "s");
    graph_output(g, OUT_RETURN, n_abs(g, s), 0);
    graph_output(g, OUT_ASSIGN, n_neg(g, s), 0);
    counts(g, false, 2, 1);

    g = graph_new("in_place_elsewhere");
    s = n_state(g, KL_F32, &v, "s");
    graph_output(g, OUT_RETURN, n_add(g, n_flip(g, s, 1), s), 0);
    graph_output(g, OUT_ASSIGN, n_neg(g, s), 0);
    counts(g, false, 2, 2);
}

/* ---- random graphs, all shared out ---- */

/* Joins of kernels that are shared out and of which one stores what the other touches. */
static void count_elided(const struct program *p)
{
    for (uint32_t c = 1; c < p->ncmd; c++) {
        const struct command *y = &p->cmd[c], *x = y - 1;
        if (!y->no_barrier || p->kernel[x->kernel]->extent < 2)
            continue;
        bool met = false;
        for (uint32_t a = 0; a < x->narg; a++)
            for (uint32_t b = 0; b < y->narg; b++)
                met |= p->kernel[x->kernel]->buf[a].role == BUF_OUT && x->arg[a].kind == y->arg[b].kind &&
                       x->arg[a].index == y->arg[b].index && x->arg[a].offset == y->arg[b].offset;
        same_part_elides += met;
    }
}

/* Schedules that share out every kernel of x. */
static bool share_out(const struct graph *g, const struct exec *x, bool fuse, struct err *e)
{
    uint32_t n = x->program->nkernel;
    struct kernel *k = calloc(n + 1, sizeof *k), **at = calloc(n + 1, sizeof *at);
    for (uint32_t i = 0; i < n; i++) {
        at[i] = &k[i];
        schedule_set(&k[i], &x->program->kernel[i]->sched);
        k[i].family = x->program->kernel[i]->family; /* NULL: a loop, which has no schedule */
        k[i].sched.grain = 1;
        if (k[i].sched.kind == SCHED_MAP && k[i].sched.width > 4)
            k[i].sched.width = 4; /* more iterations */
        memcpy(k[i].name, x->program->kernel[i]->name, sizeof k[i].name);
    }
    char *text = schedules_text(g->name, !fuse, at, n);
    bool ok = text && schedules_set(text, strlen(text), "shared out", e);
    mem_free(text);
    free(k);
    free(at);
    return ok;
}

static void one_random(uint64_t seed, bool fuse)
{
    struct graph *g = random_graph(seed);
    struct values in = {0}, state = {0}, out[2] = {{0}, {0}};
    struct err e = {0};
    int cpu = device_find("cpu", &e);
    graph_move(g, graph_device(g), (unsigned)cpu);
    const struct exec *own = g->err.code || g->slot.n || !graph_is_bound(g, &e) ? NULL : exec_get(g, cpu, fuse, &e), *x;
    if (own && check(share_out(g, own, fuse, &e), "seed %llu: %s", (unsigned long long)seed, e.msg)) {
        x = exec_get(g, cpu, fuse, &e);
        check(x && program_check(x->program, &e), "seed %llu: %s", (unsigned long long)seed, e.msg);
        values_random(&rng, g, &g->input, false, &in);
        values_random(&rng, g, &g->state, false, &state);
        bool ok = x;
        for (int elide = 0; ok && elide < 2; elide++) {
            option_set("elide_barriers", elide, &e);
            ok = check(run_on(g, "cpu", fuse, &in, &state, NULL, &out[elide], &e), "seed %llu: %s",
                       (unsigned long long)seed, e.msg);
        }
        for (uint32_t o = 0; ok && o < g->nout; o++) {
            int64_t at, n = node_numel(g, g->out[o].value);
            check(same_values(g->node[g->out[o].value].dtype, out[0].v[o], out[1].v[o], n, &at),
                  "seed %llu: output %u differs at %" PRId64, (unsigned long long)seed, o, at);
        }
        if (x)
            count_elided(x->program);
    }
    schedules_set("", 0, "", &e);
    values_free(&in);
    values_free(&state);
    values_free(&out[0]);
    values_free(&out[1]);
    graph_free(g);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    long graphs = argc > 1 ? strtol(argv[1], NULL, 10) : 60;
    if (device_find("cpu", &e) < 0) {
        printf("SKIP not-built cpu: %s\n", e.msg);
        skipped++;
        return finish();
    }
    pool_set_threads(3);
    counting();
    for (long i = 0; i < graphs; i++)
        for (int fuse = 0; fuse < 2; fuse++)
            one_random((uint64_t)i, fuse);
    check(same_part_elides > (uint32_t)graphs / 16, "only %u barriers were dropped for equal parts", same_part_elides);
    return finish();
}
