/* Caches of keys and values: rows of different lengths, written in place, as floats or quantized.
 *
 * A layer's keys are one array [batch, kv_heads, room, head_width].  New ones are stored by an index_copy into its flat
 * rows of head_width elements, whose index is made of the rows' used positions, so that one program serves all
 * positions, and only the new elements are stored.  The room has more positions than the cache's length: the last one
 * takes what is not to be stored, and is never read. */
#include "cache.h"

enum { BLOCK = 32, ROOM_STEP = 16 };
static const double STEPS = 127; /* of a quantized block on each side of 0 */

int64_t cache_room(const kl_nn_cache *cache) { return (cache->length + ROOM_STEP) / ROOM_STEP * ROOM_STEP; }

/* ---- making and counting ---- */

int64_t cache_arrays(const kl_nn_cache *cache) { return cache->layers * (cache->is.q8_0 ? 4 : 2); }

void cache_array_dims(const kl_nn_cache *cache, int64_t i, int64_t dims[4])
{
    bool scales = i >= 2 * (int64_t)cache->layers;
    dims[0] = cache->batch, dims[1] = cache->kv_heads, dims[2] = cache_room(cache);
    dims[3] = scales ? cache->head_width / BLOCK : cache->head_width;
}

kl_dtype cache_array_dtype(const kl_nn_cache *cache, int64_t i)
{
    return !cache->is.q8_0 ? cache->dtype : i >= 2 * (int64_t)cache->layers ? KL_F16 : KL_I8;
}

static kl_status cache_refuse_shape(const kl_nn_cache *cache, int64_t batch, int64_t kv_heads, int64_t length,
                                    int64_t head_width, bool q8_0)
{
    int64_t rows;
    if (!cache)
        return kl_fail(KL_ERR_ARGUMENT, "nn_cache_init: cache is NULL");
    if (cache->layers < 1 || batch < 1 || kv_heads < 1 || length < 1 || head_width < 1)
        return kl_fail(KL_ERR_ARGUMENT, "nn_cache_init: counts are from 1 on");
    if (q8_0 && head_width % BLOCK)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "nn_cache_init: q8_0 has blocks of %d, heads have %lld elements", BLOCK,
                        (long long)head_width);
    if (length > INT32_MAX - ROOM_STEP || __builtin_mul_overflow(batch, kv_heads, &rows) ||
        __builtin_mul_overflow(rows, length + ROOM_STEP, &rows) || rows > INT32_MAX)
        return kl_fail(KL_ERR_ARGUMENT, "nn_cache_init: batch, kv_heads and length multiply to more than 2^31 - 1");
    return KL_OK;
}

kl_status kl_nn_cache_init_with(kl_nn_cache *cache, kl_device device, kl_dtype dtype, int layers, int64_t batch,
                                int64_t kv_heads, int64_t length, int64_t head_width,
                                const kl_nn_cache_options *options)
{
    kl_nn_cache_options o = options ? *options : (kl_nn_cache_options){0};
    if (cache)
        *cache = (kl_nn_cache){.layers = layers};
    kl_status s = cache_refuse_shape(cache, batch, kv_heads, length, head_width, o.q8_0);
    if (s != KL_OK)
        return s;
    *cache = (kl_nn_cache){.layers = layers, .batch = batch, .kv_heads = kv_heads, .length = length,
                           .head_width = head_width, .dtype = dtype, .is = o};
    size_t arrays = (size_t)cache_arrays(cache);
    cache->k = kl_memory_alloc(arrays * sizeof *cache->k);
    cache->at = kl_memory_alloc((size_t)batch * sizeof *cache->at);
    if (cache->k)
        memset(cache->k, 0, arrays * sizeof *cache->k);
    if (!cache->k || !cache->at) {
        kl_nn_cache_deinit(cache);
        return kl_fail(KL_ERR_MEMORY, "nn_cache_init: out of memory");
    }
    memset(cache->at, 0, (size_t)batch * sizeof *cache->at);
    cache->v = cache->k + layers;
    cache->k_scale = o.q8_0 ? cache->v + layers : NULL;
    cache->v_scale = o.q8_0 ? cache->k_scale + layers : NULL;
    s = kl_check(cache->used = kl_keep(kl_zeros(device, KL_I32, 1, &batch)));
    for (int64_t i = 0; i < (int64_t)arrays && s == KL_OK; i++) {
        int64_t dims[4];
        cache_array_dims(cache, i, dims);
        s = kl_check(cache->k[i] = kl_keep(kl_zeros(device, cache_array_dtype(cache, i), 4, dims)));
    }
    if (s != KL_OK)
        kl_nn_cache_deinit(cache);
    return s;
}

