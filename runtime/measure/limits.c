/* The loops that measure the machine's limits.  There is a version for every register width, chosen at run time.  The
 * streams use vector types, the multiply-adds intrinsics, so that no setting for contraction affects them. */
#include "measure.h"
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { CHAINS = 12, STEPS = 1 << 16 }; /* STEPS rounds over CHAINS independent vectors */

/* Streams of LANES floats at a time, the remainder one by one. */
#define STREAM_LOOP(sum)                       \
    {                                          \
        size_t i = from;                       \
        for (; i + LANES <= to; i += LANES) {  \
            vec x = AT(1) * 0.5f;              \
            sum                                \
            AT(0) = x;                         \
        }                                      \
        for (; i < to; i++) {                  \
            a[0][i] = a[1][i];                 \
            for (int j = 2; j <= inputs; j++)  \
                a[0][i] += a[j][i];            \
        }                                      \
        return;                                \
    }
#define AT(j) (*(vec *)(a[j] + i))
#define STREAMS(name, target, lanes)                                                                                 \
    target static void stream_##name(float *const *array, int inputs, size_t from, size_t to)                        \
    {                                                                                                                \
        enum { LANES = lanes };                                                                                      \
        typedef float vec __attribute__((vector_size(4 * lanes), aligned(4), may_alias));                            \
        float *a[LIMIT_INPUTS + 1]; /* here, so that no store can change them */                                     \
        for (int j = 0; j <= inputs; j++)                                                                            \
            a[j] = array[j];                                                                                         \
        switch (inputs) {                                                                                            \
        case 1: STREAM_LOOP()                                                                                        \
        case 2: STREAM_LOOP(x += AT(2);)                                                                             \
        case 3: STREAM_LOOP(x += AT(2); x += AT(3);)                                                                 \
        case 4: STREAM_LOOP(x += AT(2); x += AT(3); x += AT(4);)                                                     \
        default: STREAM_LOOP(x += AT(2); x += AT(3); x += AT(4); x += AT(5);)                                        \
        }                                                                                                            \
    }                                                                                                                \
    target static void update_##name(float *const *array, size_t from, size_t to)                                    \
    {                                                                                                                \
        enum { LANES = lanes };                                                                                      \
        typedef float vec __attribute__((vector_size(4 * lanes), aligned(4), may_alias));                            \
        float *a[4] = {array[0], array[1], array[2], array[3]};                                                      \
        for (size_t i = from; i < to; i += LANES) {                                                                  \
            vec x = AT(3);                                                                                           \
            AT(0) += x;                                                                                              \
            AT(1) += x;                                                                                              \
            AT(2) += x;                                                                                              \
        }                                                                                                            \
    }                                                                                                                \
    target static float sum_##name(const float *a, size_t from, size_t to)                                           \
    {                                                                                                                \
        enum { LANES = lanes, SUMS = 8 };                                                                            \
        typedef float vec __attribute__((vector_size(4 * lanes), aligned(4), may_alias));                            \
        vec s[SUMS] = {{0}};                                                                                         \
        float total = 0;                                                                                             \
        size_t i = from;                                                                                             \
        for (; i + SUMS * LANES <= to; i += SUMS * LANES)                                                            \
            _Pragma("GCC unroll 8")                                                                                  \
            for (int j = 0; j < SUMS; j++)                                                                           \
                s[j] += *(const vec *)(a + i + j * LANES);                                                           \
        for (; i < to; i++)                                                                                          \
            total += a[i];                                                                                           \
        for (int j = 1; j < SUMS; j++)                                                                               \
            s[0] += s[j];                                                                                            \
        for (int j = 0; j < LANES; j++)                                                                              \
            total += s[0][j];                                                                                        \
        return total;                                                                                                \
    }

STREAMS(128, , 4)

static float fma_128(float seed)
{
    typedef float vec __attribute__((vector_size(16)));
    vec x[CHAINS], m = {0.999f, 0.999f, 0.999f, 0.999f}, c = {seed, seed, seed, seed};
    for (int i = 0; i < CHAINS; i++)
        x[i] = c + (float)i;
    for (int s = 0; s < STEPS; s++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            x[i] = x[i] * m + c;
    for (int i = 1; i < CHAINS; i++)
        x[0] += x[i];
    return x[0][0];
}

#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f")))
#define AVX2 __attribute__((target("avx2,fma")))
STREAMS(512, AVX512, 16)
STREAMS(256, AVX2, 8)

/* The chains of fma_128 with the intrinsics of a width: without them a * b + c is two instructions. */
#define FMA_CHAINS(name, target, vec, set, fma, add, sum)                  \
    target static float fma_##name(float seed)                             \
    {                                                                      \
        vec x[CHAINS], m = set(0.999f), c = set(seed);                     \
        for (int i = 0; i < CHAINS; i++)                                   \
            x[i] = set(seed + (float)i);                                   \
        for (int s = 0; s < STEPS; s++)                                    \
            _Pragma("GCC unroll 12")                                       \
            for (int i = 0; i < CHAINS; i++)                               \
                x[i] = fma(x[i], m, c);                                    \
        for (int i = 1; i < CHAINS; i++)                                   \
            x[0] = add(x[0], x[i]);                                        \
        return sum(x[0]);                                                  \
    }
#define FIRST_256(x) _mm_cvtss_f32(_mm256_castps256_ps128(x))
FMA_CHAINS(512, AVX512, __m512, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps, _mm512_reduce_add_ps)
FMA_CHAINS(256, AVX2, __m256, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps, FIRST_256)
#endif

struct loops {
    int lanes;
    float (*fma)(float seed);
    void (*stream)(float *const *array, int inputs, size_t from, size_t to);
    void (*update)(float *const *array, size_t from, size_t to);
    float (*sum)(const float *a, size_t from, size_t to);
};

static struct loops widest_loops(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return (struct loops){16, fma_512, stream_512, update_512, sum_512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (struct loops){8, fma_256, stream_256, update_256, sum_256};
#endif
    return (struct loops){4, fma_128, stream_128, update_128, sum_128};
}

double limit_fma(void)
{
    struct loops w = widest_loops();
    volatile float sink = w.fma(1e-3f); /* keeps the loop from being dropped */
    (void)sink;
    return 2.0 * w.lanes * CHAINS * STEPS;
}

void limit_stream(float *const *array, int inputs, size_t from, size_t to) { widest_loops().stream(array, inputs, from,
                                                                                                   to); }
void limit_update(float *const *array, size_t from, size_t to) { widest_loops().update(array, from, to); }
float limit_sum(const float *a, size_t from, size_t to) { return widest_loops().sum(a, from, to); }

float *limit_array(size_t n)
{
    float *a = mmap(NULL, n * sizeof *a, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a == MAP_FAILED)
        return NULL;
#if defined(MADV_HUGEPAGE)
    madvise(a, n * sizeof *a, MADV_HUGEPAGE);
#endif
    for (size_t i = 0; i < n; i++)
        a[i] = (float)(i * 7919 % 1024) / 1024;
    return a;
}

void limit_array_free(float *a, size_t n)
{
    if (a)
        munmap(a, n * sizeof *a);
}
