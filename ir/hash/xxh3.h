/* XXH3, the hash of graphs, kernels and files on disk: 64 and 128 bits, seed 0 and the default secret, as Yann Collet's
 * specification defines it (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).  Where the build finds xxhash.h, content.h
 * uses that library, which has vector code; both give the same numbers, on any machine of either byte order. */
#ifndef KILN_XXH3_H
#define KILN_XXH3_H
#include <stddef.h>
#include <stdint.h>

struct xxh3_128 { uint64_t low, high; };

uint64_t xxh3_64(const void *data, size_t n);
struct xxh3_128 xxh3_128(const void *data, size_t n);

enum { XXH3_STRIPE = 64, XXH3_BUFFER = 5 * XXH3_STRIPE };
struct xxh3_state {
    uint64_t lane[8];
    uint64_t total;                   /* bytes so far */
    uint32_t stripe;                  /* number of the next stripe in its block */
    uint32_t n;                       /* bytes in the buffer, the last ones of the input */
    unsigned char last[XXH3_STRIPE];  /* the bytes before those in the buffer, if total > n */
    unsigned char buffer[XXH3_BUFFER];
};
/* The hash of 128 bits of data that comes in parts. */
void xxh3_begin(struct xxh3_state *s);
void xxh3_update(struct xxh3_state *s, const void *data, size_t n);
struct xxh3_128 xxh3_end(const struct xxh3_state *s);

#endif
