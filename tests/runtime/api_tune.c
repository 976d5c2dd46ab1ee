/* kl_tune through the public header: results stay the same bits, what it finds is there in a new process, its errors,
 * and option tune.  No speed is checked. */
#include "tests/support/api_check.h"
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 96, IN = 130, OUT = 200, BYTES = 1 << 16 };
static kl_device device;

static struct { int kernels, changed, tried, rounds; double seconds; } seen;

static void note_kernel(void *ctx, const kl_tuned_kernel *k)
{
    (void)ctx;
    CHECK(k->name[0] == 'k' && !strncmp(k->before, "schedule ", 9) && !strncmp(k->after, "schedule ", 9));
    CHECK(k->tried > 0 && k->seconds[0] > 0 && k->seconds[1] > 0);
    seen.kernels++;
    seen.changed += strcmp(k->before, k->after) != 0;
    seen.tried += k->tried;
}

static void note_round(void *ctx, int done, int rounds)
{
    (void)ctx;
    CHECK(done >= 1 && done <= rounds);
    seen.rounds++;
}

/* A loop that is one kernel, which has no schedule. */
static kl_status average(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_add(kl_mul_scalar(in[0], 0.5), in[1]);
    return KL_OK;
}

/* A step of a layer and its gradient; `out` gets the updated weights. */
static kl_status step(kl_tensor w, float *out)
{
    static float x[ROWS * IN];
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = (float)(i % 17 - 8) / 16;
    kl_trace_begin("layer");
    kl_tensor in = kl_input(device, KL_F32, DIMS(ROWS, IN), x);
    kl_tensor h = kl_softmax(kl_tanh(kl_matmul(in, w)), 1);
    kl_tensor start = kl_zeros(device, KL_F32, DIMS(OUT)), last;
    kl_scan(average, NULL, ROWS, 1, &start, 1, &h, 0, false, &last);
    kl_tensor loss = kl_add(kl_sum_all(kl_mul(h, h)), kl_sum_all(last));
    kl_assign(w, kl_sub(w, kl_mul_scalar(kl_grad(loss, w), 0.1)));
    kl_status status = kl_trace_end();
    return status ? status : kl_read(w, out, IN * OUT * sizeof *out);
}

static kl_tensor weights(void)
{
    kl_tensor w = kl_randn(device, KL_F32, DIMS(IN, OUT), 7);
    kl_requires_grad(w);
    return w;
}

/* Three steps from the same weights. */
static void steps(float *out)
{
    kl_tensor w = weights();
    for (int i = 0; i < 3; i++)
        OK(step(w, out));
    kl_release(w);
}

static void schedules(char text[BYTES])
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/kiln-api-tune-%d", (int)getpid());
    OK(kl_dump("layer", "schedules", path));
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, BYTES - 1, f) : 0;
    text[n] = 0;
    if (f)
        fclose(f);
    unlink(path);
}

/* ---- this program, started anew: the same weights, and the schedules in a file ---- */

static int be_child(const char *path)
{
    static float w[IN * OUT];
    static char text[BYTES];
    device = kl_device_named("cpu");
    OK(kl_set_option("threads", 1));
    OK(kl_set_option("tune", 1)); /* it was tuned: nothing is measured again */
    steps(w);
    schedules(text);
    FILE *f = fopen(path, "w");
    bool ok = f && fwrite(w, sizeof w, 1, f) == 1 && fputs(text, f) >= 0;
    ok = f && !fclose(f) && ok;
    return ok && !failed && kl_counter("launches") < 100 ? 0 : 1;
}

static void test_new_process(const float *want, const char *text)
{
    static float w[IN * OUT];
    static char got[BYTES];
    char path[64];
    int status = -1;
    snprintf(path, sizeof path, "/tmp/kiln-api-tune-%d", (int)getpid());
    pid_t pid = fork();
    if (!pid) {
        execl("/proc/self/exe", "api_tune", path, (char *)NULL);
        _exit(127);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    FILE *f = fopen(path, "r");
    CHECK(f && fread(w, sizeof w, 1, f) == 1);
    size_t n = f ? fread(got, 1, BYTES - 1, f) : 0;
    got[n] = 0;
    if (f)
        fclose(f);
    unlink(path);
    CHECK(!memcmp(w, want, sizeof w));
    CHECK(!strcmp(got, text));
}

/* ---- errors ---- */

static void test_errors(void)
{
    static float w[IN * OUT];
    CHECK(kl_tune(NULL, 1) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "name is NULL"));
    CHECK(kl_tune("no such trace", 1) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "\"no such trace\" has run"));
    CHECK(kl_tune("layer", -1) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "-1 seconds"));
    CHECK(kl_tune("layer", (double)NAN) == KL_ERR_ARGUMENT);
    CHECK(kl_tune("layer", 1e9) == KL_ERR_ARGUMENT);
    kl_trace_begin("open");
    CHECK(kl_tune("layer", 1) == KL_ERR_TRACE);
    kl_trace_end();
    OK(kl_set_schedules("graph @layer\n"));
    steps(w);
    CHECK(kl_tune("layer", 1) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "user-supplied"));
    OK(kl_set_schedules(NULL));
    OK(kl_set_option("fuse", 0));
    steps(w);
    CHECK(kl_tune("layer", 1) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "ran unfused"));
    OK(kl_set_option("fuse", 1));
    device = kl_device_named("ref");
    steps(w);
    CHECK(kl_tune("layer", 1) == KL_ERR_DEVICE && strstr(kl_last_error(), "device ref"));
    device = kl_device_named("cpu");
    steps(w);
}

