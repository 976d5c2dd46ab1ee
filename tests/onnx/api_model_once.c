/* What is computed from a model's weights alone, which is done once for all calls: calls record nothing of it, weights
 * that are taken are assigned and differentiated as without it, and nothing of a function or of what varies is kept. */
#include "tests/formats/onnx_write.h"
#include "tests/onnx/model_test.h"

static kl_device dev;
static char path[] = "/tmp/kiln-once-XXXXXX";
static const float W[4] = {1, -2, 3, 4}, X[4] = {1, 1, 2, 0};

static kl_model *load(struct pb *g)
{
    struct pb m = onnx_model(g, 18);
    CHECK(onnx_save(path, m.data, m.n));
    free(m.data);
    return kl_model_open(dev, path);
}

static bool says(const char *text) { return strstr(kl_last_error(), text) != NULL; }

/* y = x - V^2 - V, V the transpose of W */
static kl_model *chain(void)
{
    struct pb g = {0};
    onnx_node(&g, "Transpose", "W", "V", onnx_none());
    onnx_node(&g, "Neg", "V", "n", onnx_none());
    onnx_node(&g, "Mul", "n V", "s", onnx_none());
    onnx_node(&g, "Abs", "s", "a", onnx_none());
    onnx_node(&g, "Neg", "a", "b", onnx_none());
    onnx_node(&g, "Add", "x b", "sum", onnx_none());
    onnx_node(&g, "Sub", "sum V", "y", onnx_none());
    pb_text(&g, 2, "chain");
    onnx_initializer(&g, "W", FLOAT, 2, (int64_t[]){2, 2}, W, sizeof W);
    onnx_io(&g, 11, "x", FLOAT, 2, (int64_t[]){2, 2});
    onnx_io(&g, 12, "y", FLOAT, 2, (int64_t[]){2, 2});
    return load(&g);
}

/* The same of w. */
static void chain_of(const float *w, float *y)
{
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            y[2 * i + k] = X[2 * i + k] - w[2 * k + i] * w[2 * k + i] - w[2 * k + i];
}

static void is_near(kl_tensor t, const float *want)
{
    float got[4] = {0};
    OK(kl_read(t, got, sizeof got));
    for (int i = 0; i < 4; i++)
        CHECK(fabsf(got[i] - want[i]) < 1e-5f);
}

static void computes_once(void)
{
    kl_model *m = chain();
    kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){2, 2}, X), y;
    float want[4];
    kl_run_info info;
    chain_of(W, want);
    for (int i = 0; i < 3; i++) {
        OK(kl_trace_begin("chain"));
        OK(kl_model_call(m, 1, &x, 1, &y));
        kl_keep(y);
        OK(kl_trace_end());
        OK(kl_trace_info(&info));
        CHECK(info.nodes <= 7 && info.kernels <= 1); /* of 9, and of two kernels */
        is_near(y, want);
        kl_release(y);
    }
    OK(kl_model_call(m, 1, &x, 1, &y)); /* outside of a trace */
    is_near(y, want);
    kl_release(y);
    kl_release(x);
    kl_model_close(m);
}

/* A weight that is taken before a call, or between calls, is what the next call computes with. */
static void follows_weights(void)
{
    for (int before = 0; before < 2; before++) {
        kl_model *m = chain();
        kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){2, 2}, X), y, w = kl_none;
        float now[4], want[4];
        if (before)
            w = kl_model_weight(m, "W");
        chain_of(W, want);
        OK(kl_model_call(m, 1, &x, 1, &y));
        is_near(y, want);
        kl_release(y);
        w = kl_model_weight(m, "W");
        OK(kl_assign(w, kl_add_scalar(w, 1)));
        for (int i = 0; i < 4; i++)
            now[i] = W[i] + 1;
        chain_of(now, want);
        for (int i = 0; i < 2; i++) {
            OK(kl_model_call(m, 1, &x, 1, &y));
            is_near(y, want);
            kl_release(y);
        }
        kl_release(x);
        kl_model_close(m);
    }
}

