/* A kernel as C.  Every value is a variable, or an array of its lanes or elements if it has several; every instruction
 * is a statement, in a loop over these. */
#include "codegen/c/emit.h"

enum { OPERAND = 64 };
struct c_emitter { const struct kernel *k; struct text *t; unsigned width[]; }; /* width: lanes of each value */

static const struct linst *c_inst(const struct c_emitter *m, val v) { return &m->k->inst[v]; }
static unsigned c_rows_of(const struct c_emitter *m, val v) { return c_inst(m, v)->cols ? c_inst(m, v)->rows : 1; }
static unsigned c_cols_of(const struct c_emitter *m, val v)
{
    return c_inst(m, v)->cols ? c_inst(m, v)->cols : m->width[v];
}
static const char *c_memory_type(unsigned dtype) { return dtype == KL_BOOL ? "u8" : dtype_name(dtype); }
static bool c_wraps(unsigned dtype) { return !dtype_is_float(dtype); } /* integers are added as unsigned ones */

/* Element (row, col) of v; a row, a column or a scalar is broadcast. */
static const char *c_element(const struct c_emitter *m, val v, const char *row, const char *col, char x[OPERAND])
{
    const struct linst *i = c_inst(m, v);
    unsigned rows = c_rows_of(m, v), cols = c_cols_of(m, v);
    if (i->op == L_CONST && (i->dtype == KL_F32 || i->dtype == KL_F64))
        snprintf(x, OPERAND, "bits_u%u_%s(0x%llxu)", 8 * (unsigned)dtype_size(i->dtype), dtype_name(i->dtype),
                 (unsigned long long)i->imm);
    else if (i->op == L_CONST)
        snprintf(x, OPERAND, "(%s)0x%llxu", dtype_name(i->dtype), (unsigned long long)i->imm);
    else if (rows * cols == 1 && !i->cols)
        snprintf(x, OPERAND, "v%u", v);
    else
        snprintf(x, OPERAND, "v%u[%s * %u + %s]", v, rows > 1 ? row : "0", cols, cols > 1 ? col : "0");
    return x;
}

/* Starts a statement for each element of rows x cols. */
static void c_each(struct c_emitter *m, unsigned rows, unsigned cols)
{
    if (rows > 1)
        text_put(m->t, "for (int r = 0; r < %u; r++) ", rows);
    if (cols > 1)
        text_put(m->t, "for (int c = 0; c < %u; c++) ", cols);
}

static void c_assign(struct c_emitter *m, val v)
{
    char x[OPERAND];
    c_each(m, c_rows_of(m, v), c_cols_of(m, v));
    text_put(m->t, "%s = ", c_element(m, v, "r", "c", x));
}

static void c_copy(struct c_emitter *m, val to, val from)
{
    char x[OPERAND];
    c_assign(m, to);
    text_put(m->t, "%s;\n", c_element(m, from, "r", "c", x));
}

/* ---- primitives ---- */

static void c_cast(struct c_emitter *m, unsigned from, unsigned to, const char *x)
{
    const char *name = dtype_name(to);
    char source = dtype_kind(from), target = dtype_kind(to);
    if (from != to && dtype_is_half(from))
        text_put(m->t, "f32_%s(%s)", dtype_name(from), x);
    else if (from != to && dtype_is_half(to))
        text_put(m->t, "%s_f32(%s)", name, x);
    else if (target == 'B')
        text_put(m->t, "%s != 0", x);
    else if (source == 'F' && (target == 'I' || target == 'U'))
        text_put(m->t, "%s_%s(%s)", name, dtype_name(from), x);
    else
        text_put(m->t, "(%s)%s", name, x);
}

