/* .npz: a zip archive of .npy files.  Archives are read by their central directory.  Archives written here are not
 * compressed, so that elements are contiguous and aligned in the file and can be mapped.  Sizes of 4 GiB or more use
 * zip64. */
#include "tensor_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
    LOCAL = 0x04034b50, CENTRAL = 0x02014b50, END = 0x06054b50, END64 = 0x06064b50, END64_AT = 0x07064b50,
    LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22, END64_BYTES = 56, END64_AT_BYTES = 20,
    ZIP64 = 1, ALIGNMENT = 0xd935, /* numbers of extra fields; the second is that of Android's zipalign */
    STORED = 0, DEFLATED = 8, MAX_PER_BYTE = 1032, UTF8 = 1 << 11
};
#define MORE UINT32_C(0xffffffff) /* the number is in the zip64 field */

static uint64_t zip_get(const uint8_t *p, unsigned bytes)
{
    uint64_t v = 0;
    while (bytes--)
        v = v << 8 | p[bytes];
    return v;
}

/* ---- reading ---- */

/* Decompresses the first n bytes of a deflated member. */
static bool inflate_some(kl_file *f, const struct file_member *m, const char *name, uint8_t *to, size_t n)
{
    z_stream z = {.next_in = (uint8_t *)(uintptr_t)(f->bytes + m->at)};
    size_t in = m->packed, done = 0;
    int rc = Z_OK;
    if (inflateInit2(&z, -MAX_WBITS) != Z_OK)
        return file_no_memory(f);
    while (done < n && rc == Z_OK) {
        uInt give = in < 1 << 30 ? (uInt)in : 1 << 30, want = n - done < 1 << 30 ? (uInt)(n - done) : 1 << 30;
        z.avail_in = give;
        z.avail_out = want;
        z.next_out = to + done;
        rc = inflate(&z, Z_NO_FLUSH);
        in -= give - z.avail_in;
        done += want - z.avail_out;
        if (rc == Z_BUF_ERROR || (rc == Z_OK && want == z.avail_out && give == z.avail_in))
            break;
    }
    bool memory = rc == Z_MEM_ERROR;
    inflateEnd(&z);
    if (done == n)
        return true;
    return memory ? file_no_memory(f)
                  : file_bad(f, m->at, name, "damaged deflated data: %zu of %zu bytes", done, n);
}

bool npz_unpack(kl_file *f, struct file_entry *e)
{
    const struct file_member *m = &e->member;
    if (f->format != KL_FILE_NPZ)
        return true;
    const uint8_t *all = f->bytes + m->at;
    uint8_t *own = NULL;
    if (m->deflated) {
        if (!(own = malloc(m->bytes + 1)))
            return file_no_memory(f);
        all = own;
        if (!inflate_some(f, m, e->is.name, own, m->bytes)) {
            free(own);
            return false;
        }
    }
    if (crc32_z(0, all, m->bytes) != m->crc) {
        free(own);
        return file_bad(f, m->at, e->is.name, "the check sum (CRC-32) is wrong: the data is damaged");
    }
    if (own && m->header % 16) /* the elements would not be aligned */
        memmove(own, own + m->header, m->bytes - m->header);
    e->own = own;
    e->data = own ? own + (m->header % 16 ? 0 : m->header) : all + m->header;
    return true;
}

/* Reads the header of the array in a member. */
static bool member_array(kl_file *f, struct file_member *m, const char *name)
{
    uint8_t prefix[NPY_PREFIX], *own = NULL;
    const uint8_t *head = f->bytes + m->at;
    size_t known = m->bytes < NPY_PREFIX ? m->bytes : NPY_PREFIX;
    if (m->deflated) {
        if (!inflate_some(f, m, name, prefix, known))
            return false;
        head = prefix;
    }
    if (!(m->header = npy_header_bytes(f, head, known, m->at)))
        return false;
    if (m->header > m->bytes)
        return file_bad(f, m->at, name, "the member ends inside its header");
    if (m->deflated) {
        if (!(head = own = malloc(m->header)))
            return file_no_memory(f);
        if (!inflate_some(f, m, name, own, m->header)) {
            free(own);
            return false;
        }
    }
    struct file_entry *e = file_entry_add(f);
    bool ok = e && npy_header(f, head, m->header, m->bytes - m->header, m->at, e);
    free(own);
    if (!ok)
        return false;
    e->member = *m;
    e->is.name = name;
    if (m->deflated)
        e->is.offset = m->at;
    return true;
}

