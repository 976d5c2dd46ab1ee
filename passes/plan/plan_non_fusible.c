/* Plans groups that are not kernels: region ops, each a command with the programs of its regions, custom ops, which
 * have none, and copies. */
#include "plan.h"

struct workspace command_workspace(const struct program *p, const struct command *c)
{
    const struct node *n = node_at(p->g, c->region);
    struct workspace w = {0};
    uint32_t nin = node_nin(n), nout = region_results(p->g, n);
    for (uint32_t i = 0; i < nout; i++)
        if (!c->value[nin + i])
            w.work += plan_round64((int64_t)region_result_bytes(p->g, n, i));
    w.pointers = w.work + plan_round64((int64_t)region_work_bytes(p->g, n));
    w.arena = w.pointers + plan_round64((int64_t)((nin + nout) * sizeof(void *)));
    int64_t arena = 0;
    for (uint32_t i = 0; i < op_regions(n->op); i++)
        arena = c->sub[i]->arena_bytes[n->device] > arena ? c->sub[i]->arena_bytes[n->device] : arena;
    w.bytes = w.arena + plan_round64(arena);
    return w;
}

/* Replaces the programs of a group's regions by a kernel, if they may be one; kernels: those of the whole before the
 * last one. */
static bool region_as_kernel(struct planner *p, uint32_t group, uint32_t kernels)
{
    if (!plan_loop(p, group, p->sub[group][0]) || !plan_while(p, group, kernels))
        return false;
    if (!p->low[group].k)
        return true;
    plan_free_program(p->sub[group][0]);
    p->sub[group][0] = NULL;
    p->non_fusible[group] = NIL;
    plan_drop_kernels(p->root, kernels);
    return true;
}

/* The arguments of a region op's group: operands as they are stored, then the results that are read. */
static bool lower_region(struct planner *p, uint32_t group)
{
    struct lowered *l = &p->low[group];
    ref r = p->non_fusible[group];
    const struct node *n = &p->g->node[r];
    if (op_is_inlined(n->op))
        return err_set(p->e, KL_ERR_INTERNAL, "%s: node %u is still there; pass inline takes it apart first",
                       opinfo[n->op].name, r);
    uint32_t nin = node_nin(n), nout = region_results(p->g, n);
    l->arg = mem_alloc((nin + nout) * sizeof *l->arg);
    if (!l->arg)
        return plan_no_memory(p);
    for (uint32_t i = 0; i < nin; i++)
        l->arg[l->narg++] = (struct arg){node_stored(p->g, node_in(p->g, n, i)), BUF_IN};
    const struct groups *s = lowerer_groups(p->lowerer);
    for (uint32_t m = s->first[group]; m < s->first[group + 1]; m++)
        if (p->g->node[s->member[m]].op == OP_proj)
            l->arg[l->narg++] = (struct arg){s->member[m], BUF_OUT};
    uint32_t kernels = 0;
    for (uint32_t i = 0; i < op_regions(n->op); i++) {
        kernels = p->root->p->nkernel;
        struct program *sub = plan_graph(node_region(p->p->g, n, i), p->targets, p->root, p->e);
        p->sub[group][i] = sub;
        if (!sub)
            return false;
        for (unsigned d = 0; d < MAX_DEVICES; d++)
            if (d != n->device && sub->arena_bytes[d] > p->p->region_bytes[d])
                p->p->region_bytes[d] = sub->arena_bytes[d];
        p->p->scratch_bytes = sub->scratch_bytes > p->p->scratch_bytes ? sub->scratch_bytes : p->p->scratch_bytes;
        if (sub->workspace_bytes > p->p->workspace_bytes)
            p->p->workspace_bytes = sub->workspace_bytes;
        p->p->max_args = sub->max_args > p->p->max_args ? sub->max_args : p->p->max_args;
    }
    return n->op == OP_custom || region_as_kernel(p, group, kernels);
}

/* Fills in c: operands, results and the workspace, except for its offsets. */
static void region_arguments(const struct planner *p, uint32_t group, struct command *c)
{
    const struct lowered *l = &p->low[group];
    const struct node *n = &p->g->node[p->non_fusible[group]];
    uint32_t nin = node_nin(n);
    c->region = p->non_fusible[group];
    for (uint32_t i = 0; i < op_regions(n->op); i++)
        c->sub[i] = p->sub[group][i];
    for (uint32_t i = 0; i < l->narg; i++) {
        ref r = l->arg[i].node;
        c->value[i < nin ? i : nin + p->g->node[r].attr.proj.index] = r;
    }
}

bool plan_workspace(struct planner *p, uint32_t group, int64_t *bytes)
{
    const struct node *n = &p->g->node[p->non_fusible[group]];
    struct command c = {.value = mem_alloc((node_nin(n) + region_results(p->g, n)) * sizeof *c.value)};
    if (!c.value)
        return plan_no_memory(p);
    region_arguments(p, group, &c);
    *bytes = command_workspace(p->p, &c).bytes;
    mem_free(c.value);
    return true;
}

static bool copy_arguments(struct planner *p, uint32_t group)
{
    struct lowered *l = &p->low[group];
    ref r = p->non_fusible[group];
    l->arg = mem_alloc(2 * sizeof *l->arg);
    if (!l->arg)
        return plan_no_memory(p);
    l->arg[l->narg++] = (struct arg){r, BUF_OUT};
    l->arg[l->narg++] = (struct arg){node_stored(p->g, p->g->node[r].in[0]), BUF_IN};
    return true;
}

bool plan_has_workspace(const struct planner *p, uint32_t group)
{
    return p->non_fusible[group] && op_is_region(p->g->node[p->non_fusible[group]].op);
}

bool plan_non_fusible(struct planner *p, uint32_t group)
{
    return plan_has_workspace(p, group) ? lower_region(p, group) : copy_arguments(p, group);
}

static bool region_command(struct planner *p, uint32_t group)
{
    const struct node *n = &p->g->node[p->non_fusible[group]];
    uint32_t nin = node_nin(n), nout = region_results(p->g, n);
    struct command *c = plan_command(p, n->op == OP_custom ? CMD_CUSTOM : CMD_REGION, n->device, nin + nout + 1);
    if (!c)
        return false;
    region_arguments(p, group, c);
    p->sub[group][0] = p->sub[group][1] = NULL; /* the command owns them from here on */
    struct loc at = p->value[c->region].loc;
    c->arg[nin + nout] = at;
    for (uint32_t i = 0; i < nin + nout; i++) {
        c->arg[i] = c->value[i] ? plan_value_loc(p, c->value[i]) : at;
        if (!c->value[i])
            at.offset += plan_round64((int64_t)region_result_bytes(p->g, n, i - nin));
    }
    return true;
}

bool plan_non_fusible_command(struct planner *p, uint32_t group)
{
    if (plan_has_workspace(p, group))
        return region_command(p, group);
    ref to = p->low[group].arg[0].node, from = p->low[group].arg[1].node;
    return plan_copy(p, to, plan_value_loc(p, to), from, plan_value_loc(p, from));
}
