/* Tiles that the subgroups of a matrix unit hold.  Each lane has the elements that matrix.c says; a variable is a
 * pair of halves, or one sum.
 *
 * A kernel uses a matrix unit if its subgroups have the unit's size, its tiles are whole ones of the unit, and it uses
 * them only in ways that this file can emit: it loads factors, multiplies them in any order, carries the sums and
 * stores them.  In other kernels with subgroups each thread has the whole of every tile. */
#include "emit_source.h"
#include <inttypes.h>
#include <string.h>

enum { NEAR = 1 << 20 };          /* limit of a stride: offsets in a tile's rows must fit 32 bits */

/* ---- which kernels ---- */

bool source_matrix_stride(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    return i->op == L_CONST && (int64_t)i->imm >= 0 && i->imm < NEAR;
}

bool source_matrix_take(struct emitter *m, val v, enum source_role role)
{
    if (m->role[v] && m->role[v] != role)
        return false;
    m->role[v] = (uint8_t)role;
    return true;
}

/* May v be a factor?  A factor is loaded with the layout of its role, so it has one role only. */
static bool is_factor(struct emitter *m, val v, enum source_role role)
{
    const struct linst *i = &m->k->inst[v];
    const struct mma_caps *c = &m->unit->caps;
    bool whole = role == ROLE_A ? i->rows % c->m == 0 && i->cols % c->k == 0 : i->rows % c->k == 0 &&
        i->cols % c->n == 0;
    return i->op == L_LOAD && whole && c->dtypes >> i->dtype & 1 && !i->b && source_matrix_stride(m, i->d) &&
        source_matrix_take(m, v, role);
}

/* May v, sums that are converted to the dtype of factors, be a factor a? */
bool source_matrix_chained(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct mma_caps *c = &m->unit->caps;
    return c->chains && i->op == L_OP(P_CAST) && m->k->inst[i->a].dtype == KL_F32 && i->rows % c->m == 0 &&
           i->cols % c->k == 0 && c->dtypes >> i->dtype & 1 && source_matrix_take(m, v, ROLE_A);
}

/* The role of a tile that is no factor, by its shape; ROLE_NONE: it is no tile of the unit. */
static enum source_role role_of_shape(const struct emitter *m, const struct linst *i)
{
    const struct mma_caps *c = &m->unit->caps;
    bool rows = i->rows % c->m == 0, cols = i->cols % c->n == 0;
    return rows && cols ? ROLE_SUM : rows && i->cols == 1 ? ROLE_COLUMN : cols && i->rows == 1 ? ROLE_ROW : ROLE_NONE;
}

bool source_matrix_whole(const struct emitter *m, val v)
{
    return !m->k->inst[v].cols || (m->role[v] && m->role[v] != ROLE_A && m->role[v] != ROLE_B);
}

/* Gives a tile that is no factor its role.  Its operands are no factors either. */
bool source_matrix_shape(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    enum source_role role = role_of_shape(m, i);
    bool operands = source_matrix_whole(m, i->a) && source_matrix_whole(m, i->b) && source_matrix_whole(m, i->c);
    return role && (operands || i->op == L_LOAD || i->op == L_INDEX) && source_matrix_take(m, v, role);
}

/* A fold is done within the lanes that have a row, or leaves whole fragments. */
bool source_matrix_folds(const struct emitter *m, const struct linst *i)
{
    return m->unit->caps.chains && i->cols && source_matrix_whole(m, i->a) && m->k->inst[i->a].cols > 1 &&
           (i->cols == 1 || i->cols % m->unit->caps.n == 0) &&
           m->k->inst[i->a].rows == m->unit->caps.m;
}

