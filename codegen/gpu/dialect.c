/* The dialects: what differs between the languages of CUDA, HIP and Vulkan. */
#include "source.h"
#include "ir/math/half.inc"
#include <stdlib.h>
#include <string.h>

#define C_TYPES \
    "typedef signed char i8;\ntypedef unsigned char u8;\ntypedef short i16;\ntypedef unsigned short u16;\n" \
    "typedef int i32;\ntypedef unsigned int u32;\ntypedef long long i64;\ntypedef unsigned long long u64;\n" \
    "typedef float f32;\ntypedef double f64;\ntypedef u16 f16;\ntypedef u16 bf16;\n" \
    "template <class T, int n> struct alignas(sizeof(T) * n) pack { T v[n]; };\n" \
    "template <unsigned n> struct addresses { u64 at[n]; };\n" \
    "#define f32_of_bits(x) __uint_as_float(x)\n#define bits_of_f32(x) __float_as_uint(x)\n" \
    "#define f64_of_bits(x) __longlong_as_double(i64(x))\n#define bits_of_f64(x) u64(__double_as_longlong(x))\n" \
    "#define fma_f32 fmaf\n#define fma_f64 fma\n#define sqrt_f32 sqrtf\n#define sqrt_f64 sqrt\n" \
    "#define rint_f32 rintf\n#define rint_f64 rint\n#define abs_f32 fabsf\n#define abs_f64 fabs\n" \
    "#define FUNCTION static __device__ inline\n#define EXACT const\n#define is_nan_f32(x) ((x) != (x))\n" \
    "typedef u32 __attribute__((may_alias)) word;\n#define word_at(p) (*(const word *)(p))\n"

/* What ir/math/half.inc means as text of functions: the operators are C's. */
#define TEXT_OF(...) #__VA_ARGS__
#define TEXT(...) TEXT_OF(__VA_ARGS__)
#define LET_U(name, value) "    u32 " TEXT(name = value) ";\n"
#define LET_F(name, value) "    EXACT f32 " TEXT(name = value) ";\n"
#define GIVE_BF16(u) "    return bf16" TEXT((u)) ";\n"
#define GIVE_F16(u) "    return f16" TEXT((u)) ";\n"
#define GIVE_F32(f) "    return " TEXT(f) ";\n"
#define U_OF(f) bits_of_f32(f)
#define F_OF(u) f32_of_bits(u)
#define U_FROM(half) u32(half)
#define F_FROM(u) f32(u)
#define F_FMA(a, b, c) fma_f32(a, b, c)
#define F_ABS(a) abs_f32(a)
#undef F_IS_NAN
#define F_IS_NAN(x) is_nan_f32(x)
#define FUNCTION(head, body) "FUNCTION " head "\n{\n" body "}\n"

#define WIDEN_BF16 FUNCTION("f32 f32_of_bf16(bf16 h)", F32_OF_BF16(h))
#define BF16 FUNCTION("bf16 bf16_of_f32(f32 x)", BF16_OF_F32(x))
#define ROUNDED_BF16 "FUNCTION f32 rounded_bf16(f32 x) { return f32_of_bf16(bf16_of_f32(x)); }\n"
#define F16 FUNCTION("f32 f32_of_f16(f16 h)", F32_OF_F16(h)) FUNCTION("f16 f16_of_f32(f32 x)", F16_OF_F32(x))
#define DOT2 FUNCTION("f32 flush_f32(f32 x)", FLUSH_F32(x)) \
    FUNCTION("f32 fma_flushed(f32 a, f32 b, f32 c)", FMA_FLUSHED(a, b, c)) \
    FUNCTION("f32 dot2_f32(u32 a, u32 b, f32 c)", DOT2_F32(a, b, c))

