/* Fork handlers.  The forking thread first takes every lock of Kiln's, in nesting order, and waits for the code
 * generators, which have their own locks.  So the child's copy of all data is consistent.  The child starts with a new
 * background thread, without an open recording and without half-built programs. (The thread pool, which is also used
 * without the rest of Kiln, has its own handler.) */
#include "passes/passes.h"
#include "runtime/profile/debugger.h"
#include "runtime/runtime.h"
#include <pthread.h>

/* Held shared during a code generator's work, exclusively by fork.  A waiting fork has priority over later readers. */
#if defined(PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP)
#define GATE PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
#else
#define GATE PTHREAD_RWLOCK_INITIALIZER
#endif
static pthread_rwlock_t gate = GATE;

void fork_hold(void) { pthread_rwlock_rdlock(&gate); }
void fork_release(void) { pthread_rwlock_unlock(&gate); }

static void gate_before_fork(void) { pthread_rwlock_wrlock(&gate); }
static void gate_after_fork(bool child)
{
    pthread_rwlock_unlock(&gate);
    if (child) gate = (pthread_rwlock_t)GATE; /* the threads that waited for it do not exist in the child */
}
static const struct fork_part gate_fork = {gate_before_fork, gate_after_fork};

/* In nesting order of their locks.  The background thread, for which a fork waits, takes all that follow its own. */
static const struct fork_part *const parts[] = {
    &log_fork, &async_fork, &background_fork, &tuned_fork, &gate_fork, &accelerators_fork, &cache_fork,
    &debugger_fork, &lower_memo_fork, &schedules_fork, &timeline_fork, &buffer_fork,
};
enum { PARTS = sizeof parts / sizeof *parts };

static void fork_prepare(void)
{
    for (int i = 0; i < PARTS; i++) parts[i]->before();
}

static void fork_resume(bool child)
{
    for (int i = PARTS; i-- > 0;) parts[i]->after(child);
}

static void in_parent(void) { fork_resume(false); }
static void in_child(void) { fork_resume(true); }
static void fork_register_handlers(void) { pthread_atfork(fork_prepare, in_parent, in_child); }

void fork_watch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fork_register_handlers);
}
