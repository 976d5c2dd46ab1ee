/* ONNX models written by tests: protobuf messages, field by field. */
#ifndef ONNX_WRITE_H
#define ONNX_WRITE_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pb { uint8_t *data; size_t n, cap; };

static inline void pb_bytes(struct pb *b, const void *p, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n) + 64;
        b->data = realloc(b->data, b->cap);
    }
    if (n)
        memcpy(b->data + b->n, p, n);
    b->n += n;
}
static inline void pb_varint(struct pb *b, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        pb_bytes(b, &(uint8_t){(uint8_t)(v | 0x80)}, 1);
    pb_bytes(b, &(uint8_t){(uint8_t)v}, 1);
}
static inline void pb_int(struct pb *b, int field, int64_t v)
{
    pb_varint(b, (uint64_t)field << 3);
    pb_varint(b, (uint64_t)v);
}
static inline void pb_blob(struct pb *b, int field, const void *p, size_t n)
{
    pb_varint(b, (uint64_t)field << 3 | 2);
    pb_varint(b, n);
    pb_bytes(b, p, n);
}
static inline void pb_text(struct pb *b, int field, const char *s) { pb_blob(b, field, s, strlen(s)); }
static inline void pb_message(struct pb *b, int field, struct pb *m) /* and frees it */
{
    pb_blob(b, field, m->data, m->n);
    free(m->data);
    *m = (struct pb){0};
}

enum { FLOAT = 1, INT32 = 6, INT64 = 7, BOOL = 9 }; /* element types */

/* A TensorProto; data NULL: none. */
static inline struct pb onnx_tensor(const char *name, int type, int rank, const int64_t *dims, const void *data,
                                    size_t bytes)
{
    struct pb t = {0};
    for (int i = 0; i < rank; i++)
        pb_int(&t, 1, dims[i]);
    pb_int(&t, 2, type);
    pb_text(&t, 8, name);
    if (data)
        pb_blob(&t, 9, data, bytes);
    return t;
}

/* Into graph g (a GraphProto): names are separated by spaces, attributes follow as they are. */
static inline void onnx_node(struct pb *g, const char *op, const char *in, const char *out, struct pb attributes)
{
    struct pb n = {0};
    for (int k = 0; k < 2; k++)
        for (const char *p = k ? out : in; *p; p += strcspn(p, " "), p += *p == ' ')
            pb_blob(&n, k ? 2 : 1, *p == '-' ? "" : p, *p == '-' ? 0 : strcspn(p, " "));
    pb_text(&n, 3, op);
    pb_text(&n, 4, op);
    pb_bytes(&n, attributes.data, attributes.n);
    free(attributes.data);
    pb_message(g, 1, &n);
}
static inline struct pb onnx_none(void) { return (struct pb){0}; }
static inline struct pb onnx_attr_i(const char *name, int64_t v)
{
    struct pb a = {0}, all = {0};
    pb_text(&a, 1, name);
    pb_int(&a, 3, v);
    pb_int(&a, 20, 2);
    pb_message(&all, 5, &a);
    return all;
}
static inline struct pb onnx_attr_f(const char *name, float v)
{
    struct pb a = {0}, all = {0};
    pb_text(&a, 1, name);
    pb_varint(&a, 2 << 3 | 5);
    pb_bytes(&a, &v, sizeof v);
    pb_int(&a, 20, 1);
    pb_message(&all, 5, &a);
    return all;
}
static inline struct pb onnx_attr_s(const char *name, const char *v)
{
    struct pb a = {0}, all = {0};
    pb_text(&a, 1, name);
    pb_text(&a, 4, v);
    pb_int(&a, 20, 3);
    pb_message(&all, 5, &a);
    return all;
}
static inline void onnx_attr_add(struct pb *all, struct pb one) /* and frees it */
{
    pb_bytes(all, one.data, one.n);
    free(one.data);
}
static inline struct pb onnx_attr_list(const char *name, int n, const int64_t *v)
{
    struct pb a = {0}, all = {0};
    pb_text(&a, 1, name);
    for (int i = 0; i < n; i++)
        pb_int(&a, 8, v[i]);
    pb_int(&a, 20, 7);
    pb_message(&all, 5, &a);
    return all;
}
static inline struct pb onnx_attr_texts(const char *name, int n, const char *const *text)
{
    struct pb a = {0}, all = {0};
    pb_text(&a, 1, name);
    for (int i = 0; i < n; i++)
        pb_text(&a, 9, text[i]);
    pb_int(&a, 20, 8);
    pb_message(&all, 5, &a);
    return all;
}
static inline void onnx_attr_g(struct pb *all, const char *name, struct pb *graph)
{
    struct pb a = {0};
    pb_text(&a, 1, name);
    pb_message(&a, 6, graph);
    pb_int(&a, 20, 5);
    pb_message(all, 5, &a);
}
static inline void onnx_initializer(struct pb *g, const char *name, int type, int rank, const int64_t *dims,
                                    const void *data, size_t bytes)
{
    struct pb t = onnx_tensor(name, type, rank, dims, data, bytes);
    pb_message(g, 5, &t);
}
/* field 11: an input, 12: an output; dims below 0 are symbols: -1 N, -2 O, -3 P and so on */
static inline void onnx_io(struct pb *g, int field, const char *name, int type, int rank, const int64_t *dims)
{
    struct pb v = {0}, t = {0}, tensor = {0}, shape = {0};
    for (int i = 0; i < rank; i++) {
        struct pb d = {0};
        if (dims[i] < 0)
            pb_text(&d, 2, (char[2]){(char)('M' - dims[i]), 0});
        else
            pb_int(&d, 1, dims[i]);
        pb_message(&shape, 1, &d);
    }
    pb_int(&tensor, 1, type);
    pb_message(&tensor, 2, &shape);
    pb_message(&t, 1, &tensor);
    pb_text(&v, 1, name);
    pb_message(&v, 2, &t);
    pb_message(g, field, &v);
}
/* A ModelProto of the graph, which it frees. */
static inline struct pb onnx_model(struct pb *g, int opset)
{
    struct pb m = {0}, o = {0};
    pb_int(&m, 1, 8);
    pb_text(&o, 1, "");
    pb_int(&o, 2, opset);
    pb_message(&m, 8, &o);
    pb_message(&m, 7, g);
    return m;
}
static inline int onnx_save(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    size_t done = f && n ? fwrite(data, 1, n, f) : 0;
    return f && !fclose(f) && done == n;
}

#endif
