/* <kiln/formats/model.h>: models written here, loaded, called, trained; files that are damaged, or mean harm. */
#include "tests/formats/onnx_write.h"
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <unistd.h>

static kl_device dev;
static char folder[] = "/tmp/kiln-model-XXXXXX", path[200];

static kl_model *load(struct pb m)
{
    CHECK(onnx_save(path, m.data, m.n));
    free(m.data);
    return kl_model_open(dev, path);
}
/* The error of a model that is not to be loaded has this text in it. */
static void refused(struct pb m, kl_status code, const char *text)
{
    kl_clear_error();
    kl_model *model = load(m);
    CHECK(model == NULL && kl_last_error_code() == code);
    if (!strstr(kl_last_error(), text))
        CHECK(!"the message"), printf("  it has no '%s'\n", text);
    kl_model_close(model);
}
static bool says(const char *text) { return strstr(kl_last_error(), text) != NULL; }

static const float W[6] = {1, 2, 3, -1, -2, -3}, B[3] = {0.5, 0, -0.5};

/* y = Relu(x W + b): x [N, 2] */
static struct pb linear_graph(void)
{
    struct pb g = {0};
    onnx_node(&g, "MatMul", "x W", "xW", onnx_none());
    onnx_node(&g, "Add", "xW b", "sum", onnx_none());
    onnx_node(&g, "Relu", "sum", "y", onnx_none());
    pb_text(&g, 2, "linear");
    onnx_initializer(&g, "W", FLOAT, 2, (int64_t[]){2, 3}, W, sizeof W);
    onnx_initializer(&g, "b", FLOAT, 1, (int64_t[]){3}, B, sizeof B);
    onnx_io(&g, 11, "x", FLOAT, 2, (int64_t[]){-1, 2});
    onnx_io(&g, 12, "y", FLOAT, 2, (int64_t[]){-1, 3});
    return g;
}
static struct pb linear_model(void)
{
    struct pb g = linear_graph();
    return onnx_model(&g, 13);
}

static const float X[4] = {1, 1, 2, 0};

static void looks(void)
{
    kl_model *m = load(linear_model());
    kl_model_value v;
    CHECK(m && kl_model_inputs(m) == 1 && kl_model_outputs(m) == 1 && kl_model_weights(m) == 2);
    OK(kl_model_input(m, 0, &v));
    CHECK(!strcmp(v.name, "x") && v.dtype == KL_F32 && v.rank == 2 && v.dims[0] == -1 && v.dims[1] == 2 &&
          !strcmp(v.symbol[0], "N") && !v.symbol[1]);
    OK(kl_model_output(m, 0, &v));
    CHECK(!strcmp(v.name, "y"));
    CHECK(kl_model_input(m, 1, &v) == KL_ERR_ARGUMENT && says("input 1 of 1"));
    CHECK(!strcmp(kl_model_weight_name(m, 0), "W") && !strcmp(kl_model_weight_name(m, 1), "b") &&
          !kl_model_weight_name(m, 2));
    CHECK(kl_numel(kl_model_weight(m, "W")) == 6 && !kl_model_weight(m, "c").id);
    kl_model_close(m);
    kl_model_close(NULL);
}

static void calls(void)
{
    kl_model *m = load(linear_model());
    kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){2, 2}, X), y;
    OK(kl_model_call(m, 1, &x, 1, &y)); /* outside of a trace */
    NEAR_LIST(y, 0, 0.5, 0, 0, 2.5, 4, 5.5);
    for (int i = 0; i < 3; i++) {
        OK(kl_trace_begin("linear"));
        kl_tensor in = kl_input(dev, KL_F32, 2, (int64_t[]){2, 2}, X);
        OK(kl_model_call(m, 1, &in, 1, &y));
        kl_keep(y);
        OK(kl_trace_end());
        NEAR_LIST(y, 0, 0.5, 0, 0, 2.5, 4, 5.5);
    }
    kl_run_info info;
    OK(kl_trace_info(&info));
    CHECK(info.graphs_built == 0);
    kl_scope_begin(); /* what a call gives belongs to the caller's scope */
    OK(kl_model_call(m, 1, &x, 1, &y));
    kl_tensor kept = kl_keep(kl_neg(y));
    OK(kl_scope_end());
    CHECK(kl_check(y) == KL_ERR_HANDLE);
    kl_model_close(m); /* what was recorded stays */
    NEAR_LIST(kept, 0, -0.5, 0, 0, -2.5, -4, -5.5);
    kl_release(kept);
    kl_release(x);
}

