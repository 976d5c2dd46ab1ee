/* The matrix units of GPUs: which architectures have them, and which lane of a subgroup holds which elements of a
 * tile.  Only this file knows the latter. */
#include "source.h"
#include <stdlib.h>
#include <string.h>

#define CUDA_MMA(T) \
    "FUNCTION void mma_" T "(f32 &d0, f32 &d1, f32 &d2, f32 &d3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)\n{\n" \
    "    asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32." T "." T ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
    "\"\n" \
    "                 \"{%8, %9}, {%0, %1, %2, %3};\"\n" \
    "                 : \"+f\"(d0), \"+f\"(d1), \"+f\"(d2), \"+f\"(d3)\n" \
    "                 : \"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"r\"(b0), \"r\"(b1));\n}\n"

/* Two halves, rounded to nearest even, the first one in the lower bits. */
#define CUDA_HALVES(T) \
    "FUNCTION u32 halves_" T "(f32 low, f32 high)\n{\n    u32 x;\n" \
    "    asm(\"cvt.rn." T "x2.f32 %0, %1, %2;\" : \"=r\"(x) : \"f\"(high), \"f\"(low));\n    return x;\n}\n"

#define CUDA_ROWS(NAME, X, REFERENCES, REGISTERS, AT, OUT) \
    "FUNCTION void rows_" NAME "(" REFERENCES ", const u16 *row)\n{\n" \
    "    const u32 at = u32(__cvta_generic_to_shared(row));\n" \
    "    asm volatile(\"ldmatrix.sync.aligned.m8n8." X " {" REGISTERS "}, [" AT "];\" : " OUT " : \"r\"(at) : " \
    "\"memory\");\n}\n"
#define CUDA_ROWS_2(NAME, X) \
    CUDA_ROWS("2" NAME, "x2" X, "u32 &r0, u32 &r1", "%0, %1", "%2", "\"=r\"(r0), \"=r\"(r1)")
#define CUDA_ROWS_4(NAME, X) \
    CUDA_ROWS("4" NAME, "x4" X, "u32 &r0, u32 &r1, u32 &r2, u32 &r3", "%0, %1, %2, %3", "%4", \
              "\"=r\"(r0), \"=r\"(r1), \"=r\"(r2), \"=r\"(r3)")

static const char nvidia_prelude[] =
    CUDA_MMA("f16") CUDA_MMA("bf16") CUDA_HALVES("f16") CUDA_HALVES("bf16")
    CUDA_ROWS_2("", ".shared.b16") CUDA_ROWS_2("_transposed", ".trans.shared.b16")
    CUDA_ROWS_4("", ".shared.b16") CUDA_ROWS_4("_transposed", ".trans.shared.b16");

static uint32_t nvidia_dtypes(const char *arch)
{
    return !strncmp(arch, "sm_", 3) && atoi(arch + 3) >= 80 ? 1u << KL_F16 | 1u << KL_BF16 : 0;
}

static uint32_t nvidia_async_dtypes(const char *arch)
{
    return !strncmp(arch, "sm_90a", 6) ? 1u << KL_F16 | 1u << KL_BF16 : 0;
}

/* NVIDIA since sm_80: mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type").  In
 * the terms of its figures a lane has group = lane / 4 and number = lane % 4.  The elements of a lane are:
 *     a   row group (a2 a3 a6 a7: + 8); column 2 number + 0, 1 (a4 to a7: + 8)
 *     b   row 2 number + 0, 1 (b2 b3: + 8); column group
 *     sum row group (c2 c3: + 8); column 2 number + 0, 1 */
