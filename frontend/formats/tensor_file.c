/* <kiln/formats/file.h>: opening a file by its first bytes, its tensors and metadata. */
#define _DEFAULT_SOURCE /* madvise */
#include "tensor_file.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static bool is_npy(const uint8_t *b, size_t n) { return n >= 6 && !memcmp(b, "\x93NUMPY", 6); }
static bool is_zip(const uint8_t *b, size_t n) { return n >= 4 && !memcmp(b, "PK", 2) && (b[2] == 3 || b[2] == 5); }
static bool is_gguf(const uint8_t *b, size_t n) { return n >= 4 && !memcmp(b, "GGUF", 4); }

static const struct {
    const char *name;
    bool (*is)(const uint8_t *bytes, size_t n); /* checked in this order */
    bool (*read)(kl_file *f);
} file_formats[KL_FILE_FORMATS] = {
    [KL_FILE_SAFETENSORS] = {"safetensors", safetensors_is, safetensors_read},
    [KL_FILE_NPY] = {"npy", is_npy, npy_read},
    [KL_FILE_NPZ] = {"npz", is_zip, npz_read},
    [KL_FILE_GGUF] = {"gguf", is_gguf, gguf_read},
};

const char *kl_file_format_name(kl_file_format format)
{
    return (unsigned)format < KL_FILE_FORMATS ? file_formats[format].name : "unknown";
}

/* ---- errors ---- */

