/* Squares of elements that are loaded row by row and transposed (k_transpose).
 *
 * Exchanges at large distances need instructions of x86 that move data between the 16-byte pieces of a register.  Here
 * the loads do that: a register gets its pieces from several rows, and unpacks within pieces do the rest.  A square of
 * 16 vectors of 16 words takes 32 shuffles and 48 insertions from memory, which a second unit executes, instead of 64
 * shuffles.
 *
 * Words that consist of two halves which become f32 are transposed as halves: one more unpack of two registers gives
 * two vectors of halves, which need no shift and no narrowing before they are converted. */
#include "emit.h"

enum { PIECE = 16, WORD = 4, HALF = 2, MAX_SQUARE = 16, MAX_STAGES = 4 };

struct square {
    unsigned n;                      /* rows, and words of a row */
    val first, end;                  /* its exchanges, [first, end) */
    val row[MAX_SQUARE];             /* the loads */
    val column[MAX_SQUARE];          /* the results */
    LLVMValueRef address[MAX_SQUARE];
};

static bool is_exchange(const struct kernel *k, val v, val a, val b, unsigned h, enum interleave kind)
{
    const struct linst *i = v < k->ninst ? &k->inst[v] : NULL;
    return i && i->op == L_INTERLEAVE && i->kind == kind && i->imm == h && i->a == a && i->b == b;
}

/* Are the instructions from v on what k_transpose makes of n rows? */
static bool find_square(const struct kernel *k, val v, unsigned n, struct square *s)
{
    s->n = n;
    s->first = v;
    for (unsigned i = 0; i < n; i += 2) {
        if (v + i >= k->ninst || k->inst[v + i].op != L_INTERLEAVE)
            return false;
        s->row[i] = k->inst[v + i].a;
        s->row[i + 1] = k->inst[v + i].b;
    }
    for (unsigned i = 0; i < n; i++)
        s->column[i] = s->row[i];
    for (unsigned h = 1; h < n; h *= 2)
        for (unsigned i = 0; i < n; i++) {
            if (i & h)
                continue;
            val a = s->column[i], b = s->column[i + h];
            if (!is_exchange(k, v, a, b, h, INTERLEAVE_LO) || !is_exchange(k, v + 1, a, b, h, INTERLEAVE_HI))
                return false;
            s->column[i] = v++;
            s->column[i + h] = v++;
        }
    s->end = v;
    return true;
}

static bool is_operand_of(const struct linst *i, val v) { return i->a == v || i->b == v || i->c == v || i->d == v; }

/* Is an exchange other than the last ones used after the square? */
static bool is_square_used_within(const struct kernel *k, const struct square *s)
{
    for (val v = s->end; v < k->ninst; v++) {
        const val operand[4] = {k->inst[v].a, k->inst[v].b, k->inst[v].c, k->inst[v].d};
        for (unsigned o = 0; o < 4; o++)
            if (operand[o] >= s->first && operand[o] < s->end - s->n)
                return true;
    }
    return false;
}

/* May the row be loaded where the square is, instead?  Nothing in between stores, or begins or ends a loop. */
static bool is_load_movable(const struct kernel *k, const struct square *s, val row)
{
    const struct linst *i = &k->inst[row];
    if (i->op != L_LOAD || i->b || i->cols || dtype_size(i->dtype) != WORD)
        return false;
    for (val v = row + 1; v < s->first; v++) {
        unsigned op = k->inst[v].op;
        if (op != L_LOAD && op != L_PREFETCH && op != L_SPLAT && op != L_CONST && op < L_PRIM)
            return false;
    }
    return true;
}

/* Finds the rows' addresses.  false: a row is no vector of adjacent words. */
static bool find_addresses(struct emitter *m, struct square *s)
{
    const struct kernel *k = m->k;
    for (unsigned i = 0; i < s->n; i++) {
        if (!is_load_movable(k, s, s->row[i]))
            return false;
        const struct linst *load = &k->inst[s->row[i]];
        const struct emitted *index = &m->v[load->a];
        uint32_t buf = (uint32_t)load->imm;
        uint64_t elements = WORD / dtype_size(k->buf[buf].dtype);
        emit_scalar(m, load->a); /* sets the form of a constant */
        if (index->form != FORM_AFFINE || index->stride != elements || index->repeat != 1)
            return false;
        s->address[i] = emit_address(m, buf, index->scalar);
    }
    return true;
}

