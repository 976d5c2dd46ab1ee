/* Combines tensors of several ranks element by element, in the order of the ranks.  Like ops on half floats, it
 * computes them in f32 and rounds once. */
#include "comm.h"
#include "ir/math/half.h"
#include <string.h>

const char *comm_reduction_name(enum comm_reduction kind)
{
    static const char *const name[] = {"sum", "mean", "max", "min"};
    return name[kind];
}

#define EACH(type, value) \
    for (int64_t i = 0; i < n; i++) { \
        type a = ((type *)out)[i], b = ((const type *)x)[i]; \
        ((type *)out)[i] = (type)(value); \
    } \
    break

/* max and min are those of ops.def: NaN if one of the operands is NaN. */
#define COMBINE(type) \
    switch (kind) { \
    case COMM_MAX: EACH(type, b < a || a != a ? a : b); \
    case COMM_MIN: EACH(type, a < b || a != a ? a : b); \
    default:       EACH(type, a + b); \
    } \
    break

static void combine_rank(enum comm_reduction kind, unsigned dtype, void *out, const void *x, int64_t n)
{
    switch (dtype) {
    case KL_F32: COMBINE(float);
    case KL_F64: COMBINE(double);
    case KL_I8:  COMBINE(int8_t);
    case KL_I16: COMBINE(int16_t);
    case KL_U16: COMBINE(uint16_t);
    case KL_U32: COMBINE(uint32_t);
    case KL_U64: COMBINE(uint64_t);
    case KL_I32:
        if (kind == COMM_SUM) /* integers wrap around */
            combine_rank(kind, KL_U32, out, x, n);
        else {
            COMBINE(int32_t);
        }
        break;
    case KL_I64:
        if (kind == COMM_SUM)
            combine_rank(kind, KL_U64, out, x, n);
        else {
            COMBINE(int64_t);
        }
        break;
    default: COMBINE(uint8_t); /* bool is stored as uint8_t, too */
    }
}

static float half_at(unsigned dtype, const char *data, int64_t i)
{
    uint16_t bits;
    memcpy(&bits, data + 2 * i, sizeof bits);
    return dtype == KL_F16 ? f16_value((struct f16){bits}) : bf16_value((struct bf16){bits});
}

static void reduce_halves(enum comm_reduction kind, unsigned dtype, int parts, const char *const *part, char *out,
                          int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float sum = half_at(dtype, part[0], i);
        for (int k = 1; k < parts; k++) {
            float x = half_at(dtype, part[k], i);
            combine_rank(kind, KL_F32, &sum, &x, 1);
        }
        if (kind == COMM_MEAN)
            sum /= (float)parts;
        uint16_t bits = dtype == KL_F16 ? f16_of(sum).bits : bf16_of(sum).bits;
        memcpy(out + 2 * i, &bits, sizeof bits);
    }
}

void comm_reduce(enum comm_reduction kind, unsigned dtype, int parts, const char *const *part, void *out, int64_t n)
{
    if (dtype == KL_F16 || dtype == KL_BF16) {
        reduce_halves(kind, dtype, parts, part, out, n);
        return;
    }
    if (out != part[0])
        memcpy(out, part[0], (size_t)n * dtype_size(dtype));
    for (int k = 1; k < parts; k++)
        combine_rank(kind, dtype, out, part[k], n);
    for (int64_t i = 0; i < n && kind == COMM_MEAN; i++) {
        if (dtype == KL_F32)
            ((float *)out)[i] /= (float)parts;
        else
            ((double *)out)[i] /= parts;
    }
}
