/* Writing GGUF: counts, metadata as typed keys, the tensors' names, shapes, types and offsets, then the elements, each
 * tensor from a multiple of the alignment on, converted or quantized a piece at a time. */
#include "frontend/formats/json.h"
#include "gguf.h"
#include <kiln/extend.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ggml, which reads these files, has arrays of these sizes. */
enum { GGUF_RANK_MAX = 4, GGUF_NAME_MAX = 63, GGUF_KEY_MAX = 65535, PIECE = 4096 /* elements, whole blocks */ };

/* ---- what can be written ---- */

static bool gguf_is_float(kl_dtype d) { return d == KL_F16 || d == KL_BF16 || d == KL_F32 || d == KL_F64; }

/* Are elements of the item's dtype converted to the type? */
static bool gguf_converts(const struct file_item *item, const struct gguf_type *t)
{
    if (t->blocks)
        return t->blocks == item->blocks || (gguf_is_float(item->dtype) && blocks_are_encoded(t->blocks));
    if (!item->blocks && t->dtype == item->dtype)
        return true;
    return gguf_is_float(item->dtype) && (t->dtype == KL_F32 || t->dtype == KL_F16 || t->dtype == KL_BF16);
}

static bool gguf_find_type(const char *path, struct file_item *item, struct file_error *why)
{
    const struct gguf_type *t = item->type_name ? gguf_type_named(item->type_name) : gguf_type_of_blocks(item->blocks);
    if (!t && !item->type_name)
        t = gguf_type_of_dtype(item->dtype);
    item->type = t;
    if (!t && item->type_name)
        return file_fails(why, KL_ERR_TYPE, "%.250s: \"%.200s\": GGUF has no type \"%.40s\"", path, item->name,
                          item->type_name);
    if (!t)
        return file_fails(why, KL_ERR_TYPE, "%.250s: \"%.200s\": GGUF has no elements of %s", path, item->name,
                          kl_dtype_name(item->dtype));
    return gguf_converts(item, t) ||
           file_fails(why, KL_ERR_TYPE, "%.250s: \"%.200s\": elements of %s cannot be written as %s", path, item->name,
                      item->blocks ? "blocks" : kl_dtype_name(item->dtype), t->name);
}

static bool gguf_takes_item(const char *path, struct file_item *item, struct file_error *why)
{
    size_t length = strlen(item->name);
    if (!length || length > GGUF_NAME_MAX || !utf8_is_valid(item->name))
        return file_fails(why, KL_ERR_ARGUMENT, "%.250s: a tensor of GGUF cannot be called \"%.200s\": a name has 1 to "
                          "%d bytes of UTF-8", path, item->name, GGUF_NAME_MAX);
    if (item->rank > GGUF_RANK_MAX)
        return file_fails(why, KL_ERR_ARGUMENT, "%.250s: \"%.200s\" has %d dimensions; GGUF has at most %d", path,
                          item->name, item->rank, GGUF_RANK_MAX);
    if (!gguf_find_type(path, item, why))
        return false;
    int64_t row = item->rank ? item->dims[item->rank - 1] : 1;
    return !(row % item->type->elements) ||
           file_fails(why, KL_ERR_ARGUMENT, "%.250s: \"%.200s\": blocks of %u elements of %s do not divide rows of "
                      "%" PRId64, path, item->name, item->type->elements, item->type->name, row);
}

/* The number of a value's type. */
static unsigned gguf_value_type(const kl_file_value *v)
{
    unsigned type = GGUF_STRING;
    if (v->text || v->dtype == KL_DTYPE_COUNT)
        return GGUF_STRING;
    for (type = 0; type < GGUF_VALUE_TYPES && gguf_value_dtype[type] != v->dtype;)
        type++;
    return type;
}

static int64_t gguf_value_count(const kl_file_value *v) { return v->text || !v->array ? 1 : v->count; }

static bool gguf_takes_value(const char *path, const kl_file_value *v, int64_t i, struct file_error *why)
{
    if (!v->key || !*v->key || strlen(v->key) > GGUF_KEY_MAX || !utf8_is_valid(v->key))
        return file_fails(why, KL_ERR_ARGUMENT, "%.250s: the key of metadata %" PRId64 " is no text of 1 to %d bytes "
                          "of UTF-8", path, i, GGUF_KEY_MAX);
    if (v->text)
        return true;
    int64_t n = gguf_value_count(v);
    if (n < 0 || (n && !v->data))
        return file_fails(why, KL_ERR_ARGUMENT, "%.250s: metadata \"%.200s\" has no %s", path, v->key,
                          n < 0 ? "count" : "data");
    if (gguf_value_type(v) == GGUF_VALUE_TYPES)
        return file_fails(why, KL_ERR_TYPE, "%.250s: metadata \"%.200s\": GGUF has no values of %s", path, v->key,
                          kl_dtype_name(v->dtype));
    for (int64_t k = 0; v->dtype == KL_DTYPE_COUNT && k < n; k++)
        if (!((const char *const *)v->data)[k])
            return file_fails(why, KL_ERR_ARGUMENT, "%.250s: metadata \"%.200s\": text %" PRId64 " is NULL", path,
                              v->key, k);
    for (int64_t k = 0; v->dtype == KL_BOOL && k < n; k++)
        if (((const uint8_t *)v->data)[k] > 1)
            return file_fails(why, KL_ERR_ARGUMENT, "%.250s: metadata \"%.200s\": bool %" PRId64 " is neither 0 nor 1",
                              path, v->key, k);
    return true;
}