const struct matrix_unit matrix_nvidia = {
    .prelude = nvidia_prelude,
    .caps = {.subgroup = 32, .m = 16, .n = 8, .k = 16, .dtypes = 1u << KL_F16 | 1u << KL_BF16, .max_n = 256,
             .chains = 1},
    .dtypes = nvidia_dtypes,
    .a = {8, {.div = 4, .mod = 8, .scale = 1, .at = {0, 0, 8, 8, 0, 0, 8, 8}},
             {.div = 1, .mod = 4, .scale = 2, .at = {0, 1, 0, 1, 8, 9, 8, 9}}},
    .b = {4, {.div = 1, .mod = 4, .scale = 2, .at = {0, 1, 8, 9}}, {.div = 4, .mod = 8, .scale = 1, .at = {0}}},
    .sum = {4, {.div = 4, .mod = 8, .scale = 1, .at = {0, 0, 8, 8}},
               {.div = 1, .mod = 4, .scale = 2, .at = {0, 1, 0, 1}}},
    .rows = true, /* a register of a or b is one of ldmatrix: row `group`, columns 2 number + 0, 1 of an 8x8 matrix */
};

#define CUDA_STATEMENT(FUNCTION_NAME, PTX) \
    "FUNCTION void " FUNCTION_NAME "()\n{\n    asm volatile(\"" PTX ";\" ::: \"memory\");\n}\n"

/* PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier", "Data Movement and Conversion
 * Instructions: cp.async.bulk.tensor" and "setmaxnreg".  phases_wait returns when the phase of this parity is complete;
 * a new barrier is in phase 0, so the one before, of parity 1, counts as complete. */
#define PHASES \
    "struct alignas(64) tensor_map { u64 word[16]; };\n" \
    "#define shared_address(p) u32(__cvta_generic_to_shared(p))\n" \
    "FUNCTION void phases_begin(u64 *b, u32 arrivals)\n{\n" \
    "    asm volatile(\"mbarrier.init.shared::cta.b64 [%0], %1;\" :: \"r\"(shared_address(b)), \"r\"(arrivals) : " \
    "\"memory\");\n}\n" \
    "FUNCTION void phases_end(u64 *b)\n{\n" \
    "    asm volatile(\"mbarrier.inval.shared::cta.b64 [%0];\" :: \"r\"(shared_address(b)) : \"memory\");\n}\n" \
    "FUNCTION void phases_arrive(u64 *b)\n{\n" \
    "    asm volatile(\"mbarrier.arrive.shared::cta.b64 _, [%0];\" :: \"r\"(shared_address(b)) : \"memory\");\n}\n" \
    "FUNCTION void phases_expect_bytes(u64 *b, u32 bytes)\n{\n" \
    "    asm volatile(\"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\" :: \"r\"(shared_address(b)), " \
    "\"r\"(bytes) : \"memory\");\n}\n" \
    "FUNCTION void phases_wait(u64 *b, u32 parity)\n{\n    u32 done = 0u;\n    do {\n" \
    "        asm volatile(\"{\\n.reg .pred p;\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\n\"\n" \
    "                     \"selp.u32 %0, 1, 0, p;\\n}\" : \"=r\"(done) : \"r\"(shared_address(b)), \"r\"(parity) : " \
    "\"memory\");\n    } while (!done);\n}\n" \
    "FUNCTION void copy_panel(u16 *to, const tensor_map *map, i32 x, i32 y, i32 z, u64 *b)\n{\n" \
    "    asm volatile(\"cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], \"\n" \
    "                 \"[%1, {%2, %3, %4}], [%5];\" :: \"r\"(shared_address(to)), \"l\"(map), \"r\"(x), \"r\"(y), " \
    "\"r\"(z), \"r\"(shared_address(b))\n                 : \"memory\");\n}\n" \
    "template <int n> FUNCTION void registers_fewer()\n{\n" \
    "    asm volatile(\"setmaxnreg.dec.sync.aligned.u32 %0;\" :: \"n\"(n));\n}\n" \
    "template <int n> FUNCTION void registers_more()\n{\n" \
    "    asm volatile(\"setmaxnreg.inc.sync.aligned.u32 %0;\" :: \"n\"(n));\n}\n" \
    "template <int n> FUNCTION void role_barrier()\n{\n" \
    "    asm volatile(\"bar.sync 1, %0;\" :: \"n\"(n) : \"memory\");\n}\n"

