/* Training outside of traces, where a read computes what it needs: steps of a loop cost the same however many there
 * were, whether handles are released one by one or by a scope; pending values read one by one cost at most twice what
 * they cost together. */
#include "tests/support/api_check.h"
#include <sys/resource.h>

enum { ROWS = 16, IN = 8, OUT = 4, STEPS = 2000, WARM = 50, MAX_PROGRAMS = 4, LAYERS = 60, WIDTH = 8 };

static float data[ROWS * IN];
static int32_t label[ROWS];

/* The most memory that the process has had; sanitizers keep freed memory, so that it says nothing there. */
static long peak_kilobytes(void)
{
#if defined(KILN_ASAN) || defined(KILN_TSAN)
    return 0;
#else
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
#endif
}

struct model { kl_device device; kl_tensor w, momentum, average; };

static struct model model_new(kl_device device)
{
    struct model m = {device, kl_randn(device, KL_F32, DIMS(IN, OUT), 7), kl_zeros(device, KL_F32, DIMS(IN, OUT)),
                      kl_zeros(device, KL_F32, DIMS(IN, OUT))};
    kl_requires_grad(m.w);
    OK(kl_flush(device)); /* parameters are not part of the first step */
    return m;
}

static void model_free(struct model *m)
{
    kl_release(m->w);
    kl_release(m->momentum);
    kl_release(m->average);
}

static kl_tensor loss_of(const struct model *m, kl_tensor *x, kl_tensor *y, kl_tensor *p)
{
    *x = kl_input(m->device, KL_F32, DIMS(ROWS, IN), data);
    *y = kl_input(m->device, KL_I32, DIMS(ROWS), label);
    *p = kl_matmul(*x, m->w);
    return kl_cross_entropy(*p, *y);
}

/* Each handle is released by the step. */
static float step_released(struct model *m)
{
    kl_tensor x, y, p, l = loss_of(m, &x, &y, &p), g = kl_grad(l, m->w), d = kl_mul_scalar(g, 0.1), n = kl_sub(m->w, d);
    kl_assign(m->w, n);
    kl_release(x), kl_release(y), kl_release(p), kl_release(g), kl_release(d), kl_release(n);
    float v = kl_item_f32(l);
    kl_release(l);
    return v;
}

/* A scope releases all handles. */
static float step_scoped(struct model *m)
{
    kl_tensor x, y, p;
    kl_scope_begin();
    kl_tensor l = loss_of(m, &x, &y, &p);
    kl_assign(m->w, kl_sub(m->w, kl_mul_scalar(kl_grad(l, m->w), 0.1)));
    float v = kl_item_f32(l);
    kl_scope_end();
    return v;
}

/* Three states, of which one is read by nothing in the loop. */
static float step_momentum(struct model *m)
{
    kl_tensor x, y, p;
    kl_scope_begin();
    kl_tensor l = loss_of(m, &x, &y, &p);
    kl_assign(m->momentum, kl_add(kl_mul_scalar(m->momentum, 0.5), kl_grad(l, m->w)));
    kl_assign(m->w, kl_sub(m->w, kl_mul_scalar(m->momentum, 0.05)));
    kl_assign(m->average, kl_add(kl_mul_scalar(m->average, 0.9), kl_mul_scalar(m->w, 0.1)));
    float v = kl_item_f32(l);
    kl_scope_end();
    return v;
}

/* The value is read before the state is assigned. */
static float step_read_first(struct model *m)
{
    kl_tensor x, y, p;
    kl_scope_begin();
    kl_tensor l = loss_of(m, &x, &y, &p);
    float v = kl_item_f32(l);
    kl_assign(m->w, kl_sub(m->w, kl_mul_scalar(kl_grad(l, m->w), 0.1)));
    kl_scope_end();
    return v;
}

/* The same step in a trace, for its losses. */
static float step_traced(struct model *m, bool momentum)
{
    kl_tensor x, y, p;
    kl_trace_begin(momentum ? "eager_momentum" : "eager_plain");
    kl_tensor l = kl_keep(loss_of(m, &x, &y, &p)), g = kl_grad(l, m->w);
    if (momentum) {
        kl_assign(m->momentum, kl_add(kl_mul_scalar(m->momentum, 0.5), g));
        kl_assign(m->w, kl_sub(m->w, kl_mul_scalar(m->momentum, 0.05)));
    } else {
        kl_assign(m->w, kl_sub(m->w, kl_mul_scalar(g, 0.1)));
    }
    OK(kl_trace_end());
    float v = kl_item_f32(l);
    kl_release(l);
    return v;
}

