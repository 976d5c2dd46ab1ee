/* Rows do not depend on each other: results of a row are the same bits for any number of rows, at any place among
 * them, for any number of threads, in pieces through a cache, with symbolic lengths; products, sums, norms, attention,
 * a model's logits and gradients by row.  With option order = graph, as order.md says.
 *
 *   api_invariance        interpreted for some numbers of rows; compiled for one of them, and for all in one program
 *   api_invariance all    interpreted, and compiled in one program, for all numbers up to 64, and compiled for some;
 *                         attention's gradient of long sequences */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/api_check.h"
#include <kiln/train/modules.h>

enum { ROWS = 64, MAX_DIMS = 6, PAGE = 1 << 19 };
static kl_device dev;            /* on which the next result is computed */
static bool all;

/* Numbers of rows around the limits of tiles, of products of few rows, and of vectors. */
static const int64_t some[] = {1, 2, 7, 8, 9, 17, 33, ROWS};
enum { SOME = sizeof some / sizeof *some };

static double noise(int64_t i) { return sin(1.7 * (double)i + 0.3) * 1.3; }

/* ---- cases ---- */

/* f: of a tensor with rows along one axis, a tensor with as many, all of whose axes before that have one element. */
struct row_case {
    const char *name;
    kl_tensor (*f)(kl_tensor x);
    int rank;
    int64_t dims[MAX_DIMS];      /* of the operand; rows: 0 */
    unsigned dtypes;             /* by bit of `dtypes`; 0: all floats */
    bool ends;                   /* the first and the last of a row's elements cancel: see weight */
    bool grad;                   /* the gradient of the result times numbers, with respect to the operand, instead */
    bool long_form;              /* in `all` only */
};

static const kl_dtype dtypes[] = {KL_F32, KL_F64, KL_F16, KL_BF16};
enum { F32 = 1, F64 = 2, F16 = 4, BF16 = 8, DTYPES = 4 };
static kl_dtype dtype_now;

/* Numbers that are the same in each call. */
static kl_tensor numbers(int rank, const int64_t *dims, int from)
{
    static float v[PAGE];
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    for (int64_t i = 0; i < n && i < PAGE; i++)
        v[i] = (float)noise(from + i);
    return kl_cast(kl_input(dev, KL_F32, rank, dims, v), dtype_now);
}

enum { K = 701, N = 330 }; /* beyond the near cache, two blocks of the contraction, the last one odd */
#define END 16384

/* A matrix [K, columns], or its transpose, whose first and last rows are equal.  Rows of the operand have END and -END
 * there: sums in between are so large that their rounding is seen in results of half floats, too. */
static kl_tensor weight(int64_t k, int64_t columns, bool transposed)
{
    static float v[K * N];
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < columns; j++)
            v[transposed ? j * k + i : i * columns + j] = i && i + 1 < k ? (float)noise(i * columns + j) : 64;
    return kl_cast(kl_input(dev, KL_F32, 2, (int64_t[]){transposed ? columns : k, transposed ? k : columns}, v),
                   dtype_now);
}

static kl_tensor columns(kl_tensor x) { return kl_matmul(x, weight(K, N, false)); }
static kl_tensor transposed(kl_tensor x) { return kl_matmul(x, kl_transpose(weight(K, N, true), 0, 1)); }
static kl_tensor small_product(kl_tensor x) { return kl_tanh(kl_matmul(x, weight(37, 19, false))); }
static kl_tensor vector_product(kl_tensor x) { return kl_matmul(x, weight(K, 1, false)); }
static kl_tensor sum_last(kl_tensor x) { return kl_sum(x, AXES(1), true); }
static kl_tensor sum_first(kl_tensor x) { return kl_sum(x, AXES(0), true); }
static kl_tensor sum_outer(kl_tensor x) { return kl_sum(x, AXES(0, 2), true); }
static kl_tensor max_first(kl_tensor x) { return kl_max(kl_softmax(x, 0), AXES(0), true); }
static kl_tensor softmax(kl_tensor x) { return kl_softmax(x, 1); }
static kl_tensor layer_norm(kl_tensor x) { return kl_layer_norm(x, 1, kl_none, kl_none, 1e-5); }
static kl_tensor rms_norm(kl_tensor x) { return kl_rms_norm(x, 1, kl_none, 1e-5); }
static kl_tensor group_norm(kl_tensor x) { return kl_group_norm(x, 2, kl_none, kl_none, 1e-5); }
static kl_tensor log_sum(kl_tensor x) { return kl_neg(kl_log_softmax(x, 1)); }
static kl_tensor causal(kl_tensor x) { return kl_attention(x, kl_tanh(x), kl_neg(x), kl_none, true); }
static kl_tensor plain(kl_tensor x) { return kl_attention(x, kl_tanh(x), kl_neg(x), kl_none, false); }

