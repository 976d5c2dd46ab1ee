/* Products of pairs of bf16 in even_odd order (MMA_EVEN_ODD): by AMX, or by a sum of even and one of odd products.
 *
 * AMX has eight registers for tiles of 16 rows of 64 bytes.  A kernel uses them if all its tiles of such products fit:
 * factors are loads of [16x32] bf16 and of [16x16] pairs, sums are [16x16], start from zeros or from a load, are the
 * c of one product after the other, are carried by loops, and are stored.  A sum stays in one register from its start
 * to its store, a factor from its load to its last use.  The intrinsics with register numbers are used, because
 * LLVM's own allocation of these registers is turned off (llvm.c).  The configuration of registers belongs to a
 * thread, so the function sets it, and releases it at its end: the operating system has less to save then. */
#include "emit.h"

enum { REGISTERS = 8, SIDE = 16, DEPTH = EVEN_ODD_BLOCK };

/* ---- which values are in registers ---- */

struct amx_values {
    struct emitter *m;
    uint32_t *uses;       /* per value: uses but for those by `out` */
    val *last;            /* per value: the last instruction that uses it, or the end of a loop around that */
    val until[REGISTERS]; /* when a register is free again; 0: it is */
};

static bool amx_is_product(const struct linst *i) { return i->op == L_MMA && i->kind == MMA_EVEN_ODD; }

static bool amx_is_shape(const struct linst *i, unsigned dtype, unsigned cols)
{
    return i->dtype == dtype && i->rows == SIDE && i->cols == cols;
}

static bool amx_is_load(const struct linst *i, unsigned dtype, unsigned cols)
{
    return i->op == L_LOAD && i->kind == TILE_ROWS && !i->b && amx_is_shape(i, dtype, cols);
}

static bool amx_is_zero(const struct kernel *k, const struct linst *i)
{
    return i->op == L_SPLAT && k->inst[i->a].op == L_CONST && !k->inst[i->a].imm && amx_is_shape(i, KL_F32, SIDE);
}

/* May a sum start from it, or go on from it? */
static bool amx_is_sum(const struct kernel *k, val v)
{
    const struct linst *i = &k->inst[v];
    return amx_is_product(i) || amx_is_load(i, KL_F32, SIDE) || amx_is_zero(k, i) ||
           ((i->op == L_CARRY || i->op == L_OUT) && amx_is_shape(i, KL_F32, SIDE));
}

/* Counts uses, and notes the last ones: of a value from before a loop that is used in it, the loop's end. */
static void amx_count(struct amx_values *x)
{
    const struct kernel *k = x->m->k;
    val loop[MAX_NEST + 1] = {0};
    unsigned depth = 0;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        const val in[] = {i->a, i->b, i->c, i->d};
        if (i->op == L_END)
            depth--;
        for (int o = 0; o < 4; o++) {
            val at = v;
            for (unsigned d = depth; d > 0 && loop[d] > in[o]; d--)
                at = kernel_end_of(k, loop[d]);
            x->uses[in[o]] += i->op != L_OUT;
            x->last[in[o]] = at > x->last[in[o]] ? at : x->last[in[o]];
        }
        if ((i->op == L_LOOP || i->op == L_IF) && depth < MAX_NEST)
            loop[++depth] = v;
    }
}

static unsigned amx_take(struct amx_values *x, val until)
{
    for (unsigned r = 0; r < REGISTERS; r++)
        if (!x->until[r]) {
            x->until[r] = until;
            return r + 1;
        }
    return 0;
}

/* The value that a carry has next. */
static val amx_next(const struct kernel *k, val carry)
{
    for (val v = carry; v < k->ninst; v++)
        if (k->inst[v].op == L_NEXT && k->inst[v].a == carry)
            return k->inst[v].b;
    return 0;
}

/* Is a load a factor or a start of a sum? */
static bool amx_is_used(const struct kernel *k, val v)
{
    bool used = false;
    for (val u = v + 1; u < k->ninst && !used; u++) {
        const struct linst *i = &k->inst[u];
        used = amx_is_product(i) && (i->a == v || i->b == v || i->c == v);
        used |= i->op == L_CARRY && i->a == v && amx_is_product(&k->inst[amx_next(k, u)]);
    }
    return used;
}