static void test_steps(kl_device device, const char *name, float (*step)(struct model *), bool momentum)
{
    struct model m = model_new(device), same = model_new(device);
    int64_t programs = kl_counter("graphs_built"), launches = 0; /* what computes the parameters counts for neither */
    long peak = 0;
    bool equal = true;
    int traced = 0;
    for (int s = 0; s < STEPS; s++) {
        float v = step(&m);
        if (s < WARM) {
            int64_t before = kl_counter("graphs_built");
            float want = step_traced(&same, momentum);
            traced += (int)(kl_counter("graphs_built") - before);
            equal &= v == want;
        }
        if (s == WARM) {
            peak = peak_kilobytes();
            launches = kl_counter("launches");
        }
        if (s == WARM + 100)
            launches = kl_counter("launches") - launches;
    }
    programs = kl_counter("graphs_built") - programs - traced;
    CHECK(equal);
    if (!CHECK(programs <= MAX_PROGRAMS))
        printf("    %s: %lld programs\n", name, (long long)programs);
    if (!CHECK(peak_kilobytes() - peak < 4096))
        printf("    %s: %ld kB more after %d steps\n", name, peak_kilobytes() - peak, STEPS);
    int64_t before = kl_counter("launches");
    for (int s = 0; s < 100; s++)
        step(&m);
    if (!CHECK(kl_counter("launches") - before <= launches + 20))
        printf("    %s: %lld launches for 100 steps, %lld at first\n", name,
               (long long)(kl_counter("launches") - before), (long long)launches);
    double value[IN * OUT];
    OK(kl_read(kl_cast(m.average, KL_F64), value, sizeof value));
    model_free(&m);
    model_free(&same);
}

/* A deep network whose gradients are read one by one. */
static int64_t launches_of_gradients(kl_device device, bool flush)
{
    kl_tensor w[LAYERS], g[LAYERS], x = kl_ones(device, KL_F32, DIMS(ROWS, WIDTH));
    float value[WIDTH * WIDTH];
    kl_scope_begin();
    kl_tensor y = x;
    for (int i = 0; i < LAYERS; i++) {
        w[i] = kl_randn(device, KL_F32, DIMS(WIDTH, WIDTH), (uint64_t)i);
        kl_requires_grad(w[i]);
        OK(kl_read(w[i], value, sizeof value));
        y = kl_tanh(kl_matmul(y, w[i]));
    }
    kl_tensor loss = kl_sum_all(y);
    for (int i = 0; i < LAYERS; i++)
        g[i] = kl_grad(loss, w[i]);
    int64_t before = kl_counter("launches");
    if (flush)
        OK(kl_flush(device));
    for (int i = 0; i < LAYERS; i++)
        OK(kl_read(g[i], value, sizeof value));
    int64_t launches = kl_counter("launches") - before;
    kl_scope_end();
    kl_release(x);
    return launches;
}

static void test_gradients(kl_device device)
{
    int64_t together = launches_of_gradients(device, true), single = launches_of_gradients(device, false);
    if (!CHECK(single <= 2 * together))
        printf("    %lld launches one by one, %lld together\n", (long long)single, (long long)together);
}

/* What does not depend on what was computed before stays pending. */
static void test_only_what_is_needed(kl_device device)
{
    kl_tensor x = kl_ones(device, KL_F32, DIMS(64)), a = kl_exp(x), b = kl_add(a, a), c = kl_mul(a, x),
        other = kl_tanh(x);
    float v[64];
    kl_release(a);
    OK(kl_read(b, v, sizeof v));
    int64_t before = kl_counter("launches");
    OK(kl_read(c, v, sizeof v));
    CHECK(kl_counter("launches") == before + 1);
    OK(kl_read(other, v, sizeof v));
    CHECK(kl_counter("launches") == before + 2);
    kl_release(x), kl_release(b), kl_release(c), kl_release(other);
}

/* A read of a few elements of a large view leaves the view a view, though its handle is alive. */
static void test_views_stay_views(kl_device device)
{
    float v[2] = {0, 0};
    kl_tensor x = kl_ones(device, KL_F32, DIMS(1)), y = kl_add(x, x), wide = kl_expand(y, DIMS(64 << 20));
    kl_tensor few = kl_narrow(wide, 0, 5, 2);
    OK(kl_set_memory_limit(device, 32 << 20));
    OK(kl_read(few, v, sizeof v));
    CHECK(v[0] == 2 && v[1] == 2);
    kl_tensor more = kl_narrow(wide, 0, 7, 2);
    OK(kl_read(more, v, sizeof v));
    CHECK(v[0] == 2 && v[1] == 2);
    OK(kl_set_memory_limit(device, 0));
    kl_release(x), kl_release(y), kl_release(wide), kl_release(few), kl_release(more);
}

static void test_all(kl_device device)
{
    for (int i = 0; i < ROWS * IN; i++)
        data[i] = (float)(i * 37 % 101) / 100;
    for (int i = 0; i < ROWS; i++)
        label[i] = i % OUT;
    test_steps(device, "released", step_released, false);
    test_steps(device, "scoped", step_scoped, false);
    test_steps(device, "momentum", step_momentum, true);
    test_steps(device, "read first", step_read_first, false);
    test_gradients(device);
    if (!strcmp(kl_device_name(device), "ref")) /* the interpreter launches no kernels and computes every node whole */
        return;
    test_only_what_is_needed(device);
    test_views_stay_views(device);
}

int main(void)
{
    return on_devices(test_all);
}
