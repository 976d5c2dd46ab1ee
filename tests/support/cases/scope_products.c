/* Small products, convolutions and attention: see scope_graphs.h. */
#include "scope_graphs.h"

static const int64_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 17};
static const int64_t columns[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33};
static const int64_t steps[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17};
static const unsigned product_dtypes[] = {KL_F32, KL_BF16, KL_F64, KL_F16, KL_I32};

/* ---- products ---- */

void scope_set_block(struct graph *g, ref dot, uint64_t which)
{
    static const uint32_t blocks[] = {0, 4, 8, 6};
    if (g->err.code || !blocks[which])
        return;
    g->node[dot].attr.dot.kblock = blocks[which];
    g->node[dot].attr.dot.lanes = 1;
}

static ref product_input(struct graph *g, unsigned dtype, const struct shape *s) { return n_input(g, dtype, s, "y"); }

/* What is computed from a product. */
static void product_outputs(struct graph *g, struct digits *d, ref y)
{
    struct shape s = *node_shape(g, y);
    unsigned dtype = node_at(g, y)->dtype;
    struct shape row = shape_make(1, (int64_t[]){s.dim[s.rank - 1]});
    uint8_t perm[KL_MAX_RANK] = {0};
    for (uint32_t i = 0; i < s.rank; i++)
        perm[i] = (uint8_t)(s.rank - 1 - i);
    switch (digit(d, 5)) {
    case 0: break;
    case 1: y = n_max(g, n_add(g, y, n_broadcast(g, product_input(g, dtype, &row), &s)), n_k(g, y, 0)); break;
    case 2: {
        ref z = n_add(g, y, product_input(g, dtype, &s));
        z = n_mul(g, n_add(g, z, n_mul(g, z, y)), n_sub(g, z, n_k(g, z, 1)));
        graph_output(g, OUT_RETURN, n_add(g, n_mul(g, z, z), y), 0);
        break;
    }
    case 3: {
        ref p = n_permute(g, y, perm);
        y = n_add(g, p, product_input(g, dtype, node_shape(g, p)));
        break;
    }
    default: graph_output(g, OUT_RETURN, n_cast(g, y, KL_I32), 0);
    }
    graph_output(g, OUT_RETURN, y, 0);
}

struct graph *scope_dot(struct digits *d)
{
    struct graph *g = graph_new("dot");
    int64_t m = DIGIT_OF(d, rows), n = DIGIT_OF(d, columns), k = DIGIT_OF(d, steps), batch = 1 + (int64_t)digit(d, 2);
    unsigned dtype = product_dtypes[digit(d, 5)];
    uint64_t transposed = digit(d, 4), block = digit(d, 4);
    struct shape a = shape_make(3, transposed & 1 ? (int64_t[]){batch, k, m} : (int64_t[]){batch, m, k});
    struct shape b = shape_make(3, transposed & 2 ? (int64_t[]){batch, n, k} : (int64_t[]){batch, k, n});
    union attr at = {.dot = {.nbatch = 1, .ncon = 1, .con_a = transposed & 1 ? 1 : 2, .con_b = transposed & 2 ? 2 : 1}};
    ref x = scope_operand(g, d, dtype, &a), y = n_dot(g, x, scope_operand(g, d, dtype, &b), &at);
    scope_set_block(g, y, block);
    product_outputs(g, d, y);
    return g;
}

/* Columns and steps of the contraction of two axes each: they are adjacent in runs where these are permuted, sliced or
 * windows. */
