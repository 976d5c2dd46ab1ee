/* Emits values: constants, the primitives of prims.def and the exchange of values between lanes.  Integers of fewer
 * than 32 bits are computed as u32 and truncated; signed integers are computed as unsigned ones, so that overflow is
 * defined.  Every operand is a name or a literal, so it may occur several times. */
#include "emit_source.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static bool is_wide(unsigned dtype) { return dtype_size(dtype) == 8; }
static bool is_signed(unsigned dtype) { return dtype_kind(dtype) == 'I'; }
static const char *unsigned_type(unsigned dtype) { return is_wide(dtype) ? "u64" : "u32"; } /* the type in which it is
                                                                                          computed */

/* ---- literals ---- */

/* In shaders in the graph's order a constant 0 is a number that the compiler does not know.  Mesa's, for lavapipe,
 * makes x of x + 0.0, 0.0 of x * 0.0 whatever x, and takes -0.0 for 0.0 in choices, also where signs of zeros are to
 * be kept. */
bool source_hides_zeros(const struct emitter *m) { return m->d->table && m->k->sched.graph_order; }

/* The bits of a 0 or -0 of a dtype as text of the type in which they are computed. */
static void hidden_zero(const struct emitter *m, unsigned dtype, uint64_t bits, char *out)
{
    const char *n = dtype_name(dtype);
    if (dtype == KL_F64)
        snprintf(out, MAX_OPERAND, "f64_of_bits(u64(zero_bits) | 0x%016" PRIx64 "%s)", bits, m->d->u64);
    else
        snprintf(out, MAX_OPERAND, dtype == KL_F32 ? "%s_of_bits(zero_bits | 0x%08" PRIx64 "u)"
                                                   : "%s(zero_bits | 0x%04" PRIx64 "u)", n, bits);
}

/* Writes a float with the fewest digits that give it exactly, or by its bits if there are no such digits or if a
 * compiler may flush it to zero. */
static void float_literal(const struct emitter *m, unsigned dtype, uint64_t bits, char *out)
{
    double x = dtype_value(dtype, bits);
    if (!isfinite(x) || (x != 0 && fabs(x) < (dtype == KL_F32 ? 0x1p-126 : 0x1p-1022))) {
        if (dtype == KL_F32)
            snprintf(out, MAX_OPERAND, "f32_of_bits(0x%08" PRIx64 "u)", bits);
        else
            snprintf(out, MAX_OPERAND, "f64_of_bits(0x%016" PRIx64 "%s)", bits, m->d->u64);
        return;
    }
    char digits[40];
    format_text(digits, sizeof digits, dtype == KL_F32 ? "%.9g" : "%.17g", x);
    const char *point = strpbrk(digits, ".e") ? "" : ".0", *suffix = dtype == KL_F32 ? "f" : m->d->f64;
    snprintf(out, MAX_OPERAND, signbit(x) ? "(%s%s%s)" : "%s%s%s", digits, point, suffix);
}

static void source_value_literal(const struct emitter *m, unsigned dtype, uint64_t bits, char *out)
{
    int64_t x = dtype_is_float(dtype) || dtype_size(dtype) == 8 ? 0 : (int64_t)dtype_value(dtype, bits);
    if (dtype_is_float(dtype) && dtype_value(dtype, bits) == 0 && source_hides_zeros(m)) {
        hidden_zero(m, dtype, bits, out);
        return;
    }
    switch (dtype) {
    case KL_BOOL:
        snprintf(out, MAX_OPERAND, bits ? "true" : "false");
        break;
    case KL_F32:
    case KL_F64:
        float_literal(m, dtype, bits, out);
        break;
    case KL_F16:
    case KL_BF16:
        snprintf(out, MAX_OPERAND, "%s(0x%04" PRIx64 "u)", dtype_name(dtype), bits);
        break;
    case KL_U64:
        snprintf(out, MAX_OPERAND, "%" PRIu64 "%s", bits, m->d->u64);
        break;
    case KL_U32:
        snprintf(out, MAX_OPERAND, "%" PRIu64 "u", bits);
        break;
    case KL_I64:
        x = (int64_t)bits;
        if (x == INT64_MIN)
            snprintf(out, MAX_OPERAND, "i64(0x8000000000000000%s)", m->d->u64);
        else
            snprintf(out, MAX_OPERAND, x < 0 ? "(%" PRId64 "%s)" : "%" PRId64 "%s", x, m->d->i64);
        break;
    case KL_I32:
        if (x == INT32_MIN)
            snprintf(out, MAX_OPERAND, "i32(0x80000000u)");
        else
            snprintf(out, MAX_OPERAND, x < 0 ? "(%" PRId64 ")" : "%" PRId64, x);
        break;
    default:
        snprintf(out, MAX_OPERAND, "%s(%" PRId64 ")", dtype_name(dtype), x);
    }
}