/* Rows are queries, which attend to the same keys and values. */
static kl_tensor queries(kl_tensor x)
{
    return kl_attention(x, numbers(DIMS(150, 24), 5), numbers(DIMS(150, 24), 11), kl_none, false);
}

/* A convolution of pictures; rows are the batch. */
static kl_tensor convolution(kl_tensor x)
{
    return kl_conv(x, numbers(DIMS(5, 3, 3, 3), 9), kl_none, (int64_t[]){1, 1}, (int64_t[]){1, 1}, (int64_t[]){1, 1},
                   (int64_t[]){1, 1}, 1);
}

/* Integers of 8 bits, a scale a row, times integers with a scale a column; or a scale for each block. */
static kl_tensor bytes(kl_tensor x)
{
    kl_qscheme row = {.type = KL_Q_I8, .per_axis = true, .axis = 0}, column = row;
    column.axis = 1;
    return kl_matmul(kl_to_quantized(x, row, kl_none, kl_none),
                     kl_to_quantized(numbers(DIMS(256, 96), 2), column, kl_none, kl_none));
}

static kl_tensor blocks(kl_tensor x)
{
    kl_qscheme a = {.type = KL_Q_I8, .axis = 1, .block = 32}, b = {.type = KL_Q_I8, .axis = 0, .block = 32};
    return kl_matmul(kl_to_quantized(x, a, kl_none, kl_none),
                     kl_to_quantized(numbers(DIMS(256, 96), 2), b, kl_none, kl_none));
}

/* The matrix alone has blocks: it is computed as it is multiplied. */
static kl_tensor weights(kl_tensor x)
{
    kl_qscheme b = {.type = KL_Q_I8, .axis = 0, .block = 32};
    return kl_matmul(x, kl_dense(kl_to_quantized(numbers(DIMS(256, 96), 2), b, kl_none, kl_none)));
}

/* Two blocks of a transformer and its logits; rows are sequences. */
static kl_tensor transformer(kl_tensor x)
{
    enum { LAYERS = 2, WIDTH = 16, HIDDEN = 32, WORDS = 20 };
    for (int i = 0; i < LAYERS; i++) {
        kl_tensor a = kl_layer_norm(x, 1, kl_none, kl_none, 1e-5);
        kl_tensor q = kl_matmul(a, numbers(DIMS(WIDTH, WIDTH), 3 + i));
        kl_tensor k = kl_matmul(a, numbers(DIMS(WIDTH, WIDTH), 7 + i));
        kl_tensor v = kl_matmul(a, numbers(DIMS(WIDTH, WIDTH), 13 + i));
        x = kl_add(x, kl_attention(q, k, v, kl_none, true));
        kl_tensor b = kl_rms_norm(x, 1, kl_none, 1e-5);
        kl_tensor h = kl_gelu(kl_matmul(b, numbers(DIMS(WIDTH, HIDDEN), 17 + i)));
        x = kl_add(x, kl_matmul(h, numbers(DIMS(HIDDEN, WIDTH), 23 + i)));
    }
    return kl_matmul(x, numbers(DIMS(WIDTH, WORDS), 29));
}

/* The losses of its sequences. */
static kl_tensor losses(kl_tensor x) { return kl_neg(kl_sum(kl_log_softmax(transformer(x), 2), AXES(1), false)); }

