/* kl_scan: a recurrence over time, recorded once and run for each element.  A moving average
 *
 *     y_t = decay y_(t-1) + (1 - decay) x_t
 *
 * of noise is made with decay 0.9, and its decay is then found again by gradients that flow back through time. */
#include <kiln/kiln.h>
#include <stdio.h>

enum { LENGTH = 500, STEPS = 150 };

/* in[0]: y_(t-1), in[1]: x_t; *ctx: decay.  out[0]: y_t, carried to the next element, out[1]: the same, stacked. */
static kl_status average(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    kl_tensor decay = *(kl_tensor *)ctx;
    out[0] = kl_add(in[1], kl_mul(decay, kl_sub(in[0], in[1])));
    out[1] = out[0];
    return KL_OK;
}

/* x: [LENGTH] -> all y: [LENGTH]. */
static kl_tensor filtered(kl_device dev, kl_tensor decay, kl_tensor x)
{
    kl_tensor start = kl_zeros(dev, KL_F32, 0, NULL), out[2];
    kl_scan(average, &decay, LENGTH, 1, &start, 1, &x, 1, false, out);
    return out[1];
}

int main(void)
{
    kl_device dev = kl_device_default();
    kl_tensor x = kl_randn(dev, KL_F32, 1, (int64_t[]){LENGTH}, 1);
    kl_tensor wanted = filtered(dev, kl_full(dev, KL_F32, 0, NULL, 0.9), x);
    kl_tensor logit = kl_zeros(dev, KL_F32, 0, NULL); /* decay = sigmoid(logit) is within 0 and 1 */
    kl_requires_grad(logit);
    for (int step = 0; step < STEPS; step++) {
        kl_trace_begin("fit_decay");
        kl_tensor error = kl_sub(filtered(dev, kl_sigmoid(logit), x), wanted);
        kl_tensor loss = kl_mean(kl_square(error), 1, (int[]){0}, false);
        kl_assign(logit, kl_sub(logit, kl_mul_scalar(kl_grad(loss, logit), 20)));
        if (kl_trace_end() != KL_OK) {
            fprintf(stderr, "%s\n", kl_last_error());
            return 1;
        }
    }
    printf("decay: %.3f\n", (double)kl_item_f32(kl_sigmoid(logit)));
    return 0;
}
