/* GPT-2's files: vocab.json and merges.txt, llm.c's gpt2_tokenizer.bin. */
#include "tokenizer.h"
#include "frontend/formats/json.h"
#include <string.h>

enum { LLMC_HEADER = 1024, LLMC_MAGIC = 20240328 }; /* numbers of gpt2_tokenizer.bin */

/* Adds the next token; at: its position in the file, for messages. */
static bool token_add(kl_file *f, kl_tokenizer *t, const uint8_t *text, int64_t n, size_t at)
{
    int32_t id = (int32_t)t->count;
    uint64_t slot = token_slot(t, text, n);
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

static bool merges_bad(kl_file *f, int64_t line, const char *what)
{
    return file_fails(&f->why, KL_ERR_IO, "%.250s:%lld: %s", f->path, (long long)line, what);
}

/* Makes the merge with this rank from a line; the line is copied to `text`. */
static bool merge_line(kl_file *f, kl_tokenizer *t, uint8_t *text, size_t n, int64_t line, int32_t rank)
{
    uint8_t *space = memchr(text, ' ', n);
    if (!space || memchr(space + 1, ' ', (size_t)(text + n - space - 1)))
        return merges_bad(f, line, "a merge is two tokens with a space between them");
    int64_t left = bytes_of_characters(text, (size_t)(space - text));
    int64_t right = bytes_of_characters(space + 1, (size_t)(text + n - space - 1));
    if (left < 0 || right < 0)
        return merges_bad(f, line, "a character that stands for no byte");
    struct token_merge m = {.rank = rank, .left = t->by_text[token_slot(t, text, left)],
                            .right = t->by_text[token_slot(t, space + 1, right)]};
    memmove(text + left, space + 1, (size_t)right);
    m.id = t->by_text[token_slot(t, text, left + right)];
    if (m.left < 0 || m.right < 0 || m.id < 0)
        return merges_bad(f, line, m.left < 0 ? "the first token is not in the vocabulary"
                                   : m.right < 0 ? "the second token is not in the vocabulary"
                                                 : "what the two become is not in the vocabulary");
    if (token_merge_of(t, m.left, m.right))
        return merges_bad(f, line, "an earlier line has this merge");
    merge_put(t, m);
    return true;
}

bool gpt2_read_merges(kl_file *f, kl_tokenizer *t)
{
    const uint8_t *p = f->bytes, *end = p + f->size;
    int64_t lines = 1, line = 1;
    for (const uint8_t *q = p; q < end; q++)
        lines += *q == '\n';
    uint8_t *text = kl_memory_alloc(f->size + 1); /* room for a line */
    bool ok = text ? lines <= INT32_MAX || merges_bad(f, 1, "too many lines") : file_no_memory(f);
    ok = ok && merges_room(f, t, lines);
    for (int32_t rank = 0; ok && p < end; line++) {
        const uint8_t *newline = memchr(p, '\n', (size_t)(end - p)), *stop = newline ? newline : end;
        size_t n = (size_t)(stop - p);
        n -= n && p[n - 1] == '\r';
        memcpy(text, p, n);
        if (n && !(line == 1 && n >= 8 && !memcmp(p, "#version", 8)))
            ok = merge_line(f, t, text, n, line, rank++);
        p = newline ? newline + 1 : end;
    }
    kl_memory_free(text);
    return ok;
}

/* ---- both ---- */

bool gpt2_is_llmc(const kl_file *f) { return f->size >= 4 && llmc_number(f, 0) == LLMC_MAGIC; }

bool gpt2_read_vocabulary(kl_file *f, kl_tokenizer *t, bool encodes)
{
    t->byte_level = t->by_rounds = true;
    if (gpt2_is_llmc(f) ? !llmc_read(f, t) : !vocab_read(f, t))
        return false;
    for (int i = 0; encodes && i < 256; i++)
        if (t->byte[i] < 0)
            return file_fails(&f->why, KL_ERR_IO,
                              "%.250s: byte 0x%02x has no token, so that not all text can be encoded", f->path,
                              (unsigned)i);
    struct text_step *split = step_add(f, &t->splitter, STEP_SPLIT, 0);
    if (!split || !step_pattern(f, split, gpt2_pattern, strlen(gpt2_pattern), false, 0, NULL))
        return false;
    split->behaviour = SPLIT_ISOLATED;
    return true;
}