bool file_bad(kl_file *f, size_t at, const char *field, const char *fmt, ...)
{
    char what[500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return file_fails(&f->why, KL_ERR_IO, "%.250s: byte %zu%s%.100s: %s", f->path, at, field ? ", field " : "",
                    field ? field : "", what);
}

bool file_no_memory(kl_file *f)
{
    return file_fails(&f->why, KL_ERR_MEMORY, "%.250s: out of memory", f->path);
}

/* ---- memory that lives as long as the file ---- */

struct file_strings { struct file_strings *next; size_t used, size; char bytes[]; };
enum { STRINGS_BLOCK = 16000 };

void *file_memory(kl_file *f, size_t bytes)
{
    if (bytes > SIZE_MAX / 4)
        return file_no_memory(f), NULL;
    bytes = (bytes + 15) / 16 * 16;
    struct file_strings *s = f->strings;
    if (!s || s->size - s->used < bytes) {
        size_t size = bytes > STRINGS_BLOCK ? bytes : STRINGS_BLOCK;
        s = calloc(1, sizeof *s + size);
        if (!s)
            return file_no_memory(f), NULL;
        s->size = size;
        s->next = f->strings;
        f->strings = s;
    }
    s->used += bytes;
    return s->bytes + s->used - bytes;
}

char *file_string(kl_file *f, const void *bytes, size_t n)
{
    char *s = file_memory(f, n + 1);
    if (s && n)
        memcpy(s, bytes, n);
    return s;
}

/* Makes room for one more element of v, which is zero. */
static void *file_grow(kl_file *f, void *v, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return v;
    uint32_t more = *cap ? 2 * *cap : 16;
    void *grown = more > *cap ? realloc(v, more * size) : NULL;
    if (!grown)
        return file_no_memory(f), NULL;
    memset((char *)grown + *cap * size, 0, (more - *cap) * size);
    *cap = more;
    return grown;
}

struct file_entry *file_entry_add(kl_file *f)
{
    struct file_entry *v = file_grow(f, f->entry, f->n, &f->cap, sizeof *v);
    if (!v)
        return NULL;
    f->entry = v;
    return &v[f->n++];
}

struct file_value *file_value_add(kl_file *f)
{
    struct file_value *v = file_grow(f, f->meta, f->nmeta, &f->meta_cap, sizeof *v);
    if (!v)
        return NULL;
    f->meta = v;
    return &v[f->nmeta++];
}

static int name_order(const void *a, const void *b)
{
    return strcmp(((const struct file_name *)a)->name, ((const struct file_name *)b)->name);
}

const struct file_name *names_sort(struct file_name *v, uint32_t n)
{
    if (n)
        qsort(v, n, sizeof *v, name_order);
    for (uint32_t i = 1; i < n; i++)
        if (!strcmp(v[i - 1].name, v[i].name))
            return &v[i];
    return NULL;
}

/* ---- opening ---- */

static void map_unref(void *map)
{
    struct file_map *m = map;
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    if (m->size)
        munmap(m->bytes, m->size);
    free(m);
}

/* Maps a file that is open; path: for messages.  Closes fd. */
static bool file_map(kl_file *f, int fd, int64_t size, const char *path)
{
    f->map = calloc(1, sizeof *f->map);
    bool ok = f->map || file_no_memory(f);
    if (ok) {
        atomic_init(&f->map->refs, 1);
        if (size > 0) {
            void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
            ok = p != MAP_FAILED;
            if (ok) {
                f->map->bytes = p;
                f->map->size = (size_t)size;
            } else {
                file_fails(&f->why, KL_ERR_IO, "cannot map %.250s: %s", path, strerror(errno));
            }
        }
        f->bytes = f->map->size ? f->map->bytes : (const uint8_t *)""; /* never NULL, because readers add offsets to
                                                                          it */
        f->size = f->map->size;
    }
    close(fd);
    return ok;
}

static bool index_names(kl_file *f)
{
    f->by_name = calloc((size_t)f->n + 1, sizeof *f->by_name);
    if (!f->by_name)
        return file_no_memory(f);
    for (uint32_t i = 0; i < f->n; i++)
        f->by_name[i] = (struct file_name){f->entry[i].is.name, i};
    const struct file_name *twice = names_sort(f->by_name, f->n);
    return !twice || file_bad(f, f->entry[twice->i].is.offset, "name", "two tensors are called \"%.200s\"",
                              twice->name);
}

static bool read_file(kl_file *f)
{
    for (unsigned i = 0; i < KL_FILE_FORMATS; i++) {
        if (!file_formats[i].is(f->bytes, f->size))
            continue;
        f->format = (kl_file_format)i;
        return file_formats[i].read(f) && index_names(f);
    }
    if (shards_is(f->bytes, f->size)) {
        f->format = KL_FILE_SAFETENSORS;
        return shards_read(f) && index_names(f);
    }
    return file_bad(f, 0, NULL, "neither .npy, .npz, safetensors nor GGUF");
}

kl_file *file_failed(kl_file *f)
{
    file_error_report(NULL, &f->why);
    kl_file_close(f);
    return NULL;
}

/* A file without bytes; NULL: out of memory. */
static kl_file *file_empty(const char *path)
{
    kl_file *f = calloc(1, sizeof *f);
    if (f && (f->path = strdup(path)))
        return f;
    free(f);
    return NULL;
}

/* Opens a file, mapped unless its bytes are given, and does not read it yet.  NULL: kl_last_error. */
static kl_file *file_new(const char *path, const void *bytes, size_t n)
{
    int64_t size;
    if (!path || (n && !bytes))
        return kl_fail(KL_ERR_ARGUMENT, "file_open: no path, or no bytes"), NULL;
    kl_file *f = file_empty(path);
    if (!f)
        return kl_fail(KL_ERR_MEMORY, "file_open: out of memory"), NULL;
    f->bytes = bytes;
    f->size = n;
    int fd = bytes ? -1 : file_open_read(path, &size, &f->why);
    return bytes || (fd >= 0 && file_map(f, fd, size, path)) ? f : file_failed(f);
}

kl_file *file_open_part(const kl_file *index, const char *location, struct file_error *why)
{
    int64_t size;
    int fd = file_open_beside(index->path, location, &size, why);
    if (fd < 0)
        return NULL;
    kl_file *f = file_empty(location);
    if (!f || !(f->location = strdup(location))) {
        close(fd);
        file_fails(why, KL_ERR_MEMORY, "out of memory");
    } else if (!file_map(f, fd, size, location)) {
        *why = f->why;
    } else if (!file_formats[index->format].is(f->bytes, f->size)) {
        file_fails(why, KL_ERR_IO, "%.250s is no %s file", location, file_formats[index->format].name);
    } else if (!read_file(f)) {
        *why = f->why;
    } else {
        return f;
    }
    kl_file_close(f);
    return NULL;
}

static kl_file *file_of_tensors(kl_file *f)
{
    return !f || read_file(f) ? f : file_failed(f);
}

kl_file *file_open_other(const char *path) { return file_new(path, NULL, 0); }

kl_file *kl_file_open(const char *path)
{
    return file_of_tensors(file_new(path, NULL, 0));
}

kl_file *kl_file_open_bytes(const char *name, const void *bytes, size_t n)
{
    return file_of_tensors(file_new(name, bytes ? bytes : "", n));
}

void kl_file_close(kl_file *f)
{
    if (!f)
        return;
    for (uint32_t i = 0; i < f->n; i++)
        free(f->entry[i].own);
    while (f->strings) {
        struct file_strings *next = f->strings->next;
        free(f->strings);
        f->strings = next;
    }
    for (uint32_t i = 0; i < f->shards; i++)
        kl_file_close(f->shard[i]);
    map_unref(f->map);
    free(f->shard);
    free(f->location);
    free(f->entry);
    free(f->by_name);
    free(f->meta);
    free(f->path);
    free(f);
}

/* ---- tensors ---- */

kl_file_format kl_file_format_of(const kl_file *f) { return f ? f->format : KL_FILE_FORMATS; }
int64_t kl_file_count(const kl_file *f) { return f ? f->n : 0; }

kl_status kl_file_get(const kl_file *f, int64_t i, kl_file_entry *entry)
{
    if (!f || !entry || i < 0 || i >= f->n)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "file_get: tensor %" PRId64 " of %" PRId64, i, kl_file_count(f));
    *entry = f->entry[i].is;
    return KL_OK;
}

