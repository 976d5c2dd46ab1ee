/* Opening files that users name: regular files only, and for names that stand in a file, only those in its folder. */
#include "file_open.h"
#include "ir/regular_file.h"
#include <stdarg.h>
#include <stdlib.h>

bool file_fails(struct file_error *e, kl_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    e->code = code;
    return false;
}

kl_status file_error_report(const char *op, const struct file_error *e)
{
    char text[1000];
    snprintf(text, sizeof text, "%s%s%s", op ? op : "", op ? ": " : "", e->text);
    return kl_fail(e->code, text);
}

static int open_regular(const char *path, const char *name, int flags, int64_t *size, struct file_error *why)
{
    int fd = regular_file_open(path, name, flags, size, why->text, sizeof why->text);
    if (fd < 0)
        why->code = KL_ERR_IO;
    return fd;
}

int file_open_read(const char *path, int64_t *size, struct file_error *why)
{
    return open_regular(path, path, 0, size, why);
}

/* The length of the folder in a path, with its last '/'; 0: it has none. */
static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash + 1 - path) : 0;
}

/* Is `file` below the folder of `path`?  Both are without links. */
static bool lies_in_folder_of(const char *file, const char *path)
{
    size_t n = path ? folder_length(path) : 0;
    return n && !strncmp(file, path, n);
}

/* FOLDER OF PATH/location; NULL: out of memory. */
static char *join_folder_path(const char *path, const char *location)
{
    size_t folder = folder_length(path), n = strlen(location) + 1;
    char *joined = malloc(folder + n);
    if (joined && folder)
        memcpy(joined, path, folder);
    if (joined)
        memcpy(joined + folder, location, n);
    return joined;
}

/* The folder of `path` without links, and a '/'; NULL: it is not there. */
static char *real_folder(const char *path)
{
    char *dot = join_folder_path(path, "."), *real = dot ? realpath(dot, NULL) : NULL, *with_slash = NULL;
    size_t n = real ? strlen(real) : 0;
    if (real && (with_slash = malloc(n + 2))) {
        memcpy(with_slash, real, n + 1);
        if (with_slash[n - 1] != '/')
            memcpy(with_slash + n, "/", 2);
    }
    free(dot);
    free(real);
    return with_slash;
}

/* Is the location a path below a folder, as it is written? */
static bool location_is_below(const char *location)
{
    if (!*location || *location == '/' || strchr(location, '\\'))
        return false;
    for (const char *p = location; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
        if (!strncmp(p, "..", 2) && (p[2] == '/' || !p[2]))
            return false;
    return true;
}

int file_open_beside(const char *path, const char *location, int64_t *size, struct file_error *why)
{
    char *joined = join_folder_path(path, location), *file = joined ? realpath(joined, NULL) : NULL;
    int cause = errno, fd = -1;
    char *folder = real_folder(path), *real = realpath(path, NULL);
    if (!location_is_below(location))
        file_fails(why, KL_ERR_IO, "'%.300s' names no file in the folder of %.300s", location, path);
    else if (!file)
        file_fails(why, KL_ERR_IO, "cannot open %.400s: %s", joined ? joined : location, strerror(cause));
    else if (!lies_in_folder_of(file, folder) && !lies_in_folder_of(file, real))
        file_fails(why, KL_ERR_IO, "'%.300s' leads to %.300s, which is not in the folder of %.200s", location,
                   file, path);
    else
        fd = open_regular(file, joined, O_NOFOLLOW, size, why);
    free(joined);
    free(file);
    free(folder);
    free(real);
    return fd;
}

bool dims_bytes(int rank, const int64_t *dims, size_t size, int64_t *count, size_t *bytes)
{
    bool empty = false, over = false;
    int64_t n = 1, all;
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 0)
            return false;
        empty |= dims[i] == 0;
        over |= __builtin_mul_overflow(n, dims[i], &n);
    }
    if (empty)
        n = 0;
    over = (over && !empty) || __builtin_mul_overflow(n, (int64_t)size, &all);
    *count = n;
    *bytes = over ? 0 : (size_t)all;
    return !over;
}
