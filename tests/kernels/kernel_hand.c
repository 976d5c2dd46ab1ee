/* Hand-built kernels: the interpreter against compiled code, bit for bit, on every target this machine runs. */
#include "kernel_test.h"

static struct targets targets;
static struct rng rng = {2024};

/* Random contents for the inputs of a kernel. */
static void fill_inputs(const struct kernel *k, bool wild, void **init)
{
    for (uint32_t b = 0; b < k->nbuf; b++) {
        init[b] = calloc(buf_bytes(k, b) + 1, 1);
        fill_random(&rng, k->buf[b].dtype, init[b], k->buf[b].count, wild);
    }
}

static void free_inputs(const struct kernel *k, void **init)
{
    for (uint32_t b = 0; b < k->nbuf; b++) free(init[b]);
}

static void compare_random(struct kernel *k, bool wild, const char *what)
{
    void *init[MAX_BUFS];
    uint64_t slot[1] = {0};
    fill_inputs(k, wild, init);
    agree(&targets, k, (const void *const *)init, slot, NULL, what);
    free_inputs(k, init);
    kernel_free(k);
}

/* The parallel loop over blocks of `width` elements of n, and in it the vector loop; *index: the element. */
static val open_blocks(struct kernel *k, int64_t n, unsigned width, val *vector, val *index, val *in_range)
{
    k->extent = (n + width - 1) / width;
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, k->extent), 1);
    *vector = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, width), 1);
    *index = ix_add(k, ix_scale(k, p, width), *vector);
    *in_range = k_prim(k, P_LT, *index, k_int(k, n), 0);
    return p;
}

static void close_two(struct kernel *k, val outer, val inner)
{
    k_end(k, inner);
    k_end(k, outer);
}

/* Elements of a and b in turn, of every dtype and width, with a tail: no lane beyond it may touch memory. */
static void test_map(void)
{
    static const unsigned widths[] = {1, 2, 16, 64};
    for (unsigned dtype = 0; dtype < KL_DTYPE_COUNT; dtype++) {
        for (unsigned w = 0; w < sizeof widths / sizeof *widths; w++) {
            struct kernel *k = kernel_new("map");
            uint32_t a = k_buf(k, BUF_IN, dtype, 133, 0), b = k_buf(k, BUF_IN, dtype, 133, 1),
                     o = k_buf(k, BUF_OUT, dtype, 133, 2);
            val v, i, ok, p = open_blocks(k, 133, widths[w], &v, &i, &ok);
            val x = k_load(k, a, i, ok), y = k_load(k, b, i, ok);
            k_store(k, o, i,
                    k_prim(k, P_SELECT, k_prim(k, P_EQ, k_prim(k, P_AND, i, k_int(k, 4), 0), k_int(k, 0), 0), x, y),
                    ok);
            close_two(k, p, v);
            char what[64];
            snprintf(what, sizeof what, "map of %s, width %u", dtype_name(dtype), widths[w]);
            compare_random(k, true, what);
        }
    }
}

/* ---- primitives ---- */

static bool allowed(enum prim p, unsigned dtype)
{
    if (dtype_is_half(dtype)) return p == P_SELECT;
    switch (p) {
    case P_FMA:
    case P_SQRT:
    case P_RINT:
        return dtype_is_float(dtype);
    case P_AND:
    case P_OR:
    case P_XOR:
    case P_NOT:
        return !dtype_is_float(dtype);
    case P_SHL:
    case P_SHR:
        return !dtype_is_float(dtype) && dtype != KL_BOOL;
    case P_ADD:
    case P_SUB:
    case P_MUL:
    case P_DIV:
    case P_NEG:
    case P_ABS:
        return dtype != KL_BOOL;
    case P_EQ:
    case P_NE:
    case P_LT:
    case P_LE:
    case P_SELECT:
        return true;
    default:
        return false; /* cast, bits and dot2 have a test of their own */
    }
}

static const struct {
    enum prim p;
    unsigned operands;
} prims[] = {
#define PRIM(NAME, name, n, result, doc) {P_##NAME, n},
#include "ir/math/prims.def"
};
enum { NPRIMS = sizeof prims / sizeof *prims };

