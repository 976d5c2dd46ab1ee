/* Every op of ops.def, every dtype, many sizes and layouts: interpreter, fused and unfused kernels must give
 * the same bits.  A new row of ops.def is tested here without an edit. */
#include "tests/support/harness.h"

static const int64_t sizes[] = {0, 1, 7, 16, 17, 64, 1000};
static struct rng rng = {20251};

/* An operand of shape s in one of several layouts: whole, transposed, broadcast, reshaped. */
enum { LAYOUTS = 4 };
static ref operand(struct graph *g, unsigned dtype, const struct shape *s, int layout)
{
    struct shape t = *s;
    uint8_t swap[KL_MAX_RANK] = {1, 0};
    switch (layout) {
    case 1:
        t.dim[0] = s->dim[1];
        t.dim[1] = s->dim[0];
        return n_permute(g, n_input(g, dtype, &t, "t"), swap);
    case 2:
        t.dim[0] = 1;
        return n_expand(g, n_input(g, dtype, &t, "row"), s);
    case 3:
        t = shape_make(1, (int64_t[]){shape_count(s)});
        return n_reshape(g, n_input(g, dtype, &t, "flat"), s);
    default:
        return n_input(g, dtype, s, "x");
    }
}

static bool run_graph(struct graph *g, bool wild, const char *what)
{
    struct values in = {0}, st = {0};
    uint64_t slot[8];
    if (!check(!g->err.code, "%s: %s", what, g->err.msg))
        return false;
    for (int i = 0; i < 8; i++)
        slot[i] = dtype_bits(KL_F32, 0.75);
    values_random(&rng, g, &g->input, wild, &in);
    values_random(&rng, g, &g->state, wild, &st);
    bool ok = agree_everywhere(g, &in, &st, slot, what);
    values_free(&in);
    values_free(&st);
    return ok;
}

/* Does the op take operands of this dtype? */
static bool accepts(unsigned op, unsigned dtype)
{
    struct graph *g = graph_new("accepts");
    struct shape s = shape_make(0, NULL);
    struct node n = {.op = (uint16_t)op, .nin = opinfo[op].nin};
    for (unsigned i = 0; i < n.nin; i++)
        n.in[i] = n_input(g, op == OP_where && i == 0 ? KL_BOOL : dtype, &s, "x");
    graph_add(g, &n, NULL);
    bool ok = !g->err.code;
    graph_free(g);
    return ok;
}

/* f32 has all layouts.  Another dtype has one for each size, in alternation, unless the op is named on the command
 * line. */
static void elementwise(unsigned op, unsigned dtype, bool named)
{
    for (unsigned z = 0; z < sizeof sizes / sizeof *sizes; z++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            if (!named && dtype != KL_F32 && (op + dtype + z) % LAYOUTS != (unsigned)layout)
                continue;
            struct graph *g = graph_new("op");
            struct shape s = shape_make(2, (int64_t[]){sizes[z] > 64 ? 1 : 3, sizes[z]});
            if (layout == 0)
                s = shape_make(1, &sizes[z]);
            struct node n = {.op = (uint16_t)op, .nin = opinfo[op].nin};
            for (unsigned i = 0; i < n.nin; i++)
                n.in[i] = operand(g, op == OP_where && i == 0 ? KL_BOOL : dtype, &s, i == 0 ||
                                  layout == 0 ? layout : (layout + (int)i) % LAYOUTS);
            graph_output(g, OUT_RETURN, graph_add(g, &n, NULL), 0);
            char what[64];
            snprintf(what, sizeof what, "%s %s[%" PRId64 "] layout %d", opinfo[op].name, dtype_name(dtype), sizes[z],
                     layout);
            run_graph(g, true, what);
            graph_free(g);
        }
}

