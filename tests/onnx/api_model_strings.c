/* Strings in models: they are numbers, which a caller turns into texts; labels of classifiers, maps of scores, tensors
 * of strings, and operators that do not take them.  Argument: a device (cpu). */
#include "tests/formats/onnx_write.h"
#include "tests/onnx/model_test.h"

enum { STRING = 8, ROWS = 3, CLASSES = 3 };
static kl_device dev;
static char path[] = "/tmp/kiln-strings-XXXXXX";

/* Adds a node of ai.onnx.ml, or of ONNX's own domain. */
static void add_node(struct pb *g, const char *op, const char *domain, const char *in, const char *out,
                     struct pb attributes)
{
    pb_text(&attributes, 7, domain);
    onnx_node(g, op, in, out, attributes);
}

static struct pb floats_of(const char *name, int n, const float *v)
{
    struct pb a = {0}, all = {0};
    pb_text(&a, 1, name);
    for (int i = 0; i < n; i++) {
        pb_varint(&a, 7 << 3 | 5);
        pb_bytes(&a, &v[i], sizeof v[i]);
    }
    pb_int(&a, 20, 6);
    pb_message(&all, 5, &a);
    return all;
}

/* A tensor of strings, an initializer. */
static void add_strings(struct pb *g, const char *name, int n, int declared, const char *const *text, size_t length)
{
    struct pb t = {0};
    pb_int(&t, 1, declared);
    pb_int(&t, 2, STRING);
    pb_text(&t, 8, name);
    for (int i = 0; i < n; i++)
        pb_blob(&t, 6, text[i], length ? length : strlen(text[i]));
    pb_message(g, 5, &t);
}

/* An output of type sequence(map(string, float)). */
static void add_map_output(struct pb *g, const char *name)
{
    struct pb tensor = {0}, value = {0}, map = {0}, element = {0}, sequence = {0}, type = {0}, v = {0};
    pb_int(&tensor, 1, FLOAT);
    pb_message(&value, 1, &tensor);
    pb_int(&map, 1, STRING);
    pb_message(&map, 2, &value);
    pb_message(&element, 5, &map);
    pb_message(&sequence, 1, &element);
    pb_message(&type, 4, &sequence);
    pb_text(&v, 1, name);
    pb_message(&v, 2, &type);
    pb_message(g, 12, &v);
}

static kl_model *opened(struct pb *g)
{
    struct pb m = {0}, set = {0};
    pb_int(&m, 1, 8);
    pb_text(&set, 1, "");
    pb_int(&set, 2, 17);
    pb_message(&m, 8, &set);
    pb_text(&set, 1, "ai.onnx.ml");
    pb_int(&set, 2, 3);
    pb_message(&m, 8, &set);
    pb_message(&m, 7, g);
    bool ok = onnx_save(path, m.data, m.n);
    free(m.data);
    return ok ? kl_model_open(dev, path) : NULL;
}

static bool says(const char *text) { return strstr(kl_last_error(), text) != NULL; }

static const char *const animals[] = {"cat", "dog", "owl"};

/* As scikit-learn's converter writes a classifier: labels are strings, scores a list of maps. */
static void classifier(bool traced)
{
    static const float w[] = {1, 0, 0, 1, -1, -1}, b[] = {0, 0, 0.5f}, x[ROWS][2] = {{2, 1}, {-1, 3}, {-2, -2}};
    struct pb g = {0}, a = onnx_attr_texts("classlabels_strings", CLASSES, animals);
    onnx_attr_add(&a, floats_of("coefficients", 6, w));
    onnx_attr_add(&a, floats_of("intercepts", CLASSES, b));
    add_node(&g, "LinearClassifier", "ai.onnx.ml", "x", "label scores", a);
    add_node(&g, "ZipMap", "ai.onnx.ml", "scores", "maps", onnx_attr_texts("classlabels_strings", CLASSES, animals));
    onnx_io(&g, 11, "x", FLOAT, 2, (int64_t[]){-1, 2});
    onnx_io(&g, 12, "label", STRING, 1, (int64_t[]){-1});
    add_map_output(&g, "maps");
    kl_model *m = opened(&g);
    kl_model_value v;
    if (!CHECK(m != NULL))
        return;
    CHECK(kl_model_output(m, 0, &v) == KL_OK && v.strings && v.dtype == KL_I64 && !v.keys);
    CHECK(kl_model_output(m, 1, &v) == KL_OK && !v.strings && v.dtype == KL_F32 && v.rank == 2 &&
          v.dims[1] == CLASSES && v.keys && !strcmp(v.keys[0], "cat") && !strcmp(v.keys[2], "owl"));
    CHECK(kl_model_strings(m) == CLASSES && kl_model_string_number(m, "fish") == -1);
    kl_tensor in = kl_input(dev, KL_F32, 2, (int64_t[]){ROWS, 2}, x), out[2];
    if (traced)
        kl_trace_begin("classifier");
    bool ok = CHECK(kl_model_call(m, 1, &in, 2, out) == KL_OK);
    for (int i = 0; ok && traced && i < 2; i++)
        kl_keep(out[i]);
    CHECK(!traced || kl_trace_end() == KL_OK);
    int64_t label[ROWS] = {-1, -1, -1};
    float scores[ROWS][CLASSES] = {{0}};
    CHECK(ok && kl_read(out[0], label, sizeof label) == KL_OK && kl_read(out[1], scores, sizeof scores) == KL_OK);
    for (int i = 0; i < ROWS; i++) {
        const char *text = kl_model_string(m, label[i]);
        CHECK(text && !strcmp(text, animals[i]) && kl_model_string_number(m, text) == label[i]);
        for (int c = 0; c < CLASSES; c++)
            CHECK(scores[i][c] == x[i][0] * w[2 * c] + x[i][1] * w[2 * c + 1] + b[c]);
    }
    CHECK(!kl_model_string(m, -1) && !kl_model_string(m, CLASSES) && kl_model_string_number(m, NULL) == -1);
    kl_model_close(m);
}

