/* One instruction of the loop IR, by subject: control flow, synchronization of threads and of asynchronous copies and
 * products, memory, tiles, and primitives. */
#include "emit_source.h"
#include <inttypes.h>

void source_each_element(struct emitter *m, val v, void (*what)(struct emitter *, val))
{
    const struct linst *i = &m->k->inst[v], *x = i->op == L_NEXT ? &m->k->inst[i->b] : i;
    m->tile = !x->cols || !m->unit ? 0 : i->op == L_NEXT ? i->b : v;
    for (unsigned e = 0, n = source_elements(m, i->op == L_NEXT ? i->b : v); e < n; e++) {
        m->row = x->cols && !m->unit ? e / x->cols : 0;
        m->col = x->cols ? e - m->row * x->cols : 0;
        what(m, v);
    }
    m->row = m->col = m->tile = 0;
}

/* ---- control flow ---- */

static void read_slot(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char at[64], x[96];
    uint64_t number = slot_number(i);
    snprintf(at, sizeof at, m->d->table ? "at_u64(slots + %" PRIu64 "ul).v" : "slots[%" PRIu64 "]",
             m->d->table ? 8 * number : number);
    source_declare(m, v);
    text_put(m->t, "%s;\n", source_bits(m->narrow[v] ? KL_I32 : i->dtype, at, x, sizeof x));
}

static bool emit_control(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char x[MAX_OPERAND];
    switch (i->op) {
    case L_SYNC: /* a launch executes one phase */
        kernel_phase(m->k, &m->phase);
        text_put(m->t, "\n");
        source_line(m);
        text_put(m->t, "// the phase of iterations %" PRId64 " to %" PRId64 "\n", m->phase.base,
                 m->phase.base + m->phase.extent);
        return true;
    case L_SLOT:
        read_slot(m, v);
        return true;
    case L_LOOP:
        if (i->kind >= LOOP_COUNT)
            return source_refuse(m, "a loop of an unknown kind");
        source_open_loop(m, v);
        return true;
    case L_IF:
        source_line(m);
        text_put(m->t, "if (%s) {%s\n", source_operand(m, i->a, x),
                 i->imm ? " // a role of the block's subgroups" : "");
        m->depth++;
        source_registers(m, i->imm);
        return true;
    default:
        source_end_nest(m, v);
        return true;
    }
}

/* ---- synchronization ---- */

static bool products_follow(const struct emitter *m, val v)
{
    while (v < m->k->ninst && m->k->inst[v].op != L_MMA)
        v++;
    return v < m->k->ninst;
}

static void emit_barrier(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    source_line(m);
    if (i->imm)
        text_put(m->t, "role_barrier<%" PRIu64 ">();\n", i->imm);
    else /* the unit must see what threads have stored or copied */
        text_put(m->t, source_is_async(m) && products_follow(m, v) ? "proxy_fence(); %s\n" : "%s\n", m->d->barrier);
}

/* A commit, or a wait for batches. */
static void emit_batch(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    bool products = i->kind == ASYNC_PRODUCTS;
    const char *what = products ? "products" : "copies";
    if (products ? !source_is_async(m) : m->d->copies != COPIES_ASYNC)
        return;
    source_line(m);
    if (products)
        m->fenced = false;
    if (i->op == L_COMMIT)
        text_put(m->t, "%s_commit();\n", what);
    else
        text_put(m->t, "%s_wait<%" PRIu64 ">();\n", what, i->imm);
    if (products && i->op == L_WAIT)
        source_async_resolve(m, v);
}

static bool emit_synchronization(struct emitter *m, val v)
{
    switch (m->k->inst[v].op) {
    case L_BARRIER:
        emit_barrier(m, v);
        return true;
    case L_ARRIVE:
        source_arrive(m, v);
        return true;
    case L_AWAIT:
        source_await(m, v);
        return true;
    default:
        emit_batch(m, v);
        return true;
    }
}

/* ---- memory ---- */

static bool emit_load(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    if (load_elements(m->k, i) > 1)
        return source_refuse(m, "a load of several adjacent elements");
    if (i->cols && m->unit)
        source_matrix_load(m, v);
    else if (m->uniform && source_is_broadcast(m, v))
        source_broadcast(m, v);
    else
        source_each_element(m, v, source_load);
    return true;
}

/* A word of blocks in order. */
static void emit_word(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char at[MAX_OPERAND], x[MAX_OPERAND];
    bool fits;
    source_index(m, i->a, &fits, at);
    if (i->op == L_RECEIVE) {
        source_declare(m, v);
        text_put(m->t, "receive(b%u + %s, %s);\n", (uint32_t)i->imm, at, i->b ? source_operand(m, i->b, x) : "true");
        return;
    }
    source_line(m);
    if (i->c)
        text_put(m->t, "if (%s) ", source_operand(m, i->c, x));
    text_put(m->t, "publish(b%u + %s, %s);\n", (uint32_t)i->imm, at, source_operand(m, i->b, x));
}

static bool emit_memory(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    switch (i->op) {
    case L_LOAD:
        return emit_load(m, v);
    case L_COPY:
        source_copy(m, v);
        return true;
    case L_COPY_PANEL:
        source_copy_panel(m, v);
        return true;
    case L_PUBLISH:
    case L_RECEIVE:
        emit_word(m, v);
        return true;
    default:
        (m->k->inst[i->b].cols && m->unit ? source_matrix_store : source_store)(m, v);
        return true;
    }
}

/* ---- tiles ---- */

static void put_copy(struct emitter *m, val v)
{
    char x[MAX_OPERAND];
    source_operand(m, m->k->inst[v].a, x);
    source_declare(m, v);
    text_put(m->t, "%s;\n", x);
}

