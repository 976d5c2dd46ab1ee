/* Random kernels: loops, carries, ifs, lanes, tiles, all primitives, every kind of address. */
#include "random_make.h"

enum {
    COUNT = 1024, /* elements of every buffer; a power of two, so that any index can be masked into range */
    MAX_EXTENT = 5,
    MAX_POOL = 400,
    MAX_DEPTH = 4,
    MAX_TILES = 24,
};

struct maker {
    struct kernel *k;
    struct rng r;
    val pool[MAX_POOL]; /* values in reach */
    unsigned npool;
    val tiles[MAX_TILES];
    unsigned ntiles;
    bool makes_tiles;
    val loops[MAX_DEPTH + 2]; /* open loop variables */
    unsigned nloops, depth, budget;
    val parallel;   /* the parallel loop, or 0 */
    bool vector;    /* inside a vector loop */
    unsigned width; /* its lanes, 0 outside */
    uint32_t in[KL_DTYPE_COUNT], out[KL_DTYPE_COUNT], work[KL_DTYPE_COUNT];
};

static unsigned below(struct maker *m, unsigned n) { return (unsigned)rng_below(&m->r, n); }

static void keep(struct maker *m, val v)
{
    if (v && m->npool < MAX_POOL) m->pool[m->npool++] = v;
}

/* A value of the dtype: one in reach, or a constant. */
static val pick(struct maker *m, unsigned dtype)
{
    for (unsigned tries = 0; tries < 12 && m->npool; tries++) {
        val v = m->pool[m->npool - 1 - below(m, m->npool < 24 || !below(m, 4) ? m->npool : 24)];
        if (val_dtype(m->k, v) == dtype) return v;
    }
    if (dtype == KL_BOOL) return k_bits(m->k, KL_BOOL, below(m, 2));
    return k_const(m->k, dtype, (double)(int)below(m, 9) - (dtype_kind(dtype) == 'U' ? 0 : 4));
}

static unsigned any_dtype(struct maker *m)
{
    static const uint8_t often[] = {KL_F32, KL_F32, KL_F32, KL_I32, KL_I64, KL_F64};
    return below(m, 2) ? often[below(m, sizeof often)] : below(m, KL_DTYPE_COUNT);
}

/* An index in range: linear in the loop variables with small coefficients, or any i64, masked. */
static val make_index(struct maker *m)
{
    struct kernel *k = m->k;
    if (below(m, 4) == 0) return k_prim(k, P_AND, pick(m, KL_I64), k_int(k, COUNT - 1), 0);
    val i = k_int(k, 256 + below(m, 8));
    for (unsigned l = 0; l < m->nloops; l++) { /* at most one of lanes, the others below 10 */
        static const int64_t by[] = {0, 1, 1, 1, 2, 3, -1, -2};
        int64_t c = by[below(m, 8)];
        i = below(m, 2) ? ix_add(k, i, ix_scale(k, m->loops[l], c))
                        : k_prim(k, P_ADD, k_prim(k, P_MUL, m->loops[l], k_int(k, c), 0), i, 0);
    }
    return i;
}

static val make_pred(struct maker *m) { return below(m, 3) ? 0 : pick(m, KL_BOOL); }

static void make_prim(struct maker *m)
{
    struct kernel *k = m->k;
    unsigned t = any_dtype(m);
    bool f = dtype_is_float(t), half = dtype_is_half(t);
    val a = pick(m, t), b = pick(m, t), c = pick(m, t);
    enum prim p = (enum prim)below(m, P_COUNT);
    if (half && p != P_SELECT && p != P_CAST) p = P_CAST;
    switch (p) {
    case P_FMA:
        keep(m, f ? k_prim(k, p, a, b, c) : 0);
        break;
    case P_DOT2:
        keep(m, k_prim(k, p, pick(m, KL_U32), pick(m, KL_U32), pick(m, KL_F32)));
        break;
    case P_EXP2: /* an approximation */
    case P_RECIP: /* not of all numbers */
        break;
    case P_SQRT:
    case P_RINT:
        keep(m, f ? k_prim(k, p, a, 0, 0) : 0);
        break;
    case P_AND:
    case P_OR:
    case P_XOR:
        keep(m, f ? 0 : k_prim(k, p, a, b, 0));
        break;
    case P_NOT:
        keep(m, f ? 0 : k_prim(k, p, a, 0, 0));
        break;
    case P_SHL:
    case P_SHR:
        keep(m, f || t == KL_BOOL ? 0 : k_prim(k, p, a, b, 0));
        break;
    case P_NEG:
    case P_ABS:
        keep(m, t == KL_BOOL ? 0 : k_prim(k, p, a, 0, 0));
        break;
    case P_ADD:
    case P_SUB:
    case P_MUL:
    case P_DIV:
        keep(m, t == KL_BOOL ? 0 : k_prim(k, p, a, b, 0));
        break;
    case P_SELECT:
        keep(m, k_prim(k, p, pick(m, KL_BOOL), a, b));
        break;
    case P_CAST:
        keep(m, k_cast(k, a, any_dtype(m)));
        break;
    case P_BITS: /* not from floats: the payload of a NaN is no one's promise */
        if (t == KL_I32 || t == KL_U32)
            keep(m, k_inst(k, L_OP(P_BITS), KL_F32, a, 0, 0, 0));
        else if (t == KL_I64 || t == KL_U64)
            keep(m, k_inst(k, L_OP(P_BITS), KL_F64, a, 0, 0, 0));
        else if (t == KL_I16 || t == KL_U16)
            keep(m, k_inst(k, L_OP(P_BITS), below(m, 2) ? KL_F16 : KL_BF16, a, 0, 0, 0));
        break;
    default:
        keep(m, k_prim(k, p, a, b, 0));
    }
}

