/* Other schedules for a kernel: what a tuner (runtime/program/tune.c) measures.
 *
 * Each family proposes variations of the schedule that the kernel has, one or two fields at a time.  A tuner that
 * starts again from a schedule that it has found reaches combinations without trying all of them.  Each proposal is
 * lowered.  Those that lowering refuses for the group, and those that give the same kernel, are dropped. */
#include "passes/passes.h"
#include <string.h>

enum { MAX_PROPOSALS = 96, MAX_LANES = 64 };

struct proposals {
    const struct caps *caps;
    const struct graph *g;
    ref anchor;                     /* the group's dot; NIL: it has none */
    uint32_t members;
    unsigned threads;
    const struct kernel *k;
    struct schedule own, v[MAX_PROPOSALS];
    uint32_t n;
};

static void propose_schedule(struct proposals *p, struct schedule s)
{
    bool known = !memcmp(&s, &p->own, sizeof s);
    for (uint32_t i = 0; i < p->n && !known; i++)
        known = !memcmp(&s, &p->v[i], sizeof s);
    if (!known && p->n < MAX_PROPOSALS)
        p->v[p->n++] = s;
}

static uint32_t at_least_one(uint32_t n) { return n ? n : 1; }

/* ---- products on a processor, by tiles ---- */

/* Rows of a tile that has as many vectors in a row as `vectors`, out of `share` quarters of the registers, such that
 * the tiles of all rows are equally tall. */
static uint16_t rows_of_tile(const struct proposals *p, int64_t rows, uint32_t vectors, uint32_t share)
{
    enum { RESERVED = 4, MAX_ROWS = 24 }; /* registers for the operands; rows beyond which kernels only get longer */
    int64_t free_registers = (int64_t)p->caps->vector_regs - RESERVED, max = free_registers / vectors * share / 4;
    max = max > MAX_ROWS ? MAX_ROWS : max < 1 ? 1 : max;
    int64_t tiles = (rows + max - 1) / max;
    return (uint16_t)(tiles ? (rows + tiles - 1) / tiles : 1);
}

static void propose_tiles(struct proposals *p, int64_t rows, uint32_t lanes)
{
    static const struct { uint8_t vectors, share; } shapes[] = {{2, 4}, {4, 4}, {1, 4}, {2, 3}, {4, 3}, {1, 3},
                                                                {2, 2}, {1, 2}};
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct schedule s = {.kind = SCHED_DOT, .grain = p->own.grain};
        if (p->own.kind == SCHED_DOT)
            s = p->own;
        s.dot.kc = p->own.dot.kc;
        s.dot.nr = (uint16_t)(shapes[i].vectors * lanes);
        s.width = s.dot.nr;
        s.dot.mr = rows_of_tile(p, rows, shapes[i].vectors, shapes[i].share);
        s.dot.rows = s.dot.square = 0; /* as lowering chooses for such a tile */
        if (s.dot.nr <= MAX_LANES)
            propose_schedule(p, s);
    }
}

/* Rows that a task iterates over for each tile of columns: one tile, all, twice and half as many as now. */
static void propose_rows(struct proposals *p, int64_t rows)
{
    const uint32_t mr = at_least_one(p->own.dot.mr), tiles = p->own.dot.rows / mr;
    const int64_t choices[] = {mr, rows, 2 * (int64_t)tiles * mr, (int64_t)(tiles / 2) * mr};
    for (unsigned i = 0; i < sizeof choices / sizeof *choices; i++) {
        struct schedule s = p->own;
        s.dot.rows = (uint32_t)choices[i];
        if (choices[i] > 0 && choices[i] <= rows)
            propose_schedule(p, s);
    }
}

static void propose_epilogues(struct proposals *p)
{
    for (unsigned when = EPILOGUE_IN_TILE; when < EPILOGUE_COUNT && p->members > 1; when++) {
        struct schedule s = p->own;
        s.dot.epilogue = (uint8_t)when;
        s.dot.rows = 0;
        propose_schedule(p, s);
    }
}

