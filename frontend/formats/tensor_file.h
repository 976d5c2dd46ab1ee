/* Files of tensors (<kiln/formats/file.h>): what the readers and writers of the formats share, grouped by file. */
#ifndef KILN_TENSOR_FILE_H
#define KILN_TENSOR_FILE_H
#include "file_open.h"
#include <kiln/train.h>
#include <stdatomic.h>

struct file_name { const char *name; uint32_t i; };

/* A tensor in a file. */
enum file_blocks {
    BLOCKS_NONE,
#define BLOCKS(kind, number, name, split, encode, elements, bytes, ...) BLOCKS_##kind,
#include "frontend/formats/gguf/gguf_blocks.def"
#undef BLOCKS
    BLOCKS_F8_E4M3, BLOCKS_F8_E5M2, BLOCKS_F8_E8M0, /* of safetensors, of one element each */
};
struct file_entry {
    kl_file_entry is;
    const uint8_t *data;      /* its elements; NULL: not looked at yet */
    uint8_t *own;             /* memory of its own that data is in, or NULL */
    enum file_blocks blocks;
    bool complex;             /* pairs of f32 */
    kl_file *shard;           /* the file of it, if it is not f */
    bool column_major;        /* .npy: the first axis is the one whose elements are adjacent */
    bool big_endian;          /* .npy: the elements' first byte is the highest */
    bool checked;             /* bools are 0 or 1; a member's check sum is right */
    struct file_member {      /* .npz: where it is in the archive */
        size_t at, packed, bytes, header; /* bytes: not compressed; header: of .npy */
        uint32_t crc;
        bool deflated;
    } member;
};
struct file_value { /* metadata */
    kl_file_meta is;
    const uint8_t *numbers;   /* not aligned */
    const char **text;
};
struct file_map { atomic_uint refs; void *bytes; size_t size; };
struct file_strings;          /* memory that is freed with the file */

struct kl_file {
    kl_file_format format;
    char *path;
    struct file_map *map;     /* NULL: the bytes are the caller's */
    const uint8_t *bytes;
    size_t size;
    uint32_t n, cap;
    struct file_entry *entry;
    struct file_name *by_name; /* sorted */
    uint32_t nmeta, meta_cap;
    struct file_value *meta;
    struct file_strings *strings;
    kl_file **shard;           /* the files of an index, the other parts */
    uint32_t shards;
    char *location;            /* of such a file: its name there */
    struct file_error why;
};

