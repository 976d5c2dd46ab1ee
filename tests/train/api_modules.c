/* Modules against the same formulas in double or with other ops, their gradients against finite differences, caches
 * against whole sequences, fused against unfused bits. */
#include "tests/support/api_numbers.h"
#include <kiln/train.h>

static kl_params *tree(void) { return kl_params_new(dev, KL_F64, 5); }

/* The values of a tensor of the tree; the caller frees. */
static double *param(const kl_params *p, const char *name) { return values_of(kl_params_find(p, name)); }

/* |a - b| within 1e-12; releases both. */
#define SAME(a, b) same_at(a, b, __LINE__)
static bool same_at(kl_tensor a, kl_tensor b, int line)
{
    int64_t n = kl_numel(b);
    double *want = n >= 0 ? values_of(b) : NULL;
    bool ok = want && near_at(a, n, want, 1e-12, line);
    check_at(want != NULL, line, "values");
    free(want);
    kl_release(b);
    return ok;
}

/* ---- gradients of a module's loss in all its parameters and its input ---- */

typedef kl_tensor module_fn(void *m, kl_tensor x);

static double loss_of(module_fn *f, void *m, kl_tensor x)
{
    kl_scope_begin();
    double loss = kl_item_f64(weighted(f(m, x)));
    kl_scope_end();
    return loss;
}

static void gradients(const char *what, kl_params *p, module_fn *f, void *m, kl_tensor x)
{
    kl_tensor of[24], g[24];
    int n = 0;
    double worst = 0;
    for (int i = 0; i < kl_params_count(p) && n < 23; i++) {
        kl_param is;
        OK(kl_params_get(p, i, &is));
        if (!is.buffer)
            of[n++] = is.tensor;
    }
    kl_requires_grad(x);
    of[n++] = x;
    kl_scope_begin();
    bool ok = kl_grads(weighted(f(m, x)), n, of, g) == KL_OK;
    for (int k = 0; ok && k < n; k++) {
        int64_t dims[KL_MAX_RANK], count = kl_numel(of[k]);
        int rank = kl_shape(of[k], dims);
        double *v = values_of(of[k]), *got = values_of(g[k]);
        ok = v && got;
        for (int64_t i = 0; ok && i < count; i += 1 + count / 9) {
            double at = v[i], side[2];
            for (int s = 0; s < 2; s++) {
                v[i] = at + (s ? -1e-5 : 1e-5);
                kl_tensor t = kl_input(dev, KL_F64, rank, dims, v);
                ok &= kl_assign(of[k], t) == KL_OK;
                kl_release(t);
                side[s] = loss_of(f, m, x);
            }
            v[i] = at;
            double want = (side[0] - side[1]) / 2e-5, off = fabs(got[i] - want) / (1 + fabs(want));
            worst = fmax(worst, off);
        }
        kl_tensor t = kl_input(dev, KL_F64, rank, dims, v);
        ok &= kl_assign(of[k], t) == KL_OK;
        kl_release(t);
        free(v);
        free(got);
    }
    OK(kl_scope_end());
    if (!CHECK(ok && worst < 1e-6))
        printf("%s: gradients are off by %g (%s)\n", what, worst, kl_last_error());
}

/* The same bits fused and unfused. */
static void bits(const char *what, module_fn *f, void *m, kl_tensor x)
{
    double *v[2];
    int64_t n = 0;
    for (int fuse = 0; fuse < 2; fuse++) {
        OK(kl_set_option("fuse", fuse));
        kl_scope_begin();
        kl_trace_begin("bits");
        kl_tensor y = kl_keep(f(m, x));
        OK(kl_trace_end());
        n = kl_numel(y);
        v[fuse] = values_of(y);
        kl_release(y);
        kl_scope_end();
    }
    if (!CHECK(v[0] && v[1] && !memcmp(v[0], v[1], (size_t)n * sizeof *v[0])))
        printf("%s: fused and unfused differ\n", what);
    free(v[0]);
    free(v[1]);
}

static void both(const char *what, kl_params *p, module_fn *f, void *m, kl_tensor x)
{
    gradients(what, p, f, m, x);
    bits(what, f, m, x);
}

/* ---- layers ---- */

