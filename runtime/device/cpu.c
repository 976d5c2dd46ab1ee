/* Device cpu's code generator, opened where something has to be compiled and not before.
 *
 * What a process wants of it earlier is its version and a description of the processor: they are in the keys of kernels
 * on disk and decide schedules.  To open it for that alone, and LLVM with it, would be a third of a first step's time.
 * So the cache folder keeps them, as an entry whose key is all that decides them (codegen/identity.c) and which names
 * the compiler's file as it was; a process that finds another there opens the generator and writes the entry anew.
 * Should the loader have found yet another compiler after all, then the version is that one's from the first compile
 * on, so that no entry on disk has the code of a compiler that its key does not name. */
#include "runtime/runtime.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct description {
    char version[256];
    char compiler[4096 + 128]; /* file_identity */
    struct caps caps;
};

static struct description kept, own;
static _Atomic(const struct description *) now;      /* one of the two */
static const char *name;                             /* of the generator */
static const struct backend *generator;              /* NULL: not opened */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards generator, and own until `now` is it; fork waits, for
                                                            who takes it has fork_hold */

static bool cpu_make_key(struct disk_key *key)
{
    char text[16384];
    return backend_identity(name, text, sizeof text) && disk_key_text(key, text, "(this processor)");
}

static bool read_kept(void)
{
    struct disk_key key = {0};
    struct disk_code found;
    char compiler[sizeof kept.compiler], now_is[sizeof kept.compiler];
    if (cpu_make_key(&key) && disk_load(&key, &found)) {
        if (found.code.size == sizeof kept) memcpy(&kept, found.code.bytes, sizeof kept);
        mem_free(found.file);
    }
    disk_key_free(&key);
    size_t path = strcspn(kept.compiler, " "); /* a folder with a space in its name only makes the entry useless */
    if (!path || path >= sizeof compiler) return false;
    memcpy(compiler, kept.compiler, path);
    compiler[path] = 0;
    return file_identity(compiler, now_is, sizeof now_is) && !strcmp(now_is, kept.compiler);
}

static void cpu_keep(struct description *d)
{
    struct disk_key key = {0};
    const char *file = generator->compiler();
    if (*file == '/' && file_identity(file, d->compiler, sizeof d->compiler) && cpu_make_key(&key))
        disk_store(&key, &(struct code){d, sizeof *d});
    disk_key_free(&key);
}

static const struct backend *open_generator(struct err *e)
{
    pthread_mutex_lock(&lock);
    const struct backend *b = generator ? generator : backend_get(name, e);
    if (b && !generator && b->caps(&own.caps, e)) {
        generator = b;
        snprintf(own.version, sizeof own.version, "%s", b->version());
        const struct description *before = atomic_load(&now);
        if (!before || strcmp(before->version, own.version) || memcmp(&before->caps, &own.caps, sizeof own.caps)) {
            cpu_keep(&own);
            atomic_store(&now, &own);
        }
    }
    b = generator;
    pthread_mutex_unlock(&lock);
    return b;
}

static const char *cpu_version(void) { return atomic_load(&now)->version; }

static bool caps(struct caps *out, struct err *e)
{
    (void)e;
    *out = atomic_load(&now)->caps;
    return true;
}

static bool cpu_compile(const struct kernel *k, enum emit_kind kind, struct code *out, struct err *e)
{
    *out = (struct code){0};
    const struct backend *b = open_generator(e);
    return b && b->compile(k, kind, out, e);
}

static bool use(const char *which, struct err *e)
{
    name = which;
    kept = (struct description){0};
    bool known = option_cache_bytes() > 0 && read_kept();
    if (known) atomic_store(&now, &kept);
    return known || open_generator(e);
}

const struct backend *cpu_generator(struct err *e)
{
    static const struct backend late = {.name = "cpu", .abi = KERNEL_ABI, .caps = caps, .version = cpu_version,
                                        .compile = cpu_compile};
    const char *wanted = getenv("KILN_CODEGEN");
    bool works = wanted && *wanted && use(wanted, e);
    for (unsigned i = 0; !(wanted && *wanted) && !works && backend_name(i); i++) {
        struct err why = {0};
        works = use(backend_name(i), &why);
        if (!works && !e->code) *e = why;
    }
    if (works) e->code = KL_OK;
    return works ? &late : NULL;
}
