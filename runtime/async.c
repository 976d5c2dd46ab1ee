/* The thread of async.h.  It is started by the first task and ended at exit.  A fork waits until no task runs: the
 * child has no such thread, starts one of its own, and would find locks of libraries held by nothing. */
#define _GNU_SOURCE
#include "async.h"
#include "runtime.h"
#include "thread.h"
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;   /* tasks, or the end */
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;  /* a task */
static struct async_task *first, **last = &first;
static pthread_t thread;
static bool started, ending, registered;

static void *async_work(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "kiln comm");
    pthread_mutex_lock(&lock);
    while (!ending) {
        struct async_task *t = first;
        if (!t) {
            pthread_cond_wait(&more, &lock);
            continue;
        }
        pthread_mutex_unlock(&lock);
        t->run(t->ctx);
        pthread_mutex_lock(&lock);
        if (!(first = t->next)) last = &first;
        t->done = true; /* from here on it may be gone */
        pthread_cond_broadcast(&ended);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void async_end(void)
{
    pthread_mutex_lock(&lock);
    bool join = started && !first; /* not while another thread's program still waits for a task */
    ending = true;
    pthread_cond_signal(&more);
    pthread_mutex_unlock(&lock);
    if (join) pthread_join(thread, NULL);
}

/* Needs the lock. */
static bool async_thread(void)
{
    if (started) return true;
    if (ending || (!registered && atexit(async_end))) return false;
    registered = true;
    return started = thread_start(&thread, NULL, async_work, NULL);
}

void async_start(struct async_task *t)
{
    t->next = NULL;
    t->done = false;
    pthread_mutex_lock(&lock);
    bool there = async_thread();
    if (there) {
        *last = t;
        last = &t->next;
        pthread_cond_signal(&more);
    }
    pthread_mutex_unlock(&lock);
    if (there) return;
    t->run(t->ctx);
    t->done = true;
}

void async_wait(struct async_task *t)
{
    pthread_mutex_lock(&lock);
    while (!t->done) pthread_cond_wait(&ended, &lock);
    pthread_mutex_unlock(&lock);
}

static void async_before_fork(void)
{
    pthread_mutex_lock(&lock);
    while (first && started) pthread_cond_wait(&ended, &lock);
}

static void async_after_fork(bool child)
{
    if (child) {
        started = false;
        more = ended = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    }
    pthread_mutex_unlock(&lock);
}
const struct fork_part async_fork = {async_before_fork, async_after_fork};
