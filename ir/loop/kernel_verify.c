/* The verifier of kernels: checks every rule of loop.h in one pass, so that code generators need no checks.
 * kernel_verify_tile.c has the rules of tile shapes, kernel_verify_threads.c those of barriers. */
#include "loop.h"

struct checker {
    const struct kernel *k;
    struct err *e;
    val *scope;           /* per value: the LOOP or IF that holds it, 0 the kernel; a loop holds its variable */
    val *outer;           /* per LOOP or IF: the one around it */
    bool *open;           /* per LOOP or IF */
    val *next;            /* per carry: its NEXT */
    val cur;              /* the current scope */
    unsigned depth;
    uint64_t width;       /* lanes of the open vector loop */
    bool vector, shared_out; /* a parallel or grid loop of this phase was seen */
    val grid, block;      /* the open ones, 0 if none */
    bool block_seen;      /* in the open grid loop */
    uint32_t words;       /* the buffer of words of the open grid loop in order; nbuf: there is none */
    unsigned reduce;      /* open reduce loops */
    val phase;            /* the first instruction of this phase */
};

static const struct { uint8_t operands; char result; } prim_rule[P_COUNT] = {
#define PRIM(NAME, name, n, result, doc) [P_##NAME] = {n, (#result)[0]},
#include "ir/math/prims.def"
};

bool kernel_broken(struct err *e, val v, const char *rule)
{
    if (e->code)
        return false;
    err_set(e, KL_ERR_INTERNAL, "%s", rule);
    e->inst = v;
    return false;
}

static bool kernel_verify_fail(const struct checker *c, val v, const char *rule)
{
    return kernel_broken(c->e, v, rule);
}

static unsigned checked_dtype(const struct checker *c, val v) { return c->k->inst[v].dtype; }

static bool is_value(unsigned op)
{
    switch (op) {
    case L_NEXT:
    case L_END:
    case L_IF:
    case L_STORE:
    case L_PREFETCH:
    case L_ATOMIC:
    case L_COPY:
    case L_COPY_PANEL:
    case L_ARRIVE:
    case L_AWAIT:
    case L_COMMIT:
    case L_WAIT:
    case L_BARRIER:
    case L_SYNC:
    case L_PUBLISH:
        return false;
    default:
        return true;
    }
}

/* Is c a value that was made before and is in scope? */
static bool kernel_verify_usable(const struct checker *c, val user, val v)
{
    if (v == 0 || v >= user)
        return kernel_verify_fail(c, user, "an operand is not an earlier value");
    unsigned op = c->k->inst[v].op;
    if (!is_value(op))
        return kernel_verify_fail(c, user, "an operand is not a value");
    if (op == L_CONST)
        return true;
    if (c->scope[v] && !c->open[c->scope[v]])
        return kernel_verify_fail(c, user, "an operand's loop has ended");
    return v >= c->phase || kernel_verify_fail(c, user, "an operand is of an earlier phase");
}

static bool is_bool(const struct checker *c, val user, val v)
{
    return kernel_verify_usable(c, user, v) && (checked_dtype(c, v) == KL_BOOL ||
                                                kernel_verify_fail(c, user, "a predicate or condition is not bool"));
}

static bool is_index(const struct checker *c, val user, val v)
{
    return kernel_verify_usable(c, user, v) && (checked_dtype(c, v) == KL_I64 ||
                                                kernel_verify_fail(c, user, "an index or bound is not i64")) &&
           (!c->k->inst[v].cols || kernel_verify_fail(c, user, "an index or bound is a tile"));
}

