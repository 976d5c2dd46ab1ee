/* Packs, the vector accesses that source_linear.c finds: adjacent elements in memory that are accessed at once.  CUDA
 * and HIP have the prelude's pack<T, n>.  GLSL has unsigned integers of as many bits, and each element is a part of
 * one; a pack of 16 bytes is two integers of 64 bits, which every device has that Kiln uses. */
#include "emit_source.h"
#include <string.h>

enum { SMALLEST = 2, LARGEST = 16 }; /* bytes of a pack */

static unsigned pack_bytes(const struct emitter *m, val v)
{
    return m->pack[v].count * (unsigned)dtype_size(m->k->buf[m->k->inst[v].imm].dtype);
}

/* Of copy v. */
static unsigned vector_bytes(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    return i->rows * (unsigned)dtype_size(m->k->buf[(uint32_t)i->imm].dtype);
}

/* ---- what the text uses ---- */

static void pack_need_value(struct emitter *m, val v)
{
    if (v < m->k->ninst)
        m->needed[v] = 1;
}

/* A pack has only its first element's index and one condition. */
static void need_operands(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct pack *p = m->pack[v].count ? &m->pack[v] : NULL;
    bool load = i->op == L_LOAD;
    if (!p || p->first == v)
        pack_need_value(m, i->a);
    if (!p || !load || p->first == v)
        pack_need_value(m, i->b);
    if (!p || load || p->last == v)
        pack_need_value(m, i->c);
    pack_need_value(m, i->d);
}

/* Primitives that only compute indices of other elements of packs are not needed.  For CUDA and HIP all are emitted:
 * their compilers remove dead code, and NVRTC was seen to allocate registers worse without it.  The uses of a value
 * come after it, except for what a loop carries, which counts as needed. */
bool source_needs(struct emitter *m)
{
    m->needed = mem_arena_alloc(&m->mem, m->k->ninst);
    for (val v = m->k->ninst; m->needed && v-- > 1;) {
        unsigned op = m->k->inst[v].op;
        if (!m->d->table || (op < L_PRIM && op != L_SPLAT))
            m->needed[v] = 1;
        if (m->needed[v])
            need_operands(m, v);
    }
    return m->needed != NULL;
}

/* ---- GLSL ---- */

static const char *bits_type(unsigned bytes)
{
    return bytes == 16 ? "u64vec2" : bytes == 8 ? "u64" : bytes == 4 ? "u32" : "u16";
}

void source_pack_types(struct emitter *m)
{
    unsigned used[2] = {0};         /* sizes in bytes, as bits: of packs that one thread accesses; of packs that several
                                       threads access */
    for (val v = 1; v < m->k->ninst; v++)
        if (m->k->inst[v].op == L_COPY)
            used[0] |= vector_bytes(m, v);
        else if (m->pack[v].count && m->pack[v].first == v)
            used[source_is_common(m->k, (uint32_t)m->k->inst[v].imm)] |= pack_bytes(m, v);
    for (unsigned common = 0; common < 2; common++)
        for (unsigned bytes = SMALLEST; bytes <= LARGEST; bytes *= 2)
            if (used[common] & bytes)
                text_put(m->t, "layout(buffer_reference, std430, buffer_reference_align = %u) %sbuffer %s_pack%u { %s "
                         "v; };\n", bytes, common ? "coherent " : "", common ? "common" : "at", bytes,
                         bits_type(bytes));
}

/* Emits element `at` of the pack named p. */
static void put_packed(struct emitter *m, unsigned dtype, unsigned count, unsigned at, val p)
{
    static const char axis[] = "xyzw";
    unsigned size = (unsigned)dtype_size(dtype), bytes = size * count, word = at * size / 4;
    char half[32], bits[64];
    snprintf(half, sizeof half, bytes == 16 ? "p%u.%c" : "p%u", p, axis[at * size / 8]);
    snprintf(bits, sizeof bits, size == 8 || bytes <= 4 ? "%s" : "unpack32(%s).%c", half, axis[word % 2]);
    const char *type = source_memory_type(dtype);
    if (size >= 4)
        text_put(m->t, dtype == KL_F32 || dtype == KL_F64 ? "%s_of_bits(%s)" : "%s(%s)", type, bits);
    else
        text_put(m->t, "%s(unpack%u(%s).%c)", type, 8 * size, bits, axis[at % (4 / size)]);
}

