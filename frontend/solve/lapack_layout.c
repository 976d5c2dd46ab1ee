/* Copies that exchange rows and columns: LAPACK's matrices are column-major.  By squares of SIDE, so that lines that
 * are read across rows stay in the cache; within them by pairs, which a processor's vectors exchange. */
#include "lapack.h"

enum { SIDE = 8, AHEAD = 4 * SIDE /* rows that are prefetched */ };

#define LAPACK_LAYOUT(type)                                                                                           \
    typedef type pair_##type __attribute__((vector_size(2 * sizeof(type))));                                          \
    static inline pair_##type load_##type(const type *a)                                                              \
    {                                                                                                                 \
        pair_##type v;                                                                                                \
        memcpy(&v, a, sizeof v);                                                                                      \
        return v;                                                                                                     \
    }                                                                                                                 \
    static void transpose_square_##type(type *out, int64_t to, const type *a, int64_t from)                           \
    {                                                                                                                 \
        for (int64_t i = 0; i < SIDE; i += 2)                                                                         \
            for (int64_t j = 0; j < SIDE; j += 2) {                                                                   \
                pair_##type p = load_##type(a + j * from + i), q = load_##type(a + (j + 1) * from + i);               \
                pair_##type r = {p[0], q[0]}, s = {p[1], q[1]};                                                       \
                memcpy(out + i * to + j, &r, sizeof r);                                                               \
                memcpy(out + (i + 1) * to + j, &s, sizeof s);                                                         \
            }                                                                                                         \
    }                                                                                                                 \
    static void transpose_##type(type *out, int64_t to, const type *a, int64_t from, int64_t rows, int64_t columns)   \
    {                                                                                                                 \
        for (int64_t i0 = 0; i0 < columns; i0 += SIDE) {                                                              \
            int64_t end = i0 + SIDE < columns ? i0 + SIDE : columns, j0 = 0;                                          \
            for (; j0 + SIDE <= rows && i0 + SIDE <= columns; j0 += SIDE) {                                           \
                for (int64_t j = j0 + AHEAD; j < j0 + AHEAD + SIDE && j < rows; j++)                                  \
                    __builtin_prefetch(a + j * from + i0);                                                            \
                transpose_square_##type(out + i0 * to + j0, to, a + j0 * from + i0, from);                            \
            }                                                                                                         \
            for (int64_t i = i0; i < end; i++)                                                                        \
                for (int64_t j = j0; j < rows; j++)                                                                   \
                    out[i * to + j] = a[j * from + i];                                                                \
        }                                                                                                             \
    }                                                                                                                 \
    /* Row j of the result from column `from` on; x - x of a number that is not finite is NaN. */                     \
    static type upper_row_##type(type *out, const type *a, int64_t n, int64_t j, int64_t from, int64_t to)            \
    {                                                                                                                 \
        type nan = 0;                                                                                                 \
        for (int64_t i = from; i < to; i++) {                                                                         \
            type x = (a[i * n + j] + a[j * n + i]) * (type)0.5;                                                       \
            out[j * n + i] = x;                                                                                       \
            nan += x - x;                                                                                             \
        }                                                                                                             \
        return nan;                                                                                                   \
    }                                                                                                                 \
    static pair_##type upper_square_##type(type *out, const type *a, int64_t n, int64_t j0, int64_t i0)               \
    {                                                                                                                 \
        const pair_##type half = {(type)0.5, (type)0.5};                                                              \
        pair_##type nan = {0, 0};                                                                                     \
        for (int64_t j = j0; j < j0 + SIDE; j += 2)                                                                   \
            for (int64_t i = i0; i < i0 + SIDE; i += 2) {                                                             \
                pair_##type p = load_##type(a + i * n + j), q = load_##type(a + (i + 1) * n + j);                     \
                pair_##type r = {p[0], q[0]}, s = {p[1], q[1]};                                                       \
                r = (load_##type(a + j * n + i) + r) * half;                                                          \
                s = (load_##type(a + (j + 1) * n + i) + s) * half;                                                    \
                nan += (r - r) + (s - s);                                                                             \
                memcpy(out + j * n + i, &r, sizeof r);                                                                \
                memcpy(out + (j + 1) * n + i, &s, sizeof s);                                                          \
            }                                                                                                         \
        return nan;                                                                                                   \
    }                                                                                                                 \
    static bool upper_##type(type *out, const type *a, int64_t n)                                                     \
    {                                                                                                                 \
        pair_##type nans = {0, 0};                                                                                    \
        type nan = 0;                                                                                                 \
        for (int64_t j0 = 0; j0 < n; j0 += SIDE) {                                                                    \
            int64_t end = j0 + SIDE < n ? j0 + SIDE : n, i0 = end;                                                    \
            for (; i0 + SIDE <= n; i0 += SIDE) {                                                                      \
                for (int64_t i = i0 + AHEAD; i < i0 + AHEAD + SIDE && i < n; i++)                                     \
                    __builtin_prefetch(a + i * n + j0);                                                               \
                nans += upper_square_##type(out, a, n, j0, i0);                                                       \
            }                                                                                                         \
            for (int64_t j = j0; j < end; j++)                                                                        \
                nan += upper_row_##type(out, a, n, j, j, end) + upper_row_##type(out, a, n, j, i0, n);                \
        }                                                                                                             \
        return nan + nans[0] + nans[1] == 0;                                                                          \
    }                                                                                                                 \
    static void flip_square_##type(type *a, int64_t n, int64_t i0, int64_t j0)                                        \
    {                                                                                                                 \
        transpose_square_##type(a + i0 * n + j0, n, a + j0 * n + i0, n);                                              \
        for (int64_t j = j0; j < j0 + SIDE; j++)                                                                      \
            memset(a + j * n + i0, 0, SIDE * sizeof *a);                                                              \
    }                                                                                                                 \
    static void flip_##type(type *a, int64_t n)                                                                       \
    {                                                                                                                 \
        for (int64_t i0 = 0; i0 < n; i0 += SIDE) {                                                                    \
            int64_t end = i0 + SIDE < n ? i0 + SIDE : n, j0 = 0;                                                      \
            for (; j0 < i0 && i0 + SIDE <= n; j0 += SIDE) {                                                           \
                for (int64_t j = j0 + AHEAD; j < j0 + AHEAD + SIDE && j < i0; j++)                                    \
                    __builtin_prefetch(a + j * n + i0, 1);                                                            \
                flip_square_##type(a, n, i0, j0);                                                                     \
            }                                                                                                         \
            for (int64_t i = i0; i < end; i++)                                                                        \
                for (int64_t j = j0; j < i; j++) {                                                                    \
                    a[i * n + j] = a[j * n + i];                                                                      \
                    a[j * n + i] = 0;                                                                                 \
                }                                                                                                     \
        }                                                                                                             \
    }
LAPACK_LAYOUT(float)
LAPACK_LAYOUT(double)

void lapack_transpose(void *out, int64_t to, const void *a, int64_t from, int64_t rows, int64_t columns, bool f64)
{
    if (f64)
        transpose_double(out, to, a, from, rows, columns);
    else
        transpose_float(out, to, a, from, rows, columns);
}

bool lapack_upper(void *out, const void *a, int64_t n, bool f64)
{
    return f64 ? upper_double(out, a, n) : upper_float(out, a, n);
}

void lapack_flip(void *a, int64_t n, bool f64)
{
    if (f64)
        flip_double(a, n);
    else
        flip_float(a, n);
}
