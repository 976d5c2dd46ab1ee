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
        float most = x[0], sum = 0;
        for (size_t i = 0; i < n; i++)
            most = x[i] > most ? x[i] : most;
        for (size_t i = 0; i < n; i++)
            sum += o[i] = hand_exp(x[i] - most);
        float scale = 1 / sum;
        for (size_t i = 0; i < n; i++)
            o[i] *= scale;
    }
}

/* dx for a loss sum(w softmax(x)): forward and backward in one go, as a training step does it. */
HAND static void hand_softmax_bwd(float *restrict o, const float *restrict x, const float *restrict w, size_t rows, size_t n)
{
    for (size_t r = 0; r < rows; r++, x += n, o += n, w += n) {
        float most = x[0], sum = 0, dot = 0;
        for (size_t i = 0; i < n; i++)
            most = x[i] > most ? x[i] : most;
        for (size_t i = 0; i < n; i++)
            sum += o[i] = hand_exp(x[i] - most);
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

#endif
