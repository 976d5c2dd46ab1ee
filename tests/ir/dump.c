/* Dumps as pages and pictures: whether their structure is whole, everything is on them, and no name breaks out of where
 * it stands.  Arguments: the folder of text tests, whose graphs are dumped. */
#include "tests/support/harness.h"
#include "ir/text/text.h"
#include <ctype.h>
#include <dirent.h>
#include <stdarg.h>
#include <zlib.h>

/* ---- JSON: a reader that keeps nothing ---- */

struct json { const char *at, *end; uint32_t strings; };

static bool json_value(struct json *j, int depth);

static void blank(struct json *j)
{
    while (j->at < j->end && isspace((unsigned char)*j->at))
        j->at++;
}

static bool json_string(struct json *j)
{
    if (j->at >= j->end || *j->at++ != '"')
        return false;
    for (j->strings++; j->at < j->end && *j->at != '"'; j->at++) {
        if ((unsigned char)*j->at < 0x20 || strchr("<>&", *j->at))
            return false;
        if (*j->at != '\\')
            continue;
        j->at++;
        for (int i = 0; *j->at == 'u' && i < 4; i++)
            if (!isxdigit((unsigned char)j->at[1 + i]))
                return false;
        if (!strchr("\"\\nu", *j->at))
            return false;
    }
    return j->at < j->end && *j->at++ == '"';
}

static bool json_list(struct json *j, char close, int depth)
{
    for (j->at++, blank(j); j->at < j->end && *j->at != close; blank(j)) {
        if (close == '}' && (!json_string(j) || j->at >= j->end || *j->at++ != ':'))
            return false;
        if (!json_value(j, depth + 1))
            return false;
        blank(j);
        if (j->at < j->end && *j->at == ',')
            j->at++;
        else if (j->at >= j->end || *j->at != close)
            return false;
    }
    return j->at < j->end && *j->at++ == close;
}

static bool json_value(struct json *j, int depth)
{
    blank(j);
    if (j->at >= j->end || depth > 20)
        return false;
    if (*j->at == '{' || *j->at == '[')
        return json_list(j, *j->at == '{' ? '}' : ']', depth);
    if (*j->at == '"')
        return json_string(j);
    size_t n = strspn(j->at, "-0123456789.truefalsn");
    j->at += n;
    return n > 0;
}

static bool json_whole(const char *s, size_t n)
{
    struct json j = {s, s + n, 0};
    bool ok = json_value(&j, 0);
    blank(&j);
    return ok && j.at == j.end;
}

/* ---- pages ---- */

enum { MAX_OPEN = 32 };
struct page_facts { uint32_t scripts, kernels; const char *data; size_t data_size; };

static bool is_void(const char *name, size_t n)
{
    return (n == 4 && !memcmp(name, "meta", 4)) || (n == 5 && !memcmp(name, "input", 5)) ||
        (n == 2 && !memcmp(name, "br", 2));
}

/* Every element closed where it must be, every attribute quoted, all data JSON.  NULL, or what is wrong. */
static const char *page_flaw(const char *s, struct page_facts *f)
{
    char open[MAX_OPEN][16];
    int depth = 0;
    *f = (struct page_facts){0};
    while ((s = strchr(s, '<'))) {
        const char *name = s + 1 + (s[1] == '/');
        size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789");
        if (!strncmp(s, "<!DOCTYPE html>", 15)) {
            s++;
            continue;
        }
        if (!n || n >= sizeof open[0])
            return "a < that begins no element";
        const char *end = name + n;
        for (bool quoted = false; *end && (quoted || *end != '>'); end++) {
            quoted ^= *end == '"';
            if (!quoted && (*end == '<' || (*end == '=' && end[1] != '"')))
                return "an attribute without quotes";
        }
        if (!*end)
            return "an element without end";
        if (s[1] == '/') {
            if (!depth || strlen(open[depth - 1]) != n || memcmp(open[--depth], name, n))
                return "a closing tag of another element";
        } else if (!is_void(name, n)) {
            if (depth == MAX_OPEN)
                return "elements too deep";
            memcpy(open[depth], name, n);
            open[depth++][n] = 0;
        }
        s = end + 1;
        if (name[-1] == '/' || (strncmp(open[depth ? depth - 1 : 0], "script", 7) &&
                                strncmp(open[depth ? depth - 1 : 0], "style", 6)))
            continue;
        /* their text is raw */
        const char *close = strstr(s, !strcmp(open[depth - 1], "script") ? "</script>" : "</style>");
        if (!close)
            return "a script without end";
        f->scripts += open[depth - 1][1] == 'c';
        if (!strncmp(name, "script type=\"application/json\"", 30)) {
            f->kernels += !strncmp(name + 30, " id=\"kernel-", 12);
            if (!strncmp(name + 30, " id=\"data\"", 10)) {
                f->data = s;
                f->data_size = (size_t)(close - s);
            }
            if (!json_whole(s, (size_t)(close - s)))
                return "data that are no JSON";
        }
        s = close;
    }
    return depth ? "an element that is never closed" : f->data ? NULL : "no data";
}

