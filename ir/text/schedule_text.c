/* Schedules as text.  A record is words with numbers, each at most once and in this order; fields that are 0 are not
 * written.
 *
 *   schedule dot width 32 tile 14x32 kblock 512 rows 56 pack_b epilogue after_tile grain 4
 *
 * A text of schedules, from a user or a tuner, has one line for each kernel, in one section for each graph:
 *
 *   graph @train_step
 *   @k0_add_relu schedule map width 16 grain 64 */
#include "kernel_text.h"
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

void schedule_put(struct text *t, const struct schedule *s)
{
    text_put(t, "schedule %s", sched_words.v[s->kind]);
    if (s->width)
        text_put(t, " width %u", s->width);
    if (s->mr || s->nr)
        text_put(t, " tile %ux%u", s->mr, s->nr);
    if (s->block_m || s->block_n)
        text_put(t, " block %ux%u", s->block_m, s->block_n);
    if (s->step)
        text_put(t, " step %u", s->step);
    if (s->kc)
        text_put(t, " kblock %u", s->kc);
    if (s->rows)
        text_put(t, " rows %u", s->rows);
    text_put(t, "%s", s->pack_b ? " pack_b" : "");
    if (s->epilogue)
        text_put(t, " epilogue %s", epilogue_words.v[s->epilogue]);
    text_put(t, "%s", s->stream ? " stream" : "");
    if (s->grain)
        text_put(t, " grain %" PRId64, s->grain);
}

/* A record being read: the next word, and the columns of the fields before it. */
struct record { struct lexer *l; struct word next; uint32_t *column; };

static bool begins(struct record *r, const char *name, enum sched_field f)
{
    if (!word_is(r->next, name))
        return false;
    if (r->column)
        r->column[f] = (uint32_t)(r->next.s - r->l->line_start) + 1;
    return true;
}

/* The number after a word; *out is unchanged if the next word is another. */
static bool schedule_text_number(struct record *r, const char *name, enum sched_field f, uint64_t max, uint64_t *out)
{
    if (!begins(r, name, f))
        return true;
    if (!lex_number(r->l, max, name, out))
        return false;
    r->next = lex_word(r->l);
    return true;
}

/* "ROWSxCOLUMNS": one word to the lexer. */
static bool sides(struct record *r, const char *name, enum sched_field f, uint16_t *out_rows, uint16_t *out_cols)
{
    struct lexer *l = r->l;
    if (!begins(r, name, f))
        return true;
    uint64_t rows, cols;
    if (!lex_number(l, UINT16_MAX, "rows of the tile", &rows))
        return false;
    if (l->p == l->end || *l->p != 'x')
        return lex_expected(l, "'x' and the tile's columns");
    l->p++;
    if (!lex_number(l, UINT16_MAX, "columns of the tile", &cols))
        return false;
    *out_rows = (uint16_t)rows;
    *out_cols = (uint16_t)cols;
    r->next = lex_word(l);
    return true;
}

static bool flag(struct record *r, const char *name, enum sched_field f, uint8_t *out)
{
    if (begins(r, name, f)) {
        *out = 1;
        r->next = lex_word(r->l);
    }
    return true;
}

static bool epilogue(struct record *r, uint8_t *out)
{
    if (!begins(r, "epilogue", FIELD_EPILOGUE))
        return true;
    lex_space(r->l);
    const char *at = r->l->p;
    int which = words_find(&epilogue_words, lex_word(r->l));
    if (which <= EPILOGUE_NONE) {
        r->l->p = at;
        return lex_expected(r->l, "in_tile, after_tile, after_rows or during_next");
    }
    *out = (uint8_t)which;
    r->next = lex_word(r->l);
    return true;
}

bool schedule_read(struct lexer *l, struct schedule *s, uint32_t *column)
{
    *s = (struct schedule){0};
    uint64_t width = 0, step = 0, kc = 0, rows = 0, grain = 0;
    lex_space(l);
    const char *at = l->p;
    int kind = words_find(&sched_words, lex_word(l));
    if (kind < 0) {
        l->p = at;
        return lex_expected(l, "a kind of schedule such as map");
    }
    if (column)
        column[FIELD_KIND] = (uint32_t)(at - l->line_start) + 1;
    struct record r = {l, lex_word(l), column};
    if (!schedule_text_number(&r, "width", FIELD_WIDTH, UINT16_MAX, &width) ||
        !sides(&r, "tile", FIELD_TILE, &s->mr, &s->nr) ||
        !sides(&r, "block", FIELD_BLOCK, &s->block_m, &s->block_n) ||
        !schedule_text_number(&r, "step", FIELD_STEP, UINT16_MAX, &step) ||
        !schedule_text_number(&r, "kblock", FIELD_KBLOCK, UINT32_MAX, &kc) ||
        !schedule_text_number(&r, "rows", FIELD_ROWS, UINT32_MAX, &rows) ||
        !flag(&r, "pack_b", FIELD_PACK_B, &s->pack_b) || !epilogue(&r, &s->epilogue) ||
        !flag(&r, "stream", FIELD_STREAM, &s->stream) ||
        !schedule_text_number(&r, "grain", FIELD_GRAIN, INT64_MAX, &grain))
        return false;
    s->kind = (uint16_t)kind;
    s->width = (uint16_t)width;
    s->step = (uint16_t)step;
    s->kc = (uint32_t)kc;
    s->rows = (uint32_t)rows;
    s->grain = (int64_t)grain;
    if (r.next.len) {
        l->p = r.next.s;
        return lex_expected(l,
                            "width, tile, block, step, kblock, rows, pack_b, epilogue, stream or grain in this order");
    }
    return lex_end_line(l);
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
    k->column[FIELD_NAME] = (uint32_t)(at - l->line_start) + 1;
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

static char *text_take(struct text *t)
{
    if (!t->failed)
        return t->s;
    mem_free(t->s);
    return NULL;
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

bool schedule_refuse(const struct sched_section *s, const struct sched_line *l, enum sched_field f, struct err *e,
                     const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    format_text_v(what, sizeof what, fmt, ap);
    va_end(ap);
    uint32_t column = l->column[f] ? l->column[f] : l->column[FIELD_NAME];
    return err_set(e, KL_ERR_ARGUMENT, "%s%s%u:%u: %s", s->file, s->file[0] ? ":" : "", l->line, column, what);
}
