/* Made-up values for inputs, states and slots: for kiln bench and profile, and for the tuner. */
#include "runtime/runtime.h"
#include <string.h>

bool values_write(struct buffer *b, unsigned dtype, int64_t n, struct err *e)
{
    enum { MAX_COUNT = 1024, STRIDE = 7919 }; /* a prime, so that neighbours differ */
    int64_t max = dtype_is_float(dtype) ? MAX_COUNT : dtype == KL_BOOL ? 2 : 16;
    size_t size = dtype_size(dtype);
    uint64_t *value = mem_alloc(MAX_COUNT * sizeof *value);
    char *all = value ? mem_alloc((size_t)n * size + 1) : NULL;
    if (!all) {
        mem_free(value);
        return err_set(e, KL_ERR_MEMORY, "no memory for %lld values of %s", (long long)n, dtype_name(dtype));
    }
    for (int64_t k = 0; k < max; k++)
        value[k] = dtype_bits(dtype, dtype_is_float(dtype) ? (double)k / MAX_COUNT : (double)k);
    for (int64_t k = 0; k < n; k++) memcpy(all + (size_t)k * size, &value[k * STRIDE % max], size);
    bool ok = buffer_write(b, all, (size_t)n * size, e);
    mem_free(all);
    mem_free(value);
    return ok;
}

struct buffer *values_buffer(int device, unsigned dtype, int64_t n, struct err *e)
{
    struct buffer *b = buffer_new(device, (size_t)n * dtype_size(dtype), e);
    if (b && values_write(b, dtype, n, e)) return b;
    buffer_unref(b);
    return NULL;
}

uint64_t values_slot(unsigned dtype) { return dtype_bits(dtype, dtype_is_float(dtype) ? 1e-3 : 1); }