/* The alignment that the metadata has; 0: it is none. */
static uint32_t gguf_alignment(const kl_file_write_options *options)
{
    uint32_t align = GGUF_ALIGNMENT;
    for (int64_t i = 0; i < options->nmeta; i++) {
        const kl_file_value *v = &options->meta[i];
        if (strcmp(v->key, "general.alignment"))
            continue;
        if (v->text || v->array || v->dtype != KL_U32)
            return 0;
        memcpy(&align, v->data, sizeof align);
    }
    return align < 8 || align & (align - 1) ? 0 : align;
}

static bool gguf_takes_meta(const char *path, const kl_file_write_options *options, struct file_error *why)
{
    struct file_name *name = malloc(((size_t)options->nmeta + 1) * sizeof *name);
    bool ok = name || file_fails(why, KL_ERR_MEMORY, "%.250s: out of memory", path);
    for (int64_t i = 0; ok && i < options->nmeta; i++) {
        ok = gguf_takes_value(path, &options->meta[i], i, why);
        name[i] = (struct file_name){options->meta[i].key, (uint32_t)i};
    }
    const struct file_name *twice = ok ? names_sort(name, (uint32_t)options->nmeta) : NULL;
    if (twice)
        ok = file_fails(why, KL_ERR_ARGUMENT, "%.250s: two metadata are called \"%.200s\"", path, twice->name);
    free(name);
    return ok && (gguf_alignment(options) ||
                  file_fails(why, KL_ERR_ARGUMENT, "%.250s: metadata \"general.alignment\" is no u32 that is a power "
                             "of two from 8 on", path));
}

bool gguf_takes(const char *path, struct file_item *items, uint32_t n, const kl_file_write_options *options,
                struct file_error *why)
{
    for (uint32_t i = 0; i < n; i++)
        if (!gguf_takes_item(path, &items[i], why))
            return false;
    return gguf_takes_meta(path, options, why);
}

/* ---- the header ---- */

static void gguf_put_number(struct file_out *o, unsigned bytes, uint64_t v)
{
    uint8_t p[8];
    for (unsigned i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> 8 * i);
    out_append(o, p, bytes);
}

static void gguf_put_text(struct file_out *o, const char *s)
{
    size_t n = strlen(s);
    gguf_put_number(o, 8, n);
    out_append(o, s, n);
}

static void gguf_put_value(struct file_out *o, const kl_file_value *v)
{
    unsigned type = gguf_value_type(v);
    int64_t n = gguf_value_count(v);
    gguf_put_text(o, v->key);
    if (v->array && !v->text) {
        gguf_put_number(o, 4, GGUF_ARRAY);
        gguf_put_number(o, 4, type);
        gguf_put_number(o, 8, (uint64_t)n);
    } else {
        gguf_put_number(o, 4, type);
    }
    if (v->text)
        gguf_put_text(o, v->text);
    else if (type != GGUF_STRING)
        out_append(o, v->data, (size_t)n * kl_dtype_size(v->dtype));
    for (int64_t k = 0; !v->text && type == GGUF_STRING && k < n; k++)
        gguf_put_text(o, ((const char *const *)v->data)[k]);
}

static size_t gguf_item_bytes(const struct file_item *item)
{
    return (size_t)item->count / item->type->elements * item->type->bytes;
}

static size_t gguf_aligned(size_t at, uint32_t align) { return (at + align - 1) / align * align; }

static void gguf_put_infos(struct file_out *o, const struct file_item *items, uint32_t n, uint32_t align)
{
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        gguf_put_text(o, items[i].name);
        gguf_put_number(o, 4, (uint64_t)items[i].rank);
        for (int k = items[i].rank; k--;) /* the innermost dimension first */
            gguf_put_number(o, 8, (uint64_t)items[i].dims[k]);
        gguf_put_number(o, 4, items[i].type->number);
        gguf_put_number(o, 8, at);
        at = gguf_aligned(at + gguf_item_bytes(&items[i]), align);
    }
}