static kl_tensor linear_of(void *m, kl_tensor x) { return kl_nn_linear_forward(m, x); }
static kl_tensor conv_of(void *m, kl_tensor x) { return kl_nn_conv_forward(m, x); }
static kl_tensor norm_of(void *m, kl_tensor x) { return kl_nn_norm_forward(m, x, false); }

static void layers(void)
{
    double v[MAX_COUNT];
    kl_params *p = tree();
    kl_nn_linear linear;
    OK(kl_nn_linear_init(&linear, p, "fc", 3, 4, true));
    CHECK(kl_params_index(p, "fc.weight") == 0 && kl_params_index(p, "fc.bias") == 1 && kl_params_count(p) == 2);
    kl_tensor x = noisy(1, D(2, 3), v);
    kl_tensor bias = noisy(50, D(4), v);
    OK(kl_assign(linear.bias, bias));
    SAME(kl_nn_linear_forward(&linear, x), kl_add(kl_matmul(x, linear.weight), linear.bias));
    both("linear", p, linear_of, &linear, x);
    double *w = param(p, "fc.weight"), max = 0;
    for (int i = 0; w && i < 12; i++)
        max = fmax(max, fabs(w[i]));
    CHECK(max > 0 && max <= 1 / sqrt(3));
    free(w);
    kl_nn_linear plain;
    OK(kl_nn_linear_init(&plain, p, "", 3, 4, false));
    CHECK(!plain.bias.id && kl_params_index(p, "weight") == 2);
    kl_release(bias);
    kl_params_free(p);

    p = tree();
    kl_nn_embedding table;
    OK(kl_nn_embedding_init(&table, p, "wte", 5, 2));
    w = param(p, "wte.weight");
    kl_tensor ids = i32(D(3), (int32_t[]){4, 0, 4});
    if (w)
        NEAR_LIST(kl_nn_embedding_forward(&table, ids), 0, w[8], w[9], w[0], w[1], w[8], w[9]);
    free(w);
    kl_release(ids);
    kl_params_free(p);

    p = tree();
    kl_nn_conv conv;
    OK(kl_nn_conv_init(&conv, p, "c", &(kl_nn_conv_options){.in = 4, .out = 2, .axes = 2, .kernel = {3, 2},
                                                             .stride = {1, 2}, .padding = {1, 0}, .groups = 2}));
    SHAPE(conv.weight, 2, 2, 3, 2);
    kl_tensor image = noisy(9, D(1, 4, 3, 4), v);
    kl_tensor y = kl_nn_conv_forward(&conv, image);
    SHAPE(y, 1, 2, 3, 2);
    kl_release(y);
    both("conv", p, conv_of, &conv, image);
    kl_release(image);
    kl_params_free(p);
    kl_release(x);
}

static void norms(void)
{
    double v[MAX_COUNT];
    kl_tensor x = noisy(3, D(2, 4, 3), v), rows = noisy(4, D(3, 4), v), four[2];
    four[0] = noisy(20, D(4), v), four[1] = noisy(30, D(4), v);
    for (int kind = 0; kind < 4; kind++) {
        kl_params *p = tree();
        kl_nn_norm m;
        kl_status s = kind == 0   ? kl_nn_layer_norm_init(&m, p, "n", 4)
                      : kind == 1 ? kl_nn_rms_norm_init(&m, p, "n", 4)
                      : kind == 2 ? kl_nn_batch_norm_init(&m, p, "n", 4)
                                  : kl_nn_group_norm_init(&m, p, "n", 4, 2);
        CHECK(s == KL_OK && (int)m.kind == kind && (m.bias.id != 0) == (kind != 1));
        OK(kl_assign(m.weight, four[0]));
        if (m.bias.id)
            OK(kl_assign(m.bias, four[1]));
        kl_tensor in = kind < 2 ? rows : x;
        SAME(kl_nn_norm_forward(&m, in, false),
             kind == 0   ? kl_layer_norm(in, 1, m.weight, m.bias, 1e-5)
             : kind == 1 ? kl_rms_norm(in, 1, m.weight, 1e-5)
             : kind == 2 ? kl_batch_norm(in, m.weight, m.bias, m.mean, m.var, false, 0.1, 1e-5)
                         : kl_group_norm(in, 2, m.weight, m.bias, 1e-5));
        both("norm", p, norm_of, &m, in);
        if (kind == 2) { /* training moves the running statistics, which are buffers */
            kl_param is;
            OK(kl_params_get(p, kl_params_index(p, "n.var"), &is));
            CHECK(is.buffer && kl_params_count(p) == 4 && kl_params_elements(p, "n") == 8);
            kl_trace_begin("training");
            kl_keep(kl_nn_norm_forward(&m, in, true));
            OK(kl_trace_end());
            double *mean = values_of(m.mean), *all = values_of(in), want = 0;
            for (int i = 0; i < 6; i++)
                want += 0.1 * all[i / 3 * 12 + i % 3] / 6;
            CHECK(mean && fabs(mean[0] - want) < 1e-12);
            free(mean);
            free(all);
        }
        kl_params_free(p);
    }
    kl_release(x), kl_release(rows), kl_release(four[0]), kl_release(four[1]);
}

