/* The thread pool and the buffers under stress.  Run it under TSan too: what it tests are mostly orders. */
#define _GNU_SOURCE
#include "runtime/processors.h"
#include "tests/support/harness.h"
#include "tests/support/deadlines.h"
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#if defined(KILN_TSAN)
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0:allocator_may_return_null=1"; /* the fork test starts threads in the child */
}
#elif defined(KILN_ASAN)
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1"; /* one test asks for more memory than there is */
}
#endif

/* ---- how a range is shared out ---- */
enum { MAX_SHARES = 64 };
struct share { int64_t begin, end; unsigned worker; };
struct record {
    struct share share[MAX_SHARES];
    atomic_uint n;
};

static void record_share(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    struct record *r = ctx;
    unsigned i = atomic_fetch_add(&r->n, 1);
    if (i < MAX_SHARES)
        r->share[i] = (struct share){begin, end, worker};
}

static int by_begin(const void *a, const void *b)
{
    const struct share *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* The shares of one job, sorted; each worker has at most one and they tile 0..extent. */
static bool shares_of(int64_t extent, int64_t grain, unsigned max, struct record *r)
{
    memset(r, 0, sizeof *r);
    pool_run_max(record_share, r, extent, grain, max);
    if (r->n > MAX_SHARES)
        return false;
    qsort(r->share, r->n, sizeof r->share[0], by_begin);
    int64_t at = 0;
    uint64_t seen = 0;
    for (unsigned i = 0; i < r->n; i++) {
        struct share s = r->share[i];
        if (s.begin != at || s.end <= s.begin || s.worker >= MAX_SHARES || seen >> s.worker & 1)
            return false;
        seen |= (uint64_t)1 << s.worker;
        at = s.end;
    }
    return at == extent;
}

static bool shares_fit(int64_t extent, int64_t grain, unsigned threads, const struct record *r)
{
    int64_t worth = grain > 0 && extent >= grain ? extent / grain : 1;
    unsigned expect = worth < threads ? (unsigned)worth : threads;
    if (r->n != (extent > 0 ? expect : 0))
        return false;
    for (unsigned i = 0; i < r->n; i++) {
        int64_t size = r->share[i].end - r->share[i].begin;
        if (r->share[i].worker != i || size < extent / r->n || size > extent / r->n + 1 || (r->n > 1 && size < grain))
            return false;
    }
    return true;
}

static bool same_shares(const struct record *a, const struct record *b)
{
    bool same = a->n == b->n;
    for (unsigned i = 0; same && i < a->n; i++)
        same = a->share[i].begin == b->share[i].begin && a->share[i].end == b->share[i].end &&
               a->share[i].worker == b->share[i].worker;
    return same;
}

static void test_shares(void)
{
    static const unsigned threads[] = {1, 2, 3, 8};
    static const int64_t extents[] = {-1, 0, 1, 2, 7, 16, 17, 1000, 100003, (int64_t)1 << 60};
    static const int64_t grains[] = {0, 1, 3, 64, 1000000000};
    for (unsigned t = 0; t < 4; t++) {
        pool_set_threads(threads[t]);
        check(pool_threads() == threads[t], "pool_set_threads is what pool_threads tells");
        for (unsigned x = 0; x < sizeof extents / sizeof extents[0]; x++)
            for (unsigned g = 0; g < sizeof grains / sizeof grains[0]; g++) {
                struct record one, two;
                int64_t extent = extents[x] < 0 ? 0 : extents[x];
                check(shares_of(extent, grains[g], MAX_SHARES, &one), "the shares tile the range");
                check(shares_fit(extent, grains[g], threads[t], &one), "even shares of at least the grain, in order");
                check(shares_of(extent, grains[g], MAX_SHARES, &two) && same_shares(&one, &two),
                      "the same shares every time");
                check(shares_of(extent, grains[g], 2, &two) && two.n <= 2, "no more workers than allowed");
            }
    }
}

/* ---- many jobs ---- */
static void add_range(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)worker;
    int64_t sum = 0;
    for (int64_t i = begin; i < end; i++)
        sum += i;
    atomic_fetch_add((atomic_llong *)ctx, sum);
}