static void gguf_pad(struct file_out *o, uint32_t align)
{
    static const uint8_t zeros[64];
    for (size_t left = gguf_aligned(o->at, align) - o->at; left;) {
        size_t n = left < sizeof zeros ? left : sizeof zeros;
        out_append(o, zeros, n);
        left -= n;
    }
}

/* ---- elements ---- */

static bool gguf_cannot_hold(struct file_out *o, const struct file_item *item, size_t i, float x)
{
    char number[40];
    kl_format(number, sizeof number, "%.9g", (double)x);
    return file_fails(&o->why, KL_ERR_ARGUMENT, "%.250s: \"%.200s\": element %zu is %s, which %s cannot hold", o->path,
                      item->name, i, number, item->type->name);
}

/* Numbers as f32, f16 or bf16.  An infinity or NaN stays one, but nothing becomes one. */
static bool gguf_round(struct file_out *o, const struct file_item *item, size_t first, size_t n, const float *x,
                       uint8_t *to)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        if (item->type->dtype == KL_F16) {
            blocks_put_half(to + 2 * i, x[i]);
            if (isfinite(x[i]) && (to[2 * i + 1] & 0x7c) == 0x7c)
                return gguf_cannot_hold(o, item, first + i, x[i]);
        } else if (item->type->dtype == KL_BF16) {
            u = isnan(x[i]) ? u | 1U << 22 : u + 0x7fff + (u >> 16 & 1);
            to[2 * i] = (uint8_t)(u >> 16);
            to[2 * i + 1] = (uint8_t)(u >> 24);
            if (isfinite(x[i]) && (u & 0x7f800000) == 0x7f800000)
                return gguf_cannot_hold(o, item, first + i, x[i]);
        } else {
            memcpy(to + 4 * i, &u, sizeof u);
        }
    }
    return true;
}

/* Blocks of numbers, which have to be finite and so small that the blocks' scales are. */
static bool gguf_quantize(struct file_out *o, const struct file_item *item, size_t first, size_t n, const float *x,
                          uint8_t *to)
{
    float largest = 0;
    const struct gguf_type *t = item->type;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i]) || fabsf(x[i]) > 1e30F) /* far above all scales: sums of encoders do not overflow */
            return gguf_cannot_hold(o, item, first + i, x[i]);
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    }
    blocks_encode(t->blocks, n / t->elements, x, to);
    if (largest <= 60000)
        return true;
    float value[256];
    for (size_t i = 0; i < n; i += t->elements) {
        blocks_decode(t->blocks, 1, to + i / t->elements * t->bytes, value);
        for (size_t k = 0; k < t->elements; k++)
            if (!isfinite(value[k]))
                return gguf_cannot_hold(o, item, first + i + k, x[i + k]);
    }
    return true;
}

static void gguf_put_converted(struct file_out *o, const struct file_item *item, const void *data)
{
    float x[PIECE];
    uint8_t to[PIECE * sizeof *x];
    const struct gguf_type *t = item->type;
    for (size_t at = 0, n, all = (size_t)item->count; at < all && !o->why.code; at += n) {
        n = all - at < PIECE ? all - at : PIECE;
        item_floats(item, data, at, n, x);
        if (!(t->blocks ? gguf_quantize : gguf_round)(o, item, at, n, x, to))
            return;
        out_append(o, to, n / t->elements * t->bytes);
    }
}

static void gguf_put_elements(struct file_out *o, const struct file_item *item)
{
    void *own = NULL;
    const void *data = item->data;
    bool as_they_are = item->type->blocks == item->blocks && item->type->dtype == item->dtype;
    if (!item->blocks)
        data = item_data(o, item, &own);
    else if (item->options->progress)
        item->options->progress(item->options->ctx, item->name);
    if (data && as_they_are)
        out_append(o, data, gguf_item_bytes(item));
    else if (data)
        gguf_put_converted(o, item, data);
    free(own);
}

void gguf_write(struct file_out *o, const struct file_item *items, uint32_t n, const kl_file_write_options *options)
{
    uint32_t align = gguf_alignment(options);
    out_append(o, "GGUF", 4);
    gguf_put_number(o, 4, GGUF_VERSION);
    gguf_put_number(o, 8, n);
    gguf_put_number(o, 8, (uint64_t)options->nmeta);
    for (int64_t i = 0; i < options->nmeta; i++)
        gguf_put_value(o, &options->meta[i]);
    gguf_put_infos(o, items, n, align);
    gguf_pad(o, align);
    for (uint32_t i = 0; i < n && !o->why.code; i++) {
        gguf_put_elements(o, &items[i]);
        gguf_pad(o, align);
    }
}
