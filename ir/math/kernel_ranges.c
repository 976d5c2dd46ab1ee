/* Range analysis of floats in a finished kernel: a select whose condition is known is replaced by the chosen operand.
 *
 * Functions such as log treat zero, negative numbers, infinities, NaN and subnormal numbers by comparisons and selects.
 * Where the argument comes from an integer of few bits, or from a constant, most of these are decided: they are always
 * true, or always false.  One pass over the instructions finds an interval of each value by interval arithmetic (Moore,
 * 1966), whose bounds are computed in the value's dtype: rounding is monotonic, so it keeps them bounds.  No value
 * changes.
 *
 * A varying select is only replaced by a uniform value if all its readers are primitives with another varying operand,
 * so that these stay varying. */
#include "ir/loop/inline.h"
#include <math.h>
#include <string.h>

/* A value is from lo to hi, or perhaps NaN.  A bool: 0 to 1. */
struct float_range { double lo, hi; bool nan; };

struct float_ranges {
    struct kernel *k;
    struct float_range *of;   /* of each value */
    bool *pinned;       /* per value: a reader needs it to be varying */
};

static struct float_range any_number(unsigned dtype)
{
    double bits = 8 * (double)dtype_size(dtype);
    switch (dtype_kind(dtype)) {
    case 'B': return (struct float_range){0, 1, false};
    case 'U': return (struct float_range){0, exp2(bits) - 1, false};
    case 'I': return (struct float_range){-exp2(bits - 1), exp2(bits - 1) - 1, false};
    default: return (struct float_range){-INFINITY, INFINITY, true};
    }
}

static bool is_single_or_double(unsigned dtype) { return dtype == KL_F32 || dtype == KL_F64; }

/* The interval between the least and the greatest of n numbers, rounded to the dtype; any number if one of them is not
 * finite there. */
static struct float_range range_hull(unsigned dtype, const double *x, int n)
{
    struct float_range r = {INFINITY, -INFINITY, false};
    for (int i = 0; i < n; i++) {
        double y = dtype == KL_F32 ? (double)(float)x[i] : x[i];
        if (!isfinite(y))
            return any_number(dtype);
        r.lo = y < r.lo ? y : r.lo;
        r.hi = y > r.hi ? y : r.hi;
    }
    double normal = dtype == KL_F32 ? 0x1p-126 : 0x1p-1022; /* some devices make zero of smaller numbers */
    r.lo = r.lo > 0 && r.lo < normal ? 0 : r.lo;
    r.hi = r.hi < 0 && r.hi > -normal ? 0 : r.hi;
    return r;
}

static bool is_finite(struct float_range r) { return !r.nan && isfinite(r.lo) && isfinite(r.hi); }

/* Of a constant; of what is no number a double holds exactly, any number. */
static struct float_range of_constant(const struct linst *i)
{
    float single;
    double x;
    if (i->dtype == KL_F32) {
        memcpy(&single, &i->imm, sizeof single);
        x = (double)single;
    } else if (i->dtype == KL_F64) {
        memcpy(&x, &i->imm, sizeof x);
    } else if ((dtype_kind(i->dtype) == 'B' || dtype_kind(i->dtype) == 'U') && i->imm <= UINT32_MAX) {
        x = (double)i->imm;
    } else {
        return any_number(i->dtype);
    }
    return x != x ? any_number(i->dtype) : (struct float_range){x, x, false};
}

/* Of a sum, difference, product or quotient: at the ends of the operands' intervals. */
static struct float_range of_ends(enum prim p, unsigned dtype, struct float_range a, struct float_range b)
{
    const double ends[4][2] = {{a.lo, b.lo}, {a.lo, b.hi}, {a.hi, b.lo}, {a.hi, b.hi}};
    double x[4];
    if (!is_finite(a) || !is_finite(b) || (p == P_DIV && b.lo <= 0 && b.hi >= 0))
        return any_number(dtype);
    for (int i = 0; i < 4; i++)
        x[i] = p == P_ADD ? ends[i][0] + ends[i][1] : p == P_SUB ? ends[i][0] - ends[i][1]
             : p == P_MUL ? ends[i][0] * ends[i][1] : ends[i][0] / ends[i][1];
    return range_hull(dtype, x, 4);
}

