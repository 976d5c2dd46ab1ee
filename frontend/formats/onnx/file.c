/* Files mapped into memory, and the protobuf messages in them. */
#include "onnx.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NESTED_MAX = 64 }; /* most levels of nested messages: protobuf-c reads them recursively */

bool bytes_map(struct bytes *b, const char *path, const char *beside, struct file_error *why)
{
    *b = (struct bytes){NULL, 0};
    int64_t size;
    int f = beside ? file_open_beside(path, beside, &size, why) : file_open_read(path, &size, why);
    bool ok = f >= 0;
    if (ok && size > 0) {
        void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, f, 0);
        ok = p != MAP_FAILED;
        if (ok)
            *b = (struct bytes){p, (size_t)size};
        else
            file_fails(why, KL_ERR_IO, "cannot map %.300s: %s", beside ? beside : path, strerror(errno));
    }
    if (f >= 0)
        close(f);
    return ok;
}

void bytes_unmap(struct bytes *b)
{
    if (b->size)
        munmap((void *)(uintptr_t)b->data, b->size);
    *b = (struct bytes){NULL, 0};
}

struct mapping *mapping_new(const char *path, const char *beside, struct file_error *why)
{
    struct mapping *m = calloc(1, sizeof *m);
    if (!m)
        return file_fails(why, KL_ERR_MEMORY, "out of memory: %.300s", path), NULL;
    if (!bytes_map(&m->b, path, beside, why)) {
        free(m);
        return NULL;
    }
    atomic_init(&m->refs, 1);
    return m;
}

void mapping_unref(struct mapping *m)
{
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    bytes_unmap(&m->b);
    free(m);
}

/* ---- how deep messages are nested ---- */

static bool onnx_read_varint(const uint8_t **p, const uint8_t *end, uint64_t *v)
{
    *v = 0;
    for (unsigned shift = 0; *p < end && shift < 64; shift += 7) {
        uint8_t byte = *(*p)++;
        *v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

/* Are messages nested too deep?  protobuf-c reads them recursively, without a limit. */
static bool depth_fits(const uint8_t *p, const uint8_t *end, const ProtobufCMessageDescriptor *d, unsigned depth)
{
    if (depth > NESTED_MAX)
        return false;
    while (p < end) {
        uint64_t tag, n;
        if (!onnx_read_varint(&p, end, &tag))
            return true; /* damaged: protobuf-c reports it */
        switch (tag & 7) {
        case 0:
            if (!onnx_read_varint(&p, end, &n))
                return true;
            break;
        case 1: case 5:
            n = (tag & 7) == 1 ? 8 : 4;
            if ((uint64_t)(end - p) < n)
                return true;
            p += n;
            break;
        case 2: {
            if (!onnx_read_varint(&p, end, &n) || n > (uint64_t)(end - p))
                return true;
            const ProtobufCFieldDescriptor *field =
                tag >> 3 < 1u << 29 ? protobuf_c_message_descriptor_get_field(d, (unsigned)(tag >> 3)) : NULL;
            if (field && field->type == PROTOBUF_C_TYPE_MESSAGE &&
                !depth_fits(p, p + n, field->descriptor, depth + 1))
                return false;
            p += n;
            break;
        }
        default:
            return true;
        }
    }
    return true;
}

ProtobufCMessage *message_parse(const struct bytes *b, const ProtobufCMessageDescriptor *d, const char *path,
                                struct file_error *why)
{
    static const uint8_t none[1];
    const uint8_t *data = b->size ? b->data : none; /* an empty file is not mapped */
    if (!depth_fits(data, data + b->size, d, 0)) {
        file_fails(why, KL_ERR_IO, "%.300s: messages are nested more than %d deep", path, NESTED_MAX);
        return NULL;
    }
    ProtobufCMessage *m = protobuf_c_message_unpack(d, NULL, b->size, data);
    if (!m)
        file_fails(why, KL_ERR_IO, "%.300s is no %s in protobuf, or it is damaged or cut off", path, d->short_name);
    return m;
}