static bool sum_is_right(int64_t extent, int64_t grain)
{
    atomic_llong sum = 0;
    pool_run(add_range, &sum, extent, grain);
    return sum == extent * (extent - 1) / 2;
}

static void nap(long us)
{
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static void test_many(void)
{
    bool ok = true;
    for (unsigned threads = 1; threads <= 6; threads++) {
        pool_set_threads(threads);
        for (int i = 0; i < 3000; i++)
            ok &= sum_is_right(1 + i % 100, 1);
    }
    check(ok, "jobs back to back");
    pool_set_threads(3);
    ok = true;
    for (int i = 0; i < 300; i++) { /* pauses around the 50 us after which workers sleep */
        ok &= sum_is_right(100, 1);
        nap(i);
    }
    check(ok, "jobs with pauses");
}

/* A plain array, written by workers and read by the caller: TSan sees a missing order. */
struct square { int64_t in[1000], out[1000]; };
static void square_range(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)worker;
    struct square *s = ctx;
    for (int64_t i = begin; i < end; i++)
        s->out[i] = s->in[i] * s->in[i];
}

static void test_order(void)
{
    static struct square s;
    pool_set_threads(4);
    bool ok = true;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 1000; i++)
            s.in[i] = round + i;
        pool_run(square_range, &s, 1000, 10);
        for (int i = 0; i < 1000; i++)
            ok &= s.out[i] == (int64_t)(round + i) * (round + i);
    }
    check(ok, "what workers wrote is there when the job returns");
}

static void nested_range(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        pool_run(add_range, ctx, 50, 1);
}

static void test_nested(void)
{
    pool_set_threads(4);
    atomic_llong sum = 0;
    pool_run(nested_range, &sum, 40, 1);
    check(sum == 40 * (50 * 49 / 2), "jobs inside jobs");
}

static void resize_inside(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)begin, (void)end, (void)worker;
    pool_set_threads(*(unsigned *)ctx);
}

static void test_resize_inside(void)
{
    for (unsigned n = 1; n <= 5; n++) {
        pool_set_threads(3);
        pool_run(resize_inside, &n, 30, 1);
        struct record r;
        bool ok = pool_threads() == n && shares_of(100, 1, MAX_SHARES, &r) && r.n == n;
        check(ok, "a job sets the number of threads");
    }
}

/* ---- several callers ---- */
static atomic_bool stop;
static void *caller(void *ctx)
{
    bool *ok = ctx;
    static _Thread_local struct square s;
    for (int round = 0; round < 1000; round++) {
        for (int i = 0; i < 1000; i++)
            s.in[i] = i ^ round;
        pool_run(square_range, &s, 1000, 7);
        for (int i = 0; i < 1000; i++)
            *ok &= s.out[i] == (int64_t)(i ^ round) * (i ^ round);
    }
    return NULL;
}

static void *resizer(void *ctx)
{
    (void)ctx;
    for (unsigned n = 1; !atomic_load(&stop); n = n % 6 + 1) {
        pool_set_threads(n);
        nap(100);
    }
    return NULL;
}

