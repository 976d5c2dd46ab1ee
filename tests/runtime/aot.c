/* Programs compiled ahead of time: objects and headers of many graphs in one C program, which is built by the system's
 * compiler, knows nothing of Kiln but its runtime, and must give the same bits as Kiln itself.  The same of graphs as
 * C: by two compilers, and for two other processors, run by an emulator; and of objects for another processor.
 *
 * Arguments: the build folder, which has libkiln-aot.a; `c` for a few graphs as C, `aarch64` for objects of that
 * processor; then `all` for most graphs, which as C takes a quarter of an hour. */
#include "tests/support/harness.h"
#include "ir/text/text.h"
#include "runtime/aot/image.h"
#include "runtime/aot/object.h"
#include "tests/support/sanitize.h"
#include <dirent.h>
#include <stdarg.h>
#include <sys/stat.h>

enum { MAX_PROGRAMS = 256, THREADS = 3, VALUES = 6, MAX_TESTS = MAX_PROGRAMS * VALUES };

static struct program_test {
    struct graph *g, *all; /* all: that of the program, if it is for all values of symbols; g: for those of this test */
    int64_t symbol[MAX_SYMBOLS];
    char name[64], cpu[16];
    unsigned which;                 /* of the tests of its program */
    bool fused;
    uint64_t barriers; /* of a run by Kiln itself, fused */
    struct values input, state, want;
    uint64_t slot[MAX_VALUES];
} test[MAX_TESTS];
static unsigned ntest, nprogram;
static char folder[512], build[512];
static bool as_c, cross; /* cross: objects for AArch64 */

static char *in_folder(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static char *in_folder(const char *fmt, ...)
{
    static char path[4][1024];
    static unsigned turn;
    char *p = path[turn++ % 4];
    int n = snprintf(p, sizeof *path, "%s/", folder);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p + n, sizeof *path - (size_t)n, fmt, ap);
    va_end(ap);
    return p;
}

