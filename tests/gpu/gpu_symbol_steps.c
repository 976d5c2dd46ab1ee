/* Steps of changing sizes on a GPU: inference of an MLP of symbolic batches, a GPT of symbolic batches and lengths.
 * All sizes have one program, a captured graph is not made again for other sizes, memory does not grow, and results are
 * what the interpreter gives.
 *
 *   gpu_symbol_steps [DEVICE [STEPS]]    (vulkan, 100); cuda and hip are the tests' library in place of drivers, which
 *                                        counts calls, cuda:0 and hip:0 a GPU */
#include "tests/gpu/fake/fake_load.h"
#include "tests/support/symbol_gpt.h"
#include <unistd.h>

enum { IMAGE = 48, HIDDEN = 64, CLASSES = 10, MAX_IMAGES = 70, WEIGHTS = 3, CHECKED = 20 };

static const struct fake_gpu *fake; /* NULL: the driver is a real one */
static float images[MAX_IMAGES * IMAGE];
static int steps;

/* One step; count: its sizes. */
typedef kl_tensor step_fn(kl_device dev, bool symbolic, const int64_t *count, const kl_tensor *p);

static kl_tensor mlp_step(kl_device dev, bool symbolic, const int64_t *count, const kl_tensor *p)
{
    int64_t n = symbolic ? kl_symbol("n", 1, MAX_IMAGES) : count[0], shape[2] = {n, IMAGE}, now[2] = {count[0], IMAGE};
    kl_tensor x = symbolic ? kl_input_symbolic(dev, KL_F32, 2, shape, now, images)
                           : kl_input(dev, KL_F32, 2, now, images);
    x = kl_relu(kl_linear(x, p[0], kl_none));
    x = kl_relu(kl_linear(x, p[1], kl_none));
    return kl_softmax(kl_linear(x, p[2], kl_none), 1);
}

static void mlp_parameters(kl_device dev, kl_tensor *p)
{
    static float data[HIDDEN * HIDDEN];
    p[0] = kl_randn(dev, KL_F32, DIMS(IMAGE, HIDDEN), 1);
    p[1] = kl_randn(dev, KL_F32, DIMS(HIDDEN, HIDDEN), 2);
    p[2] = kl_randn(dev, KL_F32, DIMS(HIDDEN, CLASSES), 3);
    for (int i = 0; i < WEIGHTS; i++)
        OK(kl_read(p[i], data, (size_t)kl_numel(p[i]) * sizeof *data));
}

static kl_tensor gpt_step(kl_device dev, bool symbolic, const int64_t *count, const kl_tensor *p)
{
    struct sizes s = sizes_of(symbolic, count);
    return kl_softmax(gpt_logits(dev, &s, p), 2);
}

static kl_tensor run(step_fn *step, const char *name, kl_device dev, bool symbolic, const int64_t *count,
                     const kl_tensor *p)
{
    kl_trace_begin(name);
    kl_tensor y = kl_keep(step(dev, symbolic, count, p));
    OK(kl_trace_end());
    return y;
}

static double difference(kl_tensor a, kl_tensor b)
{
    double *x = values_of(a), *y = values_of(b), max = kl_numel(a) == kl_numel(b) && x && y ? 0 : INFINITY;
    for (int64_t i = 0; max < INFINITY && i < kl_numel(a); i++)
        max = fabs(x[i] - y[i]) <= max ? max : isnan(x[i] - y[i]) ? INFINITY : fabs(x[i] - y[i]);
    free(x);
    free(y);
    return max;
}

/* Memory of the process and of the mock device, in bytes. */
static size_t memory_now(void)
{
    size_t pages = 0, all;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%zu %zu", &all, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE) + (fake ? fake->live.bytes : 0);
}

