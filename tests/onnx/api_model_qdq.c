/* Products between DequantizeLinear and QuantizeLinear, which are computed in integers: the numbers of the definition,
 * computed in doubles, and the gradient of the product of floats. */
#include "tests/formats/onnx_write.h"
#include "tests/onnx/model_test.h"

enum { M = 5, K = 37, N = 6, ROWS = 2, UINT8 = 2, INT8 = 3 };
static kl_device dev;
static char path[] = "/tmp/kiln-qdq-XXXXXX";

/* How the operand and the weights are quantized. */
struct quantized {
    const char *op;
    bool a_signed, b_signed, columns, zero, down; /* columns: a scale for each; zero: b has zero points; down: transB */
};

static float X[ROWS * M * K], a_scale = 0.05f, b_scale[N];
static uint8_t B[K * N], b_zero[N], a_zero = 3;

static double b_value(const struct quantized *q, int k, int n)
{
    uint8_t v = B[q->down ? n * K + k : k * N + n];
    int at = q->columns ? n : 0, zero = q->zero ? q->b_signed ? (int8_t)b_zero[at] : b_zero[at] : 0;
    return ((q->b_signed ? (int8_t)v : v) - zero) * (double)b_scale[at];
}

/* x quantized and dequantized; *inside: it was not saturated. */
static double a_value(const struct quantized *q, float x, bool *inside)
{
    double low = q->a_signed ? -128 : 0, high = q->a_signed ? 127 : 255, v = nearbyint((double)(x / a_scale)) + a_zero;
    *inside = v >= low && v <= high;
    v = v < low ? low : v > high ? high : v;
    return (v - a_zero) * (double)a_scale;
}

static kl_model *load(const struct quantized *q)
{
    struct pb g = {0};
    int at = q->a_signed ? INT8 : UINT8, bt = q->b_signed ? INT8 : UINT8, count = q->columns ? N : 1;
    int64_t shape[2] = {q->down ? N : K, q->down ? K : N}, scales = count;
    bool gemm = !strcmp(q->op, "Gemm");
    onnx_node(&g, "QuantizeLinear", "x sa za", "qa", onnx_none());
    onnx_node(&g, "DequantizeLinear", "qa sa za", "a", onnx_none());
    onnx_node(&g, "DequantizeLinear", q->zero ? "B sb zb" : "B sb", "b", onnx_attr_i("axis", !q->down));
    onnx_node(&g, q->op, "a b", "y", gemm ? onnx_attr_i("transB", q->down) : onnx_none());
    pb_text(&g, 2, "qdq");
    onnx_initializer(&g, "sa", FLOAT, 0, NULL, &a_scale, sizeof a_scale);
    onnx_initializer(&g, "za", at, 0, NULL, &a_zero, 1);
    onnx_initializer(&g, "B", bt, 2, shape, B, sizeof B);
    onnx_initializer(&g, "sb", FLOAT, q->columns, &scales, b_scale, (size_t)count * sizeof *b_scale);
    if (q->zero)
        onnx_initializer(&g, "zb", bt, q->columns, &scales, b_zero, (size_t)count);
    onnx_io(&g, 11, "x", FLOAT, gemm ? 2 : 3, gemm ? (int64_t[]){ROWS * M, K} : (int64_t[]){ROWS, M, K});
    onnx_io(&g, 12, "y", FLOAT, gemm ? 2 : 3, gemm ? (int64_t[]){ROWS * M, N} : (int64_t[]){ROWS, M, N});
    struct pb m = onnx_model(&g, 18);
    CHECK(onnx_save(path, m.data, m.n));
    free(m.data);
    return kl_model_open(dev, path);
}

static void check_values(const struct quantized *q, const float *y, const float *g)
{
    double worst = 0, worst_gradient = 0;
    for (int r = 0; r < ROWS * M; r++) {
        double sum[N] = {0};
        for (int k = 0; k < K; k++) {
            bool inside;
            double a = a_value(q, X[r * K + k], &inside), gradient = 0;
            for (int n = 0; n < N; n++) {
                sum[n] += a * b_value(q, k, n);
                gradient += b_value(q, k, n);
            }
            worst_gradient = fmax(worst_gradient, fabs((double)g[r * K + k] - (inside ? gradient : 0)));
        }
        for (int n = 0; n < N; n++)
            worst = fmax(worst, fabs((double)y[r * N + n] - sum[n]));
    }
    CHECK(worst < 2e-5 && worst_gradient < 2e-5);
}

static void multiplies(const struct quantized *q)
{
    static float got[ROWS * M * N], gradient[ROWS * M * K];
    kl_model *m = load(q);
    bool gemm = !strcmp(q->op, "Gemm");
    kl_tensor x = gemm ? kl_input(dev, KL_F32, 2, (int64_t[]){ROWS * M, K}, X)
                  : kl_input(dev, KL_F32, 3, (int64_t[]){ROWS, M, K}, X), y;
    for (int i = 0; i < 2; i++) {
        OK(kl_trace_begin("qdq"));
        OK(kl_model_call(m, 1, &x, 1, &y));
        kl_tensor g = kl_keep(kl_grad(kl_sum_all(y), x));
        kl_keep(y);
        OK(kl_trace_end());
        OK(kl_read(y, got, sizeof got));
        OK(kl_read(g, gradient, sizeof gradient));
        check_values(q, got, gradient);
        kl_release(y);
        kl_release(g);
    }
    kl_release(x);
    kl_model_close(m);
}

int main(int argc, char **argv)
{
    int status;
    if (!model_test_begin(argc, argv, path, &dev, &status))
        return status;
    uint32_t random = 1;
    for (int i = 0; i < ROWS * M * K; i++)
        X[i] = (float)((random = random * 1664525 + 1013904223) >> 8) / (1 << 24) * 16 - 4;
    for (int i = 0; i < K * N; i++)
        B[i] = (uint8_t)((random = random * 1664525 + 1013904223) >> 24);
    for (int n = 0; n < N; n++) {
        b_scale[n] = 0.001f * (float)(n + 1);
        b_zero[n] = (uint8_t)(n * 3 + 1);
    }
    for (int i = 0; i < 64; i++) {
        bool gemm = i & 1;
        struct quantized q = {gemm ? "Gemm" : "MatMul", i >> 1 & 1, i >> 2 & 1, i >> 3 & 1, i >> 4 & 1,
                              gemm && (i >> 5 & 1)};
        if (gemm || i < 32)
            multiplies(&q);
    }
    unlink(path);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