static const struct row_case cases[] = {
    {"x [B, K] w [K, N]", columns, 2, .dims = {0, K}, .ends = true},
    {"x [B, K] w [N, K]", transposed, 2, .dims = {0, K}, .ends = true},
    {"tanh(x w), small", small_product, 2, .dims = {0, 37}, .ends = true},
    {"x [B, K] w [K, 1]", vector_product, 2, .dims = {0, K}, .ends = true},
    {"sum over the last axis", sum_last, 2, .dims = {0, 700}},
    {"sum over the first axis", sum_first, 2, .dims = {700, 0}},
    {"sum over the first and the last axis", sum_outer, 3, .dims = {5, 0, 70}},
    {"max of softmax over the first axis", max_first, 2, .dims = {70, 0}, .dtypes = F32 | BF16},
    {"softmax", softmax, 2, .dims = {0, 100}},
    {"layer norm", layer_norm, 2, .dims = {0, 100}},
    {"RMS norm", rms_norm, 2, .dims = {0, 100}},
    {"group norm", group_norm, 3, .dims = {0, 4, 30}, .dtypes = F32 | BF16},
    {"log softmax", log_sum, 2, .dims = {0, 1000}, .dtypes = F32 | F16},
    {"causal attention", causal, 4, .dims = {0, 2, 70, 16}},
    {"attention", plain, 3, .dims = {0, 33, 24}, .dtypes = F32 | BF16},
    {"queries", queries, 2, .dims = {0, 24}},
    {"convolution", convolution, 4, .dims = {0, 3, 8, 8}, .dtypes = F32 | BF16},
    {"bytes", bytes, 2, .dims = {0, 256}, .dtypes = F32 | BF16},
    {"blocks", blocks, 2, .dims = {0, 256}, .dtypes = F32 | BF16},
    {"weights of blocks", weights, 2, .dims = {0, 256}, .dtypes = F32 | BF16},
    {"logits of a transformer", transformer, 3, .dims = {0, 13, 16}},
    {"losses of a transformer", losses, 3, .dims = {0, 13, 16}, .dtypes = F32 | BF16},
    {"gradient of a transformer's losses", losses, 3, .dims = {0, 13, 16}, .dtypes = F32 | BF16, .grad = true},
    {"gradient through x w", columns, 2, .dims = {0, K}, .dtypes = F32 | BF16, .grad = true},
    {"gradient of layer norm", layer_norm, 2, .dims = {0, 100}, .dtypes = F32 | BF16, .grad = true},
    {"gradient of softmax", softmax, 2, .dims = {0, 100}, .dtypes = F32, .grad = true},
    {"gradient of causal attention", causal, 4, .dims = {0, 2, 70, 16}, .dtypes = F32 | BF16, .grad = true},
    {"gradient of queries", queries, 2, .dims = {0, 24}, .dtypes = F32, .grad = true},
    {"gradient of convolution", convolution, 4, .dims = {0, 3, 8, 8}, .dtypes = F32, .grad = true},
    {"gradient of attention, long", plain, 3, .dims = {0, 530, 8}, .dtypes = F32, .grad = true, .long_form = true},
};

/* ---- one program beside another ---- */

/* Rows first .. first + rows - 1 of the operand of all. */
static kl_tensor operand(const struct row_case *c, int64_t first, int64_t rows, bool symbolic)
{
    static float v[PAGE * 2];
    int64_t dims[MAX_DIMS], outer = 1, inner = 1, axis = 0, n = 0;
    for (int i = 0; i < c->rank; i++) {
        dims[i] = c->dims[i] ? c->dims[i] : rows;
        axis = c->dims[i] ? axis : i;
    }
    for (int i = 0; i < c->rank; i++)
        *(i < axis ? &outer : &inner) *= i == axis ? 1 : dims[i];
    for (int64_t o = 0; o < outer; o++)
        for (int64_t r = first; r < first + rows; r++)
            for (int64_t i = 0; i < inner && n < PAGE * 2; i++)
                v[n++] = c->ends && (!i || i + 1 == inner) ? (i ? -END : END)
                                                           : (float)noise((o * ROWS + r) * inner + i);
    int64_t lengths[MAX_DIMS];
    memcpy(lengths, dims, sizeof lengths);
    lengths[axis] = symbolic ? kl_symbol("rows", 1, ROWS) : rows;
    kl_tensor x = symbolic ? kl_input_symbolic(dev, KL_F32, c->rank, lengths, dims, v)
                           : kl_input(dev, KL_F32, c->rank, dims, v);
    return kl_cast(x, dtype_now);
}