static bool prim_types(const struct checker *c, val v, enum prim p)
{
    const struct linst *i = &c->k->inst[v];
    const val in[3] = {i->a, i->b, i->c};
    unsigned first = p == P_SELECT;
    for (unsigned o = 0; o < 3; o++) {
        if ((o < prim_rule[p].operands) != (in[o] != 0))
            return kernel_verify_fail(c, v, "wrong number of operands");
        if (in[o] && !kernel_verify_usable(c, v, in[o]))
            return false;
        if (o > first && in[o] && checked_dtype(c, in[o]) != checked_dtype(c, in[first]))
            return kernel_verify_fail(c, v, "operands of different dtypes");
    }
    unsigned t = checked_dtype(c, in[first]);
    bool is_float = dtype_is_float(t);
    bool half = dtype_is_half(t), to_half = p == P_CAST && dtype_is_half(i->dtype);
    if (half && p != P_SELECT && p != P_BITS && p != P_CAST)
        return kernel_verify_fail(c, v, "computes on a half float");
    if (p == P_CAST && ((half && i->dtype != KL_F32) || (to_half && t != KL_F32)))
        return kernel_verify_fail(c, v, "casts a half float from or to another dtype than f32");
    if (p == P_SELECT && checked_dtype(c, i->a) != KL_BOOL)
        return kernel_verify_fail(c, v, "select on what is not bool");
    if ((p == P_FMA || p == P_SQRT || p == P_RINT) && !is_float)
        return kernel_verify_fail(c, v, "needs a floating dtype");
    if ((p == P_EXP2 || p == P_RECIP) && t != KL_F32)
        return kernel_verify_fail(c, v, "exp2 and recip are of f32");
    if (p == P_EXP2 && !c->grid)
        return kernel_verify_fail(c, v, "exp2 is in a grid loop");
    if ((p == P_AND || p == P_OR || p == P_XOR || p == P_NOT || p == P_SHL || p == P_SHR) && is_float)
        return kernel_verify_fail(c, v, "needs integers or bool");
    if ((p <= P_NEG || p == P_ABS || p == P_SHL || p == P_SHR) && t == KL_BOOL)
        return kernel_verify_fail(c, v, "needs numbers");
    if (p == P_BITS && (dtype_size(i->dtype) != dtype_size(t) || (t == KL_BOOL) != (i->dtype == KL_BOOL)))
        return kernel_verify_fail(c, v, "bits of another width");
    unsigned want = prim_rule[p].result == 'B' ? (unsigned)KL_BOOL : prim_rule[p].result == 'T' ? i->dtype : t;
    return i->dtype == want || kernel_verify_fail(c, v, "wrong result dtype");
}

/* DOT2: two u32, each of two bf16, and an f32. */
static bool dot2_types(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    if (!i->a || !i->b || !i->c)
        return kernel_verify_fail(c, v, "wrong number of operands");
    if (!kernel_verify_usable(c, v, i->a) || !kernel_verify_usable(c, v, i->b) || !kernel_verify_usable(c, v, i->c))
        return false;
    return (checked_dtype(c, i->a) == KL_U32 && checked_dtype(c, i->b) == KL_U32 && checked_dtype(c, i->c) == KL_F32 &&
            i->dtype == KL_F32) ||
           kernel_verify_fail(c, v, "dot2 is of u32, u32 and f32");
}

/* Constant bounds lo and hi of loop v. */
static bool loop_constant_bounds(const struct checker *c, val v, int64_t *lo, int64_t *hi)
{
    const struct linst *i = &c->k->inst[v], *a = &c->k->inst[i->a], *b = &c->k->inst[i->b];
    *lo = (int64_t)a->imm;
    *hi = (int64_t)b->imm;
    return a->op == L_CONST && b->op == L_CONST;
}

static bool from_zero(const struct checker *c, val v, int64_t *hi)
{
    int64_t lo;
    return loop_constant_bounds(c, v, &lo, hi) && !lo && c->k->inst[v].imm == 1;
}

static bool power_of_two(uint64_t x) { return x && !(x & (x - 1)); }

/* The words of a grid loop in order: an earlier phase stores to them. */
static bool in_order_rules(struct checker *c, val v)
{
    val clear = 1;
    c->words = kernel_word_buffer(c->k, v);
    if (c->words == c->k->nbuf)
        return kernel_verify_fail(c, v, "a grid loop in order that publishes nothing");
    while (clear < c->phase && !(c->k->inst[clear].op == L_STORE && c->k->inst[clear].imm == c->words))
        clear++;
    return clear < c->phase || kernel_verify_fail(c, v, "words to which no earlier phase stores zeros");
}

static bool outermost_loop(struct checker *c, val v)
{
    int64_t hi;
    bool grid = c->k->inst[v].kind == LOOP_GRID;
    if (c->cur || c->shared_out)
        return kernel_verify_fail(c, v, "a parallel or grid loop that is not the one outermost loop of its phase");
    if (!from_zero(c, v, &hi))
        return kernel_verify_fail(c, v, "a parallel or grid loop runs from 0 to a constant");
    if (grid && hi > INT32_MAX)
        return kernel_verify_fail(c, v, "more blocks than a grid can have");
    c->shared_out = true;
    c->grid = grid ? v : 0;
    c->block_seen = false;
    return !grid || !c->k->inst[v].rows || in_order_rules(c, v);
}

static bool block_loop(struct checker *c, val v)
{
    int64_t hi;
    uint16_t subgroup = c->k->inst[v].rows;
    if (!c->grid || c->cur != c->grid || c->block_seen)
        return kernel_verify_fail(c, v, "a block loop that is not the one in a grid loop");
    if (!from_zero(c, v, &hi) || hi < 1 || hi > MAX_THREADS)
        return kernel_verify_fail(c, v, "a block loop runs from 0 to a constant up to 1024");
    if (subgroup && (!power_of_two(subgroup) || subgroup == 1 || subgroup > MAX_SUBGROUP || hi < subgroup))
        return kernel_verify_fail(c, v, "subgroups are a power of two of threads, of which the block has one");
    c->block_seen = true;
    c->block = v;
    return true;
}

