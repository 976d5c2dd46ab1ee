/* <kiln/formats/model.h>: models that are wrong in what their operands, attributes or files say.  Each is refused where
 * it would have been read as something else in silence, with a message that names the node and the cause. */
#include "tests/formats/onnx_write.h"
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <sys/stat.h>
#include <unistd.h>

static const float W[6] = {1, 2, 3, -1, -2, -3};
static kl_device dev;
static char folder[] = "/tmp/kiln-faults-XXXXXX", path[200];

static kl_model *load(struct pb m)
{
    CHECK(onnx_save(path, m.data, m.n));
    free(m.data);
    return kl_model_open(dev, path);
}

static bool says(const char *text) { return strstr(kl_last_error(), text) != NULL; }

/* A call of the model, which has no inputs, fails with this code and text. */
static void call_fails(struct pb m, kl_status code, const char *text)
{
    kl_clear_error();
    kl_tensor y;
    kl_model *model = load(m);
    CHECK(model && kl_model_call(model, 0, NULL, 1, &y) == code);
    if (!says(text))
        CHECK(!"the message"), printf("  it has no '%s'\n", text);
    kl_model_close(model);
}

/* ---- operands without elements ---- */

/* y = OP(a, b, ..), all of them initializers of one number each but for operand `empty`, which has none. */
static struct pb of_numbers(const char *op, int operands, int empty, int type)
{
    struct pb g = {0};
    static const int64_t number[2] = {8, 8};
    char in[40] = "";
    for (int i = 0; i < operands; i++) {
        char name[2] = {(char)('a' + i), 0};
        snprintf(in + strlen(in), sizeof in - strlen(in), "%s%s", i ? " " : "", name);
        onnx_initializer(&g, name, type, 1, (int64_t[]){i != empty}, number, i == empty ? 0 : 8);
    }
    onnx_node(&g, op, in, "y", onnx_none());
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){-1});
    return g;
}

static void without_elements(void)
{
    static const struct { const char *op; int operands, empty, opset; } row[] = {
        {"MelWeightMatrix", 5, 0, 17}, {"MelWeightMatrix", 5, 1, 17}, {"MelWeightMatrix", 5, 4, 17},
        {"HannWindow", 1, 0, 17}, {"OneHot", 3, 1, 13}, {"CumSum", 2, 1, 14}, {"TopK", 2, 1, 11}, {"Trilu", 2, 1, 14},
        {"Range", 3, 0, 11}, {"Range", 3, 2, 11}, {"Dropout", 3, 1, 13}, {"Dropout", 3, 2, 13},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct pb g = of_numbers(row[i].op, row[i].operands, row[i].empty, INT64);
        call_fails(onnx_model(&g, row[i].opset), KL_ERR_SHAPE, !strcmp(row[i].op, "Range") ? "one number each"
                                                                                          : "has 0 numbers, not one");
    }
    struct pb g = {0}, attributes = {0}, body = {0}; /* a loop that says how often it runs by no number */
    onnx_io(&body, 11, "i", INT64, 0, NULL);
    onnx_io(&body, 11, "c", BOOL, 0, NULL);
    onnx_io(&body, 11, "s", FLOAT, 0, NULL);
    onnx_node(&body, "Identity", "c", "c2", onnx_none());
    onnx_node(&body, "Neg", "s", "s2", onnx_none());
    onnx_io(&body, 12, "c2", BOOL, 0, NULL);
    onnx_io(&body, 12, "s2", FLOAT, 0, NULL);
    onnx_attr_g(&attributes, "body", &body);
    onnx_initializer(&g, "n", INT64, 1, (int64_t[]){0}, NULL, 0);
    onnx_initializer(&g, "start", FLOAT, 0, NULL, (float[]){1}, 4);
    onnx_node(&g, "Loop", "n - start", "y", attributes);
    onnx_io(&g, 12, "y", FLOAT, 0, NULL);
    call_fails(onnx_model(&g, 13), KL_ERR_SHAPE, "operand 0 ('n') has 0 numbers, not one");
}

/* Operators whose operands, or all but the first, are left out; an older error of the caller's is not taken for
 * theirs. */