/* The gradient of a weight in the trace of the call: right if it was taken before, else an error that says so. */
static void differentiates(void)
{
    for (int before = 0; before < 2; before++) {
        kl_model *m = chain();
        kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){2, 2}, X), y, w = kl_none;
        if (before)
            w = kl_model_weight(m, "W");
        kl_clear_error();
        OK(kl_trace_begin("gradient"));
        OK(kl_model_call(m, 1, &x, 1, &y));
        if (before) {
            kl_tensor g = kl_keep(kl_grad(kl_sum_all(y), w));
            OK(kl_trace_end());
            is_near(g, (float[]){-3, 3, -7, -9}); /* -2 w - 1 */
            kl_release(g);
        } else {
            CHECK(!kl_model_weight(m, "W").id && kl_last_error_code() == KL_ERR_TRACE);
            CHECK(says("'W'") && says("before the trace"));
            kl_trace_abandon();
            kl_clear_error();
            CHECK(kl_model_weight(m, "W").id != 0);
        }
        kl_release(x);
        kl_model_close(m);
    }
}

/* Branches: a result of the weights in one of them is kept; the other branch has its own. */
static void in_branches(void)
{
    struct pb g = {0}, attr = {0};
    for (int i = 0; i < 2; i++) {
        struct pb b = {0};
        onnx_node(&b, "Neg", "W", i ? "e" : "t", onnx_none());
        onnx_node(&b, i ? "Add" : "Mul", i ? "e x" : "t x", i ? "ey" : "ty", onnx_none());
        pb_text(&b, 2, i ? "else" : "then");
        onnx_io(&b, 12, i ? "ey" : "ty", FLOAT, 2, (int64_t[]){2, 2});
        onnx_attr_g(&attr, i ? "else_branch" : "then_branch", &b);
    }
    onnx_node(&g, "If", "c", "y", attr);
    pb_text(&g, 2, "branches");
    onnx_initializer(&g, "W", FLOAT, 2, (int64_t[]){2, 2}, W, sizeof W);
    onnx_io(&g, 11, "x", FLOAT, 2, (int64_t[]){2, 2});
    onnx_io(&g, 11, "c", BOOL, 0, NULL);
    onnx_io(&g, 12, "y", FLOAT, 2, (int64_t[]){2, 2});
    kl_model *m = load(&g);
    for (int i = 0; i < 4; i++) {
        uint8_t c = i & 1;
        float want[4];
        kl_tensor in[2] = {kl_input(dev, KL_F32, 2, (int64_t[]){2, 2}, X), kl_input(dev, KL_BOOL, 0, NULL, &c)}, y;
        for (int k = 0; k < 4; k++)
            want[k] = c ? -W[k] * X[k] : X[k] - W[k];
        if (i < 2)
            OK(kl_trace_begin("branches"));
        OK(kl_model_call(m, 2, in, 1, &y));
        if (i < 2) {
            kl_keep(y);
            OK(kl_trace_end());
        }
        is_near(y, want);
        kl_release(y);
        kl_release(in[0]);
        kl_release(in[1]);
    }
    kl_model_close(m);
}

/* What follows a branch that gives one of two weights, and what is cut to a length of the operand, is another one in
 * another call. */
