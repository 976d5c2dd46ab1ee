/* Training progress on stderr: a bar redrawn in place on a terminal, else a plain line now and then. */
#ifndef EXAMPLES_PROGRESS_H
#define EXAMPLES_PROGRESS_H
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct progress {
    const char *unit;          /* what is counted, e.g. "images" */
    long total, done;          /* in units */
    long first;                /* units done when the clock was started: the first step's, which compiles */
    double started, drawn;     /* seconds */
    double every;              /* seconds between two drawings */
    bool terminal;
};

static inline double progress_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void progress_start(struct progress *p, const char *unit, long total)
{
    bool terminal = isatty(STDERR_FILENO);
    double now = progress_now();
    *p = (struct progress){.unit = unit, .total = total, .started = now, .drawn = now,
                           .every = terminal ? 0.1 : 5.0, .terminal = terminal};
}

/* Draws `label`, the share done, the loss, the rate and the time left. */
static inline void progress_draw(struct progress *p, const char *label, double loss)
{
    enum { WIDTH = 24 };
    double now = progress_now(), spent = now - p->started;
    double share = p->total > 0 ? (double)p->done / (double)p->total : 1;
    double rate = p->done > p->first && spent > 0 ? (double)(p->done - p->first) / spent : 0;
    long left = rate > 0 ? (long)((double)(p->total - p->done) / rate + 0.5) : 0;
    p->drawn = now;
    if (p->terminal) {
        char bar[WIDTH + 1];
        int full = (int)(share * WIDTH);
        memset(bar, '#', (size_t)full);
        memset(bar + full, '.', (size_t)(WIDTH - full));
        bar[WIDTH] = 0;
        fprintf(stderr, "\r%s [%s] %3.0f%%  loss %.4f  %.0f %s/s  %ld:%02ld left\033[K", label, bar, 100 * share, loss,
                rate, p->unit, left / 60, left % 60);
    } else {
        fprintf(stderr, "%s: %.0f%%, loss %.4f, %.0f %s/s, %ld:%02ld left\n", label, 100 * share, loss, rate, p->unit,
                left / 60, left % 60);
    }
    fflush(stderr);
}

/* Counts `n` more units; draws if the last drawing is long enough ago. */
static inline void progress_add(struct progress *p, long n, const char *label, double loss)
{
    p->done += n;
    if (!p->first) {
        p->first = n;
        p->started = p->drawn = progress_now();
    }
    if (progress_now() - p->drawn >= p->every)
        progress_draw(p, label, loss);
}

/* Draws a last time and ends the line. */
static inline void progress_finish(struct progress *p, const char *label, double loss)
{
    progress_draw(p, label, loss);
    if (p->terminal)
        fputc('\n', stderr);
}

#endif
