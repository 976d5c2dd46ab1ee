/* Around training steps: metrics, progress, and a loop.  Included by <kiln/kiln.h>.
 *
 * All of it can be left alone: a loop of one's own around kl_trace_begin and kl_trace_end is as good. */
#include <kiln/kiln.h> /* in front of the guard: it includes this file */
#ifndef KILN_TRAIN_H
#define KILN_TRAIN_H
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- metrics ---- */

/* logits: [N, C] floats  labels: integers [N]  ->  f32 []: the share of rows whose label is among the k classes with
 * the largest logits; of equal ones the first counts as larger.  A label outside of 0..C-1 is wrong.
 * [ARGUMENT: k below 1; SHAPE; TYPE] */
KL_API_AT kl_tensor kl_metric_topk(kl_tensor logits, kl_tensor labels, int64_t k);
KL_API_AT kl_tensor kl_metric_accuracy(kl_tensor logits, kl_tensor labels); /* topk of 1 */
/* guesses, labels: integers [N]  ->  i32 [classes, classes]: how often a label (row) was guessed as (column); pairs
 * with one outside of 0..classes-1 are left out.  Add it to a state for the sum over batches.
 * [ARGUMENT, SHAPE, TYPE] */
KL_API_AT kl_tensor kl_metric_confusion(kl_tensor guesses, kl_tensor labels, int64_t classes);
/* e to the mean loss in nats a token. */
KL_API double kl_metric_perplexity(double loss);

/* A mean of numbers with weights: batches of unequal size. */
typedef struct kl_metric_mean {
    double sum, weight;
} kl_metric_mean;
KL_API void kl_metric_add(kl_metric_mean *mean, double value, double weight);
KL_API double kl_metric_value(const kl_metric_mean *mean); /* NaN of none */

/* ---- progress: what is done, the loss, the rate and the time left ---- */

/* On a terminal a bar that is drawn again in place, at most ten times a second; else a line every five seconds.  The
 * first kl_progress_add only starts the clock: the first step compiles. */
typedef struct kl_progress kl_progress;
/* unit: what is counted ("images"), copied; total: how many there are, 0: not known.  to: NULL: stderr.
 * [errors ARGUMENT, MEMORY: NULL] */
KL_API kl_progress *kl_progress_new(FILE *to, const char *unit, int64_t total);
/* Seconds between two drawings. */
KL_API void kl_progress_every(kl_progress *p, double seconds);
/* n more units are done; label (NULL: none) stands in front.  The loss shown is averaged over some fifty calls. */
KL_API void kl_progress_add(kl_progress *p, int64_t n, const char *label, double loss);
/* Draws a last time, ends the line, and frees.  NULL is fine. */
KL_API void kl_progress_free(kl_progress *p);

/* ---- a loop ---- */

/* Calls step(ctx, i, rate(ctx, i), &loss) for i from `first` to `steps` - 1.  It ends with the first error that a
 * function returns, and with CHECK at a loss that is not finite. */
typedef struct kl_train_loop {
    int64_t first, steps;
    kl_status (*step)(void *ctx, int64_t i, double rate, double *loss);
    double (*rate)(void *ctx, int64_t i);            /* learning rate; NULL: 0 */
    /* After step i, whenever `every` more are done (0: never) and at the end: evaluate, save; or NULL.  loss: the mean
     * since it was called last. */
    kl_status (*each)(void *ctx, int64_t i, double loss);
    int64_t every;
    void *ctx;
    const char *unit;                                /* what a step has `units` of ("tokens"); NULL: steps */
    int64_t units;
    bool quiet;                                      /* no progress on stderr */
    const char *log;                                 /* a file that gets a line of JSON a step, behind what it has:
                                                        {"step": 1, "loss": 2.3, "rate": 0.1, "seconds": 0.5}; NULL */
} kl_train_loop;
/* [errors ARGUMENT; IO: the log; CHECK; those of the functions] */
KL_API kl_status kl_train(const kl_train_loop *loop);

#ifdef __cplusplus
}
#endif
#endif
