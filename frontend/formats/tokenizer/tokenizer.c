/* Byte-pair tokenizers (<kiln/train/tokenizer.h>): reading their files, decoding. */
#include "tokenizer.h"
#include "frontend/formats/json.h"
#include <string.h>

enum { LLMC_HEADER = 1024, LLMC_MAGIC = 20240328 }; /* numbers of gpt2_tokenizer.bin */

static uint64_t hash_bytes(const uint8_t *p, int64_t n) /* FNV-1a, with a final mixing step */
{
    uint64_t h = 0xcbf29ce484222325;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3;
    return h ^ h >> 29;
}

static uint64_t hash_pair(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15;
    return h ^ h >> 32;
}

/* A power of two for the size of a table that is at most half full with n entries. */
static uint64_t slots_for(int64_t n)
{
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)n)
        slots *= 2;
    return slots;
}

/* ---- tokens ---- */

/* The slot with the id of these bytes, or the free slot for it. */
static uint64_t text_slot(const kl_tokenizer *t, const uint8_t *text, int64_t n)
{
    uint64_t i = hash_bytes(text, n) & (t->text_slots - 1);
    for (; t->by_text[i] >= 0; i = (i + 1) & (t->text_slots - 1)) {
        int64_t start = t->start[t->by_text[i]];
        if (t->start[t->by_text[i] + 1] - start == n && !memcmp(t->text + start, text, (size_t)n))
            break;
    }
    return i;
}

/* Makes room for n tokens with this total number of bytes. */
static bool tokens_room(kl_file *f, kl_tokenizer *t, int64_t n, size_t bytes)
{
    t->text_slots = slots_for(n);
    t->text = kl_memory_alloc(bytes + 1);
    t->start = kl_memory_alloc(((size_t)n + 1) * sizeof *t->start);
    t->by_text = kl_memory_alloc(t->text_slots * sizeof *t->by_text);
    if (!t->text || !t->start || !t->by_text)
        return file_no_memory(f);
    memset(t->by_text, -1, t->text_slots * sizeof *t->by_text);
    memset(t->byte, -1, sizeof t->byte);
    return true;
}

/* Adds the next token; at: its position in the file, for messages. */
static bool token_add(kl_file *f, kl_tokenizer *t, const uint8_t *text, int64_t n, size_t at)
{
    int32_t id = (int32_t)t->count;
    uint64_t slot = text_slot(t, text, n);
    if (t->by_text[slot] >= 0)
        return file_bad(f, at, NULL, "tokens %d and %d are the same bytes", (int)t->by_text[slot], (int)id);
    t->by_text[slot] = id;
    memcpy(t->text + t->start[id], text, (size_t)n);
    t->start[id + 1] = t->start[id] + n;
    if (n == 1)
        t->byte[text[0]] = id;
    t->count++;
    return true;
}

/* The byte that GPT-2 writes as this character; -1: none.  Printable characters of Latin-1 stand for themselves; the
 * other bytes, in their order, are the characters from 256 on. */
static int byte_of_character(unsigned c)
{
    if (c >= 256)
        return c < 289 ? (int)c - 256 : c < 323 ? (int)c - 289 + 127 : c == 323 ? 173 : -1;
    return (c >= 33 && c <= 126) || (c >= 161 && c != 173) ? (int)c : -1;
}

/* Converts GPT-2's characters to bytes, in place.  Returns the number of bytes; -1: a character stands for no byte. */
static int64_t bytes_of_characters(uint8_t *text, size_t n)
{
    uint8_t *to = text, *end = text + n;
    for (uint8_t *p = text; p < end;) {
        size_t length = utf8_length(p, end);
        unsigned c = length == 1 ? p[0] : length == 2 ? (p[0] & 31u) << 6 | (p[1] & 63u) : 0x10ffff;
        int byte = byte_of_character(c);
        if (byte < 0)
            return -1;
        *to++ = (uint8_t)byte;
        p += length;
    }
    return to - text;
}

