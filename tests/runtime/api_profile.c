/* kl_profile through the public header: what rows count, which lines they name, the timeline as JSON, KILN_PROFILE,
 * several threads, errors.  No speed is checked. */
#include "tests/support/api_check.h"
#include <locale.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 64, STEPS = 7, THREADS = 3 };

/* ---- JSON (RFC 8259), read strictly; of each event the fields that matter ---- */

struct reader {
    const char *at;
    bool bad;
    int depth, events, kernels, threads, named;
    char text[256];
    double number;
};

static void value(struct reader *r);

static void space(struct reader *r) { r->at += strspn(r->at, " \t\r\n"); }

static bool take(struct reader *r, char c)
{
    space(r);
    return *r->at == c ? r->at++, true : false;
}

static void need(struct reader *r, char c) { r->bad |= !take(r, c); }

static void string(struct reader *r, char *to, size_t size)
{
    size_t n = 0;
    need(r, '"');
    while (!r->bad && *r->at != '"') {
        char c = *r->at++;
        if (c == '\\') {
            c = *r->at++;
            r->bad |= !strchr("\"\\/bfnrtu", c) || !c;
            for (int i = 0; c == 'u' && i < 4; i++)
                r->bad |= !strchr("0123456789abcdefABCDEF", *r->at) || !*r->at++;
        }
        r->bad |= (unsigned char)c < 0x20;
        if (n + 1 < size)
            to[n++] = c;
    }
    to[n] = 0;
    need(r, '"');
}

static void number(struct reader *r)
{
    size_t n = strspn(r->at, "-0123456789.eE+");
    char *end;
    r->bad |= n == 0 || (r->at[0] == '0' && r->at[1] >= '0' && r->at[1] <= '9');
    locale_t previous = uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0)); /* tests/locale.sh sets a decimal comma */
    r->number = strtod(r->at, &end);
    uselocale(previous);
    r->bad |= end != r->at + n;
    r->at = end;
}

static void object(struct reader *r)
{
    bool event = r->depth == 3; /* { "traceEvents": [ { */
    double start = -1, length = -1;
    char name[256] = "", cat[256] = "", phase[256] = "";
    need(r, '{');
    for (bool first = true; !r->bad && !take(r, '}'); first = false) {
        char key[64];
        if (!first)
            need(r, ',');
        string(r, key, sizeof key);
        need(r, ':');
        value(r);
        if (!event)
            continue;
        if (!strcmp(key, "ts")) start = r->number;
        if (!strcmp(key, "dur")) length = r->number;
        if (!strcmp(key, "name")) strcpy(name, r->text);
        if (!strcmp(key, "cat")) strcpy(cat, r->text);
        if (!strcmp(key, "ph")) strcpy(phase, r->text);
    }
    if (!event)
        return;
    r->events++;
    r->bad |= !name[0] || (strcmp(phase, "M") && strcmp(phase, "X"));
    r->bad |= !strcmp(phase, "X") && (start < 0 || length < 0 || !cat[0]);
    r->kernels += !strcmp(cat, "kernel") || !strcmp(cat, "interpreter");
    r->threads += !strcmp(name, "thread_name");
    r->named += strstr(name, "q\"uote\\") != NULL;
}

static void value(struct reader *r)
{
    space(r);
    r->depth++;
    if (*r->at == '{') {
        object(r);
    } else if (*r->at == '[') {
        need(r, '[');
        for (bool first = true; !r->bad && !take(r, ']'); first = false) {
            if (!first)
                need(r, ',');
            value(r);
        }
    } else if (*r->at == '"') {
        string(r, r->text, sizeof r->text);
    } else {
        number(r);
    }
    r->depth--;
}

static bool read_trace(const char *path, struct reader *r)
{
    FILE *f = fopen(path, "r");
    static char s[1 << 22];
    size_t n = f ? fread(s, 1, sizeof s - 1, f) : 0;
    if (f)
        fclose(f);
    s[n] = 0;
    *r = (struct reader){.at = s};
    value(r);
    space(r);
    r->bad |= *r->at != 0 || n == 0;
    return !r->bad;
}

/* ---- what is measured ---- */

static atomic_int line_a, line_b;

/* Another program for each factor. */
static float step(kl_device dev, kl_tensor w, double factor, const char *name)
{
    kl_trace_begin(name);
    line_a = __LINE__ + 1;
    kl_tensor y = kl_mul(kl_matmul(w, w), kl_const(dev, KL_F32, factor));
    line_b = __LINE__ + 1;
    kl_tensor z = kl_keep(kl_sum_all(kl_tanh(kl_mul(kl_transpose(y, 0, 1), kl_randn(dev, KL_F32, DIMS(N, N), 3)))));
    float v = kl_trace_end() == KL_OK ? kl_item_f32(z) : NAN;
    kl_release(z);
    return v;
}

static const kl_profile_row *find(const kl_profile_row *row, int64_t n, const char *end)
{
    for (int64_t i = 0; i < n; i++) {
        size_t a = strlen(row[i].name), b = strlen(end);
        if (a >= b && !strcmp(row[i].name + a - b, end))
            return &row[i];
    }
    return NULL;
}

