/* <kiln/formats/model.h>: functions of a model, whose attributes have values of the caller's or defaults, and whose
 * overloads differ; attributes of the wrong type, and what newer files say: nothing is read as something else. */
#include "tests/formats/onnx_write.h"
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <unistd.h>

/* AttributeProto.type */
enum { ATTR_FLOAT = 1, ATTR_INT = 2, ATTR_STRING = 3, ATTR_TENSOR = 4, ATTR_FLOATS = 6, ATTR_INTS = 7 };

static kl_device dev;
static char path[] = "/tmp/kiln-functions-XXXXXX";
static const float X[3] = {-1, 0, 2};

static bool says(const char *text) { return strstr(kl_last_error(), text) != NULL; }

static struct pb joined(struct pb a, struct pb b)
{
    pb_bytes(&a, b.data, b.n);
    free(b.data);
    return a;
}

static struct pb attr_floats(const char *name, int n, const float *v)
{
    struct pb a = {0}, all = {0};
    pb_text(&a, 1, name);
    pb_blob(&a, 7, v, (size_t)n * sizeof *v);
    pb_int(&a, 20, ATTR_FLOATS);
    pb_message(&all, 5, &a);
    return all;
}

static struct pb attr_tensor(const char *name, float v)
{
    struct pb a = {0}, all = {0}, t = onnx_tensor("t", FLOAT, 1, (int64_t[]){1}, &v, sizeof v);
    pb_text(&a, 1, name);
    pb_message(&a, 5, &t);
    pb_int(&a, 20, ATTR_TENSOR);
    pb_message(&all, 5, &a);
    return all;
}

/* An attribute whose value is that of the function's attribute `of`. */
static struct pb reference(const char *name, const char *of, int type)
{
    struct pb a = {0}, all = {0};
    pb_text(&a, 1, name);
    pb_text(&a, 21, of);
    pb_int(&a, 20, type);
    pb_message(&all, 5, &a);
    return all;
}

/* A function b = f(a) without nodes, with an attribute (NULL: none), and a default of it, as onnx_attr_i and the like
 * write it for a node (empty: it has none). */
static struct pb function_of(const char *name, const char *overload, const char *attribute, struct pb value)
{
    struct pb f = {0}, opset = {0};
    pb_text(&f, 1, name);
    pb_text(&f, 4, "a");
    pb_text(&f, 5, "b");
    if (attribute && !value.n)
        pb_text(&f, 6, attribute);
    if (value.n) { /* the same message as field 11 */
        value.data[0] = 11 << 3 | 2;
        pb_bytes(&f, value.data, value.n);
    }
    free(value.data);
    pb_text(&opset, 1, "");
    pb_int(&opset, 2, 18);
    pb_message(&f, 9, &opset);
    pb_text(&f, 10, "my");
    if (*overload)
        pb_text(&f, 13, overload);
    return f;
}

static void function_node(struct pb *f, const char *op, const char *in, const char *out, struct pb attributes)
{
    struct pb g = {0};
    onnx_node(&g, op, in, out, attributes);
    g.data[0] = 7 << 3 | 2; /* the same message, as a function's node */
    pb_bytes(f, g.data, g.n);
    free(g.data);
}

/* A node that calls a function, into graph g. */
static void call_node(struct pb *g, const char *name, const char *overload, const char *out, struct pb attributes)
{
    struct pb n = {0};
    pb_text(&n, 1, "x");
    pb_text(&n, 2, out);
    pb_text(&n, 4, name);
    pb_bytes(&n, attributes.data, attributes.n);
    free(attributes.data);
    pb_text(&n, 7, "my");
    if (*overload)
        pb_text(&n, 8, overload);
    pb_message(g, 1, &n);
}

/* The model of graph g, with inputs x[3] and output y, and a function; it takes both over. */
static struct pb model_of(struct pb *g, struct pb *f)
{
    onnx_initializer(g, "x", FLOAT, 1, (int64_t[]){3}, X, sizeof X);
    onnx_io(g, 12, "y", FLOAT, 1, (int64_t[]){-1});
    struct pb m = onnx_model(g, 18);
    if (f)
        pb_message(&m, 25, f);
    return m;
}

static kl_status call(struct pb m, kl_tensor *y)
{
    *y = kl_none;
    kl_clear_error();
    bool ok = CHECK(onnx_save(path, m.data, m.n));
    free(m.data);
    kl_model *model = ok ? kl_model_open(dev, path) : NULL;
    kl_status s = model ? kl_model_call(model, 0, NULL, 1, y) : kl_last_error_code();
    kl_model_close(model);
    return s;
}

static void gives(struct pb m, double a, double b, double c)
{
    kl_tensor y;
    if (CHECK(call(m, &y) == KL_OK))
        NEAR_LIST(y, 1e-6, a, b, c);
}

static void fails(struct pb m, kl_status code, const char *text)
{
    kl_tensor y;
    CHECK(call(m, &y) == code);
    if (!says(text))
        CHECK(!"the message"), printf("  it has no '%s'\n", text);
}

