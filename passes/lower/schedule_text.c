/* Schedules as text.  A text, from a user or a tuner, has one line for each kernel, in one section for each graph:
 *
 *   graph @train_step
 *   @k0_add_relu schedule map width 16 grain 64 */
#include "schedule.h"
#include "ir/text/kernel_text.h"
#include <stdarg.h>
#include <string.h>

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
        !record_read(l, &lower_families, &k->sched.record, k->column + COLUMN_KIND))
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

/* Launches of one kernel with different numbers of members have its name (plan_join.c). */
static bool named_before(struct kernel *const *k, uint32_t i)
{
    for (uint32_t j = 0; j < i; j++)
        if (!strcmp(k[j]->name, k[i]->name))
            return true;
    return false;
}

char *schedules_text(const char *graph, bool unfused, struct kernel *const *k, uint32_t n)
{
    struct text t = {0};
    text_put(&t, "graph ");
    name_put(&t, graph);
    text_put(&t, "%s\n", unfused ? " unfused" : "");
    for (uint32_t i = 0; i < n; i++) {
        if (!k[i]->family || named_before(k, i))
            continue;
        name_put(&t, k[i]->name);
        text_put(&t, " ");
        record_put(&t, k[i]->family, &k[i]->sched);
        text_put(&t, "\n");
    }
    return text_take(&t);
}

char *schedule_line(const struct schedule *s)
{
    struct text t = {0};
    record_put(&t, &sched_families[s->kind], &s->record);
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