static void follows_calls(void)
{
    struct pb g = {0}, attr = {0};
    for (int i = 0; i < 2; i++) {
        struct pb b = {0};
        onnx_node(&b, "Identity", i ? "V" : "W", i ? "e" : "t", onnx_none());
        pb_text(&b, 2, i ? "else" : "then");
        onnx_io(&b, 12, i ? "e" : "t", FLOAT, 1, (int64_t[]){4});
        onnx_attr_g(&attr, i ? "else_branch" : "then_branch", &b);
    }
    onnx_node(&g, "If", "c", "one", attr);
    onnx_node(&g, "Neg", "one", "minus", onnx_none());
    onnx_node(&g, "Shape", "x", "n", onnx_none());
    onnx_node(&g, "Slice", "minus zero n", "cut", onnx_none());
    onnx_node(&g, "Slice", "W zero n", "part", onnx_none());
    onnx_node(&g, "Exp", "part", "more", onnx_none());
    onnx_node(&g, "Mul", "cut more", "s", onnx_none());
    onnx_node(&g, "Add", "x s", "y", onnx_none());
    pb_text(&g, 2, "calls");
    onnx_initializer(&g, "W", FLOAT, 1, (int64_t[]){4}, W, sizeof W);
    onnx_initializer(&g, "V", FLOAT, 1, (int64_t[]){4}, X, sizeof X);
    onnx_initializer(&g, "zero", INT64, 1, (int64_t[]){1}, (int64_t[]){0}, sizeof(int64_t));
    onnx_io(&g, 11, "x", FLOAT, 1, (int64_t[]){-1});
    onnx_io(&g, 11, "c", BOOL, 0, NULL);
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){-1});
    kl_model *m = load(&g);
    for (int i = 0; i < 8; i++) {
        uint8_t c = i & 1;
        int64_t count = 2 + (i >> 1 & 1);
        float got[4] = {0};
        kl_tensor in[2] = {kl_input(dev, KL_F32, 1, &count, X), kl_input(dev, KL_BOOL, 0, NULL, &c)}, y;
        if (i < 4)
            OK(kl_trace_begin("calls"));
        OK(kl_model_call(m, 2, in, 1, &y));
        if (i < 4) {
            kl_keep(y);
            OK(kl_trace_end());
        }
        OK(kl_read(y, got, (size_t)count * sizeof *got));
        for (int k = 0; k < count; k++)
            CHECK(fabsf(got[k] - (X[k] - (c ? W[k] : X[k]) * expf(W[k]))) < 1e-4f);
        kl_release(y);
        kl_release(in[0]);
        kl_release(in[1]);
    }
    kl_model_close(m);
}

/* Results that are much larger than the weights are recorded in each call. */
static void is_bounded(void)
{
    static const int64_t many[2] = {4096, 4096};
    struct pb g = {0};
    onnx_node(&g, "Expand", "w many", "wide", onnx_none());
    onnx_node(&g, "Exp", "wide", "large", onnx_none());
    onnx_node(&g, "ReduceMax", "large", "max", onnx_attr_i("keepdims", 0));
    onnx_node(&g, "Add", "max x", "y", onnx_none());
    pb_text(&g, 2, "bounded");
    onnx_initializer(&g, "w", FLOAT, 2, (int64_t[]){1, 1}, (float[]){0}, sizeof(float));
    onnx_initializer(&g, "many", INT64, 1, (int64_t[]){2}, many, sizeof many);
    onnx_io(&g, 11, "x", FLOAT, 0, NULL);
    onnx_io(&g, 12, "y", FLOAT, 0, NULL);
    kl_model *m = load(&g);
    kl_tensor x = kl_input(dev, KL_F32, 0, NULL, X), y;
    OK(kl_trace_begin("bounded"));
    OK(kl_model_call(m, 1, &x, 1, &y));
    kl_keep(y);
    OK(kl_trace_end());
    kl_run_info info;
    OK(kl_trace_info(&info));
    CHECK(info.nodes > 4);
    CHECK(kl_item_f32(y) == 2);
    kl_release(y);
    kl_release(x);
    kl_model_close(m);
}

/* y = x W: weights below the least normal number are zeros with their signs, in the file itself and beside it, which is
 * not written. */
static void flushes_subnormals(bool beside)
{
    static const float w[4] = {1e-40f, -1e-40f, 1.17549435e-38f, -2}, x[4] = {1e38f, 1e38f, 1e38f, 1};
    struct pb g = {0}, t = onnx_tensor("W", FLOAT, 1, (int64_t[]){4}, beside ? NULL : w, beside ? 0 : sizeof w);
    char data[sizeof path + 8];
    float got[4], kept[4];
    uint32_t bits[4];
    snprintf(data, sizeof data, "%s.data", path);
    if (beside) {
        const char *entry[2] = {"location", strrchr(data, '/') + 1};
        struct pb e = {0};
        CHECK(onnx_save(data, w, sizeof w));
        pb_text(&e, 1, entry[0]);
        pb_text(&e, 2, entry[1]);
        pb_message(&t, 13, &e);
        pb_int(&t, 14, 1);
    }
    pb_message(&g, 5, &t);
    onnx_node(&g, "Mul", "x W", "y", onnx_none());
    pb_text(&g, 2, "subnormals");
    onnx_io(&g, 11, "x", FLOAT, 1, (int64_t[]){4});
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){4});
    kl_model *m = load(&g);
    kl_tensor in = kl_input(dev, KL_F32, 1, (int64_t[]){4}, x), y;
    OK(kl_model_call(m, 1, &in, 1, &y));
    OK(kl_read(y, got, sizeof got));
    CHECK(got[0] == 0 && got[1] == 0 && got[2] > 1.17f && got[2] < 1.18f && got[3] == -2);
    OK(kl_read(kl_model_weight(m, "W"), bits, sizeof bits));
    CHECK(bits[0] == 0 && bits[1] == UINT32_C(1) << 31 && bits[2] == UINT32_C(1) << 23);
    kl_release(y);
    kl_release(in);
    kl_model_close(m);
    FILE *f = beside ? fopen(data, "rb") : NULL;
    CHECK(!beside || (f && fread(kept, sizeof kept, 1, f) == 1 && !memcmp(kept, w, sizeof w)));
    if (f)
        fclose(f);
    unlink(data);
}

