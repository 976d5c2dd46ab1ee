/* Fork: the forking thread takes every lock of Kiln's first, in the order in which they are nested, and waits for the
 * code generators, which have locks of their own.  So a child finds all of it consistent, and starts with
 * a background thread of its own, no recording and nothing half built.  (The pool, which also runs without the rest of
 * Kiln, looks after itself.) */
#include "runtime.h"
#include <pthread.h>

/* Held shared around a code generator's work, alone by fork.  A fork that waits goes before who comes later. */
#if defined(PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP)
#define GATE PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
#else
#define GATE PTHREAD_RWLOCK_INITIALIZER
#endif
static pthread_rwlock_t gate = GATE;

void fork_hold(void) { pthread_rwlock_rdlock(&gate); }
void fork_release(void) { pthread_rwlock_unlock(&gate); }

static void before(void)
{
    background_before_fork();
    pthread_rwlock_wrlock(&gate);
    accelerators_before_fork();
    cache_before_fork();
    lower_memo_before_fork();
    schedules_before_fork();
    timeline_before_fork();
    buffer_before_fork();
}

static void after(bool child)
{
    buffer_after_fork();
    timeline_after_fork(child);
    schedules_after_fork();
    lower_memo_after_fork();
    cache_after_fork(child);
    accelerators_after_fork(child);
    pthread_rwlock_unlock(&gate);
    if (child) gate = (pthread_rwlock_t)GATE; /* what waited for it is not there */
    background_after_fork(child);
    if (child) log_after_fork();
}

static void in_parent(void) { after(false); }
static void in_child(void) { after(true); }
static void watch(void) { pthread_atfork(before, in_parent, in_child); }

void fork_watch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch);
}
