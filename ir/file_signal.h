/* Writes to files without SIGXFSZ: past a limit of file sizes (ulimit -f) the kernel sends that signal, which ends the
 * process, before write() fails with EFBIG. A library must let its host live, so the signal is blocked in this thread
 * while files are written, and taken away if it came; the write then fails as it does on a full disk.
 *
 *     struct file_signal saved = file_signal_block();
 *     ... open, write, close ...
 *     file_signal_restore(&saved);
 *
 * whole_file_open and whole_file_close do so around a file that is written from its beginning. errno stays as the
 * writes left it. A signal that was pending before stays pending. Header only and of POSIX calls alone, so that any
 * folder may include it. */
#ifndef KILN_FILE_SIGNAL_H
#define KILN_FILE_SIGNAL_H
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

struct file_signal {
    sigset_t mask;  /* of the thread, before */
    bool pending;   /* SIGXFSZ was pending before */
};

static inline struct file_signal file_signal_block(void)
{
    struct file_signal saved;
    sigset_t pending, block;
    sigpending(&pending);
    saved.pending = sigismember(&pending, SIGXFSZ) == 1;
    sigemptyset(&block);
    sigaddset(&block, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &block, &saved.mask);
    return saved;
}

static inline void file_signal_restore(const struct file_signal *saved)
{
    int cause = errno;
    sigset_t taken;
    sigemptyset(&taken);
    sigaddset(&taken, SIGXFSZ);
    while (!saved->pending && sigtimedwait(&taken, NULL, &(struct timespec){0}) < 0 && errno == EINTR)
        ;
    pthread_sigmask(SIG_SETMASK, &saved->mask, NULL);
    errno = cause;
}

struct whole_file { FILE *f; struct file_signal saved; };

/* NULL: it cannot be made, as whole_file_close, which has to follow, says again. */
static inline FILE *whole_file_open(struct whole_file *w, const char *path)
{
    w->saved = file_signal_block();
    return w->f = fopen(path, "wb");
}

/* false: it could not be made or not all be written; errno is that of the first failure. */
static inline bool whole_file_close(struct whole_file *w)
{
    bool ok = w->f && !fflush(w->f) && !ferror(w->f);
    int cause = errno;
    if (w->f && fclose(w->f) && ok) {
        ok = false;
        cause = errno;
    }
    errno = cause;
    file_signal_restore(&w->saved);
    return ok;
}
#endif