/* y = (a - p)(b - q), of bytes: a large b is kept in panels, and an unsigned one less 128 beside an unsigned a. */
static void multiplies_bytes(bool a_signed, bool b_signed, int64_t depth, int64_t columns, uint8_t q)
{
    enum { ROWS = 3, UINT8 = 2, INT8 = 3 };
    const uint8_t p = 5;
    const int ta = a_signed ? INT8 : UINT8, tb = b_signed ? INT8 : UINT8;
    uint8_t *a = malloc((size_t)(ROWS * depth)), *b = malloc((size_t)(depth * columns));
    int32_t *got = calloc((size_t)(ROWS * columns), sizeof *got);
    uint32_t random = 1;
    if (!CHECK(a && b && got))
        exit(1);
    for (int64_t i = 0; i < ROWS * depth; i++)
        a[i] = (uint8_t)((random = random * 1664525 + 1013904223) >> 24);
    for (int64_t i = 0; i < depth * columns; i++)
        b[i] = (uint8_t)((random = random * 1664525 + 1013904223) >> 24);
    struct pb g = {0};
    onnx_node(&g, "MatMulInteger", "a b p q", "y", onnx_none());
    pb_text(&g, 2, "bytes");
    onnx_initializer(&g, "b", tb, 2, (int64_t[]){depth, columns}, b, (size_t)(depth * columns));
    onnx_initializer(&g, "p", ta, 0, NULL, &p, 1);
    onnx_initializer(&g, "q", tb, 0, NULL, &q, 1);
    onnx_io(&g, 11, "a", ta, 2, (int64_t[]){ROWS, depth});
    onnx_io(&g, 12, "y", INT32, 2, (int64_t[]){ROWS, columns});
    kl_model *m = load(&g);
    kl_tensor in = kl_input(dev, a_signed ? KL_I8 : KL_U8, 2, (int64_t[]){ROWS, depth}, a), y;
    OK(kl_trace_begin("bytes"));
    OK(kl_model_call(m, 1, &in, 1, &y));
    kl_keep(y);
    OK(kl_trace_end());
    OK(kl_read(y, got, (size_t)(ROWS * columns) * sizeof *got));
    int64_t wrong = 0;
    for (int64_t i = 0; i < ROWS * columns; i++) {
        int32_t sum = 0;
        for (int64_t k = 0; k < depth; k++) {
            uint8_t u = a[i / columns * depth + k], v = b[k * columns + i % columns];
            sum += ((a_signed ? (int8_t)u : u) - p) * ((b_signed ? (int8_t)v - (int8_t)q : v - q));
        }
        wrong += got[i] != sum;
    }
    CHECK(wrong == 0);
    kl_release(y);
    kl_release(in);
    kl_model_close(m);
    free(a), free(b), free(got);
}

int main(int argc, char **argv)
{
    int status;
    if (!model_test_begin(argc, argv, path, &dev, &status))
        return status;
    computes_once();
    follows_weights();
    differentiates();
    in_branches();
    follows_calls();
    is_bounded();
    flushes_subnormals(false);
    flushes_subnormals(true);
    for (int i = 0; i < 4; i++) {
        multiplies_bytes(i & 1, i >> 1, 5, 7, 200);
        multiplies_bytes(i & 1, i >> 1, 260, 4101, i ? 200 : 128);
    }
    multiplies_bytes(false, false, 260, 4101, 0);
    unlink(path);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
