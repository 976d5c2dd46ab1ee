/* Writes files of tensors: what each format takes, and the elements of items. */
#include "frontend/formats/gguf/gguf.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- elements ---- */

static float plain_float(kl_dtype dtype, const uint8_t *p)
{
    uint32_t bits;
    float f;
    double d;
    switch (dtype) {
    case KL_F16: return blocks_half(p);
    case KL_BF16:
        bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
        memcpy(&f, &bits, sizeof f);
        return f;
    case KL_F64:
        memcpy(&d, p, sizeof d);
        return (float)d;
    default:
        memcpy(&f, p, sizeof f);
        return f;
    }
}

void item_floats(const struct file_item *item, const void *data, size_t first, size_t n, float *to)
{
    const uint8_t *p = data;
    if (item->blocks) {
        const struct blocks_kind *kind = blocks_kind_of(item->blocks);
        blocks_decode(item->blocks, n / kind->elements, p + first / kind->elements * kind->bytes, to);
        return;
    }
    size_t size = kl_dtype_size(item->dtype);
    for (size_t i = 0; i < n; i++)
        to[i] = plain_float(item->dtype, p + (first + i) * size);
}

const void *item_data(struct file_out *o, const struct file_item *item, void **own)
{
    static const char nothing[8];
    *own = NULL;
    if (o->why.code)
        return NULL;
    if (item->options->progress)
        item->options->progress(item->options->ctx, item->name);
    if (!item->tensor.id && !item->blocks)
        return item->data ? item->data : nothing;
    *own = malloc(item->bytes + 1);
    if (!*own) {
        file_fails(&o->why, KL_ERR_MEMORY, "%.250s: out of memory: \"%.200s\"", o->path, item->name);
    } else if (item->blocks) {
        item_floats(item, item->data, 0, (size_t)item->count, *own);
    } else if (kl_read_at(NULL, item->tensor, *own, item->bytes) != KL_OK) {
        file_fails(&o->why, kl_last_error_code(), "%.250s: \"%.200s\": %.400s", o->path, item->name, kl_last_error());
        free(*own);
        *own = NULL;
    }
    return *own;
}

/* ---- items ---- */

/* The shape and dtype of a tensor, of one that is not stored dense those of its dense values. */
static bool item_of_tensor(const char *path, struct file_item *to, struct file_error *why)
{
    kl_tensor plain = kl_none;
    if (*kl_layer_name(to->tensor)) /* in a layer the tensor that it stands for may have another shape */
        plain = kl_dense_at(NULL, to->tensor);
    kl_tensor t = plain.id ? plain : to->tensor;
    if (kl_check(t) != KL_OK)
        return file_fails(why, kl_check(t), "%.250s: \"%.200s\": %.400s", path, to->name, kl_last_error());
    to->rank = kl_shape(t, to->dims);
    to->dtype = kl_dtype_of(t);
    kl_release(plain);
    return true;
}

/* A tensor of an open file: its elements are the file's. */
static bool item_of_file(const char *path, const kl_file_item *from, struct file_item *to, struct file_error *why)
{
    kl_file *f = from->file;
    struct file_entry *e = file_entry_named(&f, from->from ? from->from : to->name);
    if (!e || !file_entry_is_read(f, e))
        return file_fails(why, kl_last_error_code(), "%.250s: \"%.200s\": %.400s", path, to->name, kl_last_error());
    if (e->is.dtype == KL_DTYPE_COUNT || e->complex)
        return file_fails(why, KL_ERR_TYPE, "%.250s: \"%.200s\" has elements of %.40s, which Kiln does not write", path,
                          to->name, e->is.type);
    to->rank = e->is.rank;
    memcpy(to->dims, e->is.dims, sizeof to->dims);
    to->dtype = e->is.dtype;
    to->blocks = e->blocks;
    to->data = e->data;
    return true;
}

/* Describes one tensor that is to be written; why: what is wrong with it. */
static bool item_known(const char *path, const kl_file_item *from, const kl_file_write_options *options,
                       struct file_item *to, struct file_error *why)
{
    *to = (struct file_item){.name = from->name ? from->name : "", .tensor = from->tensor, .dtype = from->dtype,
                             .rank = from->rank, .data = from->data, .type_name = from->type, .options = options};
    if (from->file) {
        to->tensor = kl_none;
        if (!item_of_file(path, from, to, why))
            return false;
    } else if (from->tensor.id) {
        if (!item_of_tensor(path, to, why))
            return false;
    } else if (from->rank >= 0 && from->rank <= KL_MAX_RANK && (!from->rank || from->dims)) {
        if (from->rank)
            memcpy(to->dims, from->dims, (size_t)from->rank * sizeof *to->dims);
    } else {
        to->rank = -1;
    }
    if ((unsigned)to->dtype >= KL_DTYPE_COUNT || to->rank < 0 ||
        !dims_bytes(to->rank, to->dims, kl_dtype_size(to->dtype), &to->count, &to->bytes) ||
        (to->bytes && !to->tensor.id && !to->data))
        return file_fails(why, KL_ERR_ARGUMENT, "%.250s: \"%.200s\" is neither a tensor nor an array", path, to->name);
    return true;
}

