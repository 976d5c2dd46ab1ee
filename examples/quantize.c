/* Post-training quantization: trains a network on Fashion-MNIST in floats, takes its weights to 8 bits and, beside
 * that, to 4, and tells what becomes of its accuracy, size and speed.
 *
 * Read quantized_logits: weights have a scale for each output, activations one that an observer has chosen on a few
 * training images before.  Argument: the folder of the data. */
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DATA_FOLDER "/usr/share/datasets/fashion-mnist"
enum { SIDE = 28, PIXELS = SIDE * SIDE, HIDDEN = 256, CLASSES = 10, LAYERS = 2, BATCH = 128, CHUNK = 1000,
       CALIBRATION = 2 * CHUNK };

struct model {
    kl_device device;
    kl_tensor weight[LAYERS], bias[LAYERS]; /* floats */
    kl_tensor small[LAYERS];                /* the weights quantized; kl_none: not yet */
    kl_observer seen[LAYERS];               /* what goes into each layer */
};

static kl_tensor pixels(kl_device device, const uint8_t *images, int64_t n)
{
    kl_tensor bytes = kl_input(device, KL_U8, 2, (int64_t[]){n, PIXELS}, images);
    return kl_mul_scalar(kl_cast(bytes, KL_F32), 1.0 / 255);
}

/* observe: the ranges of what goes into the layers are taken down. */
static kl_tensor float_logits(struct model *m, kl_tensor x, bool observe)
{
    for (int i = 0; i < LAYERS; i++) {
        if (observe)
            kl_observer_update(&m->seen[i], x);
        x = kl_linear(x, m->weight[i], m->bias[i]);
        x = i + 1 < LAYERS ? kl_relu(x) : x;
    }
    return x;
}

/* Products of integers, scaled to floats once each. */
static kl_tensor quantized_logits(const struct model *m, kl_tensor x)
{
    for (int i = 0; i < LAYERS; i++) {
        x = kl_linear(kl_observer_quantize(&m->seen[i], x), m->small[i], m->bias[i]);
        x = i + 1 < LAYERS ? kl_relu(x) : x;
    }
    return x;
}