/* ---- vocab.json: an object of tokens and their ids ---- */

struct vocab_entry { uint8_t *text; int64_t n; size_t at; };

/* Moves each token to the index of its id; false: f->why has the reason. */
static bool vocab_place(kl_file *f, kl_tokenizer *t, const struct vocab_entry *entry, const uint64_t *id, int64_t n,
                        size_t bytes)
{
    int64_t *place = kl_memory_alloc((size_t)n * sizeof *place + 1); /* for each id: the number of its entry + 1 */
    bool ok = place ? tokens_room(f, t, n, bytes) : file_no_memory(f);
    for (int64_t i = 0; ok && i < n; i++) {
        if (id[i] >= (uint64_t)n)
            ok = file_bad(f, entry[i].at, NULL, "id %llu of %lld tokens; they must be 0 to %lld",
                          (unsigned long long)id[i], (long long)n, (long long)n - 1);
        else if (place[id[i]])
            ok = file_bad(f, entry[i].at, NULL, "two tokens have the id %llu", (unsigned long long)id[i]);
        else
            place[id[i]] = i + 1;
    }
    for (int64_t i = 0; ok && i < n; i++) {
        const struct vocab_entry *e = &entry[place[i] - 1];
        ok = token_add(f, t, e->text, e->n, e->at);
    }
    kl_memory_free(place);
    return ok;
}

static bool vocab_read(kl_file *f, kl_tokenizer *t)
{
    struct json j = {.f = f, .start = f->bytes, .p = f->bytes, .end = f->bytes + f->size};
    size_t cap = f->size / 4 + 1, bytes = 0; /* an entry has at least four bytes: "":0 */
    struct vocab_entry *entry = kl_memory_alloc(cap * sizeof *entry);
    uint64_t *id = kl_memory_alloc(cap * sizeof *id);
    int64_t n = 0;
    bool ok = entry && id ? json_expect(&j, '{', NULL) : file_no_memory(f), more = ok && !json_is(&j, '}');
    while (ok && more) {
        size_t at = json_at(&j);
        char *text = json_string(&j, NULL);
        ok = text && json_expect(&j, ':', text) && json_number(&j, text, &id[n]);
        if (!ok)
            break;
        entry[n] = (struct vocab_entry){(uint8_t *)text, bytes_of_characters((uint8_t *)text, strlen(text)), at};
        if (entry[n].n < 1) {
            ok = file_bad(f, at, NULL, entry[n].n ? "a character that stands for no byte" : "an empty token");
            break;
        }
        bytes += (size_t)entry[n++].n;
        more = json_is(&j, ',');
        if (!more)
            ok = json_expect(&j, '}', NULL);
    }
    if (ok && (!json_end(&j) || n == 0 || n > INT32_MAX / 2))
        ok = file_bad(f, json_at(&j), NULL, n ? "text behind the object, or too many tokens" : "no tokens");
    ok = ok && vocab_place(f, t, entry, id, n, bytes);
    kl_memory_free(entry);
    kl_memory_free(id);
    return ok;
}

/* ---- gpt2_tokenizer.bin: 256 numbers of 32 bits, then the length and the bytes of each token ---- */

