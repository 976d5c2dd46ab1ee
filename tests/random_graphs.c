/* Random graphs: interpreter, fused and unfused kernels must give the same bits, with one thread and with two.
 *
 *   random_graphs [COUNT [SEED]]
 *
 * Graphs run in children, so that a crash or an endless loop is a failure like any other.  A graph that fails is
 * made as small as it gets and written beside this program's folder as random_SEED.kir, a text test (tests/text).
 * SIGINT and SIGTERM end the run after the current batch. */
#define _GNU_SOURCE
#include "random_make.h"
#include "random_shrink.h"
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 100, MAX_FAILURES = 5 }; /* graphs of one child: its caches only grow */
static const double graph_seconds = 120, shrink_seconds = 20;

/* Shared with the child: the graph it is at, and what its check found. */
struct progress {
    atomic_uint_fast64_t seed;
    atomic_int verdict;
    struct err why;
};

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

/* Waits for the child; kills it when one graph takes too long. */
static enum verdict wait_batch(pid_t child, struct progress *p)
{
    uint64_t at = UINT64_MAX;
    for (double idle = 0;; idle += 0.005) {
        int status;
        if (waitpid(child, &status, WNOHANG) == child)
            return !WIFEXITED(status) || WEXITSTATUS(status) ? CRASHED : (enum verdict)atomic_load(&p->verdict);
        if (at != atomic_load(&p->seed)) {
            at = atomic_load(&p->seed);
            idle = 0;
        }
        if (idle > graph_seconds) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return HANGS;
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
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

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 300, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    struct progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    setenv("KILN_CHECK", "1", 0);
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    for (uint64_t end = seed + count; seed < end && failed < MAX_FAILURES && !stopped;) {
        uint64_t first = seed, last = end - seed > BATCH ? seed + BATCH : end;
        *p = (struct progress){.seed = seed};
        fflush(stdout);
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 1;
        }
        if (child == 0 && !prctl(PR_SET_PDEATHSIG, SIGKILL))
            run_batch(p, seed, last);
        enum verdict v = wait_batch(child, p);
        seed = atomic_load(&p->seed);
        passed += (unsigned)(seed - first);
        if (v != AGREES && seed == last)
            check(false, "the child that ran graphs %" PRIu64 " to %" PRIu64 " failed at its end", first, last - 1);
        else if (v != AGREES)
            report(argv[0], seed++, v, &p->why);
    }
    return finish();
}
