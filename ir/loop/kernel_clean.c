/* Cleans a finished kernel: selects of known conditions, scoped value numbering, then dead code, then compaction, then
 * constants to the front.
 *
 * A computation may replace an equal later one only while the loop or if that contains it is open.  This is the
 * dominator relation of structured code, so one pass with a table suffices. */
#include "inline.h"
#include <string.h>

struct clean {
    struct kernel *k;
    val *map;          /* old value -> the value that replaces it */
    uint32_t *scope;   /* per value: the scope it was made in */
    bool *open;        /* per scope: not yet ended; a scope is named by its LOOP or IF, 0 is the kernel */
    val *slot; uint32_t mask;
};

static bool is_pure(const struct linst *i)
{
    return i->op >= L_PRIM || i->op == L_CONST || i->op == L_SLOT || i->op == L_ALIAS ||
           i->op == L_SPLAT || i->op == L_LANE_REDUCE ||
        i->op == L_INTERLEAVE ||
           i->op == L_INDEX || i->op == L_COLUMNS || i->op == L_MMA;
}

static uint32_t inst_hash(const struct linst *i)
{
    uint64_t w[sizeof *i / 8], h = 0;
    memcpy(w, i, sizeof w);
    for (size_t j = 0; j < sizeof w / sizeof *w; j++)
        h = (h ^ w[j]) * UINT64_C(0x9e3779b97f4a7c15), h ^= h >> 29;
    return (uint32_t)h;
}

/* The equal value in scope, or v.  Table entries out of scope are replaced. */
static val kernel_clean_number(struct clean *c, val v)
{
    const struct linst *i = &c->k->inst[v];
    uint32_t h = inst_hash(i) & c->mask;
    for (; c->slot[h]; h = (h + 1) & c->mask) {
        val o = c->slot[h];
        if (!memcmp(&c->k->inst[o], i, sizeof *i)) {
            if (c->open[c->scope[o]])
                return o;
            break;
        }
    }
    c->slot[h] = v;
    return v;
}

static void operands_map(struct linst *i, const val *map)
{
    i->a = map[i->a];
    i->b = map[i->b];
    i->c = map[i->c];
    i->d = map[i->d];
}

static void clean_merge_equal(struct clean *c)
{
    struct kernel *k = c->k;
    uint32_t scope = 0, *parent = c->scope; /* a scope's own scope is its parent */
    c->open[0] = true;
    for (val v = 1; v < k->ninst; v++) {
        struct linst *i = &k->inst[v];
        operands_map(i, c->map);
        c->map[v] = v;
        c->scope[v] = scope;
        if (i->op == L_LOOP || i->op == L_IF) {
            scope = v;
            c->open[v] = true;
        } else if (i->op == L_END) {
            c->open[scope] = false;
            scope = parent[scope];
            c->scope[v] = scope;
        } else if (i->op == L_SYNC) { /* values do not pass */
            memset(c->slot, 0, ((size_t)c->mask + 1) * sizeof *c->slot);
        } else if (is_pure(i)) {
            c->map[v] = kernel_clean_number(c, v);
        }
    }
}

/* The instruction has no effect on memory, threads or control flow: it is needed only if its value is. */
static bool is_value(const struct linst *i)
{
    return is_pure(i) || i->op == L_LOAD || i->op == L_OUT;
}

/* Marks live instructions: effects, the control flow around them, and all operands.  A carry is live with its loop. */
static void kernel_clean_mark(const struct kernel *k, bool *live)
{
    for (val v = k->ninst; v-- > 1;) {
        const struct linst *i = &k->inst[v];
        live[v] |= !is_value(i);
        if (live[v])
            live[i->a] = live[i->b] = live[i->c] = live[i->d] = true;
    }
}

static void clean_compact(struct kernel *k, const bool *live, val *map)
{
    uint32_t n = 1;
    memset(map, 0, k->ninst * sizeof *map);
    for (val v = 1; v < k->ninst; v++) {
        if (!live[v])
            continue;
        struct linst i = k->inst[v];
        operands_map(&i, map);
        map[v] = n;
        k->inst[n++] = i;
    }
    k->ninst = n;
}

/* ---- constants to the front ---- */

