/* Opening files that users name: regular files only.  A FIFO blocks its reader until somebody writes, a device has
 * effects of its own, a folder fails at the first read.  Every file that a user names is opened by this function: a
 * model, an array, a graph or a list of schedules.  Header only and of POSIX calls alone, so that any folder may
 * include it. */
#ifndef KILN_REGULAR_FILE_H
#define KILN_REGULAR_FILE_H
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static inline const char *regular_file_not(mode_t mode)
{
    return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a FIFO" : S_ISSOCK(mode) ? "a socket"
           : S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "of another kind";
}

/* Opens a regular file, or a link to one, to read it, and says its size in bytes.  It never waits and has no effect on
 * what it refuses.  name: what messages call it; flags: of open(), besides those of every file.  The caller closes the
 * file.  -1: why[0..n) has the reason, with the name. */
static inline int regular_file_open(const char *path, const char *name, int flags, int64_t *size, char *why, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags); /* a FIFO without a writer waits else */
    struct stat st;
    if (fd < 0) {
        snprintf(why, n, "cannot open %.400s: %s", name, strerror(errno));
        return -1;
    }
    bool known = fstat(fd, &st) == 0;
    if (known && S_ISREG(st.st_mode) && fcntl(fd, F_SETFL, 0) == 0) {
        *size = st.st_size;
        return fd;
    }
    snprintf(why, n, "%.400s is not a regular file: it is %s", name,
             known ? regular_file_not(st.st_mode) : strerror(errno));
    close(fd);
    return -1;
}
#endif