/* The folder of kernels cannot be written: it is named, before anything is measured. */
static void test_unwritable(void)
{
    char keep[128];
    int rounds = seen.rounds;
    snprintf(keep, sizeof keep, "%s", getenv("KILN_CACHE_DIR"));
    setenv("KILN_CACHE_DIR", "/proc/self/task", 1);
    kl_tune_options o = {.seconds = 1, .progress = note_round};
    CHECK(kl_tune_with("layer", &o) == KL_ERR_IO && strstr(kl_last_error(), "/proc/self/task"));
    CHECK(seen.rounds == rounds);
    setenv("KILN_CACHE_DIR", keep, 1);
}

static void test_budget(void)
{
    kl_tune_options o = {.seconds = 1e-9, .progress = note_round, .kernel = note_kernel};
    int rounds = seen.rounds, kernels = seen.kernels;
    OK(kl_tune_with("layer", &o));
    CHECK(seen.rounds == rounds && seen.kernels == kernels);
    CHECK(kl_tune("layer", -1) == KL_ERR_ARGUMENT);
}

/* Option tune: the second run of a trace is preceded by measurements, the third is not. */
static void test_option(void)
{
    enum { N = 80 };
    static float x[N * N], y[2][N * N];
    int64_t compiles[4];
    for (int i = 0; i < N * N; i++)
        x[i] = (float)(i % 13 - 6) / 8;
    OK(kl_set_option("tune", 1));
    OK(kl_set_option("tune_seconds", 3600));
    for (int i = 0; i < 4; i++) {
        kl_trace_begin("option");
        kl_tensor in = kl_input(device, KL_F32, DIMS(N, N), x);
        kl_tensor out = kl_keep(kl_tanh(kl_matmul(in, in)));
        OK(kl_trace_end());
        OK(kl_read(out, y[i > 0], sizeof y[0]));
        kl_release(out);
        CHECK(i == 0 || !memcmp(y[0], y[1], sizeof y[0]));
        compiles[i] = kl_counter("compiles");
    }
    CHECK(compiles[1] > compiles[0] + 3 && compiles[3] == compiles[2]);
    CHECK(kl_set_option("tune", 2) == KL_ERR_ARGUMENT);
    OK(kl_set_option("tune", 0));
}

int main(int argc, char **argv)
{
    static float before[IN * OUT], after[IN * OUT], reference[IN * OUT];
    static char text[BYTES];
    char folder[64];
    if (argc > 1)
        return be_child(argv[1]);
    device = kl_device_named("cpu");
    if (!device.id) {
        printf("SKIP not-built cpu\n0 passed, 0 failed, 1 skipped\n");
        return 0;
    }
    snprintf(folder, sizeof folder, "/tmp/kiln-api-tune-XXXXXX");
    if (!CHECK(mkdtemp(folder) != NULL))
        return 1;
    setenv("KILN_CACHE_DIR", folder, 1);
    OK(kl_set_option("threads", 1));
    device = kl_device_named("ref");
    steps(reference);
    device = kl_device_named("cpu");
    steps(before);
    CHECK(!memcmp(before, reference, sizeof before));
    test_budget();
    /* enough to measure all candidates on a slow machine: what is not complete is measured again by the new process */
    kl_tune_options o = {.seconds = 3600, .progress = note_round, .kernel = note_kernel};
    int64_t compiles = kl_counter("compiles");
    OK(kl_tune_with("layer", &o));
    CHECK(seen.kernels > 0 && seen.rounds > 0 && seen.tried >= seen.kernels && kl_counter("compiles") > compiles);
    steps(after);
    CHECK(!memcmp(before, after, sizeof before));
    schedules(text);
    test_new_process(before, text);
    OK(kl_tune("layer", 0.01)); /* less than a round takes */
    steps(after);
    CHECK(!memcmp(before, after, sizeof before));
    test_option();
    test_errors();
    test_unwritable();
    steps(after);
    CHECK(!memcmp(before, after, sizeof before));
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(!system(command));
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
