/* Fine-tunes a model.
 *
 *     fine_tune --model net.onnx
 *     fine_tune --model llama.gguf --text book.txt --write adapters.safetensors
 *
 * With --text the model is a language model, whose weights stay as they are stored, quantized or not: adapters of low
 * rank beside them learn the text, which chat.c uses by --adapters (examples/llm/tune.c).
 *
 * Else it is a network for pictures that knows five of Fashion-MNIST's ten kinds and learns the other five from few
 * examples, its last layer first, the others at a tenth of the rate.
 *
 * Without --model it trains such a network first and writes it, so that there is one to import.  Any classifier of
 * f32[batch, 1, 28, 28] with a last weight of ten columns will do. */
#define _POSIX_C_SOURCE 200809L
#include "fashion.h"
#include "llm/llm.h"
#include <kiln/extend.h>
#include <kiln/onnx.h>
#include <unistd.h>

enum { KNOWN = 5, HIDDEN = 256, MAX_WEIGHTS = 64 };

struct options { double batch, images, steps, rate, seed; const char *data, *model, *write; };

struct run {
    struct options opt;
    struct fashion train, test;
    kl_device device;
    kl_loader *loader;
    kl_model *model;
};

/* ---- a model to begin with ---- */

static kl_nn_linear first[2];

static kl_status predict(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    int64_t dims[KL_MAX_RANK];
    (void)ctx, (void)nin, (void)nout;
    kl_shape(in[0], dims);
    kl_tensor x = kl_reshape(in[0], 2, (int64_t[]){dims[0], FASHION_PIXELS});
    out[0] = kl_nn_linear_forward(&first[1], kl_relu(kl_nn_linear_forward(&first[0], x)));
    return KL_OK;
}

/* Labels of the first five kinds, as a mask with a 1 for each image of these. */
static kl_tensor known(kl_tensor labels)
{
    return kl_cast(kl_lt(kl_cast(labels, KL_F32), kl_scalar(kl_device_of(labels), KL_F32, KNOWN)), KL_F32);
}

/* Trains on the first five kinds alone, and writes the network. */
static bool write_model(struct run *r, const char *path)
{
    kl_params *params = kl_params_new(r->device, KL_F32, (uint64_t)r->opt.seed);
    int64_t n = 0;
    bool ok = kl_nn_linear_init(&first[0], params, "hidden", FASHION_PIXELS, HIDDEN, true) == KL_OK &&
              kl_nn_linear_init(&first[1], params, "head", HIDDEN, FASHION_CLASSES, true) == KL_OK;
    const kl_tensor *list = kl_params_trained(params, &n);
    kl_optimizer *adam = ok ? kl_adam(n, list, NULL) : NULL;
    kl_batch batch;
    for (int i = 0; i < (int)r->opt.steps && adam && ok; i++) {
        ok = kl_loader_next(r->loader, &batch) == KL_OK;
        kl_trace_begin("first_step");
        kl_tensor x = fashion_images(r->device, batch.data, batch.count), y;
        kl_tensor labels = fashion_labels(r->device, batch.data, batch.count), mask = known(labels);
        predict(NULL, &x, 1, &y, 1);
        /* the mean over the images that are of these kinds */
        kl_tensor log_p = kl_sum(kl_mul(kl_log_softmax(y, 1), kl_one_hot(labels, FASHION_CLASSES, KL_F32)), 1,
                                 (int[]){1}, false);
        kl_optimizer_step(adam, kl_neg(kl_div(kl_sum_all(kl_mul(log_p, mask)), kl_sum_all(mask))), r->opt.rate);
        ok &= kl_trace_end() == KL_OK;
    }
    kl_tensor like = kl_zeros(r->device, KL_F32, 4, (int64_t[]){(int64_t)r->opt.batch, 1, FASHION_SIDE, FASHION_SIDE});
    ok = ok && adam && kl_model_save(path, predict, NULL, 1, &like, (const char *[]){"images"}, 1,
                                     (const char *[]){"logits"}) == KL_OK;
    kl_release(like);
    kl_optimizer_free(adam);
    kl_params_free(params);
    return ok;
}

/* ---- fine-tuning ---- */

static kl_tensor logits(const struct run *r, kl_tensor images)
{
    kl_tensor y = kl_none;
    return kl_model_call(r->model, 1, &images, 1, &y) == KL_OK ? y : kl_poison();
}

/* The model takes batches of one size: the test images in such. */
static bool measure(const struct run *r, const char *when)
{
    int64_t n = (int64_t)r->opt.batch, right = 0, seen = 0;
    for (int64_t at = 0; at + n <= r->test.count; at += n, seen += n) {
        kl_trace_begin("accuracy");
        kl_tensor images = fashion_images(r->device, r->test.images.data + at * FASHION_PIXELS, n);
        kl_tensor guess = kl_argmax(logits(r, images), 1);
        kl_tensor label = kl_cast(kl_input(r->device, KL_U8, 1, &n, r->test.labels.data + at), KL_I32);
        kl_tensor hits = kl_keep(kl_sum_all(kl_cast(kl_eq(guess, label), KL_I32)));
        if (kl_trace_end() != KL_OK)
            return false;
        right += kl_item_i64(hits);
        kl_release(hits);
    }
    printf("accuracy %s: %.4f\n", when, seen ? (double)right / (double)seen : 0.0);
    return true;
}

