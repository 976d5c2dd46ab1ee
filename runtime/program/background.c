/* One thread for tasks that no caller waits for: compiling while the program already runs.  The first task starts it.
 * It ends at exit before the libraries of code generators are unloaded: exit handlers run in reverse order, and the
 * caller that adds a task has opened them before.  Tasks that are still queued then are dropped.  A fork waits until
 * the thread is between two tasks, or at a point where a task calls background_pause.  The thread then holds no lock,
 * also none of an allocator, which may be the user's or a sanitizer's. */
#define _GNU_SOURCE
#include "runtime/runtime.h"
#include "runtime/thread.h"
#include <stdlib.h>

struct task {
    void (*run)(void *ctx);
    void *ctx;
    struct task *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the variables below */
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct task *first, **last = &first;
static pthread_t thread;
/* signalled when the thread pauses and when the forks are over */
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static bool busy;                                      /* the thread runs a task and is not paused */
static unsigned forks;                                 /* running or waiting */
static bool started, ending;

static _Thread_local bool is_worker;

/* Needs the lock. */
static void background_wait_idle(void)
{
    busy = false;
    pthread_cond_broadcast(&turn);
}

static void *background_thread(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "kiln background");
    is_worker = true;
    pthread_mutex_lock(&lock);
    while (!ending) {
        struct task *t = first;
        if (!t || forks) {
            pthread_cond_wait(t ? &turn : &more, &lock);
            continue;
        }
        if (!(first = t->next)) last = &first;
        busy = true;
        pthread_mutex_unlock(&lock);
        t->run(t->ctx);
        mem_free(t);
        pthread_mutex_lock(&lock);
        background_wait_idle();
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void background_end(void)
{
    pthread_mutex_lock(&lock);
    bool join = started;
    ending = true;
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
static bool background_start(void)
{
    static bool registered; /* a child of fork inherits its parent's exit handlers */
    if (!registered && atexit(background_end)) return false;
    registered = true;
    return started = thread_start(&thread, NULL, background_thread, NULL);
}

bool background_run(void (*run)(void *ctx), void *ctx)
{
    struct task *t = mem_alloc(sizeof *t);
    if (!t) return false;
    *t = (struct task){run, ctx, NULL};
    pthread_mutex_lock(&lock);
    bool ok = !ending && (started || background_start());
    if (ok) {
        *last = t;
        last = &t->next;
        pthread_cond_signal(&more);
    }
    pthread_mutex_unlock(&lock);
    if (!ok) mem_free(t);
    return ok;
}

bool background_pause(void)
{
    pthread_mutex_lock(&lock);
    if (forks) {
        background_wait_idle();
        while (forks) pthread_cond_wait(&turn, &lock);
        busy = true;
    }
    bool more_to_do = !ending;
    pthread_mutex_unlock(&lock);
    return more_to_do;
}

/* A user's callback that forks on this thread must not wait for the thread itself. */
static void background_before_fork(void)
{
    pthread_mutex_lock(&lock);
    forks++;
    while (busy && !is_worker) pthread_cond_wait(&turn, &lock);
}

static void background_after_fork(bool child)
{
    forks--;
    if (child) { /* the child has no such thread; the owners of its tasks handle them */
        for (struct task *t = first, *next; t; t = next) {
            next = t->next;
            mem_free(t);
        }
        first = NULL;
        last = &first;
        started = false;
        more = turn = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
        busy = is_worker = false;
        forks = 0;
    }
    pthread_cond_broadcast(&turn);
    pthread_mutex_unlock(&lock);
}
const struct fork_part background_fork = {background_before_fork, background_after_fork};
