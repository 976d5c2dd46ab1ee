/* Every rule of loop.h, in one walk: what passes here, every code generator can take literally. */
#include "loop.h"

struct checker {
    const struct kernel *k;
    struct err *e;
    val *scope;           /* per value: the LOOP or IF that holds it, 0 the kernel */
    bool *open;           /* per LOOP or IF */
    val cur;              /* the scope being read */
    uint64_t width;       /* lanes of the open vector loop */
    bool vector, parallel_seen;
};

static const struct { uint8_t operands; char result; } prim_rule[P_COUNT] = {
#define PRIM(NAME, name, n, result, doc) [P_##NAME] = {n, (#result)[0]},
#include "prims.def"
};

static bool fail(const struct checker *c, val v, const char *rule)
{
    return err_set(c->e, KL_ERR_INTERNAL, "kernel %s: %%%u: %s", c->k->name, v, rule);
}

static unsigned dt(const struct checker *c, val v) { return c->k->inst[v].dtype; }

/* Made before, still in reach, and a value at all. */
static bool usable(const struct checker *c, val user, val v)
{
    if (v == 0 || v >= user)
        return fail(c, user, "an operand is not an earlier value");
    unsigned op = c->k->inst[v].op;
    if (op == L_STORE || op == L_END || op == L_NEXT || op == L_IF)
        return fail(c, user, "an operand is not a value");
    if (op != L_CONST && op != L_SLOT && c->scope[v] && !c->open[c->scope[v]])
        return fail(c, user, "an operand's loop has ended");
    return true;
}

static bool is_bool(const struct checker *c, val user, val v)
{
    return usable(c, user, v) && (dt(c, v) == KL_BOOL || fail(c, user, "a predicate or condition is not bool"));
}

static bool is_index(const struct checker *c, val user, val v)
{
    return usable(c, user, v) && (dt(c, v) == KL_I64 || fail(c, user, "an index or bound is not i64"));
}

static bool prim_types(const struct checker *c, val v, enum prim p)
{
    const struct linst *i = &c->k->inst[v];
    const val in[3] = {i->a, i->b, i->c};
    unsigned first = p == P_SELECT;
    for (unsigned o = 0; o < 3; o++) {
        if ((o < prim_rule[p].operands) != (in[o] != 0))
            return fail(c, v, "wrong number of operands");
        if (in[o] && !usable(c, v, in[o]))
            return false;
        if (o > first && in[o] && dt(c, in[o]) != dt(c, in[first]))
            return fail(c, v, "operands of different dtypes");
    }
    unsigned t = dt(c, in[first]);
    bool is_float = dtype_is_float(t);
    bool half = dtype_is_half(t), to_half = p == P_CAST && dtype_is_half(i->dtype);
    if (half && p != P_SELECT && p != P_BITS && p != P_CAST)
        return fail(c, v, "computes on a half float");
    if (p == P_CAST && ((half && i->dtype != KL_F32) || (to_half && t != KL_F32)))
        return fail(c, v, "casts a half float from or to another dtype than f32");
    if (p == P_SELECT && dt(c, i->a) != KL_BOOL)
        return fail(c, v, "select on what is not bool");
    if ((p == P_FMA || p == P_SQRT || p == P_RINT) && !is_float)
        return fail(c, v, "needs a floating dtype");
    if ((p == P_AND || p == P_OR || p == P_XOR || p == P_NOT || p == P_SHL || p == P_SHR) && is_float)
        return fail(c, v, "needs integers or bool");
    if ((p <= P_NEG || p == P_ABS || p == P_SHL || p == P_SHR) && t == KL_BOOL)
        return fail(c, v, "needs numbers");
    if (p == P_BITS && dtype_size(i->dtype) != dtype_size(t))
        return fail(c, v, "bits of another width");
    unsigned want = prim_rule[p].result == 'B' ? (unsigned)KL_BOOL : prim_rule[p].result == 'T' ? i->dtype : t;
    return i->dtype == want || fail(c, v, "wrong result dtype");
}

static bool loop_rules(struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    if (!is_index(c, v, i->a) || !is_index(c, v, i->b))
        return false;
    if ((int64_t)i->imm <= 0)
        return fail(c, v, "step is not positive");
    if (c->k->inst[i->a].varying || c->k->inst[i->b].varying)
        return fail(c, v, "varying loop bounds");
    if (i->kind == LOOP_PARALLEL) {
        if (c->cur || c->parallel_seen)
            return fail(c, v, "a parallel loop that is not the one outermost loop");
        c->parallel_seen = true;
    } else if (i->kind == LOOP_VECTOR) {
        const struct linst *lo = &c->k->inst[i->a], *hi = &c->k->inst[i->b];
        uint64_t w = hi->imm;
        if (c->vector)
            return fail(c, v, "a vector loop inside a vector loop");
        if (lo->op != L_CONST || lo->imm || hi->op != L_CONST || w < 1 || w > 64 || (w & (w - 1)) || i->imm != 1)
            return fail(c, v, "a vector loop runs from 0 to a constant power of two up to 64");
        c->vector = true;
        c->width = w;
    } else if (i->kind != LOOP_SERIAL) {
        return fail(c, v, "unknown loop kind");
    }
    return true;
}

