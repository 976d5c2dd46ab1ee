/* Rows of caches in files: safetensors, whose metadata says of what cache and model it is.  A file is checked whole
 * before the cache changes, and the cache changes in one trace. */
#include "cache.h"
#include <stdio.h>
#include <stdlib.h>

enum { NAME = 32, TEXT = 24 };

/* A value of the metadata, and the number of the cache that it has to be. */
enum { FORMAT, LAYERS, KV_HEADS, HEAD_WIDTH, TYPE, MODEL, POSITIONS, CHECK, FIELDS };
static const char *const fields[FIELDS] = {"format", "layers", "kv_heads", "head_width", "type", "model", "positions",
                                           "check"};

static void cache_fields(const kl_nn_cache *cache, uint64_t model, char text[FIELDS][TEXT])
{
    kl_format(text[FORMAT], TEXT, "kiln nn_cache 1");
    kl_format(text[LAYERS], TEXT, "%d", cache->layers);
    kl_format(text[KV_HEADS], TEXT, "%lld", (long long)cache->kv_heads);
    kl_format(text[HEAD_WIDTH], TEXT, "%lld", (long long)cache->head_width);
    kl_format(text[TYPE], TEXT, "%s", cache->is.q8_0 ? "q8_0" : kl_dtype_name(cache->dtype));
    kl_format(text[MODEL], TEXT, "%016llx", (unsigned long long)model);
}

static void cache_array_name(const kl_nn_cache *cache, int64_t i, char name[NAME])
{
    static const char *const kinds[] = {"k", "v", "k_scale", "v_scale"};
    kl_format(name, NAME, "%s.%d", kinds[i / cache->layers], (int)(i % cache->layers));
}

/* A check sum that depends on the order of bytes. */
static uint64_t cache_mix(uint64_t sum, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    for (; bytes; ) {
        uint64_t word = 0;
        size_t n = bytes < sizeof word ? bytes : sizeof word;
        memcpy(&word, p, n);
        sum = train_mix(sum ^ word) + n;
        p += n, bytes -= n;
    }
    return sum;
}

/* Bytes of a position of array i in one head, and of all that a file has of it. */
static size_t cache_position_bytes(const kl_nn_cache *cache, int64_t i)
{
    int64_t dims[4];
    cache_array_dims(cache, i, dims);
    return (size_t)dims[3] * kl_dtype_size(cache_array_dtype(cache, i));
}

/* Copies n positions of each head from arrays with `from` positions a head to some with `to`. */
static void copy_positions(const kl_nn_cache *cache, int64_t i, int64_t n, const uint8_t *x, int64_t from, uint8_t *y,
                           int64_t to)
{
    size_t each = cache_position_bytes(cache, i);
    for (int64_t head = 0; head < cache->kv_heads && n; head++)
        memcpy(y + (size_t)(head * to) * each, x + (size_t)(head * from) * each, (size_t)n * each);
}

static kl_status cache_row_check(const char *op, const kl_nn_cache *cache, int64_t row, const char *path)
{
    if (!cache || !path)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: an argument is NULL", op);
    if (row < 0 || row >= cache->batch)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: row %lld: the cache has rows 0 to %lld", op, (long long)row,
                        (long long)cache->batch - 1);
    return kl_tracing() ? kl_failf(NULL, KL_ERR_TRACE, "%s: a trace is open", op) : KL_OK;
}

/* ---- saving ---- */

/* The first `n` positions of a row of array i; the caller frees.  NULL: kl_last_error. */
static uint8_t *cache_read_row(const kl_nn_cache *cache, int64_t i, int64_t row, int64_t n)
{
    int64_t dims[4], room = cache_room(cache);
    cache_array_dims(cache, i, dims);
    dims[0] = 1;
    size_t each = cache_position_bytes(cache, i) * (size_t)cache->kv_heads;
    uint8_t *all = malloc(each * (size_t)room), *used = malloc(each * (size_t)n + 1);
    bool ok = all && used && kl_composite_begin("nn_cache_save") == KL_OK;
    if (!all || !used)
        kl_fail(KL_ERR_MEMORY, "nn_cache_save: out of memory");
    if (ok) {
        kl_tensor start[4] = {kl_scalar(kl_device_of(cache->used), KL_I32, (double)row)};
        ok = kl_read(kl_dynamic_slice(cache->k[i], start, dims), all, each * (size_t)room) == KL_OK;
        kl_composite_end(0, NULL);
    }
    if (ok)
        copy_positions(cache, i, n, all, room, used, n);
    free(all);
    if (!ok)
        free(used);
    return ok ? used : NULL;
}

/* What a file has: the arrays, then the tokens. */
struct cache_items {
    int64_t arrays;
    kl_file_item *item;
    char (*name)[NAME];
    int64_t (*dims)[3];
};

static void saved_free(struct cache_items *s)
{
    for (int64_t i = 0; s->item && i < s->arrays; i++)
        free((void *)s->item[i].data);
    free(s->item), free(s->name), free(s->dims);
}