static bool sh(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static bool sh(const char *fmt, ...)
{
    char line[8192];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fflush(stdout);
    int status = system(line);
    return check(status == 0, "status %d of: %s", status, line);
}

static struct graph *load(const char *path)
{
    struct err e = {0};
    FILE *f = fopen(path, "rb");
    static char text[1 << 20];
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    struct graph *g = graph_parse(text, n, path, &e);
    check(g, "%s: %s", path, e.msg);
    return g;
}

static bool can_v4(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

/* Such a product is summed in pairs on a processor that has an instruction for them.  An object for another processor
 * sums one product at a time and so has other bits. */
static bool has_bf16_product(const struct graph *g)
{
    bool has = false;
    for (ref r = 1; r < g->nnode; r++)
        has |= op_is_product(g->node[r].op) && g->node[g->node[r].in[0]].dtype == KL_BF16;
    return has;
}

/* Makes the object and the header of a test's program. */
static bool make(struct program_test *t, const char *path)
{
    struct object_made made;
    struct err e = {0};
    if (!check(object_make(t->all ? t->all : t->g,
                           &(struct object_options){.prefix = t->name, .cpu = t->cpu, .source = as_c, .fuse = t->fused},
                           &made, &e), "%s: %s", path, e.msg))
        return false;
    const char *path_made = in_folder("%s.%c", t->name, as_c ? 'c' : 'o');
    bool ok = check(object_write(&made, path_made, in_folder("%s.h", t->name), NULL, &e), "%s", e.msg);
    object_made_free(&made);
    return ok;
}

/* The graph of t->all with the symbols' values of test number `which`: the bounds, and some between them. */
static bool bind(struct program_test *t, unsigned which)
{
    struct err e = {0};
    t->g = graph_clone(t->all);
    bool ok = check(t->g, "out of memory");
    for (uint32_t i = 0; ok && i < t->all->symbols->n; i++) {
        const struct symbol *s = &t->all->symbols->v[i];
        int64_t range = s->high - s->low;
        t->symbol[i] = which < 2 ? s->low + which * range : s->low + range * (which - 1 + i) % (VALUES + 1) / VALUES;
        ok = check(graph_symbol_set(t->g, i, t->symbol[i], &e), "%s", e.msg);
    }
    return ok && check(graph_bind(t->g) == 1, "%s: symbols have no values", t->name);
}

/* Data for a test, and what Kiln makes of them.  For symbols' values the interpreter does it: it compiles nothing. */
static bool add_data(struct program_test *t, const char *path)
{
    struct rng r = {ntest + 1};
    struct err e = {0};
    values_random(&r, t->g, &t->g->input, false, &t->input);
    values_random(&r, t->g, &t->g->state, false, &t->state);
    for (uint32_t i = 0; i < t->g->slot.n; i++) /* of one name: one number */
        t->slot[i] = dtype_bits(t->g->slot.v[i].dtype, 0.25 + object_slot(t->g, i));
    uint64_t before = counters.barriers;
    const char *device = t->all && !has_bf16_product(t->g) ? "ref" : "cpu";
    bool ok = check(run_on(t->g, device, true, &t->input, &t->state, t->slot, &t->want, &e), "%s: %s", path, e.msg);
    t->barriers = counters.barriers - before;
    return ok;
}

/* Any values for the symbols of a graph that has no program for all of them. */
static bool bind_any(struct graph *g)
{
    struct err e = {0};
    for (uint32_t i = 0; g->symbols && i < g->symbols->n; i++) {
        const struct symbol *s = &g->symbols->v[i];
        graph_symbol_set(g, i, s->high - s->low < 3 ? s->high : s->low + 3, &e);
    }
    return check(graph_bind(g) >= 0 && !e.code, "%s%s", g->err.msg, e.msg);
}

/* The program of a graph, and its tests: one, or for several values of symbols. */
static void add(const char *path)
{
    static const char *const cpu[] = {"baseline", "native", "x86-64-v4"};
    static const char *const other[] = {"aarch64", "armv8.4-a", "armv8.6-a"};
    struct graph *g = load(path);
    const char *base = strrchr(path, '/') + 1;
    bool symbols = g && !strncmp(base, "agree_symbolic_", 15), ok = g && (symbols || bind_any(g));
    for (unsigned k = 0; ok && k < (symbols ? VALUES : 1); k++) {
        struct program_test *t = &test[ntest];
        memset(t, 0, sizeof *t);
        t->all = symbols ? graph_clone(g) : NULL;
        t->g = symbols ? NULL : graph_clone(g);
        snprintf(t->name, sizeof t->name, "%.*s", (int)strcspn(base, "."), base);
        t->which = k;
        snprintf(t->cpu, sizeof t->cpu, "%s", cross ? other[nprogram % 3] : as_c ? "baseline"
                 : has_bf16_product(g) ? "native" : cpu[nprogram % (can_v4() ? 3 : 2)]);
        t->fused = nprogram % 4 > 0;
        ok = (!symbols || bind(t, k)) && add_data(t, path) && (k || make(t, path));
        ntest += ok;
    }
    nprogram += ok;
    graph_free(g);
}

/* ---- the program ---- */

/* The number of elements of an array, as a macro of the header. */
static const char *count_of(const struct program_test *t, const struct shape *s, const char *member)
{
    static char text[512];
    int n = snprintf(text, sizeof text, "%s_count_%s", t->name, member);
    if (t->all && shape_is_symbolic(s))
        for (uint32_t i = 0; i <= t->all->symbols->n; i++)
            n += i == t->all->symbols->n ? snprintf(text + n, sizeof text - (size_t)n, ")")
                 : snprintf(text + n, sizeof text - (size_t)n, "%s%lld", i ? ", " : "(", (long long)t->symbol[i]);
    return text;
}

static void put_array(FILE *f, const struct program_test *t, enum object_member kind, uint32_t i, uint32_t number,
                      bool in)
{
    char m[OBJECT_MEMBER];
    const struct graph *g = t->all ? t->all : t->g;
    const struct shape *s = kind == MEMBER_OUT ? node_shape(g, g->out[i].value)
                            : &g->shape[(kind == MEMBER_IN ? &g->input.v[i] : &g->state.v[i])->shape];
    object_member(g, kind, number, m);
    const char *count = count_of(t, s, m);
    if (in && kind == MEMBER_OUT)
        fprintf(f, "    a.%s = room((size_t)%s * sizeof *a.%s, NULL);\n", m, count, m);
    else if (in)
        fprintf(f, "    a.%s = room((size_t)%s * sizeof *a.%s, &in);\n", m, count, m);
    else
        fprintf(f, "    memcpy(out, a.%s, (size_t)%s * sizeof *a.%s), out += (size_t)%s * sizeof *a.%s;\n", m, count,
                m, count, m);
}

/* The lengths of a run, after one that is refused because each is outside of its bounds. */
static void put_lengths(FILE *f, const struct program_test *t)
{
    char m[OBJECT_MEMBER];
    for (uint32_t i = 0; t->all && i < t->all->symbols->n; i++) {
        const struct symbol *s = &t->all->symbols->v[i];
        object_member(t->all, MEMBER_LENGTH, i, m);
        for (int high = 0; high < 2; high++)
            fprintf(f, "    a.%s = %lld;\n    if (%s_run(&a) != %d)\n        exit(8);\n", m,
                    (long long)(high ? s->high + 1 : s->low - 1), t->name, as_c ? 3 : KL_ERR_SHAPE);
        fprintf(f, "    a.%s = %lld;\n", m, (long long)t->symbol[i]);
    }
}

/* A function that runs one program: from its data to its outputs, then its states. */
static void put_function(FILE *f, const struct program_test *t)
{
    const struct graph *g = t->g;
    char m[OBJECT_MEMBER];
    fprintf(f,
            "static char *%s_%u(const char **data, char *out, int thread)\n{\n    const char *in = *data;\n"
            "    %s_args a = {0};\n",
            t->name, t->which, t->name);
    put_lengths(f, t);
    for (int in = 1; in >= 0; in--) {
        uint32_t returned = 0;
        for (uint32_t i = 0; in && i < g->input.n; i++)
            put_array(f, t, MEMBER_IN, i, i, in);
        for (uint32_t i = 0; in && i < g->state.n; i++)
            put_array(f, t, MEMBER_STATE, i, i, in);
        for (uint32_t i = 0; in && i < g->slot.n; i++)
            if (object_slot(g, i) == i) {
                object_member(g, MEMBER_SLOT, i, m);
                fprintf(f, "    memcpy(&a.%s, in, sizeof a.%s), in += 8;\n", m, m);
            } else {
                fprintf(f, "    in += 8;\n");
            }
        for (uint32_t i = 0; i < g->nout; i++)
            if (g->out[i].kind == OUT_RETURN)
                put_array(f, t, MEMBER_OUT, i, returned++, in);
        for (uint32_t i = 0; !in && i < g->state.n; i++)
            put_array(f, t, MEMBER_STATE, i, i, in);
        if (in)
            fprintf(f, "    workspace(&a.workspace, &a.workspace_bytes, %s_workspace_bytes(), thread);\n"
                       "    barriers = 0;\n    check(%s_run(&a), \"%s\");\n", t->name, t->name, t->name);
    }
    fprintf(f, "    memcpy(out, &barriers, 8), out += 8;\n    *data = in;\n    return out;\n}\n\n");
}

static const char includes[] =
    "#include <pthread.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\n";

static const char runtime_of_c[] =
    "static _Thread_local uint64_t barriers;\n"
    "static void kiln_aot_threads(int n) { (void)n; }\n"
    "static const char *kiln_aot_error(int status) { return status ? \"failed\" : \"ok\"; }\n\n";

static const char runtime_of_objects[] =
    "static _Thread_local uint64_t barriers;\ntypedef void task(void);\n"
    "void __real_kiln_aot_pool_run_parts(task *, void *, const void *, uint32_t, unsigned);\n"
    "void __wrap_kiln_aot_pool_run_parts(task *, void *, const void *, uint32_t, unsigned);\n"
    "void __real_kiln_aot_pool_run_alone(task *, void *, const void *, uint32_t);\n"
    "void __wrap_kiln_aot_pool_run_alone(task *, void *, const void *, uint32_t);\n"
    "/* What the runtime calls instead: the linker's option --wrap. */\n"
    "void __wrap_kiln_aot_pool_run_parts(task *t, void *ctx, const void *part, uint32_t n, unsigned most)\n{\n"
    "    barriers++;\n    __real_kiln_aot_pool_run_parts(t, ctx, part, n, most);\n}\n\n"
    "void __wrap_kiln_aot_pool_run_alone(task *t, void *ctx, const void *part, uint32_t n)\n{\n"
    "    barriers++;\n    __real_kiln_aot_pool_run_alone(t, ctx, part, n);\n}\n\n";

#define WRAPPED "-Wl,--wrap=kiln_aot_pool_run_parts -Wl,--wrap=kiln_aot_pool_run_alone"

static const char head[] =
    "static _Thread_local struct { void *p; } made[4096];\nstatic _Thread_local int nmade;\n"
    "/* n bytes that start off a line of memory, from *in if there is one */\n"
    "static void *room(size_t n, const char **in)\n{\n"
    "    char *p = malloc(n + 8);\n    if (!p || nmade == 4096)\n        exit(3);\n    made[nmade++].p = p;\n"
    "    if (in)\n        memcpy(p + 8, *in, n), *in += n;\n    return p + 8;\n}\n\n"
    "static void check(int status, const char *name)\n{\n"
    "    if (status)\n        fprintf(stderr, \"%s: %s\\n\", name, kiln_aot_error(status)), exit(2);\n}\n\n"
    "/* None, all that is asked for, or so much that one thread has room */\n"
    "static void workspace(void **p, size_t *bytes, size_t most, int thread)\n{\n"
    "    kiln_aot_threads(thread == 2 ? 1 : 3);\n    *bytes = thread ? most : 0;\n    *p = thread ? room(most, NULL) : "
    "NULL;\n"
    "    if (thread == 2)\n        kiln_aot_threads(3);\n}\n\n";

static const char tail[] =
    "static char *data, *result[3];\nstatic size_t size, given;\n\n"
    "static void *thread(void *arg)\n{\n"
    "    int i = (int)(intptr_t)arg;\n    char *out = result[i] = malloc(result_size);\n    const char *in = "
    "data;\n"
    "    if (!out)\n        exit(3);\n    for (size_t k = 0; k < sizeof list / sizeof *list; k++)\n        out = "
    "list[k](&in, out, i);\n"
    "    while (nmade)\n        free(made[--nmade].p);\n    if (!i)\n        given = (size_t)(out - result[0]);\n    "
    "return "
    "NULL;\n}\n\n"
    "int main(int argc, char **argv)\n{\n"
    "    FILE *f = fopen(argv[1], \"rb\");\n    pthread_t t[3];\n    size = (size_t)atol(argv[3]);\n    data = "
    "malloc(size + 1);\n"
    "    if (argc != 4 || !f || fread(data, 1, size, f) != size)\n        return 4;\n    fclose(f);\n"
    "    for (int i = 0; i < 3; i++)\n        pthread_create(&t[i], NULL, thread, (void *)(intptr_t)i);\n"
    "    for (int i = 0; i < 3; i++)\n        pthread_join(t[i], NULL);\n"
    "    f = fopen(argv[2], \"wb\");\n    for (int i = 0; i < 3; i++) {\n"
    "        if (fwrite(result[i], 1, given, f) != given)\n            return 5;\n        free(result[i]);\n    }\n"
    "    free(data);\n    return fclose(f) || refusals();\n}\n";

/* What runs refuse, of the first program, whose first pointer is an input's. */
static void put_refusals(FILE *f)
{
    const struct program_test *t = &test[0];
    struct image m = {.magic = IMAGE_MAGIC, .version = IMAGE_VERSION, .features = UINT64_C(1) << 63};
    uint32_t word[sizeof m / 4];
    memcpy(word, &m, sizeof m);
    if (as_c) {
        fprintf(f, "static int refusals(void)\n{\n    static char room[1 << 16];\n    %s_args a = {0};\n"
                   "    void **pointer = (void **)&a;\n    if (%s_run(&a) != 1 || %s_run(NULL) != 1 || !*%s_error(1))\n"
                   "        return 6;\n    for (size_t i = 0; pointer + i < &a.workspace; i++)\n"
                   "        pointer[i] = room;\n    a.workspace = room, a.workspace_bytes = 8;\n"
                   "    return %s_run(&a) == 1 ? 0 : 7;\n}\n\n", t->name, t->name, t->name, t->name, t->name);
        return;
    }
    fprintf(f,
            "int kiln_aot_run(const void *image, void *kernels, const void *args);\n\nstatic int refusals(void)\n{\n"
            "    static char room[1 << 16];\n    %s_args a = {0};\n    void **pointer = (void **)&a;\n    static "
            "uint32_t other[] = {",
            t->name);
    for (size_t i = 0; i < sizeof m / 4; i++)
        fprintf(f, "%uu,", word[i]);
    fprintf(f, "};\n    if (%s_run(&a) != 1 || %s_run(NULL) != 1)\n        return 6;\n", t->name, t->name);
    fprintf(f, "    for (size_t i = 0; pointer + i < &a.workspace; i++)\n        pointer[i] = room;\n"
               "    a.workspace = room, a.workspace_bytes = 8;\n    if (%s_run(&a) != 1)\n        return 7;\n"
               "    if (kiln_aot_run(other, NULL, &a) != 5)\n        return 8;\n    other[1]++;\n"
               "    return kiln_aot_run(other, NULL, &a) == 9 ? 0 : 9;\n}\n\n", t->name);
}

static size_t leaf_bytes(const struct graph *g, const struct leaf *l)
{
    return (size_t)shape_count(&g->shape[l->shape]) * dtype_size(l->dtype);
}

/* Of what one thread writes: the returned values, the states and the barriers of each program. */
static size_t result_size(void)
{
    size_t n = 0;
    for (unsigned i = 0; i < ntest; i++) {
        const struct graph *g = test[i].g;
        for (uint32_t k = 0; k < g->nout; k++)
            n += g->out[k].kind == OUT_RETURN ? node_bytes(g, g->out[k].value) : 0;
        for (uint32_t k = 0; k < g->state.n; k++)
            n += leaf_bytes(g, &g->state.v[k]);
        n += 8;
    }
    return n;
}

static bool write_program(void)
{
    FILE *f = fopen(in_folder("program.c"), "w");
    if (!check(f, "cannot write %s", in_folder("program.c")))
        return false;
    for (unsigned i = 0; i < ntest; i++)
        if (!test[i].which)
            fprintf(f, "#include \"%s.h\"\n", test[i].name);
    fputs(includes, f);
    fputs(as_c ? runtime_of_c : runtime_of_objects, f);
    fputs(head, f);
    for (unsigned i = 0; i < ntest; i++)
        put_function(f, &test[i]);
    fprintf(f, "static char *(*const list[])(const char **, char *, int) = {");
    for (unsigned i = 0; i < ntest; i++)
        fprintf(f, "%s_%u, ", test[i].name, test[i].which);
    fputs("};\n\n", f);
    put_refusals(f);
    fprintf(f, "static const size_t result_size = %zu;\n", result_size());
    fputs(tail, f);
    return check(!fclose(f), "cannot write the program");
}

/* ---- its data, and what it makes of them ---- */

static size_t write_data(void)
{
    FILE *f = fopen(in_folder("data"), "wb");
    size_t n = 0;
    for (unsigned i = 0; f && i < ntest; i++) {
        const struct program_test *t = &test[i];
        for (uint32_t k = 0; k < t->g->input.n; k++)
            n += fwrite(t->input.v[k], 1, leaf_bytes(t->g, &t->g->input.v[k]), f);
        for (uint32_t k = 0; k < t->g->state.n; k++)
            n += fwrite(t->state.v[k], 1, leaf_bytes(t->g, &t->g->state.v[k]), f);
        n += 8 * fwrite(t->slot, 8, t->g->slot.n, f);
    }
    check(f && !fclose(f), "cannot write the data");
    return n;
}

static void compare_array(FILE *f, const struct program_test *t, int thread, const char *what, uint32_t i,
                          unsigned dtype, const struct shape *s, const void *want)
{
    int64_t n = shape_count(s), at = 0;
    size_t bytes = (size_t)n * dtype_size(dtype);
    void *got = malloc(bytes + 1);
    check(fread(got, 1, bytes, f) == bytes && same_values(dtype, got, want, n, &at),
          "%s for %s, thread %d: %s %u differs at %lld", t->name, t->cpu, thread, what, i, (long long)at);
    free(got);
}

static void compare(void)
{
    FILE *f = fopen(in_folder("result"), "rb");
    if (!check(f, "no result"))
        return;
    for (int thread = 0; thread < THREADS; thread++)
        for (unsigned i = 0; i < ntest; i++) {
            const struct program_test *t = &test[i];
            const struct graph *g = t->g;
            for (uint32_t k = 0; k < g->nout; k++)
                if (g->out[k].kind == OUT_RETURN)
                    compare_array(f, t, thread, "output", k, node_at(g, g->out[k].value)->dtype,
                                  node_shape(g, g->out[k].value), t->want.v[k]);
            for (uint32_t k = 0; k < g->state.n; k++) {
                const void *want = t->state.v[k];
                for (uint32_t o = 0; o < g->nout; o++)
                    want = g->out[o].kind == OUT_ASSIGN && g->out[o].state == k ? t->want.v[o] : want;
                compare_array(f, t, thread, "state", k, g->state.v[k].dtype, &g->shape[g->state.v[k].shape], want);
            }
            uint64_t barriers = 0;
            /* one device, this one */
            bool known = !as_c && !t->all && t->fused && !strcmp(t->cpu, "native") &&
                         strncmp(t->name, "agree_copy", 10);
            check(fread(&barriers, sizeof barriers, 1, f) == 1, "the result ends");
            check(!known || barriers == t->barriers, "%s: %llu barriers, not %llu", t->name,
                  (unsigned long long)barriers,
                  (unsigned long long)t->barriers);
        }
    check(fgetc(f) == EOF, "there is more in the result");
    fclose(f);
}

static void test_programs(void)
{
    if (!write_program())
        return;
    size_t size = write_data();
    char objects[4096] = "";
    for (unsigned i = 0; i < ntest; i++)
        if (!test[i].which)
            snprintf(objects + strlen(objects), sizeof objects - strlen(objects), " %s.o", test[i].name);
    if (!sh("cd %s && cc -std=c17 -Wall -Wextra -Wpedantic -Werror -O1 %s -c program.c", folder, SANITIZE) ||
        !sh("cd %s && cc %s " WRAPPED " program.o %s %s/libkiln-aot.a -pthread -o program",
            folder, SANITIZE, objects, build) ||
        !sh("cd %s && for h in *.h; do echo \"#include \\\"$h\\\"\"; done | c++ -std=c++17 -Wall -Wextra -Wpedantic "
            "-Werror "
            "-x c++ -fsyntax-only -I. -",
            folder))
        return;
    /* Nothing of LLVM or of Kiln but its runtime. */
    sh("cd %s && ! ldd program | grep -iE 'llvm|kiln'", folder);
    sh("cd %s && ! nm program | grep -iE 'llvm|kl_|graph_|pass_'", folder);
    sh("! nm -g --defined-only %s/libkiln-aot.a | grep ' T ' | grep -v ' kiln_aot_'", build);
    if (sh("cd %s && ./program data result %zu", folder, size))
        compare();
}

static long long file_bytes(const char *path)
{
    struct stat s;
    return check(!stat(path, &s), "no file %s", path) ? (long long)s.st_size : 0;
}

/* Compiles all C by one compiler, links it alone, runs it and compares. */
static void test_compiler(const char *target, const char *compiler, const char *options, const char *emulator,
                          size_t size)
{
    char probe[256];
    snprintf(probe, sizeof probe, "command -v %s >/dev/null%s%s", compiler, *emulator ? " && command -v " : "",
             emulator);
    if (*emulator)
        strcat(probe, " >/dev/null");
    if (system(probe)) {
        skipped++;
        printf("SKIP no-compiler %s: there is no %s%s%s\n", target, compiler, *emulator ? " or no " : "", emulator);
        return;
    }
    unsigned before = failed;
    for (unsigned i = 0; i < ntest; i++)
        if (!test[i].which)
            sh("cd %s && %s -std=c99 -Wall -Wextra -Wpedantic -Werror %s -c %s.c -o %s.o", folder, compiler, options,
               test[i].name, test[i].name);
    sh("cd %s && ! nm *.o | grep ' U ' | grep -vE ' (malloc|free|mem[a-z]*|__aeabi_[a-z0-9]*|_GLOBAL_OFFSET_TABLE_)$'",
       folder);
    if (failed == before && sh("cd %s && %s -std=gnu11 -Wall -Wextra -Wpedantic -Werror %s program.c *.o -pthread "
                               "-static -o program", folder, compiler, options) &&
        sh("cd %s && %s ./program data result %zu", folder, emulator, size))
        compare();
}

static void test_c(bool all)
{
    sh("cd %s && rm -f *.o", folder);
    if (!write_program())
        return;
    size_t size = write_data();
    test_compiler("gcc", "gcc", "-O1", "", size);
    if (all)
        test_compiler("gcc", "gcc", "-O2 -march=native", "", size);
    test_compiler("clang", "clang", "-O1", "", size);
    test_compiler("aarch64", "aarch64-linux-gnu-gcc", "-O1", "qemu-aarch64", size);
    test_compiler("arm", "arm-linux-gnueabihf-gcc", "-O1", "qemu-arm", size);
}

static void test_cross(void)
{
    static const char cc[] = "aarch64-linux-gnu-gcc";
    if (system("command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null")) {
        skipped++;
        printf("SKIP no-compiler aarch64: there is no %s or no qemu-aarch64\n", cc);
        return;
    }
    if (!write_program())
        return;
    size_t size = write_data();
    if (sh("cmake -S . -B %s/runtime -DCMAKE_C_COMPILER=%s -DKILN_RUNTIME_ONLY=ON >/dev/null && "
           "cmake --build %s/runtime >/dev/null", folder, cc, folder) &&
        sh("cd %s && ! aarch64-linux-gnu-nm [a-z]*.o | grep ' U ' | "
           "grep -vE ' (kiln_aot_run|kiln_aot_workspace_bytes|mem[a-z]*)$'", folder) &&
        sh("cd %s && %s -std=c17 -Wall -Werror -O1 program.c *.o " WRAPPED
           " runtime/libkiln-aot.a -pthread -static -o program", folder, cc) &&
        sh("cd %s && qemu-aarch64 ./program data result %zu", folder, size))
        compare();
}

/* A runtime that has grown by a compiler would show. */
static void test_sizes(void)
{
    long long runtime = file_bytes(in_folder("../libkiln-aot.a")), program = file_bytes(in_folder("program"));
    printf("%u programs in %lld bytes, mlp_step.o %lld; the runtime library %lld\n", nprogram, program,
           file_bytes(in_folder("mlp_step.o")), runtime);
    check(*SANITIZE || runtime < 100000, "the runtime has %lld bytes", runtime);
}

/* ---- what is refused ---- */

static void refused(const char *text, const struct object_options *o, kl_status code, const char *want)
{
    struct err e = {0};
    struct object_made made;
    struct graph *g = graph_parse(text, strlen(text), "t.kir", &e);
    if (check(g, "%s", e.msg) && !check(!object_make(g, o, &made, &e), "compiled: %s", text))
        object_made_free(&made);
    check(e.code == code && strstr(e.msg, want), "error %d, '%s', is not '%s'", e.code, e.msg, want);
    graph_free(g);
}

#define PLAIN "graph @g {\n  %x = input 0 \"x\" : f32[2]\n  %y = neg %x : f32[2]\n  return %y\n}\n"

static void test_errors(void)
{
    test_ops();
    refused("graph @g {\n  %x = input 0 \"x\" : f32[2]\n  %c = custom \"test.turn\" %x : f32[2]   # net.c:12 f\n"
            "  %y = proj %c index(0) : f32[2]\n  return %y\n}\n",
            &(struct object_options){.fuse = true}, KL_ERR_COMPILE, "net.c:12: custom \"test.turn\"");
    refused(PLAIN, &(struct object_options){.cpu = "z80"}, KL_ERR_ARGUMENT,
            "no processor is called 'z80': there are native, baseline");
    refused(PLAIN, &(struct object_options){.prefix = "a-b"}, KL_ERR_ARGUMENT, "'a-b' is no C identifier");
    refused(PLAIN, &(struct object_options){.prefix = "2"}, KL_ERR_ARGUMENT, "'2' is no C identifier");
    refused("graph @g {\n  symbol n 1..9\n  %x = input 0 \"x\" : f32[n]\n  %y = cumsum %x axis(0) : f32[n]\n"
            "  return %y\n}\n", &(struct object_options){0}, KL_ERR_COMPILE,
            "no one program for all values of its symbols: op cumsum");
    struct err e = {0};
    struct object_made made = {.header = (char *)"h", .code = {(void *)"o", 1}};
    check(!object_write(&made, in_folder("e.o"), "/nowhere/e.h", NULL, &e) && e.code == KL_ERR_IO &&
              strstr(e.msg, "/nowhere/e.h"),
          "error %d '%s'", e.code, e.msg);
    FILE *f = fopen(in_folder("e.o"), "rb");
    check(!f, "an object is left behind");
    if (f)
        fclose(f);
}

int main(int argc, char **argv)
{
    if (argc < 2 || !realpath(argv[1], build))
        return fprintf(stderr, "usage: aot BUILD_FOLDER [(c | aarch64) [all]]\n"), 2;
    setenv("KILN_ORDER", "graph", 1); /* large products of bf16 as in objects, which do not use AMX (<kiln/aot.h>) */
    as_c = argc > 2 && !strcmp(argv[2], "c");
    cross = argc > 2 && !strcmp(argv[2], "aarch64");
    snprintf(folder, sizeof folder, "%.400s/aot-test%s", build, as_c ? "-c" : cross ? "-aarch64" : "");
    mkdir(folder, 0777);
    struct err e = {0};
    struct caps caps;
    const struct backend *b = backend_get(as_c ? "c" : "llvm", &e);
    if (!check(b && b->caps(&caps, &e), "%s", e.msg))
        return finish();
    add("tests/text/agree_scan.kir");
    add("examples/mlp_step.kir");
    static const char *const few[] = {"attention", "cond", "half_sign", "while", "symbolic_rows", "symbolic_sums",
                                      "symbolic_joins"};
    bool all = argc > 3 && !strcmp(argv[3], "all"), few_only = (as_c || cross) && !all;
    for (size_t i = 0; i < sizeof few / sizeof *few && few_only; i++) {
        char path[512];
        snprintf(path, sizeof path, "tests/text/agree_%s.kir", few[i]);
        add(path);
    }
    DIR *d = few_only ? NULL : opendir("tests/text");
    check(d || few_only, "no folder tests/text");
    for (struct dirent *x; d && (x = readdir(d)) && nprogram < MAX_PROGRAMS;) {
        char path[512];
        snprintf(path, sizeof path, "tests/text/%.200s", x->d_name);
        if (!strncmp(x->d_name, "agree_", 6) && strcmp(x->d_name, "agree_scan.kir") &&
            strcmp(x->d_name, "agree_custom.kir") && !(as_c && !strncmp(x->d_name, "agree_dot_", 10)))
            add(path);
    }
    if (d)
        closedir(d);
    check(nprogram > (few_only ? 5 : 25) && nprogram < MAX_PROGRAMS, "%u programs", nprogram);
    if (as_c) {
        test_c(all);
    } else if (cross) {
        test_cross();
    } else {
        test_programs();
        test_sizes();
        test_errors();
    }
    for (unsigned i = 0; i < ntest; i++) {
        values_free(&test[i].input);
        values_free(&test[i].state);
        values_free(&test[i].want);
        graph_free(test[i].g);
        graph_free(test[i].all);
    }
    return finish();
}