struct directory { uint64_t at, bytes, members; };

/* Reads the numbers that are too large for their fields from the extra field after the member's name. */
static bool zip64_numbers(kl_file *f, const uint8_t *extra, size_t n, uint64_t *number[3])
{
    size_t at = (size_t)(extra - f->bytes);
    bool wanted = *number[0] == MORE || *number[1] == MORE || *number[2] == MORE;
    while (wanted && n >= 4) {
        size_t id = zip_get(extra, 2), have = zip_get(extra + 2, 2);
        if (have > n - 4)
            break;
        extra += 4;
        n -= 4;
        if (id == ZIP64) {
            for (int i = 0; i < 3; i++) {
                if (*number[i] != MORE)
                    continue;
                if (have < 8)
                    return file_bad(f, at, "zip64", "the extra field is too short");
                *number[i] = zip_get(extra, 8);
                extra += 8;
                have -= 8;
            }
            return true;
        }
        extra += have;
        n -= have;
    }
    return !wanted || file_bad(f, at, "zip64", "the extra field is missing");
}

/* Reads one member at byte `at` of the directory; *next: the byte after it. */
static bool read_member(kl_file *f, const struct directory *d, size_t at, size_t *next)
{
    size_t end = d->at + d->bytes;
    const uint8_t *c = f->bytes + at;
    if (end - at < CENTRAL_BYTES || zip_get(c, 4) != CENTRAL)
        return file_bad(f, at, "central directory", "no member where one is to be");
    size_t n = zip_get(c + 28, 2), extra = zip_get(c + 30, 2), comment = zip_get(c + 32, 2);
    if (end - at - CENTRAL_BYTES < n + extra + comment)
        return file_bad(f, at, "central directory", "a member goes beyond it");
    *next = at + CENTRAL_BYTES + n + extra + comment;
    const char *name = (const char *)c + CENTRAL_BYTES;
    if (n < 4 || memcmp(name + n - 4, ".npy", 4))
        return true;
    if (memchr(name, 0, n))
        return file_bad(f, at + CENTRAL_BYTES, "name", "a zero byte");
    uint64_t packed = zip_get(c + 20, 4), bytes = zip_get(c + 24, 4), local = zip_get(c + 42, 4);
    if (!zip64_numbers(f, c + CENTRAL_BYTES + n, extra, (uint64_t *[]){&bytes, &packed, &local}))
        return false;
    const uint8_t *l = f->bytes + local;
    if (local > d->at || d->at - local < LOCAL_BYTES || zip_get(l, 4) != LOCAL)
        return file_bad(f, at + 42, "local header", "no member at byte %llu", (unsigned long long)local);
    size_t before = LOCAL_BYTES + zip_get(l + 26, 2) + zip_get(l + 28, 2);
    if (d->at - local < before || packed > d->at - local - before)
        return file_bad(f, at + 20, "compressed size", "%llu bytes from byte %llu on go beyond the members",
                        (unsigned long long)packed, (unsigned long long)local);
    if (zip_get(l + 26, 2) != n || memcmp(l + LOCAL_BYTES, name, n))
        return file_bad(f, (size_t)local + LOCAL_BYTES, "name", "it differs from the one in the directory");
    uint64_t method = zip_get(c + 10, 2);
    if (zip_get(c + 8, 2) & 1)
        return file_bad(f, at + 8, "flags", "the member is encrypted");
    if (method != STORED && method != DEFLATED)
        return file_bad(f, at + 10, "method", "compression %u is neither 0 (stored) nor 8 (deflate)", (unsigned)method);
    if (method == STORED ? packed != bytes : bytes / MAX_PER_BYTE > packed)
        return file_bad(f, at + 24, "size", "%llu bytes cannot come of %llu", (unsigned long long)bytes,
                        (unsigned long long)packed);
    struct file_member m = {(size_t)local + before, packed, bytes, 0, (uint32_t)zip_get(c + 16, 4),
                            method == DEFLATED};
    char *own = file_string(f, name, n - 4);
    return own && member_array(f, &m, own);
}

