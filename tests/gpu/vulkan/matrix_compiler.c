/* A compiler of GLSL in front of the real one, for devices without cooperative matrices.  A kernel that has them is
 * compiled by the real one, its SPIR-V is compared with what SPV_KHR_cooperative_matrix says, and what is returned is
 * the SPIR-V of the same text with plain functions in place of the matrices: each lane has all elements. */
#define _GNU_SOURCE /* memmem */
#include "codegen/gpu/shaderc/shaderc.h"
#include "vulkan_matrices.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(default)
struct matrix_compiler matrix_compiler;
const struct shaderc_module *kiln_shaderc(void);
#pragma GCC visibility pop

static const struct shaderc_module *real;

/* ---- the SPIR-V ---- */

/* Numbers of the SPIR-V specification and of the extension's. */
enum {
    OP_MEMORY_MODEL = 14, OP_CAPABILITY = 17, OP_TYPE_FLOAT = 22, OP_TYPE_POINTER = 32, OP_CONSTANT = 43,
    OP_ACCESS_CHAIN = 65, OP_MATRIX_TYPE = 4456, OP_MATRIX_LOAD = 4457, OP_MATRIX_STORE = 4458, OP_MATRIX_MUL_ADD = 4459
};
enum { MEMORY_MODEL_VULKAN = 3, VULKAN_MEMORY_MODEL = 5345, COOPERATIVE_MATRIX = 6022, WORKGROUP = 4, SUBGROUP = 3 };

struct spirv { const uint32_t *w; size_t n; const uint32_t **by_id; uint32_t bound; };

static bool refuse(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (!matrix_compiler.refused++)
        vsnprintf(matrix_compiler.why, sizeof matrix_compiler.why, format, list);
    va_end(list);
    return false;
}

/* The instruction that has made an id, if it is this one; NULL: it is not, or comes later. */
static const uint32_t *made(const struct spirv *s, uint32_t id, unsigned op)
{
    const uint32_t *w = id < s->bound ? s->by_id[id] : NULL;
    return w && (*w & 0xffff) == op ? w : NULL;
}

/* The number of a constant; UINT32_MAX: it is none. */
static uint32_t number(const struct spirv *s, uint32_t id)
{
    const uint32_t *c = made(s, id, OP_CONSTANT);
    return c ? c[3] : UINT32_MAX;
}

/* The type of value id, a matrix; NULL: it is none. */
static const uint32_t *matrix_of(const struct spirv *s, uint32_t id)
{
    const uint32_t *w = id < s->bound ? s->by_id[id] : NULL;
    return w ? made(s, w[1], OP_MATRIX_TYPE) : NULL;
}

static bool is_in_shared_memory(const struct spirv *s, uint32_t pointer)
{
    const uint32_t *chain = made(s, pointer, OP_ACCESS_CHAIN);
    const uint32_t *type = chain ? made(s, chain[1], OP_TYPE_POINTER) : NULL;
    return type && type[2] == WORKGROUP;
}

static bool is_matrix_type(const struct spirv *s, const uint32_t *w)
{
    const uint32_t *elements = made(s, w[2], OP_TYPE_FLOAT);
    uint32_t use = number(s, w[6]), width = elements ? elements[2] : 0;
    if (*w >> 16 != 7 || width != (use == 2 ? 32u : 16u) || number(s, w[3]) != SUBGROUP || use > 2 ||
        number(s, w[4]) > 64 || number(s, w[5]) > 64)
        return refuse("a type of matrices with elements of %u bits for use %u", width, use);
    return true;
}

static bool is_product(const struct spirv *s, const uint32_t *w)
{
    const uint32_t *a = matrix_of(s, w[3]), *b = matrix_of(s, w[4]), *c = matrix_of(s, w[5]);
    if (!a || !b || !c || c[1] != w[1] || number(s, a[6]) != 0 || number(s, b[6]) != 1 || number(s, c[6]) != 2 ||
        a[4] != c[4] || a[5] != b[4] || b[5] != c[5])
        return refuse("a product of matrices that do not fit");
    return true;
}