static uint64_t edge(unsigned dtype, unsigned i)
{
    static const double f[] = {0.0,
                               -0.0,
                               1,
                               -1,
                               0.5,
                               -1.5,
                               2.5,
                               INFINITY,
                               -INFINITY,
                               NAN,
                               0x1p-149,
                               -0x1p-140,
                               0x1p-1074,
                               0x1p-126,
                               0x1p-1022,
                               3.4028234663852886e38,
                               1.7976931348623157e308,
                               127.5,
                               -128.5,
                               255.9,
                               32767.5,
                               65536,
                               2147483647.5,
                               -2147483649.0,
                               4294967295.0,
                               9007199254740993.0,
                               9.2233720368547758e18,
                               1.8446744073709552e19,
                               -1e300,
                               16777217,
                               8388607.5,
                               1e-310};
    unsigned bits = 8 * (unsigned)dtype_size(dtype);
    if (dtype == KL_BOOL) return i & 1;
    if (dtype_is_float(dtype)) return dtype_bits(dtype, f[i % (sizeof f / sizeof *f)]);
    uint64_t top = UINT64_C(1) << (bits - 1);
    const uint64_t x[] = {0,
                          1,
                          2,
                          3,
                          7,
                          bits - 1,
                          bits,
                          bits + 1,
                          top,
                          top - 1,
                          top + 1,
                          UINT64_MAX,
                          UINT64_MAX - 1,
                          UINT64_MAX - 6,
                          UINT64_C(0x0123456789abcdef),
                          UINT64_C(0xfedcba9876543210),
                          UINT64_C(0x20000000000001),
                          (UINT64_C(1) << 24) + 1};
    return i < sizeof x / sizeof *x ? x[i] : rng_next(&rng);
}

enum { EDGES = 32 };

/* n elements that meet in pairs: a runs fast, b slowly, c at random. */
static void fill_edges(const struct kernel *k, void **init, int64_t n)
{
    for (uint32_t b = 0; b < k->nbuf; b++) {
        size_t size = dtype_size(k->buf[b].dtype);
        init[b] = calloc(buf_bytes(k, b) + 1, 1);
        for (int64_t i = 0; k->buf[b].role == BUF_IN && i < n; i++) {
            unsigned e = b == 0   ? (unsigned)(i % EDGES)
                         : b == 1 ? (unsigned)(i / EDGES)
                                  : (unsigned)rng_below(&rng, EDGES);
            uint64_t bits = edge(k->buf[b].dtype, e);
            memcpy((char *)init[b] + (size_t)i * size, &bits, size);
        }
    }
}

static void compare_edges(struct kernel *k, int64_t n, const char *what)
{
    void *init[MAX_BUFS];
    fill_edges(k, init, n);
    agree(&targets, k, (const void *const *)init, NULL, NULL, what);
    free_inputs(k, init);
    kernel_free(k);
}

/* Every primitive that dtype has, on all pairs of edges; width 0: scalar code in a serial loop. */
static void test_prims(unsigned dtype, unsigned width)
{
    int64_t n = EDGES * EDGES;
    struct kernel *k = kernel_new("prims");
    uint32_t a = k_buf(k, BUF_IN, dtype, n, 0), b = k_buf(k, BUF_IN, dtype, n, 1), c = k_buf(k, BUF_IN, dtype, n, 2);
    uint32_t s = k_buf(k, BUF_IN, KL_BOOL, n, 3);
    val v = 0, i, ok = 0, p;
    if (width)
        p = open_blocks(k, n, width, &v, &i, &ok);
    else
        p = i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, n), 1);
    val x = k_load(k, a, i, ok), y = k_load(k, b, i, ok), z = k_load(k, c, i, ok), cond = k_load(k, s, i, ok);
    for (unsigned j = 0; j < NPRIMS; j++) {
        if (!allowed(prims[j].p, dtype)) continue;
        unsigned m = prims[j].operands;
        val r = prims[j].p == P_SELECT ? k_prim(k, P_SELECT, cond, x, y)
                                       : k_prim(k, prims[j].p, x, m > 1 ? y : 0, m > 2 ? z : 0);
        k_store(k, k_buf(k, BUF_OUT, val_dtype(k, r), n, 4 + j), i, r, ok);
    }
    if (v) k_end(k, v);
    k_end(k, p);
    char what[64];
    snprintf(what, sizeof what, "primitives of %s, width %u", dtype_name(dtype), width);
    compare_edges(k, n, what);
}

/* Casts to every dtype, and the bits as every other dtype of the same size. */
static void test_casts(unsigned dtype, unsigned width)
{
    int64_t n = EDGES * EDGES;
    struct kernel *k = kernel_new("casts");
    uint32_t a = k_buf(k, BUF_IN, dtype, n, 0);
    val v, i, ok, p = open_blocks(k, n, width, &v, &i, &ok), x = k_load(k, a, i, ok);
    for (unsigned to = 0; to < KL_DTYPE_COUNT; to++) {
        k_store(k, k_buf(k, BUF_OUT, to, n, 1), i, k_cast(k, x, to), ok);
        if (to != KL_BOOL && dtype != KL_BOOL && dtype_size(to) == dtype_size(dtype))
            k_store(k, k_buf(k, BUF_OUT, to, n, 1), i, k_inst(k, L_OP(P_BITS), to, x, 0, 0, 0), ok);
    }
    close_two(k, p, v);
    char what[64];
    snprintf(what, sizeof what, "casts of %s, width %u", dtype_name(dtype), width);
    compare_edges(k, n, what);
}

enum { PAIRS_N = 4096 };