/* panel_place is the place of element e of an array of [rows x cols] matrices.  A matrix consists of panels of 64
 * columns, one after another.  A row of a panel has 128 bytes in chunks of 16, and the chunk's number is combined by
 * xor with the row's number modulo 8.
 *
 * store_result_16: NVRTC was seen to take packs apart that such a kernel stores.  Its phase does not read its results,
 * so loads may move over the store. */
static const char nvidia_async_prelude[] =
    "template <class P> FUNCTION void store_result_16(void *to, P p)\n{\n    const word *from = (const word *)&p;\n"
    "    asm volatile(\"st.global.v4.b32 [%0], {%1, %2, %3, %4};\" :: \"l\"(__cvta_generic_to_global(to)), "
    "\"r\"(from[0]), \"r\"(from[1]),\n                 \"r\"(from[2]), \"r\"(from[3]));\n}\n"
    "template <u32 rows, u32 cols> FUNCTION u32 panel_place(u32 e)\n{\n"
    "    const u32 r = e / cols % rows, c = e % cols;\n"
    "    return e / (rows * cols) * (rows * cols) + c / 64u * (rows * 64u) + r * 64u + (c % 64u ^ r % 8u * 8u);\n}\n"
    "FUNCTION u64 panel_descriptor(const u16 *p, u32 leading, u32 more)\n{\n"
    "    const u32 low = (u32(__cvta_generic_to_shared(p)) >> 4 & 0x3fffu | leading << 16) + more;\n"
    "    return u64(1u << 30 | 64u) << 32 | low;\n}\n"
    CUDA_STATEMENT("products_fence", "wgmma.fence.sync.aligned")
    CUDA_STATEMENT("products_commit", "wgmma.commit_group.sync.aligned")
    CUDA_STATEMENT("proxy_fence", "fence.proxy.async.shared::cta")
    "template <int left> FUNCTION void products_wait()\n{\n"
    "    asm volatile(\"wgmma.wait_group.sync.aligned %0;\" :: \"n\"(left) : \"memory\");\n}\n"
    PHASES;

/* NVIDIA's sm_90a: wgmma.mma_async.m64nNk16 (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").  N is a
 * multiple of 8 up to 256; the numbers below are for 8 columns.  In the terms of mma.sync above, with warp = lane / 32,
 * the elements of a lane are:
 *     sum row 16 warp + group (d2 d3: + 8); column 2 number + 0, 1
 *     a   as of mma.sync, of rows from 16 warp on
 * b is in shared memory, a may be in registers instead.  A matrix descriptor says where: bits 0 to 13 are the address /
 * 16, bits 16 to 29 the leading byte offset / 16, bits 32 to 45 the stride byte offset / 16, bits 62 and 63
 * the swizzle mode, where 1 is 128 bytes.  The stride is the distance from 8 rows of 128 bytes to the next 8 rows,
 * 1024.  If rows are along the contraction, the leading offset is not used; if rows are along the tile's other
 * dimension, it is the distance from a panel to the next. */
const struct matrix_unit matrix_nvidia_async = {
    .prelude = nvidia_async_prelude,
    .caps = {.subgroup = 128, .m = 64, .n = 8, .k = 16, .dtypes = 1u << KL_F16 | 1u << KL_BF16, .max_n = 256,
             .async = 1, .chains = 1},
    .dtypes = nvidia_async_dtypes,
    .a = {.elements = 8},
    .sum = {4, {.div = 4, .mod = 8, .scale = 1, .at = {0, 0, 8, 8}, .div2 = 32, .mod2 = 4, .scale2 = 16},
               {.div = 1, .mod = 4, .scale = 2, .at = {0, 1, 0, 1}}},
};

#define EACH_4(X) X("0") X("1") X("2") X("3")
#define EACH_16(X) \
    EACH_4(X) X("4") X("5") X("6") X("7") X("8") X("9") X("10") X("11") X("12") X("13") X("14") X("15")