struct graph *scope_dot_runs(struct digits *d)
{
    static const int64_t outer[] = {1, 2, 3, 4};
    struct graph *g = graph_new("dot_runs");
    int64_t m = DIGIT_OF(d, rows), n1 = DIGIT_OF(d, outer), n0 = DIGIT_OF(d, columns), k1 = DIGIT_OF(d, outer),
            k0 = DIGIT_OF(d, steps);
    unsigned dtype = product_dtypes[digit(d, 4)];
    uint64_t order = digit(d, 4), block = digit(d, 4), views = digit(d, 3);
    struct shape a = shape_make(3, (int64_t[]){m, k1, k0});
    struct shape b = shape_make(4, order == 0   ? (int64_t[]){k1, k0, n1, n0}
                                   : order == 1 ? (int64_t[]){k1, n1, k0, n0}
                                   : order == 2 ? (int64_t[]){n1, k1, n0, k0}
                                                : (int64_t[]){n1, n0, k1, k0});
    uint32_t con = order == 0 ? 0x10 : order == 1 ? 0x20 : order == 2 ? 0x31 : 0x32;
    union attr at = {.dot = {.ncon = 2, .con_a = 0x21, .con_b = con}};
    ref x = scope_operand(g, d, dtype, &a), y;
    if (views == 0) {
        y = scope_operand(g, d, dtype, &b);
    } else { /* windows of the rows of an image */
        scope_operand(g, d, dtype, &b);
        uint32_t axis = views == 1 ? 3 : 2;
        struct shape from = b;
        int64_t size = views == 1 ? b.dim[2] : b.dim[3];
        from.rank = 3;
        from.dim[2] = (views == 1 ? b.dim[3] : b.dim[2]) + size - 1;
        y = n_window(g, product_input(g, dtype, &from), 2, size, 1, 1); /* [.., count, size] */
        if (axis == 3)
            y = n_permute(g, y, (uint8_t[KL_MAX_RANK]){0, 1, 3, 2});
    }
    ref z = n_dot(g, x, y, &at);
    scope_set_block(g, z, block);
    product_outputs(g, d, z);
    return g;
}

/* Enough rows and columns for a task that computes whole rows, whose long epilogue, a step of Adam, is computed during
 * the products of the next tile or after all of them. */
struct graph *scope_sweep(struct digits *d)
{
    static const int64_t heights[] = {127, 128, 129, 139, 140, 143, 144}, widths[] = {63, 64, 65, 79, 80, 96, 97};
    static const int64_t lengths[] = {8, 15, 16, 17, 31, 32, 47, 48, 49, 56, 57};
    struct graph *g = graph_new("sweep");
    int64_t m = DIGIT_OF(d, heights), n = DIGIT_OF(d, widths), k = DIGIT_OF(d, lengths);
    unsigned dtype = product_dtypes[digit(d, 4)];
    bool transposed = digit(d, 2);
    uint64_t block = digit(d, 4), computed = digit(d, 3);
    struct shape a = shape_make(2, transposed ? (int64_t[]){k, m} : (int64_t[]){m, k});
    struct shape b = shape_make(2, (int64_t[]){k, n}), all = shape_make(2, (int64_t[]){m, n});
    union attr at = {.dot = {.ncon = 1, .con_a = transposed ? 0 : 1, .con_b = 0}};
    ref x = product_input(g, dtype, &a), y = product_input(g, dtype, &b);
    if (!computed)
        x = n_mul(g, x, n_k(g, x, 2));
    ref dw = n_dot(g, x, y, &at);
    scope_set_block(g, dw, block);
    ref w = n_state(g, dtype, &all, "w"), mean = n_state(g, dtype, &all, "m"), square = n_state(g, dtype, &all, "v");
    ref next = n_add(g, mean, n_mul(g, n_sub(g, dw, mean), n_k(g, dw, 0.5)));
    ref next_square = n_add(g, square, n_mul(g, n_sub(g, n_mul(g, dw, dw), square), n_k(g, dw, 0.25)));
    ref root = n_add(g, n_sqrt(g, n_abs(g, next_square)), n_k(g, dw, 1));
    graph_output(g, OUT_ASSIGN, next, 1);
    graph_output(g, OUT_ASSIGN, next_square, 2);
    graph_output(g, OUT_ASSIGN, n_sub(g, w, n_div(g, next, root)), 0);
    return g;
}

struct graph *scope_bytes(struct digits *d)
{
    static const int64_t lengths[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 257};
    struct graph *g = graph_new("bytes");
    int64_t m = DIGIT_OF(d, rows), n = DIGIT_OF(d, columns), k = DIGIT_OF(d, lengths);
    unsigned first = digit(d, 2) ? KL_U8 : KL_I8, second = digit(d, 2) ? KL_U8 : KL_I8;
    bool transposed = digit(d, 2);
    struct shape a = shape_make(2, (int64_t[]){m, k}), b = shape_make(2, transposed ? (int64_t[]){n, k}
                                                                                : (int64_t[]){k, n});
    union attr at = {.dot = {.ncon = 1, .con_a = 1, .con_b = transposed, .sum = KL_I32}};
    ref x = scope_operand(g, d, first, &a), y = n_dot(g, x, scope_operand(g, d, second, &b), &at);
    product_outputs(g, d, y);
    return g;
}

