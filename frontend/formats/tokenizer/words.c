/* Words as tokens: byte pairs by rank or by score, Unigram, WordPiece. */
#include "tokenizer.h"
#include <string.h>

bool ids_add(struct token_ids *ids, int32_t id)
{
    if (ids->n < ids->room)
        ids->id[ids->n] = id;
    ids->n++;
    return true;
}

/* ---- byte pairs ---- */

/* In token_word.id: no token begins here; characters that have none. */
enum { ID_NONE = -1, ID_UNKNOWN = -2 };

void word_free(struct token_word *w)
{
    kl_memory_free(w->id);
    kl_memory_free(w->heap);
    kl_memory_free(w->path);
}

static bool word_room(struct token_word *w, size_t n)
{
    if (n <= w->cap)
        return true;
    size_t cap = n > 128 ? 2 * n : 256;
    kl_memory_free(w->id);
    kl_memory_free(w->heap);
    w->id = kl_memory_alloc(cap * 3 * sizeof *w->id);
    w->heap = kl_memory_alloc(cap * 5 * sizeof *w->heap); /* a word has at most n - 1 merges, each of which makes at
                                                             most two pairs */
    w->cap = w->id && w->heap ? cap : 0;
    if (w->cap) {
        w->next = w->id + cap;
        w->last = w->next + cap;
        w->found = w->heap + 3 * cap;
    }
    return w->cap > 0;
}

