/* Tiles: each row is a few native vectors and, for the remainder, shorter ones.  A product is added column by column of
 * a: one element of it in all lanes times a row of b, fused into the accumulator's row. emit_bytes.c has tiles of bytes
 * in another layout, and their products. */
#include "emit.h"

struct chunk emit_chunk(const struct emitter *m, unsigned cols, unsigned n)
{
    unsigned native = m->vector_bytes / 4, whole = cols / native, lane0 = n * native;
    if (n < whole)
        return (struct chunk){lane0, native};
    unsigned left = cols % native;
    lane0 = whole * native;
    for (unsigned lanes = native / 2; lanes; lanes /= 2) { /* the remainder in powers of two, larger ones first */
        if (!(left & lanes))
            continue;
        if (n-- == whole)
            return (struct chunk){lane0, lanes};
        lane0 += lanes;
    }
    return (struct chunk){0, 0};
}

unsigned emit_tile_chunks(const struct emitter *m, unsigned cols)
{
    unsigned n = 0;
    while (emit_chunk(m, cols, n).lanes)
        n++;
    return n;
}

unsigned emit_tile_parts(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    return (emit_is_quads(m, v) ? i->rows / 4u : i->rows) * emit_tile_chunks(m, i->cols);
}

LLVMTypeRef emit_tile_part_type(struct emitter *m, const struct linst *i, unsigned part)
{
    return type_lanes(type_of(m, i->dtype), emit_chunk(m, i->cols, part % emit_tile_chunks(m, i->cols)).lanes);
}

static LLVMValueRef index_of(struct emitter *m, uint64_t n) { return LLVMConstInt(m->i64, n, 0); }

LLVMValueRef emit_tile_piece(struct emitter *m, val v, unsigned r, unsigned cols, unsigned n)
{
    const struct linst *i = &m->k->inst[v];
    unsigned lanes = emit_chunk(m, cols, n).lanes;
    if (!i->cols)
        return splat(m, emit_scalar(m, v), lanes);
    if (emit_is_quads(m, v)) {
        LLVMValueRef *four = m->v[v].part + r / 4 * emit_tile_chunks(m, i->cols);
        LLVMValueRef x = emit_quads_row(m, four[i->cols == 1 ? 0 : n], r % 4, i->cols == 1 ? 1 : lanes);
        return i->cols == 1 ? splat(m, x, lanes) : x;
    }
    LLVMValueRef *row = m->v[v].part + (i->rows > 1 ? r : 0) * emit_tile_chunks(m, i->cols);
    return i->cols == 1 ? splat(m, row[0], lanes) : row[n];
}

/* Element (r, c). */
LLVMValueRef emit_tile_element(struct emitter *m, val v, unsigned r, unsigned c)
{
    const struct linst *i = &m->k->inst[v];
    unsigned n = 0;
    struct chunk at = emit_chunk(m, i->cols, 0);
    while (c >= at.lane0 + at.lanes)
        at = emit_chunk(m, i->cols, ++n);
    LLVMValueRef *part = m->v[v].part;
    unsigned each = emit_tile_chunks(m, i->cols);
    LLVMValueRef x = emit_is_quads(m, v) ? emit_quads_row(m, part[r / 4 * each + n], r % 4, at.lanes)
                                         : part[r * each + n];
    return at.lanes == 1 ? x : LLVMBuildExtractElement(m->b, x,
                                                       LLVMConstInt(LLVMInt32TypeInContext(m->ctx), c - at.lane0, 0),
        "");
}

/* Allocates the value's parts; NULL: out of memory. */
static LLVMValueRef *emit_tile_begin(struct emitter *m, val v)
{
    m->v[v].form = FORM_TILE;
    return emit_new_parts(m, v);
}

void emit_tile_splat(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    LLVMValueRef *part = emit_tile_begin(m, v), x = emit_scalar(m, i->a);
    unsigned n = emit_tile_chunks(m, i->cols);
    unsigned each = emit_is_quads(m, v) ? 4 : 1;
    for (unsigned p = 0; part && p < emit_tile_parts(m, v); p++)
        part[p] = splat(m, x, each * emit_chunk(m, i->cols, p % n).lanes);
}

void emit_tile_index(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    LLVMValueRef *part = emit_tile_begin(m, v), step[64];
    unsigned n = emit_tile_chunks(m, i->cols);
    for (unsigned r = 0; part && r < i->rows; r++)
        for (unsigned p = 0; p < n; p++) {
            struct chunk c = emit_chunk(m, i->cols, p);
            for (unsigned l = 0; l < c.lanes; l++)
                step[l] = index_of(m, r + c.lane0 + l);
            part[r * n + p] = c.lanes == 1 ? step[0] : LLVMConstVector(step, c.lanes);
        }
}

void emit_tile_prim(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const val operand[3] = {i->a, i->b, i->c};
    enum prim p = (enum prim)(i->op - L_PRIM);
    unsigned from = m->k->inst[p == P_SELECT ? i->b : i->a].dtype, n = emit_tile_chunks(m, i->cols);
    bool quads = emit_is_quads(m, v);
    LLVMValueRef *part = emit_tile_begin(m, v);
    for (unsigned r = 0; part && r < (quads ? i->rows / 4u : i->rows); r++)
        for (unsigned q = 0; q < n && !m->e->code; q++) {
            LLVMValueRef x[3];
            for (unsigned o = 0; o < 3 && operand[o]; o++)
                x[o] = quads ? emit_quads(m, operand[o], r, i->cols, q) : emit_tile_piece(m, operand[o], r, i->cols, q);
            part[r * n + q] = emit_prim(m, p, from, i->dtype, x);
        }
}