static void dropout(void)
{
    kl_tensor ones = kl_ones(dev, KL_F64, D(8, 8)), seed = kl_random_seed(dev, 7);
    double *a = NULL, *b = NULL, *c = NULL;
    kl_tensor y = kl_nn_dropout(ones, 0.25, seed, 1), z = kl_nn_dropout(ones, 0.25, seed, 1);
    a = values_of(y), b = values_of(z);
    kl_release(y), kl_release(z);
    y = kl_nn_dropout(ones, 0.25, seed, 2), z = kl_nn_dropout(ones, 0.25, kl_none, 2);
    c = values_of(y);
    int zeros = 0;
    for (int i = 0; i < 64; i++)
        zeros += a[i] == 0;
    CHECK(!memcmp(a, b, 64 * sizeof *a) && memcmp(a, c, 64 * sizeof *a) && zeros > 4 && zeros < 32);
    SAME(z, kl_keep(ones));
    free(a), free(b), free(c);
    kl_release(y), kl_release(seed);
}

/* ---- positions and attention ---- */

static bool interleaved;
static kl_tensor rotary_of(void *positions, kl_tensor x)
{
    return kl_nn_rotary(x, *(kl_tensor *)positions, 100, interleaved);
}

static void rotary(void)
{
    double v[MAX_COUNT], want[24];
    kl_tensor x = noisy(5, D(2, 3, 4), v), at = i32(D(3), (int32_t[]){0, 3, 7});
    for (int way = 0; way < 2; way++) {
        interleaved = way;
        for (int r = 0; r < 6; r++)
            for (int i = 0; i < 2; i++) {
                double angle = (int[]){0, 3, 7}[r % 3] * pow(100, -2.0 * i / 4);
                int a = 4 * r + (way ? 2 * i : i), b = way ? a + 1 : a + 2;
                want[a] = v[a] * cos(angle) - v[b] * sin(angle);
                want[b] = v[b] * cos(angle) + v[a] * sin(angle);
            }
        NEAR(kl_nn_rotary(x, at, 100, interleaved), 24, want, 1e-12);
        kl_params *none = tree();
        both("rotary", none, rotary_of, &at, x);
        kl_params_free(none);
    }
    kl_release(x), kl_release(at);
}

/* Rows with positions of their own are rotated as alone; factors divide the angles. */
static void rotary_rows(void)
{
    enum { B = 2, H = 3, L = 2, WIDE = 4, N = H * L * WIDE };
    static const int32_t at[B * L] = {5, 6, 0, 9};
    static const double factors[WIDE / 2] = {2, 0.5};
    double v[MAX_COUNT], want[B * N];
    kl_tensor x = noisy(8, D(B, H, L, WIDE), v), positions = i32(D(B, L), at);
    kl_tensor f = kl_input(dev, KL_F64, D(WIDE / 2), factors);
    for (int way = 0; way < 2; way++) {
        kl_nn_rotary_options o = {.base = 50, .interleaved = way, .factors = f};
        for (int r = 0; r < B * H * L; r++)
            for (int i = 0; i < WIDE / 2; i++) {
                double angle = at[r / (H * L) * L + r % L] * pow(50, -2.0 * i / WIDE) / factors[i];
                int a = WIDE * r + (way ? 2 * i : i), b = way ? a + 1 : a + WIDE / 2;
                want[a] = v[a] * cos(angle) - v[b] * sin(angle);
                want[b] = v[b] * cos(angle) + v[a] * sin(angle);
            }
        NEAR(kl_nn_rotary_with(x, positions, &o), B * N, want, 1e-12);
    }
    kl_release(x), kl_release(positions), kl_release(f);
}

