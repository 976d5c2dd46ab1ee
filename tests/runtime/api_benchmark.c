/* kl_bench through the public header: what it calls and reports, its errors, the files it writes, and that it leaves
 * the process as it was.  No speed is checked. */
#include "tests/support/api_check.h"
#include <unistd.h>

struct model {
    kl_device device;
    kl_tensor x, w;
    int calls, fail_at, fused, rounds;
    bool leave_open, nothing;
};

static kl_status step(void *ctx)
{
    struct model *m = ctx;
    int64_t fuse;
    if (++m->calls == m->fail_at)
        return KL_ERR_IO;
    if (m->nothing)
        return KL_OK;
    OK(kl_get_option("fuse", &fuse));
    m->fused += fuse != 0;
    kl_trace_begin("step");
    kl_tensor y = kl_tanh(kl_mul(kl_add(m->x, m->w), m->x));
    kl_assign(m->w, kl_add(kl_mul_scalar(m->w, 0.5), kl_sum(y, AXES(0), true)));
    return m->leave_open ? KL_OK : kl_trace_end();
}

static void note_round(void *ctx, int done, int rounds)
{
    struct model *m = ctx;
    CHECK(done >= 1 && done <= rounds);
    m->rounds++;
}

static void check_time(const kl_bench_time *t) { CHECK(t->min > 0 && t->min <= t->median && t->median <= t->max); }

static void check_kernels(const kl_bench_report *r, bool compiled)
{
    int64_t calls[2] = {0}, flops[2] = {0};
    for (int64_t i = 0; i < r->nkernel; i++) {
        const kl_bench_kernel *k = &r->kernel[i];
        calls[k->fused] += k->calls;
        flops[k->fused] += k->calls * k->flops;
        check_time(&k->call);
        CHECK(k->name[0] && (i == 0 || k->fused >= r->kernel[i - 1].fused));
        CHECK(!compiled || (k->bytes > 0 && k->limit > 0 && k->fraction > 0));
    }
    CHECK(calls[1] > 0 && calls[0] >= calls[1] && flops[0] == flops[1]);
    CHECK(!compiled || (calls[0] > calls[1] && flops[1] > 0 && r->limit > 0 && r->peak > 0));
}

static long file_size(const char *path, char start[8])
{
    FILE *f = fopen(path, "r");
    if (!f)
        return -1;
    size_t n = fread(start, 1, 7, f);
    start[n] = 0;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    fclose(f);
    return size;
}

static void check_files(const kl_bench_report *r)
{
    char path[64], start[8];
    snprintf(path, sizeof path, "/tmp/kiln-benchmark-%d", (int)getpid());
    OK(kl_bench_json(r, path));
    CHECK(file_size(path, start) > 100 && !strncmp(start, "[\n {\"be", 7));
    OK(kl_bench_svg(r, path));
    CHECK(file_size(path, start) > 500 && !strncmp(start, "<svg xm", 7));
    unlink(path);
    CHECK(kl_bench_json(r, "/no/such/folder/x") == KL_ERR_IO && strstr(kl_last_error(), "/no/such/folder/x"));
    CHECK(kl_bench_svg(NULL, path) == KL_ERR_ARGUMENT && kl_bench_json(r, NULL) == KL_ERR_ARGUMENT);
}

static void test_report(struct model *m, bool compiled)
{
    static const int threads[] = {1, 2};
    for (int i = 0; i < 2; i++) {
        kl_set_option("threads", threads[i]);
        m->calls = m->fused = m->rounds = 0;
        kl_bench_report *r = kl_bench("model", step, m, &(kl_bench_options){.rounds = 4, .progress = note_round,
                                                                            .progress_ctx = m});
        if (!CHECK(r))
            continue;
        CHECK(!strcmp(r->name, "model") && r->threads == threads[i] && r->rounds == 4 && m->rounds == 4);
        CHECK(m->calls == 2 + 4 * 4 && m->fused == m->calls / 2);
        check_time(&r->step[0]);
        check_time(&r->step[1]);
        check_kernels(r, compiled);
        const char *table = kl_bench_table(r);
        CHECK(table == kl_bench_table(r) && strstr(table, "model: 4 rounds") && strstr(table, "fused kernels") &&
              strstr(table, r->kernel[0].name));
        check_files(r);
        kl_bench_free(r);
    }
    kl_set_option("threads", 0);
}