/* Emits the 32 bits of the stores from *v on, or 16 bits if the pack has only two bytes.  *v is then the instruction
 * after them. */
static void put_word(struct emitter *m, val first, val last, val *v, unsigned elements)
{
    const struct kernel *k = m->k;
    unsigned size = (unsigned)dtype_size(k->buf[k->inst[first].imm].dtype);
    char x[MAX_OPERAND];
    if (size < 4)
        text_put(m->t, "pack%u(u%uvec%u(", size * elements * 8, size * 8, elements);
    for (unsigned e = 0; e < elements && *v <= last; (*v)++) {
        if (!m->pack[*v].count || m->pack[*v].first != first)
            continue;
        const struct linst *value = &k->inst[k->inst[*v].b];
        bool is_float = value->dtype == KL_F32 || value->dtype == KL_F64;
        text_put(m->t, e++ ? ", " : "");
        source_operand(m, k->inst[*v].b, x);
        if (is_float)
            text_put(m->t, "bits_of_%s(%s)", dtype_name(value->dtype), x);
        else
            text_put(m->t, "u%u(%s)", 8 * size, x);
    }
    text_put(m->t, size < 4 ? "))" : "");
}

static void put_bits(struct emitter *m, val last)
{
    const struct kernel *k = m->k;
    val first = m->pack[last].first, v = first;
    unsigned size = (unsigned)dtype_size(k->buf[k->inst[first].imm].dtype), bytes = pack_bytes(m, last);
    unsigned words = size == 8 ? 2 : bytes < 4 ? 1 : bytes / 4, elements = size >= 4 ? 1 : (bytes < 4 ? 2 : 4 / size);
    text_put(m->t, bytes == 16 ? "u64vec2(" : "");
    for (unsigned w = 0; w < words; w++) {
        bool pair = size < 8 && bytes >= 8;
        text_put(m->t, "%s%s", w ? ", " : "", pair && w % 2 == 0 ? "pack64(u32vec2(" : "");
        put_word(m, first, last, &v, elements);
        text_put(m->t, pair && w % 2 ? "))" : "");
    }
    text_put(m->t, bytes == 16 ? ")" : "");
}

void source_load_vector(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    unsigned from = (unsigned)(i->imm >> 32), bytes = vector_bytes(m, v);
    char at[MAX_OPERAND], there[MAX_OPERAND];
    bool fits;
    source_index(m, i->b, &fits, at);
    source_line(m);
    text_put(m->t, "%s p%u = ", bits_type(bytes), v);
    if (i->c)
        text_put(m->t, "!%s ? %s(0) : ", source_operand(m, i->c, there), bits_type(bytes));
    text_put(m->t, fits ? "at_pack%u(b%u + u64(u32(%s)) * %zuul).v;\n" : "at_pack%u(b%u + u64(%s) * %zuul).v;\n", bytes,
             from, at, dtype_size(m->k->buf[from].dtype));
}

void source_store_vector(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    unsigned to = (unsigned)(uint32_t)i->imm, dtype = m->k->buf[to].dtype;
    char at[MAX_OPERAND];
    bool fits;
    source_index(m, i->a, &fits, at);
    if (source_has_vectors(m, to)) {
        source_line(m);
        text_put(m->t, "b%u[u32(%s) / 8u] = u32vec4(unpack32(p%u.x), unpack32(p%u.y));\n", to, at, v, v);
    }
    for (unsigned e = 0; e < i->rows && !source_has_vectors(m, to); e++) {
        source_line(m);
        text_put(m->t, "b%u[u32(%s) + %uu] = ", to, at, e);
        put_packed(m, dtype, i->rows, e, v);
        text_put(m->t, ";\n");
    }
}

