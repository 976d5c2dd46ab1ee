/* Small graphs of kernels that only GPUs have, or that only longer arrays are worth: transposes by tiles, scans in
 * levels, products and attention on matrix units, few rows: see scope_graphs.h. */
#include "scope_graphs.h"

/* around the sides of tiles, of units and of vectors of 16 bytes */
static const int64_t sides[] = {1, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65, 72, 128};
static const unsigned halves[] = {KL_BF16, KL_F16};
static const unsigned any_dtype[] = {KL_F32, KL_BF16, KL_F16, KL_F64, KL_I32, KL_I8};

static ref gpu_input(struct graph *g, unsigned dtype, const struct shape *s) { return n_input(g, dtype, s, "z"); }

struct graph *scope_transpose(struct digits *d)
{
    static const int64_t lengths[] = {15, 16, 17, 63, 64, 65, 66, 72, 127, 128, 129};
    struct graph *g = graph_new("transpose");
    int64_t rows = DIGIT_OF(d, lengths), cols = DIGIT_OF(d, lengths), batch = 1 + (int64_t)digit(d, 2);
    unsigned dtype = any_dtype[digit(d, 6)];
    struct shape s = shape_make(3, (int64_t[]){batch, rows, cols}), to = shape_make(3, (int64_t[]){batch, cols, rows});
    uint8_t perm[KL_MAX_RANK] = {0, 2, 1};
    ref x = n_permute(g, gpu_input(g, dtype, &s), perm), y;
    switch (digit(d, 4)) {
    case 0: y = n_add(g, x, gpu_input(g, dtype, &to)); break;
    case 1: y = n_mul(g, x, n_permute(g, gpu_input(g, dtype, &s), perm)); break;
    case 2:
        y = n_add(g, x, x);
        graph_output(g, OUT_RETURN, n_cast(g, y, KL_F32), 0);
        break;
    default: y = n_slice(g, n_add(g, x, x), 1, 0, cols - 1, 1);
    }
    graph_output(g, OUT_RETURN, y, 0);
    return g;
}

struct graph *scope_levels(struct digits *d)
{
    static const enum op ops[] = {OP_cumsum, OP_cummax, OP_cummin, OP_cumprod};
    static const int64_t lengths[] = {255, 256, 257, 319, 320, 321, 511, 512, 513, 1024, 1025};
    static const unsigned dtypes[] = {KL_F32, KL_I32, KL_BF16};
    struct graph *g = graph_new("levels");
    int64_t outer = 1 + (int64_t)digit(d, 3), inner = 1 + (int64_t)digit(d, 3), n = DIGIT_OF(d, lengths);
    unsigned dtype = dtypes[digit(d, 3)];
    enum op op = ops[digit(d, 4)];
    struct shape s = shape_make(3, (int64_t[]){outer, n, inner});
    ref y = n_cumulative(g, op, scope_operand(g, d, dtype, &s), 1);
    graph_output(g, OUT_RETURN, digit(d, 2) ? y : n_add(g, y, gpu_input(g, dtype, &s)), 0);
    return g;
}

/* Products of halves, and of others by threads. */
struct graph *scope_units(struct digits *d)
{
    struct graph *g = graph_new("units");
    int64_t m = DIGIT_OF(d, sides), n = DIGIT_OF(d, sides), k = DIGIT_OF(d, sides), batch = 1 + (int64_t)digit(d, 2);
    unsigned dtype = digit(d, 4) ? halves[digit(d, 2)] : digit(d, 2) ? KL_F32 : KL_F64;
    uint64_t transposed = digit(d, 4);
    struct shape a = shape_make(3, transposed & 1 ? (int64_t[]){batch, k, m} : (int64_t[]){batch, m, k});
    struct shape b = shape_make(3, transposed & 2 ? (int64_t[]){batch, n, k} : (int64_t[]){batch, k, n});
    struct shape row = shape_make(1, (int64_t[]){n});
    union attr at = {.dot = {.nbatch = 1, .ncon = 1, .con_a = transposed & 1 ? 1 : 2, .con_b = transposed & 2 ? 2 : 1}};
    bool views = digit(d, 3) == 0;
    ref x = views ? scope_operand(g, d, dtype, &a) : gpu_input(g, dtype, &a);
    ref y = n_dot(g, x, views ? scope_operand(g, d, dtype, &b) : gpu_input(g, dtype, &b), &at);
    struct shape all = *node_shape(g, y);
    if (digit(d, 2))
        y = n_max(g, n_add(g, y, n_broadcast(g, gpu_input(g, dtype, &row), &all)), n_k(g, y, 0));
    graph_output(g, OUT_RETURN, y, 0);
    return g;
}

