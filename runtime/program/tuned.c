/* Schedules found by measuring (tune.c), kept on disk beside the kernels' code (disk.c).
 *
 * There is one entry of the disk cache for each target and number of threads.  Its key has what decides the time of a
 * kernel besides the kernel: the code generator's version, the processor's or GPU's name and features, the threads, and
 * the version of the lowering, whose own choices the schedules were compared with.  Its content is text, a line a
 * schedule, named by the hash of its group's key (passes/lower/lower_memo.c):
 *
 *   @t5f0c6d9e... schedule dot width 32 tile 12x32 kblock 512 rows 120 pack_b epilogue in_tile grain 1
 *
 * An entry is read once in a process, when the first program is planned for its target: a process that finds none pays
 * one failed open for it.  A schedule that lowering cannot follow is passed over (lower_group). */
#include "tune.h"
#include <lower_sources.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RECORDS = 2048 };        /* of an entry; the oldest are dropped */
enum { NAME_BYTES = 34 };           /* "t", 32 digits, the zero byte */

struct tuned_file {                 /* what is known for a target and a number of threads, the oldest first */
    int device;
    unsigned threads;               /* 0: of a device with a driver, which the pool's threads do not matter to */
    struct tuned_record *v;
    uint32_t n, cap;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static struct tuned_file *files;
static uint32_t nfiles, files_cap;

static void tuned_before_fork(void) { pthread_mutex_lock(&lock); }
static void tuned_after_fork(bool child) { (void)child, pthread_mutex_unlock(&lock); }
const struct fork_part tuned_fork = {tuned_before_fork, tuned_after_fork};

static unsigned threads_of(int device) { return device_is_host(device) ? pool_threads() : 0; }

/* ---- the entry ---- */

static bool tuned_key(struct disk_key *key, int device)
{
    struct caps caps;
    const struct backend *b = device_backend(device, &caps);
    char text[sizeof caps + 512];
    int n = snprintf(text, sizeof text, "tuned schedules, abi %u\n%s\n%s\n%s\nvector %u\nthreads %u\nby " LOWER_SOURCES,
                     KERNEL_ABI, b->version(), caps.name, caps.features, caps.vector_bytes, threads_of(device));
    return n > 0 && (size_t)n < sizeof text && disk_key_text(key, text, "tuned schedules");
}

static bool name_of(const char *name, struct hash128 *key)
{
    unsigned long long hi, lo;
    int end = 0;
    if (strlen(name) != NAME_BYTES - 1 || sscanf(name, "t%16llx%16llx%n", &hi, &lo, &end) != 2 || end != NAME_BYTES - 1)
        return false;
    *key = (struct hash128){.hi = hi, .lo = lo};
    return true;
}

/* The newest is last; one that is there already is replaced. */
static bool record_put(struct tuned_file *f, const struct tuned_record *r)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (f->v[i].group.lo == r->group.lo && f->v[i].group.hi == r->group.hi) {
            f->v[i] = *r;
            return true;
        }
    if (!mem_reserve(&f->v, &f->cap, f->n + 1, sizeof *f->v)) return false;
    f->v[f->n++] = *r;
    return true;
}

/* Adds what the entry on disk has; what is wrong with one is a warning. */
static void read_entry(struct tuned_file *f, const struct disk_key *key)
{
    struct disk_code found;
    struct sched_sections s = {0};
    struct err why = {0};
    if (!disk_load(key, &found)) return;
    bool ok = schedules_parse(found.code.bytes, found.code.size, NULL, &s, &why);
    for (uint32_t i = 0; ok && i < s.n; i++)
        for (uint32_t k = 0; ok && k < s.v[i].n; k++) {
            struct tuned_record r = {.sched = s.v[i].v[k].sched};
            ok = name_of(s.v[i].v[k].kernel, &r.group) || err_set(&why, KL_ERR_IO, "a line has no group's name");
            ok = ok && (record_put(f, &r) || err_set(&why, KL_ERR_MEMORY, "out of memory"));
        }
    if (!ok) {
        log_put(KL_LOG_WARN, "the cache's tuned schedules are not used: %s", why.msg);
        f->n = 0;
    }
    schedules_free(&s);
    mem_free(found.file);
}

