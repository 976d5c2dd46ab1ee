/* Convolutions of bytes: ConvInteger, QLinearConv and Conv between DequantizeLinear and QuantizeLinear, with strides,
 * paddings, dilations, groups, zero points and symbolic batches: the numbers of the definition by plain loops, and the
 * gradient of the convolution of floats.
 *   api_model_conv_bytes [DEVICE [all]]    without `all`: every fourth combination */
#include "tests/formats/onnx_write.h"
#include "tests/onnx/model_test.h"

enum { BATCH = 2, C = 4, F = 18, H = 7, W = 10, KH = 3, KW = 2, UINT8 = 2, INT8 = 3, RESULTS = 4096 };
enum kind { INTEGER, QLINEAR, QDQ, KINDS };
static kl_device dev;
static char path[] = "/tmp/kiln-conv-XXXXXX";

struct conv {
    enum kind kind;
    bool x_signed, w_signed, filters;    /* filters: a scale, and zero point, for each of them */
    bool zero, computed;                 /* the weights have zero points; that of x is computed by the model */
    bool symbolic;                       /* the batch is a symbol */
    int64_t stride, dilation, pads[4];   /* low of both axes, high of both */
    int groups;
    int oh, ow;
};

static uint8_t X[BATCH * C * H * W], weights[F * C * KH * KW], x_zero = 7, y_zero = 11;
static float floats[BATCH * C * H * W], x_scale = 0.03125f, w_scale[F], y_scale = 0.75f, float_bias[F];
static int32_t bias[F];
static uint8_t w_zero[F];

static int x_value(const struct conv *c, int n, int ch, int i, int k)
{
    bool inside = i >= 0 && i < H && k >= 0 && k < W;
    uint8_t v = X[((n * C + ch) * H + (inside ? i : 0)) * W + (inside ? k : 0)];
    return inside ? (c->x_signed ? (int8_t)v : v) - x_zero : 0;
}

static int w_value(const struct conv *c, int f, int ch, int i, int k)
{
    uint8_t v = weights[((f * (C / c->groups) + ch) * KH + i) * KW + k];
    uint8_t zero = c->zero ? w_zero[c->filters ? f : 0] : 0;
    return (c->w_signed ? (int8_t)v : v) - (c->w_signed ? (int8_t)zero : zero);
}

/* The sum of products of result (n, f, i, k). */
static int sum_of(const struct conv *c, int n, int f, int i, int k)
{
    int each = C / c->groups, from = f / (F / c->groups) * each; /* channels of the filter's group */
    int sum = 0, top = (int)(i * c->stride - c->pads[0]), left = (int)(k * c->stride - c->pads[1]);
    for (int ch = 0; ch < each; ch++)
        for (int y = 0; y < KH; y++)
            for (int x = 0; x < KW; x++)
                sum += x_value(c, n, from + ch, top + y * (int)c->dilation, left + x * (int)c->dilation) *
                       w_value(c, f, ch, y, x);
    return sum;
}

static struct pb attributes(const struct conv *c)
{
    struct pb a = onnx_attr_list("pads", 4, c->pads);
    onnx_attr_add(&a, onnx_attr_list("strides", 2, (int64_t[]){c->stride, c->stride}));
    onnx_attr_add(&a, onnx_attr_i("group", c->groups));
    onnx_attr_add(&a, onnx_attr_list("dilations", 2, (int64_t[]){c->dilation, c->dilation}));
    return a;
}