static void casts(void)
{
    for (unsigned from = 0; from < KL_DTYPE_COUNT; from++)
        for (unsigned to = 0; to < KL_DTYPE_COUNT; to++) {
            struct graph *g = graph_new("cast");
            struct shape s = shape_make(1, (int64_t[]){333});
            graph_output(g, OUT_RETURN, n_cast(g, n_input(g, from, &s, "x"), to), 0);
            char what[64];
            snprintf(what, sizeof what, "cast %s to %s", dtype_name(from), dtype_name(to));
            run_graph(g, true, what);
            graph_free(g);
        }
}

static void reduces(void)
{
    static const struct { uint32_t rank; int64_t dim[4]; } shape[] = {
        {1, {0}}, {1, {1}}, {1, {63}}, {1, {64}}, {1, {65}}, {1, {1000}}, {1, {40000}}, {2, {3, 0}}, {2, {0, 3}},
            {2, {5, 7}},
        {2, {128, 10}}, {2, {130, 65}}, {2, {1300, 3}}, {3, {4, 5, 70}}, {3, {1, 600, 33}}, {4, {2, 3, 4, 5}}};
    for (unsigned op = OP_sum; op <= OP_reduce_prod; op++)
        for (unsigned dt = 0; dt < KL_DTYPE_COUNT; dt++)
            for (unsigned i = 0; i < sizeof shape / sizeof *shape; i++)
                for (uint32_t axes = 1; axes < 1u << shape[i].rank; axes++) {
                    struct graph *g = graph_new("reduce");
                    struct shape s = shape_make(shape[i].rank, shape[i].dim);
                    ref x = n_input(g, dt, &s, "x"), y = n_reduce(g, (enum op)op, x, axes);
                    if (!y) { /* a dtype that the op refuses */
                        graph_free(g);
                        continue;
                    }
                    graph_output(g, OUT_RETURN, y, 0);
                    char what[64];
                    snprintf(what, sizeof what, "%s %s shape %u axes %u", opinfo[op].name, dtype_name(dt), i, axes);
                    run_graph(g, false, what);
                    run_graph(g, true, what);
                    graph_free(g);
                }
}

static void scans(void)
{
    static const int64_t shape[][3] = {{1, 0, 3}, {0, 2, 1}, {2, 3, 0}, {1, 1, 1}, {3, 7, 1}, {2, 5, 33}, {3, 40, 16},
                                       {1, 300, 5}, {1, 1000, 1}, {4, 1, 70}};
    for (unsigned op = OP_cumsum; op <= OP_recurrence; op++)
        for (unsigned dt = KL_U8; dt < KL_DTYPE_COUNT; dt++)
            for (unsigned z = dt == KL_F32 ? 0 : dt % 3; z < sizeof shape / sizeof *shape; z += dt == KL_F32 ? 1 : 3)
                for (uint32_t axis = 0; axis < 3; axis++) {
                    struct graph *g = graph_new("scan");
                    struct shape s = shape_make(3, shape[z]);
                    uint8_t swap[KL_MAX_RANK] = {2, 1, 0};
                    ref x = n_input(g, dt, &s, "x"), y;
                    if (op == OP_recurrence) {
                        struct shape one = s;
                        one.dim[axis] = 1;
                        y = n_recurrence(g, n_expand(g, n_input(g, dt, &one, "a"), &s), x, axis);
                        graph_output(g, OUT_RETURN, n_recurrence(g, n_mul(g, x, x), n_flip(g, x, 5), axis), 0);
                    } else {
                        y = n_cumulative(g, (enum op)op, x, axis);
                        graph_output(g, OUT_RETURN, n_cumulative(g, (enum op)op,
                                                                 n_flip(g, n_permute(g, n_add(g, x, x), swap), 7),
                            axis), 0);
                    }
                    graph_output(g, OUT_RETURN, n_mul(g, y, x), 0);
                    graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, y, 2), 0);
                    char what[64];
                    snprintf(what, sizeof what, "%s %s shape %u axis %u", opinfo[op].name, dtype_name(dt), z, axis);
                    run_graph(g, false, what);
                    run_graph(g, true, what);
                    graph_free(g);
                }
}

