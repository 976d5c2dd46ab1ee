/* Optimizers against the same rules written in double, on every device; schedules that compile once; errors. */
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N = 5, STEPS = 20 };

static int passed, failed;

static void check(bool ok, const char *device, const char *what, const char *detail)
{
    if (ok)
        passed++;
    else
        failed++, printf("FAIL %s: %s: %s\n", device, what, detail);
}

static const double start[N] = {0.5, -1, 2, 0, 3}, target[N] = {1, 1, -1, 0.25, -2};

static double rate(int step) { return 0.05 / (1 + 0.1 * step); }

/* p after STEPS steps on sum((p - target)^2), in double. */
static void expected_adam(const kl_adam_options *a, double *p)
{
    double m[N] = {0}, v[N] = {0};
    memcpy(p, start, sizeof start);
    for (int t = 1; t <= STEPS; t++)
        for (int i = 0; i < N; i++) {
            double g = 2 * (p[i] - target[i]), lr = rate(t);
            m[i] = a->beta1 * m[i] + (1 - a->beta1) * g;
            v[i] = a->beta2 * v[i] + (1 - a->beta2) * g * g;
            double mh = m[i] / (1 - pow(a->beta1, t)), vh = v[i] / (1 - pow(a->beta2, t));
            p[i] = (1 - lr * a->weight_decay) * p[i] - lr * mh / (sqrt(vh) + a->eps);
        }
}

static void expected_sgd(const kl_sgd_options *s, double *p)
{
    double v[N] = {0};
    memcpy(p, start, sizeof start);
    for (int t = 1; t <= STEPS; t++)
        for (int i = 0; i < N; i++) {
            double g = 2 * (p[i] - target[i]) + s->weight_decay * p[i];
            v[i] = s->momentum * v[i] + g;
            p[i] -= rate(t) * v[i];
        }
}

static kl_tensor parameter(kl_device dev)
{
    float f[N];
    for (int i = 0; i < N; i++)
        f[i] = (float)start[i];
    return kl_input(dev, KL_F32, 1, (int64_t[]){N}, f);
}

static kl_tensor distance(kl_device dev, kl_tensor p)
{
    float f[N];
    for (int i = 0; i < N; i++)
        f[i] = (float)target[i];
    return kl_sum_all(kl_square(kl_sub(p, kl_input(dev, KL_F32, 1, (int64_t[]){N}, f))));
}

static kl_status step(kl_device dev, kl_optimizer *o, kl_tensor p, double lr)
{
    kl_trace_begin("step");
    kl_optimizer_step(o, distance(dev, p), lr);
    return kl_trace_end();
}

/* Runs the optimizer made by the caller and compares; the second step on must know its program. */
static void compare(kl_device dev, const char *what, kl_optimizer *o, kl_tensor p, const double *expect)
{
    const char *name = kl_device_name(dev);
    int64_t built = 0;
    kl_status s = o ? KL_OK : KL_ERR_ARGUMENT;
    for (int t = 1; t <= STEPS && s == KL_OK; t++) {
        s = step(dev, o, p, rate(t));
        if (t == 1)
            built = kl_counter("graphs_built");
    }
    float got[N];
    if (s != KL_OK || kl_read(p, got, sizeof got) != KL_OK) {
        check(false, name, what, kl_last_error());
    } else {
        char line[96];
        for (int i = 0; i < N; i++) {
            snprintf(line, sizeof line, "element %d is %.9g, expected %.9g", i, (double)got[i], expect[i]);
            check(fabs(got[i] - expect[i]) <= 1e-5 * (1 + fabs(expect[i])), name, what, line);
        }
        check(kl_counter("graphs_built") == built, name, what, "later steps built programs");
        check(kl_optimizer_steps(o) == STEPS, name, what, "steps are miscounted");
    }
    kl_optimizer_free(o);
    kl_release(p);
}

