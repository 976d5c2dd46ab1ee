/* Operators of language models (opsets 23 to 28) in models written here, beside plain loops in f64, for random sizes,
 * masks, windows, heads and pasts; elements of 2 and 4 bits, powers of two, and their bits; what is refused. */
#include "tests/formats/onnx_write.h"
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <unistd.h>

enum { OPSET = 28, UINT8 = 2, INT8 = 3, F4E2M1 = 23, F8E8M0 = 24, UINT2 = 25, INT2 = 26, MAX_NUMBERS = 4096 };
static kl_device dev;
static char path[] = "/tmp/kiln-transformer-XXXXXX";
static uint64_t state = 1;

static unsigned below(unsigned n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(state >> 33) % n;
}
static float number(void) { return (float)below(2001) / 1000 - 1; }

/* An operand of the model: its numbers, and its name in the graph. */
struct operand {
    const char *name;
    int type, rank;
    int64_t dims[4], whole[8];
    float v[MAX_NUMBERS];
    uint8_t flag[MAX_NUMBERS];
};

static int64_t count_of(const struct operand *o)
{
    int64_t n = 1;
    for (int i = 0; i < o->rank; i++)
        n *= o->dims[i];
    return n;
}

static void fill(struct operand *o, const char *name, int rank, const int64_t *dims)
{
    o->name = name;
    o->type = FLOAT;
    o->rank = rank;
    for (int i = 0; i < rank; i++)
        o->dims[i] = dims[i];
    for (int64_t i = 0; i < count_of(o); i++)
        o->v[i] = number();
}

static kl_tensor tensor_of(const struct operand *o)
{
    const void *data = o->type == BOOL ? (const void *)o->flag : o->type == INT64 ? (const void *)o->whole : o->v;
    return kl_input(dev, o->type == BOOL ? KL_BOOL : o->type == INT64 ? KL_I64 : KL_F32, o->rank, o->dims, data);
}

/* A model of one node, called fused and unfused: the results, whose bits have to be equal.  types: of the results. */
static bool run(const char *op, struct pb attributes, int nin, const struct operand *const *in, const char *names,
                int nout, const int *types, kl_tensor *out)
{
    struct pb g = {0};
    kl_tensor operand[8], again[3];
    onnx_node(&g, op, names, (const char *const[]){"y", "y a", "y a b"}[nout - 1], attributes);
    pb_text(&g, 2, "g");
    uint32_t inputs = 0; /* an operand may be given twice */
    for (int i = 0; i < nin; i++) {
        if ((i > 0 && in[i] == in[0]) || (i > 1 && in[i] == in[1]))
            continue;
        onnx_io(&g, 11, in[i]->name, in[i]->type, in[i]->rank, in[i]->dims);
        operand[inputs++] = tensor_of(in[i]);
    }
    for (int i = 0; i < nout; i++)
        onnx_io(&g, 12, (const char *const[]){"y", "a", "b"}[i], types ? types[i] : FLOAT, 0, NULL);
    struct pb model = onnx_model(&g, OPSET);
    bool ok = onnx_save(path, model.data, model.n);
    free(model.data);
    kl_model *m = ok ? kl_model_open(dev, path) : NULL;
    ok = m && kl_model_call(m, inputs, operand, (uint32_t)nout, again) == KL_OK;
    kl_trace_begin("model");
    ok = ok && kl_model_call(m, inputs, operand, (uint32_t)nout, out) == KL_OK;
    for (int i = 0; ok && i < nout; i++)
        kl_keep(out[i]);
    ok &= kl_trace_end() == KL_OK;
    for (int i = 0; ok && i < nout; i++) {
        double *x = values_of(out[i]), *y = values_of(again[i]);
        CHECK(x && y && kl_numel(out[i]) == kl_numel(again[i]) &&
              !memcmp(x, y, (size_t)kl_numel(out[i]) * sizeof *x));
        free(x);
        free(y);
    }
    kl_model_close(m);
    return ok;
}

/* ---- Attention ---- */

struct shape { int64_t B, H, G, L, P, M, D, E; }; /* M: keys with the past's P */

static float at(const struct operand *o, int64_t b, int64_t h, int64_t l, int64_t d)
{
    return o->v[((b * o->dims[1] + h) * o->dims[2] + l) * o->dims[3] + d];
}

