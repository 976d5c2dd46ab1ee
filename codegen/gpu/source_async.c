/* Tiles for a matrix unit that reads its factors from panels in shared memory and works asynchronously (NVIDIA's
 * wgmma).
 *
 * A factor is a descriptor of its tile's place, in panels with 128-byte swizzle.  Sums are variables that products add
 * to in place: the unit writes them after the statement, so a copy of such a variable could have the old value.  So
 * products are added in place to sums that have no other use; other tiles are computed element by element, from sums
 * whose products are complete.  In kernels that the unit cannot process each thread has the whole of every tile. */
#include "emit_source.h"
#include <inttypes.h>
#include <string.h>

/* DEPTH: columns of the contraction of one product.  COLUMNS: columns of a fragment of the sums. */
enum { DEPTH = 16, COLUMNS = 8 };

static const struct lbuf *panels_of(const struct emitter *m, const struct linst *load) { return &m->k->buf[load->imm]; }

/* Are rows in shared memory along the contraction? */
static bool along_contraction(const struct linst *load, enum source_role role)
{
    return (role == ROLE_A) == (load->kind == TILE_ROWS);
}

/* ---- places ---- */

/* *out: by how much an element's place in a buffer of panels increases if its index increases by `by`.  This must be a
 * whole number of matrices, of groups of eight rows, of panels, or of `least` columns within a panel; else returns
 * false. */
static bool panel_step(const struct lbuf *b, int64_t by, int64_t min, int64_t *out)
{
    int64_t rows = b->panel_rows, cols = b->id, row, col;
    int64_t whole = by / (rows * cols) * (rows * cols);
    by -= whole;
    row = by / cols;
    col = by % cols;
    *out = whole + row * PANEL_COLUMNS + col / PANEL_COLUMNS * (rows * PANEL_COLUMNS) + col % PANEL_COLUMNS;
    return row % PANEL_ROWS == 0 && col % min == 0;
}

/* The place where a factor's tile starts, as a linear expression.  Returns false if a descriptor cannot express it. */
static bool factor_start(const struct emitter *m, const struct linst *load, enum source_role role, struct linear *l)
{
    int64_t min = along_contraction(load, role) ? DEPTH : PANEL_COLUMNS;
    bool ok = source_linear(m->k, load->a, l) && l->constant >= 0 &&
              panel_step(panels_of(m, load), l->constant, min, &l->constant);
    for (unsigned t = 0; t < l->n && ok; t++)
        ok = panel_step(panels_of(m, load), l->by[t], PANEL_COLUMNS, &l->by[t]);
    return ok;
}

/* The expression as text, modulo 2^32. */
static void put_linear(const struct emitter *m, const struct linear *l, struct text *t)
{
    char x[MAX_OPERAND];
    text_put(t, "%uu", (unsigned)l->constant);
    for (unsigned i = 0; i < l->n; i++)
        text_put(t, " + u32(%s) * %uu", source_operand(m, l->term[i], x), (unsigned)l->by[i]);
}

/* Multiples of whole matrices do not change in panel_place.  They are split off, so that compilers can move what
 * depends on no loop out of the loops. */
static void split_matrices(const struct lbuf *b, const struct linear *l, struct linear *whole, struct linear *rest)
{
    int64_t matrix = (int64_t)b->panel_rows * b->id;
    *whole = *rest = (struct linear){0};
    whole->constant = l->constant / matrix * matrix;
    rest->constant = l->constant - whole->constant;
    for (unsigned i = 0; i < l->n; i++) {
        struct linear *to = l->by[i] % matrix ? rest : whole;
        to->term[to->n] = l->term[i];
        to->by[to->n++] = l->by[i];
    }
}

bool source_panel_place(const struct emitter *m, uint32_t b, val index, char *out, size_t size)
{
    const struct lbuf *l = &m->k->buf[b];
    struct linear all, whole, rest;
    struct text t = {0};
    if (!source_is_async(m) || !l->panel_rows)
        return false;
    if (!source_linear(m->k, index, &all))
        all = (struct linear){.n = 1, .term = {index}, .by = {1}};
    split_matrices(l, &all, &whole, &rest);
    text_put(&t, "(");
    put_linear(m, &whole, &t);
    text_put(&t, " + panel_place<%u, %u>(", l->panel_rows, l->id);
    put_linear(m, &rest, &t);
    text_put(&t, "))");
    snprintf(out, size, "%s", t.s ? t.s : "");
    m->t->failed |= t.failed || t.len >= size;
    mem_free(t.s);
    return true;
}

