/* Trains a small network on Fashion-MNIST, tells its accuracy, and times the training step fused and unfused.
 *
 * Read train_step first: it is the whole of a training program.  The rest is options, data and reports. */
#include "progress.h"
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#define DATA_FOLDER "/usr/share/datasets/fashion-mnist"

enum { SIDE = 28, PIXELS = SIDE * SIDE, HIDDEN = 512, CLASSES = 10, LAYERS = 4 };

/* conv: 3 x 3, then the largest of each 2 x 2 */
struct layer { int64_t in, out; bool conv; };
struct arch { const char *name; int layers; struct layer layer[LAYERS]; };
static const struct arch archs[] = {
    {"mlp", 3, {{PIXELS, HIDDEN, false}, {HIDDEN, HIDDEN, false}, {HIDDEN, CLASSES, false}}},
    {"cnn", 4, {{1, 16, true}, {16, 32, true}, {32 * 7 * 7, 128, false}, {128, CLASSES, false}}},
};

struct options {
    long epochs, batch, steps, seed; /* steps: stop after so many, 0: never early */
    double lr;
    bool autocast;
    const struct arch *arch;
    const char *device, *data, *dump, *losses;
};

struct dataset {
    kl_idx images, labels;
    int64_t count;
};

struct batch { /* host memory for the images and labels of one step */
    uint8_t *images, *labels;
    int64_t count;
};

struct model {
    const struct arch *arch;
    kl_device device;
    kl_dtype products; /* f32, or what they are computed in */
    int64_t length;    /* of a batch: a symbol */
    kl_tensor weight[LAYERS], bias[LAYERS];
    kl_optimizer *adam;
};

/* ---- the network ---- */

/* The weights too are recorded and computed by one program; false: see kl_last_error. */
static bool model_init(struct model *m, kl_device device, int64_t batch, uint64_t seed)
{
    kl_tensor parameter[2 * LAYERS];
    m->device = device;
    m->length = kl_symbol("images", 1, batch);
    kl_trace_begin("init");
    for (int i = 0; i < m->arch->layers; i++) {
        const struct layer *l = &m->arch->layer[i];
        int64_t dims[4] = {l->conv ? l->out : l->in, l->conv ? l->in : l->out, 3, 3};
        char name[2][16];
        kl_tensor normal = kl_randn(device, KL_F32, l->conv ? 4 : 2, dims, seed * LAYERS + (uint64_t)i);
        /* He: keeps the variance through ReLUs */
        m->weight[i] = kl_mul_scalar(normal, sqrt(2.0 / (double)(l->in * (l->conv ? 9 : 1))));
        m->bias[i] = kl_zeros(device, KL_F32, 1, &l->out);
        parameter[2 * i] = m->weight[i];
        parameter[2 * i + 1] = m->bias[i];
        snprintf(name[0], sizeof name[0], "w%d", i + 1);
        snprintf(name[1], sizeof name[1], "b%d", i + 1);
        for (int k = 0; k < 2; k++) {
            kl_keep(parameter[2 * i + k]);
            kl_set_name(parameter[2 * i + k], name[k]);
        }
    }
    m->adam = kl_adam(2 * m->arch->layers, parameter, NULL);
    return kl_trace_end() == KL_OK;
}

static void model_free(struct model *m)
{
    for (int i = 0; m->adam && i < m->arch->layers; i++) {
        kl_release(m->weight[i]);
        kl_release(m->bias[i]);
    }
    kl_optimizer_free(m->adam);
}

/* [n, 10] the network's output for images [n, PIXELS], in the open trace. */
static kl_tensor model_logits(const struct model *m, kl_tensor images)
{
    kl_tensor x = kl_mul_scalar(kl_cast(images, KL_F32), 1.0 / 255);
    if (m->arch->layer[0].conv)
        x = kl_reshape(x, 4, (int64_t[]){-1, 1, SIDE, SIDE});
    for (int i = 0; i < m->arch->layers; i++) {
        const struct layer *l = &m->arch->layer[i];
        if (l->conv) {
            const int64_t one[2] = {1, 1}, two[2] = {2, 2};
            x = kl_relu(kl_conv(x, m->weight[i], m->bias[i], NULL, one, one, NULL, 1));
            x = kl_max_pool(x, 2, two, NULL, NULL, NULL, NULL);
            continue;
        }
        x = kl_linear(kl_reshape(x, 2, (int64_t[]){-1, l->in}), m->weight[i], m->bias[i]);
        if (i + 1 < m->arch->layers)
            x = kl_relu(x);
    }
    return x;
}

