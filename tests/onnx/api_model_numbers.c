/* Numbers that operators of ONNX models make: integers beyond 2^53, powers and means of integers, reductions over no
 * axes, sizes and activations where ONNX's text leaves a choice (the expected values are onnxruntime's), random numbers
 * that differ between nodes, rounds and calls, and outputs that are constants. */
#include "tests/formats/onnx_write.h"
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <unistd.h>

enum { DOUBLE = 11, UINT64 = 13, UINT8 = 2, MAX_COUNT = 4 };
static kl_device dev;
static char path[] = "/tmp/kiln-numbers-XXXXXX";

/* ---- graphs ---- */

static struct pb attr_floats(const char *name, int n, const float *v) /* one number: `f` */
{
    struct pb a = {0}, all = {0};
    pb_text(&a, 1, name);
    for (int i = 0; i < (n ? n : 1); i++) {
        pb_varint(&a, (n ? 7u : 2u) << 3 | 5);
        pb_bytes(&a, &v[i], 4);
    }
    pb_int(&a, 20, n ? 6 : 1);
    pb_message(&all, 5, &a);
    return all;
}
static struct pb attr_text(const char *name, const char *text)
{
    struct pb a = {0}, all = {0};
    pb_text(&a, 1, name);
    pb_text(&a, 4, text);
    pb_int(&a, 20, 3);
    pb_message(&all, 5, &a);
    return all;
}

static int element_of(kl_dtype d)
{
    return d == KL_F64 ? DOUBLE : d == KL_I64 ? INT64 : d == KL_U64 ? UINT64 : d == KL_I32 ? INT32 : d == KL_U8 ? UINT8
           : d == KL_BOOL ? BOOL : FLOAT;
}

/* An input of the graph, and the tensor for it. */
static kl_tensor given(struct pb *g, const char *name, kl_dtype d, int rank, const int64_t *dims, const void *data)
{
    onnx_io(g, 11, name, element_of(d), rank, dims);
    return kl_input(dev, d, rank, dims, data);
}

static kl_model *load(struct pb *g, int opset)
{
    pb_text(g, 2, "numbers");
    struct pb m = onnx_model(g, opset);
    bool ok = onnx_save(path, m.data, m.n);
    free(m.data);
    return ok ? kl_model_open(dev, path) : NULL;
}

/* Results "y", "z" of the graph; traced: in a trace. */
static bool call(struct pb *g, int opset, bool traced, uint32_t nin, const kl_tensor *in, uint32_t nout, kl_tensor *out)
{
    for (uint32_t i = 0; i < nout; i++)
        onnx_io(g, 12, (char[]){(char)('y' + i), 0}, FLOAT, 0, NULL);
    kl_model *m = load(g, opset);
    if (traced)
        kl_trace_begin("numbers");
    bool ok = m && kl_model_call(m, nin, in, nout, out) == KL_OK;
    for (uint32_t i = 0; traced && ok && i < nout; i++)
        kl_keep(out[i]);
    ok &= !traced || kl_trace_end() == KL_OK;
    kl_model_close(m);
    return ok;
}

/* One node of operands "x", and "a", which is an initializer unless it is NULL. */
#define ONE(op, opset, attributes, d, rank, dims, x, an, a, ...) do {                                                  \
        struct pb g_ = {0};                                                                                            \
        kl_tensor in_ = given(&g_, "x", d, rank, dims, x), y_;                                                         \
        onnx_node(&g_, op, (an) ? "x a" : "x", "y", attributes);                                                       \
        if (an)                                                                                                        \
            onnx_initializer(&g_, "a", INT64, 1, (int64_t[]){an}, a, 8 * (an));                                        \
        if (CHECK(call(&g_, opset, false, 1, &in_, 1, &y_)))                                                           \
            NEAR_LIST(y_, 1e-6, __VA_ARGS__);                                                                          \
        kl_release(in_);                                                                                               \
    } while (0)

/* ---- reductions ---- */

