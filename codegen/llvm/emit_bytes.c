/* Products of bytes, four to a sum.
 *
 * A tile of four rows of bytes that is an operand of a product, or is stored column by column, is kept as "quads": a
 * part has the four bytes of each of its columns next to each other.  Packed panels have the same layout, and
 * instructions that add the four products of a column to its sum take it.  A loaded operand of more rows has such parts
 * for each four of them; where its columns are not adjacent in memory they are transposed in registers.  On a
 * processor without such instructions for bytes (VNNI's vpdpbusd, unsigned by signed), bytes become 16-bit integers,
 * even ones and odd ones, whose products are added in pairs (pmaddwd).  This is exact, too: no such sum comes near
 * 32 bits.  AArch64 has sdot and udot of bytes that are both signed or not (dotprod), and usdot (i8mm); without the
 * former, products of 16 bits are added in pairs, and these in pairs. */
#include "emit.h"

enum { PLAIN = 1, QUADS = 2 };
enum { MAX_SQUARE = 16 }; /* lanes of a vector of words */

static bool is_byte(unsigned dtype) { return dtype == KL_U8 || dtype == KL_I8; }

static bool fours_of_rows(const struct linst *i) { return i->cols && i->rows % 4 == 0 && is_byte(i->dtype); }

static void emit_bytes_mark(struct emitter *m, val v, bool multiplied)
{
    const struct linst *i = &m->k->inst[v];
    bool can = i->op == L_LOAD || i->op >= L_PRIM || (i->op == L_SPLAT && i->rows == 4);
    if (v && fours_of_rows(i) && can && (i->rows == 4 || multiplied) && m->quads[v] != PLAIN)
        m->quads[v] = QUADS;
}

bool emit_find_quads(struct emitter *m)
{
    const struct kernel *k = m->k;
    m->quads = mem_alloc(k->ninst * sizeof *m->quads);
    if (!m->quads)
        return err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
    for (val v = 1; v < k->ninst; v++) /* carried tiles are kept like all carries */
        if (k->inst[v].op == L_CARRY || k->inst[v].op == L_NEXT)
            m->quads[k->inst[v].op == L_CARRY ? k->inst[v].a : k->inst[v].b] = PLAIN;
    for (val v = k->ninst; v-- > 1;) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_MMA || (i->op == L_STORE && i->kind == TILE_COLS))
            emit_bytes_mark(m, i->b, i->op == L_MMA);
        for (unsigned o = 0; i->op >= L_PRIM && m->quads[v] == QUADS && o < 3; o++)
            emit_bytes_mark(m, ((const val[]){i->a, i->b, i->c})[o], i->rows > 4);
    }
    return true;
}

bool emit_is_quads(const struct emitter *m, val v) { return m->quads[v] == QUADS; }

/* ---- quads and rows ---- */

static LLVMValueRef lane_number(struct emitter *m, unsigned n)
{
    return LLVMConstInt(LLVMInt32TypeInContext(m->ctx), n, 0);
}

LLVMValueRef emit_quads_row(struct emitter *m, LLVMValueRef quads, unsigned row, unsigned lanes)
{
    unsigned lane[64];
    if (lanes == 1)
        return LLVMBuildExtractElement(m->b, quads, lane_number(m, row), "");
    for (unsigned c = 0; c < lanes; c++)
        lane[c] = 4 * c + row;
    return shuffle(m, quads, NULL, lane, lanes);
}

/* Interleaves four rows of so many lanes, column by column. */
static LLVMValueRef bytes_interleave_rows(struct emitter *m, LLVMValueRef row[4], unsigned lanes)
{
    unsigned lane[4 * 64];
    if (lanes == 1) {
        LLVMValueRef x = LLVMGetPoison(LLVMVectorType(LLVMTypeOf(row[0]), 4));
        for (unsigned r = 0; r < 4; r++)
            x = LLVMBuildInsertElement(m->b, x, row[r], lane_number(m, r), "");
        return x;
    }
    for (unsigned i = 0; i < 2 * lanes; i++)
        lane[i] = i;
    LLVMValueRef low = shuffle(m, row[0], row[1], lane, 2 * lanes), high = shuffle(m, row[2], row[3], lane, 2 * lanes);
    for (unsigned c = 0; c < lanes; c++)
        for (unsigned r = 0; r < 4; r++)
            lane[4 * c + r] = r * lanes + c;
    return shuffle(m, low, high, lane, 4 * lanes);
}

