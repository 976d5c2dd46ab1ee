/* A GGUF file in parts, NAME-00001-of-00003.gguf and so on, as llama.cpp's gguf-split writes them: the first one has
 * the metadata, each has tensors, and its keys split.no (from 0), split.count and split.tensors.count. */
#include "gguf.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 99999 };

/* A whole number of the metadata; `missing` if there is none. */
static int64_t parts_number(const kl_file *f, const char *key, int64_t missing)
{
    int64_t i = kl_file_meta_find(f, key);
    bool number = i >= 0 && !f->meta[i].is.array && f->meta[i].is.dtype != KL_DTYPE_COUNT;
    return number ? kl_file_meta_i64(f, i, 0) : missing;
}

/* The last component of the name of part `i`, from that of part `own`; false: the file is not named as a part. */
static bool part_name(const char *path, int64_t own, int64_t i, int64_t count, char *name, size_t room)
{
    char end[32], other[32];
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    kl_format(end, sizeof end, "-%05" PRId64 "-of-%05" PRId64 ".gguf", own + 1, count);
    kl_format(other, sizeof other, "-%05" PRId64 "-of-%05" PRId64 ".gguf", i + 1, count);
    size_t n = strlen(file), tail = strlen(end);
    if (n < tail || n >= room || strcmp(file + n - tail, end) != 0)
        return false;
    memcpy(name, file, n - tail);
    memcpy(name + n - tail, other, tail + 1);
    return true;
}

/* Opens part i and adds its tensors. */
static bool open_part(kl_file *f, int64_t i, int64_t count)
{
    char name[512];
    struct file_error why = {0};
    if (!part_name(f->path, 0, i, count, name, sizeof name))
        return file_bad(f, 0, "split.count", "the first of %" PRId64 " parts is named ..-00001-of-%05" PRId64 ".gguf",
                        count, count);
    kl_file **grown = realloc(f->shard, ((size_t)f->shards + 1) * sizeof *grown);
    if (!grown)
        return file_no_memory(f);
    f->shard = grown;
    kl_file *part = file_open_part(f, name, &why);
    if (!part)
        return why.code == KL_ERR_MEMORY ? file_no_memory(f) : file_bad(f, 0, "split.count", "%.600s", why.text);
    f->shard[f->shards++] = part;
    int64_t no = parts_number(part, "split.no", -1), parts = parts_number(part, "split.count", -1);
    if (no != i || parts != count)
        return file_bad(f, 0, "split.no", "%.300s says that it is part %" PRId64 " of %" PRId64 ", not %" PRId64 " of "
                        "%" PRId64, name, no + 1, parts, i + 1, count);
    for (uint32_t k = 0; k < part->n; k++) {
        struct file_entry *e = file_entry_add(f);
        if (!e)
            return false;
        *e = (struct file_entry){.is = part->entry[k].is, .shard = part};
    }
    return true;
}

bool gguf_read_parts(kl_file *f)
{
    int64_t count = parts_number(f, "split.count", 1), no = parts_number(f, "split.no", 0);
    char name[512] = "..-00001-of-..gguf";
    if (count == 1 || f->location)
        return true;
    if (count < 1 || count > MAX_PARTS)
        return file_bad(f, 0, "split.count", "%" PRId64 " is no number of parts", count);
    if (no) {
        part_name(f->path, no, 0, count, name, sizeof name);
        return file_bad(f, 0, "split.no", "it is part %" PRId64 " of %" PRId64 "; all are opened through the first, "
                        "%.300s", no + 1, count, name);
    }
    if (!f->map)
        return file_bad(f, 0, "split.count", "it has %" PRId64 " parts, which bytes without a path cannot", count);
    for (int64_t i = 1; i < count; i++)
        if (!open_part(f, i, count))
            return false;
    int64_t tensors = parts_number(f, "split.tensors.count", f->n);
    return tensors == f->n || file_bad(f, 0, "split.tensors.count", "the parts have %u tensors, not %" PRId64, f->n,
                                       tensors);
}