static void reductions_of_nothing(void)
{
    static const float x[2] = {-2, 3}, p[2] = {1, 2};
#define NOOP(op, v, ...) ONE(op, 18, onnx_attr_i("noop_with_empty_axes", 1), KL_F32, 1, (int64_t[]){2}, v, 0,          \
                             (const int64_t *)NULL, __VA_ARGS__)
    NOOP("ReduceL1", x, 2, 3);
    NOOP("ReduceL2", x, 2, 3);
    NOOP("ReduceLogSum", p, 0, log(2));
    NOOP("ReduceLogSumExp", x, -2, 3);
    NOOP("ReduceSumSquare", x, 4, 9);
    NOOP("ReduceSum", x, -2, 3);
    NOOP("ReduceMean", x, -2, 3);
    NOOP("ReduceMax", x, -2, 3);
    NOOP("ReduceMin", x, -2, 3);
    NOOP("ReduceProd", x, -2, 3);
    ONE("ReduceL2", 18, onnx_none(), KL_F32, 1, (int64_t[]){2}, x, 0, (const int64_t *)NULL, sqrt(13));
}

/* The rows of onnxruntime 1.32. */
static void reductions_of_integers(void)
{
    static const int32_t q[8] = {-7, 2, 3, -4, 9, 9, 9, 8}, p[8] = {7, 2, 3, 4, 9, 9, 9, 8};
    static const int64_t big[2] = {INT64_MAX - 1, 3}, one = 1;
    static const uint64_t unsigned_big[2] = {UINT64_C(1) << 63, 2};
#define ROWS(op, v, a, b) ONE(op, 18, onnx_none(), KL_I32, 2, ((int64_t[]){2, 4}), v, 1, &one, a, b)
    ROWS("ReduceMean", q, -1, 8);
    ROWS("ReduceSum", q, -6, 35);
    ROWS("ReduceL1", p, 16, 35);
    ROWS("ReduceL2", p, 8, 17);
    ROWS("ReduceLogSum", p, 2, 3);
    ROWS("ReduceLogSumExp", p, 7, 10);
    ROWS("ReduceSumSquare", p, 78, 307);
    ONE("ReduceMean", 18, onnx_none(), KL_I64, 1, (int64_t[]){1}, big, 0, (const int64_t *)NULL, (double)INT64_MAX);
    ONE("ReduceMean", 18, onnx_none(), KL_U64, 1, (int64_t[]){2}, unsigned_big, 0, (const int64_t *)NULL, 0x1p62 + 1);
}

/* ---- integers ---- */

static bool is_i64(kl_tensor t, int n, const int64_t *want)
{
    int64_t v[8];
    bool ok = kl_numel(t) == n && kl_read(t, v, (size_t)n * sizeof *v) == KL_OK &&
              !memcmp(v, want, (size_t)n * sizeof *v);
    for (int i = 0; !ok && i < n; i++)
        printf("  %lld, expected %lld\n", (long long)v[i], (long long)want[i]);
    return ok;
}

static void power(kl_dtype db, int n, const int64_t *a, const void *b, const int64_t *want)
{
    for (int traced = 0; traced < 2; traced++) {
        struct pb g = {0};
        int64_t count = n;
        kl_tensor in[2] = {given(&g, "a", KL_I64, 1, &count, a), given(&g, "b", db, 1, &count, b)}, y;
        onnx_node(&g, "Pow", "a b", "y", onnx_none());
        CHECK(call(&g, 15, traced, 2, in, 1, &y) && is_i64(y, n, want));
    }
}

