/* Trained models: what they say of data that they were trained for, and their results in f32, fused, unfused and
 * interpreted, beside f64.
 *
 * Arguments: a device, and, to run the models as programs compiled ahead of time, too, the build folder.  The files
 * are not part of Kiln: KILN_TEST_MODELS is a folder that has them, mnist-cnn.onnx, opt-mnist.onnx and t10k-*.gz
 * (MNIST's test images), ultraface_slim.onnx, silero_vad_v6.onnx.  Files that are not there are skipped. */
#include "onnx_widen.h"
#include "tests/support/api_check.h"
#include "tests/support/sanitize.h"
#include <kiln/onnx.h>
#include <kiln/train.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IMAGES = 10000, PIXELS = 28 * 28, MAX_COUNT = 4 };
static const char *folder;
static kl_device dev;
static int skipped;
static const char *build;

static bool has(const char *name, char *path, size_t size)
{
    struct stat st;
    snprintf(path, size, "%s/%s", folder ? folder : "", name);
    return folder && !stat(path, &st);
}

/* ---- digits ---- */

static kl_status one_image(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    return kl_model_call(ctx, nin, in, nout, out);
}

static int count_right(const float *scores, const uint8_t *label, int n)
{
    int right = 0;
    for (int i = 0; i < n; i++) {
        int best = 0;
        for (int k = 1; k < 10; k++)
            if (scores[10 * i + k] > scores[10 * i + best])
                best = k;
        right += best == label[i];
    }
    return right;
}

/* The models take one image at a time: a batch is vmap's. */
static bool classify(kl_model *m, const float *x, int first, int n, bool batch, float *scores)
{
    kl_tensor in, out;
    kl_trace_begin(batch ? "images" : "image");
    in = batch ? kl_input(dev, KL_F32, DIMS(n, 1, 1, 28, 28), x + (size_t)first * PIXELS)
               : kl_input(dev, KL_F32, DIMS(1, 1, 28, 28), x + (size_t)first * PIXELS);
    kl_status status = batch ? kl_vmap(one_image, m, 1, &in, NULL, 1, NULL, KL_RANDOM_ERROR, &out)
                             : kl_model_call(m, 1, &in, 1, &out);
    if (status == KL_OK)
        kl_keep(out);
    bool ok = kl_trace_end() == KL_OK && status == KL_OK &&
              kl_read(out, scores, (size_t)n * 10 * sizeof *scores) == KL_OK;
    if (ok)
        kl_release(out);
    return ok;
}

static void digits(const char *name, bool raw, int want)
{
    char path[600], images[600], labels[600];
    kl_idx x = {0}, y = {0};
    if (!has(name, path, sizeof path) || !has("t10k-images-idx3-ubyte.gz", images, sizeof images) ||
        !has("t10k-labels-idx1-ubyte.gz", labels, sizeof labels)) {
        skipped++;
        return;
    }
    kl_model *m = kl_model_open(dev, path);
    float *pixels = malloc((size_t)IMAGES * PIXELS * sizeof *pixels);
    float *scores = malloc(2 * IMAGES * 10 * sizeof *scores);
    bool ok = CHECK(m && pixels && scores) && OK(kl_idx_open(images, 3, (int64_t[]){IMAGES, 28, 28}, &x)) &&
              OK(kl_idx_open(labels, 1, (int64_t[]){IMAGES}, &y));
    for (int i = 0; ok && i < IMAGES * PIXELS; i++)
        pixels[i] = raw ? x.data[i] : ((float)x.data[i] / 255 - 0.1307f) / 0.3081f;
    enum { BATCH = 500 };
    for (int i = 0; ok && i < IMAGES; i += BATCH)
        ok = CHECK(classify(m, pixels, i, BATCH, true, scores + 10 * i));
    /* One at a time takes long where an interpreter runs them. */
    int single = strcmp(device_now, "ref") ? IMAGES : 50;
    for (int i = 0; ok && i < single; i++)
        ok = classify(m, pixels, i, 1, false, scores + 10 * (IMAGES + i)) || CHECK(!"one image");
    if (ok) {
        int all = count_right(scores, y.data, IMAGES), one = count_right(scores + 10 * IMAGES, y.data, single);
        printf("%s on %s: %d of %d right in batches, %d of %d one at a time\n", name, device_now, all, IMAGES, one,
               single);
        CHECK(abs(all - want) <= 1);
        CHECK(one == count_right(scores, y.data, single));
    }
    kl_idx_close(&x);
    kl_idx_close(&y);
    free(pixels);
    free(scores);
    kl_model_close(m);
}

