/* GGUF's blocks with a K from f32: 256 elements in sub-blocks of 16 or 32, each with a scale, and in some types a
 * minimum, of a few bits, which have f16 scales of their own.
 *
 * The sum of squared errors is made small in three steps: each sub-block gets the best of a few scales, after a linear
 * regression of its elements on their codes; the scales are rounded; elements are rounded again with these scales, and
 * the f16 scales fitted to them.  The bits differ from llama.cpp's, whose errors (root of the mean square) on normally
 * distributed numbers are 0.297, 0.151, 0.0714, 0.0361 and 0.0177 of Q2_K to Q6_K; these are 0.264, 0.144, 0.0706,
 * 0.0354 and 0.0168. */
#include "gguf.h"
#include <float.h>
#include <math.h>
#include <string.h>

enum { K_ELEMENTS = 256, K_SUBS_MAX = 16, K_TRIES = 10 };

/* A block in parts: element i is scale * sub_scale[s] * code[i] - min * sub_min[s] of its sub-block s. */
struct k_block {
    float scale, min;
    int sub_scale[K_SUBS_MAX], sub_min[K_SUBS_MAX];
    int code[K_ELEMENTS];
};

/* A type: codes are low..high, sub-scales sub_low..sub_high; with minimums, these are 0..sub_high, too. */
struct k_type { int length, low, high, sub_low, sub_high; bool minimums; };

/* The nearest whole number, half ones to even, of |x| < 2^22: the sum has no bits for a fraction. */
static int k_round(float x)
{
    float y = x + 12582912.0f;
    int32_t i;
    memcpy(&i, &y, sizeof i);
    return (i & 0x7fffff) - 0x400000;
}

static float k_clamp(float x, int low, int high)
{
    float y = x > (float)low ? x : (float)low; /* of NaN low */
    return y < (float)high ? y : (float)high;
}

static int k_code(float x, int low, int high) { return k_round(k_clamp(x, low, high)); }

/* ---- one sub-block ---- */

/* Four numbers at a time. */
typedef float k_floats __attribute__((vector_size(16)));
typedef int32_t k_ints __attribute__((vector_size(16)));
enum { K_LANES = 4 };

static k_floats k_select(k_ints mask, k_floats a, k_floats b)
{
    return (k_floats)(((k_ints)a & mask) | ((k_ints)b & ~mask));
}

static k_floats k_all(float x) { return (k_floats){x, x, x, x}; }
static double k_sum(k_floats v) { return ((double)v[0] + (double)v[1]) + ((double)v[2] + (double)v[3]); }

/* What a regression of elements on their codes needs; those of elements alone are the same for all codes. */
struct k_sums { double xx, x, qx, q, qq; };

static struct k_sums k_sums_of_elements(const float *x, int n)
{
    struct k_sums s = {0};
    for (int i = 0; i < n; i++) {
        s.x += (double)x[i];
        s.xx += (double)x[i] * (double)x[i];
    }
    return s;
}

/* Sets the sums with codes (x - offset) * inverse, rounded and kept within low..high. */
static void k_sums_of_codes(struct k_sums *s, const float *x, int n, float inverse, float offset, int low, int high)
{
    k_floats q_sum = {0}, qq = {0}, qx = {0}, lowest = k_all((float)low), highest = k_all((float)high), v;
    for (int i = 0; i < n; i += K_LANES) {
        memcpy(&v, x + i, sizeof v);
        k_floats q = (v - offset) * inverse;
        q = k_select(q > lowest, q, lowest); /* of NaN the lowest */
        q = k_select(q < highest, q, highest);
        q = (q + 12582912.0F) - 12582912.0F; /* 1.5 * 2^23: the sum has no bits for a fraction */
        q_sum += q;
        qq += q * q;
        qx += q * v;
    }
    s->q = k_sum(q_sum);
    s->qq = k_sum(qq);
    s->qx = k_sum(qx);
}

/* The scale of x = scale * code with the least error: the largest element takes the codes around low, or high. */
static float k_fit_scale(const float *x, const struct k_type *t)
{
    float largest = 0, best = 0;
    double best_gain = 0;
    struct k_sums s;
    for (int i = 0; i < t->length; i++)
        largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
    if (fabsf(largest) < FLT_MIN)
        return 0;
    for (int k = -K_TRIES; k <= K_TRIES; k++)
        for (int end = 0; end < 2; end++) {
            float to = end ? (float)t->high : (float)t->low, inverse = (to + 0.1f * (float)k) / largest;
            k_sums_of_codes(&s, x, t->length, inverse, 0, t->low, t->high);
            double gain = s.qq > 0 ? s.qx * s.qx / s.qq : 0; /* the error is xx less this */
            if (gain > best_gain) {
                best_gain = gain;
                best = (float)(s.qx / s.qq);
            }
        }
    return best;
}

