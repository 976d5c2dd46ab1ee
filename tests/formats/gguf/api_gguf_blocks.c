/* GGUF's types of blocks: files written here, whose values are the bits of the format's own package, as hashes; the
 * same values where the parts are in the order of products, and of rows of the tensor; and files cut in a block. */
#include "gguf_bytes.h"
#include "tests/support/api_check.h"
#include <kiln/train.h>

enum { ROWS = 3, COLUMNS = 768, MANY = 32 };
static kl_device dev;

static uint64_t hash_of(const void *bytes, size_t n)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(1099511628211);
    return hash;
}

static void decoded(const struct gguf_blocks *t)
{
    struct gguf_bytes data = gguf_made(t, ROWS, COLUMNS, 0);
    kl_file *f = kl_file_open_bytes("blocks.gguf", data.v, data.n);
    kl_file_entry e;
    if (!CHECK(f && kl_file_get(f, 0, &e) == KL_OK))
        return;
    CHECK(e.dtype == KL_F32 && !strcmp(e.type, t->name) &&
          e.bytes == (size_t)ROWS * COLUMNS / t->elements * t->bytes);
    kl_tensor x = kl_file_tensor(f, dev, "t");
    float v[ROWS * COLUMNS];
    CHECK(kl_dtype_of(x) == KL_F32 && kl_numel(x) == ROWS * COLUMNS && kl_read(x, v, sizeof v) == KL_OK);
    CHECK(!strcmp(kl_layer_name(x), "quantized"));
    if (t->hash && !CHECK(hash_of(v, sizeof v) == t->hash))
        printf("  %s: %016llx\n", t->name, (unsigned long long)hash_of(v, sizeof v));
    kl_release(x);
    kl_file_close(f);
    kl_clear_error();
    f = kl_file_open_bytes("cut.gguf", data.v, data.n - 1);
    CHECK(!f && strstr(kl_last_error(), "the file is cut off"));
    kl_file_close(f);
    kl_clear_error();
    free(data.v);
}

/* x has these values. */
static void has_values(kl_tensor x, const float *want, size_t n)
{
    float *v = calloc(n + 1, sizeof *v);
    CHECK(v && kl_read(x, v, n * sizeof *v) == KL_OK && !memcmp(v, want, n * sizeof *v));
    free(v);
    kl_release(x);
}

/* A matrix whose rows alternate has the values of the other, and so have its views and rows by index. */
static void interleaved(const struct gguf_blocks *t)
{
    static float want[MANY * COLUMNS], part[4 * COLUMNS];
    struct gguf_bytes data = gguf_made(t, MANY, COLUMNS, 0);
    kl_file *f = kl_file_open_bytes("blocks.gguf", data.v, data.n);
    kl_tensor rows = kl_file_tensor(f, dev, "t"), x = kl_file_matrix(f, dev, "t");
    CHECK(kl_read(rows, want, sizeof want) == KL_OK && kl_rank(kl_layer_part(x, 0)) == 4);
    has_values(kl_dense(x), want, MANY * COLUMNS);
    has_values(kl_dense(kl_narrow(x, 0, 15, 3)), want + 15 * (size_t)COLUMNS, 3 * (size_t)COLUMNS);
    for (int r = 0; r < MANY; r++)
        memcpy(part + (size_t)r * 4, want + (size_t)r * COLUMNS + 30, 4 * sizeof *part);
    has_values(kl_dense(kl_narrow(x, 1, 30, 4)), part, MANY * 4);
    const int32_t index[] = {31, 0, 17, 17};
    for (int i = 0; i < 4; i++)
        memcpy(part + (size_t)i * COLUMNS, want + (size_t)index[i] * COLUMNS, COLUMNS * sizeof *part);
    has_values(kl_embedding(x, kl_input(dev, KL_I32, DIMS(2, 2), index)), part, 4 * (size_t)COLUMNS);
    has_values(kl_embedding(rows, kl_input(dev, KL_I32, DIMS(4), index)), part, 4 * (size_t)COLUMNS);
    for (size_t i = 0; i < MANY * (size_t)COLUMNS; i++)
        want[i] = -want[i];
    if (!strcmp(t->name, "Q4_K")) /* with minimums: a plain tensor */
        has_values(kl_neg(x), want, MANY * (size_t)COLUMNS);
    kl_release(rows), kl_release(x);
    kl_file_close(f);
    free(data.v);
}

/* A file may say that there are so many rows of no elements: reading them takes no time. */
static void without_columns(const struct gguf_blocks *t)
{
    struct gguf_bytes data = gguf_made(t, UINT64_C(1) << 52, 0, 0);
    kl_file *f = kl_file_open_bytes("blocks.gguf", data.v, data.n);
    int64_t dims[KL_MAX_RANK];
    for (int matrix = 0; matrix < 2; matrix++) {
        kl_tensor x = matrix ? kl_file_matrix(f, dev, "t") : kl_file_tensor(f, dev, "t");
        CHECK(kl_check(x) == KL_OK && kl_shape(x, dims) == 2 && dims[0] == INT64_C(1) << 52 && !dims[1]);
        kl_release(x);
    }
    kl_file_close(f);
    kl_clear_error();
    free(data.v);
}