static void powers(void)
{
    power(KL_I64, 6, (int64_t[]){3, -3, 2, 0, 10, 7}, (int64_t[]){39, 39, 62, 0, 18, 1},
          (int64_t[]){4052555153018976267, -4052555153018976267, INT64_C(1) << 62, 1, 1000000000000000000, 7});
    power(KL_I64, 7, (int64_t[]){-1, -1, 1, 0, 2, -1, 1}, (int64_t[]){-3, -4, -5, 2, -1, INT64_MAX, INT64_MAX},
          (int64_t[]){-1, 1, 1, 0, 0, -1, 1});
    power(KL_F32, 6, (int64_t[]){3, 2, 10, 4, 3, 2}, (float[]){.5f, 1.5f, 2, .5f, 39, -1},
          (int64_t[]){1, 2, 100, 2, 4052555153018976267, 0});
    power(KL_F64, 4, (int64_t[]){1000000, 8, 27, 1024}, (double[]){3, 1. / 3, 1. / 3, .1},
          (int64_t[]){1000000000000000000, 2, 3, 2});
    /* a float to an odd integer that no f32 has */
    struct pb g = {0};
    kl_tensor in[2] = {given(&g, "a", KL_F32, 1, (int64_t[]){1}, (float[]){-1}),
                       given(&g, "b", KL_I64, 1, (int64_t[]){1}, (int64_t[]){(1 << 24) + 1})}, y;
    onnx_node(&g, "Pow", "a b", "y", onnx_none());
    if (CHECK(call(&g, 15, false, 2, in, 1, &y)))
        NEAR_LIST(y, 0, -1);
}

static void big_integers(void)
{
    const int64_t a = (INT64_C(1) << 53) + 1, limit = a + 3, one = 1, v = (INT64_C(1) << 62) + 1;
    for (int traced = 0; traced < 2; traced++) {
        struct pb g = {0};
        kl_tensor in = given(&g, "x", KL_I64, 1, (int64_t[]){1}, &one), y[2];
        onnx_node(&g, "Range", "a b c", "y", onnx_none());
        onnx_node(&g, "Pad", "x p v", "z", onnx_none());
        onnx_initializer(&g, "a", INT64, 0, NULL, &a, 8);
        onnx_initializer(&g, "b", INT64, 0, NULL, &limit, 8);
        onnx_initializer(&g, "c", INT64, 0, NULL, &one, 8);
        onnx_initializer(&g, "v", INT64, 0, NULL, &v, 8);
        onnx_initializer(&g, "p", INT64, 1, (int64_t[]){2}, (int64_t[]){1, 0}, 16);
        CHECK(call(&g, 16, traced, 1, &in, 2, y) && is_i64(y[0], 3, (int64_t[]){a, a + 1, a + 2}) &&
              is_i64(y[1], 2, (int64_t[]){v, 1}));
        struct pb h = {0};
        uint64_t big = UINT64_MAX - 1, sum = 0;
        in = given(&h, "x", KL_U64, 1, (int64_t[]){1}, &(uint64_t){1});
        onnx_node(&h, "Add", "x c", "y", onnx_none());
        onnx_initializer(&h, "c", UINT64, 0, NULL, &big, 8);
        CHECK(call(&h, 16, traced, 1, &in, 1, y) && kl_read(y[0], &sum, 8) == KL_OK && sum == UINT64_MAX);
    }
    struct pb g = {0}; /* a range down, and one without elements */
    kl_tensor y[2];
    onnx_node(&g, "Range", "a b c", "y", onnx_none());
    onnx_node(&g, "Range", "b a c", "z", onnx_none());
    onnx_initializer(&g, "a", INT64, 0, NULL, &(int64_t){INT64_MAX}, 8);
    onnx_initializer(&g, "b", INT64, 0, NULL, &(int64_t){INT64_MAX - 5}, 8);
    onnx_initializer(&g, "c", INT64, 0, NULL, &(int64_t){-2}, 8);
    CHECK(call(&g, 16, false, 0, NULL, 2, y) && kl_numel(y[1]) == 0 &&
          is_i64(y[0], 3, (int64_t[]){INT64_MAX, INT64_MAX - 2, INT64_MAX - 4}));
}

/* NaNs are one value, the last; unsigned integers beyond 2^63 are large. */
static void unique(void)
{
    static const float x[5] = {3, NAN, 1, NAN, 3};
    static const uint64_t u[3] = {UINT64_MAX, 1, UINT64_MAX - 1};
    struct pb g = {0};
    kl_tensor in = given(&g, "x", KL_F32, 1, (int64_t[]){5}, x), y[2];
    onnx_node(&g, "Unique", "x", "y i z n", onnx_none());
    if (CHECK(call(&g, 11, false, 1, &in, 2, y))) {
        NEAR_LIST(y[0], 0, 1, 3, NAN);
        CHECK(is_i64(y[1], 5, (int64_t[]){1, 2, 0, 2, 1}));
    }
    struct pb h = {0};
    uint64_t got[3];
    in = given(&h, "x", KL_U64, 1, (int64_t[]){3}, u);
    onnx_node(&h, "Unique", "x", "y", onnx_none());
    CHECK(call(&h, 11, false, 1, &in, 1, y) && kl_read(y[0], got, sizeof got) == KL_OK && got[0] == 1 &&
          got[1] == u[2] && got[2] == u[0]);
}