const char *source_operand(const struct emitter *m, val v, char out[MAX_OPERAND])
{
    const struct linst *i = &m->k->inst[v];
    if (i->op == L_CONST)
        source_value_literal(m, i->dtype, i->imm, out);
    else if (i->cols && m->unit)
        source_matrix_name(m, v, out);
    else if (i->cols)
        snprintf(out, MAX_OPERAND, "v%u_%u", v, (i->rows > 1 ? m->row : 0) * i->cols + (i->cols > 1 ? m->col : 0));
    else
        snprintf(out, MAX_OPERAND, !m->narrow[v] ? "v%u" : m->d->table ? "i64(widened_i32(v%u))" : "i64(v%u)", v);
    return out;
}

const char *source_index(const struct emitter *m, val v, bool *fits, char out[MAX_OPERAND])
{
    *fits = source_fits(m, v);
    if (!*fits)
        return source_operand(m, v, out);
    if (m->k->inst[v].op == L_CONST)
        source_value_literal(m, KL_I32, (uint64_t)(uint32_t)m->k->inst[v].imm, out);
    else
        snprintf(out, MAX_OPERAND, "v%u", v);
    return out;
}

const char *source_bits(unsigned dtype, const char *bits, char *out, size_t size)
{
    const char *form = dtype == KL_BOOL ? "(u32(%s) & 255u) != 0u" : dtype == KL_F32 ? "f32_of_bits(u32(%s))"
                     : dtype == KL_F64 ? "f64_of_bits(%s)" : NULL;
    if (form)
        snprintf(out, size, form, bits);
    else
        snprintf(out, size, "%s(%s)", dtype_name(dtype), bits);
    return out;
}

const char *source_type(const struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    return source_is_opaque(m) && i->cols ? "matrix_sums" : dtype_name(i->dtype);
}

const char *source_qualifier(const struct emitter *m, val v, bool changes)
{
    const struct linst *i = &m->k->inst[v];
    bool exact = (i->dtype == KL_F32 || i->dtype == KL_F64) && !(source_is_opaque(m) && i->cols);
    return exact && (m->d->table || !changes) ? m->d->exact : changes ? "" : m->d->local;
}

void source_declare(struct emitter *m, val v)
{
    char name[MAX_OPERAND];
    source_line(m);
    if (m->narrow[v])
        text_put(m->t, "%si32 v%u = ", m->d->local, v);
    else
        text_put(m->t, "%s%s %s = ", source_qualifier(m, v, false), source_type(m, v), source_operand(m, v, name));
}

/* ---- primitives ---- */

/* Is it a constant other than 0 and -1, by which every integer can be divided? */
static bool is_safe_divisor(const struct linst *b)
{
    uint64_t all = UINT64_MAX >> (64 - 8 * dtype_size(b->dtype)), bits = b->imm & all;
    return b->op == L_CONST && bits && (!is_signed(b->dtype) || bits != all);
}