static kl_tensor attention_of(void *m, kl_tensor x) { return kl_nn_attention_forward(m, x, kl_none, NULL, 0); }
static kl_tensor block_of(void *m, kl_tensor x) { return kl_nn_block_forward(m, x, kl_none, NULL, 0, kl_none); }

/* Grouped heads are the same as heads whose keys and values are repeated; written with matmul and softmax. */
static void attention(void)
{
    double v[MAX_COUNT];
    for (int kv = 1; kv <= 4; kv *= 2) {
        kl_params *p = tree();
        kl_nn_attention m;
        kl_nn_attention_options o = {.width = 8, .heads = 4, .kv_heads = kv, .bias = true, .causal = true};
        OK(kl_nn_attention_init(&m, p, "attn", &o));
        SHAPE(m.qkv.weight, 8, 8 + 4 * kv);
        kl_tensor x = noisy(2, D(2, 3, 8), v);
        kl_scope_begin();
        kl_tensor all = kl_linear(x, m.qkv.weight, m.qkv.bias), part[3];
        for (int i = 0; i < 3; i++) { /* [B, heads, L, 2] */
            int heads = i ? kv : 4;
            kl_tensor t = kl_narrow(all, -1, i == 0 ? 0 : 8 + (i - 1) * 2 * kv, 2 * heads);
            t = kl_reshape(t, D(2, 3, heads, 2));
            part[i] = kl_repeat(kl_permute(t, (int[]){0, 2, 1, 3}), 1, 4 / heads);
        }
        kl_tensor scores = kl_mul_scalar(kl_matmul(part[0], kl_transpose(part[1], 2, 3)), 1 / sqrt(2));
        kl_tensor row = kl_iota(dev, KL_I32, D(3, 3), 0), column = kl_iota(dev, KL_I32, D(3, 3), 1);
        scores = kl_masked_fill(scores, kl_gt(column, row), -INFINITY);
        kl_tensor y = kl_permute(kl_matmul(kl_softmax(scores, -1), part[2]), (int[]){0, 2, 1, 3});
        y = kl_linear(kl_reshape(y, D(2, 3, 8)), m.out.weight, m.out.bias);
        kl_keep(y);
        OK(kl_scope_end());
        SAME(kl_nn_attention_forward(&m, x, kl_none, NULL, 0), y);
        both("attention", p, attention_of, &m, x);
        kl_release(x);
        kl_params_free(p);
    }
}

enum { LENGTH = 6, WIDTH = 8 };

