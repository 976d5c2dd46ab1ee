/* Finds and opens code generators. */
#include "codegen.h"
#include <pthread.h>
#include <string.h>

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
