/* Runs the text tests: tests/text FILE|FOLDER...  (without arguments: tests/text)
 *
 * A test is one file, a graph (.kir) or a kernel (.loop: text_kernel.c), whose first line says what to do:
 *   # test: parse            print the graph
 *   # test: pass NAME,NAME   run passes, then print the graph
 *   # test: explain          numerics and fuse, then why the kernels are apart
 *   # test: diff             what has changed from the graph to the one in the lines that begin with "#| "
 *   # test: run              autodiff and numerics, then the interpreter: print each output's elements
 *   # test: agree            the interpreter and every way to compile it give the same bits for random data
 *   # test: run n=2,m=0; n=5,m=1    (agree too) with these values of the symbols, and then with those
 *   # test: error            parsing must fail
 * What must come out stands behind a line "# expect:"; without one, `parse` must print the file's own text.
 * An error is marked where it happens: "# error: COLUMN: REASON" behind the line, or a line of its own with
 * "# error: LINE:COLUMN: REASON".  KILN_BLESS=1 writes what came out into the files.
 *
 * Every graph that is printed must also parse back to the same hash and the same text. */
#include "text_test.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char error_mark[] = "# error: ";

/* ---- files ---- */

static char *read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    struct text t = {0};
    char buf[4096];
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, f)) > 0) {
        char *s = mem_grow(t.s, t.len, t.len + n + 1);
        if (!s)
            break;
        t.s = s;
        memcpy(t.s + t.len, buf, n);
        t.len += n;
    }
    bool ok = !ferror(f) && (t.s || (t.s = mem_alloc(1)));
    fclose(f);
    if (!ok) {
        mem_free(t.s);
        return NULL;
    }
    t.s[t.len] = 0;
    *len = t.len;
    return t.s;
}

static bool write_file(const char *path, const char *s)
{
    FILE *f = fopen(path, "wb");
    if (!f)
        return false;
    bool ok = fputs(s, f) >= 0;
    return !fclose(f) && ok;
}

/* ---- comparing ---- */

static size_t line_length(const char *s)
{
    const char *nl = strchr(s, '\n');
    return nl ? (size_t)(nl - s) + 1 : strlen(s);
}

void test_lines(struct text *t, const char *sign, const char *s, const char *end)
{
    while (s < end) {
        size_t n = line_length(s);
        text_put(t, "    %s%.*s%s", sign, (int)n, s, s[n - 1] == '\n' ? "" : "\n");
        s += n;
    }
}

/* The lines that differ: all but the equal ones at both ends. */
static void put_diff(struct text *t, const char *want, const char *got)
{
    const char *w = want + strlen(want), *g = got + strlen(got);
    while (*want && *got && line_length(want) == line_length(got) && !memcmp(want, got, line_length(want))) {
        size_t n = line_length(want);
        want += n;
        got += n;
    }
    while (w > want && g > got && w[-1] == g[-1]) {
        w--;
        g--;
    }
    w += strlen(w) ? line_length(w) : 0;
    g += strlen(g) ? line_length(g) : 0;
    test_lines(t, "- ", want, w);
    test_lines(t, "+ ", got, g);
}

static void compare(struct test *t, const char *want, const char *got)
{
    if (!strcmp(want, got))
        return;
    text_put(&t->problem, "    expected -, got +\n");
    put_diff(&t->problem, want, got);
}

/* Prints g and checks that the text means the same graph.  NULL: the problem is noted. */
static char *print_and_check(struct test *t, const struct graph *g)
{
    struct err e = {0};
    char *text = graph_text(g), *again = NULL;
    struct graph *back = text ? graph_parse(text, strlen(text), "printed", &e) : NULL;
    if (!text) {
        text_put(&t->problem, "    printing failed\n");
    } else if (!back) {
        text_put(&t->problem, "    what was printed does not parse: %s\n", e.msg);
        test_lines(&t->problem, "", text, text + strlen(text));
    } else {
        struct hash128 a = graph_hash(g), b = graph_hash(back);
        again = graph_text(back);
        if (a.lo != b.lo || a.hi != b.hi || !graph_same(g, back))
            text_put(&t->problem, "    the printed text parses to another graph\n");
        if (!again || strcmp(text, again)) {
            text_put(&t->problem, "    printing, parsing and printing again changes the text\n");
            put_diff(&t->problem, text, again ? again : "");
        }
    }
    mem_free(again);
    graph_free(back);
    return text;
}

