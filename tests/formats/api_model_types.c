/* ONNX models of opsets 18 to 22, written here: elements of 4 bits and 8-bit floats in files, casts and quantization
 * to them, blocks of scales, and operators that those opsets brought, beside plain loops. */
#include "tests/formats/onnx_write.h"
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <unistd.h>

enum { UINT8 = 2, INT8 = 3, UINT16 = 4, FLOAT16 = 10, F8E4M3FN = 17, F8E5M2 = 19, UINT4 = 21, INT4 = 22, OPSET = 21 };
static kl_device dev;
static char path[] = "/tmp/kiln-types-XXXXXX";

static void input_of(struct pb *g, const char *name, int type, int rank, const int64_t *dims)
{
    onnx_io(g, 11, name, type, rank, dims);
}

/* The results of a graph, called in a trace. */
static bool call(struct pb *g, int opset, int nin, const kl_tensor *in, int nout, kl_tensor *out)
{
    struct pb model = onnx_model(g, opset);
    bool ok = onnx_save(path, model.data, model.n);
    free(model.data);
    kl_model *m = ok ? kl_model_open(dev, path) : NULL;
    kl_trace_begin("model");
    ok = m && kl_model_call(m, (uint32_t)nin, in, (uint32_t)nout, out) == KL_OK;
    for (int i = 0; ok && i < nout; i++)
        kl_keep(out[i]);
    ok &= kl_trace_end() == KL_OK;
    kl_model_close(m);
    return ok;
}

static kl_tensor f32(int rank, const int64_t *dims, const float *v) { return kl_input(dev, KL_F32, rank, dims, v); }

/* Elements of 4 bits, packed in raw bytes and in int32_data, and of 8-bit floats, as initializers that are added up. */
static void elements(void)
{
    static const uint8_t four[2] = {0x8f, 0x07}, eight[3] = {0x7e, 0x81, 0x38}, e5m2[3] = {0x3c, 0xbc, 0x01};
    struct pb g = {0}, cast = onnx_attr_i("to", FLOAT), t = {0};
    kl_tensor y[4];
    static const char *const name[4] = {"i", "u", "e", "f"};
    for (int i = 0; i < 4; i++) {
        char out[2] = {name[i][0] - 32, 0};
        struct pb a = {0};
        pb_bytes(&a, cast.data, cast.n);
        onnx_node(&g, "Cast", name[i], out, a);
        onnx_io(&g, 12, out, FLOAT, 1, (int64_t[]){3});
    }
    free(cast.data);
    pb_text(&g, 2, "elements");
    onnx_initializer(&g, "i", INT4, 1, (int64_t[]){3}, four, sizeof four);
    pb_int(&t, 1, 3);
    pb_int(&t, 2, UINT4);
    pb_int(&t, 5, 0x8f);
    pb_int(&t, 5, 0x07);
    pb_text(&t, 8, "u");
    pb_message(&g, 5, &t);
    onnx_initializer(&g, "e", F8E4M3FN, 1, (int64_t[]){3}, eight, sizeof eight);
    onnx_initializer(&g, "f", F8E5M2, 1, (int64_t[]){3}, e5m2, sizeof e5m2);
    if (CHECK(call(&g, OPSET, 0, NULL, 4, y))) {
        NEAR_LIST(y[0], 0, -1, -8, 7);
        NEAR_LIST(y[1], 0, 15, 8, 7);
        NEAR_LIST(y[2], 0, 448, -0x1p-9, 1);
        NEAR_LIST(y[3], 0, 1, -1, 0x1p-16);
    }
    struct pb bad = {0};
    kl_clear_error();
    onnx_node(&bad, "Identity", "i", "y", onnx_none());
    pb_text(&bad, 2, "bad");
    onnx_initializer(&bad, "i", INT4, 1, (int64_t[]){5}, four, sizeof four);
    onnx_io(&bad, 12, "y", INT4, 1, (int64_t[]){5});
    CHECK(!call(&bad, OPSET, 0, NULL, 1, y));
    CHECK(strstr(kl_last_error(), "'i' has 2 bytes of data where its shape has 5"));
}