static void test_steps(step_fn *step, const char *name, kl_device dev, const int64_t *min, const int64_t *max,
                       int parts, void (*make)(kl_device dev, kl_tensor *p))
{
    enum { GROWTH = 16 << 20 };
    kl_tensor p[PARTS], q[PARTS];
    size_t settled = 0, end;
    double far = 0;
    uint64_t captures = 0, random = 1;
    int64_t graphs = 0, compiles = 0, late = 0, launches = kl_counter("launches");
    make(dev, p);
    make(kl_device_ref(), q);
    captures = fake ? fake->calls.captures : 0;
    for (int i = 0; i < steps; i++) {
        int64_t count[2], before[2] = {kl_counter("graphs_built"), kl_counter("compiles")};
        for (int d = 0; d < 2; d++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            count[d] = i == 1 ? min[d] : i == 2 ? max[d]
                     : min[d] + (int64_t)((random >> 33) % (uint64_t)(max[d] - min[d] + 1));
        }
        kl_tensor y = run(step, name, dev, true, count, p);
        free(values_of(y));
        graphs += kl_counter("graphs_built") - before[0];
        compiles += kl_counter("compiles") - before[1];
        late += i ? kl_counter("compiles") - before[1] : 0;
        if (i % (steps / CHECKED) == 0 || i < 3) {
            kl_tensor z = run(step, "interpreted", kl_device_ref(), false, count, q);
            far = fmax(far, difference(y, z));
            kl_release(z);
        }
        kl_release(y);
        if (i == steps / 2)
            settled = memory_now();
    }
    end = memory_now();
    captures = fake ? fake->calls.captures - captures : 0;
    printf("%s: %s: %d steps: %lld graph, %lld kernels compiled, %lld of them after the first step, %llu captures, "
           "%lld launches, differs by %.2g, memory grows by %lld KiB in the second half\n",
           kl_device_name(dev), name, steps, (long long)graphs, (long long)compiles, (long long)late,
           (unsigned long long)captures, (long long)(kl_counter("launches") - launches), far,
           ((long long)end - (long long)settled) / 1024);
    CHECK(graphs == 1 && !late);
    CHECK(captures <= 3);
    CHECK(far <= 1e-4);
    CHECK(end < settled + GROWTH);
    for (int i = 0; i < parts; i++)
        kl_release(p[i]), kl_release(q[i]);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "vulkan";
    bool hip = !strcmp(name, "hip"), cuda = !strcmp(name, "cuda");
    char folder[] = "/tmp/kiln-symbol-steps-XXXXXX", clean[64];
    if ((hip || cuda) && system("echo '_Float16 x;' | ${CXX:-c++} -x c++ -fsyntax-only - >/dev/null 2>&1")) {
        printf("SKIP no-compiler c++: none that has 16-bit floats\n");
        return 0;
    }
    if (!mkdtemp(folder) || ((hip || cuda) && !(fake = fake_gpu_load(argv[0]))))
        return 1;
    setenv("KILN_CACHE_DIR", folder, 1);
    steps = argc > 2 ? atoi(argv[2]) : 100;
    steps = steps < CHECKED ? CHECKED : steps;
    kl_device dev = kl_device_named(name);
    kl_tensor trial = dev.id ? kl_zeros(dev, KL_F32, DIMS(1)) : (kl_tensor){0};
    if (!dev.id || kl_item_f32(trial) != 0 || kl_last_error()[0]) {
        printf("SKIP no-device %.*s: %s\n0 passed, 0 failed, 1 skipped\n", (int)strcspn(name, ":"), name,
               kl_last_error());
        return 0;
    }
    kl_release(trial);
    device_now = name;
    make_words();
    for (int i = 0; i < MAX_IMAGES * IMAGE; i++)
        images[i] = (float)(i * 7 % 31 - 15) / 16;
    test_steps(mlp_step, "mlp", dev, (int64_t[]){1, 1}, (int64_t[]){MAX_IMAGES, 1}, WEIGHTS, mlp_parameters);
    test_steps(gpt_step, "gpt", dev, (int64_t[]){1, 2}, (int64_t[]){MAX_BATCH, MAX_LENGTH}, PARTS, make_parameters);
    snprintf(clean, sizeof clean, "rm -r %s", folder);
    CHECK(!system(clean));
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
