/* Types and primitives of the C that codegen/c writes: ISO C99, no library function, the results that ir/math/prims.def
 * states, to the bit.  A text in the library, after that of ir/math/half.inc; halfs are kept as their bits. */
#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* KILN_PORTABLE: nothing but the language. */
#if (defined(__x86_64__) || defined(__SSE2__)) && !defined(KILN_PORTABLE)
#define KILN_HAS_SSE2 1
#include <emmintrin.h>
#elif defined(__aarch64__) && !defined(KILN_PORTABLE)
#define KILN_HAS_NEON 1
#include <arm_neon.h>
#endif
/* 0 and, where the processor computes in f16 (ISO/IEC TS 18661-3), 16: each type is evaluated in its own precision. */
#if FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16
#error "f32 has to be computed in f32: use SSE2, not the x87"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#pragma clang diagnostic ignored "-Wunused-variable"
#pragma clang diagnostic ignored "-Wunused-but-set-variable"
#elif defined(__GNUC__)
#pragma GCC optimize("-ffp-contract=off")
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#if defined(__GNUC__)
#define KILN_FN static inline __attribute__((unused))
#else
#define KILN_FN static inline
#endif

typedef uint8_t u8;
typedef uint16_t u16, f16, bf16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;
typedef float f32;
typedef double f64;
/* m_T: a T in memory, which may have held another type before. */
#if defined(__GNUC__)
#define KILN_ALIAS __attribute__((may_alias))
#else
#define KILN_ALIAS
#endif
typedef u8 m_u8 KILN_ALIAS;
typedef u16 m_u16 KILN_ALIAS, m_f16 KILN_ALIAS, m_bf16 KILN_ALIAS;
typedef u32 m_u32 KILN_ALIAS;
typedef u64 m_u64 KILN_ALIAS;
typedef i8 m_i8 KILN_ALIAS;
typedef i16 m_i16 KILN_ALIAS;
typedef i32 m_i32 KILN_ALIAS;
typedef i64 m_i64 KILN_ALIAS;
typedef f32 m_f32 KILN_ALIAS;
typedef f64 m_f64 KILN_ALIAS;

/* W_T: the unsigned type that integers of type T are added in, so that they wrap. */
typedef u32 W_bool, W_u8, W_u16, W_u32, W_i8, W_i16, W_i32;
typedef u64 W_u64, W_i64;

/* ---- bits ---- */

#define BITS(S, T) KILN_FN T bits_##S##_##T(S x) { union { S s; T t; } u; u.s = x; return u.t; }
BITS(f32, u32) BITS(u32, f32) BITS(f32, i32) BITS(i32, f32) BITS(u32, i32) BITS(i32, u32)
BITS(f64, u64) BITS(u64, f64) BITS(f64, i64) BITS(i64, f64) BITS(u64, i64) BITS(i64, u64)
BITS(u16, i16) BITS(i16, u16) BITS(f16, i16) BITS(i16, f16) BITS(f16, u16) BITS(u16, f16)
BITS(bf16, i16) BITS(i16, bf16) BITS(bf16, u16) BITS(u16, bf16) BITS(f16, bf16) BITS(bf16, f16)
BITS(u8, i8) BITS(i8, u8)
KILN_FN f32 abs_f32(f32 x) { return bits_u32_f32(bits_f32_u32(x) & 0x7fffffffu); }
KILN_FN f64 abs_f64(f64 x) { return bits_u64_f64(bits_f64_u64(x) & 0x7fffffffffffffffu); }

/* ---- several adjacent elements as one u32, the first in the lowest bits ---- */

KILN_FN u32 word_of_4(const m_u8 *p) { return p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24; }
KILN_FN u32 word_of_2(const m_u16 *p) { return p[0] | (u32)p[1] << 16; }

/* ---- to the nearest integer, ties to even: by adding a number that leaves no place for a fraction ---- */

KILN_FN f32 rint_f32(f32 x)
{
    f32 a = abs_f32(x), r = (a + 0x1p23f) - 0x1p23f;
    return a < 0x1p23f ? bits_u32_f32(bits_f32_u32(r) | (bits_f32_u32(x) & 0x80000000u)) : x;
}
KILN_FN f64 rint_f64(f64 x)
{
    f64 a = abs_f64(x), r = (a + 0x1p52) - 0x1p52;
    return a < 0x1p52 ? bits_u64_f64(bits_f64_u64(r) | (bits_f64_u64(x) & 0x8000000000000000u)) : x;
}

