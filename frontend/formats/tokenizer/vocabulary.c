/* A tokenizer's tokens: by id, by text, by their first bytes; the pairs that are merged. */
#include "tokenizer.h"
#include "frontend/formats/json.h"
#include <string.h>

/* ---- memory that lives as long as the tokenizer ---- */

struct token_memory { struct token_memory *next; char bytes[]; };

void *token_memory(kl_file *f, kl_tokenizer *t, size_t bytes)
{
    struct token_memory *m = bytes < SIZE_MAX / 2 ? kl_memory_alloc(sizeof *m + bytes) : NULL;
    if (!m)
        return file_no_memory(f), NULL;
    m->next = t->memory;
    t->memory = m;
    return m->bytes;
}

const char *token_string(kl_file *f, kl_tokenizer *t, const char *text, size_t n)
{
    char *s = token_memory(f, t, n + 1);
    if (s && n)
        memcpy(s, text, n);
    return s;
}

void tokens_free_memory(kl_tokenizer *t)
{
    for (struct token_memory *m = t->memory, *next; m; m = next) {
        next = m->next;
        kl_memory_free(m);
    }
}

/* ---- hash tables ---- */

static uint64_t token_hash_bytes(const uint8_t *p, int64_t n) /* FNV-1a, with a final mixing step */
{
    uint64_t h = 0xcbf29ce484222325;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3;
    return h ^ h >> 29;
}

static uint64_t token_hash_pair(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15;
    return h ^ h >> 32;
}

/* A power of two for the size of a table that is at most half full with n entries. */
uint64_t token_slots_for(int64_t n)
{
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)n)
        slots *= 2;
    return slots;
}

uint64_t token_slot(const kl_tokenizer *t, const uint8_t *text, int64_t n)
{
    uint64_t i = token_hash_bytes(text, n) & (t->text_slots - 1);
    for (; t->by_text[i] >= 0; i = (i + 1) & (t->text_slots - 1)) {
        int64_t start = t->start[t->by_text[i]];
        if (t->start[t->by_text[i] + 1] - start == n && !memcmp(t->text + start, text, (size_t)n))
            break;
    }
    return i;
}

/* ---- tokens ---- */

bool tokens_room(kl_file *f, kl_tokenizer *t, int64_t n, size_t bytes)
{
    t->text_slots = token_slots_for(n);
    t->text = kl_memory_alloc(bytes + 1);
    t->start = kl_memory_alloc(((size_t)n + 1) * sizeof *t->start);
    t->by_text = kl_memory_alloc(t->text_slots * sizeof *t->by_text);
    if (!t->text || !t->start || !t->by_text)
        return file_no_memory(f);
    memset(t->by_text, -1, t->text_slots * sizeof *t->by_text);
    return true;
}

/* The index of each id's entry, + 1; NULL: f->why. */
static int64_t *tokens_sort(kl_file *f, kl_tokenizer *t, const struct token_entry *e, int64_t n, const char *field)
{
    int64_t most = 2 * n + 100000; /* ids may leave gaps, but a few tokens may not take much memory */
    t->count = 0;
    for (int64_t i = 0; i < n; i++) {
        if (e[i].id < 0 || e[i].id >= most)
            return file_bad(f, e[i].at, field, "id %lld of %lld tokens", (long long)e[i].id, (long long)n), NULL;
        t->count = e[i].id + 1 > t->count ? e[i].id + 1 : t->count;
    }
    int64_t *place = kl_memory_alloc((size_t)t->count * sizeof *place + 1);
    if (!place)
        return file_no_memory(f), NULL;
    for (int64_t i = 0; i < n; i++) {
        const struct token_entry *other = place[e[i].id] ? &e[place[e[i].id] - 1] : NULL;
        if (other && (other->n != e[i].n || memcmp(other->text, e[i].text, e[i].n) != 0)) {
            file_bad(f, e[i].at, field, "two tokens have the id %lld: \"%.60s\" and \"%.60s\"", (long long)e[i].id,
                     other->text, e[i].text);
            kl_memory_free(place);
            return NULL;
        }
        place[e[i].id] = i + 1;
    }
    return place;
}

static void tokens_insert(kl_tokenizer *t, const struct token_entry *e)
{
    int32_t id = (int32_t)e->id;
    uint64_t slot = token_slot(t, (const uint8_t *)e->text, (int64_t)e->n);
    if (e->n && (t->by_text[slot] < 0 || e->type == TOKEN_NORMAL || e->type == TOKEN_USER))
        t->by_text[slot] = id;
    t->type[id] = (uint8_t)e->type;
    if (t->score)
        t->score[id] = e->score;
}

