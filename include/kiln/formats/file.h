/* Tensors in files: NumPy's .npy and .npz, safetensors, GGUF.  Included by <kiln/train.h>.
 *
 *     kl_file *f = kl_file_open("model.safetensors");
 *     if (!f) { fprintf(stderr, "%s\n", kl_last_error()); return 1; }
 *     kl_tensor w = kl_file_tensor(f, dev, "fc.weight");
 *     kl_file_close(f);                       // w stays
 *     ...
 *     kl_file_item items[] = {{.name = "fc.weight", .tensor = w}};
 *     kl_file_write("new.npz", KL_FILE_NPZ, 1, items, 0, NULL);
 *
 * A file is mapped into memory, and tensors use the mapping without a copy where their elements are aligned.  The file
 * must not be modified while it, or one of its tensors, is in use. kl_file_write replaces a file atomically and never
 * modifies an existing one.  Errors in a file name the file, the byte and the field.
 *
 * One thread at a time uses an open file. */
#ifndef KILN_FILE_H
#define KILN_FILE_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kl_file_format {
    KL_FILE_NPY,         /* one array, whose name is "" */
    KL_FILE_NPZ,         /* a zip archive of .npy files, stored or deflated; without that ending in their names */
    KL_FILE_SAFETENSORS,
    KL_FILE_GGUF,        /* versions 2 and 3; 3 is written */
    KL_FILE_FORMATS
} kl_file_format;
KL_API const char *kl_file_format_name(kl_file_format format); /* "npy", "npz", "safetensors", "gguf" */

/* ---- reading ---- */

typedef struct kl_file kl_file;

/* Opens a file; its first bytes determine the format.  An index of several safetensors files (*.index.json), which are
 * in its folder, is opened as one file with the tensors that it names, and so is the first of several parts of a GGUF
 * file (NAME-00001-of-00003.gguf).  Everything except the elements is checked; parts that the format does not define
 * (other members of a .npz) are skipped.  NULL: it failed.  [errors ARGUMENT; IO: missing, truncated or of another
 * format; MEMORY] */
KL_API_AT kl_file *kl_file_open(const char *path);
/* The same for a file in memory.  The caller owns the bytes, which must outlive the kl_file; `name` is for messages. */
KL_API_AT kl_file *kl_file_open_bytes(const char *name, const void *bytes, size_t n);
/* Closes the file.  Its tensors and values recorded from them stay valid.  NULL is allowed. */
KL_API void kl_file_close(kl_file *file);
KL_API kl_file_format kl_file_format_of(const kl_file *file);

/* The description of a tensor in a file. */
typedef struct kl_file_entry {
    const char *name;          /* valid as long as the file is open, as is type */
    const char *type;          /* the file's name for the element type: "<f4", "F32", "Q4_0" */
    kl_dtype dtype;            /* the dtype of the tensor when it is read; KL_DTYPE_COUNT: Kiln has no such type */
    int rank;
    int64_t dims[KL_MAX_RANK]; /* outermost first, whatever the file's order */
    size_t offset;             /* of its elements in the file, or in that of an index, in bytes */
    size_t bytes;              /* size of its elements, uncompressed; of an unknown type: up to the next tensor */
} kl_file_entry;
/* The number of tensors.  They are numbered from 0 in the order of the file; their names are unique. */
KL_API int64_t kl_file_count(const kl_file *file);
/* [errors ARGUMENT: no such number] */
KL_API kl_status kl_file_get(const kl_file *file, int64_t i, kl_file_entry *entry);
/* The number of a name; -1: there is none, which is no error. */
KL_API int64_t kl_file_find(const kl_file *file, const char *name);

/* A tensor of the file.  GGUF's blocks of the types Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and
 * MXFP4 become quantized tensors of <kiln/storage.h>, whose dtype is f32: integers of 4 or 8 bits with their scales and
 * minimums, in blocks of 16 or 32 along the last axis.  kl_dense of them has the bits of the format's own package.  Of
 * safetensors' types F8_E4M3 and F8_E5M2 become f32, by an op that reads the file's bytes, F8_E8M0 is decoded to f32,
 * and C64 becomes a complex tensor of <kiln/storage.h>, of at most KL_MAX_RANK - 1 axes.  [new handle; errors
 * ARGUMENT: no such name; TYPE: its elements are of a type that Kiln does not have; IO: damaged elements; DEVICE;
 * MEMORY] */
KL_API_AT kl_tensor kl_file_tensor(kl_file *file, kl_device device, const char *name);
/* The same for products: of blocks the parts take as much memory as in the file, or little more (Q5 and Q6 take 8 bits
 * an element), and on a processor those of a matrix of 16 n rows are interleaved (kl_quantized_with). */
