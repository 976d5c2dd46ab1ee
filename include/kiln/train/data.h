/* Readers of data sets, and loaders that make batches from them.  Included by <kiln/train.h>. */
#ifndef KILN_DATA_H
#define KILN_DATA_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An array of bytes as the MNIST family of data sets stores them: plain memory, row-major. */
typedef struct kl_idx {
    uint8_t *data;
    int64_t count; /* number of elements: the product of dim */
    int rank;
    int64_t dim[KL_MAX_RANK];
} kl_idx;

/* Reads an IDX file of unsigned bytes, gzip-compressed or not.  With `rank` > 0 the file must have that many
 * dimensions, and each must equal dim[i] where dim is not NULL and dim[i] >= 0.  Any problem with the file (missing,
 * truncated, another format or element type, other dimensions, trailing bytes) is an error that names it; *out is then
 * empty. */
KL_API kl_status kl_idx_open(const char *path, int rank, const int64_t *dim, kl_idx *out);

/* Frees the data and empties *idx; does nothing for an empty one. */
KL_API void kl_idx_close(kl_idx *idx);

/* ---- tables of numbers as text ---- */

typedef struct kl_csv {
    double *data;      /* [rows, columns], row-major; NaN where a field is empty */
    int64_t rows, columns;
    char **name;       /* names of the columns; NULL without a header */
} kl_csv;
/* Reads a file of numbers separated by `separator` (0: a comma), one row a line.  With `header` the first line has the
 * columns' names.  A field may be in double quotes, with "" for a quote; spaces around a number, empty lines and \r at
 * the end of a line are skipped.  Any problem (missing, a field that is no number, rows of unequal length) is an error
 * that names file, line and column; *out is then empty.  [errors ARGUMENT, IO, MEMORY] */
KL_API kl_status kl_csv_open(const char *path, char separator, bool header, kl_csv *out);
/* The number of the column with this name; -1: there is none. */
KL_API int64_t kl_csv_column(const kl_csv *csv, const char *name);
KL_API void kl_csv_close(kl_csv *csv); /* does nothing for an empty one */

/* ---- tokens: a file of unsigned integers, mapped into memory ---- */

typedef struct kl_tokens {
    int64_t count;
    int width;         /* bytes of a token: 1, 2 or 4, in this machine's byte order */
    const void *data;
    void *map;         /* the mapping of the file; owned by Kiln */
    size_t map_bytes;
} kl_tokens;
/* Maps the tokens of a file, without its first `skip` bytes.  [errors ARGUMENT; IO: the file cannot be read, is
 * shorter than skip, or the rest is no multiple of the width: *out is then empty] */
KL_API kl_status kl_tokens_open(const char *path, int width, int64_t skip, kl_tokens *out);
/* Copies n tokens to out as i32, beginning with token number `first`.  [errors ARGUMENT: not all of them exist, or
 * one is above 2^31 - 1] */
KL_API kl_status kl_tokens_read(const kl_tokens *tokens, int64_t first, int64_t n, int32_t *out);
KL_API void kl_tokens_close(kl_tokens *tokens); /* does nothing for an empty one */

/* ---- loaders: threads prepare batches ahead of time ---- */

/* Writes n samples to `batch`. It runs on any thread and must not call Kiln except kl_tokens_read.  It writes the text
 * of an error to message, which has room for 256 bytes. */
typedef kl_status kl_loader_fill(void *ctx, int64_t n, const int64_t *samples, void *batch, char *message);

typedef struct kl_loader_options {
    int64_t count;         /* samples of the data set, numbered from 0 */
    int64_t batch;         /* the largest number of samples in a batch of one rank */
    size_t bytes;          /* size of a batch in bytes */
    kl_loader_fill *fill;
    void *ctx;
    uint64_t seed;         /* determines the order of the samples, which is different in each epoch */
    bool in_order;         /* the samples are not shuffled */
    bool drop_last;        /* batches that are not full are not returned */
    int rank, ranks;       /* ranks 0: 1 */
    int threads;           /* 0: 1; negative: no threads, kl_loader_next calls fill itself */
    int prefetch;          /* number of batches that are prepared ahead; 0: 2 plus one for each thread */
} kl_loader_options;

/* The result of kl_loader_next. */
typedef struct kl_batch {
    const void *data;      /* owned by the loader, valid until its next call */
    const int64_t *sample; /* the numbers of the samples; owned and valid like data */
    int64_t count;
    int64_t epoch, index;  /* the position of the batch: its epoch and its number in the epoch */
} kl_batch;

/* Makes batches of a data set, epoch after epoch without end.  The samples of a batch depend on the options except
 * threads and prefetch.  Batch i of all ranks together has the samples of a single rank with a batch `ranks` times as
 * large; rank r has those from r * batch on.  The last samples of an epoch are divided evenly, and left out if there
 * are fewer than ranks.  A child of fork makes its own loaders.  At most one thread at a time may use a loader.  The
 * options are copied.  [errors ARGUMENT, MEMORY: NULL] */
typedef struct kl_loader kl_loader;
KL_API kl_loader *kl_loader_new(const kl_loader_options *options);
/* The next batch.  An error of fill is returned by the call for its batch; the next call returns the batch after that.
 * [errors ARGUMENT; those of fill] */
KL_API kl_status kl_loader_next(kl_loader *loader, kl_batch *out);
KL_API int64_t kl_loader_batches(const kl_loader *loader); /* number of batches in an epoch */
/* kl_loader_position returns the number of the next batch, counted over all epochs, to be stored in a checkpoint.
 * kl_loader_seek continues at this number.  [errors ARGUMENT: negative] */
KL_API int64_t kl_loader_position(const kl_loader *loader);
KL_API kl_status kl_loader_seek(kl_loader *loader, int64_t position);
/* Waits for the loader's threads and frees it.  NULL is allowed. */
KL_API void kl_loader_free(kl_loader *loader);

/* A fill function for language models; ctx is a kl_tokens_windows.  Sample i is length + 1 tokens as i32, beginning
 * with token number i * stride.  A batch is i32 [n, length + 1]: its inputs are [:, :-1] and its targets [:, 1:]. */
typedef struct kl_tokens_windows {
    const kl_tokens *tokens;
    int64_t length, stride; /* stride 0: length */
} kl_tokens_windows;
KL_API int64_t kl_tokens_windows_count(const kl_tokens_windows *windows); /* number of samples */
KL_API kl_status kl_tokens_windows_fill(void *windows, int64_t n, const int64_t *samples, void *batch, char *message);

#ifdef __cplusplus
}
#endif
#endif