static void test_callers(void)
{
    pthread_t thread[4], changer;
    bool ok[4] = {true, true, true, true};
    atomic_store(&stop, false);
    pthread_create(&changer, NULL, resizer, NULL);
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, caller, &ok[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    atomic_store(&stop, true);
    pthread_join(changer, NULL);
    check(ok[0] && ok[1] && ok[2] && ok[3], "four callers while the number of threads changes");
}

/* ---- fork ---- */
static void *busy_caller(void *ctx)
{
    (void)ctx;
    while (!atomic_load(&stop))
        sum_is_right(10000, 1);
    return NULL;
}

static bool child_works(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct record r;
        struct err e = {0};
        end_when_stuck(); /* a pool that waits for workers it does not have */
        struct buffer *b = buffer_new(DEVICE_CPU, 1000, &e);
        buffer_unref(b);
        bool ok = b && sum_is_right(1000, 1) && shares_of(100, 1, MAX_SHARES, &r) && r.n == 3;
        _exit(ok ? 0 : 1);
    }
    int status = -1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static void *hold_number(void *ctx)
{
    pthread_barrier_wait(ctx);
    return NULL;
}

/* Starts the pool's workers.  qemu-user numbers the threads that a child of fork starts from 1 again, and fails its own
 * assertion where a worker of the parent has that number: there the workers have numbers above those of threads that
 * have ended. */
static void start_workers(void)
{
    enum { HELD = 8 };
    const char *emulator = getenv("KILN_TEST_EMULATOR");
    pthread_t thread[HELD];
    pthread_barrier_t held;
    if (!emulator || !*emulator) {
        pool_set_threads(3);
        return;
    }
    pthread_barrier_init(&held, NULL, HELD + 1);
    pool_set_threads(1);
    for (int i = 0; i < HELD; i++)
        pthread_create(&thread[i], NULL, hold_number, &held);
    pool_set_threads(3);
    check(sum_is_right(1000, 1), "workers start");
    pthread_barrier_wait(&held);
    for (int i = 0; i < HELD; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&held);
}

static void test_fork(void)
{
    start_workers();
    check(sum_is_right(1000, 1) && child_works(), "a child has a pool of its own");
    pthread_t thread;
    atomic_store(&stop, false);
    pthread_create(&thread, NULL, busy_caller, NULL);
    bool ok = true;
    for (int i = 0; i < 20; i++)
        ok &= child_works();
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    check(ok, "forks in the middle of another thread's jobs");
    check(sum_is_right(1000, 1), "the parent's pool goes on");
}

/* ---- floating point ---- */
static volatile float one = 1, tiny = 0x1p-40f, denormal = 0x1p-140f, two = 2;

static bool env_is_default(void)
{
    float up = one + tiny, d = denormal * two;
    return up == 1 && d == 0x1p-139f;
}

static void check_env(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)worker;
    if (env_is_default())
        atomic_fetch_add((atomic_llong *)ctx, end - begin);
}

static void test_float_env(void)
{
    fenv_t old;
    fegetenv(&old);
    pool_set_threads(1);
    fesetround(FE_UPWARD);
#if defined(__SSE__)
    _mm_setcsr(_mm_getcsr() | 0x8040); /* denormals are and become zero */
#endif
    pool_set_threads(4); /* the new workers inherit this thread's environment */
    atomic_llong shared = 0, alone = 0;
    bool before = !env_is_default();
    pool_run(check_env, &shared, 40, 1);
    pool_run(check_env, &alone, 40, 0);
    bool after = fegetround() == FE_UPWARD && !env_is_default();
    fesetenv(&old);
    check(before && shared == 40 && alone == 40, "jobs run in the default floating-point environment");
    check(after, "the caller's own comes back");
    check(env_is_default(), "and this test's");
}

static void raise_underflow(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)worker;
    static volatile float result;
    result = denormal * tiny;
    (void)result;
    if (fetestexcept(FE_UNDERFLOW))
        atomic_fetch_add((atomic_llong *)ctx, end - begin);
}

