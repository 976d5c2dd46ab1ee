/* Folds and exchanges between the lanes of a block, on a device with a driver, bit for bit as the kernel interpreter
 * has them: by the device's subgroups where it has them, and by shared memory, as on a device without.
 *
 *   gpu_lanes [DEVICE]   (default vulkan) */
#include "tests/support/harness.h"
#include "tests/support/random/random_make.h"
#include "runtime/device/driver.h"

enum { BLOCKS = 3, MAX_LANES = 64, RESULTS = FOLD_COUNT + 2 * MAX_LANES };

static struct accelerator *device;
static const struct driver *driver;

/* Of each block: the folds of its elements, and these exchanged with themselves turned round, over every distance in
 * both ways. */
static struct kernel *exchange(unsigned dtype, int64_t lanes)
{
    struct kernel *k = kernel_new("lanes");
    int64_t distances = 0;
    for (int64_t h = 1; h < lanes; h *= 2)
        distances++;
    uint32_t in = k_buf(k, BUF_IN, dtype, BLOCKS * lanes, 0), one = k_buf(k, BUF_OUT, dtype, BLOCKS * FOLD_COUNT, 1);
    uint32_t all = k_buf(k, BUF_OUT, dtype, BLOCKS * 2 * distances * lanes, 2);
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, BLOCKS), 1), first = ix_scale(k, p, lanes);
    val lane = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, lanes), 1);
    val x = k_load(k, in, ix_add(k, first, lane), 0), y = k_load(k, in,
                                                                 ix_sub(k, ix_add(k, first, k_int(k, lanes - 1)), lane),
        0);
    for (unsigned f = 0; f < FOLD_COUNT && dtype != KL_BOOL && !dtype_is_half(dtype); f++)
        k_store(k, one, ix_add(k, ix_scale(k, p, FOLD_COUNT), k_int(k, f)), k_lane_reduce(k, (enum fold)f, x), 0);
    val to = ix_add(k, ix_scale(k, first, 2 * distances), lane);
    for (int64_t i = 0; i < 2 * distances; i++)
        k_store(k, all, ix_add(k, to, k_int(k, i * lanes)), k_interleave(k, i & 1 ? INTERLEAVE_HI : INTERLEAVE_LO, x, y,
                                                                  (uint32_t)1 << i / 2), 0);
    k_end(k, lane);
    k_end(k, p);
    k->extent = BLOCKS;
    return k;
}

/* Runs k on the device, compiled for it as these caps have it. */
static bool run(const struct kernel *k, const struct caps *caps, void *const *host, struct err *e)
{
    struct code code = {0};
    struct device_kernel *d = NULL;
    struct driver_device *on = accelerator_device(device);
    void *buf[3] = {0};
    bool ok = accelerator_backend(device)->compile_for(k, caps, EMIT_OBJECT, &code, e) &&
        (d = accelerator_load(device, k, &code, NULL, e));
    for (uint32_t b = 0; ok && b < k->nbuf; b++)
        ok = driver->alloc(on, (size_t)k->buf[b].count * dtype_size(k->buf[b].dtype) + 1, &buf[b], e) &&
             driver->upload(on, buf[b], host[b], (size_t)k->buf[b].count * dtype_size(k->buf[b].dtype), e);
    ok = ok && driver->launch(on, &(struct launch){.kernel = d->kernel, .buffer = buf, .n = k->nbuf, .end = k->extent,
                                                   .blocks = BLOCKS}, e);
    for (uint32_t b = 1; ok && b < k->nbuf; b++)
        ok = driver->download(on, host[b], buf[b], (size_t)k->buf[b].count * dtype_size(k->buf[b].dtype), e);
    for (uint32_t b = 0; b < k->nbuf; b++)
        if (buf[b])
            driver->release(on, buf[b]);
    if (d)
        accelerator_unload(device, d);
    mem_free(code.bytes);
    return ok;
}

static void compare(unsigned dtype, int64_t lanes, const struct caps *caps, const char *how)
{
    static uint64_t memory[2][3][BLOCKS * MAX_LANES * 12];
    void *want[3], *got[3];
    struct err e = {0};
    struct rng r = {7};
    struct kernel *k = exchange(dtype, lanes);
    memset(memory, 0, sizeof memory);
    for (int b = 0; b < 3; b++) {
        want[b] = memory[0][b];
        got[b] = memory[1][b];
    }
    fill_random(&r, dtype, want[0], BLOCKS * lanes, false);
    memcpy(got[0], want[0], sizeof memory[0][0]);
    bool ok = check(kernel_clean(k) && kernel_interp(k, want, NULL, 0, BLOCKS, &e) && run(k, caps, got, &e),
                    "%s in %d lanes, %s: %s",
                    dtype_name(dtype), (int)lanes, how, e.msg);
    for (int b = 1; b < 3 && ok; b++) {
        int64_t at = 0;
        ok = same_values(dtype, want[b], got[b], k->buf[b].count, &at);
        check(ok, "%s in %d lanes, %s: buffer %d element %d is %.17g, not %.17g", dtype_name(dtype), (int)lanes, how,
              b, (int)at, element_value(dtype, got[b], ok ? 0 : at), element_value(dtype, want[b], ok ? 0 : at));
    }
    kernel_free(k);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    const char *name = argc > 1 ? argv[1] : "vulkan";
    int number = device_find(name, &e);
    if (number < 0) {
        printf("SKIP no-device %s: %s\n", name, e.msg);
        skipped++;
        return finish();
    }
    device = accelerator_get(number);
    driver = accelerator_driver(device);
    struct caps own = *accelerator_caps(device), without = own;
    char *subgroup = strstr(without.features, "+subgroup");
    if (subgroup)
        memcpy(subgroup, "+without ", strlen("+without "));
    printf("%s: %s\n", own.name, own.features);
    check(!strstr(own.name, "llvmpipe") || subgroup, "lavapipe's subgroups are not used");
    for (unsigned t = 0; t < KL_DTYPE_COUNT; t++)
        for (int64_t lanes = 4; accelerator_dtypes(device) >> t & 1 && lanes <= MAX_LANES; lanes *= 16) {
            compare(t, lanes, &own, "as the device is");
            if (subgroup && lanes == MAX_LANES)
                compare(t, lanes, &without, "without subgroups");
        }
    return finish();
}
