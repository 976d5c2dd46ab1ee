/* Uniformity analysis of a block: is a value the same in all threads of a block, the same in all threads of a subgroup,
 * or different in each? A condition that a barrier depends on must be the same in all threads of the block; one that a
 * tile depends on must be the same in all threads of the subgroup.
 *
 * The uniformity of a value is the weakest of its operands'. Carries depend on values of later instructions, so the
 * walk is repeated until nothing changes.  After a fixed number of walks a value that still changes counts as
 * different. */
#include "loop.h"

enum share { SHARE_BLOCK, SHARE_TEAM, SHARE_NONE };
enum { ROUNDS = 8 };

struct walk {
    const struct kernel *k;
    uint8_t *of;          /* per value: its uniformity */
    val open[MAX_NEST]; unsigned depth;
    unsigned subgroup;        /* threads that hold a tile; 0: not in a block */
    bool rose;
    struct flaw *flaw;
};

static uint8_t most(uint8_t a, uint8_t b) { return a > b ? a : b; }

static void raise(struct walk *w, val v, uint8_t s)
{
    if (w->of[v] < s) {
        w->of[v] = s;
        w->rose = true;
    }
}

/* The uniformity of the control flow around the current instruction. */
static uint8_t control_uniformity(const struct walk *w)
{
    uint8_t s = SHARE_BLOCK;
    for (unsigned d = 0; d < w->depth; d++) {
        const struct linst *head = &w->k->inst[w->open[d]];
        if (head->op == L_IF)
            s = most(s, w->of[head->a]);
        else if (head->kind != LOOP_BLOCK)
            s = most(s, most(w->of[head->a], w->of[head->b]));
    }
    return s;
}

static uint8_t verify_threads_operands(const struct walk *w, const struct linst *i)
{
    return most(most(w->of[i->a], w->of[i->b]), most(w->of[i->c], w->of[i->d]));
}

/* thread / c: the same for a whole subgroup if c is a multiple of its number of threads. */
static bool is_subgroup_number(const struct walk *w, const struct linst *i)
{
    const struct linst *a = &w->k->inst[i->a], *b = &w->k->inst[i->b];
    return i->op == L_OP(P_DIV) && a->op == L_LOOP && a->kind == LOOP_BLOCK && b->op == L_CONST && a->rows &&
           (int64_t)b->imm > 0 && b->imm % a->rows == 0;
}

static void verify_threads_spread(struct walk *w, val v)
{
    const struct linst *i = &w->k->inst[v];
    uint8_t s = verify_threads_operands(w, i);
    if (i->op == L_LOOP && i->kind == LOOP_BLOCK)
        s = SHARE_NONE;
    else if (is_subgroup_number(w, i))
        s = SHARE_TEAM;
    else if (i->op == L_CARRY || i->op == L_NEXT) /* the number of iterations may differ */
        s = most(s, control_uniformity(w));
    else if (i->op == L_LOAD && w->k->buf[i->imm].role == BUF_REGISTER)
        s = SHARE_NONE;
    raise(w, v, s);
    if (i->op == L_NEXT)
        raise(w, i->a, s);
}

static bool uses_tile(const struct kernel *k, const struct linst *i)
{
    return i->cols || (i->op == L_STORE && k->inst[i->b].cols);
}

static void verify_threads_check(struct walk *w, val v)
{
    const struct linst *i = &w->k->inst[v];
    if (i->op == L_BARRIER && control_uniformity(w) != SHARE_BLOCK)
        *w->flaw = (struct flaw){v, "a barrier that some threads may miss"};
    if (w->subgroup > 1 && uses_tile(w->k, i) &&
        most(control_uniformity(w), verify_threads_operands(w, i)) == SHARE_NONE)
        *w->flaw = (struct flaw){v, "a tile whose subgroup does not agree on it"};
}

static void round_of(struct walk *w, void (*visit)(struct walk *, val))
{
    w->depth = 0;
    for (val v = 1; v < w->k->ninst && !w->flaw->rule; v++) {
        const struct linst *i = &w->k->inst[v];
        if (i->op == L_END) {
            const struct linst *head = &w->k->inst[w->open[--w->depth]];
            w->subgroup = head->op == L_LOOP && head->kind == LOOP_BLOCK ? 0 : w->subgroup;
            continue;
        }
        if (i->op == L_LOOP && i->kind == LOOP_BLOCK)
            w->subgroup = i->rows ? i->rows : 1;
        if (i->op == L_LOOP || i->op == L_IF) {
            visit(w, v);
            w->open[w->depth++] = v;
        } else if (i->op != L_CONST) {
            visit(w, v);
        }
    }
}

bool threads_verify(const struct kernel *k, struct flaw *f)
{
    if (!kernel_has_blocks(k))
        return true;
    struct walk w = {.k = k, .flaw = f, .rose = true};
    w.of = mem_alloc(k->ninst);
    if (!w.of)
        return false;
    for (int round = 0; w.rose; round++) {
        w.rose = false;
        for (val v = 1; round == ROUNDS && v < k->ninst; v++)
            if (k->inst[v].op == L_CARRY)
                w.of[v] = SHARE_NONE;
        round_of(&w, verify_threads_spread);
    }
    round_of(&w, verify_threads_check);
    mem_free(w.of);
    return !f->rule;
}
