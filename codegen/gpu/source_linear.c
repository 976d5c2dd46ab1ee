/* Indices as linear expressions, and vectorization of memory accesses: accesses to adjacent elements become one.
 *
 * Loads of an input or of shared memory, and stores, whose indices differ by 1, 2 .. become one access of up to 16
 * bytes.  The first index must be a multiple of the number of elements, because buffers begin at multiples of 16
 * bytes.  The load is emitted where the first element is loaded, the store where the last element is stored.  No
 * instruction between the accesses may change, or read, the same memory.
 *
 * In CUDA and HIP, a load that is no pack is addressed relative to an earlier load whose index differs by a
 * constant. */
#include "emit_source.h"
#include <string.h>

/* ---- linear forms ---- */

static bool add_term(struct linear *out, val v, int64_t by)
{
    unsigned t = 0;
    while (t < out->n && out->term[t] != v)
        t++;
    if (t == LINEAR_TERMS)
        return false;
    if (t == out->n) {
        out->term[out->n] = v;
        out->by[out->n++] = 0;
    }
    return !__builtin_add_overflow(out->by[t], by, &out->by[t]);
}

static bool add_value(const struct kernel *k, val v, int64_t by, struct linear *out, unsigned depth)
{
    const struct linst *i = &k->inst[v];
    int64_t c;
    if (i->op == L_CONST && i->dtype == KL_I64)
        return !__builtin_mul_overflow(by, (int64_t)i->imm, &c) &&
               !__builtin_add_overflow(out->constant, c, &out->constant);
    if (i->op == L_SPLAT && i->dtype == KL_I64 && !i->cols && depth)
        return add_value(k, i->a, by, out, depth - 1);
    if (i->dtype != KL_I64 || i->cols || !depth)
        return add_term(out, v, by);
    if (i->op == L_OP(P_ADD))
        return add_value(k, i->a, by, out, depth - 1) && add_value(k, i->b, by, out, depth - 1);
    if (i->op == L_OP(P_SUB) && by != INT64_MIN)
        return add_value(k, i->a, by, out, depth - 1) && add_value(k, i->b, -by, out, depth - 1);
    if (i->op == L_OP(P_MUL) && k->inst[i->b].op == L_CONST &&
        !__builtin_mul_overflow(by, (int64_t)k->inst[i->b].imm, &c))
        return add_value(k, i->a, c, out, depth - 1);
    return add_term(out, v, by);
}

bool source_linear(const struct kernel *k, val index, struct linear *out)
{
    enum { DEPTH = 16 };
    *out = (struct linear){0};
    if (!add_value(k, index, 1, out, DEPTH))
        return false;
    for (unsigned t = 0; t < out->n;) /* removes terms that cancel */
        if (out->by[t]) {
            t++;
        } else {
            out->n--;
            out->term[t] = out->term[out->n];
            out->by[t] = out->by[out->n];
        }
    return true;
}

bool source_linear_apart(const struct linear *a, const struct linear *b, int64_t *by)
{
    for (unsigned t = 0; t < a->n; t++) {
        unsigned u = 0;
        while (u < b->n && b->term[u] != a->term[t])
            u++;
        if (u == b->n || b->by[u] != a->by[t])
            return false;
    }
    return a->n == b->n && !__builtin_sub_overflow(b->constant, a->constant, by);
}

bool source_linear_multiple(const struct linear *l, int64_t n)
{
    bool ok = l->constant % n == 0;
    for (unsigned t = 0; t < l->n; t++)
        ok &= l->by[t] % n == 0;
    return ok;
}

/* ---- packs ---- */

enum { MAX_BYTES = 16, AHEAD = 512 }; /* MAX_BYTES: bytes of an access.  AHEAD: number of the accesses after an access
                                          that are compared with it */

struct packed_access { val at; struct linear index; };

/* The copies that others are addressed relative to. */
enum { MAX_COPIES = 8 };
struct copy_index { val at; uint32_t buf; struct linear index; };
struct copies { struct copy_index v[MAX_COPIES]; uint32_t n; };
struct pack_region { struct emitter *m; struct packed_access *v; uint32_t n; struct copies shared, source; };

bool source_is_of_one_thread(const struct emitter *m, val v)
{
    const struct linst *n = m->k->inst, *i = &n[v];
    return !m->own_threads && !n[i->a].varying && !n[i->b].varying && !n[i->c].varying;
}

