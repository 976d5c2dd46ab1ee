/* Control flow: loops, the values that they carry, and the ends of loops and conditions. */
#include "emit_source.h"
#include <inttypes.h>

static void declare_carry(struct emitter *m, val c)
{
    char x[MAX_OPERAND], name[MAX_OPERAND];
    source_line(m);
    text_put(m->t, "%s%s %s = %s;\n", source_qualifier(m, c, true), source_type(m, c), source_operand(m, c, name),
             source_operand(m, m->k->inst[c].a, x));
}

static void set_carry(struct emitter *m, val n)
{
    char x[MAX_OPERAND], name[MAX_OPERAND];
    source_line(m);
    text_put(m->t, "%s = %s;\n", source_operand(m, m->k->inst[n].a, name), source_operand(m, m->k->inst[n].b, x));
}

static void keep_next(struct emitter *m, val n)
{
    const struct linst *i = &m->k->inst[n];
    char x[MAX_OPERAND], name[MAX_OPERAND];
    source_line(m);
    text_put(m->t, "%s%s n%s = %s;\n", source_qualifier(m, i->b, false), source_type(m, i->b),
             source_operand(m, i->a, name), source_operand(m, i->b, x));
}

static void set_kept(struct emitter *m, val n)
{
    char name[MAX_OPERAND];
    source_operand(m, m->k->inst[n].a, name);
    source_line(m);
    text_put(m->t, "%s = n%s;\n", name, name);
}

/* The name of the variable of the loop over a phase's iterations: the loop's value, or with members the number among
 * the iterations of all (g: i8 and i16 are types). */
static char iteration_name(const struct emitter *m) { return kernel_members(m->k) > 1 ? 'g' : 'v'; }

/* The iterations of this phase's loop: its part of begin .. end, which counts the iterations of all phases. */
static void open_phase_loop(struct emitter *m, val v)
{
    const char *n = m->narrow[v] ? "i32" : "i64", *l = m->d->i64;
    char x = iteration_name(m);
    int64_t base = m->phase.base, extent = m->phase.extent;
    text_put(m->t, "for (%s %c%u = %s((begin > %" PRId64 "%s ? begin : %" PRId64 "%s) - %" PRId64 "%s) + %s(%s), e%u = "
             "%s((end < %" PRId64 "%s ? end : %" PRId64 "%s) - %" PRId64 "%s); %c%u < e%u; %c%u += %s(%s)) {", n, x,
             v, n, base, l, base, l, base, l, n, m->d->block, v, n, base + extent, l, base + extent, l, base, l, x, v,
             v, x, v, n, m->d->grid);
}

/* The same of blocks in order: as long as the counter gives iterations.  A launch runs the phase as a whole or not. */
static void open_loop_in_order(struct emitter *m, val v)
{
    const char *n = m->narrow[v] ? "i32" : "i64", *l = m->d->i64;
    int64_t base = m->phase.base, extent = m->phase.extent;
    uint32_t words = kernel_word_buffer(m->k, v);
    text_put(m->t, "for (%s v%u = begin < %" PRId64 "%s && end > %" PRId64 "%s ? %s(next_in_order(b%u)) : %s(%" PRId64
             "); v%u < %" PRId64 "; v%u = %s(next_in_order(b%u))) {", n, v, base + extent, l, base, l, n, words, n,
             extent, v, extent, v, n, words);
}