/* One step: recorded, compiled if it is new, run.  The number of images is a symbol, so a smaller batch is the same
 * program.  The mean loss of the batch; false: see kl_last_error. */
static bool train_step(const struct model *m, const struct batch *b, double lr, float *loss)
{
    kl_trace_begin("train_step");
    kl_autocast_begin(m->products);
    const int64_t dims[2] = {b->count, PIXELS};
    const int64_t lengths[2] = {m->length, PIXELS};
    kl_tensor logits = model_logits(m, kl_input_symbolic(m->device, KL_U8, 2, lengths, dims, b->images));
    kl_tensor labels = kl_input_symbolic(m->device, KL_U8, 1, lengths, dims, b->labels);
    kl_tensor mean = kl_keep(kl_cross_entropy(logits, labels));
    kl_autocast_end();
    kl_optimizer_step(m->adam, mean, lr);
    if (kl_trace_end() != KL_OK)
        return false;
    *loss = kl_item_f32(mean);
    return kl_release(mean) == KL_OK;
}

/* The share of images whose largest logit is at their label; false: see kl_last_error. */
static bool measure_accuracy(const struct model *m, const struct dataset *d, double *accuracy)
{
    enum { CHUNK = 1000 };
    int64_t right = 0;
    for (int64_t first = 0; first < d->count; first += CHUNK) {
        int64_t n = d->count - first < CHUNK ? d->count - first : CHUNK;
        kl_trace_begin("predict");
        kl_autocast_begin(m->products);
        kl_tensor images = kl_input(m->device, KL_U8, 2, (int64_t[]){n, PIXELS}, d->images.data + first * PIXELS);
        kl_tensor guess = kl_argmax(model_logits(m, images), 1);
        kl_autocast_end();
        kl_tensor labels = kl_input(m->device, KL_U8, 1, &n, d->labels.data + first);
        kl_tensor hits = kl_cast(kl_eq(guess, kl_cast(labels, KL_I32)), KL_I32);
        kl_tensor total = kl_keep(kl_sum_all(hits));
        if (kl_trace_end() != KL_OK)
            return false;
        right += kl_item_i64(total);
        kl_release(total);
    }
    *accuracy = (double)right / (double)d->count;
    return true;
}

/* FNV-1a (Fowler, Noll, Vo; 64 bits) of the bytes of all weights and biases, in the order of the layers: equal where
 * every bit is.  false: see kl_last_error. */
static bool hash_weights(const struct model *m, uint64_t *hash)
{
    *hash = 0xcbf29ce484222325;
    for (int i = 0; i < 2 * m->arch->layers; i++) {
        kl_tensor t = i % 2 ? m->bias[i / 2] : m->weight[i / 2];
        size_t bytes = (size_t)kl_numel(t) * sizeof(float);
        unsigned char *data = malloc(bytes);
        bool ok = data && kl_read(t, data, bytes) == KL_OK;
        for (size_t b = 0; ok && b < bytes; b++)
            *hash = (*hash ^ data[b]) * 0x100000001b3;
        free(data);
        if (!ok)
            return false;
    }
    return true;
}

/* ---- data ---- */

static bool dataset_load(struct dataset *d, const char *folder, const char *part)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-images-idx3-ubyte.gz", folder, part);
    if (kl_idx_open(path, 3, (int64_t[]){-1, SIDE, SIDE}, &d->images) != KL_OK)
        return false;
    d->count = d->images.dim[0];
    snprintf(path, sizeof path, "%s/%s-labels-idx1-ubyte.gz", folder, part);
    return kl_idx_open(path, 1, &d->count, &d->labels) == KL_OK;
}

static void dataset_free(struct dataset *d)
{
    kl_idx_close(&d->images);
    kl_idx_close(&d->labels);
}

/* Steele, Lea and Flood's SplitMix64. */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Fisher and Yates; the modulo's bias is below 2^-40 for the sizes here. */
static void shuffle(int64_t *order, int64_t n, uint64_t *random)
{
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)(random_next(random) % (uint64_t)(i + 1)), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

