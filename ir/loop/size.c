/* Sizes of kernels for all values of symbols (ir/symbols/size.c) become index arithmetic over the symbols' values,
 * which are slots.  And how many iterations there are for values. */
#include "loop.h"

/* The value of a sum of symbols, which is an atom of linear forms. */
static val sum_of_symbols(struct kernel *k, const struct placeholder *x)
{
    val v = k_int(k, x->sum.constant);
    for (uint32_t i = 0; i < x->sum.n; i++) {
        const struct symbol_term *t = &x->sum.term[i];
        val a = k->symbol[t->symbol];
        v = ix_add(k, v, ix_scale(k, t->times ? ix_mul(k, a, k->symbol[t->times - 1]) : a, t->by));
    }
    ix_assume_range(k, v, x->low, x->high);
    return v;
}

void kernel_take_symbols(struct kernel *k, const struct placeholders *s)
{
    k->placeholders = s && s->n ? s : NULL;
    for (uint32_t i = 0; k->placeholders && i < s->n; i++) {
        if (placeholder_is_sum(&s->v[i])) {
            k->symbol[i] = sum_of_symbols(k, &s->v[i]);
            continue;
        }
        k->symbol[i] = k_inst(k, L_SLOT, KL_I64, 0, 0, 0, s->v[i].slot | (uint64_t)s->v[i].high << 32);
        ix_bound(k, k->symbol[i], s->v[i].low, s->v[i].high);
    }
}

struct size kernel_length(const struct kernel *k, int64_t length) { return size_of_length(k->placeholders, length); }

struct size kernel_count(const struct kernel *k, const struct shape *s) { return size_of_shape(k->placeholders, s); }

int64_t ix_max(const struct kernel *k, struct size size) { return size_max(k->placeholders, size); }

val ix_size(struct kernel *k, struct size size)
{
    if (size_is_constant(size))
        return k_int(k, size.number);
    val v = 0;
    for (uint32_t i = 0; i < k->placeholders->n; i++)
        for (uint32_t n = 0; n < size.power[i]; n++)
            v = v ? ix_mul(k, v, k->symbol[i]) : k->symbol[i];
    return ix_scale(k, v, size.number);
}

val ix_min(struct kernel *k, val a, int64_t max)
{
    int64_t low, high;
    if (ix_range(k, a, &low, &high) && high <= max)
        return a;
    val v = k_min(k, a, k_int(k, max));
    ix_bound(k, v, low < max ? low : max, max);
    return v;
}

void kernel_mark_unsupported(struct kernel *k, const char *what)
{
    err_set(&k->err, KL_ERR_COMPILE, "%s", what);
}

/* ---- iterations ---- */

/* Is v made of numbers and slots? */
static bool value_is_size(const struct kernel *k, val v)
{
    const struct linst *i = &k->inst[v];
    if (i->op == L_CONST || i->op == L_SLOT)
        return true;
    if (i->op != L_OP(P_ADD) && i->op != L_OP(P_SUB) && i->op != L_OP(P_MUL) && i->op != L_OP(P_DIV) &&
        i->op != L_OP(P_LT) && i->op != L_OP(P_LE) && i->op != L_OP(P_SELECT))
        return false;
    return value_is_size(k, i->a) && value_is_size(k, i->b) && (i->op != L_OP(P_SELECT) || value_is_size(k, i->c));
}

val kernel_active(const struct kernel *k, const struct phase *p)
{
    val loop = 0, open = 0;
    uint32_t depth = 0, around = 0; /* loops around the `if` */
    if (kernel_members(k) > 1)
        return 0;
    for (val v = p->first; v < p->end; v++) {
        const struct linst *i = &k->inst[v];
        bool first = !loop && (i->kind == LOOP_PARALLEL || i->kind == LOOP_GRID);
        if (i->op == L_LOOP && depth == around && (first || (around == 1 && i->kind == LOOP_BLOCK))) {
            loop = loop ? loop : v;
            around++;
        } else if (loop && depth == around && i->op == L_IF && !open)
            open = v;
        depth += i->op == L_LOOP || i->op == L_IF;
        depth -= i->op == L_END;
        if (i->op == L_END && i->a == open && open) {
            const struct linst *c = &k->inst[k->inst[open].a];
            bool all = v + around < p->end && k->inst[v + around].op == L_END && k->inst[v + around].a == loop;
            return all && c->op == L_OP(P_LT) && c->a == loop && c->b < loop && value_is_size(k, c->b) ? c->b : 0;
        }
    }
    return 0;
}

static int64_t value_at(const struct kernel *k, val v, const uint64_t *slot)
{
    const struct linst *i = &k->inst[v];
    if (i->op == L_CONST)
        return (int64_t)i->imm;
    if (i->op == L_SLOT)
        return (int64_t)slot[slot_number(i)];
    int64_t a = value_at(k, i->a, slot), b = value_at(k, i->b, slot);
    switch (i->op - L_PRIM) {
    case P_ADD: return a + b;
    case P_SUB: return a - b;
    case P_MUL: return a * b;
    case P_DIV: return b ? a / b : 0;
    case P_LT:  return a < b;
    case P_LE:  return a <= b;
    default:    return a ? b : value_at(k, i->c, slot); /* SELECT: value_is_size() has no other */
    }
}

int64_t kernel_extent_at(const struct kernel *k, val active, int64_t extent, const uint64_t *slot)
{
    if (!active)
        return extent;
    int64_t n = value_at(k, active, slot);
    return n < 0 ? 0 : n < extent ? n : extent;
}