/* ---- a constant whose value is an attribute of the function ---- */

static struct pb constant_function(const char *kind, int type, struct pb value)
{
    struct pb f = function_of("f", "", "v", value);
    function_node(&f, "Constant", "", "c", reference(kind, "v", type));
    function_node(&f, "Cast", "c", "c1", onnx_attr_i("to", FLOAT));
    function_node(&f, "Add", "a c1", "b", onnx_none());
    return f;
}

static void constants(void)
{
    static const float list[3] = {1, 2, 3};
    static const int64_t ints[3] = {1, 2, 3};
    const struct { const char *kind; int type; struct pb v; double add[3]; } row[] = {
        {"value_float", ATTR_FLOAT, onnx_attr_f("v", 1.5f), {1.5, 1.5, 1.5}},
        {"value_floats", ATTR_FLOATS, attr_floats("v", 3, list), {1, 2, 3}},
        {"value_int", ATTR_INT, onnx_attr_i("v", 4), {4, 4, 4}},
        {"value_ints", ATTR_INTS, onnx_attr_list("v", 3, ints), {1, 2, 3}},
        {"value", ATTR_TENSOR, attr_tensor("v", 2.5f), {2.5, 2.5, 2.5}},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        for (int by_default = 0; by_default < 2; by_default++) {
            struct pb g = {0}, copy = {0};
            pb_bytes(&copy, row[i].v.data, row[i].v.n);
            struct pb f = constant_function(row[i].kind, row[i].type, by_default ? copy : onnx_none());
            call_node(&g, "f", "", "y", by_default ? onnx_none() : copy);
            gives(model_of(&g, &f), X[0] + row[i].add[0], X[1] + row[i].add[1], X[2] + row[i].add[2]);
        }
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct pb g = {0}, f = constant_function(row[i].kind, row[i].type, onnx_none());
        call_node(&g, "f", "", "y", i == 4 ? onnx_attr_f("v", 1) : joined(attr_tensor("v", 1), onnx_none()));
        if (i < 4)
            fails(model_of(&g, &f), KL_ERR_TYPE, "attribute v is of another type than the constant's");
        else
            fails(model_of(&g, &f), KL_ERR_TYPE, "a constant that is no dense tensor");
        free(row[i].v.data);
    }
}

/* ---- values, defaults, references ---- */

static struct pb slope_function(struct pb value, const char *attribute)
{
    struct pb f = function_of("L", "", attribute, value);
    function_node(&f, "LeakyRelu", "a", "b", reference("alpha", "alpha", ATTR_FLOAT));
    return f;
}

static void defaults(void)
{
    struct pb g = {0}, f = slope_function(onnx_attr_f("alpha", 0.75f), "alpha");
    call_node(&g, "L", "", "y", onnx_none());
    gives(model_of(&g, &f), -0.75, 0, 2);
    f = slope_function(onnx_attr_f("alpha", 0.75f), "alpha"); /* the caller's goes before the default */
    call_node(&g, "L", "", "y", onnx_attr_f("alpha", 0.5f));
    gives(model_of(&g, &f), -0.5, 0, 2);
    f = slope_function(onnx_none(), "alpha"); /* neither: the operator's own */
    call_node(&g, "L", "", "y", onnx_none());
    gives(model_of(&g, &f), -0.01, 0, 2);
    f = slope_function(onnx_none(), NULL);
    call_node(&g, "L", "", "y", onnx_none());
    fails(model_of(&g, &f), KL_ERR_IO, "refers to 'alpha', which is no attribute of a function around it");
    onnx_node(&g, "LeakyRelu", "x", "y", reference("alpha", "alpha", ATTR_FLOAT)); /* in no function at all */
    fails(model_of(&g, NULL), KL_ERR_IO, "refers to 'alpha', which is no attribute of a function around it");
    f = slope_function(onnx_attr_i("alpha", 1), "alpha");
    call_node(&g, "L", "", "y", onnx_none());
    fails(model_of(&g, &f), KL_ERR_TYPE, "attribute alpha is of another type than the operator's");
}

/* A function that calls another one with an attribute of its own, by its caller's value or its default. */
static void nested(void)
{
    for (int by_default = 0; by_default < 2; by_default++) {
        struct pb g = {0}, n = {0}, outer = {0}, f = slope_function(onnx_attr_f("alpha", 0.75f), "alpha");
        call_node(&g, "Outer", "", "y", by_default ? onnx_none() : onnx_attr_f("slope", 0.5f));
        outer = function_of("Outer", "", "slope", onnx_attr_f("slope", 0.25f));
        pb_text(&n, 1, "a");
        pb_text(&n, 2, "b");
        pb_text(&n, 4, "L");
        struct pb r = reference("alpha", "slope", ATTR_FLOAT);
        pb_bytes(&n, r.data, r.n);
        free(r.data);
        pb_text(&n, 7, "my");
        pb_message(&outer, 7, &n);
        struct pb m = model_of(&g, &f);
        pb_message(&m, 25, &outer);
        gives(m, by_default ? -0.25 : -0.5, 0, 2);
    }
}