static bool vector_loop(struct checker *c, val v)
{
    int64_t w;
    if (c->vector)
        return kernel_verify_fail(c, v, "a vector loop inside a vector loop");
    if (!from_zero(c, v, &w) || w < 1 || w > MAX_GPU_VECTOR || !power_of_two((uint64_t)w))
        return kernel_verify_fail(c, v, "a vector loop runs from 0 to a constant power of two up to 256");
    c->vector = true;
    c->width = (uint64_t)w;
    return true;
}

static bool unrolled_loop(const struct checker *c, val v)
{
    int64_t lo, hi;
    uint64_t span, step = c->k->inst[v].imm;
    if (!loop_constant_bounds(c, v, &lo, &hi))
        return kernel_verify_fail(c, v, "an unrolled loop runs between constants");
    span = hi > lo ? (uint64_t)hi - (uint64_t)lo : 0;
    return (span && (span - 1) / step >= MAX_UNROLL) ? kernel_verify_fail(c, v, "more than 256 turns to unroll") : true;
}

static bool loop_rules(struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    if (c->depth == MAX_NEST)
        return kernel_verify_fail(c, v, "loops and ifs nest too deep");
    if (!is_index(c, v, i->a) || !is_index(c, v, i->b))
        return false;
    if (i->dtype != KL_I64)
        return kernel_verify_fail(c, v, "a loop variable is not i64");
    if ((int64_t)i->imm <= 0)
        return kernel_verify_fail(c, v, "step is not positive");
    if (c->k->inst[i->a].varying || c->k->inst[i->b].varying)
        return kernel_verify_fail(c, v, "varying loop bounds");
    if (i->kind == LOOP_PARALLEL && (i->rows > 1 || (i->rows && c->k->sched.grain)))
        return kernel_verify_fail(c, v, "iterations in order that are shared out");
    if (i->rows && i->kind != LOOP_BLOCK && i->kind != LOOP_PARALLEL && (i->kind != LOOP_GRID || i->rows > 1))
        return kernel_verify_fail(c, v, "subgroups of what has no threads");
    switch (i->kind) {
    case LOOP_PARALLEL:
    case LOOP_GRID:
        return outermost_loop(c, v);
    case LOOP_BLOCK:
        return block_loop(c, v);
    case LOOP_VECTOR:
        return vector_loop(c, v);
    case LOOP_UNROLLED:
        return unrolled_loop(c, v);
    case LOOP_REDUCE:
        c->reduce++;
        return (v + 1 < c->k->ninst && c->k->inst[v + 1].op == L_CARRY) ||
            kernel_verify_fail(c, v, "a reduce loop that carries nothing");
    default:
        return i->kind == LOOP_SERIAL || kernel_verify_fail(c, v, "unknown loop kind");
    }
}

/* Does each carry of the loop that ends have its next? */
static bool nexts_complete(const struct checker *c, val loop)
{
    for (val carry = loop + 1; c->k->inst[carry].op == L_CARRY; carry++)
        if (!c->next[carry])
            return kernel_verify_fail(c, carry, "a carry without next");
    return true;
}

static bool carry_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    if (i->op == L_CARRY) {
        const struct linst *before = &c->k->inst[v - 1];
        bool serial = before->kind == LOOP_SERIAL || before->kind == LOOP_UNROLLED || before->kind == LOOP_REDUCE;
        if (before->op != L_CARRY && (before->op != L_LOOP || !serial))
            return kernel_verify_fail(c, v, "a carry that does not stand behind a serial loop");
        return kernel_verify_usable(c, v, i->a) && (checked_dtype(c, i->a) == i->dtype ||
                                                    kernel_verify_fail(c, v, "carry of another dtype"));
    }
    if (i->a >= v || c->k->inst[i->a].op != L_CARRY)
        return kernel_verify_fail(c, v, "not of a carry");
    if (i->a < c->phase)
        return kernel_verify_fail(c, v, "an operand is of an earlier phase");
    if (i->op == L_OUT) {
        val around = c->outer[c->scope[i->a]];
        if (c->open[c->scope[i->a]])
            return kernel_verify_fail(c, v, "out before the loop's end");
        return (i->dtype == checked_dtype(c, i->a) || kernel_verify_fail(c, v, "out of another dtype")) &&
               (!around || c->open[around] || kernel_verify_fail(c, v, "an operand's loop has ended"));
    }
    if (c->scope[i->a] != c->cur)
        return kernel_verify_fail(c, v, "next of another loop's carry");
    if (c->next[i->a])
        return kernel_verify_fail(c, i->a, "a carry with a second next");
    c->next[i->a] = v;
    if (!kernel_verify_usable(c, v, i->b))
        return false;
    if (checked_dtype(c, i->b) != checked_dtype(c, i->a))
        return kernel_verify_fail(c, v, "next of another dtype");
    unsigned after = v + 1 < c->k->ninst ? c->k->inst[v + 1].op : (unsigned)L_NIL;
    if (after != L_NEXT && after != L_END)
        return kernel_verify_fail(c, v, "a next that does not stand before its loop's end");
    const struct linst *carry = &c->k->inst[i->a], *value = &c->k->inst[i->b];
    if (carry->cols != value->cols || (carry->cols && carry->rows != value->rows))
        return kernel_verify_fail(c, v, "next of another shape");
    return !value->varying || carry->varying || kernel_verify_fail(c, v, "a varying value in a uniform carry");
}

