/* One thread for work that nobody waits for: compiling while the program already runs.  It is started by the first
 * task and ended at exit, before the code generators' libraries are taken down: exit handlers run in reverse order, and
 * whoever gives a task here has opened them.  What is still queued then is dropped. */
#define _GNU_SOURCE
#include "runtime/runtime.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct task {
    void (*run)(void *ctx);
    void *ctx;
    struct task *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct task *first, **last = &first;
static pthread_t thread;
static bool started;
static atomic_bool ending;

static pthread_mutex_t in_step = PTHREAD_MUTEX_INITIALIZER; /* held during each step of a task that fork has to wait for */

static void *work(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "kiln background");
    pthread_mutex_lock(&lock);
    while (!atomic_load(&ending)) {
        struct task *t = first;
        if (!t) {
            pthread_cond_wait(&more, &lock);
            continue;
        }
        if (!(first = t->next)) last = &first;
        pthread_mutex_unlock(&lock);
        t->run(t->ctx);
        mem_free(t);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void end(void)
{
    pthread_mutex_lock(&lock);
    bool join = started;
    atomic_store(&ending, true);
    pthread_cond_signal(&more);
    pthread_mutex_unlock(&lock);
    if (join) pthread_join(thread, NULL);
    for (struct task *t = first, *next; t; t = next) {
        next = t->next;
        mem_free(t);
    }
    first = NULL;
}

/* Needs the lock. */
static bool start(void)
{
    static bool registered; /* a child of fork has its parent's exit handlers */
    if (!registered && atexit(end)) return false;
    registered = true;
    sigset_t all, old; /* signals are for the embedder's threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    started = !pthread_create(&thread, NULL, work, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return started;
}

bool background_run(void (*run)(void *ctx), void *ctx)
{
    struct task *t = mem_alloc(sizeof *t);
    if (!t) return false;
    *t = (struct task){run, ctx, NULL};
    pthread_mutex_lock(&lock);
    bool ok = !atomic_load(&ending) && (started || start());
    if (ok) {
        *last = t;
        last = &t->next;
        pthread_cond_signal(&more);
    }
    pthread_mutex_unlock(&lock);
    if (!ok) mem_free(t);
    return ok;
}

bool background_step_begin(void)
{
    pthread_mutex_lock(&in_step);
    if (!atomic_load(&ending)) return true;
    pthread_mutex_unlock(&in_step);
    return false;
}

void background_step_end(void) { pthread_mutex_unlock(&in_step); }

void background_before_fork(void)
{
    pthread_mutex_lock(&in_step);
    pthread_mutex_lock(&lock);
}

void background_after_fork(bool child)
{
    if (child) { /* it has no such thread: its tasks are their owners' */
        for (struct task *t = first, *next; t; t = next) {
            next = t->next;
            mem_free(t);
        }
        first = NULL;
        last = &first;
        started = false;
        more = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    }
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&in_step);
}