/* x / 0 is 0 and INT_MIN / -1 is INT_MIN, so the division gets only safe divisors.  safe: this one is. */
static void emit_safe_divide(struct text *t, unsigned dtype, const char *a, const char *b, bool safe)
{
    const char *n = dtype_name(dtype);
    if (!safe)
        text_put(t, "%s == %s(0) ? %s(0) : ", b, n, n);
    if (!safe && is_signed(dtype))
        text_put(t, "%s == %s(-1) ? %s(%s(0) - %s(%s)) : ", b, n, n, unsigned_type(dtype), unsigned_type(dtype), a);
    text_put(t, "%s(%s / %s)", n, a, b);
}

/* The test for NaN.  NVIDIA's compiler of GLSL was seen to take x != x for false where x is the result of roundEven or
 * sqrt, so GLSL tests the bits. */
static void put_nan_test(struct text *t, bool glsl, unsigned dtype, const char *x)
{
    if (glsl)
        text_put(t, "is_nan_%s(%s)", dtype_name(dtype), x);
    else
        text_put(t, "%s != %s", x, x);
}

static void source_value_compare(struct text *t, bool glsl, enum prim p, unsigned dtype, const char *a, const char *b)
{
    bool is_float = dtype == KL_F32 || dtype == KL_F64, same = is_float && !strcmp(a, b);
    static const char *const sign[] = {[P_EQ] = "==", [P_NE] = "!=", [P_LT] = "<", [P_LE] = "<="};
    if (dtype == KL_BOOL && (p == P_LT || p == P_LE))
        text_put(t, "!%s %s %s", a, p == P_LT ? "&&" : "||", b);
    else if (same && p == P_NE)
        put_nan_test(t, glsl, dtype, a);
    else
        text_put(t, "%s %s %s", a, sign[p], b);
}

/* Truncates and saturates; NaN becomes 0.  The limits are powers of two, which every float type can represent. */
static void float_to_integer(struct text *t, bool glsl, unsigned from, unsigned to, const char *a)
{
    const char *n = dtype_name(to), *f = dtype_name(from);
    int bits = 8 * (int)dtype_size(to);
    const char *u = unsigned_type(to);
    if (is_signed(to)) {
        put_nan_test(t, glsl, from, a);
        text_put(t, " ? %s(0) : %s <= %s(%.1f) ? %s(%s(1) << %d) : %s >= %s(%.1f) ? %s((%s(1) << %d) - %s(1)) : %s(%s)",
                 n, a, f, -ldexp(1, bits - 1), n, u, bits - 1, a, f, ldexp(1, bits - 1), n, u, bits - 1, u, n, a);
    } else {
        text_put(t, "!(%s > %s(0)) ? %s(0) : %s >= %s(%.1f) ? %s(~%s(0)) : %s(%s)", a, f, n, a, f, ldexp(1, bits), n, u,
                 n, a);
    }
}

/* Widens integers to 64 bits by halves, because Mesa 22's optimizer narrows the constant to which a widened number is
 * compared, which gives a wrong result. */
static bool source_value_widen(struct text *t, unsigned from, unsigned to, const char *a)
{
    char kind = dtype_kind(from);
    if (!is_wide(to) || is_wide(from) || dtype_is_float(to) || (kind != 'I' && kind != 'U'))
        return false;
    text_put(t, "%s(widened_%s(%s(%s)))", dtype_name(to), kind == 'I' ? "i32" : "u32", kind == 'I' ? "i32" : "u32", a);
    return true;
}

static void emit_cast(struct text *t, bool glsl, unsigned from, unsigned to, const char *a)
{
    const char *n = dtype_name(to);
    if (glsl && source_value_widen(t, from, to, a))
        return;
    if (from == to)
        text_put(t, "%s", a);
    else if (dtype_is_half(from))
        text_put(t, "f32_of_%s(%s)", dtype_name(from), a);
    else if (dtype_is_half(to))
        text_put(t, "%s_of_f32(%s)", n, a);
    else if (to == KL_BOOL)
        text_put(t, "%s != %s(0)", a, dtype_name(from));
    else if (dtype_is_float(from) && !dtype_is_float(to))
        float_to_integer(t, glsl, from, to, a);
    else
        text_put(t, "%s(%s)", n, a);
}