/* May this buffer be accessed here? */
static bool in_reach(const struct checker *c, val v, uint64_t buf)
{
    if (buf >= c->k->nbuf)
        return kernel_verify_fail(c, v, "no such buffer");
    unsigned role = c->k->buf[buf].role;
    if ((role == BUF_SHARED || role >= BUF_PHASES) && !c->block)
        return kernel_verify_fail(c, v, "shared memory outside a block loop");
    if (role == BUF_SCRATCH && c->grid)
        return kernel_verify_fail(c, v, "a processor's scratch memory in a grid loop");
    return !c->grid || c->block || role == BUF_IN ||
           kernel_verify_fail(c, v, "a grid loop reads only inputs in front of its block loop");
}

/* The same of an access that is no publish and no receive. */
static bool in_plain_reach(const struct checker *c, val v, uint64_t buf)
{
    return in_reach(c, v, buf) &&
           (buf != c->words || kernel_verify_fail(c, v, "blocks in order only publish and receive their words"));
}

static bool word_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    bool publish = i->op == L_PUBLISH;
    val pred = publish ? i->c : i->b;
    if (!in_reach(c, v, i->imm) || !is_index(c, v, i->a) || (pred && !is_bool(c, v, pred)) ||
        (publish && !kernel_verify_usable(c, v, i->b)))
        return false;
    const struct lbuf *b = &c->k->buf[i->imm];
    if (c->words == c->k->nbuf || c->vector)
        return kernel_verify_fail(c, v, "words are published and received in a grid loop in order, by its threads");
    if (b->role != BUF_WORKSPACE || b->dtype != KL_U64 || i->imm != c->words)
        return kernel_verify_fail(c, v, "the words of a loop are u64 of one workspace");
    return (publish ? checked_dtype(c, i->b) : i->dtype) == KL_U32 ||
           kernel_verify_fail(c, v, "the value of a word is u32");
}

static bool memory_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    bool store = i->op == L_STORE || i->op == L_ATOMIC;
    val pred = store ? i->c : i->b;
    if (i->imm < c->k->nbuf && c->k->buf[i->imm].role >= BUF_PHASES)
        return kernel_verify_fail(c, v, "an access to what has no elements of its own");
    if (!in_plain_reach(c, v, i->imm) || !is_index(c, v, i->a) || (pred && !is_bool(c, v, pred)))
        return false;
    const struct lbuf *b = &c->k->buf[i->imm];
    if (i->op == L_PREFETCH)
        return (!c->k->inst[i->a].varying && i->kind < PREFETCH_COUNT) ||
            kernel_verify_fail(c, v, "unknown prefetch, or of a varying index");
    bool wide = i->dtype == KL_U32 && b->role == BUF_IN && b->dtype != KL_BOOL && dtype_size(b->dtype) < 4 &&
                (i->varying || (!i->cols && !pred)) && !c->grid;
    if (i->op == L_LOAD && i->dtype != b->dtype && !wide)
        return kernel_verify_fail(c, v, "load of another dtype");
    if (store && !(kernel_verify_usable(c, v, i->b) && ((b->role != BUF_IN && checked_dtype(c, i->b) == b->dtype) ||
                                          kernel_verify_fail(c, v, "store to an input or of another dtype"))))
        return false;
    if (i->op == L_ATOMIC) {
        bool whole = b->dtype == KL_I32 || b->dtype == KL_U32 || b->dtype == KL_I64 || b->dtype == KL_U64;
        bool common = b->role == BUF_OUT || b->role == BUF_WORKSPACE || b->role == BUF_SHARED;
        return (whole && common && i->kind < FOLD_COUNT && i->kind != FOLD_MUL && !c->k->inst[i->b].cols) ||
               kernel_verify_fail(
                   c, v, "an atomic adds, or takes the larger or smaller of, 32- or 64-bit integers that others see");
    }
    if (store && c->vector && c->k->inst[i->b].cols)
        return kernel_verify_fail(c, v, "a tile inside a vector loop");
    if (i->kind >= TILE_ORDER_COUNT || (i->d && !is_index(c, v, i->d)))
        return kernel_verify_fail(c, v, "unknown order of a tile's elements, or no stride");
    return true;
}