/* All carries of the loop that ends at v have a `next` just before it. */
static bool nexts_complete(const struct checker *c, val v, val loop)
{
    val carry = loop + 1, next = v;
    while (next > 0 && c->k->inst[next - 1].op == L_NEXT)
        next--;
    while (carry < c->k->ninst && c->k->inst[carry].op == L_CARRY) {
        bool found = false;
        for (val n = next; n < v; n++)
            found |= c->k->inst[n].a == carry;
        if (!found)
            return fail(c, carry, "a carry without next");
        carry++;
    }
    return true;
}

static bool carry_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    if (i->op == L_CARRY) {
        unsigned before = c->k->inst[v - 1].op;
        if (before != L_CARRY && (before != L_LOOP || c->k->inst[v - 1].kind != LOOP_SERIAL))
            return fail(c, v, "a carry that does not stand behind a serial loop");
        return usable(c, v, i->a) && (dt(c, i->a) == i->dtype || fail(c, v, "carry of another dtype"));
    }
    if (i->a >= v || c->k->inst[i->a].op != L_CARRY)
        return fail(c, v, "not of a carry");
    if (i->op == L_OUT)
        return !c->open[c->scope[i->a]] || fail(c, v, "out before the loop's end");
    if (c->scope[i->a] != c->cur)
        return fail(c, v, "next of another loop's carry");
    if (!usable(c, v, i->b) || dt(c, i->b) != dt(c, i->a))
        return fail(c, v, "next of another dtype");
    return !c->k->inst[i->b].varying || c->k->inst[i->a].varying || fail(c, v, "a varying value in a uniform carry");
}

static bool memory_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    if (i->imm >= c->k->nbuf)
        return fail(c, v, "no such buffer");
    const struct lbuf *b = &c->k->buf[i->imm];
    val pred = i->op == L_STORE ? i->c : i->b;
    if (!is_index(c, v, i->a) || (pred && !is_bool(c, v, pred)))
        return false;
    if (i->op == L_LOAD)
        return (b->role != BUF_OUT && i->dtype == b->dtype) || fail(c, v, "load from an output or of another dtype");
    return usable(c, v, i->b) && ((b->role != BUF_IN && dt(c, i->b) == b->dtype) || fail(c, v, "store to an input or of another dtype"));
}

static bool rules(struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    switch (i->op) {
    case L_CONST:
    case L_SLOT:
        return true;
    case L_LOOP:
        return loop_rules(c, v);
    case L_IF:
        return is_bool(c, v, i->a) && (!c->k->inst[i->a].varying || fail(c, v, "a varying condition"));
    case L_END:
        return (i->a && i->a == c->cur) ? nexts_complete(c, v, i->a) : fail(c, v, "ends another loop than the open one");
    case L_CARRY:
    case L_NEXT:
    case L_OUT:
        return carry_rules(c, v);
    case L_LOAD:
    case L_STORE:
        return memory_rules(c, v);
    case L_MIX:
        if (!usable(c, v, i->a) || !usable(c, v, i->b) || i->dtype != dt(c, i->a) || dt(c, i->a) != dt(c, i->b))
            return fail(c, v, "mix of different dtypes");
        return (c->vector && i->imm && i->imm < c->width && !(i->imm & (i->imm - 1))) || fail(c, v, "mix outside a vector loop or of a wrong distance");
    case L_FOLD:
        if (dtype_is_half(i->dtype))
            return fail(c, v, "computes on a half float");
        /* fall through */
    case L_SPLAT:
        return usable(c, v, i->a) && (c->vector || fail(c, v, "lanes outside a vector loop"));
    default:
        return i->op >= L_PRIM && i->op < L_PRIM + P_COUNT ? prim_types(c, v, (enum prim)(i->op - L_PRIM)) : fail(c, v, "unknown instruction");
    }
}

static void walk(struct checker *c)
{
    const struct kernel *k = c->k;
    for (val v = 1; v < k->ninst && !c->e->code; v++) {
        const struct linst *i = &k->inst[v];
        c->scope[v] = c->cur;
        if (i->dtype >= KL_DTYPE_COUNT || i->a >= k->ninst || i->b >= k->ninst || i->c >= k->ninst) {
            fail(c, v, "a field is out of range");
        } else if (rules(c, v)) {
            if (i->op == L_LOOP || i->op == L_IF) {
                c->open[v] = true;
                c->cur = v;
                c->scope[v] = i->op == L_LOOP ? v : c->cur; /* the variable lives in its loop */
            } else if (i->op == L_END) {
                c->vector &= !(k->inst[c->cur].op == L_LOOP && k->inst[c->cur].kind == LOOP_VECTOR);
                c->open[c->cur] = false;
                val outer = 0;
                for (val s = c->cur; s-- > 1 && !outer;)
                    if (c->open[s])
                        outer = s;
                c->cur = outer;
            }
        }
    }
    if (!c->e->code && c->cur)
        fail(c, c->cur, "never ends");
}

bool kernel_verify(const struct kernel *k, struct err *e)
{
    struct checker c = {.k = k, .e = e, .scope = mem_alloc(k->ninst * sizeof *c.scope), .open = mem_alloc(k->ninst * sizeof *c.open)};
    if (c.scope && c.open)
        walk(&c);
    else
        err_set(e, KL_ERR_MEMORY, "out of memory verifying kernel %s", k->name);
    mem_free(c.scope);
    mem_free(c.open);
    return !e->code;
}