/* CUDA has instructions, from sm_80 on.  That for two numbers is faster than that for one. */
#define CUDA_BF16 \
    WIDEN_BF16 "#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800\n" \
    "FUNCTION bf16 bf16_of_f32(f32 x)\n{\n    bf16 h;\n    asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(h) : \"f\"(x));\n" \
    "    return h;\n}\n" \
    "FUNCTION f32 rounded_bf16(f32 x)\n{\n    u32 h;\n" \
    "    asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(h) : \"f\"(x), \"f\"(0.0f));\n    return f32_of_bits(h);\n}\n" \
    "#else\n" BF16 ROUNDED_BF16 "#endif\n"

#define MAX "FUNCTION f32 max_f32(f32 a, f32 b) { return b < a || is_nan_f32(a) ? a : b; }\n"

/* Copies 4, 8 or 16 bytes, `far` bytes behind an address, to shared memory, `by` bytes behind one; stores zeros if the
 * source elements do not exist. */
#define CUDA_COPY(BYTES, HOW) \
    "template <int by = 0, int far = 0> FUNCTION void copy_" BYTES "(void *to, const void *from, bool there)\n{\n" \
    "    const u32 at = u32(__cvta_generic_to_shared(to));\n" \
    "    asm volatile(\"cp.async." HOW ".shared.global [%0 + %3], [%1 + %4], " BYTES ", %2;\" :: \"r\"(at), " \
    "\"l\"(from), \"r\"(there ? " BYTES " : 0), \"n\"(by), \"n\"(far)\n" \
    "                 : \"memory\");\n}\n"

/* Blocks in order.  A word has its value in its lower half and 1 above it, and is stored and loaded as a whole, so no
 * fence is needed: what is published is in the word.  A block takes the number of its next iteration from a counter, so
 * the blocks of all earlier iterations run already, or are done. */
#define IN_ORDER(LOAD, STORE) \
    "#ifndef WORD_PAUSE\n#define WORD_PAUSE\n#endif\n" \
    "FUNCTION u32 next_in_order(u64 *count)\n{\n    __shared__ u32 next;\n    __syncthreads();\n" \
    "    if (threadIdx.x == 0u)\n        next = u32(atomicAdd(count, u64(1)));\n    __syncthreads();\n" \
    "    return next;\n}\n" \
    "FUNCTION void publish(u64 *to, u32 x) { " STORE("to", "u64(1) << 32 | x") " }\n" \
    "FUNCTION u32 receive(const u64 *from, bool wanted)\n{\n    u64 word = 0;\n" \
    "    while (wanted && !((word = " LOAD("from") ") >> 32))\n        WORD_PAUSE;\n    return u32(word);\n}\n"
#define VOLATILE_LOAD(p) "*(const volatile u64 *)" p
#define VOLATILE_STORE(p, x) "*(volatile u64 *)" p " = " x ";"
#define AGENT_LOAD(p) "__hip_atomic_load(" p ", __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)"
#define AGENT_STORE(p, x) "__hip_atomic_store(" p ", " x ", __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);"

/* recip_f32: the instruction's error is below one unit in the last place, and a step of Newton's method with fma then
 * gives the nearest number to 1 / x (Markstein 1990), as NVIDIA's division does where it need not look at x.
 *
 * store_16: NVRTC was seen to take packs apart that kernels of many phases store to workspaces, and kernels
 * with tiles of threads as results.
 *
 * LOAD_BOUNDS: so many threads that each has up to 168 registers; blocks of one warp, which hold rows, up to 255.
 *
 * CUDA's shuffles name the lanes that take part: here all of the block's.  Kernels with tiles are compiled so that a
 * multiprocessor runs `all` threads, mostly 512, so each thread has up to 128 registers.  Chains of products need
 * more. */
