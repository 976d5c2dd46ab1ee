/* XXH3 in the project's own words: against known values, against what hashes use in this build (xxHash's header where
 * it was found), and in parts against as a whole. */
#include "ir/hash/xxh3.h"
#include "ir/ir.h"
#include "tests/support/harness.h"

enum { BYTES = 5000 };
static unsigned char data[BYTES];

/* Of the first n bytes, by xxHash 0.8.1. */
static const struct { size_t n; uint64_t h64, low, high; } known[] = {
    {0, UINT64_C(0x2d06800538d394c2), UINT64_C(0x6001c324468d497f), UINT64_C(0x99aa06d3014798d8)},
    {1, UINT64_C(0x429e81bc6744101c), UINT64_C(0x429e81bc6744101c), UINT64_C(0xbeff62be44bc9be4)},
    {3, UINT64_C(0x32dbb5c7774cc94f), UINT64_C(0x32dbb5c7774cc94f), UINT64_C(0x9dce807f4a9aaa56)},
    {4, UINT64_C(0x65775238ca34c06f), UINT64_C(0x5def542b8e8255bb), UINT64_C(0x9772187e76395ea0)},
    {8, UINT64_C(0x90b760c9d253d0ff), UINT64_C(0xda3ca77f4508da63), UINT64_C(0x29a3277f85f28675)},
    {9, UINT64_C(0x15ae9f843bb50ea4), UINT64_C(0x85e53a642b77ffab), UINT64_C(0x57fc1cef528bd187)},
    {16, UINT64_C(0x372c92fa68129c98), UINT64_C(0x4c6929dc65a535a0), UINT64_C(0xf8ae1a6f144fb00b)},
    {17, UINT64_C(0xb5d6b9c1898bd9d6), UINT64_C(0x43287186cdfec85d), UINT64_C(0x0ad716e7cfed9dc8)},
    {32, UINT64_C(0x0ab1dbf9e9f8c22c), UINT64_C(0xcf805526ea96182f), UINT64_C(0x3061e37048c04caa)},
    {33, UINT64_C(0x4f4ae280e8465c3c), UINT64_C(0x9fc38e5c19be3ef3), UINT64_C(0x7787bc63ca3818d6)},
    {128, UINT64_C(0xc59e505a97d029e0), UINT64_C(0x6772960c7e09e15b), UINT64_C(0x2b83749a25627c55)},
    {129, UINT64_C(0xf9e651a476d6d3ca), UINT64_C(0xd15020c0444d308f), UINT64_C(0xd2c5fdf14399d768)},
    {240, UINT64_C(0x967597e635f3c527), UINT64_C(0xe16f608e11e76335), UINT64_C(0xb2c3c2aa029b2279)},
    {241, UINT64_C(0xd6afac6f8fa85b01), UINT64_C(0xd6afac6f8fa85b01), UINT64_C(0xe75e577a31d24834)},
    {1024, UINT64_C(0xbb9f0c3761cdfd54), UINT64_C(0xbb9f0c3761cdfd54), UINT64_C(0x1ac8856c8b289d9a)},
    {1025, UINT64_C(0x95edccc1adc4d895), UINT64_C(0x95edccc1adc4d895), UINT64_C(0x15379a00bb4cec98)},
    {4999, UINT64_C(0xea18e5dd8fd15f51), UINT64_C(0xea18e5dd8fd15f51), UINT64_C(0x72604d15ecc8f661)},
};

static void parts(struct rng *r, size_t n)
{
    struct xxh3_state s;
    xxh3_begin(&s);
    for (size_t at = 0, part; at < n; at += part) {
        part = (size_t)rng_below(r, n < 400 ? 50 : 700);
        part = part < n - at ? part : n - at;
        xxh3_update(&s, data + at, part);
    }
    struct xxh3_128 got = xxh3_end(&s), want = xxh3_128(data, n);
    check(got.low == want.low && got.high == want.high, "%zu bytes in parts", n);
}

int main(void)
{
    struct rng r = {7};
    uint32_t x = 1;
    for (size_t i = 0; i < BYTES; i++) {
        x = x * 1664525 + 1013904223;
        data[i] = (unsigned char)(x >> 24);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct xxh3_128 h = xxh3_128(data, known[i].n);
        check(xxh3_64(data, known[i].n) == known[i].h64 && h.low == known[i].low && h.high == known[i].high,
              "%zu bytes", known[i].n);
    }
    for (size_t n = 0; n < BYTES; n += n < 600 ? 1 : 37) {
        struct hash128 used = bytes_hash(data, n);
        struct xxh3_128 h = xxh3_128(data, n);
        check(used.lo == h.low && used.hi == h.high, "%zu bytes: the build's hash is another", n);
        parts(&r, n);
    }
    return finish();
}
