/* Writing a file that takes another's place: it is written next to the old one, flushed to the disk, and renamed to the
 * old name. */
#include "file_open.h"
#include "ir/file_signal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OUT_BUFFER = 1 << 16 };

static bool out_fails(struct file_out *o, const char *what)
{
    if (o->why.code)
        return false;
    return file_fails(&o->why, KL_ERR_IO, "cannot %s %.250s: %s", what, o->beside ? o->beside : o->path,
                    strerror(errno));
}

bool out_open(struct file_out *o, const char *path)
{
    struct stat st;
    *o = (struct file_out){.fd = -1};
    bool there = stat(path, &st) == 0;
    /* a symbolic link is kept, and the file that it names is replaced */
    o->path = there && S_ISREG(st.st_mode) ? realpath(path, NULL) : strdup(path);
    size_t n = strlen(path) + (o->path ? strlen(o->path) : 0) + 32;
    o->buffer = malloc(OUT_BUFFER);
    if (!there || S_ISREG(st.st_mode))
        o->beside = malloc(n);
    if (!o->path || !o->buffer || (!o->beside && (!there || S_ISREG(st.st_mode))))
        return file_fails(&o->why, KL_ERR_MEMORY, "%.250s: out of memory", path);
    if (!o->beside) {
        o->fd = open(o->path, O_WRONLY | O_CLOEXEC);
        return o->fd >= 0 || out_fails(o, "write");
    }
    for (unsigned i = 0; o->fd < 0 && i < 100; i++) {
        snprintf(o->beside, n, "%s.%ld.%u.part", o->path, (long)getpid(), i);
        o->fd = open(o->beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->fd < 0 && errno != EEXIST)
            break;
    }
    if (o->fd >= 0) {
        if (there && fchmod(o->fd, st.st_mode & 07777))
            out_fails(o, "set the mode of");
        return !o->why.code;
    }
    out_fails(o, "make");
    free(o->beside); /* so that it is not removed */
    o->beside = NULL;
    return false;
}

static void write_all(struct file_out *o, const uint8_t *bytes, size_t n)
{
    struct file_signal saved = file_signal_block();
    while (n && !o->why.code) {
        ssize_t done = write(o->fd, bytes, n < (size_t)1 << 30 ? n : (size_t)1 << 30);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            out_fails(o, "write");
            break;
        }
        bytes += done;
        n -= (size_t)done;
    }
    file_signal_restore(&saved);
}

void out_append(struct file_out *o, const void *bytes, size_t n)
{
    o->at += n;
    if (o->held + n > OUT_BUFFER) {
        write_all(o, o->buffer, o->held);
        o->held = 0;
        if (n >= OUT_BUFFER) {
            write_all(o, bytes, n);
            return;
        }
    }
    if (n)
        memcpy(o->buffer + o->held, bytes, n);
    o->held += n;
}

/* Flushes the folder, so that the new name outlives a crash of the machine. */
static void flush_folder(struct file_out *o)
{
    char *slash = strrchr(o->path, '/');
    if (slash)
        slash[slash == o->path] = 0;
    int fd = open(slash ? o->path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        if (fsync(fd) && errno != EINVAL)
            out_fails(o, "flush the folder of");
        close(fd);
    }
}

bool out_close(struct file_out *o, bool keep)
{
    if (keep && o->fd >= 0)
        write_all(o, o->buffer, o->held);
    if (o->fd >= 0) {
        if (keep && o->beside && !o->why.code && fsync(o->fd))
            out_fails(o, "flush");
        if (close(o->fd))
            out_fails(o, "write");
        if (o->beside) {
            bool ok = keep && !o->why.code;
            if (ok && rename(o->beside, o->path))
                ok = out_fails(o, "rename");
            if (ok)
                flush_folder(o);
            else
                unlink(o->beside);
        }
    }
    free(o->path);
    free(o->beside);
    free(o->buffer);
    return keep && !o->why.code;
}
