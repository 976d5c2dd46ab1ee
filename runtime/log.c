/* The log: messages to a function of the host program, and to the file that KILN_LOG names.  Without either a message
 * costs one load. */
#define _GNU_SOURCE
#include "runtime.h"
#include "ir/file_signal.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* held while a function runs, so that it is not replaced during a call */
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
/* where messages of a level and above go */
static struct log_sink { kl_log_fn *fn; void *ctx; kl_log_level level; } host = {.level = KL_LOG_NONE},
                                                                         own = {.level = KL_LOG_NONE};
static atomic_int min = KL_LOG_NONE; /* of the two */

static void sink_set(struct log_sink *sink, kl_log_fn *fn, void *ctx, kl_log_level level)
{
    pthread_rwlock_wrlock(&lock);
    *sink = (struct log_sink){fn, ctx, fn ? level : KL_LOG_NONE};
    atomic_store(&min, host.level < own.level ? host.level : own.level);
    pthread_rwlock_unlock(&lock);
}

void log_use(kl_log_fn *fn, void *ctx, kl_log_level level) { sink_set(&host, fn, ctx, level); }

bool log_wants(kl_log_level level) { return (int)level >= atomic_load_explicit(&min, memory_order_relaxed); }

void log_message(kl_log_level level, const char *message)
{
    if (!log_wants(level)) return;
    pthread_rwlock_rdlock(&lock);
    if (host.fn && level >= host.level) host.fn(host.ctx, level, message);
    if (own.fn && level >= own.level) own.fn(own.ctx, level, message);
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

/* ---- KILN_LOG=LEVEL[:FILE] ---- */

static const char *const level_name[] = {"debug", "info", "warn", "error", "none"};

const char *log_level_name(kl_log_level level) { return (unsigned)level <= KL_LOG_NONE ? level_name[level] : "?"; }

bool log_setting_parse(const char *value, kl_log_level *level, const char **file)
{
    size_t n = strcspn(value, ":");
    for (unsigned i = 0; i <= KL_LOG_NONE; i++)
        if (strlen(level_name[i]) == n && !strncmp(level_name[i], value, n)) {
            *level = (kl_log_level)i;
            *file = value[n] ? value + n + 1 : NULL;
            return !*file || **file;
        }
    return false;
}

int log_file_open(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
}

/* One write a line, so that lines of several threads and processes stay whole. */
static void write_line(void *ctx, kl_log_level level, const char *message)
{
    char line[2304];
    int n = snprintf(line, sizeof line, "kiln: %s: %.2200s\n", level_name[level], message);
    struct file_signal saved = file_signal_block();
    ssize_t ignored = write((int)(intptr_t)ctx, line, (size_t)n);
    (void)ignored; /* a log that cannot be written changes nothing else */
    file_signal_restore(&saved);
}

static void start_own(void)
{
    const char *value = getenv("KILN_LOG"), *file;
    kl_log_level level;
    if (!value || !log_setting_parse(value, &level, &file)) return; /* environment_check says what is wrong */
    int fd = file ? log_file_open(file) : STDERR_FILENO;
    if (fd >= 0) sink_set(&own, write_line, (void *)(intptr_t)fd, level);
}

void log_from_environment(void)
{
    static pthread_once_t asked = PTHREAD_ONCE_INIT;
    pthread_once(&asked, start_own);
    environment_log();
}

/* The lock is not taken before a fork, because the host's function, which runs under it, may fork. */
static void log_before_fork(void) {}
static void log_after_fork(bool child)
{
    if (child)
        lock = (pthread_rwlock_t)PTHREAD_RWLOCK_INITIALIZER;
}
const struct fork_part log_fork = {log_before_fork, log_after_fork};
