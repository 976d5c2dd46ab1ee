/* Vulkan's lists of launches that are submitted again (vulkan_list.c): they give the results of launches that are made
 * anew, behind other uploads of the same length, and are not repeated where something else is in front of them, after
 * other lists took their place, or after a kernel was unloaded.  A frozen step of many kernels, which repeats its list,
 * is right whatever its inputs and numbers are. */
#include "runtime/device/devices.h"
#include "runtime/device/driver.h"
#include "tests/support/harness.h"
#include <kiln/kiln.h>
#include <time.h>

enum { X, Y, Z, W, BUFFERS, BYTES = 256 };

static struct accelerator *a;
static const struct driver *driver;
static struct driver_device *device;
static struct device_kernel *kernel;
static void *buffer[BUFFERS];
static struct err e;

/* out[0] = in[0] + 1 */
static struct device_kernel *load_add(void)
{
    struct code code = {0};
    struct kernel *k = kernel_new("add");
    struct device_kernel *d = NULL;
    uint32_t in = k_buf(k, BUF_IN, KL_F32, 1, 0), out = k_buf(k, BUF_OUT, KL_F32, 1, 1);
    k_store(k, out, k_int(k, 0), k_prim(k, P_ADD, k_load(k, in, k_int(k, 0), 0), k_const(k, KL_F32, 1), 0), 0);
    k->extent = 1;
    if (check(kernel_clean(k) &&
              accelerator_backend(a)->compile_for(k, accelerator_caps(a), EMIT_OBJECT, &code, &e), "%s", e.msg))
        d = accelerator_load(a, k, &code, NULL, &e);
    mem_free(code.bytes);
    kernel_free(k);
    return d;
}

static bool upload(int to, float x) { return driver->upload(device, buffer[to], &x, sizeof x, &e); }

static bool launch(int from, int to, uint32_t blocks)
{
    void *argument[2] = {buffer[from], buffer[to]};
    return driver->launch(device, &(struct launch){.kernel = kernel->kernel, .buffer = argument, .n = 2,
                                                   .use = kernel->use, .end = 1, .blocks = blocks}, &e);
}

/* What is in a buffer, after all commands. */
static float value(int of)
{
    float x = NAN;
    check(driver->download(device, &x, buffer[of], sizeof x, &e), "%s", e.msg);
    driver->list(device);
    return x;
}

static bool repeats(uint64_t list)
{
    struct memory_range v = {buffer[X], BYTES};
    bool done = false;
    check(driver->repeat(device, list, &v, 1, &done, &e), "%s", e.msg);
    return done;
}

/* z = x + 2 by two launches; returns the list's number. */
static uint64_t sum_list(float x)
{
    check(upload(X, x) && launch(X, Y, 1) && launch(Y, Z, 1) && driver->submit(device, &e), "%s", e.msg);
    return driver->list(device);
}

static void test_repeats(void)
{
    uint64_t list = sum_list(5);
    check(list && value(Z) == 7, "list %d", (int)list);
    for (int i = 0; i < 6; i++) {
        check(upload(X, (float)i) && repeats(list) && driver->submit(device, &e), "%s", e.msg);
        check(driver->list(device) == list, "repeat %d has another number", i);
        check(value(Z) == (float)i + 2, "repeat %d has another result", i);
    }
    check(sum_list(6) == list, "the same list has another number");
    check(upload(X, 7) && repeats(list) && launch(Z, W, 1) && driver->submit(device, &e), "%s", e.msg);
    check(driver->list(device) != list && value(W) == 10, "a launch behind a repeat");
}