#define SUM(N) "f32 &d" N ", "
#define SUM_GIVEN(N) "d" N ", "
#define SUM_TAKEN(N) "    d" N " = d[" N "];\n"
#define HIP_HALVES(EACH, BYTES, T, HALF, INSTRUCTION) \
    "FUNCTION void mma_" T "(" EACH(SUM) "u32 a0, u32 a1, u32 b0, u32 b1)\n{\n" \
    "    typedef " HALF " halves __attribute__((vector_size(8)));\n" \
    "    typedef f32 sums __attribute__((vector_size(" BYTES ")));\n" \
    "    const u64 a = u64(a1) << 32 | a0, b = u64(b1) << 32 | b0;\n    sums d = {" EACH(SUM_GIVEN) "};\n" \
    "    d = " INSTRUCTION "(__builtin_bit_cast(halves, b), __builtin_bit_cast(halves, a), d, 0, 0, 0);\n" \
    EACH(SUM_TAKEN) "}\n"
#define HIP_FLOATS(EACH, BYTES, INSTRUCTION) \
    "FUNCTION void mma_f32(" EACH(SUM) "f32 a0, f32 a1, f32 a2, f32 a3, f32 b0, f32 b1, f32 b2, f32 b3)\n{\n" \
    "    typedef f32 sums __attribute__((vector_size(" BYTES ")));\n    sums d = {" EACH(SUM_GIVEN) "};\n" \
    "    d = " INSTRUCTION "(b0, a0, d, 0, 0, 0);\n    d = " INSTRUCTION "(b1, a1, d, 0, 0, 0);\n" \
    "    d = " INSTRUCTION "(b2, a2, d, 0, 0, 0);\n    d = " INSTRUCTION "(b3, a3, d, 0, 0, 0);\n" \
    EACH(SUM_TAKEN) "}\n"

#define AMD_HALVES(T) \
    "FUNCTION u32 halves_" T "(f32 low, f32 high) { return " T "_of_f32(low) | u32(" T "_of_f32(high)) << 16; }\n"

static const char amd_prelude_32[] =
    HIP_HALVES(EACH_16, "64", "f16", "_Float16", "__builtin_amdgcn_mfma_f32_32x32x8f16")
    HIP_HALVES(EACH_16, "64", "bf16", "short", "__builtin_amdgcn_mfma_f32_32x32x8bf16_1k")
    HIP_FLOATS(EACH_16, "64", "__builtin_amdgcn_mfma_f32_32x32x2f32");
static const char amd_prelude_16[] =
    AMD_HALVES("f16") AMD_HALVES("bf16")
    HIP_HALVES(EACH_4, "16", "f16", "_Float16", "__builtin_amdgcn_mfma_f32_16x16x16f16")
    HIP_HALVES(EACH_4, "16", "bf16", "short", "__builtin_amdgcn_mfma_f32_16x16x16bf16_1k")
    HIP_FLOATS(EACH_4, "16", "__builtin_amdgcn_mfma_f32_16x16x4f32");

enum { AMD_DTYPES = 1 << KL_F16 | 1 << KL_BF16 | 1 << KL_F32 };

/* gfx90a treats denormal halves as zeros (ROCm, "MI200 MFMA behavior specifics"), which would change the results of
 * ordinary f16 numbers.  Its instructions for f32 do not, nor do those of the later architectures (PyTorch, "Numerical
 * accuracy: .. on AMD Instinct MI200 devices"). */
static uint32_t amd_dtypes(const char *arch)
{
    static const char *const later[] = {"gfx940", "gfx941", "gfx942", "gfx950"};
    for (unsigned i = 0; i < sizeof later / sizeof *later; i++)
        if (!strncmp(arch, later[i], 6))
            return AMD_DTYPES;
    return !strncmp(arch, "gfx90a", 6) ? 1u << KL_BF16 | 1u << KL_F32 : 0;
}

