/* What the tests of the dispatch system's rows share: kernels, sets, texts, and running the rows by their ids. */
#ifndef API_SEEDS_H
#define API_SEEDS_H
#include "tests/support/api_check.h"
#include <kiln/dispatch.h>
#include <pthread.h>
#include <time.h>

#define NO_KEYS ((kl_keyset){0})
static kl_device cpu; /* the default device: cpu, or ref where that is not built */

static inline double now(void) /* seconds */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline bool says(const char *text)
{
    bool ok = strstr(kl_last_error(), text) != NULL;
    if (!ok)
        printf("\"%s\" does not say \"%s\"\n", kl_last_error(), text);
    return ok;
}

static inline bool has_line(const char *dump, const char *line)
{
    size_t n = strlen(line);
    for (const char *s = dump; s && (s = strstr(s, line)); s++)
        if ((s == dump || s[-1] == '\n') && s[n] == '\n')
            return true;
    printf("no line \"%s\" in\n%s\n", line, dump ? dump : "(null)");
    return false;
}

/* The keys of a log, outermost first: "TracerOuter,Autograd*,CPU". */
static inline bool keys_are(const char *log, const char *want)
{
    char got[400] = "";
    for (const char *s = log; (s = strstr(s, "key=[")); s += 5) {
        size_t n = strcspn(s + 5, "]"), at = strlen(got);
        snprintf(got + at, sizeof got - at, "%s%.*s", at ? "," : "", (int)n, s + 5);
    }
    if (strcmp(got, want))
        printf("log says %s, not %s\n", got, want);
    return !strcmp(got, want);
}

static inline kl_keyset set_of(unsigned n, const kl_key *key)
{
    kl_keyset s = {0};
    for (unsigned i = 0; i < n; i++)
        s = kl_keyset_add(s, key[i]);
    return s;
}
#define SET(...) set_of(sizeof((kl_key[]){__VA_ARGS__}) / sizeof(kl_key), (kl_key[]){__VA_ARGS__})

static inline kl_tensor number(double x) { return kl_scalar(cpu, KL_F32, x); }
static inline kl_tensor vector(float a, float b) { return kl_input(cpu, KL_F32, 1, (int64_t[]){2}, (float[]){a, b}); }

/* 0 to 1, the same numbers in each run. */
static inline float next_number(void)
{
    static float next = 0.37f;
    return next = fmodf(next * 7.31f + 0.123f, 1.f);
}
/* Of such numbers, -1 to 1; at most 4096. */
static inline kl_tensor made(int rank, const int64_t *dims)
{
    float v[4096];
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    for (int64_t i = 0; i < n; i++)
        v[i] = next_number() * 2 - 1;
    return kl_input(cpu, KL_F32, rank, dims, v);
}

/* ---- kernels ---- */

/* Counts, and passes the call on to what is below. */
static inline kl_status pass_on(void *ctx, kl_call *call, kl_keyset keys)
{
    if (ctx)
        __atomic_fetch_add((int *)ctx, 1, __ATOMIC_RELAXED);
    (void)keys;
    return kl_redispatch_below(call);
}

/* A constant that tells which kernel it was. */
static inline kl_status give(void *ctx, kl_call *call, kl_keyset keys)
{
    (void)keys;
    kl_call_set_result(call, 0, kl_const(cpu, KL_F32, __atomic_load_n((int *)ctx, __ATOMIC_RELAXED)));
    return KL_OK;
}
static inline kl_kernel giving(int x, const char *name)
{
    static int value[64];
    __atomic_store_n(&value[x], x, __ATOMIC_RELAXED);
    return (kl_kernel){.name = name, .call = give, .ctx = &value[x]};
}

static inline kl_registration reg(const char *op, kl_key key, kl_kernel k)
{
    kl_registration r;
    OK(kl_dispatch_register(op, key, &k, &r));
    return r;
}
static inline kl_registration define(const char *schema)
{
    kl_registration r;
    OK(kl_dispatch_define(schema, &r));
    return r;
}
static inline void drop(kl_registration r) { OK(kl_dispatch_deregister(r)); }

static inline double call1(const char *op, kl_keyset keys)
{
    kl_tensor x = number(7), y = kl_none;
    kl_status s = kl_dispatch_with(op, keys, 1, &x, 1, &y);
    double v = s == KL_OK ? (double)kl_item_f32(y) : -1;
    kl_release(x);
    kl_release(y);
    return v;
}

/* ---- texts ---- */

static inline bool table_has(const char *op, const char *line) { return has_line(kl_dispatch_dump_table(op), line); }

static inline bool text_is(const char *got, const char *want)
{
    if (!got || strcmp(got, want)) {
        printf("--- is\n%s--- not\n%s", got ? got : "(null)\n", want);
        return false;
    }
    return true;
}

/* ---- running ---- */

struct row { const char *id; void (*test)(void); };

/* One line a row, "B12 ok 9 checks", and one result a row: of those that are named, of "all", or of the dispatch
 * system's rows, which a letter and a number name.  main's result. */
static inline int run_rows(const struct row *row, size_t n, int argc, char **argv)
{
    unsigned good = 0, bad = 0;
    cpu = kl_device_default();
    device_now = kl_device_name(cpu);
    for (size_t i = 0; i < n; i++) {
        bool wanted = argc < 2 && strchr("ABCD", row[i].id[0]);
        for (int k = 1; k < argc; k++)
            wanted |= !strcmp(argv[k], row[i].id) || !strcmp(argv[k], "all");
        int before = passed, wrong = failed;
        if (!wanted)
            continue;
        kl_clear_error();
        row[i].test();
        bool ok = failed == wrong && passed > before;
        printf("%s %s %d checks\n", row[i].id, ok ? "ok" : "FAILED", passed + failed - before - wrong);
        good += ok;
        bad += !ok;
    }
    printf("%u passed, %u failed, 0 skipped\n", good, bad);
    return bad != 0;
}
#define RUN_ROWS(rows) run_rows(rows, sizeof rows / sizeof *rows, argc, argv)
#endif