/* Gives a value its register; false: it does not fit. */
static bool amx_place(struct amx_values *x, val v)
{
    const struct kernel *k = x->m->k;
    const struct linst *i = &k->inst[v];
    uint8_t *reg = x->m->amx;
    const val forever = k->ninst;
    switch (i->op) {
    case L_LOAD:
        if (!amx_is_load(i, KL_F32, SIDE) && !amx_is_load(i, KL_BF16, DEPTH) && !amx_is_load(i, KL_U32, SIDE))
            return true;
        if (amx_is_used(k, v))
            reg[v] = (uint8_t)amx_take(x, i->dtype == KL_F32 ? forever : x->last[v]);
        return reg[v] || !amx_is_used(k, v);
    case L_CARRY:
        if (!amx_is_product(&k->inst[amx_next(k, v)]))
            return !reg[i->a];
        if (!amx_is_sum(k, v) || !amx_is_sum(k, i->a) || x->uses[v] != 2)
            return false;
        reg[v] = reg[i->a] ? reg[i->a] : (uint8_t)amx_take(x, forever);
        return reg[v] && (amx_is_zero(k, &k->inst[i->a]) || x->uses[i->a] == 1);
    case L_MMA:
        if (!amx_is_product(i))
            return true;
        if (!amx_is_sum(k, v) || !reg[i->a] || !reg[i->b] || k->inst[i->a].dtype != KL_BF16 || !amx_is_sum(k, i->c))
            return false;
        reg[v] = reg[i->c] ? reg[i->c] : (uint8_t)amx_take(x, forever);
        return reg[v] && x->uses[v] == 1 &&
               (amx_is_zero(k, &k->inst[i->c]) || x->uses[i->c] == 1 + (k->inst[i->c].op == L_CARRY));
    case L_NEXT:
        return reg[i->a] == reg[i->b];
    case L_OUT:
        reg[v] = reg[i->a];
        return !reg[v] || x->uses[v] == 1;
    case L_STORE:
        reg[v] = reg[i->b];
        if (reg[v])
            x->until[reg[v] - 1] = v;
        return !reg[v] || (i->kind == TILE_ROWS && !i->c && k->inst[i->b].dtype == KL_F32);
    default:
        return !reg[i->a] && !reg[i->b] && !reg[i->c];
    }
}

static bool amx_place_all(struct amx_values *x)
{
    const struct kernel *k = x->m->k;
    bool any = false;
    amx_count(x);
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (!amx_place(x, v))
            return false;
        any |= amx_is_product(i);
        if (i->op == L_LOOP && i->kind == LOOP_UNROLLED && k->inst[v + 1].op == L_CARRY && k->inst[v + 1].cols)
            return false;
        for (unsigned r = 0; r < REGISTERS; r++)
            if (x->until[r] && x->until[r] <= v)
                x->until[r] = 0;
    }
    return any;
}

bool emit_find_amx(struct emitter *m, const struct caps *target)
{
    const struct kernel *k = m->k;
    bool any = false;
    bool can = target->bf16_tiles && target_has(target, "amx-bf16");
    for (val v = 1; v < k->ninst && can && !any; v++)
        any = amx_is_product(&k->inst[v]);
    if (!any)
        return true;
    struct amx_values x = {m, mem_alloc(k->ninst * sizeof *x.uses), mem_alloc(k->ninst * sizeof *x.last), {0}};
    m->amx = mem_alloc(k->ninst * sizeof *m->amx);
    bool memory = x.uses && x.last && m->amx;
    if (!memory)
        err_set(m->e, KL_ERR_MEMORY, "out of memory emitting kernel %s", k->name);
    else if (!amx_place_all(&x)) {
        mem_free(m->amx);
        m->amx = NULL;
    }
    mem_free(x.uses);
    mem_free(x.last);
    return memory;
}

bool emit_is_amx(const struct emitter *m, val v) { return m->amx && m->amx[v]; }

/* ---- instructions ---- */

static LLVMValueRef amx_number(struct emitter *m, val v)
{
    return LLVMConstInt(m->i8, m->amx[v] - 1u, 0);
}

void emit_amx_begin(struct emitter *m)
{
    /* palette 1; bytes of a row of each register, 16 bits each, from byte 16 on; rows, 8 bits each, from byte 48 on */
    uint32_t word[16] = {1, [4] = 0x400040, 0x400040, 0x400040, 0x400040, [12] = 0x10101010, 0x10101010};
    LLVMTypeRef i32 = LLVMInt32TypeInContext(m->ctx);
    LLVMValueRef value[16];
    if (!m->amx)
        return;
    for (int w = 0; w < 16; w++)
        value[w] = LLVMConstInt(i32, word[w], 0);
    LLVMValueRef at = LLVMBuildAlloca(m->b, LLVMVectorType(i32, 16), "");
    LLVMSetAlignment(at, 64);
    LLVMSetAlignment(LLVMBuildStore(m->b, LLVMConstVector(value, 16), at), 64);
    intrinsic(m, "llvm.x86.ldtilecfg", NULL, 0, &at, 1);
}

void emit_amx_end(struct emitter *m)
{
    if (m->amx)
        intrinsic(m, "llvm.x86.tilerelease", NULL, 0, NULL, 0);
}

