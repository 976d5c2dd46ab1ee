/* quantize and dequantize: rounding, saturation, scales of a tensor and of an axis, gradients straight through,
 * misuse. */
#include "tests/support/api_check.h"

static kl_device dev;
#define D(...) DIMS(__VA_ARGS__)
#define COUNT(a) (int)(sizeof(a) / sizeof(a)[0])

static kl_tensor f32(int rank, const int64_t *dims, const float *v) { return kl_input(dev, KL_F32, rank, dims, v); }

static void values(void)
{
    static const float at[] = {0, -0.0f, 0.25f, 0.75f, 1.25f, -0.25f, -0.75f, 63.4f, 63.5f, 1e9f, -64, -64.3f, -1e30f,
                               INFINITY,
                               -INFINITY, NAN, 0.26f};
    kl_tensor x = f32(D(COUNT(at)), at), half = kl_scalar(dev, KL_F32, 0.5);
    kl_tensor q = kl_quantize(x, half, kl_none, KL_I8, 0);
    CHECK(kl_dtype_of(q) == KL_I8);
    NEAR_LIST(kl_dequantize(q, half, kl_none, 0), 0, 0, 0, 0, 1, 1, 0, -1, 63.5, 63.5, 63.5, -64, -64, -64, 63.5, -64,
              0, 0.5);
    NEAR_LIST(q, 0, 0, 0, 0, 2, 2, 0, -2, 127, 127, 127, -128, -128, -128, 127, -128, 0, 1); /* ties to even */
    kl_tensor ten = kl_cast(kl_scalar(dev, KL_I32, 10), KL_U8);
    q = kl_quantize(x, half, ten, KL_U8, 0);
    NEAR_LIST(kl_dequantize(q, half, ten, 0), 0, 0, 0, 0, 1, 1, 0, -1, 63.5, 63.5, 122.5, -5, -5, -5, 122.5, -5, 0,
              0.5);
    NEAR_LIST(q, 0, 10, 10, 10, 12, 12, 10, 8, 137, 137, 255, 0, 0, 0, 255, 0, 10, 11);
    /* a scale of 0: infinities saturate, 0 / 0 is the zero point */
    NEAR_LIST(kl_quantize(f32(D(3), (float[]){1, -1, 0}), kl_scalar(dev, KL_F32, 0), kl_none, KL_I8, 0), 0, 127, -128,
              0);
    kl_release(x);
    kl_release(half);
    kl_release(ten);
}

/* A number for each slice of an axis, whichever it is. */
static void channels(void)
{
    static const float at[6] = {1, 2, 3, 4, 5, 6};
    kl_tensor x = f32(D(2, 3), at), rows = f32(D(2), (float[]){1, 2}), columns = f32(D(3), (float[]){1, 0.5f, 0.25f});
    kl_tensor zero = kl_cast(kl_arange(dev, KL_I32, 3), KL_I8);
    kl_tensor q = kl_quantize(x, rows, kl_none, KL_I8, 0);
    SHAPE(q, 2, 3);
    NEAR_LIST(kl_dequantize(q, rows, kl_none, -2), 0, 1, 2, 3, 4, 4, 6);
    NEAR_LIST(q, 0, 1, 2, 3, 2, 2, 3);
    q = kl_quantize(x, columns, zero, KL_I8, -1);
    NEAR_LIST(kl_dequantize(q, columns, zero, 1), 0, 1, 2, 3, 4, 5, 6);
    NEAR_LIST(q, 0, 1, 5, 14, 4, 11, 26);
    kl_tensor h = kl_cast(x, KL_F16), hs = kl_cast(columns, KL_F16),
        back = kl_dequantize(kl_quantize(h, columns, zero, KL_I8, 1), hs, zero, 1);
    CHECK(kl_dtype_of(back) == KL_F16);
    NEAR_LIST(back, 0, 1, 2, 3, 4, 5, 6);
    kl_tensor none = kl_zeros(dev, KL_F32, D(0, 3));
    q = kl_quantize(none, columns, zero, KL_I8, 1);
    SHAPE(q, 0, 3);
    kl_release(q);
    kl_release(none);
    kl_release(h);
    kl_release(hs);
    kl_release(x);
    kl_release(rows);
    kl_release(columns);
    kl_release(zero);
}

/* Through rounding as if it were not there, but not through saturation; first and second order, in and outside of
 * traces. */