static ref matmul(struct graph *g, ref a, ref b, bool ta, bool tb)
{
    union attr d = {0};
    d.dot.ncon = 1;
    d.dot.con_a = ta ? 0 : 1;
    d.dot.con_b = tb ? 1 : 0;
    return n_dot(g, a, b, &d);
}

static void dots(void)
{
    static const int64_t mnk[][3] = {{1, 1, 1}, {0, 3, 4}, {3, 0, 4}, {3, 4, 0}, {7, 17, 5}, {13, 33, 9}, {128, 10, 65},
                                     {29, 64, 513}, {300, 40, 1030}, {16, 16, 16}, {700, 70, 12}};
    for (unsigned dt = KL_U8; dt < KL_DTYPE_COUNT; dt++)
        for (unsigned i = 0; i < sizeof mnk / sizeof *mnk; i++)
            for (int t = 0; t < 4; t++) {
                struct graph *g = graph_new("dot");
                int64_t m = mnk[i][0], n = mnk[i][1], k = mnk[i][2];
                struct shape sa = shape_make(2, t & 1 ? (int64_t[]){k, m} : (int64_t[]){m, k});
                struct shape sb = shape_make(2, t & 2 ? (int64_t[]){n, k} : (int64_t[]){k, n});
                if (dt != KL_F32 && m * n * k > 100000)
                    sa = sb = shape_make(2, (int64_t[]){9, 9});
                ref y = matmul(g, n_input(g, dt, &sa, "a"), n_input(g, dt, &sb, "b"), t & 1, t & 2);
                graph_output(g, OUT_RETURN, y, 0);
                char what[64];
                snprintf(what, sizeof what, "dot %s %" PRId64 "x%" PRId64 "x%" PRId64 " t%d", dtype_name(dt), m, n, k,
                         t);
                run_graph(g, false, what);
                graph_free(g);
            }
}

/* Batched products with several contracted axes, and an epilogue that reads a broadcast bias. */
static void dot_general(void)
{
    struct graph *g = graph_new("batched");
    struct shape sa = shape_make(4, (int64_t[]){2, 5, 3, 7}), sb = shape_make(4, (int64_t[]){7, 2, 3, 19}),
        sc = shape_make(1, (int64_t[]){19});
    union attr d = {0};
    d.dot.nbatch = 1;
    d.dot.batch_b = axis_put(0, 0, 1);
    d.dot.ncon = 2;
    d.dot.con_a = axis_put(axis_put(0, 0, 2), 1, 3);
    d.dot.con_b = axis_put(axis_put(0, 0, 2), 1, 0);
    ref y = n_dot(g, n_input(g, KL_F32, &sa, "a"), n_input(g, KL_F32, &sb, "b"), &d);
    struct shape sy = *node_shape(g, y);
    ref z = n_max(g, n_add(g, y, n_broadcast(g, n_input(g, KL_F32, &sc, "bias"), &sy)), n_k(g, y, 0));
    graph_output(g, OUT_RETURN, z, 0);
    graph_output(g, OUT_RETURN, y, 0);
    run_graph(g, false, "batched dot with epilogue");
    graph_free(g);
}

/* A view or a select of a computed value, used by further elementwise ops and beside the value itself. */
static void check_piece(struct graph *g, ref x, ref y, const char *what)
{
    graph_output(g, OUT_RETURN, y, 0);
    if (y && g->node[y].dtype != KL_BOOL)
        graph_output(g, OUT_RETURN, n_add(g, y, y), 0);
    graph_output(g, OUT_RETURN, x, 0);
    run_graph(g, false, what);
    graph_free(g);
}

/* x of some shape: an input (layouts 0..3) or computed in the graph (4). */
static ref piece(struct graph *g, unsigned dtype, const struct shape *s, int layout)
{
    if (layout < LAYOUTS)
        return operand(g, dtype, s, layout);
    ref x = n_input(g, dtype, s, "x");
    return dtype == KL_BOOL ? n_not(g, x) : n_add(g, x, n_k(g, x, 1));
}