static void batch_gather(struct batch *b, const struct dataset *d, const int64_t *order, int64_t count)
{
    b->count = count;
    for (int64_t i = 0; i < count; i++) {
        memcpy(b->images + i * PIXELS, d->images.data + order[i] * PIXELS, PIXELS);
        b->labels[i] = d->labels.data[order[i]];
    }
}

/* ---- training ---- */

struct run { /* what training and timing work on */
    struct options opt;
    struct dataset train, test;
    struct model model;
    struct batch batch;
    int64_t *order;
    FILE *losses;
    long steps;
};

/* The whole training; the last batch of an epoch may be smaller. */
static bool train(struct run *r)
{
    const struct options *o = &r->opt;
    int64_t count = r->train.count;
    long limit = (long)((count + o->batch - 1) / o->batch) * o->epochs;
    if (o->steps && o->steps < limit)
        limit = o->steps;
    uint64_t random = (uint64_t)o->seed;
    double smooth = 0; /* the loss averaged over some fifty steps, for people */
    struct progress progress;
    char label[32] = "";

    for (int64_t i = 0; i < count; i++)
        r->order[i] = i;
    progress_start(&progress, "images", limit * o->batch < count * o->epochs ? limit * o->batch : count * o->epochs);
    for (long epoch = 1; r->steps < limit; epoch++) {
        shuffle(r->order, count, &random);
        snprintf(label, sizeof label, "epoch %ld/%ld", epoch, o->epochs);
        for (int64_t first = 0; first < count && r->steps < limit; first += o->batch) {
            float loss;
            batch_gather(&r->batch, &r->train, r->order + first, count - first < o->batch ? count - first : o->batch);
            if (!train_step(&r->model, &r->batch, o->lr, &loss))
                return false;
            if (r->losses)
                fprintf(r->losses, "%a\n", (double)loss);
            smooth = r->steps++ == 0 ? (double)loss : 0.98 * smooth + 0.02 * (double)loss;
            progress_add(&progress, (long)r->batch.count, label, smooth);
        }
    }
    progress_finish(&progress, label, smooth);
    return true;
}

/* ---- the same step fused and unfused ---- */

enum { UNFUSED, FUSED };

struct timing {
    double median_us[2];
    kl_run_info info[2]; /* of one step */
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of processor time this thread has used: for work on one thread that is the time it takes, less what
 * other programs ran meanwhile. */
static double thread_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static double wall_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

/* Training goes on for `repeats` steps each way, in alternation and on one thread, after one of each that is not
 * counted because it may compile. */
static bool time_steps(struct run *r, struct timing *t)
{
    enum { REPEATS = 50, REPEATS_REF = 2 };
    double us[2][REPEATS];
    const char *device = kl_device_name(r->model.device);
    bool cpu = !strcmp(device, "cpu"), ref = !strcmp(device, "ref");
    int repeats = cpu ? REPEATS : REPEATS_REF;
    double (*now)(void) = cpu || ref ? thread_us : wall_us; /* a thread that waits for its device takes no time */
    batch_gather(&r->batch, &r->train, r->order, r->opt.batch);
    kl_set_option("threads", 1);
    for (int i = -1; i < repeats; i++)
        for (int fused = UNFUSED; fused <= FUSED; fused++) {
            float loss;
            kl_set_option("fuse", fused);
            double start = now();
            if (!train_step(&r->model, &r->batch, r->opt.lr, &loss))
                return false;
            if (i >= 0)
                us[fused][i] = now() - start;
            kl_trace_info(&t->info[fused]);
        }
    for (int fused = UNFUSED; fused <= FUSED; fused++) {
        qsort(us[fused], (size_t)repeats, sizeof us[fused][0], compare_doubles);
        t->median_us[fused] = us[fused][repeats / 2];
    }
    return true;
}

/* ---- options ---- */

static const struct options defaults = {
    .arch = archs, .epochs = 5, .batch = 128, .seed = 1, .lr = 1e-3, .data = DATA_FOLDER, .dump = "build/ir_dump"};

static void usage(FILE *f)
{
    fprintf(f,
            "usage: fashion_mnist [OPTIONS]\n"
            "Trains a network on Fashion-MNIST with Adam, prints its accuracy on the test images,\n"
            "then times the training step with and without kernel fusion on one thread.\n"
            "\n"
            "  --arch NAME    mlp: 784-512-512-10; cnn: 3 x 3 convolutions of 16 and 32 channels, 128-10 (mlp)\n"
            "  --epochs N     times each image is seen (%ld)\n"
            "  --batch N      images a step (%ld)\n"
            "  --lr X         learning rate (%g)\n"
            "  --seed N       of the initial weights and the order of the images (%ld)\n"
            "  --device NAME  ref, cpu, vulkan or vulkan:N (the best of the first two; all but cpu time fewer steps)\n"
            "  --data DIR     folder of {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz\n"
            "                 (%s)\n"
            "  --dump DIR     where the step's program is written at each stage (%s)\n"
            "  --autocast     products in bf16, everything else and the weights in f32\n"
            "  --steps N      stop training after N steps\n"
            "  --losses FILE  write each step's loss as a hexadecimal float\n"
            "  --help         this text\n"
            "\n"
            "Results are `name: value` lines on stdout; progress goes to stderr. weights_hash is one number for\n"
            "all bits of the trained weights: the same on ref and cpu, on GPUs with KILN_ORDER=graph.\n",
            defaults.epochs, defaults.batch, defaults.lr, defaults.seed, defaults.data, defaults.dump);
}

/* A whole number of at least `least`, at most a million million; false with a message. */
static bool parse_count(const char *option, const char *text, long min, long *value)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (end == text || *end || errno || v < min || v > 1000000000000) {
        fprintf(stderr, "fashion_mnist: --%s is \"%s\"; it must be a whole number from %ld on\n", option, text, min);
        return false;
    }
    *value = v;
    return true;
}