static void gradients(void)
{
    static const float at[5] = {0.3f, -1.1f, 70, -80, 63};
    kl_tensor x = f32(D(5), at), s = kl_input(dev, KL_F32, 0, NULL, &(float){0.5f});
    CHECK(kl_trace_begin("straight through") == KL_OK);
    kl_tensor y = kl_dequantize(kl_quantize(x, s, kl_none, KL_I8, 0), s, kl_none, 0);
    kl_tensor loss = kl_mul(y, y);
    kl_tensor dx = kl_keep(kl_grad(loss, x)), ds = kl_keep(kl_grad(y, s)), ddx = kl_keep(kl_grad(dx, x));
    CHECK(kl_trace_end() == KL_OK);
    NEAR_LIST(dx, 1e-6, 2 * 0.5, -2 * 1.0, 0, 0, 2 * 63);
    NEAR_LIST(ddx, 1e-6, 2, 2, 0, 0, 2);
    /* of the scale: q - x / s where it is in range, else q */
    NEAR_LIST(ds, 1e-5, (1 - 0.6) + (-2 + 2.2) + 127 - 128 + (126 - 126));
    CHECK(kl_requires_grad(x) == KL_OK);
    kl_tensor q = kl_quantize(x, s, kl_none, KL_I8, 0);
    y = kl_dequantize(q, s, kl_none, 0);
    NEAR_LIST(kl_grad(kl_mul(y, y), x), 1e-6, 1, -2, 0, 0, 126);
    NEAR_LIST(kl_grad(kl_square(kl_cast(q, KL_F32)), x), 0, 0, 0, 0, 0, 0); /* only dequantize passes one back */
    kl_no_grad_begin();
    kl_tensor stopped = kl_quantize(x, s, kl_none, KL_I8, 0);
    kl_no_grad_end();
    kl_tensor cut = kl_grad(kl_dequantize(stopped, s, kl_none, 0), x);
    CHECK(kl_check(cut) == KL_ERR_GRAD);
    kl_release(cut);
    kl_clear_error();
    kl_release(stopped);
    kl_release(q);
    kl_release(y);
    kl_release(x);
    kl_release(s);
}

static void refused(kl_tensor t, kl_status code, const char *why, int line)
{
    check_at(kl_check(t) == code && strstr(kl_last_error(), why), line, why);
    kl_release(t);
    kl_clear_error();
}
#define REFUSED(t, code, why) refused(t, code, why, __LINE__)

static void misuse(void)
{
    kl_tensor x = kl_zeros(dev, KL_F32, D(2, 3)), i = kl_zeros(dev, KL_I32, D(2, 3)), s = kl_scalar(dev, KL_F32, 1);
    kl_tensor two = kl_zeros(dev, KL_F32, D(2)), u = kl_zeros(dev, KL_U8, D(2)), q = kl_zeros(dev, KL_I8, D(2, 3));
    REFUSED(kl_quantize(x, s, kl_none, KL_I32, 0), KL_ERR_TYPE, "quantize: the integers are i8 or u8, not i32");
    REFUSED(kl_quantize(x, s, kl_none, (kl_dtype)99, 0), KL_ERR_TYPE, "quantize: the integers are i8 or u8");
    REFUSED(kl_quantize(i, s, kl_none, KL_I8, 0), KL_ERR_TYPE, "quantize: needs a floating dtype, got i32");
    REFUSED(kl_quantize(x, two, kl_none, KL_I8, 1), KL_ERR_SHAPE,
            "the scale has shape [2], not [] or that of axis 1 of [2,3]");
    REFUSED(kl_quantize(x, two, kl_none, KL_I8, 5), KL_ERR_SHAPE, "axis 5 is out of range for shape [2,3]");
    REFUSED(kl_quantize(x, two, u, KL_I8, 0), KL_ERR_TYPE, "the zero point is u8, the integers are i8");
    REFUSED(kl_quantize(x, kl_zeros(dev, KL_I32, 0, NULL), kl_none, KL_I8, 0), KL_ERR_TYPE,
            "the scale needs a floating dtype, got i32");
    REFUSED(kl_dequantize(i, s, kl_none, 0), KL_ERR_TYPE, "dequantize: the integers are i8 or u8, not i32");
    REFUSED(kl_dequantize(q, two, u, 0), KL_ERR_TYPE, "dequantize: the zero point is u8, the integers are i8");
    REFUSED(kl_dequantize(q, kl_none, kl_none, 0), KL_ERR_HANDLE, "the scale");
    kl_release(x);
    kl_release(i);
    kl_release(s);
    kl_release(two);
    kl_release(u);
    kl_release(q);
}

/* Rows and transposes of a quantized tensor are those of the floats that it stands for, bit for bit. */
static void same_floats(kl_tensor a, kl_tensor b, int line)
{
    float x[400], y[400];
    size_t n = (size_t)kl_numel(b) * sizeof *x;
    check_at(kl_numel(a) == kl_numel(b) && n <= sizeof x && kl_read(a, x, n) == KL_OK && kl_read(b, y, n) == KL_OK &&
                 !memcmp(x, y, n), line, "as the floats");
    kl_release(a);
    kl_release(b);
}

