/* GGUF: its element types, and their blocks from and to f32. */
#ifndef KILN_FORMATS_GGUF_H
#define KILN_FORMATS_GGUF_H
#include "frontend/formats/tensor_file.h"

enum { GGUF_ALIGNMENT = 32, GGUF_VERSION = 3, GGUF_STRING = 8, GGUF_ARRAY = 9, GGUF_VALUE_TYPES = 13 };

struct gguf_type {
    unsigned number;
    const char *name;
    kl_dtype dtype;              /* KL_DTYPE_COUNT: Kiln has no such dtype and only knows its size */
    enum file_blocks blocks;
    unsigned elements, bytes;    /* elements and bytes of a block */
};

/* ---- gguf.c ---- */
const struct gguf_type *gguf_type_numbered(uint64_t number); /* NULL: unknown */
const struct gguf_type *gguf_type_named(const char *name);   /* upper or lower case; NULL: unknown */
const struct gguf_type *gguf_type_of_dtype(kl_dtype dtype);  /* NULL: GGUF has no such type */
const struct gguf_type *gguf_type_of_blocks(enum file_blocks blocks);
/* The dtypes of metadata values by their type's number; KL_DTYPE_COUNT: a string or an array. */
extern const kl_dtype gguf_value_dtype[GGUF_VALUE_TYPES];

/* ---- gguf_write.c ---- */
/* What it can write of names, shapes, types and metadata; sets each item's type; false: *why. */
bool gguf_takes(const char *path, struct file_item *items, uint32_t n, const kl_file_write_options *options,
                struct file_error *why);
void gguf_write(struct file_out *o, const struct file_item *items, uint32_t n, const kl_file_write_options *options);

/* ---- gguf_encode.c ---- */
bool blocks_are_encoded(enum file_blocks kind);
/* n blocks of a kind that has an encoder, of finite numbers. */
void blocks_encode(enum file_blocks kind, size_t n, const float *from, uint8_t *to);
uint16_t blocks_half_of(float x);     /* the nearest f16, of two as near the even one */
void blocks_put_half(uint8_t *p, float x);

/* ---- gguf_encode_k.c ---- */
void encode_q2_k(const float *x, uint8_t *p);
void encode_q3_k(const float *x, uint8_t *p);
void encode_q4_k(const float *x, uint8_t *p);
void encode_q5_k(const float *x, uint8_t *p);
void encode_q6_k(const float *x, uint8_t *p);

/* ---- gguf_encode_iq.c ---- */
void encode_iq4_nl(const float *x, uint8_t *p);
void encode_iq4_xs(const float *x, uint8_t *p);
void encode_mxfp4(const float *x, uint8_t *p);

/* ---- gguf_blocks.c ---- */
extern const int8_t blocks_iq4_values[16];   /* what codes of IQ4 stand for */
extern const int8_t blocks_mxfp4_values[16]; /* and those of MXFP4, with half the scale */

#endif
