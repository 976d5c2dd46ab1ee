/* Text that nobody meant: generated texts that ask for too much, and damaged copies of the text tests.
 *
 *   tests/text_fuzz [MUTATIONS A FILE] [FOLDER...]    (without arguments: 200 tests/text)
 *
 * Whatever comes in, the parser must answer with a graph or with "line:column: reason", in linear time and
 * without large allocations; a graph that it accepts must print to text that parses to the same graph. */
#include "ir/loop/loop.h"
#include "ir/text/text.h"
#include "passes/lower/schedule.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { LARGE = 4 << 20, MANY = 100000 };

static unsigned passed, failed;

static void report(bool ok, const char *name, const char *why)
{
    ok ? passed++ : failed++;
    if (!ok)
        printf("FAIL %s: %s\n", name, why);
}

/* NULL: all is well. */
static const char *check_round_trip(const struct graph *g)
{
    struct err e = {0};
    char *text = graph_text(g), *again = NULL;
    struct graph *back = text ? graph_parse(text, strlen(text), NULL, &e) : NULL;
    const char *why = NULL;
    if (!back)
        why = "what was printed does not parse";
    else if (!graph_same(g, back))
        why = "the printed text is another graph";
    else if (!(again = graph_text(back)) || strcmp(text, again))
        why = "printing again changes the text";
    graph_free(back);
    mem_free(text);
    mem_free(again);
    return why;
}

static bool is_positioned(const char *msg)
{
    unsigned line, column;
    int n = 0;
    return sscanf(msg, "%u:%u: %n", &line, &column, &n) == 2 && n && msg[n];
}

/* Kernels print to text that parses to the same kernels. */
static const char *check_kernels(const struct kernels *k)
{
    struct err e = {0};
    struct kernels back = {0};
    const char *why = NULL;
    for (uint32_t i = 0; i < k->n && !why; i++) {
        char *text = kernel_text(k->v[i]);
        if (!text || !kernel_verify(k->v[i], &e))
            why = "the kernel is broken";
        else if (!kernel_parse(text, strlen(text), NULL, &lower_families, &back, &e))
            why = "the printed kernel does not parse";
        else if (!kernel_same(k->v[i], back.v[back.n - 1]))
            why = "the printed text is another kernel";
        mem_free(text);
    }
    kernels_free(&back);
    return why;
}

/* The first word behind blanks and comments. */
static bool is_kernel(const char *s, size_t len)
{
    const char *end = s + len;
    while (s < end && (*s == '#' || *s == '\n' || *s == ' ')) {
        const char *nl = *s == '#' ? memchr(s, '\n', (size_t)(end - s)) : s;
        s = nl ? nl + 1 : end;
    }
    return end - s >= 6 && !memcmp(s, "kernel", 6);
}

static const char *check_text(const char *s, size_t len, bool *accepted)
{
    struct err e = {0}, broken = {0};
    if (is_kernel(s, len)) {
        struct kernels k = {0};
        const char *flaw = NULL;
        *accepted = kernel_parse(s, len, NULL, &lower_families, &k, &e);
        if (*accepted)
            flaw = check_kernels(&k);
        else if (e.code != KL_ERR_PARSE || !is_positioned(e.msg))
            flaw = "the error has no position";
        kernels_free(&k);
        return flaw;
    }
    struct graph *g = graph_parse(s, len, NULL, &e);
    const char *why = NULL;
    *accepted = g != NULL;
    if (g)
        why = graph_verify(g, &broken) ? check_round_trip(g) : "the graph is broken";
    else if (e.code != KL_ERR_PARSE || !is_positioned(e.msg))
        why = "the error has no position";
    graph_free(g);
    return why;
}

/* ---- texts that ask for too much ---- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void hostile(const char *name, struct text *t, bool valid)
{
    double start = seconds();
    bool accepted;
    const char *why = t->failed ? "out of memory making the text" : check_text(t->s, t->len, &accepted);
    if (!why && accepted != valid)
        why = valid ? "refused" : "accepted";
    if (!why && seconds() - start > 20) /* linear work takes well under a second, quadratic work minutes */
        why = "took more than 20 seconds";
    report(!why, name, why);
    mem_free(t->s);
}

