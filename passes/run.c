/* Runs the pipeline: each pass, then verification and dump. */
#include "passes.h"
#include <string.h>

const struct pass_info pass_list[] = {
#define PASS(name, stage, doc) {#name, stage, doc, pass_##name},
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
    if (o->verify && !graph_verify(g, &e))
        return err_set(&g->err, e.code == KL_ERR_MEMORY ? KL_ERR_MEMORY : KL_ERR_INTERNAL, "after %s: %s", after,
                       e.msg);
    return true;
}

static bool has_grad(const struct graph *g)
{
    for (ref r = 1; r < g->nnode; r++)
        if (g->node[r].op == OP_grad)
            return true;
    return false;
}

int pass_run(const struct pass_info *p, struct graph *g, const struct pass_options *o)
{
    int changed = 0;
    /* these passes would remove what gradients need; the gradient of a gather adds to 0, that of a slice does not */
    if ((p->run == pass_simplify || p->run == pass_inline || p->run == pass_split_reductions ||
         p->run == pass_positions) && has_grad(g))
        return 0;
    for (uint32_t i = 0; p->run != pass_bind && i < g->nregion; i++) {
        int c = pass_run(p, g->region[i], o);
        if (c < 0)
            return err_set(&g->err, g->region[i]->err.code, "%s", g->region[i]->err.msg), -1;
        changed |= c;
    }
    int c = p->run == pass_fuse ? pass_fuse_groups(g, o && !o->fuse, o ? o->processor : (struct processor){0})
        : p->run == pass_numerics ? pass_numerics_for(g, o ? o->bf16_dot2 : 0, o ? o->placeholders : NULL) : p->run(g);
    return c < 0 ? c : c | changed;
}

static bool run_all(struct graph *g, const struct pass_options *o, const struct symbols *recorded, uint32_t slots)
{
    for (unsigned i = 0; i < pass_count; i++) {
        const struct pass_info *p = &pass_list[i];
        struct err e;
        e.code = KL_OK;
        if (p->run == pass_numerics && recorded && !graph_use_placeholders(g, recorded, slots, o->placeholders, &e))
            return err_set(&g->err, e.code, "%s", e.msg);
        bool skip = p->run == pass_split_reductions && recorded && o->placeholders->n; /* it splits by numbers */
        int changed = skip ? 0 : pass_run(p, g, o);
        if (changed < 0 || g->err.code)
            return err_set(&g->err, KL_ERR_INTERNAL, "pass %s failed", p->name);
        if (!passes_check(g, o, p->name))
            return false;
        bool last_of_stage = i + 1 == pass_count || strcmp(p->stage, pass_list[i + 1].stage) != 0;
        if (o->dump && last_of_stage)
            o->dump(o->ctx, p->stage, g);
    }
    return true;
}

bool passes_run(struct graph *g, const struct pass_options *o)
{
    if (!passes_check(g, o, "recording"))
        return false;
    if (o->dump)
        o->dump(o->ctx, "captured", g);
    struct symbols *recorded = NULL; /* passes may take some away */
    uint32_t slots = g->slot.n;
    if (o->placeholders)
        o->placeholders->n = 0;
    if (o->placeholders && g->symbols) {
        if (!(recorded = mem_alloc(sizeof *recorded)))
            return err_set(&g->err, KL_ERR_MEMORY, "out of memory: graph @%s", g->name);
        recorded->n = g->symbols->n;
        memcpy(recorded->v, g->symbols->v, sizeof recorded->v);
    }
    bool ok = run_all(g, o, recorded, slots);
    mem_free(recorded);
    return ok;
}
