/* The timeline: spans of every thread, recorded by that thread, and times summed for each program.
 *
 * When it is off, a span costs one load.  When it is on, each thread writes to its own log under a lock that other
 * threads take only when the recording ends.  Names of kernels and programs are valid until the process ends; other
 * names are copied once each. */
#define _GNU_SOURCE
#include "runtime/runtime.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BUCKETS = 256 };
struct kept_name { struct kept_name *next; char s[]; };

struct timeline_log {
    pthread_mutex_t lock;     /* guards the events */
    struct thread_events e;
    atomic_bool ended;        /* its thread has ended */
    struct timeline_log *next;
};

atomic_bool timeline_is_on;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the variables below; taken before a log's lock */
static struct timeline_log *logs;
static struct kept_name *names[BUCKETS];
static bool started, started_for_file;
static int64_t start_time;
static atomic_uint_fast64_t kept, dropped;
static struct { atomic_uint_fast64_t calls, ns; } total[SPANS];
static _Atomic(struct times *) all_times; /* of every program that was ever timed */

static _Thread_local struct timeline_log *mine;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool key_works;

int64_t timeline_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- logs ---- */

static void thread_end(void *p)
{
    struct timeline_log *l = p;
    atomic_store(&l->ended, true);
    mine = NULL;
}

static void timeline_make_key(void) { key_works = !pthread_key_create(&key, thread_end); }

static struct timeline_log *log_new(void)
{
    pthread_once(&once, timeline_make_key);
    struct timeline_log *l = key_works ? mem_alloc(sizeof *l) : NULL;
    if (!l || pthread_mutex_init(&l->lock, NULL) || pthread_setspecific(key, l)) {
        mem_free(l);
        return NULL;
    }
    l->e.tid = syscall(SYS_gettid);
    if (l->e.tid == getpid() || pthread_getname_np(pthread_self(), l->e.name, sizeof l->e.name))
        snprintf(l->e.name, sizeof l->e.name, "main");
    pthread_mutex_lock(&lock);
    l->next = logs;
    logs = l;
    pthread_mutex_unlock(&lock);
    return mine = l;
}

/* The copy of a name; NULL: out of memory. */
static const char *keep_name(const char *s)
{
    size_t size = strlen(s) + 1;
    pthread_mutex_lock(&lock);
    struct kept_name **at = &names[bytes_hash(s, size).lo % BUCKETS], *k = *at;
    while (k && strcmp(k->s, s)) k = k->next;
    if (!k && (k = mem_alloc(sizeof *k + size))) {
        memcpy(k->s, s, size);
        k->next = *at;
        *at = k;
    }
    pthread_mutex_unlock(&lock);
    return k ? k->s : NULL;
}

static bool timeline_keep(const struct event *event)
{
    struct timeline_log *l = mine ? mine : log_new();
    if (!l || atomic_fetch_add_explicit(&kept, 1, memory_order_relaxed) >= EVENTS_MAX) return false;
    pthread_mutex_lock(&l->lock);
    bool ok = mem_reserve(&l->e.v, &l->e.cap, l->e.n + 1, sizeof *l->e.v);
    if (ok) l->e.v[l->e.n++] = *event;
    pthread_mutex_unlock(&l->lock);
    return ok;
}

void span_add(enum span kind, const char *name, int64_t began, int64_t ns, int64_t bytes, int64_t flops)
{
    if (!began || !atomic_load_explicit(&timeline_is_on, memory_order_relaxed)) return;
    struct event event = {began, ns, name, bytes, flops, kind};
    atomic_fetch_add_explicit(&total[kind].calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&total[kind].ns, (uint64_t)event.ns, memory_order_relaxed);
    if (kind >= SPAN_RECORD) event.name = keep_name(name);
    if (!event.name || !timeline_keep(&event)) atomic_fetch_add_explicit(&dropped, 1, memory_order_relaxed);
}

void span_end(enum span kind, const char *name, int64_t began)
{
    if (began) span_add(kind, name, began, timeline_now() - began, 0, 0);
}

/* ---- times of programs ---- */

struct times *exec_times(const struct exec *shared)
{
    struct exec *x = (struct exec *)shared;
    struct times *t = atomic_load_explicit(&x->times, memory_order_acquire), *none = NULL;
    if (t || !(t = mem_alloc(sizeof *t + x->program->rows * sizeof *t->row))) return t;
    t->x = x;
    if (!atomic_compare_exchange_strong(&x->times, &none, t)) { /* another thread was first */
        mem_free(t);
        return none;
    }
    t->next = atomic_load(&all_times);
    while (!atomic_compare_exchange_weak(&all_times, &t->next, t)) continue;
    return t;
}

const struct times *times_next(const struct times *at) { return at ? at->next : atomic_load(&all_times); }

/* ---- on and off ---- */