static void c_prim(struct c_emitter *m, val v)
{
    static const char *const number[P_COUNT] = {
        [P_ADD] = "(T)((W_T)A + (W_T)B)", [P_SUB] = "(T)((W_T)A - (W_T)B)", [P_MUL] = "(T)((W_T)A * (W_T)B)",
        [P_NEG] = "(T)(0 - (W_T)A)", [P_AND] = "(T)(A & B)", [P_OR] = "(T)(A | B)", [P_XOR] = "(T)(A ^ B)",
        [P_NOT] = "(T)~A", [P_EQ] = "A == B", [P_NE] = "A != B", [P_LT] = "A < B", [P_LE] = "A <= B",
        [P_SELECT] = "A ? B : C", [P_SHL] = "(T)((W_T)A << (B & (8 * sizeof(T) - 1)))",
        [P_SHR] = "(T)(A >> (B & (8 * sizeof(T) - 1)))",
        [P_DIV] = "B == 0 ? (T)0 : (T)~B == 0 ? (T)(0 - (W_T)A) : (T)(A / B)",
        [P_ABS] = "A < 0 ? (T)(0 - (W_T)A) : A", [P_DOT2] = "dot2_f32(A, B, C)"};
    static const char *const real[P_COUNT] = {
        [P_ADD] = "A + B", [P_SUB] = "A - B", [P_MUL] = "A * B", [P_NEG] = "-A", [P_DIV] = "A / B",
        [P_FMA] = "fma_T(A, B, C)", [P_SQRT] = "sqrt_T(A)", [P_RINT] = "rint_T(A)", [P_ABS] = "abs_T(A)"};
    const struct linst *i = c_inst(m, v);
    const val in[3] = {i->a, i->b, i->c};
    unsigned p = i->op - L_PRIM, from = c_inst(m, p == P_SELECT ? i->b : i->a)->dtype;
    char x[3][OPERAND] = {"", "", ""};
    for (int o = 0; o < 3 && in[o]; o++)
        c_element(m, in[o], "r", "c", x[o]);
    c_assign(m, v);
    if (p == P_CAST) {
        c_cast(m, from, i->dtype, x[0]);
    } else if (p == P_BITS) {
        if (from != i->dtype)
            text_put(m->t, "bits_%s_%s", dtype_name(from), dtype_name(i->dtype));
        text_put(m->t, "(%s)", x[0]);
    } else if (p == P_NOT && from == KL_BOOL) {
        text_put(m->t, "!%s", x[0]);
    } else {
        const char *s = dtype_kind(from) == 'F' && real[p] ? real[p] : number[p];
        if (p == P_DIV && dtype_kind(from) == 'U')
            s = "B == 0 ? (T)0 : (T)(A / B)";
        for (const char *text = s; *s; s++)
            if (!(*s >= 'A' && *s <= 'C') && *s != 'T') /* T: the dtype */
                text_put(m->t, "%c", *s);
            else if ((s[1] >= 'A' && s[1] <= 'Z') || s[1] == '_' || (s > text && s[-1] >= 'A' && s[-1] <= 'Z'))
                /* a letter of a longer name */
                text_put(m->t, "%c", *s);
            else
                text_put(m->t, "%s", *s == 'T' ? dtype_name(from) : x[*s - 'A']);
    }
    text_put(m->t, ";\n");
}

/* ---- lanes and tiles ---- */

/* The macro of the prelude. */
static const char *c_fold_name(unsigned fold, unsigned dtype)
{
    static const char *const name[FOLD_COUNT] = {
        [FOLD_ADD] = "ADD", [FOLD_MAX] = "MAX", [FOLD_MIN] = "MIN", [FOLD_MUL] = "MUL"};
    bool wrapped = c_wraps(dtype) && (fold == FOLD_ADD || fold == FOLD_MUL);
    return !wrapped ? name[fold] : fold == FOLD_ADD ? "WADD" : "WMUL";
}

static void c_fold(struct c_emitter *m, val v)
{
    const struct linst *i = c_inst(m, v);
    char x[OPERAND];
    unsigned w = m->width[i->a];
    text_put(m->t, "{ %s x[%u]; for (int c = 0; c < %u; c++) x[c] = %s;\n", dtype_name(i->dtype), w, w,
             c_element(m, i->a, "r", "c", x));
    text_put(m->t, "for (int h = %u; h; h /= 2) for (int c = 0; c < h; c++) x[c] = %s(%s, x[c], x[c + h]);\n", w / 2,
             c_fold_name((unsigned)i->imm, i->dtype), dtype_name(i->dtype));
    text_put(m->t, "v%u = x[0]; }\n", v);
}