static void make_mix(struct maker *m, unsigned dtype)
{
    val a = k_splat(m->k, pick(m, dtype)), b = k_splat(m->k, pick(m, dtype));
    uint32_t distance = m->width / 2;
    while (distance > 1 && below(m, 2)) distance /= 2;
    keep(m, k_interleave(m->k, below(m, 2) ? INTERLEAVE_LO : INTERLEAVE_HI, a, b, distance));
}

/* ---- tiles ---- */

static val tile_inst(struct maker *m, unsigned op, unsigned kind, unsigned dtype, unsigned rows, unsigned cols, val a,
                     val b,
                     val c, val d, uint64_t imm)
{
    struct linst i = {.op = (uint8_t)op, .kind = (uint8_t)kind, .dtype = (uint8_t)dtype, .rows = (uint16_t)rows,
                      .cols = (uint16_t)cols, .a = a, .b = b, .c = c, .d = d, .imm = imm};
    return k_append(m->k, i);
}

/* A tile in reach of a dtype and shape; 0: there is none. */
static val pick_tile(struct maker *m, unsigned dtype, unsigned rows, unsigned cols)
{
    for (unsigned n = m->ntiles; n-- > 0;) {
        const struct linst *i = &m->k->inst[m->tiles[n]];
        if (i->dtype == dtype && i->rows == rows && i->cols == cols && below(m, 3)) return m->tiles[n];
    }
    return 0;
}

/* A uniform value of the dtype. */
static val uniform(struct maker *m, unsigned dtype)
{
    val v = pick(m, dtype);
    return m->k->inst[v].varying ? k_const(m->k, dtype, 1) : v;
}

/* An i64 that a tile can start at: its elements end well inside the buffer. */
static val tile_start(struct maker *m)
{
    return m->nloops && below(m, 2) ? ix_add(m->k, m->loops[below(m, m->nloops)], k_int(m->k, below(m, 40)))
                                    : k_int(m->k, below(m, 50));
}

/* A tile of the shape, from nothing that is in reach. */
static val new_tile(struct maker *m, unsigned dtype, unsigned rows, unsigned cols)
{
    struct kernel *k = m->k;
    if (!below(m, 4)) return tile_inst(m, L_SPLAT, 0, dtype, rows, cols, uniform(m, dtype), 0, 0, 0, 0);
    if (dtype == KL_I64 && (rows == 1 || cols == 1) && below(m, 2))
        return tile_inst(m, L_INDEX, cols == 1 ? TILE_ROWS : TILE_COLS, dtype, rows, cols, 0, 0, 0, 0, 0);
    val mask = below(m, 2) ? 0 : pick_tile(m, KL_BOOL, rows, below(m, 2) ? cols : 1);
    return tile_inst(m, L_LOAD, below(m, 2), dtype, rows, cols, tile_start(m), mask, 0, k_int(k, below(m, 40)),
                     m->in[dtype]);
}

static val some_tile(struct maker *m, unsigned dtype, unsigned rows, unsigned cols)
{
    val v = pick_tile(m, dtype, rows, cols);
    return v ? v : new_tile(m, dtype, rows, cols);
}