/* The least error of x = scale * code + offset, offset <= 0, for given codes. */
static double k_regress(const struct k_sums *s, int n, float *scale, float *offset)
{
    double det = n * s->qq - s->q * s->q, a = 0, b = s->x / n;
    if (det > 0) {
        a = (n * s->qx - s->q * s->x) / det;
        b = (s->qq * s->x - s->q * s->qx) / det;
    }
    if (b > 0 || a < 0) {
        b = 0;
        a = s->qq > 0 ? fmax(s->qx / s->qq, 0) : 0;
    }
    *scale = (float)a;
    *offset = (float)b;
    return s->xx - 2 * a * s->qx - 2 * b * s->x + a * a * s->qq + 2 * a * b * s->q + n * b * b;
}

/* The scale and minimum of x = scale * code - min with the least error. */
static void k_fit_range(const float *x, const struct k_type *t, float *scale, float *min)
{
    float low = 0, high = x[0], a, b;
    double best = DBL_MAX;
    struct k_sums s = k_sums_of_elements(x, t->length);
    for (int i = 0; i < t->length; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    *scale = 0;
    *min = -low;
    if (high - low < FLT_MIN)
        return;
    for (int k = -K_TRIES; k <= K_TRIES; k++) {
        float inverse = ((float)t->high + 0.1f * (float)k) / (high - low);
        k_sums_of_codes(&s, x, t->length, inverse, low, 0, t->high);
        for (int again = 0; again < 2; again++) { /* the codes of the fitted line are better ones */
            double error = k_regress(&s, t->length, &a, &b);
            if (error < best) {
                best = error;
                *scale = a;
                *min = -b;
            }
            if (a < FLT_MIN)
                break;
            if (!again)
                k_sums_of_codes(&s, x, t->length, 1 / a, b, 0, t->high);
        }
    }
}

/* ---- the block ---- */

static float k_as_half(float x)
{
    uint8_t p[2];
    blocks_put_half(p, x);
    return blocks_half(p);
}

/* Rounds values to scale * low..high, where the one that is the largest is at an end; the scale, as an f16 has it. */
static float k_round_scales(const float *v, int n, int low, int high, int *to)
{
    float largest = 0;
    for (int i = 0; i < n; i++)
        largest = fabsf(v[i]) > fabsf(largest) ? v[i] : largest;
    float scale = k_as_half(largest / (float)(low ? low : high));
    for (int i = 0; i < n; i++)
        to[i] = scale != 0 ? k_code(v[i] / scale, low, high) : 0;
    return scale;
}

/* The codes of elements for the scales that the block has; the sum of squared errors. */
static double k_codes(const float *x, const struct k_type *t, struct k_block *b)
{
    double error = 0;
    for (int s = 0; s * t->length < K_ELEMENTS; s++) {
        float d = b->scale * (float)b->sub_scale[s], m = b->min * (float)b->sub_min[s], inverse = d != 0 ? 1 / d : 0;
        for (int i = s * t->length; i < (s + 1) * t->length; i++) {
            b->code[i] = k_code((x[i] + m) * inverse, t->low, t->high);
            double e = (double)(d * (float)b->code[i] - m - x[i]);
            error += e * e;
        }
    }
    return error;
}

/* Fits the two f16 scales to the codes and sub-scales: a regression with two unknowns. */
static void k_refit(const float *x, const struct k_type *t, struct k_block *b)
{
    double uu = 0, uv = 0, vv = 0, ux = 0, vx = 0;
    for (int i = 0; i < K_ELEMENTS; i++) {
        double u = (double)b->sub_scale[i / t->length] * b->code[i], v = -(double)b->sub_min[i / t->length];
        uu += u * u;
        uv += u * v;
        vv += v * v;
        ux += u * (double)x[i];
        vx += v * (double)x[i];
    }
    double det = uu * vv - uv * uv;
    if (t->minimums && det > 1e-9 * uu * vv) {
        b->scale = k_as_half((float)((vv * ux - uv * vx) / det));
        b->min = k_as_half((float)((uu * vx - uv * ux) / det));
    } else if (!t->minimums && uu > 0) {
        b->scale = k_as_half((float)(ux / uu));
    }
}

static struct k_block k_encode(const float *x, const struct k_type *t)
{
    float scale[K_SUBS_MAX], min[K_SUBS_MAX] = {0};
    int subs = K_ELEMENTS / t->length;
    struct k_block b = {0};
    for (int s = 0; s < subs; s++)
        if (t->minimums)
            k_fit_range(x + s * t->length, t, &scale[s], &min[s]);
        else
            scale[s] = k_fit_scale(x + s * t->length, t);
    b.scale = k_round_scales(scale, subs, t->sub_low, t->sub_high, b.sub_scale);
    b.min = k_round_scales(min, subs, 0, t->sub_high, b.sub_min);
    double error = k_codes(x, t, &b);
    for (int again = 0; again < 2; again++) {
        struct k_block other = b;
        k_refit(x, t, &other);
        double less = k_codes(x, t, &other);
        if (!(less < error))
            break;
        b = other;
        error = less;
    }
    return b;
}

/* ---- bytes: the layouts that gguf_blocks.c reads ---- */

void encode_q2_k(const float *x, uint8_t *p)
{
    struct k_block b = k_encode(x, &(struct k_type){16, 0, 3, 0, 15, true});
    memset(p, 0, 80);
    for (int s = 0; s < 16; s++)
        p[s] = (uint8_t)(b.sub_scale[s] | b.sub_min[s] << 4);
    for (int i = 0; i < K_ELEMENTS; i++)
        p[16 + i / 128 * 32 + i % 32] |= (uint8_t)(b.code[i] << i / 32 % 4 * 2);
    blocks_put_half(p + 80, b.scale);
    blocks_put_half(p + 82, b.min);
}

void encode_q3_k(const float *x, uint8_t *p)
{
    struct k_block b = k_encode(x, &(struct k_type){16, -4, 3, -32, 31, false});
    memset(p, 0, 108);
    for (int i = 0; i < K_ELEMENTS; i++) {
        unsigned code = (unsigned)(b.code[i] + 4);
        p[32 + i / 128 * 32 + i % 32] |= (uint8_t)((code & 3) << i / 32 % 4 * 2);
        p[i % 32] |= (uint8_t)(code >> 2 << i / 32);
    }
    for (int s = 0; s < 16; s++) {
        unsigned scale = (unsigned)(b.sub_scale[s] + 32);
        p[96 + s % 8] |= (uint8_t)((scale & 15) << s / 8 * 4);
        p[104 + s % 4] |= (uint8_t)(scale >> 4 << s / 4 * 2);
    }
    blocks_put_half(p + 108, b.scale);
}

/* d, dmin, and 8 scales and minimums of 6 bits in 12 bytes. */
static void k_put_scales(uint8_t *p, const struct k_block *b)
{
    blocks_put_half(p, b->scale);
    blocks_put_half(p + 2, b->min);
    uint8_t *s = p + 4;
    for (int i = 0; i < 4; i++) {
        int scale = b->sub_scale[i + 4], min = b->sub_min[i + 4];
        s[i] = (uint8_t)(b->sub_scale[i] | scale >> 4 << 6);
        s[i + 4] = (uint8_t)(b->sub_min[i] | min >> 4 << 6);
        s[i + 8] = (uint8_t)((scale & 15) | (min & 15) << 4);
    }
}

/* The lower 4 bits of codes: two elements of a byte are 32 apart. */
static void k_put_nibbles(uint8_t *p, const struct k_block *b)
{
    for (int i = 0; i < K_ELEMENTS / 2; i++) {
        int first = i / 32 * 64 + i % 32;
        p[i] = (uint8_t)((b->code[first] & 15) | (b->code[first + 32] & 15) << 4);
    }
}

void encode_q4_k(const float *x, uint8_t *p)
{
    struct k_block b = k_encode(x, &(struct k_type){32, 0, 15, 0, 63, true});
    k_put_scales(p, &b);
    k_put_nibbles(p + 16, &b);
}

void encode_q5_k(const float *x, uint8_t *p)
{
    struct k_block b = k_encode(x, &(struct k_type){32, 0, 31, 0, 63, true});
    k_put_scales(p, &b);
    memset(p + 16, 0, 32);
    for (int i = 0; i < K_ELEMENTS; i++)
        p[16 + i % 32] |= (uint8_t)(b.code[i] >> 4 << i / 32);
    k_put_nibbles(p + 48, &b);
}

void encode_q6_k(const float *x, uint8_t *p)
{
    struct k_block b = k_encode(x, &(struct k_type){16, -32, 31, -128, 127, false});
    memset(p, 0, 192);
    for (int i = 0; i < K_ELEMENTS; i++) {
        unsigned code = (unsigned)(b.code[i] + 32);
        int half = i / 128, part = i / 32 % 4;
        p[half * 64 + part % 2 * 32 + i % 32] |= (uint8_t)((code & 15) << part / 2 * 4);
        p[128 + half * 32 + i % 32] |= (uint8_t)(code >> 4 << part * 2);
    }
    for (int s = 0; s < 16; s++)
        p[192 + s] = (uint8_t)(int8_t)b.sub_scale[s];
    blocks_put_half(p + 208, b.scale);
}
