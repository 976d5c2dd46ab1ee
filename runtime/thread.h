/* Kiln's own threads. The system's default size of a thread's stack is the limit of the main thread's (ulimit -s),
 * which a host may have set low, and code generators need more than such a host's threads have. */
#ifndef RUNTIME_THREAD_H
#define RUNTIME_THREAD_H
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

enum { THREAD_MIN_STACK = 1 << 20 }; /* bytes; LLVM took 130 KiB for the largest kernel of the tests */

/* Starts a thread with all signals blocked, which are for the host's threads, and with a stack of at least
 * THREAD_MIN_STACK. attr: initialized, with what else the thread needs; or NULL. */
static inline bool thread_start(pthread_t *thread, pthread_attr_t *attr, void *(*run)(void *), void *ctx)
{
    pthread_attr_t own;
    size_t stack = 0;
    if (!attr && pthread_attr_init(&own)) return false;
    pthread_attr_t *a = attr ? attr : &own;
    if (!pthread_attr_getstacksize(a, &stack) && stack < THREAD_MIN_STACK)
        pthread_attr_setstacksize(a, THREAD_MIN_STACK);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool ok = !pthread_create(thread, a, run, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!attr) pthread_attr_destroy(&own);
    return ok;
}
#endif
