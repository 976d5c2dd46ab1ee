/* A frozen step of about 1,000 kernels, on the tests' library in place of CUDA's or HIP's driver, which counts calls.
 * Each run copies the step's numbers to the device, launches one graph and records when this ends; it calls the driver
 * for nothing else, and allocates nothing.  Results are right where inputs, results or other programs change the
 * graph's arguments between runs.
 *
 *   gpu_frozen_steps [cuda|hip]
 *   gpu_frozen_steps cuda:0|hip:0     on a GPU, without counting calls */
#include "tests/gpu/fake/fake_load.h"
#include "tests/support/api_check.h"
#include <time.h>
#include <unistd.h>

enum { KERNELS = 1001, N = 4, RUNS = 16, SETTLED = 11 };
/* SETTLED: runs until each of the driver's lists in flight has room for its addresses */

static struct fake_gpu nothing, *fake = &nothing; /* `nothing`: the driver is a real one */
static int64_t allocations;

static void *count_alloc(void *ctx, size_t bytes)
{
    (void)ctx;
    allocations++;
    return malloc(bytes);
}

static void *count_grow(void *ctx, void *p, size_t bytes)
{
    (void)ctx;
    allocations++;
    return realloc(p, bytes);
}

static void count_release(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

static double microseconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static float start_of(int i) { return (float)(i * 5 % 7) - 3; }

/* y = s (.. s (s x P) P ..) P and v' = v + y, for a matrix P that moves each column to the next.  P has order 4, so y
 * is s x P if s is 1 or -1. */
static kl_step *freeze(kl_device dev, kl_tensor p, kl_tensor v, kl_tensor *x)
{
    static float start[N * N];
    for (int i = 0; i < N * N; i++)
        start[i] = start_of(i);
    kl_trace_begin("long");
    kl_tensor s = kl_scalar(dev, KL_F32, 1), y = *x = kl_input(dev, KL_F32, DIMS(N, N), start);
    kl_set_name(s, "s");
    for (int i = 0; i < KERNELS; i++)
        y = kl_mul(kl_matmul(y, p), s);
    kl_keep(y);
    kl_assign(v, kl_add(v, y));
    return kl_trace_end_step(1, x);
}

/* Is t what x is times P, `times` times? */
static bool is_times(kl_tensor t, const float *x, float times)
{
    double *got = values_of(t);
    bool same = got != NULL;
    for (int i = 0; i < N * N && same; i++)
        same = got[i] == (double)(times * x[i / N * N + (i + N - 1) % N]);
    free(got);
    return same;
}

/* The calls of one run. */
struct counted { uint64_t all, contexts, launches, replays, captures, sets, uploads, copies, records; int64_t kernels,
                 allocations; double us; };

static struct counted run(const kl_step *step, kl_tensor x, double s, kl_tensor *y)
{
    const struct fake_gpu was = *fake;
    int64_t kernels = kl_counter("launches"), allocated = allocations;
    double began = microseconds_now();
    OK(kl_step_run(step, 1, &x, 1, &(kl_slot){"s", s}, 1, y));
#define CALLS(field) .field = fake->calls.field - was.calls.field
    return (struct counted){CALLS(all), CALLS(contexts), CALLS(launches), CALLS(replays), CALLS(captures), CALLS(sets),
                            CALLS(uploads), CALLS(copies), CALLS(records), .us = microseconds_now() - began,
                            .kernels = kl_counter("launches") - kernels, .allocations = allocations - allocated};
}

static void print_counted(const char *what, const struct counted *c)
{
    printf("%s: %s: %lld kernels: %llu graphs launched, %llu kernels, %llu arguments set, %llu copies from the host, "
           "%llu on the device, %llu events recorded, %llu calls for the context, %llu in all; %lld allocations, "
           "%.0f us\n",
           device_now, what, (long long)c->kernels, (unsigned long long)c->replays, (unsigned long long)c->launches,
           (unsigned long long)c->sets, (unsigned long long)c->uploads, (unsigned long long)c->copies,
           (unsigned long long)c->records, (unsigned long long)c->contexts, (unsigned long long)c->all,
           (long long)c->allocations, c->us);
}

/* A graph, the copy of the slots and an event; waited: and the wait for the fourth list before. */
static void check_only_graph(const struct counted *c, bool waited)
{
    const uint64_t context = !strncmp(device_now, "hip", 3) ? 3 : 2; /* calls to make it current and to leave it */
    if (fake == &nothing)
        return;
    CHECK(c->replays == 1 && c->uploads == 1 && c->records == 1 && c->kernels >= KERNELS);
    CHECK(!c->launches && !c->captures && !c->copies);
    CHECK(c->contexts == (waited ? 2 : 1) * context);
    CHECK(c->all == c->sets + c->contexts + (waited ? 4 : 3));
    CHECK(!c->allocations);
}

static void test_same_memory(const kl_step *step, kl_tensor x, const float *data, kl_tensor v)
{
    float sum = 0;
    for (int i = 0; i < RUNS; i++) { /* results are read: the host waits */
        kl_tensor y;
        float s = i % 3 ? 1 : -1;
        struct counted c = run(step, x, (double)s, &y);
        sum += s;
        if (i == 0)
            print_counted("first run", &c);
        if (i == RUNS - 1)
            print_counted("same memory, results read", &c);
        if (i >= SETTLED)
            check_only_graph(&c, false);
        CHECK(i < SETTLED || !c.sets);
        CHECK(is_times(y, data, s));
        CHECK(is_times(v, data, sum));
        kl_release(y);
    }
    for (int i = 0; i < RUNS; i++) { /* the host waits for nothing but memory for the slots */
        kl_tensor y;
        struct counted c = run(step, x, 1, &y);
        sum += 1;
        if (i == RUNS - 1)
            print_counted("same memory, nothing read", &c);
        if (i >= SETTLED)
            check_only_graph(&c, true);
        CHECK(!c.sets);
        kl_release(y);
    }
    CHECK(is_times(v, data, sum));
}

/* Results that are kept, other inputs, and another step with the same kernels: arguments are set in the graph. */
static void test_other_memory(const kl_step *step, const kl_step *other, kl_device dev, kl_tensor v, kl_tensor v2)
{
    float data[2][N * N];
    kl_tensor x[2], y[RUNS];
    float sum = 0;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < N * N; i++)
            data[k][i] = (float)(k + 1) * start_of(i);
        x[k] = kl_input(dev, KL_F32, DIMS(N, N), data[k]);
    }
    double *before = values_of(v), *before2 = values_of(v2);
    for (int i = 0; i < RUNS; i++) {
        kl_tensor y2;
        struct counted c = run(step, x[i / 2 % 2], 1, &y[i]);
        sum += (float)(i / 2 % 2 + 1);
        if (i == RUNS - 1)
            print_counted("other memory", &c);
        CHECK(fake == &nothing || (c.replays == 1 && !c.launches && !c.captures));
        CHECK(i == 0 || c.sets <= 2 * 3); /* x may have taken the memory of intermediate results */
        if (i % 3 == 2) {
            c = run(other, x[1], -1, &y2);
            CHECK(fake == &nothing || (c.replays == 1 && !c.captures));
            CHECK(is_times(y2, data[1], -1));
            kl_release(y2);
        }
    }
    for (int i = 0; i < RUNS; i++) {
        CHECK(is_times(y[i], data[i / 2 % 2], 1));
        kl_release(y[i]);
    }
    double *after = values_of(v), *after2 = values_of(v2);
    for (int i = 0; before && before2 && after && after2 && i < N * N; i++) {
        double moved = (double)data[0][i / N * N + (i + N - 1) % N];
        check_at(after[i] - before[i] == (double)sum * moved, __LINE__, "the first step's state");
        check_at(after2[i] - before2[i] == RUNS / 3 * -2 * moved, __LINE__, "the second step's state");
    }
    kl_memory_trim();
    for (int i = 0; i < 3; i++) {
        kl_tensor z;
        run(step, x[0], -1, &z);
        CHECK(is_times(z, data[0], -1));
        kl_release(z);
    }
    for (int k = 0; k < 2; k++)
        kl_release(x[k]);
    free(before), free(before2), free(after), free(after2);
}

