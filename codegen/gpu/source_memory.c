/* Emits memory accesses: loads, stores, atomics and copies. */
#include "emit_source.h"
#include <inttypes.h>
#include <string.h>

const char *source_memory_type(unsigned dtype) { return dtype == KL_BOOL ? "u8" : dtype_name(dtype); }

/* The index of access i; for a tile that of element (row, col).  Returns whether it is computed in 32 bits. */
bool source_memory_place(const struct emitter *m, const struct linst *i, bool tile, char out[3 * MAX_OPERAND])
{
    bool fits;
    char a[MAX_OPERAND], d[MAX_OPERAND];
    const struct linst *stride = &m->k->inst[i->d];
    unsigned apart = i->kind == TILE_ROWS ? m->row : m->col, along = i->kind == TILE_ROWS ? m->col : m->row;
    source_index(m, i->a, &fits, a);
    if (!tile || (!apart && !along)) {
        snprintf(out, 3 * MAX_OPERAND, "%s", a);
        return fits;
    }
    if (stride->op == L_CONST && (int64_t)stride->imm > -(1 << 20) && (int64_t)stride->imm < 1 << 20) {
        snprintf(out, 3 * MAX_OPERAND, "%s + %" PRId64 "%s", a, (int64_t)(apart * stride->imm + along),
                 fits ? "" : m->d->i64);
        return fits;
    }
    snprintf(out, 3 * MAX_OPERAND, "%s + %s * %u + %u", source_operand(m, i->a, a), source_operand(m, i->d, d), apart,
             along);
    return false;
}

/* Is it scratch, or a buffer that is stored and loaded again, possibly by other threads? */
bool source_is_common(const struct kernel *k, uint32_t b)
{
    bool stored = false, loaded = false;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        stored |= (i->op == L_STORE || i->op == L_ATOMIC) && i->imm == b;
        loaded |= i->op == L_LOAD && i->imm == b;
    }
    return k->buf[b].role == BUF_SCRATCH || (stored && loaded);
}

void source_memory_element(struct emitter *m, uint32_t b, const char *index, bool fits)
{
    const char *type = source_memory_type(m->k->buf[b].dtype);
    if (m->d->table && !m->info.local[b])
        text_put(m->t, fits ? "%s_%s(b%u + u64(u32(%s)) * %zuul).v" : "%s_%s(b%u + u64(%s) * %zuul).v",
                 source_is_common(m->k, b) ? "common" : "at", type, b, index, dtype_size(m->k->buf[b].dtype));
    else if (*m->d->subscript)
        text_put(m->t, "b%u[%s(%s)]", b, m->d->subscript, index);
    else
        text_put(m->t, "b%u[%s]", b, index);
}

/* Emits the element of load v at a distance from a near load's address: then the compiler has one address for both. */
static void put_near(struct emitter *m, val v)
{
    char a[MAX_OPERAND];
    bool fits;
    source_index(m, m->k->inst[m->near[v].of].a, &fits, a);
    text_put(m->t, "(b%u + %s)[%" PRId32 "]", (unsigned)m->k->inst[v].imm, a, m->near[v].by);
}

/* Loads a tile whose rows, or columns, have adjacent elements in shared memory, in accesses of 16 bytes: an access is
 * emitted where its first element is.  Returns false if there are no such accesses.  (NVRTC joins such loads in some
 * kernels and not in others.) */
static bool load_part(struct emitter *m, val v)
{
    enum { ACCESS = 16 };
    const struct linst *i = &m->k->inst[v], *stride = &m->k->inst[i->d];
    const struct lbuf *b = &m->k->buf[i->imm];
    unsigned each = ACCESS / (unsigned)dtype_size(b->dtype), length = i->kind == TILE_ROWS ? i->cols : i->rows;
    unsigned lines = i->kind == TILE_ROWS ? i->rows : i->cols, e = i->kind == TILE_ROWS ? m->col : m->row;
    struct linear at;
    if (lines > 1 && length == 1 && stride->op == L_CONST && stride->imm == 1) { /* one line along the other axis */
        length = lines;
        lines = 1;
        e = m->row + m->col;
    }
    bool apart = lines == 1 || (stride->op == L_CONST && stride->imm % each == 0);
    if (!i->cols || !apart || i->b || b->role != BUF_SHARED || b->panel_rows ||
        m->d->table || !m->d->packs || each == 1 || length % each || i->dtype == KL_BOOL ||
        !source_linear(m->k, i->a, &at) || !source_linear_multiple(&at, each))
        return false;
    unsigned line = lines == 1 ? 0 : i->kind == TILE_ROWS ? m->row : m->col, number = (line * length + e) / each;
    if (e % each == 0) {
        char place[3 * MAX_OPERAND];
        bool fits = source_memory_place(m, i, true, place);
        source_line(m);
        text_put(m->t, "const pack<%s, %u> p%u_%u = *(const pack<%s, %u> *)&", source_memory_type(b->dtype), each, v,
                 number, source_memory_type(b->dtype), each);
        source_memory_element(m, (uint32_t)i->imm, place, fits);
        text_put(m->t, ";\n");
    }
    source_declare(m, v);
    text_put(m->t, "p%u_%u.v[%u];\n", v, number, e % each);
    return true;
}