static void casts(void)
{
    static const float x[6] = {-9.5f, 7.5f, 2.5f, 500, -1e6f, 0.3f};
    struct pb g = {0}, no = onnx_attr_i("to", F8E4M3FN), four = {0};
    kl_tensor y[4], in = f32(1, (int64_t[]){6}, x);
    onnx_attr_add(&no, onnx_attr_i("saturate", 0));
    onnx_node(&g, "Cast", "x", "A", onnx_attr_i("to", INT4));
    onnx_node(&g, "Cast", "x", "B", onnx_attr_i("to", F8E4M3FN));
    onnx_node(&g, "Cast", "x", "C", no);
    onnx_node(&g, "CastLike", "x A", "D", four); /* the element type of a result is known */
    pb_text(&g, 2, "casts");
    input_of(&g, "x", FLOAT, 1, (int64_t[]){6});
    onnx_io(&g, 12, "A", INT4, 1, (int64_t[]){6});
    onnx_io(&g, 12, "B", F8E4M3FN, 1, (int64_t[]){6});
    onnx_io(&g, 12, "C", F8E4M3FN, 1, (int64_t[]){6});
    onnx_io(&g, 12, "D", INT4, 1, (int64_t[]){6});
    if (CHECK(call(&g, OPSET, 1, &in, 4, y))) {
        CHECK(kl_dtype_of(y[0]) == KL_I8 && kl_dtype_of(y[1]) == KL_F16);
        NEAR_LIST(y[0], 0, 7, 7, 2, 4, 0, 0); /* the low 4 bits of -9, 7, 2, 500, -1000000 and 0 */
        NEAR_LIST(y[1], 0, -10, 7.5, 2.5, 448, -448, 0.3125);
        NEAR_LIST(y[2], 0, -10, 7.5, 2.5, NAN, NAN, 0.3125);
        NEAR_LIST(y[3], 0, 7, 7, 2, 4, 0, 0);
    }
    kl_release(in);
}

/* x [2, 5] by blocks of 2 along axis 1, the last of one element. */
static void blocks(void)
{
    static const float x[10] = {1, 2, 3, 4, 5, -6, -7, 80, -90, 10}, scale[6] = {1, 2, 0.5f, 3, 1, 2};
    static const uint16_t zero[6] = {10, 20, 30, 5, 100, 0};
    struct pb g = {0}, q = onnx_attr_i("block_size", 2), d = onnx_attr_i("block_size", 2);
    kl_tensor y[2], in = f32(2, (int64_t[]){2, 5}, x);
    onnx_attr_add(&q, onnx_attr_i("axis", 1));
    onnx_attr_add(&d, onnx_attr_i("axis", -1));
    onnx_node(&g, "QuantizeLinear", "x s z", "q", q);
    onnx_node(&g, "DequantizeLinear", "q s z", "y", d);
    pb_text(&g, 2, "blocks");
    onnx_initializer(&g, "s", FLOAT, 2, (int64_t[]){2, 3}, scale, sizeof scale);
    onnx_initializer(&g, "z", UINT16, 2, (int64_t[]){2, 3}, zero, sizeof zero);
    input_of(&g, "x", FLOAT, 2, (int64_t[]){2, 5});
    onnx_io(&g, 12, "q", UINT16, 2, (int64_t[]){2, 5});
    onnx_io(&g, 12, "y", FLOAT, 2, (int64_t[]){2, 5});
    double wq[10], wy[10];
    for (int i = 0; i < 10; i++) {
        int b = i / 5 * 3 + i % 5 / 2;
        wq[i] = fmax(rint((double)x[i] / (double)scale[b]) + zero[b], 0);
        wy[i] = (wq[i] - zero[b]) * (double)scale[b];
    }
    if (CHECK(call(&g, OPSET, 1, &in, 2, y))) {
        CHECK(kl_dtype_of(y[0]) == KL_U16);
        NEAR(y[0], 10, wq, 0);
        NEAR(y[1], 10, wy, 0);
    }
    struct pb bad = {0}, three = onnx_attr_i("block_size", 3);
    kl_clear_error();
    onnx_node(&bad, "QuantizeLinear", "x s", "q", three);
    pb_text(&bad, 2, "bad");
    onnx_initializer(&bad, "s", FLOAT, 2, (int64_t[]){2, 3}, scale, sizeof scale);
    input_of(&bad, "x", FLOAT, 2, (int64_t[]){2, 5});
    onnx_io(&bad, 12, "q", UINT8, 2, (int64_t[]){2, 5});
    CHECK(!call(&bad, OPSET, 1, &in, 1, y) && strstr(kl_last_error(), "operand 1 does not fit blocks of 3 elements"));
    kl_release(in);
}