#define CUDA_PRELUDE \
    C_TYPES \
    "FUNCTION f32 exp2_f32(f32 x)\n{\n    f32 y;\n    asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(y) : \"f\"(x));\n" \
    "    return y;\n}\n" \
    "FUNCTION f32 recip_f32(f32 x)\n{\n    f32 y;\n    asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(y) : \"f\"(x));\n" \
    "    return fma_f32(y, fma_f32(-x, y, 1.0f), y);\n}\n" \
    "FUNCTION f32 max_f32(f32 a, f32 b)\n{\n    f32 y;\n" \
    "    asm(\"max.NaN.f32 %0, %1, %2;\" : \"=f\"(y) : \"f\"(a), \"f\"(b));\n    return y;\n}\n" \
    "FUNCTION f32 f32_of_f16(f16 h)\n{\n    f32 x;\n    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(x) : \"h\"(h));\n" \
    "    return x;\n}\n" \
    "FUNCTION f16 f16_of_f32(f32 x)\n{\n    f16 h;\n    asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(h) : \"f\"(x));\n" \
    "    return h;\n}\n" \
    "#define ADDRESSES(n) const __grid_constant__ addresses<n>\n" \
    "#define TILE_BOUNDS(n, all) __launch_bounds__(n, n < all ? all / n : 1)\n" \
    "#define CHAIN_BOUNDS(n) __launch_bounds__(n)\n" \
    "#define LOAD_BOUNDS(n) __launch_bounds__(n, n < 64 ? 256 / n : n < 384 ? 384 / n : 1)\n" \
    "#ifndef SHARED_ARENA\n#define SHARED_ARENA(bytes) alignas(1024) extern __shared__ u8 arena[]\n#endif\n" \
    "#ifndef uniform\n#define uniform(x) __shfl_sync(0xffffffffu, x, 0)\n#endif\n" \
    "#define LANES (blockDim.x < 32 ? (1u << blockDim.x) - 1 : 0xffffffffu)\n" \
    "#define lane_below(x, h, w) __shfl_down_sync(LANES, x, h, w)\n" \
    "#define lane_across(x, h, w) __shfl_xor_sync(LANES, x, h, w)\n" \
    "#define lane_first(x, w) __shfl_sync(LANES, x, 0, w)\n" \
    CUDA_COPY("4", "ca") CUDA_COPY("8", "ca") CUDA_COPY("16", "cg") \
    "FUNCTION void copies_commit()\n{\n    asm volatile(\"cp.async.commit_group;\" ::: \"memory\");\n}\n" \
    "template <int left> FUNCTION void copies_wait()\n{\n" \
    "    asm volatile(\"cp.async.wait_group %0;\" :: \"n\"(left) : \"memory\");\n}\n" \
    "template <class P> FUNCTION void store_16(void *to, P p)\n{\n    const word *from = (const word *)&p;\n" \
    "    asm volatile(\"st.global.v4.b32 [%0], {%1, %2, %3, %4};\" :: \"l\"(__cvta_generic_to_global(to)), " \
    "\"r\"(from[0]), \"r\"(from[1]),\n                 \"r\"(from[2]), \"r\"(from[3]) : \"memory\");\n}\n"

/* Copies are loads, and stores at the next wait.  Kernels with tiles are compiled for two waves on a SIMD, so that a
 * lane has up to 256 registers: with more, the compiler keeps the sums of matrix instructions in accumulation
 * registers, and copies all of them in each iteration of a loop. */
#define HIP_PRELUDE \
    C_TYPES MAX \
    "#define exp2_f32 exp2f\n#define recip_f32(x) (1.0f / (x))\n" \
    "#define ADDRESSES(n) const addresses<n>\n" \
    "#define TILE_BOUNDS(n, all) __launch_bounds__(n) __attribute__((amdgpu_waves_per_eu(2)))\n" \
    "#define CHAIN_BOUNDS(n) TILE_BOUNDS(n, 0)\n#define LOAD_BOUNDS(n) __launch_bounds__(n)\n" \
    "typedef u32 __attribute__((may_alias)) vector_4;\ntypedef u64 __attribute__((may_alias)) vector_8;\n" \
    "typedef u32 __attribute__((vector_size(16), may_alias)) vector_16;\n" \
    "#define load_vector(n, p, there) ((there) ? *(const vector_##n *)(p) : vector_##n{})\n" \
    "#define store_vector(n, p, x) (*(vector_##n *)(p) = (x))\n" \
    "template <class P> FUNCTION void store_16(void *to, P p) { *(P *)to = p; }\n" \
    "FUNCTION f32 f32_of_f16(f16 h) { return f32(__builtin_bit_cast(_Float16, h)); }\n" \
    "FUNCTION f16 f16_of_f32(f32 x) { return __builtin_bit_cast(f16, _Float16(x)); }\n" \
    "#define lane_below(x, h, w) __shfl_down(x, h, w)\n#define lane_across(x, h, w) __shfl_xor(x, h, w)\n" \
    "#define lane_first(x, w) __shfl(x, 0, w)\n"

