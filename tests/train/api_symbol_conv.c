/* Convolutions and pools of a symbolic number of images: the training step is one program, and gives the bits of
 * kl_input with these shapes; also for images of symbolic height and width. */
#include "tests/support/api_symbols.h"

enum { MAX_COUNT = 21, SIDE = 10, FIRST = 6, SECOND = 9, CLASSES = 4, LEFT = SECOND * 2 * 2 };

static float images[MAX_COUNT * SIDE * SIDE];
static int32_t labels[MAX_COUNT];

struct net { kl_tensor p[6]; };

static struct net make_net(kl_device dev)
{
    return (struct net){{kl_randn(dev, KL_F32, DIMS(FIRST, 1, 3, 3), 1), kl_zeros(dev, KL_F32, DIMS(FIRST)),
                         kl_randn(dev, KL_F32, DIMS(SECOND, FIRST, 3, 3), 2), kl_zeros(dev, KL_F32, DIMS(SECOND)),
                         kl_randn(dev, KL_F32, DIMS(LEFT, CLASSES), 3), kl_zeros(dev, KL_F32, DIMS(CLASSES))}};
}

static kl_tensor image_input(kl_device dev, int64_t n, int64_t count)
{
    int64_t dims[4] = {count, 1, SIDE, SIDE}, lengths[4] = {n, 1, SIDE, SIDE};
    return n ? kl_input_symbolic(dev, KL_F32, 4, lengths, dims, images) : kl_input(dev, KL_F32, 4, dims, images);
}

static kl_status train(kl_device dev, struct net *net, int64_t n, int64_t count, float *loss)
{
    const int64_t one[2] = {1, 1}, two[2] = {2, 2};
    kl_trace_begin(n ? "symbolic" : "fixed");
    kl_tensor x = image_input(dev, n, count);
    kl_tensor y = n ? kl_input_symbolic(dev, KL_I32, 1, &n, &count, labels) : kl_input(dev, KL_I32, 1, &count, labels);
    x = kl_relu(kl_conv(x, net->p[0], net->p[1], NULL, one, one, NULL, 1));
    x = kl_max_pool(x, 2, two, NULL, NULL, NULL, NULL);
    x = kl_relu(kl_conv(x, net->p[2], net->p[3], NULL, one, one, NULL, 1));
    x = kl_avg_pool(x, 2, two, two, NULL, NULL, NULL);
    x = kl_linear(kl_reshape(x, 2, (int64_t[]){-1, LEFT}), net->p[4], net->p[5]);
    kl_tensor l = kl_keep(kl_cross_entropy(x, y));
    for (int i = 0; i < 6; i++)
        kl_assign(net->p[i], kl_sub(net->p[i], kl_mul_scalar(kl_grad(l, net->p[i]), 0.01)));
    kl_status status = kl_trace_end();
    if (status == KL_OK)
        *loss = kl_item_f32(l);
    kl_release(l);
    return status;
}

static void test_training(kl_device dev)
{
    static const int64_t counts[] = {16, 16, 5, 1, MAX_COUNT, 2, 16};
    int64_t n = kl_symbol("n", 1, MAX_COUNT);
    struct net a = make_net(dev), b = make_net(dev);
    bool whole = !strcmp(kl_device_name(dev), "cpu") && kl_counter("compiles") > 0;
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        float one = 0, two = 1, w1[SECOND * FIRST * 9], w2[SECOND * FIRST * 9];
        int64_t graphs = kl_counter("graphs_built"), variants = kl_counter("variants");
        OK(train(dev, &a, n, counts[i], &one));
        if (i && whole)
            CHECK(kl_counter("graphs_built") == graphs && kl_counter("variants") == variants);
        OK(train(dev, &b, 0, counts[i], &two));
        CHECK(!memcmp(&one, &two, sizeof one));
        for (int k = 0; k < 6; k += 2) {
            size_t bytes = (size_t)kl_numel(a.p[k]) * sizeof *w1;
            OK(kl_read(a.p[k], w1, bytes));
            OK(kl_read(b.p[k], w2, bytes));
            CHECK(!memcmp(w1, w2, bytes));
        }
    }
    for (int k = 0; k < 6; k++)
        kl_release(a.p[k]), kl_release(b.p[k]);
}

enum { KINDS = 3, WIDE = 30 };