/* Reads the row's arrays to memory. */
static bool saved_fill(struct cache_items *s, const kl_nn_cache *cache, int64_t row, uint64_t *sum)
{
    s->item = calloc((size_t)s->arrays + 1, sizeof *s->item);
    s->name = calloc((size_t)s->arrays, sizeof *s->name);
    s->dims = calloc((size_t)s->arrays, sizeof *s->dims);
    if (!s->item || !s->name || !s->dims)
        return kl_fail(KL_ERR_MEMORY, "nn_cache_save: out of memory"), false;
    for (int64_t i = 0; i < s->arrays; i++) {
        int64_t n = cache->at[row], dims[4];
        cache_array_dims(cache, i, dims);
        memcpy(s->dims[i], (int64_t[]){dims[1], n, dims[3]}, sizeof *s->dims);
        cache_array_name(cache, i, s->name[i]);
        uint8_t *data = cache_read_row(cache, i, row, n);
        if (!data)
            return false;
        s->item[i] = (kl_file_item){.name = s->name[i], .dtype = cache_array_dtype(cache, i), .rank = 3,
                                    .dims = s->dims[i], .data = data};
        *sum = cache_mix(*sum, data, cache_position_bytes(cache, i) * (size_t)(cache->kv_heads * n));
    }
    return true;
}

kl_status kl_nn_cache_save(const kl_nn_cache *cache, int64_t row, const char *path, uint64_t model, int64_t n,
                           const int32_t *tokens)
{
    kl_status s = cache_row_check("nn_cache_save", cache, row, path);
    if (s == KL_OK && (n < 0 || (n && !tokens)))
        s = kl_fail(KL_ERR_ARGUMENT, "nn_cache_save: a number of tokens without them");
    if (s != KL_OK)
        return s;
    struct cache_items saved = {.arrays = cache_arrays(cache)};
    uint64_t sum = 0;
    char text[FIELDS][TEXT];
    kl_file_pair meta[FIELDS];
    s = saved_fill(&saved, cache, row, &sum) ? KL_OK : kl_last_error_code();
    if (s == KL_OK) {
        saved.item[saved.arrays] = (kl_file_item){.name = "tokens", .dtype = KL_I32, .rank = 1, .dims = &n,
                                                  .data = n ? tokens : (const int32_t[]){0}};
        sum = cache_mix(sum, tokens, (size_t)n * sizeof *tokens);
        cache_fields(cache, model, text);
        kl_format(text[POSITIONS], TEXT, "%lld", (long long)cache->at[row]);
        kl_format(text[CHECK], TEXT, "%016llx", (unsigned long long)sum);
        for (int i = 0; i < FIELDS; i++)
            meta[i] = (kl_file_pair){fields[i], text[i]};
        s = kl_file_write(path, KL_FILE_SAFETENSORS, saved.arrays + 1, saved.item, FIELDS, meta);
    }
    saved_free(&saved);
    return s;
}

/* ---- loading ---- */

static bool load_fails(const char *path, const char *field, const char *found, const char *wanted)
{
    kl_failf(NULL, KL_ERR_IO, "nn_cache_load: %.300s: field \"%s\": %.100s, not %s", path, field, found, wanted);
    return false;
}

/* The text of a field; "missing". */
static const char *field_text(kl_file *f, int field)
{
    int64_t i = kl_file_meta_find(f, fields[field]);
    const char *text = i < 0 ? NULL : kl_file_meta_text(f, i, 0);
    return text ? text : "missing";
}

/* The number of positions that the metadata says, if all of it fits the cache; -1: it does not. */
static int64_t load_fields(kl_file *f, const char *path, const kl_nn_cache *cache, uint64_t model)
{
    char text[FIELDS][TEXT], *end;
    cache_fields(cache, model, text);
    if (kl_file_format_of(f) != KL_FILE_SAFETENSORS)
        return load_fails(path, fields[FORMAT], kl_file_format_name(kl_file_format_of(f)), text[FORMAT]) - 1;
    for (int i = 0; i < POSITIONS; i++)
        if (strcmp(field_text(f, i), text[i]) != 0)
            return load_fails(path, fields[i], field_text(f, i), text[i]) - 1;
    const char *number = field_text(f, POSITIONS);
    long long n = *number >= '0' && *number <= '9' && strlen(number) < 12 ? strtoll(number, &end, 10) : -1;
    if (n < 0 || *end)
        return load_fails(path, fields[POSITIONS], number, "a number") - 1;
    if (n > cache->length)
        kl_failf(NULL, KL_ERR_ARGUMENT, "nn_cache_load: %.300s has %lld positions, the cache's length is %lld", path, n,
                 (long long)cache->length);
    return n <= cache->length ? n : -1;
}