static bool find_directory(kl_file *f, struct directory *d)
{
    if (f->size < END_BYTES)
        return file_bad(f, f->size, NULL, "too short for a zip archive");
    size_t last = f->size - END_BYTES, first = last < UINT16_MAX ? 0 : last - UINT16_MAX, at = last;
    while (zip_get(f->bytes + at, 4) != END || zip_get(f->bytes + at + 20, 2) != last - at)
        if (at-- == first)
            return file_bad(f, f->size, "end of central directory",
                            "there is none: the archive is cut off or damaged");
    const uint8_t *e = f->bytes + at;
    *d = (struct directory){zip_get(e + 16, 4), zip_get(e + 12, 4), zip_get(e + 10, 2)};
    size_t end = at;
    if (d->at == MORE || d->bytes == MORE || d->members == UINT16_MAX) {
        if (at < END64_AT_BYTES || zip_get(e - END64_AT_BYTES, 4) != END64_AT)
            return file_bad(f, at, "zip64 locator", "there is none");
        uint64_t at64 = zip_get(e - END64_AT_BYTES + 8, 8);
        if (at64 > at - END64_AT_BYTES || at - END64_AT_BYTES - at64 < END64_BYTES ||
            zip_get(f->bytes + at64, 4) != END64)
            return file_bad(f, at - END64_AT_BYTES + 8, "zip64 locator", "no record at byte %llu",
                            (unsigned long long)at64);
        e = f->bytes + at64;
        *d = (struct directory){zip_get(e + 48, 8), zip_get(e + 40, 8), zip_get(e + 32, 8)};
        end = at64;
    }
    return (d->at <= end && d->bytes <= end - d->at) ||
           file_bad(f, at, "end of central directory", "the directory is outside of the file");
}

bool npz_read(kl_file *f)
{
    struct directory d = {0, 0, 0};
    if (!find_directory(f, &d))
        return false;
    size_t at = d.at;
    for (uint64_t i = 0; i < d.members; i++)
        if (!read_member(f, &d, at, &at))
            return false;
    return at == d.at + d.bytes ||
           file_bad(f, at, "central directory", "%llu bytes more than its %llu members take",
                    (unsigned long long)(d.at + d.bytes - at), (unsigned long long)d.members);
}

/* ---- writing ---- */

struct zip_bytes { uint8_t v[160]; size_t n; }; /* a record while it is made */

static void zip_put(struct zip_bytes *b, unsigned bytes, uint64_t v)
{
    for (; bytes--; v >>= 8)
        b->v[b->n++] = (uint8_t)v;
}

/* Writes the part that both headers of a member have: from the version to the length of the name. */
static void put_common(struct zip_bytes *b, const struct file_item *item, const struct file_member *m, bool large)
{
    size_t n = strlen(item->name) + 4;
    bool ascii = true;
    for (const char *s = item->name; *s; s++)
        ascii &= *s > 0;
    zip_put(b, 2, large ? 45 : 20);
    zip_put(b, 2, ascii ? 0 : UTF8);
    zip_put(b, 2, STORED);
    zip_put(b, 2, 0);
    zip_put(b, 2, 0x21); /* 1980-01-01, so that equal arrays give equal files */
    zip_put(b, 4, m->crc);
    zip_put(b, 4, large ? MORE : m->bytes);
    zip_put(b, 4, large ? MORE : m->bytes);
    zip_put(b, 2, n);
}

static void put_name(struct file_out *o, const struct file_item *item)
{
    out_append(o, item->name, strlen(item->name));
    out_append(o, ".npy", 4);
}

