/* The elements that the iterations of a kernel's parallel loop access.
 *
 * Threads get adjacent iterations.  If iteration p accesses only elements p * step to (p + 1) * step - 1 of an array,
 * each thread accesses its own part of the array.  If the iterations of the next kernel access the same parts, the same
 * thread has stored them. */
#include "plan.h"

/* An index: p times the iteration, lane times the variable of a vector loop, plus a value from lo to hi. */
struct partition_form { bool known; int64_t p, lane, lo, hi; val loop; };

struct footprint {
    const struct kernel *k;
    struct partition_form *of;            /* per value */
    val loop;                   /* the parallel loop */
    struct { int64_t lo, hi; } open[MAX_NEST]; /* the iterations that enter each open if and loop */
    uint32_t depth;
};

static const struct partition_form unknown;

/* Bounds for which a sum of two cannot overflow. */
static bool is_small(int64_t a) { return a > -(INT64_C(1) << 60) && a < INT64_C(1) << 60; }

static struct partition_form form_checked(struct partition_form a)
{
    return a.known && is_small(a.p) && is_small(a.lane) && is_small(a.lo) && is_small(a.hi) ? a : unknown;
}

static struct partition_form partition_between(int64_t lo, int64_t hi)
{
    return form_checked((struct partition_form){.known = lo <= hi, .lo = lo, .hi = hi});
}

static bool partition_add(int64_t a, int64_t b, int64_t *to) { return !__builtin_add_overflow(a, b, to); }

/* a + sign * b */
static struct partition_form form_sum(struct partition_form a, struct partition_form b, int64_t sign)
{
    bool apart = a.loop && b.loop && a.loop != b.loop;
    return form_checked((struct partition_form){.known = a.known && b.known && !apart, .p = a.p + sign * b.p,
                                      .lane = a.lane + sign * b.lane, .lo = a.lo + (sign > 0 ? b.lo : -b.hi),
                                          .hi = a.hi + (sign > 0 ? b.hi : -b.lo),
                                      .loop = a.loop ? a.loop : b.loop});
}

static struct partition_form partition_scaled(struct partition_form a, int64_t c)
{
    struct partition_form r = {.known = a.known, .loop = a.loop};
    bool over = __builtin_mul_overflow(a.p, c, &r.p) || __builtin_mul_overflow(a.lane, c, &r.lane) ||
                __builtin_mul_overflow(c < 0 ? a.hi : a.lo, c, &r.lo) ||
                __builtin_mul_overflow(c < 0 ? a.lo : a.hi, c, &r.hi);
    return over ? unknown : form_checked(r);
}

static bool is_number(struct partition_form a) { return a.known && !a.p && !a.lane && a.lo == a.hi; }

static struct partition_form form_of_prim(const struct footprint *f, const struct linst *i)
{
    struct partition_form a = f->of[i->a], b = f->of[i->b];
    switch ((enum prim)(i->op - L_PRIM)) {
    case P_ADD: return form_sum(a, b, 1);
    case P_SUB: return form_sum(a, b, -1);
    case P_MUL: return is_number(b) ? partition_scaled(a, b.lo) : is_number(a) ? partition_scaled(b, a.lo) : unknown;
    case P_SELECT: {
        struct partition_form c = f->of[i->c];
        if (!b.known || !c.known || b.p != c.p || b.lane != c.lane || b.loop != c.loop)
            return unknown;
        b.lo = b.lo < c.lo ? b.lo : c.lo;
        b.hi = b.hi > c.hi ? b.hi : c.hi;
        return b;
    }
    default: return unknown;
    }
}

static struct partition_form form_of_loop(const struct footprint *f, val v)
{
    const struct linst *i = &f->k->inst[v];
    struct partition_form lo = f->of[i->a], hi = f->of[i->b];
    if (i->kind == LOOP_PARALLEL)
        return (struct partition_form){.known = true, .p = 1};
    if (i->kind == LOOP_VECTOR)
        return (struct partition_form){.known = true, .lane = 1, .loop = v};
    if (!lo.known || !hi.known || lo.p || hi.p || lo.lane || hi.lane)
        return unknown;
    return partition_between(lo.lo, hi.hi > lo.lo ? hi.hi - 1 : lo.lo);
}

/* Narrows the iterations to those for which a condition may hold, if it compares the iteration with other values. */
static void partition_narrow(const struct footprint *f, val cond, int64_t *lo, int64_t *hi)
{
    const struct linst *i = &f->k->inst[cond];
    if (i->op < L_PRIM)
        return;
    enum prim p = (enum prim)(i->op - L_PRIM);
    if (p == P_AND) {
        partition_narrow(f, i->a, lo, hi);
        partition_narrow(f, i->b, lo, hi);
        return;
    }
    bool left = i->a == f->loop, right = i->b == f->loop;
    struct partition_form n = f->of[left ? i->b : i->a];
    if (left == right || !is_number(n) || (p != P_EQ && p != P_LT && p != P_LE))
        return;
    int64_t strict = p == P_LT;
    if ((left || p == P_EQ) && n.lo - strict < *hi)
        *hi = n.lo - strict;
    if ((right || p == P_EQ) && n.lo + strict > *lo)
        *lo = n.lo + strict;
}

