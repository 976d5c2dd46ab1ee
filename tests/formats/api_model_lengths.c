/* Models with named lengths (dim_param) in traces where these are symbols: a small transformer with the shape
 * arithmetic that exporters write is one program for all batches and lengths, with the bits of fixed shapes; what
 * cannot be symbolic says why. */
#include "tests/formats/onnx_write.h"
#include "tests/support/api_symbols.h"
#include <kiln/onnx.h>
#include <unistd.h>

enum { WORDS = 11, MAX_COUNT = 16, WIDTH = 8, HEADS = 2, MAX_BATCH = 4, PAIRS = 8 };

static char folder[] = "/tmp/kiln-lengths-XXXXXX", path[200];
static int64_t ids[MAX_BATCH * MAX_COUNT], seen[MAX_BATCH * MAX_COUNT];
static const int64_t pair[PAIRS][2] = {{2, 5}, {1, 1}, {4, 16}, {3, 7}, {1, 16}, {4, 1}, {2, 5}, {3, 12}};

static void weights(struct pb *g, const char *name, int rank, const int64_t *dims)
{
    float v[WIDTH * 3 * WIDTH];
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)((i * 31 + name[0] * 7) % 23 - 11) / 16;
    onnx_initializer(g, name, FLOAT, rank, dims, v, (size_t)n * sizeof *v);
}

static void ints(struct pb *g, const char *name, int n, const int64_t *v) /* n -1: one number */
{
    onnx_initializer(g, name, INT64, n >= 0, (int64_t[]){n}, v, (size_t)(n < 0 ? 1 : n) * sizeof *v);
}

static void node(struct pb *g, const char *op, const char *in, const char *out)
{
    onnx_node(g, op, in, out, onnx_none());
}

static void node_axis(struct pb *g, const char *op, const char *in, const char *out, const char *name, int64_t v)
{
    onnx_node(g, op, in, out, onnx_attr_i(name, v));
}

static void constants(struct pb *g)
{
    weights(g, "embedding", 2, (int64_t[]){WORDS, WIDTH});
    weights(g, "position", 2, (int64_t[]){MAX_COUNT, WIDTH});
    weights(g, "qkv", 2, (int64_t[]){WIDTH, 3 * WIDTH});
    weights(g, "out", 2, (int64_t[]){WIDTH, WIDTH});
    weights(g, "norm", 1, (int64_t[]){WIDTH});
    weights(g, "head", 2, (int64_t[]){WIDTH, WORDS});
    ints(g, "zero", -1, (int64_t[]){0});
    ints(g, "one", -1, (int64_t[]){1});
    ints(g, "axis0", 1, (int64_t[]){0});
    ints(g, "axis1", 1, (int64_t[]){1});
    ints(g, "axis2", 1, (int64_t[]){2});
    ints(g, "axis3", 1, (int64_t[]){3});
    ints(g, "heads", 1, (int64_t[]){HEADS});
    ints(g, "each", 1, (int64_t[]){WIDTH / HEADS});
    ints(g, "width", 1, (int64_t[]){WIDTH});
    ints(g, "last", -1, (int64_t[]){-1});
    ints(g, "minus", 1, (int64_t[]){-1});
    ints(g, "most", 1, (int64_t[]){INT64_MAX});
    ints(g, "rank4", 1, (int64_t[]){4});
    ints(g, "placeholder", 1, (int64_t[]){-(1 << 24)}); /* numbers that Kiln gives symbolic lengths */
    ints(g, "around", 2, (int64_t[]){1, 2});
    ints(g, "cut", 2, (int64_t[]){0, -4});
    onnx_initializer(g, "low", FLOAT, 0, NULL, (float[]){-10000}, 4);
    onnx_initializer(g, "onef", FLOAT, 0, NULL, (float[]){1}, 4);
    uint8_t causal[MAX_COUNT * MAX_COUNT];
    for (int i = 0; i < MAX_COUNT * MAX_COUNT; i++)
        causal[i] = i % MAX_COUNT <= i / MAX_COUNT;
    onnx_initializer(g, "causal", BOOL, 4, (int64_t[]){1, 1, MAX_COUNT, MAX_COUNT}, causal, sizeof causal);
}

