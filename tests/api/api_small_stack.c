/* A host whose stack is limited to 64 KiB (ulimit -s), the main thread's and so each new thread's: recording, planning,
 * compiling and running of a convolution, attention, sorts, a loop and their gradients, with two threads, by the
 * interpreter and compiled. Code generators get a stack of their own. The program starts itself with that limit. */
#define _GNU_SOURCE
#include "tests/support/api_check.h"
#include <sys/resource.h>
#include <unistd.h>

enum { STACK = 64 << 10 }; /* bytes */

static kl_device dev;

static kl_status body(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_tanh(kl_add(in[0], in[1]));
    return KL_OK;
}

static kl_tensor loss_of(kl_tensor x, kl_tensor w)
{
    kl_tensor c = kl_gelu(kl_conv(x, w, kl_none, NULL, (int64_t[]){1, 1}, (int64_t[]){1, 1},
                                  NULL, 1));
    kl_tensor q = kl_reshape(c, DIMS(2, 4, 8, 8)), a = kl_attention(q, q, q, kl_none, true);
    kl_tensor s = kl_softmax(kl_sort(kl_reshape(a, DIMS(64, 8)), 1, false), 1);
    kl_tensor zero = kl_zeros(dev, KL_F32, DIMS(8)), last[1];
    kl_scan(body, NULL, 64, 1, &zero, 1, &s, 0, false, last);
    return kl_sum_all(last[0]);
}

static void step(const char *device)
{
    static float x[2 * 4 * 8 * 8], w[4 * 4 * 3 * 3];
    device_now = device;
    dev = kl_device_named(device);
    for (int i = 0; i < 2; i++) {
        kl_tensor weight = kl_input(dev, KL_F32, DIMS(4, 4, 3, 3), w);
        OK(kl_requires_grad(weight));
        OK(kl_trace_begin("small_stack"));
        kl_tensor loss = loss_of(kl_input(dev, KL_F32, DIMS(2, 4, 8, 8), x), weight);
        kl_tensor gradient = kl_keep(kl_grad(loss, weight));
        kl_keep(loss);
        OK(kl_trace_end());
        CHECK(isfinite(kl_item_f32(loss)));
        CHECK(kl_numel(gradient) == 144);
        kl_release(gradient);
        kl_release(loss);
        kl_release(weight);
        x[i] = 1;
        w[i] = 0.5f;
    }
}

static int in_child(void)
{
    kl_set_option("threads", 2);
    step("ref");
    step("cpu");
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return in_child();
    struct rlimit r;
    getrlimit(RLIMIT_STACK, &r);
    r.rlim_cur = STACK;
    setrlimit(RLIMIT_STACK, &r);
    execv("/proc/self/exe", (char *[]){argv[0], "child", NULL});
    perror("execv");
    return 1;
}