LLVMValueRef emit_quads(struct emitter *m, val v, unsigned four, unsigned cols, unsigned n)
{
    LLVMValueRef row[4];
    unsigned lanes = emit_chunk(m, cols, n).lanes;
    if (!m->k->inst[v].cols)
        return splat(m, emit_scalar(m, v), 4 * lanes);
    if (emit_is_quads(m, v) && m->k->inst[v].cols == cols)
        return m->v[v].part[four * emit_tile_chunks(m, cols) + n];
    for (unsigned r = 0; r < 4; r++)
        row[r] = emit_tile_piece(m, v, 4 * four + r, cols, n);
    return bytes_interleave_rows(m, row, lanes);
}

/* ---- memory ---- */

/* Are the columns of a tile in memory by columns, four adjacent bytes each? */
static bool is_packed(const struct emitter *m, const struct linst *i)
{
    const struct linst *stride = &m->k->inst[i->d];
    return i->kind == TILE_COLS && stride->op == L_CONST && stride->imm == 4;
}

/* Of row `row` of a column. */
static LLVMValueRef column_address(struct emitter *m, const struct linst *i, unsigned row, unsigned column)
{
    LLVMValueRef n = LLVMConstInt(m->i64, column, 0), r = LLVMConstInt(m->i64, row, 0);
    LLVMValueRef at = LLVMBuildAdd(m->b, emit_scalar(m, i->a), LLVMBuildMul(m->b, emit_scalar(m, i->d), n, ""), "");
    return emit_address(m, (uint32_t)i->imm, LLVMBuildAdd(m->b, at, r, ""));
}

/* Four rows of columns at different addresses: one word each. */
static LLVMValueRef load_columns(struct emitter *m, const struct linst *i, unsigned four, struct chunk c)
{
    LLVMTypeRef i32 = LLVMInt32TypeInContext(m->ctx);
    LLVMValueRef x = LLVMGetPoison(LLVMVectorType(i32, c.lanes));
    for (unsigned l = 0; l < c.lanes; l++) {
        LLVMValueRef word = LLVMBuildLoad2(m->b, i32, column_address(m, i, 4 * four, c.lane0 + l), "");
        LLVMSetAlignment(word, 1);
        x = LLVMBuildInsertElement(m->b, x, word, lane_number(m, l), "");
    }
    return LLVMBuildBitCast(m->b, x, LLVMVectorType(m->i8, 4 * c.lanes), "");
}

/* `fours` words of columns `fours` apart, of all that a chunk has from column `first` on, one after the other. */
static LLVMValueRef load_words(struct emitter *m, const struct linst *i, struct chunk c, unsigned first, unsigned fours)
{
    LLVMTypeRef words = LLVMVectorType(LLVMInt32TypeInContext(m->ctx), fours);
    LLVMValueRef x[MAX_SQUARE];
    unsigned lane[2 * MAX_SQUARE], n = c.lanes / fours;
    for (unsigned g = 0; g < n; g++) {
        x[g] = LLVMBuildLoad2(m->b, words, column_address(m, i, 0, c.lane0 + g * fours + first), "");
        LLVMSetAlignment(x[g], 1);
    }
    for (unsigned each = fours; n > 1; n /= 2, each *= 2)
        for (unsigned g = 0; g < n; g += 2) {
            for (unsigned l = 0; l < 2 * each; l++)
                lane[l] = l;
            x[g / 2] = shuffle(m, x[g], x[g + 1], lane, 2 * each);
        }
    return x[0];
}

/* `fours` words of each column, transposed, as squares beside each other if there are more columns: words 2^i apart are
 * exchanged for each i. */
static void load_square(struct emitter *m, const struct linst *i, struct chunk c, unsigned fours, LLVMValueRef *part,
                        unsigned step)
{
    unsigned lane[2][MAX_SQUARE];
    LLVMValueRef row[MAX_SQUARE];
    for (unsigned l = 0; l < fours; l++)
        row[l] = load_words(m, i, c, l, fours);
    for (unsigned h = 1; h < fours; h *= 2) {
        for (unsigned l = 0; l < c.lanes; l++) {
            lane[0][l] = l & h ? c.lanes + (l ^ h) : l;
            lane[1][l] = l & h ? c.lanes + l : l ^ h;
        }
        for (unsigned l = 0; l < fours; l++)
            if (!(l & h)) {
                LLVMValueRef low = row[l], high = row[l | h];
                row[l] = shuffle(m, low, high, lane[0], c.lanes);
                row[l | h] = shuffle(m, low, high, lane[1], c.lanes);
            }
    }
    for (unsigned l = 0; l < fours; l++)
        part[l * step] = LLVMBuildBitCast(m->b, row[l], LLVMVectorType(m->i8, 4 * c.lanes), "");
}

