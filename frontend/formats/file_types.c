/* Element types of safetensors that Kiln has no dtype of: 8-bit floats, which are read as f32 (the codes stay in the
 * file's mapping until the values are needed), and complex numbers, which are read as a complex tensor. */
#include "tensor_file.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- 8-bit floats on the host ---- */

/* 1 + `exponent` + `fraction` bits; the highest exponent is like the others, but for the cases of the callers. */
static float float8_value(unsigned code, int fraction, int bias)
{
    int exponent = (int)(code & 127) >> fraction, digits = (int)code & ((1 << fraction) - 1);
    float v = exponent ? ldexpf((float)(digits + (1 << fraction)), exponent - bias - fraction)
                       : ldexpf((float)digits, 1 - bias - fraction);
    return code & 128 ? -v : v;
}

void decode_f8_e4m3(const uint8_t *p, float *to) /* no infinities, one NaN of each sign */
{
    *to = (*p & 127) == 127 ? copysignf(NAN, *p & 128 ? -1.0F : 1.0F) : float8_value(*p, 3, 7);
}

void decode_f8_e5m2(const uint8_t *p, float *to) /* the upper half of an f16 */
{
    float v = (*p & 127) == 124 ? INFINITY : (*p & 127) > 124 ? NAN : fabsf(float8_value(*p, 2, 15));
    *to = *p & 128 ? -v : v;
}

void decode_f8_e8m0(const uint8_t *p, float *to) /* a power of two, a scale of other elements */
{
    *to = *p == 255 ? NAN : ldexpf(1, *p - 127);
}

/* ---- tensors ---- */

kl_tensor file_decoded_tensor(kl_file *f, const struct file_entry *e, kl_device device)
{
    const struct blocks_kind *kind = blocks_kind_of(e->blocks);
    int64_t count;
    size_t bytes;
    dims_bytes(e->is.rank, e->is.dims, sizeof(float), &count, &bytes);
    float *v = malloc(bytes + 1);
    if (!v)
        return kl_failf(NULL, KL_ERR_MEMORY, "%.250s: out of memory", f->path), kl_none;
    blocks_decode(e->blocks, (size_t)count / kind->elements, e->data, v);
    return kl_wrap(device, KL_F32, e->is.rank, e->is.dims, v, free, v);
}

kl_tensor float8_tensor(kl_file *f, const struct file_entry *e, kl_device device)
{
    if (e->blocks == BLOCKS_F8_E8M0)
        return file_decoded_tensor(f, e, device);
    kl_tensor codes = file_mapped_tensor(f, e, device, KL_U8, e->is.rank, e->is.dims);
    if (!codes.id)
        return kl_none;
    kl_tensor t = kl_float8_decode(codes, e->blocks == BLOCKS_F8_E4M3 ? KL_FLOAT8_E4M3FN : KL_FLOAT8_E5M2, KL_F32);
    kl_release(codes);
    return t;
}

/* Part 0 (real) or 1 (imaginary) of numbers [.., 2], as [..]. */
static kl_tensor complex_part(kl_tensor pairs, int rank, const int64_t *dims, int part)
{
    int64_t start[KL_MAX_RANK] = {0}, size[KL_MAX_RANK], step[KL_MAX_RANK];
    for (int k = 0; k <= rank; k++) {
        size[k] = k < rank ? dims[k] : part + 1;
        step[k] = 1;
    }
    start[rank] = part;
    kl_tensor cut = kl_slice(pairs, start, size, step), t = kl_reshape(cut, rank, dims);
    kl_release(cut);
    return t;
}

kl_tensor complex_tensor(kl_file *f, const struct file_entry *e, kl_device device)
{
    int rank = e->is.rank;
    int64_t dims[KL_MAX_RANK];
    if (rank == KL_MAX_RANK)
        return kl_failf(NULL, KL_ERR_TYPE, "%.250s: tensor \"%.300s\" has complex elements and %d dimensions; Kiln "
                        "reads those of at most %d", f->path, e->is.name, rank, KL_MAX_RANK - 1), kl_none;
    memcpy(dims, e->is.dims, sizeof dims);
    dims[rank] = 2;
    kl_tensor pairs = file_mapped_tensor(f, e, device, KL_F32, rank + 1, dims);
    if (!pairs.id)
        return kl_none;
    kl_tensor re = complex_part(pairs, rank, e->is.dims, 0), im = complex_part(pairs, rank, e->is.dims, 1),
              t = kl_complex(re, im);
    kl_release(pairs);
    kl_release(re);
    kl_release(im);
    return t;
}