/* ---- what onnxruntime does where ONNX leaves a choice ---- */

static void resizes(void)
{
    static const float x[5] = {1, 2, 3, 4, 5}, rows[8] = {1, 2, 3, 4, 5, 6, 7, 8}, longer[3] = {1, 1, 2.6f},
                       shorter[4] = {1, 1, .6f, .6f}, both[4] = {1, 1, .6f, 1.5f};
    struct pb g = {0}, h = {0};
    kl_tensor in = given(&g, "x", KL_F32, 3, (int64_t[]){1, 1, 5}, x), y[2];
    onnx_node(&g, "Resize", "x - s", "y", attr_text("mode", "nearest"));
    onnx_initializer(&g, "s", FLOAT, 1, (int64_t[]){3}, longer, sizeof longer);
    if (CHECK(call(&g, 13, false, 1, &in, 1, y))) /* 5 * 2.6f: 13 in f32 */
        NEAR_LIST(y[0], 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5, 5);
    in = given(&h, "x", KL_F32, 4, (int64_t[]){1, 1, 2, 4}, rows);
    onnx_node(&h, "Resize", "x s", "y", attr_text("mode", "nearest"));
    onnx_node(&h, "Resize", "x b", "z", attr_text("mode", "nearest"));
    onnx_initializer(&h, "s", FLOAT, 1, (int64_t[]){4}, shorter, sizeof shorter);
    onnx_initializer(&h, "b", FLOAT, 1, (int64_t[]){4}, both, sizeof both);
    if (CHECK(call(&h, 10, false, 1, &in, 2, y))) {
        NEAR_LIST(y[0], 0, 1, 3);
        NEAR_LIST(y[1], 0, 1, 1, 2, 3, 3, 4);
    }
}

static void recurrent(void)
{
    static const float x[4] = {1, -1, 0.5f, 2};
    static const char *const lstm[6] = {"HardSigmoid", "Tanh", "Tanh", "HardSigmoid", "Tanh", "Tanh"},
                      *const gru[2] = {"LeakyRelu", "ScaledTanh"};
    float w[32], r[32], clip = 0.3f;
    for (int i = 0; i < 32; i++) {
        w[i] = sinf((float)i);
        r[i] = cosf((float)i);
    }
    for (int k = 0; k < 3; k++) {
        int directions = k == 0 ? 2 : 1, gates = k == 1 ? 6 : 8;
        struct pb g = {0}, a = onnx_attr_i("hidden_size", 2);
        kl_tensor in = given(&g, "x", KL_F32, 3, (int64_t[]){2, 1, 2}, x), y;
        if (k == 0) {
            onnx_attr_add(&a, attr_text("direction", "bidirectional"));
            onnx_attr_add(&a, onnx_attr_texts("activations", 6, lstm));
            onnx_attr_add(&a, attr_floats("activation_alpha", 2, (float[]){.1f, .3f}));
            onnx_attr_add(&a, attr_floats("activation_beta", 2, (float[]){.5f, .4f}));
        } else if (k == 1) {
            onnx_attr_add(&a, onnx_attr_texts("activations", 2, gru));
            onnx_attr_add(&a, attr_floats("activation_alpha", 2, (float[]){.1f, 1.5f}));
            onnx_attr_add(&a, attr_floats("activation_beta", 1, (float[]){.7f}));
        } else {
            onnx_attr_add(&a, attr_floats("clip", 0, &clip));
        }
        onnx_node(&g, k == 1 ? "GRU" : "LSTM", "x w r", "y", a);
        onnx_initializer(&g, "w", FLOAT, 3, (int64_t[]){directions, gates, 2}, w, (size_t)(8 * directions * gates));
        onnx_initializer(&g, "r", FLOAT, 3, (int64_t[]){directions, gates, 2}, r, (size_t)(8 * directions * gates));
        if (!CHECK(call(&g, 14, false, 1, &in, 1, &y)))
            continue;
        if (k == 0)
            NEAR_LIST(y, 1e-6, -0.15577194, 0.07592364, 0.17531821, -0.11558747, 0.03227260, 0.32267722, 0, 0);
        else if (k == 1)
            NEAR_LIST(y, 1e-6, 0.62353230, 0.10736766, 0.10018361, -0.81261003);
        else
            NEAR_LIST(y, 1e-6, -0.06788078, 0.07055641, 0.04078268, 0.13449508);
    }
}

