/* Comparing arrays of values. */
#include "check.h"
#include "ir/text/text.h"
#include <math.h>
#include <string.h>

/* Rounding errors of sums in other orders grow with their length; these hold for lengths of thousands. */
static double usual_tolerance(unsigned dtype)
{
    switch (dtype) {
    case KL_F64:  return 1e-11;
    case KL_F32:  return 1e-4;
    case KL_F16:  return 1e-2;
    case KL_BF16: return 6e-2;
    default:      return 0;
    }
}

static uint64_t bits_at(unsigned dtype, const void *data, int64_t i)
{
    uint64_t bits = 0;
    memcpy(&bits, (const char *)data + (size_t)i * dtype_size(dtype), dtype_size(dtype));
    return bits;
}

static double largest_magnitude(unsigned dtype, const void *data, int64_t n)
{
    double max = 0;
    for (int64_t i = 0; i < n; i++) {
        double v = fabs(dtype_value(dtype, bits_at(dtype, data, i)));
        if (isfinite(v) && v > max)
            max = v;
    }
    return max;
}

static bool same_element(unsigned dtype, uint64_t want, uint64_t have, double bound)
{
    if (want == have)
        return true;
    if (!dtype_is_float(dtype))
        return false;
    double a = dtype_value(dtype, want), b = dtype_value(dtype, have);
    return (isnan(a) && isnan(b)) || (bound > 0 && fabs(a - b) <= bound);
}

bool check_same(unsigned dtype, const void *want, const void *have, int64_t n, double tolerance, struct difference *d)
{
    *d = (struct difference){.numel = n};
    if (!memcmp(want, have, (size_t)n * dtype_size(dtype)))
        return true;
    if (tolerance < 0)
        tolerance = usual_tolerance(dtype);
    double bound = tolerance > 0 ? tolerance * largest_magnitude(dtype, want, n) : 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t a = bits_at(dtype, want, i), b = bits_at(dtype, have, i);
        if (same_element(dtype, a, b, bound))
            continue;
        if (!d->count++)
            d->first = i, d->want_bits = a, d->have_bits = b;
    }
    return !d->count;
}

char *check_difference_text(unsigned dtype, const struct difference *d)
{
    struct text t = {0};
    text_put(&t, "element %lld is ", (long long)d->first);
    text_literal(&t, dtype, d->have_bits);
    text_put(&t, ", interpreted ");
    text_literal(&t, dtype, d->want_bits);
    text_put(&t, " (%lld of %lld elements differ)", (long long)d->count, (long long)d->numel);
    if (!t.failed)
        return t.s;
    mem_free(t.s);
    return NULL;
}