static void pieces(void)
{
    static const int64_t shape[][2] = {{3, 0}, {0, 3}, {1, 1}, {3, 7}, {2, 16}, {17, 3}, {1, 1000}, {70, 65}};
    for (unsigned dt = 0; dt < KL_DTYPE_COUNT; dt++)
        for (unsigned z = 0; z < sizeof shape / sizeof *shape; z++)
            for (int layout = dt == KL_F32 ? 0 : LAYOUTS; layout <= LAYOUTS; layout++)
                for (uint32_t axis = z & 1; axis < (dt == KL_F32 ? 2 : 1 + (z & 1)); axis++) {
                    struct shape s = shape_make(2, shape[z]);
                    int64_t len = s.dim[axis];
                    char what[96];
                    snprintf(what, sizeof what, "%s[%" PRId64 ",%" PRId64 "] layout %d axis %u", dtype_name(dt),
                             s.dim[0], s.dim[1], layout, axis);
                    struct graph *g = graph_new("slice");
                    ref x = piece(g, dt, &s, layout);
                    check_piece(g, x, n_slice(g, x, axis, len / 3, (len - len / 3 + 1) / 2, 2), what);
                    g = graph_new("flip");
                    x = piece(g, dt, &s, layout);
                    check_piece(g, x, n_flip(g, x, axis ? 3 : 1), what);
                    if (len) {
                        g = graph_new("window");
                        x = piece(g, dt, &s, layout);
                        int64_t size = len < 4 ? len : 4 - (int64_t)axis, step = 1 + (layout + (int64_t)z) % 3;
                        check_piece(g, x, n_window(g, x, axis, size, step, len > 9 ? 3 : 1), what);
                    }
                    g = graph_new("pad");
                    x = piece(g, dt, &s, layout);
                    ref v = n_input(g, dt, &(struct shape){0}, "v");
                    check_piece(g, x, n_pad(g, x, v, axis, 3, 2, layout == 0 ? 2 : 0), what);
                    g = graph_new("concat");
                    x = piece(g, dt, &s, layout);
                    struct shape t = s;
                    t.dim[axis] = 5;
                    ref y = piece(g, dt, &t, LAYOUTS);
                    check_piece(g, x, n_concat(g, (ref[]){x, y, n_flip(g, x, 3), y, x, y}, 2 + (unsigned)layout, axis),
                                what);
                    g = graph_new("dynamic_slice");
                    x = piece(g, dt, &s, layout);
                    ref at = n_input(g, layout & 1 ? KL_U64 : KL_I16, &(struct shape){0}, "at");
                    check_piece(g, x, n_dynamic_slice(g, x, at, axis, (len + 1) / 2), what);
                    g = graph_new("dynamic_update");
                    x = piece(g, dt, &s, layout);
                    t.dim[axis] = (len + 1) / 2;
                    at = n_input(g, layout & 1 ? KL_I8 : KL_U32, &(struct shape){0}, "at");
                    check_piece(g, x, n_dynamic_update(g, x, piece(g, dt, &t, layout), at, axis), what);
                    g = graph_new("gather");
                    x = piece(g, dt, &s, layout);
                    struct shape is = shape_make(1, (int64_t[]){len ? 33 : 0});
                    ref i = n_input(g, layout & 1 ? KL_I64 : KL_U8, &is, "i");
                    check_piece(g, x, n_gather(g, x, i, axis), what);
                }
}

