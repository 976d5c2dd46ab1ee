/* What a training program needs beside its steps: metrics, a progress display, and a training loop.  Included by
 * <kiln/train.h>.
 *
 * None of it is required: a program may have its own loop around kl_trace_begin and kl_trace_end. */
#ifndef KILN_TRAIN_LOOP_H
#define KILN_TRAIN_LOOP_H
#include <kiln/kiln.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- metrics ---- */

/* logits: [N, C] floats  labels: integers [N]  ->  f32 []: the fraction of rows whose label is among the k classes
 * with the largest logits.  Of equal logits the one with the lower index counts as larger.  Labels
 * (<kiln/nn.h>): KL_IGNORED_LABEL is not counted, another outside of 0..C-1 counts as wrong.
 * [ARGUMENT: k below 1; SHAPE; TYPE] */
KL_API_AT kl_tensor kl_metric_topk(kl_tensor logits, kl_tensor labels, int64_t k);
KL_API_AT kl_tensor kl_metric_accuracy(kl_tensor logits, kl_tensor labels); /* topk with k = 1 */
/* guesses, labels: integers [N]  ->  i32 [classes, classes]: element (i, j) is the number of samples with label i
 * and guess j.  A sample whose label or guess is outside of 0..classes-1 is not counted.  Add the result to a state
 * to sum it over batches.
 * [ARGUMENT, SHAPE, TYPE] */
KL_API_AT kl_tensor kl_metric_confusion(kl_tensor guesses, kl_tensor labels, int64_t classes);
/* Returns exp(loss).  loss: the mean loss in nats per token. */
KL_API double kl_metric_perplexity(double loss);

/* A weighted mean, for example over batches of unequal size. */
typedef struct kl_metric_mean {
    double sum, weight;
} kl_metric_mean;
KL_API void kl_metric_add(kl_metric_mean *mean, double value, double weight);
KL_API double kl_metric_value(const kl_metric_mean *mean); /* NaN if nothing was added */

/* ---- progress: what is done, the loss, the rate and the time left ---- */

/* Shows a progress bar on a terminal, which is redrawn in place at most ten times a second.  Other files get a line
 * every five seconds.  The first kl_progress_add only starts the clock, because the first step includes compilation. */
typedef struct kl_progress kl_progress;
/* unit: the name of what is counted ("images"); it is copied.  total: the number of units; 0: not known.  to: NULL:
 * stderr.
 * [errors ARGUMENT, MEMORY: NULL] */
KL_API kl_progress *kl_progress_new(FILE *to, const char *unit, int64_t total);
/* Sets the time between two drawings, in seconds. */
KL_API void kl_progress_every(kl_progress *p, double seconds);
/* Records that n more units are done.  label (NULL: none) is printed at the start of the line.  The loss that is
 * shown is a moving average over about fifty calls. */
KL_API void kl_progress_add(kl_progress *p, int64_t n, const char *label, double loss);
/* Draws a last time, ends the line, and frees.  NULL is allowed. */
KL_API void kl_progress_free(kl_progress *p);

/* ---- a loop ---- */

/* Calls step(ctx, i, rate(ctx, i), &loss) for i from `first` to `steps` - 1.  The loop stops at the first error that
 * a function returns, and with the error CHECK at a loss that is not finite. */
typedef struct kl_train_loop {
    int64_t first, steps;
    kl_status (*step)(void *ctx, int64_t i, double rate, double *loss);
    double (*rate)(void *ctx, int64_t i);            /* learning rate; NULL: 0 */
    /* Called after each `every` steps (0: never) and after the last step, to evaluate or to save; may be NULL.  i:
     * the last step.  loss: the mean since the previous call. */
    kl_status (*each)(void *ctx, int64_t i, double loss);
    int64_t every;
    void *ctx;
    const char *unit;                                /* the unit of progress ("tokens"), of which each step has
                                                        `units`; NULL: steps */
    int64_t units;
    bool quiet;                                      /* prints no progress on stderr */
    const char *log;                                 /* a file to which each step appends a line of JSON, or NULL:
                                                        {"step": 1, "loss": 2.3, "rate": 0.1, "seconds": 0.5} */
} kl_train_loop;
/* Runs the loop.  [errors ARGUMENT; IO: the log; CHECK; those of the functions] */
KL_API kl_status kl_train(const kl_train_loop *loop);

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/train/loop.h> /* made from the prototypes marked KL_API_AT */
#endif
