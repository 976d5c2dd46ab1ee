/* Compresses data of a page with zlib and encodes it in base64. */
#include "dump.h"
#include <zlib.h>

static void *zlib_allocate(void *ctx, unsigned items, unsigned size)
{
    (void)ctx;
    return mem_alloc((size_t)items * size);
}

static void compress_release(void *ctx, void *p)
{
    (void)ctx;
    mem_free(p);
}

static void put_base64(struct text *t, const unsigned char *b, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char line[256];
    size_t used = 0;
    for (size_t i = 0; i < n; i += 3) {
        unsigned v = (unsigned)b[i] << 16 | (i + 1 < n ? (unsigned)b[i + 1] << 8 : 0) | (i + 2 < n ? b[i + 2] : 0u);
        line[used++] = digit[v >> 18];
        line[used++] = digit[v >> 12 & 63];
        line[used++] = i + 1 < n ? digit[v >> 6 & 63] : '=';
        line[used++] = i + 2 < n ? digit[v & 63] : '=';
        if (used + 4 > sizeof line || i + 3 >= n) {
            text_put(t, "%.*s", (int)used, line);
            used = 0;
        }
    }
}

bool put_compressed(struct text *t, const char *bytes, size_t n)
{
    z_stream z = {.zalloc = zlib_allocate, .zfree = compress_release, .next_in = (unsigned char *)(uintptr_t)bytes,
                  .avail_in = (uInt)n};
    if (n > UINT32_MAX || deflateInit(&z, Z_BEST_COMPRESSION) != Z_OK)
        return false;
    size_t bound = deflateBound(&z, (uLong)n);
    unsigned char *out = bound <= UINT32_MAX ? mem_alloc(bound) : NULL;
    z.next_out = out;
    z.avail_out = (uInt)bound;
    bool ok = out && deflate(&z, Z_FINISH) == Z_STREAM_END;
    deflateEnd(&z);
    if (ok)
        put_base64(t, out, z.total_out);
    mem_free(out);
    return ok;
}
