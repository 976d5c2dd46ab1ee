/* What generated kernels are measured against: kernels as one would write them by hand in C, for the compiler to
 * vectorize for this processor. */
#ifndef BENCH_HAND_H
#define BENCH_HAND_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAND                                                                                       \
    __attribute__((noinline, unused, optimize("O3", "fast-math"),                                  \
                   target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define HAND_INLINE static inline __attribute__((always_inline))
#else
#define HAND __attribute__((noinline, unused))
#define HAND_INLINE static inline
#endif

/* e to the x for x <= 0, about 1 ulp; Cephes' reduction by ln 2 in two parts and a polynomial of degree 6. */
HAND_INLINE float hand_exp(float x)
{
    x = x < -87.0f ? -87.0f : x;
    float k = rintf(x * 1.44269504f), r = x - k * 0.693359375f + k * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    union { int32_t i; float f; } two = {.i = ((int32_t)k + 127) << 23};
    return y * two.f;
}

HAND static void hand_softmax(float *restrict o, const float *restrict x, size_t rows, size_t n)
{
    for (size_t r = 0; r < rows; r++, x += n, o += n) {
        float max = x[0], sum = 0;
        for (size_t i = 0; i < n; i++)
            max = x[i] > max ? x[i] : max;
        for (size_t i = 0; i < n; i++)
            sum += o[i] = hand_exp(x[i] - max);
        float scale = 1 / sum;
        for (size_t i = 0; i < n; i++)
            o[i] *= scale;
    }
}

/* dx for a loss sum(w softmax(x)): forward and backward in one go, as a training step does it. */
HAND static void hand_softmax_bwd(float *restrict o, const float *restrict x, const float *restrict w, size_t rows,
                                  size_t n)
{
    for (size_t r = 0; r < rows; r++, x += n, o += n, w += n) {
        float max = x[0], sum = 0, dot = 0;
        for (size_t i = 0; i < n; i++)
            max = x[i] > max ? x[i] : max;
        for (size_t i = 0; i < n; i++)
            sum += o[i] = hand_exp(x[i] - max);
        float scale = 1 / sum;
        for (size_t i = 0; i < n; i++)
            dot += o[i] * w[i];
        dot *= scale;
        for (size_t i = 0; i < n; i++)
            o[i] = o[i] * scale * (w[i] - dot);
    }
}

HAND static void hand_layernorm(float *restrict o, const float *restrict x, const float *restrict gain,
                                const float *restrict bias, size_t rows, size_t n)
{
    for (size_t r = 0; r < rows; r++, x += n, o += n) {
        float sum = 0, square = 0;
        for (size_t i = 0; i < n; i++)
            sum += x[i];
        float mean = sum / (float)n;
        for (size_t i = 0; i < n; i++)
            square += (x[i] - mean) * (x[i] - mean);
        float scale = 1 / sqrtf(square / (float)n + 1e-5f);
        for (size_t i = 0; i < n; i++)
            o[i] = (x[i] - mean) * scale * gain[i] + bias[i];
    }
}

/* dx for a loss sum(w layernorm(x)). */
HAND static void hand_layernorm_bwd(float *restrict o, const float *restrict x, const float *restrict w,
                                    const float *restrict gain, size_t rows, size_t n)
{
    for (size_t r = 0; r < rows; r++, x += n, o += n, w += n) {
        float sum = 0, square = 0, dy = 0, dyx = 0, count = (float)n;
        for (size_t i = 0; i < n; i++)
            sum += x[i];
        float mean = sum / count;
        for (size_t i = 0; i < n; i++)
            square += (x[i] - mean) * (x[i] - mean);
        float scale = 1 / sqrtf(square / count + 1e-5f);
        for (size_t i = 0; i < n; i++) {
            dy += w[i] * gain[i];
            dyx += w[i] * gain[i] * (x[i] - mean) * scale;
        }
        for (size_t i = 0; i < n; i++)
            o[i] = scale * (w[i] * gain[i] - dy / count - (x[i] - mean) * scale * dyx / count);
    }
}

/* softmax(q k^T / sqrt(d)) v for one head with d columns everywhere (d <= 128, a multiple of 8): 32 queries at a time,
 * each a lane; scores and values in tiles of 8 rows by 32 lanes, 64 keys at a time, a running largest score.  l: a
 * multiple of 32; m: of 64; causal: l = m. */
typedef float hand_lanes __attribute__((vector_size(64), aligned(4)));
#define HAND_EACH(h) _Pragma("GCC unroll 2") for (int h = 0; h < 2; h++)

HAND_INLINE void hand_attention_block(hand_lanes (*qt)[2], hand_lanes (*acc)[2], float *max, float *sum,
                                      const float *k, const float *v,
                                      int d, float scale, int past)
{
    union { hand_lanes v[64][2]; float f[64][32]; } p;
    union { hand_lanes v[2]; float f[32]; } shrink;
    float larger[32];
    memcpy(larger, max, sizeof larger);
    for (int j = 0; j < 64; j += 8) {
        hand_lanes s[8][2] = {{{0}}};
        for (int c = 0; c < d; c++)
            _Pragma("GCC unroll 8") for (int r = 0; r < 8; r++) HAND_EACH(h) s[r][h] += qt[c][h] * k[(j + r) * d + c];
        _Pragma("GCC unroll 8") for (int r = 0; r < 8; r++) HAND_EACH(h) p.v[j + r][h] = s[r][h] * scale;
        for (int r = j; r < j + 8; r++)
            for (int i = 0; i < 32; i++) {
                p.f[r][i] = r > past + i ? -3e38f : p.f[r][i];
                larger[i] = p.f[r][i] > larger[i] ? p.f[r][i] : larger[i];
            }
    }
    for (int i = 0; i < 32; i++) {
        shrink.f[i] = hand_exp(max[i] - larger[i]);
        sum[i] *= shrink.f[i];
        max[i] = larger[i];
    }
    for (int j = 0; j < 64; j++)
        for (int i = 0; i < 32; i++) {
            float e = hand_exp(p.f[j][i] - larger[i]);
            p.f[j][i] = j > past + i ? 0 : e;
            sum[i] += p.f[j][i];
        }
    for (int c = 0; c < d; c += 8) {
        hand_lanes o[8][2];
        _Pragma("GCC unroll 8") for (int r = 0; r < 8; r++) HAND_EACH(h) o[r][h] = acc[c + r][h] * shrink.v[h];
        for (int j = 0; j < 64; j++)
            _Pragma("GCC unroll 8") for (int r = 0; r < 8; r++) HAND_EACH(h) o[r][h] += p.v[j][h] * v[j * d + c + r];
        _Pragma("GCC unroll 8") for (int r = 0; r < 8; r++) HAND_EACH(h) acc[c + r][h] = o[r][h];
    }
}

HAND static void hand_attention(float *o, const float *q, const float *k, const float *v, int l, int m, int d,
                                int causal)
{
    hand_lanes qt[128][2], acc[128][2];
    float max[32], sum[32];
    const float scale = 1 / sqrtf((float)d);
    for (int i = 0; i < l; i += 32) {
        memset(acc, 0, sizeof acc);
        for (int n = 0; n < 32; n++) {
            max[n] = -3e38f;
            sum[n] = 0;
            for (int c = 0; c < d; c++)
                qt[c][n / 16][n % 16] = q[(i + n) * d + c];
        }
        for (int j = 0; j < (causal ? i + 32 : m); j += 64)
            hand_attention_block(qt, acc, max, sum, k + j * d, v + j * d, d, scale, causal ? i - j : 1 << 20);
        for (int n = 0; n < 32; n++)
            for (int c = 0; c < d; c++)
                o[(i + n) * d + c] = acc[c][n / 16][n % 16] / sum[n];
    }
}
#endif
