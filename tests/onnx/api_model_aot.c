/* Models of an open batch, compiled ahead of time: two in one object, also with the weights in a file beside it, or in
 * one C file, for all batches, in a C program that knows nothing of Kiln but its runtime; the same bits as a call of
 * the model.  C is clean under -Wall -Wextra -Wpedantic -Werror.  Arguments: a device (cpu), the build folder. */
#include "tests/formats/onnx_write.h"
#include "tests/onnx/model_test.h"
#include "tests/support/sanitize.h"

enum { UINT8 = 2, INT8 = 3, C = 4, F = 10, H = 6, W = 7, K = 3, WIDE = 6, OUT = 5, MAX_BATCH = 9, MAX_RESULTS = 4096 };
static kl_device dev;
static char path[] = "/tmp/kiln-model-aot-XXXXXX", folder[] = "/tmp/kiln-models-XXXXXX";

/* The program: a run of each model for the batch of its argument; it prints results so that every bit is told. */
static const char program[] =
    "#include \"both.h\"\n#include <stdio.h>\n#include <stdlib.h>\n"
    "int main(int argc, char **argv)\n{\n"
    "    int64_t n = argc > 1 ? atoi(argv[1]) : 0;\n"
    "    static uint8_t x[bytes_most_in_x], y[bytes_most_out_0];\n"
    "    static float u[net_most_in_x], v[net_most_out_0];\n"
    "    bytes_args a = {.in_x = x, .out_0 = y, .length_N = n};\n"
    "    net_args b = {.in_x = u, .out_0 = v, .length_N = n};\n"
    "    for (int64_t i = 0; i < bytes_most_in_x; i++) x[i] = (uint8_t)(i * 37 + 11);\n"
    "    for (int64_t i = 0; i < net_most_in_x; i++) u[i] = (float)(i % 13) * 0.25f - 1;\n"
    "#ifdef WEIGHTS\n"
    "    static _Alignas(64) char all[1 << 16];\n"
    "    FILE *f = fopen(\"both.weights\", \"rb\");\n"
    "    size_t size = f ? fread(all, 1, sizeof all, f) : 0;\n"
    "    if (!size || fclose(f) || bytes_weights(&a, all) || net_weights(&b, all)) return 2;\n"
    "#endif\n"
    "    int status = bytes_run(&a);\n"
    "    status = status ? status : net_run(&b);\n"
    "    if (status) { printf(\"status %d\\n\", status); return 1; }\n"
    "    for (int64_t i = 0; i < bytes_count_out_0(n); i++) printf(\"%d \", y[i]);\n"
    "    for (int64_t i = 0; i < net_count_out_0(n); i++) printf(\"%a \", (double)v[i]);\n"
    "    return 0;\n}\n";

static void save(const char *name, struct pb *g)
{
    char file[100];
    struct pb m = onnx_model(g, 18);
    snprintf(file, sizeof file, "%s/%s.onnx", folder, name);
    CHECK(onnx_save(file, m.data, m.n));
    free(m.data);
}

/* A convolution of bytes, and a product of floats, whose batch is called N. */
static void save_models(void)
{
    static uint8_t w[F * C * K * K];
    static float dense[WIDE * OUT];
    static const float steps[3] = {0.03125f, 0.0078125f, 0.5f};
    static const uint8_t zeros[3] = {7, 0, 100};
    struct pb g = {0};
    for (int i = 0; i < F * C * K * K; i++)
        w[i] = (uint8_t)(i * 29 + 5);
    for (int i = 0; i < WIDE * OUT; i++)
        dense[i] = 0.1f * (float)(i % 7) - 0.3f;
    onnx_node(&g, "QLinearConv", "x xs xz w ws wz ys yz", "y", onnx_attr_list("pads", 4, (int64_t[]){1, 1, 1, 1}));
    pb_text(&g, 2, "bytes");
    onnx_initializer(&g, "w", INT8, 4, (int64_t[]){F, C, K, K}, w, sizeof w);
    for (int i = 0; i < 3; i++) {
        static const char *const step[] = {"xs", "ws", "ys"}, *const zero[] = {"xz", "wz", "yz"};
        onnx_initializer(&g, step[i], FLOAT, 0, NULL, &steps[i], sizeof *steps);
        onnx_initializer(&g, zero[i], i == 1 ? INT8 : UINT8, 0, NULL, &zeros[i], 1);
    }
    onnx_io(&g, 11, "x", UINT8, 4, (int64_t[]){-1, C, H, W});
    onnx_io(&g, 12, "y", UINT8, 4, (int64_t[]){-1, F, H, W});
    save("bytes", &g);
    onnx_node(&g, "MatMul", "x w", "t", onnx_none());
    onnx_node(&g, "Tanh", "t", "y", onnx_none());
    pb_text(&g, 2, "net");
    onnx_initializer(&g, "w", FLOAT, 2, (int64_t[]){WIDE, OUT}, dense, sizeof dense);
    onnx_io(&g, 11, "x", FLOAT, 2, (int64_t[]){-1, WIDE});
    onnx_io(&g, 12, "y", FLOAT, 2, (int64_t[]){-1, OUT});
    save("net", &g);
}