/* Does s have this text? */
static bool has(const char *s, const char *fmt, ...)
{
    char want[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(want, sizeof want, fmt, ap);
    va_end(ap);
    return strstr(s, want) != NULL;
}

static uint32_t times(const char *s, const char *what)
{
    uint32_t n = 0;
    for (; (s = strstr(s, what)); s += strlen(what))
        n++;
    return n;
}

static char *dumped(const struct graph *g, const struct dump_request *r, struct err *e)
{
    char *s = NULL;
    size_t n;
    FILE *f = open_memstream(&s, &n);
    bool ok = f && dump_write(g, r, f, e);
    if (f)
        fclose(f);
    if (ok)
        return s;
    free(s);
    return NULL;
}

static uint32_t all_nodes(const struct graph *g)
{
    uint32_t n = g->nnode - 1;
    for (uint32_t i = 0; i < g->nregion; i++)
        n += all_nodes(g->region[i]);
    return n;
}

/* Each node of the captured graph is a row, with an origin that is itself. */
static bool rows_of(const char *s, const struct graph *g, const char *path)
{
    for (ref r = 1; r < g->nnode; r++) {
        if (!has(s, "\n[\"%s%u\",\"%%%u = ", path, r, r) || !has(s, "\",\"%s%u\",", path, r))
            return check(false, "node %s%u is not on the page", path, r);
        for (uint32_t i = 0; i < op_regions(g->node[r].op); i++) {
            char inner[128];
            snprintf(inner, sizeof inner, "%s%u/%u/", path, r, i);
            if (!rows_of(s, node_region(g, &g->node[r], i), inner))
                return false;
        }
    }
    return true;
}

/* The bytes of a base64 text up to its closing quote; 0: it is none. */
static size_t from_base64(const char *s, unsigned char *out, size_t max)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    unsigned v = 0, bits = 0;
    for (; *s && *s != '"' && *s != '=' && n < max; s++) {
        const char *at = strchr(digit, *s);
        if (!at)
            return 0;
        v = v << 6 | (unsigned)(at - digit);
        bits += 6;
        if (bits >= 8)
            out[n++] = (unsigned char)(v >> (bits -= 8));
    }
    return n;
}

/* Every kernel's code unpacks to a JSON object that begins with its loop IR. */
static bool codes_unpack(const char *page, const char *what)
{
    static unsigned char packed[1 << 20];
    static char text[8 << 20];
    const char *mark = "<script type=\"application/json\" id=\"kernel-";
    bool ok = true;
    for (const char *p = page; ok && (p = strstr(p, mark)); p++) {
        const char *code = strstr(p, ">\"");
        uLongf len = sizeof text - 1;
        size_t n = code ? from_base64(code + 2, packed, sizeof packed) : 0;
        ok = check(n && uncompress((Bytef *)text, &len, packed, (uLong)n) == Z_OK, "%s: code that does not unpack",
                   what);
        text[ok ? len : 0] = 0;
        struct json j = {text, text + (ok ? len : 0), 0};
        ok = ok && check(!strncmp(text, "{\"loop\":\"kernel @", 17) && json_value(&j, 0) && j.at == j.end,
                         "%s: unpacked code is no JSON: %.60s", what, text);
    }
    return ok;
}