/* packHalf2x16 may round in any direction, so f16 is made from the bits.  GLSL's sqrt of a negative number is
 * undefined, and NVIDIA's compiler was seen to take x != x for false (put_nan_test of source_value.c).  Barriers order
 * the memory of a block's threads, as CUDA's do. */
#define GLSL_PRELUDE \
    "#extension GL_EXT_shader_explicit_arithmetic_types : require\n" \
    "#extension GL_EXT_shader_8bit_storage : require\n#extension GL_EXT_shader_16bit_storage : require\n" \
    "#extension GL_EXT_shader_atomic_int64 : enable\n#extension GL_EXT_buffer_reference : require\n" \
    "#define i8 int8_t\n#define u8 uint8_t\n#define i16 int16_t\n#define u16 uint16_t\n#define i32 int32_t\n" \
    "#define u32 uint32_t\n#define i64 int64_t\n#define u64 uint64_t\n#define f32 float\n#define f64 double\n" \
    "#define f16 uint16_t\n#define bf16 uint16_t\n" \
    "#define f32_of_bits(x) uintBitsToFloat(x)\n#define bits_of_f32(x) floatBitsToUint(x)\n" \
    "#define f64_of_bits(x) packDouble2x32(unpack32(u64(x)))\n#define bits_of_f64(x) pack64(unpackDouble2x32(x))\n" \
    "#define sum_f32 fma\n#define sum_f64 fma\n" \
    "#define sqrt_f32(x) ((x) < 0.0f ? f32_of_bits(0x7fc00000u) : sqrt(x))\n" \
    "#define sqrt_f64(x) ((x) < 0.0lf ? f64_of_bits(0x7ff8000000000000ul) : sqrt(x))\n" \
    "#define rint_f32 roundEven\n#define rint_f64 roundEven\n#define abs_f32 abs\n#define abs_f64 abs\n" \
    "#define widened_i32(x) pack64(u32vec2(u32(x), u32((x) >> 31)))\n#define widened_u32(x) pack64(u32vec2(x, 0u))\n" \
    "#define is_nan_f32(x) ((bits_of_f32(x) & 0x7fffffffu) > 0x7f800000u)\n" \
    "#define is_nan_f64(x) ((bits_of_f64(x) & 0x7ffffffffffffffful) > 0x7ff0000000000000ul)\n" \
    "#define FUNCTION\n#define EXACT precise\n#define exp2_f32 exp2\n#define recip_f32(x) (1.0f / (x))\n" MAX

