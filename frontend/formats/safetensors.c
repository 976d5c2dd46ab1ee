/* safetensors: the header's length in 8 bytes; the header as JSON, with names, types, shapes and offsets; then the
 * elements, one tensor after another. */
#include "json.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 8, HEADER_MAX = 100000000, ALIGNED = 64 };

/* Names of element types.  For those that Kiln does not have, only the size in bits is known. */
static const struct safe_type {
    const char *name;
    kl_dtype dtype;
    unsigned bits;
    enum file_blocks blocks;
    bool complex;
} safe_types[] = {
#define PLAIN(name, dtype, bits) {name, dtype, bits, BLOCKS_NONE, false}
    PLAIN("BOOL", KL_BOOL, 8), PLAIN("U8", KL_U8, 8), PLAIN("U16", KL_U16, 16), PLAIN("U32", KL_U32, 32),
    PLAIN("U64", KL_U64, 64), PLAIN("I8", KL_I8, 8), PLAIN("I16", KL_I16, 16), PLAIN("I32", KL_I32, 32),
    PLAIN("I64", KL_I64, 64), PLAIN("F16", KL_F16, 16), PLAIN("BF16", KL_BF16, 16), PLAIN("F32", KL_F32, 32),
    PLAIN("F64", KL_F64, 64), PLAIN("F4", KL_DTYPE_COUNT, 4), PLAIN("F6_E2M3", KL_DTYPE_COUNT, 6),
    PLAIN("F6_E3M2", KL_DTYPE_COUNT, 6),
#undef PLAIN
    {"F8_E4M3", KL_F32, 8, BLOCKS_F8_E4M3, false}, {"F8_E5M2", KL_F32, 8, BLOCKS_F8_E5M2, false},
    {"F8_E8M0", KL_F32, 8, BLOCKS_F8_E8M0, false}, {"C64", KL_F32, 64, BLOCKS_NONE, true},
};
enum { SAFE_TYPES = sizeof safe_types / sizeof *safe_types };

/* ---- reading ---- */

static bool read_metadata(struct json *j)
{
    if (!json_expect(j, '{', "__metadata__"))
        return false;
    for (bool first = true; !json_is(j, '}'); first = false) {
        struct file_value *v;
        const char **text = file_memory(j->f, sizeof *text);
        if (!text || (!first && !json_expect(j, ',', "__metadata__")) || !(v = file_value_add(j->f)))
            return false;
        v->is = (kl_file_meta){json_string(j, "__metadata__"), false, 1, KL_DTYPE_COUNT};
        v->text = text;
        if (!v->is.key || !json_expect(j, ':', "__metadata__") || !(*text = json_string(j, v->is.key)))
            return false;
    }
    return true;
}

static bool read_shape(struct json *j, kl_file_entry *e)
{
    uint64_t d;
    if (!json_expect(j, '[', "shape"))
        return false;
    for (e->rank = 0; !json_is(j, ']'); e->rank++) {
        if (e->rank && !json_expect(j, ',', "shape"))
            return false;
        if (e->rank == KL_MAX_RANK)
            return file_bad(j->f, json_at(j), "shape", "\"%.200s\" has more than %d dimensions", e->name, KL_MAX_RANK);
        if (!json_number(j, "shape", &d))
            return false;
        e->dims[e->rank] = (int64_t)d;
    }
    return true;
}

static bool safe_read_type(struct json *j, struct file_entry *e, unsigned *bits)
{
    size_t at = json_at(j);
    if (!(e->is.type = json_string(j, "dtype")))
        return false;
    for (int i = 0; i < SAFE_TYPES; i++)
        if (!strcmp(e->is.type, safe_types[i].name)) {
            e->is.dtype = safe_types[i].dtype;
            e->blocks = safe_types[i].blocks;
            e->complex = safe_types[i].complex;
            *bits = safe_types[i].bits;
            return true;
        }
    return file_bad(j->f, at, "dtype", "\"%.200s\" has elements of the unknown type \"%.40s\"", e->is.name,
                    e->is.type);
}

