/* kl_trace_compile and kl_object_add, through the public headers: what they write does in a program of its own what the
 * traces do.
 *
 * Argument: the build folder, which has libkiln-aot.a. */
#include "tests/support/api_check.h"
#include "tests/support/sanitize.h"
#include <sys/stat.h>

enum { N = 6, M = 4, STEPS = 3 };
static char folder[1024], object[1100], header[1100];
static const char *build;

static float image(int step, int i) { return (float)((i * 7 + step * 5) % 11) / 4 - 1; }

/* A step of gradient descent with two numbers that have a name, one of them twice, and one that has none. */
static kl_tensor record(kl_device dev, kl_tensor w, int step, double rate)
{
    float images[N * M];
    for (int i = 0; i < N * M; i++)
        images[i] = image(step, i);
    kl_tensor x = kl_input(dev, KL_F32, DIMS(N, M), images), lr = kl_scalar(dev, KL_F32, rate),
              decay = kl_scalar(dev, KL_F32, rate);
    kl_set_name(x, "x");
    kl_set_name(lr, "lr");
    kl_set_name(decay, "lr");
    kl_tensor loss = kl_keep(kl_sum_all(kl_square(kl_tanh(kl_mul_scalar(kl_matmul(x, w), 0.75)))));
    kl_tensor g = kl_mul(kl_grad(loss, w), kl_expand(lr, DIMS(M, 2)));
    kl_assign(w, kl_sub(kl_sub(w, kl_mul(w, kl_expand(decay, DIMS(M, 2)))), g));
    return loss;
}

static kl_tensor weights(kl_device dev)
{
    float w[M * 2];
    for (int i = 0; i < M * 2; i++)
        w[i] = (float)i / 8 - 0.5f;
    kl_tensor t = kl_input(dev, KL_F32, DIMS(M, 2), w);
    kl_set_name(t, "w");
    return t;
}

static const char program[] =
    "#include \"descent.h\"\n#include <stdio.h>\n"
    "int main(void)\n{\n"
    "    float x[descent_count_in_x], w[descent_count_state_w], loss;\n"
    "    descent_args a = {.in_x = x, .state_w = w, .out_0 = &loss};\n"
    "    for (int i = 0; i < descent_count_state_w; i++)\n        w[i] = (float)i / 8 - 0.5f;\n"
    "    for (int step = 0; step < 3; step++) {\n"
    "        for (int i = 0; i < descent_count_in_x; i++)\n            x[i] = (float)((i * 7 + step * 5) % 11) / 4 - "
    "1;\n"
    "        a.slot_lr = 0.125f * (float)(step + 1);\n"
    "        if (descent_run(&a))\n            return 1;\n"
    "        printf(\"%a\\n\", loss);\n    }\n"
    "    for (int i = 0; i < descent_count_state_w; i++)\n        printf(\"%a\\n\", w[i]);\n"
    "    return 0;\n}\n";

static bool sh(const char *fmt, const char *a, const char *b)
{
    char line[4096];
    snprintf(line, sizeof line, fmt, folder, a, b);
    return CHECK(system(line) == 0);
}

/* A trace that is only replayed gives the same files. */
static void test_again(kl_device dev)
{
    char again[1100];
    snprintf(again, sizeof again, "%s/again.o", folder);
    kl_tensor w = weights(dev);
    int64_t replays = kl_counter("replays");
    kl_trace_begin("descent");
    kl_tensor loss = record(dev, w, 0, 9);
    OK(kl_trace_end());
    kl_release(loss);
    CHECK(kl_counter("replays") == replays + 1);
    kl_trace_begin("descent");
    record(dev, w, 0, 9);
    OK(kl_trace_compile(again, header, NULL));
    sh("cd %s && cmp descent.o again.o%s%s", "", "");
    kl_release(w);
}

static void test_step(kl_device dev)
{
    double want[STEPS + M * 2];
    kl_tensor w = weights(dev);
    kl_trace_begin("descent");
    record(dev, w, 0, 9);
    int64_t launches = kl_counter("launches");
    if (!OK(kl_trace_compile(object, header, NULL)))
        return;
    CHECK(kl_counter("launches") == launches && !kl_tracing());
    for (int step = 0; step < STEPS; step++) {
        kl_trace_begin("descent");
        kl_tensor loss = record(dev, w, step, 0.125 * (step + 1));
        OK(kl_trace_end());
        want[step] = (double)kl_item_f32(loss);
        kl_release(loss);
    }
    double *v = values_of(w);
    memcpy(want + STEPS, v, M * 2 * sizeof *v);
    free(v);
    kl_release(w);

    char path[1100];
    snprintf(path, sizeof path, "%s/program.c", folder);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(program, f) >= 0 && !fclose(f));
    if (!sh("cd %s && cc -std=c17 -Wall -Wextra -Werror %s program.c descent.o %s/libkiln-aot.a -pthread -o program",
            SANITIZE, build) ||
        !sh("cd %s && ./program > result%s%s", "", ""))
        return;
    snprintf(path, sizeof path, "%s/result", folder);
    f = fopen(path, "r");
    for (int i = 0; CHECK(f) && i < STEPS + M * 2; i++) {
        double got;
        CHECK(fscanf(f, "%lf", &got) == 1 && got == want[i]);
    }
    if (f)
        fclose(f);
}

