/* .npy: a magic number, a Python dict as text ({'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }), then the
 * elements.
 *
 * Other writers than NumPy quote with ", put spaces before colons or tabs, leave out the last comma, name types in
 * words or without a byte order, and write Python 2's integers (2L, 3L): all that NumPy itself reads. */
#include "tensor_file.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char magic[] = "\x93NUMPY";

/* NumPy's names of the element types without the byte order.  NumPy has no bf16. */
static const char *const npy_codes[KL_DTYPE_COUNT] = {
    [KL_BOOL] = "b1", [KL_U8] = "u1", [KL_U16] = "u2", [KL_U32] = "u4", [KL_U64] = "u8", [KL_I8] = "i1",
    [KL_I16] = "i2",  [KL_I32] = "i4", [KL_I64] = "i8", [KL_F16] = "f2", [KL_F32] = "f4", [KL_F64] = "f8",
};

struct npy_reader { kl_file *f; const char *start, *p, *end; size_t at; };

static size_t npy_at(const struct npy_reader *r) { return r->at + (size_t)(r->p - r->start); }

static bool npy_take(struct npy_reader *r, const char *token)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\t' || *r->p == '\r'))
        r->p++;
    size_t n = strlen(token);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, token, n))
        return false;
    r->p += n;
    return true;
}

/* The dtype that NumPy names so; KL_DTYPE_COUNT: Kiln has none like it. */
static kl_dtype npy_dtype(const char *type)
{
    static const char *const words[KL_DTYPE_COUNT] = {
        [KL_BOOL] = "bool", [KL_U8] = "uint8", [KL_U16] = "uint16", [KL_U32] = "uint32", [KL_U64] = "uint64",
        [KL_I8] = "int8", [KL_I16] = "int16", [KL_I32] = "int32", [KL_I64] = "int64", [KL_F16] = "float16",
        [KL_F32] = "float32", [KL_F64] = "float64"};
    static const struct { char letter; kl_dtype dtype; } letters[] = {
        {'?', KL_BOOL}, {'B', KL_U8}, {'H', KL_U16}, {'I', KL_U32}, {'Q', KL_U64}, {'b', KL_I8}, {'h', KL_I16},
        {'i', KL_I32}, {'q', KL_I64}, {'e', KL_F16}, {'f', KL_F32}, {'d', KL_F64}};
    const char *code = *type && strchr("<>|=", *type) ? type + 1 : type;
    for (unsigned d = 0; d < KL_DTYPE_COUNT; d++)
        if (npy_codes[d] && (!strcmp(code, npy_codes[d]) || !strcmp(code, words[d])))
            return (kl_dtype)d;
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        if (code[0] == letters[i].letter && !code[1])
            return letters[i].dtype;
    return KL_DTYPE_COUNT;
}

/* A text in quotes of either kind, without escapes; NULL: there is none. */
static const char *npy_text(struct npy_reader *r, size_t *n)
{
    char quote = npy_take(r, "'") ? '\'' : npy_take(r, "\"") ? '"' : 0;
    const char *start = r->p, *end = quote ? memchr(start, quote, (size_t)(r->end - start)) : NULL;
    *n = end ? (size_t)(end - start) : 0;
    r->p = end ? end + 1 : start;
    return end ? start : NULL;
}

static bool read_descr(struct npy_reader *r, struct file_entry *e)
{
    size_t n, at = npy_at(r);
    const char *text = npy_text(r, &n);
    if (!text)
        return file_bad(r->f, at, "descr", "a structured or missing element type");
    at = npy_at(r) - n - 1;
    if (n < 1 || n > 16)
        return file_bad(r->f, at, "descr", "the element type is no short text in quotes");
    if (!(e->is.type = file_string(r->f, text, n)))
        return false;
    e->is.dtype = npy_dtype(e->is.type);
    if (e->is.dtype == KL_DTYPE_COUNT)
        return file_bad(r->f, at, "descr", "elements of %s, which Kiln does not have", e->is.type);
    e->big_endian = *e->is.type == '>' && kl_dtype_size(e->is.dtype) > 1;
    return true;
}

/* The key of a dict's next entry, up to its colon. */
static bool npy_key(struct npy_reader *r, const char *key)
{
    struct npy_reader before = *r;
    size_t n;
    const char *text = npy_text(r, &n);
    if (text && n == strlen(key) && !memcmp(text, key, n) && npy_take(r, ":"))
        return true;
    *r = before;
    return false;
}

static bool read_tuple(struct npy_reader *r, kl_file_entry *e)
{
    if (!npy_take(r, "("))
        return file_bad(r->f, npy_at(r), "shape", "it is no tuple");
    while (!npy_take(r, ")")) {
        uint64_t d = 0;
        if (e->rank && !npy_take(r, ","))
            return file_bad(r->f, npy_at(r), "shape", "expected ',' or ')'");
        if (e->rank && npy_take(r, ")"))
            break;
        if (e->rank == KL_MAX_RANK)
            return file_bad(r->f, npy_at(r), "shape", "more than %d dimensions", KL_MAX_RANK);
        npy_take(r, "");
        const char *start = r->p;
        for (; r->p < r->end && *r->p >= '0' && *r->p <= '9' && d < UINT64_C(1) << 59; r->p++)
            d = d * 10 + (unsigned)(*r->p - '0');
        if (r->p == start || d >= UINT64_C(1) << 59)
            return file_bad(r->f, npy_at(r), "shape", "a dimension is missing or too large");
        npy_take(r, "L");
        e->dims[e->rank++] = (int64_t)d;
    }
    return true;
}

