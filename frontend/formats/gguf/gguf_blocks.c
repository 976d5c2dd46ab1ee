/* Blocks of GGUF decoded to f32, in the order of operations of the format's own package (gguf.quants), so that the
 * results are its bits.
 *
 * Types with a K have blocks of 256 elements in sub-blocks of 16 or 32, each with a scale, and some a minimum, of a few
 * bits; `d` and `dmin` are the f16 scales of those.  The others have 32 elements.  Two elements in a byte are the low
 * halves, then the high ones, of a run of bytes. */
#include "gguf.h"

float blocks_half(const uint8_t *p)
{
    unsigned h = p[0] | (unsigned)p[1] << 8, exponent = h >> 10 & 31, fraction = h & 1023;
    double v = exponent ? 1024 + fraction : fraction;
    if (exponent == 31)
        v = fraction ? __builtin_nan("") : __builtin_inf();
    else
        v = __builtin_ldexp(v, (exponent ? (int)exponent : 1) - 25);
    return (float)(h >> 15 ? -v : v);
}

/* 32 elements of 4 bits: element i of 0..15 is in the low half of byte i, i + 16 in its high half. */
static unsigned blocks_nibble(const uint8_t *q, unsigned i) { return i < 16 ? q[i] & 15U : q[i - 16] >> 4; }

static void decode_q4_0(const uint8_t *p, float *to)
{
    float d = blocks_half(p);
    for (unsigned i = 0; i < 32; i++)
        to[i] = d * (float)((int)blocks_nibble(p + 2, i) - 8);
}

static void decode_q8_0(const uint8_t *p, float *to)
{
    float d = blocks_half(p);
    for (unsigned i = 0; i < 32; i++)
        to[i] = d * (float)(int8_t)p[2 + i];
}

static void decode_q4_1(const uint8_t *p, float *to)
{
    float d = blocks_half(p), m = blocks_half(p + 2);
    for (unsigned i = 0; i < 32; i++)
        to[i] = d * (float)blocks_nibble(p + 4, i) + m;
}

/* The fifth bit of element i, of 32 bits from p on. */
static unsigned blocks_fifth(const uint8_t *p, unsigned i) { return (unsigned)(p[i / 8] >> i % 8 & 1) << 4; }

static void decode_q5_0(const uint8_t *p, float *to)
{
    float d = blocks_half(p);
    for (unsigned i = 0; i < 32; i++)
        to[i] = d * (float)((int)(blocks_nibble(p + 6, i) | blocks_fifth(p + 2, i)) - 16);
}

static void decode_q5_1(const uint8_t *p, float *to)
{
    float d = blocks_half(p), m = blocks_half(p + 2);
    for (unsigned i = 0; i < 32; i++)
        to[i] = d * (float)(blocks_nibble(p + 8, i) | blocks_fifth(p + 4, i)) + m;
}

