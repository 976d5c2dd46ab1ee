/* Finds and opens Kiln's own libraries, which are beside the file that this one is part of. */
#define _GNU_SOURCE
#include "codegen.h"
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

/* The path of `library` in `folder`, relative to the file that contains this function: beside libkiln.so, and above the
 * programs of a build that link Kiln statically. */
static bool near_me(const char *folder, const char *library, char *path, size_t size)
{
    Dl_info me;
    char exe[4096];
    if (!dladdr((void *)(uintptr_t)library_entry, &me) || !me.dli_fname)
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

bool library_file(const char *library, char *path, size_t size)
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
    bool found = library_file(library, path, sizeof path);
    void *so = dlopen(found ? path : library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!so && (found || !near_me("", library, path, sizeof path)))
        return err_set(e, KL_ERR_DEVICE, "%s: %s", what, dlerror());
    if (!so)
        return err_set(e, KL_ERR_DEVICE, "%s: %s, nor is it at %s", what, dlerror(), path);
    *out = dlsym(so, entry);
    return *out || err_set(e, KL_ERR_DEVICE, "%s: %s is of another version of Kiln", what, library);
}
