/* Checks kernels that run without a barrier between them, from their instructions alone.  Wherever one thread's
 * iterations may end and another's begin, the memory that the iterations below access, in either kernel, must be
 * below that of the iterations above.  Indices are followed as intervals; the planner uses a different method
 * (partition.c). */
#include "plan.h"

enum { MAX_STEPS = 4096, MAX_CUTS = 48 };

struct index_range { int64_t lo, hi; };
static const struct index_range anything = {INT64_MIN / 4, INT64_MAX / 4}, nothing = {1, 0};

static bool is_empty(struct index_range a) { return a.lo > a.hi; }

static struct index_range range_widened(struct index_range a)
{
    return a.lo < anything.lo || a.hi > anything.hi ? anything : a;
}

/* The part of a kernel that runs: iterations, and lanes of a vector loop if a predicate excludes some. */
struct kernel_run { const struct kernel *k; struct index_range p; val loop; struct index_range lanes; uint32_t steps; };

static struct index_range range_of(struct kernel_run *t, val v);

static struct index_range range_of_prim(struct kernel_run *t, const struct linst *i)
{
    struct index_range a = range_of(t, i->a), b = range_of(t, i->b), r = anything;
    switch ((enum prim)(i->op - L_PRIM)) {
    case P_ADD: return range_widened((struct index_range){a.lo + b.lo, a.hi + b.hi});
    case P_SUB: return range_widened((struct index_range){a.lo - b.hi, a.hi - b.lo});
    case P_MUL:
        for (int j = 0; j < 4; j++) {
            int64_t v;
            if (__builtin_mul_overflow(j & 1 ? a.hi : a.lo, j & 2 ? b.hi : b.lo, &v))
                return anything;
            r = j ? (struct index_range){v < r.lo ? v : r.lo, v > r.hi ? v : r.hi} : (struct index_range){v, v};
        }
        return range_widened(r);
    case P_SELECT: {
        struct index_range c = range_of(t, i->c);
        return (struct index_range){b.lo < c.lo ? b.lo : c.lo, b.hi > c.hi ? b.hi : c.hi};
    }
    default: return anything;
    }
}

static struct index_range range_of(struct kernel_run *t, val v)
{
    const struct linst *i = &t->k->inst[v];
    if (i->dtype != KL_I64 || ++t->steps > MAX_STEPS)
        return anything;
    if (i->op == L_CONST)
        return range_widened((struct index_range){(int64_t)i->imm, (int64_t)i->imm});
    if (i->op == L_SPLAT)
        return range_of(t, i->a);
    if (i->op >= L_PRIM)
        return range_of_prim(t, i);
    if (i->op != L_LOOP)
        return anything;
    if (i->kind == LOOP_PARALLEL)
        return t->p;
    if (v == t->loop)
        return t->lanes;
    struct index_range lo = range_of(t, i->a), hi = range_of(t, i->b);
    return (struct index_range){lo.lo, hi.hi > lo.lo ? hi.hi - 1 : lo.lo};
}

/* The part of p that satisfies the condition. */
static struct index_range narrow_range(struct kernel_run *t, val cond, struct index_range p)
{
    const struct linst *i = &t->k->inst[cond];
    if (i->op == L_OP(P_AND))
        return narrow_range(t, i->b, narrow_range(t, i->a, p));
    bool left = i->op >= L_PRIM && t->k->inst[i->a].op == L_LOOP && t->k->inst[i->a].kind == LOOP_PARALLEL;
    bool right = i->op >= L_PRIM && i->b && t->k->inst[i->b].op == L_LOOP && t->k->inst[i->b].kind == LOOP_PARALLEL;
    if (left == right || (i->op != L_OP(P_EQ) && i->op != L_OP(P_LT) && i->op != L_OP(P_LE)))
        return p;
    struct index_range n = range_of(t, left ? i->b : i->a);
    int64_t less = i->op == L_OP(P_LT);
    bool equal = i->op == L_OP(P_EQ);
    if ((left || equal) && n.hi - less < p.hi)
        p.hi = n.hi - less;
    if ((right || equal) && n.lo + less > p.lo)
        p.lo = n.lo + less;
    return p;
}

/* The range of bytes of lbuf b that iterations p access. */
static struct index_range accessed_range(const struct kernel *k, uint32_t b, struct index_range p)
{
    struct kernel_run t = {.k = k};
    struct index_range open[MAX_NEST + 1] = {p}, all = nothing;
    uint32_t depth = 0;
    if (kernel_members(k) > 1)
        return anything;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        t.steps = 0;
        t.p = open[depth];
        t.loop = 0;
        if (i->op == L_LOOP || i->op == L_IF) {
            open[depth + 1] = i->op == L_IF ? narrow_range(&t, i->a, open[depth]) : open[depth];
            depth++;
        }
        depth -= i->op == L_END;
        bool plain = i->op == L_LOAD || i->op == L_STORE, copy = i->op == L_COPY || i->op == L_COPY_PANEL;
        bool other = i->op == L_ATOMIC || i->op == L_PUBLISH || i->op == L_RECEIVE || copy;
        if (is_empty(t.p) || !(plain || other) || ((uint32_t)i->imm != b && !(copy && copy_source(k, i) == b)))
            continue;
        val pred = i->op == L_STORE ? i->c : i->b;
        if (plain && pred && k->inst[pred].op == L_OP(P_LT) && k->inst[k->inst[pred].a].op == L_LOOP) {
            t.loop = k->inst[pred].a;
            t.lanes = (struct index_range){0, range_of(&t, k->inst[pred].b).hi - 1};
        }
        bool wide = i->op == L_LOAD && load_elements(k, i) > 1;
        struct index_range r = plain && !i->cols && !wide ? range_of(&t, i->a) : anything;
        all = is_empty(all) ? r : (struct index_range){r.lo < all.lo ? r.lo : all.lo, r.hi > all.hi ? r.hi : all.hi};
    }
    int64_t size = (int64_t)dtype_size(k->buf[b].dtype), lo, hi;
    if (is_empty(all) || __builtin_mul_overflow(all.lo, size, &lo) || __builtin_mul_overflow(all.hi + 1, size, &hi))
        return is_empty(all) ? nothing : anything;
    return (struct index_range){lo, hi - 1};
}

