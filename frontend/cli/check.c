/* kiln check: does a device give what the interpreter gives, fused and unfused?  If not: where, and the smallest graph
 * that shows it. */
#include "job.h"
#include "frontend/check/check.h"
#include "ir/text/text.h"
#include <kiln/extend.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct checking {
    struct job *j;
    const char *out;         /* -o: where the small graph goes; NULL: beside the file */
    double seconds;          /* for making the graph small */
    /* as struct difference; NAN: 0 on a processor and in the graph's order, else the usual one */
    double tolerance;
    bool tolerance_given;
    uint64_t seed;
    bool fuse;               /* the run that differs */
    double end;              /* by check_seconds(), for the search */
};

static double check_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const char *run_name(bool fuse) { return fuse ? "fused" : "unfused"; }

/* ---- values ---- */

static bool take_arrays(void **to, const struct graph *g, const struct leaves *l, struct buffer *const *from)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct err e = {0};
        size_t bytes = check_leaf_bytes(g, &l->v[i]);
        if (!from[i])
            continue; /* to be made up */
        if (!(to[i] = mem_alloc(bytes + 1)) || !buffer_read(from[i], to[i], bytes, &e))
            return cli_error("%s", to[i] ? e.msg : "out of memory"), false;
    }
    return true;
}

static bool take_values(struct checking *c, struct check_values *v)
{
    struct job *j = c->j;
    struct err e = {0};
    if (!check_values_room(v, j->g, &e))
        return cli_error("%s", e.msg), false;
    if (!take_arrays(v->input, j->g, &j->g->input, j->input) || !take_arrays(v->state, j->g, &j->g->state, j->state))
        return false;
    memcpy(v->slot, j->slot, j->g->slot.n * sizeof *v->slot);
    return check_values_fill(v, j->g, c->seed, &e) || (cli_error("%s", e.msg), false);
}

/* ---- comparing ---- */

/* Does the run differ from the interpreter's?  -1: it cannot be run, *e says why.  *k, *d: the first output and how. */
static int check_differs(const struct checking *c, const struct graph *g, const struct check_values *v, bool fuse,
                   uint32_t *k, struct difference *d, struct err *e)
{
    struct check_outputs want = {0}, have = {0};
    int found = check_reference(g, c->j->device, v, &want, e) && check_run(g, c->j->device, fuse, v, &have, e) ? 0 : -1;
    for (*k = 0; found == 0 && *k < g->nout; ++*k) {
        ref r = g->out[*k].value;
        if (!check_same(node_at(g, r)->dtype, want.data[*k], have.data[*k], node_numel(g, r), c->tolerance, d)) {
            found = 1;
            break;
        }
    }
    check_outputs_free(&want);
    check_outputs_free(&have);
    return found;
}

static void show_difference(const struct checking *c, bool fuse, uint32_t k, const struct difference *d)
{
    const struct graph *g = c->j->g;
    bool assign = g->out[k].kind == OUT_ASSIGN, written;
    const char *name = assign ? g->state.v[g->out[k].state].name : graph_output_name(g, k, &written);
    char *text = check_difference_text(node_at(g, g->out[k].value)->dtype, d);
    printf("%s %s: output %u%s%s differs: %s\n", device_name(c->j->device), run_name(fuse), k, *name ? " " : "", name,
           text ? text : "");
    mem_free(text);
}

static void show_place(const struct check_place *p)
{
    if (p->pass)
        printf("    pass %s changes values: the interpreter gives others for the graph behind it\n", p->pass);
    if (p->kernel)
        printf("    first in kernel %s, of node\n        %s\n    %s\n", p->kernel, p->node, p->difference);
    if (!p->pass && !p->kernel)
        printf("    each kernel alone, one after the other, gives the right values\n");
}

/* ---- the small graph ---- */

/* v NULL: with values that are made up for this very graph. */
static bool still_fails(void *ctx, const struct graph *g, const struct check_values *v)
{
    const struct checking *c = ctx;
    struct check_values made = {0};
    struct difference d;
    struct err e = {0};
    uint32_t k;
    bool fails = (v || check_values_made_up(&made, g, c->seed, &e)) &&
                 check_differs(c, g, v ? v : &made, c->fuse, &k, &d, &e) == 1;
    check_values_free(&made);
    return fails;
}

static bool time_is_over(void *ctx) { return check_seconds() > ((const struct checking *)ctx)->end; }

/* PATH of the small graph: -o, or the file's with .check.kir in place of its ending. */
static char *small_path(const struct checking *c)
{
    struct text t = {0};
    const char *file = c->j->file, *slash = strrchr(file, '/'), *dot = strrchr(file, '.');
    if (c->out)
        text_put(&t, "%s", c->out);
    else if (!strcmp(file, "-"))
        text_put(&t, "stdin.check.kir");
    else
        text_put(&t, "%.*s.check.kir", dot && (!slash || dot > slash) ? (int)(dot - file) : (int)strlen(file), file);
    if (!t.failed)
        return t.s;
    mem_free(t.s);
    return NULL;
}

/* Writes a leaf's values beside the graph, and the option that reads them to `options`. */
static bool write_leaf(const char *path, const char *kind, uint32_t i, const struct graph *g, const struct leaf *l,
                       const void *data, struct text *options)
{
    struct text name = {0};
    text_put(&name, "%s.%s%u.npy", path, kind, i);
    text_put(options, " --%s %u=%s", kind, i, name.s ? name.s : "");
    bool ok = !name.failed && !options->failed &&
              cli_write_array(name.s, l->dtype, &g->shape[l->shape], data, true);
    mem_free(name.s);
    return ok;
}