/* Rows of several lengths: less than a vector, one, several and a rest; many sources to a place and none. */
static void scatters(void)
{
    static const int64_t shape[][4] = { /* axes before, along and behind; rows of the update */
        {1, 7, 1, 20}, {3, 5, 2, 9}, {2, 4, 16, 3}, {1, 33, 70, 200}, {4, 3, 129, 1}, {2, 9, 5, 0}, {0, 3, 2, 4},
            {2, 3, 0, 4},
        {3, 0, 4, 0}, {1, 5000, 1, 40000}};
    static const unsigned index_dtypes[] = {KL_I32, KL_I64, KL_U8, KL_U64, KL_I8};
    for (unsigned dt = 0; dt < KL_DTYPE_COUNT; dt++)
        for (unsigned z = 0; z < sizeof shape / sizeof *shape; z++)
            for (unsigned kind = dt == KL_BOOL ? SCATTER_SET : SCATTER_ADD; kind <= SCATTER_SET; kind++)
                for (int layout = 0; layout < 3; layout++) {
                    const int64_t *d = shape[z];
                    struct shape s = shape_make(3, d), u = shape_make(3, (int64_t[]){d[0], d[3], d[2]});
                    struct shape is = shape_make(1, (int64_t[]){d[3]});
                    struct graph *g = graph_new("scatter");
                    ref i = n_input(g, index_dtypes[(z + dt) % 5], &is, "i");
                    ref x = layout == 0 ? n_input(g, dt, &s, "x") : piece(g, dt, &s, LAYOUTS);
                    ref v = piece(g, dt, &u, layout == 1 ? LAYOUTS : layout == 2 ? 2 : 0);
                    if (layout == 2) /* what it reads and what reads it are computed here */
                        i = n_add(g, i, n_k(g, i, 1)), x = n_broadcast(g, n_const(g, dt, 0), &s);
                    char what[96];
                    snprintf(what, sizeof what, "scatter %u %s case %u layout %d", kind, dtype_name(dt), z, layout);
                    check_piece(g, x, n_scatter(g, x, i, v, 1, (enum scatter_kind)kind), what);
                }
}

static void sorts(void)
{
    static const int64_t shape[][3] = {{3, 0, 2}, {0, 4, 1}, {2, 1, 3}, {1, 2, 1}, {3, 7, 2}, {5, 64, 1}, {2, 65, 3},
                                       {1, 5000, 1}, {300, 9, 1}};
    for (unsigned dt = 0; dt < KL_DTYPE_COUNT; dt++)
        for (unsigned z = 0; z < sizeof shape / sizeof *shape; z++)
            for (int kind = 0; kind < 4; kind++) {
                struct graph *g = graph_new("argsort");
                struct shape s = shape_make(3, shape[z]);
                ref x = piece(g, dt, &s, kind & 2 ? LAYOUTS : 0),
                    y = n_argsort(g, x, 1, kind & 1, kind & 2 ? KL_I64 : KL_I32);
                char what[96];
                snprintf(what, sizeof what, "argsort %s case %u kind %d", dtype_name(dt), z, kind);
                graph_output(g, OUT_RETURN, n_add(g, y, y), 0);
                check_piece(g, x, y, what);
            }
    struct graph *g = graph_new("argsort");
    struct shape s = shape_make(2, (int64_t[]){3, 700});
    ref x = n_broadcast(g, n_const(g, KL_F32, 0), &s), seed = n_const(g, KL_U64, 5), r = n_random(g, KL_U32, &s, seed);
    graph_output(g, OUT_RETURN, n_argsort(g, x, 1, true, KL_I32), 0); /* all equal */
    graph_output(g, OUT_RETURN, n_argsort(g, n_flip(g, r, 3), 1, false, KL_I32), 0);
    graph_output(g, OUT_RETURN, n_argsort(g, n_iota(g, KL_I16, &s, 1), 0, true, KL_I64), 0);
    run_graph(g, false, "argsort of what is computed in the kernel");
    graph_free(g);
}

