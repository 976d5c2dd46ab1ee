/* Finds the indices that fit 32 bits.  They are computed in 32 bits, because 64-bit arithmetic takes several
 * instructions on every GPU.
 *
 * Ranges are computed from the bounds of loops, and of slots that have one, through arithmetic.  A loaded or carried
 * value may be anything. */
#include "emit_source.h"

struct interval { int64_t lo, hi; };
static const struct interval anything = {INT64_MIN, INT64_MAX};
enum { FAR = 1 << 30 };           /* a limit that leaves room for the last step of a loop and of the grid's loop */

static bool source_range_fits(struct interval x) { return x.lo > -FAR && x.hi < FAR; }

static struct interval of_loop(const struct linst *i, const struct interval *of)
{
    struct interval lo = of[i->a], hi = of[i->b];
    if (!source_range_fits(lo) || !source_range_fits(hi) || i->imm >= FAR)
        return anything;
    return (struct interval){lo.lo, hi.hi > lo.lo ? hi.hi - 1 : lo.lo};
}

static struct interval source_range_product(struct interval a, struct interval b)
{
    if (!source_range_fits(a) || !source_range_fits(b))
        return anything;
    int64_t x[4] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
    struct interval r = {x[0], x[0]};
    for (int i = 1; i < 4; i++) {
        r.lo = x[i] < r.lo ? x[i] : r.lo;
        r.hi = x[i] > r.hi ? x[i] : r.hi;
    }
    return r;
}

static struct interval of_cast(unsigned from, struct interval a)
{
    static const struct interval range[KL_DTYPE_COUNT] = {[KL_BOOL] = {0, 1}, [KL_U8] = {0, 255}, [KL_I8] = {-128, 127},
                                                          [KL_U16] = {0, 65535}, [KL_I16] = {-32768, 32767}};
    return from == KL_I64 ? a : range[from].hi ? range[from] : anything;
}

/* Is it a < b ? a : b, the lesser of two values? */
static bool is_lesser(const struct kernel *k, const struct linst *i)
{
    return i->op == L_OP(P_SELECT) && k->inst[i->a].op == L_OP(P_LT) && k->inst[i->a].a == i->b &&
           k->inst[i->a].b == i->c;
}

/* Is it a < b ? b : a, the greater of two values? */
static bool is_greater(const struct kernel *k, const struct linst *i)
{
    return i->op == L_OP(P_SELECT) && k->inst[i->a].op == L_OP(P_LT) && k->inst[i->a].a == i->c &&
           k->inst[i->a].b == i->b;
}

static struct interval of_select(const struct kernel *k, const struct linst *i, struct interval b, struct interval c)
{
    bool min = is_lesser(k, i), max = is_greater(k, i), above = b.hi > c.hi, below = b.lo < c.lo;
    return (struct interval){below != max ? b.lo : c.lo, above != min ? b.hi : c.hi};
}

static struct interval of_prim(const struct kernel *k, const struct linst *i, const struct interval *of)
{
    struct interval a = of[i->a], b = of[i->b], c = of[i->c];
    const struct linst *second = &k->inst[i->b];
    int64_t divisor = second->op == L_CONST ? (int64_t)second->imm : 0;
    switch (i->op - L_PRIM) {
    case P_ADD:
        return source_range_fits(a) && source_range_fits(b) ? (struct interval){a.lo + b.lo, a.hi + b.hi} : anything;
    case P_SUB:
        return source_range_fits(a) && source_range_fits(b) ? (struct interval){a.lo - b.hi, a.hi - b.lo} : anything;
    case P_MUL:
        return source_range_product(a, b);
    case P_DIV:
        if (divisor > 0)
            return (struct interval){a.lo / divisor, a.hi / divisor};
        return a.lo >= 0 && b.lo > 0 ? (struct interval){0, a.hi / b.lo} : anything;
    case P_AND:
        return divisor >= 0 && second->op == L_CONST ? (struct interval){0, divisor} : anything;
    case P_SELECT:
        return of_select(k, i, b, c);
    case P_CAST:
        return of_cast(k->inst[i->a].dtype, a);
    default:
        return anything;
    }
}

bool source_fits(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    return m->narrow[v] || (i->op == L_CONST && i->dtype == KL_I64 && (int64_t)i->imm > -FAR && (int64_t)i->imm < FAR);
}

