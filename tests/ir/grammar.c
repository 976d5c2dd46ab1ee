/* The grammar in ir/README.md: what it says of structural ops is what the descriptors of their rows say (KILN_BLESS=1
 * writes it).  Run from the root of the tree. */
#include "tests/support/harness.h"
#include "ir/ir.h"
#include "ir/text/text.h"

static const char readme[] = "ir/README.md";
static const char first_line[] = "         | \"const\" ", last_line[] = "         | name value { \",\" value }";

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

static char *whole_readme(void)
{
    struct text t = {0};
    FILE *f = fopen(readme, "rb");
    for (int c; f && (c = getc(f)) != EOF;)
        text_put(&t, "%c", c);
    if (f)
        fclose(f);
    return t.s;
}

int main(void)
{
    bool done[OP_COUNT] = {0}, bless = getenv("KILN_BLESS");
    struct text want = {0};
    char *s = whole_readme(), *is = s ? strstr(s, first_line) : NULL;
    is = is ? strchr(is, '\n') + 1 : NULL;
    char *end = is ? strstr(is, last_line) : NULL;
    for (unsigned i = 1; i < OP_COUNT; i++)
        if (has_rule(&opinfo[i]) && !done[i])
            rule(&want, (enum op)i, done);
    bool same = end && (size_t)(end - is) == want.len && !memcmp(is, want.s, want.len);
    if (end && !same && bless) {
        FILE *f = fopen(readme, "wb");
        fprintf(f, "%.*s%s%s", (int)(is - s), s, want.s, end);
        fclose(f);
    }
    check(same || (end && bless),
          "%s: the grammar of structural ops is not that of ops.def (KILN_BLESS=1 build/tests/grammar writes it)\n%s",
          readme, want.s);
    mem_free(want.s);
    mem_free(s);
    return finish();
}