static bool write_values(const char *path, const struct graph *g, const struct check_values *v, struct text *options)
{
    bool ok = true;
    for (uint32_t i = 0; ok && i < g->input.n; i++)
        ok = write_leaf(path, "input", i, g, &g->input.v[i], v->input[i], options);
    for (uint32_t i = 0; ok && i < g->state.n; i++)
        ok = write_leaf(path, "state", i, g, &g->state.v[i], v->state[i], options);
    for (uint32_t i = 0; ok && i < g->slot.n; i++) {
        text_put(options, " --slot %u=", i);
        text_literal(options, g->slot.v[i].dtype, v->slot[i]);
    }
    for (uint32_t i = 0; i < g->input.n + g->state.n; i++) {
        const struct leaf *l = i < g->input.n ? &g->input.v[i] : &g->state.v[i - g->input.n];
        if (l->dtype == KL_BF16) {
            text_put(options, " --bf16-bits");
            break;
        }
    }
    return ok && !options->failed;
}

static bool write_small(const struct checking *c, const struct graph *g, const struct check_values *v, bool made_up)
{
    struct text options = {0};
    char *path = small_path(c);
    FILE *f = path && (made_up || write_values(path, g, v, &options)) ? fopen(path, "w") : NULL;
    if (!f) {
        cli_error("%s: cannot be written", path ? path : "the small graph");
        mem_free(options.s);
        mem_free(path);
        return false;
    }
    if (option_graph_order() && !device_is_host(c->j->device))
        text_put(&options, " --order graph");
    if (c->tolerance_given)
        text_put(&options, " --tolerance %.9g", c->tolerance);
    if (c->seed != 1)
        text_put(&options, " --seed %llu", (unsigned long long)c->seed);
    fprintf(f, "# kiln check %s%s --device %s\n", path, options.s ? options.s : "", device_name(c->j->device));
    graph_print(g, f);
    bool ok = !fclose(f);
    if (ok)
        printf("%u of %u nodes show it: kiln check %s%s --device %s\n", g->nnode - 1, c->j->g->nnode - 1, path,
               options.s ? options.s : "", device_name(c->j->device));
    mem_free(options.s);
    mem_free(path);
    return ok;
}

/* Begins with the kernel's nodes alone, if they fail; else with the whole graph. */
static bool make_small(struct checking *c, struct check_place *p, struct check_values *v)
{
    struct graph *g = NULL;
    struct check_values *values = v;
    if (p->graph && still_fails(c, p->graph, &p->values)) {
        g = p->graph, values = &p->values;
        p->graph = NULL;
    } else if (!(g = graph_clone(c->j->g))) {
        return cli_error("out of memory"), false;
    }
    c->end = check_seconds() + c->seconds;
    const struct shrink s = {still_fails, c, time_is_over, c->seed};
    bool made_up = still_fails(c, g, NULL); /* then a file of the graph is all that it takes */
    shrink_graph(&s, &g, made_up ? NULL : values);
    made_up = made_up || still_fails(c, g, NULL);
    bool ok = write_small(c, g, values, made_up);
    graph_free(g);
    return ok;
}

/* ---- the command ---- */

/* The exit code of one run: DIFF_SAME, DIFF_CHANGES, DIFF_TROUBLE. */
static int check_one(struct checking *c, struct check_values *v, bool fuse)
{
    struct difference d;
    struct err e = {0};
    uint32_t k;
    int found = check_differs(c, c->j->g, v, fuse, &k, &d, &e);
    if (found < 0)
        return cli_error("%s %s: %s", device_name(c->j->device), run_name(fuse), e.msg), DIFF_TROUBLE;
    if (!found) {
        printf("%s %s: %s\n", device_name(c->j->device), run_name(fuse),
               c->tolerance == 0 ? "the same bits as interpreted" : "as interpreted, within the tolerance");
        return DIFF_SAME;
    }
    show_difference(c, fuse, k, &d);
    struct check_place p = {0};
    c->fuse = fuse;
    bool ok = check_locate(c->j->g, c->j->device, fuse, c->tolerance, v, check_isolate, &p, &e);
    if (!ok)
        cli_error("%s", e.msg);
    if (ok)
        show_place(&p);
    ok = ok && make_small(c, &p, v);
    check_place_free(&p);
    return ok ? DIFF_CHANGES : DIFF_TROUBLE;
}

int cli_check(int argc, char **argv)
{
    double seed = 1;
    struct job j = {0};
    struct checking c = {.j = &j, .seconds = 60, .tolerance = NAN};
    const struct cli_option options[] = {
        {"-o", .value = &c.out},
        {"--seconds", .take = cli_number, .ctx = &c.seconds},
        {"--tolerance", .take = cli_number, .ctx = &c.tolerance},
        {"--seed", .take = cli_number, .ctx = &seed},
        {.value = &j.file, .needed = true},
        {.take = job_argument, .ctx = &j},
        {0},
    };
    if (!cli_parse(argc, argv, options, "check needs a file"))
        return job_end(&j, DIFF_TROUBLE);
    c.seed = (uint64_t)seed;
    struct check_values v = {0};
    int worst = DIFF_TROUBLE;
    if (job_open(&j) && job_bind(&j, MISSING_LEFT) && take_values(&c, &v)) {
        c.tolerance_given = !isnan(c.tolerance);
        if (!c.tolerance_given)
            c.tolerance = device_is_host(j.device) || option_graph_order() ? 0 : -1;
        worst = DIFF_SAME;
        for (int fuse = 0; fuse < 2; fuse++) {
            int code = check_one(&c, &v, fuse);
            worst = code > worst ? code : worst;
            if (code == DIFF_CHANGES)
                break; /* unfused already: fused differs for the same reason, or is not reached */
        }
    }
    check_values_free(&v);
    return job_end(&j, worst);
}