/* Its register is written only where its bits differ: by modes alone, by exceptions alone, by both. */
static void test_float_flags(void)
{
    pool_set_threads(1);
    for (int up = 0; up < 2; up++)
        for (int flags = 0; flags < 4; flags++) {
            fenv_t old;
            const int all = FE_UNDERFLOW | FE_INEXACT | FE_DIVBYZERO;
            const int before = (flags & 1 ? FE_DIVBYZERO : 0) | (flags & 2 ? FE_UNDERFLOW | FE_INEXACT : 0);
            atomic_llong raised = 0;
            fegetenv(&old);
            feclearexcept(FE_ALL_EXCEPT);
            if (before)
                feraiseexcept(before);
            fesetround(up ? FE_UPWARD : FE_TONEAREST);
            pool_run(raise_underflow, &raised, 3, 0);
            int after = fetestexcept(all), mode = fegetround();
            fesetenv(&old);
            check(raised == 3 && after == before && mode == (up ? FE_UPWARD : FE_TONEAREST),
                  "exceptions that a job raises are not its caller's");
        }
}

/* ---- processors ---- */
struct places { cpu_set_t worker[4]; atomic_uint begun; };

/* Waits until all workers have begun: the caller would run the shares of those that have not. */
static void find_processor(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)begin, (void)end;
    struct places *p = ctx;
    sched_getaffinity(0, sizeof p->worker[0], &p->worker[worker]);
    atomic_fetch_add(&p->begun, 1);
    while (atomic_load(&p->begun) < 4)
        sched_yield();
}

static void test_pinning(void)
{
    cpu_set_t all;
    static struct places at;
    const cpu_set_t *worker = at.worker;
    check(!sched_getaffinity(0, sizeof all, &all), "this process's processors");
    int n = CPU_COUNT(&all);
    pool_set_threads(4);
    pool_run(find_processor, &at, 4, 1);
    check(CPU_EQUAL(&worker[0], &all), "the caller is not pinned");
    cpu_set_t any;
    for (int i = 1; i < 4; i++) {
        CPU_AND(&any, &worker[i], &all);
        check(CPU_COUNT(&worker[i]) == 1 && CPU_EQUAL(&any, &worker[i]), "worker i is on one processor");
        for (int k = 1; k < i; k++)
            check(n < 4 || !CPU_EQUAL(&worker[i], &worker[k]), "each on another, where there are enough");
    }
}

/* Writes what Linux says of a processor's core; an empty list: nothing. */
static void write_siblings(const char *folder, unsigned cpu, const char *list)
{
    char path[512];
    snprintf(path, sizeof path, "%s/cpu%u", folder, cpu);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/cpu%u/topology", folder, cpu);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/cpu%u/topology/thread_siblings_list", folder, cpu);
    FILE *f = *list ? fopen(path, "w") : NULL;
    if (check(f || !*list, "%s", path) && f) {
        fprintf(f, "%s\n", list);
        fclose(f);
    }
}

/* Two processors of a core are adjacent, or half of all apart, or nothing is known; the second one of core 1 is not
 * usable. */
static void test_cores(void)
{
    static const struct { const char *list[6]; uint16_t usable[5], order[5]; unsigned cores; } cases[] = {
        {{"0-1", "0-1", "2-3", "2-3", "4-5", "4-5"}, {0, 1, 2, 4, 5}, {0, 2, 4, 1, 5}, 3},
        {{"0,3", "1,4", "2,5", "0,3", "1,4", "2,5"}, {0, 1, 2, 3, 5}, {0, 1, 2, 3, 5}, 3},
        {{"0,3", "1,4", "2,5", "0,3", "1,4", "2,5"}, {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}, 3},
        {{"", "", "", "", "", ""}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}, 5},
        {{"5000", "x", "0-3", "0-3", "0-3", "0-3"}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}, 2},
        {{"0-2", "0-2", "0-2", "3-5", "3-5", "3-5"}, {0, 1, 2, 3, 4}, {0, 3, 1, 4, 2}, 2},
    };
    static struct processors p;
    char folder[] = "/tmp/kiln-cores-XXXXXX", remove[64];
    if (!check(mkdtemp(folder), "a folder in /tmp"))
        return;
    for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++) {
        char at[64];
        snprintf(at, sizeof at, "%s/%u", folder, c);
        mkdir(at, 0700);
        for (unsigned cpu = 0; cpu < 6; cpu++)
            write_siblings(at, cpu, cases[c].list[cpu]);
        processors_find(at, cases[c].usable, 5, &p);
        check(p.n == 5 && p.cores == cases[c].cores, "case %u: %u processors of %u cores", c, p.n, p.cores);
        for (unsigned i = 0; i < 5; i++)
            check(p.at[i] == cases[c].order[i], "case %u: %u is processor %u", c, i, p.at[i]);
    }
    snprintf(remove, sizeof remove, "rm -r %s", folder);
    check(!system(remove), "%s", remove);
}