static void c_interleave(struct c_emitter *m, val v)
{
    const struct linst *i = c_inst(m, v);
    const char *low = i->kind == INTERLEAVE_LO ? "c & %u ? v%u[c - %u] : v%u[c];\n"
                                               : "c & %u ? v%u[c] : v%u[c + %u];\n";
    unsigned h = (unsigned)i->imm;
    c_assign(m, v);
    text_put(m->t, low, h, i->b, i->kind == INTERLEAVE_LO ? h : i->a, i->kind == INTERLEAVE_LO ? i->a : h);
}

static void c_mma_even_odd(struct c_emitter *m, val v)
{
    const struct linst *i = c_inst(m, v);
    char a[OPERAND], b[OPERAND], sum[OPERAND];
    c_each(m, i->rows, i->cols);
    text_put(m->t, "{ f32 s[2] = {0, 0}; for (int k = 0; k < %u; k++) ", c_inst(m, i->a)->cols);
    text_put(m->t, "s[k %% 2] = fma_flushed(f32_bf16(%s), ", c_element(m, i->a, "r", "k", a));
    text_put(m->t, "f32_bf16((bf16)(%s >> 16 * (k %% 2))), s[k %% 2]); ", c_element(m, i->b, "(k / 2)", "c", b));
    text_put(m->t, "%s = fma_flushed(1, fma_flushed(1, s[0], s[1]), ", c_element(m, v, "r", "c", a));
    text_put(m->t, "%s); }\n", c_element(m, i->c, "r", "c", sum));
}

static void c_mma(struct c_emitter *m, val v)
{
    const struct linst *i = c_inst(m, v);
    const char *t = dtype_name(i->dtype);
    char x[OPERAND];
    if (i->kind == MMA_EVEN_ODD) {
        c_mma_even_odd(m, v);
        return;
    }
    c_each(m, i->rows, i->cols);
    text_put(m->t, "{ %s s = %s; ", t, c_element(m, i->c, "r", "c", x));
    text_put(m->t, "for (int k = 0; k < %u; k++) s = ", c_inst(m, i->a)->cols);
    if (dtype_is_float(i->dtype))
        text_put(m->t, "fma_%s(", t);
    else
        text_put(m->t, "WADD(%s, WMUL(%s, ", t, t);
    c_cast(m, c_inst(m, i->a)->dtype, i->dtype, c_element(m, i->a, "r", "k", x));
    text_put(m->t, ", ");
    c_cast(m, c_inst(m, i->b)->dtype, i->dtype, c_element(m, i->b, "k", "c", x));
    text_put(m->t, dtype_is_float(i->dtype) ? ", s); %s = s; }\n" : "), s); %s = s; }\n", c_element(m, v, "r", "c", x));
}

/* ---- memory ---- */

static void c_place(struct c_emitter *m, val v)
{
    const struct linst *i = c_inst(m, v);
    char at[OPERAND], stride[OPERAND];
    c_element(m, i->a, "r", "c", at);
    text_put(m->t, "b%u[%s", (unsigned)i->imm, at);
    if (i->d)
        text_put(m->t, i->kind == TILE_ROWS ? " + r * %s + c" : " + r + c * %s", c_element(m, i->d, "r", "c", stride));
    text_put(m->t, "]");
}

static void c_load(struct c_emitter *m, val v)
{
    const struct linst *i = c_inst(m, v);
    char p[OPERAND];
    if (i->cols) /* indices have both coordinates */
        text_put(m->t, "for (int r = 0; r < %u; r++) for (int c = 0; c < %u; c++) %s = ", i->rows, i->cols,
                 c_element(m, v, "r", "c", p));
    else
        c_assign(m, v);
    if (i->b)
        text_put(m->t, "!%s ? 0 : ", c_element(m, i->b, "r", "c", p));
    unsigned elements = load_elements(m->k, i);
    if (elements > 1)
        text_put(m->t, "word_of_%u((const m_u%u *)&", elements, 32 / elements);
    c_place(m, v);
    text_put(m->t, i->dtype == KL_BOOL ? " != 0;\n" : elements > 1 ? ");\n" : ";\n");
}