bool tokens_build(kl_file *f, kl_tokenizer *t, const struct token_entry *e, int64_t n, const char *field)
{
    size_t bytes = 0;
    if (n < 1 || n > INT32_MAX / 4)
        return file_bad(f, 0, field, n < 1 ? "no tokens" : "too many tokens");
    int64_t *place = tokens_sort(f, t, e, n, field);
    for (int64_t i = 0; i < n; i++)
        bytes += e[i].n;
    bool ok = place && tokens_room(f, t, t->count, bytes);
    if (ok) {
        t->type = kl_memory_alloc((size_t)t->count);
        if (t->model == MODEL_SCORES || t->model == MODEL_UNIGRAM)
            t->score = kl_memory_alloc((size_t)t->count * sizeof *t->score);
        if (!t->type || (!t->score && (t->model == MODEL_SCORES || t->model == MODEL_UNIGRAM)))
            ok = file_no_memory(f);
    }
    for (int64_t id = 0; ok && id < t->count; id++) {
        const struct token_entry *one = place[id] ? &e[place[id] - 1] : NULL;
        if (one && one->n)
            memcpy(t->text + t->start[id], one->text, one->n);
        t->start[id + 1] = t->start[id] + (int64_t)(one ? one->n : 0);
        t->type[id] = TOKEN_NONE;
    }
    for (int64_t i = 0; ok && i < n; i++)
        if (place[e[i].id] == i + 1)
            tokens_insert(t, &e[i]);
    kl_memory_free(place);
    return ok;
}

int64_t token_find(const kl_tokenizer *t, const char *text, size_t n)
{
    return n ? t->by_text[token_slot(t, (const uint8_t *)text, (int64_t)n)] : -1;
}

void tokens_find_bytes(kl_tokenizer *t)
{
    for (int i = 0; i < 256; i++) {
        char text[8] = {(char)i};
        if (!t->byte_level)
            kl_format(text, sizeof text, "<0x%02X>", (unsigned)i);
        t->byte[i] = (int32_t)token_find(t, text, t->byte_level ? 1 : 6);
        if (!t->byte_level && t->byte[i] >= 0)
            t->type[t->byte[i]] = TOKEN_BYTE;
    }
}

/* Has a token U+2581 behind another character?  Then text may not be cut in front of U+2581. */
static bool tokens_cross_mark(const kl_tokenizer *t)
{
    static const char mark[] = "\xe2\x96\x81";
    for (int64_t i = 0; i < t->count; i++) {
        bool merged = t->type[i] == TOKEN_NORMAL || t->type[i] == TOKEN_USER;
        for (int64_t k = t->start[i] + 3; merged && k + 3 <= t->start[i + 1]; k++)
            if (!memcmp(t->text + k, mark, 3) && memcmp(t->text + k - 3, mark, 3) != 0)
                return true;
    }
    return token_find(t, mark, 3) < 0;
}

static int64_t tokens_find_first(const kl_tokenizer *t, const char *const *names)
{
    int64_t id = -1;
    for (; id < 0 && *names; names++)
        id = token_find(t, *names, strlen(*names));
    return id;
}

bool tokens_finish(kl_file *f, kl_tokenizer *t)
{
    static const char *const usual[KL_TOKEN_SPECIALS][9] = {
        {"<|begin_of_text|>", "<bos>", "<s>", "[CLS]", "<|startoftext|>",
         "<\xef\xbd\x9c" "begin\xe2\x96\x81of\xe2\x96\x81" "sentence\xef\xbd\x9c>", "<|endoftext|>"},
        {"<|end_of_text|>", "<eos>", "</s>", "[SEP]", "<|im_end|>",
         "<\xef\xbd\x9c" "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>", "<|endoftext|>"},
        {"<unk>", "[UNK]"}, {"<pad>", "[PAD]"}};
    if (t->byte_level || t->byte_fallback)
        tokens_find_bytes(t);
    t->cut_at_mark = !t->byte_level && !t->suffix && t->model != MODEL_WORDS && !tokens_cross_mark(t);
    if (t->special[KL_TOKEN_UNKNOWN] < 0)
        t->special[KL_TOKEN_UNKNOWN] = t->unknown;
    if (t->special[KL_TOKEN_BOS] < 0 && t->begin_n)
        t->special[KL_TOKEN_BOS] = t->begin[0];
    if (t->special[KL_TOKEN_EOS] < 0 && t->end_n)
        t->special[KL_TOKEN_EOS] = t->end[t->end_n - 1];
    for (int i = 0; i < KL_TOKEN_SPECIALS; i++)
        if (t->special[i] < 0)
            t->special[i] = tokens_find_first(t, usual[i]);
    return t->model == MODEL_PAIRS || t->model == MODEL_SCORES || tokens_trie(f, t);
}

static int byte_of_character(uint32_t c)
{
    if (c >= 256)
        return c < 289 ? (int)c - 256 : c < 323 ? (int)c - 289 + 127 : c == 323 ? 173 : -1;
    return (c >= 33 && c <= 126) || (c >= 161 && c != 173) ? (int)c : -1;
}

/* Printable characters of Latin-1 stand for themselves; the other bytes, in their order, are the characters from 256
 * on. */
