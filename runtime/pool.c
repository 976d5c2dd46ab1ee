/* The thread pool: fork and join over ranges.
 *
 * Each worker has one word on its own cache line.  The caller stores WORK in it; the worker changes WORK to RUNNING
 * when it begins its share and stores IDLE when the share is done.  A waiting thread spins for a short time before it
 * sleeps on the word (futex).  A thread that begins wakes two that sleep, so that the caller makes two system calls,
 * not one for each.  The last worker to finish sets the caller's word.  When the caller has finished its own
 * share, it takes back the shares that no worker has begun (WORK to IDLE) and runs them itself: a worker that is slow
 * to wake, or whose processor is busy, does not delay a short job.  Workers start with the first job that has work for
 * them and stay.  The division into shares depends only on the extent and the number of workers; each share has its
 * own scratch memory, whichever thread runs it.
 *
 * Processors are not equally fast: another program, another guest of the machine or memory slows some down for a while.
 * So a worker takes its share of a movable part in pieces from the front, and workers that have finished theirs take
 * halves of what others have not begun (work stealing, Blumofe and Leiserson 1999). */
#define _GNU_SOURCE
#include "float_env.h"
#include "processors.h"
#include "runtime.h"
#include "thread.h"
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 50000 };
enum { IDLE, WORK, RUNNING, EXIT, ASLEEP }; /* ASLEEP: idle, and must be woken by a futex call */

struct worker {
    _Alignas(64) atomic_uint word;
    unsigned index;
    int processor;         /* that it is pinned to; -1: none */
    pthread_t thread;
    _Alignas(64) _Atomic(uint64_t) range; /* of a movable part: begin << 32 | end of what nobody has taken */
};

static struct {
    pthread_mutex_t owner; /* held by the caller whose job is being shared out; guards the fields below */
    unsigned started;      /* number of workers, the caller included */
    int left;              /* a processor without a worker, for the caller; -1: unknown */
    pool_part_fn *fn;
    void *ctx;
    const struct pool_part *part;
    uint32_t parts;
    unsigned shares;
    bool movable;          /* the only part is, and has fewer than 2^32 iterations */
    _Alignas(64) atomic_uint sleepers, woken; /* their number; how many of them, in this order, are being woken */
    _Alignas(64) atomic_uint pending; /* shares not finished yet, except share 0, which the caller runs */
    _Alignas(64) atomic_uint done;    /* the caller's word: WORK once pending is 0 */
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER, .started = 1};

static struct worker workers[POOL_MAX_THREADS]; /* of workers[0], the caller, only the range is used */
static unsigned short asleep[POOL_MAX_THREADS]; /* workers with a share that slept when it was posted, as the job */
static atomic_uint wanted;                 /* pool_set_threads; 0: the default */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static unsigned processors = 1;            /* number that this process may use */
static unsigned default_threads = 1;
static struct processors order;            /* in which workers get processors; found when the first worker starts */
/* the host's pool; threads 0: none; guarded by host_lock, which is held while a job runs on it */
static kl_pool host;
static pthread_rwlock_t host_lock = PTHREAD_RWLOCK_INITIALIZER;
static atomic_uint host_threads;           /* a copy of host.threads */
static atomic_bool may_spin;               /* false with more workers than processors: spinning would only delay them */

/* The iterations of a part that are a worker's share, if it has one. */
static void find_share(const struct pool_part *part, unsigned shares, unsigned worker, int64_t *begin, int64_t *end)
{
    int64_t each = shares == 1 ? part->extent : part->extent / shares, rest = part->extent - each * shares;
    *begin = worker * each + (worker < rest ? worker : rest);
    *end = *begin + each + (worker < rest);
}

/* Runs a worker's shares of all parts, which are cut for `shares` workers. */
static void run_here(pool_part_fn *fn, void *ctx, const struct pool_part *part, uint32_t n, unsigned shares,
                     unsigned worker)
{
    fp_env env = fp_enter();
    for (uint32_t i = 0; i < n; i++) {
        unsigned own = pool_shares(&part[i], shares);
        int64_t begin, end;
        if (worker >= own) continue;
        find_share(&part[i], own, worker, &begin, &end);
        fn(ctx, i, begin, end, worker);
    }
    fp_leave(env);
}