/* AMD since CDNA 2, in a wave of 64 lanes, one block (AMD's ISA documents, "Matrix arithmetic instructions", and AMD's
 * matrix instruction calculator).  v_mfma_f32_32x32x8_f16 and _bf16_1k; the elements of a lane are:
 *     A   row lane % 32, column 4 (lane / 32) + 0 .. 3
 *     B   row 4 (lane / 32) + 0 .. 3, column lane % 32
 *     D   element i: row 8 (i / 4) + 4 (lane / 32) + i % 4, column lane % 32
 * v_mfma_f32_16x16x16_f16 and _bf16_1k:
 *     A   row lane % 16, column 4 (lane / 16) + 0 .. 3
 *     B   row 4 (lane / 16) + 0 .. 3, column lane % 16
 *     D   row 4 (lane / 16) + 0 .. 3, column lane % 16
 * A lane has the same elements of a factor, if it is A or, transposed, B.  So an mma here gives b as A and a as B, and
 * D is the transposed sum: a lane has adjacent columns of a row, which are stored at once, and those that a lane has of
 * a factor a.
 *
 * v_mfma_f32_32x32x2_f32 and v_mfma_f32_16x16x4_f32 have the same D, and one element of a row of A or a column of B in
 * each lane: lanes 32 n .. 32 n + 31, or 16 n .. 16 n + 15, have index n of the contraction.  An mma of f32 is four of
 * these instructions, so that it is as deep as one of halves; the number of an element is that of its instruction. */
const struct matrix_unit matrix_amd_32 = {
    .prelude = amd_prelude_32,
    .caps = {.subgroup = 64, .m = 32, .n = 32, .k = 8, .dtypes = AMD_DTYPES, .max_n = 256},
    .dtypes = amd_dtypes,
    .a = {4, {.div = 1, .mod = 32, .scale = 1, .at = {0}}, {.div = 32, .mod = 2, .scale = 4, .at = {0, 1, 2, 3}}},
    .b = {4, {.div = 32, .mod = 2, .scale = 4, .at = {0, 1, 2, 3}}, {.div = 1, .mod = 32, .scale = 1, .at = {0}}},
    .a_f32 = {4, {.div = 1, .mod = 32, .scale = 1, .at = {0}}, {.div = 32, .mod = 2, .scale = 1, .at = {0, 2, 4, 6}}},
    .b_f32 = {4, {.div = 32, .mod = 2, .scale = 1, .at = {0, 2, 4, 6}}, {.div = 1, .mod = 32, .scale = 1, .at = {0}}},
    .sum = {16, {.div = 1, .mod = 32, .scale = 1, .at = {0}},
                {.div = 32, .mod = 2, .scale = 4, .at = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27}}},
};
const struct matrix_unit matrix_amd_16 = {
    .prelude = amd_prelude_16,
    .caps = {.subgroup = 64, .m = 16, .n = 16, .k = 16, .dtypes = AMD_DTYPES, .max_n = 256, .chains = 1},
    .dtypes = amd_dtypes,
    .a = {4, {.div = 1, .mod = 16, .scale = 1, .at = {0}}, {.div = 16, .mod = 4, .scale = 4, .at = {0, 1, 2, 3}}},
    .b = {4, {.div = 16, .mod = 4, .scale = 4, .at = {0, 1, 2, 3}}, {.div = 1, .mod = 16, .scale = 1, .at = {0}}},
    .a_f32 = {4, {.div = 1, .mod = 16, .scale = 1, .at = {0}}, {.div = 16, .mod = 4, .scale = 1, .at = {0, 4, 8, 12}}},
    .b_f32 = {4, {.div = 16, .mod = 4, .scale = 1, .at = {0, 4, 8, 12}}, {.div = 1, .mod = 16, .scale = 1, .at = {0}}},
    .sum = {4, {.div = 1, .mod = 16, .scale = 1, .at = {0}}, {.div = 16, .mod = 4, .scale = 4, .at = {0, 1, 2, 3}}},
};

/* CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": the maximum of a thread block. */
uint32_t matrix_nvidia_shared(const char *arch)
{
    int capability = strncmp(arch, "sm_", 3) ? 0 : atoi(arch + 3);
    switch (capability) {
    case 80: case 87: return 163 << 10;
    case 86: case 89: case 120: case 121: return 99 << 10;
    case 90: case 100: case 103: return 227 << 10;
    default: return capability > 80 ? 99 << 10 : 48 << 10;
    }
}
