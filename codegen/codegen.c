/* Finds and opens code generators. */
#define _GNU_SOURCE
#include "codegen.h"
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#ifdef KILN_LLVM
#define HAS_LLVM true
#else
#define HAS_LLVM false
#endif
#ifdef KILN_C
#define HAS_C true
#else
#define HAS_C false
#endif

static struct { const char *name, *library, *entry; bool built; const struct backend *open; } table[] = {
#define BACKEND(name, library, entry, built, doc) {#name, library, entry, built, NULL},
#include "backends.def"
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The path of `library` in `folder`, relative to the file that contains this function: beside libkiln.so, and above the
 * programs of a build that link Kiln statically. */
static bool near_me(const char *folder, const char *library, char *path, size_t size)
{
    Dl_info me;
    char exe[4096];
    if (!dladdr((void *)(uintptr_t)backend_get, &me) || !me.dli_fname)
        return false;
    const char *file = me.dli_fname, *slash = strrchr(file, '/');
    /* the name by which a program was called: found in PATH */
    ssize_t n = slash ? 0 : readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) {
        exe[n] = 0;
        file = exe;
        slash = strrchr(file, '/');
    }
    int dir = slash ? (int)(slash - file) : 1;
    return (size_t)snprintf(path, size, "%.*s/%s%s", dir, slash ? file : ".", folder, library) < size;
}

/* false: the loader may still find it elsewhere. */
static bool library_file(const char *library, char *path, size_t size)
{
    static const char *const folders[] = {"", "../"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (near_me(folders[i], library, path, size) && !access(path, F_OK))
            return true;
    return false;
}

/* Never closed: generated code may have registered handlers or thread-local data. */
bool library_entry(const char *what, const char *library, const char *entry, void **out, struct err *e)
{
    char path[4096];
    void *so = dlopen(library_file(library, path, sizeof path) ? path : library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!so)
        return err_set(e, KL_ERR_DEVICE, "%s: %s", what, dlerror());
    *out = dlsym(so, entry);
    return *out || err_set(e, KL_ERR_DEVICE, "%s: %s is of another version of Kiln", what, library);
}

static const struct backend *codegen_open_library(const char *name, const char *library, const char *entry,
                                                  struct err *e)
{
    char what[64];
    const struct backend *(*get)(void);
    snprintf(what, sizeof what, "backend %s", name);
    if (!library_entry(what, library, entry, (void **)&get, e))
        return NULL;
    const struct backend *b = get();
    if (!b || b->abi != KERNEL_ABI) {
        err_set(e, KL_ERR_DEVICE, "backend %s: %s is of another version of Kiln", name, library);
        return NULL;
    }
    if (mem_used()->alloc && !b->memory(mem_used())) {
        err_set(e, KL_ERR_INTERNAL, "backend %s: it has taken memory before it was opened", name);
        return NULL;
    }
    return b;
}

const struct backend *backend_get(const char *name, struct err *e)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].name, name))
            continue;
        if (!table[i].built) {
            err_set(e, KL_ERR_DEVICE, "backend %s is not built into this Kiln", name);
            return NULL;
        }
        pthread_mutex_lock(&lock);
        if (!table[i].open)
            table[i].open = codegen_open_library(name, table[i].library, table[i].entry, e);
        const struct backend *b = table[i].open;
        pthread_mutex_unlock(&lock);
        return b;
    }
    err_set(e, KL_ERR_ARGUMENT, "there is no backend named %s", name);
    return NULL;
}

const char *backend_name(unsigned i) { return i < sizeof table / sizeof *table ? table[i].name : NULL; }

bool backend_file(const char *name, char *path, size_t size)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name))
            return table[i].built && library_file(table[i].library, path, size);
    return false;
}