static bool copy_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    uint32_t to = (uint32_t)i->imm, from = (uint32_t)(i->imm >> 32);
    if (c->vector)
        return kernel_verify_fail(c, v, "a copy inside a vector loop");
    if (!in_reach(c, v, to) || !in_plain_reach(c, v, from) || !is_index(c, v, i->a) || !is_index(c, v, i->b) ||
        (i->c && !is_bool(c, v, i->c)))
        return false;
    const struct lbuf *a = &c->k->buf[to], *b = &c->k->buf[from];
    bool global = b->role == BUF_IN || b->role == BUF_OUT || b->role == BUF_WORKSPACE;
    if (a->role != BUF_SHARED || !global || a->dtype != b->dtype)
        return kernel_verify_fail(c, v, "a copy goes from global to shared memory of the same dtype");
    uint64_t bytes = i->rows * dtype_size(a->dtype);
    return bytes == 4 || bytes == 8 || bytes == 16 || kernel_verify_fail(c, v, "a copy is of 4, 8 or 16 bytes");
}

/* Is it arithmetic between an ARRIVE and the copies that it expects? */
static bool is_arrive_setup(const struct linst *i)
{
    return i->op >= L_PRIM || i->op == L_CONST || i->op == L_COPY_PANEL;
}

static bool panel_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    uint32_t to = (uint32_t)i->imm, from = (uint32_t)(i->imm >> 32);
    val first = v - 1;
    uint64_t copies = 1;
    if (!in_reach(c, v, to) || !in_reach(c, v, from) || !is_index(c, v, i->a) || !is_index(c, v, i->b) ||
        !is_index(c, v, i->c) || !is_index(c, v, i->d))
        return false;
    const struct lbuf *a = &c->k->buf[to], *b = &c->k->buf[from];
    if (a->role != BUF_SHARED || !a->panel_rows || b->role != BUF_VIEW || a->dtype != b->dtype ||
        a->panel_rows > MAX_PANEL_ROWS)
        return kernel_verify_fail(c, v, "a panel of up to 256 rows is copied from a view of the same dtype");
    for (; is_arrive_setup(&c->k->inst[first]); first--)
        copies += c->k->inst[first].op == L_COPY_PANEL;
    return (c->k->inst[first].op == L_ARRIVE && c->k->inst[first].imm >> 32 >= copies) ||
           kernel_verify_fail(c, v, "a copy of a panel that no arrive expects");
}

static bool phase_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    uint32_t buf = (uint32_t)i->imm;
    uint64_t copies = 0;
    if (!in_reach(c, v, buf) || !is_index(c, v, i->a) || (i->op == L_AWAIT && !is_index(c, v, i->b)))
        return false;
    if (c->k->buf[buf].role != BUF_PHASES || !c->block)
        return kernel_verify_fail(c, v, "threads arrive at and wait for a barrier with phases, in a block loop");
    for (val next = v + 1; i->op == L_ARRIVE && next < c->k->ninst && is_arrive_setup(&c->k->inst[next]); next++)
        copies += c->k->inst[next].op == L_COPY_PANEL;
    return i->op == L_AWAIT || copies == i->imm >> 32 ||
           kernel_verify_fail(c, v, "an arrive expects another number of panels than follow it");
}

static bool alias_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    uint32_t in = (uint32_t)i->imm, out = (uint32_t)(i->imm >> 32);
    if (!in_reach(c, v, in) || !in_reach(c, v, out))
        return false;
    bool known = c->k->buf[in].role == BUF_IN && c->k->buf[out].role == BUF_OUT && i->dtype == KL_BOOL && !c->grid;
    return known || kernel_verify_fail(c, v, "alias is of an input and an output, a bool, outside of grid loops");
}

static bool meeting_rules(struct checker *c, val v)
{
    if (c->k->inst[v].op == L_SYNC) {
        if (c->cur)
            return kernel_verify_fail(c, v, "a phase ends outside of all loops");
        c->phase = v + 1;
        c->shared_out = false;
        return true;
    }
    return (c->block && !c->vector) ||
           kernel_verify_fail(c, v, "threads synchronize in a block loop, outside of vector loops");
}