/* head, a unit repeated to about `bytes` bytes, tail */
static void repeated(const char *name, const char *head, const char *unit, size_t bytes, const char *tail, bool valid)
{
    struct text t = {0};
    size_t h = strlen(head), u = strlen(unit), n = bytes / u;
    t.cap = h + n * u + strlen(tail) + 1;
    t.s = mem_alloc(t.cap);
    t.failed = !t.s;
    if (t.s) {
        memcpy(t.s, head, h);
        for (size_t i = 0; i < n; i++)
            memcpy(t.s + h + i * u, unit, u);
        memcpy(t.s + h + n * u, tail, strlen(tail) + 1);
        t.len = t.cap - 1;
    }
    hostile(name, &t, valid);
}

/* `head`, MANY lines of a pattern with the line's number twice, `tail` */
static void numbered(const char *name, const char *head, const char *a, const char *b, const char *c, const char *tail,
                     bool valid)
{
    struct text t = {0};
    text_put(&t, "%s", head);
    for (unsigned i = 0; i < MANY; i++)
        text_put(&t, "%s%u%s%u%s\n", a, i, b, i, c);
    text_put(&t, "%s", tail);
    hostile(name, &t, valid);
}

#define HEAD "graph @g {\n  %x = input 0 : f32[2]\n"
#define TAIL "\n  return %x\n}\n"

static void test_long_tokens(void)
{
    repeated("long op name", HEAD "  %y = ", "a", LARGE, " %x : f32[2]" TAIL, false);
    repeated("long value name", HEAD "  %", "a", LARGE, " = neg %x : f32[2]" TAIL, true);
    repeated("long undefined name", HEAD "  %y = neg %", "a", LARGE, " : f32[2]" TAIL, false);
    repeated("long dtype", HEAD "  %y = neg %x : ", "f", LARGE, "[2]" TAIL, false);
    repeated("long dimension", HEAD "  %y = neg %x : f32[", "9", LARGE, "]" TAIL, false);
    repeated("long dimension of zeros", HEAD "  %y = neg %x : f32[", "0", LARGE, "2]" TAIL, true);
    repeated("many dimensions", HEAD "  %y = input 1 : f32[", "1,", LARGE, "1]" TAIL, false);
    repeated("many axes", HEAD "  %y = sum %x axes(", "0,", LARGE, "0) : f32[1]" TAIL, false);
    repeated("many operands", HEAD "  %y = neg %x", ", %x", LARGE, " : f32[2]" TAIL, false);
    repeated("many attributes", HEAD "  %y = neg %x", " stop", LARGE, " : f32[2]" TAIL, false);
    repeated("long literal", HEAD "  %y = const 0.", "1", LARGE, " : f64[]" TAIL, false);
    repeated("long exponent", HEAD "  %y = const 1e", "9", LARGE, " : f64[]" TAIL, false);
    repeated("long bits", HEAD "  %y = const bits(0x", "0", LARGE, "1) : f64[]" TAIL, false);
    repeated("open brackets", HEAD "  %y = sum %x axes", "(", LARGE, ") : f32[1]" TAIL, false);
    repeated("open braces", "graph @g ", "{", LARGE, "}", false);
    repeated("long leaf name", HEAD "  %y = input 1 \"", "n", LARGE, "\" : f32[2]" TAIL, false);
    repeated("long graph name", "graph @", "n", LARGE, " {\n}\n", false);
    repeated("long ordinal", HEAD "  %y = input ", "1", LARGE, " : f32[2]" TAIL, false);
    repeated("long group", HEAD "  %y = neg %x : f32[2] group ", "1", LARGE, TAIL, false);
    repeated("largest group", HEAD "  %y = neg %x : f32[2] group 4294967293", "\n", 1, TAIL, false);
    repeated("long device", HEAD "  %y = neg %x : f32[2] @", "1", LARGE, TAIL, false);
}

