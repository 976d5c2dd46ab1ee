/* Kiln inside another program: threads and log of the host's, limits of memory, forks in the middle of threads, and
 * many threads on one program.  Memory of the host's is tests/runtime/api_failures.c. */
#include "tests/support/api_check.h"
#include "tests/support/deadlines.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 96, STEPS = 12 };

/* A step with products and reductions that assigns w; another program for each factor. */
static kl_status step(kl_device dev, kl_tensor w, int64_t rows, double factor)
{
    kl_trace_begin("embedded");
    kl_tensor x = kl_rand(dev, KL_F32, DIMS(rows, N), 7);
    kl_tensor y = kl_tanh(kl_mul(kl_matmul(x, w), kl_const(dev, KL_F32, factor)));
    kl_tensor g = kl_matmul(kl_transpose(x, 0, 1), y);
    kl_assign(w, kl_sub(w, kl_mul_scalar(g, 1e-3)));
    return kl_trace_end();
}

static kl_tensor make_state(kl_device dev, uint64_t seed)
{
    kl_tensor w = kl_randn(dev, KL_F32, DIMS(N, N), seed);
    kl_tensor half = kl_mul_scalar(w, 0.5);
    static _Thread_local float sink[N * N];
    if (kl_read(half, sink, sizeof sink) != KL_OK)
        return kl_none;
    kl_release(w);
    return half;
}

static bool read_state(kl_tensor w, float *to) { return kl_read(w, to, N * N * sizeof(float)) == KL_OK; }

/* ---- threads of the host's ---- */

struct host {
    atomic_int limit;
    atomic_int runs, parts, wrong;
};
struct host_part { void (*part)(void *, int); void *job; int i; struct host *h; };
static _Thread_local bool in_part;

static void *call_part(void *ctx)
{
    struct host_part *p = ctx;
    bool outer = in_part;
    in_part = true;
    atomic_fetch_add(&p->h->parts, 1);
    p->part(p->job, p->i);
    in_part = outer;
    return NULL;
}

/* A thread a part, the last part in the caller; inside a part one after the other. */
static void host_run(void *ctx, void (*part)(void *, int), void *job, int parts)
{
    struct host *h = ctx;
    struct host_part p[16];
    pthread_t t[16];
    atomic_fetch_add(&h->runs, 1);
    if (parts < 2 || parts > h->limit)
        atomic_fetch_add(&h->wrong, 1);
    for (int i = 0; i < parts; i++)
        p[i] = (struct host_part){part, job, i, h};
    for (int i = 0; i < parts; i++)
        if (in_part || i == parts - 1 || pthread_create(&t[i], NULL, call_part, &p[i]))
            call_part(&p[i]), p[i].part = NULL;
    for (int i = 0; i < parts; i++)
        if (p[i].part)
            pthread_join(t[i], NULL);
}

static kl_device device;
struct stepper { uint64_t seed; double factor; int steps; bool ok; float end[N * N]; };

static void *step_thread(void *ctx)
{
    struct stepper *s = ctx;
    kl_tensor w = make_state(device, s->seed);
    s->ok = true;
    for (int i = 0; i < s->steps; i++)
        s->ok &= step(device, w, N, s->factor) == KL_OK;
    s->ok &= read_state(w, s->end);
    kl_release(w);
    return NULL;
}