/* One more tile: an operation on tiles, rows, columns and scalars, or a product; and at times a store. */
static void make_tile(struct maker *m)
{
    static const uint8_t sides[] = {1, 1, 2, 3, 5, 8, 16, 17},
        dtypes[] = {KL_F32, KL_F32, KL_F64, KL_I32, KL_U8, KL_I64, KL_F16};
    struct kernel *k = m->k;
    unsigned rows = sides[below(m, 6)], cols = sides[below(m, 8)], t = dtypes[below(m, 7)], depth = sides[below(m, 5)];
    val a = some_tile(m, t, rows, cols), b, v = a;
    switch (below(m, 7)) {
    case 6: /* pairs of bf16 */
        depth = 2 * (1 + below(m, 3) * 7);
        a = some_tile(m, KL_BF16, rows, depth), b = some_tile(m, KL_U32, depth / 2, cols), t = KL_F32;
        v = tile_inst(m, L_MMA, MMA_EVEN_ODD, t, rows, cols, a, b, some_tile(m, t, rows, cols), 0, 0);
        break;
    case 0: /* half floats and bytes into a larger accumulator */
        if (t == KL_I64) break;
        a = some_tile(m, t, rows, depth), b = some_tile(m, t, depth, cols);
        t = t == KL_F16 ? KL_F32 : t == KL_U8 ? KL_I32 : t;
        v = tile_inst(m, L_MMA, MMA_CHAIN, t, rows, cols, a, b, some_tile(m, t, rows, cols), 0, 0);
        break;
    case 1:
        b = below(m, 2) ? some_tile(m, t, rows, 1) : uniform(m, t);
        if (t != KL_F16) v = tile_inst(m, L_OP(P_MUL), 0, t, rows, cols, a, b, 0, 0, 0);
        break;
    case 2:
        b = some_tile(m, t, 1, cols);
        if (t != KL_F16) v = tile_inst(m, L_OP(P_LT), 0, KL_BOOL, rows, cols, a, b, 0, 0, 0);
        break;
    case 3:
        v = tile_inst(m, L_OP(P_SELECT), 0, t, rows, cols, some_tile(m, KL_BOOL, rows, 1), a,
                      some_tile(m, t, rows, cols), 0, 0);
        break;
    case 4:
        if (t != KL_F16 && t != KL_F32)
            v = tile_inst(m, L_OP(P_CAST), 0, KL_F32, rows, cols, a, 0, 0, 0, 0);
        break;
    default:
        break;
    }
    t = val_dtype(k, v);
    if (m->ntiles < MAX_TILES) m->tiles[m->ntiles++] = v;
    if (below(m, 3)) return;
    val mask = below(m, 2) ? 0 : pick_tile(m, KL_BOOL, rows, cols), to = tile_start(m);
    if (m->parallel) to = ix_add(k, to, ix_scale(k, m->parallel, COUNT));
    tile_inst(m, L_STORE, below(m, 2), t, 0, 0, to, v, mask, k_int(k, below(m, 40)), m->out[t]);
}

static void make_body(struct maker *m, unsigned n);

static void make_loop(struct maker *m, enum loop_kind kind)
{
    struct kernel *k = m->k;
    unsigned pool = m->npool, tiles = m->ntiles, ncarry = kind == LOOP_SERIAL ? below(m, 4) : 0;
    val tile = kind == LOOP_SERIAL && !m->vector && m->ntiles && below(m, 2) ? m->tiles[m->ntiles - 1] : 0;
    static const int64_t trips[] = {0, 1, 1, 2, 3, 5, 9}, widths[] = {1, 2, 4, 8, 16, 32, 64};
    val lo = k_int(k, 0), hi, init[4], carry[4];
    if (kind == LOOP_VECTOR)
        hi = k_int(k, widths[below(m, 7)]);
    else if (kind == LOOP_PARALLEL)
        hi = k_int(k, k->extent = 1 + below(m, MAX_EXTENT));
    else if (below(m, 3))
        hi = k_int(k, trips[below(m, 7)]);
    else /* known only when it runs */
        hi = k_prim(k, P_AND, k_load(k, m->in[KL_I64], k_int(k, below(m, COUNT)), 0), k_int(k, 7), 0);
    for (unsigned c = 0; c < ncarry; c++) {
        init[c] = pick(m, any_dtype(m));
        if (m->vector) init[c] = k_splat(k, init[c]);
    }
    int64_t step = kind == LOOP_SERIAL ? 1 + below(m, 3) : 1;
    if (kind == LOOP_SERIAL && k->inst[hi].op == L_CONST && (int64_t)k->inst[hi].imm <= 3 && below(m, 2)) kind =
        LOOP_UNROLLED;
    val loop = k_loop(k, kind, lo, hi, step), tile_carry = 0;
    for (unsigned c = 0; c < ncarry; c++) {
        carry[c] = k_carry(k, init[c]);
        keep(m, carry[c]);
    }
    const struct linst shape = k->inst[tile];
    if (tile) tile_carry = tile_inst(m, L_CARRY, 0, shape.dtype, shape.rows, shape.cols, tile, 0, 0, 0, 0);
    if (tile && m->ntiles < MAX_TILES) m->tiles[m->ntiles++] = tile_carry;
    keep(m, loop);
    if (kind == LOOP_PARALLEL) m->parallel = loop;
    m->loops[m->nloops++] = loop;
    m->vector |= kind == LOOP_VECTOR;
    if (kind == LOOP_VECTOR) m->width = (unsigned)k->inst[hi].imm;
    m->depth++;
    make_body(m, kind == LOOP_VECTOR ? 14 : 6);
    m->depth--;
    m->nloops--;
    val next[4];
    for (unsigned c = 0; c < ncarry; c++) next[c] = pick(m, val_dtype(k, carry[c]));
    val tile_next = tile ? some_tile(m, shape.dtype, shape.rows, shape.cols) : 0;
    for (unsigned c = 0; c < ncarry; c++) /* outside lanes all is uniform, within them the carry varies */
        k_next(k, carry[c], next[c]);
    if (tile) k_next(k, tile_carry, tile_next);
    k_end(k, loop);
    m->ntiles = tiles;
    if (tile && m->ntiles < MAX_TILES)
        m->tiles[m->ntiles++] = tile_inst(m, L_OUT, 0, shape.dtype, shape.rows, shape.cols, tile_carry, 0, 0, 0, 0);
    if (kind == LOOP_VECTOR) {
        m->vector = false;
        m->width = 0;
    }
    m->npool = pool;
    for (unsigned c = 0; c < ncarry; c++) keep(m, k_out(k, carry[c]));
}