static void emit_bit_cast(struct text *t, unsigned from, unsigned to, const char *a)
{
    if (from == to)
        text_put(t, "%s", a);
    else if (to == KL_F32 || to == KL_F64)
        text_put(t, "%s_of_bits(%s(%s))", dtype_name(to), unsigned_type(to), a);
    else if (from == KL_F32 || from == KL_F64)
        text_put(t, "%s(bits_of_%s(%s))", dtype_name(to), dtype_name(from), a);
    else
        text_put(t, "%s(%s)", dtype_name(to), a);
}

/* Computes on the wider type and truncates the result to the value's type; u32 and u64 need no conversion. */
static void emit_integer_prim(struct text *t, enum prim p, unsigned dtype, const char *a, const char *b)
{
    static const char *const sign[] = {[P_ADD] = "+", [P_SUB] = "-", [P_MUL] = "*", [P_AND] = "&", [P_OR] = "|",
                                       [P_XOR] = "^"};
    bool itself = dtype == KL_U32 || dtype == KL_U64;
    const char *n = itself ? "" : dtype_name(dtype), *u = itself ? "" : unsigned_type(dtype), *w = unsigned_type(dtype);
    unsigned mask = 8 * (unsigned)dtype_size(dtype) - 1;
    switch (p) {
    case P_NEG: text_put(t, "%s(%s(0) - %s(%s))", n, w, u, a); break;
    case P_NOT: text_put(t, "%s(~%s)", n, a); break;
    case P_SHL: text_put(t, "%s(%s(%s) << (%s(%s) & %s(%u)))", n, u, a, u, b, w, mask); break;
    case P_SHR: text_put(t, "%s(%s >> %s(%s(%s) & %s(%u)))", n, a, n, u, b, w, mask); break;
    case P_ABS:
        if (is_signed(dtype))
            text_put(t, "%s < %s(0) ? %s(%s(0) - %s(%s)) : %s", a, n, n, u, u, a, a);
        else
            text_put(t, "%s", a);
        break;
    default:
        if (itself)
            text_put(t, "%s %s %s", a, sign[p], b);
        else
            text_put(t, "%s(%s(%s) %s %s(%s))", n, u, a, sign[p], u, b);
    }
}

static void emit_bool_prim(struct text *t, enum prim p, const char *a, const char *b)
{
    if (p == P_NOT)
        text_put(t, "!%s", a);
    else
        text_put(t, "%s %s %s", a, p == P_AND ? "&&" : p == P_OR ? "||" : "!=", b);
}

/* The function that adds to a chain or, if it is none, to another number: in a shader `sum` rounds as the device does,
 * `fma` nearly once, and `exact_fma`, of kernels in the graph's order, once. */
static const char *fma_function(const struct emitter *m, bool chain)
{
    return !m->d->table ? "fma" : m->k->sched.graph_order ? "exact_fma" : chain ? "sum" : "fma";
}

static void emit_float_prim(struct text *t, enum prim p, unsigned dtype, const char *fma, const char *a, const char *b,
                            const char *c)
{
    const char *n = dtype_name(dtype);
    switch (p) {
    case P_ADD: text_put(t, "%s + %s", a, b); break;
    case P_SUB: text_put(t, "%s - %s", a, b); break;
    case P_MUL: text_put(t, "%s * %s", a, b); break;
    case P_DIV: text_put(t, "%s / %s", a, b); break;
    case P_NEG: text_put(t, "-%s", a); break;
    case P_FMA: text_put(t, "%s_%s(%s, %s, %s)", fma, n, a, b, c); break;
    case P_SQRT: text_put(t, "sqrt_%s(%s)", n, a); break;
    case P_EXP2: text_put(t, "exp2_%s(%s)", n, a); break;
    case P_RECIP: text_put(t, "recip_%s(%s)", n, a); break;
    case P_RINT: text_put(t, "rint_%s(%s)", n, a); break;
    default: text_put(t, "abs_%s(%s)", n, a);
    }
}

