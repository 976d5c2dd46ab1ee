/* The progress display of a training, and a loop around its steps. */
#include "train.h"
#include "ir/file_signal.h"
#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* ---- progress ---- */

struct kl_progress {
    FILE *to;
    char unit[24], label[64];
    int64_t total, done;
    int64_t first;           /* units done when the clock was started, which is at the first call, because the first
                                step includes compilation */
    double started, drawn;   /* seconds */
    double every;
    double smooth;           /* moving average of the loss over about fifty calls */
    bool terminal, begun;
};

static double progress_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

kl_progress *kl_progress_new(FILE *to, const char *unit, int64_t total)
{
    kl_progress *p = total < 0 ? NULL : kl_memory_alloc(sizeof *p);
    if (!p) {
        kl_failf(NULL, total < 0 ? KL_ERR_ARGUMENT : KL_ERR_MEMORY, "progress_new: %s",
                total < 0 ? "a negative total" : "out of memory");
        return NULL;
    }
    p->to = to ? to : stderr;
    p->terminal = fileno(p->to) >= 0 && isatty(fileno(p->to));
    p->total = total;
    p->every = p->terminal ? 0.1 : 5;
    p->started = p->drawn = progress_now();
    kl_format(p->unit, sizeof p->unit, "%s", unit ? unit : "steps");
    return p;
}

void kl_progress_every(kl_progress *p, double seconds)
{
    if (p)
        p->every = seconds;
}

static void progress_draw(kl_progress *p)
{
    enum { WIDTH = 24 };
    char line[320], bar[WIDTH + 1], share_text[40] = "", left_text[40] = "";
    double now = progress_now(), spent = now - p->started;
    double rate = p->done > p->first && spent > 0 ? (double)(p->done - p->first) / spent : 0;
    const char *colon = *p->label && !p->terminal ? ": " : *p->label ? " " : "";
    p->drawn = now;
    if (p->total > 0) {
        double share = fmin((double)p->done / (double)p->total, 1);
        memset(bar, '.', WIDTH);
        memset(bar, '#', (size_t)(share * WIDTH));
        bar[WIDTH] = 0;
        if (p->terminal)
            kl_format(share_text, sizeof share_text, "[%s] %3.0f%%", bar, 100 * share);
        else
            kl_format(share_text, sizeof share_text, "%.0f%%", 100 * share);
        long left = rate > 0 && p->done < p->total ? (long)((double)(p->total - p->done) / rate + 0.5) : 0;
        kl_format(left_text, sizeof left_text, ", %ld:%02ld left", left / 60, left % 60);
    } else {
        kl_format(share_text, sizeof share_text, "%lld %s", (long long)p->done, p->unit);
    }
    kl_format(line, sizeof line, "%s%s%s, loss %.4f, %.*f %s/s%s", p->label, colon, share_text, p->smooth,
              rate < 10 ? 2 : 0, rate, p->unit, left_text);
    fprintf(p->to, p->terminal ? "\r%s\033[K" : "%s\n", line);
    fflush(p->to);
}

void kl_progress_add(kl_progress *p, int64_t n, const char *label, double loss)
{
    if (!p || n < 0)
        return;
    p->done += n;
    kl_format(p->label, sizeof p->label, "%s", label ? label : "");
    p->smooth = p->begun ? 0.98 * p->smooth + 0.02 * loss : loss;
    if (!p->begun) {
        p->begun = true;
        p->first = p->done;
        p->started = p->drawn = progress_now();
    }
    if (progress_now() - p->drawn >= p->every)
        progress_draw(p);
}

void kl_progress_free(kl_progress *p)
{
    if (!p)
        return;
    if (p->begun) {
        progress_draw(p);
        if (p->terminal)
            fputc('\n', p->to);
    }
    kl_memory_free(p);
}

/* ---- the loop ---- */

static kl_status loop_log(FILE *f, const char *path, int64_t step, double loss, double rate, double seconds)
{
    char line[160];
    kl_format(line, sizeof line, "{\"step\": %lld, \"loss\": %.9g, \"rate\": %.9g, \"seconds\": %.6f}\n",
              (long long)step, loss, rate, seconds);
    struct file_signal saved = file_signal_block();
    bool ok = fputs(line, f) >= 0 && fflush(f) == 0;
    file_signal_restore(&saved);
    if (!ok)
        return kl_failf(NULL, KL_ERR_IO, "train: cannot write %s: %s", path, strerror(errno));
    return KL_OK;
}

static kl_status loop_run(const kl_train_loop *l, kl_progress *progress, FILE *log)
{
    kl_metric_mean mean = {0};
    double started = progress_now();
    for (int64_t i = l->first; i < l->steps; i++) {
        double loss = NAN, rate = l->rate ? l->rate(l->ctx, i) : 0;
        kl_status s = l->step(l->ctx, i, rate, &loss);
        if (s == KL_OK && !isfinite(loss))
            s = kl_failf(NULL, KL_ERR_CHECK, "train: the loss of step %lld is %g", (long long)i, loss);
        if (s == KL_OK && log)
            s = loop_log(log, l->log, i, loss, rate, progress_now() - started);
        if (s != KL_OK)
            return s;
        kl_progress_add(progress, l->unit ? l->units : 1, NULL, loss);
        kl_metric_add(&mean, loss, 1);
        if (l->each && ((l->every > 0 && (i + 1) % l->every == 0) || i + 1 == l->steps)) {
            if ((s = l->each(l->ctx, i, kl_metric_value(&mean))) != KL_OK)
                return s;
            mean = (kl_metric_mean){0};
        }
    }
    return KL_OK;
}

kl_status kl_train(const kl_train_loop *l)
{
    if (!l || !l->step || l->first < 0 || l->units < 0)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "train: %s", l && l->step ? "a negative count" : "no step");
    FILE *log = l->log ? fopen(l->log, "a") : NULL;
    if (l->log && !log)
        return kl_failf(NULL, KL_ERR_IO, "train: cannot open %s: %s", l->log, strerror(errno));
    int64_t units = l->steps > l->first ? (l->steps - l->first) * (l->unit ? l->units : 1) : 0;
    kl_progress *progress = l->quiet ? NULL : kl_progress_new(NULL, l->unit ? l->unit : "steps", units);
    kl_status s = l->quiet || progress ? loop_run(l, progress, log) : KL_ERR_MEMORY;
    kl_progress_free(progress);
    if (log)
        fclose(log); /* each line was flushed */
    return s;
}
