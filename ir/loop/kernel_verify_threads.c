/* Uniformity analysis of a block: is a value the same in all threads of a block, the same in all threads of a subgroup,
 * or different in each? A condition that a barrier depends on must be the same in all threads of the block; one that a
 * tile depends on must be the same in all threads of the subgroup.
 *
 * The uniformity of a value is the weakest of its operands'. Carries depend on values of later instructions, so the
 * pass is repeated until nothing changes.  After a fixed number of passes a value that still changes counts as
 * different.
 *
 * An `if` whose condition compares the number of the subgroup with a constant divides the block into roles.  Which
 * subgroups run what is inside is known, so that a barrier there can be for these. */
#include "loop.h"

enum uniformity_level { SHARE_BLOCK, SHARE_TEAM, SHARE_NONE };
enum { ROUNDS = 8 };

struct uniformity {
    const struct kernel *k;
    uint8_t *of;          /* per value: its uniformity */
    val open[MAX_NEST]; unsigned depth;
    unsigned subgroup;        /* threads that hold a tile; 0: not in a block */
    uint32_t groups;          /* subgroups of the block; 0: more than a set has bits, and no roles */
    uint64_t ends;            /* threads of the last subgroup, if they are fewer; else 0 */
    uint32_t partial;         /* this subgroup, in the set of roles */
    uint32_t synchronized;         /* the subgroups that the barriers of a role are for; 0: there are none yet */
    bool rose;
    struct err *e;
};

static uint8_t uniformity_max(uint8_t a, uint8_t b) { return a > b ? a : b; }

static void uniformity_raise(struct uniformity *w, val v, uint8_t s)
{
    if (w->of[v] < s) {
        w->of[v] = s;
        w->rose = true;
    }
}

/* thread / c: the same for a whole subgroup if c is a multiple of its number of threads. */
static bool is_subgroup_number(const struct uniformity *w, const struct linst *i)
{
    const struct linst *a = &w->k->inst[i->a], *b = &w->k->inst[i->b];
    return i->op == L_OP(P_DIV) && a->op == L_LOOP && a->kind == LOOP_BLOCK && b->op == L_CONST && a->rows &&
           (int64_t)b->imm > 0 && b->imm % a->rows == 0;
}

/* The set of subgroups for which the condition is true; 0: it gives no roles. */
static uint32_t role_of(const struct uniformity *w, val condition)
{
    const struct linst *i = &w->k->inst[condition], *number = &w->k->inst[i->a], *to = &w->k->inst[i->b];
    uint32_t set = 0;
    if ((i->op != L_OP(P_EQ) && i->op != L_OP(P_NE) && i->op != L_OP(P_LT)) || to->op != L_CONST || !w->groups ||
        !is_subgroup_number(w, number))
        return 0;
    uint64_t each = w->k->inst[number->b].imm / w->subgroup;
    for (uint32_t g = 0; g < w->groups; g++) {
        int64_t x = (int64_t)(g / each), y = (int64_t)to->imm;
        bool in = i->op == L_OP(P_EQ) ? x == y : i->op == L_OP(P_NE) ? x != y : x < y;
        set |= (uint32_t)in << g;
    }
    return set;
}

/* The subgroups whose role runs the current instruction. */
static uint32_t verify_threads_role(const struct uniformity *w)
{
    uint32_t all = w->groups ? (uint32_t)((UINT64_C(1) << w->groups) - 1) : 0, set = all;
    for (unsigned d = 0; d < w->depth; d++) {
        const struct linst *head = &w->k->inst[w->open[d]];
        uint32_t role = head->op == L_IF ? role_of(w, head->a) : 0;
        set &= role ? role : all;
    }
    return set;
}

/* The uniformity of the control flow around the current instruction, within its role. */
static uint8_t control_uniformity(const struct uniformity *w)
{
    uint8_t s = SHARE_BLOCK;
    for (unsigned d = 0; d < w->depth; d++) {
        const struct linst *head = &w->k->inst[w->open[d]];
        if (head->op == L_IF)
            s = role_of(w, head->a) ? s : uniformity_max(s, w->of[head->a]);
        else if (head->kind != LOOP_BLOCK)
            s = uniformity_max(s, uniformity_max(w->of[head->a], w->of[head->b]));
    }
    return s;
}

static uint8_t verify_threads_operands(const struct uniformity *w, const struct linst *i)
{
    return uniformity_max(uniformity_max(w->of[i->a], w->of[i->b]), uniformity_max(w->of[i->c], w->of[i->d]));
}

static void verify_threads_spread(struct uniformity *w, val v)
{
    const struct linst *i = &w->k->inst[v];
    uint8_t s = verify_threads_operands(w, i);
    if (i->op == L_LOOP && i->kind == LOOP_BLOCK)
        s = SHARE_NONE;
    else if (is_subgroup_number(w, i))
        s = SHARE_TEAM;
    else if (i->op == L_CARRY || i->op == L_NEXT) /* the number of iterations may differ */
        s = uniformity_max(s, control_uniformity(w));
    else if (i->op == L_LOAD && w->k->buf[i->imm].role == BUF_REGISTER)
        s = SHARE_NONE;
    uniformity_raise(w, v, s);
    if (i->op == L_NEXT)
        uniformity_raise(w, i->a, s);
}

static bool uses_tile(const struct kernel *k, const struct linst *i)
{
    return i->cols || (i->op == L_STORE && k->inst[i->b].cols);
}

