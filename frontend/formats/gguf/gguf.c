/* GGUF, versions 2 and 3: counts, metadata as typed keys, the tensors' names, shapes, types and offsets, then the
 * elements.  gguf_tensor.c makes quantized tensors of those in blocks. */
#include "gguf.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define GGUF_TO_NEXT SIZE_MAX /* bytes of a tensor of an unknown type, before they are known */
enum { GGUF_HEADER = 24 };

static const struct gguf_type gguf_types[] = {
    {0, "F32", KL_F32, BLOCKS_NONE, 1, 4}, {1, "F16", KL_F16, BLOCKS_NONE, 1, 2},
    {24, "I8", KL_I8, BLOCKS_NONE, 1, 1}, {25, "I16", KL_I16, BLOCKS_NONE, 1, 2},
    {26, "I32", KL_I32, BLOCKS_NONE, 1, 4}, {27, "I64", KL_I64, BLOCKS_NONE, 1, 8},
    {28, "F64", KL_F64, BLOCKS_NONE, 1, 8},
    {30, "BF16", KL_BF16, BLOCKS_NONE, 1, 2},
#define BLOCKS(kind, number, name, split, encode, elements, bytes, ...) \
    {number, name, KL_F32, BLOCKS_##kind, elements, bytes},
#include "gguf_blocks.def"
#undef BLOCKS
#define SIZE_ONLY(number, name, elements, bytes) {number, name, KL_DTYPE_COUNT, BLOCKS_NONE, elements, bytes}
    SIZE_ONLY(15, "Q8_K", 256, 292), SIZE_ONLY(16, "IQ2_XXS", 256, 66), SIZE_ONLY(17, "IQ2_XS", 256, 74),
    SIZE_ONLY(18, "IQ3_XXS", 256, 98),
    SIZE_ONLY(19, "IQ1_S", 256, 50), SIZE_ONLY(21, "IQ3_S", 256, 110),
    SIZE_ONLY(22, "IQ2_S", 256, 82), SIZE_ONLY(29, "IQ1_M", 256, 56),
    SIZE_ONLY(34, "TQ1_0", 256, 54), SIZE_ONLY(35, "TQ2_0", 256, 66),
#undef SIZE_ONLY
};
enum { GGUF_TYPES = sizeof gguf_types / sizeof *gguf_types };

const kl_dtype gguf_value_dtype[GGUF_VALUE_TYPES] = {
    KL_U8, KL_I8, KL_U16, KL_I16, KL_U32, KL_I32, KL_F32, KL_BOOL, KL_DTYPE_COUNT, KL_DTYPE_COUNT, KL_U64, KL_I64,
    KL_F64,
};

const struct gguf_type *gguf_type_numbered(uint64_t number)
{
    for (int i = 0; i < GGUF_TYPES; i++)
        if (gguf_types[i].number == number)
            return &gguf_types[i];
    return NULL;
}

const struct gguf_type *gguf_type_named(const char *name)
{
    for (int i = 0; i < GGUF_TYPES; i++)
        if (!strcasecmp(gguf_types[i].name, name))
            return &gguf_types[i];
    return NULL;
}

const struct gguf_type *gguf_type_of_dtype(kl_dtype dtype)
{
    for (int i = 0; i < GGUF_TYPES; i++)
        if (gguf_types[i].dtype == dtype && !gguf_types[i].blocks)
            return &gguf_types[i];
    return NULL;
}

const struct gguf_type *gguf_type_of_blocks(enum file_blocks blocks)
{
    for (int i = 0; i < GGUF_TYPES; i++)
        if (gguf_types[i].blocks == blocks && blocks)
            return &gguf_types[i];
    return NULL;
}

struct gguf_reader { kl_file *f; size_t at; };

static bool gguf_number(struct gguf_reader *r, unsigned bytes, const char *field, uint64_t *v)
{
    *v = 0;
    if (r->f->size - r->at < bytes)
        return file_bad(r->f, r->at, field, "the file is cut off");
    for (unsigned i = bytes; i--;)
        *v = *v << 8 | r->f->bytes[r->at + i];
    r->at += bytes;
    return true;
}

/* name: a string that may not contain a zero byte. */
static const char *gguf_string(struct gguf_reader *r, const char *field, bool name)
{
    uint64_t n;
    if (!gguf_number(r, 8, field, &n))
        return NULL;
    if (n > r->f->size - r->at)
        return file_bad(r->f, r->at - 8, field, "a text of %" PRIu64 " bytes: the file is cut off", n), NULL;
    if (name && n && memchr(r->f->bytes + r->at, 0, n))
        return file_bad(r->f, r->at, field, "a zero byte"), NULL;
    char *s = file_string(r->f, r->f->bytes + r->at, (size_t)n);
    r->at += (size_t)n;
    return s;
}

/* ---- metadata ---- */

static bool read_values(struct gguf_reader *r, struct file_value *v, uint64_t type, uint64_t n)
{
    const char *key = v->is.key;
    size_t left = r->f->size - r->at, size = type == GGUF_STRING ? 8 : kl_dtype_size(gguf_value_dtype[type]);
    if (n > left / size)
        return file_bad(r->f, r->at, key, "%" PRIu64 " values: the file is cut off", n);
    v->is.dtype = gguf_value_dtype[type];
    v->is.count = (int64_t)n;
    v->numbers = r->f->bytes + r->at;
    if (type != GGUF_STRING) {
        for (uint64_t i = 0; type == 7 && i < n; i++)
            if (v->numbers[i] > 1)
                return file_bad(r->f, r->at + i, key, "a bool is %u, neither 0 nor 1", v->numbers[i]);
        r->at += (size_t)n * size;
        return true;
    }
    if (!(v->text = file_memory(r->f, (size_t)n * sizeof *v->text + 1)))
        return false;
    const char **text = v->text;
    for (uint64_t i = 0; i < n; i++)
        if (!(text[i] = gguf_string(r, key, false)))
            return false;
    return true;
}

static bool read_pair(struct gguf_reader *r)
{
    struct file_value v = {.is.key = gguf_string(r, "key", true)};
    uint64_t type, n = 1;
    if (!v.is.key || !gguf_number(r, 4, v.is.key, &type))
        return false;
    if (type == GGUF_ARRAY) {
        v.is.array = true;
        if (!gguf_number(r, 4, v.is.key, &type))
            return false;
        if (type == GGUF_ARRAY)
            return file_bad(r->f, r->at - 4, v.is.key, "an array of arrays, which Kiln does not read");
        if (type < GGUF_VALUE_TYPES && !gguf_number(r, 8, v.is.key, &n))
            return false;
    }
    if (type >= GGUF_VALUE_TYPES)
        return file_bad(r->f, r->at - 4, v.is.key, "values of the unknown type %" PRIu64, type);
    if (!read_values(r, &v, type, n))
        return false;
    struct file_value *own = file_value_add(r->f);
    if (own)
        *own = v;
    return own != NULL;
}

/* ---- tensors ---- */

/* Adds a tensor whose type is none of the list: its elements are all bytes up to the next tensor, which place_tensors
 * finds.  Other tensors of the file can be read. */
static bool unknown_type(kl_file *f, struct file_entry *e, uint64_t type, uint64_t offset)
{
    char text[40];
    int n = snprintf(text, sizeof text, "type %" PRIu64, type);
    e->is.type = file_string(f, text, (size_t)n);
    e->is.dtype = KL_DTYPE_COUNT;
    e->is.offset = (size_t)offset;
    e->is.bytes = GGUF_TO_NEXT;
    struct file_entry *own = e->is.type ? file_entry_add(f) : NULL;
    if (own)
        *own = *e;
    return own != NULL;
}

static bool read_info(struct gguf_reader *r)
{
    struct file_entry e = {.is.name = gguf_string(r, "name", true)};
    uint64_t rank, d, type, offset;
    int64_t count;
    size_t start = r->at;
    if (!e.is.name || !gguf_number(r, 4, e.is.name, &rank))
        return false;
    if (rank > KL_MAX_RANK)
        return file_bad(r->f, start, "n_dims", "\"%.200s\" has %" PRIu64 " dimensions; %d is the most", e.is.name,
                        rank, KL_MAX_RANK);
    e.is.rank = (int)rank;
    for (int k = e.is.rank; k--;) { /* the file has the innermost dimension first */
        if (!gguf_number(r, 8, "dims", &d))
            return false;
        if (d > INT64_MAX / 16)
            return file_bad(r->f, r->at - 8, "dims", "\"%.200s\" is too large", e.is.name);
        e.is.dims[k] = (int64_t)d;
    }
    if (!gguf_number(r, 4, "type", &type) || !gguf_number(r, 8, "offset", &offset))
        return false;
    const struct gguf_type *t = gguf_type_numbered(type);
    if (!t)
        return unknown_type(r->f, &e, type, offset);
    e.is.type = t->name;
    e.is.dtype = t->dtype;
    e.blocks = t->blocks;
    if (!dims_bytes(e.is.rank, e.is.dims, 8, &count, &e.is.bytes))
        return file_bad(r->f, start, "dims", "\"%.200s\" is too large", e.is.name);
    if ((e.is.rank ? e.is.dims[e.is.rank - 1] : 1) % t->elements)
        return file_bad(r->f, start, "dims", "\"%.200s\" is %s, whose blocks of %u do not divide its rows", e.is.name,
                        t->name, t->elements);
    e.is.bytes = (size_t)count / t->elements * t->bytes;
    e.is.offset = (size_t)offset; /* relative to the start of the elements; the start is added when it is known */
    struct file_entry *own = file_entry_add(r->f);
    if (own)
        *own = e;
    return own != NULL;
}

/* Bytes from an offset to the next tensor's, or to the end of the file; data: the start of the elements. */
static size_t bytes_to_next(const kl_file *f, size_t offset, size_t data)
{
    size_t end = data < f->size ? f->size - data : 0;
    for (uint32_t i = 0; i < f->n; i++)
        if (f->entry[i].is.offset > offset && f->entry[i].is.offset < end)
            end = f->entry[i].is.offset;
    return end > offset ? end - offset : 0;
}

static bool place_tensors(kl_file *f, size_t header)
{
    int64_t key = kl_file_meta_find(f, "general.alignment");
    uint64_t align = GGUF_ALIGNMENT;
    if (key >= 0) {
        align = (uint64_t)kl_file_meta_i64(f, (uint32_t)key, 0);
        if (f->meta[key].is.dtype != KL_U32 || !align || align & (align - 1))
            return file_bad(f, header, "general.alignment", "%" PRIu64 " is no power of two", align);
    }
    size_t data = (header + align - 1) / align * align;
    for (uint32_t i = 0; i < f->n; i++)
        if (f->entry[i].is.bytes == GGUF_TO_NEXT)
            f->entry[i].is.bytes = bytes_to_next(f, f->entry[i].is.offset, data);
    for (uint32_t i = 0; i < f->n; i++) {
        kl_file_entry *e = &f->entry[i].is;
        if (e->offset % align)
            return file_bad(f, header, "offset", "\"%.200s\" is at %zu, no multiple of %" PRIu64, e->name, e->offset,
                            align);
        if (e->bytes && (data > f->size || e->offset > f->size - data || e->bytes > f->size - data - e->offset))
            return file_bad(f, f->size, "offset", "\"%.200s\" takes %zu bytes from byte %zu on: the file is cut off",
                            e->name, e->bytes, e->offset);
        e->offset = e->bytes ? e->offset + data : data < f->size ? data : f->size;
        f->entry[i].data = f->bytes + e->offset;
    }
    return true;
}

bool gguf_read(kl_file *f)
{
    struct gguf_reader r = {f, 4};
    uint64_t version, tensors, pairs;
    if (!gguf_number(&r, 4, "version", &version))
        return false;
    if (version != 2 && version != 3)
        return file_bad(f, 4, "version", "%" PRIu64 " is %s", version,
                        version > UINT16_MAX ? "that of a big-endian file" : "neither 2 nor 3");
    if (!gguf_number(&r, 8, "tensor_count", &tensors) || !gguf_number(&r, 8, "metadata_kv_count", &pairs))
        return false;
    for (uint64_t i = 0; i < pairs; i++)
        if (!read_pair(&r))
            return false;
    for (uint64_t i = 0; i < tensors; i++)
        if (!read_info(&r))
            return false;
    return place_tensors(f, r.at) && gguf_read_parts(f);
}