/* Functions of x [2, 3, width] or, the last, of [2, 3, 1, width]. */
static kl_tensor windows(int kind, kl_tensor x, kl_tensor w)
{
    static const int64_t two = 2, three = 3, one = 1, ones[2] = {1, 1}, last[2] = {1, 3};
    if (kind == 0)
        return kl_conv(x, w, kl_none, NULL, &one, &one, &two, 1);
    if (kind == 1)
        return kl_conv_transpose(x, w, kl_none, &three, &one, NULL, NULL, 1);
    return kl_avg_pool(kl_unsqueeze(x, 2), 2, last, ones, NULL, NULL, NULL);
}

/* Along a symbolic axis: one program for all values, with the same bits. */
static void test_width(kl_device dev)
{
    int64_t n = kl_symbol("width", 4, WIDE);
    kl_tensor w = kl_randn(dev, KL_F32, DIMS(3, 3, 3), 7);
    int64_t variants = kl_counter("variants");
    for (int kind = 0; kind < KINDS; kind++)
        for (int64_t width = 4; width <= WIDE; width += 13) {
            static float got[2][2 * 3 * 4 * WIDE];
            int64_t dims[3] = {2, 3, width}, lengths[3] = {2, 3, n}, count[2];
            for (int symbolic = 0; symbolic < 2; symbolic++) {
                kl_trace_begin("width");
                kl_tensor x = symbolic ? kl_input_symbolic(dev, KL_F32, 3, lengths, dims, images)
                                       : kl_input(dev, KL_F32, 3, dims, images);
                kl_tensor y = kl_keep(windows(kind, x, w));
                OK(kl_trace_end());
                count[symbolic] = kl_numel(y);
                OK(kl_read(y, got[symbolic], (size_t)count[symbolic] * sizeof **got));
                kl_release(y);
            }
            CHECK(count[0] == count[1] && !memcmp(got[0], got[1], (size_t)count[0] * sizeof **got));
        }
    CHECK(!whole_programs(dev) || kl_counter("variants") == variants);
    kl_release(w);
}

/* A step of a net without a layer that has a size: of images of any number, height and width.  Without biases, whose
 * gradients are sums in an order that depends on the size of an image. */
static void train_sides(kl_device dev, kl_tensor *p, const int64_t *lengths, const int64_t *dims)
{
    const int64_t one[2] = {1, 1}, two[2] = {2, 2};
    kl_trace_begin(lengths ? "symbolic" : "fixed");
    kl_tensor x = lengths ? kl_input_symbolic(dev, KL_F32, 4, lengths, dims, images)
                          : kl_input(dev, KL_F32, 4, dims, images);
    x = kl_relu(kl_conv(x, p[0], kl_none, NULL, one, one, NULL, 1));
    x = kl_conv(kl_max_pool(x, 2, two, one, NULL, NULL, NULL), p[2], kl_none, NULL, one, one, NULL, 1);
    kl_tensor l = kl_mean(kl_mul(x, x), 0, NULL, false);
    for (int i = 0; i < 4; i += 2)
        kl_assign(p[i], kl_sub(p[i], kl_mul_scalar(kl_grad(l, p[i]), 0.01)));
    OK(kl_trace_end());
}

static void test_sides(kl_device dev)
{
    static const int64_t sizes[][4] = {{2, 1, 6, 7}, {3, 1, 9, 30}, {2, 1, 14, 5}, {5, 1, 14, 30}};
    int64_t lengths[4] = {kl_symbol("images", 2, 5), 1, kl_symbol("height", 6, 14), kl_symbol("width", 4, WIDE)};
    struct net a = make_net(dev), b = make_net(dev);
    int64_t graphs = 0, variants = kl_counter("variants");
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        graphs = kl_counter("graphs_built");
        train_sides(dev, a.p, lengths, sizes[i]);
        CHECK(!whole_programs(dev) || !i || kl_counter("graphs_built") == graphs);
        train_sides(dev, b.p, NULL, sizes[i]);
        for (int k = 0; k < 4; k += 2)
            same_bits(a.p[k], b.p[k]);
    }
    CHECK(!whole_programs(dev) || kl_counter("variants") == variants);
    for (int k = 0; k < 6; k++)
        kl_release(a.p[k]), kl_release(b.p[k]);
}

enum { GROUPS = 3 };

