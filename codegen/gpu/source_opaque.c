/* Tiles for a matrix unit whose lanes hold elements in an order that is unknown: Vulkan's cooperative matrices
 * (SPV_KHR_cooperative_matrix).
 *
 * A tile is as many variables as it has matrices of the unit's size.  A factor is loaded from shared memory, and sums
 * are zeros, are carried, added to by products, and stored to shared memory; the threads then read them from there.  In
 * kernels that do anything else with a tile each thread has the whole of every tile.
 *
 * An array in shared memory that has only whole vectors of copies is declared as an array of vectors, because GLSL has
 * no other way to store 16 bytes at once; the factors' index and stride are then counted in vectors, too.
 *
 * GLSL's extension for these matrices is newer than many compilers.  So the types and instructions are declared by
 * GL_EXT_spirv_intrinsics.  A type declared so has only numbers as its operands, and the dtype of the elements is
 * written as a number; codegen/gpu/shaderc/matrix_types.c replaces it.  The numbers are those of the SPIR-V
 * specification and its extensions.  The unit needs SPIR-V's Vulkan memory model. */
#include "codegen/gpu/shaderc/matrix_types.h"
#include "emit_source.h"
#include <inttypes.h>

/* ---- which kernels ---- */

/* A factor is loaded from an array in shared memory, without a condition.  Its rows begin at multiples of 16 bytes, as
 * the instruction requires. */
static bool opaque_factor(struct emitter *m, val v, enum source_role role)
{
    enum { ALIGNED = 8 };           /* halves */
    const struct linst *i = &m->k->inst[v];
    const struct mma_caps *c = &m->unit->caps;
    unsigned rows = role == ROLE_A ? c->m : c->k, cols = role == ROLE_A ? c->k : c->n;
    return i->op == L_LOAD && m->k->buf[i->imm].role == BUF_SHARED && !i->b && i->rows % rows == 0 &&
           i->cols % cols == 0 && c->dtypes >> i->dtype & 1 && source_matrix_stride(m, i->d) &&
           m->k->inst[i->d].imm % ALIGNED == 0 && source_matrix_take(m, v, role);
}

static bool opaque_sums(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct mma_caps *c = &m->unit->caps;
    return i->dtype == KL_F32 && i->rows % c->m == 0 && i->cols % c->n == 0 && source_matrix_take(m, v, ROLE_SUM);
}

static bool opaque_has_text(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v], *x = &m->k->inst[i->b];
    switch (i->op) {
    case L_LOOP:
        return i->kind != LOOP_BLOCK || i->rows == m->unit->caps.subgroup;
    case L_LOAD:
        return !i->cols || m->role[v];
    case L_MMA:
        return i->kind == MMA_ANY && m->role[i->c] == ROLE_SUM && opaque_sums(m, v);
    case L_SPLAT:
        return opaque_sums(m, v);
    case L_CARRY:
    case L_OUT:
        return !i->cols || (m->role[i->a] == ROLE_SUM && opaque_sums(m, v));
    case L_COLUMNS:
        return m->role[i->a] == ROLE_SUM && i->rows == m->unit->caps.m && i->imm % m->unit->caps.n == 0 &&
               opaque_sums(m, v);
    case L_NEXT:
        return !x->cols || m->role[i->b] == ROLE_SUM;
    case L_STORE:
        return !x->cols || (m->role[i->b] == ROLE_SUM && !i->c && m->k->buf[i->imm].role == BUF_SHARED &&
                            source_matrix_stride(m, i->d) && m->k->inst[i->d].imm % 4 == 0);
    default:
        return !i->cols;
    }
}

enum { VECTOR_HALVES = 8 };      /* of 16 bytes */

static bool begins_at_vector(const struct emitter *m, val index)
{
    struct linear at;
    return source_linear(m->k, index, &at) && source_linear_multiple(&at, VECTOR_HALVES);
}

/* Accesses instruction v buffer b, if it does, by whole vectors? */
static bool accesses_vectors(const struct emitter *m, val v, uint32_t b)
{
    const struct linst *i = &m->k->inst[v];
    if (i->op == L_COPY && (uint32_t)i->imm == b)
        return i->rows == VECTOR_HALVES && begins_at_vector(m, i->a);
    if (i->op == L_LOAD && i->imm == b)
        return (m->role[v] == ROLE_A || m->role[v] == ROLE_B) && begins_at_vector(m, i->a);
    return (i->op != L_STORE && i->op != L_ATOMIC) || i->imm != b;
}