/* bf16 of all kinds: any bits, numbers whose products are near the smallest normal f32, special ones. */
static uint32_t some_bf16(void)
{
    static const uint16_t special[] = {0,      0x8000, 1,      0x807f, 0x0080, 0x8080, 0x0081, 0x7f80,
                                       0xff80, 0x7fc0, 0x7f81, 0x7f7f, 0xff7f, 0x3f80, 0x1f80, 0xa000};
    uint64_t r = rng_next(&rng);
    switch (r >> 60 & 3) {
    case 0: return (uint32_t)(r & 0xffff);
    case 1: return (uint32_t)((r & 0x807f) | (61 + (r >> 20) % 8) << 7);
    case 2: return special[r % 16];
    default: return (uint32_t)((r & 0x807f) | (120 + (r >> 20) % 16) << 7);
    }
}

static uint32_t some_f32(void)
{
    static const uint32_t special[] = {0,          0x80000000, 1,          0x807fffff, 0x00800000, 0x80800000,
                                       0x00800001, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0x7f7fffff};
    uint64_t r = rng_next(&rng);
    switch (r >> 60 & 3) {
    case 0: return (uint32_t)r;
    case 1: return (uint32_t)(r & 0x80ffffff);
    case 2: return special[r % 12];
    default: return (uint32_t)((r & 0x807fffff) | (120 + (r >> 33) % 16) << 23);
    }
}

/* By the processor's instruction where it has one, else by its meaning; width 0: scalar code in a serial loop. */
static void test_dot2(unsigned width)
{
    void *init[MAX_BUFS];
    struct kernel *k = kernel_new("dot2");
    uint32_t a = k_buf(k, BUF_IN, KL_U32, PAIRS_N, 0), b = k_buf(k, BUF_IN, KL_U32, PAIRS_N, 1);
    uint32_t c = k_buf(k, BUF_IN, KL_F32, PAIRS_N, 2), o = k_buf(k, BUF_OUT, KL_F32, PAIRS_N, 3);
    val v = 0, i, ok = 0, p;
    if (width)
        p = open_blocks(k, PAIRS_N, width, &v, &i, &ok);
    else
        p = i = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, PAIRS_N), 1);
    k_store(k, o, i, k_prim(k, P_DOT2, k_load(k, a, i, ok), k_load(k, b, i, ok), k_load(k, c, i, ok)), ok);
    if (v) k_end(k, v);
    k_end(k, p);
    for (uint32_t j = 0; j < k->nbuf; j++) {
        uint32_t *x = calloc(PAIRS_N, sizeof *x);
        for (int n = 0; n < PAIRS_N; n++) x[n] = j == c ? some_f32() : some_bf16() | some_bf16() << 16;
        init[j] = x;
    }
    agree(&targets, k, (const void *const *)init, NULL, NULL, "dot2");
    free_inputs(k, init);
    kernel_free(k);
}

/* ---- reductions ---- */

/* Rows of n elements to one each: 64 lanes carried over the row, then folded. */
static void test_row_reduce(unsigned dtype, enum fold f, int64_t n, unsigned width)
{
    int64_t rows = 5;
    struct kernel *k = kernel_new("row_reduce");
    uint32_t a = k_buf(k, BUF_IN, dtype, rows * n, 0), o = k_buf(k, BUF_OUT, dtype, rows, 1);
    k->extent = rows;
    val p = k_loop(k, LOOP_PARALLEL, k_int(k, 0), k_int(k, rows), 1);
    val v = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, width), 1);
    val init = k_splat(k, k_bits(k, dtype, fold_identity(f, dtype)));
    val s = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, n), width), acc = k_carry(k, init);
    val col = ix_add(k, s, v), ok = k_prim(k, P_LT, col, k_int(k, n), 0);
    val x = k_load(k, a, ix_add(k, ix_scale(k, p, n), col), ok);
    k_next(k, acc, k_prim(k, P_SELECT, ok, k_fold_step(k, f, acc, x), acc));
    k_end(k, s);
    k_store(k, o, p, k_lane_reduce(k, f, k_out(k, acc)), 0);
    close_two(k, p, v);
    char what[80];
    snprintf(what, sizeof what, "row reduce %d of %s[%" PRId64 "], width %u", (int)f, dtype_name(dtype), n, width);
    compare_random(k, true, what);
}

/* Columns: lanes beside each other, the rows one after the other. */
static void test_column_reduce(unsigned dtype)
{
    int64_t rows = 9, n = 70;
    struct kernel *k = kernel_new("column_reduce");
    uint32_t a = k_buf(k, BUF_IN, dtype, rows * n, 0), o = k_buf(k, BUF_OUT, dtype, n, 1);
    val v, i, ok, p = open_blocks(k, n, 32, &v, &i, &ok);
    val init = k_splat(k, k_const(k, dtype, 0));
    val s = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, rows), 1), acc = k_carry(k, init);
    k_next(k, acc, k_prim(k, P_ADD, acc, k_load(k, a, ix_add(k, ix_scale(k, s, n), i), ok), 0));
    k_end(k, s);
    k_store(k, o, i, k_out(k, acc), ok);
    close_two(k, p, v);
    compare_random(k, true, "column reduce");
}

