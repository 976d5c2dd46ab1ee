/* Encoding (<kiln/train/tokenizer.h>): special tokens are taken out of a text, what is between them is normalized and
 * split into words, and words into tokens. */
#include "tokenizer.h"
#include "frontend/formats/json.h"
#include <string.h>

struct encoder {
    const kl_tokenizer *t;
    struct token_word word;
    struct token_ids ids;
    bool plain;               /* special tokens are text */
    const char *failed;       /* why */
};

static bool encode_fails(struct encoder *e, const char *why)
{
    e->failed = e->failed ? e->failed : why;
    return false;
}
static const char no_memory[] = "out of memory", too_long[] = "a regular expression of the file takes too long";

/* ---- splitting ---- */

static bool encode_split(struct encoder *e, int step, const uint8_t *text, size_t n, bool first);

/* Words in the order of the text: parts that are matches of a pattern and parts between them, joined by a rule. */
struct part_joiner {
    struct encoder *e;
    int step;
    const uint8_t *text;
    bool first;               /* the text is the beginning of what is encoded */
    const uint8_t *held, *held_end; /* a word that is not complete yet, or NULL */
    bool held_match, match_before;
};

static bool joiner_emit(struct part_joiner *j, const uint8_t *from, const uint8_t *to)
{
    return from == to || encode_split(j->e, j->step + 1, from, (size_t)(to - from), j->first && from == j->text);
}

static bool joiner_flush(struct part_joiner *j)
{
    const uint8_t *held = j->held;
    j->held = NULL;
    return !held || joiner_emit(j, held, j->held_end);
}

/* Ends what is held and holds this part. */
static bool joiner_hold(struct part_joiner *j, const uint8_t *from, const uint8_t *to, bool match)
{
    bool ok = joiner_flush(j);
    j->held = from;
    j->held_end = to;
    j->held_match = match;
    return ok;
}

static bool joiner_add(struct part_joiner *j, enum split_behaviour behaviour, const uint8_t *from, const uint8_t *to,
                       bool match)
{
    bool before = j->match_before, joins = false;
    if (from == to)
        return true;
    j->match_before = match;
    switch (behaviour) {
    case SPLIT_REMOVED: return match || joiner_emit(j, from, to);
    case SPLIT_ISOLATED: return joiner_emit(j, from, to);
    case SPLIT_CONTIGUOUS: joins = j->held && j->held_match == match; break;
    case SPLIT_WITH_PREVIOUS: joins = j->held && match && !before; break;
    case SPLIT_WITH_NEXT: joins = j->held && before && !match; break;
    }
    if (!joins)
        return joiner_hold(j, from, to, match);
    j->held_end = to;
    return true;
}

static bool split_by_pattern(struct encoder *e, int step, const uint8_t *text, size_t n, bool first)
{
    const struct text_step *s = &e->t->splitter.step[step];
    struct part_joiner j = {.e = e, .step = step, .text = text, .first = first};
    const uint8_t *end = text + n, *from = text, *match, *past;
    enum pattern_result found;
    bool ok = true;
    while (ok && (found = pattern_find(s->pattern, text, end, from, &match, &past)) != PATTERN_NONE) {
        if (found == PATTERN_TOO_LONG)
            return encode_fails(e, too_long);
        ok = joiner_add(&j, s->behaviour, from, match, s->invert) &&
             joiner_add(&j, s->behaviour, match, past, !s->invert);
        from = past;
    }
    return ok && joiner_add(&j, s->behaviour, from, end, s->invert) && joiner_flush(&j);
}

/* The step of a list of splits that are not by a pattern, on text that it changes first. */
static bool split_changed(struct encoder *e, int step, const uint8_t *text, size_t n, bool first)
{
    const struct text_step *s = &e->t->splitter.step[step];
    struct text_buffer b = {0};
    if (s->kind == STEP_PREFIX_SPACE) {
        buffer_add(&b, " ", 1);
        buffer_add(&b, text, n);
    } else {
        bool has = n >= s->n && !memcmp(text, s->text, s->n);
        if ((s->prefix == PREFIX_ALWAYS || (s->prefix == PREFIX_FIRST && first)) && !has && *text != ' ')
            buffer_add(&b, s->text, s->n);
        for (size_t i = 0; i < n; i++)
            buffer_add(&b, text[i] == ' ' ? s->text : (const char *)text + i, text[i] == ' ' ? s->n : 1);
    }
    bool ok = !b.failed || encode_fails(e, no_memory);
    size_t from = 0;
    for (size_t i = 1; ok && s->kind == STEP_METASPACE && s->split && i + s->n <= b.n; i++)
        if (!memcmp(b.at + i, s->text, s->n)) {
            ok = encode_split(e, step + 1, b.at + from, i - from, first && from == 0);
            from = i;
        }
    ok = ok && encode_split(e, step + 1, b.at + from, b.n - from, first && from == 0);
    buffer_free(&b);
    return ok;
}