/* Two blocks on a sequence at once, and piece by piece with a cache. */
static void blocks(void)
{
    double v[MAX_COUNT], piece[MAX_COUNT];
    for (int kind = 0; kind < 3; kind++) {
        kl_params *p = tree();
        kl_nn_block m[2];
        kl_nn_block_options o = {.attention = {.width = WIDTH, .heads = 2, .kv_heads = kind == 2 ? 1 : 2,
                                               .bias = kind == 0, .causal = true, .rotary_base = kind ? 50 : 0},
                                 .rms_norm = kind == 2, .mlp = (kl_nn_mlp)kind, .hidden = kind ? 5 : 0};
        OK(kl_nn_block_init(&m[0], p, "h.0", &o));
        OK(kl_nn_block_init(&m[1], p, "h.1", &o));
        CHECK(kl_params_index(p, "h.1.mlp.down.weight") > 0 && kl_params_index(p, "h.0.attention.qkv.weight") > 0);
        kl_tensor x = noisy(70 + kind, D(1, LENGTH, WIDTH), v);
        both("block", p, block_of, &m[0], x);
        kl_tensor first = block_of(&m[0], x), whole = block_of(&m[1], first);
        double *want = values_of(whole);
        kl_nn_cache cache;
        OK(kl_nn_cache_init(&cache, dev, KL_F64, 2, 1, o.attention.kv_heads, LENGTH, WIDTH / 2));
        for (int round = 0; round < 2; round++) {
            static const int n[] = {2, 1, 1, 1, 1};
            int64_t built = 0;
            for (int i = 0, at = 0; i < 5; at += n[i++]) {
                memcpy(piece, v + at * WIDTH, (size_t)n[i] * WIDTH * sizeof *v);
                kl_trace_begin("decode");
                kl_tensor y = kl_input(dev, KL_F64, D(1, n[i], WIDTH), piece);
                for (int layer = 0; layer < 2; layer++)
                    y = kl_nn_block_forward(&m[layer], y, kl_none, &cache, layer, kl_none);
                OK(kl_nn_cache_advance(&cache, n[i]));
                kl_keep(y);
                OK(kl_trace_end());
                NEAR(y, n[i] * WIDTH, want + at * WIDTH, 1e-12);
                if (i == 1)
                    built = kl_counter("graphs_built");
            }
            CHECK(kl_counter("graphs_built") == built && cache.at[0] == LENGTH); /* one program for all single tokens */
            kl_trace_begin("full");
            kl_tensor y = kl_input(dev, KL_F64, D(1, 1, WIDTH), piece);
            y = kl_nn_block_forward(&m[0], y, kl_none, &cache, 0, kl_none);
            CHECK(kl_trace_end() == KL_ERR_ARGUMENT && strstr(kl_last_error(), "1 tokens at 6 of 6"));
            OK(kl_nn_cache_reset(&cache));
            CHECK(cache.at[0] == 0);
        }
        kl_tensor y = kl_nn_attention_forward(&m[0].attention, x, kl_none, &cache, 0); /* outside of a trace */
        CHECK(kl_check(y) == KL_ERR_TRACE);
        kl_release(y);
        free(want);
        kl_nn_cache_deinit(&cache);
        kl_release(first), kl_release(whole), kl_release(x);
        kl_params_free(p);
    }
}

/* ---- recurrent layers ---- */