static void test_steps(kl_device dev)
{
    static float zero[N * N], next[N * N], data[N * N];
    for (int i = 0; i < N * N; i++) {
        next[i] = i % N == (i / N + 1) % N;
        data[i] = start_of(i);
    }
    kl_tensor p = kl_input(dev, KL_F32, DIMS(N, N), next), v = kl_input(dev, KL_F32, DIMS(N, N), zero),
              v2 = kl_input(dev, KL_F32, DIMS(N, N), zero), x = kl_input(dev, KL_F32, DIMS(N, N), data), in, in2;
    kl_step *step = freeze(dev, p, v, &in), *other = freeze(dev, p, v2, &in2);
    if (CHECK(step && other)) {
        test_same_memory(step, x, data, v);
        test_other_memory(step, other, dev, v, v2);
    }
    kl_step_free(step);
    kl_step_free(other);
    kl_release(p), kl_release(v), kl_release(v2), kl_release(x);
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/kiln-frozen-steps-XXXXXX", clean[64];
    device_now = argc > 1 ? argv[1] : "cuda";
    bool real = strchr(device_now, ':');
    if (!real && system("echo '_Float16 x;' | ${CXX:-c++} -x c++ -fsyntax-only - >/dev/null 2>&1")) {
        printf("SKIP no-compiler c++: none that has 16-bit floats\n");
        return 0;
    }
    if (!mkdtemp(folder) || (!real && !(fake = fake_gpu_load(argv[0]))))
        return 1;
    setenv("KILN_CACHE_DIR", folder, 1);
    OK(kl_set_memory(&(kl_memory){count_alloc, count_grow, count_release, NULL}));
    kl_device dev = kl_device_named(device_now);
    if (!dev.id) {
        printf("SKIP no-device %.*s: %s\n0 passed, 0 failed, 1 skipped\n", (int)strcspn(device_now, ":"), device_now,
               kl_last_error());
        return 0;
    }
    test_steps(dev);
    snprintf(clean, sizeof clean, "rm -r %s", folder);
    CHECK(!system(clean));
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