/* ---- overloads ---- */

static void overloads(void)
{
    struct pb g = {0}, a = function_of("G", "first", NULL, onnx_none());
    struct pb b = function_of("G", "second", NULL, onnx_none());
    function_node(&a, "Relu", "a", "b", onnx_none());
    function_node(&b, "Neg", "a", "b", onnx_none());
    call_node(&g, "G", "second", "z", onnx_none());
    call_node(&g, "G", "first", "w", onnx_none());
    onnx_node(&g, "Add", "z w", "y", onnx_none());
    struct pb m = model_of(&g, &a);
    pb_message(&m, 25, &b);
    gives(m, 1, 0, 0); /* -x + relu(x) */
    a = function_of("G", "first", NULL, onnx_none());
    function_node(&a, "Relu", "a", "b", onnx_none());
    call_node(&g, "G", "", "y", onnx_none());
    fails(model_of(&g, &a), KL_ERR_TYPE, "1 operator is missing: my.G");
    a = function_of("G", "", NULL, onnx_none());
    b = function_of("G", "", NULL, onnx_none());
    function_node(&a, "Relu", "a", "b", onnx_none());
    function_node(&b, "Neg", "a", "b", onnx_none());
    call_node(&g, "G", "", "y", onnx_none());
    m = model_of(&g, &a);
    pb_message(&m, 25, &b);
    fails(m, KL_ERR_IO, "two functions are called 'G'");
    struct pb n = {0}, f = slope_function(onnx_attr_f("alpha", 0.75f), "alpha");
    pb_text(&n, 1, "x");
    pb_text(&n, 1, "x");
    pb_text(&n, 2, "y");
    pb_text(&n, 4, "L");
    pb_text(&n, 7, "my");
    pb_message(&g, 1, &n);
    fails(model_of(&g, &f), KL_ERR_IO, "calls function 'L' with 2 operands for 1 results; it has 1 and 1");
}

/* ---- types ---- */

static void wrong_types(void)
{
    static const struct { const char *op, *attribute; bool number; } row[] = {
        {"Softmax", "axis", false}, {"ReduceMax", "keepdims", false}, {"Elu", "alpha", true},
        {"Flatten", "axis", false}, {"Cast", "to", false}, {"Gelu", "approximate", true}, {"Transpose", "perm", true},
        {"Concat", "axis", false},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct pb g = {0};
        const char *name = row[i].attribute;
        onnx_node(&g, row[i].op, "x", "y", row[i].number ? onnx_attr_i(name, 0) : onnx_attr_f(name, 0));
        onnx_initializer(&g, "x", FLOAT, 1, (int64_t[]){3}, X, sizeof X);
        onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){-1});
        char text[80];
        snprintf(text, sizeof text, "attribute %s is of another type", row[i].attribute);
        fails(onnx_model(&g, 20), KL_ERR_TYPE, text);
    }
}

/* Inputs and outputs of element types that Kiln does not have, and files of a later IR version. */
static void unknown(void)
{
    static const struct { int type; const char *name; } row[] = {
        {14, "complex64"}, {15, "complex128"}, {27, "float6e2m3"}, {28, "float6e3m2"},
        {99, "an unknown type"}};
    char text[100];
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        for (int output = 0; output < 2; output++) {
            struct pb g = {0};
            onnx_node(&g, "Neg", "x", "y", onnx_none());
            onnx_io(&g, 11, "x", output ? FLOAT : row[i].type, 1, (int64_t[]){3});
            onnx_io(&g, 12, "y", output ? row[i].type : FLOAT, 1, (int64_t[]){3});
            snprintf(text, sizeof text, "%s has elements of %s, which Kiln does not have",
                     output ? "output 'y'" : "input 'x'", row[i].name);
            fails(onnx_model(&g, 13), KL_ERR_TYPE, text);
        }
    struct pb g = {0}, m = {0}, o = {0};
    onnx_node(&g, "Neg", "x", "y", onnx_none());
    onnx_initializer(&g, "x", FLOAT, 1, (int64_t[]){3}, X, sizeof X);
    onnx_io(&g, 12, "y", FLOAT, 1, (int64_t[]){3});
    pb_int(&m, 1, 15);
    pb_int(&o, 2, 13);
    pb_message(&m, 8, &o);
    pb_message(&m, 7, &g);
    fails(m, KL_ERR_TYPE, "is of IR version 15; 14 is the last that Kiln knows");
}

int main(void)
{
    dev = kl_device_named("ref");
    if (!CHECK(mkstemp(path) >= 0 && dev.id != 0))
        return 1;
    if (!kl_model_open(dev, path) && says("reads no ONNX")) {
        printf("SKIP not-built onnx: %s\n0 passed, 0 failed, 1 skipped\n", kl_last_error());
        unlink(path);
        return 0;
    }
    constants();
    defaults();
    nested();
    overloads();
    wrong_types();
    unknown();
    unlink(path);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
