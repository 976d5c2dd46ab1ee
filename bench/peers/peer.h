/* Another system in a process of its own.  A benchmark asks it for a turn by a line of text; it answers by a line. */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H
#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before the first include: sched_setaffinity"
#endif
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

struct peer { FILE *to, *from; pid_t pid; };

/* Runs a program on the first `threads` cores with as many threads; 0: on all cores, and it chooses.  preload: a
 * library for LD_PRELOAD, or NULL.  It sees GPUs only where $KILN_TEST_PEER_DEVICE names one.  false: it could not be
 * started; a program that fails later ends its answers. */
static inline bool peer_start(struct peer *p, int threads, const char *preload, char *const *argv)
{
    int to[2], from[2];
    *p = (struct peer){0};
    if (!argv[0] || pipe2(to, O_CLOEXEC))
        return false;
    if (pipe2(from, O_CLOEXEC)) {
        close(to[0]);
        close(to[1]);
        return false;
    }
    p->pid = fork();
    if (p->pid == 0) {
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
        dup2(to[0], 0);
        dup2(from[1], 1);
        execv(argv[0], argv);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    p->to = fdopen(to[1], "w");
    p->from = fdopen(from[0], "r");
    return p->pid > 0 && p->to && p->from;
}

/* Closes its input, at which it ends, and waits for it. */
static inline void peer_end(struct peer *p)
{
    if (p->to)
        fclose(p->to);
    if (p->from)
        fclose(p->from);
    if (p->pid > 0)
        waitpid(p->pid, NULL, 0);
    *p = (struct peer){0};
}

#endif