/* Dots and reduces that read slices and flips of computed and of stored values. */
static void products_of_pieces(void)
{
    for (int kind = 0; kind < 32; kind++) {
        struct graph *g = graph_new("dot of pieces");
        struct shape sa = shape_make(2, (int64_t[]){40, 70}), sb = shape_make(2, (int64_t[]){70, 48});
        ref a = piece(g, KL_F32, &sa, kind & 1 ? LAYOUTS : 1), b = piece(g, KL_F32, &sb, kind & 2 ? LAYOUTS : 1);
        b = kind & 4 ? n_flip(g, b, 2) : n_slice(g, b, 1, 1, 23, 2);
        b = kind & 8 ? n_flip(g, b, 1) : b;
        a = kind & 16 ? n_flip(g, n_slice(g, a, 0, 3, 36, 1), 2) : a;
        ref y = matmul(g, a, b, false, false);
        graph_output(g, OUT_RETURN, n_add(g, n_flip(g, y, 3), y), 0);
        graph_output(g, OUT_RETURN, n_reduce(g, OP_sum, n_slice(g, n_exp(g, y), 0, 1, 17, 2), kind & 1 ? 2 : 1), 0);
        run_graph(g, false, "dot of pieces");
        graph_free(g);
    }
}

/* A convolution as a product with windows of windows; a stored and a padded image, several steps, every dtype. */
static void convolution(unsigned dtype, bool padded, int64_t stride, int64_t dilation)
{
    struct graph *g = graph_new("convolution");
    struct shape sx = shape_make(4, (int64_t[]){2, 3, 13, 29}), sw = shape_make(4, (int64_t[]){5, 3, 3, 2});
    ref x = n_input(g, dtype, &sx, "x"), zero = n_const(g, dtype, 0);
    if (padded)
        x = n_pad(g, n_pad(g, x, zero, 2, 1, 2, 0), zero, 3, 2, 1, 0);
    x = n_window(g, n_window(g, x, 2, 3, stride, dilation), 3, 2, stride, dilation); /* [n, c, h, w, 3, 2] */
    union attr d = {0};
    d.dot.ncon = 3;
    d.dot.con_a = axis_put(axis_put(axis_put(0, 0, 1), 1, 2), 2, 3);
    d.dot.con_b = axis_put(axis_put(axis_put(0, 0, 1), 1, 4), 2, 5);
    ref w = n_input(g, dtype, &sw, "w"), y = n_dot(g, w, x, &d);
    graph_output(g, OUT_RETURN, n_mul(g, y, y), 0);
    union attr back = d;
    back.dot.con_a = d.dot.con_b, back.dot.con_b = d.dot.con_a;
    graph_output(g, OUT_RETURN, n_dot(g, x, w, &back), 0);
    char what[64];
    snprintf(what, sizeof what, "convolution %s%s stride %d dilation %d", dtype_name(dtype), padded ? " padded" : "",
             (int)stride, (int)dilation);
    run_graph(g, false, what);
    graph_free(g);
}

static void convolutions(void)
{
    for (unsigned dt = KL_U8; dt < KL_DTYPE_COUNT; dt++)
        for (int64_t stride = 1; stride <= 2; stride++)
            for (int64_t dilation = 1; dilation <= 2; dilation++)
                convolution(dt, dt != KL_F32, stride, dilation), convolution(KL_F32, dt & 1, stride, dilation);
}

static void bitcasts(void)
{
    for (unsigned from = 0; from < KL_DTYPE_COUNT; from++)
        for (unsigned to = 0; to < KL_DTYPE_COUNT; to++) {
            if (dtype_size(from) != dtype_size(to) || (from == KL_BOOL) != (to == KL_BOOL))
                continue;
            struct graph *g = graph_new("bitcast");
            struct shape s = shape_make(1, (int64_t[]){333});
            graph_output(g, OUT_RETURN, n_bitcast(g, n_input(g, from, &s, "x"), to), 0);
            char what[64];
            snprintf(what, sizeof what, "bitcast %s to %s", dtype_name(from), dtype_name(to));
            run_graph(g, true, what);
            graph_free(g);
        }
}

