/* GGUF's types of blocks that are decoded to f32: files written here, whose results are the bits of the format's own
 * package (gguf 0.19, gguf.quants.dequantize of the same bytes), as hashes; and files cut in a block. */
#include "tests/support/api_check.h"
#include <kiln/train.h>

enum { ELEMENTS = 2304, ROWS = 3, COLUMNS = 768, MAX_BYTES = 8192 };
static const struct type {
    const char *name;
    unsigned number, elements, bytes; /* of a block */
    unsigned half[2], halves;         /* byte offsets of f16 scales in it */
    uint64_t hash;                    /* FNV-1a of the results' bytes */
} types[] = {
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
static kl_device dev;

struct file { uint8_t v[MAX_BYTES]; size_t n; };

static void put(struct file *f, unsigned bytes, uint64_t v)
{
    for (unsigned i = 0; i < bytes; i++)
        f->v[f->n++] = (uint8_t)(v >> 8 * i);
}

/* One tensor, "t" [3, 768], of reproducible bytes; the scales are of usual size. */
static struct file made(const struct type *t)
{
    struct file f = {.n = 4};
    uint64_t state = 1;
    memcpy(f.v, "GGUF", 4);
    put(&f, 4, 3);
    put(&f, 8, 1);
    put(&f, 8, 0);
    put(&f, 8, 1);
    put(&f, 1, 't');
    put(&f, 4, 2);
    put(&f, 8, COLUMNS);
    put(&f, 8, ROWS);
    put(&f, 4, t->number);
    put(&f, 8, 0);
    while (f.n % 32)
        put(&f, 1, 0);
    for (unsigned b = 0; b < ELEMENTS / t->elements; b++) {
        uint8_t *block = f.v + f.n;
        for (unsigned i = 0; i < t->bytes; i++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            put(&f, 1, state >> 33 & 255);
        }
        for (unsigned i = 0; i < t->halves; i++)
            block[t->half[i] + 1] = (uint8_t)((block[t->half[i] + 1] & 0x83) | 0x2c);
        if (!strcmp(t->name, "MXFP4"))
            block[0] = (uint8_t)(120 + block[0] % 16);
    }
    return f;
}

static void decoded(const struct type *t)
{
    struct file data = made(t);
    kl_file *f = kl_file_open_bytes("blocks.gguf", data.v, data.n);
    kl_file_entry e;
    if (!CHECK(f && kl_file_get(f, 0, &e) == KL_OK))
        return;
    CHECK(e.dtype == KL_F32 && !strcmp(e.type, t->name) && e.bytes == (size_t)ELEMENTS / t->elements * t->bytes);
    kl_tensor x = kl_file_tensor(f, dev, "t");
    float v[ELEMENTS];
    uint64_t hash = UINT64_C(14695981039346656037);
    CHECK(kl_dtype_of(x) == KL_F32 && kl_numel(x) == ELEMENTS && kl_read(x, v, sizeof v) == KL_OK);
    for (size_t i = 0; i < sizeof v; i++)
        hash = (hash ^ ((const uint8_t *)v)[i]) * UINT64_C(1099511628211);
    if (!CHECK(hash == t->hash))
        printf("  %s: %016llx\n", t->name, (unsigned long long)hash);
    kl_release(x);
    kl_file_close(f);
    kl_clear_error();
    f = kl_file_open_bytes("cut.gguf", data.v, data.n - 1);
    CHECK(!f && strstr(kl_last_error(), "the file is cut off"));
    kl_file_close(f);
    kl_clear_error();
}

int main(void)
{
    dev = kl_device_named("ref");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        decoded(&types[i]);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
