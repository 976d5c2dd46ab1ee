/* The gradient of each sample of a batch, by kl_vmap, and by a loop over the samples to compare with.
 *
 * A mean of gradients hides which samples they come from.  Clipping each one before the mean (as private training
 * does), or finding the samples that a network has most to learn from, needs every sample's own gradient.
 * sample_gradients below is written for one sample; kl_vmap records it once for all of them. */
#include <kiln/kiln.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 32, INPUTS = 64, HIDDEN = 48, CLASSES = 10, PARAMETERS = 4 };
static const int64_t shape[PARAMETERS][2] = {{INPUTS, HIDDEN}, {HIDDEN}, {HIDDEN, CLASSES}, {CLASSES}};
static const int rank[PARAMETERS] = {2, 1, 2, 1};

/* in: an image [INPUTS] and its label []; out: the loss's gradient in each parameter. */
static kl_status sample_gradients(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const kl_tensor *p = ctx;
    (void)nin;
    kl_tensor hidden = kl_relu(kl_linear(in[0], p[0], p[1]));
    kl_tensor logits = kl_unsqueeze(kl_linear(hidden, p[2], p[3]), 0);
    kl_tensor loss = kl_cross_entropy(logits, kl_unsqueeze(in[1], 0));
    for (uint32_t i = 0; i < nout; i++)
        out[i] = kl_grad(loss, p[i]);
    return KL_OK;
}

/* Each sample's gradients, [SAMPLES, ...]; the same by a loop that records the function once for each. */
static void by_loop(kl_tensor *p, kl_tensor images, kl_tensor labels, kl_tensor *out)
{
    kl_tensor each[PARAMETERS][SAMPLES];
    for (int64_t s = 0; s < SAMPLES; s++) {
        kl_tensor sample[2] = {kl_squeeze(kl_narrow(images, 0, s, 1), 0), kl_squeeze(kl_narrow(labels, 0, s, 1), 0)};
        kl_tensor g[PARAMETERS];
        sample_gradients(p, sample, 2, g, PARAMETERS);
        for (int i = 0; i < PARAMETERS; i++)
            each[i][s] = g[i];
    }
    for (int i = 0; i < PARAMETERS; i++)
        out[i] = kl_stack(SAMPLES, each[i], 0);
}

/* The largest difference between two tensors, in the open trace. */
static kl_tensor difference(kl_tensor a, kl_tensor b) { return kl_max(kl_abs(kl_sub(a, b)), 0, NULL, false); }

int main(void)
{
    static float image[SAMPLES][INPUTS];
    int32_t label[SAMPLES];
    kl_device dev = kl_device_default();
    kl_tensor p[PARAMETERS], g[PARAMETERS], loop[PARAMETERS];
    kl_run_info info;
    for (int s = 0; s < SAMPLES; s++) {
        label[s] = s % CLASSES;
        for (int i = 0; i < INPUTS; i++)
            image[s][i] = sinf(0.1f * (float)(i * (label[s] + 1)) + (float)s);
    }
    for (int i = 0; i < PARAMETERS; i++)
        p[i] = kl_mul_scalar(kl_randn(dev, KL_F32, rank[i], shape[i], (uint64_t)i), 0.2);

    /* The norm of each sample's gradient. */
    kl_trace_begin("per_sample");
    kl_tensor in[2] = {kl_input(dev, KL_F32, 2, (int64_t[]){SAMPLES, INPUTS}, image),
                       kl_input(dev, KL_I32, 1, (int64_t[]){SAMPLES}, label)};
    kl_vmap(sample_gradients, p, 2, in, NULL, PARAMETERS, NULL, KL_RANDOM_ERROR, g);
    kl_tensor squares = kl_zeros(dev, KL_F32, 1, (int64_t[]){SAMPLES});
    for (int i = 0; i < PARAMETERS; i++) {
        kl_keep(g[i]);
        squares = kl_add(squares, kl_sum(kl_square(kl_reshape(g[i], 2, (int64_t[]){SAMPLES, -1})), 1, (int[]){1},
                                         false));
    }
    kl_tensor norm = kl_keep(kl_sqrt(squares));
    if (kl_trace_end() != KL_OK || kl_trace_info(&info) != KL_OK) {
        fprintf(stderr, "%s\n", kl_last_error());
        return 1;
    }
    float n[SAMPLES];
    if (kl_read(norm, n, sizeof n) != KL_OK)
        return 1;
    int largest = 0;
    for (int s = 1; s < SAMPLES; s++)
        largest = n[s] > n[largest] ? s : largest;
    printf("kernels: %d\n", (int)info.kernels);
    printf("largest_gradient: %.4f\n", (double)n[largest]);

    kl_tensor off = kl_none;
    kl_trace_begin("loop");
    by_loop(p, kl_input(dev, KL_F32, 2, (int64_t[]){SAMPLES, INPUTS}, image),
            kl_input(dev, KL_I32, 1, (int64_t[]){SAMPLES}, label), loop);
    for (int i = 0; i < PARAMETERS; i++)
        off = i ? kl_maximum(off, difference(g[i], loop[i])) : difference(g[i], loop[i]);
    kl_keep(off);
    if (kl_trace_end() != KL_OK || kl_trace_info(&info) != KL_OK) {
        fprintf(stderr, "%s\n", kl_last_error());
        return 1;
    }
    printf("kernels_of_the_loop: %d\n", (int)info.kernels);
    printf("equal: %s\n", kl_item_f32(off) < 1e-5f ? "yes" : "no");
    return 0;
}
