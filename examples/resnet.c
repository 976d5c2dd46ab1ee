/* A small residual network (He et al. 2015) on Fashion-MNIST: convolutions with batch norm, and shortcuts around each
 * pair of them.
 *
 *     resnet --epochs 5 --log run.jsonl        then: kiln train-log run.jsonl -o run.html */
#include "fashion.h"

enum { BLOCKS = 3 };

struct options { double epochs, batch, rate, seed, width, images; const char *data, *log; };

/* conv - norm - relu - conv - norm, beside a shortcut that is the input, or a 1 x 1 convolution of it. */
struct block {
    kl_nn_conv conv1, conv2, shortcut;
    kl_nn_norm norm1, norm2;
    bool projects;
};

struct run {
    struct options opt;
    struct fashion train, test;
    kl_device device;
    kl_params *params;
    kl_nn_conv stem;
    kl_nn_norm stem_norm;
    struct block block[BLOCKS];
    kl_nn_linear head;
    bool training;
    kl_optimizer *sgd;
    kl_loader *loader;
};

static bool conv_init(kl_nn_conv *m, kl_params *params, const char *name, int64_t in, int64_t out, int64_t kernel,
                      int64_t stride)
{
    kl_nn_conv_options o = {.in = in, .out = out, .axes = 2, .kernel = {kernel, kernel}, .stride = {stride, stride},
                            .padding = {kernel / 2, kernel / 2}, .no_bias = true}; /* the norm behind it has one */
    return kl_nn_conv_init(m, params, name, &o) == KL_OK;
}

static bool block_init(struct block *b, kl_params *params, int number, int64_t in, int64_t out, int64_t stride)
{
    char name[5][24];
    static const char *const part[5] = {"conv1", "conv2", "shortcut", "norm1", "norm2"};
    for (int i = 0; i < 5; i++)
        snprintf(name[i], sizeof name[i], "block%d.%s", number, part[i]);
    b->projects = in != out || stride != 1;
    return conv_init(&b->conv1, params, name[0], in, out, 3, stride) &&
           conv_init(&b->conv2, params, name[1], out, out, 3, 1) &&
           (!b->projects || conv_init(&b->shortcut, params, name[2], in, out, 1, stride)) &&
           kl_nn_batch_norm_init(&b->norm1, params, name[3], out) == KL_OK &&
           kl_nn_batch_norm_init(&b->norm2, params, name[4], out) == KL_OK;
}

static kl_tensor block_forward(const struct block *b, kl_tensor x, bool training)
{
    kl_tensor y = kl_relu(kl_nn_norm_forward(&b->norm1, kl_nn_conv_forward(&b->conv1, x), training));
    y = kl_nn_norm_forward(&b->norm2, kl_nn_conv_forward(&b->conv2, y), training);
    return kl_relu(kl_add(y, b->projects ? kl_nn_conv_forward(&b->shortcut, x) : x));
}

/* images [n, 1, 28, 28] -> logits [n, 10] */
static kl_tensor logits(void *ctx, kl_tensor images)
{
    const struct run *r = ctx;
    kl_tensor x = kl_nn_conv_forward(&r->stem, images);
    x = kl_relu(kl_nn_norm_forward(&r->stem_norm, x, r->training));
    for (int i = 0; i < BLOCKS; i++)
        x = block_forward(&r->block[i], x, r->training);
    return kl_nn_linear_forward(&r->head, kl_mean(x, 2, (int[]){2, 3}, false));
}

static bool network_init(struct run *r)
{
    int64_t width = (int64_t)r->opt.width;
    bool ok = conv_init(&r->stem, r->params, "stem", 1, width, 3, 2) &&
              kl_nn_batch_norm_init(&r->stem_norm, r->params, "stem.norm", width) == KL_OK;
    for (int i = 0; i < BLOCKS && ok; i++, width *= i < BLOCKS ? 2 : 1)
        ok = block_init(&r->block[i], r->params, i, i ? width / 2 : width, width, i ? 2 : 1);
    return ok && kl_nn_linear_init(&r->head, r->params, "head", width, FASHION_CLASSES, true) == KL_OK;
}