/* Is it an f32 cast to bf16 and back? */
static bool rounds_to_bf16(const struct emitter *m, const struct linst *i)
{
    const struct linst *x = &m->k->inst[i->a];
    return i->dtype == KL_F32 && x->dtype == KL_BF16 && x->op == L_OP(P_CAST) && m->k->inst[x->a].dtype == KL_F32;
}

/* Mesa 22 assumes that 0 / x is 0, also for x = 0.  So in shaders a value that a driver's compiler may find to be a
 * constant is computed from an argument of the launch: begin is at least 0. */
static void make_opaque(const struct emitter *m, val v, char out[2 * MAX_OPERAND])
{
    char x[MAX_OPERAND];
    bool wide = m->k->inst[v].dtype == KL_F64;
    const char *n = dtype_name(m->k->inst[v].dtype);
    snprintf(x, sizeof x, "%.*s", MAX_OPERAND - 1, out);
    if (m->known[v])
        snprintf(out, 2 * MAX_OPERAND, "%s_of_bits(bits_of_%s(%s) ^ %s(begin >> 63))", n, n, x, wide ? "u64" : "u32");
}

void source_prim(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    enum prim p = (enum prim)(i->op - L_PRIM);
    const val in[3] = {i->a, i->b, i->c};
    unsigned from = m->k->inst[i->a].dtype, to = m->narrow[v] ? KL_I32 : i->dtype;
    bool compares = p == P_EQ || p == P_NE || p == P_LT || p == P_LE, fits;
    bool index = m->narrow[v] || ((compares || p == P_CAST) && source_fits(m, i->a) &&
                                  (!compares || source_fits(m, i->b)));
    char x[3][2 * MAX_OPERAND];
    for (int o = 0; o < 3; o++)
        if (index && m->k->inst[in[o]].dtype == KL_I64)
            source_index(m, in[o], &fits, x[o]);
        else
            source_operand(m, in[o], x[o]);
    for (int o = 0; p == P_DIV && m->d->table && dtype_is_float(from) && o < 2; o++)
        make_opaque(m, in[o], x[o]);
    const char *a = x[0], *b = x[1], *c = x[2];
    if (index && from == KL_I64)
        from = KL_I32;
    source_declare(m, v);
    if (p == P_SELECT)
        text_put(m->t, "%s ? %s : %s", a, b, c);
    else if (p == P_CAST && rounds_to_bf16(m, i))
        text_put(m->t, "rounded_bf16(%s)", source_operand(m, m->k->inst[i->a].a, x[0]));
    else if (p == P_CAST)
        emit_cast(m->t, m->d->table, from, to, a);
    else if (p == P_BITS)
        emit_bit_cast(m->t, from, to, a);
    else if (p == P_DOT2)
        text_put(m->t, "dot2_f32(%s, %s, %s)", a, b, c);
    else if (compares)
        source_value_compare(m->t, m->d->table, p, from, a, b);
    else if (from == KL_BOOL)
        emit_bool_prim(m->t, p, a, b);
    else if (dtype_is_float(from))
        emit_float_prim(m->t, p, from, fma_function(m, m->chain[v]), a, b, c);
    else if (p == P_DIV)
        emit_safe_divide(m->t, from, a, b, is_safe_divisor(&m->k->inst[i->b]));
    else
        emit_integer_prim(m->t, p, from, a, b);
    text_put(m->t, ";\n");
}

/* ---- products of tiles ---- */