static const struct dialect dialects[] = {
    {.name = "cuda", .prelude = CUDA_PRELUDE, .halves = CUDA_BF16, .words = IN_ORDER(VOLATILE_LOAD, VOLATILE_STORE),
     .thread = "threadIdx.x", .block = "blockIdx.x", .grid = "gridDim.x", .barrier = "__syncthreads();",
     .shared = "alignas(16) __shared__ ", .local = "const ", .exact = "const "
     "", .i64 = "ll", .u64 = "ull", .f64 = "", .address = "&",
     .subscript = "",
     .shuffle = 32, .threads = 256, .shared_bytes = 48 << 10, .copies = COPIES_ASYNC, .packs = true,
     .dynamic_bytes = 227 << 10, .shared_bytes_of = matrix_nvidia_shared,
     .matrix = {&matrix_nvidia}, .matrix_async = &matrix_nvidia_async, .arch = "sm_80"},
    {.name = "hip", .prelude = HIP_PRELUDE, .halves = WIDEN_BF16 BF16 ROUNDED_BF16,
     .words = IN_ORDER(AGENT_LOAD, AGENT_STORE),
     .thread = "threadIdx.x", .block = "blockIdx.x", .grid = "gridDim.x", .barrier = "__syncthreads();",
     .shared = "alignas(16) __shared__ ", .local = "const ", .exact = "const "
     "", .i64 = "ll", .u64 = "ull", .f64 = "", .address = "&",
     .subscript = "",
     .shuffle = 32, .threads = 256, .shared_bytes = 48 << 10, .copies = COPIES_LATE, .packs = true,
     .matrix = {&matrix_amd_32, &matrix_amd_16}, .arch = "gfx90a"},
    {.name = "glsl", .prelude = GLSL_PRELUDE, .halves = WIDEN_BF16 BF16 ROUNDED_BF16 F16,
     .thread = "gl_LocalInvocationID.x", .block = "gl_WorkGroupID.x", .grid = "gl_NumWorkGroups.x",
     .barrier = "groupMemoryBarrier(); barrier();",
     .shared = "shared ", .local = "", .exact = "precise ", .i64 = "l", .u64 = "ul", .f64 = "lf", .address = "",
     .subscript = "u32",
     .lane = "gl_SubgroupID * gl_SubgroupSize + "
     "gl_SubgroupInvocationID", .shuffle = 0, .threads = 128, .shared_bytes = 16 << 10, .packs = true,
     .copies = COPIES_LATE, .table = true},
};
enum { DIALECTS = sizeof dialects / sizeof *dialects };

const struct dialect *dialect_find(const char *name, struct err *e)
{
    for (unsigned i = 0; i < DIALECTS; i++)
        if (!strcmp(dialects[i].name, name))
            return &dialects[i];
    err_set(e, KL_ERR_ARGUMENT, "no language is called '%s': there are cuda, hip and glsl", name);
    return NULL;
}

/* The product of two f32 is exact as f64. */
#define FMA_BY_F64                                                                                           \
    "FUNCTION f32 fma_f32(f32 a, f32 b, f32 c)\n{\n    precise f64 r = f64(a) * f64(b) + f64(c);\n"      \
    "    return f32(r);\n}\n"

/* Product and sum, each with its rounding error, if nothing overflows (Dekker 1971, Knuth's two-sum). */
#define FMA_BY_PARTS(T, SPLIT, LIMIT) \
    "FUNCTION " T " fma_" T "(" T " a, " T " b, " T " c)\n{\n    precise " T " p = a * b, s = p + c;\n" \
    "    if (!(abs(a) < " LIMIT " && abs(b) < " LIMIT " && abs(s) < " LIMIT " && abs(p) < " LIMIT "))\n" \
    "        return s;\n" \
    "    precise " T " x = a * " SPLIT ", y = b * " SPLIT ", ah = x - (x - a), bh = y - (y - b), al = a - ah, bl = " \
    "b - bh;\n" \
    "    precise " T " e = ((ah * bh - p) + ah * bl + al * bh) + al * bl, w = s - p, f = (p - (s - w)) + (c - w);\n" \
    "    precise " T " r = s + (f + e);\n    return r;\n}\n"

/* fma of f32, rounded once.  The sum of the exact product and c as f64 is rounded to odd (Boldo and Melquiond 2008): of
 * the two numbers beside it, the one whose last bit is set.  Rounding that to f32 is right, as it is on no boundary.
 * The sign of a sum that is 0 is computed from the bits: Mesa's compiler makes x of x + 0.0, also where x may be -0. */
#define EXACT_FMA_BY_F64 \
    "FUNCTION f32 exact_fma_f32(f32 a, f32 b, f32 c)\n{\n" \
    "    precise f64 p = f64(a) * f64(b), z = f64(c), s = p + z, t = s - p, e = (p - (s - t)) + (z - t);\n" \
    "    u64 bits = bits_of_f64(s);\n" \
    "    if (s == 0.0lf)\n        bits = bits_of_f64(p) & bits_of_f64(z) & 0x8000000000000000ul;\n" \
    "    else if ((e < 0.0lf || e > 0.0lf) && u32(bits & 1ul) == 0u)\n" \
    "        bits = (e > 0.0lf) == (s > 0.0lf) ? bits + 1ul : bits - 1ul;\n    return f32(f64_of_bits(bits));\n}\n"