static bool has_text(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct mma_caps *c = &m->unit->caps;
    switch (i->op) {
    case L_LOOP:
        return i->kind != LOOP_BLOCK || i->rows == c->subgroup;
    case L_LOAD:
        return !i->cols || m->role[v] || (source_matrix_stride(m, i->d) && source_matrix_whole(m, i->b) &&
                                          source_matrix_shape(m, v));
    case L_MMA:
        return i->kind == MMA_ANY && m->role[i->c] == ROLE_SUM && source_matrix_take(m, v, ROLE_SUM);
    case L_COLUMNS:
        return m->role[i->a] == ROLE_SUM && i->rows == c->m && i->imm % c->n == 0 && source_matrix_shape(m, v);
    case L_LANE_REDUCE:
        return !i->cols || (source_matrix_folds(m, i) && source_matrix_shape(m, v));
    case L_NEXT:
        return !m->k->inst[i->b].cols || source_matrix_whole(m, i->b);
    case L_STORE:
        return !m->k->inst[i->b].cols || (source_matrix_whole(m, i->b) && source_matrix_whole(m, i->c) &&
                                          source_matrix_stride(m, i->d));
    default:
        return !i->cols || m->role[v] == ROLE_A || source_matrix_shape(m, v);
    }
}

/* Gives the factors of product v their roles. */
static bool take_factors(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    return (is_factor(m, i->a, ROLE_A) || source_matrix_chained(m, i->a)) && is_factor(m, i->b, ROLE_B);
}

/* Can m->unit process the kernel's tiles?  Sets their roles. */
static bool matrix_fits_unit(struct emitter *m)
{
    bool ok = true;
    memset(m->role, 0, m->k->ninst);
    for (val v = 1; ok && v < m->k->ninst; v++)
        ok = m->k->inst[v].op != L_MMA || take_factors(m, v);
    for (val v = 1; ok && v < m->k->ninst; v++)
        ok = has_text(m, v);
    return ok;
}

void source_matrix(struct emitter *m)
{
    bool products = false;
    for (val v = 1; v < m->k->ninst; v++)
        products |= m->k->inst[v].op == L_MMA;
    m->unit = products ? m->d->matrix_async : NULL;
    if (m->unit && source_async(m))
        return;
    memset(m->role, 0, m->k->ninst);
    if (source_opaque(m))
        return;
    for (unsigned i = 0; i < MMA_UNITS && products; i++) {
        m->unit = m->d->matrix[i];
        if (!m->unit || matrix_fits_unit(m))
            return;
    }
    m->unit = NULL;
}

/* ---- variables ---- */

/* number of fragments side by side along the columns */
static unsigned matrix_fragments(const struct emitter *m, val v)
{
    const struct mma_caps *c = &m->unit->caps;
    return m->k->inst[v].cols / (m->role[v] == ROLE_A ? c->k : c->n);
}

static const struct fragment *factor_fragment(const struct emitter *m, val v)
{
    const struct matrix_unit *u = m->unit;
    bool half = dtype_is_half(m->k->inst[v].dtype);
    return m->role[v] == ROLE_A ? half ? &u->a : &u->a_f32 : half ? &u->b : &u->b_f32;
}

/* Registers of one fragment. */
static unsigned matrix_registers(const struct emitter *m, val v)
{
    enum source_role role = (enum source_role)m->role[v];
    if (m->unit->opaque) /* a matrix is one variable */
        return 1;
    if (role != ROLE_A && role != ROLE_B)
        return m->unit->sum.elements;
    return factor_fragment(m, v)->elements / (dtype_is_half(m->k->inst[v].dtype) ? 2 : 1);
}

/* The number of a lane's element e of a sum among the elements with different indices along an axis. */
static unsigned axis_number(const struct fragment_axis *x, unsigned elements, unsigned e)
{
    unsigned n = 0;
    for (unsigned f = 0; f < elements; f++) {
        bool again = false;
        for (unsigned g = 0; g < f; g++)
            again |= x->at[g] == x->at[f];
        n += !again && x->at[f] < x->at[e];
    }
    return n;
}

