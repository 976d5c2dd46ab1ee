/* Option "program_bytes": programs and kernels in memory are bounded, those go that ran longest ago, none goes that is
 * in use, and one that comes again is built again and says why. api_evict [SHAPES [DEVICE]]    so many shapes instead
 * of a few; another device, too */
#include "tests/support/api_check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { SMALL = 400 << 10, DEFAULT = 256 << 20 };

/* ---- bytes that Kiln has of the host's memory, and allocations that fail ---- */

static atomic_size_t live;
static atomic_long until_failure = -1; /* allocations that succeed before one fails; -1: all do */

static void *take(void *ctx, size_t bytes)
{
    (void)ctx;
    if (atomic_load(&until_failure) >= 0 && atomic_fetch_sub(&until_failure, 1) == 0)
        return NULL;
    size_t *p = malloc(bytes + 16);
    if (p) {
        *p = bytes;
        atomic_fetch_add(&live, bytes);
    }
    return p ? (char *)p + 16 : NULL;
}

static void give(void *ctx, void *p)
{
    (void)ctx;
    if (!p)
        return;
    size_t *block = (void *)((char *)p - 16);
    atomic_fetch_sub(&live, *block);
    free(block);
}

static void *take_more(void *ctx, void *p, size_t bytes)
{
    if (!p)
        return take(ctx, bytes);
    void *more = take(ctx, bytes);
    if (more) {
        size_t old = *(size_t *)(void *)((char *)p - 16);
        memcpy(more, p, old < bytes ? old : bytes);
        give(ctx, p);
    }
    return more;
}

/* ---- traces of any number of shapes ---- */

static const float ones[1 << 17] = {1, 1, 1, 1};

/* Twice the first of some numbers, which is 1, plus `add`, by a trace of shape number n; NAN: an error. */
static double twice(kl_device dev, const char *name, int64_t n, double add)
{
    int64_t rows = 1 + n / 300, columns = 1 + n % 300;
    size_t bytes = (size_t)(rows * columns) * sizeof(float);
    kl_trace_begin(name);
    kl_tensor x = kl_input(dev, KL_F32, DIMS(rows, columns), ones), y = kl_keep(kl_add_scalar(kl_add(x, x), add));
    float *got = malloc(bytes);
    kl_status status = kl_trace_end();
    bool ok = !status && got && kl_read(y, got, bytes) == KL_OK;
    double first = ok ? (double)got[0] : NAN;
    if (!status)
        kl_release(y);
    free(got);
    return first;
}

static int64_t evicted(void) { return kl_counter("programs_evicted"); }

static void test_option(void)
{
    int64_t v = 0;
    CHECK(kl_get_option("program_bytes", &v) == KL_OK && v == DEFAULT);
    CHECK(kl_set_option("program_bytes", -1) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "program_bytes"));
    CHECK(kl_get_option("program_bytes", &v) == KL_OK && v == DEFAULT);
    CHECK(evicted() == 0 && kl_counter("kernels_evicted") == 0);
}

/* Memory is flat however many shapes there are, and every result is right. */
static void test_shapes(kl_device dev, int shapes)
{
    OK(kl_set_option("program_bytes", SMALL));
    size_t early = 0, max = 0;
    int wrong = 0;
    /* large and small ones in both halves: arrays that are released stay in a pool */
    for (int i = 1; i <= shapes; i++) {
        wrong += twice(dev, "shapes", 1 + (int64_t)i * 7919 % shapes, 0.5) != 2.5;
        size_t now = atomic_load(&live);
        if (i <= shapes / 2)
            early = now > early ? now : early;
        else
            max = now > max ? now : max;
    }
    CHECK(wrong == 0);
    if (!CHECK(max <= early + early / 4))
        printf("    at most %zu bytes in the first half, %zu in the second\n", early, max);
    CHECK(evicted() > shapes / 2);
    OK(kl_set_option("program_bytes", DEFAULT));
}

/* The one that ran longest ago goes first; one that is built again says that it was evicted. */
static void test_order(kl_device dev)
{
    OK(kl_set_option("program_bytes", 0));
    OK(kl_set_option("program_bytes", SMALL));
    int64_t before = evicted();
    CHECK(twice(dev, "old", 501, 1) == 3 && twice(dev, "often", 502, 2) == 4);
    for (int n = 1; n <= 400 && evicted() < before + 20; n++)
        CHECK(twice(dev, "filler", n, 3) == 5 && twice(dev, "often", 502, 2) == 4);
    int64_t built = kl_counter("graphs_built");
    CHECK(twice(dev, "often", 502, 2) == 4 && kl_counter("graphs_built") == built);
    CHECK(!strstr(kl_trace_miss(), "evicted"));
    CHECK(twice(dev, "old", 501, 1) == 3 && kl_counter("graphs_built") == built + 1);
    CHECK(strstr(kl_trace_miss(), "evicted") && strstr(kl_trace_miss(), "program_bytes"));
    CHECK(twice(dev, "old", 501, 1) == 3 && kl_counter("graphs_built") == built + 1);
    OK(kl_set_option("program_bytes", DEFAULT));
}