/* [batch, length, width] as [batch, heads, length, each], with lengths from its own shape. */
static void split_heads(struct pb *g, const char *x)
{
    char a[6][40], in[200];
    const char *what[] = {"shape", "b", "l", "b1", "l1", "to"};
    for (int i = 0; i < 6; i++)
        snprintf(a[i], sizeof a[i], "%s.%s", x, what[i]);
    node(g, "Shape", x, a[0]);
    snprintf(in, sizeof in, "%s zero", a[0]);
    node_axis(g, "Gather", in, a[1], "axis", 0);
    snprintf(in, sizeof in, "%s one", a[0]);
    node_axis(g, "Gather", in, a[2], "axis", 0);
    snprintf(in, sizeof in, "%s axis0", a[1]);
    node(g, "Unsqueeze", in, a[3]);
    snprintf(in, sizeof in, "%s axis0", a[2]);
    node(g, "Unsqueeze", in, a[4]);
    snprintf(in, sizeof in, "%s %s heads each", a[3], a[4]);
    node_axis(g, "Concat", in, a[5], "axis", 0);
    snprintf(in, sizeof in, "%s %s", x, a[5]);
    snprintf(a[0], sizeof a[0], "%s.split", x);
    node(g, "Reshape", in, a[0]);
    snprintf(a[1], sizeof a[1], "%s.heads", x);
    onnx_node(g, "Transpose", a[0], a[1], onnx_attr_list("perm", 4, (int64_t[]){0, 2, 1, 3}));
}

/* As an exporter writes it, from ids and a mask, i64[N, O], to logits of all positions and of the last, and the number
 * of ids. */
static struct pb transformer(void)
{
    struct pb g = {0};
    node(&g, "Shape", "ids", "shape");
    node_axis(&g, "Gather", "shape zero", "b", "axis", 0);
    node_axis(&g, "Gather", "shape one", "l", "axis", 0);
    node(&g, "Range", "zero l one", "range");
    node(&g, "Unsqueeze", "range axis0", "places");
    node(&g, "Gather", "embedding ids", "words");
    node(&g, "Gather", "position places", "at");
    node(&g, "Add", "words at", "x");
    node_axis(&g, "LayerNormalization", "x norm norm", "h", "axis", -1);
    node(&g, "MatMul", "h qkv", "all");
    node_axis(&g, "Split", "all", "q k v", "axis", 2);
    split_heads(&g, "q"), split_heads(&g, "k"), split_heads(&g, "v");
    onnx_node(&g, "Transpose", "k.heads", "kt", onnx_attr_list("perm", 4, (int64_t[]){0, 1, 3, 2}));
    node(&g, "MatMul", "q.heads kt", "raw");
    node(&g, "Shape", "q.heads", "qs"); /* the square root of the last length */
    node(&g, "Slice", "qs minus most", "last1");
    node_axis(&g, "Cast", "last1", "lastf", "to", FLOAT);
    node(&g, "Sqrt", "lastf", "root");
    node(&g, "Div", "raw root", "scaled");
    /* rows k - q .. k of the table of what is seen, of which the first k columns */
    node(&g, "Shape", "k.heads", "ks");
    node_axis(&g, "Gather", "ks axis2", "kl", "axis", 0);
    node_axis(&g, "Gather", "qs axis2", "ql", "axis", 0);
    node(&g, "Sub", "kl ql", "from");
    node(&g, "Slice", "causal from kl axis2", "rows");
    node(&g, "Slice", "rows axis0 kl axis3", "square");
    node(&g, "Where", "square scaled low", "past");
    /* the mask of each sequence, expanded by a shape in which -1 would be a length kept */
    node(&g, "Unsqueeze", "mask axis1", "mask3");
    node(&g, "Unsqueeze", "mask3 axis2", "mask4");
    node(&g, "Unsqueeze", "b axis0", "b1");
    node(&g, "Unsqueeze", "l axis0", "l1");
    node_axis(&g, "Concat", "b1 axis1 l1 l1", "wide", "axis", 0);
    node(&g, "ConstantOfShape", "rank4", "zeros");
    node_axis(&g, "Cast", "zeros", "zerosi", "to", INT64);
    node(&g, "Add", "zerosi axis1", "ones");
    node(&g, "Mul", "ones minus", "minuses");
    node(&g, "Equal", "wide minuses", "kept");
    node(&g, "Where", "kept ones wide", "size");
    node(&g, "Expand", "mask4 size", "mask5");
    node_axis(&g, "Cast", "mask5", "maskf", "to", FLOAT);
    node(&g, "Sub", "onef maskf", "gone");
    node(&g, "Mul", "gone low", "penalty");
    node(&g, "Add", "past penalty", "scores");
    node_axis(&g, "Softmax", "scores", "share", "axis", -1);
    node(&g, "MatMul", "share v.heads", "mixed");
    onnx_node(&g, "Transpose", "mixed", "back", onnx_attr_list("perm", 4, (int64_t[]){0, 2, 1, 3}));
    node_axis(&g, "Concat", "b1 l1 width", "flat", "axis", 0);
    node(&g, "Reshape", "back flat", "joined");
    node(&g, "MatMul", "joined out", "added");
    node(&g, "Add", "x added", "y");
    node(&g, "MatMul", "y head", "logits");
    node_axis(&g, "Gather", "y last", "end", "axis", 1);
    node(&g, "MatMul", "end head", "next");
    node(&g, "Mul", "b l", "count");
    constants(&g);
    onnx_io(&g, 11, "ids", INT64, 2, (int64_t[]){-1, -2});
    onnx_io(&g, 11, "mask", INT64, 2, (int64_t[]){-1, -2});
    onnx_io(&g, 12, "logits", FLOAT, 3, (int64_t[]){-1, -2, WORDS});
    onnx_io(&g, 12, "next", FLOAT, 2, (int64_t[]){-1, WORDS});
    onnx_io(&g, 12, "count", INT64, 0, NULL);
    return onnx_model(&g, 17);
}