static void check_rows(const kl_profile_row *row, int64_t n, double all)
{
    double seconds = 0, share = 0;
    for (int64_t i = 0; i < n; i++) {
        CHECK(row[i].calls > 0 && row[i].seconds >= 0 && row[i].name[0] && row[i].where);
        CHECK(i == 0 || row[i].seconds <= row[i - 1].seconds);
        CHECK((row[i].limit > 0) == (row[i].fraction > 0) || row[i].seconds == 0);
        seconds += row[i].seconds;
        share += row[i].share;
    }
    CHECK(n > 0 && fabs(seconds - all) <= 1e-9 + 1e-6 * all && fabs(share - 1) < 1e-6);
}

static void test_profile(kl_device dev)
{
    bool compiled = strcmp(kl_device_name(dev), "ref") != 0;
    char a[64], b[64], path[64];
    kl_run_info info;
    kl_tensor w = kl_randn(dev, KL_F32, DIMS(N, N), 1);
    step(dev, w, 2, "before"); /* not counted */
    OK(kl_trace_info(&info));
    OK(kl_profile_begin());
    CHECK(kl_profile_begin() == KL_ERR_ARGUMENT && strstr(kl_last_error(), "already"));
    for (int i = 0; i < STEPS; i++)
        step(dev, w, 3, "profiled");
    step(dev, w, 4, "q\"uote\\");
    kl_profile *p = kl_profile_end();
    step(dev, w, 3, "profiled"); /* nor is this */
    if (!CHECK(p != NULL))
        return;
    check_rows(p->kernel, p->nkernel, p->busy);
    check_rows(p->line, p->nline, p->busy);
    CHECK(p->busy > 0 && p->busy < p->seconds && p->recording > 0 && p->planning > 0 && p->threads > 0 && !p->dropped);
    int64_t calls = 0, flops = 0, line_flops = 0;
    for (int64_t i = 0; i < p->nkernel; i++) {
        const kl_profile_row *r = &p->kernel[i];
        bool known = !strcmp(r->where, "profiled") || !strcmp(r->where, "q\"uote\\");
        CHECK(known && (!compiled || (r->bytes > 0 && r->limit > 0)));
        calls += r->calls;
        flops += r->flops;
    }
    for (int64_t i = 0; i < p->nline; i++)
        line_flops += p->line[i].flops;
    CHECK(calls == (STEPS + 1) * (compiled ? info.kernels : 1));
    CHECK(!compiled || flops >= (STEPS + 1) * (int64_t)2 * N * N * N);
    CHECK(llabs(flops - line_flops) <= 64 * p->nline);
    snprintf(a, sizeof a, "api_profile.c:%d", line_a);
    snprintf(b, sizeof b, "api_profile.c:%d", line_b);
    const kl_profile_row *product = find(p->line, p->nline, a), *sum = find(p->line, p->nline, b);
    CHECK(product && sum && !strcmp(product->where, "step") && product->calls >= STEPS + 1 && sum->calls >= STEPS + 1);
    CHECK(!compiled || product->flops > sum->flops);
    const char *table = kl_profile_table(p);
    CHECK(strstr(table, a) && strstr(table, b) && strstr(table, "profiled") && table == kl_profile_table(p));
    snprintf(path, sizeof path, "/tmp/kiln-profile-%d", (int)getpid());
    OK(kl_profile_trace(p, path));
    struct reader r;
    CHECK(read_trace(path, &r) && r.kernels == calls && r.threads >= 1 && r.named >= 2);
    unlink(path);
    CHECK(kl_profile_trace(p, "/no/such/folder/x") == KL_ERR_IO && strstr(kl_last_error(), "/no/such/folder/x"));
    CHECK(kl_profile_trace(NULL, path) == KL_ERR_ARGUMENT && kl_profile_trace(p, NULL) == KL_ERR_ARGUMENT);
    kl_profile_free(p);
    kl_profile_free(NULL);
    CHECK(!kl_profile_end() && kl_last_error_code() == KL_ERR_ARGUMENT);
    kl_release(w);
}

/* ---- bytes and operations are those that a kernel touches ---- */

enum { ROWS = 4000, WIDTH = 64, PICKED = 8, KEYS = 96 };

static kl_tensor table, queries;

static kl_tensor gathered(kl_device dev)
{
    int32_t id[PICKED] = {3, 1, 4, 1, 5, 9, 2, 6};
    return kl_embedding(table, kl_input(dev, KL_I32, DIMS(PICKED), id));
}

static kl_tensor sliced_at(kl_device dev)
{
    int64_t first = 7;
    kl_tensor start[] = {kl_input(dev, KL_I64, 0, NULL, &first), kl_const(dev, KL_I64, 0)};
    return kl_exp(kl_dynamic_slice(table, start, (int64_t[]){PICKED, WIDTH}));
}

static kl_tensor narrowed(kl_device dev)
{
    (void)dev;
    return kl_add(kl_narrow(table, 0, 0, PICKED), kl_narrow(table, 0, 100, PICKED));
}

static kl_tensor causal(kl_device dev)
{
    (void)dev;
    return kl_attention(queries, queries, queries, kl_none, true);
}

