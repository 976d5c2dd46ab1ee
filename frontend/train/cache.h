/* What attention and the files of caches use of kl_nn_cache. */
#ifndef KILN_TRAIN_CACHE_H
#define KILN_TRAIN_CACHE_H
#include "train.h"

/* The arrays of a cache, cache->k[i]: keys of the layers, values, and with q8_0 the scales of both. */
int64_t cache_arrays(const kl_nn_cache *cache);
void cache_array_dims(const kl_nn_cache *cache, int64_t i, int64_t dims[4]);
kl_dtype cache_array_dtype(const kl_nn_cache *cache, int64_t i);
int64_t cache_room(const kl_nn_cache *cache); /* positions of an array; from the cache's length on none is valid */

int64_t cache_rows(const kl_nn_cache *cache); /* rows of the trace's batch */
/* i32 [rows, n]: the positions of n new tokens of each. */
kl_tensor cache_positions(const kl_nn_cache *cache, int64_t n);
/* May a batch of so many rows store n new tokens in a layer?  If not, an error of `op`. */
kl_status cache_check(const char *op, const kl_nn_cache *cache, int layer, int64_t rows, int64_t n);
/* Stores the new keys, or values, x [rows, kv_heads, n, head_width]; those of all positions of these rows, in x's
 * dtype. */
kl_tensor cache_store(const kl_nn_cache *cache, int layer, bool values, kl_tensor x);
kl_tensor cache_used_with(const kl_nn_cache *cache, int64_t row, int64_t n); /* cache->used with n for a row */

#endif
