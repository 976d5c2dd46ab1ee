/* The tables of options, counters, dump stages and environment variables: include/kiln/README.md says what the .def
 * files say (KILN_BLESS=1 writes it), kiln.h names each option and counter, the code reads each variable and no other,
 * and the library knows each row by its name.  Run from the root of the tree. */
#include "tests/support/harness.h"
#include "ir/text/text.h"
#include "passes/passes.h"
#include <ctype.h>
#include <kiln/kiln.h>

static const char readme[] = "include/kiln/README.md";
#define OPTION_UNSET (-1)

struct row { const char *name, *text; int64_t max, first; };

static const struct row options[] = {
#define OPTION(name, max, first, text) {#name, text, max, first},
#include "runtime/options.def"
};
static const struct row counters_[] = {
#define COUNTER(name, text) {#name, text, 0, 0},
#include "runtime/counters.def"
};
static const struct row stages[] = {
#define STAGE(name, ext, text) {#name, text, 0, 0},
#include "runtime/dump/stages.def"
};
static const struct row variables[] = {
#define VARIABLE(name, kind, text) {#name, text, 0, 0},
#include "runtime/environment.def"
};
static const struct table { const char *heading, *columns; const struct row *row; size_t n; } tables[] = {
    {"## Options\n", "| option | values |\n", options, sizeof options / sizeof *options},
    {"## Counters\n", "| counter | what it counts |\n", counters_, sizeof counters_ / sizeof *counters_},
    {"## Dump stages\n", "| stage | what it is |\n", stages, sizeof stages / sizeof *stages},
    {"## Environment variables\n", "| variable | meaning |\n", variables, sizeof variables / sizeof *variables},
};
enum { TABLES = sizeof tables / sizeof *tables };

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

static void put_table(struct text *t, const struct table *of)
{
    text_put(t, "%s|---|---|\n", of->columns);
    for (size_t i = 0; i < of->n; i++)
        text_put(t, "| `%s` | %s |\n", of->row[i].name, of->row[i].text);
}

/* The first table under the heading, in s; its length in *len.  NULL: there is none. */
static char *table_under(char *s, const char *heading, size_t *len)
{
    char *p = strstr(s, heading), *end = p ? strstr(p + 1, "\n## ") : NULL;
    p = p ? strstr(p, "\n|") : NULL;
    if (!p || (end && p > end))
        return NULL;
    char *q = ++p;
    while (*q == '|')
        q = strchr(q, '\n') ? strchr(q, '\n') + 1 : q + strlen(q);
    *len = (size_t)(q - p);
    return p;
}

static void test_readme(const struct table *of, bool bless)
{
    struct text want = {0};
    char *s = whole_file(readme);
    size_t len = 0;
    char *is = s ? table_under(s, of->heading, &len) : NULL;
    put_table(&want, of);
    if (is && bless && (len != want.len || memcmp(is, want.s, len))) {
        FILE *f = fopen(readme, "wb");
        fprintf(f, "%.*s%s%s", (int)(is - s), s, want.s, is + len);
        fclose(f);
        is = want.s, len = want.len;
    }
    check(is && len == want.len && !memcmp(is, want.s, len),
          "%s: the table under \"%.*s\" is not that of the .def file (KILN_BLESS=1 build/tests/tables writes it)\n%s",
          readme, (int)strcspn(of->heading, "\n"), of->heading, want.s);
    mem_free(want.s);
    mem_free(s);
}

static void test_names(void)
{
    char *header = whole_file("include/kiln/kiln.h"), quoted[64];
    struct err e = {0};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const char *name = options[i].name;
        int64_t v = -2;
        snprintf(quoted, sizeof quoted, "\"%s\"", name);
        check(header && strstr(header, quoted), "kiln.h does not name option %s", quoted);
        check(option_get(name, &v, &e) && v >= 0 && v <= options[i].max &&
                  (options[i].first < 0 || v == options[i].first),
              "option %s is %lld at first", name, (long long)v);
        check(option_set(name, v, &e) && (options[i].max == INT64_MAX || !option_set(name, options[i].max + 1, &e)),
              "option %s takes its own value and no larger than %lld", name, (long long)options[i].max);
        e = (struct err){0};
        check(!option_set("speed", 1, &e) && strstr(e.msg, name), "the message about an unknown option names %s: %s",
              name,
              e.msg);
        e = (struct err){0};
    }
    for (size_t i = 0; i < sizeof counters_ / sizeof *counters_; i++) {
        snprintf(quoted, sizeof quoted, "\"%s\"", counters_[i].name);
        check(header && strstr(header, quoted), "kiln.h does not name counter %s", quoted);
        check(kl_counter(counters_[i].name) >= 0, "kl_counter knows %s", quoted);
    }
    check(kl_counter("speed") == -1 && kl_counter(NULL) == -1, "an unknown counter");
    mem_free(header);
}

static void test_stages(void)
{
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        check(dump_is_stage(stages[i].name) && strstr(dump_stage_names(), stages[i].name), "stage %s", stages[i].name);
    for (unsigned i = 0; i < pass_count; i++)
        check(dump_is_stage(pass_list[i].stage), "stage %s of pass %s is a row of stages.def", pass_list[i].stage,
              pass_list[i].name);
    check(kl_dump("none", "frob", "/dev/null") == KL_ERR_ARGUMENT && strstr(kl_last_error(), dump_stage_names()), "%s",
          kl_last_error());
}

/* Which variables the code reads: "KILN_NAME" in quotes in a .c file of the product. */
static void test_variables(void)
{
    FILE *f = popen("grep -rhoE --include='*.c' '(getenv|environment_switch)\\(\"KILN_[A-Z_]+\"'"
                    " runtime frontend codegen passes ir | grep -oE 'KILN_[A-Z_]+' | sort -u", "r");
    enum { VARIABLES = sizeof variables / sizeof *variables };
    bool read[VARIABLES] = {0};
    char name[128];
    while (f && fscanf(f, "%127s", name) == 1) {
        size_t i = 0;
        while (i < VARIABLES && strcmp(name, variables[i].name))
            i++;
        if (check(i < VARIABLES, "%s is read and no row of environment.def", name))
            read[i] = true;
    }
    if (f)
        pclose(f);
    for (size_t i = 0; i < VARIABLES; i++)
        check(read[i], "%s is a row of environment.def and read nowhere", variables[i].name);
}

int main(void)
{
    bool bless = getenv("KILN_BLESS") && !strcmp(getenv("KILN_BLESS"), "1");
    for (unsigned i = 0; i < TABLES; i++)
        test_readme(&tables[i], bless);
    test_names();
    test_stages();
    test_variables();
    return finish();
}
