/* A training step of a small decoder, fused against unfused, and the memory of that step and of the classifier's: what
 * the plan takes beside what no placement can be below, and page faults once the step has run before. */
#include "bench.h"
#include "models.h"
#include <sys/resource.h>

static bool step_gpt(void *m) { return gpt_step(m, NULL); }
static bool step_mlp(void *m) { return mlp_step(m); }

static long page_faults(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_minflt;
}

static bool show_memory(const char *name, bool (*step)(void *m), void *m)
{
    enum { STEPS = 10 };
    static const char *const variant[2] = {"unfused", "fused"};
    for (int fuse = 0; fuse < 2; fuse++) {
        kl_run_info info;
        kl_set_option("fuse", fuse);
        for (int i = 0; i < 2; i++)
            if (!step(m))
                return false;
        long before = page_faults();
        for (int i = 0; i < STEPS; i++)
            if (!step(m))
                return false;
        long faults = page_faults() - before;
        if (kl_trace_info(&info) != KL_OK)
            return false;
        printf(
            "memory %-14s %-8s %4lld kernels, temporaries %7.2f MB, peak %7.2f MB, %.4f of the lower bound, page faults"
            " in %d steps: %ld\n",
            name, variant[fuse], (long long)info.kernels, 1e-6 * (double)info.arena_bytes,
            1e-6 * (double)info.peak_bytes, (double)info.peak_bytes / (double)info.lower_bound_bytes, STEPS, faults);
    }
    return true;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static struct gpt g;
    static struct mlp m;
    if (!bench_open(&b, "gpt", argc, argv))
        return b.status;
    kl_device device = bench_device(&b);
    kl_set_option("threads", 1);
    static const struct gpt_size size = {4, 256, 8, 128, 8, 128}, smoke = {1, 32, 2, 16, 2, 32};
    bool ok = gpt_open(&g, device, b.smoke ? smoke : size) && mlp_open(&m, device, bench_size(&b, 128, 8));
    struct bench_case t = {.name = b.smoke ? "gpt-1x32-adam" : "gpt-4x256-adam", .rounds = 10, .step = step_gpt,
                      .flops = gpt_flops(&g), .ctx = &g};
    if (ok && bench_wants(&b, t.name))
        ok = bench_alternate(&b, &t) && show_memory(t.name, step_gpt, &g) && show_memory("mlp-128-adam", step_mlp, &m);
    gpt_close(&g);
    mlp_close(&m);
    return ok ? bench_close(&b) : bench_fail(&b, t.name);
}