/* Piece `number` of a row, as elements of type t. */
static LLVMValueRef load_piece(struct emitter *m, const struct square *s, unsigned row, unsigned number, LLVMTypeRef t)
{
    LLVMValueRef at = LLVMConstInt(m->i64, (uint64_t)PIECE * number, 0);
    LLVMValueRef x = LLVMBuildLoad2(m->b, t, LLVMBuildInBoundsGEP2(m->b, m->i8, s->address[row], &at, 1, ""), "");
    LLVMSetAlignment(x, (unsigned)dtype_size(m->k->buf[m->k->inst[s->row[row]].imm].dtype));
    return x;
}

/* Concatenates `n` pieces of `lanes` elements. */
static LLVMValueRef join_pieces(struct emitter *m, const LLVMValueRef *piece, unsigned n, unsigned lanes)
{
    LLVMValueRef x[MAX_SQUARE];
    unsigned lane[64];
    for (unsigned i = 0; i < 64; i++)
        lane[i] = i;
    for (unsigned i = 0; i < n; i++)
        x[i] = piece[i];
    for (; n > 1; n /= 2, lanes *= 2)
        for (unsigned i = 0; i < n; i += 2)
            x[i / 2] = shuffle(m, x[i], x[i + 1], lane, 2 * lanes);
    return x[0];
}

/* Interleaves groups of `group` elements of the low, or high, half of each piece of x and y, which have `lanes`
 * elements, `in_piece` of them in a piece. */
static LLVMValueRef unpack_pieces(struct emitter *m, LLVMValueRef x, LLVMValueRef y, bool high, unsigned group,
                                  unsigned in_piece, unsigned lanes)
{
    unsigned lane[64];
    for (unsigned i = 0; i < lanes; i++) {
        unsigned in = i % in_piece, first = i - in + (high ? in_piece / 2 : 0);
        lane[i] = first + in / (2 * group) * group + in % group + (in / group % 2 ? lanes : 0);
    }
    return shuffle(m, x, y, lane, lanes);
}

/* Transposes squares of `n` elements within pieces: x[] has n registers of `lanes` elements. */
static void transpose_pieces(struct emitter *m, LLVMValueRef *x, unsigned n, unsigned lanes)
{
    LLVMValueRef y[PIECE / HALF];
    for (unsigned group = 1; group < n; group *= 2) {
        /* register i has groups of `group` rows: with those `group` registers on, it makes two of twice as many */
        for (unsigned i = 0; i < n / 2; i++) {
            unsigned pair = i / group * 2 * group + i % group;
            for (unsigned high = 0; high < 2; high++)
                y[i / group * 2 * group + 2 * (i % group) + high] =
                    unpack_pieces(m, x[pair], x[pair + group], high, group, n, lanes);
        }
        for (unsigned i = 0; i < n; i++)
            x[i] = y[i];
    }
}

/* Sets a value that the emitter makes here. */
static void set_vector(struct emitter *m, val v, LLVMValueRef x)
{
    LLVMValueRef *part = emit_new_parts(m, v);
    if (part)
        part[0] = x;
    m->v[v].form = FORM_VECTOR;
}

/* ---- words ---- */

static void transpose_words(struct emitter *m, const struct square *s)
{
    enum { IN_PIECE = PIECE / WORD };
    unsigned pieces = s->n / IN_PIECE;
    LLVMTypeRef t = LLVMVectorType(type_of(m, m->k->inst[s->row[0]].dtype), IN_PIECE);
    LLVMValueRef x[MAX_SQUARE / IN_PIECE][IN_PIECE], piece[MAX_SQUARE];
    for (unsigned i = 0; i < IN_PIECE; i++)
        for (unsigned p = 0; p < pieces; p++) {
            for (unsigned l = 0; l < pieces; l++)
                piece[l] = load_piece(m, s, IN_PIECE * l + i, p, t);
            x[p][i] = join_pieces(m, piece, pieces, IN_PIECE);
        }
    for (unsigned p = 0; p < pieces; p++) {
        transpose_pieces(m, x[p], IN_PIECE, s->n);
        for (unsigned j = 0; j < IN_PIECE; j++)
            set_vector(m, s->column[IN_PIECE * p + j], x[p][j]);
    }
}

/* ---- halves ---- */

static bool is_prim(const struct linst *i, enum prim p) { return i->op == L_OP(p) && !i->cols; }