/* ---- which kernels ---- */

static bool is_sum(const struct emitter *m, val v) { return m->role[v] == ROLE_SUM || m->role[v] == ROLE_SUM_USED; }

static bool make_sum(struct emitter *m, val v, val of, uint32_t at)
{
    m->role[v] = ROLE_SUM;
    m->sums[v] = (struct sums){.of = of, .at = at};
    return m->k->inst[v].dtype == KL_F32 && m->k->inst[v].rows == m->unit->caps.m && m->k->inst[v].cols % COLUMNS == 0;
}

/* Reads the elements of v, which products may not change before. */
static bool read_sum(struct emitter *m, val v)
{
    if (is_sum(m, v))
        m->role[v] = ROLE_SUM_USED;
    return source_matrix_whole(m, v) && !m->sums[v].changed;
}

/* May products be added to v in place?  Then that is its only use. */
static bool in_place(const struct emitter *m, val v)
{
    bool variables = m->k->inst[v].op == L_CARRY || m->k->inst[v].op == L_MMA;
    return variables && m->role[v] == ROLE_SUM && !m->sums[v].changed;
}

/* A tile that is computed element by element. */
static bool take_elements(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    bool ok = i->op == L_INDEX || (read_sum(m, i->a) && read_sum(m, i->b) && read_sum(m, i->c));
    if (m->role[v] != ROLE_A && !(ok = ok && source_matrix_shape(m, v)))
        return false;
    m->sums[v] = (struct sums){.of = v};
    return ok;
}

static bool take_factor(struct emitter *m, val v, enum source_role role)
{
    const struct linst *i = &m->k->inst[v];
    struct linear l;
    bool depth = (role == ROLE_A ? i->cols : i->rows) == DEPTH;
    if (role == ROLE_A && i->op == L_OP(P_CAST))
        return m->role[v] == ROLE_A && depth;
    if (i->op != L_LOAD || !depth || m->k->inst[i->d].imm != panels_of(m, i)->id || (m->role[v] && m->role[v] != role))
        return false;
    m->role[v] = (uint8_t)role;
    return factor_start(m, i, role, &l);
}

static bool take_product(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct mma_caps *u = &m->unit->caps;
    if (i->kind != MMA_ASYNC || !is_sum(m, i->c) || i->cols > u->max_n || !take_factor(m, i->a, ROLE_A) ||
        !take_factor(m, i->b, ROLE_B) || !(u->dtypes >> m->k->inst[i->a].dtype & 1))
        return false;
    if (!in_place(m, i->c))
        return read_sum(m, i->c) && make_sum(m, v, v, 0);
    m->sums[i->c].changed = true;
    return make_sum(m, v, m->sums[i->c].of, m->sums[i->c].at);
}

/* A next value that is not in the variables of its carry is copied to them. */
static bool take_next(struct emitter *m, const struct linst *i)
{
    if (!m->k->inst[i->b].cols || !is_sum(m, i->b) || m->sums[i->b].of != i->a)
        return read_sum(m, i->b);
    m->sums[i->b].changed = true;
    return m->role[i->b] == ROLE_SUM;
}