/* What a plain or quantized tensor is stored as. */
static int64_t bytes_of(kl_tensor t)
{
    int64_t sum = 0;
    uint32_t n = kl_layer_parts(t);
    if (!n)
        return kl_numel(t) * (int64_t)kl_dtype_size(kl_dtype_of(t));
    for (uint32_t i = 0; i < n && i < 2; i++) { /* integers and scales: symmetric weights have no zero points */
        kl_tensor part = kl_layer_part(t, i);
        sum += bytes_of(part);
        kl_release(part);
    }
    return sum;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool model_init(struct model *m, kl_device device)
{
    static const int64_t width[LAYERS + 1] = {PIXELS, HIDDEN, CLASSES};
    m->device = device;
    for (int i = 0; i < LAYERS; i++) {
        const int64_t dims[] = {width[i], width[i + 1]};
        m->weight[i] = kl_mul_scalar(kl_randn(device, KL_F32, 2, dims, (uint64_t)i), i ? 0.09 : 0.05);
        m->bias[i] = kl_zeros(device, KL_F32, 1, dims + 1);
        m->small[i] = kl_none;
        kl_observer_init(&m->seen[i], device, (kl_qscheme){.type = KL_Q_U8}, KL_F32, 2, (int64_t[]){BATCH, width[i]});
    }
    return kl_check(m->bias[LAYERS - 1]) == KL_OK;
}

static bool train(struct model *m, const kl_idx *images, const kl_idx *labels)
{
    kl_tensor all[] = {m->weight[0], m->weight[1], m->bias[0], m->bias[1]};
    kl_optimizer *adam = kl_adam(4, all, NULL);
    int64_t steps = labels->count / BATCH;
    bool ok = true;
    for (int64_t s = 0; s < steps && ok; s++) {
        kl_trace_begin("train_step");
        kl_tensor logits = float_logits(m, pixels(m->device, images->data + s * BATCH * PIXELS, BATCH), false);
        kl_tensor want = kl_input(m->device, KL_U8, 1, (int64_t[]){BATCH}, labels->data + s * BATCH);
        kl_optimizer_step(adam, kl_cross_entropy(logits, want), 0.001 * (double)(steps - s) / (double)steps * 2);
        ok = kl_trace_end() == KL_OK;
    }
    kl_optimizer_free(adam);
    return ok;
}

/* Takes down the ranges, then quantizes the weights, in blocks of 16 inputs where they have 4 bits. */
static bool quantize(struct model *m, const kl_idx *images, kl_qtype type)
{
    for (int64_t first = 0; first < CALIBRATION; first += CHUNK) {
        kl_trace_begin("calibrate");
        float_logits(m, pixels(m->device, images->data + first * PIXELS, CHUNK), true);
        if (kl_trace_end() != KL_OK)
            return false;
    }
    for (int i = 0; i < LAYERS; i++) {
        kl_qscheme each = {.type = type, .per_axis = true, .axis = 1};
        if (type == KL_Q_I4)
            each = (kl_qscheme){.type = type, .axis = 0, .block = 16};
        kl_release(m->small[i]);
        m->small[i] = kl_to_quantized(m->weight[i], each, kl_none, kl_none);
    }
    return kl_check(m->small[LAYERS - 1]) == KL_OK;
}

/* The share of images recognised, and milliseconds a thousand of them take, the best of all; false: see
 * kl_last_error. */
static bool measure(struct model *m, const kl_idx *images, const kl_idx *labels, bool integers, double *accuracy,
                    double *ms)
{
    int64_t right = 0;
    *ms = 1e9;
    kl_no_grad_begin(); /* so that integers are all there is of a product */
    for (int64_t first = 0; first + CHUNK <= labels->count; first += CHUNK) {
        double began = seconds();
        kl_trace_begin(integers ? "integers" : "floats");
        kl_tensor x = pixels(m->device, images->data + first * PIXELS, CHUNK);
        kl_tensor guess = kl_argmax(integers ? quantized_logits(m, x) : float_logits(m, x, false), 1);
        kl_tensor want = kl_input(m->device, KL_U8, 1, (int64_t[]){CHUNK}, labels->data + first);
        kl_tensor hits = kl_keep(kl_sum_all(kl_cast(kl_eq(guess, kl_cast(want, KL_I32)), KL_I32)));
        if (kl_trace_end() != KL_OK) {
            kl_no_grad_end();
            return false;
        }
        double took = 1e3 * (seconds() - began);
        *ms = took < *ms ? took : *ms;
        right += kl_item_i64(hits);
        kl_release(hits);
    }
    kl_no_grad_end();
    *accuracy = (double)right / (double)(labels->count / CHUNK * CHUNK);
    return true;
}

static void report(const char *name, const kl_tensor *weight, double accuracy, double ms)
{
    int64_t bytes = 0;
    for (int i = 0; i < LAYERS; i++)
        bytes += bytes_of(weight[i]);
    printf("%s: accuracy %.4f, weights %lld bytes, 1000 images %.2f ms\n", name, accuracy, (long long)bytes, ms);
}

int main(int argc, char **argv)
{
    static const char *const file[4] = {"train-images-idx3", "train-labels-idx1", "t10k-images-idx3",
                                        "t10k-labels-idx1"};
    kl_idx data[4];
    bool ok = true;
    for (int i = 0; i < 4; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s-ubyte.gz", argc > 1 ? argv[1] : DATA_FOLDER, file[i]);
        ok = kl_idx_open(path, i % 2 ? 1 : 3, i % 2 ? NULL : (int64_t[]){-1, SIDE, SIDE}, &data[i]) == KL_OK && ok;
    }
    struct model m;
    double accuracy, ms;
    ok = ok && model_init(&m, kl_device_default()) && train(&m, &data[0], &data[1]);
    ok = ok && measure(&m, &data[2], &data[3], false, &accuracy, &ms);
    if (ok)
        report("floats", m.weight, accuracy, ms);
    for (int i = 0; i < 2 && ok; i++) {
        double small, faster;
        ok = quantize(&m, &data[0], i ? KL_Q_I4 : KL_Q_I8) && measure(&m, &data[2], &data[3], true, &small, &faster);
        if (ok) {
            report(i ? "4 bits" : "8 bits", m.small, small, faster);
            printf("%s: %+.2f points, %.2f times the time\n", i ? "4 bits" : "8 bits", 100 * (small - accuracy),
                   faster / ms);
        }
    }
    if (!ok)
        fprintf(stderr, "%s\n", kl_last_error());
    for (int i = 0; i < 4; i++)
        kl_idx_close(&data[i]);
    return !ok;
}