static unsigned axis_count(const struct fragment_axis *x, unsigned elements)
{
    unsigned n = 0;
    for (unsigned e = 0; e < elements; e++)
        n = axis_number(x, elements, e) + 1 > n ? axis_number(x, elements, e) + 1 : n;
    return n;
}

/* The index of number n along the axis. */
static unsigned axis_at(const struct fragment_axis *x, unsigned elements, unsigned n)
{
    unsigned e = 0;
    while (e + 1 < elements && axis_number(x, elements, e) != n)
        e++;
    return x->at[e];
}

struct sums source_matrix_place(const struct emitter *m, val v, unsigned n)
{
    bool elsewhere = source_is_async(m) && m->sums[v].of;
    return (struct sums){.of = elsewhere ? m->sums[v].of : v, .at = n + (elsewhere ? m->sums[v].at : 0)};
}

/* The number of the variable of tile v that belongs to variable m->col of tile m->tile. */
static unsigned source_matrix_variable(const struct emitter *m, val v)
{
    const struct fragment *f = &m->unit->sum;
    unsigned part = m->col / f->elements, e = m->col % f->elements, role = m->role[v];
    if (!m->tile || role == m->role[m->tile] || (role != ROLE_COLUMN && role != ROLE_ROW))
        return m->col;
    unsigned across = m->k->inst[m->tile].cols / m->unit->caps.n;
    return role == ROLE_COLUMN
               ? part / across * axis_count(&f->row, f->elements) + axis_number(&f->row, f->elements, e)
               : part % across * axis_count(&f->col, f->elements) + axis_number(&f->col, f->elements, e);
}

void source_matrix_name(const struct emitter *m, val v, char out[MAX_OPERAND])
{
    struct sums p = source_matrix_place(m, v, source_matrix_variable(m, v));
    snprintf(out, MAX_OPERAND, "v%u_%u", p.of, p.at);
}

/* The row and the column of variable n of a tile that is no factor, from the lane's first element on. */
static void variable_at(const struct emitter *m, val v, unsigned n, unsigned *row, unsigned *col)
{
    const struct fragment *f = &m->unit->sum;
    const struct mma_caps *c = &m->unit->caps;
    unsigned rows = axis_count(&f->row, f->elements), cols = axis_count(&f->col, f->elements);
    unsigned across = m->k->inst[v].cols / c->n;
    *row = *col = 0;
    if (m->role[v] == ROLE_COLUMN) {
        *row = n / rows * c->m + axis_at(&f->row, f->elements, n % rows);
    } else if (m->role[v] == ROLE_ROW) {
        *col = n / cols * c->n + axis_at(&f->col, f->elements, n % cols);
    } else {
        *row = n / f->elements / across * c->m + f->row.at[n % f->elements];
        *col = n / f->elements % across * c->n + f->col.at[n % f->elements];
    }
}

unsigned source_elements(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    if (!i->cols)
        return 1;
    if (!m->unit)
        return (unsigned)i->rows * i->cols;
    if (source_is_async(m) && (m->role[v] == ROLE_A || m->role[v] == ROLE_B) && i->op == L_LOAD)
        return 1; /* such a factor is a descriptor */
    const struct fragment *f = &m->unit->sum;
    if (m->role[v] == ROLE_COLUMN)
        return i->rows / m->unit->caps.m * axis_count(&f->row, f->elements);
    if (m->role[v] == ROLE_ROW)
        return i->cols / m->unit->caps.n * axis_count(&f->col, f->elements);
    return (unsigned)i->rows / (m->role[v] == ROLE_B ? m->unit->caps.k : m->unit->caps.m) * matrix_fragments(m, v) *
        matrix_registers(m, v);
}

/* ---- memory ---- */