/* ---- the same bits, and f64 ---- */

struct shape_of { int rank; int64_t dims[4]; };

static kl_tensor filled(kl_dtype dtype, const struct shape_of *s, uint32_t seed)
{
    size_t n = 1;
    for (int i = 0; i < s->rank; i++)
        n *= (size_t)s->dims[i];
    float *v = malloc((n + 1) * sizeof *v);
    double *w = malloc((n + 1) * sizeof *w);
    for (size_t i = 0; v && w && i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        w[i] = (double)(v[i] = (float)(seed >> 8) / (float)(1 << 23) - 1);
    }
    kl_tensor t = kl_input(dev, dtype, s->rank, s->dims, dtype == KL_F64 ? (void *)w : (void *)v);
    free(v);
    free(w);
    return t;
}

/* All results as doubles, one after another. */
static double *results(const char *path, const char *device, bool fused, kl_dtype dtype, int nin,
                       const struct shape_of *in, size_t *count)
{
    kl_device before = dev;
    kl_tensor x[MAX_COUNT], y[MAX_COUNT];
    double *all = NULL;
    *count = 0;
    dev = kl_device_named(device);
    kl_model *m = dev.id ? kl_model_open(dev, path) : NULL;
    uint32_t nout = kl_model_outputs(m);
    kl_set_option("fuse", fused);
    kl_scope_begin();
    for (int i = 0; m && i < nin; i++)
        x[i] = filled(dtype, &in[i], (uint32_t)i + 1);
    if (CHECK(m && nout <= MAX_COUNT) && OK(kl_model_call(m, (uint32_t)nin, x, nout, y)))
        for (uint32_t k = 0; k < nout; k++) {
            size_t n = (size_t)kl_numel(y[k]);
            double *v = values_of(y[k]);
            all = realloc(all, (*count + n + 1) * sizeof *all);
            if (CHECK(v && all))
                memcpy(all + *count, v, n * sizeof *v);
            *count += n;
            free(v);
        }
    kl_scope_end();
    kl_set_option("fuse", true);
    kl_model_close(m);
    dev = before;
    return all;
}

static const char program[] =
    "#include \"trained.h\"\n#include <stdio.h>\n#include <stdlib.h>\n"
    "int main(int argc, char **argv)\n{\n"
    "    trained_args a = {0};\n"
    "    int nout = atoi(argv[1]);\n"
    "    for (int i = 2; i < argc; i++) { /* the inputs' lengths, then the outputs' */\n"
    "        int n = atoi(argv[i]), out = i - 2 - (argc - 2 - nout);\n"
    "        unsigned seed = (unsigned)i - 1;\n"
    "        float *v = malloc(sizeof *v * n);\n"
    "        ((float **)(out < 0 ? (void *)&a : (void *)&a.out_0))[out < 0 ? i - 2 : out] = v;\n"
    "        for (int k = 0; k < n; k++) {\n"
    "            seed = seed * 1664525u + 1013904223u;\n"
    "            v[k] = (float)(seed >> 8) / (float)(1 << 23) - 1;\n"
    "        }\n    }\n"
    "    if (trained_run(&a))\n        return 1;\n"
    "    for (int k = 0; k < nout; k++)\n"
    "        fwrite(((float **)&a.out_0)[k], sizeof(float), atoi(argv[argc - nout + k]), stdout);\n"
    "    return 0;\n}\n";