static bool lane_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    if (!kernel_verify_usable(c, v, i->a))
        return false;
    if (i->op == L_SPLAT && i->cols)
        return i->dtype == checked_dtype(c, i->a) || kernel_verify_fail(c, v, "result of another dtype");
    bool tile = i->op == L_LANE_REDUCE && c->k->inst[i->a].cols;
    if (tile ? !c->block : !c->vector)
        return kernel_verify_fail(c, v, tile ? "a fold of a tile's rows outside a block loop"
                                             : "lanes outside a vector loop");
    if (i->op == L_SPLAT && c->k->inst[i->a].varying)
        return kernel_verify_fail(c, v, "splat of what varies already");
    if (i->op == L_LANE_REDUCE && (i->imm >= FOLD_COUNT || i->dtype == KL_BOOL || dtype_is_half(i->dtype)))
        return kernel_verify_fail(c, v, "unknown fold, or of a dtype that is not computed");
    return i->dtype == checked_dtype(c, i->a) || kernel_verify_fail(c, v, "result of another dtype");
}

static bool interleave_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    if (!kernel_verify_usable(c, v, i->a) || !kernel_verify_usable(c, v, i->b))
        return false;
    if (i->dtype != checked_dtype(c, i->a) || i->dtype != checked_dtype(c, i->b))
        return kernel_verify_fail(c, v, "interleave of different dtypes");
    if (!i->varying || i->kind >= INTERLEAVE_COUNT)
        return kernel_verify_fail(c, v, "unknown mix, or of no lanes");
    bool distance = i->imm && i->imm < c->width && !(i->imm & (i->imm - 1));
    return (c->vector && distance) || kernel_verify_fail(c, v,
                                                         "interleave outside a vector loop or of a wrong distance");
}

/* A factor that a matrix unit reads from shared memory by itself. */
static bool is_panel_load(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    return i->op == L_LOAD && i->imm < c->k->nbuf && c->k->buf[i->imm].panel_rows && !i->b &&
           c->k->inst[i->d].op == L_CONST;
}

static bool mma_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    if (!kernel_verify_usable(c, v, i->a) || !kernel_verify_usable(c, v, i->b) || !kernel_verify_usable(c, v, i->c))
        return false;
    unsigned a = checked_dtype(c, i->a), b = checked_dtype(c, i->b), acc = checked_dtype(c, i->c);
    bool computed = c->k->inst[i->a].op >= L_PRIM;
    if (i->kind == MMA_ASYNC && (!c->block || !(computed || is_panel_load(c, i->a)) || !is_panel_load(c, i->b)))
        return kernel_verify_fail(c, v, "an asynchronous mma is of loads from panels, in a block loop");
    bool bytes = (a == KL_U8 || a == KL_I8) && (b == KL_U8 || b == KL_I8) && acc == KL_I32;
    bool halves = a == b && dtype_is_half(a) && acc == KL_F32;
    bool same = a == b && a == acc && a != KL_BOOL && !dtype_is_half(a);
    if (i->kind == MMA_EVEN_ODD)
        return (a == KL_BF16 && b == KL_U32 && acc == KL_F32 && i->dtype == acc &&
                c->k->inst[i->a].cols <= EVEN_ODD_BLOCK) ||
               kernel_verify_fail(c, v, "an even_odd mma is of bf16, pairs of it as u32, and f32, at most 32 deep");
    return ((bytes || halves || same) && i->dtype == acc && i->kind < MMA_COUNT) ||
           kernel_verify_fail(c, v, "no mma of these dtypes");
}

/* The rules of a loop's position. */
static bool place_rules(const struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    bool effect = i->op == L_STORE || i->op == L_ATOMIC || i->op == L_COPY || i->op == L_COMMIT || i->op == L_WAIT ||
                  i->op == L_BARRIER || i->op == L_COPY_PANEL || i->op == L_ARRIVE || i->op == L_AWAIT ||
                  i->op == L_PUBLISH || i->op == L_RECEIVE;
    bool block = i->op == L_LOOP && i->kind == LOOP_BLOCK;
    if (effect && c->reduce)
        return kernel_verify_fail(c, v, "a reduce loop has no store and no barrier");
    if (c->grid && !c->block && (effect || i->op == L_IF || i->op == L_PREFETCH || (i->op == L_LOOP && !block)))
        return kernel_verify_fail(c, v, "a grid loop works in its block loop");
    if (c->grid && !c->block && c->block_seen && is_value(i->op) && i->op != L_CONST)
        return kernel_verify_fail(c, v, "a grid loop ends with its block loop");
    return true;
}