static bool encode_piece(struct encoder *e, const uint8_t *text, size_t n)
{
    return word_encode(&e->word, text, n, &e->ids) || encode_fails(e, no_memory);
}

/* A word; long ones are cut where no token goes across. */
static bool encode_word(struct encoder *e, const uint8_t *text, size_t n)
{
    static const char mark[] = "\xe2\x96\x81";
    if (n > INT32_MAX)
        return encode_fails(e, "a word of 2^31 bytes or more");
    size_t from = 0;
    e->word.unknown_before = false;
    for (size_t i = 3; e->t->cut_at_mark && i + 3 <= n; i++)
        if (text[i] == 0xe2 && !memcmp(text + i, mark, 3) && memcmp(text + i - 3, mark, 3) != 0) {
            if (!encode_piece(e, text + from, i - from))
                return false;
            from = i;
        }
    return encode_piece(e, text + from, n - from);
}

static bool encode_split(struct encoder *e, int step, const uint8_t *text, size_t n, bool first)
{
    if (n == 0)
        return true;
    if (step == e->t->splitter.n)
        return encode_word(e, text, n);
    const struct text_step *s = &e->t->splitter.step[step];
    if (s->kind == STEP_SPLIT)
        return split_by_pattern(e, step, text, n, first);
    if (s->kind == STEP_PREFIX_SPACE && *text == ' ')
        return encode_split(e, step + 1, text, n, first);
    return split_changed(e, step, text, n, first);
}

/* ---- added tokens ---- */

/* The longest added token that begins at p; NULL: none does. */
static const struct added_token *added_at(const struct added_tokens *a, const uint8_t *p, const uint8_t *end,
                                          const uint8_t **past)
{
    const struct added_token *found = NULL;
    int32_t node = 0;
    if (!(a->first[*p / 32] >> *p % 32 & 1))
        return NULL;
    for (const struct trie_edge *e; p < end && (e = trie_step(&a->trie, node, *p)); node = e->to) {
        p++;
        if (e->id >= 0) {
            found = &a->token[e->id];
            *past = p;
        }
    }
    return found;
}

const uint8_t *added_find_special(const kl_tokenizer *t, const uint8_t *text, size_t n)
{
    const struct added_tokens *lists[] = {&t->raw, &t->normalized};
    const uint8_t *past;
    for (int i = 0; i < 2; i++)
        for (const uint8_t *p = text; lists[i]->n && p < text + n; p++) {
            const struct added_token *found = added_at(lists[i], p, text + n, &past);
            if (found && found->special)
                return p;
        }
    return NULL;
}

/* May the match be taken?  Not if it has to be a word and letters are beside it, or it is special in plain text. */
static bool added_is_taken(const struct encoder *e, const struct added_token *a, const uint8_t *text,
                           const uint8_t *end, const uint8_t *match, const uint8_t *past)
{
    size_t n;
    if (a->special && e->plain)
        return false;
    if (!a->word)
        return true;
    bool before = match > text && unicode_is_word(unicode_at(match - unicode_before(text, match), match, &n));
    bool after = past < end && unicode_is_word(unicode_at(past, end, &n));
    return !before && !after;
}

typedef bool (*between_fn)(struct encoder *e, const uint8_t *text, size_t n, bool first);

/* Takes added tokens out of a text; `between` encodes what is between them. */
static bool encode_added(struct encoder *e, const struct added_tokens *a, const uint8_t *text, size_t n, bool first,
                         between_fn between)
{
    const uint8_t *end = text + n, *from = text, *past;
    size_t length;
    for (const uint8_t *p = text; a->n && p < end;) {
        const struct added_token *found = added_at(a, p, end, &past);
        if (!found || !added_is_taken(e, found, text, end, p, past)) {
            p = found ? past : p + 1;
            continue;
        }
        const uint8_t *stop = p;
        while (found->left && stop > from &&
               unicode_is_space(unicode_at(stop - unicode_before(from, stop), stop, &length)))
            stop -= length;
        while (found->right && past < end && unicode_is_space(unicode_at(past, end, &length)))
            past += length;
        if (stop > from && !between(e, from, (size_t)(stop - from), first && from == text))
            return false;
        ids_add(&e->ids, found->id);
        p = from = past;
    }
    return from == end || between(e, from, (size_t)(end - from), first && from == text);
}

static bool encode_normalized(struct encoder *e, const uint8_t *text, size_t n, bool first)
{
    return encode_split(e, 0, text, n, first);
}