/* ---- movable ranges ---- */
enum { MOVED = 1 << 14 };
struct moved {
    atomic_uchar runs[MOVED];       /* of each iteration */
    atomic_uint busy[MAX_SHARES];   /* of each worker: it runs a piece */
    _Atomic int64_t slow_ran;       /* iterations that worker 1 has run */
    bool slow;                      /* worker 1 sleeps in each piece */
    atomic_bool clash;              /* two threads were one worker */
};

static void run_piece(void *ctx, uint32_t part, int64_t begin, int64_t end, unsigned worker)
{
    struct moved *m = ctx;
    (void)part;
    if (atomic_fetch_add(&m->busy[worker], 1))
        atomic_store(&m->clash, true);
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add(&m->runs[i], 1);
    if (worker == 1) {
        m->slow_ran += end - begin;
        if (m->slow)
            nap(1000);
    }
    atomic_fetch_sub(&m->busy[worker], 1);
}

static bool each_runs_once(struct moved *m, int64_t extent, int64_t grain)
{
    struct pool_part part = {extent, grain, true};
    memset(m->runs, 0, sizeof m->runs);
    m->slow_ran = 0;
    pool_run_parts(run_piece, m, &part, 1, MAX_SHARES);
    for (int64_t i = 0; i < MOVED; i++)
        if (m->runs[i] != (i < extent))
            return false;
    return !m->clash;
}

static void test_movable(void)
{
    static struct moved m;
    static const unsigned threads[] = {1, 2, 3, 8, 33};
    for (unsigned t = 0; t < sizeof threads / sizeof *threads; t++) {
        pool_set_threads(threads[t]);
        for (int64_t extent = 0; extent <= MOVED; extent = extent * 3 + 1)
            for (int64_t grain = 0; grain <= 1000; grain = grain * 5 + 1)
                check(each_runs_once(&m, extent, grain), "%u threads: each of %d iterations, %d worth a thread, once",
                      threads[t], (int)extent, (int)grain);
    }
    /* worker 1 sleeps in each of its pieces: the others run most of its share */
    pool_set_threads(2);
    m.slow = true;
    check(each_runs_once(&m, MOVED, 1) && m.slow_ran < MOVED / 2, "a slow worker keeps %d of %d iterations",
          (int)m.slow_ran, MOVED / 2);
}

/* ---- shares that no worker has begun ---- */
struct begun { pthread_t caller; atomic_uint taken_back; };

static void note_taken_back(void *ctx, int64_t begin, int64_t end, unsigned worker)
{
    (void)begin, (void)end;
    struct begun *b = ctx;
    if (worker && pthread_equal(pthread_self(), b->caller))
        atomic_fetch_add(&b->taken_back, 1);
}

static void test_slow_workers(void)
{
    struct begun b = {.caller = pthread_self()};
    pool_set_threads(3);
    /* how soon the workers wake is the system's choice: beside other programs once in a few thousand runs may be all */
    for (int i = 0; i < 1000 || (i < 100000 && !b.taken_back); i++) {
        pool_run(note_taken_back, &b, 3, 1);
        if (i % 10 == 0)
            nap(200); /* the workers sleep */
    }
    check(b.taken_back > 0, "the caller runs shares of workers that are slow to wake");
}