static void test_other_commands(void)
{
    uint64_t list = sum_list(5), other;
    check(!repeats(list), "without the upload in front of it");
    check(upload(Y, 1) && !repeats(list), "behind another upload");
    check(upload(X, 1) && !repeats(list), "behind two uploads");
    driver->drop(device);
    check(upload(X, 1) && launch(Z, W, 1) && !repeats(list), "behind a launch");
    driver->drop(device);
    check(upload(X, 3) && launch(X, Y, 1) && upload(X, 4) && launch(Y, Z, 1) && driver->submit(device, &e) &&
          !driver->list(device) && value(Z) == 5, "a copy between launches");
    for (uint32_t i = 0; i < 8; i++) {
        check(upload(X, 1) && launch(X, Y, i + 2) && driver->submit(device, &e), "%s", e.msg);
        other = driver->list(device);
        check(other && other != list, "another list");
    }
    check(upload(X, 1) && !repeats(list) && repeats(other), "after other lists");
    driver->drop(device);
    accelerator_unload(a, load_add());
    check(upload(X, 1) && !repeats(other), "after a kernel was unloaded");
    driver->drop(device);
    check(sum_list(5) && value(Z) == 7, "after that");
}

/* ---- a frozen step ---- */

enum { KERNELS = 300, RUNS = 40, SAME = 10, N = 4 };

static double processor_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

/* y = s^KERNELS x P^KERNELS for the P that moves each column to the next, which has order 4; P^KERNELS = 1 */
static void test_step(void)
{
    static const int64_t dims[] = {N, N};
    float next[N * N] = {0}, data[N * N];
    kl_device dev = kl_device_named("vulkan");
    for (int i = 0; i < N; i++)
        next[i * N + (i + 1) % N] = 1;
    for (int i = 0; i < N * N; i++)
        data[i] = (float)i;
    kl_tensor p = kl_input(dev, KL_F32, 2, dims, next);
    kl_trace_begin("long");
    kl_tensor s = kl_scalar(dev, KL_F32, 1), x = kl_input(dev, KL_F32, 2, dims, data), y = x;
    kl_set_name(s, "s");
    for (int i = 0; i < KERNELS; i++)
        y = kl_mul(kl_matmul(y, p), s);
    kl_keep(y);
    kl_step *step = kl_trace_end_step(1, &x);
    double min = INFINITY;
    kl_tensor in = {0};
    for (int i = 0; i < RUNS && check(step, "%s", kl_last_error()); i++) {
        float got[N * N], sign = i % 3 ? 1 : -1;
        kl_tensor out;
        for (int k = 0; k < N * N && i % SAME == 0; k++)
            data[k] = (float)(k * (i + 1));
        if (i % SAME == 0) { /* with the same input, all memory is where it was in the run before */
            kl_release(in);
            in = kl_input(dev, KL_F32, 2, dims, data);
        }
        double began = processor_us();
        bool ok = kl_step_run(step, 1, &in, 1, &(kl_slot){"s", (double)sign}, 1, &out) == KL_OK;
        min = fmin(min, processor_us() - began);
        ok = ok && kl_read(out, got, sizeof got) == KL_OK && !memcmp(got, data, sizeof got);
        check(ok, "run %d: %s", i, kl_last_error());
        kl_release(out);
    }
    kl_release(in);
    printf("%d kernels: %.0f us of the host's processor a run, at least\n", KERNELS, min);
    kl_step_free(step);
    kl_release(p);
}

int main(void)
{
    int number = device_find("vulkan", &e);
    if (number < 0) {
        printf("SKIP no-device vulkan: %s\n", e.msg);
        skipped++;
        return finish();
    }
    a = accelerator_get(number);
    driver = accelerator_driver(a);
    device = accelerator_device(a);
    accelerator_lock(a);
    kernel = load_add();
    bool ok = kernel != NULL;
    for (int i = 0; i < BUFFERS && ok; i++)
        ok = driver->alloc(device, BYTES, &buffer[i], &e);
    if (check(ok, "%s", e.msg)) {
        value(X); /* nothing is collected */
        test_repeats();
        test_other_commands();
    }
    for (int i = 0; i < BUFFERS; i++)
        if (buffer[i])
            driver->release(device, buffer[i]);
    if (kernel)
        accelerator_unload(a, kernel);
    accelerator_unlock(a);
    test_step();
    return finish();
}