static void put_columns(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    char x[MAX_OPERAND];
    unsigned first = (unsigned)i->imm;
    if (m->unit)
        first = first / m->unit->caps.n * m->unit->sum.elements;
    m->col += first;
    source_operand(m, i->a, x);
    m->col -= first;
    source_declare(m, v);
    text_put(m->t, "%s;\n", x);
}

/* The number of a tile's row or column. */
static void put_number(struct emitter *m, val v)
{
    if (m->unit) {
        source_matrix_number(m, v);
        return;
    }
    source_declare(m, v);
    text_put(m->t, "i64(%u);\n", m->k->inst[v].kind == TILE_ROWS ? m->row : m->col);
}

/* Is product v of the same rows of its first operand as the instruction before it, a product too, on which it does not
 * depend?  Only of kernels that multiply what they have copied: what other kernels load meanwhile needs registers. */
static bool joins_products(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v], *before = i - 1;
    return m->copying && before->op == L_MMA && before->a == i->a && before->rows == i->rows && i->c < v - 1 &&
           m->k->inst[i->c].op != L_MMA;
}

/* Emits the elements of products with the same rows together: row by row, every other row from its end.  So each
 * multiply-add has an operand of the one before it, which NVIDIA's compiler then lets it take from where that had read
 * it, not from the registers' banks once more: those have room for two operands at a time. */
static void emit_products(struct emitter *m, val first)
{
    val end = first + 1;
    unsigned columns = m->k->inst[first].cols;
    for (; end < m->k->ninst && m->k->inst[end].op == L_MMA && joins_products(m, end); end++)
        columns += m->k->inst[end].cols;
    for (m->row = 0; m->row < m->k->inst[first].rows; m->row++)
        for (unsigned n = 0; n < columns; n++) {
            val v = first;
            m->col = m->copying && m->row % 2 ? columns - 1 - n : n;
            for (; m->col >= m->k->inst[v].cols; v++)
                m->col -= m->k->inst[v].cols;
            source_mma(m, v);
        }
    m->row = m->col = 0;
}

static bool emit_tile(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    switch (i->op) {
    case L_COLUMNS:
        if (!source_matrix_in_place(m, v))
            source_each_element(m, v, put_columns);
        return true;
    case L_OUT:
    case L_SPLAT:
        if (!source_matrix_in_place(m, v))
            source_each_element(m, v, source_is_opaque(m) && i->op == L_SPLAT ? source_opaque_splat : put_copy);
        return true;
    case L_INDEX:
        source_each_element(m, v, put_number);
        return true;
    case L_MMA:
        if (m->unit)
            source_matrix_mma(m, v);
        else if (!joins_products(m, v))
            emit_products(m, v);
        return true;
    case L_LANE_REDUCE:
        (i->cols ? source_matrix_fold : source_fold)(m, v);
        return true;
    default:
        source_interleave(m, v);
        return true;
    }
}

/* ---- primitives ---- */

/* The number of a subgroup; `uniform` tells the compiler that all lanes have the same value. */
static bool is_subgroup_number(const struct emitter *m, const struct linst *i)
{
    const struct linst *a = &m->k->inst[i->a], *b = &m->k->inst[i->b];
    return i->op == L_OP(P_DIV) && a->op == L_LOOP && a->kind == LOOP_BLOCK && b->op == L_CONST && a->rows &&
           b->imm == a->rows;
}

static bool emit_primitive(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    if (i->op < L_PRIM || i->op >= L_PRIM + P_COUNT)
        return source_refuse(m, "an instruction that has no text");
    if (source_is_async(m) && is_subgroup_number(m, i)) {
        source_declare(m, v);
        text_put(m->t, "uniform(i32(t / %uu));\n", m->unit->caps.subgroup);
    } else if (m->unit && m->role[v] == ROLE_A) {
        source_matrix_factor(m, v);
    } else {
        source_each_element(m, v, source_prim);
    }
    return true;
}

/* ---- any instruction ---- */

static bool emit_by_subject(struct emitter *m, val v)
{
    switch (m->k->inst[v].op) {
    case L_CONST: /* emitted where they are used */
    case L_CARRY:
    case L_NEXT:
    case L_PREFETCH: /* GPU threads hide latency by themselves */
        return true;
    case L_SYNC:
    case L_SLOT:
    case L_LOOP:
    case L_IF:
    case L_END:
        return emit_control(m, v);
    case L_COMMIT:
    case L_WAIT:
    case L_BARRIER:
    case L_ARRIVE:
    case L_AWAIT:
        return emit_synchronization(m, v);
    case L_LOAD:
    case L_STORE:
    case L_ATOMIC:
    case L_COPY:
    case L_COPY_PANEL:
    case L_PUBLISH:
    case L_RECEIVE:
        return emit_memory(m, v);
    case L_COLUMNS:
    case L_OUT:
    case L_SPLAT:
    case L_INDEX:
    case L_MMA:
    case L_LANE_REDUCE:
    case L_INTERLEAVE:
        return emit_tile(m, v);
    default:
        return emit_primitive(m, v);
    }
}

bool source_inst(struct emitter *m, val v)
{
    unsigned op = m->k->inst[v].op;
    if (!m->needed[v])
        return true;
    if (m->copies && (op == L_WAIT || op == L_BARRIER || op == L_LOOP || op == L_IF || op == L_END))
        source_land(m, v);
    if (m->barrier[v]) {
        source_line(m);
        text_put(m->t, "%s\n", m->d->barrier);
    }
    return emit_by_subject(m, v);
}
