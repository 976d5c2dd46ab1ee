/* Kiln beside what its users would pick instead, on the processor: PyTorch (eager, torch.compile, and convolutions with
 * channels last) and JAX, in alternation, on one and on two threads.  The cases are in peers_cases.h.  Kiln's time is
 * the less of a step that is recorded each time (traced) and one that is not (frozen).  The row "ratio" of a case is
 * the median, over the rounds, of the time of its fastest peer, which is its baseline, over Kiln's time.
 *
 * On one thread the time is the processor's that the process used, for other programs may be running on the machine; on
 * two it is that of a clock.
 *
 * Peers that take more than SLOW times the time of the fastest in their first turn have no further turns.  A case
 * ends when the standard error of the ratio is at most ENOUGH, or after ROUNDS rounds or CASE_SECONDS seconds of turns.
 * Its rows are then printed on stderr and written to the JSON file, so that a run that is interrupted can be continued.
 *
 * Options beside those of all benchmarks:
 *   --threads 1|2|both   both unless said (or as many as KILN_THREADS allows)
 *   --resume             the rows of the JSON file are kept, and the cases that it lacks are measured; cases that
 *                        --case names are measured again
 * When no wanted case is missing, the table of ratios is printed on stdout as Markdown.
 *
 * Each peer runs in a process of its own, a script of bench/peers by the Python that KILN_TEST_PYTHON names;
 * `./run bench peers` installs them into build/peers.  All of it takes about half an hour on a quiet machine. */
#define _GNU_SOURCE
#include "peer.h"
#include "peers_cases.h"
#include <time.h>

enum { CASES = sizeof cases / sizeof *cases, MIN_ROUNDS = 3, ROUNDS = 12, LINE = 600, SYSTEMS = 6, KILN_TRACED = 0,
       KILN_FROZEN = 1, FIRST_PEER = 2 };
static double turn_seconds = 0.15;
#define CASE_SECONDS 20.0
#define SLOW 1.5
#define ENOUGH 0.01

/* ---- processes ---- */

enum { TORCH, JAX, PEERS };
static const char *const script[PEERS] = {"torch_turns.py", "jax_turns.py"};

/* What each system is called; the first two are Kiln's. */
static const struct { const char *name; int peer; const char *variant; } systems[SYSTEMS] = {
    {"traced", -1, ""}, {"frozen", -1, ""}, {"torch", TORCH, "eager"}, {"torch.compile", TORCH, "compile"},
    {"torch, channels last", TORCH, "channels_last"}, {"jax", JAX, "jit"}};

static void start_script(struct peer *p, int which, int threads)
{
    const char *python = getenv("KILN_TEST_PYTHON"), *folder = getenv("KILN_TEST_PEERS");
    char path[LINE];
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "", script[which]);
    *p = (struct peer){.why = "it is not installed"};
    if (folder && python)
        peer_start(p, threads, which == TORCH ? getenv("KILN_TEST_MKL") : NULL,
                   (char *[]){(char *)python, (char *)"-W", (char *)"ignore", path, NULL});
    if (p->why[0])
        fprintf(stderr, "bench_peers: no %s to compare with: %s\n", script[which], p->why);
}