static void put_member(struct file_out *o, const struct file_item *item, struct file_member *m)
{
    static const uint8_t zeros[64];
    char header[512];
    void *own;
    if (!npy_is_writable(o, item))
        return;
    const void *data = item_data(o, item, &own);
    if (!data)
        return;
    m->header = npy_header_write(item, header);
    m->bytes = m->packed = m->header + item->bytes;
    m->at = o->at;
    m->crc = (uint32_t)crc32_z(crc32_z(0, (const uint8_t *)header, m->header), data, item->bytes);
    bool large = m->bytes >= MORE;
    size_t n = strlen(item->name) + 4, before = o->at + LOCAL_BYTES + n + (large ? 20 : 0) + 4,
           pad = (64 - before % 64) % 64;
    struct zip_bytes b = {.n = 0};
    zip_put(&b, 4, LOCAL);
    put_common(&b, item, m, large);
    zip_put(&b, 2, (large ? 20 : 0) + 4 + pad);
    out_append(o, b.v, b.n);
    put_name(o, item);
    b.n = 0;
    if (large) {
        zip_put(&b, 2, ZIP64);
        zip_put(&b, 2, 16);
        zip_put(&b, 8, m->bytes);
        zip_put(&b, 8, m->bytes);
    }
    zip_put(&b, 2, ALIGNMENT);
    zip_put(&b, 2, pad);
    out_append(o, b.v, b.n);
    out_append(o, zeros, pad);
    out_append(o, header, m->header);
    out_append(o, data, item->bytes);
    free(own);
}

static void put_central(struct file_out *o, const struct file_item *item, const struct file_member *m)
{
    bool large = m->bytes >= MORE, far = m->at >= MORE;
    size_t extra = (large ? 16u : 0) + (far ? 8u : 0);
    struct zip_bytes b = {.n = 0};
    zip_put(&b, 4, CENTRAL);
    zip_put(&b, 2, 45);
    put_common(&b, item, m, large || far);
    if (far && !large) { /* the sizes are in their normal fields */
        b.n -= 10;
        zip_put(&b, 4, m->bytes);
        zip_put(&b, 4, m->bytes);
        zip_put(&b, 2, strlen(item->name) + 4);
    }
    zip_put(&b, 2, extra ? extra + 4 : 0);
    zip_put(&b, 2, 0);
    zip_put(&b, 8, 0); /* disk number, attributes */
    zip_put(&b, 4, far ? MORE : m->at);
    out_append(o, b.v, b.n);
    put_name(o, item);
    b.n = 0;
    if (extra) {
        zip_put(&b, 2, ZIP64);
        zip_put(&b, 2, extra);
        for (unsigned i = 0; large && i < 2; i++)
            zip_put(&b, 8, m->bytes);
        if (far)
            zip_put(&b, 8, m->at);
    }
    out_append(o, b.v, b.n);
}

static void put_end(struct file_out *o, uint64_t at, uint64_t members)
{
    uint64_t end = o->at, bytes = end - at;
    struct zip_bytes b = {.n = 0};
    bool large = at >= MORE || bytes >= MORE || members >= UINT16_MAX;
    if (large) {
        zip_put(&b, 4, END64);
        zip_put(&b, 8, END64_BYTES - 12);
        zip_put(&b, 4, 45 << 16 | 45);
        zip_put(&b, 8, 0);
        zip_put(&b, 8, members);
        zip_put(&b, 8, members);
        zip_put(&b, 8, bytes);
        zip_put(&b, 8, at);
        zip_put(&b, 4, END64_AT);
        zip_put(&b, 4, 0);
        zip_put(&b, 8, end);
        zip_put(&b, 4, 1);
    }
    zip_put(&b, 4, END);
    zip_put(&b, 4, 0);
    zip_put(&b, 2, large ? UINT16_MAX : members);
    zip_put(&b, 2, large ? UINT16_MAX : members);
    zip_put(&b, 4, large ? MORE : bytes);
    zip_put(&b, 4, large ? MORE : at);
    zip_put(&b, 2, 0);
    out_append(o, b.v, b.n);
}

void npz_write(struct file_out *o, const struct file_item *items, uint32_t n)
{
    struct file_member *m = calloc((size_t)n + 1, sizeof *m);
    if (!m) {
        file_fails(&o->why, KL_ERR_MEMORY, "%.250s: out of memory", o->path);
        return;
    }
    for (uint32_t i = 0; i < n && !o->why.code; i++) {
        if (strlen(items[i].name) > UINT16_MAX - 4)
            file_fails(&o->why, KL_ERR_ARGUMENT, "%.250s: a name of more than 65531 bytes", o->path);
        else
            put_member(o, &items[i], &m[i]);
    }
    uint64_t at = o->at;
    for (uint32_t i = 0; i < n; i++)
        put_central(o, &items[i], &m[i]);
    put_end(o, at, n);
    free(m);
}
