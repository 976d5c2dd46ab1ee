/* Tensors in several safetensors files, which an index names (NAME.safetensors.index.json): an object whose weight_map
 * has the file of each tensor.  The files have to be in the index's folder. */
#include "json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JSON_DEPTH = 64 };

/* The first character of an object: that of a safetensors file is behind its length. */
bool shards_is(const uint8_t *bytes, size_t n)
{
    size_t i = 0;
    while (i < n && (bytes[i] == ' ' || bytes[i] == '\n' || bytes[i] == '\r' || bytes[i] == '\t'))
        i++;
    return i < n && bytes[i] == '{';
}

/* ---- values of keys that mean nothing here ---- */

/* A number, true, false or null. */
static bool skip_word(struct json *j, const char *field)
{
    const uint8_t *first = j->p;
    while (j->p < j->end && *j->p && strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE", *j->p))
        j->p++;
    return j->p > first || file_bad(j->f, json_at(j), field, "expected a value");
}

/* Skips a value, with what is in it. */
static bool skip_value(struct json *j, const char *field)
{
    char close[JSON_DEPTH]; /* of what is open */
    int depth = 0;
    bool value = true; /* one has to come */
    do {
        if (value && (json_is(j, '{') || json_is(j, '['))) {
            if (depth == JSON_DEPTH)
                return file_bad(j->f, json_at(j), field, "more than %d values in each other", JSON_DEPTH);
            close[depth++] = j->p[-1] == '{' ? '}' : ']';
            if (!json_is(j, close[depth - 1])) {
                if (close[depth - 1] == '}' && (!json_string(j, field) || !json_expect(j, ':', field)))
                    return false;
                continue;
            }
            depth--;
        } else if (value) {
            if (j->p < j->end && *j->p == '"' ? !json_string(j, field) : !skip_word(j, field))
                return false;
        } else if (json_is(j, close[depth - 1])) {
            depth--;
        } else {
            if (!json_expect(j, ',', field) ||
                (close[depth - 1] == '}' && (!json_string(j, field) || !json_expect(j, ':', field))))
                return false;
            value = true;
            continue;
        }
        value = false;
    } while (depth);
    return true;
}

/* ---- the index ---- */

/* Where the index names the file of an entry, until it is opened. */
struct shard_name { const char *file; size_t at; };
struct shard_names { struct shard_name *v; uint32_t cap; };

static bool read_weight(struct json *j, struct shard_names *names)
{
    const char *name = json_string(j, "weight_map");
    if (!name || !json_expect(j, ':', name))
        return false;
    if (j->f->n == names->cap) {
        uint32_t cap = names->cap ? 2 * names->cap : 64;
        struct shard_name *grown = realloc(names->v, cap * sizeof *grown);
        if (!grown)
            return file_no_memory(j->f);
        names->v = grown;
        names->cap = cap;
    }
    struct shard_name *own = &names->v[j->f->n];
    struct file_entry *e = file_entry_add(j->f);
    if (!e)
        return false;
    e->is.name = name;
    own->at = json_at(j);
    return (own->file = json_string(j, name)) != NULL;
}

static bool read_weight_map(struct json *j, struct shard_names *names)
{
    if (!json_expect(j, '{', "weight_map"))
        return false;
    for (bool first = true; !json_is(j, '}'); first = false)
        if ((!first && !json_expect(j, ',', "weight_map")) || !read_weight(j, names))
            return false;
    return true;
}

static bool read_index(struct json *j, struct shard_names *names)
{
    bool map = false;
    if (!json_expect(j, '{', NULL))
        return false;
    for (bool first = true; !json_is(j, '}'); first = false) {
        if (!first && !json_expect(j, ',', NULL))
            return false;
        size_t at = json_at(j);
        const char *key = json_string(j, "key");
        if (!key || !json_expect(j, ':', key))
            return false;
        bool here = !strcmp(key, "weight_map");
        if (here && map)
            return file_bad(j->f, at, key, "it is there twice");
        map |= here;
        if (here ? !read_weight_map(j, names) : !skip_value(j, key))
            return false;
    }
    if (!json_end(j))
        return file_bad(j->f, json_at(j), NULL, "something follows the index's object");
    static const char none[] = "neither .npy, .npz, safetensors nor GGUF, and no index of files: it is missing";
    return map || file_bad(j->f, 0, "weight_map", none);
}

/* ---- the files ---- */

/* The open file of that name; NULL: f->why. */
static kl_file *find_shard(kl_file *f, const struct shard_name *name, const char *tensor)
{
    for (uint32_t i = 0; i < f->shards; i++)
        if (!strcmp(f->shard[i]->location, name->file))
            return f->shard[i];
    kl_file **grown = realloc(f->shard, ((size_t)f->shards + 1) * sizeof *grown);
    if (!grown)
        return file_no_memory(f), NULL;
    f->shard = grown;
    struct file_error why = {0};
    kl_file *shard = file_open_part(f, name->file, &why);
    if (shard)
        return f->shard[f->shards++] = shard;
    if (why.code == KL_ERR_MEMORY)
        return file_no_memory(f), NULL;
    return file_bad(f, name->at, tensor, "%.400s", why.text), NULL;
}

static bool open_shards(kl_file *f, const struct shard_name *names)
{
    for (uint32_t i = 0; i < f->n; i++) {
        struct file_entry *e = &f->entry[i];
        kl_file *shard = find_shard(f, &names[i], e->is.name);
        if (!shard)
            return false;
        int64_t at = kl_file_find(shard, e->is.name);
        if (at < 0)
            return file_bad(f, names[i].at, e->is.name, "\"%.200s\" has no such tensor", names[i].file);
        e->is = shard->entry[at].is;
        e->shard = shard;
    }
    return true;
}

bool shards_read(kl_file *f)
{
    struct json j = {f, f->bytes, f->bytes, f->bytes + f->size};
    struct shard_names names = {NULL, 0};
    bool ok = read_index(&j, &names);
    if (ok && f->n && !f->map)
        ok = file_bad(f, 0, "weight_map", "it names other files, which bytes without a path cannot");
    ok = ok && open_shards(f, names.v);
    free(names.v);
    return ok;
}