/* ---- waiting and waking ---- */
static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void cpu_relax(void)
{
#if defined(__SSE__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until the word is no longer IDLE and returns it. */
static unsigned wait_for(atomic_uint *word)
{
    unsigned v = atomic_load_explicit(word, memory_order_acquire);
    if (v == IDLE && atomic_load_explicit(&may_spin, memory_order_relaxed)) {
        int64_t until = now_ns() + SPIN_NS;
        do {
            for (int i = 0; i < 16 && v == IDLE; i++) {
                cpu_relax();
                v = atomic_load_explicit(word, memory_order_acquire);
            }
        } while (v == IDLE && now_ns() < until);
    }
    if (v != IDLE && v != ASLEEP) return v;
    unsigned idle = IDLE; /* ASLEEP: the caller took back a share from a sleeping worker, which something else woke */
    if (v == IDLE && !atomic_compare_exchange_strong(word, &idle, ASLEEP)) return idle;
    while ((v = atomic_load_explicit(word, memory_order_acquire)) == ASLEEP)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, ASLEEP, NULL, NULL, 0);
    return v;
}

static void wake_worker(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }

static void pool_post(atomic_uint *word, unsigned v)
{
    if (atomic_exchange(word, v) == ASLEEP) wake_worker(word);
}

/* The next worker that sleeps with a share, which the caller of this is to wake or to relieve of it; 0: none. */
static unsigned next_sleeper(void)
{
    unsigned all = atomic_load_explicit(&pool.sleepers, memory_order_acquire);
    if (atomic_load_explicit(&pool.woken, memory_order_relaxed) >= all) return 0;
    unsigned i = atomic_fetch_add(&pool.woken, 1);
    return i < all ? asleep[i] : 0;
}

static void wake_two(void)
{
    for (unsigned n = 0, i; n < 2 && (i = next_sleeper()); n++) wake_worker(&workers[i].word);
}

static void post_shares(unsigned shares)
{
    unsigned n = 0;
    atomic_store_explicit(&pool.sleepers, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.woken, 0, memory_order_relaxed);
    for (unsigned i = 1; i < shares; i++)
        if (atomic_exchange(&workers[i].word, WORK) == ASLEEP) asleep[n++] = (unsigned short)i;
    atomic_store_explicit(&pool.sleepers, n, memory_order_release);
    wake_two();
}

/* ---- movable parts ---- */
static uint64_t pack_range(uint64_t begin, uint64_t end) { return begin << 32 | end; }

/* The least number of iterations that is taken at once. */
static uint32_t piece_min(void)
{
    enum { PIECES = 8 };
    int64_t n = pool.part->grain / PIECES;
    return n < 1 ? 1 : n > INT32_MAX ? INT32_MAX : (uint32_t)n;
}

/* Takes some iterations that worker i's range has left: a quarter from the front, or half from the back.  false: there
 * are none. */
static bool take_piece(unsigned i, bool front, uint32_t *begin, uint32_t *end)
{
    uint64_t r = atomic_load_explicit(&workers[i].range, memory_order_relaxed), after;
    do {
        uint32_t first = (uint32_t)(r >> 32), last = (uint32_t)r, min = piece_min();
        if (first >= last) return false;
        uint32_t left = last - first, n = front ? left / 4 : left - left / 2;
        n = n > min ? n : min < left ? min : left;
        *begin = front ? first : last - n;
        *end = *begin + n;
        after = front ? pack_range(*end, last) : pack_range(first, *begin);
    } while (!atomic_compare_exchange_weak(&workers[i].range, &r, after));
    return true;
}

/* Makes half of what another worker has left the range of worker i, whose own is empty.  false: nobody has any. */
static bool steal_range(unsigned i)
{
    uint32_t begin, end;
    for (unsigned n = 1; n < pool.shares; n++)
        if (take_piece((i + n) % pool.shares, false, &begin, &end)) {
            atomic_store(&workers[i].range, pack_range(begin, end));
            return true;
        }
    return false;
}

static void post_ranges(void)
{
    for (unsigned i = 0; i < pool.shares; i++) {
        int64_t begin, end;
        find_share(pool.part, pool.shares, i, &begin, &end);
        atomic_store_explicit(&workers[i].range, pack_range((uint64_t)begin, (uint64_t)end), memory_order_relaxed);
    }
}

static void run_movable(unsigned worker)
{
    fp_env env = fp_enter();
    uint32_t begin, end;
    do
        while (take_piece(worker, true, &begin, &end)) pool.fn(pool.ctx, 0, begin, end, worker);
    while (steal_range(worker));
    fp_leave(env);
}

/* ---- workers ---- */
static void run_share(unsigned worker)
{
    if (pool.movable)
        run_movable(worker);
    else
        run_here(pool.fn, pool.ctx, pool.part, pool.parts, pool.shares, worker);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    char name[16];
    snprintf(name, sizeof name, "kiln %u", w->index);
    pthread_setname_np(pthread_self(), name);
    while (wait_for(&w->word) != EXIT) {
        unsigned word = WORK;
        if (!atomic_compare_exchange_strong(&w->word, &word, RUNNING)) continue; /* the caller took it back */
        wake_two();
        run_share(w->index);
        atomic_store_explicit(&w->word, IDLE, memory_order_release);
        if (atomic_fetch_sub(&pool.pending, 1) == 1) pool_post(&pool.done, WORK);
    }
    return NULL;
}