/* Reads the object after a tensor's name. */
static bool read_tensor(struct json *j, struct file_entry *entry, size_t data)
{
    kl_file_entry *e = &entry->is;
    enum { TYPE = 1, SHAPE = 2, PLACE = 4 };
    unsigned have = 0, bits = 0;
    uint64_t from = 0, to = 0;
    size_t at = json_at(j);
    if (!json_expect(j, '{', e->name))
        return false;
    for (bool first = true; !json_is(j, '}'); first = false) {
        if (!first && !json_expect(j, ',', e->name))
            return false;
        size_t here = json_at(j);
        const char *key = json_string(j, e->name);
        if (!key || !json_expect(j, ':', key))
            return false;
        unsigned which = !strcmp(key, "dtype") ? TYPE : !strcmp(key, "shape") ? SHAPE
                         : !strcmp(key, "data_offsets") ? PLACE : 0;
        if (!which || have & which)
            return file_bad(j->f, here, key, "tensor \"%.200s\" has it %s", e->name,
                            which ? "twice" : "beside dtype, shape and data_offsets");
        have |= which;
        if (which == TYPE ? !safe_read_type(j, entry, &bits)
            : which == SHAPE ? !read_shape(j, e)
                             : !json_expect(j, '[', key) || !json_number(j, key, &from) || !json_expect(j, ',', key) ||
                                   !json_number(j, key, &to) || !json_expect(j, ']', key))
            return false;
    }
    int64_t count;
    if (have != (TYPE | SHAPE | PLACE))
        return file_bad(j->f, at, e->name, "the tensor lacks dtype, shape or data_offsets");
    if (!dims_bytes(e->rank, e->dims, 8, &count, &e->bytes))
        return file_bad(j->f, at, "shape", "\"%.200s\" is too large", e->name);
    e->bytes = (size_t)count / 8 * bits + (size_t)count % 8 * bits / 8;
    if (to < from || to - from != e->bytes)
        return file_bad(j->f, at, "data_offsets", "\"%.200s\" has %" PRIu64 " to %" PRIu64 " where its shape needs %zu "
                        "bytes", e->name, from, to, e->bytes);
    if (to > j->f->size - data)
        return file_bad(j->f, at, "data_offsets", "\"%.200s\" goes to %" PRIu64 " of %zu bytes: the file is cut off",
                        e->name, to, j->f->size - data);
    e->offset = data + (size_t)from;
    return true;
}

static int place_order(const void *a, const void *b)
{
    const kl_file_entry *x = &(*(struct file_entry *const *)a)->is, *y = &(*(struct file_entry *const *)b)->is;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Checks that the tensors follow each other without gaps, and that nothing follows the last one. */
static bool check_places(kl_file *f, size_t data)
{
    struct file_entry **by = malloc(((size_t)f->n + 1) * sizeof *by);
    bool ok = by || file_no_memory(f);
    for (uint32_t i = 0; ok && i < f->n; i++)
        by[i] = &f->entry[i];
    if (ok && f->n)
        qsort(by, f->n, sizeof *by, place_order);
    for (uint32_t i = 0; ok && i < f->n; i++) {
        const kl_file_entry *e = &by[i]->is;
        if (e->offset != data)
            ok = file_bad(f, e->offset, "data_offsets", "\"%.200s\" begins %s the end of the tensor before it, %zu",
                          e->name, e->offset < data ? "before" : "after", data);
        data = e->offset + e->bytes;
    }
    free(by);
    return ok && (data == f->size || file_bad(f, data, NULL, "%zu bytes that no tensor has", f->size - data));
}

static uint64_t header_length(const uint8_t *bytes)
{
    uint64_t length = 0;
    for (size_t i = LENGTH; i--;)
        length = length << 8 | bytes[i];
    return length;
}

/* The format has no magic number.  It is recognised by a header length that is not too large and a header that begins
 * like a JSON object.  The first bytes of a zip archive or of GGUF would be a larger length. */
bool safetensors_is(const uint8_t *bytes, size_t n)
{
    return n > LENGTH && bytes[LENGTH] == '{' && header_length(bytes) <= HEADER_MAX;
}

bool safetensors_read(kl_file *f)
{
    uint64_t length = header_length(f->bytes);
    if (length > f->size - LENGTH)
        return file_bad(f, 0, "header length", "%" PRIu64 " bytes of %zu in the file", length, f->size - LENGTH);
    size_t data = LENGTH + (size_t)length;
    struct json j = {f, f->bytes + LENGTH, f->bytes + LENGTH, f->bytes + data};
    bool metadata = false;
    if (!json_expect(&j, '{', NULL))
        return false;
    for (bool first = true; !json_is(&j, '}'); first = false) {
        if (!first && !json_expect(&j, ',', NULL))
            return false;
        size_t at = json_at(&j);
        const char *name = json_string(&j, "name");
        if (!name || !json_expect(&j, ':', name))
            return false;
        if (!strcmp(name, "__metadata__")) {
            if (metadata)
                return file_bad(f, at, name, "it is there twice");
            metadata = true;
            if (!read_metadata(&j))
                return false;
            continue;
        }
        struct file_entry *e = file_entry_add(f);
        if (!e)
            return false;
        e->is.name = name;
        if (!read_tensor(&j, e, data))
            return false;
        e->data = f->bytes + e->is.offset;
    }
    if (!json_end(&j))
        return file_bad(f, json_at(&j), NULL, "something follows the header's object");
    return check_places(f, data);
}

/* ---- writing ---- */

/* The header while it is made. */
struct header { char *s; size_t n, cap; bool failed; };

static void header_put(struct header *h, const char *s, size_t n)
{
    if (h->n + n + 1 > h->cap && !h->failed) {
        size_t cap = 2 * (h->n + n) + 1000;
        char *grown = realloc(h->s, cap);
        h->failed = !grown;
        if (grown) {
            h->s = grown;
            h->cap = cap;
        }
    }
    if (h->failed)
        return;
    memcpy(h->s + h->n, s, n);
    h->n += n;
}

static void header_text(struct header *h, const char *s) { header_put(h, s, strlen(s)); }

static void header_quoted(struct header *h, const char *s)
{
    char escape[8];
    header_text(h, "\"");
    for (; *s; s++) {
        if ((unsigned char)*s < ' ' || *s == '"' || *s == '\\')
            header_put(h, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)*s));
        else
            header_put(h, s, 1);
    }
    header_text(h, "\"");
}