static bool read_dict(struct npy_reader *r, struct file_entry *e)
{
    bool descr = false, order = false, shape = false;
    if (!npy_take(r, "{"))
        return file_bad(r->f, npy_at(r), NULL, "the header is no dict");
    while (!npy_take(r, "}")) {
        if (!descr && npy_key(r, "descr")) {
            descr = true;
            if (!read_descr(r, e))
                return false;
        } else if (!order && npy_key(r, "fortran_order")) {
            order = true;
            e->column_major = npy_take(r, "True");
            if (!e->column_major && !npy_take(r, "False"))
                return file_bad(r->f, npy_at(r), "fortran_order", "expected True or False");
        } else if (!shape && npy_key(r, "shape")) {
            shape = true;
            if (!read_tuple(r, &e->is))
                return false;
        } else {
            return file_bad(r->f, npy_at(r), NULL, "the header has an unknown or repeated key, or is cut off");
        }
        npy_take(r, ",");
    }
    if (e->is.rank < 2)
        e->column_major = false;
    return (descr && order && shape) ||
           file_bad(r->f, r->at, NULL, "the header lacks descr, fortran_order or shape");
}

size_t npy_header_bytes(kl_file *f, const uint8_t *b, size_t n, size_t at)
{
    if (n < NPY_PREFIX || memcmp(b, magic, 6))
        return file_bad(f, at, "magic", "not a .npy array"), 0;
    if (b[6] < 1 || b[6] > 3)
        return file_bad(f, at + 6, "version", "%u is unknown", b[6]), 0;
    size_t header = b[8] | (size_t)b[9] << 8;
    if (b[6] > 1)
        header |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (header > NPY_HEADER_MAX)
        return file_bad(f, at + 8, "HEADER_LEN", "%zu bytes are more than %d", header, NPY_HEADER_MAX), 0;
    return header + (b[6] == 1 ? 10 : 12);
}

bool npy_header(kl_file *f, const uint8_t *bytes, size_t header, size_t rest, size_t at, struct file_entry *e)
{
    size_t lead = bytes[6] == 1 ? 10 : 12;
    const char *text = (const char *)bytes + lead;
    struct npy_reader r = {f, text, text, (const char *)bytes + header, at + lead};
    int64_t count;
    if (!read_dict(&r, e))
        return false;
    if (!dims_bytes(e->is.rank, e->is.dims, kl_dtype_size(e->is.dtype), &count, &e->is.bytes))
        return file_bad(f, at + lead, "shape", "too large: more elements than memory can hold");
    e->is.offset = at + header;
    return rest == e->is.bytes || file_bad(f, at + header, NULL,
                                           "%zu bytes of elements where the shape needs %zu", rest, e->is.bytes);
}

bool npy_read(kl_file *f)
{
    size_t header = npy_header_bytes(f, f->bytes, f->size, 0);
    if (!header)
        return false;
    if (header > f->size)
        return file_bad(f, f->size, NULL, "the file ends inside the header");
    struct file_entry *e = file_entry_add(f);
    if (!e || !npy_header(f, f->bytes, header, f->size - header, 0, e))
        return false;
    e->is.name = "";
    e->data = f->bytes + header;
    return true;
}

/* ---- writing ---- */

bool npy_is_writable(struct file_out *o, const struct file_item *item)
{
    return npy_codes[item->dtype] ||
           file_fails(&o->why, KL_ERR_TYPE, "%.250s: NumPy's formats have no %s (\"%.200s\"): cast it", o->path,
                    kl_dtype_name(item->dtype), item->name);
}

size_t npy_header_write(const struct file_item *item, char header[512])
{
    char dims[256] = "", dict[400];
    size_t n = 0, lead = sizeof magic - 1 + 4;
    for (int i = 0; i < item->rank; i++)
        n += (size_t)snprintf(dims + n, sizeof dims - n, "%" PRId64 "%s", item->dims[i],
                              item->rank == 1 ? "," : i + 1 < item->rank ? ", " : "");
    int text = snprintf(dict, sizeof dict, "{'descr': '%c%s', 'fortran_order': False, 'shape': (%s), }",
                        kl_dtype_size(item->dtype) == 1 ? '|' : '<', npy_codes[item->dtype], dims);
    size_t padded = (lead + (size_t)text + 1 + 63) / 64 * 64 - lead; /* the elements start at a multiple of 64 */
    memcpy(header, magic, 6);
    header[6] = 1;
    header[7] = 0;
    header[8] = (char)(padded & 255);
    header[9] = (char)(padded >> 8);
    memset(header + lead, ' ', padded - 1);
    memcpy(header + lead, dict, (size_t)text);
    header[lead + padded - 1] = '\n';
    return lead + padded;
}

void npy_write(struct file_out *o, const struct file_item *item)
{
    char header[512];
    void *own;
    if (!npy_is_writable(o, item))
        return;
    const void *data = item_data(o, item, &own);
    if (!data)
        return;
    out_append(o, header, npy_header_write(item, header));
    out_append(o, data, item->bytes);
    free(own);
}
