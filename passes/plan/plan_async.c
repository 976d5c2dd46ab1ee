/* Custom ops that another thread runs while kernels run: communication between processes.
 *
 * The commands of such ops are started in the order of the list and run one after the other on that thread.  Each is
 * placed as early as its operands allow; what depends on their results is placed behind everything that does not.  A
 * command that reads such a result waits for it (command.wait).  Until the first one that does, or to the end of the
 * program, the op's operands, results and workspace keep their memory.
 *
 * Such an op that reads the result of another does not wait: the other one has ended when its turn comes.  Ops of
 * regions run where the region runs, without another thread. */
#include "ir/graph/custom.h"
#include "plan.h"

bool plan_is_async(const struct planner *p, uint32_t group)
{
    ref r = p->non_fusible[group];
    return p == p->root && r && custom_is_async(p->g, &p->g->node[r]);
}

void plan_async_priorities(struct planner *p, uint32_t *priority)
{
    enum { START, INDEPENDENT, DEPENDENT };
    uint32_t n = 0, *queue = p->order;
    for (uint32_t i = 0; i < p->g->ngroup; i++) {
        priority[i] = plan_is_async(p, i) ? START : INDEPENDENT;
        if (priority[i] == START)
            queue[n++] = i;
    }
    for (uint32_t at = 0; at < n; at++)
        for (uint32_t i = 0; i < p->succ[queue[at]].n; i++) {
            uint32_t next = p->succ[queue[at]].v[i];
            if (priority[next] == INDEPENDENT) {
                priority[next] = DEPENDENT;
                queue[n++] = next;
            }
        }
}

static void live_until(struct planner *p, ref r, uint32_t command)
{
    if (p->value[r].node && p->value[r].last < command)
        p->value[r].last = command;
}

void plan_async_lifetimes(struct planner *p)
{
    uint32_t waited = 0;
    for (uint32_t at = 0; at < p->norder; at++) {
        uint32_t group = p->order[at];
        const struct lowered *l = &p->low[group];
        if (plan_is_async(p, group)) {
            p->signal[group] = ++p->p->signals;
            continue;
        }
        for (uint32_t a = 0; a < l->narg; a++) {
            ref r = l->arg[a].node;
            uint32_t needs = l->arg[a].role != BUF_IN || node_is_stored_leaf(p->g, r) ? 0 : p->signal[p->g->group[r]];
            if (needs > waited)
                p->wait[group] = waited = needs;
        }
    }
    uint32_t n = p->norder, waits = 0; /* waits: the first group that waits for the op, which waits for all before */
    for (uint32_t at = 0; at < n; at++) {
        uint32_t group = p->order[at], end;
        if (!p->signal[group])
            continue;
        for (waits = waits > at ? waits : at + 1; waits < n && p->wait[p->order[waits]] < p->signal[group];)
            waits++;
        end = p->first_kernel + (waits < n ? waits : n - 1);
        live_until(p, p->non_fusible[group], end);
        for (uint32_t a = 0; a < p->low[group].narg; a++)
            live_until(p, p->low[group].arg[a].node, end);
    }
}

void plan_async_commands(struct planner *p)
{
    for (uint32_t at = 0; at < p->norder; at++) {
        struct command *c = &p->p->cmd[p->first_kernel + at];
        c->signal = p->signal[p->order[at]];
        c->wait = p->wait[p->order[at]];
    }
}

static bool may_overwrite(const struct program *p, const struct command *c)
{
    for (uint32_t a = 0; a < c->narg; a++)
        if (c->arg[a].kind == LOC_OUT && p->in_place[c->arg[a].index])
            return true;
    return false;
}

/* A custom op of another thread that is started before any state is overwritten has ended when the first one is: the
 * executor waits.  So if it fails, all states have their old values. */
void plan_async_overwrites(struct program *p)
{
    p->overwrites = 0;
    while (p->overwrites < p->ncmd && !may_overwrite(p, &p->cmd[p->overwrites]))
        p->overwrites++;
    p->calls = p->loops = false;
    for (uint32_t i = 0; i < p->ncmd; i++) {
        const struct command *c = &p->cmd[i];
        /* the program of a region has its kernels later; only the whole program's loops are asked for */
        bool loop = c->kind == CMD_REGION ||
                    (c->kind == CMD_KERNEL && p->kernel && kernel_is_in_order(p->kernel[c->kernel]));
        p->loops |= loop && i >= p->overwrites;
        p->calls |= c->kind == CMD_CUSTOM && (!c->signal || i >= p->overwrites);
        p->calls |= c->kind == CMD_INTERP && custom_any(p->g);
        for (int k = 0; k < 2; k++)
            p->calls |= c->sub[k] && custom_any(c->sub[k]->g);
    }
}
