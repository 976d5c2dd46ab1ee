/* Tiles that the subgroups of a matrix unit hold.  Each lane has the elements that matrix.c says; a variable is a pair
 * of halves, or one sum.
 *
 * A kernel uses a matrix unit if its subgroups have the unit's size and it uses tiles only in ways that this file can
 * emit: it loads factors, multiplies them in any order, carries the sums and stores them.  In other kernels with
 * subgroups each thread has the whole of every tile. */
#include "emit_source.h"
#include <inttypes.h>
#include <string.h>

enum { NEAR = 1 << 20 };          /* limit of a stride: offsets in a tile's rows must fit 32 bits */

/* ---- which kernels ---- */

static bool is_stride(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    return i->op == L_CONST && (int64_t)i->imm >= 0 && i->imm < NEAR;
}

static bool source_matrix_take(struct emitter *m, val v, enum source_role role)
{
    if (m->role[v] && m->role[v] != role)
        return false;
    m->role[v] = (uint8_t)role;
    return true;
}

/* Is v a factor?  A factor is loaded with the layout of its role, so it has one role only. */
static bool is_factor(struct emitter *m, val v, enum source_role role)
{
    const struct linst *i = &m->k->inst[v];
    const struct mma_caps *c = &m->d->matrix->caps;
    bool whole = role == ROLE_A ? i->rows % c->m == 0 && i->cols % c->k == 0 : i->rows % c->k == 0 &&
        i->cols % c->n == 0;
    return i->op == L_LOAD && whole && c->dtypes >> i->dtype & 1 && !i->b && is_stride(m, i->d) &&
        source_matrix_take(m, v, role);
}

static bool has_text(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct mma_caps *c = &m->d->matrix->caps;
    switch (i->op) {
    case L_LOOP:
        return i->kind != LOOP_BLOCK || i->rows == c->subgroup;
    case L_LOAD:
        return true; /* is_factor checks it where it is used */
    case L_MMA:
        return i->kind == MMA_ANY && m->role[i->c] == ROLE_SUM && is_factor(m, i->a, ROLE_A) &&
            is_factor(m, i->b, ROLE_B) &&
               source_matrix_take(m, v, ROLE_SUM);
    case L_SPLAT:
    case L_CARRY:
    case L_OUT:
        return !i->cols || (i->dtype == KL_F32 && i->rows % c->m == 0 && i->cols % c->n == 0 &&
                            (i->op == L_SPLAT || m->role[i->a] == ROLE_SUM) && source_matrix_take(m, v, ROLE_SUM));
    case L_NEXT:
        return !m->k->inst[i->b].cols || m->role[i->b] == ROLE_SUM;
    case L_STORE:
        return !m->k->inst[i->b].cols || (m->role[i->b] == ROLE_SUM && !i->c && is_stride(m, i->d));
    default:
        return !i->cols;
    }
}

void source_matrix(struct emitter *m)
{
    if (source_async(m)) {
        m->unit = m->d->matrix_async;
        return;
    }
    memset(m->role, 0, m->k->ninst);
    bool products = false, ok = m->d->matrix;
    for (val v = 1; ok && v < m->k->ninst; v++) {
        ok = has_text(m, v);
        products |= m->k->inst[v].op == L_MMA;
    }
    for (val v = 1; ok && v < m->k->ninst; v++)
        ok = !(m->k->inst[v].op == L_LOAD && m->k->inst[v].cols && !m->role[v]);
    m->unit = ok && products ? m->d->matrix : NULL;
}

/* ---- variables ---- */

static unsigned fragments(const struct emitter *m, val v) /* number of fragments side by side along the columns */
{
    const struct mma_caps *c = &m->unit->caps;
    return m->k->inst[v].cols / (m->role[v] == ROLE_A ? c->k : c->n);
}

/* Registers of one fragment. */
static unsigned registers(const struct emitter *m, val v)
{
    enum source_role role = (enum source_role)m->role[v];
    if (role == ROLE_SUM || role == ROLE_SUM_USED)
        return m->unit->sum.elements;
    return (role == ROLE_A ? m->unit->a.elements : m->unit->b.elements) / 2;
}

