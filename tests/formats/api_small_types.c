/* 8-bit floats and 4-bit integers in bytes: every code decoded, and encoded values compared with a search through all
 * codes for the nearest value. */
#include "tests/support/api_numbers.h"

static const struct { int exponent, mantissa, bias; bool fn, fnuz; } formats[KL_FLOAT8_FORMATS] = {
    {4, 3, 7, true, false}, {4, 3, 8, false, true}, {5, 2, 15, false, false}, {5, 2, 16, false, true}};

/* The value of a code, by the definition of the format. */
static double code_value(int format, int code)
{
    int m = formats[format].mantissa, e = code >> m & ((1 << formats[format].exponent) - 1);
    int fraction = code & ((1 << m) - 1), top = (1 << formats[format].exponent) - 1;
    double sign = code & 0x80 ? -1 : 1;
    if (formats[format].fnuz && code == 0x80)
        return NAN;
    if (formats[format].fn && (code & 0x7f) == 0x7f)
        return NAN;
    if (!formats[format].fn && !formats[format].fnuz && e == top)
        return fraction ? NAN : sign * INFINITY;
    return sign * (e ? ldexp((1 << m) + fraction, e - formats[format].bias - m)
                     : ldexp(fraction, 1 - formats[format].bias - m));
}

/* The code that x becomes; -1: any NaN. */
static int code_of(int format, float x, bool saturate)
{
    int best = 0;
    double largest = 0, distance = INFINITY;
    for (int c = 0; c < 128; c++)
        largest = isfinite(code_value(format, c)) ? fmax(largest, code_value(format, c)) : largest;
    double clipped = fmin(fabs((double)x), largest);
    for (int c = 0; c < 128; c++) {
        double v = code_value(format, c), far = fabs(v - clipped);
        if (!isfinite(v))
            continue;
        if (far < distance || (far == distance && c % 2 == 0)) {
            distance = far;
            best = c;
        }
    }
    if (isnan(x))
        return -1;
    /* the next value there would be, were the exponent unbounded: from half way on x is beyond the largest */
    double gap = largest - code_value(format, best - 1);
    bool has_infinity = !formats[format].fn && !formats[format].fnuz;
    bool even = best % 2 == 0; /* the largest code's last bit: a tie goes away from an odd one */
    bool beyond = best > 1 && code_value(format, best) == largest &&
                  (even ? fabs((double)x) > largest + gap / 2 : fabs((double)x) >= largest + gap / 2);
    int sign = signbit(x) ? 0x80 : 0;
    if (beyond && !saturate)
        return has_infinity ? 0x7c | sign : -1;
    return best == 0 && formats[format].fnuz ? 0 : best | sign;
}