static void c_store(struct c_emitter *m, val v)
{
    const struct linst *i = c_inst(m, v), *x = c_inst(m, i->b);
    char p[OPERAND];
    if (x->cols)
        text_put(m->t, "for (int r = 0; r < %u; r++) for (int c = 0; c < %u; c++) ", x->rows, x->cols);
    else
        c_each(m, 1, m->width[v]);
    if (i->c)
        text_put(m->t, "if (%s) ", c_element(m, i->c, "r", "c", p));
    if (i->op == L_ATOMIC)
        text_put(m->t, "UPDATE(%s, ", c_memory_type(x->dtype));
    c_place(m, v);
    c_element(m, i->b, "r", "c", p);
    if (i->op == L_ATOMIC)
        text_put(m->t, ", %s, %s);\n", c_fold_name(i->kind, x->dtype), p);
    else
        text_put(m->t, " = %s;\n", p);
}

/* ---- control ---- */

static void c_open_loop(struct c_emitter *m, val v)
{
    const struct linst *i = c_inst(m, v);
    char lo[OPERAND], hi[OPERAND];
    for (val c = v + 1; c_inst(m, c)->op == L_CARRY; c++)
        c_copy(m, c, c_inst(m, c)->a);
    if (i->kind == LOOP_VECTOR)
        text_put(m->t, "{ for (int c = 0; c < %u; c++) %s = c;\n", m->width[v], c_element(m, v, "r", "c", lo));
    else if (i->kind == LOOP_PARALLEL)
        text_put(m->t, "for (i64 v%u = lo; v%u < hi;) {\n", v, v);
    else
        text_put(m->t, "for (i64 v%u = %s; v%u < %s;) {\n", v, c_element(m, i->a, "r", "c", lo), v,
                 c_element(m, i->b, "r", "c", hi));
}

static void c_end(struct c_emitter *m, val v)
{
    val head = c_inst(m, v)->a;
    if (c_inst(m, head)->op == L_IF || c_inst(m, head)->kind == LOOP_VECTOR) {
        text_put(m->t, "}\n");
        return;
    }
    for (val n = v - 1; c_inst(m, n)->op == L_NEXT; n--) {
        val c = c_inst(m, n)->a;
        char x[OPERAND];
        c_assign(m, c);
        c_element(m, c, "r", "c", x);
        x[0] = 'n'; /* the value that L_NEXT has saved */
        text_put(m->t, "%s;\n", x);
    }
    long long step = (long long)c_inst(m, head)->imm;
    text_put(m->t, "if (v%u > INT64_MAX - %lld) break;\nv%u += %lld; }\n", head, step, head, step);
}

static void c_next(struct c_emitter *m, val v)
{
    const struct linst *i = c_inst(m, v);
    char to[OPERAND], x[OPERAND];
    c_each(m, c_rows_of(m, i->a), c_cols_of(m, i->a));
    c_element(m, i->a, "r", "c", to);
    to[0] = 'n';
    text_put(m->t, "%s = %s;\n", to, c_element(m, i->b, "r", "c", x));
}