static bool check_inst_rules(struct checker *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    const char *rule = NULL;
    if (!place_rules(c, v))
        return false;
    if (!tile_shapes(c->k, v, &rule))
        return kernel_verify_fail(c, v, rule);
    if (c->vector && i->cols)
        return kernel_verify_fail(c, v, "a tile inside a vector loop");
    if (i->varying != inst_is_varying(c->k, i))
        return kernel_verify_fail(c, v, i->varying ? "marked as varying" : "not marked as varying");
    switch (i->op) {
    case L_CONST:
    case L_SLOT:
        return true;
    case L_LOOP:
        return loop_rules(c, v);
    case L_IF:
        if (c->depth == MAX_NEST)
            return kernel_verify_fail(c, v, "loops and ifs nest too deep");
        return is_bool(c, v, i->a) && (!c->k->inst[i->a].varying || kernel_verify_fail(c, v, "a varying condition"));
    case L_END:
        return (i->a && i->a == c->cur) ? nexts_complete(c, i->a)
            : kernel_verify_fail(c, v, "ends another loop than the open one");
    case L_CARRY:
    case L_NEXT:
    case L_OUT:
        return carry_rules(c, v);
    case L_LOAD:
    case L_STORE:
    case L_PREFETCH:
    case L_ATOMIC:
        return memory_rules(c, v);
    case L_COPY:
        return copy_rules(c, v);
    case L_COPY_PANEL:
        return panel_rules(c, v);
    case L_ARRIVE:
    case L_AWAIT:
        return phase_rules(c, v);
    case L_PUBLISH:
    case L_RECEIVE:
        return word_rules(c, v);
    case L_ALIAS:
        return alias_rules(c, v);
    case L_COMMIT:
    case L_WAIT:
        if (i->kind >= ASYNC_COUNT)
            return kernel_verify_fail(c, v, "a batch of neither copies nor products");
        return meeting_rules(c, v);
    case L_BARRIER:
    case L_SYNC:
        return meeting_rules(c, v);
    case L_COLUMNS:
        return kernel_verify_usable(c, v, i->a) &&
               ((c->block && i->dtype == checked_dtype(c, i->a)) ||
                kernel_verify_fail(c, v, "columns outside a block loop or of another dtype"));
    case L_INDEX:
        return true;
    case L_MMA:
        return mma_rules(c, v);
    case L_INTERLEAVE:
        return interleave_rules(c, v);
    case L_SPLAT:
    case L_LANE_REDUCE:
        return lane_rules(c, v);
    default:
        if (i->op == L_OP(P_DOT2))
            return dot2_types(c, v);
        return i->op >= L_PRIM && i->op < L_PRIM + P_COUNT ? prim_types(c, v, (enum prim)(i->op - L_PRIM))
            : kernel_verify_fail(c, v, "unknown instruction");
    }
}

static void close_loop(struct checker *c, const struct linst *head)
{
    if (head->op != L_LOOP)
        return;
    c->vector &= head->kind != LOOP_VECTOR;
    c->reduce -= head->kind == LOOP_REDUCE;
    c->block = head->kind == LOOP_BLOCK ? 0 : c->block;
    c->grid = head->kind == LOOP_GRID ? 0 : c->grid;
    c->words = head->kind == LOOP_GRID ? c->k->nbuf : c->words;
}

static bool is_view(const struct kernel *k, const struct lbuf *l)
{
    enum { VECTOR_BYTES = 16 };
    const struct lbuf *of = l->id < k->nbuf ? &k->buf[l->id] : l;
    int64_t vector = VECTOR_BYTES / (int64_t)dtype_size(l->dtype), last = l->first, more;
    bool ok = of->role == BUF_IN && of->dtype == l->dtype && dtype_is_half(l->dtype) && l->first >= 0 &&
              l->first % vector == 0 && l->step[0] == 1;
    for (unsigned d = 0; d < VIEW_DIMS && ok; d++)
        ok = l->size[d] > 0 && l->size[d] <= UINT32_MAX && l->step[d] > 0 && (!d || l->step[d] % vector == 0) &&
             (!d || l->step[d] % l->step[d - 1] == 0) && l->step[d] < (int64_t)1 << 39 &&
             !__builtin_mul_overflow(l->size[d] - 1, l->step[d], &more) && !__builtin_add_overflow(last, more, &last);
    return ok && last < of->count;
}

/* Have the shared buffers whose memory buffer b has as many bytes? */
static bool memory_covers(const struct kernel *k, uint32_t b)
{
    uint64_t room = 0;
    for (uint32_t i = k->buf[b].id - 1; i < b; i++) {
        if (k->buf[i].role != BUF_SHARED || buf_is_over(&k->buf[i]) || k->buf[i].count > MAX_SHARED)
            return false;
        room += (uint64_t)k->buf[i].count * dtype_size(k->buf[i].dtype);
    }
    return k->buf[b].count <= MAX_SHARED && (uint64_t)k->buf[b].count * dtype_size(k->buf[b].dtype) <= room;
}