static kl_model *load(const struct conv *c)
{
    struct pb g = {0};
    int xt = c->x_signed ? INT8 : UINT8, wt = c->w_signed ? INT8 : UINT8;
    int64_t one = c->filters ? F : 1, all = F;
    if (c->computed)
        onnx_node(&g, "Clip", "pz", "xz", onnx_none());
    if (c->kind == INTEGER)
        onnx_node(&g, "ConvInteger", "x w xz wz", "y", attributes(c));
    else if (c->kind == QLINEAR)
        onnx_node(&g, "QLinearConv", "x xs xz w ws wz ys yz b", "y", attributes(c));
    if (c->kind == QDQ) {
        struct pb axis = onnx_attr_i("axis", 0);
        onnx_node(&g, "QuantizeLinear", "x xs xz", "q", onnx_none());
        onnx_node(&g, "DequantizeLinear", "q xs xz", "d", onnx_none());
        onnx_node(&g, "DequantizeLinear", "w ws wz", "v", axis);
        onnx_node(&g, "Conv", "d v fb", "y", attributes(c));
        onnx_initializer(&g, "fb", FLOAT, 1, &all, float_bias, sizeof float_bias);
    }
    pb_text(&g, 2, "conv");
    static const uint8_t zeros[F];
    onnx_initializer(&g, "w", wt, 4, (int64_t[]){F, C / c->groups, KH, KW}, weights,
                     sizeof weights / (size_t)c->groups);
    onnx_initializer(&g, "xs", FLOAT, 0, NULL, &x_scale, sizeof x_scale);
    if (!c->computed)
        onnx_initializer(&g, "xz", xt, 0, NULL, &x_zero, 1);
    onnx_initializer(&g, "ws", FLOAT, c->filters, &one, w_scale, (size_t)one * sizeof *w_scale);
    onnx_initializer(&g, "wz", wt, c->filters, &one, c->zero ? w_zero : zeros, (size_t)one);
    if (c->kind == QLINEAR) {
        onnx_initializer(&g, "ys", FLOAT, 0, NULL, &y_scale, sizeof y_scale);
        onnx_initializer(&g, "yz", xt, 0, NULL, &y_zero, 1);
        onnx_initializer(&g, "b", INT32, 1, &all, bias, sizeof bias);
    }
    onnx_io(&g, 11, "x", c->kind == QDQ ? FLOAT : xt, 4,
            (int64_t[]){c->symbolic ? -1 : BATCH, C, H, W});
    if (c->computed)
        onnx_io(&g, 11, "pz", xt, 0, NULL);
    onnx_io(&g, 12, "y", c->kind == INTEGER ? INT32 : c->kind == QDQ ? FLOAT : xt, 4,
            (int64_t[]){c->symbolic ? -1 : BATCH, F, c->oh, c->ow});
    struct pb m = onnx_model(&g, 18);
    CHECK(onnx_save(path, m.data, m.n));
    free(m.data);
    return kl_model_open(dev, path);
}

/* The result that ONNX defines, of a sum. */
static double result_of(const struct conv *c, int sum, int f)
{
    float scale = w_scale[c->filters ? f : 0];
    if (c->kind == INTEGER)
        return sum;
    if (c->kind == QDQ)
        return (double)x_scale * (double)scale * sum + (double)float_bias[f];
    float v = (float)(sum + bias[f]) * (x_scale * scale);
    double low = c->x_signed ? -128 : 0, high = c->x_signed ? 127 : 255, q = nearbyint((double)(v / y_scale)) + y_zero;
    return q < low ? low : q > high ? high : q;
}

static double element(const struct conv *c, const void *y, int at)
{
    return c->kind == INTEGER ? ((const int32_t *)y)[at] : c->kind == QDQ ? (double)((const float *)y)[at]
           : c->x_signed ? ((const int8_t *)y)[at] : ((const uint8_t *)y)[at];
}

static void check_values(const struct conv *c, const void *y)
{
    int at = 0, wrong = 0;
    for (int n = 0; n < BATCH; n++)
        for (int f = 0; f < F; f++)
            for (int i = 0; i < c->oh; i++)
                for (int k = 0; k < c->ow; k++, at++) {
                    double want = result_of(c, sum_of(c, n, f, i, k), f);
                    wrong += fabs(element(c, y, at) - want) > (c->kind == QDQ ? 1e-5 * (1 + fabs(want)) : 0);
                }
    CHECK(wrong == 0);
}

/* Of the sum of all results. */
static void check_gradient(const struct conv *c, const float *g)
{
    static double want[BATCH * C * H * W];
    double worst = 0;
    int each = C / c->groups;
    memset(want, 0, sizeof want);
    for (int n = 0; n < BATCH; n++)
        for (int at = 0; at < F * c->oh * c->ow * each * KH * KW; at++) {
            int x = at % KW, y = at / KW % KH, ch = at / KW / KH % each, k = at / KW / KH / each % c->ow;
            int i = at / KW / KH / each / c->ow % c->oh, f = at / KW / KH / each / c->ow / c->oh;
            int channel = f / (F / c->groups) * each + ch;
            int row = (int)(i * c->stride - c->pads[0] + y * c->dilation);
            int column = (int)(k * c->stride - c->pads[1] + x * c->dilation);
            if (row >= 0 && row < H && column >= 0 && column < W)
                want[((n * C + channel) * H + row) * W + column] += w_value(c, f, ch, y, x) *
                                                              (double)w_scale[c->filters ? f : 0];
        }
    for (int i = 0; i < BATCH * C * H * W; i++)
        worst = fmax(worst, fabs(want[i] - (double)g[i]));
    CHECK(worst < 1e-4);
}