static kl_tensor recurrent_of(void *m, kl_tensor x) { return kl_nn_recurrent_forward(m, x, NULL, NULL); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void recurrent(bool lstm)
{
    enum { T = 3, IN = 2, W = 2 };
    kl_params *p = tree();
    kl_nn_recurrent m;
    OK((lstm ? kl_nn_lstm_init : kl_nn_gru_init)(&m, p, "rnn", IN, W));
    double v[MAX_COUNT], b[MAX_COUNT];
    int gates = lstm ? 4 * W : 3 * W;
    kl_tensor bias = noisy(40, D(gates), b), x = noisy(8, D(T, 1, IN), v);
    OK(kl_assign(m.x_bias, bias));
    OK(kl_assign(m.h_bias, bias));
    double *wx = param(p, "rnn.x_weight"), *wh = param(p, "rnn.h_weight"), h[W] = {0.5, -0.25}, c[W] = {0.125, 1};
    double out[T * W];
    kl_tensor state[2] = {kl_input(dev, KL_F64, D(1, W), h), kl_input(dev, KL_F64, D(1, W), c)}, last[2];
    for (int t = 0; t < T; t++) {
        double gx[4 * W], gh[4 * W];
        for (int g = 0; g < gates; g++) {
            gx[g] = gh[g] = b[g];
            for (int i = 0; i < IN; i++)
                gx[g] += v[t * IN + i] * wx[i * gates + g];
            for (int i = 0; i < W; i++)
                gh[g] += h[i] * wh[i * gates + g];
        }
        for (int i = 0; i < W; i++)
            if (lstm) {
                double in = sigmoid(gx[i] + gh[i]), keep = sigmoid(gx[W + i] + gh[W + i]);
                c[i] = keep * c[i] + in * tanh(gx[2 * W + i] + gh[2 * W + i]);
                h[i] = sigmoid(gx[3 * W + i] + gh[3 * W + i]) * tanh(c[i]);
            } else {
                double r = sigmoid(gx[i] + gh[i]), z = sigmoid(gx[W + i] + gh[W + i]);
                double n = tanh(gx[2 * W + i] + r * gh[2 * W + i]);
                h[i] = (1 - z) * n + z * h[i];
            }
        memcpy(out + t * W, h, sizeof h);
    }
    memcpy(last, state, sizeof last);
    kl_tensor y = kl_nn_recurrent_forward(&m, x, &last[0], &last[1]);
    SHAPE(y, T, 1, W);
    NEAR(y, T * W, out, 1e-12);
    NEAR(last[0], W, h, 1e-12);
    if (lstm)
        NEAR(last[1], W, c, 1e-12);
    else
        CHECK(last[1].id == state[1].id);
    both(lstm ? "lstm" : "gru", p, recurrent_of, &m, x);
    kl_release(state[0]), kl_release(state[1]), kl_release(bias), kl_release(x);
    free(wx), free(wh);
    kl_params_free(p);
}

/* ---- initial values anew, errors ---- */

static int64_t live(void)
{
    kl_memory_use use;
    kl_sync(dev);
    return kl_memory_used(dev, &use) == KL_OK ? use.live : -1;
}

static void errors(void)
{
    kl_params *p = tree();
    kl_nn_linear m;
    kl_nn_attention a;
    kl_nn_block b;
    kl_nn_conv c;
    kl_nn_norm n;
    kl_nn_cache cache;
    double v[MAX_COUNT];
    OK(kl_nn_linear_init(&m, p, "fc", 3, 4, true));
    OK(kl_params_reset(p, "*.weight", &(kl_init){.kind = KL_INIT_ONES}));
    double *w = param(p, "fc.weight");
    CHECK(w && w[0] == 1 && w[11] == 1);
    free(w);
    CHECK(kl_params_reset(p, "*.scale", &(kl_init){.kind = KL_INIT_ONES}) == KL_ERR_ARGUMENT);
    CHECK(kl_params_reset(p, "fc", &(kl_init){.kind = KL_INIT_KINDS}) == KL_ERR_ARGUMENT);
    int64_t before = live();
    CHECK(kl_nn_linear_init(&m, p, "fc", 3, 4, true) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "\"fc.weight\""));
    CHECK(kl_nn_linear_init(&m, p, "g", 0, 4, true) == KL_ERR_ARGUMENT && strstr(kl_last_error(), "api_modules.c"));
    CHECK(kl_nn_linear_init(&m, NULL, "g", 3, 4, true) == KL_ERR_ARGUMENT);
    CHECK(kl_nn_attention_init(&a, p, "a", &(kl_nn_attention_options){.width = 8, .heads = 3}) == KL_ERR_ARGUMENT);
    CHECK(kl_nn_block_init(&b, p, "b", NULL) == KL_ERR_ARGUMENT);
    CHECK(kl_nn_conv_init(&c, p, "c", &(kl_nn_conv_options){.in = 3, .out = 4, .axes = 1}) == KL_ERR_ARGUMENT);
    CHECK(kl_nn_group_norm_init(&n, p, "n", 5, 2) == KL_ERR_ARGUMENT);
    CHECK(kl_nn_cache_init(&cache, dev, KL_F32, 0, 1, 1, 1, 1) == KL_ERR_ARGUMENT);
    OK(kl_nn_attention_init(&a, p, "a", &(kl_nn_attention_options){.width = 8, .heads = 2}));
    int64_t with = 0;
    for (int turn = 0; turn < 200; turn++) {
        kl_tensor x = noisy(1, D(2, 8), v), y = kl_nn_attention_forward(&a, x, kl_none, NULL, 0);
        CHECK(kl_check(y) == KL_ERR_SHAPE && strstr(kl_last_error(), "api_modules.c"));
        kl_release(y);
        y = kl_nn_rotary(kl_none, kl_none, 100, false);
        CHECK(kl_check(y) == KL_ERR_HANDLE);
        kl_release(y);
        y = kl_nn_rotary(x, kl_none, 100, false);
        CHECK(kl_check(y) == KL_ERR_HANDLE);
        kl_release(y);
        kl_release(x);
        if (turn == 100)
            with = live();
    }
    /* Nothing is lost in an error; what is recorded and not needed goes every now and then. */
    CHECK(live() <= with + 64 * 256 && before <= with);
    kl_params_free(p);
}

static void all(kl_device device)
{
    dev = device;
    layers();
    norms();
    dropout();
    rotary();
    rotary_rows();
    attention();
    blocks();
    recurrent(true);
    recurrent(false);
    errors();
}

int main(void) { return on_devices(all); }