/* ---- tensor_file.c ---- */
/* Sets f->why to "path: byte at, field: .." and returns false.  field NULL: none. */
bool file_bad(kl_file *f, size_t at, const char *field, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
bool file_no_memory(kl_file *f);
/* A file of another kind, mapped and not read; closed by kl_file_close.  NULL: kl_last_error. */
kl_file *file_open_other(const char *path);
/* Makes f->why the thread's error and closes the file; NULL. */
kl_file *file_failed(kl_file *f);
struct file_entry *file_entry_add(kl_file *f); /* NULL: file_no_memory */
struct file_value *file_value_add(kl_file *f);
/* Zeroed memory that lives as long as the file; NULL: file_no_memory. */
void *file_memory(kl_file *f, size_t bytes);
char *file_string(kl_file *f, const void *bytes, size_t n);
/* Sorts names; one that is there twice, or NULL. */
const struct file_name *names_sort(struct file_name *v, uint32_t n);

/* The entry's bytes as a tensor, without a copy where that can be; kl_none: kl_last_error. */
kl_tensor file_mapped_tensor(kl_file *f, const struct file_entry *e, kl_device device, kl_dtype dtype, int rank,
                             const int64_t *dims);
/* NULL: kl_last_error.  *f becomes the file that has the entry, if it was an index. */
struct file_entry *file_entry_named(kl_file **f, const char *name);
/* Opens a file of f's format that f, an index or the first of several parts, names.  NULL: *why. */
kl_file *file_open_part(const kl_file *f, const char *location, struct file_error *why);
/* The entry's bytes in the file's mapping are not needed soon: they leave this process's memory. */
void file_entry_forget(const kl_file *f, const struct file_entry *e);
/* Its data is there and checked; false: kl_last_error. */
bool file_entry_is_read(kl_file *f, struct file_entry *e);

/* ---- file_write.c ---- */
/* An item as it is written: its shape is known, its elements are read when their turn has come. */
struct file_item {
    const char *name;
    kl_tensor tensor;
    kl_dtype dtype;
    int rank;
    int64_t dims[KL_MAX_RANK], count;
    const void *data;
    size_t bytes;                 /* of its elements of this dtype */
    enum file_blocks blocks;      /* data has blocks of this kind, of another file, and dtype is that of their values */
    const char *type_name;        /* what the caller asked for, or NULL */
    const struct gguf_type *type; /* GGUF: what is written */
    const kl_file_write_options *options;
};
/* Its elements of its dtype; *own: to be freed.  NULL: o->why. */
const void *item_data(struct file_out *o, const struct file_item *item, void **own);
/* Elements first to first + n of it as f32, where `data` has all of them as item_data gives them or, of blocks, as
 * item->data does.  Of blocks these are whole ones.  The dtype is a float. */
void item_floats(const struct file_item *item, const void *data, size_t first, size_t n, float *to);

/* ---- file_types.c ---- */
kl_tensor float8_tensor(kl_file *f, const struct file_entry *e, kl_device device);
kl_tensor complex_tensor(kl_file *f, const struct file_entry *e, kl_device device);
/* Blocks as f32, decoded on the host. */
kl_tensor file_decoded_tensor(kl_file *f, const struct file_entry *e, kl_device device);
void decode_f8_e4m3(const uint8_t *p, float *to);
void decode_f8_e5m2(const uint8_t *p, float *to);
void decode_f8_e8m0(const uint8_t *p, float *to);

/* ---- npy.c ---- */
bool npy_read(kl_file *f);
enum { NPY_PREFIX = 12, NPY_HEADER_MAX = 1 << 20 };
/* Bytes in front of the elements, told by the first NPY_PREFIX ones (or the n that there are); 0: file_bad.
 * at: of the first byte in the file. */
size_t npy_header_bytes(kl_file *f, const uint8_t *bytes, size_t n, size_t at);
/* Fills e of the header; its elements take `rest` bytes. */
bool npy_header(kl_file *f, const uint8_t *bytes, size_t header, size_t rest, size_t at, struct file_entry *e);
bool npy_is_writable(struct file_out *o, const struct file_item *item);
size_t npy_header_write(const struct file_item *item, char header[512]); /* its length */
void npy_write(struct file_out *o, const struct file_item *item);

/* ---- npz.c ---- */
bool npz_read(kl_file *f);
bool npz_unpack(kl_file *f, struct file_entry *e); /* e->data, if it is a member */
void npz_write(struct file_out *o, const struct file_item *items, uint32_t n);

/* ---- safetensors.c ---- */
bool safetensors_is(const uint8_t *bytes, size_t n);
bool safetensors_read(kl_file *f);
/* What it can write of names and metadata; false: *why. */
bool safetensors_takes(const char *path, const struct file_item *items, uint32_t n,
                       const kl_file_write_options *options, struct file_error *why);
void safetensors_write(struct file_out *o, const struct file_item *items, uint32_t n,
                       const kl_file_write_options *options);

/* ---- shards.c ---- */
bool shards_is(const uint8_t *bytes, size_t n);
bool shards_read(kl_file *f);

/* ---- gguf/gguf.c ---- */
bool gguf_read(kl_file *f);

/* ---- gguf/gguf_tensor.c ---- */
/* Blocks as a quantized tensor.  matrix: its parts are as short as the file's, and those of a matrix lie as its
 * products on `device` read them. */
kl_tensor blocks_tensor(kl_file *f, const struct file_entry *e, kl_device device, bool matrix);

/* ---- gguf/gguf_parts.c ---- */
bool gguf_read_parts(kl_file *f); /* adds the tensors of the other parts, if it is the first of several */

/* ---- gguf/gguf_blocks.c ---- */
float blocks_half(const uint8_t *p); /* the f16 in two bytes, the lower one first */
/* What a block has for its elements: one f16 or bf16 scale, and one f16 minimum; or f16 ones of the block, each times
 * an integer of a sub-block. */
enum blocks_scales { SCALES_NONE, SCALES_F16, SCALES_BF16, SCALES_F16_MINIMUM, SCALES_SUPER, SCALES_SUPER_MINIMUM };
enum { BLOCKS_MAX = 256, SUB_BLOCKS_MAX = 16 };
struct blocks_parts {
    uint8_t q[BLOCKS_MAX];        /* i8; of KL_Q_I4 and KL_Q_U4 two in a byte, the first in its low half */
    uint8_t more[2][BLOCKS_MAX / 4]; /* of KL_Q_I6: its other arrays */
    int8_t scale[SUB_BLOCKS_MAX];
    uint8_t minimum[SUB_BLOCKS_MAX];
    uint8_t d[2], m[2];           /* bits of the scale and the minimum (of the block), the lower byte first */
};
struct blocks_kind {
    void (*decode)(const uint8_t *p, float *to);                 /* one element without a scale; else: */
    void (*split)(const uint8_t *p, struct blocks_parts *parts); /* one block, whose value is scale q - minimum */
    unsigned elements, bytes;
    kl_qtype type;
    unsigned sub_block;
    enum blocks_scales scales;
};
const struct blocks_kind *blocks_kind_of(enum file_blocks kind); /* not of BLOCKS_NONE */
/* Makes integers in bytes, -32 to 31, those of KL_Q_I6, its first array in q. */
void blocks_pack_six(struct blocks_parts *parts);
/* n blocks as f32. */
void blocks_decode(enum file_blocks kind, size_t n, const uint8_t *from, float *to);

#endif
