/* Another system in a process of its own.  A benchmark asks it for a turn by a line of text; it answers by a line.
 * A peer that is not there, or that ends early, is no failure of the benchmark: p->why says what became of it, for the
 * row that takes the place of its measurements (bench_missing). */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H
#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before the first include: sched_setaffinity"
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct peer {
    FILE *to, *from; /* NULL: it does not run */
    pid_t pid;
    int deadline;    /* seconds that an answer may take; 0: as long as it takes */
    char why[160];   /* why it does not run; "": it does */
};

/* In the process that becomes the peer; returns where the program could not be run, with errno. */
static inline void peer_run_program(int threads, const char *preload, char *const *argv, int in, int out)
{
    char count[12];
    cpu_set_t cores;
    snprintf(count, sizeof count, "%d", threads);
    if (threads) {
        setenv("OMP_NUM_THREADS", count, 1);
        setenv("MKL_NUM_THREADS", count, 1);
        setenv("NPROC", count, 1);
    }
    setenv("JAX_PLATFORMS", "cpu", 1);
    setenv("TORCH_LOGS", "-all", 1); /* no warnings of what a processor does not need */
    if (!getenv("KILN_TEST_PEER_DEVICE"))
        setenv("CUDA_VISIBLE_DEVICES", "", 1);
    if (preload)
        setenv("LD_PRELOAD", preload, 1);
    CPU_ZERO(&cores); /* JAX has a thread for each core that it may use */
    for (int i = 0; i < threads; i++)
        CPU_SET(i, &cores);
    if (threads)
        sched_setaffinity(0, sizeof cores, &cores);
    signal(SIGPIPE, SIG_DFL);
    dup2(in, 0);
    dup2(out, 1);
    execvp(argv[0], argv);
}

/* Two pipes and one for errno of an exec that fails; all close where the program begins. */
static inline bool peer_pipes(int pipes[3][2])
{
    for (int i = 0; i < 3; i++)
        if (pipe2(pipes[i], O_CLOEXEC)) {
            while (i-- > 0) {
                close(pipes[i][0]);
                close(pipes[i][1]);
            }
            return false;
        }
    return true;
}

/* Ends its input, at which it ends, and waits for it; returns its status as of waitpid.  p->why is kept. */
static inline int peer_wait(struct peer *p)
{
    int status = 0;
    if (p->to)
        fclose(p->to);
    if (p->from)
        fclose(p->from);
    if (p->pid > 0)
        waitpid(p->pid, &status, 0);
    p->to = p->from = NULL;
    p->pid = 0;
    return status;
}

static inline void peer_end(struct peer *p)
{
    peer_wait(p);
    p->why[0] = 0;
}

/* Runs a program, looked for in PATH as a shell does, on the first `threads` cores with as many threads; 0: on all
 * cores, and it chooses.  preload: a library for LD_PRELOAD, or NULL.  It sees GPUs only where $KILN_TEST_PEER_DEVICE
 * names one.  false: it could not be started, see p->why; peer_end may, but need not be called.  From then on writing
 * to a process that has ended is an error, not SIGPIPE. */
static inline bool peer_start(struct peer *p, int threads, const char *preload, char *const *argv)
{
    int pipes[3][2], failure = 0;
    *p = (struct peer){0};
    if (!argv[0]) {
        snprintf(p->why, sizeof p->why, "no program is named");
        return false;
    }
    if (!peer_pipes(pipes)) {
        snprintf(p->why, sizeof p->why, "no pipe: %s", strerror(errno));
        return false;
    }
    signal(SIGPIPE, SIG_IGN);
    p->pid = fork();
    if (p->pid == 0) {
        peer_run_program(threads, preload, argv, pipes[0][0], pipes[1][1]);
        failure = errno;
        _exit(write(pipes[2][1], &failure, sizeof failure) == sizeof failure ? 127 : 126);
    }
    failure = p->pid < 0 ? errno : 0;
    close(pipes[0][0]);
    close(pipes[1][1]);
    close(pipes[2][1]);
    p->to = fdopen(pipes[0][1], "w");
    p->from = fdopen(pipes[1][0], "r");
    if (!failure && read(pipes[2][0], &failure, sizeof failure) != sizeof failure)
        failure = p->to && p->from ? 0 : ENOMEM;
    close(pipes[2][0]);
    if (!failure)
        return true;
    peer_wait(p);
    snprintf(p->why, sizeof p->why, "cannot run %.100s: %s", argv[0], strerror(failure));
    return false;
}

/* Reads a line of the peer, of less than `size` characters.  false: it has ended, or was ended as it took longer than
 * p->deadline; how stands in p->why. */
static inline bool peer_answer(struct peer *p, char *answer, int size)
{
    if (!p->from)
        return false;
    struct pollfd ready = {.fd = fileno(p->from), .events = POLLIN};
    if (p->deadline && poll(&ready, 1, 1000 * p->deadline) == 0) {
        kill(p->pid, SIGKILL);
        peer_wait(p);
        snprintf(p->why, sizeof p->why, "no answer in %d s", p->deadline);
        return false;
    }
    if (fgets(answer, size, p->from))
        return true;
    int status = peer_wait(p), number = WTERMSIG(status);
    if (WIFSIGNALED(status))
        snprintf(p->why, sizeof p->why, "it was ended by signal %d (%s)", number, strsignal(number));
    else
        snprintf(p->why, sizeof p->why, "it ended with exit status %d", WEXITSTATUS(status));
    return false;
}

/* Sends a line, a printf format without the newline, and reads the answer. */
__attribute__((format(printf, 4, 5)))
static inline bool peer_ask(struct peer *p, char *answer, int size, const char *format, ...)
{
    va_list list;
    if (!p->to)
        return false;
    va_start(list, format);
    vfprintf(p->to, format, list); /* a process that has ended is noticed by its answer */
    va_end(list);
    putc('\n', p->to);
    fflush(p->to);
    return peer_answer(p, answer, size);
}

#endif