/* Integers of 4 bits, [.., 2n], of bytes, [.., n], that have two each along the last axis. */
static ref numbers_of_bytes(struct graph *g, ref bytes)
{
    struct shape pair = *node_shape(g, bytes), all = pair;
    uint32_t last = pair.rank - 1;
    all.dim[last] *= 2;
    pair.dim[pair.rank++] = 1;
    ref x = n_reshape(g, bytes, &pair);
    pair.dim[last + 1] = 2;
    x = n_expand(g, x, &pair);
    x = n_shr(g, x, n_shl(g, n_iota(g, KL_U8, &pair, last + 1), n_k(g, x, 2)));
    x = n_bitcast(g, n_xor(g, n_and(g, x, n_k(g, x, 15)), n_k(g, x, 8)), KL_I8); /* 0 to 15 for -8 to 7 */
    return n_reshape(g, n_sub(g, x, n_k(g, x, 8)), &all);
}

/* A product with a matrix of small integers, which have a scale for each block along the contraction, for few rows and
 * for more than one panel is packed for. */
struct graph *scope_quantized(struct digits *d)
{
    static const int64_t heights[] = {1, 2, 7, 8, 9, 130, 133, 141}, widths[] = {1, 2, 4, 6, 15, 16, 17, 18, 34};
    static const int64_t blocks[] = {1, 2, 3, 4, 16, 32};
    struct graph *g = graph_new("quantized");
    int64_t m = DIGIT_OF(d, heights), n = DIGIT_OF(d, widths), block = DIGIT_OF(d, blocks);
    int64_t count = 1 + (int64_t)digit(d, 4), k = block * count;
    uint64_t form = digit(d, 3), order = digit(d, 3), summed = digit(d, 4);
    bool along_k = order > 0, packed = form == 2 && (along_k ? k : n) % 2 == 0;
    struct shape a = shape_make(2, (int64_t[]){m, k}), b = shape_make(2, along_k ? (int64_t[]){n, k}
                                                                                : (int64_t[]){k, n});
    struct shape bytes = b, scales = b, cut = b;
    uint32_t axis = along_k;
    bytes.dim[1] /= packed ? 2 : 1;
    scales.dim[axis] = count;
    ref x = product_input(g, KL_F32, &a), w = n_input(g, packed ? KL_U8 : form ? KL_I8 : KL_U8, &bytes, "w");
    ref scale = product_input(g, KL_F32, &scales);
    w = packed ? numbers_of_bytes(g, w) : w;
    cut.rank = 3;
    cut.dim[2] = axis ? 1 : b.dim[1];
    cut.dim[axis] = count;
    cut.dim[axis + 1] = 1;
    cut.dim[axis ? 0 : 2] = n;
    scale = n_reshape(g, scale, &cut);
    cut.dim[axis + 1] = block;
    scale = n_reshape(g, n_expand(g, scale, &cut), &b);
    if (order == 2) { /* scaled after the permute */
        w = n_permute(g, w, (uint8_t[KL_MAX_RANK]){1, 0});
        scale = n_permute(g, scale, (uint8_t[KL_MAX_RANK]){1, 0});
    }
    w = n_dequantize(g, w, scale, n_k(g, w, 0));
    union attr at = {.dot = {.ncon = 1, .con_a = 1, .con_b = order == 1}};
    ref y = n_dot(g, x, w, &at);
    scope_set_block(g, y, summed);
    product_outputs(g, d, y);
    return g;
}

/* A matrix whose axis `con` is contracted, as [blocks, block, rest]. */
static ref cut_into_blocks(struct graph *g, ref x, uint32_t con, int64_t block)
{
    x = con ? n_permute(g, x, (uint8_t[KL_MAX_RANK]){1, 0}) : x;
    const struct shape *s = node_shape(g, x);
    struct shape cut = shape_make(3, (int64_t[]){s->dim[0] / block, block, s->dim[1]});
    return n_reshape(g, x, &cut);
}

/* Scales [rest, blocks], or [blocks, rest], for each product of a block: [blocks, m, n].  small: computed from an
 * integer and a half float. */
static ref scales_of_blocks(struct graph *g, uint32_t con, uint32_t axis, const struct shape *all, bool small)
{
    struct shape s = shape_make(2, (int64_t[]){all->dim[0], all->dim[axis]}), one = *all;
    if (con)
        s = shape_make(2, (int64_t[]){s.dim[1], s.dim[0]});
    ref x = small ? n_cast(g, n_input(g, KL_I8, &s, "s"), KL_F32) : product_input(g, KL_F32, &s);
    if (small)
        x = n_mul(g, x, n_cast(g, product_input(g, KL_F16, &s), KL_F32));
    x = con ? n_permute(g, x, (uint8_t[KL_MAX_RANK]){1, 0}) : x;
    one.dim[3 - axis] = 1;
    return n_expand(g, n_reshape(g, x, &one), all);
}