int64_t bytes_of_characters(uint8_t *text, size_t n)
{
    uint8_t *to = text, *end = text + n;
    size_t length;
    for (uint8_t *p = text; p < end; p += length)
        if (byte_of_character(unicode_at(p, end, &length)) < 0)
            return -1;
    for (uint8_t *p = text; p < end; p += length)
        *to++ = (uint8_t)byte_of_character(unicode_at(p, end, &length));
    return to - text;
}

/* ---- merges ---- */

bool merges_room(kl_file *f, kl_tokenizer *t, int64_t n)
{
    t->merge_slots = token_slots_for(n);
    t->merge = kl_memory_alloc(t->merge_slots * sizeof *t->merge);
    if (!t->merge)
        return file_no_memory(f);
    for (uint64_t i = 0; i < t->merge_slots; i++)
        t->merge[i].id = -1;
    return true;
}

const struct token_merge *token_merge_of(const kl_tokenizer *t, int32_t left, int32_t right)
{
    uint64_t i = token_hash_pair(left, right) & (t->merge_slots - 1);
    for (; t->merge[i].id >= 0; i = (i + 1) & (t->merge_slots - 1))
        if (t->merge[i].left == left && t->merge[i].right == right)
            return &t->merge[i];
    return NULL;
}

void merge_put(kl_tokenizer *t, struct token_merge m)
{
    uint64_t i = token_hash_pair(m.left, m.right) & (t->merge_slots - 1);
    while (t->merge[i].id >= 0)
        i = (i + 1) & (t->merge_slots - 1);
    t->merge[i] = m;
}

/* The token of a half of a merge; its bytes are appended to `both`. */
static int32_t merge_half(const kl_tokenizer *t, uint8_t *text, size_t n, struct text_buffer *both)
{
    int64_t bytes = t->byte_level ? bytes_of_characters(text, n) : -1;
    n = bytes >= 0 ? (size_t)bytes : n;
    buffer_add(both, text, n);
    return (int32_t)token_find(t, (const char *)text, n);
}

bool merge_add(kl_file *f, kl_tokenizer *t, struct merge_text m, int32_t rank, struct text_buffer *both, size_t at,
               const char *field)
{
    both->n = 0;
    int32_t left = merge_half(t, m.left, m.left_n, both), right = merge_half(t, m.right, m.right_n, both);
    int32_t id = (int32_t)token_find(t, (const char *)both->at, both->n);
    if (both->failed)
        return file_no_memory(f);
    if (left < 0 || right < 0 || id < 0)
        return file_bad(f, at, field, "merge %d: %s is not in the vocabulary", (int)rank,
                        left < 0 ? "the first token" : right < 0 ? "the second token" : "what the two become");
    if (!token_merge_of(t, left, right))
        merge_put(t, (struct token_merge){left, right, rank, id});
    return true;
}

/* ---- texts by their first bytes ---- */

bool trie_room(kl_file *f, struct token_trie *trie, size_t bytes)
{
    if (bytes > INT32_MAX / 4)
        return file_bad(f, 0, NULL, "%zu bytes of tokens are too many", bytes);
    trie->slots = token_slots_for((int64_t)bytes + 1);
    trie->edge = kl_memory_alloc(trie->slots * sizeof *trie->edge);
    trie->nodes = 1;
    return trie->edge || file_no_memory(f);
}

/* The slot of an edge; to is 0 in a free one. */
static struct trie_edge *trie_slot(const struct token_trie *trie, int32_t node, uint8_t byte)
{
    uint64_t i = token_hash_pair(node, byte) & (trie->slots - 1);
    while (trie->edge[i].to && (trie->edge[i].node != node || trie->edge[i].byte != byte))
        i = (i + 1) & (trie->slots - 1);
    return &trie->edge[i];
}

void trie_put(struct token_trie *trie, const uint8_t *text, size_t n, int32_t id)
{
    int32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        struct trie_edge *e = trie_slot(trie, node, text[i]);
        if (!e->to)
            *e = (struct trie_edge){node, text[i], trie->nodes++, -1};
        node = e->to;
        if (i + 1 == n)
            e->id = id;
    }
}

const struct trie_edge *trie_step(const struct token_trie *trie, int32_t node, uint8_t byte)
{
    const struct trie_edge *e = trie_slot(trie, node, byte);
    return e->to ? e : NULL;
}

bool tokens_trie(kl_file *f, kl_tokenizer *t)
{
    if (!trie_room(f, &t->trie, (size_t)t->start[t->count]))
        return false;
    for (int64_t i = 0; i < t->count; i++)
        if (t->type[i] == TOKEN_NORMAL || t->type[i] == TOKEN_USER)
            trie_put(&t->trie, t->text + t->start[i], (size_t)(t->start[i + 1] - t->start[i]), (int32_t)i);
    return true;
}

/* ---- base64 ---- */

int base64_value(uint8_t c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+' ? 62 : c == '/' ? 63 : -1;
}
