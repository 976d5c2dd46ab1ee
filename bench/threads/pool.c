/* What sharing out a kernel costs: a job of no work on 1 to 64 threads, microseconds of a clock.  `barrier`: one job
 * right after the other, whose threads wait in a loop; `wake`: after a pause, in which they have gone to sleep.  With
 * more threads than processors nothing waits in a loop, and threads that have not begun leave their share to the
 * caller. */
#include "bench/bench.h"
#include "runtime/pool.h"
#include <unistd.h>

enum { JOBS = 64, WAKE_JOBS = 8, ROUNDS = 31, MAX_POOL = 64, PAUSE_US = 2000 };

static _Atomic(int64_t) done; /* iterations, so that no job is left out */

static void count(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)ctx, (void)worker;
    done += end - begin;
}

static void measure_jobs(int64_t threads, int jobs, unsigned pause, struct samples *took)
{
    double seconds = 0;
    for (int i = 0; i < jobs; i++) {
        if (pause)
            usleep(pause);
        double start = measure_now();
        pool_run(count, NULL, threads, 1);
        seconds += measure_now() - start;
    }
    samples_add(took, seconds / jobs);
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct samples barrier, wake;
    if (!bench_open(&b, "pool", argc, argv))
        return b.status;
    int max = bench_size(&b, MAX_POOL, 2), rounds = bench_rounds(&b, ROUNDS);
    fprintf(stderr, "bench_pool: %ld processors\n", sysconf(_SC_NPROCESSORS_ONLN));
    for (int threads = 1; threads <= max; threads *= 2) {
        char name[32];
        snprintf(name, sizeof name, "threads-%d", threads);
        if (!bench_wants(&b, name))
            continue;
        pool_set_threads((unsigned)threads);
        barrier.n = wake.n = 0;
        done = 0;
        for (int round = 0; round < rounds; round++) {
            measure_jobs(threads, JOBS, 0, &barrier);
            measure_jobs(threads, WAKE_JOBS, PAUSE_US, &wake);
        }
        if (done != (int64_t)threads * rounds * (JOBS + WAKE_JOBS))
            return bench_fail(&b, name);
        bench_add(&b, name, "barrier", threads, &barrier, "us", 0, 0);
        bench_add(&b, name, "wake", threads, &wake, "us", 0, 0);
    }
    return bench_close(&b);
}