/* Runs a worker's share if it has not begun it; `then`: what its word becomes.  true: it was the last share. */
static bool run_share_of(unsigned i, unsigned then)
{
    unsigned word = WORK;
    if (!atomic_compare_exchange_strong(&workers[i].word, &word, then)) return false;
    run_share(i);
    return atomic_fetch_sub(&pool.pending, 1) == 1;
}

/* Runs the shares that no worker has begun, first those of workers that nobody wakes, which sleep on, then the one
 * posted last first; waits for the others. */
static void finish_shares(unsigned shares)
{
    for (unsigned i; (i = next_sleeper());)
        if (run_share_of(i, ASLEEP)) return;
    for (unsigned i = shares; i-- > 1;)
        if (run_share_of(i, IDLE)) return;
    wait_for(&pool.done);
}

/* ---- processors ---- */
static void find_order(void)
{
    cpu_set_t all;
    uint16_t usable[MAX_PROCESSORS];
    unsigned n = 0;
    bool known = !sched_getaffinity(getpid(), sizeof all, &all);
    for (unsigned cpu = 0; known && cpu < CPU_SETSIZE && cpu < MAX_PROCESSORS; cpu++)
        if (CPU_ISSET(cpu, &all)) usable[n++] = (uint16_t)cpu;
    processors_find("/sys/devices/system/cpu", usable, n, &order);
    pool.left = n ? order.at[0] : -1;
}

/* Pins worker i to the i-th processor of the order.  Unpinned threads may share a core for a whole run.  If pinning
 * fails, only speed is lost. */
static void pool_pin_worker(pthread_attr_t *attr, struct worker *w)
{
    cpu_set_t one;
    w->processor = order.n ? order.at[w->index % order.n] : -1;
    if (w->processor < 0) return;
    CPU_ZERO(&one);
    CPU_SET(w->processor, &one);
    pthread_attr_setaffinity_np(attr, sizeof one, &one);
}

/* Is the worker where the caller is: on its processor or, as long as there is a core for each, on its core? */
static bool is_in_the_way(const struct worker *w, int here)
{
    if (w->processor == here) return true;
    return w->processor >= 0 && here < MAX_PROCESSORS && pool.started <= order.cores &&
           order.core[w->processor] == order.core[here];
}

/* A worker that is where the caller runs moves to the processor that the caller has left: two threads would share a
 * processor, or a core, while another one is free. */
static void make_room(unsigned shares)
{
    int here = sched_getcpu();
    if (here < 0 || !atomic_load_explicit(&may_spin, memory_order_relaxed)) return;
    for (unsigned i = 1; i < shares; i++) {
        struct worker *w = &workers[i];
        if (pool.left < 0 || !is_in_the_way(w, here)) continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(pool.left, &one);
        if (!pthread_setaffinity_np(w->thread, sizeof one, &one)) {
            int old = w->processor;
            w->processor = pool.left;
            pool.left = old;
        }
        return;
    }
}

static bool start_worker(unsigned index)
{
    struct worker *w = &workers[index];
    w->index = index;
    atomic_store(&w->word, IDLE);
    pthread_attr_t attr;
    if (pthread_attr_init(&attr)) return false;
    pool_pin_worker(&attr, w);
    bool ok = thread_start(&w->thread, &attr, worker_main, w);
    pthread_attr_destroy(&attr);
    return ok;
}

/* Starts workers up to `need` (fewer if the system refuses) and stops those above `limit`. Called by the owner only. */
static void pool_resize(unsigned need, unsigned limit)
{
    for (; pool.started > limit; pool.started--) {
        struct worker *w = &workers[pool.started - 1];
        pool_post(&w->word, EXIT);
        pthread_join(w->thread, NULL);
    }
    if (pool.started == 1 && need > 1) find_order();
    while (pool.started < need && start_worker(pool.started)) pool.started++;
    atomic_store_explicit(&may_spin, pool.started <= processors, memory_order_relaxed);
}

/* A forked child has none of its parent's workers, and may have a copy of an unfinished job. */
static void after_fork(void)
{
    host_lock = (pthread_rwlock_t)PTHREAD_RWLOCK_INITIALIZER;
    pool.owner = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool.started = 1;
}

unsigned pool_threads_parse(const char *text)
{
    char *end;
    long n = text ? strtol(text, &end, 10) : 0;
    return n > 0 && n <= POOL_MAX_THREADS && !*end ? (unsigned)n : 0;
}