/* fma, rounded once, by integers, of numbers of any magnitude: the bits of numbers with `f` bits of fraction.  Product
 * and c have 128 bits (h, l) with the highest set, times 2^q.  The smaller one is moved to the unit of the other; bits
 * that it loses are kept in its lowest one (sticky).  None is lost where more than a bit of the sum can cancel. */
#define EXACT_FMA_BY_BITS \
    "FUNCTION void move_down(inout u64 h, inout u64 l, u32 n)\n{\n    u64 lost = 0ul;\n" \
    "    n = n < 127u ? n : 127u;\n" \
    "    if (n >= 64u) {\n        lost = l;\n        l = h;\n        h = 0ul;\n        n -= 64u;\n    }\n" \
    "    if (n > 0u) {\n        lost |= l << (64u - n);\n" \
    "        l = l >> n | h << (64u - n);\n        h >>= n;\n    }\n" \
    "    l |= lost != 0ul ? 1ul : 0ul;\n}\n" \
    "FUNCTION void move_up(inout u64 h, inout u64 l, inout i32 q)\n{\n" \
    "    if (h == 0ul) {\n        h = l;\n        l = 0ul;\n        q -= 64;\n    }\n" \
    "    i32 high = findMSB(u32(h >> 32u)), n = high < 0 ? 31 - findMSB(u32(h)) + 32 : 31 - high;\n" \
    "    if (n > 0) {\n        h = h << n | l >> (64 - n);\n        l <<= n;\n        q -= n;\n    }\n}\n" \
    "FUNCTION void fraction_of(u64 x, u32 f, i32 bias, inout u64 m, inout i32 q)\n{\n    u64 one = 1ul << f;\n" \
    "    i32 e = i32(x >> f);\n    m = e > 0 ? (x & (one - 1ul)) | one : x;\n" \
    "    q = (e > 0 ? e : 1) - bias - i32(f);\n}\n" \
    "FUNCTION u64 exact_fma_bits(u64 a, u64 b, u64 c, u32 f)\n{\n" \
    "    i32 bias = f == 52u ? 1023 : 127, p, q, r;\n" \
    "    u64 one = 1ul << f, inf = u64(2 * bias + 1) << f, minus = inf + one;\n" \
    "    u64 low = 0xfffffffful, m, n, h, l, i = 0ul, j;\n" \
    "    u64 x = a & (minus - 1ul), y = b & (minus - 1ul), z = c & (minus - 1ul);\n" \
    "    u64 s = (a ^ b) & minus, t = c & minus;\n" \
    "    if (x > inf || y > inf || z > inf ||\n" \
    "        ((x == inf || y == inf) && (x == 0ul || y == 0ul || (z == inf && s != t))))\n" \
    "        return inf | one >> 1u;\n" \
    "    if (x == inf || y == inf)\n        return s | inf;\n    if (z == inf)\n        return c;\n" \
    "    if (x == 0ul || y == 0ul)\n        return z != 0ul ? c : s & t;\n" \
    "    fraction_of(x, f, bias, m, p);\n    fraction_of(y, f, bias, n, q);\n    q += p;\n" \
    "    u64 ll = (m & low) * (n & low), mid = (ll >> 32u) + (m >> 32u) * (n & low) + (m & low) * (n >> 32u);\n" \
    "    h = (m >> 32u) * (n >> 32u) + (mid >> 32u);\n    l = mid << 32u | (ll & low);\n    move_up(h, l, q);\n" \
    "    if (z != 0ul) {\n        fraction_of(z, f, bias, j, r);\n        move_up(i, j, r);\n" \
    "        move_down(h, l, u32(1 + (r > q ? r - q : 0)));\n        move_down(i, j, u32(1 + (q > r ? q - r : 0)));\n" \
    "        q = (q > r ? q : r) + 1;\n" \
    "        if (s != t && (h < i || (h == i && l < j))) {\n            u64 u = h, v = l;\n            h = i;\n" \
    "            l = j;\n            i = u;\n            j = v;\n            s = t;\n" \
    "            t ^= minus;\n        }\n" \
    "        if (s == t) {\n            l += j;\n            h += i + (l < j ? 1ul : 0ul);\n        } else {\n" \
    "            h -= i + (l < j ? 1ul : 0ul);\n            l -= j;\n        }\n" \
    "        if (h == 0ul && l == 0ul)\n            return 0ul;\n        move_up(h, l, q);\n    }\n" \
    "    i32 e = q + 127 + bias;\n    if (e > 2 * bias)\n        return s | inf;\n" \
    "    u32 drop = 63u - f + u32(e < 1 ? 1 - e : 0);\n    if (drop > 64u)\n        return s;\n" \
    "    u64 kept = drop == 64u ? 0ul : h >> drop, middle = 1ul << (drop - 1u), rest = h & (2ul * middle - 1ul);\n" \
    "    kept += rest > middle || (rest == middle && (l != 0ul || (kept & 1ul) != 0ul)) ? 1ul : 0ul;\n" \
    "    return s | (kept + (e > 1 ? u64(e - 1) << f : 0ul));\n}\n"