/* One step moves the weights against their gradient. */
static void trains(void)
{
    kl_model *m = load(linear_model());
    kl_tensor w = kl_model_weight(m, "W"), x = kl_input(dev, KL_F32, 2, (int64_t[]){2, 2}, X), y;
    float loss[2];
    for (int i = 0; i < 2; i++) {
        OK(kl_trace_begin("train"));
        OK(kl_model_call(m, 1, &x, 1, &y));
        kl_tensor l = kl_keep(kl_sum_all(kl_square(y)));
        OK(kl_assign(w, kl_sub(w, kl_mul_scalar(kl_grad(l, w), 0.01))));
        OK(kl_trace_end());
        loss[i] = kl_item_f32(l);
        kl_release(l);
    }
    CHECK(loss[1] < loss[0] * 0.9f);
    kl_model_close(m);
    kl_release(x);
}

static void refuses_operands(void)
{
    kl_model *m = load(linear_model());
    kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){2, 3}, W), i = kl_cast(x, KL_I32), y;
    CHECK(kl_model_call(m, 1, &x, 1, &y) == KL_ERR_SHAPE && says("input 'x' is f32[N,2], not f32[2,3]") && !y.id);
    CHECK(says("api_model.c"));
    CHECK(kl_model_call(m, 1, &i, 1, &y) == KL_ERR_TYPE && says("not i32[2,3]"));
    CHECK(kl_model_call(m, 0, NULL, 1, &y) == KL_ERR_ARGUMENT && says("1 inputs and 1 outputs, the call 0 and 1"));
    OK(kl_trace_begin("bad"));
    CHECK(kl_model_call(m, 1, &x, 1, &y) == KL_ERR_SHAPE);
    CHECK(kl_trace_end() == KL_ERR_SHAPE);
    kl_model_close(m);
    kl_release(x);
    kl_release(i);
}

/* An error in a node names it, the model and the caller's line; in a trace, too. */
static void names_nodes(void)
{
    struct pb g = {0};
    onnx_node(&g, "Add", "x W", "y", onnx_none());
    onnx_initializer(&g, "W", FLOAT, 2, (int64_t[]){2, 3}, W, sizeof W);
    onnx_io(&g, 11, "x", FLOAT, 2, (int64_t[]){-1, 2});
    onnx_io(&g, 12, "y", FLOAT, 2, (int64_t[]){-1, 3});
    kl_model *m = load(onnx_model(&g, 13));
    kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){2, 2}, X), y;
    for (int traced = 0; traced < 2; traced++) {
        if (traced)
            OK(kl_trace_begin("nodes"));
        kl_clear_error();
        CHECK(kl_model_call(m, 1, &x, 1, &y) == KL_ERR_SHAPE);
        CHECK(says("api_model.c") && says("m.onnx: node 'Add' (Add, opset 13)") && says("[2,2] and \"W\" [2,3]"));
        if (traced)
            CHECK(kl_trace_end() == KL_ERR_SHAPE && says("node 'Add'"));
    }
    kl_model_close(m);
    kl_release(x);
}

/* x [N, 4] -> [N, 2, 2] -> .., by numbers computed from x's shape and constants */
static void folds_shapes(void)
{
    struct pb g = {0};
    onnx_node(&g, "Shape", "x", "shape", onnx_none());
    onnx_node(&g, "Gather", "shape zero", "n", onnx_none());
    onnx_node(&g, "Mul", "n two", "n2", onnx_none());
    onnx_node(&g, "Concat", "n2 minus", "to", onnx_attr_i("axis", 0));
    onnx_node(&g, "Reshape", "x to", "y", onnx_none());
    onnx_initializer(&g, "zero", INT64, 1, (int64_t[]){1}, (int64_t[]){0}, 8);
    onnx_initializer(&g, "two", INT64, 1, (int64_t[]){1}, (int64_t[]){2}, 8);
    onnx_initializer(&g, "minus", INT64, 1, (int64_t[]){1}, (int64_t[]){-1}, 8);
    onnx_io(&g, 11, "x", FLOAT, 2, (int64_t[]){-1, 4});
    onnx_io(&g, 12, "y", FLOAT, 2, (int64_t[]){-1, 2});
    kl_model *m = load(onnx_model(&g, 13));
    for (int64_t n = 1; n <= 2; n++) {
        int64_t dims[KL_MAX_RANK];
        float data[8] = {0};
        kl_tensor y;
        OK(kl_trace_begin("shapes"));
        kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){n, 4}, data);
        OK(kl_model_call(m, 1, &x, 1, &y));
        CHECK(kl_shape(y, dims) == 2 && dims[0] == 2 * n && dims[1] == 2);
        kl_keep(y);
        OK(kl_trace_end());
        kl_run_info info;
        OK(kl_trace_info(&info));
        CHECK(info.kernels <= 1 && info.nodes <= 4); /* of the arithmetic nothing is left */
        kl_release(y);
    }
    kl_model_close(m);
}