static bool parse_rate(const char *option, const char *text, double *value)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || v <= 0) {
        fprintf(stderr, "fashion_mnist: --%s is \"%s\"; it must be a number above 0\n", option, text);
        return false;
    }
    *value = v;
    return true;
}

static bool parse_arch(const char *text, const struct arch **arch)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (!strcmp(text, archs[i].name)) {
            *arch = &archs[i];
            return true;
        }
    fprintf(stderr, "fashion_mnist: --arch is \"%s\"; it must be mlp or cnn\n", text);
    return false;
}

/* True: go on.  False: end with *status. */
static bool parse_options(struct options *o, int argc, char **argv, int *status)
{
    enum { ARCH, EPOCHS, BATCH, LR, SEED, DEVICE, DATA, DUMP, STEPS, LOSSES, AUTOCAST, HELP };
    static const struct option known[] = {
        {"arch", required_argument, NULL, ARCH},
        {"epochs", required_argument, NULL, EPOCHS}, {"batch", required_argument, NULL, BATCH},
        {"lr", required_argument, NULL, LR},         {"seed", required_argument, NULL, SEED},
        {"device", required_argument, NULL, DEVICE}, {"data", required_argument, NULL, DATA},
        {"dump", required_argument, NULL, DUMP},     {"steps", required_argument, NULL, STEPS},
        {"losses", required_argument, NULL, LOSSES}, {"autocast", no_argument, NULL, AUTOCAST},
        {"help", no_argument, NULL, HELP},
        {NULL, 0, NULL, 0}};
    *o = defaults;
    *status = 2;
    int which, index = 0;
    while ((which = getopt_long(argc, argv, "", known, &index)) != -1) {
        bool ok = true;
        switch (which) {
        case ARCH: ok = parse_arch(optarg, &o->arch); break;
        case EPOCHS: ok = parse_count("epochs", optarg, 1, &o->epochs); break;
        case BATCH: ok = parse_count("batch", optarg, 1, &o->batch); break;
        case LR: ok = parse_rate("lr", optarg, &o->lr); break;
        case SEED: ok = parse_count("seed", optarg, 0, &o->seed); break;
        case DEVICE: o->device = optarg; break;
        case DATA: o->data = optarg; break;
        case DUMP: o->dump = optarg; break;
        case STEPS: ok = parse_count("steps", optarg, 1, &o->steps); break;
        case LOSSES: o->losses = optarg; break;
        case AUTOCAST: o->autocast = true; break;
        case HELP: usage(stdout); *status = 0; return false;
        default: ok = false;
        }
        if (!ok)
            return false;
    }
    if (optind < argc)
        fprintf(stderr, "fashion_mnist: unexpected argument \"%s\"; see --help\n", argv[optind]);
    return optind == argc;
}