kl_status kl_nn_cache_init(kl_nn_cache *cache, kl_device device, kl_dtype dtype, int layers, int64_t batch,
                           int64_t kv_heads, int64_t length, int64_t head_width)
{
    return kl_nn_cache_init_with(cache, device, dtype, layers, batch, kv_heads, length, head_width, NULL);
}

void kl_nn_cache_deinit(kl_nn_cache *cache)
{
    if (!cache)
        return;
    for (int64_t i = 0; cache->k && i < cache_arrays(cache); i++)
        train_release(cache->k[i]);
    train_release(cache->used);
    kl_memory_free(cache->k);
    kl_memory_free(cache->at);
    *cache = (kl_nn_cache){0};
}

static kl_status cache_too_long(const char *op, const kl_nn_cache *cache, int64_t row, int64_t n)
{
    return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: row %lld of the cache: %lld tokens at %lld of %lld", op, (long long)row,
                    (long long)n, (long long)cache->at[row], (long long)cache->length);
}

static kl_status cache_no_row(const char *op, const kl_nn_cache *cache, int64_t row)
{
    return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: row %lld: the cache has rows 0 to %lld", op, (long long)row,
                    (long long)cache->batch - 1);
}

/* May n tokens be added to the cache's rows, as far as the host knows? */
static kl_status cache_has_room(const char *op, const kl_nn_cache *cache, int64_t n)
{
    if (n < 0 || (n > cache->length && !cache->counts.id))
        return cache_too_long(op, cache, 0, n);
    for (int64_t row = 0; row < cache->batch && !cache->rows.id && !cache->counts.id; row++)
        if (n > cache->length - cache->at[row])
            return cache_too_long(op, cache, row, n);
    return KL_OK;
}

kl_status kl_nn_cache_count(kl_nn_cache *cache, int64_t n, const int64_t *rows, const int64_t *counts)
{
    static const char op[] = "nn_cache_count";
    if (!cache || n < 0 || (n && !counts) || (cache && !rows && n > cache->batch))
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: %s", op, cache && counts ? "more rows than the cache has"
                                                                             : "an argument is NULL");
    for (int64_t i = 0; i < n; i++) {
        int64_t row = rows ? rows[i] : i, sum = counts[i];
        if (row < 0 || row >= cache->batch)
            return cache_no_row(op, cache, row);
        for (int64_t k = 0; k < i && rows; k++)
            if (rows[k] == row)
                return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: row %lld is there twice", op, (long long)row);
        if (sum < 0 || sum > cache->length - cache->at[row])
            return cache_too_long(op, cache, row, sum);
    }
    for (int64_t i = 0; i < n; i++)
        cache->at[rows ? rows[i] : i] += counts[i];
    return KL_OK;
}

/* ---- the trace's rows ---- */

/* Is t absent, or i32 [n]?  *n: its length. */
static bool cache_is_list(kl_tensor t, int64_t *n)
{
    int64_t dims[KL_MAX_RANK];
    if (!t.id)
        return true;
    bool list = kl_rank(t) == 1 && kl_dtype_of(t) == KL_I32 && kl_shape(t, dims) == 1 && (*n < 0 || *n == dims[0]);
    *n = list ? dims[0] : *n;
    return list;
}

kl_status kl_nn_cache_select(kl_nn_cache *cache, kl_tensor rows, kl_tensor counts)
{
    int64_t n = -1;
    if (!cache)
        return kl_fail(KL_ERR_ARGUMENT, "nn_cache_select: cache is NULL");
    cache->rows = cache->counts = kl_none;
    if (!kl_tracing())
        return kl_fail(KL_ERR_TRACE, "nn_cache_select: no trace is open");
    if ((rows.id && kl_check(rows) != KL_OK) || (counts.id && kl_check(counts) != KL_OK))
        return kl_check(rows.id && kl_check(rows) != KL_OK ? rows : counts);
    if (!cache_is_list(rows, &n) || !cache_is_list(counts, &n) || (counts.id && !rows.id && n != cache->batch) ||
        n > cache->batch)
        return kl_failf(NULL, KL_ERR_SHAPE, "nn_cache_select: rows and counts are i32 [n], one for each row of x, of "
                        "which the cache has %lld", (long long)cache->batch);
    cache->rows = rows;
    cache->counts = counts;
    return KL_OK;
}