static bool async_take_copy(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    switch (i->op) {
    case L_LOOP:
        return i->kind != LOOP_BLOCK || i->rows == m->unit->caps.subgroup;
    case L_LOAD:
        if (!i->cols || panels_of(m, i)->panel_rows)
            return !panels_of(m, i)->panel_rows == !i->cols;
        return source_matrix_stride(m, i->d) && take_elements(m, v);
    case L_MMA:
        return take_product(m, v);
    case L_OUT:
        if (!is_sum(m, i->a))
            return !i->cols || take_elements(m, v);
        return make_sum(m, v, m->sums[i->a].of, m->sums[i->a].at);
    case L_COLUMNS:
        return is_sum(m, i->a) && read_sum(m, i->a) && i->imm % COLUMNS == 0 &&
               make_sum(m, v, m->sums[i->a].of,
                        m->sums[i->a].at + (uint32_t)i->imm / COLUMNS * m->unit->sum.elements);
    case L_LANE_REDUCE:
        return !i->cols || (source_matrix_folds(m, i) && take_elements(m, v));
    case L_NEXT:
        return take_next(m, i);
    case L_STORE:
    case L_ATOMIC:
        return !m->k->buf[i->imm].panel_rows &&
               (!m->k->inst[i->b].cols || (read_sum(m, i->b) && read_sum(m, i->c) && source_matrix_stride(m, i->d)));
    default:
        return !i->cols || take_elements(m, v);
    }
}

bool source_async(struct emitter *m)
{
    bool products = false, ok = true;
    for (val v = 1; v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        products |= i->op == L_MMA;
        ok &= i->op != L_MMA || m->k->inst[i->a].op != L_OP(P_CAST) || source_matrix_chained(m, i->a);
    }
    for (val v = 1; ok && products && v < m->k->ninst; v++)
        ok = async_take_copy(m, v);
    for (val v = 1; ok && products && v < m->k->ninst; v++)
        ok = !(m->k->inst[v].op == L_LOAD && m->k->inst[v].cols && !m->role[v]);
    return ok && products;
}

bool source_matrix_in_place(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    if (!source_is_async(m))
        return false;
    return i->op == L_NEXT ? m->k->inst[i->b].cols && is_sum(m, i->b) && m->sums[i->b].of == i->a
                           : i->cols && is_sum(m, v) && m->sums[v].of != v;
}

/* ---- text ---- */

void source_async_load(struct emitter *m, val v)
{
    enum { UNIT = 8 };              /* elements */
    const struct linst *i = &m->k->inst[v];
    enum source_role role = (enum source_role)m->role[v];
    struct linear l;
    factor_start(m, i, role, &l);
    source_line(m);
    /* what is added to the buffer's descriptor is in units of 16 bytes; all steps are multiples of it */
    l.constant /= UNIT;
    for (unsigned t = 0; t < l.n; t++)
        l.by[t] /= UNIT;
    text_put(m->t, "const u64 v%u = panel_descriptor(b%u, %uu, ", v, (unsigned)i->imm,
             along_contraction(i, role) ? 1u : panels_of(m, i)->panel_rows * 8u);
    put_linear(m, &l, m->t);
    text_put(m->t, ");\n");
}

static void put_sums(struct emitter *m, struct sums first, unsigned n, const char *form)
{
    for (unsigned e = 0; e < n; e++) {
        text_put(m->t, e ? ", " : "");
        text_put(m->t, form, first.of, first.at + e);
    }
}

/* An empty statement, which may change the sums of product v: a compiler moves no access to them over it. */
static void pin_sums(struct emitter *m, val v)
{
    source_line(m);
    text_put(m->t, "asm volatile(\"\" : ");
    put_sums(m, m->sums[v], source_elements(m, v), "\"+f\"(v%u_%u)");
    text_put(m->t, " :: \"memory\");\n");
}

/* Are the sums that product v adds to all zero?  Then it is stored instead. */
static bool adds_to_zeros(const struct emitter *m, val v)
{
    const struct linst *c = &m->k->inst[m->k->inst[v].c];
    return m->sums[v].of == v && c->op == L_SPLAT && m->k->inst[c->a].op == L_CONST && !m->k->inst[c->a].imm;
}

/* Gives the sums of product v, which are not those of its c, their first values. */
static void begin_sums(struct emitter *m, val v)
{
    bool zeros = adds_to_zeros(m, v);
    for (unsigned e = 0; e < source_elements(m, v); e++) {
        struct sums c = source_matrix_place(m, m->k->inst[v].c, e);
        source_line(m);
        if (zeros)
            text_put(m->t, "f32 v%u_%u;\n", v, e);
        else
            text_put(m->t, "f32 v%u_%u = v%u_%u;\n", v, e, c.of, c.at);
    }
    if (!zeros)
        pin_sums(m, v);
    m->sums[v].begun = true;
    m->fenced = false;
}