/* Is every use of v after it of this kind? */
typedef bool is_use(const struct kernel *k, const struct linst *user, val v);
static bool every_use(const struct kernel *k, val v, is_use *is)
{
    for (val u = v + 1; u < k->ninst; u++)
        if (is_operand_of(&k->inst[u], v) && !is(k, &k->inst[u], v))
            return false;
    return true;
}

static bool is_half_as_float(const struct kernel *k, const struct linst *user, val v)
{
    (void)k, (void)v;
    return is_prim(user, P_BITS) && user->dtype == KL_F16;
}

static bool is_narrowed(const struct kernel *k, const struct linst *user, val v)
{
    (void)v;
    return is_prim(user, P_CAST) && user->dtype == KL_U16 && every_use(k, (val)(user - k->inst), is_half_as_float);
}

static bool is_upper_half(const struct kernel *k, const struct linst *user, val v)
{
    return is_prim(user, P_SHR) && user->a == v && k->inst[user->b].op == L_CONST && k->inst[user->b].imm == 8 * HALF &&
           every_use(k, (val)(user - k->inst), is_narrowed);
}

static bool is_half(const struct kernel *k, const struct linst *user, val v)
{
    return is_narrowed(k, user, v) || is_upper_half(k, user, v);
}

static bool is_square_of_halves(const struct kernel *k, const struct square *s)
{
    for (unsigned i = 0; i < s->n; i++)
        if (k->inst[s->row[i]].dtype != KL_U32 || !every_use(k, s->column[i], is_half))
            return false;
    return true;
}

/* Sets what narrows v to `x`; such instructions are not emitted again. */
static void set_narrowed(struct emitter *m, val v, LLVMValueRef x)
{
    for (val u = v + 1; u < m->k->ninst; u++)
        if (is_operand_of(&m->k->inst[u], v) && is_prim(&m->k->inst[u], P_CAST)) {
            set_vector(m, u, x);
            m->v[u].transposed = true;
        }
}

static void set_halves(struct emitter *m, val column, LLVMValueRef low, LLVMValueRef high)
{
    set_narrowed(m, column, low);
    for (val u = column + 1; u < m->k->ninst; u++)
        if (is_operand_of(&m->k->inst[u], column) && is_prim(&m->k->inst[u], P_SHR)) {
            m->v[u].transposed = true;
            set_narrowed(m, u, high);
        }
}

static void transpose_halves(struct emitter *m, const struct square *s)
{
    enum { IN_PIECE = PIECE / HALF };
    unsigned rows = s->n / IN_PIECE, pieces = s->n * WORD / PIECE, lane[64];
    LLVMTypeRef t = LLVMVectorType(LLVMInt16TypeInContext(m->ctx), IN_PIECE);
    LLVMValueRef x[MAX_SQUARE / IN_PIECE][IN_PIECE], half[2 * MAX_SQUARE], piece[MAX_SQUARE];
    for (unsigned i = 0; i < IN_PIECE; i++)
        for (unsigned p = 0; p < pieces; p += 2) {
            for (unsigned l = 0; l < 2 * rows; l++)
                piece[l] = load_piece(m, s, IN_PIECE * (l % rows) + i, p + l / rows, t);
            x[p / 2][i] = join_pieces(m, piece, 2 * rows, IN_PIECE);
        }
    for (unsigned p = 0; p < pieces; p++) {
        if (p % 2 == 0)
            transpose_pieces(m, x[p / 2], IN_PIECE, 2 * s->n);
        for (unsigned i = 0; i < s->n; i++)
            lane[i] = p % 2 * s->n + i;
        for (unsigned j = 0; j < IN_PIECE; j++)
            half[IN_PIECE * p + j] = shuffle(m, x[p / 2][j], NULL, lane, s->n);
    }
    for (unsigned i = 0; i < s->n; i++)
        set_halves(m, s->column[i], half[2 * i], half[2 * i + 1]);
}

val emit_transpose(struct emitter *m, val v)
{
    enum { MIN_BYTES = 2 * PIECE }; /* of a register that has more than one piece */
    struct square s;
    if (!m->x86 || m->parts != 1 || m->native * WORD < MIN_BYTES || m->native > MAX_SQUARE ||
        !find_square(m->k, v, m->native, &s) || is_square_used_within(m->k, &s) || !find_addresses(m, &s))
        return 0;
    (is_square_of_halves(m->k, &s) ? transpose_halves : transpose_words)(m, &s);
    return s.end;
}
