/* Opening files that users name.  All readers of this folder open files by these functions. */
#ifndef KILN_FILE_OPEN_H
#define KILN_FILE_OPEN_H
#include <stddef.h>
#include <stdint.h>

/* Opens a regular file, or a link to one, to read it (ir/regular_file.h), and says its size in bytes.  The caller
 * closes the file.  -1: why[0..n) has the reason, which names the path. */
int file_open_read(const char *path, int64_t *size, char *why, size_t n);

/* The same of a file that the user's file `path` names: `location` is relative to the folder of `path`.  The file,
 * after all links, has to lie in that folder or, if `path` is a link, in the folder of the file that it leads to. */
int file_open_beside(const char *path, const char *location, int64_t *size, char *why, size_t n);

#endif
