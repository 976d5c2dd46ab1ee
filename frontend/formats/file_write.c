/* Writes files of tensors: what each format takes, and the elements of items. */
#include "tensor_file.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const void *item_data(struct file_out *o, const struct file_item *item, void **own)
{
    static const char nothing[8];
    *own = NULL;
    if (o->why.code)
        return NULL;
    if (!item->tensor.id)
        return item->data ? item->data : nothing;
    *own = malloc(item->bytes + 1);
    if (!*own) {
        file_fails(&o->why, KL_ERR_MEMORY, "%.250s: out of memory: \"%.200s\"", o->path, item->name);
    } else if (kl_read_at(NULL, item->tensor, *own, item->bytes) != KL_OK) {
        file_fails(&o->why, kl_last_error_code(), "%.250s: \"%.200s\": %.400s", o->path, item->name, kl_last_error());
        free(*own);
        *own = NULL;
    }
    return *own;
}

/* Describes one tensor that is to be written; why: what is wrong with it. */
static bool item_known(const char *path, const kl_file_item *from, struct file_item *to, struct file_error *why)
{
    int64_t count;
    *to = (struct file_item){.name = from->name ? from->name : "", .tensor = from->tensor, .dtype = from->dtype,
                             .rank = from->rank, .data = from->data};
    kl_tensor plain = kl_none;
    if (from->tensor.id) {
        if (*kl_layer_name(from->tensor)) /* in a layer the tensor that it stands for may have another shape */
            plain = kl_dense_at(NULL, from->tensor);
        kl_tensor t = plain.id ? plain : from->tensor;
        if (kl_check(t) != KL_OK)
            return file_fails(why, kl_check(t), "%.250s: \"%.200s\": %.400s", path, to->name, kl_last_error());
        to->rank = kl_shape(t, to->dims);
        to->dtype = kl_dtype_of(t);
        kl_release(plain);
    } else if (from->rank >= 0 && from->rank <= KL_MAX_RANK && (!from->rank || from->dims)) {
        if (from->rank)
            memcpy(to->dims, from->dims, (size_t)from->rank * sizeof *to->dims);
    } else {
        to->rank = -1;
    }
    if ((unsigned)to->dtype >= KL_DTYPE_COUNT || to->rank < 0 ||
        !dims_bytes(to->rank, to->dims, kl_dtype_size(to->dtype), &count, &to->bytes) ||
        (to->bytes && !to->tensor.id && !to->data))
        return file_fails(why, KL_ERR_ARGUMENT, "%.250s: \"%.200s\" is neither a tensor nor an array", path, to->name);
    return true;
}

static bool items_known(const char *path, uint32_t n, const kl_file_item *items, struct file_item *to,
                        struct file_error *why)
{
    struct file_name *name = malloc(((size_t)n + 1) * sizeof *name);
    bool ok = name || file_fails(why, KL_ERR_MEMORY, "%.250s: out of memory", path);
    for (uint32_t i = 0; ok && i < n; i++) {
        ok = item_known(path, &items[i], &to[i], why);
        name[i] = (struct file_name){to[i].name, i};
    }
    const struct file_name *twice = ok ? names_sort(name, n) : NULL;
    if (twice)
        ok = file_fails(why, KL_ERR_ARGUMENT, "%.250s: two items are called \"%.200s\"", path, twice->name);
    free(name);
    return ok;
}

static bool format_writes(const char *path, kl_file_format format, uint32_t n, uint32_t nmeta, struct file_error *why)
{
    if (format == KL_FILE_SAFETENSORS)
        return true;
    if (format != KL_FILE_NPY && format != KL_FILE_NPZ)
        return file_fails(why, KL_ERR_ARGUMENT, "%.250s: Kiln does not write %s", path, kl_file_format_name(format));
    if (format == KL_FILE_NPY && n != 1)
        return file_fails(why, KL_ERR_ARGUMENT, "%.250s: a .npy file has one array, not %u", path, n);
    return !nmeta || file_fails(why, KL_ERR_ARGUMENT, "%.250s: %s has no metadata", path, kl_file_format_name(format));
}

kl_status kl_file_write(const char *path, kl_file_format format, int64_t number,
                        const kl_file_item *items, int64_t pairs, const kl_file_pair *meta)
{
    if (number < 0 || number > INT32_MAX || pairs < 0 || pairs > INT32_MAX)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "file_write: %s is %" PRId64 "; it must be 0 to %d",
                        number < 0 || number > INT32_MAX ? "n" : "nmeta",
                        number < 0 || number > INT32_MAX ? number : pairs, INT32_MAX);
    uint32_t n = (uint32_t)number, nmeta = (uint32_t)pairs;
    if (!path || (n && !items) || (nmeta && !meta))
        return kl_fail(KL_ERR_ARGUMENT, "file_write: no path, or no items");
    struct file_out o = {.fd = -1};
    struct file_item *known = malloc(((size_t)n + 1) * sizeof *known);
    bool ok = known || file_fails(&o.why, KL_ERR_MEMORY, "%.250s: out of memory", path);
    ok = ok && format_writes(path, format, n, nmeta, &o.why) && items_known(path, n, items, known, &o.why);
    if (ok && format == KL_FILE_SAFETENSORS)
        ok = safetensors_takes(path, known, n, meta, nmeta, &o.why);
    if (ok) {
        bool opened = out_open(&o, path);
        if (opened && format == KL_FILE_NPY)
            npy_write(&o, known);
        else if (opened && format == KL_FILE_NPZ)
            npz_write(&o, known, n);
        else if (opened)
            safetensors_write(&o, known, n, meta, nmeta);
        ok = out_close(&o, opened);
    }
    free(known);
    return ok ? KL_OK : kl_fail(o.why.code, o.why.text);
}
