/* Random graphs: interpreter, fused and unfused kernels must give the same bits, with one thread and with two.
 *
 *   random_graphs [COUNT [SEED]]
 *
 * Made symbolic and bound again, a graph is what it was.
 * Graphs run in children, one a processor, so that a crash or an endless loop is a failure like any other.  A graph
 * that fails is made as small as it gets and written beside this program's folder as random_SEED.kir, a text test
 * (tests/text).
 * SIGINT and SIGTERM end the run after the current batches. */
#define _GNU_SOURCE
#include "tests/support/random/random_make.h"
#include "tests/support/deadlines.h"
#include "tests/support/random/random_shrink.h"
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 100, MAX_FAILURES = 5, MAX_CHILDREN = 16 }; /* BATCH: graphs of one child, whose caches only grow */
static const double graph_seconds = 120, shrink_seconds = 20; /* of the processor */
static const double poll_seconds = 0.005;

/* Shared with the child: the graph it is at, and what its check found. */
struct progress {
    atomic_uint_fast64_t seed;
    atomic_int verdict;
    struct err why;
};

/* The graph with symbols for some numbers is g once they have their values. */
static bool check_symbols(const struct graph *g, struct err *why)
{
    int64_t value[MAX_SYMBOLS];
    struct graph *s = random_symbolic(g, graph_hash(g).lo, value);
    bool ok = !s || symbolic_agrees(g, s, value, why);
    graph_free(s);
    return ok;
}

/* The text means the same graph, and all executors agree on it. */
static enum verdict check_graph(const struct graph *g, struct err *why)
{
    if (g->err.code)
        return err_set(why, g->err.code, "%s", g->err.msg), REFUSED;
    char *text = graph_text(g);
    struct graph *back = text ? graph_parse(text, strlen(text), "printed", why) : NULL;
    bool same = back && graph_same(g, back);
    graph_free(back);
    mem_free(text);
    if (!same)
        return err_set(why, KL_ERR_INTERNAL, "the printed text parses to another graph"), REFUSED;
    if (!check_symbols(g, why))
        return REFUSED;
    if (agree_on_random_data(g, why))
        return AGREES;
    return why->code ? REFUSED : DIFFERS;
}

static volatile sig_atomic_t stopped;
static void stop(int number)
{
    (void)number;
    stopped = 1;
}

static void run_batch(struct progress *p, uint64_t seed, uint64_t end)
{
    for (; seed < end; seed++) {
        atomic_store(&p->seed, seed);
        end_when_stuck_after(graph_seconds);
        struct graph *g = random_graph(seed);
        struct err why = {0};
        enum verdict v = check_graph(g, &why);
        graph_free(g);
        if (v != AGREES) {
            p->why = why;
            atomic_store(&p->verdict, v);
            exit(0);
        }
    }
    atomic_store(&p->seed, end);
    exit(0); /* not _exit: the leak check runs */
}

static void report(const char *program, uint64_t seed, enum verdict v, const struct err *why)
{
    check(false, "graph of seed %" PRIu64 " %s: %s", seed, verdict_text[v], why->msg);
    fflush(stdout);
    struct graph *g = random_graph(seed), *small = shrink(g, check_graph, v, shrink_seconds);
    char path[512];
    const char *slash = strrchr(program, '/');
    int folder = slash ? (int)(slash - program) : 1;
    snprintf(path, sizeof path, "%.*s/../random_%" PRIu64 ".kir", folder, slash ? program : ".", seed);
    FILE *f = fopen(path, "w");
    if (!f) {
        printf("cannot write %s: %s\n", path, strerror(errno));
        graph_print(small, stdout);
    } else {
        fprintf(f, "# test: agree\n");
        graph_print(small, f);
        fclose(f);
        printf("%u of %u nodes are left in %s\n", small->nnode - 1, g->nnode - 1, path);
    }
    graph_free(small);
    graph_free(g);
}

/* ---- children, one a processor ---- */

struct child {
    struct progress *p;
    pid_t pid;              /* 0: none runs */
    uint64_t first, last;   /* its graphs */
};

static void start(struct child *c, uint64_t first, uint64_t last)
{
    *c->p = (struct progress){.seed = first};
    *c = (struct child){.p = c->p, .first = first, .last = last};
    fflush(stdout);
    c->pid = fork();
    if (c->pid == 0 && !prctl(PR_SET_PDEATHSIG, SIGKILL))
        run_batch(c->p, first, last);
    if (c->pid < 0) {
        check(false, "fork: %s", strerror(errno));
        c->pid = 0;
    }
}

static bool has_ended(const struct child *c, enum verdict *v)
{
    int status;
    if (waitpid(c->pid, &status, WNOHANG) != c->pid)
        return false;
    if (WIFSIGNALED(status) && is_stuck_signal(WTERMSIG(status)))
        *v = HANGS;
    else
        *v = !WIFEXITED(status) || WEXITSTATUS(status) ? CRASHED : (enum verdict)atomic_load(&c->p->verdict);
    return true;
}

/* Takes in what an ended child found, and goes on behind the graph that it failed at. */
static void take_in(struct child *c, enum verdict v, const char *program)
{
    uint64_t seed = atomic_load(&c->p->seed);
    passed += (unsigned)(seed - c->first);
    c->pid = 0;
    if (v == AGREES)
        return;
    if (seed == c->last) {
        check(false, "the child that ran graphs %" PRIu64 " to %" PRIu64 " failed at its end", c->first, c->last - 1);
        return;
    }
    report(program, seed, v, &c->p->why);
    if (seed + 1 < c->last && failed < MAX_FAILURES && !stopped)
        start(c, seed + 1, c->last);
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 300, next = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t end = next + count, batch = count / MAX_CHILDREN < BATCH ? count / MAX_CHILDREN + 1 : BATCH;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned n = processors < 1 ? 1 : processors > MAX_CHILDREN ? MAX_CHILDREN : (unsigned)processors, running = 1;
    struct progress *p = mmap(NULL, n * sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct child child[MAX_CHILDREN] = {{0}};
    if (p == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    for (unsigned i = 0; i < n; i++)
        child[i].p = &p[i];
    setenv("KILN_CHECK", "1", 0);
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    while (running) {
        running = 0;
        for (unsigned i = 0; i < n; i++) {
            struct child *c = &child[i];
            enum verdict v;
            if (c->pid && has_ended(c, &v))
                take_in(c, v, argv[0]);
            if (!c->pid && next < end && failed < MAX_FAILURES && !stopped) {
                uint64_t last = end - next > batch ? next + batch : end;
                start(c, next, last);
                next = last;
            }
            running += c->pid != 0;
        }
        nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * poll_seconds)}, NULL);
    }
    return finish();
}