unsigned source_elements(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    if (!i->cols)
        return 1;
    if (!m->unit)
        return (unsigned)i->rows * i->cols;
    if (source_is_async(m) && (m->role[v] == ROLE_A || m->role[v] == ROLE_B))
        return 1; /* a factor is a descriptor */
    return (unsigned)i->rows / (m->role[v] == ROLE_B ? m->unit->caps.k : m->unit->caps.m) * fragments(m, v) *
        registers(m, v);
}

/* ---- memory ---- */

/* The largest power of two that divides the value, up to 2^16, as its logarithm. */
static unsigned divisible(const struct kernel *k, val v, int depth)
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
    a = divisible(k, i->a, depth);
    if (i->op == L_LOOP) {
        while (n < 16 && !(i->imm >> n & 1))
            n++;
        return n < a ? n : a;
    }
    b = divisible(k, i->b, depth);
    if (i->op == L_OP(P_MUL))
        return a + b < 16 ? a + b : 16;
    return a < b ? a : b;
}

/* Elements from row to row and from column to column of one tile's access. */
struct layout { const struct fragment *f; int64_t row, col; };

static struct layout layout_of(const struct emitter *m, const struct linst *i, enum source_role role)
{
    int64_t stride = (int64_t)m->k->inst[i->d].imm;
    const struct matrix_unit *u = m->unit;
    return (struct layout){role == ROLE_A ? &u->a : role == ROLE_B ? &u->b : &u->sum, i->kind == TILE_ROWS ? stride : 1,
                           i->kind == TILE_ROWS ? 1 : stride};
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
static void put_own_place(struct emitter *m, const struct layout *l)
{
    const struct fragment_axis *r = &l->f->row, *c = &l->f->col;
    text_put(m->t, " + i32(t / %uu %% %uu) * %" PRId64 " + i32(t / %uu %% %uu) * %" PRId64 ";\n", r->div, r->mod,
             r->scale * l->row, c->div,
             c->mod, c->scale * l->col);
}

/* Adds the part of the second divisor. */
static void put_second(struct emitter *m, const struct layout *l)
{
    const struct fragment_axis *r = &l->f->row;
    if (r->div2)
        text_put(m->t, " + i32(t / %uu %% %uu) * %" PRId64, r->div2, r->mod2, r->scale2 * l->row);
}

/* The distance of element e of the fragment at (row, col) from the lane's first index. */
static int64_t offset(const struct layout *l, unsigned row, unsigned col, unsigned e)
{
    return (row + l->f->row.at[e]) * l->row + (col + l->f->col.at[e]) * l->col;
}

/* Loads the two elements of a register, as a pair of adjacent elements or one by one. */
static void load_pair(struct emitter *m, val v, unsigned n, const struct layout *l, unsigned row, unsigned col,
                      unsigned e, bool pairs)
{
    unsigned b = (unsigned)m->k->inst[v].imm;
    int64_t at = offset(l, row, col, e), next = offset(l, row, col, e + 1);
    source_line(m);
    if (pairs)
        text_put(m->t, "%su32 v%u_%u = word_at(b%u + p%u + %" PRId64 ");\n", m->d->local, v, n, b, v, at);
    else
        text_put(m->t, "%su32 v%u_%u = u32(b%u[p%u + %" PRId64 "]) | u32(b%u[p%u + %" PRId64 "]) << 16;\n", m->d->local,
                 v, n, b, v, at, b, v,
                 next);
}

/* Loads `count` registers, which are one fragment or two side by side, from 8x8 matrices.  Each lane gives the address
 * of one row: matrix number lane / 8. */
static void load_rows(struct emitter *m, val v, unsigned n, const struct layout *l, unsigned count, unsigned row,
                      unsigned col, bool turned)
{
    source_line(m);
    text_put(m->t, "u32 ");
    for (unsigned r = 0; r < count; r++)
        text_put(m->t, "v%u_%u%s", v, n + r, r + 1 < count ? ", " : "; ");
    text_put(m->t, "rows_%u%s(", count, turned ? "_turned" : "");
    for (unsigned r = 0; r < count; r++)
        text_put(m->t, "v%u_%u, ", v, n + r);
    text_put(m->t, "b%u + p%u + %" PRId64 ");\n", (unsigned)m->k->inst[v].imm, v, offset(l, row, col, 0));
}

void source_matrix_load(struct emitter *m, val v)
{
    if (source_is_async(m)) {
        source_async_load(m, v);
        return;
    }
    const struct linst *i = &m->k->inst[v];
    enum source_role role = (enum source_role)m->role[v];
    const struct mma_caps *c = &m->unit->caps;
    struct layout l = layout_of(m, i, role);
    unsigned rows = role == ROLE_A ? c->m : c->k, cols = role == ROLE_A ? c->k : c->n, n = 0;
    int64_t along = role == ROLE_A ? l.col : l.row, stride = (int64_t)m->k->inst[i->d].imm;
    bool shared = m->k->buf[i->imm].role == BUF_SHARED;
    bool pairs = along == 1 && stride % 2 == 0 && shared && divisible(m->k, i->a, 16) >= 1;
    bool by_rows = m->unit->rows && stride % 8 == 0 && shared && divisible(m->k, i->a, 16) >= 3;
    declare_place(m, v);
    if (by_rows)
        text_put(m->t,
                 " + i32(t %% 8u) * %" PRId64 " + i32(t / 8u %% 2u) * %" PRId64 " + i32(t / 16u %% 2u) * %" PRId64
                 ";\n",
                 stride, offset(&l, 0, 0, 2), l.f->elements > 4 ? offset(&l, 0, 0, 4) : offset(&l, 0, cols, 0));
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
            for (unsigned e = 0; e < l.f->elements; e += 2)
                load_pair(m, v, n + e / 2, &l, row, col, e, pairs);
            n += l.f->elements / 2;
        }
}