static void open_scope(struct footprint *f, val v)
{
    const struct linst *i = &f->k->inst[v];
    f->open[f->depth + 1] = f->open[f->depth];
    f->depth++;
    if (i->op == L_IF)
        partition_narrow(f, i->a, &f->open[f->depth].lo, &f->open[f->depth].hi);
}

/* The access of value v: its index with all lanes included. */
static struct partition_form access_form(const struct footprint *f, const struct linst *i)
{
    struct partition_form a = f->of[i->a];
    val pred = i->op == L_STORE ? i->c : i->b;
    if (i->op == L_LOAD && a.known)
        a = form_sum(a, partition_between(0, (int64_t)load_elements(f->k, i) - 1), 1);
    if (!a.known || !a.lane)
        return a;
    int64_t lanes = (int64_t)f->k->inst[f->k->inst[a.loop].b].imm;
    const struct linst *less = pred ? &f->k->inst[pred] : NULL;
    if (less && less->op == L_OP(P_LT) && less->a == a.loop && is_number(f->of[less->b]) && f->of[less->b].lo < lanes)
        lanes = f->of[less->b].lo;
    struct partition_form more = partition_scaled(partition_between(0, lanes > 0 ? lanes - 1 : 0), a.lane);
    a.lane = 0;
    a.loop = 0;
    return form_sum(a, more, 1);
}

/* Do the accesses of iterations lo .. hi stay within their parts of `step` elements? */
static bool stays_within(struct partition_form a, int64_t step, int64_t lo, int64_t hi)
{
    const int64_t end[2] = {lo, hi};
    for (int i = 0; i < 2; i++) {
        int64_t first, low, high;
        if (__builtin_mul_overflow(a.p - step, end[i], &first) || !partition_add(first, a.lo, &low) ||
            !partition_add(first, a.hi, &high) ||
            low < 0 || high >= step)
            return false;
    }
    return a.known;
}

/* Analysis of a kernel: the first pass finds the steps, the second one accesses outside of the parts. */
static void partition_walk(struct footprint *f, int64_t *step, bool second)
{
    const struct kernel *k = f->k;
    f->depth = 0;
    f->open[0].lo = 0;
    f->open[0].hi = k->extent - 1;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_END) {
            f->depth--;
            continue;
        }
        if (i->op == L_LOOP && i->kind == LOOP_PARALLEL)
            f->loop = v;
        if (!second)
            f->of[v] = i->dtype != KL_I64    ? unknown
                       : i->op == L_CONST    ? partition_between((int64_t)i->imm, (int64_t)i->imm)
                       : i->op == L_LOOP     ? form_of_loop(f, v)
                       : i->op == L_SPLAT    ? f->of[i->a]
                       : i->op >= L_PRIM     ? form_of_prim(f, i)
                                             : unknown;
        if (i->op == L_LOOP || i->op == L_IF)
            open_scope(f, v);
        if (i->op == L_COPY_PANEL)
            step[copy_source(f->k, i)] = PARTITION_NONE;
        if (i->op == L_PUBLISH || i->op == L_RECEIVE)
            step[i->imm] = PARTITION_NONE;
        if (i->op != L_LOAD && i->op != L_STORE && i->op != L_ATOMIC && i->op != L_COPY)
            continue;
        struct partition_form a = access_form(f, i);
        uint32_t b = (uint32_t)i->imm;
        if (i->op == L_COPY || i->op == L_ATOMIC || i->cols || !a.known)
            step[i->op == L_COPY ? i->imm >> 32 : b] = PARTITION_NONE;
        else if (!second && step[b] >= 0 && a.p > step[b])
            step[b] = a.p;
        else if (second && step[b] >= 0 && f->open[f->depth].lo <= f->open[f->depth].hi &&
                 !stays_within(a, step[b], f->open[f->depth].lo, f->open[f->depth].hi))
            step[b] = PARTITION_NONE;
    }
}

bool kernel_partition(const struct kernel *k, int64_t *step)
{
    struct footprint f = {.k = k, .of = mem_alloc(k->ninst * sizeof *f.of)};
    for (uint32_t b = 0; b < k->nbuf; b++)
        step[b] = kernel_members(k) > 1 ? PARTITION_NONE : 0;
    if (f.of && kernel_members(k) == 1) {
        partition_walk(&f, step, false);
        partition_walk(&f, step, true);
    }
    mem_free(f.of);
    return f.of;
}