/* An operand's element as it is multiplied: half floats as f32, bytes as i32. */
static const char *factor_operand(const struct emitter *m, val v, char out[2 * MAX_OPERAND])
{
    unsigned dtype = m->k->inst[v].dtype;
    char x[MAX_OPERAND];
    source_operand(m, v, x);
    if (dtype_is_half(dtype))
        snprintf(out, 2 * MAX_OPERAND, "f32_of_%s(%s)", dtype_name(dtype), x);
    else if (dtype_size(dtype) == 1)
        snprintf(out, 2 * MAX_OPERAND, "i32(%s)", x);
    else
        snprintf(out, 2 * MAX_OPERAND, "%s", x);
    return out;
}

/* Emits the element (row, col): a chain of products added to c's element.  One ascending chain is also valid for
 * MMA_ANY. */
void source_mma(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const char *n = dtype_name(i->dtype), *u = unsigned_type(i->dtype);
    unsigned row = m->row, col = m->col, depth = m->k->inst[i->a].cols;
    char sum[MAX_OPERAND], x[MAX_OPERAND], a[2 * MAX_OPERAND], b[2 * MAX_OPERAND];
    source_operand(m, v, sum);
    source_operand(m, i->c, x);
    source_line(m);
    text_put(m->t, "%s%s %s = %s;", dtype_is_float(i->dtype) && m->d->table ? m->d->exact : "", n, sum, x);
    for (unsigned kk = 0; kk < depth; kk++) {
        m->col = kk;
        factor_operand(m, i->a, a);
        m->row = kk, m->col = col;
        factor_operand(m, i->b, b);
        m->row = row;
        if (dtype_is_float(i->dtype))
            text_put(m->t, " %s = %s_%s(%s, %s, %s);", sum, fma_function(m, true), n, a, b, sum);
        else
            text_put(m->t, " %s = %s(%s(%s) + %s(%s) * %s(%s));", sum, n, u, sum, u, a, u, b);
    }
    text_put(m->t, "\n");
}

/* ---- lanes ---- */

const char *exchange_type(unsigned dtype)
{
    return dtype == KL_F32 || dtype == KL_F64 ? dtype_name(dtype) : unsigned_type(dtype);
}

bool exchanges(const struct emitter *m, val v, uint32_t width)
{
    const struct linst *i = &m->k->inst[v];
    return i->op == L_LANE_REDUCE ? width > 1 && width > m->shuffle : i->imm >= (m->shuffle ? m->shuffle : 1);
}

/* Stores x of every thread where the other threads can read it. */
static void store_to_exchange(struct emitter *m, const char *type, const char *x)
{
    source_line(m);
    text_put(m->t, "%s x_%s[t] = %s(%s); %s\n", m->d->barrier, type, type, x, m->d->barrier);
}

void source_fold_step(struct emitter *m, val v, const char *low, const char *high)
{
    const struct linst *i = &m->k->inst[v];
    const char *n = dtype_name(i->dtype), *u = unsigned_type(i->dtype);
    enum fold f = (enum fold)i->imm;
    if (f == FOLD_ADD || f == FOLD_MUL) {
        const char *sign = f == FOLD_ADD ? "+" : "*";
        if (dtype_is_float(i->dtype))
            text_put(m->t, "%s = %s %s %s;", low, low, sign, high);
        else
            text_put(m->t, "%s = %s(%s(%s) %s %s(%s));", low, n, u, low, sign, u, high);
    } else if (f == FOLD_MAX && i->dtype == KL_F32 && i->cols && m->unit) {
        text_put(m->t, "%s = max_f32(%s, %s);", low, low, high);
    } else {
        text_put(m->t, "%s = %s < %s", low, f == FOLD_MAX ? high : low, f == FOLD_MAX ? low : high);
        if (dtype_is_float(i->dtype)) {
            text_put(m->t, " || ");
            put_nan_test(m->t, m->d->table, i->dtype, low);
        }
        text_put(m->t, " ? %s : %s;", low, high);
    }
}