static bool is_right(const struct spirv *s, const uint32_t *w)
{
    switch (*w & 0xffff) {
    case OP_MATRIX_TYPE:
        return is_matrix_type(s, w);
    case OP_MATRIX_LOAD:
        return (made(s, w[1], OP_MATRIX_TYPE) && is_in_shared_memory(s, w[3]) && number(s, w[4]) < 2) ||
               refuse("a load of a matrix");
    case OP_MATRIX_STORE:
        return (matrix_of(s, w[2]) && is_in_shared_memory(s, w[1]) && number(s, w[3]) < 2) ||
               refuse("a store of a matrix");
    case OP_MATRIX_MUL_ADD:
        return is_product(s, w);
    case OP_MEMORY_MODEL:
        return w[2] == MEMORY_MODEL_VULKAN || refuse("memory model %u", w[2]);
    default:
        return true;
    }
}

/* Which word of an instruction is the id that it makes?  Types: the first, others: the second; 0: it makes none. */
static unsigned id_word(const uint32_t *w)
{
    unsigned op = *w & 0xffff, n = *w >> 16;
    bool type = (op >= 19 && op <= 39) || op == OP_MATRIX_TYPE;
    bool value = (op >= 41 && op <= 61 && op != 56) || (op >= 65 && op <= 70) || (op >= 77 && op <= 205) ||
        op == OP_MATRIX_LOAD || op == OP_MATRIX_MUL_ADD;
    return type ? 1 : value && n > 2 ? 2 : 0;
}

/* Every type of floats is declared once. */
static bool check(const uint32_t *w, size_t n)
{
    struct spirv s = {.w = w, .n = n, .bound = n > 5 ? w[3] : 0};
    bool capable[2] = {false}, ok = n > 5 && (s.by_id = calloc(s.bound, sizeof *s.by_id));
    unsigned floats[3] = {0};
    for (size_t i = 5; ok && i < n; i += w[i] >> 16) {
        unsigned id = id_word(w + i);
        if (!(w[i] >> 16) || w[i] >> 16 > n - i || (id && w[i + id] >= s.bound))
            return refuse("an instruction that ends too early, or an id above the bound");
        if ((w[i] & 0xffff) == OP_CAPABILITY) {
            capable[0] |= w[i + 1] == VULKAN_MEMORY_MODEL;
            capable[1] |= w[i + 1] == COOPERATIVE_MATRIX;
        }
        if ((w[i] & 0xffff) == OP_TYPE_FLOAT && ++floats[w[i] >> 16 == 4 ? 2 : w[i + 2] == 16] > 1 && w[i + 2] != 64)
            return refuse("a type of floats that is declared twice");
        ok = is_right(&s, w + i);
        if (id)
            s.by_id[w[i + id]] = w + i;
    }
    free(s.by_id);
    return ok && ((capable[0] && capable[1]) || refuse("a capability is not declared"));
}

/* ---- the text ---- */

/* A matrix is the place of its elements in an array of its lane.  A lane has the columns of b and of sums whose number
 * is its own, modulo the subgroup's length, and of a each element whose number is its own.  The places of the last
 * matrices are not used again soon: a kernel has fewer at a time. */
