/* The log: messages to a function of the host program.  Without a function a message costs one load. */
#define _GNU_SOURCE
#include "runtime.h"
#include <pthread.h>
#include <stdarg.h>

/* held while the function runs, so that it is not replaced during a call */
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static kl_log_fn *write_message;
static void *write_ctx;
static atomic_int min = KL_LOG_NONE;

void log_use(kl_log_fn *fn, void *ctx, kl_log_level level)
{
    pthread_rwlock_wrlock(&lock);
    write_message = fn;
    write_ctx = ctx;
    atomic_store(&min, fn ? level : KL_LOG_NONE);
    pthread_rwlock_unlock(&lock);
}

bool log_wants(kl_log_level level) { return (int)level >= atomic_load_explicit(&min, memory_order_relaxed); }

void log_message(kl_log_level level, const char *message)
{
    if (!log_wants(level)) return;
    pthread_rwlock_rdlock(&lock);
    if (write_message && (int)level >= atomic_load(&min)) write_message(write_ctx, level, message);
    pthread_rwlock_unlock(&lock);
}

/* A message is one line: line ends and runs of spaces become one space. */
static void join_lines(char *message)
{
    char *to = message;
    for (const char *c = message; *c; c++)
        if (*c != '\n' && (*c != ' ' || (to > message && to[-1] != ' '))) *to++ = *c;
        else if (*c == '\n' && to > message && to[-1] != ' ') *to++ = ' ';
    *to = 0;
}

void log_put(kl_log_level level, const char *fmt, ...)
{
    char message[2048];
    if (!log_wants(level)) return;
    va_list ap;
    va_start(ap, fmt);
    format_text_v(message, sizeof message, fmt, ap);
    va_end(ap);
    join_lines(message);
    log_message(level, message);
}

/* The lock is not taken before a fork, because the host's function, which runs under it, may fork. */
static void log_before_fork(void) {}
static void log_after_fork(bool child)
{
    if (child)
        lock = (pthread_rwlock_t)PTHREAD_RWLOCK_INITIALIZER;
}
const struct fork_part log_fork = {log_before_fork, log_after_fork};
