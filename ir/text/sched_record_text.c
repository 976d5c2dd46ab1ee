/* Records of scheduling decisions as text, by the families' tables of fields (ir/loop/sched_record.h).  A record is the
 * kind's word, then fields in the order of the table, each at most once; fields that are 0 are not written.  Behind
 * them stands `graph_order` where the kernel follows the graph's order.
 *
 *   schedule dot width 32 tile 14x32 kblock 512 rows 56 pack_b pack_by squares epilogue after_tile grain 4 */
#include "kernel_text.h"
#include <inttypes.h>
#include <string.h>

static void put_field(struct text *t, const struct sched_record *s, const struct sched_field *f)
{
    uint64_t v = sched_get(s, f, 0), any = v;
    for (unsigned side = 1; side < f->sides; side++)
        any |= sched_get(s, f, side);
    if (!any)
        return;
    text_put(t, " %s", f->word);
    if (f->form == FORM_WORD)
        text_put(t, " %s", v <= (uint64_t)f->max && f->name[v] ? f->name[v] : "?");
    else if (f->form == FORM_NUMBER || f->form == FORM_SIDES)
        text_put(t, " %" PRIu64, v);
    for (unsigned side = 1; side < f->sides; side++)
        text_put(t, "x%" PRIu64, sched_get(s, f, side));
    const char *sign = " ";
    for (unsigned bit = 0; f->form == FORM_SET && bit < 64; bit++)
        if (v >> bit & 1) {
            text_put(t, "%s%u", sign, bit);
            sign = ",";
        }
}

void record_put(struct text *t, const struct sched_family *family, const struct sched_record *s)
{
    text_put(t, "schedule %s", family->word);
    for (uint32_t i = 0; i < family->n; i++)
        put_field(t, s, &family->field[i]);
    text_put(t, "%s", s->graph_order ? " graph_order" : "");
}

static uint64_t limit_of(const struct sched_field *f)
{
    if (f->form == FORM_SET)
        return (uint64_t)f->max;
    return f->size == 8 ? INT64_MAX : (UINT64_C(1) << 8 * f->size) - 1;
}

static bool read_sides(struct lexer *l, const struct sched_field *f, struct sched_record *s)
{
    for (unsigned side = 0; side < f->sides; side++) {
        uint64_t v;
        char what[64];
        snprintf(what, sizeof what, "'x' and another side of the %s", f->word);
        if (side && (l->p == l->end || *l->p != 'x'))
            return lex_expected(l, what);
        l->p += side != 0;
        snprintf(what, sizeof what, "side of the %s", f->word);
        if (!lex_number(l, limit_of(f), what, &v))
            return false;
        sched_set(s, f, side, v);
    }
    return true;
}

static bool read_name(struct lexer *l, const struct sched_field *f, struct sched_record *s)
{
    char expected[128];
    size_t at = 0;
    lex_space(l);
    const char *start = l->p;
    struct word w = lex_word(l);
    for (int64_t v = f->min; v <= f->max; v++) {
        if (word_is(w, f->name[v])) {
            sched_set(s, f, 0, (uint64_t)v);
            return true;
        }
        at += (size_t)snprintf(expected + at, sizeof expected - at, "%s%s",
                               v == f->min ? "" : v == f->max ? " or " : ", ", f->name[v]);
    }
    l->p = start;
    return lex_expected(l, expected);
}

static bool read_set(struct lexer *l, const struct sched_field *f, struct sched_record *s)
{
    uint64_t set = 0;
    do {
        uint64_t bit;
        if (!lex_number(l, limit_of(f), f->word, &bit))
            return false;
        set |= UINT64_C(1) << bit;
    } while (lex_take(l, ','));
    sched_set(s, f, 0, set);
    return true;
}

static bool read_value(struct lexer *l, const struct sched_field *f, struct sched_record *s)
{
    uint64_t v = 1;
    switch (f->form) {
    case FORM_SIDES: return read_sides(l, f, s);
    case FORM_WORD: return read_name(l, f, s);
    case FORM_SET: return read_set(l, f, s);
    case FORM_NUMBER:
        if (!lex_number(l, limit_of(f), f->word, &v))
            return false;
    }
    sched_set(s, f, 0, v);
    return true;
}

static bool read_kind(struct lexer *l, const struct sched_families *families, struct sched_record *s,
                      uint32_t *column)
{
    lex_space(l);
    const char *at = l->p;
    struct word w = lex_word(l);
    while (s->kind < families->n && !word_is(w, families->v[s->kind].word))
        s->kind++;
    if (s->kind == families->n) {
        l->p = at;
        return lex_expected(l, "a kind of schedule such as map");
    }
    if (column)
        column[0] = (uint32_t)(at - l->line_start) + 1;
    return true;
}

bool record_read(struct lexer *l, const struct sched_families *families, struct sched_record *s, uint32_t *column)
{
    *s = (struct sched_record){0};
    if (!read_kind(l, families, s, column))
        return false;
    const struct sched_family *family = &families->v[s->kind];
    struct word next = lex_word(l);
    for (uint32_t i = 0; i < family->n; i++) {
        if (!word_is(next, family->field[i].word))
            continue;
        if (column)
            column[1 + i] = (uint32_t)(next.s - l->line_start) + 1;
        if (!read_value(l, &family->field[i], s))
            return false;
        next = lex_word(l);
    }
    if (word_is(next, "graph_order")) {
        s->graph_order = 1;
        next = lex_word(l);
    }
    if (!next.len)
        return lex_end_line(l);
    char words[256];
    size_t at = 0;
    for (uint32_t i = 0; i < family->n; i++)
        at += (size_t)snprintf(words + at, sizeof words - at, "%s%s",
                               !i ? "" : i + 1 == family->n ? " or " : ", ", family->field[i].word);
    snprintf(words + at, sizeof words - at, " in this order");
    l->p = next.s;
    return lex_expected(l, words);
}