/* The gradients of a convolution in groups, of images and weights. */
static void grouped_gradients(kl_device dev, kl_tensor w, int64_t n, int64_t count, int64_t stride, kl_tensor *out)
{
    const int64_t strides[2] = {stride, stride}, one[2] = {1, 1};
    int64_t dims[4] = {count, GROUPS, SIDE, 7}, lengths[4] = {n, GROUPS, SIDE, 7};
    kl_trace_begin(n ? "symbolic" : "fixed");
    kl_tensor x = n ? kl_input_symbolic(dev, KL_F32, 4, lengths, dims, images) : kl_input(dev, KL_F32, 4, dims, images);
    kl_tensor y = kl_conv(x, w, kl_none, strides, one, one, NULL, GROUPS), l = kl_sum_all(kl_mul(y, y));
    out[0] = kl_keep(kl_grad(l, x));
    out[1] = kl_keep(kl_grad(l, w));
    OK(kl_trace_end());
}

/* One program for all numbers of images, with the same bits. */
static void test_groups(kl_device dev)
{
    static const int64_t counts[] = {6, 1, 9, 6};
    int64_t n = kl_symbol("n", 1, MAX_COUNT), variants = kl_counter("variants");
    kl_tensor w = kl_randn(dev, KL_F32, DIMS(2 * GROUPS, 1, 3, 3), 5), a[2], b[2];
    for (int64_t stride = 1; stride < 3; stride++)
        for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
            grouped_gradients(dev, w, n, counts[i], stride, a);
            grouped_gradients(dev, w, 0, counts[i], stride, b);
            for (int k = 0; k < 2; k++) {
                same_bits(a[k], b[k]);
                kl_release(a[k]), kl_release(b[k]);
            }
        }
    CHECK(!whole_programs(dev) || kl_counter("variants") == variants);
    kl_release(w);
}

enum { SEPARABLE = 9, WIDTH = 4, OUT = 6 };

/* A step of a net of separable convolutions: each channel by itself, then all of a position; with both norms. */
static kl_status train_separable(kl_device dev, kl_tensor *p, int64_t n, int64_t count, float *loss)
{
    const int64_t one[2] = {1, 1}, two[2] = {2, 2};
    const int sides[2] = {2, 3};
    kl_trace_begin(n ? "symbolic" : "fixed");
    kl_tensor x = image_input(dev, n, count), y = n ? kl_input_symbolic(dev, KL_I32, 1, &n, &count, labels)
                                                    : kl_input(dev, KL_I32, 1, &count, labels);
    x = kl_conv(x, p[0], kl_none, NULL, one, one, NULL, 1);
    x = kl_relu(kl_batch_norm(x, p[1], p[2], kl_none, kl_none, true, 0.1, 1e-5));
    x = kl_conv(x, p[3], kl_none, two, one, one, NULL, WIDTH);
    x = kl_relu(kl_group_norm(x, 1, p[4], p[5], 1e-5));
    x = kl_conv(x, p[6], p[7], NULL, NULL, NULL, NULL, 1);
    kl_tensor l = kl_keep(kl_cross_entropy(kl_linear(kl_mean(x, 2, sides, false), p[8], kl_none), y));
    for (int i = 0; i < SEPARABLE; i++)
        kl_assign(p[i], kl_sub(p[i], kl_mul_scalar(kl_grad(l, p[i]), 0.1)));
    kl_status status = kl_trace_end();
    if (status == KL_OK)
        *loss = kl_item_f32(l);
    kl_release(l);
    return status;
}

static void make_separable(kl_device dev, kl_tensor *p)
{
    p[0] = kl_randn(dev, KL_F32, DIMS(WIDTH, 1, 3, 3), 1);
    p[3] = kl_randn(dev, KL_F32, DIMS(WIDTH, 1, 3, 3), 2);
    p[6] = kl_randn(dev, KL_F32, DIMS(OUT, WIDTH, 1, 1), 3);
    p[7] = kl_zeros(dev, KL_F32, DIMS(OUT));
    p[8] = kl_randn(dev, KL_F32, DIMS(OUT, CLASSES), 4);
    for (int i = 1; i < 6; i += 3) {
        p[i] = kl_ones(dev, KL_F32, DIMS(WIDTH));
        p[i + 1] = kl_zeros(dev, KL_F32, DIMS(WIDTH));
    }
}