/* Images of 5 x 4 from windows of 2 x 3, dilated, padded, with strides. */
static void columns_to_image(void)
{
    enum { H = 5, W = 4, KH = 2, KW = 3, OH = 3, OW = 4, C = 2 };
    static const int64_t stride[2] = {2, 1}, dilation[2] = {2, 1}, pads[4] = {1, 1, 1, 1}, image[2] = {H, W},
                         block[2] = {KH, KW};
    float x[C * KH * KW * OH * OW];
    double want[C * H * W] = {0};
    for (int i = 0; i < C * KH * KW * OH * OW; i++)
        x[i] = (float)(i % 17) - 5;
    for (int c = 0; c < C; c++)
        for (int k = 0; k < KH * KW; k++)
            for (int o = 0; o < OH * OW; o++) {
                int h = o / OW * 2 - 1 + k / KW * 2, w = o % OW - 1 + k % KW;
                if (h >= 0 && h < H && w >= 0 && w < W)
                    want[(c * H + h) * W + w] += (double)x[(c * KH * KW + k) * OH * OW + o];
            }
    struct pb g = {0}, a = onnx_attr_list("strides", 2, stride);
    kl_tensor y, in = f32(3, (int64_t[]){1, C * KH * KW, OH * OW}, x);
    onnx_attr_add(&a, onnx_attr_list("dilations", 2, dilation));
    onnx_attr_add(&a, onnx_attr_list("pads", 4, pads));
    onnx_node(&g, "Col2Im", "x image block", "y", a);
    pb_text(&g, 2, "columns");
    onnx_initializer(&g, "image", INT64, 1, (int64_t[]){2}, image, sizeof image);
    onnx_initializer(&g, "block", INT64, 1, (int64_t[]){2}, block, sizeof block);
    input_of(&g, "x", FLOAT, 3, (int64_t[]){1, C * KH * KW, OH * OW});
    onnx_io(&g, 12, "y", FLOAT, 4, (int64_t[]){1, C, H, W});
    if (CHECK(call(&g, 18, 1, &in, 1, &y)))
        NEAR(y, C * H * W, want, 0);
    kl_release(in);
}

/* With offsets of a whole element down, a deformable convolution is one of the image moved up; the mask halves it. */
static void deformed(void)
{
    enum { C = 2, H = 5, W = 4, M = 3 };
    float x[C * H * W], w[M * C * 9], offset[18 * H * W], mask[9 * H * W];
    for (int i = 0; i < C * H * W; i++)
        x[i] = (float)sin(i);
    for (int i = 0; i < M * C * 9; i++)
        w[i] = (float)cos(2.5 * i);
    for (int i = 0; i < 18 * H * W; i++)
        offset[i] = i / (H * W) % 2 ? 0 : 1;
    for (int i = 0; i < 9 * H * W; i++)
        mask[i] = 0.5f;
    struct pb g = {0}, a = onnx_attr_list("pads", 4, (int64_t[]){1, 1, 1, 1});
    struct pb b = onnx_attr_list("pads", 4, (int64_t[]){0, 1, 2, 1});
    onnx_node(&g, "DeformConv", "x w offset - mask", "y", a);
    onnx_node(&g, "Conv", "x w", "z", b); /* the padding moved by a row */
    pb_text(&g, 2, "deformed");
    onnx_initializer(&g, "w", FLOAT, 4, (int64_t[]){M, C, 3, 3}, w, sizeof w);
    onnx_initializer(&g, "offset", FLOAT, 4, (int64_t[]){1, 18, H, W}, offset, sizeof offset);
    onnx_initializer(&g, "mask", FLOAT, 4, (int64_t[]){1, 9, H, W}, mask, sizeof mask);
    input_of(&g, "x", FLOAT, 4, (int64_t[]){1, C, H, W});
    onnx_io(&g, 12, "y", FLOAT, 4, (int64_t[]){1, M, H, W});
    onnx_io(&g, 12, "z", FLOAT, 4, (int64_t[]){1, M, H, W});
    kl_tensor y[2], in = f32(4, (int64_t[]){1, C, H, W}, x);
    if (CHECK(call(&g, OPSET, 1, &in, 2, y))) {
        double *z = values_of(y[1]);
        for (int i = 0; z && i < M * H * W; i++)
            z[i] /= 2;
        if (CHECK(z != NULL))
            NEAR(y[0], M * H * W, z, 1e-6);
        free(z);
    }
    kl_release(in);
}

