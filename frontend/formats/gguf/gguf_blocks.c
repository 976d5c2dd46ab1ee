/* Blocks of GGUF taken apart, and decoded to f32 in the order of operations of the format's own package (gguf.quants),
 * so that the results are its bits.
 *
 * Types with a K have blocks of 256 elements in sub-blocks of 16 or 32, each with a scale, and some a minimum, of a
 * few bits, which are multiplied by f16 ones of the block.  The others have 32 elements.  Two elements in a byte are
 * the low halves, then the high ones, of a run of bytes. */
#include "gguf.h"
#include <string.h>

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

static void split_q4_0(const uint8_t *p, struct blocks_parts *to)
{
    memcpy(to->d, p, 2);
    for (unsigned i = 0; i < 16; i++) {
        to->q[i] = (int8_t)((p[2 + i] & 15) - 8);
        to->q[i + 16] = (int8_t)((p[2 + i] >> 4) - 8);
    }
}

static void split_q8_0(const uint8_t *p, struct blocks_parts *to)
{
    memcpy(to->d, p, 2);
    memcpy(to->q, p + 2, 32);
}

/* The scale, and the minimum of blocks that have it with the other sign. */
static void blocks_scale_and_offset(const uint8_t *p, struct blocks_parts *to)
{
    memcpy(to->d, p, 2);
    to->m[0] = p[2], to->m[1] = p[3] ^ 0x80;
}

static void split_q4_1(const uint8_t *p, struct blocks_parts *to)
{
    blocks_scale_and_offset(p, to);
    for (unsigned i = 0; i < 32; i++)
        to->q[i] = (int8_t)blocks_nibble(p + 4, i);
}

/* The fifth bit of element i, of 32 bits from p on. */
static unsigned blocks_fifth(const uint8_t *p, unsigned i) { return (unsigned)(p[i / 8] >> i % 8 & 1) << 4; }

static void split_q5_0(const uint8_t *p, struct blocks_parts *to)
{
    memcpy(to->d, p, 2);
    for (unsigned i = 0; i < 32; i++)
        to->q[i] = (int8_t)((int)(blocks_nibble(p + 6, i) | blocks_fifth(p + 2, i)) - 16);
}

static void split_q5_1(const uint8_t *p, struct blocks_parts *to)
{
    blocks_scale_and_offset(p, to);
    for (unsigned i = 0; i < 32; i++)
        to->q[i] = (int8_t)(blocks_nibble(p + 8, i) | blocks_fifth(p + 4, i));
}

