/* Protocol Buffers' wire format, as far as models need it: varints, 32-bit floats, bytes and messages. */
#include "export.h"
#include <string.h>

static void protobuf_put(struct proto *p, const void *bytes, size_t n)
{
    if (p->n + n > p->cap) {
        size_t cap = p->cap ? p->cap : 256;
        while (cap < p->n + n)
            cap *= 2;
        uint8_t *v = p->failed ? NULL : kl_memory_alloc(cap);
        if (!v) {
            p->failed = true;
            return;
        }
        if (p->n)
            memcpy(v, p->v, p->n);
        kl_memory_free(p->v);
        p->v = v;
        p->cap = cap;
    }
    if (n)
        memcpy(p->v + p->n, bytes, n);
    p->n += n;
}

static void put_varint(struct proto *p, uint64_t v)
{
    uint8_t bytes[10];
    size_t n = 0;
    do
        bytes[n++] = (uint8_t)((v & 127) | (v > 127 ? 128 : 0));
    while (v >>= 7);
    protobuf_put(p, bytes, n);
}

enum { VARINT, BYTES = 2, FIXED32 = 5 };

void proto_int(struct proto *p, unsigned field, int64_t value)
{
    put_varint(p, field << 3 | VARINT);
    put_varint(p, (uint64_t)value);
}

void proto_bytes(struct proto *p, unsigned field, const void *bytes, size_t n)
{
    put_varint(p, field << 3 | BYTES);
    put_varint(p, n);
    protobuf_put(p, bytes, n);
}

void proto_text(struct proto *p, unsigned field, const char *text) { proto_bytes(p, field, text, strlen(text)); }

void proto_message(struct proto *p, unsigned field, struct proto *message)
{
    proto_bytes(p, field, message->v, message->n);
    p->failed |= message->failed;
    message->n = 0;
}

void proto_free(struct proto *p)
{
    kl_memory_free(p->v);
    *p = (struct proto){0};
}