static char *entry_text(const struct tuned_file *f, size_t *size)
{
    uint32_t first = f->n > MAX_RECORDS ? f->n - MAX_RECORDS : 0;
    char *text = NULL;
    uint32_t cap = 0, at = 0;
    for (uint32_t i = first; i < f->n; i++) {
        char *line = schedule_line(&f->v[i].sched);
        size_t room = line ? strlen(line) + NAME_BYTES + 4 : 0;
        if (!line || !mem_reserve(&text, &cap, at + (uint32_t)room, 1)) {
            mem_free(line);
            mem_free(text);
            return NULL;
        }
        at += (uint32_t)snprintf(text + at, room, "@t%016llx%016llx %s\n", (unsigned long long)f->v[i].group.hi,
                                 (unsigned long long)f->v[i].group.lo, line);
        mem_free(line);
    }
    *size = at;
    return text;
}

/* The file of a device and the threads there are now, read from disk if it is new.  NULL: out of memory.  Needs the
 * lock. */
static struct tuned_file *file_for(int device)
{
    struct disk_key key = {0};
    unsigned threads = threads_of(device);
    for (uint32_t i = 0; i < nfiles; i++)
        if (files[i].device == device && files[i].threads == threads) return &files[i];
    if (!mem_reserve(&files, &files_cap, nfiles + 1, sizeof *files)) return NULL;
    struct tuned_file *f = &files[nfiles++];
    *f = (struct tuned_file){.device = device, .threads = threads};
    if (option_cache_bytes() > 0 && tuned_key(&key, device)) read_entry(f, &key);
    disk_key_free(&key);
    return f;
}

/* ---- for planning ---- */

static bool tuned_find(const struct tuned *t, struct hash128 group, struct schedule *out)
{
    (void)t;
    bool found = false;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < nfiles && !found; i++) { /* a group's key has its target */
        const struct tuned_file *f = &files[i];
        if (f->threads != threads_of(f->device)) continue;
        for (uint32_t k = f->n; k-- > 0 && !found;)
            if (f->v[k].group.lo == group.lo && f->v[k].group.hi == group.hi) {
                *out = f->v[k].sched;
                found = true;
            }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

const struct tuned *tuned_for(uint64_t devices)
{
    static const struct tuned all = {tuned_find};
    bool any = false;
    fork_watch();
    pthread_mutex_lock(&lock);
    for (int d = 0; d < DEVICE_END; d++) {
        if (!(devices >> d & 1) || !device_backend(d, NULL)) continue;
        const struct tuned_file *f = file_for(d);
        any |= f && f->n > 0;
    }
    pthread_mutex_unlock(&lock);
    return any ? &all : NULL;
}

/* ---- for the tuner ---- */

bool tuned_keep(int device, const struct tuned_record *v, uint32_t n, struct err *e)
{
    struct disk_key key = {0};
    struct code text = {0};
    pthread_mutex_lock(&lock);
    struct tuned_file *f = file_for(device);
    bool ok = f;
    bool kept = ok && option_cache_bytes() > 0 && tuned_key(&key, device);
    if (kept) read_entry(f, &key); /* other processes may have added to it */
    for (uint32_t i = 0; ok && i < n; i++) ok = record_put(f, &v[i]);
    if (ok && kept) text.bytes = entry_text(f, &text.size);
    pthread_mutex_unlock(&lock);
    if (text.bytes) disk_store(&key, &text);
    mem_free(text.bytes);
    disk_key_free(&key);
    return ok || err_set(e, KL_ERR_MEMORY, "no memory for tuned schedules");
}

bool tuned_can_keep(struct err *e)
{
    const char *dir = getenv("KILN_CACHE_DIR");
    return option_cache_bytes() == 0 || (dir && !strcmp(dir, "none")) || disk_accepts(e);
}

void tuned_forget(void)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < nfiles; i++) mem_free(files[i].v);
    mem_free(files);
    files = NULL;
    nfiles = files_cap = 0;
    pthread_mutex_unlock(&lock);
}