/* ---- addressing ---- */

/* Strides of 2, -1 and 0, an index that is loaded, stores to permuted and to shared elements. */
static void test_addresses(unsigned dtype, unsigned width)
{
    int64_t n = 100;
    struct kernel *k = kernel_new("addresses");
    uint32_t a = k_buf(k, BUF_IN, dtype, 2 * n, 0), at = k_buf(k, BUF_IN, KL_U16, n, 1);
    uint32_t o[6];
    for (uint32_t j = 0; j < 6; j++) o[j] = k_buf(k, BUF_OUT, dtype, n, 2 + j);
    val v, i, ok, p = open_blocks(k, n, width, &v, &i, &ok);
    val back = ix_sub(k, k_int(k, n - 1), i);
    val low = k_prim(k, P_AND, k_cast(k, k_load(k, at, i, ok), KL_I64), k_int(k, 255), 0),
        far = k_prim(k, P_SUB, low, k_int(k, 50), 0);
    val near = k_prim(k, P_AND, k_prim(k, P_LE, k_int(k, 0), far, 0), k_prim(k, P_LT, far, k_int(k, 2 * n), 0), 0);
    near = k_prim(k, P_AND, near, ok, 0);
    k_store(k, o[0], i, k_load(k, a, ix_add(k, ix_scale(k, i, 2), k_int(k, 1)), ok), ok);
    k_store(k, o[1], i, k_load(k, a, back, ok), ok);
    k_store(k, o[2], i, k_load(k, a, p, 0), ok);
    k_store(k, o[3], i, k_load(k, a, far, near), ok);
    k_store(k, o[4], back, k_load(k, a, i, ok), ok);
    val third = ix_add(k, ix_scale(k, p, width), ix_div(k, v, 3));
    k_store(k, o[5], third, k_load(k, a, i, ok), ok); /* three lanes to each: the last one stays */
    close_two(k, p, v);
    char what[64];
    snprintf(what, sizeof what, "addresses of %s, width %u", dtype_name(dtype), width);
    compare_random(k, true, what);
}

/* Indices as data: affine ones become vectors, and wrap around as any i64. */
static void test_index_values(void)
{
    int64_t n = 40;
    struct kernel *k = kernel_new("index_values");
    uint32_t o = k_buf(k, BUF_OUT, KL_I64, n, 0), f = k_buf(k, BUF_OUT, KL_F64, n, 1),
             q = k_buf(k, BUF_OUT, KL_I64, n, 2);
    val v, i, ok, p = open_blocks(k, n, 16, &v, &i, &ok);
    val big = k_prim(k, P_MUL, i, k_int(k, INT64_C(0x7123456789abcdef)), 0);
    big = k_prim(k, P_MUL, k_prim(k, P_SUB, k_int(k, 17), big, 0), k_int(k, INT64_C(0x4123456789abcdef)), 0);
    k_store(k, o, i, k_prim(k, P_ADD, big, k_prim(k, P_MUL, big, k_int(k, INT64_MAX), 0), 0), ok);
    k_store(k, f, i, k_cast(k, i, KL_F64), ok);
    k_store(k, q, i, k_prim(k, P_DIV, i, k_int(k, 7), 0), ok);
    close_two(k, p, v);
    int64_t want[40], quot[40];
    double number[40];
    for (int64_t j = 0; j < n; j++) {
        uint64_t x = (17 - (uint64_t)j * UINT64_C(0x7123456789abcdef)) * UINT64_C(0x4123456789abcdef);
        want[j] = (int64_t)(x + x * (uint64_t)INT64_MAX);
        number[j] = (double)j;
        quot[j] = j / 7;
    }
    agree(&targets, k, NULL, NULL, (const void *const[]){want, number, quot}, "indices as values");
    kernel_free(k);
}

/* A transpose of width rows of width lanes in registers, by interleaves at every distance.  overwritten: a row is,
 * after it was loaded. */
static void test_transpose(unsigned dtype, unsigned width, bool overwritten)
{
    struct kernel *k = kernel_new("transpose");
    int64_t n = width * width;
    uint32_t a = k_buf(k, BUF_IN, dtype, n, 0), o = k_buf(k, BUF_OUT, dtype, n, 1);
    val v = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, width), 1), row[64];
    if (overwritten) {
        uint32_t copy = k_buf(k, BUF_SCRATCH, dtype, n, 0);
        for (unsigned r = 0; r < width; r++)
            k_store(k, copy, ix_add(k, v, k_int(k, r * width)), k_load(k, a, ix_add(k, v, k_int(k, r * width)), 0), 0);
        a = copy;
    }
    for (unsigned r = 0; r < width; r++) row[r] = k_load(k, a, ix_add(k, v, k_int(k, r * width)), 0);
    if (overwritten)
        k_store(k, a, ix_add(k, v, k_int(k, width)), k_splat(k, k_bits(k, dtype, 0)), 0);
    k_transpose(k, row, width);
    for (unsigned r = 0; r < width; r++) k_store(k, o, ix_add(k, v, k_int(k, r * width)), row[r], 0);
    k_end(k, v);
    void *init[MAX_BUFS];
    fill_inputs(k, true, init);
    size_t size = dtype_size(dtype);
    for (unsigned i = 0; i < n; i++)
        memcpy((char *)init[1] + i * size, (char *)init[0] + (i % width * width + i / width) * size, size);
    char what[64];
    snprintf(what, sizeof what, "transpose of %s, width %u", dtype_name(dtype), width);
    agree(&targets, k, (const void *const *)init, NULL, (const void *const *)init, what);
    free_inputs(k, init);
    kernel_free(k);
}