/* Key j of the past and the new ones. */
static float key_at(const struct operand *past, const struct operand *now, int64_t P, int64_t b, int64_t h, int64_t j,
                    int64_t d)
{
    return j < P ? at(past, b, h, j, d) : at(now, b, h, j - P, d);
}

static void attention_row(const struct shape *s, const struct operand *o, const bool *seen, double scale, double cap,
                          int64_t b, int64_t h, int64_t l, double *y)
{
    double score[64], sum = 0, max = -INFINITY;
    int64_t g = h / (s->H / s->G);
    for (int64_t j = 0; j < s->M; j++) {
        score[j] = 0;
        for (int64_t d = 0; d < s->D; d++)
            score[j] += (double)at(&o[0], b, h, l, d) * (double)key_at(&o[4], &o[1], s->P, b, g, j, d);
        score[j] *= scale;
        score[j] = cap > 0 ? cap * tanh(score[j] / cap) : score[j];
        if (o[3].type == FLOAT)
            score[j] += (double)o[3].v[l * s->M + j];
        if (seen[j] && score[j] > max)
            max = score[j];
    }
    for (int64_t e = 0; e < s->E; e++)
        y[e] = 0;
    for (int64_t j = 0; j < s->M; j++)
        sum += score[j] = seen[j] ? exp(score[j] - max) : 0;
    for (int64_t j = 0; j < s->M; j++)
        for (int64_t e = 0; e < s->E && sum > 0; e++)
            y[e] += score[j] / sum * (double)key_at(&o[5], &o[2], s->P, b, g, j, e);
}

/* kind: bits 0 and 1 the mask (none, bool, floats), 2 causal, 3 a past, 4 valid keys, 5 a soft cap, 6 a window. */
static void attention(unsigned kind)
{
    static struct operand o[7];
    static double want[MAX_NUMBERS];
    struct shape s = {.B = 1 + below(2), .G = 1 + below(2), .L = 1 + below(5), .D = 1 + below(5), .E = 1 + below(5)};
    bool causal = kind & 4, with_past = kind & 8, valid = (kind & 16) && !with_past, cap = kind & 32;
    int64_t left = kind & 64 ? (int64_t)below(3) : -1, right = kind & 64 ? (int64_t)below(3) - 1 : -1;
    int64_t now = 1 + below(6);
    s.H = s.G * (1 + below(3)), s.P = with_past ? below(4) : 0, s.M = s.P + now;
    fill(&o[0], "q", 4, (int64_t[]){s.B, s.H, s.L, s.D});
    fill(&o[1], "k", 4, (int64_t[]){s.B, s.G, now, s.D});
    fill(&o[2], "v", 4, (int64_t[]){s.B, s.G, now, s.E});
    fill(&o[3], "m", 2, (int64_t[]){s.L, s.M});
    fill(&o[4], "pk", 4, (int64_t[]){s.B, s.G, s.P, s.D});
    fill(&o[5], "pv", 4, (int64_t[]){s.B, s.G, s.P, s.E});
    fill(&o[6], "n", 1, (int64_t[]){s.B});
    o[6].type = INT64;
    for (int64_t b = 0; b < s.B; b++)
        o[6].whole[b] = 1 + below((unsigned)s.M);
    o[3].type = (kind & 3) == 1 ? BOOL : (kind & 3) == 2 ? FLOAT : 0;
    for (int64_t i = 0; i < s.L * s.M; i++)
        o[3].flag[i] = below(4) != 0;
    struct pb a = onnx_attr_f("scale", 0.5f);
    onnx_attr_add(&a, onnx_attr_i("is_causal", causal));
    onnx_attr_add(&a, onnx_attr_i("left_window_size", left));
    onnx_attr_add(&a, onnx_attr_i("right_window_size", right));
    if (cap)
        onnx_attr_add(&a, onnx_attr_f("softcap", 0.75f));
    char names[32];
    const struct operand *in[7] = {&o[0], &o[1], &o[2]};
    int nin = 3;
    snprintf(names, sizeof names, "q k v %s %s %s", o[3].type ? "m" : "-", with_past ? "pk pv" : "- -",
             valid ? "n" : "-");
    if (o[3].type)
        in[nin++] = &o[3];
    if (with_past)
        in[nin++] = &o[4], in[nin++] = &o[5];
    if (valid)
        in[nin++] = &o[6];
    for (int64_t b = 0, n = 0; b < s.B; b++)
        for (int64_t h = 0; h < s.H; h++)
            for (int64_t l = 0; l < s.L; l++, n += s.E) {
                bool seen[64];
                int64_t place = l + (valid ? o[6].whole[b] - s.L : s.P);
                for (int64_t j = 0; j < s.M; j++)
                    seen[j] = (!causal || j <= place) && (left < 0 || j >= place - left) &&
                              (right < 0 || j <= place + right) && (!valid || j < o[6].whole[b]) &&
                              (o[3].type != BOOL || o[3].flag[l * s.M + j]);
                attention_row(&s, o, seen, 0.5, cap ? 0.75 : 0, b, h, l, want + n);
            }
    kl_tensor y[3];
    if (CHECK(run("Attention", a, nin, in, names, with_past ? 3 : 1, NULL, y)))
        if (!NEAR(y[0], s.B * s.H * s.L * s.E, want, 2e-5))
            printf("  attention kind %u: B %lld H %lld G %lld L %lld P %lld M %lld\n", kind, (long long)s.B,
                   (long long)s.H, (long long)s.G, (long long)s.L, (long long)s.P, (long long)s.M);
}