static void propose_dot(struct proposals *p)
{
    const struct node *n = &p->g->node[p->anchor];
    struct dot_dims size = dot_sizes(p->g, n);
    uint32_t lanes = p->caps->vector_bytes / (uint32_t)dtype_size(dtype_compute(n->dtype));
    if (p->own.kind == SCHED_DOT_SKINNY) { /* streams of the matrix, lines of it; or tiles after all */
        for (uint16_t step = 1; step <= 16; step = (uint16_t)(2 * step)) {
            struct schedule few = p->own;
            few.dot_skinny.step = step;
            few.dot_skinny.ahead = 0;
            propose_schedule(p, few);
        }
        for (unsigned nr = lanes; nr <= MAX_LANES; nr *= 2) {
            struct schedule few = p->own;
            few.width = few.dot_skinny.nr = (uint16_t)nr;
            few.dot_skinny.step = few.dot_skinny.each = few.dot_skinny.ahead = 0;
            few.dot_skinny.strip = 0;
            propose_schedule(p, few);
        }
    } else {
        struct schedule s = p->own;
        s.dot.pack_b = !s.dot.pack_b;
        s.dot.pack_by = PACK_NONE;
        s.dot.rows = 0;
        propose_schedule(p, s);
    }
    propose_tiles(p, size.m, lanes);
    if (p->own.kind == SCHED_DOT) {
        propose_rows(p, size.m);
        propose_epilogues(p);
    }
}

/* ---- products on a GPU, by blocks of threads ---- */

static void propose_block(struct proposals *p, int rows, int columns, int tile_rows, int tile_columns, int step)
{
    struct schedule s = p->own;
    int threads = s.width, tiles = 0;
#define SCALED(field, by) \
    (s.dot_blocks.field = (uint16_t)((by) > 0 ? s.dot_blocks.field << (by) : s.dot_blocks.field >> -(by)))
    SCALED(block_m, rows);
    SCALED(block_n, columns);
    SCALED(mr, tile_rows);
    SCALED(nr, tile_columns);
    SCALED(step, step);
#undef SCALED
    tiles = rows + columns - tile_rows - tile_columns;
    s.width = (uint16_t)(tiles > 0 ? threads << tiles : threads >> -tiles);
    const uint16_t mr = s.dot_blocks.mr, nr = s.dot_blocks.nr, m = s.dot_blocks.block_m, n = s.dot_blocks.block_n;
    /* a tile that does not consist of the unit's has another unit, which lowering chooses */
    if (s.kind == SCHED_DOT_MATRIX &&
        (mr % at_least_one(s.dot_matrix.unit_m) || nr % at_least_one(s.dot_matrix.unit_n)))
        s.dot_matrix.unit_m = s.dot_matrix.unit_n = s.dot_matrix.unit_k = 0;
    if (m && n && mr && nr && s.dot_blocks.step && s.width)
        propose_schedule(p, s);
}

static void propose_blocks(struct proposals *p)
{
    static const int8_t by[][5] = {{0, 0, 0, 0, 1}, {0, 0, 0, 0, -1}, {1, 0, 0, 0, 0}, {0, 1, 0, 0, 0},
                                   {-1, 0, 0, 0, 0}, {0, -1, 0, 0, 0}, {1, 0, 1, 0, 0}, {0, 1, 0, 1, 0},
                                   {-1, 0, -1, 0, 0}, {0, -1, 0, -1, 0}, {0, 0, 1, 0, 0}, {0, 0, 0, 1, 0},
                                   {0, 0, -1, 0, 0}, {0, 0, 0, -1, 0}, {1, -1, 0, 0, 0}, {-1, 1, 0, 0, 0}};
    for (unsigned i = 0; i < sizeof by / sizeof *by; i++)
        propose_block(p, by[i][0], by[i][1], by[i][2], by[i][3], by[i][4]);
}

/* The other units that hold a tile in as many threads. */
static void propose_units(struct proposals *p)
{
    for (unsigned i = 0; i < MMA_UNITS; i++) {
        const struct mma_caps *u = &p->caps->mma[i];
        struct schedule s = p->own;
        s.dot_matrix.unit_m = u->m;
        s.dot_matrix.unit_n = u->n;
        s.dot_matrix.unit_k = u->k;
        if (u->subgroup == s.dot_matrix.subgroup)
            propose_schedule(p, s);
    }
}

/* ---- lanes and threads ---- */

/* Twice and half the lanes, and what is beyond these. */
static void propose_widths(struct proposals *p)
{
    static const int8_t by[] = {1, -1, 2, -2};
    const unsigned max = p->caps->is_gpu ? p->caps->block_threads : MAX_LANES;
    for (unsigned i = 0; i < sizeof by / sizeof *by; i++) {
        struct schedule s = p->own;
        unsigned width = by[i] > 0 ? (unsigned)s.width << by[i] : (unsigned)s.width >> -by[i];
        s.width = (uint16_t)width;
        if (width >= 1 && width <= max)
            propose_schedule(p, s);
    }
}