/* The largest power of two that divides the value, up to 2^16, as its logarithm. */
static unsigned log2_divisor(const struct kernel *k, val v, int depth)
{
    const struct linst *i = &k->inst[v];
    unsigned n = 0, a, b;
    if (i->op == L_CONST) {
        while (n < 16 && !(i->imm >> n & 1))
            n++;
        return n;
    }
    if (!depth-- || (i->op != L_LOOP && i->op != L_OP(P_MUL) && i->op != L_OP(P_ADD) && i->op != L_OP(P_SUB)))
        return 0;
    a = log2_divisor(k, i->a, depth);
    if (i->op == L_LOOP) {
        while (n < 16 && !(i->imm >> n & 1))
            n++;
        return n < a ? n : a;
    }
    b = log2_divisor(k, i->b, depth);
    if (i->op == L_OP(P_MUL))
        return a + b < 16 ? a + b : 16;
    return a < b ? a : b;
}

/* Elements from row to row and from column to column of one tile's access. */
struct fragment_layout { const struct fragment *f; int64_t row, col; };

static struct fragment_layout layout_of(const struct emitter *m, const struct linst *i, const struct fragment *f)
{
    int64_t stride = (int64_t)m->k->inst[i->d].imm;
    return (struct fragment_layout){f, i->kind == TILE_ROWS ? stride : 1, i->kind == TILE_ROWS ? 1 : stride};
}

/* Begins the declaration of the lane's first index, variable pV of access V. */
static void declare_place(struct emitter *m, val v)
{
    bool fits;
    char a[MAX_OPERAND];
    source_index(m, m->k->inst[v].a, &fits, a);
    source_line(m);
    text_put(m->t, "%s%s p%u = %s", m->d->local, fits ? "i32" : "i64", v, a);
}

/* Ends it, where each lane loads or stores the elements that it holds. */
static void put_own_place(struct emitter *m, const struct fragment_layout *l)
{
    const struct fragment_axis *r = &l->f->row, *c = &l->f->col;
    text_put(m->t, " + i32(t / %uu %% %uu) * %" PRId64 " + i32(t / %uu %% %uu) * %" PRId64 ";\n", r->div, r->mod,
             r->scale * l->row, c->div,
             c->mod, c->scale * l->col);
}

/* Adds the lane's part of an index along an axis whose elements are `by` apart. */
static void put_lane(struct emitter *m, const struct fragment_axis *x, int64_t by)
{
    text_put(m->t, " + i32(t / %uu %% %uu) * %" PRId64, x->div, x->mod, x->scale * by);
    if (x->div2)
        text_put(m->t, " + i32(t / %uu %% %uu) * %" PRId64, x->div2, x->mod2, x->scale2 * by);
}

/* Declares the first index of a lane that accesses the elements it holds of tile v, which is no factor. */
static void declare_element_place(struct emitter *m, val access, val v, const struct fragment_layout *l)
{
    declare_place(m, access);
    if (m->role[v] != ROLE_ROW)
        put_lane(m, &l->f->row, l->row);
    if (m->role[v] != ROLE_COLUMN)
        put_lane(m, &l->f->col, l->col);
    text_put(m->t, ";\n");
}

static int64_t element_offset(const struct emitter *m, val v, unsigned n, const struct fragment_layout *l)
{
    unsigned row, col;
    variable_at(m, v, n, &row, &col);
    return row * l->row + col * l->col;
}

/* Each lane loads its elements of a tile that is no factor. */
static void load_elements_of(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    struct fragment_layout l = layout_of(m, i, &m->unit->sum);
    char p[MAX_OPERAND];
    bool is_bool = i->dtype == KL_BOOL;
    declare_element_place(m, v, v, &l);
    m->tile = v;
    for (m->col = 0; m->col < source_elements(m, v); m->col++) {
        source_declare(m, v);
        if (i->b)
            text_put(m->t, "%s ? ", source_operand(m, i->b, p));
        text_put(m->t, "b%u[p%u + %" PRId64 "]%s", (unsigned)i->imm, v, element_offset(m, v, m->col, &l),
                 is_bool ? " != u8(0)" : "");
        if (i->b)
            text_put(m->t, is_bool ? " : false" : " : %s(0)", dtype_name(i->dtype));
        text_put(m->t, ";\n");
    }
    m->col = m->tile = 0;
}

