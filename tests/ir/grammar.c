/* Grammars in READMEs that are made of tables: of structural ops in ir/README.md, of their rows' descriptors, and of
 * schedules in passes/lower/README.md, of the families' fields (KILN_BLESS=1 writes them).  Run from the root of the
 * tree. */
#include "tests/support/harness.h"
#include "ir/ir.h"
#include "ir/text/text.h"
#include "passes/lower/schedule.h"

enum { COLUMNS = 112 };

/* A word of a rule: behind the others of its line, or on the next one. */
static void put_word(struct text *t, size_t *line, const char *word)
{
    if (t->len - *line + 1 + strlen(word) > COLUMNS) {
        text_put(t, "\n");
        *line = t->len;
        text_put(t, "          ");
    }
    text_put(t, " %s", word);
}

static void put_in_brackets(struct text *t, const char *inner) { text_put(t, "\"(\" %s \")\"", inner); }

static bool of_several_axes(const struct attr_info *a)
{
    for (; a->word; a++)
        if (a->several)
            return true;
    return false;
}

/* "word" "(" ... ")" of one attribute; in [] if it may be left out. */
static void attribute(struct text *t, const struct attr_info *a, bool several)
{
    text_put(t, "%s\"%s\"%s", a->optional ? "[" : "", a->word, a->kind == ATTR_FLAG ? "" : " ");
    switch ((enum attr_kind)a->kind) {
    case ATTR_AXIS: put_in_brackets(t, a->several ? "axes" : "number"); break;
    case ATTR_AXES: case ATTR_PERM: put_in_brackets(t, "[axes]"); break;
    case ATTR_PAIRS: text_put(t, "pairs"); break;
    case ATTR_DIM: put_in_brackets(t, several ? "dims" : "dim"); break;
    case ATTR_LENGTH: put_in_brackets(t, several ? "counts" : "number"); break;
    case ATTR_COUNT: put_in_brackets(t, "number"); break;
    case ATTR_REAL: put_in_brackets(t, "literal"); break;
    case ATTR_FLAG: break;
    case ATTR_WORD:
        text_put(t, "\"(\" ");
        for (unsigned i = 0; a->words[i]; i++)
            text_put(t, "%s\"%s\"", i ? " | " : a->words[1] ? "(" : "", a->words[i]);
        text_put(t, "%s \")\"", a->words[1] ? ")" : "");
        break;
    case ATTR_ORDER:
        text_put(t, "\"(\"");
        for (unsigned i = 0; i < 2 && a->part[i].word; i++)
            text_put(t, "%s \"%s\" number", i ? " \",\"" : "", a->part[i].word);
        text_put(t, " \")\"");
        break;
    }
    text_put(t, "%s", a->optional ? "]" : "");
}

/* The operands and attributes of an op, one a line. */
static void words_of(struct text *t, const struct opinfo *o)
{
    for (unsigned i = 0; i < o->nin; i++)
        text_put(t, "%svalue", i >= o->min ? " [\",\" " : i ? " \",\" " : "");
    for (unsigned i = o->min; i < o->nin; i++)
        text_put(t, "]");
    text_put(t, o->nin ? "\n" : "");
    for (const struct attr_info *a = o->attr; a && a->word; a++) {
        attribute(t, a, of_several_axes(o->attr));
        text_put(t, "\n");
    }
}

/* Those without attributes are "name value", const and region ops stand by themselves. */
static bool has_rule(const struct opinfo *o)
{
    return o->cls == CLASS_STRUCT && o->attr && o->attr->word && !(o->traits & TRAIT_REGION);
}