/* ---- the kinds of test ---- */

size_t test_end(const struct test *t)
{
    return t->expect ? (size_t)(t->expect - t->text) - strlen(expect_line) + 1 : t->len;
}

static struct graph *parse_body(struct test *t)
{
    struct err e = {0};
    struct graph *g = graph_parse(t->text, test_end(t), t->path, &e);
    if (!g)
        text_put(&t->problem, "    %s\n", e.msg);
    return g;
}

void test_expect(struct test *t, const char *got, bool own)
{
    const char *want = t->expect ? t->expect : own ? t->body : "";
    if (!t->bless || t->problem.len || !strcmp(want, got)) {
        compare(t, want, got);
        return;
    }
    struct text s = {0};
    size_t keep = t->expect ? (size_t)(t->expect - t->text) - strlen(expect_line) : t->len;
    while (keep && t->text[keep - 1] == '\n')
        keep--;
    text_put(&s, "%.*s%s%s", (int)keep, t->text, expect_line, got);
    if (s.failed || !write_file(t->path, s.s))
        text_put(&t->problem, "    cannot write the expectation\n");
    mem_free(s.s);
}

static void run_passes(struct test *t, struct graph *g, const char *list, size_t len)
{
    const struct processor processor = {.devices = UINT64_MAX, .threads = 1, .l1_bytes = 32 << 10};
    const struct pass_options on_processor = {.fuse = true, .processor = processor};
    while (len && !g->err.code) {
        const char *comma = memchr(list, ',', len);
        size_t n = comma ? (size_t)(comma - list) : len;
        const struct pass_info *p = pass_find(list, n);
        struct err e = {0};
        if (!p) {
            text_put(&t->problem, "    no pass is called '%.*s'\n", (int)n, list);
            return;
        }
        if (pass_run(p, g, &on_processor) >= 0 && !graph_verify(g, &e))
            text_put(&t->problem, "    after %s: %s\n", p->name, e.msg);
        list += n + !!comma;
        len -= n + !!comma;
    }
}

static void test_print(struct test *t, const char *passes, size_t len)
{
    struct graph *g = parse_body(t);
    if (!g)
        return;
    run_passes(t, g, passes, len);
    if (g->err.code) {
        struct text s = {0};
        text_put(&s, "error: %s\n", g->err.msg);
        test_expect(t, s.s ? s.s : "", false);
        mem_free(s.s);
    } else if (!t->problem.len) {
        char *text = print_and_check(t, g);
        if (text)
            test_expect(t, text, !len);
        mem_free(text);
    }
    graph_free(g);
}

/* Comments: in front of the graph's text they change nothing. */
static void test_explain(struct test *t)
{
    struct graph *g = parse_body(t);
    if (!g)
        return;
    run_passes(t, g, "numerics,fuse", strlen("numerics,fuse"));
    char *why = g->err.code ? NULL : fuse_explain(g), *text = graph_text(g);
    struct text both = {0};
    struct err e = {0};
    text_put(&both, "%s%s", why ? why : "", text ? text : "");
    struct graph *back = why && both.s ? graph_parse(both.s, both.len, "explained", &e) : NULL;
    if (!back || !graph_same(g, back))
        text_put(&t->problem, "    the explained graph is another: %s%s\n", g->err.msg, e.msg);
    test_expect(t, why ? why : "", false);
    graph_free(back);
    mem_free(both.s);
    mem_free(why);
    mem_free(text);
    graph_free(g);
}