int64_t kl_file_find(const kl_file *f, const char *name)
{
    struct file_name key = {name, 0};
    const struct file_name *at =
        f && name && f->n ? bsearch(&key, f->by_name, f->n, sizeof key, name_order) : NULL;
    return at ? (int64_t)at->i : -1;
}

/* Converts the elements of an array from column-major to row-major order. */
static bool from_column_major(kl_file *f, struct file_entry *e, size_t size)
{
    const kl_file_entry *is = &e->is;
    size_t step[KL_MAX_RANK], from = 0;
    int64_t at[KL_MAX_RANK] = {0}, count;
    size_t bytes, stride = size;
    uint8_t *own = malloc(is->bytes + 1);
    if (!own)
        return file_no_memory(f);
    for (int k = 0; k < is->rank; k++) {
        step[k] = stride;
        stride *= (size_t)is->dims[k];
    }
    dims_bytes(is->rank, is->dims, size, &count, &bytes);
    for (int64_t i = 0; i < count; i++) {
        memcpy(own + (size_t)i * size, e->data + from, size);
        for (int k = is->rank - 1; k >= 0; k--) {
            from += step[k];
            if (++at[k] < is->dims[k])
                break;
            from -= step[k] * (size_t)is->dims[k];
            at[k] = 0;
        }
    }
    free(e->own);
    e->data = e->own = own;
    return true;
}

/* Turns the bytes of each element around, in memory of the entry's own. */
static bool from_big_endian(kl_file *f, struct file_entry *e, size_t size)
{
    uint8_t *own = malloc(e->is.bytes + 1);
    if (!own)
        return file_no_memory(f);
    for (size_t i = 0; i + size <= e->is.bytes; i += size)
        for (size_t k = 0; k < size; k++)
            own[i + k] = e->data[i + size - 1 - k];
    free(e->own);
    e->data = e->own = own;
    return true;
}

static bool entry_data(kl_file *f, struct file_entry *e)
{
    if (e->checked)
        return true;
    if (!npz_unpack(f, e))
        return false;
    if (e->is.dtype == KL_BOOL)
        for (size_t i = 0; i < e->is.bytes; i++)
            if (e->data[i] > 1)
                return file_bad(f, e->own ? e->is.offset : e->is.offset + i, e->is.name,
                                "a bool is %u, neither 0 nor 1", e->data[i]);
    if (e->big_endian && !from_big_endian(f, e, kl_dtype_size(e->is.dtype)))
        return false;
    if (e->column_major && !from_column_major(f, e, kl_dtype_size(e->is.dtype)))
        return false;
    return e->checked = true;
}

struct file_entry *file_entry_named(kl_file **f, const char *name)
{
    int64_t i = kl_file_find(*f, name);
    if (i >= 0 && (*f)->entry[i].shard) {
        *f = (*f)->entry[i].shard;
        i = kl_file_find(*f, name);
    }
    if (i >= 0)
        return &(*f)->entry[i];
    kl_failf(NULL, KL_ERR_ARGUMENT, "%.250s has no tensor \"%.300s\"", *f ? (*f)->path : "no file", name ? name : "");
    return NULL;
}

bool file_entry_is_read(kl_file *f, struct file_entry *e)
{
    return e && (entry_data(f, e) || !file_error_report(NULL, &f->why));
}

const void *kl_file_data(kl_file *f, const char *name)
{
    struct file_entry *e = file_entry_named(&f, name);
    return file_entry_is_read(f, e) ? e->data : NULL;
}

void file_entry_forget(const kl_file *f, const struct file_entry *e)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = ((uintptr_t)e->data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)e->data + e->is.bytes) / page * page;
    if (f->map && f->map->size && !e->own && first < end)
        madvise((void *)first, end - first, MADV_DONTNEED);
}

kl_tensor file_mapped_tensor(kl_file *f, const struct file_entry *e, kl_device device, kl_dtype dtype, int rank,
                             const int64_t *dims)
{
    static const char nothing[8];
    size_t size = kl_dtype_size(dtype), bytes = e->is.bytes;
    const void *data = bytes ? (const void *)e->data : nothing;
    if (!f->map || e->own || (uintptr_t)data % size || !bytes) {
        if ((uintptr_t)data % size == 0)
            return kl_input(device, dtype, rank, dims, data);
        void *copy = malloc(bytes);
        if (!copy)
            return kl_failf(NULL, KL_ERR_MEMORY, "%.250s: out of memory", f->path), kl_none;
        memcpy(copy, data, bytes);
        return kl_wrap(device, dtype, rank, dims, copy, free, copy);
    }
    atomic_fetch_add(&f->map->refs, 1);
    return kl_wrap(device, dtype, rank, dims, (void *)(uintptr_t)data, map_unref, f->map);
}

