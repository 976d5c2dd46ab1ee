/* Trains a network on Fashion-MNIST with several processes, each of which has its part of every batch.
 *
 *     mpirun -n 2 data_parallel
 *     torchrun --no-python --nproc-per-node 2 data_parallel --sharded 1
 *     for r in 0 1; do RANK=$r WORLD_SIZE=2 data_parallel & done; wait
 *
 * Read train_step first.  The losses are those of one process with the whole batch, but for rounding, and the same
 * bits whenever it is run. */
#define _POSIX_C_SOURCE 200809L
#include "fashion.h"
#include <time.h>

enum { HIDDEN = 512 };

struct options { double epochs, batch, rate, seed, sharded, images, steps, bucket; const char *data, *losses; };

struct run {
    struct options opt;
    struct fashion train, test;
    kl_device device;
    kl_comm *comm;
    kl_params *params;
    const kl_tensor *list;       /* of the parameters */
    int64_t n;
    kl_nn_linear layer[3];
    kl_comm_shards *shards;      /* with --sharded 1, else NULL */
    kl_optimizer *adam;
    kl_loader *loader;
};

static kl_tensor logits(void *ctx, kl_tensor images)
{
    const struct run *r = ctx;
    int64_t rows[KL_MAX_RANK];
    kl_shape(images, rows);
    kl_tensor x = kl_reshape(images, 2, (int64_t[]){rows[0], FASHION_PIXELS});
    x = kl_relu(kl_nn_linear_forward(&r->layer[0], x));
    x = kl_relu(kl_nn_linear_forward(&r->layer[1], x));
    return kl_nn_linear_forward(&r->layer[2], x);
}

/* One step of all ranks; *loss is the mean over the whole batch. */
static kl_status train_step(struct run *r, double *loss)
{
    kl_batch batch;
    kl_tensor g[6];
    kl_status s = kl_loader_next(r->loader, &batch);
    if (s != KL_OK)
        return s;
    kl_trace_begin("train_step");
    kl_tensor x = fashion_images(r->device, batch.data, batch.count);
    kl_tensor mean = kl_cross_entropy(logits(r, x), fashion_labels(r->device, batch.data, batch.count));
    kl_grads(mean, r->n, r->list, g);
    if (r->shards) { /* each rank updates its part of the parameters */
        kl_comm_shards_step(r->shards, r->adam, g, r->opt.rate);
    } else { /* each rank updates all of them */
        kl_comm_gradients(r->comm, r->n, g, (int64_t)r->opt.bucket);
        kl_optimizer_step_gradients(r->adam, g, r->opt.rate);
    }
    mean = kl_keep(kl_comm_all_reduce(r->comm, KL_REDUCE_MEAN, mean));
    s = kl_trace_end();
    if (s == KL_OK)
        *loss = (double)kl_item_f32(mean);
    kl_release(mean);
    return s;
}

static bool prepare(struct run *r)
{
    const struct options *o = &r->opt;
    static const int64_t width[4] = {FASHION_PIXELS, HIDDEN, HIDDEN, FASHION_CLASSES};
    r->comm = kl_comm_new(NULL);
    if (!r->comm)
        return false;
    int rank = kl_comm_rank(r->comm), ranks = kl_comm_ranks(r->comm);
    int64_t parts;
    r->device = kl_device_default();
    r->params = kl_params_new(r->device, KL_F32, (uint64_t)o->seed + (uint64_t)rank);
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "fc%d", i);
        if (kl_nn_linear_init(&r->layer[i], r->params, name, width[i], width[i + 1], true) != KL_OK)
            return false;
    }
    r->list = kl_params_trained(r->params, &r->n);
    if (!r->list || kl_comm_sync(r->comm, r->n, r->list) != KL_OK) /* all begin with rank 0's */
        return false;
    if (o->sharded > 0) {
        r->shards = kl_comm_shards_new(r->comm, r->n, r->list, (int64_t)o->bucket);
        const kl_tensor *part = kl_comm_shards_parts(r->shards, &parts);
        r->adam = r->shards ? kl_adam(parts, part, NULL) : NULL;
    } else {
        r->adam = kl_adam(r->n, r->list, NULL);
    }
    if (!r->adam || !fashion_open(&r->train, o->data, "train", (int64_t)o->images) ||
        !fashion_open(&r->test, o->data, "t10k", (int64_t)o->images))
        return false;
    r->loader = fashion_loader(&r->train, (int64_t)o->batch / ranks, (uint64_t)o->seed, rank, ranks);
    return r->loader != NULL;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool train(struct run *r)
{
    const struct options *o = &r->opt;
    bool first = kl_comm_rank(r->comm) == 0;
    int64_t per_epoch = kl_loader_batches(r->loader), steps = (int64_t)o->epochs * per_epoch, counted = 0;
    FILE *losses = first && o->losses ? fopen(o->losses, "w") : NULL;
    double start = 0, loss = 0, sum = 0;
    if (o->steps > 0 && o->steps < (double)steps)
        steps = (int64_t)o->steps;
    for (int64_t i = 0; i < steps; i++) {
        if (train_step(r, &loss) != KL_OK)
            return false;
        if (losses)
            fprintf(losses, "%a\n", loss);
        if (i == 0)
            start = now(); /* the first step compiles */
        sum += loss;
        counted++;
        if (first && ((i + 1) % per_epoch == 0 || i + 1 == steps)) {
            printf("step %lld: loss %.4f\n", (long long)i + 1, sum / (double)counted);
            sum = 0;
            counted = 0;
        }
    }
    if (first && steps > 1)
        printf("images_per_second: %.0f\n", (double)(steps - 1) * o->batch / (now() - start));
    return !losses || fclose(losses) == 0;
}

int main(int argc, char **argv)
{
    static struct run r = {.opt = {.epochs = 2, .batch = 128, .rate = 1e-3, .seed = 1, .data = FASHION_FOLDER}};
    struct options *o = &r.opt;
    const struct flag flags[] = {
        {"epochs", "passes over the images", &o->epochs, NULL},
        {"batch", "images a step, of all ranks", &o->batch, NULL},
        {"rate", "learning rate", &o->rate, NULL}, {"seed", "of values and order", &o->seed, NULL},
        {"sharded", "1: split the optimizer's states among the ranks", &o->sharded, NULL},
        {"images", "use only so many; 0: all", &o->images, NULL},
        {"steps", "stop after so many; 0: never", &o->steps, NULL},
        {"bucket", "bytes of gradients sent at once; 0: 4 MiB", &o->bucket, NULL},
        {"data", "folder of the images", NULL, &o->data}, {"losses", "a file for each step's loss", NULL, &o->losses},
        {NULL, NULL, NULL, NULL}};
    if (!flags_parse(flags, argc, argv))
        return 2;
    bool ok = prepare(&r) && train(&r);
    if (ok && kl_comm_rank(r.comm) == 0) {
        printf("ranks: %d, transport: %s\n", kl_comm_ranks(r.comm), kl_comm_transport(r.comm));
        double accuracy = fashion_accuracy(&r.test, r.device, logits, &r);
        printf("accuracy: %.4f\n", accuracy);
        ok = accuracy >= 0;
    }
    if (!ok)
        fprintf(stderr, "data_parallel: rank %d: %s\n", kl_comm_rank(r.comm), kl_last_error());
    kl_loader_free(r.loader);
    kl_optimizer_free(r.adam);
    kl_comm_shards_free(r.shards);
    kl_params_free(r.params);
    kl_comm_free(r.comm);
    fashion_close(&r.train);
    fashion_close(&r.test);
    return ok ? 0 : 1;
}