/* A barrier is for all threads of the block, or for those of a role, which are the same for all such barriers. */
static const char *barrier_flaw(struct uniformity *w, val v)
{
    uint64_t threads = w->k->inst[v].imm;
    uint32_t all = w->groups ? (uint32_t)((UINT64_C(1) << w->groups) - 1) : 0, role = verify_threads_role(w);
    if (control_uniformity(w) != SHARE_BLOCK || (!threads && role != all))
        return "a barrier that some threads may miss";
    if (!threads)
        return NULL;
    if (threads != (uint64_t)__builtin_popcount(role) * w->subgroup)
        return "a barrier for another number of threads than its role has";
    if (w->synchronized && w->synchronized != role)
        return "barriers of two roles";
    w->synchronized = role;
    return NULL;
}

/* Does each subgroup as a whole arrive at a barrier that counts its threads? */
static const char *arrive_flaw(const struct uniformity *w, const struct linst *i)
{
    uint32_t arrivals = w->k->buf[(uint32_t)i->imm].id;
    if (arrivals == 1)
        return NULL;
    if (w->subgroup <= 1 || arrivals % w->subgroup)
        return "a barrier for several arrivals counts the threads of whole subgroups";
    return uniformity_max(control_uniformity(w), w->of[i->a]) == SHARE_NONE ? "an arrival that some threads may miss"
        : NULL;
}

static void verify_threads_check(struct uniformity *w, val v)
{
    const struct linst *i = &w->k->inst[v];
    const char *rule = i->op == L_BARRIER ? barrier_flaw(w, v) : i->op == L_ARRIVE ? arrive_flaw(w, i) : NULL;
    if (i->op == L_IF && i->imm && !role_of(w, i->a))
        rule = "registers of what is no role";
    if (rule)
        kernel_broken(w->e, v, rule);
    if (w->ends && uses_tile(w->k, i) && (!w->partial || verify_threads_role(w) & w->partial))
        kernel_broken(w->e, v, "a tile of threads that are no whole subgroup");
    if (w->subgroup > 1 && uses_tile(w->k, i) &&
        uniformity_max(control_uniformity(w), verify_threads_operands(w, i)) == SHARE_NONE)
        kernel_broken(w->e, v, "a tile whose subgroup does not agree on it");
}

/* Does the instruction access a shared buffer from `first` on and before `end`, or do products that read panels? */
static bool accesses_buffers(const struct linst *i, uint32_t first, uint32_t end)
{
    bool memory = i->op == L_LOAD || i->op == L_STORE || i->op == L_ATOMIC || i->op == L_COPY || i->op == L_COPY_PANEL;
    return memory && (uint32_t)i->imm >= first && (uint32_t)i->imm < end;
}

/* The buffers whose memory buffer b has are not accessed once a barrier has been followed by the first access to b. */
static void verify_threads_over(const struct kernel *k, uint32_t b, struct err *e)
{
    val last = 0, barrier = 0, first = 0;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        bool products = i->op == L_MMA || (i->op == L_WAIT && i->kind == ASYNC_PRODUCTS);
        if (products || accesses_buffers(i, k->buf[b].id - 1, b))
            last = v;
        barrier = i->op == L_BARRIER && !first ? v : barrier;
        first = !first && accesses_buffers(i, b, b + 1) ? v : first;
    }
    if (first && (last > first || barrier < last))
        kernel_broken(e, first, "an access over buffers that threads may still use");
}

static void round_of(struct uniformity *w, void (*visit)(struct uniformity *, val))
{
    w->depth = 0;
    for (val v = 1; v < w->k->ninst && !w->e->code; v++) {
        const struct linst *i = &w->k->inst[v];
        if (i->op == L_END) {
            const struct linst *head = &w->k->inst[w->open[--w->depth]];
            w->subgroup = head->op == L_LOOP && head->kind == LOOP_BLOCK ? 0 : w->subgroup;
            continue;
        }
        if (i->op == L_LOOP && i->kind == LOOP_BLOCK) {
            w->subgroup = i->rows ? i->rows : 1;
            uint64_t groups = (w->k->inst[i->b].imm + w->subgroup - 1) / w->subgroup;
            w->groups = i->rows && groups <= 32 ? (uint32_t)groups : 0;
            w->ends = w->k->inst[i->b].imm % w->subgroup;
            w->partial = w->ends && w->groups ? UINT32_C(1) << (w->groups - 1) : 0;
            w->synchronized = 0;
        }
        if (i->op == L_LOOP || i->op == L_IF) {
            visit(w, v);
            w->open[w->depth++] = v;
        } else if (i->op != L_CONST) {
            visit(w, v);
        }
    }
}

bool threads_verify(const struct kernel *k, struct err *e)
{
    if (!kernel_has_blocks(k))
        return true;
    struct uniformity w = {.k = k, .e = e, .rose = true};
    w.of = mem_alloc(k->ninst);
    if (!w.of)
        return err_set(e, KL_ERR_MEMORY, "out of memory verifying kernel %s", k->name);
    for (int round = 0; w.rose; round++) {
        w.rose = false;
        for (val v = 1; round == ROUNDS && v < k->ninst; v++)
            if (k->inst[v].op == L_CARRY)
                w.of[v] = SHARE_NONE;
        round_of(&w, verify_threads_spread);
    }
    round_of(&w, verify_threads_check);
    for (uint32_t b = 0; b < k->nbuf && !e->code; b++)
        if (buf_is_over(&k->buf[b]))
            verify_threads_over(k, b, e);
    mem_free(w.of);
    return !e->code;
}