/* Bytes [n, k] that are stored interleaved, word by word of 16 rows. */
static ref interleaved_rows(struct graph *g, unsigned dtype, const struct shape *all)
{
    struct shape s = shape_make(4, (int64_t[]){all->dim[0] / 16, all->dim[1] / 4, 16, 4});
    return n_reshape(g, n_permute(g, n_input(g, dtype, &s, "w"), (uint8_t[KL_MAX_RANK]){0, 2, 1, 3}), all);
}

/* Two matrices of small integers with a scale for each block along the contraction: products of integers, scaled and
 * added over the blocks, in chunks of several lengths. */
struct graph *scope_block_dot(struct digits *d)
{
    static const int64_t heights[] = {1, 2, 3, 8, 9, 17, 40};
    static const int64_t widths[] = {1, 2, 3, 5, 8, 15, 16, 17, 24, 32, 33, 70, 80};
    static const int64_t blocks[] = {1, 3, 4, 8, 12, 16, 32, 64}, counts[] = {1, 2, 3, 5};
    struct graph *g = graph_new("block_dot");
    int64_t m = DIGIT_OF(d, heights), n = DIGIT_OF(d, widths), block = DIGIT_OF(d, blocks), count = DIGIT_OF(d, counts);
    int64_t k = block * count;
    uint64_t form = digit(d, 4), orders = digit(d, 6), chunk = digit(d, 3), scaled = digit(d, 3);
    uint32_t con_a = orders & 1, con_b = orders > 1;
    bool packed = form == 3 && (con_b ? k : n) % 2 == 0;
    struct shape a = shape_make(2, con_a ? (int64_t[]){m, k} : (int64_t[]){k, m});
    struct shape b = shape_make(2, con_b ? (int64_t[]){n, k} : (int64_t[]){k, n});
    b.dim[1] /= packed ? 2 : 1;
    unsigned dtype = form == 1 ? KL_I8 : KL_U8;
    bool interleaved = orders > 3 && n % 16 == 0 && b.dim[1] % 4 == 0;
    ref x = n_input(g, form & 1 ? KL_I8 : KL_U8, &a, "x");
    ref w = interleaved ? interleaved_rows(g, dtype, &b) : n_input(g, dtype, &b, "w");
    w = packed ? numbers_of_bytes(g, w) : w;
    union attr at = {.dot = {.nbatch = 1, .ncon = 1, .con_a = 1, .con_b = 1, .sum = KL_I32}};
    ref y = n_dot(g, cut_into_blocks(g, x, con_a, block), cut_into_blocks(g, w, con_b, block), &at);
    struct shape all = *node_shape(g, y), out = shape_make(2, (int64_t[]){m, n});
    y = n_mul(g, n_cast(g, y, KL_F32), scales_of_blocks(g, con_b, 2, &all, scaled > 1));
    if (scaled)
        y = n_mul(g, y, scales_of_blocks(g, con_a, 1, &all, false));
    if (scaled > 1)
        y = n_sub(g, y, n_mul(g, scales_of_blocks(g, con_a, 1, &all, false),
                              scales_of_blocks(g, con_b, 2, &all, true)));
    y = n_reduce(g, OP_sum, y, 1);
    if (chunk && !g->err.code && m * n > 1) {
        g->node[y].attr.reduce.lanes = 1;
        g->node[y].attr.reduce.chunk = chunk + 1;
    }
    product_outputs(g, d, n_reshape(g, y, &out));
    return g;
}

/* ---- convolutions ---- */

struct windows { int64_t length, size, stride, dilation, pad; };

static struct windows windows_of(struct digits *d)
{
    static const int64_t lengths[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17};
    struct windows w = {.length = DIGIT_OF(d, lengths), .size = 1 + (int64_t)digit(d, 3),
                        .stride = 1 + (int64_t)digit(d, 3), .dilation = 1 + (int64_t)digit(d, 2),
                        .pad = (int64_t)digit(d, 2)};
    while ((w.size - 1) * w.dilation + 1 > w.length + 2 * w.pad)
        w.length++;
    return w;
}

