/* Starts the ranks of a job: processes of the test program itself, or one mpirun. */
#ifndef COMM_JOBS_H
#define COMM_JOBS_H
#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 4, OUTPUT = 1 << 14 };
enum transport { SOCKETS, MPI, NCCL };
static const char *const carrier_name[] = {"socket", "mpi", "nccl"};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const char *self;

static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, bytes) || getsockname(fd, (struct sockaddr *)&at, &bytes))
        return 29500;
    close(fd);
    return ntohs(at.sin_port);
}

struct job { int ranks; pid_t pid[MAX_RANKS]; int status[MAX_RANKS]; char out[MAX_RANKS][OUTPUT]; double seconds; };

static char fake_gpu[4096];        /* the library in place of CUDA's driver and compiler, and of NCCL */

/* Open MPI's libraries lose memory and are unloaded before LeakSanitizer could name them.  The same ranks with sockets
 * are checked. */
static void disable_leak_checks(void)
{
    static char options[1024];
    const char *others = getenv("ASAN_OPTIONS");
    snprintf(options, sizeof options, "%s:detect_leaks=0", others ? others : "");
    setenv("ASAN_OPTIONS", options, 1);
}

/* n ranks, or one mpirun with n. */
static bool job_run(struct job *j, int n, const char *what, enum transport by)
{
    bool mpi = by == MPI;
    int fd[MAX_RANKS][2], port = free_port(), processes = mpi ? 1 : n;
    double start = now();
    memset(j, 0, sizeof *j);
    j->ranks = processes;
    fflush(stdout);
    for (int r = 0; r < processes; r++) {
        if (pipe(fd[r]))
            return false;
        j->pid[r] = fork();
        if (!j->pid[r]) {
            char text[16];
            for (int k = 0; k <= r; k++)
                close(fd[k][0]);
            dup2(fd[r][1], 1);
            dup2(fd[r][1], 2);
            setenv("KILN_THREADS", "1", 1);
            if (mpi) {
                disable_leak_checks();
                snprintf(text, sizeof text, "%d", n);
                execlp("mpirun", "mpirun", "-n", text, "--oversubscribe", "--allow-run-as-root", self, "rank", what,
                       (char *)NULL);
                _exit(127);
            }
            snprintf(text, sizeof text, "%d", r);
            setenv("RANK", text, 1);
            snprintf(text, sizeof text, "%d", n);
            setenv("WORLD_SIZE", text, 1);
            snprintf(text, sizeof text, "%d", port);
            setenv("MASTER_PORT", text, 1);
            if (by == NCCL) {
                setenv("KILN_CUDA_DRIVER", fake_gpu, 1);
                setenv("KILN_CUDA_COMPILER", fake_gpu, 1);
                setenv("KILN_NCCL_LIBRARY", fake_gpu, 1);
            }
            execl(self, self, "rank", what, by == NCCL ? "nccl" : (char *)NULL, (char *)NULL);
            _exit(127);
        }
        close(fd[r][1]);
    }
    for (int r = 0; r < processes; r++) {
        size_t have = 0;
        ssize_t got;
        while (have < OUTPUT - 1 && (got = read(fd[r][0], j->out[r] + have, OUTPUT - 1 - have)) > 0)
            have += (size_t)got;
        close(fd[r][0]);
        waitpid(j->pid[r], &j->status[r], 0);
    }
    j->seconds = now() - start;
    return true;
}

static bool job_good(const struct job *j)
{
    bool good = true;
    for (int r = 0; r < j->ranks; r++)
        if (!WIFEXITED(j->status[r]) || WEXITSTATUS(j->status[r])) {
            printf("rank %d ended with status %d and said:\n%s\n", r, j->status[r], j->out[r]);
            good = false;
        }
    return good;
}

#endif
