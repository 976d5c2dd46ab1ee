/* The blocks and threads of launches of elementwise kernels: random numbers, whose kernels have much arithmetic and no
 * operand, and chains over arrays of constant and symbolic lengths.  Large arrays have all blocks that the device runs
 * at once, several times over; short ones have one for each iteration of the kernel's parallel loop.
 *
 *   gpu_launches [cuda|hip]       the tests' library in place of that driver: 2 processors of 2048 threads */
#include "runtime/device/devices.h"
#include "tests/gpu/fake/fake_load.h"
#include "tests/support/api_check.h"

enum { LARGE = 1 << 21, SMALL = 1000, THREADS = 64, WAVES = 8, RESIDENT = 2 * 2048 / THREADS, MAX_LAUNCHES = 64 };

static struct { unsigned blocks, threads; } launch[MAX_LAUNCHES];
static unsigned launches;

static double note_launch(unsigned blocks, unsigned threads)
{
    if (launches < MAX_LAUNCHES) {
        launch[launches].blocks = blocks;
        launch[launches].threads = threads;
    }
    launches++;
    return 0.25;
}

static kl_tensor record_normal(kl_device device, int64_t n, bool symbolic)
{
    (void)symbolic;
    return kl_randn(device, KL_F32, DIMS(n), 42);
}

static kl_tensor record_chain(kl_device device, int64_t n, bool symbolic)
{
    static float data[LARGE];
    int64_t length = symbolic ? kl_symbol("n", 1, LARGE) : n;
    kl_tensor x = symbolic ? kl_input_symbolic(device, KL_F32, DIMS(length), &n, data)
                           : kl_input(device, KL_F32, DIMS(n), data);
    return kl_add(kl_tanh(x), x);
}

/* Records and runs one of them; the launches are noted. */
static void run(kl_tensor record(kl_device, int64_t, bool), kl_device device, int64_t n, bool symbolic)
{
    kl_trace_begin(symbolic ? "symbolic" : "constant");
    kl_tensor y = kl_keep(record(device, n, symbolic));
    launches = 0;
    OK(kl_trace_end());
    kl_release(y);
}

static void check_launches(const char *name, unsigned min, unsigned max)
{
    CHECK(launches > 0 && launches <= MAX_LAUNCHES);
    for (unsigned i = 0; i < launches && i < MAX_LAUNCHES; i++) {
        CHECK(launch[i].threads == THREADS && launch[i].blocks >= min && launch[i].blocks <= max);
        if (launch[i].blocks < min || launch[i].blocks > max)
            printf("%s: launch %u has %u blocks of %u threads, not %u to %u\n", name, i, launch[i].blocks,
                   launch[i].threads, min, max);
    }
}

/* Blocks of an H100 (132 processors) for a kernel of random numbers of GPT-2's token embeddings, 50257 x 768 of them,
 * by how many blocks of 64 threads its registers leave room for. */
static void check_h100(void)
{
    enum { PROCESSORS = 132, ITERATIONS = 18847 };
    static const struct { unsigned each, blocks; } row[] = {{32, 18847}, {25, 18847}, {16, 16896}, {8, 8448},
                                                            {0, 4096}};
    for (unsigned i = 0; i < sizeof row / sizeof *row; i++) {
        struct device_kernel k = {.resident = row[i].each * PROCESSORS, .large = true};
        CHECK(accelerator_blocks(&k, ITERATIONS) == row[i].blocks);
        CHECK(accelerator_blocks(&k, 100) == 100);
    }
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "cuda";
    struct fake_gpu *fake;
    if (system("echo '_Float16 x;' | ${CXX:-c++} -x c++ -fsyntax-only - >/dev/null 2>&1")) {
        printf("SKIP no-compiler c++: none that has 16-bit floats\n0 passed, 0 failed, 1 skipped\n");
        return 0;
    }
    if (!(fake = fake_gpu_load(argv[0])))
        return 1;
    fake->milliseconds = note_launch;
    kl_device device = kl_device_named(name);
    CHECK(device.id != 0);
    check_h100();
    run(record_normal, device, LARGE, false);
    check_launches("random numbers", WAVES * RESIDENT, WAVES * RESIDENT);
    run(record_chain, device, LARGE, false);
    check_launches("a chain", WAVES * RESIDENT, WAVES * RESIDENT);
    run(record_chain, device, LARGE, true);
    check_launches("a chain of a symbolic length", WAVES * RESIDENT, WAVES * RESIDENT);
    run(record_normal, device, SMALL, false);
    check_launches("few random numbers", 1, SMALL / THREADS + 1);
    run(record_chain, device, SMALL, true);
    check_launches("a chain of a symbolic length, a short one", 1, SMALL / THREADS + 1);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