/* Each window axis joins the channels as soon as it is made, as in frontend/nn/window.c. */
static ref convolution(struct graph *g, ref x, ref w, const struct windows *win, uint32_t n, uint64_t block)
{
    struct shape s = *node_shape(g, x), wide = *node_shape(g, w);
    int64_t groups = wide.dim[0], filters = wide.dim[1];
    ref zero = n_const(g, node_at(g, x)->dtype, 0);
    for (uint32_t i = 0; i < n; i++)
        if (win[i].pad)
            x = n_pad(g, x, zero, 2 + i, win[i].pad, win[i].pad, 0);
    s = (struct shape){.rank = 3 + n, .dim = {s.dim[0], groups, s.dim[1] / groups}};
    for (uint32_t i = 0; i < n; i++)
        s.dim[3 + i] = win[i].length + 2 * win[i].pad;
    x = n_reshape(g, x, &s);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t perm[KL_MAX_RANK] = {0, 1, 2, (uint8_t)s.rank};
        for (uint32_t axis = 3; axis < s.rank; axis++)
            perm[axis + 1] = (uint8_t)axis;
        x = n_window(g, x, 3 + i, win[i].size, win[i].stride, win[i].dilation);
        s.dim[2] *= win[i].size;
        s.dim[3 + i] = node_shape(g, x)->dim[3 + i];
        x = n_reshape(g, n_permute(g, x, perm), &s);
    }
    bool bytes = dtype_size(node_at(g, x)->dtype) == 1;
    union attr at = {.dot = {.nbatch = 1, .ncon = 1, .batch_b = 1, .con_a = 2, .con_b = 2, .sum = bytes ? KL_I32 : 0}};
    ref y = n_dot(g, w, x, &at);
    scope_set_block(g, y, block);
    uint8_t perm[KL_MAX_RANK] = {2, 0, 1};
    struct shape out = {.rank = 2 + n, .dim = {s.dim[0], groups * filters}};
    for (uint32_t i = 0; i < n; i++) {
        perm[3 + i] = (uint8_t)(3 + i);
        out.dim[2 + i] = s.dim[3 + i];
    }
    return n_reshape(g, n_permute(g, y, perm), &out);
}

/* Two axes whose windows all exist: columns are adjacent in runs of a row's windows, of which a vector has parts of
 * several, in batches of several rows. */
struct graph *scope_windows(struct digits *d)
{
    struct graph *g = graph_new("windows");
    int64_t batch = 1 + (int64_t)digit(d, 8), high = 1 + (int64_t)digit(d, 8), wide = 1 + (int64_t)digit(d, 9);
    int64_t kh = 1 + (int64_t)digit(d, 3), kw = 1 + (int64_t)digit(d, 3), filters = 1 + (int64_t)digit(d, 2);
    struct windows win[2] = {{.length = high + kh - 1, .size = kh, .stride = 1, .dilation = 1},
                             {.length = wide + kw - 1, .size = kw, .stride = 1, .dilation = 1}};
    struct shape s = shape_make(4, (int64_t[]){batch, 1, win[0].length, win[1].length});
    struct shape w = shape_make(3, (int64_t[]){1, filters, kh * kw});
    ref x = product_input(g, KL_F32, &s);
    graph_output(g, OUT_RETURN, convolution(g, x, product_input(g, KL_F32, &w), win, 2, 0), 0);
    return g;
}

/* Of bytes, summed as i32: contractions that end within a group of four, runs shorter and longer than a vector, every
 * second element, groups. */
struct graph *scope_bytes_conv(struct digits *d)
{
    static const int64_t lengths[] = {1, 2, 5, 7, 8, 15, 16, 17, 33};
    struct graph *g = graph_new("bytes_conv");
    unsigned first = digit(d, 2) ? KL_U8 : KL_I8, second = digit(d, 2) ? KL_U8 : KL_I8;
    int64_t batch = 1 + (int64_t)digit(d, 3), groups = 1 + (int64_t)digit(d, 2), depth = 1 + (int64_t)digit(d, 5);
    int64_t filters = DIGIT_OF(d, rows), high = 1 + (int64_t)digit(d, 3), wide = DIGIT_OF(d, lengths);
    int64_t kh = 1 + (int64_t)digit(d, 3), kw = 1 + (int64_t)digit(d, 4), stride = 1 + (int64_t)digit(d, 3);
    struct windows win[2] = {{high + kh - 1, kh, 1, 1, 0}, {(wide - 1) * stride + kw, kw, stride, 1, 0}};
    struct shape s = shape_make(4, (int64_t[]){batch, groups * depth, win[0].length, win[1].length});
    struct shape w = shape_make(3, (int64_t[]){groups, filters, depth * kh * kw});
    ref x = n_input(g, first, &s, "x");
    product_outputs(g, d, convolution(g, x, n_input(g, second, &w, "w"), win, 2, 0));
    return g;
}