static void test_pool(kl_device dev)
{
    bool compiled = strcmp(kl_device_name(dev), "ref") != 0;
    static float want[N * N], have[N * N];
    struct host h = {.limit = 4};
    kl_pool pool = {host_run, 4, &h};
    kl_tensor a = make_state(dev, 1), b = make_state(dev, 1), c = make_state(dev, 1);
    for (int i = 0; i < 3; i++)
        OK(step(dev, a, N, 0.25));
    CHECK(read_state(a, want));
    OK(kl_set_pool(&pool));
    pool = (kl_pool){0}; /* it was copied */
    for (int i = 0; i < 3; i++)
        OK(step(dev, b, N, 0.25));
    CHECK(read_state(b, have) && !memcmp(want, have, sizeof want));
    CHECK(!compiled || (atomic_load(&h.runs) > 0 && atomic_load(&h.parts) >= 2 * atomic_load(&h.runs)));
    int64_t threads;
    OK(kl_get_option("threads", &threads));
    CHECK(threads == 4);
    OK(kl_set_option("threads", 2));
    h.limit = 2;
    OK(step(dev, b, N, 0.125)); /* compiled on it, too */
    OK(kl_set_option("threads", 0));
    h.limit = 4;
    static struct stepper s[3]; /* several threads on it at once */
    pthread_t t[3];
    device = dev;
    for (int i = 0; i < 3; i++) {
        s[i] = (struct stepper){.seed = 1, .factor = 0.25, .steps = 3};
        pthread_create(&t[i], NULL, step_thread, &s[i]);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(t[i], NULL);
        CHECK(s[i].ok && !memcmp(s[i].end, want, sizeof want));
    }
    OK(kl_set_pool(NULL));
    CHECK(!atomic_load(&h.wrong));
    int runs = atomic_load(&h.runs);
    for (int i = 0; i < 3; i++)
        OK(step(dev, c, N, 0.25));
    CHECK(read_state(c, have) && !memcmp(want, have, sizeof want) && atomic_load(&h.runs) == runs);
    CHECK(kl_set_pool(&(kl_pool){NULL, 4, NULL}) == KL_ERR_ARGUMENT);
    CHECK(kl_set_pool(&(kl_pool){host_run, 0, &h}) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "0 threads"));
    kl_release(a), kl_release(b), kl_release(c);
}

/* ---- loops of the program's own ---- */

static atomic_int loop_calls;
static void count_each(void *ctx, int64_t begin, int64_t end)
{
    atomic_fetch_add(&loop_calls, 1);
    for (int64_t i = begin; i < end; i++)
        ((uint8_t *)ctx)[i]++;
}

static bool each_is(const uint8_t *v, int64_t n, uint8_t value)
{
    int64_t right = 0;
    while (right < n && v[right] == value)
        right++;
    return right == n;
}

static void test_loops(void)
{
    enum { MANY = 100003 };
    static uint8_t v[MANY];
    struct host h = {.limit = 3};
    memset(v, 0, sizeof v);
    atomic_store(&loop_calls, 0);
    OK(kl_set_option("threads", 2));
    OK(kl_parallel(MANY, 1, count_each, v));
    CHECK(each_is(v, MANY, 1) && atomic_load(&loop_calls) > 1);
    OK(kl_set_option("threads", 0));
    OK(kl_set_pool(&(kl_pool){host_run, 3, &h}));
    OK(kl_parallel(MANY, 1000, count_each, v));
    CHECK(each_is(v, MANY, 2) && atomic_load(&h.runs) == 1 && atomic_load(&h.parts) == 3 && !atomic_load(&h.wrong));
    atomic_store(&loop_calls, 0);
    OK(kl_parallel(MANY, MANY, count_each, v)); /* not worth two threads */
    CHECK(each_is(v, MANY, 3) && atomic_load(&h.runs) == 1 && atomic_load(&loop_calls) >= 1);
    OK(kl_set_pool(NULL));
    OK(kl_parallel(0, 1, count_each, NULL));
    FAILS(kl_parallel(-1, 1, count_each, v), KL_ERR_ARGUMENT, "parallel: -1 iterations");
    FAILS(kl_parallel(1, 0, count_each, v), KL_ERR_ARGUMENT, "at least 0 a thread");
    FAILS(kl_parallel(1, 1, NULL, v), KL_ERR_ARGUMENT, "part is NULL");
    CHECK(each_is(v, MANY, 3));
}

/* ---- the log ---- */

struct messages { pthread_mutex_t lock; int n[KL_LOG_NONE], lines; char text[1 << 16]; };

static void note(void *ctx, kl_log_level level, const char *message)
{
    struct messages *m = ctx;
    pthread_mutex_lock(&m->lock);
    m->n[level]++;
    m->lines += strchr(message, '\n') != NULL;
    size_t at = strlen(m->text);
    snprintf(m->text + at, sizeof m->text - at, "%s: %s\n", kl_log_level_name(level), message);
    pthread_mutex_unlock(&m->lock);
}