static void test_symbols(void)
{
    const char *two = "graph @g {\n  symbol n 0..9\n  symbol m 0..9\n";
    struct text head = {0};
    text_put(&head, "%s  %%x = input 0 : f32[n", two);
    repeated("long sum", head.s, "+n", LARGE, "]\n  return %x\n}\n", true);
    repeated("long sum of many", head.s, "+m+n+1-n-m-1", LARGE, "]\n  return %x\n}\n", true);
    repeated("long sum that overflows", head.s, "+9223372036854775807", LARGE, "]\n  return %x\n}\n", false);
    repeated("large factor", head.s, "+1", 2, "0000000000000000000*n]\n  return %x\n}\n", false);
    repeated("many factors", head.s, "*n", LARGE, "]\n  return %x\n}\n", false);
    repeated("many signs", head.s, "-", LARGE, "n]\n  return %x\n}\n", false);
    repeated("long symbol name", "graph @g {\n  symbol ", "n", LARGE, " 0..9\n}\n", false);
    repeated("long bound", "graph @g {\n  symbol n 0..", "9", LARGE, "\n}\n", false);
    repeated("many symbols", "graph @g {\n", "  symbol n 0..9\n", LARGE, "}\n", false);
    repeated("nothing but symbols", two, "\n", LARGE, "}\n", true);
    numbered("many expressions", two, "  input ", " : f32[2*n+", "]", "}\n", true);
    mem_free(head.s);
    struct text t = {0};
    text_put(&t, "%s", two);
    for (unsigned i = 0; i < MANY / 10; i++)
        text_put(&t, "  %%c%u = checkpoint : f32[] {\n    graph @r {\n      %%x = iota axis(0) : f32[m+%u]\n"
                     "      %%y = const 0.0 : f32[]\n      return %%y\n    }\n  }\n", i, i);
    text_put(&t, "}\n");
    hostile("many expressions in regions", &t, true);
}

static void test_space(void)
{
    repeated("blanks", HEAD "  %y =", " ", LARGE, "neg %x : f32[2]" TAIL, true);
    repeated("blank lines", HEAD, "\n", LARGE, TAIL, true);
    repeated("comment lines", HEAD, "# c\n", LARGE, TAIL, true);
    repeated("long comment", HEAD "#", "#", LARGE, TAIL, true);
    repeated("long site", HEAD "  %y = neg %x : f32[2] # ", "d/", LARGE, "x.c:3" TAIL, true);
    repeated("digits for a site", HEAD "  %y = neg %x : f32[2] # f:", "1", LARGE, TAIL, true);
    repeated("nothing", "", "\n", LARGE, "", false);
    repeated("carriage returns", HEAD "  %y =", "\r", LARGE, "neg %x : f32[2]" TAIL, true);
}

static void test_many(void)
{
    numbered("many nodes", HEAD, "  %n", " = neg %x : f32[2] # f", ".c:3", TAIL, true);
    numbered("many shapes", "graph @g {\n", "  input ", " : f32[1", "]", "}\n", true);
    numbered("many sites", HEAD, "  %n", " = neg %x : f32[2] # f.c:", "", TAIL, true);
    numbered("many groups", HEAD, "  %n", " = neg %x : f32[2] group ", "", TAIL, true);
    numbered("same names", HEAD, "  %n", " = neg %x : f32[2]\n  %m", " = slot 0 \"s\" : f32[]", TAIL, true);
    numbered("many definitions", HEAD "  %y = neg %x : f32[2]\n", "  %y = neg %x : f32[2] # ", "", "", TAIL, false);
    struct text t = {0};
    text_put(&t, "graph @g {\n");
    for (unsigned i = 0; i < MANY; i++)
        text_put(&t, "  %%s%u = state %u : f32[%u]\n", i, i, i);
    for (unsigned i = MANY; i-- > 0;)
        text_put(&t, "  assign %u = %%s%u\n  return %%s%u\n", i, i, i);
    text_put(&t, "}\n");
    hostile("many states, shapes and outputs", &t, true);
}

#define KERNEL "kernel @k {\n  b0 = in 0 : f32[8]\n  b1 = out 1 : f32[8]\n"