/* ---- random numbers ---- */

enum { N = 64 };
static bool differs(const float *a, const float *b)
{
    int n = 0;
    for (int i = 0; i < N; i++)
        n += a[i] != b[i];
    return n > N / 8;
}

/* Two nodes, and the same model again: other numbers; a model that is loaded again, the same. */
static void draws(void)
{
    float ones[N], ratio = .5f, v[2][4][N];
    for (int i = 0; i < N; i++)
        ones[i] = 1;
    for (int k = 0; k < 2; k++) {
        struct pb g = {0};
        kl_tensor in = given(&g, "x", KL_F32, 1, (int64_t[]){N}, ones), y[2];
        onnx_node(&g, "Dropout", "x r t", "y", onnx_none());
        onnx_node(&g, "Dropout", "x r t", "z", onnx_none());
        onnx_initializer(&g, "r", FLOAT, 0, NULL, &ratio, 4);
        onnx_initializer(&g, "t", BOOL, 0, NULL, &(uint8_t){1}, 1);
        onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){N});
        onnx_io(&g, 12, "z", FLOAT, 1, (int64_t[]){N});
        kl_model *m = load(&g, 13);
        for (int i = 0; CHECK(m != NULL) && i < 2; i++) {
            OK(kl_trace_begin("draws"));
            OK(kl_model_call(m, 1, &in, 2, y));
            kl_keep(y[0]), kl_keep(y[1]);
            OK(kl_trace_end());
            kl_run_info info;
            OK(kl_trace_info(&info));
            CHECK(i == 0 || info.graphs_built == 0); /* seeds are no reason to compile again */
            OK(kl_read(y[0], v[k][2 * i], sizeof v[0][0]));
            OK(kl_read(y[1], v[k][2 * i + 1], sizeof v[0][0]));
        }
        kl_model_close(m);
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            CHECK(differs(v[0][i], v[0][j]));
    CHECK(!memcmp(v[0], v[1], sizeof v[0]));
}

/* Rows of a Loop that are recorded one by one (5) and as a scan (70), of a loop that only a run ends, and of a Scan. */
static void draws_in_rounds(void)
{
    static float v[70][N];
    for (int k = 0; k < 3; k++) {
        int64_t rounds = k == 0 ? 5 : 70;
        struct pb g = {0}, b = {0}, a = {0};
        float zeros[N] = {0};
        kl_tensor in = given(&g, "x", KL_F32, 1, (int64_t[]){N}, zeros), y;
        if (k < 2) {
            onnx_node(&b, "Identity", "c", "c1", onnx_none());
            onnx_io(&b, 11, "i", INT64, 0, NULL);
            onnx_io(&b, 11, "c", BOOL, 0, NULL);
            onnx_io(&b, 12, "c1", BOOL, 0, NULL);
        }
        onnx_node(&b, "RandomNormalLike", "a", "r", onnx_none());
        onnx_node(&b, "Identity", "a", "a1", onnx_none());
        pb_text(&b, 2, "body");
        onnx_io(&b, 11, "a", FLOAT, 1, (int64_t[]){N});
        onnx_io(&b, 12, "a1", FLOAT, 1, (int64_t[]){N});
        onnx_io(&b, 12, "r", FLOAT, 1, (int64_t[]){N});
        onnx_attr_g(&a, "body", &b);
        if (k < 2) {
            onnx_node(&g, "Loop", "M - x", "f y", a);
            onnx_initializer(&g, "M", INT64, 0, NULL, &rounds, 8);
        } else { /* without carried values: each round gets a row of zeros */
            onnx_attr_add(&a, onnx_attr_i("num_scan_inputs", 1));
            onnx_node(&g, "Expand", "x s", "rows", onnx_none());
            onnx_initializer(&g, "s", INT64, 1, (int64_t[]){2}, (int64_t[]){rounds, N}, 16);
            onnx_node(&g, "Scan", "rows", "f y", a);
        }
        if (!CHECK(call(&g, 16, true, 1, &in, 1, &y) && kl_read(y, v, (size_t)rounds * sizeof v[0]) == KL_OK))
            continue;
        bool all = true;
        for (int i = 0; i < rounds; i++)
            for (int j = 0; j < i; j++)
                all &= differs(v[i], v[j]);
        CHECK(all);
    }
}

