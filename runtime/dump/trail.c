/* Runs the passes on a graph and keeps each stage.  All passes preserve call sites, which are not hashed, so a mark in
 * the site of a captured node appears in every node that is made from it. */
#include "dump.h"
#include <string.h>

enum { MARK = '\1', PATH = 160 }; /* a marked function is "name\1path" */

const char *trail_origin(const struct graph *g, ref r)
{
    const char *func = g->site[g->node[r].site].func, *mark = func ? strchr(func, MARK) : NULL;
    return mark ? mark + 1 : "";
}

void trail_function(const kl_site *s, char *text, size_t n)
{
    const char *func = s->func ? s->func : "";
    snprintf(text, n, "%.*s", (int)strcspn(func, "\1"), func);
}

static bool mark_nodes(struct graph *g, const char *path)
{
    for (ref r = 1; r < g->nnode && !g->err.code; r++) {
        kl_site s = g->site[g->node[r].site];
        char own[PATH], name[2 * PATH], function[PATH];
        trail_function(&s, function, sizeof function);
        snprintf(own, sizeof own, "%s%u", path, r);
        snprintf(name, sizeof name, "%s%c%s", function, MARK, own);
        s.func = graph_string(g, name, strlen(name));
        s.file = s.file ? s.file : "";
        g->node[r].site = s.func ? graph_site(g, &s) : 0;
        for (uint32_t i = 0; i < op_regions(g->node[r].op); i++) {
            char inner[PATH];
            struct graph *region = node_region(g, &g->node[r], i);
            snprintf(inner, sizeof inner, "%.120s/%u/", own, i);
            if (!mark_nodes(region, inner))
                return err_set(&g->err, region->err.code, "%s", region->err.msg);
        }
    }
    return !g->err.code;
}

static void keep_stage(void *ctx, const char *stage, const struct graph *g)
{
    struct trail *t = ctx;
    t->name[t->n] = stage;
    t->graph[t->n] = graph_clone(g);
    if (!t->graph[t->n++])
        err_set(&t->why, KL_ERR_MEMORY, "out of memory dumping @%s", g->name);
}

bool trail_make(struct trail *t, const struct graph *captured, const struct dump_request *r, bool mark, struct err *e)
{
    *t = (struct trail){0};
    struct graph *g = graph_clone(captured);
    if (!g)
        return err_set(e, KL_ERR_MEMORY, "out of memory dumping @%s", captured->name);
    if (r->device >= 0)
        graph_move(g, graph_device(g), (unsigned)r->device);
    /* kernels are those for all values of symbols; graphs are shown with the symbols */
    bool kernels = r->form != DUMP_HTML && r->stage && !dump_is_graph_stage(r->stage);
    struct pass_options o = {.fuse = r->fuse, .verify = true, .bf16_dot2 = device_bf16_dot2(g),
                             .bf16_tiles = r->target || option_graph_order() ? 0 : device_bf16_tiles(g),
                             .processor = r->target ? (struct processor){0} : device_processor(g),
                             .gpus = r->target ? UINT64_MAX : device_gpus(g),
                             .graph_order = option_graph_order(),
                             .dump = keep_stage, .ctx = t,
                             .placeholders = kernels ? &t->placeholders : NULL, .recorded = captured};
    bool ok = (!mark || mark_nodes(g, "")) && passes_run(g, &o);
    if (!ok && kernels && captured->symbols && g->err.code == KL_ERR_COMPILE)
        err_set(e, KL_ERR_COMPILE, "graph @%s has kernels for single values of its symbols only (%.400s), so they "
                "need values: --bind NAME=NUMBER", captured->name, g->err.msg);
    else if (!ok)
        err_set(e, g->err.code, "%s", g->err.msg);
    graph_free(g);
    return ok && (!t->why.code || err_set(e, t->why.code, "%s", t->why.msg));
}

struct program *dump_plan(const struct trail *t, const struct caps *caps, bool fuse, struct err *e)
{
    const struct graph *g = t->graph[t->n - 1];
    const struct sched_section *s;
    const struct target_set one = {&(struct target){.caps = caps}, 1};
    if (t->placeholders.n)
        return program_plan_symbolic(g, &t->placeholders, &one, e);
    const struct tuned *tuned = tuned_for(graph_devices(g));
    return schedules_of(g->name, fuse, &s, e) ? program_plan_with(g, caps, s, tuned, NULL, e) : NULL;
}

void trail_plan(struct trail *t, const struct dump_request *r)
{
    struct caps caps, own;
    const struct graph *g = t->graph[t->n - 1];
    uint64_t devices = graph_devices(g);
    t->backend = device_backend(-1, &caps); /* none */
    for (int d = 0; d < MAX_DEVICES; d++) {
        const struct backend *b = devices >> d & 1 || d == r->device ? device_backend(d, &own) : NULL;
        if (b) {
            t->backend = b;
            t->device = d;
            caps = own;
            caps.graph_order = caps.is_gpu && option_graph_order();
        }
    }
    t->program = t->backend ? dump_plan(t, &caps, r->fuse, &t->why) : program_plan(g, &caps, true, &t->why);
}

void trail_free(struct trail *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        graph_free(t->graph[i]);
    program_free(t->program);
}

uint32_t command_group(const struct program *p, const struct command *c)
{
    const uint32_t *group = p->g->group;
    if (c->kind == CMD_REGION || c->kind == CMD_CUSTOM)
        return group[c->region];
    for (uint32_t i = 0; c->kind == CMD_KERNEL && i < c->narg; i++)
        if (p->kernel[c->kernel]->buf[i].role == BUF_OUT)
            return group[c->value[i]];
    ref to = c->kind == CMD_COPY ? c->value[0] : NIL;
    return to && p->g->node[to].op == OP_copy ? group[to] : GROUP_NONE;
}
