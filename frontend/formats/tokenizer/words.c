/* Encoding (<kiln/train/tokenizer.h>): splits text into words by GPT-2's pattern, and words into tokens. */
#include "frontend/formats/json.h"
#include "tokenizer.h"
#include "unicode_classes.h"
#include <string.h>

/* ---- words ---- */

enum character { OTHER, LETTER, NUMBER, SPACE };

static bool in_ranges(const struct unicode_range *range, size_t n, uint32_t c)
{
    size_t low = 0, high = n; /* binary search for the first range that ends at c or after it */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (range[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && range[low].first <= c;
}

static bool is_white_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* The class of the character at p, and its number of bytes; a byte that is not UTF-8 is a character of class OTHER. */
static enum character character_at(const uint8_t *p, const uint8_t *end, size_t *n)
{
    size_t length = utf8_length(p, end);
    uint32_t c = length <= 1 ? *p : length == 2 ? *p & 31u : length == 3 ? *p & 15u : *p & 7u;
    *n = length ? length : 1;
    if (!length)
        return OTHER;
    for (size_t i = 1; i < length; i++)
        c = c << 6 | (p[i] & 63u);
    if (is_white_space(c))
        return SPACE;
    return in_ranges(unicode_letters, sizeof unicode_letters / sizeof *unicode_letters, c)   ? LETTER
           : in_ranges(unicode_numbers, sizeof unicode_numbers / sizeof *unicode_numbers, c) ? NUMBER
                                                                                             : OTHER;
}

/* GPT-2's pattern is
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
int64_t word_length(const uint8_t *text, const uint8_t *end)
{
    static const char *const contraction[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; *text == '\'' && i < sizeof contraction / sizeof *contraction; i++) {
        size_t n = strlen(contraction[i]);
        if ((size_t)(end - text) >= n && !memcmp(text, contraction[i], n))
            return (int64_t)n;
    }
    size_t n;
    const uint8_t *p = text + (*text == ' ');
    enum character class = p < end ? character_at(p, end, &n) : SPACE;
    if (class != SPACE) {
        while (p < end && character_at(p, end, &n) == class)
            p += n;
        return p - text;
    }
    const uint8_t *last = text; /* the last character of the white space */
    for (p = text; p < end && character_at(p, end, &n) == SPACE; p += n)
        last = p;
    return (p < end && last > text ? last : p) - text; /* a space before a word belongs to the word */
}

/* ---- merges ---- */

/* A word as a list of tokens, which becomes shorter with each merge.  The heap has the pairs that may be merged, as
 * rank << 32 | position of the left token, the lowest on top.  Pairs that no longer exist when they are taken from it
 * are skipped. */
struct token_word {
    const kl_tokenizer *t;
    int64_t cap;              /* capacity in bytes of a word */
    int32_t *id;              /* id of the token that begins at a byte; -1: none begins there */
    int32_t *next, *last;     /* positions where the next token and the one before begin; -1: there is none */
    uint64_t *heap, *found;   /* found: pairs that were made by the merges of one rank */
    int64_t heap_n, found_n;
};

static void word_free(struct token_word *w)
{
    kl_memory_free(w->id);
    kl_memory_free(w->heap);
}

static bool word_room(struct token_word *w, int64_t n)
{
    if (n <= w->cap)
        return true;
    int64_t cap = n > 128 ? 2 * n : 256;
    word_free(w);
    w->id = kl_memory_alloc((size_t)cap * 3 * sizeof *w->id);
    w->heap = kl_memory_alloc((size_t)cap * 5 * sizeof *w->heap); /* a word has at most n - 1 merges, each of which
                                                                     makes at most two pairs */
    w->cap = w->id && w->heap ? cap : 0;
    if (w->cap) {
        w->next = w->id + cap;
        w->last = w->next + cap;
        w->found = w->heap + 3 * cap;
    }
    return w->cap > 0;
}

static void heap_push(struct token_word *w, uint64_t x)
{
    int64_t i = w->heap_n++;
    for (; i > 0 && w->heap[(i - 1) / 2] > x; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = x;
}

static void heap_pop(struct token_word *w)
{
    uint64_t x = w->heap[--w->heap_n];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < w->heap_n; i = child) {
        child += child + 1 < w->heap_n && w->heap[child + 1] < w->heap[child];
        if (w->heap[child] >= x)
            break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = x;
}

/* The merge of the token at `at` with the next one; NULL: these two are not merged. */
static const struct token_merge *word_merge(const struct token_word *w, int32_t at)
{
    return at < 0 || w->id[at] < 0 || w->next[at] < 0 ? NULL : token_merge_of(w->t, w->id[at], w->id[w->next[at]]);
}

static void word_found(struct token_word *w, int32_t at)
{
    const struct token_merge *m = word_merge(w, at);
    if (m)
        w->found[w->found_n++] = (uint64_t)m->rank << 32 | (uint32_t)at;
}

/* Merges all pairs of the lowest rank, from left to right, before it adds the pairs that these merges make. */
static void word_merge_all(struct token_word *w)
{
    while (w->heap_n > 0) {
        uint64_t rank = w->heap[0] >> 32;
        for (w->found_n = 0; w->heap_n > 0 && w->heap[0] >> 32 == rank; heap_pop(w)) {
            int32_t at = (int32_t)(w->heap[0] & 0x7fffffff), right;
            const struct token_merge *m = word_merge(w, at);
            if (!m || (uint64_t)m->rank != rank)
                continue;
            right = w->next[at];
            w->id[at] = m->id;
            w->id[right] = -1;
            w->next[at] = w->next[right];
            if (w->next[at] >= 0)
                w->last[w->next[at]] = at;
            word_found(w, w->last[at]);
            word_found(w, at);
        }
        for (int64_t i = 0; i < w->found_n; i++)
            heap_push(w, w->found[i]);
    }
}

/* Splits a word of n bytes into tokens.  Returns their number. */
static int64_t word_encode(struct token_word *w, const uint8_t *text, int64_t n, int32_t *ids)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        w->id[i] = w->t->byte[text[i]];
        w->next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
        w->last[i] = (int32_t)i - 1;
    }
    w->heap_n = w->found_n = 0;
    for (int64_t i = 0; i < n; i++)
        word_found(w, (int32_t)i);
    for (int64_t i = 0; i < w->found_n; i++)
        heap_push(w, w->found[i]);
    word_merge_all(w);
    for (int32_t i = 0; i >= 0; i = w->next[i])
        ids[count++] = w->id[i];
    return count;
}

