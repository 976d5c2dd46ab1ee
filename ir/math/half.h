/* f16 and bf16 in C: exact widening to f32, and one rounding (to nearest, ties to even) from any other number: the
 * functions of half.inc as C, after a first rounding to f32 that they cannot tell from none. */
#ifndef KILN_HALF_H
#define KILN_HALF_H
#include <stdint.h>
#include <string.h>
#include "half.inc"

struct f16 { uint16_t bits; };  /* 5 exponent bits, 10 of fraction */
struct bf16 { uint16_t bits; }; /* 8 exponent bits, 7 of fraction: the upper half of an f32 */

static inline float half_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t half_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---- half.inc ---- */
#define LET_U(name, value) const uint32_t name = value;
#define LET_F(name, value) const float name = value;
#define GIVE_BF16(u) return (struct bf16){(uint16_t)(u)};
#define GIVE_F16(u) return (struct f16){(uint16_t)(u)};
#define GIVE_F32(f) return f;
#define U_OF(f) half_float_bits(f)
#define F_OF(u) half_float(u)
#define U_FROM(half) (uint32_t)(half).bits
#define F_FROM(u) (float)(u)
#define F_FMA(a, b, c) __builtin_fmaf(a, b, c)
#define F_ABS(a) __builtin_fabsf(a)
static inline struct bf16 bf16_of_f32(float x) { BF16_OF_F32(x) }
static inline float bf16_value(struct bf16 h) { F32_OF_BF16(h) }
static inline struct f16 f16_of_f32(float x) { F16_OF_F32(x) }
static inline float f16_value(struct f16 h) { F32_OF_F16(h) }
static inline float flush_f32(float x) { FLUSH_F32(x) }
static inline float fma_flushed(float a, float b, float c) { FMA_FLUSHED(a, b, c) }
static inline float dot2_f32(uint32_t a, uint32_t b, float c) { DOT2_F32(a, b, c) }

/* ---- from wider numbers ----
 * Rounding twice is harmless if the first rounding is to odd: an inexact value becomes the adjacent number whose last
 * bit is set, which the second rounding takes neither for an exact number nor for a tie (Boldo and Melquiond 2008). */

static inline float half_odd_f32(double x)
{
    float y = (float)x;
    if (y == x || x != x)
        return y;
    uint32_t past = __builtin_fabs(x) < __builtin_fabs((double)y); /* y lies farther from zero than x */
    return half_float((half_float_bits(y) - past) | 1);
}

static inline struct f16 f16_of(double x) { return f16_of_f32(half_odd_f32(x)); }
static inline struct bf16 bf16_of(double x) { return bf16_of_f32(half_odd_f32(x)); }

/* A 64-bit integer to a double that way. */
static inline double half_u64(uint64_t x)
{
    return (double)(x < UINT64_C(1) << 53 ? x : (x | ((x & 0x7ff) + 0x7ff)) & ~UINT64_C(0x7ff));
}

static inline double half_i64(int64_t x) { return x < 0 ? -half_u64(0 - (uint64_t)x) : half_u64((uint64_t)x); }

#endif