/* ---- RotaryEmbedding, RMSNormalization, SwiGLU ---- */

static void rotary(bool interleaved, bool positions)
{
    static struct operand o[4];
    static double want[MAX_NUMBERS];
    int64_t B = 1 + below(2), S = 1 + below(4), H = 1 + below(3), half = 1 + below(3), D = 2 * half + below(3);
    fill(&o[0], "x", 3, (int64_t[]){B, S, H * D});
    fill(&o[1], "c", positions ? 2 : 3, positions ? (int64_t[]){9, half} : (int64_t[]){B, S, half});
    fill(&o[2], "s", o[1].rank, o[1].dims);
    o[3] = (struct operand){.name = "p", .type = INT64, .rank = 2, .dims = {B, S}};
    for (int64_t i = 0; i < B * S; i++)
        o[3].whole[i] = below(9);
    struct pb a = onnx_attr_i("num_heads", H);
    onnx_attr_add(&a, onnx_attr_i("interleaved", interleaved));
    onnx_attr_add(&a, onnx_attr_i("rotary_embedding_dim", 2 * half));
    for (int64_t i = 0; i < B * S * H * D; i++) {
        int64_t token = i / (H * D), d = i % D, pair = interleaved ? d / 2 : d % half, start = i - d;
        bool second = interleaved ? d % 2 : d >= half;
        const float *c = &o[1].v[(positions ? o[3].whole[token] : token) * half];
        const float *sine = &o[2].v[(positions ? o[3].whole[token] : token) * half];
        double first = (double)o[0].v[start + (interleaved ? 2 * pair : pair)];
        double other = (double)o[0].v[start + (interleaved ? 2 * pair + 1 : pair + half)];
        want[i] = d >= 2 * half ? (double)o[0].v[i]
                  : second ? (double)sine[pair] * first + (double)c[pair] * other
                  : (double)c[pair] * first - (double)sine[pair] * other;
    }
    kl_tensor y;
    if (CHECK(run("RotaryEmbedding", a, 3 + positions, (const struct operand *[]){&o[0], &o[1], &o[2], &o[3]},
                  positions ? "x c s p" : "x c s", 1, NULL, &y)))
        NEAR(y, B * S * H * D, want, 1e-6);
}

static void norm_and_gate(void)
{
    static struct operand x, w, g;
    double want[60], gated[60];
    fill(&x, "x", 3, (int64_t[]){3, 4, 5});
    fill(&w, "w", 1, (int64_t[]){5});
    fill(&g, "g", 3, (int64_t[]){3, 4, 5});
    for (int i = 0; i < 60; i++) {
        double sum = 0;
        for (int k = i / 20 * 20; k < i / 20 * 20 + 20; k++)
            sum += (double)x.v[k] * (double)x.v[k];
        want[i] = (double)x.v[i] / sqrt(sum / 20 + (double)1e-5f) * (double)w.v[i % 5];
        gated[i] = (double)x.v[i] / (1 + exp(-1.5 * (double)x.v[i])) * (double)g.v[i];
    }
    kl_tensor y;
    const struct operand *const norm[] = {&x, &w}, *const gate[] = {&x, &g};
    if (CHECK(run("RMSNormalization", onnx_attr_i("axis", 1), 2, norm, "x w", 1, NULL, &y)))
        NEAR(y, 60, want, 1e-6); /* the weight is broadcast */
    if (CHECK(run("SwiGLU", onnx_attr_f("alpha", 1.5f), 2, gate, "x g", 1, NULL, &y)))
        NEAR(y, 60, gated, 1e-6);
}