/* The numbers that a gradient's result is multiplied with: of a row alone. */
static kl_tensor loss_of(kl_tensor y)
{
    return kl_sum_all(kl_mul(y, kl_sin(kl_mul_scalar(y, 3))));
}

/* The bytes of the case's result for these rows; the caller frees.  *n: how many. */
static char *result_of(const struct row_case *c, int64_t first, int64_t rows, bool symbolic, size_t *n)
{
    char *bytes = NULL;
    OK(kl_trace_begin(c->name));
    kl_tensor x = operand(c, first, rows, symbolic), y = c->f(x);
    y = kl_keep(c->grad ? kl_grad(loss_of(y), x) : y);
    if (OK(kl_trace_end())) {
        *n = (size_t)kl_numel(y) * kl_dtype_size(kl_dtype_of(y));
        bytes = malloc(*n + 1);
        OK(kl_read(y, bytes, *n));
    }
    kl_release(y);
    return bytes;
}

static int64_t threads_now(void)
{
    int64_t n = 0;
    OK(kl_get_option("threads", &n));
    return n;
}

/* Bytes of the case's rows first .. first + rows - 1 beside those of all. */
static void same_rows(const struct row_case *c, const char *whole, size_t whole_bytes, int64_t first, int64_t rows,
                      bool symbolic)
{
    size_t n = 0;
    char *part = result_of(c, first, rows, symbolic, &n), text[160];
    bool same = part && n == whole_bytes / ROWS * (size_t)rows;
    same = same && !memcmp(part, whole + whole_bytes / ROWS * (size_t)first, n);
    snprintf(text, sizeof text, "%s of %s on %s, rows %lld to %lld%s, %lld threads", c->name,
             kl_dtype_name(dtype_now), kl_device_name(dev),
             (long long)first, (long long)(first + rows - 1), symbolic ? ", symbolic" : "",
             (long long)threads_now());
    check_at(same, __LINE__, text);
    free(part);
}

/* turn: which of the numbers of rows is compiled. */
static void rows_of_case(const struct row_case *c, unsigned turn, bool symbolic)
{
    size_t n = 0;
    dev = kl_device_ref();
    char *whole = result_of(c, 0, ROWS, false, &n);
    for (int64_t rows = 1; whole && rows <= ROWS; rows++) {
        unsigned i = 0;
        while (i < SOME && some[i] != rows)
            i++;
        if (i == SOME && (!all || c->long_form)) /* all numbers of long sequences would take minutes */
            continue;
        dev = kl_device_ref();
        same_rows(c, whole, n, rows % 3 ? 0 : ROWS - rows, rows, false);
        dev = kl_device_cpu();
        OK(kl_set_option("threads", 1 + rows % 4));
        if (all ? i < SOME : i == turn % SOME && (dtype_now == KL_F32 || dtype_now == KL_BF16))
            same_rows(c, whole, n, rows % 3 ? 0 : ROWS - rows, rows, false);
        if (all || symbolic)
            same_rows(c, whole, n, rows % 2 ? ROWS - rows : 0, rows, true);
    }
    free(whole);
}

/* ---- a model, in pieces through a cache ---- */

enum { WIDTH = 32, HEADS = 2, LAYERS = 2, LENGTH = 80, WORDS = 40 };
struct model { kl_params *p; kl_nn_block block[LAYERS]; kl_nn_linear head; };