void source_load(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char p[MAX_OPERAND], at[3 * MAX_OPERAND];
    if (load_part(m, v))
        return;
    if (m->pack[v].count) {
        source_load_pack(m, v);
        return;
    }
    bool fits = source_memory_place(m, i, i->cols, at);
    source_declare(m, v);
    if (i->b)
        text_put(m->t, "%s ? ", source_operand(m, i->b, p));
    if (m->near[v].of)
        put_near(m, v);
    else
        source_memory_element(m, (uint32_t)i->imm, at, fits);
    text_put(m->t, i->dtype == KL_BOOL ? " != u8(0)" : "");
    if (i->b)
        text_put(m->t, i->dtype == KL_BOOL ? " : false" : " : %s(0)", dtype_name(i->dtype));
    text_put(m->t, ";\n");
}

/* Is pred true in no other lanes than the first of each group of adjacent ones?  *group: the groups' number. */
static bool is_of_first_lanes(const struct kernel *k, val pred, val *group)
{
    const struct linst *n = k->inst, *i = &n[pred];
    struct linear place, zero;
    if (i->op == L_OP(P_AND))
        return is_of_first_lanes(k, i->a, group) || is_of_first_lanes(k, i->b, group);
    if (i->op != L_OP(P_EQ) || !source_linear(k, i->a, &place) || !source_linear(k, i->b, &zero) || place.n != 2 ||
        place.constant || zero.n || zero.constant)
        return false;
    unsigned t = n[place.term[0]].op == L_LOOP ? 0 : 1; /* the lane less a multiple of the group */
    val lane = place.term[t], quotient = place.term[1 - t];
    struct linear size;
    *group = quotient;
    return n[lane].op == L_LOOP && n[lane].kind == LOOP_VECTOR && place.by[t] == 1 &&
           n[quotient].op == L_OP(P_DIV) && n[quotient].a == lane && source_linear(k, n[quotient].b, &size) &&
           !size.n && size.constant > 0 && place.by[1 - t] == -size.constant;
}

/* Does one lane of each group store, all of them to different elements? */
static bool groups_differ(const struct kernel *k, const struct linst *i)
{
    enum { MAX_STRIDE = 1 << 30 };
    struct linear index;
    val group = 0;
    int64_t stride = 0;
    if (!i->c || !is_of_first_lanes(k, i->c, &group) || !source_linear(k, i->a, &index))
        return false;
    for (unsigned t = 0; t < index.n; t++) {
        if (index.term[t] == group)
            stride = index.by[t];
        else if (k->inst[index.term[t]].varying)
            return false;
    }
    return stride > 0 && stride < MAX_STRIDE;
}

/* May several lanes store to the same element?  They then store one after another, and the last one wins. */
static bool lanes_collide(const struct emitter *m, const struct linst *i)
{
    const struct linst *n = m->k->inst;
    if (m->width == 1 || (!n[i->a].varying && !n[i->b].varying)) /* all lanes store the same value, or only one thread
                                                                    stores */
        return false;
    return !m->apart[i->a] && !groups_differ(m->k, i);
}

static void change_element(struct emitter *m, const struct linst *i)
{
    static const char *const name[] = {[FOLD_ADD] = "Add", [FOLD_MAX] = "Max", [FOLD_MIN] = "Min"};
    char x[MAX_OPERAND], at[3 * MAX_OPERAND];
    unsigned dtype = m->k->inst[i->b].dtype;
    bool unsigned_add = i->op == L_ATOMIC && dtype == KL_I64 && i->kind == FOLD_ADD && !m->d->table;
    source_operand(m, i->b, x);
    bool fits = source_memory_place(m, i, i->op == L_STORE && m->k->inst[i->b].cols, at);
    if (i->op == L_ATOMIC)
        text_put(m->t, "atomic%s(%s%s", name[i->kind], unsigned_add ? "(u64 *)" : "", m->d->address);
    source_memory_element(m, (uint32_t)i->imm, at, fits);
    if (i->op == L_ATOMIC)
        text_put(m->t, unsigned_add ? ", u64(%s));\n" : ", %s);\n", x);
    else
        text_put(m->t, dtype == KL_BOOL ? " = u8(%s);\n" : " = %s;\n", x);
}

/* The text that opens a condition or continues an open one. */
static const char *condition_joint(bool *open)
{
    const char *s = *open ? " && " : "if (";
    *open = true;
    return s;
}