/* ---- states ---- */

static void tensor_scatter(bool circular)
{
    static struct operand cache, update, start;
    double want[2 * 3 * 6 * 2];
    fill(&cache, "x", 4, (int64_t[]){2, 3, 6, 2});
    fill(&update, "u", 4, (int64_t[]){2, 3, 4, 2});
    start = (struct operand){.name = "i", .type = INT64, .rank = 1, .dims = {2}, .whole = {circular ? 5 : 2, 1}};
    for (int i = 0; i < 72; i++)
        want[i] = (double)cache.v[i];
    for (int b = 0; b < 2; b++)
        for (int h = 0; h < 3; h++)
            for (int s = 0; s < 4; s++)
                for (int d = 0; d < 2; d++)
                    want[((b * 3 + h) * 6 + (int)(start.whole[b] + s) % 6) * 2 + d] =
                        (double)update.v[((b * 3 + h) * 4 + s) * 2 + d];
    kl_tensor y;
    if (CHECK(run("TensorScatter", circular ? onnx_attr_s("mode", "circular") : onnx_none(), 3,
                  (const struct operand *[]){&cache, &update, &start}, "x u i", 1, NULL, &y)))
        NEAR(y, 72, want, 0);
}

/* The gated delta rule, step by step. */
static void linear_attention(void)
{
    static struct operand q, k, v, past, decay, beta;
    enum { B = 2, T = 5, H = 4, G = 2, D = 3, E = 2 };
    double S[G][D][E], want[B * T * H * E], last[B * G * D * E];
    fill(&q, "q", 3, (int64_t[]){B, T, H * D});
    fill(&k, "k", 3, (int64_t[]){B, T, G * D});
    fill(&v, "v", 3, (int64_t[]){B, T, G * E});
    fill(&past, "s", 4, (int64_t[]){B, G, D, E});
    fill(&decay, "d", 3, (int64_t[]){B, T, G});
    fill(&beta, "b", 3, (int64_t[]){B, T, G});
    for (int b = 0; b < B; b++) {
        for (int i = 0; i < G * D * E; i++)
            (&S[0][0][0])[i] = (double)past.v[b * G * D * E + i];
        for (int t = 0, row = b * T; t < T; t++, row++) {
            for (int g = 0; g < G; g++)
                for (int e = 0; e < E; e++) {
                    double keep = exp((double)decay.v[row * G + g]), known = 0;
                    for (int d = 0; d < D; d++)
                        known += (S[g][d][e] *= keep) * (double)k.v[(row * G + g) * D + d];
                    double change = (double)beta.v[row * G + g] * ((double)v.v[(row * G + g) * E + e] - known);
                    for (int d = 0; d < D; d++)
                        S[g][d][e] += change * (double)k.v[(row * G + g) * D + d];
                }
            for (int h = 0; h < H; h++)
                for (int e = 0; e < E; e++) {
                    double sum = 0;
                    for (int d = 0; d < D; d++)
                        sum += (double)q.v[(row * H + h) * D + d] * S[h / (H / G)][d][e];
                    want[(row * H + h) * E + e] = sum / sqrt((double)D);
                }
        }
        memcpy(last + b * G * D * E, S, sizeof S);
    }
    kl_tensor y[2];
    struct pb a = onnx_attr_i("q_num_heads", H);
    onnx_attr_add(&a, onnx_attr_i("kv_num_heads", G));
    if (CHECK(run("LinearAttention", a, 6, (const struct operand *[]){&q, &k, &v, &past, &decay, &beta}, "q k v s d b",
                  2, NULL, y))) {
        NEAR(y[0], B * T * H * E, want, 1e-5);
        NEAR(y[1], B * G * D * E, last, 1e-5);
    }
}