/* ---- any dialect ---- */

/* Emits the pack in memory, at its first element's index. */
static void put_address(struct emitter *m, val first, const char *qualifier)
{
    const struct linst *i = &m->k->inst[first];
    const struct lbuf *b = &m->k->buf[i->imm];
    char at[3 * MAX_OPERAND];
    bool fits = source_memory_place(m, i, false, at);
    if (m->d->table) {
        text_put(m->t, fits ? "%s_pack%u(b%u + u64(u32(%s)) * %zuul).v" : "%s_pack%u(b%u + u64(%s) * %zuul).v",
                 source_is_common(m->k, (uint32_t)i->imm) ? "common" : "at", pack_bytes(m, first), (unsigned)i->imm, at,
                 dtype_size(b->dtype));
    } else {
        text_put(m->t, "*(%spack<%s, %u> *)&", qualifier, source_memory_type(b->dtype), m->pack[first].count);
        source_memory_element(m, (uint32_t)i->imm, at, fits);
    }
}

/* The pack is loaded where its first element is. */
void source_load_pack(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct pack *p = &m->pack[v];
    unsigned dtype = m->k->buf[i->imm].dtype;
    char pack[64], there[MAX_OPERAND];
    if (p->first == v) {
        if (m->d->table)
            snprintf(pack, sizeof pack, "%s", bits_type(pack_bytes(m, v)));
        else
            snprintf(pack, sizeof pack, "pack<%s, %u>", source_memory_type(dtype), p->count);
        source_line(m);
        text_put(m->t, "%s%s p%u = ", m->d->local, pack, v);
        if (i->b && m->d->table)
            text_put(m->t, "!%s ? %s(0) : ", source_operand(m, i->b, there), pack);
        else if (i->b)
            text_put(m->t, "!%s ? %s{} : ", source_operand(m, i->b, there), pack);
        put_address(m, v, "const ");
        text_put(m->t, ";\n");
    }
    source_declare(m, v);
    if (m->d->table)
        put_packed(m, dtype, p->count, p->at, p->first);
    else
        text_put(m->t, "p%u.v[%u]", p->first, p->at);
    text_put(m->t, i->dtype == KL_BOOL ? " != u8(0);\n" : ";\n");
}

void source_store_pack(struct emitter *m, val v)
{
    const struct kernel *k = m->k;
    const struct pack *p = &m->pack[v];
    const char *type = source_memory_type(k->buf[k->inst[v].imm].dtype);
    bool result = source_is_async(m) && k->buf[k->inst[v].imm].role == BUF_OUT;
    bool tiled = m->chained && !m->unit && !m->info.local[k->inst[v].imm];
    bool own = tiled || k->buf[k->inst[v].imm].role == BUF_WORKSPACE;
    bool whole = (result || own) && pack_bytes(m, v) == LARGEST && !m->d->table;
    char x[MAX_OPERAND];
    unsigned next = 0;
    text_put(m->t, !whole ? "" : result ? "store_result_16(&" : "store_16(&");
    put_address(m, p->first, "");
    if (m->d->table) {
        text_put(m->t, " = ");
        put_bits(m, v);
        text_put(m->t, ";\n");
        return;
    }
    text_put(m->t, whole ? ", pack<%s, %u>{{" : " = pack<%s, %u>{{", type, p->count);
    for (val u = p->first; u <= v; u++)
        if (m->pack[u].count && m->pack[u].first == p->first)
            text_put(m->t, k->inst[k->inst[u].b].dtype == KL_BOOL ? "%su8(%s)" : "%s%s", next++ ? ", " : "",
                     source_operand(m, k->inst[u].b, x));
    text_put(m->t, whole ? "}});\n" : "}};\n");
}