/* Both ways; a graph compared with itself has no differences, and there are some where the two are not the same. */
static void test_diff(struct test *t)
{
    struct text other = {0}, out = {0}, back = {0}, none = {0};
    struct graph_changes n, m, same;
    struct err e = {0};
    for (const char *s = t->body, *end = t->text + test_end(t); s < end; s += line_length(s))
        if (!strncmp(s, "#| ", 3))
            text_put(&other, "%.*s", (int)line_length(s) - 3, s + 3);
    struct graph *a = parse_body(t), *b = other.s ? graph_parse(other.s, other.len, "the other", &e) : NULL;
    if (!b)
        text_put(&t->problem, "    %s\n", other.s ? e.msg : "there is no other graph");
    if (a && b) {
        bool ok = graph_compare(a, b, &out, &n) && graph_compare(b, a, &back, &m) && graph_compare(b, b, &none, &same);
        if (!ok || none.len || !out.len != graph_same(a, b) || !back.len != graph_same(a, b))
            text_put(&t->problem, "    %s\n", !ok ? "out of memory" : none.len ? none.s
                     : "no difference, or one where there is none");
        if (ok && (n.added != m.removed || n.removed != m.added))
            text_put(&t->problem, "    %u added and %u removed, %u and %u the other way\n", n.added, n.removed, m.added,
                     m.removed);
        text_put(&out, "nodes: %u same, %u changed, %u removed, %u added\n", n.same, n.changed, n.removed, n.added);
        test_expect(t, out.s, false);
    }
    graph_free(a);
    graph_free(b);
    mem_free(other.s);
    mem_free(out.s);
    mem_free(back.s);
    mem_free(none.s);
}

void test_elements(struct text *s, unsigned dtype, const void *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, (const char *)data + (size_t)i * dtype_size(dtype), dtype_size(dtype));
        text_put(s, " ");
        if (dtype_value(dtype, bits) != dtype_value(dtype, bits))
            text_put(s, "nan"); /* which NaN is unspecified */
        else
            text_literal(s, dtype, bits);
    }
    text_put(s, "\n");
}

static void interpret(struct test *t, struct graph *g, struct text *s)
{
    struct err e = {0};
    void **out = mem_alloc((g->nout + 1) * sizeof *out);
    bool ok = out;
    if (g->input.n || g->state.n || g->slot.n) {
        text_put(&t->problem, "    a graph to run has no inputs, states or slots\n");
        ok = false;
    }
    for (uint32_t i = 0; ok && i < g->nout; i++)
        ok = (out[i] = mem_alloc(node_bytes(g, g->out[i].value)));
    if (ok && !interp_run(g, &(struct bind){.out = out}, &e)) {
        text_put(s, "error: %s\n", e.msg);
    } else if (ok) {
        for (uint32_t i = 0; i < g->nout; i++) {
            ref r = g->out[i].value;
            char buf[SHAPE_TEXT];
            unsigned dtype = node_at(g, r)->dtype;
            text_put(s, "%s%s:", dtype_name(dtype), shape_text(node_shape(g, r), buf, sizeof buf));
            test_elements(s, dtype, out[i], node_numel(g, r));
        }
    }
    for (uint32_t i = 0; out && i < g->nout; i++)
        mem_free(out[i]);
    mem_free(out);
}

/* A copy of the graph with values from "n=2,m=0"; NULL: the problem is noted. */
static struct graph *bound(struct test *t, const struct graph *from, const char *s, size_t len)
{
    struct graph *g = graph_clone(from);
    struct err e = {0};
    const char *end = s + len;
    while (s < end && !t->problem.len) {
        while (s < end && (*s == ' ' || *s == ','))
            s++;
        size_t name = strcspn(s, "=");
        uint32_t symbol = graph_symbol_find(g, s, name);
        if (symbol == NO_SYMBOL || !graph_symbol_set(g, symbol, strtoll(s + name + 1, NULL, 10), &e))
            text_put(&t->problem, "    no value for a symbol: '%.*s' %s\n", (int)(end - s), s, e.msg);
        s += strcspn(s, ",;\n");
    }
    if (!t->problem.len)
        run_passes(t, g, "bind", 4);
    if (!t->problem.len && !g->err.code)
        return g;
    text_put(&t->problem, "    %s\n", g->err.msg);
    graph_free(g);
    return NULL;
}