/* What there is beside rows of words, of two elements each, whose halves become f32 after they were transposed. */
enum { HALVES, WORDS_STORED, EXCHANGE_STORED, ROWS_MASKED, ROW_SPLAT, HALVES_FORMS };

/* The elements of a transposed square that starts at element `first`; the results of element h of each row are
 * adjacent. */
static void test_transpose_halves(unsigned dtype, unsigned width, int64_t first, unsigned form)
{
    struct kernel *k = kernel_new("transpose_halves");
    int64_t side = 2 * (int64_t)width, n = first + side * width;
    uint32_t a = k_buf(k, BUF_IN, dtype, n, 0), o = k_buf(k, BUF_OUT, KL_F32, side * width, 1),
             word = k_buf(k, BUF_OUT, KL_U32, width, 2);
    val v = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, width), 1), row[32];
    val some = form == ROWS_MASKED ? k_prim(k, P_LT, v, k_int(k, width - 1), 0) : 0;
    for (unsigned r = 0; r < width; r++) {
        val at = ix_add(k, ix_scale(k, v, 2), k_int(k, first + r * side));
        row[r] = k_load_wide(k, a, at, some);
    }
    if (form == ROW_SPLAT)
        row[1] = k_splat(k, k_bits(k, KL_U32, 0x3c00c000));
    val exchange = k->ninst + 1;
    k_transpose(k, row, width);
    k_store(k, word, v, form == EXCHANGE_STORED ? exchange : form == WORDS_STORED ? row[width / 2]
                        : k_splat(k, k_bits(k, KL_U32, 7)), 0);
    for (unsigned h = 0; h < side; h++) {
        val x = row[h / 2], bits = h % 2 ? k_prim(k, P_SHR, x, k_bits(k, KL_U32, 16), 0) : x;
        val half = k_inst(k, L_OP(P_BITS), dtype, k_cast(k, bits, KL_U16), 0, 0, 0);
        k_store(k, o, ix_add(k, v, k_int(k, h * width)), k_cast(k, half, KL_F32), 0);
    }
    k_end(k, v);
    char what[80];
    snprintf(what, sizeof what, "transpose of halves of %s, width %u, form %u", dtype_name(dtype), width, form);
    compare_random(k, false, what);
}

/* ---- control flow ---- */

/* Two vector loops of different widths in one body use the same uniform values. */
static void test_two_widths(void)
{
    struct kernel *k = kernel_new("two_widths");
    uint32_t a = k_buf(k, BUF_IN, KL_F32, 65, 0), o = k_buf(k, BUF_OUT, KL_F32, 80, 1),
             c = k_buf(k, BUF_OUT, KL_F32, 80, 2);
    val one = k_const(k, KL_F32, 1.25), x = k_load(k, a, k_int(k, 64), 0), zero = k_int(k, 0);
    static const unsigned widths[] = {16, 64};
    for (unsigned w = 0; w < 2; w++) {
        val v = k_loop(k, LOOP_VECTOR, zero, k_int(k, widths[w]), 1), i = ix_add(k, v, k_int(k, 16 * w));
        k_store(k, o, i, k_prim(k, P_ADD, k_load(k, a, v, 0), x, 0), 0);
        k_store(k, c, i, one, 0);
        k_end(k, v);
    }
    compare_random(k, false, "two widths");
}

/* Fibonacci numbers: carries that feed each other, through loops of 0, 1, 9 and a loaded number of iterations. */
static void test_carries(void)
{
    struct kernel *k = kernel_new("carries");
    uint32_t n = k_buf(k, BUF_IN, KL_I64, 3, 0), o = k_buf(k, BUF_OUT, KL_I64, 12, 1);
    val hi[6] = {k_int(k, 0),
                 k_int(k, 1),
                 k_int(k, 9),
                 k_load(k, n, k_int(k, 0), 0),
                 k_load(k, n, k_int(k, 1), 0),
                 k_load(k, n, k_int(k, 2), 0)};
    val zero = k_int(k, 0), one = k_int(k, 1);
    for (unsigned j = 0; j < 6; j++) {
        val s = k_loop(k, LOOP_SERIAL, zero, hi[j], 1), a = k_carry(k, zero), b = k_carry(k, one);
        val sum = k_prim(k, P_ADD, a, b, 0);
        k_next(k, a, b);
        k_next(k, b, sum);
        k_end(k, s);
        k_store(k, o, k_int(k, 2 * j), k_out(k, a), 0);
        k_store(k, o, k_int(k, 2 * j + 1), k_out(k, b), 0);
    }
    static const int64_t in[] = {0, 1, 20}, want[] = {0, 1, 1, 1, 34, 55, 0, 1, 1, 1, 6765, 10946};
    agree(&targets, k, (const void *const[]){in, NULL}, NULL, (const void *const[]){NULL, want}, "carries");
    kernel_free(k);
}