/* The distance of element e of the fragment at (row, col) from the lane's first index. */
static int64_t fragment_offset(const struct fragment_layout *l, unsigned row, unsigned col, unsigned e)
{
    return (row + l->f->row.at[e]) * l->row + (col + l->f->col.at[e]) * l->col;
}

/* Loads two elements, from variable n on: two f32, or the halves of a register as a pair of adjacent elements or one by
 * one. */
static void load_pair(struct emitter *m, val v, unsigned n, const struct fragment_layout *l, unsigned row, unsigned col,
                      unsigned e, bool pairs)
{
    unsigned b = (unsigned)m->k->inst[v].imm;
    int64_t at = fragment_offset(l, row, col, e), next = fragment_offset(l, row, col, e + 1);
    source_line(m);
    if (!dtype_is_half(m->k->inst[v].dtype))
        text_put(m->t, "%sf32 v%u_%u = b%u[p%u + %" PRId64 "], v%u_%u = b%u[p%u + %" PRId64 "];\n", m->d->local, v, n,
                 b, v, at, v, n + 1, b, v, next);
    else if (pairs)
        text_put(m->t, "%su32 v%u_%u = word_at(b%u + p%u + %" PRId64 ");\n", m->d->local, v, n, b, v, at);
    else
        text_put(m->t, "%su32 v%u_%u = u32(b%u[p%u + %" PRId64 "]) | u32(b%u[p%u + %" PRId64 "]) << 16;\n", m->d->local,
                 v, n, b, v, at, b, v,
                 next);
}

/* Loads the two registers of a fragment whose four halves are adjacent. */
static void load_quad(struct emitter *m, val v, unsigned n, const struct fragment_layout *l, unsigned row, unsigned col)
{
    source_line(m);
    text_put(m->t, "%su64 w%u_%u = *(const vector_8 *)(b%u + p%u + %" PRId64 ");\n", m->d->local, v, n,
             (unsigned)m->k->inst[v].imm, v, fragment_offset(l, row, col, 0));
    source_line(m);
    text_put(m->t, "%su32 v%u_%u = u32(w%u_%u), v%u_%u = u32(w%u_%u >> 32);\n", m->d->local, v, n, v, n, v, n + 1, v,
             n);
}

/* Loads `count` registers, which are one fragment or two side by side, from 8x8 matrices.  Each lane gives the address
 * of one row: matrix number lane / 8. */
static void load_rows(struct emitter *m, val v, unsigned n, const struct fragment_layout *l, unsigned count,
                      unsigned row,
                      unsigned col, bool transposed)
{
    source_line(m);
    text_put(m->t, "u32 ");
    for (unsigned r = 0; r < count; r++)
        text_put(m->t, "v%u_%u%s", v, n + r, r + 1 < count ? ", " : "; ");
    text_put(m->t, "rows_%u%s(", count, transposed ? "_transposed" : "");
    for (unsigned r = 0; r < count; r++)
        text_put(m->t, "v%u_%u, ", v, n + r);
    text_put(m->t, "b%u + p%u + %" PRId64 ");\n", (unsigned)m->k->inst[v].imm, v, fragment_offset(l, row, col, 0));
}

