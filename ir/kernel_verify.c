/* Every rule of loop.h, in one walk: what passes here, every code generator can take literally. */
#include "loop.h"

struct checker {
    const struct kernel *k;
    struct flaw *flaw;
    val *scope;           /* per value: the LOOP or IF that holds it, 0 the kernel; a loop holds its variable */
    val *outer;           /* per LOOP or IF: the one around it */
    bool *open;           /* per LOOP or IF */
    val *next;            /* per carry: its NEXT */
    val cur;              /* the scope being read */
    unsigned depth;
    uint64_t width;       /* lanes of the open vector loop */
    bool vector, parallel_seen;
};

static const struct { uint8_t operands; char result; } prim_rule[P_COUNT] = {
#define PRIM(NAME, name, n, result, doc) [P_##NAME] = {n, (#result)[0]},
#include "prims.def"
};

static bool fail(const struct checker *c, val v, const char *rule)
{
    if (!c->flaw->rule)
        *c->flaw = (struct flaw){v, rule};
    return false;
}

static unsigned dt(const struct checker *c, val v) { return c->k->inst[v].dtype; }

/* Made before, still in reach, and a value at all. */
static bool usable(const struct checker *c, val user, val v)
{
    if (v == 0 || v >= user)
        return fail(c, user, "an operand is not an earlier value");
    unsigned op = c->k->inst[v].op;
    if (op == L_STORE || op == L_PREFETCH || op == L_END || op == L_NEXT || op == L_IF)
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
    if (p == P_BITS && (dtype_size(i->dtype) != dtype_size(t) || (t == KL_BOOL) != (i->dtype == KL_BOOL)))
        return fail(c, v, "bits of another width");
    unsigned want = prim_rule[p].result == 'B' ? (unsigned)KL_BOOL : prim_rule[p].result == 'T' ? i->dtype : t;
    return i->dtype == want || fail(c, v, "wrong result dtype");
}

static bool loop_rules(struct checker *c, val v)
{
    if (c->depth == MAX_NEST)
        return fail(c, v, "loops and ifs nest too deep");
    const struct linst *i = &c->k->inst[v];
    if (!is_index(c, v, i->a) || !is_index(c, v, i->b))
        return false;
    if (i->dtype != KL_I64)
        return fail(c, v, "a loop variable is not i64");
    if ((int64_t)i->imm <= 0)
        return fail(c, v, "step is not positive");
    if (c->k->inst[i->a].varying || c->k->inst[i->b].varying)
        return fail(c, v, "varying loop bounds");
    if (i->kind == LOOP_PARALLEL) {
        const struct linst *lo = &c->k->inst[i->a], *hi = &c->k->inst[i->b];
        if (c->cur || c->parallel_seen)
            return fail(c, v, "a parallel loop that is not the one outermost loop");
        if (lo->op != L_CONST || lo->imm || hi->op != L_CONST || i->imm != 1)
            return fail(c, v, "a parallel loop runs from 0 to a constant");
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

/* Each carry of a loop that ends has its next. */
static bool nexts_complete(const struct checker *c, val loop)
{
    for (val carry = loop + 1; c->k->inst[carry].op == L_CARRY; carry++)
        if (!c->next[carry])
            return fail(c, carry, "a carry without next");
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
    if (i->op == L_OUT) {
        val around = c->outer[c->scope[i->a]];
        if (c->open[c->scope[i->a]])
            return fail(c, v, "out before the loop's end");
        return (i->dtype == dt(c, i->a) || fail(c, v, "out of another dtype")) &&
               (!around || c->open[around] || fail(c, v, "an operand's loop has ended"));
    }
    if (c->scope[i->a] != c->cur)
        return fail(c, v, "next of another loop's carry");
    if (c->next[i->a])
        return fail(c, i->a, "a carry with a second next");
    c->next[i->a] = v;
    if (!usable(c, v, i->b))
        return false;
    if (dt(c, i->b) != dt(c, i->a))
        return fail(c, v, "next of another dtype");
    unsigned after = v + 1 < c->k->ninst ? c->k->inst[v + 1].op : (unsigned)L_NIL;
    if (after != L_NEXT && after != L_END)
        return fail(c, v, "a next that does not stand before its loop's end");
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
    if (i->op == L_PREFETCH)
        return (!c->k->inst[i->a].varying && i->kind < PREFETCH_COUNT) || fail(c, v, "unknown prefetch, or of a varying index");
    if (i->op == L_LOAD)
        return i->dtype == b->dtype || fail(c, v, "load of another dtype");
    return usable(c, v, i->b) && ((b->role != BUF_IN && dt(c, i->b) == b->dtype) || fail(c, v, "store to an input or of another dtype"));
}

static bool lane_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    if (!usable(c, v, i->a))
        return false;
    if (!c->vector)
        return fail(c, v, "lanes outside a vector loop");
    if (i->op == L_SPLAT && c->k->inst[i->a].varying)
        return fail(c, v, "splat of what varies already");
    if (i->op == L_FOLD && (i->imm >= FOLD_COUNT || i->dtype == KL_BOOL || dtype_is_half(i->dtype)))
        return fail(c, v, "unknown fold, or of a dtype that is not computed");
    return i->dtype == dt(c, i->a) || fail(c, v, "result of another dtype");
}

static bool mix_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    if (!usable(c, v, i->a) || !usable(c, v, i->b))
        return false;
    if (i->dtype != dt(c, i->a) || i->dtype != dt(c, i->b))
        return fail(c, v, "mix of different dtypes");
    if (!i->varying || i->kind >= MIX_COUNT)
        return fail(c, v, "unknown mix, or of no lanes");
    bool distance = i->imm && i->imm < c->width && !(i->imm & (i->imm - 1));
    return (c->vector && distance) || fail(c, v, "mix outside a vector loop or of a wrong distance");
}