static const char plain[] =
    "#define COLS ((N + gl_SubgroupSize - 1u) / gl_SubgroupSize)\n"
    "#define matrix_a u32\n#define matrix_b u32\n#define matrix_sums u32\n"
    "const u32 A_SIZE = M * K / 4u, B_SIZE = K * (N + 3u) / 4u, SUMS_SIZE = M * (N + 3u) / 4u;\n" /* 4 lanes or more */
    "f32 as[16u * A_SIZE], bs[16u * B_SIZE], sums[32u * SUMS_SIZE];\nu32 a_next = 0u, b_next = 0u, sums_next = 0u;\n"
    "#define OWN(q) (q % COLS * gl_SubgroupSize + gl_SubgroupInvocationID)\n"
    "#define PLACE(at, order, stride, row, col) (at) + (order == 0 ? (row) * u32(stride) + (col) "
    ": (col) * u32(stride) + (row))\n"
    "#define ONE(b, at) b[at]\n"
    "#define OF_VECTORS(b, at) u16(b[(at) / 8u][(at) % 8u / 2u] >> (at) % 2u * 16u)\n"
    "#define load_a(x, b, at, order, stride, ELEMENT) u32 x = a_next++ % 16u * A_SIZE; "
    "for (u32 q = gl_SubgroupInvocationID; q < M * K; q += gl_SubgroupSize) "
    "as[x + q / gl_SubgroupSize] = HALF(ELEMENT(b, (PLACE(at, order, stride, q / K, q % K))))\n"
    "#define load_b(x, b, at, order, stride, ELEMENT) u32 x = b_next++ % 16u * B_SIZE; "
    "for (u32 q = 0u; q < K * COLS; q++) if (OWN(q) < N) "
    "bs[x + q] = HALF(ELEMENT(b, (PLACE(at, order, stride, q / COLS, OWN(q)))))\n"
    "#define matrix_load(u, x, b, at, order, stride) load_##u(x, b, at, order, stride, ONE)\n"
    "#define matrix_load_vectors(u, x, b, at, order, stride) load_##u(x, b, at, order, stride, OF_VECTORS)\n"
    "#define matrix_store(b, at, x, order, stride) for (u32 q = 0u; q < M * COLS; q++) if (OWN(q) < N) "
    "b[PLACE(at, order, stride, q / COLS, OWN(q))] = sums[x + q]\n"
    "u32 matrix_splat(f32 x)\n{\n    u32 s = sums_next++ % 32u * SUMS_SIZE;\n"
    "    for (u32 q = 0u; q < M * COLS; q++)\n        sums[s + q] = x;\n    return s;\n}\n"
    "u32 matrix_mma(u32 a, u32 b, u32 c)\n{\n    u32 s = sums_next++ % 32u * SUMS_SIZE;\n"
    "    for (u32 q = 0u; q < M * COLS; q++)\n        sums[s + q] = sums[c + q] + WRONG;\n"
    "    for (u32 e = 0u; e < M * K; e++) {\n"
    "        f32 x = subgroupShuffle(as[a + e / gl_SubgroupSize], e % gl_SubgroupSize);\n"
    "        for (u32 q = 0u; q < COLS; q++)\n"
    "            sums[s + e / K * COLS + q] += x * bs[b + e % K * COLS + q];\n    }\n    return s;\n}\n";

static void *compile(const char *source, size_t len, bool text, bool *ok, const char **out, size_t *size,
                     const char **log)
{
    static const char begins[] = "// matrices\n", ends[] = "// kernel\n";
    const char *from = strstr(source, begins), *to = from ? strstr(from, ends) : NULL;
    unsigned m, n, k, again;
    void *r = real->compile(source, len, text, ok, out, size, log);
    if (!to || text || !r)
        return r;
    matrix_compiler.kernels++;
    const char *a = strstr(from, "#define matrix_a "), *b = strstr(from, "#define matrix_b ");
    a = a ? strstr(a, "matrix_scope, ") : NULL;
    b = b ? strstr(b, "matrix_scope, ") : NULL;
    if (!*ok)
        refuse("%s", *log);
    else if (!a || !b || sscanf(a, "matrix_scope, matrix_%u, matrix_%u", &m, &k) != 2 ||
             sscanf(b, "matrix_scope, matrix_%u, matrix_%u", &again, &n) != 2 || again != k)
        refuse("the sizes are not found in the text");
    else
        check((const uint32_t *)*out, *size / sizeof(uint32_t));
    if (matrix_compiler.refused)
        return r;
    bool bf16 = memmem(from, (size_t)(to - from), "bfloat16", 8);
    real->release(r);
    char *own = malloc(len + sizeof plain + 256);
    if (!own)
        return NULL;
    int size_of = sprintf(own, "%.*s#pragma use_vulkan_memory_model\n#define M %uu\n#define N %uu\n#define K %uu\n"
                          "#define HALF %s\n#define WRONG %s\n%s%s", (int)(from - source), source, m, n, k,
                          bf16 ? "f32_of_bf16" : "f32_of_f16", matrix_compiler.wrong ? "1.0f" : "0.0f", plain, to);
    r = real->compile(own, (size_t)size_of, text, ok, out, size, log);
    if (r && !*ok)
        refuse("the plain text: %s", *log);
    free(own);
    return r;
}

static void version(char *out, size_t size) { real->version(out, size); }
static void release(void *result) { real->release(result); }

const struct shaderc_module *kiln_shaderc(void)
{
    static struct shaderc_module m = {SHADERC_ABI, version, compile, release};
    void *so = dlopen(REAL_COMPILER, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const struct shaderc_module *(*get)(void) = NULL;
    if (so)
        *(void **)&get = dlsym(so, "kiln_shaderc");
    real = get ? get() : NULL;
    m.abi = real ? real->abi : 0;
    return &m;
}
