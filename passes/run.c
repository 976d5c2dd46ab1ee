/* Runs the pipeline: each pass, then verification and dump. */
#include "passes.h"
#include <string.h>

const struct pass_info pass_list[] = {
#define PASS(name, flags, stage, doc) {#name, flags, stage, doc, pass_##name},
#include "passes.def"
};
const unsigned pass_count = sizeof pass_list / sizeof *pass_list;

_Atomic(uint64_t) pass_steps;

const struct pass_info *pass_find(const char *name, size_t len)
{
    for (unsigned i = 0; i < pass_count; i++)
        if (strlen(pass_list[i].name) == len && !memcmp(pass_list[i].name, name, len))
            return &pass_list[i];
    return NULL;
}

static bool passes_check(struct graph *g, const struct pass_options *o, const char *after)
{
    struct err e = {0};
    bool placeholders = o->placeholders && o->placeholders->n;
    if (o->verify && !(placeholders ? graph_verify_placeholders : graph_verify)(g, &e))
        return err_set(&g->err, e.code == KL_ERR_MEMORY ? KL_ERR_MEMORY : KL_ERR_INTERNAL, "after %s: %s", after,
                       e.msg);
    return true;
}

static bool has_grad(const struct graph *g)
{
    bool grad = false;
    for (ref r = 1; r < g->nnode && !grad; r++)
        grad = g->node[r].op == OP_grad;
    for (uint32_t i = 0; i < g->nregion && !grad; i++)
        grad = has_grad(g->region[i]);
    return grad;
}

static int run_with_regions(const struct pass_info *p, struct graph *g, const struct pass_options *o)
{
    int changed = 0;
    for (uint32_t i = 0; !(p->flags & WHOLE_GRAPH) && i < g->nregion; i++) {
        int c = run_with_regions(p, g->region[i], o);
        if (c < 0)
            return err_set(&g->err, g->region[i]->err.code, "%s", g->region[i]->err.msg), -1;
        changed |= c;
    }
    int c = p->run(g, o);
    return c < 0 ? c : c | changed;
}

int pass_run(const struct pass_info *p, struct graph *g, const struct pass_options *o)
{
    static const struct pass_options fused = {.fuse = true};
    o = o ? o : &fused;
    if ((p->flags & NO_GRADS && has_grad(g)) || (p->flags & NO_PLACEHOLDERS && o->placeholders && o->placeholders->n))
        return 0;
    return run_with_regions(p, g, o);
}

bool passes_run_first(struct graph *g, unsigned n, enum pass_flag flag, const struct pass_options *o)
{
    bool ok = true;
    for (unsigned i = 0; ok && i < pass_count; i++)
        ok = (i >= n && !(pass_list[i].flags & flag)) || pass_run(&pass_list[i], g, o) >= 0;
    return ok;
}

bool passes_run(struct graph *g, const struct pass_options *o)
{
    if (!passes_check(g, o, "recording"))
        return false;
    if (o->dump)
        o->dump(o->ctx, "captured", g);
    if (o->placeholders)
        o->placeholders->n = 0;
    for (unsigned i = 0; i < pass_count; i++) {
        const struct pass_info *p = &pass_list[i];
        if (cancellation_requested(o->cancel, &g->err))
            return false;
        if (pass_run(p, g, o) < 0 || g->err.code)
            return err_set(&g->err, KL_ERR_INTERNAL, "pass %s failed", p->name);
        if (!passes_check(g, o, p->name))
            return false;
        bool last_of_stage = i + 1 == pass_count || strcmp(p->stage, pass_list[i + 1].stage) != 0;
        if (o->dump && last_of_stage)
            o->dump(o->ctx, p->stage, g);
    }
    return true;
}