static void buffer_rules(struct checker *c)
{
    int64_t shared = 0, private = 0;
    for (uint32_t b = 0; b < c->k->nbuf; b++) {
        const struct lbuf *l = &c->k->buf[b];
        if (l->role >= BUF_COUNT || l->dtype >= KL_DTYPE_COUNT || l->count < 0) {
            kernel_verify_fail(c, 0, "a buffer's field is out of range");
            return;
        }
        bool panels = l->role == BUF_SHARED && dtype_is_half(l->dtype) && l->panel_rows && l->id &&
                      l->panel_rows % PANEL_ROWS == 0 && l->id % PANEL_COLUMNS == 0 &&
                      l->count % ((int64_t)l->panel_rows * l->id) == 0;
        if (l->panel_rows && !panels) {
            kernel_verify_fail(c, 0, "panels are of half floats in shared memory, 8 rows and 64 columns or multiples");
            return;
        }
        if (l->role == BUF_VIEW && !is_view(c->k, l)) {
            kernel_verify_fail(c, 0, "a view is of half floats of an input, of whole vectors of 16 bytes");
            return;
        }
        if (l->role == BUF_PHASES && (l->dtype != KL_U64 || !l->id || l->id > MAX_ARRIVALS)) {
            kernel_verify_fail(c, 0, "barriers with phases are u64, for 1 to 1024 arrivals");
            return;
        }
        if (buf_is_over(l) && !memory_covers(c->k, b)) {
            kernel_verify_fail(c, 0, "a buffer over others that are no shared ones before it, or are shorter");
            return;
        }
        int64_t max = MAX_SHARED, n = l->count > max ? max + 1 : l->count * (int64_t)dtype_size(l->dtype);
        shared += (l->role == BUF_SHARED && !buf_is_over(l)) || l->role == BUF_PHASES ? n : 0;
        private += l->role == BUF_REGISTER ? n : 0;
    }
    if (shared > MAX_SHARED)
        kernel_verify_fail(c, 0, "more than 256 KiB of shared memory");
    if (private > MAX_REGISTER)
        kernel_verify_fail(c, 0, "more than 64 KiB of register buffers");
    const char *members = kernel_members(c->k) > 1 ? kernel_members_check(c->k) : NULL;
    if (members && !c->e->code)
        kernel_verify_fail(c, 0, members);
}

static void kernel_verify_insts(struct checker *c)
{
    const struct kernel *k = c->k;
    buffer_rules(c);
    for (val v = 1; v < k->ninst && !c->e->code; v++) {
        const struct linst *i = &k->inst[v];
        c->scope[v] = c->cur;
        if (i->dtype >= KL_DTYPE_COUNT || i->a >= k->ninst || i->b >= k->ninst || i->c >= k->ninst ||
            i->d >= k->ninst) {
            kernel_verify_fail(c, v, "a field is out of range");
        } else if (check_inst_rules(c, v)) {
            if (i->op == L_LOOP || i->op == L_IF) {
                c->depth++;
                c->open[v] = true;
                c->outer[v] = c->cur;
                c->cur = c->scope[v] = v;
            } else if (i->op == L_END) {
                close_loop(c, &k->inst[c->cur]);
                c->depth--;
                c->open[c->cur] = false;
                c->cur = c->outer[c->cur];
            }
        }
    }
    if (c->cur)
        kernel_verify_fail(c, c->cur, "never ends");
    if (k->extent != kernel_extent(k))
        kernel_verify_fail(c, 0, "its extent is not that of its phases");
    if (!c->e->code)
        threads_verify(k, c->e);
}

bool kernel_check(const struct kernel *k, struct err *e)
{
    struct checker c = {.k = k, .e = e, .words = k->nbuf};
    struct mem_arena mem = {0};
    c.scope = mem_arena_alloc(&mem, k->ninst * sizeof *c.scope);
    c.outer = mem_arena_alloc(&mem, k->ninst * sizeof *c.outer);
    c.open = mem_arena_alloc(&mem, k->ninst * sizeof *c.open);
    c.next = mem_arena_alloc(&mem, k->ninst * sizeof *c.next);
    if (mem.failed)
        err_set(e, KL_ERR_MEMORY, "out of memory verifying kernel %s", k->name);
    else
        kernel_verify_insts(&c);
    mem_arena_free(&mem);
    return !e->code;
}

bool kernel_verify(const struct kernel *k, struct err *e)
{
    struct err broken = {0};
    if (kernel_check(k, &broken))
        return true;
    if (broken.code == KL_ERR_MEMORY)
        return err_set(e, KL_ERR_MEMORY, "%s", broken.msg);
    if (!broken.inst)
        return err_set(e, KL_ERR_INTERNAL, "kernel %s: %s", k->name, broken.msg);
    return err_set(e, KL_ERR_INTERNAL, "kernel %s: %%%u: %s", k->name, broken.inst, broken.msg);
}
