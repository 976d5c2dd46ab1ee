/* The schedule record as text: words with their numbers, each at most once and in this order; what is 0 is not said.
 *
 *   schedule dot width 32 tile 14x32 kblock 512 pack_b grain 4 */
#include "kernel_text.h"
#include <inttypes.h>

void schedule_put(struct text *t, const struct schedule *s)
{
    text_put(t, "schedule %s", sched_words.v[s->kind]);
    if (s->width)
        text_put(t, " width %u", s->width);
    if (s->mr || s->nr)
        text_put(t, " tile %ux%u", s->mr, s->nr);
    if (s->kc)
        text_put(t, " kblock %u", s->kc);
    text_put(t, "%s%s", s->pack_a ? " pack_a" : "", s->pack_b ? " pack_b" : "");
    if (s->grain)
        text_put(t, " grain %" PRId64, s->grain);
}

/* The number behind a word that has been read; *out untouched where the word is another. */
static bool number(struct lexer *l, struct word *w, const char *name, uint64_t max, uint64_t *out)
{
    if (!word_is(*w, name))
        return true;
    if (!lex_number(l, max, name, out))
        return false;
    *w = lex_word(l);
    return true;
}

/* "MRxNR": one word to the lexer. */
static bool tile(struct lexer *l, struct word *w, struct schedule *s)
{
    if (!word_is(*w, "tile"))
        return true;
    uint64_t rows, cols;
    if (!lex_number(l, UINT16_MAX, "rows of the tile", &rows))
        return false;
    if (l->p == l->end || *l->p != 'x')
        return lex_expected(l, "'x' and the tile's columns");
    l->p++;
    if (!lex_number(l, UINT16_MAX, "columns of the tile", &cols))
        return false;
    s->mr = (uint16_t)rows;
    s->nr = (uint16_t)cols;
    *w = lex_word(l);
    return true;
}

static bool flag(struct lexer *l, struct word *w, const char *name, uint8_t *out)
{
    if (word_is(*w, name)) {
        *out = 1;
        *w = lex_word(l);
    }
    return true;
}

bool schedule_read(struct lexer *l, struct schedule *s)
{
    *s = (struct schedule){0};
    uint64_t width = 0, kc = 0, grain = 0;
    lex_space(l);
    const char *at = l->p;
    int kind = words_find(&sched_words, lex_word(l));
    if (kind < 0) {
        l->p = at;
        return lex_expected(l, "a kind of schedule such as map");
    }
    struct word w = lex_word(l);
    if (!number(l, &w, "width", UINT16_MAX, &width) || !tile(l, &w, s) || !number(l, &w, "kblock", UINT32_MAX, &kc) ||
        !flag(l, &w, "pack_a", &s->pack_a) || !flag(l, &w, "pack_b", &s->pack_b) ||
        !number(l, &w, "grain", INT64_MAX, &grain))
        return false;
    s->kind = (uint16_t)kind;
    s->width = (uint16_t)width;
    s->kc = (uint32_t)kc;
    s->grain = (int64_t)grain;
    if (w.len) {
        l->p = w.s;
        return lex_expected(l, "width, tile, kblock, pack_a, pack_b or grain in this order");
    }
    return lex_end_line(l);
}