/* ---- the program ---- */

static bool fail(const char *what, const char *why)
{
    fprintf(stderr, "fashion_mnist: %s: %s\n", what, why);
    return false;
}

/* Makes a folder and those above it; false with a message. */
static bool make_folders(const char *path)
{
    char part[4096];
    for (size_t i = 1; i < sizeof part; i++) {
        if (path[i - 1] && (path[i] == '/' || !path[i])) {
            snprintf(part, sizeof part, "%.*s", (int)i, path);
            if (mkdir(part, 0777) != 0 && errno != EEXIST)
                break;
        }
        if (!path[i])
            return true;
    }
    return fail(path, strerror(errno));
}

static bool prepare(struct run *r)
{
    struct options *o = &r->opt;
    kl_device device = o->device ? kl_device_named(o->device) : kl_device_default();
    if (!device.id)
        return fail("no device", kl_last_error());
    if (!o->device && *kl_device_fallback_reason())
        fprintf(stderr, "running on %s: %s\n", kl_device_name(device), kl_device_fallback_reason());
    if (!dataset_load(&r->train, o->data, "train") || !dataset_load(&r->test, o->data, "t10k"))
        return fail("no data", kl_last_error());
    if (o->batch > r->train.count)
        o->batch = r->train.count;
    if (!make_folders(o->dump))
        return false;
    if (o->losses && !(r->losses = fopen(o->losses, "w")))
        return fail(o->losses, strerror(errno));
    r->order = malloc((size_t)r->train.count * sizeof *r->order);
    r->batch.images = malloc((size_t)o->batch * PIXELS);
    r->batch.labels = malloc((size_t)o->batch);
    if (!r->order || !r->batch.images || !r->batch.labels)
        return fail("no memory", strerror(errno));
    r->model.arch = o->arch;
    r->model.products = o->autocast ? KL_BF16 : KL_F32;
    return model_init(&r->model, device, o->batch, (uint64_t)o->seed) || fail("no model", kl_last_error());
}

static bool report(struct run *r)
{
    struct timing t;
    double accuracy;
    uint64_t hash;
    kl_dump_next(r->opt.dump);
    if (!train(r))
        return fail("training", kl_last_error());
    if (!measure_accuracy(&r->model, &r->test, &accuracy) || !hash_weights(&r->model, &hash))
        return fail("testing", kl_last_error());
    printf("accuracy: %.4f\nsteps: %ld\nweights_hash: %016" PRIx64 "\n", accuracy, r->steps, hash);
    fflush(stdout);
    if (!time_steps(r, &t))
        return fail("timing", kl_last_error());
    printf("step_us_fused: %.1f\n", t.median_us[FUSED]);
    printf("step_us_unfused: %.1f\n", t.median_us[UNFUSED]);
    printf("fused_speedup: %.3f\n", t.median_us[UNFUSED] / t.median_us[FUSED]);
    printf("kernels_fused: %" PRId64 "\n", t.info[FUSED].kernels);
    printf("kernels_unfused: %" PRId64 "\n", t.info[UNFUSED].kernels);
    printf("graphs_built: %" PRId64 "\n", kl_counter("graphs_built"));
    printf("compiles: %" PRId64 "\n", kl_counter("compiles"));
    printf("peak_bytes: %" PRId64 "\n", t.info[FUSED].peak_bytes);
    printf("lower_bound_bytes: %" PRId64 "\n", t.info[FUSED].lower_bound_bytes);
    printf("ir_dump: %s\n", r->opt.dump);
    return true;
}

int main(int argc, char **argv)
{
    static struct run r;
    int status;
    if (!parse_options(&r.opt, argc, argv, &status))
        return status;
    bool ok = prepare(&r) && report(&r);
    if (r.losses && fclose(r.losses) != 0)
        ok = fail(r.opt.losses, strerror(errno));
    model_free(&r.model);
    dataset_free(&r.train);
    dataset_free(&r.test);
    free(r.order);
    free(r.batch.images);
    free(r.batch.labels);
    return ok ? 0 : 1;
}