static void test_separable(kl_device dev)
{
    static const int64_t counts[] = {8, 1, MAX_COUNT, 3, 8};
    int64_t n = kl_symbol("n", 1, MAX_COUNT), variants = kl_counter("variants");
    kl_tensor a[SEPARABLE], b[SEPARABLE];
    make_separable(dev, a);
    make_separable(dev, b);
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        float one = 0, two = 1;
        int64_t graphs = kl_counter("graphs_built");
        OK(train_separable(dev, a, n, counts[i], &one));
        CHECK(!whole_programs(dev) || !i || kl_counter("graphs_built") == graphs);
        OK(train_separable(dev, b, 0, counts[i], &two));
        CHECK(!memcmp(&one, &two, sizeof one));
        for (int k = 0; k < SEPARABLE; k++)
            same_bits(a[k], b[k]);
    }
    CHECK(!whole_programs(dev) || kl_counter("variants") == variants);
    for (int k = 0; k < SEPARABLE; k++)
        kl_release(a[k]), kl_release(b[k]);
}

/* Every second window of images of even sides, of which there are as many as a sum of symbols; and a norm of their
 * channels, whose order of sums depends on the sides. */
static void test_even_sides(kl_device dev)
{
    static const int64_t sizes[][4] = {{2, 2, 8, 10}, {5, 2, 14, 12}, {1, 2, 10, 8}}, two[2] = {2, 2}, one[2] = {1, 1};
    int64_t lengths[4] = {kl_symbol("images", 1, 5), 2, kl_symbol_multiple("height", 8, 14, 2),
                          kl_symbol_multiple("width", 8, 14, 2)};
    kl_tensor w = kl_randn(dev, KL_F32, DIMS(2, 1, 3, 3), 5), out[2][3];
    int64_t variants = kl_counter("variants");
    for (int norm = 0; norm < 2; norm++) {
        for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int symbolic = 0; symbolic < 2; symbolic++) {
                kl_trace_begin(symbolic ? "symbolic" : "fixed");
                kl_tensor x = symbolic ? kl_input_symbolic(dev, KL_F32, 4, lengths, sizes[i], images)
                                       : kl_input(dev, KL_F32, 4, sizes[i], images);
                kl_tensor y = norm ? kl_group_norm(x, 1, kl_none, kl_none, 1e-5)
                                   : kl_conv(x, w, kl_none, two, one, one, NULL, 2);
                kl_tensor l = kl_sum_all(kl_mul(y, y));
                out[symbolic][0] = kl_keep(y);
                out[symbolic][1] = kl_keep(kl_grad(l, x));
                out[symbolic][2] = kl_keep(norm ? l : kl_grad(l, w));
                OK(kl_trace_end());
                for (int k = 0; k < 3 && symbolic; k++) {
                    same_bits(out[0][k], out[1][k]);
                    kl_release(out[0][k]), kl_release(out[1][k]);
                }
            }
        CHECK(norm || !whole_programs(dev) || kl_counter("variants") == variants);
    }
    kl_release(w);
}

static void test_errors(kl_device dev)
{
    int64_t n = kl_symbol("n", 1, MAX_COUNT), size = 3, stride = 2;
    int64_t lengths[3] = {1, 1, n}, dims[3] = {1, 1, 7};
    kl_trace_begin("narrow");
    kl_keep(kl_max_pool(kl_input_symbolic(dev, KL_F32, 3, lengths, dims, images), 1, &size, NULL, NULL, NULL, NULL));
    FAILS(kl_trace_end(), KL_ERR_SHAPE, "a window of 3 with dilation 1 does not fit in axis 2 of [1,1,n]");
    CHECK(strstr(kl_last_error(), "api_symbol_conv.c:"));
    kl_trace_begin("uneven");
    size = 1;
    kl_keep(kl_max_pool(kl_input_symbolic(dev, KL_F32, 3, lengths, dims, images), 1, &size, &stride, NULL, NULL, NULL));
    FAILS(kl_trace_end(), KL_ERR_SHAPE, "one every 2 elements, axis 2 of [1,1,n] has is no affine expression");
}

static void test(kl_device dev)
{
    test_training(dev);
    test_width(dev);
    test_sides(dev);
    test_groups(dev);
    test_separable(dev);
    test_even_sides(dev);
    test_errors(dev);
}

int main(void)
{
    for (int i = 0; i < MAX_COUNT * SIDE * SIDE; i++)
        images[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int i = 0; i < MAX_COUNT; i++)
        labels[i] = i * 7 % CLASSES;
    return on_devices(test);
}