/* Reduces `lanes` lanes to `near` lanes through memory.  Every thread reads the values of all lanes that its lane
 * stands for, and reduces them in the order in which the lanes would be reduced, the most distant first. */
static void fold_far(struct emitter *m, val v, uint32_t lanes, uint32_t near)
{
    const struct linst *i = &m->k->inst[v];
    const char *n = dtype_name(i->dtype), *x = exchange_type(i->dtype);
    const char *exact = dtype_is_float(i->dtype) && m->d->table ? m->d->exact : "";
    uint32_t far = lanes / near;
    char name[16];
    snprintf(name, sizeof name, "v%u", v);
    store_to_exchange(m, x, name);
    source_line(m);
    text_put(m->t, "{\n");
    m->depth++;
    for (uint32_t h = 0; h < far; h++) {
        source_line(m);
        text_put(m->t, "%s%s y%u = %s(x_%s[(t & %uu) + %uu]);\n", exact, n, h, n, x, near - 1, h * near);
    }
    source_fold_variables(m, v, far, 1);
    source_line(m);
    text_put(m->t, "v%u = y0;\n", v);
    m->depth--;
    source_line(m);
    text_put(m->t, "}\n");
}

enum { FOLDED_AT_ONCE = 32 }; /* lanes that a thread reads for one of its own */

void source_fold(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const char *n = dtype_name(i->dtype), *x = exchange_type(i->dtype);
    const char *exact = dtype_is_float(i->dtype) && m->d->table ? m->d->exact : "";
    char a[MAX_OPERAND], name[16];
    snprintf(name, sizeof name, "v%u", v);
    source_line(m);
    text_put(m->t, "%s%s v%u = %s;\n", exact, n, v, source_operand(m, i->a, a));
    uint32_t lanes = m->width, shuffled = m->shuffle ? m->shuffle : 1;
    while (lanes > shuffled) {
        uint32_t near = lanes / FOLDED_AT_ONCE > shuffled ? lanes / FOLDED_AT_ONCE : shuffled;
        fold_far(m, v, lanes, near);
        lanes = near;
    }
    for (uint32_t h = lanes / 2; h; h /= 2) {
        source_line(m);
        text_put(m->t, "{ const %s y = %s(lane_below(%s(v%u), %u, %u)); ", n, n, x, v, h, lanes);
        source_fold_step(m, v, name, "y");
        text_put(m->t, " }\n");
    }
    if (lanes > 1) {
        source_line(m);
        text_put(m->t, "v%u = %s(lane_first(%s(v%u), %u));\n", v, n, x, v, lanes);
    }
}

void source_interleave(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const char *x = exchange_type(i->dtype);
    char a[MAX_OPERAND], b[MAX_OPERAND], other[2 * MAX_OPERAND];
    uint32_t h = (uint32_t)i->imm;
    source_operand(m, i->a, a);
    source_operand(m, i->b, b);
    const char *given = i->kind == INTERLEAVE_LO ? b : a;
    if (exchanges(m, v, m->width)) {
        store_to_exchange(m, x, given);
        snprintf(other, sizeof other, "x_%s[t ^ %uu]", x, h);
    } else {
        snprintf(other, sizeof other, "lane_across(%s(%s), %u, %u)", x, given, h,
                 m->width < m->shuffle ? m->width : m->shuffle);
    }
    /* all lanes take part in the exchange, then each selects */
    source_line(m);
    text_put(m->t, "%s%s w%u = %s(%s);\n", m->d->local, x, v, x, other);
    source_declare(m, v);
    if (i->kind == INTERLEAVE_LO)
        text_put(m->t, "(t & %uu) != 0u ? %s(w%u) : %s;\n", h, dtype_name(i->dtype), v, a);
    else
        text_put(m->t, "(t & %uu) != 0u ? %s : %s(w%u);\n", h, b, dtype_name(i->dtype), v);
}
