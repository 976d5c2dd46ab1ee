/* The memory of whole training steps, through the public headers: a planned peak close to what no placement can be
 * below, no page faults once a step has run, and the same losses fused, unfused and for any number of threads. */
#include "tests/support/api_check.h"
#include "bench/models.h"
#include <sys/resource.h>

static const struct gpt_size small = {4, 32, 2, 16, 3, 50};
enum { LOSSES = 4 };

static void check_plan(const char *name)
{
    kl_run_info i;
    if (!OK(kl_trace_info(&i)))
        return;
    bool ok = i.lower_bound_bytes > 0 && i.peak_bytes >= i.lower_bound_bytes &&
              (double)i.peak_bytes <= 1.1 * (double)i.lower_bound_bytes;
    if (!CHECK(ok))
        printf("    %s: peak %lld, lower bound %lld\n", name, (long long)i.peak_bytes, (long long)i.lower_bound_bytes);
}

/* The first losses of a new model; its plan is checked on the way. */
static bool gpt_losses(kl_device device, float *loss)
{
    struct gpt m;
    bool ok = CHECK(gpt_open(&m, device, small));
    for (int i = 0; ok && i < LOSSES; i++)
        ok = CHECK(gpt_step(&m, &loss[i]));
    if (ok)
        check_plan("gpt");
    gpt_close(&m);
    return ok;
}

static void test_gpt(kl_device device)
{
    static const int threads[] = {1, 2, 3};
    float want[LOSSES], loss[LOSSES];
    kl_set_option("fuse", 0);
    if (!gpt_losses(device, want))
        return;
    CHECK(want[LOSSES - 1] < want[0] && fabsf(want[0] - logf((float)small.vocabulary)) < 0.2f);
    kl_set_option("fuse", 1);
    for (int i = 0; i < 3; i++) {
        kl_set_option("threads", threads[i]);
        CHECK(gpt_losses(device, loss) && !memcmp(loss, want, sizeof want));
    }
    kl_set_option("threads", 0);
}

static void test_mlp(kl_device device)
{
    struct mlp m;
    for (int fuse = 0; fuse < 2; fuse++) {
        kl_set_option("fuse", fuse);
        if (CHECK(mlp_open(&m, device, 32) && mlp_step(&m)))
            check_plan("mlp");
        mlp_close(&m);
    }
}

#ifdef KILN_ASAN
/* Frames on AddressSanitizer's own stack would be fresh memory each time. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_stack_use_after_return=0"; }
#endif

static long page_faults(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_minflt;
}

/* Of 30 steps that have run before.  A step that took fresh memory would meet some each time. */
static void test_page_faults(kl_device device)
{
    enum { STEPS = 30 };
    struct gpt m;
    bool ok = CHECK(gpt_open(&m, device, small));
    for (int i = 0; ok && i < 5; i++)
        ok = CHECK(gpt_step(&m, NULL));
    long before = page_faults();
    for (int i = 0; ok && i < STEPS; i++)
        ok = gpt_step(&m, NULL);
    long faults = page_faults() - before;
    if (!CHECK(ok && faults < STEPS))
        printf("    %ld page faults in %d steps\n", faults, (int)STEPS);
    gpt_close(&m);
}

int main(void)
{
    kl_device device = kl_device_default();
    device_now = kl_device_name(device);
    test_gpt(device);
    test_mlp(device);
    if (strcmp(device_now, "ref")) /* the interpreter takes memory from the system as it goes */
        test_page_faults(device);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