/* Inputs of strings are numbers that the model gives; unknown texts equal no key. */
static void inputs(void)
{
    struct pb g = {0}, a = onnx_attr_texts("keys_strings", CLASSES, animals);
    onnx_attr_add(&a, onnx_attr_list("values_int64s", CLASSES, (int64_t[]){10, 20, 30}));
    onnx_attr_add(&a, onnx_attr_i("default_int64", 99));
    add_node(&g, "LabelEncoder", "ai.onnx.ml", "x", "y", a);
    onnx_io(&g, 11, "x", STRING, 1, (int64_t[]){4});
    onnx_io(&g, 12, "y", INT64, 1, (int64_t[]){4});
    kl_model *m = opened(&g);
    kl_model_value v;
    if (!CHECK(m != NULL))
        return;
    CHECK(kl_model_input(m, 0, &v) == KL_OK && v.strings && v.dtype == KL_I64);
    int64_t number[4], got[4] = {0};
    static const char *const text[] = {"owl", "fish", "cat", "dog"};
    for (int i = 0; i < 4; i++)
        number[i] = kl_model_string_number(m, text[i]);
    kl_tensor x = kl_input(dev, KL_I64, 1, (int64_t[]){4}, number), y;
    CHECK(kl_model_call(m, 1, &x, 1, &y) == KL_OK && kl_read(y, got, sizeof got) == KL_OK);
    CHECK(got[0] == 30 && got[1] == 99 && got[2] == 10 && got[3] == 20);
    kl_model_close(m);
}

/* Keys of maps that are integers; a text twice has one number. */
static void whole_keys(void)
{
    static const char *const again[] = {"a", "b", "a"};
    struct pb g = {0};
    add_node(&g, "ZipMap", "ai.onnx.ml", "x", "maps", onnx_attr_list("classlabels_int64s", 2, (int64_t[]){-7, 9}));
    add_strings(&g, "s", 3, 3, again, 0);
    add_node(&g, "Identity", "", "s", "t", onnx_none());
    onnx_io(&g, 11, "x", FLOAT, 2, (int64_t[]){2, 2});
    add_map_output(&g, "maps");
    onnx_io(&g, 12, "t", STRING, 1, (int64_t[]){3});
    kl_model *m = opened(&g);
    kl_model_value v;
    if (!CHECK(m != NULL))
        return;
    CHECK(kl_model_output(m, 0, &v) == KL_OK && v.keys && !strcmp(v.keys[0], "-7") && !strcmp(v.keys[1], "9"));
    kl_tensor x = kl_zeros(dev, KL_F32, 2, (int64_t[]){2, 2}), out[2];
    int64_t number[3];
    CHECK(kl_model_call(m, 1, &x, 2, out) == KL_OK && kl_read(out[1], number, sizeof number) == KL_OK);
    CHECK(number[0] == 0 && number[1] == 1 && number[2] == 0 && kl_model_strings(m) == 2);
    kl_model_close(m);
}

/* A model of one node with operands s, of strings, and x, of numbers, is refused when it is called. */
static void refused(const char *op, const char *in, struct pb attributes, const char *why)
{
    struct pb g = {0};
    add_strings(&g, "s", 2, 2, animals, 0);
    add_node(&g, op, "", in, "y", attributes);
    onnx_io(&g, 11, "x", INT64, 1, (int64_t[]){2});
    onnx_io(&g, 12, "y", INT64, 0, NULL);
    kl_model *m = opened(&g);
    kl_tensor x = kl_zeros(dev, KL_I64, 1, (int64_t[]){2}), y;
    if (!CHECK(m != NULL))
        return;
    kl_clear_error();
    CHECK(kl_model_call(m, 1, &x, 1, &y) == KL_ERR_TYPE && says(why) && says(op));
    kl_model_close(m);
}

static void damaged(int n, int declared, size_t length, kl_status code, const char *why)
{
    static const char *const text[] = {"c\0t", "d\0g", "o\0l"};
    struct pb g = {0};
    add_strings(&g, "s", n, declared, length ? text : animals, length);
    add_node(&g, "Identity", "", "s", "y", onnx_none());
    onnx_io(&g, 12, "y", STRING, 0, NULL);
    kl_clear_error();
    CHECK(!opened(&g) && kl_last_error_code() == code && says(why));
}

int main(int argc, char **argv)
{
    int status;
    if (!model_test_begin(argc, argv, path, &dev, &status))
        return status;
    classifier(false);
    classifier(true);
    inputs();
    whole_keys();
    refused("Add", "s s", onnx_none(), "of strings, which this operator does not take");
    refused("Add", "x s", onnx_none(), "operand 1 ('s') is of strings");
    refused("Concat", "x s", onnx_attr_i("axis", 0), "others not");
    refused("Equal", "s x", onnx_none(), "others not");
    refused("Cast", "s", onnx_attr_i("to", INT64), "no cast from string to int64");
    refused("Cast", "x", onnx_attr_i("to", STRING), "no cast to string");
    refused("Unique", "s", onnx_none(), "of strings");
    damaged(2, 3, 0, KL_ERR_IO, "2 strings where its shape has 3 elements");
    damaged(3, 3, 3, KL_ERR_TYPE, "zero byte");
    unlink(path);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