static void without_operands(void)
{
    enum { NEED_ONE = 12 }; /* those behind them need a second operand */
    static const char *const op[] = {
        "Max", "Min", "Sum", "Mean", "Clip", "Relu", "Neg", "Concat", "ReduceSum", "Softmax", "Cast", "Shape",
        "Add", "Conv", "Gemm", "Where", "Pow", "PRelu", "Gather", "Mod", "CumSum", "MatMul", "Expand", "Reshape",
        "Slice", "Tile", "TopK", "OneHot", "BatchNormalization", "InstanceNormalization", "GatherND", "ScatterND",
        "QuantizeLinear", "DequantizeLinear", "RNN", "LSTM", "GRU", "BitShift", "ConvInteger", "QLinearMatMul"};
    for (int way = 0; way < 4; way++)
        for (size_t i = way & 2 ? NEED_ONE : 0; i < sizeof op / sizeof *op; i++) {
            struct pb g = {0};
            kl_tensor y;
            onnx_node(&g, op[i], way & 2 ? "x" : "", "y", onnx_none());
            onnx_initializer(&g, "x", FLOAT, 1, (int64_t[]){2}, (float[2]){1, 2}, 8);
            onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){3});
            kl_model *m = load(onnx_model(&g, 13));
            kl_clear_error();
            if (way & 1)
                kl_fail(KL_ERR_DEVICE, "an older error");
            kl_status s = m ? kl_model_call(m, 0, NULL, 1, &y) : KL_OK;
            if (!CHECK(m && s != KL_OK && s != KL_ERR_INTERNAL && says(op[i]) && !says("an older error")))
                printf("  of %s\n", op[i]);
            kl_model_close(m);
        }
}

/* ---- sizes that do not fit ---- */

static void sizes(void)
{
    struct pb g = {0}, attributes = onnx_attr_list("pads", 2, (int64_t[]){INT64_MIN, 1}), more;
    more = onnx_attr_list("kernel_shape", 1, (int64_t[]){3});
    pb_bytes(&attributes, more.data, more.n);
    free(more.data);
    onnx_initializer(&g, "x", FLOAT, 3, (int64_t[]){1, 1, 2}, (float[2]){1, 2}, 8);
    onnx_node(&g, "MaxPool", "x", "y", attributes);
    onnx_io(&g, 12, "y", FLOAT, 3, (int64_t[]){-1, -1, -1});
    call_fails(onnx_model(&g, 13), KL_ERR_ARGUMENT, "padding -9223372036854775808");
    onnx_initializer(&g, "x", FLOAT, 1, (int64_t[]){2}, (float[2]){1, 2}, 8);
    onnx_initializer(&g, "by", INT64, 0, NULL, (int64_t[]){INT64_MAX}, 8);
    onnx_node(&g, "SplitToSequence", "x by", "s", onnx_none());
    onnx_node(&g, "SequenceLength", "s", "y", onnx_none());
    onnx_io(&g, 12, "y", INT64, 0, NULL);
    kl_model *m = load(onnx_model(&g, 13));
    kl_tensor y;
    OK(kl_model_call(m, 0, NULL, 1, &y)); /* one part, which is all */
    NEAR_LIST(y, 0, 1);
    kl_model_close(m);
    /* an axis beyond 32 bits is no other axis, and a number that some symbol has is no length */
    onnx_initializer(&g, "x", FLOAT, 1, (int64_t[]){2}, (float[2]){1, 2}, 8);
    onnx_node(&g, "Concat", "x x", "y", onnx_attr_i("axis", INT64_C(1) << 32));
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){-1});
    call_fails(onnx_model(&g, 13), KL_ERR_SHAPE, "Concat");
    onnx_initializer(&g, "shape", INT64, 1, (int64_t[]){1}, (int64_t[]){-(1 << 24)}, 8);
    onnx_node(&g, "ConstantOfShape", "shape", "y", onnx_none());
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){-1});
    call_fails(onnx_model(&g, 13), KL_ERR_SHAPE, "is -16777216, which is no length");
    onnx_initializer(&g, "x", FLOAT, 1, (int64_t[]){2}, (float[2]){1, 2}, 8);
    onnx_node(&g, "Split", "x", "", onnx_none());
    onnx_node(&g, "Neg", "x", "y", onnx_none());
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){-1});
    call_fails(onnx_model(&g, 13), KL_ERR_ARGUMENT, "it has no results");
}

/* ---- branches that do not fit ---- */

/* y = x w, with w of `rows` rows of 2, as a branch; nested: behind an If of the same condition. */
static struct pb product_branch(int rows, bool nested)
{
    static const float ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    struct pb g = {0};
    char w[20], y[20];
    snprintf(w, sizeof w, "w%d%d", rows, nested);
    snprintf(y, sizeof y, "y%d%d", rows, nested);
    if (nested) {
        struct pb attributes = {0}, yes = product_branch(rows, false), no = product_branch(rows + 1, false);
        onnx_attr_g(&attributes, "then_branch", &yes);
        onnx_attr_g(&attributes, "else_branch", &no);
        onnx_node(&g, "If", "c", y, attributes);
    } else {
        char in[40];
        snprintf(in, sizeof in, "x %s", w);
        onnx_initializer(&g, w, FLOAT, 2, (int64_t[]){rows, 2}, ones, (size_t)rows * 8);
        onnx_node(&g, "MatMul", in, y, onnx_none());
    }
    onnx_io(&g, 12, y, FLOAT, 2, (int64_t[]){1, 2});
    return g;
}

