/* IDX files: the bytes 0 and 0, the type, the rank, then `rank` big-endian 32-bit dimensions, then the elements.
 * zlib's gz* calls ignore bytes after the compressed stream, so this file calls inflate instead, to report such
 * bytes. */
#include "tensor_file.h"
#include <errno.h>
#include <kiln/train/data.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { IDX_U8 = 0x08, CHUNK = 1 << 15, DEFLATE_RATIO = 1032 };

struct idx_source {
    FILE *f;
    const char *path;
    struct file_error *why;
    bool gzip, ended; /* ended: the end of the compressed stream was reached */
    int64_t size;     /* size of the file on disk */
    z_stream z;       /* its next_in and avail_in are used for plain files, too */
    uint8_t chunk[CHUNK];
};

static bool source_open(struct idx_source *s, const char *path, struct file_error *why)
{
    *s = (struct idx_source){.path = path, .why = why};
    int fd = file_open_read(path, &s->size, why);
    if (fd < 0)
        return false;
    if (!(s->f = fdopen(fd, "rb"))) {
        close(fd);
        return file_fails(why, KL_ERR_MEMORY, "out of memory while reading %s", path);
    }
    s->z.next_in = s->chunk;
    s->z.avail_in = (uInt)fread(s->chunk, 1, CHUNK, s->f);
    if (ferror(s->f))
        return file_fails(why, KL_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    if (s->z.avail_in >= 2 && s->chunk[0] == 0x1f && s->chunk[1] == 0x8b) {
        if (inflateInit2(&s->z, 16 + MAX_WBITS) != Z_OK)
            return file_fails(why, KL_ERR_MEMORY, "out of memory while reading %s", path);
        s->gzip = true;
    }
    return true;
}

static void source_close(struct idx_source *s)
{
    if (s->gzip)
        inflateEnd(&s->z);
    if (s->f)
        fclose(s->f);
}

/* Makes at least one byte of the file available in s->z; false at its end or on a read error. */
static bool source_fill(struct idx_source *s)
{
    if (s->z.avail_in)
        return true;
    s->z.next_in = s->chunk;
    s->z.avail_in = (uInt)fread(s->chunk, 1, CHUNK, s->f);
    if (ferror(s->f))
        return file_fails(s->why, KL_ERR_IO, "cannot read %s: %s", s->path, strerror(errno));
    return s->z.avail_in > 0;
}

/* Reads up to n bytes of the (decompressed) content; *got < n only at its end. */
static bool source_read(struct idx_source *s, uint8_t *to, int64_t n, int64_t *got)
{
    *got = 0;
    while (*got < n && !s->ended && source_fill(s)) {
        uInt want = n - *got > CHUNK ? CHUNK : (uInt)(n - *got);
        if (!s->gzip) {
            uInt take = s->z.avail_in < want ? s->z.avail_in : want;
            memcpy(to + *got, s->z.next_in, take);
            s->z.next_in += take;
            s->z.avail_in -= take;
            *got += take;
            continue;
        }
        s->z.next_out = to + *got;
        s->z.avail_out = want;
        int rc = inflate(&s->z, Z_NO_FLUSH);
        *got += want - s->z.avail_out;
        if (rc == Z_STREAM_END)
            s->ended = true;
        else if (rc == Z_MEM_ERROR)
            return file_fails(s->why, KL_ERR_MEMORY, "out of memory while reading %s", s->path);
        else if (rc != Z_OK)
            return file_fails(s->why, KL_ERR_IO, "%s is damaged: %s", s->path, s->z.msg ? s->z.msg : "bad gzip data");
    }
    return s->why->code == KL_OK;
}

/* Reads exactly n bytes; `what` names them in errors. */
static bool source_need(struct idx_source *s, uint8_t *to, int64_t n, const char *what)
{
    int64_t got;
    if (!source_read(s, to, n, &got))
        return false;
    if (got < n)
        return file_fails(s->why, KL_ERR_IO, "%s is truncated: %lld of %lld bytes of its %s", s->path, (long long)got,
                        (long long)n, what);
    return true;
}

/* Checks that the content, and the file, end here. */
static bool source_finish(struct idx_source *s)
{
    uint8_t extra;
    int64_t got;
    if (!source_read(s, &extra, 1, &got))
        return false;
    if (got > 0)
        return file_fails(s->why, KL_ERR_IO, "%s has bytes left over after its last element", s->path);
    if (s->gzip && !s->ended)
        return file_fails(s->why, KL_ERR_IO, "%s is truncated: its compressed stream has no end", s->path);
    if (source_fill(s))
        return file_fails(s->why, KL_ERR_IO, "%s has bytes left over after its compressed stream", s->path);
    return s->why->code == KL_OK;
}

/* Writes for example "[60000,28,28]", with "?" for a dimension below 0. */
static const char *dims_text(int rank, const int64_t *dim, char *buf, size_t size)
{
    size_t used = (size_t)snprintf(buf, size, "[");
    for (int i = 0; i < rank; i++) {
        const char *sep = i ? "," : "";
        if (dim[i] < 0)
            used += (size_t)snprintf(buf + used, size - used, "%s?", sep);
        else
            used += (size_t)snprintf(buf + used, size - used, "%s%lld", sep, (long long)dim[i]);
    }
    snprintf(buf + used, size - used, "]");
    return buf;
}

static bool read_header(struct idx_source *s, kl_idx *out)
{
    uint8_t head[4], be[4];
    if (!source_need(s, head, sizeof head, "header"))
        return false;
    if (head[0] || head[1])
        return file_fails(s->why, KL_ERR_IO, "%s is not an IDX file: it starts with bytes %02x %02x, not 00 00",
                          s->path, head[0], head[1]);
    if (head[2] != IDX_U8)
        return file_fails(s->why, KL_ERR_IO,
                          "%s has elements of IDX type 0x%02x; only 0x08, unsigned bytes, can be read",
                          s->path, head[2]);
    if (head[3] < 1 || head[3] > KL_MAX_RANK)
        return file_fails(s->why, KL_ERR_IO, "%s has %d dimensions; 1 to %d can be read", s->path, head[3],
                          KL_MAX_RANK);
    out->rank = head[3];
    out->count = 1;
    for (int i = 0; i < out->rank; i++) {
        if (!source_need(s, be, sizeof be, "dimensions"))
            return false;
        out->dim[i] = (int64_t)be[0] << 24 | be[1] << 16 | be[2] << 8 | be[3];
        if (__builtin_mul_overflow(out->count, out->dim[i], &out->count))
            return file_fails(s->why, KL_ERR_IO, "%s has dimensions too large to hold", s->path);
    }
    return true;
}

static bool check_dims(const struct idx_source *s, const kl_idx *idx, int rank, const int64_t *dim)
{
    bool same = rank <= 0 || rank == idx->rank;
    for (int i = 0; same && dim && i < rank; i++)
        same = dim[i] < 0 || dim[i] == idx->dim[i];
    if (same)
        return true;
    char has[256], wants[256]; /* room for KL_MAX_RANK numbers of up to 20 digits */
    dims_text(idx->rank, idx->dim, has, sizeof has);
    if (!dim)
        return file_fails(s->why, KL_ERR_IO, "%s has shape %s, expected %d dimensions", s->path, has, rank);
    return file_fails(s->why, KL_ERR_IO, "%s has shape %s, expected %s", s->path, has,
                    dims_text(rank, dim, wants, sizeof wants));
}

static bool read_elements(struct idx_source *s, kl_idx *out)
{
    /* Checks the size of the file first, so that a short file that claims a huge array does not cause a huge
     * allocation. */
    if (out->count / DEFLATE_RATIO > s->size)
        return file_fails(s->why, KL_ERR_IO,
                          "%s is truncated: %lld bytes cannot hold the %lld elements of its header",
                          s->path, (long long)s->size, (long long)out->count);
    out->data = kl_memory_alloc((size_t)out->count + 1); /* + 1, so that an empty array has an address, too */
    if (!out->data)
        return file_fails(s->why, KL_ERR_MEMORY, "out of memory: %lld bytes for %s", (long long)out->count, s->path);
    return source_need(s, out->data, out->count, "elements");
}

static bool idx_read(kl_idx *out, const char *path, int rank, const int64_t *dim, struct file_error *why)
{
    struct idx_source *s = kl_memory_alloc(sizeof *s); /* too large for a small stack */
    if (!s)
        return file_fails(why, KL_ERR_MEMORY, "out of memory while reading %s", path);
    bool ok = source_open(s, path, why) && read_header(s, out) && check_dims(s, out, rank, dim) &&
              read_elements(s, out) && source_finish(s);
    source_close(s);
    kl_memory_free(s);
    if (!ok)
        kl_idx_close(out);
    return ok;
}

kl_status kl_idx_open(const char *path, int rank, const int64_t *dim, kl_idx *out)
{
    struct file_error why = {0};
    if (out)
        *out = (kl_idx){0};
    if (!out || !path || rank > KL_MAX_RANK)
        file_fails(&why, KL_ERR_ARGUMENT, "idx_open: %s",
                 !out ? "out is NULL" : !path ? "path is NULL" : "rank is larger than KL_MAX_RANK");
    else if (idx_read(out, path, rank, dim, &why))
        return KL_OK;
    return file_error_report(NULL, &why);
}

void kl_idx_close(kl_idx *idx)
{
    if (!idx)
        return;
    kl_memory_free(idx->data);
    *idx = (kl_idx){0};
}