KL_API_AT kl_tensor kl_file_matrix(kl_file *file, kl_device device, const char *name);
/* Its elements as the file has them, unpacked if they were compressed, row-major and little-endian:
 * kl_file_entry.bytes of them, not aligned, valid until kl_file_close.  NULL after an error.
 * [errors as kl_file_tensor, without TYPE] */
KL_API_AT const void *kl_file_data(kl_file *file, const char *name);

/* An entry of the file's metadata: __metadata__ of safetensors, the keys of GGUF. */
typedef struct kl_file_meta {
    const char *key;   /* valid as long as the file is open */
    bool array;
    int64_t count;     /* values: 1, or an array's length */
    kl_dtype dtype;    /* of numbers and bools; KL_DTYPE_COUNT: strings */
} kl_file_meta;
KL_API int64_t kl_file_meta_count(const kl_file *file);
/* [errors ARGUMENT: no such number] */
KL_API kl_status kl_file_meta_get(const kl_file *file, int64_t i, kl_file_meta *meta);
KL_API int64_t kl_file_meta_find(const kl_file *file, const char *key); /* -1: there is none, which is no error */
/* Value k of number i as text, valid as long as the file is open; NULL: there is none, or it is a number. */
KL_API const char *kl_file_meta_text(const kl_file *file, int64_t i, int64_t k);
/* Value k of number i, converted; NaN, and 0: there is none, or it is text. */
KL_API double kl_file_meta_f64(const kl_file *file, int64_t i, int64_t k);
KL_API int64_t kl_file_meta_i64(const kl_file *file, int64_t i, int64_t k);

/* ---- writing ---- */

/* A tensor, an array of the caller's, or a tensor of another file. */
typedef struct kl_file_item {
    const char *name;
    kl_tensor tensor;    /* a tensor that is not stored dense is written as its dense values */
    kl_dtype dtype;      /* where tensor is kl_none: */
    int rank;
    const int64_t *dims;
    const void *data;    /*   row-major */
    kl_file *file;       /* if it is not NULL: the elements of a tensor of this file, read while they are written */
    const char *from;    /*   its name there; NULL: `name` */
    /* GGUF: how elements are stored.  NULL: by their dtype, and those of a GGUF file as they are there.  "F32", "F16"
     * and "BF16" round; "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4" (blocks of 32 elements of the last
     * axis) and "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS" (blocks of 256) quantize floats.  Upper or lower
     * case. */
    const char *type;
} kl_file_item;
typedef struct kl_file_pair {
    const char *key, *value;
} kl_file_pair;
/* Writes items to a temporary file beside `path`, flushes it to the disk and renames it to `path`: at every moment
 * `path` is either the old file or the complete new one.  A pipe or a device is written to directly. meta: for
 * safetensors and GGUF.  [errors ARGUMENT: also two items of one name, a number of items, a name, a rank or a row's
 * length that the format cannot have, a number that an item's type cannot hold, metadata; TYPE: bf16 in NumPy's
 * formats, bool and unsigned in GGUF, an item's type; IO; MEMORY; those of kl_read.  The file is then as it was] */
KL_API_AT kl_status kl_file_write(const char *path, kl_file_format format, int64_t n, const kl_file_item *items,
                                  int64_t nmeta, const kl_file_pair *meta);

/* A value of metadata: GGUF has numbers and arrays, safetensors text alone. */
typedef struct kl_file_value {
    const char *key;
    const char *text;    /* a string; where it is NULL: */
    kl_dtype dtype;      /*   numbers or bools of this dtype; KL_DTYPE_COUNT: an array of strings */
    bool array;          /*   an array of `count` values, else one value */
    int64_t count;
    const void *data;    /*   the numbers; of strings a const char *const * */
} kl_file_value;
typedef struct kl_file_write_options {
    int64_t nmeta;
    const kl_file_value *meta; /* "general.alignment", KL_U32: GGUF's tensors begin at multiples of it; else of 32 */
    void (*progress)(void *ctx, const char *name); /* called before an item is written, in the order of the file */
    void *ctx;
} kl_file_write_options;
/* kl_file_write with all that it can do.  NULL: no metadata. */
KL_API_AT kl_status kl_file_write_with(const char *path, kl_file_format format, int64_t n, const kl_file_item *items,
                                       const kl_file_write_options *options);

#ifdef __cplusplus
}
#endif
#include <kiln/call_sites/formats/file.h> /* made from the prototypes marked KL_API_AT */
#endif