static bool items_known(const char *path, uint32_t n, const kl_file_item *items, const kl_file_write_options *options,
                        struct file_item *to, struct file_error *why)
{
    struct file_name *name = malloc(((size_t)n + 1) * sizeof *name);
    bool ok = name || file_fails(why, KL_ERR_MEMORY, "%.250s: out of memory", path);
    for (uint32_t i = 0; ok && i < n; i++) {
        ok = item_known(path, &items[i], options, &to[i], why);
        name[i] = (struct file_name){to[i].name, i};
    }
    const struct file_name *twice = ok ? names_sort(name, n) : NULL;
    if (twice)
        ok = file_fails(why, KL_ERR_ARGUMENT, "%.250s: two items are called \"%.200s\"", path, twice->name);
    free(name);
    return ok;
}

static bool format_writes(const char *path, kl_file_format format, uint32_t n, const kl_file_item *items,
                          const kl_file_write_options *options, struct file_error *why)
{
    const char *name = kl_file_format_name(format);
    if ((unsigned)format >= KL_FILE_FORMATS)
        return file_fails(why, KL_ERR_ARGUMENT, "%.250s: Kiln does not write %s", path, name);
    for (uint32_t i = 0; i < n && format != KL_FILE_GGUF; i++)
        if (items[i].type)
            return file_fails(why, KL_ERR_ARGUMENT, "%.250s: \"%.200s\" has type \"%.40s\", which is for GGUF and not "
                              "for %s", path, items[i].name ? items[i].name : "", items[i].type, name);
    if (format == KL_FILE_NPY && n != 1)
        return file_fails(why, KL_ERR_ARGUMENT, "%.250s: a .npy file has one array, not %u", path, n);
    return !options->nmeta || format == KL_FILE_SAFETENSORS || format == KL_FILE_GGUF ||
           file_fails(why, KL_ERR_ARGUMENT, "%.250s: %s has no metadata", path, name);
}

static kl_status write_fails_count(const char *what, int64_t n)
{
    return kl_failf(NULL, KL_ERR_ARGUMENT, "file_write: %s is %" PRId64 "; it must be 0 to %d", what, n, INT32_MAX);
}

kl_status kl_file_write_with(const char *path, kl_file_format format, int64_t number, const kl_file_item *items,
                             const kl_file_write_options *options)
{
    static const kl_file_write_options none;
    options = options ? options : &none;
    if (number < 0 || number > INT32_MAX)
        return write_fails_count("n", number);
    if (options->nmeta < 0 || options->nmeta > INT32_MAX)
        return write_fails_count("nmeta", options->nmeta);
    uint32_t n = (uint32_t)number;
    if (!path || (n && !items) || (options->nmeta && !options->meta))
        return kl_fail(KL_ERR_ARGUMENT, "file_write: no path, or no items");
    struct file_out o = {.fd = -1};
    struct file_item *known = malloc(((size_t)n + 1) * sizeof *known);
    bool ok = known || file_fails(&o.why, KL_ERR_MEMORY, "%.250s: out of memory", path);
    ok = ok && format_writes(path, format, n, items, options, &o.why) &&
         items_known(path, n, items, options, known, &o.why);
    if (ok && format == KL_FILE_SAFETENSORS)
        ok = safetensors_takes(path, known, n, options, &o.why);
    if (ok && format == KL_FILE_GGUF)
        ok = gguf_takes(path, known, n, options, &o.why);
    if (ok) {
        bool opened = out_open(&o, path);
        if (opened && format == KL_FILE_NPY)
            npy_write(&o, known);
        else if (opened && format == KL_FILE_NPZ)
            npz_write(&o, known, n);
        else if (opened && format == KL_FILE_GGUF)
            gguf_write(&o, known, n, options);
        else if (opened)
            safetensors_write(&o, known, n, options);
        ok = out_close(&o, opened);
    }
    free(known);
    return ok ? KL_OK : kl_fail(o.why.code, o.why.text);
}

kl_status kl_file_write(const char *path, kl_file_format format, int64_t n, const kl_file_item *items, int64_t nmeta,
                        const kl_file_pair *meta)
{
    if (nmeta < 0 || nmeta > INT32_MAX)
        return write_fails_count("nmeta", nmeta);
    if (nmeta && !meta)
        return kl_fail(KL_ERR_ARGUMENT, "file_write: no path, or no items");
    kl_file_value *value = calloc((size_t)nmeta + 1, sizeof *value);
    if (!value)
        return kl_fail(KL_ERR_MEMORY, "file_write: out of memory");
    for (int64_t i = 0; i < nmeta; i++)
        value[i] = (kl_file_value){.key = meta[i].key, .text = meta[i].value};
    kl_status status = kl_file_write_with(path, format, n, items, &(kl_file_write_options){.nmeta = nmeta,
                                                                                           .meta = value});
    free(value);
    return status;
}