/* The last layer's weights learn at the full rate, the others, which know something, at a tenth of it. */
static bool fine_tune(struct run *r)
{
    kl_tensor weight[MAX_WEIGHTS], g[MAX_WEIGHTS];
    int n = 0, body = 0, steps = (int)r->opt.steps;
    for (int last = 0; last < 2; last++) {
        for (uint32_t i = 0; i < kl_model_weights(r->model) && n < MAX_WEIGHTS; i++) {
            const char *name = kl_model_weight_name(r->model, i);
            int64_t dims[KL_MAX_RANK];
            kl_tensor w = kl_model_weight(r->model, name);
            int rank = kl_shape(w, dims);
            if ((dims[rank - 1] == FASHION_CLASSES) != last)
                continue;
            printf("%s: %s, %lld numbers\n", last ? "head" : "body", name, (long long)kl_numel(w));
            weight[n++] = w;
        }
        body = last ? body : n;
    }
    kl_optimizer *slow = kl_adam(body, weight, NULL), *fast = kl_adam(n - body, weight + body, NULL);
    bool ok = slow && fast;
    for (int i = 0; i < steps && ok; i++) {
        kl_batch batch;
        double rate = r->opt.rate * kl_rate_linear(i, steps, 1, 0.1);
        ok = kl_loader_next(r->loader, &batch) == KL_OK;
        kl_trace_begin("fine_tune");
        kl_tensor y = logits(r, fashion_images(r->device, batch.data, batch.count));
        kl_tensor loss = kl_keep(kl_cross_entropy(y, fashion_labels(r->device, batch.data, batch.count)));
        kl_grads(loss, n, weight, g);
        kl_optimizer_step_gradients(slow, g, rate / 10);
        kl_optimizer_step_gradients(fast, g + body, rate);
        ok = kl_trace_end() == KL_OK && ok;
        if (ok && (i == 0 || i + 1 == steps))
            printf("step %d: loss %.4f\n", i + 1, (double)kl_item_f32(loss));
        kl_release(loss);
    }
    kl_optimizer_free(slow);
    kl_optimizer_free(fast);
    return ok;
}

int main(int argc, char **argv)
{
    struct llm_tune_options text_options = {.length = 128, .rank = 8};
    const char *text = NULL;
    static struct run r = {.opt = {.batch = 100, .images = 6000, .steps = 300, .rate = 2e-3, .seed = 1,
                                   .data = FASHION_FOLDER}};
    struct options *o = &r.opt;
    const struct flag flags[] = {
        {"batch", "images a step", &o->batch, NULL}, {"images", "images to learn from", &o->images, NULL},
        {"steps", "steps of each training", &o->steps, NULL}, {"rate", "learning rate", &o->rate, NULL},
        {"seed", "of values and order", &o->seed, NULL}, {"data", "folder of the images", NULL, &o->data},
        {"model", "the model to begin with", NULL, &o->model},
        {"text", "what a language model learns", NULL, &text},
        {"length", "tokens of a step on text", &text_options.length, NULL},
        {"rank", "of the adapters", &text_options.rank, NULL},
        {"write", "the file for the adapters", NULL, &text_options.write}, {NULL, NULL, NULL, NULL}};
    if (!flags_parse(flags, argc, argv))
        return 2;
    if (text) {
        text_options.steps = o->steps, text_options.rate = o->rate, text_options.seed = o->seed;
        return text_options.length >= 1 && text_options.rank >= 1 && llm_tune(o->model ? o->model : "", text,
                                                                              &text_options) ? 0 : 1;
    }
    char made[] = "/tmp/fine_tune-XXXXXX";
    int fd = -1;
    r.device = kl_device_default();
    bool ok = fashion_open(&r.train, o->data, "train", (int64_t)o->images) &&
              fashion_open(&r.test, o->data, "t10k", 2000) &&
              (r.loader = fashion_loader(&r.train, (int64_t)o->batch, (uint64_t)o->seed, 0, 1));
    if (ok && !o->model)
        ok = (fd = mkstemp(made)) >= 0 && write_model(&r, made);
    r.model = ok ? kl_model_open(r.device, o->model ? o->model : made) : NULL;
    ok = r.model && measure(&r, "before") && fine_tune(&r) && measure(&r, "after");
    if (!ok)
        fprintf(stderr, "fine_tune: %s\n", kl_last_error());
    if (fd >= 0) {
        close(fd);
        unlink(made);
    }
    kl_model_close(r.model);
    kl_loader_free(r.loader);
    fashion_close(&r.train);
    fashion_close(&r.test);
    return ok ? 0 : 1;
}