/* Does what is to be done with the graph once for each "n=2,m=0" of a list that ';' separates; without one, once. */
static void for_each_value(struct test *t, const char *values, size_t len, struct text *out,
                           void (*run)(struct test *t, struct graph *g, struct text *out))
{
    struct graph *g = parse_body(t);
    const char *end = values + len;
    while (values < end && *values == ' ')
        values++;
    while (g && !t->problem.len) {
        const char *stop = len ? memchr(values, ';', (size_t)(end - values)) : NULL;
        size_t n = (size_t)((stop ? stop : end) - values);
        struct graph *b = bound(t, g, values, n);
        if (b && len)
            text_put(out, "%.*s\n", (int)n, values);
        if (b)
            run(t, b, out);
        graph_free(b);
        if (!stop)
            break;
        for (values = stop + 1; *values == ' ';)
            values++;
    }
    graph_free(g);
}

static void run_once(struct test *t, struct graph *g, struct text *out)
{
    static const char before[] = "autodiff,numerics";
    run_passes(t, g, before, strlen(before));
    if (g->err.code)
        text_put(&t->problem, "    %s\n", g->err.msg);
    if (!t->problem.len)
        interpret(t, g, out);
}

static void test_run(struct test *t, const char *values, size_t len)
{
    struct text out = {0};
    for_each_value(t, values, len, &out, run_once);
    if (!t->problem.len)
        test_expect(t, out.s ? out.s : "", false);
    mem_free(out.s);
}

static void agree_once(struct test *t, struct graph *g, struct text *out)
{
    struct err why = {0};
    (void)out;
    mem_free(print_and_check(t, g));
    if (!graph_is_bound(g, &why) || !agree_on_random_data(g, &why))
        text_put(&t->problem, "    %s\n", why.msg);
}

static void test_agree(struct test *t, const char *values, size_t len)
{
    struct err why = {0};
    if (device_find("cpu", &why) < 0) {
        t->skip = true;
        return;
    }
    struct text out = {0};
    for_each_value(t, values, len, &out, agree_once);
    mem_free(out.s);
}

/* The mark as "LINE:COLUMN: REASON" in buf; false: there is none. */
static bool marked_error(const struct test *t, char *buf, size_t size, const char **mark)
{
    *mark = strstr(t->body, error_mark);
    if (!*mark)
        return false;
    unsigned line = 1;
    for (const char *s = t->text; s < *mark; s++)
        line += *s == '\n';
    const char *m = *mark + strlen(error_mark);
    int n = (int)strcspn(m, "\r\n");
    if ((*mark)[-1] == '\n')
        snprintf(buf, size, "%.*s", n, m);
    else
        snprintf(buf, size, "%u:%.*s", line, n, m);
    return true;
}

/* Puts the message into the file: replaces the mark, or adds one behind the first line. */
static bool bless_error(const struct test *t, const char *message, const char *mark)
{
    struct text s = {0};
    size_t cut = mark ? (size_t)(mark - t->text) : (size_t)(t->body - t->text);
    bool own_line = !mark || mark[-1] == '\n';
    const char *rest = mark ? mark + strcspn(mark, "\r\n") : t->body;
    const char *behind_line = strchr(message, ':');
    text_put(&s, "%.*s%s", (int)cut, t->text, error_mark);
    if (own_line) /* a new mark moves what is behind it down a line */
        text_put(&s, "%lu:", strtoul(message, NULL, 10) + !mark);
    text_put(&s, "%s%s%s", behind_line + 1, mark ? "" : "\n", rest);
    bool ok = !s.failed && write_file(t->path, s.s);
    mem_free(s.s);
    return ok;
}