/* Is it a load of one element from an input, a workspace or shared memory, or a store of one element to memory that
 * other threads can see?  Shared memory has no addresses in GLSL. */
static bool can_pack(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    unsigned role = m->k->buf[i->imm].role;
    if (role == BUF_SHARED && m->d->table)
        return false;
    bool from = role == BUF_IN || role == BUF_WORKSPACE || role == BUF_SHARED;
    bool load = i->op == L_LOAD && from && !i->cols && load_elements(m->k, i) == 1 && !m->k->buf[i->imm].panel_rows;
    bool store = i->op == L_STORE && !m->k->inst[i->b].cols && !m->info.local[i->imm] &&
                 (m->own_threads || m->apart[i->a] || source_is_of_one_thread(m, v));
    return (load || store) && (m->own_threads || m->k->inst[i->a].varying || !m->d->table);
}

/* Does an instruction between the first and the last access of a pack forbid the pack? */
static bool comes_between(const struct pack_region *r, uint32_t first, uint32_t last)
{
    const struct linst *n = r->m->k->inst, *i = &n[r->v[first].at];
    for (uint32_t x = first + 1; x < last; x++) {
        const struct linst *o = &n[r->v[x].at];
        bool member = o->op == i->op && o->imm == i->imm;
        if (i->op == L_LOAD ? o->op != L_LOAD && (o->imm == i->imm || source_may_share(r->m->k, (uint32_t)i->imm,
                                                                                        (uint32_t)o->imm))
            : !member && (o->op != L_LOAD ? o->imm == i->imm
                          : o->imm == i->imm || source_may_share(r->m->k, (uint32_t)o->imm, (uint32_t)i->imm)))
            return true;
    }
    return false;
}

/* Finds `count` accesses of adjacent elements, in order, beginning with access `first`. */
static bool make_pack(struct pack_region *r, uint32_t first, unsigned count)
{
    struct emitter *m = r->m;
    const struct linst *n = m->k->inst, *i = &n[r->v[first].at];
    uint32_t member[MAX_BYTES] = {first};
    unsigned found = 1;
    bool once = source_is_of_one_thread(m, r->v[first].at);
    if (!source_linear_multiple(&r->v[first].index, count))
        return false;
    for (uint32_t x = first + 1; x < r->n && x < first + AHEAD && found < count; x++) {
        const struct linst *o = &n[r->v[x].at];
        int64_t by;
        if (o->op != i->op || o->imm != i->imm || m->pack[r->v[x].at].first)
            continue;
        bool next = source_linear_apart(&r->v[first].index, &r->v[x].index, &by) && by == (int64_t)found &&
                    (i->op == L_LOAD ? o->b == i->b : o->c == i->c && source_is_of_one_thread(m, r->v[x].at) == once);
        if (!next && i->op == L_STORE) /* it must not be reordered with this store */
            return false;
        if (next)
            member[found++] = x;
    }
    if (found < count || comes_between(r, first, member[count - 1]))
        return false;
    for (unsigned e = 0; e < count; e++)
        m->pack[r->v[member[e]].at] = (struct pack){r->v[first].at, r->v[member[count - 1]].at, (uint8_t)e,
                                                    (uint8_t)count};
    return true;
}

/* Is it a load of one element whose index is part of the text? */
static bool has_own_index(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct lbuf *b = &m->k->buf[i->imm];
    return i->op == L_LOAD && m->k->inst[i->a].op != L_CONST && !i->cols && load_elements(m->k, i) == 1 &&
           !b->panel_rows && !m->near[v].of && (!m->pack[v].count || m->pack[v].first == v);
}

/* Finds the load relative to which access x is addressed.  NVRTC was seen to spill registers where each load had its
 * own index. */
static void find_near(const struct pack_region *r, uint32_t x)
{
    enum { BEFORE = 64, FAR = 1 << 16 }; /* accesses; elements */
    struct emitter *m = r->m;
    const struct linst *n = m->k->inst;
    val v = r->v[x].at;
    if (!has_own_index(m, v) || m->pack[v].count)
        return;
    for (uint32_t y = x > BEFORE ? x - BEFORE : 0; y < x; y++) {
        val of = r->v[y].at;
        int64_t by;
        if (!has_own_index(m, of) || n[of].imm != n[v].imm ||
            !source_linear_apart(&r->v[y].index, &r->v[x].index, &by) || by < -FAR || by > FAR)
            continue;
        m->near[v] = (struct near){of, (int32_t)by};
        return;
    }
}