static void causal_conv(void)
{
    static struct operand x, w, b, past;
    enum { C = 3, L = 4, K = 3 };
    double want[2 * C * L], carried[2 * C * (K - 1)];
    fill(&x, "x", 3, (int64_t[]){2, C, L});
    fill(&w, "w", 3, (int64_t[]){C, 1, K});
    fill(&b, "b", 1, (int64_t[]){C});
    fill(&past, "p", 3, (int64_t[]){2, C, K - 1});
    for (int r = 0; r < 2 * C; r++)
        for (int l = 0; l < L + K - 1; l++) {
            double sum = (double)b.v[r % C];
            for (int t = 0; t < K && l < L; t++) {
                int from = l + t - (K - 1);
                sum += (double)w.v[r % C * K + t] *
                       (double)(from < 0 ? past.v[r * (K - 1) + from + K - 1] : x.v[r * L + from]);
            }
            if (l < L)
                want[r * L + l] = sum / (1 + exp(-sum));
            if (l >= L)
                carried[r * (K - 1) + l - L] = (double)x.v[r * L + l - (K - 1)];
        }
    kl_tensor y[2];
    if (CHECK(run("CausalConvWithState", onnx_attr_s("activation", "silu"), 4,
                  (const struct operand *[]){&x, &w, &b, &past}, "x w b p", 2, NULL, y))) {
        NEAR(y[0], 2 * C * L, want, 1e-6);
        NEAR(y[1], 2 * C * (K - 1), carried, 0);
    }
}

/* ---- small types ---- */

static void small_types(void)
{
    static struct operand x;
    kl_tensor y;
    static const float v[12] = {0, 0.25f, -0.75f, 1.25f, 2.5f, -3.5f, 5, 7, -100, 1.75f, NAN, 0.1f};
    fill(&x, "x", 1, (int64_t[]){12});
    memcpy(x.v, v, sizeof v);
    struct pb to = onnx_attr_i("to", F4E2M1);
    if (CHECK(run("Cast", to, 1, (const struct operand *[]){&x}, "x", 1, (int[]){F4E2M1}, &y)))
        NEAR_LIST(y, 0, 0, 0, -1, 1, 2, -4, 4, 6, -6, 2, 0, 0);
    if (CHECK(run("Cast", onnx_attr_i("to", INT2), 1, (const struct operand *[]){&x}, "x", 1, (int[]){INT2}, &y)))
        CHECK(kl_dtype_of(y) == KL_I8);
    static const float p[8] = {1, 1.1f, 3, 0x1p-127f, 0x1.8p-127f, 0, INFINITY, NAN};
    fill(&x, "x", 1, (int64_t[]){8});
    memcpy(x.v, p, sizeof p);
    if (CHECK(run("Cast", onnx_attr_i("to", F8E8M0), 1, (const struct operand *[]){&x}, "x", 1, (int[]){F8E8M0}, &y)))
        NEAR_LIST(y, 0, 1, 2, 4, 0x1p-127, 0x1p-126, 0x1p-127, 0x1p127, NAN);
    struct pb down = onnx_attr_i("to", F8E8M0);
    onnx_attr_add(&down, onnx_attr_s("round_mode", "down"));
    if (CHECK(run("Cast", down, 1, (const struct operand *[]){&x}, "x", 1, (int[]){F8E8M0}, &y)))
        NEAR_LIST(y, 0, 1, 1, 2, 0x1p-127, 0x1p-127, 0x1p-127, 0x1p127, NAN);
}

