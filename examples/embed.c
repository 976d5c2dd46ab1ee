/* Kiln as a part of a larger program: on the host's own threads, with its messages, under a limit of memory, and a
 * profile of what it did.  A host with a job system of its own has most of this already; what Kiln needs of it is
 * host_run. */
#include <kiln/kiln.h>
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 3, ROWS = 256, COLUMNS = 512 };

/* ---- the host's job system, the smallest there is: three threads that take parts of one job at a time ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    void (*part)(void *job, int i);
    void *job;
    int parts, next, running; /* of the job: so many, the first not taken, those that are being run */
    bool busy, ends;
} jobs = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

/* Runs a part of the job, if there is one left; needs the lock, which it gives up meanwhile. */
static bool run_one(void)
{
    if (jobs.next >= jobs.parts)
        return false;
    int i = jobs.next++;
    jobs.running++;
    pthread_mutex_unlock(&jobs.lock);
    jobs.part(jobs.job, i);
    pthread_mutex_lock(&jobs.lock);
    if (--jobs.running == 0 && jobs.next >= jobs.parts)
        pthread_cond_broadcast(&jobs.done);
    return true;
}

static void *worker(void *unused)
{
    pthread_mutex_lock(&jobs.lock);
    while (!jobs.ends)
        if (!run_one())
            pthread_cond_wait(&jobs.work, &jobs.lock);
    pthread_mutex_unlock(&jobs.lock);
    return unused;
}

/* What Kiln calls.  While one job is run, those of other threads are run by their callers alone. */
static void host_run(void *ctx, void (*part)(void *job, int i), void *job, int parts)
{
    (void)ctx;
    pthread_mutex_lock(&jobs.lock);
    bool mine = !jobs.busy;
    if (mine) {
        jobs.busy = true;
        jobs.part = part;
        jobs.job = job;
        jobs.parts = parts;
        jobs.next = 0;
        pthread_cond_broadcast(&jobs.work);
        while (run_one()) continue;
        while (jobs.running)
            pthread_cond_wait(&jobs.done, &jobs.lock);
        jobs.busy = false;
    }
    pthread_mutex_unlock(&jobs.lock);
    for (int i = 0; !mine && i < parts; i++)
        part(job, i);
}

static void host_log(void *ctx, kl_log_level level, const char *message)
{
    fprintf(ctx, "[kiln %s] %s\n", kl_log_level_name(level), message);
}

/* ---- what it computes: powers of a matrix, kept in range ---- */

static kl_status step(kl_device dev, kl_tensor w, int64_t rows)
{
    kl_trace_begin("powers");
    kl_tensor x = kl_rand(dev, KL_F32, 2, (int64_t[]){rows, COLUMNS}, 1);
    kl_tensor y = kl_matmul(kl_transpose(x, 0, 1), kl_tanh(kl_matmul(x, w)));
    kl_assign(w, kl_mul_scalar(y, 1.0 / (double)rows));
    return kl_trace_end();
}

int main(void)
{
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, worker, NULL))
            return 1;
    kl_set_log(host_log, stdout, KL_LOG_INFO);
    kl_set_pool(&(kl_pool){.run = host_run, .threads = THREADS + 1});
    kl_device dev = kl_device_default();
    kl_set_memory_limit(dev, 16 << 20);

    kl_tensor w = kl_randn(dev, KL_F32, 2, (int64_t[]){COLUMNS, COLUMNS}, 2);
    kl_profile_begin();
    int failures = 0, steps = 0;
    for (int64_t rows = 64 * ROWS; rows >= ROWS; rows /= 4) { /* the largest fail, and cost nothing but the error */
        failures += step(dev, w, rows) == KL_ERR_MEMORY;
        steps++;
    }
    kl_profile *p = kl_profile_end();
    if (p)
        fputs(kl_profile_table(p), stdout);
    kl_profile_free(p);
    printf("steps: %d\ntoo large: %d\n", steps, failures);
    kl_release(w);
    kl_set_pool(NULL); /* no job of Kiln's is on the host's threads after this */
    pthread_mutex_lock(&jobs.lock);
    jobs.ends = true;
    pthread_cond_broadcast(&jobs.work);
    pthread_mutex_unlock(&jobs.lock);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    return failures < 1 || failures >= steps;
}