/* The same inference by an object that has the weights inside: the same bits.  All results are f32. */
static void compiled(const char *name, const char *path, int nin, const struct shape_of *in, const double *want,
                     size_t count)
{
    char at[1024], file[1100], header[1100], line[6000], lengths[300] = "";
    kl_tensor x[MAX_COUNT], y[MAX_COUNT];
    int64_t all = 0;
    snprintf(at, sizeof at, "%s/trained-test", build);
    snprintf(file, sizeof file, "%s/trained.o", at);
    snprintf(header, sizeof header, "%s/trained.h", at);
    mkdir(at, 0777);
    kl_model *m = kl_model_open(dev, path);
    uint32_t nout = kl_model_outputs(m);
    kl_trace_begin("trained");
    for (int i = 0; i < nin; i++) {
        x[i] = filled(KL_F32, &in[i], 0);
        snprintf(lengths + strlen(lengths), sizeof lengths - strlen(lengths), " %lld", (long long)kl_numel(x[i]));
    }
    OK(kl_model_call(m, (uint32_t)nin, x, nout, y));
    for (uint32_t i = 0; i < nout; i++) {
        all += kl_numel(kl_keep(y[i]));
        snprintf(lengths + strlen(lengths), sizeof lengths - strlen(lengths), " %lld", (long long)kl_numel(y[i]));
    }
    kl_compile_options o = {.weights_inside = true, .cpu = "native"};
    bool ok = OK(kl_trace_compile(file, header, &o)) && CHECK((size_t)all == count);
    kl_model_close(m);
    snprintf(file, sizeof file, "%s/trained.c", at);
    FILE *f = fopen(file, "w");
    ok = CHECK(f && fputs(program, f) >= 0 && !fclose(f)) && ok;
    snprintf(line, sizeof line, "cd %s && cc -O1 %s trained.c trained.o %s/libkiln-aot.a -pthread -o trained && "
             "./trained %u%s >result && ! nm -u trained.o | grep -v kiln_aot_", at, SANITIZE, build, nout, lengths);
    if (!ok || !CHECK(system(line) == 0))
        return;
    float *got = malloc((count + 1) * sizeof *got);
    snprintf(file, sizeof file, "%s/result", at);
    f = fopen(file, "rb");
    bool same = CHECK(f && got && fread(got, sizeof *got, count, f) == count);
    for (size_t i = 0; same && i < count; i++)
        same = (double)got[i] == want[i];
    CHECK(same);
    struct stat st;
    snprintf(file, sizeof file, "%s/trained.o", at);
    if (!stat(file, &st))
        printf("%s: an object of %lld bytes\n", name, (long long)st.st_size);
    if (f)
        fclose(f);
    free(got);
}

static void agrees(const char *name, int nin, const struct shape_of *in, double max)
{
    char path[600], wide[] = "/tmp/kiln-wide-XXXXXX";
    size_t n[4];
    if (!has(name, path, sizeof path)) {
        skipped++;
        return;
    }
    int f = mkstemp(wide);
    if (!CHECK(f >= 0) || !CHECK(!close(f) && widen_file(path, wide)))
        return;
    double *fused = results(path, device_now, true, KL_F32, nin, in, &n[0]);
    double *unfused = results(path, device_now, false, KL_F32, nin, in, &n[1]);
    double *interpreted = results(path, "ref", true, KL_F32, nin, in, &n[2]);
    double *exact = results(wide, "ref", true, KL_F64, nin, in, &n[3]);
    bool same = fused && unfused && interpreted && exact && n[0] == n[1] && n[0] == n[2] && n[0] == n[3] && n[0];
    double worst = 0;
    if (CHECK(same)) {
        CHECK(!memcmp(fused, unfused, n[0] * sizeof *fused));
        CHECK(!memcmp(fused, interpreted, n[0] * sizeof *fused));
        for (size_t i = 0; i < n[0]; i++)
            worst = fmax(worst, fabs(fused[i] - exact[i]) / (1 + fabs(exact[i])));
        CHECK(worst <= max && worst > 0);
        printf("%s on %s: %zu numbers, at most %.2g away from f64\n", name, device_now, n[0], worst);
    }
    if (same && build)
        compiled(name, path, nin, in, fused, n[0]);
    free(fused);
    free(unfused);
    free(interpreted);
    free(exact);
    unlink(wide);
}

