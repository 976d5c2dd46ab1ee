/* Kiln beside what its users would pick instead, on the processor: PyTorch (eager, torch.compile, and convolutions with
 * channels last) and JAX, by turns, on one and on two threads (KILN_THREADS=1: on one only).  The cases are in
 * peers_cases.h.  A row of Kiln's, the faster of a step that is recorded each time (traced) and one that is not
 * (frozen), has the fastest peer as its baseline and the peer's time over its own as ratio.
 *
 * On one thread the time is the processor's that the process used, for other programs may be running on the machine; on
 * two it is that of a clock.
 *
 * Each peer runs in a process of its own, a script of bench/peers by the Python that KILN_TEST_PYTHON names;
 * `./run bench peers` installs them into build/peers.  All of it takes about half an hour on a quiet machine. */
#define _GNU_SOURCE
#include "peers_cases.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 5, LINE = 600, SYSTEMS = 6, KILN_TRACED = 0, KILN_FROZEN = 1 };
#define TURN_SECONDS 0.2

/* ---- processes ---- */

struct peer { FILE *to, *from; pid_t pid; };
enum { TORCH, JAX, PEERS };
static const char *const script[PEERS] = {"torch_turns.py", "jax_turns.py"};

/* What each system is called; the first two are Kiln's. */
static const struct { const char *name; int peer; const char *variant; } systems[SYSTEMS] = {
    {"traced", -1, ""}, {"frozen", -1, ""}, {"torch", TORCH, "eager"}, {"torch.compile", TORCH, "compile"},
    {"torch, channels last", TORCH, "channels_last"}, {"jax", JAX, "jit"}};