static void test_log(kl_device dev)
{
    bool compiled = strcmp(kl_device_name(dev), "ref") != 0;
    static struct messages m;
    m = (struct messages){.lock = PTHREAD_MUTEX_INITIALIZER};
    char folder[] = "/tmp/kiln-embed-XXXXXX", keep[4096] = "";
    if (getenv("KILN_CACHE_DIR"))
        snprintf(keep, sizeof keep, "%s", getenv("KILN_CACHE_DIR"));
    CHECK(mkdtemp(folder) && !chmod(folder, 0777));
    setenv("KILN_CACHE_DIR", folder, 1);
    OK(kl_set_log(note, &m, KL_LOG_DEBUG));
    kl_tensor w = make_state(dev, 1);
    OK(step(dev, w, N, compiled ? 0.75 : 0.8));
    CHECK(strstr(m.text, "info: graph embedded: a program of") && strstr(m.text, kl_device_name(dev)) &&
          !m.n[KL_LOG_ERROR]);
    CHECK(!compiled || (m.n[KL_LOG_DEBUG] > 0 && strstr(m.text, ": compiled in ")));
    CHECK(kl_matmul(w, kl_none).id && kl_last_error_code() == KL_ERR_HANDLE);
    CHECK(m.n[KL_LOG_ERROR] == 1 && strstr(m.text, "error: ") && strstr(m.text, kl_last_error()));
    static bool told; /* once a process */
    CHECK(told || (m.n[KL_LOG_WARN] == 1 && strstr(m.text, "can be written by others")));
    told = true;
    OK(kl_set_log(note, &m, KL_LOG_ERROR));
    int infos = m.n[KL_LOG_INFO], errors = m.n[KL_LOG_ERROR];
    OK(step(dev, w, N, compiled ? 0.76 : 0.81));
    CHECK(m.n[KL_LOG_INFO] == infos && kl_set_option("nonsense", 1) == KL_ERR_ARGUMENT &&
          m.n[KL_LOG_ERROR] == errors + 1);
    OK(kl_set_log(NULL, NULL, KL_LOG_DEBUG));
    CHECK(!m.lines);
    CHECK(kl_set_option("nonsense", 1) == KL_ERR_ARGUMENT && m.n[KL_LOG_ERROR] == errors + 1);
    CHECK(kl_set_log(note, &m, (kl_log_level)17) == KL_ERR_ARGUMENT &&
          !strcmp(kl_log_level_name((kl_log_level)17), "?"));
    if (*keep)
        setenv("KILN_CACHE_DIR", keep, 1);
    else
        unsetenv("KILN_CACHE_DIR");
    rmdir(folder);
    kl_release(w);
}

/* ---- limits of memory ---- */

static void test_limit(kl_device dev)
{
    static float before[N * N], after[N * N];
    int64_t rows = strcmp(kl_device_name(dev), "ref") ? 32 * 1024 : 4 * 1024, bytes = rows * N * 4;
    kl_memory_use use;
    kl_tensor w = make_state(dev, 3);
    OK(step(dev, w, N, 0.5));
    CHECK(read_state(w, before));
    OK(kl_memory_used(dev, &use));
    CHECK(use.live >= N * N * 4 && use.peak >= use.live && use.limit == 0);
    int64_t limit = use.live + bytes / 8, launches = kl_counter("launches"), wanted = 0, in_use = 0, allowed = 0;
    OK(kl_set_memory_limit(dev, limit));
    OK(kl_memory_used(dev, &use)); /* what was pooled is within it, or gone */
    CHECK(use.limit == limit && use.live + use.pooled <= limit);
    for (int i = 0; i < 2; i++) {
        CHECK(step(dev, w, rows, 0.5) == KL_ERR_MEMORY);
        const char *at = strstr(kl_last_error(), "needs ");
        CHECK(at && sscanf(at, "needs %ld bytes more than the %ld in use; the limit is %ld", &wanted, &in_use,
                           &allowed) == 3);
        CHECK(wanted >= bytes && in_use >= N * N * 4 && in_use < limit && allowed == limit);
    }
    CHECK(kl_counter("launches") == launches && read_state(w, after) && !memcmp(before, after, sizeof before));
    OK(step(dev, w, N, 0.5)); /* a smaller one works */
    CHECK(read_state(w, after) && memcmp(before, after, sizeof before));
    OK(kl_memory_used(dev, &use));
    CHECK(use.live + use.pooled <= limit);
    static float big[1 << 20];
    kl_tensor x = kl_input(dev, KL_F32, DIMS(1 << 20), big);
    CHECK(kl_check(x) == KL_ERR_MEMORY && strstr(kl_last_error(), "the limit is"));
    kl_release(x);
    OK(kl_set_memory_limit(dev, 1)); /* below what there is: that stays */
    CHECK(step(dev, w, N, 0.5) == KL_ERR_MEMORY && read_state(w, before) && !memcmp(before, after, sizeof before));
    OK(kl_set_memory_limit(dev, 0));
    OK(step(dev, w, rows, 0.5));
    kl_memory_trim();
    OK(kl_memory_used(dev, &use));
    CHECK(use.pooled == 0 && use.limit == 0 && use.peak > N * N * 4);
    CHECK(kl_set_memory_limit(dev, -1) == KL_ERR_ARGUMENT && kl_set_memory_limit((kl_device){99}, 1) == KL_ERR_DEVICE);
    CHECK(kl_memory_used(dev, NULL) == KL_ERR_ARGUMENT && kl_memory_used((kl_device){99}, &use) == KL_ERR_DEVICE);
    kl_release(w);
}