static void test_error(struct test *t)
{
    struct err e = {0};
    char want[1100] = "";
    const char *mark, *got;
    struct kernels k = {0};
    struct graph *g = t->kernel ? NULL : graph_parse(t->text, t->len, NULL, &e);
    if (g || (t->kernel && kernel_parse(t->text, t->len, NULL, &lower_families, &k, &e)))
        text_put(&t->problem, "    parsed, but should have been refused\n");
    graph_free(g);
    kernels_free(&k);
    if (t->problem.len)
        return;
    got = e.msg;
    bool marked = marked_error(t, want, sizeof want, &mark);
    if (marked && !strcmp(want, got))
        return;
    if (t->bless && bless_error(t, got, mark))
        return;
    text_put(&t->problem, "    expected: %s\n    got:      %s\n", marked ? want : "(no '# error: ' mark)", got);
}

static void run_test(const char *path)
{
    struct test t = {.path = path, .bless = getenv("KILN_BLESS") && !strcmp(getenv("KILN_BLESS"), "1")};
    static const char head[] = "# test: ";
    t.kernel = strlen(path) > 5 && !strcmp(path + strlen(path) - 5, ".loop");
    t.text = read_file(path, &t.len);
    if (!t.text) {
        text_put(&t.problem, "    %s\n", strerror(errno));
    } else if (strncmp(t.text, head, strlen(head))) {
        text_put(&t.problem, "    the first line must be '# test: ...'\n");
    } else {
        const char *what = t.text + strlen(head);
        size_t n = strcspn(what, "\n");
        t.body = what + n + (what[n] == '\n');
        const char *mark = strstr(t.text, expect_line);
        t.expect = mark ? mark + strlen(expect_line) : NULL;
        if (n == 5 && !memcmp(what, "error", 5))
            test_error(&t);
        else if (t.kernel)
            test_kernel(&t, what, n);
        else if (n == 5 && !memcmp(what, "parse", 5))
            test_print(&t, NULL, 0);
        else if (!strncmp(what, "run", 3) && (n == 3 || what[3] == ' '))
            test_run(&t, what + 3, n - 3);
        else if (!strncmp(what, "agree", 5) && (n == 5 || what[5] == ' '))
            test_agree(&t, what + 5, n - 5);
        else if (n == 7 && !memcmp(what, "explain", 7))
            test_explain(&t);
        else if (n == 4 && !memcmp(what, "diff", 4))
            test_diff(&t);
        else if (n > 5 && !memcmp(what, "pass ", 5))
            test_print(&t, what + 5, n - 5);
        else
            text_put(&t.problem, "    unknown test '%.*s'\n", (int)n, what);
    }
    if (t.problem.len || t.problem.failed) {
        printf("FAIL %s\n%s", path, t.problem.s ? t.problem.s : "    out of memory\n");
        failed++;
    } else {
        t.skip ? skipped++ : passed++;
    }
    mem_free(t.problem.s);
    mem_free(t.text);
}

/* ---- finding tests ---- */

static int is_test(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return (n > 4 && !strcmp(d->d_name + n - 4, ".kir")) || (n > 5 && !strcmp(d->d_name + n - 5, ".loop"));
}

static bool run_path(const char *path)
{
    struct stat st;
    if (stat(path, &st)) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return false;
    }
    if (!S_ISDIR(st.st_mode)) {
        run_test(path);
        return true;
    }
    struct dirent **entry;
    int n = scandir(path, &entry, is_test, alphasort);
    for (int i = 0; i < n; i++) {
        struct text file = {0};
        text_put(&file, "%s/%s", path, entry[i]->d_name);
        if (file.s)
            run_test(file.s);
        mem_free(file.s);
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
    if (n <= 0)
        fprintf(stderr, "%s: no tests\n", path);
    return n > 0;
}

int main(int argc, char **argv)
{
    bool ok = true;
    test_ops();
    if (argc < 2)
        ok = run_path("tests/text");
    for (int i = 1; i < argc; i++)
        ok &= run_path(argv[i]);
    return finish() || !ok;
}