/* A product of constants that is too much work for the host is computed once, by the device; where its value must be
 * known while recording it is an error.  The file has less than 300 bytes. */
static void folds_products(void)
{
    static const int64_t length[3] = {1, 1, 8192}, max[3] = {1, 1, 65536};
    for (int known = 0; known < 2; known++) {
        struct pb g = {0};
        onnx_node(&g, "ConstantOfShape", "s", "zeros", onnx_none());
        onnx_node(&g, "Cos", "zeros", "ones", onnx_none());
        onnx_node(&g, "Concat", "ones ones ones", "long", onnx_attr_i("axis", 2));
        onnx_node(&g, "Conv", "long ones", "sums", onnx_none());
        onnx_node(&g, "Cast", "sums", "sizes", onnx_attr_i("to", INT64));
        onnx_node(&g, known ? "Expand" : "ReduceMax", known ? "x sizes" : "sums", "y", onnx_none());
        pb_text(&g, 2, "products");
        onnx_initializer(&g, "s", INT64, 1, (int64_t[]){3}, known ? max : length, sizeof length);
        onnx_io(&g, 11, "x", FLOAT, 1, (int64_t[]){1});
        onnx_io(&g, 12, "y", FLOAT, 3, (int64_t[]){1, 1, 1});
        kl_model *m = load(onnx_model(&g, 17));
        kl_tensor x = kl_input(dev, KL_F32, 1, (int64_t[]){1}, X), y = kl_none;
        if (known) {
            OK(kl_trace_begin("product"));
            CHECK(kl_model_call(m, 1, &x, 1, &y) == KL_ERR_ARGUMENT && says("Conv") && says("multiplications"));
            kl_trace_abandon();
        } else {
            OK(kl_trace_begin("product"));
            OK(kl_model_call(m, 1, &x, 1, &y));
            kl_keep(y);
            OK(kl_trace_end());
            NEAR_LIST(y, 0.5, 8192);
            kl_release(y);
        }
        kl_model_close(m);
        kl_release(x);
    }
}

/* The shape is an input: read if it was made before the trace, refused if it is of the trace. */
static void reads_shapes(void)
{
    struct pb g = {0};
    onnx_node(&g, "Reshape", "x shape", "y", onnx_none());
    onnx_io(&g, 11, "x", FLOAT, 1, (int64_t[]){6});
    onnx_io(&g, 11, "shape", INT64, 1, (int64_t[]){2});
    onnx_io(&g, 12, "y", FLOAT, 2, (int64_t[]){-1, -1});
    kl_model *m = load(onnx_model(&g, 13));
    kl_tensor before = kl_input(dev, KL_I64, 1, (int64_t[]){2}, (int64_t[]){3, 2}), y;
    for (int inside = 0; inside < 2; inside++) {
        OK(kl_trace_begin("reads"));
        kl_tensor s = inside ? kl_input(dev, KL_I64, 1, (int64_t[]){2}, (int64_t[]){3, 2}) : before;
        kl_tensor in[2] = {kl_input(dev, KL_F32, 1, (int64_t[]){6}, W), s};
        kl_status status = kl_model_call(m, 2, in, 1, &y);
        CHECK(status == (inside ? KL_ERR_TRACE : KL_OK));
        CHECK(!inside || (says("operand 1 ('shape') has to be known") && says("has no value before that has ended")));
        int64_t dims[KL_MAX_RANK];
        CHECK(inside || (kl_shape(y, dims) == 2 && dims[0] == 3));
        if (!inside)
            kl_keep(y);
        CHECK(kl_trace_end() == status);
        if (!inside)
            NEAR_LIST(y, 0, 1, 2, 3, -1, -2, -3);
    }
    kl_model_close(m);
    kl_release(before);
}

