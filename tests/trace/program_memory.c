/* Memory of programs: what the process grows by is what option program_bytes counts, and below that limit it does not
 * grow any more. */
#include "passes/passes.h"
#include "runtime/program/program.h"
#include "tests/support/graph_test.h"
#include <kiln/kiln.h>
#include <malloc.h>
#include <stdatomic.h>

enum { LIMIT = 2 << 20 };
enum { SHAPES = 400, WARM = 40, COLUMNS = 8, MAX_ROWS = WARM + 4 * SHAPES };

/* Bytes of the library's memory. */
static atomic_llong live;

static void *count_alloc(void *ctx, size_t bytes)
{
    void *p = malloc(bytes);
    (void)ctx;
    atomic_fetch_add(&live, p ? (long long)malloc_usable_size(p) : 0);
    return p;
}

static void *count_grow(void *ctx, void *p, size_t bytes)
{
    long long before = p ? (long long)malloc_usable_size(p) : 0;
    void *q = realloc(p, bytes);
    (void)ctx;
    atomic_fetch_add(&live, q ? (long long)malloc_usable_size(q) - before : 0);
    return q;
}

static void count_release(void *ctx, void *p)
{
    (void)ctx;
    atomic_fetch_sub(&live, (long long)malloc_usable_size(p));
    free(p);
}

/* Resident bytes of the process. */
static long long resident(void)
{
    long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%*d %lld", &pages) == 1);
    if (f)
        fclose(f);
    return pages * 4096;
}

/* One program for each length from `from` up to `to`, of three kernels or one. */
static void build_programs(kl_device device, int from, int to, bool softmax)
{
    static float x[MAX_ROWS * COLUMNS];
    for (int n = from; n < to; n++) {
        kl_trace_begin("shapes");
        kl_tensor in = kl_input(device, KL_F32, 2, (int64_t[]){n, COLUMNS}, x);
        kl_tensor y = kl_keep(softmax ? kl_sum_all(kl_softmax(in, 1)) : kl_exp(in));
        CHECK(kl_trace_end() == KL_OK);
        kl_release(y);
    }
}

int main(void)
{
    kl_memory memory = {.alloc = count_alloc, .grow = count_grow, .release = count_release};
    CHECK(kl_set_memory(&memory) == KL_OK);
    kl_device device = kl_device_default();
    CHECK(kl_set_option("threads", 1) == KL_OK);
    for (int softmax = 0; softmax < 2; softmax++) {
        build_programs(device, 1, WARM, softmax);
        long long own = atomic_load(&live), all = resident(), counted = cache_total() + (long long)lower_memo_bytes();
        build_programs(device, WARM, WARM + SHAPES, softmax);
        own = (atomic_load(&live) - own) / SHAPES, all = (resident() - all) / SHAPES;
        counted = (cache_total() + (long long)lower_memo_bytes() - counted) / SHAPES;
        printf("a program of %s: %lld bytes of the library's, %lld of the process; counted %lld\n",
               softmax ? "softmax" : "exp", own, all, counted);
        CHECK(own < counted + counted / 4 && all < counted + counted / 4);
    }
    CHECK(kl_set_option("program_bytes", LIMIT) == KL_OK);
    for (int round = 1; round < 4; round++) {
        long long own = atomic_load(&live), counted = cache_total() + (long long)lower_memo_bytes();
        build_programs(device, WARM + round * SHAPES, WARM + (round + 1) * SHAPES, true);
        own = atomic_load(&live) - own;
        counted = cache_total() + (long long)lower_memo_bytes() - counted;
        printf("below a limit: %lld bytes more, %lld of these counted\n", own, counted);
        CHECK(cache_total() <= LIMIT && lower_memo_bytes() <= LIMIT / 16);
        CHECK(own - counted < 1024 * SHAPES);
    }
    printf("%u passed, %u failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