/* What the program has to print for a batch of n. */
static size_t expected(int64_t n, char *text, size_t size)
{
    static uint8_t x[MAX_BATCH * C * H * W], y[MAX_RESULTS];
    static float u[MAX_BATCH * WIDE], v[MAX_RESULTS];
    size_t used = 0;
    char file[100];
    for (int i = 0; i < (int)sizeof x; i++)
        x[i] = (uint8_t)(i * 37 + 11);
    for (int i = 0; i < MAX_BATCH * WIDE; i++)
        u[i] = (float)(i % 13) * 0.25f - 1;
    kl_tensor in[2] = {kl_input(dev, KL_U8, 4, (int64_t[]){n, C, H, W}, x),
                       kl_input(dev, KL_F32, 2, (int64_t[]){n, WIDE}, u)}, out;
    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof file, "%s/%s.onnx", folder, i ? "net" : "bytes");
        kl_model *m = kl_model_open(dev, file);
        OK(kl_model_call(m, 1, &in[i], 1, &out));
        int64_t count = kl_numel(out);
        OK(kl_read(out, i ? (void *)v : y, (size_t)count * (i ? sizeof *v : 1)));
        for (int64_t k = 0; k < count; k++)
            used += (size_t)(i ? snprintf(text + used, size - used, "%a ", (double)v[k])
                             : snprintf(text + used, size - used, "%d ", y[k]));
        kl_release(out);
        kl_release(in[i]);
        kl_model_close(m);
    }
    return used;
}

static bool shell(const char *command)
{
    char line[1500];
    snprintf(line, sizeof line, "cd %s && %s", folder, command);
    return CHECK(system(line) == 0);
}

/* Runs the program that was built. */
static void check_batch(int64_t n)
{
    static char want[1 << 17], got[1 << 17];
    char line[100], file[100];
    size_t size = expected(n, want, sizeof want);
    snprintf(line, sizeof line, "./run %lld > out", (long long)n);
    snprintf(file, sizeof file, "%s/out", folder);
    if (!shell(line))
        return;
    FILE *f = fopen(file, "r");
    size_t have = f ? fread(got, 1, sizeof got, f) : 0;
    CHECK(f && !fclose(f) && have == size && !memcmp(got, want, size));
}

/* form 0: an object, 1: an object with its weights in a file, 2: C. */
static void compiled(int form, const char *build)
{
    char line[1200];
    const char *out = form == 2 ? "--emit c -o both.c" : form ? "--cpu native --weights file -o both.o"
                      : "--cpu native -o both.o";
    snprintf(line, sizeof line, "%s/kiln compile bytes=bytes.onnx net=net.onnx --bind N=1..%d %s --header both.h "
             "> log 2>&1 || ! cat log", build, MAX_BATCH, out);
    if (!shell(line))
        return;
    if (form == 2)
        snprintf(line, sizeof line, "cc -std=c99 -Wall -Wextra -Wpedantic -Werror -O1 -c both.c -o both.o && "
                 "cc -std=c17 -Wall -Wextra -Wpedantic -Werror %s program.c both.o -o run", SANITIZE);
    else
        snprintf(line, sizeof line, "cc -std=c17 -Wall -Wextra -Wpedantic -Werror %s %s program.c both.o "
                 "%s/libkiln-aot.a -pthread -o run", form ? "-DWEIGHTS" : "", SANITIZE, build);
    if (!shell(line))
        return;
    for (int64_t n = 1; n <= MAX_BATCH; n += n == 1 ? 1 : 7)
        check_batch(n);
    snprintf(line, sizeof line, "! ./run 10 > out && grep -qx 'status %d' out", KL_ERR_SHAPE); /* out of bounds */
    shell(line);
}

int main(int argc, char **argv)
{
    int status;
    char build[600], file[100];
    if (!model_test_begin(argc, argv, path, &dev, &status))
        return status;
    unlink(path);
    if (!CHECK(argc > 2 && realpath(argv[2], build) && mkdtemp(folder)))
        return 1;
    save_models();
    snprintf(file, sizeof file, "%s/program.c", folder);
    CHECK(onnx_save(file, program, sizeof program - 1));
    for (int form = 0; form < 3; form++)
        compiled(form, build);
    shell("rm -rf \"$PWD\"");
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