static bool check_page(const struct graph *g, int device, bool fuse, const char *what)
{
    struct err e = {0};
    struct page_facts f;
    struct dump_request r = {.form = DUMP_HTML, .device = device, .fuse = fuse};
    char *s = dumped(g, &r, &e);
    if (!check(s != NULL, "%s: %s", what, e.msg))
        return false;
    const char *flaw = page_flaw(s, &f);
    bool ok = check(!flaw, "%s: %s", what, flaw ? flaw : "");
    if (ok) {
        char count[64];
        snprintf(count, sizeof count, "],\"nodes\":%u}", all_nodes(g)); /* the first stage's */
        const char *first = strstr(f.data, "],\"nodes\":");
        ok = check(first && !strncmp(first, count, strlen(count)), "%s: the page does not have %u nodes", what,
                   all_nodes(g));
        ok &= rows_of(f.data, g, "");
        ok &= check(f.scripts == f.kernels + 2, "%s: %u scripts with %u kernels", what, f.scripts, f.kernels);
        ok &= codes_unpack(s, what);
        ok &= check(!strstr(s, "http:") && !strstr(s, "https:") && !strstr(s, "src=\""),
                    "%s: the page needs another file", what);
    }
    /* The kernels are those of the program. */
    struct caps caps;
    const struct backend *b = device_backend(device, &caps);
    r.form = DUMP_TEXT;
    r.stage = "scheduled";
    char *kernels = ok && b && graph_is_bound(g, &e) ? dumped(g, &r, &e) : NULL;
    if (kernels)
        ok &= check(f.kernels == times(kernels, "kernel @") && f.kernels == times(f.data, ",\"flops\":"),
                    "%s: %u kernels on the page, %u in the program", what,
                    f.kernels, times(kernels, "kernel @"));
    free(kernels);
    free(s);
    return ok;
}

/* Braces and quotes that fit, and a box for every node. */
static bool check_dot(const struct graph *g, const char *what)
{
    struct err e = {0};
    char *s = dumped(g, &(struct dump_request){.stage = "captured", .form = DUMP_DOT, .device = -1}, &e);
    if (!check(s != NULL, "%s: %s", what, e.msg))
        return false;
    int depth = 0;
    bool quoted = false, ok = true;
    for (const char *p = s; *p && ok; p++) {
        if (quoted && *p == '\\')
            p++;
        else if (*p == '"')
            quoted = !quoted;
        else if (!quoted)
            depth += (*p == '{') - (*p == '}');
        ok = depth >= 0 && (unsigned char)*p < 0x7f && !(quoted && *p == '\n');
    }
    ok = check(ok && !quoted && depth == 0, "%s: the picture's braces or quotes", what);
    for (ref r = 1; r < g->nnode && ok; r++)
        ok = check(has(s, "  \"%u\" [label=\"%%%u = %s", r, r, opinfo[g->node[r].op].name), "%s: node %u has no box",
                   what, r);
    free(s);
    return ok;
}

/* ---- graphs ---- */

static void test_folder(const char *folder, const int *device, int devices)
{
    DIR *d = opendir(folder);
    uint32_t graphs = 0;
    struct dirent *f;
    while (d && (f = readdir(d))) {
        char path[1024];
        size_t n = strlen(f->d_name), len;
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        FILE *file = n > 4 && !strcmp(f->d_name + n - 4, ".kir") ? fopen(path, "r") : NULL;
        if (!file)
            continue;
        char *text = mem_alloc(1 << 20);
        len = fread(text, 1, (1 << 20) - 1, file);
        fclose(file);
        struct err e = {0};
        struct graph *g = len < (1 << 20) - 1 ? graph_parse(text, len, path, &e) : NULL;
        struct graph *trial = g ? graph_clone(g) : NULL; /* some are there to be refused */
        if (trial && all_nodes(g) < 400 && passes_run(trial, &(struct pass_options){.fuse = true})) {
            check_page(g, device[devices > 1 && graphs % 12 == 0], graphs % 2, f->d_name);
            check_dot(g, f->d_name);
            graphs++;
        }
        graph_free(trial);
        graph_free(g);
        mem_free(text);
    }
    if (d)
        closedir(d);
    check(graphs > 50, "only %u graphs in %s", graphs, folder);
}

