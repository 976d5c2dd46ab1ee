/* Blocks of GGUF from f32.  Those of 32 elements have the bits of the format's own package (gguf.quants.quantize): the
 * element that is the largest, or the range of the elements, gives the scale; elements are rounded to nearest. */
#include "gguf.h"
#include <math.h>
#include <string.h>

uint16_t blocks_half_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (u >= 0x477ff000) /* 65520: half way to the f16 that does not exist */
        return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000) /* below the normal numbers: a whole number of 2^-24 */
        return (uint16_t)(sign | (unsigned)rint(fabs((double)x) * 0x1p24));
    u += 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | (u - 0x38000000) >> 13);
}

void blocks_put_half(uint8_t *p, float x)
{
    unsigned h = blocks_half_of(x);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

enum { QK = 32 };

/* 1 / d where that is a number: a block whose scale is so small is zero, since no f16 has its scale. */
static float encode_inverse(float d)
{
    float inverse = d != 0 ? 1 / d : 0;
    return isfinite(inverse) ? inverse : 0;
}

/* A code in 0..max of a value that was shifted by half a code, so that it is rounded by cutting it off. */
static unsigned encode_code(float x, unsigned max)
{
    return x >= (float)max ? max : x > 0 ? (unsigned)x : 0;
}

/* The code of each element, its lower 4 bits: of 0..15 in the low halves of 16 bytes, of 16..31 in the high ones. */
static void put_nibbles(uint8_t *p, const uint8_t code[QK])
{
    for (unsigned i = 0; i < QK / 2; i++)
        p[i] = (uint8_t)((code[i] & 15) | code[i + QK / 2] << 4);
}

/* The fifth bits of 32 codes. */
static void put_fifth(uint8_t *p, const uint8_t code[QK])
{
    memset(p, 0, QK / 8);
    for (unsigned i = 0; i < QK; i++)
        p[i / 8] |= (uint8_t)(code[i] >> 4 << i % 8);
}

/* Codes of a scale alone: the element that is the largest, of either sign, becomes the lowest code of 2 * half.  Its
 * scale. */
static float encode_signed(const float *x, unsigned half, uint8_t code[QK])
{
    float largest = x[0];
    for (unsigned i = 1; i < QK; i++)
        largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
    float d = largest / -(float)half, inverse = encode_inverse(d);
    for (unsigned i = 0; i < QK; i++)
        code[i] = (uint8_t)encode_code(x[i] * inverse + ((float)half + 0.5f), 2 * half - 1);
    return d;
}

/* Codes 0..max of the range from the lowest element, *min, to the highest one.  The scale. */
static float encode_range(const float *x, unsigned max, uint8_t code[QK], float *min)
{
    float low = x[0], high = x[0];
    for (unsigned i = 1; i < QK; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    float d = (high - low) / (float)max, inverse = encode_inverse(d);
    for (unsigned i = 0; i < QK; i++)
        code[i] = (uint8_t)encode_code((x[i] - low) * inverse + 0.5f, max);
    *min = low;
    return d;
}

static void encode_q4_0(const float *x, uint8_t *p)
{
    uint8_t code[QK];
    blocks_put_half(p, encode_signed(x, 8, code));
    put_nibbles(p + 2, code);
}

static void encode_q4_1(const float *x, uint8_t *p)
{
    uint8_t code[QK];
    float min;
    blocks_put_half(p, encode_range(x, 15, code, &min));
    blocks_put_half(p + 2, min);
    put_nibbles(p + 4, code);
}

static void encode_q5_0(const float *x, uint8_t *p)
{
    uint8_t code[QK];
    blocks_put_half(p, encode_signed(x, 16, code));
    put_fifth(p + 2, code);
    put_nibbles(p + 6, code);
}

static void encode_q5_1(const float *x, uint8_t *p)
{
    uint8_t code[QK];
    float min;
    blocks_put_half(p, encode_range(x, 31, code, &min));
    blocks_put_half(p + 2, min);
    put_fifth(p + 4, code);
    put_nibbles(p + 8, code);
}

static void encode_q8_0(const float *x, uint8_t *p)
{
    float largest = 0;
    for (unsigned i = 0; i < QK; i++)
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    float d = largest / 127, inverse = encode_inverse(d);
    blocks_put_half(p, d);
    for (unsigned i = 0; i < QK; i++)
        p[2 + i] = (uint8_t)(int8_t)fminf(fmaxf(roundf(x[i] * inverse), -127), 127);
}

static void (*const block_encoders[])(const float *x, uint8_t *p) = {
#define BLOCKS(kind, number, name, split, encode, elements, bytes, ...) [BLOCKS_##kind] = encode,
#include "gguf_blocks.def"
#undef BLOCKS
};

bool blocks_are_encoded(enum file_blocks kind)
{
    return kind && kind < sizeof block_encoders / sizeof *block_encoders && block_encoders[kind];
}

void blocks_encode(enum file_blocks kind, size_t n, const float *from, uint8_t *to)
{
    const struct gguf_type *t = gguf_type_of_blocks(kind);
    for (size_t i = 0; i < n; i++)
        block_encoders[kind](from + i * t->elements, to + i * t->bytes);
}