static const char weights_program[] =
    "#include \"apart.h\"\n#include \"inside.h\"\n#include <stdio.h>\n#include <stdlib.h>\n"
    "int main(void)\n{\n"
    "    float x[inside_count_in_x], calls = 3, all[3], zero[inside_count_state_w] = {0};\n"
    "    void *bytes = aligned_alloc(64, apart_weights_bytes);\n"
    "    FILE *f = fopen(\"apart.weights\", \"rb\");\n"
    "    if (!f || fread(bytes, 1, apart_weights_bytes, f) != apart_weights_bytes || getc(f) != EOF)\n"
    "        return 1;\n"
    "    for (int i = 0; i < inside_count_in_x; i++)\n        x[i] = (float)((i * 7) % 11) / 4 - 1;\n"
    "    inside_args a = {.in_x = x, .out_0 = &all[0]};\n"
    "    if (!inside_run(&a))\n        return 2; /* the state that is assigned has no value of its own */\n"
    "    a.state_calls = &calls;\n"
    "    if (inside_run(&a))\n        return 3;\n"
    "    apart_args b = {.in_x = x, .out_0 = &all[1], .state_calls = &calls};\n"
    "    ((char *)bytes)[9] ^= 1; /* another program's hash */\n"
    "    if (!apart_weights(&b, bytes) || b.state_w)\n        return 6;\n"
    "    ((char *)bytes)[9] ^= 1;\n"
    "    if (apart_weights(&b, bytes))\n        return 7;\n"
    "    if (apart_run(&b))\n        return 4;\n"
    "    a.out_0 = &all[2], a.state_w = zero;\n" /* weights of the caller's own */
    "    if (inside_run(&a) || calls != 6)\n        return 5;\n"
    "    printf(\"%a\\n%a\\n%a\\n\", all[0], all[1], all[2]);\n"
    "    fclose(f);\n    free(bytes);\n    return 0;\n}\n";

/* States that are only read, with their values in the object, and in a file of their own. */
static void test_weights(kl_device dev)
{
    char path[2][1100], name[1100], x_header[1100];
    float images[N * M], all[3], want = 0;
    kl_tensor w = weights(dev), calls = kl_zeros(dev, KL_F32, 0, NULL);
    kl_set_name(calls, "calls");
    for (int i = 0; i < N * M; i++)
        images[i] = image(0, i);
    for (int how = 0; how < 3; how++) {
        kl_trace_begin(how == 1 ? "apart" : "inside");
        kl_tensor x = kl_input(dev, KL_F32, DIMS(N, M), images);
        kl_set_name(x, "x");
        kl_tensor y = kl_keep(kl_sum_all(kl_exp(kl_matmul(x, w))));
        kl_assign(calls, kl_add_scalar(calls, 1));
        if (how == 2) {
            OK(kl_trace_end());
            want = kl_item_f32(y);
            kl_release(y);
            break;
        }
        snprintf(path[how], sizeof path[how], "%s/%s.o", folder, how ? "apart" : "inside");
        snprintf(x_header, sizeof x_header, "%s/%s.h", folder, how ? "apart" : "inside");
        snprintf(name, sizeof name, "%s/apart.weights", folder);
        kl_compile_options o = {.weights_inside = !how, .weights_path = how ? name : NULL};
        if (!OK(kl_trace_compile(path[how], x_header, &o)))
            return;
    }
    kl_release(w);
    kl_release(calls);
    snprintf(name, sizeof name, "%s/weights.c", folder);
    FILE *f = fopen(name, "w");
    CHECK(f && fputs(weights_program, f) >= 0 && !fclose(f));
    if (!sh("cd %s && cc -std=c17 -Wall -Wextra -Werror %s weights.c inside.o apart.o %s/libkiln-aot.a -pthread "
            "-o weights", SANITIZE, build) ||
        !sh("cd %s && ./weights > sums%s%s", "", ""))
        return;
    snprintf(name, sizeof name, "%s/sums", folder);
    f = fopen(name, "r");
    CHECK(f && fscanf(f, "%f%f%f", &all[0], &all[1], &all[2]) == 3 && all[0] == want && all[1] == want &&
          all[2] == N * 2);
    if (f)
        fclose(f);
    sh("cd %s && ! nm -u inside.o | grep -v kiln_aot_%s%s", "", "");
}