void source_matrix_load(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    enum source_role role = (enum source_role)m->role[v];
    if (m->unit->opaque) {
        source_opaque_load(m, v);
        return;
    }
    if (role != ROLE_A && role != ROLE_B) {
        load_elements_of(m, v);
        return;
    }
    if (source_is_async(m)) {
        source_async_load(m, v);
        return;
    }
    const struct mma_caps *c = &m->unit->caps;
    struct fragment_layout l = layout_of(m, i, factor_fragment(m, v));
    unsigned rows = role == ROLE_A ? c->m : c->k, cols = role == ROLE_A ? c->k : c->n, n = 0;
    int64_t along = role == ROLE_A ? l.col : l.row, stride = (int64_t)m->k->inst[i->d].imm;
    bool shared = m->k->buf[i->imm].role == BUF_SHARED;
    bool pairs = along == 1 && stride % 2 == 0 && shared && log2_divisor(m->k, i->a, 16) >= 1;
    bool quads = pairs && m->d->copies == COPIES_LATE && matrix_registers(m, v) == 2 && fragment_offset(&l, 0, 0,
                                                                                                        3) == 3 &&
                 stride % 4 == 0 && log2_divisor(m->k, i->a, 16) >= 2;
    bool by_rows = m->unit->rows && stride % 8 == 0 && shared && log2_divisor(m->k, i->a, 16) >= 3;
    declare_place(m, v);
    if (by_rows)
        text_put(m->t,
                 " + i32(t %% 8u) * %" PRId64 " + i32(t / 8u %% 2u) * %" PRId64 " + i32(t / 16u %% 2u) * %" PRId64
                 ";\n",
                 stride, fragment_offset(&l, 0, 0, 2), l.f->elements > 4 ? fragment_offset(&l, 0, 0, 4)
                     : fragment_offset(&l, 0, cols, 0));
    else
        put_own_place(m, &l);
    for (unsigned row = 0; row < i->rows; row += rows)
        for (unsigned col = 0; col < i->cols; col += cols) {
            unsigned two = l.f->elements == 4 && col + cols < i->cols ? 2 : 1; /* number of fragments that 4 registers
                                                                                  hold */
            if (by_rows) {
                load_rows(m, v, n, &l, two * l.f->elements / 2, row, col, along != 1);
                n += two * l.f->elements / 2;
                col += (two - 1) * cols;
                continue;
            }
            if (quads)
                load_quad(m, v, n, &l, row, col);
            for (unsigned e = 0; e < l.f->elements && !quads; e += 2)
                load_pair(m, v, n + e / (l.f->elements / matrix_registers(m, v)), &l, row, col, e, pairs);
            n += matrix_registers(m, v);
        }
}

/* The condition on which a lane stores element m->col; false: there is none.  Of the lanes that have the same element
 * of a column or a row, the first one stores it. */
static bool put_store_condition(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    unsigned role = m->role[i->b];
    const struct fragment_axis *x = role == ROLE_COLUMN ? &m->unit->sum.col : &m->unit->sum.row;
    char p[MAX_OPERAND];
    bool one = role == ROLE_COLUMN || role == ROLE_ROW;
    if (one || i->c)
        text_put(m->t, "if (");
    if (one)
        text_put(m->t, "t / %uu %% %uu == 0u", x->div, x->mod);
    if (one && x->div2)
        text_put(m->t, " && t / %uu %% %uu == 0u", x->div2, x->mod2);
    if (i->c)
        text_put(m->t, "%s%s", one ? " && " : "", source_operand(m, i->c, p));
    text_put(m->t, one || i->c ? ") " : "");
    return one || i->c;
}

/* Adjacent elements of a row that a lane has are stored at once: as many as it has side by side, if their first
 * index is a multiple of that. */
static unsigned elements_together(const struct emitter *m, val v)
{
    enum { MAX_COUNT = 4 };
    const struct linst *i = &m->k->inst[v];
    const struct fragment *f = &m->unit->sum;
    unsigned side = 1, n = 1, whole = 1u << log2_divisor(m->k, i->a, 16);
    if (!m->d->packs || i->kind != TILE_ROWS || m->k->buf[i->imm].role != BUF_SHARED ||
        m->k->inst[i->b].dtype == KL_BOOL)
        return 1;
    while (side < f->elements && f->row.at[side] == f->row.at[0] && f->col.at[side] == f->col.at[0] + side)
        side++;
    while (2 * n <= side && 2 * n <= MAX_COUNT && whole % (2 * n) == 0 && m->k->inst[i->d].imm % (2 * n) == 0 &&
           f->col.scale % (2 * n) == 0)
        n *= 2;
    return n;
}