int64_t cache_rows(const kl_nn_cache *cache)
{
    int64_t n = cache->batch;
    if (cache->rows.id)
        kl_shape(cache->rows, &n);
    return n;
}

kl_tensor cache_positions(const kl_nn_cache *cache, int64_t n)
{
    kl_tensor first = cache->rows.id ? kl_take(cache->used, 0, cache->rows) : cache->used;
    return kl_add(kl_unsqueeze(first, 1), kl_arange(kl_device_of(cache->used), KL_I32, n));
}

kl_status kl_nn_cache_advance(kl_nn_cache *cache, int64_t n)
{
    static const char op[] = "nn_cache_advance";
    if (!cache)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: cache is NULL", op);
    kl_status s = cache_has_room(op, cache, n);
    if (s == KL_OK && !kl_tracing())
        s = kl_failf(NULL, KL_ERR_TRACE, "%s: no trace is open", op);
    if (s != KL_OK || (s = kl_composite_begin(op)) != KL_OK)
        return s;
    bool all = !cache->rows.id && !cache->counts.id;
    kl_tensor more = kl_scalar(kl_device_of(cache->used), KL_I32, (double)n);
    if (cache->counts.id)
        more = kl_maximum_scalar(kl_minimum(cache->counts, more), 0);
    else if (cache->rows.id)
        more = kl_expand(kl_unsqueeze(more, 0), 1, (int64_t[]){cache_rows(cache)});
    kl_tensor used = cache->rows.id ? kl_index_add(cache->used, 0, cache->rows, more) : kl_add(cache->used, more);
    s = kl_assign(cache->used, kl_minimum_scalar(used, (double)cache->length));
    kl_composite_end(0, NULL);
    for (int64_t row = 0; row < cache->batch && s == KL_OK && all; row++)
        cache->at[row] += n;
    cache->rows = cache->counts = kl_none;
    return s;
}

kl_status kl_nn_cache_truncate(kl_nn_cache *cache, int64_t row, int64_t n)
{
    static const char op[] = "nn_cache_truncate";
    if (!cache)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: cache is NULL", op);
    if (row < 0 || row >= cache->batch)
        return cache_no_row(op, cache, row);
    if (n < 0 || n > cache->at[row])
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: row %lld has %lld positions, not %lld", op, (long long)row,
                        (long long)cache->at[row], (long long)n);
    kl_status s = kl_composite_begin(op);
    if (s != KL_OK)
        return s;
    s = kl_assign(cache->used, cache_used_with(cache, row, n));
    kl_composite_end(0, NULL);
    if (s == KL_OK)
        cache->at[row] = n;
    return s;
}

kl_tensor cache_used_with(const kl_nn_cache *cache, int64_t row, int64_t n)
{
    kl_device device = kl_device_of(cache->used);
    kl_tensor at = kl_eq(kl_arange(device, KL_I32, cache->batch), kl_scalar(device, KL_I32, (double)row));
    return kl_where(at, kl_scalar(device, KL_I32, (double)n), cache->used);
}

kl_status kl_nn_cache_reset(kl_nn_cache *cache)
{
    if (!cache)
        return kl_fail(KL_ERR_ARGUMENT, "nn_cache_reset: cache is NULL");
    kl_tensor zeros = kl_zeros(kl_device_of(cache->used), KL_I32, 1, &cache->batch);
    kl_status s = kl_assign(cache->used, zeros);
    if (s == KL_OK)
        memset(cache->at, 0, (size_t)cache->batch * sizeof *cache->at);
    train_release(zeros);
    return s;
}

/* ---- storing ---- */

/* Of n new tokens, i32 [rows * kv_heads * n]: the numbers of the flat rows that their keys, and values, go to. */
static kl_tensor cache_index(const kl_nn_cache *cache, int64_t n)
{
    kl_device device = kl_device_of(cache->used);
    int64_t room = cache_room(cache), all = cache_rows(cache) * cache->kv_heads * n;
    kl_tensor position = cache_positions(cache, n);
    kl_tensor last = kl_scalar(device, KL_I32, (double)(room - 1));
    kl_tensor stored = kl_lt(position, kl_scalar(device, KL_I32, (double)cache->length));
    if (cache->counts.id)
        stored = kl_and(stored, kl_lt(kl_arange(device, KL_I32, n), kl_unsqueeze(cache->counts, 1)));
    kl_tensor row = cache->rows.id ? cache->rows : kl_arange(device, KL_I32, cache->batch);
    kl_tensor head = kl_add(kl_unsqueeze(kl_mul_scalar(row, (double)cache->kv_heads), 1),
                            kl_arange(device, KL_I32, cache->kv_heads));
    kl_tensor slot = kl_unsqueeze(kl_where(stored, position, last), 1);
    return kl_reshape(kl_add(kl_unsqueeze(kl_mul_scalar(head, (double)room), 2), slot), 1, &all);
}