/* The caller moves to the worker's processor: the worker makes room. */
static void test_make_room(void)
{
    cpu_set_t all, here;
    static struct places at;
    sched_getaffinity(0, sizeof all, &all);
    pool_set_threads(2);
    for (int cpu = 0, moved = 0; cpu < CPU_SETSIZE && moved < 3 && CPU_COUNT(&all) > 1; cpu++) {
        if (!CPU_ISSET(cpu, &all))
            continue;
        CPU_ZERO(&here);
        CPU_SET(cpu, &here);
        check(!pthread_setaffinity_np(pthread_self(), sizeof here, &here), "the caller moves");
        at.begun = 2; /* it waits for the worker, the only other here */
        pool_run(find_processor, &at, 2, 1);
        check(!CPU_ISSET(cpu, &at.worker[1]), "the worker is on another processor");
        moved++;
    }
    pthread_setaffinity_np(pthread_self(), sizeof all, &all);
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void test_sleep(void)
{
    pool_set_threads(2);
    sum_is_right(100, 1);
    double before = cpu_seconds();
    nap(300000);
    check(cpu_seconds() - before < 0.1, "idle workers sleep");
}

/* A process of its own: KILN_THREADS is read once.  Its exit status is the number of threads. */
static unsigned threads_with(const char *env)
{
    pid_t pid = fork();
    if (pid == 0) {
        setenv("KILN_THREADS", env, 1);
        execl("/proc/self/exe", "pool", "--threads", (char *)NULL);
        _exit(255);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? (unsigned)WEXITSTATUS(status) : 255;
}

static void test_options(void)
{
    cpu_set_t all;
    sched_getaffinity(0, sizeof all, &all);
    unsigned n = (unsigned)CPU_COUNT(&all);
    check(threads_with("3") == 3 && threads_with("1") == 1, "KILN_THREADS");
    check(threads_with("") == n && threads_with("0") == n && threads_with("2x") == n, "a useless KILN_THREADS is none");
    struct err e = {0};
    int64_t v = -1;
    check(option_set("threads", 5, &e) && option_get("threads", &v, &e) && v == 5, "option threads");
    check(option_set("threads", 0, &e) && option_get("threads", &v, &e) && v > 0, "option threads 0: the default");
    check(!option_set("threads", -1, &e) && e.code == KL_ERR_ARGUMENT && strstr(e.msg, "-1"), "threads -1");
    e = (struct err){0};
    check(!option_set("speed", 1, &e) && strstr(e.msg, "speed") && strstr(e.msg, "threads"), "an unknown option");
    e = (struct err){0};
    bool fuse = option_fuse();
    check(option_set("fuse", !fuse, &e) && option_fuse() == !fuse && option_set("fuse", fuse, &e), "option fuse");
    check(!option_set("fuse", 2, &e) && e.code == KL_ERR_ARGUMENT, "fuse 2");
}

/* ---- buffers ---- */
static void test_buffer_sizes(void)
{
    struct buffer_stats start = buffer_stats(DEVICE_CPU);
    static const size_t sizes[] = {0, 1, 63, 64, 191, 192, 193, 1000, 4096, 100000, 1 << 20, (1 << 24) + 1};
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct err e = {0};
        struct buffer *b = buffer_new(DEVICE_CPU, sizes[i], &e);
        if (!check(b && b->bytes == sizes[i] && (uintptr_t)b->data % 64 == 0 && buffer_exclusive(b), "a new buffer"))
            continue;
        memset(b->data, 0x5a, sizes[i] + 64); /* 64 bytes past the end may be touched: ASan watches */
        void *data = b->data;
        check(buffer_stats(DEVICE_CPU).live >= start.live + sizes[i], "live bytes count it");
        check(buffer_ref(b) == b && !buffer_exclusive(b), "a second reference");
        buffer_unref(b);
        check(buffer_exclusive(b), "one reference again");
        buffer_unref(b);
        check(buffer_stats(DEVICE_CPU).live == start.live, "live bytes after it");
        b = buffer_new(DEVICE_CPU, sizes[i], &e);
        check(b && b->data == data, "its memory comes back");
        buffer_unref(b);
    }
    buffer_unref(NULL);
    check(buffer_stats(DEVICE_CPU).pooled > 0 && buffer_stats(DEVICE_CPU).peak >= (1 << 24) + 1,
          "pooled and peak bytes");
    buffer_trim();
    check(buffer_stats(DEVICE_CPU).pooled == 0, "nothing pooled after a trim");
}

static void count_release(void *ctx) { ++*(int *)ctx; }

static void test_buffer_wrap(void)
{
    struct err e = {0};
    int released = 0;
    char mine[10];
    struct buffer *b = buffer_wrap(DEVICE_REF, mine, sizeof mine, count_release, &released, &e);
    check(b && b->data == mine && b->bytes == 10 && b->device == DEVICE_REF, "a wrapped buffer");
    buffer_ref(b);
    buffer_unref(b);
    check(released == 0, "not released while in use");
    buffer_unref(b);
    check(released == 1, "released once");
}

static void test_buffer_too_large(void)
{
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 8, (size_t)1 << 60, (size_t)1 << 50};
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct err e = {0};
        char digits[32];
        snprintf(digits, sizeof digits, "%zu", sizes[i]);
        struct buffer *b = buffer_new(DEVICE_CPU, sizes[i], &e);
        check(!b && e.code == KL_ERR_MEMORY && strstr(e.msg, digits) && strstr(e.msg, "cpu"), "too large a buffer");
    }
}

