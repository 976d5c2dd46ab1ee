/* A device with memory of its own, through the public interface: training in place, copies to and from the host's
 * devices, loops, ops of the user's, wrapped memory; and what is said of devices that are not there.
 *
 *   api_accelerator [DEVICE]   (default vulkan) */
#include "tests/support/api_check.h"
#include <kiln/control.h>

static kl_device dev, host;

static kl_tensor vector(kl_device d, int n, double first)
{
    float v[64];
    for (int i = 0; i < n; i++)
        v[i] = (float)(first + i);
    return kl_input(d, KL_F32, DIMS(n), v);
}

static bool holds(kl_tensor t, int n, double first, double step)
{
    double *v = values_of(t);
    bool ok = v && kl_numel(t) == n;
    for (int i = 0; ok && i < n; i++)
        ok = v[i] == first + step * i;
    free(v);
    return ok;
}

/* w -= (w - target) / 2, a few times: the state is written where it lies. */
static void training(void)
{
    kl_tensor w = kl_zeros(dev, KL_F32, DIMS(40));
    CHECK(kl_requires_grad(w) == KL_OK);
    int64_t compiled = 0;
    for (int step = 0; step < 6; step++) {
        kl_trace_begin("descend");
        kl_tensor gap = kl_sub(w, vector(dev, 40, 64)), loss = kl_sum_all(kl_mul(gap, gap));
        kl_assign(w, kl_sub(w, kl_mul_scalar(kl_grad(loss, w), 0.25)));
        OK(kl_trace_end());
        if (step == 0)
            compiled = kl_counter("compiles") + kl_counter("disk_hits");
    }
    CHECK(kl_counter("compiles") + kl_counter("disk_hits") == compiled);
    double share = 1 - 1.0 / 64;
    CHECK(holds(w, 40, 64 * share, share));
    kl_release(w);
}

/* There and back in one trace, with a gradient through both copies. */
static void copies(void)
{
    kl_tensor x = vector(host, 30, 1);
    CHECK(kl_requires_grad(x) == KL_OK);
    kl_trace_begin("there");
    kl_tensor there = kl_to(x, dev), twice = kl_add(there, there), back = kl_to(twice, host);
    kl_tensor slope = kl_grad(kl_sum_all(kl_mul(back, back)), x);
    kl_keep(twice);
    kl_keep(back);
    kl_keep(slope);
    OK(kl_trace_end());
    CHECK(kl_device_of(twice).id == dev.id && kl_device_of(back).id == host.id && kl_device_of(slope).id == host.id);
    CHECK(holds(twice, 30, 2, 2) && holds(back, 30, 2, 2) && holds(slope, 30, 8, 8));
    CHECK(kl_rank(kl_add(x, twice)) < 0 && strstr(kl_last_error(), kl_device_name(dev)));
    kl_clear_error();
}

static int released;
static void release(void *ctx) { released += *(int *)ctx; }

/* Memory of the host is copied, and given back at once. */
static void wrapped(void)
{
    static float data[8] = {3, 4, 5, 6, 7, 8, 9, 10};
    static int one = 1;
    kl_tensor t = kl_wrap(dev, KL_F32, DIMS(8), data, release, &one);
    CHECK(released == 1);
    data[0] = 0;
    CHECK(holds(t, 8, 3, 1));
}

static kl_status below(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_lt(kl_sum_all(in[0]), kl_const(dev, KL_F32, 1000));
    return KL_OK;
}

static kl_status doubled(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_add(in[0], in[0]);
    return KL_OK;
}

/* The condition is read where the loop runs. */
static void loops(void)
{
    kl_tensor x = vector(dev, 10, 1), y; /* the sum is 55, then 110, 220, 440, 880, 1760 */
    kl_trace_begin("loop");
    OK(kl_while(below, doubled, NULL, 1, &x, &y));
    kl_keep(y);
    OK(kl_trace_end());
    CHECK(holds(y, 10, 32, 32));
}

static void absent(void)
{
    CHECK(!kl_device_named("vulkan:7").id && strstr(kl_last_error(), "vulkan:7"));
    CHECK(!kl_device_named("cuda:7").id && strstr(kl_last_error(), "device cuda:7: "));
    CHECK(!kl_device_named("hip:7").id && strstr(kl_last_error(), "device hip:7: "));
    CHECK(!kl_device_named("vulkanized").id && strstr(kl_last_error(), "unknown device \"vulkanized\""));
    kl_clear_error();
    CHECK(strcmp(kl_device_name(kl_device_default()), "vulkan:0")); /* nobody gets it unasked */
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "vulkan";
    absent();
    dev = kl_device_named(name);
    host = kl_device_named("ref");
    device_now = name;
    if (!dev.id) {
        printf("SKIP no-device %s: %s\n", name, kl_last_error());
        printf("%d passed, %d failed, 1 skipped\n", passed, failed);
        return failed != 0;
    }
    training();
    copies();
    wrapped();
    loops();
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