/* Without memory for the list no array consists of vectors. */
static void find_vectors(struct emitter *m)
{
    m->vectors = mem_arena_alloc(&m->mem, m->k->nbuf + 1);
    for (uint32_t b = 0; m->vectors && b < m->k->nbuf; b++) {
        const struct lbuf *l = &m->k->buf[b];
        bool ok = l->role == BUF_SHARED && dtype_size(l->dtype) == 2 && l->count % VECTOR_HALVES == 0;
        for (val v = 1; ok && v < m->k->ninst; v++)
            ok = accesses_vectors(m, v, b);
        m->vectors[b] = ok;
    }
}

bool source_opaque(struct emitter *m)
{
    bool products = false, ok = m->d->opaque.subgroup && m->shuffle;
    m->own_unit = (struct matrix_unit){.caps = m->d->opaque, .sum.elements = 1, .opaque = true};
    m->unit = &m->own_unit;
    for (val v = 1; ok && v < m->k->ninst; v++) {
        const struct linst *i = &m->k->inst[v];
        products |= i->op == L_MMA;
        ok = i->op != L_MMA || (opaque_factor(m, i->a, ROLE_A) && opaque_factor(m, i->b, ROLE_B));
    }
    for (val v = 1; ok && products && v < m->k->ninst; v++)
        ok = opaque_has_text(m, v);
    m->unit = ok && products ? m->unit : NULL;
    if (m->unit)
        find_vectors(m);
    return m->unit;
}

/* ---- declarations ---- */

/* SPIR-V: capabilities, operands of memory accesses, and scopes. */
enum {
    CAPABILITY_FLOAT16 = 9, CAPABILITY_BFLOAT16 = 5116, CAPABILITY_BFLOAT16_MATRIX = 5118, CAPABILITY_MATRIX = 6022,
    MAKE_AVAILABLE = 8, MAKE_VISIBLE = 16, NON_PRIVATE = 32, SCOPE_WORKGROUP = 2, SCOPE_SUBGROUP = 3
};

/* A type of matrices: elements are those of matrix_types.c, `use` is 0 for a, 1 for b, 2 for sums. */
static void put_type(struct emitter *m, const char *name, unsigned rows, unsigned cols, unsigned use,
                     unsigned elements)
{
    text_put(m->t, "#define matrix_%s spirv_type(extensions = [\"SPV_KHR_cooperative_matrix\"%s], "
             "capabilities = [%u", name, elements == MATRIX_BF16 ? ", \"SPV_KHR_bfloat16\"" : "", CAPABILITY_MATRIX);
    if (elements == MATRIX_F16)
        text_put(m->t, ", %u", CAPABILITY_FLOAT16);
    if (elements == MATRIX_BF16)
        text_put(m->t, ", %u, %u", CAPABILITY_BFLOAT16, CAPABILITY_BFLOAT16_MATRIX);
    text_put(m->t, "], id = %u, %u, matrix_scope, matrix_%u, matrix_%u, matrix_use_%u)\n", MATRIX_TYPE, elements, rows,
             cols, use);
}

/* Constants that a type's operands name; numbers written in place would be literals. */
static void put_constants(struct emitter *m)
{
    const struct mma_caps *c = &m->unit->caps;
    unsigned length[3] = {c->m, c->n, c->k};
    text_put(m->t, "const int matrix_scope = %u, matrix_use_0 = 0, matrix_use_1 = 1, matrix_use_2 = 2;\n",
             SCOPE_SUBGROUP);
    for (unsigned i = 0; i < 3; i++) {
        bool again = false;
        for (unsigned j = 0; j < i; j++)
            again |= length[j] == length[i];
        if (!again)
            text_put(m->t, "const int matrix_%u = %u;\n", length[i], length[i]);
    }
}

/* The dtype of factors; kernels have products of one. */
static unsigned factor_dtype(const struct emitter *m)
{
    val v = 1;
    while (m->k->inst[v].op != L_MMA)
        v++;
    return m->k->inst[m->k->inst[v].a].dtype;
}

