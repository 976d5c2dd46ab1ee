/* Reading data sets.  Included by <kiln/kiln.h>. */
#ifndef KILN_DATA_H
#define KILN_DATA_H
#include <kiln/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An array of bytes as the MNIST family of data sets stores them: plain memory, row-major. */
typedef struct kl_idx {
    uint8_t *data;
    int64_t count; /* elements: the product of dim */
    int rank;
    int64_t dim[KL_MAX_RANK];
} kl_idx;

/* Reads an IDX file of unsigned bytes, gzip-compressed or not.  With `rank` > 0 the file must have that many
 * dimensions, and each must equal dim[i] where dim is not NULL and dim[i] >= 0.  Anything wrong with the file
 * (missing, truncated, another format or element type, other dimensions, bytes left over) is an error that
 * names it; *out is then empty. */
KL_API kl_status kl_idx_read(kl_idx *out, const char *path, int rank, const int64_t *dim);

/* Frees the data and empties *idx; harmless on an empty one. */
KL_API void kl_idx_free(kl_idx *idx);

#ifdef __cplusplus
}
#endif
#endif
