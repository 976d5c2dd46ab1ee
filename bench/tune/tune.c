/* Training steps with tuned schedules beside the schedules that Kiln chooses, in alternation, and what tuning takes.
 *
 * A process tunes each case into a folder of kernels of its own; a new process finds what was kept there.  The untuned
 * program is the one whose schedules, written down before tuning, are user-supplied.  Both compute the same bits. */
#include "bench/peers/peers_cases.h"
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TURNS = 15, BITS_STEPS = 3, PATH = 128, MAX_BYTES = 1 << 16 };
#define TUNE_SECONDS 55
#define SMOKE_SECONDS "1"
static const char *const tuned_cases[] = {"mlp-128-adam", "cnn-64-sgd", "gpt-sgd", "gpt-adam"};
static const char *const variant_name[2] = {"untuned", "tuned"};

static const struct peer_case *case_named(const char *name)
{
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].name, name))
            return &cases[i];
    return NULL;
}

static bool run_step(struct peer_run *r)
{
    bool ok = peer_run_traced(r);
    if (ok)
        peer_release_outputs(r);
    return ok;
}

/* ---- a process that tunes ---- */

struct tuning { int kernels, changed, rounds; double line; };

static void note_kernel(void *ctx, const kl_tuned_kernel *k)
{
    struct tuning *t = ctx;
    t->kernels++;
    t->changed += strcmp(k->before, k->after) != 0;
    if (strcmp(k->before, k->after))
        printf("  %s: %.0f -> %.0f us\n    %s\n    %s\n", k->name, 1e6 * k->seconds[0], 1e6 * k->seconds[1], k->before,
               k->after);
}

static void note_round(void *ctx, int done, int rounds)
{
    struct tuning *t = ctx;
    t->rounds = done;
    measure_progress_lines(&t->line, "tuning", done, rounds);
}

static int be_tuner(const char *name, const char *schedules)
{
    struct peer_run r;
    struct tuning t = {.line = measure_now()};
    const char *seconds = getenv("KILN_TEST_SECONDS");
    kl_tune_options o = {seconds ? parse_double(seconds, NULL) : TUNE_SECONDS, note_round, note_kernel, &t};
    kl_set_option("threads", 1);
    bool ok = peer_run_open(&r, kl_device_default(), case_named(name)) && run_step(&r) &&
              kl_dump(name, "schedules", schedules) == KL_OK;
    double wall = measure_now(), cpu = measure_cpu_now();
    ok = ok && kl_tune_with(name, &o) == KL_OK;
    measure_progress("tuning", 1, 1);
    if (ok)
        format_file(stdout, "%s: tuned in %.1f s, of which %.1f s on the processor; %d rounds; %d of %d kernels "
                    "changed\n", name, measure_now() - wall, measure_cpu_now() - cpu, t.rounds, t.changed, t.kernels);
    else
        fprintf(stderr, "bench_tune: %s: %s\n", name, kl_last_error());
    peer_run_close(&r);
    return !ok;
}

static bool tune_elsewhere(const char *name, const char *schedules)
{
    int status = -1;
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        execl("/proc/self/exe", "bench_tune", "tune", name, schedules, (char *)NULL);
        _exit(127);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status);
}

/* ---- the process that compares ---- */

/* Programs that are built or found from here on are untuned, or tuned. */
static bool choose(bool tuned, const char *untuned) { return kl_set_schedules(tuned ? NULL : untuned) == KL_OK; }

/* Parameters after some steps from the same start. */
static char *trained(const struct bench *b, const struct peer_case *c, size_t *bytes)
{
    struct peer_run r;
    char *all = NULL;
    bool ok = peer_run_open(&r, bench_device(b), c);
    for (int i = 0; ok && i < BITS_STEPS; i++)
        ok = run_step(&r);
    *bytes = 0;
    for (int i = 0; i < r.parameters; i++)
        *bytes += (size_t)kl_numel(r.parameter[i]) * sizeof(float);
    char *at = all = ok ? malloc(*bytes) : NULL;
    for (int i = 0; all && ok && i < r.parameters; i++) {
        size_t size = (size_t)kl_numel(r.parameter[i]) * sizeof(float);
        ok = kl_read(r.parameter[i], at, size) == KL_OK;
        at += size;
    }
    peer_run_close(&r);
    if (!ok)
        free(all);
    return ok ? all : NULL;
}