/* Of an fma.  The ends are rounded twice, so that they may be an ulp off: each moves outwards by some. */
static struct float_range of_fma(unsigned dtype, struct float_range a, struct float_range b, struct float_range c)
{
    const double share = dtype == KL_F32 ? 0x1p-22 : 0x1p-50, tiny = dtype == KL_F32 ? 0x1p-140 : 0x1p-1060;
    struct float_range p = of_ends(P_MUL, KL_F64, a, b);
    struct float_range sum = is_finite(p) && is_finite(c) ? of_ends(P_ADD, KL_F64, p, c) : any_number(dtype);
    if (!is_finite(sum))
        return any_number(dtype);
    double most = fmax(fmax(fabs(p.lo), fabs(p.hi)), fmax(fabs(c.lo), fabs(c.hi))), more = most * share + tiny;
    return range_hull(dtype, (const double[]){sum.lo - more, sum.hi + more}, 2);
}

/* Of an integer divided by, shifted by or masked with a constant. */
static struct float_range of_integer(enum prim p, unsigned dtype, struct float_range a, const struct linst *b)
{
    double c = (double)b->imm;
    if (dtype_kind(dtype) != 'U' || b->op != L_CONST || b->imm == 0 || b->imm > UINT32_MAX)
        return any_number(dtype);
    switch (p) {
    case P_DIV: return (struct float_range){0, floor(a.hi / c), false};
    case P_SHR: return c < 8 * (double)dtype_size(dtype) ? (struct float_range){0, floor(a.hi / exp2(c)), false} : a;
    case P_AND: return (struct float_range){0, c, false};
    default: return any_number(dtype);
    }
}

static struct float_range of_float(const struct float_ranges *s, enum prim p, const struct linst *i)
{
    struct float_range a = s->of[i->a], b = s->of[i->b];
    switch (p) {
    case P_ADD: case P_SUB: case P_MUL: case P_DIV:
        return of_ends(p, i->dtype, a, b);
    case P_FMA:
        return of_fma(i->dtype, a, b, s->of[i->c]);
    case P_NEG:
        return (struct float_range){-a.hi, -a.lo, a.nan};
    case P_ABS:
        return (struct float_range){a.lo > 0 ? a.lo : a.hi < 0 ? -a.hi : 0, fmax(-a.lo, a.hi), a.nan};
    case P_SQRT:
        return a.lo >= 0 && is_finite(a) ? range_hull(i->dtype, (const double[]){sqrt(a.lo), sqrt(a.hi)}, 2)
                                         : any_number(i->dtype);
    case P_CAST:
        return a.nan ? any_number(i->dtype) : range_hull(i->dtype, (const double[]){a.lo, a.hi}, 2);
    default:
        return any_number(i->dtype);
    }
}

static struct float_range range_truth(bool is_true, bool is_false)
{
    return (struct float_range){is_true, !is_false, false};
}

/* Of a comparison of floats.  With NaN it is false, but for NE. */
static struct float_range of_comparison(enum prim p, bool same, struct float_range a, struct float_range b)
{
    bool number = !a.nan && !b.nan, apart = a.hi < b.lo || b.hi < a.lo;
    switch (p) {
    case P_LT: return range_truth(number && a.hi < b.lo, a.lo >= b.hi || same);
    case P_LE: return range_truth(number && (a.hi <= b.lo || same), a.lo > b.hi);
    case P_EQ: return range_truth(number && same, apart);
    default: return range_truth(apart, number && same);
    }
}

static struct float_range of_logic(enum prim p, struct float_range a, struct float_range b)
{
    switch (p) {
    case P_AND: return (struct float_range){fmin(a.lo, b.lo), fmin(a.hi, b.hi), false};
    case P_OR: return (struct float_range){fmax(a.lo, b.lo), fmax(a.hi, b.hi), false};
    case P_NOT: return (struct float_range){1 - a.hi, 1 - a.lo, false};
    default: return any_number(KL_BOOL);
    }
}