/* ---- memory ---- */

/* Index of the first element of a chunk of row r, or of all its elements if they are not adjacent. */
static LLVMValueRef chunk_index(struct emitter *m, const struct linst *i, unsigned r, struct chunk c)
{
    LLVMValueRef at = emit_scalar(m, i->a), stride = emit_scalar(m, i->d);
    if (i->kind == TILE_ROWS)
        return LLVMBuildAdd(m->b, LLVMBuildAdd(m->b, at, LLVMBuildMul(m->b, stride, index_of(m, r), ""), ""),
                            index_of(m, c.lane0), "");
    LLVMValueRef lane[64];
    for (unsigned l = 0; l < c.lanes; l++)
        lane[l] = index_of(m, c.lane0 + l);
    LLVMValueRef column = c.lanes == 1 ? lane[0] : LLVMConstVector(lane, c.lanes);
    LLVMValueRef first = splat(m, LLVMBuildAdd(m->b, at, index_of(m, r), ""), c.lanes);
    return LLVMBuildAdd(m->b, first, LLVMBuildMul(m->b, splat(m, stride, c.lanes), column, ""), "");
}

LLVMValueRef emit_tile_load_piece(struct emitter *m, const struct linst *i, unsigned r, unsigned n)
{
    struct chunk c = emit_chunk(m, i->cols, n);
    LLVMValueRef ptr = emit_address(m, (uint32_t)i->imm, chunk_index(m, i, r, c));
    return emit_load_lanes(m, i->dtype, ptr, c.lanes, i->b ? emit_tile_piece(m, i->b, r, i->cols, n) : NULL);
}

void emit_tile_load(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    bool quads = emit_is_quads(m, v);
    LLVMValueRef *part = emit_tile_begin(m, v);
    unsigned n = emit_tile_chunks(m, i->cols);
    for (unsigned q = 0; part && quads && q < n; q++)
        emit_quads_load(m, v, q, part + q, n);
    for (unsigned r = 0; part && !quads && r < i->rows; r++)
        for (unsigned q = 0; q < n; q++)
            part[r * n + q] = emit_tile_load_piece(m, i, r, q);
}

void emit_tile_store(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v], *x = &m->k->inst[i->b];
    unsigned n = emit_tile_chunks(m, x->cols);
    unsigned packed = 0; /* chunks: all or none */
    while (packed < n && emit_quads_store(m, i, packed))
        packed++;
    for (unsigned r = 0; packed < n && r < x->rows; r++) /* rows may overlap: the last one is kept */
        for (unsigned q = 0; q < n; q++) {
            struct chunk c = emit_chunk(m, x->cols, q);
            LLVMValueRef ptr = emit_address(m, (uint32_t)i->imm, chunk_index(m, i, r, c));
            emit_store_lanes(m, x->dtype, ptr, c.lanes, emit_tile_piece(m, i->b, r, x->cols, q),
                             i->c ? emit_tile_piece(m, i->c, r, x->cols, q) : NULL);
        }
}

/* ---- products ---- */

static LLVMValueRef tile_convert(struct emitter *m, unsigned from, unsigned to, LLVMValueRef x)
{
    return from == to ? x : emit_prim(m, P_CAST, from, to, &x);
}

static LLVMValueRef add_product(struct emitter *m, unsigned dtype, LLVMValueRef a, LLVMValueRef b, LLVMValueRef acc)
{
    if (dtype_is_float(dtype))
        return emit_prim(m, P_FMA, dtype, dtype, (LLVMValueRef[]){a, b, acc});
    LLVMValueRef product = emit_prim(m, P_MUL, dtype, dtype, (LLVMValueRef[]){a, b});
    return emit_prim(m, P_ADD, dtype, dtype, (LLVMValueRef[]){acc, product});
}

void emit_mma(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    unsigned ta = m->k->inst[i->a].dtype, tb = m->k->inst[i->b].dtype, depth = m->k->inst[i->a].cols,
        n = emit_tile_chunks(m, i->cols);
    LLVMValueRef *part = emit_tile_begin(m, v);
    for (unsigned p = 0; part && p < i->rows * n; p++)
        part[p] = emit_tile_piece(m, i->c, p / n, i->cols, p % n);
    if (part && i->kind == MMA_EVEN_ODD) {
        emit_even_odd(m, v, part, n);
        return;
    }
    if (part && emit_quads_mma(m, v, part, n))
        return;
    for (unsigned q = 0; part && q < n; q++)
        for (unsigned k = 0; k < depth && !m->e->code; k++) {
            unsigned lanes = emit_chunk(m, i->cols, q).lanes;
            LLVMValueRef b = tile_convert(m, tb, i->dtype, emit_tile_piece(m, i->b, k, i->cols, q));
            for (unsigned r = 0; r < i->rows; r++) {
                LLVMValueRef a = splat(m, tile_convert(m, ta, i->dtype, emit_tile_element(m, i->a, r, k)), lanes);
                part[r * n + q] = add_product(m, i->dtype, a, b, part[r * n + q]);
            }
        }
}