/* On a GPU: half the vector width of a lane; twice or half as many vectors for a thread, or iterations for the device.
 * */
static void propose_shares(struct proposals *p)
{
    struct schedule s = p->own;
    s.map.vector /= 2;
    propose_schedule(p, s);
    for (int up = 0; up < 2; up++) {
        s = p->own;
        s.map.vectors = (uint16_t)(up ? 2 * s.map.vectors : s.map.vectors / 2);
        if (s.map.vectors)
            propose_schedule(p, s);
        s = p->own;
        s.map.tasks = up ? 2 * s.map.tasks : s.map.tasks / 2;
        if (s.map.tasks)
            propose_schedule(p, s);
    }
}

/* ---- on a GPU: the fields of a family that are no order of its sums ---- */

/* Steps of a product on matrix units in shared memory; warps specialized or not, with as many steps as lowering
 * chooses. */
static void propose_stages(struct proposals *p)
{
    static const int8_t by[] = {1, -1};
    for (unsigned i = 0; i < sizeof by / sizeof *by; i++) {
        struct schedule s = p->own;
        s.dot_matrix.stages = (uint8_t)(s.dot_matrix.stages + by[i]);
        propose_schedule(p, s);
    }
    struct schedule s = p->own;
    s.dot_matrix.panels = !s.dot_matrix.panels;
    s.dot_matrix.stages = 0;
    propose_schedule(p, s);
}

/* Rows of a block of attention, with the threads that these take; steps in shared memory. */
static void propose_attention(struct proposals *p)
{
    for (int up = 0; up < 2; up++) {
        struct schedule s = p->own;
        s.width = (uint16_t)(up ? 2 * s.width : s.width / 2);
        s.attention_matrix.rows = 0; /* as many as so many threads have */
        propose_schedule(p, s);
        s = p->own;
        s.attention_matrix.stages = (uint8_t)(up ? s.attention_matrix.stages + 1 : s.attention_matrix.stages - 1);
        propose_schedule(p, s);
    }
}

/* Rows of a block of attention by register tiles, with the threads that these take. */
static void propose_attention_blocks(struct proposals *p)
{
    for (int up = 0; up < 2; up++) {
        struct schedule s = p->own;
        s.attention_blocks.rows = (uint16_t)(up ? 2 * s.attention_blocks.rows : s.attention_blocks.rows / 2);
        s.width = 0;
        propose_schedule(p, s);
    }
}

/* Twice and half the columns that a thread sums; one is written as 0. */
static void propose_columns(struct proposals *p)
{
    uint16_t each = (uint16_t)at_least_one(p->own.column_reduce.vector);
    for (int up = 0; up < 2; up++) {
        struct schedule s = p->own;
        s.column_reduce.vector = (uint16_t)(up ? 2 * each : each > 2 ? each / 2 : 0);
        propose_schedule(p, s);
    }
}

/* Rows that their threads do not hold in registers, where the threads have the same elements then; and which members
 * are kept in scratch rather than computed twice: none, or one more or less than now. */
static void propose_kept(struct proposals *p)
{
    struct schedule s = p->own;
    if (s.rows.held) {
        s.rows.held = 0;
        if (!s.rows.vector)
            propose_schedule(p, s);
        return;
    }
    s.rows.keep = 0;
    propose_schedule(p, s);
    for (uint32_t m = 0; m < p->members && m < 64; m++) {
        s = p->own;
        s.rows.keep ^= UINT64_C(1) << m;
        propose_schedule(p, s);
    }
}

/* ---- all kernels but products ---- */

/* Non-temporal stores or not, where what is stored does not fit the second-level cache anyway. */
static void propose_stream(struct proposals *p)
{
    struct schedule s = p->own;
    s.stream = !s.stream;
    if (s.stream ? p->k->bytes > p->caps->l2_bytes : true)
        propose_schedule(p, s);
}