/* x [1, N] times a matrix of `yes` rows where rate is 16000, else of `no` rows. */
static struct pb rate_model(int yes, int no, bool nested)
{
    struct pb g = {0}, attributes = {0}, a = product_branch(yes, nested), b = product_branch(no, false);
    onnx_attr_g(&attributes, "then_branch", &a);
    onnx_attr_g(&attributes, "else_branch", &b);
    onnx_node(&g, "Equal", "rate k", "c", onnx_none());
    onnx_node(&g, "If", "c", "y", attributes);
    onnx_initializer(&g, "k", INT64, 0, NULL, (int64_t[]){16000}, 8);
    onnx_io(&g, 11, "x", FLOAT, 2, (int64_t[]){1, -1});
    onnx_io(&g, 11, "rate", INT64, 0, NULL);
    onnx_io(&g, 12, "y", FLOAT, 2, (int64_t[]){1, 2});
    return onnx_model(&g, 16);
}

/* Calls it with 4 numbers in a trace; inside: the rate is made in the trace.  The status of the trace. */
static kl_status rate_call(kl_model *m, int64_t rate, bool inside, float *y)
{
    static const float v[4] = {1, 2, 3, 4};
    kl_tensor x = kl_input(dev, KL_F32, 2, (int64_t[]){1, 4}, v), out = kl_none, r = kl_none;
    if (!inside)
        r = kl_input(dev, KL_I64, 0, NULL, &rate);
    kl_clear_error();
    kl_trace_begin("rate");
    if (inside)
        r = kl_input(dev, KL_I64, 0, NULL, &rate);
    kl_status s = kl_model_call(m, 2, (kl_tensor[]){x, r}, 1, &out);
    if (s == KL_OK)
        kl_keep(out);
    kl_status end = kl_trace_end();
    s = s ? s : end;
    if (s == KL_OK)
        s = kl_read(out, y, 2 * sizeof *y);
    if (s == KL_OK)
        kl_release(out);
    kl_release(x);
    if (!inside)
        kl_release(r);
    return s;
}

static void branches(void)
{
    for (int nested = 0; nested < 2; nested++) {
        float y[2] = {0, 0};
        kl_model *m = load(rate_model(4, 3, nested));
        for (int i = 0; i < 3; i++) { /* the branch that fits is taken, whatever was called before */
            CHECK(m && rate_call(m, 16000, false, y) == KL_OK && y[0] == 10 && y[1] == 10);
            CHECK(m && rate_call(m, 8000, false, y) == KL_ERR_SHAPE && says("MatMul"));
        }
        CHECK(m && rate_call(m, 16000, true, y) != KL_OK && says("('rate') has to be known while recording"));
        kl_model_close(m);
        m = load(rate_model(3, 4, nested));
        CHECK(m && rate_call(m, 8000, false, y) == KL_OK && y[0] == 10 && y[1] == 10);
        CHECK(m && rate_call(m, 16000, false, y) == KL_ERR_SHAPE);
        kl_model_close(m);
    }
    float y[2];
    kl_model *m = load(rate_model(4, 4, false)); /* both fit: the condition is one of each run */
    for (int inside = 0; inside < 2; inside++)
        CHECK(m && rate_call(m, inside ? 16000 : 8000, inside, y) == KL_OK && y[0] == 10);
    kl_model_close(m);
}

/* ---- data in other files ---- */

/* y = -W, whose 2 elements are external data with these entries; constant: W is a Constant's value. */
static struct pb external_model(const char *location, const char *offset, const char *length, bool constant)
{
    const char *const entry[3][2] = {{"location", location}, {"offset", offset}, {"length", length}};
    struct pb g = {0}, t = onnx_tensor("W", FLOAT, 1, (int64_t[]){2}, NULL, 0);
    for (int i = 0; i < 3; i++) {
        struct pb e = {0};
        pb_text(&e, 1, entry[i][0]);
        pb_text(&e, 2, entry[i][1]);
        if (entry[i][1])
            pb_message(&t, 13, &e);
    }
    pb_int(&t, 14, 1);
    if (constant) {
        struct pb a = {0}, all = {0};
        pb_text(&a, 1, "value");
        pb_message(&a, 5, &t);
        pb_int(&a, 20, 4);
        pb_message(&all, 5, &a);
        onnx_node(&g, "Constant", "", "W", all);
    } else {
        pb_message(&g, 5, &t);
    }
    onnx_node(&g, "Neg", "W", "y", onnx_none());
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){2});
    return onnx_model(&g, 13);
}