#define EXACT_FMA_F64 \
    "FUNCTION f64 exact_fma_f64(f64 a, f64 b, f64 c)\n{\n" \
    "    return f64_of_bits(exact_fma_bits(bits_of_f64(a), bits_of_f64(b), bits_of_f64(c), 52u));\n}\n"
#define EXACT_FMA_F32 \
    "FUNCTION f32 exact_fma_f32(f32 a, f32 b, f32 c)\n{\n" \
    "    return f32_of_bits(u32(exact_fma_bits(u64(bits_of_f32(a)), u64(bits_of_f32(b)), u64(bits_of_f32(c)), " \
    "23u)));\n}\n"

/* Exchanges within a subgroup.  All its lanes are active: the driver requires full subgroups. */
#define SUBGROUPS \
    "#extension GL_KHR_shader_subgroup_basic : require\n#extension GL_KHR_shader_subgroup_shuffle : require\n" \
    "#extension GL_EXT_shader_subgroup_extended_types_int64 : require\n" \
    "#define lane_below(x, h, w) subgroupShuffleXor(x, h)\n#define lane_across(x, h, w) subgroupShuffleXor(x, h)\n" \
    "#define lane_first(x, w) subgroupShuffle(x, gl_SubgroupInvocationID & ~(w - 1u))\n"

#define INTRINSICS "#extension GL_EXT_spirv_intrinsics : require\n"
#define BROADCASTS "#extension GL_KHR_shader_subgroup_ballot : require\n"

/* The number after a word of the features; `without` if the features do not have the word. */
static uint32_t feature_number(const char *features, const char *word, uint32_t without)
{
    const char *at = strstr(features, word);
    return at ? (uint32_t)strtoul(at + strlen(word), NULL, 10) : without;
}

/* The opaque unit that the features name, for subgroups of this length. */
static struct mma_caps opaque_unit(const char *features, uint32_t subgroup)
{
    static const struct { const char *word; unsigned dtype; } factor[] = {{VULKAN_MATRIX_F16, KL_F16},
                                                                          {VULKAN_MATRIX_BF16, KL_BF16}};
    struct mma_caps c = {0};
    for (unsigned i = 0; i < sizeof factor / sizeof *factor; i++) {
        const char *at = strstr(features, factor[i].word);
        unsigned m, n, k;
        if (!at || !subgroup || sscanf(at + strlen(factor[i].word), "%ux%ux%u", &m, &n, &k) != 3)
            continue;
        c = (struct mma_caps){.subgroup = (uint16_t)subgroup, .m = (uint16_t)m, .n = (uint16_t)n, .k = (uint16_t)k,
                              .dtypes = c.dtypes | 1u << factor[i].dtype, .max_n = 256};
    }
    return c;
}