static struct index_range range_union(struct index_range a, struct index_range b)
{
    if (is_empty(a) || is_empty(b))
        return is_empty(a) ? b : a;
    return (struct index_range){a.lo < b.lo ? a.lo : b.lo, a.hi > b.hi ? a.hi : b.hi};
}

static struct index_range range_moved(struct index_range a, int64_t by)
{
    return is_empty(a) ? a : range_widened((struct index_range){a.lo + by, a.hi + by});
}

/* For every split of the iterations in two: are the bytes that two kernels access of two arguments split at the same
 * position? */
static bool split_equally(const struct kernel *x, uint32_t a, int64_t xat, const struct kernel *y, uint32_t b,
                          int64_t yat)
{
    int64_t n = x->extent, step = n / MAX_CUTS + 1;
    for (int64_t cut = 1; cut < n; cut = cut + step < n || cut == n - 1 ? cut + step : n - 1) {
        const struct index_range half[2] = {{0, cut - 1}, {cut, n - 1}};
        struct index_range side[2];
        for (int i = 0; i < 2; i++)
            side[i] = range_union(range_moved(accessed_range(x, a, half[i]), xat), range_moved(accessed_range(y, b,
                half[i]), yat));
        if (!is_empty(side[0]) && !is_empty(side[1]) && side[0].hi >= side[1].lo)
            return false;
    }
    return true;
}

/* A number for the memory of an argument; a state and an output share it if the output may be in place. */
static bool same_memory(const struct program *p, struct loc a, struct loc b)
{
    struct loc *l[2] = {&a, &b};
    for (int i = 0; i < 2; i++)
        if (l[i]->kind == LOC_OUT && p->in_place[l[i]->index])
            *l[i] = (struct loc){LOC_STATE, p->g->out[l[i]->index].state, l[i]->offset};
    return a.kind == b.kind && a.index == b.index && a.kind < LOC_SCRATCH;
}

static const char *check_pair(const struct program *p, const struct command *x, const struct command *y)
{
    const struct kernel *kx = p->kernel[x->kernel], *ky = p->kernel[y->kernel];
    bool whole = kx->sched.grain <= 0 && ky->sched.grain <= 0;
    bool same_tasks = kx->extent == ky->extent && kx->sched.grain == ky->sched.grain;
    for (uint32_t a = 0; !whole && a < x->narg; a++)
        for (uint32_t b = 0; b < y->narg; b++) {
            struct loc lx = x->arg[a], ly = y->arg[b];
            int64_t xend = lx.offset + kx->buf[a].count * (int64_t)dtype_size(kx->buf[a].dtype);
            int64_t yend = ly.offset + ky->buf[b].count * (int64_t)dtype_size(ky->buf[b].dtype);
            bool only_read = kx->buf[a].role == BUF_IN && ky->buf[b].role == BUF_IN;
            if (only_read || !same_memory(p, lx, ly) || lx.offset >= yend || ly.offset >= xend)
                continue;
            if (!same_tasks)
                return "has no barrier after a kernel that is shared out in another way and accesses the same memory";
            if (!split_equally(kx, a, lx.offset, ky, b, ly.offset))
                return "has no barrier after a kernel in which other threads access the same memory";
        }
    return NULL;
}

const char *check_no_barrier(const struct program *p, uint32_t c)
{
    const struct command *y = &p->cmd[c];
    for (uint32_t i = c; p->cmd[i].no_barrier;) {
        if (i-- == 0 || c - i >= MAX_KERNEL_RUN)
            return i == UINT32_MAX ? "has no barrier and no kernel before it"
                                   : "is one of too many kernels without a barrier";
        const struct command *x = &p->cmd[i];
        struct phase px = {0}, py = {0};
        if (y->kind != CMD_KERNEL || x->kind != CMD_KERNEL || x->device != y->device)
            return "has no barrier after a command that is not a kernel of its device";
        if (!kernel_phase(p->kernel[x->kernel], &px) || kernel_phase(p->kernel[x->kernel], &px) ||
            !kernel_phase(p->kernel[y->kernel], &py) || kernel_phase(p->kernel[y->kernel], &py))
            return "has no barrier after a kernel, and one of them has phases";
        const char *wrong = check_pair(p, x, y);
        if (wrong)
            return wrong;
    }
    return NULL;
}
