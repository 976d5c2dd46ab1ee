/* The element types, from dtypes.def. */
#include "ir/ir.h"
#include "half.h"
#include <math.h>
#include <string.h>

enum { KIND_B = 'B', KIND_U = 'U', KIND_I = 'I', KIND_F = 'F' };

static const struct {
    char name[7];
    uint8_t size;
    char kind;
} dtypes[KL_DTYPE_COUNT] = {
#define DT(name, en, ctype, utype, bytes, kind) [en] = {#name, bytes, KIND_##kind},
#define DTH DT
#include "dtypes.def"
};

size_t dtype_size(unsigned dt)
{
    return dt < KL_DTYPE_COUNT ? dtypes[dt].size : 0;
}

const char *dtype_name(unsigned dt)
{
    return dt < KL_DTYPE_COUNT ? dtypes[dt].name : "?";
}

char dtype_kind(unsigned dt)
{
    return dt < KL_DTYPE_COUNT ? dtypes[dt].kind : '?';
}

int dtype_parse(const char *s, size_t len)
{
    for (int i = 0; i < KL_DTYPE_COUNT; i++)
        if (strlen(dtypes[i].name) == len && memcmp(dtypes[i].name, s, len) == 0)
            return i;
    return -1;
}

static uint64_t low_bits(unsigned dt)
{
    return UINT64_MAX >> (64 - 8 * dtype_size(dt));
}

static uint64_t float_bits(unsigned dt, double v)
{
    uint64_t bits = 0;
    if (dt == KL_F32) {
        float f = (float)v;
        memcpy(&bits, &f, sizeof f);
    } else if (dt == KL_F64) {
        memcpy(&bits, &v, sizeof v);
    } else {
        bits = dt == KL_F16 ? f16_of(v).bits : bf16_of(v).bits;
    }
    return bits;
}

/* As the CAST primitive: toward zero, saturating, NaN to 0. */
uint64_t dtype_bits(unsigned dt, double v)
{
    int bits = (int)(8 * dtype_size(dt));
    switch (dtype_kind(dt)) {
    case 'B':
        return v != 0;
    case 'U':
        if (!(v >= 1))
            return 0;
        return v >= ldexp(1, bits) ? low_bits(dt) : (uint64_t)v;
    case 'I': {
        double edge = ldexp(1, bits - 1);
        if (v != v)
            return 0;
        if (v >= edge)
            return low_bits(dt) >> 1;
        if (v <= -edge)
            return UINT64_C(1) << (bits - 1);
        return (uint64_t)(int64_t)v & low_bits(dt);
    }
    case 'F':
        return float_bits(dt, v);
    }
    return 0;
}

/* As the CAST primitive from i64: integers wrap, floats round to nearest even. */
uint64_t dtype_bits_i64(unsigned dt, int64_t v)
{
    switch (dtype_kind(dt)) {
    case 'B':
        return v != 0;
    case 'U': case 'I':
        return (uint64_t)v & low_bits(dt);
    case 'F':
        return float_bits(dt, dt == KL_F32 ? (float)v : dt == KL_F64 ? (double)v : half_i64(v));
    }
    return 0;
}

double dtype_value(unsigned dt, uint64_t bits)
{
    switch (dt) {
    case KL_BOOL:
        return (bits & 255) != 0;
#define DTN(name, en, ctype, utype, bytes, kind) \
    case en: { \
        ctype x; \
        memcpy(&x, &bits, sizeof x); \
        return (double)x; \
    }
#define DTF DTN
#define DTH(name, en, ctype, utype, bytes, kind) case en: return name##_value((ctype){(uint16_t)bits});
#include "dtypes.def"
    }
    return 0;
}