/* The member whose iteration it is, the loop's value in that member, and the member's arguments. */
static void open_member(struct emitter *m, val v)
{
    const struct kernel *k = m->k;
    uint32_t own = kernel_own_buffers(k), each = kernel_arguments(k) / kernel_members(k), place = 0;
    int64_t extent = m->phase.extent / kernel_members(k);
    const char *n = m->narrow[v] ? "i32" : "i64";
    source_line(m);
    text_put(m->t, "%su32 m%u = u32(g%u) / %" PRId64 "u;\n", m->d->local, v, v, extent);
    source_line(m);
    text_put(m->t, "%s%s v%u = %s(u32(g%u) %% %" PRId64 "u);\n", m->d->local, n, v, n, v, extent);
    for (uint32_t b = 0; b < own; b++) {
        const char *constant = k->buf[b].role == BUF_IN ? "const " : "", *type = source_memory_type(k->buf[b].dtype);
        if (m->info.local[b])
            continue;
        source_line(m);
        if (m->d->table)
            text_put(m->t, "u64 b%u = at_u64(buffers + u64(m%u * %uu + %uu) * 8ul).v;\n", b, v, each, place++);
        else
            text_put(m->t, "%s%s *const b%u = (%s%s *)of.at[m%u * %uu + %uu];\n", constant, type, b, constant, type, v,
                     each, place++);
    }
}

/* Does the loop have products of tiles? */
static bool loop_has_tile_products(const struct emitter *m, val loop)
{
    val v = loop + 1;
    while (m->k->inst[v].op != L_MMA && !(m->k->inst[v].op == L_END && m->k->inst[v].a == loop))
        v++;
    return m->k->inst[v].op == L_MMA;
}

/* Does an address in the loop depend on a value that the loop carries, as in a binary search?  Its loads wait for each
 * other, and unrolled iterations gain nothing. */
static bool loop_has_search(const struct emitter *m, val loop)
{
    const struct linst *n = m->k->inst;
    uint8_t *carried = n[loop + 1].op == L_CARRY ? mem_alloc(m->k->ninst) : NULL;
    bool found = false, own = true;
    for (val v = loop + 1; carried && !found && !(n[v].op == L_END && n[v].a == loop); v++) {
        own &= n[v].op == L_CARRY;
        carried[v] = own || carried[n[v].a] || carried[n[v].b] || carried[n[v].c] || carried[n[v].d];
        found = n[v].op == L_LOAD && carried[n[v].a];
    }
    mem_free(carried);
    return found;
}

/* Is the loop in an `if` of a NaN, or is there one in the loop, beside products by fma?  That code is long and rare,
 * and the tiles' sums leave no registers for unrolled loads. */
static bool loop_is_of_nan(const struct emitter *m, val loop)
{
    const struct linst *n = m->k->inst;
    val end = kernel_end_of(m->k, loop);
    bool sums = false, found = false;
    for (val v = 0; v < m->k->ninst; v++) {
        const struct linst *x = &n[n[v].a];
        sums |= n[v].op == L_MMA && n[v].kind == MMA_CHAIN;
        bool is_nan = n[v].op == L_IF && x->op == L_OP(P_NE) && x->a == x->b;
        found |= is_nan && v < end && (v > loop || kernel_end_of(m->k, v) > end);
    }
    return sums && found;
}

/* "i32 v7 = i32(t...);": the number of a lane or thread, in a scope of its own. */
static void open_thread_scope(struct emitter *m, val v, const char *number)
{
    const char *n = m->narrow[v] ? "i32" : "i64", *what = m->k->inst[v].kind == LOOP_VECTOR ? "lanes" : "threads";
    source_line(m);
    text_put(m->t, "{ // %" PRIu64 " %s\n", m->k->inst[m->k->inst[v].b].imm, what);
    m->depth++;
    source_line(m);
    text_put(m->t, "%s%s v%u = %s(%s);\n", m->d->local, n, v, n, number);
}

static void open_vector_loop(struct emitter *m, val v)
{
    char lane[32] = "t";
    m->width = (uint32_t)m->k->inst[m->k->inst[v].b].imm;
    if (m->width != m->info.threads)
        snprintf(lane, sizeof lane, "t & %uu", m->width - 1);
    open_thread_scope(m, v, lane);
}

static void open_block_loop(struct emitter *m, val v)
{
    m->subgroup = m->k->inst[v].rows;
    open_thread_scope(m, v, "t");
    source_begin_phases(m);
}