/* ---- square roots ---- */

#if KILN_HAS_SSE2
KILN_FN f32 sqrt_f32(f32 x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
KILN_FN f64 sqrt_f64(f64 x) { return _mm_cvtsd_f64(_mm_sqrt_sd(_mm_set_sd(x), _mm_set_sd(x))); }
#elif KILN_HAS_NEON
KILN_FN f32 sqrt_f32(f32 x) { return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0); }
KILN_FN f64 sqrt_f64(f64 x) { return vget_lane_f64(vsqrt_f64(vdup_n_f64(x)), 0); }
#else
/* Digit by digit: the root of significand * 2^54 has 54 bits, one more than an f64, and the remainder says whether
 * more follow. */
KILN_FN f64 sqrt_f64(f64 x)
{
    u64 bits = bits_f64_u64(x), m = bits & 0xfffffffffffffu, root = 0, rest = 0;
    int e = (int)(bits >> 52 & 2047), i;
    if (x != x || x == 0 || bits == 0x7ff0000000000000u)
        return x + x;
    if (x < 0)
        return bits_u64_f64(0xfff8000000000000u);
    if (e)
        m |= (u64)1 << 52;
    else
        for (e = 1; !(m >> 52); e--)
            m <<= 1;
    e -= 1023;
    if (e & 1) {
        m <<= 1;
        e--;
    }
    for (i = 0; i < 54; i++) { /* two bits of m, then zeros, at a time */
        u64 two = i < 27 ? m >> (52 - 2 * i) & 3 : 0, trial = root << 2 | 1;
        rest = rest << 2 | two;
        root <<= 1;
        if (rest >= trial) {
            rest -= trial;
            root |= 1;
        }
    }
    /* root: 2^53 <= root < 2^54, the last bit half of the lowest; a tie is impossible */
    root = (root >> 1) + (root & 1);
    return bits_u64_f64(((u64)(e / 2 + 1022) << 52) + root);
}
/* The root of an f32 rounded to f64 rounds to the right f32 (Figueroa 1995: 53 >= 2 * 24 + 2). */
KILN_FN f32 sqrt_f32(f32 x) { return (f32)sqrt_f64((f64)x); }
#endif

/* ---- a * b + c, rounded once ---- */