/* The elements of a tensor of this shape; NULL: kl_last_error. */
static const void *load_tensor(kl_file *f, const char *path, const char *name, kl_dtype dtype, int rank,
                               const int64_t *dims)
{
    kl_file_entry e;
    int64_t i = kl_file_find(f, name);
    if (i < 0 || kl_file_get(f, i, &e) != KL_OK)
        return load_fails(path, name, "missing", "a tensor"), NULL;
    bool same = e.dtype == dtype && e.rank == rank && kl_dtype_size(dtype) > 0;
    for (int k = 0; k < rank && same; k++)
        same = dims[k] < 0 || e.dims[k] == dims[k];
    if (same)
        return kl_file_data(f, name);
    kl_failf(NULL, KL_ERR_IO, "nn_cache_load: %.300s: byte %zu, field \"%s\": %s of %d axes, of another type or shape "
             "than the cache's %s", path, e.offset, name, e.type, e.rank, kl_dtype_name(dtype));
    return NULL;
}

/* A file whose contents have been checked. */
struct cache_contents {
    kl_file *file;
    int64_t positions, ntokens;
    const void *tokens, **array;
};

static bool load_contents(struct cache_contents *l, const char *path, const kl_nn_cache *cache)
{
    int64_t arrays = cache_arrays(cache), dims[4];
    uint64_t sum = 0;
    char name[NAME], text[TEXT];
    kl_file_entry e;
    if (kl_file_count(l->file) != arrays + 1)
        return load_fails(path, "tensors", "another number of them", "those of the cache");
    for (int64_t i = 0; i < arrays; i++) {
        cache_array_dims(cache, i, dims);
        dims[2] = l->positions;
        cache_array_name(cache, i, name);
        l->array[i] = load_tensor(l->file, path, name, cache_array_dtype(cache, i), 3, dims + 1);
        if (!l->array[i])
            return false;
        sum = cache_mix(sum, l->array[i], cache_position_bytes(cache, i) * (size_t)(dims[1] * dims[2]));
    }
    l->tokens = load_tensor(l->file, path, "tokens", KL_I32, 1, (int64_t[]){-1});
    if (!l->tokens || kl_file_get(l->file, kl_file_find(l->file, "tokens"), &e) != KL_OK)
        return false;
    l->ntokens = e.dims[0];
    sum = cache_mix(sum, l->tokens, (size_t)l->ntokens * sizeof(int32_t));
    kl_format(text, TEXT, "%016llx", (unsigned long long)sum);
    return !strcmp(text, field_text(l->file, CHECK)) || load_fails(path, fields[CHECK], field_text(l->file, CHECK),
                                                                   text);
}

/* Gives the row the file's positions, all or none. */
static kl_status load_row(const struct cache_contents *l, kl_nn_cache *cache, int64_t row)
{
    int64_t room = cache_room(cache), dims[4];
    uint8_t *padded = NULL;
    kl_trace_begin("nn_cache_load");
    kl_device device = kl_device_of(cache->used);
    for (int64_t i = 0; i < cache_arrays(cache); i++) {
        size_t bytes = cache_position_bytes(cache, i) * (size_t)(cache->kv_heads * room);
        cache_array_dims(cache, i, dims);
        dims[0] = 1;
        uint8_t *grown = realloc(padded, bytes);
        if (!grown) {
            kl_fail(KL_ERR_MEMORY, "nn_cache_load: out of memory");
            break;
        }
        padded = grown;
        memset(padded, 0, bytes);
        copy_positions(cache, i, l->positions, l->array[i], l->positions, padded, room);
        kl_tensor start[4] = {kl_scalar(device, KL_I32, (double)row)};
        kl_tensor part = kl_input(device, cache_array_dtype(cache, i), 4, dims, padded);
        kl_assign(cache->k[i], kl_dynamic_update(cache->k[i], part, start));
    }
    kl_assign(cache->used, cache_used_with(cache, row, l->positions));
    kl_status s = kl_trace_end();
    free(padded);
    return s;
}

kl_status kl_nn_cache_load(kl_nn_cache *cache, int64_t row, const char *path, uint64_t model, int64_t room,
                           int32_t *tokens, int64_t *n)
{
    kl_status s = cache_row_check("nn_cache_load", cache, row, path);
    if (s == KL_OK && (room < 0 || (room && !tokens)))
        s = kl_fail(KL_ERR_ARGUMENT, "nn_cache_load: room for tokens without an array");
    if (s != KL_OK)
        return s;
    struct cache_contents l = {.file = kl_file_open(path)};
    if (!l.file)
        return kl_last_error_code();
    l.array = calloc((size_t)cache_arrays(cache), sizeof *l.array);
    if (!l.array)
        kl_fail(KL_ERR_MEMORY, "nn_cache_load: out of memory");
    l.positions = l.array ? load_fields(l.file, path, cache, model) : -1;
    bool ok = l.positions >= 0 && load_contents(&l, path, cache);
    s = ok ? load_row(&l, cache, row) : kl_last_error_code();
    if (s == KL_OK) {
        cache->at[row] = l.positions;
        if (n)
            *n = l.ntokens;
        if (l.ntokens && room)
            memcpy(tokens, l.tokens, (size_t)(l.ntokens < room ? l.ntokens : room) * sizeof *tokens);
    }
    free(l.array);
    kl_file_close(l.file);
    return s;
}