/* Carries of lanes through nested loops, the inner one run 0, 1 or many times; an if among them. */
static void test_nested(int64_t outer, int64_t inner, unsigned width)
{
    struct kernel *k = kernel_new("nested");
    uint32_t a = k_buf(k, BUF_IN, KL_F32, 8 * 70 + 64, 0), o = k_buf(k, BUF_OUT, KL_F32, width, 1),
             marks = k_buf(k, BUF_OUT, KL_I32, 8, 2);
    val v = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, width), 1);
    val start = k_splat(k, k_const(k, KL_F32, 0.5)), turn = k_load(k, a, v, 0);
    val s = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, outer), 1), x = k_carry(k, start), y = k_carry(k, turn);
    val t = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, inner), 3), z = k_carry(k, y);
    val at = ix_add(k, ix_add(k, ix_scale(k, s, 70), t), v);
    k_next(k, z, k_prim(k, P_FMA, z, k_const(k, KL_F32, 0.75), k_load(k, a, at, 0)));
    k_end(k, t);
    val last = k_out(k, z), even = k_prim(k, P_EQ, k_prim(k, P_AND, s, k_int(k, 1), 0), k_int(k, 0), 0);
    val branch = k_if(k, even);
    k_store(k, marks, s, k_cast(k, s, KL_I32), 0);
    k_store(k, o, v, last, 0);
    k_end(k, branch);
    val both = k_prim(k, P_ADD, x, last, 0);
    k_next(k, x, last);
    k_next(k, y, both);
    k_end(k, s);
    k_store(k, o, v, k_prim(k, P_SUB, k_out(k, x), k_out(k, y), 0),
            k_prim(k, P_LT, v, k_int(k, (int64_t)width / 2 + 1), 0));
    k_end(k, v);
    char what[96];
    snprintf(what, sizeof what, "nested loops %" PRId64 " x %" PRId64 ", width %u", outer, inner, width);
    compare_random(k, false, what);
}

/* Uniform accesses under uniform predicates, in scalar code and among lanes. */
static void test_uniform_predicates(void)
{
    struct kernel *k = kernel_new("uniform_predicates");
    uint32_t a = k_buf(k, BUF_IN, KL_I32, 4, 0), o = k_buf(k, BUF_OUT, KL_I32, 16, 1),
             far = k_buf(k, BUF_OUT, KL_I32, 4, 2);
    val beyond = k_int(k, 4), no = k_prim(k, P_LT, beyond, beyond, 0),
        yes = k_prim(k, P_NE, k_load(k, a, k_int(k, 3), 0), k_const(k, KL_I32, 0), 0);
    yes = k_prim(k, P_OR, yes, k_prim(k, P_NOT, no, 0, 0), 0);
    k_store(k, far, beyond, k_load(k, a, beyond, no), no);
    k_store(k, far, k_int(k, 1), k_load(k, a, k_int(k, 1), yes), yes);
    val v = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, 16), 1);
    k_store(k, o, v, k_prim(k, P_ADD, k_load(k, a, beyond, no), k_load(k, a, k_int(k, 2), yes), 0), yes);
    k_store(k, o, k_prim(k, P_ADD, v, beyond, 0), k_cast(k, v, KL_I32), no);
    k_end(k, v);
    compare_random(k, false, "uniform predicates");
}

/* Written lane by lane, read as rows: what a packed panel is. */
static void test_scratch(void)
{
    struct kernel *k = kernel_new("scratch");
    uint32_t a = k_buf(k, BUF_IN, KL_F32, 20 * 16, 0), s = k_buf(k, BUF_SCRATCH, KL_F32, 20 * 16, 1),
             o = k_buf(k, BUF_OUT, KL_F32, 20 * 16, 2);
    for (unsigned pass = 0; pass < 2; pass++) {
        val r = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, 20), 1),
            v = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, 16), 1);
        val row = ix_add(k, ix_scale(k, r, 16), v), column = ix_add(k, ix_scale(k, v, 20), r);
        k_store(k, pass ? o : s, pass ? row : column, k_load(k, pass ? s : a, row, 0), 0);
        k_end(k, v);
        k_end(k, r);
    }
    compare_random(k, true, "scratch");
}