void source_matrix_store(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v], *x = &m->k->inst[i->b];
    if (m->unit->opaque) {
        source_opaque_store(m, v);
        return;
    }
    struct fragment_layout l = layout_of(m, i, &m->unit->sum);
    val of = source_matrix_place(m, i->b, 0).of;
    unsigned first = source_matrix_place(m, i->b, 0).at, count = source_elements(m, i->b);
    const char *type = dtype_name(x->dtype);
    unsigned max = elements_together(m, v);
    declare_element_place(m, v, i->b, &l);
    m->tile = i->b;
    for (m->col = 0; m->col < count; m->col++) {
        unsigned n = m->col;
        int64_t at = element_offset(m, i->b, n, &l);
        unsigned together = 1;
        while (together < max && n + together < count && element_offset(m, i->b, n + together, &l) == at + together)
            together++;
        source_line(m);
        put_store_condition(m, v);
        if (together < max || max == 1) {
            text_put(m->t, x->dtype == KL_BOOL ? "b%u[p%u + %" PRId64 "] = u8(v%u_%u);\n"
                     : "b%u[p%u + %" PRId64 "] = v%u_%u;\n", (unsigned)i->imm, v, at, of, first + n);
            continue;
        }
        text_put(m->t, "*(pack<%s, %u> *)(b%u + p%u + %" PRId64 ") = pack<%s, %u>{{", type, max, (unsigned)i->imm, v,
                 at, type, max);
        for (unsigned e = 0; e < max; e++)
            text_put(m->t, "v%u_%u%s", of, first + n + e, e + 1 < max ? ", " : "}};\n");
        m->col += max - 1;
    }
    m->col = m->tile = 0;
}

void source_matrix_number(struct emitter *m, val v)
{
    const struct fragment *f = &m->unit->sum;
    unsigned row, col;
    bool rows = m->k->inst[v].kind == TILE_ROWS;
    variable_at(m, v, m->col, &row, &col);
    source_declare(m, v);
    text_put(m->t, "i64(%u", rows ? row : col);
    put_lane(m, rows ? &f->row : &f->col, 1);
    text_put(m->t, ");\n");
}

/* ---- folds ---- */

void source_fold_variables(struct emitter *m, val v, unsigned count, unsigned left)
{
    for (unsigned h = count / 2; h >= left; h /= 2)
        for (unsigned y = 0; y < h; y++) {
            char low[16], high[16];
            snprintf(low, sizeof low, "y%u", y);
            snprintf(high, sizeof high, "y%u", y + h);
            source_line(m);
            source_fold_step(m, v, low, high);
            text_put(m->t, "\n");
        }
}

/* The lanes that have a row: each has some adjacent columns of a fragment, the variables y[0 .. count). */
static void fold_lanes(struct emitter *m, val v, unsigned count)
{
    const struct fragment_axis *x = &m->unit->sum.col;
    unsigned lanes = x->div * x->mod > m->d->shuffle ? x->div * x->mod : m->d->shuffle;
    for (unsigned h = x->mod / 2; h; h /= 2)
        for (unsigned y = 0; y < count; y++) {
            char low[16];
            snprintf(low, sizeof low, "y%u", y);
            source_line(m);
            text_put(m->t, "{ const %s z = lane_across(y%u, %u, %u); ", dtype_name(m->k->inst[v].dtype), y, h * x->div,
                     lanes);
            source_fold_step(m, v, low, "z");
            text_put(m->t, " }\n");
        }
    source_fold_variables(m, v, count, 1);
}