void source_matrix_store(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v], *x = &m->k->inst[i->b];
    struct layout l = layout_of(m, i, ROLE_SUM);
    val of = source_is_async(m) ? m->sums[i->b].of : i->b;
    unsigned n = source_is_async(m) ? m->sums[i->b].at : 0;
    /* adjacent elements of a lane are stored at once, if their first index is even */
    bool pairs = m->d->packs && i->kind == TILE_ROWS && m->k->inst[i->d].imm % 2 == 0 && l.f->col.scale % 2 == 0 &&
                 m->k->buf[i->imm].role == BUF_SHARED && divisible(m->k, i->a, 16) >= 1;
    declare_place(m, v);
    put_second(m, &l);
    put_own_place(m, &l);
    for (unsigned row = 0; row < x->rows; row += m->unit->caps.m)
        for (unsigned col = 0; col < x->cols; col += m->unit->caps.n)
            for (unsigned e = 0; e < l.f->elements; e++, n++) {
                bool pair = pairs && e + 1 < l.f->elements &&
                            offset(&l, row, col, e + 1) == offset(&l, row, col, e) + 1;
                source_line(m);
                if (pair)
                    text_put(m->t, "*(pack<f32, 2> *)(b%u + p%u + %" PRId64 ") = pack<f32, 2>{{v%u_%u, v%u_%u}};\n",
                             (unsigned)i->imm, v, offset(&l, row, col, e), of, n, of, n + 1);
                else
                    text_put(m->t, "b%u[p%u + %" PRId64 "] = v%u_%u;\n", (unsigned)i->imm, v, offset(&l, row, col, e),
                             of, n);
                e += pair;
                n += pair;
            }
}

/* ---- products ---- */

static void put_registers(struct emitter *m, val v, unsigned fragment, bool last)
{
    unsigned n = registers(m, v);
    for (unsigned r = 0; r < n; r++)
        text_put(m->t, "v%u_%u%s", v, fragment * n + r, last && r + 1 == n ? ");\n" : ", ");
}

/* The sums begin with c's; then the products of every fragment along k are added. */
void source_matrix_mma(struct emitter *m, val v)
{
    if (source_is_async(m)) {
        source_async_mma(m, v);
        return;
    }
    const struct linst *i = &m->k->inst[v];
    unsigned depth = fragments(m, i->a), cols = fragments(m, v), n = source_elements(m, v);
    for (unsigned e = 0; e < n; e++) {
        source_line(m);
        text_put(m->t, "f32 v%u_%u = v%u_%u;\n", v, e, i->c, e);
    }
    for (unsigned f = 0; f < n / registers(m, v); f++)
        for (unsigned kk = 0; kk < depth; kk++) {
            source_line(m);
            text_put(m->t, "mma_%s(", dtype_name(m->k->inst[i->a].dtype));
            put_registers(m, v, f, false);
            put_registers(m, i->a, f / cols * depth + kk, false);
            put_registers(m, i->b, kk * cols + f % cols, true);
        }
}