static struct float_range of_prim(const struct float_ranges *s, const struct linst *i)
{
    enum prim p = (enum prim)(i->op - L_PRIM);
    unsigned from = s->k->inst[i->a].dtype;
    struct float_range a = s->of[i->a], b = s->of[i->b], c = s->of[i->c];
    if (p == P_SELECT)
        return a.lo > 0 ? b : a.hi < 1 ? c : (struct float_range){fmin(b.lo, c.lo), fmax(b.hi, c.hi), b.nan || c.nan};
    if (p >= P_EQ && p <= P_LE)
        return is_single_or_double(from) ? of_comparison(p, i->a == i->b, a, b) : any_number(KL_BOOL);
    if (i->dtype == KL_BOOL)
        return of_logic(p, a, b);
    return is_single_or_double(i->dtype) ? of_float(s, p, i) : of_integer(p, i->dtype, a, &s->k->inst[i->b]);
}

/* Marks the operands that v needs to be varying: without them it would not be. */
static void pin_operands(struct float_ranges *s, val v)
{
    const struct linst *i = &s->k->inst[v];
    const val operand[] = {i->a, i->b, i->c, i->d};
    for (int x = 0; x < 4; x++) {
        bool other = false;
        for (int y = 0; y < 3; y++)
            other |= operand[y] != operand[x] && s->k->inst[operand[y]].varying;
        s->pinned[operand[x]] |= i->op < L_PRIM || !other;
    }
}

static bool is_true(const struct float_ranges *s, val v) { return s->of[v].lo > 0; }
static bool is_false(const struct float_ranges *s, val v) { return s->of[v].hi < 1; }

/* The operand of v that always is its value: the one that a select chooses, or the other one of `and` with true and of
 * `or` with false.  0: there is none. */
static val same_operand(const struct float_ranges *s, const struct linst *i)
{
    if (i->op == L_OP(P_SELECT))
        return is_true(s, i->a) ? i->b : is_false(s, i->a) ? i->c : 0;
    if (i->dtype == KL_BOOL && i->op == L_OP(P_AND))
        return is_true(s, i->a) ? i->b : is_true(s, i->b) ? i->a : 0;
    if (i->dtype == KL_BOOL && i->op == L_OP(P_OR))
        return is_false(s, i->a) ? i->b : is_false(s, i->b) ? i->a : 0;
    return 0;
}

/* The value that replaces v: such an operand, or v. */
static val known_value(const struct float_ranges *s, val v)
{
    const struct linst *i = &s->k->inst[v];
    val x = i->rows || i->cols ? 0 : same_operand(s, i);
    const struct linst *to = &s->k->inst[x];
    return x && !to->rows && !to->cols && (to->varying == i->varying || !s->pinned[v]) ? x : v;
}

static void find_ranges(struct float_ranges *s)
{
    struct kernel *k = s->k;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        s->of[v] = i->op == L_CONST ? of_constant(i) : i->op >= L_PRIM ? of_prim(s, i) : any_number(i->dtype);
    }
    for (val v = 1; v < k->ninst; v++)
        pin_operands(s, v);
}

bool kernel_choose_known(struct kernel *k)
{
    struct mem_arena mem = {0};
    struct float_ranges s = {.k = k};
    s.of = mem_arena_alloc(&mem, k->ninst * sizeof *s.of);
    s.pinned = mem_arena_alloc(&mem, k->ninst * sizeof *s.pinned);
    val *map = mem_arena_alloc(&mem, k->ninst * sizeof *map);
    bool ok = !mem.failed;
    if (ok)
        find_ranges(&s);
    for (val v = 1; ok && v < k->ninst; v++) {
        struct linst *i = &k->inst[v];
        i->a = map[i->a];
        i->b = map[i->b];
        i->c = map[i->c];
        i->d = map[i->d];
        map[v] = known_value(&s, v);
    }
    mem_arena_free(&mem);
    return ok;
}
