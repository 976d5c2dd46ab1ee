/* Checks of graphs in a process of their own, and the search of frontend/check with such a check. */
#define _GNU_SOURCE
#include "random_shrink.h"
#include "frontend/check/check.h"
#include "tests/support/deadlines.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const verdict_text[] = {"agrees", "differs", "is refused", "crashes", "hangs"};

enum verdict check_apart(check_fn *check_graph, const struct graph *g, double seconds)
{
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        abort();
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        struct err why = {0};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        end_when_stuck_after(seconds);
        _exit((int)check_graph(g, &why));
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status) && is_stuck_signal(WTERMSIG(status)))
        return HANGS;
    return WIFEXITED(status) && WEXITSTATUS(status) <= REFUSED ? (enum verdict)WEXITSTATUS(status) : CRASHED;
}

struct wanted { check_fn *check; enum verdict verdict; double seconds; };

static bool gets_verdict(void *ctx, const struct graph *g, const struct check_values *values)
{
    const struct wanted *w = ctx;
    (void)values;
    return check_apart(w->check, g, w->seconds) == w->verdict;
}

struct graph *shrink(const struct graph *g, check_fn *check_graph, enum verdict verdict, double seconds)
{
    struct wanted w = {check_graph, verdict, seconds};
    struct graph *small = graph_clone(g);
    if (small)
        shrink_graph(&(struct shrink){.fails = gets_verdict, .ctx = &w}, &small, NULL);
    return small;
}