static void pool_initialize(void)
{
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (!sched_getaffinity(getpid(), sizeof set, &set)) processors = (unsigned)CPU_COUNT(&set);
    else if (online > 0) processors = (unsigned)online; /* more than cpu_set_t can represent */
    default_threads = processors;
    unsigned asked = pool_threads_parse(getenv("KILN_THREADS"));
    if (asked) default_threads = asked;
    pthread_atfork(NULL, NULL, after_fork);
}

unsigned pool_threads(void)
{
    pthread_once(&once, pool_initialize);
    unsigned n = atomic_load_explicit(&wanted, memory_order_relaxed);
    unsigned theirs = atomic_load_explicit(&host_threads, memory_order_relaxed);
    if (theirs) return n && n < theirs ? n : theirs;
    return n ? n : default_threads;
}

/* ---- the host's threads: a job is on its caller's stack, so that any number can run concurrently ---- */
struct host_job {
    pool_part_fn *fn;
    void *ctx;
    const struct pool_part *part;
    uint32_t parts;
    unsigned shares;
};

void pool_use(const kl_pool *p)
{
    pool_threads(); /* registers the fork handler for the lock */
    pthread_rwlock_wrlock(&host_lock);
    host = p ? *p : (kl_pool){0};
    atomic_store(&host_threads, (unsigned)host.threads);
    pthread_rwlock_unlock(&host_lock);
    pthread_mutex_lock(&pool.owner);
    if (p) pool_resize(1, 1); /* its own threads have no work */
    pthread_mutex_unlock(&pool.owner);
}

static void host_part(void *job, int i)
{
    const struct host_job *j = job;
    run_here(j->fn, j->ctx, j->part, j->parts, j->shares, (unsigned)i);
}

/* false: there is no host pool any more. */
static bool run_on_host(pool_part_fn *fn, void *ctx, const struct pool_part *part, uint32_t n, unsigned shares)
{
    struct host_job job = {fn, ctx, part, n, shares};
    pthread_rwlock_rdlock(&host_lock);
    bool there = host.threads > 0;
    if (there) host.run(host.ctx, host_part, &job, (int)shares);
    pthread_rwlock_unlock(&host_lock);
    return there;
}

/* Takes effect immediately, or with the next job if one is running. */
void pool_set_threads(unsigned n)
{
    atomic_store(&wanted, n > POOL_MAX_THREADS ? POOL_MAX_THREADS : n);
    n = pool_threads();
    if (pthread_mutex_trylock(&pool.owner)) return;
    pool_resize(1, n);
    pthread_mutex_unlock(&pool.owner);
}

void pool_run_parts(pool_part_fn *fn, void *ctx, const struct pool_part *part, uint32_t n, unsigned max_workers)
{
    unsigned threads = pool_threads(), max = threads < max_workers ? threads : max_workers, shares = 0;
    for (uint32_t i = 0; i < n; i++) {
        unsigned own = pool_shares(&part[i], max);
        shares = own > shares ? own : shares;
    }
    if (!shares) return;
    if (shares > 1 && atomic_load_explicit(&host_threads, memory_order_relaxed) &&
        run_on_host(fn, ctx, part, n, shares)) return;
    if (shares == 1 || pthread_mutex_trylock(&pool.owner)) {
        run_here(fn, ctx, part, n, 1, 0);
        return;
    }
    pool_resize(shares, threads);
    if (shares > pool.started) shares = pool.started;
    pool.fn = fn;
    pool.ctx = ctx;
    pool.part = part;
    pool.parts = n;
    pool.shares = shares;
    pool.movable = shares > 1 && n == 1 && part->movable && part->extent < UINT32_MAX;
    if (shares > 1) {
        make_room(shares);
        if (pool.movable) post_ranges();
        atomic_store_explicit(&pool.done, IDLE, memory_order_relaxed);
        atomic_store_explicit(&pool.pending, shares - 1, memory_order_relaxed);
        post_shares(shares);
    }
    run_share(0);
    if (shares > 1) finish_shares(shares);
    pthread_mutex_unlock(&pool.owner);
}

void pool_run_alone(pool_part_fn *fn, void *ctx, const struct pool_part *part, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (part[i].extent > 0) fn(ctx, i, 0, part[i].extent, 0);
}

struct whole { pool_fn *fn; void *ctx; };

static void run_whole(void *ctx, uint32_t part, int64_t begin, int64_t end, unsigned worker)
{
    (void)part;
    const struct whole *w = ctx;
    w->fn(w->ctx, begin, end, worker);
}

void pool_run_max(pool_fn *fn, void *ctx, int64_t extent, int64_t grain, unsigned max_workers)
{
    struct whole w = {fn, ctx};
    pool_run_parts(run_whole, &w, &(struct pool_part){extent, grain, false}, 1, max_workers);
}

void pool_run(pool_fn *fn, void *ctx, int64_t extent, int64_t grain)
{
    pool_run_max(fn, ctx, extent, grain, UINT32_MAX);
}