/* ---- outputs that are known while recording ---- */

static void constant_outputs(void)
{
    struct pb g = {0}, t = onnx_tensor("", INT64, 1, (int64_t[]){3}, (int64_t[]){7, 8, 9}, 24), a = {0}, all = {0};
    static const float x[2] = {1, -1};
    kl_tensor y[2];
    pb_text(&a, 1, "value");
    pb_message(&a, 5, &t);
    pb_int(&a, 20, 4);
    pb_message(&all, 5, &a);
    onnx_node(&g, "Constant", "", "y", all);
    onnx_node(&g, "Shape", "x", "z", onnx_none());
    onnx_io(&g, 11, "x", FLOAT, 2, (int64_t[]){1, 2});
    onnx_io(&g, 12, "y", INT64, 1, (int64_t[]){3});
    onnx_io(&g, 12, "z", INT64, 1, (int64_t[]){2});
    kl_model *m = load(&g, 17);
    OK(kl_trace_begin("constants"));
    kl_tensor in = kl_input(dev, KL_F32, 2, (int64_t[]){1, 2}, x);
    OK(kl_model_call(m, 1, &in, 2, y));
    kl_keep(y[0]), kl_keep(y[1]);
    kl_step *s = kl_trace_end_step(1, &in);
    if (CHECK(s != NULL)) {
        kl_tensor other = kl_input(dev, KL_F32, 2, (int64_t[]){1, 2}, x), out[2];
        OK(kl_step_run(s, 1, &other, 0, NULL, 2, out));
        CHECK(is_i64(out[0], 3, (int64_t[]){7, 8, 9}) && is_i64(out[1], 2, (int64_t[]){1, 2}));
        kl_step_free(s);
    }
    char header[] = "/tmp/kiln-header-XXXXXX", object[40], text[8000] = "";
    int f = mkstemp(header);
    snprintf(object, sizeof object, "%s.o", header);
    if (f >= 0 && !strcmp(device_now, "cpu")) {
        OK(kl_trace_begin("constants"));
        in = kl_input(dev, KL_F32, 2, (int64_t[]){1, 2}, x);
        OK(kl_model_call(m, 1, &in, 2, y));
        kl_keep(y[0]), kl_keep(y[1]), kl_keep(kl_neg(in));
        OK(kl_trace_compile(object, header, NULL));
        CHECK(read(f, text, sizeof text - 1) > 0 && strstr(text, "*in_0") && !strstr(text, "*in_1") &&
              !strstr(text, "*state_"));
        unlink(object);
    }
    if (f >= 0) {
        close(f);
        unlink(header);
    }
    kl_model_close(m);
}

static void on_device(kl_device d)
{
    static void (*const tests[])(void) = {reductions_of_nothing, reductions_of_integers, powers, big_integers, unique,
                                          resizes, recurrent, draws, draws_in_rounds, constant_outputs};
    dev = d;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        kl_clear_error();
        tests[i]();
    }
}

int main(void)
{
    int f = mkstemp(path);
    if (f < 0)
        return 1;
    close(f);
    int status = on_devices(on_device);
    unlink(path);
    return status;
}