/* The answer to a case for so many seconds (cases.py); false: the process has ended, or an error, which is in it. */
static bool ask_case(struct peer *p, const struct peer_case *c, const char *variant, double seconds, char *answer)
{
    char sizes[SIZES * 24];
    int n = 0;
    for (int i = 0; i < SIZES; i++)
        n += snprintf(sizes + n, sizeof sizes - (size_t)n, "%s%lld", i ? "," : "", (long long)c->size[i]);
    if (peer_ask(p, answer, LINE, "%s %d %s %s %g", family_name[c->family], c->backward, sizes, variant, seconds))
        return strncmp(answer, "error", 5) != 0;
    snprintf(answer, LINE, "%s", p->why);
    return false;
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
    int n = 0, max = sizeof took / sizeof *took;
    double begun = time_now(threads);
    for (int call = -1; call < 1 || (n < max && time_now(threads) - begun < turn_seconds); call++) {
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

struct measured {
    struct samples took[SYSTEMS]; /* a sample a round; of a system that is slow, that of round 0 alone */
    bool runs[SYSTEMS];           /* has turns */
    char why[SYSTEMS][LINE];      /* why it has none; "": it has, or it is not asked for this case */
};

/* Of the systems from..to-1 that have turns, the one of the least median; -1: none. */
static int fastest(const struct measured *m, int from, int to)
{
    int best = -1;
    for (int s = from; s < to; s++)
        if (m->runs[s] && m->took[s].n && (best < 0 || samples_median(&m->took[s]) < samples_median(&m->took[best])))
            best = s;
    return best;
}

/* Asks each peer for one call; those that cannot compute the case have no turns.  false: a peer's result differs. */
static bool check_peers(struct measured *m, struct peer *peer, const struct peer_case *c, const double *sum, int sums)
{
    char answer[LINE] = "";
    for (int s = FIRST_PEER; s < SYSTEMS; s++) {
        if (!strcmp(systems[s].variant, "channels_last") && c->family != CNN && c->family != CONV)
            continue;
        struct peer *p = &peer[systems[s].peer];
        m->runs[s] = ask_case(p, c, systems[s].variant, 0, answer);
        if (!m->runs[s])
            snprintf(m->why[s], LINE, "%.*s", (int)strcspn(answer, "\n"), answer);
        if (m->runs[s] && !sums_agree(answer, sum, sums)) {
            fprintf(stderr, "bench_peers: %s: %s computes something else: %s", c->name, systems[s].name, answer);
            return false;
        }
    }
    return true;
}

/* One turn of each system.  Its first call is for caches, and is not in the time. */
static bool measure_round(struct measured *m, struct peer_run *r, struct peer *peer, int threads)
{
    char answer[LINE];
    for (int s = 0; s < SYSTEMS; s++) {
        if (!m->runs[s])
            continue;
        usleep(20000); /* threads of the one before wait in a loop for a while */
        double seconds = -1;
        if (s < FIRST_PEER) {
            seconds = kiln_turn(r, s, threads);
            if (seconds <= 0)
                return false;
        } else if (ask_case(&peer[systems[s].peer], r->is, systems[s].variant, turn_seconds, answer)) {
            seconds = strtod(answer, NULL);
        }
        m->runs[s] = seconds > 0;
        if (seconds > 0)
            samples_add(&m->took[s], seconds);
    }
    return true;
}

/* The ratio of two systems: in all rounds that both have.  *error: its standard error, relative; 1 if unknown. */
static void ratios(const struct samples *peer, const struct samples *kiln, struct samples *ratio, double *error)
{
    double sum = 0, squares = 0;
    int n = peer->n < kiln->n ? peer->n : kiln->n;
    ratio->n = 0;
    for (int i = 0; i < n; i++) {
        double r = log(peer->s[i] / kiln->s[i]);
        samples_add(ratio, peer->s[i] / kiln->s[i]);
        sum += r;
        squares += r * r;
    }
    *error = n > 1 ? sqrt(fmax(squares - sum * sum / n, 0) / (n - 1) / n) : 1;
}

/* Rounds until the ratio of the fastest peer to Kiln is known. */
static bool measure_rounds(struct measured *m, struct peer_run *r, struct peer *peer, int threads, int rounds)
{
    static struct samples ratio;
    double begun = measure_now(), error = 1;
    for (int s = 0; s < SYSTEMS; s++)
        m->took[s].n = 0;
    if (!measure_round(m, r, peer, threads)) /* for compilers and clocks */
        return false;
    int other = fastest(m, FIRST_PEER, SYSTEMS);
    for (int s = 0; s < SYSTEMS; s++) {
        if (s >= FIRST_PEER && m->runs[s] && samples_median(&m->took[s]) > SLOW * samples_median(&m->took[other]))
            m->runs[s] = false;
        else
            m->took[s].n = 0;
    }
    for (int round = 0; round < rounds; round++) {
        if (!measure_round(m, r, peer, threads))
            return false;
        int kiln = fastest(m, 0, FIRST_PEER);
        other = fastest(m, FIRST_PEER, SYSTEMS);
        if (other >= 0)
            ratios(&m->took[other], &m->took[kiln], &ratio, &error);
        if (round + 1 >= MIN_ROUNDS && (error <= ENOUGH || measure_now() - begun > CASE_SECONDS))
            break;
    }
    return true;
}

/* Adds the rows of a case: each system's time and the ratio. */
static void add_rows(struct bench *b, const struct peer_case *c, const struct measured *m, int threads)
{
    static struct samples ratio;
    double error;
    int kiln = fastest(m, 0, FIRST_PEER), other = fastest(m, FIRST_PEER, SYSTEMS);
    for (int s = 0; s < SYSTEMS; s++)
        if (m->took[s].n)
            bench_add(b, c->name, systems[s].name, threads, &m->took[s], "us", 0, 0);
        else if (m->why[s][0])
            bench_missing(b, c->name, systems[s].name, threads, m->why[s]);
    if (other < 0)
        return;
    ratios(&m->took[other], &m->took[kiln], &ratio, &error);
    struct result *r = bench_add(b, c->name, "ratio", threads, &ratio, "x", 0, 0);
    r->median *= 1e-6; /* results_add makes microseconds of seconds */
    r->min *= 1e-6;
    r->max *= 1e-6;
    bench_baseline(r, systems[other].name, r->median);
}

static bool measure_case(struct bench *b, kl_device dev, struct peer *peer, const struct peer_case *c, int threads)
{
    static struct measured m;
    struct peer_run r;
    double sum[MAX_OUTPUTS];
    m = (struct measured){.runs = {true, true}};
    bool ok = peer_run_open(&r, dev, c) && kiln_sums(&r, sum) && check_peers(&m, peer, c, sum, r.outputs) &&
              measure_rounds(&m, &r, peer, threads, bench_rounds(b, ROUNDS));
    peer_run_close(&r);
    if (ok)
        add_rows(b, c, &m, threads);
    return ok;
}

/* ---- rows that an earlier run has left, and the table ---- */

/* The row of a case and system on so many threads; NULL: none.  system NULL: any. */
static const struct result *row_of(const struct results *t, const char *name, const char *system, int threads)
{
    for (uint32_t i = 0; i < t->n; i++) {
        const struct result *r = &t->row[i];
        if (!strcmp(r->name, name) && r->threads == threads && (!system || !strcmp(r->variant, system)))
            return r;
    }
    return NULL;
}

/* Reads the rows of a file, if it exists, but those of the cases that are to be measured again. */
static bool read_rows(struct bench *b, const int *threads)
{
    struct results all = {0};
    struct err e = {0};
    char *text = NULL;
    size_t size = 0, got = 0;
    FILE *f = fopen(b->json, "r");
    if (!f)
        return true;
    do {
        char *more = realloc(text, size = 2 * size + 65536);
        if (!more)
            break;
        text = more;
        got += fread(text + got, 1, size - got, f);
    } while (got == size);
    fclose(f);
    bool ok = text && results_parse(&all, text, got, b->json, &e);
    if (!ok)
        fprintf(stderr, "bench_peers: %s\n", text ? e.msg : "out of memory");
    for (uint32_t i = 0; ok && i < all.n; i++) {
        struct result *r = &all.row[i];
        if (b->only && bench_wants(b, r->name) && r->threads >= threads[0] && r->threads <= threads[1])
            continue;
        struct samples none = {.n = 0};
        *bench_add(b, r->name, r->variant, r->threads, &none, r->unit, 0, 0) = *r;
    }
    results_free(&all);
    free(text);
    return ok;
}

static int place_of(const struct result *r)
{
    int c = 0, s = 0;
    while (c < CASES && strcmp(cases[c].name, r->name))
        c++;
    while (s < SYSTEMS && strcmp(systems[s].name, r->variant))
        s++;
    return (r->threads * (CASES + 1) + c) * (SYSTEMS + 1) + s;
}

static int by_place(const void *a, const void *b) { return place_of(a) - place_of(b); }

/* Writes all rows in the order of the cases; the file always has a whole array. */
static bool write_rows(struct bench *b)
{
    char path[4096];
    if (!b->json)
        return true;
    qsort(b->results.row, b->results.n, sizeof *b->results.row, by_place);
    snprintf(path, sizeof path, "%s.part", b->json);
    FILE *f = fopen(path, "w");
    if (f)
        results_json(&b->results, f);
    if (f && fclose(f) == 0 && rename(path, b->json) == 0)
        return true;
    fprintf(stderr, "bench_peers: cannot write %s\n", b->json);
    return false;
}

/* Kiln's time, the fastest peer, its time, and the ratio of each case, and the geometric mean. */
static void print_table(const struct results *t, int threads)
{
    double logs = 0;
    int n = 0, below = 0;
    bool any = false;
    for (uint32_t i = 0; i < t->n; i++)
        any |= t->row[i].threads == threads && !strcmp(t->row[i].variant, "ratio");
    if (!any)
        return;
    printf("\n%s\n\n| case | Kiln, ms | fastest peer | its time, ms | peer / Kiln | rounds from, to |\n"
           "|---|---:|---|---:|---:|---|\n", threads == 1 ? "One thread (processor time):" : "Two threads (a clock):");
    for (int i = 0; i < CASES; i++) {
        const struct result *traced = row_of(t, cases[i].name, systems[KILN_TRACED].name, threads);
        const struct result *frozen = row_of(t, cases[i].name, systems[KILN_FROZEN].name, threads);
        const struct result *ratio = row_of(t, cases[i].name, "ratio", threads);
        const struct result *peer = ratio ? row_of(t, cases[i].name, ratio->baseline, threads) : NULL;
        if (!peer || !traced || !frozen)
            continue;
        printf("| %s | %.4g | %s | %.4g | %s%.2f%s | %.2f, %.2f |\n", cases[i].name,
               1e-3 * fmin(traced->median, frozen->median), ratio->baseline, 1e-3 * peer->median,
               ratio->ratio < 0.95 ? "**" : "", ratio->ratio, ratio->ratio < 0.95 ? "**" : "", ratio->min, ratio->max);
        logs += log(ratio->ratio);
        below += ratio->ratio < 0.95;
        n++;
    }
    printf("\nGeometric mean of %s%d cases: %.3f; below 0.95: %d.\n", n == CASES ? "all " : "", n,
           exp(logs / (n ? n : 1)), below);
}

/* ---- the program ---- */

/* Takes this program's own options out of argv.  false: wrong ones. */
static bool own_options(int *argc, char **argv, int *threads, bool *resume)
{
    int left = 1;
    for (int i = 1; i < *argc; i++)
        if (!strcmp(argv[i], "--resume")) {
            *resume = true;
        } else if (!strcmp(argv[i], "--threads")) {
            const char *value = i + 1 < *argc ? argv[++i] : "";
            if (strcmp(value, "1") && strcmp(value, "2") && strcmp(value, "both"))
                return fprintf(stderr, "bench_peers: --threads is 1, 2 or both\n"), false;
            threads[0] = !strcmp(value, "2") ? 2 : 1;
            threads[1] = !strcmp(value, "1") ? 1 : 2;
        } else {
            argv[left++] = argv[i];
        }
    *argc = left;
    return true;
}

/* With --smoke the cases of few elements, of which some are models, some have gradients. */
static bool wants(struct bench *b, const struct peer_case *c)
{
    static const char *const smoke[] = {"mlp-32-sgd", "attention-512-causal-grad", "gelu-1M", "conv-3x3-512",
                                        "ops-200"};
    bool small = false;
    for (size_t i = 0; i < sizeof smoke / sizeof *smoke; i++)
        small |= !strcmp(smoke[i], c->name);
    return bench_wants_work(b, c->name, small ? 0 : 1, 0);
}

/* The cases on so many threads, by peers that this starts. */
static bool measure_cases(struct bench *b, kl_device dev, int threads)
{
    struct peer peer[PEERS];
    bool ok = true, started = false;
    kl_set_option("threads", threads);
    for (int i = 0; i < CASES && ok; i++) {
        if (!wants(b, &cases[i]) || row_of(&b->results, cases[i].name, NULL, threads))
            continue;
        for (int k = 0; k < PEERS && !started; k++)
            start_script(&peer[k], k, threads);
        started = true;
        uint32_t before = b->results.n;
        double begun = measure_now();
        if (!measure_case(b, dev, peer, &cases[i], threads)) {
            fprintf(stderr, "bench_peers: %s: %s\n", cases[i].name, kl_last_error());
            ok = false;
            break;
        }
        struct results made = {.row = b->results.row + before, .n = b->results.n - before};
        results_table(&made, stderr);
        fprintf(stderr, "bench_peers: %s took %.0f s\n", cases[i].name, measure_now() - begun);
        ok = write_rows(b);
    }
    for (int k = 0; k < PEERS && started; k++)
        peer_end(&peer[k]);
    return ok;
}

int main(int argc, char **argv)
{
    static struct bench b;
    int threads[2] = {1, 2};
    bool resume = false, ok = true;
    if (!own_options(&argc, argv, threads, &resume))
        return 2;
    if (!bench_open(&b, "peers", argc, argv))
        return b.status;
    if (resume && !b.json) {
        fprintf(stderr, "bench_peers: --resume needs --json FILE, the file to continue\n");
        return 2;
    }
    kl_device dev = bench_device(&b);
    if (b.smoke)
        turn_seconds = 0;
    int64_t max = 2;
    kl_get_option("threads", &max);
    threads[1] = threads[1] < max ? threads[1] : (int)max;
    if (resume && !read_rows(&b, threads))
        return 1;
    for (int n = threads[0]; n <= threads[1] && ok; n++)
        ok = measure_cases(&b, dev, n);
    if (ok && b.only && !b.results.n) {
        fprintf(stderr, "bench_peers: there is no case %s\n", b.only);
        ok = false;
    }
    for (int n = 1; n <= 2 && ok; n++)
        print_table(&b.results, n);
    ok = ok && write_rows(&b) && !b.results.failed && (!b.smoke || b.results.n);
    results_free(&b.results);
    return ok ? 0 : 1;
}
