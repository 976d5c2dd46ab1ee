/* f16 and bf16 in C: exact widening to f32, and one rounding (to nearest, ties to even) from any other number. */
#ifndef KILN_HALF_H
#define KILN_HALF_H
#include <stdint.h>
#include <string.h>

struct f16 { uint16_t bits; };  /* 5 exponent bits, 10 of fraction */
struct bf16 { uint16_t bits; }; /* 8 exponent bits, 7 of fraction: the upper half of an f32 */

static inline float half_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float f16_value(struct f16 h)
{
    uint32_t sign = (h.bits & 0x8000u) << 16, exponent = h.bits >> 10 & 31, fraction = h.bits & 0x3ffu;
    if (exponent == 0)
        return sign ? (float)fraction * -0x1p-24f : (float)fraction * 0x1p-24f;
    return half_float(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}

static inline float bf16_value(struct bf16 h) { return half_float((uint32_t)h.bits << 16); }

/* The nearest number with `digits` bits of fraction and exponents from `least` (that of the smallest normal
 * number) to -least + 1, as bits of 16; beyond them infinity. */
static inline uint16_t half_round(double x, int digits, int min)
{
    uint64_t bits, infinity = (uint64_t)(2 - 2 * min + 1) << digits;
    memcpy(&bits, &x, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 63 << 15);
    int exponent = (int)(bits >> 52 & 2047) - 1023, shift = 52 - digits;
    uint64_t significand = bits & ((UINT64_C(1) << 52) - 1);
    if (exponent == 1024)
        return (uint16_t)(sign | infinity | (significand ? UINT64_C(1) << (digits - 1) : 0));
    if (exponent > 1 - min)
        return (uint16_t)(sign | infinity);
    if (exponent < min - digits - 1) /* below half of the smallest number */
        return sign;
    significand |= UINT64_C(1) << 52;
    if (exponent < min)
        shift += min - exponent;
    uint64_t rest = significand & ((UINT64_C(1) << shift) - 1), tie = UINT64_C(1) << (shift - 1);
    uint64_t y = significand >> shift; /* with the leading bit: adding the exponent below counts it once */
    if (exponent > min)
        y += (uint64_t)(exponent - min) << digits;
    y += rest > tie || (rest == tie && (y & 1)); /* may carry into the exponent, up to infinity */
    return (uint16_t)(sign | y);
}

static inline struct f16 f16_of(double x) { return (struct f16){half_round(x, 10, -14)}; }
static inline struct bf16 bf16_of(double x) { return (struct bf16){half_round(x, 7, -126)}; }

/* A double that rounds to the same half as the integer: the lowest 11 bits, if any is set, become one bit that
 * still says on which side of a tie the number lies (rounding to odd). */
static inline double half_u64(uint64_t x)
{
    return (double)(x < UINT64_C(1) << 53 ? x : (x | ((x & 0x7ff) + 0x7ff)) & ~UINT64_C(0x7ff));
}

static inline double half_i64(int64_t x) { return x < 0 ? -half_u64(0 - (uint64_t)x) : half_u64((uint64_t)x); }

/* ---- DOT2 of prims.def ---- */

static inline float flush_subnormal(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7f800000u ? x : half_float(bits & 0x80000000u);
}

/* fma(a, b, c) of bf16 a and b, subnormal operands and results flushed.  The same sum times 2^64 has no subnormal
 * result near the smallest normal number: it says whether the result, rounded to 24 bits, is below that. */
static inline float fma_flushed(float a, float b, float c)
{
    a = flush_subnormal(a), b = flush_subnormal(b), c = flush_subnormal(c);
    float sum = __builtin_fmaf(a, b, c), scaled = __builtin_fmaf(a * 0x1p32f, b * 0x1p32f, c * 0x1p64f);
    return __builtin_fabsf(scaled) < 0x1p-62f ? __builtin_copysignf(0, sum) : sum;
}

static inline float dot2_f32(uint32_t a, uint32_t b, float c)
{
    c = fma_flushed(half_float(a & 0xffff0000u), half_float(b & 0xffff0000u), c);
    return fma_flushed(half_float(a << 16), half_float(b << 16), c);
}

#endif