static kl_tensor logits_of(const struct model *m, int64_t batch, int64_t from, int64_t count, kl_nn_cache *cache)
{
    static float v[ROWS * LENGTH * WIDTH];
    for (int64_t b = 0, n = 0; b < batch; b++)
        for (int64_t i = from * WIDTH; i < (from + count) * WIDTH; i++)
            v[n++] = (float)noise(b * LENGTH * WIDTH + i);
    kl_tensor x = kl_cast(kl_input(dev, KL_F32, DIMS(batch, count, WIDTH), v), dtype_now);
    for (int i = 0; i < LAYERS; i++)
        x = kl_nn_block_forward(&m->block[i], x, kl_none, cache, i, kl_none);
    return kl_nn_linear_forward(&m->head, x);
}

/* In pieces of so many tokens; each has `batch` sequences. */
static void same_pieces(const struct model *m, const char *whole, int64_t batch, int64_t piece)
{
    static char part[ROWS * LENGTH * WORDS * 4];
    size_t word = WORDS * kl_dtype_size(dtype_now);
    kl_nn_cache cache;
    char text[80];
    bool same = OK(kl_nn_cache_init(&cache, dev, dtype_now, LAYERS, batch, HEADS, LENGTH + 9, WIDTH / HEADS));
    for (int64_t at = 0; same && at < LENGTH; at += piece) {
        int64_t n = at + piece > LENGTH ? LENGTH - at : piece;
        OK(kl_trace_begin("piece"));
        kl_tensor y = kl_keep(logits_of(m, batch, at, n, &cache));
        OK(kl_nn_cache_advance(&cache, n));
        OK(kl_trace_end());
        OK(kl_read(y, part, (size_t)(batch * n) * word));
        for (int64_t b = 0; same && b < batch; b++)
            same = !memcmp(part + (size_t)(b * n) * word, whole + (size_t)(b * LENGTH + at) * word, (size_t)n * word);
        kl_release(y);
    }
    snprintf(text, sizeof text, "logits of %s, %lld sequences in pieces of %lld", kl_dtype_name(dtype_now),
             (long long)batch, (long long)piece);
    check_at(same, __LINE__, text);
    kl_nn_cache_deinit(&cache);
}

static void test_model(void)
{
    dev = kl_device_cpu();
    static char whole[ROWS * LENGTH * WORDS * 4];
    static const int64_t batches[] = {1, 9}, pieces[] = {1, 2, 7, 16, 33};
    struct model m = {.p = kl_params_new(dev, dtype_now, 3)};
    kl_nn_block_options options = {.attention = {.width = WIDTH, .heads = HEADS, .causal = true, .bias = true,
                                                 .rotary_base = 10000}};
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "block%d", i);
        OK(kl_nn_block_init(&m.block[i], m.p, name, &options));
    }
    OK(kl_nn_linear_init(&m.head, m.p, "head", WIDTH, WORDS, false));
    OK(kl_trace_begin("whole"));
    kl_tensor y = kl_keep(logits_of(&m, ROWS, 0, LENGTH, NULL));
    OK(kl_trace_end());
    OK(kl_read(y, whole, (size_t)kl_numel(y) * kl_dtype_size(dtype_now)));
    kl_release(y);
    for (size_t b = 0; b < 2; b++)
        for (size_t i = 0; i < 5; i++) {
            OK(kl_set_option("threads", 1 + (int64_t)i % 4));
            if (all || (b == (i == 4) && i % 2 == (dtype_now == KL_BF16)))
                same_pieces(&m, whole, batches[b], pieces[i]);
        }
    kl_params_free(m.p);
}

int main(int argc, char **argv)
{
    all = argc > 1 && !strcmp(argv[1], "all");
    OK(kl_set_option("order", KL_ORDER_GRAPH)); /* else large products of bf16 have an order of their own with AMX */
    for (unsigned d = 0; d < DTYPES; d++) {
        dtype_now = dtypes[d];
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            if ((!cases[i].dtypes || cases[i].dtypes >> d & 1) && (all || !cases[i].long_form))
                rows_of_case(&cases[i], (unsigned)i + 3 * d, i % 2 ? d == 0 : d == 3);
        if (all || dtype_now == KL_F32 || dtype_now == KL_BF16)
            test_model();
    }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
