/* An ONNX model in f64: every f32 type, tensor and Cast of a file becomes f64, read and written field by field. */
#ifndef ONNX_WIDEN_H
#define ONNX_WIDEN_H
#include "onnx_write.h"
#include <stdbool.h>

/* What a field of a message is, beside bytes that are copied. */
enum widen_kind { WIDEN_COPY, WIDEN_MESSAGE, WIDEN_TYPE, WIDEN_FLOATS, WIDEN_RAW };
enum widen_message { WIDEN_END, WIDEN_MODEL, WIDEN_GRAPH, WIDEN_NODE, WIDEN_ATTRIBUTE, WIDEN_TENSOR, WIDEN_VALUE,
                     WIDEN_TYPES, WIDEN_TENSOR_TYPE };

static const struct { enum widen_message of; int field; enum widen_kind kind; enum widen_message inner; }
    widen_fields[] = {
        {WIDEN_MODEL, 7, WIDEN_MESSAGE, WIDEN_GRAPH},       {WIDEN_GRAPH, 1, WIDEN_MESSAGE, WIDEN_NODE},
        {WIDEN_GRAPH, 5, WIDEN_MESSAGE, WIDEN_TENSOR},      {WIDEN_GRAPH, 11, WIDEN_MESSAGE, WIDEN_VALUE},
        {WIDEN_GRAPH, 12, WIDEN_MESSAGE, WIDEN_VALUE},      {WIDEN_GRAPH, 13, WIDEN_MESSAGE, WIDEN_VALUE},
        {WIDEN_NODE, 5, WIDEN_MESSAGE, WIDEN_ATTRIBUTE},    {WIDEN_ATTRIBUTE, 5, WIDEN_MESSAGE, WIDEN_TENSOR},
        {WIDEN_ATTRIBUTE, 6, WIDEN_MESSAGE, WIDEN_GRAPH},   {WIDEN_VALUE, 2, WIDEN_MESSAGE, WIDEN_TYPES},
        {WIDEN_TYPES, 1, WIDEN_MESSAGE, WIDEN_TENSOR_TYPE}, {WIDEN_TENSOR_TYPE, 1, WIDEN_TYPE, WIDEN_END},
        {WIDEN_TENSOR, 2, WIDEN_TYPE, WIDEN_END},           {WIDEN_TENSOR, 4, WIDEN_FLOATS, WIDEN_END},
        {WIDEN_TENSOR, 9, WIDEN_RAW, WIDEN_END},
    };

static inline const uint8_t *widen_varint(const uint8_t *p, const uint8_t *end, uint64_t *v)
{
    *v = 0;
    for (unsigned shift = 0; p < end && shift < 64; shift += 7) {
        *v |= (uint64_t)(*p & 0x7f) << shift;
        if (!(*p++ & 0x80))
            return p;
    }
    return end;
}

/* The number in field `wanted` of a message. */
static inline uint64_t widen_number(const uint8_t *p, const uint8_t *end, int wanted)
{
    uint64_t tag, v, found = 0;
    while (p < end) {
        p = widen_varint(p, end, &tag);
        if ((tag & 7) == 0 || (tag & 7) == 2) {
            p = widen_varint(p, end, &v);
            if ((tag & 7) == 0 && tag >> 3 == (uint64_t)wanted)
                found = v;
            p += (tag & 7) == 2 ? v : 0;
        } else {
            p += (tag & 7) == 1 ? 8 : 4;
        }
    }
    return found;
}

/* Casts to f32 are attributes called "to" whose number is 1. */
static inline bool widen_is_cast(const uint8_t *p, size_t n)
{
    static const uint8_t name[4] = {0x0a, 2, 't', 'o'};
    return n > sizeof name && !memcmp(p, name, sizeof name) && widen_number(p, p + n, 3) == FLOAT;
}

static inline void widen_floats(struct pb *to, int field, const uint8_t *p, size_t n)
{
    struct pb wide = {0};
    for (size_t i = 0; i + 4 <= n; i += 4) {
        float f;
        memcpy(&f, p + i, 4);
        pb_bytes(&wide, &(double){(double)f}, 8);
    }
    pb_message(to, field, &wide);
}

/* The message at p, which is a sound one, of kind `of`. */
static inline struct pb widen(const uint8_t *p, const uint8_t *end, enum widen_message of)
{
    enum { DOUBLE = 11 };
    struct pb to = {0};
    bool f32 = of != WIDEN_TENSOR || widen_number(p, end, 2) == FLOAT;
    bool cast = of == WIDEN_ATTRIBUTE && widen_is_cast(p, (size_t)(end - p));
    while (p < end) {
        const uint8_t *start = p;
        uint64_t tag, v = 0;
        enum widen_kind kind = WIDEN_COPY;
        enum widen_message inner = WIDEN_END;
        p = widen_varint(p, end, &tag);
        int field = (int)(tag >> 3), wire = (int)(tag & 7);
        for (size_t i = 0; f32 && i < sizeof widen_fields / sizeof *widen_fields; i++)
            if (widen_fields[i].of == of && widen_fields[i].field == field) {
                kind = widen_fields[i].kind;
                inner = widen_fields[i].inner;
            }
        if (cast && field == 3)
            kind = WIDEN_TYPE;
        if (wire == 0 || wire == 2)
            p = widen_varint(p, end, &v);
        const uint8_t *data = p;
        p += wire == 2 ? v : wire == 1 ? 8 : wire == 5 ? 4 : 0;
        if (kind == WIDEN_TYPE && v == FLOAT) {
            pb_int(&to, field, DOUBLE);
        } else if (kind == WIDEN_MESSAGE) {
            struct pb m = widen(data, p, inner);
            pb_message(&to, field, &m);
        } else if (kind == WIDEN_FLOATS || kind == WIDEN_RAW) {
            widen_floats(&to, kind == WIDEN_RAW ? 9 : 10, data, (size_t)(p - data));
        } else {
            pb_bytes(&to, start, (size_t)(p - start));
        }
    }
    return to;
}

/* Writes the model of one file to another, in f64. */
static inline bool widen_file(const char *from, const char *to)
{
    FILE *f = fopen(from, "rb");
    struct pb b = {0};
    uint8_t chunk[1 << 14];
    for (size_t n; f && (n = fread(chunk, 1, sizeof chunk, f)) > 0;)
        pb_bytes(&b, chunk, n);
    if (f)
        fclose(f);
    struct pb wide = widen(b.data, b.data + b.n, WIDEN_MODEL);
    FILE *g = f ? fopen(to, "wb") : NULL;
    bool ok = g && fwrite(wide.data, 1, wide.n, g) == wide.n;
    ok &= g && !fclose(g);
    free(b.data);
    free(wide.data);
    return ok;
}
#endif
