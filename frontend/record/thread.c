/* Per-thread state and the global lock. */
#include "frontend/frontend.h"
#include <pthread.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;
static struct buffer **due; /* borrowed buffers to release when the lock is free; guarded by it */
static uint32_t ndue, due_cap;

static THREAD_LOCAL struct thread *self;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool key_works;

static void thread_end(void *p)
{
    struct thread *t = p;
    regions_leave(t, (void *)UINTPTR_MAX);
    if (trace_is_refused(t))
        trace_drop(t);
    blocks_resume(t);
    if (t->tracing)
        trace_drop(t);
    trace_end_failed(t);
    trace_free(t->trace);
    trace_free(t->refused);
    graph_free(t->spare);
    cancel_limits_end(t);
    front_lock();
    entries_return(t);
    front_unlock();
    mem_free(t->made);
    mem_free(t->scope);
    mem_free(t->narrow);
    mem_free(t->log.s);
    mem_free(t->dump);
    mem_free(t->miss);
    mem_free(t->autocast);
    name_scopes_free(t);
    op_profile_free(t->op_profile);
    dump_next_to(NULL);
    mem_free(t);
    self = NULL;
}

/* A child of fork has none of the other threads, which would release the lock or finish their writes. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
    dispatch_lock();
}
static void parent_after_fork(void)
{
    dispatch_unlock();
    pthread_mutex_unlock(&lock);
}
static void child_after_fork(void)
{
    entries_after_fork();
    idle = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    parent_after_fork();
}

static void thread_start(void)
{
    key_works = pthread_key_create(&key, thread_end) == 0;
    fork_watch(); /* called first, because the lock here is the first that fork takes */
    pthread_atfork(before_fork, parent_after_fork, child_after_fork);
    log_from_environment();
    timeline_from_environment();
}

/* The error of kl_set_memory if this thread had no struct yet, which would need memory. */
static _Thread_local uint8_t memory_refused; /* enum memory_refusal */

static void report_refusal(struct thread *t, enum memory_refusal why)
{
    static const char *const message[] = {[MEMORY_IN_USE] = "set_memory: Kiln has memory in use already",
                                          [MEMORY_INCOMPLETE] = "set_memory: a function is NULL"};
    if (why)
        err_set(&t->last, KL_ERR_ARGUMENT, "%s", message[why]);
}

void thread_refuse_memory(enum memory_refusal why)
{
    if (!self) {
        memory_refused = (uint8_t)why;
        return;
    }
    self->last.code = KL_OK;
    report_refusal(self, why);
}

static _Thread_local bool begin_refused; /* kl_trace_begin, for the same reason */

void thread_remember_begin(void) { begin_refused = true; }

static struct thread *make_self(void) __attribute__((noinline, cold));
static struct thread *make_self(void)
{
    static _Thread_local bool failed; /* an error for which there was no memory */
    pthread_once(&once, thread_start);
    struct thread *t = key_works && dispatch_start() ? mem_alloc(sizeof *t) : NULL;
    if (!t || !(t->trace = mem_alloc(sizeof *t->trace)) || !(t->refused = mem_alloc(sizeof *t->refused)) ||
        pthread_setspecific(key, t) != 0) {
        if (t) {
            mem_free(t->trace);
            mem_free(t->refused);
        }
        mem_free(t);
        failed = true;
        return NULL;
    }
    t->free = t->failed = t->trace->temps = t->refused->temps = NO_ENTRY;
    t->kernels = KERNELS_DEEPEST;
    if (failed)
        err_set(&t->last, KL_ERR_MEMORY, "no memory for what Kiln keeps for each thread");
    failed = false;
    report_refusal(t, memory_refused);
    memory_refused = 0;
    dispatch_log_start(t);
    self = t;
    if (begin_refused)
        trace_begin_without_memory(t);
    begin_refused = false;
    return t;
}

struct thread *thread_self(void)
{
    struct thread *t = self;
    if (!t && !(t = make_self()))
        return NULL;
    t->reads++;
    return t;
}

void front_lock(void)
{
    pthread_mutex_lock(&lock);
}

void front_unlock(void)
{
    if (!ndue) {
        pthread_mutex_unlock(&lock);
        return;
    }
    struct buffer **drop = due;
    uint32_t n = ndue;
    due = NULL;
    ndue = due_cap = 0;
    pthread_mutex_unlock(&lock);
    for (uint32_t i = 0; i < n; i++)
        buffer_unref(drop[i]);
    mem_free(drop);
}

void front_wait(void)
{
    pthread_cond_wait(&idle, &lock);
}

bool front_wait_cancellable(struct err *e)
{
    const struct cancellation *cancel = cancellation_current();
    if (!cancel) {
        front_wait();
        return true;
    }
    enum { POLL_NS = 5000000 }; /* a signal handler can wake no waiting thread */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += POLL_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&idle, &lock, &until);
    return !cancellation_requested(cancel, e);
}

void front_wake(void)
{
    pthread_cond_broadcast(&idle);
}

/* The release callback of the user's memory may call Kiln, so it is not called under the lock, unless there is no
 * memory to note it for later. */
void front_drop(struct buffer *b)
{
    if (b && b->release && mem_reserve(&due, &due_cap, ndue + 1, sizeof *due))
        due[ndue++] = b;
    else
        buffer_unref(b);
}
