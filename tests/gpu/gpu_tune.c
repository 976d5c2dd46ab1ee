/* kl_tune on a device with a driver: results keep their bits, and what it finds is used by later programs, also of a
 * new process.  The tests' library in place of CUDA's and HIP's drivers says how long each launch takes, so the
 * schedule that is found and its time are known: the times are those of the device's events, not the host's.  Each
 * kernel has a candidate with half as many threads, which is the fastest.
 *
 *   gpu_tune [vulkan|cuda|hip|cuda:0|hip:0]      cuda, hip: that library; cuda:0, hip:0: a GPU
 *   gpu_tune DEVICE again FILE    what the test runs as a new process: the result goes to the file */
#include "tests/gpu/fake/fake_load.h"
#include "tests/support/api_check.h"
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 96, COLUMNS = 256, BEST_THREADS = 32 };
enum kind { MAP, SUMS, SKINNY, KINDS }; /* of kernels: elementwise, sums of columns, a product of few rows */
static const char *const trace[KINDS] = {"map", "sums", "skinny"};
#define BEST_MS 0.0625
#define OTHER_MS 0.25

static struct fake_gpu *fake; /* NULL: the driver is a real one */
static kl_device device;
static uint64_t best, launched; /* launches with BEST_THREADS; all */
static struct { int kernels, changed; double seconds[2]; char after[256]; } found;

static double launch_ms(unsigned blocks, unsigned threads)
{
    (void)blocks;
    launched++;
    best += threads == BEST_THREADS;
    return threads == BEST_THREADS ? BEST_MS : OTHER_MS;
}

static void note_kernel(void *ctx, const kl_tuned_kernel *k)
{
    (void)ctx;
    CHECK(k->tried > 0 && k->seconds[0] > 0 && k->seconds[1] > 0);
    found.kernels++;
    found.changed += strcmp(k->before, k->after) != 0;
    for (int i = 0; i < 2; i++)
        found.seconds[i] += k->seconds[i];
    snprintf(found.after, sizeof found.after, "%s", k->after);
}

static void step(enum kind kind, float *out)
{
    static float x[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++)
        x[i] = (float)(i % 37 - 18) / 8;
    kl_trace_begin(trace[kind]);
    kl_tensor in = kl_input(device, KL_F32, DIMS(ROWS, COLUMNS), x), y;
    if (kind == MAP)
        y = kl_mul(kl_tanh(in), kl_add_scalar(in, 0.5));
    else if (kind == SUMS)
        y = kl_sum(in, AXES(0), false);
    else
        y = kl_matmul(kl_input(device, KL_F32, DIMS(2, ROWS), x), in);
    kl_keep(y);
    OK(kl_trace_end());
    OK(kl_read(y, out, (kind == MAP ? ROWS : kind == SKINNY ? 2 : 1) * COLUMNS * sizeof *out));
    kl_release(y);
}

static int be_again(const char *path)
{
    static float y[ROWS * COLUMNS];
    step(MAP, y);
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(y, sizeof y, 1, f) == 1;
    ok = f && !fclose(f) && ok;
    return !ok || failed ? 1 : fake && best != launched ? 2 : 0;
}

static void test_new_process(const char *program, const char *folder, const float *want)
{
    static float y[ROWS * COLUMNS];
    char path[96];
    int status = -1;
    snprintf(path, sizeof path, "%s/result", folder);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        execl(program, program, device_now, "again", path, (char *)NULL);
        _exit(9);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    FILE *f = fopen(path, "rb");
    CHECK(f && fread(y, sizeof y, 1, f) == 1);
    if (f)
        fclose(f);
    CHECK(!memcmp(y, want, sizeof y));
}

static void test_tune(enum kind kind, const char *program, const char *folder)
{
    static float before[ROWS * COLUMNS], after[ROWS * COLUMNS];
    memset(&found, 0, sizeof found);
    step(kind, before);
    kl_tune_options o = {.seconds = 3600, .kernel = note_kernel};
    OK(kl_tune_with(trace[kind], &o));
    printf("%s, %s: %d of %d kernels changed, %.6g -> %.6g ms, %s\n", device_now, trace[kind], found.changed,
           found.kernels,
           1e3 * found.seconds[0], 1e3 * found.seconds[1], found.after);
    CHECK(found.kernels == 1);
    best = launched = 0;
    step(kind, after);
    CHECK(!memcmp(before, after, sizeof before));
    if (fake) {
        CHECK(found.changed == 1);
        double launches = kind == SKINNY ? 2 : 1; /* of the kernel: its phases */
        CHECK(fabs(1e3 * found.seconds[0] - launches * OTHER_MS) < 1e-6);
        CHECK(fabs(1e3 * found.seconds[1] - launches * BEST_MS) < 1e-6);
        CHECK(launched > 0 && best == launched);
    }
    if (kind != MAP)
        return;
    test_new_process(program, folder, before);
    found.changed = 0;
    OK(kl_tune_with(trace[kind], &o)); /* from what it found: nothing is faster */
    CHECK(!fake || !found.changed);
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/kiln-gpu-tune-XXXXXX", clean[64];
    device_now = argc > 1 ? argv[1] : "vulkan";
    bool hip = !strcmp(device_now, "hip"), cuda = !strcmp(device_now, "cuda");
    if ((hip || cuda) && system("echo '_Float16 x;' | ${CXX:-c++} -x c++ -fsyntax-only - >/dev/null 2>&1")) {
        printf("SKIP no-compiler c++: none that has 16-bit floats\n");
        return 0;
    }
    if ((hip || cuda) && !(fake = fake_gpu_load(argv[0])))
        return 1;
    if (fake)
        fake->milliseconds = launch_ms;
    bool again = argc > 3;
    if (!again && (!mkdtemp(folder) || setenv("KILN_CACHE_DIR", folder, 1)))
        return 1;
    device = kl_device_named(device_now);
    kl_tensor trial = device.id ? kl_zeros(device, KL_F32, DIMS(1)) : (kl_tensor){0};
    if (!device.id || kl_item_f32(trial) != 0 || kl_last_error()[0]) {
        printf("SKIP no-device %.*s: %s\n0 passed, 0 failed, 1 skipped\n", (int)strcspn(device_now, ":"), device_now,
               kl_last_error());
        return 0;
    }
    kl_release(trial);
    best = launched = 0;
    if (again)
        return be_again(argv[3]);
    for (int kind = MAP; kind < (hip ? SUMS : KINDS); kind++) /* HIP: the same candidates, which take long to compile */
        test_tune((enum kind)kind, argv[0], folder);
    snprintf(clean, sizeof clean, "rm -r %s", folder);
    CHECK(!system(clean));
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
