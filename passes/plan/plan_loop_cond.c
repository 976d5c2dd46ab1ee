/* A cond in the body of a loop that is one kernel: where loops are written out, both branches are computed and one is
 * selected; else the kernel branches. */
#include "plan_loop.h"

bool loop_cond_fits(const struct loop_kernel *b, const struct command *c)
{
    const struct node *n = node_at(b->body, c->region);
    for (uint32_t i = 0; i < 2; i++) {
        struct loop_kernel branch = {.p = b->p, .n = b->n, .sub = c->sub[i]};
        if (n->op != OP_cond)
            return false;
        branch.body = c->sub[i]->g;
        if (!loop_region_fits(&branch))
            return false;
    }
    return true;
}

/* Results of a branch that are operands of it, and that are to be where these are: with no copy.  So a loop that has
 * nothing more to do takes no time. */
static void leave_in_place(struct loop_kernel *b, struct loop_kernel *outer, const struct command *c,
                           uint32_t nin)
{
    for (uint32_t i = 0; i < b->sub->ncmd && !b->scalars; i++) {
        const struct loc *arg = b->sub->cmd[i].arg;
        if (b->sub->cmd[i].kind != CMD_COPY || arg[0].kind != LOC_OUT || arg[1].kind != LOC_INPUT)
            continue;
        const struct inline_array *from = &b->input[arg[1].index];
        if (c->value[nin + arg[0].index] && inline_is_same(loop_argument(outer, c, nin + arg[0].index), from))
            b->yield[arg[0].index] = *from;
    }
}

/* Inlines one branch, whose operands are those of the command but the first.  Its results; NULL: it cannot be inlined,
 * or no memory. */
static struct inline_array *inline_branch(struct loop_kernel *b, const struct command *c, uint32_t which, uint32_t nin,
                                          uint32_t nout)
{
    struct loop_kernel outer = *b;
    struct inline_array *yield = mem_arena_alloc(&b->mem, (nout + 1) * sizeof *yield);
    b->input = mem_arena_alloc(&b->mem, nin * sizeof *b->input);
    b->body = c->sub[which]->g;
    b->value = mem_arena_alloc(&b->mem, b->body->nnode * sizeof *b->value);
    b->sub = c->sub[which];
    b->yield = yield;
    b->nout = nout;
    b->narena = 0;
    bool ok = !b->mem.failed;
    for (uint32_t i = 1; i < nin && ok; i++)
        b->input[i - 1] = *loop_argument(&outer, c, i);
    if (ok)
        leave_in_place(b, &outer, c, nin);
    ok = ok && loop_inline_region(b);
    outer.mem = b->mem;
    outer.bytes = b->bytes;
    *b = outer;
    return ok ? yield : NULL;
}

static val cond_select(struct kernel *k, val condition, val yes, val no)
{
    const struct linst *c = &k->inst[condition];
    if (c->op == L_CONST)
        return c->imm ? yes : no;
    return yes == no ? yes : k_prim(k, P_SELECT, condition, yes, no);
}

bool loop_inline_cond(struct loop_kernel *b, const struct command *c)
{
    const struct node *n = node_at(b->body, c->region);
    uint32_t nin = node_nin(n), nout = region_results(b->body, n);
    val holds = inline_load(b->k, loop_argument(b, c, 0), 0);
    struct inline_array *yield[2];
    for (uint32_t which = 0; which < 2; which++) {
        val open = b->scalars ? 0 : k_if(b->k, which ? k_prim(b->k, P_NOT, holds, 0, 0) : holds);
        if (!(yield[which] = inline_branch(b, c, which, nin, nout)))
            return false;
        for (uint32_t i = 0; i < nout && open; i++)
            if (c->value[nin + i])
                inline_copy(b->k, loop_argument(b, c, nin + i), &yield[which][i]);
        if (open)
            k_end(b->k, open);
    }
    for (uint32_t i = 0; i < nout && b->scalars; i++)
        for (int64_t e = 0; c->value[nin + i] && e < yield[0][i].count; e++)
            inline_store(b->k, loop_argument(b, c, nin + i), e,
                         cond_select(b->k, holds, yield[0][i].scalar[e], yield[1][i].scalar[e]));
    return !b->k->err.code;
}
