/* A network that solves a differential equation: it is trained until it fulfils
 *
 *     u'' + 2 d u' + w^2 u = 0,   u(0) = 1,   u'(0) = 0          (a damped oscillator)
 *
 * at points of 0..T, without ever seeing a solution (Raissi et al. 2019).  u' and u'' are gradients of the network in
 * its input; the step differentiates the equation's error once more, in the parameters. */
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS = 128, WIDTH = 32 };

static const double damping = 0.4, frequency = 3, end = 3;

struct run {
    kl_device device;
    kl_params *params;
    kl_nn_linear layer[3];
    kl_optimizer *adam;
    int64_t steps;
};

/* t [n, 1] -> u(t) [n, 1], which is 1 + t^2 times the network: so it has u(0) = 1 and u'(0) = 0. */
static kl_tensor solution(const struct run *r, kl_tensor t)
{
    kl_tensor x = kl_tanh(kl_nn_linear_forward(&r->layer[0], t));
    x = kl_nn_linear_forward(&r->layer[2], kl_tanh(kl_nn_linear_forward(&r->layer[1], x)));
    return kl_add_scalar(kl_mul(kl_square(t), x), 1);
}

/* The equation's mean squared error at n points. */
static kl_tensor equation_error(const struct run *r, kl_tensor t)
{
    kl_requires_grad(t);
    kl_tensor u = solution(r, t);
    kl_tensor u1 = kl_grad(kl_sum_all(u), t);  /* each u depends on its own t alone: the sum's gradient is u' */
    kl_tensor u2 = kl_grad(kl_sum_all(u1), t);
    kl_tensor error = kl_add(u2, kl_mul_scalar(u1, 2 * damping));
    error = kl_add(error, kl_mul_scalar(u, frequency * frequency));
    return kl_mean(kl_square(error), 2, (int[]){0, 1}, false);
}

static kl_status train_step(void *ctx, int64_t i, double rate, double *loss)
{
    struct run *r = ctx;
    kl_trace_begin("train_step");
    /* other points in every step */
    kl_tensor t = kl_mul_scalar(kl_rand(r->device, KL_F32, 2, (int64_t[]){POINTS, 1}, (uint64_t)i), end);
    kl_tensor error = kl_keep(equation_error(r, t));
    kl_optimizer_step(r->adam, error, rate);
    kl_status s = kl_trace_end();
    if (s == KL_OK)
        *loss = (double)kl_item_f32(error);
    kl_release(error);
    return s;
}

static double rate_of(void *ctx, int64_t i)
{
    return kl_rate_warmup(i, 50) * kl_rate_cosine(i, ((const struct run *)ctx)->steps, 5e-3, 1e-5);
}

static double exact(double t)
{
    double w = sqrt(frequency * frequency - damping * damping);
    return exp(-damping * t) * (cos(w * t) + damping / w * sin(w * t));
}

/* The largest distance from the exact solution. */
static bool compare(const struct run *r)
{
    float t[POINTS], u[POINTS];
    double worst = 0;
    for (int i = 0; i < POINTS; i++)
        t[i] = (float)(end * i / (POINTS - 1));
    kl_tensor y = solution(r, kl_input(r->device, KL_F32, 2, (int64_t[]){POINTS, 1}, t));
    if (kl_read(y, u, sizeof u) != KL_OK)
        return false;
    for (int i = 0; i < POINTS; i++) {
        worst = fmax(worst, fabs((double)u[i] - exact((double)t[i])));
        if (i % 16 == 0)
            printf("u(%.3f) = %+.4f, exactly %+.4f\n", (double)t[i], (double)u[i], exact((double)t[i]));
    }
    printf("largest error: %.5f\n", worst);
    return true;
}

int main(int argc, char **argv)
{
    static const int64_t width[4] = {1, WIDTH, WIDTH, 1};
    struct run r = {.device = kl_device_default(), .steps = argc > 1 ? atoll(argv[1]) : 20000};
    int64_t n = 0;
    bool ok = (r.params = kl_params_new(r.device, KL_F32, 1)) != NULL;
    for (int i = 0; i < 3 && ok; i++) {
        char name[16];
        snprintf(name, sizeof name, "fc%d", i);
        ok = kl_nn_linear_init(&r.layer[i], r.params, name, width[i], width[i + 1], true) == KL_OK;
    }
    /* for tanh, larger values than modules begin with */
    for (int i = 0; i < 3 && ok; i++) {
        char name[32];
        kl_init init = {.kind = KL_INIT_XAVIER_NORMAL, .gain = KL_GAIN_TANH, .fan_in = width[i],
                        .fan_out = width[i + 1]};
        snprintf(name, sizeof name, "fc%d.weight", i);
        ok = kl_params_reset(r.params, name, &init) == KL_OK;
    }
    const kl_tensor *list = ok ? kl_params_trained(r.params, &n) : NULL;
    r.adam = list ? kl_adam(n, list, NULL) : NULL;
    kl_train_loop loop = {.steps = r.steps, .step = train_step, .rate = rate_of, .ctx = &r};
    ok = r.adam && kl_train(&loop) == KL_OK && compare(&r);
    if (!ok)
        fprintf(stderr, "physics: %s\n", kl_last_error());
    kl_optimizer_free(r.adam);
    kl_params_free(r.params);
    return ok ? 0 : 1;
}