/* Names that would end a string, an element or a line where they are not escaped. */
static void test_hostile_names(const int *device, int devices)
{
    static const char *const hostile[] = {"</script><script>alert(1)//", "\"><img src=x onerror=alert(1)>",
                                          "<!--<script>",
                                          "\\\"', \\u003c", "tab\there", "\xff\xc0\x80\xed\xa0\x80", "line\nfeed",
                                              "@DATA@", "caf\xc3\xa9"};
    for (unsigned i = 0; i < sizeof hostile / sizeof *hostile; i++)
        for (int k = 0; k < devices; k++) {
            struct graph *g = graph_new(hostile[i]);
            struct shape s = shape_make(1, (int64_t[]){3});
            g->cur_site = graph_site(g, &(kl_site){hostile[i], 7, hostile[i]});
            ref x = n_input(g, KL_F32, &s, hostile[i]), w = n_state(g, KL_F32, &s, hostile[i]);
            graph_output(g, OUT_ASSIGN, n_add(g, n_tanh(g, x), w), 0);
            check_page(g, device[k], true, hostile[i]);
            check_dot(g, hostile[i]);
            struct err e = {0};
            char *page = dumped(g, &(struct dump_request){.form = DUMP_HTML, .device = device[k]}, &e);
            check(page && !strstr(page, "alert") == !strstr(hostile[i], "alert") && !strstr(page, "<img") &&
                  !strstr(page, "<!--") &&
                      !strstr(page, "<script>alert"), "%s stands on the page as it is", hostile[i]);
            free(page);
            graph_free(g);
        }
}

static void test_requests(int device)
{
    struct err e = {0};
    struct graph *g = graph_new("requests");
    struct shape s = shape_make(1, (int64_t[]){100});
    ref x = n_input(g, KL_F32, &s, "x");
    graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, n_exp(g, x), 1), 0);
    struct dump_request r = {.stage = "scheduled", .form = DUMP_DOT, .device = device, .fuse = true};
    char *dot = dumped(g, &r, &e);
    check(dot && has(dot, "0: k0_") && has(dot, " -> \"c0\""), "the program as a picture: %s", e.msg);
    free(dot);
    e = (struct err){0};
    r.stage = "asm";
    check(!dumped(g, &r, &e) && strstr(e.msg, "stage asm is text"), "no picture of assembly: %s", e.msg);
    e = (struct err){0};
    r.form = DUMP_TEXT;
    r.stage = "source";
    char *source = dumped(g, &r, &e);
    check(source && has(source, "__global__"), "source for a GPU: %s", e.msg);
    free(source);
    e = (struct err){0};
    check(!dump_to_file(g, &r, "/nowhere/at/all", &e) && e.code == KL_ERR_IO && strstr(e.msg, "/nowhere/at/all: "),
          "a file that cannot be: %s", e.msg);
    static const struct { const char *path; enum dump_form form; } form[] = {
        {"a.dot", DUMP_DOT}, {"a.b/c.gv", DUMP_DOT}, {"x.html", DUMP_HTML}, {"x.html/y", DUMP_TEXT},
            {"html", DUMP_TEXT}, {"y.kir", DUMP_TEXT}};
    for (unsigned i = 0; i < sizeof form / sizeof *form; i++) {
        enum dump_form got;
        dump_form_of(form[i].path, &got);
        check(got == form[i].form, "form of %s", form[i].path);
    }
    check(dump_is_stage("captured") && dump_is_stage("source") && !dump_is_stage("frob"), "stages by name");
    graph_free(g);
}

/* The reader of pages notices what it is there for. */
static void test_flaws(void)
{
    static const char *const bad[] = {
        "<p><b></p></b>", "<p>", "</p>", "<p a=b></p>", "a < b", "<script>x", "<p a=\"x></p>",
        "<script type=\"application/json\" id=\"data\">{\"a\":</script>",
            "<script type=\"application/json\" id=\"data\">{\"a\":\"<\"}</script>"};
    struct page_facts f;
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        check(page_flaw(bad[i], &f) && strcmp(page_flaw(bad[i], &f), "no data"), "%s is taken for whole", bad[i]);
    check(!page_flaw("<p><br/></p><script type=\"application/json\" id=\"data\">{\"a\":[1,\"\\u003c\"]}</script>", &f),
          "a whole page");
}

int main(int argc, char **argv)
{
    struct err e = {0};
    test_flaws();
    int device[2] = {device_find("ref", &e)}, cpu = device_find("cpu", &e), devices = 1;
    if (cpu >= 0)
        device[devices++] = cpu;
    test_folder(argc > 1 ? argv[1] : "tests/text", device, devices);
    test_hostile_names(device, devices);
    if (cpu >= 0)
        test_requests(cpu);
    return finish();
}