static uint32_t llmc_number(const kl_file *f, int i)
{
    const uint8_t *p = f->bytes + 4 * i;
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static bool llmc_read(kl_file *f, kl_tokenizer *t)
{
    if (f->size < LLMC_HEADER)
        return file_bad(f, f->size, NULL, "the header of %d bytes is cut off", LLMC_HEADER);
    uint32_t version = llmc_number(f, 1), n = llmc_number(f, 2);
    if (version < 1 || version > 2)
        return file_bad(f, 4, "version", "%u; versions 1 and 2 can be read", (unsigned)version);
    if (n < 1 || n > (f->size - LLMC_HEADER) / 2)
        return file_bad(f, 8, "tokens", "%u in a file of %zu bytes", (unsigned)n, f->size);
    size_t at = LLMC_HEADER;
    bool ok = tokens_room(f, t, n, f->size - LLMC_HEADER);
    for (uint32_t i = 0; ok && i < n; i++) {
        size_t length = at < f->size ? f->bytes[at] : 0;
        if (length == 0 || length > f->size - at - 1)
            return file_bad(f, at, NULL, "token %u of %u is %s", (unsigned)i, (unsigned)n,
                            length || at == f->size ? "cut off" : "empty");
        ok = token_add(f, t, f->bytes + at + 1, (int64_t)length, at);
        at += 1 + length;
    }
    return ok && (at == f->size || file_bad(f, at, NULL, "%zu bytes behind the last token", f->size - at));
}

/* ---- merges.txt: two tokens a line ---- */

const struct token_merge *token_merge_of(const kl_tokenizer *t, int32_t left, int32_t right)
{
    uint64_t i = hash_pair(left, right) & (t->merge_slots - 1);
    for (; t->merge[i].id >= 0; i = (i + 1) & (t->merge_slots - 1))
        if (t->merge[i].left == left && t->merge[i].right == right)
            return &t->merge[i];
    return NULL;
}

static bool merges_bad(kl_file *f, int64_t line, const char *what)
{
    return file_fails(&f->why, KL_ERR_IO, "%.250s:%lld: %s", f->path, (long long)line, what);
}

/* Makes the merge with this rank from a line; the line is copied to `text`. */
static bool merge_add(kl_file *f, kl_tokenizer *t, uint8_t *text, size_t n, int64_t line, int32_t rank)
{
    uint8_t *space = memchr(text, ' ', n);
    if (!space || memchr(space + 1, ' ', (size_t)(text + n - space - 1)))
        return merges_bad(f, line, "a merge is two tokens with a space between them");
    int64_t left = bytes_of_characters(text, (size_t)(space - text));
    int64_t right = bytes_of_characters(space + 1, (size_t)(text + n - space - 1));
    if (left < 0 || right < 0)
        return merges_bad(f, line, "a character that stands for no byte");
    struct token_merge m = {.rank = rank, .left = t->by_text[text_slot(t, text, left)],
                            .right = t->by_text[text_slot(t, space + 1, right)]};
    memmove(text + left, space + 1, (size_t)right);
    m.id = t->by_text[text_slot(t, text, left + right)];
    if (m.left < 0 || m.right < 0 || m.id < 0)
        return merges_bad(f, line, m.left < 0 ? "the first token is not in the vocabulary"
                                   : m.right < 0 ? "the second token is not in the vocabulary"
                                                 : "what the two become is not in the vocabulary");
    if (token_merge_of(t, m.left, m.right))
        return merges_bad(f, line, "an earlier line has this merge");
    uint64_t i = hash_pair(m.left, m.right) & (t->merge_slots - 1);
    while (t->merge[i].id >= 0)
        i = (i + 1) & (t->merge_slots - 1);
    t->merge[i] = m;
    return true;
}

static bool merges_read(kl_file *f, kl_tokenizer *t)
{
    const uint8_t *p = f->bytes, *end = p + f->size;
    int64_t lines = 1, line = 1;
    for (const uint8_t *q = p; q < end; q++)
        lines += *q == '\n';
    t->merge_slots = slots_for(lines);
    t->merge = kl_memory_alloc(t->merge_slots * sizeof *t->merge);
    uint8_t *text = kl_memory_alloc(f->size + 1); /* room for a line */
    bool ok = t->merge && text ? lines <= INT32_MAX || merges_bad(f, 1, "too many lines") : file_no_memory(f);
    for (uint64_t i = 0; ok && i < t->merge_slots; i++)
        t->merge[i].id = -1;
    for (int32_t rank = 0; ok && p < end; line++) {
        const uint8_t *newline = memchr(p, '\n', (size_t)(end - p)), *stop = newline ? newline : end;
        size_t n = (size_t)(stop - p);
        n -= n && p[n - 1] == '\r';
        memcpy(text, p, n);
        if (n && !(line == 1 && n >= 8 && !memcmp(p, "#version", 8)))
            ok = merge_add(f, t, text, n, line, rank++);
        p = newline ? newline + 1 : end;
    }
    kl_memory_free(text);
    return ok;
}

/* ---- the tokenizer ---- */

static bool vocabulary_read(kl_file *f, kl_tokenizer *t)
{
    return f->size >= 4 && llmc_number(f, 0) == LLMC_MAGIC ? llmc_read(f, t) : vocab_read(f, t);
}

static bool bytes_check(kl_file *f, const kl_tokenizer *t)
{
    for (int i = 0; i < 256; i++)
        if (t->byte[i] < 0)
            return file_fails(&f->why, KL_ERR_IO,
                              "%.250s: byte 0x%02x has no token, so that not all text can be encoded",
                            f->path, (unsigned)i);
    return true;
}

kl_tokenizer *kl_tokenizer_open(const char *vocabulary, const char *merges)
{
    if (!vocabulary)
        return kl_fail(KL_ERR_ARGUMENT, "tokenizer_open: no path"), NULL;
    kl_tokenizer *t = kl_memory_alloc(sizeof *t);
    if (!t)
        return kl_fail(KL_ERR_MEMORY, "tokenizer_open: out of memory"), NULL;
    const char *path[2] = {vocabulary, merges};
    for (int i = 0; i < 2 && path[i]; i++) {
        kl_file *f = file_open_other(path[i]);
        if (f && (i ? merges_read(f, t) : vocabulary_read(f, t) && (!merges || bytes_check(f, t)))) {
            kl_file_close(f);
            continue;
        }
        if (f)
            file_failed(f);
        kl_tokenizer_close(t);
        return NULL;
    }
    return t;
}

void kl_tokenizer_close(kl_tokenizer *t)
{
    if (!t)
        return;
    kl_memory_free(t->text);
    kl_memory_free(t->start);
    kl_memory_free(t->by_text);
    kl_memory_free(t->merge);
    kl_memory_free(t);
}

int64_t kl_tokenizer_count(const kl_tokenizer *t) { return t ? t->count : 0; }

const char *kl_tokenizer_text(const kl_tokenizer *t, int64_t id, int64_t *bytes)
{
    bool there = t && id >= 0 && id < t->count;
    if (bytes)
        *bytes = there ? t->start[id + 1] - t->start[id] : 0;
    return there ? (const char *)t->text + t->start[id] : NULL;
}

int64_t kl_tokenizer_find(const kl_tokenizer *t, const char *text, int64_t bytes)
{
    return t && text && bytes > 0 ? t->by_text[text_slot(t, (const uint8_t *)text, bytes)] : -1;
}

kl_status kl_tokenizer_decode(const kl_tokenizer *t, int64_t n, const int32_t *ids, char *text, int64_t room,
                              int64_t *bytes)
{
    int64_t length = 0;
    if (!t || n < 0 || (n && !ids) || room < 0 || (room && !text) || !bytes)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "tokenizer_decode: an argument is NULL or negative");
    *bytes = 0;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= t->count)
            return kl_failf(NULL, KL_ERR_ARGUMENT, "tokenizer_decode: id %d at %lld; there are %lld tokens",
                            (int)ids[i], (long long)i, (long long)t->count);
    for (int64_t i = 0; i < n; i++) {
        int64_t has, fits;
        const char *token = kl_tokenizer_text(t, ids[i], &has);
        fits = length >= room ? 0 : has < room - length ? has : room - length;
        if (fits)
            memcpy(text + length, token, (size_t)fits);
        length += has;
    }
    *bytes = length;
    return KL_OK;
}