static kl_tensor ranges(kl_device dev)
{
    int32_t seen[KEYS][2];
    for (int i = 0; i < KEYS; i++)
        seen[i][0] = i & ~7, seen[i][1] = i + 1;
    return kl_attention(queries, queries, queries, kl_input(dev, KL_I32, DIMS(KEYS, 2), seen), false);
}

static void test_touched(kl_device dev)
{
    static const struct { const char *name; kl_tensor (*make)(kl_device); int64_t bytes, flops; } cases[] = {
        {"gathered", gathered, 4 * (2 * PICKED * WIDTH + PICKED), -1},
        {"sliced", sliced_at, 4 * 2 * PICKED * WIDTH + 8, -1},
        {"narrowed", narrowed, 4 * 3 * PICKED * WIDTH, PICKED * WIDTH},
        {"causal", causal, 4 * 2 * KEYS * WIDTH, 2 * 2 * WIDTH * KEYS * (KEYS + 1) / 2},
        {"ranges", ranges, 0, 0}};
    if (!strcmp(kl_device_name(dev), "ref"))
        return;
    table = kl_randn(dev, KL_F32, DIMS(ROWS, WIDTH), 1);
    queries = kl_randn(dev, KL_F32, DIMS(KEYS, WIDTH), 2);
    OK(kl_sync(dev));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t bytes = 0, flops = 0, kernels = 0;
        OK(kl_profile_begin());
        kl_trace_begin(cases[i].name);
        kl_tensor y = kl_keep(cases[i].make(dev));
        OK(kl_trace_end());
        OK(kl_sync(dev));
        kl_profile *p = kl_profile_end();
        for (int64_t k = 0; p && k < p->nkernel; k++)
            if (!strcmp(p->kernel[k].where, cases[i].name)) {
                kernels++, bytes += p->kernel[k].bytes, flops += p->kernel[k].flops;
                CHECK((p->kernel[k].limit > 0) == (cases[i].bytes > 0));
            }
        if (!CHECK(kernels == 1 && bytes == cases[i].bytes && (cases[i].flops < 0 || flops == cases[i].flops)))
            printf("%s: %lld kernels, %lld bytes, %lld operations\n", cases[i].name, (long long)kernels,
                   (long long)bytes, (long long)flops);
        kl_profile_free(p);
        kl_release(y);
    }
    kl_release(table);
    kl_release(queries);
}

/* ---- threads come and go, one records and stops meanwhile ---- */

static kl_device device;

static void *work(void *unused)
{
    (void)unused;
    kl_tensor w = kl_randn(device, KL_F32, DIMS(N, N), 1);
    float first = step(device, w, 5, "thread");
    bool same = true;
    for (int i = 0; i < 20; i++)
        same &= step(device, w, 5, "thread") == first;
    kl_release(w);
    return same ? &device : NULL;
}

static void test_threads(kl_device dev)
{
    device = dev;
    for (int round = 0; round < 3; round++) {
        pthread_t t[THREADS];
        OK(kl_profile_begin());
        for (int i = 0; i < THREADS; i++)
            CHECK(!pthread_create(&t[i], NULL, work, NULL));
        if (round == 1) { /* while they run */
            kl_profile *p = kl_profile_end();
            CHECK(p && kl_profile_table(p)[0]);
            kl_profile_free(p);
            OK(kl_profile_begin());
        }
        for (int i = 0; i < THREADS; i++) {
            void *same;
            CHECK(!pthread_join(t[i], &same) && same);
        }
        kl_profile *p = kl_profile_end();
        int64_t calls = 0;
        for (int64_t i = 0; p && i < p->nkernel; i++)
            calls += !strcmp(p->kernel[i].where, "thread") || round ? p->kernel[i].calls : 0;
        CHECK(p && (round == 1 || calls >= THREADS * 21));
        kl_profile_free(p);
    }
}

/* ---- KILN_PROFILE ---- */

static void as_child(void)
{
    kl_device dev = kl_device_default();
    kl_tensor w = kl_randn(dev, KL_F32, DIMS(N, N), 1);
    step(dev, w, 6, "child");
    bool refused = kl_profile_begin() == KL_ERR_ARGUMENT && strstr(kl_last_error(), "KILN_PROFILE") &&
        !kl_profile_end();
    kl_release(w);
    int status = 0;
    pid_t pid = fork();
    if (!pid)
        exit(0); /* does not write the file */
    waitpid(pid, &status, 0);
    exit(failed || !refused || status);
}

static void test_environment(char *self)
{
    char path[64];
    int status = 1;
    struct reader r;
    snprintf(path, sizeof path, "/tmp/kiln-profile-%d", (int)getpid());
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        setenv("KILN_PROFILE", path, 1);
        execl(self, self, "child", (char *)NULL);
        _exit(127);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
    CHECK(read_trace(path, &r) && r.kernels > 0 && r.threads >= 1);
    unlink(path);
}

static void test_all(kl_device dev)
{
    test_profile(dev);
    test_touched(dev);
    test_threads(dev);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        as_child();
    test_environment(argv[0]);
    return on_devices(test_all);
}