#if KILN_HAS_NEON || (defined(__FMA__) && !defined(KILN_PORTABLE))
KILN_FN f32 fma_f32(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
KILN_FN f64 fma_f64(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
#else
/* The product is exact in f64; the sum is rounded to odd, so that rounding it again to f32 is right (Boldo and
 * Melquiond 2008). */
KILN_FN f32 fma_f32(f32 a, f32 b, f32 c)
{
    f64 p = (f64)a * b, s = p + c, t = s - p, rest = (p - (s - t)) + ((f64)c - t);
    u64 bits = bits_f64_u64(s);
    if (rest != 0 && rest == rest && (bits & 0x7ff0000000000000u) != 0x7ff0000000000000u && !(bits & 1))
        bits = (rest > 0) == (s > 0) ? bits + 1 : bits - 1;
    return (f32)bits_u64_f64(bits);
}
/* An integer of 192 bits holds the product's significand of 106 bits and c's beside or in it. */
struct kiln_wide { u64 w[3]; };
KILN_FN struct kiln_wide kiln_shifted(struct kiln_wide x, int by) /* to the left; below 0: to the right, to odd */
{
    u64 lost = 0;
    for (; by >= 64; by -= 64) { x.w[2] = x.w[1]; x.w[1] = x.w[0]; x.w[0] = 0; }
    for (; by <= -64; by += 64) { lost |= x.w[0]; x.w[0] = x.w[1]; x.w[1] = x.w[2]; x.w[2] = 0; }
    if (by > 0) {
        x.w[2] = x.w[2] << by | x.w[1] >> (64 - by);
        x.w[1] = x.w[1] << by | x.w[0] >> (64 - by);
        x.w[0] <<= by;
    } else if (by < 0) {
        lost |= x.w[0] << (64 + by);
        x.w[0] = x.w[0] >> -by | x.w[1] << (64 + by);
        x.w[1] = x.w[1] >> -by | x.w[2] << (64 + by);
        x.w[2] >>= -by;
    }
    x.w[0] |= lost != 0;
    return x;
}
KILN_FN struct kiln_wide kiln_sum(struct kiln_wide x, struct kiln_wide y, bool minus)
{
    u64 carry = minus;
    int i;
    for (i = 0; i < 3; i++) {
        u64 a = minus ? ~y.w[i] : y.w[i], s = x.w[i] + a, t = s + carry;
        carry = (s < a) | (t < s);
        x.w[i] = t;
    }
    return x;
}
KILN_FN u64 kiln_significand(f64 x, int *e) /* x = the result * 2^e, of an odd or even number of 53 bits; 0: 0 */
{
    u64 bits = bits_f64_u64(x), m = bits & 0xfffffffffffffu;
    *e = (int)(bits >> 52 & 2047);
    if (*e) m |= (u64)1 << 52;
    else *e = 1;
    *e -= 1075;
    return m;
}
KILN_FN f64 fma_f64(f64 a, f64 b, f64 c)
{
    int ea, eb, ec, e, top, shift, i;
    u64 ma, mb, mc, low, high, mid, m, rest, result;
    bool sp, sc;
    struct kiln_wide p, q;
    if (!(abs_f64(a) <= DBL_MAX) || !(abs_f64(b) <= DBL_MAX) || !(abs_f64(c) <= DBL_MAX) || a == 0 || b == 0)
        return abs_f64(a) <= DBL_MAX && abs_f64(b) <= DBL_MAX && !(abs_f64(c) <= DBL_MAX) ? c + c : a * b + c;
    if (c == 0 && abs_f64(a) >= 0x1p-400 && abs_f64(b) >= 0x1p-400)
        return a * b + c;
    ma = kiln_significand(a, &ea), mb = kiln_significand(b, &eb), mc = kiln_significand(c, &ec);
    sp = (bits_f64_u64(a) ^ bits_f64_u64(b)) >> 63, sc = bits_f64_u64(c) >> 63;
    low = (ma & 0xffffffffu) * (mb & 0xffffffffu);
    mid = (ma >> 32) * (mb & 0xffffffffu) + (low >> 32);
    high = (ma >> 32) * (mb >> 32) + (mid >> 32);
    mid = (mid & 0xffffffffu) + (ma & 0xffffffffu) * (mb >> 32);
    p.w[0] = (low & 0xffffffffu) | mid << 32, p.w[1] = high + (mid >> 32), p.w[2] = 0;
    q.w[0] = mc, q.w[1] = q.w[2] = 0;
    e = ea + eb;
    /* Both at the exponent of the product, 64 places up; what is far away counts as a last bit. */
    p = kiln_shifted(p, 64);
    e -= 64;
    shift = ec - e;
    if (mc == 0) {
        /* the product alone */
    } else if (shift <= 130) {
        q = kiln_shifted(q, shift < -190 ? -190 : shift);
    } else { /* c is larger than the product by far */
        p = kiln_shifted(p, 130 - shift < -190 ? -190 : 130 - shift);
        e += shift - 130;
        q = kiln_shifted(q, 130);
    }
    if (sp == sc || mc == 0) {
        p = kiln_sum(p, q, false);
    } else {
        struct kiln_wide d = kiln_sum(p, q, true);
        if (d.w[2] >> 63) {
            d = kiln_sum(q, p, true);
            sp = sc;
        }
        p = d;
    }
    if (!(p.w[0] | p.w[1] | p.w[2]))
        return sp == sc ? (sp ? -0.0 : 0.0) : 0.0;
    for (top = 191, i = 2; !p.w[i]; i--) top -= 64;
    for (; !(p.w[i] >> (top % 64) & 1); top--) ;
    /* the number is below 2^(e + top + 1): 53 bits of it are kept, fewer where it is subnormal */
    shift = top - 52;
    if (e + shift < -1074)
        shift = -1074 - e;
    q = kiln_shifted(p, -(shift - 2 > 190 ? 190 : shift - 2)); /* two bits more: half, and whether more follow */
    m = q.w[0] >> 2, rest = q.w[0] & 3;
    if (rest > 2 || (rest == 2 && (m & 1)))
        m++;
    e += shift;
    if (m >> 53) {
        m >>= 1;
        e++;
    }
    if (m >> 52)
        result = e + 1075 >= 2047 ? 0x7ff0000000000000u : (u64)(e + 1075) << 52 | (m & 0xfffffffffffffu);
    else
        result = m;
    return bits_u64_f64(result | (u64)sp << 63);
}
#endif

/* ---- halfs: ir/math/half.inc, whose text stands before this one ---- */

#define LET_U(name, value) const u32 name = value;
#define LET_F(name, value) const f32 name = value;
#define GIVE_BF16(u) return (bf16)(u);
#define GIVE_F16(u) return (f16)(u);
#define GIVE_F32(f) return f;
#define U_OF(f) bits_f32_u32(f)
#define F_OF(u) bits_u32_f32(u)
#define U_FROM(half) (u32)(half)
#define F_FROM(u) (f32)(u)
#define F_FMA(a, b, c) fma_f32(a, b, c)
#define F_ABS(a) abs_f32(a)
KILN_FN f32 f32_f16(f16 h) { F32_OF_F16(h) }
KILN_FN f16 f16_f32(f32 x) { F16_OF_F32(x) }
KILN_FN f32 f32_bf16(bf16 h) { F32_OF_BF16(h) }
KILN_FN bf16 bf16_f32(f32 x) { BF16_OF_F32(x) }
KILN_FN f32 flush_f32(f32 x) { FLUSH_F32(x) }
KILN_FN f32 fma_flushed(f32 a, f32 b, f32 c) { FMA_FLUSHED(a, b, c) }
KILN_FN f32 dot2_f32(u32 a, u32 b, f32 c) { DOT2_F32(a, b, c) }

/* ---- float to integer: toward zero, saturated, NaN is 0 ---- */

#define SATURATE_I(T, S, w) KILN_FN T T##_##S(S x) \
    { return x != x ? 0 : x < -0x1p##w ? (T)((u64)-1 << w) : x < 0x1p##w ? (T)x : (T)~((u64)-1 << w); }
#define SATURATE_U(T, S, w) KILN_FN T T##_##S(S x) { return !(x > 0) ? 0 : x < 0x1p##w ? (T)x : (T)(u64)-1; }
SATURATE_I(i8, f32, 7) SATURATE_I(i16, f32, 15) SATURATE_I(i32, f32, 31) SATURATE_I(i64, f32, 63)
SATURATE_I(i8, f64, 7) SATURATE_I(i16, f64, 15) SATURATE_I(i32, f64, 31) SATURATE_I(i64, f64, 63)
SATURATE_U(u8, f32, 8) SATURATE_U(u16, f32, 16) SATURATE_U(u32, f32, 32) SATURATE_U(u64, f32, 64)
SATURATE_U(u8, f64, 8) SATURATE_U(u16, f64, 16) SATURATE_U(u32, f64, 32) SATURATE_U(u64, f64, 64)

/* ---- what lanes are combined with, and stores that combine ---- */

#define ADD(T, a, b) ((T)((a) + (b)))
#define MUL(T, a, b) ((T)((a) * (b)))
#define WADD(T, a, b) ((T)((W_##T)(a) + (W_##T)(b)))
#define WMUL(T, a, b) ((T)((W_##T)(a) * (W_##T)(b)))
#define MAX(T, a, b) ((b) < (a) || (a) != (a) ? (a) : (b))
#define MIN(T, a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#if defined(KILN_JIT) /* other threads run other parts of the kernel */
#define UPDATE(T, at, f, x)                                                       \
    do {                                                                          \
        T old = (at), new_;                                                       \
        do new_ = f(T, old, x); while (!__atomic_compare_exchange_n(&(at), &old, new_, 0, 0, 0)); \
    } while (0)
#else
#define UPDATE(T, at, f, x) do { T old = (at); (at) = f(T, old, x); } while (0)
#endif