/* ---- control flow ---- */

static struct pb branch_graph(const char *op)
{
    struct pb g = {0};
    onnx_node(&g, op, "x", "r", onnx_none());
    onnx_io(&g, 12, "r", FLOAT, 1, (int64_t[]){3});
    return g;
}

/* In a trace, with a condition that only its run knows, both branches are recorded. */
static void branches(void)
{
    struct pb g = {0}, attributes = {0}, yes = branch_graph("Neg"), no = branch_graph("Exp");
    onnx_attr_g(&attributes, "then_branch", &yes);
    onnx_attr_g(&attributes, "else_branch", &no);
    onnx_node(&g, "If", "c", "y", attributes);
    onnx_io(&g, 11, "c", BOOL, 0, NULL);
    onnx_io(&g, 11, "x", FLOAT, 1, (int64_t[]){3});
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){3});
    kl_model *m = load(onnx_model(&g, 13));
    for (int k = 0; k < 4; k++) {
        bool c = k & 1, traced = k & 2;
        float x[3] = {0, 0, 0};
        kl_tensor y;
        if (traced)
            OK(kl_trace_begin("if"));
        kl_tensor in[2] = {kl_input(dev, KL_BOOL, 0, NULL, &c), kl_input(dev, KL_F32, 1, (int64_t[]){3}, x)};
        OK(kl_model_call(m, 2, in, 1, &y));
        kl_keep(y);
        if (traced)
            OK(kl_trace_end());
        NEAR_LIST(y, 0, c ? 0 : 1, c ? 0 : 1, c ? 0 : 1);
    }
    kl_model_close(m);
}

/* n rounds of a = a + step: few are unrolled, many a scan, and where n is not known a kl_while. */
static void loops(void)
{
    struct pb g = {0}, body = {0}, attributes = {0};
    onnx_node(&body, "Add", "a step", "a2", onnx_none());
    onnx_node(&body, "Identity", "c", "c2", onnx_none());
    onnx_io(&body, 11, "i", INT64, 0, NULL);
    onnx_io(&body, 11, "c", BOOL, 0, NULL);
    onnx_io(&body, 11, "a", FLOAT, 1, (int64_t[]){2});
    onnx_io(&body, 12, "c2", BOOL, 0, NULL);
    onnx_io(&body, 12, "a2", FLOAT, 1, (int64_t[]){2});
    onnx_attr_g(&attributes, "body", &body);
    onnx_node(&g, "Loop", "n - start", "y", attributes);
    onnx_initializer(&g, "step", FLOAT, 1, (int64_t[]){2}, (float[]){1, 2}, 8);
    onnx_io(&g, 11, "n", INT64, 0, NULL);
    onnx_io(&g, 11, "start", FLOAT, 1, (int64_t[]){2});
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){2});
    kl_model *m = load(onnx_model(&g, 13));
    for (int k = 0; k < 3; k++) {
        int64_t n = k ? 100 : 3;
        kl_tensor count = kl_input(dev, KL_I64, 0, NULL, &n), y;
        OK(kl_trace_begin("loop"));
        kl_tensor in[2] = {k == 2 ? kl_input(dev, KL_I64, 0, NULL, &n) : count,
                           kl_input(dev, KL_F32, 1, (int64_t[]){2}, (float[]){10, 20})};
        OK(kl_model_call(m, 2, in, 1, &y));
        kl_keep(y);
        OK(kl_trace_end());
        NEAR_LIST(y, 0, 10 + (double)n, 20 + 2 * (double)n);
        kl_release(count);
    }
    kl_model_close(m);
}

/* ---- files that are not as they should be ---- */