static void put_unroll(struct emitter *m, val v)
{
    unsigned kind = m->k->inst[v].kind;
    if (kind == LOOP_UNROLLED && !m->d->table) { /* a product's whole step: with 4, NVRTC was seen to spill */
        text_put(m->t, "#pragma unroll 8\n");
        source_line(m);
    } else if (kind == LOOP_SERIAL && !m->d->table && /* a product's step is long, and has barriers */
               (loop_has_tile_products(m, v) || loop_has_search(m, v) || loop_is_of_nan(m, v))) {
        text_put(m->t, "#pragma unroll 1\n");
        source_line(m);
    }
}

/* The `for` of a loop whose iterations one thread runs, or the grid's blocks. */
static void put_for(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const char *n = m->narrow[v] ? "i32" : "i64";
    char a[MAX_OPERAND], b[MAX_OPERAND], x = iteration_name(m);
    bool fits, blocks = i->kind == LOOP_PARALLEL || i->kind == LOOP_GRID;
    if (i->kind == LOOP_GRID && i->rows)
        open_loop_in_order(m, v);
    else if (blocks && m->phase.extent < m->k->extent)
        open_phase_loop(m, v);
    else if (blocks)
        text_put(m->t, "for (%s %c%u = %s(begin) + %s(%s); %c%u < %s(end); %c%u += %s(%s)) {", n, x, v, n, n,
                 m->d->block, x, v, n, x, v, n, m->d->grid);
    else if (m->narrow[v])
        text_put(m->t, "for (i32 v%u = %s; v%u < %s; v%u += %" PRIu64 ") {", v, source_index(m, i->a, &fits, a), v,
                 source_index(m, i->b, &fits, b), v, i->imm);
    else
        text_put(m->t, "for (i64 v%u = %s; v%u < %s; v%u += %" PRIu64 "%s) {", v, source_operand(m, i->a, a), v,
                 source_operand(m, i->b, b), v, i->imm, m->d->i64);
    text_put(m->t, "%s\n", blocks ? " // this block's iterations" : i->kind == LOOP_REDUCE ? " // reduction" : "");
}

/* Carried values are variables that are all set at the end of an iteration. */
void source_open_loop(struct emitter *m, val v)
{
    unsigned kind = m->k->inst[v].kind;
    if (kind == LOOP_VECTOR) {
        open_vector_loop(m, v);
        return;
    }
    if (kind == LOOP_BLOCK) {
        open_block_loop(m, v);
        return;
    }
    for (val c = v + 1; c < m->k->ninst && m->k->inst[c].op == L_CARRY; c++)
        source_each_element(m, c, declare_carry);
    source_line(m);
    put_unroll(m, v);
    put_for(m, v);
    m->depth++;
    if (kernel_members(m->k) > 1 && (kind == LOOP_PARALLEL || kind == LOOP_GRID))
        open_member(m, v);
}

void source_end_nest(struct emitter *m, val end)
{
    const struct linst *head = &m->k->inst[m->k->inst[end].a];
    val first = end;
    while (m->k->inst[first - 1].op == L_NEXT)
        first--;
    bool one = end - first == 1; /* one value needs no copy first */
    for (val n = first; n < end && !one; n++)
        if (!source_matrix_in_place(m, n))
            source_each_element(m, n, keep_next);
    for (val n = first; n < end; n++)
        if (!source_matrix_in_place(m, n))
            source_each_element(m, n, one ? set_carry : set_kept);
    /* the threads' next block uses the same shared memory */
    if (head->op == L_LOOP && head->kind == LOOP_BLOCK && m->shares) {
        if (kernel_shares(m->k, m->k->inst[end].a, end)) {
            source_line(m);
            text_put(m->t, "%s\n", m->d->barrier);
        }
        source_end_phases(m);
    }
    m->depth--;
    source_line(m);
    text_put(m->t, "}\n");
    if (head->op == L_LOOP && head->kind == LOOP_VECTOR)
        m->width = 1;
}