static void convolves(struct conv c)
{
    static float got[RESULTS], gradient[BATCH * C * H * W];
    int64_t dims[4] = {BATCH, C, H, W};
    c.oh = (int)((H + c.pads[0] + c.pads[2] - (KH - 1) * c.dilation - 1) / c.stride) + 1;
    c.ow = (int)((W + c.pads[1] + c.pads[3] - (KW - 1) * c.dilation - 1) / c.stride) + 1;
    kl_model *m = load(&c);
    for (int i = 0; i < BATCH * C * H * W; i++)
        floats[i] = (float)((c.x_signed ? (int8_t)X[i] : X[i]) - x_zero) * x_scale;
    kl_dtype type = c.kind == QDQ ? KL_F32 : c.x_signed ? KL_I8 : KL_U8;
    const void *data = c.kind == QDQ ? (const void *)floats : X;
    kl_tensor x = kl_input(dev, type, 4, dims, data), y, g = kl_none;
    kl_tensor in[2] = {x, c.computed ? kl_input(dev, c.x_signed ? KL_I8 : KL_U8, 0, NULL, &x_zero) : kl_none};
    for (int i = 0; i < 2; i++) {
        OK(kl_trace_begin("conv"));
        if (c.symbolic) {
            int64_t lengths[4] = {kl_symbol("n", 1, 5), C, H, W};
            in[0] = kl_input_symbolic(dev, type, 4, lengths, dims, data);
        }
        OK(kl_model_call(m, 1 + c.computed, in, 1, &y));
        g = c.kind == QDQ ? kl_keep(kl_grad(kl_sum_all(y), in[0])) : kl_none;
        kl_keep(y);
        OK(kl_trace_end());
        OK(kl_read(y, got, (size_t)kl_numel(y) * kl_dtype_size(kl_dtype_of(y))));
        check_values(&c, got);
        if (g.id) {
            OK(kl_read(g, gradient, sizeof gradient));
            check_gradient(&c, gradient);
            kl_release(g);
        }
        kl_release(y);
    }
    kl_release(x);
    kl_release(in[1]);
    kl_model_close(m);
}

int main(int argc, char **argv)
{
    int status;
    if (!model_test_begin(argc, argv, path, &dev, &status))
        return status;
    uint32_t random = 1;
    for (int i = 0; i < BATCH * C * H * W; i++)
        X[i] = (uint8_t)((random = random * 1664525 + 1013904223) >> 24);
    for (int i = 0; i < F * C * KH * KW; i++)
        weights[i] = (uint8_t)((random = random * 1664525 + 1013904223) >> 24);
    for (int f = 0; f < F; f++) {
        w_scale[f] = 0.001f * (float)(f + 1);
        bias[f] = 100 * f - 300;
        w_zero[f] = (uint8_t)(f * 17 + 3);
        float_bias[f] = 0.25f * (float)f;
    }
    static const struct conv windows[] = {
        {.stride = 1, .dilation = 1}, {.stride = 1, .dilation = 1, .pads = {1, 1, 1, 0}},
        {.stride = 2, .dilation = 1, .pads = {1, 2, 0, 1}}, {.stride = 3, .dilation = 2, .pads = {2, 0, 3, 2}},
        {.stride = 1, .dilation = 1, .pads = {-1, 2, 1, -2}},
        {.stride = 2, .dilation = 1, .pads = {1, 0, 2, 1}, .groups = 2},
    };
    for (int i = 0; i < (int)(sizeof windows / sizeof *windows) * KINDS * 16; i++) {
        struct conv c = windows[i / KINDS / 16];
        if (argc < 3 && (i / 16 + __builtin_popcount((unsigned)i % 16)) % 4)
            continue;
        c.kind = (enum kind)(i / 16 % KINDS);
        c.groups = c.groups ? c.groups : 1;
        c.symbolic = i % 5 < 2;
        c.zero = i >> 3 & 1;
        c.computed = (c.zero ^ c.filters) && c.kind != QDQ;
        c.x_signed = i & 1;
        c.w_signed = i >> 1 & 1;
        c.filters = i >> 2 & 1;
        convolves(c);
    }
    unlink(path);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
