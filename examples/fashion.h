/* Fashion-MNIST (Debian: dataset-fashion-mnist) for examples: pictures of 28 x 28 bytes, of 10 kinds of clothes. */
#ifndef FASHION_H
#define FASHION_H
#include "flags.h"
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FASHION_SIDE = 28, FASHION_PIXELS = FASHION_SIDE * FASHION_SIDE, FASHION_CLASSES = 10 };
#define FASHION_FOLDER "/usr/share/datasets/fashion-mnist"

struct fashion {
    kl_idx images, labels;
    int64_t count;
};

/* part: "train" (60,000) or "t10k" (10,000).  The first `most` of them, or all where that is 0; false: kl_last_error */
static inline bool fashion_open(struct fashion *f, const char *folder, const char *part, int64_t max)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-images-idx3-ubyte.gz", folder, part);
    if (kl_idx_open(path, 3, (int64_t[]){-1, FASHION_SIDE, FASHION_SIDE}, &f->images) != KL_OK)
        return false;
    f->count = f->images.dim[0];
    snprintf(path, sizeof path, "%s/%s-labels-idx1-ubyte.gz", folder, part);
    if (kl_idx_open(path, 1, &f->count, &f->labels) != KL_OK)
        return false;
    f->count = max && max < f->count ? max : f->count;
    return true;
}

static inline void fashion_close(struct fashion *f)
{
    kl_idx_close(&f->images);
    kl_idx_close(&f->labels);
}

/* A batch in memory: the pixels of n images, then their labels. */
static inline kl_status fashion_fill(void *fashion, int64_t n, const int64_t *sample, void *batch, char *message)
{
    const struct fashion *f = fashion;
    uint8_t *pixels = batch, *labels = pixels + n * FASHION_PIXELS;
    (void)message;
    for (int64_t i = 0; i < n; i++) {
        memcpy(pixels + i * FASHION_PIXELS, f->images.data + sample[i] * FASHION_PIXELS, FASHION_PIXELS);
        labels[i] = f->labels.data[sample[i]];
    }
    return KL_OK;
}

/* Batches of one rank of `ranks`, shuffled; NULL: kl_last_error. */
static inline kl_loader *fashion_loader(struct fashion *f, int64_t batch, uint64_t seed, int rank, int ranks)
{
    kl_loader_options o = {.count = f->count, .batch = batch, .bytes = (size_t)batch * (FASHION_PIXELS + 1),
                           .fill = fashion_fill, .ctx = f, .seed = seed, .drop_last = true, .rank = rank,
                           .ranks = ranks};
    return kl_loader_new(&o);
}

/* The pixels of a batch as numbers in 0..1, [n, 1, 28, 28], and the labels, [n], in the open trace. */
static inline kl_tensor fashion_images(kl_device device, const uint8_t *pixels, int64_t n)
{
    int64_t dims[4] = {n, 1, FASHION_SIDE, FASHION_SIDE};
    return kl_mul_scalar(kl_cast(kl_input(device, KL_U8, 4, dims, pixels), KL_F32), 1.0 / 255);
}

static inline kl_tensor fashion_labels(kl_device device, const uint8_t *pixels, int64_t n)
{
    return kl_input(device, KL_U8, 1, &n, pixels + n * FASHION_PIXELS);
}

/* The share of images whose largest logit is at their label; below 0: kl_last_error. */
static inline double fashion_accuracy(const struct fashion *f, kl_device device,
                                      kl_tensor (*logits)(void *ctx, kl_tensor images), void *ctx)
{
    enum { CHUNK = 500 };
    int64_t right = 0;
    for (int64_t first = 0; first < f->count; first += CHUNK) {
        int64_t n = f->count - first < CHUNK ? f->count - first : CHUNK;
        kl_trace_begin("accuracy");
        kl_tensor guess = kl_argmax(logits(ctx, fashion_images(device, f->images.data + first * FASHION_PIXELS, n)), 1);
        kl_tensor label = kl_cast(kl_input(device, KL_U8, 1, &n, f->labels.data + first), KL_I32);
        kl_tensor hits = kl_keep(kl_sum_all(kl_cast(kl_eq(guess, label), KL_I32)));
        if (kl_trace_end() != KL_OK)
            return -1;
        right += kl_item_i64(hits);
        kl_release(hits);
    }
    return (double)right / (double)f->count;
}

#endif