struct canonicalizing {
    const struct kernel *k;
    struct linst *inst; uint32_t n;   /* the result */
    val *map;                         /* old value -> new */
    val *slot; uint32_t mask;         /* the new constants, by dtype and bits */
};

static void canonicalize_constant(struct canonicalizing *s, val v)
{
    const struct linst *i = &s->k->inst[v];
    if (i->op != L_CONST || s->map[v])
        return;
    struct linst c = {.op = L_CONST, .dtype = i->dtype, .imm = i->imm};
    uint32_t h = inst_hash(&c) & s->mask;
    while (s->slot[h] && memcmp(&s->inst[s->slot[h]], &c, sizeof c))
        h = (h + 1) & s->mask;
    if (!s->slot[h]) {
        s->slot[h] = s->n;
        s->inst[s->n++] = c;
    }
    s->map[v] = s->slot[h];
}

static void kernel_clean_canonicalize(struct canonicalizing *s, val *from)
{
    const struct kernel *k = s->k;
    s->n = 1;
    for (val v = 1; v < k->ninst; v++) {
        canonicalize_constant(s, k->inst[v].a);
        canonicalize_constant(s, k->inst[v].b);
        canonicalize_constant(s, k->inst[v].c);
        canonicalize_constant(s, k->inst[v].d);
    }
    val next = s->n;
    for (val v = 1; v < k->ninst; v++)
        if (k->inst[v].op != L_CONST)
            s->map[v] = next++;
    for (val v = 1; v < k->ninst; v++) {
        struct linst i = k->inst[v];
        if (from && s->map[v])
            from[s->map[v]] = v;
        if (i.op == L_CONST)
            continue;
        operands_map(&i, s->map);
        if (i.op >= L_PRIM)
            i.kind = 0; /* INST_INDEX is only used while building */
        s->inst[s->n++] = i;
    }
}

/* Entries of a hash table of the kernel's values: a power of two. */
static uint32_t clean_table_size(const struct kernel *k)
{
    uint32_t size = 256;
    while (size < 2 * k->ninst)
        size *= 2;
    return size;
}

bool kernel_canonicalize(struct kernel *k, val *from)
{
    if (k->err.code)
        return false;
    uint32_t size = clean_table_size(k);
    struct canonicalizing s = {.k = k, .mask = size - 1};
    struct mem_arena mem = {0};
    s.inst = mem_arena_alloc(&mem, k->ninst * sizeof *s.inst);
    s.map = mem_arena_alloc(&mem, k->ninst * sizeof *s.map);
    s.slot = mem_arena_alloc(&mem, size * sizeof *s.slot);
    bool ok = !mem.failed;
    if (ok) {
        kernel_clean_canonicalize(&s, from);
        memcpy(k->inst, s.inst, s.n * sizeof *s.inst);
        k->ninst = s.n;
        index_free(k); /* linear forms name the old values */
    } else {
        err_set(&k->err, KL_ERR_MEMORY, "out of memory building kernel %s", k->name);
    }
    mem_arena_free(&mem);
    return ok;
}

bool kernel_clean(struct kernel *k)
{
    if (k->err.code)
        return false;
    uint32_t size = clean_table_size(k);
    struct clean c = {.k = k, .mask = size - 1};
    struct mem_arena mem = {0};
    c.map = mem_arena_alloc(&mem, k->ninst * sizeof *c.map);
    c.scope = mem_arena_alloc(&mem, k->ninst * sizeof *c.scope);
    c.open = mem_arena_alloc(&mem, k->ninst * sizeof *c.open);
    c.slot = mem_arena_alloc(&mem, size * sizeof *c.slot);
    bool *live = mem_arena_alloc(&mem, k->ninst * sizeof *live);
    bool ok = !mem.failed && kernel_choose_known(k);
    if (ok) {
        clean_merge_equal(&c);
        kernel_clean_mark(k, live);
        clean_compact(k, live, c.map);
        index_free(k); /* linear forms name the old values */
        ok = kernel_canonicalize(k, NULL);
    } else {
        err_set(&k->err, KL_ERR_MEMORY, "out of memory building kernel %s", k->name);
    }
    mem_arena_free(&mem);
    return ok;
}
