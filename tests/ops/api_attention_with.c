/* Attention with float masks, scales, grouped heads and a cache, against plain loops in double; gradients, misuse. */
#include "tests/support/api_numbers.h"
#include "tests/support/api_refused.h"

enum { H = 4, L = 3, M = 5, W = 4, E = 2 };

/* q [H, L, W], k [G, M, W], v [G, M, E], mask [H or 1, L, M] of numbers to add */
static void expected(const double *q, const double *k, const double *v, const double *mask, int G, bool heads,
                     double scale, bool causal, double *y)
{
    for (int h = 0; h < H; h++)
        for (int i = 0; i < L; i++) {
            double s[M], max = -INFINITY, sum = 0;
            int g = h / (H / G);
            for (int j = 0; j < M; j++) {
                s[j] = mask ? mask[((heads ? h : 0) * L + i) * M + j] : 0;
                for (int d = 0; d < W; d++)
                    s[j] += scale * q[(h * L + i) * W + d] * k[(g * M + j) * W + d];
                if (causal && j > i + M - L)
                    s[j] = -INFINITY;
                max = fmax(max, s[j]);
            }
            for (int j = 0; j < M; j++)
                sum += s[j] = max == -INFINITY ? 0 : exp(s[j] - max);
            for (int e = 0; e < E; e++) {
                double o = 0;
                for (int j = 0; j < M; j++)
                    o += s[j] * v[(g * M + j) * E + e];
                y[(h * L + i) * E + e] = sum > 0 ? o / sum : 0;
            }
        }
}

static void run(int G, int mask, bool heads, double scale, bool causal, bool past)
{
    double q[H * L * W], k[H * M * W], v[H * M * E], m[H * L * M], add[H * L * M], want[H * L * E];
    uint8_t unmasked[H * L * M];
    kl_tensor tq = noisy(G, D(H, L, W), q), tk = noisy(7, D(G, M, W), k), tv = noisy(9 + mask, D(G, M, E), v);
    kl_tensor tm = kl_none;
    int n = (heads ? H : 1) * L * M;
    for (int i = 0; i < n; i++) {
        unmasked[i] = i % 4 != 1 && i / M % L != 1;
        m[i] = noise(50 + i);
        if (mask == 2 && !unmasked[i])
            m[i] = -INFINITY;
        add[i] = mask == 1 ? unmasked[i] ? 0 : -INFINITY : m[i];
    }
    if (mask)
        tm = mask == 1 ? kl_input(dev, KL_BOOL, D(heads ? H : 1, L, M), unmasked) : f64(D(heads ? H : 1, L, M), m);
    expected(q, k, v, mask ? add : NULL, G, heads, scale > 0 ? scale : 1 / sqrt(W), causal, want);
    kl_attention_options o = {.mask = tm, .scale = scale, .causal = causal};
    kl_tensor keys = kl_none, values = kl_none, nk = tk, nv = tv;
    if (past) {
        o.past_k = kl_narrow(tk, 1, 0, 2), o.past_v = kl_narrow(tv, 1, 0, 2);
        nk = kl_narrow(tk, 1, 2, M - 2), nv = kl_narrow(tv, 1, 2, M - 2);
    }
    NEAR(kl_attention_with(tq, nk, nv, &o, past ? &keys : NULL, &values), H * L * E, want, 1e-13);
    if (past)
        NEAR(keys, G * M * W, k, 0);
    NEAR(values, G * M * E, v, 0);
}

static kl_tensor mask_of(void)
{
    double m[12];
    kl_tensor a = noisy(5, D(3, 4), m);
    m[4] = m[5] = m[6] = m[7] = m[2] = -INFINITY;
    return kl_add_scalar(f64(D(3, 4), m), 0 * kl_numel(a));
}
static kl_tensor g_float(kl_tensor x)
{
    kl_attention_options o = {.mask = mask_of(), .scale = 0.7};
    return kl_attention_with(kl_narrow(x, 0, 0, 3), kl_narrow(x, 0, 3, 4), kl_narrow(x, 0, 7, 4), &o, NULL, NULL);
}
static kl_tensor g_mask(kl_tensor m)
{
    double x[64];
    kl_attention_options o = {.mask = m, .causal = true};
    return kl_attention_with(noisy(1, D(3, 2), x), noisy(9, D(4, 2), x), noisy(30, D(4, 2), x), &o, NULL, NULL);
}
static kl_tensor g_groups(kl_tensor x)
{
    kl_attention_options o = {.scale = 0.3, .causal = true};
    kl_tensor q = kl_reshape(kl_narrow(x, 0, 0, 24), 3, (int64_t[]){4, 3, 2});
    kl_tensor k = kl_reshape(kl_narrow(x, 0, 24, 12), 3, (int64_t[]){2, 3, 2});
    return kl_attention_with(q, k, kl_reshape(kl_narrow(x, 0, 36, 12), 3, (int64_t[]){2, 3, 2}), &o, NULL, NULL);
}

static void misuse(void)
{
    kl_tensor q = kl_zeros(dev, KL_F32, D(4, 3, 2)), k = kl_zeros(dev, KL_F32, D(3, 5, 2));
    kl_tensor i = kl_zeros(dev, KL_I32, D(2, 2)), m = kl_zeros(dev, KL_F64, D(3, 3));
    kl_tensor wide = kl_zeros(dev, KL_F32, D(2, 9)), line = kl_zeros(dev, KL_F32, D(9));
    kl_attention_options o = {.mask = m}, past = {.past_k = wide};
    REFUSED(kl_attention_with(q, k, k, NULL, NULL, NULL), KL_ERR_SHAPE, "attention_with: ", "4 heads", "[3,5,2]");
    REFUSED(kl_attention_with(q, q, i, NULL, NULL, NULL), KL_ERR_TYPE, "attention_with: ", "i32");
    REFUSED(kl_attention_with(q, q, q, &o, NULL, NULL), KL_ERR_TYPE, "attention_with: ", "f64");
    REFUSED(kl_attention_with(q, q, q, &past, NULL, NULL), KL_ERR_SHAPE, "attention_with: ", "[2,9]");
    REFUSED(kl_attention_with(line, q, q, NULL, NULL, NULL), KL_ERR_SHAPE, "attention_with: ", "[9]");
    kl_release(q), kl_release(k), kl_release(i), kl_release(m), kl_release(wide), kl_release(line);
}

static void test(kl_device d)
{
    dev = d;
    kl_scope_begin();
    for (int k = 0; k < 72; k++)
        run(k % 3 == 0 ? H : k % 3 == 1 ? 2 : 1, k / 3 % 3, k / 9 & 1, k / 18 & 1 ? 0.9 : 0, k / 36, k & 1);
    GRADIENT(g_float, 11, 2);
    GRADIENT(g_mask, 3, 4);
    GRADIENT(g_groups, 48);
    misuse();
    OK(kl_scope_end());
}

int main(void)
{
    return on_devices(test);
}
