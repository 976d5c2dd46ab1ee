/* The loops of bench/small.c by hand: what one would write in C for an optimizing compiler. */
#ifndef BENCH_SMALL_HAND_H
#define BENCH_SMALL_HAND_H
#include "bench/hand.h"

/* As HAND, without fast-math: the loops' sums keep their order, as Kiln's do. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SMALL_HAND                                                                                 \
    __attribute__((noinline, unused, optimize("O3"),                                               \
                   target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SMALL_HAND __attribute__((noinline, unused))
#endif

/* y: all n values */
SMALL_HAND static void hand_logistic(float *restrict y, const float *restrict r, float x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x = r[i] * x * (1 - x);
}

/* c = a b, c += a b of 3x3 matrices */
HAND_INLINE void hand_dot3(float *restrict c, const float *restrict a, const float *restrict b, int transposed)
{
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            float s = 0;
            for (int k = 0; k < 3; k++)
                s += a[3 * i + k] * (transposed ? b[3 * j + k] : b[3 * k + j]);
            c[3 * i + j] = s;
        }
}

HAND_INLINE void hand_inverse3(float *restrict o, const float *restrict m)
{
    float a = m[4] * m[8] - m[5] * m[7], b = m[5] * m[6] - m[3] * m[8], c = m[3] * m[7] - m[4] * m[6];
    float d = 1 / (m[0] * a + m[1] * b + m[2] * c);
    o[0] = a * d, o[1] = (m[2] * m[7] - m[1] * m[8]) * d, o[2] = (m[1] * m[5] - m[2] * m[4]) * d;
    o[3] = b * d, o[4] = (m[0] * m[8] - m[2] * m[6]) * d, o[5] = (m[2] * m[3] - m[0] * m[5]) * d;
    o[6] = c * d, o[7] = (m[1] * m[6] - m[0] * m[7]) * d, o[8] = (m[0] * m[4] - m[1] * m[3]) * d;
}

