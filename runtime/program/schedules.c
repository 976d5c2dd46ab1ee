/* Schedules set by the user.  Sections that programs have been built with are kept as long as the process, so that an
 * equal text later finds the same section. */
#include "runtime/runtime.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything here except the number */
static struct sched_sections current;
static const struct sched_section **known; /* sections requested so far, each text once */
static uint32_t nknown, known_cap;
static bool asked_environment;
static _Atomic uint64_t number;

static void schedules_before_fork(void) { pthread_mutex_lock(&lock); }
static void schedules_after_fork(bool child) { (void)child, pthread_mutex_unlock(&lock); }
const struct fork_part schedules_fork = {schedules_before_fork, schedules_after_fork};

uint64_t schedules_number(void) { return atomic_load_explicit(&number, memory_order_acquire); }

void schedules_changed(void) { atomic_fetch_add_explicit(&number, 1, memory_order_release); }

static void schedules_replace(struct sched_sections *by)
{
    schedules_free(&current);
    current = *by;
    schedules_changed();
}

bool schedules_set(const char *text, size_t len, const char *file, struct err *e)
{
    struct sched_sections s = {0};
    if (!schedules_parse(text, len, file, &s, e)) {
        schedules_free(&s);
        return false;
    }
    pthread_mutex_lock(&lock);
    asked_environment = true; /* later settings override the environment */
    schedules_replace(&s);
    pthread_mutex_unlock(&lock);
    return true;
}

/* Reads KILN_SCHEDULES once.  A file that cannot be read or parsed is read at every program, which is not built.  Needs
 * the lock. */
static bool ask_environment(struct err *e)
{
    const char *path = asked_environment ? NULL : getenv("KILN_SCHEDULES");
    struct sched_sections s = {0};
    if (path && *path) {
        size_t len;
        struct err why = {0};
        char *text = text_file_read(path, &len, &why);
        if (!text) err_set(e, why.code, "KILN_SCHEDULES: %s", why.msg);
        bool ok = text && schedules_parse(text, len, path, &s, e);
        mem_free(text);
        if (!ok) {
            schedules_free(&s);
            return false;
        }
        schedules_replace(&s);
    }
    return asked_environment = true;
}

static bool same_section(const struct sched_section *a, const struct sched_section *b)
{
    return a->n == b->n && a->unfused == b->unfused && !strcmp(a->graph, b->graph) && !strcmp(a->file, b->file) &&
           (!a->n || !memcmp(a->v, b->v, a->n * sizeof *a->v));
}

/* A permanent section with this text.  Needs the lock. */
static const struct sched_section *schedules_keep(const struct sched_section *s)
{
    for (uint32_t i = 0; i < nknown; i++)
        if (same_section(known[i], s)) return known[i];
    struct sched_section *own = mem_alloc(sizeof *own);
    struct sched_line *lines = mem_alloc((s->n + !s->n) * sizeof *lines);
    if (!own || !lines || !mem_reserve(&known, &known_cap, nknown + 1, sizeof *known)) {
        mem_free(own);
        mem_free(lines);
        return NULL;
    }
    *own = *s;
    own->v = lines;
    if (s->n) memcpy(own->v, s->v, s->n * sizeof *lines);
    return known[nknown++] = own;
}

bool schedules_of(const char *graph, bool fuse, const struct sched_section **s, struct err *e)
{
    *s = NULL;
    fork_watch();
    pthread_mutex_lock(&lock);
    bool ok = ask_environment(e);
    const struct sched_section *found = NULL;
    for (uint32_t i = 0; ok && i < current.n; i++) {
        const struct sched_section *c = &current.v[i];
        if (c->unfused == !fuse && (!strcmp(c->graph, graph) || (!c->graph[0] && !found))) found = c;
    }
    if (ok && found && !(*s = schedules_keep(found))) ok = err_set(e, KL_ERR_MEMORY,
                                                                   "no memory for the schedules of graph %s", graph);
    pthread_mutex_unlock(&lock);
    return ok;
}