/* A state that is moved within itself cannot be written in place element by element. */
static void shifted_states(void)
{
    for (int kind = 0; kind < 9; kind++) {
        struct graph *g = graph_new("shift");
        struct shape s = shape_make(1, (int64_t[]){5000});
        ref x = n_state(g, KL_F32, &s, "s"), zero = n_const(g, KL_F32, 0), y;
        if (kind == 0)
            y = n_flip(g, x, 1);
        else if (kind == 1)
            y = n_pad(g, n_slice(g, x, 0, 0, 4999, 1), zero, 0, 1, 0, 0);
        else if (kind == 2)
            y = n_concat(g, (ref[]){n_slice(g, x, 0, 2500, 2500, 1), n_slice(g, x, 0, 0, 2500, 1)}, 2, 0);
        else if (kind == 3)
            y = n_gather(g, x, n_input(g, KL_I32, &s, "i"), 0);
        else if (kind >= 6) { /* a state with rows of its own, or of given data, brought in */
            ref i = n_input(g, KL_I32, &(struct shape){.rank = 1, .dim = {900}}, "i");
            ref u = n_slice(g, kind == 6 ? x : n_input(g, KL_F32, &s, "u"), 0, 9, 900, 1);
            y = n_scatter(g, x, i, u, 0, kind == 8 ? SCATTER_SET : SCATTER_ADD);
            graph_output(g, OUT_ASSIGN, y, 0);
            run_graph(g, true, "state scattered to");
            graph_free(g);
            continue;
        } else /* a window of the state, over another of its windows or over given data: that may go in place */
            y = n_dynamic_update(g, x, n_slice(g, kind == 4 ? x : n_input(g, KL_F32, &s, "u"), 0, 9, 3000, 1),
                                 n_input(g, KL_U8, &(struct shape){0}, "at"), 0);
        graph_output(g, OUT_ASSIGN, n_add(g, y, y), 0);
        run_graph(g, false, "state moved within itself");
        graph_free(g);
    }
}

/* Every pair of dtypes; a scale for each element, for each row, and one for all. */
static void quants(void)
{
    for (unsigned x = KL_F16; x < KL_DTYPE_COUNT; x++)
        for (unsigned scale = KL_F16; scale < KL_DTYPE_COUNT; scale++)
            for (unsigned q = 0; q < 3 * 2; q++)
                for (unsigned z = 0; z < sizeof sizes / sizeof *sizes && dtype_is_float(x) && dtype_is_float(scale);
                     z++) {
                    const unsigned small = q & 1 ? KL_U8 : KL_I8;
                    struct graph *g = graph_new("quantize");
                    struct shape s = shape_make(2, (int64_t[]){3, sizes[z]});
                    struct shape part = shape_make(2, (int64_t[]){q < 4 ? 3 : 1, q < 2 ? sizes[z] : 1});
                    ref a = n_input(g, x, &s, "x"), b = n_broadcast(g, n_input(g, scale, &part, "scale"), &s);
                    ref c = n_broadcast(g, n_input(g, small, &part, "zero"), &s), y = n_quantize(g, a, b, c);
                    graph_output(g, OUT_RETURN, y, 0);
                    graph_output(g, OUT_RETURN, n_dequantize(g, y, b, c), 0);
                    graph_output(g, OUT_RETURN, n_dequantize(g, n_input(g, small, &s, "q"), b, c), 0);
                    char what[64];
                    snprintf(what, sizeof what, "quantize %s by %s to %s, %" PRId64, dtype_name(x), dtype_name(scale),
                             dtype_name(small), sizes[z]);
                    run_graph(g, false, what);
                    run_graph(g, true, what);
                    graph_free(g);
                }
}