/* ---- many threads, one program ---- */

static void test_threads(kl_device dev)
{
    enum { THREADS = 8 };
    static struct stepper s[THREADS], alone[THREADS];
    pthread_t t[THREADS];
    double factor = strcmp(kl_device_name(dev), "ref") ? 0.6 : 0.65;
    device = dev;
    kl_tensor w = make_state(dev, 1);
    OK(step(dev, w, N, 2 * factor)); /* the leaves' programs are there */
    kl_release(w);
    int64_t built = kl_counter("graphs_built");
    for (int i = 0; i < THREADS; i++) {
        s[i] = (struct stepper){.seed = (uint64_t)i, .factor = factor, .steps = STEPS};
        CHECK(!pthread_create(&t[i], NULL, step_thread, &s[i]));
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    CHECK(kl_counter("graphs_built") == built + 1);
    for (int i = 0; i < THREADS; i++) {
        alone[i] = (struct stepper){.seed = (uint64_t)i, .factor = factor, .steps = STEPS};
        step_thread(&alone[i]);
        CHECK(s[i].ok && alone[i].ok && !memcmp(s[i].end, alone[i].end, sizeof s[i].end));
        CHECK(i == 0 || memcmp(s[i].end, s[i - 1].end, sizeof s[i].end));
    }
}

/* ---- fork ---- */

/* TSan's own locks may be held by another thread at the time of a fork, and then for good in the child.  There forks
 * find the threads between their steps: the pool, the code generator and all that is shared are unchanged.  (ASan's
 * allocator is one such lock, which the threads of the pool take, too.) */
#if !defined(KILN_ASAN)
static atomic_bool stop;
static kl_tensor shared_state[3];
#if defined(KILN_TSAN)
static pthread_rwlock_t stepping = PTHREAD_RWLOCK_INITIALIZER;
#endif

static kl_status step_apart(kl_tensor w, double factor)
{
#if defined(KILN_TSAN)
    pthread_rwlock_rdlock(&stepping);
    kl_status status = step(device, w, N, factor);
    pthread_rwlock_unlock(&stepping);
    usleep(300); /* or forks would never have their turn */
    return status;
#else
    return step(device, w, N, factor);
#endif
}

static pid_t fork_apart(void)
{
#if defined(KILN_TSAN)
    pthread_rwlock_wrlock(&stepping);
#endif
    pid_t pid = fork();
#if defined(KILN_TSAN)
    if (pid)
        pthread_rwlock_unlock(&stepping);
#endif
    return pid;
}

/* Steps on a state of its own and, now and then, a program that has to be compiled. */
static void *busy(void *ctx)
{
    int which = (int)(intptr_t)ctx;
    for (int i = 0; !atomic_load(&stop); i++)
        if (step_apart(shared_state[which], i % 8 ? 0.5 : 1 + which + i / 8 * 4e-3) != KL_OK)
            return ctx;
    return &stop;
}

/* In the child: everything works, but for states that were being written, which say so. */
static int child(int number, const float *want)
{
    static float have[N * N];
    static float w3[N * N];
    end_when_stuck();
#if defined(KILN_TSAN) /* takes a child's threads for those of its parent that had their numbers, and stops it */
    if (kl_set_option("threads", 1) != KL_OK)
        return 9;
#endif
    kl_tensor w = make_state(device, 9);
    for (int i = 0; i < 3; i++)
        if (step(device, w, N, 0.5) != KL_OK)
            return 2;
    if (!read_state(w, have) || memcmp(have, want, sizeof have))
        return 3;
    if (step(device, w, N, 0.9 + 1e-3 * number) != KL_OK) /* compiled by the child */
        return 4;
    for (int i = 0; i < 3; i++) {
        bool lost = !read_state(shared_state[i], w3);
        if (lost && (kl_last_error_code() != KL_ERR_HANDLE || !strstr(kl_last_error(), "was forked")))
            return 5;
        if (!lost && step(device, shared_state[i], N, 0.5) != KL_OK)
            return 6;
        if (kl_release(shared_state[i]) != KL_OK)
            return 7;
    }
#if !defined(KILN_TSAN)
    static struct stepper s;
    pthread_t t;
    s = (struct stepper){.seed = 9, .factor = 0.5, .steps = 3};
    if (pthread_create(&t, NULL, step_thread, &s) || pthread_join(t, NULL) || !s.ok ||
        memcmp(s.end, want, sizeof s.end))
        return 8;
#endif
    return 0;
}

static void test_fork(kl_device dev)
{
#if defined(KILN_TSAN)
    enum { FORKS = 4 };
#else
    enum { FORKS = 12 };
#endif
    static float want[N * N];
    pthread_t t[3];
    device = dev;
    atomic_store(&stop, false);
    OK(kl_set_option("threads", 2));
    kl_tensor w = make_state(dev, 9);
    for (int i = 0; i < 3; i++)
        OK(step(dev, w, N, 0.5));
    CHECK(read_state(w, want));
    for (int i = 0; i < 3; i++) {
        shared_state[i] = make_state(dev, 20 + (uint64_t)i);
        CHECK(!pthread_create(&t[i], NULL, busy, (void *)(intptr_t)i));
    }
    fflush(stdout);
    for (int i = 0; i < FORKS; i++) {
        usleep(1000 * (1 + i % 5));
        pid_t pid = fork_apart();
        if (!pid)
            _exit(child(i, want));
        int status = -1;
        bool ok = pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status);
        if (!CHECK(ok))
            printf("  fork %d: status %x\n", i, (unsigned)status);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++) {
        void *end;
        CHECK(!pthread_join(t[i], &end) && end == &stop);
        kl_release(shared_state[i]);
    }
    OK(kl_set_option("threads", 0));
    kl_release(w);
}
#endif

