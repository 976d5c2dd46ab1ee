/* Files of text, read whole. */
#include "ir/ir.h"
#include "ir/regular_file.h"

char *text_stream_read(FILE *f, size_t *len)
{
    size_t cap = 1 << 16, n;
    char *s = mem_alloc(cap);
    for (*len = 0; s && (n = fread(s + *len, 1, cap - 1 - *len, f)) > 0;) {
        *len += n;
        if (*len < cap - 1)
            continue;
        char *grown = mem_grow(s, cap, 2 * cap);
        if (!grown)
            mem_free(s);
        s = grown;
        cap *= 2;
    }
    return s;
}

char *text_file_read(const char *path, size_t *len, struct err *e)
{
    char why[sizeof e->msg];
    int64_t size;
    int fd = regular_file_open(path, path, 0, &size, why, sizeof why);
    FILE *f = fd >= 0 ? fdopen(fd, "rb") : NULL;
    if (!f) {
        if (fd >= 0) {
            snprintf(why, sizeof why, "cannot open %.400s: %s", path, strerror(errno));
            close(fd);
        }
        err_set(e, KL_ERR_IO, "%s", why);
        return NULL;
    }
    char *s = text_stream_read(f, len);
    if (s && ferror(f)) {
        err_set(e, KL_ERR_IO, "cannot read %.400s: %s", path, strerror(errno));
        mem_free(s);
        s = NULL;
    } else if (!s) {
        err_set(e, KL_ERR_MEMORY, "%.400s: out of memory", path);
    }
    fclose(f);
    return s;
}