/* Number y of the variables of a tile with so many columns that belong to one row of a thread.  With a unit a lane has
 * `each` elements of a row in each fragment, those of the first row first. */
static unsigned variable_of_row(const struct emitter *m, unsigned cols, unsigned row, unsigned y, unsigned each)
{
    return m->unit ? y / each * m->unit->sum.elements + row * each + y % each : row * cols + y;
}

void source_matrix_fold(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v], *x = &m->k->inst[i->a];
    const char *type = dtype_name(i->dtype);
    const struct fragment *f = m->unit ? &m->unit->sum : NULL;
    unsigned rows = f ? axis_count(&f->row, f->elements) : i->rows, own = f ? f->elements / rows : 1;
    unsigned each = f ? m->unit->caps.n / own : 1; /* columns for each variable */
    bool lanes = m->unit && i->cols == 1;
    unsigned count = source_elements(m, v), left = lanes ? 1 : i->cols / each;
    for (unsigned e = 0; e < count; e++) {
        source_line(m);
        text_put(m->t, "%s v%u_%u;\n", type, v, e);
    }
    for (unsigned row = 0; row < rows; row++) {
        source_line(m);
        text_put(m->t, "{\n");
        m->depth++;
        for (unsigned y = 0; y < x->cols / each; y++) {
            source_line(m);
            struct sums p = source_matrix_place(m, i->a, variable_of_row(m, x->cols, row, y, own));
            text_put(m->t, "%s y%u = v%u_%u;\n", type, y, p.of, p.at);
        }
        source_fold_variables(m, v, x->cols / each, lanes ? own : left);
        if (lanes)
            fold_lanes(m, v, own);
        for (unsigned y = 0; y < left; y++) {
            source_line(m);
            text_put(m->t, "v%u_%u = y%u;\n", v, lanes ? row : variable_of_row(m, i->cols, row, y, own), y);
        }
        m->depth--;
        source_line(m);
        text_put(m->t, "}\n");
    }
}

/* A register of a factor a has two adjacent elements of the sums, in the same order. */
void source_matrix_factor(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    m->fenced = false; /* products of the batch that have begun are not of these registers */
    for (unsigned r = 0; r < source_elements(m, v); r++) {
        struct sums p = source_matrix_place(m, i->a, 2 * r);
        source_line(m);
        text_put(m->t, "const u32 v%u_%u = halves_%s(v%u_%u, v%u_%u);\n", v, r, dtype_name(i->dtype), p.of, p.at, p.of,
                 p.at + 1);
    }
}

/* ---- products ---- */

static void put_registers(struct emitter *m, val v, unsigned fragment, bool last)
{
    unsigned n = matrix_registers(m, v);
    for (unsigned r = 0; r < n; r++)
        text_put(m->t, "v%u_%u%s", v, fragment * n + r, last && r + 1 == n ? ");\n" : ", ");
}

/* The sums begin with c's; then the products of every fragment along k are added. */
void source_matrix_mma(struct emitter *m, val v)
{
    if (m->unit->opaque) {
        source_opaque_mma(m, v);
        return;
    }
    if (source_is_async(m)) {
        source_async_mma(m, v);
        return;
    }
    const struct linst *i = &m->k->inst[v];
    unsigned depth = matrix_fragments(m, i->a), cols = matrix_fragments(m, v), n = source_elements(m, v);
    for (unsigned e = 0; e < n; e++) {
        source_line(m);
        text_put(m->t, "f32 v%u_%u = v%u_%u;\n", v, e, i->c, e);
    }
    for (unsigned f = 0; f < n / matrix_registers(m, v); f++)
        for (unsigned kk = 0; kk < depth; kk++) {
            source_line(m);
            text_put(m->t, "mma_%s(", dtype_name(m->k->inst[i->a].dtype));
            put_registers(m, v, f, false);
            put_registers(m, i->a, f / cols * depth + kk, false);
            put_registers(m, i->b, kk * cols + f % cols, true);
        }
}