/* Rows added up in an output that is read back, each where a number from memory says. */
static void test_accumulate(unsigned dtype, unsigned width)
{
    struct kernel *k = kernel_new("accumulate");
    uint32_t rows = k_buf(k, BUF_IN, KL_U8, 40, 0), x = k_buf(k, BUF_IN, dtype, 40 * 70, 1),
        out = k_buf(k, BUF_OUT, dtype, 4 * 70, 2);
    val v, i, ok, p = open_blocks(k, 70, width, &v, &i, &ok);
    val r = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, 4), 1);
    k_store(k, out, ix_add(k, i, ix_scale(k, r, 70)), k_const(k, dtype, 1), ok);
    k_end(k, r);
    val j = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, 40), 1);
    val row = k_prim(k, P_AND, k_cast(k, k_load(k, rows, j, 0), KL_I64), k_int(k, 3), 0),
        at = ix_add(k, i, ix_scale(k, row, 70));
    val y = k_load(k, x, ix_add(k, i, ix_scale(k, j, 70)), ok);
    k_store(k, out, at, k_op(k, OP_add, (const val[]){k_load(k, out, at, ok), y}), ok);
    k_end(k, j);
    close_two(k, p, v);
    char what[64];
    snprintf(what, sizeof what, "sums of %s in place, width %u", dtype_name(dtype), width);
    compare_random(k, false, what);
}

/* A prefetch changes nothing, wherever it points. */
static void test_prefetch(void)
{
    struct kernel *k = kernel_new("prefetch");
    uint32_t a = k_buf(k, BUF_IN, KL_F64, 64, 0), o = k_buf(k, BUF_OUT, KL_F64, 64, 1);
    static const int64_t scales[] = {0, 8, 1 << 20, -(1 << 20)};
    val s = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, 4), 1);
    for (unsigned i = 0; i < 4; i++) {
        k_prefetch(k, PREFETCH_READ, a, ix_scale(k, s, scales[i]));
        k_prefetch(k, PREFETCH_WRITE, o, ix_scale(k, s, scales[i]));
    }
    val v = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, 16), 1), at = ix_add(k, ix_scale(k, s, 16), v);
    k_prefetch(k, PREFETCH_READ, o, s);
    k_store(k, o, at, k_load(k, a, at, 0), 0);
    k_end(k, v);
    k_end(k, s);
    compare_random(k, true, "prefetch");
}

static void test_slots(void)
{
    struct kernel *k = kernel_new("slots");
    uint64_t slot[KL_DTYPE_COUNT];
    val v = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, 16), 1);
    for (unsigned dtype = 0; dtype < KL_DTYPE_COUNT; dtype++) {
        slot[dtype] = dtype_bits(dtype, dtype == KL_BOOL ? 1 : 10 + dtype);
        val x = k_inst(k, L_SLOT, dtype, 0, 0, 0, dtype),
            two = dtype == KL_BOOL || dtype_is_half(dtype) ? x : k_prim(k, P_ADD, x, x, 0);
        k_store(k, k_buf(k, BUF_OUT, dtype, 16, dtype), v, two, 0);
    }
    k_end(k, v);
    void *init[MAX_BUFS];
    fill_inputs(k, false, init);
    for (unsigned dtype = 0; dtype < KL_DTYPE_COUNT; dtype++) {
        uint64_t bits = dtype_is_half(dtype) ? slot[dtype] : dtype_bits(dtype, dtype == KL_BOOL ? 1 : 20 + 2 * dtype);
        for (size_t i = 0; i < 16; i++) memcpy((char *)init[dtype] + i * dtype_size(dtype), &bits, dtype_size(dtype));
    }
    agree(&targets, k, (const void *const *)init, slot, (const void *const *)init, "slots");
    free_inputs(k, init);
    kernel_free(k);
}

/* ---- a product tile: 14 rows, two vectors of columns, four steps of k a turn ---- */
static void test_tile(void)
{
    enum { M = 14, N = 32, K = 24 };
    struct kernel *k = kernel_new("tile");
    uint32_t a = k_buf(k, BUF_IN, KL_F32, M * K, 0), b = k_buf(k, BUF_IN, KL_F32, K * N, 1),
             o = k_buf(k, BUF_OUT, KL_F32, M * N, 2);
    val v = k_loop(k, LOOP_VECTOR, k_int(k, 0), k_int(k, N), 1), zero = k_splat(k, k_const(k, KL_F32, 0)), acc[M],
        sum[M];
    val s = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, K), 4);
    for (int r = 0; r < M; r++) sum[r] = acc[r] = k_carry(k, zero);
    for (int u = 0; u < 4; u++) {
        val y = k_load(k, b, ix_add(k, ix_add(k, ix_scale(k, s, N), k_int(k, u * N)), v), 0);
        for (int r = 0; r < M; r++)
            sum[r] = k_prim(k, P_FMA, k_load(k, a, ix_add(k, s, k_int(k, r * K + u)), 0), y, sum[r]);
    }
    for (int r = 0; r < M; r++) k_next(k, acc[r], sum[r]);
    k_end(k, s);
    for (int r = 0; r < M; r++) k_store(k, o, ix_add(k, v, k_int(k, r * N)), k_out(k, acc[r]), 0);
    k_end(k, v);
    void *init[MAX_BUFS];
    float want[M * N];
    fill_inputs(k, false, init);
    for (int i = 0; i < M * N; i++) {
        want[i] = 0;
        for (int j = 0; j < K; j++)
            want[i] = fmaf(((float *)init[0])[i / N * K + j], ((float *)init[1])[j * N + i % N], want[i]);
    }
    agree(&targets, k, (const void *const *)init, NULL, (const void *const[]){NULL, NULL, want}, "product tile");
    free_inputs(k, init);
    kernel_free(k);
}