static void test_kernels(void)
{
    repeated("long kernel name", "kernel @", "n", LARGE, " {\n}\n", false);
    repeated("long instruction", KERNEL "  %x = ", "l", LARGE, " b0[0] : f32\n}\n", false);
    repeated("long name in a kernel", KERNEL "  %", "x", LARGE, " = load b0[0] : f32\n}\n", true);
    repeated("long number in a kernel", KERNEL "  %x = load b0[", "9", LARGE, "] : f32\n}\n", false);
    repeated("long buffer number", KERNEL "  %x = load b", "9", LARGE, "[0] : f32\n}\n", false);
    repeated("huge buffers", "kernel @k {\n  b0 = scratch : u8[9223372036854775807]\n", "\n", 1, "}\n", true);
    repeated("too huge a buffer", "kernel @k {\n  b0 = scratch : f32[9223372036854775807]\n", "\n", 1, "}\n", false);
    repeated("deep loops", KERNEL, "  if true:bool {\n", LARGE, "}\n", false);
    repeated("many braces", KERNEL, "}\n", LARGE, "", false);
    repeated("many kernels", "", "kernel @k {\n}\n", LARGE / 16, "", true);
    repeated("long schedule", "kernel @k {\n  schedule map", " pack_b", LARGE, "\n}\n", false);
    repeated("many steps", KERNEL "  %l = loop serial 0 to 1", " step 2", LARGE, " {\n}\n}\n", false);
    repeated("largest estimate", "kernel @k {\n  estimate 9223372036854775807 flops 9223372036854775808 bytes", "\n", 1,
             "}\n", false);
    numbered("many values", KERNEL, "  %n", " = load b0[", "] : f32", "}\n", true);
    numbered("many constants", KERNEL, "  %n", " = add 1, ", " : i64", "}\n", true);
    numbered("values twice", KERNEL "  %n = load b0[0] : f32\n", "  %n = load b0[", "] : f32 #", "", "}\n", false);
    struct text t = {0};
    text_put(&t, KERNEL "  %%l = loop serial 0 to 9 {\n");
    for (unsigned i = 0; i < MANY; i++)
        text_put(&t, "    %%c%u = carry %u:i32 : i32\n", i, i);
    for (unsigned i = MANY; i-- > 0;)
        text_put(&t, "    next %%c%u, %%c%u\n", i, MANY - 1 - i);
    text_put(&t, "  }\n}\n");
    hostile("many carries", &t, true);
}

static void test_zero_bytes(void)
{
    static const char text[] = HEAD "  %y = neg %x : f32[2] # f.c:3" TAIL;
    bool accepted;
    for (size_t i = 0; i + 1 < sizeof text; i++) {
        char copy[sizeof text];
        memcpy(copy, text, sizeof text);
        copy[i] = 0;
        const char *why = check_text(copy, sizeof text - 1, &accepted);
        bool in_comment = strchr(text, '#') - text < (long)i && (long)i <= strstr(text, "\n  return") - text;
        if (!why && accepted != in_comment)
            why = accepted ? "accepted" : "refused";
        report(!why, "zero byte", why);
    }
}

/* Every beginning of a text is refused, but for those that lack only what comes behind the brace. */
static void test_prefixes(void)
{
    static const char text[] = "graph @g @cpu {\n  %x = input 0 \"x\" stop : f32[2,3] @ref group 0 # f.c:3 main\n"
                               "  %y = dot %x, %x batch(0; 0) contract(1; 1) order(lanes 1, kblock 8) : f32[2]\n"
                               "  %c = const -1.5e-3 : f32[]\n  return %y\n}";
    for (size_t n = 0; n < sizeof text; n++) {
        bool accepted;
        char *copy = malloc(n ? n : 1); /* of the exact size, so that a sanitizer sees each byte too many */
        if (!copy)
            continue;
        memcpy(copy, text, n);
        const char *why = check_text(copy, n, &accepted);
        if (!why && accepted != (n == sizeof text - 1) && n < sizeof text - 1)
            why = "accepted";
        report(!why, "prefix", why);
        free(copy);
    }
}

/* ---- damaged texts ---- */

static uint64_t random_state = 88172645463325252u;

static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 33) % n);
}

