/* Opening and writing files that users name: all readers and writers of files do it by these functions.  Each library
 * has its own copy of them. */
#ifndef KILN_FILE_OPEN_H
#define KILN_FILE_OPEN_H
#define KL_NO_CALL_SITES
#include <kiln/extend.h>

/* Why a file cannot be read or written: the record of all readers and writers. */
struct file_error { kl_status code; char text[900]; };
bool file_fails(struct file_error *e, kl_status code, const char *fmt, ...) KL_PRINTF(3, 4); /* false */
/* Makes it the thread's error, "op: text" or, without an op, its text; its code. */
kl_status file_error_report(const char *op, const struct file_error *e);

/* Opens a regular file, or a link to one, to read it (ir/regular_file.h), and says its size in bytes.  The caller
 * closes the file.  -1: *why, which names the path. */
int file_open_read(const char *path, int64_t *size, struct file_error *why);

/* The same of a file that the user's file `path` names: `location` is relative to the folder of `path`.  The file,
 * after all links, has to lie in that folder or, if `path` is a link, in the folder of the file that it leads to. */
int file_open_beside(const char *path, const char *location, int64_t *size, struct file_error *why);

/* Elements, and their bytes, of a shape; false: too many for memory. */
bool dims_bytes(int rank, const int64_t *dims, size_t size, int64_t *count, size_t *bytes);

/* ---- file_output.c: a file that is made beside another and takes its place ---- */
struct file_out {
    char *path, *beside;      /* beside NULL: the path itself is written to */
    int fd;
    size_t at;                /* bytes so far */
    uint8_t *buffer;
    size_t held;
    struct file_error why;     /* the first error; later calls do nothing */
};
bool out_open(struct file_out *o, const char *path);
void out_append(struct file_out *o, const void *bytes, size_t n);
bool out_close(struct file_out *o, bool keep); /* keep: it takes its place; else, or where it failed, it is removed */

#endif