/* A model with a length that it names, in traces where this length is a symbol: one program for all lengths, with the
 * bits of a fixed length. */
static void any_length(const char *name)
{
    enum { LENGTHS = 8, WIDTH = 576, STATE = 128 };
    static float x[LENGTHS * WIDTH], state[STATE];
    char path[600];
    if (!has(name, path, sizeof path))
        return;
    for (int i = 0; i < LENGTHS * WIDTH; i++)
        x[i] = (float)(i * 37 % 101) / 101 - 0.5f;
    kl_model *m = kl_model_open(dev, path);
    int64_t n = kl_symbol("seq_len", 1, LENGTHS), graphs = 0;
    for (int64_t length = 2; CHECK(m) && length <= LENGTHS; length++) {
        float y[2][LENGTHS] = {{0}};
        for (int symbolic = 0; symbolic < 2; symbolic++) {
            int64_t before = kl_counter("graphs_built");
            kl_tensor in[3], out = kl_none;
            kl_trace_begin(symbolic ? "any length" : "one length");
            in[0] = kl_input_symbolic(dev, KL_F32, 2, (int64_t[]){symbolic ? n : length, WIDTH},
                                      (int64_t[]){length, WIDTH}, x);
            in[1] = in[2] = kl_input(dev, KL_F32, 3, (int64_t[]){1, 1, STATE}, state);
            CHECK(kl_model_call(m, 3, in, 1, &out) == KL_OK);
            out = kl_keep(out);
            CHECK(kl_trace_end() == KL_OK && kl_numel(out) == length);
            CHECK(kl_read(out, y[symbolic], (size_t)length * sizeof **y) == KL_OK);
            kl_release(out);
            graphs += symbolic ? kl_counter("graphs_built") - before : 0;
        }
        CHECK(!memcmp(y[0], y[1], sizeof *y));
    }
    CHECK(graphs <= 1 || !strcmp(device_now, "ref"));
    kl_model_close(m);
}

int main(int argc, char **argv)
{
    static const struct shape_of image = {4, {1, 1, 28, 28}}, face = {4, {1, 3, 240, 320}};
    static const struct shape_of voice[3] = {{2, {3, 576}}, {3, {1, 1, 128}}, {3, {1, 1, 128}}};
    device_now = argc > 1 ? argv[1] : "ref";
    dev = kl_device_named(device_now);
    build = argc > 2 ? realpath(argv[2], NULL) : NULL;
    folder = getenv("KILN_TEST_MODELS");
    if (!folder) {
        printf("SKIP no-data models: KILN_TEST_MODELS is not a folder of trained models\n"
               "0 passed, 0 failed, 1 skipped\n");
        return 0;
    }
    CHECK(dev.id != 0);
    if (!kl_model_open(dev, "/dev/null") && strstr(kl_last_error(), "reads no ONNX")) {
        printf("SKIP not-built onnx: %s\n0 passed, 0 failed, 1 skipped\n", kl_last_error());
        return 0;
    }
    digits("opt-mnist.onnx", true, 9891);
    digits("mnist-cnn.onnx", false, 9916);
    agrees("opt-mnist.onnx", 1, &image, 1e-5);
    agrees("mnist-cnn.onnx", 1, &image, 1e-5);
    agrees("ultraface_slim.onnx", 1, &face, 1e-4);
    agrees("silero_vad_v6.onnx", 3, voice, 1e-4);
    any_length("silero_vad_v6.onnx");
    if (skipped)
        printf("SKIP no-data models: KILN_TEST_MODELS lacks %d of the files\n", skipped);
    free((void *)(uintptr_t)build);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped > 0);
    return failed > 0;
}