/* Bytes: 16 scales and minimums of 4 bits, 64 of elements of 2 bits, d, dmin. */
static void decode_q2_k(const uint8_t *p, float *to)
{
    float d = blocks_half(p + 80), dmin = blocks_half(p + 82);
    for (unsigned i = 0; i < 256; i++) { /* four elements of a byte are 32 apart */
        unsigned sub = i / 16, q = p[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        to[i] = d * (float)(p[sub] & 15) * (float)q - dmin * (float)(p[sub] >> 4);
    }
}

/* Bytes: 32 of third bits, 64 of elements of 2 bits, 12 of 16 scales of 6 bits, d. */
static void decode_q3_k(const uint8_t *p, float *to)
{
    const uint8_t *scales = p + 96;
    float d = blocks_half(p + 108);
    for (unsigned i = 0; i < 256; i++) {
        unsigned sub = i / 16, low = sub < 8 ? scales[sub] & 15U : scales[sub - 8] >> 4;
        int scale = (int)(low | (scales[8 + sub % 4] >> (sub / 4 * 2) & 3U) << 4) - 32;
        int q = p[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3, third = p[i % 32] >> (i / 32) & 1;
        to[i] = d * (float)scale * (float)(q - (third ? 0 : 4));
    }
}

/* Scale and minimum of sub-block i of 8, of 6 bits each in 12 bytes. */
static void blocks_scale_min(const uint8_t *s, unsigned i, float *scale, float *min)
{
    if (i < 4) {
        *scale = (float)(s[i] & 63);
        *min = (float)(s[i + 4] & 63);
    } else {
        *scale = (float)((s[i + 4] & 15) | (s[i - 4] >> 6) << 4);
        *min = (float)((s[i + 4] >> 4) | (s[i] >> 6) << 4);
    }
}

/* Bytes: d, dmin, 12 of scales and minimums, of Q5_K 32 of fifth bits, 128 of elements of 4 bits. */
static void blocks_decode_k(const uint8_t *p, const uint8_t *fifth, const uint8_t *q, float *to)
{
    float d = blocks_half(p), dmin = blocks_half(p + 2), scale, min;
    for (unsigned i = 0; i < 256; i++) { /* two elements of a byte are 32 apart */
        unsigned sub = i / 32, v = q[sub / 2 * 32 + i % 32] >> (sub % 2 * 4) & 15;
        if (fifth)
            v |= (unsigned)(fifth[i % 32] >> sub & 1) << 4;
        blocks_scale_min(p + 4, sub, &scale, &min);
        to[i] = d * scale * (float)v - dmin * min;
    }
}

static void decode_q4_k(const uint8_t *p, float *to) { blocks_decode_k(p, NULL, p + 16, to); }
static void decode_q5_k(const uint8_t *p, float *to) { blocks_decode_k(p, p + 16, p + 48, to); }

/* Bytes: 128 of low halves, 64 of two more bits, 16 signed scales, d. */
static void decode_q6_k(const uint8_t *p, float *to)
{
    float d = blocks_half(p + 208);
    for (unsigned i = 0; i < 256; i++) {
        unsigned half = i / 128, part = i / 32 % 4;
        unsigned low = p[half * 64 + part % 2 * 32 + i % 32] >> (part / 2 * 4) & 15;
        unsigned high = p[128 + half * 32 + i % 32] >> (part * 2) & 3;
        to[i] = d * (float)(int8_t)p[192 + i / 16] * (float)((int)(low | high << 4) - 32);
    }
}

/* The values that codes of IQ4 stand for. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void decode_iq4_nl(const uint8_t *p, float *to)
{
    float d = blocks_half(p);
    for (unsigned i = 0; i < 32; i++)
        to[i] = d * (float)iq4_values[blocks_nibble(p + 2, i)];
}

/* Bytes: d, 2 of upper bits of 8 scales of 6 bits, 4 of their lower ones, 128 of elements. */
static void decode_iq4_xs(const uint8_t *p, float *to)
{
    float d = blocks_half(p);
    unsigned high = p[2] | (unsigned)p[3] << 8;
    for (unsigned i = 0; i < 256; i++) {
        unsigned sub = i / 32, low = p[4 + sub / 2] >> (sub % 2 * 4) & 15;
        float scale = d * (float)((int)(low | (high >> (2 * sub) & 3) << 4) - 32);
        to[i] = scale * (float)iq4_values[blocks_nibble(p + 8 + sub * 16, i % 32)];
    }
}

/* OCP Microscaling FP4: a power of two, 32 elements of 1 + 2 + 1 bits, here times two. */
static void decode_mxfp4(const uint8_t *p, float *to)
{
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    float half = __builtin_ldexpf(1, (int)p[0] - 128);
    for (unsigned i = 0; i < 32; i++)
        to[i] = half * (float)doubled[blocks_nibble(p + 1, i)];
}

const struct blocks_kind *blocks_kind_of(enum file_blocks kind)
{
    static const struct blocks_kind kinds[] = {
#define BLOCKS(kind, number, name, decode, encode, elements, bytes) [BLOCKS_##kind] = {decode, elements, bytes},
#include "gguf_blocks.def"
#undef BLOCKS
        [BLOCKS_F8_E4M3] = {decode_f8_e4m3, 1, 1},
        [BLOCKS_F8_E5M2] = {decode_f8_e5m2, 1, 1},
        [BLOCKS_F8_E8M0] = {decode_f8_e8m0, 1, 1},
    };
    return &kinds[kind];
}

void blocks_decode(enum file_blocks kind, size_t n, const uint8_t *from, float *to)
{
    const struct blocks_kind *k = blocks_kind_of(kind);
    for (size_t i = 0; i < n; i++)
        k->decode(from + i * k->bytes, to + i * k->elements);
}
