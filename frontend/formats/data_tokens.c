/* Files of tokens, unsigned integers of 1, 2 or 4 bytes, mapped into memory. */
#include "file_open.h"
#include <errno.h>
#include <kiln/train.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static kl_status tokens_map(kl_tokens *t, int fd, int64_t size, const char *path, int width, int64_t skip)
{
    if (size < skip)
        return kl_failf(NULL, KL_ERR_IO, "tokens_open: %s has %lld bytes; the first %lld are to be skipped", path,
                       (long long)size, (long long)skip);
    if ((size - skip) % width)
        return kl_failf(NULL, KL_ERR_IO, "tokens_open: %s: %lld bytes from byte %lld on are no tokens of %d bytes",
                        path, (long long)(size - skip), (long long)skip, width);
    if (size) {
        void *map = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            return kl_failf(NULL, KL_ERR_IO, "tokens_open: cannot map %s: %s", path, strerror(errno));
        t->map = map;
        t->map_bytes = (size_t)size;
        t->data = (const char *)map + skip;
    }
    t->count = (size - skip) / width;
    t->width = width;
    return KL_OK;
}

kl_status kl_tokens_open(const char *path, int width, int64_t skip, kl_tokens *out)
{
    if (out)
        *out = (kl_tokens){0};
    if (!out || !path || skip < 0 || (width != 1 && width != 2 && width != 4))
        return kl_failf(NULL, KL_ERR_ARGUMENT, "tokens_open: %s",
                       !out || !path ? "an argument is NULL" : "a width that is not 1, 2 or 4, or a negative skip");
    int64_t size;
    struct file_error why;
    int fd = file_open_read(path, &size, &why);
    if (fd < 0)
        return file_error_report("tokens_open", &why);
    kl_status s = tokens_map(out, fd, size, path, width, skip);
    close(fd);
    return s;
}

kl_status kl_tokens_read(const kl_tokens *t, int64_t first, int64_t n, int32_t *out)
{
    if (!t || !out || first < 0 || n < 0 || n > t->count || first > t->count - n)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "tokens_read: %lld tokens from %lld on, of %lld", (long long)n,
                       (long long)first, t ? (long long)t->count : 0LL);
    const char *from = (const char *)t->data + (t->data ? first * t->width : 0); /* its alignment is not known */
    for (int64_t i = 0; i < n; i++, from += t->width) {
        uint8_t byte;
        uint16_t two;
        uint32_t token;
        if (t->width == 1)
            memcpy(&byte, from, 1), token = byte;
        else if (t->width == 2)
            memcpy(&two, from, 2), token = two;
        else
            memcpy(&token, from, 4);
        if (token > INT32_MAX)
            return kl_failf(NULL, KL_ERR_ARGUMENT, "tokens_read: token %lld is %u, which is no i32",
                           (long long)(first + i), (unsigned)token);
        out[i] = (int32_t)token;
    }
    return KL_OK;
}

void kl_tokens_close(kl_tokens *t)
{
    if (!t)
        return;
    if (t->map)
        munmap(t->map, t->map_bytes);
    *t = (kl_tokens){0};
}