/* ---- text, hash ---- */

static struct kernel *small(double constant)
{
    struct kernel *k = kernel_new("small");
    uint32_t o = k_buf(k, BUF_OUT, KL_F32, 4, 0);
    val s = k_loop(k, LOOP_SERIAL, k_int(k, 0), k_int(k, 4), 1);
    k_store(k, o, s, k_const(k, KL_F32, constant), 0);
    k_end(k, s);
    return k;
}

static void test_hash(void)
{
    struct kernel *a = small(1), *b = small(1), *c = small(2);
    strcpy(b->name, "another");
    struct hash128 x = kernel_hash(a), y = kernel_hash(b), z = kernel_hash(c);
    check(x.lo == y.lo && x.hi == y.hi && kernel_same(a, b), "equal kernels of different names are different");
    check((x.lo != z.lo || x.hi != z.hi) && !kernel_same(a, c), "kernels with different constants are equal");
    b->extent = 2;
    check(!kernel_same(a, b), "kernels of different extents are equal");
    char text[512] = "";
    FILE *f = fmemopen(text, sizeof text, "w");
    check(f && kernel_print(c, f) && !fclose(f), "printing failed");
    check(strstr(text, "%3 = loop serial 0 to 4 {\n    store b0[%3] = 2.0:f32\n  }\n}\n") != NULL,
          "unexpected text:\n%s",
          text);
    kernel_free(a);
    kernel_free(b);
    kernel_free(c);
}

int main(void)
{
    targets = find_targets();
    test_map();
    for (unsigned dtype = 0; dtype < KL_DTYPE_COUNT; dtype++) {
        static const unsigned widths[] = {0, 4, 32};
        for (unsigned w = 0; w < 3; w++) test_prims(dtype, widths[w]);
        test_casts(dtype, 1);
        test_casts(dtype, 32);
        test_addresses(dtype, 32);
        test_addresses(dtype, 1);
    }
    for (unsigned i = 0; i < 20; i++) test_dot2((const unsigned[]){0, 1, 4, 16, 64}[i % 5]);
    static const unsigned summed[] = {KL_F32, KL_F64, KL_I32, KL_U64, KL_I8};
    static const int64_t lengths[] = {0, 1, 63, 64, 200};
    for (unsigned d = 0; d < 5; d++) {
        for (unsigned l = 0; l < 5; l++) {
            test_row_reduce(summed[d], FOLD_ADD, lengths[l], 64);
            test_row_reduce(summed[d], FOLD_MAX, lengths[l], 64);
            test_row_reduce(summed[d], FOLD_MIN, lengths[l], 64);
        }
        test_row_reduce(summed[d], FOLD_ADD, 100, 8);
        test_column_reduce(summed[d]);
    }
    test_transpose(KL_F32, 2, false);
    for (unsigned width = 8; width <= 16; width *= 2) {
        test_transpose(KL_F32, width, false);
        test_transpose(KL_U32, width, true);
        for (unsigned form = 0; form < HALVES_FORMS; form++)
            test_transpose_halves(KL_F16, width, form % 3, form);
    }
    test_transpose_halves(KL_F16, 4, 0, HALVES);
    test_transpose_halves(KL_BF16, 16, 1, HALVES);
    test_transpose_halves(KL_F16, 32, 0, HALVES);
    test_transpose(KL_U8, 32, false);
    test_transpose(KL_F64, 8, false);
    test_transpose(KL_BF16, 4, false);
    test_transpose(KL_BOOL, 16, false);
    test_index_values();
    test_two_widths();
    test_carries();
    for (int64_t outer = 0; outer < 4; outer++)
        for (int64_t inner = 0; inner < 10; inner += 3) test_nested(outer, inner, outer == 2 ? 64 : 16);
    test_uniform_predicates();
    test_scratch();
    for (unsigned width = 1; width <= 64; width *= 8) {
        test_accumulate(KL_F32, width);
        test_accumulate(KL_F64, width);
        test_accumulate(KL_I16, width);
        test_accumulate(KL_BF16, width);
    }
    test_prefetch();
    test_slots();
    test_tile();
    test_hash();
    return finish();
}