/* States x and covariances p, both [3..], of a filter with transition f, noise q and r, and measurements z [n, 3]. */
SMALL_HAND static void hand_kalman(float *restrict out, const float *restrict f, const float *restrict q,
                                   const float *restrict r, const float *restrict z, int64_t n)
{
    float x[3] = {0}, p[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    for (int64_t t = 0; t < n; t++, z += 3, out += 3) {
        float fp[9], s[9], inverse[9], k[9], kp[9], y[3], ahead[3];
        hand_dot3(fp, f, p, 0);
        hand_dot3(p, fp, f, 1);
        for (int i = 0; i < 9; i++) {
            p[i] += q[i];
            s[i] = p[i] + r[i];
        }
        hand_inverse3(inverse, s);
        hand_dot3(k, p, inverse, 0);
        for (int i = 0; i < 3; i++)
            ahead[i] = f[3 * i] * x[0] + f[3 * i + 1] * x[1] + f[3 * i + 2] * x[2];
        for (int i = 0; i < 3; i++)
            y[i] = z[i] - ahead[i];
        for (int i = 0; i < 3; i++)
            out[i] = x[i] = ahead[i] + k[3 * i] * y[0] + k[3 * i + 1] * y[1] + k[3 * i + 2] * y[2];
        hand_dot3(kp, k, p, 0);
        for (int i = 0; i < 9; i++)
            p[i] -= kp[i];
    }
}

/* Lotka and Volterra's equations, by the classical method of Runge and Kutta; k: 4 rates */
HAND_INLINE void hand_prey(const float *k, float x, float y, float *dx, float *dy)
{
    *dx = k[0] * x - k[1] * x * y;
    *dy = k[2] * x * y - k[3] * y;
}

SMALL_HAND static void hand_lotka(float *restrict out, const float *restrict k, float h, int64_t n)
{
    float x = 1, y = 1;
    for (int64_t t = 0; t < n; t++) {
        float a, b, c, d, e, f, g, i;
        hand_prey(k, x, y, &a, &b);
        hand_prey(k, x + h / 2 * a, y + h / 2 * b, &c, &d);
        hand_prey(k, x + h / 2 * c, y + h / 2 * d, &e, &f);
        hand_prey(k, x + h * e, y + h * f, &g, &i);
        out[2 * t] = x += h / 6 * (a + 2 * c + 2 * e + g);
        out[2 * t + 1] = y += h / 6 * (b + 2 * d + 2 * f + i);
    }
}

/* A vehicle: position, heading, speeds along and across, yaw rate; two controls [n, 2]: throttle and steering. */
SMALL_HAND static void hand_vehicle(float *restrict out, const float *restrict u, float h, int64_t n)
{
    float x = 0, y = 0, a = 0, v = 1, w = 0, r = 0;
    for (int64_t t = 0; t < n; t++, u += 2) {
        float ca = 1 - a * a / 2, sa = a - a * a * a / 6; /* of small headings */
        float dx = v * ca - w * sa, dy = v * sa + w * ca, da = r;
        float dv = u[0] - 0.1f * v + w * r, dw = u[1] - 2 * w - v * r, dr = 3 * u[1] - 4 * r - 0.5f * a;
        x += h * dx, y += h * dy, a += h * da, v += h * dv, w += h * dw, r += h * dr;
        out[3 * t] = x, out[3 * t + 1] = y, out[3 * t + 2] = a;
    }
}

enum { HAND_UNITS = 60 };

/* A leaky recurrence of HAND_UNITS numbers: each is drawn to its neighbour and to a value. */
SMALL_HAND static void hand_units(float *restrict out, const float *restrict w, const float *restrict x, int64_t n)
{
    float h[HAND_UNITS + 1] = {0};
    for (int64_t t = 0; t < n; t++, x += HAND_UNITS, out += HAND_UNITS) {
        h[HAND_UNITS] = h[0];
        for (int i = 0; i < HAND_UNITS; i++)
            out[i] = h[i] + w[i] * (x[i] - h[i]) + 0.1f * h[i + 1] * (1 - h[i]);
        memcpy(h, out, HAND_UNITS * sizeof *h);
    }
}

enum { HAND_WIDTH = 16 };

HAND_INLINE float hand_sigmoid(float x)
{
    float e = hand_exp(x < 0 ? x : -x);
    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

/* One sequence through an LSTM; x [n, 16], weights [16, 64] each. */
SMALL_HAND static void hand_lstm(float *restrict out, const float *restrict wx, const float *restrict wh,
                                 const float *restrict x, int64_t n)
{
    enum { W = HAND_WIDTH };
    float h[W] = {0}, c[W] = {0};
    for (int64_t t = 0; t < n; t++, x += W, out += W) {
        float g[4 * W] = {0};
        for (int k = 0; k < W; k++)
            for (int j = 0; j < 4 * W; j++)
                g[j] += x[k] * wx[k * 4 * W + j] + h[k] * wh[k * 4 * W + j];
        for (int j = 0; j < W; j++) {
            c[j] = hand_sigmoid(g[W + j]) * c[j] + hand_sigmoid(g[j]) * (2 * hand_sigmoid(2 * g[2 * W + j]) - 1);
            h[j] = hand_sigmoid(g[3 * W + j]) * (2 * hand_sigmoid(2 * c[j]) - 1);
        }
        memcpy(out, h, sizeof h);
    }
}

enum { HAND_FITS = 256 };

/* HAND_FITS equations of hand_lotka at once; k [4, HAND_FITS]. */
SMALL_HAND static void hand_fits(float *restrict x, float *restrict y, const float *restrict k, float h, int64_t n)
{
    for (int i = 0; i < HAND_FITS; i++)
        x[i] = y[i] = 1;
    for (int64_t t = 0; t < n; t++)
        for (int i = 0; i < HAND_FITS; i++) {
            float r[4] = {k[i], k[HAND_FITS + i], k[2 * HAND_FITS + i], k[3 * HAND_FITS + i]};
            float a, b, c, d, e, f, g, o;
            hand_prey(r, x[i], y[i], &a, &b);
            hand_prey(r, x[i] + h / 2 * a, y[i] + h / 2 * b, &c, &d);
            hand_prey(r, x[i] + h / 2 * c, y[i] + h / 2 * d, &e, &f);
            hand_prey(r, x[i] + h * e, y[i] + h * f, &g, &o);
            x[i] += h / 6 * (a + 2 * c + 2 * e + g);
            y[i] += h / 6 * (b + 2 * d + 2 * f + o);
        }
}

#endif
