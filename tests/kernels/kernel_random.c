/* Random kernels, interpreted and compiled: loops, carries, ifs, lanes, tiles, all primitives, every kind of address.
 * Argument: how many (default 150).  Each is named by its seed. */
#include "kernel_test.h"
#include "tests/support/random/random_make.h"

static void test_one(const struct targets *t, uint64_t seed)
{
    struct kernel *k = random_kernel(seed, true);
    struct rng r = {seed * UINT64_C(0x9e3779b97f4a7c15) + 1};
    void *init[MAX_BUFS];
    uint64_t slot[1] = {0};
    for (uint32_t b = 0; b < k->nbuf; b++) {
        init[b] = calloc(buf_bytes(k, b), 1);
        fill_random(&r, k->buf[b].dtype, init[b], k->buf[b].count, true);
    }
    char what[48];
    snprintf(what, sizeof what, "random kernel %" PRIu64, seed);
    agree(t, k, (const void *const *)init, slot, NULL, what);
    for (uint32_t b = 0; b < k->nbuf; b++) free(init[b]);
    kernel_free(k);
}

int main(int argc, char **argv)
{
    struct targets t = find_targets();
    uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 150, first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (uint64_t seed = first; seed < first + n; seed++) test_one(&t, seed);
    return finish();
}