kl_status kl_tokenizer_encode(const kl_tokenizer *t, const char *text, int64_t bytes, int32_t *ids, int64_t *count)
{
    if (count)
        *count = 0;
    if (!t || !count || bytes < 0 || (bytes && (!text || !ids)))
        return kl_failf(NULL, KL_ERR_ARGUMENT, "tokenizer_encode: an argument is NULL or negative");
    if (!t->merge || bytes > INT32_MAX)
        return kl_failf(NULL, KL_ERR_ARGUMENT, t->merge ? "tokenizer_encode: %lld bytes are too many in one call"
                                                        : "tokenizer_encode: the tokenizer was opened without merges",
                        (long long)bytes);
    struct token_word w = {.t = t};
    kl_status s = KL_OK;
    int64_t n = 0;
    for (const uint8_t *p = (const uint8_t *)text, *end = p + bytes; s == KL_OK && bytes && p < end;) {
        int64_t length = word_length(p, end);
        if (word_room(&w, length))
            n += word_encode(&w, p, length, ids + n);
        else
            s = kl_failf(NULL, KL_ERR_MEMORY, "tokenizer_encode: out of memory for a word of %lld bytes",
                         (long long)length);
        p += length;
    }
    word_free(&w);
    if (s == KL_OK)
        *count = n;
    return s;
}