/* Steps of an LSTM all at once, where its weights are transposed before, and one after another, where they are not. */
static void recurrent(void)
{
    enum { T = 10, I = 2, H = 3 };
    static float x[T * I], w[4 * H * I], r[4 * H * H];
    float all[2][2 * H], zero[H] = {0};
    struct pb g = {0}, attributes = onnx_attr_i("hidden_size", H);
    for (int i = 0; i < 4 * H * H; i++) {
        r[i] = (float)(i * 7 % 11) / 8 - 0.5f;
        w[i % (4 * H * I)] = (float)(i * 5 % 13) / 8 - 0.75f;
        x[i % (T * I)] = (float)(i * 3 % 7) / 4 - 0.75f;
    }
    onnx_node(&g, "LSTM", "x W R - - h c", "- hn cn", attributes);
    pb_text(&g, 2, "recurrent");
    onnx_initializer(&g, "W", FLOAT, 3, (int64_t[]){1, 4 * H, I}, w, sizeof w);
    onnx_initializer(&g, "R", FLOAT, 3, (int64_t[]){1, 4 * H, H}, r, sizeof r);
    onnx_io(&g, 11, "x", FLOAT, 3, (int64_t[]){-1, 1, I});
    for (int i = 0; i < 2; i++) {
        onnx_io(&g, 11, i ? "c" : "h", FLOAT, 3, (int64_t[]){1, 1, H});
        onnx_io(&g, 12, i ? "cn" : "hn", FLOAT, 3, (int64_t[]){1, 1, H});
    }
    kl_model *m = load(onnx_model(&g, 14));
    for (int single = 0; CHECK(m) && single < 2; single++) {
        kl_scope_begin();
        kl_tensor in[3] = {kl_none, kl_input(dev, KL_F32, DIMS(1, 1, H), zero),
                           kl_input(dev, KL_F32, DIMS(1, 1, H), zero)};
        for (int t = 0; t < T; t += single ? 1 : T) {
            kl_tensor out[2];
            in[0] = kl_input(dev, KL_F32, DIMS(single ? 1 : T, 1, I), x + t * I);
            OK(kl_model_call(m, 3, in, 2, out));
            in[1] = out[0];
            in[2] = out[1];
        }
        for (int i = 0; i < 2; i++)
            OK(kl_read(in[1 + i], all[single] + i * H, H * sizeof(float)));
        kl_scope_end();
    }
    CHECK(!memcmp(all[0], all[1], sizeof all[0]) && all[0][0] != 0);
    kl_model_close(m);
}

static void missing_operators(void)
{
    struct pb g = {0};
    onnx_node(&g, "Frobnicate", "x", "a", onnx_none());
    onnx_node(&g, "Relu", "a", "b", onnx_none());
    onnx_node(&g, "Transmogrify", "b", "c", onnx_none());
    onnx_node(&g, "Frobnicate", "c", "y", onnx_none());
    onnx_io(&g, 11, "x", FLOAT, 1, (int64_t[]){3});
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){3});
    refused(onnx_model(&g, 14), KL_ERR_TYPE, "2 operators are missing: Frobnicate (opset 14, node 'Frobnicate'), "
            "Transmogrify (opset 14");
    g = linear_graph();
    refused(onnx_model(&g, 0), KL_ERR_TYPE, "is of opset 0");
    kl_clear_error();
    CHECK(!kl_model_open(dev, "/nowhere.onnx") && says("/nowhere.onnx") && says("api_model.c"));
    CHECK(!kl_model_open(dev, NULL) && kl_last_error_code() == KL_ERR_ARGUMENT);
}