static void rows_and_transposes(void)
{
    static const int32_t at[6] = {3, 0, 5, 3, 2, 1};
    static const kl_qtype types[] = {KL_Q_I8, KL_Q_U8, KL_Q_I4};
    kl_tensor x = kl_randn(dev, KL_F32, D(8, 6), 3), list = kl_input(dev, KL_I32, D(6), at);
    kl_tensor table = kl_input(dev, KL_I32, D(2, 3), at), one = kl_input(dev, KL_I32, 0, NULL, at);
    for (int type = 0; type < 3; type++)
        for (int grain = 0; grain < 5; grain++)
            for (int axis = 0; axis < 2; axis++) {
                kl_qscheme scheme = {.type = types[type], .per_axis = grain == 1 || grain == 2, .axis = grain % 2,
                                     .block = grain > 2 ? 2 : 0};
                kl_trace_begin("quantized");
                kl_tensor q = kl_keep(kl_to_quantized(x, scheme, kl_none, kl_none)), dense = kl_keep(kl_dense(q));
                CHECK(kl_trace_end() == KL_OK);
                if (grain || types[type] == KL_Q_I4) { /* a scale for all stays one: it is quantized itself */
                    same_floats(kl_take(q, axis, list), kl_take(dense, axis, list), __LINE__);
                    same_floats(kl_take(q, axis, table), kl_take(dense, axis, table), __LINE__);
                    same_floats(kl_take(q, axis, one), kl_take(dense, axis, one), __LINE__);
                }
                same_floats(kl_transpose(q, 0, 1), kl_transpose(dense, 0, 1), __LINE__);
                kl_release(q);
                kl_release(dense);
            }
    kl_release(x);
    kl_release(list);
    kl_release(table);
    kl_release(one);
}

/* The value of x times the transpose of w; kernels: that many were launched for it. */
static float *product(kl_tensor x, kl_tensor w, int64_t n, int64_t kernels, int line)
{
    float *v = malloc((size_t)n * sizeof *v);
    kl_tensor y = kl_matmul(x, kl_transpose(w, 0, 1));
    int64_t before = kl_counter("launches");
    check_at(v && kl_numel(y) == n && kl_read(y, v, (size_t)n * sizeof *v) == KL_OK, line, "a product");
    if (kernels && !strcmp(device_now, "cpu"))
        check_at(kl_counter("launches") - before == kernels, line, "kernels of a product");
    kl_release(y);
    return v;
}

/* Products of floats with weights in blocks are those with the floats that they stand for, bit for bit, for any number
 * of rows, and never store these floats: each is one kernel. */
static void products_of_blocks(void)
{
    enum { K = 352, N = 75 };
    static const int64_t rows[] = {1, 3, 8, 9, 131, 132, 257, 600};
    for (int type = 0; type < 2; type++) {
        const kl_qscheme scheme = {.type = type ? KL_Q_I4 : KL_Q_I8, .axis = -1, .block = 32};
        kl_trace_begin("weights");
        kl_tensor w = kl_keep(kl_to_quantized(kl_randn(dev, KL_F32, D(N, K), 7), scheme, kl_none, kl_none));
        kl_tensor dense = kl_keep(kl_dense(w));
        CHECK(kl_trace_end() == KL_OK);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            kl_tensor x = kl_keep(kl_randn(dev, KL_F32, D(rows[i], K), 9));
            int64_t n = rows[i] * N;
            CHECK(kl_sync(dev) == KL_OK);
            float *a = product(x, w, n, 1, __LINE__), *b = product(x, dense, n, 0, __LINE__);
            CHECK(a && b && !memcmp(a, b, (size_t)n * sizeof *a));
            /* integers times integers: one kernel multiplies, scales and adds the blocks */
            const kl_qscheme bytes = {.type = KL_Q_I8, .axis = -1, .block = 32};
            kl_tensor q = kl_keep(kl_to_quantized(x, bytes, kl_none, kl_none));
            CHECK(kl_sync(dev) == KL_OK);
            float *c = product(q, w, n, 1, __LINE__), most = 0;
            for (int64_t j = 0; a && c && j < n; j++)
                most = fmaxf(most, fabsf(a[j] - c[j]));
            CHECK(c && most > 0 && most < 1.5f); /* of K products, each off by at most half a step of 127 */
            kl_release(q);
            free(c);
            free(a);
            free(b);
            kl_release(x);
        }
        kl_release(w);
        kl_release(dense);
    }
}

static void all(kl_device device)
{
    dev = device;
    rows_and_transposes();
    products_of_blocks();
    values();
    channels();
    gradients();
    misuse();
}

int main(void) { return on_devices(all); }