/* What kl_quantized_with refuses. */
static void refusals(void)
{
    static const uint8_t bytes[512];
    static const float floats[64];
    const kl_qscheme four = {.type = KL_Q_U4, .axis = 1, .block = 32};
    const kl_qscheme eight = {.type = KL_Q_I8, .axis = 1, .block = 32};
    kl_tensor u = kl_input(dev, KL_U8, DIMS(16, 32), bytes), i = kl_input(dev, KL_I8, DIMS(4, 64), bytes);
    kl_tensor s = kl_input(dev, KL_F32, DIMS(16, 2), floats), s4 = kl_input(dev, KL_F32, DIMS(4, 2), floats);
    kl_tensor odd = kl_input(dev, KL_F32, DIMS(16, 3), floats), lone = kl_input(dev, KL_F32, DIMS(16, 1), floats);
    kl_tensor group = kl_input(dev, KL_U8, DIMS(1, 8, 16, 4), bytes);
    kl_tensor alternate = kl_input(dev, KL_F32, DIMS(1, 2, 16), floats);
    kl_tensor none = kl_quantized_with(u, four, odd, NULL);
    CHECK(kl_check(none) == KL_ERR_SHAPE && strstr(kl_last_error(), "the scale has shape [16,3], not [16,2]"));
    none = kl_quantized_with(i, four, s, NULL);
    CHECK(kl_check(none) == KL_ERR_TYPE && strstr(kl_last_error(), "the integers are i8, not plain u8"));
    none = kl_quantized_with(u, four, s, &(kl_quantized_options){.super_scale = odd});
    CHECK(kl_check(none) == KL_ERR_SHAPE && strstr(kl_last_error(), "super-blocks has shape [16,3]"));
    none = kl_quantized_with(u, four, s, &(kl_quantized_options){.super_minimum = lone});
    CHECK(kl_check(none) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "without a minimum"));
    none = kl_quantized_with(u, four, s, &(kl_quantized_options){.interleaved = true});
    CHECK(kl_check(none) == KL_ERR_SHAPE && strstr(kl_last_error(), "interleaved integers have shape [N/16, bytes/4"));
    none = kl_quantized_with(group, four, s, &(kl_quantized_options){.interleaved = true});
    CHECK(kl_check(none) == KL_ERR_SHAPE && strstr(kl_last_error(), "the scale has shape [16,2], not [1,2,16]"));
    none = kl_quantized_with(group, four, alternate, &(kl_quantized_options){.interleaved = true, .zero_point = u});
    CHECK(kl_check(none) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "interleaved integers have no zero point"));
    const kl_qscheme six = {.type = KL_Q_I6, .axis = 1, .block = 16};
    kl_tensor third = kl_input(dev, KL_U8, DIMS(4, 16), bytes);
    none = kl_quantized_with(third, six, s4, &(kl_quantized_options){.second = third});
    CHECK(kl_check(none) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "6-bit integers are three arrays"));
    none = kl_quantized(third, six, s4, kl_none);
    CHECK(kl_check(none) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "6-bit integers are three arrays"));
    none = kl_quantized_with(u, four, s, &(kl_quantized_options){.third = third});
    CHECK(kl_check(none) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "three arrays are of 6-bit integers"));
    none = kl_quantized_with(third, six, s4, &(kl_quantized_options){.second = third, .third = u});
    CHECK(kl_check(none) == KL_ERR_SHAPE && strstr(kl_last_error(), "the third array has shape [16,32], not [4,16]"));
    none = kl_quantized_with(third, six, s4, &(kl_quantized_options){.second = third, .third = i});
    CHECK(kl_check(none) == KL_ERR_TYPE && strstr(kl_last_error(), "the third array is i8, not plain u8"));
    none = kl_quantized_with(third, six, s4, &(kl_quantized_options){.second = third, .third = third, .zero_point = u});
    CHECK(kl_check(none) == KL_ERR_SHAPE && strstr(kl_last_error(), "the scale has shape [4,2], not [4,4]"));
    none = kl_quantized_with(s4, six, s4, &(kl_quantized_options){.second = third, .third = third});
    CHECK(kl_check(none) == KL_ERR_TYPE && strstr(kl_last_error(), "the integers are f32, not plain u8"));
    none = kl_to_quantized(s, (kl_qscheme){.type = KL_Q_I6}, kl_none, kl_none);
    CHECK(kl_check(none) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "KL_Q_I6 is of integers that are there"));
    none = kl_to_quantized(s, (kl_qscheme){.type = KL_Q_U4}, kl_none, kl_none);
    CHECK(kl_check(none) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "KL_Q_U4 is of integers that are there"));
    kl_clear_error();
    kl_tensor q = kl_quantized_with(i, eight, s4, NULL); /* the next call works */
    CHECK(kl_check(q) == KL_OK && kl_layer_parts(q) == 6);
    const kl_tensor all[] = {u, i, s, s4, odd, lone, group, alternate, third, q};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        kl_release(all[k]);
}

int main(void)
{
    dev = kl_device_named("ref");
    for (int i = 0; i < GGUF_TYPES; i++) {
        device_now = gguf_types[i].name;
        decoded(&gguf_types[i]);
        interleaved(&gguf_types[i]);
        without_columns(&gguf_types[i]);
    }
    device_now = "refusals";
    refusals();
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