/* The same for product v and those of its batch whose c is known at v.  If it were done between two products, the
 * compiler would wait for the first one. */
static void begin_batch(struct emitter *m, val v)
{
    for (val w = v; w < m->k->ninst; w++) {
        const struct linst *i = &m->k->inst[w];
        if (i->op == L_COMMIT || i->op == L_LOOP || i->op == L_IF || i->op == L_END)
            return;
        if (i->op == L_MMA && m->sums[w].of == w && !m->sums[w].begun && i->c < v)
            begin_sums(m, w);
    }
}

/* PTX's statement, which adds products to d.  Its operands: d, the descriptors of a and b, 1 if d is added to, the
 * signs of a and b, and whether the rows of a and of b are along the tile's other dimension.  a may be four registers
 * instead, of which nothing else is said. */
void source_async_mma(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v], *a = &m->k->inst[i->a], *b = &m->k->inst[i->b];
    const char *type = dtype_name(a->dtype);
    bool registers = a->op != L_LOAD;
    unsigned n = source_elements(m, v), next = n, adds = !adds_to_zeros(m, v);
    if (m->sums[v].of == v && !m->sums[v].begun)
        begin_batch(m, v);
    if (!m->fenced) { /* after registers have changed */
        source_line(m);
        text_put(m->t, "products_fence();\n");
        m->fenced = true;
    }
    source_line(m);
    text_put(m->t, "asm volatile(\"wgmma.mma_async.sync.aligned.m64n%uk16.f32.%s.%s {", i->cols, type, type);
    for (unsigned e = 0; e < n; e++)
        text_put(m->t, "%s%%%u", e ? ", " : "", e);
    if (registers)
        text_put(m->t, "}, {%%%u, %%%u, %%%u, %%%u}, ", n, n + 1, n + 2, n + 3);
    else
        text_put(m->t, "}, %%%u, ", n);
    next += registers ? 4 : 1;
    if (registers)
        text_put(m->t, "%%%u, %u, 1, 1, %d;\" : ", next, adds, !along_contraction(b, ROLE_B));
    else
        text_put(m->t, "%%%u, %u, 1, 1, %d, %d;\" : ", next, adds, !along_contraction(a, ROLE_A),
                 !along_contraction(b, ROLE_B));
    put_sums(m, m->sums[v], n, "\"+f\"(v%u_%u)");
    text_put(m->t, " : ");
    if (registers)
        put_sums(m, (struct sums){.of = i->a}, 4, "\"r\"(v%u_%u)");
    else
        text_put(m->t, "\"l\"(v%u)", i->a);
    text_put(m->t, ", \"l\"(v%u));\n", i->b);
}

/* Does another instruction than a product or a carry's next value read sums of the variables of value `of`? */
static bool is_read(const struct emitter *m, val of)
{
    for (val v = 1; v < m->k->ninst; v++)
        if (m->role[v] == ROLE_SUM_USED && m->sums[v].of == of)
            return true;
    return false;
}

/* Is v the last product of the innermost loop that is added to its variables, up to instruction `end`? */
static bool is_last(const struct emitter *m, val v, val end)
{
    for (val w = v + 1; w < end; w++)
        if (m->k->inst[w].op == L_MMA && m->sums[w].of == m->sums[v].of && m->sums[w].at == m->sums[v].at)
            return false;
    return true;
}

/* A compiler does not know that the variables change until the wait, and must not read them before.  The wait is for
 * the products of all batches but the last `left`. */
void source_async_resolve(struct emitter *m, val wait)
{
    uint64_t later = 0, left = m->k->inst[wait].imm; /* later: batches that end behind v */
    for (val v = wait; v-- > 1;) {
        const struct linst *i = &m->k->inst[v];
        if (i->op == L_LOOP || i->op == L_END)
            return;
        later += i->op == L_COMMIT && i->kind == ASYNC_PRODUCTS;
        if (i->op == L_MMA && later > left && is_last(m, v, wait) && is_read(m, m->sums[v].of))
            pin_sums(m, v);
    }
}
