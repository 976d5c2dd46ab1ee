/* A program that trains without Kiln's compiler: its step was compiled beforehand, by `kiln compile mlp_step.kir`, and
 * all that it links of Kiln is the small runtime, libkiln-aot.a.  The images are made up: each class has a pattern of
 * its own, under noise. */
#include "mlp_step.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 128, PIXELS = 784, CLASSES = 10, STEPS = 40 };

static uint32_t random_state = 1;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * UINT32_C(1664525) + UINT32_C(1013904223);
    return (uint32_t)((uint64_t)random_state * n >> 32);
}

static void make_batch(uint8_t *images, uint8_t *labels)
{
    static uint8_t pattern[CLASSES][PIXELS];
    if (!pattern[0][0])
        for (int i = 0; i < CLASSES * PIXELS; i++)
            pattern[i / PIXELS][i % PIXELS] = (uint8_t)(1 + random_below(128));
    for (int i = 0; i < BATCH; i++) {
        labels[i] = (uint8_t)random_below(CLASSES);
        for (int k = 0; k < PIXELS; k++)
            images[i * PIXELS + k] = (uint8_t)(pattern[labels[i]][k] + random_below(128));
    }
}

/* Uniform numbers with the variance that He et al. give layers of ReLUs; limit 0: zeros. */
static float *parameter(size_t n, int fan_in)
{
    float *p = calloc(n, sizeof *p);
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    double limit = fan_in ? sqrt(6.0 / fan_in) : 0;
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(limit * (random_below(1 << 24) / (double)(1 << 23) - 1));
    return p;
}

#define WEIGHTS(name, fan_in)                                             \
    .state_##name = parameter(mlp_step_count_state_##name, fan_in),       \
    .state_m_##name = parameter(mlp_step_count_state_##name, 0),          \
    .state_v_##name = parameter(mlp_step_count_state_##name, 0)

int main(void)
{
    static uint8_t images[mlp_step_count_in_images], labels[mlp_step_count_in_labels];
    const double beta1 = 0.9, beta2 = 0.999, rate = 1e-3;
    float loss = 0;
    mlp_step_args a = {
        WEIGHTS(w1, PIXELS), WEIGHTS(b1, 0), WEIGHTS(w2, 512), WEIGHTS(b2, 0), WEIGHTS(w3, 512), WEIGHTS(b3, 0),
        .in_images = images, .in_labels = labels, .out_0 = &loss, .slot_scale = 1.0f / 255, .slot_eps = 1e-8f,
        .slot_beta1 = (float)beta1, .slot_gain1 = (float)(1 - beta1),
        .slot_beta2 = (float)beta2, .slot_gain2 = (float)(1 - beta2),
    };
    a.workspace_bytes = mlp_step_workspace_bytes();
    a.workspace = malloc(a.workspace_bytes); /* once, not at each step */
    for (int step = 1; step <= STEPS; step++) {
        make_batch(images, labels);
        a.slot_rate = (float)(rate / (1 - pow(beta1, step)));
        a.slot_root = (float)(1 / sqrt(1 - pow(beta2, step)));
        int status = mlp_step_run(&a);
        if (status) {
            fprintf(stderr, "%s\n", kiln_aot_error(status));
            return 1;
        }
        if (step % 10 == 0)
            printf("step %d: loss %.4f\n", step, loss);
    }
    float *all[] = {a.state_w1, a.state_m_w1, a.state_v_w1, a.state_b1, a.state_m_b1, a.state_v_b1,
                    a.state_w2, a.state_m_w2, a.state_v_w2, a.state_b2, a.state_m_b2, a.state_v_b2,
                    a.state_w3, a.state_m_w3, a.state_v_w3, a.state_b3, a.state_m_b3, a.state_v_b3};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(a.workspace);
    return loss < 0.1f ? 0 : 1;
}