static void header_tensor(struct header *h, const struct file_item *item, size_t at)
{
    char text[80];
    const char *type = "";
    for (int i = 0; i < SAFE_TYPES; i++)
        if (safe_types[i].dtype == item->dtype && !safe_types[i].blocks && !safe_types[i].complex)
            type = safe_types[i].name;
    header_quoted(h, item->name);
    header_text(h, ":{\"dtype\":\"");
    header_text(h, type);
    header_text(h, "\",\"shape\":[");
    for (int k = 0; k < item->rank; k++)
        header_put(h, text, (size_t)snprintf(text, sizeof text, "%s%" PRId64, k ? "," : "", item->dims[k]));
    header_put(h, text, (size_t)snprintf(text, sizeof text, "],\"data_offsets\":[%zu,%zu]}", at, at + item->bytes));
}

bool safetensors_takes(const char *path, const struct file_item *items, uint32_t n,
                       const kl_file_write_options *options, struct file_error *why)
{
    const kl_file_value *meta = options->meta;
    for (uint32_t i = 0; i < n; i++)
        if (!utf8_is_valid(items[i].name) || !strcmp(items[i].name, "__metadata__"))
            return file_fails(why, KL_ERR_ARGUMENT, "%.250s: a tensor of safetensors cannot be called \"%.200s\"", path,
                            items[i].name);
    for (int64_t i = 0; i < options->nmeta; i++)
        if (!meta[i].key || !meta[i].text || !utf8_is_valid(meta[i].key) || !utf8_is_valid(meta[i].text))
            return file_fails(why, KL_ERR_ARGUMENT, "%.250s: metadata %" PRId64 " is no text in UTF-8", path, i);
    return true;
}

/* Tensors with large elements come first, so that all are aligned. */
static int size_order(const void *a, const void *b)
{
    const struct file_item *x = *(const struct file_item *const *)a, *y = *(const struct file_item *const *)b;
    size_t m = kl_dtype_size(x->dtype), n = kl_dtype_size(y->dtype);
    return m != n ? (m > n ? -1 : 1) : x < y ? -1 : x > y;
}

void safetensors_write(struct file_out *o, const struct file_item *items, uint32_t n,
                       const kl_file_write_options *options)
{
    const kl_file_value *meta = options->meta;
    int64_t nmeta = options->nmeta;
    struct header h = {NULL, 0, 0, false};
    const struct file_item **by = malloc(((size_t)n + 1) * sizeof *by);
    size_t at = 0;
    for (uint32_t i = 0; by && i < n; i++)
        by[i] = &items[i];
    if (by && n)
        qsort(by, n, sizeof *by, size_order);
    header_text(&h, "{");
    for (int64_t i = 0; i < nmeta; i++) {
        header_text(&h, i ? "," : "\"__metadata__\":{");
        header_quoted(&h, meta[i].key);
        header_text(&h, ":");
        header_quoted(&h, meta[i].text);
    }
    header_text(&h, nmeta ? n ? "}," : "}" : "");
    for (uint32_t i = 0; by && i < n; i++) {
        header_text(&h, i ? "," : "");
        header_tensor(&h, by[i], at);
        at += by[i]->bytes;
    }
    header_text(&h, "}");
    while ((h.n + LENGTH) % ALIGNED && !h.failed)
        header_text(&h, " ");
    if (!by || h.failed)
        file_fails(&o->why, KL_ERR_MEMORY, "%.250s: out of memory", o->path);
    else if (h.n > HEADER_MAX)
        file_fails(&o->why, KL_ERR_ARGUMENT, "%.250s: names and metadata take %zu bytes of at most %d", o->path, h.n,
                 HEADER_MAX);
    uint8_t length[LENGTH];
    for (int i = 0; i < LENGTH; i++)
        length[i] = (uint8_t)((uint64_t)h.n >> 8 * i);
    out_append(o, length, LENGTH);
    out_append(o, h.s, h.n);
    for (uint32_t i = 0; i < n && !o->why.code; i++) {
        void *own;
        const void *data = item_data(o, by[i], &own);
        if (data)
            out_append(o, data, by[i]->bytes);
        free(own);
    }
    free(by);
    free(h.s);
}
