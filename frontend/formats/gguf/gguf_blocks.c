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

/* ---- sixteen elements at a time, each in a byte ---- */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "byte i of a vector is element i");
typedef uint64_t sixteen __attribute__((vector_size(16)));
typedef uint16_t eight_words __attribute__((vector_size(16)));
typedef uint8_t eight_bytes __attribute__((vector_size(8)));
#define EACH(byte) (UINT64_C(0x0101010101010101) * (byte)) /* of half a vector; an operator takes it for both */

static inline sixteen blocks_load(const uint8_t *p)
{
    sixteen x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Stores the sixteen elements from number i on. */
static inline void put_bytes(struct blocks_parts *to, unsigned i, sixteen x) { memcpy(to->q + i, &x, sizeof x); }

/* The same of elements below 16, two in a byte. */
static inline void put_pairs(struct blocks_parts *to, unsigned i, sixteen x)
{
    x = (x | x >> 4) & UINT64_C(0x00ff00ff00ff00ff);
    eight_bytes pairs = __builtin_convertvector((eight_words)x, eight_bytes);
    memcpy(to->q + i / 2, &pairs, sizeof pairs);
}

/* x - n, for x and n below 128. */
static inline sixteen subtract_from_each(sixteen x, unsigned n) { return ((x | EACH(128)) - EACH(n)) ^ EACH(128); }

/* Eight bits as the lowest ones of eight bytes. */
static inline uint64_t bit_in_each(unsigned bits)
{
    return ((bits * EACH(1) & UINT64_C(0x8040201008040201)) + EACH(127)) >> 7 & EACH(1);
}

/* Sixteen of 32 elements of 4 bits, from number i on: 0 to 15 are in the low halves of 16 bytes, 16 to 31 in the high
 * ones. */
static inline sixteen blocks_nibbles(const uint8_t *q, unsigned i) { return blocks_load(q) >> i / 16 * 4 & EACH(15); }

/* ---- blocks of 32 elements ---- */

static void split_q4_0(const uint8_t *p, struct blocks_parts *to)
{
    memcpy(to->d, p, 2);
    for (unsigned i = 0; i < 32; i += 16)
        put_pairs(to, i, blocks_nibbles(p + 2, i) ^ EACH(8)); /* - 8, in 4 bits */
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
    for (unsigned i = 0; i < 32; i += 16)
        put_pairs(to, i, blocks_nibbles(p + 4, i));
}

/* Sixteen elements from number i on, whose fifth bits are 32 bits from `fifth` on. */
static sixteen blocks_five_bits(const uint8_t *fifth, const uint8_t *q, unsigned i)
{
    return blocks_nibbles(q, i) | (sixteen){bit_in_each(fifth[i / 8]), bit_in_each(fifth[i / 8 + 1])} << 4;
}

static void split_q5_0(const uint8_t *p, struct blocks_parts *to)
{
    memcpy(to->d, p, 2);
    for (unsigned i = 0; i < 32; i += 16)
        put_bytes(to, i, subtract_from_each(blocks_five_bits(p + 2, p + 6, i), 16));
}

static void split_q5_1(const uint8_t *p, struct blocks_parts *to)
{
    blocks_scale_and_offset(p, to);
    for (unsigned i = 0; i < 32; i += 16)
        put_bytes(to, i, blocks_five_bits(p + 4, p + 8, i));
}

/* ---- blocks of 256 elements ---- */

/* In blocks of 256 elements the four of 2 bits in a byte, and the two of 4 bits, are 32 apart. */

/* Bytes: 16 scales and minimums of 4 bits, 64 of elements of 2 bits, d, dmin. */
static void split_q2_k(const uint8_t *p, struct blocks_parts *to)
{
    memcpy(to->d, p + 80, 2);
    memcpy(to->m, p + 82, 2);
    for (unsigned sub = 0; sub < 16; sub++)
        to->scale[sub] = (int8_t)(p[sub] & 15), to->minimum[sub] = p[sub] >> 4;
    for (unsigned i = 0; i < 64; i += 16)
        for (unsigned part = 0; part < 4; part++)
            put_pairs(to, i / 32 * 128 + part * 32 + i % 32, blocks_load(p + 16 + i) >> 2 * part & EACH(3));
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
    for (unsigned i = 0; i < 64; i += 16)
        for (unsigned part = 0; part < 4; part++) { /* 4 is subtracted where the third bit is 0 */
            sixteen less = ~blocks_load(p + i % 32) >> (i / 32 * 4 + part) & EACH(1);
            put_pairs(to, i / 32 * 128 + part * 32 + i % 32,
                      (blocks_load(p + 32 + i) >> 2 * part & EACH(3)) | less << 2 | less << 3);
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

/* Scales and minimums of blocks that begin with d, dmin and 12 bytes of them. */
static void blocks_scales_k(const uint8_t *p, struct blocks_parts *to)
{
    memcpy(to->d, p, 2);
    memcpy(to->m, p + 2, 2);
    for (unsigned sub = 0; sub < 8; sub++)
        blocks_scale_min(p + 4, sub, to);
}

/* Bytes: d, dmin, 12 of scales and minimums, 128 of elements of 4 bits. */
static void split_q4_k(const uint8_t *p, struct blocks_parts *to)
{
    blocks_scales_k(p, to);
    for (unsigned first = 0; first < 256; first += 64)
        for (unsigned i = first; i < first + 32; i += 16) {
            sixteen x = blocks_load(p + 16 + i - first / 2);
            put_pairs(to, i, x & EACH(15));
            put_pairs(to, i + 32, x >> 4 & EACH(15));
        }
}

/* The same with 32 bytes of fifth bits before the elements. */
static void split_q5_k(const uint8_t *p, struct blocks_parts *to)
{
    blocks_scales_k(p, to);
    for (unsigned first = 0; first < 256; first += 64)
        for (unsigned i = first; i < first + 32; i += 16) {
            sixteen x = blocks_load(p + 48 + i - first / 2), fifth = blocks_load(p + 16 + i % 32) >> first / 32;
            put_bytes(to, i, (x & EACH(15)) | (fifth & EACH(1)) << 4);
            put_bytes(to, i + 32, (x >> 4 & EACH(15)) | (fifth >> 1 & EACH(1)) << 4);
        }
}

/* Bytes: 128 of low halves, 64 of two more bits, 16 signed scales, d. */
static void split_q6_k(const uint8_t *p, struct blocks_parts *to)
{
    memcpy(to->d, p + 208, 2);
    memcpy(to->scale, p + 192, 16);
    for (unsigned i = 0; i < 64; i += 16) {
        sixteen high = blocks_load(p + 128 + i);
        for (unsigned part = 0; part < 4; part++) {
            sixteen low = blocks_load(p + i / 32 * 64 + part % 2 * 32 + i % 32) >> part / 2 * 4 & EACH(15);
            put_bytes(to, i / 32 * 128 + part * 32 + i % 32,
                      subtract_from_each(low | (high >> 2 * part & EACH(3)) << 4, 32));
        }
    }
}

void blocks_pack_six(struct blocks_parts *p)
{
    uint8_t *const to[] = {p->q, p->more[0], p->more[1]};
    for (unsigned i = 0; i < BLOCKS_MAX; i += 16) {
        uint32_t four[4]; /* elements a word */
        sixteen x = (blocks_load(p->q + i) ^ EACH(32)) & EACH(63); /* + 32, in 6 bits */
        memcpy(four, &x, sizeof four);
        for (unsigned k = 0; k < 3; k++) {
            uint32_t word = four[k] | (four[3] >> 2 * k & 0x03030303U) << 6;
            memcpy(to[k] + i / 4, &word, sizeof word);
        }
    }
}

/* ---- blocks of codes for the values of a table ---- */

/* Element i of 32: 0 to 15 are in the low halves of 16 bytes, 16 to 31 in the high ones. */
static unsigned blocks_nibble(const uint8_t *q, unsigned i) { return i < 16 ? q[i] & 15U : q[i - 16] >> 4; }

const int8_t blocks_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void split_iq4_nl(const uint8_t *p, struct blocks_parts *to)
{
    memcpy(to->d, p, 2);
    for (unsigned i = 0; i < 32; i++)
        to->q[i] = (uint8_t)blocks_iq4_values[blocks_nibble(p + 2, i)];
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
        to->q[i] = (uint8_t)blocks_iq4_values[blocks_nibble(p + 8 + i / 32 * 16, i % 32)];
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
        to->q[i] = (uint8_t)blocks_mxfp4_values[blocks_nibble(p + 1, i)];
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

/* Integer i of a block. */
static int blocks_integer(kl_qtype type, const uint8_t *q, unsigned i)
{
    int half = q[i / 2] >> i % 2 * 4 & 15;
    return type == KL_Q_U4 ? half : type == KL_Q_I4 ? (half ^ 8) - 8 : (int8_t)q[i];
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
        float scale = super ? d * (float)parts->scale[sub] : d;
        float value = scale * (float)blocks_integer(k->type, parts->q, i);
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