static uint32_t random_bits(void)
{
    static uint64_t state = 88172645463325252u; /* xorshift64, Marsaglia 2003 */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

static void decoded(void)
{
    static uint8_t all[256];
    static double want[256];
    static const kl_dtype dtypes[] = {KL_F16, KL_F32, KL_F64};
    for (int i = 0; i < 256; i++)
        all[i] = (uint8_t)i;
    for (int f = 0; f < KL_FLOAT8_FORMATS; f++) {
        for (int i = 0; i < 256; i++)
            want[i] = code_value(f, i);
        for (int d = 1; d < 3; d++)
            NEAR(kl_float8_decode(kl_input(dev, KL_U8, D(256), all), (kl_float8)f, dtypes[d]), 256, want, 0);
        kl_tensor half = kl_float8_decode(kl_input(dev, KL_U8, D(256), all), (kl_float8)f, KL_F16);
        NEAR(kl_cast(half, KL_F32), 256, want, 0);
        kl_tensor back = kl_float8_encode(half, (kl_float8)f, true);
        double *v = values_of(back);
        bool ok = v != NULL;
        for (int i = 0; ok && i < 256; i++) /* infinities saturate, and there are many codes of NaN */
            ok = !isfinite(want[i]) || (int)v[i] == i;
        CHECK(ok);
        free(v);
    }
}

static void encoded(void)
{
    enum { N = 4096 };
    static float x[N];
    for (int f = 0; f < KL_FLOAT8_FORMATS; f++)
        for (int saturate = 0; saturate < 2; saturate++) {
            for (int i = 0; i < N; i++) {
                uint32_t bits = random_bits(), exponent = 127 - 22 + random_bits() % 42;
                if (i % 4)
                    bits = (bits & 0x807fffff) | exponent << 23;
                memcpy(&x[i], &bits, sizeof bits);
                if (i % 4 == 2) { /* half way between two values */
                    int code = (int)(random_bits() % 126);
                    double low = code_value(f, code), high = code_value(f, code + 1);
                    x[i] = isfinite(low) && isfinite(high) ? (float)((low + high) / 2) : x[i];
                }
            }
            x[0] = 0.0f, x[1] = -0.0f, x[2] = INFINITY, x[3] = -INFINITY, x[4] = NAN, x[5] = 1e-40f, x[6] = 3e38f;
            x[7] = 448, x[8] = 464, x[9] = 240, x[10] = 248, x[11] = 57344, x[12] = 61440, x[13] = -61440.5f;
            double *v = values_of(kl_float8_encode(kl_input(dev, KL_F32, D(N), x), (kl_float8)f, saturate));
            int wrong = v ? 0 : N;
            for (int i = 0; v && i < N; i++) {
                int want = code_of(f, x[i], saturate), got = (int)v[i];
                if (want < 0 ? !isnan(code_value(f, got)) : got != want)
                    if (wrong++ < 4)
                        printf("format %d, saturate %d: %.9g is code 0x%02x, not 0x%02x\n", f, saturate, (double)x[i],
                               (unsigned)got, (unsigned)want);
            }
            CHECK(wrong == 0);
            free(v);
        }
}

static void integers(void)
{
    static const int8_t q[8] = {-8, 7, -1, 0, 3, -4, 5, 1};
    static const uint8_t u[6] = {0, 15, 8, 7, 1, 14};
    double want[8];
    for (int i = 0; i < 8; i++)
        want[i] = q[i];
    kl_tensor packed = kl_int4_pack(kl_input(dev, KL_I8, D(2, 4), q));
    SHAPE(packed, 2, 2);
    NEAR(kl_int4_unpack(packed, KL_I8), 8, want, 0);
    NEAR_LIST(packed, 0, 0x78, 0x0f, 0xc3, 0x15);
    for (int i = 0; i < 6; i++)
        want[i] = u[i];
    NEAR(kl_int4_unpack(kl_int4_pack(kl_input(dev, KL_U8, D(3, 2), u)), KL_U8), 6, want, 0);
    kl_tensor none = kl_int4_unpack(kl_int4_pack(kl_zeros(dev, KL_I8, D(3, 0))), KL_I8);
    SHAPE(none, 3, 0);
    CHECK(kl_numel(kl_float8_encode(kl_zeros(dev, KL_F32, D(0)), KL_FLOAT8_E5M2, true)) == 0);
}

/* Weights in 4 bits and 8-bit floats beside a product: the decoding is part of its kernel. */
static void in_product(void)
{
    enum { M = 3, K = 32, N = 8 };
    float x[M * K], w[K * N];
    int8_t q[N * K];
    double want4[M * N] = {0}, want8[M * N] = {0};
    for (int i = 0; i < M * K; i++)
        x[i] = (float)noise(i);
    for (int i = 0; i < N * K; i++) {
        q[i] = (int8_t)((int)(random_bits() % 16) - 8);
        w[i] = (float)noise(i + 500);
    }
    kl_trace_begin("small types");
    kl_tensor a = kl_input(dev, KL_F32, D(M, K), x);
    kl_tensor codes4 = kl_int4_pack(kl_input(dev, KL_I8, D(N, K), q));
    kl_tensor codes8 = kl_float8_encode(kl_input(dev, KL_F32, D(K, N), w), KL_FLOAT8_E4M3FN, true);
    kl_tensor y4 = kl_keep(kl_matmul(a, kl_transpose(kl_cast(kl_int4_unpack(codes4, KL_I8), KL_F32), 0, 1)));
    kl_tensor y8 = kl_keep(kl_matmul(a, kl_float8_decode(codes8, KL_FLOAT8_E4M3FN, KL_F32)));
    OK(kl_trace_end());
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < K; k++) {
                double v = code_value(KL_FLOAT8_E4M3FN, code_of(KL_FLOAT8_E4M3FN, w[k * N + j], true));
                want4[i * N + j] += (double)x[i * K + k] * q[j * K + k];
                want8[i * N + j] += (double)x[i * K + k] * v;
            }
    NEAR(y4, M * N, want4, 1e-5);
    NEAR(y8, M * N, want8, 1e-5);
}

#define REFUSED(call, code, part) refused_at(call, code, part, __LINE__)
static void refused_at(kl_tensor t, kl_status code, const char *part, int line)
{
    check_at(kl_check(t) == code && strstr(kl_last_error(), part), line, "an error");
    kl_release(t);
}

static void misuse(void)
{
    kl_tensor f = kl_zeros(dev, KL_F32, D(2, 3)), u = kl_zeros(dev, KL_U8, D(2, 3)), s = kl_zeros(dev, KL_U8, 0, NULL);
    REFUSED(kl_float8_encode(u, KL_FLOAT8_E5M2, true), KL_ERR_TYPE, "float8_encode: the tensor is u8");
    REFUSED(kl_float8_encode(f, (kl_float8)9, true), KL_ERR_ARGUMENT, "format 9");
    REFUSED(kl_float8_decode(f, KL_FLOAT8_E5M2, KL_F32), KL_ERR_TYPE, "f32");
    REFUSED(kl_float8_decode(u, KL_FLOAT8_E5M2, KL_I32), KL_ERR_TYPE, "i32");
    REFUSED(kl_int4_pack(u), KL_ERR_SHAPE, "[2,3]");
    REFUSED(kl_int4_pack(f), KL_ERR_TYPE, "f32");
    REFUSED(kl_int4_unpack(s, KL_I8), KL_ERR_SHAPE, "0 axes");
    REFUSED(kl_int4_unpack(u, KL_I32), KL_ERR_TYPE, "i32");
}

static void test(kl_device d)
{
    dev = d;
    kl_scope_begin();
    decoded();
    encoded();
    integers();
    in_product();
    misuse();
    OK(kl_scope_end());
}

int main(void)
{
    return on_devices(test);
}
