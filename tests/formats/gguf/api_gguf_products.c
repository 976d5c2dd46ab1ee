/* Products of activations of 8 bits with GGUF's blocks: the same bits from rows and from interleaved parts, of the
 * interpreter and compiled, for any number of rows; near to the product of the values in double. */
#include "gguf_bytes.h"
#include "tests/support/api_check.h"
#include <kiln/train.h>

enum { MAX_ROWS = 40, MAX_N = 96, MAX_K = 512 };
static kl_device cpu, ref;
static float x[MAX_ROWS * MAX_K], got[4][MAX_ROWS * MAX_N], weights[MAX_N * MAX_K], rounded[MAX_ROWS * MAX_K];

struct shape { unsigned m, n, k; };

static kl_tensor activations(kl_device dev, unsigned first, unsigned m, unsigned k)
{
    kl_tensor rows = kl_input(dev, KL_F32, DIMS(m, k), x + (size_t)first * k);
    return kl_to_quantized(rows, (kl_qscheme){.type = KL_Q_I8, .axis = 1, .block = 32}, kl_none, kl_none);
}

/* The product with rows first to first + m of the activations; floats: as they are. */
static bool product(kl_file *f, kl_device dev, bool matrix, bool floats, unsigned first, struct shape s, float *to)
{
    kl_tensor w = matrix ? kl_file_matrix(f, dev, "t") : kl_file_tensor(f, dev, "t");
    kl_trace_begin("product");
    kl_tensor a = floats ? kl_input(dev, KL_F32, DIMS(s.m, s.k), x + (size_t)first * s.k)
                         : activations(dev, first, s.m, s.k);
    kl_tensor y = kl_keep(kl_matmul(a, kl_transpose(w, 0, 1)));
    bool ok = OK(kl_trace_end()) && OK(kl_read(y, to, (size_t)s.m * s.n * sizeof *to));
    kl_release(y), kl_release(w);
    return ok;
}

