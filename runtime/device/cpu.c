/* The code generator of device cpu.  Its library is opened when something must be compiled, and not before.
 *
 * A process needs two facts of it earlier: its version and a description of the processor, which are part of the keys
 * of kernels on disk and determine schedules.  Opening the generator, and LLVM with it, only for these facts would take
 * a third of the time of a first step.  So they are stored in the cache folder, as an entry whose key is everything
 * that determines them (codegen/identity.c); the entry also identifies the compiler's file.  If the compiler's file has
 * changed, the process opens the generator and writes the entry again.  If the loader opens yet another compiler, that
 * compiler's version is used from the first compilation on, so that no entry on disk contains code of a compiler that
 * its key does not name. */
#include "runtime/runtime.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct description {
    char version[256];
    char compiler[4096 + 128]; /* the file_identity of the compiler's library */
    struct caps caps;
};

static struct description kept, own;
static _Atomic(const struct description *) now;      /* points to one of the two */
static const char *name;                             /* name of the generator */
static const struct backend *generator;              /* NULL: it is not opened */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards generator, and `own` until `now` points to it; a
                                                            thread that holds it also holds fork_hold, so fork waits for
                                                            it */

static bool cpu_make_key(struct disk_key *key)
{
    enum { ROOM = 16384 };
    char *text = mem_alloc(ROOM);
    bool ok = text && backend_identity(name, text, ROOM) && disk_key_text(key, text, "(this processor)");
    mem_free(text);
    return ok;
}

static bool read_kept(void)
{
    struct disk_key key = {0};
    struct disk_code found;
    if (cpu_make_key(&key) && disk_load(&key, &found)) {
        if (found.code.size == sizeof kept) memcpy(&kept, found.code.bytes, sizeof kept);
        mem_free(found.file);
    }
    disk_key_free(&key);
    size_t path = strcspn(kept.compiler, " "); /* if the path of the library has a space, the entry is not used */
    char *compiler = path && path < sizeof kept.compiler ? mem_alloc(path + 1 + sizeof kept.compiler) : NULL;
    if (!compiler) return false;
    char *now_is = compiler + path + 1;
    memcpy(compiler, kept.compiler, path);
    bool same = file_identity(compiler, now_is, sizeof kept.compiler) && !strcmp(now_is, kept.compiler);
    mem_free(compiler);
    return same;
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

static bool cpu_get_caps(struct caps *out, struct err *e)
{
    (void)e;
    *out = atomic_load(&now)->caps;
    out->bf16_tiles = out->bf16_tiles && tiles_permitted(); /* what is kept is true of the processor */
    return true;
}

static bool cpu_compile(const struct kernel *k, enum emit_kind kind, struct code *out, struct err *e)
{
    *out = (struct code){0};
    const struct backend *b = open_generator(e);
    return b && b->compile(k, kind, out, e);
}

static bool cpu_use(const char *which, struct err *e)
{
    name = which;
    kept = (struct description){0};
    bool known = option_cache_bytes() > 0 && read_kept();
    if (known) atomic_store(&now, &kept);
    return known || open_generator(e);
}

const struct backend *cpu_generator(struct err *e)
{
    static const struct backend late = {.name = "cpu", .abi = KERNEL_ABI, .caps = cpu_get_caps, .version = cpu_version,
                                        .compile = cpu_compile};
    const char *wanted = getenv("KILN_CODEGEN");
    bool works = wanted && *wanted && cpu_use(wanted, e);
    for (unsigned i = 0; !(wanted && *wanted) && !works && backend_name(i); i++) {
        struct err why = {0};
        works = cpu_use(backend_name(i), &why);
        if (!works && !e->code) *e = why;
    }
    if (works) e->code = KL_OK;
    return works ? &late : NULL;
}