/* Finds the copy among c of which an index, into the same buffer, is at most `far` from `index`. */
static struct near near_of(const struct copies *c, uint32_t buf, const struct linear *index, int64_t far)
{
    for (uint32_t i = 0; i < c->n; i++) {
        int64_t by;
        if (c->v[i].buf == buf && source_linear_apart(&c->v[i].index, index, &by) && by >= -far && by <= far)
            return (struct near){c->v[i].at, (int32_t)by};
    }
    return (struct near){0};
}

static struct near find_near_of(struct emitter *m, struct copies *c, val v, uint32_t buf, val at, int64_t far)
{
    struct linear index;
    if (!source_linear(m->k, at, &index))
        return (struct near){0};
    struct near n = near_of(c, buf, &index, far);
    if (!n.of && c->n < MAX_COPIES)
        c->v[c->n++] = (struct copy_index){v, buf, index};
    return n;
}

/* Finds the copies of the region relative to which copy v is addressed: in shared memory, where rows are not swizzled,
 * and in its source, as far as an instruction has room for the distance.  These addresses would be registers each.  (In
 * kernels for matrix units NVRTC was seen to take more registers so.) */
static void find_near_copy(struct pack_region *r, val v)
{
    enum { FAR = 1 << 16, FAR_BYTES = 1 << 23 };
    struct emitter *m = r->m;
    const struct linst *i = &m->k->inst[v];
    uint32_t buf = (uint32_t)i->imm, source = (uint32_t)(i->imm >> 32);
    if (m->unit || m->k->buf[buf].panel_rows)
        return;
    m->near[v] = find_near_of(m, &r->shared, v, buf, i->a, FAR);
    m->near_source[v] = find_near_of(m, &r->source, v, source, i->b,
                                     FAR_BYTES / (int64_t)dtype_size(m->k->buf[source].dtype) - 1);
}

static void pack_region(struct pack_region *r)
{
    for (uint32_t x = 0; x < r->n; x++) {
        struct emitter *m = r->m;
        const struct linst *i = &m->k->inst[r->v[x].at];
        if (m->pack[r->v[x].at].first || !can_pack(m, r->v[x].at))
            continue;
        for (unsigned count = MAX_BYTES / (unsigned)dtype_size(m->k->buf[i->imm].dtype); count > 1; count /= 2)
            if (make_pack(r, x, count))
                break;
    }
    for (uint32_t x = 0; x < r->n && !r->m->d->table; x++)
        find_near(r, x);
    r->n = r->shared.n = r->source.n = 0;
}

bool source_packs(struct emitter *m)
{
    const struct kernel *k = m->k;
    struct pack_region r = {.m = m, .v = mem_alloc(k->ninst * sizeof *r.v)};
    m->pack = mem_arena_alloc(&m->mem, k->ninst * sizeof *m->pack);
    m->near = mem_arena_alloc(&m->mem, k->ninst * sizeof *m->near);
    m->near_source = mem_arena_alloc(&m->mem, k->ninst * sizeof *m->near_source);
    uint32_t width = 1;
    for (val v = 1; m->d->packs && r.v && m->pack && m->near && m->near_source && v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_LOOP && i->kind == LOOP_VECTOR)
            width = (uint32_t)k->inst[i->b].imm;
        bool exchange = (i->op == L_LANE_REDUCE || i->op == L_INTERLEAVE) && exchanges(m, v, width);
        if (m->barrier[v] || exchange || i->op == L_LOOP || i->op == L_END || i->op == L_IF || i->op == L_BARRIER ||
            i->op == L_SYNC || i->op == L_WAIT || i->op == L_ATOMIC || i->op == L_ARRIVE || i->op == L_AWAIT)
            pack_region(&r);
        if (i->op == L_COPY)
            find_near_copy(&r, v);
        bool access = i->op == L_LOAD || i->op == L_STORE;
        if (access && source_linear(k, i->a, &r.v[r.n].index))
            r.v[r.n++].at = v;
        else if (access)
            pack_region(&r); /* it may access any memory */
    }
    mem_free(r.v);
    return r.v && m->pack && m->near && m->near_source;
}
