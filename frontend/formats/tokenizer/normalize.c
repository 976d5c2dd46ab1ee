/* Steps that change text before it is split: normal forms, lower case, replacements. */
#include "frontend/formats/json.h"
#include "tokenizer.h"
#include <string.h>

bool buffer_add(struct text_buffer *b, const void *text, size_t n)
{
    if (b->failed || n > b->cap - b->n) {
        size_t cap = b->cap ? b->cap : 256;
        while (!b->failed && cap - b->n < n)
            cap *= 2;
        uint8_t *grown = b->failed || cap > SIZE_MAX / 4 ? NULL : kl_memory_grow(b->at, b->n, cap);
        if (!grown)
            return !(b->failed = true);
        b->at = grown;
        b->cap = cap;
    }
    if (n)
        memcpy(b->at + b->n, text, n);
    b->n += n;
    return true;
}

bool buffer_put(struct text_buffer *b, uint32_t c)
{
    uint8_t bytes[4];
    return buffer_add(b, bytes, unicode_put(c, bytes));
}

void buffer_free(struct text_buffer *b) { kl_memory_free(b->at); }

static bool is_ascii(const uint8_t *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] >= 0x80)
            return false;
    return true;
}

/* ---- normal forms ---- */

/* Characters that wait until the next one of class 0, to be put into their canonical order and composed. */
struct pending { uint32_t c; unsigned class; };
struct normal_form {
    const struct text_step *step;
    struct text_buffer *to;
    struct pending *wait;
    size_t n, cap;
};

/* Sorts by class, stably; characters of class 0 are in front already. */
static bool pending_sort(struct pending *wait, size_t n)
{
    size_t start[257] = {0};
    struct pending few[32], *sorted = n <= 32 ? few : kl_memory_alloc(n * sizeof *sorted);
    if (!sorted)
        return false;
    for (size_t i = 0; i < n; i++)
        start[wait[i].class + 1]++;
    for (int i = 0; i < 256; i++)
        start[i + 1] += start[i];
    for (size_t i = 0; i < n; i++)
        sorted[start[wait[i].class]++] = wait[i];
    memcpy(wait, sorted, n * sizeof *wait);
    if (sorted != few)
        kl_memory_free(sorted);
    return true;
}

/* Composes each character with the first one before it of class 0, unless a mark between them keeps them apart. */
static size_t pending_compose(struct pending *wait, size_t n)
{
    size_t starter = SIZE_MAX, to = 0;
    for (size_t i = 0; i < n; i++) {
        bool adjacent = starter != SIZE_MAX && starter + 1 == to;
        bool apart = starter == SIZE_MAX || (!adjacent && (wait[to - 1].class >= wait[i].class));
        uint32_t both = apart ? 0 : unicode_compose(wait[starter].c, wait[i].c);
        if (both) {
            wait[starter].c = both;
            continue;
        }
        if (!wait[i].class)
            starter = to;
        wait[to++] = wait[i];
    }
    return to;
}

/* Writes what waits; not all: but for a last character that the next one may be composed with. */
static void pending_flush(struct normal_form *f, bool all)
{
    size_t keep = 0;
    if (f->n > 1 && !pending_sort(f->wait, f->n))
        f->to->failed = true;
    if (f->step->compose) {
        f->n = pending_compose(f->wait, f->n);
        keep = !all && f->n && !f->wait[f->n - 1].class;
    }
    for (size_t i = 0; i + keep < f->n; i++)
        buffer_put(f->to, f->wait[i].c);
    if (keep)
        f->wait[0] = f->wait[f->n - 1];
    f->n = keep;
}

static bool pending_add(struct normal_form *f, uint32_t c)
{
    unsigned class = unicode_combining_class(c);
    if (f->n && !class)
        pending_flush(f, false);
    if (f->n == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 32;
        struct pending *grown = kl_memory_grow(f->wait, f->cap * sizeof *grown, cap * sizeof *grown);
        if (!grown)
            return !(f->to->failed = true);
        f->wait = grown;
        f->cap = cap;
    }
    f->wait[f->n++] = (struct pending){c, class};
    return true;
}

static bool add_decomposed(struct normal_form *f, uint32_t c)
{
    uint32_t parts[UNICODE_MAX_EXPANSION];
    int n = c < 0x80 ? 0 : unicode_decompose(c, f->step->compatible, parts);
    if (!n)
        return pending_add(f, c);
    for (int i = 0; i < n; i++)
        if (!add_decomposed(f, parts[i]))
            return false;
    return true;
}