static void refused(struct model *m, kl_bench_fn *f, int rounds, double seconds, kl_status code, const char *why)
{
    m->calls = 0;
    CHECK(!kl_bench("bad", f, m, &(kl_bench_options){.rounds = rounds, .seconds = seconds}));
    CHECK(kl_last_error_code() == code && strstr(kl_last_error(), why) && !kl_tracing());
}

static void test_errors(struct model *m)
{
    refused(m, NULL, 3, 0, KL_ERR_ARGUMENT, "no step");
    refused(m, step, -1, 0, KL_ERR_ARGUMENT, "-1 rounds");
    refused(m, step, 1001, 0, KL_ERR_ARGUMENT, "1001 rounds");
    refused(m, step, 3, NAN, KL_ERR_ARGUMENT, "seconds");
    for (m->fail_at = 1; m->fail_at <= 7; m->fail_at++)
        refused(m, step, 3, 0, KL_ERR_IO, "step");
    m->fail_at = 0;
    m->nothing = true;
    refused(m, step, 3, 0, KL_ERR_ARGUMENT, "runs nothing");
    m->nothing = false;
    m->leave_open = true;
    refused(m, step, 3, 0, KL_ERR_TRACE, "open");
    m->leave_open = false;
    kl_trace_begin("open");
    CHECK(!kl_bench("bad", step, m, NULL) && kl_last_error_code() == KL_ERR_TRACE && kl_tracing());
    kl_trace_abandon();
    kl_bench_free(NULL);
}

static kl_status other_step(void *ctx)
{
    struct model *m = ctx;
    kl_trace_begin("other");
    kl_assign(m->w, kl_sub(m->w, kl_mul_scalar(kl_exp(kl_neg(m->w)), 0.01)));
    return kl_trace_end();
}

/* Behind kl_bench a dump shows the program that the trace runs with, not the unfused one that was built last. */
static void test_dump(struct model *m)
{
    enum { MANY = 1 << 16 };
    static char text[MANY];
    char path[] = "/tmp/kiln-dump-XXXXXX";
    kl_run_info info;
    int64_t kernels = 0;
    OK(other_step(m)); /* fused; kl_bench is the first to build it unfused */
    kl_bench_free(kl_bench("dump", other_step, m, &(kl_bench_options){.rounds = 1}));
    OK(other_step(m));
    OK(kl_trace_info(&info));
    int file = mkstemp(path);
    CHECK(file >= 0);
    OK(kl_dump("other", "scheduled", path));
    ssize_t n = read(file, text, MANY - 1);
    CHECK(n > 0 && n < MANY - 1);
    for (const char *p = text; (p = strstr(p, "\nkernel ")); p++)
        kernels++;
    if (kernels != info.kernels)
        printf("dumped %lld kernels, ran %lld\n", (long long)kernels, (long long)info.kernels);
    CHECK(kernels == info.kernels);
    close(file);
    unlink(path);
}

int main(void)
{
    struct model m = {.device = kl_device_default()};
    device_now = kl_device_name(m.device);
    kl_trace_begin("init");
    m.x = kl_keep(kl_rand(m.device, KL_F32, DIMS(100, 70), 1));
    m.w = kl_keep(kl_rand(m.device, KL_F32, DIMS(1, 70), 2));
    OK(kl_trace_end());
    for (int fuse = 0; fuse < 2; fuse++) { /* whatever the option, and it stays */
        int64_t now;
        kl_set_option("fuse", fuse);
        test_report(&m, strcmp(device_now, "ref") != 0);
        OK(kl_get_option("fuse", &now));
        CHECK(now == fuse);
    }
    if (strcmp(device_now, "ref"))
        test_dump(&m);
    test_errors(&m);
    m.calls = 0;
    kl_bench_report *r = kl_bench("", step, &m, &(kl_bench_options){.seconds = 1e-9});
    CHECK(r && !strcmp(r->name, "step") && r->rounds == 3);
    kl_bench_free(r);
    kl_release(m.x);
    kl_release(m.w);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
