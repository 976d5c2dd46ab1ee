/* Random programs of the public calls: the interpreter, fused and unfused kernels, one thread and two, eager calls,
 * symbolic lengths and frozen steps must give the same bits, and kl_vmap what each element gives.
 *
 *   random_api [COUNT [SEED]]
 *   random_api on DEVICE [COUNT [SEED]]   instead of all this: the bits of a device, by kl_check_bits, which it
 *                                         promises with KILN_ORDER=graph
 *
 * Programs run in a child, so that a crash or an endless loop is a failure like any other.  Of a program that fails,
 * calls are turned off as long as it still fails; what is left is printed with its graph.  `random_api 1 SEED` runs the
 * program of one seed. */
#define _GNU_SOURCE
#include "tests/random_api/program.h"
#include "tests/support/deadlines.h"
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    BATCH = 100, /* programs of one child, whose caches only grow */
    A_LINE = 10, /* programs of a device for each line of progress */
    MAX_FAILURES = 5,
    PROGRAM_SECONDS = 120,
    SHRINK_SECONDS = 20 /* for one of the programs that are tried */
};
enum outcome { SAME, DIFFERENT, EMPTY };

/* Shared with the child: the program it is at, and those that had calls. */
static struct progress { atomic_uint_fast64_t seed, compared, refused; } *progress;
static const char *device; /* by the command line, or NULL */

static enum outcome run_program(uint64_t seed, const bool *off, bool print)
{
    char why[1000] = "";
    struct random_program *p = random_program_new(seed, off);
    enum outcome o = EMPTY;
    if (!program_empty(p)) {
        if (print)
            program_print(p);
        fflush(stdout);
        bool refused = false;
        bool agrees = device ? program_agrees_on(p, device, &refused, why, sizeof why)
                             : program_agrees(p, why, sizeof why);
        o = agrees ? SAME : DIFFERENT;
        atomic_fetch_add(&progress->refused, refused);
        if (print && o == DIFFERENT)
            printf("%s\n", why);
    }
    random_program_free(p);
    return o;
}

static pid_t start_child(void)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

/* What a child ended with: its exit code, or minus a signal's number. */
static int ended(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/* Does the program fail without these calls? */
static bool fails_without(uint64_t seed, const bool *off, bool print)
{
    pid_t pid = start_child();
    if (pid == 0) {
        end_when_stuck_after(print ? PROGRAM_SECONDS : SHRINK_SECONDS);
        exit(run_program(seed, off, print) == DIFFERENT);
    }
    return ended(pid) != 0;
}

/* first: the first program of the child */
static void report(uint64_t first, uint64_t seed, int code)
{
    bool off[MAX_CALLS] = {false};
    if (code < 0)
        check(false, "the program of seed %" PRIu64 ": signal %d (%s)", seed, -code, strsignal(-code));
    else
        check(false, "the program of seed %" PRIu64 " differs", seed);
    bool alone = fails_without(seed, off, false);
    if (!alone)
        printf("not alone, but behind others: random_api %" PRIu64 " %" PRIu64 "\n", seed + 1 - first, first);
    for (bool again = alone; again;) {
        again = false;
        for (int i = MAX_CALLS - 1; i >= 0; i--) {
            if (off[i])
                continue;
            off[i] = true;
            if (fails_without(seed, off, false))
                again = true;
            else
                off[i] = false;
        }
    }
    if (alone && !fails_without(seed, off, true))
        printf("it does not fail each time\n");
}

static void run_batch(uint64_t seed, uint64_t end)
{
    for (; seed < end; seed++) {
        atomic_store(&progress->seed, seed);
        end_when_stuck_after(PROGRAM_SECONDS);
        enum outcome o = run_program(seed, NULL, false);
        if (o == DIFFERENT)
            exit(1);
        if (o == SAME)
            atomic_fetch_add(&progress->compared, 1);
        if (device && (seed + 1) % A_LINE == 0) { /* a device may take minutes for so many */
            printf("up to seed %" PRIu64 ": %u the same or refused\n", seed,
                   (unsigned)atomic_load(&progress->compared));
            fflush(stdout);
        }
    }
    atomic_store(&progress->seed, end);
    exit(0); /* not _exit: the leak check runs */
}

/* In a child: drivers have threads, which the children of this process would lack. */
static bool has_device(void)
{
    pid_t pid = start_child();
    if (pid == 0) {
        kl_trace_begin("probe");
        kl_keep(kl_neg(kl_iota(kl_device_named(device), KL_F32, 1, (int64_t[]){8}, 0)));
        exit(kl_trace_end() != KL_OK);
    }
    return ended(pid) == 0;
}

int main(int argc, char **argv)
{
    device = argc > 2 && !strcmp(argv[1], "on") ? argv[2] : NULL;
    argc -= device ? 2 : 0;
    argv += device ? 2 : 0;
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 200, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t end = seed + count;
    progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    setenv("KILN_CHECK", "1", 0);
    if (device && !has_device()) {
        printf("SKIP no-device %s\n", device);
        skipped++;
        return finish();
    }
    while (seed < end && failed < MAX_FAILURES) {
        uint64_t last = end - seed > BATCH ? seed + BATCH : end;
        pid_t pid = start_child();
        if (pid == 0)
            run_batch(seed, last);
        int code = ended(pid);
        uint64_t at = atomic_load(&progress->seed);
        if (code == 0) {
            seed = last;
        } else if (at == last) {
            check(false, "the child of programs %" PRIu64 " to %" PRIu64 " failed at its end", seed, last - 1);
            seed = last;
        } else {
            report(seed, at, code);
            seed = at + 1;
        }
    }
    passed += (unsigned)atomic_load(&progress->compared);
    if (!passed && count)
        check(false, "no program had a call");
    if (device) {
        unsigned refused = (unsigned)atomic_load(&progress->refused);
        printf("%s: %u programs compared, %u refused\n", device, passed - refused, refused);
        check(refused <= count / 5, "%s refuses %u programs", device, refused);
    }
    return finish();
}