static kl_model *load(kl_device dev, struct pb m)
{
    CHECK(onnx_save(path, m.data, m.n));
    free(m.data);
    kl_model *model = kl_model_open(dev, path);
    CHECK(model != NULL);
    return model;
}

static void test_transformer(kl_device dev)
{
    kl_model *m = load(dev, transformer());
    struct counts first = {0}, others = {0};
    int64_t lengths[2] = {kl_symbol("N", 1, MAX_BATCH), kl_symbol("O", 1, MAX_COUNT)};
    for (int i = 0; m && i < PAIRS; i++) {
        kl_tensor out[2][3];
        int64_t count = -1;
        for (int k = 0; k < 2; k++) {
            struct counts before = counts_now();
            kl_trace_begin(k ? "fixed model" : "symbolic model");
            kl_tensor in[2] = {kl_input_symbolic(dev, KL_I64, 2, k ? pair[i] : lengths, pair[i], ids),
                               kl_input_symbolic(dev, KL_I64, 2, k ? pair[i] : lengths, pair[i], seen)};
            CHECK(kl_model_call(m, 2, in, 3, out[k]) == KL_OK);
            for (int j = 0; j < 3; j++)
                kl_keep(out[k][j]);
            OK(kl_trace_end());
            if (!k)
                add_since(i ? &others : &first, before);
        }
        same_bits(out[0][0], out[1][0]);
        same_bits(out[0][1], out[1][1]);
        OK(kl_read(out[0][2], &count, sizeof count));
        CHECK(count == pair[i][0] * pair[i][1]);
        for (int k = 0; k < 6; k++)
            kl_release(out[k / 3][k % 3]);
    }
    CHECK(!whole_programs(dev) || (first.graphs <= 1 && !others.graphs && !others.compiles && !others.variants));
    kl_model_close(m);
}

/* ---- shape arithmetic, by what it gives ---- */

/* The result of nodes over x, i64[N], as a model's output of this dtype; kl_none: it failed. */
static kl_tensor computed(kl_device dev, const struct pb *nodes, int type, int64_t n, int64_t count, kl_model **m)
{
    struct pb g = {0};
    pb_bytes(&g, nodes->data, nodes->n);
    constants(&g);
    onnx_io(&g, 11, "x", INT64, 1, (int64_t[]){-1});
    onnx_io(&g, 12, "y", type, 1, (int64_t[]){-2});
    *m = load(dev, onnx_model(&g, 17));
    kl_tensor x = kl_input_symbolic(dev, KL_I64, 1, &n, &count, ids), y = kl_none;
    kl_model_call(*m, 1, &x, 1, &y);
    return y;
}

struct line { const char *op, *in, *out; }; /* a node without attributes; Gather's axis is 0 */
enum { LINES = 6 };

static struct pb nodes_of(const struct line *line)
{
    struct pb g = {0};
    for (int i = 0; i < LINES && line[i].op; i++)
        node(&g, line[i].op, line[i].in, line[i].out);
    return g;
}