static void bad_graphs(void)
{
    struct pb g = {0};
    onnx_node(&g, "Add", "x b", "a", onnx_none()); /* a cycle */
    onnx_node(&g, "Neg", "a", "b", onnx_none());
    onnx_io(&g, 11, "x", FLOAT, 1, (int64_t[]){3});
    onnx_io(&g, 12, "b", FLOAT, 1, (int64_t[]){3});
    refused(onnx_model(&g, 13), KL_ERR_IO, "node 'Add' (Add) uses 'b', which no node before it computes");
    onnx_node(&g, "Neg", "x", "a", onnx_none());
    onnx_node(&g, "Exp", "x", "a", onnx_none());
    onnx_io(&g, 11, "x", FLOAT, 1, (int64_t[]){3});
    refused(onnx_model(&g, 13), KL_ERR_IO, "value 'a' is computed twice");
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){3});
    refused(onnx_model(&g, 13), KL_ERR_IO, "nothing computes output 'y'");
    onnx_initializer(&g, "W", FLOAT, 2, (int64_t[]){INT64_C(1) << 62, INT64_C(1) << 62}, W, sizeof W);
    refused(onnx_model(&g, 13), KL_ERR_IO, "tensor 'W' has dimensions too large");
    onnx_initializer(&g, "W", FLOAT, 3, (int64_t[]){0, INT64_C(1) << 40, INT64_C(1) << 40}, W, 0);
    refused(onnx_model(&g, 13), KL_ERR_IO, "tensor 'W' has dimensions too large");
    onnx_node(&g, "Neg", "x", "y", onnx_none()); /* an input is not there before it is given */
    onnx_io(&g, 11, "x", FLOAT, 2, (int64_t[]){INT64_C(1) << 62, INT64_C(1) << 62});
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){3});
    kl_model *huge = load(onnx_model(&g, 13));
    kl_tensor x = kl_input(dev, KL_F32, DIMS(2), X), y;
    CHECK(huge && kl_model_call(huge, 1, &x, 1, &y) == KL_ERR_SHAPE && says("input 'x' is f32[4611686018427387904,"));
    kl_release(x);
    kl_model_close(huge);
    onnx_node(&g, "ConstantOfShape", "shape", "y", onnx_none());
    onnx_initializer(&g, "shape", INT64, 1, (int64_t[]){2}, (int64_t[]){INT64_C(1) << 62, 2}, 16);
    onnx_io(&g, 12, "y", FLOAT, 2, (int64_t[]){-1, -1});
    huge = load(onnx_model(&g, 13));
    CHECK(huge && kl_model_call(huge, 0, NULL, 1, &y) != KL_OK && says("node 'ConstantOfShape'"));
    kl_model_close(huge);
    onnx_initializer(&g, "W", FLOAT, 1, (int64_t[]){INT64_C(1) << 56}, W, sizeof W);
    refused(onnx_model(&g, 13), KL_ERR_IO, "tensor 'W' has 24 bytes of data where its shape has 72057594037927936");
    onnx_initializer(&g, "W", FLOAT, 1, (int64_t[]){-6}, W, sizeof W);
    refused(onnx_model(&g, 13), KL_ERR_IO, "below 0");
    onnx_initializer(&g, "W", 8, 1, (int64_t[]){1}, W, 4);
    refused(onnx_model(&g, 13), KL_ERR_IO, "0 strings where its shape has 1");
    refused((struct pb){0}, KL_ERR_IO, "has no graph");
}

/* Graphs in one another, and a function that calls itself. */
static void deep(void)
{
    struct pb g = branch_graph("Neg");
    for (int i = 0; i < 400; i++) {
        struct pb outer = {0}, attributes = {0}, other = branch_graph("Exp");
        onnx_attr_g(&attributes, "then_branch", &g);
        onnx_attr_g(&attributes, "else_branch", &other);
        onnx_node(&outer, "If", "c", "r", attributes);
        onnx_io(&outer, 12, "r", FLOAT, 1, (int64_t[]){3});
        g = outer;
    }
    refused(onnx_model(&g, 13), KL_ERR_IO, "nested more than");
    onnx_node(&g, "Again", "x", "y", onnx_none());
    onnx_io(&g, 11, "x", FLOAT, 1, (int64_t[]){3});
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){3});
    struct pb m = onnx_model(&g, 13), f = {0}, n = {0};
    pb_text(&f, 1, "Again");
    pb_text(&f, 4, "a");
    pb_text(&f, 5, "b");
    pb_text(&n, 1, "a");
    pb_text(&n, 2, "b");
    pb_text(&n, 4, "Again");
    pb_message(&f, 7, &n);
    pb_message(&m, 25, &f);
    refused(m, KL_ERR_IO, "function 'Again' calls itself");
    for (int i = 0; i < 1000000; i++) {
        char in[16], out[16];
        snprintf(in, sizeof in, i ? "v%d" : "x", i);
        snprintf(out, sizeof out, "v%d", i + 1);
        onnx_node(&g, "Neg", in, out, onnx_none());
    }
    onnx_io(&g, 11, "x", FLOAT, 1, (int64_t[]){3});
    onnx_io(&g, 12, "v1000000", FLOAT, 1, (int64_t[]){3});
    kl_model *many = load(onnx_model(&g, 13));
    CHECK(many != NULL);
    kl_model_close(many);
}