static bool peer_start(struct peer *p, int which, int threads)
{
    const char *python = getenv("KILN_TEST_PYTHON"), *folder = getenv("KILN_TEST_PEERS");
    int to[2], from[2];
    *p = (struct peer){0};
    if (!python || !folder || pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC))
        return false;
    p->pid = fork();
    if (p->pid == 0) {
        char path[LINE], count[12];
        cpu_set_t cores;
        snprintf(path, sizeof path, "%s/%s", folder, script[which]);
        snprintf(count, sizeof count, "%d", threads);
        setenv("OMP_NUM_THREADS", count, 1);
        setenv("MKL_NUM_THREADS", count, 1);
        setenv("NPROC", count, 1);
        setenv("JAX_PLATFORMS", "cpu", 1);
        setenv("TORCH_LOGS", "-all", 1); /* no warnings of what a processor does not need */
        setenv("CUDA_VISIBLE_DEVICES", "", 1);
        if (which == TORCH && getenv("KILN_TEST_MKL"))
            setenv("LD_PRELOAD", getenv("KILN_TEST_MKL"), 1);
        CPU_ZERO(&cores); /* JAX has a thread for each core that it may use */
        for (int i = 0; i < threads; i++)
            CPU_SET(i, &cores);
        sched_setaffinity(0, sizeof cores, &cores);
        dup2(to[0], 0);
        dup2(from[1], 1);
        execl(python, python, "-W", "ignore", path, (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    p->to = fdopen(to[1], "w");
    p->from = fdopen(from[0], "r");
    return p->pid > 0 && p->to && p->from;
}

static void peer_end(struct peer *p)
{
    if (p->to)
        fclose(p->to);
    if (p->from)
        fclose(p->from);
    if (p->pid > 0)
        waitpid(p->pid, NULL, 0);
}

/* The answer to a case for so many seconds (cases.py); false: the process has ended, or an error, which is in it. */
static bool peer_ask(struct peer *p, const struct peer_case *c, const char *variant, double seconds, char *answer)
{
    if (!p->to)
        return false;
    fprintf(p->to, "%s %d ", family_name[c->family], c->backward);
    for (int i = 0; i < SIZES; i++)
        fprintf(p->to, "%s%lld", i ? "," : "", (long long)c->size[i]);
    fprintf(p->to, " %s %g\n", variant, seconds);
    fflush(p->to);
    return fgets(answer, LINE, p->from) && strncmp(answer, "error", 5) != 0;
}

/* ---- Kiln's turns ---- */

static int by_value(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

/* Seconds: on one thread, of the processor by this process; on more, of a clock. */
static double time_now(int threads)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The median seconds of a call; negative: see kl_last_error. */
static double kiln_turn(struct peer_run *r, int which, int threads)
{
    static double took[100000];
    int n = 0, most = sizeof took / sizeof *took;
    double begun = time_now(threads);
    for (int call = -1; call < 1 || (n < most && time_now(threads) - begun < TURN_SECONDS); call++) {
        double start = time_now(threads);
        if (!(which == KILN_FROZEN ? peer_run_frozen : peer_run_traced)(r))
            return -1;
        if (call >= 0)
            took[n++] = time_now(threads) - start;
        peer_release_outputs(r);
    }
    qsort(took, (size_t)n, sizeof *took, by_value);
    return took[n / 2];
}

/* The sums of the magnitudes of the outputs of one call. */
static bool kiln_sums(struct peer_run *r, double *sum)
{
    if (!peer_run_traced(r))
        return false;
    bool ok = true;
    for (int i = 0; i < r->outputs && ok; i++) {
        kl_tensor x = kl_cast(r->out[i], KL_F32);
        size_t n = (size_t)kl_numel(x);
        float *data = malloc(n * sizeof *data);
        ok = data && kl_read(x, data, n * sizeof *data) == KL_OK;
        sum[i] = 0;
        for (size_t k = 0; ok && k < n; k++)
            sum[i] += fabs((double)data[k]);
        free(data);
        kl_release(x);
    }
    peer_release_outputs(r);
    return ok;
}

/* Does the answer have these sums, within what orders of summation and bf16 differ by? */
static bool sums_agree(const char *answer, const double *sum, int n)
{
    char *at;
    strtod(answer, &at);
    for (int i = 0; i < n; i++) {
        double other = strtod(at, &at);
        if (!(fabs(other - sum[i]) <= 0.01 * fabs(sum[i]) + 1e-6))
            return false;
    }
    return true;
}

/* ---- a case ---- */

struct tally { double product; int n, below; }; /* of the ratios on a number of threads */

static bool measure_case(struct bench *b, kl_device dev, struct peer *peer, const struct peer_case *c, int threads,
                         struct tally *all)
{
    static struct samples took[SYSTEMS];
    struct peer_run r;
    double sum[MOST_OUTPUTS];
    char answer[LINE] = "";
    bool runs[SYSTEMS] = {true, true};
    bool ok = peer_run_open(&r, dev, c) && kiln_sums(&r, sum);
    for (int s = 0; s < SYSTEMS; s++)
        took[s].n = 0;
    for (int s = 2; s < SYSTEMS && ok; s++) {
        if (!strcmp(systems[s].variant, "channels_last") && c->family != CNN && c->family != CONV)
            continue;
        struct peer *p = &peer[systems[s].peer];
        runs[s] = peer_ask(p, c, systems[s].variant, 0, answer);
        if (!runs[s] && p->to)
            fprintf(stderr, "bench_peers: %s, %s: %s", c->name, systems[s].name, answer);
        if (runs[s] && !sums_agree(answer, sum, r.outputs)) {
            fprintf(stderr, "bench_peers: %s: %s computes something else: %s", c->name, systems[s].name, answer);
            ok = false;
        }
    }
    for (int round = -1; round < ROUNDS && ok; round++) /* round -1 is for compilers and caches */
        for (int s = 0; s < SYSTEMS && ok; s++) {
            usleep(runs[s] ? 20000 : 0); /* threads of the one before wait in a loop for a while */
            double seconds = s < 2 ? kiln_turn(&r, s, threads) : -1;
            ok = s >= 2 || seconds > 0;
            if (s >= 2 && runs[s] && peer_ask(&peer[systems[s].peer], c, systems[s].variant, TURN_SECONDS, answer))
                seconds = strtod(answer, NULL);
            if (ok && round >= 0 && seconds > 0)
                samples_add(&took[s], seconds);
        }
    peer_run_close(&r);
    if (!ok)
        return false;
    int best = samples_median(&took[KILN_FROZEN]) < samples_median(&took[KILN_TRACED]) ? KILN_FROZEN : KILN_TRACED;
    int other = 0;
    for (int s = 2; s < SYSTEMS; s++)
        if (took[s].n && (!other || samples_median(&took[s]) < samples_median(&took[other])))
            other = s;
    for (int s = 0; s < SYSTEMS; s++) {
        struct result *row = took[s].n ? bench_add(b, c->name, systems[s].name, threads, &took[s], "us", 0, 0) : NULL;
        if (s != best || !other)
            continue;
        double ratio = samples_median(&took[other]) / samples_median(&took[s]);
        bench_baseline(row, systems[other].name, ratio);
        *all = (struct tally){all->product + log(ratio), all->n + 1, all->below + (ratio < 0.95)};
    }
    return true;
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (!bench_open(&b, "peers", argc, argv))
        return b.status;
    signal(SIGPIPE, SIG_IGN); /* a peer that has ended */
    kl_device dev = bench_device(&b);
    int wanted = 0, done = 0, n = sizeof cases / sizeof *cases;
    int64_t most = 2;
    kl_get_option("threads", &most);
    most = most < 2 ? most : 2;
    for (int i = 0; i < n; i++)
        wanted += (int)most * bench_wants(&b, cases[i].name);
    for (int threads = 1; threads <= most; threads++) {
        struct peer peer[PEERS];
        struct tally all = {0};
        for (int i = 0; i < PEERS; i++)
            if (!peer_start(&peer[i], i, threads))
                fprintf(stderr, "bench_peers: no %s to compare with\n", systems[i == TORCH ? 2 : SYSTEMS - 1].name);
        kl_set_option("threads", threads);
        for (int i = 0; i < n; i++) {
            if (!bench_wants(&b, cases[i].name))
                continue;
            if (!measure_case(&b, dev, peer, &cases[i], threads, &all))
                return bench_fail(&b, cases[i].name);
            measure_progress("peers", ++done, wanted);
        }
        for (int i = 0; i < PEERS; i++)
            peer_end(&peer[i]);
        if (all.n)
            fprintf(stderr, "bench_peers: %d threads: the fastest peer's time over Kiln's: geometric mean %.2f of %d "
                            "cases, %d of them below 0.95\n", threads, exp(all.product / all.n), all.n, all.below);
    }
    return bench_close(&b);
}