/* The same bits, but any NaN for a NaN. */
static bool same(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

/* got[0] is near to the product of the values in double. */
static bool near_double(kl_file *f, struct shape s)
{
    kl_tensor w = kl_file_tensor(f, ref, "t"), a = activations(ref, 0, s.m, s.k);
    bool ok = OK(kl_read(w, weights, (size_t)s.n * s.k * sizeof *weights)) &&
              OK(kl_read(a, rounded, (size_t)s.m * s.k * sizeof *rounded));
    kl_release(w), kl_release(a);
    for (unsigned i = 0; i < s.m * s.n && ok; i++) {
        double sum = 0, size = 0;
        for (unsigned k = 0; k < s.k; k++) {
            double p = (double)rounded[i / s.n * s.k + k] * (double)weights[i % s.n * s.k + k];
            sum += p, size += fabs(p);
        }
        ok = fabs(sum - (double)got[0][i]) <= 2e-6 * size + 1e-30;
    }
    return ok;
}

static void compare(const struct gguf_blocks *t, struct shape s, uint8_t special, bool floats)
{
    char what[120];
    struct gguf_bytes data = gguf_made(t, s.n, s.k, special);
    kl_file *f = kl_file_open_bytes("blocks.gguf", data.v, data.n);
    size_t n = (size_t)s.m * s.n;
    snprintf(what, sizeof what, "%s [%u,%u] x [%u,%u]", t->name, s.m, s.k, s.k, s.n);
    if (CHECK(f) && product(f, cpu, true, false, 0, s, got[0]) && product(f, cpu, false, false, 0, s, got[1]) &&
        product(f, ref, true, false, 0, s, got[2]) && product(f, ref, false, false, 0, s, got[3])) {
        check_at(same(got[0], got[2], n), __LINE__, what);
        check_at(same(got[1], got[3], n), __LINE__, what);
        check_at(same(got[0], got[1], n), __LINE__, what);
        check_at(special || near_double(f, s), __LINE__, what);
    }
    if (floats && product(f, cpu, true, true, 0, s, got[0]) && product(f, ref, true, true, 0, s, got[1]))
        check_at(same(got[0], got[1], n), __LINE__, "activations of floats");
    kl_file_close(f);
    free(data.v);
}

/* A row has the same bits alone, with all others, and in pieces of one, two and three tiles of rows. */
static void any_rows(const char *name)
{
    static float whole[MAX_ROWS * MAX_N], part[MAX_ROWS * MAX_N];
    const struct shape s = {MAX_ROWS, 48, 256};
    struct gguf_bytes data = gguf_made(gguf_type_called(name), s.n, s.k, 0);
    kl_file *f = kl_file_open_bytes("blocks.gguf", data.v, data.n);
    product(f, cpu, true, false, 0, s, whole);
    static const unsigned pieces[] = {1, 7, 9, 16, 17};
    for (int i = 0; i < 5; i++)
        for (unsigned at = 0, piece = pieces[i]; at < MAX_ROWS; at += piece) {
            struct shape here = {piece < MAX_ROWS - at ? piece : MAX_ROWS - at, s.n, s.k};
            product(f, cpu, true, false, at, here, part);
            check_at(!memcmp(part, whole + at * s.n, here.m * s.n * sizeof *part), __LINE__, name);
        }
    kl_file_close(f);
    free(data.v);
}

/* Integers of 6 bits in three arrays of rows, which no file has: their values, rows by index, and products. */
static void own_arrays(kl_device dev, float *y)
{
    enum { N = 19, K = 64, ROWS = 3 };
    static uint8_t bytes[3][N * K / 4];
    static float scale[N * K / 16], want[N * K], value[N * K];
    const kl_qscheme blocks = {.type = KL_Q_I6, .axis = 1, .block = 16};
    const int32_t index[] = {18, 0};
    uint32_t state = 7;
    memset(bytes, 0, sizeof bytes);
    for (int i = 0; i < N * K / 16; i++)
        scale[i] = (float)(i % 5 + 1) / 64;
    for (int i = 0; i < N * K; i++) {
        unsigned u = (state = state * 1664525U + 1013904223U) >> 26, four = i / 4 % 4;
        int at = i / 16 * 4 + i % 4;
        for (unsigned k = 0; k < 3; k++)
            bytes[k][at] |= (uint8_t)(four == k ? u : four == 3 ? (u >> 2 * k & 3) << 6 : 0);
        want[i] = (float)((int)u - 32) * scale[i / 16];
    }
    kl_tensor part[4] = {kl_input(dev, KL_F32, DIMS(N, K / 16), scale)};
    for (int k = 0; k < 3; k++)
        part[k + 1] = kl_input(dev, KL_U8, DIMS(N, K / 4), bytes[k]);
    const kl_quantized_options six = {.second = part[2], .third = part[3]};
    kl_tensor w = kl_quantized_with(part[1], blocks, part[0], &six);
    CHECK(kl_layer_parts(w) == 8 && OK(kl_read(w, value, sizeof value)) && !memcmp(value, want, sizeof want));
    kl_tensor rows = kl_embedding(w, kl_input(dev, KL_I32, DIMS(2), index));
    CHECK(OK(kl_read(rows, value, 2 * K * sizeof *value)) && !memcmp(value, want + 18 * K, K * sizeof *want) &&
          !memcmp(value + K, want, K * sizeof *want));
    kl_tensor one = kl_dense(kl_narrow(w, 1, 5, 7));
    CHECK(OK(kl_read(one, value, N * 7 * sizeof *value)) && !memcmp(value + 7, want + K + 5, 7 * sizeof *want));
    kl_trace_begin("three arrays");
    kl_tensor out = kl_keep(kl_matmul(activations(dev, 0, ROWS, K), kl_transpose(w, 0, 1)));
    CHECK(OK(kl_trace_end()) && OK(kl_read(out, y, ROWS * N * sizeof *y)));
    const kl_tensor all[] = {part[0], part[1], part[2], part[3], w, rows, one, out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kl_release(all[i]);
}

int main(void)
{
    /* around the columns of a tile and of a strip, and the rows of a tile */
    static const struct shape shapes[] = {{1, 16, 512}, {9, 15, 256}, {2, 17, 256}, {8, 80, 256}, {1, 32, 256},
                                          {7, 31, 512}, {3, 64, 256}, {1, 1, 256}, {5, 48, 512}, {1, 96, 256},
                                          {16, 64, 256}, {17, 80, 256}, {33, 31, 256}};
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    uint32_t state = 3;
    cpu = kl_device_cpu(), ref = kl_device_named("ref");
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)((state = state * 1664525U + 1013904223U) >> 8) / (1 << 23) - 1;
    for (int i = 0; i < GGUF_TYPES; i++) {
        device_now = gguf_types[i].name;
        compare(&gguf_types[i], shapes[i % SHAPES], 0, i % 2);
        compare(&gguf_types[i], shapes[(3 * i + 1) % SHAPES], 0, false);
    }
    device_now = "three arrays";
    own_arrays(cpu, got[0]);
    own_arrays(ref, got[1]);
    CHECK(!memcmp(got[0], got[1], 3 * 19 * sizeof *got[0]));
    device_now = "special scales";
    compare(gguf_type_called("Q4_K"), (struct shape){2, 16, 256}, 0x7c, true); /* infinite, or not a number */
    compare(gguf_type_called("Q6_K"), (struct shape){2, 16, 256}, 0x7e, false);
    compare(gguf_type_called("Q4_0"), (struct shape){1, 16, 256}, 0xfc, true);
    compare(gguf_type_called("Q4_K"), (struct shape){1, 0, 256}, 0, false);     /* no columns, no rows */
    compare(gguf_type_called("Q8_0"), (struct shape){0, 16, 256}, 0, false);
    device_now = "blocks that are left of those scaled together";
    compare(gguf_type_called("Q8_0"), (struct shape){1, 32, 288}, 0, true);
    compare(gguf_type_called("Q4_0"), (struct shape){3, 48, 224}, 0, false);
    compare(gguf_type_called("Q4_1"), (struct shape){2, 15, 416}, 0, false);
    device_now = "numbers of rows";
    any_rows("Q8_0");
    any_rows("Q4_K");
    any_rows("Q6_K");
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