/* kl_none: the thread's error has the reason. */
static kl_tensor entry_tensor(kl_file *f, struct file_entry *e, kl_device device, bool matrix)
{
    if (e->complex)
        return complex_tensor(f, e, device);
    if (e->blocks >= BLOCKS_F8_E4M3)
        return float8_tensor(f, e, device);
    if (e->blocks)
        return blocks_tensor(f, e, device, matrix);
    return file_mapped_tensor(f, e, device, e->is.dtype, e->is.rank, e->is.dims);
}

static kl_tensor file_tensor_named(kl_file *f, kl_device device, const char *name, bool matrix)
{
    struct file_entry *e = file_entry_named(&f, name);
    if (e && e->is.dtype == KL_DTYPE_COUNT)
        return kl_failf(NULL, KL_ERR_TYPE, "%.250s: tensor \"%.300s\" has elements of %.40s, which Kiln does not read",
                        f->path, e->is.name, e->is.type), kl_none;
    return file_entry_is_read(f, e) ? entry_tensor(f, e, device, matrix) : kl_none;
}

kl_tensor kl_file_tensor(kl_file *f, kl_device device, const char *name)
{
    return file_tensor_named(f, device, name, false);
}

kl_tensor kl_file_matrix(kl_file *f, kl_device device, const char *name)
{
    return file_tensor_named(f, device, name, true);
}

/* ---- metadata ---- */

int64_t kl_file_meta_count(const kl_file *f) { return f ? f->nmeta : 0; }

kl_status kl_file_meta_get(const kl_file *f, int64_t i, kl_file_meta *meta)
{
    if (!meta || i < 0 || i >= kl_file_meta_count(f))
        return kl_failf(NULL, KL_ERR_ARGUMENT, "file_meta_get: key %" PRId64 " of %" PRId64, i, kl_file_meta_count(f));
    *meta = f->meta[i].is;
    return KL_OK;
}

int64_t kl_file_meta_find(const kl_file *f, const char *key)
{
    for (uint32_t i = 0; key && i < kl_file_meta_count(f); i++)
        if (!strcmp(f->meta[i].is.key, key))
            return i;
    return -1;
}

static const struct file_value *value_at(const kl_file *f, int64_t i, int64_t k, bool text)
{
    const struct file_value *v = i >= 0 && i < kl_file_meta_count(f) ? &f->meta[i] : NULL;
    return v && k >= 0 && k < v->is.count && (v->is.dtype == KL_DTYPE_COUNT) == text ? v : NULL;
}

const char *kl_file_meta_text(const kl_file *f, int64_t i, int64_t k)
{
    const struct file_value *v = value_at(f, i, k, true);
    return v ? v->text[k] : NULL;
}

int64_t kl_file_meta_i64(const kl_file *f, int64_t i, int64_t k)
{
    const struct file_value *v = value_at(f, i, k, false);
    if (!v)
        return 0;
    uint64_t u = 0;
    memcpy(&u, v->numbers + (size_t)k * kl_dtype_size(v->is.dtype), kl_dtype_size(v->is.dtype));
    switch (v->is.dtype) {
    case KL_I8: return (int8_t)u;
    case KL_I16: return (int16_t)u;
    case KL_I32: return (int32_t)u;
    case KL_F32: case KL_F64: {
        double d = kl_file_meta_f64(f, i, k);
        return d != d ? 0 : d >= 0x1p63 ? INT64_MAX : d < -0x1p63 ? INT64_MIN : (int64_t)d;
    }
    default: return (int64_t)u;
    }
}

double kl_file_meta_f64(const kl_file *f, int64_t i, int64_t k)
{
    const struct file_value *v = value_at(f, i, k, false);
    float narrow;
    double d;
    if (!v)
        return __builtin_nan("");
    if (v->is.dtype == KL_F32) {
        memcpy(&narrow, v->numbers + (size_t)k * sizeof narrow, sizeof narrow);
        return (double)narrow;
    }
    if (v->is.dtype == KL_F64) {
        memcpy(&d, v->numbers + (size_t)k * sizeof d, sizeof d);
        return d;
    }
    int64_t n = kl_file_meta_i64(f, i, k);
    return v->is.dtype == KL_U64 ? (double)(uint64_t)n : (double)n;
}
