/* Fits the four rates of a Lotka-Volterra model to observed populations: a differential equation inside of a
 * minimization, whose gradient is that of the equation's adjoint.  Prints the rates; those that made the observations
 * are 1.1, 0.4, 0.1 and 0.4. */
#include <kiln/solve/solve.h>
#include <stdio.h>

enum { TIMES = 12 };

/* prey' = a prey - b prey predators, predators' = c prey predators - d predators; params[0]: the rates' logarithms */
static kl_status populations(void *ctx, kl_tensor t, kl_tensor y, int64_t n, const kl_tensor *params, kl_tensor *dy)
{
    (void)ctx, (void)t, (void)n;
    kl_tensor rate = kl_exp(params[0]), part[2];
    kl_tensor prey = kl_narrow(y, 0, 0, 1), predators = kl_narrow(y, 0, 1, 1), meetings = kl_mul(prey, predators);
    part[0] = kl_sub(kl_mul(kl_narrow(rate, 0, 0, 1), prey), kl_mul(kl_narrow(rate, 0, 1, 1), meetings));
    part[1] = kl_sub(kl_mul(kl_narrow(rate, 0, 2, 1), meetings), kl_mul(kl_narrow(rate, 0, 3, 1), predators));
    *dy = kl_concat(2, part, 0);
    return KL_OK;
}

/* The sum of squared distances from what was observed; *ctx: the start, the times, the populations. */
static kl_status distance(void *ctx, kl_tensor log_rates, int64_t n, const kl_tensor *params, kl_tensor *sum)
{
    (void)n, (void)params;
    const kl_tensor *given = ctx;
    kl_tensor y = kl_odeint(populations, NULL, given[0], given[1], 1, &log_rates, NULL);
    *sum = kl_sum_all(kl_square(kl_sub(y, given[2])));
    return KL_OK;
}

int main(void)
{
    const double truth[4] = {1.1, 0.4, 0.1, 0.4}, guess[4] = {1, 0.5, 0.2, 0.5}, start[2] = {10, 5};
    kl_device cpu = kl_device_named("cpu");
    double found[4];
    kl_trace_begin("fit");
    kl_tensor log_truth = kl_log(kl_input(cpu, KL_F64, 1, (int64_t[]){4}, truth)), given[3];
    given[0] = kl_input(cpu, KL_F64, 1, (int64_t[]){2}, start);
    given[1] = kl_linspace(cpu, KL_F64, 0, 10, TIMES);
    given[2] = kl_odeint(populations, NULL, given[0], given[1], 1, &log_truth, NULL);
    kl_tensor x0 = kl_log(kl_input(cpu, KL_F64, 1, (int64_t[]){4}, guess));
    kl_tensor rates = kl_keep(kl_exp(kl_minimize(distance, given, x0, 0, NULL, &(kl_solve_options){1e-6, 200})));
    if (kl_trace_end() != KL_OK || kl_read(rates, found, sizeof found) != KL_OK) {
        fprintf(stderr, "%s\n", kl_last_error());
        return 1;
    }
    printf("rates %.4f %.4f %.4f %.4f\n", found[0], found[1], found[2], found[3]);
    kl_release(rates);
    return 0;
}
