/* Schedules as text, by the table of fields (ir/loop/schedule.c).  A record is the kind's word, then fields in the
 * order of the table, each at most once; fields that are 0 are not written.
 *
 *   schedule dot width 32 tile 14x32 kblock 512 rows 56 pack_b pack_by squares epilogue after_tile grain 4
 *
 * A text of schedules, from a user or a tuner, has one line for each kernel, in one section for each graph:
 *
 *   graph @train_step
 *   @k0_add_relu schedule map width 16 grain 64 */
#include "kernel_text.h"
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

static void put_field(struct text *t, const struct schedule *s, const struct sched_field *f)
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

void schedule_put(struct text *t, const struct schedule *s)
{
    const struct sched_family *family = &sched_families[s->kind];
    text_put(t, "schedule %s", family->word);
    for (uint32_t i = 0; i < family->n; i++)
        put_field(t, s, &family->field[i]);
}

static uint64_t limit_of(const struct sched_field *f)
{
    if (f->form == FORM_SET)
        return (uint64_t)f->max;
    return f->size == 8 ? INT64_MAX : (UINT64_C(1) << 8 * f->size) - 1;
}

static bool read_sides(struct lexer *l, const struct sched_field *f, struct schedule *s)
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

static bool read_name(struct lexer *l, const struct sched_field *f, struct schedule *s)
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

static bool read_set(struct lexer *l, const struct sched_field *f, struct schedule *s)
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

static bool read_value(struct lexer *l, const struct sched_field *f, struct schedule *s)
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

static bool read_kind(struct lexer *l, struct schedule *s, uint32_t *column)
{
    lex_space(l);
    const char *at = l->p;
    struct word w = lex_word(l);
    while (s->kind < SCHED_COUNT && !word_is(w, sched_families[s->kind].word))
        s->kind++;
    if (s->kind == SCHED_COUNT) {
        l->p = at;
        return lex_expected(l, "a kind of schedule such as map");
    }
    if (column)
        column[COLUMN_KIND] = (uint32_t)(at - l->line_start) + 1;
    return true;
}

bool schedule_read(struct lexer *l, struct schedule *s, uint32_t *column)
{
    *s = (struct schedule){0};
    if (!read_kind(l, s, column))
        return false;
    const struct sched_family *family = &sched_families[s->kind];
    struct word next = lex_word(l);
    for (uint32_t i = 0; i < family->n; i++) {
        if (!word_is(next, family->field[i].word))
            continue;
        if (column)
            column[COLUMN_FIELDS + i] = (uint32_t)(next.s - l->line_start) + 1;
        if (!read_value(l, &family->field[i], s))
            return false;
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

/* ---- texts of schedules ---- */

static void name_put(struct text *t, const char *name)
{
    text_put(t, "@");
    if (is_name(name))
        text_put(t, "%s", name);
    else
        text_quoted(t, name);
}

static bool name_read(struct lexer *l, char *buf, size_t size)
{
    if (!lex_need(l, '@', "'@' and a name"))
        return false;
    if (l->p < l->end && *l->p == '"')
        return lex_quoted(l, buf, size);
    const char *at = l->p;
    struct word w = lex_word(l);
    if (!w.len || w.s != at)
        return lex_expected(l, "a name");
    if (w.len >= size)
        return lex_fail(l, at, "the name is longer than %zu bytes", size - 1);
    memcpy(buf, w.s, w.len);
    buf[w.len] = 0;
    return true;
}

static struct sched_section *section_new(struct lexer *l, struct sched_sections *out)
{
    if (!mem_reserve(&out->v, &out->cap, out->n + 1, sizeof *out->v))
        return lex_no_memory(l), NULL;
    struct sched_section *s = &out->v[out->n++];
    memset(s, 0, sizeof *s);
    snprintf(s->file, sizeof s->file, "%s", l->file ? l->file : "");
    return s;
}

/* "graph @name", "graph @name unfused". */
static bool graph_line(struct lexer *l, struct sched_sections *out, uint32_t first)
{
    struct sched_section *s = section_new(l, out);
    lex_space(l);
    const char *at = l->p;
    if (!s || !name_read(l, s->graph, sizeof s->graph))
        return false;
    lex_space(l);
    const char *word = l->p;
    struct word w = lex_word(l);
    s->unfused = word_is(w, "unfused");
    if (w.len && !s->unfused) {
        l->p = word;
        return lex_expected(l, "unfused or the end of the line");
    }
    for (uint32_t i = first; i + 1 < out->n; i++)
        if (!strcmp(out->v[i].graph, s->graph) && out->v[i].unfused == s->unfused)
            return lex_fail(l, at, "graph @%s has a section already", s->graph);
    return lex_end_line(l);
}

static bool kernel_line(struct lexer *l, struct sched_section *s)
{
    if (!mem_reserve(&s->v, &s->cap, s->n + 1, sizeof *s->v))
        return lex_no_memory(l);
    struct sched_line *k = &s->v[s->n++];
    memset(k, 0, sizeof *k);
    lex_space(l);
    const char *at = l->p;
    k->line = l->line;
    k->column[COLUMN_NAME] = (uint32_t)(at - l->line_start) + 1;
    if (!name_read(l, k->kernel, sizeof k->kernel) || !lex_need_word(l, "schedule") ||
        !schedule_read(l, &k->sched, k->column))
        return false;
    for (uint32_t i = 0; i + 1 < s->n; i++)
        if (!strcmp(s->v[i].kernel, k->kernel))
            return lex_fail(l, at, "kernel @%s has a schedule already, in line %u", k->kernel, s->v[i].line);
    return true;
}

bool schedules_parse(const char *text, size_t len, const char *file, struct sched_sections *out, struct err *e)
{
    struct lexer l = {.p = text, .end = text + len, .line_start = text, .line = 1, .file = file, .e = e};
    uint32_t first = out->n;
    for (;;) {
        lex_lines(&l);
        if (l.p == l.end)
            return true;
        if (!lex_at(&l, '@')) {
            const char *at = l.p;
            if (!word_is(lex_word(&l), "graph")) {
                l.p = at;
                return lex_expected(&l, "'graph' or '@' and a kernel's name");
            }
            if (!graph_line(&l, out, first))
                return false;
            continue;
        }
        if ((out->n == first && !section_new(&l, out)) || !kernel_line(&l, &out->v[out->n - 1]))
            return false;
    }
}

void schedules_free(struct sched_sections *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        mem_free(s->v[i].v);
    mem_free(s->v);
    *s = (struct sched_sections){0};
}

char *schedules_text(const char *graph, bool unfused, struct kernel *const *k, uint32_t n)
{
    struct text t = {0};
    text_put(&t, "graph ");
    name_put(&t, graph);
    text_put(&t, "%s\n", unfused ? " unfused" : "");
    for (uint32_t i = 0; i < n; i++) {
        name_put(&t, k[i]->name);
        text_put(&t, " ");
        schedule_put(&t, &k[i]->sched);
        text_put(&t, "\n");
    }
    return text_take(&t);
}

char *schedule_line(const struct schedule *s)
{
    struct text t = {0};
    schedule_put(&t, s);
    return text_take(&t);
}

bool schedule_refuse(const struct sched_section *s, const struct sched_line *l, uint32_t column, struct err *e,
                     const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    format_text_v(what, sizeof what, fmt, ap);
    va_end(ap);
    uint32_t at = column < COLUMN_COUNT && l->column[column] ? l->column[column] : l->column[COLUMN_NAME];
    return err_set(e, KL_ERR_ARGUMENT, "%s%s%u:%u: %s", s->file, s->file[0] ? ":" : "", l->line, at, what);
}