void emit_quads_load(struct emitter *m, val v, unsigned n, LLVMValueRef *part, unsigned step)
{
    const struct linst *i = &m->k->inst[v];
    struct chunk c = emit_chunk(m, i->cols, n);
    LLVMValueRef row[4];
    unsigned fours = i->rows / 4;
    bool columns = i->kind == TILE_COLS && !i->b;
    if (columns && fours > 1 && fours <= c.lanes && fours <= MAX_SQUARE && !(fours & (fours - 1))) {
        load_square(m, i, c, fours, part, step);
        return;
    }
    for (unsigned f = 0; f < fours; f++) {
        for (unsigned r = 0; r < 4 && !columns; r++)
            row[r] = emit_tile_load_piece(m, i, 4 * f + r, n);
        part[f * step] = is_packed(m, i) && columns
                             ? emit_load_lanes(m, i->dtype, column_address(m, i, 4 * f, c.lane0), 4 * c.lanes, NULL)
                         : columns ? load_columns(m, i, f, c) : bytes_interleave_rows(m, row, c.lanes);
    }
}

bool emit_quads_store(struct emitter *m, const struct linst *i, unsigned n)
{
    unsigned cols = m->k->inst[i->b].cols;
    struct chunk c = emit_chunk(m, cols, n);
    if (!is_packed(m, i) || i->c || !emit_is_quads(m, i->b) || m->k->inst[i->b].rows != 4)
        return false;
    emit_store_lanes(m, m->k->inst[i->b].dtype, column_address(m, i, 0, c.lane0), 4 * c.lanes,
                     emit_quads(m, i->b, 0, cols, n), NULL);
    return true;
}

/* ---- products ---- */

/* The even or the odd bytes of vectors of 32-bit words, as 16-bit integers. */
static LLVMValueRef bytes_even_or_odd(struct emitter *m, unsigned dtype, LLVMValueRef x, bool odd)
{
    LLVMTypeRef t = LLVMVectorType(LLVMInt16TypeInContext(m->ctx), 2 * LLVMGetVectorSize(LLVMTypeOf(x)));
    LLVMValueRef y = LLVMBuildBitCast(m->b, x, t, ""), byte = const_int(t, 8);
    if (dtype == KL_U8)
        return odd ? LLVMBuildLShr(m->b, y, byte, "") : LLVMBuildAnd(m->b, y, const_int(t, 0xff), "");
    return LLVMBuildAShr(m->b, odd ? y : LLVMBuildShl(m->b, y, byte, ""), byte, "");
}

/* AArch64: sum + the four products of bytes in each word of a and b, both vectors of 16, both signed or not. */
static LLVMValueRef add_four_alike(struct emitter *m, LLVMValueRef sum, bool is_signed, LLVMValueRef a, LLVMValueRef b)
{
    LLVMTypeRef words = LLVMTypeOf(sum), eight = LLVMVectorType(LLVMInt16TypeInContext(m->ctx), 8);
    if (m->dotprod)
        return intrinsic(m, is_signed ? "llvm.aarch64.neon.sdot" : "llvm.aarch64.neon.udot",
                         (LLVMTypeRef[]){words, LLVMTypeOf(a)}, 2, (LLVMValueRef[]){sum, a, b}, 3);
    LLVMValueRef pairs[2];
    for (unsigned half = 0; half < 2; half++) {
        unsigned lane[8];
        for (unsigned l = 0; l < 8; l++)
            lane[l] = 8 * half + l;
        LLVMValueRef x[2] = {shuffle(m, a, NULL, lane, 8), shuffle(m, b, NULL, lane, 8)};
        LLVMValueRef product = intrinsic(m, is_signed ? "llvm.aarch64.neon.smull" : "llvm.aarch64.neon.umull", &eight,
                                         1, x, 2);
        pairs[half] = intrinsic(m, is_signed ? "llvm.aarch64.neon.saddlp" : "llvm.aarch64.neon.uaddlp",
                                (LLVMTypeRef[]){words, eight}, 2, &product, 1);
    }
    return LLVMBuildAdd(m->b, sum, intrinsic(m, "llvm.aarch64.neon.addp", &words, 1, pairs, 2), "");
}