static void test_arithmetic(kl_device dev)
{
    static const struct { struct line line[LINES]; } good[] = {
        {{{"Shape", "x", "n"}, {"Add", "n n", "m"}, {"Identity", "m", "y"}}},
        {{{"Shape", "x", "n"}, {"ReduceProd", "n", "y"}}},
        {{{"Size", "x", "n"}, {"Unsqueeze", "n axis0", "y"}}},
        {{{"Shape", "x", "n"}, {"Squeeze", "n axis0", "m"}, {"Range", "one m one", "y"}}},
        {{{"Shape", "x", "n"}, {"Mul", "n heads", "m"}, {"Div", "m heads", "k"}, {"ConstantOfShape", "k", "z"},
          {"Shape", "z", "y"}}},
        {{{"Shape", "x", "n"}, {"Add", "n axis1", "m"}, {"Sub", "m n", "y"}}},
        {{{"Shape", "x", "n"}, {"Sub", "n axis1", "m"}, {"Slice", "x axis0 m", "y"}}},
        {{{"Slice", "x minus most", "y"}}},
        {{{"Shape", "x", "n"}, {"Equal", "n axis2", "e"}, {"Where", "e n axis1", "y"}}}, /* each run compares */
        {{{"Shape", "x", "n"}, {"Max", "n axis3", "y"}}},                               /* as a tensor */
        {{{"Shape", "x", "n"}, {"Reshape", "n minus", "m"}, {"Neg", "m", "y"}}},
        {{{"Shape", "x", "n"}, {"Gather", "n axis0", "m"}, {"Add", "x m", "y"}}},
        {{{"Unsqueeze", "x axis0", "u"}, {"Flatten", "u", "f"}, {"Squeeze", "f axis0", "y"}}},
        {{{"Pad", "x around", "y"}}},
        {{{"Slice", "x placeholder most", "y"}}},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        for (int64_t count = 1; count <= MAX_COUNT; count += 5) {
            kl_tensor y[2];
            kl_model *m[2];
            for (int k = 0; k < 2; k++) {
                struct pb nodes = nodes_of(good[i].line);
                kl_trace_begin(k ? "fixed arithmetic" : "arithmetic");
                y[k] = kl_keep(computed(dev, &nodes, INT64, k ? count : kl_symbol("N", 1, MAX_COUNT), count, &m[k]));
                OK(kl_trace_end());
                free(nodes.data);
            }
            int64_t a[2 * MAX_COUNT] = {0}, b[2 * MAX_COUNT] = {0}, n = kl_numel(y[0]);
            if (!CHECK(n == kl_numel(y[1]) && n <= 2 * MAX_COUNT))
                break;
            OK(kl_read(y[0], a, (size_t)n * sizeof *a));
            OK(kl_read(y[1], b, (size_t)n * sizeof *b));
            if (!CHECK(!memcmp(a, b, sizeof a)))
                printf("  arithmetic %zu, %lld elements: %lld, not %lld\n", i, (long long)count, (long long)a[0],
                       (long long)b[0]);
            for (int k = 0; k < 2; k++) {
                kl_release(y[k]);
                kl_model_close(m[k]);
            }
        }
}

/* ---- loops that run as often as a symbolic length says ---- */

/* s = 2 for each round, and the round's number plus s stacked; the condition that the body gives is the one it was
 * given or, counts false, is computed of the round's number. */
static struct pb loop_model(bool counts)
{
    struct pb g = {0}, body = {0}, attributes = {0};
    onnx_io(&body, 11, "i", INT64, 0, NULL);
    onnx_io(&body, 11, "c", BOOL, 0, NULL);
    onnx_io(&body, 11, "s", INT64, 0, NULL);
    node(&body, counts ? "Identity" : "Less", counts ? "c" : "i hundred", "c2");
    node(&body, "Add", "s two", "s2");
    node(&body, "Add", "s2 i", "each");
    onnx_io(&body, 12, "c2", BOOL, 0, NULL);
    onnx_io(&body, 12, "s2", INT64, 0, NULL);
    if (counts) /* how many are stacked would depend on the condition */
        onnx_io(&body, 12, "each", INT64, 0, NULL);
    onnx_attr_g(&attributes, "body", &body);
    node(&g, "Shape", "x", "shape");
    node_axis(&g, "Gather", "shape zero", "n", "axis", 0);
    onnx_node(&g, "Loop", "n - zero", counts ? "y z" : "y", attributes);
    constants(&g);
    ints(&g, "two", -1, (int64_t[]){2});
    ints(&g, "hundred", -1, (int64_t[]){100});
    onnx_io(&g, 11, "x", INT64, 1, (int64_t[]){-1});
    onnx_io(&g, 12, "y", INT64, 0, NULL);
    if (counts)
        onnx_io(&g, 12, "z", INT64, 1, (int64_t[]){-1});
    return onnx_model(&g, 17);
}

static void test_loops(kl_device dev)
{
    for (int counts = 0; counts < 2; counts++) {
        kl_model *m = load(dev, loop_model(counts));
        for (int64_t count = 1; count <= MAX_COUNT; count += 5) {
            kl_tensor y[2] = {kl_none, kl_none};
            int64_t n = kl_symbol("N", 1, MAX_COUNT), sum = -1, each[MAX_COUNT] = {0};
            kl_trace_begin("loop");
            kl_tensor x = kl_input_symbolic(dev, KL_I64, 1, &n, &count, ids);
            CHECK(m && kl_model_call(m, 1, &x, 1 + (uint32_t)counts, y) == KL_OK);
            for (int k = 0; k <= counts; k++)
                kl_keep(y[k]);
            OK(kl_trace_end());
            OK(kl_read(y[0], &sum, sizeof sum));
            CHECK(sum == 2 * count);
            if (counts) {
                OK(kl_read(y[1], each, (size_t)count * sizeof *each));
                CHECK(kl_numel(y[1]) == count && each[count - 1] == 2 * count + count - 1);
            }
            for (int k = 0; k <= counts; k++)
                kl_release(y[k]);
        }
        kl_model_close(m);
    }
}

static void test_refused(kl_device dev)
{
    static const struct { struct line line[LINES]; const char *why; } bad[] = {
        {{{"NonZero", "x", "y"}}, "axis 0 of operand 0 ('x') has a symbolic length, which this operator does not take"},
        {{{"Shape", "x", "n"}, {"Sub", "axis1 n", "y"}}, "length_sub: of 1 and N it is no length"},
        {{{"Shape", "x", "n"}, {"Div", "n heads", "y"}}, "length_div: of N and 2 it is no length"},
        {{{"Shape", "x", "n"}, {"Squeeze", "n axis0", "m"}, {"Range", "zero m last", "y"}}, "has a step of 1"},
        {{{"Shape", "x", "n"}, {"Tile", "axis1 n", "y"}},
         "operand 1 ('n') has a symbolic length, which this operator does not take as a number"},
        {{{"Slice", "x axis0 each", "y"}}, "slice: which elements of axis 0 of [N] these are depends on the symbols"},
        {{{"Shape", "x", "n"}, {"Neg", "n", "m"}, {"Reshape", "x m", "y"}}, "has to be known while recording"},
        {{{"Reshape", "x each", "y"}}, "reshape: [N] and [4] are not known to have as many elements"},
        {{{"Shape", "x", "n"}, {"Gather", "n each", "y"}}, "index 4 of 1 numbers"},
        {{{"Unsqueeze", "x axis0", "u"}, {"Squeeze", "u", "y"}},
         "without axes, and axis 1 has a length of 1 to 16 (it is symbolic), which may be 1"},
        {{{"Squeeze", "x axis0", "y"}}, "axis 0 has a length of 1 to 16 (it is symbolic), not 1"},
        {{{"Reshape", "x placeholder", "y"}}, "is -16777216, which is no length"},
        {{{"Expand", "axis0 placeholder", "y"}}, "is -16777216, which is no length"},
        {{{"Pad", "x cut", "y"}}, "length_sub: of N and 4 it is no length"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pb nodes = nodes_of(bad[i].line);
        kl_model *m;
        kl_clear_error();
        kl_trace_begin("refused");
        kl_tensor y = computed(dev, &nodes, INT64, kl_symbol("N", 1, MAX_COUNT), 5, &m);
        CHECK(kl_check(y) != KL_OK || !y.id);
        if (!CHECK(strstr(kl_last_error(), bad[i].why) && strstr(kl_last_error(), "model.onnx: node")))
            printf("  %zu: no '%s'\n", i, bad[i].why);
        CHECK(kl_trace_end() != KL_OK);
        free(nodes.data);
        kl_model_close(m);
    }
}

static void test(kl_device dev)
{
    for (int i = 0; i < MAX_BATCH * MAX_COUNT; i++) {
        ids[i] = i * 7 % WORDS;
        seen[i] = i % 5 != 3;
    }
    test_transformer(dev);
    test_arithmetic(dev);
    test_loops(dev);
    test_refused(dev);
    test_transformer(dev);
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    kl_device cpu = kl_device_named("ref");
    if (!kl_model_open(cpu, "/dev/null") && strstr(kl_last_error(), "reads no ONNX")) {
        printf("SKIP not-built onnx: %s\n0 passed, 0 failed, 1 skipped\n", kl_last_error());
        return 0;
    }
    int status = on_devices(test);
    unlink(path);
    rmdir(folder);
    return status;
}