/* Stores one element or pack, by the thread of its lane, or by the first thread of a tile's subgroup. */
static void store_element(struct emitter *m, val v, bool turns)
{
    const struct linst *n = m->k->inst, *i = &n[v];
    bool varying = n[i->a].varying || n[i->b].varying || n[i->c].varying, open = false;
    /* all lanes store one value to one element, if the condition is true in any lane */
    bool same = i->op == L_STORE && !n[i->a].varying && !n[i->b].varying && varying;
    char x[MAX_OPERAND];
    uint32_t lanes = m->own_threads ? m->info.threads : varying ? m->width : 1;
    source_line(m);
    if (turns)
        text_put(m->t, "%st == turn", condition_joint(&open));
    else if (lanes < m->info.threads && !same)
        text_put(m->t, "%st < %uu", condition_joint(&open), lanes);
    if (i->op == L_STORE && n[i->b].cols && m->subgroup > 1)
        text_put(m->t, "%s(t & %uu) == 0u", condition_joint(&open), m->subgroup - 1);
    if (i->c)
        text_put(m->t, "%s%s", condition_joint(&open), source_operand(m, i->c, x));
    text_put(m->t, open ? ") " : "");
    if (m->pack[v].count)
        source_store_pack(m, v);
    else
        change_element(m, i);
}

void source_store(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v], *x = &m->k->inst[i->b];
    bool turns = i->op == L_STORE && lanes_collide(m, i);
    if (m->pack[v].count && m->pack[v].last != v)
        return;
    if (turns) {
        source_line(m);
        text_put(m->t, "for (u32 turn = 0u; turn < %uu; turn++) {\n", m->width);
        m->depth++;
    }
    for (unsigned e = 0, n = x->cols ? x->rows * x->cols : 1; e < n; e++) {
        m->row = x->cols ? e / x->cols : 0;
        m->col = x->cols ? e % x->cols : 0;
        store_element(m, v, turns);
    }
    m->row = m->col = 0;
    if (turns) {
        source_line(m);
        text_put(m->t, "%s\n", m->d->barrier);
        m->depth--;
        source_line(m);
        text_put(m->t, "}\n");
    }
}

void source_copy(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    uint32_t shared = (uint32_t)i->imm, global = (uint32_t)(i->imm >> 32);
    unsigned bytes = i->rows * (unsigned)dtype_size(m->k->buf[shared].dtype);
    char to[MAX_OPERAND], from[MAX_OPERAND], there[MAX_OPERAND] = "true";
    bool fits;
    char place[PANEL_PLACE];
    const struct near near = m->near[v], source = m->d->copies == COPIES_ASYNC ? m->near_source[v] : (struct near){0};
    if (m->d->table) {
        source_load_vector(m, v);
        m->copies = m->copies ? m->copies : v;
        return;
    }
    source_index(m, i->a, &fits, to);
    source_index(m, source.of ? m->k->inst[source.of].b : i->b, &fits, from);
    if (!source_panel_place(m, shared, i->a, place, sizeof place))
        snprintf(place, sizeof place, "%s", to);
    if (i->c)
        source_operand(m, i->c, there);
    source_line(m);
    if (m->d->copies == COPIES_ASYNC && (near.of || source.of))
        text_put(m->t, "copy_%u<%d, %d>(b%u + %s, b%u + %s, %s);\n", bytes,
                 near.by * (int)dtype_size(m->k->buf[shared].dtype),
                 source.by * (int)dtype_size(m->k->buf[global].dtype), shared,
                 near.of ? source_index(m, m->k->inst[near.of].a, &fits, to) : place, global, from, there);
    else if (m->d->copies == COPIES_ASYNC)
        text_put(m->t, "copy_%u(b%u + %s, b%u + %s, %s);\n", bytes, shared, place, global, from, there);
    else
        text_put(m->t, "%svector_%u c%u = load_vector(%u, b%u + %s, %s);\n", m->d->local, bytes, v, bytes, global, from,
                 there);
    m->copies = m->copies || m->d->copies == COPIES_ASYNC ? m->copies : v;
}

void source_land(struct emitter *m, val before)
{
    for (val v = m->copies; v && v < before; v++) {
        const struct linst *i = &m->k->inst[v];
        char to[MAX_OPERAND];
        bool fits;
        if (i->op != L_COPY)
            continue;
        if (m->d->table) {
            source_store_vector(m, v);
            continue;
        }
        source_line(m);
        text_put(m->t, "store_vector(%u, b%u + %s, c%u);\n",
                 i->rows * (unsigned)dtype_size(m->k->buf[(uint32_t)i->imm].dtype), (uint32_t)i->imm,
                 source_index(m, i->a, &fits, to), v);
    }
    m->copies = 0;
}