/* AArch64: the same of any types.  Without usdot, u * s = (u - 128) * s + 2 * 64 * s, modulo 2^32. */
static LLVMValueRef add_four_neon(struct emitter *m, LLVMValueRef sum, unsigned ta, LLVMValueRef a, unsigned tb,
                                  LLVMValueRef b)
{
    LLVMTypeRef bytes = LLVMVectorType(m->i8, 16);
    a = LLVMBuildBitCast(m->b, a, bytes, "");
    b = LLVMBuildBitCast(m->b, b, bytes, "");
    if (ta == tb)
        return add_four_alike(m, sum, ta == KL_I8, a, b);
    LLVMValueRef u = ta == KL_U8 ? a : b, s = ta == KL_U8 ? b : a, half = const_int(bytes, 64);
    if (m->i8mm)
        return intrinsic(m, "llvm.aarch64.neon.usdot", (LLVMTypeRef[]){LLVMTypeOf(sum), bytes}, 2,
                         (LLVMValueRef[]){sum, u, s}, 3);
    sum = add_four_alike(m, sum, true, LLVMBuildXor(m->b, u, const_int(bytes, 128), ""), s);
    sum = add_four_alike(m, sum, true, half, s);
    return add_four_alike(m, sum, true, half, s);
}

/* sum + the four products of bytes in each 32-bit word of a and b. */
static LLVMValueRef add_four(struct emitter *m, LLVMValueRef sum, unsigned ta, LLVMValueRef a, unsigned tb,
                             LLVMValueRef b)
{
    static const char *const four[] = {"llvm.x86.avx512.vpdpbusd.128", "llvm.x86.avx512.vpdpbusd.256",
                                       "llvm.x86.avx512.vpdpbusd.512"}; /* of AVX-VNNI, too */
    static const char *const two[] = {"llvm.x86.sse2.pmadd.wd", "llvm.x86.avx2.pmadd.wd",
                                      "llvm.x86.avx512.pmaddw.d.512"};
    if (m->arm)
        return add_four_neon(m, sum, ta, a, tb, b);
    unsigned lanes = LLVMGetVectorSize(LLVMTypeOf(sum)), size = lanes == 4 ? 0 : lanes == 8 ? 1 : 2;
    if (m->vnni && ta != tb)
        return intrinsic(m, four[size], NULL, 0, ta == KL_U8 ? (LLVMValueRef[]){sum, a, b}
                         : (LLVMValueRef[]){sum, b, a}, 3);
    for (int odd = 0; odd < 2; odd++) {
        LLVMValueRef x[2] = {bytes_even_or_odd(m, ta, a, odd), bytes_even_or_odd(m, tb, b, odd)};
        sum = LLVMBuildAdd(m->b, sum, intrinsic(m, two[size], NULL, 0, x, 2), "");
    }
    return sum;
}

/* Four bytes of a row, as one word. */
static LLVMValueRef word_of_row(struct emitter *m, val v, unsigned row, unsigned four, unsigned cols)
{
    LLVMTypeRef i32 = LLVMInt32TypeInContext(m->ctx);
    unsigned n = 0;
    struct chunk c = emit_chunk(m, cols, 0);
    while (4 * four >= c.lane0 + c.lanes)
        c = emit_chunk(m, cols, ++n);
    LLVMValueRef x = emit_tile_piece(m, v, row, cols, n);
    if (c.lanes == 4)
        return LLVMBuildBitCast(m->b, x, i32, "");
    x = LLVMBuildBitCast(m->b, x, LLVMVectorType(i32, c.lanes / 4), "");
    return LLVMBuildExtractElement(m->b, x, lane_number(m, four - c.lane0 / 4), "");
}

bool emit_quads_mma(struct emitter *m, val v, LLVMValueRef *part, unsigned n)
{
    const struct linst *i = &m->k->inst[v], *a = &m->k->inst[i->a], *b = &m->k->inst[i->b];
    LLVMTypeRef i32 = LLVMInt32TypeInContext(m->ctx);
    LLVMValueRef column[MAX_TILE_SIDE];
    bool fits = (m->x86 || m->arm) && is_byte(a->dtype) && i->dtype == KL_I32 && fours_of_rows(b);
    for (unsigned q = 0; q < n && fits; q++) {
        unsigned lanes = emit_chunk(m, i->cols, q).lanes;
        fits = m->x86 ? lanes >= 4 : lanes == 4;
    }
    for (unsigned four = 0; fits && four < b->rows / 4u; four++) {
        for (unsigned q = 0; q < n; q++) {
            LLVMTypeRef words = LLVMVectorType(i32, emit_chunk(m, i->cols, q).lanes);
            column[q] = LLVMBuildBitCast(m->b, emit_quads(m, i->b, four, i->cols, q), words, "");
        }
        /* one row's bytes in a register at a time, because sums need the others */
        for (unsigned r = 0; r < i->rows; r++) {
            LLVMValueRef word = word_of_row(m, i->a, r, four, b->rows), *sum = part + r * n;
            for (unsigned q = 0; q < n; q++)
                sum[q] = add_four(m, sum[q], a->dtype, splat(m, word, emit_chunk(m, i->cols, q).lanes), b->dtype,
                                  column[q]);
        }
    }
    return fits;
}