static kl_status train_step(void *ctx, int64_t i, double rate, double *loss)
{
    struct run *r = ctx;
    kl_batch batch;
    (void)i;
    kl_status s = kl_loader_next(r->loader, &batch);
    if (s != KL_OK)
        return s;
    r->training = true;
    kl_trace_begin("train_step");
    kl_tensor y = logits(r, fashion_images(r->device, batch.data, batch.count));
    kl_tensor mean = kl_keep(kl_cross_entropy(y, fashion_labels(r->device, batch.data, batch.count)));
    kl_optimizer_step(r->sgd, mean, rate);
    if ((s = kl_trace_end()) == KL_OK)
        *loss = (double)kl_item_f32(mean);
    kl_release(mean);
    r->training = false;
    return s;
}

static double rate_of(void *ctx, int64_t i)
{
    const struct run *r = ctx;
    int64_t steps = (int64_t)r->opt.epochs * kl_loader_batches(r->loader);
    return kl_rate_warmup(i, 50) * kl_rate_cosine(i, steps, r->opt.rate, 0);
}

static kl_status report(void *ctx, int64_t i, double loss)
{
    struct run *r = ctx;
    double accuracy = fashion_accuracy(&r->test, r->device, logits, r);
    if (accuracy < 0)
        return kl_last_error_code();
    printf("step %lld: loss %.4f, accuracy %.4f\n", (long long)i + 1, loss, accuracy);
    return KL_OK;
}

static bool prepare(struct run *r)
{
    const struct options *o = &r->opt;
    kl_sgd_options sgd = {.momentum = 0.9, .weight_decay = 5e-4, .nesterov = true};
    int64_t n;
    r->device = kl_device_default();
    r->params = kl_params_new(r->device, KL_F32, (uint64_t)o->seed);
    if (!r->params || !network_init(r))
        return false;
    printf("parameters: %lld\n", (long long)kl_params_elements(r->params, "*"));
    const kl_tensor *list = kl_params_trained(r->params, &n);
    r->sgd = list ? kl_sgd(n, list, &sgd) : NULL;
    if (!r->sgd || !fashion_open(&r->train, o->data, "train", (int64_t)o->images) ||
        !fashion_open(&r->test, o->data, "t10k", (int64_t)o->images))
        return false;
    r->loader = fashion_loader(&r->train, (int64_t)o->batch, (uint64_t)o->seed, 0, 1);
    return r->loader != NULL;
}

int main(int argc, char **argv)
{
    static struct run r = {.opt = {.epochs = 3, .batch = 128, .rate = 0.1, .seed = 1, .width = 16,
                                   .data = FASHION_FOLDER}};
    struct options *o = &r.opt;
    const struct flag flags[] = {
        {"epochs", "passes over the images", &o->epochs, NULL}, {"batch", "images a step", &o->batch, NULL},
        {"rate", "learning rate", &o->rate, NULL}, {"seed", "of values and order", &o->seed, NULL},
        {"width", "channels of the first block", &o->width, NULL},
        {"images", "use only so many; 0: all", &o->images, NULL}, {"data", "folder of the images", NULL, &o->data},
        {"log", "a file for a line of JSON a step", NULL, &o->log}, {NULL, NULL, NULL, NULL}};
    if (!flags_parse(flags, argc, argv))
        return 2;
    bool ok = prepare(&r);
    kl_train_loop loop = {.steps = ok ? (int64_t)o->epochs * kl_loader_batches(r.loader) : 0, .step = train_step,
                          .rate = rate_of, .each = report, .every = ok ? kl_loader_batches(r.loader) : 0, .ctx = &r,
                          .unit = "images", .units = (int64_t)o->batch, .log = o->log};
    ok = ok && kl_train(&loop) == KL_OK;
    if (!ok)
        fprintf(stderr, "resnet: %s\n", kl_last_error());
    kl_loader_free(r.loader);
    kl_optimizer_free(r.sgd);
    kl_params_free(r.params);
    fashion_close(&r.train);
    fashion_close(&r.test);
    return ok ? 0 : 1;
}