static void external(const char *location, const char *offset, const char *text)
{
    struct pb g = {0}, t = onnx_tensor("W", FLOAT, 1, (int64_t[]){4}, NULL, 0);
    const char *const entry[2][2] = {{"location", location}, {"offset", offset}};
    for (int i = 0; i < 2; i++) {
        struct pb e = {0};
        pb_text(&e, 1, entry[i][0]);
        pb_text(&e, 2, entry[i][1]);
        pb_message(&t, 13, &e);
    }
    pb_int(&t, 14, 1);
    pb_message(&g, 5, &t);
    onnx_node(&g, "Neg", "W", "y", onnx_none());
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){4});
    if (text) {
        refused(onnx_model(&g, 13), KL_ERR_IO, text);
        return;
    }
    kl_model *m = load(onnx_model(&g, 13));
    kl_tensor y;
    OK(kl_model_call(m, 0, NULL, 1, &y));
    NEAR_LIST(y, 0, -2, -3, 1, 2);
    for (int i = 0; i < 2; i++) { /* it is trained without a byte of the file being written */
        kl_tensor w = kl_model_weight(m, "W");
        OK(kl_trace_begin("external"));
        OK(kl_assign(w, kl_add_scalar(w, 1)));
        OK(kl_trace_end());
    }
    NEAR_LIST(kl_neg(kl_model_weight(m, "W")), 0, -4, -5, -1, 0);
    kl_model_close(m);
}

static void other_files(void)
{
    char data[300];
    snprintf(data, sizeof data, "%s/data", folder);
    CHECK(onnx_save(data, W, sizeof W));
    external("data", "4", NULL);
    external("data", "12", "16 bytes from byte 12 on are outside of data, which has 24");
    external("data", "18446744073709551612", "are outside of");
    external("none", "0", "cannot open");
    external("../data", "0", "'../data' names no file in the folder of");
    external("/etc/passwd", "0", "names no file in the folder of");
    external("a/../../data", "0", "names no file in the folder of");
    unlink(data);
}

/* Cut off, or changed, at every byte: loaded or refused, and called if it is loaded. */
static void damaged(void)
{
    struct pb m = linear_model();
    kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){2, 2}, X);
    for (int way = 0; way < 4; way++)
        for (size_t i = 0; i < m.n; i++) {
            struct pb c = {0};
            pb_bytes(&c, m.data, way ? m.n : i);
            if (way)
                c.data[i] = way == 1 ? 0xff : way == 2 ? c.data[i] ^ 1 : c.data[i] + 1;
            onnx_save(path, c.data, c.n);
            free(c.data);
            kl_model *model = kl_model_open(dev, path);
            kl_tensor y = kl_none;
            if (model && kl_model_inputs(model) == 1 && kl_model_outputs(model) == 1 &&
                kl_model_call(model, 1, &x, 1, &y) == KL_OK)
                kl_sync(dev);
            kl_release(y);
            kl_model_close(model);
        }
    free(m.data);
    kl_release(x);
    kl_model *model = load(linear_model()); /* and the next one is fine */
    CHECK(model != NULL);
    kl_model_close(model);
}

int main(int argc, char **argv)
{
    dev = kl_device_named(argc > 1 ? argv[1] : "ref");
    device_now = kl_device_name(dev);
    if (!CHECK(mkdtemp(folder) != NULL && dev.id != 0))
        return 1;
    snprintf(path, sizeof path, "%s/m.onnx", folder);
    struct pb m = linear_model();
    onnx_save(path, m.data, m.n);
    free(m.data);
    kl_model *first = kl_model_open(dev, path);
    if (!first && says("reads no ONNX")) {
        printf("SKIP not-built onnx: %s\n0 passed, 0 failed, 1 skipped\n", kl_last_error());
    } else {
        kl_model_close(first);
        looks();
        calls();
        trains();
        refuses_operands();
        names_nodes();
        folds_shapes();
    folds_products();
        reads_shapes();
        branches();
        loops();
        recurrent();
        missing_operators();
        bad_graphs();
        deep();
        other_files();
        damaged();
        printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    }
    unlink(path);
    rmdir(folder);
    return failed != 0;
}