/* Convolutions of halves, whose channels are the vectors of both operands. */
struct graph *scope_channels(struct digits *d)
{
    static const int64_t channels[] = {7, 8, 9, 16, 17, 24, 32, 64};
    struct graph *g = graph_new("channels");
    int64_t batch = 1 + (int64_t)digit(d, 2), depth = DIGIT_OF(d, channels), filters = DIGIT_OF(d, channels);
    int64_t high = 2 + (int64_t)digit(d, 4), wide = 2 + (int64_t)digit(d, 4), size = 1 + (int64_t)digit(d, 3);
    unsigned dtype = halves[digit(d, 2)];
    uint64_t form = digit(d, 3);
    struct shape s = shape_make(4, (int64_t[]){batch, depth, high + size - 1, wide + size - 1});
    struct shape w = shape_make(4, (int64_t[]){filters, depth, size, size});
    union attr at = {.dot = {.ncon = 3, .con_a = 0x321, .con_b = 0x531}};
    ref x = gpu_input(g, dtype, &s), f = gpu_input(g, dtype, &w);
    ref v = n_window(g, n_window(g, x, 2, size, 1, 1), 3, size, 1, 1); /* [n, c, h, w, kh, kw] */
    at.dot.con_b = 0x541;
    ref y = n_dot(g, f, v, &at); /* [filters, n, h, w] */
    struct shape all = *node_shape(g, y);
    if (form) {
        ref loss = n_reduce(g, OP_sum, n_mul(g, y, gpu_input(g, dtype, &all)), 15);
        graph_output(g, OUT_RETURN, n_grad(g, loss, form == 1 ? x : f), 0);
    } else {
        graph_output(g, OUT_RETURN, n_permute(g, y, (uint8_t[KL_MAX_RANK]){1, 0, 2, 3}), 0);
    }
    return g;
}

struct graph *scope_attention_units(struct digits *d)
{
    static const int64_t rows[] = {1, 15, 16, 17, 33, 63, 64, 65, 80}, depths[] = {8, 15, 24, 64, 64, 65, 128};
    struct graph *g = graph_new("attention_units");
    int64_t batch = 1 + (int64_t)digit(d, 2), l = DIGIT_OF(d, rows), m = DIGIT_OF(d, rows), e = DIGIT_OF(d, depths),
            v = DIGIT_OF(d, depths);
    unsigned dtype = halves[digit(d, 2)];
    uint64_t seen = digit(d, 3), form = digit(d, 4);
    bool causal = digit(d, 2);
    struct shape sq = shape_make(3, (int64_t[]){batch, l, e}), sk = shape_make(3, (int64_t[]){batch, m, e}),
                 sv = shape_make(3, (int64_t[]){batch, m, v}),
                 see = shape_make(3, (int64_t[]){batch, l, seen == 1 ? m : 2});
    ref q = gpu_input(g, dtype, &sq), k = gpu_input(g, dtype, &sk), values = gpu_input(g, dtype, &sv);
    ref mask = seen ? n_input(g, seen == 1 ? KL_BOOL : KL_I32, &see, "seen") : NIL;
    ref y = n_attention(g, q, k, values, mask, 0.0625, causal), din[3] = {NIL};
    if (form) {
        n_attention_gradient(g, y, gpu_input(g, dtype, node_shape(g, y)), din);
        for (uint32_t i = 0; i < 3; i++)
            if (form == 3 || (form == 1) == (i == 0))
                graph_output(g, OUT_RETURN, din[i], 0);
        return g;
    }
    graph_output(g, OUT_RETURN, y, 0);
    return g;
}

/* A few rows with a matrix that is read once; its elements may be computed from smaller ones. */
struct graph *scope_skinny(struct digits *d)
{
    static const int64_t lengths[] = {4,  7,  8,  9,  15, 16, 17,  31,  32,  33, 63,
                                      64, 65, 66, 72, 96, 127, 128, 130, 256, 260};
    struct graph *g = graph_new("skinny");
    int64_t m = 1 + (int64_t)digit(d, 17), n = DIGIT_OF(d, lengths), k = DIGIT_OF(d, lengths);
    unsigned dtype = any_dtype[digit(d, 4)];
    bool transposed = digit(d, 2);
    struct shape a = shape_make(2, (int64_t[]){m, k}), b = shape_make(2, transposed ? (int64_t[]){n, k}
                                                                                : (int64_t[]){k, n});
    struct shape half = b, row = shape_make(2, (int64_t[]){transposed ? n : 1, transposed ? 1 : n});
    union attr at = {.dot = {.ncon = 1, .con_a = 1, .con_b = transposed}};
    uint64_t form = digit(d, 6), block = digit(d, 4);
    ref w = gpu_input(g, form == 1 || form == 2 ? KL_I8 : form == 4 ? KL_F16 : form == 5 ? KL_BF16 : dtype, &b);
    if (form == 1 || form > 3)
        w = n_cast(g, w, dtype);
    else if (form == 2)
        w = n_mul(g, n_cast(g, w, dtype), n_broadcast(g, gpu_input(g, dtype, &row), &b));
    else if (form == 3 && half.dim[1] % 2 == 0) { /* two elements of 4 bits in a byte */
        half.dim[1] /= 2;
        half.rank = 3;
        half.dim[2] = 1;
        ref bytes = n_input(g, KL_U8, &half, "bytes");
        ref low = n_sub(g, bytes, n_mul(g, n_k(g, bytes, 16), n_div(g, bytes, n_k(g, bytes, 16))));
        ref high = n_div(g, bytes, n_k(g, bytes, 16));
        w = n_cast(g, n_reshape(g, n_concat(g, (ref[]){low, high}, 2, 2), &b), dtype);
    }
    ref y = n_dot(g, gpu_input(g, dtype, &a), w, &at);
    scope_set_block(g, y, block);
    struct shape all = *node_shape(g, y);
    graph_output(g, OUT_RETURN, digit(d, 2) ? y : n_add(g, y, gpu_input(g, dtype, &all)), 0);
    return g;
}