/* Are the operands of a value whose range fits computed in 32 bits, too? */
static bool operands_fit(const struct emitter *m, const struct linst *i)
{
    const val in[3] = {i->a, i->b, i->op == L_LOOP ? 0 : i->c};
    for (int o = 0; o < 3; o++)
        if (in[o] && m->k->inst[in[o]].dtype == KL_I64 && !source_fits(m, in[o]))
            return false;
    return true;
}

/* The range of each value; NULL: out of memory. */
static struct interval *source_intervals(const struct kernel *k)
{
    struct interval *of = mem_alloc(k->ninst * sizeof *of);
    for (val v = 0; of && v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        of[v] = anything;
        if (!v || i->dtype != KL_I64 || i->cols)
            continue;
        if (i->op == L_CONST)
            of[v] = (struct interval){(int64_t)i->imm, (int64_t)i->imm};
        else if (i->op == L_SLOT && slot_max(i))
            of[v] = (struct interval){0, slot_max(i)};
        else if (i->op == L_LOOP)
            of[v] = of_loop(i, of);
        else if (i->op >= L_PRIM)
            of[v] = of_prim(k, i, of);
    }
    return of;
}

bool source_ranges(struct emitter *m)
{
    const struct kernel *k = m->k;
    struct interval *of = source_intervals(k);
    for (val v = 1; of && v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->dtype != KL_I64 || i->cols)
            continue;
        m->narrow[v] = i->op != L_CONST && (i->op == L_SLOT || i->op == L_LOOP || i->op >= L_PRIM) &&
            source_range_fits(of[v]) && operands_fit(m, i);
    }
    mem_free(of);
    return of;
}

/* The largest number of iterations of a loop.  If the upper bound is the lower bound plus a constant, or the lesser of
 * that and another value, it is the constant; else it follows from the bounds' ranges. */
static int64_t range_max_iterations(const struct kernel *k, const struct linst *loop, const struct interval *of)
{
    const struct linst *hi = &k->inst[loop->b];
    struct interval a = of[loop->a], b = of[loop->b];
    int64_t step = loop->imm ? (int64_t)loop->imm : 1, room = INT64_MAX;
    if (source_range_fits(a) && source_range_fits(b))
        room = b.hi - a.lo;
    if (is_lesser(k, hi)) {
        struct interval c = of[hi->c];
        if (source_range_fits(a) && source_range_fits(c) && c.hi - a.lo < room)
            room = c.hi - a.lo;
        hi = &k->inst[hi->b];
    }
    if (hi->op == L_PRIM + P_ADD && (hi->a == loop->a || hi->b == loop->a)) {
        const struct linst *more = &k->inst[hi->a == loop->a ? hi->b : hi->a];
        if (more->op == L_CONST && (int64_t)more->imm < room)
            room = (int64_t)more->imm;
    }
    return room <= 0 ? 0 : room == INT64_MAX ? room : (room - 1) / step + 1;
}

int64_t *source_iterations(const struct kernel *k)
{
    struct interval *of = source_intervals(k);
    int64_t *n = of ? mem_alloc((k->ninst + 1) * sizeof *n) : NULL;
    for (val v = 1; n && v < k->ninst; v++)
        n[v] = k->inst[v].op == L_LOOP ? range_max_iterations(k, &k->inst[v], of) : 0;
    mem_free(of);
    return n;
}

int64_t source_steps(const struct kernel *k, const struct phase *p)
{
    enum { DEEP = 64, CAP = 1 << 30 };
    int64_t sum[DEEP] = {0}; /* iterations in each open loop or if */
    unsigned depth = 0;
    int64_t *iterations = source_iterations(k);
    for (val v = p ? p->first : 1; iterations && v < (p ? p->end : k->ninst); v++) {
        const struct linst *i = &k->inst[v], *head = i->op == L_END ? &k->inst[i->a] : NULL;
        if (i->op == L_LOOP || i->op == L_IF) {
            depth++;
            sum[depth < DEEP ? depth : DEEP - 1] = 0;
        } else if (head && depth) {
            int64_t inner = sum[depth < DEEP ? depth : DEEP - 1], *outer = &sum[--depth < DEEP ? depth : DEEP - 1];
            bool counts = head->op == L_LOOP && head->kind != LOOP_VECTOR && head->kind != LOOP_BLOCK &&
                          head->kind != LOOP_PARALLEL && head->kind != LOOP_GRID;
            int64_t n = counts ? iterations[i->a] : 1;
            inner += counts;
            *outer += n > CAP || (n && inner > CAP / n) ? CAP : n * inner;
            *outer = *outer > CAP ? CAP : *outer;
        }
    }
    mem_free(iterations);
    return iterations ? sum[0] : CAP;
}