static val uniform_bool(struct maker *m)
{
    for (unsigned tries = 0; tries < 8; tries++) {
        val v = pick(m, KL_BOOL);
        if (!m->k->inst[v].varying) return v;
    }
    return k_bits(m->k, KL_BOOL, 1);
}

static void make_if(struct maker *m)
{
    unsigned pool = m->npool, tiles = m->ntiles;
    val branch = k_if(m->k, uniform_bool(m));
    m->depth++;
    make_body(m, 5);
    m->depth--;
    k_end(m->k, branch);
    m->npool = pool;
    m->ntiles = tiles;
}

static void make_store(struct maker *m)
{
    unsigned t = any_dtype(m);
    val i = make_index(m), x = pick(m, t), p = make_pred(m);
    bool out = below(m, 3);
    if (out && m->parallel) /* each iteration has elements of its own */
        i = ix_add(m->k, i, ix_scale(m->k, m->parallel, COUNT));
    k_store(m->k, out ? m->out[t] : m->work[t], i, x, p);
}

static void make_body(struct maker *m, unsigned n)
{
    struct kernel *k = m->k;
    for (unsigned j = 0; j < n && m->budget; j++, m->budget--) {
        unsigned what = below(m, 24), t = any_dtype(m);
        if (what < 4)
            keep(m, k_load(k, below(m, 4) ? m->in[t] : m->work[t], make_index(m), make_pred(m)));
        else if (what < 6)
            make_store(m);
        else if (what == 6 && m->depth < MAX_DEPTH)
            make_loop(m, LOOP_SERIAL);
        else if (what <= 9 && m->depth < MAX_DEPTH && !m->vector)
            make_loop(m, LOOP_VECTOR);
        else if (what == 10 && m->depth < MAX_DEPTH)
            make_if(m);
        else if (what == 11 && m->vector && t != KL_BOOL && !dtype_is_half(t))
            keep(m, k_lane_reduce(k, (enum fold)below(m, FOLD_COUNT), k_splat(k, pick(m, t))));
        else if (what == 12 && m->vector && t != KL_BOOL && !dtype_is_half(t))
            keep(m, k_lane_reduce(k, (enum fold)below(m, FOLD_COUNT), k_load(k, m->in[t], make_index(m), 0)));
        else if (what == 13 && m->width > 1)
            make_mix(m, t);
        else if (what >= 14 && what <= 16 && !m->vector && m->makes_tiles)
            make_tile(m);
        else
            make_prim(m);
    }
    make_store(m);
}

struct kernel *random_kernel(uint64_t seed, bool tiles)
{
    struct maker m = {.k = kernel_new("random"), .r = {seed * UINT64_C(0x9e3779b97f4a7c15)}, .budget = 120,
                      .makes_tiles = tiles};
    for (unsigned d = 0; d < KL_DTYPE_COUNT; d++) {
        m.in[d] = k_buf(m.k, BUF_IN, d, COUNT, d);
        m.out[d] = k_buf(m.k, BUF_OUT, d, COUNT * MAX_EXTENT, d);
        m.work[d] = k_buf(m.k, BUF_SCRATCH, d, COUNT, d);
    }
    if (seed % 2)
        make_loop(&m, LOOP_PARALLEL);
    else
        make_body(&m, 40);
    if (seed % 3) kernel_clean(m.k);
    return m.k;
}