static const char *const pieces[] = {
    "%", "%1", ",", "(", ")", "[", "]", ":", ";", "{", "}", "@", "\"", "#", "\n", " ", "0", "1", "7", "8",
    "4294967295", "4294967296", "18446744073709551615", "9223372036854775807", "-", "stop", "group 1", "axes(0)",
    "order(lanes 64, chunk 1)", "f32[]", "f64[0]", "bool", "u8[1,1,1,1,1,1,1,1]", "return %1", "assign 0 = %1",
    "symbol n 1..9\n", "n", "2*n", "-n", "+1", "1..4", "f32[n]",
    "loop serial 0 to 9 {", "loop vector 0 to 8 {", "b0", "b1", "%1 = load b0[%2] : f32", "next %1, %2", "*f32", "i64",
    "const nan", "input 0", "state 0", "slot 0", "grad", "bits(0xff)", "inf", "1e400", "# f:1", "\\x41", "\x00", "\xff",
};

static void damage(char *s, size_t *len, size_t cap)
{
    size_t at = random_below((uint32_t)*len + 1), n, from;
    switch (random_below(5)) {
    case 0: /* another byte */
        if (at < *len)
            s[at] = (char)random_below(256);
        break;
    case 1: /* a bit */
        if (at < *len)
            s[at] = (char)(s[at] ^ 1 << random_below(8));
        break;
    case 2: /* some bytes fewer */
        n = random_below(12);
        n = n < *len - at ? n : *len - at;
        memmove(s + at, s + at + n, *len - at - n);
        *len -= n;
        break;
    case 3: { /* a piece of the language more */
        const char *p = pieces[random_below(sizeof pieces / sizeof *pieces)];
        n = *p ? strlen(p) : 1;
        if (*len + n > cap)
            break;
        memmove(s + at + n, s + at, *len - at);
        memcpy(s + at, p, n);
        *len += n;
        break;
    }
    default: /* a part of the text once more */
        from = random_below((uint32_t)*len + 1);
        n = random_below(60);
        n = n < *len - from ? n : *len - from;
        if (*len + n > cap)
            break;
        char part[60];
        memcpy(part, s + from, n);
        memmove(s + at + n, s + at, *len - at);
        memcpy(s + at, part, n);
        *len += n;
    }
}

static unsigned survivors; /* damaged texts that still were graphs */

static void fuzz_file(const char *path, unsigned mutations)
{
    static char original[1 << 16], text[1 << 16];
    FILE *f = fopen(path, "rb");
    size_t len = f ? fread(original, 1, sizeof original / 2, f) : 0;
    if (f)
        fclose(f);
    if (!len)
        report(false, path, "cannot be read");
    char *mark = strstr(original, "\n# expect:\n");
    if (!mark)
        mark = strstr(original, "\n# graph:\n");
    if (mark && mark < original + len)
        len = (size_t)(mark - original) + 1;
    const char *why = NULL;
    for (unsigned i = 0; len && !why && i < mutations; i++) {
        size_t n = len;
        bool accepted;
        memcpy(text, original, len);
        for (unsigned k = 1 + random_below(3); k > 0; k--)
            damage(text, &n, sizeof text);
        why = check_text(text, n, &accepted);
        survivors += accepted;
        if (why)
            printf("%.*s\n----\n", (int)n, text);
    }
    report(!why, path, why);
    memset(original, 0, sizeof original);
}

static int is_test(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return (n > 4 && !strcmp(d->d_name + n - 4, ".kir")) || (n > 5 && !strcmp(d->d_name + n - 5, ".loop"));
}

static void fuzz_folder(const char *folder, unsigned mutations)
{
    struct dirent **entry;
    int n = scandir(folder, &entry, is_test, alphasort);
    report(n > 0, folder, "no tests");
    for (int i = 0; i < n; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
        fuzz_file(path, mutations);
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
}

int main(int argc, char **argv)
{
    unsigned mutations = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 200;
    test_long_tokens();
    test_symbols();
    test_space();
    test_many();
    test_kernels();
    test_zero_bytes();
    test_prefixes();
    struct rusage use;
    report(!getrusage(RUSAGE_SELF, &use) && use.ru_maxrss < 1 << 20, "memory", "more than 1 GiB for 4 MiB of text");
    if (argc < 3)
        fuzz_folder("tests/text", mutations);
    for (int i = 2; i < argc; i++)
        fuzz_folder(argv[i], mutations);
    report(!mutations || survivors > 0, "damaged texts", "none was still a graph: the damage is too great");
    printf("%u passed, %u failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