static void test_all(kl_device dev)
{
    test_log(dev);
    test_pool(dev);
    test_loops();
    test_limit(dev);
    test_threads(dev);
#if !defined(KILN_ASAN)
    test_fork(dev);
#endif
}

/* What the environment says and Kiln does not understand is said once. */
static void test_environment(void)
{
    static struct messages m = {.lock = PTHREAD_MUTEX_INITIALIZER};
    kl_last_error(); /* the thread is known from here on */
    const char *given = getenv("KILN_THREADS");
    char keep[32];
    snprintf(keep, sizeof keep, "%s", given ? given : "");
    setenv("KILN_THREADS", "abc", 1);
    setenv("KILN_THREAD", "2", 1);
    OK(kl_set_log(note, &m, KL_LOG_ERROR));
    CHECK(!m.lines);
    OK(kl_set_log(note, &m, KL_LOG_WARN));
    CHECK(m.n[KL_LOG_WARN] == 2 && strstr(m.text, "KILN_THREADS=abc: it is not a number from 1 to") &&
          strstr(m.text, "KILN_THREAD is no variable that Kiln reads"));
    OK(kl_set_log(note, &m, KL_LOG_WARN));
    CHECK(m.n[KL_LOG_WARN] == 2);
    OK(kl_set_log(NULL, NULL, KL_LOG_NONE));
    if (given)
        setenv("KILN_THREADS", keep, 1);
    else
        unsetenv("KILN_THREADS");
    unsetenv("KILN_THREAD");
    CHECK(kl_set_memory(NULL) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "set_memory: a function is NULL"));
}

int main(void)
{
    test_environment();
    return on_devices(test_all);
}
