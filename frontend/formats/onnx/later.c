/* Fields that ONNX has had since IR version 9, which the onnx.proto that Kiln was built with may lack: then protobuf-c
 * keeps their bytes as unknown fields. */
#include "onnx.h"
#include <stdlib.h>
#include <string.h>

/* The bytes of an unknown field behind their length; false: it is no field of bytes. */
static bool unknown_bytes(const ProtobufCMessageUnknownField *f, struct bytes *b)
{
    size_t prefix = 0;
    while (prefix < f->len && f->data[prefix] & 0x80)
        prefix++;
    if (f->wire_type != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED || prefix >= f->len)
        return false;
    *b = (struct bytes){f->data + prefix + 1, f->len - prefix - 1};
    return true;
}

struct bytes message_text(const ProtobufCMessage *m, unsigned tag)
{
    const ProtobufCFieldDescriptor *known = protobuf_c_message_descriptor_get_field(m->descriptor, tag);
    struct bytes b = {NULL, 0};
    if (known) {
        const char *text = *(char *const *)(const void *)((const char *)m + known->offset);
        return text ? (struct bytes){(const uint8_t *)text, strlen(text)} : b;
    }
    for (unsigned i = 0; i < m->n_unknown_fields; i++)
        if (m->unknown_fields[i].tag == tag)
            unknown_bytes(&m->unknown_fields[i], &b);
    return b;
}

/* Adds an attribute of an unknown field; false: *why. */
static bool attribute_add(struct attributes *to, const ProtobufCMessageUnknownField *f, const char *path,
                          struct file_error *why)
{
    struct bytes b;
    Onnx__AttributeProto **more = realloc(to->v, (to->n + 1) * sizeof *more);
    if (!more)
        return file_fails(why, KL_ERR_MEMORY, "%.300s: out of memory", path);
    to->v = more;
    if (!unknown_bytes(f, &b))
        return file_fails(why, KL_ERR_IO, "%.300s: a function's attributes are damaged", path);
    to->v[to->n] = (Onnx__AttributeProto *)message_parse(&b, &onnx__attribute_proto__descriptor, path, why);
    return to->v[to->n] && ++to->n;
}

bool attributes_read(const ProtobufCMessage *m, unsigned tag, const char *path, struct attributes *to,
                     struct file_error *why)
{
    const ProtobufCFieldDescriptor *known = protobuf_c_message_descriptor_get_field(m->descriptor, tag);
    *to = (struct attributes){0};
    if (known) {
        to->n = *(const size_t *)(const void *)((const char *)m + known->quantifier_offset);
        to->v = *(Onnx__AttributeProto **const *)(const void *)((const char *)m + known->offset);
        return true;
    }
    to->own = true;
    for (unsigned i = 0; i < m->n_unknown_fields; i++)
        if (m->unknown_fields[i].tag == tag && !attribute_add(to, &m->unknown_fields[i], path, why))
            return false;
    return true;
}

void attributes_free(struct attributes *a)
{
    for (size_t i = 0; a->own && i < a->n; i++)
        onnx__attribute_proto__free_unpacked(a->v[i], NULL);
    if (a->own)
        free(a->v);
    *a = (struct attributes){0};
}