void emit_amx_zero(struct emitter *m, val v, val start)
{
    LLVMValueRef number;
    if (!emit_is_amx(m, v) || m->amx[start])
        return;
    number = amx_number(m, v);
    intrinsic(m, "llvm.x86.tilezero", NULL, 0, &number, 1);
}

static void amx_memory(struct emitter *m, val v, const char *name)
{
    const struct linst *i = &m->k->inst[v];
    uint64_t size = dtype_size(m->k->buf[i->imm].dtype);
    LLVMValueRef stride = LLVMBuildMul(m->b, emit_scalar(m, i->d), LLVMConstInt(m->i64, size, 0), "");
    LLVMValueRef in[] = {amx_number(m, v), emit_address(m, (uint32_t)i->imm, emit_scalar(m, i->a)), stride};
    intrinsic(m, name, NULL, 0, in, 3);
}

void emit_amx(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    if (i->op == L_MMA) {
        LLVMValueRef in[] = {amx_number(m, v), amx_number(m, i->a), amx_number(m, i->b)};
        emit_amx_zero(m, v, i->c);
        intrinsic(m, "llvm.x86.tdpbf16ps", NULL, 0, in, 3);
    } else if (i->op == L_LOAD) {
        amx_memory(m, v, "llvm.x86.tileloadd64");
    } else if (i->op == L_STORE) {
        amx_memory(m, v, "llvm.x86.tilestored64");
    }
}

/* ---- other processors ---- */

static LLVMValueRef even_odd_u32(struct emitter *m, LLVMValueRef like, uint32_t bits)
{
    LLVMTypeRef i32 = LLVMInt32TypeInContext(m->ctx);
    return const_int(LLVMGetTypeKind(LLVMTypeOf(like)) == LLVMVectorTypeKind
                         ? LLVMVectorType(i32, LLVMGetVectorSize(LLVMTypeOf(like))) : i32, bits);
}

/* DOT2 of a and b in the lower halves, and of -0 and 0 in the upper ones, which changes no sum. */
static LLVMValueRef even_odd_step(struct emitter *m, LLVMValueRef a, LLVMValueRef b, LLVMValueRef sum)
{
    LLVMValueRef x[3] = {LLVMBuildOr(m->b, a, even_odd_u32(m, a, 0x80000000), ""), b, sum};
    return emit_prim(m, P_DOT2, KL_U32, KL_F32, x);
}

/* A number below 2^-126 as a zero of its sign. */
static LLVMValueRef even_odd_flush(struct emitter *m, LLVMValueRef x)
{
    LLVMValueRef bits = LLVMBuildBitCast(m->b, x, LLVMTypeOf(even_odd_u32(m, x, 0)), "");
    LLVMValueRef exponent = LLVMBuildAnd(m->b, bits, even_odd_u32(m, x, 0x7f800000), "");
    LLVMValueRef sign = LLVMBuildAnd(m->b, bits, even_odd_u32(m, x, 0x80000000), "");
    LLVMValueRef zero = LLVMBuildBitCast(m->b, sign, LLVMTypeOf(x), "");
    return LLVMBuildSelect(m->b, LLVMBuildICmp(m->b, LLVMIntEQ, exponent, even_odd_u32(m, x, 0), ""), zero, x, "");
}

static LLVMValueRef even_odd_add(struct emitter *m, LLVMValueRef a, LLVMValueRef b)
{
    return even_odd_flush(m, LLVMBuildFAdd(m->b, a, b, ""));
}

void emit_even_odd(struct emitter *m, val v, LLVMValueRef *part, unsigned n)
{
    const struct linst *i = &m->k->inst[v];
    unsigned depth = m->k->inst[i->a].cols;
    for (unsigned q = 0; q < n; q++)
        for (unsigned r = 0; r < i->rows; r++) {
            LLVMValueRef *c = &part[r * n + q], sum[2];
            sum[0] = sum[1] = LLVMConstNull(LLVMTypeOf(*c));
            for (unsigned k = 0; k < depth; k++) {
                LLVMValueRef b = emit_tile_piece(m, i->b, k / 2, i->cols, q);
                LLVMValueRef a = LLVMBuildZExt(m->b, emit_tile_element(m, i->a, r, k),
                                               LLVMInt32TypeInContext(m->ctx), "");
                b = k % 2 ? LLVMBuildLShr(m->b, b, even_odd_u32(m, b, 16), "")
                          : LLVMBuildAnd(m->b, b, even_odd_u32(m, b, 0xffff), "");
                sum[k % 2] = even_odd_step(m, splat(m, a, emit_chunk(m, i->cols, q).lanes), b, sum[k % 2]);
            }
            *c = even_odd_add(m, even_odd_flush(m, *c), even_odd_add(m, sum[0], sum[1]));
        }
}