static bool rules(struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    if (i->varying != inst_is_varying(c->k, i))
        return fail(c, v, i->varying ? "marked as varying" : "not marked as varying");
    switch (i->op) {
    case L_CONST:
    case L_SLOT:
        return true;
    case L_LOOP:
        return loop_rules(c, v);
    case L_IF:
        if (c->depth == MAX_NEST)
            return fail(c, v, "loops and ifs nest too deep");
        return is_bool(c, v, i->a) && (!c->k->inst[i->a].varying || fail(c, v, "a varying condition"));
    case L_END:
        return (i->a && i->a == c->cur) ? nexts_complete(c, i->a) : fail(c, v, "ends another loop than the open one");
    case L_CARRY:
    case L_NEXT:
    case L_OUT:
        return carry_rules(c, v);
    case L_LOAD:
    case L_STORE:
    case L_PREFETCH:
        return memory_rules(c, v);
    case L_MIX:
        return mix_rules(c, v);
    case L_SPLAT:
    case L_FOLD:
        return lane_rules(c, v);
    default:
        return i->op >= L_PRIM && i->op < L_PRIM + P_COUNT ? prim_types(c, v, (enum prim)(i->op - L_PRIM)) : fail(c, v, "unknown instruction");
    }
}

static void walk(struct checker *c)
{
    const struct kernel *k = c->k;
    for (val v = 1; v < k->ninst && !c->flaw->rule; v++) {
        const struct linst *i = &k->inst[v];
        c->scope[v] = c->cur;
        if (i->dtype >= KL_DTYPE_COUNT || i->a >= k->ninst || i->b >= k->ninst || i->c >= k->ninst) {
            fail(c, v, "a field is out of range");
        } else if (rules(c, v)) {
            if (i->op == L_LOOP || i->op == L_IF) {
                c->depth++;
                c->open[v] = true;
                c->outer[v] = c->cur;
                c->cur = c->scope[v] = v;
            } else if (i->op == L_END) {
                c->vector &= !(k->inst[c->cur].op == L_LOOP && k->inst[c->cur].kind == LOOP_VECTOR);
                c->depth--;
                c->open[c->cur] = false;
                c->cur = c->outer[c->cur];
            }
        }
    }
    if (c->cur)
        fail(c, c->cur, "never ends");
    if (k->extent != kernel_extent(k))
        fail(c, 0, "its extent is not that of its parallel loop");
}

int64_t kernel_extent(const struct kernel *k)
{
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op != L_LOOP || i->kind != LOOP_PARALLEL)
            continue;
        int64_t n = i->b < v && k->inst[i->b].op == L_CONST ? (int64_t)k->inst[i->b].imm : 0;
        return n > 0 ? n : 0;
    }
    return 1;
}

bool kernel_check(const struct kernel *k, struct flaw *f)
{
    *f = (struct flaw){0};
    struct checker c = {.k = k, .flaw = f};
    c.scope = mem_alloc(k->ninst * sizeof *c.scope);
    c.outer = mem_alloc(k->ninst * sizeof *c.outer);
    c.open = mem_alloc(k->ninst * sizeof *c.open);
    c.next = mem_alloc(k->ninst * sizeof *c.next);
    bool ok = c.scope && c.outer && c.open && c.next;
    if (ok)
        walk(&c);
    mem_free(c.scope);
    mem_free(c.outer);
    mem_free(c.open);
    mem_free(c.next);
    return ok && !f->rule;
}

bool kernel_verify(const struct kernel *k, struct err *e)
{
    struct flaw f;
    if (kernel_check(k, &f))
        return true;
    if (!f.rule)
        return err_set(e, KL_ERR_MEMORY, "out of memory verifying kernel %s", k->name);
    if (!f.at)
        return err_set(e, KL_ERR_INTERNAL, "kernel %s: %s", k->name, f.rule);
    return err_set(e, KL_ERR_INTERNAL, "kernel %s: %%%u: %s", k->name, f.at, f.rule);
}