void source_opaque_types(struct emitter *m)
{
    const struct mma_caps *c = &m->unit->caps;
    unsigned factor = factor_dtype(m) == KL_F16 ? MATRIX_F16 : MATRIX_BF16;
    text_put(m->t, "// matrices\n#pragma use_vulkan_memory_model\n");
    put_constants(m);
    put_type(m, "a", c->m, c->k, 0, factor);
    put_type(m, "b", c->k, c->n, 1, factor);
    put_type(m, "sums", c->m, c->n, 2, MATRIX_F32);
    for (unsigned use = 0; use < 2; use++)
        for (unsigned vectors = 0; vectors < 2; vectors++)
            text_put(m->t, "spirv_instruction(id = 4457) matrix_%c matrix_from_%c(spirv_by_reference %s p, int order, "
                     "int stride, spirv_literal int access, int scope);\n", 'a' + use, 'a' + use,
                     vectors ? "u32vec4" : "u16");
    text_put(m->t,
             "spirv_instruction(id = 4458) void matrix_to(spirv_by_reference f32 p, matrix_sums x, int order, "
             "int stride, spirv_literal int access, int scope);\n"
             "spirv_instruction(id = 4459) matrix_sums matrix_mma(matrix_a a, matrix_b b, matrix_sums sums);\n"
             "spirv_instruction(id = 80) matrix_sums matrix_splat(f32 x);\n"
             "#define matrix_load(u, x, b, at, order, stride) matrix_##u x = matrix_from_##u(b[at], order, stride, %u, "
             "%u)\n"
             "#define matrix_load_vectors(u, x, b, at, order, stride) matrix_##u x = matrix_from_##u(b[(at) / 8u], "
             "order, (stride) / 8, %u, %u)\n"
             "#define matrix_store(b, at, x, order, stride) matrix_to(b[at], x, order, stride, %u, %u)\n// kernel\n",
             MAKE_VISIBLE | NON_PRIVATE, SCOPE_WORKGROUP, MAKE_VISIBLE | NON_PRIVATE, SCOPE_WORKGROUP,
             MAKE_AVAILABLE | NON_PRIVATE, SCOPE_WORKGROUP);
}

/* ---- statements ---- */

/* The index of the matrix at (row, col) of the tile that access i loads or stores, the order of its elements (0: rows
 * are contiguous, 1: columns) and the elements from one row or column to the next. */
static void put_place(struct emitter *m, const struct linst *i, unsigned row, unsigned col)
{
    char at[MAX_OPERAND];
    bool fits, by_rows = i->kind == TILE_ROWS;
    uint64_t stride = m->k->inst[i->d].imm;
    source_index(m, i->a, &fits, at);
    text_put(m->t, "u32(%s) + %" PRIu64 "u", at, by_rows ? row * stride + col : col * stride + row);
}

static void put_order(struct emitter *m, const struct linst *i)
{
    text_put(m->t, ", %d, %" PRIu64 ");\n", i->kind != TILE_ROWS, m->k->inst[i->d].imm);
}

void source_opaque_load(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct mma_caps *c = &m->unit->caps;
    bool a = m->role[v] == ROLE_A;
    unsigned rows = a ? c->m : c->k, cols = a ? c->k : c->n, n = 0;
    for (unsigned row = 0; row < i->rows; row += rows)
        for (unsigned col = 0; col < i->cols; col += cols) {
            source_line(m);
            text_put(m->t, "matrix_load%s(%c, v%u_%u, b%u, ", source_has_vectors(m, (uint32_t)i->imm) ? "_vectors" : "",
                     a ? 'a' : 'b', v, n++, (unsigned)i->imm);
            put_place(m, i, row, col);
            put_order(m, i);
        }
}

void source_opaque_store(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v], *x = &m->k->inst[i->b];
    const struct mma_caps *c = &m->unit->caps;
    unsigned n = 0;
    for (unsigned row = 0; row < x->rows; row += c->m)
        for (unsigned col = 0; col < x->cols; col += c->n) {
            source_line(m);
            text_put(m->t, "matrix_store(b%u, ", (unsigned)i->imm);
            put_place(m, i, row, col);
            text_put(m->t, ", v%u_%u", i->b, n++);
            put_order(m, i);
        }
}

void source_opaque_splat(struct emitter *m, val v)
{
    char x[MAX_OPERAND];
    source_operand(m, m->k->inst[v].a, x);
    source_declare(m, v);
    text_put(m->t, "matrix_splat(%s);\n", x);
}

void source_opaque_mma(struct emitter *m, val v)
{
    const struct linst *i = &m->k->inst[v];
    const struct mma_caps *c = &m->unit->caps;
    unsigned depth = m->k->inst[i->a].cols / c->k, cols = i->cols / c->n;
    for (unsigned f = 0; f < i->rows / c->m * cols; f++)
        for (unsigned kk = 0; kk < depth; kk++) {
            source_line(m);
            text_put(m->t, "%sv%u_%u = matrix_mma(v%u_%u, v%u_%u, v%u_%u);\n", kk ? "" : "matrix_sums ", v, f, i->a,
                     f / cols * depth + kk, i->b, kk * cols + f % cols, kk ? v : i->c, f);
        }
}
