/* 8-bit floats and 4-bit integers, stored in tensors of bytes.  Included by <kiln/kiln.h>.
 *
 * They are storage formats: a program decodes them, computes in another dtype and encodes the result.  Both directions
 * are elementwise, so they fuse with what surrounds them.  No gradient flows through codes. */
#ifndef KILN_OPS_SMALL_TYPES_H
#ifndef KILN_KILN_H
#include <kiln/kiln.h> /* which includes this file */
#else
#define KILN_OPS_SMALL_TYPES_H

#ifdef __cplusplus
extern "C" {
#endif

/* The formats of "FP8 Formats for Deep Learning" (Micikevicius et al. 2022) and of ONNX.  E4M3 has 4 bits of exponent
 * and 3 of mantissa, E5M2 5 and 2.  FN: no infinities.  FNUZ: no infinities, one NaN and no negative zero. */
typedef enum kl_float8 {
    KL_FLOAT8_E4M3FN,   /* exponent bias 7, largest value 448, NaN 0x7f and 0xff */
    KL_FLOAT8_E4M3FNUZ, /* bias 8, largest value 240, NaN 0x80 */
    KL_FLOAT8_E5M2,     /* bias 15, largest value 57344, infinities 0x7c and 0xfc, NaN above them */
    KL_FLOAT8_E5M2FNUZ, /* bias 16, largest value 57344, NaN 0x80 */
    KL_FLOAT8_FORMATS
} kl_float8;

/* a: floats [...] -> u8 [...], the code of the nearest value; of two that are as near, the one with an even mantissa.
 * f64 is rounded to f32 first.  What is beyond the largest value, infinities included, becomes the largest value of
 * that sign with `saturate`, else an infinity, or NaN in a format without infinities.
 * [lazy; new handle; errors ARGUMENT: the format; TYPE: not floats] */
KL_API_AT kl_tensor kl_float8_encode(kl_tensor a, kl_float8 format, bool saturate);
/* codes: u8 [...] -> floats of `dtype` [...]; all values are exact in f16, bf16 and f32.
 * [lazy; new handle; errors ARGUMENT: the format; TYPE: not u8, or dtype is no float] */
KL_API_AT kl_tensor kl_float8_decode(kl_tensor codes, kl_float8 format, kl_dtype dtype);

/* a: i8 or u8 [..., 2 N] -> u8 [..., N]: the low 4 bits of two adjacent elements in each byte, the first of them in the
 * lower half.  [lazy; new handle; errors SHAPE: the last axis is odd; TYPE] */
KL_API_AT kl_tensor kl_int4_pack(kl_tensor a);
/* codes: u8 [..., N] -> [..., 2 N]: i8 values in -8..7, or u8 values in 0..15.
 * [lazy; new handle; errors SHAPE: no axis, or KL_MAX_RANK; TYPE: codes are not u8, or dtype is neither KL_I8 nor
 * KL_U8] */
KL_API_AT kl_tensor kl_int4_unpack(kl_tensor codes, kl_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
#endif
