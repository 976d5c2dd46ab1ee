/* An autoencoder: learns to put each picture of Fashion-MNIST into 16 numbers and to draw it again from these, and
 * shows some pictures beside what was drawn.
 *
 *     autoencoder --epochs 5 */
#include "fashion.h"

enum { HIDDEN = 256, CODE = 16 };

struct options { double epochs, batch, rate, seed, images, show; const char *data; };

struct run {
    struct options opt;
    struct fashion train, test;
    kl_device device;
    kl_params *params;
    kl_nn_linear encode[2], decode[2];
    kl_optimizer *adam;
    kl_loader *loader;
};

/* images [n, 784] in 0..1 -> codes [n, 16] */
static kl_tensor encode(const struct run *r, kl_tensor images)
{
    return kl_nn_linear_forward(&r->encode[1], kl_gelu(kl_nn_linear_forward(&r->encode[0], images)));
}

/* codes [n, 16] -> logits of the pixels [n, 784] */
static kl_tensor decode(const struct run *r, kl_tensor code)
{
    return kl_nn_linear_forward(&r->decode[1], kl_gelu(kl_nn_linear_forward(&r->decode[0], code)));
}

static kl_tensor flat_images(const struct run *r, const uint8_t *pixels, int64_t n)
{
    return kl_reshape(fashion_images(r->device, pixels, n), 2, (int64_t[]){n, FASHION_PIXELS});
}

static kl_status train_step(void *ctx, int64_t i, double rate, double *loss)
{
    struct run *r = ctx;
    kl_batch batch;
    (void)i;
    kl_status s = kl_loader_next(r->loader, &batch);
    if (s != KL_OK)
        return s;
    kl_trace_begin("train_step");
    kl_tensor x = flat_images(r, batch.data, batch.count);
    kl_tensor mean = kl_keep(kl_binary_cross_entropy_with_logits(decode(r, encode(r, x)), x));
    kl_optimizer_step(r->adam, mean, rate);
    if ((s = kl_trace_end()) == KL_OK)
        *loss = (double)kl_item_f32(mean);
    kl_release(mean);
    return s;
}

static double rate_of(void *ctx, int64_t i)
{
    const struct run *r = ctx;
    int64_t steps = (int64_t)r->opt.epochs * kl_loader_batches(r->loader);
    return kl_rate_warmup(i, 50) * kl_rate_cosine(i, steps, r->opt.rate, r->opt.rate / 20);
}

/* The mean squared error of a pixel in 0..1 over the test images, and of the mean picture, which has no code. */
static bool measure(const struct run *r)
{
    int64_t n = r->test.count;
    kl_trace_begin("measure");
    kl_tensor x = flat_images(r, r->test.images.data, n);
    kl_tensor error = kl_keep(kl_mse_loss(kl_sigmoid(decode(r, encode(r, x))), x));
    kl_tensor mean = kl_mean(x, 1, (int[]){0}, true);
    kl_tensor without = kl_keep(kl_mse_loss(kl_expand(mean, 2, (int64_t[]){n, FASHION_PIXELS}), x));
    if (kl_trace_end() != KL_OK)
        return false;
    printf("error: %.5f\nerror of the mean picture: %.5f\n", (double)kl_item_f32(error), (double)kl_item_f32(without));
    kl_release(error);
    kl_release(without);
    return true;
}

/* Pictures as characters, every second row, each beside what the network draws. */
static bool show(const struct run *r)
{
    enum { MAX_COUNT = 8 };
    static float drawn[MAX_COUNT * FASHION_PIXELS];
    int64_t n = r->opt.show < MAX_COUNT ? (int64_t)r->opt.show : MAX_COUNT;
    n = n < r->test.count ? n : r->test.count;
    kl_trace_begin("show");
    kl_tensor y = kl_keep(kl_sigmoid(decode(r, encode(r, flat_images(r, r->test.images.data, n)))));
    if (kl_trace_end() != KL_OK || kl_read(y, drawn, (size_t)n * FASHION_PIXELS * sizeof *drawn) != KL_OK)
        return false;
    kl_release(y);
    for (int64_t i = 0; i < n; i++)
        for (int row = 0; row < FASHION_SIDE; row += 2) {
            for (int side = 0; side < 2; side++) {
                for (int column = 0; column < FASHION_SIDE; column++) {
                    int64_t at = i * FASHION_PIXELS + row * FASHION_SIDE + column;
                    float v = side ? drawn[at] : (float)r->test.images.data[at] / 255;
                    putchar(" .:-=+*#%@"[(int)(v * 9.999f)]);
                }
                fputs(side ? "\n" : "   ", stdout);
            }
        }
    return true;
}

static bool prepare(struct run *r)
{
    const struct options *o = &r->opt;
    int64_t n;
    r->device = kl_device_default();
    r->params = kl_params_new(r->device, KL_F32, (uint64_t)o->seed);
    if (kl_nn_linear_init(&r->encode[0], r->params, "encode.0", FASHION_PIXELS, HIDDEN, true) != KL_OK ||
        kl_nn_linear_init(&r->encode[1], r->params, "encode.1", HIDDEN, CODE, true) != KL_OK ||
        kl_nn_linear_init(&r->decode[0], r->params, "decode.0", CODE, HIDDEN, true) != KL_OK ||
        kl_nn_linear_init(&r->decode[1], r->params, "decode.1", HIDDEN, FASHION_PIXELS, true) != KL_OK)
        return false;
    const kl_tensor *list = kl_params_trained(r->params, &n);
    r->adam = list ? kl_adam(n, list, NULL) : NULL;
    if (!r->adam || !fashion_open(&r->train, o->data, "train", (int64_t)o->images) ||
        !fashion_open(&r->test, o->data, "t10k", 2000))
        return false;
    r->loader = fashion_loader(&r->train, (int64_t)o->batch, (uint64_t)o->seed, 0, 1);
    return r->loader != NULL;
}

int main(int argc, char **argv)
{
    static struct run r = {.opt = {.epochs = 3, .batch = 128, .rate = 2e-3, .seed = 1, .show = 3,
                                   .data = FASHION_FOLDER}};
    struct options *o = &r.opt;
    const struct flag flags[] = {
        {"epochs", "passes over the images", &o->epochs, NULL}, {"batch", "images a step", &o->batch, NULL},
        {"rate", "learning rate", &o->rate, NULL}, {"seed", "of values and order", &o->seed, NULL},
        {"images", "use only so many; 0: all", &o->images, NULL}, {"show", "pictures to show", &o->show, NULL},
        {"data", "folder of the images", NULL, &o->data}, {NULL, NULL, NULL, NULL}};
    if (!flags_parse(flags, argc, argv))
        return 2;
    bool ok = prepare(&r);
    kl_train_loop loop = {.steps = ok ? (int64_t)o->epochs * kl_loader_batches(r.loader) : 0, .step = train_step,
                          .rate = rate_of, .ctx = &r, .unit = "images", .units = (int64_t)o->batch};
    ok = ok && kl_train(&loop) == KL_OK && show(&r) && measure(&r);
    if (!ok)
        fprintf(stderr, "autoencoder: %s\n", kl_last_error());
    kl_loader_free(r.loader);
    kl_optimizer_free(r.adam);
    kl_params_free(r.params);
    fashion_close(&r.train);
    fashion_close(&r.test);
    return ok ? 0 : 1;
}
