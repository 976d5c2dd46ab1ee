/* A GPU: what launching costs.  A step of 1,000 small kernels, one behind the other, recorded anew each time or frozen:
 *
 *   host    from the call until it returns, while the device works
 *   step    from the call until the work is done
 *
 * A captured step is one launch of a graph (tests/gpu/gpu_frozen_steps.c counts it). */
#include "gpu.h"

enum { KERNELS = 1000, SIDE = 4 };
struct chain { struct gpu *g; kl_tensor x, p; kl_step *frozen; };

static kl_tensor record(const struct chain *c)
{
    kl_tensor y = c->x;
    for (int i = 0; i < KERNELS; i++)
        y = kl_matmul(y, c->p);
    return kl_keep(y);
}

static bool traced(const struct chain *c)
{
    kl_trace_begin("chain");
    kl_tensor y = record(c);
    bool ok = kl_trace_end() == KL_OK;
    kl_release(y);
    return ok;
}

static bool frozen(const struct chain *c)
{
    kl_tensor y;
    bool ok = kl_step_run(c->frozen, 0, NULL, 0, NULL, 1, &y) == KL_OK;
    if (ok)
        kl_release(y);
    return ok;
}

static bool measure(const struct chain *c, const char *name, bool (*step)(const struct chain *c))
{
    static struct samples host, whole;
    host.n = whole.n = 0;
    for (int round = -5; round < 5 * c->g->rounds; round++) {
        double start = measure_now();
        if (!step(c))
            return false;
        double returned = measure_now();
        if (kl_sync(c->g->device) != KL_OK)
            return false;
        if (round >= 0) {
            samples_add(&host, returned - start);
            samples_add(&whole, measure_now() - start);
        }
        measure_progress(name, round + 5, 5 * c->g->rounds + 4);
    }
    bench_add(&c->g->b, name, "host", 1, &host, "us", 0, 0);
    bench_add(&c->g->b, name, "step", 1, &whole, "us", 0, 0);
    return true;
}

int main(int argc, char **argv)
{
    static struct gpu g;
    static float start[SIDE * SIDE], next[SIDE * SIDE];
    if (!gpu_open(&g, "gpu_launch", argc, argv))
        return g.b.status;
    for (int i = 0; i < SIDE * SIDE; i++) {
        start[i] = (float)i;
        next[i] = i % SIDE == (i / SIDE + 1) % SIDE; /* each column moves to the next */
    }
    struct chain c = {.g = &g, .x = kl_input(g.device, KL_F32, 2, (int64_t[]){SIDE, SIDE}, start),
                      .p = kl_input(g.device, KL_F32, 2, (int64_t[]){SIDE, SIDE}, next)};
    bool ok = !*kl_last_error();
    if (bench_wants(&g.b, "1000 kernels recorded"))
        ok = ok && measure(&c, "1000 kernels recorded", traced);
    if (ok && bench_wants(&g.b, "1000 kernels frozen")) {
        kl_trace_begin("chain");
        record(&c);
        c.frozen = kl_trace_end_step(0, NULL);
        ok = c.frozen && measure(&c, "1000 kernels frozen", frozen);
    }
    kl_step_free(c.frozen);
    kl_release(c.x);
    kl_release(c.p);
    return gpu_close(&g, ok);
}