/* Sizes of a task: one for each thread, four for each, four times and a quarter of what it is, and all in one. */
static void propose_grains(struct proposals *p)
{
    int64_t extent = p->k->extent, share = (extent + p->threads - 1) / p->threads, now = p->own.grain;
    const int64_t choices[] = {share, (share + 3) / 4, now <= INT64_MAX / 4 ? 4 * now : now, now / 4, 0};
    for (unsigned i = 0; i < sizeof choices / sizeof *choices && p->threads > 1 && extent > 1; i++) {
        struct schedule s = p->own;
        s.grain = choices[i];
        bool one_task = s.grain == 0 || s.grain >= extent, is_one = now == 0 || now >= extent;
        if (choices[i] > 0 ? s.grain < extent : !one_task || !is_one)
            propose_schedule(p, s);
    }
}

static void propose_all(struct proposals *p)
{
    bool gpu = p->caps->is_gpu;
    switch (p->own.kind) {
    case SCHED_DOT:
    case SCHED_DOT_SKINNY:
        if (!gpu)
            propose_dot(p);
        break;
    case SCHED_DOT_MATRIX:
        propose_units(p);
        propose_blocks(p);
        propose_stages(p);
        break;
    case SCHED_DOT_BLOCKS:
        propose_blocks(p);
        break;
    case SCHED_GPU_DOT_SKINNY: /* the threads of a column are an order of its sum, those with own columns are not */
        if (p->own.gpu_dot_skinny.split)
            propose_widths(p);
        break;
    case SCHED_COLUMN_REDUCE:
        propose_widths(p);
        if (gpu)
            propose_columns(p);
        break;
    case SCHED_ATTENTION_MATRIX:
        propose_attention(p);
        break;
    case SCHED_ATTENTION_BLOCKS:
        propose_attention_blocks(p);
        break;
    case SCHED_MAP:
        propose_widths(p);
        if (gpu)
            propose_shares(p);
        else
            propose_stream(p);
        break;
    case SCHED_ROWS:
        if (gpu)
            propose_kept(p);
        else
            propose_stream(p);
        break;
    case SCHED_DOT_BYTES:
    case SCHED_ROW_REDUCE:
    case SCHED_GPU_ROW_REDUCE:
        break; /* lanes are the order of the sum, or not by themselves to be changed */
    default:
        propose_widths(p);
        break;
    }
    if (!gpu)
        propose_grains(p);
}

/* Lowers the group as `wanted` says: *got is the schedule with the fields that it leaves open, *hash the kernel's.
 * *had: it is legal for the group.  false: out of memory, *e. */
static bool try_schedule(struct lowerer *s, uint32_t group, const struct schedule *wanted, struct schedule *got,
                         struct hash128 *hash, bool *had, struct err *e)
{
    struct lowered l;
    struct sched_refusal r;
    struct err why = {0};
    *had = false;
    if (!lower_group(s, group, wanted, &l, &r, &why))
        return why.code != KL_ERR_MEMORY || err_set(e, KL_ERR_MEMORY, "%s", why.msg);
    *got = *schedule_of(l.k);
    *hash = kernel_hash(l.k);
    *had = true;
    kernel_free(l.k);
    mem_free(l.arg);
    return true;
}

bool lower_candidates(struct lowerer *s, uint32_t group, const struct kernel *k, unsigned threads, struct schedule *out,
                      uint32_t *n, struct err *e)
{
    struct hash128 seen[MAX_CANDIDATES + 1] = {kernel_hash(k)};
    struct proposals p = {.k = k, .own = *schedule_of(k), .threads = threads ? threads : 1};
    uint32_t nseen = 1;
    lowerer_look(s, group, &p.g, &p.caps, &p.anchor, &p.members);
    propose_all(&p);
    *n = 0;
    for (uint32_t i = 0; i < p.n && *n < MAX_CANDIDATES; i++) {
        struct schedule got, again;
        struct hash128 hash, same;
        bool had, fixed;
        if (!try_schedule(s, group, &p.v[i], &got, &hash, &had, e))
            return false;
        for (uint32_t j = 0; j < nseen && had; j++)
            had = seen[j].lo != hash.lo || seen[j].hi != hash.hi;
        if (!had)
            continue;
        /* the whole record, as it will be kept, must give the same kernel */
        if (!try_schedule(s, group, &got, &again, &same, &fixed, e))
            return false;
        if (!fixed || same.lo != hash.lo || same.hi != hash.hi)
            continue;
        seen[nseen++] = hash;
        out[(*n)++] = got;
    }
    return true;
}