/* Loads and calls the model of a file; text: in the message of what fails, or NULL if its values are 2 and 3. */
static void external(struct pb m, const char *text)
{
    kl_clear_error();
    kl_tensor y = kl_none;
    kl_model *model = load(m);
    kl_status s = model ? kl_model_call(model, 0, NULL, 1, &y) : kl_last_error_code();
    if (text) {
        CHECK(s == KL_ERR_IO);
        if (!says(text))
            CHECK(!"the message"), printf("  it has no '%s'\n", text);
    } else if (CHECK(s == KL_OK)) {
        NEAR_LIST(y, 0, -2, -3);
    }
    kl_model_close(model);
}

/* Offsets and lengths that are no numbers, for an initializer and for a constant. */
static void external_numbers(void)
{
    static const char *const bad[] = {"abc", "0x4", "4x", "-4", "+4", " 4", "4 ", "", "4.0", "18446744073709551616"};
    for (int constant = 0; constant < 2; constant++) {
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            external(external_model("data", bad[i], "8", constant), "offset of its external data is '");
            external(external_model("data", "4", bad[i], constant), "length of its external data is '");
        }
        external(external_model("data", "4", "16", constant), "has 16 bytes of external data, not 8");
        external(external_model("data", "20", "8", constant), "8 bytes from byte 20 on are outside of data");
        external(external_model("data", "18446744073709551615", "8", constant), "are outside of data");
        external(external_model("data", "4", "8", constant), NULL);
    }
}

/* Links: within the folder they are followed, out of it they are refused, and so is what is no regular file.  A model
 * that is a link itself has its data beside it or beside the file that it leads to. */
static void external_links(void)
{
    char outside[] = "/tmp/kiln-outside-XXXXXX", name[300], real[300], own[200];
    int f = mkstemp(outside);
    CHECK(f >= 0 && write(f, W, sizeof W) == sizeof W && !close(f));
    snprintf(name, sizeof name, "%s/link", folder);
    CHECK(!symlink(outside, name));
    external(external_model("link", "4", "8", false), "is not in the folder of");
    unlink(name);
    CHECK(!symlink("data", name));
    external(external_model("link", "4", "8", false), NULL);
    unlink(name);
    CHECK(!symlink("/tmp", name)); /* a folder that is a link */
    snprintf(real, sizeof real, "link/%s", strrchr(outside, '/') + 1);
    external(external_model(real, "4", "8", false), "is not in the folder of");
    unlink(name);
    CHECK(!mkfifo(name, 0600));
    external(external_model("link", "4", "8", false), "is not a regular file: it is a FIFO");
    external(external_model("link", "4", "8", true), "is not a regular file: it is a FIFO");
    unlink(name);
    CHECK(!mkdir(name, 0700));
    external(external_model("link", "4", "8", false), "is not a regular file: it is a folder");
    rmdir(name);
    external(external_model("none", "4", "8", true), "cannot open");
    unlink(outside);
    CHECK(!mkdir(outside, 0700)); /* the model and its data are in another folder, the model is a link to it */
    snprintf(own, sizeof own, "%s", path);
    snprintf(path, sizeof path, "%s/m.onnx", outside);
    snprintf(real, sizeof real, "%s/data", outside);
    CHECK(onnx_save(real, W, sizeof W));
    struct pb m = external_model("data", "4", "8", false);
    CHECK(onnx_save(path, m.data, m.n) && !symlink(path, name) && !chmod(real, 0600));
    free(m.data);
    kl_model *there = kl_model_open(dev, path);
    CHECK(there != NULL);
    kl_model_close(there);
    there = kl_model_open(dev, name); /* its `data` is that beside the link */
    CHECK(there != NULL);
    kl_model_close(there);
    unlink(name);
    unlink(path);
    unlink(real);
    rmdir(outside);
    snprintf(path, sizeof path, "%s", own);
}

int main(int argc, char **argv)
{
    dev = kl_device_named(argc > 1 ? argv[1] : "ref");
    device_now = kl_device_name(dev);
    if (!CHECK(mkdtemp(folder) != NULL && dev.id != 0))
        return 1;
    char data[300];
    snprintf(path, sizeof path, "%s/m.onnx", folder);
    struct pb g = of_numbers("Abs", 1, -1, INT64);
    kl_model *first = load(onnx_model(&g, 13));
    if (!first && says("reads no ONNX")) {
        printf("SKIP not-built onnx: %s\n0 passed, 0 failed, 1 skipped\n", kl_last_error());
    } else {
        CHECK(first != NULL);
        kl_model_close(first);
        without_elements();
        without_operands();
        sizes();
        snprintf(data, sizeof data, "%s/data", folder);
        CHECK(onnx_save(data, W, sizeof W));
        branches();
        external_numbers();
        external_links();
        unlink(data);
        printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    }
    unlink(path);
    rmdir(folder);
    return failed != 0;
}