/* The identity's grid samples an image unchanged; the middle of [1, 2, 5] is cropped and padded; a determinant. */
static void others(void)
{
    static const float theta[6] = {1, 0, 0, 0, 1, 0}, image[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    static const int64_t size[4] = {1, 1, 3, 4}, lengths[2] = {5, 2};
    struct pb g = {0};
    kl_tensor y[3], in = f32(4, (int64_t[]){1, 1, 3, 4}, image);
    onnx_node(&g, "AffineGrid", "theta size", "grid", onnx_none());
    onnx_node(&g, "GridSample", "x grid", "y", onnx_none());
    onnx_node(&g, "CenterCropPad", "x lengths", "c", onnx_attr_list("axes", 2, (int64_t[]){2, -1}));
    onnx_node(&g, "Det", "m", "d", onnx_none());
    pb_text(&g, 2, "others");
    onnx_initializer(&g, "theta", FLOAT, 3, (int64_t[]){1, 2, 3}, theta, sizeof theta);
    onnx_initializer(&g, "size", INT64, 1, (int64_t[]){4}, size, sizeof size);
    onnx_initializer(&g, "lengths", INT64, 1, (int64_t[]){2}, lengths, sizeof lengths);
    onnx_initializer(&g, "m", FLOAT, 2, (int64_t[]){2, 2}, image, 4 * sizeof *image);
    input_of(&g, "x", FLOAT, 4, (int64_t[]){1, 1, 3, 4});
    onnx_io(&g, 12, "y", FLOAT, 4, (int64_t[]){1, 1, 3, 4});
    onnx_io(&g, 12, "c", FLOAT, 4, (int64_t[]){1, 1, 5, 2});
    onnx_io(&g, 12, "d", FLOAT, 0, NULL);
    if (CHECK(call(&g, 20, 1, &in, 3, y))) {
        NEAR_LIST(y[0], 1e-6, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12);
        NEAR_LIST(y[1], 0, 0, 0, 2, 3, 6, 7, 10, 11, 0, 0);
        NEAR_LIST(y[2], 1e-6, -2);
    }
    kl_release(in);
}

/* The last window of ceil_mode reaches beyond the padded operand; a vector of zeros is normalized; a real signal comes
 * from half of its spectrum. */
static void edges(void)
{
    static const float x[4] = {1, 2, 3, 4}, vectors[4] = {3, 0, 4, 0}, spectrum[6] = {10, 0, -2, 2, -2, 0};
    struct pb g = {0}, a = onnx_attr_list("pads", 2, (int64_t[]){1, 1}), b = onnx_attr_i("inverse", 1);
    onnx_attr_add(&a, onnx_attr_list("kernel_shape", 1, (int64_t[]){3}));
    onnx_attr_add(&a, onnx_attr_list("strides", 1, (int64_t[]){2}));
    onnx_attr_add(&a, onnx_attr_i("ceil_mode", 1));
    onnx_attr_add(&a, onnx_attr_i("count_include_pad", 1));
    onnx_attr_add(&b, onnx_attr_i("onesided", 1));
    onnx_node(&g, "AveragePool", "x", "p", a);
    onnx_node(&g, "LpNormalization", "v", "n", onnx_attr_i("axis", 0));
    onnx_node(&g, "DFT", "s", "d", b);
    pb_text(&g, 2, "edges");
    onnx_initializer(&g, "v", FLOAT, 2, (int64_t[]){2, 2}, vectors, sizeof vectors);
    onnx_initializer(&g, "s", FLOAT, 3, (int64_t[]){1, 3, 2}, spectrum, sizeof spectrum);
    input_of(&g, "x", FLOAT, 3, (int64_t[]){1, 1, 4});
    onnx_io(&g, 12, "p", FLOAT, 3, (int64_t[]){1, 1, 3});
    onnx_io(&g, 12, "n", FLOAT, 2, (int64_t[]){2, 2});
    onnx_io(&g, 12, "d", FLOAT, 3, (int64_t[]){1, 4, 1});
    kl_tensor y[3], in = f32(3, (int64_t[]){1, 1, 4}, x);
    if (CHECK(call(&g, 20, 1, &in, 3, y))) {
        NEAR_LIST(y[0], 1e-6, 1, 3, 2);
        NEAR_LIST(y[1], 1e-6, 0.6, 0, 0.8, 0);
        NEAR_LIST(y[2], 1e-5, 1, 2, 3, 4);
    }
    kl_release(in);
}

static void test(kl_device d)
{
    dev = d;
    kl_scope_begin();
    elements();
    casts();
    blocks();
    columns_to_image();
    deformed();
    others();
    edges();
    OK(kl_scope_end());
}

int main(void)
{
    int fd = mkstemp(path), r;
    if (fd < 0)
        return 1;
    close(fd);
    r = on_devices(test);
    unlink(path);
    return r;
}