static void c_statement(struct c_emitter *m, val v)
{
    const struct linst *i = c_inst(m, v);
    char x[OPERAND];
    switch (i->op) {
    case L_CONST: case L_CARRY: case L_PREFETCH: case L_SYNC: break;
    case L_SLOT:
        text_put(m->t, "v%u = %s(slot[%u]);\n", v,
                 i->dtype == KL_F32 ? "bits_u32_f32" : i->dtype == KL_F64 ? "bits_u64_f64" : "",
                 slot_number(i));
        break;
    case L_ALIAS:
        text_put(m->t, "v%u = buf[%u] == buf[%u];\n", v, (unsigned)(uint32_t)i->imm, (unsigned)(i->imm >> 32));
        break;
    case L_LOOP:  c_open_loop(m, v); break;
    case L_NEXT:  c_next(m, v); break;
    case L_END:   c_end(m, v); break;
    case L_OUT:   case L_SPLAT: c_copy(m, v, i->a); break;
    case L_IF:    text_put(m->t, "if (%s) {\n", c_element(m, i->a, "r", "c", x)); break;
    case L_LOAD:  c_load(m, v); break;
    case L_STORE: case L_ATOMIC: c_store(m, v); break;
    case L_LANE_REDUCE:  c_fold(m, v); break;
    case L_INTERLEAVE:   c_interleave(m, v); break;
    case L_INDEX: text_put(m->t, "for (int c = 0; c < %u; c++) v%u[c] = c;\n", (unsigned)i->rows * i->cols, v); break;
    case L_MMA:   c_mma(m, v); break;
    default:      c_prim(m, v);
    }
}

/* ---- the function ---- */

static void c_declare(struct c_emitter *m, val v)
{
    const struct linst *i = c_inst(m, v);
    bool none = i->op == L_CONST || i->op == L_NEXT || i->op == L_END || i->op == L_IF || i->op == L_STORE ||
                i->op == L_PREFETCH || i->op == L_ATOMIC || i->op == L_SYNC ||
                (i->op == L_LOOP && i->kind != LOOP_VECTOR);
    for (int n = 0; !none && n < 1 + (i->op == L_CARRY); n++) {
        text_put(m->t, "%s %c%u", dtype_name(i->dtype), "vn"[n], v);
        text_put(m->t, i->cols || m->width[v] > 1 ? "[%u];\n" : ";\n", c_rows_of(m, v) * c_cols_of(m, v));
    }
}

static void c_function(struct c_emitter *m, const char *name)
{
    const struct kernel *k = m->k;
    struct phase p = {0};
    text_put(m->t, "void %s(void *const *buf, const u64 *slot, i64 begin, i64 end)\n{\n", name);
    for (uint32_t b = 0; b < k->nbuf; b++)
        if (k->buf[b].role == BUF_REGISTER)
            text_put(m->t, "%s b%u[%lld];\n", c_memory_type(k->buf[b].dtype), b, (long long)k->buf[b].count);
        else
            text_put(m->t, "m_%s *b%u = buf[%u];\n", c_memory_type(k->buf[b].dtype), b, b);
    for (val v = 1; v < k->ninst; v++)
        c_declare(m, v);
    text_put(m->t, "(void)buf, (void)slot, (void)begin, (void)end;\n"); /* not every kernel has all of them */
    while (kernel_phase(k, &p)) {
        long long base = p.base, extent = p.extent;
        text_put(m->t, "{ i64 lo = begin > %lld ? begin - %lld : 0, hi = end - %lld < %lld ? end - %lld : %lld;\n",
                 base, base, base, extent, base, extent);
        text_put(m->t, "if (lo < hi || %d) {\n", p.extent == k->extent); /* else iterations of other phases */
        for (val v = p.first; v < p.end; v++)
            c_statement(m, v);
        text_put(m->t, "} }\n");
    }
    text_put(m->t, "}\n");
}

bool c_source(const struct kernel *k, const char *name, struct text *t, struct err *e)
{
    const char *gpu = kernel_needs_gpu(k);
    if (gpu)
        return err_set(e, KL_ERR_COMPILE, "kernel %s has %s, which runs on a GPU only", k->name, gpu);
    struct c_emitter *m = mem_alloc(sizeof *m + k->ninst * sizeof *m->width);
    unsigned width = 1;
    for (val v = 1; m && v < k->ninst; v++) {
        if (k->inst[v].op == L_LOOP && k->inst[v].kind == LOOP_VECTOR)
            width = (unsigned)k->inst[k->inst[v].b].imm;
        m->width[v] = k->inst[v].varying ? width : 1;
    }
    if (m) {
        m->k = k;
        m->t = t;
        c_function(m, name);
    }
    mem_free(m);
    return (m && !t->failed) || err_set(e, KL_ERR_MEMORY, "out of memory writing kernel %s", k->name);
}
