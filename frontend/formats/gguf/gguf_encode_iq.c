/* GGUF's blocks of codes for values from a table, from f32: IQ4_NL, IQ4_XS and MXFP4.
 *
 * IQ4: of a few scales the one whose codes, the nearest values of the table, allow the least squared error, after a
 * linear regression of the elements on their values; then the codes nearest with the scale as it is stored.  The error
 * of normally distributed numbers (root of the mean square) is 0.0739 of IQ4_NL and 0.0746 of IQ4_XS.  MXFP4 (OCP
 * Microscaling Formats 1.0): the scale is the power of two of the largest element, over the greatest one of a code. */
#include "gguf.h"
#include <float.h>
#include <math.h>
#include <string.h>

enum { IQ_BLOCK = 32, IQ_CODES = 16, IQ_TRIES = 7, XS_SUBS = 8, XS_SCALE = 32 };

/* The code of the value in the table that is nearest to x; of two as near the first one, of NaN code 0. */
static unsigned iq_nearest(const int8_t *values, float x)
{
    unsigned best = 0;
    for (unsigned c = 1; c < IQ_CODES; c++)
        best = fabsf((float)values[c] - x) < fabsf((float)values[best] - x) ? c : best;
    return best;
}

static float iq_largest(const float *x, unsigned n)
{
    float largest = 0;
    for (unsigned i = 0; i < n; i++)
        largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
    return largest;
}

/* The scale of x = scale * value: the largest element takes values around the table's first, which is the largest. */
static float iq_scale(const float *x)
{
    float largest = iq_largest(x, IQ_BLOCK), best = 0;
    double best_gain = 0;
    if (fabsf(largest) < FLT_MIN)
        return 0;
    for (int k = -IQ_TRIES; k <= IQ_TRIES; k++) {
        float inverse = ((float)blocks_iq4_values[0] + (float)k) / largest;
        double qx = 0, qq = 0;
        for (unsigned i = 0; i < IQ_BLOCK; i++) {
            double q = blocks_iq4_values[iq_nearest(blocks_iq4_values, x[i] * inverse)];
            qx += q * (double)x[i];
            qq += q * q;
        }
        double gain = qx * qx / qq; /* the error is the sum of squares less this; no value is 0 */
        if (gain > best_gain) {
            best_gain = gain;
            best = (float)(qx / qq);
        }
    }
    return best;
}

/* The codes of 32 elements, of 0..15 in the low halves of 16 bytes, of 16..31 in the high ones. */
static void iq_put_codes(uint8_t *p, const float *x, const int8_t *values, float scale)
{
    float inverse = scale != 0 ? 1 / scale : 0;
    for (unsigned i = 0; i < IQ_BLOCK / 2; i++)
        p[i] = (uint8_t)(iq_nearest(values, x[i] * inverse) |
                         iq_nearest(values, x[i + IQ_BLOCK / 2] * inverse) << 4);
}

void encode_iq4_nl(const float *x, uint8_t *p)
{
    blocks_put_half(p, iq_scale(x));
    iq_put_codes(p + 2, x, blocks_iq4_values, blocks_half(p));
}

/* Bytes: d, 2 of upper bits of 8 scales of 6 bits, 4 of their lower ones, 128 of elements. */
void encode_iq4_xs(const float *x, uint8_t *p)
{
    float scale[XS_SUBS];
    unsigned high = 0;
    for (unsigned s = 0; s < XS_SUBS; s++)
        scale[s] = iq_scale(x + s * IQ_BLOCK);
    float d = iq_largest(scale, XS_SUBS) / -XS_SCALE;
    blocks_put_half(p, d);
    d = blocks_half(p);
    memset(p + 4, 0, XS_SUBS / 2);
    for (unsigned s = 0; s < XS_SUBS; s++) {
        float number = d != 0 ? rintf(scale[s] / d) : 0;
        number = fminf(fmaxf(number, -XS_SCALE), XS_SCALE - 1);
        unsigned code = (unsigned)((int)number + XS_SCALE);
        p[4 + s / 2] |= (uint8_t)((code & 15) << s % 2 * 4);
        high |= code >> 4 << 2 * s;
        iq_put_codes(p + 8 + s * IQ_BLOCK / 2, x + s * IQ_BLOCK, blocks_iq4_values, d * number);
    }
    p[2] = (uint8_t)high;
    p[3] = (uint8_t)(high >> 8);
}

/* Bytes: the exponent of the scale and 127, 16 of codes. */
void encode_mxfp4(const float *x, uint8_t *p)
{
    float largest = iq_largest(x, IQ_BLOCK);
    int exponent = -126;
    if (largest != 0)
        frexpf(largest, &exponent);
    exponent += 124; /* of the largest, less 2 of the greatest value, 6, and 1 of frexp; and 127 */
    p[0] = (uint8_t)(exponent < 0 ? 0 : exponent);
    iq_put_codes(p + 1, x, blocks_mxfp4_values, ldexpf(1, p[0] - 128));
}