static void rules(kl_device dev)
{
    double expect[N];
    kl_tensor p;
    expected_adam(&(kl_adam_options){.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}, expect);
    p = parameter(dev);
    compare(dev, "adam", kl_adam(1, &p, NULL), p, expect);

    const kl_adam_options decay = {.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1};
    expected_adam(&decay, expect);
    p = parameter(dev);
    compare(dev, "adam with decay", kl_adam(1, &p, &decay), p, expect);

    /* Averages that are nearer to the newest gradient, and of it alone. */
    const kl_adam_options quick = {.beta1 = 0.25, .beta2 = 0.4, .eps = 1e-8};
    expected_adam(&quick, expect);
    p = parameter(dev);
    compare(dev, "adam with small betas", kl_adam(1, &p, &quick), p, expect);

    const kl_adam_options newest = {.beta1 = -1, .beta2 = 0.999, .eps = 1e-8}; /* which means 0 */
    expected_adam(&(kl_adam_options){.beta1 = 0, .beta2 = 0.999, .eps = 1e-8}, expect);
    p = parameter(dev);
    compare(dev, "adam without a first moment", kl_adam(1, &p, &newest), p, expect);

    expected_sgd(&(kl_sgd_options){0}, expect);
    p = parameter(dev);
    compare(dev, "sgd", kl_sgd(1, &p, NULL), p, expect);

    const kl_sgd_options momentum = {.momentum = 0.9, .weight_decay = 0.01};
    expected_sgd(&momentum, expect);
    p = parameter(dev);
    compare(dev, "sgd with momentum and decay", kl_sgd(1, &p, &momentum), p, expect);
}

static void errors(kl_device dev)
{
    const char *name = kl_device_name(dev);
    kl_tensor p = parameter(dev), whole = kl_zeros(dev, KL_I32, 1, (int64_t[]){N});
    kl_optimizer *o = kl_adam(1, &p, NULL);
    float before[N], after[N];
    check(o && kl_read(p, before, sizeof before) == KL_OK, name, "a good optimizer", kl_last_error());

    check(!kl_adam(1, NULL, NULL) && kl_last_error_code() == KL_ERR_ARGUMENT, name, "no parameters", "accepted");
    check(!kl_sgd(-1, &p, NULL) && kl_last_error_code() == KL_ERR_ARGUMENT, name, "-1 parameters", "accepted");
    check(!kl_adam(1, &whole, NULL) && kl_last_error_code() == KL_ERR_TYPE, name, "an integer parameter",
          kl_last_error());
    check(!kl_adam(1, &kl_none, NULL) && kl_last_error_code() == KL_ERR_HANDLE, name, "no handle", kl_last_error());
    check(kl_optimizer_step(o, p, 0.1) == KL_ERR_TRACE, name, "a step outside a trace", "accepted");
    check(kl_optimizer_set_steps(o, -1) == KL_ERR_ARGUMENT, name, "a negative number of steps", "accepted");
    check(kl_optimizer_steps(o) == 0, name, "failed steps", "counted");

    kl_trace_begin("no optimizer");
    kl_optimizer_step(NULL, distance(dev, p), 0.1);
    check(kl_trace_end() == KL_ERR_ARGUMENT && strstr(kl_last_error(), "api_optim.c"), name, "no optimizer",
          kl_last_error());

    kl_trace_begin("bad loss");
    kl_optimizer_step(o, kl_add(p, whole), 0.1);
    check(kl_trace_end() == KL_ERR_TYPE, name, "a poison loss", kl_last_error());
    check(kl_optimizer_steps(o) == 0, name, "a poison loss", "counted");
    check(kl_read(p, after, sizeof after) == KL_OK && !memcmp(before, after, sizeof before), name, "a failed step",
          "changed the parameter");

    check(step(dev, o, p, 0.1) == KL_OK, name, "a step after errors", kl_last_error());
    check(kl_read(p, after, sizeof after) == KL_OK && memcmp(before, after, sizeof before), name, "a good step",
          "changed nothing");
    kl_optimizer_free(o);
    kl_optimizer_free(NULL);
    kl_release(p);
    kl_release(whole);
}

int main(void)
{
    static const char *const name[] = {"ref", "cpu"};
    int devices = 0;
    for (int i = 0; i < 2; i++) {
        kl_device dev = kl_device_named(name[i]);
        if (!dev.id)
            continue; /* not in this build */
        devices++;
        rules(dev);
        errors(dev);
    }
    check(devices > 0, "any", "devices", "none works");
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
