/* XXH3 in plain C (xxh3.h).  Short inputs, up to 240 bytes, are mixed as a whole with parts of a secret; longer ones go
 * in stripes of 64 bytes into eight lanes, which are scrambled after each block of 16 stripes. */
#include "xxh3.h"
#include <string.h>

enum { SECRET_BYTES = 192, BLOCK_STRIPES = (SECRET_BYTES - XXH3_STRIPE) / 8, LANES = 8, SHORT = 240 };

static const unsigned char secret[SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

#define PRIME32_1 UINT64_C(0x9e3779b1)
#define PRIME32_2 UINT64_C(0x85ebca77)
#define PRIME32_3 UINT64_C(0xc2b2ae3d)
#define PRIME64_1 UINT64_C(0x9e3779b185ebca87)
#define PRIME64_2 UINT64_C(0xc2b2ae3d27d4eb4f)
#define PRIME64_3 UINT64_C(0x165667b19e3779f9)
#define PRIME64_4 UINT64_C(0x85ebca77c2b2ae63)
#define PRIME64_5 UINT64_C(0x27d4eb2f165667c5)
#define PRIME_MIX_1 UINT64_C(0x165667919e3779f9)
#define PRIME_MIX_2 UINT64_C(0x9fb21c651e98df25)

/* ---- reading and multiplying: little-endian, whatever the machine is ---- */

static uint64_t xxh3_read32(const unsigned char *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
}

static uint64_t xxh3_read64(const unsigned char *p) { return xxh3_read32(p) | xxh3_read32(p + 4) << 32; }

static uint64_t xxh3_secret64(unsigned at) { return xxh3_read64(secret + at); }

static uint64_t xxh3_swap32(uint64_t x) { return __builtin_bswap32((uint32_t)x); }
static uint64_t xxh3_rotate64(uint64_t x, unsigned bits) { return x << bits | x >> (64 - bits); }

static struct xxh3_128 xxh3_multiply(uint64_t a, uint64_t b)
{
    uint64_t low = (a & 0xffffffff) * (b & 0xffffffff), middle_a = (a >> 32) * (b & 0xffffffff);
    uint64_t middle_b = (a & 0xffffffff) * (b >> 32), high = (a >> 32) * (b >> 32);
    uint64_t carry = (low >> 32) + (middle_a & 0xffffffff) + middle_b;
    return (struct xxh3_128){carry << 32 | (low & 0xffffffff), high + (middle_a >> 32) + (carry >> 32)};
}

static uint64_t xxh3_fold(uint64_t a, uint64_t b)
{
    struct xxh3_128 p = xxh3_multiply(a, b);
    return p.low ^ p.high;
}

/* ---- final mixing ---- */

static uint64_t xxh3_avalanche(uint64_t x)
{
    x = (x ^ x >> 37) * PRIME_MIX_1;
    return x ^ x >> 32;
}

static uint64_t avalanche_of_short(uint64_t x) /* that of XXH64 */
{
    x = (x ^ x >> 33) * PRIME64_2;
    x = (x ^ x >> 29) * PRIME64_3;
    return x ^ x >> 32;
}

/* ---- up to 16 bytes ---- */

/* 1 to 3 bytes and their number in 32 bits. */
static uint64_t short_bits(const unsigned char *p, size_t n)
{
    return (uint64_t)p[0] << 16 | (uint64_t)p[n >> 1] << 24 | p[n - 1] | (uint64_t)n << 8;
}

static uint64_t hash64_to_16(const unsigned char *p, size_t n)
{
    if (n > 8) {
        uint64_t low = xxh3_read64(p) ^ xxh3_secret64(24) ^ xxh3_secret64(32), high =
            xxh3_read64(p + n - 8) ^ xxh3_secret64(40) ^ xxh3_secret64(48);
        return xxh3_avalanche(n + __builtin_bswap64(low) + high + xxh3_fold(low, high));
    }
    if (n >= 4) {
        uint64_t x = (xxh3_read32(p + n - 4) + (xxh3_read32(p) << 32)) ^ xxh3_secret64(8) ^ xxh3_secret64(16);
        x = (x ^ xxh3_rotate64(x, 49) ^ xxh3_rotate64(x, 24)) * PRIME_MIX_2;
        x = (x ^ ((x >> 35) + n)) * PRIME_MIX_2;
        return x ^ x >> 28;
    }
    return avalanche_of_short(n ? short_bits(p, n) ^ xxh3_read32(secret) ^ xxh3_read32(secret + 4)
                              : xxh3_secret64(56) ^ xxh3_secret64(64));
}

static struct xxh3_128 hash128_to_3(const unsigned char *p, size_t n)
{
    uint64_t low = xxh3_secret64(64) ^ xxh3_secret64(72), high = xxh3_secret64(80) ^ xxh3_secret64(88);
    if (n) {
        uint64_t x = short_bits(p, n), y = xxh3_swap32(x);
        low = x ^ xxh3_read32(secret) ^ xxh3_read32(secret + 4);
        high = ((y << 13 | y >> 19) & 0xffffffff) ^ xxh3_read32(secret + 8) ^ xxh3_read32(secret + 12);
    }
    return (struct xxh3_128){avalanche_of_short(low), avalanche_of_short(high)};
}

static struct xxh3_128 hash128_to_8(const unsigned char *p, size_t n)
{
    uint64_t x = (xxh3_read32(p) + (xxh3_read32(p + n - 4) << 32)) ^ xxh3_secret64(16) ^ xxh3_secret64(24);
    struct xxh3_128 m = xxh3_multiply(x, PRIME64_1 + (n << 2));
    m.high += m.low << 1;
    m.low ^= m.high >> 3;
    m.low = (m.low ^ m.low >> 35) * PRIME_MIX_2;
    return (struct xxh3_128){m.low ^ m.low >> 28, xxh3_avalanche(m.high)};
}

static struct xxh3_128 hash128_to_16(const unsigned char *p, size_t n)
{
    uint64_t low = xxh3_read64(p), high = xxh3_read64(p + n - 8);
    struct xxh3_128 m = xxh3_multiply(low ^ high ^ xxh3_secret64(32) ^ xxh3_secret64(40), PRIME64_1);
    m.low += (uint64_t)(n - 1) << 54;
    high ^= xxh3_secret64(48) ^ xxh3_secret64(56);
    m.high += high + (high & 0xffffffff) * (PRIME32_2 - 1);
    m.low ^= __builtin_bswap64(m.high);
    struct xxh3_128 h = xxh3_multiply(m.low, PRIME64_2);
    h.high += m.high * PRIME64_2;
    return (struct xxh3_128){xxh3_avalanche(h.low), xxh3_avalanche(h.high)};
}

/* ---- up to 240 bytes ---- */

static uint64_t xxh3_mix16(const unsigned char *p, unsigned at)
{
    return xxh3_fold(xxh3_read64(p) ^ xxh3_secret64(at), xxh3_read64(p + 8) ^ xxh3_secret64(at + 8));
}

static uint64_t hash64_to_240(const unsigned char *p, size_t n)
{
    uint64_t sum = n * PRIME64_1;
    if (n <= 128) {
        for (unsigned i = (unsigned)(n - 1) / 32 + 1; i-- > 0;)
            sum += xxh3_mix16(p + 16 * i, 32 * i) + xxh3_mix16(p + n - 16 * (i + 1), 32 * i + 16);
        return xxh3_avalanche(sum);
    }
    for (unsigned i = 0; i < 8; i++)
        sum += xxh3_mix16(p + 16 * i, 16 * i);
    sum = xxh3_avalanche(sum);
    for (unsigned i = 8; i < n / 16; i++)
        sum += xxh3_mix16(p + 16 * i, 16 * (i - 8) + 3);
    return xxh3_avalanche(sum + xxh3_mix16(p + n - 16, 136 - 17));
}

static void xxh3_mix32(struct xxh3_128 *sum, const unsigned char *a, const unsigned char *b, unsigned at)
{
    sum->low = (sum->low + xxh3_mix16(a, at)) ^ (xxh3_read64(b) + xxh3_read64(b + 8));
    sum->high = (sum->high + xxh3_mix16(b, at + 16)) ^ (xxh3_read64(a) + xxh3_read64(a + 8));
}

static struct xxh3_128 hash128_to_240(const unsigned char *p, size_t n)
{
    struct xxh3_128 sum = {n * PRIME64_1, 0};
    if (n <= 128) {
        for (unsigned i = (unsigned)(n - 1) / 32 + 1; i-- > 0;)
            xxh3_mix32(&sum, p + 16 * i, p + n - 16 * (i + 1), 32 * i);
    } else {
        for (unsigned i = 0; i < 4; i++)
            xxh3_mix32(&sum, p + 32 * i, p + 32 * i + 16, 32 * i);
        sum = (struct xxh3_128){xxh3_avalanche(sum.low), xxh3_avalanche(sum.high)};
        for (unsigned i = 4; i < n / 32; i++)
            xxh3_mix32(&sum, p + 32 * i, p + 32 * i + 16, 32 * (i - 4) + 3);
        xxh3_mix32(&sum, p + n - 16, p + n - 32, 136 - 17 - 16);
    }
    uint64_t high = sum.low * PRIME64_1 + sum.high * PRIME64_4 + n * PRIME64_2;
    return (struct xxh3_128){xxh3_avalanche(sum.low + sum.high), 0 - xxh3_avalanche(high)};
}

/* ---- longer ---- */

static const uint64_t first_lanes[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                            PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};

static void xxh3_accumulate(uint64_t *lane, const unsigned char *p, unsigned at)
{
    for (unsigned i = 0; i < LANES; i++) {
        uint64_t x = xxh3_read64(p + 8 * i), key = x ^ xxh3_secret64(at + 8 * i);
        lane[i ^ 1] += x;
        lane[i] += (key & 0xffffffff) * (key >> 32);
    }
}

/* Takes whole stripes, none of which is the input's last 64 bytes. */
static void take_stripes(uint64_t *lane, uint32_t *stripe, const unsigned char *p, size_t stripes)
{
    for (size_t s = 0; s < stripes; s++) {
        xxh3_accumulate(lane, p + XXH3_STRIPE * s, 8 * (*stripe)++);
        if (*stripe < BLOCK_STRIPES)
            continue;
        *stripe = 0;
        for (unsigned i = 0; i < LANES; i++)
            lane[i] = (lane[i] ^ lane[i] >> 47 ^ xxh3_secret64(SECRET_BYTES - XXH3_STRIPE + 8 * i)) * PRIME32_1;
    }
}

static void take_last(uint64_t *lane, const unsigned char *p) { xxh3_accumulate(lane, p,
                                                                                SECRET_BYTES - XXH3_STRIPE - 7); }

static uint64_t xxh3_merge(const uint64_t *lane, unsigned at, uint64_t sum)
{
    for (unsigned i = 0; i < LANES; i += 2)
        sum += xxh3_fold(lane[i] ^ xxh3_secret64(at + 8 * i), lane[i + 1] ^ xxh3_secret64(at + 8 * i + 8));
    return xxh3_avalanche(sum);
}

static void lanes_of(uint64_t *lane, const unsigned char *p, size_t n)
{
    uint32_t stripe = 0;
    memcpy(lane, first_lanes, sizeof first_lanes);
    take_stripes(lane, &stripe, p, (n - 1) / XXH3_STRIPE);
    take_last(lane, p + n - XXH3_STRIPE);
}

static uint64_t low_of(const uint64_t *lane, uint64_t n) { return xxh3_merge(lane, 11, n * PRIME64_1); }

static struct xxh3_128 both_of(const uint64_t *lane, uint64_t n)
{
    return (struct xxh3_128){low_of(lane, n), xxh3_merge(lane, SECRET_BYTES - XXH3_STRIPE - 11, ~(n * PRIME64_2))};
}

/* ---- of all lengths ---- */

uint64_t xxh3_64(const void *data, size_t n)
{
    uint64_t lane[LANES];
    if (n <= 16)
        return hash64_to_16(data, n);
    if (n <= SHORT)
        return hash64_to_240(data, n);
    lanes_of(lane, data, n);
    return low_of(lane, n);
}

struct xxh3_128 xxh3_128(const void *data, size_t n)
{
    uint64_t lane[LANES];
    if (n <= 16)
        return n < 4 ? hash128_to_3(data, n) : n <= 8 ? hash128_to_8(data, n) : hash128_to_16(data, n);
    if (n <= SHORT)
        return hash128_to_240(data, n);
    lanes_of(lane, data, n);
    return both_of(lane, n);
}

/* ---- in parts ---- */

void xxh3_begin(struct xxh3_state *s)
{
    *s = (struct xxh3_state){0};
    memcpy(s->lane, first_lanes, sizeof first_lanes);
}

void xxh3_update(struct xxh3_state *s, const void *data, size_t n)
{
    enum { TAKEN = XXH3_BUFFER - XXH3_STRIPE }; /* the input's last 64 bytes stay, in case that these are */
    const unsigned char *p = data;
    s->total += n;
    while (n) {
        if (s->n == XXH3_BUFFER) {
            take_stripes(s->lane, &s->stripe, s->buffer, TAKEN / XXH3_STRIPE);
            memcpy(s->last, s->buffer + TAKEN - XXH3_STRIPE, XXH3_STRIPE);
            memcpy(s->buffer, s->buffer + TAKEN, XXH3_STRIPE);
            s->n = XXH3_STRIPE;
        }
        size_t part = n < XXH3_BUFFER - s->n ? n : XXH3_BUFFER - s->n;
        memcpy(s->buffer + s->n, p, part);
        s->n += (uint32_t)part;
        p += part;
        n -= part;
    }
}

struct xxh3_128 xxh3_end(const struct xxh3_state *s)
{
    struct xxh3_state own = *s;
    unsigned char last[XXH3_STRIPE];
    if (s->total <= XXH3_BUFFER)
        return xxh3_128(s->buffer, s->n);
    take_stripes(own.lane, &own.stripe, s->buffer, (s->n - 1) / XXH3_STRIPE);
    uint32_t before = s->n < XXH3_STRIPE ? XXH3_STRIPE - s->n : 0;
    memcpy(last, s->last + XXH3_STRIPE - before, before);
    memcpy(last + before, s->buffer + s->n - (XXH3_STRIPE - before), XXH3_STRIPE - before);
    take_last(own.lane, last);
    return both_of(own.lane, s->total);
}
