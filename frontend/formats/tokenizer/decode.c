/* Decoding (<kiln/train/tokenizer.h>): the tokens' texts, changed and joined. */
#include "tokenizer.h"
#include "frontend/formats/json.h"
#include <string.h>

/* Texts, one behind the other; text i ends at end[i]. */
struct token_list { struct text_buffer text; size_t *end; int64_t n; };

/* The byte that a text <0x00> to <0xFF> stands for; -1: it is another text. */
static int byte_of_token(const uint8_t *text, size_t n)
{
    int v = 0;
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        int c = text[i], lower = c | 32;
        if (!(c >= '0' && c <= '9') && !(lower >= 'a' && lower <= 'f'))
            return -1;
        v = v * 16 + (c <= '9' ? c - '0' : lower - 'a' + 10);
    }
    return v;
}

/* Appends text with `to` in place of each `from`. */
static void put_replaced(struct text_buffer *b, const uint8_t *text, size_t n, const char *from, const char *to)
{
    size_t length = strlen(from);
    for (size_t i = 0; i < n;) {
        bool found = n - i >= length && !memcmp(text + i, from, length);
        buffer_add(b, found ? to : (const char *)text + i, found ? strlen(to) : 1);
        i += found ? length : 1;
    }
}

/* What is written in front of punctuation and endings, without its space. */
static void put_word_piece(struct text_buffer *b, const uint8_t *text, size_t n)
{
    static const char *const pairs[][2] = {{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"},
                                           {" n't", "n't"}, {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"},
                                           {" 've", "'ve"}, {" 're", "'re"}};
    struct text_buffer work[2] = {{0}};
    buffer_add(&work[0], text, n);
    size_t count = sizeof pairs / sizeof *pairs;
    for (size_t i = 0; i < count; i++) {
        work[(i + 1) % 2].n = 0;
        put_replaced(&work[(i + 1) % 2], work[i % 2].at, work[i % 2].n, pairs[i][0], pairs[i][1]);
    }
    buffer_add(b, work[count % 2].at, work[count % 2].n);
    b->failed |= work[0].failed || work[1].failed;
    buffer_free(&work[0]);
    buffer_free(&work[1]);
}

static void join_word_piece(const struct text_step *s, const uint8_t *text, size_t n, bool first,
                            struct text_buffer *to)
{
    struct text_buffer b = {0};
    bool continues = n >= s->n && s->n && !memcmp(text, s->text, s->n);
    if (!first && !continues)
        buffer_add(&b, " ", 1);
    buffer_add(&b, text + (!first && continues ? s->n : 0), n - (!first && continues ? s->n : 0));
    if (s->clean)
        put_word_piece(to, b.at, b.n);
    else
        buffer_add(to, b.at, b.n);
    to->failed |= b.failed;
    buffer_free(&b);
}

/* Without up to `first` and `last` of a character at either end. */
static void join_stripped(const struct text_step *s, const uint8_t *text, size_t n, int64_t first,
                          struct text_buffer *to)
{
    for (int64_t i = 0; i < first && n >= s->n && !memcmp(text, s->text, s->n); i++, text += s->n, n -= s->n)
        continue;
    for (int64_t i = 0; i < s->last && n >= s->n && !memcmp(text + n - s->n, s->text, s->n); i++)
        n -= s->n;
    buffer_add(to, text, n);
}

/* One text by one step; first, last: of the list.  false: its pattern took too long. */
static bool join_text(const struct text_step *s, const uint8_t *text, size_t n, bool first, bool last,
                      struct text_buffer *to)
{
    int byte;
    switch (s->kind) {
    case STEP_BYTES:
        byte = byte_of_token(text, n);
        buffer_add(to, byte < 0 ? text : &(uint8_t){(uint8_t)byte}, byte < 0 ? n : 1);
        return true;
    case STEP_STRIP_TEXT: join_stripped(s, text, n, s->first, to); return true;
    case STEP_WORD_PIECES: join_word_piece(s, text, n, first, to); return true;
    case STEP_METASPACE_JOIN: put_replaced(to, text, n, s->text, first && s->prefix != PREFIX_NEVER ? "" : " ");
        return true;
    case STEP_SUFFIX_SPACE: put_replaced(to, text, n, s->text, last ? "" : " "); return true;
    default: return step_change(s, text, n, to);
    }
}

/* Does a step to all texts.  continued: text precedes the first one. */
static bool list_step(const struct text_step *s, struct token_list *l, bool continued)
{
    struct text_buffer to = {0};
    bool ok = true;
    if (s->kind == STEP_FUSE) {
        if (l->n)
            l->end[0] = l->text.n;
        l->n = l->n > 0;
        return true;
    }
    for (int64_t i = 0, from = 0; ok && i < l->n; i++) {
        struct text_step here = *s;
        if (continued && i == 0)
            here.first = 0;
        ok = join_text(&here, l->text.at + from, l->end[i] - (size_t)from, i == 0 && !continued, i + 1 == l->n, &to);
        from = (int64_t)l->end[i];
        l->end[i] = to.n;
    }
    to.failed |= l->text.failed;
    buffer_free(&l->text);
    l->text = to;
    return ok;
}

static bool is_skipped(const kl_tokenizer *t, int32_t id)
{
    return t->type && (t->type[id] == TOKEN_CONTROL || t->type[id] == TOKEN_UNKNOWN);
}

static bool list_fill(struct token_list *l, const kl_tokenizer *t, int64_t n, const int32_t *ids, bool skip_special)
{
    l->end = kl_memory_alloc((size_t)n * sizeof *l->end + 1);
    for (int64_t i = 0; l->end && i < n; i++) {
        if (skip_special && is_skipped(t, ids[i]))
            continue;
        if (t->join_by_spaces && l->n)
            buffer_add(&l->text, " ", 1);
        buffer_add(&l->text, t->text + t->start[ids[i]], (size_t)(t->start[ids[i] + 1] - t->start[ids[i]]));
        l->end[l->n++] = l->text.n;
    }
    return l->end && !l->text.failed;
}

kl_status kl_tokenizer_decode_with(const kl_tokenizer *t, int64_t n, const int32_t *ids,
                                   const kl_decode_options *options, char *text, int64_t room, int64_t *bytes)
{
    static const kl_decode_options zeros;
    const kl_decode_options *o = options ? options : &zeros;
    if (!t || n < 0 || (n && !ids) || room < 0 || (room && !text) || !bytes)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "tokenizer_decode: an argument is NULL or negative");
    *bytes = 0;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= t->count)
            return kl_failf(NULL, KL_ERR_ARGUMENT, "tokenizer_decode: id %d at %lld; there are %lld tokens",
                            (int)ids[i], (long long)i, (long long)t->count);
    struct token_list l = {0};
    bool ok = list_fill(&l, t, n, ids, o->skip_special), in_time = true;
    for (int i = 0; ok && in_time && i < t->decoder.n; i++) {
        in_time = list_step(&t->decoder.step[i], &l, o->continued);
        ok = !l.text.failed;
    }
    if (ok && in_time) {
        size_t fits = l.text.n < (size_t)room ? l.text.n : (size_t)room;
        if (fits)
            memcpy(text, l.text.at, fits);
        *bytes = (int64_t)l.text.n;
    }
    buffer_free(&l.text);
    kl_memory_free(l.end);
    if (!in_time)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "tokenizer_decode: a regular expression of the file takes too long");
    return ok ? KL_OK : kl_failf(NULL, KL_ERR_MEMORY, "tokenizer_decode: out of memory");
}

kl_status kl_tokenizer_decode(const kl_tokenizer *t, int64_t n, const int32_t *ids, char *text, int64_t room,
                              int64_t *bytes)
{
    return kl_tokenizer_decode_with(t, n, ids, NULL, text, room, bytes);
}