/* Bytes: 16 scales and minimums of 4 bits, 64 of elements of 2 bits, d, dmin. */
static void split_q2_k(const uint8_t *p, struct blocks_parts *to)
{
    memcpy(to->d, p + 80, 2);
    memcpy(to->m, p + 82, 2);
    for (unsigned sub = 0; sub < 16; sub++)
        to->scale[sub] = (int8_t)(p[sub] & 15), to->minimum[sub] = p[sub] >> 4;
    for (unsigned i = 0; i < 256; i++) /* four elements of a byte are 32 apart */
        to->q[i] = (int8_t)(p[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3);
}

/* Bytes: 32 of third bits, 64 of elements of 2 bits, 12 of 16 scales of 6 bits, d. */
static void split_q3_k(const uint8_t *p, struct blocks_parts *to)
{
    const uint8_t *scales = p + 96;
    memcpy(to->d, p + 108, 2);
    for (unsigned sub = 0; sub < 16; sub++) {
        unsigned low = sub < 8 ? scales[sub] & 15U : scales[sub - 8] >> 4;
        to->scale[sub] = (int8_t)((int)(low | (scales[8 + sub % 4] >> (sub / 4 * 2) & 3U) << 4) - 32);
    }
    for (unsigned i = 0; i < 256; i++) {
        int q = p[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3, third = p[i % 32] >> (i / 32) & 1;
        to->q[i] = (int8_t)(q - (third ? 0 : 4));
    }
}

/* Scale and minimum of sub-block i of 8, of 6 bits each in 12 bytes. */
static void blocks_scale_min(const uint8_t *s, unsigned i, struct blocks_parts *to)
{
    if (i < 4) {
        to->scale[i] = (int8_t)(s[i] & 63);
        to->minimum[i] = s[i + 4] & 63;
    } else {
        to->scale[i] = (int8_t)((s[i + 4] & 15) | (s[i - 4] >> 6) << 4);
        to->minimum[i] = (uint8_t)((s[i + 4] >> 4) | (s[i] >> 6) << 4);
    }
}

/* Bytes: d, dmin, 12 of scales and minimums, of Q5_K 32 of fifth bits, 128 of elements of 4 bits. */
static void blocks_split_k(const uint8_t *p, const uint8_t *fifth, const uint8_t *q, struct blocks_parts *to)
{
    memcpy(to->d, p, 2);
    memcpy(to->m, p + 2, 2);
    for (unsigned sub = 0; sub < 8; sub++)
        blocks_scale_min(p + 4, sub, to);
    for (unsigned pair = 0; pair < 4; pair++) /* two elements of a byte are 32 apart */
        for (unsigned i = 0; i < 32; i++) {
            to->q[64 * pair + i] = (int8_t)(q[32 * pair + i] & 15);
            to->q[64 * pair + 32 + i] = (int8_t)(q[32 * pair + i] >> 4);
        }
    for (unsigned sub = 0; sub < 8 && fifth; sub++)
        for (unsigned i = 0; i < 32; i++)
            to->q[32 * sub + i] = (int8_t)(to->q[32 * sub + i] | (fifth[i] >> sub & 1) << 4);
}

static void split_q4_k(const uint8_t *p, struct blocks_parts *to) { blocks_split_k(p, NULL, p + 16, to); }
static void split_q5_k(const uint8_t *p, struct blocks_parts *to) { blocks_split_k(p, p + 16, p + 48, to); }

/* Bytes: 128 of low halves, 64 of two more bits, 16 signed scales, d. */
static void split_q6_k(const uint8_t *p, struct blocks_parts *to)
{
    memcpy(to->d, p + 208, 2);
    memcpy(to->scale, p + 192, 16);
    for (unsigned i = 0; i < 256; i++) {
        unsigned half = i / 128, part = i / 32 % 4;
        unsigned low = p[half * 64 + part % 2 * 32 + i % 32] >> (part / 2 * 4) & 15;
        unsigned high = p[128 + half * 32 + i % 32] >> (part * 2) & 3;
        to->q[i] = (int8_t)((int)(low | high << 4) - 32);
    }
}

const int8_t blocks_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void split_iq4_nl(const uint8_t *p, struct blocks_parts *to)
{
    memcpy(to->d, p, 2);
    for (unsigned i = 0; i < 32; i++)
        to->q[i] = blocks_iq4_values[blocks_nibble(p + 2, i)];
}

/* Bytes: d, 2 of upper bits of 8 scales of 6 bits, 4 of their lower ones, 128 of elements. */
static void split_iq4_xs(const uint8_t *p, struct blocks_parts *to)
{
    unsigned high = p[2] | (unsigned)p[3] << 8;
    memcpy(to->d, p, 2);
    for (unsigned sub = 0; sub < 8; sub++) {
        unsigned low = p[4 + sub / 2] >> (sub % 2 * 4) & 15;
        to->scale[sub] = (int8_t)((int)(low | (high >> (2 * sub) & 3) << 4) - 32);
    }
    for (unsigned i = 0; i < 256; i++)
        to->q[i] = blocks_iq4_values[blocks_nibble(p + 8 + i / 32 * 16, i % 32)];
}

/* The bits of the bf16 2^exponent, from its least one, 2^-133, on. */
static unsigned blocks_power(int exponent)
{
    return exponent < -126 ? 1U << (exponent + 133) : (unsigned)(exponent + 127) << 7;
}

const int8_t blocks_mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* OCP Microscaling FP4: a power of two, 32 elements of 1 + 2 + 1 bits, here times two. */
static void split_mxfp4(const uint8_t *p, struct blocks_parts *to)
{
    unsigned half = blocks_power((int)p[0] - 128);
    to->d[0] = (uint8_t)half, to->d[1] = (uint8_t)(half >> 8);
    for (unsigned i = 0; i < 32; i++)
        to->q[i] = blocks_mxfp4_values[blocks_nibble(p + 1, i)];
}

const struct blocks_kind *blocks_kind_of(enum file_blocks kind)
{
    static const struct blocks_kind kinds[] = {
#define BLOCKS(kind, number, name, split, encode, elements, bytes, type, sub_block, scales) \
    [BLOCKS_##kind] = {NULL, split, elements, bytes, type, sub_block, scales},
#include "gguf_blocks.def"
#undef BLOCKS
        [BLOCKS_F8_E4M3] = {.decode = decode_f8_e4m3, .elements = 1, .bytes = 1},
        [BLOCKS_F8_E5M2] = {.decode = decode_f8_e5m2, .elements = 1, .bytes = 1},
        [BLOCKS_F8_E8M0] = {.decode = decode_f8_e8m0, .elements = 1, .bytes = 1},
    };
    return &kinds[kind];
}

/* ---- as floats ---- */

static float blocks_bfloat(const uint8_t *p)
{
    uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static void blocks_floats(const struct blocks_kind *k, const struct blocks_parts *parts, float *to)
{
    bool super = k->scales >= SCALES_SUPER, minimum = k->scales == SCALES_F16_MINIMUM ||
                                                      k->scales == SCALES_SUPER_MINIMUM;
    float d = k->scales == SCALES_BF16 ? blocks_bfloat(parts->d) : blocks_half(parts->d), m = 0;
    if (minimum)
        m = blocks_half(parts->m);
    for (unsigned i = 0; i < k->elements; i++) {
        unsigned sub = i / k->sub_block;
        float scale = super ? d * (float)parts->scale[sub] : d, value = scale * (float)parts->q[i];
        to[i] = minimum ? value - (super ? m * (float)parts->minimum[sub] : m) : value;
    }
}

void blocks_decode(enum file_blocks kind, size_t n, const uint8_t *from, float *to)
{
    const struct blocks_kind *k = blocks_kind_of(kind);
    struct blocks_parts parts;
    for (size_t i = 0; i < n; i++, from += k->bytes, to += k->elements) {
        if (k->decode) {
            k->decode(from, to);
            continue;
        }
        k->split(from, &parts);
        blocks_floats(k, &parts, to);
    }
}