struct dialect dialect_for(const struct dialect *d, const char *features)
{
    struct dialect own = *d;
    if (!features || !d->table)
        return own;
    own.shuffle = feature_number(features, "+subgroup", d->shuffle);
    own.broadcast = feature_number(features, "+broadcast", d->broadcast);
    own.signed_zeros = strstr(features, "+signed_zeros") != NULL;
    own.threads = feature_number(features, "+threads", d->threads);
    own.shared_bytes = feature_number(features, "+shared", d->shared_bytes);
    own.opaque = opaque_unit(features, own.shuffle);
    return own;
}

void dialect_prelude(const struct dialect *d, const char *features, struct text *out)
{
    text_put(out, "%s%s%s%s%s%s%s", d->table ? "#version 460\n" : "", d->table && d->shuffle ? SUBGROUPS : "",
             d->table && d->broadcast ? BROADCASTS : "", d->opaque.subgroup || d->signed_zeros ? INTRINSICS : "",
             d->prelude, d->halves, d->words ? d->words : "");
    for (unsigned i = 0; i < MMA_UNITS && d->matrix[i]; i++)
        text_put(out, "%s", d->matrix[i]->prelude);
    text_put(out, "%s", d->matrix_async ? d->matrix_async->prelude : "");
    if (!d->table) {
        text_put(out, "%s", DOT2);
        return;
    }
    bool f64 = !features || strstr(features, "+f64");
    if (!features || strstr(features, "+fma"))
        text_put(out, "#define fma_f32 fma\n#define fma_f64 fma\n"
                      "#define exact_fma_f32 fma\n#define exact_fma_f64 fma\n");
    else
        text_put(out, "%s%s%s%s", f64 ? FMA_BY_F64 : FMA_BY_PARTS("f32", "4097.0f", "1e34f"),
                 f64 ? FMA_BY_PARTS("f64", "134217729.0lf", "1e298lf") : "", EXACT_FMA_BY_BITS,
                 f64 ? EXACT_FMA_BY_F64 EXACT_FMA_F64 : EXACT_FMA_F32);
    text_put(out, "%s", DOT2);
}

void dialect_caps(const struct dialect *d, struct caps *out)
{
    *out = (struct caps){.vector_bytes = 64, .vector_regs = 32, .threads = 64,
                         .l1_bytes = d->shared_bytes, .l2_bytes = 1 << 20, .l3_bytes = 32 << 20,
                         .is_gpu = 1, .block_threads = d->threads, .shared_bytes = d->shared_bytes,
                         .async_copies = d->copies == COPIES_ASYNC, .members = 1,
                         .in_order = d->words != NULL};
    snprintf(out->name, sizeof out->name, "%s", d->name);
}

static struct mma_caps unit_caps(const struct matrix_unit *u, const char *arch)
{
    struct mma_caps c = u ? u->caps : (struct mma_caps){0};
    c.dtypes &= u ? u->dtypes(arch) : 0;
    return c.dtypes ? c : (struct mma_caps){0};
}

void dialect_limits(const struct dialect *d, const char *features, struct caps *out)
{
    const struct dialect own = dialect_for(d, features);
    out->block_threads = own.threads;
    out->shared_bytes = own.shared_bytes;
    out->l1_bytes = own.shared_bytes;
    out->broadcast = own.broadcast;
}

void dialect_architecture(const struct dialect *d, const char *features, struct caps *out)
{
    if (d->shared_bytes_of)
        out->shared_bytes = d->shared_bytes_of(features ? features : d->arch);
    unsigned n = 0;
    memset(out->mma, 0, sizeof out->mma);
    if (d->table)
        out->mma[0] = dialect_for(d, features).opaque;
    for (unsigned i = 0; i < MMA_UNITS && d->matrix[i]; i++) {
        out->mma[n] = unit_caps(d->matrix[i], features ? features : d->arch);
        n += out->mma[n].subgroup != 0;
    }
    out->mma_async = unit_caps(d->matrix_async, features ? features : d->arch);
    out->panel_copies = out->mma_async.subgroup && !(features && strstr(features, NO_TENSOR_MAPS));
}