/* A frozen step keeps its program; a trace whose program is gone builds it again; a dump still finds it. */
static void test_holders(kl_device dev)
{
    kl_trace_begin("frozen");
    kl_tensor x = kl_input(dev, KL_F32, DIMS(505), ones), y;
    kl_keep(kl_add_scalar(kl_add(x, x), 4));
    kl_step *s = kl_trace_end_step(1, &x);
    CHECK(s != NULL);
    CHECK(twice(dev, "again", 503, 5) == 7);
    int64_t before = evicted();
    OK(kl_set_option("program_bytes", 0));
    CHECK(evicted() > before);
    int64_t built = kl_counter("graphs_built");
    float got[505] = {0};
    kl_tensor in = kl_input(dev, KL_F32, DIMS(505), ones);
    for (int i = 0; i < 3; i++) {
        OK(kl_step_run(s, 1, &in, 0, NULL, 1, &y));
        CHECK(kl_read(y, got, sizeof got) == KL_OK && got[0] == 6 && got[504] == 4);
        kl_release(y);
    }
    CHECK(kl_counter("graphs_built") == built);
    kl_step_free(s);
    kl_release(in);
    CHECK(twice(dev, "again", 503, 5) == 7 && kl_counter("graphs_built") == built + 1);
    CHECK(kl_dump("again", "captured", "/dev/null") == KL_OK);
    OK(kl_set_option("program_bytes", 0)); /* nothing holds it */
    CHECK(kl_dump("again", "captured", "/dev/null") == KL_ERR_ARGUMENT);
    OK(kl_set_option("program_bytes", DEFAULT));
}

/* What a profile has timed stays, for its rows name kernels. */
static void test_profile(kl_device dev)
{
    OK(kl_profile_begin());
    CHECK(twice(dev, "timed", 504, 6) == 8);
    OK(kl_set_option("program_bytes", 0));
    kl_profile *p = kl_profile_end();
    CHECK(p && (strstr(kl_profile_table(p), "add") || strstr(kl_profile_table(p), "interp")));
    kl_profile_free(p);
    int64_t built = kl_counter("graphs_built");
    CHECK(twice(dev, "timed", 504, 6) == 8 && kl_counter("graphs_built") == built);
    OK(kl_set_option("program_bytes", DEFAULT));
}

/* ---- threads ---- */

struct worker { kl_device dev; unsigned seed; int wrong; };

static void *work(void *ctx)
{
    struct worker *w = ctx;
    for (int i = 0; i < 150; i++) {
        w->seed = w->seed * 1664525u + 1013904223u;
        int64_t n = 1 + (w->seed >> 20) % 40;
        w->wrong += twice(w->dev, "threads", n, 7) != 9;
        kl_tensor x = kl_full(w->dev, KL_F32, DIMS(n), 2), y = kl_exp(kl_mul(x, x)); /* outside of traces */
        float got[40];
        w->wrong += kl_read(y, got, (size_t)n * sizeof *got) != KL_OK || fabs((double)got[0] - exp(4)) > 1e-4;
        kl_release(y);
        kl_release(x);
        if (i % 50 == 25)
            w->wrong += kl_set_option("program_bytes", i % 100 ? SMALL / 8 : 0) != KL_OK;
    }
    return NULL;
}

static void test_threads(kl_device dev, bool background)
{
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    struct worker worker[THREADS];
    OK(kl_set_option("background_compile", background));
    OK(kl_set_option("program_bytes", SMALL / 8));
    for (int i = 0; i < THREADS; i++) {
        worker[i] = (struct worker){dev, (unsigned)i + 1, 0};
        pthread_create(&thread[i], NULL, work, &worker[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK(worker[i].wrong == 0);
    }
    OK(kl_set_option("background_compile", 0));
    OK(kl_set_option("program_bytes", DEFAULT));
}

/* Whichever allocation fails: an error or the right result, and the next call works. */
static void test_failures(kl_device dev)
{
    OK(kl_set_option("program_bytes", SMALL / 8));
    int wrong = 0, failures = 0;
    for (long n = 0; n < 120; n++) {
        atomic_store(&until_failure, n);
        double got = twice(dev, "failing", 1 + n % 50, 8);
        atomic_store(&until_failure, -1);
        failures += isnan(got);
        wrong += !isnan(got) && got != 10;
        wrong += twice(dev, "failing", 1 + n % 50, 8) != 10;
    }
    CHECK(wrong == 0 && failures > 10);
    OK(kl_set_option("program_bytes", DEFAULT));
}

int main(int argc, char **argv)
{
    int shapes = argc > 1 ? atoi(argv[1]) : 0;
    const char *devices[] = {"ref", "cpu", argc > 2 ? argv[2] : "none"};
    kl_set_memory(&(kl_memory){take, take_more, give, NULL});
    test_option();
    for (int i = 0; i < 3; i++) {
        kl_device dev = kl_device_named(devices[i]);
        if (!dev.id)
            continue; /* it does not work here */
        device_now = devices[i];
        test_shapes(dev, shapes ? shapes : i ? 300 : 1200);
        test_order(dev);
        test_holders(dev);
        test_profile(dev);
        test_threads(dev, false);
        test_threads(dev, true);
        test_failures(dev);
    }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