static const char several_program[] =
    "#include \"net.h\"\n#include <stdio.h>\n#include <stdlib.h>\n"
    "int main(void)\n{\n"
    "    float x[first_count_in_x], sum[3];\n"
    "    void *bytes = aligned_alloc(64, (second_weights_bytes + 63) / 64 * 64);\n"
    "    FILE *f = fopen(\"net.weights\", \"rb\");\n"
    "    if (!f || fread(bytes, 1, second_weights_bytes, f) != second_weights_bytes || getc(f) != EOF)\n"
    "        return 1;\n"
    "    for (int i = 0; i < first_count_in_x; i++)\n        x[i] = (float)((i * 7) % 11) / 4 - 1;\n"
    "    first_args a = {.in_x = x, .out_0 = &sum[0]};\n"
    "    second_args b = {.in_x = x, .out_0 = &sum[1]};\n"
    "    third_args c = {.in_x = x, .out_0 = &sum[2]};\n"
    "    if (first_weights(&a, bytes) || second_weights(&b, bytes) || !first_weights(&a, x))\n        return 3;\n"
    "    if (first_run(&a) || second_run(&b) || third_run(&c))\n        return 2;\n"
    "    printf(\"%a\\n%a\\n%a\\n\", sum[0], sum[1], sum[2]);\n"
    "    fclose(f);\n    free(bytes);\n    return 0;\n}\n";

/* A trace of program `which`: the last has no weights. */
static kl_tensor record_sum(kl_device dev, const char *which, kl_tensor w)
{
    float images[N * M];
    for (int i = 0; i < N * M; i++)
        images[i] = image(0, i);
    kl_trace_begin(which);
    kl_tensor x = kl_input(dev, KL_F32, DIMS(N, M), images);
    kl_set_name(x, "x");
    return kl_keep(kl_sum_all(w.id ? kl_exp(kl_matmul(x, w)) : kl_tanh(x)));
}

/* Three programs in one object, and in one C file, with the weights of two of them in one file. */
static void test_several(kl_device dev)
{
    static const char *const names[] = {"first", "second", "third"};
    kl_tensor w = weights(dev), other = kl_mul_scalar(w, 0.5), list[] = {w, other, {0}};
    char path[4][1100];
    float want[3], got[3];
    OK(kl_flush(dev));
    for (int i = 0; i < 3; i++) {
        kl_tensor y = record_sum(dev, names[i], list[i]);
        OK(kl_trace_end());
        want[i] = kl_item_f32(y);
        kl_release(y);
    }
    snprintf(path[1], sizeof path[1], "%s/net.h", folder);
    snprintf(path[2], sizeof path[2], "%s/net.weights", folder);
    snprintf(path[3], sizeof path[3], "%s/net_main.c", folder);
    FILE *f = fopen(path[3], "w");
    CHECK(f && fputs(several_program, f) >= 0 && !fclose(f));
    for (int c = 0; c < 2; c++) {
        kl_object *o = kl_object_new(&(kl_compile_options){.weights_path = path[2], .emit = c ? "c" : "object"});
        snprintf(path[0], sizeof path[0], "%s/net.%c", folder, c ? 'c' : 'o');
        CHECK(o && kl_object_write(o, path[0], path[1]) == KL_ERR_ARGUMENT &&
              strstr(kl_last_error(), "no program was added"));
        for (int i = 0; i < 3; i++) {
            record_sum(dev, names[i], list[i]);
            OK(kl_object_add(o, names[i]));
        }
        record_sum(dev, "other", w);
        CHECK(kl_object_add(o, "first") == KL_ERR_ARGUMENT && !kl_tracing() &&
              strstr(kl_last_error(), "two programs of a file are called 'first'"));
        CHECK(kl_object_write(o, path[0], NULL) == (c ? KL_OK : KL_ERR_ARGUMENT));
        if (!c)
            OK(kl_object_write(o, path[0], path[1]));
        CHECK(kl_object_write(o, path[0], path[1]) == KL_ERR_ARGUMENT &&
              strstr(kl_last_error(), "its files were made before"));
        kl_object_free(o);
        bool built = c ? sh("cd %s && cc -std=c99 -Wall -Wextra -Wpedantic -Werror -O1 -c net.c -o net_c.o && "
                            "cc -std=c17 -Wall -Werror %s net_main.c net_c.o -o net%s", SANITIZE, "")
                       : sh("cd %s && cc -std=c17 -Wall -Wextra -Werror %s net_main.c net.o %s/libkiln-aot.a "
                            "-pthread -o net", SANITIZE, build);
        if (!built || !sh("cd %s && ./net > net.sums%s%s", "", ""))
            continue;
        if (c) /* the first two have equal kernels, which are there once */
            sh("cd %s && sed -n 's/.*kiln_kernels_first\\[\\] = //p' net.c > of_first && "
               "sed -n 's/.*kiln_kernels_second\\[\\] = //p' net.c | cmp - of_first && test -s of_first%s%s", "", "");
        char sums[1100];
        snprintf(sums, sizeof sums, "%s/net.sums", folder);
        f = fopen(sums, "r");
        CHECK(f && fscanf(f, "%f%f%f", &got[0], &got[1], &got[2]) == 3 && !memcmp(got, want, sizeof got));
        if (f)
            fclose(f);
    }
    CHECK(!kl_object_new(&(kl_compile_options){.cpu = "z80"}) && strstr(kl_last_error(), "api_aot.c:"));
    CHECK(!kl_object_new(&(kl_compile_options){.emit = "fortran"}));
    kl_object_free(NULL);
    kl_release(w);
    kl_release(other);
}