/* All codes of each element type as bits of u8, or of an unsigned integer of 2 or 4 bits, by BitCast. */
static void codes(int type, int bits)
{
    struct pb g = {0};
    uint8_t data[256];
    int64_t n = bits == 8 ? 256 : 1 << bits, bytes = n * bits / 8;
    for (int64_t i = 0; i < bytes; i++)
        data[i] = bits == 8 ? (uint8_t)i : bits == 4 ? (uint8_t)(2 * i | (2 * i + 1) << 4) : 0xe4; /* 0, 1, 2, 3 */
    onnx_node(&g, "BitCast", "c", "y", onnx_attr_i("to", bits == 8 ? UINT8 : bits == 4 ? 21 : UINT2));
    pb_text(&g, 2, "g");
    onnx_initializer(&g, "c", type, 1, &n, data, (size_t)bytes);
    onnx_io(&g, 12, "y", bits == 8 ? UINT8 : bits == 4 ? 21 : UINT2, 1, &n);
    struct pb model = onnx_model(&g, OPSET);
    bool ok = onnx_save(path, model.data, model.n);
    free(model.data);
    kl_model *m = ok ? kl_model_open(dev, path) : NULL;
    kl_tensor y;
    double want[256];
    for (int64_t i = 0; i < n; i++)
        want[i] = type == 17 && (i & 127) == 127 ? 127 : type == 19 && (i & 127) > 124 ? 127 : (double)i; /* NaN */
    if (CHECK(m && kl_model_call(m, 0, NULL, 1, &y) == KL_OK)) {
        double *got = values_of(y);
        for (int64_t i = 0; got && i < n; i++) /* there are several codes of NaN */
            if ((type == 19 && fmod(got[i], 128) > 124) || (type == 17 && fmod(got[i], 128) == 127))
                got[i] = 127;
        CHECK(got && !memcmp(got, want, (size_t)n * sizeof *got));
        free(got);
    }
    kl_model_close(m);
}

/* ---- what is refused ---- */

static void refused(const char *op, struct pb a, int nin, const struct operand *const *in, const char *names,
                    const char *says)
{
    kl_tensor y[4];
    kl_clear_error();
    CHECK(!run(op, a, nin, in, names, 1, NULL, y));
    CHECK(strstr(kl_last_error(), says) && strstr(kl_last_error(), op));
    if (!strstr(kl_last_error(), says))
        printf("  %s, not %s\n", kl_last_error(), says);
    kl_clear_error();
}

static void refusals(void)
{
    static struct operand q, k, x, w;
    fill(&q, "q", 4, (int64_t[]){1, 3, 2, 4});
    fill(&k, "k", 4, (int64_t[]){1, 2, 2, 4});
    fill(&x, "x", 3, (int64_t[]){2, 3, 10});
    fill(&w, "w", 3, (int64_t[]){2, 3, 2});
    const struct operand *const heads[] = {&q, &k, &k}, *const flat[] = {&x, &x, &x}, *const angles[] = {&x, &w, &w};
    refused("Attention", onnx_none(), 3, heads, "q k k", "3 heads of queries, 2 of keys, 2 of values");
    refused("Attention", onnx_attr_i("q_num_heads", 3), 3, flat, "x x x", "3 heads do not divide the last axis");
    refused("Attention", onnx_attr_i("qk_matmul_output_mode", 7), 3, (const struct operand *[]){&k, &k, &k}, "k k k",
            "qk_matmul_output_mode is 7");
    refused("RotaryEmbedding", onnx_attr_i("num_heads", 1), 3, angles, "x w w", "rotation of 10 of 10 numbers");
    refused("CausalConvWithState", onnx_none(), 2, (const struct operand *[]){&x, &w}, "x w", "not [channels, 1, k]");
    refused("LinearAttention", onnx_attr_i("q_num_heads", 2), 3, flat, "x x x", "2 heads of queries and 0 of keys");
    refused("BitCast", onnx_attr_i("to", UINT8), 1, flat, "x", "elements of 32 bits");
    refused("TensorScatter", onnx_attr_i("axis", 0), 2, flat, "x x", "axis 0 of a cache");
    refused("SwiGLU", onnx_none(), 2, angles, "x w", "differ in their shapes");
}

int main(int argc, char **argv)
{
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    dev = kl_device_named(argc > 1 ? argv[1] : "cpu");
    device_now = kl_device_name(dev);
    if (!CHECK(dev.id != 0))
        return 1;
    for (unsigned kind = 0; kind < 128; kind++)
        if ((kind & 3) != 3)
            attention(kind);
    for (unsigned i = 0; i < 8; i++)
        rotary(i & 1, i & 2);
    norm_and_gate();
    tensor_scatter(false);
    tensor_scatter(true);
    linear_attention();
    causal_conv();
    small_types();
    static const struct { int type, bits; } element[] = {
        {17, 8}, {19, 8}, {F8E8M0, 8}, {21, 4}, {22, 4}, {F4E2M1, 4}, {UINT2, 2}, {INT2, 2}};
    for (size_t i = 0; i < sizeof element / sizeof *element; i++)
        codes(element[i].type, element[i].bits);
    refusals();
    unlink(path);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