/* Frees a log's events and, if its thread has ended, the log; needs the lock. */
static void empty_logs(void)
{
    for (struct timeline_log **p = &logs, *l; (l = *p);) {
        pthread_mutex_lock(&l->lock);
        mem_free(l->e.v);
        l->e.v = NULL;
        l->e.n = l->e.cap = 0;
        bool gone = atomic_load(&l->ended);
        pthread_mutex_unlock(&l->lock);
        if (gone) {
            *p = l->next;
            pthread_mutex_destroy(&l->lock);
            mem_free(l);
        } else {
            p = &l->next;
        }
    }
}

bool timeline_start(bool for_file, struct err *e)
{
    pthread_mutex_lock(&lock);
    bool ok = !started;
    if (ok) {
        empty_logs();
        for (struct times *t = atomic_load(&all_times); t; t = t->next)
            for (uint32_t i = 0; i < t->x->program->rows; i++) {
                atomic_store_explicit(&t->row[i].calls, 0, memory_order_relaxed);
                atomic_store_explicit(&t->row[i].ns, 0, memory_order_relaxed);
            }
        for (int i = 0; i < SPANS; i++) {
            atomic_store(&total[i].calls, 0);
            atomic_store(&total[i].ns, 0);
        }
        atomic_store(&kept, 0);
        atomic_store(&dropped, 0);
        start_time = timeline_now();
        started = true;
        started_for_file = for_file;
        atomic_store(&timeline_is_on, true);
    }
    pthread_mutex_unlock(&lock);
    return ok || err_set(e, KL_ERR_ARGUMENT, "a profile is being made already%s",
                         started_for_file ? ", for KILN_PROFILE" : "");
}

/* Moves the events of a log to the end of the list; its thread continues with an empty log. */
static bool take_log(struct timeline *out, struct timeline_log *l)
{
    if (!mem_reserve(&out->thread, &out->cap, out->n + 1, sizeof *out->thread)) return false;
    pthread_mutex_lock(&l->lock);
    out->thread[out->n++] = l->e;
    l->e.v = NULL;
    l->e.n = l->e.cap = 0;
    pthread_mutex_unlock(&l->lock);
    return true;
}

bool timeline_stop(bool for_file, struct timeline *out, struct err *e)
{
    *out = (struct timeline){0};
    pthread_mutex_lock(&lock);
    bool ok = started && started_for_file == for_file;
    if (!ok) {
        pthread_mutex_unlock(&lock);
        return err_set(e, KL_ERR_ARGUMENT, "no profile is being made");
    }
    atomic_store(&timeline_is_on, false);
    started = false;
    for (struct timeline_log *l = logs; ok && l; l = l->next) ok = take_log(out, l);
    empty_logs();
    out->start = start_time;
    out->end = timeline_now();
    out->dropped = atomic_load(&dropped);
    for (int i = 0; i < SPANS; i++) {
        out->total[i].calls = atomic_load(&total[i].calls);
        out->total[i].ns = atomic_load(&total[i].ns);
    }
    pthread_mutex_unlock(&lock);
    if (ok) return true;
    timeline_free(out);
    return err_set(e, KL_ERR_MEMORY, "no memory for the profile");
}

void timeline_free(struct timeline *t)
{
    for (uint32_t i = 0; i < t->n; i++) mem_free(t->thread[i].v);
    mem_free(t->thread);
    *t = (struct timeline){0};
}

/* ---- KILN_PROFILE ---- */

static char *file;            /* the path; owned by the process that started it */
static pid_t owner;

static void timeline_write_file(void)
{
    struct timeline t;
    struct err e = {0};
    if (getpid() != owner) return; /* a child of fork: the parent writes the file */
    if (timeline_stop(true, &t, &e)) {
        if (!timeline_json(&t, file, &e)) log_put(KL_LOG_WARN, "KILN_PROFILE: %s", e.msg);
        timeline_free(&t);
    }
    mem_free(file);
    file = NULL;
}

static void start_for_file(void)
{
    struct err e = {0};
    const char *env = getenv("KILN_PROFILE");
    if (!env || !*env || !(file = mem_text(env))) return;
    owner = getpid();
    if (!timeline_start(true, &e) || atexit(timeline_write_file)) {
        mem_free(file);
        file = NULL;
    }
}

void timeline_from_environment(void)
{
    static pthread_once_t asked = PTHREAD_ONCE_INIT;
    pthread_once(&asked, start_for_file);
}

/* ---- fork ---- */

static void timeline_before_fork(void)
{
    pthread_mutex_lock(&lock);
    for (struct timeline_log *l = logs; l; l = l->next) pthread_mutex_lock(&l->lock);
}

static void timeline_after_fork(bool child)
{
    for (struct timeline_log *l = logs; l; l = l->next) {
        if (child && l != mine) atomic_store(&l->ended, true);
        pthread_mutex_unlock(&l->lock);
    }
    if (child) {
        atomic_store(&timeline_is_on, false);
        started = false;
    }
    pthread_mutex_unlock(&lock);
}
const struct fork_part timeline_fork = {timeline_before_fork, timeline_after_fork};