static kl_status negate_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx;
    out[0] = call->in_type[0];
    return KL_OK;
}

static kl_status negate_run(void *ctx, const kl_custom_call *call)
{
    (void)ctx, (void)call;
    return KL_ERR_INTERNAL; /* nobody is to call it */
}

static kl_status in_region(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    *(kl_status *)ctx = kl_trace_compile(object, header, NULL);
    out[0] = in[0];
    return KL_OK;
}

static void begin(kl_device dev, bool keep)
{
    kl_trace_begin("bad");
    kl_tensor x = kl_neg(kl_ones(dev, KL_F32, DIMS(3)));
    if (keep)
        kl_keep(x);
}

#define REFUSED(call, code, text)                                                            \
    do {                                                                                     \
        CHECK((call) == (code));                                                             \
        CHECK(strstr(kl_last_error(), "api_aot.c:") && strstr(kl_last_error(), (text)));     \
        CHECK(!kl_tracing());                                                                \
    } while (0)

static void test_errors(kl_device dev)
{
    remove(object);
    REFUSED(kl_trace_compile(object, header, NULL), KL_ERR_TRACE, "trace_compile: no trace is open");
    begin(dev, true);
    REFUSED(kl_trace_compile(NULL, header, NULL), KL_ERR_ARGUMENT, "the path of the object is NULL");
    begin(dev, false);
    REFUSED(kl_trace_compile(object, header, NULL), KL_ERR_ARGUMENT, "trace \"bad\": it keeps and assigns nothing");
    begin(dev, true);
    REFUSED(kl_trace_compile(object, header, &(kl_compile_options){.cpu = "z80"}), KL_ERR_ARGUMENT,
            "no processor is called 'z80'");
    begin(dev, true);
    REFUSED(kl_trace_compile(object, header, &(kl_compile_options){.prefix = "1st"}), KL_ERR_ARGUMENT,
            "'1st' is no C identifier");
    begin(dev, true);
    REFUSED(kl_trace_compile("/nowhere/a.o", header, NULL), KL_ERR_IO, "/nowhere/a.o");
    begin(dev, true);
    kl_add(kl_ones(dev, KL_F32, DIMS(2)), kl_ones(dev, KL_F32, DIMS(3)));
    REFUSED(kl_trace_compile(object, header, NULL), KL_ERR_SHAPE, "add");

    OK(kl_custom_register("aot.negate", &(kl_custom_op){.types = negate_types, .run = negate_run}, NULL));
    kl_tensor x = kl_ones(dev, KL_F32, DIMS(3)), y;
    kl_trace_begin("bad");
    OK(kl_custom("aot.negate", NULL, 0, 1, &x, 1, &y));
    kl_keep(y);
    REFUSED(kl_trace_compile(object, header, NULL), KL_ERR_COMPILE, "custom \"aot.negate\"");

    kl_status inside = KL_OK;
    kl_trace_begin("bad");
    kl_checkpoint(in_region, &inside, 1, &x, 1, &y);
    CHECK(inside == KL_ERR_TRACE && kl_trace_end() == KL_ERR_TRACE);
    FILE *f = fopen(object, "rb");
    CHECK(!f);
    kl_release(x);
}

int main(int argc, char **argv)
{
    build = argc > 1 ? realpath(argv[1], NULL) : NULL;
    kl_device dev = kl_device_default();
    if (!build || !CHECK(dev.id))
        return fprintf(stderr, "usage: api_aot BUILD_FOLDER\n"), 2;
    snprintf(folder, sizeof folder, "%.900s/api-aot-test", build);
    snprintf(object, sizeof object, "%s/descent.o", folder);
    snprintf(header, sizeof header, "%s/descent.h", folder);
    mkdir(folder, 0777);
    test_step(dev);
    test_again(dev);
    test_weights(dev);
    test_several(dev);
    test_errors(dev);
    free((void *)(uintptr_t)build);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