/* Puts rows, [rows, kv_heads, n, width], into array i, and returns the whole array. */
static kl_tensor cache_put(const kl_nn_cache *cache, int64_t i, kl_tensor rows, kl_tensor index)
{
    int64_t dims[4], flat[2], count;
    cache_array_dims(cache, i, dims);
    kl_shape(index, &count);
    flat[0] = dims[0] * dims[1] * dims[2], flat[1] = dims[3];
    kl_tensor old = kl_reshape(cache->k[i], 2, flat);
    flat[0] = count;
    kl_tensor all = kl_reshape(kl_index_copy(old, 0, index, kl_reshape(rows, 2, flat)), 4, dims);
    kl_assign(cache->k[i], all);
    return all;
}

/* Integers and scales of x, [rows, kv_heads, n, width]. */
static void cache_quantize(kl_tensor x, kl_tensor *integers, kl_tensor *scale)
{
    int64_t dims[5];
    int last = -1;
    kl_shape(x, dims);
    int64_t width = dims[3];
    dims[3] = width / BLOCK, dims[4] = BLOCK;
    kl_tensor blocks = kl_reshape(kl_cast(x, KL_F32), 5, dims);
    kl_tensor s = kl_cast(kl_div_scalar(kl_max(kl_abs(blocks), 1, &last, true), STEPS), KL_F16);
    kl_tensor wide = kl_cast(s, KL_F32), one = kl_scalar(kl_device_of(x), KL_F32, 1);
    kl_tensor by = kl_where(kl_eq(wide, kl_scalar(kl_device_of(x), KL_F32, 0)), one, wide);
    kl_tensor q = kl_cast(kl_clamp(kl_round(kl_div(blocks, by)), -STEPS, STEPS), KL_I8);
    *scale = kl_squeeze(s, 4);
    dims[3] = width;
    *integers = kl_reshape(q, 4, dims);
}

static kl_tensor cache_dequantize(const kl_nn_cache *cache, kl_tensor integers, kl_tensor scale)
{
    int64_t dims[5];
    kl_shape(integers, dims);
    dims[3] /= BLOCK, dims[4] = BLOCK;
    kl_tensor blocks = kl_cast(kl_reshape(integers, 5, dims), KL_F32);
    kl_tensor x = kl_mul(blocks, kl_cast(kl_expand(kl_unsqueeze(scale, -1), 5, dims), KL_F32));
    dims[3] = cache->head_width;
    return kl_reshape(x, 4, dims);
}

/* The rows of array i that are selected. */
static kl_tensor cache_selected(const kl_nn_cache *cache, kl_tensor all)
{
    return cache->rows.id ? kl_take(all, 0, cache->rows) : all;
}

kl_tensor cache_store(const kl_nn_cache *cache, int layer, bool values, kl_tensor x)
{
    int64_t i = layer + (values ? cache->layers : 0), dims[4];
    kl_dtype wanted = kl_dtype_of(x);
    kl_shape(x, dims);
    kl_tensor index = cache_index(cache, dims[2]), integers, scale;
    if (!cache->is.q8_0)
        return train_cast(cache_selected(cache, cache_put(cache, i, train_cast(x, cache->dtype), index)), wanted);
    cache_quantize(x, &integers, &scale);
    integers = cache_selected(cache, cache_put(cache, i, integers, index));
    scale = cache_selected(cache, cache_put(cache, i + 2 * (int64_t)cache->layers, scale, index));
    return train_cast(cache_dequantize(cache, integers, scale), wanted);
}

kl_status cache_check(const char *op, const kl_nn_cache *cache, int layer, int64_t rows, int64_t n)
{
    if (layer < 0 || layer >= cache->layers)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: layer %d of a cache of %d", op, layer, cache->layers);
    if (!kl_tracing())
        return kl_failf(NULL, KL_ERR_TRACE, "%s: a cache outside of a trace", op);
    if (rows != cache_rows(cache))
        return kl_failf(NULL, KL_ERR_SHAPE, "%s: a batch of %lld beside %lld rows of the cache", op, (long long)rows,
                        (long long)cache_rows(cache));
    return cache_has_room(op, cache, n);
}