/* One rule for the ops that have the same words. */
static void rule(struct text *t, enum op op, bool *done)
{
    struct text words = {0}, names = {0};
    unsigned n = 0;
    words_of(&words, &opinfo[op]);
    for (unsigned i = op; i < OP_COUNT; i++) {
        struct text other = {0};
        if (!has_rule(&opinfo[i]) || done[i])
            continue;
        words_of(&other, &opinfo[i]);
        if (other.len == words.len && !memcmp(other.s, words.s, words.len)) {
            text_put(&names, "%s\"%s\"", n++ ? " | " : "", opinfo[i].name);
            done[i] = true;
        }
        mem_free(other.s);
    }
    size_t line = t->len;
    text_put(t, n > 1 ? "         | (%s)" : "         | %s", names.s);
    for (char *w = words.s, *end; w && *w; w = end + 1) {
        end = strchr(w, '\n');
        *end = 0;
        put_word(t, &line, w);
    }
    text_put(t, "\n");
    mem_free(words.s);
    mem_free(names.s);
}

/* ---- schedules ---- */

/* The words of a field, which may be left out. */
static void field(struct text *t, const struct sched_field *f)
{
    text_put(t, "[\"%s\"", f->word);
    switch ((enum sched_form)f->form) {
    case FORM_NUMBER: text_put(t, " number"); break;
    case FORM_SIDES:
        for (unsigned i = 0; i < f->sides; i++)
            text_put(t, "%s number", i ? " \"x\"" : "");
        break;
    case FORM_FLAG: break;
    case FORM_WORD:
        for (int64_t v = f->min; v <= f->max; v++)
            text_put(t, "%s\"%s\"", v > f->min ? " | " : " (", f->name[v]);
        text_put(t, ")");
        break;
    case FORM_SET: text_put(t, " number { \",\" number }"); break;
    }
    text_put(t, "]");
}

static void family(struct text *t, const struct sched_family *f)
{
    size_t line = t->len;
    text_put(t, "%s \"%s\"", f == sched_families ? "sched    =" : "         |", f->word);
    for (uint32_t i = 0; i < f->n; i++) {
        struct text word = {0};
        field(&word, &f->field[i]);
        put_word(t, &line, word.s);
        mem_free(word.s);
    }
    text_put(t, "\n");
}

/* ---- READMEs ---- */

static char *whole_file(const char *path)
{
    struct text t = {0};
    FILE *f = fopen(path, "rb");
    for (int c; f && (c = getc(f)) != EOF;)
        text_put(&t, "%c", c);
    if (f)
        fclose(f);
    return t.s;
}

/* Has the README these lines behind the line that has `before`, up to `after`? */
static void check_lines(const char *readme, const char *before, const char *after, const char *want)
{
    char *s = whole_file(readme), *is = s ? strstr(s, before) : NULL;
    is = is ? strchr(is + strlen(before), '\n') + 1 : NULL;
    char *end = is ? strstr(is, after) : NULL;
    bool bless = getenv("KILN_BLESS");
    bool same = end && (size_t)(end - is) == strlen(want) && !memcmp(is, want, strlen(want));
    if (end && !same && bless) {
        FILE *f = fopen(readme, "wb");
        fprintf(f, "%.*s%s%s", (int)(is - s), s, want, end);
        fclose(f);
    }
    check(same || (end && bless),
          "%s: a grammar is not that of the table (KILN_BLESS=1 build/tests/grammar writes it)\n%s", readme, want);
    mem_free(s);
}

int main(void)
{
    bool done[OP_COUNT] = {0};
    struct text ops = {0}, schedules = {0};
    for (unsigned i = 1; i < OP_COUNT; i++)
        if (has_rule(&opinfo[i]) && !done[i])
            rule(&ops, (enum op)i, done);
    check_lines("ir/README.md", "         | \"const\" ", "         | name value { \",\" value }", ops.s);
    for (unsigned i = 0; i < SCHED_COUNT; i++)
        family(&schedules, &sched_families[i]);
    check_lines("passes/lower/README.md", "numbers they may have, and what they mean, is in `families.def`.\n\n```",
                "```\n\n**One more", schedules.s);
    mem_free(ops.s);
    mem_free(schedules.s);
    return finish();
}