static bool encode_raw(struct encoder *e, const uint8_t *text, size_t n, bool first)
{
    const struct text_steps *s = &e->t->normalizer;
    struct text_buffer b[2] = {{0}};
    bool ok = true;
    for (int i = 0; ok && i < s->n; i++) {
        struct text_buffer *to = &b[i % 2];
        size_t length;
        if (s->step[i].kind == STEP_STRIP && s->step[i].left && n &&
            unicode_is_space(unicode_at(text, text + n, &length)))
            first = false; /* the beginning of the text is gone */
        to->n = 0;
        ok = step_change(&s->step[i], text, n, to) ? !to->failed || encode_fails(e, no_memory)
                                                   : encode_fails(e, too_long);
        text = to->at;
        n = to->n;
    }
    ok = ok && (n == 0 || encode_added(e, &e->t->normalized, text, n, first, encode_normalized));
    buffer_free(&b[0]);
    buffer_free(&b[1]);
    return ok;
}

/* ---- texts ---- */

/* Text with U+FFFD for each byte that is not UTF-8; *changed false: there is none, and the buffer is empty. */
static bool replace_invalid(const uint8_t *text, size_t n, struct text_buffer *to, bool *changed)
{
    size_t length;
    *changed = false;
    for (const uint8_t *p = text, *end = text + n; p < end; p += length) {
        uint32_t c = unicode_at(p, end, &length);
        if (c >= UNICODE_BYTE && !*changed) {
            *changed = true;
            buffer_add(to, text, (size_t)(p - text));
        }
        if (*changed)
            buffer_put(to, c >= UNICODE_BYTE ? UNICODE_REPLACEMENT : c);
    }
    return !to->failed;
}

static bool encode_text(struct encoder *e, const uint8_t *text, size_t n, bool ends)
{
    struct text_buffer valid = {0};
    bool changed = false, ok = e->t->byte_level || replace_invalid(text, n, &valid, &changed) ||
                               encode_fails(e, no_memory);
    if (changed) {
        text = valid.at;
        n = valid.n;
    }
    for (int64_t i = 0; ends && i < e->t->begin_n; i++)
        ids_add(&e->ids, e->t->begin[i]);
    ok = ok && (n == 0 || encode_added(e, &e->t->raw, text, n, true, encode_raw));
    for (int64_t i = 0; ends && i < e->t->end_n; i++)
        ids_add(&e->ids, e->t->end[i]);
    buffer_free(&valid);
    return ok;
}

kl_status kl_tokenizer_encode_with(const kl_tokenizer *t, const char *text, int64_t bytes,
                                   const kl_encode_options *options, int32_t *ids, int64_t room, int64_t *count)
{
    static const kl_encode_options zeros;
    const kl_encode_options *o = options ? options : &zeros;
    if (count)
        *count = 0;
    if (!t || !count || bytes < 0 || (bytes && !text) || room < 0 || (room && !ids))
        return kl_failf(NULL, KL_ERR_ARGUMENT, "tokenizer_encode: an argument is NULL or negative");
    if ((t->model == MODEL_PAIRS && !t->merge) || bytes > INT32_MAX)
        return kl_failf(NULL, KL_ERR_ARGUMENT,
                        bytes > INT32_MAX ? "tokenizer_encode: %lld bytes are too many in one call"
                                          : "tokenizer_encode: the tokenizer was opened without merges",
                        (long long)bytes);
    struct encoder e = {.t = t, .word.t = t, .ids = {ids, 0, room}, .plain = o->plain_text};
    bool ok = encode_text(&e, (const uint8_t *)text, (size_t)bytes, !o->no_begin_end);
    word_free(&e.word);
    if (ok)
        *count = e.ids.n;
    return ok ? KL_OK : kl_failf(NULL, e.failed == no_memory ? KL_ERR_MEMORY : KL_ERR_ARGUMENT,
                                 "tokenizer_encode: %s, in a text of %lld bytes", e.failed, (long long)bytes);
}

kl_status kl_tokenizer_encode(const kl_tokenizer *t, const char *text, int64_t bytes, int32_t *ids, int64_t *count)
{
    kl_status s = kl_tokenizer_encode_with(t, text, bytes, &(kl_encode_options){true, true}, ids, bytes, count);
    if (s != KL_OK || *count <= bytes)
        return s;
    int64_t n = *count;
    *count = 0;
    return kl_failf(NULL, KL_ERR_ARGUMENT, "tokenizer_encode: %lld tokens of %lld bytes: kl_tokenizer_encode_with "
                                           "is told the room that there is", (long long)n, (long long)bytes);
}