static void *buffer_user(void *ctx)
{
    bool *ok = ctx;
    struct buffer *held[16] = {0};
    struct err e = {0};
    unsigned seed = (unsigned)(uintptr_t)ctx;
    for (int i = 0; i < 20000; i++) {
        struct buffer **b = &held[rand_r(&seed) % 16];
        if (*b) {
            uint32_t first = *(uint32_t *)(*b)->data;
            *ok &= first == ((uint32_t *)(*b)->data)[(*b)->bytes / 4 - 1];
            buffer_unref(*b);
            *b = NULL;
        } else if ((*b = buffer_new(DEVICE_CPU, 4 + 4 * (size_t)(rand_r(&seed) % 5000), &e))) {
            uint32_t mark = seed;
            ((uint32_t *)(*b)->data)[(*b)->bytes / 4 - 1] = mark;
            *(uint32_t *)(*b)->data = mark;
        } else {
            *ok = false;
        }
        if (i % 5000 == 0)
            buffer_trim();
    }
    for (int i = 0; i < 16; i++)
        buffer_unref(held[i]);
    return NULL;
}

static void test_buffer_threads(void)
{
    struct buffer_stats start = buffer_stats(DEVICE_CPU);
    pthread_t thread[4];
    bool ok[4] = {true, true, true, true};
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, buffer_user, &ok[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    check(ok[0] && ok[1] && ok[2] && ok[3], "no two buffers share memory");
    check(buffer_stats(DEVICE_CPU).live == start.live, "all buffers given back");
    buffer_trim();
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--threads"))
        return (int)pool_threads();
    test_cores();
    test_pinning(); /* first: no other thread's affinity is inherited yet */
    test_shares();
    test_many();
    test_order();
    test_movable();
    test_slow_workers();
    test_make_room();
    test_nested();
    test_resize_inside();
    test_callers();
    test_fork();
    test_float_env();
    test_float_flags();
    test_sleep();
    if (argc < 2 || strcmp(argv[1], "one-process")) /* under an emulator a program cannot start itself again */
        test_options();
    test_buffer_sizes();
    test_buffer_wrap();
    test_buffer_too_large();
    test_buffer_threads();
    pool_set_threads(1);
    return finish();
}