static void change_normal_form(const struct text_step *s, const uint8_t *text, size_t n, struct text_buffer *to)
{
    struct normal_form f = {.step = s, .to = to};
    size_t length;
    for (const uint8_t *p = text, *end = text + n; p < end; p += length) {
        for (length = 0; p + length < end && p[length] < 0x80; length++)
            continue;
        if (length > 1) { /* nothing composes with ASCII but what is behind its last character */
            pending_flush(&f, true);
            length -= p + length < end;
            buffer_add(to, p, length);
            continue;
        }
        if (!add_decomposed(&f, unicode_at(p, end, &length)))
            break;
    }
    pending_flush(&f, true);
    kl_memory_free(f.wait);
}

/* ---- sentencepiece's precompiled table of replaced characters: the bytes of a double-array trie (Darts-clone), as
 * 32-bit units, then texts with a zero behind each, which the trie's values are positions of ---- */

struct charsmap { uint32_t *unit; size_t units; const char *text; size_t text_n; };

static uint32_t charsmap_number(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

const struct charsmap *charsmap_read(kl_file *f, kl_tokenizer *t, const uint8_t *bytes, size_t n, size_t at,
                                     const char *field)
{
    if (n < 4 || charsmap_number(bytes) > n - 4 || charsmap_number(bytes) % 4)
        return file_bad(f, at, field, "a table of characters of %zu bytes that is cut off", n), NULL;
    struct charsmap *m = token_memory(f, t, sizeof *m);
    if (!m)
        return NULL;
    m->units = charsmap_number(bytes) / 4;
    m->text_n = n - 4 - 4 * m->units;
    m->unit = token_memory(f, t, 4 * m->units + 4);
    m->text = token_string(f, t, (const char *)bytes + 4 + 4 * m->units, m->text_n);
    if (!m->unit || !m->text)
        return NULL;
    for (size_t i = 0; i < m->units; i++)
        m->unit[i] = charsmap_number(bytes + 4 + 4 * i);
    return m;
}

/* A unit has a label (its low byte), the offset to its children, and a mark that a value is among them. */
static uint32_t charsmap_offset(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

/* The longest entry that begins the text; its bytes, and what replaces it; 0: none does. */
static size_t charsmap_match(const struct charsmap *m, const uint8_t *text, size_t n, const char **to, size_t *to_n)
{
    size_t at = m->units ? charsmap_offset(m->unit[0]) : SIZE_MAX, length = 0;
    for (size_t i = 0; i < n && text[i]; i++) {
        at ^= text[i];
        if (at >= m->units || (m->unit[at] & (1u << 31 | 0xff)) != text[i])
            break;
        uint32_t unit = m->unit[at];
        at ^= charsmap_offset(unit);
        if (at >= m->units)
            break;
        size_t value = m->unit[at] & 0x7fffffff;
        if (unit >> 8 & 1 && value < m->text_n) {
            length = i + 1;
            *to = m->text + value;
            *to_n = strlen(*to);
        }
    }
    return length;
}

/* ---- other steps ---- */

static void change_lower_case(const uint8_t *text, size_t n, struct text_buffer *to)
{
    size_t length;
    for (const uint8_t *p = text, *end = text + n; p < end; p += length) {
        uint32_t second;
        buffer_put(to, unicode_lower_case(unicode_at(p, end, &length), &second));
        if (second)
            buffer_put(to, second);
    }
}

/* Leaves out characters of these categories. */
static void change_leave_out(unsigned categories, const uint8_t *text, size_t n, struct text_buffer *to)
{
    size_t length;
    for (const uint8_t *p = text, *end = text + n; p < end; p += length)
        if (!(unicode_category_bit(unicode_at(p, end, &length)) & categories))
            buffer_add(to, p, length);
}

static bool change_replace(const struct text_step *s, const uint8_t *text, size_t n, struct text_buffer *to)
{
    const uint8_t *end = text + n, *from = text, *match, *past;
    enum pattern_result found;
    while ((found = pattern_find(s->pattern, text, end, from, &match, &past)) == PATTERN_FOUND) {
        buffer_add(to, from, (size_t)(match - from));
        buffer_add(to, s->text, s->n);
        from = past;
    }
    buffer_add(to, from, (size_t)(end - from));
    return found == PATTERN_NONE;
}

static bool is_chinese(uint32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

/* BERT's: control characters left out, white space as spaces, spaces around Chinese characters. */
static void change_bert_clean(const struct text_step *s, const uint8_t *text, size_t n, struct text_buffer *to)
{
    size_t length;
    for (const uint8_t *p = text, *end = text + n; p < end; p += length) {
        uint32_t c = unicode_at(p, end, &length);
        bool control = c != '\t' && c != '\n' && c != '\r' && unicode_category_bit(c) & (UC_CONTROL & ~(1u << UC_CN));
        if (s->clean && (!c || c == UNICODE_REPLACEMENT || control))
            continue;
        bool chinese = s->chinese && is_chinese(c);
        if (chinese)
            buffer_put(to, ' ');
        buffer_put(to, s->clean && unicode_is_space(c) ? ' ' : c);
        if (chinese)
            buffer_put(to, ' ');
    }
}

static bool change_bert(const struct text_step *s, const uint8_t *text, size_t n, struct text_buffer *to)
{
    static const struct text_step decompose = {.kind = STEP_NORMAL_FORM};
    struct text_buffer b[3] = {{0}};
    change_bert_clean(s, text, n, &b[0]);
    struct text_buffer *last = &b[0];
    if (s->accents && !is_ascii(last->at, last->n)) {
        change_normal_form(&decompose, last->at, last->n, &b[1]);
        change_leave_out(1u << UC_MN, b[1].at, b[1].n, &b[2]);
        last = &b[2];
    }
    if (s->lower)
        change_lower_case(last->at, last->n, to);
    else
        buffer_add(to, last->at, last->n);
    for (int i = 0; i < 3; i++) {
        to->failed |= b[i].failed;
        buffer_free(&b[i]);
    }
    return true;
}

static void change_strip(const struct text_step *s, const uint8_t *text, size_t n, struct text_buffer *to)
{
    const uint8_t *end = text + n;
    size_t length;
    while (s->left && text < end && unicode_is_space(unicode_at(text, end, &length)))
        text += length;
    while (s->right && text < end && unicode_is_space(unicode_at(end - unicode_before(text, end), end, &length)))
        end -= length;
    buffer_add(to, text, (size_t)(end - text));
}

static void change_charsmap(const struct text_step *s, const uint8_t *text, size_t n, struct text_buffer *to)
{
    size_t length, replaced_n;
    const char *replaced;
    for (const uint8_t *p = text, *end = text + n; p < end; p += length) {
        length = charsmap_match(s->map, p, (size_t)(end - p), &replaced, &replaced_n);
        if (length) {
            bool line_end = s->graphemes && *p == '\r' && length == 1 && end - p > 1 && p[1] == '\n';
            buffer_add(to, replaced, replaced_n);
            length += line_end; /* one grapheme */
            continue;
        }
        uint32_t c = unicode_at(p, end, &length);
        buffer_put(to, c >= UNICODE_BYTE ? UNICODE_REPLACEMENT : c);
    }
}

/* sentencepiece's white space, which is only the space. */
static void change_spaces(const struct text_step *s, const uint8_t *text, size_t n, struct text_buffer *to)
{
    const uint8_t *end = text + n;
    const char *space = s->escape ? "\xe2\x96\x81" : " ";
    while (s->trim && text < end && *text == ' ')
        text++;
    while (s->trim && text < end && end[-1] == ' ')
        end--;
    if (s->put_first && text < end)
        buffer_add(to, space, strlen(space));
    for (const uint8_t *p = text; p < end; p++)
        if (*p != ' ')
            buffer_add(to, p, 1);
        else if (!s->single || p == text || p[-1] != ' ')
            buffer_add(to, space, strlen(space));
}

bool step_change(const struct text_step *s, const uint8_t *text, size_t n, struct text_buffer *to)
{
    switch (s->kind) {
    case STEP_REPLACE: return change_replace(s, text, n, to);
    case STEP_PREPEND:
        if (n) {
            buffer_add(to, s->text, s->n);
            buffer_add(to, text, n);
        }
        return true;
    case STEP_STRIP: change_strip(s, text, n, to); return true;
    case STEP_LOWERCASE: change_lower_case(text, n, to); return true;
    case STEP_NORMAL_FORM:
        if (is_ascii(text, n))
            buffer_add(to, text, n);
        else
            change_normal_form(s, text, n, to);
        return true;
    case STEP_STRIP_ACCENTS: change_leave_out(UC_MARK, text, n, to); return true;
    case STEP_BERT: return change_bert(s, text, n, to);
    case STEP_CHARSMAP: change_charsmap(s, text, n, to); return true;
    case STEP_SPACES: change_spaces(s, text, n, to); return true;
    default: buffer_add(to, text, n); return true;
    }
}