/* There and back, of what is stored and of what is computed: to outputs, states and kernels. */
static void copies(void)
{
    for (unsigned dt = 0; dt < KL_DTYPE_COUNT; dt++)
        for (unsigned z = 0; z < sizeof sizes / sizeof *sizes; z++)
            for (int layout = 0; layout <= LAYOUTS; layout++) {
                struct graph *g = graph_new("copy");
                struct shape s = shape_make(2, (int64_t[]){3, sizes[z]});
                ref x = piece(g, dt, &s, layout), y = n_copy(g, x, DEVICE_CPU), w = n_state(g, dt, &s, "w");
                ref less = n_eq(g, y, n_flip(g, y, 2)), back =
                    n_copy(g, n_where(g, less, y, n_flip(g, y, 1)), DEVICE_REF);
                graph_output(g, OUT_RETURN, y, 0);
                graph_output(g, OUT_RETURN, n_ne(g, back, x), 0);
                graph_output(g, OUT_RETURN, n_copy(g, w, DEVICE_CPU), 0);
                graph_output(g, OUT_ASSIGN, layout & 1 ? back : n_where(g, n_ne(g, w, back), back, w), 0);
                char what[64];
                snprintf(what, sizeof what, "copy of %s, %" PRId64 ", layout %d", dtype_name(dt), sizes[z], layout);
                run_graph(g, layout & 1, what);
                graph_free(g);
            }
}

/* An op of the user's between kernels, of what is stored and of what is computed, with results that nothing reads. */
static void customs(void)
{
    test_ops();
    for (unsigned dt = 0; dt < KL_DTYPE_COUNT; dt++)
        for (unsigned z = 0; z < sizeof sizes / sizeof *sizes; z++)
            for (int layout = 0; layout <= LAYOUTS; layout++) {
                struct graph *g = graph_new("custom");
                struct shape s = shape_make(2, (int64_t[]){3, sizes[z]});
                ref x = piece(g, dt, &s, layout), w = n_state(g, dt, &s, "w"), k = n_iota(g, KL_I16, &s, 1);
                ref custom = n_custom(g, (ref[]){x, w, k}, 3, layout % 3), other = n_custom(g, (ref[]){w, x}, 2, 1);
                graph_output(g, OUT_RETURN, n_proj(g, custom, 0), 0);
                if (layout & 1)
                    graph_output(g, OUT_RETURN, n_eq(g, n_proj(g, other, 0), x), 0);
                graph_output(g, OUT_ASSIGN, n_proj(g, other, 1), 0);
                char what[64];
                snprintf(what, sizeof what, "custom of %s, %" PRId64 ", layout %d", dtype_name(dt), sizes[z], layout);
                run_graph(g, layout & 1, what);
                graph_free(g);
            }
}

static void random_bits(void)
{
    for (unsigned dt = KL_U32; dt <= KL_U64; dt++) {
        struct graph *g = graph_new("random");
        struct shape s = shape_make(2, (int64_t[]){5, 41});
        graph_output(g, OUT_RETURN, n_random(g, dt, &s, n_const(g, KL_U64, UINT64_C(0x0123456789abcdef))), 0);
        graph_output(g, OUT_RETURN, n_iota(g, KL_I64, &s, 1), 0);
        graph_output(g, OUT_RETURN, n_iota(g, KL_F32, &s, 0), 0);
        run_graph(g, false, "random and iota");
        graph_free(g);
    }
}

/* With names of elementwise ops only these. */
int main(int argc, char **argv)
{
    for (unsigned op = 1; op < OP_COUNT; op++)
        for (unsigned dt = 0; op_is_elementwise(op) && is_named(opinfo[op].name, argc, argv) && dt < KL_DTYPE_COUNT;
             dt++)
            if (accepts(op, dt))
                elementwise(op, dt, argc > 1);
    if (argc > 1)
        return check(passed > 0, "there is such an op"), finish();
    casts();
    reduces();
    scans();
    dots();
    dot_general();
    pieces();
    scatters();
    sorts();
    products_of_pieces();
    convolutions();
    bitcasts();
    shifted_states();
    quants();
    copies();
    customs();
    random_bits();
    return finish();
}
