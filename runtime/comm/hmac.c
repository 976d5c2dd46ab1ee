/* HMAC-SHA-256: FIPS 180-4 and RFC 2104.  For messages that are in memory, such as those with which ranks prove that
 * they know the job's secret. */
#include "hmac.h"
#include <string.h>

enum { BLOCK = 64 };
struct sha256 { uint32_t h[8]; uint8_t block[BLOCK]; size_t used; uint64_t bytes; };

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constant[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t sha256_rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha256_block(struct sha256 *s)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)s->block[4 * i] << 24 | (uint32_t)s->block[4 * i + 1] << 16 |
               (uint32_t)s->block[4 * i + 2] << 8 | s->block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] + (sha256_rotate(w[i - 15], 7) ^ sha256_rotate(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (sha256_rotate(w[i - 2], 17) ^ sha256_rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]), max = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        uint32_t a = v[7] + (sha256_rotate(v[4], 6) ^ sha256_rotate(v[4], 11) ^ sha256_rotate(v[4],
            25)) + choice + round_constant[i] + w[i];
        uint32_t b = (sha256_rotate(v[0], 2) ^ sha256_rotate(v[0], 13) ^ sha256_rotate(v[0], 22)) + max;
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += a;
        v[0] = a + b;
    }
    for (int i = 0; i < 8; i++)
        s->h[i] += v[i];
    s->used = 0;
}

static void sha256_add(struct sha256 *s, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    s->bytes += bytes;
    for (size_t i = 0; i < bytes; i++) {
        s->block[s->used++] = p[i];
        if (s->used == BLOCK)
            sha256_block(s);
    }
}

static struct sha256 sha256_begin(void)
{
    return (struct sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

static void sha256_end(struct sha256 *s, uint8_t out[HMAC_BYTES])
{
    uint64_t bits = s->bytes * 8;
    uint8_t length[8];
    sha256_add(s, &(uint8_t){0x80}, 1);
    while (s->used != BLOCK - sizeof length)
        sha256_add(s, &(uint8_t){0}, 1);
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(s, length, sizeof length);
    for (int i = 0; i < HMAC_BYTES; i++)
        out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

void hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes, uint8_t out[HMAC_BYTES])
{
    uint8_t block[BLOCK] = {0}, inner[HMAC_BYTES], pad[BLOCK];
    struct sha256 s = sha256_begin();
    if (key_bytes > BLOCK) {
        sha256_add(&s, key, key_bytes);
        sha256_end(&s, block);
        s = sha256_begin();
    } else if (key_bytes) {
        memcpy(block, key, key_bytes);
    }
    for (int i = 0; i < BLOCK; i++)
        pad[i] = block[i] ^ 0x36;
    sha256_add(&s, pad, BLOCK);
    sha256_add(&s, data, bytes);
    sha256_end(&s, inner);
    s = sha256_begin();
    for (int i = 0; i < BLOCK; i++)
        pad[i] = block[i] ^ 0x5c;
    sha256_add(&s, pad, BLOCK);
    sha256_add(&s, inner, sizeof inner);
    sha256_end(&s, out);
}

bool hmac_equal(const uint8_t a[HMAC_BYTES], const uint8_t b[HMAC_BYTES])
{
    unsigned differs = 0;
    for (int i = 0; i < HMAC_BYTES; i++)
        differs |= a[i] ^ b[i];
    return !differs;
}
