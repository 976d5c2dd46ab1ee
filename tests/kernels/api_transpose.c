/* Transposes on a processor, bit for bit: sides at the limits of squares, tiles and vectors, elements of each type with
 * any bits (NaN with its payload among them), batches, borders and operands beside them; and none at all. */
#include "tests/support/api_numbers.h"

enum { MAX_BYTES = 1 << 20 };
static unsigned char from[MAX_BYTES], to[MAX_BYTES], want[MAX_BYTES];

/* Bytes of any value; of bool 0 or 1. */
static void fill(kl_dtype dtype, size_t bytes)
{
    uint32_t x = 0x9e3779b9u + (uint32_t)bytes;
    for (size_t i = 0; i < bytes; i++) {
        x = x * 1664525u + 1013904223u;
        from[i] = (unsigned char)(dtype == KL_BOOL ? x >> 31 : x >> 24);
    }
}

/* [batch, m, n] to [batch, n, m]. */
static void transposed(kl_dtype dtype, int64_t batch, int64_t m, int64_t n)
{
    size_t size = kl_dtype_size(dtype), bytes = (size_t)(batch * m * n) * size;
    fill(dtype, bytes);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++)
                memcpy(want + (size_t)((b * n + j) * m + i) * size, from + (size_t)((b * m + i) * n + j) * size, size);
    kl_tensor x = kl_input(dev, dtype, D(batch, m, n), from), y = kl_transpose(x, 1, 2);
    CHECK(kl_read(y, to, bytes) == KL_OK);
    if (!CHECK(!memcmp(to, want, bytes)))
        printf("  %s [%d,%d,%d]\n", kl_dtype_name(dtype), (int)batch, (int)m, (int)n);
    kl_release(y);
    kl_release(x);
}

/* Sides at the limits of a square of 8 or 16, and of a tile of 32, 64 or 128; arrays larger than a first-level
 * cache's half. */
static void sides(void)
{
    static const int64_t side[] = {1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129};
    for (kl_dtype dtype = 0; dtype < KL_DTYPE_COUNT; dtype++) {
        int64_t size = (int64_t)kl_dtype_size(dtype);
        for (size_t s = dtype % 3; s < sizeof side / sizeof *side; s += 3) {
            int64_t other = (40 << 10) / (side[s] * size) / 64 * 64 + side[s] % 3;
            transposed(dtype, 1, side[s], other);
            transposed(dtype, 1, other, side[s]);
        }
        transposed(dtype, 3, 65, 129);
    }
    transposed(KL_F32, 2, 128, 512);
    transposed(KL_F32, 1, 1, 20000);
    transposed(KL_F32, 0, 100, 1000);
    transposed(KL_F32, 1, 0, 1000);
    transposed(KL_F32, 1, 1000, 0);
}

/* Beside operands in the result's order, with a border of zeros, twice in one group, and where it is stored itself. */
static void groups(void)
{
    enum { M = 70, N = 200 };
    static float a[M * N], b[N * M], y[(N + 3) * (M + 5)];
    for (int i = 0; i < M * N; i++) {
        a[i] = (float)noise(i);
        b[i] = (float)noise(3 * i);
    }
    kl_tensor x = kl_input(dev, KL_F32, D(M, N), a), z = kl_input(dev, KL_F32, D(N, M), b), t = kl_transpose(x, 0, 1);
    kl_tensor sum = kl_add(kl_mul(t, z), kl_transpose(kl_neg(x), 0, 1));
    bool same = kl_read(sum, y, sizeof b) == KL_OK;
    for (int i = 0; i < N && same; i++)
        for (int j = 0; j < M && same; j++)
            same = y[i * M + j] == a[j * N + i] * b[i * M + j] - a[j * N + i];
    CHECK(same);
    kl_tensor padded = kl_pad(t, (int64_t[]){1, 2}, (int64_t[]){2, 3}, 0);
    same = kl_read(padded, y, sizeof y) == KL_OK;
    for (int i = 0; i < N + 3 && same; i++)
        for (int j = 0; j < M + 5 && same; j++) {
            bool inside = i >= 1 && i < N + 1 && j >= 2 && j < M + 2;
            same = y[i * (M + 5) + j] == (inside ? a[(j - 2) * N + i - 1] : 0);
        }
    CHECK(same);
    kl_release(x);
    kl_release(z);
    kl_release(t);
    kl_release(sum);
    kl_release(padded);
}

int main(void)
{
    dev = kl_device_default();
    CHECK(kl_set_option("threads", 2) == KL_OK);
    sides();
    groups();
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
