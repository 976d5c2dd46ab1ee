/* GGUF files of one tensor in blocks, of reproducible bytes, and the types of blocks. */
#ifndef TESTS_GGUF_BYTES_H
#define TESTS_GGUF_BYTES_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct gguf_blocks {
    const char *name;
    unsigned number, elements, bytes; /* of a block */
    unsigned half[2], halves;         /* byte offsets of f16 scales in it */
    uint64_t hash;                    /* FNV-1a of the bytes of the values of a file of 3 rows of 768, as the format's
                                         own package computes them (gguf 0.19, gguf.quants.dequantize); 0: not known */
};
static const struct gguf_blocks gguf_types[] = {
    {"Q4_0", 2, 32, 18, {0}, 1, UINT64_C(0)},
    {"Q8_0", 8, 32, 34, {0}, 1, UINT64_C(0)},
    {"Q4_1", 3, 32, 20, {0, 2}, 2, UINT64_C(0xb29821c049215ce8)},
    {"Q5_0", 6, 32, 22, {0}, 1, UINT64_C(0x5af7e7264693842c)},
    {"Q5_1", 7, 32, 24, {0, 2}, 2, UINT64_C(0x28901d87996a7305)},
    {"Q2_K", 10, 256, 84, {80, 82}, 2, UINT64_C(0x7c709e972ca89389)},
    {"Q3_K", 11, 256, 110, {108}, 1, UINT64_C(0x637e201ebb2813d4)},
    {"Q4_K", 12, 256, 144, {0, 2}, 2, UINT64_C(0x300ac94ed85699b6)},
    {"Q5_K", 13, 256, 176, {0, 2}, 2, UINT64_C(0xeecee48194e6e432)},
    {"Q6_K", 14, 256, 210, {208}, 1, UINT64_C(0xe007af45e65a8160)},
    {"IQ4_NL", 20, 32, 18, {0}, 1, UINT64_C(0xf3b19eefbf021778)},
    {"IQ4_XS", 23, 256, 136, {0}, 1, UINT64_C(0xe0fbcf1933379433)},
    {"MXFP4", 39, 32, 17, {0}, 0, UINT64_C(0x183c16dacd5a7e01)},
};
enum { GGUF_TYPES = sizeof gguf_types / sizeof *gguf_types };

struct gguf_bytes { uint8_t *v; size_t n; };

static inline void gguf_put(struct gguf_bytes *f, unsigned bytes, uint64_t v)
{
    for (unsigned i = 0; i < bytes; i++)
        f->v[f->n++] = (uint8_t)(v >> 8 * i);
}

static inline const struct gguf_blocks *gguf_type_called(const char *name)
{
    int i = 0;
    while (i < GGUF_TYPES - 1 && strcmp(gguf_types[i].name, name) != 0)
        i++;
    return &gguf_types[i];
}

/* One tensor, "t" [rows, columns]; the scales are of usual size, but the first block's of `special`, the upper byte of
 * an f16 (0: as the others).  The caller frees v. */
static inline struct gguf_bytes gguf_made(const struct gguf_blocks *t, uint64_t rows, unsigned columns,
                                          uint8_t special)
{
    struct gguf_bytes f = {.v = calloc(1, (size_t)rows * columns / t->elements * t->bytes + 128), .n = 4};
    uint64_t state = 1;
    if (!f.v)
        abort();
    memcpy(f.v, "GGUF", 4);
    gguf_put(&f, 4, 3);
    gguf_put(&f, 8, 1);
    gguf_put(&f, 8, 0);
    gguf_put(&f, 8, 1);
    gguf_put(&f, 1, 't');
    gguf_put(&f, 4, 2);
    gguf_put(&f, 8, columns);
    gguf_put(&f, 8, rows);
    gguf_put(&f, 4, t->number);
    gguf_put(&f, 8, 0);
    while (f.n % 32)
        gguf_put(&f, 1, 0);
    for (uint64_t b = 0; b < rows * (columns / t->elements); b++) {
        uint8_t *block = f.v + f.n;
        for (unsigned i = 0; i < t->bytes; i++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            gguf_put(&f, 1, state >> 33 & 255);
        }
        for (unsigned i = 0; i < t->halves; i++)
            block[t->half[i] + 1] = special && !b ? special : (uint8_t)((block[t->half[i] + 1] & 0x83) | 0x2c);
        if (!strcmp(t->name, "MXFP4"))
            block[0] = (uint8_t)(120 + block[0] % 16);
    }
    return f;
}

#endif