/* The heap has the pairs that may be merged, as rank << 32 | position of the left token, the lowest on top. */
static void heap_push(struct token_word *w, uint64_t x)
{
    size_t i = w->heap_n++;
    for (; i > 0 && w->heap[(i - 1) / 2] > x; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = x;
}

static void heap_pop(struct token_word *w)
{
    uint64_t x = w->heap[--w->heap_n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->heap_n; i = child) {
        child += child + 1 < w->heap_n && w->heap[child + 1] < w->heap[child];
        if (w->heap[child] >= x)
            break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = x;
}

/* The token that the one at `at` and the next one become, and its rank; false: these two are not merged. */
static bool word_merge(const struct token_word *w, int32_t at, int32_t *id, uint32_t *rank)
{
    int32_t next = at < 0 ? -1 : w->next[at], past;
    if (next < 0 || w->id[at] == ID_NONE)
        return false;
    if (w->t->model == MODEL_PAIRS) {
        const struct token_merge *m =
            w->id[at] >= 0 && w->id[next] >= 0 ? token_merge_of(w->t, w->id[at], w->id[next]) : NULL;
        *id = m ? m->id : -1;
        *rank = m ? (uint32_t)m->rank : 0;
        return m != NULL;
    }
    past = w->next[next] < 0 ? w->n : w->next[next];
    *id = (int32_t)token_find(w->t, (const char *)w->text + at, (size_t)(past - at));
    if (*id < 0 || w->t->type[*id] != TOKEN_NORMAL)
        return false;
    *rank = (uint32_t)w->t->score[*id];
    return true;
}

static void word_found(struct token_word *w, int32_t at)
{
    int32_t id;
    uint32_t rank;
    if (!word_merge(w, at, &id, &rank))
        return;
    uint64_t x = (uint64_t)rank << 32 | (uint32_t)at;
    if (w->t->by_rounds)
        w->found[w->found_n++] = x;
    else
        heap_push(w, x);
}

/* Merges the pair of the lowest rank, the leftmost first, again and again.  Pairs that no longer exist when they are
 * taken from the heap are skipped.  by_rounds: all pairs of a rank are merged before those that these merges make are
 * looked at. */
static void word_merge_all(struct token_word *w)
{
    while (w->heap_n > 0) {
        uint64_t top = w->heap[0] >> 32;
        w->found_n = 0;
        do {
            int32_t at = (int32_t)(w->heap[0] & 0x7fffffff), right, id;
            uint32_t rank;
            heap_pop(w);
            if (!word_merge(w, at, &id, &rank) || rank != top)
                continue;
            right = w->next[at];
            w->id[at] = id;
            w->id[right] = ID_NONE;
            w->next[at] = w->next[right];
            if (w->next[at] >= 0)
                w->last[w->next[at]] = at;
            word_found(w, w->last[at]);
            word_found(w, at);
        } while (w->t->by_rounds && w->heap_n > 0 && w->heap[0] >> 32 == top);
        for (size_t i = 0; i < w->found_n; i++)
            heap_push(w, w->found[i]);
    }
}

static void word_link(struct token_word *w, int32_t at, int32_t id, int32_t *before)
{
    w->id[at] = id;
    w->next[at] = -1;
    w->last[at] = *before;
    if (*before >= 0)
        w->next[*before] = at;
    *before = at;
}

/* Have all bytes of a character a token? */
static bool word_has_bytes(const kl_tokenizer *t, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (t->byte[p[i]] < 0)
            return false;
    return t->byte_fallback;
}

/* The token of a character; a suffix, if there is one, belongs to the last one of the word. */
static int32_t character_token(const struct token_word *w, size_t i, size_t n)
{
    const char *text = (const char *)w->text + i;
    char with_suffix[80];
    if (w->t->suffix && (size_t)w->n == i + n && n + strlen(w->t->suffix) < sizeof with_suffix) {
        memcpy(with_suffix, text, n);
        memcpy(with_suffix + n, w->t->suffix, strlen(w->t->suffix));
        return (int32_t)token_find(w->t, with_suffix, n + strlen(w->t->suffix));
    }
    return (int32_t)token_find(w->t, text, n);
}

/* Each character, or byte, is a token; pairs: one without a token is bytes, or the unknown token, or nothing. */
static void word_begin(struct token_word *w)
{
    const kl_tokenizer *t = w->t;
    int32_t before = -1;
    size_t n;
    bool unknown = false;
    w->heap_n = w->found_n = 0;
    w->first = -1;
    for (size_t i = 0; i < (size_t)w->n; i += n) {
        n = 1;
        if (!t->byte_level)
            unicode_at(w->text + i, w->text + w->n, &n);
        int32_t id = t->byte_level ? t->byte[w->text[i]] : character_token(w, i, n);
        for (size_t k = 0; k < n; k++)
            w->id[i + k] = ID_NONE;
        bool known = id >= 0 && (t->model == MODEL_PAIRS || t->type[id] == TOKEN_NORMAL || t->type[id] == TOKEN_USER);
        if (known) {
            word_link(w, (int32_t)i, id, &before);
        } else if (t->model == MODEL_SCORES) {
            word_link(w, (int32_t)i, ID_UNKNOWN, &before);
        } else if (word_has_bytes(t, w->text + i, n)) {
            for (size_t k = 0; k < n; k++)
                word_link(w, (int32_t)(i + k), t->byte[w->text[i + k]], &before);
        } else if (t->unknown >= 0 && !(unknown && t->fuse_unknown)) {
            word_link(w, (int32_t)i, t->unknown, &before);
            unknown = true;
            continue;
        } else {
            continue;
        }
        unknown = false;
    }
    for (int32_t i = 0; i < w->n && w->first < 0; i++)
        w->first = w->id[i] == ID_NONE ? -1 : i;
    for (int32_t i = w->first; i >= 0; i = w->next[i])
        word_found(w, i);
    for (size_t i = 0; i < w->found_n; i++)
        heap_push(w, w->found[i]);
}

/* The tokens of a character that has none. */
static void unknown_add(struct token_word *w, const uint8_t *p, size_t n, struct token_ids *ids)
{
    bool bytes = word_has_bytes(w->t, p, n);
    for (size_t i = 0; bytes && i < n; i++)
        ids_add(ids, w->t->byte[p[i]]);
    if (!bytes && w->t->unknown >= 0 && !(w->unknown_before && w->t->fuse_unknown))
        ids_add(ids, w->t->unknown);
    w->unknown_before = !bytes;
}

static bool pairs_encode(struct token_word *w, struct token_ids *ids)
{
    int32_t whole = w->t->whole_words ? (int32_t)token_find(w->t, (const char *)w->text, (size_t)w->n) : -1;
    if (whole >= 0 && w->t->type[whole] == TOKEN_NORMAL)
        return ids_add(ids, whole);
    if (!word_room(w, (size_t)w->n))
        return false;
    word_begin(w);
    word_merge_all(w);
    for (int32_t i = w->first; i >= 0; i = w->next[i]) {
        int32_t past = w->next[i] < 0 ? w->n : w->next[i];
        if (w->id[i] >= 0)
            w->unknown_before = !ids_add(ids, w->id[i]);
        else
            unknown_add(w, w->text + i, (size_t)(past - i), ids);
    }
    return true;
}

/* ---- Unigram: Viterbi's algorithm; the best tokens up to each position ---- */

static bool path_room(struct token_word *w, size_t n)
{
    if (n > w->path_cap) {
        kl_memory_free(w->path);
        w->path = kl_memory_alloc(2 * n * sizeof *w->path);
        w->path_cap = w->path ? 2 * n : 0;
    }
    return w->path != NULL;
}

static void path_reach(struct token_word *w, size_t from, size_t to, int32_t id, double score)
{
    struct word_path *p = &w->path[to];
    if (p->from < 0 || score > p->score)
        *p = (struct word_path){score, (int32_t)from, id};
}

/* Extends the best path to i by each token that begins there. */
static void path_extend(struct token_word *w, size_t i, size_t character)
{
    const kl_tokenizer *t = w->t;
    bool single = false;
    int32_t node = 0;
    double here = w->path[i].score;
    for (size_t k = i; k < (size_t)w->n; k++) {
        const struct trie_edge *e = trie_step(&t->trie, node, w->text[k]);
        if (!e)
            break;
        node = e->to;
        if (e->id < 0)
            continue;
        single |= k + 1 == i + character;
        path_reach(w, i, k + 1, e->id, here + t->score[e->id]);
    }
    if (!single)
        path_reach(w, i, i + character, ID_UNKNOWN, here + t->unknown_score);
}

static bool unigram_encode(struct token_word *w, struct token_ids *ids)
{
    size_t n = (size_t)w->n, character;
    if (!path_room(w, n + 1))
        return false;
    for (size_t i = 0; i <= n; i++)
        w->path[i].from = -1;
    w->path[0] = (struct word_path){0, 0, 0};
    for (size_t i = 0; i < n; i += character) {
        unicode_at(w->text + i, w->text + n, &character);
        path_extend(w, i, character);
    }
    for (int32_t at = w->n, before; at > 0; at = before) { /* from: where the next token ends, instead */
        before = w->path[at].from;
        w->path[before].score = at;
    }
    for (int32_t at = 0, past; at < w->n; at = past) {
        past = (int32_t)w->path[at].score;
        if (w->path[past].id >= 0)
            w->unknown_before = !ids_add(ids, w->path[past].id);
        else
            unknown_add(w, w->text + at, (size_t)(past - at), ids);
    }
    return true;
}

/* ---- WordPiece ---- */

/* Goes down the trie by a text; -1: no token begins with it. */
static int32_t trie_walk(const struct token_trie *trie, int32_t node, const char *text)
{
    for (; *text && node >= 0; text++) {
        const struct trie_edge *e = trie_step(trie, node, (uint8_t)*text);
        node = e ? e->to : -1;
    }
    return node;
}

static bool word_pieces_encode(struct token_word *w, struct token_ids *ids)
{
    const kl_tokenizer *t = w->t;
    int64_t characters = 0, before = ids->n;
    size_t length, n = (size_t)w->n;
    for (size_t i = 0; i < n; i += length, characters++)
        unicode_at(w->text + i, w->text + n, &length);
    bool ok = characters <= t->max_word;
    for (size_t i = 0, past = 0; ok && i < n; i = past) {
        int32_t node = trie_walk(&t->trie, 0, i ? t->next_prefix : t->first_prefix), id = -1;
        for (size_t k = i; node >= 0 && k < n; k++) {
            const struct trie_edge *e = trie_step(&t->trie, node, w->text[k]);
            node = e ? e->to : -1;
            if (e && e->id >= 0) {
                id = e->id;
                past = k + 1;
            }
        }
        ok = id >= 0;
        if (ok)
            ids_add(ids, id);
    }
    if (!ok) {
        ids->n = before;
        if (t->unknown >= 0)
            ids_add(ids, t->unknown);
    }
    return true;
}

bool word_encode(struct token_word *w, const uint8_t *text, size_t n, struct token_ids *ids)
{
    w->text = text;
    w->n = (int32_t)n;
    switch (w->t->model) {
    case MODEL_PAIRS:
    case MODEL_SCORES: return pairs_encode(w, ids);
    case MODEL_UNIGRAM: return unigram_encode(w, ids);
    default: return word_pieces_encode(w, ids);
    }
}