/* One to three axes.  A transposed convolution is the gradient in x. */
struct graph *scope_conv(struct digits *d)
{
    static const int64_t axes_of[] = {2, 2, 1, 3};
    struct graph *g = graph_new("conv");
    uint32_t n = (uint32_t)DIGIT_OF(d, axes_of);
    int64_t batch = 1 + (int64_t)digit(d, 3), groups = 1 + (int64_t)digit(d, 2), depth = 1 + (int64_t)digit(d, 3);
    int64_t filters = DIGIT_OF(d, rows);
    unsigned dtype = product_dtypes[digit(d, 3)];
    uint64_t form = digit(d, 5), block = digit(d, 4);
    struct windows win[3];
    struct shape s = {.rank = 2 + n, .dim = {batch, groups * depth}};
    int64_t taps = 1;
    for (uint32_t i = 0; i < 3; i++) {
        win[i] = windows_of(d);
        if (n == 3) /* fewer elements of each of more axes */
            win[i].length = win[i].length > 5 ? 5 : win[i].length;
        if (i < n) {
            s.dim[2 + i] = win[i].length;
            taps *= win[i].size;
        }
    }
    struct shape wide = shape_make(3, (int64_t[]){groups, filters, depth * taps});
    ref x = product_input(g, dtype, &s), w = product_input(g, dtype, &wide);
    ref y = convolution(g, x, w, win, n, form < 2 ? block : 0);
    struct shape bias = shape_make(1, (int64_t[]){node_shape(g, y)->dim[n + 1]});
    if (form == 1)
        y = n_max(g, n_add(g, y, n_broadcast(g, product_input(g, dtype, &bias), node_shape(g, y))), n_k(g, y, 0));
    if (form < 2) {
        graph_output(g, OUT_RETURN, y, 0);
        return g;
    }
    struct shape all = *node_shape(g, y);
    ref loss = n_reduce(g, OP_sum, n_mul(g, y, product_input(g, dtype, &all)), (1u << all.rank) - 1);
    if (form != 3)
        graph_output(g, OUT_RETURN, n_grad(g, loss, x), 0);
    if (form != 2)
        graph_output(g, OUT_RETURN, n_grad(g, loss, w), 0);
    return g;
}

/* ---- attention ---- */

struct graph *scope_attention(struct digits *d)
{
    static const int64_t queries[] = {1, 2, 3, 4, 5, 8, 9, 17}, keys[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 65},
                         depths[] = {1, 2, 3, 4, 5, 8, 9, 16, 17};
    static const uint32_t blocks[] = {0, 8, 16, 5};
    struct graph *g = graph_new("attention");
    int64_t batch = 1 + (int64_t)digit(d, 2), l = DIGIT_OF(d, queries), m = DIGIT_OF(d, keys), e = DIGIT_OF(d, depths),
            v = DIGIT_OF(d, depths);
    unsigned dtype = product_dtypes[digit(d, 4)];
    uint64_t seen = digit(d, 3), form = digit(d, 4);
    bool causal = digit(d, 2);
    uint32_t block = blocks[digit(d, 4)];
    struct shape sq = shape_make(3, (int64_t[]){batch, l, e}), sk = shape_make(3, (int64_t[]){batch, m, e}),
                 sv = shape_make(3, (int64_t[]){batch, m, v}),
                 see = shape_make(3, (int64_t[]){batch, l, seen == 1 ? m : 2});
    ref q = scope_operand(g, d, dtype, &sq), k = scope_operand(g, d, dtype, &sk);
    ref values = scope_operand(g, d, dtype, &sv);
    ref mask = seen ? n_input(g, seen == 1 ? KL_BOOL : KL_I32, &see, "seen") : NIL;
    ref y = n_attention(g, q, k, values, mask, 0.25, causal), din[3] = {NIL};
    if (!g->err.code)
        g->node[y].attr.attention.block = block;
    if (form) {
        n_attention_gradient(g, y, product_input(g, dtype, node_shape(g, y)), din);
        for (uint32_t i = 0; i < 3; i++)
            if (form == 3 || (form == 1) == (i == 0))
                graph_output(g, OUT_RETURN, din[i], 0);
        return g;
    }
    graph_output(g, OUT_RETURN, y, 0);
    return g;
}
