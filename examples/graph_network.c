/* A graph network on a sparse matrix: papers, say, that cite one another, of which a few have a subject.
 *
 * The words of a paper say little about its subject, its neighbours more.  Each of two layers takes the mean over a
 * paper's neighbours and itself, a product with a sparse matrix, and the same network without that is trained beside
 * it. All data are made here, the same at each run. */
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAPERS = 1000, SUBJECTS = 4, WORDS = 32, HIDDEN = 16, CITED = 6, LABELLED = 60, STEPS = 120 };
enum { STORED = PAPERS * (CITED + 1) };

struct data {
    int32_t starts[PAPERS + 1], cited[STORED], subject[PAPERS], labelled[LABELLED];
    float share[STORED], words[PAPERS][WORDS];
};

/* Steele, Lea and Flood's SplitMix64. */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}
static int below(uint64_t *state, int n) { return (int)(random_next(state) >> 33) % n; }
static float uniform(uint64_t *state) { return (float)(random_next(state) >> 40) * 0x1p-24f; }

/* Paper p is of subject p % SUBJECTS, cites that subject seven times in ten, and uses its words a little more than
 * others. */
static void make_data(struct data *d)
{
    uint64_t random = 7;
    for (int p = 0; p < PAPERS; p++) {
        d->subject[p] = p % SUBJECTS;
        d->starts[p] = p * (CITED + 1);
        for (int c = 0; c <= CITED; c++) {
            int other = below(&random, PAPERS);
            if (below(&random, 10) < 7)
                other += (p - other) % SUBJECTS;
            d->cited[d->starts[p] + c] = c ? (other + PAPERS) % PAPERS : p;
            d->share[d->starts[p] + c] = 1.0f / (CITED + 1);
        }
        for (int w = 0; w < WORDS; w++)
            d->words[p][w] = uniform(&random) + (w % SUBJECTS == p % SUBJECTS ? 0.1f : 0);
    }
    d->starts[PAPERS] = STORED;
    for (int i = 0; i < LABELLED; i++)
        d->labelled[i] = i * (PAPERS / LABELLED) + i % SUBJECTS;
}

/* [PAPERS, SUBJECTS]; graph kl_none: each paper by itself. */
static kl_tensor network(kl_tensor graph, kl_tensor words, const kl_tensor *w)
{
    kl_tensor h = kl_matmul(words, w[0]);
    h = kl_relu(graph.id ? kl_matmul(graph, h) : h);
    h = kl_matmul(h, w[1]);
    return graph.id ? kl_matmul(graph, h) : h;
}

/* Trains on the labelled papers; the share of the others whose subject it finds, below 0 after an error. */
static double train(kl_device dev, const struct data *d, kl_tensor graph, kl_tensor words)
{
    kl_tensor w[] = {kl_mul_scalar(kl_randn(dev, KL_F32, 2, (int64_t[]){WORDS, HIDDEN}, 1), 0.25),
                     kl_mul_scalar(kl_randn(dev, KL_F32, 2, (int64_t[]){HIDDEN, SUBJECTS}, 2), 0.25)};
    kl_optimizer *adam = kl_adam(2, w, &(kl_adam_options){.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                                                          .weight_decay = 0.1});
    kl_tensor labels = kl_input(dev, KL_I32, 1, (int64_t[]){PAPERS}, d->subject);
    kl_tensor known = kl_input(dev, KL_I32, 1, (int64_t[]){LABELLED}, d->labelled);
    for (int step = 0; step < STEPS; step++) {
        kl_trace_begin(graph.id ? "graph_step" : "alone_step");
        kl_tensor out = network(graph, words, w);
        kl_tensor loss = kl_cross_entropy(kl_take(out, 0, known), kl_take(labels, 0, known));
        kl_optimizer_step(adam, loss, 0.02);
        if (kl_trace_end() != KL_OK)
            return -1;
    }
    kl_tensor hit = kl_cast(kl_eq(kl_argmax(network(graph, words, w), 1), labels), KL_F32);
    double found = kl_item_f64(kl_sum_all(hit)), trained = kl_item_f64(kl_sum_all(kl_take(hit, 0, known)));
    kl_optimizer_free(adam);
    return (found - trained) / (PAPERS - LABELLED);
}

int main(void)
{
    kl_device dev = kl_device_default();
    struct data *d = malloc(sizeof *d);
    if (!d)
        return 1;
    make_data(d);
    kl_scope_begin();
    kl_tensor words = kl_input(dev, KL_F32, 2, (int64_t[]){PAPERS, WORDS}, d->words);
    kl_tensor graph = kl_sparse_csr(kl_input(dev, KL_F32, 1, (int64_t[]){STORED}, d->share),
                                    kl_input(dev, KL_I32, 1, (int64_t[]){PAPERS + 1}, d->starts),
                                    kl_input(dev, KL_I32, 1, (int64_t[]){STORED}, d->cited), PAPERS);
    double alone = train(dev, d, kl_none, words), with = train(dev, d, graph, words);
    kl_scope_end();
    free(d);
    if (alone < 0 || with < 0) {
        fprintf(stderr, "%s\n", kl_last_error());
        return 1;
    }
    printf("stored: %d of %d\naccuracy without the graph: %.3f\naccuracy: %.3f\n", STORED, PAPERS * PAPERS, alone,
           with);
    return 0;
}