static bool same_bits(const struct bench *b, const struct peer_case *c, const char *untuned)
{
    size_t bytes[2];
    char *got[2] = {0};
    for (int tuned = 0; tuned < 2; tuned++)
        got[tuned] = choose(tuned, untuned) ? trained(b, c, &bytes[tuned]) : NULL;
    bool same = got[0] && got[1] && bytes[0] == bytes[1] && !memcmp(got[0], got[1], bytes[0]);
    printf("%s: %s\n", c->name, same ? "the same bits" : "OTHER BITS");
    free(got[0]);
    free(got[1]);
    return same;
}

/* A new program's first step is not counted: it plans and loads. */
static bool timed(struct peer_run *r, bool tuned, const char *untuned, struct samples *took)
{
    if (!choose(tuned, untuned) || !run_step(r))
        return false;
    double start = measure_cpu_now();
    bool ok = run_step(r);
    samples_add(took, measure_cpu_now() - start);
    return ok;
}

static bool compare(struct bench *b, const struct peer_case *c, const char *untuned)
{
    static struct samples took[2], ratio;
    struct peer_run r;
    took[0].n = took[1].n = ratio.n = 0;
    bool ok = peer_run_open(&r, bench_device(b), c);
    for (int i = 0; ok && i < bench_rounds(b, TURNS); i++) {
        for (int k = 0; ok && k < 2; k++)
            ok = timed(&r, (i + k) % 2, untuned, &took[(i + k) % 2]);
        if (ok)
            samples_add(&ratio, took[0].s[i] / took[1].s[i]);
    }
    peer_run_close(&r);
    for (int tuned = 0; ok && tuned < 2; tuned++) {
        struct result *row = bench_add(b, c->name, variant_name[tuned], 1, &took[tuned], "us", 0, 0);
        if (tuned)
            bench_baseline(row, variant_name[0], samples_median(&ratio));
    }
    return ok;
}

static bool bench_case(struct bench *b, const struct peer_case *c, const char *folder)
{
    static char untuned[MAX_BYTES];
    char path[PATH];
    snprintf(path, sizeof path, "%s/%s.txt", folder, c->name);
    if (!tune_elsewhere(c->name, path))
        return false;
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(untuned, 1, sizeof untuned - 1, f) : 0;
    untuned[n] = 0;
    if (f)
        fclose(f);
    unlink(path);
    return n && same_bits(b, c, untuned) && compare(b, c, untuned);
}

int main(int argc, char **argv)
{
    static struct bench b;
    char folder[] = "/tmp/kiln-bench-tune-XXXXXX", command[PATH];
    if (argc == 4 && !strcmp(argv[1], "tune") && case_named(argv[2]))
        return be_tuner(argv[2], argv[3]);
    if (!bench_open(&b, "tune", argc, argv))
        return b.status;
    if (!mkdtemp(folder))
        return bench_fail(&b, folder);
    setenv("KILN_CACHE_DIR", folder, 1);
    kl_set_option("threads", 1);
    if (b.smoke)
        setenv("KILN_TEST_SECONDS", SMOKE_SECONDS, 0);
    bool ok = true;
    for (unsigned i = 0; ok && i < sizeof tuned_cases / sizeof *tuned_cases; i++)
        if (bench_wants_work(&b, tuned_cases[i], i, 0))
            ok = bench_case(&b, case_named(tuned_cases[i]), folder);
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command))
        fprintf(stderr, "bench_tune: %s is left\n", folder);
    return ok ? bench_close(&b) : bench_fail(&b, "tune");
}
